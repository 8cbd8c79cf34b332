//! An open structure: its grant, its routing cache, and the loop that runs a call.

use crate::call::{Call, CallEvent, Routing, Step};
use crate::context::Context;
use crate::error::Error;
use crate::listener::Listener;
use crate::pool::ShardAddress;
use crate::route::{ROUTER_HASHES, Target, checked};
use crate::socket::{PATIENCE, Wait};
use crate::transport::{ExchangeFailure, Sink, Transport};
use honeycomb_env::Clock;
use honeycomb_types::limits::{ACK_LANES_MAX, RETRY_WINDOW_MS, WAIT_MAX_MS};
use honeycomb_types::{
    BlockAt, BlockId, Epoch, JobId, Kind, LaneId, Notices, PrefixId, Sequence, StructureId, Time,
    Verbs,
};
use honeycomb_wire::batch::ReadManyArgs;
use honeycomb_wire::custom::{Routed, put_routed};
use honeycomb_wire::data::{ReadArgs, put_acks};
use honeycomb_wire::extents::ExtentRef;
use honeycomb_wire::messages::{
    BeginAppendReply, BeginAppendRequest, CommitAppendReply, CommitAppendRequest, DropAppendReply,
    DropAppendRequest, ExtentBlocksReply, ExtentBlocksRequest, MapEntry, PartitionMap,
    ReopenStructureReply, ReopenStructureRequest, Suspect,
};
use honeycomb_wire::notice::Filter;
use honeycomb_wire::{Op, ReplyHeader, RequestHeader, Status};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The longest wait of one request at a server, in milliseconds. A mutation may be repeated until
/// `RETRY_WINDOW_MS` after it was sent. If a mutation waited for that long and then lost its
/// connection, no time would be left to request its outcome. Longer waits use several requests.
pub(crate) const WAIT_STEP_MS: u32 = RETRY_WINDOW_MS as u32 / 2;
const _: () = assert!(WAIT_STEP_MS <= WAIT_MAX_MS);

/// How often empty blocks of a queue that were left behind are checked: a reserved item may be
/// returned to one of them without a notification.
pub(crate) const LOOK_BACK: Duration = Duration::from_millis(500);

/// The result of opening a structure.
#[derive(Clone, Debug)]
pub struct OpenedStructure {
    /// The structure.
    pub structure: StructureId,
    /// Its prefix.
    pub prefix: PrefixId,
    /// Its kind.
    pub kind: Kind,
    /// Operations that the grant allows.
    pub verbs: Verbs,
    /// The grant, for the data plane.
    pub grant: Vec<u8>,
    /// Which block serves which part.
    pub map: PartitionMap,
    /// Maximum number of items of a queue; 0 for no bound.
    pub max_items: u64,
    /// Maximum bytes of a queue's items; 0 for no bound.
    pub max_bytes: u64,
}

struct VersionedGrant {
    /// Distinguishes this grant from the next one on a connection.
    version: u64,
    bytes: Vec<u8>,
}

struct StructureState {
    routing: Routing,
    grant: Arc<VersionedGrant>,
    /// The error of the first call that found the prefix's lease expired; every later call fails
    /// with it.
    ended: Option<Error>,
    /// Servers of the map that the controller suspected at the last refresh.
    suspects: Vec<Suspect>,
}

/// A structure that was created or opened. Threads may share it; their operations run concurrently.
pub struct Structure {
    context: Arc<Context>,
    job: JobId,
    id: StructureId,
    prefix: PrefixId,
    kind: Kind,
    verbs: Verbs,
    address: String,
    max_items: u64,
    max_bytes: u64,
    /// Whether the structure drops empty blocks: results from blocks that were left behind are then
    /// acknowledged.
    shrinks: bool,
    state: Mutex<StructureState>,
}

