//! Blocks in lower tiers: however blocks are demoted, demoted further and promoted, and in whatever order
//! disk and object store answer, a file reads as it was written (INV-11, INV-41), and nothing of either stays
//! in use (INV-44).

mod promotion;

use crate::common::{access, owner};
use honeycomb_block::Reclaimer;
use honeycomb_env::{MemoryVolume, Volume};
use honeycomb_server::{
    BlockOwner, Effect, Io, KeptBytes, KeptFault, Shard, ShardConfig, VolumeParts,
};
use honeycomb_structures::{Answer, Outcome, Payload, Ticket};
use honeycomb_types::{
    BlockAt, BlockId, Epoch, Kind, LaneId, Sequence, ServerId, ShardIx, TierClass, TierIx,
    TierSpec, Time,
};
use honeycomb_wire::batch::{ReadManyArgs, ranges};
use honeycomb_wire::data::ReadArgs;
use honeycomb_wire::{Op, RequestHeader, Status};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SIZE: usize = 64 << 10;
const SERVER: ServerId = ServerId(1);
/// Blocks of files, each of which is opened, filled, sealed and freed separately.
const FILES: usize = 7;
const FRAMES: u32 = 3;
const WARM: u32 = 2;
/// The most that may be in lower tiers at a time: the controller allows no more.
const PLACES: u32 = FILES as u32;
/// The tier that accepts only final blocks.
const STORE: TierIx = TierIx(2);

#[derive(Clone, Debug)]
enum Step {
    Append {
        file: usize,
        length: usize,
    },
    /// A large append that arrives in pieces, with another step between them.
    Fill {
        file: usize,
        length: usize,
    },
    Read {
        file: usize,
        offset: usize,
        length: u32,
    },
    ReadMany {
        file: usize,
        ranges: Vec<(u64, u32)>,
    },
    Seal {
        file: usize,
    },
    Lower {
        file: usize,
    },
    /// Demotes it to the object store, from memory or from the disk, if possible now.
    Sink {
        file: usize,
    },
    /// Promotes it, if possible now.
    Raise {
        file: usize,
    },
    /// The object store becomes unreachable, or reachable again.
    Away {
        away: bool,
    },
    /// The disk executes one of its operations.
    Disk {
        nth: usize,
        fails: bool,
    },
    Full {
        full: bool,
    },
    Free {
        file: usize,
    },
    /// It is unreachable from now on, and its content is written elsewhere: as often as this step occurs.
    Flush {
        file: usize,
    },
    /// Its present content is written elsewhere, while it stays in use.
    Copy {
        file: usize,
    },
    Open {
        file: usize,
        below: bool,
    },
    Pass {
        ms: u64,
    },
}

/// One file of one block.
#[derive(Default)]
struct File {
    at: Option<BlockAt>,
    bytes: Vec<u8>,
    sealed: bool,
    kept: Option<Arc<KeptBytes>>,
}

/// The content of a file when it was copied.
struct Copy {
    held: Arc<KeptBytes>,
    bytes: Vec<u8>,
    /// Nothing is written to it any more.
    sealed: bool,
}

/// A read that waits.
struct Awaited {
    file: usize,
    at: BlockAt,
    op: Op,
    /// The expected result: of one range as much as exists, of many ranges all.
    ranges: Vec<Vec<u8>>,
}

struct World {
    shard: Shard,
    disk: Arc<MemoryVolume>,
    store: Arc<MemoryVolume>,
    is_away: bool,
    files: Vec<File>,
    /// The last one of each file, also of a freed one.
    copies: [Option<Copy>; FILES],
    pending: Vec<Io>,
    awaited: BTreeMap<Ticket, Awaited>,
    now: Time,
    epochs: u64,
    ticket: u64,
    next_byte: u8,
    /// Counts of events: reads that waited, appends that had to be retried, blocks that were demoted,
    /// promoted, and demoted to the object store.
    seen: [u64; 5],
    rising: BTreeSet<BlockAt>,
}

