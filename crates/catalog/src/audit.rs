//! The background check of the catalog, which runs in release builds: a bounded part of `check_invariants` at
//! a time.
//!
//! A violation that this check finds is a defect of the controller. The process continues, because an assert
//! would end all jobs for a defect in one structure. The finding is counted and returned to be logged, and
//! the structure is quarantined: requests for it are refused with [`CatalogError::Quarantined`], which names
//! the finding. Memory servers receive the quarantine as a change of permissions: the generation of the
//! prefix rises, so that every client asks the controller for another grant (INV-29). The structure can still
//! be removed, and ends with its prefix.
//!
//! A quarantine is soft state: after a restart the check finds the violation again, if it is in the log.

use crate::invariants::{Broken, require};
use crate::pool::SlotOwner;
use crate::slab::chain;
use crate::structures::StructureRecord;
use crate::{Catalog, CatalogError, Effect};
use hashbrown::HashMap;
use honeycomb_types::limits::SLOT_WIDTH;
use honeycomb_types::{BlockAt, Router, ServerId, StructureId, Time};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The shortest time between two steps.
const STEP_EVERY: Duration = Duration::from_millis(10);
/// The shortest time between two reports of violations that concern no single structure. Nothing is
/// quarantined for them, so that each pass finds them again.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// Most entries of a map, or blocks of a core, that one step examines.
const STEP_BLOCKS: usize = 128;
/// Most prefixes, and most structures, of a job whose counts one step compares. Larger jobs are not counted.
const STEP_JOB: usize = 512;
/// Most vacant records that one step passes over.
const STEP_VACANT: u32 = 1024;

/// A violation that the background check has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditFinding {
    /// The violation.
    pub broken: Broken,
    /// The structure that was quarantined for it; `None` if the violation concerns no single structure.
    pub structure: Option<StructureId>,
}

impl fmt::Display for AuditFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.structure {
            Some(id) => write!(f, "{}; structure {id} is quarantined", self.broken),
            None => self.broken.fmt(f),
        }
    }
}

/// The progress of the background check, and its results.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    due: Time,
    turn: u32,
    /// The index of the next structure, and the first entry of its map to examine.
    structure: (u32, usize),
    /// The index of the next job.
    job: u32,
    /// The next block: its server, core and index.
    block: (ServerId, usize, usize),
    /// Number of violations reported since the start.
    found: u64,
    /// The findings about quarantined structures.
    quarantined: HashMap<StructureId, Arc<str>>,
    /// Until then, a violation that concerns no single structure is not reported.
    quiet_until: Time,
}

/// A violation, and the index of the structure that it concerns.
type StructureViolation = (Option<u32>, Broken);

impl Audit {
    /// A structure ended.
    pub(crate) fn forget(&mut self, id: StructureId) {
        if !self.quarantined.is_empty() {
            self.quarantined.remove(&id);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.quarantined.allocation_size()
    }
}

impl Catalog {
    /// Makes one step of the background check, if one is due: examines one structure, or a part of a large
    /// one, one job, or some blocks of one core. Returns the violation, if it finds one.
    pub fn audit(&mut self, now: Time, effects: &mut Vec<Effect>) -> Option<AuditFinding> {
        self.now = self.now.max(now);
        // The owners of some blocks are unknown until every server has reported.
        if self.now < self.audit.due || self.recovering() {
            return None;
        }
        self.audit.due = self.now + STEP_EVERY;
        self.audit.turn = self.audit.turn.wrapping_add(1);
        let checked = match self.audit.turn % 4 {
            0 => self.audit_job(),
            1 => self.audit_core(),
            _ => self.audit_structure(),
        };
        let (s, broken) = checked.err()?;
        if s.is_none() {
            if self.now < self.audit.quiet_until {
                return None;
            }
            self.audit.quiet_until = self.now + REPORT_EVERY;
        }
        self.audit.found += 1;
        let structure = s.map(|s| self.quarantine(s, &broken, effects));
        Some(AuditFinding { broken, structure })
    }

    /// Number of violations that the background check has reported.
    pub fn findings(&self) -> u64 {
        self.audit.found
    }

    fn audit_structure(&mut self) -> Result<(), StructureViolation> {
        let (from, entry) = self.audit.structure;
        let Some(s) = self.structures.next_from(from, STEP_VACANT) else {
            self.audit.structure = (self.structures.wraps(from, STEP_VACANT), 0);
            return Ok(());
        };
        let structure = &self.structures[s];
        let entry = if s == from { entry.min(structure.entries.len()) } else { 0 };
        let is_small = structure.entries.len() + structure.extents.len() <= STEP_BLOCKS;
        let last = is_small || entry + STEP_BLOCKS >= structure.entries.len();
        self.audit.structure = if last { (s + 1, 0) } else { (s, entry + STEP_BLOCKS) };
        if self.audit.quarantined.contains_key(&structure.id) {
            return Ok(());
        }
        let checked = match is_small {
            true => self.check_map(s, structure),
            false => self.check_entries(s, structure, entry),
        };
        checked.map_err(|broken| (Some(s), broken))
    }

