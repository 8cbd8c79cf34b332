//! Bounds of a client.

/// Buffers for replies about many keys that a client keeps.
pub(crate) const BUFFERS_MAX: usize = 4;
/// Buffers with room for more bytes are freed: their pages cost little beside the transfer.
pub(crate) const BUFFER_KEPT_MAX: usize = 1 << 20;

/// Payload bytes of the requests of one call about many keys that are under way at a time.
pub(crate) const PIPED_BYTES_MAX: usize = 2 << 20;
/// The number of these requests: each keeps a record, and a reply may have 1 MiB.
pub(crate) const PIPED_REQUESTS_MAX: usize = 256;
/// Payload bytes that are sent together: the servers process them while the next are encoded.
pub(crate) const PIPED_AT_ONCE: usize = 128 << 10;
