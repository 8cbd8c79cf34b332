//! Several requests in progress on one connection.
//!
//! Each is an operation like any other: its own `Call` decides its block, with its own lane and its
//! own retries (ADR 0007), and `Structure::decide` runs it. Only the connection is shared: requests
//! to one shard of a server are sent together, and their replies are distinguished by the request
//! number. Operations on one key run one after the other if one of them is a mutation, so that they
//! take effect in their order even if one is repeated.

use crate::context::Context;
use crate::error::Error;
use crate::interrupt;
use crate::kv::Kv;
use crate::pool::ShardAddress;
use crate::route::Target;
use crate::socket::{PATIENCE, Wait, await_some};
use crate::structure::{Course, Decision, Replied};
use crate::transport::{ExchangeFailure, Sink, Transport};
use honeycomb_types::{BlockId, Time};
use honeycomb_wire::messages::MapEntry;
use honeycomb_wire::{Op, ReplyHeader, RequestHeader};
use std::collections::VecDeque;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

/// Operations in progress are searched for a key only if a counter for some of its bits is not
/// zero.
const COUNTERS: usize = 1024;

/// A request: an operation on one key of a store, or on many that have no order among the requests of
/// the pipe. A finished one keeps its buffers for reuse.
pub(crate) struct PipedRequest<K> {
    pub kv: K,
    pub op: Op,
    pub target: Target,
    pub args: Vec<u8>,
    pub payload: Vec<u8>,
    /// The payload of the reply.
    pub value: Vec<u8>,
    /// Identifies the operation to its caller.
    pub ticket: u64,
}

impl<K> PipedRequest<K> {
    /// The hash of the key, if it is an operation on one.
    fn hash(&self) -> Option<u64> {
        match self.target {
            Target::Hash(hash) => Some(hash),
            _ => None,
        }
    }

    /// Whether two operations must run one after the other.
    fn conflicts(&self, other: &PipedRequest<K>) -> bool {
        let same = self.hash().is_some() && self.hash() == other.hash();
        same && (self.op.info().lane || other.op.info().lane)
    }
}

/// A finished operation.
pub(crate) struct Landed<K> {
    pub asked: PipedRequest<K>,
    pub result: Result<Replied, Error>,
}

/// One operation in progress.
struct PipeSlot<K> {
    asked: PipedRequest<K>,
    course: Course,
    stage: PipeStage,
    /// The operation's position in the order of arrival.
    turn: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PipeStage {
    /// Waits until another operation on the same key has ended.
    Held,
    /// Listed in `Pipe::ready`.
    Ready,
    /// Continues at this time.
    Paused(Time),
    /// Awaits its reply.
    Awaits,
}

/// A connection and its requests in progress: their numbers and their slots.
struct Channel {
    place: ShardAddress,
    transport: Transport,
    outstanding: VecDeque<(u64, usize)>,
    /// When bytes last arrived, or when a request was sent while none was in progress.
    heard: Time,
}

/// Operations on stores of one client that are in progress together. The owner drives it: all
/// progress happens in `step`.
pub(crate) struct Pipe<K> {
    context: Arc<Context>,
    slots: Vec<Option<PipeSlot<K>>>,
    free: Vec<usize>,
    ready: VecDeque<usize>,
    channels: Vec<Channel>,
    landed: VecDeque<Landed<K>>,
    /// Number of operations in progress, by some bits of the hash of their key.
    keys: Vec<u32>,
    held: usize,
    paused: usize,
    turns: u64,
}

impl<K: Deref<Target = Kv>> Pipe<K> {
    pub fn new(context: Arc<Context>) -> Pipe<K> {
        Pipe {
            context,
            slots: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            channels: Vec::new(),
            landed: VecDeque::new(),
            keys: vec![0; COUNTERS],
            held: 0,
            paused: 0,
            turns: 0,
        }
    }

    /// Operations that have not finished.
    pub fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The next finished operation, in no particular order.
    pub fn landed(&mut self) -> Option<Landed<K>> {
        self.landed.pop_front()
    }

