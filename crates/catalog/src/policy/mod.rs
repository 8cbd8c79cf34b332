//! Who may have memory, and which blocks: the policy behind the allocation mechanism of `pool`.
//!
//! The mechanism keeps the books (free lists, reserves, quotas, all or nothing; in `pressure`, what goes
//! below memory) and asks a policy where there is a choice.

mod karma;
mod max_min;

pub use karma::Karma;
pub use max_min::MaxMin;

use crate::weights::Weights;
use honeycomb_types::{JobId, PolicyKind, ServerId, ShardIx};

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

/// Whose blocks count together: a tenant's, by its place, or those of a job that is no tenant's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// All jobs of a tenant.
    Tenant(u32),
    /// A job of its own.
    Job(JobId),
}

/// What a holder has of memory, and may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Whose it is.
    pub holder: Holder,
    /// In proportion to those of the others; 1 and more.
    pub weight: u64,
    /// Blocks that it has in memory, without those on their way below.
    pub held: u64,
    /// Blocks that it wants there: those, and what it asks for; no more than its soft quota.
    pub wants: u64,
    /// Blocks of memory that nobody takes from it.
    pub entitled: u64,
}

/// Choices of the allocator. Deterministic: the same arguments get the same answer.
pub trait Policy: Send {
    /// Which one it is.
    fn kind(&self) -> PolicyKind;

    /// Sets what each holder is entitled to of so many blocks of memory. Together they are entitled to no
    /// more than there are, and each to no more than it wants. Asked of fair policies only.
    fn entitle(&self, shares: &mut [Share], memory: u64);

    /// So much time has passed as `limits::POLICY_QUANTUM` says, and everybody has had this.
    fn quantum(&mut self, _: &[Share], _: u64) {}

    /// What a holder has saved up, where a policy counts such a thing.
    fn credits(&self, _: Holder) -> i64 {
        0
    }

    /// The position in `servers` of the one that gives the next block; one with room exists: the
    /// emptiest. The lowest number decides between equals.
    fn server(&self, servers: &[ServerRoom]) -> usize {
        let mut best = 0;
        for (at, room) in servers.iter().enumerate() {
            if room.free > servers[best].free {
                best = at;
            }
        }
        best
    }

    /// The position in `shards` of the one that gives it; one with room exists: the one that the
    /// structure uses least, then the emptiest.
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

/// Who chooses for one allocation: the weights of the job, where it has some that can, else the policy.
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

/// First come, first served: whoever has memory keeps it, and pays with its own for more.
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
fn holder(n: usize) -> Holder {
    Holder::Job(JobId(n as u64 + 1))
}

/// Shares of so many who want so much, each with its weight.
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
