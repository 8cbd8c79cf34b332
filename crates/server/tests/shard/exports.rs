//! Every export of a block begins, or is refused, beside every stage of every other use of the block, as the
//! table of overlaps says (INV-59). Then both end in any order, and the content is unchanged.

use crate::below::{Below, DISK, END, at};
use crate::common::{config, owner};
use honeycomb_server::{
    BlockOwner, Effect, KeptBytes, MoveKey, MoveWord, NewUse, PeerEvent, PeerKey, Post, PresentUse,
    ShardConfig,
};
use honeycomb_structures::Answer;
use honeycomb_types::{Bug, Kind, TierClass, TierIx, TierSpec, Way};
use honeycomb_wire::messages::{JournalAt, MapEntry};
use honeycomb_wire::{Op, Status};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const SIZE: usize = 64 << 10;
const STORE: TierIx = TierIx(2);
const OTHER_STORE: TierIx = TierIx(3);
const ALL: (u64, u64) = (0, u64::MAX);
const MOVE: u64 = 1;
/// Long enough that no checkpoint ends by itself.
const HOLD: Duration = Duration::from_secs(60);

/// A use of a block, at one of its stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Nothing,
    /// A target was requested.
    PeerRequested,
    /// The first part was sent.
    PeerCopies,
    /// Everything was sent, and the block is frozen.
    PeerCounts,
    /// The controller decides.
    PeerCommits,
    /// The request for a target has no answer.
    PeerUnknown,
    /// From memory to the disk.
    TierWrites,
    /// From the disk to the object store.
    TierCopies,
    CheckpointFrozen,
    CheckpointOwing,
    Journal,
    /// A neighbour sends its content.
    Imports,
}

impl Stage {
    const ALL: [Stage; 12] = [
        Stage::Nothing,
        Stage::PeerRequested,
        Stage::PeerCopies,
        Stage::PeerCounts,
        Stage::PeerCommits,
        Stage::PeerUnknown,
        Stage::TierWrites,
        Stage::TierCopies,
        Stage::CheckpointFrozen,
        Stage::CheckpointOwing,
        Stage::Journal,
        Stage::Imports,
    ];

    fn present(self) -> Option<PresentUse> {
        match self {
            Stage::Nothing => None,
            Stage::PeerUnknown => Some(PresentUse::CancelledMove),
            Stage::PeerRequested | Stage::PeerCopies | Stage::PeerCounts | Stage::PeerCommits => {
                Some(PresentUse::Peer)
            }
            Stage::TierWrites | Stage::TierCopies => Some(PresentUse::Tier),
            Stage::CheckpointFrozen | Stage::CheckpointOwing => Some(PresentUse::Checkpoint),
            Stage::Journal => Some(PresentUse::Journal),
            Stage::Imports => Some(PresentUse::Import),
        }
    }

    /// Whether blocks of this kind have the stage.
    fn applies_to(self, kind: Kind) -> bool {
        match self {
            // Only content that is final goes to an object store, and only files have journals.
            Stage::TierCopies | Stage::Journal => kind == Kind::File,
            // The content of a file at a moment is its first bytes, and is never owed.
            Stage::CheckpointOwing => kind != Kind::File,
            // A file or queue moves to an empty block.
            Stage::Imports => kind == Kind::Kv,
            _ => true,
        }
    }
}

struct World {
    below: Below,
    copies: Vec<Arc<KeptBytes>>,
    sent: Vec<Op>,
    before: Vec<u8>,
}

impl World {
    /// One block with content.
    fn new(kind: Kind, stage: Stage) -> World {
        let class = |class| TierSpec { class, blocks: 2 };
        let disks = vec![class(TierClass::Ssd), class(TierClass::Object), class(TierClass::Object)];
        let config =
            ShardConfig { frames: 2, warm: 1, disks, buffers: 2 * SIZE, ..config(SIZE, 2) };
        let mut below = Below::empty(kind, 1, config);
        below.answers_moves = false;
        let owner = BlockOwner { end: END, ..owner(at(0), kind, true) };
        match stage {
            Stage::Journal => {
                let (directory, tag, name) = ("job/t".into(), "tag".into(), "log".into());
                let (job_name, address) = ("job".into(), "t".into());
                let journal = JournalAt { directory, tag, job_name, address, name };
                below.shard.open(owner, Some(journal)).unwrap().unwrap();
                below.shard.on_journals(below.now, |work| work.begun(at(0)));
            }
            _ => assert!(below.shard.open(owner, None).is_ok()),
        }
        let mut world = World { below, copies: Vec::new(), sent: Vec::new(), before: Vec::new() };
        (0..9).for_each(|n| world.add(n));
        if kind == Kind::File && matches!(stage, Stage::TierWrites | Stage::TierCopies) {
            assert_eq!(world.below.run(0, Op::FileSeal, &[], &[]).0.status, Status::Ok);
        }
        world.before = world.below.copied(0);
        world
    }