impl World {
    fn new() -> World {
        let shard = crate::common::shard(
            SERVER,
            ShardConfig {
                frames: FRAMES,
                warm: WARM,
                disks: vec![
                    TierSpec { class: TierClass::Ssd, blocks: PLACES },
                    TierSpec { class: TierClass::Object, blocks: PLACES },
                ],
                buffers: 2 * SIZE,
                ..crate::common::config(SIZE, FRAMES + PLACES)
            },
        );
        World {
            shard,
            disk: Arc::new(MemoryVolume::new()),
            store: Arc::new(MemoryVolume::new()),
            is_away: false,
            files: (0..FILES).map(|_| File::default()).collect(),
            copies: Default::default(),
            pending: Vec::new(),
            awaited: BTreeMap::new(),
            now: Time::from_millis(5000),
            epochs: 0,
            ticket: 0,
            next_byte: 0,
            seen: [0; 5],
            rising: BTreeSet::new(),
        }
    }

    fn header(&mut self, file: usize, op: Op, payload: usize) -> Option<(RequestHeader, Ticket)> {
        let at = self.files[file].at.filter(|_| self.files[file].kept.is_none())?;
        self.ticket += 1;
        let mut header = RequestHeader { at, grant: 1, ..RequestHeader::new(op) };
        header.payload_len = payload as u32;
        if op.info().lane {
            // A lane for each: one that is idle for long is forgotten.
            header.lane = LaneId(self.ticket as u32);
            header.sequence = Sequence(1);
        }
        Some((header, Ticket(self.ticket)))
    }

