//! The workload on key-value stores: single operations, batches, scans and transfers between
//! accounts, and the judgement of their results.

use crate::accounts::{self, ACCOUNTS};
use crate::client::{Active, TASKS};
use crate::kv::{Did, HISTORY_MAX, LARGE, LONG, Op as KvOp, linearizable};
use crate::large::Written;
use crate::sizes::Sizes;
use crate::world::{Known, World};
use honeycomb_client::Target;
use honeycomb_env::Entropy;
use honeycomb_types::limits::{KV_BATCH_BYTES_MAX, MANY_BYTES_MAX};
use honeycomb_types::{StructureId, Time};
use honeycomb_wire::batch::{BatchOp, BatchResult, RESULT, put_batch, put_keys, results};
use honeycomb_wire::data::{Brings, PutMode, ScanArgs, Scanned, SwapArgs, scanned as page_entries};
use honeycomb_wire::extents::{PutExtents, StoredWhen};
use honeycomb_wire::stored::{Function, NUMBER, Stored, accumulate_args};
use honeycomb_wire::{Field, Op, ReplyHeader, Status, key_hash};

/// Stores whose values are numbered from here on have only large values.
pub const FAT: u64 = 1_000_000;
/// From here on, small values with many in a region: only such regions are patched while they move.
pub const PLUMP: u64 = 2_000_000;
/// From here on, values of every length, under a growing number of keys.
pub const DRAWN: u64 = 4_000_000;
/// Flag in the number of a value: the number contains the length.
const SIZED: u64 = 1 << 62;
/// The position of that length.
const LENGTH_AT: u32 = 40;
const LENGTH_MASK: u64 = (1 << 20) - 1;
/// The bits of a value's number that count the values of a store.
const COUNTER_MASK: u64 = (1 << 24) - 1;
/// The shortest value with its own length: its number.
pub const VALUE_MIN: usize = 8;
/// The longest value of a batch: several fit in a request.
const BATCHED_MAX: usize = 24 * 1024;
/// Keys of one request that reads many.
const MANY_MAX: usize = 200;
/// Keys that are written again at the end.
const AGAIN: usize = 4;

/// An operation on a store.
#[derive(Debug, Clone)]
pub enum Storing {
    One {
        key: Vec<u8>,
        did: Did,
    },
    /// A removal of a large value, possibly during its read, by the list of its extents.
    Take {
        key: Vec<u8>,
        number: u64,
        list: Vec<u8>,
    },
    /// A large value that is evacuated: rewritten elsewhere and put in place of the list of its
    /// extents, if the key still has that list.
    Carry {
        key: Vec<u8>,
        number: u64,
        list: Vec<u8>,
    },
    /// Independent operations in one request.
    Batch(Vec<(Vec<u8>, Did)>),
    /// Reads of several keys of one block in one request.
    Many(Vec<Vec<u8>>),
    /// An atomic batch.
    Atomic {
        did: accounts::Did,
        sum: i64,
    },
    Scan {
        cursor: u64,
        bytes: u32,
    },
}