    fn add(&mut self, n: u8) {
        let payload = [n; 1000];
        let (op, args): (Op, &[u8]) = match self.below.kind {
            Kind::File => (Op::FileAppend, &[]),
            Kind::Queue => (Op::QueuePut, &[]),
            _ => (Op::KvPut, &[0, n]),
        };
        match self.below.begin(0, op, args, &payload) {
            Ok(answer) => assert_eq!(answer.status, Status::Ok, "{answer:?}"),
            // It waits for its journal.
            Err(_) => {
                for write in self.below.shard.out().take_journal_writes() {
                    let number = write.record.number;
                    self.below
                        .shard
                        .on_journals(self.below.now, |work| work.written(write.at, number, Ok(())));
                }
            }
        }
    }

    /// Lets time pass without any I/O.
    fn pass(&mut self) {
        self.below.now = self.below.now + Duration::from_millis(1);
        self.below.doing.extend(self.below.shard.tiers().take_io());
        self.below.shard.tick(self.below.now);
        self.below.effects.extend(self.below.shard.out().take_effects());
        self.posts();
    }

    fn posts(&mut self) {
        while self.below.shard.step(self.below.now) {}
        for post in self.below.shard.out().take_posts() {
            if let Post::Send { op, .. } = post {
                self.sent.push(op);
            }
        }
    }

    fn word(&mut self, word: MoveWord) {
        self.below.shard.on_exports(self.below.now, |work| work.move_word(at(0), word));
        self.posts();
    }

    fn answer_part(&mut self) {
        self.sent.remove(0);
        let key = PeerKey::Move(MoveKey { source: at(0), id: MOVE });
        self.below.shard.peer_event(self.below.now, key, PeerEvent::Answered(Status::Ok));
        self.posts();
    }

    fn has_effect(&self, wanted: impl Fn(&Effect) -> bool) -> bool {
        self.below.effects.iter().any(wanted)
    }

    /// Whether the block has requested a target.
    fn leaves(&mut self) -> Result<(), Answer> {
        self.below.shard.on_exports(self.below.now, |work| work.evacuate(at(0)))?;
        self.pass();
        let requested =
            |effect: &Effect| matches!(effect, Effect::BeginMove { way: Way::Relocate, .. });
        let busy = || Answer::refuse(Status::Busy, "it waits");
        if self.has_effect(requested) { Ok(()) } else { Err(busy()) }
    }

    fn reach(&mut self, stage: Stage) {
        match stage {
            Stage::Nothing | Stage::Journal => {}
            Stage::PeerRequested => self.leaves().unwrap(),
            Stage::PeerUnknown => {
                self.reach(Stage::PeerRequested);
                self.word(MoveWord::Unanswered);
            }
            Stage::PeerCopies => {
                self.reach(Stage::PeerRequested);
                let (block, epoch) = (99, 1);
                let address = "s:1".into();
                let entry = MapEntry { start: 0, end: END, block, epoch, address };
                let address = Ok("127.0.0.1:1".parse().unwrap());
                self.word(MoveWord::Begin { id: MOVE, entry, address });
                assert!(!self.sent.is_empty());
            }
            Stage::PeerCounts => {
                self.reach(Stage::PeerCopies);
                while self.sent != [Op::MoveDone] {
                    self.answer_part();
                }
            }
            Stage::PeerCommits => {
                self.reach(Stage::PeerCounts);
                self.answer_part();
                self.pass();
                assert!(self.has_effect(|effect| matches!(effect, Effect::CommitMove { .. })));
            }
            Stage::Imports => {
                self.below
                    .shard
                    .on_imports(self.below.now, |work| work.begin(at(0), MOVE, u64::MAX, u64::MAX))
                    .unwrap();
            }
            Stage::TierWrites => self.below.shard.tiers().change_tier(at(0), DISK).unwrap(),
            Stage::TierCopies => {
                self.below.lower(0);
                self.below.shard.tiers().change_tier(at(0), STORE).unwrap();
            }
            Stage::CheckpointFrozen => {
                let now = self.below.now;
                self.below
                    .shard
                    .on_exports(now, |work| work.checkpoint(at(0), ALL, 1, HOLD))
                    .unwrap();
            }
            Stage::CheckpointOwing => {
                self.reach(Stage::CheckpointFrozen);
                assert!(self.below.shard.on_exports(self.below.now, |work| work.thaw(at(0), 1)));
            }
        }
        self.below.doing.extend(self.below.shard.tiers().take_io());
    }

