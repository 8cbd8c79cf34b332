use honeycomb_block::{Backing, Pin, Reclaimer};
use honeycomb_structures::{Answer, LaneRoom, LaneVerdict, Lanes, Payload};
use honeycomb_types::limits::{LANES_PER_BLOCK_MAX, RETRY_RECORD_BYTES_MAX, RETRY_WINDOW_MS};
use honeycomb_types::{LaneId, Sequence, SessionId, Time};
use honeycomb_wire::Status;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

/// Time between the calls of `Lanes::expire` that find a lane idle and forget it.
const READ_MAX: Duration = Duration::from_secs(2);
const S: SessionId = SessionId(7);
const L: LaneId = LaneId(1);
const W: u16 = 16;

fn begin(lanes: &mut Lanes, sequence: u64, acked: u64, retry: bool) -> LaneVerdict {
    lanes.begin(Time::ZERO, S, L, Sequence(sequence), Sequence(acked), retry, W)
}

fn run(lanes: &mut Lanes, sequence: u64, acked: u64) {
    assert_eq!(begin(lanes, sequence, acked, false), LaneVerdict::Run);
    lanes.record(S, L, Sequence(sequence), None, &Answer::ok(100 + sequence));
}

#[test]
fn a_repeated_mutation_is_answered_from_the_record() {
    let mut lanes = Lanes::new();
    assert_eq!(begin(&mut lanes, 1, 0, false), LaneVerdict::Run);
    assert_eq!(begin(&mut lanes, 1, 0, true), LaneVerdict::InProgress);
    assert_eq!(begin(&mut lanes, 2, 0, false), LaneVerdict::Waits);
    let answer = Answer { args: vec![1, 2], ..Answer::refuse(Status::CompareFailed, "") }
        .with(Payload::Bytes(vec![9; 100].into()));
    lanes.record(S, L, Sequence(1), Some(42), &answer);
    assert_eq!(begin(&mut lanes, 1, 0, true), LaneVerdict::Replay(answer));
    assert_eq!(lanes.kept(S, L).collect::<Vec<_>>(), [(Sequence(1), Some(42))]);
    assert_eq!(begin(&mut lanes, 3, 0, false), LaneVerdict::Resume(Sequence(2)));
    run(&mut lanes, 2, 1);
    assert_eq!(begin(&mut lanes, 1, 0, true), LaneVerdict::OutcomeUnknown, "1 was acknowledged");
    assert_eq!(lanes.kept(S, L).count(), 1);
}

#[test]
fn an_abandoned_mutation_comes_again_under_its_number() {
    let mut lanes = Lanes::new();
    run(&mut lanes, 1, 0);
    assert_eq!(begin(&mut lanes, 2, 1, false), LaneVerdict::Run);
    lanes.abandon(S, L);
    assert_eq!(begin(&mut lanes, 3, 1, false), LaneVerdict::Resume(Sequence(2)));
    run(&mut lanes, 2, 1);
}

#[test]
fn a_lane_that_is_not_known_begins_at_one() {
    let mut lanes = Lanes::new();
    assert_eq!(begin(&mut lanes, 5, 4, true), LaneVerdict::OutcomeUnknown);
    assert_eq!(begin(&mut lanes, 5, 4, false), LaneVerdict::Resume(Sequence(0)));
    assert_eq!(lanes.bytes(), 0, "a stranger leaves nothing behind");
    run(&mut lanes, 1, 0);
}

#[test]
fn unacknowledged_results_fill_the_window_and_are_never_evicted() {
    let mut lanes = Lanes::new();
    for sequence in 1..=W as u64 {
        run(&mut lanes, sequence, 0);
    }
    assert_eq!(begin(&mut lanes, 17, 0, false), LaneVerdict::Busy);
    for sequence in 1..=W as u64 {
        let replay = LaneVerdict::Replay(Answer::ok(100 + sequence));
        assert_eq!(begin(&mut lanes, sequence, 0, true), replay);
    }
    run(&mut lanes, 17, 1);
}

#[test]
fn bytes_of_results_are_bounded_over_all_lanes() {
    let mut lanes = Lanes::new();
    let big = Answer::ok(0).with(Payload::Bytes(vec![0; RETRY_RECORD_BYTES_MAX].into()));
    assert_eq!(begin(&mut lanes, 1, 0, false), LaneVerdict::Run);
    lanes.record(S, L, Sequence(1), None, &big);
    let other = |lanes: &mut Lanes| {
        lanes.begin(Time::ZERO, S, LaneId(2), Sequence(1), Sequence(0), false, W)
    };
    assert_eq!(other(&mut lanes), LaneVerdict::Busy);
    assert_eq!(begin(&mut lanes, 2, 0, false), LaneVerdict::Busy);
    assert!(lanes.bytes() > RETRY_RECORD_BYTES_MAX);
    assert_eq!(begin(&mut lanes, 2, 1, false), LaneVerdict::Run, "the acknowledgement made room");
    assert_eq!(other(&mut lanes), LaneVerdict::Run);
    assert!(lanes.bytes() < 4096);
}

