//! Moves between two blocks, against one plain map: whatever happens meanwhile, every key exists once, with
//! its last value.

mod damaged;
mod refusals;
mod targets;

use crate::{Driver, blocks, steps_in};
use honeycomb_structures::{
    Answer, KvBlock, Marks, Movable, MoveRequest, Ops, Outcome, Parcel, Prepared, Structure, Totals,
};
use honeycomb_types::limits::SLOT_WIDTH;
use honeycomb_types::{BlockId, ServerId, ShardIx, Time, sizes};
use honeycomb_wire::batch::put_keys;
use honeycomb_wire::data::{Brings, ScanArgs, scan_entries};
use honeycomb_wire::messages::MoveDoneRequest;
use honeycomb_wire::{Field, Op, Status, key_hash};
use proptest::prelude::*;
use std::collections::BTreeMap;

const SIZE: usize = 256 * 1024;
/// A 64th of all hashes.
const PART: u64 = 1 << 58;
const MOVED: &[u8] = b"elsewhere";
/// Bytes that the division of a region takes: a header, a word of its index and bookkeeping.
const CUT_COST: usize = 168;
/// Bytes that are read in one step: a region takes several steps.
const STEP: usize = 700;

fn block(start: u64, end: u64) -> KvBlock {
    block_of(SIZE, start, end)
}

fn block_of(size: usize, start: u64, end: u64) -> KvBlock {
    KvBlock::new(size, start, end, Marks::new(95, 30, Marks::default()).unwrap())
}

/// A move in progress: the indexes of source and target, and the move's number.
#[derive(Clone, Copy)]
struct Under {
    from: usize,
    to: usize,
    id: u64,
    start: u64,
    end: u64,
    frozen: bool,
}

/// Two blocks that share the hashes, one of them perhaps empty or absent.
struct Pair {
    size: usize,
    blocks: [Option<Driver<KvBlock>>; 2],
    /// The range of each.
    ranges: [Option<(u64, u64)>; 2],
    model: BTreeMap<Vec<u8>, Vec<u8>>,
    under: Option<Under>,
    moves: u64,
    /// Splits that were begun: each may have left two regions where there was one.
    cuts: usize,
}

impl Pair {
    fn new() -> Pair {
        Pair::of(SIZE)
    }

    fn of(size: usize) -> Pair {
        Pair {
            size,
            blocks: [Some(Driver::new(size, block_of(size, 0, u64::MAX))), None],
            ranges: [Some((0, u64::MAX)), None],
            model: BTreeMap::new(),
            under: None,
            moves: 0,
            cuts: 0,
        }
    }

    fn owner(&self, hash: u64) -> usize {
        let has = |range: &Option<(u64, u64)>| range.is_some_and(|(s, e)| s <= hash && hash <= e);
        self.ranges.iter().position(has).unwrap()
    }

    fn driver(&mut self, place: usize) -> &mut Driver<KvBlock> {
        self.blocks[place].as_mut().unwrap()
    }

    fn mover(&mut self, place: usize) -> (&mut dyn Movable, &mut honeycomb_block::Backing) {
        let driver = self.blocks[place].as_mut().unwrap();
        (driver.structure.movable().unwrap(), &mut driver.block)
    }

    fn run(&mut self, op: Op, key: &[u8], args: &[u8], payload: &[u8]) -> Answer {
        let owner = self.owner(key_hash(key));
        let answer = self.driver(owner).run(op, args, payload);
        // The other block sends the caller on, also while the range moves there (INV-21).
        if self.ranges[1 - owner].is_some() {
            let other = self.driver(1 - owner).run(Op::KvGet, key, b"");
            let elsewhere = [Status::Moved, Status::WrongRange];
            assert!(elsewhere.contains(&other.status), "{other:?}");
        }
        answer
    }

