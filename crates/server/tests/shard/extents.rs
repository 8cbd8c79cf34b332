//! Adoption and drops between shards over a network that loses, delays and repeats messages: an entry never
//! names an extent that does not exist, every put is answered in time, and nothing is left behind.

use crate::common::{access, owner};
use honeycomb_server::{Effect, KeptBytes, MoveWord, PeerEvent, PeerKey, Post, Shard, VolumeParts};
use honeycomb_structures::{Answer, ExtentRef, Outcome, Payload, Ticket};
use honeycomb_types::limits::{ADOPT_MAX, EXTENT_PENDING_MS};
use honeycomb_types::{
    BlockAt, BlockId, Bug, Epoch, Kind, LaneId, Sequence, ServerId, ShardIx, Time, Way,
};
use honeycomb_wire::extents::{extents, put_extents};
use honeycomb_wire::messages::MapEntry;
use honeycomb_wire::{Field, Op, RequestHeader, Status, key_hash};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

const SIZE: usize = 64 << 10;
const NEAR: ServerId = ServerId(1);
const FAR: ServerId = ServerId(2);
/// The first block of the near server.
const KV: BlockAt = BlockAt::of(1 << 32, 1);

/// A put is answered within this: its adoption, and its block's patience.
const ANSWERED: Duration = Duration::from_millis(ADOPT_MAX.as_millis() as u64 + 1100);

/// One connection and its messages.
#[derive(Default)]
struct Wire {
    requests: VecDeque<(Op, Vec<u8>)>,
    replies: VecDeque<Status>,
}

struct World {
    near: Shard,
    far: Shard,
    now: Time,
    /// Blocks of extents: one at the near shard, the others at the far one.
    blocks: Vec<BlockAt>,
    epoch: u64,
    line: Option<(PeerKey, Wire)>,
    /// Requests of broken connections that still arrive, and whose answers are lost.
    late: VecDeque<(Op, Vec<u8>)>,
    asked: bool,
    next: u64,
    /// The content of the store, according to its answers.
    model: BTreeMap<u8, Option<Vec<ExtentRef>>>,
    waiting: BTreeMap<Ticket, (u8, Vec<ExtentRef>, Time)>,
    written: u64,
    refused: u64,
}

/// The bytes of an extent.
fn content(id: u64, length: usize) -> Vec<u8> {
    id.to_le_bytes().into_iter().cycle().take(length).collect()
}

impl World {
    fn new() -> World {
        let mut world = World {
            near: crate::common::shard(NEAR, crate::common::config(SIZE, 8)),
            far: crate::common::shard(FAR, crate::common::config(SIZE, 8)),
            now: Time::from_millis(5000),
            blocks: Vec::new(),
            epoch: 1,
            line: None,
            late: VecDeque::new(),
            asked: false,
            next: 0,
            model: BTreeMap::new(),
            waiting: BTreeMap::new(),
            written: 0,
            refused: 0,
        };
        assert_eq!(KV.block, BlockId::new(NEAR, ShardIx(0), 0));
        world.near.open(owner(KV, Kind::Kv, true), None).unwrap();
        for (server, index) in [(NEAR, 1), (FAR, 0), (FAR, 1)] {
            let at = world.open(server, index);
            world.blocks.push(at);
        }
        world
    }

    fn open(&mut self, server: ServerId, index: u32) -> BlockAt {
        self.epoch += 1;
        let block = BlockId::new(server, ShardIx(0), index);
        let at = BlockAt { block, epoch: Epoch(self.epoch) };
        self.at(at).open(owner(at, Kind::Extents, false), None).unwrap();
        at
    }

    fn at(&mut self, at: BlockAt) -> &mut Shard {
        if at.block.server() == NEAR { &mut self.near } else { &mut self.far }
    }

