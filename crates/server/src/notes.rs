//! The messages between the threads of a server.

use crate::flush::ControllerRequest;
use crate::shard::{BlockMessage, BlockOwner, CallerAccess, Effect, MoveWord};
use crate::spill::{IoDone, IoId};
use honeycomb_block::{Pin, Shared};
use honeycomb_transport::{ConnId, Detached};
use honeycomb_types::{BlockAt, Generation, JobId, PrefixId, ServerId, SessionId, ShardIx, TierIx};
use honeycomb_wire::messages::{ActivePrefix, BlockUsage, HeldBlock, JournalAt};
use honeycomb_wire::{Grant, GrantKey, ReplyHeader, RequestHeader, Status, TokenKey};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A message to a shard.
pub(crate) enum Note {
    /// A connection whose handshake named this shard.
    Adopt(Detached, Peer),
    /// A request for a block of this shard that arrived at another core.
    Forward(Box<Forwarded>),
    /// The answer to a request that was forwarded from here.
    Returned(ConnId, ReplyHeader, Vec<u8>, OwnedPayload),
    /// A connection of that core is closed: its waiting requests here are cancelled.
    HungUp(ShardIx, ConnId),
    /// The server has joined under this number, with these keys.
    Joined { server: ServerId, token_key: TokenKey, grant_key: GrantKey, clock_offset_ms: i64 },
    /// A controller shard needs the list of its blocks here; the answer carries this number.
    Holdings { controller: u16, round: u64 },
    /// This controller shard no longer exists: its blocks here have no owner.
    Left(u16),
    /// The controller's clock minus the local one.
    ClockOffset(i64),
    /// The controller assigns a block; with the place of its journal, if changes are stored before they are
    /// answered.
    Open(BlockOwner, Option<Box<JournalAt>>, ControllerRequest),
    /// The journal of a block was begun, or could not be.
    JournalBegun(BlockAt, ControllerRequest, Result<(), (Status, String)>),
    /// The record with this number was written, or could not be.
    Journaled(BlockAt, u64, Result<(), String>),
    /// The controller takes a block back.
    Free(BlockAt, ControllerRequest),
    /// Write the content of a block (of a kv, of these hashes) to this object; confirmed when it is written.
    Flush(BlockAt, (u64, u64), String, ControllerRequest),
    /// As `Flush`, of a block that stays in use, for the flush with this number.
    Copy(BlockAt, (u64, u64), String, u64, ControllerRequest),
    /// The flush with this number has no more copies to make.
    EndCopies(u64, ControllerRequest),
    /// Freeze a block for this flush, of a kv with these hashes, at most for so long.
    Cut(BlockAt, (u64, u64), u64, Duration, ControllerRequest),
    /// End the freeze.
    Thaw(BlockAt, u64, ControllerRequest),
    /// Write the content that the block had when it was frozen.
    WriteCut(BlockAt, String, u64, ControllerRequest),
    /// Older grants of the prefix are revoked.
    SetGeneration(PrefixId, Generation, ControllerRequest),
    /// A message of the controller to a block.
    Message(BlockAt, BlockMessage, Option<ControllerRequest>),
    /// The controller's answer about a move to the block that requested it.
    Move(BlockAt, MoveWord),
    /// A neighbour will send its range to this block by this move.
    BeginImport(BlockAt, u64, (u64, u64), ControllerRequest),
    /// A block must leave this server.
    Evacuate(BlockAt, ControllerRequest),
    /// The block owns the data that this move sent to it, or drops the data.
    EndImport(BlockAt, u64, bool, ControllerRequest),
    /// The address of a server, or why the controller does not give it.
    Located(ServerId, Result<SocketAddr, Status>),
    /// The copy of a sealed block for mapping, or why there is none.
    Copied(BlockAt, Result<Shared, String>),
    /// The controller moves a block to this tier.
    Lower(BlockAt, TierIx, ControllerRequest),
    /// The outcome of an I/O operation on a disk.
    Io(IoId, IoDone),
    /// End the loop.
    Stop,
}

/// A payload that can be sent to another thread.
pub(crate) enum OwnedPayload {
    Bytes(Arc<[u8]>),
    Pinned(Pin),
}

/// A request in transit to the core that owns its block.
pub(crate) struct Forwarded {
    pub origin: ShardIx,
    pub from: ConnId,
    pub header: RequestHeader,
    pub access: CallerAccess,
    pub args: Vec<u8>,
    pub payload: Vec<u8>,
}

/// The facts that a connection's handshake has proven.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub session: SessionId,
    pub window: u16,
    /// `None` for the cluster's own token.
    pub job: Option<JobId>,
    /// The prefix whose lease the traffic renews.
    pub task: Option<PrefixId>,
    /// Whether the peer presented the unattenuated token of the cluster.
    pub cluster: bool,
    pub grants: Vec<Grant>,
    /// The round of activity reports in which this peer is already listed.
    pub listed: u64,
}

/// A message of a shard to the link.
pub(crate) enum LinkNote {
    /// The effects of a shard.
    Effects(Vec<Effect>),
    /// A shard's part of the next report.
    Report {
        shard: ShardIx,
        connections: u32,
        requests: u64,
        forwarded: u64,
        bytes_owed: u64,
        /// CPU time of its thread since its start.
        cpu: Duration,
        usage: Vec<BlockUsage>,
        active: Vec<ActivePrefix>,
    },
    /// The blocks that a shard holds for a controller shard, as of this note: earlier reports are contained
    /// in it.
    Holdings { controller: u16, shard: ShardIx, round: u64, blocks: Vec<HeldBlock> },
    /// A command of the controller is done, with the body of the reply, or failed.
    Done { errand: ControllerRequest, outcome: Result<Vec<u8>, (Status, String)> },
    /// End the loop.
    Stop,
    /// The server is to be drained.
    Leave,
}