    /// Whether changes of a hash have to wait.
    fn waits(&self, hash: u64) -> bool {
        self.under.is_some_and(|u| u.frozen && u.start <= hash && hash <= u.end)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        let args = [&[0], key].concat();
        let answer = self.run(Op::KvPut, key, &args, value);
        match answer.status {
            Status::Ok => {
                assert!(!self.waits(key_hash(key)));
                let before = self.model.insert(key.to_vec(), value.to_vec());
                assert_eq!(answer.value, before.is_some() as u64);
            }
            Status::Busy if self.waits(key_hash(key)) || self.pinned() => {}
            Status::Busy => self.refuse_request(),
            Status::BlockFull | Status::OutOfMemory => {}
            other => panic!("{other:?}"),
        }
    }

    /// A block without room waits for a part of it to move, if it was part of a move before.
    fn refuse_request(&mut self) {
        let from = self.ranges.iter().position(Option::is_some).unwrap();
        for place in from..2 {
            let Some(driver) = &mut self.blocks[place] else { continue };
            driver.sleep(200);
            let now = driver.now;
            let (mover, block) = self.mover(place);
            if let Some(request) = mover.move_request(block, now) {
                mover.refused(now, request, Status::OutOfMemory, "none is free".into());
            }
        }
    }

    fn pinned(&self) -> bool {
        self.under.is_some()
    }

    fn delete(&mut self, key: &[u8]) {
        let args = [&[0], key].concat();
        match self.run(Op::KvDelete, key, &args, b"").status {
            Status::Ok => assert!(self.model.remove(key).is_some()),
            Status::KeyNotFound => assert!(!self.model.contains_key(key)),
            Status::Busy => assert!(self.waits(key_hash(key))),
            other => panic!("{other:?}"),
        }
    }

    fn get(&mut self, key: &[u8]) {
        let owner = self.owner(key_hash(key));
        let driver = self.driver(owner);
        let answer = driver.run(Op::KvGet, key, b"");
        let found = match answer.payload {
            honeycomb_structures::Payload::Block(range) => Some(driver.block.slice(range).to_vec()),
            _ => None,
        };
        assert_eq!(found.as_ref(), self.model.get(key), "{:?}", answer.status);
    }

    /// Begins a split of the only block, or a merge of both.
    fn begin(&mut self, merge_into: usize, divide: u64) {
        if self.under.is_some() {
            return;
        }
        self.moves += 1;
        let id = self.moves;
        if let [Some(a), Some(b)] = self.ranges {
            let from = 1 - merge_into;
            let (start, end) = [a, b][from];
            self.mover(merge_into).0.begin_import(id, start, end).unwrap();
            let (mover, block) = self.mover(from);
            mover.begin_export(block, start, end).unwrap();
            self.under = Some(Under { from, to: merge_into, id, start, end, frozen: false });
            return;
        }
        let from = self.ranges.iter().position(Option::is_some).unwrap();
        let (_, end) = self.ranges[from].unwrap();
        let start = (divide % 63 + 1) * PART;
        let (mover, backing) = self.mover(from);
        if let Err(refusal) = mover.begin_export(backing, start, end) {
            // A block keeps room for many divisions of its own, whatever fills it.
            assert!(self.cuts * CUT_COST > self.size / 32 - CUT_COST, "{refusal:?}");
            return;
        }
        self.cuts += 1;
        let to = 1 - from;
        let taker = block_of(self.size, start, end).importing(id);
        self.blocks[to] = Some(Driver::new(self.size, taker));
        self.under = Some(Under { from, to, id, start, end, frozen: false });
    }

