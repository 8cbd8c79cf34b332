//! One data operation from its first try to its result, without I/O: the only retry loop.
//!
//! The caller asks a `Call` for its next step, carries it out, and passes the outcome back. The
//! call chooses the block from the routing cache and the lane from those of the session. It follows
//! `Moved`, waits out `Busy`, repeats after a lost connection, and decides when the outcome of a
//! mutation can no longer be known. Rules: "Retries" in docs/design-notes.md.

use crate::error::Error;
use crate::route::{self, Target};
use honeycomb_types::limits::RETRY_WINDOW_MS;
use honeycomb_types::{BlockAt, Bug, LaneId, Router, Sequence, SessionId, Time};
use honeycomb_wire::messages::{MapEntry, PartitionMap};
use honeycomb_wire::{Op, ReplyHeader, RequestHeader, Status, busy, flags};
use std::collections::HashMap;
use std::time::Duration;

/// First wait after a lost connection; it doubles up to `BACKOFF_MAX`.
const BACKOFF_MIN: Duration = Duration::from_millis(2);
/// Longest wait between two tries.
const BACKOFF_MAX: Duration = Duration::from_millis(100);
/// `Moved` answers that one call follows: more than blocks can be added in a deadline.
const HOPS_MAX: u32 = 100_000;

/// One lane of this session to one block, while no operation uses it.
#[derive(Clone, Copy, Debug)]
struct IdleLane {
    id: LaneId,
    session: SessionId,
    next: Sequence,
}

/// A client's knowledge of one structure: the map, and its lanes to the blocks.
#[derive(Debug)]
pub struct Routing {
    /// Which block serves which part, as far as this client knows.
    pub map: PartitionMap,
    /// Blocks of a queue that were empty at the last request and whose successors serve. A reserved
    /// item may be returned to one of them.
    pub left: Vec<MapEntry>,
    /// Addresses of the servers that hold blocks of extents, by server number.
    pub servers: HashMap<u32, String>,
    /// The block of extents that is being written.
    pub extents: Option<ExtentRoom>,
    /// Whether the map is that of private blocks, which the controller never sends. If one of them is gone,
    /// calls end with `ExtentGone`.
    private: bool,
    /// Idle lanes, by block and by the end of a queue that they serve.
    lanes: HashMap<(BlockAt, QueueEnd), Vec<IdleLane>>,
    /// Received results of lanes that will not be used again.
    owed: Vec<ReceivedResults>,
}

/// The end of a queue that a lane serves, which decides when the lane will not be used again. Other
/// structures have one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum QueueEnd {
    Tail,
    Head,
}

/// A block and the received results of its lanes: it need not keep these results any longer.
pub type ReceivedResults = (MapEntry, Vec<(LaneId, Sequence)>);

/// Hands out lane numbers; one instance for each session.
#[derive(Clone, Copy, Debug)]
pub struct LaneAllocator {
    /// The session that the numbers belong to.
    pub session: SessionId,
    next: u32,
}

impl LaneAllocator {
    /// Starts the numbers of a new session.
    pub fn new(session: SessionId) -> LaneAllocator {
        LaneAllocator { session, next: 1 }
    }
}

/// Free space in a block of extents, as far as this client knows.
#[derive(Clone, Copy, Debug)]
pub struct ExtentRoom {
    /// The block.
    pub at: BlockAt,
    /// Bytes that are free in the block.
    pub free: u64,
    /// When an extent was last sent to the block, or when the controller named the block.
    pub written: Time,
}

impl Routing {
    /// Starts with this map.
    pub fn new(map: PartitionMap) -> Routing {
        let (servers, extents) = (HashMap::new(), None);
        let (left, lanes, owed) = (Vec::new(), HashMap::new(), Vec::new());
        Routing { map, left, servers, extents, private: false, lanes, owed }
    }

    /// Starts with the first private block of a large append to a file of this map.
    pub fn private(file: &PartitionMap, first: MapEntry) -> Routing {
        let entries = vec![MapEntry { start: 0, end: u64::MAX, ..first }];
        Routing { private: true, ..Routing::new(PartitionMap { entries, ..file.clone() }) }
    }

    /// Takes the acknowledgements (`AckResults`) for blocks of a queue that were left behind.
    /// Without them a block keeps its results for as long as this client could request them again.
    pub fn take_owed(&mut self) -> Vec<ReceivedResults> {
        std::mem::take(&mut self.owed)
    }