    /// Bytes that never repeat.
    fn fresh(&mut self, length: usize) -> Vec<u8> {
        self.next_byte = self.next_byte.wrapping_add(1);
        let (mut x, seed) = (self.next_byte as u32 | 1 << 8, self.next_byte);
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 24) as u8 ^ seed
        };
        (0..length).map(|_| next()).collect()
    }

    /// Handles the answer of a mutation.
    fn answered(&mut self, answer: &Answer) -> bool {
        match answer.status {
            Status::Ok => true,
            Status::Sealed => false,
            // It is repeated; the number is not used up. This test has no growth.
            Status::Busy => {
                self.seen[1] += 1;
                false
            }
            other => panic!("an append was answered {other:?}: {answer:?}"),
        }
    }

    fn append(&mut self, file: usize, length: usize) {
        let length = length.min(SIZE - self.files[file].bytes.len());
        let Some((header, ticket)) = self.header(file, Op::FileAppend, length) else { return };
        if length == 0 {
            return;
        }
        let bytes = self.fresh(length);
        let outcome = self.shard.apply(self.now, &access(false), &header, &[], &bytes, ticket);
        let Outcome::Done(answer) = outcome else { panic!("an append waits") };
        if self.answered(&answer) {
            assert_eq!(answer.value, self.files[file].bytes.len() as u64);
            self.files[file].bytes.extend(bytes);
        }
    }

    fn fill(&mut self, file: usize, length: usize) {
        let length = length.min(SIZE - self.files[file].bytes.len());
        let Some((header, ticket)) = self.header(file, Op::FileAppend, length) else { return };
        if length == 0 {
            return;
        }
        let bytes = self.fresh(length);
        match self.shard.reserve(self.now, &access(false), &header, &[], ticket) {
            Ok(()) => {}
            Err(answer) => {
                self.answered(&answer);
                return;
            }
        }
        let mut written = 0;
        while written < length {
            // The disk continues meanwhile, and blocks are demoted.
            self.lower(file);
            self.disk(written, false);
            let place = self.shard.requests().fill(ticket).unwrap();
            let n = place.len().min(1 + length / 2);
            place[..n].copy_from_slice(&bytes[written..written + n]);
            self.shard.requests().filled(ticket, n);
            written += n;
        }
        self.shard.end_payload(self.now, ticket, true);
        let answer = self.completed(Some(ticket)).unwrap();
        assert!(self.answered(&answer));
        self.files[file].bytes.extend(bytes);
    }

    fn read(&mut self, file: usize, offset: usize, length: u32) {
        let Some((header, ticket)) = self.header(file, Op::FileRead, 0) else { return };
        let mut args = Vec::new();
        ReadArgs { offset: offset as u64, length }.put(&mut args);
        let bytes = &self.files[file].bytes;
        let from = offset.min(bytes.len());
        let expected = bytes[from..bytes.len().min(from + length as usize)].to_vec();
        self.ask(file, &header, &args, ticket, vec![expected]);
    }

    fn read_many(&mut self, file: usize, asked: &[(u64, u32)]) {
        let Some((header, ticket)) = self.header(file, Op::FileReadMany, 0) else { return };
        let mut args = Vec::new();
        ReadManyArgs { bytes: 1 << 20, ranges: asked.to_vec() }.put(&mut args);
        let bytes = &self.files[file].bytes;
        let one = |(offset, length): &(u64, u32)| {
            let from = (*offset as usize).min(bytes.len());
            bytes[from..bytes.len().min(from + *length as usize)].to_vec()
        };
        let expected = asked.iter().map(one).collect();
        self.ask(file, &header, &args, ticket, expected);
    }

    fn ask(
        &mut self,
        file: usize,
        header: &RequestHeader,
        args: &[u8],
        ticket: Ticket,
        ranges: Vec<Vec<u8>>,
    ) {
        let waits = Awaited { file, at: header.at, op: header.op, ranges };
        match self.shard.apply(self.now, &access(false), header, args, &[], ticket) {
            Outcome::Done(answer) => self.judge(waits, answer),
            Outcome::Parked => {
                self.seen[0] += 1;
                self.awaited.insert(ticket, waits);
            }
        }
    }

    fn judge(&mut self, waits: Awaited, answer: Answer) {
        let file = &self.files[waits.file];
        let freed = file.at != Some(waits.at) || file.kept.is_some();
        match answer.status {
            Status::WrongEpoch => return assert!(freed, "a block that is there is not found"),
            Status::Busy => return,
            // Only a disk that failed twice loses data.
            Status::DataLost => panic!("{answer:?}"),
            status => assert_eq!(status, Status::Ok, "{answer:?}"),
        }
        assert!(!freed, "a block was served after it was freed");
        let payload = match answer.payload {
            Payload::None => Vec::new(),
            Payload::Bytes(bytes) => bytes.to_vec(),
            Payload::Pinned(pin) => pin.bytes().to_vec(),
            Payload::Block(range) => self.shard.bytes(waits.at, range).to_vec(),
            Payload::Parts(_) => panic!("the shard puts it together"),
        };
        if waits.op == Op::FileRead {
            let expected = &waits.ranges[0];
            assert!(expected.starts_with(&payload), "other bytes than were written (INV-11)");
            assert_eq!(payload.is_empty(), expected.is_empty(), "an empty answer is the end");
            return;
        }
        let read = ranges(&payload, answer.value as usize).unwrap();
        assert_eq!(read.len(), waits.ranges.len());
        for (read, expected) in read.into_iter().zip(&waits.ranges) {
            assert!(read == expected.as_slice(), "other bytes than were written (INV-11)");
        }
    }

    fn seal(&mut self, file: usize) {
        let Some((header, ticket)) = self.header(file, Op::FileSeal, 0) else { return };
        let outcome = self.shard.apply(self.now, &access(false), &header, &[], &[], ticket);
        let Outcome::Done(answer) = outcome else { panic!("a seal waits") };
        if self.answered(&answer) {
            self.files[file].sealed = true;
        }
    }

    fn lower(&mut self, file: usize) {
        if let Some(at) = self.files[file].at {
            let _ = self.shard.tiers().change_tier(at, TierIx(1));
        }
        self.settle();
    }

    fn sink(&mut self, file: usize) {
        if let Some(at) = self.files[file].at {
            let sealed = self.files[file].sealed || self.files[file].kept.is_some();
            let sinks = self.shard.tiers().change_tier(at, STORE);
            assert!(
                sealed || sinks.is_err(),
                "a block that may be written is not demoted to a store"
            );
        }
        self.settle();
    }

    fn set_away(&mut self, away: bool) {
        self.is_away = away;
        self.store.set_away(away);
    }

    fn raise(&mut self, at: BlockAt) {
        if self.shard.tiers().change_tier(at, TierIx::MEMORY).is_ok() {
            self.rising.insert(at);
        }
    }

    fn disk(&mut self, nth: usize, fails: bool) {
        self.settle();
        if self.pending.is_empty() {
            return;
        }
        let io = self.pending.swap_remove(nth % self.pending.len());
        // A read is tried twice: it fails once.
        let volume = if io.tier == STORE { &self.store } else { &self.disk };
        volume.fail_writes(u32::from(fails));
        volume.fail_reads(u32::from(fails));
        let (id, done) = io.carry_out(&**volume, 0);
        volume.fail_writes(0);
        volume.fail_reads(0);
        self.shard.tiers().io_done(self.now, id, done);
        self.settle();
    }

    fn completed(&mut self, wanted: Option<Ticket>) -> Option<Answer> {
        let mut found = None;
        while let Some((ticket, answer)) = self.shard.out().completed() {
            if wanted == Some(ticket) {
                found = Some(answer);
            } else {
                let waits = self.awaited.remove(&ticket).expect("a read waits for it");
                self.judge(waits, answer);
            }
        }
        found
    }

    fn settle(&mut self) {
        self.completed(None);
        self.pending.extend(self.shard.tiers().take_io());
        for effect in self.shard.out().take_effects() {
            match effect {
                Effect::TierChanged { at, tier, .. } => {
                    let rose = self.rising.remove(&at) && !tier.is_below();
                    self.seen[2] += u64::from(tier.is_below());
                    self.seen[4] += u64::from(tier == STORE);
                    self.seen[3] += u64::from(rose);
                }
                // The controller has room for it, as far as this core has.
                Effect::Promote { at, .. } => self.raise(at),
                Effect::BlockFailed { why, .. } => panic!("{why}"),
                _ => {}
            }
        }
        let (frames, warm) = self.shard.reports().in_memory();
        assert!(frames <= FRAMES && warm <= WARM, "{frames} and {warm} blocks in memory (INV-42)");
    }

    fn free(&mut self, file: usize) {
        if let Some(at) = std::mem::take(&mut self.files[file]).at {
            assert!(self.shard.owners().free(at));
        }
        self.settle();
    }

    fn parts(&self) -> VolumeParts {
        let disk: Arc<dyn Volume> = self.disk.clone();
        let store: Arc<dyn Volume> = self.store.clone();
        Arc::new([(disk, 0), (store, 0)])
    }

    /// A flush that began earlier reads the same as one that begins now.
    fn flush(&mut self, file: usize) {
        let Some(at) = self.files[file].at else { return };
        let kept = self.shard.owners().retain(at, (0, u64::MAX)).unwrap();
        let before = self.files[file].kept.replace(kept.clone()).unwrap_or_else(|| kept.clone());
        self.settle();
        for kept in [before, kept] {
            let mut bytes = Vec::new();
            match kept.write(&self.parts(), &mut bytes) {
                Err(KeptFault::Away(_)) if self.is_away => {}
                written => {
                    written.unwrap();
                    assert!(bytes == self.files[file].bytes, "other bytes are flushed (INV-11)");
                }
            }
        }
    }

    /// A copy that began earlier reads the content of that time, wherever it is now. Only an end that was
    /// rewritten meanwhile is not found.
    fn copy(&mut self, file: usize) {
        if let Some(Copy { held, bytes, sealed }) = self.copies[file].take() {
            let mut read = Vec::new();
            match held.write(&self.parts(), &mut read) {
                Ok(_) => assert!(read == bytes, "other bytes are copied (INV-11)"),
                Err(KeptFault::Away(_)) => assert!(self.is_away),
                Err(fault) => assert!(!sealed && !held.is_settled(), "{fault}"),
            }
        }
        let File { at, ref kept, .. } = self.files[file];
        let Some(at) = at.filter(|_| kept.is_none()) else { return };
        let (held, sealed) =
            self.shard.on_exports(self.now, |work| work.copy(at, (0, u64::MAX), 1)).unwrap();
        let bytes = self.files[file].bytes.clone();
        let mut read = Vec::new();
        match held.write(&self.parts(), &mut read) {
            Err(KeptFault::Away(_)) if self.is_away => {}
            written => {
                written.unwrap();
                assert!(read == bytes, "other bytes are copied (INV-11)");
            }
        }
        self.copies[file] = Some(Copy { held, bytes, sealed });
    }

    fn open(&mut self, file: usize, below: bool) {
        if self.files[file].at.is_some() {
            return;
        }
        self.epochs += 1;
        let at = BlockAt {
            block: BlockId::new(SERVER, ShardIx(0), file as u32),
            epoch: Epoch(self.epochs),
        };
        let owner = BlockOwner { tier: TierIx(u8::from(below)), ..owner(at, Kind::File, true) };
        match self.shard.open(owner, None) {
            Ok(_) => self.files[file].at = Some(at),
            Err(answer) => {
                assert_eq!(answer.status, Status::OutOfMemory);
                assert_eq!(self.shard.reports().in_memory().0, FRAMES, "there is room");
            }
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Append { file, length } => self.append(*file, *length),
            Step::Fill { file, length } => self.fill(*file, *length),
            Step::Read { file, offset, length } => self.read(*file, *offset, *length),
            Step::ReadMany { file, ranges } => self.read_many(*file, ranges),
            Step::Seal { file } => self.seal(*file),
            Step::Lower { file } => self.lower(*file),
            Step::Sink { file } => self.sink(*file),
            Step::Away { away } => self.set_away(*away),
            Step::Raise { file } => {
                if let Some(at) = self.files[*file].at {
                    self.raise(at);
                }
            }
            Step::Disk { nth, fails } => self.disk(*nth, *fails),
            Step::Full { full } => self.disk.set_room(full.then(|| self.disk.taken())),
            Step::Free { file } => self.free(*file),
            Step::Flush { file } => self.flush(*file),
            Step::Copy { file } => self.copy(*file),
            Step::Open { file, below } => self.open(*file, *below),
            Step::Pass { ms } => {
                self.now = self.now + Duration::from_millis(*ms);
                self.shard.tick(self.now);
            }
        }
        self.settle();
    }

    /// The disk executes all its operations, and those that follow.
    fn drain(&mut self) {
        self.disk.set_room(None);
        self.set_away(false);
        self.settle();
        while !self.pending.is_empty() {
            self.disk(0, false);
        }
        self.now = self.now + Duration::from_secs(1);
        self.shard.tick(self.now);
        self.settle();
        // The places that the object store had to free while it was unreachable.
        while !self.pending.is_empty() {
            self.disk(0, false);
        }
    }

    /// Everything reads as it was written, and then nothing is left.
    fn end(mut self) -> [u64; 5] {
        self.drain();
        // Each is read once more, and then dropped.
        (0..FILES).for_each(|file| self.copy(file));
        self.copies = Default::default();
        self.drain();
        for file in 0..FILES {
            let length = self.files[file].bytes.len();
            let mut offset = 0;
            if self.files[file].kept.is_some() {
                self.flush(file);
                continue;
            }
            while offset < length && self.files[file].at.is_some() {
                self.read(file, offset, SIZE as u32);
                self.drain();
                offset += 16 << 10;
            }
            assert!(self.awaited.is_empty(), "a read was never answered");
        }
        // Every file can still be written, or is sealed: the cache serves one after the other.
        for file in 0..FILES {
            let before = self.files[file].bytes.len();
            let File { at, sealed, ref kept, .. } = self.files[file];
            if at.is_none() || sealed || kept.is_some() || before == SIZE {
                continue;
            }
            for _ in 0..20 {
                if self.files[file].bytes.len() == before {
                    self.append(file, 10);
                    self.drain();
                }
            }
            assert!(self.files[file].bytes.len() > before, "a writer is never served");
        }
        for file in 0..FILES {
            self.free(file);
        }
        self.drain();
        assert!(self.shard.reports().tiers_are_quiet(), "something of the disk is in use (INV-44)");
        assert_eq!((self.shard.reports().in_memory(), self.disk.taken()), ((0, 0), 0));
        assert_eq!(self.store.taken(), 0);
        self.seen
    }
}

