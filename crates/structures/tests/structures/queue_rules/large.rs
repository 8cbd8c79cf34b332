//! Items in extents: adopted, delivered alone, dropped when they are acknowledged.

use super::*;
use honeycomb_block::{Backing, Reclaimer};
use honeycomb_structures::{ExtentRef, Fetched, Structure};
use honeycomb_types::limits::{EXTENT_REF, extents_per_value};
use honeycomb_types::{BlockAt, BlockId, ServerId, ShardIx};
use honeycomb_wire::Field;
use honeycomb_wire::extents::{PutExtents, StoredWhen, extents, put_extents};
use honeycomb_wire::queue::{GetExtentsArgs, LargeItem, large_items};

/// Extents with these lengths, which belong to no other value.
fn list(value: u64, lengths: &[u32]) -> Vec<ExtentRef> {
    let block = BlockId::new(ServerId(3), ShardIx(1), value as u32);
    let at = BlockAt::of(block.0, 7);
    lengths.iter().enumerate().map(|(n, len)| ExtentRef { at, id: n as u64, len: *len }).collect()
}

fn submit(d: &mut Queue, list: &[ExtentRef], wait_ms: u64) -> (Ticket, Outcome) {
    let list = put_extents(list);
    let (args, payload) = PutExtents { when: StoredWhen::Always, key: b"", list: &list }.encode();
    let until = d.now + Duration::from_millis(wait_ms);
    d.submit_until(until, Op::QueuePutExtents, &args, &payload)
}

/// A put that waits for the ownership of its extents.
fn begin(d: &mut Queue, list: &[ExtentRef]) -> Ticket {
    let (ticket, outcome) = submit(d, list, 0);
    assert_eq!(outcome, Outcome::Parked);
    assert_eq!(d.events(), [Event::Adopt(ticket, list.to_vec())]);
    ticket
}

fn put_list(d: &mut Queue, list: &[ExtentRef], owner: u64) -> Answer {
    let ticket = begin(d, list);
    d.adopted(ticket, owner, Ok(()));
    let (answered, answer) = d.completed().expect("it is answered at once");
    assert_eq!(answered, ticket);
    answer
}

/// The refusal of a put that is not parked, and whether its extents are dropped.
fn refusal(d: &mut Queue, list: &[ExtentRef], wait_ms: u64) -> (Status, bool) {
    let (_, outcome) = submit(d, list, wait_ms);
    let Outcome::Done(answer) = outcome else { panic!("it was parked") };
    let dropped = d.events().contains(&Event::DropExtents(0, list.to_vec()));
    (answer.status, dropped)
}

fn get_list(d: &mut Queue, reserve_ms: u32) -> Answer {
    d.run(Op::QueueGetExtents, &GetExtentsArgs { reserve_ms, stay: false }.encode(), &[])
}

fn named(d: &Queue, answer: &Answer) -> ((u64, u32), Vec<ExtentRef>) {
    assert_eq!(answer.status, Status::Ok);
    let LargeItem { number, deliveries } = LargeItem::decode(&answer.args).unwrap();
    ((number, deliveries), extents(&d.bytes(answer)).unwrap())
}

fn lists(d: &mut Queue, from: u64) -> Vec<(u64, Vec<ExtentRef>)> {
    let answer = d.run(Op::QueueLists, &from.encode(), &[]);
    assert_eq!((answer.status, answer.value), (Status::Ok, 0));
    let page = d.bytes(&answer);
    let items = large_items(&page).unwrap();
    items.into_iter().map(|(number, list)| (number, extents(list).unwrap())).collect()
}

