//! The lower tiers of simulated servers: each has a disk with delays and faults, and some have an
//! object store under it that is sometimes unreachable.
//!
//! A separate random stream decides which seeds have disks, so that the faults of the others are
//! the same as before there were disks. A shard's disk request is executed at a drawn time, and
//! only then: if its bytes wrongly change meanwhile, the changed bytes are written, and a slot that
//! has another owner by then is overwritten. The shard learns the outcome at a later time: in between,
//! nothing pins the bytes but the shard itself.

use crate::net::{Node, SERVERS};
use crate::server::{SHARDS, WARM};
use crate::sizes::Sizes;
use crate::world::{Event, World};
use honeycomb_catalog::{Actor, Command, Reply, TierUse};
use honeycomb_env::Entropy;
use honeycomb_server::{Io, IoDone, IoId, IoWhat};
use honeycomb_types::limits::{BELOW_READ_MAX, BLOCK_SIZE_MIN, TIER_CHUNK};
use honeycomb_types::{BlockAt, BlockId, Epoch, PolicyKind, StructureId, TierClass, TierIx, Time};
use std::ops::Range;
use std::time::Duration;

/// The tier of the object store, if there is one.
const STORE: TierIx = TierIx(2);
/// Number of free blocks in lower tiers that counts as space.
const ROOM: u64 = 24;
/// One seed in this many has disks, of those with one controller shard.
const WITH_DISKS: u64 = 2;
/// Requests in a million whose outcome their shard learns at once.
const REPORTED_AT_ONCE: u64 = 700_000;

/// The disk faults of one seed.
pub struct Disks {
    rng: Entropy,
    /// The shortest and the longest time of a request.
    time_us: Range<u64>,
    /// Chances in a million.
    fail_write: u64,
    fail_read: u64,
    full: u64,
    /// The chance that the store is unreachable for one request.
    away: u64,
}

/// Blocks of each shard of each server that fit on its disk: 0 in half of the seeds.
pub fn below(seed: u64, controllers: usize) -> u32 {
    let mut rng = Entropy::seeded(seed ^ 0xd15c);
    let with = rng.below(WITH_DISKS) == 0 && controllers == 1;
    let below = if with { 4 + rng.below(21) as u32 } else { 0 };
    // With a store under it, the disk is small.
    if store(seed, below) > 0 { 3 } else { below }
}

/// Blocks of each shard that fit in an object store under its disk: in a third of the seeds with
/// disks.
pub fn store(seed: u64, below: u32) -> u32 {
    let with = below > 0 && Entropy::seeded(seed ^ 0x57012e).below(3) == 0;
    if with { 24 } else { 0 }
}

/// Bytes of memory of each shard for deltas, in seeds with disks.
pub fn deltas(seed: u64) -> usize {
    [8 << 10, 512, 64 << 10, 0][Entropy::seeded(seed ^ 0xde17a).below(4) as usize]
}

/// Whether memory is so short in this seed, and so much data goes to files, that some blocks are
/// always in lower tiers.
pub fn scarce(seed: u64, below: u32) -> bool {
    below > 0 && Entropy::seeded(seed ^ 0x5ca7ce).below(2) == 0
}

/// Blocks of memory of each shard, if most of the data must be in lower tiers: as few as data
/// fills.
pub fn frames(sizes: &mut Sizes) -> u32 {
    let most = if sizes.block as u64 > BLOCK_SIZE_MIN { 2 } else { 5 };
    2 + sizes.below(most - 1) as u32
}

/// How memory is shared: half of the seeds with disks have a fair policy.
pub fn policy(seed: u64, controllers: usize) -> PolicyKind {
    let fair = [PolicyKind::MaxMin, PolicyKind::Karma];
    match Entropy::seeded(seed ^ 0xfa1).below(4) {
        n @ 0..2 if below(seed, controllers) > 0 => fair[n as usize],
        _ => PolicyKind::FirstCome,
    }
}

