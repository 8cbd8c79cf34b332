//! Histories of keys as JSON lines, so that another checker can judge them too.

use crate::kv::{Did, Op, linearizable};
use crate::world::World;
use honeycomb_env::Entropy;
use honeycomb_types::Time;
use serde_json::{Value, json};

/// The longest history that is printed: we cannot make the other checker fast.
const LONGEST: usize = 60;

fn line(seed: u64, key: &str, history: &[Op]) -> String {
    let ops: Vec<Value> = history
        .iter()
        .map(|op| {
            let (name, a, b, answer) = parts(op.did);
            let end = if op.end == Time::NEVER { -1 } else { op.end.0 as i64 };
            json!({ "op": name, "a": a, "b": b, "answer": answer, "begin": op.begin.0, "end": end })
        })
        .collect();
    let ok = linearizable(history).is_ok();
    json!({ "seed": seed, "key": key, "linearizable": ok, "ops": ops }).to_string()
}

/// Name, operands and result of an operation; an unknown result is null.
fn parts(did: Did) -> (&'static str, Option<u64>, Option<u64>, Value) {
    match did {
        Did::Get(found) => ("get", None, None, json!({ "found": found })),
        Did::Put(new, replaced) => {
            ("put", Some(new), None, told(replaced, |r| json!({ "was": r })))
        }
        Did::Set(new) => ("put", Some(new), None, Value::Null),
        Did::Insert(new, done) => ("insert", Some(new), None, told(done, |d| json!({ "done": d }))),
        Did::Delete(found) => ("delete", None, None, told(found, |f| json!({ "was": f }))),
        Did::Update(new, old) => ("update", Some(new), None, told(old, |o| json!({ "found": o }))),
        Did::Upsert(new, old) => ("upsert", Some(new), None, told(old, |o| json!({ "found": o }))),
        Did::Swap(from, to, answer) => {
            let answer = told(answer, |answer| match answer {
                Ok(()) => json!({ "done": true }),
                Err(found) => json!({ "done": false, "found": found }),
            });
            ("swap", Some(to), from, answer)
        }
        Did::Take(number, answer) | Did::Carry(number, answer) => {
            let answer = told(answer, |answer| match answer {
                Ok(()) => json!({ "done": true }),
                Err(was) => json!({ "done": false, "was": was }),
            });
            let name = if let Did::Take(..) = did { "take" } else { "carry" };
            (name, Some(number), None, answer)
        }
        Did::TooLarge => ("too large", None, None, json!({})),
        Did::Add(n, sum) => ("add", Some(n), None, told(sum, |sum| json!({ "sum": sum }))),
    }
}

fn told<T>(answer: Option<T>, show: impl Fn(T) -> Value) -> Value {
    answer.map_or(Value::Null, show)
}

/// The same history with one result changed, if possible.
fn spoilt(entropy: &mut Entropy, history: &[Op]) -> Option<Vec<Op>> {
    let mut history = history.to_vec();
    let chosen = entropy.below(history.len() as u64) as usize;
    let op = history.get_mut(chosen)?;
    let change = 1 + entropy.below(3);
    op.did = match op.did {
        Did::Get(None) => Did::Get(Some(change)),
        Did::Get(Some(found)) => Did::Get(if change == 1 { None } else { Some(found + change) }),
        Did::Put(new, Some(replaced)) => Did::Put(new, Some(!replaced)),
        Did::Insert(new, Some(done)) => Did::Insert(new, Some(!done)),
        Did::Delete(Some(found)) => Did::Delete(Some(!found)),
        Did::Update(new, Some(old)) => Did::Update(new, Some(old.map_or(Some(new), |_| None))),
        Did::Upsert(new, Some(old)) => Did::Upsert(new, Some(old.map_or(Some(new), |_| None))),
        Did::Swap(from, to, Some(Ok(()))) => Did::Swap(from, to, Some(Err(Some(to)))),
        Did::Swap(from, to, Some(Err(_))) => Did::Swap(from, to, Some(Ok(()))),
        Did::Take(number, Some(Ok(()))) => Did::Take(number, Some(Err(change == 1))),
        Did::Take(number, Some(Err(_))) => Did::Take(number, Some(Ok(()))),
        Did::Carry(number, Some(Ok(()))) => Did::Carry(number, Some(Err(change == 1))),
        Did::Carry(number, Some(Err(_))) => Did::Carry(number, Some(Ok(()))),
        Did::Add(n, Some(sum)) => Did::Add(n, Some(sum + change)),
        _ => return None,
    };
    Some(history)
}

/// Histories of one seed as JSON lines, each followed by a spoilt one.
pub fn histories_of(seed: u64, operations: u64) -> Vec<String> {
    let mut world = World::new(seed, false);
    // Other commands report violations: here the referees are compared.
    let _ = world.run(operations);
    let mut entropy = Entropy::seeded(seed);
    let mut lines = Vec::new();
    for known in world.structures.values() {
        for (key, history) in &known.history {
            if history.len() < 2 || history.len() > LONGEST {
                continue;
            }
            let key = format!("{}:{} {}", known.path, known.name, String::from_utf8_lossy(key));
            lines.push(line(seed, &key, history));
            if let Some(spoilt) = spoilt(&mut entropy, history) {
                lines.push(line(seed, &key, &spoilt));
            }
        }
    }
    lines
}