/// The arguments of an operation.
#[derive(Clone, Copy)]
pub(crate) enum Args<'a> {
    /// The same for every block.
    Fixed(&'a [u8]),
    /// A read of a file: its offset counts from the start of the block, so the arguments are
    /// encoded anew for every block.
    Read { position: u64, length: u32 },
    /// The same for many ranges, none of which begins before the first.
    ReadMany { ranges: &'a [(u64, u32)], bytes: u32 },
    /// A custom operation that is routed by a position, counted from the start of the block.
    Positioned { position: u64, rest: &'a [u8] },
}

impl Args<'_> {
    fn encode(self, entry: &MapEntry, buffer: &mut Vec<u8>) {
        buffer.clear();
        match self {
            Args::Fixed(args) => buffer.extend_from_slice(args),
            Args::Read { position, length } => {
                ReadArgs { offset: position - entry.start, length }.put(buffer);
            }
            Args::ReadMany { ranges, bytes } => {
                debug_assert!(
                    ranges.iter().all(|range| range.0 >= ranges[0].0),
                    "INV-23: one of {} ranges begins before the first",
                    ranges.len()
                );
                let ranges = ranges.iter().map(|(at, length)| (at - entry.start, *length));
                ReadManyArgs { bytes, ranges: ranges.collect() }.put(buffer);
            }
            Args::Positioned { position, rest } => {
                // Negative for a position before the first block.
                let from_start = position.wrapping_sub(entry.start) as i64;
                put_routed(Routed::By(from_start), buffer);
                buffer.extend_from_slice(rest);
            }
        }
    }
}

/// The request of an operation, and the destination of its reply.
pub(crate) struct Exchange<'a, 'b> {
    pub op: Op,
    pub target: Target,
    pub args: Args<'a>,
    pub payload: &'a [&'a [u8]],
    pub sink: Sink<'b>,
    /// Until when the server may let the operation wait for an event; a signal ends the wait early.
    pub wait_until: Option<Time>,
}

/// The end of a call: the reply's header and arguments, and the entry of the block that sent it.
pub(crate) struct Replied {
    pub header: ReplyHeader,
    pub args: Vec<u8>,
    pub entry: MapEntry,
    /// A signal to the thread ended the wait.
    pub interrupted: bool,
}

/// One operation in progress: its state, and the buffers that its steps need.
pub(crate) struct Flight<'a, 'b> {
    exchange: Exchange<'a, 'b>,
    course: Course,
}

/// The state of an operation: the call that decides, and the outcome of its last step.
pub(crate) struct Course {
    call: Call,
    target: Target,
    deadline: Time,
    wait_until: Option<Time>,
    /// Arguments of the last reply.
    args: Vec<u8>,
    happened: Happened,
    interrupted: bool,
}

/// The outcome of the last step.
enum Happened {
    Nothing,
    Replied(ReplyHeader),
    Failed(ExchangeFailure),
    Refreshed(Result<(), Error>),
}

/// A request that was sent, and the connection on which its reply will arrive.
pub(crate) struct SentRequest {
    pub transport: Transport,
    place: ShardAddress,
}

/// An operation that was sent, and whose reply is awaited later.
pub(crate) struct Under {
    course: Course,
    sent: SentRequest,
}

/// The next step of an operation, for its sender.
#[allow(clippy::large_enum_variant)] // made once for a request, and taken apart at once
pub(crate) enum Decision {
    /// Send the operation to this block. Lengths, request number and grant are still to be set.
    Send(MapEntry, RequestHeader),
    /// It continues after this pause.
    Pause(Duration),
    /// It is finished.
    Done(Result<Replied, Error>),
}

/// The next step of an operation that has a connection for itself.
#[allow(clippy::large_enum_variant)] // made once for a request, and taken apart at once
pub(crate) enum NextStep {
    /// It awaits its reply: `Structure::collect`, then `Structure::advance`.
    Sent(SentRequest),
    /// It continues after this pause.
    Pause(Duration),
    /// It is finished.
    Done(Result<Replied, Error>),
}

impl Flight<'_, '_> {
    /// The time by which it must finish.
    pub fn deadline(&self) -> Time {
        self.course.deadline
    }

