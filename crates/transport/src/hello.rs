//! The handshake with which a node begins a connection to another one.

use honeycomb_env::Entropy;
use honeycomb_types::limits::{PROTOCOL_MAJOR, PROTOCOL_MINOR};
use honeycomb_wire::messages::HelloRequest;

/// The request of a node with the cluster's token, in a session of its own, to a shard of the other
/// node; `u8::MAX` for whichever shard reads it.
pub fn hello(token: &[u8], shard: u8) -> HelloRequest {
    HelloRequest {
        major: PROTOCOL_MAJOR,
        minor: PROTOCOL_MINOR,
        session: u128::from(Entropy::system().next_u64()) | 1 << 64,
        token: token.to_vec(),
        shard,
        ..Default::default()
    }
}
