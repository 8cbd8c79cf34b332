//! Prefixes: finding them by address, creating and removing them, and their permissions.
//!
//! A dead prefix keeps its name and its descendants. A prefix created under that name replaces it: it has a
//! new id and the parents named now, and keeps the children of the old one, so that their addresses stay
//! valid.

use crate::dag::{Life, Node};
use crate::journal::journaled;
use crate::quota::Allowance;
use crate::slab::chain;
use crate::tombstones::{Cause, Gone};
use crate::{Actor, Catalog, CatalogError, Effect, PrefixOptions, Reply};
use hashbrown::HashSet;
use honeycomb_types::limits::{EDGES_PER_JOB_MAX, PARENTS_MAX, PREFIXES_PER_JOB_MAX};
use honeycomb_types::{Generation, IdOf, JobId, Marks, PrefixId, Verbs, dotted_path, split_path};

const OWNER_VERBS_DEFAULT: Verbs = Verbs::ALL;
const JOB_VERBS_DEFAULT: Verbs = Verbs::READ;
/// Most paths suggested in an error for an unknown name.
const SUGGESTED_MAX: usize = 3;
/// Most prefixes searched for suggestions.
const SEARCHED_MAX: usize = 4096;

/// Checked options, with defaults applied.
#[derive(Clone, Debug)]
pub(crate) struct Checked<'a> {
    pub(crate) lease_ms: u32,
    pub(crate) pinned: bool,
    pub(crate) owner_verbs: Verbs,
    pub(crate) job_verbs: Verbs,
    pub(crate) marks: Marks,
    /// The place to which its data is flushed: as given, and the directory.
    pub(crate) flush: Option<(&'a str, Box<str>)>,
    /// Most blocks of the prefix with its descendants; 0 means unbounded.
    pub(crate) max_blocks: u64,
    /// Whether the prefix is being loaded.
    pub(crate) loading: bool,
    /// Whether the prefix outlives its job.
    pub(crate) persist: bool,
    /// Whether changes are acknowledged when they are in the prefix's journal.
    pub(crate) journaled: bool,
}

impl Checked<'_> {
    pub(crate) fn quota(&self) -> Allowance {
        Allowance { most: self.max_blocks, ..Allowance::default() }
    }
}

fn checked_verbs(what: &'static str, verbs: Verbs) -> Result<Verbs, CatalogError> {
    if Verbs::ALL.contains(verbs) {
        return Ok(verbs);
    }
    let (given, allowed) = (verbs.0 as u64, "use 1 for read, 2 for write, or 3 for both");
    Err(CatalogError::InvalidArgument { what, given, allowed })
}

impl Catalog {
    /// The prefix at this address, dead or alive: the literal path first, then the dotted one.
    pub(crate) fn resolve(&self, j: u32, path: &str) -> Result<u32, CatalogError> {
        let root = self.jobs[j].root;
        let trimmed = path.strip_prefix('/').unwrap_or(path);
        if trimmed.is_empty() {
            return Ok(root);
        }
        // Names in the table were checked on insertion: only a miss needs the rules.
        if let Some(n) = self.dag.walk(root, trimmed.split('/')) {
            return Ok(n);
        }
        split_path(path)?;
        let dotted = dotted_path(path).and_then(|names| self.dag.walk(root, names.into_iter()));
        dotted.ok_or_else(|| CatalogError::PrefixNotFound { path: path.into(), at: Vec::new() })
    }

    /// The live prefix at this address, or the reason why it ended, or other paths that have its name.
    pub(crate) fn live_prefix(&self, j: u32, path: &str) -> Result<u32, CatalogError> {
        self.live_at(j, path).map_err(|error| match error {
            CatalogError::PrefixNotFound { path, .. } => {
                let at = self.elsewhere(j, &path);
                CatalogError::PrefixNotFound { path, at }
            }
            other => other,
        })
    }

    /// Addresses of live prefixes that have this name: a few, found among the newest prefixes only.
    fn elsewhere(&self, j: u32, name: &str) -> Vec<Box<str>> {
        if name.contains('/') {
            return Vec::new();
        }
        let newest = chain(self.jobs[j].first_node, |n| self.dag.nodes[n].job_next);
        let named = newest.take(SEARCHED_MAX).filter(|&n| {
            let node = &self.dag.nodes[n];
            node.live() && *node.name == *name
        });
        let by_parent = named.flat_map(|n| self.dag.parents(n));
        let address = |parent: u32| match self.dag.path_of(parent).as_str() {
            "" => name.into(),
            above => format!("{above}/{name}").into(),
        };
        by_parent.take(SUGGESTED_MAX).map(address).collect()
    }

