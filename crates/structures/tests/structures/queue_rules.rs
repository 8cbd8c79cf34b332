mod blocks;
mod large;
mod reservations;
mod waiting;

use crate::{Driver, pattern};
use honeycomb_structures::{
    Answer, Event, Growth, Operation, Ops, Outcome, Payload, QueueBlock, QueueBounds, Streaming,
    Successor, Ticket, Waits,
};
use honeycomb_types::Time;
use honeycomb_types::limits::{QUEUE_BATCH_MAX, RESERVE_MAX_MS};
use honeycomb_wire::notice::Change;
use honeycomb_wire::queue::{AckAction, AckArgs, Counts, GetArgs, Items, put_lengths};
use honeycomb_wire::{Op, Status};
use std::time::Duration;

type Queue = Driver<QueueBlock>;

const SIZE: usize = 256 * 1024;
/// The largest item: an eighth of the block, of which its directory entry takes four bytes.
const LARGEST: usize = SIZE / 8 - 4;
/// Items of this size are sent from their place in the block.
const LARGE: usize = 16 * 1024;

fn queue() -> Queue {
    Driver::new(SIZE, QueueBlock::new(SIZE, QueueBounds::NONE, true))
}

/// A queue of one block so far; 0 for no bound.
fn bounded(items: u64, bytes: u64) -> Queue {
    Driver::new(SIZE, QueueBlock::new(SIZE, QueueBounds::from_wire(items, bytes), true))
}

/// The second block of a bounded queue.
fn second(items: u64, bytes: u64) -> Queue {
    Driver::new(SIZE, QueueBlock::new(SIZE, QueueBounds::from_wire(items, bytes), false))
}

fn batch(items: &[&[u8]]) -> (Vec<u8>, Vec<u8>) {
    let mut args = Vec::new();
    put_lengths(items, &mut args);
    (args, items.concat())
}

fn put(d: &mut Queue, item: &[u8]) -> Answer {
    d.run(Op::QueuePut, &[], item)
}

fn put_all(d: &mut Queue, items: &[&[u8]]) -> Answer {
    let (args, payload) = batch(items);
    d.run(Op::QueuePut, &args, &payload)
}

/// A put that waits, for at most so long.
fn wait_to_put(d: &mut Queue, ms: u64, items: &[&[u8]]) -> Ticket {
    let (args, payload) = batch(items);
    let until = d.now + Duration::from_millis(ms);
    let (ticket, outcome) = d.submit_until(until, Op::QueuePut, &args, &payload);
    assert_eq!(outcome, Outcome::Parked);
    ticket
}

const TAKE: GetArgs = GetArgs { items: 1, bytes: u32::MAX, reserve_ms: 0, stay: false };

fn encoded(args: GetArgs) -> Vec<u8> {
    let mut out = Vec::new();
    args.put(&mut out);
    out
}

fn get(d: &mut Queue, args: GetArgs) -> Answer {
    d.run(Op::QueueGet, &encoded(args), &[])
}

fn wait_to_get(d: &mut Queue, ms: u64, args: GetArgs) -> Ticket {
    let until = d.now + Duration::from_millis(ms);
    let (ticket, outcome) = d.submit_until(until, Op::QueueGet, &encoded(args), &[]);
    assert_eq!(outcome, Outcome::Parked);
    ticket
}

/// The result of a get: the number of the first item, the deliveries, the items.
fn given(d: &Queue, answer: &Answer) -> (u64, u32, Vec<Vec<u8>>) {
    assert_eq!(answer.status, Status::Ok, "{}", String::from_utf8_lossy(&answer.args));
    let payload = d.bytes(answer);
    let Items { first, deliveries, lengths } = Items::decode(&answer.args, payload.len()).unwrap();
    assert_eq!(answer.value, lengths.len() as u64);
    let mut rest = &payload[..];
    let cut = lengths.iter().map(|length| {
        let (item, behind) = rest.split_at(*length as usize);
        rest = behind;
        item.to_vec()
    });
    (first, deliveries, cut.collect())
}

fn take(d: &mut Queue, items: u32) -> Vec<Vec<u8>> {
    let answer = get(d, GetArgs { items, ..TAKE });
    given(d, &answer).2
}

