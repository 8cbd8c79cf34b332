//! Blocks of files and queues that move whole while they are in use.

use crate::Driver;
use honeycomb_structures::{
    Answer, Backing, Capacity, CapacityRequest, Event, ExtentRef, FileBlock, Growth, Migrate,
    Migrating, Movable, Operation, Ops, Outcome, Parcel, Payload, Prepared, QueueBlock,
    QueueBounds, Structure, Successor, Totals, Waits,
};
use honeycomb_types::{BlockAt, Marks, Time};
use honeycomb_wire::data::{MovedArgs, ReadArgs};
use honeycomb_wire::extents::{PutExtents, StoredWhen, put_extents};
use honeycomb_wire::messages::{MapEntry, MoveDoneRequest, MoveRegionRequest, MoveStateRequest};
use honeycomb_wire::queue::{
    AckAction, AckArgs, GetArgs, GetExtentsArgs, Items, LargeItem, put_lengths,
};
use honeycomb_wire::{Field, Op, Status, checksum};
use std::ops::Range;
use std::time::Duration;

const SIZE: usize = 64 * 1024;
const MOVE: u64 = 7;

fn file(importing: u64) -> Driver<FileBlock> {
    Driver::new(
        SIZE,
        FileBlock::opened(CapacityRequest::new(SIZE, SIZE), Marks::default(), importing),
    )
}

fn queue(items: u64, importing: u64) -> Driver<QueueBlock> {
    let bounds = QueueBounds::from_wire(items, 0);
    let capacity = CapacityRequest::new(SIZE, SIZE);
    let first = importing == 0;
    Driver::new(SIZE, QueueBlock::opened(capacity, bounds, first, Marks::default(), importing))
}

/// The name of a next block, as the controller grants it.
fn successor() -> Vec<u8> {
    let entry = MapEntry { start: 0, end: u64::MAX, block: 5, epoch: 1, address: "s:1".into() };
    MovedArgs { version: 2, entry }.encode()
}

/// Sends everything that is ready, as the shards would.
fn migrate<S: Structure>(from: &mut Driver<S>, to: &mut Driver<S>) {
    loop {
        let mover = from.structure.movable().unwrap();
        let parcel = match mover.prepare(&mut from.block, 2000) {
            Prepared::Parcel(parcel) => parcel,
            Prepared::Partly => continue,
            Prepared::Nothing => return,
        };
        let (op, args) = parcel.request(MOVE);
        let bytes = match parcel {
            Parcel::Region { bytes, .. } | Parcel::State { bytes, .. } => bytes,
            other => panic!("{other:?} is not part of a move of a whole block"),
        };
        assert_eq!(to.run(op, &args, &bytes).status, Status::Ok);
    }
}

fn begin<S: Structure>(from: &mut Driver<S>) {
    let mover = from.structure.movable().unwrap();
    assert!(mover.can_leave());
    mover.begin_export(&mut from.block, 0, u64::MAX).unwrap();
}

fn freeze<S: Structure>(from: &mut Driver<S>) {
    from.structure.movable().unwrap().freeze(from.now);
}

/// Everything was sent: it is counted, and the new block takes over.
fn finish<S: Structure>(from: &mut Driver<S>, to: &mut Driver<S>) {
    let totals = from.structure.movable().unwrap().totals();
    let done = MoveDoneRequest { move_id: MOVE, entries: totals.entries, bytes: totals.bytes };
    assert_eq!(to.run(Op::MoveDone, &done.encode(), b"").status, Status::Ok);
    from.structure.movable().unwrap().hand_over();
    let (now, mover) = (to.now, to.structure.movable().unwrap());
    mover.end_import(&mut to.block, now, MOVE, true);
    from.structure.movable().unwrap().depart(from.now, Vec::new());
}

fn read(from: &mut Driver<FileBlock>, offset: u64) -> Answer {
    let mut args = Vec::new();
    ReadArgs { offset, length: 1 << 20 }.put(&mut args);
    from.run(Op::FileRead, &args, b"")
}

