//! One live memory server, as the catalog knows it.

use super::Draw;
use super::cores::{Core, Going, Held, Room, Slot};
use crate::kinds::KindSet;
use crate::lots::Lending;
use crate::tier_weights::Flow;
use crate::weights::Load;
use crate::{NewServer, TierAlarm, TierTraffic};
use hashbrown::HashMap;
use honeycomb_types::limits::{RESERVE_BLOCKS_MIN, RESERVE_FRACTION, SERVER_SILENCE};
use honeycomb_types::{BlockId, Bug, TierIx, TierSpec, Time};
use std::sync::Arc;
use std::time::Duration;

/// How well a member can be heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It reports.
    Here,
    /// It was silent for `SERVER_SILENCE`, or its connection closed: it is given no blocks until it is
    /// heard again, and has reported its blocks if it is back over another connection (INV-56).
    Suspected,
    /// Known from the log and not back yet: its inventory is unknown, and nothing of it is free.
    Away,
}

/// One live memory server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: Arc<str>,
    pub(crate) incarnation: u64,
    pub(crate) last_seen: Time,
    /// Blocks that may be in memory.
    pub(crate) total: u32,
    pub(crate) quarantined: u32,
    pub(crate) bytes_used: u64,
    pub(crate) bytes_resident: u64,
    pub(crate) connections: u32,
    pub(crate) requests: u64,
    pub(crate) forwarded: u64,
    pub(crate) bytes_owed: u64,
    pub(crate) load: Load,
    /// What its tiers moved, as it told last; nothing before that.
    pub(crate) traffic: Box<[TierTraffic]>,
    /// How fast that grows, of each tier.
    pub(crate) flows: Box<[Flow]>,
    /// What is wrong with them, as it told last.
    pub(crate) alarms: Box<[TierAlarm]>,
    /// It can write data of expired prefixes to disk.
    pub(crate) flush: bool,
    /// Where to.
    pub(crate) flush_root: Box<str>,
    /// The custom kinds that it serves.
    pub(crate) kinds: KindSet,
    pub(crate) presence: Presence,
    /// It is being taken out, and is given no block (INV-46).
    pub(crate) draining: bool,
    /// Room that other controller shards may have, where there are any.
    pub(crate) lending: Option<Lending>,
    /// What is below its memory, each core's.
    pub(crate) tiers: Box<[TierSpec]>,
    pub(super) cores: Box<[Core]>,
}

impl Server {
    pub(super) fn new(new: NewServer<'_>, now: Time) -> Server {
        let total = new.shards as u32 * new.blocks_per_shard;
        Server {
            address: new.address.into(),
            incarnation: new.incarnation,
            last_seen: now,
            total,
            quarantined: 0,
            bytes_used: 0,
            bytes_resident: 0,
            connections: 0,
            requests: 0,
            forwarded: 0,
            bytes_owed: 0,
            load: Load::default(),
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
            cores: (0..new.shards).map(|_| Core::new(new.blocks_per_shard, new.tiers)).collect(),
        }
    }

    pub(crate) fn shards(&self) -> u8 {
        self.cores.len() as u8
    }

    /// That may be in memory.
    pub(crate) fn blocks_per_shard(&self) -> u32 {
        self.cores[0].rooms[0].total
    }

    /// Blocks that could be given in memory, with the reserve.
    pub(crate) fn free(&self) -> u32 {
        self.cores.iter().map(|core| core.rooms[0].free()).sum()
    }

    /// Whether none of its blocks is out, wherever it would be.
    pub(crate) fn holds_nothing(&self) -> bool {
        self.cores.iter().all(|core| core.out() == 0)
    }

    /// Room in a tier below: all of it, what is taken, and what of that leaves it.
    pub(crate) fn below(&self, tier: usize) -> Room {
        self.cores.iter().fold(Room::default(), |sum, core| {
            let Room { total, out, leaving } = core.rooms[tier + 1];
            let (total, out) = (sum.total + total, sum.out + out);
            Room { total, out, leaving: sum.leaving + leaving }
        })
    }

    /// Its disks of which blocks go on to a store that it has: those that have fewer free than `mark`
    /// says of all that they have.
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