fn step() -> impl Strategy<Value = Step> {
    let file = || 0..FILES;
    let offset = || prop_oneof![0..SIZE, Just(16384), Just(16383), Just(0)];
    let ranges = prop::collection::vec((0..SIZE as u64, 0..20_000u32), 1..6);
    prop_oneof![
        // An append takes at most an eighth of a block.
        6 => (file(), 0..8193usize).prop_map(|(file, length)| Step::Append { file, length }),
        2 => (file(), 0..8193usize).prop_map(|(file, length)| Step::Fill { file, length }),
        6 => (file(), offset(), 0..70_000u32)
            .prop_map(|(file, offset, length)| Step::Read { file, offset, length }),
        3 => (file(), ranges).prop_map(|(file, ranges)| Step::ReadMany { file, ranges }),
        2 => file().prop_map(|file| Step::Seal { file }),
        4 => file().prop_map(|file| Step::Sink { file }),
        1 => prop::bool::weighted(0.3).prop_map(|away| Step::Away { away }),
        4 => file().prop_map(|file| Step::Lower { file }),
        3 => file().prop_map(|file| Step::Raise { file }),
        10 => (0..20usize, prop::bool::weighted(0.1))
            .prop_map(|(nth, fails)| Step::Disk { nth, fails }),
        1 => prop::bool::weighted(0.3).prop_map(|full| Step::Full { full }),
        1 => file().prop_map(|file| Step::Free { file }),
        1 => file().prop_map(|file| Step::Flush { file }),
        3 => file().prop_map(|file| Step::Copy { file }),
        3 => (file(), any::<bool>()).prop_map(|(file, below)| Step::Open { file, below }),
        2 => (0..60u64).prop_map(|ms| Step::Pass { ms }),
    ]
}

