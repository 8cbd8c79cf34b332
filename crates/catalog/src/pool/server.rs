//! One live memory server.

use super::Draw;
use super::cores::{Core, CoreRoom, Going, Slot, SlotOwner};
use crate::kinds::KindSet;
use crate::lots::Lending;
use crate::tier_weights::Flow;
use crate::weights::ServerLoad;
use crate::{NewServer, TierAlarm, TierTraffic};
use hashbrown::HashMap;
use honeycomb_types::limits::{RESERVE_BLOCKS_MIN, RESERVE_FRACTION, SERVER_SILENCE};
use honeycomb_types::{
    BlockAt, BlockId, BlockUnits, Bug, ServerId, ShardIx, TierIx, TierSpec, Time,
};
use std::sync::Arc;
use std::time::Duration;

/// The state of the connection to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It reports.
    Here,
    /// It was silent for `SERVER_SILENCE`, or its connection closed: it receives no blocks until it reports
    /// again and, if it reconnected, has reported its blocks (INV-56).
    Suspected,
    /// Known from the log and not back yet: its inventory is unknown, and none of its blocks is free.
    Away,
}

/// One live memory server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: Arc<str>,
    pub(crate) incarnation: u64,
    pub(crate) last_seen: Time,
    /// The units of its blocks.
    pub(crate) units: BlockUnits,
    /// Units of memory.
    pub(crate) total: u32,
    pub(crate) quarantined: u32,
    pub(crate) bytes_used: u64,
    pub(crate) bytes_resident: u64,
    pub(crate) connections: u32,
    pub(crate) requests: u64,
    pub(crate) forwarded: u64,
    pub(crate) bytes_owed: u64,
    pub(crate) load: ServerLoad,
    /// The traffic of its tiers, as last reported; empty before that.
    pub(crate) traffic: Box<[TierTraffic]>,
    /// The rate of each tier's traffic.
    pub(crate) flows: Box<[Flow]>,
    /// Faults of its tiers, as last reported.
    pub(crate) alarms: Box<[TierAlarm]>,
    /// Whether it can flush data of expired prefixes.
    pub(crate) flush: bool,
    /// The root of its flushes.
    pub(crate) flush_root: Box<str>,
    /// The custom kinds that it serves.
    pub(crate) kinds: KindSet,
    pub(crate) presence: Presence,
    /// It is draining, and receives no blocks (INV-46).
    pub(crate) draining: bool,
    /// The state of its lending, where there are several controller shards.
    pub(crate) lending: Option<Lending>,
    /// The lower tiers of each core.
    pub(crate) tiers: Box<[TierSpec]>,
    pub(super) cores: Box<[Core]>,
}

impl Server {
    pub(super) fn new(new: NewServer<'_>, now: Time) -> Server {
        let units = BlockUnits::of(new.block_size);
        let total = new.shards as u32 * units.units(new.blocks_per_shard);
        let core = |_| Core::new(new.blocks_per_shard, new.tiers, units);
        Server {
            address: new.address.into(),
            incarnation: new.incarnation,
            last_seen: now,
            units,
            total,
            quarantined: 0,
            bytes_used: 0,
            bytes_resident: 0,
            connections: 0,
            requests: 0,
            forwarded: 0,
            bytes_owed: 0,
            load: ServerLoad::default(),
            traffic: Box::default(),
            flows: Box::default(),
            alarms: Box::default(),
            flush: !new.flush_root.is_empty(),
            flush_root: new.flush_root.into(),
            kinds: KindSet::of(new.kinds),
            presence: Presence::Here,
            draining: false,
            lending: None,
            tiers: new.tiers.into(),
            cores: (0..new.shards).map(core).collect(),
        }
    }

    pub(crate) fn shards(&self) -> u8 {
        self.cores.len() as u8
    }

    /// Whole blocks for which each core has memory.
    pub(crate) fn blocks_per_shard(&self) -> u32 {
        self.cores[0].rooms[0].total / self.units.whole()
    }

    /// Units available in memory, including the reserve.
    pub(crate) fn free(&self) -> u32 {
        self.cores.iter().map(|core| core.rooms[0].free()).sum()
    }

    /// Whether none of its blocks is allocated or quarantined, in any tier.
    pub(crate) fn holds_nothing(&self) -> bool {
        self.cores.iter().all(Core::is_unused)
    }

    /// The room of a lower tier: the total, the occupied part, and the part of it that leaves.
    pub(crate) fn below(&self, tier: usize) -> CoreRoom {
        self.cores.iter().fold(CoreRoom::default(), |sum, core| {
            let CoreRoom { total, out, leaving } = core.rooms[tier + 1];
            let (total, out) = (sum.total + total, sum.out + out);
            CoreRoom { total, out, leaving: sum.leaving + leaving }
        })
    }