    /// Records why the reply will not arrive. The connection must not be used again.
    pub fn fail(&mut self, why: ExchangeFailure) {
        self.course.fail(why);
    }
}

impl Course {
    /// The time by which it must finish.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// How long the server may let it wait, in milliseconds.
    fn may_wait_ms(&self, now: Time) -> u32 {
        let left = self.wait_until.map_or(0, |until| until.since(now).as_nanos());
        left.div_ceil(1_000_000).min(WAIT_STEP_MS as u128) as u32
    }

    fn may_wait_for(&mut self, most: Duration, now: Time) {
        self.wait_until = self.wait_until.map(|until| until.min(now + most));
    }

    /// The buffer for the arguments of the reply, to be filled before `replied`.
    pub fn reply_args(&mut self) -> &mut Vec<u8> {
        &mut self.args
    }

    /// Records that a reply arrived.
    pub fn replied(&mut self, header: ReplyHeader) {
        self.end_step(Happened::Replied(header));
    }

    /// Records why the reply will not arrive. The connection must not be used again.
    pub fn fail(&mut self, why: ExchangeFailure) {
        self.end_step(Happened::Failed(why));
    }

    fn end_step(&mut self, happened: Happened) {
        let first = matches!(self.happened, Happened::Nothing);
        assert!(first, "INV-16: one step of an operation on {:?} has two outcomes", self.target);
        self.happened = happened;
    }
}

impl Structure {
    pub(crate) fn new(
        context: Arc<Context>,
        job: JobId,
        address: String,
        opened: OpenedStructure,
    ) -> Structure {
        debug_assert_eq!(checked(&opened.map), Ok(()), "INV-17: the map of {address} was refused");
        let grant = Arc::new(VersionedGrant { version: 1, bytes: opened.grant });
        let routing = Routing::new(opened.map);
        Structure {
            context,
            job,
            id: opened.structure,
            prefix: opened.prefix,
            kind: opened.kind,
            verbs: opened.verbs,
            address,
            max_items: opened.max_items,
            max_bytes: opened.max_bytes,
            shrinks: routing.shrinks(),
            state: Mutex::new(StructureState { routing, grant, ended: None, suspects: Vec::new() }),
        }
    }

    /// Its identity.
    pub fn id(&self) -> StructureId {
        self.id
    }

    /// The prefix that it belongs to.
    pub fn prefix(&self) -> PrefixId {
        self.prefix
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The changes that it reports. If a custom structure reports none, its server refuses subscriptions.
    pub fn notices(&self) -> Notices {
        match self.kind {
            Kind::Custom(_) => Notices::Chosen,
            kind => kind.attributes().notices,
        }
    }

    /// Whether its blocks own ranges of hashes. A block that sends its range to another one names that block
    /// before the controller has committed the move.
    pub(crate) fn has_ranges(&self) -> bool {
        self.state().routing.map.router == ROUTER_HASHES
    }

    /// The operations that this client may run on it.
    pub fn verbs(&self) -> Verbs {
        self.verbs
    }

    /// The address by which it was opened.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The size of each of its blocks, in bytes.
    pub fn block_size(&self) -> u64 {
        self.state().routing.map.block_size
    }

    /// The number of blocks in the map, as far as this client knows: just after opening, all of the
    /// structure's blocks.
    pub fn blocks(&self) -> usize {
        self.state().routing.map.entries.len()
    }

    /// The bounds of a queue, in items and bytes; 0 for none.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        (self.max_items, self.max_bytes)
    }

    /// The entries of the map, as far as this client knows.
    pub(crate) fn entries(&self) -> Vec<MapEntry> {
        self.state().routing.map.entries.clone()
    }

    /// Reads the map, as far as this client knows it.
    pub(crate) fn with_map<T>(&self, look: impl FnOnce(&PartitionMap) -> T) -> T {
        look(&self.state().routing.map)
    }

    /// Passes the routing state to `use_it`, under the lock.
    pub(crate) fn with_routing<R>(&self, use_it: impl FnOnce(&mut Routing) -> R) -> R {
        use_it(&mut self.state().routing)
    }

