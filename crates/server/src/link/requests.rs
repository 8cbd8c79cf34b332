//! The shards' requests to the controller, and its answers.

use super::{Link, PendingRequest};
use crate::notes::Note;
use crate::shard::{BlockMessage, Effect, MoveWord};
use honeycomb_structures::{Capacity, Successor};
use honeycomb_transport::Net;
use honeycomb_types::{BlockAt, ServerId, ShardIx, StructureId};
use honeycomb_wire::Field;
use honeycomb_wire::data::MovedArgs;
use honeycomb_wire::messages::{
    BeginMoveReply, BeginMoveRequest, BlockFailedRequest, CancelMoveRequest, CommitMoveReply,
    CommitMoveRequest, GrowBlockReply, GrowBlockRequest, GrowStructureReply, GrowStructureRequest,
    LocateServerReply, LocateServerRequest, QueueTakenRequest, RaiseBlockRequest,
    RetireBlockRequest, ReturnBlockRequest, SealBlockRequest, TierChangedRequest,
};
use honeycomb_wire::{Op, ReplyHeader, Status};
use std::net::{SocketAddr, ToSocketAddrs};

impl Link {
    /// Sends an effect of a shard to the controller shard.
    pub(crate) fn effect(&mut self, net: &mut Net, effect: Effect) {
        if !self.ready {
            return self.keep(effect);
        }
        assert!(self.conn.is_some(), "INV-20: {effect:?} is sent without a connection");
        match effect {
            Effect::Grow { structure, at } => {
                let (structure, block, epoch) = names(structure, at);
                let body = GrowStructureRequest { structure, block, epoch };
                self.ask(net, Op::GrowStructure, &body, PendingRequest::Grow(at));
            }
            Effect::Enlarge { structure, at, bytes } => {
                let (structure, block, epoch) = names(structure, at);
                let body = GrowBlockRequest { structure, block, epoch, bytes };
                self.ask(net, Op::GrowBlock, &body, PendingRequest::Enlarge(at));
            }
            Effect::Sealed { structure, at, length, bytes, last } => {
                let (structure, block, epoch) = names(structure, at);
                let body = SealBlockRequest { structure, block, epoch, length, bytes, last };
                self.ask(net, Op::SealBlock, &body, PendingRequest::Told);
            }
            Effect::Taken { structure, at, items, bytes } => {
                let (structure, block, epoch) = names(structure, at);
                let body = QueueTakenRequest { structure, block, epoch, items, bytes };
                self.ask(net, Op::QueueTaken, &body, PendingRequest::Taken(at));
            }
            Effect::Return { structure, at, ref successor } => {
                let entry = MovedArgs::decode(successor).expect("the shard decoded it").entry;
                let (structure, block, epoch) = names(structure, at);
                let body = ReturnBlockRequest {
                    structure,
                    block,
                    epoch,
                    successor: entry.block,
                    successor_epoch: entry.epoch,
                };
                self.ask(net, Op::ReturnBlock, &body, PendingRequest::Repeated(effect));
            }
            Effect::BeginMove { structure, at, start, way } => {
                let (structure, block, epoch) = names(structure, at);
                let body = BeginMoveRequest { structure, block, epoch, start, way: way as u8 };
                self.ask(net, Op::BeginMove, &body, PendingRequest::Begin(at));
            }
            Effect::CommitMove { structure, at, id, target, bytes } => {
                let (structure, block, epoch) = names(structure, at);
                let body = CommitMoveRequest {
                    structure,
                    block,
                    epoch,
                    move_id: id,
                    target: target.block.0,
                    target_epoch: target.epoch.0,
                    bytes,
                };
                self.ask(net, Op::CommitMove, &body, PendingRequest::Commit(at));
            }
            Effect::CancelMove { structure, at, id } => {
                let (structure, block, epoch) = names(structure, at);
                let body = CancelMoveRequest { structure, block, epoch, move_id: id };
                self.ask(net, Op::CancelMove, &body, PendingRequest::Repeated(effect));
            }
            Effect::LocateServer { shard, server } => {
                let body = LocateServerRequest { server: server.0 };
                self.ask(net, Op::LocateServer, &body, PendingRequest::Locate(shard, server));
            }
            Effect::Promote { structure, at } => {
                let (structure, block, epoch) = names(structure, at);
                let body = RaiseBlockRequest { structure, block, epoch };
                self.ask(net, Op::RaiseBlock, &body, PendingRequest::Told);
            }
            Effect::TierChanged { structure, at, tier } => {
                let (structure, block, epoch) = names(structure, at);
                let body = TierChangedRequest { structure, block, epoch, tier: tier.0 };
                self.ask(net, Op::TierChanged, &body, PendingRequest::Told);
            }
            Effect::BlockFailed { structure, at, ref why } => {
                let (structure, block, epoch) = names(structure, at);
                let body = BlockFailedRequest { structure, block, epoch, why: why.clone() };
                self.ask(net, Op::BlockFailed, &body, PendingRequest::Repeated(effect));
            }
            Effect::ValuesLeave { .. } => unreachable!("only reported to this process"),
            Effect::Retire { structure, at } => {
                let (structure, block, epoch) = names(structure, at);
                let body = RetireBlockRequest { structure, block, epoch };
                self.ask(net, Op::RetireBlock, &body, PendingRequest::Told);
            }
        }
    }