    /// Its disks from which blocks are demoted to one of its stores: those with fewer free blocks than `mark`
    /// of their total.
    pub(crate) fn short_disks(&self, mark: impl Fn(u32) -> u32) -> Vec<TierIx> {
        let is_store = |tier: &TierIx| self.cores[0].is_store(*tier);
        let tiers = || (1..=self.tiers.len() as u8).map(TierIx);
        let short =
            |tier: &TierIx| self.is_short(*tier, mark(self.below(tier.0 as usize - 1).total));
        match tiers().any(|tier| is_store(&tier)) {
            true => tiers().filter(|tier| !is_store(tier) && short(tier)).collect(),
            false => Vec::new(),
        }
    }

    /// Whether a lower tier has fewer blocks free, now or soon, than the mark requires.
    pub(crate) fn is_short(&self, tier: TierIx, mark: u32) -> bool {
        let CoreRoom { total, out, leaving } = self.below(tier.0 as usize - 1);
        total.saturating_sub(out) + leaving < mark
    }

    /// Whether it is connected, and not suspected.
    pub(crate) fn is_heard(&self) -> bool {
        self.presence == Presence::Here
    }

    /// Whether blocks on it are being demoted.
    pub(crate) fn lowers(&self) -> bool {
        self.cores.iter().any(|core| core.going != Going::default())
    }

    /// Whether memory may become free on it by demotions to its disks.
    pub(crate) fn may_lower(&self) -> bool {
        !self.draining && (self.lowers() || self.cores.iter().any(Core::could_lower))
    }

    /// Whether it is known from the log and not back yet.
    pub(crate) fn is_away(&self) -> bool {
        self.presence == Presence::Away
    }

    /// Whether it is suspected to be lost.
    pub(crate) fn is_suspected(&self) -> bool {
        self.presence == Presence::Suspected
    }

    /// Whether blocks may be allocated on it.
    pub(crate) fn takes_blocks(&self) -> bool {
        let heard = match self.presence {
            Presence::Here => true,
            Presence::Suspected => Bug::SuspectedGetsBlocks.active(),
            Presence::Away => false,
        };
        heard && (!self.draining || Bug::DrainTakesNewBlocks.active())
    }

    /// The time at which its silence next has consequences: it becomes suspected, or is lost after `loss`.
    pub(crate) fn silent_at(&self, loss: Duration) -> Time {
        self.last_seen
            + match self.presence {
                Presence::Here => SERVER_SILENCE,
                Presence::Suspected | Presence::Away => loss,
            }
    }

    /// Whether it has been silent for so long that it is lost.
    pub(crate) fn is_overdue(&self, loss: Duration, heard: Time) -> bool {
        let suspicion_is_loss = Bug::SuspectedIsLost.active() && !self.is_away();
        let silence = if suspicion_is_loss { SERVER_SILENCE } else { loss };
        self.last_seen + silence <= heard
    }

    /// The blocks of its cores.
    pub(crate) fn cores(&self) -> impl ExactSizeIterator<Item = &Core> {
        self.cores.iter()
    }

    pub(super) fn unlent(&self) -> u32 {
        self.cores.iter().map(|core| core.unlent).sum()
    }

    /// Sets the units lent to this controller shard, by core; no more than these are out.
    pub(crate) fn set_lent(&mut self, lent: &[u32]) {
        for (core, &lent) in self.cores.iter_mut().zip(lent) {
            let (all, out) = (core.capacity(), core.out());
            assert!(lent <= all, "INV-40: {lent} of {all} units are lent");
            assert!(out <= lent, "INV-40: {out} units are out and {lent} are lent");
            core.unlent = all - lent;
        }
    }

    /// Units of memory that this controller shard may allocate.
    pub(crate) fn lent_total(&self) -> u32 {
        self.total - self.lending.as_ref().map_or(0, |_| self.unlent())
    }

    pub(crate) fn reserve(&self) -> u32 {
        let lent = self.lent_total();
        let whole = self.units.whole();
        self.units.units(RESERVE_BLOCKS_MIN).max(lent / RESERVE_FRACTION / whole * whole)
    }

    /// Units of memory available to an ordinary allocation.
    pub(crate) fn spare(&self) -> u32 {
        self.room(Draw::Ordinary)
    }

