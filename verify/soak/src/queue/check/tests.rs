//! Possible histories pass, and each kind of mistake is found.

use super::*;

const RULES: Rules = Rules { seed: 1, each: 4, limit: 1000, batch: 2, reservation: 1000 };

fn head(incarnation: u64, number: u64) -> u64 {
    Head::new(0, incarnation, number, length_of(RULES.seed, 0, number, RULES.limit)).0
}

fn life(records: &[Record]) -> Life {
    let killed = records.last() != Some(&Record::Finished);
    Life { records: records.to_vec(), killed }
}

/// A producer that puts two requests of two items.
fn producer() -> Vec<Life> {
    let put = |first| [Record::Try { first, items: 2 }, Record::Put { first, items: 2 }];
    vec![life(&[&put(0)[..], &put(2)[..], &[Record::Finished]].concat())]
}

fn answer(at: u64, items: &[Record]) -> Vec<Record> {
    [&[Record::Asked { at }, Record::Answered { at: at + 10 }], items].concat()
}

fn got(numbers: &[u64]) -> Vec<Record> {
    numbers.iter().map(|n| Record::Got { head: head(0, *n) }).collect()
}

fn reserved(number: u64, deliveries: u32) -> Record {
    Record::Reserved { head: head(0, number), deliveries }
}

fn acknowledged(number: u64, deliveries: u32, held: bool) -> Record {
    Record::Acknowledged { head: head(0, number), deliveries, held }
}

fn finished(mut records: Vec<Record>) -> Life {
    records.push(Record::Finished);
    life(&records)
}

fn taker(lives: Vec<Life>) -> Consumer {
    Consumer { takes: true, lives }
}

fn reserver(lives: Vec<Life>) -> Consumer {
    Consumer { takes: false, lives }
}

fn judge_all(consumers: &[Consumer]) -> Result<Summary, Vec<String>> {
    check(RULES, &[producer()], consumers)
}

#[track_caller]
fn wrong(consumers: &[Consumer], told: &str) {
    let wrong = judge_all(consumers).expect_err(told);
    assert!(wrong.iter().any(|text| text.contains(told)), "{wrong:?}");
}

fn all() -> Vec<Record> {
    [answer(0, &got(&[0, 1])), answer(20, &got(&[2, 3]))].concat()
}

#[test]
fn what_everybody_got_once_and_in_order_is_fine() {
    let summary = judge_all(&[taker(vec![finished(all())])]);
    assert_eq!(summary, Ok(Summary { items: 4, ..Summary::default() }));
    // Concurrent requests have no defined order.
    let one = taker(vec![finished(answer(0, &got(&[2, 3])))]);
    let other = taker(vec![finished(answer(5, &got(&[0, 1])))]);
    judge_all(&[one, other]).unwrap();
}

#[test]
fn a_lost_item_is_found_unless_a_killed_consumer_may_have_had_it() {
    let most = answer(0, &got(&[0, 1]));
    wrong(&[taker(vec![finished(most.clone())])], "2 items are lost");
    let summary = judge_all(&[taker(vec![life(&most), finished(vec![])])]).unwrap();
    assert_eq!(summary.lost_with_consumer, 2);
    // One kill costs one reply, whose items are contiguous.
    wrong(&[taker(vec![life(&answer(0, &got(&[0]))), finished(vec![])])], "3 items are lost");
    let holes = answer(0, &got(&[1, 3]));
    wrong(&[taker(vec![life(&holes), finished(vec![])])], "2 items are lost");
    // A consumer that reserves loses nothing.
    wrong(&[taker(vec![finished(most)]), reserver(vec![life(&[])])], "2 items are lost");
}

#[test]
fn an_item_that_came_twice_is_found() {
    let twice = [all(), answer(40, &got(&[3]))].concat();
    wrong(&[taker(vec![finished(twice)])], "twice");
    let acknowledged_too =
        reserver(vec![finished(answer(2000, &[reserved(3, 1), acknowledged(3, 1, true)]))]);
    wrong(&[taker(vec![finished(all())]), acknowledged_too], "twice");
    let same = || reserver(vec![finished(answer(0, &[reserved(3, 1), acknowledged(3, 1, false)]))]);
    wrong(&[taker(vec![finished(all())]), same(), same()], "had two deliveries");
}

