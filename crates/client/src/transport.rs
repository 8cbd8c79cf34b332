//! One connection to one node: frames out, frames in, a deadline on every byte.

use crate::error::Error;
use crate::pool::NAMED_FOR_GOOD;
use crate::socket::{StreamSocket, Wait};
use honeycomb_env::Clock;
use honeycomb_transport::failpoint::{self, Point};
use honeycomb_types::limits::{PROTOCOL_MAJOR, PROTOCOL_MINOR, REPLY_HEADER};
use honeycomb_types::{PrefixId, SessionId, StructureId};
use honeycomb_wire::messages::{HelloReply, HelloRequest, PresentGrantRequest};
use honeycomb_wire::{Field, Op, ReplyHeader, RequestHeader, Status};
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Bytes read at a time while a reply's header and small parts are awaited.
const RECEIVE: usize = 64 * 1024;

/// Payloads of at least this size are read directly into their destination. After such a payload,
/// only this many bytes are read with the next header, because bytes after the header have to be
/// copied.
const LARGE: usize = 64 * 1024;
const HEAD: usize = 512;

/// Bytes of a payload that are read at a time: during a read nothing is acknowledged, and the
/// server stalls when its window is full.
const PIECE: usize = 256 * 1024;

/// Payload pieces that are sent with the header in one write.
const PAYLOADS: usize = 4;
/// Further pieces of one write: fewer than the kernel's limit.
const PIECES: usize = 512;