    /// INV-01 and INV-17 for some entries of a large map.
    fn check_entries(
        &self,
        s: u32,
        structure: &StructureRecord,
        from: usize,
    ) -> Result<(), Broken> {
        let end = (from + STEP_BLOCKS).min(structure.entries.len());
        for i in from..end {
            let entry = structure.entries[i];
            let before = i.checked_sub(1).map(|before| structure.entries[before].start);
            let what = || format!("structure {} has entry {i} {entry:?}", structure.id);
            require(before.is_none_or(|before| before < entry.start), 17, what)?;
            let in_slots =
                structure.router != Router::HashRange || entry.start.is_multiple_of(SLOT_WIDTH);
            require(in_slots, 17, what)?;
            require(self.pool.owner(entry.block) == Some(SlotOwner::By(s)), 1, what)?;
        }
        Ok(())
    }

    /// INV-02: the counts of one job are those of its prefixes and structures.
    fn audit_job(&mut self) -> Result<(), StructureViolation> {
        let j = self.audit.job;
        self.audit.job = if j as usize + 1 >= self.jobs.bound() { 0 } else { j + 1 };
        let Some(job) = self.jobs.get(j) else { return Ok(()) };
        if job.nodes > STEP_JOB || job.structures > STEP_JOB as u64 {
            return Ok(());
        }
        let kept = (job.nodes, job.live_prefixes, job.pinned, job.structures);
        let mut counted = (0, 0, 0, 0);
        for n in chain(job.first_node, |n| self.dag.nodes[n].job_next).take(STEP_JOB + 1) {
            let node = &self.dag.nodes[n];
            counted.0 += 1;
            counted.1 += u64::from(node.live());
            counted.2 += u64::from(node.live() && node.pinned);
            counted.3 += u64::from(node.structures);
        }
        require(kept == counted, 2, || format!("job {}: {kept:?}, not {counted:?}", job.id))
            .map_err(|broken| (None, broken))
    }

    /// INV-02: some blocks of one core that have an owner have one that exists.
    fn audit_core(&mut self) -> Result<(), StructureViolation> {
        let (from, core, first) = self.audit.block;
        let found = self.pool.servers().find(|(id, _)| *id >= from);
        let Some((id, server)) = found else {
            self.audit.block = (ServerId(0), 0, 0);
            return Ok(());
        };
        let (core, first) = if id == from { (core, first) } else { (0, 0) };
        let blocks = server.owned_blocks(id, core, first, STEP_BLOCKS);
        let broken = blocks.into_iter().find(|(_, s)| self.structures.get(*s).is_none());
        self.audit.block = match server.cores().nth(core).map(|core| core.blocks() as usize) {
            Some(all) if first + STEP_BLOCKS < all => (id, core, first + STEP_BLOCKS),
            Some(_) => (id, core + 1, 0),
            None => (ServerId(id.0.saturating_add(1)), 0, 0),
        };
        let Some((BlockAt { block, epoch }, s)) = broken else { return Ok(()) };
        let what = format!("{block} of epoch {epoch} is owned by {s}, which does not exist");
        Err((None, Broken { invariant: 2, what }))
    }

    /// Refuses the operations of a structure from now on.
    fn quarantine(&mut self, s: u32, broken: &Broken, effects: &mut Vec<Effect>) -> StructureId {
        let StructureRecord { id, prefix, .. } = self.structures[s];
        self.audit.quarantined.insert(id, broken.to_string().into());
        self.revoke_grants(prefix, effects);
        id
    }

    pub(crate) fn is_quarantined(&self, s: u32) -> bool {
        !self.audit.quarantined.is_empty()
            && self.audit.quarantined.contains_key(&self.structures[s].id)
    }

    /// Refuses an operation of a quarantined structure.
    pub(crate) fn need_sound(&self, s: u32) -> Result<(), CatalogError> {
        if !self.is_quarantined(s) {
            return Ok(());
        }
        let structure = &self.structures[s];
        let finding = self.audit.quarantined[&structure.id].clone();
        let (path, name) = (self.dag.path_of(structure.prefix).into(), structure.name.clone());
        Err(CatalogError::Quarantined { path, name, finding })
    }

    /// Refuses a copy of a quarantined structure, unless its finding does not concern the map of its blocks.
    pub(crate) fn need_sound_map(&self, s: u32) -> Result<(), CatalogError> {
        match self.is_quarantined(s) && self.check_placement(s, &self.structures[s]).is_err() {
            true => self.need_sound(s),
            false => Ok(()),
        }
    }

