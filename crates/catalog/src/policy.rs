//! Who may have blocks, and which ones: the policy behind the allocation mechanism of `pool`.
//!
//! The mechanism keeps the books (free lists, reserves, quotas, all or nothing) and asks a policy
//! where there is a choice. A fair policy (max-min, Karma) is another implementation of `Policy`.

use crate::weights::Weights;
use honeycomb_types::{JobId, ServerId, ShardIx};

/// A server that could give a block to the allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerRoom {
    /// The server.
    pub server: ServerId,
    /// Blocks that it could give; more than 0 for one that may be chosen.
    pub free: u32,
}

/// A shard of the server that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardRoom {
    /// The shard.
    pub shard: ShardIx,
    /// Its free blocks; more than 0 for one that may be chosen.
    pub free: u32,
    /// Blocks that this allocation has taken here already.
    pub taken: u32,
}

/// What a policy may know of the job that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobShare {
    /// The job.
    pub job: JobId,
    /// Blocks that it holds.
    pub held: u64,
    /// Blocks that could be given to anyone who asks for the like: without the reserves, except for
    /// a move.
    pub available: u64,
}

/// Choices of the allocator. Deterministic: the same arguments get the same answer.
pub trait Policy: Send {
    /// How many of `asked` blocks the job may take now. Less than all of them refuses the
    /// allocation as `OutOfMemory`. Quotas were checked before.
    fn admit(&mut self, share: JobShare, asked: u32) -> u32;

    /// The position in `servers` of the one that gives the next block; one with room exists.
    fn server(&mut self, servers: &[ServerRoom]) -> usize;

    /// The position in `shards` of the one that gives it; one with room exists.
    fn shard(&mut self, shards: &[ShardRoom]) -> usize;
}

/// Who chooses for one allocation: the weights of the job, where it has some that can, else the policy.
pub(crate) struct Chooser<'a> {
    pub(crate) policy: &'a mut dyn Policy,
    pub(crate) weights: Option<&'a mut Weights>,
}

impl Chooser<'_> {
    /// As `Policy::server`.
    pub(crate) fn server(&mut self, servers: &[ServerRoom]) -> usize {
        let weighted = self.weights.as_mut().and_then(|weights| weights.choose(servers));
        weighted.unwrap_or_else(|| self.policy.server(servers))
    }
}

/// First come, first served; the emptiest server, and there the shard that the structure uses
/// least, then the emptiest. The lowest number decides between equals.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstCome;

impl Policy for FirstCome {
    fn admit(&mut self, _: JobShare, asked: u32) -> u32 {
        asked
    }

    fn server(&mut self, servers: &[ServerRoom]) -> usize {
        let mut best = 0;
        for (at, room) in servers.iter().enumerate() {
            if room.free > servers[best].free {
                best = at;
            }
        }
        best
    }

    fn shard(&mut self, shards: &[ShardRoom]) -> usize {
        let better = |a: &ShardRoom, b: &ShardRoom| {
            (a.free > 0, b.taken, a.free) > (b.free > 0, a.taken, b.free)
        };
        let mut best = 0;
        for (at, room) in shards.iter().enumerate() {
            if better(room, &shards[best]) {
                best = at;
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emptiest_server_gives_and_shards_take_turns() {
        let server = |n, free| ServerRoom { server: ServerId(n), free };
        assert_eq!(FirstCome.server(&[server(1, 3), server(2, 5), server(3, 5)]), 1);
        let shard = |n, free, taken| ShardRoom { shard: ShardIx(n), free, taken };
        assert_eq!(FirstCome.shard(&[shard(0, 9, 1), shard(1, 2, 0)]), 1);
        assert_eq!(FirstCome.shard(&[shard(0, 0, 0), shard(1, 1, 4)]), 1);
        assert_eq!(FirstCome.shard(&[shard(0, 4, 1), shard(1, 4, 1), shard(2, 5, 1)]), 2);
    }
}