    fn ask(&mut self, op: Op, at: BlockAt, args: &[u8], payload: &[u8]) -> (Ticket, Outcome) {
        self.next += 1;
        let ticket = Ticket(self.next);
        let mut header = RequestHeader { at, grant: 1, ..RequestHeader::new(op) };
        (header.args_len, header.payload_len) = (args.len() as u32, payload.len() as u32);
        if op.info().lane {
            // A lane for each, so that no put waits behind another.
            (header.lane, header.sequence) = (LaneId(self.next as u32), Sequence(1));
        }
        let (now, access) = (self.now, access(false));
        (ticket, self.at(at).apply(now, &access, &header, args, payload, ticket))
    }

    fn run(&mut self, op: Op, at: BlockAt, args: &[u8], payload: &[u8]) -> Answer {
        match self.ask(op, at, args, payload).1 {
            Outcome::Done(answer) => answer,
            Outcome::Parked => panic!("{op:?} was parked"),
        }
    }

    fn bytes(&mut self, at: BlockAt, answer: &Answer) -> Vec<u8> {
        match &answer.payload {
            Payload::Block(range) => self.at(at).bytes(at, range.clone()).to_vec(),
            Payload::None => Vec::new(),
            other => panic!("{other:?}"),
        }
    }

    /// Writes a value as extents, and puts them under a key.
    fn write(&mut self, key: u8, places: &[usize], only_if_absent: bool) {
        let mut list = Vec::new();
        for place in places {
            let at = self.blocks[*place % self.blocks.len()];
            self.written += 1;
            let answer = self.run(Op::ExtentPut, at, b"", &content(self.written, 600));
            if answer.status == Status::Ok {
                // The content of each extent identifies it.
                list.push(ExtentRef { at, id: answer.value, len: 600 });
            }
        }
        if list.is_empty() {
            return;
        }
        self.put(key, list, only_if_absent);
    }

    fn put(&mut self, key: u8, list: Vec<ExtentRef>, only_if_absent: bool) -> Ticket {
        let args = [u8::from(only_if_absent), key];
        let (ticket, outcome) = self.ask(Op::KvPutExtents, KV, &args, &put_extents(&list));
        self.waiting.insert(ticket, (key, list, self.now));
        if let Outcome::Done(answer) = outcome {
            self.answered(ticket, &answer);
        }
        self.settle();
        ticket
    }

    fn answered(&mut self, ticket: Ticket, answer: &Answer) {
        let (key, list, asked) = self.waiting.remove(&ticket).expect("it is answered once");
        assert!(self.now.since(asked) <= ANSWERED, "{:?} for an answer", self.now.since(asked));
        match answer.status {
            Status::Ok => drop(self.model.insert(key, Some(list))),
            Status::ExtentGone | Status::KeyExists => self.refused += 1,
            other => panic!("{other:?}"),
        }
    }

