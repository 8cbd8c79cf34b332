//! Peer connections from a shard to others, with the cluster's token: one for each move (`export`), and
//! one to each shard that has extents (`extents.rs`).
//! This module does no I/O: it returns outgoing requests as `Post`, in order, and receives the answers as
//! calls.

use super::Shard;
use super::export::MoveKey;
use honeycomb_types::{BlockAt, ServerId, ShardIx, Time};
use honeycomb_wire::{Op, Status};
use std::net::SocketAddr;
use std::sync::Arc;

/// Identifies one peer connection of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PeerKey {
    /// For a move, from the source block.
    Move(MoveKey),
    /// To a shard that has extents.
    Extents(ServerId, ShardIx),
}

/// A request of a shard to the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Post {
    /// Open a connection to the shard of this block. Later requests for the key are sent over it, in order,
    /// and each is answered in order: see `PeerEvent`.
    Dial {
        /// The connection.
        key: PeerKey,
        /// The server at its other end.
        address: SocketAddr,
        /// The block in the requests.
        target: BlockAt,
    },
    /// A request.
    Send {
        /// The connection.
        key: PeerKey,
        /// The operation.
        op: Op,
        /// Its arguments.
        args: Vec<u8>,
        /// Its payload.
        payload: PostPayload,
    },
    /// Close the connection, which is no longer needed.
    HangUp(PeerKey),
}

/// The payload of a `Post`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PostPayload {
    /// Separate bytes.
    Bytes(Arc<[u8]>),
    /// A range of the block that does not change while it is sent.
    Pinned(honeycomb_block::Pin),
}

impl PostPayload {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            PostPayload::Bytes(bytes) => bytes,
            PostPayload::Pinned(pin) => pin.bytes(),
        }
    }
}

/// The outcome of a `Post`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// The next request of the connection was answered.
    Answered(Status),
    /// The connection could not be opened, or broke.
    Lost,
    /// The connection was opened, and the other end refused it.
    Refused(Status),
}

impl Shard {
    /// Handles an event of a peer connection.
    pub fn peer_event(&mut self, now: Time, key: PeerKey, event: PeerEvent) {
        match key {
            PeerKey::Move(key) => self.on_exports(now, |work| match event {
                PeerEvent::Answered(status) => work.move_answered(key, status),
                PeerEvent::Lost | PeerEvent::Refused(_) => work.move_lost(key),
            }),
            PeerKey::Extents(server, shard) => self.on_extents(now, |work| match event {
                PeerEvent::Answered(status) => work.peer_answered((server, shard), status),
                // The server has no such shard.
                PeerEvent::Refused(Status::InvalidArgument) => work.peer_void((server, shard)),
                PeerEvent::Lost | PeerEvent::Refused(_) => work.peer_lost((server, shard)),
            }),
        }
    }
}