#[test]
fn large_item_is_delivered_alone_and_dropped_when_it_is_acknowledged() {
    let mut d = queue();
    let (first, second) = (list(1, &[30_000, 30_000, 7]), list(2, &[1]));
    put_all(&mut d, &[b"a", b"b"]);
    assert_eq!(put_list(&mut d, &first, 11), Answer::ok(2));
    assert_eq!(put_list(&mut d, &second, 12), Answer::ok(3));
    assert_eq!(put(&mut d, b"c"), Answer::ok(4));
    assert_eq!(counts(&mut d).1.bytes_put, 3 + 60_007 + 8 + 28, "a list counts its own bytes");
    assert_eq!(d.structure.bytes_used(), 3 + (8 + 3 * 28) + (8 + 28) + 5 * 4);
    assert_eq!(lists(&mut d, 0), [(2, first.clone()), (3, second.clone())]);
    assert_eq!(lists(&mut d, 3), [(3, second.clone())]);

    assert_eq!(get_list(&mut d, 1000).status, Status::QueueEmpty, "an ordinary item is next");
    assert_eq!(take(&mut d, 100), [b"a", b"b"]);
    refused(&get(&mut d, TAKE), Status::ValueTooLarge, "in extents");
    let peek = [1u32.to_le_bytes(), 99u32.to_le_bytes()].concat();
    refused(&d.run(Op::QueuePeek, &peek, &[]), Status::ValueTooLarge, "in extents");
    let only_named = get_list(&mut d, 0);
    assert_eq!(named(&d, &only_named), ((2, 0), first.clone()));
    let reserved = get_list(&mut d, 1000);
    assert_eq!(named(&d, &reserved), ((2, 1), first.clone()));
    let other = get_list(&mut d, 1000);
    assert_eq!(named(&d, &other), ((3, 1), second.clone()));
    assert_eq!(take(&mut d, 100), [b"c"]);
    assert_eq!(d.events(), []);

    assert_eq!(ack(&mut d, AckAction::GiveBack, 0, &[(2, 1)]), [1]);
    assert!(!settle(&mut d, (2, 1)), "it is no longer held");
    let again = get_list(&mut d, 10);
    assert_eq!(named(&d, &again), ((2, 2), first.clone()));
    d.sleep(10);
    let again = get_list(&mut d, 1000);
    assert_eq!(named(&d, &again), ((2, 3), first.clone()));
    assert!(settle(&mut d, (2, 3)) && settle(&mut d, (3, 1)));
    assert_eq!(d.events(), [Event::DropExtents(11, first), Event::DropExtents(12, second)]);
    assert_eq!(d.structure.bytes_used(), 0);
    let (put, counts) = counts(&mut d);
    assert_eq!((put, counts.taken), (5, 5));
    assert_eq!(counts.bytes_taken, counts.bytes_put);
    assert_eq!(lists(&mut d, 0), []);
}

#[test]
fn refused_list_is_dropped_unless_its_caller_repeats_it() {
    let one = list(1, &[100]);
    let mut d = bounded(1, 50_000);
    assert_eq!(refusal(&mut d, &list(2, &[30_000, 30_000]), 0), (Status::InvalidArgument, true));
    assert_eq!(put_list(&mut d, &one, 1), Answer::ok(0));
    assert_eq!(refusal(&mut d, &one, 0), (Status::QueueFull, false));
    assert_eq!(refusal(&mut d, &one, 10), (Status::Busy, false));
    let mut d = second(1, 0);
    assert_eq!(refusal(&mut d, &one, 0), (Status::Busy, false), "the items ahead are unknown");
    let mut d = queue();
    d.run(Op::QueueClose, &[], &[]);
    assert_eq!(refusal(&mut d, &one, 0), (Status::QueueClosed, true));
    let mut d = queue();
    seal(&mut d);
    assert_eq!(refusal(&mut d, &one, 0), (Status::Moved, false));

    // These lists name no value.
    let mut d = queue();
    let most = extents_per_value(SIZE as u64) as usize;
    assert_eq!(refusal(&mut d, &list(1, &vec![9; most + 1]), 0), (Status::ValueTooLarge, false));
    for wrong in [&[][..], &[5, 0], &[SIZE as u32 / 8 + 1]] {
        assert_eq!(refusal(&mut d, &list(1, wrong), 0), (Status::InvalidArgument, false));
    }
    assert_eq!(put_list(&mut d, &list(1, &vec![9; most]), 1), Answer::ok(0));
    let long = d.reserve(Op::QueuePutExtents, &[0], 28 * 5000).unwrap_err();
    refused(&long, Status::ValueTooLarge, "140000 bytes");
    assert_eq!(d.events(), []);
}

