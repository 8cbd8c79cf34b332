//! One connection to one node: frames out, frames in, a deadline on every byte.

use crate::error::Error;
use crate::interrupt::{self, Woken};
use honeycomb_env::failpoint::{self, Point};
use honeycomb_env::{Clock, Poller, unix};
use honeycomb_types::limits::{PROTOCOL_MAJOR, PROTOCOL_MINOR, REPLY_HEADER};
use honeycomb_types::{PrefixId, SessionId, StructureId, Time};
use honeycomb_wire::messages::{HelloReply, HelloRequest, PresentGrantRequest};
use honeycomb_wire::{Field, Op, ReplyHeader, RequestHeader, Status};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Bytes read at a time while a reply's header and small parts are awaited.
const RECEIVE: usize = 64 * 1024;

/// Where the payload of a reply goes.
pub enum Sink<'a> {
    /// Into a vector, whatever its length.
    Vec(&'a mut Vec<u8>),
    /// Into a buffer that the caller owns; a longer payload is an error, and is read off.
    Slice(&'a mut [u8]),
    /// Into a buffer that somebody makes when the length is known.
    Room(&'a mut dyn Room),
    /// Nowhere: none is expected. A descriptor that comes with the reply goes here.
    Descriptor(&'a mut Option<OwnedFd>),
    /// Nowhere: none is expected.
    None,
}

impl Sink<'_> {
    /// The same place again, for another try.
    pub(crate) fn reborrow(&mut self) -> Sink<'_> {
        match self {
            Sink::Vec(out) => Sink::Vec(out),
            Sink::Slice(out) => Sink::Slice(out),
            Sink::Room(room) => Sink::Room(&mut **room),
            Sink::Descriptor(place) => Sink::Descriptor(place),
            Sink::None => Sink::None,
        }
    }
}

/// Makes the buffer for a payload when its length is known: for languages whose objects cannot be
/// resized afterwards.
pub trait Room {
    /// A buffer of exactly this many bytes. Called at most once for each reply, the last one
    /// counts.
    fn room(&mut self, length: usize) -> &mut [u8];
}

/// How long a wait goes on without a byte before somebody asks whether the peer is still there, and
/// how long that question may take.
pub(crate) const PATIENCE: Duration = Duration::from_millis(400);

/// How long one attempt to connect may take.
const CONNECT: Duration = Duration::from_secs(1);

/// How to wait for the peer.
pub(crate) struct Wait<'a> {
    /// When to give up.
    pub deadline: Time,
    /// Called each time that `PATIENCE` passed without a byte: a peer that is gone without a word
    /// is noticed long before the deadline. An error ends the wait.
    pub idle: &'a mut dyn FnMut() -> Result<(), Error>,
    /// Whether a signal to this thread, or its interrupt, ends the wait.
    pub interruptible: bool,
}

/// Who this side is, for the handshake.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub token: Vec<u8>,
    pub task_prefix: PrefixId,
}

/// Why an exchange did not bring a reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection failed; `sent` when the peer may have received the request.
    Lost { sent: bool, why: String },
    /// Nobody is at the address: no port there listens, or (not `known`) its name has no address.
    Nobody { known: bool, why: String },
    /// The deadline passed first; the connection cannot be used again.
    Late { sent: bool },
    /// The controller told, while the reply was awaited, why it will not come.
    Gone { sent: bool, reason: Error },
    /// A signal ended the wait for a reply.
    Interrupted,
    /// The peer refused the handshake or broke the protocol.
    Refused(Error),
}

/// A grant as presented on one connection.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Presented {
    version: u64,
    number: u32,
}