    pub(super) fn away(&self, at: BlockAt) {
        self.successor(at, Successor::Denied(Status::Unavailable, cut_off()));
    }

    pub(super) fn successor(&self, at: BlockAt, successor: Successor) {
        self.pass(at, BlockMessage::Successor(successor));
    }

    /// Passes a message of the controller to the shard of its block.
    pub(super) fn pass(&self, at: BlockAt, message: BlockMessage) {
        let shard = at.block.shard().0 as usize;
        self.post(&self.shards[shard], Note::Message(at, message, None));
    }

    pub(super) fn grown(&mut self, at: BlockAt, header: &ReplyHeader, args: &[u8]) {
        let successor = match (header.status, GrowStructureReply::decode(args)) {
            (Status::Ok, Ok(reply)) => {
                let moved = MovedArgs { version: reply.version, entry: reply.entry };
                Successor::Ready(moved.encode())
            }
            (Status::Ok, Err(e)) => Successor::Denied(Status::Internal, e.to_string()),
            (status, _) => Successor::Denied(status, String::from_utf8_lossy(args).into_owned()),
        };
        self.successor(at, successor);
    }

    pub(super) fn move_word(&self, at: BlockAt, word: MoveWord) {
        let shard = at.block.shard().0 as usize;
        self.post(&self.shards[shard], Note::Move(at, word));
    }

    pub(super) fn move_begun(&self, at: BlockAt, header: &ReplyHeader, args: &[u8]) {
        let word = match (header.status, BeginMoveReply::decode(args)) {
            (Status::Ok, Ok(BeginMoveReply { move_id, entry })) => {
                let address = resolve(&entry.address);
                MoveWord::Begin { id: move_id, entry, address }
            }
            // The controller may have begun the move.
            (Status::Ok, Err(_)) | (Status::LogFailed, _) => MoveWord::Unanswered,
            (status, _) => MoveWord::Refused(status, String::from_utf8_lossy(args).into_owned()),
        };
        self.move_word(at, word);
    }

    pub(super) fn located(
        &self,
        shard: ShardIx,
        server: ServerId,
        header: &ReplyHeader,
        args: &[u8],
    ) {
        let found = match (header.status, LocateServerReply::decode(args)) {
            (Status::Ok, Ok(reply)) => resolve(&reply.address).map_err(|_| Status::Unavailable),
            (Status::Ok, Err(_)) => Err(Status::Internal),
            (status, _) => Err(status),
        };
        self.post(&self.shards[shard.0 as usize], Note::Located(server, found));
    }

    pub(super) fn move_committed(&self, at: BlockAt, header: &ReplyHeader, args: &[u8]) {
        let word = match (header.status, CommitMoveReply::decode(args)) {
            (Status::Ok, Ok(CommitMoveReply { version, entry })) => {
                MoveWord::Committed(MovedArgs { version, entry })
            }
            // The answer is malformed, so the request is repeated.
            (Status::Ok, Err(e)) => MoveWord::NotCommitted(Status::Unavailable, e.to_string()),
            (status, _) => {
                MoveWord::NotCommitted(status, String::from_utf8_lossy(args).into_owned())
            }
        };
        self.move_word(at, word);
    }
}

/// The answer to a block that requested a larger capacity.
pub(super) fn capacity_of(header: &ReplyHeader, args: &[u8]) -> BlockMessage {
    BlockMessage::Capacity(match (header.status, GrowBlockReply::decode(args)) {
        (Status::Ok, Ok(GrowBlockReply { capacity })) => Capacity::Granted(capacity as usize),
        (Status::Ok, Err(e)) => Capacity::Denied(Status::Internal, e.to_string()),
        (status, _) => Capacity::Denied(status, String::from_utf8_lossy(args).into_owned()),
    })
}

/// The same without a controller.
pub(super) fn no_capacity() -> BlockMessage {
    BlockMessage::Capacity(Capacity::Denied(Status::Unavailable, cut_off()))
}

/// A structure and one of its blocks, as messages name them.
fn names(structure: StructureId, at: BlockAt) -> (u64, u64, u64) {
    (structure.0, at.block.0, at.epoch.0)
}

pub(super) fn cut_off() -> String {
    "the controller cannot be reached".to_owned()
}

/// Resolves the address of a server. The name is looked up here because a shard must not wait for that.
fn resolve(address: &str) -> Result<SocketAddr, String> {
    let found = address.to_socket_addrs().map_err(|e| format!("{address}: {e}"))?;
    found.into_iter().next().ok_or_else(|| format!("'{address}' is not an address"))
}
