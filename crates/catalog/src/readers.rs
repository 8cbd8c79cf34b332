//! Declared readers: a prefix may name the prefixes that will read it, and is freed when all of them are
//! done.
//!
//! A reader is done when the attempt of its task has committed ([`Command::CommitTask`]), not when it closes:
//! an attempt that dies after reading is retried, and reads again. A reader that had committed before it was
//! declared is done at once. When the last reader is done, the prefix ends as if it were removed, whatever
//! its lease and whether or not it is pinned.
//!
//! A reader is a prefix, not a name. A reader that expires or is removed before it commits can never commit:
//! the prefixes that named it then depend on their leases alone. If its name is created again, the new prefix
//! is not a declared reader; a prefix that should wait for it declares its readers again. Only a reader that
//! was itself freed by its own readers can still commit, because those may be faster than the reader.
//!
//! Nothing is stored for a prefix that neither declares readers nor is declared, except whether it has
//! committed.
//!
//! [`Command::CommitTask`]: crate::Command::CommitTask

use crate::dag::Life;
use crate::durable::ReaderChange;
use crate::invariants::{Broken, require};
use crate::tombstones::Cause;
use crate::{Actor, Catalog, CatalogError, Effect, Reply};
use hashbrown::HashMap;
use honeycomb_types::limits::{READERS_MAX, READS_MAX};
use honeycomb_types::{Bug, JobId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of one pair: eight in each of two trees, whose nodes are at least 5/11 full, and their inner nodes.
const PAIR_BYTES: usize = 2 * 24;

/// Counters of a prefix that declares or is declared. Kept while any of them is not 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ReaderCounts {
    /// Declared readers that may still commit.
    waiting: u32,
    /// Declared readers that ended without having committed.
    lost: u32,
    /// Number of prefixes that wait for its own commit.
    reads: u32,
}

/// The pairs of waiting prefix and reader. All numbers are indices in the DAG.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readers {
    /// Prefix and reader, in the high and the low half.
    by_prefix: BTreeSet<u64>,
    /// Reader and prefix.
    by_reader: BTreeSet<u64>,
    counts: HashMap<u32, ReaderCounts>,
    /// The changes, for a log; `None` when there is no log.
    pub(crate) changes: Option<Vec<ReaderChange>>,
}

