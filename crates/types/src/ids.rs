//! Identifiers. Each has its own type, so that an epoch cannot be passed as a version.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:x}", self.0)
            }
        }
    };
}

id!(
    /// A job: the controller shard (top 16 bits) that owns it, and a counter that never repeats.
    JobId, u64
);
id!(
    /// A prefix, the node of a job's address DAG. This is the identity; names are labels.
    PrefixId, u64
);
id!(
    /// A structure (file, kv) under a prefix.
    StructureId, u64
);
id!(
    /// A move of a range between two blocks of a structure; the controller numbers moves in the
    /// same way as structures. See [`MoveId::NONE`].
    MoveId, u64
);
id!(
    /// A memory server as a controller shard (top 8 bits) knows it, numbered (24 bits) when it
    /// joins that shard; a restart gets a new number.
    ServerId, u32
);
id!(
    /// One core's share of a memory server.
    ShardIx, u8
);
id!(
    /// An ownership of a block: controller term (top 24 bits) and counter. Never reused, so that a
    /// stale handle cannot reach the next owner (INV-01).
    Epoch, u64
);
id!(
    /// The scope within which a client's retries are recognised. Chosen at random by the client.
    SessionId, u128
);
id!(
    /// One session's ordered stream of mutations to one block.
    LaneId, u32
);
id!(
    /// Position of a mutation in its lane; the first is 1.
    Sequence, u64
);
id!(
    /// Version of a structure's partition map. Only grows.
    MapVersion, u64
);
id!(
    /// Version of a prefix's permissions: incrementing it revokes every earlier grant.
    Generation, u32
);

impl JobId {
    /// The controller shard that owns it.
    pub fn controller(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

impl StructureId {
    /// The controller shard that owns it.
    pub fn controller(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

impl ServerId {
    /// The id by which this controller shard knows the `n`th server that joined it.
    pub fn new(controller: u16, n: u32) -> ServerId {
        assert!(controller < 1 << 8 && n < 1 << 24, "server out of range: {controller}.{n}");
        ServerId(u32::from(controller) << 24 | n)
    }

    /// The controller shard that assigned this id.
    pub fn controller(self) -> u16 {
        (self.0 >> 24) as u16
    }
}

impl MoveId {
    /// No move: no move has this number.
    pub const NONE: MoveId = MoveId(0);
}

/// A block's name: the server (top 32 bits), its shard (8 bits) and the index there (24 bits).
///
/// Routing needs only the id: the shard that owns a block is a permanent part of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct BlockId(pub u64);

impl BlockId {
    /// Largest index of a block within its shard.
    pub const MAX_INDEX: u32 = (1 << 24) - 1;

    /// Composes the name of block `index` of `shard` of `server`.
    pub fn new(server: ServerId, shard: ShardIx, index: u32) -> BlockId {
        assert!(index <= BlockId::MAX_INDEX, "block index {index} does not fit 24 bits");
        BlockId((server.0 as u64) << 32 | (shard.0 as u64) << 24 | index as u64)
    }

    /// The server that holds the block.
    pub fn server(self) -> ServerId {
        ServerId((self.0 >> 32) as u32)
    }

    /// The shard of that server.
    pub fn shard(self) -> ShardIx {
        ShardIx((self.0 >> 24) as u8)
    }

    /// The index within the shard.
    pub fn index(self) -> u32 {
        self.0 as u32 & BlockId::MAX_INDEX
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "B{}.{}.{}", self.server().0, self.shard().0, self.index())
    }
}

/// A block and its ownership: every data request names both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct BlockAt {
    /// The block.
    pub block: BlockId,
    /// One of its successive owners.
    pub epoch: Epoch,
}

impl BlockAt {
    /// The block with these numbers, as messages carry them.
    pub const fn of(block: u64, epoch: u64) -> BlockAt {
        BlockAt { block: BlockId(block), epoch: Epoch(epoch) }
    }
}

impl Epoch {
    /// The epoch with this controller term and counter.
    pub fn new(term: u32, counter: u64) -> Epoch {
        assert!(term < 1 << 24 && counter < 1 << 40, "epoch out of range: {term}.{counter}");
        Epoch((term as u64) << 40 | counter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_names_keep_their_parts() {
        let id = BlockId::new(ServerId(7), ShardIx(3), 0xABCDEF);
        assert_eq!((id.server(), id.shard(), id.index()), (ServerId(7), ShardIx(3), 0xABCDEF));
        assert_eq!(id.to_string(), "B7.3.11259375");
    }

    #[test]
    fn epochs_of_a_later_term_are_greater() {
        assert!(Epoch::new(2, 0) > Epoch::new(1, (1 << 40) - 1));
    }
}