#[test]
fn results_that_leave_the_block_take_shared_room_alone() {
    let room = LaneRoom::of(4 * RETRY_RECORD_BYTES_MAX);
    let mut lanes = Lanes::within(room.clone());
    let (reclaimer, _worker) = Reclaimer::with_worker(1 << 20, 0, None);
    let mut block = Backing::map(8 * RETRY_RECORD_BYTES_MAX, &reclaimer).unwrap();
    // Three results, each as large as a block may keep beside its own bytes: two can be copied.
    let begin = |lanes: &mut Lanes, lane, sequence, acked| {
        lanes.begin(Time::ZERO, S, LaneId(lane), Sequence(sequence), Sequence(acked), false, W)
    };
    for lane in 1..=3 {
        assert_eq!(begin(&mut lanes, lane, 1, 0), LaneVerdict::Run);
        let from = lane as usize * RETRY_RECORD_BYTES_MAX;
        let range = from..from + RETRY_RECORD_BYTES_MAX - 1;
        block.slice_mut(range.clone()).fill(lane as u8);
        let taken = Answer::ok(7).with(Payload::Pinned(block.pin(range)));
        lanes.record(S, LaneId(lane), Sequence(1), None, &taken);
    }
    let before = lanes.bytes();
    lanes.leave_block();
    assert_eq!(lanes.bytes() - before, 2 * (RETRY_RECORD_BYTES_MAX - 1 - size_of::<Pin>()));
    assert_eq!(room.taken(), lanes.bytes());
    assert!(block.is_held(), "the third has no room");
    // All are there for a retry, and others go on.
    for lane in 1..=3 {
        let LaneVerdict::Replay(answer) = begin(&mut lanes, lane, 1, 0) else { panic!("{lane}") };
        let bytes = match &answer.payload {
            Payload::Bytes(bytes) => &bytes[..],
            Payload::Pinned(pin) => pin.bytes(),
            other => panic!("{other:?}"),
        };
        assert_eq!(bytes.len(), RETRY_RECORD_BYTES_MAX - 1);
        assert!(bytes.iter().all(|byte| *byte == lane as u8));
    }
    assert_eq!(begin(&mut lanes, 4, 1, 0), LaneVerdict::Run);
    // An acknowledged copy makes room for the next one.
    assert_eq!(begin(&mut lanes, 1, 2, 1), LaneVerdict::Run);
    lanes.leave_block();
    assert!(!block.is_held());
    for lane in 2..=3 {
        assert!(lanes.forget(S, LaneId(lane), Sequence(1)));
    }
    assert!(lanes.bytes() < 4096, "{}", lanes.bytes());
}

#[test]
fn lanes_of_many_blocks_have_room_together_and_give_it_back() {
    let room = LaneRoom::of(64 * 1024);
    let mut blocks = [Lanes::within(room.clone()), Lanes::within(room.clone())];
    let idle = Time::from_millis(2 * RETRY_WINDOW_MS);
    let mut lane = 0;
    let mut one = |lanes: &mut Lanes, now: Time| {
        lane += 1;
        let verdict = lanes.begin(now, S, LaneId(lane), Sequence(1), Sequence(0), false, W);
        if verdict == LaneVerdict::Run {
            lanes.record(S, LaneId(lane), Sequence(1), None, &Answer::ok(0));
        }
        verdict
    };
    let full = (0..10_000).find(|n| one(&mut blocks[n % 2], Time::ZERO) == LaneVerdict::Busy);
    assert!((200..1000).contains(&full.unwrap()), "{full:?}");
    let taken: usize = blocks.iter().map(Lanes::bytes).sum();
    assert_eq!(room.taken(), taken);
    // Another block is full as well, and has room when the lanes of the first are forgotten.
    assert_eq!(one(&mut blocks[1], Time::ZERO), LaneVerdict::Busy);
    forget(&mut blocks[0], idle);
    assert!(room.taken() < taken * 2 / 3, "{} of {taken}", room.taken());
    assert_eq!(one(&mut blocks[1], idle), LaneVerdict::Run);
    // The remaining lanes are found in their new places.
    let [first, second] = blocks;
    drop(first);
    assert_eq!(room.taken(), second.bytes());
    drop(second);
    assert_eq!(room.taken(), 0);
}

