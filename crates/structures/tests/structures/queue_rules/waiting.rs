//! Waiting requests and subscriptions of a queue.

use super::*;

#[test]
fn puts_that_wait_are_served_in_turn_as_room_arises() {
    let mut d = bounded(0, 100);
    put_all(&mut d, &[&[1; 40], &[2; 20], &[3; 40]]);
    let big = wait_to_put(&mut d, 1000, &[&[4; 50]]);
    let small = wait_to_put(&mut d, 1000, &[&[5; 10]]);
    let tiny = wait_to_put(&mut d, 1000, &[b""]);
    take(&mut d, 1);
    assert_eq!(answers(&mut d), [], "the small ones do not overtake");
    take(&mut d, 1);
    assert_eq!(
        answers(&mut d),
        [(big, Answer::ok(3)), (small, Answer::ok(4)), (tiny, Answer::ok(5))]
    );
    let kept = take(&mut d, 9);
    assert_eq!(kept, [vec![3; 40], vec![4; 50], vec![5; 10], vec![]]);
}

#[test]
fn gets_that_wait_are_served_in_turn() {
    let mut d = queue();
    let first = wait_to_get(&mut d, 1000, TAKE);
    let second = wait_to_get(&mut d, 500, GetArgs { items: 2, ..TAKE });
    let third = wait_to_get(&mut d, 1000, TAKE);
    put_all(&mut d, &[b"a", b"b", b"c"]);
    let expected = [(first, vec![b"a".to_vec()]), (second, vec![b"b".to_vec(), b"c".to_vec()])];
    assert_eq!(brought(&mut d), expected);
    put(&mut d, b"d");
    assert_eq!(brought(&mut d), [(third, vec![b"d".to_vec()])]);
}

#[test]
fn a_get_lets_a_put_in_which_serves_the_next_get() {
    let mut d = bounded(1, 0);
    put(&mut d, b"a");
    let putter = wait_to_put(&mut d, 1000, &[b"b"]);
    assert_eq!(take(&mut d, 1), [b"a"]);
    assert_eq!(answers(&mut d), [(putter, Answer::ok(1))]);
    let held = reserve_one(&mut d, 1000);
    let getter = wait_to_get(&mut d, 1000, TAKE);
    let putter = wait_to_put(&mut d, 1000, &[b"c"]);
    assert!(settle(&mut d, held));
    let told = answers(&mut d);
    assert_eq!(told[0], (putter, Answer::ok(2)));
    assert_eq!((told[1].0, given(&d, &told[1].1).2), (getter, vec![b"c".to_vec()]));
}

#[test]
fn time_outs_come_when_they_are_due() {
    let mut d = bounded(1, 0);
    assert_eq!(d.structure.deadline(), None);
    let getter = wait_to_get(&mut d, 30, TAKE);
    let due = d.now + Duration::from_millis(30);
    assert_eq!(d.structure.deadline(), Some(due));
    d.now = Time(due.0 - 1);
    d.structure.tick(&mut d.block, d.now);
    assert_eq!(answers(&mut d), [], "not a nanosecond early");
    assert_eq!(d.structure.deadline(), Some(due));
    d.now = due;
    d.structure.tick(&mut d.block, d.now);
    assert_eq!(statuses(&mut d), [(getter, Status::QueueEmpty)]);
    assert_eq!(d.structure.deadline(), None);
    put(&mut d, b"x");
    let later = wait_to_put(&mut d, 20, &[b"later"]);
    let sooner = wait_to_put(&mut d, 10, &[b"sooner"]);
    assert_eq!(d.structure.deadline(), Some(due + Duration::from_millis(10)));
    d.sleep(10);
    assert_eq!(statuses(&mut d), [(sooner, Status::QueueFull)]);
    assert_eq!(d.structure.deadline(), Some(due + Duration::from_millis(20)));
    d.sleep(10);
    assert_eq!(statuses(&mut d), [(later, Status::QueueFull)]);
    assert_eq!(take(&mut d, 9), [b"x"], "a cancelled item was not put");
}

