//! Demotion from disks that are short to a store: which blocks, whose, and never one that may be written to.

use crate::common::{Bench, file, incarnation};
use honeycomb_catalog::{
    Actor, CatalogError, Command, Effect, HeldBlock, NewServer, QuotaChange, QuotaOf, Reply, Seal,
    TierUse,
};
use honeycomb_types::limits::SINKING_MAX;
use honeycomb_types::{
    BlockAt, Generation, JobId, PolicyKind, ServerId, StructureId, TierClass, TierIx, TierSpec,
};
use std::collections::BTreeMap;

const FRAMES: u32 = 12;
const DISK: (TierClass, u32) = (TierClass::Ssd, 8);
const STORE: (TierClass, u32) = (TierClass::Object, 40);
const ON_DISK: TierIx = TierIx(1);
const IN_STORE: TierIx = TierIx(2);

/// A server with a disk and a store, which carries out effects.
struct World {
    bench: Bench,
    server: ServerId,
    job: JobId,
    files: BTreeMap<BlockAt, (StructureId, String)>,
    sealed: Vec<BlockAt>,
    /// The demotions of every block: target and source tier.
    lowered: Vec<(BlockAt, TierIx, TierIx)>,
    /// Demotions to the store are never reported as complete.
    stuck: bool,
}

impl World {
    fn new(policy: PolicyKind) -> World {
        let mut bench = Bench::with_policy(1, policy);
        let server = bench.join_with_tiers("s1:1", FRAMES, &[DISK, STORE]);
        let job = bench.job_leased("job", 3_600_000);
        let (files, sealed, lowered) = Default::default();
        World { bench, server, job, files, sealed, lowered, stuck: false }
    }

    fn make(&mut self, job: JobId, name: &str, sealed: bool) -> Result<BlockAt, CatalogError> {
        let made = self.bench.make(job, file("", name, 1));
        self.carry_out();
        let made = made?;
        let (structure, at) = (made.structure, made.map.entries[0].at);
        self.files.insert(at, (structure, name.to_owned()));
        assert_ne!(self.tier(at), IN_STORE, "no block is opened in a store");
        self.bench.run(Command::BlockOpened { server: self.server, at }).unwrap();
        self.carry_out();
        if sealed {
            self.seal(at);
        }
        Ok(at)
    }

    /// Retries as a client does while room is coming.
    fn make_patiently(&mut self, job: JobId, name: &str) -> BlockAt {
        (0..3).find_map(|_| self.make(job, name, true).ok()).expect("there is room in the store")
    }

    fn seal(&mut self, at: BlockAt) {
        let (structure, _) = self.files[&at];
        let seal = Seal { length: 1000, bytes: 1000, last: true };
        self.bench.seal(structure, at, seal).unwrap();
        self.sealed.push(at);
        self.carry_out();
    }

    fn tier(&self, at: BlockAt) -> TierIx {
        self.bench.catalog.tiers_of(at).unwrap().0
    }

    /// Completes the demotions.
    fn carry_out(&mut self) {
        let mut effects = std::mem::take(&mut self.bench.effects);
        while !effects.is_empty() {
            let mut next = Vec::new();
            for effect in effects {
                let Effect::LowerBlock { at, tier, .. } = effect else { continue };
                self.lowered.push((at, self.tier(at), tier));
                if tier == IN_STORE {
                    assert!(self.sealed.contains(&at), "{at:?} may be written to");
                    if self.stuck {
                        continue;
                    }
                }
                self.arrives(at, tier);
                next.append(&mut self.bench.effects);
            }
            effects = next;
        }
    }

    fn arrives(&mut self, at: BlockAt, tier: TierIx) {
        let (structure, _) = self.files[&at];
        self.bench.run(Command::TierChanged { structure, at, tier }).unwrap();
    }

    fn remove(&mut self, job: JobId, at: BlockAt) {
        let (_, name) = self.files.remove(&at).unwrap();
        let actor = Actor::driver(job);
        self.bench.run(Command::RemoveStructure { actor, job, path: "", name: &name }).unwrap();
        let freed = self.bench.freed();
        self.bench.confirm(&freed);
        self.carry_out();
    }

    fn used(&mut self) -> [u64; 2] {
        let tiers = self.bench.status().tiers;
        let used = |n: usize| tiers.get(n).map_or(0, |tier: &TierUse| tier.used);
        [used(0), used(1)]
    }

    fn ends(mut self, job: JobId) {
        for at in self.files.keys().copied().collect::<Vec<_>>() {
            self.remove(job, at);
        }
        assert_eq!((self.used(), self.bench.status().free), ([0, 0], FRAMES.into()));
    }
}