/// Chooses an operation.
pub fn choose(world: &mut World, structure: StructureId) -> Storing {
    let known = world.structures.get_mut(&structure).expect("just chosen");
    match world.rng.below(20) {
        0..3 => {
            let did = choose_transfer(&mut world.rng, known);
            let sum = 1 + world.rng.below(50) as i64;
            let did = match did {
                accounts::Did::Move(from, to, ..) => accounts::Did::Move(from, to, sum, None),
                other => other,
            };
            Storing::Atomic { did, sum }
        }
        3 => {
            let entries = &known.opened.map.entries;
            let entry = &entries[world.rng.below(entries.len() as u64) as usize];
            let bytes = 100 + world.rng.below(20_000) as u32;
            Storing::Scan { cursor: entry.start.max(1), bytes }
        }
        6..8 if known.next_value >= DRAWN => {
            let entries = &known.opened.map.entries;
            let entry = &entries[world.rng.below(entries.len() as u64) as usize];
            match many(known, entry.start, entry.end, true).into_iter().next() {
                Some(keys) => Storing::Many(keys),
                None => Storing::Scan { cursor: 1, bytes: 1000 },
            }
        }
        4..6 => {
            let count = 2 + world.rng.below(4);
            let mut ops: Vec<(Vec<u8>, Did)> = Vec::new();
            let most = BATCHED_MAX.min(world.sizes.limit());
            for _ in 0..count {
                let (key, did) = choose_one(&mut world.rng, &mut world.sizes, most, known);
                // Updates return old values, which batches do not have.
                let did = match did {
                    Did::Update(new, _) | Did::Upsert(new, _) => Did::Put(new, None),
                    other => other,
                };
                if ops.iter().all(|(other, _)| *other != key) {
                    ops.push((key, did));
                }
            }
            Storing::Batch(ops)
        }
        _ => {
            let most = world.sizes.limit();
            let (mut key, mut did) = choose_one(&mut world.rng, &mut world.sizes, most, known);
            // Few keys have large values, so that reads meet replacements.
            let again = known.large_key.as_ref().filter(|key| has_room(known, key));
            if let Some(again) = again
                && world.rng.chance(world.faults.large.min(200_000))
            {
                key.clone_from(again);
                let turn = world.rng.below(3);
                if let (1, Did::Insert(..) | Did::Upsert(..)) = (turn, did)
                    && let Some((list, number)) = last_list(known, &key)
                {
                    return match world.rng.chance(500_000) {
                        true => Storing::Take { key, number, list },
                        false => Storing::Carry { key, number, list },
                    };
                }
                did = match (turn, did) {
                    (0, Did::Put(..) | Did::Set(_) | Did::Delete(_)) => did,
                    _ => Did::Get(None),
                };
            }
            let large = world.rng.chance(world.faults.large);
            // Different in every store, so that a value of another store is noticed.
            let mut number = |new: u64| match new & SIZED {
                0 => new | LARGE | (structure.0 & 0xFFFF) << 24,
                _ => {
                    let of = new & COUNTER_MASK | LARGE | (structure.0 & 0xFFFF) << 24;
                    sized(of, world.sizes.large())
                }
            };
            let did = match did {
                Did::Put(new, None) | Did::Set(new) if large => Did::Put(number(new), None),
                Did::Insert(new, None) if large => Did::Insert(number(new), None),
                other => other,
            };
            if large_of(did).is_some() {
                known.large_key = Some(key.clone());
            }
            Storing::One { key, did }
        }
    }
}

/// The value that an operation writes, if it is too large for a block.
pub fn written_by(storing: &Storing) -> Option<u64> {
    match storing {
        Storing::One { did, .. } => large_of(*did),
        Storing::Carry { number, .. } => Some(*number),
        _ => None,
    }
}

/// The value that it writes, if it is too large for a block.
pub fn large_of(did: Did) -> Option<u64> {
    match did {
        Did::Put(new, _) | Did::Insert(new, _) => Some(new).filter(|new| new & LARGE != 0),
        _ => None,
    }
}

/// The last list put under a key, as far as is known, with its value.
fn last_list(known: &Known, key: &[u8]) -> Option<(Vec<u8>, u64)> {
    let history = known.history.get(key)?;
    let number = history.iter().rev().find_map(|op| large_of(op.did))?;
    // A value that was rewritten because extents were gone has several lists: the current one is
    // unknown.
    let mut lists = known.lists.iter().filter(|(_, of)| **of == Written::Value(number));
    let (list, _) = lists.next().filter(|_| lists.next().is_none())?;
    Some((list.clone(), number))
}

/// Whether a key may have more operations: its history must stay short enough to decide.
fn has_room(known: &Known, key: &[u8]) -> bool {
    known.history.get(key).is_none_or(|h| h.len() < HISTORY_MAX - 2 * TASKS)
}

fn choose_transfer(rng: &mut Entropy, known: &Known) -> accounts::Did {
    let full = known.accounts.len() >= HISTORY_MAX - TASKS;
    let from = rng.below(ACCOUNTS as u64) as usize;
    let to = (from + 1 + rng.below(ACCOUNTS as u64 - 1) as usize) % ACCOUNTS;
    match rng.below(10) {
        _ if full => accounts::Did::Read(None),
        0..5 => accounts::Did::Move(from, to, 0, None),
        5 => accounts::Did::Fail,
        _ => accounts::Did::Read(None),
    }
}

/// The number of a value of this length.
fn sized(number: u64, length: usize) -> u64 {
    // With 10 bytes it could be mistaken for a stored integer.
    let length = if length == NUMBER { NUMBER + 1 } else { length };
    let long = if length + RESULT > KV_BATCH_BYTES_MAX { LONG } else { 0 };
    number | SIZED | long | (length as u64 & LENGTH_MASK) << LENGTH_AT
}