/// Finds idle lanes at this time, and forgets them later.
fn forget(lanes: &mut Lanes, now: Time) {
    lanes.expire(now);
    lanes.expire(now + READ_MAX);
    for _ in 0..LANES_PER_BLOCK_MAX {
        lanes.expire(now + 2 * READ_MAX);
    }
}

/// A copy that had arrived before a pause of the server is read after it, and the lane is known then.
#[test]
fn lane_outlives_a_pause_of_its_server() {
    let mut lanes = Lanes::new();
    assert_eq!(begin(&mut lanes, 1, 0, false), LaneVerdict::Run);
    lanes.record(S, L, Sequence(1), None, &Answer::ok(5));
    let kept = |lanes: &Lanes| lanes.kept(S, L).count();
    let resumed = Time::from_millis(10 * RETRY_WINDOW_MS);
    lanes.expire(Time::from_millis(RETRY_WINDOW_MS));
    lanes.expire(resumed);
    lanes.expire(Time((resumed + READ_MAX).0 - 1));
    assert_eq!(kept(&lanes), 1);
    lanes.expire(resumed + READ_MAX);
    assert_eq!(kept(&lanes), 0);
}

#[test]
fn lanes_that_stay_are_found_when_others_have_left() {
    let mut lanes = Lanes::new();
    let begin = |lanes: &mut Lanes, now, lane| {
        lanes.begin(now, S, LaneId(lane), Sequence(1), Sequence(0), false, W)
    };
    for lane in 0..200 {
        assert_eq!(begin(&mut lanes, Time::ZERO, lane), LaneVerdict::Run);
        lanes.record(S, LaneId(lane), Sequence(1), None, &Answer::ok(u64::from(lane)));
    }
    // Every tenth is used again later.
    let later = Time::from_millis(RETRY_WINDOW_MS);
    for lane in (0..200).step_by(10) {
        assert!(matches!(begin(&mut lanes, later, lane), LaneVerdict::Replay(_)));
    }
    let bytes = lanes.bytes();
    forget(&mut lanes, Time::from_millis(2 * RETRY_WINDOW_MS + 1));
    assert!(lanes.bytes() < bytes / 5, "{} of {bytes}", lanes.bytes());
    for lane in (0..200).step_by(10) {
        let replay = LaneVerdict::Replay(Answer::ok(u64::from(lane)));
        assert_eq!(begin(&mut lanes, later, lane), replay);
    }
    forget(&mut lanes, Time::from_millis(10 * RETRY_WINDOW_MS));
    // Places for a few lanes are kept.
    assert!(lanes.bytes() < bytes / 5, "{} of {bytes}", lanes.bytes());
}

#[test]
fn lanes_are_bounded_and_leave_when_idle() {
    let mut lanes = Lanes::new();
    let idle = Time::from_millis(2 * RETRY_WINDOW_MS);
    for lane in 0..LANES_PER_BLOCK_MAX as u32 {
        let verdict = lanes.begin(Time::ZERO, S, LaneId(lane), Sequence(1), Sequence(0), false, W);
        assert_eq!(verdict, LaneVerdict::Run);
        lanes.record(S, LaneId(lane), Sequence(1), None, &Answer::ok(0));
    }
    let another = |lanes: &mut Lanes, now| {
        lanes.begin(now, SessionId(8), L, Sequence(1), Sequence(0), false, W)
    };
    assert_eq!(another(&mut lanes, Time::ZERO), LaneVerdict::Busy);
    // Lane 3 stays in use, lane 4 has a mutation running: neither is idle.
    let used = Time::from_millis(RETRY_WINDOW_MS);
    lanes.begin(used, S, LaneId(3), Sequence(1), Sequence(0), true, W);
    lanes.begin(Time::ZERO, S, LaneId(4), Sequence(2), Sequence(1), false, W);
    lanes.expire(Time(idle.0 - 1));
    assert_eq!(another(&mut lanes, used), LaneVerdict::Busy);
    lanes.expire(idle);
    assert_eq!(another(&mut lanes, idle), LaneVerdict::Busy, "found idle, and not forgotten yet");
    forget(&mut lanes, idle);
    assert_eq!(another(&mut lanes, idle), LaneVerdict::Run);
    for (lane, kept) in [(2, 0), (3, 1), (5, 0)] {
        assert_eq!(lanes.kept(S, LaneId(lane)).count(), kept, "lane {lane}");
    }
    lanes.record(S, LaneId(4), Sequence(2), None, &Answer::ok(0));
}

