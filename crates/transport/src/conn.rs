//! One connection: the received bytes of the next frame, and the bytes that wait to be sent.

use crate::arriving::Arriving;
use crate::budget::{Budget, JobShare, Permit};
use crate::elsewhere::Elsewhere;
use honeycomb_block::Pin;
use honeycomb_types::Time;
use honeycomb_types::limits::{BLOCK_SIZE_MAX, inline_max};
use mio::net::TcpStream;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

/// Longer payloads are sent from their own memory instead of being copied into the queue. No value
/// inside a region of a kv is longer: a slow reader of it would prevent the region from being
/// moved.
const CHUNK_OWN: usize = 16 * 1024;
const _: () = assert!(inline_max(BLOCK_SIZE_MAX) as usize <= CHUNK_OWN);
/// A longer payload that has its own memory is sent from there: one more piece in a write costs
/// less than the copy.
const SHARED_OWN: usize = 2 * 1024;
/// Maximum number of pieces in one write.
const PIECES: usize = 64;
/// A larger buffer is not kept for the next reply.
const SPARE_MAX: usize = 2 * CHUNK_OWN;
/// Buffers that are kept: more connections seldom have replies at the same time.
const SPARES: usize = 64;

/// Buffers of sent replies, for reuse: a small operation allocates nothing. All connections of a
/// loop share one pool, so that idle ones keep no buffer.
#[derive(Default)]
pub(crate) struct Spares(Vec<Vec<u8>>);

impl Spares {
    fn take(&mut self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.0.pop().unwrap_or_default();
        buffer.reserve(bytes);
        buffer
    }

    fn give(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= SPARE_MAX && self.0.len() < SPARES {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}

/// The payload of a reply, by its location.
#[derive(Debug)]
pub enum ReplyPayload<'a> {
    /// Bytes that are copied into the connection's queue.
    Copy(&'a [u8]),
    /// Bytes in their own memory, sent from there.
    Shared(Arc<[u8]>),
    /// A range of a block, sent from the block.
    Pinned(Pin),
}

impl ReplyPayload<'_> {
    /// Bytes of the payload.
    pub fn len(&self) -> usize {
        match self {
            ReplyPayload::Copy(bytes) => bytes.len(),
            ReplyPayload::Shared(bytes) => bytes.len(),
            ReplyPayload::Pinned(pin) => pin.bytes().len(),
        }
    }

    /// Whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

enum Chunk {
    Bytes(Vec<u8>),
    Shared(Arc<[u8]>),
    Pinned(Pin),
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Chunk::Bytes(b) => b,
            Chunk::Shared(b) => b,
            Chunk::Pinned(p) => p.bytes(),
        }
    }
}

/// The meaning of the next bytes from the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Frames.
    Frames,
    /// The payload of a large write, stored where the service decides.
    Fill { left: usize },
    /// The body of a refused request, which is discarded.
    Skip { left: usize },
}

/// The state after a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsent {
    /// Everything is sent.
    Nothing,
    /// The socket takes no more for now.
    NoRoom,
    /// The flush reached its byte limit.
    More,
}

/// The end of a connection that sends requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requester {
    /// The peer, to which this node replies.
    Peer,
    /// This node: the connection is for its own requests.
    Here,
    /// Both ends.
    Both,
}

pub(crate) struct Conn {
    pub stream: TcpStream,
    pub mode: Mode,
    /// The handshake has succeeded.
    pub greeted: bool,
    /// The end that sends requests. Replies are accepted from the other end.
    pub requester: Requester,
    /// Close after all bytes are sent.
    pub closing: bool,
    /// The loop that gets the connection after the current frame.
    pub hand_over: Option<u8>,
    /// The job whose share it uses; `None` for the cluster's token. Without meaning before the
    /// handshake.
    pub job: Option<u64>,
    /// Received bytes of an incomplete frame.
    pub inbuf: Vec<u8>,
    /// Bytes that the frame must have before it can be handled, if its header has arrived.
    pub wants: usize,
    /// The incomplete frame is a request that must not wait.
    pub urgent: bool,
    /// The incomplete request.
    pub arriving: Arriving,
    pub opened: Time,
    /// Last time that bytes moved in a direction that has outstanding bytes.
    pub progress: Time,
    /// Listed for the next flush.
    pub dirty: bool,
    /// Whether it is listed to continue after its job has rested.
    pub resting: bool,
    /// Not read, because too many bytes wait to be sent.
    pub paused: bool,
    /// The peer sends no more: the connection ends after the unread bytes.
    pub hung_up: bool,
    /// The connection is still being established.
    pub connecting: bool,
    /// The poll must report when there is space to send.
    pub awaits_room: bool,
    /// Unanswered requests at other loops.
    pub elsewhere: Elsewhere,
    /// The last payload was filled in place, so the next one probably is too.
    pub brings_large: bool,
    /// Its bytes move a piece at a time, when no other connection waits: `Net::yields`.
    pub yields: bool,
    /// For a yielding connection: it is queued for a step.
    pub in_line: bool,
    /// For a yielding connection: there may be bytes to read.
    pub unread: bool,
    out: VecDeque<Chunk>,
    /// Number of bytes of the first chunk that are sent.
    sent: usize,
    backlog: usize,
    permit: Permit,
    in_permit: Permit,
}