fn run(steps: &[Step]) -> [u64; 5] {
    let mut world = World::new();
    for file in 0..FILES {
        world.step(&Step::Open { file, below: file >= FRAMES as usize });
    }
    steps.iter().for_each(|step| world.step(step));
    world.end()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("TIER_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(200),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_file_reads_as_it_was_written_wherever_it_is(
        steps in prop::collection::vec(step(), 1..150)
    ) {
        run(&steps);
    }
}

#[test]
fn the_random_steps_read_below_make_writers_wait_and_let_blocks_go_down_and_up() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut seen = [0; 5];
    for _ in 0..60 {
        let steps = prop::collection::vec(step(), 100..150).new_tree(&mut runner).unwrap();
        seen.iter_mut().zip(run(&steps.current())).for_each(|(all, one)| *all += one);
    }
    assert!(seen.iter().all(|&count| count >= 30), "{seen:?}");
}

/// Bytes after the end of a block in its last page are not written to the disk.
#[test]
fn only_what_a_block_holds_goes_to_the_disk() {
    let mut world = World::new();
    world.open(0, false);
    world.append(0, 8000);
    world.free(0);
    // The same job's memory again, as it was left.
    world.open(0, false);
    world.append(0, 5);
    world.seal(0);
    world.lower(0);
    world.drain();
    let mut page = honeycomb_block::Backing::map(4096, &Reclaimer::inline()).unwrap();
    let found = (0..PLACES as u64).find(|place| {
        world.disk.read(place * SIZE as u64, page.slice_mut(0..4096)).unwrap();
        page.slice(0..5) == world.files[0].bytes
    });
    assert!(found.is_some(), "the block is on the disk");
    assert!(page.slice(5..4096).iter().all(|byte| *byte == 0));
}