fn pair(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

fn low_halves(pairs: &BTreeSet<u64>, high: u32) -> Vec<u32> {
    pairs.range(pair(high, 0)..=pair(high, u32::MAX)).map(|&both| both as u32).collect()
}

/// Refuses more readers of one prefix than its limit.
pub(crate) fn need_readers(count: usize) -> Result<(), CatalogError> {
    let (what, limit) = ("declared readers of one prefix", READERS_MAX as u64);
    if count > READERS_MAX { Err(CatalogError::LimitExceeded { what, limit }) } else { Ok(()) }
}

/// Refuses a reader that would be named by more prefixes than the limit.
pub(crate) fn need_reads(count: usize) -> Result<(), CatalogError> {
    let (what, limit) = ("prefixes that name one reader", READS_MAX as u64);
    if count > READS_MAX { Err(CatalogError::LimitExceeded { what, limit }) } else { Ok(()) }
}

impl Readers {
    fn count(&mut self, n: u32, change: impl FnOnce(&mut ReaderCounts)) -> ReaderCounts {
        let counts = self.counts.entry(n).or_default();
        change(counts);
        let now = *counts;
        if now == ReaderCounts::default() {
            self.counts.remove(&n);
        }
        now
    }

    fn get(&self, n: u32) -> ReaderCounts {
        self.counts.get(&n).copied().unwrap_or_default()
    }

    /// Number of declared readers of a prefix that have not committed, including those that never will.
    pub(crate) fn left(&self, prefix: u32) -> u32 {
        let ReaderCounts { waiting, lost, .. } = self.get(prefix);
        waiting + lost
    }

    /// Number of prefixes that wait for this one's commit.
    pub(crate) fn reads(&self, reader: u32) -> usize {
        self.get(reader).reads as usize
    }

    fn waits(&self, prefix: u32, reader: u32) -> bool {
        self.by_prefix.contains(&pair(prefix, reader))
    }

    fn changed(&mut self, change: impl FnOnce() -> ReaderChange) {
        if let Some(changes) = &mut self.changes {
            changes.push(change());
        }
    }

    /// Every waiting prefix, its readers, and the number of lost ones.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, Vec<u32>, u32)> {
        let mut waiting: Vec<u32> =
            self.counts.keys().copied().filter(|&n| self.left(n) > 0).collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|n| (n, low_halves(&self.by_prefix, n), self.get(n).lost))
    }

    /// Sets how many readers of a prefix ended without having committed.
    pub(crate) fn set_lost(&mut self, prefix: u32, lost: u32) {
        self.count(prefix, |counts| counts.lost = lost);
    }

    /// Adds readers that can still commit.
    pub(crate) fn declare(&mut self, prefix: u32, readers: &[u32]) {
        if !readers.is_empty() {
            self.changed(|| ReaderChange::Declared(prefix, readers.to_vec()));
        }
        for &reader in readers {
            if self.by_prefix.insert(pair(prefix, reader)) {
                self.by_reader.insert(pair(reader, prefix));
                self.count(prefix, |counts| counts.waiting += 1);
                self.count(reader, |counts| counts.reads += 1);
            }
        }
    }

    fn drop_pair(&mut self, prefix: u32, reader: u32) {
        let there = self.by_prefix.remove(&pair(prefix, reader));
        assert!(there && self.by_reader.remove(&pair(reader, prefix)), "a pair is in both sets");
        let counted = (self.get(prefix).waiting, self.get(reader).reads);
        let covers = counted.0 > 0 && counted.1 > 0;
        assert!(covers, "INV-37: {prefix} waits for {reader}, and {counted:?} are counted");
        self.count(prefix, |counts| counts.waiting -= 1);
        self.count(reader, |counts| counts.reads -= 1);
    }

    /// Removes the declaration of a prefix.
    pub(crate) fn withdraw(&mut self, prefix: u32) {
        if self.left(prefix) == 0 {
            return;
        }
        self.changed(|| ReaderChange::Withdrawn(prefix));
        for reader in low_halves(&self.by_prefix, prefix) {
            self.drop_pair(prefix, reader);
        }
        self.count(prefix, |counts| counts.lost = 0);
    }

    /// A reader will never commit: prefixes that wait for it live until their leases expire.
    pub(crate) fn lose(&mut self, reader: u32) {
        if self.reads(reader) == 0 {
            return;
        }
        self.changed(|| ReaderChange::Lost(reader));
        for prefix in low_halves(&self.by_reader, reader) {
            self.drop_pair(prefix, reader);
            self.count(prefix, |counts| counts.lost += 1);
        }
    }

    /// A reader has committed: returns the prefixes for which it was the last.
    pub(crate) fn commit(&mut self, reader: u32) -> Vec<u32> {
        if self.reads(reader) == 0 {
            return Vec::new();
        }
        self.changed(|| ReaderChange::Committed(reader));
        let mut done = low_halves(&self.by_reader, reader);
        done.iter().for_each(|&prefix| self.drop_pair(prefix, reader));
        done.retain(|&prefix| self.left(prefix) == 0 || Bug::ReaderFreesEarly.active());
        done
    }

    pub(crate) fn bytes(&self) -> usize {
        self.by_prefix.len() * PAIR_BYTES + self.counts.allocation_size()
    }
}

impl Catalog {
    pub(crate) fn declare_readers(
        &mut self,
        actor: Actor,
        job: JobId,
        path: &str,
        readers: &[&str],
        replace: bool,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let what = "declare readers";
        let j = self.admit(actor, job)?;
        self.need_write(actor, what, path)?;
        let n = self.live_prefix(j, path)?;
        self.need_own(actor, n, what, path)?;
        if readers.is_empty() && !replace {
            return Err(CatalogError::InvalidArgument {
                what: "the number of readers to add",
                given: 0,
                allowed: "name one or more readers, or replace the declared ones by none",
            });
        }
        let fresh = self.fresh_readers(j, n, path, readers, replace)?;
        if replace {
            self.readers.withdraw(n);
        }
        self.readers.declare(n, &fresh);
        let left = self.readers.left(n);
        if let (0, Some(&last)) = (left, readers.last()) {
            self.end_prefix(n, Cause::Read { reader: last.into() }, self.now, effects);
        }
        Ok(Reply::Readers { left })
    }