/// The last value known to be written to a key.
fn last_written(known: &Known, key: &[u8]) -> Option<u64> {
    let history = known.history.get(key)?;
    history.iter().rev().find_map(|op| match op.did {
        Did::Put(new, _)
        | Did::Set(new)
        | Did::Upsert(new, _)
        | Did::Swap(_, new, Some(Ok(()))) => Some(new),
        _ => None,
    })
}

/// The used keys of a range, in groups for one request each; with `room`, only keys whose history
/// may grow.
fn many(known: &Known, start: u64, end: u64, room: bool) -> Vec<Vec<Vec<u8>>> {
    let most = if room { HISTORY_MAX - 2 * TASKS } else { HISTORY_MAX - 2 };
    let fits = known.history.iter().filter(|(_, history)| history.len() < most);
    let of = |key: &&Vec<u8>| (start..=end).contains(&key_hash(key));
    let keys: Vec<Vec<u8>> = fits.map(|(key, _)| key).filter(of).cloned().collect();
    keys.chunks(MANY_MAX).map(<[Vec<u8>]>::to_vec).collect()
}

/// The request that puts new values of one length under some keys of one block.
pub fn write_again(known: &mut Known, length: usize) -> Option<Storing> {
    let ranges: Vec<(u64, u64)> =
        known.opened.map.entries.iter().map(|entry| (entry.start, entry.end)).collect();
    let keys = ranges.into_iter().find_map(|(start, end)| many(known, start, end, true).pop())?;
    let ops = keys.into_iter().take(AGAIN).map(|key| {
        known.next_value += 1;
        (key, Did::Put(sized(known.next_value & COUNTER_MASK, length), None))
    });
    Some(Storing::Batch(ops.collect()))
}

/// Requests that read the whole content of a store.
pub fn read_everything(known: &Known) -> Vec<Storing> {
    let entries = known.opened.map.entries.iter();
    let groups = entries.flat_map(|entry| many(known, entry.start, entry.end, false));
    groups.map(Storing::Many).collect()
}

/// The next operation on a store with values of all lengths. Blocks fill and split, and are emptied
/// sometimes.
fn choose_drawn(
    rng: &mut Entropy,
    sizes: &mut Sizes,
    most: usize,
    known: &mut Known,
) -> (Vec<u8>, Did) {
    known.next_value += 1;
    let count = known.next_value - DRAWN;
    // Every step may add a key, so that stores outgrow memory.
    let key = loop {
        let name = format!("k{}", rng.below(8 + count)).into_bytes();
        if has_room(known, &name) {
            break name;
        }
    };
    let shrinks = count / 200 % 3 == 2;
    let most = match known.usual {
        usual if usual > 0 && !sizes.one_in(8) => most.min(usual),
        _ => most,
    };
    let least = if most == known.usual { most } else { VALUE_MIN };
    let new = sized(known.next_value, sizes.written(least, most));
    let old = last_written(known, &key).filter(|number| number & LARGE == 0);
    let did = match rng.below(16) {
        0..8 if shrinks => Did::Delete(None),
        0..4 => Did::Put(new, None),
        4..7 => Did::Set(new),
        7 => Did::Insert(new, None),
        8 => Did::Delete(None),
        9 => Did::Update(new, None),
        10 => Did::Upsert(new, None),
        11 if old.is_some() => Did::Swap(old, new, None),
        _ => Did::Get(None),
    };
    (key, did)
}

fn choose_one(
    rng: &mut Entropy,
    sizes: &mut Sizes,
    most: usize,
    known: &mut Known,
) -> (Vec<u8>, Did) {
    if known.next_value >= DRAWN {
        return choose_drawn(rng, sizes, most, known);
    }
    let mut turn = 0;
    // Numbers have separate keys: values that are put are not numbers.
    let counter = rng.chance(250_000);
    let kind = if counter { 'n' } else { 'k' };
    let fat = known.next_value >= FAT;
    let names = match known.next_value {
        0..FAT => 6,
        FAT..PLUMP => 20,
        _ => 120,
    };
    let key = loop {
        let name = format!("{kind}{}", rng.below(names) + names * turn).into_bytes();
        if has_room(known, &name) {
            break name;
        }
        turn += 1;
    };
    known.next_value += 1;
    let new = known.next_value;
    let seen = new.saturating_sub(1 + rng.below(4));
    // Blocks fill and split, become empty and merge.
    let shrinks = fat && known.next_value / 60 % 2 == 1;
    let did = match rng.below(12) {
        0..6 if shrinks => Did::Delete(None),
        0..3 if counter => Did::Get(None),
        3 if counter => Did::Delete(None),
        _ if counter => Did::Add(new, None),
        0..4 => Did::Get(None),
        4 => Did::Put(new, None),
        5 => Did::Set(new),
        6 => Did::Insert(new, None),
        7 => Did::Delete(None),
        8 => Did::Update(new, None),
        9..11 => Did::Upsert(new, None),
        _ => Did::Swap((seen > 0).then_some(seen), new, None),
    };
    (key, did)
}

