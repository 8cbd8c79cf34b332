//! A flush of all blocks as of one moment: of a prefix, or of a subtree (ADR 0032).
//!
//! The members are flushes of live prefixes, each with a number of its own. The number of the topmost flush
//! identifies the barrier. First, none of their blocks may be moving, and no move may begin. Then every block
//! is asked to freeze. When all have answered, there was a moment at which all were frozen: the snapshot. The
//! blocks are thawed, and the content of each at that moment is copied as by any flush, from its snapshot.
//!
//! A block stays frozen for the requested time at most, by its own clock. The controller measures the same
//! time from its request, so that its time ends before that of any block: every block that has answered is
//! still frozen when the last block answers. A block that thawed by itself reports this in its answer to the
//! thaw request, and has no snapshot. The attempt then fails and is repeated, with twice the time.
//!
//! No part of a failed attempt is reused: all copies are made again from the next snapshot. The members
//! commit together: when the last member is copied, all continue as other flushes, and the topmost flush,
//! whose manifest names them, is committed last.

use super::live::{Live, PartContent};
use super::{Again, pause};
use crate::reply::{FlushProgress, FlushState};
use crate::{Catalog, CatalogError, Effect, Reply, StopFault};
use honeycomb_types::limits::{BARRIER_MAX, BARRIER_TRIES};
use honeycomb_types::{BlockAt, BlockId, Bug, Router, ServerId, StructureId, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The pause before another request to a block whose earlier requests are still arriving, or another attempt
/// to begin a barrier.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// The barrier of one flush, or of the flushes of a subtree.
#[derive(Debug)]
pub(crate) struct Barrier {
    /// The number of its prefixes.
    members: usize,
    stage: BarrierStage,
    /// The number of the present attempt.
    attempt: u32,
    /// The number of attempts in which blocks were not frozen for long enough.
    short: u32,
}

#[derive(Debug)]
enum BarrierStage {
    /// Waits until no block moves.
    Waits { due: Time },
    /// Freezes the blocks. `last` is the server of the last answer.
    Stops { since: Time, blocks: BTreeMap<BlockAt, BlockFreeze>, last: Option<ServerId> },
    /// Thaws the blocks, all of which were frozen: the blocks that have not confirmed, and the server of a
    /// block that had thawed by itself.
    Goes { left: BTreeSet<BlockAt>, early: Option<ServerId> },
    /// The snapshot is complete.
    Cut,
}

#[derive(Clone, Copy, Debug)]
struct BlockFreeze {
    number: u64,
    range: (u64, u64),
    state: StopState,
}

#[derive(Clone, Copy, Debug)]
enum StopState {
    Asked,
    /// Earlier requests are still arriving: the request is repeated then.
    Again(Time),
    Stands {
        sealed: bool,
    },
}

impl Barrier {
    pub(super) fn new(members: usize) -> Barrier {
        Barrier { members, stage: BarrierStage::Waits { due: Time::ZERO }, attempt: 0, short: 0 }
    }

    pub(super) fn is_cut(&self) -> bool {
        matches!(self.stage, BarrierStage::Cut)
    }

    fn hold(&self) -> Duration {
        BARRIER_MAX * (1 << self.short.min(BARRIER_TRIES))
    }
}

impl Catalog {
    /// Numbers of the flushes of a barrier.
    pub(super) fn members_of(&self, group: u64) -> Vec<u64> {
        let live = self.flushes.live.range(group..);
        live.filter(|(_, live)| live.group == group).map(|(number, _)| *number).collect()
    }

    /// The progress of a flush, with that of the other members when it is the topmost of a barrier.
    pub(super) fn progress_of(&self, number: u64) -> Option<FlushProgress> {
        let mut sum = self.flushes.live.get(&number)?.progress();
        for (_, other) in self.flushes.live.range(number + 1..).filter(|(_, l)| l.group == number) {
            let progress = other.progress();
            sum.parts += progress.parts;
            sum.done += progress.done;
            sum.bytes += progress.bytes;
            if sum.state == FlushState::Writing {
                sum.state = progress.state;
            }
        }
        Some(sum)
    }

    /// Whether a block may neither move nor leave because its snapshot, made or coming, is not written.
    pub(crate) fn stays_for_cut(&self, s: u32, block: BlockId) -> bool {
        let structure = &self.structures[s];
        let prefix = self.dag.nodes[structure.prefix].id;
        let theirs = |live: &&Live| live.group != 0 && live.prefix == prefix;
        self.flushes.live.values().filter(theirs).any(|live| live.keeps(structure, block))
    }

    /// Advances a barrier: sends the possible requests, and checks whether all are answered.
    pub(super) fn tend_barrier(&mut self, group: u64, effects: &mut Vec<Effect>) {
        let Some(barrier) = self.flushes.barriers.get(&group) else { return };
        match &barrier.stage {
            BarrierStage::Waits { due } if *due <= self.now => self.stop_all(group, effects),
            BarrierStage::Stops { .. } => self.look_at_stops(group, effects),
            BarrierStage::Goes { left, early } if left.is_empty() => match *early {
                Some(server) => self.stood_too_short(group, server, effects),
                None => self.barrier(group).stage = BarrierStage::Cut,
            },
            BarrierStage::Waits { .. } | BarrierStage::Goes { .. } | BarrierStage::Cut => {}
        }
    }

    fn barrier(&mut self, group: u64) -> &mut Barrier {
        self.flushes.barriers.get_mut(&group).expect("the caller has found the barrier")
    }

    fn look_again(&mut self, group: u64, at: Time) {
        self.flushes.retries.push(Reverse((at, group, Again::Copy)));
    }

    fn wait(&mut self, group: u64, pause: Duration) {
        let due = self.now + pause;
        self.barrier(group).stage = BarrierStage::Waits { due };
        self.look_again(group, due);
    }

    /// The prefixes of a barrier, if it can begin.
    fn still(&self, group: u64, members: &[u64]) -> Option<Vec<u32>> {
        let prefix = |number: &u64| self.dag.by_id(self.flushes.live[number].prefix);
        let nodes: Vec<u32> = members.iter().map(prefix).collect::<Option<_>>()?;
        let ids: BTreeSet<_> = members.iter().map(|n| self.flushes.live[n].prefix).collect();
        // Two snapshots of one block are made one after the other.
        let mut earlier = self.flushes.live.values();
        let earlier =
            earlier.any(|live| live.group != 0 && live.group < group && ids.contains(&live.prefix));
        let moves =
            |n: &u32| self.structures_of(*n).any(|s| !self.structures[s].pending().is_empty());
        (!earlier && !nodes.iter().any(moves)).then_some(nodes)
    }

    fn stop_all(&mut self, group: u64, effects: &mut Vec<Effect>) {
        let members = self.members_of(group);
        if members.len() != self.barrier(group).members {
            let why = "the controller restarted when part of the flush was written".into();
            return self.give_up_live(group, FlushState::Lost(why), effects);
        }
        let Some(nodes) = self.still(group, &members) else {
            return self.wait(group, LOOK_AGAIN);
        };
        if let Err(e) = nodes.iter().try_for_each(|&n| self.need_content(n)) {
            return self.give_up_live(group, FlushState::Lost(e.to_string().into()), effects);
        }
        let mut blocks = BTreeMap::new();
        for (number, n) in members.into_iter().zip(nodes) {
            let mut live =
                self.flushes.live.remove(&number).expect("a member of a barrier is under way");
            self.list_sources(n, &mut live);
            for (at, range) in self.blocks_of(&live) {
                blocks.insert(at, BlockFreeze { number, range, state: StopState::Asked });
            }
            self.flushes.live.insert(number, live);
        }
        let barrier = self.flushes.barriers.get(&group).expect("the caller has found the barrier");
        let (attempt, hold) = (barrier.attempt, barrier.hold());
        effects.extend(blocks.iter().map(|(at, stop)| stop.effect(*at, attempt, hold)));
        let since = self.now;
        self.barrier(group).stage = BarrierStage::Stops { since, blocks, last: None };
        self.look_again(group, since + hold);
        self.look_at_stops(group, effects);
    }

    /// The blocks of the parts of a flush, with their hashes.
    fn blocks_of(&self, live: &Live) -> Vec<(BlockAt, (u64, u64))> {
        let whats = live.whats().filter_map(|(id, what)| match what {
            PartContent::Range(start, end) => {
                let s = self.structures.find(id)?;
                let entries = &self.structures[s].entries;
                let place = entries.partition_point(|entry| entry.start <= start) - 1;
                Some((self.pool.at(entries[place].block), (start, end)))
            }
            PartContent::Chained(at, _) => Some((at, (0, u64::MAX))),
            PartContent::Extents(_) => None,
        });
        whats.collect()
    }

    fn look_at_stops(&mut self, group: u64, effects: &mut Vec<Effect>) {
        let now = self.now;
        let barrier =
            self.flushes.barriers.get_mut(&group).expect("the caller has found the barrier");
        let (attempt, hold) = (barrier.attempt, barrier.hold());
        let BarrierStage::Stops { since, blocks, last } = &mut barrier.stage else { return };
        let stands = |stop: &BlockFreeze| matches!(stop.state, StopState::Stands { .. });
        if now >= *since + hold {
            let slow = blocks.iter().find(|(_, stop)| !stands(stop));
            let slow = slow.map(|(at, _)| at.block.server()).or(*last);
            let slow = slow.expect("a wait has at least one block");
            return self.stood_too_short(group, slow, effects);
        }
        for (at, stop) in blocks.iter_mut() {
            if matches!(stop.state, StopState::Again(due) if due <= now) {
                stop.state = StopState::Asked;
                effects.push(stop.effect(*at, attempt, hold));
            }
        }
        let early = Bug::BarrierThawsEarly.active() && blocks.values().any(stands);
        if !early && !blocks.values().all(stands) {
            return;
        }
        let blocks = blocks.clone();
        match self.left_out(group, &blocks) {
            // The structures have changed since the requests.
            None => self.anew(group, LOOK_AGAIN, effects),
            Some(more) if more.is_empty() => {
                let left: BTreeSet<BlockAt> = blocks.keys().copied().collect();
                for (&at, stop) in &blocks {
                    let (server, number) = (at.block.server(), stop.number);
                    effects.push(Effect::ThawBlock { server, at, number, attempt });
                }
                self.barrier(group).stage = match left.is_empty() {
                    true => BarrierStage::Cut,
                    false => BarrierStage::Goes { left, early: None },
                };
            }
            Some(more) => {
                for (id, at, number) in more {
                    let live = self
                        .flushes
                        .live
                        .get_mut(&number)
                        .expect("a member of a barrier is under way");
                    live.continues(id, at);
                    let stop =
                        BlockFreeze { number, range: (0, u64::MAX), state: StopState::Asked };
                    effects.push(stop.effect(at, attempt, hold));
                    if let BarrierStage::Stops { blocks, .. } = &mut self.barrier(group).stage {
                        blocks.insert(at, stop);
                    }
                }
            }
        }
    }

    /// Blocks of the snapshot that received no request: successors of a block that was sealed. `None` if the
    /// structures have changed since the requests.
    fn left_out(
        &self,
        group: u64,
        blocks: &BTreeMap<BlockAt, BlockFreeze>,
    ) -> Option<Vec<(StructureId, BlockAt, u64)>> {
        let mut more = Vec::new();
        for number in self.members_of(group) {
            let live = &self.flushes.live[&number];
            let n = self.dag.by_id(live.prefix)?;
            if self.structures_of(n).count() != live.ids().count() {
                return None;
            }
            for id in live.ids() {
                let structure = &self.structures[self.structures.find(id)?];
                if structure.router == Router::HashRange {
                    continue;
                }
                let chain: Vec<BlockAt> =
                    structure.in_order().map(|block| self.pool.at(block)).collect();
                let open = |at: &BlockAt| {
                    let state = blocks.get(at).map(|stop| stop.state);
                    matches!(state, Some(StopState::Stands { sealed: false }))
                };
                if chain.iter().any(open) {
                    continue;
                }
                let unasked = chain.into_iter().filter(|at| !blocks.contains_key(at));
                more.extend(unasked.map(|at| (id, at, number)));
            }
        }
        Some(more)
    }

    pub(crate) fn block_stopped(
        &mut self,
        server: ServerId,
        (number, at): (u64, BlockAt),
        attempt: u32,
        outcome: Result<bool, (StopFault, &str)>,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        self.heard_from(server);
        let (group, now) = (self.flushes.live.get(&number).map_or(0, |live| live.group), self.now);
        let known = self.flushes.barriers.get_mut(&group);
        let Some(barrier) = known.filter(|barrier| barrier.attempt == attempt) else {
            return Ok(Reply::Done);
        };
        let BarrierStage::Stops { blocks, last, .. } = &mut barrier.stage else {
            let waits = matches!(barrier.stage, BarrierStage::Waits { .. });
            assert!(waits, "INV-49: a snapshot was released before {at:?} was frozen");
            return Ok(Reply::Done);
        };
        let Some(stop) = blocks.get_mut(&at) else { return Ok(Reply::Done) };
        match outcome {
            Ok(sealed) => {
                stop.state = StopState::Stands { sealed };
                *last = Some(server);
            }
            Err((StopFault::Arriving, _)) => {
                stop.state = StopState::Again(now + LOOK_AGAIN);
                self.look_again(group, now + LOOK_AGAIN);
            }
            Err((StopFault::Never, why)) => {
                self.give_up_live(group, FlushState::Lost(why.into()), effects);
            }
            Err((StopFault::Gone, _)) => self.anew(group, LOOK_AGAIN, effects),
        }
        Ok(Reply::Done)
    }

    pub(crate) fn block_thawed(
        &mut self,
        server: ServerId,
        (number, at): (u64, BlockAt),
        attempt: u32,
        stood: bool,
    ) -> Result<Reply, CatalogError> {
        self.heard_from(server);
        let group = self.flushes.live.get(&number).map_or(0, |live| live.group);
        let known = self.flushes.barriers.get_mut(&group);
        let known = known.filter(|barrier| barrier.attempt == attempt);
        if let Some(BarrierStage::Goes { left, early }) = known.map(|barrier| &mut barrier.stage)
            && left.remove(&at)
            && !stood
        {
            early.get_or_insert(server);
        }
        Ok(Reply::Done)
    }

    /// A server has no record of a snapshot that it should write.
    pub(crate) fn cut_lost(
        &mut self,
        server: ServerId,
        number: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        self.heard_from(server);
        let group = self.flushes.live.get(&number).map_or(0, |live| live.group);
        let known = self.flushes.barriers.get(&group);
        if known.is_some_and(Barrier::is_cut) {
            self.anew(group, pause(0), effects);
        }
        Ok(Reply::Done)
    }

    /// The server has a new connection: its snapshots are lost.
    pub(super) fn cuts_anew(&mut self, effects: &mut Vec<Effect>) {
        let begun = self.flushes.barriers.iter();
        let begun = begun.filter(|(_, b)| !matches!(b.stage, BarrierStage::Waits { .. }));
        let groups: Vec<u64> = begun.map(|(group, _)| *group).collect();
        groups.into_iter().for_each(|group| self.anew(group, LOOK_AGAIN, effects));
    }

    /// Thaws all blocks, drops the snapshots, and makes them again.
    fn anew(&mut self, group: u64, pause: Duration, effects: &mut Vec<Effect>) {
        for number in self.members_of(group) {
            self.end_copies(number, effects);
            self.flushes
                .live
                .get_mut(&number)
                .expect("a member of a barrier is under way")
                .begin_anew();
        }
        self.barrier(group).attempt += 1;
        self.wait(group, pause);
    }

    /// A block of this server thawed before all were frozen, or did not freeze in time.
    fn stood_too_short(&mut self, group: u64, server: ServerId, effects: &mut Vec<Effect>) {
        let barrier = self.barrier(group);
        let hold = barrier.hold();
        barrier.short += 1;
        let (tries, within) = (barrier.short, hold.as_millis());
        let address = self.address_of(server).unwrap_or_else(|| "a lost server".into());
        let why: Arc<str> = format!(
            "the blocks were never all frozen at the same moment in {tries} tries, the last within \
             {within} ms: the slowest memory server was {address}"
        )
        .into();
        if tries >= BARRIER_TRIES {
            return self.give_up_live(group, FlushState::NoCut(why), effects);
        }
        self.anew(group, hold, effects);
        if let Some(live) = self.flushes.live.get_mut(&group) {
            live.error = Some(why);
        }
    }
}

impl BlockFreeze {
    fn effect(&self, at: BlockAt, attempt: u32, hold: Duration) -> Effect {
        let (server, number, (start, end)) = (at.block.server(), self.number, self.range);
        Effect::CutBlock { server, at, start, end, number, hold, attempt }
    }
}