    /// Makes sure that the addresses of the servers that hold these extents are known. If the
    /// controller does not name a server, it was lost with its data, or the value has been replaced
    /// since.
    pub(crate) fn know_servers(&self, list: &[ExtentRef]) -> Result<(), Error> {
        if !self.with_routing(|routing| routing.knows_servers(list)) {
            let entries = self.ask_for_extents(0, Vec::new(), 0)?;
            self.with_routing(|routing| routing.learn_servers(&entries));
        }
        Ok(())
    }

    /// Requests from the controller a block with room for an extent of this size, other than the
    /// full ones; with 0 bytes, all blocks of extents. Refused if the cluster could not hold a value of
    /// `value` bytes.
    pub(crate) fn ask_for_extents(
        &self,
        bytes: u64,
        full: Vec<u64>,
        value: u64,
    ) -> Result<Vec<MapEntry>, Error> {
        let (job, structure) = (self.job.0, self.id.0);
        let body = ExtentBlocksRequest { job, structure, bytes, full, value };
        let asked = self.context.ask(Op::ExtentBlocks, &body, self.deadline());
        let reply: ExtentBlocksReply = asked.map_err(|e| self.named(e))?;
        Ok(reply.entries)
    }

    pub(crate) fn deadline(&self) -> Time {
        self.context.deadline()
    }

    fn state(&self) -> MutexGuard<'_, StructureState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Makes sure that a block can still be reached although the map may no longer name it.
    pub(crate) fn remember(&self, entry: &MapEntry) {
        self.state().routing.remember(entry);
    }

    /// The empty blocks of a queue that were left behind; see `Routing::left`.
    pub(crate) fn left(&self) -> Vec<MapEntry> {
        self.state().routing.left.clone()
    }

    pub(crate) fn now(&self) -> Time {
        self.clock().now()
    }

    pub(crate) fn clock(&self) -> Clock {
        self.context.pool.clock()
    }

    /// Runs one operation to its result.
    pub(crate) fn run(&self, exchange: Exchange<'_, '_>) -> Result<Replied, Error> {
        let defined = !matches!(exchange.op, Op::Custom(_));
        debug_assert!(defined, "INV-16: a custom operation runs without the table of its kind");
        let mutates = exchange.op.info().lane;
        self.run_as(mutates, exchange)
    }

    /// The same for an operation for which the protocol does not define whether it is a mutation.
    pub(crate) fn run_as(
        &self,
        mutates: bool,
        exchange: Exchange<'_, '_>,
    ) -> Result<Replied, Error> {
        let flight = self.depart_as(mutates, exchange);
        self.carry_through(flight)
    }

    fn carry_through(&self, mut flight: Flight<'_, '_>) -> Result<Replied, Error> {
        let clock = self.clock();
        let result = loop {
            match self.advance(&mut flight) {
                NextStep::Sent(sent) => self.collect(&mut flight, sent),
                NextStep::Pause(pause) => clock.sleep_until(clock.now() + pause),
                NextStep::Done(result) => break result,
            }
        };
        // Only some structures have blocks that are left behind.
        if self.shrinks {
            let owed = self.state().routing.take_owed();
            for (entry, acks) in owed {
                self.acknowledge(&entry, &acks);
            }
        }
        result
    }

    /// Sends the request of an operation that `arrive` awaits; `None` if it cannot be sent at once.
    pub(crate) fn set_out(&self, exchange: Exchange<'_, '_>) -> Option<Under> {
        let op = exchange.op;
        assert!(!op.info().lane, "INV-16: {} is sent ahead, and its result is dropped", op.name());
        let mut flight = self.depart(exchange);
        match self.advance(&mut flight) {
            NextStep::Sent(sent) => Some(Under { course: flight.course, sent }),
            NextStep::Pause(_) | NextStep::Done(_) => None,
        }
    }