impl Disks {
    /// The disk faults of a seed.
    pub fn draw(seed: u64) -> Disks {
        let mut rng = Entropy::seeded(seed ^ 0xd15c5);
        let slow = rng.chance(200_000);
        let slowest_us = if slow { 2_000_000 } else { 200 + rng.below(5000) };
        let mut chance = |most: u64| if rng.chance(500_000) { rng.below(most) } else { 0 };
        let (fail_write, fail_read, full) = (chance(50_000), chance(50_000), chance(20_000));
        let away = chance(100_000);
        Disks { rng, time_us: 50..50 + slowest_us, fail_write, fail_read, full, away }
    }

    /// Disks without faults, which need so long for each request.
    pub fn slow(seed: u64, time: Range<Duration>) -> Disks {
        let time_us = time.start.as_micros() as u64..time.end.as_micros() as u64;
        Disks {
            rng: Entropy::seeded(seed ^ 0x510),
            time_us,
            fail_write: 0,
            fail_read: 0,
            full: 0,
            away: 0,
        }
    }

    /// Ends all faults. Disks whose shortest time is long (`slow`) stay so.
    pub fn heal(&mut self) {
        (self.fail_write, self.fail_read, self.full, self.away) = (0, 0, 0, 0);
        self.time_us.end = self.time_us.end.min(self.time_us.start + 5000);
    }
}

impl World {
    /// Schedules the disk requests of a server's shards.
    pub fn carry_io(&mut self, server: usize) {
        for (shard, io) in std::mem::take(&mut self.servers[server].io) {
            if let IoWhat::Read { .. } = io.what {
                self.reach("read below");
            }
            let Range { start, end } = self.disks.time_us;
            let us = start + self.disks.rng.below(end - start);
            let life = self.servers[server].life;
            let event = Event::Io { server, life, shard, io: Box::new(io) };
            self.schedule(Duration::from_micros(us), event);
        }
    }

    /// Since when there is room for blocks, with the present moment included.
    pub fn look_for_room(&mut self) -> Option<Time> {
        self.room_since = self.has_room().then(|| self.room_since.unwrap_or(self.now));
        self.room_since
    }

    /// Whether there is space for more: a writer that is refused memory then has not waited for it.
    fn has_room(&mut self) -> bool {
        let actor = Actor::CLUSTER;
        let Ok(Reply::Status(status)) = self.command(0, Command::ClusterStatus { actor }) else {
            return false;
        };
        // A few slots of each server may be in transition from one block to another. Blocks that change are
        // in memory or on disks: a store has room for others, which leave their place on a disk.
        let (stores, rest): (Vec<&TierUse>, _) =
            status.tiers.iter().partition(|tier| tier.class == TierClass::Object);
        let free = |tiers: Vec<&TierUse>| -> u64 {
            tiers.iter().map(|tier| tier.blocks.saturating_sub(tier.used)).sum()
        };
        let sinking = self.controllers[0].catalog.blocks_for_stores();
        let room = free(rest) + free(stores).min(sinking);
        self.below > 0 && room >= ROOM
    }

    /// Bytes that one read returns at least, if there are so many: its block may be in a lower
    /// tier.
    pub fn piece_below(&self) -> usize {
        let buffers = self.sizes.buffers * self.sizes.block;
        if self.below > 0 { BELOW_READ_MAX.min(buffers / 2).max(TIER_CHUNK) } else { usize::MAX }
    }

