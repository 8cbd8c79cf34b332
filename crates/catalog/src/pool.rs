//! Memory servers and their blocks: the allocation mechanism.
//!
//! A block is free, allocated to a structure, or quarantined: taken back, but its server has not
//! confirmed that nothing of it can be read any more. These three always add up to what the server
//! registered (INV-02). Every allocation is a new epoch (INV-01), and only the confirmation of the
//! epoch that was taken back makes a block free again, once (INV-03).
//!
//! On a server with tiers below memory a core has more names for blocks than it has room for in memory.
//! Room is counted in each tier: a block that goes from one to another counts in both from before it
//! begins until it is told that it is there, so that no count is ever less than what is used (INV-42).

use crate::durable::{Dirty, ServerImage};
use crate::kinds::KindSet;
use crate::lots::Lending;
use crate::policy::{Chooser, Policy, ServerRoom, ShardRoom};
use crate::staying::Staying;
use crate::weights::Load;
use crate::{Effect, NewServer, TierTraffic};
use hashbrown::{HashMap, HashSet};
use honeycomb_types::limits::{REJOIN_GRACE, RESERVE_BLOCKS_MIN, RESERVE_FRACTION, SERVER_SILENCE};
use honeycomb_types::{
    BlockAt, BlockId, Bug, Epoch, Kind, ServerId, ShardIx, TierIx, TierSpec, Time,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the catalog knows of one block: 16 bytes.
#[derive(Clone, Copy, Debug)]
struct Slot {
    epoch: Epoch,
    /// `FREE` and the next free index, `QUARANTINED`, or the index of the owning structure.
    state: u32,
    /// Bytes of data as last reported; `UNOPENED` until the server has opened the block.
    used: u32,
}

const _: () = assert!(size_of::<Slot>() == 16);

const FREE: u32 = 1 << 31;
const LAST_FREE: u32 = u32::MAX;
const QUARANTINED: u32 = u32::MAX - 1;
const UNOPENED: u32 = u32::MAX;

/// Which free blocks an allocation may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Draw {
    /// Those beyond each server's reserve.
    Ordinary,
    /// All: a move sets memory free, or makes room that no other allocation can make.
    Reserve,
}

/// Who has a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Free,
    Quarantined,
    By(u32),
}

impl Slot {
    fn held(&self) -> Held {
        match self.state {
            QUARANTINED => Held::Quarantined,
            state if state & FREE != 0 => Held::Free,
            structure => Held::By(structure),
        }
    }

    fn bytes_used(&self) -> u64 {
        if self.used == UNOPENED { 0 } else { self.used as u64 }
    }
}

/// There is none for all that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// What a core has room for in one tier, in blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) total: u32,
    /// Taken: by blocks that are there, go there, or leave it.
    pub(crate) out: u32,
}

impl Room {
    pub(crate) fn free(&self) -> u32 {
        self.total.saturating_sub(self.out)
    }
}

/// Where a block is, on a server that has tiers: 12 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Where {
    pub(crate) tier: TierIx,
    /// Where it is on its way to; the same when it is on none.
    pub(crate) to: TierIx,
    /// When it was used last, as far as reports say, and when its server last refused to lower it; in
    /// `tick_of`.
    pub(crate) used: u32,
    pub(crate) refused: u32,
}

/// Quarters of a second since the clock's start, from 1 on: 0 is never.
pub(crate) fn tick_of(now: Time) -> u32 {
    (now.as_millis() / 250) as u32 + 1
}

#[derive(Debug)]
pub(crate) struct Core {
    slots: Box<[Slot]>,
    free_head: u32,
    free: u32,
    /// Of the free ones, so many have no room: it is lent to other controller shards.
    unlent: u32,
    /// Memory, and the tiers below it.
    rooms: Box<[Room]>,
    /// Of each block; none where memory is all there is.
    places: Box<[Where]>,
}

impl Where {
    /// Whether it counts as in memory: it is there, or on its way to or from there.
    fn in_memory(&self) -> bool {
        !self.tier.is_below() || !self.to.is_below()
    }

    /// Whether it goes below memory, so that somebody else will have what it has there.
    fn goes_down(&self) -> bool {
        self.to != self.tier && self.to.is_below()
    }
}

