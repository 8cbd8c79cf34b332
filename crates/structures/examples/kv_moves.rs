//! The cost of the stages of a split inside two blocks, without a network between them.
//!
//! `cargo run --release -p honeycomb-structures --example kv_moves`

use honeycomb_block::{Backing, Reclaimer};
use honeycomb_structures::{
    KvBlock, Marks, Movable, MoveRequest, Operation, Ops, Outcome, Parcel, Structure, Ticket,
};
use honeycomb_types::Time;
use honeycomb_wire::messages::MoveDoneRequest;
use honeycomb_wire::{Field, Op, Status};

const BLOCK: usize = 128 << 20;

struct Store {
    structure: KvBlock,
    block: Backing,
}

impl Store {
    fn new(structure: KvBlock) -> Store {
        let block = Backing::map(BLOCK, &Reclaimer::inline()).expect("the block can be mapped");
        Store { structure, block }
    }

    fn run(&mut self, op: Op, args: &[u8], payload: &[u8]) -> Status {
        let (now, ticket) = (Time::ZERO, Ticket(0));
        let operation = Operation { now, ticket, op, args, wait_until: now };
        match self.structure.apply(&mut self.block, &operation, payload) {
            Outcome::Done(answer) => answer.status,
            Outcome::Parked => unreachable!("nothing here waits"),
        }
    }
}

/// The moves of a block.
fn mover(structure: &mut KvBlock) -> &mut dyn Movable {
    structure.movable().expect("a block of a store can move")
}

/// The duration of a call in milliseconds, and its result.
#[allow(clippy::disallowed_methods)] // a measurement, not the product: it reads the clock itself
fn time<T>(run: impl FnOnce() -> T) -> (f64, T) {
    let begin = std::time::Instant::now();
    let made = run();
    (begin.elapsed().as_secs_f64() * 1e3, made)
}

fn split(value_size: usize) {
    let marks = Marks::default();
    let mut source = Store::new(KvBlock::new(BLOCK, 0, u64::MAX, marks));
    let value = vec![7u8; value_size];
    let mut keys = 0u64;
    let mut clock = 0;
    let (asked, request) = loop {
        let key = format!("split-{keys:010}");
        let status = source.run(Op::KvPut, &[&[0], key.as_bytes()].concat(), &value);
        assert_eq!(status, Status::Ok);
        keys += 1;
        if keys.is_multiple_of(64) || value_size > 64 << 10 {
            clock += 100;
            let (now, block) = (Time::from_millis(clock), &source.block);
            let (ms, request) = time(|| mover(&mut source.structure).move_request(block, now));
            if let Some(request) = request {
                break (ms, request);
            }
        }
    };
    let MoveRequest::Split { start } = request else { panic!("a full block wants to be divided") };
    let (began, begun) =
        time(|| mover(&mut source.structure).begin_export(&mut source.block, start, u64::MAX));
    begun.expect("nothing is pinned");
    let mut target = Store::new(KvBlock::new(BLOCK, start, u64::MAX, marks).importing(1));
    let (mut parcels, mut bytes, mut made, mut named, mut taken, mut worst) =
        (0, 0, 0.0, 0.0, 0.0, 0f64);
    mover(&mut source.structure).freeze(Time::ZERO);
    loop {
        let (ms, parcel) = time(|| mover(&mut source.structure).next_parcel(&mut source.block));
        made += ms;
        let Some(parcel) = parcel else { break };
        let (sum, (op, args)) = time(|| parcel.request(1));
        named += sum;
        let payload = match &parcel {
            Parcel::Region { bytes, .. } | Parcel::Patch { runs: bytes, .. } => &bytes[..],
            Parcel::Value { bytes, .. } => bytes.bytes(),
            Parcel::Drops(_) | Parcel::State { .. } => &[],
        };
        let (took, status) = time(|| target.run(op, &args, payload));
        assert_eq!(status, Status::Ok);
        taken += took;
        worst = worst.max(ms + sum);
        (parcels, bytes) = (parcels + 1, bytes + payload.len());
    }
    let (counted, totals) = time(|| mover(&mut source.structure).totals());
    let (entries, sum) = (totals.entries, totals.bytes);
    let done = MoveDoneRequest { move_id: 1, entries, bytes: sum }.encode();
    let (checked, status) = time(|| target.run(Op::MoveDone, &done, &[]));
    assert_eq!(status, Status::Ok);
    mover(&mut source.structure).hand_over();
    let now = Time::from_millis(clock);
    let (adopted, ()) =
        time(|| mover(&mut target.structure).end_import(&mut target.block, now, 1, true));
    let (gone, ()) = time(|| mover(&mut source.structure).depart(now, vec![0; 40]));
    let (swept, steps) = time(|| {
        let mut steps = 0;
        while mover(&mut source.structure).sweep(&mut source.block) {
            steps += 1;
        }
        steps
    });
    println!(
        "{value_size:>8} B: {keys} keys, {entries} move in {parcels} parcels of {:.1} MiB; ms: \
         request {asked:.2}, begin {began:.2}, make {made:.1}, sum {named:.1} (worst parcel \
         {worst:.2}), take {taken:.1}, count {counted:.3}, check {checked:.3}, adopt \
         {adopted:.3}, depart {gone:.3}, sweep {swept:.2} in {steps} steps",
        bytes as f64 / (1 << 20) as f64
    );
}

fn main() {
    for value_size in [64, 1024, 16 << 10, 100 << 10, 1 << 20] {
        split(value_size);
    }
}