#[test]
fn an_open_file_goes_on_where_it_was() {
    let (mut a, mut b) = (file(0), file(MOVE));
    let mut all = Vec::new();
    let mut append = |d: &mut Driver<FileBlock>, n: u8, length: usize| {
        let bytes = vec![n; length];
        let answer = d.run(Op::FileAppend, b"", &bytes);
        if answer.status == Status::Ok {
            assert_eq!(answer.value, all.len() as u64);
            all.extend(bytes);
        }
        answer.status
    };
    assert_eq!(append(&mut a, 1, 5000), Status::Ok);
    assert_eq!(append(&mut b, 9, 10), Status::Busy, "it is not there yet");
    assert_eq!(read(&mut b, 0).status, Status::Busy);
    begin(&mut a);
    migrate(&mut a, &mut b);
    assert_eq!(append(&mut a, 2, 7000), Status::Ok);
    let arriving = a.reserve(Op::FileAppend, b"", 100).unwrap();
    freeze(&mut a);
    assert_eq!(append(&mut a, 9, 10), Status::Busy);
    assert!(!a.structure.movable().unwrap().stands_still());
    a.feed(arriving, &[3; 100]);
    assert!(matches!(a.commit(arriving), Outcome::Done(answer) if answer.value == 12_000));
    assert!(a.structure.movable().unwrap().stands_still());
    // Reads continue until the other block may own the range.
    assert_eq!(read(&mut a, 11_999).value, 12_100);
    migrate(&mut a, &mut b);
    // The move takes too long once, and an append arrives in between.
    a.structure.movable().unwrap().thaw();
    all.extend([3; 100]);
    let answer = a.run(Op::FileAppend, b"", &[4; 50]);
    assert_eq!((answer.status, answer.value), (Status::Ok, 12_100));
    all.extend([4; 50]);
    freeze(&mut a);
    migrate(&mut a, &mut b);
    finish(&mut a, &mut b);
    assert_eq!(read(&mut a, 0).status, Status::WrongEpoch);
    assert_eq!(read(&mut b, 0).value, 12_150);
    assert_eq!(b.block.slice(0..all.len()), all);
    let answer = b.run(Op::FileAppend, b"", b"on");
    assert_eq!((answer.status, answer.value), (Status::Ok, 12_150));
    assert!(!b.structure.wants_successor(), "none was requested before");
}

/// The controller has given the move up, and grants a request of the block, which is still sent. Seed 1126565
/// of the simulator.
#[test]
fn a_file_whose_capacity_grows_while_it_is_sent_is_sent_whole() {
    let block = |importing| {
        let capacity = CapacityRequest::new(SIZE / 2, SIZE);
        Driver::new(SIZE, FileBlock::opened(capacity, Marks::default(), importing))
    };
    let (mut a, mut b) = (block(0), block(MOVE));
    assert_eq!(a.run(Op::FileAppend, b"", &[1; 5000]).status, Status::Ok);
    begin(&mut a);
    migrate(&mut a, &mut b);
    let now = a.now;
    a.structure.enlarge().unwrap().capacity(&mut a.block, now, Capacity::Granted(SIZE));
    assert_eq!(a.structure.movable().unwrap().unsent(), 0);
    freeze(&mut a);
    migrate(&mut a, &mut b);
    finish(&mut a, &mut b);
    assert_eq!(read(&mut b, 0).value, 5000);
}

#[test]
fn a_sealed_file_says_again_that_it_is() {
    let (mut a, mut b) = (file(0), file(MOVE));
    assert_eq!(a.run(Op::FileAppend, b"", b"all").status, Status::Ok);
    assert_eq!(a.run(Op::FileSeal, b"", b"").value, 3);
    assert_eq!(a.sealed(), Some((3, true)));
    begin(&mut a);
    freeze(&mut a);
    migrate(&mut a, &mut b);
    finish(&mut a, &mut b);
    assert_eq!(b.sealed(), Some((3, true)));
    assert_eq!(b.run(Op::FileAppend, b"", b"more").status, Status::Sealed);
}

#[test]
fn a_successor_that_may_have_been_granted_is_asked_for_at_once() {
    let (mut a, mut b) = (file(0), file(MOVE));
    assert_eq!(a.run(Op::FileAppend, b"", b"little").status, Status::Ok);
    a.set_successor(Successor::Ready(successor()));
    begin(&mut a);
    freeze(&mut a);
    migrate(&mut a, &mut b);
    finish(&mut a, &mut b);
    assert!(b.structure.wants_successor());
    assert!(!b.structure.wants_successor(), "once");
}

fn put(d: &mut Driver<QueueBlock>, item: &[u8]) -> Answer {
    let mut args = Vec::new();
    put_lengths(&[item], &mut args);
    d.run(Op::QueuePut, &args, item)
}

