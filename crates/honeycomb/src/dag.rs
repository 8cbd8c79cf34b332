//! A job's address DAG from one reply of the controller, for the commands that show it.

use crate::failure::{CommandResult, Failure};
use crate::size;
use honeycomb_types::{Kind, dotted_path, split_path};
use honeycomb_wire::messages::{PrefixInfo, StructureInfo};
use honeycomb_wire::{Durability, Status};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

/// The prefixes of a job, each with its children and structures, sorted by name.
pub struct JobDag {
    nodes: Vec<PrefixInfo>,
    children: Vec<Vec<usize>>,
    parents: Vec<Vec<usize>>,
}

impl JobDag {
    /// Reads a reply: parents before children, the root first.
    pub fn new(mut nodes: Vec<PrefixInfo>) -> JobDag {
        let places: HashMap<u64, usize> =
            nodes.iter().enumerate().map(|(i, node)| (node.prefix, i)).collect();
        let parents: Vec<Vec<usize>> = nodes
            .iter()
            .map(|node| node.parents.iter().filter_map(|p| places.get(p).copied()).collect())
            .collect();
        let mut children = vec![Vec::new(); nodes.len()];
        for (node, above) in parents.iter().enumerate() {
            for parent in above {
                children[*parent].push(node);
            }
        }
        for list in &mut children {
            list.sort_by(|a, b| nodes[*a].name.cmp(&nodes[*b].name));
        }
        for node in &mut nodes {
            node.structures.sort_by(|a, b| a.name.cmp(&b.name));
        }
        JobDag { nodes, children, parents }
    }

    /// All prefixes, parents before children.
    pub fn nodes(&self) -> &[PrefixInfo] {
        &self.nodes
    }

    /// The prefix with this index.
    pub fn node(&self, node: usize) -> &PrefixInfo {
        &self.nodes[node]
    }

    /// Its direct children, by name.
    pub fn children(&self, node: usize) -> &[usize] {
        &self.children[node]
    }

    /// The parent under which it is shown in full.
    pub fn first_parent(&self, node: usize) -> Option<usize> {
        self.parents[node].first().copied()
    }

    /// The prefix of a path; `NotFound` when there is none. An ended prefix is found while the controller
    /// remembers it.
    pub fn find(&self, path: &str) -> CommandResult<usize> {
        let literal = self.walk(&split_path(path)?);
        let found = literal.or_else(|| self.walk(&dotted_path(path)?));
        found.ok_or_else(|| {
            Failure::new(Status::NotFound, format!("there is no prefix '{path}' in this job"))
        })
    }

    fn walk(&self, parts: &[&str]) -> Option<usize> {
        if self.nodes.is_empty() {
            return None;
        }
        parts.iter().try_fold(0, |at, part| {
            self.children[at].iter().copied().find(|child| self.nodes[*child].name == *part)
        })
    }

    /// A path to a prefix, along the first parents.
    pub fn path(&self, node: usize) -> String {
        let mut parts = Vec::new();
        let mut at = node;
        while let Some(parent) = self.parents[at].first() {
            parts.push(self.nodes[at].name.as_str());
            at = *parent;
        }
        parts.reverse();
        parts.join("/")
    }

    /// A prefix and all its descendants, each once, parents before children.
    pub fn below(&self, top: usize) -> Vec<usize> {
        let mut seen = HashSet::from([top]);
        let mut waiting = vec![top];
        while let Some(node) = waiting.pop() {
            let new = self.children[node].iter().filter(|child| seen.insert(**child));
            waiting.extend(new);
        }
        let mut found: Vec<usize> = seen.into_iter().collect();
        found.sort_unstable();
        found
    }
}

impl JobDag {
    /// The live descendants of a prefix, each with its path from there, parents before children.
    pub fn paths_below(&self, top: usize) -> Vec<(usize, String)> {
        let mut paths: HashMap<usize, String> = HashMap::from([(top, String::new())]);
        let mut found = Vec::new();
        for node in self.below(top).into_iter().filter(|node| *node != top) {
            let above = self.parents[node].iter().find_map(|parent| paths.get(parent));
            let Some(above) = above else { continue };
            let name = &self.nodes[node].name;
            let path = if above.is_empty() { name.clone() } else { format!("{above}/{name}") };
            paths.insert(node, path.clone());
            if self.nodes[node].state == 0 {
                found.push((node, path));
            }
        }
        found
    }
}