    /// The readers of a declaration that have not committed, each once, within the limits.
    fn fresh_readers(
        &self,
        j: u32,
        n: u32,
        path: &str,
        readers: &[&str],
        replace: bool,
    ) -> Result<Vec<u32>, CatalogError> {
        need_readers(readers.len())?;
        let mut fresh = BTreeSet::new();
        for reader in readers {
            fresh.extend(self.find_reader(j, path, reader)?);
        }
        let known = |&&reader: &&u32| self.readers.waits(n, reader);
        let kept = if replace { 0 } else { self.readers.left(n) as usize };
        let again = if replace { 0 } else { fresh.iter().filter(known).count() };
        need_readers(kept + fresh.len() - again)?;
        for reader in fresh.iter().filter(|reader| !known(reader)) {
            need_reads(self.readers.reads(*reader) + 1)?;
        }
        Ok(fresh.into_iter().collect())
    }

    /// A declared reader: a live prefix, `None` if it has committed, or an error if it is neither live nor
    /// committed.
    pub(crate) fn find_reader(
        &self,
        j: u32,
        path: &str,
        reader: &str,
    ) -> Result<Option<u32>, CatalogError> {
        let found = self.resolve(j, reader);
        if let Ok(n) = found
            && self.dag.nodes[n].committed
        {
            return Ok(None);
        }
        self.live_prefix(j, reader).map(Some).map_err(|error| match error {
            CatalogError::PrefixNotFound { at, .. } => {
                CatalogError::UnknownReader { path: path.into(), reader: reader.into(), at }
            }
            other => other,
        })
    }

    pub(crate) fn commit_task(
        &mut self,
        actor: Actor,
        job: JobId,
        path: &str,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let what = "commit the task";
        let j = self.admit(actor, job)?;
        self.need_write(actor, what, path)?;
        let n = match self.resolve(j, path) {
            Ok(n) => n,
            Err(_) => self.live_prefix(j, path)?,
        };
        let node = &self.dag.nodes[n];
        let (id, life, committed) = (node.id, node.life, node.committed);
        if actor.job.is_some() && actor.task.is_some_and(|own| own != id) {
            let why = "a task commits only its own attempt; use that task's token or the job's";
            return Err(CatalogError::PermissionDenied { what, path: path.into(), why });
        }
        if committed {
            return Ok(Reply::Committed { freed: 0 });
        }
        // Readers that need no more of a task's data may be done before the task itself.
        if !matches!(life, Life::Live | Life::Read) {
            return Err(self.why_dead(n, path));
        }
        self.dag.nodes[n].committed = true;
        self.dag.dirty.mark(n);
        let done = self.readers.commit(n);
        let reader: Arc<str> = self.dag.path_of(n).into();
        for &prefix in &done {
            let cause = Cause::Read { reader: reader.clone() };
            self.end_prefix(prefix, cause, self.now, effects);
        }
        Ok(Reply::Committed { freed: done.len() as u32 })
    }

    /// Checks that pairs are in both sets and counted, and that both ends of each are still valid.
    pub(crate) fn check_readers(&self) -> Result<(), Broken> {
        let readers = &self.readers;
        let mut counted: HashMap<u32, ReaderCounts> = HashMap::new();
        for &both in &readers.by_prefix {
            let (prefix, reader) = ((both >> 32) as u32, both as u32);
            let what = || format!("prefix at {prefix} waits for the commit of {reader}");
            require(readers.by_reader.contains(&pair(reader, prefix)), 0, what)?;
            let (Some(p), Some(r)) = (self.dag.nodes.get(prefix), self.dag.nodes.get(reader))
            else {
                return Err(Broken { invariant: 0, what: what() });
            };
            let may_commit = matches!(r.life, Life::Live | Life::Read) && !r.committed;
            require(p.live() && may_commit && p.job == r.job, 0, what)?;
            counted.entry(prefix).or_default().waiting += 1;
            counted.entry(reader).or_default().reads += 1;
        }
        let same = readers.by_prefix.len() == readers.by_reader.len();
        require(same, 0, || "a listed reader has no prefix that waits for it".into())?;
        for (&n, counts) in &readers.counts {
            let kept = ReaderCounts { lost: 0, ..*counts };
            let what = || format!("readers at {n}: {counts:?}");
            require(counted.remove(&n).unwrap_or_default() == kept, 0, what)?;
            let live = self.dag.nodes.get(n).is_some_and(|node| node.live());
            require((live || counts.lost == 0) && *counts != ReaderCounts::default(), 0, what)?;
            let within =
                kept.reads as usize <= READS_MAX && readers.left(n) as usize <= READERS_MAX;
            require(within, 33, what)?;
        }
        require(counted.is_empty(), 0, || format!("not counted: {counted:?}"))
    }
}