    fn begin(&mut self, new: NewUse, stage: Stage) -> Result<(), Answer> {
        let now = self.below.now;
        match new {
            NewUse::Peer => {
                self.below.effects.clear();
                self.leaves()
            }
            NewUse::Tier => {
                // An export to the same tier would be the same export.
                let to = match stage {
                    Stage::TierWrites => STORE,
                    Stage::TierCopies => OTHER_STORE,
                    _ => DISK,
                };
                self.below.shard.tiers().change_tier(at(0), to)
            }
            NewUse::Import => self
                .below
                .shard
                .on_imports(self.below.now, |work| work.begin(at(0), MOVE, u64::MAX, u64::MAX)),
            NewUse::Copy => {
                let (copy, _) =
                    self.below.shard.on_exports(now, |work| work.copy(at(0), ALL, 3))?;
                self.copies.push(copy);
                Ok(())
            }
            NewUse::Checkpoint => self
                .below
                .shard
                .on_exports(now, |work| work.checkpoint(at(0), ALL, 2, HOLD))
                .map(drop),
            NewUse::Retain => {
                let retained = self.below.shard.owners().retain(at(0), ALL)?;
                self.copies.push(retained);
                Ok(())
            }
        }
    }

    /// Ends every use: the move is cancelled, and all I/O is carried out.
    fn end(&mut self, stage: Stage) {
        let (now, removed) = (self.below.now, || "the move was cancelled".to_owned());
        self.word(MoveWord::NotCommitted(Status::Removed, removed()));
        self.word(MoveWord::Refused(Status::Removed, removed()));
        let key = PeerKey::Move(MoveKey { source: at(0), id: MOVE });
        self.below.shard.peer_event(now, key, PeerEvent::Lost);
        for flush in [1, 2] {
            self.below.shard.on_exports(now, |work| work.thaw(at(0), flush));
            if let Ok((copy, _)) =
                self.below.shard.on_exports(now, |work| work.checkpoint_content(at(0), flush))
            {
                self.copies.push(copy);
            }
        }
        self.below.shard.on_imports(now, |work| work.end(at(0), MOVE, false)).unwrap_or_default();
        self.posts();
        self.below.settle();
        let owes = matches!(stage, Stage::CheckpointFrozen | Stage::CheckpointOwing);
        let copies = std::mem::take(&mut self.copies);
        for copy in &copies {
            assert_eq!(self.below.written(copy), self.before, "{stage:?}");
        }
        assert!(!owes || !copies.is_empty(), "{stage:?}: the checkpoint was written");
        drop(copies);
        (1..4).for_each(|flush| self.below.shard.on_exports(now, |work| work.end_copies(0, flush)));
        self.below.settle();
    }
}