    /// Whether the structure drops empty blocks whose results no client needs.
    pub fn shrinks(&self) -> bool {
        Router::from_code(self.map.router).is_some_and(Router::shrinks)
    }

    /// Whether lanes to a block are unused from now on, or used so rarely that the block must not
    /// wait for them.
    fn is_behind(&self, at: BlockAt, end: QueueEnd) -> bool {
        let entry = match end {
            QueueEnd::Head if self.map.router == Router::Ends as u8 => self.map.entries.first(),
            QueueEnd::Head | QueueEnd::Tail => self.map.entries.last(),
        };
        self.shrinks() && entry.is_none_or(|entry| entry.at() != at)
    }

    /// Gives up lanes to blocks that were left behind, after a change of the map.
    fn give_up_lanes(&mut self) {
        if !self.shrinks() {
            return;
        }
        let mut behind: Vec<(BlockAt, QueueEnd)> =
            self.lanes.keys().filter(|(at, end)| self.is_behind(*at, *end)).copied().collect();
        // A sorted order, because the order of the table's keys must not decide (INV-35).
        behind.sort_unstable();
        for key in behind {
            for lane in self.lanes.remove(&key).unwrap_or_default() {
                self.owe(key.0, lane);
            }
        }
    }

    fn owe(&mut self, at: BlockAt, lane: IdleLane) {
        assert!(lane.next.0 > 0, "INV-16: lane {:?} to {at:?} has no next number", lane.id);
        let ack = (lane.id, Sequence(lane.next.0 - 1));
        if ack.1.0 == 0 {
            return;
        }
        if let Some((_, acks)) = self.owed.iter_mut().find(|(e, _)| e.at() == at) {
            acks.push(ack);
        } else if let Some(entry) = self.named(at) {
            self.owed.push((entry.clone(), vec![ack]));
        }
    }

    fn named(&self, at: BlockAt) -> Option<&MapEntry> {
        self.map.entries.iter().chain(&self.left).find(|entry| entry.at() == at)
    }

    /// The block that replaced one that the map no longer names: the old block moved to another
    /// server with all its records. In a file or a queue a position never changes, and no other
    /// block begins at it. In a key-value store other blocks serve the hashes that one block had.
    fn took_place(&self, tried: Tried) -> Option<&MapEntry> {
        let stands =
            matches!(Router::from_code(self.map.router), Some(Router::Offset | Router::Ends));
        if !stands || self.named(tried.at).is_some() || Bug::RelocatedMeansRetired.active() {
            return None;
        }
        // A consumer may have left the block behind meanwhile; the block still has its own records.
        self.map.entries.iter().chain(&self.left).find(|entry| entry.start == tried.start)
    }

    /// Moves lanes to the blocks that replaced theirs, after a change of the map.
    fn follow(&mut self, old: &[MapEntry]) {
        let gone = self.lanes.keys().filter(|(at, _)| self.named(*at).is_none());
        let mut gone: Vec<(BlockAt, QueueEnd)> = gone.copied().collect();
        // A sorted order, because the order of the table's keys must not decide (INV-35).
        gone.sort_unstable();
        for (at, end) in gone {
            let entry = old.iter().find(|entry| entry.at() == at);
            let new = entry.and_then(|entry| self.took_place(Tried::of(entry))).map(MapEntry::at);
            if let Some(new) = new {
                let lanes = self.lanes.remove(&(at, end)).unwrap_or_default();
                self.lanes.entry((new, end)).or_default().extend(lanes);
            }
        }
    }

    /// The entry of a block of extents, if the address of its server is known.
    fn extents_at(&self, at: BlockAt) -> Option<MapEntry> {
        let address = self.servers.get(&at.block.server().0)?.clone();
        let (block, epoch) = (at.block.0, at.epoch.0);
        Some(MapEntry { start: 0, end: u64::MAX, block, epoch, address })
    }

    fn route(&self, target: Target) -> Option<&MapEntry> {
        match target {
            Target::Block(at) => self.named(at),
            target => route::route(&self.map, target),
        }
    }

    /// Makes sure that a block can still be reached although the map may no longer name it.
    pub fn remember(&mut self, entry: &MapEntry) {
        if self.named(entry.at()).is_none() {
            self.left.push(entry.clone());
        }
    }

