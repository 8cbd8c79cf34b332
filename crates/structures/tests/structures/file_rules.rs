use crate::{Driver, pattern};
use honeycomb_structures::{
    Answer, CapacityRequest, FileBlock, Growth, Ops, Outcome, Payload, Streaming, Successor, Ticket,
};
use honeycomb_types::Marks;
use honeycomb_wire::data::ReadArgs;
use honeycomb_wire::{Op, Status};

const SIZE: usize = 65536;

fn file() -> Driver<FileBlock> {
    Driver::new(SIZE, FileBlock::new(SIZE))
}

fn append(d: &mut Driver<FileBlock>, bytes: &[u8]) -> Answer {
    d.run(Op::FileAppend, &[], bytes)
}

fn read(d: &mut Driver<FileBlock>, offset: u64, length: u32) -> Answer {
    let mut args = Vec::new();
    ReadArgs { offset, length }.put(&mut args);
    d.run(Op::FileRead, &args, &[])
}

/// Appends until less than `rest` bytes are free.
fn fill_up(d: &mut Driver<FileBlock>, rest: usize) {
    let free = SIZE - append(d, &[]).value as usize;
    let mut left = free - rest;
    while left > 0 {
        let n = left.min(SIZE / 8);
        assert_eq!(append(d, &vec![1; n]).status, Status::Ok);
        left -= n;
    }
}

fn done(outcome: Outcome) -> Answer {
    match outcome {
        Outcome::Done(answer) => answer,
        Outcome::Parked => panic!("it was parked"),
    }
}

#[test]
fn appends_follow_each_other_and_are_read_in_place() {
    let mut d = file();
    assert_eq!(append(&mut d, b"hello ").value, 0);
    assert_eq!(append(&mut d, b"world").value, 6);
    assert_eq!(append(&mut d, b"").value, 11, "an empty append returns the length");
    let answer = read(&mut d, 3, 100);
    assert_eq!((answer.value, &answer.payload), (11, &Payload::Block(3..11)));
    assert_eq!(d.bytes(&answer), b"lo world");
    assert_eq!(read(&mut d, 3, 2).payload, Payload::Block(3..5));
    for offset in [11, 12, u64::MAX] {
        let beyond = read(&mut d, offset, 5);
        assert_eq!((beyond.status, beyond.value, beyond.payload), (Status::Ok, 11, Payload::None));
    }
    let size = d.run(Op::FileSize, &[], &[]);
    assert_eq!((size.value, &size.args[..]), (11, &[0][..]));
    assert_eq!(d.structure.bytes_used(), 11);
}

#[test]
fn what_does_not_parse_is_refused() {
    let mut d = file();
    assert_eq!(d.run(Op::FileRead, &[1, 2], &[]).status, Status::BadFrame);
    assert_eq!(d.run(Op::FileAppend, &[1], b"x").status, Status::BadFrame);
}

#[test]
fn an_append_of_more_than_an_eighth_is_taken_where_it_fits_and_seals_nothing() {
    let mut d = file();
    assert_eq!(append(&mut d, &vec![1; SIZE / 8]).value, 0);
    let most = SIZE - 2 * (SIZE / 8);
    assert_eq!(append(&mut d, &vec![2; most]).value, SIZE as u64 / 8);
    let refusal = append(&mut d, &vec![3; SIZE / 8 + 1]);
    assert_eq!(refusal.status, Status::ValueTooLarge);
    assert!(String::from_utf8(refusal.args).unwrap().contains("8192"));
    let refusal = d.reserve(Op::FileAppend, &[], SIZE / 8 + 1).unwrap_err();
    assert_eq!(refusal.status, Status::ValueTooLarge);
    // The rest is left for smaller appends.
    let rest = SIZE - SIZE / 8 - most;
    assert_eq!(append(&mut d, &vec![4; rest]).status, Status::Ok);
    assert_eq!(read(&mut d, 0, SIZE as u32 * 2).value, SIZE as u64);
}

