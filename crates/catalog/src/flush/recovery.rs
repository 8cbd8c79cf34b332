//! Flushes and the log: what it is told of them, and how they go on after a restart.
//!
//! The log has a flush from before its first `FlushBlock` is sent until the manifest is in its place or
//! the data is lost. A recovered one begins where it was: its blocks are kept again, each server that
//! comes back is asked for the parts of which nothing says that they are written, and the manifest is
//! asked for once everybody is back. All of that may have been done before: a part is the same object
//! with the same bytes, because nobody reached its block since, and the manifest the same manifest.

use super::{Barrier, Flush, Live, Part, PartState, Sweep};
use crate::durable::{BadRecord, FlushImage, KeptImage, LiveImage};
use crate::reply::FlushState;
use crate::{Catalog, Effect, Written};
use hashbrown::HashSet;
use honeycomb_types::{BlockId, ServerId};
use std::collections::{BTreeMap, BTreeSet};

/// A flush, one of its parts, and what was written of that.
type PartWritten = (u64, usize, Vec<Written>);

/// What the log has not been told of flushes.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    pub(crate) on: bool,
    /// Those that began, lost a part or ended.
    changed: BTreeSet<u64>,
    /// Those that are being copied, as far as names were given.
    live: BTreeSet<u64>,
    /// Sweeps that began, got on or ended.
    swept: BTreeSet<u64>,
    /// Parts of others that are on disk.
    parts: Vec<PartWritten>,
}

impl Unwritten {
    pub(crate) fn changed(&mut self, number: u64) {
        if self.on {
            self.changed.insert(number);
        }
    }

    pub(crate) fn wrote(&mut self, number: u64, part: usize, objects: &[Written]) {
        if self.on {
            self.parts.push((number, part, objects.into()));
        }
    }

    pub(crate) fn lives(&mut self, number: u64) {
        if self.on {
            self.live.insert(number);
        }
    }

    /// Those to be written as they stand, if they are still being copied.
    pub(crate) fn take_live(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.live)
    }

    pub(crate) fn swept(&mut self, number: u64) {
        if self.on {
            self.swept.insert(number);
        }
    }

    /// Sweeps to be written as they stand, if they are still there.
    pub(crate) fn take_swept(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.swept)
    }

    /// All of it: flushes to be written as they stand, if they are still there, and parts of others.
    pub(crate) fn take(&mut self) -> (BTreeSet<u64>, Vec<PartWritten>) {
        let changed = std::mem::take(&mut self.changed);
        let mut parts = std::mem::take(&mut self.parts);
        parts.retain(|(number, ..)| !changed.contains(number));
        (changed, parts)
    }
}

impl Catalog {
    pub(crate) fn flush_image(&self, number: u64) -> Option<FlushImage> {
        let flush = self.flushes.all.get(&number)?;
        let kept = |part: &Part| KeptImage { at: part.at, range: part.range, state: part.state };
        Some(FlushImage {
            number,
            prefix: flush.prefix,
            directory: flush.directory.clone(),
            job_name: flush.job_name.clone(),
            address: flush.address.clone(),
            below: flush.below.clone(),
            group: flush.group,
            ended: flush.ended,
            ids: flush.ids.clone(),
            structures: flush.structures.clone(),
            blocks: flush.parts.iter().map(kept).collect(),
        })
    }

    pub(crate) fn sweep_of(&self, number: u64) -> Option<&Sweep> {
        self.flushes.sweeps.get(&number)
    }

    /// Numbers of the sweeps under way.
    pub(crate) fn sweep_numbers(&self) -> impl Iterator<Item = u64> {
        self.flushes.sweeps.keys().copied()
    }

    /// Numbers of the flushes under way.
    pub(crate) fn flush_numbers(&self) -> impl Iterator<Item = u64> {
        self.flushes.all.keys().copied()
    }