    /// The first block of a queue has nothing to take: later requests go to the next one.
    fn leave(&mut self, at: BlockAt) {
        if self.map.entries.len() > 1 && self.map.entries[0].at() == at {
            self.left.push(self.map.entries.remove(0));
        }
    }

    /// Replaces the map by one from the controller, unless a newer one is known.
    pub fn refresh(&mut self, map: PartitionMap) {
        if self.private {
            return;
        }
        if map.version >= self.map.version {
            let old = std::mem::replace(&mut self.map, map);
            // A block that is not in the controller's map no longer exists.
            let left = std::mem::take(&mut self.left);
            self.follow(&[old.entries, left].concat());
        }
        let known: std::collections::HashSet<BlockAt> =
            self.map.entries.iter().map(MapEntry::at).collect();
        self.lanes.retain(|(at, _), _| known.contains(at));
        self.give_up_lanes();
    }

    fn take_lane(&mut self, lanes: &mut LaneAllocator, at: BlockAt, end: QueueEnd) -> IdleLane {
        let free = self.lanes.entry((at, end)).or_default();
        // Lanes of an earlier session (before a fork) belong to the parent process.
        while let Some(lane) = free.pop() {
            if lane.session == lanes.session {
                debug_assert!(
                    free.iter().all(|l| l.id != lane.id || l.session != lane.session),
                    "INV-16: lane {:?} to {at:?} is taken, and stays free",
                    lane.id
                );
                return lane;
            }
        }
        let id = LaneId(lanes.next);
        lanes.next = lanes.next.checked_add(1).expect("a session opens fewer than 2^32 lanes");
        IdleLane { id, session: lanes.session, next: Sequence(1) }
    }

    fn give_lane(&mut self, at: BlockAt, end: QueueEnd, lane: IdleLane) {
        debug_assert!(
            self.lanes.get(&(at, end)).is_none_or(|free| free.iter().all(|l| l.id != lane.id)),
            "INV-16: lane {:?} to {at:?} is free already",
            lane.id
        );
        match self.is_behind(at, end) {
            true => self.owe(at, lane),
            false => self.lanes.entry((at, end)).or_default().push(lane),
        }
    }
}

/// A block that received a try, by its name at that time. If a structure's blocks form a sequence,
/// the position identifies the block as well, even after it has been renamed.
#[derive(Clone, Copy, Debug)]
struct Tried {
    at: BlockAt,
    start: u64,
}

impl Tried {
    fn of(entry: &MapEntry) -> Tried {
        Tried { at: entry.at(), start: entry.start }
    }
}

/// The next step.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// Send the request with these fields to this block. The sender sets lengths, request number
    /// and grant.
    Send(MapEntry, RequestHeader),
    /// Request a fresh map and grant from the controller, or the reason of the loss.
    Refresh,
    /// Wait, then continue.
    Wait(Duration),
    /// Finished.
    Done(Result<ReplyHeader, Error>),
}

/// The outcome of a step.
#[derive(Debug)]
pub enum CallEvent<'a> {
    /// The call begins, or the wait is over.
    Go,
    /// The reply and its arguments.
    Reply(ReplyHeader, &'a [u8]),
    /// The connection failed; `sent` if the request may have reached the server.
    Lost {
        /// Whether any byte may have arrived.
        sent: bool,
        /// The operating system's error.
        why: String,
    },
    /// While the call awaited the reply, the controller reported why none will arrive.
    Gone {
        /// Whether any byte may have arrived.
        sent: bool,
        /// The controller's reason.
        reason: Error,
    },
    /// The map was refreshed, and the caller has already put it into the routing.
    Refreshed,
    /// The controller returned a reason instead of a map.
    RefreshFailed(Error),
}

/// One operation in progress.
#[derive(Debug)]
pub struct Call {
    op: Op,
    target: Target,
    deadline: Time,
    mutation: bool,
    lane: Option<(Tried, IdleLane)>,
    /// The block that answered `Busy`, or that the grant had expired. It may have run a copy of
    /// this request, or hold one in progress. The call therefore retries there before any other
    /// block, even if the map has changed.
    stays_at: Option<Tried>,
    /// A try may have reached a server, and its reply was lost.
    uncertain: Option<Tried>,
    /// When the current try was sent.
    sent_at: Time,
    /// When the first try with an unknown outcome was sent.
    doubt_since: Option<Time>,
    backoff: Duration,
    hops: u32,
    revoked: bool,
    /// Whether the refresh in progress follows a failure, and not a reply that requires a refresh.
    troubled: bool,
    entry: Option<MapEntry>,
    last_trouble: String,
    /// Whether the last reply reported a lack of space.
    full: bool,
    /// Whether a block of extents, or a private block, was missing; the controller decides whether
    /// the structure still exists.
    gone: bool,
    /// Whether it is for a private block: nothing is appended before the commit.
    private: bool,
    turn: ExpectedEvent,
}

