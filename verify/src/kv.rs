//! The reference model of a key: is there an order of the operations that explains every result?
//!
//! Linearizability is decided key by key, by a search over orders with a cache of states that led
//! nowhere (Wing and Gong, with Lowe's cache). Values are numbers, each written once (INV-15).

use honeycomb_types::Time;
use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

/// Flag in the number of a value: it is too large for a block.
pub const LARGE: u64 = 1 << 61;
/// Flag in the number of a value: it is too long for the reply of a batch.
pub const LONG: u64 = 1 << 60;

/// An operation on a key, with its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// A read, and the value found.
    Get(Option<u64>),
    /// A write that replaces; whether it replaced a value.
    Put(u64, Option<bool>),
    /// A write that replaces, and does not say what.
    Set(u64),
    /// A write of an absent key; whether it was done.
    Insert(u64, Option<bool>),
    /// A removal; whether there was a value.
    Delete(Option<bool>),
    /// A replacement; the old value, if there was one.
    Update(u64, Option<Option<u64>>),
    /// A write; the old value.
    Upsert(u64, Option<Option<u64>>),
    /// Compare and swap from, to; `Ok` when done, else what was found.
    Swap(Option<u64>, u64, Option<Result<(), Option<u64>>>),
    /// An operation that needs the value at its block or in the reply, and was refused because the
    /// value is too large for that.
    TooLarge,
    /// A removal of this value, if it is the current one; else whether there was another one.
    Take(u64, Option<Result<(), bool>>),
    /// An evacuation: this value is rewritten elsewhere, if the key has it at its old place; else
    /// whether the key has any value. For a value that was evacuated before, the result is unknown.
    Carry(u64, Option<Result<(), bool>>),
    /// An addition to the current value, which begins at 0; the sum.
    Add(u64, Option<u64>),
}

/// An operation on an object, with its result.
pub trait Asked: Copy + Debug {
    /// The state of the object between two operations.
    type State: Clone + Eq + Hash + Default;

    /// The state after the operation, if its result is right for the state before.
    fn step(self, state: &Self::State) -> Option<Self::State>;
}

/// One operation of a history. One with an unknown outcome has no result and never returns.
#[derive(Clone, Copy, Debug)]
pub struct Timed<D> {
    /// When it was sent.
    pub begin: Time,
    /// When its reply arrived; `NEVER` if it did not.
    pub end: Time,
    /// The operation.
    pub did: D,
}

/// An operation on a key.
pub type Op = Timed<Did>;

impl Asked for Did {
    type State = Option<u64>;

    fn step(self, state: &Option<u64>) -> Option<Option<u64>> {
        let state = *state;
        let right = |answer: bool| answer.then_some(());
        Some(match self {
            Did::Get(found) => {
                right(found == state)?;
                state
            }
            Did::Put(new, replaced) => {
                right(replaced.is_none_or(|r| r == state.is_some()))?;
                Some(new)
            }
            Did::Set(new) => Some(new),
            Did::Insert(new, done) => {
                right(done.is_none_or(|d| d == state.is_none()))?;
                if state.is_none() { Some(new) } else { state }
            }
            Did::Delete(found) => {
                right(found.is_none_or(|f| f == state.is_some()))?;
                None
            }
            Did::Update(new, old) => {
                right(old.is_none_or(|o| o == state))?;
                state.map(|_| new)
            }
            Did::Upsert(new, old) => {
                right(old.is_none_or(|o| o == state))?;
                Some(new)
            }
            Did::Swap(from, to, answer) => {
                let done = state == from;
                right(answer.is_none_or(|a| a == if done { Ok(()) } else { Err(state) }))?;
                if done { Some(to) } else { state }
            }
            Did::Take(number, answer) => {
                let done = state == Some(number);
                let told = if done { Ok(()) } else { Err(state.is_some()) };
                right(answer.is_none_or(|a| a == told))?;
                if done { None } else { state }
            }
            Did::Carry(number, answer) => {
                right(match answer {
                    None => true,
                    Some(Ok(())) => state == Some(number),
                    Some(Err(there)) => state.is_some() == there,
                })?;
                state
            }
            Did::TooLarge => {
                right(state.is_some_and(|number| number & (LARGE | LONG) != 0))?;
                state
            }
            Did::Add(n, answer) => {
                let sum = state.unwrap_or(0) + n;
                right(answer.is_none_or(|a| a == sum))?;
                Some(sum)
            }
        })
    }
}

/// Maximum number of operations of one history: they fit into a bit set.
pub const HISTORY_MAX: usize = 128;

