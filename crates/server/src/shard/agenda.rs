//! Which blocks of a shard need attention, and when.

use honeycomb_types::{BlockAt, Time};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

/// A block's part in the agenda of its shard.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attention {
    /// Whether the block is listed in `Agenda::touched`.
    touched: bool,
    /// Whether the block is listed in `Agenda::uninspected`.
    uninspected: bool,
    /// The time at which the consequences of changes were last processed, and the used bytes at that time.
    inspected: (Time, u64),
    /// The time of the listed timer.
    timer: Option<Time>,
}

impl Attention {
    /// The consequences of changes are processed now.
    pub fn inspect(&mut self, now: Time, bytes_used: u64) {
        self.inspected = (now, bytes_used);
    }

    /// Whether the consequences were last processed at this time, and the used bytes since then differ by
    /// less than `most`.
    pub fn is_recent(&self, now: Time, bytes_used: u64, most: usize) -> bool {
        let (at, bytes) = self.inspected;
        at == now && (bytes_used.abs_diff(bytes) as usize) < most
    }

    /// The block is taken from `Agenda::take_touched`.
    pub fn is_reported(&mut self) {
        self.touched = false;
    }

    /// The block is taken from `Agenda::take_uninspected`.
    pub fn is_inspected(&mut self) {
        self.uninspected = false;
    }

    /// Whether the block still has this timer, which was taken from the agenda. Then it has none any more.
    pub fn ends_timer(&mut self, at: BlockAt, due: Time) -> bool {
        let timer = self.timer;
        let listed = timer.is_none_or(|timer| timer >= due);
        assert!(listed, "INV-33: {at:?} has a timer at {timer:?}, which is not listed");
        let own = timer == Some(due);
        if own {
            self.timer = None;
        }
        own
    }
}

/// The blocks of a shard that need attention, by their indices.
#[derive(Default)]
pub(super) struct Agenda {
    /// Blocks that have changed since their usage was reported: each once.
    touched: Vec<u32>,
    /// Blocks that have changed slightly since they were inspected: each once.
    uninspected: Vec<u32>,
    /// Blocks that a part of the shard has changed, and whose consequences were not processed yet.
    changed: VecDeque<BlockAt>,
    /// Blocks whose exports continue in steps, in turn: each once.
    steps: VecDeque<u32>,
    /// When the timers of blocks are due.
    timers: BinaryHeap<Reverse<(Time, u32)>>,
}

impl Agenda {
    /// A block was used: its usage is to be reported.
    #[inline]
    pub fn touch(&mut self, index: usize, attention: &mut Attention) {
        if !attention.touched {
            attention.touched = true;
            self.touched.push(index as u32);
        }
    }

    /// The blocks whose usage is to be reported.
    pub fn take_touched(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.touched)
    }

    /// A block has changed slightly: it is inspected in the next tick, which is due at once.
    pub fn inspect_later(&mut self, index: usize, attention: &mut Attention) {
        if !attention.uninspected {
            attention.uninspected = true;
            self.uninspected.push(index as u32);
        }
    }

    /// The blocks to be inspected in this tick.
    pub fn take_uninspected(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.uninspected)
    }

    /// A part of the shard has changed a block, whose consequences are processed when the part has finished,
    /// or else in the next tick, which is due at once.
    pub fn changed(&mut self, at: BlockAt) {
        self.changed.push_back(at);
    }

    /// The next changed block.
    pub fn take_changed(&mut self) -> Option<BlockAt> {
        self.changed.pop_front()
    }

    /// The export of a block continues in a step.
    pub fn continue_in_step(&mut self, index: usize) {
        self.steps.push_back(index as u32);
    }

    /// The block whose export continues next.
    pub fn take_step(&mut self) -> Option<usize> {
        self.steps.pop_front().map(|index| index as usize)
    }

    /// A block is due at this time, or earlier if it is already.
    pub fn arm(&mut self, index: usize, attention: &mut Attention, due: Time) {
        if attention.timer.is_none_or(|timer| due < timer) {
            self.rearm(index, attention, due);
        }
    }

    /// A block is due at this time, and not at the time of its timer.
    pub fn rearm(&mut self, index: usize, attention: &mut Attention, due: Time) {
        attention.timer = Some(due);
        self.timers.push(Reverse((due, index as u32)));
    }

    /// When the first timer is due. The block may have been freed, or have another timer.
    pub fn due(&self) -> Option<Time> {
        if !self.uninspected.is_empty() || !self.changed.is_empty() {
            return Some(Time::ZERO);
        }
        self.timers.peek().map(|Reverse((due, _))| *due)
    }

    /// The next timer that is due.
    pub fn take_timer(&mut self, now: Time) -> Option<(Time, usize)> {
        let Reverse((due, index)) = *self.timers.peek()?;
        if due > now {
            return None;
        }
        self.timers.pop();
        Some((due, index as usize))
    }

    /// Forgets the usage of blocks that are freed.
    pub fn forget(&mut self, indices: &Range<usize>) {
        self.touched.retain(|index| !indices.contains(&(*index as usize)));
    }
}
