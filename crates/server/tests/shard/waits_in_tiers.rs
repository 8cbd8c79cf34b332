//! Reads that wait at a block in a lower tier: they are parked like those of a block in memory.

use crate::common::{access, config, owner, shard};
use honeycomb_block::Backing;
use honeycomb_env::MemoryVolume;
use honeycomb_server::{CallerAccess, Shard, ShardConfig};
use honeycomb_structures::{
    Answer, Bytes, Content, Event, Fetched, LowerTierReads, Opening, Operation, Ops, Outcome,
    Registry, Rest, Routed, Snapshot, Structure, StructureKind, Ticket, Waits, put_routed,
};
use honeycomb_types::{
    BlockAt, BlockId, Epoch, Generation, Kind, KindSpec, LaneId, OperationSpec, PrefixId, Route,
    Router, Sequence, ServerId, ShardIx, TierClass, TierIx, TierSpec, Time,
};
use honeycomb_wire::{Op, RequestHeader, Status};
use std::sync::Arc;
use std::time::Duration;

const SERVER: ServerId = ServerId(1);
const NOW: Time = Time(5_000_000_000);
const CODE: u8 = 0x80;
const HELD: usize = 4096;
const AWAIT: u8 = 1;
const RING: u8 = 2;
const WAIT_MS: u32 = 1000;

/// A kind with a read that waits until the block is rung, after it has read the block's first byte.
struct Bell {
    /// Whether it parks reads in a lower tier.
    parks: bool,
    waiting: Vec<(Ticket, Time)>,
    answered: Vec<Event>,
}

impl Bell {
    fn new(parks: bool) -> Bell {
        Bell { parks, waiting: Vec::new(), answered: Vec::new() }
    }
}

impl StructureKind for Bell {
    fn spec(&self) -> KindSpec {
        let kind = Kind::from_code(CODE).unwrap();
        let operations = vec![
            OperationSpec::read(AWAIT, "await", Route::Key).that_waits(),
            OperationSpec::write(RING, "ring", Route::Each),
        ];
        KindSpec { kind, name: "bell".into(), router: Router::HashRange, operations }
    }

    fn open(&self, _: &Opening) -> Box<dyn Structure> {
        Box::new(Bell::new(self.parks))
    }
}

impl Structure for Bell {
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

fn not_rung() -> Answer {
    Answer::refuse(Status::NotYet, "nobody has rung")
}

impl Ops for Bell {
    fn apply(&mut self, block: &mut Backing, operation: &Operation<'_>, _: &[u8]) -> Outcome {
        if operation.number() == AWAIT {
            return self.park(operation);
        }
        block.slice_mut(0..1)[0] += 1;
        let rung = block.slice(0..1)[0].into();
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        self.answered.extend(waiting.map(|(ticket, _)| Event::Answered(ticket, Answer::ok(rung))));
        Outcome::Done(Answer::ok(rung))
    }

    fn event(&mut self) -> Option<Event> {
        (!self.answered.is_empty()).then(|| self.answered.remove(0))
    }

    fn bytes_used(&self) -> u64 {
        HELD as u64
    }
}

impl Waits for Bell {
    fn park(&mut self, operation: &Operation<'_>) -> Outcome {
        if !self.parks {
            return Outcome::Done(Answer::refuse(Status::LimitExceeded, "too many wait"));
        }
        self.waiting.push((operation.ticket, operation.wait_until));
        Outcome::Parked
    }

    fn cancel(&mut self, ticket: Ticket) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(of, _)| *of != ticket);
        self.waiting.len() < before
    }

    fn tick(&mut self, _: &mut Backing, now: Time) {
        for (ticket, _) in self.waiting.extract_if(.., |(_, until)| *until <= now) {
            self.answered.push(Event::Answered(ticket, not_rung()));
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.waiting.iter().map(|(_, until)| *until).min()
    }
}