/// The outcome that a call expects next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpectedEvent {
    /// It begins, or a wait is over.
    Go,
    /// A request was sent, or could not be.
    Sent,
    /// A map was requested.
    Refresh,
    /// None: it has finished.
    Ended,
}

impl Call {
    /// An operation that must finish by `deadline`.
    pub fn new(op: Op, target: Target, deadline: Time) -> Call {
        Call::of(op, op.info().lane, target, deadline)
    }

    /// The same for an operation for which the protocol does not define whether it is a mutation.
    pub fn of(op: Op, mutation: bool, target: Target, deadline: Time) -> Call {
        if let Target::Hashes(first, last) = target {
            assert!(first <= last, "INV-17: a call is for hashes from {first:#x} to {last:#x}");
        }
        Call {
            op,
            target,
            deadline,
            mutation,
            lane: None,
            stays_at: None,
            uncertain: None,
            sent_at: Time::ZERO,
            doubt_since: None,
            backoff: BACKOFF_MIN,
            hops: 0,
            revoked: false,
            troubled: false,
            entry: None,
            last_trouble: String::new(),
            full: false,
            gone: false,
            private: false,
            turn: ExpectedEvent::Go,
        }
    }

    /// The entry of the last block that replied: offsets in a file count from its start.
    pub fn entry(&self) -> Option<&MapEntry> {
        self.entry.as_ref()
    }

    /// As `entry`, at the end of the call.
    pub fn take_entry(&mut self) -> Option<MapEntry> {
        self.entry.take()
    }

    /// The next step, given the outcome of the last one.
    pub fn next(
        &mut self,
        now: Time,
        routing: &mut Routing,
        lanes: &mut LaneAllocator,
        event: CallEvent<'_>,
    ) -> Step {
        let fits = match event {
            CallEvent::Go => self.turn == ExpectedEvent::Go,
            CallEvent::Reply(..) | CallEvent::Lost { .. } | CallEvent::Gone { .. } => {
                self.turn == ExpectedEvent::Sent
            }
            CallEvent::Refreshed | CallEvent::RefreshFailed(_) => {
                self.turn == ExpectedEvent::Refresh
            }
        };
        assert!(fits, "INV-16: {} gets {event:?} in turn {:?}", self.op.name(), self.turn);
        let step = self.after(now, routing, lanes, event);
        self.turn = match step {
            Step::Send(..) => ExpectedEvent::Sent,
            Step::Refresh => ExpectedEvent::Refresh,
            Step::Wait(_) => ExpectedEvent::Go,
            Step::Done(_) => ExpectedEvent::Ended,
        };
        step
    }

    fn after(
        &mut self,
        now: Time,
        routing: &mut Routing,
        lanes: &mut LaneAllocator,
        event: CallEvent<'_>,
    ) -> Step {
        match event {
            CallEvent::Go => self.send(now, routing, lanes),
            CallEvent::Refreshed if self.troubled => {
                self.troubled = false;
                self.pause(now)
            }
            CallEvent::Refreshed => self.send(now, routing, lanes),
            CallEvent::Reply(header, args) => self.reply(now, routing, lanes, header, args),
            CallEvent::Lost { sent, why } => {
                if sent {
                    self.doubt();
                }
                self.note_trouble(why);
                self.after_trouble(now)
            }
            CallEvent::Gone { sent, reason } => {
                if sent {
                    self.doubt();
                }
                Step::Done(Err(self.explain(reason)))
            }
            CallEvent::RefreshFailed(e) if e.status == Status::Unavailable => {
                self.note_trouble(e.message);
                self.pause(now)
            }
            CallEvent::RefreshFailed(e) => Step::Done(Err(self.explain(e))),
        }
    }