#[test]
#[should_panic(expected = "INV-16")]
fn an_answer_that_points_into_the_block_is_not_recorded() {
    let mut lanes = Lanes::new();
    begin(&mut lanes, 1, 0, false);
    lanes.record(S, L, Sequence(1), None, &Answer::ok(0).with(Payload::Block(0..1)));
}

#[cfg(feature = "bug-bank")]
#[test]
fn the_planted_loss_of_a_record_runs_a_retry_again() {
    use honeycomb_types::Bug;
    let mut lanes = Lanes::new();
    Bug::arm(Some(Bug::LostRetryRecord));
    run(&mut lanes, 1, 0);
    run(&mut lanes, 1, 0);
    run(&mut lanes, 2, 1);
    Bug::arm(None);
}

/// The effects of a faulty network on the requests of one client.
#[derive(Clone, Debug)]
enum Event {
    /// Sends the next mutation, unless the window is full.
    Send,
    /// Delivers one of the messages in flight; `twice` leaves a copy.
    Deliver { which: usize, twice: bool },
    /// Loses one.
    Lose { which: usize },
    /// Repeats every request without an answer.
    Retry,
    /// The running mutation ends: with a result or without effect.
    End { effect: bool },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => Just(Event::Send),
        8 => (any::<usize>(), any::<bool>()).prop_map(|(which, twice)| Event::Deliver { which, twice }),
        2 => any::<usize>().prop_map(|which| Event::Lose { which }),
        2 => Just(Event::Retry),
        6 => any::<bool>().prop_map(|effect| Event::End { effect }),
    ];
    prop::collection::vec(event, 1..300)
}

proptest! {
    #[test]
    fn every_mutation_takes_effect_once_and_in_order(events in events(), window in 1u16..6) {
        let mut lanes = Lanes::new();
        let mut flight: Vec<(u64, u64, bool)> = Vec::new();
        let mut effects: Vec<u64> = Vec::new();
        let mut answered: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut sent, mut acked, mut running) = (0u64, 0u64, None);
        for event in events {
            match event {
                Event::Send if sent - acked < window as u64 => {
                    sent += 1;
                    flight.push((sent, acked, false));
                }
                Event::Send => {}
                Event::Lose { which } if !flight.is_empty() => {
                    flight.swap_remove(which % flight.len());
                }
                Event::Lose { .. } => {}
                Event::Retry => {
                    let open = (acked + 1..=sent).filter(|s| !answered.contains_key(s));
                    flight.extend(open.map(|s| (s, acked, true)));
                    flight.truncate(64);
                }
                Event::Deliver { which, twice } if !flight.is_empty() => {
                    let which = which % flight.len();
                    let (s, a, retry) = flight[which];
                    if !twice {
                        flight.swap_remove(which);
                    }
                    let (seq, ack) = (Sequence(s), Sequence(a));
                    match lanes.begin(Time::ZERO, S, L, seq, ack, retry, window) {
                        LaneVerdict::Run => {
                            prop_assert_eq!(running, None);
                            prop_assert_eq!(s, effects.len() as u64 + 1, "in order");
                            running = Some(s);
                        }
                        LaneVerdict::Replay(answer) => {
                            prop_assert_eq!(answer.value, 1000 + s);
                            prop_assert!(effects.contains(&s));
                            answered.insert(s, answer.value);
                        }
                        LaneVerdict::InProgress => prop_assert!(running == Some(s)),
                        LaneVerdict::Waits => prop_assert!(running.is_some_and(|r| r < s)),
                        LaneVerdict::Resume(n) => {
                            let expected = effects.len() as u64 + 1;
                            prop_assert!(s > expected && (n.0 == expected || n.0 == 0));
                        }
                        LaneVerdict::OutcomeUnknown => {
                            // Only a late copy of a request that is already answered, or a retry on a lane
                            // whose first request is still in progress.
                            prop_assert!(answered.contains_key(&s) || effects.is_empty());
                        }
                        LaneVerdict::Busy => prop_assert!(false, "the client kept to its window"),
                    }
                }
                Event::Deliver { .. } => {}
                Event::End { effect } => {
                    let Some(s) = running.take() else { continue };
                    if effect {
                        effects.push(s);
                        lanes.record(S, L, Sequence(s), None, &Answer::ok(1000 + s));
                        answered.insert(s, 1000 + s);
                    } else {
                        lanes.abandon(S, L);
                    }
                }
            }
            while answered.contains_key(&(acked + 1)) {
                acked += 1;
            }
        }
        let once: Vec<u64> = (1..=effects.len() as u64).collect();
        prop_assert_eq!(effects, once);
    }
}