    /// Awaits the reply to an operation that was sent ahead, with an exchange of the same kind.
    /// Sends it again if nothing was sent, or if half of its time is over.
    pub(crate) fn arrive(
        &self,
        under: Option<Under>,
        exchange: Exchange<'_, '_>,
    ) -> Result<Replied, Error> {
        let op = exchange.op;
        assert!(
            !op.info().lane,
            "INV-16: {} was sent ahead, and is sent as another one",
            op.name()
        );
        match under {
            Some(Under { course, sent })
                if self.now() + self.context.timeout / 2 < course.deadline =>
            {
                let (ahead, target) = (course.target, exchange.target);
                assert_eq!(ahead, target, "INV-16: a request was sent ahead to another place");
                let mut flight = Flight { exchange, course };
                self.collect(&mut flight, sent);
                self.carry_through(flight)
            }
            _ => self.run(exchange),
        }
    }

    /// Acknowledges our results at a block that was left behind. If that fails, the block keeps
    /// them until no client could request them again, which costs only memory for that time.
    fn acknowledge(&self, entry: &MapEntry, acks: &[(LaneId, Sequence)]) {
        let header = RequestHeader { at: entry.at(), ..RequestHeader::new(Op::AckResults) };
        for part in acks.chunks(ACK_LANES_MAX as usize) {
            let mut args = Vec::new();
            put_acks(part, &mut args);
            let mut flight = self.depart(Exchange {
                op: Op::AckResults,
                target: Target::Block(header.at),
                args: Args::Fixed(&args),
                payload: &[],
                sink: Sink::None,
                wait_until: None,
            });
            flight.course.deadline = self.now() + PATIENCE;
            if let Ok(sent) = self.send(entry.clone(), header, &flight) {
                self.collect(&mut flight, sent);
            }
        }
    }

    /// Starts an operation; its deadline counts from now.
    pub(crate) fn depart<'a, 'b>(&self, exchange: Exchange<'a, 'b>) -> Flight<'a, 'b> {
        let mutates = exchange.op.info().lane;
        self.depart_as(mutates, exchange)
    }

    fn depart_as<'a, 'b>(&self, mutates: bool, exchange: Exchange<'a, 'b>) -> Flight<'a, 'b> {
        let course = self.course(mutates, exchange.op, exchange.target, exchange.wait_until);
        Flight { exchange, course }
    }

    /// Starts an operation that another component sends.
    pub(crate) fn course(
        &self,
        mutates: bool,
        op: Op,
        target: Target,
        wait_until: Option<Time>,
    ) -> Course {
        self.context.pool.enter();
        let mut deadline = self.deadline();
        if let Some(until) = wait_until {
            deadline = deadline.max(until + self.context.timeout);
        }
        let call = Call::of(op, mutates, target, deadline);
        let happened = Happened::Nothing;
        let (args, interrupted) = (Vec::new(), false);
        Course { call, target, deadline, wait_until, args, happened, interrupted }
    }

    /// Advances an operation until it has sent a request, must wait, or is finished.
    pub(crate) fn advance(&self, flight: &mut Flight<'_, '_>) -> NextStep {
        loop {
            match self.decide(&mut flight.course) {
                Decision::Send(entry, header) => match self.send(entry, header, flight) {
                    Ok(sent) => return NextStep::Sent(sent),
                    Err(failure) => flight.fail(failure),
                },
                Decision::Pause(pause) => return NextStep::Pause(pause),
                Decision::Done(result) => return NextStep::Done(result),
            }
        }
    }