    /// Transfers one parcel; false if there is none, or it was refused and the move ended.
    fn bring(&mut self, in_pieces: bool) -> bool {
        let Some(Under { from, to, id, .. }) = self.under else { return false };
        let (mover, block) = self.mover(from);
        let before = mover.unsent();
        // Between steps, other operations change the bytes that are being copied.
        let prepared = match in_pieces {
            true => mover.prepare(block, STEP),
            false => mover.next_parcel(block).map_or(Prepared::Nothing, Prepared::Parcel),
        };
        let parcel = match prepared {
            Prepared::Parcel(parcel) => parcel,
            Prepared::Partly => return true,
            Prepared::Nothing => {
                assert_eq!(before, 0, "all was sent");
                return false;
            }
        };
        let drops = matches!(parcel, Parcel::Drops(_));
        assert!(drops || before > 0, "sent bytes were unsent: {parcel:?}");
        let (op, args) = parcel.request(id);
        let payload = match &parcel {
            Parcel::Region { bytes, .. } | Parcel::Patch { runs: bytes, .. } => bytes.to_vec(),
            Parcel::Value { bytes, .. } => bytes.bytes().to_vec(),
            Parcel::Drops(_) => Vec::new(),
            Parcel::State { .. } => panic!("a store has nothing beside its bytes"),
        };
        let target = self.driver(to);
        let answer = if in_pieces && !payload.is_empty() {
            target.reserve(op, &args, payload.len()).map_or_else(
                |refusal| refusal,
                |ticket| {
                    let (a, b) = payload.split_at(payload.len() / 2);
                    target.feed(ticket, a);
                    target.feed(ticket, b);
                    match target.commit(ticket) {
                        Outcome::Done(answer) => answer,
                        Outcome::Parked => panic!("a part of a move was parked"),
                    }
                },
            )
        } else {
            target.run(op, &args, &payload)
        };
        match answer.status {
            Status::Ok => true,
            // The target is full: the move is cancelled.
            Status::BlockFull | Status::OutOfMemory => {
                self.cancel();
                false
            }
            other => panic!("{other:?}"),
        }
    }

    fn cancel(&mut self) {
        let Some(Under { from, to, id, .. }) = self.under.take() else { return };
        let now = self.driver(from).now;
        let (mover, block) = self.mover(from);
        mover.cancel_export(block, now);
        if self.ranges[to].is_some() {
            let (mover, block) = self.mover(to);
            mover.end_import(block, now, id, false);
        } else {
            self.blocks[to] = None;
        }
    }

    fn freeze(&mut self, on: bool) {
        let Some(mut under) = self.under else { return };
        if under.frozen != on {
            under.frozen = on;
            self.under = Some(under);
            let (mover, _) = self.mover(under.from);
            if on { mover.freeze(Time::ZERO) } else { mover.thaw() }
        }
    }

    /// Transfers everything, so that the move can be committed.
    fn count(&mut self) -> Option<Under> {
        self.freeze(true);
        while self.bring(false) {}
        let under = self.under?;
        let (mover, _) = self.mover(under.from);
        assert_eq!(mover.unsent(), 0);
        let Totals { entries, bytes } = mover.totals();
        let done = MoveDoneRequest { move_id: under.id, entries, bytes };
        let answer = self.driver(under.to).run(Op::MoveDone, &done.encode(), b"");
        assert_eq!(answer.status, Status::Ok, "{}", String::from_utf8_lossy(&answer.args));
        Some(under)
    }

    /// Transfers everything and commits.
    fn finish(&mut self) {
        let Some(Under { from, to, id, start, end, .. }) = self.count() else { return };
        let now = self.driver(from).now;
        self.mover(from).0.hand_over();
        let (mover, block) = self.mover(to);
        mover.end_import(block, now, id, true);
        let (mover, block) = self.mover(from);
        mover.depart(now, MOVED.to_vec());
        while mover.sweep(block) {}
        self.under = None;
        let (a, b) = self.ranges[from].unwrap();
        self.ranges[from] = (a < start).then(|| (a, start - 1));
        assert!(b == end);
        let own = self.ranges[to];
        self.ranges[to] = Some(own.map_or((start, end), |(s, e)| (s.min(start), e.max(end))));
        if self.ranges[from].is_none() {
            let giver = self.driver(from);
            giver.check();
            // A late request is redirected. No region is left to look in.
            assert_eq!(giver.structure.prefetch(&giver.block, Op::KvGet, b"late"), None);
            let late = giver.run(Op::KvMultiGet, &1000u32.to_le_bytes(), &put_keys(&[b"late"]));
            assert!(matches!(late.status, Status::Moved | Status::WrongRange), "{late:?}");
            self.blocks[from] = None;
        }
    }