/// Reserves one item for so long; returns its number and deliveries.
fn reserve_one(d: &mut Queue, reserve_ms: u32) -> (u64, u32) {
    let answer = get(d, GetArgs { reserve_ms, ..TAKE });
    let (first, deliveries, _) = given(d, &answer);
    (first, deliveries)
}

fn ack(d: &mut Queue, action: AckAction, timeout_ms: u32, items: &[(u64, u32)]) -> Vec<u8> {
    let args = AckArgs { action, timeout_ms, items: items.to_vec() };
    let answer = d.run(Op::QueueAck, &args.encode(), &[]);
    assert_eq!(answer.status, Status::Ok);
    assert_eq!(answer.value, answer.args.iter().map(|held| *held as u64).sum::<u64>());
    answer.args
}

fn settle(d: &mut Queue, item: (u64, u32)) -> bool {
    ack(d, AckAction::Done, 0, &[item]) == [1]
}

fn counts(d: &mut Queue) -> (u64, Counts) {
    let answer = d.run(Op::QueueLength, &[0], &[]);
    assert_eq!(answer.status, Status::Ok);
    (answer.value, Counts::decode(&answer.args).unwrap())
}

/// The number of items that are not taken.
fn left(d: &mut Queue) -> u64 {
    let (put, counts) = counts(d);
    put - counts.taken
}

fn fill(d: &mut Queue, ticket: Ticket, item: &[u8]) -> Outcome {
    d.feed(ticket, item);
    d.commit(ticket)
}

/// Reserves a place for one payload that may wait.
fn reserve_until(d: &mut Queue, until: Time, length: usize) -> Result<Ticket, Answer> {
    let ticket = d.ticket();
    let (now, op) = (d.now, Op::QueuePut);
    let operation = Operation { now, ticket, op, args: &[], wait_until: until };
    d.structure.reserve(&mut d.block, &operation, length).map(|()| ticket)
}

fn refused(answer: &Answer, status: Status, word: &str) {
    assert_eq!(answer.status, status);
    let message = std::str::from_utf8(&answer.args).unwrap();
    assert!(message.contains(word), "{message}");
}

fn answers(d: &mut Queue) -> Vec<(Ticket, Answer)> {
    std::iter::from_fn(|| d.completed()).collect()
}

fn statuses(d: &mut Queue) -> Vec<(Ticket, Status)> {
    answers(d).into_iter().map(|(ticket, answer)| (ticket, answer.status)).collect()
}

/// The items in the answers of gets.
fn brought(d: &mut Queue) -> Vec<(Ticket, Vec<Vec<u8>>)> {
    answers(d).into_iter().map(|(ticket, answer)| (ticket, given(d, &answer).2)).collect()
}

const SUCCESSOR: [u8; 3] = [7, 8, 9];

fn moved(through: u64) -> Answer {
    let args = SUCCESSOR.to_vec();
    Answer { status: Status::Moved, value: through, args, payload: Payload::None }
}

fn grant_successor(d: &mut Queue) {
    d.set_successor(Successor::Ready(SUCCESSOR.to_vec()));
}

/// Puts items of the largest size until less than one more is free; returns their number.
fn fill_up(d: &mut Queue) -> u64 {
    let fit = (SIZE / (LARGEST + 4)) as u64;
    for i in 0..fit {
        assert_eq!(put(d, &pattern(i, LARGEST)), Answer::ok(i));
    }
    fit
}

/// Fills the block and seals it; returns the number of items put into it.
fn seal(d: &mut Queue) -> u64 {
    let through = fill_up(d);
    grant_successor(d);
    assert_eq!(put(d, b"more"), moved(through));
    assert_eq!(d.sealed(), Some((through, false)));
    through
}

fn drained(events: &[Event]) -> usize {
    events.iter().filter(|event| **event == Event::Drained).count()
}

// ---------------------------------------------------------------------------------------- order

