//! Selects the blocks of a disk to demote to an object store when the disk is short.
//!
//! A server with an object store keeps a part of each disk free, as it does of memory: so a block is demoted
//! from memory to a disk and not to the store, and blocks requested faster than others can be demoted begin
//! on a disk. Only blocks that accept no more writes go to a store.
//!
//! The coldest block of the caller on that disk is demoted first. If the caller has none there, the coldest
//! block of any prefix is demoted: room on a disk is not divided into shares, and a caller that finds neither
//! memory nor a disk would otherwise be refused while the store has room. Memory is shared as always
//! (INV-43): only the policy demotes a holder's memory for others.

use crate::pressure::{Candidate, Level, Scan, has_tiers};
use crate::{Catalog, Effect};
use honeycomb_types::limits::SINK_SCAN;
use honeycomb_types::{PrefixId, ServerId, TierIx};

/// Blocks of a disk that are kept free for coming requests, out of `total`.
fn mark_of(shards: u8, total: u32) -> u32 {
    (2 * u32::from(shards)).max(total / 32)
}

impl Catalog {
    /// Demotes blocks from disks with little free room to stores, for a prefix that requested blocks.
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
        let server = self.pool.server(id).expect("no server left meanwhile");
        server.is_short(disk, mark_of(server.shards(), server.below(disk.0 as usize - 1).total))
    }

    /// The next block of a disk to demote to a store.
    fn coldest_on(&mut self, n: u32, server: ServerId, disk: TierIx) -> Option<Candidate> {
        let level = Level::Disk(server, disk);
        let mut scan = Scan { left: SINK_SCAN, ended: None };
        let own = self.coldest_at(level, &[n], &mut scan);
        if let Some((n, hand)) = scan.ended.take() {
            self.pressure.disk_hands.insert(n, hand);
        }
        // The holdings of others are unknown before every server has reported.
        if own.is_some() || self.recovering() {
            return own;
        }
        let jobs: Vec<u32> =
            self.jobs.iter().filter(|(_, job)| job.units > 0).map(|(j, _)| j).collect();
        let from = self.pressure.disk_from.and_then(|id: PrefixId| self.dag.by_id(id));
        let list = self.prefixes_with_data(&jobs, from);
        scan.left = SINK_SCAN;
        let found = self.coldest_at(level, &list, &mut scan);
        // The next search continues at the prefix of the found block, or where this one ended.
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
