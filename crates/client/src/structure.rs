//! An open structure: its grant, its routing cache, and the loop that carries a call through.

use crate::call::{Call, Event, Routing, Step};
use crate::context::Context;
use crate::error::Error;
use crate::route::{self, Target};
use crate::transport::{Failure, PATIENCE, Sink, Wait};
use honeycomb_types::limits::{ACK_LANES_MAX, WAIT_MAX_MS};
use honeycomb_types::{BlockId, JobId, Kind, LaneId, PrefixId, Sequence, StructureId, Time, Verbs};
use honeycomb_wire::data::{ReadArgs, put_acks};
use honeycomb_wire::messages::{
    MapEntry, PartitionMap, ReopenStructureReply, ReopenStructureRequest,
};
use honeycomb_wire::{Op, ReplyHeader, RequestHeader, Status};
use std::sync::{Arc, Mutex, MutexGuard};

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
}

impl Args<'_> {
    fn encode(self, entry: &MapEntry, buffer: &mut Vec<u8>) {
        buffer.clear();
        match self {
            Args::Fixed(args) => buffer.extend_from_slice(args),
            Args::Read { position, length } => {
                ReadArgs { offset: position - entry.start, length }.put(buffer);
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
}

impl Structure {
    pub(crate) fn new(
        context: Arc<Context>,
        job: JobId,
        address: String,
        opened: Opened,
    ) -> Structure {
        let grant = Arc::new(Grant { version: 1, bytes: opened.grant });
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
            state: Mutex::new(State { routing: Routing::new(opened.map), grant }),
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

    /// The bounds of a queue, in items and bytes; 0 for none.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        (self.max_items, self.max_bytes)
    }

    /// The entries of the map, as far as this client knows.
    pub(crate) fn entries(&self) -> Vec<MapEntry> {
        self.state().routing.map.entries.clone()
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

    pub(crate) fn sleep_until(&self, time: Time) {
        self.context.pool.clock().sleep_until(time);
    }

    pub(crate) fn now(&self) -> Time {
        self.context.pool.clock().now()
    }

    /// Carries one operation through to its answer.
    pub(crate) fn run(&self, exchange: Exchange<'_, '_>) -> Result<Replied, Error> {
        let result = self.carry(exchange);
        let owed = self.state().routing.take_owed();
        for (entry, acks) in owed {
            self.acknowledge(&entry, &acks);
        }
        result
    }

    /// Tells a block that was left behind that our results have arrived. When it cannot be told it
    /// keeps them until nobody could ask for them again, which only costs memory for that long.
    fn acknowledge(&self, entry: &MapEntry, acks: &[(LaneId, Sequence)]) {
        let header = RequestHeader { at: route::at(entry), ..RequestHeader::new(Op::AckResults) };
        for part in acks.chunks(ACK_LANES_MAX as usize) {
            let mut args = Vec::new();
            put_acks(part, &mut args);
            let mut exchange = Exchange {
                op: Op::AckResults,
                target: Target::Block(header.at),
                args: Args::Fixed(&args),
                payload: &[],
                sink: Sink::None,
                wait_until: None,
            };
            let deadline = self.now() + PATIENCE;
            let _ = self.send(entry, header, &mut exchange, deadline, &mut Vec::new());
        }
    }

    fn carry(&self, mut exchange: Exchange<'_, '_>) -> Result<Replied, Error> {
        let clock = self.context.pool.clock();
        self.context.pool.enter();
        let mut deadline = self.deadline();
        if let Some(until) = exchange.wait_until {
            deadline = deadline.max(until + self.context.timeout);
        }
        let mut call = Call::new(exchange.op, exchange.target, deadline);
        let mut args = Vec::new();
        let mut event = Event::Go;
        loop {
            let step = {
                let mut state = self.state();
                self.context
                    .pool
                    .with_lanes(|lanes| call.next(clock.now(), &mut state.routing, lanes, event))
            };
            event = match step {
                Step::Done(Ok(header)) => {
                    let entry = call.entry().expect("an answer came from a block").clone();
                    return Ok(Replied { header, args, entry });
                }
                Step::Done(Err(e)) => return Err(self.named(e)),
                Step::Wait(pause) => {
                    clock.sleep_until(clock.now() + pause);
                    Event::Go
                }
                Step::Refresh => match self.refresh(deadline) {
                    Ok(()) => Event::Refreshed,
                    Err(e) => Event::RefreshFailed(e),
                },
                Step::Send(entry, header) => {
                    match self.send(&entry, header, &mut exchange, deadline, &mut args) {
                        Ok(reply) => Event::Reply(reply, &args),
                        Err(Failure::Lost { sent, why }) => Event::Lost { sent, why },
                        Err(Failure::Gone { sent, reason }) => Event::Gone { sent, reason },
                        Err(Failure::Interrupted) => {
                            // Asked once more, without waiting: it may have had its effect.
                            exchange.wait_until = Some(Time::ZERO);
                            Event::Lost { sent: true, why: "a signal came".into() }
                        }
                        Err(Failure::Late { sent }) => {
                            Event::Lost { sent, why: "no answer came in time".into() }
                        }
                        Err(Failure::Refused(e)) => match e.status {
                            Status::PermissionDenied
                            | Status::Unauthenticated
                            | Status::InvalidArgument
                            | Status::BadFrame => return Err(self.named(e)),
                            _ => Event::Lost { sent: false, why: e.to_string() },
                        },
                    }
                }
            };
        }
    }

    fn send(
        &self,
        entry: &MapEntry,
        mut header: RequestHeader,
        exchange: &mut Exchange<'_, '_>,
        deadline: Time,
        args: &mut Vec<u8>,
    ) -> Result<ReplyHeader, Failure> {
        let place = (entry.address.clone(), BlockId(entry.block).shard().0);
        let grant = self.state().grant.clone();
        let pool = &self.context.pool;
        // A server that is gone without a word is found out by asking the controller.
        let clock = pool.clock();
        let mut idle = || match self.refresh(deadline.min(clock.now() + PATIENCE)) {
            Err(e) if e.status != Status::Unavailable => Err(e),
            _ => Ok(()),
        };
        let waits = exchange.wait_until.map(|until| until.since(clock.now()));
        let waits = waits.map_or(0, |left| left.as_nanos().div_ceil(1_000_000));
        header.deadline_ms = waits.min(WAIT_MAX_MS as u128) as u32;
        let interruptible = header.deadline_ms > 0;
        let mut wait = Wait { deadline, idle: &mut idle, interruptible };
        let mut transport = pool.take(&place, &mut wait)?;
        let mut sent_args = Vec::new();
        exchange.args.encode(entry, &mut sent_args);
        let sent =
            transport.grant(self.id, grant.version, &grant.bytes, &mut wait).and_then(|number| {
                header.grant = number;
                let (payload, sink) = (exchange.payload, exchange.sink.reborrow());
                transport.exchange(header, &sent_args, payload, &mut wait, args, sink)
            });
        match &sent {
            Ok(_) => pool.give(&place, transport),
            // What else is idle there has most likely broken with it.
            Err(_) => pool.forget(&place.0),
        }
        sent
    }

    /// Fetches a fresh grant and map, or the reason why the data is gone.
    pub(crate) fn refresh(&self, deadline: Time) -> Result<(), Error> {
        let body = ReopenStructureRequest { job: self.job.0, structure: self.id.0 };
        let reply: ReopenStructureReply = self.context.ask(Op::ReopenStructure, &body, deadline)?;
        let mut state = self.state();
        state.routing.refresh(reply.map);
        let version = state.grant.version + 1;
        state.grant = Arc::new(Grant { version, bytes: reply.grant });
        Ok(())
    }

    /// Puts the structure's address in front of a message that lacks it.
    fn named(&self, mut e: Error) -> Error {
        if !e.message.contains(self.address.as_str()) {
            e.message = format!("{}: {}", self.address, e.message);
        }
        e
    }
}