    /// The next step of an operation, after the last outcome.
    pub(crate) fn decide(&self, course: &mut Course) -> Decision {
        loop {
            let Course { call, args, happened, deadline, wait_until, interrupted, .. } = course;
            let event = match std::mem::replace(happened, Happened::Nothing) {
                Happened::Nothing => CallEvent::Go,
                Happened::Replied(reply) => CallEvent::Reply(reply, args),
                Happened::Refreshed(Ok(())) => CallEvent::Refreshed,
                Happened::Refreshed(Err(e)) => CallEvent::RefreshFailed(e),
                Happened::Failed(ExchangeFailure::Lost { sent, why }) => {
                    CallEvent::Lost { sent, why }
                }
                Happened::Failed(ExchangeFailure::Gone { sent, reason }) => {
                    CallEvent::Gone { sent, reason }
                }
                Happened::Failed(ExchangeFailure::Nobody { why, .. }) => {
                    CallEvent::Lost { sent: false, why }
                }
                Happened::Failed(ExchangeFailure::Interrupted) => {
                    // Sent once more without a wait, because it may have taken effect.
                    *wait_until = Some(Time::ZERO);
                    *interrupted = true;
                    CallEvent::Lost { sent: true, why: "a signal interrupted the wait".into() }
                }
                Happened::Failed(ExchangeFailure::Late { sent }) => {
                    CallEvent::Lost { sent, why: "no reply arrived in time".into() }
                }
                Happened::Failed(ExchangeFailure::Refused(e)) => match e.status {
                    Status::PermissionDenied
                    | Status::Unauthenticated
                    | Status::InvalidArgument
                    | Status::FrameTooLarge
                    | Status::BadFrame => CallEvent::Gone { sent: false, reason: e },
                    _ => CallEvent::Lost { sent: false, why: e.to_string() },
                },
            };
            let step = {
                let mut state = self.state();
                let pool = &self.context.pool;
                pool.with_lanes(|lanes| {
                    call.next(pool.clock().now(), &mut state.routing, lanes, event)
                })
            };
            match step {
                Step::Done(Ok(header)) => {
                    let entry = call.take_entry().expect("an answer came from a block");
                    let (args, interrupted) = (std::mem::take(args), *interrupted);
                    return Decision::Done(Ok(Replied { header, args, entry, interrupted }));
                }
                Step::Done(Err(e)) => {
                    let e = self.or_suspected(e, call.entry());
                    return Decision::Done(Err(self.named(self.or_ended(e))));
                }
                Step::Wait(pause) => return Decision::Pause(pause),
                Step::Refresh => *happened = Happened::Refreshed(self.refresh(*deadline)),
                Step::Send(entry, mut header) => {
                    // The item may be in an earlier block, to which reserved items can return.
                    if course.target == Target::Head && !self.left().is_empty() {
                        course.may_wait_for(LOOK_BACK, self.now());
                    }
                    header.deadline_ms = course.may_wait_ms(self.now());
                    return Decision::Send(entry, header);
                }
            }
        }
    }

    /// Asks the controller, while a server is silent, whether the structure still exists; the error
    /// gives the reason if not. A missing reply of the controller proves nothing, and is not an
    /// error.
    pub(crate) fn ask_whether_gone(&self, deadline: Time) -> Result<(), Error> {
        match self.refresh(deadline.min(self.now() + PATIENCE)) {
            Err(e) if e.status != Status::Unavailable => Err(e),
            _ => Ok(()),
        }
    }

    fn send(
        &self,
        entry: MapEntry,
        mut header: RequestHeader,
        flight: &Flight<'_, '_>,
    ) -> Result<SentRequest, ExchangeFailure> {
        debug_assert_eq!(
            header.at,
            entry.at(),
            "INV-01: a request for one block is sent to another"
        );
        let mut laid_out = Vec::new();
        let args = match flight.exchange.args {
            Args::Fixed(args) => args,
            args => {
                args.encode(&entry, &mut laid_out);
                &laid_out
            }
        };
        let place = (entry.address, BlockId(entry.block).shard().0);
        let pool = &self.context.pool;
        let (exchange, deadline) = (&flight.exchange, &flight.course.deadline);
        let mut idle = || self.ask_whether_gone(*deadline);
        let mut wait = Wait { deadline: *deadline, idle: &mut idle, interruptible: false };
        let mut transport = pool.take_server(&place, &mut wait)?;
        let sent = self.present(&mut transport, &mut wait).and_then(|number| {
            header.grant = number;
            transport.ask(header, args, exchange.payload, &mut wait)
        });
        match sent {
            Ok(()) => Ok(SentRequest { transport, place }),
            Err(refused @ ExchangeFailure::Refused(_)) => Err(refused),
            // The other idle connections to that server are probably broken too.
            Err(failure) => {
                pool.forget(&place.0);
                Err(failure)
            }
        }
    }