fn moved(from: &Lanes, start: u64, end: u64, whole: bool) -> Lanes {
    let mut to = Lanes::new();
    for part in from.export(start, end, whole, 100) {
        to.adopt(Time::ZERO, &part).unwrap();
    }
    to
}

#[test]
fn what_stayed_is_known_when_what_moved_comes_back() {
    let mut low = Lanes::new();
    for (sequence, hash) in [(1, 10), (2, 90)] {
        assert_eq!(begin(&mut low, sequence, 0, false), LaneVerdict::Run);
        low.record(S, L, Sequence(sequence), Some(hash), &Answer::ok(sequence));
    }
    // The upper half of the keys moves away, and returns with its records.
    let high = moved(&low, 50, 99, false);
    for part in high.export(50, 99, true, 100) {
        low.adopt(Time::ZERO, &part).unwrap();
    }
    assert_eq!(begin(&mut low, 1, 0, true), LaneVerdict::Replay(Answer::ok(1)));
    assert_eq!(begin(&mut low, 2, 0, true), LaneVerdict::Replay(Answer::ok(2)));
}

#[test]
fn results_move_with_the_keys_that_they_concern() {
    let mut from = Lanes::new();
    let payload = Answer::ok(7).with(Payload::Bytes(vec![9; 300].into()));
    for (sequence, hash, answer) in
        [(1, 10, Answer::ok(1)), (2, 20, payload.clone()), (3, 30, Answer::ok(3))]
    {
        assert_eq!(begin(&mut from, sequence, 0, false), LaneVerdict::Run);
        from.record(S, L, Sequence(sequence), Some(hash), &answer);
    }
    let mut to = moved(&from, 15, 25, false);
    assert_eq!(begin(&mut to, 2, 0, true), LaneVerdict::Replay(payload.clone()));
    // The records of keys that did not move are not here; the other block still has them.
    assert_eq!(begin(&mut to, 1, 0, true), LaneVerdict::OutcomeUnknown);
    assert_eq!(begin(&mut from, 2, 0, true), LaneVerdict::Replay(payload.clone()));
    // A mutation that never ran there runs here, and its lane is then like any other.
    assert_eq!(begin(&mut to, 4, 3, true), LaneVerdict::Run);
    to.record(S, L, Sequence(4), Some(20), &Answer::ok(4));
    assert_eq!(begin(&mut to, 4, 3, true), LaneVerdict::Replay(Answer::ok(4)));
    // It moves on together with the records that were adopted before.
    let mut on = moved(&to, 0, u64::MAX, true);
    assert_eq!(begin(&mut on, 4, 0, true), LaneVerdict::Replay(Answer::ok(4)));
    assert_eq!(begin(&mut on, 2, 0, true), LaneVerdict::Replay(payload));
    assert_eq!(begin(&mut on, 1, 0, true), LaneVerdict::OutcomeUnknown);
}

#[test]
fn results_without_a_key_move_only_with_the_whole_block() {
    let mut from = Lanes::new();
    run(&mut from, 1, 0);
    assert_eq!(
        begin(&mut moved(&from, 0, u64::MAX, false), 1, 0, true),
        LaneVerdict::OutcomeUnknown
    );
    let whole = &mut moved(&from, 0, u64::MAX, true);
    assert_eq!(begin(whole, 1, 0, true), LaneVerdict::Replay(Answer::ok(101)));
}

#[test]
fn what_came_from_another_block_is_forgotten_and_bounded() {
    let mut from = Lanes::new();
    let large = Answer::ok(0).with(Payload::Bytes(vec![1; RETRY_RECORD_BYTES_MAX - 1000].into()));
    assert_eq!(begin(&mut from, 1, 0, false), LaneVerdict::Run);
    from.record(S, L, Sequence(1), Some(1), &large);
    let mut to = moved(&from, 0, 9, false);
    for part in from.export(0, 9, false, 1) {
        let other = [&8u128.to_le_bytes()[..], &part[16..]].concat();
        to.adopt(Time::ZERO, &other).unwrap();
    }
    assert!(to.bytes() <= RETRY_RECORD_BYTES_MAX + 1000, "{}", to.bytes());
    assert_eq!(begin(&mut to, 1, 0, true), LaneVerdict::OutcomeUnknown, "the oldest went first");
    forget(&mut to, Time::from_millis(3 * RETRY_WINDOW_MS));
    assert_eq!(to.bytes(), 0);
    assert!(to.adopt(Time::ZERO, &[1, 2, 3]).is_err());
}