impl Content for Bell {
    fn snapshot(&self, _: (u64, u64)) -> Snapshot {
        Snapshot::plain(HELD)
    }

    fn rests(&self) -> Rest {
        Rest::Whole(HELD)
    }

    fn lower_tier_reads(&self) -> Option<&dyn LowerTierReads> {
        Some(self)
    }
}

impl LowerTierReads for Bell {
    fn read(&self, bytes: &Fetched, _: Op, _: &[u8], _: &[u8]) -> Answer {
        if bytes.wants(&(0..1)) { not_rung() } else { Answer::ok(0) }
    }
}

fn block() -> BlockAt {
    BlockAt { block: BlockId::new(SERVER, ShardIx(0), 0), epoch: Epoch(1) }
}

struct Demoted {
    shard: Shard,
    disk: MemoryVolume,
    now: Time,
}

impl Demoted {
    /// A shard whose only block is in its lower tier.
    fn new(parks: bool) -> Demoted {
        let kinds = Arc::new(Registry::builtin().with(Bell::new(parks)).unwrap());
        let disks = vec![TierSpec { class: TierClass::Ssd, blocks: 8 }];
        let config = ShardConfig { kinds, disks, warm: 2, buffers: 1 << 20, ..config(64 << 10, 8) };
        let mut shard = shard(SERVER, config);
        shard.open(owner(block(), Kind::from_code(CODE).unwrap(), true), None).unwrap();
        shard.tiers().change_tier(block(), TierIx(1)).unwrap();
        let mut demoted = Demoted { shard, disk: MemoryVolume::new(), now: NOW };
        demoted.carry_out();
        assert!(!demoted.shard.reports().has_frame_for(block()));
        demoted
    }

    /// Carries out I/O until there is none; returns the number of reads and writes.
    fn carry_out(&mut self) -> usize {
        let mut count = 0;
        loop {
            let requests = self.shard.tiers().take_io();
            if requests.is_empty() {
                self.shard.tick(self.now);
                return count;
            }
            for io in requests {
                let (id, done) = io.carry_out(&self.disk, 0);
                self.shard.tiers().io_done(self.now, id, done);
                count += 1;
            }
        }
    }

    fn ask(&mut self, access: &CallerAccess, ticket: u64) -> Outcome {
        let op = Op::Custom(u16::from(CODE) << 8 | u16::from(AWAIT));
        let header =
            RequestHeader { at: block(), grant: 1, deadline_ms: WAIT_MS, ..RequestHeader::new(op) };
        let mut args = Vec::new();
        put_routed(Routed::Key(b"key"), &mut args);
        self.shard.apply(self.now, access, &header, &args, &[], Ticket(ticket))
    }

    /// A read that has read its byte, and waits.
    fn waiting(parks: bool) -> Demoted {
        let mut demoted = Demoted::new(parks);
        assert_eq!(demoted.ask(&access(false), 1), Outcome::Parked);
        assert_eq!(demoted.carry_out(), 1, "it reads one chunk");
        demoted
    }

    /// Rings, as often as the shard refuses it because the block is read back first.
    fn ring(&mut self) {
        let op = Op::Custom(u16::from(CODE) << 8 | u16::from(RING));
        let (lane, sequence) = (LaneId(1), Sequence(1));
        let header =
            RequestHeader { at: block(), grant: 1, lane, sequence, ..RequestHeader::new(op) };
        for ticket in 100..110 {
            let outcome =
                self.shard.apply(self.now, &access(false), &header, &[], &[], Ticket(ticket));
            let Outcome::Done(answer) = outcome else { panic!("ringing does not wait") };
            if answer.status == Status::Ok {
                return;
            }
            assert_eq!(answer.status, Status::Busy);
            self.now = self.now + Duration::from_millis(1);
            self.carry_out();
        }
        panic!("the block is not read back");
    }

    fn answer(&mut self) -> Option<(u64, Answer)> {
        self.shard.out().completed().map(|(ticket, answer)| (ticket.0, answer))
    }
}

