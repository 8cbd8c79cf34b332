//! The cost of one operation inside a block, and the part of a full block that holds payload.
//!
//! `cargo run --release -p honeycomb-structures --example kv_ops`

use honeycomb_block::{Backing, Reclaimer};
use honeycomb_structures::{
    Answer, FileBlock, KvBlock, LaneVerdict, Lanes, Marks, Operation, Outcome, Payload, Structure,
    Ticket,
};
use honeycomb_types::{LaneId, Sequence, SessionId, Time};
use honeycomb_wire::{Op, Status};
use std::hint::black_box;

const RUNS: usize = 5;
const BLOCK: usize = 128 << 20;

struct Store<S> {
    structure: S,
    block: Backing,
}

impl<S: Structure> Store<S> {
    fn new(size: usize, structure: S) -> Store<S> {
        let block = Backing::map(size, &Reclaimer::inline()).expect("the block can be mapped");
        Store { structure, block }
    }

    fn run(&mut self, op: Op, args: &[u8], payload: &[u8]) -> Answer {
        let (now, ticket) = (Time::ZERO, Ticket(0));
        let operation = Operation { now, ticket, op, args, wait_until: now };
        match self.structure.apply(&mut self.block, &operation, payload) {
            Outcome::Done(answer) => answer,
            Outcome::Parked => unreachable!("nothing here waits"),
        }
    }
}

/// Nanoseconds for each of `count` operations.
#[allow(clippy::disallowed_methods)] // a measurement, not the product: it reads the clock itself
fn time(count: usize, mut run: impl FnMut(usize)) -> f64 {
    let begin = std::time::Instant::now();
    for i in 0..count {
        run(i);
    }
    begin.elapsed().as_nanos() as f64 / count as f64
}

fn show(what: &str, mut runs: Vec<f64>) {
    runs.sort_by(f64::total_cmp);
    let (least, middle, most) = (runs[0], runs[runs.len() / 2], runs[runs.len() - 1]);
    println!("{what:<34} {least:>9.0} {middle:>9.0} {most:>9.0}  ns");
}

/// A scattered order of `count` numbers, the same each time.
fn shuffled(i: usize, count: usize) -> usize {
    (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17) as usize % count
}

fn put_args(key: usize) -> [u8; 17] {
    let mut args = [0; 17];
    args[1..9].copy_from_slice(&(key as u64).to_le_bytes());
    args[9..].copy_from_slice(b"-the-key");
    args
}

fn key_value(value_len: usize, count: usize) {
    let value = vec![7; value_len];
    let (mut fresh, mut over, mut gets) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let mut store = Store::new(BLOCK, KvBlock::new(BLOCK, 0, u64::MAX, Marks::default()));
        fresh.push(time(count, |i| {
            let answer = store.run(Op::KvPut, &put_args(i), &value);
            assert_eq!(answer.status, Status::Ok);
        }));
        over.push(time(count, |i| {
            store.run(Op::KvPut, &put_args(shuffled(i, count)), &value);
        }));
        gets.push(time(count, |i| {
            let answer = store.run(Op::KvGet, &put_args(shuffled(i, count))[1..], &[]);
            let Payload::Block(range) = answer.payload else { unreachable!("the key is there") };
            black_box(store.block.slice(range)[0]);
        }));
    }
    show(&format!("put, new key, {value_len} B x {count}"), fresh);
    show(&format!("put, same key, {value_len} B x {count}"), over);
    show(&format!("get, {value_len} B x {count}"), gets);
}

fn appends(length: usize) {
    let bytes = vec![7; length];
    let count = (BLOCK / length - 1).min(500_000);
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        let mut store = Store::new(BLOCK, FileBlock::new(BLOCK));
        // Touch the pages first: the cost of that belongs to the kernel.
        store.block.slice_mut(0..count * length).fill(1);
        runs.push(time(count, |_| {
            black_box(store.run(Op::FileAppend, &[], &bytes));
        }));
    }
    show(&format!("append, {length} B x {count}"), runs);
}

fn lanes() {
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        let (mut lanes, session, lane) = (Lanes::new(), SessionId(7), LaneId(1));
        let answer = Answer::ok(1);
        runs.push(time(1_000_000, |i| {
            let (sequence, acked) = (Sequence(i as u64 + 1), Sequence(i as u64));
            let verdict = lanes.begin(Time::ZERO, session, lane, sequence, acked, false, 16);
            assert_eq!(verdict, LaneVerdict::Run);
            lanes.record(session, lane, sequence, Some(1), &answer);
        }));
    }
    show("lane, begin and record", runs);
}

fn utilisation(size: usize, value_len: usize) {
    let mut store = Store::new(size, KvBlock::new(size, 0, u64::MAX, Marks::default()));
    let (value, mut count) = (vec![7; value_len], 0);
    let (mut slowest, mut total) = (0f64, 0f64);
    loop {
        let mut status = Status::Ok;
        let took = time(1, |_| status = store.run(Op::KvPut, &put_args(count), &value).status);
        if status != Status::Ok {
            break;
        }
        (slowest, total) = (slowest.max(took), total + took);
        count += 1;
    }
    let refusal = time(10_000, |i| {
        black_box(store.run(Op::KvPut, &put_args(count + i), &value));
    });
    let percent = (count * (value_len + 16)) as f64 * 100.0 / size as f64;
    println!(
        "{:>8} KiB block, {value_len:>7} B values: {percent:5.1} % payload, {count} entries, \
         {:.0} ns/put, slowest {:.0} us, a refusal {refusal:.0} ns",
        size >> 10,
        total / count as f64,
        slowest / 1000.0
    );
}

fn main() {
    println!("{:<34} {:>9} {:>9} {:>9}", "128 MiB block", "min", "median", "max");
    key_value(64, 500_000);
    key_value(64, 10_000);
    key_value(1024, 80_000);
    key_value(100 << 10, 1000);
    for length in [64, 1024, 100 << 10] {
        appends(length);
    }
    lanes();
    println!();
    for size in [64 << 10, 1 << 20, 128 << 20] {
        for value_len in [64, 100, 1024, 5000] {
            utilisation(size, value_len);
        }
    }
    utilisation(1 << 20, 100 << 10);
    utilisation(128 << 20, 100 << 10);
    utilisation(128 << 20, 10 << 20);
}