/// Brings a block to a stage, attempts an export, ends everything, and compares the content. Returns the
/// overlaps that occurred.
fn attempt(kind: Kind, stage: Stage, new: NewUse) -> BTreeSet<(PresentUse, NewUse)> {
    let mut world = World::new(kind, stage);
    world.reach(stage);
    let begun = world.begin(new, stage);
    let refusal = stage.present().and_then(|present| present.refuses(new));
    assert_eq!(begun.is_err(), refusal.is_some(), "{kind:?}, {stage:?}, {new:?}: {begun:?}");
    if let (Err(answer), Some(refusal), Kind::File, NewUse::Tier | NewUse::Checkpoint) =
        (&begun, refusal, kind, new)
    {
        assert_eq!(String::from_utf8_lossy(&answer.args), refusal, "{stage:?}, {new:?}");
    }
    let seen: BTreeSet<_> = world.below.shard.reports().overlaps().collect();
    world.end(stage);
    if new == NewUse::Retain {
        assert!(world.below.shard.owners().free(at(0)));
    } else {
        assert_eq!(world.below.copied(0), world.before, "{kind:?}, {stage:?}, {new:?}");
        assert!(world.below.shard.owners().free(at(0)));
    }
    let quiet = (0..100).any(|_| {
        world.pass();
        world.below.settle();
        world.below.shard.reports().tiers_are_quiet()
    });
    assert!(quiet, "{kind:?}, {stage:?}, {new:?}: no place of a disk is left behind");
    assert_eq!(world.below.shard.reports().in_memory(), (0, 0), "{kind:?}, {stage:?}, {new:?}");
    seen
}

#[test]
fn exports_overlap_as_the_table_says_and_lose_nothing() {
    attempt_all();
}

#[cfg(feature = "bug-bank")]
#[test]
#[should_panic(expected = "Imports, Checkpoint")]
fn checkpoint_of_a_block_that_imports_is_caught() {
    Bug::arm(Some(Bug::CheckpointOfImport));
    attempt_all();
}

#[cfg(feature = "bug-bank")]
#[test]
#[should_panic(expected = "PeerRequested, Tier")]
fn demotion_of_a_block_that_moves_is_caught() {
    Bug::arm(Some(Bug::DemotedWhileMoving));
    attempt_all();
}

fn attempt_all() {
    let mut seen = BTreeSet::new();
    for kind in [Kind::File, Kind::Queue, Kind::Kv] {
        for stage in Stage::ALL.into_iter().filter(|stage| stage.applies_to(kind)) {
            // A file or queue moves to an empty block.
            let may_import = |new: &NewUse| *new != NewUse::Import || kind == Kind::Kv;
            for new in NewUse::ALL.into_iter().filter(may_import) {
                seen.extend(attempt(kind, stage, new));
            }
        }
    }
    let pairs = PresentUse::ALL.into_iter().flat_map(|p| NewUse::ALL.map(|new| (p, new)));
    // A block whose use refuses a move requests none, a store has no journal, and an import that is announced
    // again is the same one.
    let requested = pairs.filter(|(present, new)| match new {
        NewUse::Peer => present.refuses(*new).is_none(),
        NewUse::Import => !matches!(present, PresentUse::Journal | PresentUse::Import),
        _ => true,
    });
    assert_eq!(seen, requested.collect(), "every pair is begun or refused");
}

/// A sealed block that waited for a place of the write cache was demoted to a store before it got one: its
/// bytes were read back beside that export, and the place was lost.
#[test]
fn block_that_goes_to_a_store_is_not_read_back_meanwhile() {
    let mut world = World::new(Kind::File, Stage::TierCopies);
    let other = BlockOwner { end: END, tier: DISK, ..owner(at(1), Kind::File, true) };
    world.below.shard.open(other, None).unwrap();
    world.below.lower(0);
    // The other block has the only place of the write cache.
    let (answer, _) = world.below.run(1, Op::FileAppend, &[], &[1; 5000]);
    assert_eq!(answer.status, Status::Ok);
    world.below.shard.on_exports(world.below.now, |work| work.evacuate(at(0))).unwrap();
    world.pass();
    world.below.shard.tiers().change_tier(at(0), STORE).unwrap();
    // Its place is free when it is sealed and written.
    let (answer, _) = world.below.run(1, Op::FileSeal, &[], &[]);
    assert_eq!(answer.status, Status::Ok);
    for _ in 0..200 {
        world.below.now = world.below.now + Duration::from_millis(5);
        world.below.step();
    }
    world.below.settle();
    assert_eq!(world.below.copied(0), world.before);
    (0..2).for_each(|block| assert!(world.below.shard.owners().free(at(block))));
    world.below.settle();
    assert_eq!(
        world.below.shard.reports().in_memory(),
        (0, 0),
        "no place of the write cache is lost"
    );
}
