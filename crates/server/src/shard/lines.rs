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
pub enum LineKey {
    /// For a move, from the source block.
    Move(MoveKey),
    /// To a shard that has extents.
    Extents(ServerId, ShardIx),
}

/// A request of a shard to the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Post {
    /// Open a connection to the shard of this block. Later requests for the key are sent over it, in order,
    /// and each is answered in order: by `Shard::line_answered`; or by `Shard::line_lost`, if it cannot be
    /// opened or breaks; or by `Shard::line_refused`.
    Dial {
        /// The connection.
        key: LineKey,
        /// The server at its other end.
        address: SocketAddr,
        /// The block in the requests.
        target: BlockAt,
    },
    /// A request.
    Send {
        /// The connection.
        key: LineKey,
        /// The operation.
        op: Op,
        /// Its arguments.
        args: Vec<u8>,
        /// Its payload.
        payload: PostPayload,
    },
    /// Close the connection, which is no longer needed.
    HangUp(LineKey),
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

impl Shard {
    /// The pending posts, in order.
    pub fn take_posts(&mut self) -> Vec<Post> {
        std::mem::take(&mut self.out.posts)
    }

    /// A request on a peer connection was answered.
    pub fn line_answered(&mut self, now: Time, key: LineKey, status: Status) {
        match key {
            LineKey::Move(key) => self.move_answered(now, key, status),
            LineKey::Extents(server, shard) => {
                self.on_extents(now, |work| work.place_answered(now, (server, shard), status))
            }
        }
    }

    /// A peer connection could not be opened, or broke.
    pub fn line_lost(&mut self, now: Time, key: LineKey) {
        match key {
            LineKey::Move(key) => self.move_lost(now, key),
            LineKey::Extents(server, shard) => {
                self.on_extents(now, |work| work.place_lost(now, (server, shard)))
            }
        }
    }

    /// A peer connection was opened, and the other end refused it.
    pub fn line_refused(&mut self, now: Time, key: LineKey, status: Status) {
        match key {
            LineKey::Extents(server, shard) if status == Status::InvalidArgument => {
                self.on_extents(now, |work| work.place_void(now, (server, shard)));
            }
            _ => self.line_lost(now, key),
        }
    }
}