#[test]
fn items_come_out_as_they_went_in() {
    let mut d = queue();
    let large = pattern(1, LARGE + 1);
    assert_eq!(put(&mut d, b"one"), Answer::ok(0));
    assert_eq!(put(&mut d, b""), Answer::ok(1));
    assert_eq!(put_all(&mut d, &[b"a", b"", b"ccc"]), Answer::ok(2));
    assert_eq!(put(&mut d, &large), Answer::ok(5));
    assert_eq!(put(&mut d, b"last"), Answer::ok(6));
    assert_eq!(take(&mut d, 1), [b"one"]);
    let answer = get(&mut d, GetArgs { items: 3, ..TAKE });
    assert_eq!(given(&d, &answer), (1, 1, vec![vec![], b"a".to_vec(), vec![]]));
    assert_eq!(take(&mut d, 100), [b"ccc".to_vec(), large, b"last".to_vec()]);
    assert_eq!(get(&mut d, TAKE).status, Status::QueueEmpty);
    assert_eq!(put(&mut d, b"again"), Answer::ok(7), "numbers go on");
}

#[test]
fn counts_say_what_went_through() {
    let mut d = queue();
    put_all(&mut d, &[b"four", b"", b"12"]);
    let (number, deliveries) = reserve_one(&mut d, 1000);
    take(&mut d, 1);
    let fill = d.reserve(Op::QueuePut, &[], 100).unwrap();
    let expected = Counts { taken: 1, bytes_put: 6, bytes_taken: 0, reserved: 1, closed: false };
    assert_eq!(counts(&mut d), (3, expected), "arriving payloads are not put yet");
    assert!(settle(&mut d, (number, deliveries)));
    d.abort(fill);
    d.run(Op::QueueClose, &[], &[]);
    let expected = Counts { taken: 2, bytes_put: 6, bytes_taken: 4, reserved: 0, closed: true };
    assert_eq!(counts(&mut d), (3, expected));
}

#[test]
fn a_get_stops_at_its_bytes_but_brings_the_first_item_whole() {
    let mut d = queue();
    put_all(&mut d, &[b"12345", b"678", b"", b"9"]);
    let most = |bytes| GetArgs { items: 10, bytes, ..TAKE };
    let answer = get(&mut d, most(0));
    assert_eq!(given(&d, &answer).2, [b"12345"], "it may exceed the requested size");
    let answer = get(&mut d, most(3));
    assert_eq!(given(&d, &answer).2, [b"678".to_vec(), vec![]]);
    assert_eq!(take(&mut d, 10), [b"9"]);
}

#[test]
fn large_answers_are_read_where_they_are() {
    let mut d = queue();
    for length in [LARGE, LARGE - 1, LARGE / 2, LARGE / 2] {
        put(&mut d, &pattern(length as u64, length));
    }
    put(&mut d, b"behind");
    let large = get(&mut d, TAKE);
    let small = get(&mut d, TAKE);
    let both = get(&mut d, GetArgs { items: 2, ..TAKE });
    assert!(matches!(large.payload, Payload::Pinned(_)));
    assert!(matches!(small.payload, Payload::Bytes(_)));
    assert!(matches!(both.payload, Payload::Pinned(_)), "together they are large");
    assert_eq!(d.bytes(&large), pattern(LARGE as u64, LARGE));
    assert_eq!(given(&d, &both).2, vec![pattern(LARGE as u64 / 2, LARGE / 2); 2]);
}

#[test]
fn a_peek_leaves_everything_where_it_is() {
    let mut d = queue();
    let peek = |d: &mut Queue, items: u32, bytes: u32| {
        d.run(Op::QueuePeek, &[items.to_le_bytes(), bytes.to_le_bytes()].concat(), &[])
    };
    assert_eq!(peek(&mut d, 1, 1).status, Status::QueueEmpty);
    put_all(&mut d, &[b"ab", b"c", b"d"]);
    for _ in 0..2 {
        let answer = peek(&mut d, 2, 100);
        assert_eq!(answer.payload, Payload::Block(0..3));
        assert_eq!(given(&d, &answer), (0, 1, vec![b"ab".to_vec(), b"c".to_vec()]));
    }
    let (number, deliveries) = reserve_one(&mut d, 10);
    let answer = peek(&mut d, 1, 100);
    assert_eq!(given(&d, &answer), (1, 1, vec![b"c".to_vec()]));
    assert_eq!(ack(&mut d, AckAction::GiveBack, 0, &[(number, deliveries)]), [1]);
    let answer = peek(&mut d, 9, 100);
    assert_eq!(given(&d, &answer), (0, 2, vec![b"ab".to_vec()]), "as it would be given out");
    refused(&peek(&mut d, 0, 1), Status::InvalidArgument, "4096");
    refused(&peek(&mut d, QUEUE_BATCH_MAX + 1, 1), Status::InvalidArgument, "4096");
}

