//! The inventory for a controller that knows this server: the state and content of its blocks, which is sent
//! before any other message.

use super::{Link, PendingRequest, TOLD_AT_A_TIME};
use crate::shard::{Effect, MoveWord};
use honeycomb_structures::News;
use honeycomb_transport::Net;
use honeycomb_types::{BlockAt, ShardIx};
use honeycomb_wire::Op;
use honeycomb_wire::messages::{HeldBlock, InventoryRequest};

/// The inventory for a controller that knows this server, in progress.
#[derive(Default)]
pub(super) struct Telling {
    /// Distinguishes the answers of one connection from those of an earlier one.
    pub(super) round: u64,
    /// For each shard, whether it has reported.
    has: Vec<bool>,
    blocks: Vec<HeldBlock>,
    /// Effects of the shards after their reports.
    later: Vec<Effect>,
    /// Blocks that wait for confirmation that the controller knows which items were taken from them.
    pub(super) unheard: Vec<BlockAt>,
}

impl Telling {
    pub(super) fn begin(&mut self, shards: usize) {
        self.stop();
        self.has = vec![false; shards];
    }

    /// Discards the inventory, which no controller needs.
    pub(super) fn forget(&mut self) {
        *self = Telling { round: self.round, ..Telling::default() };
    }

    /// Ends an incomplete inventory: it is started again from the beginning.
    pub(super) fn stop(&mut self) {
        self.round += 1;
        self.has.clear();
        self.blocks.clear();
        for effect in std::mem::take(&mut self.later) {
            match effect {
                Effect::Taken { at, .. } => self.unheard.push(at),
                // The inventory of blocks does not contain these.
                Effect::CancelMove { .. } | Effect::BlockFailed { .. } => self.later.push(effect),
                _ => {}
            }
        }
    }

    pub(super) fn has(&self, shard: ShardIx) -> bool {
        self.has.get(shard.0 as usize).copied().unwrap_or(false)
    }

    /// Adds a shard's blocks; true if all shards have reported.
    pub(super) fn take(&mut self, shard: ShardIx, blocks: Vec<HeldBlock>) -> bool {
        self.has[shard.0 as usize] = true;
        self.blocks.extend(blocks);
        self.has.iter().all(|&has| has)
    }
}

impl Link {
    /// Keeps an effect for the controller until it is connected again. Effects of a shard before its report
    /// are contained in the report.
    pub(super) fn keep(&mut self, effect: Effect) {
        let at = match effect {
            Effect::Grow { at, .. } => return self.away(at),
            Effect::BeginMove { at, .. } => return self.move_word(at, MoveWord::NotBegun),
            Effect::CommitMove { at, .. } => return self.move_word(at, MoveWord::NotAsked),
            // The shard requests these again.
            Effect::LocateServer { .. } | Effect::Raise { .. } | Effect::ValuesLeave { .. } => {
                return;
            }
            Effect::CancelMove { .. } | Effect::BlockFailed { .. } => {
                return self.telling.later.push(effect);
            }
            Effect::TierChanged { at, .. }
            | Effect::Sealed { at, .. }
            | Effect::Taken { at, .. }
            | Effect::Return { at, .. }
            | Effect::Retire { at, .. } => at,
        };
        match effect {
            _ if self.telling.has(at.block.shard()) => self.telling.later.push(effect),
            Effect::Taken { at, .. } => self.telling.unheard.push(at),
            _ => {}
        }
    }

    /// Adds a shard's report, if it was requested over this connection.
    pub(crate) fn holdings(
        &mut self,
        net: &mut Net,
        shard: ShardIx,
        round: u64,
        blocks: Vec<HeldBlock>,
    ) {
        if round == self.telling.round && self.telling.take(shard, blocks) {
            self.tell_holdings(net);
        }
    }

    pub(super) fn tell_holdings(&mut self, net: &mut Net) {
        let mut blocks = std::mem::take(&mut self.telling.blocks);
        loop {
            let rest = blocks.split_off(blocks.len().min(TOLD_AT_A_TIME));
            let last = rest.is_empty();
            let body = InventoryRequest { blocks, last };
            self.ask(net, Op::Inventory, &body, PendingRequest::Inventory { last });
            if last {
                return;
            }
            blocks = rest;
        }
    }

    /// The controller knows the inventory: normal operation resumes.
    pub(super) fn told(&mut self, net: &mut Net) {
        self.now_ready(net);
        for at in std::mem::take(&mut self.telling.unheard) {
            self.tell(at, News::TakenHeard);
        }
        for effect in std::mem::take(&mut self.telling.later) {
            self.effect(net, effect);
        }
    }
}
