//! An open structure: its grant, its routing cache, and the loop that carries a call through.

use crate::call::{Call, Event, Routing, Step};
use crate::context::Context;
use crate::error::Error;
use crate::line::{PATIENCE, Wait};
use crate::listener::Listener;
use crate::pool::Place;
use crate::route::Target;
use crate::transport::{Failure, Sink, Transport};
use honeycomb_env::Clock;
use honeycomb_types::limits::{ACK_LANES_MAX, RETRY_WINDOW_MS, WAIT_MAX_MS};
use honeycomb_types::{BlockId, JobId, Kind, LaneId, PrefixId, Sequence, StructureId, Time, Verbs};
use honeycomb_wire::batch::ReadManyArgs;
use honeycomb_wire::custom::{Routed, put_routed};
use honeycomb_wire::data::{ReadArgs, put_acks};
use honeycomb_wire::extents::ExtentRef;
use honeycomb_wire::messages::{
    ExtentBlocksReply, ExtentBlocksRequest, MapEntry, PartitionMap, ReopenStructureReply,
    ReopenStructureRequest, Suspect,
};
use honeycomb_wire::notice::Filter;
use honeycomb_wire::{Op, ReplyHeader, RequestHeader, Status};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The longest that one request waits at a server, in milliseconds. A request that changes something
/// is repeated for `RETRY_WINDOW_MS` after it was sent and no longer: one that waited all of that and
/// then lost its connection could not be asked for its outcome. Longer waits are several requests.
pub(crate) const WAIT_STEP_MS: u32 = RETRY_WINDOW_MS as u32 / 2;
const _: () = assert!(WAIT_STEP_MS <= WAIT_MAX_MS);

/// How often blocks of a queue that were left behind empty are looked at: a reserved item may come
/// back there, and nobody tells us.
pub(crate) const LOOK_BACK: Duration = Duration::from_millis(500);

/// What opening a structure yields.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The structure.
    pub structure: StructureId,
    /// Its prefix.
    pub prefix: PrefixId,
    /// Its kind.
    pub kind: Kind,
    /// What the grant allows.
    pub verbs: Verbs,
    /// For the data plane.
    pub grant: Vec<u8>,
    /// Who serves what.
    pub map: PartitionMap,
    /// Most items of a queue; 0 for no bound.
    pub max_items: u64,
    /// Most bytes of a queue's items; 0 for no bound.
    pub max_bytes: u64,
}

struct Grant {
    /// Tells one grant from the next on a connection.
    version: u64,
    bytes: Vec<u8>,
}

struct State {
    routing: Routing,
    grant: Arc<Grant>,
    /// The error by which a call learned that the prefix's lease has ended; every later call fails with it.
    ended: Option<Error>,
    /// Servers of the map that the controller suspected when it was asked last.
    suspects: Vec<Suspect>,
}

/// A structure that was created or opened. Shared by threads; operations of different threads on
/// it run side by side.
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
    /// Its blocks leave when they are empty: those left behind are told what has been received.
    shrinks: bool,
    state: Mutex<State>,
}

/// The arguments of an operation.
#[derive(Clone, Copy)]
pub(crate) enum Args<'a> {
    /// The same wherever it is sent.
    Fixed(&'a [u8]),
    /// A read of a file: its offset counts from the start of the block that it is sent to, so that
    /// it is laid out anew for every hop.
    Read { position: u64, length: u32 },
    /// The same for many ranges, none of which begins before the first.
    ReadMany { ranges: &'a [(u64, u32)], bytes: u32 },
    /// Of a custom operation that is routed by a position: counted from the start of the block.
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
                let ranges = ranges.iter().map(|(at, length)| (at - entry.start, *length));
                ReadManyArgs { bytes, ranges: ranges.collect() }.put(buffer);
            }
            Args::Positioned { position, rest } => {
                // Negative for one before the first block.
                let from_start = position.wrapping_sub(entry.start) as i64;
                put_routed(Routed::By(from_start), buffer);
                buffer.extend_from_slice(rest);
            }
        }
    }
}