    /// A disk executes a request.
    pub fn io(&mut self, server: usize, life: u64, shard: u8, io: Io) {
        if !self.servers[server].alive || self.servers[server].life != life {
            return;
        }
        let disks = &mut self.disks;
        let (write, read) = (disks.rng.chance(disks.fail_write), disks.rng.chance(disks.fail_read));
        let flip = disks.rng.chance(disks.fail_read);
        let (disk, base) = self.servers[server].volume(io.tier, shard);
        let is_store = io.tier == STORE;
        let full = !is_store && disks.rng.chance(disks.full);
        let away = is_store && disks.rng.chance(disks.away);
        if is_store {
            self.reach("block in a store");
        }
        disk.set_away(away);
        if full {
            // Existing data stays; nothing more fits until the disk is healed, or space is freed.
            disk.set_room(Some(disk.taken()));
        }
        disk.fail_writes(u32::from(write));
        // A fault that occurs once does not occur in the second try.
        disk.fail_reads(u32::from(read));
        disk.flip_reads(u32::from(flip && !read));
        for (seen, what) in [
            (full, "disk full"),
            (away, "store away"),
            (write, "write below failed"),
            (read, "read below failed once"),
            (flip, "wrong bytes from below once"),
        ] {
            if seen {
                self.fault(what);
            }
        }
        let (id, done) = io.carry_out(&*disk, base);
        if self.disks.rng.chance(REPORTED_AT_ONCE) {
            return self.io_done(server, life, shard, id, done);
        }
        let Range { start, end } = self.disks.time_us;
        let us = self.disks.rng.below(end - start);
        let event = Event::IoDone { server, life, shard, id, done: Box::new(done) };
        self.schedule(Duration::from_micros(us), event);
    }

    /// A shard learns the outcome of a request.
    pub fn io_done(&mut self, server: usize, life: u64, shard: u8, id: IoId, done: IoDone) {
        if !self.servers[server].alive || self.servers[server].life != life {
            return;
        }
        let now = self.local(Node::Server(server));
        let sim = &mut self.servers[server];
        let shard = &mut sim.shards[shard as usize];
        let before = shard.reports().tier_counts();
        shard.tiers().io_done(now, id, done);
        let after = shard.reports().tier_counts();
        let messages = sim.settle();
        if after.runs.0 > before.runs.0 {
            self.reach("run of deltas written");
        }
        if after.runs.1 > before.runs.1 {
            self.reach("run of deltas not written");
        }
        if after.merged > before.merged {
            self.reach("runs of deltas merged");
        }
        self.send_all(server, messages);
        self.check_rooms(server);
    }

    /// No shard has more blocks in memory than it may (INV-42).
    pub fn check_rooms(&mut self, server: usize) {
        let sim = &self.servers[server];
        let frames = sim.frames;
        let over = sim.shards.iter().map(|shard| shard.reports().in_memory());
        if let Some((used, warm)) = over.into_iter().find(|(f, w)| *f > frames || *w > WARM) {
            let text = format!(
                "a core of {} has {used} blocks in memory and {warm} beside them; there is room \
                 for {frames} and {WARM} (INV-42)",
                sim.address
            );
            self.broken(text);
        }
    }

    /// Bytes of a block are lost with its disk.
    pub fn block_failed(&mut self, ix: usize, structure: StructureId, at: BlockAt, why: &str) {
        // The disks here have only faults that occur once.
        self.broken(format!("{at:?} of {structure} cannot be read: {why} (INV-11)"));
        let _ = self.command(ix, Command::BlockFailed { structure, at });
    }

    /// Whether every block is stored in the tier that its catalog believes, and none is being moved (INV-42).
    pub fn places_agree(&self) -> bool {
        let shards = self.servers.iter().flat_map(|server| &server.shards);
        shards.flat_map(|shard| shard.reports().holdings()).all(|held| {
            let at = BlockAt { block: BlockId(held.block), epoch: Epoch(held.epoch) };
            let catalog = &self.controllers[at.block.server().controller() as usize].catalog;
            let tier = TierIx(held.tier);
            held.tier == held.to && catalog.tiers_of(at) == Some((tier, tier))
        })
    }

    /// After all blocks were freed: no disk has any data, and none is in transit (INV-44).
    pub fn judge_disks(&mut self) {
        if self.below == 0 {
            return;
        }
        for server in 0..SERVERS {
            let sim = &self.servers[server];
            let quiet = (0..SHARDS as usize).all(|ix| sim.shards[ix].reports().tiers_are_quiet());
            let taken = sim.disk.taken() + sim.store.taken();
            if !quiet || taken > 0 {
                let text = format!(
                    "{taken} bytes of the disk and the store of {} are in use after everything \
                        was freed (INV-44)",
                    sim.address
                );
                return self.broken(text);
            }
        }
    }
}
