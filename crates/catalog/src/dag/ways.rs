//! Searches along edges, from prefixes to their ancestors.
//!
//! A search that answers about many prefixes follows each edge once for all of them: the rights to the paths
//! of a renewal, and the cycles by the parents of a new prefix, cost at most one visit of all edges of the
//! job (INV-57).

use super::Dag;
use crate::slab::NONE;
use hashbrown::HashMap;
use honeycomb_types::Time;

/// The edges that a search for a way follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ways {
    All,
    /// Edges that a plan named: use must not change rights.
    Named,
}

/// Edges to ancestors that are followed before the results for other prefixes are used.
const NEAR_EDGES: u64 = 8;

/// The latest renewals of prefixes that are due at a time, and of their ancestors.
#[derive(Debug, Default)]
pub(crate) struct AncestorRenewals {
    latest: HashMap<u32, Known>,
    /// Number of edges that were followed for all of them together: each at most twice.
    shared: u64,
    /// Edges may be followed again.
    is_repeated: bool,
}

/// The latest renewal of a prefix and of all above it, or an earlier one.
#[derive(Clone, Copy, Debug)]
struct Known {
    latest: Time,
    is_exact: bool,
}

/// A prefix on the way up.
struct Ascent {
    at: u32,
    /// The next edge to a parent.
    next: u32,
    /// The latest renewal found above it.
    above: Time,
    /// Edges to its parents that were followed.
    followed: u64,
}

impl Ascent {
    fn of(at: u32, next: u32) -> Ascent {
        Ascent { at, next, above: Time::ZERO, followed: 0 }
    }
}

impl AncestorRenewals {
    pub(crate) fn shared(&self) -> u64 {
        self.shared
    }

    /// A prefix was renewed.
    pub(crate) fn renewed(&mut self) {
        self.latest = HashMap::new();
        self.is_repeated = true;
    }

    /// The search ends at a renewal above this prefix, which further searches find here.
    fn at_least(&mut self, visit: &Ascent, latest: Time) {
        let known = Known { latest, is_exact: false };
        match self.latest.insert(visit.at, known) {
            Some(earlier) => assert!(!earlier.is_exact, "INV-12: an exact time is searched again"),
            None if self.is_repeated => {}
            None => self.shared += visit.followed,
        }
    }
}

/// The meaning of the marks of prefixes.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// The greatest mark in use.
    last: u32,
    /// The search to which the last two marks belong: prefixes with the last one reach this prefix on these
    /// ways, and prefixes with the one before do not. `None` if prefixes or edges have changed since.
    found: Option<(u32, Ways)>,
}

impl Marks {
    /// Prefixes or edges have changed.
    pub(super) fn forget(&mut self) {
        self.found = None;
    }
}

impl Dag {
    /// Returns the first of `count` marks that no prefix has.
    fn new_marks(&mut self, count: u32) -> u32 {
        self.marks.forget();
        if self.marks.last > u32::MAX - count {
            self.nodes.iter_mut().for_each(|node| node.mark = 0);
            self.marks.last = 0;
        }
        self.marks.last += count;
        self.marks.last - count + 1
    }

    /// The latest renewal that reaches a prefix from its ancestors, by way of first parents first. The search
    /// ends at a renewal at `enough` or later, and after `most` edges: the result is then a lower bound.
    pub(super) fn latest_above(&mut self, n: u32, enough: Time, most: u64) -> Time {
        let mark = self.new_marks(1);
        let (mut latest, mut left) = (Time::ZERO, most);
        // The edges from `n` up to the prefix that is searched now.
        let mut way = std::mem::take(&mut self.stack);
        way.clear();
        let mut e = self.nodes[n].first_parent;
        while latest < enough && left > 0 {
            if e == NONE {
                let Some(below) = way.pop() else { break };
                e = self.edges[below].next_parent;
                continue;
            }
            left -= 1;
            let edge = &self.edges[e];
            let node = &mut self.nodes[edge.parent];
            if std::mem::replace(&mut node.mark, mark) == mark {
                e = edge.next_parent;
                continue;
            }
            self.visited += 1;
            latest = latest.max(node.stamp).max(node.carried_above);
            way.push(e);
            e = node.first_parent;
        }
        self.followed += most - left;
        self.stack = way;
        latest
    }