#[test]
fn what_comes_in_the_last_moment_comes_in_time() {
    let mut d = queue();
    put(&mut d, b"x");
    reserve_one(&mut d, 30);
    let getter = wait_to_get(&mut d, 30, TAKE);
    d.sleep(30);
    assert_eq!(brought(&mut d), [(getter, vec![b"x".to_vec()])]);
}

#[test]
fn one_that_gives_up_no_longer_stands_before_others() {
    let mut d = bounded(10, 0);
    put_all(&mut d, &[&b"x"[..]; 8]);
    let whole = wait_to_put(&mut d, 10, &[&b"y"[..]; 3]);
    let small = wait_to_put(&mut d, 100, &[b"z"]);
    d.sleep(10);
    let told = answers(&mut d);
    assert_eq!((told[0].0, told[0].1.status), (whole, Status::QueueFull));
    assert_eq!(told[1..], [(small, Answer::ok(8))]);
}

#[test]
fn who_hangs_up_gets_nothing_and_puts_nothing() {
    let mut d = bounded(1, 0);
    let gone = wait_to_get(&mut d, 1000, TAKE);
    let stays = wait_to_get(&mut d, 1000, TAKE);
    assert!(d.structure.cancel(gone));
    assert!(!d.structure.cancel(gone), "it waits no longer");
    put(&mut d, b"a");
    assert_eq!(brought(&mut d), [(stays, vec![b"a".to_vec()])]);
    put(&mut d, b"b");
    let gone = wait_to_put(&mut d, 1000, &[b"c"]);
    let stays = wait_to_put(&mut d, 1000, &[b"d"]);
    let both = d.structure.bytes_used();
    assert!(d.structure.cancel(gone));
    assert!(d.structure.bytes_used() < both, "nothing is kept of it");
    assert_eq!(take(&mut d, 1), [b"b"]);
    assert_eq!(answers(&mut d), [(stays, Answer::ok(2))]);
    assert!(!d.structure.cancel(stays), "it was answered");
    assert_eq!(take(&mut d, 1), [b"d"]);
    let fill = d.reserve(Op::QueuePut, &[], 20_000).unwrap();
    assert!(!d.structure.cancel(fill), "it is in progress");
    assert!(!d.structure.cancel(Ticket(12_345)));
}

#[test]
fn who_hangs_up_no_longer_stands_before_others() {
    let mut d = bounded(10, 0);
    put_all(&mut d, &[&b"x"[..]; 8]);
    let whole = wait_to_put(&mut d, 1000, &[&b"y"[..]; 3]);
    let small = wait_to_put(&mut d, 1000, &[b"z"]);
    assert!(d.structure.cancel(whole));
    assert!(d.structure.deadline().unwrap() <= d.now, "there is something to do at once");
    d.sleep(0);
    assert_eq!(answers(&mut d), [(small, Answer::ok(8))]);
    assert!(d.structure.deadline().is_none_or(|due| due > d.now), "and it is done");
}

#[test]
fn the_deadline_is_that_of_the_first_of_all() {
    let mut d = bounded(2, 0);
    let after = |d: &Queue, ms| Some(d.now + Duration::from_millis(ms));
    put(&mut d, b"x");
    reserve_one(&mut d, 20);
    wait_to_get(&mut d, 30, TAKE);
    assert_eq!(d.structure.deadline(), after(&d, 20), "a reservation runs out");
    wait_to_get(&mut d, 10, TAKE);
    assert_eq!(d.structure.deadline(), after(&d, 10), "one of the waits ends");
    d.sleep(10);
    assert_eq!(d.structure.deadline(), after(&d, 10));
    d.sleep(10);
    assert!(d.structure.deadline().is_none_or(|due| due > d.now));
    assert_eq!(answers(&mut d).len(), 2);
}