    fn check(&mut self) {
        let mut found = BTreeMap::new();
        let mut count = 0;
        let mut cursor = 0;
        loop {
            let owner = self.owner(cursor);
            let mut args = Vec::new();
            ScanArgs { cursor, bytes: 5000, brings: Brings::Values, prefix: b"" }.put(&mut args);
            let answer = self.driver(owner).run(Op::KvScan, &args, b"");
            assert_eq!(answer.status, Status::Ok);
            if let honeycomb_structures::Payload::Bytes(page) = &answer.payload {
                for (key, value) in scan_entries(page).unwrap() {
                    assert!(found.insert(key.to_vec(), value.to_vec()).is_none(), "scanned twice");
                }
            }
            cursor = answer.value;
            if cursor == 0 {
                break;
            }
        }
        let mut from = Some(0u64);
        while let Some(hash) = from {
            let owner = self.owner(hash);
            let answer = self.driver(owner).run(Op::KvLength, &hash.to_le_bytes(), b"");
            count += answer.value;
            from = u64::decode(&answer.args).unwrap().checked_add(1);
        }
        assert_eq!(found, self.model);
        assert_eq!(count, self.model.len() as u64);
        for place in 0..2 {
            if self.blocks[place].is_some() {
                self.driver(place).check();
            }
        }
    }
}

impl Driver<KvBlock> {
    fn check(&mut self) {
        self.structure.check(&self.block);
    }
}

fn key(n: u16) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

/// Lengths on both sides of the inline limit.
fn length(n: u16, block: usize) -> usize {
    match n % 8 {
        0 => 0,
        1..4 => n as usize % 100,
        4..6 => n as usize % 1200,
        6 => 1000 + n as usize % 60,
        _ => sizes::size(u64::from(n), block, 0, block / 28),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(u16, u16),
    Delete(u16),
    Get(u16),
    Begin(bool, u64),
    Bring(u8, bool),
    Freeze(bool),
    Finish,
    Cancel,
    Check,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..300u16, any::<u16>()).prop_map(|(k, v)| Step::Put(k, v)),
        4 => (0..300u16).prop_map(Step::Delete),
        2 => (0..300u16).prop_map(Step::Get),
        1 => (any::<bool>(), any::<u64>()).prop_map(|(a, b)| Step::Begin(a, b)),
        4 => (1..6u8, any::<bool>()).prop_map(|(n, p)| Step::Bring(n, p)),
        1 => any::<bool>().prop_map(Step::Freeze),
        1 => Just(Step::Finish),
        1 => Just(Step::Cancel),
        1 => Just(Step::Check),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn a_move_loses_doubles_and_revives_nothing(
        (size, steps) in blocks().prop_flat_map(|size| {
            (Just(size), prop::collection::vec(step(), steps_in(size, 150)))
        }),
        fill in 0..250u16,
    ) {
        let mut pair = Pair::of(size);
        for n in 0..fill {
            pair.put(&key(n), &vec![n as u8; length(n.wrapping_mul(7919), size)]);
        }
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Step::Put(k, v) => pair.put(&key(k), &vec![i as u8; length(v, size)]),
                Step::Delete(k) => pair.delete(&key(k)),
                Step::Get(k) => pair.get(&key(k)),
                Step::Begin(into, divide) => pair.begin(into as usize, divide),
                Step::Bring(n, pieces) => {
                    for _ in 0..n {
                        pair.bring(pieces);
                    }
                }
                Step::Freeze(on) => pair.freeze(on),
                Step::Finish => pair.finish(),
                Step::Cancel => pair.cancel(),
                Step::Check => pair.check(),
            }
        }
        pair.check();
        pair.finish();
        pair.check();
    }
}

#[test]
fn a_full_block_asks_to_be_divided_in_half_and_an_empty_one_to_be_merged() {
    let mut pair = Pair::new();
    let mut request = None;
    for n in 0..u16::MAX {
        pair.put(&key(n), &[7; 600]);
        let driver = pair.driver(0);
        driver.sleep(1);
        let now = driver.now;
        let (mover, block) = pair.mover(0);
        request = mover.move_request(block, now);
        if request.is_some() {
            break;
        }
    }
    let Some(MoveRequest::Split { start }) = request else {
        panic!("it is full and requests no move")
    };
    let below = pair.model.keys().filter(|key| key_hash(key) < start).count();
    assert!((2 * below).abs_diff(pair.model.len()) <= pair.model.len() / 8, "{below}");
    let used = pair.driver(0).structure.bytes_used() as usize;
    assert!((SIZE / 100 * 70..SIZE).contains(&used), "{used}");
    // It does not request twice.
    let now = pair.driver(0).now;
    let (mover, block) = pair.mover(0);
    assert_eq!(mover.move_request(block, now), None);
}