fn get_args(items: u32, reserve_ms: u32) -> Vec<u8> {
    let mut args = Vec::new();
    GetArgs { items, bytes: 1 << 20, reserve_ms, stay: false }.put(&mut args);
    args
}

fn taken(answer: &Answer) -> (u64, Vec<u8>) {
    let Payload::Bytes(bytes) = &answer.payload else { panic!("{answer:?}") };
    (Items::decode(&answer.args, bytes.len()).unwrap().first, bytes.to_vec())
}

#[test]
fn a_queue_keeps_its_order_its_reservations_and_its_bound() {
    let (mut a, mut b) = (queue(5, 0), queue(5, MOVE));
    for item in [b"0", b"1", b"2", b"3"] {
        assert_eq!(put(&mut a, item).status, Status::Ok);
    }
    assert_eq!(taken(&a.run(Op::QueueGet, &get_args(1, 0), b"")), (0, b"0".to_vec()));
    assert_eq!(taken(&a.run(Op::QueueGet, &get_args(1, 500), b"")), (1, b"1".to_vec()));
    begin(&mut a);
    migrate(&mut a, &mut b);
    assert_eq!(put(&mut a, b"4").status, Status::Ok);
    a.sleep(100);
    freeze(&mut a);
    assert_eq!(put(&mut a, b"x").status, Status::Busy);
    assert_eq!(a.run(Op::QueueGet, &get_args(1, 0), b"").status, Status::Busy);
    migrate(&mut a, &mut b);
    finish(&mut a, &mut b);
    // A reserved item is out for the remaining time, and its holder can settle it here.
    let ack = AckArgs { action: AckAction::Extend, timeout_ms: 1000, items: vec![(1, 1)] }.encode();
    assert_eq!(b.run(Op::QueueAck, &ack, b"").value, 1);
    assert_eq!(taken(&b.run(Op::QueueGet, &get_args(2, 0), b"")), (2, b"23".to_vec()));
    b.sleep(1001);
    assert_eq!(taken(&b.run(Op::QueueGet, &get_args(9, 0), b"")), (1, b"1".to_vec()));
    // Five fit: one is left.
    for n in 0..4 {
        assert_eq!(put(&mut b, b"y").value, 5 + n);
    }
    assert_eq!(put(&mut b, b"z").status, Status::QueueFull);
}

#[test]
fn who_waits_is_told_that_the_block_is_another() {
    let (mut a, mut b) = (queue(0, 0), queue(0, MOVE));
    let until = a.now + Duration::from_millis(50);
    let (getter, outcome) = a.submit_until(until, Op::QueueGet, &get_args(1, 0), b"");
    assert_eq!(outcome, Outcome::Parked);
    begin(&mut a);
    freeze(&mut a);
    a.sleep(100);
    assert!(a.completed().is_none(), "its time does not run out after the records have gone");
    migrate(&mut a, &mut b);
    // The move was too slow: waiting requests that timed out are answered now.
    a.structure.movable().unwrap().thaw();
    assert_eq!(a.structure.deadline(), Some(Time::ZERO));
    a.sleep(0);
    assert!(
        matches!(a.completed(), Some((t, answer)) if t == getter && answer.status == Status::QueueEmpty)
    );
    let until = a.now + Duration::from_millis(50);
    let (getter, _) = a.submit_until(until, Op::QueueGet, &get_args(1, 0), b"");
    freeze(&mut a);
    migrate(&mut a, &mut b);
    finish(&mut a, &mut b);
    assert!(
        matches!(a.completed(), Some((t, answer)) if t == getter && answer.status == Status::WrongEpoch)
    );
    assert_eq!(put(&mut b, b"there").value, 0);
}

#[test]
fn a_queue_that_was_sealed_is_heard_of_again() {
    let (mut a, mut b) = (queue(9, 0), queue(9, MOVE));
    let item = [1; SIZE / 8 - 4];
    a.set_successor(Successor::Ready(successor()));
    let full = (0..9).map(|_| put(&mut a, &item)).find(|answer| answer.status != Status::Ok);
    assert_eq!(full.unwrap().status, Status::Moved);
    let (length, _) = a.sealed().unwrap();
    for _ in 0..length {
        assert_eq!(a.run(Op::QueueGet, &get_args(1, 0), b"").status, Status::Ok);
    }
    begin(&mut a);
    freeze(&mut a);
    migrate(&mut a, &mut b);
    finish(&mut a, &mut b);
    let events = b.events();
    let sealed =
        events.iter().any(|e| matches!(e, Event::Sealed { length: l, .. } if *l == length));
    let told = events.iter().any(|e| matches!(e, Event::Taken { items, .. } if *items == length));
    assert!(sealed && told && events.contains(&Event::Drained), "{events:?}");
    b.taken_received();
}