    fn send(&mut self, now: Time, routing: &mut Routing, lanes: &mut LaneAllocator) -> Step {
        if now >= self.deadline {
            return self.give_up();
        }
        // A retry goes first to the block of the first try, because only that block can know the
        // outcome.
        let ended = |tried: Tried| routing.named(tried.at).is_none();
        let stood = |tried: Tried| routing.took_place(tried).is_some();
        if routing.shrinks() && self.uncertain.is_some_and(|tried| ended(tried) && !stood(tried)) {
            // Such a block is retired only when no client can still request a result of it. Hence
            // this request never ran there.
            (self.uncertain, self.doubt_since, self.lane) = (None, None, None);
        }
        self.private = routing.private;
        if self.private && self.gone {
            let why = "the private blocks no longer exist";
            return Step::Done(Err(Error::new(Status::ExtentGone, why)));
        }
        if let Target::Extents(at) = self.target {
            return self.send_to_extents(now, at, routing.extents_at(at));
        }
        // A block of a key-value store is removed when all its entries have moved, its records
        // included: the block that serves the key now has them.
        let hashes = routing.map.router == route::ROUTER_HASHES;
        // The same applies to a block that refused temporarily and may have run an earlier copy
        // before it was removed, and to a block that moved unchanged to another server and has a
        // replacement.
        if let Some(tried) = self.stays_at.filter(|tried| hashes && ended(*tried) || stood(*tried))
        {
            self.stays_at = None;
            self.uncertain.get_or_insert(tried);
            self.doubt_since.get_or_insert(self.sent_at);
        }
        let followed = hashes && self.uncertain.is_some_and(ended);
        let find = |tried: Tried| routing.named(tried.at).or_else(|| routing.took_place(tried));
        let entry = match self.uncertain {
            Some(tried) if !followed => find(tried),
            _ => match self.stays_at.and_then(|tried| routing.named(tried.at)).or_else(|| {
                // An earlier copy may have run only at the block that has since refused it.
                self.lane.and_then(|(tried, _)| routing.took_place(tried))
            }) {
                Some(entry) => Some(entry),
                None => {
                    let last =
                        self.entry.as_ref().filter(|_| matches!(self.target, Target::Block(_)));
                    let entry = routing.route(self.target);
                    let entry = entry.or_else(|| routing.took_place(Tried::of(last?)));
                    if let (Target::Hashes(_, last), Some(entry)) = (self.target, entry)
                        && entry.end < last
                    {
                        if followed {
                            let why = "the block that may have executed it has been split";
                            return Step::Done(Err(self.unknown(why)));
                        }
                        let why = "the keys are no longer in one block";
                        return Step::Done(Err(Error::new(Status::WrongRange, why)));
                    }
                    entry
                }
            },
        };
        let Some(entry) = entry.cloned() else {
            if self.uncertain.is_none() {
                let why = "the block is no longer part of the structure";
                return Step::Done(Err(Error::new(Status::UnknownBlock, why)));
            }
            let why = "the block that may have executed it no longer exists";
            return Step::Done(Err(self.unknown(why)));
        };
        let at = entry.at();
        let mut header = RequestHeader { at, ..RequestHeader::new(self.op) };
        if self.mutation {
            // Without the time of the doubt, a copy could be sent after its record is forgotten.
            debug_assert_eq!(
                self.uncertain.is_some(),
                self.doubt_since.is_some(),
                "INV-16: {} is in doubt without a time, or has a time without a doubt",
                self.op.name()
            );
            let window = Duration::from_millis(RETRY_WINDOW_MS);
            if self.doubt_since.is_some_and(|since| now.since(since) >= window) {
                return Step::Done(Err(self.unknown("it could not be repeated within 10 s")));
            }
            let lane = match self.lane.take() {
                // A removed block of a key-value store passed its records on. If an earlier copy
                // ran there, its successor recognises this number.
                Some((held, lane))
                    if held.at == at
                        || hashes && routing.named(held.at).is_none()
                        || routing.took_place(held).is_some_and(|entry| entry.at() == at) =>
                {
                    lane
                }
                // The lane belongs to another block that refused. Its number must not be used for
                // another request.
                Some(_) | None => routing.take_lane(lanes, at, self.end()),
            };
            assert_eq!(lane.session, lanes.session, "INV-16: a lane of another session is used");
            assert!(lane.next.0 > 0, "INV-16: {} is sent without a number", self.op.name());
            let tried = Tried::of(&entry);
            self.lane = Some((tried, lane));
            header.lane = lane.id;
            header.sequence = lane.next;
            header.ack_lag = 1;
            if self.uncertain.is_some() {
                header.flags |= flags::RETRY;
                self.uncertain = Some(tried);
            }
        }
        self.entry = Some(entry.clone());
        self.sent_at = now;
        Step::Send(entry, header)
    }