#[test]
fn list_that_cannot_be_stored_once_it_is_adopted_is_dropped_by_its_owner() {
    let one = list(1, &[100]);
    let mut d = queue();
    let ticket = begin(&mut d, &one);
    d.adopted(ticket, 5, Err((Status::ExtentGone, "gone".into())));
    let gone = Answer::refuse(Status::ExtentGone, "gone");
    assert_eq!(
        d.events(),
        [Event::DropExtents(5, one.clone()), Event::Answered(ticket, gone)],
        "the existing extents were adopted"
    );
    let ticket = begin(&mut d, &one);
    d.adopted(ticket, 6, Err((Status::Busy, "later".into())));
    assert!(matches!(&d.events()[..], [Event::Answered(_, busy)] if busy.status == Status::Busy));

    // The block is full by now, and another put seals it.
    let ticket = begin(&mut d, &one);
    let through = seal(&mut d);
    d.adopted(ticket, 7, Ok(()));
    assert_eq!(
        d.events(),
        [Event::DropExtents(7, one.clone()), Event::Answered(ticket, moved(through))]
    );

    // Another put has taken the last room of the bound: the list waits a moment for room, and no longer.
    let mut d = bounded(2, 0);
    let (waits, gives_up) = (begin(&mut d, &one), begin(&mut d, &list(2, &[5])));
    assert_eq!(refusal(&mut d, &list(3, &[5]), 0), (Status::QueueFull, false), "two are under way");
    put(&mut d, b"first");
    put(&mut d, b"full");
    d.adopted(waits, 8, Ok(()));
    assert_eq!(d.events(), []);
    let due = Waits::deadline(&d.structure).expect("it is retried");
    assert!(due.since(d.now) <= Duration::from_millis(10));
    take(&mut d, 1);
    d.sleep(10);
    assert_eq!(statuses(&mut d), [(waits, Status::Ok)]);
    d.adopted(gives_up, 9, Ok(()));
    d.sleep(2000);
    assert!(matches!(&d.events()[..], [Event::DropExtents(9, _), Event::Answered(t, busy)]
        if *t == gives_up && busy.status == Status::Busy));
    assert_eq!(left(&mut d), 2);
}

#[test]
fn getters_that_wait_learn_of_a_large_item() {
    let mut d = queue();
    let getters = [0; 3].map(|_| wait_to_get(&mut d, 1000, TAKE));
    let ticket = begin(&mut d, &list(1, &[9]));
    d.adopted(ticket, 1, Ok(()));
    let mut told = statuses(&mut d);
    told.sort_by_key(|(ticket, _)| ticket.0);
    let expected = getters.map(|getter| (getter, Status::ValueTooLarge));
    assert_eq!(told, [&expected[..], &[(ticket, Status::Ok)]].concat());
    assert_eq!(left(&mut d), 1);
}

#[test]
fn list_behind_a_payload_that_arrives_waits_for_it_and_counts() {
    let mut d = bounded(0, 1000);
    let arriving = d.reserve(Op::QueuePut, &[], 100).unwrap();
    let ticket = begin(&mut d, &list(1, &[850]));
    d.adopted(ticket, 1, Ok(()));
    assert_eq!(d.events(), []);
    assert_eq!(put(&mut d, &[0; 51]).status, Status::QueueFull, "its extents count");
    assert_eq!(fill(&mut d, arriving, &[3; 100]), Outcome::Done(Answer::ok(0)));
    assert_eq!(d.completed(), Some((ticket, Answer::ok(1))));
    assert_eq!(put(&mut d, &[0; 51]).status, Status::QueueFull);
    assert_eq!(put(&mut d, &[0; 50]), Answer::ok(2));
    assert_eq!(counts(&mut d).1.bytes_put, 1000);
}

