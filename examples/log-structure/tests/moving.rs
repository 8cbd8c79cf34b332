//! The move of a log's block to another server, which trusts nothing that it receives.
#![allow(clippy::unwrap_used)]

use honeycomb_structures::{
    Answer, Backing, Op, Opening, Operation, Outcome, Parcel, Reclaimer, Status, Structure,
    StructureKind, Ticket, Time,
};
use log_structure::{CODE, Log};

const BLOCK: usize = 64 << 10;
const NOW: Time = Time(1_000_000_000);
const MOVE: u64 = 7;

struct Block {
    structure: Box<dyn Structure>,
    backing: Backing,
}

impl Block {
    fn new(importing: u64) -> Block {
        let backing = Backing::map(BLOCK, &Reclaimer::inline()).unwrap();
        let opening = Opening { importing, ..Opening::alone(BLOCK) };
        Block { structure: Log.open(&opening), backing }
    }

    fn run(&mut self, op: Op, args: &[u8], payload: &[u8]) -> Answer {
        let operation = Operation { now: NOW, ticket: Ticket(1), op, args, wait_until: NOW };
        match self.structure.apply(&mut self.backing, &operation, payload) {
            Outcome::Done(answer) => answer,
            Outcome::Parked => panic!("{} may not wait", op.name()),
        }
    }

    fn append(&mut self, tag: &[u8], bytes: &[u8]) {
        let number = Log.spec().operation("append").unwrap().number;
        let op = Op::Custom((CODE as u16) << 8 | number as u16);
        assert_eq!(self.run(op, tag, bytes).status, Status::Ok);
    }
}

/// A block that has received everything of another one; and the part that ends the move.
fn arrived() -> (Block, Vec<u8>) {
    let (mut from, mut to) = (Block::new(0), Block::new(MOVE));
    (0..3).for_each(|record| from.append(b"tag", &[record; 100]));
    let mover = from.structure.movable().unwrap();
    mover.begin_export(&mut from.backing, 0, u64::MAX).unwrap();
    mover.freeze(NOW);
    while let Some(parcel) = mover.next_parcel(&mut from.backing) {
        let (op, args) = parcel.request(MOVE);
        let (Parcel::Region { bytes, .. } | Parcel::State { bytes, .. }) = parcel else {
            panic!("{parcel:?} is not part of a move of a whole block")
        };
        assert_eq!(to.run(op, &args, &bytes).status, Status::Ok);
    }
    let totals = mover.totals();
    let done = [MOVE, totals.entries, totals.bytes].map(u64::to_le_bytes).concat();
    (to, done)
}

/// A scan of such a block ended the server.
#[test]
fn index_that_does_not_fit_its_records_is_refused() {
    let (mut to, done) = arrived();
    assert_eq!(to.run(Op::MoveDone, &done, b"").status, Status::Ok);
    // The ends of the records: the second is before the first, and behind the last; the third is before the
    // tail, and behind the block.
    for (record, end) in [(1, 50_u32), (1, 400), (2, 300), (2, u32::MAX)] {
        let (mut to, done) = arrived();
        let entry = BLOCK - 4 * (record + 1)..BLOCK - 4 * record;
        to.backing.slice_mut(entry).copy_from_slice(&end.to_le_bytes());
        let refused = to.run(Op::MoveDone, &done, b"").status;
        assert_eq!(refused, Status::BadFrame, "record {record} ends at {end}");
    }
    // A tag that is longer than its record.
    let (mut to, done) = arrived();
    to.backing.slice_mut(0..1).fill(u8::MAX);
    assert_eq!(to.run(Op::MoveDone, &done, b"").status, Status::BadFrame);
}
