//! The target of a move: whom it sends to the source meanwhile, and which moves it does not begin itself.

use super::{Pair, Under, key};
use honeycomb_structures::{Capacity, MoveRequest, Structure};
use honeycomb_types::Bug;
use honeycomb_wire::batch::{BatchOp, put_batch};
use honeycomb_wire::{Op, Status, key_hash};
use std::time::Duration;

/// A caller with an old map that asks the target of a move is sent to the source while that serves the range.
/// Only when everything has arrived it waits, because the range may be the target's at any moment. Seed
/// 10008563 of the simulator.
#[test]
fn caller_with_an_old_map_waits_only_for_a_move_that_may_be_committed() {
    for (into, read, change) in
        [(0, Status::Moved, Status::Moved), (1, Status::WrongRange, Status::Busy)]
    {
        let mut pair = Pair::new();
        (0..200).for_each(|n| pair.put(&key(n), b"value"));
        pair.begin(0, 31);
        pair.finish();
        pair.begin(into, 0);
        let Under { to, start, end, .. } = pair.under.unwrap();
        let moves = |key: &Vec<u8>| (start..=end).contains(&key_hash(key));
        let moving = (0..200).map(key).find(moves).unwrap();
        let put = [&[0], &moving[..]].concat();
        let asked = |pair: &mut Pair| {
            let target = pair.driver(to);
            let read = target.run(Op::KvGet, &moving, b"").status;
            (read, target.run(Op::KvPut, &put, b"other").status)
        };
        assert_eq!(asked(&mut pair), (read, change));
        // A batch that begins with a read is recorded as well.
        let batch = put_batch(&[BatchOp::Get { key: &moving }]);
        assert_eq!(pair.driver(to).run(Op::KvBatch, &[0], &batch).status, change);
        Bug::arm(Some(Bug::ImportMakesReadersWait));
        let planted = asked(&mut pair);
        Bug::arm(None);
        assert_eq!(planted, (Status::Busy, Status::Busy));
        pair.count().unwrap();
        assert_eq!(asked(&mut pair), (Status::Busy, Status::Busy));
        pair.finish();
        pair.check();
    }
}

/// A late answer of the controller names a move that it has ended, when the block takes part in another one
/// or has another range.
#[test]
fn move_that_the_controller_has_ended_does_not_begin_beside_another() {
    let mut pair = Pair::new();
    (0..200).for_each(|n| pair.put(&key(n), b"value"));
    pair.begin(0, 31);
    pair.finish();
    let [Some((start, end)), Some((_, last))] = pair.ranges else { panic!("a split makes two") };
    pair.begin(0, 0);
    let (target, block) = pair.mover(0);
    let refused = target.begin_export(block, start, end).unwrap_err();
    assert_eq!(refused.status, Status::Busy);
    pair.finish();
    let (target, block) = pair.mover(0);
    assert_eq!(target.begin_export(block, start, end).unwrap_err().status, Status::Busy);
    target.begin_export(block, start, last).unwrap();
}

/// Until everything has arrived the source alone serves a range, and the target sends readers there. Once the
/// range is handed over, neither answers before the controller has decided.
#[test]
fn range_in_transfer_is_read_at_no_two_blocks() {
    let mut pair = Pair::new();
    (0..200).for_each(|n| pair.put(&key(n), b"value"));
    pair.begin(1, 31);
    let Under { from, to, start, end, .. } = pair.under.unwrap();
    let moves = |key: &Vec<u8>| (start..=end).contains(&key_hash(key));
    let moving = (0..200).map(key).find(moves).unwrap();
    let read = |pair: &mut Pair, place: usize, bug: Option<Bug>| {
        Bug::arm(bug);
        let status = pair.driver(place).run(Op::KvGet, &moving, b"").status;
        Bug::arm(None);
        status
    };
    let early = Some(Bug::MoveServesEarly);
    assert_eq!(read(&mut pair, from, None), Status::Ok);
    assert_eq!(read(&mut pair, to, None), Status::WrongRange);
    assert_eq!(read(&mut pair, to, early), Status::KeyNotFound, "it answers without the key");
    pair.count().unwrap();
    assert_eq!(read(&mut pair, from, None), Status::Ok);
    assert_eq!(read(&mut pair, to, None), Status::Busy);
    assert_eq!(read(&mut pair, to, early), Status::KeyNotFound, "it answers before the commit");
    pair.mover(from).0.hand_over();
    assert_eq!(read(&mut pair, from, None), Status::Busy);
    assert_eq!(read(&mut pair, to, None), Status::Busy);
    let late = Some(Bug::MoveServesLate);
    assert_eq!(read(&mut pair, from, late), Status::Ok, "it answers after the hand-over");
    pair.cancel();
    assert_eq!(read(&mut pair, from, None), Status::Ok);
    pair.check();
}

