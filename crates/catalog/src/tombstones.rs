//! The reasons why data ended, recorded per job until it deregisters; the oldest is discarded first.

use crate::hash::HashKey;
use crate::{CatalogError, Loss};
use hashbrown::HashTable;
use honeycomb_types::{PrefixId, StructureId, Time};
use std::collections::VecDeque;
use std::sync::Arc;

/// The ended prefix or structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    Prefix(PrefixId),
    Structure(StructureId),
}

/// The reason.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    Expired {
        lease_ms: u32,
        late_ms: u64,
    },
    Removed,
    /// The last of its declared readers to commit.
    Read {
        reader: Arc<str>,
    },
    Lost {
        server: Arc<str>,
        how: Loss,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Tombstone {
    pub(crate) gone: Gone,
    /// The ended prefix, or the prefix of the structure.
    pub(crate) prefix: PrefixId,
    pub(crate) path: Arc<str>,
    pub(crate) name: Box<str>,
    pub(crate) cause: Cause,
    pub(crate) at: Time,
}

impl Tombstone {
    /// Lease, lateness and end, if a lease expired.
    pub(crate) fn expired(&self) -> Option<(u32, u64, Time)> {
        match self.cause {
            Cause::Expired { lease_ms, late_ms } => Some((lease_ms, late_ms, self.at)),
            _ => None,
        }
    }

    /// The error for a request; `reopen` when the job itself must be reopened first.
    pub(crate) fn error(&self, now: Time, reopen: bool) -> CatalogError {
        let path: Box<str> = (&*self.path).into();
        let ago_ms = now.since(self.at).as_millis() as u64;
        match (&self.cause, self.gone) {
            (&Cause::Expired { lease_ms, late_ms }, _) => {
                CatalogError::LeaseExpired { path, lease_ms, late_ms, ago_ms, reopen }
            }
            (Cause::Removed, Gone::Prefix(_)) => CatalogError::PrefixRemoved { path, ago_ms },
            (Cause::Removed, Gone::Structure(_)) => {
                CatalogError::StructureRemoved { path, name: self.name.clone(), ago_ms }
            }
            (Cause::Read { reader }, Gone::Prefix(_)) => {
                CatalogError::PrefixRead { path, reader: reader.clone(), ago_ms }
            }
            (Cause::Read { reader }, Gone::Structure(_)) => {
                let (name, reader) = (self.name.clone(), reader.clone());
                CatalogError::StructureRead { path, name, reader, ago_ms }
            }
            (Cause::Lost { server, how }, _) => {
                let (name, server, how) = (self.name.clone(), server.clone(), *how);
                CatalogError::DataLost { path, name, server, how, ago_ms }
            }
        }
    }

    fn id(&self) -> u64 {
        match self.gone {
            // Prefixes and structures have separate numbers: the complement keeps them apart here.
            Gone::Prefix(id) => id.0,
            Gone::Structure(id) => !id.0,
        }
    }

    fn bytes(&self) -> usize {
        size_of::<Tombstone>() + self.path.len() + self.name.len()
    }
}

/// The tombstones of one job.
#[derive(Debug, Default)]
pub(crate) struct Tombstones {
    ring: VecDeque<Tombstone>,
    /// Number of discarded tombstones: the number of the first in the ring.
    forgotten: u64,
    by_id: HashTable<u64>,
    by_name: HashTable<u64>,
    bytes: usize,
}

impl Tombstones {
    /// Adds a tombstone, and returns the one discarded for it.
    pub(crate) fn push(&mut self, key: HashKey, limit: usize, t: Tombstone) -> Option<Tombstone> {
        let forgotten = if self.ring.len() >= limit { self.forget(key) } else { None };
        let number = self.forgotten + self.ring.len() as u64;
        let (id_hash, name_hash) = (key.id(t.id()), key.name(t.prefix.0, &t.name));
        let structure = matches!(t.gone, Gone::Structure(_));
        self.bytes += t.bytes();
        self.ring.push_back(t);
        let Tombstones { ring, forgotten: first, by_id, by_name, .. } = self;
        let get = |number: u64| &ring[(number - *first) as usize];
        let t = get(number);
        // A structure that was to be flushed may expire first and be lost later.
        match by_id.find_mut(id_hash, |&n| get(n).gone == t.gone) {
            Some(latest) => *latest = number,
            None => {
                by_id.insert_unique(id_hash, number, |&n| key.id(get(n).id()));
            }
        }
        if structure {
            // Of several structures that had this address, the latest gives the reason.
            let same = |&n: &u64| get(n).prefix == t.prefix && get(n).name == t.name;
            match by_name.find_mut(name_hash, same) {
                Some(latest) => *latest = number,
                None => {
                    by_name.insert_unique(name_hash, number, |&n| {
                        key.name(get(n).prefix.0, &get(n).name)
                    });
                }
            }
        }
        forgotten
    }

    fn forget(&mut self, key: HashKey) -> Option<Tombstone> {
        let number = self.forgotten;
        let oldest = self.ring.front()?;
        let (id_hash, name_hash) = (key.id(oldest.id()), key.name(oldest.prefix.0, &oldest.name));
        if let Ok(entry) = self.by_id.find_entry(id_hash, |&n| n == number) {
            entry.remove();
        }
        if let Ok(entry) = self.by_name.find_entry(name_hash, |&n| n == number) {
            entry.remove();
        }
        self.forgotten += 1;
        let oldest = self.ring.pop_front();
        self.bytes -= oldest.as_ref().map_or(0, Tombstone::bytes);
        oldest
    }

    fn get(&self, number: u64) -> &Tombstone {
        &self.ring[(number - self.forgotten) as usize]
    }

    /// All of them, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Tombstone> {
        self.ring.iter()
    }

    pub(crate) fn find(&self, key: HashKey, gone: Gone) -> Option<&Tombstone> {
        let id = match gone {
            Gone::Prefix(id) => id.0,
            Gone::Structure(id) => !id.0,
        };
        let number = self.by_id.find(key.id(id), |&n| self.get(n).gone == gone)?;
        Some(self.get(*number))
    }

    /// The latest structure of this name that the prefix had.
    pub(crate) fn named(&self, key: HashKey, prefix: PrefixId, name: &str) -> Option<&Tombstone> {
        let number = self.by_name.find(key.name(prefix.0, name), |&n| {
            let t = self.get(n);
            t.prefix == prefix && &*t.name == name
        })?;
        Some(self.get(*number))
    }

    pub(crate) fn bytes(&self) -> usize {
        let spare = self.ring.capacity() - self.ring.len();
        let tables = self.by_id.allocation_size() + self.by_name.allocation_size();
        self.bytes + spare * size_of::<Tombstone>() + tables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tombstone(n: u64, name: &str) -> Tombstone {
        Tombstone {
            gone: Gone::Structure(StructureId(n)),
            prefix: PrefixId(1),
            path: "T1".into(),
            name: name.into(),
            cause: Cause::Removed,
            at: Time::ZERO,
        }
    }

    #[test]
    fn the_oldest_is_forgotten_and_the_latest_of_a_name_is_told() {
        let key = HashKey::new(7);
        let mut all = Tombstones::default();
        assert!(all.push(key, 2, tombstone(1, "a")).is_none());
        assert!(all.push(key, 2, tombstone(2, "a")).is_none());
        let forgotten = all.push(key, 2, tombstone(3, "b")).unwrap();
        assert_eq!(forgotten.gone, Gone::Structure(StructureId(1)));
        assert!(all.find(key, Gone::Structure(StructureId(1))).is_none());
        assert!(all.find(key, Gone::Structure(StructureId(2))).is_some());
        assert!(all.find(key, Gone::Prefix(PrefixId(2))).is_none());
        assert_eq!(all.named(key, PrefixId(1), "a").unwrap().gone, Gone::Structure(StructureId(2)));
        all.push(key, 2, tombstone(4, "b"));
        assert!(all.named(key, PrefixId(1), "a").is_none());
    }
}
