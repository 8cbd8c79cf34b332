//! What the threads of a server tell each other.

use crate::flush::Errand;
use crate::shard::{Access, BlockOwner, Effect, MoveWord};
use crate::spill::{IoDone, IoId};
use honeycomb_block::{Pin, Shared};
use honeycomb_structures::News;
use honeycomb_transport::{ConnId, Detached};
use honeycomb_types::{BlockAt, Generation, JobId, PrefixId, ServerId, SessionId, ShardIx, TierIx};
use honeycomb_wire::messages::{ActivePrefix, BlockUsage, HeldBlock, JournalAt};
use honeycomb_wire::{Grant, GrantKey, ReplyHeader, RequestHeader, Status, TokenKey};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// What other threads tell a shard.
pub(crate) enum Note {
    /// A connection whose handshake named this shard.
    Adopt(Detached, Peer),
    /// A request for a block of this shard that arrived elsewhere.
    Forward(Box<Forwarded>),
    /// The answer to a request that was forwarded from here.
    Returned(ConnId, ReplyHeader, Vec<u8>, OwnedPayload),
    /// A connection of that core is gone: what it sent here waits no longer.
    HungUp(ShardIx, ConnId),
    /// The server has joined under this name, with these keys.
    Joined { server: ServerId, token_key: TokenKey, grant_key: GrantKey, clock_offset_ms: i64 },
    /// A controller shard wants to know what is held here for it; answer with this number.
    Holdings { controller: u16, round: u64 },
    /// There is no such controller shard any more: what is held for it is nobody's.
    Left(u16),
    /// The controller's clock minus ours.
    ClockOffset(i64),
    /// The controller gives a block; and where its changes are written before they are answered, if they
    /// are.
    Open(BlockOwner, Option<Box<JournalAt>>, Errand),
    /// The journal of a block was begun, or could not be.
    JournalBegun(BlockAt, Errand, Result<(), (Status, String)>),
    /// The record of this number was written, or could not be.
    Journaled(BlockAt, u64, Result<(), String>),
    /// The controller takes a block.
    Free(BlockAt, Errand),
    /// The controller wants what a block holds (of a kv, of these hashes) in this object; confirmed
    /// when it is written.
    Flush(BlockAt, (u64, u64), String, Errand),
    /// The same of a block that goes on, for the flush of this number.
    Copy(BlockAt, (u64, u64), String, u64, Errand),
    /// Nothing is copied any more for that flush.
    EndCopies(u64, Errand),
    /// A block stands still for this flush, of a kv with these hashes, for so long at most.
    Cut(BlockAt, (u64, u64), u64, Duration, Errand),
    /// It goes on.
    Thaw(BlockAt, u64, Errand),
    /// Write what it held then.
    WriteCut(BlockAt, String, u64, Errand),
    /// Older grants of the prefix are revoked.
    SetGeneration(PrefixId, Generation, Errand),
    /// What the controller has to say to a block.
    Tell(BlockAt, News, Option<Errand>),
    /// What the controller says of a move to the block that asked.
    Move(BlockAt, MoveWord),
    /// A neighbour will send its range to this block by this move.
    BeginImport(BlockAt, u64, (u64, u64), Errand),
    /// A block is to leave this server.
    Evacuate(BlockAt, Errand),
    /// What a block was sent by this move is its own, or is dropped.
    EndImport(BlockAt, u64, bool, Errand),
    /// The controller has said where a server is, or why it does not.
    Located(ServerId, Result<SocketAddr, Status>),
    /// The copy of a sealed block that is to be mapped, or why there is none.
    Copied(BlockAt, Result<Shared, String>),
    /// The controller wants a block to go to this tier.
    Lower(BlockAt, TierIx, Errand),
    /// What became of something that was to be done on a disk.
    Io(IoId, IoDone),
    /// End the loop.
    Stop,
}

/// A payload that can change threads.
pub(crate) enum OwnedPayload {
    Bytes(Arc<[u8]>),
    Pinned(Pin),
}

/// A request on its way to the core that owns its block.
pub(crate) struct Forwarded {
    pub origin: ShardIx,
    pub from: ConnId,
    pub header: RequestHeader,
    pub access: Access,
    pub args: Vec<u8>,
    pub payload: Vec<u8>,
}

/// What a connection's handshake has proven.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub session: SessionId,
    pub window: u16,
    /// `None` for the cluster's own token.
    pub job: Option<JobId>,
    /// Whose lease the traffic renews.
    pub task: Option<PrefixId>,
    /// It showed the cluster's own token, which nobody has narrowed.
    pub cluster: bool,
    pub grants: Vec<Grant>,
    /// The round of activity reports in which this peer is already listed.
    pub listed: u64,
}

/// What the shards tell the link.
pub(crate) enum LinkNote {
    /// What a shard wants the controller to do.
    Effects(Vec<Effect>),
    /// A shard's part of the next report.
    Report {
        shard: ShardIx,
        connections: u32,
        requests: u64,
        forwarded: u64,
        bytes_owed: u64,
        /// CPU time of its thread since that began.
        cpu: Duration,
        usage: Vec<BlockUsage>,
        active: Vec<ActivePrefix>,
    },
    /// What a shard holds for a controller shard, as of this note: what it told before is in it.
    Holdings { controller: u16, shard: ShardIx, round: u64, blocks: Vec<HeldBlock> },
    /// What the controller asked is done, with the body of the reply, or could not be.
    Done { errand: Errand, outcome: Result<Vec<u8>, (Status, String)> },
    /// End the loop.
    Stop,
    /// The server wants to be taken out.
    Leave,
}
