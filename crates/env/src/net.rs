//! The event loop: one thread, many connections, one service.
//!
//! A loop reads frames, hands complete ones to its `Service`, and sends what the service queued,
//! one write per connection and round. It knows the framing and the limits; it does not know what
//! an operation means. Controller, memory-server shards and the link between them all run on it.

use crate::budget::{Budget, Permit};
use crate::clock::Clock;
use crate::conn::{Conn, Mode, ReplyPayload};
use honeycomb_types::Time;
use honeycomb_types::limits::{
    CONNECTION_BACKLOG_MAX, CONNECTION_STALL, CONNECTIONS_MAX, FILL_STALL, MESSAGE_MAX,
    RING_CAPACITY,
};
use honeycomb_wire::{Header, Refusal, ReplyHeader, RequestHeader, Status};
use mio::event::Source;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// Payloads of up to this size are awaited whole; larger ones are filled in place.
const WHOLE_PAYLOAD_MAX: usize = 64 * 1024;
/// The buffer that all connections of a loop read into.
const SCRATCH: usize = 256 * 1024;
/// Unfinished frames of up to this size are kept even when the budget is used up.
const SMALL_FRAME: usize = 16 * 1024;
/// Bytes that one connection may have read before the others get their turn.
const TURN: usize = 4 << 20;
/// A connection that has not finished its handshake after this is closed.
const GREETING: Duration = Duration::from_secs(5);
/// How often the deadlines of connections are looked at.
const SWEEP: Duration = Duration::from_millis(500);

/// Requests of one connection that may be with other loops at a time.
const FORWARDED_MAX: usize = 16;

const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);

/// Names a connection of one loop. Never reused while the loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(u64);

impl ConnId {
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

/// What a service says to a large write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Bring the payload through `fill`.
    Fill,
    /// It was refused and answered; throw the payload away.
    Skip,
}

/// What runs on a loop. Every method is called by the loop's own thread and must not block.
pub trait Service {
    /// What other threads may tell this loop.
    type Note: Send + 'static;

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

    /// A request whose payload is large and still arriving.
    fn begin_fill(
        &mut self,
        net: &mut Net,
        now: Time,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
    ) -> Begin {
        let _ = (now, args);
        net.refuse(from, header.request, Status::NotServedHere, "no large payloads here");
        Begin::Skip
    }

    /// Where the next bytes of the payload go. `None` when its place is gone.
    fn fill(&mut self, from: ConnId) -> Option<&mut [u8]> {
        let _ = from;
        None
    }

    /// So many bytes were put there.
    fn filled(&mut self, now: Time, from: ConnId, n: usize) {
        let _ = (now, from, n);
    }

    /// The payload is complete (or its place is gone and the rest was thrown away).
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

    /// A connection leaves for another loop, as `Net::hand_over` asked.
    fn on_detached(&mut self, from: ConnId, target: u8, conn: Detached) {
        let _ = (from, target, conn);
    }

    /// Another thread said something.
    fn on_note(&mut self, net: &mut Net, now: Time, note: Self::Note);

    /// Called at least when the time that it returned last has come, and after every round.
    fn on_tick(&mut self, net: &mut Net, now: Time) -> Option<Time>;

    /// Whether the loop shall end.
    fn finished(&self) -> bool {
        false
    }
}

/// Where other threads put notes for a loop. Bounded: `post` says when it is full.
pub struct Mailbox<N> {
    send: SyncSender<N>,
    waker: Arc<Waker>,
}

impl<N> Clone for Mailbox<N> {
    fn clone(&self) -> Self {
        Mailbox { send: self.send.clone(), waker: self.waker.clone() }
    }
}

/// Why a note was not left.
#[derive(Debug)]
pub enum NotPosted<N> {
    /// The ring is full for now; here is the note again.
    Full(N),
    /// The loop has ended.
    Ended,
}

impl<N> Mailbox<N> {
    /// Leaves a note and wakes the loop.
    pub fn post(&self, note: N) -> Result<(), NotPosted<N>> {
        match self.send.try_send(note) {
            Ok(()) => {
                // A wake-up that fails leaves the note for the next round of the loop.
                let _ = self.waker.wake();
                Ok(())
            }
            Err(TrySendError::Full(note)) => Err(NotPosted::Full(note)),
            Err(TrySendError::Disconnected(_)) => Err(NotPosted::Ended),
        }
    }
}

/// A connection between two loops.
pub struct Detached {
    stream: TcpStream,
    kept: Vec<u8>,
    greeted: bool,
    opened: Time,
}

