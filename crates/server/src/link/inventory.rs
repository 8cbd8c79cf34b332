//! The inventory for a controller that knows this server: the state and content of its blocks, which is sent
//! before any other message.

use super::requests::{cut_off, no_capacity};
use super::{Link, PendingRequest, TOLD_AT_A_TIME};
use crate::shard::{BlockMessage, Effect, MoveWord};
use honeycomb_transport::Net;
use honeycomb_types::{BlockAt, ShardIx};
use honeycomb_wire::messages::{HeldBlock, InventoryRequest};
use honeycomb_wire::{Op, Status};

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

    /// No inventory yet; the rounds continue after this one.
    pub(super) fn after(round: u64) -> Telling {
        Telling { round, ..Telling::default() }
    }

    /// Discards the inventory, which no controller needs.
    pub(super) fn forget(&mut self) {
        *self = Telling::after(self.round);
    }

    /// Ends an incomplete inventory: it is started again from the beginning.
    pub(super) fn stop(&mut self) {
        self.round += 1;
        self.has.clear();
        self.blocks.clear();
        for effect in std::mem::take(&mut self.later) {
            match effect {
                Effect::Taken { at, .. } => self.unheard.push(at),
                effect if effect.is_retained() => self.later.push(effect),
                _ => {}
            }
        }
    }

    /// Keeps an effect that no inventory contains until the controller is connected and can take it. One
    /// failure of a block says all, however often the block is read.
    pub(super) fn keep(&mut self, effect: Effect) {
        let kept = effect.is_retained();
        assert!(kept, "INV-20: {effect:?} is retained, and an inventory contains it");
        let failed = |effect: &Effect| match *effect {
            Effect::BlockFailed { at, .. } => Some(at),
            _ => None,
        };
        let known = |at| self.later.iter().any(|other| failed(other) == Some(at));
        if !failed(&effect).is_some_and(known) {
            self.later.push(effect);
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
            Effect::Enlarge { at, .. } => return self.pass(at, no_capacity()),
            Effect::BeginMove { at, .. } => {
                let refused = MoveWord::Refused(Status::Unavailable, cut_off());
                return self.move_word(at, refused);
            }
            Effect::CommitMove { at, .. } => return self.move_word(at, MoveWord::NotAsked),
            // The shard requests these again.
            Effect::LocateServer { .. } | Effect::Promote { .. } | Effect::ValuesLeave { .. } => {
                return;
            }
            Effect::CancelMove { .. } | Effect::BlockFailed { .. } | Effect::Return { .. } => {
                return self.telling.keep(effect);
            }
            Effect::TierChanged { at, .. }
            | Effect::Sealed { at, .. }
            | Effect::Taken { at, .. }
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
        let own = |held: &HeldBlock| {
            let BlockAt { block, .. } = BlockAt::of(held.block, held.epoch);
            block.shard() == shard && block.server().controller() == self.controller
        };
        debug_assert!(blocks.iter().all(own), "INV-02: shard {shard} lists a block of another one");
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
            self.pass(at, BlockMessage::TakenReceived);
        }
        self.send_later(net);
    }

    /// Sends the effects that were kept.
    pub(super) fn send_later(&mut self, net: &mut Net) {
        for effect in std::mem::take(&mut self.telling.later) {
            self.effect(net, effect);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flush::Flusher;
    use crate::link::Identity;
    use honeycomb_env::Clock;
    use honeycomb_transport::NetOptions;
    use honeycomb_types::limits::REPORT_INTERVAL;
    use honeycomb_types::{BlockId, Bug, Epoch, ServerId, StructureId, Time};
    use honeycomb_wire::ReplyHeader;
    use honeycomb_wire::data::MovedArgs;
    use honeycomb_wire::messages::MapEntry;
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::time::Duration;

    /// A link whose controller reads nothing.
    struct World {
        net: Net,
        link: Link,
        controller: TcpListener,
    }

    impl World {
        fn new() -> World {
            let controller = TcpListener::bind("127.0.0.1:0").unwrap();
            let clock = Clock::start();
            let options =
                NetOptions { spin: Duration::ZERO, budget: 1 << 20, connections: Arc::default() };
            let net = Net::new(clock, options).unwrap();
            let identity = Identity {
                controller: controller.local_addr().unwrap(),
                token: Vec::new(),
                address: String::new(),
                shards: 1,
                blocks_per_shard: 1,
                tiers: Vec::new(),
                traffic: Vec::new(),
                block_size: 65_536,
                incarnation: 1,
                flush_root: String::new(),
                kinds: Vec::new(),
            };
            let (mailbox, _) = net.mailbox();
            let link = Link::new(0, Arc::new(identity), clock, vec![mailbox], Flusher::none(), 0);
            World { net, link, controller }
        }

        /// Connects, as after an inventory.
        fn connect(&mut self) {
            let address = self.controller.local_addr().unwrap();
            self.link.conn = Some(self.net.connect(address, Duration::from_secs(5)).unwrap());
            self.link.told(&mut self.net);
        }

        fn answer_all(&mut self, now: Time, status: Status) {
            let requests: Vec<u64> = self.link.asked.keys().copied().collect();
            let from = self.link.conn.unwrap();
            for request in requests {
                let header = ReplyHeader::new(status, request, 0);
                let lots = crate::lots::Lots::new(1, 1);
                self.link.on_reply(&mut self.net, now, from, &header, &[], &lots);
            }
        }
    }

    /// Regression: a cancellation that was under way when the link broke was lost. The target of the move
    /// then waited for it for 20 s and could not split.
    #[test]
    fn effect_that_no_inventory_contains_is_sent_until_the_controller_takes_it() {
        let at = BlockAt { block: BlockId::new(ServerId(1), ShardIx(0), 0), epoch: Epoch(1) };
        let structure = StructureId(1);
        let cancel = Effect::CancelMove { structure, at, id: 7 };
        let failed = |why: &str| Effect::BlockFailed { structure, at, why: why.into() };
        let next = MapEntry { end: u64::MAX, ..MapEntry::default() };
        let successor = MovedArgs { version: 1, entry: next }.encode();
        let returned = Effect::Return { structure, at, successor };
        let mut world = World::new();
        world.connect();
        let retire = Effect::Retire { structure, at };
        for effect in [cancel.clone(), failed("no"), returned.clone(), retire] {
            world.link.effect(&mut world.net, effect);
        }
        let is_kept = |world: &World, effects: &[&Effect]| {
            let later = &world.link.telling.later;
            assert_eq!(later.len(), effects.len(), "{later:?}");
            assert!(effects.iter().all(|effect| later.contains(effect)), "{later:?}");
        };
        for _ in 0..2 {
            world.link.on_close(Time::ZERO);
            // One failure of a block says all.
            world.link.effect(&mut world.net, failed("once more"));
            is_kept(&world, &[&cancel, &failed("no"), &returned]);
            world.connect();
            assert_eq!(world.link.asked.len(), 3);
        }
        for status in [Status::LogFailed, Status::Busy, Status::Unavailable] {
            let now = world.link.next_report;
            world.answer_all(now, status);
            // The tail may have requested the successor again that it was to return.
            is_kept(&world, &[&cancel, &failed("no")]);
            // Reports that are sent early, because clients are active, do not put it off.
            let due = now + REPORT_INTERVAL;
            world.link.next_report = due + REPORT_INTERVAL;
            assert_eq!(world.link.on_tick(&mut world.net, now), due);
            assert!(world.link.asked.is_empty(), "{status:?}");
            world.link.on_tick(&mut world.net, due);
            assert_eq!(world.link.asked.len(), 2, "{status:?}");
        }
        world.answer_all(Time::ZERO, Status::Ok);
        world.link.on_close(Time::ZERO);
        assert_eq!(world.link.telling.later, []);

        Bug::arm(Some(Bug::CancelNotRepeated));
        world.connect();
        world.link.effect(&mut world.net, cancel);
        world.link.on_close(Time::ZERO);
        Bug::arm(None);
        assert_eq!(world.link.telling.later, []);
    }
}