/// Lets time pass until the block reduces its capacity, or for this time. Returns the new capacity.
fn gives(pair: &mut Pair, place: usize, within: Duration) -> Option<usize> {
    let driver = pair.driver(place);
    let (mut now, until) = (driver.now, driver.now + within);
    let mut kept = None;
    while now <= until && kept.is_none() {
        let waits = driver.structure.waits().unwrap();
        waits.tick(&mut driver.block, now);
        now = waits.deadline().map_or(until + within, |due| due.max(now));
        kept = driver.structure.enlarge().unwrap().give_capacity(&mut driver.block, now);
    }
    let now = now.min(until);
    pair.blocks.iter_mut().flatten().for_each(|driver| driver.now = now);
    kept
}

/// The catalog counts on the block size. The block would refuse each attempt, because it would free the
/// larger capacity before the next attempt.
#[test]
fn block_that_gave_capacity_back_takes_a_merge_when_it_has_room() {
    const LARGE: usize = 1 << 20;
    let mut pair = Pair::of(LARGE);
    (0..900).for_each(|n| pair.put(&key(n), &[7; 500]));
    pair.begin(0, 31);
    pair.finish();
    let kept = gives(&mut pair, 0, Duration::from_secs(5)).unwrap();
    assert!(kept < LARGE / 2, "{kept}");
    // The first attempt is refused, and the capacity as well; a later attempt requests it again.
    for answer in [Capacity::Denied(Status::OutOfMemory, "full".into()), Capacity::Granted(LARGE)] {
        pair.begin(0, 0);
        assert!(pair.count().is_none(), "it has no room for the other half");
        answer_request(&mut pair, kept, LARGE, answer);
    }
    assert_eq!(gives(&mut pair, 0, Duration::from_millis(1900)), None);
    pair.begin(0, 0);
    pair.finish();
    pair.check();
    assert!(gives(&mut pair, 0, Duration::from_secs(5)).is_some());
    pair.check();
}

/// A block of 512 KiB of its 1 MiB that left its server was sent to one of the same capacity, which refused
/// it each time, until the block divided in a server that it had to leave.
#[test]
fn block_that_did_not_fit_elsewhere_gets_more_capacity_before_it_divides() {
    const LARGE: usize = 1 << 20;
    let mut pair = Pair::of(LARGE);
    (0..1500).for_each(|n| pair.put(&key(n), &[7; 500]));
    pair.begin(0, 31);
    pair.finish();
    let kept = gives(&mut pair, 0, Duration::from_secs(5)).unwrap();
    let now = pair.driver(0).now;
    let (mover, block) = pair.mover(0);
    mover.did_not_fit(now);
    assert_eq!(mover.move_request(block, now), None, "it grows first");
    let denied = Capacity::Denied(Status::OutOfMemory, "full".into());
    answer_request(&mut pair, kept, LARGE, denied);
    let (mover, block) = pair.mover(0);
    mover.did_not_fit(now);
    let divided = mover.move_request(block, now);
    assert!(matches!(divided, Some(MoveRequest::Split { .. })), "{divided:?}");
}

/// Lets the first block request the capacity `wanted`, and answers that. It informs the controller of `kept`
/// bytes first, if it has not.
fn answer_request(pair: &mut Pair, kept: usize, wanted: usize, answer: Capacity) {
    let driver = pair.driver(0);
    let now = driver.now;
    let enlarge = driver.structure.enlarge().unwrap();
    let mut asked = enlarge.wants_capacity(0).unwrap();
    if asked == kept {
        enlarge.capacity(&mut driver.block, now, Capacity::Granted(kept));
        asked = enlarge.wants_capacity(0).unwrap();
    }
    assert_eq!(asked, wanted);
    assert_eq!(enlarge.wants_capacity(0), None, "one request at a time");
    if answer == Capacity::Granted(wanted) {
        driver.block.enlarge(wanted);
    }
    enlarge.capacity(&mut driver.block, now, answer);
}