/// Two blocks merged although they filled 79 % of one. The result split at once when it grew fast (at 70 %),
/// and merged again when it did not.
#[test]
fn a_block_that_was_made_of_two_is_divided_when_it_has_grown() {
    const LARGE: usize = 16 << 20;
    for made_of_two in [false, true] {
        let mut pair = Pair::of(LARGE);
        let mut keys = (0..u16::MAX).map(key);
        let percent = |pair: &mut Pair, place: usize| {
            pair.driver(place).structure.bytes_used() as usize * 100 / LARGE
        };
        while percent(&mut pair, 0) < 74 {
            pair.put(&keys.next().unwrap(), &[7; 8000]);
        }
        if made_of_two {
            pair.begin(0, 31);
            pair.finish();
            pair.begin(0, 0);
            pair.finish();
        }
        pair.driver(0).sleep(1000);
        let mut asked = Vec::new();
        for fills_to in [74, 79, 82] {
            while percent(&mut pair, 0) < fills_to {
                pair.put(&keys.next().unwrap(), &[7; 8000]);
            }
            pair.driver(0).sleep(5);
            let now = pair.driver(0).now;
            let (mover, block) = pair.mover(0);
            asked.push(mover.move_request(block, now).is_some());
        }
        let wanted = if made_of_two { [false, false, true] } else { [false, true, false] };
        assert_eq!(asked, wanted, "made of two: {made_of_two}; it requests once");
    }
}

/// A block that found no neighbour paused for up to 8 s, however much was deleted from it meanwhile.
#[test]
fn a_block_that_found_no_neighbour_asks_again_when_it_is_lighter() {
    let mut pair = Pair::new();
    for n in 0..120 {
        pair.put(&key(n), &[7; 600]);
    }
    pair.begin(0, 31);
    pair.finish();
    let place = pair.owner(0);
    pair.driver(place).sleep(300);
    let own: Vec<_> =
        pair.model.keys().filter(|k| pair.owner(key_hash(k)) == place).cloned().collect();
    let mut asked = Vec::new();
    for (n, key) in own.iter().enumerate() {
        pair.delete(key);
        let now = pair.driver(place).now;
        let (mover, block) = pair.mover(place);
        if mover.move_request(block, now) == Some(MoveRequest::Merge) {
            mover.refused(
                now,
                MoveRequest::Merge,
                Status::OutOfMemory,
                "no neighbour has room".into(),
            );
            asked.push(n);
        }
    }
    // A 32nd of the block are 13 values.
    let steps: Vec<usize> = asked.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(asked.len() >= 3 && steps.iter().all(|step| (11..15).contains(step)), "{asked:?}");
}

#[test]
fn a_block_that_is_one_hot_slot_does_not_ask_to_be_divided() {
    let named = block(0, u64::MAX).named(BlockId::new(ServerId(0), ShardIx(0), 7));
    let mut driver = Driver::new(SIZE, named);
    let mut full = false;
    for n in 0..u16::MAX {
        let key = format!("{{one}}-{n}");
        let args = [&[0], key.as_bytes()].concat();
        let answer = driver.run(Op::KvPut, &args, &[7; 600]);
        driver.sleep(1);
        let now = driver.now;
        assert_eq!(driver.structure.movable().unwrap().move_request(&driver.block, now), None);
        if answer.status == Status::BlockFull {
            let text = String::from_utf8_lossy(&answer.args).into_owned();
            assert!(
                text.contains("block B0.0.7 ") && text.contains("of the tag '{one}'"),
                "{text}"
            );
            full = true;
            break;
        }
    }
    assert!(full);
}