#[test]
fn an_item_that_nobody_put_is_found() {
    let foreign = answer(40, &[Record::Got { head: head(1, 3) }]);
    wrong(&[taker(vec![finished([all(), foreign].concat())])], "no producer put");
}

#[test]
fn order_is_kept_within_an_answer_and_from_one_to_the_next() {
    let swapped = [answer(0, &got(&[1, 0])), answer(20, &got(&[2, 3]))].concat();
    wrong(&[taker(vec![finished(swapped)])], "behind");
    let late = [answer(0, &got(&[2, 3])), answer(20, &got(&[0, 1]))].concat();
    wrong(&[taker(vec![finished(late.clone())])], "delivered late");
    // A consumer that was killed before it wrote its log may have had them.
    judge_all(&[taker(vec![finished(late)]), reserver(vec![life(&[]), finished(vec![])])]).unwrap();
    let first = taker(vec![finished(answer(0, &got(&[2, 3])))]);
    let acks = [0, 1].map(|n| acknowledged(n, 1, true));
    let records = [&[reserved(0, 1), reserved(1, 1)][..], &acks].concat();
    let second = reserver(vec![finished(answer(20, &records))]);
    wrong(&[first, second], "was asked for after");
}

#[test]
fn what_is_reserved_comes_again_only_when_its_time_has_passed() {
    let rest = || taker(vec![finished(answer(20, &got(&[2, 3])))]);
    let begun = answer(0, &[reserved(0, 1), reserved(1, 1), acknowledged(0, 1, true)]);
    let again = |at| answer(at, &[reserved(1, 2), acknowledged(1, 2, true)]);
    let summary =
        judge_all(&[rest(), reserver(vec![life(&begun), finished(again(1000))])]).unwrap();
    assert_eq!((summary.redelivered, summary.acknowledgement_unknown), (1, 0));
    wrong(&[rest(), reserver(vec![life(&begun), finished(again(900))])], "while delivery 1 held");
    let after_done = answer(2000, &[reserved(0, 2), acknowledged(0, 2, false)]);
    wrong(&[rest(), reserver(vec![life(&begun), finished(after_done)])], "was acknowledged");
    // Killed after its acknowledgement and before the confirmation.
    let summary = judge_all(&[rest(), reserver(vec![life(&begun), finished(vec![])])]).unwrap();
    assert_eq!(summary.acknowledgement_unknown, 1);
    let back = [begun, vec![Record::GivingBack { head: head(0, 1), deliveries: 1 }]].concat();
    judge_all(&[rest(), reserver(vec![finished([back.clone(), again(20)].concat())])]).unwrap();
    wrong(&[rest(), reserver(vec![finished(back)])], "1 items are lost");
}

#[test]
fn the_last_request_of_a_killed_producer_counts_in_whole_or_not_at_all() {
    let put = |first| [Record::Try { first, items: 2 }, Record::Put { first, items: 2 }];
    let begun = [&put(0)[..], &[Record::Try { first: 2, items: 2 }]].concat();
    let again = [&put(2)[..], &[Record::Finished]].concat();
    let lives = [vec![life(&begun), life(&again)]];
    let last = |n| Record::Got { head: head(1, n) };
    let took = |more: &[Record]| {
        let records = [answer(0, &got(&[0, 1])), answer(20, more), answer(40, &[last(2), last(3)])];
        check(RULES, &lives, &[taker(vec![finished(records.concat())])])
    };
    let summary = took(&[]).unwrap();
    assert_eq!((summary.items, summary.not_carried_out), (4, 1));
    let summary = took(&got(&[2, 3])).unwrap();
    assert_eq!((summary.items, summary.carried_out), (6, 1));
    assert!(took(&got(&[3])).unwrap_err()[0].contains("1 items are lost"));
}

#[test]
fn producers_and_consumers_that_did_not_do_their_work_are_found() {
    let put = [Record::Try { first: 0, items: 2 }, Record::Put { first: 0, items: 2 }];
    let short = [vec![life(&put)]];
    let wrong = check(RULES, &short, &[taker(vec![finished(answer(0, &got(&[0, 1])))])]);
    assert!(wrong.unwrap_err()[0].contains("put 2 of 4"));
    let unfinished = taker(vec![Life { records: all(), killed: false }]);
    assert!(judge_all(&[unfinished]).unwrap_err()[0].contains("did not finish"));
}