/// The caller had to repeat its read twenty times a second.
#[test]
fn waiting_read_of_a_demoted_block_is_parked_until_the_block_changes() {
    let mut demoted = Demoted::waiting(true);
    assert_eq!(demoted.answer(), None);
    for _ in 0..20 {
        demoted.now = demoted.now + Duration::from_millis(40);
        assert_eq!(demoted.carry_out(), 0, "nothing is read while it waits");
        assert_eq!(demoted.answer(), None);
    }
    demoted.ring();
    assert_eq!(demoted.answer(), Some((1, Answer::ok(1))));
}

#[test]
fn waiting_read_of_a_demoted_block_ends_at_its_deadline() {
    let mut demoted = Demoted::waiting(true);
    let until = NOW + Duration::from_millis(WAIT_MS.into());
    assert_eq!(demoted.shard.deadline(), Some(until));
    demoted.now = until;
    assert_eq!(demoted.carry_out(), 0);
    assert_eq!(demoted.answer(), Some((1, not_rung())));
    assert!(!demoted.shard.reports().has_frame_for(block()), "it stays in its tier");
}

/// The time is over before the bytes are read.
#[test]
fn read_whose_time_passes_while_its_bytes_are_read_does_not_wait() {
    let mut demoted = Demoted::new(true);
    assert_eq!(demoted.ask(&access(false), 1), Outcome::Parked);
    demoted.now = NOW + Duration::from_millis(WAIT_MS.into());
    demoted.carry_out();
    assert_eq!(demoted.answer(), Some((1, not_rung())));
}

/// A wait that the grant bounds ends with `GrantExpired`, as in memory.
#[test]
fn read_of_a_demoted_block_waits_no_longer_than_its_grant() {
    let caller = access(false);
    let expires_ms = NOW.as_millis() + u64::from(WAIT_MS / 2);
    let grant = caller.grant.map(|grant| honeycomb_wire::Grant { expires_ms, ..grant });
    for reads_slowly in [false, true] {
        let mut demoted = Demoted::new(true);
        assert_eq!(demoted.ask(&CallerAccess { grant, ..caller }, 1), Outcome::Parked);
        if !reads_slowly {
            assert_eq!(demoted.carry_out(), 1);
            assert_eq!(demoted.answer(), None);
        }
        demoted.now = Time(expires_ms * 1_000_000);
        demoted.carry_out();
        let (ticket, answer) = demoted.answer().unwrap();
        assert_eq!((ticket, answer.status), (1, Status::GrantExpired), "{reads_slowly}");
    }
}

#[test]
fn waiting_read_of_a_demoted_block_ends_with_its_connection_and_its_grant() {
    let mut demoted = Demoted::waiting(true);
    demoted.shard.requests().hang_up(&[Ticket(1)]);
    demoted.ring();
    assert_eq!(demoted.answer(), None, "nobody gets an answer");

    let mut demoted = Demoted::waiting(true);
    demoted.shard.owners().set_generation(PrefixId(1), Generation(2));
    let (ticket, answer) = demoted.answer().unwrap();
    assert_eq!((ticket, answer.status), (1, Status::GrantRevoked));
}

/// Otherwise it would wait for its whole time, and count against the waiting reads of the block.
#[test]
fn read_whose_connection_closes_while_its_bytes_are_read_does_not_wait() {
    let mut demoted = Demoted::new(true);
    assert_eq!(demoted.ask(&access(false), 1), Outcome::Parked);
    demoted.shard.requests().hang_up(&[Ticket(1)]);
    demoted.carry_out();
    demoted.answer();
    assert_eq!(demoted.shard.deadline(), None);
}

#[test]
fn read_that_a_kind_does_not_park_gets_the_answer_of_the_kind() {
    let mut demoted = Demoted::waiting(false);
    let (ticket, answer) = demoted.answer().unwrap();
    assert_eq!((ticket, answer.status), (1, Status::LimitExceeded));
}
