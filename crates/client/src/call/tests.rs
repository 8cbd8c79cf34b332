use super::*;

const DEADLINE: Time = Time(10_000_000_000);

fn entry(start: u64, end: u64, block: u64) -> MapEntry {
    MapEntry { start, end, block, epoch: 1, address: "a:1".into() }
}

fn map(version: u64, entries: Vec<MapEntry>) -> PartitionMap {
    PartitionMap { version, router: 3, block_size: 65536, entries }
}

fn whole() -> PartitionMap {
    map(1, vec![entry(0, u64::MAX, 1)])
}

fn divided() -> PartitionMap {
    map(2, vec![entry(0, 99, 1), entry(100, u64::MAX, 2)])
}

fn begin() -> (Call, Routing, LaneAllocator) {
    let call = Call::new(Op::KvBatch, Target::Hashes(50, 150), DEADLINE);
    (call, Routing::new(whole()), LaneAllocator::new(SessionId(7)))
}

#[test]
fn keys_that_the_map_divides_are_given_back() {
    let (mut call, mut routing, mut lanes) = begin();
    let step = call.next(Time(1), &mut routing, &mut lanes, CallEvent::Go);
    assert!(matches!(step, Step::Send(entry, _) if entry.block == 1));
    let refused = ReplyHeader::new(Status::WrongRange, 1, 0);
    let step = call.next(Time(2), &mut routing, &mut lanes, CallEvent::Reply(refused, &[]));
    assert_eq!(step, Step::Refresh);
    routing.refresh(divided());
    let step = call.next(Time(3), &mut routing, &mut lanes, CallEvent::Refreshed);
    assert!(matches!(step, Step::Wait(_)));
    let step = call.next(Time(4), &mut routing, &mut lanes, CallEvent::Go);
    let Step::Done(Err(e)) = step else { panic!("{step:?}") };
    assert_eq!(e.status, Status::WrongRange);
}

/// The block of a batch moves to another server and is split there. A refused batch had no effect
/// and is divided again; the outcome of a batch without a reply is unknown. Seed 20004 of the tier
/// soak.
#[test]
fn batch_whose_block_is_gone_and_divided_is_unknown_only_in_doubt() {
    let busy = CallEvent::Reply(ReplyHeader::new(Status::Busy, 1, 500), &[]);
    let lost = CallEvent::Lost { sent: true, why: "cut".into() };
    for (event, status) in [(busy, Status::WrongRange), (lost, Status::OutcomeUnknown)] {
        let (mut call, mut routing, mut lanes) = begin();
        call.next(Time(1), &mut routing, &mut lanes, CallEvent::Go);
        let asked = call.next(Time(2), &mut routing, &mut lanes, event);
        routing.refresh(map(3, vec![entry(0, 99, 3), entry(100, u64::MAX, 2)]));
        if asked == Step::Refresh {
            let step = call.next(Time(3), &mut routing, &mut lanes, CallEvent::Refreshed);
            assert!(matches!(step, Step::Wait(_)), "{step:?}");
        }
        let step = call.next(Time(4), &mut routing, &mut lanes, CallEvent::Go);
        let Step::Done(Err(e)) = step else { panic!("{step:?}") };
        assert_eq!(e.status, status);
    }
}

#[test]
fn a_revoked_grant_is_renewed_also_when_the_controller_is_away_at_first() {
    let (mut call, mut routing, mut lanes) = begin();
    let revoked = || CallEvent::Reply(ReplyHeader::new(Status::GrantRevoked, 1, 0), &[]);
    call.next(Time(1), &mut routing, &mut lanes, CallEvent::Go);
    assert_eq!(call.next(Time(2), &mut routing, &mut lanes, revoked()), Step::Refresh);
    let away = CallEvent::RefreshFailed(Error::new(Status::Unavailable, "away"));
    assert!(matches!(call.next(Time(3), &mut routing, &mut lanes, away), Step::Wait(_)));
    call.next(Time(4), &mut routing, &mut lanes, CallEvent::Go);
    // Still the old grant: the call refreshes, and waits before it sends again.
    assert_eq!(call.next(Time(5), &mut routing, &mut lanes, revoked()), Step::Refresh);
    let step = call.next(Time(6), &mut routing, &mut lanes, CallEvent::Refreshed);
    assert!(matches!(step, Step::Wait(_)), "{step:?}");
    let step = call.next(Time(7), &mut routing, &mut lanes, CallEvent::Go);
    assert!(matches!(step, Step::Send(..)), "{step:?}");
}

