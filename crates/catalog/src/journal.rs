//! Prefixes whose changes are acknowledged after they are stored.
//!
//! Each has a journal at the place to which it would be flushed, with a tag that is never reused.
//! Servers begin the journal with the first block of a structure, before any client learns of the
//! structure, and refuse if the place already has another journal. From then on the journal holds
//! every acknowledged change, independent of failures of servers and controllers.
//!
//! The journal is deleted when the data is discarded, and when a complete flush of the prefix replaces it.
//! Where memory was lost, the journal is the only copy: the catalog then never deletes it, and no flush
//! replaces it.
//!
//! Such a prefix stays in place: its blocks are neither demoted nor moved to other servers, since the journal
//! names the blocks in which a structure continues.

use crate::command::{ACKNOWLEDGE_FLUSHED, ACKNOWLEDGE_MEMORY};
use crate::reply::JournalAt;
use crate::{Catalog, CatalogError, Effect, NewStructure, PrefixOptions};
use honeycomb_types::{KindAttributes, journal_sweep};
use std::sync::Arc;

/// Whether a prefix of this acknowledgement class has a journal.
pub(crate) fn journaled(acknowledge: u8) -> Result<bool, CatalogError> {
    match acknowledge {
        ACKNOWLEDGE_MEMORY => Ok(false),
        ACKNOWLEDGE_FLUSHED => Ok(true),
        given => Err(CatalogError::InvalidArgument {
            what: "acknowledge",
            given: given.into(),
            allowed: "it is 0 (memory) or 2 (flushed)",
        }),
    }
}

impl PrefixOptions<'_> {
    /// Whether it has an external place: its own path unless `flush_to` names another.
    pub(crate) fn is_placed(&self) -> bool {
        self.persist || self.acknowledge == ACKNOWLEDGE_FLUSHED
    }
}

impl Catalog {
    /// Assigns the tag of the journal of a new prefix.
    pub(crate) fn begin_journal(&mut self, n: u32) {
        let run = self.flushes.lineage.replace(|c: char| !c.is_ascii_alphanumeric(), ".");
        let tag = format!("{run}.{:016x}", self.dag.nodes[n].id.0);
        let special = self.dag.special.get_mut(&n).expect("a special prefix has an entry");
        special.journal = tag.into();
    }

    /// Whether its changes are acknowledged after they are stored.
    pub(crate) fn is_journaled(&self, n: u32) -> bool {
        self.dag.special.get(&n).is_some_and(|special| !special.journal.is_empty())
    }

    /// Refuses a place to which an earlier flush is being written, or where an earlier journal is being
    /// deleted.
    pub(crate) fn need_unflushed(&self, path: &str, directory: &str) -> Result<(), CatalogError> {
        if self.flushes.is_written(directory) {
            return Err(CatalogError::FlushPathTaken { path: path.into() });
        }
        if self.flushes.is_swept(directory) {
            return Err(CatalogError::JournalGoes { path: path.into() });
        }
        Ok(())
    }

    /// Refuses a structure whose changes cannot be acknowledged as its prefix requires.
    pub(crate) fn need_journalable(
        &self,
        n: u32,
        new: &NewStructure<'_>,
        attributes: KindAttributes,
    ) -> Result<(), CatalogError> {
        if !self.is_journaled(n) {
            return Ok(());
        }
        if !attributes.journals {
            return Err(CatalogError::NotJournaled { path: new.path.into(), kind: new.kind });
        }
        match self.dag.nodes[n].data_lost {
            true => {
                let place = self.directory_of(n).unwrap_or_default().into();
                Err(CatalogError::OnlyInJournal { path: new.path.into(), place })
            }
            false => Ok(()),
        }
    }

    /// The journal of a structure's blocks, if it has one.
    pub(crate) fn journal_at(&self, s: u32) -> Option<Arc<JournalAt>> {
        let structure = &self.structures[s];
        let n = structure.prefix;
        let special = self.dag.special.get(&n).filter(|special| !special.journal.is_empty())?;
        Some(Arc::new(JournalAt {
            directory: self.directory_of(n)?.into(),
            tag: special.journal.clone(),
            job_name: self.jobs[structure.job].name.clone(),
            address: self.dag.path_of(n).into(),
            name: structure.name.clone(),
        }))
    }

    /// Whether a flush of the whole prefix may replace its journal: not if data is lost, nor if a
    /// structure's journal may never have begun, because the place may then have another journal.
    pub(crate) fn may_cover_journal(&self, n: u32) -> bool {
        if !self.is_journaled(n) {
            return true;
        }
        let begun = |s: u32| {
            let first = self.structures[s].entries[0].block;
            self.pool.is_open(self.pool.at(first))
        };
        let mut structures = self.structures_of(n).peekable();
        !self.dag.nodes[n].data_lost && structures.peek().is_some() && structures.all(begun)
    }

    /// The data of a prefix is discarded: deletes its journal. Where data was lost, the journal is kept so
    /// that it can be loaded.
    pub(crate) fn drop_journal(&mut self, n: u32, effects: &mut Vec<Effect>) {
        if self.is_journaled(n) && !self.dag.nodes[n].data_lost {
            let stem = self.dag.special[&n].journal.clone();
            self.sweep_journal(n, &stem, effects);
        }
    }

    /// The same for one structure.
    pub(crate) fn drop_journal_of(&mut self, s: u32, effects: &mut Vec<Effect>) {
        let n = self.structures[s].prefix;
        if self.is_journaled(n) {
            let tag = &self.dag.special[&n].journal;
            let stem = format!("{tag}-{:016x}", self.structures[s].id.0);
            self.sweep_journal(n, &stem, effects);
        }
    }

    fn sweep_journal(&mut self, n: u32, stem: &str, effects: &mut Vec<Effect>) {
        let directory = self.directory_of(n).expect("a journal has its place");
        self.sweep_names(directory.into(), vec![journal_sweep(stem).into()], effects);
    }
}
