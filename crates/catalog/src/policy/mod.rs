//! The policy of the allocation mechanism of `pool`: it decides which holder may have memory, and which
//! blocks.
//!
//! The mechanism does the bookkeeping (free lists, reserves, quotas, all or nothing; in `pressure`,
//! demotions) and calls a policy where there is a choice.

mod karma;
mod max_min;

pub use karma::Karma;
pub use max_min::MaxMin;

use crate::weights::Weights;
use honeycomb_types::{JobId, PolicyKind, ServerId, ShardIx};

/// A server with room for the allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerRoom {
    /// The server.
    pub server: ServerId,
    /// Number of available blocks; more than 0 for an eligible server.
    pub free: u32,
}

/// A shard of the chosen server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardRoom {
    /// The shard.
    pub shard: ShardIx,
    /// Number of its free blocks; more than 0 for an eligible shard.
    pub free: u32,
    /// Number of blocks that this allocation has already taken here.
    pub taken: u32,
}

/// The owner of blocks that count together: a tenant, by its index, or a job without a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryHolder {
    /// All jobs of a tenant.
    Tenant(u32),
    /// A job without a tenant.
    Job(JobId),
}

/// The memory of a holder, and its entitlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The holder.
    pub holder: MemoryHolder,
    /// In proportion to those of the others; at least 1.
    pub weight: u64,
    /// The holder's blocks in memory, without those being demoted.
    pub held: u64,
    /// The demand for blocks in memory: the present blocks and the requested ones; at most the soft quota.
    pub wants: u64,
    /// Blocks of memory that are not taken from it.
    pub entitled: u64,
}

/// Choices of the allocator. Deterministic: the same arguments give the same result.
pub trait Policy: Send {
    /// The kind of the policy.
    fn kind(&self) -> PolicyKind;

    /// Sets the entitlement of each holder to this many blocks of memory. Their sum is at most that number,
    /// and each is at most the demand of its holder. Called for fair policies only.
    fn entitle(&self, shares: &mut [Share], memory: u64);

    /// Reports that a `limits::POLICY_QUANTUM` has passed, in which the holders had these shares.
    fn quantum(&mut self, _: &[Share], _: u64) {}

    /// The credits of a holder, for policies that use them.
    fn credits(&self, _: MemoryHolder) -> i64 {
        0
    }

    /// The index in `servers` of the server of the next block: the emptiest; one with room exists. The lowest
    /// number decides between equals.
    fn server(&self, servers: &[ServerRoom]) -> usize {
        let mut best = 0;
        for (at, room) in servers.iter().enumerate() {
            if room.free > servers[best].free {
                best = at;
            }
        }
        best
    }

    /// The index in `shards` of the shard of the next block: the one with the fewest blocks of the structure,
    /// then the emptiest; one with room exists.
    fn shard(&self, shards: &[ShardRoom]) -> usize {
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

/// The policy of this kind.
pub fn of(kind: PolicyKind) -> Box<dyn Policy> {
    match kind {
        PolicyKind::FirstCome => Box::new(FirstCome),
        PolicyKind::MaxMin => Box::new(MaxMin),
        PolicyKind::Karma => Box::<Karma>::default(),
    }
}

/// The choice for one allocation: by the weights of the job if they name a server with room, else by the
/// policy.
pub(crate) struct Chooser<'a> {
    pub(crate) policy: &'a dyn Policy,
    pub(crate) weights: Option<&'a mut Weights>,
}

impl Chooser<'_> {
    /// As `Policy::server`.
    pub(crate) fn server(&mut self, servers: &[ServerRoom]) -> usize {
        let weighted = self.weights.as_mut().and_then(|weights| weights.choose(servers));
        weighted.unwrap_or_else(|| self.policy.server(servers))
    }
}

/// First come, first served: a holder keeps its memory, and a request for more demotes its own blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstCome;

impl Policy for FirstCome {
    fn kind(&self) -> PolicyKind {
        PolicyKind::FirstCome
    }

    fn entitle(&self, shares: &mut [Share], _: u64) {
        shares.iter_mut().for_each(|share| share.entitled = share.held);
    }
}

/// The holders of tests, in order.
#[cfg(test)]
fn holder(n: usize) -> MemoryHolder {
    MemoryHolder::Job(JobId(n as u64 + 1))
}

/// Shares with these demands and weights.
#[cfg(test)]
fn shares(wants: &[(u64, u64)]) -> Vec<Share> {
    let share = |(n, &(wants, weight))| Share {
        holder: holder(n),
        weight,
        held: wants,
        wants,
        entitled: 0,
    };
    wants.iter().enumerate().map(share).collect()
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