impl Conn {
    pub fn new(stream: TcpStream, now: Time, budget: &Arc<Budget>, share: &Arc<JobShare>) -> Conn {
        Conn {
            stream,
            mode: Mode::Frames,
            greeted: false,
            requester: Requester::Peer,
            closing: false,
            hand_over: None,
            job: None,
            inbuf: Vec::new(),
            wants: 0,
            urgent: false,
            arriving: Arriving::default(),
            opened: now,
            progress: now,
            dirty: false,
            resting: false,
            paused: false,
            hung_up: false,
            connecting: false,
            awaits_room: false,
            elsewhere: Elsewhere::default(),
            brings_large: false,
            yields: false,
            in_line: false,
            unread: false,
            out: VecDeque::new(),
            sent: 0,
            backlog: 0,
            permit: budget.permit(share),
            in_permit: budget.permit(share),
        }
    }

    /// Bytes that wait to be sent.
    pub fn backlog(&self) -> usize {
        self.backlog
    }

    /// Bytes that wait to be sent, and the space reserved for replies from other loops.
    pub fn owed(&self) -> usize {
        self.backlog + self.elsewhere.reserved()
    }

    /// Whether bytes are outstanding in either direction.
    pub fn in_debt(&self) -> bool {
        self.backlog > 0 || !self.inbuf.is_empty() || self.mode != Mode::Frames
    }

    /// Keeps the unread rest of a frame.
    pub fn keep(&mut self, rest: &[u8]) {
        if self.inbuf.is_empty() && rest.is_empty() {
            return;
        }
        let needed = self.inbuf.len() + rest.len();
        if needed > self.inbuf.capacity() {
            // Doubled, but never larger than the frame, because capacity is memory too.
            let room = (2 * self.inbuf.len()).min(self.wants).max(needed);
            self.inbuf.reserve_exact(room - self.inbuf.len());
        }
        self.inbuf.extend_from_slice(rest);
        self.in_permit.resize(self.inbuf.capacity());
    }

    /// Bytes that the incomplete frame lacks; `None` for a complete one or an unknown length.
    pub fn lacks(&self) -> Option<usize> {
        (!self.inbuf.is_empty() && self.wants > self.inbuf.len())
            .then(|| self.wants - self.inbuf.len())
    }

    /// Whether this node sends requests on it: it leads to another node of the cluster.
    pub fn is_link(&self) -> bool {
        self.requester != Requester::Peer
    }

    /// Whether it may use more memory. Connections to other nodes of the cluster always may.
    pub fn admits(&self, urgent: bool) -> bool {
        self.is_link() || self.permit.admits(urgent)
    }

    pub fn share(&self) -> &Arc<JobShare> {
        self.permit.share()
    }

    /// Assigns the connection to this job.
    pub fn belongs_to(&mut self, share: &Arc<JobShare>) {
        self.permit.transfer(share);
        self.in_permit.transfer(share);
    }

    /// Takes the retained bytes.
    pub fn take_kept(&mut self) -> Vec<u8> {
        self.in_permit.resize(0);
        self.wants = 0;
        std::mem::take(&mut self.inbuf)
    }

    /// Queues a frame. Small frames share a buffer, so that a batch of them needs one write.
    pub fn send(
        &mut self,
        header: &[u8],
        args: &[u8],
        payload: ReplyPayload<'_>,
        spares: &mut Spares,
    ) {
        let bytes = header.len() + args.len() + payload.len();
        self.backlog += bytes;
        if !matches!(self.out.back(), Some(Chunk::Bytes(_))) {
            let copied = match &payload {
                ReplyPayload::Shared(b) if b.len() > SHARED_OWN => 0,
                payload if payload.len() > CHUNK_OWN => 0,
                payload => payload.len(),
            };
            let buffer = spares.take(header.len() + args.len() + copied);
            self.out.push_back(Chunk::Bytes(buffer));
        }
        let Some(Chunk::Bytes(buffer)) = self.out.back_mut() else {
            unreachable!("a byte chunk was just put there");
        };
        buffer.extend_from_slice(header);
        buffer.extend_from_slice(args);
        match payload {
            ReplyPayload::Copy(b) => buffer.extend_from_slice(b),
            ReplyPayload::Shared(b) if b.len() <= SHARED_OWN => buffer.extend_from_slice(&b),
            ReplyPayload::Pinned(p) if p.bytes().len() <= CHUNK_OWN => {
                buffer.extend_from_slice(p.bytes());
            }
            ReplyPayload::Shared(b) => self.out.push_back(Chunk::Shared(b)),
            ReplyPayload::Pinned(p) => self.out.push_back(Chunk::Pinned(p)),
        }
        self.permit.resize(self.backlog);
    }