#[test]
fn appends_behind_a_fill_wait_for_it() {
    let mut d = file();
    let fill = d.reserve(Op::FileAppend, &[], 10).unwrap();
    let (behind, outcome) = d.submit(Op::FileAppend, &[], b"behind");
    assert_eq!(outcome, Outcome::Parked);
    d.feed(fill, b"01234");
    assert_eq!(read(&mut d, 0, 100).value, 0, "nothing is committed");
    assert_eq!(d.completed(), None);
    d.feed(fill, b"56789");
    assert!(d.structure.fill(&mut d.block, fill).is_empty());
    assert_eq!(done(d.commit(fill)), Answer::ok(0));
    assert_eq!(d.completed(), Some((behind, Answer::ok(10))));
    assert_eq!(d.completed(), None);
    let all = read(&mut d, 0, 100);
    assert_eq!(d.bytes(&all), b"0123456789behind");
}

#[test]
fn a_later_fill_that_is_ready_first_is_parked() {
    let mut d = file();
    let first = d.reserve(Op::FileAppend, &[], 3).unwrap();
    let second = d.reserve(Op::FileAppend, &[], 4).unwrap();
    d.feed(second, b"late");
    assert_eq!(d.commit(second), Outcome::Parked);
    d.feed(first, b"one");
    assert_eq!(done(d.commit(first)), Answer::ok(0));
    assert_eq!(d.completed(), Some((second, Answer::ok(3))));
}

#[test]
fn an_abort_closes_the_gap() {
    let mut d = file();
    append(&mut d, b"head");
    let gone = d.reserve(Op::FileAppend, &[], 100).unwrap();
    let stays = d.reserve(Op::FileAppend, &[], 6).unwrap();
    let (parked, _) = d.submit(Op::FileAppend, &[], b"tail");
    d.feed(gone, b"half of it");
    d.feed(stays, b"sta");
    d.abort(gone);
    d.feed(stays, b"ys!");
    assert_eq!(done(d.commit(stays)), Answer::ok(4));
    assert_eq!(d.completed(), Some((parked, Answer::ok(10))));
    let all = read(&mut d, 0, 100);
    assert_eq!(d.bytes(&all), b"headstays!tail");
}

#[test]
fn the_abort_of_the_first_releases_what_waited_for_it() {
    let mut d = file();
    let gone = d.reserve(Op::FileAppend, &[], 100).unwrap();
    let (parked, _) = d.submit(Op::FileAppend, &[], b"tail");
    d.abort(gone);
    assert_eq!(d.completed(), Some((parked, Answer::ok(0))));
    let all = read(&mut d, 0, 100);
    assert_eq!(d.bytes(&all), b"tail");
}

#[test]
fn a_full_block_seals_at_its_length_and_points_on() {
    let mut d = file();
    assert!(!d.structure.wants_successor());
    fill_up(&mut d, 1000);
    assert!(d.structure.wants_successor());
    assert!(!d.structure.wants_successor(), "it requests once");
    let busy = append(&mut d, &[2; 2000]);
    assert_eq!((busy.status, busy.value), (Status::Busy, 300));
    assert!(!busy.executed());
    d.set_successor(Successor::Ready(b"next".to_vec()));
    assert_eq!(d.sealed(), None);
    assert_eq!(append(&mut d, &[2; 10]).status, Status::Ok, "it still fits");
    let length = (SIZE - 990) as u64;
    let moved = append(&mut d, &[2; 2000]);
    assert_eq!((moved.status, moved.value), (Status::Moved, length));
    assert_eq!(moved.args, b"next");
    assert_eq!(d.sealed(), Some((length, false)));
    assert_eq!(d.sealed(), None);
    let mut read_args = Vec::new();
    ReadArgs { offset: length, length: 1 }.put(&mut read_args);
    let asks: [(Op, &[u8], &[u8]); 5] = [
        (Op::FileAppend, &[], b"x"),
        (Op::FileAppend, &[], b""),
        (Op::FileSize, &[], &[]),
        (Op::FileSeal, &[], &[]),
        (Op::FileRead, &read_args, &[]),
    ];
    for (op, args, payload) in asks {
        assert_eq!(d.run(op, args, payload), moved, "{}", op.name());
    }
    assert_eq!(d.reserve(Op::FileAppend, &[], 1).unwrap_err(), moved);
    assert_eq!(read(&mut d, length - 1, 10).payload.clone(), {
        let end = length as usize;
        Payload::Block(end - 1..end)
    });
    assert!(!d.structure.wants_successor());
}