/// States that a search visits before it gives up, which is as bad as a wrong result.
const STATES_MAX: usize = 2_000_000;

/// Whether some order of the operations, each within its time, explains every result. `Err` has the
/// history.
pub fn linearizable<D: Asked>(history: &[Timed<D>]) -> Result<(), String> {
    assert!(history.len() <= HISTORY_MAX, "histories are kept short enough to decide");
    // In the order of their ends: the operation that ended first is tried first, and one without a
    // reply only if nothing else explains a result.
    let mut history: Vec<Timed<D>> = history.to_vec();
    history.sort_by_key(|op| (op.end, op.begin));
    let finished: u128 = (0..history.len())
        .filter(|i| history[*i].end != Time::NEVER)
        .fold(0, |set, i| set | 1 << i);
    let mut seen = HashSet::new();
    let mut stack = vec![(0u128, D::State::default())];
    while let Some((done, state)) = stack.pop() {
        if done & finished == finished {
            return Ok(());
        }
        if !seen.insert((done, state.clone())) {
            continue;
        }
        if seen.len() > STATES_MAX {
            return Err(format!("undecided after {STATES_MAX} states: {history:?}"));
        }
        // An operation may be next only if no other remaining one ended before it began: the first
        // remaining one ends first.
        let due = (!done).trailing_zeros() as usize;
        let horizon = history.get(due).map_or(Time::NEVER, |op| op.end);
        for (i, op) in history.iter().enumerate().skip(due).rev() {
            if done >> i & 1 == 1 || op.begin > horizon {
                continue;
            }
            if let Some(next) = op.did.step(&state) {
                // An operation that need not have happened, and would have changed nothing, did
                // not.
                if op.end != Time::NEVER || next != state {
                    stack.push((done | 1 << i, next));
                }
            }
        }
    }
    Err(format!("no order explains {history:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(begin: u64, end: u64, did: Did) -> Op {
        Op { begin: Time(begin), end: Time(end), did }
    }

    #[test]
    fn a_stale_read_is_found_and_a_concurrent_one_is_not() {
        let put = op(0, 10, Did::Put(1, Some(false)));
        assert!(linearizable(&[put, op(11, 12, Did::Get(None))]).is_err());
        linearizable(&[put, op(5, 12, Did::Get(None))]).unwrap();
        linearizable(&[put, op(5, 12, Did::Get(Some(1)))]).unwrap();
    }

    #[test]
    fn an_unknown_write_may_happen_late_or_never_but_not_twice() {
        let unknown = Op { end: Time::NEVER, ..op(0, 0, Did::Put(1, None)) };
        linearizable(&[unknown, op(5, 6, Did::Get(None)), op(7, 8, Did::Get(Some(1)))]).unwrap();
        linearizable(&[unknown, op(5, 6, Did::Get(None))]).unwrap();
        let again = [
            unknown,
            op(1, 2, Did::Get(Some(1))),
            op(3, 4, Did::Delete(Some(true))),
            op(5, 6, Did::Get(Some(1))),
        ];
        assert!(linearizable(&again).is_err());
    }

    #[test]
    fn what_two_have_taken_is_found() {
        let put = op(0, 1, Did::Put(1, Some(false)));
        let took = |begin, end| op(begin, end, Did::Take(1, Some(Ok(()))));
        linearizable(&[put, took(2, 5), op(3, 4, Did::Take(1, Some(Err(false))))]).unwrap();
        assert!(linearizable(&[put, took(2, 5), took(3, 4)]).is_err());
        let another = op(2, 3, Did::Put(2, Some(true)));
        linearizable(&[put, another, op(4, 5, Did::Take(1, Some(Err(true))))]).unwrap();
        assert!(linearizable(&[put, another, took(4, 5)]).is_err());
    }

    #[test]
    fn a_doubled_addition_is_found() {
        let unknown = Op { end: Time::NEVER, ..op(0, 0, Did::Add(5, None)) };
        let history = [unknown, op(1, 2, Did::Add(1, Some(6))), op(3, 4, Did::Get(Some(6)))];
        linearizable(&history).unwrap();
        let doubled = [unknown, op(1, 2, Did::Add(1, Some(6))), op(3, 4, Did::Get(Some(11)))];
        assert!(linearizable(&doubled).is_err());
    }

    #[test]
    fn a_doubled_upsert_is_found() {
        let history = [
            op(0, 1, Did::Upsert(1, Some(None))),
            op(2, 3, Did::Upsert(2, Some(Some(1)))),
            op(4, 5, Did::Upsert(3, Some(Some(1)))),
        ];
        assert!(linearizable(&history).is_err());
    }
}
