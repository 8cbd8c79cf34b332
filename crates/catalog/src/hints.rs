//! The hints of a job at its registration, and the expected use derived from them.
//!
//! The rules are Pocket's ("Rightsizing Application Allocation"): a job is sensitive to latency unless its
//! hints deny it; it is assumed to run `HINT_TASKS_DEFAULT` tasks unless its hints give a number; for each
//! missing hint, it is expected to use an amount in proportion to the given ones. Proportions are those of
//! the present servers, where Pocket has a node of one size. An estimate reserves nothing: blocks are
//! allocated one by one, as always.

use crate::{Catalog, CatalogError};
use honeycomb_types::limits::{
    HINT_MAX, HINT_SERVER_BYTES_PER_S, HINT_TASK_BYTES_PER_S, HINT_TASKS_DEFAULT,
};

/// Flag of `JobHints` on the wire: the job is not sensitive to latency.
const NOT_SENSITIVE: u8 = 1;

/// The hints of a job. By default, none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Its data need not be in memory: it is placed in lower tiers first.
    pub not_sensitive: bool,
    /// Number of tasks that run at the same time; 0 when unknown.
    pub tasks: u32,
    /// Bytes held at its peak; 0 when unknown.
    pub bytes: u64,
    /// Bytes per second at its peak; 0 when unknown.
    pub bytes_per_s: u64,
}

impl Hints {
    /// Whether any hint was given.
    pub fn given(&self) -> bool {
        *self != Hints::default()
    }

    pub(crate) fn check(&self) -> Result<(), CatalogError> {
        let allowed = "a hint is at most 2^60; 0 means unknown";
        let all = [
            ("a job's expected capacity in bytes", self.bytes),
            ("a job's expected throughput in bytes per second", self.bytes_per_s),
        ];
        match all.into_iter().find(|(_, given)| *given > HINT_MAX) {
            Some((what, given)) => Err(CatalogError::InvalidArgument { what, given, allowed }),
            None => Ok(()),
        }
    }

    /// The flags, as on the wire and in the log.
    pub fn flags(&self) -> u8 {
        if self.not_sensitive { NOT_SENSITIVE } else { 0 }
    }

    /// Adds the flags from the wire or the log; `None` when a flag is unknown.
    pub fn with_flags(self, flags: u8) -> Option<Hints> {
        (flags & !NOT_SENSITIVE == 0).then_some(Hints { not_sensitive: flags != 0, ..self })
    }
}

/// The resources of all servers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Supply {
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes in lower tiers.
    pub below: u64,
    /// Bytes per second of transfer.
    pub bytes_per_s: u64,
}

/// The expected use of a job at its peak. Both are 0 when nothing can be expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Bytes held.
    pub bytes: u64,
    /// Bytes per second read and written.
    pub bytes_per_s: u64,
}

/// `a * b / c`, without overflow of the intermediate product.
fn share(a: u64, b: u64, c: u64) -> u64 {
    let whole = a as u128 * b as u128 / u128::from(c.max(1));
    whole.min(u64::MAX as u128) as u64
}

impl Estimate {
    /// The use expected from the hints, with these resources.
    pub fn of(hints: &Hints, supply: &Supply) -> Estimate {
        if !hints.given() {
            return Estimate::default();
        }
        let most = supply.bytes_per_s;
        let all = supply.memory.saturating_add(supply.below);
        // The room that the job may use, and the part that it fills first. A job that does not need
        // memory still uses it if there is no lower tier.
        let (may, first) = match hints.not_sensitive {
            true if supply.below > 0 => (supply.below, supply.below),
            true => (supply.memory, supply.memory),
            false => (all, supply.memory),
        };
        let of_tasks = |tasks: u32| (tasks as u64).saturating_mul(HINT_TASK_BYTES_PER_S).min(most);
        let bytes_per_s = match *hints {
            Hints { bytes_per_s, .. } if bytes_per_s > 0 => bytes_per_s,
            Hints { tasks, .. } if tasks > 0 => of_tasks(tasks),
            Hints { bytes, .. } if bytes > 0 => share(bytes, most, first).min(most),
            _ => of_tasks(HINT_TASKS_DEFAULT),
        };
        let bytes = match hints.bytes {
            0 => share(bytes_per_s, may, most).min(may),
            given => given,
        };
        Estimate { bytes, bytes_per_s }
    }
}

