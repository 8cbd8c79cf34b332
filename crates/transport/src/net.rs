//! The event loop: one thread, many connections, one service.
//!
//! A loop reads frames, passes complete ones to its `Service`, and sends the replies that the
//! service queued, with one write per connection and round. It knows the framing and the limits,
//! but not the meaning of operations. Controller, memory-server shards and the link between them
//! all run on it.

mod accepting;
mod by_conn;
mod round;
mod sending;
mod sharing;

pub use by_conn::ByConn;
pub use round::run;

use crate::budget::{Budget, JobShare, Permit};
use crate::conn::{Conn, Mode, ReplyPayload, Requester, Spares, Unsent};
use crate::failpoint::{self, Point};
use crate::poller::Poller;
use crate::unix::UnixDoor;
use honeycomb_env::Clock;
use honeycomb_types::Time;
use honeycomb_types::limits::{
    CONNECTION_BACKLOG_MAX, CONNECTION_SHARE, CONNECTION_STALL, CONNECTIONS_MAX, CONTROL_ARGS_MAX,
    FILL_STALL, MESSAGE_MAX, REQUEST_HEADER, RING_CAPACITY,
};
use honeycomb_wire::{Header, Op, Refusal, ReplyHeader, RequestHeader, Status};
use mio::event::Source;
use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use sharing::{JobTurns, Resting};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// A payload of up to this size is received whole before it is handled; larger ones are filled in
/// place.
const WHOLE_PAYLOAD_MAX: usize = 64 * 1024;
/// The buffer into which all connections of a loop are read.
const SCRATCH: usize = 256 * 1024;
/// Bytes to read from a connection with large payloads, to find the destination of the next one.
const HEAD_ALONE: usize = 4 * 1024;
/// Bytes of a large payload that are read at a time. During a read, arriving bytes are not
/// acknowledged, and the sender stalls when its window is full: if one read took the whole payload,
/// the two sides would take turns instead of working concurrently.
const FILL_PIECE: usize = 128 * 1024;
/// Unfinished frames of up to this size are kept even if the job's share is used up.
const SMALL_FRAME: usize = 1024;
/// A larger rest of a reply waits for the next round when its job has used its turn of sending.
const LARGE_REST: usize = 64 * 1024;
/// Microseconds that a client waits if its job has used up its share of the buffers.
const BUSY_RETRY_US: u64 = 1000;
/// A connection without a finished handshake is closed after this time.
const GREETING: Duration = Duration::from_secs(5);
/// How often the deadlines of connections are checked.
const SWEEP: Duration = Duration::from_millis(500);

/// Maximum number of events of one poll.
const EVENTS: usize = 1024;

/// Requests of one connection that are prefetched before the first of them runs.
const AHEAD: usize = 16;

/// Bytes of a yielding connection that are read or sent at a time: a few microseconds of work.
const PIECE: usize = 16 * 1024;

const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);

/// Identifies a connection of one loop. Never reused while the loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(u64);

impl ConnId {
    /// An id that no connection has, for a request that arrived by another path. `Net` ignores all
    /// calls about it.
    pub fn stand_in(n: u32) -> ConnId {
        ConnId((n as u64) << 32 | u64::from(u32::MAX))
    }

    fn new(index: usize, generation: u32) -> ConnId {
        ConnId((generation as u64) << 32 | index as u64)
    }
    fn index(self) -> usize {
        self.0 as u32 as usize
    }
    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The service's answer to a large write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadAction {
    /// Pass the payload through `fill`.
    Fill,
    /// The write was refused and answered; discard the payload.
    Skip,
}

/// A service that runs on a loop. Every method is called by the loop's own thread and must not
/// block.
pub trait Service {
    /// Messages from other threads to this loop.
    type Note: Send + 'static;

    /// Bytes that a request is charged against its job's turn, in addition to its length: 4 KiB are
    /// about a microsecond.
    const WORK: usize = 2 * 1024;

    /// Whether some requests take so much longer than `WORK` that each is measured with the clock.
    const TIMED: bool = false;

    /// Some of the arguments of an incomplete request have arrived. A refusal abandons the request
    /// before its rest takes memory and turns. Called again as more arguments arrive, with the
    /// earlier ones included.
    fn part(
        &mut self,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
    ) -> Result<(), (Status, String)> {
        let _ = (from, header, args);
        Ok(())
    }

