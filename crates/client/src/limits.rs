//! Bounds of a client.

/// Buffers for replies about many keys that a client keeps.
pub(crate) const BUFFERS_MAX: usize = 4;
/// Buffers with room for more bytes are freed: their pages cost little beside the transfer.
pub(crate) const BUFFER_KEPT_MAX: usize = 1 << 20;
