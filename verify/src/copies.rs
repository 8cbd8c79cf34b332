//! Blocks whose content is taken while they are used, as the flush of a live prefix takes it.
//!
//! The simulator writes no manifests. Here any block is copied at any moment, whatever its tier and its
//! moves, and the copy is read at once. Some blocks are frozen for a checkpoint, thawed later, and asked for
//! their content at last: it must be that of the moment at which they were frozen.

use crate::server::SimServer;
use crate::world::World;
use honeycomb_env::Entropy;
use honeycomb_server::{BlockOwner, KeptBytes, KeptFault, NewUse, PresentUse};
use honeycomb_types::{BlockAt, Kind, Time};
use honeycomb_wire::Status;
use std::collections::BTreeSet;
use std::time::Duration;

/// One seed in this many copies blocks.
const COPYING: u64 = 3;
/// The number of each flush that copies: only one copy exists at a time.
const FLUSH: u64 = 1;
/// The number of each flush with a checkpoint: one block at a time has one.
const CHECKPOINT: u64 = 2;
/// One of this many times, a checkpoint begins or continues instead of a copy.
const CHECKPOINTS: u64 = 2;
/// The longest time for which a block is frozen, in microseconds. Often it is over before the thaw.
const FROZEN_MAX_US: u64 = 500_000;

/// A checkpoint of one block.
struct BlockCheckpoint {
    server: usize,
    at: BlockAt,
    /// The content when the block was frozen, if it was settled then.
    content: Option<Vec<u8>>,
    thawed: bool,
}

/// When blocks are copied, and which. It draws nothing from the run itself, as `lots::controllers`.
pub struct Copies {
    entropy: Entropy,
    /// In events per million operations.
    rate: u64,
    checkpoint: Option<BlockCheckpoint>,
}

impl Copies {
    pub fn draw(seed: u64) -> Copies {
        let mut entropy = Entropy::seeded(seed ^ 0xc0b1_e500);
        let copies = entropy.below(COPYING) == 0;
        let rate = if copies { 10_000 + entropy.below(90_000) } else { 0 };
        Copies { entropy, rate, checkpoint: None }
    }
}

impl World {
    /// A flush takes the content of a block.
    pub fn copy_block(&mut self) {
        let Copies { entropy, rate, .. } = &mut self.copies;
        if *rate == 0 || !entropy.chance(*rate) {
            return;
        }
        if entropy.below(CHECKPOINTS) == 0 {
            return self.continue_checkpoint();
        }
        let below = entropy.below(2) == 0;
        let Some((server, at)) = self.block_to_copy(below) else { return };
        match self.servers[server].copied(self.now, at) {
            Ok(Some(content)) if below && content.is_empty() => {
                self.reach("empty block copied below");
            }
            Ok(Some(_)) if below => self.reach("block copied below"),
            Ok(Some(_)) => self.reach("block copied"),
            Ok(None) => {}
            Err(broken) => self.broken(broken),
        }
    }

    /// No checkpoint is left after the work under faults.
    pub fn end_checkpoint(&mut self) {
        if let Some(BlockCheckpoint { server, at, .. }) = self.copies.checkpoint.take()
            && self.servers[server].alive
        {
            self.servers[server].end_flush(self.now, at, CHECKPOINT);
        }
    }

    /// Counts the exports that were begun or refused beside other uses of their blocks.
    pub fn count_overlaps(&mut self) {
        let shards = self.servers.iter().flat_map(SimServer::overlaps);
        let seen: BTreeSet<_> = shards.collect();
        for pair in seen {
            *self.stats.overlaps.entry(pair).or_default() += 1;
        }
    }

    /// A block of some server; one without a frame of memory, if it should be `below`.
    fn block_to_copy(&mut self, below: bool) -> Option<(usize, BlockAt)> {
        let entropy = &mut self.copies.entropy;
        let index = entropy.below(self.servers.len() as u64) as usize;
        let server = &mut self.servers[index];
        if !server.alive {
            return None;
        }
        let mut held = server.held();
        if below {
            held.retain(|at| !server.shard(*at).reports().has_frame_for(*at));
        }
        held.sort_unstable_by_key(|at| (at.block.0, at.epoch.0));
        let n = entropy.below((held.len() as u64).max(1)) as usize;
        held.get(n).map(|at| (index, *at))
    }