    /// Whether a tier below has fewer blocks free, or soon, than are to be kept free.
    pub(crate) fn is_short(&self, tier: TierIx, mark: u32) -> bool {
        let Room { total, out, leaving } = self.below(tier.0 as usize - 1);
        total.saturating_sub(out) + leaving < mark
    }

    /// Whether it is there, and not suspected to be gone.
    pub(crate) fn is_heard(&self) -> bool {
        self.presence == Presence::Here
    }

    /// Whether blocks of it are on their way down.
    pub(crate) fn lowers(&self) -> bool {
        self.cores.iter().any(|core| core.going != Going::default())
    }

    /// Whether memory may become free on it as blocks go to its disks.
    pub(crate) fn may_lower(&self) -> bool {
        !self.draining && (self.lowers() || self.cores.iter().any(Core::could_lower))
    }

    /// Whether it is known from the log and not back yet.
    pub(crate) fn is_away(&self) -> bool {
        self.presence == Presence::Away
    }

    /// Whether it is suspected to be gone.
    pub(crate) fn is_suspected(&self) -> bool {
        self.presence == Presence::Suspected
    }

    /// Whether it may be given blocks.
    pub(crate) fn takes_blocks(&self) -> bool {
        let heard = match self.presence {
            Presence::Here => true,
            Presence::Suspected => Bug::SuspectedGetsBlocks.active(),
            Presence::Away => false,
        };
        heard && (!self.draining || Bug::DrainTakesNewBlocks.active())
    }

    /// When its silence has consequences next: it is suspected, or lost after `loss`.
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

    /// Its cores' blocks.
    pub(crate) fn cores(&self) -> impl ExactSizeIterator<Item = &Core> {
        self.cores.iter()
    }

    pub(super) fn unlent(&self) -> u32 {
        self.cores.iter().map(|core| core.unlent).sum()
    }

    /// Takes what is lent to this controller shard now, by core; all that is out is within it.
    pub(crate) fn set_lent(&mut self, lent: &[u32]) {
        for (core, lent) in self.cores.iter_mut().zip(lent) {
            core.unlent = core.blocks() - lent;
            let (out, free) = (core.out(), core.free);
            assert!(core.unlent <= free, "INV-40: {out} blocks are out and {lent} are lent");
        }
    }

    /// Blocks in memory that this controller shard may give.
    pub(crate) fn lent_total(&self) -> u32 {
        self.total - self.lending.as_ref().map_or(0, |_| self.unlent())
    }

    pub(crate) fn reserve(&self) -> u32 {
        let lent = self.lent_total();
        RESERVE_BLOCKS_MIN.max(lent / RESERVE_FRACTION)
    }

    /// Blocks in memory that it could give to an ordinary allocation.
    pub(crate) fn spare(&self) -> u32 {
        self.room(Draw::Ordinary)
    }

    /// Blocks that such an allocation may take of a tier.
    pub(crate) fn room_in(&self, tier: TierIx, draw: Draw) -> u32 {
        if !tier.is_below() {
            return self.room(draw);
        }
        let open = self.cores.iter().filter(|core| !core.is_store(tier) && self.takes_blocks());
        open.map(|core| core.room_in(tier)).sum()
    }

    /// Free blocks in memory that such an allocation may take.
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

    /// Blocks in quarantine that have memory.
    pub(crate) fn quarantined_in_memory(&self) -> u32 {
        if self.tiers.is_empty() {
            return self.quarantined;
        }
        let of = |core: &Core| {
            let slots = core.slots.iter().zip(&core.places);
            slots.filter(|(s, p)| s.held() == Held::Quarantined && p.in_memory()).count()
        };
        self.cores.iter().map(of).sum::<usize>() as u32
    }

    /// Structures that have a block here, each once, in order of block.
    pub(crate) fn owners(&self) -> Vec<u32> {
        let mut seen = HashMap::new();
        let slots = self.cores.iter().flat_map(|core| &core.slots);
        let owners = slots.filter_map(|slot| match slot.held() {
            Held::By(structure) => seen.insert(structure, ()).is_none().then_some(structure),
            _ => None,
        });
        owners.collect()
    }

    pub(super) fn slot(&mut self, block: BlockId) -> Option<&mut Slot> {
        let core = self.cores.get_mut(block.shard().0 as usize)?;
        core.slots.get_mut(block.index() as usize)
    }
}