#[test]
fn parts_that_nobody_sent_are_refused() {
    let mut b = queue(0, MOVE);
    let mut run = |op: Op, args: Vec<u8>, payload: &[u8]| b.run(op, &args, payload).status;
    let sum = checksum(b"1234");
    let region = |move_id, start, end, checksum| {
        MoveRegionRequest { move_id, start, end, values: 0, checksum }.encode()
    };
    assert_eq!(run(Op::MoveRegion, region(8, 0, 3, sum), b"1234"), Status::WrongEpoch);
    assert_eq!(run(Op::MoveRegion, region(MOVE, 0, 3, 1), b"1234"), Status::BadFrame);
    assert_eq!(run(Op::MoveRegion, region(MOVE, 0, 9, sum), b"1234"), Status::BadFrame);
    let beyond = SIZE as u64 - 2;
    assert_eq!(
        run(Op::MoveRegion, region(MOVE, beyond, beyond + 3, sum), b"1234"),
        Status::BadFrame
    );
    assert_eq!(run(Op::MoveRegion, region(MOVE, u64::MAX, 2, sum), b"1234"), Status::BadFrame);
    let state = |offset, checksum| MoveStateRequest { move_id: MOVE, offset, length: 4, checksum };
    assert_eq!(run(Op::MoveState, state(5, sum).encode(), b"1234"), Status::BadFrame);
    // More state than a block can have, and more than was announced.
    let vast = MoveStateRequest { length: 6 * SIZE as u64 + 4097, ..state(0, sum) };
    assert_eq!(run(Op::MoveState, vast.encode(), b"1234"), Status::BadFrame);
    let short = MoveStateRequest { length: 3, ..state(0, sum) };
    assert_eq!(run(Op::MoveState, short.encode(), b"1234"), Status::BadFrame);
    assert_eq!(run(Op::MoveState, state(0, sum).encode(), b"1234"), Status::Ok);
    let done = |bytes| MoveDoneRequest { move_id: MOVE, entries: 1, bytes }.encode();
    assert_eq!(run(Op::MoveDone, done(4), b""), Status::Internal);
    assert_eq!(run(Op::MoveDone, done(0), b""), Status::BadFrame, "it is no state of a queue");
    let mut own = queue(0, 0);
    let part = region(MOVE, 0, 3, sum);
    assert_eq!(own.run(Op::MoveRegion, &part, b"1234").status, Status::WrongEpoch);
}

/// The server that received the block ended when a subscriber was sent to the successor.
#[test]
fn received_block_with_an_invalid_successor_is_refused() {
    let (mut file_from, mut queue_from) = (file(0), queue(0, 0));
    file_from.set_successor(Successor::Ready(successor()));
    let full = [1; SIZE / 8];
    while file_from.run(Op::FileAppend, b"", &full).status == Status::Ok {}
    queue_from.set_successor(Successor::Ready(successor()));
    while put(&mut queue_from, &full[..SIZE / 8 - 4]).status == Status::Ok {}
    let sent = [sent_by(&mut file_from), sent_by(&mut queue_from)];
    for (is_queue, (bytes, image, totals)) in sent.into_iter().enumerate() {
        let valid = successor();
        let at = image.windows(valid.len()).position(|part| part == valid).unwrap();
        let (before, after) = (&image[..at - 4], &image[at + valid.len()..]);
        let no_successor = |bytes: &[u8]| {
            let length = (bytes.len() as u32).to_le_bytes();
            [before, &length, bytes, after].concat()
        };
        assert_eq!(no_successor(&valid), image, "a length of four bytes precedes it");
        let longer = [&valid[..], b"x"].concat();
        for (successor, expected) in [
            (&valid[..], Status::Ok),
            (&valid[..valid.len() - 1], Status::BadFrame),
            (&longer[..], Status::BadFrame),
            (&b""[..], Status::BadFrame),
            (&b"the next"[..], Status::BadFrame),
        ] {
            let image = no_successor(successor);
            let answer = match is_queue {
                0 => restored(&mut file(MOVE), &bytes, &image, &totals),
                _ => restored(&mut queue(0, MOVE), &bytes, &image, &totals),
            };
            assert_eq!(answer.status, expected, "{successor:?}");
            let text = String::from_utf8_lossy(&answer.args).into_owned();
            assert!(expected == Status::Ok || text.contains("invalid successor"), "{text}");
        }
    }
}