/// Where a block with a 1024th of all hashes divides when it fills; `None` if it becomes full instead.
fn first_split_of_few_hashes() -> Option<u64> {
    const SMALL: usize = 64 * 1024;
    let end = (1 << 54) - 1;
    let mut driver = Driver::new(SMALL, block_of(SMALL, 0, end));
    let keys = (0..1u64 << 20).map(|n| format!("k{n}")).filter(|k| key_hash(k.as_bytes()) <= end);
    for key in keys {
        let args = [&[0], key.as_bytes()].concat();
        if driver.run(Op::KvPut, &args, &[7; 800]).status == Status::BlockFull {
            return None;
        }
        driver.sleep(10);
        let now = driver.now;
        let Some(MoveRequest::Split { start }) =
            driver.structure.movable().unwrap().move_request(&driver.block, now)
        else {
            continue;
        };
        return Some(start);
    }
    panic!("it neither filled nor requested a split");
}

/// A store of 64 KiB blocks could not grow beyond 1024 of them: the unit of division was a 1024th.
#[test]
fn block_of_few_hashes_that_fills_is_divided_where_halves_are_alike() {
    let start = first_split_of_few_hashes().unwrap();
    assert_eq!(start % SLOT_WIDTH, 0);
    let quarter = 1 << 52;
    assert!((quarter..=3 * quarter).contains(&start), "at {start:#x}");
}

#[cfg(feature = "bug-bank")]
#[test]
fn block_that_divides_coarsely_is_seen() {
    use honeycomb_types::Bug;
    Bug::arm(Some(Bug::DividesCoarsely));
    let split = first_split_of_few_hashes();
    Bug::arm(None);
    assert_eq!(split, None);
}

#[test]
fn what_is_not_what_was_sent_is_refused() {
    let mut pair = Pair::new();
    for n in 0..100 {
        pair.put(&key(n), &[n as u8; 300]);
    }
    pair.begin(0, 30);
    let Under { from, to, id, .. } = pair.under.unwrap();
    let (mover, block) = pair.mover(from);
    let parcel = mover.next_parcel(block).unwrap();
    let (op, args) = parcel.request(id);
    let Parcel::Region { bytes, .. } = parcel else { panic!("small values are in their region") };
    let mut bytes = bytes.to_vec();
    bytes[100] ^= 1;
    assert_eq!(pair.driver(to).run(op, &args, &bytes).status, Status::BadFrame);
    let done = MoveDoneRequest { move_id: id, entries: 0, bytes: 0 };
    assert_eq!(pair.driver(to).run(Op::MoveDone, &done.encode(), b"").status, Status::Internal);
    let stranger = MoveDoneRequest { move_id: id + 1, entries: 0, bytes: 0 };
    let answer = pair.driver(to).run(Op::MoveDone, &stranger.encode(), b"");
    assert_eq!(answer.status, Status::WrongEpoch);
}

/// A batch of many small values filled a small block to its last byte. The region at the boundary had no room
/// for the header of a division, and the block never requested a split again: writers had to retry
/// until their deadline.
#[test]
fn a_small_block_that_is_full_to_the_brim_can_be_divided() {
    for size in [64 << 10, 256 << 10, 1 << 20] {
        for length in [40, 300, 1000] {
            for salt in 0..8 {
                let (driver, request) = brimful(size, length, salt);
                let Some(MoveRequest::Split { start }) = request else {
                    panic!("it is full: {request:?}")
                };
                let Driver { mut structure, mut block, .. } = driver;
                let begun = structure.movable().unwrap().begin_export(&mut block, start, u64::MAX);
                assert!(begun.is_ok(), "{size} {length} {salt}: {begun:?}");
                structure.check(&block);
            }
        }
    }
}

/// A block that was filled without a call of `move_request`, and the move that it requests then.
fn brimful(size: usize, length: usize, salt: u32) -> (Driver<KvBlock>, Option<MoveRequest>) {
    brimful_of(size, salt, |_| length)
}

