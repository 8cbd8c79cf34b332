//! Messages of this node: replies, refusals, requests and descriptors.

use super::{ConnId, Net, look_up};
use crate::conn::{Conn, ReplyPayload};
use crate::failpoint::{self, Point};
use honeycomb_types::limits::{CONTROL_ARGS_MAX, FRAME_MAX, MESSAGE_MAX};
use honeycomb_wire::{Op, ReplyHeader, RequestHeader, Status};
use mio::net::TcpStream;
use rustix::net::sockopt::socket_domain;
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A payload of at least this size is sent at once and without a copy if no other reply follows.
const THROUGH: usize = 4 * 1024;
/// Microseconds that a client waits if a descriptor did not fit into its socket.
const PASS_RETRY_US: u64 = 1000;

impl Net {
    /// Queues a reply. Sets the lengths in `header`. A connection that is gone is not an error. A reply that
    /// no frame can hold becomes a refusal, because the client would close the connection.
    pub fn reply(
        &mut self,
        to: ConnId,
        mut header: ReplyHeader,
        args: &[u8],
        payload: ReplyPayload<'_>,
    ) {
        for (bytes, limit) in [(args.len(), CONTROL_ARGS_MAX), (payload.len(), FRAME_MAX)] {
            if bytes > limit {
                let text = format!(
                    "the reply has {bytes} bytes, over the limit of {limit} for one reply; use \
                     shorter names, or divide the data over several jobs or structures"
                );
                return self.refuse(to, header.request, Status::LimitExceeded, &text);
            }
        }
        (header.args_len, header.payload_len) = (args.len() as u32, payload.len() as u32);
        let last = self.doomed(to, header.request, false);
        if let Some((Point::Answering, op)) = last {
            failpoint::die(Point::Answering, op);
        }
        self.send(to, &header.encode(), args, payload);
        if let Some((point, op)) = last {
            self.flush_one(to, self.clock.now());
            failpoint::die(point, op);
        }
    }

    /// Queues a refusal with its message.
    pub fn refuse(&mut self, to: ConnId, request: u64, status: Status, message: &str) {
        let cut = message.floor_char_boundary(MESSAGE_MAX);
        let header = ReplyHeader::new(status, request, 0);
        self.reply(to, header, &message.as_bytes()[..cut], ReplyPayload::Copy(&[]));
    }

    /// Whether a descriptor can be sent to this peer: it is connected over a Unix socket.
    pub fn passes(&mut self, to: ConnId) -> bool {
        let unix = |conn: &mut Conn| socket_domain(&conn.stream) == Ok(AddressFamily::UNIX);
        self.conn(to).is_some_and(unix)
    }

    /// Sends a reply that consists of its header, with a descriptor at its first byte. It is sent
    /// at once or not at all: the reply is `Busy` if the socket has no space, or if earlier replies
    /// wait.
    pub fn pass(&mut self, to: ConnId, header: ReplyHeader, file: OwnedFd) {
        self.flush_one(to, self.clock.now());
        let Some(conn) = self.conn(to) else { return };
        let frame = header.encode();
        let sent = match conn.backlog() {
            0 => send_with(&conn.stream, &frame, file.as_fd()),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        };
        match sent {
            Ok(n) if n == frame.len() => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let busy = ReplyHeader::new(Status::Busy, header.request, PASS_RETRY_US);
                self.reply(to, busy, b"the socket's send buffer is full", ReplyPayload::Copy(&[]));
            }
            // If not even so few bytes were sent completely, the connection is treated as broken.
            Ok(_) | Err(_) => self.drop_conn(to),
        }
    }

    /// Queues a request of this node. Sets the lengths in `header`.
    pub fn request(
        &mut self,
        to: ConnId,
        mut header: RequestHeader,
        args: &[u8],
        payload: ReplyPayload<'_>,
    ) {
        header.args_len = args.len() as u32;
        header.payload_len = payload.len() as u32;
        let last = failpoint::reached(true, header.op);
        self.send(to, &header.encode(), args, payload);
        match last {
            None => {}
            Some(Point::Sent) => {
                self.flush_one(to, self.clock.now());
                failpoint::die(Point::Sent, header.op);
            }
            Some(point) => self.doomed = Some((to, header.request, point, header.op)),
        }
    }

    /// The point at which the process must die when the reply to this request is sent, or (`own`)
    /// has arrived.
    pub(super) fn doomed(&self, conn: ConnId, request: u64, own: bool) -> Option<(Point, Op)> {
        let (with, number, point, op) = self.doomed?;
        let due = with == conn && number == request && (point == Point::Heard) == own;
        due.then_some((point, op))
    }

    /// Queues a frame, and lists the connection for the next flush.
    fn send(&mut self, to: ConnId, header: &[u8], args: &[u8], payload: ReplyPayload<'_>) {
        let Some(conn) = look_up(&mut self.conns, &self.generations, to) else { return };
        let last = !self.more && self.doomed.is_none();
        match payload {
            ReplyPayload::Copy(bytes) if last && !conn.yields && bytes.len() >= THROUGH => {
                conn.send(header, args, ReplyPayload::Copy(&[]), &mut self.spares);
                conn.send_through(bytes, self.round, &mut self.spares);
                if conn.backlog() == 0 {
                    return;
                }
            }
            payload => conn.send(header, args, payload, &mut self.spares),
        }
        if !conn.dirty {
            conn.dirty = true;
            self.dirty.push(to);
        }
    }
}

/// Sends bytes, with a descriptor at the first of them.
fn send_with(stream: &TcpStream, bytes: &[u8], file: BorrowedFd<'_>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    assert!(with.push(SendAncillaryMessage::ScmRights(&files)), "there is space for one");
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut with, flags)?)
}