/// A part of a move of a whole block: the operation, its arguments and its payload.
type Part = (Op, Vec<u8>, Vec<u8>);

/// The bytes that a block sends, and the state that it sends beside them.
fn sent_by<S: Structure>(from: &mut Driver<S>) -> (Vec<Part>, Vec<u8>, Totals) {
    begin(from);
    freeze(from);
    let (mut parts, mut image) = (Vec::new(), Vec::new());
    while let Some(parcel) = from.structure.movable().unwrap().next_parcel(&mut from.block) {
        let (op, args) = parcel.request(MOVE);
        match parcel {
            Parcel::Region { bytes, .. } => parts.push((op, args, bytes.to_vec())),
            Parcel::State { bytes, .. } => image.extend_from_slice(&bytes),
            other => panic!("{other:?} is not part of a move of a whole block"),
        }
    }
    (parts, image, from.structure.movable().unwrap().totals())
}

/// The answer of a block that receives these parts and this state.
fn restored<S: Structure>(
    to: &mut Driver<S>,
    parts: &[Part],
    image: &[u8],
    totals: &Totals,
) -> Answer {
    for (op, args, bytes) in parts {
        assert_eq!(to.run(*op, args, bytes).status, Status::Ok);
    }
    let (offset, length, checksum) = (0, image.len() as u64, checksum(image));
    let part = MoveStateRequest { move_id: MOVE, offset, length, checksum };
    assert_eq!(to.run(Op::MoveState, &part.encode(), image).status, Status::Ok);
    let done = MoveDoneRequest { move_id: MOVE, entries: totals.entries, bytes: totals.bytes };
    to.run(Op::MoveDone, &done.encode(), b"")
}

/// A list moves with its owner, its reservation and its count, and the extents stay; while its bytes are sent
/// it is not replaced.
#[test]
fn large_items_of_a_queue_move_as_lists() {
    let (mut a, mut b) = (queue(9, 0), queue(9, MOVE));
    let extent = |id| ExtentRef { at: BlockAt::of(77, 3), id, len: 900 };
    let put_list = |d: &mut Driver<QueueBlock>, id: u64, when: StoredWhen<'_>, key: &[u8]| {
        let list = put_extents(&[extent(id)]);
        let (args, payload) = PutExtents { when, key, list: &list }.encode();
        let (ticket, outcome) = d.submit(Op::QueuePutExtents, &args, &payload);
        assert_eq!(outcome, Outcome::Parked);
        d.adopted(ticket, id, Ok(()));
        d.completed().map(|(_, answer)| answer.status)
    };
    let reserve = |d: &mut Driver<QueueBlock>| {
        let args = GetExtentsArgs { reserve_ms: 1000, stay: false }.encode();
        let answer = d.run(Op::QueueGetExtents, &args, b"");
        (LargeItem::decode(&answer.args).unwrap(), d.bytes(&answer))
    };
    put(&mut a, b"0");
    for id in [1, 2, 3] {
        assert_eq!(put_list(&mut a, id, StoredWhen::Always, b""), Some(Status::Ok));
    }
    assert_eq!(taken(&a.run(Op::QueueGet, &get_args(1, 0), b"")), (0, b"0".to_vec()));
    let (first, list) = reserve(&mut a);
    assert_eq!(list, put_extents(&[extent(1)]));
    let used = a.structure.bytes_used();
    begin(&mut a);
    migrate(&mut a, &mut b);
    let old = put_extents(&[extent(3)]);
    assert_eq!(put_list(&mut a, 9, StoredWhen::Still(&old), &3u64.to_le_bytes()), None);
    freeze(&mut a);
    migrate(&mut a, &mut b);
    finish(&mut a, &mut b);
    assert_eq!(b.structure.bytes_used(), used);
    assert_eq!(b.run(Op::QueueLength, &[0], b"").args[8..16], 2701u64.to_le_bytes());
    let (second, list) = reserve(&mut b);
    assert_eq!((second.number, list), (2, put_extents(&[extent(2)])));
    for (item, owner) in [(second, 2), (first, 1)] {
        let items = vec![(item.number, item.deliveries)];
        let ack = AckArgs { action: AckAction::Done, timeout_ms: 0, items }.encode();
        assert_eq!(b.run(Op::QueueAck, &ack, b"").value, 1);
        let events = b.events();
        assert_eq!(events, [Event::DropExtents(owner, vec![extent(owner)])]);
    }
}