/// A disk with a concurrent event during a read.
struct Meanwhile {
    disk: Arc<MemoryVolume>,
    world: Mutex<World>,
    happens: fn(&mut World),
}

impl Volume for Meanwhile {
    fn read(&self, at: u64, into: &mut [u8]) -> std::io::Result<()> {
        (self.happens)(&mut self.world.lock().unwrap());
        self.disk.read(at, into)
    }

    fn write(&self, _: u64, _: &[u8]) -> std::io::Result<()> {
        unreachable!("it is only read")
    }

    fn discard(&self, _: Range<u64>) -> std::io::Result<()> {
        unreachable!("it is only read")
    }

    fn is_direct(&self) -> bool {
        false
    }
}

/// A retained file of two chunks, all of it on the disk.
fn kept_below() -> (World, Arc<KeptBytes>) {
    let mut world = World::new();
    world.open(0, false);
    for _ in 0..4 {
        world.append(0, 8000);
    }
    world.flush(0);
    assert_eq!(world.shard.reports().in_memory(), (1, 0));
    world.lower(0);
    world.drain();
    assert_eq!((world.shard.reports().in_memory(), world.seen[2]), ((0, 0), 1), "it went down");
    world.flush(0);
    let kept = world.files[0].kept.clone().unwrap();
    (world, kept)
}

