//! The bank of planted bugs, asked: how long until a checker sees one?

use crate::world::{Violation, run_seed};
use honeycomb_types::Bug;

/// Arms a bug until dropped, also when a checker panics.
struct Armed;

impl Drop for Armed {
    fn drop(&mut self) {
        Bug::arm(None);
    }
}

/// The first of so many seeds, from `from` on, that shows the bug, and what was seen. A panic of the
/// product is no catch: the checkers must see it from outside.
pub fn seeds_until_caught(bug: Bug, from: u64, most: u64, operations: u64) -> Option<Violation> {
    let _armed = Armed;
    Bug::arm(Some(bug));
    (from..from + most).find_map(|seed| run_seed(seed, operations).err())
}
