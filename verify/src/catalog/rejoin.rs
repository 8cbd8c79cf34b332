//! The restart of a controller in the reference model: the possible losses of its log, and the
//! information that servers bring back with their reports of held blocks (INV-25 to 27).

use super::reference::{File, Life};
use super::{CatalogModel, Verdict, agree, require};
use honeycomb_catalog::{Catalog, CatalogError, Chain, HeldBlock, NewServer, Reply};
use honeycomb_types::{BlockAt, BlockId, Kind, ServerId, Time};
use std::collections::{BTreeMap, BTreeSet};

/// Members from before the restart, with their reports so far.
#[derive(Default)]
pub struct Rejoining {
    /// Blocks reported by servers that have not finished their reports.
    told: BTreeMap<ServerId, BTreeSet<BlockId>>,
    /// Held blocks without a known owner.
    unowned: Vec<HeldBlock>,
    /// A server has come back: its orders may be repeated.
    pub again: bool,
}

impl CatalogModel {
    /// The log does not record capacities: until a server reports, its blocks have their first ones.
    fn forget_capacities(&mut self) {
        let mut first = BTreeMap::new();
        for file in self.cluster.jobs.iter().flat_map(|job| &job.files) {
            for at in file.held() {
                let kind = if file.extents.contains(&at) { Kind::Extents } else { file.kind };
                first.insert(at, self.cluster.first_memory(kind, 1).1);
            }
        }
        self.cluster.capacities.values_mut().for_each(|units| *units = 1);
        self.cluster.capacities.extend(first);
    }

    /// Whether members from before a restart are still awaited: until then no lease ends, and free
    /// blocks are not counted.
    pub fn is_recovering(&self) -> bool {
        !self.cluster.away.is_empty()
    }

    /// Whether a structure has blocks on a server that is reporting its held blocks.
    pub(super) fn is_telling(&self, file: &File) -> bool {
        file.held().iter().any(|at| self.rejoining.told.contains_key(&at.block.server()))
    }

    /// A controller has read its log, which has no private blocks. After a loss of power, the log may lack
    /// grants of growth and seals at the end of chains, because no request waits for them. It lacks nothing
    /// else.
    pub fn restart(&mut self, now: Time, catalog: &Catalog, power: bool) -> Verdict {
        self.cluster.now = now.as_millis();
        self.cluster.away = self.cluster.servers.keys().copied().collect();
        self.forget_capacities();
        self.cluster.suspected.clear();
        self.cluster.reporting.clear();
        self.cluster.used.clear();
        self.cluster.lent.clear();
        self.cluster.tiers.places.clear();
        self.refused = None;
        self.told_lots.clear();
        self.stalls.clear();
        for (_, seen) in self.cluster.servers.values_mut() {
            *seen = now.as_millis();
        }
        for server in self.cluster.drains.keys().copied().collect::<Vec<_>>() {
            self.drain_anew(server);
        }
        self.rejoining = Rejoining { again: true, ..Rejoining::default() };
        self.renew_all();
        for file in self.cluster.jobs.iter_mut().flat_map(|job| &mut job.files) {
            let private = file.private.drain(..).flat_map(|chain| chain.blocks);
            private.for_each(|at| {
                file.seals.remove(&at);
                self.open.remove(&at);
            });
            let chain = catalog.chain(file.id);
            let chain = chain.ok_or_else(|| format!("{} was lost by the log (INV-26)", file.id))?;
            forget(file, &chain, power, &mut self.open)?;
            // Every move gets its full time again.
            file.pending.iter_mut().for_each(|moving| moving.since = self.cluster.now);
        }
        let awaits = catalog.recovering() == self.is_recovering();
        require(awaits, || "the catalog does not await its servers (INV-26)".into())
    }

    pub(super) fn rejoin(
        &mut self,
        server: NewServer<'_>,
        member: ServerId,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        let same = (server.address.to_owned(), server.incarnation);
        let known = self.addresses.get(&member) == Some(&same);
        let expected = if known { Ok(()) } else { Err("UnknownServer") };
        agree("a server that came back", reply, &expected)?;
        if known {
            // It is suspected until it has reported its blocks (INV-56).
            if !self.cluster.away.contains(&member) {
                self.cluster.suspected.insert(member);
            }
            self.cluster.reporting.insert(member);
            self.cluster.hear(member);
            self.drain_anew(member);
            self.rejoining.again = true;
            self.rejoining.told.insert(member, BTreeSet::new());
            self.rejoining.unowned.retain(|held| held.at.block.server() != member);
        }
        Ok(())
    }

