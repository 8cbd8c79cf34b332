//! Blocks that are copied while they are used, as the flush of a live prefix copies them.
//!
//! The simulator writes no manifests. Here any block is copied at any moment, whatever its tier and its
//! moves, and the copy is read at once.

use crate::server::SimServer;
use crate::world::World;
use honeycomb_env::Entropy;
use honeycomb_server::KeptFault;
use honeycomb_types::{BlockAt, Time};
use honeycomb_wire::Status;

/// One seed in this many copies blocks.
const COPYING: u64 = 3;
/// The number of each flush: only one copy exists at a time.
const FLUSH: u64 = 1;

/// When blocks are copied, and which. It draws nothing from the run itself, as `lots::controllers`.
pub struct Copies {
    entropy: Entropy,
    /// In events per million operations.
    rate: u64,
}

impl Copies {
    pub fn draw(seed: u64) -> Copies {
        let mut entropy = Entropy::seeded(seed ^ 0xc0b1_e500);
        let copies = entropy.below(COPYING) == 0;
        let rate = if copies { 10_000 + entropy.below(90_000) } else { 0 };
        Copies { entropy, rate }
    }
}

impl World {
    /// A flush copies a block.
    pub fn copy_block(&mut self) {
        let now = self.now;
        let Copies { entropy, rate } = &mut self.copies;
        if *rate == 0 || !entropy.chance(*rate) {
            return;
        }
        let server = entropy.below(self.servers.len() as u64) as usize;
        let server = &mut self.servers[server];
        if !server.alive {
            return;
        }
        let (mut held, below) = (server.held(), entropy.below(2) == 0);
        if below {
            held.retain(|at| !server.shard(*at).has_frame_for(*at));
        }
        held.sort_unstable_by_key(|at| (at.block.0, at.epoch.0));
        if held.is_empty() {
            return;
        }
        let at = held[entropy.below(held.len() as u64) as usize];
        match server.copied(now, at) {
            Ok(Some(0)) if below => self.reach("empty block copied below"),
            Ok(Some(_)) if below => self.reach("block copied below"),
            Ok(Some(_)) => self.reach("block copied"),
            Ok(None) => {}
            Err(broken) => self.broken(broken),
        }
    }
}

impl SimServer {
    /// The length of a block's copy, unless it is refused for now.
    fn copied(&mut self, now: Time, at: BlockAt) -> Result<Option<usize>, String> {
        let copy = self.shard(at).copy(at, (0, u64::MAX), FLUSH);
        let copy = match copy {
            Ok((copy, _)) => copy,
            // Retained for another flush, or a request is arriving.
            Err(refused) if matches!(refused.status, Status::WrongEpoch | Status::Busy) => {
                return Ok(None);
            }
            Err(refused) => return Err(format!("{at:?} cannot be copied: {refused:?}")),
        };
        let (parts, mut content) = (self.parts(at.block.shard().0), Vec::new());
        let read = copy.write(&parts, &mut content);
        self.shard(at).end_copies(now, at.block.server().controller(), FLUSH);
        match read {
            Ok(_) => Ok(Some(content.len())),
            // The end of a block in use may be rewritten, and a store may be away.
            Err(KeptFault::Away(_)) => Ok(None),
            Err(_) if !copy.is_settled() => Ok(None),
            Err(fault) => Err(format!("a copy of {at:?} cannot be read: {fault}")),
        }
    }
}
