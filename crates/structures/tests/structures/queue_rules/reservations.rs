//! At-least-once delivery, and the end of a queue.

use super::*;

#[test]
fn a_reservation_that_runs_out_goes_out_again_before_others() {
    let mut d = queue();
    put_all(&mut d, &[b"a", b"b", b"c"]);
    let answer = get(&mut d, GetArgs { items: 2, reserve_ms: 50, ..TAKE });
    assert_eq!(given(&d, &answer), (0, 1, vec![b"a".to_vec(), b"b".to_vec()]));
    let due = d.now + Duration::from_millis(50);
    assert_eq!(d.structure.deadline(), Some(due));
    d.sleep(49);
    assert_eq!(counts(&mut d).1.reserved, 2);
    assert_eq!(d.structure.deadline(), Some(due));
    d.sleep(1);
    assert_eq!(counts(&mut d).1.reserved, 0);
    let all = GetArgs { items: 9, reserve_ms: 50, ..TAKE };
    for (number, item) in [(0, b"a"), (1, b"b")] {
        let answer = get(&mut d, all);
        assert_eq!(given(&d, &answer), (number, 2, vec![item.to_vec()]), "each for itself");
    }
    assert_eq!(ack(&mut d, AckAction::Done, 0, &[(0, 1), (1, 1)]), [0, 0], "they were too late");
    assert_eq!(ack(&mut d, AckAction::Done, 0, &[(0, 2), (1, 2)]), [1, 1]);
    assert_eq!(ack(&mut d, AckAction::Done, 0, &[(0, 2), (1, 2)]), [0, 0], "once");
    assert_eq!(take(&mut d, 9), [b"c"]);
    let expected = Counts { taken: 3, bytes_put: 3, bytes_taken: 3, reserved: 0, closed: false };
    assert_eq!(counts(&mut d), (3, expected));
}

#[test]
fn a_stale_holder_neither_settles_nor_returns_nor_extends() {
    let mut d = queue();
    put(&mut d, b"x");
    let stale = reserve_one(&mut d, 10);
    d.sleep(10);
    let all = [AckAction::Done, AckAction::GiveBack, AckAction::Extend];
    for action in all {
        assert_eq!(ack(&mut d, action, 1000, &[stale]), [0], "the delivery is stale");
    }
    let holder = reserve_one(&mut d, 10);
    for (action, item) in all.into_iter().flat_map(|a| [stale, (0, 3), (1, 2)].map(|i| (a, i))) {
        assert_eq!(ack(&mut d, action, 1000, &[item]), [0]);
    }
    assert_eq!(counts(&mut d).1.reserved, 1);
    assert_eq!(d.structure.deadline(), Some(d.now + Duration::from_millis(10)));
    assert!(settle(&mut d, holder));
}

#[test]
fn what_is_given_back_is_there_at_once() {
    let mut d = queue();
    put_all(&mut d, &[b"a", b"b", b"c"]);
    get(&mut d, GetArgs { items: 2, reserve_ms: 1000, ..TAKE });
    assert_eq!(
        ack(&mut d, AckAction::GiveBack, 0, &[(1, 1), (1, 1), (7, 1), (0, 1)]),
        [1, 0, 0, 1]
    );
    let answer = get(&mut d, TAKE);
    assert_eq!(given(&d, &answer), (0, 2, vec![b"a".to_vec()]), "in order among themselves");
    let answer = get(&mut d, GetArgs { reserve_ms: 1000, ..TAKE });
    assert_eq!(given(&d, &answer), (1, 2, vec![b"b".to_vec()]));
    assert_eq!(take(&mut d, 1), [b"c"]);
    let getter = wait_to_get(&mut d, 1000, TAKE);
    ack(&mut d, AckAction::GiveBack, 0, &[(1, 2)]);
    let (ticket, answer) = d.completed().unwrap();
    assert_eq!((ticket, given(&d, &answer)), (getter, (1, 3, vec![b"b".to_vec()])));
}

#[test]
fn a_reservation_can_be_extended() {
    let mut d = queue();
    put(&mut d, b"x");
    let item = reserve_one(&mut d, 10);
    d.sleep(5);
    assert_eq!(ack(&mut d, AckAction::Extend, 10, &[item]), [1]);
    d.sleep(5);
    assert_eq!(counts(&mut d).1.reserved, 1, "its first time has passed");
    d.sleep(4);
    assert_eq!(ack(&mut d, AckAction::Extend, 1, &[item]), [1]);
    assert_eq!(counts(&mut d).1.reserved, 1);
    d.sleep(1);
    assert_eq!(counts(&mut d).1.reserved, 0, "from now on, also to less");
    assert_eq!(ack(&mut d, AckAction::Extend, 10, &[item]), [0]);
    let refuse = |d: &mut Queue, action, timeout_ms| {
        let args = AckArgs { action, timeout_ms, items: vec![item] };
        refused(&d.run(Op::QueueAck, &args.encode(), &[]), Status::InvalidArgument, "86400000");
    };
    refuse(&mut d, AckAction::Extend, 0);
    refuse(&mut d, AckAction::Extend, RESERVE_MAX_MS + 1);
    let too_long = GetArgs { reserve_ms: RESERVE_MAX_MS + 1, ..TAKE };
    refused(&get(&mut d, too_long), Status::InvalidArgument, "86400000");
    assert_eq!(reserve_one(&mut d, RESERVE_MAX_MS), (0, 2));
}