/// How a loop behaves.
#[derive(Clone, Copy, Debug)]
pub struct NetOptions {
    /// How long to poll before sleeping when requests come in quick succession. Zero never does.
    pub spin: Duration,
    /// Bytes of requests and replies that the loop may hold.
    pub budget: usize,
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
    dirty: Vec<ConnId>,
    /// Connections that may have more to read without a new event.
    ready: VecDeque<ConnId>,
    closed: Vec<ConnId>,
    budget: Arc<Budget>,
    options: NetOptions,
    waker: Arc<Waker>,
}

impl Net {
    /// A loop's connections, none yet.
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
            dirty: Vec::new(),
            ready: VecDeque::new(),
            closed: Vec::new(),
            budget: Budget::new(options.budget),
            options,
            waker,
        })
    }

    /// The ring by which other threads reach this loop, and its inner end.
    pub fn mailbox<N>(&self) -> (Mailbox<N>, Receiver<N>) {
        let (send, receive) = sync_channel(RING_CAPACITY);
        (Mailbox { send, waker: self.waker.clone() }, receive)
    }

    /// Takes connections from this listener.
    pub fn listen(&mut self, listener: std::net::TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        self.poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Opens a connection to another node. Blocks for at most `timeout`.
    pub fn connect(&mut self, address: SocketAddr, timeout: Duration) -> io::Result<ConnId> {
        let stream = std::net::TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nonblocking(true)?;
        let conn = Conn::new(TcpStream::from_std(stream), self.clock.now(), &self.budget);
        let id = self.insert(conn)?;
        let conn = self.conn(id).expect("just inserted");
        conn.greeted = true;
        conn.link = true;
        Ok(id)
    }

    /// Takes a connection that another loop gave away.
    pub fn attach(&mut self, from: Detached) -> io::Result<ConnId> {
        let mut conn = Conn::new(from.stream, self.clock.now(), &self.budget);
        conn.keep(&from.kept);
        conn.greeted = from.greeted;
        conn.opened = from.opened;
        let id = self.insert(conn)?;
        self.ready.push_back(id);
        Ok(id)
    }

    /// Open connections.
    pub fn open_connections(&self) -> usize {
        self.open
    }

    /// A loan from the loop's budget, for what a service holds of a request.
    pub fn permit(&self, bytes: usize) -> Permit {
        let mut permit = self.budget.permit();
        permit.resize(bytes);
        permit
    }

    /// Whether admission is closed for now.
    pub fn exhausted(&self) -> bool {
        self.budget.exhausted()
    }

    /// The handshake of this connection has succeeded.
    pub fn greet(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            conn.greeted = true;
        }
    }

    /// Whether the handshake of this connection has succeeded.
    pub fn greeted(&mut self, id: ConnId) -> bool {
        self.conn(id).is_some_and(|c| c.greeted)
    }

    /// This node will send requests on the connection: replies are taken from now on.
    pub fn link(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            conn.link = true;
        }
    }

    /// A request of this connection went to another loop: its reply, of a size not known yet, will
    /// come through `returned`. Few of them may be under way, so that a peer that does not read is
    /// not owed more than `CONNECTION_BACKLOG_MAX` by much.
    pub fn forwarded(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            conn.forwarded += 1;
        }
    }

    /// One of them has come back; its reply follows.
    pub fn returned(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            conn.forwarded -= 1;
        }
    }

    /// Gives a connection to another loop once the current frame is handled.
    pub fn hand_over(&mut self, id: ConnId, target: u8) {
        if let Some(conn) = self.conn(id) {
            conn.hand_over = Some(target);
        }
    }

    /// Closes a connection as soon as everything queued is sent.
    pub fn close(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            conn.closing = true;
            self.mark(id);
        }
    }

    /// Queues a reply. The lengths in `header` are set here. A connection that is gone is no error.
    pub fn reply(
        &mut self,
        to: ConnId,
        mut header: ReplyHeader,
        args: &[u8],
        payload: ReplyPayload<'_>,
    ) {
        header.args_len = args.len() as u32;
        header.payload_len = payload.len() as u32;
        if let Some(conn) = self.conn(to) {
            conn.send(&header.encode(), args, payload);
            self.mark(to);
        }
    }

    /// Queues a refusal with its message.
    pub fn refuse(&mut self, to: ConnId, request: u64, status: Status, message: &str) {
        let cut = message.floor_char_boundary(MESSAGE_MAX);
        let header = ReplyHeader::new(status, request, 0);
        self.reply(to, header, &message.as_bytes()[..cut], ReplyPayload::Copy(&[]));
    }

    /// Queues a request of this node's own. The length in `header` is set here.
    pub fn request(&mut self, to: ConnId, mut header: RequestHeader, args: &[u8]) {
        header.args_len = args.len() as u32;
        if let Some(conn) = self.conn(to) {
            conn.send(&header.encode(), args, ReplyPayload::Copy(&[]));
            self.mark(to);
        }
    }

    fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        if *self.generations.get(id.index())? != id.generation() {
            return None;
        }
        self.conns[id.index()].as_mut()
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
        // Replies are small and awaited; waiting to fill a segment would cost a delayed ack.
        conn.stream.set_nodelay(true)?;
        let index = self.free.pop().unwrap_or_else(|| {
            self.conns.push(None);
            self.generations.push(0);
            self.conns.len() - 1
        });
        let id = ConnId::new(index, self.generations[index]);
        let interest = Interest::READABLE | Interest::WRITABLE;
        conn.stream.register(self.poll.registry(), Token(id.0 as usize), interest)?;
        self.conns[index] = Some(conn);
        self.open += 1;
        Ok(id)
    }

    fn remove(&mut self, id: ConnId) -> Option<Conn> {
        self.conn(id)?;
        let mut conn = self.conns[id.index()].take().expect("looked up just now");
        // Closing the descriptor removes it as well; this matters when it moves to another loop.
        let _ = conn.stream.deregister(self.poll.registry());
        self.generations[id.index()] = self.generations[id.index()].wrapping_add(1);
        self.free.push(id.index());
        self.open -= 1;
        Some(conn)
    }

    fn drop_conn(&mut self, id: ConnId) {
        if self.remove(id).is_some() {
            self.closed.push(id);
        }
    }

    fn accept_all(&mut self) {
        while let Some(listener) = &self.listener {
            let Ok((stream, _)) = listener.accept() else { break };
            let mut conn = Conn::new(stream, self.clock.now(), &self.budget);
            if self.open >= CONNECTIONS_MAX {
                let header = ReplyHeader::new(Status::LimitExceeded, 0, 0);
                let message = b"the server has as many connections as it takes (10,000)";
                let header = ReplyHeader { args_len: message.len() as u32, ..header };
                conn.send(&header.encode(), message, ReplyPayload::Copy(&[]));
                let _ = conn.flush(self.clock.now());
                continue;
            }
            let _ = self.insert(conn);
        }
    }

    /// Sends what is queued, closes what is to be closed, and lets paused connections go on.
    fn flush_dirty(&mut self) {
        let now = self.clock.now();
        for id in std::mem::take(&mut self.dirty) {
            self.flush_one(id, now);
        }
    }

    fn flush_one(&mut self, id: ConnId, now: Time) {
        let Some(conn) = self.conn(id) else { return };
        conn.dirty = false;
        let done = conn.flush(now);
        let (closing, paused) = (conn.closing, conn.paused);
        let room = conn.forwarded < FORWARDED_MAX;
        let resume = paused && room && conn.backlog() < CONNECTION_BACKLOG_MAX / 2;
        if resume {
            conn.paused = false;
            self.ready.push_back(id);
        }
        match done {
            Ok(true) if closing => self.drop_conn(id),
            Ok(_) => {}
            Err(_) => self.drop_conn(id),
        }
    }

    fn sweep(&mut self, now: Time) {
        for index in 0..self.conns.len() {
            let Some(conn) = &self.conns[index] else { continue };
            // Others may wait behind a large write that stands still; it gets less patience.
            let patience = match conn.mode {
                Mode::Fill { .. } => FILL_STALL,
                _ => CONNECTION_STALL,
            };
            let slow = conn.in_debt() && now.since(conn.progress) > patience;
            let silent = !conn.greeted && now.since(conn.opened) > GREETING;
            if slow || silent {
                self.drop_conn(ConnId::new(index, self.generations[index]));
            }
        }
    }
}