/// A queue from which one item was taken and one is reserved, after its bytes were sent to another block; and
/// the state that is sent with them.
fn queue_to_receive() -> (Driver<QueueBlock>, Vec<u8>, u64) {
    let (mut a, mut b) = (queue(9, 0), queue(9, MOVE));
    for item in [&b"0"[..], b"11", b"222", b"3333"] {
        assert_eq!(put(&mut a, item).status, Status::Ok);
    }
    assert_eq!(taken(&a.run(Op::QueueGet, &get_args(1, 0), b"")), (0, b"0".to_vec()));
    assert_eq!(taken(&a.run(Op::QueueGet, &get_args(1, 500), b"")), (1, b"11".to_vec()));
    begin(&mut a);
    migrate(&mut a, &mut b);
    freeze(&mut a);
    let mover = a.structure.movable().unwrap();
    let Some(Parcel::State { bytes, .. }) = mover.next_parcel(&mut a.block) else {
        panic!("only its state is left")
    };
    (b, bytes.to_vec(), mover.totals().bytes)
}

fn receive_state(to: &mut Driver<QueueBlock>, state: &[u8], bytes: u64) -> Status {
    let (length, checksum) = (state.len() as u64, checksum(state));
    let part = MoveStateRequest { move_id: MOVE, offset: 0, length, checksum };
    assert_eq!(to.run(Op::MoveState, &part.encode(), state).status, Status::Ok);
    let done = MoveDoneRequest { move_id: MOVE, entries: 1, bytes };
    to.run(Op::MoveDone, &done.encode(), b"").status
}

/// Counters and a directory that contradict each other were adopted, and ended the server at a later request.
#[test]
fn queue_state_that_contradicts_itself_is_refused() {
    let (mut b, state, bytes) = queue_to_receive();
    let [committed, base, count, head, put_bytes, gone, gone_bytes, size] =
        std::array::from_fn(|field| 8 * field);
    let (ahead, ahead_bytes, reserved, deliveries) = (65, 73, 91, 107);
    assert_eq!(state.len(), deliveries + 4, "one item is reserved");
    let changes = [
        (committed, 9),
        (committed, 11),
        (committed, SIZE as u64 + 1),
        (base, 1),
        (base, u64::MAX),
        (count, 3),
        (count, 5),
        (count, u64::MAX),
        (head, 1),
        (head, 3),
        (head, 5),
        (put_bytes, 11),
        (put_bytes, u64::MAX),
        (gone, 0),
        (gone, 2),
        (gone, u64::MAX),
        (gone_bytes, 0),
        (gone_bytes, 2),
        (gone_bytes, u64::MAX),
        (size, 0),
        (size, SIZE as u64 - 1),
        (size, SIZE as u64 + 1),
        (size, u64::MAX),
        (ahead, u64::MAX),
        (ahead_bytes, u64::MAX),
        (reserved, 0),
        (reserved, 2),
        (reserved, u64::MAX),
    ];
    for (field, value) in changes {
        let mut state = state.clone();
        state[field..field + 8].copy_from_slice(&value.to_le_bytes());
        let refused = receive_state(&mut b, &state, bytes);
        assert_eq!(refused, Status::BadFrame, "{value} at {field}");
    }
    for delivered in [0, u32::MAX] {
        let mut state = state.clone();
        state[deliveries..].copy_from_slice(&delivered.to_le_bytes());
        assert_eq!(receive_state(&mut b, &state, bytes), Status::BadFrame, "{delivered}");
    }
    // An item that is reserved twice, as if none had been taken.
    let mut twice = [&state[..], &state[reserved..]].concat();
    twice[reserved - 8] = 2;
    twice[gone] = 0;
    assert_eq!(receive_state(&mut b, &twice, bytes), Status::BadFrame);
    // Of the directory: the end of the second item, and of the last one.
    for (place, end) in [(SIZE - 8, 0_u32), (SIZE - 8, 7), (SIZE - 16, 11), (SIZE - 16, u32::MAX)] {
        let before = b.block.slice(place..place + 4).to_vec();
        b.block.slice_mut(place..place + 4).copy_from_slice(&end.to_le_bytes());
        assert_eq!(receive_state(&mut b, &state, bytes), Status::BadFrame, "{end} at {place}");
        b.block.slice_mut(place..place + 4).copy_from_slice(&before);
    }
    assert_eq!(receive_state(&mut b, &state, bytes), Status::Ok);
    let now = b.now;
    b.structure.movable().unwrap().end_import(&mut b.block, now, MOVE, true);
    let rest = taken(&b.run(Op::QueueGet, &get_args(9, 0), b""));
    assert_eq!(rest, (2, b"2223333".to_vec()));
}

