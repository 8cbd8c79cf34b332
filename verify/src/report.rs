//! Counts of faults and states in a run: a case that is never drawn is not tested.

use crate::cells::Cell;
use honeycomb_server::{NewUse, PresentUse};
use std::collections::BTreeMap;

/// Faults that every long run must have injected, by name.
pub const FAULTS: &[&str] = &[
    "abandoned prefix",
    "all controller shards",
    "bridge",
    "broken link",
    "broken link at a demotion",
    "broken link at a move",
    "controller killed",
    "controller lost power",
    "crash",
    "crash for good",
    "cut link",
    "cut link at a commit",
    "cut move",
    "cut payload",
    "delay",
    "disk full",
    "drain",
    "drain cancelled",
    "duplicate",
    "halves",
    "intruder",
    "isolated node",
    "late request",
    "lost reply",
    "lost request",
    "one-way partition",
    "pause longer than a lease",
    "pause longer than the silence of the dead",
    "pause of the controller",
    "pause of the controller longer than the silence of the dead",
    "question asked twice",
    "read below failed once",
    "removed structure",
    "short pause",
    "silent crash",
    "store away",
    "write below failed",
    "wrong bytes from below once",
];

/// States that a run need not reach: about one in 50,000 seeds does.
const RARE: &[&str] = &["raising given up"];

/// States that every long run must have reached ("sometimes" assertions), by name.
pub const STATES: &[&str] = &[
    "amnesty",
    "append refused by a seal",
    "batch refused whole",
    "block copied",
    "block copied below",
    "block grown in place",
    "block lowered",
    "block of a file left its server",
    "block of a queue left its server",
    "block raised",
    "block in a store",
    "block of a store lowered",
    "block of extents given back",
    "block retired",
    "capacity given back",
    "checkpoint of a block in use",
    "commit refused",
    "drained server ended",
    "edge by use",
    "edge impossible",
    "empty block copied below",
    "extents gone while they were read",
    "grant expired on the way",
    "grant revoked",
    "growth answered when the block was open",
    "growth denied for memory",
    "growth denied for the quota",
    "growth denied without a controller",
    "growth in a file",
    "growth in a queue",
    "hung up while waiting",
    "intruder refused",
    "item in extents is next",
    "item in extents left",
    "item in extents reserved",
    "item in extents taken",
    "large append committed",
    "large append of several blocks",
    "map refreshed for a large append",
    "larger capacity denied for memory",
    "large value",
    "large value carried",
    "large value dropped while it moves",
    "large value not carried",
    "large value not taken",
    "large value taken",
    "large values to leave",
    "lease expired",
    "log replaced by a snapshot",
    "many keys read",
    "lowering given up",
    "lowering refused",
    "lots given back",
    "lots lent",
    "lots that others have",
    "lots told by a server that came back",
    "merge asked for",
    "move cancelled",
    "move committed",
    "move refused",
    "mutation repeated",
    "outcome unknown",
    "placed below",
    "prefix freed by its readers",
    "prefix removed",
    "prefix with two parents",
    "private block moved before it served",
    "private blocks gone at the commit",
    "private blocks gone while they were written",
    "process of a server found ended",
    "region changed while it moves",
    "put of extents that were gone",
    "read below",
    "relocation asked for",
    "reply overtaken",
    "request that waited for blocks that go down",
    "request that waited for lots",
    "run of deltas not written",
    "run of deltas written",
    "runs of deltas merged",
    "scan of several pages",
    "server back under a new name",
    "server back under its name",
    "server declared dead for its silence",
    "soft quota of a prefix",
    "some of many keys read",
    "split asked for",
    "stall",
    "stale map corrected",
    "successor given back",
    "suspected server back",
    "suspicion ended by a report",
    "target refused for a broken link",
    "transfer between accounts",
    "value in extents scanned",
    "value in lists",
    "value in lists of lists",
    "value read from extents",
    "value stored in extents",
    "value too large for its block",
    "write to a server that is given up",
    "promotion requested",
];

