//! A block that starts again empty, and one with a successor.

use super::*;

#[test]
fn an_empty_block_begins_anew() {
    let mut d = queue();
    for round in 0..20u64 {
        for i in 0..4 {
            assert_eq!(put(&mut d, &pattern(i, LARGEST / 2)), Answer::ok(4 * round + i));
        }
        assert!(d.structure.bytes_used() > 2 * LARGEST as u64 - 10);
        assert_eq!(take(&mut d, 1), [pattern(0, LARGEST / 2)]);
        let held = reserve_one(&mut d, 1000);
        assert_eq!(held, (4 * round + 1, 1));
        assert_eq!(take(&mut d, 1), [pattern(2, LARGEST / 2)]);
        assert_eq!(take(&mut d, 1), [pattern(3, LARGEST / 2)]);
        assert!(settle(&mut d, held));
        assert!(!settle(&mut d, held), "it belongs to an earlier round");
        assert_eq!(d.structure.bytes_used(), 0);
        assert!(!d.structure.wants_successor());
    }
    let (put, counts) = counts(&mut d);
    assert_eq!((put, counts.taken, counts.bytes_put), (80, 80, 80 * (LARGEST as u64 / 2)));
}

/// Whether a large item can be put at the very start of the block.
fn begins_at_the_start(d: &mut Queue) -> bool {
    put(d, b"probe");
    let peek = [1u32.to_le_bytes(), 99u32.to_le_bytes()].concat();
    let place = d.run(Op::QueuePeek, &peek, &[]).payload;
    assert_eq!(take(d, 1), [b"probe"]);
    place == Payload::Block(0..5)
}

#[test]
fn nothing_is_reused_while_somebody_reads_it() {
    let mut d = queue();
    let item = pattern(5, LARGEST);
    put(&mut d, &item);
    put(&mut d, b"behind");
    let answer = get(&mut d, TAKE);
    let kept = answer.clone();
    assert_eq!(take(&mut d, 1), [b"behind"]);
    assert!(!begins_at_the_start(&mut d));
    drop(answer);
    assert!(!begins_at_the_start(&mut d), "the record of the answer still reads it");
    for i in 0..5 {
        put(&mut d, &pattern(i, LARGEST - 100));
    }
    assert_eq!(take(&mut d, 5).len(), 5);
    assert_eq!(d.bytes(&kept), item);
    assert_eq!(d.structure.bytes_used(), 0, "nothing is in the queue");
    drop(kept);
    assert_eq!(get(&mut d, TAKE).status, Status::QueueEmpty);
    assert!(begins_at_the_start(&mut d));
}

#[test]
fn what_empties_the_block_does_not_keep_it_from_beginning_anew() {
    let mut d = queue();
    for round in 0..5 {
        let item = pattern(round, LARGEST);
        put(&mut d, &item);
        let answer = get(&mut d, TAKE);
        assert_eq!(d.bytes(&answer), item);
        assert!(begins_at_the_start(&mut d), "the answer has bytes of its own");
    }
}

#[test]
fn nothing_is_reused_while_it_may_come_back() {
    let mut d = queue();
    put(&mut d, b"x");
    let item = reserve_one(&mut d, 10);
    assert!(!begins_at_the_start(&mut d));
    d.sleep(10);
    put(&mut d, b"y");
    assert_eq!(take(&mut d, 1), [b"x"]);
    assert_eq!(take(&mut d, 1), [b"y"]);
    assert!(begins_at_the_start(&mut d));
    assert!(!settle(&mut d, item));
}

#[test]
fn nothing_is_reused_while_something_arrives() {
    let mut d = queue();
    put(&mut d, b"x");
    let ticket = d.reserve(Op::QueuePut, &[], 20_000).unwrap();
    assert_eq!(take(&mut d, 1), [b"x"]);
    d.feed(ticket, &pattern(1, 20_000));
    assert_eq!(d.commit(ticket), Outcome::Done(Answer::ok(1)));
    assert_eq!(take(&mut d, 1), [pattern(1, 20_000)]);
    let ticket = d.reserve(Op::QueuePut, &[], 20_000).unwrap();
    d.abort(ticket);
    assert!(begins_at_the_start(&mut d), "an abort leaves an empty block");
}

// ---------------------------------------------------------------------------------- many blocks