    /// Requests for extents have no effect that a reader could see twice: they need no lane, and
    /// their outcome is never in doubt.
    fn send_to_extents(&mut self, now: Time, at: BlockAt, entry: Option<MapEntry>) -> Step {
        assert!(!self.mutation, "INV-16: {} is sent to extents without a lane", self.op.name());
        let Some(entry) = entry.filter(|_| !self.gone) else {
            let text = format!("the block of extents {} no longer exists", at.block);
            return Step::Done(Err(Error::new(Status::ExtentGone, text)));
        };
        self.entry = Some(entry.clone());
        self.sent_at = now;
        Step::Send(entry, RequestHeader { at, ..RequestHeader::new(self.op) })
    }

    fn reply(
        &mut self,
        now: Time,
        routing: &mut Routing,
        lanes: &mut LaneAllocator,
        header: ReplyHeader,
        args: &[u8],
    ) -> Step {
        match header.status {
            Status::Busy => {
                self.stay();
                self.note_trouble(String::from_utf8_lossy(args).into_owned());
                self.full = header.value & busy::FULL != 0;
                if header.value & busy::UNDER_WAY != 0 {
                    self.doubt();
                }
                self.wait(now, busy::delay(header.value).min(Duration::from_secs(1)))
            }
            Status::Moved => self.moved(now, routing, lanes, header, args),
            Status::Resume => {
                // The server no longer remembers the lane, and hence has not executed this request.
                self.lane = None;
                if self.uncertain.is_some() {
                    return Step::Done(
                        Err(self.unknown("the server no longer remembers the lane")),
                    );
                }
                self.send(now, routing, lanes)
            }
            Status::WrongEpoch | Status::UnknownBlock | Status::WrongRange => {
                // The lane and its number stay with the block. If an earlier copy of this request
                // is still on its way there, the block must recognise the two as one.
                self.note_trouble(String::from_utf8_lossy(args).into_owned());
                self.gone = matches!(self.target, Target::Extents(_)) || routing.private;
                if Bug::ClientChangesLane.active() {
                    self.lane = None;
                }
                self.after_trouble(now)
            }
            Status::GrantExpired => {
                self.stay();
                Step::Refresh
            }
            Status::GrantRevoked if !self.revoked => {
                self.stay();
                self.revoked = true;
                Step::Refresh
            }
            Status::GrantRevoked => {
                // The controller was unreachable, or the permissions changed again meanwhile.
                self.note_trouble(String::from_utf8_lossy(args).into_owned());
                self.after_trouble(now)
            }
            status => {
                self.finish_lane(routing);
                match status {
                    Status::Ok
                    | Status::Extents
                    | Status::KeyNotFound
                    | Status::KeyExists
                    | Status::QueueEmpty
                    | Status::CompareFailed => Step::Done(Ok(header)),
                    Status::OutcomeUnknown => {
                        Step::Done(Err(self.unknown(&String::from_utf8_lossy(args))))
                    }
                    _ => Step::Done(Err(Error::refused(status, args).with_code(header.value))),
                }
            }
        }
    }

    fn moved(
        &mut self,
        now: Time,
        routing: &mut Routing,
        lanes: &mut LaneAllocator,
        header: ReplyHeader,
        args: &[u8],
    ) -> Step {
        let refused = self.entry.as_ref().map(MapEntry::at).expect("a reply follows a send");
        let moved = match route::successor(args) {
            Ok(moved) => moved,
            Err(e) => return Step::Done(Err(e)),
        };
        route::correct(&mut routing.map, refused, header.value, &moved);
        if self.target == Target::Head {
            routing.leave(refused);
        }
        // The block checked its records before it replied: it has not executed this request.
        self.stays_at = None;
        self.uncertain = None;
        self.doubt_since = None;
        self.finish_lane(routing);
        routing.give_up_lanes();
        self.hops += 1;
        if self.hops > HOPS_MAX {
            let why = "blocks keep redirecting the request; this is a defect";
            return Step::Done(Err(Error::new(Status::Internal, why)));
        }
        if routing.route(self.target).is_some_and(|entry| entry.at() == refused) {
            // The reply repeats the map's entry, yet the block cannot serve the request: the
            // controller may know more.
            self.note_trouble("the block replied that another block serves this".into());
            return self.after_trouble(now);
        }
        self.send(now, routing, lanes)
    }