/// The state of a prefix, in one word.
pub fn state(p: &PrefixInfo) -> &'static str {
    match p.state {
        0 => "live",
        1 => "expired",
        2 => "data lost",
        _ => "removed",
    }
}

/// The kind of a structure, in one word.
pub fn kind(s: &StructureInfo) -> &'static str {
    Kind::from_code(s.kind).map_or("unknown", Kind::name)
}

/// `closed` or `sealed` for a structure that accepts no more data; `None` for others.
pub fn ended(s: &StructureInfo) -> Option<&'static str> {
    let word = if s.kind == Kind::Queue.code() { "closed" } else { "sealed" };
    s.sealed.then_some(word)
}

/// The remaining readers of a prefix and its commit, for people.
pub fn readers(left: u32, committed: bool) -> String {
    let committed = if committed { ", committed" } else { "" };
    match left {
        0 => committed.into(),
        1 => format!(", freed by 1 reader{committed}"),
        left => format!(", freed by {left} readers{committed}"),
    }
}

/// The state of a prefix's flush, in one word; `none` when it has not begun or none is planned.
pub fn flush(p: &PrefixInfo) -> &'static str {
    match p.flush {
        0 => "none",
        1 => "writing",
        2 => "failing",
        3 => "done",
        _ => "lost",
    }
}

/// The flush target of a prefix and the state of its flush, for people.
fn flushes(p: &PrefixInfo) -> String {
    let why = if p.flush_message.is_empty() { "" } else { ": " };
    match p.flush {
        _ if p.flush_to.is_empty() => String::new(),
        0 if p.acknowledge == Durability::Flushed as u8 => {
            let outlives = if p.persist { ", outlives its job" } else { "" };
            format!("{outlives}, acknowledges writes when they are flushed to {}", p.flush_to)
        }
        0 if p.persist => format!(", outlives its job, at {}", p.flush_to),
        0 => format!(", to be flushed to {}", p.flush_to),
        3 => format!(", flushed to {}", p.flush_to),
        _ => format!(", flush to {} {}{why}{}", p.flush_to, flush(p), p.flush_message),
    }
}

/// A prefix's lease, readers and flush, for people.
pub fn lease(p: &PrefixInfo) -> String {
    let lease = match (p.state, p.pinned) {
        (0, true) => "pinned".into(),
        (0, false) => format!(
            "lease {}, {} left",
            size::duration(p.lease_ms as i64),
            size::duration(p.remaining_ms)
        ),
        _ => state(p).into(),
    };
    format!("{lease}{}{}", readers(p.readers_left, p.committed), flushes(p))
}

/// The remaining lease of a prefix, in milliseconds; `None` when it is pinned or has ended.
pub fn remaining_ms(p: &PrefixInfo) -> Option<i64> {
    (!p.pinned && p.state == 0).then_some(p.remaining_ms)
}

/// The JSON form of a structure in all commands.
pub fn structure_json(s: &StructureInfo) -> Value {
    json!({
        "structure": s.structure, "name": s.name, "kind": kind(s), "blocks": s.blocks,
        "bytes_used": s.bytes_used, "sealed": s.sealed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(id: u64, name: &str, parents: &[u64]) -> PrefixInfo {
        PrefixInfo { prefix: id, name: name.into(), parents: parents.into(), ..Default::default() }
    }

    #[test]
    fn a_prefix_with_two_parents_is_found_by_both_paths_and_counted_once() {
        let dag = JobDag::new(vec![
            prefix(10, "", &[]),
            prefix(11, "b", &[10]),
            prefix(12, "a", &[10]),
            prefix(13, "both", &[11, 12]),
            prefix(14, "v1.2", &[13]),
        ]);
        assert_eq!(dag.children(0), [2, 1]);
        assert_eq!(dag.find("a/both").unwrap(), 3);
        assert_eq!(dag.find("/b/both").unwrap(), 3);
        assert_eq!(dag.find("b.both").unwrap(), 3);
        assert_eq!(dag.find("a/both/v1.2").unwrap(), 4);
        assert_eq!(dag.find("").unwrap(), 0);
        assert_eq!(dag.path(4), "b/both/v1.2");
        assert_eq!(dag.below(0), [0, 1, 2, 3, 4]);
        assert_eq!(dag.below(2), [2, 3, 4]);
        assert_eq!(dag.find("a/none").unwrap_err().status(), Some(Status::NotFound));
    }
}
