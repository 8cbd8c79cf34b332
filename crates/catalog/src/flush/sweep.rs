//! Deletion of the objects of failed flushes.
//!
//! A flush that is lost with a server leaves the objects of other servers, which no manifest names. The
//! catalog knew their names before the first was written, so any available server can delete them by name; a
//! listing would cost more, and may be stale. They are deleted three times: at once; after
//! `FLUSH_SWEEP_SOON`, for objects that others were writing just then; and after `FLUSH_SWEEP_AGAIN`, because
//! a write request may arrive long after it was cancelled.

use super::{Again, Flush, PartState, pause};
use crate::{Catalog, CatalogError, Effect, Reply};
use honeycomb_types::limits::{FLUSH_OBJECT_MAX, FLUSH_SWEEP_AGAIN, FLUSH_SWEEP_SOON};
use honeycomb_types::{ServerId, flush_object};
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

/// Number of names in one request.
const AT_A_TIME: usize = 10_000;
/// The pause before each deletion of all names.
const PAUSES: [Duration; 3] = [Duration::ZERO, FLUSH_SWEEP_SOON, FLUSH_SWEEP_AGAIN];

/// Objects to delete.
#[derive(Clone, Debug)]
pub(crate) struct Sweep {
    pub(crate) directory: Arc<str>,
    pub(crate) names: Vec<Box<str>>,
    /// Number of completed passes over all of them.
    pub(crate) passes: u8,
    /// Number of names done in this pass.
    done: usize,
    asked: Option<ServerId>,
    attempts: u32,
}

impl Sweep {
    pub(crate) fn new(directory: Arc<str>, names: Vec<Box<str>>, passes: u8) -> Sweep {
        Sweep { directory, names, passes, done: 0, asked: None, attempts: 0 }
    }
}

impl Catalog {
    /// A flush failed: deletes the objects that it may have written. The objects of a block, of up to
    /// `FLUSH_OBJECT_MAX` each, are cut between records, so that any two consecutive objects together are
    /// larger than this limit; the records take at most so many bytes more than the block
    /// (`flushed_items_max`).
    pub(super) fn begin_sweep(&mut self, number: u64, flush: &Flush, effects: &mut Vec<Effect>) {
        let most = 2 * self.block_size.div_ceil(FLUSH_OBJECT_MAX) as usize + 1;
        let mut names = Vec::new();
        let parts = flush.structures.iter().flat_map(|s| &s.parts);
        for (told, part) in parts.zip(&flush.parts) {
            let objects = match part.state {
                PartState::Absent => 0,
                PartState::Written | PartState::Copied => told.objects.len(),
                PartState::Waits => most,
            };
            names.extend((0..objects).map(|i| Box::from(flush_object(&told.name, i))));
        }
        if names.is_empty() {
            return;
        }
        self.flushes.sweeps.insert(number, Sweep::new(flush.directory.clone(), names, 0));
        self.flushes.unwritten.swept(number);
        self.sweep(number, effects);
    }

    /// Deletes the objects of these names.
    pub(crate) fn sweep_names(
        &mut self,
        directory: Arc<str>,
        names: Vec<Box<str>>,
        effects: &mut Vec<Effect>,
    ) {
        let number = self.number_of_flush();
        self.flushes.sweeps.insert(number, Sweep::new(directory, names, 0));
        self.flushes.unwritten.swept(number);
        self.sweep(number, effects);
    }

    /// Sends the next names to a server.
    pub(super) fn sweep(&mut self, number: u64, effects: &mut Vec<Effect>) {
        let able = |&(_, server): &(ServerId, &crate::pool::Server)| server.flush;
        let any = self.pool.servers().find(able).map(|(id, _)| id);
        let any = any.filter(|_| !self.recovering());
        let Some(sweep) = self.flushes.sweeps.get_mut(&number).filter(|s| s.asked.is_none()) else {
            return;
        };
        let Some(server) = any else {
            let again = self.now + pause(sweep.attempts);
            sweep.attempts += 1;
            return self.flushes.retries.push(Reverse((again, number, Again::Sweep)));
        };
        sweep.asked = Some(server);
        let names = sweep.names[sweep.done..].iter().take(AT_A_TIME).cloned().collect();
        let directory = sweep.directory.clone();
        effects.push(Effect::SweepObjects { server, number, directory, names });
    }

    pub(crate) fn swept(
        &mut self,
        server: ServerId,
        number: u64,
        outcome: Result<(), &str>,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        self.heard_from(server);
        let known = self.flushes.sweeps.get_mut(&number);
        let Some(sweep) = known.filter(|sweep| sweep.asked == Some(server)) else {
            return Ok(Reply::Done);
        };
        sweep.asked = None;
        if outcome.is_err() {
            let again = self.now + pause(sweep.attempts);
            sweep.attempts += 1;
            self.flushes.retries.push(Reverse((again, number, Again::Sweep)));
            return Ok(Reply::Done);
        }
        sweep.attempts = 0;
        sweep.done += AT_A_TIME.min(sweep.names.len() - sweep.done);
        if sweep.done < sweep.names.len() {
            self.sweep(number, effects);
            return Ok(Reply::Done);
        }
        (sweep.done, sweep.passes) = (0, sweep.passes + 1);
        match PAUSES.get(sweep.passes as usize) {
            Some(&pause) => {
                self.flushes.retries.push(Reverse((self.now + pause, number, Again::Sweep)));
            }
            None => drop(self.flushes.sweeps.remove(&number)),
        }
        self.flushes.unwritten.swept(number);
        Ok(Reply::Done)
    }

    /// Sends the requests of lost servers to other servers.
    pub(super) fn lose_sweeps(
        &mut self,
        is_gone: impl Fn(ServerId) -> bool,
        effects: &mut Vec<Effect>,
    ) {
        let hit =
            self.flushes.sweeps.iter_mut().filter(|(_, sweep)| sweep.asked.is_some_and(&is_gone));
        let hit: Vec<u64> = hit.map(|(number, sweep)| (sweep.asked = None, *number).1).collect();
        hit.into_iter().for_each(|number| self.sweep(number, effects));
    }

    /// Adopts the deletions of a recovered catalog; they begin again when servers are back.
    pub(crate) fn recover_sweep(&mut self, number: u64, sweep: Sweep) {
        // The pause begins again: a write may still be on its way.
        let pause = PAUSES.get(sweep.passes as usize).copied().unwrap_or_default();
        self.flushes.sweeps.insert(number, sweep);
        self.flushes.retries.push(Reverse((self.now + pause, number, Again::Sweep)));
    }
}
