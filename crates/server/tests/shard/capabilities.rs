//! Requests and messages that need a capability which the kind of a block does not have.

use crate::common::{access, config, owner, shard};
use honeycomb_block::Backing;
use honeycomb_env::MemoryVolume;
use honeycomb_server::{BlockMessage, Effect, Shard, ShardConfig};
use honeycomb_structures::{
    Answer, Bytes, Changes, Content, Event, Fetched, Growth, KvBlock, LowerTierReads, Movable,
    Opening, Operation, Ops, Outcome, Registry, Rest, Routed, Snapshot, Streaming, Structure,
    StructureKind, Successor, Ticket, Waits, put_routed,
};
use honeycomb_types::limits::SUCCESSOR_IDLE;
use honeycomb_types::{
    BlockAt, BlockId, Epoch, Kind, KindSpec, LaneId, OperationSpec, Route, Router, Sequence,
    ServerId, ShardIx, TierClass, TierIx, TierSpec, Time,
};
use honeycomb_wire::data::MovedArgs;
use honeycomb_wire::messages::MapEntry;
use honeycomb_wire::notice::{Filter, SubscribeArgs, kinds};
use honeycomb_wire::{Op, RequestHeader, Status};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

const SERVER: ServerId = ServerId(1);
const NOW: Time = Time(5_000_000_000);
const HOLD: Duration = Duration::from_millis(200);

fn block() -> BlockAt {
    BlockAt { block: BlockId::new(SERVER, ShardIx(0), 0), epoch: Epoch(1) }
}

/// A shard with one empty block of this kind.
fn shard_of(kind: Kind) -> Shard {
    shard_with(Registry::builtin(), kind)
}

/// A shard that serves these kinds and has a lower tier, with one empty block.
fn shard_with(kinds: Registry, kind: Kind) -> Shard {
    let disks = vec![TierSpec { class: TierClass::Ssd, blocks: 8 }];
    let config = ShardConfig { kinds: Arc::new(kinds), disks, ..config(64 << 10, 8) };
    let mut shard = shard(SERVER, config);
    shard.open(owner(block(), kind, true), None).unwrap();
    shard.out().take_effects();
    shard
}

/// The name of a block after `block()`, as the controller grants it.
fn granted() -> BlockMessage {
    let next = BlockAt { block: BlockId::new(SERVER, ShardIx(0), 1), epoch: Epoch(2) };
    let (block, epoch, address) = (next.block.0, next.epoch.0, "s:1".into());
    let entry = MapEntry { start: 0, end: u64::MAX, block, epoch, address };
    BlockMessage::Successor(Successor::Ready(MovedArgs { version: 2, entry }.encode()))
}

/// The inventory and the timer of the shard: a message that a block gets changes one of them.
fn state(shard: &Shard) -> (Option<Time>, String) {
    (shard.deadline(), format!("{:?}", shard.reports().holdings()))
}

/// A kv grows by splits. The messages concern kinds whose blocks are added at the end.
#[test]
fn kv_block_that_receives_growth_messages_is_unchanged() {
    let messages = [
        granted(),
        BlockMessage::Successor(Successor::Denied(Status::OutOfMemory, "full".into())),
        BlockMessage::Ahead { items: 5, bytes: 500 },
        BlockMessage::TakenReceived,
    ];
    for message in messages {
        let mut shard = shard_of(Kind::Kv);
        let before = state(&shard);
        shard.receive(NOW, block(), message.clone());
        assert_eq!(shard.out().take_effects(), [], "{message:?}");
        assert_eq!(state(&shard), before, "{message:?}");
        assert!(shard.out().completed().is_none(), "{message:?}");
    }
}

/// The messages do change a block that grows at the end: the test above could otherwise not fail.
#[test]
fn file_block_that_is_granted_a_successor_reports_it() {
    let mut shard = shard_of(Kind::File);
    let (deadline, held) = state(&shard);
    shard.receive(NOW, block(), granted());
    assert_eq!(deadline, None);
    assert!(shard.deadline().is_some_and(|due| due > NOW), "it is returned if nobody needs it");
    assert_ne!(state(&shard).1, held, "the inventory names the successor");
}

/// A kind with operations, and with content of which any byte may change if `whole`; no other capability.
struct Plain {
    whole: bool,
}

const PLAIN: u8 = 0x80;