#[test]
fn a_block_does_not_seal_under_a_fill() {
    let mut d = file();
    fill_up(&mut d, 1000);
    d.set_successor(Successor::Ready(b"next".to_vec()));
    let fill = d.reserve(Op::FileAppend, &[], 500).unwrap();
    for (op, payload) in [(Op::FileAppend, &[1u8; 600][..]), (Op::FileSeal, &[])] {
        let busy = d.run(op, &[], payload);
        assert_eq!((busy.status, busy.value), (Status::Busy, 200));
    }
    d.abort(fill);
    let moved = append(&mut d, &[1; 1001]);
    assert_eq!((moved.status, moved.value), (Status::Moved, SIZE as u64 - 1000));
}

#[test]
fn a_refused_successor_is_told_and_asked_for_again() {
    let mut d = file();
    fill_up(&mut d, 1000);
    assert!(d.structure.wants_successor());
    d.set_successor(Successor::Denied(Status::OutOfMemory, "0 of 9 blocks are free".into()));
    assert!(!d.structure.wants_successor());
    let refusal = append(&mut d, &[1; 2000]);
    assert_eq!(refusal.status, Status::OutOfMemory);
    assert_eq!(refusal.args, b"0 of 9 blocks are free");
    assert!(d.structure.wants_successor(), "the attempt requests again");
    assert!(!d.structure.wants_successor());
    d.set_successor(Successor::Denied(Status::OutOfMemory, "still none".into()));
    assert_eq!(append(&mut d, &[1; 2000]).args, b"still none");
    assert!(d.structure.wants_successor());
    d.set_successor(Successor::Ready(b"next".to_vec()));
    assert_eq!(append(&mut d, &[1; 2000]).status, Status::Moved);
}

#[test]
fn a_refused_block_asks_again_as_it_fills() {
    let mut d = file();
    fill_up(&mut d, SIZE / 10);
    assert!(d.structure.wants_successor());
    d.set_successor(Successor::Denied(Status::OutOfMemory, "none".into()));
    append(&mut d, &vec![1; SIZE / 64 - 1]);
    assert!(!d.structure.wants_successor());
    append(&mut d, &[1]);
    assert!(d.structure.wants_successor());
}

#[test]
fn large_appends_ask_early() {
    let mut d = file();
    append(&mut d, &vec![1; SIZE / 8]);
    for _ in 0..5 {
        assert!(!d.structure.wants_successor());
        append(&mut d, &vec![1; SIZE / 8]);
    }
    append(&mut d, &[1; 1100]);
    assert!(d.structure.wants_successor(), "less than two such appends are left");
}

/// A client lets the file continue in blocks that another one has filled.
#[test]
fn a_block_continues_when_it_is_told_to() {
    let pass_on = |d: &mut Driver<FileBlock>| d.run(Op::FileContinue, &[], &[]);
    for (content, capacity) in [(&b"some"[..], SIZE), (b"", SIZE), (b"some", SIZE / 8)] {
        let capacity = CapacityRequest::new(capacity, SIZE);
        let block = FileBlock::opened(capacity, Marks::default(), 0);
        let mut d = Driver::new(SIZE, block);
        append(&mut d, content);
        assert_eq!(pass_on(&mut d).status, Status::Busy);
        assert!(d.structure.wants_successor(), "however little is in it");
        d.set_successor(Successor::Denied(Status::OutOfMemory, "none".into()));
        assert_eq!(pass_on(&mut d).status, Status::OutOfMemory);
        assert_eq!(pass_on(&mut d).status, Status::Busy, "there may be one now");
        assert!(d.structure.wants_successor());
        let length = content.len() as u64;
        d.set_successor(Successor::Ready(b"next".to_vec()));
        let fill = d.reserve(Op::FileAppend, &[], 9).unwrap();
        assert_eq!(pass_on(&mut d).status, Status::Busy, "data arrives");
        assert_eq!(append(&mut d, b"x").status, Status::Busy, "others do not delay it");
        d.abort(fill);
        assert_eq!(d.sealed(), Some((length, false)), "at once");
        let told = Answer { args: b"next".to_vec(), ..Answer::ok(length) };
        assert_eq!(pass_on(&mut d), told);
        assert_eq!(pass_on(&mut d), told, "once more");
        assert_eq!((append(&mut d, b"x").status, d.sealed()), (Status::Moved, None));
    }
    // An answer to an earlier request says nothing of the present.
    let mut d = file();
    fill_up(&mut d, 1000);
    assert!(d.structure.wants_successor());
    assert_eq!(pass_on(&mut d).status, Status::Busy);
    d.set_successor(Successor::Denied(Status::OutOfMemory, "none".into()));
    assert_eq!(pass_on(&mut d).status, Status::Busy);
    assert!(d.structure.wants_successor());
    let mut d = file();
    assert_eq!(d.run(Op::FileContinue, &[1], &[]).status, Status::BadFrame);
    d.run(Op::FileSeal, &[], &[]);
    assert_eq!(pass_on(&mut d).status, Status::Sealed);
}