    /// A complete request of a batch will be handled soon, after the earlier ones: an opportunity
    /// to prefetch its memory. The result is passed to `prefetch_more` after the whole batch.
    /// Nothing may depend on it.
    fn prefetch(&self, header: &RequestHeader, args: &[u8]) -> Option<u64> {
        let _ = (header, args);
        None
    }

    /// Prefetches the memory to which the result of `prefetch` leads.
    fn prefetch_more(&self, header: &RequestHeader, hint: u64) {
        let _ = (header, hint);
    }

    /// A complete request.
    fn on_request(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
        payload: &[u8],
    );

    /// A request with a large payload that is still arriving.
    fn begin_fill(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
    ) -> PayloadAction {
        let _ = (now, args);
        net.refuse(
            from,
            header.request,
            Status::NotServedHere,
            "large payloads are not accepted here",
        );
        PayloadAction::Skip
    }

    /// The destination of the payload's next bytes; `None` if it no longer exists.
    fn fill(&mut self, from: ConnId) -> Option<&mut [u8]> {
        let _ = from;
        None
    }

    /// This many bytes were stored there.
    fn filled(&mut self, now: Time, from: ConnId, n: usize) {
        let _ = (now, from, n);
    }

    /// The payload is complete (or its destination is gone and the rest was discarded).
    fn end_fill(&mut self, net: &mut Net, now: Time, from: ConnId) {
        let _ = (net, now, from);
    }

    /// A reply to a request that this node sent.
    fn on_reply(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &ReplyHeader,
        args: &[u8],
    ) {
        let _ = (now, header, args);
        net.close(from);
    }

    /// A connection ended, from either side.
    fn on_close(&mut self, net: &mut Net, now: Time, conn: ConnId);

    /// A connection moves to another loop, as `Net::hand_over` requested.
    fn on_detached(&mut self, from: ConnId, target: u8, conn: Detached) {
        let _ = (from, target, conn);
    }

    /// A message from another thread.
    fn on_note(&mut self, net: &mut Net, now: Time, note: Self::Note);

    /// Called at the latest at the time that it returned last, and after every round.
    fn on_tick(&mut self, net: &mut Net, now: Time) -> Option<Time>;

    /// Does a few microseconds of background work; returns whether there was any. Called after all
    /// other work of a round, once, or again for as long as that work has taken, but at most 500 us. Then the
    /// loop polls for requests.
    fn step(&mut self, net: &mut Net, now: Time) -> bool {
        let _ = (net, now);
        false
    }

    /// Whether the loop must end.
    fn finished(&self) -> bool {
        false
    }
}

/// The mailbox of a loop for messages from other threads. Bounded: `post` reports when it is full.
pub struct Mailbox<N> {
    send: SyncSender<N>,
    waker: Arc<Waker>,
}

impl<N> Clone for Mailbox<N> {
    fn clone(&self) -> Self {
        Mailbox { send: self.send.clone(), waker: self.waker.clone() }
    }
}

/// Why a message was not posted.
#[derive(Debug)]
pub enum NotPosted<N> {
    /// The ring is full for now; the message is returned.
    Full(N),
    /// The loop has ended.
    Ended,
}

impl<N> Mailbox<N> {
    /// Posts a message and wakes the loop.
    pub fn post(&self, note: N) -> Result<(), NotPosted<N>> {
        match self.send.try_send(note) {
            Ok(()) => {
                // If the wake-up fails, the next round of the loop finds the message.
                let _ = self.waker.wake();
                Ok(())
            }
            Err(TrySendError::Full(note)) => Err(NotPosted::Full(note)),
            Err(TrySendError::Disconnected(_)) => Err(NotPosted::Ended),
        }
    }
}

/// A connection on its way between two loops.
pub struct Detached {
    stream: TcpStream,
    kept: Vec<u8>,
    greeted: bool,
    job: Option<u64>,
    opened: Time,
}

