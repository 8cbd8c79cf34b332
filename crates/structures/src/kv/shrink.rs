//! Giving memory back while the block lives: regions that have emptied become smaller, and holes that
//! once held something go back to the operating system.

use super::KvBlock;
use super::arena::Arena;
use super::table::Table;
use honeycomb_block::Backing;
use honeycomb_types::Time;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

/// Smaller regions are left as they are.
const SHRINK_FROM: usize = 8 * 1024;
/// Of a block, this part has to have become free before its memory is given back.
const SLACK_FRACTION: usize = 16;
/// It goes back when it has been free for this long: what is freed is often soon used again.
const KEPT_FREE: Duration = Duration::from_millis(50);
/// Holes of less than this part of a block are not given back: each is a system call. Regions are of
/// about an 85th.
const HOLE_FRACTION: usize = 128;
/// But the least is this at least, and at most.
const HOLE_MIN: RangeInclusive<usize> = 8 * 1024..=128 * 1024;
/// Bytes that are given back at a time, and the pause between two times: others come first.
const STEP: usize = 8 << 20;
const PAUSE: Duration = Duration::from_millis(1);

/// What is being given back.
#[derive(Default)]
pub(crate) struct Shrink {
    /// When to begin, or to go on.
    due: Option<Time>,
    /// Holes are given back from here on; `None` before it has begun.
    from: Option<usize>,
}

impl Shrink {
    pub fn due(&self) -> Option<Time> {
        self.due
    }

    /// Looks whether there is memory to give back.
    pub fn look(&mut self, arena: &Arena, size: usize, now: Time) {
        if self.due.is_none() && arena.slack() > size / SLACK_FRACTION {
            self.due = Some(now + KEPT_FREE);
        }
    }

    /// Gives some of it back, when it is due.
    pub fn give_back(&mut self, arena: &mut Arena, size: usize, block: &mut Backing, now: Time) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        if self.from.is_none() && arena.slack() <= size / SLACK_FRACTION {
            // It was needed again.
            self.due = None;
            return;
        }
        let from = *self.from.get_or_insert(0);
        if from == 0 {
            arena.forget_slack();
        }
        let least = (size / HOLE_FRACTION).clamp(*HOLE_MIN.start(), *HOLE_MIN.end());
        let mut holes: Vec<Range<usize>> = arena.holes(least).filter(|h| h.end > from).collect();
        holes.sort_unstable_by_key(|hole| hole.start);
        let mut given = 0;
        for hole in holes {
            let part = hole.start.max(from)..hole.end.min(hole.start.max(from) + STEP - given);
            // A pin that was dropped since may have read a part of it.
            if !block.is_pinned(&part) {
                block.discard(part.clone());
            }
            given += part.len();
            if given >= STEP {
                self.from = Some(part.end);
                self.due = Some(now + PAUSE);
                return;
            }
        }
        *self = Shrink::default();
    }
}

impl Table {
    /// Lets a region that holds little of what it has room for have less.
    pub(super) fn shrink_region(&mut self, block: &mut Backing, id: u32) {
        let region = &self.regions[id as usize];
        let wanted = (2 * region.packed()).next_multiple_of(8).max(SHRINK_FROM / 4);
        if region.size < SHRINK_FROM || region.packed() > region.size / 4 || wanted >= region.size {
            return;
        }
        let extent = region.extent();
        if !block.is_pinned(&extent) {
            self.relay(block, id, extent.start..extent.start + wanted, 0, false);
            self.arena.resize(extent.start, wanted);
        }
    }
}

impl KvBlock {
    /// Looks whether there is memory to give back.
    pub(super) fn look_at_slack(&mut self, now: Time) {
        self.shrink.look(&self.table.arena, self.size, now);
    }

    /// Gives some of it back, when it is due.
    pub(super) fn give_back(&mut self, block: &mut Backing, now: Time) {
        self.shrink.give_back(&mut self.table.arena, self.size, block, now);
    }
}