#[test]
fn list_is_replaced_by_another_with_the_same_bytes_while_it_is_there() {
    let mut d = queue();
    let (old, new) = (list(1, &[500, 20]), list(2, &[500, 20]));
    put(&mut d, b"first");
    put_list(&mut d, &old, 1);
    put_list(&mut d, &list(9, &[1]), 9);
    let replace = |d: &mut Queue, number: u64, old: &[ExtentRef], new: &[ExtentRef]| {
        let (old, list, key) = (put_extents(old), put_extents(new), number.to_le_bytes());
        let put = PutExtents { when: StoredWhen::Still(&old), key: &key, list: &list };
        let (args, payload) = put.encode();
        d.submit(Op::QueuePutExtents, &args, &payload)
    };
    let wrong = [list(3, &[500, 21]), list(4, &[520])];
    for wrong in wrong {
        let (_, outcome) = replace(&mut d, 1, &old, &wrong);
        assert!(matches!(outcome, Outcome::Done(a) if a.status == Status::BadFrame));
        assert_eq!(d.events(), [], "its length would count wrongly");
    }
    for (number, old) in [(0, &old), (2, &old), (3, &old), (1, &new)] {
        let (_, outcome) = replace(&mut d, number, old, &new);
        assert!(matches!(outcome, Outcome::Done(a) if a.status == Status::KeyNotFound));
        assert_eq!(d.events(), [Event::DropExtents(0, new.clone())]);
    }
    let (ticket, outcome) = replace(&mut d, 1, &old, &new);
    assert_eq!(outcome, Outcome::Parked);
    d.adopted(ticket, 2, Ok(()));
    let events = d.events();
    assert!(events.contains(&Event::DropExtents(1, old.clone())), "{events:?}");
    assert!(events.contains(&Event::Answered(ticket, Answer::ok(1))), "{events:?}");
    assert_eq!(lists(&mut d, 0)[0], (1, new.clone()));

    // A consumer that has reserved it finds the new extents. An item that was taken is not replaced.
    take(&mut d, 1);
    let (held, _) = {
        let answer = get_list(&mut d, 1000);
        named(&d, &answer)
    };
    let (ticket, _) = replace(&mut d, 1, &new, &old);
    d.events();
    assert!(settle(&mut d, held));
    assert_eq!(d.events(), [Event::DropExtents(2, new)]);
    d.adopted(ticket, 3, Ok(()));
    let events = d.events();
    assert!(events.contains(&Event::DropExtents(3, old)), "{events:?}");
    assert!(matches!(&events[..], [_, Event::Answered(_, a)] if a.status == Status::KeyNotFound));
}

#[test]
fn flush_names_the_extents_of_large_items() {
    let mut d = queue();
    let one = list(1, &[30_000, 7]);
    put(&mut d, b"ab");
    put_list(&mut d, &one, 1);
    put(&mut d, b"c");
    let large = put_extents(&one);
    let flagged = (large.len() as u32 | 1 << 31).to_le_bytes();
    let expected = [&[2, 0, 0, 0][..], b"ab", &flagged, &large, &[1, 0, 0, 0], b"c"].concat();
    assert_eq!(d.flushed(), (expected, 3));
    assert_eq!(large.len(), 2 * EXTENT_REF);
}

/// Regression: the refusal named the length of the item, and read its bytes, which were not there.
#[test]
fn large_item_of_a_block_in_a_lower_tier_is_named_by_the_parts_that_were_read() {
    let mut d = queue();
    for i in 0..4 {
        put(&mut d, &pattern(i, LARGEST));
    }
    put_list(&mut d, &list(1, &[30_000, 7]), 1);
    take(&mut d, 4);
    let read = |op: Op, args: &[u8]| {
        let content = d.structure.content().unwrap();
        let reads = content.lower_tier_reads().unwrap();
        let mut parts = Fetched::within(usize::MAX);
        loop {
            let answer = reads.read(&parts, op, args, &[]);
            let wanted = parts.take_wanted();
            if wanted.is_empty() {
                return answer;
            }
            for range in wanted {
                let bytes = d.block.slice(range.clone());
                let mut part = Backing::map(SIZE, &Reclaimer::inline()).unwrap();
                part.slice_mut(0..bytes.len()).copy_from_slice(bytes);
                parts.add(range.start, part);
            }
        }
    };
    let peek = [1u32.to_le_bytes(), 99u32.to_le_bytes()].concat();
    refused(&read(Op::QueuePeek, &peek), Status::ValueTooLarge, "in extents");
    let lists = read(Op::QueueLists, &[0; 8]);
    let page = d.bytes(&lists);
    let named = large_items(&page).unwrap();
    assert_eq!(named, [(4, &put_extents(&list(1, &[30_000, 7]))[..])]);
}
