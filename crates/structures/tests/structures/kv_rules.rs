use crate::{Driver, pattern};
use honeycomb_structures::{
    Answer, KvBlock, Marks, Ops, Outcome, Payload, Structure, key_limit, large_limit,
};
use honeycomb_wire::data::{Brings, ScanArgs, SwapArgs, scan_entries};
use honeycomb_wire::{Op, Status, key_hash};

const MIB: usize = 1 << 20;

fn kv(size: usize) -> Driver<KvBlock> {
    Driver::new(size, KvBlock::new(size, 0, u64::MAX, Marks::default()))
}

fn args(mode: u8, key: &[u8]) -> Vec<u8> {
    [&[mode][..], key].concat()
}

fn put(d: &mut Driver<KvBlock>, key: &[u8], value: &[u8]) -> Answer {
    d.run(Op::KvPut, &args(0, key), value)
}

fn get(d: &mut Driver<KvBlock>, key: &[u8]) -> Option<Vec<u8>> {
    let answer = d.run(Op::KvGet, key, &[]);
    match answer.status {
        Status::Ok => Some(d.bytes(&answer)),
        Status::KeyNotFound => None,
        other => panic!("{other:?}"),
    }
}

fn swap(
    d: &mut Driver<KvBlock>,
    key: &[u8],
    expected: Option<&[u8]>,
    new: &[u8],
) -> (Status, u64, Vec<u8>) {
    let (present, expected) = (expected.is_some(), expected.unwrap_or(&[]));
    let (args, payload) = SwapArgs { present, key, expected, new }.encode();
    let answer = d.run(Op::KvCompareAndSwap, &args, &payload);
    (answer.status, answer.value, d.bytes(&answer))
}

fn scan(d: &mut Driver<KvBlock>, cursor: u64, bytes: u32, prefix: &[u8]) -> Answer {
    let mut args = Vec::new();
    ScanArgs { cursor, bytes, brings: Brings::Keys, prefix }.put(&mut args);
    d.run(Op::KvScan, &args, &[])
}

fn refused_for(answer: &Answer, status: Status, word: &str) {
    assert_eq!(answer.status, status);
    let message = std::str::from_utf8(&answer.args).unwrap();
    assert!(message.contains(word), "{message}");
}

#[test]
fn each_operation_answers_as_the_protocol_says() {
    let mut d = kv(MIB);
    assert_eq!(put(&mut d, b"k", b"one"), Answer::ok(0));
    assert_eq!(put(&mut d, b"k", b"two"), Answer::ok(1));
    assert_eq!(d.run(Op::KvPut, &args(1, b"k"), b"x").status, Status::KeyExists);
    assert_eq!(d.run(Op::KvPut, &args(1, b"new"), b"x"), Answer::ok(0));
    assert_eq!(get(&mut d, b"k").unwrap(), b"two");
    let old = |bytes: &[u8]| Payload::Bytes(bytes.into());
    assert_eq!(d.run(Op::KvUpdate, b"k", b"3"), Answer::ok(0).with(old(b"two")));
    assert_eq!(d.run(Op::KvUpdate, b"none", b"3").status, Status::KeyNotFound);
    assert_eq!(d.run(Op::KvUpsert, b"k", b"4"), Answer::ok(1).with(old(b"3")));
    assert_eq!(d.run(Op::KvUpsert, b"k2", b"4"), Answer::ok(0));
    let exists = d.run(Op::KvExists, b"k", &[]);
    assert_eq!((exists.value, &exists.args[..]), (1, &1u64.to_le_bytes()[..]));
    assert_eq!(d.run(Op::KvExists, b"none", &[]), Answer::ok(0));
    assert_eq!(d.run(Op::KvLength, &[], &[]).value, 3);
    assert_eq!(d.run(Op::KvDelete, &args(1, b"k"), &[]), Answer::ok(0).with(old(b"4")));
    assert_eq!(d.run(Op::KvDelete, &args(0, b"k"), &[]).status, Status::KeyNotFound);
    assert_eq!(d.run(Op::KvDelete, &args(0, b"k2"), &[]), Answer::ok(0));
    assert_eq!(get(&mut d, b"k"), None);
    assert_eq!(d.run(Op::KvLength, &[], &[]).value, 1);
}