/// Runs a loop until its service has finished.
pub fn run<S: Service>(mut net: Net, mut service: S, notes: Receiver<S::Note>) -> io::Result<()> {
    let mut round = Round { scratch: vec![0; SCRATCH], spin: Spin::default() };
    let mut events = Events::with_capacity(1024);
    let mut next_sweep = net.clock.now() + SWEEP;
    // Before the first wait: a service may have something to begin with.
    let mut deadline = {
        let now = net.clock.now();
        service.on_tick(&mut net, now)
    };
    while !service.finished() {
        round.wait(&mut net, &mut events, deadline, next_sweep)?;
        let now = net.clock.now();
        for event in &events {
            match event.token() {
                LISTENER => net.accept_all(),
                WAKER => {}
                Token(raw) => {
                    let id = ConnId(raw as u64);
                    if event.is_writable() && net.conn(id).is_some_and(|c| c.backlog() > 0) {
                        net.mark(id);
                    }
                    if event.is_read_closed()
                        && let Some(conn) = net.conn(id)
                    {
                        conn.hung_up = true;
                    }
                    if event.is_readable() || event.is_read_closed() || event.is_error() {
                        round.read(&mut net, &mut service, now, id);
                    }
                }
            }
        }
        for _ in 0..net.ready.len() {
            let id = net.ready.pop_front().expect("counted");
            round.read(&mut net, &mut service, now, id);
        }
        for note in notes.try_iter().take(RING_CAPACITY) {
            service.on_note(&mut net, now, note);
        }
        deadline = service.on_tick(&mut net, now);
        net.flush_dirty();
        if now >= next_sweep {
            net.sweep(now);
            // Connections that could not be taken (no descriptor was free) raise no new event.
            net.accept_all();
            next_sweep = now + SWEEP;
        }
        for id in std::mem::take(&mut net.closed) {
            service.on_close(&mut net, now, id);
        }
    }
    net.flush_dirty();
    Ok(())
}