impl StructureKind for Plain {
    fn spec(&self) -> KindSpec {
        let kind = Kind::from_code(PLAIN).unwrap();
        let operations = vec![OperationSpec::read(1, "look", Route::Each)];
        KindSpec { kind, name: "plain".into(), router: Router::HashRange, operations }
    }

    fn open(&self, _: &Opening) -> Box<dyn Structure> {
        Box::new(Plain { whole: self.whole })
    }
}

impl Structure for Plain {
    fn content(&self) -> Option<&dyn Content> {
        self.whole.then_some(self as &dyn Content)
    }

    fn content_mut(&mut self) -> Option<&mut dyn Content> {
        self.whole.then_some(self as &mut dyn Content)
    }
}

impl Ops for Plain {
    fn apply(&mut self, _: &mut Backing, _: &Operation<'_>, _: &[u8]) -> Outcome {
        Outcome::Done(Answer::ok(1))
    }

    fn bytes_used(&self) -> u64 {
        4096
    }
}

impl Content for Plain {
    fn snapshot(&self, _: (u64, u64)) -> Snapshot {
        Snapshot::plain(4096)
    }

    fn rests(&self) -> Rest {
        Rest::Whole(4096)
    }
}

fn shard_of_plain(whole: bool) -> Shard {
    let kinds = Registry::builtin().with(Plain { whole }).unwrap();
    shard_with(kinds, Kind::from_code(PLAIN).unwrap())
}

#[test]
fn block_without_content_refuses_flushes_and_stays_in_use() {
    let mut shard = shard_of_plain(false);
    let refused = shard.owners().retain(block(), (0, u64::MAX)).unwrap_err();
    assert_eq!(refused.status, Status::WrongKind);
    let refused =
        shard.on_exports(NOW, |work| work.checkpoint(block(), (0, u64::MAX), 1, HOLD)).unwrap_err();
    assert_eq!(refused.status, Status::WrongKind);
    assert_eq!(shard.tiers().change_tier(block(), TierIx(1)).unwrap_err().status, Status::Busy);
    assert_eq!(
        shard.on_exports(NOW, |work| work.evacuate(block())).unwrap_err().status,
        Status::WrongKind
    );
    assert!(shard.reports().has_frame_for(block()), "it is where it was");
}

/// Without `LowerTierReads` nothing could read such a block in a lower tier.
#[test]
fn block_of_which_any_byte_may_change_stays_in_memory_without_lower_tier_reads() {
    let mut shard = shard_of_plain(true);
    assert_eq!(shard.tiers().change_tier(block(), TierIx(1)).unwrap_err().status, Status::Busy);
    assert_eq!(shard.tiers().take_io().len(), 0);
    assert!(shard.reports().has_frame_for(block()));
    shard.owners().retain(block(), (0, u64::MAX)).expect("it has content");
}

/// A kind with a read that requests bytes that its blocks do not have, and one that waits.
struct Greedy;

const AWAIT: u8 = 2;

impl StructureKind for Greedy {
    fn spec(&self) -> KindSpec {
        let mut spec = KindSpec { name: "greedy".into(), ..Plain { whole: true }.spec() };
        spec.operations.push(OperationSpec::read(AWAIT, "await", Route::Key).that_waits());
        spec
    }

    fn open(&self, _: &Opening) -> Box<dyn Structure> {
        Box::new(Greedy)
    }
}

impl Waits for Greedy {
    fn tick(&mut self, _: &mut Backing, _: Time) {}

    fn deadline(&self) -> Option<Time> {
        None
    }
}

impl Structure for Greedy {
    fn waits(&mut self) -> Option<&mut dyn Waits> {
        Some(self)
    }

    fn content(&self) -> Option<&dyn Content> {
        Some(self)
    }

    fn content_mut(&mut self) -> Option<&mut dyn Content> {
        Some(self)
    }
}

impl Ops for Greedy {
    fn apply(&mut self, _: &mut Backing, _: &Operation<'_>, _: &[u8]) -> Outcome {
        Outcome::Done(Answer::ok(1))
    }

    fn bytes_used(&self) -> u64 {
        4096
    }
}

impl Content for Greedy {
    fn snapshot(&self, _: (u64, u64)) -> Snapshot {
        Snapshot::plain(4096)
    }

    fn rests(&self) -> Rest {
        Rest::Whole(4096)
    }