    /// The live prefix at this address, or the reason why it ended.
    pub(crate) fn live_at(&self, j: u32, path: &str) -> Result<u32, CatalogError> {
        let n = self.resolve(j, path)?;
        if self.dag.nodes[n].live() { Ok(n) } else { Err(self.why_dead(n, path)) }
    }

    pub(crate) fn why_dead(&self, n: u32, path: &str) -> CatalogError {
        let node = &self.dag.nodes[n];
        let job = &self.jobs[node.job];
        match job.tombstones.find(self.key, Gone::Prefix(node.id)) {
            // A prefix that ended before the job was reopened leaves its name free.
            Some(tombstone) if tombstone.at >= job.opened || n == job.root => {
                tombstone.error(self.now, self.needs_reopening(node.job))
            }
            Some(_) | None => CatalogError::PrefixNotFound { path: path.into(), at: Vec::new() },
        }
    }

    pub(crate) fn was_removed(&self, n: u32) -> bool {
        matches!(self.dag.nodes[n].life, Life::Removed | Life::Read)
    }

    pub(crate) fn checked_options<'a>(
        &self,
        j: u32,
        options: PrefixOptions<'a>,
    ) -> Result<Checked<'a>, CatalogError> {
        let lease_ms = self.checked_lease(options.lease_ms, self.jobs[j].lease_ms)?;
        let owner = checked_verbs("the owner's verbs", options.owner_verbs)?;
        let job = checked_verbs("the job's verbs", options.job_verbs)?;
        let given = owner != Verbs::NONE || job != Verbs::NONE;
        let (owner_verbs, job_verbs) =
            if given { (owner, job) } else { (OWNER_VERBS_DEFAULT, JOB_VERBS_DEFAULT) };
        let marks = Marks::new(options.high_mark, options.low_mark, self.config.marks);
        let marks = marks.ok_or(CatalogError::InvalidArgument {
            what: "the marks of a prefix",
            given: (options.high_mark as u64) << 8 | options.low_mark as u64,
            allowed: "the high mark is at most 100, and twice the low mark is below it",
        })?;
        let journaled = journaled(options.acknowledge)?;
        let flush = match options.flush_to {
            "" if options.persist || journaled => return Err(CatalogError::PersistsNowhere),
            "" => None,
            path => Some((path, self.checked_flush(j, path)?)),
        };
        if let Some((path, directory)) = flush.as_ref().filter(|_| journaled) {
            self.need_unflushed(path, directory)?;
        }
        let PrefixOptions { pinned, max_blocks, loading, persist, .. } = options;
        let (owner, job) = (owner_verbs, job_verbs);
        Ok(Checked {
            lease_ms,
            pinned,
            owner_verbs: owner,
            job_verbs: job,
            marks,
            flush,
            max_blocks,
            loading,
            persist,
            journaled,
        })
    }

    pub(crate) fn create_prefix(
        &mut self,
        actor: Actor,
        job: JobId,
        path: &str,
        parents: &[&str],
        options: PrefixOptions<'_>,
    ) -> Result<Reply, CatalogError> {
        let j = self.admit(actor, job)?;
        self.need_write(actor, "create a prefix", path)?;
        split_path(path)?;
        let trimmed = path.strip_prefix('/').unwrap_or(path);
        // A flush that outlives its job is found under its path.
        let own = options.is_placed() && options.flush_to.is_empty();
        let flush_to = if own { trimmed } else { options.flush_to };
        let options = PrefixOptions { flush_to, ..options };
        let checked =
            self.checked_options(j, options).map_err(|error| self.or_exists(j, trimmed, error))?;
        if trimmed.is_empty() {
            return self.create_root(actor, j, parents, options);
        }
        let (above, name) = trimmed.rsplit_once('/').unwrap_or(("", trimmed));
        let mut found = std::mem::take(&mut self.scratch);
        found.clear();
        let named = std::iter::once(above).chain(parents.iter().copied());
        let created = self
            .find_parents(j, trimmed, named, &mut found)
            .and_then(|()| self.create_below(actor, j, path, name, &found, checked));
        self.scratch = found;
        created.map(Reply::Prefix)
    }

    /// The error for a place that is in use: that the prefix already exists, if the prefix itself uses the
    /// place.
    pub(crate) fn or_exists(&self, j: u32, path: &str, error: CatalogError) -> CatalogError {
        match error {
            CatalogError::FlushPathTaken { .. } if self.live_at(j, path).is_ok() => {
                CatalogError::PrefixExists { path: path.into() }
            }
            other => other,
        }
    }

    /// Creates the root again, after it has expired, when the empty path is created.
    fn create_root(
        &mut self,
        actor: Actor,
        j: u32,
        parents: &[&str],
        options: PrefixOptions<'_>,
    ) -> Result<Reply, CatalogError> {
        let root = self.jobs[j].root;
        self.need_own(actor, root, "create a prefix", "")?;
        if self.dag.nodes[root].live() {
            return Err(CatalogError::PrefixExists { path: "".into() });
        }
        if let Some(parent) = parents.first() {
            let (node, parent) = ("the root".into(), (*parent).into());
            return Err(CatalogError::UnknownParent { node, parent, at: Vec::new() });
        }
        self.install_root(j, options).map(Reply::Prefix)
    }

    fn find_parents<'a>(
        &self,
        j: u32,
        path: &str,
        named: impl Iterator<Item = &'a str>,
        found: &mut Vec<u32>,
    ) -> Result<(), CatalogError> {
        let mut seen: HashSet<u32> = found.iter().copied().collect();
        for parent in named {
            let n = self.find_parent(j, path, parent)?;
            if seen.insert(n) {
                found.push(n);
            }
            if found.len() > PARENTS_MAX {
                let what = "parents of one prefix";
                return Err(CatalogError::LimitExceeded { what, limit: PARENTS_MAX as u64 });
            }
        }
        Ok(())
    }

    /// A named parent of a new prefix: live, or the reason why not.
    pub(crate) fn find_parent(
        &self,
        j: u32,
        node: &str,
        parent: &str,
    ) -> Result<u32, CatalogError> {
        self.live_prefix(j, parent).map_err(|error| match error {
            CatalogError::PrefixNotFound { at, .. } => {
                CatalogError::UnknownParent { node: node.into(), parent: parent.into(), at }
            }
            other => other,
        })
    }

    fn create_below(
        &mut self,
        actor: Actor,
        j: u32,
        path: &str,
        name: &str,
        parents: &[u32],
        options: Checked<'_>,
    ) -> Result<PrefixId, CatalogError> {
        if !parents.iter().any(|&parent| self.is_own(actor, parent)) {
            return Err(CatalogError::PermissionDenied {
                what: "create a prefix",
                path: path.into(),
                why: "a task's token can create only below its own prefix; name that prefix as a \
                    parent",
            });
        }
        let mut reuse = None;
        for &parent in parents {
            reuse = reuse.or(self.vacancy(parent, name)?);
        }
        self.need_room_for_prefixes(j, usize::from(reuse.is_none()))?;
        if let Some(place) = reuse.filter(|&place| self.dag.has_children(place))
            && let Some(way) = self.dag.way_down(place, parents)
        {
            let members = way.iter().map(|&n| self.dag.nodes[n].name.clone()).collect();
            return Err(CatalogError::Cycle { members });
        }
        self.need_room_for_edges(j, parents.len(), reuse)?;
        let quota = options.quota();
        let n = self.install(j, name, parents, reuse, options);
        let fresh = self.bound_prefixes(j, &[(n, quota)]);
        self.count_below(j, &fresh);
        self.collect_evicted();
        Ok(self.dag.nodes[n].id)
    }

    /// The dead prefix that has this name under the parent, if any; refuses a live one.
    pub(crate) fn vacancy(&self, parent: u32, name: &str) -> Result<Option<u32>, CatalogError> {
        match self.dag.child(parent, name) {
            Some(n) if self.dag.nodes[n].live() => {
                let above = self.dag.path_of(parent);
                let path = if above.is_empty() { name.into() } else { format!("{above}/{name}") };
                Err(CatalogError::PrefixExists { path: path.into() })
            }
            // A prefix can be replaced only under its named parents. Under a parent deduced from use its name
            // is free, and its descendants do not pass to a prefix created there.
            Some(_) => Ok(self.dag.named_child(parent, name)),
            None => Ok(None),
        }
    }

    pub(crate) fn need_room_for_prefixes(&self, j: u32, n: usize) -> Result<(), CatalogError> {
        if self.jobs[j].nodes + n <= PREFIXES_PER_JOB_MAX {
            return Ok(());
        }
        let what = "prefixes of one job (expired ones count until they are discarded)";
        Err(CatalogError::LimitExceeded { what, limit: PREFIXES_PER_JOB_MAX as u64 })
    }

    /// Whether a job can have so many edges more, when these dead prefixes have lost theirs to parents.
    pub(crate) fn need_room_for_edges(
        &self,
        j: u32,
        edges: usize,
        replaced: impl IntoIterator<Item = u32>,
    ) -> Result<(), CatalogError> {
        let lost = replaced.into_iter().map(|n| self.dag.parents(n).count()).sum::<usize>();
        if self.dag.edges_of(j) + edges <= EDGES_PER_JOB_MAX + lost {
            return Ok(());
        }
        let what = "edges between the prefixes of one job";
        Err(CatalogError::LimitExceeded { what, limit: EDGES_PER_JOB_MAX as u64 })
    }

    /// Makes a prefix under checked parents, replacing a dead one or at a new index. Its creation is its
    /// first renewal. Its quota is set afterwards.
    pub(crate) fn install(
        &mut self,
        j: u32,
        name: &str,
        parents: &[u32],
        reuse: Option<u32>,
        options: Checked<'_>,
    ) -> u32 {
        self.last_prefix += 1;
        let id = PrefixId(self.id_of(IdOf::Prefix, self.last_prefix));
        let mut node = Node::new(id, j, name, self.now);
        (node.lease_ms, node.pinned) = (options.lease_ms, options.pinned);
        (node.owner_verbs, node.job_verbs) = (options.owner_verbs, options.job_verbs);
        let n = match reuse {
            Some(n) => {
                // The dead prefix will never commit; the new one is not a declared reader.
                self.readers.lose(n);
                // Renewals that the parents granted downwards are older than the renewal made here.
                self.evicted.extend(self.dag.parents(n));
                self.dag.detach(n, |_| true);
                self.dag.replace(n, node);
                n
            }
            None => {
                let job = &mut self.jobs[j];
                job.nodes += 1;
                self.dag.insert(node, &mut job.first_node)
            }
        };
        // Other dead prefixes of this name lose their places here.
        let held = |&parent: &u32| Some((self.dag.child(parent, name)?, parent));
        let mut places: Vec<(u32, u32)> = parents.iter().filter_map(held).collect();
        places.sort_unstable();
        for places in places.chunk_by(|one, other| one.0 == other.0) {
            let holder = places[0].0;
            assert!(!self.dag.nodes[holder].live(), "a live prefix keeps its name");
            let lost = |parent| places.binary_search(&(holder, parent)).is_ok();
            self.dag.evict(holder, lost, self.now);
            self.evicted.push(holder);
        }
        for &parent in parents.iter().rev() {
            self.dag.link(parent, n);
        }
        let job = &mut self.jobs[j];
        let before = (job.shortest_ms, job.lingers_until);
        if !options.pinned {
            job.shortest_ms = job.shortest_ms.min(options.lease_ms);
        }
        job.live_prefixes += 1;
        job.pinned += u64::from(options.pinned);
        job.lingers_until = None;
        if before != (job.shortest_ms, None) {
            self.jobs.dirty.mark(j);
        }
        self.live_prefixes += 1;
        self.set_timer(n);
        let Checked { marks, flush, loading, persist, journaled, .. } = options;
        self.specialise(n, marks, flush, loading, persist);
        if journaled {
            self.begin_journal(n);
        }
        n
    }

    /// Collects the dead prefixes that lost a place or a child, when no replacement is under way.
    pub(crate) fn collect_evicted(&mut self) {
        for n in std::mem::take(&mut self.evicted) {
            self.collect(n);
        }
    }

    pub(crate) fn remove_prefix(
        &mut self,
        actor: Actor,
        job: JobId,
        path: &str,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let j = self.admit(actor, job)?;
        self.need_write(actor, "remove the prefix", path)?;
        let n = self.live_prefix(j, path)?;
        self.need_own(actor, n, "remove the prefix", path)?;
        self.end_prefix(n, Cause::Removed, self.now, effects);
        Ok(Reply::Done)
    }

    /// Allows a loading prefix to be opened.
    pub(crate) fn publish_prefix(
        &mut self,
        actor: Actor,
        job: JobId,
        path: &str,
    ) -> Result<Reply, CatalogError> {
        let j = self.admit(actor, job)?;
        self.need_write(actor, "publish the prefix", path)?;
        let n = self.live_prefix(j, path)?;
        self.need_own(actor, n, "publish the prefix", path)?;
        if let Some(special) = self.dag.special.get_mut(&n) {
            special.loading = false;
            self.dag.dirty.mark(n);
        }
        Ok(Reply::Done)
    }

    /// Refuses a prefix that is being loaded.
    pub(crate) fn need_loaded(&self, n: u32) -> Result<(), CatalogError> {
        match self.dag.special.get(&n).is_some_and(|special| special.loading) {
            true => Err(CatalogError::Loading { path: self.dag.path_of(n).into() }),
            false => Ok(()),
        }
    }

    pub(crate) fn set_permissions(
        &mut self,
        actor: Actor,
        job: JobId,
        path: &str,
        [owner, others]: [Verbs; 2],
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let j = self.admit(actor, job)?;
        self.need_write(actor, "change permissions", path)?;
        let owner_verbs = checked_verbs("the owner's verbs", owner)?;
        let job_verbs = checked_verbs("the job's verbs", others)?;
        let n = self.live_prefix(j, path)?;
        self.need_own(actor, n, "change permissions", path)?;
        let node = &mut self.dag.nodes[n];
        (node.owner_verbs, node.job_verbs) = (owner_verbs, job_verbs);
        self.revoke_grants(n, effects);
        Ok(Reply::Done)
    }

    /// Makes servers refuse all grants of a prefix that were given until now (INV-29).
    pub(crate) fn revoke_grants(&mut self, n: u32, effects: &mut Vec<Effect>) {
        self.dag.dirty.mark(n);
        let node = &mut self.dag.nodes[n];
        node.generation = Generation(node.generation.0.checked_add(1).expect("2^32 revocations"));
        let (prefix, generation) = (node.id, node.generation);
        let blocks = self.structures_of(n).flat_map(|s| self.structures[s].blocks());
        let mut servers: Vec<_> = blocks.map(|block| block.server()).collect();
        servers.sort_unstable();
        servers.dedup();
        let effect = |server| Effect::SetGeneration { server, prefix, generation };
        effects.extend(servers.into_iter().map(effect));
    }

    /// Refuses a request of a token that may not write to a prefix.
    pub(crate) fn need_write_at(
        &self,
        actor: Actor,
        n: u32,
        what: &'static str,
    ) -> Result<(), CatalogError> {
        if self.verbs_at(actor, n)?.contains(Verbs::WRITE) {
            return Ok(());
        }
        let (path, why) = (self.dag.path_of(n).into(), "the token may not write to the prefix");
        Err(CatalogError::PermissionDenied { what, path, why })
    }

    /// The actor's rights on the data of a prefix; never empty.
    pub(crate) fn verbs_at(&self, actor: Actor, n: u32) -> Result<Verbs, CatalogError> {
        let node = &self.dag.nodes[n];
        let allowed = match (actor.job, actor.task) {
            (None, _) => Verbs::ALL,
            (_, Some(task)) if task != node.id => node.job_verbs,
            _ => node.owner_verbs,
        };
        let verbs = allowed.and(actor.verbs);
        if verbs != Verbs::NONE {
            return Ok(verbs);
        }
        let why = if allowed == Verbs::NONE {
            "its permissions grant this token nothing; its owner or the driver can change them"
        } else {
            "the token was restricted to less than its permissions grant"
        };
        let path = self.dag.path_of(n).into();
        Err(CatalogError::PermissionDenied { what: "open a structure", path, why })
    }

    /// The structures of a prefix, the newest first.
    pub(crate) fn structures_of(&self, n: u32) -> impl Iterator<Item = u32> {
        chain(self.dag.nodes[n].first_structure, |s| self.structures[s].next)
    }
}