// -------------------------------------------------------------------------------------- batches

#[test]
fn a_batch_is_put_whole_or_not_at_all() {
    let mut d = bounded(4, 100);
    put_all(&mut d, &[b"a", b"b"]);
    assert_eq!(put_all(&mut d, &[b"c", b"d", b"e"]).status, Status::QueueFull);
    assert_eq!(left(&mut d), 2, "not even those that had room");
    refused(&put_all(&mut d, &[&b"1"[..]; 5]), Status::InvalidArgument, "4 items and 100 bytes");
    refused(&put(&mut d, &[1; 101]), Status::InvalidArgument, "100 bytes");
    assert_eq!(put_all(&mut d, &[b"c", b"d"]), Answer::ok(2));
    assert_eq!(take(&mut d, 9), [b"a", b"b", b"c", b"d"]);
}

#[test]
fn a_batch_has_no_others_in_between() {
    let mut d = bounded(6, 0);
    put_all(&mut d, &[b"0", b"1", b"2", b"3"]);
    let whole = wait_to_put(&mut d, 100, &[b"a", b"b", b"c"]);
    assert_eq!(put(&mut d, b"x").status, Status::QueueFull, "it would overtake");
    let behind = wait_to_put(&mut d, 100, &[b"x"]);
    take(&mut d, 1);
    assert_eq!(answers(&mut d), [(whole, Answer::ok(4))]);
    take(&mut d, 1);
    assert_eq!(answers(&mut d), [(behind, Answer::ok(7))]);
    assert_eq!(take(&mut d, 9), [b"2", b"3", b"a", b"b", b"c", b"x"]);
}

#[test]
fn a_batch_has_a_limit_of_items() {
    let mut d = queue();
    let most = QUEUE_BATCH_MAX as usize;
    let (args, _) = batch(&vec![&b""[..]; most]);
    assert_eq!(d.run(Op::QueuePut, &args, &[]), Answer::ok(0));
    let (args, _) = batch(&vec![&b""[..]; most + 1]);
    assert_eq!(d.run(Op::QueuePut, &args, &[]).status, Status::BadFrame);
    refused(&get(&mut d, GetArgs { items: 0, ..TAKE }), Status::InvalidArgument, "4096");
    let items = QUEUE_BATCH_MAX + 1;
    refused(&get(&mut d, GetArgs { items, ..TAKE }), Status::InvalidArgument, "4096");
    assert_eq!(take(&mut d, QUEUE_BATCH_MAX).len(), most);
}

// ------------------------------------------------------------------------------- large payloads

#[test]
fn items_take_the_order_of_their_reservation() {
    let mut d = queue();
    let (one, two) = (pattern(1, 20_000), pattern(2, 30_000));
    put(&mut d, b"head");
    let first = d.reserve(Op::QueuePut, &[], one.len()).unwrap();
    let (small, outcome) = d.submit(Op::QueuePut, &[], b"small");
    assert_eq!(outcome, Outcome::Parked);
    let second = d.reserve(Op::QueuePut, &[], two.len()).unwrap();
    let (nothing, _) = d.submit(Op::QueuePut, &[], b"");
    assert_eq!(fill(&mut d, second, &two), Outcome::Parked, "the one before it is not here");
    assert_eq!(take(&mut d, 9), [b"head"], "nothing behind a gap is visible");
    d.feed(first, &one[..7]);
    assert_eq!(fill(&mut d, first, &one[7..]), Outcome::Done(Answer::ok(1)));
    let told = [(small, Answer::ok(2)), (second, Answer::ok(3)), (nothing, Answer::ok(4))];
    assert_eq!(answers(&mut d), told);
    assert_eq!(take(&mut d, 9), [one, b"small".to_vec(), two, vec![]]);
}

#[test]
fn an_abort_closes_the_gap() {
    let mut d = queue();
    let gone = d.reserve(Op::QueuePut, &[], 20_000).unwrap();
    let stays = d.reserve(Op::QueuePut, &[], 6).unwrap();
    let (small, _) = d.submit(Op::QueuePut, &[], b"small");
    let promised = d.structure.bytes_used();
    d.feed(gone, &[1; 9_999]);
    d.feed(stays, b"sta");
    d.abort(gone);
    assert!(d.structure.bytes_used() < promised - 20_000);
    assert_eq!(get(&mut d, TAKE).status, Status::QueueEmpty);
    assert_eq!(fill(&mut d, stays, b"ys!"), Outcome::Done(Answer::ok(0)));
    assert_eq!(answers(&mut d), [(small, Answer::ok(1))]);
    assert_eq!(take(&mut d, 9), [b"stays!".to_vec(), b"small".to_vec()]);
}