impl Core {
    fn new(frames: u32, tiers: &[TierSpec]) -> Core {
        let below: u32 = tiers.iter().map(|tier| tier.blocks).sum();
        let blocks = frames + below;
        let next = |index| if index + 1 < blocks { FREE | (index + 1) } else { LAST_FREE };
        let slots = (0..blocks).map(|i| Slot { epoch: Epoch(0), state: next(i), used: 0 });
        let free_head = if blocks > 0 { FREE } else { LAST_FREE };
        let totals = [frames].into_iter().chain(tiers.iter().map(|tier| tier.blocks));
        let places = if tiers.is_empty() { 0 } else { blocks as usize };
        Core {
            slots: slots.collect(),
            free_head,
            free: blocks,
            unlent: 0,
            rooms: totals.map(|total| Room { total, out: 0 }).collect(),
            places: vec![Where::default(); places].into(),
        }
    }

    /// Blocks that it has names for.
    pub(crate) fn blocks(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Those that are not free.
    pub(crate) fn out(&self) -> u32 {
        self.blocks() - self.free
    }

    /// Blocks that it could give in memory.
    pub(crate) fn room(&self) -> u32 {
        self.rooms[0].free().saturating_sub(self.unlent)
    }

    /// Blocks that it could give in this tier.
    pub(crate) fn room_in(&self, tier: TierIx) -> u32 {
        match self.rooms.get(tier.0 as usize) {
            Some(_) if !tier.is_below() => self.room(),
            Some(room) => room.free(),
            None => 0,
        }
    }

    /// Those that there is room for, free or not.
    pub(crate) fn lent(&self) -> u32 {
        self.blocks() - self.unlent
    }

    fn place(&self, index: u32) -> Where {
        self.places.get(index as usize).copied().unwrap_or_default()
    }

    fn take(&mut self, epoch: Epoch, structure: u32, tier: TierIx, now: Time) -> u32 {
        let room = self.room_in(tier);
        assert!(
            room > 0,
            "INV-40, INV-42: a block was taken from a core that has no room in {tier}"
        );
        let index = self.free_head & !FREE;
        let slot = &mut self.slots[index as usize];
        assert_eq!(slot.held(), Held::Free, "INV-03: block {index} is on the free list and owned");
        assert!(epoch > slot.epoch, "INV-01: the epoch of block {index} was used before");
        self.free_head = slot.state;
        self.free -= 1;
        *slot = Slot { epoch, state: structure, used: UNOPENED };
        self.rooms[tier.0 as usize].out += 1;
        if let Some(place) = self.places.get_mut(index as usize) {
            *place = Where { tier, to: tier, used: tick_of(now), refused: 0 };
        }
        index
    }

    fn put_back(&mut self, index: u32) {
        let Where { tier, to, .. } = self.place(index);
        self.rooms[tier.0 as usize].out -= 1;
        if to != tier {
            self.rooms[to.0 as usize].out -= 1;
        }
        self.unname(index);
    }

    /// Puts a block on the free list again, whatever it is counted for.
    fn unname(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        assert_eq!(slot.held(), Held::Quarantined, "INV-03: block {index} was freed twice");
        slot.state = self.free_head;
        slot.used = 0;
        self.free_head = FREE | index;
        self.free += 1;
        if let Some(place) = self.places.get_mut(index as usize) {
            *place = Where::default();
        }
    }

    /// What is taken of each tier, counted anew.
    fn counted(&self) -> Vec<u32> {
        let mut out = vec![0; self.rooms.len()];
        for (index, slot) in self.slots.iter().enumerate() {
            if slot.held() != Held::Free {
                let Where { tier, to, .. } = self.place(index as u32);
                out[tier.0 as usize] += 1;
                if to != tier {
                    out[to.0 as usize] += 1;
                }
            }
        }
        out
    }
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
    /// It can write data of expired prefixes to disk.
    pub(crate) flush: bool,
    /// Where to.
    pub(crate) flush_root: Box<str>,
    /// The custom kinds that it serves.
    pub(crate) kinds: KindSet,
    /// Known from the log and not back yet: what it has is its own to tell, and nothing of it is
    /// free.
    pub(crate) away: bool,
    /// It is being taken out, and is given no block (INV-46).
    pub(crate) draining: bool,
    /// Room that other controller shards may have, where there are any.
    pub(crate) lending: Option<Lending>,
    /// What is below its memory, each core's.
    pub(crate) tiers: Box<[TierSpec]>,
    cores: Box<[Core]>,
}

impl Server {
    fn new(new: NewServer<'_>, now: Time) -> Server {
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
            flush: !new.flush_root.is_empty(),
            flush_root: new.flush_root.into(),
            kinds: KindSet::of(new.kinds),
            away: false,
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

    /// Room in a tier below: all of it, and what is taken.
    pub(crate) fn below(&self, tier: usize) -> Room {
        self.cores.iter().fold(Room { total: 0, out: 0 }, |sum, core| {
            let Room { total, out } = core.rooms[tier + 1];
            Room { total: sum.total + total, out: sum.out + out }
        })
    }

    /// When it counts as dead if it says nothing.
    pub(crate) fn silent_at(&self) -> Time {
        self.last_seen + if self.away { REJOIN_GRACE } else { SERVER_SILENCE }
    }

    /// Its cores' blocks.
    pub(crate) fn cores(&self) -> impl ExactSizeIterator<Item = &Core> {
        self.cores.iter()
    }

    fn unlent(&self) -> u32 {
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
    fn room_in(&self, tier: TierIx, draw: Draw) -> u32 {
        if tier.is_below() && !self.draining {
            return self.cores.iter().map(|core| core.room_in(tier)).sum();
        }
        if tier.is_below() { 0 } else { self.room(draw) }
    }

    /// Free blocks in memory that such an allocation may take.
    pub(crate) fn room(&self, draw: Draw) -> u32 {
        if self.draining && !Bug::DrainTakesNewBlocks.active() {
            return 0;
        }
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

    fn slot(&mut self, block: BlockId) -> Option<&mut Slot> {
        let core = self.cores.get_mut(block.shard().0 as usize)?;
        core.slots.get_mut(block.index() as usize)
    }
}

/// All live servers.
#[derive(Debug)]
pub(crate) struct Pool {
    servers: BTreeMap<ServerId, Server>,
    /// The controller shard: the top bits of the numbers that it gives.
    shard: u16,
    last_server: u32,
    term: u32,
    last_epoch: u64,
    rooms: Vec<ServerRoom>,
    shard_rooms: Vec<ShardRoom>,
    /// Servers whose spare blocks became more or fewer, where they are lent.
    stirred: Vec<ServerId>,
    /// Blocks that are on their way below memory.
    moving: u32,
    /// Blocks that are below memory, or go there, by their owners.
    pub(crate) staying: Staying,
    /// Servers that came or went.
    pub(crate) dirty: Dirty,
}

impl Pool {
    pub(crate) fn new(shard: u16, term: u32) -> Pool {
        Pool {
            servers: BTreeMap::new(),
            shard,
            last_server: 0,
            term,
            last_epoch: 0,
            rooms: Vec::new(),
            shard_rooms: Vec::new(),
            stirred: Vec::new(),
            moving: 0,
            staying: Staying::default(),
            dirty: Dirty::default(),
        }
    }

    pub(crate) fn join(&mut self, new: NewServer<'_>, now: Time) -> ServerId {
        self.last_server += 1;
        let id = ServerId::new(self.shard, self.last_server);
        self.servers.insert(id, Server::new(new, now));
        self.dirty.mark(id.0);
        id
    }

    pub(crate) fn leave(&mut self, server: ServerId) -> Option<Server> {
        self.dirty.mark(server.0);
        let below: Vec<u32> = self.below_on(server).map(|(_, s)| s).collect();
        below.into_iter().for_each(|s| self.staying.change(Some(s), None));
        let gone = self.servers.remove(&server)?;
        let places = gone.cores.iter().flat_map(|core| &core.places);
        self.moving -= places.filter(|place| place.goes_down()).count() as u32;
        Some(gone)
    }

    pub(crate) fn servers(&self) -> impl Iterator<Item = (ServerId, &Server)> {
        self.servers.iter().map(|(&id, server)| (id, server))
    }

    pub(crate) fn servers_mut(&mut self) -> impl Iterator<Item = &mut Server> {
        self.servers.values_mut()
    }

    pub(crate) fn server(&self, server: ServerId) -> Option<&Server> {
        self.servers.get(&server)
    }

    /// The server's spare blocks became more or fewer: it is looked at before the command ends.
    pub(crate) fn stir(&mut self, server: ServerId) {
        let lends = self.servers.get(&server).is_some_and(|server| server.lending.is_some());
        if lends && !self.stirred.contains(&server) {
            self.stirred.push(server);
        }
    }

    pub(crate) fn is_stirred(&self) -> bool {
        !self.stirred.is_empty()
    }

    pub(crate) fn take_stirred(&mut self) -> Vec<ServerId> {
        std::mem::take(&mut self.stirred)
    }

    pub(crate) fn servers_mut_by_id(&mut self) -> impl Iterator<Item = (ServerId, &mut Server)> {
        self.servers.iter_mut().map(|(&id, server)| (id, server))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    pub(crate) fn server_mut(&mut self, server: ServerId) -> Option<&mut Server> {
        self.servers.get_mut(&server)
    }

    pub(crate) fn is_draining(&self, server: ServerId) -> bool {
        self.servers.get(&server).is_some_and(|server| server.draining)
    }

    /// The number that was given last.
    pub(crate) fn last_server(&self) -> u32 {
        self.last_server
    }

    pub(crate) fn address(&self, server: ServerId) -> Arc<str> {
        let server = self.servers.get(&server);
        server.expect("structures have blocks on live servers only").address.clone()
    }

    fn slot(&self, block: BlockId) -> Option<&Slot> {
        let core = self.servers.get(&block.server())?.cores.get(block.shard().0 as usize)?;
        core.slots.get(block.index() as usize)
    }

    /// Who has the block in this epoch; none when the epoch is over or the server is gone.
    pub(crate) fn held(&self, at: BlockAt) -> Option<Held> {
        let slot = self.slot(at.block).filter(|slot| slot.epoch == at.epoch)?;
        Some(slot.held()).filter(|held| *held != Held::Free)
    }

    /// The block with its present epoch. Its server is live.
    pub(crate) fn at(&self, block: BlockId) -> BlockAt {
        let slot = self.slot(block).expect("structures have blocks on live servers only");
        BlockAt { block, epoch: slot.epoch }
    }

    pub(crate) fn bytes_used(&self, block: BlockId) -> u64 {
        self.slot(block).map_or(0, Slot::bytes_used)
    }

    /// Whether the server has confirmed that it opened the block.
    pub(crate) fn is_open(&self, at: BlockAt) -> bool {
        self.slot(at.block).is_some_and(|slot| slot.epoch == at.epoch && slot.used != UNOPENED)
    }

    pub(crate) fn opened(&mut self, at: BlockAt) {
        let Some(server) = self.servers.get_mut(&at.block.server()) else { return };
        let Some(slot) = server.slot(at.block).filter(|slot| slot.epoch == at.epoch) else {
            return;
        };
        if matches!(slot.held(), Held::By(_)) && slot.used == UNOPENED {
            slot.used = 0;
        }
    }

    /// Records what a block holds; answers its owner and the change, when the report is current.
    pub(crate) fn usage(&mut self, at: BlockAt, bytes: u64) -> Option<(u32, i64)> {
        let server = self.servers.get_mut(&at.block.server())?;
        let slot = server.slot(at.block).filter(|slot| slot.epoch == at.epoch)?;
        let Held::By(structure) = slot.held() else { return None };
        let bytes = bytes.min(UNOPENED as u64 - 1);
        let change = bytes as i64 - slot.bytes_used() as i64;
        slot.used = bytes as u32;
        server.bytes_used = server.bytes_used.wrapping_add_signed(change);
        Some((structure, change))
    }

    /// Free blocks that ordinary allocation may take, all free blocks, and those held back.
    pub(crate) fn room(&self) -> (u64, u64, u64) {
        self.servers.values().fold((0, 0, 0), |(ordinary, free, reserved), server| {
            let own = server.room(Draw::Ordinary) as u64;
            let all = server.room(Draw::Reserve) as u64;
            (ordinary + own, free + all, reserved + all - own)
        })
    }

    /// Where a block is.
    pub(crate) fn place(&self, block: BlockId) -> Where {
        let server = self.servers.get(&block.server());
        let core = server.and_then(|server| server.cores.get(block.shard().0 as usize));
        core.map_or(Where::default(), |core| core.place(block.index()))
    }

    /// The structure for which a block is below memory, or goes there.
    fn below_for(&self, block: BlockId) -> Option<u32> {
        match self.slot(block)?.held() {
            Held::By(s) if self.place(block).to.is_below() => Some(s),
            _ => None,
        }
    }

    /// Blocks of a server that are below memory, or go there, and for which structures.
    fn below_on(&self, id: ServerId) -> impl Iterator<Item = (BlockId, u32)> {
        let cores = self.servers.get(&id).into_iter().flat_map(|server| server.cores.iter());
        cores.enumerate().flat_map(move |(ix, core)| {
            let blocks = (0..).map(move |index| BlockId::new(id, ShardIx(ix as u8), index));
            let below = |place: &Where, slot: &Slot| match slot.held() {
                Held::By(s) if place.to.is_below() => Some(s),
                _ => None,
            };
            let all = core.places.iter().zip(&core.slots).zip(blocks);
            all.filter_map(move |((place, slot), block)| Some((block, below(place, slot)?)))
        })
    }

    fn place_mut(&mut self, block: BlockId) -> Option<(&mut Where, &mut [Room], &mut u32)> {
        let server = self.servers.get_mut(&block.server())?;
        let core = server.cores.get_mut(block.shard().0 as usize)?;
        let place = core.places.get_mut(block.index() as usize)?;
        Some((place, &mut core.rooms, &mut self.moving))
    }

    /// Blocks that are on their way below memory.
    pub(crate) fn moving(&self) -> u32 {
        self.moving
    }

    /// The first tier below memory with room for this block, if it could go there.
    pub(crate) fn room_below(&self, block: BlockId) -> Option<TierIx> {
        let server = self.servers.get(&block.server());
        // Memory of a server that is taken out is nobody's to have.
        let server = server.filter(|server| !server.away && !server.draining)?;
        let core = &server.cores[block.shard().0 as usize];
        let tiers = (1..core.rooms.len()).map(|n| TierIx(n as u8));
        let mut with_room = tiers.filter(|tier| core.room_in(*tier) > 0);
        with_room.next()
    }

    /// A block is used.
    pub(crate) fn touch(&mut self, block: BlockId, now: Time) {
        if let Some((place, ..)) = self.place_mut(block) {
            place.used = tick_of(now);
        }
    }

    /// A block is to go to another tier: it counts in both from now on.
    pub(crate) fn begins(&mut self, block: BlockId, to: TierIx) {
        let before = self.below_for(block);
        let (place, rooms, moving) = self.place_mut(block).expect("a block of a server with tiers");
        assert_eq!(place.tier, place.to, "INV-42: {block} is on its way already");
        let room = &mut rooms[to.0 as usize];
        room.out += 1;
        assert!(room.out <= room.total, "INV-42: {to} has no room for {block}");
        place.to = to;
        *moving += u32::from(place.goes_down());
        self.staying.change(before, self.below_for(block));
    }

    /// A block has come to a tier, or stays where it was. Whether that changed anything.
    pub(crate) fn arrives(&mut self, block: BlockId, tier: TierIx) -> bool {
        let before = self.below_for(block);
        let Some((place, rooms, moving)) = self.place_mut(block) else { return false };
        if place.tier == place.to || tier != place.tier && tier != place.to {
            return false;
        }
        let left = if tier == place.to { place.tier } else { place.to };
        rooms[left.0 as usize].out -= 1;
        *moving -= u32::from(place.goes_down());
        (place.tier, place.to) = (tier, tier);
        self.staying.change(before, self.below_for(block));
        true
    }

    /// A server does not let a block go down now.
    pub(crate) fn refused(&mut self, block: BlockId, now: Time) {
        let tier = self.place(block).tier;
        self.arrives(block, tier);
        if let Some((place, ..)) = self.place_mut(block) {
            place.refused = tick_of(now);
        }
    }

    /// A server that came back says where a block is. One that is away has its rooms counted when all
    /// of that is known.
    pub(crate) fn found(&mut self, block: BlockId, (tier, to): (TierIx, TierIx)) {
        if self.slot(block).is_none_or(|slot| slot.held() == Held::Free) {
            return;
        }
        let away = self.servers.get(&block.server()).is_none_or(|server| server.away);
        let before = self.below_for(block);
        let Some((place, rooms, moving)) = self.place_mut(block) else { return };
        let known = [tier, to].iter().all(|tier| (tier.0 as usize) < rooms.len());
        if !known {
            return;
        }
        let old = std::mem::replace(place, Where { tier, to, ..*place });
        *moving -= u32::from(old.goes_down());
        *moving += u32::from(place.goes_down());
        if away {
            self.staying.change(before, self.below_for(block));
            return;
        }
        let mut count = |tier: TierIx, change: i32| {
            let room = &mut rooms[tier.0 as usize];
            room.out = room.out.saturating_add_signed(change);
        };
        count(tier, 1);
        if to != tier {
            count(to, 1);
        }
        count(old.tier, -1);
        if old.to != old.tier {
            count(old.to, -1);
        }
        self.staying.change(before, self.below_for(block));
    }

    /// Gives `asked` blocks of one tier to a structure, or none (`NoRoom`): on the servers that the
    /// weights say, if they say one that has room, else on those that the policy chooses.
    pub(crate) fn allocate(
        &mut self,
        mut chooser: Chooser<'_>,
        (structure, kind): (u32, Kind),
        asked: u32,
        draw: Draw,
        (tier, now): (TierIx, Time),
    ) -> Result<Vec<BlockAt>, NoRoom> {
        assert!(structure & FREE == 0, "a structure's index leaves the top bit to the free list");
        let able = self.servers.values().filter(|server| server.kinds.serves(kind));
        let available: u64 = able.map(|server| server.room_in(tier, draw) as u64).sum();
        if available < asked as u64 {
            return Err(NoRoom);
        }
        let mut rooms = std::mem::take(&mut self.rooms);
        rooms.clear();
        // One that does not serve the kind has no room for it.
        rooms.extend(self.servers().map(|(id, server)| {
            let free = if server.kinds.serves(kind) { server.room_in(tier, draw) } else { 0 };
            ServerRoom { server: id, free }
        }));
        let mut taken: HashMap<BlockId, u32> = HashMap::new();
        let mut blocks = Vec::with_capacity(asked as usize);
        for _ in 0..asked {
            let chosen = chooser.server(&rooms);
            let room = &mut rooms[chosen];
            assert!(room.free > 0, "a policy chose a server without room");
            room.free -= 1;
            let server = room.server;
            let shard = self.choose_shard(chooser.policy, server, tier, &taken);
            blocks.push(self.take(server, shard, structure, tier, now));
            if asked > 1 {
                *taken.entry(BlockId::new(server, shard, 0)).or_default() += 1;
            }
        }
        self.rooms = rooms;
        Ok(blocks)
    }

    fn choose_shard(
        &mut self,
        policy: &dyn Policy,
        server: ServerId,
        tier: TierIx,
        taken: &HashMap<BlockId, u32>,
    ) -> ShardIx {
        let mut rooms = std::mem::take(&mut self.shard_rooms);
        rooms.clear();
        rooms.extend(self.servers[&server].cores.iter().enumerate().map(|(n, core)| {
            let ix = ShardIx(n as u8);
            let taken = taken.get(&BlockId::new(server, ix, 0)).copied().unwrap_or(0);
            ShardRoom { shard: ix, free: core.room_in(tier), taken }
        }));
        let chosen = rooms[policy.shard(&rooms)];
        assert!(chosen.free > 0, "a policy chose a shard without room");
        self.shard_rooms = rooms;
        chosen.shard
    }

    fn take(
        &mut self,
        server: ServerId,
        shard: ShardIx,
        structure: u32,
        tier: TierIx,
        now: Time,
    ) -> BlockAt {
        self.last_epoch += 1;
        let epoch = Epoch::new(self.term, self.last_epoch);
        let state = self.servers.get_mut(&server).expect("a room names a live server");
        assert!(!state.draining, "INV-46: server {server} drains and was given a block");
        let index = state.cores[shard.0 as usize].take(epoch, structure, tier, now);
        self.stir(server);
        let block = BlockId::new(server, shard, index);
        self.staying.change(None, self.below_for(block));
        BlockAt { block, epoch }
    }

    /// Takes a block back from its owner. Answers the bytes that it held.
    pub(crate) fn release(
        &mut self,
        block: BlockId,
        structure: u32,
        effects: &mut Vec<Effect>,
    ) -> u64 {
        let bytes = self.keep(block, structure);
        let at = self.at(block);
        effects.push(Effect::FreeBlock { server: block.server(), at });
        if Bug::FreeUnconfirmed.active() {
            self.confirm(at);
        }
        bytes
    }

    /// Takes a block from its owner and keeps it from everybody, until `free_kept`. Answers the bytes
    /// that it held.
    pub(crate) fn keep(&mut self, block: BlockId, structure: u32) -> u64 {
        let id = block.server();
        self.staying.change(self.below_for(block), None);
        let server =
            self.servers.get_mut(&id).expect("structures have blocks on live servers only");
        let slot = server.slot(block).expect("a structure's blocks exist");
        assert_eq!(slot.held(), Held::By(structure), "INV-03: {block} is not this owner's to free");
        let bytes = slot.bytes_used();
        slot.state = QUARANTINED;
        slot.used = 0;
        server.quarantined += 1;
        server.bytes_used -= bytes;
        bytes
    }

    /// Lets a kept block be freed, unless its server is gone and the block with it.
    pub(crate) fn free_kept(&self, at: BlockAt, effects: &mut Vec<Effect>) {
        if self.held(at) == Some(Held::Quarantined) {
            effects.push(Effect::FreeBlock { server: at.block.server(), at });
        }
    }

    /// Whether the block may be given to anybody, or was since this epoch.
    pub(crate) fn is_free(&self, at: BlockAt) -> bool {
        self.slot(at.block).is_some() && self.held(at) != Some(Held::Quarantined)
    }

    /// The server confirmed a free. Late, repeated and misdirected confirmations change nothing.
    pub(crate) fn confirm(&mut self, at: BlockAt) {
        if self.held(at) != Some(Held::Quarantined) {
            return;
        }
        let server = self.servers.get_mut(&at.block.server()).expect("held() found the server");
        let core = &mut server.cores[at.block.shard().0 as usize];
        self.moving -= u32::from(core.place(at.block.index()).goes_down());
        core.put_back(at.block.index());
        server.quarantined -= 1;
        self.stir(at.block.server());
    }

    /// Takes the members of a recovered catalog, all of them away: none of their blocks is free.
    pub(crate) fn recover(
        &mut self,
        last: u32,
        images: impl Iterator<Item = ServerImage>,
        now: Time,
    ) {
        self.last_server = last;
        for image in images {
            let new = NewServer {
                address: &image.address,
                incarnation: image.incarnation,
                shards: image.shards,
                blocks_per_shard: image.blocks_per_shard,
                tiers: &image.tiers,
                block_size: 0,
                // What it can do it tells when it is back.
                flush_root: "",
                kinds: &[],
            };
            let mut server = Server::new(new, now);
            server.away = true;
            for core in &mut server.cores {
                (core.free, core.free_head) = (0, LAST_FREE);
                // Until it tells where its blocks are there is room nowhere.
                core.rooms.iter_mut().for_each(|room| room.out = room.total);
                for slot in &mut core.slots {
                    slot.state = QUARANTINED;
                }
            }
            self.servers.insert(image.id, server);
        }
    }

    /// Gives a block to the structure that had it. False when there is no such block, or it has an
    /// owner.
    pub(crate) fn recover_owner(&mut self, at: BlockAt, structure: u32) -> bool {
        let Some(server) = self.servers.get_mut(&at.block.server()) else { return false };
        let Some(slot) = server.slot(at.block) else { return false };
        if slot.state != QUARANTINED || at.epoch <= slot.epoch {
            return false;
        }
        *slot = Slot { epoch: at.epoch, state: structure, used: UNOPENED };
        true
    }

    /// Keeps a block from everybody that was kept before: it is in quarantine in its epoch. False when
    /// there is no such block, or it has an owner.
    pub(crate) fn recover_kept(&mut self, at: BlockAt) -> bool {
        let Some(server) = self.servers.get_mut(&at.block.server()) else { return false };
        let Some(slot) = server.slot(at.block) else { return false };
        if slot.state != QUARANTINED || at.epoch <= slot.epoch {
            return false;
        }
        slot.epoch = at.epoch;
        true
    }

    /// Counts what is neither free nor owned, once every owner is known.
    pub(crate) fn finish_recovery(&mut self) {
        for server in self.servers.values_mut() {
            let slots = server.cores.iter().flat_map(|core| &core.slots);
            server.quarantined = slots.filter(|s| s.held() == Held::Quarantined).count() as u32;
        }
    }

    /// A successor that a block was granted, and of which the log knows nothing: the structure's
    /// again. False when somebody else has the block, or has had it since.
    pub(crate) fn adopt(&mut self, at: BlockAt, structure: u32) -> bool {
        let Some(server) = self.servers.get_mut(&at.block.server()) else { return false };
        let Some(slot) = server.slot(at.block) else { return false };
        if slot.held() != Held::Quarantined || at.epoch < slot.epoch {
            return false;
        }
        *slot = Slot { epoch: at.epoch, state: structure, used: UNOPENED };
        server.quarantined -= 1;
        self.staying.change(None, self.below_for(at.block));
        true
    }

    /// A server holds a block that nobody owns: it stays in quarantine, under the epoch that its
    /// confirmation will name. False when its epoch is over.
    pub(crate) fn unowned(&mut self, at: BlockAt) -> bool {
        let Some(server) = self.servers.get_mut(&at.block.server()) else { return false };
        match server.slot(at.block) {
            Some(slot) if slot.held() == Held::Quarantined && slot.epoch <= at.epoch => {
                slot.epoch = at.epoch;
                true
            }
            _ => false,
        }
    }

    /// A server has told everything that it holds: its blocks that nobody owns, and that it does not
    /// hold, are free. Answers those that somebody owns and it does not hold.
    pub(crate) fn returned(
        &mut self,
        id: ServerId,
        held: &HashSet<BlockId>,
    ) -> Vec<(BlockAt, u32)> {
        let mut missing = Vec::new();
        let Some(server) = self.servers.get_mut(&id) else { return missing };
        server.away = false;
        for (ix, core) in server.cores.iter_mut().enumerate() {
            // The lowest index is given first, as with a new server.
            for index in (0..core.blocks()).rev() {
                let block = BlockId::new(id, ShardIx(ix as u8), index);
                let slot = &core.slots[index as usize];
                match slot.held() {
                    _ if held.contains(&block) => {}
                    Held::Quarantined => {
                        core.unname(index);
                        server.quarantined -= 1;
                    }
                    Held::By(owner) => missing.push((BlockAt { block, epoch: slot.epoch }, owner)),
                    Held::Free => {}
                }
            }
            let counted = core.counted();
            core.rooms.iter_mut().zip(counted).for_each(|(room, out)| room.out = out);
        }
        self.moving = self.count_moving();
        let server = self.servers.get_mut(&id).expect("looked up above");
        let told = server.lending.as_mut().and_then(|lending| lending.told.take());
        if let Some(told) = told.filter(|_| !Bug::LotsForgottenAtRejoin.active()) {
            server.set_lent(&told);
            self.stir(id);
        }
        missing
    }

    /// Allocated blocks with their owners, in order.
    pub(crate) fn allocated(&self) -> impl Iterator<Item = (BlockAt, u32)> {
        self.servers().flat_map(|(id, server)| {
            server.cores.iter().enumerate().flat_map(move |(shard, state)| {
                state.slots.iter().enumerate().filter_map(move |(index, slot)| match slot.held() {
                    Held::By(owner) => {
                        let block = BlockId::new(id, ShardIx(shard as u8), index as u32);
                        Some((BlockAt { block, epoch: slot.epoch }, owner))
                    }
                    _ => None,
                })
            })
        })
    }

    fn count_moving(&self) -> u32 {
        let cores = self.servers.values().flat_map(|server| &server.cores);
        let places = cores.flat_map(|core| &core.places);
        places.filter(|place| place.goes_down()).count() as u32
    }

    /// Recounts every server's blocks by walking free lists and slots (INV-02, INV-42).
    pub(crate) fn recount(&self) -> Result<(), String> {
        let moving = self.count_moving();
        if moving != self.moving {
            return Err(format!("{moving} blocks go below memory, and {} counted", self.moving));
        }
        self.staying.check(self.servers.keys().flat_map(|&id| self.below_on(id)))?;
        for (id, server) in self.servers() {
            let mut quarantined = 0;
            for core in &server.cores {
                let free = core.slots.iter().filter(|s| s.held() == Held::Free).count();
                quarantined += core.slots.iter().filter(|s| s.held() == Held::Quarantined).count();
                let mut next = core.free_head;
                let mut length = 0;
                while next != LAST_FREE && length <= core.slots.len() {
                    next = core.slots[(next & !FREE) as usize].state;
                    length += 1;
                }
                if length != core.free as usize || length != free {
                    let counted = core.free;
                    return Err(format!(
                        "server {id}: {free} free, {length} listed, not {counted}"
                    ));
                }
                let counted = core.counted();
                let out: Vec<u32> = core.rooms.iter().map(|room| room.out).collect();
                if counted != out && !server.away {
                    return Err(format!("server {id}: {counted:?} are out by tier, not {out:?}"));
                }
            }
            if quarantined != server.quarantined as usize {
                let counted = server.quarantined;
                return Err(format!("server {id}: {quarantined} in quarantine, not {counted}"));
            }
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> usize {
        let per_server = |server: &Server| {
            let of = |core: &Core| size_of_val(&*core.slots) + size_of_val(&*core.places);
            let slots: usize = server.cores.iter().map(of).sum();
            slots + size_of_val(&*server.cores) + server.address.len() + size_of::<Server>() + 24
        };
        let rooms = self.rooms.capacity() * size_of::<ServerRoom>();
        let shard_rooms = self.shard_rooms.capacity() * size_of::<ShardRoom>();
        let lists = rooms + shard_rooms + self.staying.bytes();
        self.servers.values().map(per_server).sum::<usize>() + lists
    }
}