struct Round {
    scratch: Vec<u8>,
    spin: Spin,
}

impl Round {
    /// Waits for something to do, polling briefly first when that has paid off lately.
    fn wait(
        &mut self,
        net: &mut Net,
        events: &mut Events,
        deadline: Option<Time>,
        next_sweep: Time,
    ) -> io::Result<()> {
        let at_once = !net.ready.is_empty() || !net.dirty.is_empty() || !net.closed.is_empty();
        if !at_once && net.options.spin > Duration::ZERO && self.spin.worth_it() {
            let until = net.clock.now() + net.options.spin;
            loop {
                poll_once(&mut net.poll, events, Duration::ZERO)?;
                if !events.is_empty() {
                    self.spin.hit();
                    return Ok(());
                }
                if net.clock.now() >= until {
                    break;
                }
                std::thread::yield_now();
            }
            self.spin.miss();
        }
        let wake = deadline.map_or(next_sweep, |d| d.min(next_sweep));
        let timeout = if at_once { Duration::ZERO } else { wake.since(net.clock.now()) };
        poll_once(&mut net.poll, events, timeout)
    }

    /// Reads what a connection has, up to its turn.
    fn read<S: Service>(&mut self, net: &mut Net, service: &mut S, now: Time, id: ConnId) {
        let mut taken = 0;
        loop {
            let Some(conn) = net.conn(id) else { return };
            if conn.paused || conn.closing {
                return;
            }
            let step = match conn.mode {
                Mode::Fill { left } => fill(net, service, now, id, left),
                Mode::Skip { left } => self.skip(net, service, now, id, left),
                Mode::Frames => self.frames(net, service, now, id),
            };
            match step {
                Step::Read(n) => taken += n,
                Step::Drained => return,
                Step::Ended => return net.drop_conn(id),
                Step::Gone => return,
            }
            if taken >= TURN {
                net.ready.push_back(id);
                return;
            }
        }
    }

    fn frames<S: Service>(
        &mut self,
        net: &mut Net,
        service: &mut S,
        now: Time,
        id: ConnId,
    ) -> Step {
        let conn = net.conn(id).expect("checked by the caller");
        let mut kept = conn.take_kept();
        // What was kept may hold whole frames: after a pause, or when handed over.
        if !kept.is_empty() {
            let used = consume(net, service, now, id, &kept);
            if used > 0 {
                kept.drain(..used);
                return settle(net, service, id, &kept).unwrap_or(Step::Read(used));
            }
        }
        let conn = net.conn(id).expect("nothing was consumed");
        let read = match conn.read(&mut self.scratch, now) {
            Ok(Some(0)) | Err(_) => return Step::Ended,
            Ok(None) => {
                conn.keep(&kept);
                return Step::Drained;
            }
            Ok(Some(n)) => n,
        };
        // A short read means that the socket is empty: no second call to learn it, unless the end
        // of the stream stands behind it, of which no further event tells.
        let drained = read < self.scratch.len() && !conn.hung_up;
        let rest = if kept.is_empty() {
            let used = consume(net, service, now, id, &self.scratch[..read]);
            settle(net, service, id, &self.scratch[used..read])
        } else {
            kept.extend_from_slice(&self.scratch[..read]);
            let used = consume(net, service, now, id, &kept);
            settle(net, service, id, &kept[used..])
        };
        match rest {
            Some(step) => step,
            None if drained && net.conn(id).is_some_and(|c| c.mode == Mode::Frames) => {
                Step::Drained
            }
            None => Step::Read(read),
        }
    }