/// Options of a loop.
#[derive(Clone, Debug)]
pub struct NetOptions {
    /// How long to poll before sleeping when requests arrive in quick succession. Zero never polls.
    pub spin: Duration,
    /// Bytes of requests and replies that the loop may hold.
    pub budget: usize,
    /// Open connections of all loops of the node, which share one limit.
    pub connections: Arc<AtomicUsize>,
}

/// The connection with this id, unless it is gone.
fn look_up<'a>(
    conns: &'a mut [Option<Conn>],
    generations: &[u32],
    id: ConnId,
) -> Option<&'a mut Conn> {
    if *generations.get(id.index())? != id.generation() {
        return None;
    }
    conns[id.index()].as_mut()
}

/// The connections of one loop.
pub struct Net {
    poll: Poll,
    clock: Clock,
    conns: Vec<Option<Conn>>,
    generations: Vec<u32>,
    free: Vec<usize>,
    open: usize,
    listener: Option<TcpListener>,
    door: Option<UnixDoor>,
    dirty: Vec<ConnId>,
    /// Connections that may have more to read without a new event.
    ready: VecDeque<ConnId>,
    /// Yielding connections with bytes to read or to send.
    line: VecDeque<ConnId>,
    closed: Vec<ConnId>,
    spares: Spares,
    budget: Arc<Budget>,
    /// Shares of jobs that have connections; `None` is the cluster.
    shares: HashMap<Option<u64>, Arc<JobShare>>,
    /// The share of connections before their handshake.
    strangers: Arc<JobShare>,
    /// Number of rounds of the loop.
    rounds: u64,
    sharing: JobTurns,
    resting: Resting,
    /// Whether the current request may use memory.
    admitted: bool,
    /// Whether only a part of a connection's frames was handled, because its job's turn is over.
    cut: bool,
    /// Bytes that may wait for one connection before it is no longer read.
    backlog_max: usize,
    options: NetOptions,
    waker: Arc<Waker>,
    /// The start of this round.
    round: Time,
    /// Whether every socket was polled in this round, and its bytes were read.
    asked_all: bool,
    /// The total time of intended sleep, of a service with `TIMED`.
    slept: Duration,
    /// Consecutive polls with the maximum number of events: there may be more.
    full_polls: usize,
    /// Whether more requests follow the current one in the same batch.
    more: bool,
    /// The request, by connection and number, at whose reply the process must die.
    doomed: Option<(ConnId, u64, Point, Op)>,
}

