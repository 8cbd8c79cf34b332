//! When a cluster should have more servers, or fewer.

/// The utilisation at which servers should be added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleMarks {
    /// Percent of any resource in use above which a server should be added.
    pub add_above: u8,
    /// Percent of all resources in use below which one should be removed.
    pub remove_below: u8,
    /// No advice to remove leaves fewer servers than this.
    pub min_servers: u32,
}

impl ScaleMarks {
    /// Valid marks: the lower one below the upper, both percents.
    pub fn new(add_above: u8, remove_below: u8, min_servers: u32) -> Option<ScaleMarks> {
        let agree = remove_below < add_above && add_above <= 100;
        agree.then_some(ScaleMarks { add_above, remove_below, min_servers })
    }

    /// The target utilisation after a server was added or removed: half-way, so that neither advice
    /// follows from the other.
    pub fn target(self) -> u8 {
        self.remove_below + (self.add_above - self.remove_below) / 2
    }
}

impl Default for ScaleMarks {
    fn default() -> ScaleMarks {
        ScaleMarks { add_above: 80, remove_below: 60, min_servers: 1 }
    }
}
