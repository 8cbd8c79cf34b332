//! The bound of a queue: how many items and bytes it holds at most.

use std::fmt;

/// The bound of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBounds {
    /// Most items (maxQueueLength; paper, 5.2); `u64::MAX` for no bound.
    pub items: u64,
    /// Most bytes of the items together; `u64::MAX` for no bound.
    pub bytes: u64,
}

impl QueueBounds {
    /// No bound.
    pub const NONE: QueueBounds = QueueBounds { items: u64::MAX, bytes: u64::MAX };

    /// Bounds from the wire, where 0 means unbounded.
    pub fn from_wire(items: u64, bytes: u64) -> QueueBounds {
        let bound = |n: u64| if n == 0 { u64::MAX } else { n };
        QueueBounds { items: bound(items), bytes: bound(bytes) }
    }
}

impl fmt::Display for QueueBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.items, self.bytes) {
            (items, u64::MAX) => write!(f, "{items} items"),
            (u64::MAX, bytes) => write!(f, "{bytes} bytes"),
            (items, bytes) => write!(f, "{items} items and {bytes} bytes"),
        }
    }
}