#[test]
fn as_many_wait_as_there_is_a_limit_for() {
    let mut d = queue();
    for _ in 0..65_536 {
        wait_to_get(&mut d, 10, TAKE);
    }
    let until = d.now + Duration::from_millis(10);
    let (_, outcome) = d.submit_until(until, Op::QueueGet, &encoded(TAKE), &[]);
    let Outcome::Done(answer) = outcome else { panic!("one more waits") };
    assert_eq!((answer.status, answer.value > 0), (Status::Busy, true));
    d.sleep(10);
    assert_eq!(answers(&mut d).len(), 65_536);
    assert_eq!(d.structure.bytes_used(), 0);
    wait_to_get(&mut d, 10, TAKE);
}

#[test]
fn payloads_that_wait_take_a_bounded_memory() {
    let mut d = bounded(1, 0);
    put(&mut d, b"x");
    let before = d.structure.bytes_used();
    let until = d.now + Duration::from_millis(100);
    let (mut waiting, mut last) = (0, Outcome::Parked);
    while last == Outcome::Parked && waiting < 100 {
        last = d.submit_until(until, Op::QueuePut, &[], &[1; 1000]).1;
        waiting += 1;
    }
    let Outcome::Done(answer) = last else { panic!("everything was kept") };
    assert_eq!((answer.status, answer.value > 0), (Status::Busy, true));
    assert!((25..=33).contains(&waiting), "{waiting}");
    let beside = d.structure.bytes_used() - before;
    assert!(beside >= (waiting - 1) * 1000, "they are charged to the block");
    assert!(beside <= SIZE as u64 / 8);
    d.sleep(100);
    assert_eq!(d.structure.bytes_used(), before);
    assert_eq!(answers(&mut d).len() as u64, waiting - 1);
    wait_to_put(&mut d, 10, &[&[1; 20_000]]);
    take(&mut d, 1);
    assert_eq!(answers(&mut d).len(), 1);
    assert_eq!(take(&mut d, 1), [[1; 20_000]]);
    assert_eq!(d.structure.bytes_used(), 0);
}

// -------------------------------------------------------------------------------------- changes

#[test]
fn changes_are_told_in_their_order() {
    let mut d = bounded(4, 0);
    let data = |items| Event::Changed(Change::Data { items });
    let space = |items| Event::Changed(Change::Space { items });
    put(&mut d, b"x");
    assert_eq!(d.events(), [], "there are no subscriptions");
    d.watch(true);
    put_all(&mut d, &[b"a", b"b", b"c"]);
    assert_eq!(d.events(), [data(3)]);
    take(&mut d, 2);
    assert_eq!(d.events(), [space(2)]);
    get(&mut d, GetArgs { items: 2, reserve_ms: 10, ..TAKE });
    assert_eq!(d.events(), [], "reserved items make no room");
    ack(&mut d, AckAction::GiveBack, 0, &[(2, 1)]);
    assert_eq!(d.events(), [data(1)]);
    d.sleep(10);
    assert_eq!(d.events(), [data(1)], "the other was returned by itself");
    let items = [reserve_one(&mut d, 10), reserve_one(&mut d, 10)];
    ack(&mut d, AckAction::Extend, 1000, &items);
    assert_eq!(d.events(), []);
    ack(&mut d, AckAction::Done, 0, &items);
    assert_eq!(d.events(), [space(1), space(1)]);
    let ticket = d.reserve(Op::QueuePut, &[], 20_000).unwrap();
    assert_eq!(d.events(), [], "a notice is never early");
    d.feed(ticket, &[1; 20_000]);
    d.commit(ticket);
    assert_eq!(d.events(), [data(1)]);
    d.run(Op::QueueClose, &[], &[]);
    assert_eq!(d.events()[0], Event::Changed(Change::Close));
    d.watch(false);
    take(&mut d, 1);
    assert_eq!(d.events(), []);
}

#[test]
fn what_a_waiting_get_takes_is_told_as_put_and_taken() {
    let mut d = queue();
    d.watch(true);
    wait_to_get(&mut d, 1000, TAKE);
    put(&mut d, b"x");
    let changes: Vec<_> =
        d.events().into_iter().filter(|e| matches!(e, Event::Changed(_))).collect();
    let expected = [Change::Data { items: 1 }, Change::Space { items: 1 }];
    assert_eq!(changes, expected.map(Event::Changed));
}