#[test]
fn swaps_compare_presence_and_value() {
    let mut d = kv(MIB);
    assert_eq!(swap(&mut d, b"k", Some(b""), b"n"), (Status::CompareFailed, 0, vec![]));
    assert_eq!(swap(&mut d, b"k", None, b"1").0, Status::Ok);
    assert_eq!(swap(&mut d, b"k", None, b"2"), (Status::CompareFailed, 1, b"1".to_vec()));
    assert_eq!(swap(&mut d, b"k", Some(b"0"), b"2"), (Status::CompareFailed, 1, b"1".to_vec()));
    assert_eq!(swap(&mut d, b"k", Some(b"1"), b"").0, Status::Ok);
    assert_eq!(swap(&mut d, b"k", Some(b""), b"3").0, Status::Ok);
    assert_eq!(get(&mut d, b"k").unwrap(), b"3");
}

#[test]
fn keys_and_values_have_limits_that_are_named() {
    for size in [65536, MIB] {
        let mut d = kv(size);
        let (key, value) = (vec![b'k'; key_limit(size)], vec![1; large_limit(size)]);
        assert_eq!(put(&mut d, &key, &value).status, Status::Ok);
        assert_eq!(get(&mut d, &key).unwrap(), value);
        let long = vec![b'k'; key.len() + 1];
        refused_for(&put(&mut d, &long, b""), Status::KeyTooLarge, &key.len().to_string());
        let big = vec![1; value.len() + 1];
        refused_for(&put(&mut d, b"k", &big), Status::ValueTooLarge, &value.len().to_string());
        let refusal = d.reserve(Op::KvPut, &args(0, b"k"), big.len()).unwrap_err();
        refused_for(&refusal, Status::ValueTooLarge, &value.len().to_string());
        assert_eq!(swap(&mut d, b"k", None, &big).0, Status::ValueTooLarge);
        refused_for(&put(&mut d, b"", b"x"), Status::InvalidArgument, "key");
        assert_eq!(d.run(Op::KvGet, &long, &[]).status, Status::KeyTooLarge);
    }
}

#[test]
fn what_does_not_parse_is_refused() {
    let mut d = kv(MIB);
    assert_eq!(d.run(Op::KvPut, &args(2, b"k"), b"x").status, Status::BadFrame);
    assert_eq!(d.run(Op::KvPut, &[], b"x").status, Status::BadFrame);
    assert_eq!(d.run(Op::KvDelete, &[], &[]).status, Status::BadFrame);
    assert_eq!(d.run(Op::KvLength, &[0], &[]).status, Status::BadFrame);
    assert_eq!(d.run(Op::KvScan, &[0], &[]).status, Status::BadFrame);
    let (args, _) = SwapArgs { present: true, key: b"k", expected: b"", new: b"" }.encode();
    assert_eq!(d.run(Op::KvCompareAndSwap, &args, &[9, 0, 0, 0, 1]).status, Status::BadFrame);
    assert_eq!(d.run(Op::KvCompareAndSwap, &args[..3], &[0; 4]).status, Status::BadFrame);
    let ticket = d.reserve(Op::KvCompareAndSwap, &args, 2).unwrap();
    d.feed(ticket, &[9, 0]);
    let Outcome::Done(answer) = d.commit(ticket) else { panic!("it was parked") };
    assert_eq!(answer.status, Status::BadFrame);
    assert_eq!(d.structure.bytes_used(), 0, "nothing is left of it");
}

#[test]
fn keys_outside_the_range_are_refused() {
    let hash = key_hash(b"k");
    for (start, end, status) in [
        (hash, hash, Status::Ok),
        (hash + 1, u64::MAX, Status::WrongRange),
        (0, hash - 1, Status::WrongRange),
    ] {
        let mut d = Driver::new(MIB, KvBlock::new(MIB, start, end, Marks::default()));
        assert_eq!(put(&mut d, b"k", b"x").status, status);
        let answer = d.reserve(Op::KvUpsert, b"k", 1).err().map_or(Status::Ok, |a| a.status);
        assert_eq!(answer, status);
        let scanned = scan(&mut d, hash, 100, b"");
        assert_eq!(scanned.status, status);
    }
}