/// The bytes of a value: its number, and a filling derived from it.
pub fn value(number: u64) -> Vec<u8> {
    if number & (LARGE | SIZED) != 0 {
        // Two or three extents, or a drawn length; every word contains its offset.
        let length = match number & SIZED {
            0 => 8 * (1030 + (number & COUNTER_MASK) * 37 % 1100) as usize,
            _ => (number >> LENGTH_AT & LENGTH_MASK) as usize,
        };
        let word = |i: u64| (number ^ i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes();
        let mut bytes: Vec<u8> = (0..length.div_ceil(8) as u64).flat_map(word).collect();
        bytes.truncate(length);
        return bytes;
    }
    let length = if number >= PLUMP {
        200 + number as usize * 37 % 100
    } else if number.is_multiple_of(5) || number >= FAT {
        3000 + number as usize * 37 % 5000
    } else {
        40
    };
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(length, number as u8);
    bytes
}

/// The number of a value, if all of its bytes are right.
pub fn number(bytes: &[u8]) -> Result<u64, String> {
    if let Stored::Integer(sum) = Stored::of(bytes) {
        return Ok(sum as u64);
    }
    let head = bytes.first_chunk().ok_or("a value without its number")?;
    let number = u64::from_le_bytes(*head);
    if value(number) != bytes {
        return Err(format!("the value {number} is torn: {} bytes", bytes.len()));
    }
    Ok(number)
}

impl Storing {
    /// In words, for a report.
    pub fn describe(&self) -> String {
        match self {
            Storing::One { key, did } => format!("{} {did:?}", String::from_utf8_lossy(key)),
            other => format!("{other:?}"),
        }
    }

    /// The request.
    pub fn lay_out(&self) -> (Op, Target, Vec<u8>, Vec<u8>) {
        match self {
            Storing::One { key, did } => {
                let (op, args, payload) = lay_out_one(key, *did);
                (op, Target::Hash(key_hash(key)), args, payload)
            }
            Storing::Take { key, list, .. } => {
                (Op::KvDeleteExtents, Target::Hash(key_hash(key)), key.clone(), list.clone())
            }
            // The new list is not known yet.
            Storing::Carry { key, list, .. } => {
                let put = PutExtents { when: StoredWhen::Still(list), key, list: &[] };
                let (args, payload) = put.encode();
                (Op::KvPutExtents, Target::Hash(key_hash(key)), args, payload)
            }
            Storing::Batch(ops) => {
                let values: Vec<[Vec<u8>; 2]> = ops.iter().map(|(_, did)| bring(*did)).collect();
                let all = ops.iter().zip(&values);
                let laid: Vec<BatchOp<'_>> =
                    all.map(|((key, did), values)| batch_op(key, *did, values)).collect();
                let hashes = || ops.iter().map(|(key, _)| key_hash(key));
                let (first, last) = (hashes().min(), hashes().max());
                let target = Target::Hashes(first.unwrap_or(0), last.unwrap_or(0));
                (Op::KvBatch, target, vec![0], put_batch(&laid))
            }
            Storing::Many(keys) => {
                let hashes = || keys.iter().map(|key| key_hash(key));
                let (first, last) = (hashes().min(), hashes().max());
                let target = Target::Hashes(first.unwrap_or(0), last.unwrap_or(0));
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                let mut args = Vec::new();
                (MANY_BYTES_MAX as u32).put(&mut args);
                (Op::KvMultiGet, target, args, put_keys(&keys))
            }
            Storing::Atomic { did, sum } => {
                let keys: Vec<Vec<u8>> = (0..ACCOUNTS).map(accounts::key).collect();
                let sums = [(-sum).to_le_bytes(), sum.to_le_bytes()];
                let hashes = || keys.iter().map(|key| key_hash(key));
                let (first, last) = (hashes().min(), hashes().max());
                let target = Target::Hashes(first.unwrap_or(0), last.unwrap_or(0));
                let ops = accounts::batch(*did, &keys, &sums);
                (Op::KvBatch, target, vec![1], put_batch(&ops))
            }
            Storing::Scan { cursor, bytes } => {
                let mut args = Vec::new();
                let scan = ScanArgs {
                    cursor: *cursor,
                    bytes: *bytes,
                    brings: Brings::Values,
                    prefix: b"",
                };
                scan.put(&mut args);
                (Op::KvScan, Target::Hash(*cursor), args, Vec::new())
            }
        }
    }
}

fn lay_out_one(key: &[u8], did: Did) -> (Op, Vec<u8>, Vec<u8>) {
    let mode = |m: u8| [&[m], key].concat();
    match did {
        Did::Get(_) => (Op::KvGet, key.to_vec(), Vec::new()),
        // The list is not known yet.
        Did::Put(new, _) if new & LARGE != 0 => (Op::KvPutExtents, mode(0), Vec::new()),
        Did::Insert(new, _) if new & LARGE != 0 => (Op::KvPutExtents, mode(1), Vec::new()),
        Did::Put(new, _) => (Op::KvPut, mode(PutMode::Always as u8), value(new)),
        Did::Set(new) => (Op::KvPut, mode(PutMode::Blind as u8), value(new)),
        Did::Insert(new, _) => (Op::KvPut, mode(PutMode::Absent as u8), value(new)),
        Did::Delete(_) => (Op::KvDelete, mode(0), Vec::new()),
        Did::Update(new, _) => (Op::KvUpdate, key.to_vec(), value(new)),
        Did::Upsert(new, _) => (Op::KvUpsert, key.to_vec(), value(new)),
        Did::Swap(from, to, _) => {
            let expected = from.map(value).unwrap_or_default();
            let new = value(to);
            let swap = SwapArgs { present: from.is_some(), key, expected: &expected, new: &new };
            let (args, payload) = swap.encode();
            (Op::KvCompareAndSwap, args, payload)
        }
        Did::Add(n, _) => {
            let args = accumulate_args(Function::SumI64, key);
            (Op::KvAccumulate, args, n.to_le_bytes().to_vec())
        }
        Did::TooLarge | Did::Take(..) | Did::Carry(..) => {
            unreachable!("it is an answer, or has a list with it")
        }
    }
}

/// The values in an operation of a batch: the expected one and the new one.
fn bring(did: Did) -> [Vec<u8>; 2] {
    match did {
        Did::Put(new, _) | Did::Set(new) | Did::Insert(new, _) => [Vec::new(), value(new)],
        Did::Swap(from, to, _) => [from.map(value).unwrap_or_default(), value(to)],
        Did::Add(n, _) => [Vec::new(), n.to_le_bytes().to_vec()],
        _ => [Vec::new(), Vec::new()],
    }
}

fn batch_op<'a>(key: &'a [u8], did: Did, [expected, new]: &'a [Vec<u8>; 2]) -> BatchOp<'a> {
    match did {
        Did::Get(_) => BatchOp::Get { key },
        Did::Put(..) => BatchOp::Put { key, value: new },
        Did::Set(_) => BatchOp::Set { key, value: new },
        Did::Insert(..) => BatchOp::Insert { key, value: new },
        Did::Delete(_) => BatchOp::Delete { key },
        Did::Swap(from, ..) => {
            BatchOp::Swap { key, expected: from.is_some().then_some(expected.as_slice()), new }
        }
        Did::Add(..) => BatchOp::Accumulate { key, function: Function::SumI64, operand: new },
        other => unreachable!("{other:?} is not of batches"),
    }
}

/// Compares a result with the model; `roomy` if there are no faults and there is memory. Reports
/// the reached states to `reach`.
pub fn judge_answer(
    known: &mut Known,
    active: &Active,
    storing: &Storing,
    header: &ReplyHeader,
    now: Time,
    roomy: bool,
    reach: &mut Vec<&'static str>,
) -> Result<(), String> {
    let found = &active.found[..];
    let begin = active.begin;
    match storing {
        Storing::One { key, did } => {
            if found.len() > 2000 {
                reach.push("large value");
            }
            let did = answered(*did, header, found)?;
            known.history.entry(key.clone()).or_default().push(KvOp { begin, end: now, did });
            Ok(())
        }
        Storing::Take { key, number, .. } => {
            let answer = by_list(header.status);
            reach.push(if answer.is_ok() { "large value taken" } else { "large value not taken" });
            // An evacuated value has another list, and still exists.
            let carried =
                known.lists.values().filter(|of| **of == Written::Value(*number)).count() > 1;
            if answer == Err(true) && carried {
                return Ok(());
            }
            let did = Did::Take(*number, Some(answer));
            known.history.entry(key.clone()).or_default().push(KvOp { begin, end: now, did });
            Ok(())
        }
        Storing::Carry { key, number, .. } => {
            let answer = by_list(header.status);
            reach.push(if answer.is_ok() {
                "large value carried"
            } else {
                "large value not carried"
            });
            let did = Did::Carry(*number, Some(answer));
            known.history.entry(key.clone()).or_default().push(KvOp { begin, end: now, did });
            Ok(())
        }
        Storing::Batch(ops) => {
            if let Some(length) = too_long(storing) {
                return Err(format!(
                    "a batch of {length} bytes ran, over the limit of {KV_BATCH_BYTES_MAX}"
                ));
            }
            let count = header.value as usize;
            let told = results(found, count).map_err(|e| format!("the results: {e}"))?;
            // An operation without a result has not run.
            for ((key, did), result) in ops.iter().zip(told) {
                if roomy && result.status == Status::OutOfMemory {
                    return Err("a tier has room, and an operation of a batch found none".into());
                }
                if let Some(did) = answered_in_batch(*did, &result)? {
                    let op = KvOp { begin, end: now, did };
                    known.history.entry(key.clone()).or_default().push(op);
                }
            }
            Ok(())
        }
        Storing::Many(keys) => {
            let count = header.value as usize;
            if count == 0 || count > keys.len() {
                return Err(format!("{count} of {} keys were answered", keys.len()));
            }
            reach.push(if count < keys.len() {
                "some of many keys read"
            } else {
                "many keys read"
            });
            let told = results(found, count).map_err(|e| format!("the results: {e}"))?;
            for (key, result) in keys.iter().zip(told) {
                if let Some(did) = answered_in_batch(Did::Get(None), &result)? {
                    let op = KvOp { begin, end: now, did };
                    known.history.entry(key.clone()).or_default().push(op);
                }
            }
            Ok(())
        }
        Storing::Atomic { did, .. } => {
            if let Some(did) = transferred(*did, header, found, reach)? {
                let room = HISTORY_MAX - TASKS;
                if !matches!(did, accounts::Did::Read(_)) || known.accounts.len() < room {
                    known.accounts.push(accounts::Op { begin, end: now, did });
                }
            }
            Ok(())
        }
        Storing::Scan { cursor, .. } => scanned(known, active, *cursor, header, now, reach),
    }
}

/// The result of a change to a value that is named by its list; if it failed, whether there was
/// another value.
fn by_list(status: Status) -> Result<(), bool> {
    match status {
        Status::Ok => Ok(()),
        status => Err(status == Status::CompareFailed),
    }
}

/// The operation on a key, with its result.
fn answered(did: Did, header: &ReplyHeader, found: &[u8]) -> Result<Did, String> {
    let (absent, ok) = (header.status == Status::KeyNotFound, header.status == Status::Ok);
    Ok(match did {
        Did::Get(_) if absent => Did::Get(None),
        Did::Get(_) => Did::Get(Some(number(found)?)),
        Did::Put(new, _) => Did::Put(new, Some(header.value == 1)),
        Did::Set(_) if header.value != 0 => return Err("a set told more than its success".into()),
        Did::Set(new) => Did::Set(new),
        Did::Insert(new, _) => Did::Insert(new, Some(ok)),
        Did::Delete(_) => Did::Delete(Some(ok)),
        Did::Update(new, _) if absent => Did::Update(new, Some(None)),
        Did::Update(new, _) => Did::Update(new, Some(Some(number(found)?))),
        Did::Upsert(new, _) if header.value == 1 => Did::Upsert(new, Some(Some(number(found)?))),
        Did::Upsert(new, _) => Did::Upsert(new, Some(None)),
        Did::Swap(from, to, _) if ok => Did::Swap(from, to, Some(Ok(()))),
        // The reply does not contain the current value.
        Did::Swap(..) if header.value > 1 => Did::TooLarge,
        Did::Swap(from, to, _) => {
            let found = if header.value == 1 { Some(number(found)?) } else { None };
            Did::Swap(from, to, Some(Err(found)))
        }
        Did::TooLarge | Did::Take(..) | Did::Carry(..) => {
            unreachable!("it is an answer, or has a list with it")
        }
        Did::Add(n, _) => Did::Add(n, Some(header.value)),
    })
}

/// The same for one operation of a batch; `None` if it was refused.
fn answered_in_batch(did: Did, result: &BatchResult<'_>) -> Result<Option<Did>, String> {
    match result.status {
        Status::Ok | Status::KeyNotFound | Status::KeyExists | Status::CompareFailed => {
            let header = ReplyHeader::new(result.status, 0, result.value);
            answered(did, &header, result.bytes).map(Some)
        }
        Status::ValueTooLarge => Ok(Some(Did::TooLarge)),
        status if has_no_room(status) => Ok(None),
        other => Err(format!("an operation of a batch was answered {}", other.name())),
    }
}

/// Whether it reports a lack of space for a value: in its block, the cluster or the job's quota, or
/// because no node could be asked for more.
pub fn has_no_room(status: Status) -> bool {
    matches!(
        status,
        Status::BlockFull | Status::OutOfMemory | Status::QuotaExceeded | Status::Unavailable
    )
}

fn transferred(
    did: accounts::Did,
    header: &ReplyHeader,
    found: &[u8],
    reach: &mut Vec<&'static str>,
) -> Result<Option<accounts::Did>, String> {
    let parse = |e: honeycomb_wire::Malformed| format!("the results do not parse: {e}");
    let due = match did {
        accounts::Did::Move(..) => 2,
        accounts::Did::Fail => 3,
        accounts::Did::Read(_) => ACCOUNTS,
    };
    if header.value as usize != due {
        let told = results(found, 1).map_err(parse)?;
        return match (did, told[0].status) {
            (_, status) if has_no_room(status) => Ok(None),
            (accounts::Did::Fail, Status::KeyExists) => {
                reach.push("batch refused whole");
                Ok(Some(accounts::Did::Fail))
            }
            (_, other) => Err(format!("operation {} was refused: {}", header.value, other.name())),
        };
    }
    let told = results(found, due).map_err(parse)?;
    Ok(Some(match did {
        accounts::Did::Move(from, to, sum, _) => {
            reach.push("transfer between accounts");
            let told = (told[0].value as i64, told[1].value as i64);
            accounts::Did::Move(from, to, sum, Some(told))
        }
        accounts::Did::Fail => return Err("a batch that could not be done was done".into()),
        accounts::Did::Read(_) => {
            let mut balances = [0; ACCOUNTS];
            for (balance, result) in balances.iter_mut().zip(told) {
                *balance = match (result.status, Stored::of(result.bytes)) {
                    (Status::KeyNotFound, _) => 0,
                    (Status::Ok, Stored::Integer(sum)) => sum,
                    (other, _) => return Err(format!("a balance was answered {}", other.name())),
                };
            }
            accounts::Did::Read(Some(balances))
        }
    }))
}

/// A page of a scan reads every key of its range at once: those that it contains, and those that it
/// does not.
fn scanned(
    known: &mut Known,
    active: &Active,
    cursor: u64,
    header: &ReplyHeader,
    now: Time,
    reach: &mut Vec<&'static str>,
) -> Result<(), String> {
    // The end of the block's range: the caller's map may be older or newer than the reply.
    let last = match header.value {
        0 => u64::MAX,
        next => {
            reach.push("scan of several pages");
            next - 1
        }
    };
    let entries = page_entries(&active.found).map_err(|e| format!("the page: {e}"))?;
    let mut seen = std::collections::BTreeMap::new();
    let mut before = 0;
    for (key, bytes) in entries {
        let hash = key_hash(key);
        if hash < cursor || hash > last || hash < before {
            return Err(format!("a page brought {key:?}, which is not of its range"));
        }
        before = hash;
        if key.starts_with(b"{bank}") {
            continue;
        }
        let number = match bytes {
            Scanned::Value(bytes) => number(bytes)?,
            Scanned::Extents(list) => {
                reach.push("value in extents scanned");
                let of =
                    known.lists.get(list).ok_or("a page names extents that no put has named")?;
                let Written::Value(number) = *of else { return Err("a page names an item".into()) };
                number
            }
        };
        if seen.insert(key.to_vec(), number).is_some() {
            return Err(format!("a page brought {key:?} twice"));
        }
    }
    for (key, history) in &mut known.history {
        let found = seen.remove(key);
        let hash = key_hash(key);
        if hash >= cursor && hash <= last && history.len() < HISTORY_MAX - 2 * TASKS {
            let did = Did::Get(found);
            history.push(KvOp { begin: active.begin, end: now, did });
        }
    }
    // An operation in progress may have written a key without a known history.
    for (key, value) in seen {
        let did = Did::Get(Some(value));
        known.history.entry(key).or_default().push(KvOp { begin: active.begin, end: now, did });
    }
    Ok(())
}

/// The size of a batch, if it exceeds the limit of a request: a client divides such a batch.
fn too_long(storing: &Storing) -> Option<usize> {
    let Storing::Batch(_) = storing else { return None };
    let (.., payload) = storing.lay_out();
    Some(payload.len()).filter(|length| *length > KV_BATCH_BYTES_MAX)
}

/// Judges the refusal of an operation because a value is too large for its block, or the request is
/// too long.
pub fn judge_too_large(
    known: &mut Known,
    active: &Active,
    storing: &Storing,
    now: Time,
) -> Result<(), String> {
    if too_long(storing).is_some() {
        return Ok(());
    }
    let Storing::One { key, did: Did::Update(..) | Did::Upsert(..) | Did::Swap(..) } = storing
    else {
        return Err("a value was too large for what needs none".into());
    };
    let op = KvOp { begin: active.begin, end: now, did: Did::TooLarge };
    known.history.entry(key.clone()).or_default().push(op);
    Ok(())
}

/// Records that the outcome of the operation is unknown.
pub fn unknown(known: &mut Known, active: &Active, storing: &Storing) {
    let (begin, end) = (active.begin, Time::NEVER);
    match storing {
        Storing::One { key, did } if !matches!(did, Did::Get(_)) => {
            known.history.entry(key.clone()).or_default().push(KvOp { begin, end, did: *did });
        }
        Storing::Take { key, number, .. } => {
            let did = Did::Take(*number, None);
            known.history.entry(key.clone()).or_default().push(KvOp { begin, end, did });
        }
        Storing::Batch(ops) => {
            for (key, did) in ops.iter().filter(|(_, did)| !matches!(did, Did::Get(_))) {
                known.history.entry(key.clone()).or_default().push(KvOp { begin, end, did: *did });
            }
        }
        Storing::Atomic { did: did @ accounts::Did::Move(..), .. } => {
            known.accounts.push(accounts::Op { begin, end, did: *did });
        }
        _ => {}
    }
}

/// Judges every key of every store, and its accounts: an order must explain each history.
pub fn judge(world: &mut World) {
    let mut wrong = None;
    let mut decided = 0;
    for known in world.structures.values() {
        for (key, history) in &known.history {
            decided += 1;
            if let Err(e) = linearizable(history) {
                let key = String::from_utf8_lossy(key);
                wrong.get_or_insert(format!("{}:{} '{key}': {e}", known.path, known.name));
            }
        }
        if !known.accounts.is_empty() {
            decided += 1;
            if let Err(e) = linearizable(&known.accounts) {
                wrong.get_or_insert(format!("{}:{} accounts: {e}", known.path, known.name));
            }
        }
    }
    world.stats.histories += decided;
    if let Some(wrong) = wrong {
        world.broken(wrong);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_over_the_limit_of_a_request_may_be_refused_and_no_other() {
        let swaps = |count: u64| {
            let swap = |n: u64| {
                (format!("k{n}").into_bytes(), Did::Swap(Some(FAT + n), FAT + 100 + n, None))
            };
            Storing::Batch((0..count).map(swap).collect())
        };
        let length = |storing: &Storing| storing.lay_out().3.len();
        let (few, many) = (swaps(3), swaps(12));
        assert!(length(&few) <= KV_BATCH_BYTES_MAX && length(&many) > KV_BATCH_BYTES_MAX);
        assert_eq!(too_long(&few), None);
        assert_eq!(too_long(&many), Some(length(&many)));
    }
}