    /// Awaits the reply to a request that was sent.
    pub(crate) fn collect(&self, flight: &mut Flight<'_, '_>, sent: SentRequest) {
        let SentRequest { mut transport, place } = sent;
        let deadline = flight.deadline();
        let mut idle = || self.ask_whether_gone(deadline);
        let interruptible = flight.course.may_wait_ms(self.now()) > 0;
        let mut wait = Wait { deadline, idle: &mut idle, interruptible };
        let sink = flight.exchange.sink.reborrow();
        let answer = transport.answer(&mut wait, &mut flight.course.args, sink);
        match answer {
            Ok(reply) => {
                self.context.pool.give(&place, transport);
                flight.course.replied(reply);
            }
            // The other connections are not affected.
            Err(failure @ ExchangeFailure::Interrupted) => flight.fail(failure),
            Err(failure) => {
                self.context.pool.forget(&place.0);
                flight.fail(failure);
            }
        }
    }

    /// Gives up a reply that will not arrive.
    pub(crate) fn lose(
        &self,
        flight: &mut Flight<'_, '_>,
        sent: SentRequest,
        why: ExchangeFailure,
    ) {
        self.context.pool.forget(&sent.place.0);
        flight.fail(why);
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The number of the grant on a connection to which it was presented.
    pub(crate) fn presented(&self, transport: &Transport) -> Option<u32> {
        transport.presented(self.id, self.state().grant.version)
    }

    /// Presents the grant on a connection and returns the number that requests use for it there.
    pub(crate) fn present(
        &self,
        transport: &mut Transport,
        wait: &mut Wait<'_>,
    ) -> Result<u32, ExchangeFailure> {
        let grant = self.state().grant.clone();
        transport.grant(self.id, grant.version, &grant.bytes, wait)
    }

    /// Subscribes to changes: see `Listener`. `wanted` is a set of bits from `wire::notice::kinds`.
    pub fn listen(&self, wanted: u16, filter: Filter) -> Result<Listener, Error> {
        let map = self.with_map(PartitionMap::clone);
        // A structure of its own, so that the listener may outlive this one.
        let twin = self.twin(Routing::new(map));
        let listener = Listener::open(twin, self.context.clone(), wanted, filter);
        listener.map_err(|e| self.named(e))
    }

    /// The same structure with routing of its own.
    fn twin(&self, routing: Routing) -> Structure {
        let grant = self.state().grant.clone();
        Structure {
            context: self.context.clone(),
            job: self.job,
            id: self.id,
            prefix: self.prefix,
            kind: self.kind,
            verbs: self.verbs,
            address: self.address.clone(),
            max_items: self.max_items,
            max_bytes: self.max_bytes,
            shrinks: self.shrinks,
            state: Mutex::new(StructureState { routing, grant, ended: None, suspects: Vec::new() }),
        }
    }

    /// Requests private blocks for an append of so many bytes: the structure that they form.
    pub(crate) fn begin_append(&self, bytes: u64) -> Result<Structure, Error> {
        let body = BeginAppendRequest { job: self.job.0, structure: self.id.0, bytes };
        let asked = self.context.ask(Op::BeginAppend, &body, self.deadline());
        let BeginAppendReply { entry } = asked.map_err(|e| self.named(e))?;
        Ok(self.twin(self.with_map(|map| Routing::private(map, entry))))
    }

    /// Frees private blocks that will not be committed. If that fails, they are freed in half a minute.
    pub(crate) fn drop_append(&self, first: BlockAt) {
        let (block, epoch) = (first.block.0, first.epoch.0);
        let body = DropAppendRequest { job: self.job.0, structure: self.id.0, block, epoch };
        let deadline = self.now() + PATIENCE;
        let _ = self.context.ask::<_, DropAppendReply>(Op::DropAppend, &body, deadline);
    }

    /// Adds the private blocks that begin with this one to the end of the file. Blocks that are allocated
    /// later have greater epochs than the result.
    pub(crate) fn commit_append(&self, first: BlockAt) -> Result<Epoch, Error> {
        let (block, epoch) = (first.block.0, first.epoch.0);
        let body = CommitAppendRequest { job: self.job.0, structure: self.id.0, block, epoch };
        let asked = self.context.ask(Op::CommitAppend, &body, self.deadline());
        let reply: CommitAppendReply = asked.map_err(|e| self.named(e))?;
        Ok(Epoch(reply.epoch))
    }

    /// Waits until `check` returns true; runs it again after each change of the wanted kinds.
    /// Returns false if `wait` elapsed first, or a signal interrupted the thread.
    pub(crate) fn wait_until(
        &self,
        wanted: u16,
        filter: Filter,
        wait: Duration,
        mut check: impl FnMut() -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        let until = self.now() + wait;
        if check()? {
            return Ok(true);
        }
        let mut listener = self.listen(wanted, filter)?;
        loop {
            // After the subscription: `check` sees earlier changes, and a notice reports later
            // ones.
            if check()? {
                return Ok(true);
            }
            let now = self.now();
            if now >= until || listener.next(until.since(now))?.is_none() {
                return Ok(false);
            }
        }
    }

    /// Fetches a fresh grant and map, or the reason why the data is gone.
    pub(crate) fn refresh(&self, deadline: Time) -> Result<(), Error> {
        let body = ReopenStructureRequest { job: self.job.0, structure: self.id.0 };
        let reply: ReopenStructureReply = self.context.ask(Op::ReopenStructure, &body, deadline)?;
        checked(&reply.map).map_err(|why| Error::new(Status::BadFrame, why))?;
        let mut state = self.state();
        state.routing.refresh(reply.map);
        state.suspects = reply.suspects;
        let version = state.grant.version + 1;
        state.grant = Arc::new(VersionedGrant { version, bytes: reply.grant });
        Ok(())
    }

    /// Adds to the error of a call the suspicion against the server that it waited for.
    fn or_suspected(&self, mut e: Error, entry: Option<&MapEntry>) -> Error {
        let waited = matches!(e.status, Status::DeadlineExceeded | Status::OutcomeUnknown);
        let Some(entry) = entry.filter(|_| waited) else { return e };
        let state = self.state();
        if let Some(suspect) = state.suspects.iter().find(|s| s.address == entry.address) {
            let Suspect { address, silent_ms } = suspect;
            let text = format!(
                "; memory server {address} is suspected: it had been silent for {silent_ms} ms. \
                 Its data is available again when the server reports, and is lost if it stays \
                 silent"
            );
            e.message.push_str(&text);
        }
        e
    }

    /// The error of a failed call. After the lease has ended it is `LeaseExpired`, even if the name
    /// is in use again.
    fn or_ended(&self, e: Error) -> Error {
        let mut state = self.state();
        match &state.ended {
            Some(ended) if e.status != Status::LeaseExpired => ended.clone(),
            _ => {
                state.ended = Some(e.clone()).filter(|e| e.status == Status::LeaseExpired);
                e
            }
        }
    }

    /// Refuses a part of a request that is over its limit, before any of it is sent.
    pub(crate) fn check_length(
        &self,
        part: &str,
        length: usize,
        limit: usize,
        why: &str,
    ) -> Result<(), Error> {
        if length <= limit {
            return Ok(());
        }
        let address = &self.address;
        let text = format!("{address}: {part} of {length} bytes; the limit is {limit}{why}");
        Err(Error::new(Status::ValueTooLarge, text))
    }

    /// Puts the structure's address in front of a message that lacks it.
    fn named(&self, mut e: Error) -> Error {
        if !e.message.contains(self.address.as_str()) {
            e.message = format!("{}: {}", self.address, e.message);
        }
        e
    }
}