/// Content that is being read for a flush keeps its place until that has ended, even if the block is freed
/// (INV-44).
#[test]
fn a_kept_block_that_is_freed_while_it_is_read_leaves_its_place_afterwards() {
    let (world, kept) = kept_below();
    let (bytes, disk) = (world.files[0].bytes.clone(), world.disk.clone());
    let happens = |world: &mut World| {
        world.free(0);
        world.drain();
        assert!(world.disk.taken() > 0, "its place is given away while it is read");
    };
    let volume = Arc::new(Meanwhile { disk, world: Mutex::new(world), happens });
    let mut read = Vec::new();
    let parts: VolumeParts = Arc::new([(volume.clone() as Arc<dyn Volume>, 0)]);
    kept.write(&parts, &mut read).unwrap();
    assert!(read == bytes);
    let mut world = volume.world.lock().unwrap();
    world.drain();
    world.drain();
    assert_eq!(world.disk.taken(), 0);
    assert!(world.shard.reports().tiers_are_quiet());
    let gone = kept.write(&parts, &mut read);
    assert!(matches!(gone, Err(KeptFault::Gone)), "{gone:?}");
}

/// Content of a file in a lower tier that a live flush has begun to read keeps its place until that has
/// ended, even if the block is promoted or freed (INV-44). An end that was rewritten meanwhile is copied
/// anew, not lost.
#[test]
fn a_copy_of_what_is_below_keeps_its_place_and_is_of_one_time() {
    let mut world = below();
    let (open, sealed) = world
        .shard
        .on_exports(world.now, |work| work.copy(world.files[0].at.unwrap(), (0, u64::MAX), 1))
        .unwrap();
    assert!(!sealed && !open.is_settled());
    let bytes = world.files[0].bytes.clone();
    for _ in 0..20 {
        world.append(0, 10);
        world.drain();
    }
    assert!(world.files[0].bytes.len() > bytes.len());
    world.seal(0);
    world.drain();
    assert_eq!(world.shard.reports().in_memory(), (0, 0), "its end went down again");
    let anew = open.write(&world.parts(), &mut Vec::new());
    assert!(matches!(anew, Err(KeptFault::Lost(_))), "{anew:?}");
    let at = world.files[0].at.unwrap();
    let (copy, sealed) =
        world.shard.on_exports(world.now, |work| work.copy(at, (0, u64::MAX), 1)).unwrap();
    assert!(sealed && copy.is_settled());
    drop(open);
    let bytes = world.files[0].bytes.clone();
    world.raise(at);
    world.drain();
    assert_eq!(world.shard.reports().in_memory(), (1, 0), "it was promoted");
    world.free(0);
    world.drain();
    let mut read = Vec::new();
    copy.write(&world.parts(), &mut read).unwrap();
    assert!(read == bytes && world.disk.taken() > 0 && !world.shard.reports().tiers_are_quiet());
    drop(copy);
    world.drain();
    world.drain();
    assert!(world.disk.taken() == 0 && world.shard.reports().tiers_are_quiet());
}

/// Bytes that are wrong once are read again; if they are wrong twice they are lost, and never written
/// elsewhere.
#[test]
fn a_flush_reads_what_was_written_or_tells_that_it_is_lost() {
    let (world, kept) = kept_below();
    world.disk.flip_reads(1);
    let mut read = Vec::new();
    kept.write(&world.parts(), &mut read).unwrap();
    assert!(read == world.files[0].bytes);
    world.disk.flip_reads(2);
    let lost = kept.write(&world.parts(), &mut Vec::new());
    assert!(matches!(lost, Err(KeptFault::Lost(_))), "{lost:?}");
}

/// A file of 32,000 bytes in a lower tier.
fn below() -> World {
    let mut world = World::new();
    world.open(0, false);
    for _ in 0..4 {
        world.append(0, 8000);
    }
    world.lower(0);
    world.drain();
    assert_eq!((world.shard.reports().in_memory(), world.seen[2]), ((0, 0), 1), "it went down");
    world
}
