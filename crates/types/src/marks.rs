//! The fill levels at which a block grows and merges.

use crate::limits::{HIGH_MARK_DEFAULT, LOW_MARK_DEFAULT};

/// The marks of one prefix's blocks, in percent of a block that is in use.
///
/// Above the high mark a block grows or splits; below the low mark it merges. Twice the low mark is
/// below the high mark, so that two blocks that merge do not have to split again at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Marks {
    high: u8,
    low: u8,
}

impl Default for Marks {
    fn default() -> Marks {
        Marks { high: HIGH_MARK_DEFAULT, low: LOW_MARK_DEFAULT }
    }
}

impl Marks {
    /// Marks that replace those of `default` where they are not 0; `None` if they are invalid. A
    /// low mark of 0 becomes that of `default`, or less if the high mark requires it.
    pub fn new(high: u8, low: u8, default: Marks) -> Option<Marks> {
        let high = if high == 0 { default.high } else { high };
        let low = if low == 0 { default.low.min((high - 1) / 2) } else { low };
        let marks = Marks { high, low };
        (marks.high <= 100 && 2 * (marks.low as u32) < marks.high as u32).then_some(marks)
    }

    /// Percent in use at which a block grows or splits.
    pub fn high(self) -> u8 {
        self.high
    }

    /// Percent in use below which a block merges.
    pub fn low(self) -> u8 {
        self.low
    }

    /// Bytes in use at which a block of this size grows or splits.
    pub fn split_at(self, block_size: usize) -> usize {
        percent(block_size, self.high)
    }

    /// Bytes in use up to which a block of this size merges.
    pub fn merge_at(self, block_size: usize) -> usize {
        percent(block_size, self.low)
    }

    /// Free bytes below which a block of this size grows: the rest above the high mark.
    pub fn rest(self, block_size: usize) -> usize {
        block_size - self.split_at(block_size)
    }
}

fn percent(of: usize, percent: u8) -> usize {
    (of as u64 * percent as u64 / 100) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_takes_the_default_and_what_would_swing_is_refused() {
        let default = Marks::default();
        assert_eq!(Marks::new(0, 0, default), Some(default));
        assert_eq!(Marks::new(80, 0, default).map(Marks::high), Some(80));
        assert_eq!(Marks::new(0, 40, default).map(Marks::low), Some(40));
        assert_eq!(Marks::new(101, 0, default), None);
        assert_eq!(Marks::new(80, 40, default), None);
        assert_eq!(Marks::new(3, 0, default).map(Marks::low), Some(1));
        assert_eq!(Marks::new(0, 48, default), None);
    }

    #[test]
    fn marks_are_shares_of_the_block() {
        let marks = Marks::new(90, 20, Marks::default()).unwrap();
        assert_eq!(marks.rest(1000), 100);
        assert_eq!((marks.split_at(1 << 30), marks.merge_at(1 << 30)), (966_367_641, 214_748_364));
    }
}
