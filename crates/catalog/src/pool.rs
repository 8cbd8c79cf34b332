//! Memory servers and their blocks: the allocation mechanism.
//!
//! A block is free, allocated to a structure, or quarantined: taken back, but its server has not
//! confirmed that nothing of it can be read any more. These three always add up to what the server
//! registered (INV-02). Every allocation is a new epoch (INV-01), and only the confirmation of the
//! epoch that was taken back makes a block free again, once (INV-03).

use crate::durable::{Dirty, ServerImage};
use crate::kinds::KindSet;
use crate::lots::Lending;
use crate::policy::{JobShare, Policy, ServerRoom, ShardRoom};
use crate::{CatalogError, Effect, NewServer};
use hashbrown::{HashMap, HashSet};
use honeycomb_types::limits::{REJOIN_GRACE, RESERVE_BLOCKS_MIN, RESERVE_FRACTION, SERVER_SILENCE};
use honeycomb_types::{BlockAt, BlockId, Bug, Epoch, JobId, Kind, ServerId, ShardIx, Time};
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

#[derive(Debug)]
pub(crate) struct Core {
    slots: Box<[Slot]>,
    free_head: u32,
    free: u32,
    /// Of the free ones, so many have no room: it is lent to other controller shards.
    unlent: u32,
}

impl Core {
    fn new(blocks: u32) -> Core {
        let next = |index| if index + 1 < blocks { FREE | (index + 1) } else { LAST_FREE };
        let slots = (0..blocks).map(|i| Slot { epoch: Epoch(0), state: next(i), used: 0 });
        let free_head = if blocks > 0 { FREE } else { LAST_FREE };
        Core { slots: slots.collect(), free_head, free: blocks, unlent: 0 }
    }

