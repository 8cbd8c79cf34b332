//! Bytes in, typed values out: frames, message bodies, tokens, grants and the hash of a key.
//!
//! No I/O happens here. `protocol/PROTOCOL.md` draws every byte and `protocol/vectors/` fixes it;
//! the tables in `messages` are generated from `protocol/messages.toml`.
#![forbid(unsafe_code)]

pub mod batch;
pub mod custom;
pub mod data;
pub mod extents;
pub mod fields;
pub mod frame;
mod handshake;
pub mod hash;
pub mod messages;
pub mod notice;
pub mod queue;
pub mod stored;
pub mod token;

pub use fields::{Field, Malformed, Reader};
pub use frame::{
    Auth, BodyTooLarge, Durability, Header, OpInfo, Plane, Refusal, ReplyHeader, RequestHeader,
    busy, flags,
};
pub use handshake::Greeted;
pub use hash::{Checksum, checksum, key_hash, key_tag, slot_of};
pub use messages::{Durable, ForwardedTo, MayWait, Mutates, Op, ServedBy, Status};
pub use token::{Grant, GrantKey, RootKey, Scope, TokenKey, attenuate};
