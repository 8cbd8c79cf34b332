//! Requests per second through a shard, structure and lanes included, without sockets.
//!
//! `cargo run --release -p honeycomb-server --example shard_ops`
#![allow(clippy::unwrap_used)] // A measurement: every error ends it.

#[path = "../tests/shard/common.rs"]
mod common;

use honeycomb_env::Clock;
use honeycomb_structures::{Outcome, Ticket};
use honeycomb_types::{BlockAt, BlockId, Epoch, Kind, LaneId, Sequence, ServerId, ShardIx, Time};
use honeycomb_wire::{Op, RequestHeader, Status};

const OPERATIONS: u64 = 4_000_000;
const KEYS: u64 = 1000;

fn main() {
    let (server, ix) = (ServerId(1), ShardIx(0));
    let mut shard = common::shard(server, common::config(1 << 20, 1));
    let at = BlockAt { block: BlockId::new(server, ix, 0), epoch: Epoch(1) };
    shard.open(common::owner(at, Kind::Kv, true), None).unwrap();
    let access = common::access(false);
    let clock = Clock::start();
    let mut header = RequestHeader { at, grant: 1, ..RequestHeader::new(Op::KvPut) };
    (header.lane, header.ack_lag) = (LaneId(1), 1);
    let get = RequestHeader { at, grant: 1, ..RequestHeader::new(Op::KvGet) };
    for round in 0..5 {
        let began = clock.now();
        for i in 0..OPERATIONS {
            header.sequence = Sequence(round * OPERATIONS + i + 1);
            let mut args = [0; 9];
            args[1..].copy_from_slice(&(i % KEYS).to_le_bytes());
            let now = Time(1_000_000_000 + i);
            let done = shard.apply(now, &access, &header, &args, &[3; 64], Ticket(i + 1));
            assert!(matches!(done, Outcome::Done(answer) if answer.status == Status::Ok));
        }
        let puts = clock.now().since(began);
        let began = clock.now();
        for i in 0..OPERATIONS {
            let key = (i % KEYS).to_le_bytes();
            let now = Time(1_000_000_000 + i);
            let done = shard.apply(now, &access, &get, &key, &[], Ticket(i + 1));
            assert!(matches!(done, Outcome::Done(answer) if answer.status == Status::Ok));
        }
        let gets = clock.now().since(began);
        let each = |time: std::time::Duration| time.as_nanos() as f64 / OPERATIONS as f64;
        println!("put {:.1} ns, get {:.1} ns", each(puts), each(gets));
    }
}