    /// Blocks that it has.
    pub(crate) fn blocks(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Those that are not free.
    pub(crate) fn out(&self) -> u32 {
        self.blocks() - self.free
    }

    /// Free ones that there is room for.
    pub(crate) fn room(&self) -> u32 {
        self.free - self.unlent
    }

    /// Those that there is room for, free or not.
    pub(crate) fn lent(&self) -> u32 {
        self.blocks() - self.unlent
    }

    fn take(&mut self, epoch: Epoch, structure: u32) -> u32 {
        assert!(self.room() > 0, "INV-40: a block was taken from a core that has no room");
        let index = self.free_head & !FREE;
        let slot = &mut self.slots[index as usize];
        assert_eq!(slot.held(), Held::Free, "INV-03: block {index} is on the free list and owned");
        assert!(epoch > slot.epoch, "INV-01: the epoch of block {index} was used before");
        self.free_head = slot.state;
        self.free -= 1;
        *slot = Slot { epoch, state: structure, used: UNOPENED };
        index
    }

    fn put_back(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        assert_eq!(slot.held(), Held::Quarantined, "INV-03: block {index} was freed twice");
        slot.state = self.free_head;
        slot.used = 0;
        self.free_head = FREE | index;
        self.free += 1;
    }
}

/// One live memory server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: Arc<str>,
    pub(crate) incarnation: u64,
    pub(crate) last_seen: Time,
    pub(crate) total: u32,
    pub(crate) free: u32,
    pub(crate) quarantined: u32,
    pub(crate) bytes_used: u64,
    pub(crate) bytes_resident: u64,
    pub(crate) connections: u32,
    pub(crate) requests: u64,
    pub(crate) forwarded: u64,
    pub(crate) bytes_owed: u64,
    /// It can write data of expired prefixes to disk.
    pub(crate) flush: bool,
    /// The custom kinds that it serves.
    pub(crate) kinds: KindSet,
    /// Known from the log and not back yet: what it has is its own to tell, and nothing of it is
    /// free.
    pub(crate) away: bool,
    /// It is being taken out, and is given no block (INV-46).
    pub(crate) draining: bool,
    /// Room that other controller shards may have, where there are any.
    pub(crate) lending: Option<Lending>,
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
            free: total,
            quarantined: 0,
            bytes_used: 0,
            bytes_resident: 0,
            connections: 0,
            requests: 0,
            forwarded: 0,
            bytes_owed: 0,
            flush: new.flush,
            kinds: KindSet::of(new.kinds),
            away: false,
            draining: false,
            lending: None,
            cores: (0..new.shards).map(|_| Core::new(new.blocks_per_shard)).collect(),
        }
    }

    pub(crate) fn shards(&self) -> u8 {
        self.cores.len() as u8
    }

    pub(crate) fn blocks_per_shard(&self) -> u32 {
        self.cores[0].blocks()
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

    pub(crate) fn reserve(&self) -> u32 {
        let lent = self.total - self.lending.as_ref().map_or(0, |_| self.unlent());
        RESERVE_BLOCKS_MIN.max(lent / RESERVE_FRACTION)
    }

    /// Free blocks that such an allocation may take.
    fn room(&self, draw: Draw) -> u32 {
        if self.draining && !Bug::DrainTakesNewBlocks.active() {
            return 0;
        }
        let room = match &self.lending {
            None => self.free,
            Some(_) => self.cores.iter().map(Core::room).sum(),
        };
        match draw {
            Draw::Ordinary => room.saturating_sub(self.reserve()),
            Draw::Reserve => room,
        }
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
        self.servers.remove(&server)
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

    /// Gives `asked` blocks to a structure, or none (`OutOfMemory`).
    pub(crate) fn allocate(
        &mut self,
        policy: &mut dyn Policy,
        (job, held): (JobId, u64),
        structure: u32,
        kind: Kind,
        asked: u32,
        draw: Draw,
    ) -> Result<Vec<BlockAt>, CatalogError> {
        assert!(structure & FREE == 0, "a structure's index leaves the top bit to the free list");
        let (_, free, reserved) = self.room();
        let able = self.servers.values().filter(|server| server.kinds.serves(kind));
        let available = able.map(|server| server.room(draw) as u64).sum();
        let share = JobShare { job, held, available };
        if available < asked as u64 || policy.admit(share, asked) < asked {
            return Err(CatalogError::OutOfMemory { asked: asked as u64, free, reserved });
        }
        let mut rooms = std::mem::take(&mut self.rooms);
        rooms.clear();
        // One that does not serve the kind has no room for it.
        rooms.extend(self.servers().map(|(id, server)| {
            let free = if server.kinds.serves(kind) { server.room(draw) } else { 0 };
            ServerRoom { server: id, free }
        }));
        let mut taken: HashMap<BlockId, u32> = HashMap::new();
        let mut blocks = Vec::with_capacity(asked as usize);
        for _ in 0..asked {
            let chosen = policy.server(&rooms);
            let room = &mut rooms[chosen];
            assert!(room.free > 0, "a policy chose a server without room");
            room.free -= 1;
            let server = room.server;
            let shard = self.choose_shard(policy, server, &taken);
            blocks.push(self.take(server, shard, structure));
            if asked > 1 {
                *taken.entry(BlockId::new(server, shard, 0)).or_default() += 1;
            }
        }
        self.rooms = rooms;
        Ok(blocks)
    }

    fn choose_shard(
        &mut self,
        policy: &mut dyn Policy,
        server: ServerId,
        taken: &HashMap<BlockId, u32>,
    ) -> ShardIx {
        let mut rooms = std::mem::take(&mut self.shard_rooms);
        rooms.clear();
        rooms.extend(self.servers[&server].cores.iter().enumerate().map(|(n, core)| {
            let ix = ShardIx(n as u8);
            let taken = taken.get(&BlockId::new(server, ix, 0)).copied().unwrap_or(0);
            ShardRoom { shard: ix, free: core.room(), taken }
        }));
        let chosen = rooms[policy.shard(&rooms)];
        assert!(chosen.free > 0, "a policy chose a shard without room");
        self.shard_rooms = rooms;
        chosen.shard
    }

    fn take(&mut self, server: ServerId, shard: ShardIx, structure: u32) -> BlockAt {
        self.last_epoch += 1;
        let epoch = Epoch::new(self.term, self.last_epoch);
        let state = self.servers.get_mut(&server).expect("a room names a live server");
        assert!(!state.draining, "INV-46: server {server} drains and was given a block");
        let index = state.cores[shard.0 as usize].take(epoch, structure);
        state.free -= 1;
        self.stir(server);
        BlockAt { block: BlockId::new(server, shard, index), epoch }
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
        server.cores[at.block.shard().0 as usize].put_back(at.block.index());
        server.quarantined -= 1;
        server.free += 1;
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
                block_size: 0,
                // What it can do it tells when it is back.
                flush: false,
                kinds: &[],
            };
            let mut server = Server::new(new, now);
            server.away = true;
            server.free = 0;
            for core in &mut server.cores {
                (core.free, core.free_head) = (0, LAST_FREE);
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
                        core.put_back(index);
                        server.quarantined -= 1;
                        server.free += 1;
                    }
                    Held::By(owner) => missing.push((BlockAt { block, epoch: slot.epoch }, owner)),
                    Held::Free => {}
                }
            }
        }
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

    /// Recounts every server's blocks by walking free lists and slots (INV-02).
    pub(crate) fn recount(&self) -> Result<(), String> {
        for (id, server) in self.servers() {
            let (mut free, mut quarantined, mut listed) = (0, 0, 0);
            for shard in &server.cores {
                free += shard.slots.iter().filter(|s| s.held() == Held::Free).count();
                quarantined += shard.slots.iter().filter(|s| s.held() == Held::Quarantined).count();
                let mut next = shard.free_head;
                let mut length = 0;
                while next != LAST_FREE && length <= shard.slots.len() {
                    next = shard.slots[(next & !FREE) as usize].state;
                    length += 1;
                }
                if length != shard.free as usize {
                    return Err(format!("server {id}: a free list of {} has {length}", shard.free));
                }
                listed += length;
            }
            let counted = (free, quarantined);
            if counted != (server.free as usize, server.quarantined as usize) || listed != free {
                return Err(format!("server {id}: counted {counted:?}, {listed} on free lists"));
            }
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> usize {
        let per_server = |server: &Server| {
            let slots: usize = server.cores.iter().map(|s| size_of_val(&*s.slots)).sum();
            slots + size_of_val(&*server.cores) + server.address.len() + size_of::<Server>() + 24
        };
        let rooms = self.rooms.capacity() * size_of::<ServerRoom>();
        let shard_rooms = self.shard_rooms.capacity() * size_of::<ShardRoom>();
        self.servers.values().map(per_server).sum::<usize>() + rooms + shard_rooms
    }
}