#[test]
fn a_fill_is_judged_by_the_entry_at_its_commit() {
    let mut d = kv(MIB);
    let big = pattern(1, 100_000);
    let fill = |d: &mut Driver<KvBlock>, op, args: &[u8], payload: &[u8]| {
        let ticket = d.reserve(op, args, payload.len()).unwrap();
        d.feed(ticket, payload);
        ticket
    };
    let commit = |d: &mut Driver<KvBlock>, ticket| match d.commit(ticket) {
        Outcome::Done(answer) => answer,
        Outcome::Parked => panic!("it was parked"),
    };
    let t = fill(&mut d, Op::KvPut, &args(1, b"k"), &big);
    assert_eq!(get(&mut d, b"k"), None, "it is not visible yet");
    put(&mut d, b"k", b"first");
    assert_eq!(commit(&mut d, t).status, Status::KeyExists);
    assert_eq!(get(&mut d, b"k").unwrap(), b"first");
    let t = fill(&mut d, Op::KvUpdate, b"k", &big);
    d.run(Op::KvDelete, &args(0, b"k"), &[]);
    assert_eq!(commit(&mut d, t).status, Status::KeyNotFound);
    let used = d.structure.bytes_used();
    let t = fill(&mut d, Op::KvUpsert, b"k", &big);
    assert!(d.structure.bytes_used() >= used + 100_000);
    d.abort(t);
    assert_eq!(d.structure.bytes_used(), used, "an abort leaves no trace");
    let t = fill(&mut d, Op::KvUpsert, b"k", &big);
    assert_eq!(commit(&mut d, t), Answer::ok(0));
    assert_eq!(get(&mut d, b"k").unwrap(), big);
    let newer = pattern(2, 90_000);
    let swap = SwapArgs { present: true, key: b"k", expected: &big, new: &newer }.encode();
    let t = fill(&mut d, Op::KvCompareAndSwap, &swap.0, &swap.1);
    assert_eq!(commit(&mut d, t), Answer::ok(0));
    assert_eq!(get(&mut d, b"k").unwrap(), newer);
    let t = fill(&mut d, Op::KvCompareAndSwap, &swap.0, &swap.1);
    let answer = commit(&mut d, t);
    assert_eq!((answer.status, answer.value), (Status::CompareFailed, 1));
    assert_eq!(d.bytes(&answer), newer);
    let small = SwapArgs { present: true, key: b"k", expected: &newer, new: b"s" }.encode();
    let t = fill(&mut d, Op::KvCompareAndSwap, &small.0, &small.1);
    assert_eq!(commit(&mut d, t), Answer::ok(0));
    assert_eq!(get(&mut d, b"k").unwrap(), b"s");
    d.structure.check(&d.block);
}

/// Keys of 64 bytes whose hashes are all equal. XXH64 takes 8 bytes of every 32 into one of four
/// sums, so that a change in the first 32 can be undone in the second.
fn colliding_keys(count: u64) -> Vec<Vec<u8>> {
    const P1: u64 = 0x9E37_79B1_85EB_CA87;
    const P2: u64 = 0xC2B2_AE3D_27D4_EB4F;
    let mut inverse = 1u64;
    for _ in 0..6 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(P2.wrapping_mul(inverse)));
    }
    let sum = |x: u64| {
        let begin = P1.wrapping_add(P2);
        begin.wrapping_add(x.wrapping_mul(P2)).rotate_left(31).wrapping_mul(P1)
    };
    (0..count)
        .map(|x| {
            let undo = sum(0).wrapping_sub(sum(x)).wrapping_mul(inverse);
            let mut key = vec![0u8; 64];
            key[..8].copy_from_slice(&x.to_le_bytes());
            key[32..40].copy_from_slice(&undo.to_le_bytes());
            key
        })
        .collect()
}