    /// A block is frozen, or thawed, or asked for its content.
    fn continue_checkpoint(&mut self) {
        let now = self.now;
        let Some(mut checkpoint) = self.copies.checkpoint.take() else {
            return self.begin_checkpoint();
        };
        let BlockCheckpoint { server, at, .. } = checkpoint;
        let server = &mut self.servers[server];
        if !server.alive {
            return;
        }
        if !checkpoint.thawed {
            let hold = Duration::from_millis(1);
            let other = server
                .shard(at)
                .on_exports(now, |work| work.checkpoint(at, (0, u64::MAX), CHECKPOINT + 1, hold));
            // If its time was over, the other one takes its place.
            server.end_flush(now, at, CHECKPOINT + 1);
            if other.is_ok() {
                return server.end_flush(now, at, CHECKPOINT);
            }
            checkpoint.thawed = server.shard(at).on_exports(now, |work| work.thaw(at, CHECKPOINT));
            let thawed = checkpoint.thawed;
            self.note(|| format!("{} is thawed: {thawed}", at.block));
            let server = &mut self.servers[checkpoint.server];
            if !checkpoint.thawed {
                // Its time was over, or the block is gone.
                return server.end_flush(now, at, CHECKPOINT);
            }
            self.copies.checkpoint = Some(checkpoint);
            return;
        }
        match server.checkpoint_content(now, at) {
            Ok(Some(content)) => {
                self.reach("checkpoint of a block in use");
                if let Some(then) = checkpoint.content.filter(|then| *then != content) {
                    let first = then.iter().zip(&content).position(|(a, b)| a != b);
                    let (before, after) = (then.len(), content.len());
                    self.broken(format!(
                        "{at:?}: a checkpoint of {after} bytes is not the content when it was \
                         frozen, of {before} bytes; the first difference is at {first:?}"
                    ));
                }
            }
            Ok(None) => {}
            Err(broken) => self.broken(broken),
        }
    }

    fn begin_checkpoint(&mut self) {
        let now = self.now;
        let below = self.copies.entropy.below(4) == 0;
        let Some((index, at)) = self.block_to_copy(below) else { return };
        let hold = Duration::from_micros(1 + self.copies.entropy.below(FROZEN_MAX_US));
        let server = &mut self.servers[index];
        // Extents have no checkpoint: they are retained while that of their kv exists.
        let of_extents = |owner: &BlockOwner| owner.at == at && owner.kind == Kind::Extents;
        let is_of_extents = server.shard(at).reports().inventory().any(of_extents);
        if is_of_extents {
            return;
        }
        let frozen = server
            .shard(at)
            .on_exports(now, |work| work.checkpoint(at, (0, u64::MAX), CHECKPOINT, hold));
        // While a payload is arriving, the block is frozen and cannot be thawed with its content.
        if frozen.is_err() {
            return server.end_flush(now, at, CHECKPOINT);
        }
        match server.copied(now, at) {
            Ok(content) => {
                self.note(|| format!("{} is frozen for {hold:?}", at.block));
                let (server, thawed) = (index, false);
                self.copies.checkpoint = Some(BlockCheckpoint { server, at, content, thawed });
            }
            Err(broken) => self.broken(broken),
        }
    }
}

impl SimServer {
    /// The pairs of a present use and a new export of a block that have occurred since the server started.
    fn overlaps(&self) -> impl Iterator<Item = (PresentUse, NewUse)> {
        self.shards.iter().flat_map(|shard| shard.reports().overlaps())
    }

    /// The content of a block's copy, unless it is refused for now.
    fn copied(&mut self, now: Time, at: BlockAt) -> Result<Option<Vec<u8>>, String> {
        let copy = match self.shard(at).on_exports(now, |work| work.copy(at, (0, u64::MAX), FLUSH))
        {
            Ok((copy, _)) => copy,
            // Retained for another flush, or a request is arriving.
            Err(refused) if matches!(refused.status, Status::WrongEpoch | Status::Busy) => {
                return Ok(None);
            }
            Err(refused) => return Err(format!("{at:?} cannot be copied: {refused:?}")),
        };
        self.content_of(now, &copy, FLUSH)
    }

    /// The content of a block that was frozen, unless it is refused for now.
    fn checkpoint_content(&mut self, now: Time, at: BlockAt) -> Result<Option<Vec<u8>>, String> {
        match self.shard(at).on_exports(now, |work| work.checkpoint_content(at, CHECKPOINT)) {
            Ok((copy, _)) => self.content_of(now, &copy, CHECKPOINT),
            // The block was freed, or its server has lost its controller or has another number.
            Err(refused) => {
                self.end_flush(now, at, CHECKPOINT);
                match refused.status {
                    Status::WrongEpoch | Status::NotFound | Status::UnknownBlock => Ok(None),
                    _ => Err(format!("{at:?} has no checkpoint: {refused:?}")),
                }
            }
        }
    }

    fn content_of(
        &mut self,
        now: Time,
        copy: &KeptBytes,
        flush: u64,
    ) -> Result<Option<Vec<u8>>, String> {
        let (parts, mut content) = (self.parts(copy.at.block.shard().0), Vec::new());
        let read = copy.write(&parts, &mut content);
        self.end_flush(now, copy.at, flush);
        match read {
            Ok(_) => Ok(Some(content)),
            // The end of a block in use may be rewritten, and a store may be away.
            Err(KeptFault::Away(_)) => Ok(None),
            Err(_) if !copy.is_settled() => Ok(None),
            Err(fault) => Err(format!("a copy of {:?} cannot be read: {fault}", copy.at)),
        }
    }

    fn end_flush(&mut self, now: Time, at: BlockAt, flush: u64) {
        self.shard(at)
            .on_exports(now, |work| work.end_copies(at.block.server().controller(), flush));
    }
}