    /// Number of blocks of this capacity that this draw may take in a tier.
    pub(crate) fn fits(&self, tier: TierIx, draw: Draw, units: u32) -> u32 {
        let on_core = |core: &Core| core.fits(tier, units);
        if tier.is_below() {
            return self.room_in(tier, draw).min(self.cores.iter().map(on_core).sum());
        }
        let whole = self.units.whole();
        let (mut begun, mut rest) = (0, 0);
        for core in &self.cores {
            let all = on_core(core);
            let own = all.min(core.begun(whole) / units);
            (begun, rest) = (begun + own, rest + all - own);
        }
        let divided = rest.min(self.whole_blocks(draw) * (whole / units));
        (begun + divided).min(self.room(draw) / units)
    }

    /// Whole blocks of memory that this draw may divide. Those of the reserve are not divided among small
    /// blocks: a split needs a whole one on one core.
    fn whole_blocks(&self, draw: Draw) -> u32 {
        let whole = self.units.whole();
        let all = self.cores.iter().map(|core| core.room() / whole).sum::<u32>();
        match draw {
            Draw::Ordinary => all.saturating_sub(self.reserve() / whole),
            Draw::Reserve => all,
        }
    }

    /// Whether a new block may take so many units of memory of one core by this draw.
    pub(super) fn gives(&self, core: usize, draw: Draw, units: u32) -> bool {
        self.takes_blocks() && self.has(core, draw, units)
    }

    /// Whether a block of one core may grow by so many units of memory. A block that has not left a draining
    /// server yet still can: its writers have no other room, and its copy gets the same capacity.
    pub(super) fn grows(&self, core: usize, draw: Draw, units: u32) -> bool {
        self.presence == Presence::Here && self.has(core, draw, units)
    }

    fn has(&self, core: usize, draw: Draw, units: u32) -> bool {
        let (room, whole) = (self.cores[core].room(), self.units.whole());
        if room.min(self.room_if_heard(draw)) < units {
            return false;
        }
        room / whole - (room - units) / whole <= self.whole_blocks(draw)
    }

    /// The room of a tier available to this draw: units of memory, or places.
    pub(crate) fn room_in(&self, tier: TierIx, draw: Draw) -> u32 {
        if !tier.is_below() {
            return self.room(draw);
        }
        let open = self.cores.iter().filter(|core| !core.is_store(tier) && self.takes_blocks());
        open.map(|core| core.room_in(tier)).sum()
    }

    /// Units of memory available to this draw.
    pub(crate) fn room(&self, draw: Draw) -> u32 {
        if self.takes_blocks() { self.room_if_heard(draw) } else { 0 }
    }

    /// The same if it were not suspected.
    pub(crate) fn room_if_heard(&self, draw: Draw) -> u32 {
        let room = self.cores.iter().map(Core::room).sum::<u32>();
        match draw {
            Draw::Ordinary => room.saturating_sub(self.reserve()),
            Draw::Reserve => room,
        }
    }

    /// Units of quarantined blocks that occupy memory.
    pub(crate) fn quarantined_in_memory(&self) -> u32 {
        if self.quarantined == 0 {
            return 0;
        }
        let of = |core: &Core| {
            let slots = (0..).zip(&core.slots);
            let kept = slots.filter(|(n, slot)| {
                slot.held() == SlotOwner::Quarantined && core.place(*n).in_memory()
            });
            kept.map(|(_, slot)| slot.units).sum::<u32>()
        };
        self.cores.iter().map(of).sum()
    }

    /// Structures that have a block here, each once, in order of block.
    pub(crate) fn owners(&self) -> Vec<u32> {
        let mut seen = HashMap::new();
        let slots = self.cores.iter().flat_map(|core| &core.slots);
        let owners = slots.filter_map(|slot| match slot.held() {
            SlotOwner::By(structure) => seen.insert(structure, ()).is_none().then_some(structure),
            _ => None,
        });
        owners.collect()
    }

    /// Blocks of a core that have an owner, among so many from an index on.
    pub(crate) fn owned_blocks(
        &self,
        id: ServerId,
        core: usize,
        first: usize,
        count: usize,
    ) -> Vec<(BlockAt, u32)> {
        let slots = self.cores.get(core).map_or(&[][..], |core| &core.slots);
        let slots = slots.iter().enumerate().skip(first).take(count);
        let owned = slots.filter_map(|(index, slot)| match slot.held() {
            SlotOwner::By(s) => {
                let block = BlockId::new(id, ShardIx(core as u8), index as u32);
                Some((BlockAt { block, epoch: slot.epoch }, s))
            }
            _ => None,
        });
        owned.collect()
    }

    pub(super) fn slot(&mut self, block: BlockId) -> Option<&mut Slot> {
        let core = self.cores.get_mut(block.shard().0 as usize)?;
        core.slots.get_mut(block.index() as usize)
    }
}