impl Net {
    /// The connections of a loop, initially none.
    pub fn new(clock: Clock, options: NetOptions) -> io::Result<Net> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        Ok(Net {
            poll,
            clock,
            conns: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            open: 0,
            listener: None,
            door: None,
            dirty: Vec::new(),
            ready: VecDeque::new(),
            line: VecDeque::new(),
            closed: Vec::new(),
            spares: Spares::default(),
            budget: Budget::new(options.budget),
            shares: HashMap::new(),
            strangers: Arc::default(),
            rounds: 0,
            sharing: JobTurns::default(),
            resting: Resting::default(),
            admitted: true,
            cut: false,
            backlog_max: CONNECTION_BACKLOG_MAX.min(options.budget / CONNECTION_SHARE),
            options,
            waker,
            round: clock.now(),
            asked_all: false,
            slept: Duration::ZERO,
            full_polls: 0,
            more: false,
            doomed: None,
        })
    }

    /// A ring by which other threads reach this loop, and its inner end.
    pub fn mailbox<N>(&self) -> (Mailbox<N>, Receiver<N>) {
        let (send, receive) = sync_channel(RING_CAPACITY);
        (Mailbox { send, waker: self.waker.clone() }, receive)
    }

    /// Accepts connections from this listener.
    pub fn listen(&mut self, listener: std::net::TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        self.poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Also accepts connections from this socket.
    pub fn listen_near(&mut self, door: UnixDoor) -> io::Result<()> {
        let listener = door.listener().as_raw_fd();
        self.poll.registry().register(&mut SourceFd(&listener), LISTENER, Interest::READABLE)?;
        self.door = Some(door);
        Ok(())
    }

    /// The path of that socket, for clients on this machine; empty if there is none.
    pub fn near(&self) -> &str {
        self.door.as_ref().map_or("", UnixDoor::path)
    }

    /// Opens a connection to another node. Blocks for at most `timeout`.
    pub fn connect(&mut self, address: SocketAddr, timeout: Duration) -> io::Result<ConnId> {
        let stream = std::net::TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let stream = TcpStream::from_std(stream);
        let conn = Conn::new(stream, self.clock.now(), &self.budget, &self.strangers);
        let id = self.insert(conn)?;
        let conn = self.conn(id).expect("just inserted");
        conn.greeted = true;
        conn.requester = Requester::Both;
        Ok(id)
    }

    /// Opens a connection for requests of this node alone, without waiting: bytes are sent when it is
    /// established. If that fails, `Service::on_close` is called. A peer that sends a request is refused.
    pub fn dial(&mut self, address: SocketAddr) -> io::Result<ConnId> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut conn = Conn::new(stream, self.clock.now(), &self.budget, &self.strangers);
        conn.greeted = true;
        conn.requester = Requester::Here;
        conn.connecting = true;
        conn.awaits_room = true;
        self.insert(conn)
    }

    /// Adopts a connection from another loop.
    pub fn attach(&mut self, from: Detached) -> io::Result<ConnId> {
        let share = if from.greeted { self.share(from.job) } else { self.strangers.clone() };
        let mut conn = Conn::new(from.stream, self.clock.now(), &self.budget, &share);
        conn.keep(&from.kept);
        (conn.greeted, conn.job) = (from.greeted, from.job);
        conn.opened = from.opened;
        let id = self.insert(conn)?;
        self.ready.push_back(id);
        Ok(id)
    }

    /// Whether all bytes that had arrived at the start of the last round have been read, as far as
    /// their connections had a turn. False in rounds that read one busy connection only.
    pub fn asked_all(&self) -> bool {
        self.asked_all
    }

    /// The total intended sleep of a loop with `TIMED`, without sleeps that a stop interrupted.
    pub fn slept(&self) -> Duration {
        self.slept
    }

    /// A poll of all sockets returned this many events, which will be read in this round.
    fn polled(&mut self, events: usize) {
        // The kernel lists the longest waiting sockets first, so this many polls have listed them
        // all.
        self.full_polls = if events == EVENTS { self.full_polls + 1 } else { 0 };
        self.asked_all = self.full_polls == 0 || self.full_polls > CONNECTIONS_MAX / EVENTS;
        if self.asked_all {
            self.full_polls = 0;
        }
    }

    /// Open connections.
    pub fn open_connections(&self) -> usize {
        self.open
    }

    /// Bytes that wait to be sent on a connection; 0 if it is gone.
    pub fn backlog(&mut self, id: ConnId) -> usize {
        self.conn(id).map_or(0, |conn| conn.backlog())
    }

    /// An empty permit of the connection's job, for the bytes of a request that a service holds.
    pub fn permit(&mut self, of: ConnId) -> Permit {
        let share = self.conn(of).map(|conn| conn.share().clone());
        self.budget.permit(share.as_ref().unwrap_or(&self.strangers))
    }

    /// Bytes of requests and replies that the loop holds.
    pub fn held(&self) -> usize {
        self.budget.used()
    }

    /// Whether the current request must be refused, because its job or its connection has used up
    /// its share of the loop's memory.
    pub fn exhausted(&self) -> bool {
        !self.admitted
    }

    /// Charges the job of this connection for work beyond the size of its request; its next turns
    /// are shorter.
    pub fn worked(&mut self, of: ConnId, work: usize) {
        let Some(conn) = look_up(&mut self.conns, &self.generations, of) else { return };
        let share = conn.share();
        share.serve(self.rounds, self.sharing.turn(self.round, share), of.0, work);
        if work > 0 && !conn.is_link() {
            self.sharing.served(self.round, share);
        }
    }

    fn share(&mut self, job: Option<u64>) -> Arc<JobShare> {
        self.shares.entry(job).or_default().clone()
    }

    /// Records the successful handshake of this connection, for this job or with the cluster's
    /// token. Returns false if the job already has its share of all connections.
    pub fn greet(&mut self, id: ConnId, job: Option<u64>) -> bool {
        let share = self.share(job);
        if !self.takes_connection(&share) {
            return false;
        }
        if let Some(conn) = self.conn(id) {
            conn.greeted = true;
            conn.job = job;
            conn.share().connections.fetch_sub(1, Relaxed);
            share.connections.fetch_add(1, Relaxed);
            conn.belongs_to(&share);
        }
        true
    }

    /// Whether the share may have another connection. As for memory, any number of greedy jobs
    /// leave room for one more job.
    fn takes_connection(&self, share: &JobShare) -> bool {
        let open = self.options.connections.load(Relaxed);
        open + share.connections.load(Relaxed) / 2 < CONNECTIONS_MAX
    }

    /// Whether the handshake of this connection has succeeded.
    pub fn greeted(&mut self, id: ConnId) -> bool {
        self.conn(id).is_some_and(|c| c.greeted)
    }

    /// This node will send requests on the connection: replies are accepted from now on.
    pub fn link(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            conn.requester = Requester::Both;
        }
    }

    /// Records that a request of this connection went to another loop: its reply, of unknown size,
    /// will arrive through `returned`. Space for it is reserved: `most` bytes if the largest
    /// possible reply is known, else an estimate from earlier replies. A connection without free
    /// space is not read, because a peer that reads no replies must not hold its job's share.
    pub fn forwarded(&mut self, id: ConnId, request: u64, most: Option<usize>) {
        let room = self.backlog_max;
        if let Some(conn) = self.conn(id) {
            conn.elsewhere.forwarded(request, most, room);
        }
    }

    /// The other loop has answered a request; its reply of this many bytes follows.
    pub fn returned(&mut self, id: ConnId, request: u64, bytes: usize) {
        if let Some(conn) = self.conn(id) {
            // A larger one becomes a refusal (`reply`).
            conn.elsewhere.returned(request, bytes.min(CONTROL_ARGS_MAX));
            // If the socket takes a reply at once, no flush is listed that would resume the
            // connection.
            if conn.paused {
                self.mark(id);
            }
        }
    }

    /// Moves a connection to another loop after the current frame.
    pub fn hand_over(&mut self, id: ConnId, target: u8) {
        if let Some(conn) = self.conn(id) {
            conn.hand_over = Some(target);
        }
    }

    /// Makes this connection yield to all others: one piece of its bytes is read or sent after the
    /// others of a round have been answered, and the loop polls the others before each further
    /// piece. For long work that no client waits for.
    pub fn yields(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            conn.yields = true;
        }
    }

    /// Closes a connection after all queued bytes are sent.
    pub fn close(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            conn.closing = true;
            self.mark(id);
        }
    }

    fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        look_up(&mut self.conns, &self.generations, id)
    }

    fn mark(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id)
            && !conn.dirty
        {
            conn.dirty = true;
            self.dirty.push(id);
        }
    }

    fn insert(&mut self, mut conn: Conn) -> io::Result<ConnId> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.conns.push(None);
            self.generations.push(0);
            self.conns.len() - 1
        });
        let id = ConnId::new(index, self.generations[index]);
        conn.stream.register(self.poll.registry(), token(id), interest(conn.awaits_room))?;
        conn.share().connections.fetch_add(1, Relaxed);
        self.conns[index] = Some(conn);
        self.open += 1;
        self.options.connections.fetch_add(1, Relaxed);
        Ok(id)
    }

    fn remove(&mut self, id: ConnId) -> Option<Conn> {
        self.conn(id)?;
        let mut conn = self.conns[id.index()].take().expect("looked up just now");
        // Closing the descriptor also deregisters it; this matters for a connection that moves to
        // another loop.
        let _ = conn.stream.deregister(self.poll.registry());
        self.generations[id.index()] = self.generations[id.index()].wrapping_add(1);
        self.open -= 1;
        self.options.connections.fetch_sub(1, Relaxed);
        let share = conn.share();
        let last = share.connections.fetch_sub(1, Relaxed) == 1;
        if last && self.shares.get(&conn.job).is_some_and(|of| Arc::ptr_eq(of, share)) {
            self.shares.remove(&conn.job);
        }
        Some(conn)
    }

    /// The service has been notified that a connection is gone: another one may take its place
    /// (`ByConn`).
    fn release(&mut self, gone: ConnId) {
        self.free.push(gone.index());
    }

    fn drop_conn(&mut self, id: ConnId) {
        if self.remove(id).is_some() {
            self.closed.push(id);
        }
    }

    /// Sends queued bytes, closes the connections that are marked for it, and resumes paused ones.
    fn flush_dirty(&mut self, now: Time) {
        let mut dirty = std::mem::take(&mut self.dirty);
        if !dirty.is_empty() && self.sharing.is_shared(self.round) {
            // The time of notes and timers is charged to no job.
            self.sharing.measure(self.clock.now());
        }
        for id in dirty.drain(..) {
            let Some(conn) = look_up(&mut self.conns, &self.generations, id) else { continue };
            let large = conn.backlog() > LARGE_REST && !conn.is_link();
            let turn = self.sharing.turn(self.round, conn.share());
            let sent = || conn.share().sent(self.rounds, turn, id.0);
            if large && self.sharing.turn_is_over(self.round, conn.share(), sent()) {
                // The job has used its turn, and the connection stays listed.
                self.dirty.push(id);
                continue;
            }
            conn.dirty = false;
            if large && self.rests(id) {
                continue;
            }
            let work = self.begin_work(id);
            if large {
                self.sharing.moves_large();
            }
            if self.flush_some(id, now, turn, false) {
                self.mark(id);
            }
            self.end_work(work);
        }
        // The list's memory is reused; connections that were added meanwhile are for the next
        // round.
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
    }

    fn flush_one(&mut self, id: ConnId, now: Time) {
        self.flush_some(id, now, usize::MAX, true);
    }

    /// Sends some of a connection's queued bytes, but nothing for a yielding one before its turn.
    /// Returns whether it could send more at once.
    #[inline]
    fn flush_some(&mut self, id: ConnId, now: Time, most: usize, its_turn: bool) -> bool {
        let Some(conn) = look_up(&mut self.conns, &self.generations, id) else { return false };
        conn.dirty = false;
        if conn.yields && !its_turn {
            self.get_in_line(id);
            return false;
        }
        let before = conn.backlog();
        let left = conn.flush(now, &mut self.spares, most);
        if before > LARGE_REST {
            let turn = self.sharing.turn(self.round, conn.share());
            conn.share().send(self.rounds, turn, id.0, before - conn.backlog());
        }
        let short = matches!(left, Ok(Unsent::NoRoom));
        if short != conn.awaits_room {
            conn.awaits_room = short;
            let registry = self.poll.registry();
            if conn.stream.reregister(registry, token(id), interest(short)).is_err() {
                self.drop_conn(id);
                return false;
            }
        }
        let (closing, paused) = (conn.closing, conn.paused);
        let room = !conn.elsewhere.is_full() && conn.owed() < self.backlog_max / 2;
        let resume = paused && room && (conn.backlog() == 0 || conn.admits(false));
        if resume {
            conn.paused = false;
            conn.arriving.resumes(now);
            self.ready.push_back(id);
        }
        match left {
            Ok(Unsent::Nothing) if closing => self.drop_conn(id),
            Ok(left) => return left == Unsent::More,
            Err(_) => self.drop_conn(id),
        }
        false
    }

    /// Lists a yielding connection that has work to do.
    fn get_in_line(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id)
            && !conn.in_line
        {
            conn.in_line = true;
            self.line.push_back(id);
        }
    }

    fn sweep(&mut self, now: Time) {
        for index in 0..self.conns.len() {
            let Some(conn) = &self.conns[index] else { continue };
            // Other requests may wait behind a large write that stalls, so it gets less patience.
            let patience = match conn.mode {
                Mode::Fill { .. } => FILL_STALL,
                _ => CONNECTION_STALL,
            };
            let slow = conn.in_debt() && now.since(conn.progress) > patience
                || !conn.paused && conn.arriving.is_overdue(now);
            let silent = !conn.greeted && now.since(conn.opened) > GREETING;
            if slow || silent {
                self.drop_conn(ConnId::new(index, self.generations[index]));
            }
        }
    }
}

fn token(id: ConnId) -> Token {
    Token(id.0 as usize)
}

/// The events to poll for. Writable only while bytes wait: a Unix socket reports it each time that
/// its peer has read something.
fn interest(room: bool) -> Interest {
    if room { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE }
}