    /// Refuses a copy of a prefix with such a structure.
    pub(crate) fn need_sound_maps(&self, n: u32) -> Result<(), CatalogError> {
        self.structures_of(n).try_for_each(|s| self.need_sound_map(s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structures::Placed;
    use crate::{
        Actor, Claim, Command, Config, FlushState, Hints, NewServer, NewStructure, PrefixOptions,
        Reply,
    };
    use honeycomb_types::{BlockId, JobId, Kind};

    /// A job `job` with the prefix `t`, whose end flushes it, and in it the structures `bad` of this kind and
    /// `good`.
    struct Flushing {
        catalog: Catalog,
        job: JobId,
        bad: u32,
        good: u32,
        now: Time,
        effects: Vec<Effect>,
    }

    impl Flushing {
        fn new(kind: Kind) -> Flushing {
            let (catalog, now) = (Catalog::new(Config::default()), Time::from_millis(1_000_000));
            let (job, effects) = (JobId(0), Vec::new());
            let mut made = Flushing { catalog, job, bad: 0, good: 0, now, effects };
            made.join("s1:1", 1);
            let (actor, name) = (Actor::CLUSTER, "job");
            let (hints, claim, quota_blocks) = (Hints::default(), Claim::default(), 0);
            let lease_ms = 3_600_000;
            let register =
                Command::RegisterJob { actor, name, lease_ms, quota_blocks, hints, claim };
            let Ok(Reply::Job { job, .. }) = made.run(register) else { panic!("no job") };
            made.job = job;
            let actor = Actor::driver(job);
            let options = PrefixOptions { lease_ms: 1000, flush_to: "t", ..Default::default() };
            let (path, parents) = ("t", &[][..]);
            made.run(Command::CreatePrefix { actor, job, path, parents, options }).unwrap();
            for name in ["bad", "good"] {
                let (blocks, max_items, max_bytes, open_existing) = (2, 0, 0, false);
                let structure =
                    NewStructure { path, name, kind, blocks, max_items, max_bytes, open_existing };
                let made_one = made.run(Command::CreateStructure { actor, job, structure });
                let Ok(Reply::Opened(opened)) = made_one else { panic!("{made_one:?}") };
                let s = made.catalog.structures.find(opened.structure).unwrap();
                *(if name == "bad" { &mut made.bad } else { &mut made.good }) = s;
            }
            made
        }

        fn join(&mut self, address: &str, incarnation: u64) {
            let server = NewServer {
                address,
                incarnation,
                shards: 1,
                blocks_per_shard: 20,
                tiers: &[],
                block_size: 65_536,
                flush_root: "/flush",
                kinds: &[],
            };
            self.run(Command::JoinServer { server }).unwrap();
        }

        fn run(&mut self, command: Command<'_>) -> Result<Reply, CatalogError> {
            self.catalog.apply(self.now, command, &mut self.effects)
        }

        /// Adds an entry to the damaged map.
        fn list(&mut self, block: BlockId) {
            let entries = &mut self.catalog.structures[self.bad].entries;
            let start = entries.last().unwrap().start + SLOT_WIDTH;
            entries.push(Placed { start, block });
        }

        /// Lets the background check find the damage.
        fn audit(&mut self) {
            let mut steps = (0..200).map(|_| {
                self.now = self.now + STEP_EVERY;
                self.catalog.audit(self.now, &mut Vec::new())
            });
            let found = steps.find_map(|found| found).expect("the damage is found");
            assert_eq!(found.structure, Some(self.catalog.structures[self.bad].id), "{found}");
        }

        fn flush(&mut self, barrier: bool) -> Result<Reply, CatalogError> {
            let (actor, job) = (Actor::driver(self.job), self.job);
            let (path, place, below) = ("t", "elsewhere", &[][..]);
            self.run(Command::FlushPrefix { actor, job, path, place, below, barrier })
        }
    }

    /// A map that lists a block twice, a map that lists a block of another structure, and a map whose first
    /// positions or hashes have no block.
    const DAMAGES: [fn(&mut Flushing); 3] = [
        |flushing| flushing.list(flushing.catalog.structures[flushing.bad].entries[0].block),
        |flushing| flushing.list(flushing.catalog.structures[flushing.good].entries[0].block),
        |flushing| flushing.catalog.structures[flushing.bad].entries[0].start += SLOT_WIDTH,
    ];

    #[test]
    fn end_of_a_prefix_flushes_all_but_a_structure_whose_map_is_damaged() {
        for (kind, damage) in
            [Kind::Kv, Kind::File].into_iter().flat_map(|k| DAMAGES.map(|d| (k, d)))
        {
            let mut flushing = Flushing::new(kind);
            damage(&mut flushing);
            flushing.audit();
            flushing.now = flushing.now + Duration::from_secs(2);
            let bad = flushing.catalog.structures[flushing.bad].id;
            let good: Vec<BlockId> = flushing.catalog.structures[flushing.good].blocks().collect();
            flushing.effects.clear();
            flushing.run(Command::Tick).unwrap();
            let flushed = flushing.effects.iter().filter_map(|effect| match effect {
                Effect::FlushBlock { at, .. } => Some(at.block),
                _ => None,
            });
            assert_eq!(flushed.collect::<Vec<_>>(), good);
            let (actor, job) = (Actor::driver(flushing.job), flushing.job);
            let error =
                flushing.run(Command::ReopenStructure { actor, job, structure: bad }).unwrap_err();
            let error = error.to_string();
            assert!(error.contains("a defect in the controller's metadata"), "{error}");
        }
    }

    #[test]
    fn live_flush_of_a_damaged_map_is_refused_and_one_under_way_ends_with_the_finding() {
        for (damage, barrier) in DAMAGES.into_iter().flat_map(|d| [(d, false), (d, true)]) {
            let mut flushing = Flushing::new(Kind::Kv);
            let Ok(Reply::Flushing { number, .. }) = flushing.flush(barrier) else {
                panic!("no flush")
            };
            damage(&mut flushing);
            flushing.audit();
            let error = flushing.flush(!barrier).unwrap_err();
            assert!(matches!(error, CatalogError::Quarantined { .. }), "{error}");
            flushing.run(Command::Tick).unwrap();
            let (actor, job) = (Actor::driver(flushing.job), flushing.job);
            let Ok(Reply::FlushInfo(progress)) =
                flushing.run(Command::FlushInfo { actor, job, number })
            else {
                panic!("the flush is known")
            };
            let FlushState::Lost(why) = progress.state else { panic!("{progress:?}") };
            assert!(why.contains("structure 'bad' of prefix 't' is quarantined"), "{why}");
        }
    }

    #[test]
    fn drain_names_the_blocks_of_a_quarantined_structure_and_asks_none_of_them_to_leave() {
        let mut flushing = Flushing::new(Kind::Kv);
        DAMAGES[2](&mut flushing);
        flushing.audit();
        let bad: Vec<BlockId> = flushing.catalog.structures[flushing.bad].blocks().collect();
        let server = bad[0].server();
        flushing.join("s2:1", 2);
        flushing.effects.clear();
        flushing
            .run(Command::DrainServer { actor: Actor::CLUSTER, address: "s1:1", cancel: false })
            .unwrap();
        flushing.run(Command::Tick).unwrap();
        let asked = flushing.effects.iter().filter_map(|effect| match effect {
            Effect::Evacuate { at, .. } => Some(at.block),
            _ => None,
        });
        let good: Vec<BlockId> = flushing.catalog.structures[flushing.good].blocks().collect();
        assert_eq!(asked.collect::<Vec<_>>(), good);
        let waits = flushing.catalog.drain_waits(server);
        assert!(waits.contains("2 blocks of quarantined structures until you remove"), "{waits}");
    }

    /// A finding that does not concern the map, such as a wrong total of a queue, costs no data.
    #[test]
    fn quarantined_structure_with_a_sound_map_is_flushed() {
        let mut flushing = Flushing::new(Kind::Kv);
        let broken = Broken { invariant: 22, what: "planted".into() };
        flushing.catalog.quarantine(flushing.bad, &broken, &mut Vec::new());
        flushing.flush(false).unwrap();
        let copied = |effect: &&Effect| matches!(effect, Effect::CopyBlock { .. });
        assert_eq!(flushing.effects.iter().filter(copied).count(), 4);
    }

    /// A wrong count of a job stays wrong and changes with the job: it is reported once a minute.
    #[test]
    fn violation_of_no_single_structure_is_reported_once_a_minute() {
        let mut catalog = Catalog::new(Config::default());
        let (mut now, mut effects) = (Time::from_millis(1_000_000), Vec::new());
        let (actor, name, hints, claim) =
            (Actor::CLUSTER, "job", Hints::default(), Claim::default());
        let (lease_ms, quota_blocks) = (0, 0);
        let register = Command::RegisterJob { actor, name, lease_ms, quota_blocks, hints, claim };
        assert!(catalog.apply(now, register, &mut effects).is_ok());
        let mut found = Vec::new();
        for step in 0..3 * 60_000 / 10 {
            catalog.jobs[0].pinned = 1 + step % 3;
            now = now + STEP_EVERY;
            found.extend(catalog.audit(now, &mut effects));
        }
        assert_eq!((found.len(), catalog.findings()), (3, 3));
        assert!(found.iter().all(|f| f.structure.is_none() && f.broken.invariant == 2));
        assert!(effects.is_empty(), "nothing is quarantined: {effects:?}");
    }
}