/// Where a node listens.
#[derive(Clone, Copy)]
pub(crate) enum Door<'a> {
    /// host:port.
    Tcp(&'a str),
    /// The path of a Unix socket.
    Unix(&'a str),
}

/// A connection after its handshake. One exchange at a time.
pub(crate) struct Transport {
    /// Of either family: the calls that read and write are the same.
    stream: TcpStream,
    clock: Clock,
    spin: Duration,
    poller: Poller,
    received: Vec<u8>,
    filled: usize,
    /// Nothing more was there when notices were last read.
    drained: bool,
    /// Notices that came while a reply was awaited.
    notices: VecDeque<(u64, Vec<u8>)>,
    next_request: u64,
    /// Number of the request whose reply is awaited.
    awaited: u64,
    grants: HashMap<StructureId, Presented>,
    /// Where the process is to die when the reply has come (`failpoint`).
    doomed: Option<(Point, Op)>,
    pub hello: HelloReply,
}

impl Transport {
    /// Connects and shakes hands.
    pub fn open(
        door: Door<'_>,
        shard: u8,
        identity: &Identity,
        session: SessionId,
        clock: Clock,
        spin: Duration,
        wait: &mut Wait<'_>,
    ) -> Result<Transport, Failure> {
        let left = wait.deadline.since(clock.now());
        if left.is_zero() {
            return Err(Failure::Late { sent: false });
        }
        let (stream, named) = match door {
            Door::Tcp(address) => (connect(address, left.min(CONNECT)), address),
            Door::Unix(path) => (unix::connect(path), path),
        };
        let stream = stream.map_err(|e| {
            let why = format!("cannot connect to {named}: {e}");
            match e.kind() {
                io::ErrorKind::ConnectionRefused => Failure::Nobody { known: true, why },
                io::ErrorKind::NotFound => Failure::Nobody { known: false, why },
                _ => Failure::Lost { sent: false, why },
            }
        })?;
        let mut transport = Transport {
            stream,
            clock,
            spin,
            poller: Poller::default(),
            received: vec![0; RECEIVE],
            filled: 0,
            drained: false,
            notices: VecDeque::new(),
            next_request: 0,
            awaited: 0,
            grants: HashMap::new(),
            doomed: None,
            hello: HelloReply::default(),
        };
        transport.greet(identity, shard, session, wait)?;
        Ok(transport)
    }

    fn greet(
        &mut self,
        identity: &Identity,
        shard: u8,
        session: SessionId,
        wait: &mut Wait<'_>,
    ) -> Result<(), Failure> {
        let hello = HelloRequest {
            major: PROTOCOL_MAJOR,
            minor: PROTOCOL_MINOR,
            features: 0,
            session: session.0,
            token: identity.token.clone(),
            task_prefix: identity.task_prefix.0,
            shard,
            window: 0,
        };
        let header = RequestHeader::new(Op::Hello);
        let mut args = Vec::new();
        let reply = self.exchange(header, &hello.encode(), &[], wait, &mut args, Sink::None)?;
        if reply.status != Status::Ok {
            return Err(Failure::Refused(Error::refused(reply.status, &args)));
        }
        self.hello = HelloReply::decode(&args).map_err(|e| Failure::Refused(e.into()))?;
        Ok(())
    }

    /// The number under which this connection knows a grant, presenting it first when needed.
    /// `version` tells one grant of a structure from the next.
    pub fn grant(
        &mut self,
        structure: StructureId,
        version: u64,
        grant: &[u8],
        wait: &mut Wait<'_>,
    ) -> Result<u32, Failure> {
        if let Some(presented) = self.grants.get(&structure)
            && presented.version == version
        {
            return Ok(presented.number);
        }
        let body = PresentGrantRequest { grant: grant.to_vec() }.encode();
        let mut args = Vec::new();
        let header = RequestHeader::new(Op::PresentGrant);
        let reply =
            self.exchange(header, &body, &[], wait, &mut args, Sink::None).map_err(|failure| {
                match failure {
                    // The request itself has not been sent: only its grant.
                    Failure::Lost { why, .. } => Failure::Lost { sent: false, why },
                    Failure::Late { .. } => Failure::Late { sent: false },
                    Failure::Nobody { known, why } => Failure::Nobody { known, why },
                    Failure::Gone { reason, .. } => Failure::Gone { sent: false, reason },
                    Failure::Interrupted => {
                        let why = "a signal came".to_owned();
                        Failure::Lost { sent: false, why }
                    }
                    refused => refused,
                }
            })?;
        if reply.status != Status::Ok {
            return Err(Failure::Refused(Error::refused(reply.status, &args)));
        }
        let number = reply.value as u32;
        self.grants.insert(structure, Presented { version, number });
        Ok(number)
    }

    /// Sends a request and awaits its reply. `args` receives the reply's arguments.
    pub fn exchange(
        &mut self,
        header: RequestHeader,
        args: &[u8],
        payload: &[&[u8]],
        wait: &mut Wait<'_>,
        reply_args: &mut Vec<u8>,
        sink: Sink<'_>,
    ) -> Result<ReplyHeader, Failure> {
        self.ask(header, args, payload, wait)?;
        self.answer(wait, reply_args, sink)
    }

    /// Sends a request, under a number of this connection unless it has its own. Its reply is to be
    /// taken by `answer` before the next one is sent.
    pub fn ask(
        &mut self,
        mut header: RequestHeader,
        args: &[u8],
        payload: &[&[u8]],
        wait: &mut Wait<'_>,
    ) -> Result<(), Failure> {
        if header.request == 0 {
            self.next_request += 1;
            header.request = self.next_request;
        }
        self.awaited = header.request;
        header.args_len = args.len() as u32;
        header.payload_len = payload.iter().map(|p| p.len()).sum::<usize>() as u32;
        let last = failpoint::reached(true, header.op);
        self.send(&header.encode(), args, payload, wait)?;
        match last {
            Some(Point::Sent) => failpoint::die(Point::Sent, header.op),
            Some(point) => self.doomed = Some((point, header.op)),
            None => {}
        }
        Ok(())
    }

    fn send(
        &mut self,
        header: &[u8],
        args: &[u8],
        payload: &[&[u8]],
        wait: &mut Wait<'_>,
    ) -> Result<(), Failure> {
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(2 + payload.len());
        pieces.push(header);
        pieces.push(args);
        pieces.extend(payload);
        let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|p| IoSlice::new(p)).collect();
        let mut rest = &mut slices[..];
        let mut sent = false;
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match self.stream.write_vectored(rest) {
                Ok(n) => {
                    sent |= n > 0;
                    IoSlice::advance_slices(&mut rest, n);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.await_ready(PollFlags::OUT, wait).map_err(|e| failed(e, sent))?;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(failed(e, sent)),
            }
        }
        Ok(())
    }

    /// Awaits the reply to what `ask` sent. The payload of one with the status `Extents` comes as its
    /// arguments.
    pub fn answer(
        &mut self,
        wait: &mut Wait<'_>,
        reply_args: &mut Vec<u8>,
        sink: Sink<'_>,
    ) -> Result<ReplyHeader, Failure> {
        let sink = match sink {
            Sink::Descriptor(place) => {
                *place = None;
                self.fill_header(place, wait).map_err(|e| failed(e, true))?;
                Sink::None
            }
            other => other,
        };
        let reply = self.receive_inner(wait, reply_args, sink).map_err(|e| failed(e, true))?;
        if let Some((point, op)) = self.doomed {
            failpoint::die(point, op);
        }
        Ok(reply)
    }

    fn receive_inner(
        &mut self,
        wait: &mut Wait<'_>,
        reply_args: &mut Vec<u8>,
        sink: Sink<'_>,
    ) -> io::Result<ReplyHeader> {
        let header = loop {
            if let Some(head) = self.received[..self.filled].first_chunk::<REPLY_HEADER>() {
                break ReplyHeader::decode(head)
                    .map_err(|r| io::Error::other(Error::new(Status::BadFrame, r.reason)))?;
            }
            self.fill_some(wait)?;
        };
        if header.status == Status::Notice {
            self.take(REPLY_HEADER);
            let mut args = vec![0; header.args_len as usize];
            self.read_into(&mut args, wait)?;
            self.notices.push_back((header.value, args));
            return self.receive_inner(wait, reply_args, sink);
        }
        if header.request != self.awaited && header.request != 0 {
            let text = "a reply to a request that was not made";
            return Err(io::Error::other(Error::new(Status::BadFrame, text)));
        }
        self.take(REPLY_HEADER);
        reply_args.resize(header.args_len as usize, 0);
        self.read_into(reply_args, wait)?;
        if header.status == Status::Extents {
            // Not the value, but where it is: that has no place in the sink.
            reply_args.resize(header.payload_len as usize, 0);
            self.read_into(reply_args, wait)?;
            return Ok(header);
        }
        self.read_payload(header.payload_len as usize, wait, sink)?;
        Ok(header)
    }

    /// The next notice that was pushed, if a whole one is there: its number and arguments. Does not
    /// wait.
    pub fn pushed(&mut self) -> io::Result<Option<(u64, Vec<u8>)>> {
        if let Some(notice) = self.notices.pop_front() {
            return Ok(Some(notice));
        }
        loop {
            if let Some(head) = self.received[..self.filled].first_chunk::<REPLY_HEADER>() {
                let header = ReplyHeader::decode(head)
                    .map_err(|r| io::Error::other(Error::new(Status::BadFrame, r.reason)))?;
                let whole = REPLY_HEADER + header.args_len as usize;
                if header.status != Status::Notice || whole > RECEIVE {
                    let text = "something else than a notice came unasked";
                    return Err(io::Error::other(Error::new(Status::BadFrame, text)));
                }
                if self.filled >= whole {
                    let args = self.received[REPLY_HEADER..whole].to_vec();
                    self.take(whole);
                    return Ok(Some((header.value, args)));
                }
            }
            // A short read means that the socket was empty: no second one to learn that.
            if std::mem::take(&mut self.drained) {
                return Ok(None);
            }
            let room = self.received.len() - self.filled;
            match self.stream.read(&mut self.received[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    self.filled += n;
                    self.drained = n < room;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn read_payload(
        &mut self,
        length: usize,
        wait: &mut Wait<'_>,
        sink: Sink<'_>,
    ) -> io::Result<()> {
        match sink {
            Sink::Vec(out) => {
                out.clear();
                out.reserve_exact(length);
                let buffered = length.min(self.filled);
                out.extend_from_slice(&self.received[..buffered]);
                self.take(buffered);
                self.read_to_vec(out, length, wait)
            }
            Sink::Slice(out) if length <= out.len() => self.read_into(&mut out[..length], wait),
            Sink::Room(_) if length == 0 => Ok(()),
            Sink::Room(room) => self.read_into(room.room(length), wait),
            Sink::Slice(_) | Sink::Descriptor(_) | Sink::None => {
                let mut left = length;
                let mut bin = vec![0; left.min(RECEIVE)];
                while left > 0 {
                    let n = left.min(RECEIVE);
                    self.read_into(&mut bin[..n], wait)?;
                    left -= n;
                }
                if length == 0 {
                    return Ok(());
                }
                let text = format!("the value has {length} bytes, more than the buffer");
                Err(io::Error::other(Error::new(Status::InvalidArgument, text)))
            }
        }
    }

    /// Reads the rest of `length` bytes into spare capacity, which is not zeroed first.
    fn read_to_vec(
        &mut self,
        out: &mut Vec<u8>,
        length: usize,
        wait: &mut Wait<'_>,
    ) -> io::Result<()> {
        while out.len() < length {
            let left = (length - out.len()) as u64;
            match (&self.stream).take(left).read_to_end(out) {
                Ok(_) if out.len() == length => {}
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.await_ready(PollFlags::IN, wait)?;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn read_into(&mut self, out: &mut [u8], wait: &mut Wait<'_>) -> io::Result<()> {
        let buffered = out.len().min(self.filled);
        out[..buffered].copy_from_slice(&self.received[..buffered]);
        self.take(buffered);
        let mut at = buffered;
        while at < out.len() {
            match self.stream.read(&mut out[at..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => at += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.await_ready(PollFlags::IN, wait)?;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Reads whatever is there, at least a byte, behind what is buffered.
    fn fill_some(&mut self, wait: &mut Wait<'_>) -> io::Result<()> {
        loop {
            match self.stream.read(&mut self.received[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    self.filled += n;
                    return Ok(());
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.await_ready(PollFlags::IN, wait)?;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Reads until a reply's header is there, and keeps the descriptor that comes with it.
    fn fill_header(&mut self, place: &mut Option<OwnedFd>, wait: &mut Wait<'_>) -> io::Result<()> {
        while self.filled < REPLY_HEADER {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut with = RecvAncillaryBuffer::new(&mut space);
            let mut into = [IoSliceMut::new(&mut self.received[self.filled..])];
            match recvmsg(&self.stream, &mut into, &mut with, RecvFlags::CMSG_CLOEXEC) {
                Ok(got) if got.bytes == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => self.filled += got.bytes,
                Err(Errno::AGAIN) => self.await_ready(PollFlags::IN, wait)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            for message in with.drain() {
                if let RecvAncillaryMessage::ScmRights(files) = message {
                    *place = files.last().or(place.take());
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, n: usize) {
        self.received.copy_within(n..self.filled, 0);
        self.filled -= n;
    }

    /// Waits until the socket is ready: polls for a moment, because an answer is usually near and
    /// a wake-up costs more than the work it waits for, then sleeps.
    fn await_ready(&mut self, flags: PollFlags, wait: &mut Wait<'_>) -> io::Result<()> {
        let began = self.clock.now();
        let mut ask_at = began + PATIENCE;
        let mut polling = !self.spin.is_zero() && self.poller.worth_it(began);
        let interrupt = wait.interruptible.then(interrupt::adopted).flatten();
        loop {
            let now = self.clock.now();
            if now >= wait.deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if now >= ask_at {
                (wait.idle)().map_err(io::Error::other)?;
                ask_at = self.clock.now() + PATIENCE;
            }
            if polling && now.since(began) >= self.spin {
                self.poller.miss();
                polling = false;
            }
            let left = match polling {
                true => Duration::ZERO,
                false => wait.deadline.min(ask_at).since(now),
            };
            let socket = PollFd::new(&self.stream, flags);
            match interrupt::poll_one(socket, left, interrupt.as_ref())? {
                Woken::Late if polling => {
                    let clock = self.clock;
                    polling = self.poller.yielded(now, || clock.now());
                }
                Woken::Interrupted if wait.interruptible => {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                Woken::Late | Woken::Interrupted => {}
                Woken::Ready => {
                    if polling {
                        self.poller.hit();
                    }
                    return Ok(());
                }
            }
        }
    }
}

/// Waits until one of several connections that await a reply has something to read, and tells which
/// have; none when `until` comes first. Polls for a moment first, as for a single one.
pub(crate) fn await_any(waiting: &mut [&mut Transport], until: Time) -> io::Result<Vec<usize>> {
    await_some(waiting, until, false)
}

/// As `await_any`; when it is interruptible, a signal to this thread or its interrupt ends the wait
/// as an error.
pub(crate) fn await_some(
    waiting: &mut [&mut Transport],
    until: Time,
    interruptible: bool,
) -> io::Result<Vec<usize>> {
    let Some(first) = waiting.first_mut() else { return Ok(Vec::new()) };
    let (clock, spin) = (first.clock, first.spin);
    let mut poller = std::mem::take(&mut first.poller);
    let began = clock.now();
    let mut polling = !spin.is_zero() && poller.worth_it(began);
    let interrupt = interruptible.then(interrupt::adopted).flatten();
    let mut fds: Vec<PollFd<'_>> =
        waiting.iter().map(|t| PollFd::new(&t.stream, PollFlags::IN)).collect();
    let sockets = fds.len();
    fds.extend(interrupt.as_ref().map(interrupt::Interrupt::pollable));
    let ready = loop {
        let now = clock.now();
        if polling && now.since(began) >= spin {
            poller.miss();
            polling = false;
        }
        let left = if polling { Duration::ZERO } else { until.since(now) };
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos() as i64 };
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Err(e @ rustix::io::Errno::INTR) if interruptible => break Err(e.into()),
            Ok(0) | Err(rustix::io::Errno::INTR) if clock.now() >= until => break Ok(Vec::new()),
            Ok(0) if polling => polling = poller.yielded(now, || clock.now()),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => {
                if polling {
                    poller.hit();
                }
                let ready =
                    |(at, fd): (usize, &PollFd<'_>)| (!fd.revents().is_empty()).then_some(at);
                let ready: Vec<usize> =
                    fds[..sockets].iter().enumerate().filter_map(ready).collect();
                if ready.is_empty() {
                    break Err(io::ErrorKind::Interrupted.into());
                }
                break Ok(ready);
            }
            Err(e) => break Err(e.into()),
        }
    };
    drop(fds);
    waiting[0].poller = poller;
    ready
}

fn failed(e: io::Error, sent: bool) -> Failure {
    if let Some(error) = e.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        return match error.status {
            Status::BadFrame | Status::InvalidArgument => Failure::Refused(error.clone()),
            _ => Failure::Gone { sent, reason: error.clone() },
        };
    }
    match e.kind() {
        io::ErrorKind::TimedOut => return Failure::Late { sent },
        io::ErrorKind::Interrupted => return Failure::Interrupted,
        _ => {}
    }
    let why = match e.kind() {
        io::ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
        _ => e.to_string(),
    };
    Failure::Lost { sent, why }
}

/// Connects to the first address of a name that takes it; `NotFound` when the name has none.
fn connect(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let unknown = |why: String| io::Error::new(io::ErrorKind::NotFound, why);
    let mut last = unknown("the name has no address".into());
    let candidates =
        address.to_socket_addrs().map_err(|e| unknown(format!("the name is not known: {e}")))?;
    for candidate in candidates {
        match TcpStream::connect_timeout(&candidate, timeout) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                return Ok(stream);
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}