    /// Starts an operation; its deadline counts from now.
    pub fn begin(&mut self, asked: PipedRequest<K>) {
        let structure = asked.kv.structure();
        let mutates = asked.op.info().lane;
        let course = structure.course(mutates, asked.op, asked.target, None);
        let must_wait = asked.hash().is_some_and(|hash| self.keys[bits(hash)] > 0)
            && self.occupied().any(|one| one.asked.conflicts(&asked));
        if let Some(hash) = asked.hash() {
            self.keys[bits(hash)] += 1;
        }
        self.turns += 1;
        let stage = if must_wait { PipeStage::Held } else { PipeStage::Ready };
        self.held += must_wait as usize;
        let slot = Some(PipeSlot { asked, course, stage, turn: self.turns });
        let at = match self.free.pop() {
            Some(at) => {
                debug_assert!(self.slots[at].is_none(), "INV-16: free slot {at} is in use");
                self.slots[at] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        if !must_wait {
            self.ready.push_back(at);
        }
        let (slots, free) = (self.slots.len(), self.free.len());
        assert!(free < slots, "INV-33: {free} of {slots} places are free, and an operation began");
    }

    fn occupied(&self) -> impl Iterator<Item = &PipeSlot<K>> {
        self.slots.iter().flatten()
    }

    fn slot(&mut self, at: usize) -> &mut PipeSlot<K> {
        self.slots[at].as_mut().expect("a listed slot is in use")
    }

    /// Sends what the sockets take at once.
    pub fn send_now(&mut self) {
        self.launch();
        self.flush();
    }

    /// Sends as much as possible. If no operation has finished, waits until a reply arrives or
    /// until the given time. A signal to this thread or its interrupt ends an interruptible wait.
    pub fn step(&mut self, until: Time, interruptible: bool) {
        self.send_now();
        // Requests that could not be sent are routed again.
        self.launch();
        if !self.landed.is_empty() || self.under_way() == 0 && !interruptible {
            return;
        }
        self.wait(until, interruptible);
        self.launch();
    }

    /// Advances every ready operation up to its next request.
    fn launch(&mut self) {
        if self.paused > 0 {
            self.wake_the_paused();
        }
        while let Some(at) = self.ready.pop_front() {
            let slot = self.slots[at].as_mut().expect("a listed slot is in use");
            assert_eq!(
                slot.stage,
                PipeStage::Ready,
                "INV-16: an operation is advanced, and is not ready"
            );
            match slot.asked.kv.structure().decide(&mut slot.course) {
                Decision::Send(entry, header) => match self.send(at, &entry, header) {
                    Ok(()) => self.slot(at).stage = PipeStage::Awaits,
                    Err(failure) => {
                        self.slot(at).course.fail(failure);
                        self.ready.push_back(at);
                    }
                },
                Decision::Pause(pause) => {
                    slot.stage = PipeStage::Paused(slot.asked.kv.structure().now() + pause);
                    self.paused += 1;
                }
                Decision::Done(result) => self.land(at, result),
            }
        }
    }

    fn wake_the_paused(&mut self) {
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if let Some(slot) = slot
                && let PipeStage::Paused(until) = slot.stage
                && slot.asked.kv.structure().now() >= until
            {
                slot.stage = PipeStage::Ready;
                assert!(self.paused > 0, "INV-33: an operation pauses that was not counted");
                self.paused -= 1;
                self.ready.push_back(at);
            }
        }
    }

    fn land(&mut self, at: usize, result: Result<Replied, Error>) {
        let PipeSlot { asked, .. } = self.slots[at].take().expect("a listed slot is in use");
        self.free.push(at);
        if let Some(hash) = asked.hash() {
            let count = self.keys[bits(hash)];
            assert!(count > 0, "INV-15: an operation on hash {hash:#x} ends, and none is counted");
            self.keys[bits(hash)] -= 1;
            if self.held > 0 && count > 1 {
                self.let_go(hash);
            }
        }
        self.landed.push_back(Landed { asked, result });
    }

    /// Releases the operations on a key that no longer have an earlier one before them.
    fn let_go(&mut self, hash: u64) {
        let is_on = |one: &PipeSlot<K>| one.asked.hash() == Some(hash);
        let mut on_key: Vec<usize> = (0..self.slots.len())
            .filter(|at| self.slots[*at].as_ref().is_some_and(is_on))
            .collect();
        on_key.sort_unstable_by_key(|at| self.slots[*at].as_ref().map(|one| one.turn));
        for (place, at) in on_key.iter().enumerate() {
            let before = on_key[..place].iter().filter_map(|at| self.slots[*at].as_ref());
            let Some(slot) = &self.slots[*at] else { continue };
            if slot.stage != PipeStage::Held
                || before.into_iter().any(|b| b.asked.conflicts(&slot.asked))
            {
                continue;
            }
            self.slot(*at).stage = PipeStage::Ready;
            assert!(
                self.held > 0,
                "INV-15: an operation on hash {hash:#x} was held, and not counted"
            );
            self.held -= 1;
            self.ready.push_back(*at);
        }
    }

    /// Queues a request on a connection to its block's shard.
    fn send(
        &mut self,
        at: usize,
        entry: &MapEntry,
        mut header: RequestHeader,
    ) -> Result<(), ExchangeFailure> {
        debug_assert_eq!(
            header.at,
            entry.at(),
            "INV-01: a request for one block is sent to another"
        );
        let slot = self.slots[at].as_mut().expect("a listed slot is in use");
        let structure = slot.asked.kv.structure();
        let pool = &self.context.pool;
        let shard = BlockId(entry.block).shard().0;
        // The number of the grant is read once: another thread may refresh the grant meanwhile.
        // Presenting a grant is an exchange of its own, during which no other request may be in
        // progress.
        let there = |(index, c): (usize, &Channel)| {
            if c.place.1 != shard || c.place.0 != entry.address {
                return None;
            }
            let presented = structure.presented(&c.transport);
            let free = c.outstanding.is_empty() && c.transport.is_idle();
            (free || presented.is_some()).then_some((index, presented))
        };
        let (index, presented) = match self.channels.iter().enumerate().find_map(there) {
            Some(found) => found,
            None => {
                let place = (entry.address.clone(), shard);
                let deadline = slot.course.deadline();
                let mut idle = || structure.ask_whether_gone(deadline);
                let mut wait = Wait { deadline, idle: &mut idle, interruptible: false };
                let transport = pool.take_server(&place, &mut wait)?;
                let (outstanding, heard) = (VecDeque::new(), structure.now());
                let presented = structure.presented(&transport);
                self.channels.push(Channel { place, transport, outstanding, heard });
                (self.channels.len() - 1, presented)
            }
        };
        let channel = &mut self.channels[index];
        header.grant = match presented {
            Some(number) => number,
            None => {
                let free = channel.outstanding.is_empty();
                assert!(free, "INV-16: a grant is presented before the replies to requests");
                let deadline = slot.course.deadline();
                let mut idle = || structure.ask_whether_gone(deadline);
                let mut wait = Wait { deadline, idle: &mut idle, interruptible: false };
                match structure.present(&mut channel.transport, &mut wait) {
                    Ok(number) => number,
                    Err(failure) => {
                        let broken = self.channels.swap_remove(index);
                        pool.forget(&broken.place.0);
                        return Err(failure);
                    }
                }
            }
        };
        if channel.outstanding.is_empty() {
            channel.heard = structure.now();
        }
        let number = channel.transport.queue(header, &slot.asked.args, &slot.asked.payload);
        let after = channel.outstanding.back().is_none_or(|(last, _)| *last < number);
        assert!(after, "INV-16: request {number} repeats the number of an earlier one");
        channel.outstanding.push_back((number, at));
        Ok(())
    }

    /// Sends queued requests as far as the sockets take them.
    fn flush(&mut self) {
        let mut index = 0;
        while index < self.channels.len() {
            match self.channels[index].transport.flush() {
                Ok(()) => index += 1,
                Err(e) => self.lose(index, None, &lost(&e)),
            }
        }
    }

    fn wait(&mut self, until: Time, interruptible: bool) {
        // After a panic, a pipeline that is dropped ends its operations as far as it can.
        if cfg!(debug_assertions) && !std::thread::panicking() {
            self.check();
        }
        let until = until.min(self.next_at());
        let mut lines: Vec<_> = self.channels.iter_mut().map(|c| c.transport.line()).collect();
        let ready = match lines.is_empty() {
            true => {
                interrupt::pause(self.context.pool.clock(), until);
                Vec::new()
            }
            // After a signal or an interrupt, the caller decides the next step.
            false => await_some(&mut lines, until, interruptible).unwrap_or_default(),
        };
        // In reverse order: a broken connection is removed, and the last one takes its index.
        for index in ready.into_iter().rev() {
            if let Err(e) = self.take_replies(index) {
                self.lose(index, None, &e);
            }
        }
        self.look_at_the_silent();
        self.give_back();
    }

    /// Compares the counts and the lists with the slots before a wait, when no operation is ready.
    fn check(&self) {
        let count = |is: fn(PipeStage) -> bool| self.occupied().filter(|one| is(one.stage)).count();
        let held = count(|stage| stage == PipeStage::Held);
        let paused = count(|stage| matches!(stage, PipeStage::Paused(_)));
        let awaited = count(|stage| stage == PipeStage::Awaits);
        let sent = self.channels.iter().map(|channel| channel.outstanding.len()).sum::<usize>();
        let counted = self.keys.iter().map(|count| *count as usize).sum::<usize>();
        let (all, on_keys) =
            (self.under_way(), self.occupied().filter(|one| one.asked.hash().is_some()).count());
        debug_assert_eq!(held, self.held, "INV-15: the count of held operations is wrong");
        debug_assert_eq!(paused, self.paused, "INV-33: the count of paused operations is wrong");
        debug_assert_eq!(awaited, sent, "INV-16: operations await replies that no connection has");
        debug_assert_eq!(counted, on_keys, "INV-15: the counts of operations by key are wrong");
        debug_assert_eq!(
            held + paused + sent,
            all,
            "INV-33: of {all} operations, {held} are held, {paused} pause and {sent} were sent"
        );
    }

    /// When a connection or an operation needs attention if no reply arrives earlier.
    fn next_at(&self) -> Time {
        let mut next = Time::NEVER;
        if self.paused > 0 {
            for slot in self.occupied() {
                if let PipeStage::Paused(until) = slot.stage {
                    next = next.min(until);
                }
            }
        }
        for channel in &self.channels {
            if !channel.outstanding.is_empty() {
                next = next.min(channel.heard + PATIENCE).min(self.deadline_of(channel));
            }
        }
        next
    }

    fn deadline_of(&self, channel: &Channel) -> Time {
        let of = |at: usize| self.slots[at].as_ref().map_or(Time::NEVER, |s| s.course.deadline());
        channel.outstanding.iter().map(|(_, at)| of(*at)).min().unwrap_or(Time::NEVER)
    }

    /// Takes the replies that have arrived.
    fn take_replies(&mut self, index: usize) -> Result<(), ExchangeFailure> {
        loop {
            let channel = &mut self.channels[index];
            let header = match channel.transport.next_reply() {
                Ok(Some(header)) => header,
                Ok(None) => return Ok(()),
                Err(e) => return Err(lost(&e)),
            };
            let place =
                channel.outstanding.iter().position(|(number, _)| *number == header.request);
            let Some((_, at)) = place.and_then(|place| channel.outstanding.remove(place)) else {
                let text = "received a reply to a request that was not sent".into();
                return Err(ExchangeFailure::Lost { sent: true, why: text });
            };
            let slot = self.slots[at].as_mut().expect("an awaited slot is in use");
            match take_body(channel, slot, header) {
                Ok(()) => channel.heard = slot.asked.kv.structure().now(),
                Err(failure) => {
                    channel.outstanding.push_front((header.request, at));
                    return Err(failure);
                }
            }
            assert_eq!(
                slot.stage,
                PipeStage::Awaits,
                "INV-16: a reply to {} was not awaited",
                header.request
            );
            slot.stage = PipeStage::Ready;
            self.ready.push_back(at);
        }
    }

    /// Gives up connections with a request whose deadline has passed, and those for which the
    /// controller says that no reply will arrive. It is asked after a server has been silent for a
    /// while.
    fn look_at_the_silent(&mut self) {
        let mut index = 0;
        while index < self.channels.len() {
            let channel = &self.channels[index];
            let Some((_, first)) = channel.outstanding.front().copied() else {
                index += 1;
                continue;
            };
            let structure =
                self.slots[first].as_ref().expect("an awaited slot is in use").asked.kv.structure();
            let now = structure.now();
            let deadline = self.deadline_of(channel);
            if now >= deadline {
                let late = channel.outstanding.iter().position(|(_, at)| {
                    self.slots[*at].as_ref().is_some_and(|s| s.course.deadline() <= now)
                });
                let late = late.map(|place| channel.outstanding[place].1);
                self.lose(index, late, &ExchangeFailure::Late { sent: true });
                continue;
            }
            if now.since(channel.heard) >= PATIENCE {
                let gone = structure.ask_whether_gone(deadline);
                self.channels[index].heard = self.slot(first).asked.kv.structure().now();
                if let Err(reason) = gone {
                    self.lose(index, Some(first), &ExchangeFailure::Gone { sent: true, reason });
                    continue;
                }
            }
            index += 1;
        }
    }

    /// Gives up a connection. `why` applies to all requests on it, or only to `one`; the others
    /// have then lost their connection.
    fn lose(&mut self, index: usize, one: Option<usize>, why: &ExchangeFailure) {
        let channel = self.channels.swap_remove(index);
        let has = |one: usize| channel.outstanding.iter().any(|(_, at)| *at == one);
        debug_assert!(
            one.is_none_or(has),
            "INV-16: {one:?} is not on the connection that it loses"
        );
        self.context.pool.forget(&channel.place.0);
        for (_, at) in channel.outstanding {
            let failure = match (one, why) {
                (Some(one), why) if one != at => {
                    let what = match why {
                        ExchangeFailure::Late { .. } => "got no reply in time",
                        _ => "was abandoned",
                    };
                    let why = format!("another request on the same connection {what}");
                    ExchangeFailure::Lost { sent: true, why }
                }
                _ => why.clone(),
            };
            let slot = self.slot(at);
            assert_eq!(slot.stage, PipeStage::Awaits, "INV-16: a lost request was not awaited");
            slot.course.fail(failure);
            slot.stage = PipeStage::Ready;
            self.ready.push_back(at);
        }
    }

    /// Returns connections without requests in progress to the pool.
    pub fn give_back(&mut self) {
        let mut index = 0;
        while index < self.channels.len() {
            if self.channels[index].outstanding.is_empty() && self.ready.is_empty() {
                let Channel { place, transport, .. } = self.channels.swap_remove(index);
                // A server may refuse a request before all of it is sent: nothing else can follow it.
                if transport.is_idle() {
                    self.context.pool.give(&place, transport);
                }
            } else {
                index += 1;
            }
        }
    }
}

fn take_body<K: Deref<Target = Kv>>(
    channel: &mut Channel,
    slot: &mut PipeSlot<K>,
    header: ReplyHeader,
) -> Result<(), ExchangeFailure> {
    let structure = slot.asked.kv.structure();
    let deadline = slot.course.deadline();
    let mut idle = || structure.ask_whether_gone(deadline);
    let mut wait = Wait { deadline, idle: &mut idle, interruptible: false };
    let sink = Sink::Vec(&mut slot.asked.value);
    channel.transport.body(&header, &mut wait, slot.course.reply_args(), sink)?;
    slot.course.replied(header);
    Ok(())
}

fn bits(hash: u64) -> usize {
    hash as usize % COUNTERS
}

fn lost(e: &io::Error) -> ExchangeFailure {
    ExchangeFailure::Lost { sent: true, why: e.to_string() }
}