    /// Carries out the posts and effects of both shards.
    fn settle(&mut self) {
        while let Some((ticket, answer)) = self.near.out().completed() {
            self.answered(ticket, &answer);
        }
        for post in self.near.out().take_posts() {
            match post {
                Post::Dial { key, target, .. } => {
                    assert!(
                        matches!(key, PeerKey::Extents(FAR, _)) && target.block.server() == FAR
                    );
                    assert!(self.line.is_none(), "one line to each place");
                    self.line = Some((key, Wire::default()));
                }
                Post::Send { op, args, payload, .. } => {
                    assert!(payload.bytes().is_empty());
                    let (_, wire) = self.line.as_mut().expect("it was dialled");
                    wire.requests.push_back((op, args));
                }
                Post::HangUp(_) => drop(self.line.take().expect("it was dialled")),
            }
        }
        assert!(self.far.out().take_posts().is_empty(), "the other side sends no requests");
        let effects = [self.near.out().take_effects(), self.far.out().take_effects()].concat();
        for effect in effects {
            match effect {
                Effect::LocateServer { server, .. } => {
                    assert_eq!(server, FAR);
                    self.asked = true;
                }
                Effect::Retire { at, .. } => {
                    // It is repeated until the block is freed.
                    let place = self.blocks.iter().position(|other| *other == at);
                    let Some(place) = place else { continue };
                    assert!(self.at(at).owners().free(at));
                    self.blocks[place] = self.open(at.block.server(), at.block.index());
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn serve(&mut self, op: Op, args: &[u8]) -> Status {
        let to = BlockAt { block: BlockId::new(FAR, ShardIx(0), 0), epoch: Epoch(0) };
        let header = RequestHeader { at: to, ..RequestHeader::new(op) };
        match self.far.apply(self.now, &access(true), &header, args, b"", Ticket(0)) {
            Outcome::Done(answer) => answer.status,
            Outcome::Parked => panic!("{op:?} was parked"),
        }
    }

    /// The next request arrives, or the next reply.
    fn deliver(&mut self, reply: bool) {
        let Some((key, wire)) = &mut self.line else { return };
        let key = *key;
        if reply {
            if let Some(status) = wire.replies.pop_front() {
                self.near.peer_event(self.now, key, PeerEvent::Answered(status));
            }
        } else if let Some((op, args)) = wire.requests.pop_front() {
            let status = self.serve(op, &args);
            if let Some((_, wire)) = &mut self.line {
                wire.replies.push_back(status);
            }
        }
        self.settle();
    }

    /// The connection breaks. The sent requests are lost from some request on; the others still arrive.
    fn lose(&mut self, arrive: usize) {
        let Some((key, wire)) = self.line.take() else { return };
        self.late.extend(wire.requests.into_iter().take(arrive));
        self.near.peer_event(self.now, key, PeerEvent::Lost);
        self.settle();
    }

    /// The dialled server refuses the connection.
    fn refuse(&mut self, status: Status) {
        let (key, _) = self.line.take().expect("it was dialled");
        self.near.peer_event(self.now, key, PeerEvent::Refused(status));
        self.settle();
    }

    fn arrives_late(&mut self) {
        if let Some((op, args)) = self.late.pop_front() {
            self.serve(op, &args);
            self.settle();
        }
    }

    fn located(&mut self, there: bool) {
        if std::mem::take(&mut self.asked) {
            let found = there.then(|| "127.0.0.1:9".parse().unwrap()).ok_or(Status::Unavailable);
            self.near.on_extents(self.now, |work| work.server_located(FAR, found));
            self.settle();
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let due = [self.near.deadline(), self.far.deadline()].into_iter().flatten().min();
            let Some(due) = due.filter(|due| *due <= end) else { break };
            // Time advances, however early a shard wants its next tick.
            self.now = self.now.max(due);
            self.near.tick(self.now);
            self.far.tick(self.now);
            self.settle();
            self.now = self.now + Duration::from_micros(100);
        }
        self.now = self.now.max(end);
    }

    /// Every entry is as the answers said, and all its extents exist.
    fn check(&mut self) {
        for key in 0..4u8 {
            let answer = self.run(Op::KvGet, KV, &[key], b"");
            let stored = self.bytes(KV, &answer);
            match self.model.get(&key) {
                None => assert_eq!(answer.status, Status::KeyNotFound),
                Some(None) => assert_eq!((answer.status, stored), (Status::Ok, vec![key])),
                Some(Some(list)) => {
                    assert_eq!(answer.status, Status::Extents);
                    assert_eq!(&extents(&stored).unwrap(), list);
                    for extent in list.clone() {
                        let found = self.run(Op::ExtentGet, extent.at, &extent.id.encode(), b"");
                        assert_eq!(found.status, Status::Ok, "{extent:?} of key {key} is gone");
                    }
                }
            }
        }
    }

    /// The network works again, and every deadline has passed.
    fn heal(&mut self) {
        for _ in 0..200 {
            self.located(true);
            while !self.late.is_empty() {
                self.arrives_late();
            }
            for _ in 0..50 {
                self.deliver(false);
                self.deliver(true);
            }
            self.pass(Duration::from_millis(50));
        }
        assert!(self.waiting.is_empty(), "a put was not answered");
    }

    /// The number of existing extents, and of those that entries name.
    fn held(&mut self) -> (usize, usize) {
        let named = self.model.values().flatten().map(Vec::len).sum();
        let mut there = 0;
        for at in self.blocks.clone() {
            there += (1..=self.written)
                .filter(|id| self.run(Op::ExtentGet, at, &id.encode(), b"").status == Status::Ok)
                .count();
        }
        (there, named)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(u8, Vec<usize>, bool),
    /// The same list twice: a defect of a client must not damage stored data.
    Again(u8, u8),
    Small(u8),
    Delete(u8),
    Deliver(bool),
    Lose(usize),
    Late,
    Locate(bool),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let places = prop::collection::vec(0..3usize, 1..5);
    prop_oneof![
        4 => (0..4u8, places, prop::bool::weighted(0.2))
            .prop_map(|(key, places, absent)| Step::Write(key, places, absent)),
        1 => (0..4u8, 0..4u8).prop_map(|(from, to)| Step::Again(from, to)),
        1 => (0..4u8).prop_map(Step::Small),
        1 => (0..4u8).prop_map(Step::Delete),
        9 => any::<bool>().prop_map(Step::Deliver),
        1 => (0..4usize).prop_map(Step::Lose),
        1 => Just(Step::Late),
        2 => prop::bool::weighted(0.8).prop_map(Step::Locate),
        3 => (1..400u64).prop_map(Step::Pass),
        1 => (400..EXTENT_PENDING_MS + 2000).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
    #[test]
    fn entries_name_what_is_there_and_nothing_else_stays(
        steps in prop::collection::vec(step(), 1..80)
    ) {
        let mut world = World::new();
        for step in &steps {
            match step {
                Step::Write(key, places, absent) => world.write(*key, places, *absent),
                Step::Again(from, to) => {
                    if let Some(Some(list)) = world.model.get(from).cloned() {
                        world.put(*to, list, false);
                    }
                }
                Step::Small(key) => {
                    let answer = world.run(Op::KvPut, KV, &[0, *key], &[*key]);
                    prop_assert_eq!(answer.status, Status::Ok);
                    world.model.insert(*key, None);
                }
                Step::Delete(key) => {
                    let answer = world.run(Op::KvDelete, KV, &[0, *key], b"");
                    let there = world.model.remove(key).is_some();
                    prop_assert_eq!(answer.status == Status::Ok, there);
                }
                Step::Deliver(reply) => world.deliver(*reply),
                Step::Lose(arrive) => world.lose(*arrive),
                Step::Late => world.arrives_late(),
                Step::Locate(there) => world.located(*there),
                Step::Pass(ms) => world.pass(Duration::from_millis(*ms)),
            }
            world.settle();
            world.check();
        }
        world.heal();
        world.pass(Duration::from_millis(EXTENT_PENDING_MS + 100));
        world.heal();
        world.check();
        let (there, named) = world.held();
        prop_assert_eq!(there, named, "extents without an entry are dropped");
    }
}

#[test]
fn a_block_that_goes_while_its_put_waits_leaves_nothing_behind() {
    let mut world = World::new();
    world.write(1, &[0, 1, 2], false);
    world.located(true);
    world.deliver(false);
    // As after a merge: the callers are answered, and the extents were adopted already.
    let (ticket, _) = world.waiting.pop_first().unwrap();
    assert!(world.near.owners().free(KV));
    let (told, answer) = world.near.out().completed().unwrap();
    assert_eq!((told, answer.status), (ticket, Status::WrongEpoch));
    world.heal();
    let (there, _) = world.held();
    assert_eq!(there, 0);
}

/// The put owned its extents already, and waited because its range was frozen for a move. That move's commit
/// frees the block at once, and nothing else referred to the extents.
#[test]
fn a_block_that_goes_while_a_put_waits_for_its_range_leaves_nothing_behind() {
    let mut world = World::new();
    let start = (0..200u8)
        .find_map(|n| {
            let answer = world.run(Op::KvPut, KV, &[0, b'f', n], &[n; 900]);
            assert_eq!(answer.status, Status::Ok);
            world.near.out().take_effects().into_iter().find_map(|effect| match effect {
                Effect::BeginMove { start, way: Way::Split, .. } => Some(start),
                _ => None,
            })
        })
        .expect("a full block wants to be divided");
    let moves = (0..=u8::MAX).find(|key| key_hash(&[*key]) >= start).unwrap();
    world.write(moves, &[0, 1, 2], false);
    world.located(true);
    world.deliver(false);
    let block = BlockId::new(ServerId(3), ShardIx(0), 0).0;
    let entry = MapEntry { block, epoch: 9, start, end: u64::MAX, ..MapEntry::default() };
    let address = Ok("127.0.0.1:9".parse().unwrap());
    world.near.on_exports(world.now, |work| {
        work.move_word(KV, MoveWord::Begin { id: 1, entry, address })
    });
    let mut effects = Vec::new();
    for _ in 0..10_000 {
        effects = world.near.out().take_effects();
        if !effects.is_empty() {
            break;
        }
        world.near.step(world.now);
        for post in world.near.out().take_posts() {
            if let Post::Send { key, .. } = post {
                world.near.peer_event(world.now, key, PeerEvent::Answered(Status::Ok));
            }
        }
    }
    assert!(matches!(effects[..], [Effect::CommitMove { at: KV, id: 1, .. }]), "{effects:?}");
    world.deliver(true);
    let (ticket, _) = world.waiting.pop_first().expect("the range is frozen");
    assert!(world.near.owners().free(KV));
    let (told, answer) = world.near.out().completed().unwrap();
    assert_eq!((told, answer.status), (ticket, Status::WrongEpoch));
    // The connection of the move.
    assert!(matches!(world.near.out().take_posts()[..], [Post::HangUp(_)]));
    world.heal();
    assert_eq!(world.held(), (0, 0));
}

#[test]
fn a_server_that_is_no_more_is_asked_nothing() {
    let mut world = World::new();
    world.write(1, &[1], false);
    assert_eq!(world.waiting.len(), 1);
    world.near.on_extents(world.now, |work| work.server_located(FAR, Err(Status::NotFound)));
    world.settle();
    assert!(world.waiting.is_empty());
    assert_eq!(world.refused, 1);
    // Drops at that server are also discarded, once it is known to be gone.
    world.asked = false;
    world.pass(Duration::from_millis(200));
    assert!(world.asked);
    world.near.on_extents(world.now, |work| work.server_located(FAR, Err(Status::NotFound)));
    world.settle();
    world.asked = false;
    world.pass(Duration::from_secs(5));
    assert!(!world.asked && world.line.is_none());
}

/// A shard that no server has can never confirm anything: adoptions there, and the drops that follow, were
/// repeated for ever.
#[test]
fn a_shard_that_does_not_exist_is_asked_once_and_drops_end() {
    let mut world = World::new();
    let at = BlockAt { block: BlockId::new(FAR, ShardIx(200), 0), epoch: Epoch(1) };
    world.put(1, vec![ExtentRef { at, id: 1, len: 600 }], false);
    world.located(true);
    world.refuse(Status::InvalidArgument);
    assert_eq!((world.refused, world.waiting.len()), (1, 0));
    // The drop.
    world.refuse(Status::InvalidArgument);
    world.pass(Duration::from_secs(5));
    assert!(!world.asked && world.line.is_none());
}

/// Adopting is idempotent for its owner: a broken connection does not cause another write of the value.
#[test]
fn a_line_that_breaks_costs_a_put_no_more_than_the_time() {
    let mut world = World::new();
    let again = Duration::from_millis(60);
    world.write(1, &[0, 1, 2], false);
    world.located(true);
    // It broke before the request arrived, and after.
    world.lose(0);
    world.pass(again);
    world.located(true);
    world.deliver(false);
    world.lose(0);
    world.pass(again);
    world.located(true);
    // The server had not joined yet, or was overloaded.
    world.refuse(Status::Busy);
    world.pass(again);
    world.located(true);
    world.deliver(false);
    world.line.as_mut().unwrap().1.replies[0] = Status::Busy;
    world.deliver(true);
    world.pass(again);
    world.deliver(false);
    world.deliver(true);
    assert_eq!((world.refused, world.waiting.len(), world.model.len()), (0, 0, 1));
    world.check();
    assert_eq!(world.held(), (3, 3));
}

#[test]
fn what_waits_for_a_server_that_nobody_finds_is_bounded() {
    let mut world = World::new();
    let at = world.blocks[1];
    let mut asked = 0;
    let busy = |(_, answer): &(Ticket, Answer)| answer.status == Status::Busy;
    while !std::iter::from_fn(|| world.near.out().completed()).any(|told| busy(&told)) {
        asked += 1;
        assert!(asked < 5000, "it grows without end");
        let payload = put_extents(&[ExtentRef { at, id: asked, len: 600 }]);
        let (_, outcome) = world.ask(Op::KvPutExtents, KV, &[0, 1], &payload);
        assert_eq!(outcome, Outcome::Parked);
        if asked % 100 == 0 {
            world.now = world.now + ADOPT_MAX;
            world.near.tick(world.now);
        }
    }
    // The others were answered that it took too long.
    world.now = world.now + ADOPT_MAX;
    world.near.tick(world.now);
    while world.near.out().completed().is_some() {}
    // Once the server is known, there is room again.
    world.heal();
    world.write(1, &[1], false);
    world.heal();
    assert_eq!(world.held(), (1, 1));
}

#[test]
fn a_put_is_refused_in_time_when_nobody_can_be_asked() {
    let mut world = World::new();
    world.write(1, &[0, 1], false);
    world.pass(ADOPT_MAX + Duration::from_millis(10));
    assert!(world.waiting.is_empty());
    assert_eq!((world.refused, world.model.len()), (1, 0));
    world.heal();
    assert_eq!(world.held(), (0, 0));
}

/// The extents of a put were adopted while its block was frozen for a flush, or had been thawed and owed its
/// content: the snapshot had a value that was written after its moment (seed 5307 of the simulator).
#[test]
fn block_that_is_frozen_for_a_flush_settles_when_the_extents_of_its_puts_are_adopted() {
    freeze_while_a_put_waits();
}

#[cfg(feature = "bug-bank")]
#[test]
#[should_panic(expected = "a put that began earlier is not decided")]
fn checkpoint_that_settles_before_a_put_is_decided_is_caught() {
    Bug::arm(Some(Bug::CheckpointSettlesEarly));
    freeze_while_a_put_waits();
}

fn freeze_while_a_put_waits() {
    const FLUSH: u64 = 9;
    let mut world = World::new();
    let freeze = |world: &mut World| {
        let hold = Duration::from_secs(1);
        world.near.on_exports(world.now, |work| work.checkpoint(KV, (0, u64::MAX), FLUSH, hold))
    };
    world.write(1, &[0, 1, 2], false);
    world.located(true);
    world.deliver(false);
    let refused = freeze(&mut world).expect_err("a put that began earlier is not decided");
    assert_eq!(refused.status, Status::Busy, "{refused:?}");
    world.deliver(true);
    assert!(world.waiting.is_empty(), "the put is decided while the block is frozen");
    freeze(&mut world).unwrap();
    let then = snapshot(
        &world.near.on_exports(Time::ZERO, |work| work.copy(KV, (0, u64::MAX), FLUSH)).unwrap().0,
    );
    assert!(world.near.on_exports(world.now, |work| work.thaw(KV, FLUSH)));
    world.write(2, &[1], false);
    world.deliver(false);
    world.deliver(true);
    assert!(world.waiting.is_empty());
    let cut = snapshot(
        &world.near.on_exports(world.now, |work| work.checkpoint_content(KV, FLUSH)).unwrap().0,
    );
    assert_eq!(cut, then, "the put after the thaw is not in the snapshot");
    assert_ne!(
        snapshot(
            &world
                .near
                .on_exports(Time::ZERO, |work| work.copy(KV, (0, u64::MAX), FLUSH))
                .unwrap()
                .0
        ),
        then
    );
}

fn snapshot(bytes: &KeptBytes) -> Vec<u8> {
    let parts: VolumeParts = Arc::from(Vec::new());
    let mut content = Vec::new();
    bytes.write(&parts, &mut content).unwrap();
    content
}
