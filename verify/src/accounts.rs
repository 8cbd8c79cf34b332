//! The reference model of atomic batches: four accounts of one store, between which sums are moved
//! as a whole or not at all (INV-38). Judged as one object, by the same search as keys.

use crate::kv::{Asked, Timed};
use honeycomb_wire::batch::BatchOp;
use honeycomb_wire::stored::Function;

/// Accounts of a store.
pub const ACCOUNTS: usize = 4;

/// The balances of the accounts; an account that was never written has 0.
pub type Balances = [i64; ACCOUNTS];

/// An operation on the accounts of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// Moves a sum from one to another; both balances afterwards.
    Move(usize, usize, i64, Option<(i64, i64)>),
    /// The same, with a last operation that must fail: nothing may change.
    Fail,
    /// Reads all of them at once.
    Read(Option<Balances>),
}

/// An operation on the accounts of a store, with its times.
pub type Op = Timed<Did>;

impl Asked for Did {
    type State = Balances;

    fn step(self, state: &Balances) -> Option<Balances> {
        let mut next = *state;
        match self {
            Did::Move(from, to, sum, told) => {
                next[from] -= sum;
                next[to] += sum;
                told.is_none_or(|told| told == (next[from], next[to])).then_some(next)
            }
            Did::Fail => Some(next),
            Did::Read(told) => told.is_none_or(|told| told == next).then_some(next),
        }
    }
}

/// The key of an account: the tag keeps all of them in one hash slot.
pub fn key(account: usize) -> Vec<u8> {
    format!("{{bank}}{account}").into_bytes()
}

/// The operations of such a batch; `scratch` holds the bytes that they borrow.
pub fn batch<'a>(did: Did, keys: &'a [Vec<u8>], sums: &'a [[u8; 8]; 2]) -> Vec<BatchOp<'a>> {
    let add = |account: usize, operand: &'a [u8]| BatchOp::Accumulate {
        key: &keys[account],
        function: Function::SumI64,
        operand,
    };
    match did {
        Did::Move(from, to, ..) => vec![add(from, &sums[0]), add(to, &sums[1])],
        // The key has a value: it was written just before.
        Did::Fail => {
            let insert = BatchOp::Insert { key: &keys[1], value: b"none" };
            vec![add(0, &sums[0]), add(1, &sums[1]), insert]
        }
        Did::Read(_) => keys.iter().map(|key| BatchOp::Get { key }).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::linearizable;
    use honeycomb_types::Time;

    fn op(begin: u64, end: u64, did: Did) -> Op {
        Op { begin: Time(begin), end: Time(end), did }
    }

    #[test]
    fn half_a_transfer_is_found() {
        let moved = op(0, 9, Did::Move(0, 1, 5, Some((-5, 5))));
        linearizable(&[moved, op(10, 11, Did::Read(Some([-5, 5, 0, 0])))]).unwrap();
        linearizable(&[moved, op(5, 11, Did::Read(Some([0; 4])))]).unwrap();
        assert!(linearizable(&[moved, op(5, 11, Did::Read(Some([-5, 0, 0, 0])))]).is_err());
        let failed = op(10, 11, Did::Fail);
        let read = op(12, 13, Did::Read(Some([-6, 6, 0, 0])));
        assert!(linearizable(&[moved, failed, read]).is_err());
    }
}
