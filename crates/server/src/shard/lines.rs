//! Lines: connections from a shard to others, by the cluster's token. One for each move (`moving.rs`),
//! and one to each shard that has extents (`extents.rs`).
//!
//! No I/O here: what is to be sent leaves as `Post`, in order, and what comes back is told.

use super::Shard;
use super::moving::MoveKey;
use honeycomb_types::{BlockAt, ServerId, ShardIx, Time};
use honeycomb_wire::{Op, Status};
use std::net::SocketAddr;
use std::sync::Arc;

/// Names one line of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LineKey {
    /// Of a move, from the block that gives.
    Move(MoveKey),
    /// To a shard that has extents.
    Extents(ServerId, ShardIx),
}

/// What a shard wants from the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Post {
    /// A connection to the shard of this block. What follows for the line goes over it, in order, and
    /// every request is answered in order: `Shard::line_answered`; or `Shard::line_lost`, when it
    /// cannot be made or breaks; or `Shard::line_refused`.
    Dial {
        /// The line.
        key: LineKey,
        /// The server at its other end.
        address: SocketAddr,
        /// The block of what is sent.
        target: BlockAt,
    },
    /// A request.
    Send {
        /// The line.
        key: LineKey,
        /// The operation.
        op: Op,
        /// Its arguments.
        args: Vec<u8>,
        /// Its payload.
        payload: PostPayload,
    },
    /// The connection is not needed any more.
    HangUp(LineKey),
}

/// The payload of a `Post`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PostPayload {
    /// Bytes of their own.
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
    /// What lines want from the network, in order.
    pub fn take_posts(&mut self) -> Vec<Post> {
        std::mem::take(&mut self.posts)
    }

    /// A request over a line was answered.
    pub fn line_answered(&mut self, now: Time, key: LineKey, status: Status) {
        match key {
            LineKey::Move(key) => self.move_answered(now, key, status),
            LineKey::Extents(server, shard) => self.place_answered(now, (server, shard), status),
        }
    }

    /// A line could not be made, or broke.
    pub fn line_lost(&mut self, now: Time, key: LineKey) {
        match key {
            LineKey::Move(key) => self.move_lost(now, key),
            LineKey::Extents(server, shard) => self.place_lost(now, (server, shard)),
        }
    }

    /// A line was made, and the other end does not want it.
    pub fn line_refused(&mut self, now: Time, key: LineKey, status: Status) {
        match key {
            LineKey::Extents(server, shard) if status == Status::InvalidArgument => {
                self.place_void(now, (server, shard));
            }
            _ => self.line_lost(now, key),
        }
    }
}