#[test]
fn a_full_block_is_sealed_and_sends_puts_on() {
    let mut d = queue();
    let through = fill_up(&mut d);
    assert!(d.structure.wants_successor());
    assert!(!d.structure.wants_successor(), "once");
    assert_eq!(put(&mut d, b"more").status, Status::Busy, "it was not answered yet");
    let none = Successor::Denied(Status::OutOfMemory, "none is free".into());
    d.set_successor(none);
    refused(&put(&mut d, b"more"), Status::OutOfMemory, "none is free");
    assert!(d.structure.wants_successor(), "it requests again");
    grant_successor(&mut d);
    assert_eq!(d.sealed(), None, "only data that does not fit seals it");
    assert_eq!(put(&mut d, b"more"), moved(through));
    let bytes = through * LARGEST as u64;
    let successor = Some(SUCCESSOR.to_vec());
    assert_eq!(d.events(), [Event::Sealed { length: through, bytes, successor }]);
    assert_eq!(put(&mut d, b"more"), moved(through));
    assert_eq!(put(&mut d, b""), moved(through));
    assert_eq!(d.reserve(Op::QueuePut, &[], 20_000), Err(moved(through)));
    assert_eq!(d.run(Op::QueueClose, &[], &[]), moved(through));
    assert_eq!(d.run(Op::QueueLength, &[1], &[]), moved(through));
    assert_eq!(counts(&mut d).0, through, "each block answers for itself");
    assert!(!d.structure.wants_successor());
    assert_eq!(d.events(), []);
}

#[test]
fn a_sealed_block_sends_gets_on_when_nothing_is_left() {
    let mut d = queue();
    let through = seal(&mut d);
    for i in 0..through {
        assert_eq!(drained(&d.events()), 0);
        assert_eq!(take(&mut d, 1), [pattern(i, LARGEST)]);
    }
    assert_eq!(d.events(), [Event::Drained]);
    let peek = [1u32.to_le_bytes(), 1u32.to_le_bytes()].concat();
    for _ in 0..2 {
        assert_eq!(get(&mut d, TAKE), moved(through));
        assert_eq!(d.run(Op::QueuePeek, &peek, &[]), moved(through));
    }
    let until = d.now + Duration::from_millis(9);
    let (_, outcome) = d.submit_until(until, Op::QueueGet, &encoded(TAKE), &[]);
    assert_eq!(outcome, Outcome::Done(moved(through)), "no items ever arrive here");
    d.sleep(1000);
    assert_eq!(d.events(), [], "it says once that it is empty");
}

#[test]
fn a_sealed_block_is_not_empty_before_everything_is_settled() {
    let mut d = queue();
    let through = seal(&mut d);
    let all = GetArgs { items: through as u32, reserve_ms: 100, ..TAKE };
    let answer = get(&mut d, all);
    assert_eq!(answer.value, through);
    assert_eq!(get(&mut d, TAKE), moved(through), "there may be more behind");
    let done: Vec<_> = (1..through).map(|number| (number, 1)).collect();
    assert_eq!(ack(&mut d, AckAction::Done, 0, &done), vec![1; done.len()]);
    assert_eq!(d.events(), []);
    d.sleep(100);
    assert_eq!(drained(&d.events()), 0, "the last one was returned");
    let item = reserve_one(&mut d, 100);
    assert_eq!(item, (0, 2));
    assert!(settle(&mut d, item));
    assert_eq!(d.events(), [Event::Drained]);
}

#[test]
fn those_who_wait_are_sent_on_when_the_block_is_sealed() {
    let mut d = bounded(0, 5 * LARGEST as u64);
    for i in 0..5 {
        put(&mut d, &pattern(i, LARGEST));
    }
    let item = reserve_one(&mut d, 1000);
    for i in 1..5 {
        assert_eq!(take(&mut d, 1), [pattern(i, LARGEST)]);
    }
    for i in 5..8 {
        put(&mut d, &pattern(i, LARGEST));
        assert_eq!(take(&mut d, 1), [pattern(i, LARGEST)]);
    }
    let getter = wait_to_get(&mut d, 1000, TAKE);
    let patient = wait_to_get(&mut d, 1000, GetArgs { stay: true, ..TAKE });
    grant_successor(&mut d);
    assert_eq!(put(&mut d, &[1; 300]), moved(8));
    assert_eq!(answers(&mut d), [(getter, moved(8))]);
    assert_eq!(ack(&mut d, AckAction::GiveBack, 0, &[item]), [1]);
    assert_eq!(brought(&mut d), [(patient, vec![pattern(0, LARGEST)])]);
}

