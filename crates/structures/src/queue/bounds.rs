//! The bound of a queue: how many items and bytes it holds at most.

use super::deliveries::Deliveries;
use super::items::ItemLog;
use crate::{Answer, Event};
use honeycomb_types::Bug;
use honeycomb_wire::Status;
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

/// The bound at the tail of a queue, and the state of the reports on which it depends.
pub(super) struct TailBound {
    bounds: QueueBounds,
    /// Items and bytes in earlier blocks. Unknown to a successor at first.
    ahead: Option<(u64, u64)>,
    /// The last reported total of taken items, and whether the controller has received it.
    reported: u64,
    received: bool,
}

impl TailBound {
    /// The bound of a block. `first` if no block is before it.
    pub fn new(bounds: QueueBounds, first: bool) -> TailBound {
        let ahead = (first || bounds == QueueBounds::NONE).then_some((0, 0));
        TailBound { bounds, ahead, reported: 0, received: true }
    }

    /// Whether there is a bound.
    pub fn is_bounded(&self) -> bool {
        self.bounds != QueueBounds::NONE
    }

    /// Refuses a put that no queue with this bound can hold.
    pub fn admit(&self, items: u64, bytes: u64) -> Result<(), Answer> {
        if items <= self.bounds.items && bytes <= self.bounds.bytes {
            return Ok(());
        }
        let text = format!(
            "{bytes} bytes (items: {items}) can never fit into a queue of at most {}",
            self.bounds
        );
        Err(Answer::refuse(Status::InvalidArgument, text))
    }

    /// Whether the bound has room for these items and bytes; `None` if that is not known yet.
    pub fn within_bound(
        &self,
        log: &ItemLog,
        deliveries: &Deliveries,
        (items, bytes): (u64, u64),
    ) -> Option<bool> {
        let (ahead, ahead_bytes) = match self.ahead {
            _ if Bug::QueueForgetsAhead.active() => (0, 0),
            ahead => ahead?,
        };
        let (put, taken) = (log.amount(), deliveries.taken());
        let (held, held_bytes) = (ahead + put.0 - taken.0, ahead_bytes + put.1 - taken.1);
        Some(
            held.saturating_add(items) <= self.bounds.items
                && held_bytes.saturating_add(bytes) <= self.bounds.bytes,
        )
    }

    /// The answer to a put for which the bound has no room.
    pub fn full(&self) -> Answer {
        Answer::refuse(Status::QueueFull, format!("the queue is at its bound of {}", self.bounds))
    }

    /// The controller has reported the content of the earlier blocks.
    pub fn set_ahead(&mut self, items: u64, bytes: u64) {
        // Messages may overtake each other; the content of the earlier blocks only shrinks.
        self.ahead = Some(match self.ahead {
            Some((i, b)) => (i.min(items), b.min(bytes)),
            None => (items, bytes),
        });
    }

    /// The content of the earlier blocks, if it is known.
    pub fn ahead(&self) -> Option<(u64, u64)> {
        self.ahead
    }

    /// Adopts the content of the earlier blocks from another block.
    pub fn restore_ahead(&mut self, ahead: Option<(u64, u64)>) {
        self.ahead = match self.is_bounded() {
            true => ahead,
            false => Some(ahead.unwrap_or_default()),
        };
    }

    /// The report of a sealed block that items were taken from it, if it is due.
    pub fn report(&mut self, (items, bytes): (u64, u64)) -> Option<Event> {
        if !self.is_bounded() || !self.received || items == self.reported {
            return None;
        }
        (self.received, self.reported) = (false, items);
        Some(Event::Taken { items, bytes })
    }

    /// The controller has received the last report.
    pub fn report_received(&mut self) {
        self.received = true;
    }
}