    pub(super) fn inventory(
        &mut self,
        server: ServerId,
        held: &[HeldBlock],
        last: bool,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        self.cluster.hear(server);
        let known = self.rejoining.told.get_mut(&server);
        let expected = if known.is_some() { Ok(()) } else { Err("UnknownServer") };
        agree("an inventory", reply, &expected)?;
        let Some(told) = known else { return Ok(()) };
        told.extend(held.iter().map(|held| held.at.block));
        for held in held {
            self.cluster.tiers.put(held.at, held.tiers);
            self.cluster.holds(held.at, held.capacity);
        }
        let mut open = held.to_vec();
        open.append(&mut self.rejoining.unowned);
        loop {
            let before = open.len();
            open.retain(|held| !self.reconcile(held));
            if open.len() == before {
                break;
            }
        }
        self.rejoining.unowned = open;
        if last {
            self.returned(server);
        }
        Ok(())
    }

    /// Updates a block that a server holds; returns false if it has no known owner.
    fn reconcile(&mut self, held: &HeldBlock) -> bool {
        let at = held.at;
        let Some((j, f)) = self.cluster.find(held.structure) else { return false };
        if !self.cluster.jobs[j].files[f].held().contains(&at) {
            return false;
        }
        self.cluster.used.insert(at, held.bytes_used);
        let file = &self.cluster.jobs[j].files[f];
        if file.kind == Kind::Kv {
            return true;
        }
        // A pre-allocated block with writes: the log has lost the grant. Its report is processed
        // after its predecessor names it, because otherwise its own successor would be forgotten.
        let reports = held.sealed.is_some() || held.successor.is_some() || held.taken != (0, 0);
        if reports && file.spare.contains(&at) {
            return false;
        }
        let ends_with = file.chain.last() == Some(&at) && !file.sealed();
        if let Some(successor) = held.successor.filter(|_| ends_with)
            && !self.cluster.servers.contains_key(&successor.block.server())
        {
            // It had more blocks, which are lost.
            let freed = self.cluster.jobs[j].files.remove(f).held();
            self.cluster.free(freed);
            return true;
        }
        let file = &self.cluster.jobs[j].files[f];
        if let Some(successor) = held.successor.filter(|_| ends_with)
            && (file.spare.contains(&successor) || self.is_nobodys(successor))
        {
            let file = &mut self.cluster.jobs[j].files[f];
            file.chain.push(successor);
            file.spare.retain(|&spare| spare != successor);
            self.cluster.quarantined.retain(|at| at.block != successor.block);
            self.open.insert(successor);
        }
        let file = &mut self.cluster.jobs[j].files[f];
        if let Some(seal) = held.sealed
            && !file.seals.contains_key(&at)
            && (seal.last || file.chain.last() != Some(&at))
        {
            self.cluster.put_seal((j, f), at, (seal.length, seal.bytes, seal.last));
        }
        let file = &mut self.cluster.jobs[j].files[f];
        if file.kind == Kind::Queue && held.taken != (0, 0) {
            let (items, bytes) = file.taken.entry(at).or_default();
            (*items, *bytes) = ((*items).max(held.taken.0), (*bytes).max(held.taken.1));
        }
        true
    }

    /// Whether a block is neither free nor owned, as far as is known.
    fn is_nobodys(&self, at: BlockAt) -> bool {
        let server = at.block.server();
        let owned = self.cluster.jobs.iter().flat_map(|job| &job.files);
        let mut owned = owned.flat_map(File::held);
        let kept = self.cluster.quarantined.iter().any(|other| other.block == at.block);
        let there = self.cluster.servers.contains_key(&server);
        there && (kept || self.cluster.away.contains(&server)) && owned.all(|o| o.block != at.block)
    }

    /// A server has finished its report: blocks that it does not hold and that have no owner are
    /// free; blocks that it holds without an owner are kept until all servers have reported.
    fn returned(&mut self, server: ServerId) {
        let told = self.rejoining.told.remove(&server).unwrap_or_default();
        let quarantined = &mut self.cluster.quarantined;
        quarantined.retain(|at| at.block.server() != server || told.contains(&at.block));
        let files = self.cluster.jobs.iter().flat_map(|job| &job.files);
        let owned: BTreeSet<BlockAt> = files.flat_map(File::held).collect();
        let unowned = self.rejoining.unowned.iter().filter(|held| !owned.contains(&held.at));
        for held in unowned.filter(|held| held.at.block.server() == server) {
            quarantined.retain(|at| at.block != held.at.block);
            quarantined.insert(held.at);
        }
        self.cluster.away.remove(&server);
        self.cluster.reporting.remove(&server);
        self.cluster.hear(server);
        self.lent_again(server);
    }