    fn lower_tier_reads(&self) -> Option<&dyn LowerTierReads> {
        Some(self)
    }
}

impl LowerTierReads for Greedy {
    fn read(&self, bytes: &Fetched, op: Op, _: &[u8], _: &[u8]) -> Answer {
        bytes.wants(if op == greedy(AWAIT) { &(0..4096) } else { &(4096..8192) });
        Answer::ok(0)
    }
}

/// The operation of this number.
fn greedy(number: u8) -> Op {
    Op::Custom(u16::from(PLAIN) << 8 | u16::from(number))
}

/// A shard with a block of this kind in its lower tier, and the disk of that.
fn greedy_below() -> (Shard, MemoryVolume) {
    let kinds = Registry::builtin().with(Greedy).unwrap();
    let mut shard = shard_with(kinds, Kind::from_code(PLAIN).unwrap());
    let disk = MemoryVolume::new();
    shard.tiers().change_tier(block(), TierIx(1)).unwrap();
    carry_out(&mut shard, &disk);
    shard.tick(NOW);
    assert!(!shard.reports().has_frame_for(block()));
    (shard, disk)
}

/// Carries out the I/O of a shard, until there is no more.
fn carry_out(shard: &mut Shard, disk: &MemoryVolume) {
    loop {
        let requests = shard.tiers().take_io();
        if requests.is_empty() {
            return;
        }
        for io in requests {
            let (id, done) = io.carry_out(disk, 0);
            shard.tiers().io_done(NOW, id, done);
        }
    }
}

fn ask(shard: &mut Shard, number: u8, args: &[u8]) -> Outcome {
    let header = RequestHeader { at: block(), grant: 1, ..RequestHeader::new(greedy(number)) };
    shard.apply(NOW, &access(false), &header, args, &[], Ticket(1))
}

/// The read was answered at once, as if its time were over.
#[test]
fn waiting_read_whose_block_is_promoted_meanwhile_is_repeated() {
    let (mut shard, disk) = greedy_below();
    let mut args = Vec::new();
    put_routed(Routed::Key(b"k"), &mut args);
    assert_eq!(ask(&mut shard, AWAIT, &args), Outcome::Parked);
    let fetches = shard.tiers().take_io();
    assert_eq!(fetches.len(), 1);
    shard.tiers().change_tier(block(), TierIx::MEMORY).unwrap();
    carry_out(&mut shard, &disk);
    assert!(shard.reports().has_frame_for(block()));
    for io in fetches {
        let (id, done) = io.carry_out(&disk, 0);
        shard.tiers().io_done(NOW, id, done);
    }
    let (ticket, answer) = shard.out().completed().expect("the fetch has ended");
    assert_eq!((ticket, answer.status), (Ticket(1), Status::Busy));
    assert!(answer.value > 0, "the refusal has a retry delay");
    let Outcome::Done(repeated) = ask(&mut shard, AWAIT, &args) else { panic!("it waits") };
    assert_eq!((repeated.status, repeated.value), (Status::Ok, 1), "the block is in memory");
}

/// The server ended.
#[test]
fn read_of_bytes_that_a_block_in_a_lower_tier_does_not_have_is_refused() {
    let (mut shard, _) = greedy_below();
    let Outcome::Done(answer) = ask(&mut shard, 1, &[]) else { panic!("nothing is read") };
    assert_eq!(answer.status, Status::Internal);
    let text = String::from_utf8_lossy(&answer.args).into_owned();
    assert!(text.contains("[4096..8192]") && text.contains("'greedy'"), "{text}");
}

fn subscribe(shard: &mut Shard) -> Answer {
    let args = SubscribeArgs { subscription: 1, kinds: kinds::ALL, filter: Filter::All }.encode();
    let mut header = RequestHeader { at: block(), grant: 1, ..RequestHeader::new(Op::Subscribe) };
    header.args_len = args.len() as u32;
    match shard.apply(NOW, &access(false), &header, &args, &[], Ticket(1)) {
        Outcome::Done(answer) => answer,
        Outcome::Parked => panic!("a subscription does not wait"),
    }
}