#[test]
fn the_abort_of_the_first_lets_the_others_in() {
    let mut d = queue();
    let getter = wait_to_get(&mut d, 100, GetArgs { items: 9, ..TAKE });
    let gone = d.reserve(Op::QueuePut, &[], 20_000).unwrap();
    let (args, payload) = batch(&[b"a", b"b"]);
    let (parked, _) = d.submit(Op::QueuePut, &args, &payload);
    d.abort(gone);
    let told = answers(&mut d);
    assert_eq!(told[0], (parked, Answer::ok(0)));
    assert_eq!(told[1].0, getter);
    assert_eq!(given(&d, &told[1].1).2, [b"a", b"b"], "a batch becomes visible at once");
    assert_eq!(put(&mut d, b"c"), Answer::ok(2), "nothing is in progress any more");
}

#[test]
fn so_many_payloads_arrive_at_a_time_and_no_more() {
    let mut d = queue();
    let fills: Vec<_> = (0..4096).map(|_| d.reserve(Op::QueuePut, &[], 1).unwrap()).collect();
    grant_successor(&mut d);
    assert_eq!(put(&mut d, b"x").status, Status::Busy);
    assert_eq!(d.reserve(Op::QueuePut, &[], 1).unwrap_err().status, Status::Busy);
    assert_eq!(d.sealed(), None, "that is no reason to seal the block");
    d.abort(fills[7]);
    assert_eq!(d.submit(Op::QueuePut, &[], b"x").1, Outcome::Parked);
}

#[test]
fn a_full_block_waits_for_what_arrives_before_it_is_sealed() {
    let mut d = queue();
    let fills: Vec<_> = (0..8).map(|_| d.reserve(Op::QueuePut, &[], LARGEST).unwrap()).collect();
    grant_successor(&mut d);
    assert_eq!(put(&mut d, b"x").status, Status::Busy, "how many go through is not known");
    assert_eq!(d.reserve(Op::QueuePut, &[], 1).unwrap_err().status, Status::Busy);
    d.abort(fills[0]);
    assert_eq!(d.submit(Op::QueuePut, &[], b"x").1, Outcome::Parked, "there is room again");
}

#[test]
fn a_batch_can_arrive_piece_by_piece() {
    let mut d = queue();
    let (args, payload) = batch(&[&pattern(1, 9000), b"", &pattern(2, 9000)]);
    let ticket = d.reserve(Op::QueuePut, &args, payload.len()).unwrap();
    assert_eq!(fill(&mut d, ticket, &payload), Outcome::Done(Answer::ok(0)));
    assert_eq!(take(&mut d, 9), [pattern(1, 9000), vec![], pattern(2, 9000)]);
}

// --------------------------------------------------------------------------------------- bounds

#[test]
fn the_bound_of_items_is_kept_and_named() {
    let mut d = bounded(2, 0);
    put_all(&mut d, &[b"a", b"b"]);
    refused(&put(&mut d, b"c"), Status::QueueFull, "2 items");
    let refusal = d.reserve(Op::QueuePut, &[], 20_000).unwrap_err();
    refused(&refusal, Status::QueueFull, "2 items");
    let later = d.now + Duration::from_millis(9);
    let refusal = reserve_until(&mut d, later, 20_000).unwrap_err();
    assert_eq!(refusal.status, Status::Busy, "a large payload is retried");
    take(&mut d, 1);
    assert_eq!(put(&mut d, b"c"), Answer::ok(2));
}

#[test]
fn the_bound_of_bytes_counts_bytes_of_items_only() {
    let mut d = bounded(0, 10);
    put(&mut d, b"123456");
    refused(&put(&mut d, b"78901"), Status::QueueFull, "10 bytes");
    assert_eq!(put(&mut d, b"7890"), Answer::ok(1));
    assert_eq!(put_all(&mut d, &[b"", b""]), Answer::ok(2), "they take no bytes");
    refused(&put(&mut d, b"1"), Status::QueueFull, "10 bytes");
    take(&mut d, 1);
    assert_eq!(put(&mut d, b"123456"), Answer::ok(4));
}

