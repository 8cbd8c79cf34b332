//! Blocks whose changes become visible only when they are stored elsewhere.

use std::ops::Range;

/// Bytes that a block with delayed visibility (`Journaled::hold_back`) requests to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToStore {
    /// The bytes of the block that follow the stored ones.
    pub range: Range<usize>,
    /// Present if these bytes are the block's last.
    pub ends: Option<Ends>,
}

/// How a block was sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The whole structure was sealed.
    Final,
    /// The structure continues in the block that these arguments of `Moved` name.
    Continues(Vec<u8>),
}

/// A block whose changes can wait until a journal has them.
///
/// Order of calls: `hold_back`, then `to_store` at any time until it returns bytes, then `stored` before the
/// next `to_store`. `not_stored` may be called any number of times before `stored`.
pub trait Journaled {
    /// Delays from now on the visibility and the answer of every change until it is stored elsewhere. Called
    /// once, on an empty block.
    fn hold_back(&mut self);

    /// The next bytes to store, of a block with delayed visibility; not called again before `stored`. These
    /// bytes do not change until then.
    fn to_store(&mut self) -> Option<ToStore>;

    /// Reports that the bytes from `to_store` are stored: they become visible, and operations that waited for
    /// them are answered.
    fn stored(&mut self);

    /// Reports that storing the bytes failed and is repeated: callers that must retry get a longer delay.
    fn not_stored(&mut self);
}