    /// After each command: when no server is awaited any more, every lease restarts.
    pub(super) fn settle(&mut self, was_recovering: bool) {
        if was_recovering && !self.is_recovering() {
            self.renew_all();
            self.rejoining.unowned.clear();
            self.cluster.give_back_spares();
        }
    }

    fn renew_all(&mut self) {
        let now = self.cluster.now;
        let prefixes = self.cluster.jobs.iter_mut().flat_map(|job| &mut job.prefixes);
        for prefix in prefixes.flatten().filter(|prefix| prefix.life == Life::Live) {
            prefix.renewed = prefix.renewed.max(now);
        }
    }

    pub(super) fn forget_rejoining(&mut self, server: ServerId) {
        self.cluster.away.remove(&server);
        self.rejoining.told.remove(&server);
        self.told_lots.remove(&server);
        self.rejoining.unowned.retain(|held| held.at.block.server() != server);
    }
}

/// Removes from a structure of the model the part that the log has lost, if that is permitted.
fn forget(file: &mut File, chain: &Chain, power: bool, open: &mut BTreeSet<BlockAt>) -> Verdict {
    let known: BTreeSet<BlockAt> =
        chain.blocks.iter().map(|(at, _)| *at).chain(chain.beside.iter().copied()).collect();
    let mine = file.held();
    let more: Vec<_> = known.difference(&mine).collect();
    require(more.is_empty(), || format!("{more:?} came back from the log (INV-26)"))?;
    let lost: Vec<BlockAt> = mine.difference(&known).copied().collect();
    let may = lost.is_empty() || power && file.kind != Kind::Kv;
    require(may, || format!("{lost:?} of {} were lost by the log (INV-26)", file.id))?;
    for at in lost {
        // Only the end of a chain can be lost, and its server reports it again.
        let after = file.chain.iter().rposition(|b| known.contains(b)).unwrap_or(0);
        let beyond = file.chain.iter().position(|&b| b == at).is_some_and(|i| i > after);
        require(beyond, || format!("{at:?} was lost from the middle of a chain (INV-26)"))?;
        file.chain.retain(|&other| other != at);
        file.seals.remove(&at);
        open.remove(&at);
    }
    // The log may have lost that a pre-allocated block was granted.
    for at in chain.beside.iter().filter(|_| file.kind != Kind::Kv) {
        if file.chain.contains(at) {
            require(power, || format!("the growth to {at:?} was lost by the log (INV-26)"))?;
            file.chain.retain(|other| other != at);
            file.seals.remove(at);
        }
    }
    if file.kind != Kind::Kv {
        // The targets of moves and blocks of extents are beside the chain, too.
        let fills = |at: &BlockAt| file.pending.iter().any(|moving| moving.target == *at);
        let spare = chain.beside.iter().filter(|at| !fills(at) && !file.extents.contains(at));
        file.spare = spare.copied().collect();
    }
    for (at, sealed) in &chain.blocks {
        if !sealed && file.seals.remove(at).is_some() {
            require(power, || format!("the seal of {at:?} was lost by the log (INV-26)"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Shape;
    use honeycomb_catalog::{
        Actor, Command, Config, Effect as Order, Hints, NewStructure, PrefixOptions, Seal,
    };
    use honeycomb_controller::{OpenOptions, Store, waits};
    use honeycomb_env::MemoryDisk;
    use honeycomb_types::limits::SERVER_LOSS_DEFAULT_MS;
    use honeycomb_types::{Generation, JobId, Marks, PolicyKind, StructureId};

    const BLOCK_SIZE: u64 = 65_536;

    /// A catalog with its log, and the model that judges it.
    struct Judged {
        disk: MemoryDisk,
        catalog: Catalog,
        store: Store,
        model: CatalogModel,
        orders: Vec<Order>,
    }

    fn open(disk: &MemoryDisk) -> (Catalog, Store) {
        let options = OpenOptions {
            shard: 0,
            hash_seed: 1,
            root_key: Some([7; 32]),
            marks: Marks::default(),
            lease_ms: Config::default().lease_ms,
            policy: PolicyKind::default(),
            scale: Config::default().scale,
            server_loss_ms: SERVER_LOSS_DEFAULT_MS,
            now: Time::ZERO,
        };
        let opened = Store::open(Box::new(disk.clone()), options).unwrap();
        (opened.catalog, opened.store)
    }

    impl Judged {
        fn new() -> Judged {
            let disk = MemoryDisk::new();
            let (catalog, store) = open(&disk);
            let (policy, server_loss_ms) = (PolicyKind::default(), SERVER_LOSS_DEFAULT_MS);
            let shape = Shape { policy, server_loss_ms };
            let model = CatalogModel::new(shape, BLOCK_SIZE);
            Judged { disk, catalog, store, model, orders: Vec::new() }
        }

        fn run(&mut self, command: Command<'_>) -> Reply {
            let (now, mut orders) = (Time::from_millis(1), Vec::new());
            self.model.look(now, &mut self.catalog, &command).unwrap();
            let reply = self.catalog.apply(now, command, &mut orders);
            let waits = waits(&command, &orders);
            self.store.commit(now, &mut self.catalog, &[], waits).unwrap();
            self.model.judge(now, &command, &reply, &orders).unwrap();
            self.orders = orders;
            reply.unwrap()
        }

        /// The controller's machine loses power, with all unsynced bytes.
        fn lose_power(&mut self) {
            self.disk.crash(&mut |_| 0);
            (self.catalog, self.store) = open(&self.disk);
            self.model.restart(Time::from_millis(1), &self.catalog, true).unwrap();
        }

        fn grow(&mut self, structure: StructureId, at: BlockAt) -> BlockAt {
            match self.run(Command::GrowStructure { structure, at }) {
                Reply::Grown { entry, .. } => entry.at,
                other => panic!("growth was answered with {other:?}"),
            }
        }
    }

    fn server(ix: usize) -> NewServer<'static> {
        NewServer {
            address: ["a:1", "b:1"][ix],
            incarnation: ix as u64,
            shards: 1,
            blocks_per_shard: 8,
            tiers: &[],
            block_size: BLOCK_SIZE,
            flush_root: "",
            kinds: &[],
        }
    }

    fn file(judged: &mut Judged, actor: Actor, job: JobId) -> StructureId {
        let structure = NewStructure {
            path: "p",
            name: "file",
            kind: Kind::File,
            blocks: 2,
            max_items: 0,
            max_bytes: 0,
            open_existing: false,
        };
        match judged.run(Command::CreateStructure { actor, job, structure }) {
            Reply::Opened(opened) => opened.structure,
            other => panic!("a creation was answered with {other:?}"),
        }
    }

    #[test]
    fn spare_that_seals_before_its_grant_is_known_keeps_its_successor() {
        let mut judged = Judged::new();
        for ix in 0..2 {
            judged.run(Command::JoinServer { server: server(ix) });
        }
        let (actor, hints) = (Actor::CLUSTER, Hints::default());
        let register = Command::RegisterJob {
            actor,
            name: "j",
            lease_ms: 500,
            quota_blocks: 0,
            hints,
            claim: Default::default(),
        };
        let Reply::Job { job, .. } = judged.run(register) else { panic!("no job") };
        let (actor, options) = (Actor::driver(job), PrefixOptions::default());
        judged.run(Command::CreatePrefix { actor, job, path: "p", parents: &[], options });
        let structure = file(&mut judged, actor, job);
        let first = *judged.model.open.first().unwrap();
        // Neither the grants nor the seals wait for the disk.
        let spare = judged.grow(structure, first);
        let full = Seal { length: 60_000, bytes: 60_000, last: false };
        judged.run(Command::SealBlock { structure, at: first, seal: full });
        let third = judged.grow(structure, spare);
        judged.run(Command::SealBlock { structure, at: spare, seal: full });
        judged.lose_power();

        let told = |at, sealed, successor| HeldBlock {
            at,
            structure,
            generation: Generation(1),
            bytes_used: 100,
            sealed,
            successor,
            taken: (0, 0),
            tiers: Default::default(),
            capacity: 65_536,
        };
        let held = [
            told(first, Some(full), Some(spare)),
            told(spare, Some(full), Some(third)),
            told(third, None, None),
        ];
        // The server of the pre-allocated block reports before that of the first one.
        let mut members = [first, spare].map(|at| at.block.server());
        members.reverse();
        assert_ne!(members[0], members[1], "the blocks are on two servers");
        for member in members {
            let own: Vec<HeldBlock> =
                held.iter().copied().filter(|held| held.at.block.server() == member).collect();
            let server = server(member.0 as usize - 1);
            judged.run(Command::RejoinServer { server, member });
            judged.run(Command::Inventory { server: member, held: &own, last: true });
        }
        judged.grow(structure, third);
        judged.model.compare(Time::from_millis(1), &mut judged.catalog).unwrap();
    }
}
