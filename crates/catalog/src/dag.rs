//! The address DAGs of all jobs: prefixes, the edges between them, and the table of names.
//!
//! Edges are records on two lists, the children of a parent and the parents of a child, so that a change
//! costs the same for a prefix with a million children as for a prefix with two. The table of names holds
//! each edge under (parent, name of the child): the name is unique among the children of every one of the
//! child's parents.
//!
//! # Leases
//!
//! A renewal stamps one prefix and nothing else. The effect of the stamp on relatives is computed on demand:
//! a prefix counts as renewed at the latest of its own stamp, those of its direct children, and those of all
//! its ancestors (paper, 3.2, read the other way round). This value never decreases (INV-12): if an edge to a
//! relative is removed, `carried_below` and `carried_above` keep the renewals that the relative had granted.
//! A dead prefix keeps its place and its last stamp; renewals of its ancestors still reach its descendants.

mod ways;

pub(crate) use self::ways::{AncestorRenewals, Ways};

use self::ways::Marks;
use crate::durable::Dirty;
use crate::flush::Special;
use crate::hash::HashKey;
use crate::slab::{NONE, Slab, chain};
use hashbrown::{HashMap, HashTable};
use honeycomb_types::{Bug, Generation, PrefixId, Time, Verbs, limits};

/// Most bytes of a path that the catalog stores or shows. A plan can be deeper than any path, and every
/// tombstone of a job holds one.
const PATH_SHOWN_MAX: usize = limits::MESSAGE_MAX / 2;

const _: () = assert!(PATH_SHOWN_MAX > limits::NAME_MAX + 4, "the last name is always shown");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Live,
    Expired,
    Removed,
    /// Freed, because its declared readers had all committed.
    Read,
}

/// A prefix: 96 bytes and its name.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: PrefixId,
    /// The time of the prefix's own last renewal; its creation is the first.
    pub(crate) stamp: Time,
    /// Renewals by direct children that are no longer linked; for a dead prefix, the missed deadline.
    pub(crate) carried_below: Time,
    /// Renewals by ancestors that are no longer linked.
    pub(crate) carried_above: Time,
    pub(crate) name: Box<str>,
    pub(crate) job: u32,
    pub(crate) lease_ms: u32,
    pub(crate) generation: Generation,
    pub(crate) first_structure: u32,
    pub(crate) structures: u32,
    /// The next node of the same job. The list lets a job end without a search.
    pub(crate) job_next: u32,
    job_prev: u32,
    first_parent: u32,
    first_child: u32,
    mark: u32,
    pub(crate) owner_verbs: Verbs,
    pub(crate) job_verbs: Verbs,
    pub(crate) life: Life,
    pub(crate) pinned: bool,
    /// Whether the loss of a server has destroyed some of its data.
    pub(crate) data_lost: bool,
    /// Whether the attempt of its task has committed.
    pub(crate) committed: bool,
}

const _: () = assert!(size_of::<Node>() <= 96);

impl Node {
    pub(crate) fn new(id: PrefixId, job: u32, name: &str, now: Time) -> Node {
        Node {
            id,
            stamp: now,
            carried_below: Time::ZERO,
            carried_above: Time::ZERO,
            name: name.into(),
            job,
            lease_ms: 0,
            generation: Generation(1),
            first_structure: NONE,
            structures: 0,
            job_next: NONE,
            job_prev: NONE,
            first_parent: NONE,
            first_child: NONE,
            mark: 0,
            owner_verbs: Verbs::NONE,
            job_verbs: Verbs::NONE,
            life: Life::Live,
            pinned: false,
            data_lost: false,
            committed: false,
        }
    }

    pub(crate) fn live(&self) -> bool {
        self.life == Life::Live
    }
}