/// A content without bytes, whose state is a name that may be empty.
struct Name(Vec<u8>);

impl Migrate for Name {
    fn front_start(&self, _: &Backing) -> usize {
        0
    }

    fn front_end(&self) -> usize {
        0
    }

    fn back(&self) -> Range<usize> {
        SIZE..SIZE
    }

    fn is_settled(&self) -> bool {
        true
    }

    fn image(&self, _: Time) -> Vec<u8> {
        self.0.clone()
    }

    fn restore(&mut self, _: &Backing, _: Time, image: &[u8]) -> Result<(), Answer> {
        self.0 = image.to_vec();
        Ok(())
    }

    fn resume(&mut self, _: &mut Backing, _: Time, _: bool) {}

    fn dismiss(&mut self, _: &Answer) {}
}

/// A block with such a content.
struct NameBlock(Migrating<Name>);

impl NameBlock {
    fn driver(name: &[u8], importing: u64) -> Driver<NameBlock> {
        Driver::new(SIZE, NameBlock(Migrating::new(Name(name.to_vec()), importing)))
    }
}

impl Structure for NameBlock {
    fn movable(&mut self) -> Option<&mut dyn Movable> {
        Some(&mut self.0)
    }
}

impl Ops for NameBlock {
    fn apply(&mut self, block: &mut Backing, part: &Operation<'_>, payload: &[u8]) -> Outcome {
        Outcome::Done(self.0.receive(block, part, payload).unwrap_or_else(|refusal| refusal))
    }

    fn bytes_used(&self) -> u64 {
        0
    }
}

/// The state was not sent again, and the other block had the one from before the thaw.
#[test]
fn state_that_becomes_empty_after_a_thaw_replaces_the_one_that_was_sent() {
    let (mut a, mut b) = (NameBlock::driver(b"x", 0), NameBlock::driver(b"", MOVE));
    begin(&mut a);
    freeze(&mut a);
    migrate(&mut a, &mut b);
    a.structure.movable().unwrap().thaw();
    a.structure.0.content_mut().0.clear();
    freeze(&mut a);
    migrate(&mut a, &mut b);
    finish(&mut a, &mut b);
    assert_eq!(b.structure.0.content().0, b"");
}

#[test]
fn state_of_which_a_part_is_missing_is_refused() {
    let mut b = NameBlock::driver(b"", MOVE);
    let done = MoveDoneRequest { move_id: MOVE, entries: 1, bytes: 0 }.encode();
    assert_eq!(b.run(Op::MoveDone, &done, b"").status, Status::Internal, "no part of it");
    let part = |b: &mut Driver<NameBlock>, offset, length| {
        let part = MoveStateRequest { move_id: MOVE, offset, length, checksum: checksum(b"12") };
        b.run(Op::MoveState, &part.encode(), b"12").status
    };
    assert_eq!(part(&mut b, 0, 4), Status::Ok);
    assert_eq!(part(&mut b, 2, 6), Status::BadFrame, "its length has changed");
    assert_eq!(b.run(Op::MoveDone, &done, b"").status, Status::Internal);
    assert_eq!((part(&mut b, 0, 4), part(&mut b, 2, 4)), (Status::Ok, Status::Ok));
    assert_eq!(b.run(Op::MoveDone, &done, b"").status, Status::Ok);
    assert_eq!(b.structure.0.content().0, b"1212");
}