#[test]
fn a_subscription_to_a_kind_that_reports_no_changes_is_refused_by_name() {
    for kind in [Kind::File, Kind::Queue, Kind::Kv] {
        assert_eq!(subscribe(&mut shard_of(kind)).status, Status::Ok, "{kind:?}");
    }
    let refused = subscribe(&mut shard_of(Kind::Extents));
    assert_eq!(refused.status, Status::WrongKind);
    assert_eq!(
        String::from_utf8_lossy(&refused.args),
        "cannot subscribe: blocks of kind 'extents' report no changes"
    );
}

/// A kind that names a successor which it was not granted: when it gets one, or when it returns it.
struct Astray {
    seals: bool,
    event: Option<Event>,
}

impl StructureKind for Astray {
    fn spec(&self) -> KindSpec {
        let name = "astray".into();
        KindSpec { name, router: Router::Index, ..Plain { whole: false }.spec() }
    }

    fn open(&self, _: &Opening) -> Box<dyn Structure> {
        Box::new(Astray { seals: self.seals, event: None })
    }
}

impl Structure for Astray {
    fn growth(&mut self) -> Option<&mut dyn Growth> {
        Some(self)
    }

    fn changes(&mut self) -> Option<&mut dyn Changes> {
        Some(self)
    }
}

impl Ops for Astray {
    fn apply(&mut self, _: &mut Backing, _: &Operation<'_>, _: &[u8]) -> Outcome {
        Outcome::Done(Answer::ok(1))
    }

    fn event(&mut self) -> Option<Event> {
        self.event.take()
    }

    fn bytes_used(&self) -> u64 {
        0
    }
}

impl Changes for Astray {
    fn watch(&mut self, _: bool) {}

    fn unreported(&self) -> u64 {
        0
    }
}

impl Growth for Astray {
    fn wants_successor(&mut self) -> bool {
        false
    }

    fn successor(&mut self, _: &mut Backing, _: Time, _: Successor) {
        let successor = Some(b"the next".to_vec());
        self.event = self.seals.then_some(Event::Sealed { length: 7, bytes: 7, successor });
    }

    fn give_back(&mut self) -> Option<Vec<u8>> {
        Some(b"the next".to_vec())
    }

    fn is_final(&self) -> Option<bool> {
        Some(false)
    }
}

/// The server ended: at the seal if somebody had subscribed, or when it sent the request to return the block.
#[test]
fn block_that_names_an_invalid_successor_is_lost_alone() {
    for seals in [true, false] {
        let kinds = Registry::builtin().with(Astray { seals, event: None }).unwrap();
        let mut shard = shard_with(kinds, Kind::from_code(PLAIN).unwrap());
        assert_eq!(subscribe(&mut shard).status, Status::Ok);
        shard.receive(NOW, block(), granted());
        let at_once = shard.out().take_effects();
        shard.tick(NOW + SUCCESSOR_IDLE);
        let later = shard.out().take_effects();
        let effects = if seals { at_once } else { later };
        let [Effect::BlockFailed { at, why, .. }] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!(*at, block());
        assert!(why.contains("an invalid successor") && why.contains("'astray'"), "{why}");
        assert!(shard.out().take_notices().is_empty());
        let Outcome::Done(answer) = ask(&mut shard, 1, &[]) else { panic!("it does not wait") };
        assert_eq!(answer.status, Status::Ok, "the block is served until the controller frees it");
    }
}

/// A lock whose callers wait in line: if the first one leaves, the next one has it.
struct Lock;

#[derive(Default)]
struct LockBlock {
    line: VecDeque<Ticket>,
    events: VecDeque<Event>,
}

impl StructureKind for Lock {
    fn spec(&self) -> KindSpec {
        let operations = vec![OperationSpec::read(AWAIT, "await", Route::Key).that_waits()];
        KindSpec { name: "lock".into(), operations, ..Plain { whole: true }.spec() }
    }

    fn open(&self, _: &Opening) -> Box<dyn Structure> {
        Box::new(LockBlock::default())
    }
}

impl Waits for LockBlock {
    fn cancel(&mut self, ticket: Ticket) -> bool {
        let before = self.line.len();
        self.line.retain(|waiting| *waiting != ticket);
        self.events.extend(self.line.pop_front().map(|next| Event::Answered(next, Answer::ok(7))));
        self.line.len() < before
    }

    fn tick(&mut self, _: &mut Backing, _: Time) {}

    fn deadline(&self) -> Option<Time> {
        None
    }
}