#[derive(Debug)]
pub(crate) struct Edge {
    pub(crate) parent: u32,
    pub(crate) child: u32,
    pub(crate) next_sibling: u32,
    prev_sibling: u32,
    pub(crate) next_parent: u32,
    /// An upper bound of the edges that follow in the child's list. It bounds the number of parents without a
    /// walk.
    pub(crate) behind: u16,
    /// Whether the edge was deduced from use and not named in a plan: it then carries renewals and an
    /// address, and no rights.
    pub(crate) deduced: bool,
}

const _: () = assert!(size_of::<Edge>() <= 24);
const _: () = assert!(limits::PARENTS_MAX <= u16::MAX as usize);

/// An edge in the table of names. It repeats the ends of the edge, so that a lookup does not read the edge's
/// record, and a part of the hash, so that a table that grows does not read every name.
#[derive(Clone, Copy, Debug)]
struct EdgeName {
    parent: u32,
    child: u32,
    /// 31 bits of the hash; the lowest bit says whether the edge was deduced from use.
    tag: u32,
}

impl EdgeName {
    fn new(hash: u32, parent: u32, child: u32, deduced: bool) -> EdgeName {
        EdgeName { parent, child, tag: hash | u32::from(deduced) }
    }

    /// The lowest bit is 0.
    fn hash_of(key: HashKey, parent: u32, name: &str) -> u32 {
        (key.name(parent as u64, name) >> 32) as u32 & !1
    }

    fn hash(&self) -> u32 {
        self.tag & !1
    }

    fn deduced(&self) -> bool {
        self.tag & 1 == 1
    }

    /// The hash for the table, which uses the low bits as an entry's place and the top bits as a tag.
    fn spread(hash: u32) -> u64 {
        u64::from(hash) << 32 | u64::from(hash >> 1)
    }

    fn table_hash(&self) -> u64 {
        EdgeName::spread(self.hash())
    }
}

#[derive(Debug)]
pub(crate) struct Dag {
    pub(crate) nodes: Slab<Node>,
    pub(crate) edges: Slab<Edge>,
    names: HashTable<EdgeName>,
    ids: HashTable<u32>,
    key: HashKey,
    marks: Marks,
    stack: Vec<u32>,
    name_bytes: usize,
    /// Number of edges of each job.
    edges_of: Vec<u32>,
    /// Attributes that only some prefixes have, by the index of the prefix.
    pub(crate) special: HashMap<u32, Box<Special>>,
    /// Number of relatives visited by searches, for cost tests.
    pub(crate) visited: u64,
    /// Number of edges followed by searches: cost tests and the end of a tick depend on it.
    pub(crate) followed: u64,
    /// Edges that this command may still visit to carry renewals.
    carries_left: u64,
    /// Prefixes whose durable state changed.
    pub(crate) dirty: Dirty,
    /// Edges deduced from use: child and parent.
    pub(crate) used: Vec<(u32, u32)>,
}

impl Dag {
    pub(crate) fn new(key: HashKey) -> Dag {
        Dag {
            nodes: Slab::new(),
            edges: Slab::new(),
            names: HashTable::new(),
            ids: HashTable::new(),
            key,
            marks: Marks::default(),
            stack: Vec::new(),
            special: HashMap::new(),
            name_bytes: 0,
            edges_of: Vec::new(),
            visited: 0,
            followed: 0,
            carries_left: limits::CARRIED_EDGES_MAX,
            dirty: Dirty::default(),
            used: Vec::new(),
        }
    }

    pub(crate) fn child(&self, parent: u32, name: &str) -> Option<u32> {
        self.edge_named(parent, name).map(|named| named.child)
    }

    /// The same if a plan named the edge.
    pub(crate) fn named_child(&self, parent: u32, name: &str) -> Option<u32> {
        let named = self.edge_named(parent, name).filter(|named| !named.deduced());
        named.map(|named| named.child)
    }

