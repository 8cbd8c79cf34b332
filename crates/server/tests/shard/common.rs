//! Shared by the tests and benchmarks of shards: a shard, a block that one job owns, and access rights to it.

use honeycomb_block::Reclaimer;
use honeycomb_server::{BlockOwner, CallerAccess, Shard, ShardConfig};
use honeycomb_types::limits::MOVING_MAX;
use honeycomb_types::{
    BlockAt, Generation, JobId, Kind, PrefixId, ServerId, SessionId, ShardIx, StructureId, Verbs,
};
use honeycomb_wire::Grant;
use honeycomb_wire::messages::OpenBlockRequest;

/// A shard whose blocks are all in memory.
pub fn config(block_size: usize, blocks: u32) -> ShardConfig {
    ShardConfig {
        shard: ShardIx(0),
        block_size,
        frames: blocks,
        lane_room: Default::default(),
        moving: MOVING_MAX,
        warm: 0,
        deltas: 0,
        disks: Vec::new(),
        buffers: 0,
        reclaimer: Reclaimer::inline(),
        kinds: Default::default(),
    }
}

pub fn shard(server: ServerId, config: ShardConfig) -> Shard {
    let mut shard = Shard::new(config);
    shard.owners().reset(server);
    shard
}

pub fn owner(at: BlockAt, kind: Kind, first: bool) -> BlockOwner {
    let message = OpenBlockRequest {
        block: at.block.0,
        epoch: at.epoch.0,
        job: 1,
        prefix: 1,
        structure: 1,
        generation: 1,
        kind: kind.code(),
        end: u64::MAX,
        first,
        ..OpenBlockRequest::default()
    };
    BlockOwner::try_from(&message).unwrap()
}

/// The access of the owner, or of another shard.
pub fn access(peer: bool) -> CallerAccess {
    let grant = Grant {
        job: JobId(1),
        prefix: PrefixId(1),
        structure: StructureId(1),
        verbs: Verbs::ALL,
        generation: Generation(1),
        expires_ms: u64::MAX,
    };
    CallerAccess { session: SessionId(7), window: 16, grant: Some(grant).filter(|_| !peer), peer }
}
