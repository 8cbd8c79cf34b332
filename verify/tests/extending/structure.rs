//! A structure: numbers that are added up, and two operations on it. Its content can be flushed and demoted,
//! because it implements `Content`.

use crate::common::{access, config, owner, shard};
use honeycomb_block::Backing;
use honeycomb_server::{Shard, ShardConfig, VolumeParts};
use honeycomb_structures::{
    Answer, Content, Event, Fetched, LowerTierReads, Opening, Operation, Ops, Outcome, Registry,
    Rest, Snapshot, Structure, StructureKind, Ticket,
};
use honeycomb_types::{
    BlockAt, BlockId, Epoch, Kind, KindSpec, LaneId, OperationSpec, Route, Router, Sequence,
    ServerId, ShardIx, Time,
};
use honeycomb_wire::{Op, RequestHeader, Status, flags};
use std::sync::Arc;

pub const CODE: u8 = 0x90;
const ADD: u8 = 1;
const SUM: u8 = 2;
const NUMBER: usize = 8;

/// The kind: its name, its router, and its operations.
pub struct Numbers;

impl StructureKind for Numbers {
    fn spec(&self) -> KindSpec {
        KindSpec {
            kind: Kind::from_code(CODE).expect("a code of custom kinds"),
            name: "numbers".into(),
            router: Router::HashRange,
            operations: vec![
                OperationSpec::write(ADD, "add", Route::Each),
                // A further operation is a row here, and an arm of `apply`.
                OperationSpec::read(SUM, "sum", Route::Each),
            ],
        }
    }

    fn open(&self, opening: &Opening) -> Box<dyn Structure> {
        Box::new(NumbersBlock { size: opening.block_size, used: 0, sum: 0 })
    }
}

/// One block: the numbers, one after the other, and their sum.
struct NumbersBlock {
    size: usize,
    used: usize,
    sum: u64,
}

impl Ops for NumbersBlock {
    fn apply(&mut self, block: &mut Backing, operation: &Operation<'_>, _: &[u8]) -> Outcome {
        let answer = match (operation.number(), <[u8; NUMBER]>::try_from(operation.args)) {
            (SUM, _) => Answer::ok(self.sum),
            (_, Err(_)) => Answer::refuse(Status::BadFrame, "add takes a number of 8 bytes"),
            (_, Ok(_)) if self.used + NUMBER > self.size => {
                Answer::refuse(Status::BlockFull, format!("{} bytes are used", self.used))
            }
            (_, Ok(number)) => {
                block.slice_mut(self.used..self.used + NUMBER).copy_from_slice(&number);
                self.used += NUMBER;
                self.sum = self.sum.wrapping_add(u64::from_le_bytes(number));
                Answer::ok(self.sum)
            }
        };
        Outcome::Done(answer)
    }

    fn event(&mut self) -> Option<Event> {
        None
    }

    fn bytes_used(&self) -> u64 {
        self.used as u64
    }
}

impl Content for NumbersBlock {
    fn snapshot(&self, _: (u64, u64)) -> Snapshot {
        Snapshot::plain(self.used)
    }

    fn rests(&self) -> Rest {
        Rest::Whole(self.used)
    }

    fn lower_tier_reads(&self) -> Option<&dyn LowerTierReads> {
        Some(self)
    }
}

impl LowerTierReads for NumbersBlock {
    /// The sum stays in memory.
    fn read(&self, _: &Fetched, _: Op, _: &[u8], _: &[u8]) -> Answer {
        Answer::ok(self.sum)
    }
}

impl Structure for NumbersBlock {
    fn content(&self) -> Option<&dyn Content> {
        Some(self)
    }

    fn content_mut(&mut self) -> Option<&mut dyn Content> {
        Some(self)
    }
}

pub fn at() -> BlockAt {
    BlockAt { block: BlockId::new(ServerId(1), ShardIx(0), 0), epoch: Epoch(1) }
}

/// A shard that serves the kind, with one block of it.
pub fn shard_with_numbers(config: ShardConfig) -> Shard {
    let kinds = Registry::builtin().with(Numbers).expect("its operations need only `Ops`");
    let mut shard = shard(ServerId(1), ShardConfig { kinds: Arc::new(kinds), ..config });
    shard.open(owner(at(), Kind::from_code(CODE).unwrap(), true), None).unwrap();
    shard
}

/// Adds a number, as the n-th mutation of a client, which may repeat it.
pub fn add(shard: &mut Shard, now: Time, n: u64, number: u64) -> Answer {
    let op = Op::Custom(u16::from(CODE) << 8 | u16::from(ADD));
    let mut header = RequestHeader { at: at(), grant: 1, ..RequestHeader::new(op) };
    (header.lane, header.sequence, header.ack_lag) = (LaneId(1), Sequence(n), 1);
    header.flags = flags::RETRY;
    let args = number.to_le_bytes();
    match shard.apply(now, &access(false), &header, &args, &[], Ticket(n)) {
        Outcome::Done(answer) => answer,
        Outcome::Parked => panic!("an addition waits"),
    }
}

/// The sum.
pub fn sum(shard: &mut Shard, now: Time) -> u64 {
    let op = Op::Custom(u16::from(CODE) << 8 | u16::from(SUM));
    let header = RequestHeader { at: at(), grant: 1, ..RequestHeader::new(op) };
    match shard.apply(now, &access(false), &header, &[], &[], Ticket(1 << 40)) {
        Outcome::Done(answer) => answer.value,
        Outcome::Parked => panic!("a sum waits"),
    }
}

/// The bytes that a flush would write.
pub fn flushed(shard: &mut Shard, now: Time, parts: &VolumeParts) -> Vec<u8> {
    let (copy, _) = shard.on_exports(now, |work| work.copy(at(), (0, u64::MAX), 1)).unwrap();
    let mut bytes = Vec::new();
    copy.write(parts, &mut bytes).unwrap();
    bytes
}

#[test]
fn structure_of_a_new_kind_serves_its_operations_and_is_flushed() {
    let mut shard = shard_with_numbers(config(64 << 10, 1));
    let now = Time::from_millis(5000);
    for n in 1..=100 {
        assert_eq!(add(&mut shard, now, n, n).status, Status::Ok);
    }
    // A repeated addition takes effect once.
    assert_eq!(add(&mut shard, now, 100, 100), Answer::ok(5050));
    assert_eq!(sum(&mut shard, now), 5050);
    let content: Vec<u8> = (1..=100_u64).flat_map(u64::to_le_bytes).collect();
    assert_eq!(flushed(&mut shard, now, &Arc::from([])), content);
}