#[test]
fn equal_hashes_stay_together() {
    let mut d = kv(65536);
    let keys = colliding_keys(400);
    let hash = key_hash(&keys[0]);
    assert!(keys.iter().all(|k| key_hash(k) == hash));
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(put(&mut d, key, &pattern(i as u64, 20)).status, Status::Ok);
    }
    d.structure.check(&d.block);
    assert_eq!(d.structure.regions().count(), 1, "one hash cannot be divided");
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(get(&mut d, key).unwrap(), pattern(i as u64, 20));
    }
    put(&mut d, b"another", b"");
    let first = scan(&mut d, 0, 1, b"");
    let page = d.bytes(&first);
    let (first_len, next) = (scan_entries(&page).unwrap().len(), first.value);
    let second = scan(&mut d, next, 1, b"");
    let page = d.bytes(&second);
    let mut lens = [first_len, scan_entries(&page).unwrap().len()];
    lens.sort();
    assert_eq!((lens, second.value), ([1, 400], 0));
    for key in keys.iter().step_by(2) {
        assert_eq!(d.run(Op::KvDelete, &args(0, key), &[]).status, Status::Ok);
    }
    d.structure.check(&d.block);
    assert_eq!(d.run(Op::KvLength, &[], &[]).value, 201);
}

#[test]
fn a_scan_finds_a_prefix_in_order() {
    let mut d = kv(MIB);
    for i in 0..2000 {
        put(&mut d, format!("a{i}").as_bytes(), b"value");
        put(&mut d, format!("b{i}").as_bytes(), b"value");
    }
    assert!(d.structure.regions().count() > 4, "it is spread over regions");
    let (mut cursor, mut found) = (0, Vec::new());
    loop {
        let answer = scan(&mut d, cursor, 500, b"a");
        let page = d.bytes(&answer);
        assert!(page.len() <= 500);
        found.extend(scan_entries(&page).unwrap().into_iter().map(|(k, _)| k.to_vec()));
        cursor = answer.value;
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(found.len(), 2000);
    assert!(found.is_sorted_by_key(|k| key_hash(k)));
    assert!(found.iter().all(|k| k[0] == b'a'));
    let none = scan(&mut d, 0, 500, b"c");
    assert_eq!((none.value, none.payload), (0, Payload::None));
}

#[test]
fn a_value_of_its_own_is_sent_from_where_it_is() {
    let mut d = kv(MIB);
    let value = pattern(1, 50_000);
    put(&mut d, b"big", &value);
    let Payload::Block(range) = d.run(Op::KvGet, b"big", &[]).payload else {
        panic!("a get points into the block")
    };
    let pin = d.block.pin(range.clone());
    // A replacement, a deletion and later writes leave the pinned bytes unchanged.
    put(&mut d, b"big", &pattern(2, 50_000));
    let used = d.structure.bytes_used();
    for i in 0..2000 {
        put(&mut d, format!("k{i}").as_bytes(), &pattern(i, 300));
    }
    assert_eq!(pin.bytes(), value);
    for i in 0..2000 {
        d.run(Op::KvDelete, &args(0, format!("k{i}").as_bytes()), &[]);
    }
    drop(pin);
    put(&mut d, b"one more", &pattern(3, 120_000));
    d.run(Op::KvDelete, &args(0, b"one more"), &[]);
    put(&mut d, b"x", &vec![0; 20_000]);
    assert!(d.structure.bytes_used() < used, "the pinned bytes were freed");
    d.structure.check(&d.block);
}

/// Puts until the block is full; returns the accepted bytes of payload.
fn fill_up(d: &mut Driver<KvBlock>, seed: u64, length: usize) -> usize {
    let mut bytes = 0;
    for i in 0.. {
        let key = format!("key-{seed}-{i:06}");
        let answer = put(d, key.as_bytes(), &pattern(i, length));
        if answer.status != Status::Ok {
            refused_for(&answer, Status::BlockFull, "unharmed");
            return bytes;
        }
        bytes += key.len() + length;
    }
    unreachable!("a block is finite")
}

#[test]
fn a_block_is_used_well_before_it_is_full() {
    for (size, length, least) in [
        (MIB, 1024, 85),
        (MIB, 100, 75),
        (MIB, 30_000, 85),
        (MIB, 3000, 85),
        (65536, 1000, 75),
        (65536, 100, 70),
        (16 * MIB, 1024, 85),
        (16 * MIB, 100, 75),
    ] {
        let mut d = kv(size);
        let percent = fill_up(&mut d, 0, length) * 100 / size;
        println!("{size} {length}: {percent} %");
        assert!(percent >= least, "values of {length} bytes use {percent} % of {size}");
        assert!(d.structure.bytes_used() <= size as u64, "all of it is within the block");
        d.structure.check(&d.block);
        // Existing values survive and can still be replaced, in place and by something smaller.
        for i in 0..20 {
            let key = format!("key-0-{i:06}");
            assert_eq!(get(&mut d, key.as_bytes()).unwrap(), pattern(i, length));
            let smaller = pattern(i + 1, if length > 20_000 { 8 } else { length / 2 });
            assert_eq!(put(&mut d, key.as_bytes(), &smaller).status, Status::Ok);
            assert_eq!(get(&mut d, key.as_bytes()).unwrap(), smaller);
        }
        d.structure.check(&d.block);
    }
}

/// In blocks of huge pages regions take whole holes; the model's blocks are smaller.
#[test]
fn a_large_block_keeps_what_it_was_given_while_all_of_it_changes() {
    for (seed, keys, longest) in [(1, 30_000, 90), (2, 6_000, 600), (3, 700, 9_000)] {
        let mut d = kv(4 * MIB);
        let mut held = std::collections::HashMap::new();
        let (mut state, mut pin) = (seed, None);
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for i in 0..60_000u64 {
            let key = random(keys);
            let name = format!("key {key}");
            if random(4) == 0 {
                let status = d.run(Op::KvDelete, &args(0, name.as_bytes()), &[]).status;
                assert_eq!(status == Status::Ok, held.remove(&key).is_some());
            } else {
                // A third of the replacements have the old length.
                let (seed, some) = (random(1 << 32), random(longest) as usize);
                let before = held.get(&key).map(|(_, length)| *length);
                let length = before.filter(|_| random(3) == 0).unwrap_or(some);
                match put(&mut d, name.as_bytes(), &pattern(seed, length)).status {
                    Status::Ok => _ = held.insert(key, (seed, length)),
                    status => assert!(matches!(status, Status::BlockFull | Status::Busy)),
                }
            }
            match random(400) {
                0 => {
                    if let Payload::Block(value) = d.run(Op::KvGet, name.as_bytes(), &[]).payload {
                        pin = Some(d.block.pin(value));
                    }
                }
                1..20 => pin = None,
                _ => {}
            }
            if i % 4000 == 0 {
                d.structure.check(&d.block);
            }
        }
        drop(pin);
        d.structure.check(&d.block);
        assert_eq!(d.run(Op::KvLength, &[], &[]).value, held.len() as u64);
        for (key, (seed, length)) in held {
            let value = get(&mut d, format!("key {key}").as_bytes());
            assert_eq!(value.expect("it is there"), pattern(seed, length));
        }
    }
}

#[test]
fn a_full_block_recovers_what_was_deleted() {
    let mut d = kv(MIB);
    let first = fill_up(&mut d, 1, 200);
    for round in 1..6 {
        for i in 0.. {
            let key = format!("key-{round}-{i:06}");
            if d.run(Op::KvDelete, &args(0, key.as_bytes()), &[]).status != Status::Ok {
                break;
            }
        }
        assert_eq!(d.run(Op::KvLength, &[], &[]).value, 0);
        let length = [200, 50, 9000, 1500, 20, 200][round];
        fill_up(&mut d, round as u64 + 1, length);
        d.structure.check(&d.block);
    }
    for i in 0.. {
        let key = format!("key-6-{i:06}");
        if d.run(Op::KvDelete, &args(0, key.as_bytes()), &[]).status != Status::Ok {
            break;
        }
    }
    let again = fill_up(&mut d, 9, 200);
    assert!(again + 20_000 > first, "{again} bytes after {first}");
}

#[test]
fn a_refusal_for_room_changes_nothing_and_is_cheap() {
    let mut d = kv(65536);
    fill_up(&mut d, 0, 700);
    // Another region may have room that one region lacks.
    for i in 0..100 {
        put(&mut d, format!("further {i}").as_bytes(), &[1; 700]);
    }
    let used = d.structure.bytes_used();
    let before: Vec<u8> = d.block.slice(0..65536).to_vec();
    for i in 0..100 {
        let key = format!("another {i}");
        refused_for(&put(&mut d, key.as_bytes(), &[1; 700]), Status::BlockFull, "are free");
        let refusal = d.reserve(Op::KvPut, &args(0, key.as_bytes()), 8000).unwrap_err();
        refused_for(&refusal, Status::BlockFull, "8");
    }
    assert_eq!(d.structure.bytes_used(), used);
    assert_eq!(d.block.slice(0..65536), before, "not a byte moved");
}

#[test]
fn regions_divide_by_bytes_and_leave_when_empty() {
    let mut d = kv(4 * MIB);
    for i in 0..10_000u64 {
        put(&mut d, format!("{{hot}}{i}").as_bytes(), &pattern(i, 100));
    }
    let regions: Vec<_> = d.structure.regions().collect();
    assert!(regions.len() > 20, "{}", regions.len());
    // All keys share the top 16 bits of their hash; the divisions are among the others.
    let inside = regions.iter().filter(|r| r.0 >> 48 == key_hash(b"hot") >> 48).count();
    assert!(inside > 20);
    assert!(regions.iter().all(|r| r.2 <= 65536 + 4096));
    for i in 0..10_000u64 {
        d.run(Op::KvDelete, &args(0, format!("{{hot}}{i}").as_bytes()), &[]);
    }
    assert_eq!(d.structure.regions().count(), 1);
    d.structure.check(&d.block);
}

#[test]
fn a_key_value_block_has_no_successor() {
    let mut d = kv(65536);
    fill_up(&mut d, 0, 100);
    assert!(d.structure.growth().is_none());
    assert_eq!(d.sealed(), None);
}

/// The head of an entry has two lengths. Each value is written over each other, also where both entries take
/// the same room: a short value, and the number of a long one.
#[test]
fn values_and_keys_at_the_limits_of_a_short_head_replace_each_other() {
    let mut d = kv(MIB);
    let lengths = [0, 1, 4, 5, 7, 8, 9, 12, 16, 65_534, 65_535, 65_536, 70_000, 131_072];
    for key in [10, 254, 255, 256, 4096].map(|length| vec![b'k'; length]) {
        let mut there = false;
        for (n, first) in lengths.into_iter().enumerate() {
            for (m, second) in lengths.into_iter().enumerate() {
                for (salt, length) in [(n as u64, first), (m as u64, second)] {
                    let value = pattern(salt, length);
                    let answer = put(&mut d, &key, &value);
                    assert_eq!((answer.status, answer.value), (Status::Ok, u64::from(there)));
                    there = true;
                    assert_eq!(get(&mut d, &key).as_deref(), Some(&value[..]), "{length} bytes");
                }
            }
        }
        d.structure.check(&d.block);
    }
}

/// A long mixed run in blocks that are mostly nearly full, checked from time to time.
#[test]
fn a_long_life_keeps_everything() {
    for (size, mean) in [(MIB, 60), (MIB, 900), (MIB, 12_000), (65536, 300)] {
        let mut d = kv(size);
        let mut model = std::collections::BTreeMap::new();
        let mut pins = std::collections::VecDeque::new();
        let random = pattern(mean, 8 * 30_000);
        let keys = size as u64 * 2 / (mean + 60);
        for (step, word) in random.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().unwrap());
            let key = format!("key-{}", word % keys).into_bytes();
            let length = (word >> 32) % (2 * mean);
            match (word >> 60, step / 6000 % 2) {
                (0..2, 0) | (0..11, 1) => {
                    let answer = d.run(Op::KvDelete, &args(0, &key), &[]);
                    assert_eq!(answer.status == Status::Ok, model.remove(&key).is_some());
                }
                (15, _) => {
                    if let Payload::Block(range) = d.run(Op::KvGet, &key, &[]).payload {
                        pins.push_back((d.block.pin(range.clone()), d.block.slice(range).to_vec()));
                    }
                    if pins.len() > 20 {
                        let (pin, bytes) = pins.pop_front().unwrap();
                        assert_eq!(pin.bytes(), bytes);
                    }
                }
                _ => match put(&mut d, &key, &pattern(word, length as usize)).status {
                    Status::Ok => drop(model.insert(key, (word, length))),
                    Status::BlockFull => {}
                    Status::Busy => assert!(!pins.is_empty()),
                    other => panic!("{other:?}"),
                },
            }
            if step % 3000 == 2999 {
                d.structure.check(&d.block);
                for (key, (word, length)) in &model {
                    assert_eq!(get(&mut d, key).unwrap(), pattern(*word, *length as usize));
                }
                assert_eq!(d.run(Op::KvLength, &[], &[]).value, model.len() as u64);
            }
        }
    }
}