    /// Sends the queued bytes and then `bytes`, without copying them; queues the part of them that
    /// the socket does not take now. `flush` will find an error again.
    pub fn send_through(&mut self, bytes: &[u8], now: Time, spares: &mut Spares) {
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let mut taken = 0;
        if !self.awaits_room && self.out.len() < PIECES {
            let queued = self.pieces(&mut pieces, usize::MAX).0;
            pieces[queued] = IoSlice::new(bytes);
            taken = rustix::io::writev(&self.stream, &pieces[..queued + 1]).unwrap_or(0);
        }
        if taken > 0 {
            self.progress = now;
        }
        let behind = taken.saturating_sub(self.backlog);
        self.consume_sent(taken - behind, spares);
        if behind < bytes.len() {
            self.send(&[], &[], ReplyPayload::Copy(&bytes[behind..]), spares);
        }
    }

    /// Sends as much of the first `most` bytes as the socket takes.
    pub fn flush(&mut self, now: Time, spares: &mut Spares, most: usize) -> io::Result<Unsent> {
        let mut most = most;
        while self.backlog > 0 {
            if most == 0 {
                return Ok(Unsent::More);
            }
            let (offered, written) = self.write(most);
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.connecting = false;
                    self.progress = now;
                    self.consume_sent(n, spares);
                    if n < offered {
                        return Ok(Unsent::NoRoom);
                    }
                    most -= n;
                }
                Err(Errno::AGAIN) => return Ok(Unsent::NoRoom),
                Err(Errno::INTR) => {}
                Err(Errno::NOTCONN) if self.connecting => return Ok(Unsent::NoRoom),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Unsent::Nothing)
    }

    /// Makes one system call; returns the number of bytes offered and its result.
    fn write(&self, most: usize) -> (usize, rustix::io::Result<usize>) {
        // A batch of small replies is one piece.
        if let [Chunk::Bytes(only)] = self.out.as_slices().0
            && self.out.len() == 1
        {
            let bytes = &only[self.sent..];
            let bytes = &bytes[..bytes.len().min(most)];
            return (bytes.len(), rustix::io::write(&self.stream, bytes));
        }
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let (count, offered) = self.pieces(&mut pieces, most);
        (offered, rustix::io::writev(&self.stream, &pieces[..count]))
    }

    /// Collects the first `most` queued bytes, as far as `pieces` has space. Returns the number of
    /// pieces and of bytes.
    fn pieces<'a>(&'a self, pieces: &mut [IoSlice<'a>; PIECES], most: usize) -> (usize, usize) {
        let (mut count, mut offered) = (0, 0);
        for (i, chunk) in self.out.iter().take(PIECES).enumerate() {
            let bytes = &chunk.bytes()[if i == 0 { self.sent } else { 0 }..];
            let bytes = &bytes[..bytes.len().min(most - offered)];
            pieces[i] = IoSlice::new(bytes);
            offered += bytes.len();
            count = i + 1;
            if offered == most {
                break;
            }
        }
        (count, offered)
    }

    fn consume_sent(&mut self, mut n: usize, spares: &mut Spares) {
        self.backlog -= n;
        while n > 0 {
            let first = self.out.front().expect("sent bytes came from a chunk").bytes().len();
            let left = first - self.sent;
            if n < left {
                self.sent += n;
                break;
            }
            n -= left;
            self.sent = 0;
            if let Some(Chunk::Bytes(buffer)) = self.out.pop_front() {
                spares.give(buffer);
            }
        }
        self.permit.resize(self.backlog);
    }

    /// As `read`, into two buffers, one after the other.
    pub fn read_two(
        &mut self,
        first: &mut [u8],
        second: &mut [u8],
        now: Time,
    ) -> io::Result<Option<usize>> {
        if second.is_empty() {
            return self.read(first, now);
        }
        let mut both = [IoSliceMut::new(first), IoSliceMut::new(second)];
        self.read_by(now, |stream| rustix::io::readv(stream, &mut both))
    }

    /// Reads into a buffer. `Ok(None)` if no bytes are available, `Ok(Some(0))` at the end of the
    /// stream.
    pub fn read(&mut self, buffer: &mut [u8], now: Time) -> io::Result<Option<usize>> {
        self.read_by(now, |stream| rustix::io::read(stream, &mut *buffer))
    }

    #[inline]
    fn read_by(
        &mut self,
        now: Time,
        mut call: impl FnMut(&TcpStream) -> rustix::io::Result<usize>,
    ) -> io::Result<Option<usize>> {
        loop {
            match call(&self.stream) {
                Ok(n) => {
                    self.progress = now;
                    return Ok(Some(n));
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}