#[test]
fn what_leaves_memory_finds_a_disk_and_the_disk_gives_to_the_store() {
    for policy in [PolicyKind::FirstCome, PolicyKind::MaxMin, PolicyKind::Karma] {
        let mut world = World::new(policy);
        let job = world.job;
        // As many as there is room for, except for the reserve and the room kept free.
        for n in 0..50 {
            world.make_patiently(job, &format!("f{n}"));
            let [disk, _] = world.used();
            assert!(disk <= DISK.1.into());
        }
        let ways: Vec<_> = world.lowered.iter().map(|(_, from, to)| (*from, *to)).collect();
        let count = |way| ways.iter().filter(|w| **w == way).count();
        assert!(count((ON_DISK, IN_STORE)) >= 25, "{policy:?}: {ways:?}");
        // Under a fair policy, blocks of a holder above its share begin on the disk.
        let fair = policy != PolicyKind::FirstCome;
        assert!(fair || count((TierIx::MEMORY, ON_DISK)) >= 25, "{ways:?}");
        let [disk, store] = world.used();
        assert!(disk >= 4 && store >= 30, "{policy:?}: {disk} on the disk, {store} in the store");
        world.ends(job);
    }
}

#[test]
fn nothing_that_may_be_written_to_goes_to_a_store() {
    let mut world = World::new(PolicyKind::FirstCome);
    let job = world.job;
    let refused = (0..50).find_map(|n| world.make(job, &format!("f{n}"), false).err()).unwrap();
    let CatalogError::OutOfMemory(full) = refused else { panic!("{refused:?}") };
    let tiers: Vec<_> = full.tiers.iter().map(|tier| (tier.name, tier.free)).collect();
    assert_eq!(tiers[1..], [("ssd", 0), ("object", STORE.1.into())]);
    assert_eq!(world.used(), [DISK.1.into(), 0]);
    // Two of them, one on the disk and one in memory, accept no more writes from now on: there is room for
    // others.
    let on = |world: &World, tier| {
        world.files.keys().copied().find(|at| world.tier(*at) == tier).unwrap()
    };
    let (below, above) = (on(&world, ON_DISK), on(&world, TierIx::MEMORY));
    world.seal(below);
    world.seal(above);
    world.make_patiently(job, "more");
    assert_eq!(world.tier(below), IN_STORE);
    world.make_patiently(job, "again");
    assert_ne!(world.tier(above), TierIx::MEMORY);
    world.ends(job);
}

/// The caller pays first; when it has no block on the disk, any holder's is demoted there. Memory follows
/// other rules.
#[test]
fn who_asks_pays_first_and_nobody_is_refused_while_there_is_room_in_the_store() {
    let mut world = World::new(PolicyKind::FirstCome);
    let first = world.job;
    let fills: Vec<BlockAt> =
        (0..18).map(|n| world.make_patiently(first, &format!("f{n}"))).collect();
    let in_memory: Vec<BlockAt> =
        fills.iter().copied().filter(|at| world.tier(*at) == TierIx::MEMORY).collect();
    let second = world.bench.job_leased("second", 3_600_000);
    world.lowered.clear();
    let own: Vec<BlockAt> =
        (0..12).map(|n| world.make_patiently(second, &format!("s{n}"))).collect();
    assert!(in_memory.iter().all(|at| world.tier(*at) == TierIx::MEMORY), "INV-43");
    // The first's blocks were demoted from the disk, and then its own.
    let sunk = |at: &BlockAt| world.tier(*at) == IN_STORE;
    assert!(fills.iter().any(sunk) && own.iter().any(sunk), "{:?}", world.lowered);
    let last = world.lowered.iter().rev().find(|(_, from, _)| *from == ON_DISK).unwrap();
    assert!(own.contains(&last.0), "who asks has blocks on the disk, and pays");
    for at in own {
        world.remove(second, at);
    }
    world.ends(first);
}

/// A store that is slow, or does not answer, delays no caller that finds a disk.
#[test]
fn a_store_that_does_not_answer_is_given_no_more_than_some() {
    let mut world = World::new(PolicyKind::FirstCome);
    let job = world.job;
    world.stuck = true;
    let made: Vec<Result<BlockAt, CatalogError>> =
        (0..40).map(|n| world.make(job, &format!("f{n}"), true)).collect();
    let going = |world: &World| -> Vec<BlockAt> {
        let all = world.files.keys().copied();
        all.filter(|at| {
            let (tier, to) = world.bench.catalog.tiers_of(*at).unwrap();
            tier != to
        })
        .collect()
    };
    assert!(made.iter().any(|made| made.is_err()), "memory and the disk are full");
    let on_their_way = going(&world);
    assert!((1..=SINKING_MAX).contains(&(on_their_way.len() as u32)), "{on_their_way:?}");
    assert!(world.bench.catalog.awaits_room(), "a caller waits for them");
    // Refused or failed: each stays in its tier, and is not demoted again at once.
    for (n, at) in on_their_way.iter().copied().enumerate() {
        let was = world.tier(at);
        match n % 2 {
            0 => drop(world.bench.run(Command::LowerRefused { server: world.server, at }).unwrap()),
            _ => world.arrives(at, was),
        }
        assert_eq!(world.tier(at), was);
    }
    assert!(!world.bench.catalog.awaits_room() && world.bench.catalog.take_room_came());
    world.lowered.clear();
    let _ = world.make(job, "more", true);
    assert!(world.lowered.iter().all(|(at, ..)| !on_their_way.contains(at)));
    // A later one has arrived.
    for at in going(&world) {
        world.arrives(at, IN_STORE);
    }
    world.stuck = false;
    world.bench.pass(600);
    world.bench.pass(600);
    for n in 0..10 {
        world.make_patiently(job, &format!("g{n}"));
    }
    world.ends(job);
}

