//! A job's address DAG: read in one reply of the controller, and extended by missing prefixes.

use crate::{Client, Error};
use honeycomb_types::{Address, JobId, dotted_path, split_path};
use honeycomb_wire::Status;
use honeycomb_wire::messages::{PrefixInfo, PrefixOptions};
use std::collections::{HashMap, HashSet};

/// A job, and a client with rights for it.
#[derive(Clone, Copy)]
pub struct JobClient<'a> {
    /// The client.
    pub client: &'a Client,
    /// The job.
    pub job: JobId,
}

impl JobClient<'_> {
    /// The job's DAG as it is now. Blocks; errors are those of `Client::tree`.
    pub fn dag(self) -> Result<JobDag, Error> {
        Ok(JobDag::new(self.client.tree(self.job)?))
    }

    /// Creates the missing prefixes of an address, from the root on. Blocks; if a prefix cannot be created,
    /// those before it remain. Errors are those of `Client::create_prefix`, without `AlreadyExists`.
    pub fn ensure_prefix(self, address: &str) -> Result<(), Error> {
        let parts = split_path(Address::parse(address)?.path)?;
        for depth in 1..=parts.len() {
            let path = format!("/{}", parts[..depth].join("/"));
            match self.client.create_prefix(self.job, &path, &[], PrefixOptions::default()) {
                Ok(_) | Err(Error { status: Status::AlreadyExists, .. }) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

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
    pub fn find(&self, path: &str) -> Result<usize, Error> {
        let literal = self.walk(&split_path(path)?);
        let found = literal.or_else(|| self.walk(&dotted_path(path)?));
        found.ok_or_else(|| {
            Error::new(Status::NotFound, format!("there is no prefix '{path}' in this job"))
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
        // No path is longer; parents that form a cycle, which no controller sends, would never end.
        while let Some(parent) = self.parents[at].first()
            && parts.len() < self.nodes.len()
        {
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
        assert_eq!(dag.find("a/none").unwrap_err().status, Status::NotFound);
    }

    #[test]
    fn parents_that_form_a_cycle_end_every_walk() {
        let dag =
            JobDag::new(vec![prefix(10, "", &[]), prefix(11, "a", &[12]), prefix(12, "b", &[11])]);
        assert_eq!(dag.path(1), "a/b/a");
        assert_eq!(dag.below(0), [0]);
        assert_eq!(dag.below(1), [1, 2]);
        assert_eq!(dag.find("a").unwrap_err().status, Status::NotFound);
    }
}
