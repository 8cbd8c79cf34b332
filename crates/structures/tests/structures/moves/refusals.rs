//! The answers to writers of a full block after its split was refused for lack of memory, and to parts of a
//! move that no source sends.

use super::{Pair, SIZE, Under};
use honeycomb_structures::{MoveRequest, Ops};
use honeycomb_wire::messages::{MoveDropsRequest, MoveValueRequest};
use honeycomb_wire::{Field, Op, Status, checksum};

/// A block below the level at which it requests a split has no room for a value, and requests a split for it
/// repeatedly. The writer saw `Busy` while a request was under way, which takes seconds when memory is full,
/// and ended at its deadline. Simulator seed 3084485831164.
#[test]
fn writer_of_a_full_block_learns_that_memory_is_lacking_also_while_the_block_asks_again() {
    let mut pair = Pair::new();
    let put = |pair: &mut Pair, n: usize| {
        let args = [&[0], format!("large {n}").as_bytes()].concat();
        pair.driver(0).sleep(50);
        pair.driver(0).run(Op::KvPut, &args, &[7; SIZE / 8 - 100]).status
    };
    let request = |pair: &mut Pair| {
        pair.driver(0).sleep(50);
        let now = pair.driver(0).now;
        let (mover, block) = pair.mover(0);
        mover.move_request(block, now)
    };
    let refuse = |pair: &mut Pair, split, status| {
        let now = pair.driver(0).now;
        pair.mover(0).0.refused(now, split, status, "for this reason".into());
    };
    assert_eq!(request(&mut pair), None);
    let first = (0..8).find(|n| put(&mut pair, *n) != Status::Ok).unwrap();
    assert_eq!(put(&mut pair, first), Status::Busy, "nothing is known yet");
    let split = request(&mut pair).expect("a value has no room");
    refuse(&mut pair, split, Status::OutOfMemory);
    let mut asked = 0;
    for step in 0..20 {
        assert_eq!(put(&mut pair, first), Status::OutOfMemory, "step {step}");
        if let Some(split) = request(&mut pair) {
            pair.driver(0).sleep(2000);
            assert_eq!(put(&mut pair, first), Status::OutOfMemory, "step {step}: it has asked");
            refuse(&mut pair, split, Status::OutOfMemory);
            asked += 1;
        }
    }
    assert!(asked >= 5, "{asked} requests for a split");
    // Other replies are no lack of memory, and a move that begins ends it.
    let again = |pair: &mut Pair| {
        let asks = |_| {
            put(pair, first);
            request(pair)
        };
        (0..5).find_map(asks).expect("it asks again")
    };
    let split = again(&mut pair);
    refuse(&mut pair, split, Status::Busy);
    assert_eq!(put(&mut pair, first), Status::Busy, "memory is being freed");
    let split = again(&mut pair);
    refuse(&mut pair, split, Status::QuotaExceeded);
    assert_eq!(put(&mut pair, first), Status::QuotaExceeded);
    let split = again(&mut pair);
    refuse(&mut pair, split, Status::OutOfMemory);
    let MoveRequest::Split { start } = again(&mut pair) else { panic!("it asks for a split") };
    let (mover, block) = pair.mover(0);
    mover.begin_export(block, start, u64::MAX).unwrap();
    assert_eq!(put(&mut pair, first), Status::Busy, "a part of it moves");
}

/// A block below the level at which it requests a split has refused a writer for lack of memory, and has had
/// nothing to request since. Returns the answer to the next writer.
fn answer_some_time_after_a_refusal() -> Status {
    let mut pair = Pair::new();
    let put = |pair: &mut Pair, n: usize| {
        let args = [&[0], format!("large {n}").as_bytes()].concat();
        pair.driver(0).run(Op::KvPut, &args, &[7; SIZE / 8 - 100]).status
    };
    let request = |pair: &mut Pair| {
        let now = pair.driver(0).now;
        let (mover, block) = pair.mover(0);
        mover.move_request(block, now)
    };
    // The request of the block at the next moment at which it may have one.
    let due = |pair: &mut Pair| {
        let at = pair.mover(0).0.move_request_due()?;
        let driver = pair.driver(0);
        driver.now = driver.now.max(at);
        request(pair)
    };
    assert_eq!(request(&mut pair), None);
    let first = (0..8).find(|n| put(&mut pair, *n) != Status::Ok).unwrap();
    let split = due(&mut pair).expect("a value has no room");
    let refused = pair.driver(0).now;
    pair.mover(0).0.refused(refused, split, Status::OutOfMemory, "for this reason".into());
    assert_eq!(put(&mut pair, first), Status::OutOfMemory);
    for _ in 0..5 {
        assert_eq!(due(&mut pair), None);
    }
    let later = pair.driver(0).now.since(refused);
    assert!(later <= std::time::Duration::from_millis(500), "{later:?}");
    let answer = put(&mut pair, first);
    assert!(due(&mut pair).is_some(), "a writer without room makes it ask again");
    assert_eq!(put(&mut pair, first), answer, "that changes nothing until it is answered");
    answer
}

/// A writer was refused for lack of memory 1.5 s after the last request for a split: memory had been free for
/// 0.4 s. Simulator seed 30019678.
#[test]
fn refusal_for_lack_of_memory_is_forgotten_when_the_block_does_not_ask_again() {
    assert_eq!(answer_some_time_after_a_refusal(), Status::Busy);
}

#[cfg(feature = "bug-bank")]
#[test]
fn refusal_for_lack_of_memory_that_is_not_forgotten_is_seen() {
    use honeycomb_types::Bug;
    Bug::arm(Some(Bug::ReasonOutlivesNeed));
    let answer = answer_some_time_after_a_refusal();
    Bug::arm(None);
    assert_eq!(answer, Status::OutOfMemory);
}

/// The server of the target ended.
#[test]
fn value_with_the_number_of_another_one_is_refused_and_freed() {
    let mut pair = Pair::new();
    pair.begin(0, 31);
    let Under { to, id, .. } = pair.under.unwrap();
    let value = [7; 9000];
    let args = MoveValueRequest { move_id: id, value: 3, checksum: checksum(&value) }.encode();
    let target = pair.driver(to);
    assert_eq!(target.run(Op::MoveValue, &args, &value).status, Status::Ok);
    let used = target.structure.bytes_used();
    assert_eq!(target.run(Op::MoveValue, &args, &value).status, Status::BadFrame);
    assert_eq!(target.structure.bytes_used(), used);
    // The first value was kept, and the move can go on.
    let drops = MoveDropsRequest { move_id: id, values: vec![3] }.encode();
    assert_eq!(target.run(Op::MoveDrops, &drops, b"").status, Status::Ok);
    assert!(target.structure.bytes_used() < used);
    assert_eq!(target.run(Op::MoveValue, &args, &value).status, Status::Ok);
}