    /// Takes the flushes of a recovered catalog, in their order. Their blocks are nobody's yet.
    pub(crate) fn recover_flushes(
        &mut self,
        images: BTreeMap<u64, FlushImage>,
    ) -> Result<(), BadRecord> {
        for (number, image) in images {
            let FlushImage {
                prefix,
                directory,
                job_name,
                address,
                below,
                group,
                ended,
                ids,
                structures,
                blocks,
                ..
            } = image;
            let mut parts = Vec::with_capacity(blocks.len());
            let mut kept = blocks.into_iter();
            for (s, structure) in structures.iter().enumerate() {
                for (p, (told, block)) in structure.parts.iter().zip(&mut kept).enumerate() {
                    let KeptImage { at, range, state } = block;
                    // A server that had written its part may be gone; the block of a part that is none
                    // is somebody else's.
                    let theirs = !matches!(state, PartState::Absent | PartState::Copied);
                    let kept = theirs && self.pool.recover_kept(at);
                    if !kept && state == PartState::Waits {
                        let what =
                            format!("flush {number:016x} has {}, which is not there", at.block);
                        return Err(BadRecord { what });
                    }
                    let object = format!("{directory}/{}", told.name).into();
                    let place = (s, p);
                    if theirs {
                        self.flushes.blocks.insert(at, (number, parts.len()));
                        self.flushes.keeps(at);
                    }
                    parts.push(Part { at, range, object, place, state, attempts: 0 });
                }
            }
            let copied = |part: &Part| part.state == PartState::Copied;
            let live = !parts.is_empty() && parts.iter().all(copied);
            let left = parts.iter().filter(|part| part.state == PartState::Waits).count();
            self.flushes.queues.entry(directory.clone()).or_default().push_back(number);
            let flush = Flush {
                prefix,
                directory,
                job_name,
                address,
                below,
                ids,
                structures,
                parts,
                left,
                live,
                group,
                ended,
                committing: None,
                attempts: 0,
                error: None,
            };
            self.flushes.all.insert(number, flush);
            if !live {
                self.set_state(prefix, FlushState::Writing);
            }
        }
        Ok(())
    }

    pub(crate) fn live_image(&self, number: u64) -> Option<LiveImage> {
        let live = self.flushes.live.get(&number)?;
        Some(LiveImage {
            number,
            prefix: live.prefix,
            job: live.job,
            directory: live.directory.clone(),
            address: live.address.clone(),
            below: live.below.clone(),
            claims: live.claims,
            group: live.group,
            noted: live.noted,
            extents: live.extents.clone(),
        })
    }

    /// Numbers of those that are being copied.
    pub(crate) fn live_numbers(&self) -> impl Iterator<Item = u64> {
        self.flushes.live.keys().copied()
    }

    /// What was being copied is copied anew, when servers are back: nothing says what they held then.
    pub(crate) fn recover_live(&mut self, image: LiveImage) {
        let LiveImage {
            number,
            prefix,
            job,
            directory,
            address,
            below,
            claims,
            group,
            noted,
            extents,
        } = image;
        if claims {
            self.flushes.claimed.insert((&*directory).into());
        }
        if group == number {
            self.flushes.barriers.insert(group, Barrier::new(below.len() + 1));
        }
        let mut live = Live::new(prefix, job, directory, (address, below), claims, noted, extents);
        live.group = group;
        self.flushes.live.insert(number, live);
    }

    /// A server is back and has told what it holds: it is asked for the parts that it has not written.
    pub(crate) fn resume_parts(
        &mut self,
        server: ServerId,
        told: &HashSet<BlockId>,
        effects: &mut Vec<Effect>,
    ) {
        let mut ready = Vec::new();
        for (&number, flush) in &mut self.flushes.all {
            let own = flush.parts.iter_mut();
            let own = own.filter(|part| part.at.block.server() == server);
            let own = own.filter(|part| part.state != PartState::Copied);
            for part in own {
                if !told.contains(&part.at.block) {
                    self.flushes.blocks.remove(&part.at);
                    // A block of a structure that its server does not hold was never opened: nobody
                    // wrote to it, and it has no part. If its part is written, the object is there all
                    // the same.
                    if part.state == PartState::Waits {
                        part.state = PartState::Absent;
                        flush.left -= 1;
                        self.flushes.unwritten.changed(number);
                    }
                } else if part.state == PartState::Waits {
                    effects.push(part.effect());
                }
            }
            if flush.left == 0 {
                ready.push(number);
            }
        }
        for number in ready {
            self.commit_flush(number, effects);
        }
    }

    /// Everybody is back who comes back: manifests may be written.
    pub(crate) fn resume_commits(&mut self, effects: &mut Vec<Effect>) {
        let numbers: Vec<u64> = self.flush_numbers().collect();
        for number in numbers {
            self.commit_flush(number, effects);
        }
    }
}