/// A block refused temporarily and was then replaced under another name before the retry: it may
/// have run an earlier copy, which only its records show. Found by the simulator.
#[test]
fn what_was_refused_for_a_moment_follows_the_records_of_a_block_that_has_gone() {
    let mut routing = Routing::new(whole());
    let mut lanes = LaneAllocator::new(SessionId(7));
    let mut call = Call::new(Op::KvAccumulate, Target::Hash(50), DEADLINE);
    let step = call.next(Time(1), &mut routing, &mut lanes, CallEvent::Go);
    let Step::Send(_, first) = step else { panic!("{step:?}") };
    let busy = ReplyHeader::new(Status::Busy, 1, 500);
    let step = call.next(Time(2), &mut routing, &mut lanes, CallEvent::Reply(busy, &[]));
    assert!(matches!(step, Step::Wait(_)), "{step:?}");
    let step = call.next(Time(3), &mut routing, &mut lanes, CallEvent::Go);
    assert!(matches!(step, Step::Send(entry, _) if entry.block == 1));
    let gone = ReplyHeader::new(Status::WrongEpoch, 1, 0);
    let step = call.next(Time(4), &mut routing, &mut lanes, CallEvent::Reply(gone, &[]));
    assert_eq!(step, Step::Refresh);
    routing.refresh(map(2, vec![entry(0, u64::MAX, 2)]));
    let mut step = call.next(Time(5), &mut routing, &mut lanes, CallEvent::Refreshed);
    if let Step::Wait(_) = step {
        step = call.next(Time(6), &mut routing, &mut lanes, CallEvent::Go);
    }
    let Step::Send(entry, again) = step else { panic!("{step:?}") };
    assert_eq!((entry.block, again.flags), (2, flags::RETRY));
    assert_eq!((again.lane, again.sequence), (first.lane, first.sequence));
}

/// One of two copies of a request runs, and the reply to the other arrives first: if no time is
/// left, the error must not say that it had no effect. Simulator seed 152724833095144.
#[test]
fn what_is_under_way_when_its_time_is_over_may_take_effect() {
    for (value, told) in [(500, "has not"), (500 | busy::UNDER_WAY, "may have")] {
        let mut routing = Routing::new(whole());
        let mut lanes = LaneAllocator::new(SessionId(7));
        let mut call = Call::new(Op::FileAppend, Target::Hash(50), DEADLINE);
        call.next(Time(1), &mut routing, &mut lanes, CallEvent::Go);
        let reply = CallEvent::Reply(ReplyHeader::new(Status::Busy, 1, value), b"why");
        let late = Time(DEADLINE.0 - 1);
        let Step::Done(Err(e)) = call.next(late, &mut routing, &mut lanes, reply) else {
            panic!("there is no time left")
        };
        assert_eq!(e.status, Status::DeadlineExceeded);
        assert!(e.message.contains(told), "{e}");
    }
    let wait = busy::delay(500 | busy::UNDER_WAY);
    assert_eq!(wait, Duration::from_micros(500));
}

#[test]
fn call_that_ends_while_there_is_no_room_is_out_of_memory() {
    let (mut call, mut routing, mut lanes) = begin();
    call.next(Time(1), &mut routing, &mut lanes, CallEvent::Go);
    let full = ReplyHeader::new(Status::Busy, 1, 500 | busy::FULL);
    let late = Time(DEADLINE.0 - 1);
    let step =
        call.next(late, &mut routing, &mut lanes, CallEvent::Reply(full, b"the disk is full"));
    let Step::Done(Err(e)) = step else { panic!("there is no time left") };
    assert_eq!((e.status, &e.message[..]), (Status::OutOfMemory, "the disk is full"));
}

#[test]
fn call_that_met_a_full_cluster_and_then_no_controller_names_the_controller() {
    let (mut call, mut routing, mut lanes) = begin();
    call.next(Time(1), &mut routing, &mut lanes, CallEvent::Go);
    let full = ReplyHeader::new(Status::Busy, 1, 500 | busy::FULL);
    call.next(Time(2), &mut routing, &mut lanes, CallEvent::Reply(full, b"the disk is full"));
    call.next(Time(3), &mut routing, &mut lanes, CallEvent::Go);
    let gone = ReplyHeader::new(Status::WrongEpoch, 1, 0);
    let step =
        call.next(Time(4), &mut routing, &mut lanes, CallEvent::Reply(gone, b"no such epoch"));
    assert_eq!(step, Step::Refresh);
    let silent = Error::new(Status::Unavailable, "the controller does not answer");
    let late = Time(DEADLINE.0 - 1);
    let step = call.next(late, &mut routing, &mut lanes, CallEvent::RefreshFailed(silent));
    let Step::Done(Err(e)) = step else { panic!("there is no time left") };
    assert_eq!(e.status, Status::DeadlineExceeded);
    assert!(e.message.contains("the controller does not answer"), "{e}");
}