/// What an operation sends, and where its reply goes.
pub(crate) struct Exchange<'a, 'b> {
    pub op: Op,
    pub target: Target,
    pub args: Args<'a>,
    pub payload: &'a [&'a [u8]],
    pub sink: Sink<'b>,
    /// Until when the server may let the operation wait for something to happen; a signal ends the
    /// wait early.
    pub wait_until: Option<Time>,
}

/// The end of a call: the reply's header and arguments, and the entry of the block that gave it.
pub(crate) struct Replied {
    pub header: ReplyHeader,
    pub args: Vec<u8>,
    pub entry: MapEntry,
    /// A signal to the thread ended the wait.
    pub interrupted: bool,
}

/// One operation on its way: where it is, and what its steps need.
pub(crate) struct Flight<'a, 'b> {
    exchange: Exchange<'a, 'b>,
    course: Course,
}

/// Where an operation is: the call that decides, and what came of its last step.
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

/// What came of the last step.
enum Happened {
    Nothing,
    Replied(ReplyHeader),
    Failed(Failure),
    Refreshed(Result<(), Error>),
}

/// A request that was sent, and the connection that will bring its reply.
pub(crate) struct Sent {
    pub transport: Transport,
    place: Place,
}

/// An operation that was sent and whose answer nobody awaits yet.
pub(crate) struct Under {
    course: Course,
    sent: Sent,
}

/// What an operation does next, for whoever sends it.
#[allow(clippy::large_enum_variant)] // made once for a request, and taken apart at once
pub(crate) enum Decision {
    /// It goes to this block. Lengths, request number and grant are still to be set.
    Send(MapEntry, RequestHeader),
    /// It goes on after this.
    Pause(Duration),
    /// It is finished.
    Done(Result<Replied, Error>),
}

/// What an operation does next, on a connection that it has for itself.
#[allow(clippy::large_enum_variant)] // made once for a request, and taken apart at once
pub(crate) enum Next {
    /// It awaits its reply: `Structure::collect`, then `Structure::advance`.
    Sent(Sent),
    /// It goes on after this.
    Pause(Duration),
    /// It is finished.
    Done(Result<Replied, Error>),
}

impl Flight<'_, '_> {
    /// When it has to be finished.
    pub fn deadline(&self) -> Time {
        self.course.deadline
    }

    /// Says why the reply to what was sent will not come. The connection must not be used again.
    pub fn fail(&mut self, why: Failure) {
        self.course.fail(why);
    }
}

impl Course {
    /// When it has to be finished.
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

    /// Where the arguments of the reply go, before `replied`.
    pub fn reply_args(&mut self) -> &mut Vec<u8> {
        &mut self.args
    }

    /// A reply came.
    pub fn replied(&mut self, header: ReplyHeader) {
        self.happened = Happened::Replied(header);
    }

    /// Says why the reply to what was sent will not come. The connection must not be used again.
    pub fn fail(&mut self, why: Failure) {
        self.happened = Happened::Failed(why);
    }
}