#[test]
fn what_is_arriving_or_reserved_counts() {
    let mut d = bounded(2, 50_000);
    let fill = d.reserve(Op::QueuePut, &[], 30_000).unwrap();
    assert_eq!(put(&mut d, &[1; 20_001]).status, Status::QueueFull, "bytes are promised");
    let (parked, outcome) = d.submit(Op::QueuePut, &[], b"x");
    assert_eq!(outcome, Outcome::Parked);
    assert_eq!(put(&mut d, b"").status, Status::QueueFull, "items are promised");
    let waits = wait_to_put(&mut d, 100, &[b"y"]);
    d.abort(fill);
    assert_eq!(answers(&mut d), [(parked, Answer::ok(0)), (waits, Answer::ok(1))]);
    let item = reserve_one(&mut d, 1000);
    assert_eq!(put(&mut d, b"z").status, Status::QueueFull, "it may be returned");
    assert!(settle(&mut d, item));
    assert_eq!(put(&mut d, b"z"), Answer::ok(2));
}

#[test]
fn a_successor_takes_nothing_before_it_knows_what_is_ahead() {
    let mut d = second(10, 0);
    let large = |d: &mut Queue| d.reserve(Op::QueuePut, &[], 20_000).err().map(|a| a.status);
    assert_eq!(put(&mut d, b"x").status, Status::Busy, "not full: unknown");
    assert_eq!(large(&mut d), Some(Status::Busy));
    let waits = wait_to_put(&mut d, 100, &[b"a", b"b"]);
    assert_eq!(put(&mut d, b"x").status, Status::Busy, "still unknown, also behind another");
    assert_eq!(large(&mut d), Some(Status::Busy));
    d.ahead(9, 90);
    assert_eq!(answers(&mut d), []);
    assert_eq!(put(&mut d, b"x").status, Status::QueueFull, "now it is known");
    assert_eq!(large(&mut d), Some(Status::QueueFull));
    d.ahead(8, 80);
    assert_eq!(answers(&mut d), [(waits, Answer::ok(0))]);
    assert_eq!(put(&mut d, b"x").status, Status::QueueFull);
    d.ahead(0, 0);
    assert_eq!(put_all(&mut d, &[&b"x"[..]; 8]), Answer::ok(2));
    assert_eq!(put(&mut d, b"y").status, Status::QueueFull);
}

#[test]
fn what_is_ahead_only_becomes_less() {
    let mut d = second(10, 100);
    d.ahead(8, 20);
    // An older message that was overtaken.
    d.ahead(9, 99);
    assert_eq!(put_all(&mut d, &[&[1; 40], &[1; 40]]), Answer::ok(0));
    assert_eq!(put(&mut d, b"").status, Status::QueueFull);
    let waits = wait_to_put(&mut d, 100, &[b"z"]);
    d.ahead(7, 20);
    assert_eq!(answers(&mut d), [], "there is room for an item, but not for its byte");
    d.ahead(8, 19);
    assert_eq!(answers(&mut d), [(waits, Answer::ok(2))]);
}

#[test]
fn without_a_bound_nothing_has_to_be_known() {
    let mut d = Driver::new(SIZE, QueueBlock::new(SIZE, QueueBounds::NONE, false));
    assert_eq!(put(&mut d, b"x"), Answer::ok(0));
    let mut d = Driver::new(SIZE, QueueBlock::new(SIZE, QueueBounds::from_wire(0, 0), false));
    assert_eq!(put(&mut d, b"x"), Answer::ok(0), "0 is none");
}

// ------------------------------------------------------------------------- limits and malformed