    fn skip<S: Service>(
        &mut self,
        net: &mut Net,
        service: &mut S,
        now: Time,
        id: ConnId,
        left: usize,
    ) -> Step {
        let conn = net.conn(id).expect("checked by the caller");
        let want = left.min(self.scratch.len());
        match conn.read(&mut self.scratch[..want], now) {
            Ok(Some(0)) | Err(_) => Step::Ended,
            Ok(None) => Step::Drained,
            Ok(Some(n)) => {
                skipped(net, service, now, id, left - n);
                Step::Read(n)
            }
        }
    }
}

enum Step {
    /// So many bytes were taken; there may be more.
    Read(usize),
    /// Nothing more for now.
    Drained,
    /// The peer has closed or the connection failed.
    Ended,
    /// The connection is no longer here.
    Gone,
}

/// Keeps the rest of what was read, and carries out a hand-over.
fn settle<S: Service>(net: &mut Net, service: &mut S, id: ConnId, rest: &[u8]) -> Option<Step> {
    let exhausted = net.exhausted();
    let Some(conn) = net.conn(id) else { return Some(Step::Gone) };
    if exhausted && rest.len() > SMALL_FRAME {
        // Frames that are never finished must not take what others need.
        net.refuse(id, 0, Status::Busy, "the node's buffers are full");
        net.close(id);
        return Some(Step::Gone);
    }
    conn.keep(rest);
    let target = conn.hand_over?;
    let now = net.clock.now();
    net.flush_one(id, now);
    let mut conn = net.remove(id)?;
    let kept = conn.take_kept();
    let (greeted, opened) = (conn.greeted, conn.opened);
    service.on_detached(id, target, Detached { stream: conn.stream, kept, greeted, opened });
    Some(Step::Gone)
}

/// Handles the frames at the start of `data`; returns the bytes used.
fn consume<S: Service>(
    net: &mut Net,
    service: &mut S,
    now: Time,
    id: ConnId,
    data: &[u8],
) -> usize {
    let mut at = 0;
    while let Some(conn) = net.conn(id) {
        if conn.closing || conn.hand_over.is_some() {
            break;
        }
        if conn.backlog() > CONNECTION_BACKLOG_MAX || conn.forwarded >= FORWARDED_MAX {
            conn.paused = true;
            break;
        }
        match conn.mode {
            Mode::Frames => {}
            Mode::Skip { left } => {
                let n = left.min(data.len() - at);
                if n == 0 {
                    break;
                }
                at += n;
                skipped(net, service, now, id, left - n);
                continue;
            }
            Mode::Fill { left } => {
                let n = left.min(data.len() - at);
                if n == 0 {
                    break;
                }
                fill_from(net, service, now, id, left, &data[at..at + n]);
                at += n;
                continue;
            }
        }
        let used = match Header::decode(&data[at..], conn.greeted) {
            Ok(None) => break,
            Ok(Some((Header::Request(header), size))) => {
                request(net, service, now, id, &header, &data[at + size..]).map(|n| size + n)
            }
            Ok(Some((Header::Reply(_), _))) if !conn.link => {
                // Nobody asked: a stranger must not make this node buffer a body.
                net.refuse(id, 0, Status::BadFrame, "a reply where no request was sent");
                net.close(id);
                return data.len();
            }
            Ok(Some((Header::Reply(header), size))) => {
                reply(net, service, now, id, &header, &data[at + size..]).map(|n| size + n)
            }
            Err(refusal) => Some(refused(net, id, &refusal, &data[at..])),
        };
        let Some(used) = used else { break };
        at += used;
    }
    at
}