impl Structure {
    pub(crate) fn new(
        context: Arc<Context>,
        job: JobId,
        address: String,
        opened: Opened,
    ) -> Structure {
        let grant = Arc::new(Grant { version: 1, bytes: opened.grant });
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
            state: Mutex::new(State { routing, grant, ended: None, suspects: Vec::new() }),
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

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What this client may do with it.
    pub fn verbs(&self) -> Verbs {
        self.verbs
    }

    /// The address by which it was opened.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Bytes of each of its blocks.
    pub fn block_size(&self) -> u64 {
        self.state().routing.map.block_size
    }

    /// How many blocks its map names, as far as this client knows: just after it was opened, as many
    /// as it has.
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

    /// Looks something up in the map, as far as this client knows it.
    pub(crate) fn with_map<T>(&self, look: impl FnOnce(&PartitionMap) -> T) -> T {
        look(&self.state().routing.map)
    }

    /// What is known of the structure, for as long as `use_it` takes.
    pub(crate) fn with_routing<R>(&self, use_it: impl FnOnce(&mut Routing) -> R) -> R {
        use_it(&mut self.state().routing)
    }

    /// Makes sure that it is known where the servers are that have these extents. One that the
    /// controller does not name is gone with what it had, or the value was replaced since.
    pub(crate) fn know_servers(&self, list: &[ExtentRef]) -> Result<(), Error> {
        if !self.with_routing(|routing| routing.knows_servers(list)) {
            let entries = self.ask_for_extents(0, Vec::new())?;
            self.with_routing(|routing| routing.learn_servers(&entries));
        }
        Ok(())
    }

    /// Asks the controller for a block with room for an extent of so many bytes that is none of those
    /// that are full; of 0 bytes, for all blocks of extents.
    pub(crate) fn ask_for_extents(
        &self,
        bytes: u64,
        full: Vec<u64>,
    ) -> Result<Vec<MapEntry>, Error> {
        let body = ExtentBlocksRequest { job: self.job.0, structure: self.id.0, bytes, full };
        let asked = self.context.ask(Op::ExtentBlocks, &body, self.deadline());
        let reply: ExtentBlocksReply = asked.map_err(|e| self.named(e))?;
        Ok(reply.entries)
    }

    pub(crate) fn deadline(&self) -> Time {
        self.context.deadline()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Makes sure that a block can be asked although the map may not name it any more.
    pub(crate) fn remember(&self, entry: &MapEntry) {
        self.state().routing.remember(entry);
    }

    /// A queue's blocks that were left behind empty; see `Routing::left`.
    pub(crate) fn left(&self) -> Vec<MapEntry> {
        self.state().routing.left.clone()
    }

    pub(crate) fn now(&self) -> Time {
        self.clock().now()
    }

    pub(crate) fn clock(&self) -> Clock {
        self.context.pool.clock()
    }

    /// Carries one operation through to its answer.
    pub(crate) fn run(&self, exchange: Exchange<'_, '_>) -> Result<Replied, Error> {
        let mutates = exchange.op.info().lane;
        self.run_as(mutates, exchange)
    }

    /// The same for an operation of which the protocol does not say whether it is a mutation.
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
                Next::Sent(sent) => self.collect(&mut flight, sent),
                Next::Pause(pause) => clock.sleep_until(clock.now() + pause),
                Next::Done(result) => break result,
            }
        };
        // Only of some are blocks left behind.
        if self.shrinks {
            let owed = self.state().routing.take_owed();
            for (entry, acks) in owed {
                self.acknowledge(&entry, &acks);
            }
        }
        result
    }

    /// Sends the request of an operation that `arrive` awaits; nothing when it cannot be sent at once.
    pub(crate) fn set_out(&self, exchange: Exchange<'_, '_>) -> Option<Under> {
        let mut flight = self.depart(exchange);
        match self.advance(&mut flight) {
            Next::Sent(sent) => Some(Under { course: flight.course, sent }),
            Next::Pause(_) | Next::Done(_) => None,
        }
    }

    /// Awaits the answer to what was sent, by an exchange of the same kind; sends it again when that was
    /// nothing, or so long ago that half of its time is over.
    pub(crate) fn arrive(
        &self,
        under: Option<Under>,
        exchange: Exchange<'_, '_>,
    ) -> Result<Replied, Error> {
        match under {
            Some(Under { course, sent })
                if self.now() + self.context.timeout / 2 < course.deadline =>
            {
                let mut flight = Flight { exchange, course };
                self.collect(&mut flight, sent);
                self.carry_through(flight)
            }
            _ => self.run(exchange),
        }
    }

    /// Tells a block that was left behind that our results have arrived. When it cannot be told it
    /// keeps them until nobody could ask for them again, which only costs memory for that long.
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

    /// Begins an operation; its deadline counts from now.
    pub(crate) fn depart<'a, 'b>(&self, exchange: Exchange<'a, 'b>) -> Flight<'a, 'b> {
        let mutates = exchange.op.info().lane;
        self.depart_as(mutates, exchange)
    }

    fn depart_as<'a, 'b>(&self, mutates: bool, exchange: Exchange<'a, 'b>) -> Flight<'a, 'b> {
        let course = self.course(mutates, exchange.op, exchange.target, exchange.wait_until);
        Flight { exchange, course }
    }

    /// Begins an operation that somebody else sends.
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

    /// Takes an operation on, until it has sent something, has to wait or is finished.
    pub(crate) fn advance(&self, flight: &mut Flight<'_, '_>) -> Next {
        loop {
            match self.decide(&mut flight.course) {
                Decision::Send(entry, header) => match self.send(entry, header, flight) {
                    Ok(sent) => return Next::Sent(sent),
                    Err(failure) => flight.fail(failure),
                },
                Decision::Pause(pause) => return Next::Pause(pause),
                Decision::Done(result) => return Next::Done(result),
            }
        }
    }

    /// What an operation does next, after what happened.
    pub(crate) fn decide(&self, course: &mut Course) -> Decision {
        loop {
            let Course { call, args, happened, deadline, wait_until, interrupted, .. } = course;
            let event = match std::mem::replace(happened, Happened::Nothing) {
                Happened::Nothing => Event::Go,
                Happened::Replied(reply) => Event::Reply(reply, args),
                Happened::Refreshed(Ok(())) => Event::Refreshed,
                Happened::Refreshed(Err(e)) => Event::RefreshFailed(e),
                Happened::Failed(Failure::Lost { sent, why }) => Event::Lost { sent, why },
                Happened::Failed(Failure::Gone { sent, reason }) => Event::Gone { sent, reason },
                Happened::Failed(Failure::Nobody { why, .. }) => Event::Lost { sent: false, why },
                Happened::Failed(Failure::Interrupted) => {
                    // Asked once more, without waiting: it may have had its effect.
                    *wait_until = Some(Time::ZERO);
                    *interrupted = true;
                    Event::Lost { sent: true, why: "a signal interrupted the wait".into() }
                }
                Happened::Failed(Failure::Late { sent }) => {
                    Event::Lost { sent, why: "no reply arrived in time".into() }
                }
                Happened::Failed(Failure::Refused(e)) => match e.status {
                    Status::PermissionDenied
                    | Status::Unauthenticated
                    | Status::InvalidArgument
                    | Status::BadFrame => return Decision::Done(Err(self.named(e))),
                    _ => Event::Lost { sent: false, why: e.to_string() },
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
                    // It may have been moved on by a block to which items can come back.
                    if course.target == Target::Head && !self.left().is_empty() {
                        course.may_wait_for(LOOK_BACK, self.now());
                    }
                    header.deadline_ms = course.may_wait_ms(self.now());
                    return Decision::Send(entry, header);
                }
            }
        }
    }

    /// Asks the controller, while a server says nothing, whether the structure is still there; the
    /// error tells why not. A controller that does not answer says nothing about that.
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
    ) -> Result<Sent, Failure> {
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
        let mut transport = pool.take(&place, &mut wait)?;
        let sent = self.present(&mut transport, &mut wait).and_then(|number| {
            header.grant = number;
            transport.ask(header, args, exchange.payload, &mut wait)
        });
        match sent {
            Ok(()) => Ok(Sent { transport, place }),
            // What else is idle there has most likely broken with it.
            Err(failure) => {
                pool.forget(&place.0);
                Err(failure)
            }
        }
    }

    /// Awaits the reply to what was sent.
    pub(crate) fn collect(&self, flight: &mut Flight<'_, '_>, sent: Sent) {
        let Sent { mut transport, place } = sent;
        let deadline = flight.deadline();
        let mut idle = || self.ask_whether_gone(deadline);
        let interruptible = flight.course.may_wait_ms(self.now()) > 0;
        let mut wait = Wait { deadline, idle: &mut idle, interruptible };
        let sink = flight.exchange.sink.reborrow();
        let answer = transport.answer(&mut wait, &mut flight.course.args, sink);
        flight.course.happened = match answer {
            Ok(reply) => {
                self.context.pool.give(&place, transport);
                Happened::Replied(reply)
            }
            // Nothing is wrong with the other connections.
            Err(failure @ Failure::Interrupted) => Happened::Failed(failure),
            Err(failure) => {
                self.context.pool.forget(&place.0);
                Happened::Failed(failure)
            }
        };
    }

    /// Gives up a reply that will not come.
    pub(crate) fn lose(&self, flight: &mut Flight<'_, '_>, sent: Sent, why: Failure) {
        self.context.pool.forget(&sent.place.0);
        flight.fail(why);
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The number of the grant on a connection where it was presented.
    pub(crate) fn presented(&self, transport: &Transport) -> Option<u32> {
        transport.presented(self.id, self.state().grant.version)
    }

    /// Presents the grant on a connection: the number by which requests name it there.
    pub(crate) fn present(
        &self,
        transport: &mut Transport,
        wait: &mut Wait<'_>,
    ) -> Result<u32, Failure> {
        let grant = self.state().grant.clone();
        transport.grant(self.id, grant.version, &grant.bytes, wait)
    }

    /// Subscribes to changes: see `Listener`. `wanted` is bits of `wire::notice::kinds`.
    pub fn listen(&self, wanted: u16, filter: Filter) -> Result<Listener, Error> {
        let (map, grant) = {
            let state = self.state();
            (state.routing.map.clone(), state.grant.clone())
        };
        // One of its own, so that it lives as long as it likes.
        let twin = Structure {
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
            state: Mutex::new(State {
                routing: Routing::new(map),
                grant,
                ended: None,
                suspects: Vec::new(),
            }),
        };
        let listener = Listener::open(twin, self.context.clone(), wanted, filter);
        listener.map_err(|e| self.named(e))
    }

    /// Waits until `check` says yes, asking it again after each change of the wanted kinds; false
    /// when `wait` passed first, or a signal came to the thread.
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
            // After the subscription: a change before it is seen here, one after it is told.
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
        let mut state = self.state();
        state.routing.refresh(reply.map);
        state.suspects = reply.suspects;
        let version = state.grant.version + 1;
        state.grant = Arc::new(Grant { version, bytes: reply.grant });
        Ok(())
    }

    /// Why a call failed; with the suspicion against the server that it waited for.
    fn or_suspected(&self, mut e: Error, entry: Option<&MapEntry>) -> Error {
        let waited = matches!(e.status, Status::DeadlineExceeded | Status::OutcomeUnknown);
        let Some(entry) = entry.filter(|_| waited) else { return e };
        let state = self.state();
        if let Some(suspect) = state.suspects.iter().find(|s| s.address == entry.address) {
            let Suspect { address, silent_ms } = suspect;
            let text = format!(
                "; memory server {address} is suspected: it had been silent for {silent_ms} ms. Its data \
                 is there again when it is heard, and lost if it stays silent"
            );
            e.message.push_str(&text);
        }
        e
    }

    /// The error of a failed call. Once the lease has ended it is `LeaseExpired`, even under a reused name.
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

    /// Puts the structure's address in front of a message that lacks it.
    fn named(&self, mut e: Error) -> Error {
        if !e.message.contains(self.address.as_str()) {
            e.message = format!("{}: {}", self.address, e.message);
        }
        e
    }
}
