//! The rules of requests with many keys or ranges, one by one.

use crate::{Driver, pattern};
use honeycomb_structures::{Answer, FileBlock, KvBlock, Marks, Ops, Payload, Successor};
use honeycomb_types::limits::{KV_BATCH_BYTES_MAX, KV_BATCH_MAX, MANY_BYTES_MAX, READ_RANGES_MAX};
use honeycomb_wire::batch::{
    BatchOp, BatchResult, ReadManyArgs, put_batch, put_keys, ranges, results,
};
use honeycomb_wire::stored::{Function, accumulate_args};
use honeycomb_wire::{Op, Status, key_hash};

const MIB: usize = 1 << 20;

fn kv(size: usize) -> Driver<KvBlock> {
    Driver::new(size, KvBlock::new(size, 0, u64::MAX, Marks::default()))
}

fn put(d: &mut Driver<KvBlock>, key: &[u8], value: &[u8]) {
    let args = [&[0][..], key].concat();
    assert_eq!(d.run(Op::KvPut, &args, value).status, Status::Ok);
}

fn batch(d: &mut Driver<KvBlock>, atomic: bool, ops: &[BatchOp<'_>]) -> (Answer, Vec<u8>) {
    let answer = d.run(Op::KvBatch, &[atomic as u8], &put_batch(ops));
    assert!(!matches!(answer.payload, Payload::Block(_)), "it is kept for retries");
    let bytes = d.bytes(&answer);
    d.structure.check(&d.block);
    (answer, bytes)
}

fn multi_get(d: &mut Driver<KvBlock>, bytes: u32, keys: &[&[u8]]) -> (Answer, Vec<u8>) {
    let answer = d.run(Op::KvMultiGet, &bytes.to_le_bytes(), &put_keys(keys));
    let bytes = d.bytes(&answer);
    (answer, bytes)
}

fn read_many(d: &mut Driver<FileBlock>, bytes: u32, asked: &[(u64, u32)]) -> (Answer, Vec<u8>) {
    let mut args = Vec::new();
    ReadManyArgs { bytes, ranges: asked.to_vec() }.put(&mut args);
    let answer = d.run(Op::FileReadMany, &args, &[]);
    let bytes = d.bytes(&answer);
    (answer, bytes)
}

fn refused_for(answer: &Answer, status: Status, word: &str) {
    assert_eq!(answer.status, status);
    let message = std::str::from_utf8(&answer.args).unwrap();
    assert!(message.contains(word), "{message}");
}

#[test]
fn requests_over_their_limits_are_refused_whole_or_arriving() {
    let mut d = kv(MIB);
    let long = vec![0; KV_BATCH_BYTES_MAX + 1];
    let sum = accumulate_args(Function::Append, b"k");
    for (op, args) in [(Op::KvMultiGet, &[0; 4][..]), (Op::KvBatch, &[1]), (Op::KvAccumulate, &sum)]
    {
        let named = KV_BATCH_BYTES_MAX.to_string();
        refused_for(&d.run(op, args, &long), Status::ValueTooLarge, &named);
        refused_for(&d.reserve(op, args, 70_000).unwrap_err(), Status::ValueTooLarge, &named);
    }
    let many = vec![BatchOp::Delete { key: b"k" }; KV_BATCH_MAX + 1];
    refused_for(&batch(&mut d, false, &many).0, Status::InvalidArgument, "1024");
    assert_eq!(batch(&mut d, false, &many[1..]).0.value, KV_BATCH_MAX as u64);
    let keys = vec![&b"k"[..]; KV_BATCH_MAX + 1];
    refused_for(&multi_get(&mut d, 1000, &keys).0, Status::InvalidArgument, "1024");
    let mut file = Driver::new(MIB, FileBlock::new(MIB));
    let (answer, _) = read_many(&mut file, 0, &vec![(0, 1); READ_RANGES_MAX + 1]);
    refused_for(&answer, Status::InvalidArgument, "4096");
    assert_eq!(d.structure.bytes_used(), kv(MIB).structure.bytes_used());
}

#[test]
fn a_reply_of_many_keys_is_bounded_and_always_gets_on() {
    let mut d = kv(16 * MIB);
    put(&mut d, b"small", &[1; 50]);
    put(&mut d, b"large", &vec![2; 100_000]);
    put(&mut d, b"huge", &vec![3; MANY_BYTES_MAX]);
    let (answer, bytes) =
        multi_get(&mut d, 200, &[b"small", b"none", b"large", b"small", b"small"]);
    let told = results(&bytes, answer.value as usize).unwrap();
    assert_eq!(answer.value, 4, "the fifth has no room: {} bytes", bytes.len());
    assert_eq!((told[0].status, told[0].bytes), (Status::Ok, &[1; 50][..]));
    assert_eq!(told[1].status, Status::KeyNotFound);
    let alone = BatchResult { status: Status::ValueTooLarge, value: 100_000, bytes: b"" };
    assert_eq!(told[2], alone, "no reply of this size has room for it");
    // The first key is answered however little was requested.
    for key in [&b"none"[..], b"small", b"huge"] {
        assert_eq!(multi_get(&mut d, 0, &[key, key]).0.value, 1);
    }
    let (answer, bytes) = multi_get(&mut d, u32::MAX, &[&b"large"[..]; 20]);
    assert_eq!((answer.value, bytes.len()), (10, 10 * 100_014), "a MiB at most");
    let (answer, bytes) = multi_get(&mut d, u32::MAX, &[b"huge", b""]);
    let told = results(&bytes, answer.value as usize).unwrap();
    assert_eq!((told[0].status, told[0].value), (Status::ValueTooLarge, MANY_BYTES_MAX as u64));
    assert_eq!(told[1].status, Status::InvalidArgument, "each key has its own error");
}

#[test]
fn a_batch_ends_where_its_reply_is_full_and_has_not_run_the_rest() {
    let mut d = kv(16 * MIB);
    put(&mut d, b"k", &vec![1; 25_000]);
    let ops = [
        BatchOp::Get { key: b"k" },
        BatchOp::Swap { key: b"k", expected: None, new: b"x" },
        BatchOp::Get { key: b"k" },
        BatchOp::Delete { key: b"k" },
    ];
    let (answer, bytes) = batch(&mut d, false, &ops);
    assert_eq!((answer.value, &answer.args[..]), (2, &[1][..]));
    let told = results(&bytes, 2).unwrap();
    assert_eq!((told[1].status, told[1].bytes.len()), (Status::CompareFailed, 25_000));
    let (answer, _) = batch(&mut d, false, &ops[2..]);
    assert_eq!(answer.value, 2);
    // A value that fits into no reply ends it as well, by its length.
    put(&mut d, b"k", &vec![1; 100_000]);
    let (answer, bytes) = batch(&mut d, false, &ops);
    let told = results(&bytes, 1).unwrap();
    assert_eq!((answer.value, told[0].status, told[0].value), (1, Status::ValueTooLarge, 100_000));
    let (answer, bytes) = batch(&mut d, false, &ops[1..2]);
    let told = results(&bytes, 1).unwrap()[0];
    assert_eq!((answer.value, told.status, told.value), (1, Status::CompareFailed, 2));
    let (answer, bytes) = batch(&mut d, true, &ops[3..]);
    assert_eq!((answer.value, &answer.args[..]), (1, &[1][..]));
    assert_eq!(results(&bytes, 1).unwrap()[0].status, Status::Ok);
}

#[test]
fn keys_of_another_block_end_an_answer_and_do_not_begin_one() {
    let half = u64::MAX / 2;
    let mut d = Driver::new(MIB, KvBlock::new(MIB, 0, half, Marks::default()));
    let keys: Vec<Vec<u8>> = (0..100).map(|i| format!("key-{i}").into_bytes()).collect();
    let (mine, other): (Vec<_>, Vec<_>) =
        keys.iter().map(|key| &key[..]).partition(|key| key_hash(key) <= half);
    let mixed = [mine[0], mine[1], other[0], mine[2]];
    let put = |key| BatchOp::Put { key, value: b"v" };
    let (answer, _) = batch(&mut d, false, &mixed.map(put));
    assert_eq!((answer.status, answer.value), (Status::Ok, 2));
    assert_eq!(multi_get(&mut d, 1000, &mixed).0.value, 2);
    assert_eq!(
        batch(&mut d, false, &mixed[2..].iter().map(|k| put(k)).collect::<Vec<_>>()).0.status,
        Status::WrongRange
    );
    assert_eq!(multi_get(&mut d, 1000, &mixed[2..]).0.status, Status::WrongRange);
    assert_eq!(batch(&mut d, true, &[put(other[0])]).0.status, Status::WrongRange);
    assert_eq!(d.run(Op::KvLength, &[], &[]).value, 2);
    let (answer, _) = batch(&mut d, true, &[put(mine[0]), put(other[0])]);
    assert_eq!(answer.status, Status::InvalidArgument, "two slots, in whatever block");
}

#[test]
fn an_atomic_batch_needs_no_room_for_what_stays_as_long_and_undoes_what_does_not() {
    let mut d = kv(65536);
    let keys: Vec<Vec<u8>> = (0..400).map(|i| format!("{{f}}{i}").into_bytes()).collect();
    let stored = keys
        .iter()
        .take_while(|key| {
            let args = [&[0][..], key].concat();
            d.run(Op::KvPut, &args, &[7; 200]).status == Status::Ok
        })
        .count();
    assert!(stored > 200, "{stored}");
    let all: Vec<BatchOp<'_>> =
        keys[..stored].iter().map(|key| BatchOp::Put { key, value: &[8; 200] }).collect();
    assert_eq!(batch(&mut d, true, &all).0.args, [1]);
    // Longer values do not fit beside the old ones: at the first of them, in the middle, anywhere.
    for at in [0, stored / 2, stored - 1] {
        let first = at.saturating_sub(30);
        let mut ops = all[first..stored.min(first + 60)].to_vec();
        for (i, op) in ops.iter_mut().enumerate().skip(at - first) {
            let BatchOp::Put { key, .. } = *op else { unreachable!() };
            let value = if i % 3 == 0 { pattern(i as u64, 1100) } else { vec![9; 208] };
            *op = BatchOp::Put { key, value: value.leak() };
        }
        ops.push(BatchOp::Put { key: b"{f}last", value: &[0; 8000] });
        let before = d.structure.bytes_used();
        let (answer, bytes) = batch(&mut d, true, &ops);
        assert_eq!(answer.args, [0]);
        assert_eq!(results(&bytes, 1).unwrap()[0].status, Status::BlockFull);
        assert_eq!(d.structure.bytes_used(), before, "the staged bytes were freed");
        for key in &keys[..stored] {
            let answer = d.run(Op::KvGet, key, &[]);
            assert_eq!(d.bytes(&answer), [8; 200]);
        }
    }
    assert_eq!(d.run(Op::KvLength, &[], &[]).value, stored as u64);
}

#[test]
fn a_pinned_value_is_replaced_by_an_atomic_batch_and_stays_readable() {
    let mut d = kv(65536);
    put(&mut d, b"{p}a", &[1; 6000]);
    put(&mut d, b"{p}b", &[2; 500]);
    let pins: Vec<_> = [&b"{p}a"[..], b"{p}b"]
        .into_iter()
        .map(|key| {
            let Payload::Block(range) = d.run(Op::KvGet, key, &[]).payload else {
                panic!("a value")
            };
            d.block.pin(range)
        })
        .collect();
    let ops = [
        BatchOp::Put { key: b"{p}a", value: &[3; 6000] },
        BatchOp::Put { key: b"{p}b", value: &[4; 500] },
    ];
    assert_eq!(batch(&mut d, true, &ops).0.args, [1]);
    assert_eq!((pins[0].bytes(), pins[1].bytes()), (&[1; 6000][..], &[2; 500][..]));
    assert_eq!(d.run(Op::KvLength, &[], &[]).value, 2);
    drop(pins);
    for (key, byte, length) in [(b"{p}a", 3, 6000), (b"{p}b", 4, 500)] {
        let answer = d.run(Op::KvGet, key, &[]);
        assert_eq!(d.bytes(&answer), vec![byte; length]);
    }
}

#[test]
fn accumulates_of_an_atomic_batch_make_a_bounded_number_of_bytes() {
    let mut d = kv(16 * MIB);
    put(&mut d, b"k", &vec![1; 600_000]);
    let more = BatchOp::Accumulate { key: b"k", function: Function::Append, operand: b"x" };
    assert_eq!(batch(&mut d, true, &[more]).0.args, [1]);
    let (answer, bytes) = batch(&mut d, true, &[more, more]);
    assert_eq!((answer.value, &answer.args[..]), (1, &[0][..]));
    let told = results(&bytes, 1).unwrap()[0];
    assert_eq!(told.status, Status::ValueTooLarge);
    assert!(String::from_utf8_lossy(told.bytes).contains(&MANY_BYTES_MAX.to_string()));
    assert_eq!(batch(&mut d, false, &[more, more]).0.value, 2, "alone each has its own limit");
    let length = d.run(Op::KvExists, b"k", &[]);
    assert_eq!(length.args, 600_003u64.to_le_bytes());
}

#[test]
fn ranges_are_answered_as_far_as_there_is_room_and_the_block_goes() {
    let mut d = Driver::new(MIB, FileBlock::new(MIB));
    let content = pattern(1, 100_000);
    assert_eq!(d.run(Op::FileAppend, &[], &content).status, Status::Ok);
    let (answer, bytes) = read_many(&mut d, 1000, &[(0, 3000), (500, 2000), (7, 1)]);
    assert_eq!(answer.value, 1, "less than 4096 is taken for that");
    assert_eq!(ranges(&bytes, 1).unwrap(), [&content[..3000]]);
    let (answer, bytes) = read_many(&mut d, 5000, &[(10, 50_000), (0, 0)]);
    assert_eq!(ranges(&bytes, answer.value as usize).unwrap(), [&content[10..10 + 4996]]);
    let asked = [(0, 5), (99_998, 9), (100_000, 9), (u64::MAX, 1), (3, 0)];
    let (answer, bytes) = read_many(&mut d, u32::MAX, &asked);
    let told = ranges(&bytes, answer.value as usize).unwrap();
    assert_eq!(told, [&content[..5], &content[99_998..], b"", b"", b""]);
    let (answer, bytes) = read_many(&mut d, u32::MAX, &[(0, 90_000); 20]);
    assert!(answer.value == 11 && bytes.len() <= MANY_BYTES_MAX, "{} bytes", bytes.len());
    assert_eq!(read_many(&mut d, 0, &[]).0, Answer::ok(0));
    assert_eq!(d.run(Op::FileReadMany, &[0; 7], &[]).status, Status::BadFrame);
}

#[test]
fn ranges_beyond_a_sealed_block_are_elsewhere() {
    let mut d = Driver::new(65536, FileBlock::new(65536));
    while d.run(Op::FileAppend, &[], &[1; 8192]).status == Status::Ok {}
    d.set_successor(Successor::Ready(b"there".to_vec()));
    assert_eq!(d.run(Op::FileAppend, &[], &[1; 8192]).status, Status::Moved);
    let (answer, bytes) = read_many(&mut d, 9999, &[(65_530, 10), (0, 1), (65_536, 1), (1, 1)]);
    let told = ranges(&bytes, answer.value as usize).unwrap();
    assert_eq!(told, [&[1; 6][..], &[1]], "it ends before keys of another block");
    let (answer, _) = read_many(&mut d, 9999, &[(65_536, 1), (0, 1)]);
    assert_eq!((answer.status, &answer.args[..]), (Status::Moved, &b"there"[..]));
}