    fn edge_named(&self, parent: u32, name: &str) -> Option<&EdgeName> {
        let hash = EdgeName::hash_of(self.key, parent, name);
        let same = |named: &EdgeName| {
            (named.parent, named.hash()) == (parent, hash) && *self.nodes[named.child].name == *name
        };
        self.names.find(EdgeName::spread(hash), same)
    }

    /// The child of this name, or another of the same parent: read from the table of names alone,
    /// without the child's own memory.
    pub(crate) fn likely_child(&self, parent: u32, name: &str) -> Option<u32> {
        let hash = EdgeName::hash_of(self.key, parent, name);
        let same = |named: &EdgeName| (named.parent, named.hash()) == (parent, hash);
        self.names.find(EdgeName::spread(hash), same).map(|named| named.child)
    }

    pub(crate) fn by_id(&self, id: PrefixId) -> Option<u32> {
        self.ids.find(self.key.id(id.0), |&n| self.nodes[n].id == id).copied()
    }

    /// Follows names downwards.
    pub(crate) fn walk<'a>(
        &self,
        from: u32,
        mut names: impl Iterator<Item = &'a str>,
    ) -> Option<u32> {
        names.try_fold(from, |at, name| self.child(at, name))
    }

    pub(crate) fn parents(&self, n: u32) -> impl Iterator<Item = u32> {
        self.parent_edges(n).map(|e| self.edges[e].parent)
    }

    /// The edges to a prefix's parents: the first named one, then those deduced from use, the latest first,
    /// then the other named ones.
    pub(crate) fn parent_edges(&self, n: u32) -> impl Iterator<Item = u32> {
        chain(self.nodes[n].first_parent, |e| self.edges[e].next_parent)
    }

    /// The edges to a prefix's children, the newest first.
    pub(crate) fn first_child_edge(&self, n: u32) -> u32 {
        self.nodes[n].first_child
    }

    pub(crate) fn first_parent_edge(&self, n: u32) -> u32 {
        self.nodes[n].first_parent
    }

    pub(crate) fn children(&self, n: u32) -> impl Iterator<Item = u32> {
        let edges = chain(self.nodes[n].first_child, |e| self.edges[e].next_sibling);
        edges.map(|e| self.edges[e].child)
    }

    pub(crate) fn first_parent(&self, n: u32) -> Option<u32> {
        let edge = self.nodes[n].first_parent;
        if edge == NONE { None } else { Some(self.edges[edge].parent) }
    }

    pub(crate) fn has_children(&self, n: u32) -> bool {
        self.nodes[n].first_child != NONE
    }

    pub(crate) fn has_parents(&self, n: u32) -> bool {
        self.nodes[n].first_parent != NONE
    }

    /// Adds a prefix without edges at the head of its job's list.
    pub(crate) fn insert(&mut self, node: Node, first_of_job: &mut u32) -> u32 {
        self.name_bytes += node.name.len();
        let n = self.nodes.insert(Node { job_next: *first_of_job, ..node });
        if *first_of_job != NONE {
            self.nodes[*first_of_job].job_prev = n;
        }
        *first_of_job = n;
        self.index(n);
        self.marks.forget();
        self.dirty.mark(n);
        n
    }

    /// Adopts the nodes of a recovered catalog; their lists follow.
    pub(crate) fn recover(&mut self, nodes: Slab<Node>, edges: usize) {
        self.nodes = nodes;
        let (key, nodes) = (self.key, &self.nodes);
        self.name_bytes = nodes.iter().map(|(_, node)| node.name.len()).sum();
        self.ids.reserve(nodes.len(), |&n| key.id(nodes[n].id.0));
        for (n, node) in nodes.iter() {
            self.ids.insert_unique(key.id(node.id.0), n, |&n| key.id(nodes[n].id.0));
        }
        self.names.reserve(edges, EdgeName::table_hash);
    }

    /// Puts a recovered node at the head of its job's list.
    pub(crate) fn enlist(&mut self, n: u32, first_of_job: &mut u32) {
        self.nodes[n].job_next = *first_of_job;
        if *first_of_job != NONE {
            self.nodes[*first_of_job].job_prev = n;
        }
        *first_of_job = n;
    }

    /// Gives a recovered node its parents, in their order.
    pub(crate) fn restore_parents(&mut self, n: u32, parents: &[(u32, bool)]) {
        let mut next = NONE;
        for (behind, &(parent, deduced)) in parents.iter().rev().enumerate() {
            next = self.add_edge(parent, n, next, (behind as u16, deduced));
        }
        self.nodes[n].first_parent = next;
    }

    fn index(&mut self, n: u32) {
        let (key, nodes) = (self.key, &self.nodes);
        let hash = key.id(nodes[n].id.0);
        self.ids.insert_unique(hash, n, |&n| key.id(nodes[n].id.0));
    }

    fn unindex(&mut self, n: u32) {
        let hash = self.key.id(self.nodes[n].id.0);
        let entry = self.ids.find_entry(hash, |&other| other == n);
        entry.expect("every prefix is found by its id").remove();
    }

    /// Replaces a dead prefix by a new one, which keeps the children and the edges.
    pub(crate) fn replace(&mut self, n: u32, new: Node) {
        self.unindex(n);
        let old = &self.nodes[n];
        assert!(!old.live(), "only the place of a dead prefix is taken");
        assert!(old.first_structure == NONE, "a dead prefix holds nothing");
        assert!(new.name == old.name && new.job == old.job, "the place keeps its name");
        self.special.remove(&n);
        self.nodes[n] = Node {
            job_next: old.job_next,
            job_prev: old.job_prev,
            first_parent: old.first_parent,
            first_child: old.first_child,
            mark: old.mark,
            ..new
        };
        self.index(n);
        self.dirty.mark(n);
    }

    /// Removes a prefix that has no edges left.
    pub(crate) fn remove(&mut self, n: u32, first_of_job: &mut u32) -> Node {
        assert!(!self.has_children(n) && !self.has_parents(n), "a linked prefix was removed");
        self.unindex(n);
        self.special.remove(&n);
        self.dirty.mark(n);
        let node = self.nodes.remove(n);
        self.name_bytes -= node.name.len();
        match node.job_prev {
            NONE => *first_of_job = node.job_next,
            prev => self.nodes[prev].job_next = node.job_next,
        }
        if node.job_next != NONE {
            self.nodes[node.job_next].job_prev = node.job_prev;
        }
        node
    }

    /// Makes `parent` the first parent of `child`.
    pub(crate) fn link(&mut self, parent: u32, child: u32) {
        let next_parent = self.nodes[child].first_parent;
        let behind = if next_parent == NONE { 0 } else { self.edges[next_parent].behind + 1 };
        let e = self.add_edge(parent, child, next_parent, (behind, false));
        self.dirty.mark(child);
        self.nodes[child].first_parent = e;
    }

    /// Makes `parent` a further parent of `child`, behind its first, deduced from use.
    pub(crate) fn link_deduced(&mut self, parent: u32, child: u32) {
        let first = self.nodes[child].first_parent;
        let behind = self.edges[first].behind;
        let e = self.add_edge(parent, child, self.edges[first].next_parent, (behind, true));
        if self.dirty.on() {
            self.used.push((child, parent));
        }
        let first = &mut self.edges[first];
        (first.next_parent, first.behind) = (e, behind + 1);
    }

    /// Records an edge with its parent and its name; the caller updates the child's list.
    fn add_edge(
        &mut self,
        parent: u32,
        child: u32,
        next_parent: u32,
        (behind, deduced): (u16, bool),
    ) -> u32 {
        let next_sibling = self.nodes[parent].first_child;
        let prev_sibling = NONE;
        let edge = Edge { parent, child, next_sibling, prev_sibling, next_parent, behind, deduced };
        let e = self.edges.insert(edge);
        self.marks.forget();
        let job = self.nodes[child].job as usize;
        self.edges_of.resize(self.edges_of.len().max(job + 1), 0);
        self.edges_of[job] += 1;
        if next_sibling != NONE {
            self.edges[next_sibling].prev_sibling = e;
        }
        self.nodes[parent].first_child = e;
        let hash = EdgeName::hash_of(self.key, parent, &self.nodes[child].name);
        let named = EdgeName::new(hash, parent, child, deduced);
        self.names.insert_unique(named.table_hash(), named, EdgeName::table_hash);
        e
    }

    /// Removes the edge that follows `before` in its child's list.
    pub(crate) fn cut(&mut self, before: u32, e: u32) {
        let Edge { parent, child, .. } = self.edges[e];
        self.dirty.mark(child);
        let hash = EdgeName::hash_of(self.key, parent, &self.nodes[child].name);
        let same = |named: &EdgeName| (named.parent, named.child) == (parent, child);
        let entry = self.names.find_entry(EdgeName::spread(hash), same);
        entry.expect("every edge is in the table of names").remove();
        match before {
            NONE => self.nodes[child].first_parent = self.edges[e].next_parent,
            _ => self.edges[before].next_parent = self.edges[e].next_parent,
        }
        let edge = self.edges.remove(e);
        self.marks.forget();
        self.edges_of[self.nodes[child].job as usize] -= 1;
        match edge.prev_sibling {
            NONE => self.nodes[parent].first_child = edge.next_sibling,
            prev => self.edges[prev].next_sibling = edge.next_sibling,
        }
        if edge.next_sibling != NONE {
            self.edges[edge.next_sibling].prev_sibling = edge.prev_sibling;
        }
    }

    /// A command begins.
    pub(crate) fn begin_command(&mut self) {
        self.carries_left = limits::CARRIED_EDGES_MAX;
    }

    /// Removes the edges between a dead prefix that keeps its children and those of its parents that `from`
    /// selects, and keeps the renewals that each end had granted the other (INV-12).
    pub(crate) fn evict(&mut self, child: u32, from: impl Fn(u32) -> bool, now: Time) {
        self.carry_above(child, now);
        self.detach(child, from);
    }

    /// The same for a prefix without children, or one that is about to be replaced: the renewal by which the
    /// new prefix begins is later than all that its parents granted.
    pub(crate) fn detach(&mut self, child: u32, from: impl Fn(u32) -> bool) {
        let stamp = self.nodes[child].stamp;
        let (mut before, mut e) = (NONE, self.nodes[child].first_parent);
        while e != NONE {
            self.followed += 1;
            let Edge { parent, next_parent, .. } = self.edges[e];
            if from(parent) {
                let node = &mut self.nodes[parent];
                if node.live() {
                    node.carried_below = node.carried_below.max(stamp);
                }
                self.cut(before, e);
            } else {
                before = e;
            }
            e = next_parent;
        }
    }

    /// Removes all edges to a prefix's parents without keeping any renewals; for the end of a job.
    pub(crate) fn orphan(&mut self, n: u32) {
        while self.has_parents(n) {
            self.cut(NONE, self.nodes[n].first_parent);
        }
    }

    /// Number of edges of a job.
    pub(crate) fn edges_of(&self, job: u32) -> usize {
        self.edges_of.get(job as usize).map_or(0, |count| *count as usize)
    }

    /// The time at which a prefix counts as renewed, and whether it is exact. The search follows at most
    /// `most` edges to children and `most` to ancestors: the time is then a lower bound.
    pub(crate) fn renewed_within(&mut self, n: u32, most: u64) -> (Time, bool) {
        let before = self.followed;
        let below = self.renewed_below(n, Time::NEVER, most);
        let between = self.followed;
        let above = match Bug::RenewalForgetsDescendants.active() {
            true => Time::ZERO,
            false => self.latest_above(n, Time::NEVER, most),
        };
        let is_exact = between - before < most && self.followed - between < most;
        (below.max(above), is_exact)
    }

    /// The time at which a prefix counts as renewed. The search ends at a renewal at `enough` or later: the
    /// result is then a lower bound. For `found`, see `latest_above_each`.
    pub(crate) fn renewed(&mut self, n: u32, enough: Time, found: &mut AncestorRenewals) -> Time {
        let below = self.renewed_below(n, enough, u64::MAX);
        match below >= enough || Bug::RenewalForgetsDescendants.active() {
            true => below,
            false => below.max(self.latest_above_each(n, enough, found)),
        }
    }

    /// The latest renewal of a prefix itself, of its children, and of relatives that are no longer linked.
    fn renewed_below(&mut self, n: u32, enough: Time, most: u64) -> Time {
        let node = &self.nodes[n];
        let mut latest = node.stamp.max(node.carried_below).max(node.carried_above);
        let mut e = node.first_child;
        if Bug::RenewalForgetsParents.active() {
            e = NONE;
        }
        let mut left = most;
        while latest < enough && e != NONE && left > 0 {
            let edge = &self.edges[e];
            left -= 1;
            latest = latest.max(self.nodes[edge.child].stamp);
            e = edge.next_sibling;
        }
        self.visited += most - left;
        self.followed += most - left;
        latest
    }

    /// The address of a prefix by way of its first parents, for messages and tombstones; of a very long one,
    /// the end.
    pub(crate) fn path_of(&self, n: u32) -> String {
        let mut names: Vec<&str> = Vec::new();
        let mut bytes = 0;
        let mut at = Some(n);
        while let Some(here) = at {
            let name = &*self.nodes[here].name;
            bytes += name.len() + 1;
            if bytes > PATH_SHOWN_MAX {
                names.push("...");
                break;
            }
            // The root has no name and is omitted from paths.
            if !name.is_empty() {
                names.push(name);
            }
            at = self.first_parent(here);
        }
        names.reverse();
        names.join("/")
    }

    /// Checks the lists and tables against each other; for `check_invariants`.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (mut edges, mut of_jobs) = (0, vec![0; self.edges_of.len()]);
        for (n, node) in self.nodes.iter() {
            if self.by_id(node.id) != Some(n) {
                return Err(format!("prefix {} is not found by its id", node.id));
            }
            for child in self.children(n) {
                edges += 1;
                of_jobs[node.job as usize] += 1;
                let named = self.edge_named(n, &self.nodes[child].name);
                if named.map(|named| named.child) != Some(child) {
                    return Err(format!("'{}' is not found under its parent", self.path_of(child)));
                }
                let edge = self.parent_edges(child).find(|e| self.edges[*e].parent == n);
                if edge.map(|e| self.edges[e].deduced) != named.map(EdgeName::deduced) {
                    return Err(format!("the edge to '{}' has two origins", self.path_of(child)));
                }
                if self.nodes[child].job != node.job {
                    return Err(format!("'{}' has a parent of another job", self.path_of(child)));
                }
                if self.parents(child).filter(|&p| p == n).count() != 1 {
                    return Err(format!("'{}' does not know a parent", self.path_of(child)));
                }
            }
            self.check_parents(n)?;
        }
        if (edges, edges) != (self.edges.len(), self.names.len()) || of_jobs != self.edges_of {
            let counted = &self.edges_of;
            return Err(format!("{edges} edges, {} records, {counted:?}", self.edges.len()));
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> usize {
        let tables = self.names.allocation_size() + self.ids.allocation_size();
        let lists = self.nodes.bytes()
            + self.edges.bytes()
            + (self.stack.capacity() + self.edges_of.capacity()) * 4;
        let special = self.special.values().map(|s| size_of::<Special>() + s.flush_to.len());
        let special = self.special.allocation_size() + special.sum::<usize>();
        tables + lists + self.name_bytes + special
    }
}