impl Structure for LockBlock {
    fn waits(&mut self) -> Option<&mut dyn Waits> {
        Some(self)
    }
}

impl Ops for LockBlock {
    fn apply(&mut self, _: &mut Backing, operation: &Operation<'_>, _: &[u8]) -> Outcome {
        self.line.push_back(operation.ticket);
        Outcome::Parked
    }

    fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn bytes_used(&self) -> u64 {
        0
    }
}

/// The answer stayed in the block until the next request to it, and the deadline of its caller passed.
#[test]
fn caller_that_a_withdrawn_request_lets_through_is_answered_at_once() {
    let kinds = Registry::builtin().with(Lock).unwrap();
    let mut shard = shard_with(kinds, Kind::from_code(PLAIN).unwrap());
    let mut args = Vec::new();
    put_routed(Routed::Key(b"k"), &mut args);
    let header = RequestHeader { at: block(), grant: 1, ..RequestHeader::new(greedy(AWAIT)) };
    let header = RequestHeader { deadline_ms: 60_000, ..header };
    for ticket in [1, 2] {
        let outcome = shard.apply(NOW, &access(false), &header, &args, &[], Ticket(ticket));
        assert_eq!(outcome, Outcome::Parked);
    }
    shard.requests().hang_up(&[Ticket(1)]);
    assert!(shard.deadline().is_some_and(|due| due <= NOW), "the block is due at once");
    shard.tick(NOW);
    assert_eq!(shard.out().completed(), Some((Ticket(2), Answer::ok(7))));
    assert!(shard.deadline().is_none_or(|due| due > NOW));
}

/// A kind with the blocks of a kv.
struct Pairs;

struct PairsBlock(KvBlock);

impl StructureKind for Pairs {
    fn spec(&self) -> KindSpec {
        let operations = vec![OperationSpec::write(1, "put", Route::Each).with_payload()];
        KindSpec { name: "pairs".into(), operations, ..Plain { whole: true }.spec() }
    }

    fn open(&self, opening: &Opening) -> Box<dyn Structure> {
        let Opening { block_size, start, end, marks, importing, .. } = *opening;
        let block = KvBlock::new(block_size, start, end, marks);
        Box::new(PairsBlock(if importing > 0 { block.importing(importing) } else { block }))
    }
}

impl Structure for PairsBlock {
    fn streaming(&mut self) -> Option<&mut dyn Streaming> {
        self.0.streaming()
    }

    fn waits(&mut self) -> Option<&mut dyn Waits> {
        self.0.waits()
    }

    fn movable(&mut self) -> Option<&mut dyn Movable> {
        self.0.movable()
    }
}

impl Ops for PairsBlock {
    fn apply(&mut self, block: &mut Backing, operation: &Operation<'_>, payload: &[u8]) -> Outcome {
        self.0.apply(block, &Operation { op: Op::KvPut, ..*operation }, payload)
    }

    fn event(&mut self) -> Option<Event> {
        self.0.event()
    }

    fn bytes_used(&self) -> u64 {
        self.0.bytes_used()
    }
}

/// The controller refused the split of a kind that does not split, and writers got `WrongKind`.
#[test]
fn full_block_of_a_kind_that_does_not_split_requests_none_and_refuses_writes() {
    let kinds = Registry::builtin().with(Pairs).unwrap();
    let mut shard = shard_with(kinds, Kind::from_code(PLAIN).unwrap());
    let mut put = |sequence: u64| {
        let mut header = RequestHeader { at: block(), grant: 1, ..RequestHeader::new(greedy(1)) };
        (header.lane, header.sequence) = (LaneId(1), Sequence(sequence));
        let args = [&[0], &sequence.to_le_bytes()[..]].concat();
        let payload = [7; 1000];
        let outcome = shard.apply(NOW, &access(false), &header, &args, &payload, Ticket(sequence));
        shard.tick(NOW);
        match outcome {
            Outcome::Done(answer) => answer.status,
            Outcome::Parked => panic!("a put does not wait"),
        }
    };
    let refused = (1..100).find_map(|n| Some(put(n)).filter(|status| *status != Status::Ok));
    assert_eq!(refused, Some(Status::BlockFull));
    assert_eq!(shard.out().take_effects(), [], "it requests no move");
    shard.tick(NOW + Duration::from_secs(2));
    assert_eq!(shard.out().take_effects(), []);
}