#[test]
fn a_controller_that_was_restarted_hears_of_blocks_on_their_way_to_a_store() {
    for arrives in [true, false] {
        let mut world = World::new(PolicyKind::FirstCome);
        let job = world.job;
        world.stuck = true;
        for n in 0..20 {
            let _ = world.make(job, &format!("f{n}"), true);
        }
        let places: Vec<(BlockAt, (TierIx, TierIx))> = world
            .files
            .keys()
            .map(|at| (*at, world.bench.catalog.tiers_of(*at).unwrap()))
            .collect();
        let (one, _) = *places.iter().find(|(_, way)| *way == (ON_DISK, IN_STORE)).unwrap();
        let before = world.used();
        world.bench.restart();
        let tiers = [DISK, STORE].map(|(class, blocks)| TierSpec { class, blocks });
        let server = NewServer {
            address: "s1:1",
            incarnation: incarnation("s1:1"),
            shards: 1,
            blocks_per_shard: FRAMES,
            tiers: &tiers,
            block_size: 65_536,
            flush_root: "/flush",
            kinds: &[],
        };
        let member = world.server;
        let joined = world.bench.run(Command::RejoinServer { server, member });
        assert_eq!(joined, Ok(Reply::Joined(member)));
        let held: Vec<HeldBlock> = places
            .iter()
            .map(|&(at, tiers)| HeldBlock {
                at,
                structure: world.files[&at].0,
                generation: Generation(1),
                bytes_used: 100,
                sealed: Some(Seal { length: 1000, bytes: 1000, last: true }),
                successor: None,
                taken: (0, 0),
                tiers,
                capacity: 65_536,
            })
            .collect();
        let command = Command::Inventory { server: member, held: &held, last: true };
        world.bench.run(command).unwrap();
        assert_eq!(world.used(), before, "both tiers count it (INV-42)");
        assert!(world.bench.catalog.awaits_room());
        let (tier, used) = match arrives {
            true => (IN_STORE, [before[0] - 1, before[1]]),
            false => (ON_DISK, [before[0], before[1] - 1]),
        };
        world.arrives(one, tier);
        assert_eq!((world.tier(one), world.used()), (tier, used));
        for (at, _) in places {
            world.remove(job, at);
        }
        world.ends(job);
    }
}

/// A structure counts to its prefix's quota while its first blocks are allocated. A controller ended here: it
/// looked for the record of the structure that was being created, which was to give a block itself.
#[test]
fn a_structure_is_created_while_its_prefix_is_above_a_soft_quota() {
    let mut world = World::new(PolicyKind::MaxMin);
    let (job, other) = (world.job, world.bench.job_leased("other", 3_600_000));
    for n in 0..2 {
        world.make(job, &format!("f{n}"), true).unwrap();
    }
    // The other job takes the rest of memory.
    for n in 0..FRAMES {
        drop(world.make(other, &format!("o{n}"), true));
    }
    let change = QuotaChange { soft_blocks: Some(1), ..QuotaChange::default() };
    let heavy = QuotaChange { weight: Some(10), ..QuotaChange::default() };
    for (of, change) in [(QuotaOf::Prefix(job, ""), change), (QuotaOf::Job(job), heavy)] {
        world.bench.run(Command::SetQuota { actor: Actor::CLUSTER, of, change }).unwrap();
    }
    world.lowered.clear();
    // Within its share, and more than is free: a block of its prefix is demoted for it.
    let wide = world.bench.make(job, file("", "wide", 4));
    assert!(matches!(wide, Err(CatalogError::OutOfMemory(_))), "{wide:?}");
    world.carry_out();
    let given = world.lowered.iter().map(|(at, ..)| world.files[at].1.clone());
    assert!(given.clone().any(|name| name.starts_with('f')), "{:?}", given.collect::<Vec<_>>());
    world.bench.catalog.check_invariants().unwrap();
    world.bench.make(job, file("", "wide", 4)).unwrap();
}