#[test]
fn puts_that_wait_are_sent_on_when_the_first_seals_the_block() {
    let mut d = bounded(8, 0);
    fill_up(&mut d);
    let first = wait_to_put(&mut d, 1000, &[&[1; 300]]);
    let second = wait_to_put(&mut d, 1000, &[b"x"]);
    grant_successor(&mut d);
    assert_eq!(answers(&mut d), [], "the queue is at its bound, wherever its tail is");
    take(&mut d, 1);
    assert_eq!(answers(&mut d), [(first, moved(8)), (second, moved(8))]);
    assert_eq!(d.sealed(), Some((8, false)));
}

#[test]
fn a_large_payload_that_seals_the_block_sends_those_who_wait_on() {
    let mut d = bounded(100, 0);
    let through = fill_up(&mut d);
    let item = reserve_one(&mut d, 1000);
    take(&mut d, through as u32 - 1);
    let getter = wait_to_get(&mut d, 1000, TAKE);
    grant_successor(&mut d);
    assert_eq!(d.reserve(Op::QueuePut, &[], LARGEST), Err(moved(through)));
    assert_eq!(d.sealed(), Some((through, false)));
    let taken = Event::Taken { items: through - 1, bytes: (through - 1) * LARGEST as u64 };
    assert_eq!(d.events(), [Event::Answered(getter, moved(through)), taken]);
    assert!(settle(&mut d, item));
    assert_eq!(drained(&d.events()), 1);
}

#[test]
fn who_stays_is_told_that_nothing_can_come_back() {
    let mut d = queue();
    let through = seal(&mut d);
    let items = through as u32;
    get(&mut d, GetArgs { items, reserve_ms: 100, ..TAKE });
    let stay = GetArgs { stay: true, ..TAKE };
    assert_eq!(get(&mut d, stay).status, Status::QueueEmpty, "not moved");
    assert_eq!(get(&mut d, TAKE), moved(through));
    let patient = wait_to_get(&mut d, 10, stay);
    d.sleep(10);
    assert_eq!(statuses(&mut d), [(patient, Status::QueueEmpty)]);
    let patient = wait_to_get(&mut d, 1000, stay);
    let done: Vec<_> = (0..through).map(|number| (number, 1)).collect();
    ack(&mut d, AckAction::Done, 0, &done);
    assert_eq!(statuses(&mut d), [(patient, Status::QueueEmpty)], "nothing is left to wait for");
    let until = d.now + Duration::from_millis(9);
    let (_, outcome) = d.submit_until(until, Op::QueueGet, &encoded(stay), &[]);
    let Outcome::Done(answer) = outcome else { panic!("it waits for nothing") };
    assert_eq!(answer.status, Status::QueueEmpty);
}

#[test]
fn a_sealed_bounded_block_tells_what_is_taken_from_it() {
    let mut d = bounded(100, 0);
    let one = LARGEST as u64;
    put(&mut d, b"before");
    take(&mut d, 1);
    assert_eq!(d.events(), [], "a tail keeps its bound itself");
    for _ in 0..8 {
        put(&mut d, &vec![1; LARGEST]);
    }
    grant_successor(&mut d);
    assert_eq!(put(&mut d, &[1; 300]), moved(9));
    assert_eq!(d.sealed(), Some((9, false)));
    let taken = |items: u64| Event::Taken { items, bytes: 6 + (items - 1) * one };
    assert_eq!(
        d.events(),
        [Event::Taken { items: 1, bytes: 6 }],
        "items taken before are counted, too"
    );
    take(&mut d, 1);
    let item = reserve_one(&mut d, 1000);
    assert_eq!(d.events(), [], "the last has not arrived");
    d.taken_received();
    assert_eq!(d.events(), [taken(2)], "reserved items are not taken");
    d.taken_received();
    assert_eq!(d.events(), [], "there is nothing new");
    assert!(settle(&mut d, item));
    assert_eq!(d.events(), [taken(3)]);
    take(&mut d, 9);
    assert_eq!(d.events(), [Event::Drained]);
    d.taken_received();
    assert_eq!(d.events(), [taken(9)]);
    d.taken_received();
    assert_eq!(d.events(), []);
}

#[test]
fn others_do_not_tell_what_is_taken_from_them() {
    let mut d = queue();
    let through = seal(&mut d);
    take(&mut d, through as u32);
    assert_eq!(d.events(), [Event::Drained]);
    let mut d = bounded(10, 0);
    put_all(&mut d, &[&b"x"[..]; 10]);
    d.run(Op::QueueClose, &[], &[]);
    d.events();
    take(&mut d, 10);
    assert_eq!(d.events(), [], "no tail has to know, and a closed queue's last block stays");
}