/// As above, with values of these lengths.
fn brimful_of(
    size: usize,
    salt: u32,
    length: impl Fn(u32) -> usize,
) -> (Driver<KvBlock>, Option<MoveRequest>) {
    let mut driver = Driver::new(size, block_of(size, 0, u64::MAX));
    driver.sleep(1);
    let now = driver.now;
    assert_eq!(driver.structure.movable().unwrap().move_request(&driver.block, now), None);
    for n in 0.. {
        let args = [&[0], format!("brim-{salt}-{n}").as_bytes()].concat();
        if driver.run(Op::KvPut, &args, &vec![7; length(n)]).status == Status::Busy {
            break;
        }
    }
    driver.sleep(1);
    let now = driver.now;
    let request = driver.structure.movable().unwrap().move_request(&driver.block, now);
    (driver, request)
}

/// Of 250 small blocks full of large and small values, the number that cannot be divided.
fn indivisible_of_250() -> usize {
    let size = 64 << 10;
    let lengths = |salt: u32| {
        move |n: u32| match n {
            // Large values first: beside them the regions of the small ones are few and wide.
            0..3 => size / 8 + salt as usize * 16,
            _ => 100 + (salt as usize * 31) % 900,
        }
    };
    let divides = |salt: &u32| {
        let (driver, request) = brimful_of(size, *salt, lengths(*salt));
        let Some(MoveRequest::Split { start }) = request else { panic!("it is full: {request:?}") };
        let Driver { mut structure, mut block, .. } = driver;
        let begun = structure.movable().unwrap().begin_export(&mut block, start, u64::MAX).is_ok();
        structure.check(&block);
        begun
    };
    (0..250).filter(|salt| !divides(salt)).count()
}

/// Seed 1150050: new entries were placed wherever their region had room, even if the block had only its
/// reserve for dividing itself. It requested a split every second and could not begin it; writers had to
/// retry until their deadline.
#[test]
fn block_of_large_and_small_values_that_is_full_can_be_divided() {
    assert_eq!(indivisible_of_250(), 0);
}

#[cfg(feature = "bug-bank")]
#[test]
fn new_entries_in_the_reserve_are_seen() {
    use honeycomb_types::Bug;
    Bug::arm(Some(Bug::ReserveTaken));
    let indivisible = indivisible_of_250();
    Bug::arm(None);
    assert!(indivisible > 0);
}

#[test]
fn a_block_that_could_not_be_divided_asks_again() {
    let (mut driver, request) = brimful(256 << 10, 1000, 0);
    let Some(MoveRequest::Split { start }) = request else { panic!("it is full: {request:?}") };
    let pin = driver.block.pin(0..256 << 10);
    let begun =
        driver.structure.movable().unwrap().begin_export(&mut driver.block, start, u64::MAX);
    assert_eq!(begun.unwrap_err().status, Status::Busy);
    let now = driver.now;
    driver.structure.movable().unwrap().cancel_export(&mut driver.block, now);
    drop(pin);
    let again = driver.run(Op::KvPut, b"\0one more", &[7; 1000]);
    assert_eq!(again.status, Status::Busy);
    let due = driver
        .structure
        .movable()
        .unwrap()
        .move_request_due()
        .expect("it has another check to come");
    let request = driver.structure.movable().unwrap().move_request(&driver.block, due);
    assert_eq!(request, Some(MoveRequest::Split { start }));
    driver.structure.movable().unwrap().begin_export(&mut driver.block, start, u64::MAX).unwrap();
}