impl Catalog {
    /// The resources of all servers, including those awaited after a restart. The transfer rate of a server
    /// is unknown: it counts as one of Pocket's nodes.
    pub(crate) fn supply(&self) -> Supply {
        let mut supply = Supply::default();
        for (_, server) in self.pool.servers() {
            supply.memory += server.total as u64 * self.units().bytes();
            let below: u64 = server.tiers.iter().map(|tier| u64::from(tier.blocks)).sum();
            supply.below += below * u64::from(server.shards()) * self.block_size;
            supply.bytes_per_s += HINT_SERVER_BYTES_PER_S;
        }
        supply
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    /// The resources of `n` nodes of Pocket: 60 GB of memory, 2000 GB of flash, 8000 Mb/s each.
    fn nodes(n: u64) -> Supply {
        Supply { memory: n * 60 * GB, below: n * 2000 * GB, bytes_per_s: n * GB }
    }

    fn expected(supply: &Supply, hints: Hints) -> (u64, u64) {
        let Estimate { bytes, bytes_per_s } = Estimate::of(&hints, supply);
        (bytes, bytes_per_s)
    }

    #[test]
    fn an_estimate_is_that_of_pocket_for_its_nodes() {
        let fifty = nodes(50);
        let says = |not_sensitive, tasks, bytes, bytes_per_s| {
            expected(&fifty, Hints { not_sensitive, tasks, bytes, bytes_per_s })
        };
        // Only "not sensitive": 1000 tasks would need 75 GB/s, and 50 nodes have 50.
        assert_eq!(says(true, 0, 0, 0), (50 * 2000 * GB, 50 * GB));
        // 40 tasks of 600 Mb/s are 3 nodes.
        assert_eq!(says(false, 40, 0, 0), (3 * 2060 * GB, 3 * GB));
        assert_eq!(says(true, 40, 0, 0), (3 * 2000 * GB, 3 * GB));
        // Given hints are taken as given, and the rest is in proportion to them.
        assert_eq!(says(false, 40, 0, 5 * GB), (5 * 2060 * GB, 5 * GB));
        assert_eq!(says(false, 40, 100 * GB, 0), (100 * GB, 3 * GB));
        assert_eq!(says(false, 0, 0, 7 * GB), (7 * 2060 * GB, 7 * GB));
        assert_eq!(says(true, 0, 0, 7 * GB), (7 * 2000 * GB, 7 * GB));
        assert_eq!(says(false, 0, 120 * GB, 0), (120 * GB, 2 * GB));
        assert_eq!(says(true, 0, 4000 * GB, 0), (4000 * GB, 2 * GB));
        assert_eq!(says(false, 1, 2 * GB, 3 * GB), (2 * GB, 3 * GB));
    }

    #[test]
    fn nobody_is_expected_to_take_more_than_there_is_unless_he_says_so() {
        let one = nodes(1);
        let hints = Hints { tasks: 1000, ..Hints::default() };
        assert_eq!(expected(&one, hints), (2060 * GB, GB));
        let hints = Hints { bytes: 6000 * GB, ..Hints::default() };
        assert_eq!(expected(&one, hints), (6000 * GB, GB));
        let hints = Hints { bytes_per_s: 4 * GB, ..Hints::default() };
        assert_eq!(expected(&one, hints), (2060 * GB, 4 * GB));
    }

    #[test]
    fn without_anything_below_memory_everybody_takes_memory() {
        let supply = Supply { below: 0, ..nodes(2) };
        let hints = |not_sensitive| Hints { not_sensitive, tasks: 20, ..Hints::default() };
        for not_sensitive in [false, true] {
            assert_eq!(expected(&supply, hints(not_sensitive)), (90 * GB, 3 * GB / 2));
        }
    }

    #[test]
    fn who_says_nothing_and_who_asks_nobody_is_expected_to_take_nothing() {
        assert_eq!(expected(&nodes(3), Hints::default()), (0, 0));
        let hints = Hints { tasks: 5, ..Hints::default() };
        assert_eq!(expected(&Supply::default(), hints), (0, 0));
    }

    #[test]
    fn a_flag_that_is_not_known_is_refused() {
        let hints = Hints { tasks: 5, ..Hints::default() };
        for known in [hints, Hints { not_sensitive: true, ..hints }] {
            assert_eq!(hints.with_flags(known.flags()), Some(known));
        }
        assert_eq!(hints.with_flags(2), None);
    }
}