#[test]
fn the_limit_of_an_item_is_named() {
    for size in [65536, SIZE, 1 << 20] {
        let limit = size / 8 - 4;
        let mut d = Driver::new(size, QueueBlock::new(size, QueueBounds::NONE, true));
        assert_eq!(put(&mut d, &pattern(1, limit)), Answer::ok(0));
        refused(&put(&mut d, &vec![1; limit + 1]), Status::ValueTooLarge, &limit.to_string());
        let ticket = d.reserve(Op::QueuePut, &[], limit).unwrap();
        d.abort(ticket);
        let refusal = d.reserve(Op::QueuePut, &[], limit + 1).unwrap_err();
        refused(&refusal, Status::ValueTooLarge, &limit.to_string());
        let two = put_all(&mut d, &[&vec![1; limit - 3], b""]);
        refused(&two, Status::ValueTooLarge, &(limit - 4).to_string());
        assert_eq!(put_all(&mut d, &[&vec![1; limit - 4], b""]), Answer::ok(1));
        assert_eq!(take(&mut d, 1), [pattern(1, limit)]);
    }
}

/// The complete visible state of a queue.
fn seen(d: &mut Queue) -> (Answer, Answer, u64, Option<Time>, Vec<Event>) {
    let length = d.run(Op::QueueLength, &[0], &[]);
    let peek = [9u32.to_le_bytes(), 99u32.to_le_bytes()].concat();
    let peek = d.run(Op::QueuePeek, &peek, &[]);
    (length, peek, d.structure.bytes_used(), d.structure.deadline(), d.events())
}

#[test]
fn what_does_not_parse_is_refused_and_changes_nothing() {
    let mut d = queue();
    put_all(&mut d, &[b"held", b"a", b"b"]);
    let item = reserve_one(&mut d, 1000);
    d.watch(true);
    let before = seen(&mut d);
    let (lengths, payload) = batch(&[b"12", b"", b"34567"]);
    let full = encoded(GetArgs { reserve_ms: 5, ..TAKE });
    let peek = &full[..8];
    let done = AckArgs { action: AckAction::Done, timeout_ms: 0, items: vec![item; 2] }.encode();
    let until = d.now + Duration::from_millis(100);
    let mut bad: Vec<(Op, Vec<u8>, &[u8])> = Vec::new();
    // The arguments of a single item are empty, and an acknowledgement may name no item.
    bad.extend((1..lengths.len()).map(|n| (Op::QueuePut, lengths[..n].to_vec(), &payload[..])));
    bad.extend((0..full.len()).map(|n| (Op::QueueGet, full[..n].to_vec(), &[][..])));
    bad.extend((0..peek.len()).map(|n| (Op::QueuePeek, peek[..n].to_vec(), &[][..])));
    let cut = (0..done.len()).filter(|n| *n < 5 || (*n - 5) % 12 != 0);
    bad.extend(cut.map(|n| (Op::QueueAck, done[..n].to_vec(), &[][..])));
    bad.push((Op::QueuePut, lengths.clone(), &payload[1..]));
    bad.push((Op::QueuePut, vec![255; 8], &payload));
    bad.push((Op::QueueGet, [&full[..], &[0]].concat(), &[]));
    bad.push((Op::QueueGet, [&full[..12], &[2]].concat(), &[]));
    bad.push((Op::QueuePeek, full.clone(), &[]));
    bad.push((Op::QueueAck, [&[3], &done[1..]].concat(), &[]));
    bad.push((Op::QueueAck, [&done[..5], &[0; 12 * 4097]].concat(), &[]));
    bad.push((Op::QueueClose, vec![0], &[]));
    bad.extend([vec![], vec![2], vec![0, 0]].map(|args| (Op::QueueLength, args, &[][..])));
    for (op, args, payload) in bad {
        let Outcome::Done(answer) = d.submit_until(until, op, &args, payload).1 else {
            panic!("{} with {args:?} was parked", op.name());
        };
        assert_eq!(answer.status, Status::BadFrame, "{} with {args:?}", op.name());
        assert_eq!(seen(&mut d), before, "{} with {args:?}", op.name());
    }
    for n in 1..lengths.len() {
        let refusal = d.reserve(Op::QueuePut, &lengths[..n], payload.len()).unwrap_err();
        assert_eq!(refusal.status, Status::BadFrame);
    }
    assert_eq!(seen(&mut d), before);
}

#[test]
fn an_acknowledgement_of_nothing_is_fine() {
    let mut d = queue();
    assert_eq!(ack(&mut d, AckAction::Done, 0, &[]), []);
    put(&mut d, b"x");
    assert_eq!(ack(&mut d, AckAction::Done, 0, &[(0, 1), (u64::MAX, 0), (1, 1)]), [0, 0, 0]);
    assert_eq!(take(&mut d, 1), [b"x"]);
}