/// One of two copies of a request found its block gone, and its reply arrived first: the other may
/// have run. This makes nothing uncertain: a block that does not know the lane starts it anew.
/// Found by the simulator.
#[test]
fn what_finds_its_block_gone_follows_its_records() {
    let mut routing = Routing::new(whole());
    let mut lanes = LaneAllocator::new(SessionId(7));
    let mut call = Call::new(Op::KvAccumulate, Target::Hash(50), DEADLINE);
    let step = call.next(Time(1), &mut routing, &mut lanes, CallEvent::Go);
    let Step::Send(_, first) = step else { panic!("{step:?}") };
    let gone = ReplyHeader::new(Status::WrongEpoch, 1, 0);
    let step = call.next(Time(2), &mut routing, &mut lanes, CallEvent::Reply(gone, &[]));
    assert_eq!(step, Step::Refresh);
    routing.refresh(map(2, vec![entry(0, u64::MAX, 2)]));
    let mut step = call.next(Time(3), &mut routing, &mut lanes, CallEvent::Refreshed);
    if let Step::Wait(_) = step {
        step = call.next(Time(4), &mut routing, &mut lanes, CallEvent::Go);
    }
    let Step::Send(entry, again) = step else { panic!("{step:?}") };
    assert_eq!((entry.block, again.flags & flags::RETRY), (2, 0));
    assert_eq!((again.lane, again.sequence), (first.lane, first.sequence));
    let unknown = ReplyHeader::new(Status::Resume, 1, 0);
    let step = call.next(Time(5), &mut routing, &mut lanes, CallEvent::Reply(unknown, &[]));
    let Step::Send(_, anew) = step else { panic!("{step:?}") };
    assert_eq!(anew.sequence, Sequence(1));
    assert_ne!(anew.lane, first.lane);
}

/// The block of a put whose reply was lost was moved, and a consumer of the same client has left
/// the block's new name behind. The put is still retried there, and the block is not taken for a
/// retired one. Found by the simulator.
#[test]
fn what_is_in_doubt_is_asked_where_a_consumer_is_no_more() {
    let ends =
        |version, entries| PartitionMap { router: Router::Ends as u8, ..map(version, entries) };
    let first = [entry(0, 36, 1), entry(37, u64::MAX, 2)];
    let mut routing = Routing::new(ends(1, first.into()));
    let mut lanes = LaneAllocator::new(SessionId(7));
    let mut call = Call::new(Op::QueuePut, Target::Tail, DEADLINE);
    let step = call.next(Time(1), &mut routing, &mut lanes, CallEvent::Go);
    let Step::Send(at, sent) = step else { panic!("{step:?}") };
    assert_eq!(at.block, 2);
    let lost = CallEvent::Lost { sent: true, why: "reset".into() };
    assert_eq!(call.next(Time(2), &mut routing, &mut lanes, lost), Step::Refresh);
    let moved = vec![entry(37, 79, 9), entry(80, u64::MAX, 3)];
    routing.refresh(ends(2, moved.clone()));
    routing.leave(moved[0].at());
    let mut step = call.next(Time(3), &mut routing, &mut lanes, CallEvent::Refreshed);
    if let Step::Wait(_) = step {
        step = call.next(Time(4), &mut routing, &mut lanes, CallEvent::Go);
    }
    let Step::Send(at, again) = step else { panic!("{step:?}") };
    assert_eq!((at.block, again.flags), (9, flags::RETRY));
    assert_eq!((again.lane, again.sequence), (sent.lane, sent.sequence));
}

#[test]
fn keys_in_doubt_stay_with_the_block_that_may_have_them() {
    let (mut call, mut routing, mut lanes) = begin();
    call.next(Time(1), &mut routing, &mut lanes, CallEvent::Go);
    let lost = CallEvent::Lost { sent: true, why: "gone".into() };
    assert_eq!(call.next(Time(2), &mut routing, &mut lanes, lost), Step::Refresh);
    routing.refresh(divided());
    call.next(Time(3), &mut routing, &mut lanes, CallEvent::Refreshed);
    let step = call.next(Time(4), &mut routing, &mut lanes, CallEvent::Go);
    let Step::Send(entry, header) = step else { panic!("{step:?}") };
    assert_eq!((entry.block, header.flags), (1, flags::RETRY));
    let done = ReplyHeader::new(Status::Ok, 1, 3);
    let step = call.next(Time(5), &mut routing, &mut lanes, CallEvent::Reply(done, &[]));
    assert_eq!(step, Step::Done(Ok(done)));
}