/// The pairs of a present use of a block and a new export that every long run must have attempted. The
/// simulator has no journals and retains no blocks, a block whose use refuses a move requests none, and no
/// controller demotes a target of a move, or a block that is being demoted. A test of the shard attempts
/// these pairs.
fn expected_overlaps() -> impl Iterator<Item = (PresentUse, NewUse)> {
    let present = [
        PresentUse::Peer,
        PresentUse::CancelledMove,
        PresentUse::Import,
        PresentUse::Tier,
        PresentUse::Checkpoint,
    ];
    let new = [NewUse::Tier, NewUse::Copy, NewUse::Checkpoint];
    let pairs = present.into_iter().flat_map(move |present| new.map(|new| (present, new)));
    pairs.filter(|(present, new)| {
        *new != NewUse::Tier || !matches!(present, PresentUse::Import | PresentUse::Tier)
    })
}

/// The statistics of a run, or of many.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Operations finished.
    pub operations: u64,
    /// Faults injected, by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// States reached, by name.
    pub states: BTreeMap<&'static str, u64>,
    /// Endings of operations, by status.
    pub endings: BTreeMap<&'static str, u64>,
    /// Runs that had a class of faults, by class.
    pub classes: BTreeMap<&'static str, u64>,
    /// Runs that had two classes at once.
    pub pairs: BTreeMap<(&'static str, &'static str), u64>,
    /// Crash cells that occurred.
    pub cells: BTreeMap<Cell, u64>,
    /// Runs in which an export of a block was begun or refused beside a present use of it.
    pub overlaps: BTreeMap<(PresentUse, NewUse), u64>,
    /// Blocks sealed with a successor.
    pub grown: u64,
    /// Blocks of queues retired.
    pub retired: u64,
    /// Commands that the catalog and its model agreed on.
    pub commands: u64,
    /// Histories of keys for which an order was found.
    pub histories: u64,
    /// Events that happened.
    pub events: u64,
    /// Virtual time, in milliseconds.
    pub virtual_ms: u64,
    /// Hash of everything that happened, in order (INV-35).
    pub trace: u64,
}

impl Stats {
    /// Total number of faults.
    pub fn fault_count(&self) -> u64 {
        self.faults.values().sum()
    }

    /// Adds the statistics of another run.
    pub fn add(&mut self, more: &Stats) {
        self.operations += more.operations;
        self.grown += more.grown;
        self.retired += more.retired;
        self.commands += more.commands;
        self.histories += more.histories;
        self.events += more.events;
        self.virtual_ms += more.virtual_ms;
        let counts = [
            (&mut self.faults, &more.faults),
            (&mut self.states, &more.states),
            (&mut self.endings, &more.endings),
            (&mut self.classes, &more.classes),
        ];
        for (sum, more) in counts {
            for (name, count) in more {
                *sum.entry(name).or_default() += count;
            }
        }
        for (cell, count) in &more.cells {
            *self.cells.entry(*cell).or_default() += count;
        }
        for (pair, count) in &more.pairs {
            *self.pairs.entry(*pair).or_default() += count;
        }
        for (pair, count) in &more.overlaps {
            *self.overlaps.entry(*pair).or_default() += count;
        }
    }

    /// Faults and states that should have been reached and were not, and names that were reached
    /// but are not listed, which is as bad: their absence would not be noticed.
    pub fn missed(&self) -> Vec<String> {
        let lists = [("fault", FAULTS, &self.faults), ("state", STATES, &self.states)];
        let mut missed = Vec::new();
        for (what, listed, reached) in lists {
            let never = listed.iter().filter(|name| !reached.contains_key(*name));
            missed.extend(never.map(|name| format!("{what} '{name}' was never reached")));
            let known = |name: &&str| listed.contains(name) || RARE.contains(name);
            let unlisted = reached.keys().filter(|name| !known(name));
            missed.extend(unlisted.map(|name| format!("{what} '{name}' is not listed")));
        }
        let cells = Cell::all().filter(|cell| !self.cells.contains_key(cell));
        missed.extend(cells.map(|cell| format!("the crash cell '{cell}' never came up")));
        let overlaps = expected_overlaps().filter(|pair| !self.overlaps.contains_key(pair));
        missed.extend(overlaps.map(|(present, new)| {
            format!("an export ({new:?}) beside a use ({present:?}) was never attempted")
        }));
        missed
    }
}