#[test]
fn an_item_that_came_back_can_be_taken_for_good() {
    let mut d = bounded(1, 0);
    put(&mut d, b"x");
    reserve_one(&mut d, 10);
    d.sleep(10);
    let waits = wait_to_put(&mut d, 1000, &[b"y"]);
    let answer = get(&mut d, TAKE);
    assert_eq!(given(&d, &answer), (0, 2, vec![b"x".to_vec()]));
    assert_eq!(answers(&mut d), [(waits, Answer::ok(1))]);
    assert_eq!(take(&mut d, 1), [b"y"]);
}

#[test]
fn the_books_of_reservations_grow_with_what_is_out_only() {
    let mut d = queue();
    put(&mut d, b"held");
    let held = reserve_one(&mut d, RESERVE_MAX_MS);
    let work = |d: &mut Queue| {
        put(d, b"work");
        let item = reserve_one(d, RESERVE_MAX_MS);
        assert_eq!(ack(d, AckAction::Extend, RESERVE_MAX_MS - 1, &[item]), [1]);
        assert_eq!(ack(d, AckAction::GiveBack, 0, &[item]), [1]);
        let item = reserve_one(d, RESERVE_MAX_MS);
        assert!(settle(d, item));
    };
    work(&mut d);
    let used = d.structure.bytes_used();
    for _ in 0..1000 {
        work(&mut d);
    }
    assert_eq!(d.structure.bytes_used(), used, "one item is out, as before");
    assert!(settle(&mut d, held));
    assert_eq!((d.structure.bytes_used(), d.structure.deadline()), (0, None));
}

// -------------------------------------------------------------------------------------- closing

#[test]
fn a_closed_queue_gives_what_it_has() {
    let mut d = queue();
    put_all(&mut d, &[b"a", b"b"]);
    assert_eq!(d.run(Op::QueueClose, &[], &[]), Answer::ok(0));
    let sealed = Event::Sealed { length: 2, bytes: 2, successor: None };
    assert_eq!(d.events(), [sealed]);
    assert_eq!(d.run(Op::QueueClose, &[], &[]), Answer::ok(0), "twice is fine");
    assert_eq!(d.events(), []);
    assert_eq!(put(&mut d, b"c").status, Status::QueueClosed);
    assert_eq!(d.reserve(Op::QueuePut, &[], 20_000).unwrap_err().status, Status::QueueClosed);
    assert_eq!(take(&mut d, 9), [b"a", b"b"]);
    let until = d.now + Duration::from_millis(9);
    let (_, outcome) = d.submit_until(until, Op::QueueGet, &encoded(TAKE), &[]);
    let Outcome::Done(answer) = outcome else { panic!("no items can arrive") };
    assert_eq!(answer.status, Status::QueueClosed);
    let peek = [1u32.to_le_bytes(), 1u32.to_le_bytes()].concat();
    assert_eq!(d.run(Op::QueuePeek, &peek, &[]).status, Status::QueueClosed);
    assert_eq!(d.events(), [], "the last block stays");
    assert!(!d.structure.wants_successor());
    assert_eq!(d.run(Op::QueueLength, &[1], &[]).value, 2);
}

#[test]
fn closing_answers_those_who_wait() {
    let mut d = bounded(1, 0);
    let getters = [wait_to_get(&mut d, 1000, TAKE), wait_to_get(&mut d, 1000, TAKE)];
    d.run(Op::QueueClose, &[], &[]);
    assert_eq!(statuses(&mut d), getters.map(|ticket| (ticket, Status::QueueClosed)));
    let mut d = bounded(1, 0);
    put(&mut d, b"x");
    let putters = [wait_to_put(&mut d, 1000, &[b"y"]), wait_to_put(&mut d, 1000, &[b"z"])];
    d.run(Op::QueueClose, &[], &[]);
    assert_eq!(statuses(&mut d), putters.map(|ticket| (ticket, Status::QueueClosed)));
    assert_eq!(take(&mut d, 9), [b"x"]);
    assert_eq!(get(&mut d, TAKE).status, Status::QueueClosed);
}

#[test]
fn a_closed_queue_may_get_back_what_is_out() {
    let mut d = queue();
    put_all(&mut d, &[b"a", b"b"]);
    let (one, two) = (reserve_one(&mut d, 50), reserve_one(&mut d, 1000));
    let patient = wait_to_get(&mut d, 10, TAKE);
    d.run(Op::QueueClose, &[], &[]);
    assert_eq!(get(&mut d, TAKE).status, Status::QueueEmpty, "it did not end");
    assert_eq!(answers(&mut d), []);
    d.sleep(10);
    assert_eq!(statuses(&mut d), [(patient, Status::QueueEmpty)]);
    let first = wait_to_get(&mut d, 1000, TAKE);
    let second = wait_to_get(&mut d, 1000, TAKE);
    d.sleep(40);
    assert_eq!(brought(&mut d), [(first, vec![b"a".to_vec()])]);
    assert!(!settle(&mut d, one));
    assert!(settle(&mut d, two));
    assert_eq!(statuses(&mut d), [(second, Status::QueueClosed)], "now it has");
}

#[test]
fn a_queue_is_not_closed_over_what_is_arriving() {
    let mut d = queue();
    let ticket = d.reserve(Op::QueuePut, &[], 20_000).unwrap();
    assert_eq!(d.run(Op::QueueClose, &[], &[]).status, Status::Busy);
    assert_eq!(fill(&mut d, ticket, &pattern(1, 20_000)), Outcome::Done(Answer::ok(0)));
    assert_eq!(d.run(Op::QueueClose, &[], &[]), Answer::ok(0));
    assert_eq!(take(&mut d, 1), [pattern(1, 20_000)]);
}