/// The destination of a reply's payload.
pub enum Sink<'a> {
    /// Into a vector, whatever its length.
    Vec(&'a mut Vec<u8>),
    /// Into a buffer that the caller owns; a longer payload is an error, and is read and dropped.
    Slice(&'a mut [u8]),
    /// Into a buffer that is made when the length is known.
    Room(&'a mut dyn Room),
    /// No destination, because no payload is expected. A descriptor that arrives with the reply is
    /// stored here.
    Descriptor(&'a mut Option<OwnedFd>),
    /// Nowhere: no payload is expected.
    None,
}

impl Sink<'_> {
    /// The same destination again, for another try.
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

/// Makes the buffer for a payload when its length is known, for languages whose objects cannot be
/// resized.
pub trait Room {
    /// A buffer of exactly this many bytes. Called at most once for each reply; the last one
    /// counts.
    fn room(&mut self, length: usize) -> &mut [u8];
}

/// How long one attempt to connect may take.
const CONNECT: Duration = Duration::from_secs(1);

/// The identity of this side in the handshake.
#[derive(Clone, Debug)]
pub(crate) struct ClientIdentity {
    pub token: Vec<u8>,
    pub task_prefix: PrefixId,
}

/// Why an exchange had no reply.
#[derive(Clone, Debug)]
pub(crate) enum ExchangeFailure {
    /// The connection failed; `sent` if the peer may have received the request.
    Lost { sent: bool, why: String },
    /// The address has no listener on its port, or (not `known`) the name has no address.
    Nobody { known: bool, why: String },
    /// The deadline passed first; the connection cannot be used again.
    Late { sent: bool },
    /// While the reply was awaited, the controller reported why none will arrive.
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

/// The address on which a node listens.
#[derive(Clone, Copy)]
pub(crate) enum ListenAddress<'a> {
    /// host:port.
    Tcp(&'a str),
    /// The path of a Unix socket.
    Unix(&'a str),
}

/// A connection after its handshake. One exchange at a time.
pub(crate) struct Transport {
    line: StreamSocket,
    /// Bytes that were read and not yet taken: `received[taken..filled]`.
    received: Vec<u8>,
    taken: usize,
    filled: usize,
    /// Whether the last payload was large.
    large: bool,
    /// Whether the socket was empty when notices were last read.
    drained: bool,
    /// Notices that arrived while a reply was awaited.
    notices: VecDeque<(u64, Vec<u8>)>,
    next_request: u64,
    /// Number of the request whose reply is awaited; 0 for none.
    awaited: u64,
    grants: HashMap<StructureId, Presented>,
    /// Queued requests, and how many of their bytes have been sent.
    queued: Vec<u8>,
    sent: usize,
    /// The point at which the process must die after the reply (`failpoint`).
    doomed: Option<(Point, Op)>,
    pub hello: HelloReply,
}

impl Transport {
    /// The underlying socket.
    pub fn line(&mut self) -> &mut StreamSocket {
        &mut self.line
    }

    /// Connects and performs the handshake.
    pub fn open(
        door: ListenAddress<'_>,
        shard: u8,
        identity: &ClientIdentity,
        session: SessionId,
        clock: Clock,
        spin: Duration,
        wait: &mut Wait<'_>,
    ) -> Result<Transport, ExchangeFailure> {
        let left = wait.deadline.since(clock.now());
        if left.is_zero() {
            return Err(ExchangeFailure::Late { sent: false });
        }
        let (line, named) = match door {
            ListenAddress::Tcp(address) => {
                (StreamSocket::connect(address, left.min(CONNECT), clock, spin), address)
            }
            ListenAddress::Unix(path) => (StreamSocket::near(path, clock, spin), path),
        };
        let line = line.map_err(|e| {
            let why = format!("cannot connect to {named}: {e}");
            match e.kind() {
                io::ErrorKind::ConnectionRefused => ExchangeFailure::Nobody { known: true, why },
                io::ErrorKind::NotFound => ExchangeFailure::Nobody { known: false, why },
                _ => ExchangeFailure::Lost { sent: false, why },
            }
        })?;
        let mut transport = Transport {
            line,
            received: vec![0; RECEIVE],
            taken: 0,
            filled: 0,
            large: false,
            drained: false,
            notices: VecDeque::new(),
            next_request: 0,
            awaited: 0,
            grants: HashMap::new(),
            queued: Vec::new(),
            sent: 0,
            doomed: None,
            hello: HelloReply::default(),
        };
        transport.greet(identity, shard, session, wait)?;
        Ok(transport)
    }

    fn greet(
        &mut self,
        identity: &ClientIdentity,
        shard: u8,
        session: SessionId,
        wait: &mut Wait<'_>,
    ) -> Result<(), ExchangeFailure> {
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
            return Err(ExchangeFailure::Refused(Error::refused(reply.status, &args)));
        }
        self.hello = HelloReply::decode(&args).map_err(|e| ExchangeFailure::Refused(e.into()))?;
        Ok(())
    }

    /// The number of a grant on this connection.
    pub fn presented(&self, structure: StructureId, version: u64) -> Option<u32> {
        let presented = self.grants.get(&structure).filter(|one| one.version == version);
        presented.map(|one| one.number)
    }

    /// The number of a grant on this connection; presents the grant first if necessary. `version`
    /// distinguishes successive grants of a structure.
    pub fn grant(
        &mut self,
        structure: StructureId,
        version: u64,
        grant: &[u8],
        wait: &mut Wait<'_>,
    ) -> Result<u32, ExchangeFailure> {
        if let Some(number) = self.presented(structure, version) {
            return Ok(number);
        }
        let body = PresentGrantRequest { grant: grant.to_vec() }.encode();
        let mut args = Vec::new();
        let header = RequestHeader::new(Op::PresentGrant);
        let reply =
            self.exchange(header, &body, &[], wait, &mut args, Sink::None).map_err(|failure| {
                match failure {
                    // Only the grant has been sent, not the request itself.
                    ExchangeFailure::Lost { why, .. } => ExchangeFailure::Lost { sent: false, why },
                    ExchangeFailure::Late { .. } => ExchangeFailure::Late { sent: false },
                    ExchangeFailure::Nobody { known, why } => {
                        ExchangeFailure::Nobody { known, why }
                    }
                    ExchangeFailure::Gone { reason, .. } => {
                        ExchangeFailure::Gone { sent: false, reason }
                    }
                    ExchangeFailure::Interrupted => {
                        let why = "a signal interrupted the wait".to_owned();
                        ExchangeFailure::Lost { sent: false, why }
                    }
                    refused => refused,
                }
            })?;
        if reply.status != Status::Ok {
            return Err(ExchangeFailure::Refused(Error::refused(reply.status, &args)));
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
    ) -> Result<ReplyHeader, ExchangeFailure> {
        self.ask(header, args, payload, wait)?;
        self.answer(wait, reply_args, sink)
    }

    /// Sends a request, under a number of this connection unless it has its own. `answer` must take
    /// its reply before the next request is sent.
    pub fn ask(
        &mut self,
        mut header: RequestHeader,
        args: &[u8],
        payload: &[&[u8]],
        wait: &mut Wait<'_>,
    ) -> Result<(), ExchangeFailure> {
        if header.request == 0 {
            self.next_request += 1;
            header.request = self.next_request;
        } else {
            let own = header.request;
            assert!(own >= NAMED_FOR_GOOD, "INV-16: {own} is a number that a connection gives");
        }
        let length = payload.iter().map(|piece| piece.len()).sum();
        header
            .set_lengths(args.len(), length)
            .map_err(|e| ExchangeFailure::Refused(Error::from(e)))?;
        assert!(
            self.is_idle(),
            "INV-16: {} is sent before earlier requests ended",
            header.op.name()
        );
        self.awaited = header.request;
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
    ) -> Result<(), ExchangeFailure> {
        let mut slices: [IoSlice<'_>; 2 + PAYLOADS] = [IoSlice::new(&[]); _];
        let (first, more) = payload.split_at(payload.len().min(PAYLOADS));
        for (slice, piece) in slices.iter_mut().zip([header, args].iter().chain(first)) {
            *slice = IoSlice::new(piece);
        }
        let mut sent = false;
        self.write_all(&mut slices[..2 + first.len()], &mut sent, wait)?;
        for some in more.chunks(PIECES) {
            let mut slices: Vec<IoSlice<'_>> = some.iter().map(|p| IoSlice::new(p)).collect();
            self.write_all(&mut slices, &mut sent, wait)?;
        }
        Ok(())
    }

    fn write_all(
        &mut self,
        mut rest: &mut [IoSlice<'_>],
        sent: &mut bool,
        wait: &mut Wait<'_>,
    ) -> Result<(), ExchangeFailure> {
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let n = self.line.write(rest, wait).map_err(|e| failed(e, *sent))?;
            *sent |= n > 0;
            IoSlice::advance_slices(&mut rest, n);
        }
        Ok(())
    }

    /// Awaits the reply to the request sent by `ask`. If its status is `Extents`, its payload is
    /// returned as its arguments.
    pub fn answer(
        &mut self,
        wait: &mut Wait<'_>,
        reply_args: &mut Vec<u8>,
        sink: Sink<'_>,
    ) -> Result<ReplyHeader, ExchangeFailure> {
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

    /// Queues a request after others, under a number of this connection, which it returns. `flush`
    /// sends it.
    pub fn queue(&mut self, mut header: RequestHeader, args: &[u8], payload: &[u8]) -> u64 {
        debug_assert_eq!(
            self.awaited,
            0,
            "INV-16: {} is queued before an earlier request ended",
            header.op.name()
        );
        self.next_request += 1;
        header.request = self.next_request;
        let lengths = header.set_lengths(args.len(), payload.len());
        lengths.expect("a request that shares a connection is small");
        if let Some(point) = failpoint::reached(true, header.op) {
            self.doomed = Some((point, header.op));
        }
        self.queued.extend_from_slice(&header.encode());
        self.queued.extend_from_slice(args);
        self.queued.extend_from_slice(payload);
        header.request
    }

    /// Whether everything that was queued has been sent, and no reply to `ask` is awaited.
    pub fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.sent == 0 && self.awaited == 0
    }

    /// Sends queued requests as far as the socket takes them now; the line awaits buffer space for
    /// the rest.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.queued.len() {
            match self.line.write_now(&self.queued[self.sent..]) {
                Ok(n) => {
                    self.sent += n;
                    let (sent, all) = (self.sent, self.queued.len());
                    assert!(sent <= all, "INV-31: {sent} of {all} queued bytes are sent");
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.line.sending = true;
                    return Ok(());
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        (self.line.sending, self.sent) = (false, 0);
        self.queued.clear();
        if let Some((point @ Point::Sent, op)) = self.doomed {
            failpoint::die(point, op);
        }
        Ok(())
    }

    /// The header of the next reply, if it has arrived; `body` takes the rest of it. Does not wait.
    pub fn next_reply(&mut self) -> io::Result<Option<ReplyHeader>> {
        debug_assert_eq!(self.awaited, 0, "INV-16: a reply is taken while another is awaited");
        loop {
            if let Some(header) = self.buffered_header()? {
                self.take(REPLY_HEADER);
                return Ok(Some(header));
            }
            if !self.fill_now()? {
                return Ok(None);
            }
        }
    }

    /// Reads the rest of a reply after its header.
    pub fn body(
        &mut self,
        header: &ReplyHeader,
        wait: &mut Wait<'_>,
        reply_args: &mut Vec<u8>,
        sink: Sink<'_>,
    ) -> Result<(), ExchangeFailure> {
        self.read_body(header, wait, reply_args, sink).map_err(|e| failed(e, true))?;
        if let Some((point, op)) = self.doomed {
            failpoint::die(point, op);
        }
        Ok(())
    }

    fn receive_inner(
        &mut self,
        wait: &mut Wait<'_>,
        reply_args: &mut Vec<u8>,
        sink: Sink<'_>,
    ) -> io::Result<ReplyHeader> {
        assert!(self.awaited > 0, "INV-16: a reply is awaited, and nothing was sent");
        let header = self.next_header(wait)?;
        if header.request != self.awaited && header.request != 0 {
            let text = "received a reply to a request that was not sent";
            return Err(io::Error::other(Error::new(Status::BadFrame, text)));
        }
        self.read_body(&header, wait, reply_args, sink)?;
        self.awaited = 0;
        Ok(header)
    }

    /// The header of the next reply; notices that arrive before it are kept.
    fn next_header(&mut self, wait: &mut Wait<'_>) -> io::Result<ReplyHeader> {
        loop {
            let header = loop {
                if let Some(header) = self.buffered_header()? {
                    break header;
                }
                self.fill_some(wait)?;
            };
            self.take(REPLY_HEADER);
            if header.status != Status::Notice {
                return Ok(header);
            }
            let mut args = vec![0; header.args_len as usize];
            self.read_into(&mut args, wait)?;
            self.notices.push_back((header.value, args));
        }
    }

    fn buffered_header(&self) -> io::Result<Option<ReplyHeader>> {
        let head = self.received[self.taken..self.filled].first_chunk::<REPLY_HEADER>();
        let header = head.map(ReplyHeader::decode).transpose();
        header.map_err(|r| io::Error::other(Error::new(Status::BadFrame, r.reason)))
    }

    /// Reads the rest of a frame after its header.
    fn read_body(
        &mut self,
        header: &ReplyHeader,
        wait: &mut Wait<'_>,
        reply_args: &mut Vec<u8>,
        sink: Sink<'_>,
    ) -> io::Result<()> {
        reply_args.resize(header.args_len as usize, 0);
        self.read_into(reply_args, wait)?;
        if header.status == Status::Extents {
            // The payload is not the value but its location, which does not belong in the buffer of
            // the caller.
            reply_args.resize(header.payload_len as usize, 0);
            return self.read_into(reply_args, wait);
        }
        self.large = header.payload_len as usize >= LARGE;
        self.read_payload(header.payload_len as usize, wait, sink)
    }

    /// The next pushed notice, if it has arrived completely: its number and arguments. Does not
    /// wait.
    pub fn pushed(&mut self) -> io::Result<Option<(u64, Vec<u8>)>> {
        assert_eq!(self.awaited, 0, "INV-24: notices are taken while a reply is awaited");
        if let Some(notice) = self.notices.pop_front() {
            return Ok(Some(notice));
        }
        loop {
            if let Some(header) = self.buffered_header()? {
                let whole = REPLY_HEADER + header.args_len as usize;
                if header.status != Status::Notice || whole > RECEIVE {
                    let text = "received an unrequested message that is not a notice";
                    return Err(io::Error::other(Error::new(Status::BadFrame, text)));
                }
                if self.filled - self.taken >= whole {
                    let frame = &self.received[self.taken..self.taken + whole];
                    let args = frame[REPLY_HEADER..].to_vec();
                    self.take(whole);
                    return Ok(Some((header.value, args)));
                }
            }
            if !self.fill_now()? {
                return Ok(None);
            }
        }
    }

    /// Reads available bytes into the buffer without waiting; returns false if there are none.
    fn fill_now(&mut self) -> io::Result<bool> {
        // A short read means that the socket was empty, so a second one is unnecessary.
        if std::mem::take(&mut self.drained) {
            return Ok(false);
        }
        self.make_room();
        let room = self.received.len() - self.filled;
        match self.line.read_now(&mut self.received[self.filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                self.filled += n;
                self.drained = n < room;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        Ok(true)
    }

    fn read_payload(
        &mut self,
        length: usize,
        wait: &mut Wait<'_>,
        sink: Sink<'_>,
    ) -> io::Result<()> {
        match sink {
            Sink::Vec(out) => {
                make_length(out, length);
                self.read_into(out, wait)
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

    fn read_into(&mut self, out: &mut [u8], wait: &mut Wait<'_>) -> io::Result<()> {
        let mut at = out.len().min(self.filled - self.taken);
        out[..at].copy_from_slice(&self.received[self.taken..self.taken + at]);
        self.take(at);
        while at < out.len() {
            let end = out.len().min(at + PIECE);
            at += self.line.read(&mut out[at..end], true, wait)?;
        }
        Ok(())
    }

    /// Reads at least one byte into the buffer.
    fn fill_some(&mut self, wait: &mut Wait<'_>) -> io::Result<()> {
        self.make_room();
        let end = match self.large {
            true => self.received.len().min(self.filled + HEAD),
            false => self.received.len(),
        };
        self.filled += self.line.read(&mut self.received[self.filled..end], false, wait)?;
        Ok(())
    }

    /// Reads until the header of a reply is complete, and keeps a descriptor that arrives with it.
    fn fill_header(&mut self, place: &mut Option<OwnedFd>, wait: &mut Wait<'_>) -> io::Result<()> {
        while self.filled - self.taken < REPLY_HEADER {
            self.make_room();
            self.filled += self.line.read_with(&mut self.received[self.filled..], place, wait)?;
        }
        Ok(())
    }

    fn take(&mut self, n: usize) {
        self.taken += n;
        let (taken, filled) = (self.taken, self.filled);
        assert!(taken <= filled, "INV-31: {taken} of {filled} received bytes are taken");
        assert!(filled <= RECEIVE, "INV-31: {filled} bytes are in a buffer of {RECEIVE}");
        if self.taken == self.filled {
            (self.taken, self.filled) = (0, 0);
        }
    }

    /// Moves buffered bytes to the front if the buffer is full.
    fn make_room(&mut self) {
        if self.filled == self.received.len() {
            self.received.copy_within(self.taken.., 0);
            self.filled -= self.taken;
            self.taken = 0;
        }
        // A read into no room would look like the end of the stream.
        let filled = self.filled;
        assert!(filled < RECEIVE, "INV-31: {filled} bytes fill the buffer, and none was taken");
    }
}

/// Sets the length of a vector whose bytes are all overwritten next. New memory is already zeroed
/// by the system, and old bytes need not be zeroed first.
pub(crate) fn make_length(out: &mut Vec<u8>, length: usize) {
    match out.capacity() < length {
        true => *out = vec![0; length],
        false => out.resize(length, 0),
    }
}

fn failed(e: io::Error, sent: bool) -> ExchangeFailure {
    if let Some(error) = e.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        return match error.status {
            Status::BadFrame | Status::InvalidArgument => ExchangeFailure::Refused(error.clone()),
            _ => ExchangeFailure::Gone { sent, reason: error.clone() },
        };
    }
    match e.kind() {
        io::ErrorKind::TimedOut => return ExchangeFailure::Late { sent },
        io::ErrorKind::Interrupted => return ExchangeFailure::Interrupted,
        _ => {}
    }
    let why = match e.kind() {
        io::ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
        _ => e.to_string(),
    };
    ExchangeFailure::Lost { sent, why }
}