/// Handles a request of which the header is complete; returns the bytes of its body that were
/// used, or `None` when more are needed first.
fn request<S: Service>(
    net: &mut Net,
    service: &mut S,
    now: Time,
    id: ConnId,
    header: &RequestHeader,
    body: &[u8],
) -> Option<usize> {
    let (args_len, payload_len) = (header.args_len as usize, header.payload_len as usize);
    if payload_len > WHOLE_PAYLOAD_MAX && body.len() < header.body_len() {
        let args = body.get(..args_len)?;
        let begun = service.begin_fill(net, now, id, header, args);
        if let Some(conn) = net.conn(id) {
            conn.mode = match begun {
                Begin::Fill => Mode::Fill { left: payload_len },
                Begin::Skip => Mode::Skip { left: payload_len },
            };
        }
        return Some(args_len);
    }
    let body = body.get(..header.body_len())?;
    let (args, payload) = body.split_at(args_len);
    service.on_request(net, now, id, header, args, payload);
    Some(body.len())
}

fn reply<S: Service>(
    net: &mut Net,
    service: &mut S,
    now: Time,
    id: ConnId,
    header: &ReplyHeader,
    body: &[u8],
) -> Option<usize> {
    let body = body.get(..header.body_len())?;
    service.on_reply(net, now, id, header, &body[..header.args_len as usize]);
    Some(body.len())
}

/// Answers a header that was refused; the body is thrown away when its length can be believed.
fn refused(net: &mut Net, id: ConnId, refusal: &Refusal, data: &[u8]) -> usize {
    let number = |at: usize, n: usize| {
        let mut bytes = [0; 8];
        if let Some(found) = data.get(at..at + n) {
            bytes[..n].copy_from_slice(found);
        }
        u64::from_le_bytes(bytes)
    };
    net.refuse(id, number(16, 8), refusal.status, refusal.reason);
    let Some(conn) = net.conn(id) else { return data.len() };
    if !refusal.skip {
        conn.closing = true;
        return data.len();
    }
    let left = number(8, 4) as usize + number(12, 4) as usize;
    if left > 0 {
        conn.mode = Mode::Skip { left };
    }
    honeycomb_types::limits::REQUEST_HEADER
}

/// Reads from the socket straight to where the service wants the bytes.
fn fill<S: Service>(net: &mut Net, service: &mut S, now: Time, id: ConnId, left: usize) -> Step {
    let conn = net.conn(id).expect("checked by the caller");
    let Some(place) = service.fill(id) else {
        conn.mode = Mode::Skip { left };
        return Step::Read(0);
    };
    assert_eq!(place.len(), left, "the place of a payload has room for what is left of it");
    match conn.read(place, now) {
        Ok(Some(0)) | Err(_) => Step::Ended,
        Ok(None) => Step::Drained,
        Ok(Some(n)) => {
            service.filled(now, id, n);
            fill_progress(net, service, now, id, left - n);
            Step::Read(n)
        }
    }
}

fn fill_from<S: Service>(
    net: &mut Net,
    service: &mut S,
    now: Time,
    id: ConnId,
    left: usize,
    bytes: &[u8],
) {
    match service.fill(id) {
        Some(place) => {
            place[..bytes.len()].copy_from_slice(bytes);
            service.filled(now, id, bytes.len());
            fill_progress(net, service, now, id, left - bytes.len());
        }
        None => skipped(net, service, now, id, left - bytes.len()),
    }
}

fn fill_progress<S: Service>(net: &mut Net, service: &mut S, now: Time, id: ConnId, left: usize) {
    if let Some(conn) = net.conn(id) {
        conn.mode = if left == 0 { Mode::Frames } else { Mode::Fill { left } };
    }
    if left == 0 {
        service.end_fill(net, now, id);
    }
}

fn skipped<S: Service>(net: &mut Net, service: &mut S, now: Time, id: ConnId, left: usize) {
    if let Some(conn) = net.conn(id) {
        conn.mode = if left == 0 { Mode::Frames } else { Mode::Skip { left } };
    }
    if left == 0 {
        service.end_fill(net, now, id);
    }
}

fn poll_once(poll: &mut Poll, events: &mut Events, timeout: Duration) -> io::Result<()> {
    match poll.poll(events, Some(timeout)) {
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
        other => other,
    }
}

/// Whether polling before sleeping pays off: it costs a core for a moment and saves a wake-up.
#[derive(Default)]
struct Spin {
    score: u32,
    idle: u32,
}

impl Spin {
    /// Yes while it has lately found work; now and then anyway, to notice a change.
    fn worth_it(&mut self) -> bool {
        if self.score > 0 {
            return true;
        }
        self.idle += 1;
        self.idle.is_multiple_of(16)
    }

    fn hit(&mut self) {
        self.score = (self.score + 4).min(64);
    }

    fn miss(&mut self) {
        self.score = self.score.saturating_sub(1);
    }
}