    /// The block did not run the request, but it may have run an earlier copy. A batch does not
    /// stay at its block, because no other block can report the outcome after a split. A batch has
    /// an earlier copy only after a lost connection, which `doubt` records.
    fn stay(&mut self) {
        let stays = self.mutation && !matches!(self.target, Target::Hashes(..));
        self.stays_at = self.entry.as_ref().map(Tried::of).filter(|_| stays);
        if Bug::ClientForgetsBusy.active() {
            self.stays_at = None;
        }
    }

    /// The current try may have taken effect, and no reply reports it.
    fn doubt(&mut self) {
        if self.mutation && !Bug::ClientForgetsDoubt.active() {
            let sent = self.entry.is_some();
            assert!(sent, "INV-16: {} is in doubt, and was sent to no block", self.op.name());
            self.uncertain = self.entry.as_ref().map(Tried::of);
            self.doubt_since.get_or_insert(self.sent_at);
        }
    }

    /// A result arrived: the lane's number is used up, and the lane is free for the next operation.
    fn finish_lane(&mut self, routing: &mut Routing) {
        let numbered = self.lane.is_some() || !self.mutation;
        debug_assert!(numbered, "INV-16: {} has a result, and had no number", self.op.name());
        if let Some((tried, mut lane)) = self.lane.take() {
            assert!(self.mutation, "INV-16: {} has a lane, and changes nothing", self.op.name());
            lane.next = Sequence(lane.next.0 + 1);
            routing.give_lane(tried.at, self.end(), lane);
        }
    }

    fn end(&self) -> QueueEnd {
        match self.target {
            Target::Head | Target::Block(_) => QueueEnd::Head,
            _ => QueueEnd::Tail,
        }
    }

    /// Keeps the reason why the last attempt failed. A lack of space that an earlier attempt met is no longer
    /// the reason.
    fn note_trouble(&mut self, why: String) {
        self.last_trouble = why;
        self.full = false;
    }

    /// The block or its server has a problem: refresh from the controller soon.
    fn after_trouble(&mut self, now: Time) -> Step {
        if now >= self.deadline {
            return self.give_up();
        }
        self.troubled = true;
        Step::Refresh
    }

    /// The controller found no problem: retry with increasing pauses.
    fn pause(&mut self, now: Time) -> Step {
        let pause = self.backoff;
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        self.wait(now, pause)
    }

    fn wait(&mut self, now: Time, asked: Duration) -> Step {
        // The pauses differ, so that clients that were refused together do not retry together.
        let spread = asked.mul_f64((now.0 % 251) as f64 / 1000.0);
        let wait = (asked + spread).max(Duration::from_micros(50));
        if now + wait >= self.deadline {
            return self.give_up();
        }
        Step::Wait(wait)
    }

    fn give_up(&mut self) -> Step {
        let effect = match (self.mutation, self.uncertain) {
            (true, _) if self.private => "; nothing was appended",
            (true, Some(_)) => "; it may have taken effect",
            (true, None) => "; it has not taken effect",
            (false, _) => "",
        };
        let trouble = match self.last_trouble.as_str() {
            "" => String::new(),
            text => format!(" (last: {text})"),
        };
        if self.full && self.uncertain.is_none() {
            return Step::Done(Err(Error::new(Status::OutOfMemory, self.last_trouble.as_str())));
        }
        let text = format!("{} did not finish in time{effect}{trouble}", self.op.name());
        Step::Done(Err(Error::new(Status::DeadlineExceeded, text)))
    }

    fn unknown(&self, why: &str) -> Error {
        let text = format!("whether {} took effect is unknown: {why}", self.op.name());
        Error::new(Status::OutcomeUnknown, text)
    }

    fn explain(&self, mut reason: Error) -> Error {
        if self.uncertain.is_some() && self.mutation && !self.private {
            reason.message.push_str("; the last operation may have taken effect before that");
        }
        reason
    }
}

#[cfg(test)]
mod tests;
