//! The reference model of leases: stamps that are propagated at once, over plain sets (INV-12, 14).

use honeycomb_types::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Timers may fire this much late.
const SLACK: Duration = Duration::from_millis(50);

struct Node {
    parents: BTreeSet<String>,
    children: BTreeSet<String>,
    lease: Duration,
    until: Time,
    live: bool,
}

/// The prefixes of one job, by path.
#[derive(Default)]
pub struct LeaseModel {
    nodes: BTreeMap<String, Node>,
}

impl LeaseModel {
    /// A prefix was created: its creation renews it and its parents.
    pub fn created(&mut self, now: Time, path: &str, parents: &[String], lease: Duration) {
        for parent in parents {
            if let Some(node) = self.nodes.get_mut(parent) {
                node.children.insert(path.to_owned());
            }
        }
        let node = Node {
            parents: parents.iter().cloned().collect(),
            children: BTreeSet::new(),
            lease,
            until: now + lease,
            live: true,
        };
        self.nodes.insert(path.to_owned(), node);
        self.renewed(now, path);
    }

    /// A renewal reached the controller: the prefix, its parents, and all its descendants.
    pub fn renewed(&mut self, now: Time, path: &str) {
        let Some(node) = self.nodes.get(path).filter(|n| n.live) else { return };
        let mut reached: BTreeSet<String> = node.parents.clone();
        let mut below = vec![path.to_owned()];
        while let Some(next) = below.pop() {
            below.extend(self.nodes[&next].children.iter().cloned());
            reached.insert(next);
        }
        for path in reached {
            if let Some(node) = self.nodes.get_mut(&path) {
                node.until = node.until.max(now + node.lease);
            }
        }
    }

    /// Paths that should be live as far as this model knows.
    pub fn live(&self) -> Vec<String> {
        self.nodes.iter().filter(|(_, n)| n.live).map(|(path, _)| path.clone()).collect()
    }

    /// Judges what the catalog says of a prefix.
    pub fn observe(&mut self, now: Time, path: &str, live: bool) -> Result<(), String> {
        let node = self.nodes.get_mut(path).expect("only known prefixes are observed");
        if !live && node.live {
            node.live = false;
            if now < node.until {
                let early = node.until.since(now);
                return Err(format!("the lease of '{path}' ended {early:?} early"));
            }
        }
        if live && now > node.until + SLACK {
            let late = now.since(node.until);
            return Err(format!("'{path}' lives {late:?} beyond its lease"));
        }
        Ok(())
    }
}