/// Data that has moved away is freed little by little. Until then a block seemed as full as before: it gave
/// away a half of the rest as well, and writers got `BlockFull` although half of it had just moved.
#[test]
fn what_has_just_gone_is_no_reason_to_divide_the_rest() {
    let (driver, request) = brimful(SIZE, 1000, 3);
    let Some(MoveRequest::Split { start }) = request else { panic!("it is full: {request:?}") };
    let Driver { mut structure, mut block, now, .. } = driver;
    structure.movable().unwrap().begin_export(&mut block, start, u64::MAX).unwrap();
    structure.movable().unwrap().freeze(Time::ZERO);
    while structure.movable().unwrap().next_parcel(&mut block).is_some() {}
    structure.movable().unwrap().hand_over();
    structure.movable().unwrap().depart(now, MOVED.to_vec());
    assert_eq!(structure.movable().unwrap().move_request(&block, now), None);
    let mut driver = Driver { structure, block, ..Driver::new(SIZE, super::moves::block(0, 1)) };
    let mut n = 0;
    loop {
        // One more of the largest size, for the half that stays.
        n += 1;
        let key = format!("more-{n}");
        let args = [&[0], key.as_bytes()].concat();
        let status = driver.run(Op::KvPut, &args, &[7; 1000]).status;
        assert!(matches!(status, Status::Ok | Status::Busy | Status::Moved), "{status:?}");
        let now = driver.now;
        let leaving = driver.structure.movable().unwrap().sweep(&mut driver.block);
        assert_eq!(driver.structure.movable().unwrap().move_request(&driver.block, now), None);
        if !leaving {
            break;
        }
    }
    assert!(n > 2, "it takes a while until all is given back");
}

/// Values beside their regions did not count as unsent. So a range of only large values seemed fully sent
/// when its move began, and was frozen while all of them were transferred.
#[test]
fn large_values_that_were_not_sent_are_still_to_be_sent() {
    let mut pair = Pair::new();
    for n in 0..20 {
        pair.put(&key(n), &[n as u8; 9000]);
    }
    pair.begin(0, 0);
    let Under { from, start, .. } = pair.under.unwrap();
    let moves = pair.model.keys().filter(|key| key_hash(key) >= start).count() as u64;
    assert!(moves > 5 && pair.mover(from).0.unsent() >= moves * 9000);
    for sent in 1..=moves {
        assert!(pair.bring(false));
        let left = pair.mover(from).0.unsent();
        let values = (moves - sent) * 9000;
        assert!((values..values + 16 * 1024).contains(&left), "{left} after {sent} of {moves}");
    }
}

/// Gets every key before a hash, several times over.
fn read_below(driver: &mut Driver<KvBlock>, keys: u32, salt: u32, hash: u64, times: usize) {
    for n in 0..keys {
        let key = format!("brim-{salt}-{n}");
        for _ in 0..if key_hash(key.as_bytes()) < hash { times } else { 0 } {
            driver.run(Op::KvGet, key.as_bytes(), b"");
        }
    }
}

/// Where a full block divides after so many gets of the lowest eighth of its keys: the parts of all entries
/// and of these keys before that hash.
fn cut_when_read(times: usize) -> (f64, f64) {
    let (size, salt, hot) = (4 << 20, 1, 1 << 61);
    let (mut driver, first) = brimful(size, 1000, salt);
    let Some(first) = first else { panic!("it is full") };
    let now = driver.now;
    driver.structure.movable().unwrap().refused(
        now,
        first,
        Status::OutOfMemory,
        "none is free".into(),
    );
    read_below(&mut driver, 4000, salt, hot, times);
    driver.sleep(200);
    let now = driver.now;
    let request = driver.structure.movable().unwrap().move_request(&driver.block, now);
    let Some(MoveRequest::Split { start }) = request else { panic!("it is full: {request:?}") };
    let hashes = (0..4000u32).map(|n| key_hash(format!("brim-{salt}-{n}").as_bytes()));
    let part = |hashes: Vec<u64>| {
        hashes.iter().filter(|hash| **hash < start).count() as f64 / hashes.len() as f64
    };
    (part(hashes.clone().collect()), part(hashes.filter(|hash| *hash < hot).collect()))
}

#[test]
fn a_block_of_which_one_half_is_much_busier_gives_that_half_less_of_its_bytes() {
    let (bytes, busy) = cut_when_read(0);
    assert!((0.45..0.55).contains(&bytes) && busy == 1.0, "by bytes alone: {bytes}, {busy}");
    // Filling it counted as many operations on both sides as there are entries.
    let (bytes, _) = cut_when_read(2);
    assert!((0.45..0.55).contains(&bytes), "a little busier: {bytes}");
    let (bytes, busy) = cut_when_read(200);
    assert!((0.15..0.35).contains(&bytes) && busy == 1.0, "much busier: {bytes}, {busy}");
}
