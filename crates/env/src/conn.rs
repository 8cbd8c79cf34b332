//! One connection: what has arrived of the next frame, and what waits to be sent.

use crate::arriving::Arriving;
use crate::budget::{Budget, Permit, Share};
use crate::elsewhere::Elsewhere;
use honeycomb_block::Pin;
use honeycomb_types::Time;
use honeycomb_types::limits::{BLOCK_SIZE_MAX, inline_max};
use mio::net::TcpStream;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

/// Replies of more than this are sent straight from where they are instead of being copied behind
/// the ones before. No value that lies within a region of a kv is longer: one that is read slowly
/// would keep the region from being moved about.
const CHUNK_OWN: usize = 16 * 1024;
const _: () = assert!(inline_max(BLOCK_SIZE_MAX) as usize <= CHUNK_OWN);
/// A reply of more than this that has memory of its own is sent from there: a piece more of a write
/// costs less than the copy.
const SHARED_OWN: usize = 2 * 1024;
/// Pieces handed to one write.
const PIECES: usize = 64;
/// A buffer of more than this is not kept for the next reply.
const SPARE_MAX: usize = 2 * CHUNK_OWN;
/// Buffers that are kept: more connections than that seldom have replies at the same time.
const SPARES: usize = 64;

/// Buffers that replies were sent from, for the next ones: a small operation allocates nothing. One
/// pool for all connections of a loop, so that those that are idle keep none.
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

/// The payload of a reply, wherever it is.
#[derive(Debug)]
pub enum ReplyPayload<'a> {
    /// Bytes that are copied into the connection's queue.
    Copy(&'a [u8]),
    /// Bytes of their own, sent from where they are.
    Shared(Arc<[u8]>),
    /// A range of a block, sent from where it is.
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

    /// Whether there is none.
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

/// What the next bytes from the socket are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Frames.
    Frames,
    /// The payload of a large write, to be put where the service says.
    Fill { left: usize },
    /// The body of a refused request, to be thrown away.
    Skip { left: usize },
}

/// What a flush has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Everything is sent.
    Nothing,
    /// The socket takes no more for now.
    NoRoom,
    /// It was asked for no more.
    More,
}

pub(crate) struct Conn {
    pub stream: TcpStream,
    pub mode: Mode,
    /// The handshake has succeeded.
    pub greeted: bool,
    /// This node sends requests on it, so replies may come.
    pub link: bool,
    /// Close when everything is sent.
    pub closing: bool,
    /// Another loop shall have it after the current frame.
    pub hand_over: Option<u8>,
    /// Whose share it has; none for the cluster's token. Of no meaning before the handshake.
    pub job: Option<u64>,
    /// Bytes of a frame that is not complete yet.
    pub inbuf: Vec<u8>,
    /// Bytes that the frame needs before it can be handled, where its header is there.
    pub wants: usize,
    /// The frame that is not complete is a request that must not wait.
    pub urgent: bool,
    /// The request that has arrived in part.
    pub arriving: Arriving,
    pub opened: Time,
    /// Last time that bytes moved in a direction in which some are owed.
    pub progress: Time,
    /// Listed for the next flush.
    pub dirty: bool,
    /// Whether it is listed to go on when its job has rested.
    pub resting: bool,
    /// Not read because too much waits to be sent.
    pub paused: bool,
    /// The peer sends no more: the end follows what is still unread.
    pub hung_up: bool,
    /// It is not known yet whether the other end is there.
    pub connecting: bool,
    /// The loop is to be told when there is room to send.
    pub awaits_room: bool,
    /// Requests that other loops have and have not answered.
    pub elsewhere: Elsewhere,
    /// The last payload was one that is filled in place: the next one likely is, too.
    pub brings_large: bool,
    /// Its bytes move a piece at a time, when nobody else waits: `Net::yields`.
    pub yields: bool,
    /// Of one that yields: it is in line for a step.
    pub in_line: bool,
    /// Of one that yields: there may be something to read.
    pub unread: bool,
    out: VecDeque<Chunk>,
    /// Bytes of the first chunk that are sent.
    sent: usize,
    backlog: usize,
    permit: Permit,
    in_permit: Permit,
}

impl Conn {
    pub fn new(stream: TcpStream, now: Time, budget: &Arc<Budget>, share: &Arc<Share>) -> Conn {
        Conn {
            stream,
            mode: Mode::Frames,
            greeted: false,
            link: false,
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

    /// Bytes that wait to be sent, and the room reserved for replies of other loops.
    pub fn owed(&self) -> usize {
        self.backlog + self.elsewhere.reserved()
    }

    /// Whether bytes are owed in either direction.
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
            // Doubled, but never beyond the length of the frame: capacity is memory, too.
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

    /// Whether it may have more. Connections to other nodes of the cluster always may.
    pub fn admits(&self, urgent: bool) -> bool {
        self.link || self.permit.admits(urgent)
    }

    pub fn share(&self) -> &Arc<Share> {
        self.permit.share()
    }

    /// From now on it is this job's.
    pub fn belongs_to(&mut self, share: &Arc<Share>) {
        self.permit.transfer(share);
        self.in_permit.transfer(share);
    }

    /// Takes what was kept.
    pub fn take_kept(&mut self) -> Vec<u8> {
        self.in_permit.resize(0);
        self.wants = 0;
        std::mem::take(&mut self.inbuf)
    }

    /// Queues a frame. Small frames share a buffer, so that a batch of them is one write.
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

    /// Sends what is queued and `bytes` behind it, from where they are; what the socket does not take
    /// of them now is queued. An error is found again by `flush`.
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

    /// Sends what the socket takes of the first `most` bytes.
    pub fn flush(&mut self, now: Time, spares: &mut Spares, most: usize) -> io::Result<Left> {
        let mut most = most;
        while self.backlog > 0 {
            if most == 0 {
                return Ok(Left::More);
            }
            let (offered, written) = self.write(most);
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.connecting = false;
                    self.progress = now;
                    self.consume_sent(n, spares);
                    if n < offered {
                        return Ok(Left::NoRoom);
                    }
                    most -= n;
                }
                Err(Errno::AGAIN) => return Ok(Left::NoRoom),
                Err(Errno::INTR) => {}
                Err(Errno::NOTCONN) if self.connecting => return Ok(Left::NoRoom),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Left::Nothing)
    }

    /// One system call: how many bytes it was offered, and how many it took.
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

    /// The first `most` bytes that are queued, as far as there is space for pieces: how many these are,
    /// and of how many bytes.
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

    /// Reads into a buffer. `Ok(None)` when there is nothing for now, `Ok(Some(0))` at the end.
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