    /// The same without a limit of edges. The results for ancestors serve further prefixes, as long as no
    /// prefix is renewed or created, and only edges to prefixes without children are removed.
    pub(super) fn latest_above_each(
        &mut self,
        n: u32,
        enough: Time,
        found: &mut AncestorRenewals,
    ) -> Time {
        match found.latest.get(&n) {
            Some(known) if known.is_exact || known.latest >= enough => return known.latest,
            _ => {}
        }
        let before = self.followed;
        let near = self.latest_above(n, enough, NEAR_EDGES);
        if near >= enough || self.followed - before < NEAR_EDGES {
            return near;
        }
        let mut way = vec![Ascent::of(n, self.nodes[n].first_parent)];
        loop {
            let visit = way.last_mut().expect("the way begins with the prefix itself");
            if visit.next != NONE {
                self.followed += 1;
                visit.followed += 1;
                let edge = &self.edges[visit.next];
                visit.next = edge.next_parent;
                let node = &self.nodes[edge.parent];
                let known = found.latest.get(&edge.parent);
                let known = known.filter(|known| known.is_exact || known.latest >= enough);
                let latest = known.map_or(node.stamp.max(node.carried_above), |known| known.latest);
                if latest >= enough {
                    way[1..].iter().for_each(|visit| found.at_least(visit, latest));
                    return latest;
                }
                visit.above = visit.above.max(latest);
                if known.is_none() {
                    self.visited += 1;
                    way.push(Ascent::of(edge.parent, node.first_parent));
                }
                continue;
            }
            let Ascent { at, above, followed, .. } = *visit;
            let node = &self.nodes[at];
            let latest = above.max(node.stamp).max(node.carried_above);
            found.latest.insert(at, Known { latest, is_exact: true });
            way.pop();
            let Some(below) = way.last_mut() else { return above };
            below.above = below.above.max(latest);
            found.shared += if found.is_repeated { 0 } else { followed };
        }
    }

    /// Whether `n` is `top`, or one of these ways leads from it up to `top`. Then `stack` has the edges of
    /// one such way, from `n` on, up to a prefix that was found to reach `top`.
    ///
    /// While no edge changes, further searches for the same `top` do not visit a prefix again.
    pub(crate) fn reaches(&mut self, n: u32, top: u32, ways: Ways) -> bool {
        if self.marks.found != Some((top, ways)) {
            let no = self.new_marks(2);
            self.nodes[top].mark = no + 1;
            self.marks.found = Some((top, ways));
        }
        let (no, yes) = (self.marks.last - 1, self.marks.last);
        let mut way = std::mem::take(&mut self.stack);
        way.clear();
        let found = match self.nodes[n].mark {
            mark if mark == yes => true,
            mark if mark == no => false,
            _ => self.climb(n, ways, (no, yes), &mut way),
        };
        self.stack = way;
        found
    }

    fn climb(&mut self, n: u32, ways: Ways, (no, yes): (u32, u32), way: &mut Vec<u32>) -> bool {
        self.visited += 1;
        self.nodes[n].mark = no;
        let mut e = self.nodes[n].first_parent;
        loop {
            if e == NONE {
                let Some(below) = way.pop() else { return false };
                e = self.edges[below].next_parent;
                continue;
            }
            self.followed += 1;
            let edge = &self.edges[e];
            let node = &mut self.nodes[edge.parent];
            let skipped = ways == Ways::Named && edge.deduced || node.mark == no;
            if skipped {
                e = edge.next_parent;
                continue;
            }
            way.push(e);
            if node.mark == yes {
                break;
            }
            self.visited += 1;
            node.mark = no;
            e = node.first_parent;
        }
        for e in way {
            self.nodes[self.edges[*e].child].mark = yes;
        }
        true
    }

    /// The prefixes on one way down from `top` to the first of `bottoms` to which one leads, both included.
    pub(crate) fn way_down(&mut self, top: u32, bottoms: &[u32]) -> Option<Vec<u32>> {
        self.marks.forget(); // Only the top is known to reach itself: the way found is whole.
        let bottom = *bottoms.iter().find(|&&bottom| self.reaches(bottom, top, Ways::All))?;
        let above = self.stack.iter().rev().map(|e| self.edges[*e].parent);
        Some(above.chain([bottom]).collect())
    }

    /// Keeps in a prefix the renewals that reach its descendants from its ancestors, which it is about to
    /// lose (INV-12). When one command has visited `CARRIED_EDGES_MAX` edges for this, the descendants of
    /// the prefixes that remain count as renewed now.
    pub(super) fn carry_above(&mut self, n: u32, now: Time) {
        if !self.has_children(n) {
            return;
        }
        let before = self.followed;
        let found = self.latest_above(n, Time::NEVER, self.carries_left);
        self.carries_left -= self.followed - before;
        let above = if self.carries_left == 0 { now } else { found };
        let node = &mut self.nodes[n];
        node.carried_above = node.carried_above.max(above);
    }
}
