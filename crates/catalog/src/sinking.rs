//! When a disk runs short: which of its blocks go on to an object store.
//!
//! Every server that has a store below its disks keeps some of each disk free, as it does of memory: so
//! what leaves memory finds a disk and not a store, and what comes faster than blocks go down has its
//! place on a disk from the start. Only blocks that take no more go to a store.
//!
//! Who asks pays first, with the coldest block that it has there. When it has none the coldest of anybody
//! goes: room on a disk is nobody's share, and who finds neither memory nor a disk would be refused while
//! there is room in the store. Memory is shared out as ever (INV-43): what one has there is given up for
//! others by the policy alone.

use crate::pressure::{Candidate, Level, Scan, has_tiers};
use crate::{Catalog, Effect};
use honeycomb_types::limits::SINK_SCAN;
use honeycomb_types::{PrefixId, ServerId, TierIx};

/// Blocks of a disk that are kept free for who comes next, of so many that it has.
fn mark_of(shards: u8, total: u32) -> u32 {
    (2 * u32::from(shards)).max(total / 32)
}

impl Catalog {
    /// Lets blocks of disks on which little is free go on to stores, for a prefix that asked.
    pub(crate) fn press_disks(&mut self, n: u32, effects: &mut Vec<Effect>) {
        for (id, disk) in self.short_disks() {
            while self.short_disk(id, disk)
                && let Some(found) = self.coldest_on(n, id, disk)
            {
                self.pressure.disk_hands.insert(found.n, found.hand);
                self.lower(found.block, found.tier, effects);
            }
        }
    }

    fn short_disks(&self) -> Vec<(ServerId, TierIx)> {
        let servers = self.pool.servers().filter(|(_, server)| has_tiers(server));
        let short = servers.flat_map(|(id, server)| {
            let shards = server.shards();
            let short = server.short_disks(|total| mark_of(shards, total));
            short.into_iter().map(move |disk| (id, disk))
        });
        short.collect()
    }

    fn short_disk(&self, id: ServerId, disk: TierIx) -> bool {
        let server = self.pool.server(id).expect("nobody left meanwhile");
        server.is_short(disk, mark_of(server.shards(), server.below(disk.0 as usize - 1).total))
    }

    /// The block of a disk to go to a store next.
    fn coldest_on(&mut self, n: u32, server: ServerId, disk: TierIx) -> Option<Candidate> {
        let level = Level::Disk(server, disk);
        let mut scan = Scan { left: SINK_SCAN, ended: None };
        let own = self.coldest_at(level, &[n], &mut scan);
        if let Some((n, hand)) = scan.ended.take() {
            self.pressure.disk_hands.insert(n, hand);
        }
        // What others have is not known before every server has told.
        if own.is_some() || self.recovering() {
            return own;
        }
        let jobs: Vec<u32> =
            self.jobs.iter().filter(|(_, job)| job.blocks > 0).map(|(j, _)| j).collect();
        let from = self.pressure.disk_from.and_then(|id: PrefixId| self.dag.by_id(id));
        let list = self.prefixes_with_data(&jobs, from);
        scan.left = SINK_SCAN;
        let found = self.coldest_at(level, &list, &mut scan);
        // On the next time it goes on where something was found, or where it ended.
        let ended = scan.ended.take();
        if let Some((n, hand)) = ended {
            self.pressure.disk_hands.insert(n, hand);
        }
        let at = found.as_ref().map(|found| found.n).or(ended.map(|(n, _)| n));
        let at = at.or(list.last().copied());
        self.pressure.disk_from = at.map(|n| self.dag.nodes[n].id);
        found
    }
}
