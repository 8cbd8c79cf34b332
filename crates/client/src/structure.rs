//! An open structure: its grant, its routing cache, and the loop that carries a call through.

use crate::call::{Call, Event, Routing, Step};
use crate::context::Context;
use crate::error::Error;
use crate::route::Target;
use crate::transport::{Failure, PATIENCE, Sink, Wait};
use honeycomb_types::{BlockId, JobId, Kind, PrefixId, StructureId, Time, Verbs};
use honeycomb_wire::data::ReadArgs;
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

    /// Carries one operation through to its answer.
    pub(crate) fn run(&self, mut exchange: Exchange<'_, '_>) -> Result<Replied, Error> {
        let clock = self.context.pool.clock();
        self.context.pool.enter();
        let deadline = self.deadline();
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
                        Err(Failure::Nobody { why, .. }) => Event::Lost { sent: false, why },
                        Err(Failure::Gone { sent, reason }) => Event::Gone { sent, reason },
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
        let mut wait = Wait { deadline, idle: &mut idle };
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