#[test]
fn a_final_seal_is_for_good() {
    let mut d = file();
    append(&mut d, b"all");
    assert_eq!(d.run(Op::FileSeal, &[], &[]).value, 3);
    assert_eq!(d.sealed(), Some((3, true)));
    assert_eq!(d.run(Op::FileSeal, &[], &[]), Answer::ok(3));
    assert_eq!(d.sealed(), None);
    assert_eq!(append(&mut d, b"x").status, Status::Sealed);
    assert_eq!(d.reserve(Op::FileAppend, &[], 1).unwrap_err().status, Status::Sealed);
    let size = d.run(Op::FileSize, &[], &[]);
    assert_eq!((size.value, &size.args[..]), (3, &[1][..]));
    let beyond = read(&mut d, 3, 1);
    assert_eq!((beyond.status, beyond.value, beyond.payload), (Status::Ok, 3, Payload::None));
    assert!(!d.structure.wants_successor());
}

#[test]
fn only_a_block_that_is_final_is_mapped() {
    let mut d = file();
    append(&mut d, b"all");
    let map = |d: &mut Driver<FileBlock>| d.run(Op::FileMap, &[], &[]);
    assert_eq!(map(&mut d).status, Status::NotSealed);
    d.run(Op::FileSeal, &[], &[]);
    assert_eq!(map(&mut d), Answer::ok(3));
    assert_eq!(d.run(Op::FileMap, &[0], &[]).status, Status::BadFrame);
    // A full block with a successor is just as final.
    let mut d = file();
    fill_up(&mut d, 1000);
    d.set_successor(Successor::Ready(b"next".to_vec()));
    assert_eq!(map(&mut d).status, Status::NotSealed);
    assert_eq!(append(&mut d, &[1; 1001]).status, Status::Moved);
    assert_eq!(map(&mut d), Answer::ok(SIZE as u64 - 1000));
}

#[test]
fn committed_bytes_stay_while_a_reader_holds_them() {
    let mut d = file();
    append(&mut d, &pattern(1, 5000));
    let pin = d.block.pin(1000..5000);
    let fill = d.reserve(Op::FileAppend, &[], 3000).unwrap();
    append_parked(&mut d, &pattern(2, 100));
    d.abort(fill);
    append(&mut d, &pattern(3, 100));
    assert_eq!(pin.bytes(), &pattern(1, 5000)[1000..]);
}

fn append_parked(d: &mut Driver<FileBlock>, bytes: &[u8]) -> Ticket {
    let (ticket, outcome) = d.submit(Op::FileAppend, &[], bytes);
    assert_eq!(outcome, Outcome::Parked);
    ticket
}

#[cfg(feature = "bug-bank")]
#[test]
fn the_planted_early_answer_tells_a_wrong_offset() {
    use honeycomb_types::Bug;
    let mut d = file();
    Bug::arm(Some(Bug::AckBeforeEffect));
    let fill = d.reserve(Op::FileAppend, &[], 10).unwrap();
    assert_eq!(append(&mut d, b"early").value, 10);
    assert_eq!(read(&mut d, 10, 5).payload, Payload::None);
    d.abort(fill);
    assert_eq!(d.completed(), None);
    Bug::arm(None);
}
