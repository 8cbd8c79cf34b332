//! Resident memory per stored byte in a block, as the kernel counts it, while a store fills; and the
//! process's own time for puts and gets meanwhile.
//!
//! `cargo run --release -p honeycomb-structures --example kv_memory`

use honeycomb_block::{Backing, Reclaimer};
use honeycomb_structures::{KvBlock, Marks, Operation, Ops, Outcome, Payload, Ticket};
use honeycomb_types::Time;
use honeycomb_wire::{Op, Status, key_hash};
use std::hint::black_box;
use std::ops::Range;

const BLOCK: usize = 128 << 20;
const VALUE: usize = 64;
const KEY: usize = 16;
const COUNTS: [usize; 6] = [100_000, 200_000, 350_000, 500_000, 800_000, 1_000_000];

struct Store {
    parts: Vec<(KvBlock, Backing)>,
}

impl Store {
    /// A store of so many blocks, a power of two.
    fn new(blocks: usize) -> Store {
        let width = (u64::MAX / blocks as u64).max(1);
        let part = |i: usize| {
            let start = if i == 0 { 0 } else { i as u64 * (width + 1) };
            let end = start + width;
            let structure = KvBlock::new(BLOCK, start, end, Marks::default());
            (structure, Backing::map(BLOCK, &Reclaimer::inline()).expect("a block can be mapped"))
        };
        Store { parts: (0..blocks).map(part).collect() }
    }

    fn run(&mut self, op: Op, key: &[u8], args: &[u8], payload: &[u8]) -> u8 {
        let blocks = self.parts.len() as u128;
        let at = ((key_hash(key) as u128 * blocks) >> 64) as usize;
        let (structure, block) = &mut self.parts[at];
        let (now, ticket) = (Time::ZERO, Ticket(0));
        let operation = Operation { now, ticket, op, args, wait_until: now };
        match structure.apply(block, &operation, payload) {
            Outcome::Done(answer) => {
                assert_eq!(answer.status, Status::Ok);
                match answer.payload {
                    Payload::Block(range) => block.slice(range)[0],
                    _ => 0,
                }
            }
            Outcome::Parked => unreachable!("nothing here waits"),
        }
    }

    fn used(&self) -> u64 {
        self.parts.iter().map(|(structure, _)| structure.bytes_used()).sum()
    }
}

/// Anonymous memory of this process, in bytes.
fn resident() -> u64 {
    let status =
        std::fs::read_to_string("/proc/self/status").expect("the process can read its own state");
    let line =
        status.lines().find(|line| line.starts_with("RssAnon:")).expect("the kernel reports it");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
}

/// Nanoseconds of processor time of this process.
fn on_core() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat")
        .expect("the process can read its own state");
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number")
}

fn put_args(key: usize) -> [u8; 1 + KEY] {
    let mut args = [0; 1 + KEY];
    args[1..].copy_from_slice(format!("key:{key:012}").as_bytes());
    args
}

fn shuffled(i: usize, count: usize) -> usize {
    (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17) as usize % count
}

/// Nanoseconds for each.
#[inline(never)] // so that instructions can be counted for it alone
fn insert(store: &mut Store, keys: Range<usize>) -> u64 {
    let (begin, count) = (on_core(), keys.len() as u64);
    for i in keys {
        let args = put_args(i);
        store.run(Op::KvPut, &args[1..], &args, &[7; VALUE]);
    }
    (on_core() - begin) / count
}

fn fill(blocks: usize) {
    let before = resident();
    let mut store = Store::new(blocks);
    let mut have = 0;
    println!(
        "{blocks} block(s): entries, resident B/B, used B/B, CPU ns per: insert, overwrite, get"
    );
    for count in COUNTS {
        let insert = insert(&mut store, have..count);
        have = count;
        let stored = (count * (KEY + VALUE)) as f64;
        let (held, used) = ((resident() - before) as f64 / stored, store.used() as f64 / stored);
        let some = 200_000;
        let mut each = |op: Op| {
            let begin = on_core();
            for i in 0..some {
                let args = put_args(shuffled(i, count));
                let (args, payload): (&[u8], &[u8]) = match op {
                    Op::KvPut => (&args, &[8; VALUE]),
                    _ => (&args[1..], &[]),
                };
                let key = &args[args.len() - KEY..];
                black_box(store.run(op, key, args, payload));
            }
            (on_core() - begin) / some as u64
        };
        let (over, get) = (each(Op::KvPut), each(Op::KvGet));
        println!("{count:>9} {held:>7.3} {used:>7.3} {insert:>7} {over:>6} {get:>6}");
    }
}

fn main() {
    for blocks in [1, 4] {
        fill(blocks);
    }
}
