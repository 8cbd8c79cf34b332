//! A controller that is started again, in the reference model: what its log may have lost, and what
//! servers bring back when they tell which blocks they hold (INV-25 to 27).

use super::reference::{File, Life};
use super::{CatalogModel, Verdict, agree, require};
use honeycomb_catalog::{Catalog, CatalogError, Chain, HeldBlock, NewServer, Reply};
use honeycomb_types::{BlockAt, BlockId, Kind, ServerId, Time};
use std::collections::{BTreeMap, BTreeSet};

/// Members of before, and what those who came have told so far.
#[derive(Default)]
pub struct Rejoining {
    /// Blocks told by servers that have not told all of theirs.
    told: BTreeMap<ServerId, BTreeSet<BlockId>>,
    /// Held, and nobody's as far as is known.
    unowned: Vec<HeldBlock>,
    /// A server has come back: what it was told to do it may be told a second time.
    pub again: bool,
}

impl CatalogModel {
    /// Whether members of before a restart are still awaited: then nothing ends, and free blocks are
    /// not counted.
    pub fn is_recovering(&self) -> bool {
        !self.cluster.away.is_empty()
    }

    /// Whether a structure has blocks on a server that is about to tell what it holds.
    pub(super) fn is_telling(&self, file: &File) -> bool {
        file.held().iter().any(|at| self.rejoining.told.contains_key(&at.block.server()))
    }

    /// A controller has read its log. When its machine lost power the log may lack what nobody
    /// waited for: grants of growth and seals, at the end of chains. It lacks nothing else.
    pub fn restart(&mut self, now: Time, catalog: &Catalog, power: bool) -> Verdict {
        self.cluster.now = now.as_millis();
        self.cluster.away = self.cluster.servers.keys().copied().collect();
        self.cluster.used.clear();
        self.cluster.lent.clear();
        self.cluster.tiers.places.clear();
        self.refused = None;
        self.told_lots.clear();
        for (_, seen) in self.cluster.servers.values_mut() {
            *seen = now.as_millis();
        }
        for server in self.cluster.drains.keys().copied().collect::<Vec<_>>() {
            self.drain_anew(server);
        }
        self.rejoining = Rejoining { again: true, ..Rejoining::default() };
        self.renew_all();
        for file in self.cluster.jobs.iter_mut().flat_map(|job| &mut job.files) {
            let chain = catalog.chain(file.id);
            let chain = chain.ok_or_else(|| format!("{} was lost by the log (INV-26)", file.id))?;
            forget(file, &chain, power, &mut self.open)?;
            // Every move has its whole time again.
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
        held.iter().for_each(|held| self.cluster.tiers.put(held.at, held.tiers));
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

    /// Brings a block that a server holds up to date; false when nobody is known to own it.
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
        let ends_with = file.chain.last() == Some(&at) && !file.sealed();
        if let Some(successor) = held.successor.filter(|_| ends_with)
            && !self.cluster.servers.contains_key(&successor.block.server())
        {
            // There was more, and it is gone.
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

    /// A server has told everything: what it does not hold and nobody owns is free, what it holds
    /// and nobody owns is kept until everybody has told.
    fn returned(&mut self, server: ServerId) {
        let told = self.rejoining.told.remove(&server).unwrap_or_default();
        let quarantined = &mut self.cluster.quarantined;
        quarantined.retain(|at| at.block.server() != server || told.contains(&at.block));
        let unowned = &self.rejoining.unowned;
        for held in unowned.iter().filter(|held| held.at.block.server() == server) {
            quarantined.retain(|at| at.block != held.at.block);
            quarantined.insert(held.at);
        }
        self.cluster.away.remove(&server);
        self.lent_again(server);
    }

    /// After each command: once nobody is awaited any more, every lease begins anew.
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

/// Takes from a structure of the model what the log has lost of it, if it may have.
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
        // Only the end of a chain can be lost, and comes back with who was granted it.
        let after = file.chain.iter().rposition(|b| known.contains(b)).unwrap_or(0);
        let beyond = file.chain.iter().position(|&b| b == at).is_some_and(|i| i > after);
        require(beyond, || format!("{at:?} was lost from the middle of a chain (INV-26)"))?;
        file.chain.retain(|&other| other != at);
        file.seals.remove(&at);
        open.remove(&at);
    }
    // What was allocated in advance may have lost that it was given out.
    for at in chain.beside.iter().filter(|_| file.kind != Kind::Kv) {
        if file.chain.contains(at) {
            require(power, || format!("the growth to {at:?} was lost by the log (INV-26)"))?;
            file.chain.retain(|other| other != at);
            file.seals.remove(at);
        }
    }
    if file.kind != Kind::Kv {
        // Blocks that moves are to fill lie beside as well.
        let fills = |at: &&BlockAt| file.pending.iter().any(|moving| moving.target == **at);
        file.spare = chain.beside.iter().filter(|at| !fills(at)).copied().collect();
    }
    for (at, sealed) in &chain.blocks {
        if !sealed && file.seals.remove(at).is_some() {
            require(power, || format!("the seal of {at:?} was lost by the log (INV-26)"))?;
        }
    }
    Ok(())
}
