//! Edges deduced from use: the hierarchy built on the fly (paper, 3.1).
//!
//! A session that runs for prefix t and opens a structure of prefix p shows that t consumes p's data: p
//! becomes a parent of t, so that every renewal of t also renews p, without a plan that contains the edge.
//! Opening succeeds whether or not the edge is possible; its reply gives the outcome ([`EdgeOutcome`]).
//!
//! A new edge counts as a renewal of t, as the creation of a prefix does: it follows from a request of t's
//! own session. So both ends agree at once on the renewals that the edge grants, and nothing granted before
//! is withdrawn (INV-12).
//!
//! A deduced edge carries renewals and an address (`p/t`), and no rights: a task that may remove prefixes
//! under its own may not, because of the edge, remove its reader. It is never a prefix's first parent, so
//! that the displayed path stays the named one. It lasts as long as t and p do. When t's name is created
//! again, the new prefix has the parents named then.

use crate::dag::{Dag, Edge};
use crate::slab::NONE;
use crate::{Actor, Catalog, EdgeOutcome};
use hashbrown::HashMap;
use honeycomb_types::limits::{EDGES_PER_JOB_MAX, PARENTS_MAX};
use honeycomb_types::{Bug, PrefixId};

/// Most edges visited by one search for a cycle.
const SEARCH_MAX: u32 = 16_384;

/// The end from which a search reached a prefix.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SearchEnd {
    Top,
    Bottom,
}

impl Dag {
    /// Whether a path leads down from `top` to `bottom`; `None` when the search would take too long.
    ///
    /// Searches from both ends in turn, edge by edge. It ends when the searches meet or when one of them is
    /// exhausted: a reader has few descendants, a source few ancestors, and either is enough.
    pub(crate) fn leads_down(&mut self, top: u32, bottom: u32) -> Option<bool> {
        if !self.has_children(top) {
            return Some(false);
        }
        let mut seen = HashMap::new();
        seen.extend([(top, SearchEnd::Top), (bottom, SearchEnd::Bottom)]);
        let mut down = vec![self.first_child_edge(top)];
        let mut up = vec![self.first_parent_edge(bottom)];
        for turn in 0..SEARCH_MAX {
            let (stack, from) = if turn % 2 == 0 {
                (&mut down, SearchEnd::Top)
            } else {
                (&mut up, SearchEnd::Bottom)
            };
            // Each entry is the next edge to follow of one list.
            while stack.last() == Some(&NONE) {
                stack.pop();
            }
            let Some(next) = stack.last_mut() else { return Some(false) };
            self.visited += 1;
            self.followed += 1;
            let edge = &self.edges[*next];
            let at = if from == SearchEnd::Top { edge.child } else { edge.parent };
            *next = if from == SearchEnd::Top { edge.next_sibling } else { edge.next_parent };
            match seen.insert(at, from) {
                Some(other) if other != from => return Some(true),
                Some(_) => {}
                None if from == SearchEnd::Top => stack.push(self.first_child_edge(at)),
                None => stack.push(self.first_parent_edge(at)),
            }
        }
        None
    }

    /// Makes room for one more parent: when there is none, drops deduced edges to dead prefixes. Returns the
    /// parents that lost their child, if there is room. The renewals that they granted are older than the
    /// renewal by the new edge.
    fn make_room(&mut self, n: u32) -> Option<Vec<u32>> {
        let full = |dag: &Dag| {
            let first = dag.first_parent_edge(n);
            first == NONE || dag.edges[first].behind as usize + 1 >= PARENTS_MAX
        };
        if !full(self) {
            return Some(Vec::new());
        }
        let (mut kept, mut dropped) = (Vec::new(), Vec::new());
        let mut e = self.first_parent_edge(n);
        while e != NONE {
            let Edge { parent, next_parent, deduced, .. } = self.edges[e];
            if deduced && !self.nodes[parent].live() {
                self.cut(kept.last().copied().unwrap_or(NONE), e);
                dropped.push(parent);
            } else {
                kept.push(e);
            }
            e = next_parent;
        }
        for (behind, &e) in kept.iter().rev().enumerate() {
            self.edges[e].behind = behind as u16;
        }
        (!full(self)).then_some(dropped)
    }

    /// Checks the edges to one prefix's parents; for `check_invariants`.
    pub(crate) fn check_parents(&self, n: u32) -> Result<(), String> {
        let edges: Vec<&Edge> = self.parent_edges(n).map(|e| &self.edges[e]).collect();
        let bounded = edges.iter().rev().enumerate().all(|(i, e)| e.behind as usize >= i);
        let named_first = edges.first().is_none_or(|e| !e.deduced || !self.nodes[n].live());
        if bounded && named_first && edges.len() <= PARENTS_MAX {
            return Ok(());
        }
        Err(format!("the parents of '{}' are {edges:?}", self.path_of(n)))
    }
}

impl Catalog {
    /// The session of `actor` consumes data of prefix `p`: adds the deduced edge.
    pub(crate) fn consume(&mut self, actor: Actor, p: u32) -> EdgeOutcome {
        let Some(session) = actor.session else { return EdgeOutcome::NotNeeded };
        let j = self.dag.nodes[p].job;
        let own = self.dag.by_id(session).filter(|&t| self.dag.nodes[t].job == j);
        let Some(t) = own.filter(|&t| self.dag.nodes[t].live()) else {
            return EdgeOutcome::Impossible;
        };
        if p == t || p == self.jobs[j].root || t == self.jobs[j].root {
            return EdgeOutcome::NotNeeded;
        }
        let holder = self.dag.child(p, &self.dag.nodes[t].name);
        if holder == Some(t) {
            return EdgeOutcome::There;
        }
        match self.dag.leads_down(t, p) {
            Some(false) => {}
            Some(true) => return EdgeOutcome::NotNeeded,
            None => return EdgeOutcome::Impossible,
        }
        // A dead prefix with a deduced edge does not occupy the name.
        let gone = |&h: &u32| {
            let name = &self.dag.nodes[h].name;
            !self.dag.nodes[h].live() && self.dag.named_child(p, name).is_none()
        };
        let evicted = holder.filter(gone);
        if holder.is_some() && evicted.is_none() {
            return EdgeOutcome::Impossible;
        }
        if self.dag.edges_of(j) >= EDGES_PER_JOB_MAX {
            return EdgeOutcome::Impossible;
        }
        let room = self.dag.make_room(t);
        let left: Vec<u32> = room.iter().flatten().copied().chain(evicted).collect();
        if let Some(holder) = evicted.filter(|_| room.is_some()) {
            self.dag.evict(holder, |parent| parent == p, self.now);
        }
        if room.is_some() && !Bug::EdgeForgotten.active() {
            self.dag.link_deduced(p, t);
            self.dag.nodes[t].stamp = self.now;
        }
        for n in left {
            self.collect(n);
        }
        if room.is_some() { EdgeOutcome::Added } else { EdgeOutcome::Impossible }
    }

    /// A prefix's named parents in their order, then the deduced ones in theirs.
    pub(crate) fn parents_in_order(&self, n: u32) -> Vec<PrefixId> {
        let edges = || self.dag.parent_edges(n).map(|e| &self.dag.edges[e]);
        let deduced: Vec<u32> = edges().filter(|e| e.deduced).map(|e| e.parent).collect();
        let named = edges().filter(|e| !e.deduced).map(|e| e.parent);
        named.chain(deduced.into_iter().rev()).map(|p| self.dag.nodes[p].id).collect()
    }
}
