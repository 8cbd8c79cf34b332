//! Flushes and the log: their records, and their continuation after a restart.
//!
//! The log has a flush from before its first `FlushBlock` is sent until the manifest is written or the data
//! is lost. A recovered flush continues: its blocks are retained again, each reconnected server receives
//! requests for the parts not recorded as written, and the manifest is requested once every server is back.
//! All of that may have been done before. A repeated part is the same object with the same bytes, because no
//! client could reach its block since, and a repeated manifest is the same manifest.

use super::{Barrier, BlockFlush, Flush, Live, PartState, Sweep};
use crate::durable::{BadRecord, FlushImage, KeptImage, LiveImage};
use crate::reply::FlushState;
use crate::{Catalog, Effect, Written};
use hashbrown::HashSet;
use honeycomb_types::{BlockId, ServerId};
use std::collections::{BTreeMap, BTreeSet};

/// A flush, one of its parts, and the objects written for it.
type PartWritten = (u64, usize, Vec<Written>);

/// Changes of flushes that are not logged yet.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    pub(crate) on: bool,
    /// Flushes that began, lost a part or ended.
    changed: BTreeSet<u64>,
    /// Flushes that are being copied, when the range of assigned names changed.
    live: BTreeSet<u64>,
    /// Sweeps that began, progressed or ended.
    swept: BTreeSet<u64>,
    /// Written parts of other flushes.
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

    /// Flushes to log in their present state, if they are still being copied.
    pub(crate) fn take_live(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.live)
    }

    pub(crate) fn swept(&mut self, number: u64) {
        if self.on {
            self.swept.insert(number);
        }
    }

    /// Sweeps to log in their present state, if they still exist.
    pub(crate) fn take_swept(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.swept)
    }

    /// Flushes to log in their present state, if they still exist, and written parts of others.
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
        let kept =
            |part: &BlockFlush| KeptImage { at: part.at, range: part.range, state: part.state };
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

    /// Adopts the flushes of a recovered catalog, in their order. Their blocks have no owner yet.
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
                for (p, (part, block)) in structure.parts.iter().zip(&mut kept).enumerate() {
                    let KeptImage { at, range, state } = block;
                    // A server that had written its part may be lost; the block of a part that is `Absent` or
                    // `Copied` may have another owner.
                    let theirs = !matches!(state, PartState::Absent | PartState::Copied);
                    let kept = theirs && self.pool.recover_kept(at);
                    if !kept && state == PartState::Waits {
                        let what =
                            format!("flush {number:016x} has {}, which does not exist", at.block);
                        return Err(BadRecord { what });
                    }
                    let object = format!("{directory}/{}", part.name).into();
                    let place = (s, p);
                    if theirs {
                        self.flushes.blocks.insert(at, (number, parts.len()));
                        self.flushes.keeps(at);
                    }
                    parts.push(BlockFlush { at, range, object, place, state, attempts: 0 });
                }
            }
            let copied = |part: &BlockFlush| part.state == PartState::Copied;
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

    /// Numbers of the flushes that are being copied.
    pub(crate) fn live_numbers(&self) -> impl Iterator<Item = u64> {
        self.flushes.live.keys().copied()
    }

    /// An interrupted copy begins again when servers are back: the moments of the earlier copies are lost.
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

    /// A server is back and has reported its blocks: it receives requests for the parts that it has not
    /// written.
    pub(crate) fn resume_parts(
        &mut self,
        server: ServerId,
        reported: &HashSet<BlockId>,
        effects: &mut Vec<Effect>,
    ) {
        let mut ready = Vec::new();
        for (&number, flush) in &mut self.flushes.all {
            let own = flush.parts.iter_mut();
            let own = own.filter(|part| part.at.block.server() == server);
            let own = own.filter(|part| part.state != PartState::Copied);
            for part in own {
                if !reported.contains(&part.at.block) {
                    self.flushes.blocks.remove(&part.at);
                    // A block of a structure that its server does not hold was never opened: it received no
                    // writes, and has no part. If its part is written, the object exists all the same.
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

    /// All servers that will return are back: manifests may be written.
    pub(crate) fn resume_commits(&mut self, effects: &mut Vec<Effect>) {
        let numbers: Vec<u64> = self.flush_numbers().collect();
        for number in numbers {
            self.commit_flush(number, effects);
        }
    }
}
