//! A bare connection for the protocol with many requests in flight.
//!
//! The client library makes one exchange at a time, which measures waiting. The capacity of a server's core
//! shows only when it never waits for the next request.

use super::socket::Socket;
use honeycomb_types::limits::{PROTOCOL_MAJOR, PROTOCOL_MINOR, REPLY_HEADER};
use honeycomb_wire::messages::HelloRequest;
use honeycomb_wire::{Field, Op, ReplyHeader, RequestHeader, Status};
use std::io::IoSlice;
use std::time::Duration;

/// Size of the receive buffer: no reply to a benchmark's request is longer.
const RECEIVE: usize = 256 * 1024;

/// A connection after its handshake.
pub struct Wire {
    socket: Socket,
    out: Vec<u8>,
    received: Vec<u8>,
    filled: usize,
    next_request: u64,
}

impl Wire {
    /// Connects to a controller and shakes hands.
    pub fn connect(address: &str, token: &[u8]) -> Result<Wire, String> {
        let socket = Socket::connect(address, Duration::ZERO).map_err(|e| e.to_string())?;
        let (out, received) = (Vec::new(), vec![0; RECEIVE]);
        let mut wire = Wire { socket, out, received, filled: 0, next_request: 0 };
        let hello = HelloRequest {
            major: PROTOCOL_MAJOR,
            minor: PROTOCOL_MINOR,
            session: 1,
            token: token.to_vec(),
            shard: u8::MAX,
            ..Default::default()
        };
        wire.queue(Op::Hello, &hello);
        wire.exchange(1)?;
        Ok(wire)
    }

    /// Appends a request to the send buffer.
    pub fn queue(&mut self, op: Op, body: &impl Field) {
        self.next_request += 1;
        let at = self.out.len();
        let header = RequestHeader { request: self.next_request, ..RequestHeader::new(op) };
        self.out.extend_from_slice(&header.encode());
        let body_at = self.out.len();
        body.put(&mut self.out);
        let args_len = (self.out.len() - body_at) as u32;
        // The length is known only after encoding.
        let header = RequestHeader { args_len, ..header };
        self.out[at..body_at].copy_from_slice(&header.encode());
    }

    /// Sends what is queued, in one write.
    pub fn flush(&mut self) -> Result<(), String> {
        let written = self.socket.write(&mut [IoSlice::new(&self.out)]);
        self.out.clear();
        written.map_err(|e| e.to_string())
    }

    /// Awaits this many replies, in any order; the first refusal is an error.
    pub fn replies(&mut self, count: usize) -> Result<(), String> {
        let (mut left, mut at) = (count, 0);
        while left > 0 {
            let Some(used) = reply(&self.received[at..self.filled])? else {
                self.received.copy_within(at..self.filled, 0);
                self.filled -= at;
                at = 0;
                let room = &mut self.received[self.filled..];
                self.filled += self.socket.read(room).map_err(|e| e.to_string())?;
                continue;
            };
            at += used;
            left -= 1;
        }
        self.received.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }

    /// Awaits at least one reply, and takes all that have arrived; answers their number. The first refusal is
    /// an error.
    pub fn some_replies(&mut self) -> Result<usize, String> {
        let (mut count, mut at) = (0, 0);
        loop {
            while let Some(used) = reply(&self.received[at..self.filled])? {
                (count, at) = (count + 1, at + used);
            }
            self.received.copy_within(at..self.filled, 0);
            (self.filled, at) = (self.filled - at, 0);
            if count > 0 {
                return Ok(count);
            }
            let room = &mut self.received[self.filled..];
            self.filled += self.socket.read(room).map_err(|e| e.to_string())?;
        }
    }

    /// Sends the queued requests and awaits this many replies.
    pub fn exchange(&mut self, count: usize) -> Result<(), String> {
        self.flush()?;
        self.replies(count)
    }
}

/// Checks the reply at the start of `bytes`; answers its length when it is complete.
fn reply(bytes: &[u8]) -> Result<Option<usize>, String> {
    let Some(head) = bytes.first_chunk::<REPLY_HEADER>() else { return Ok(None) };
    let header = ReplyHeader::decode(head).map_err(|r| r.reason.to_owned())?;
    let length = REPLY_HEADER + header.body_len();
    if bytes.len() < length {
        return Ok(None);
    }
    if header.status != Status::Ok {
        let text = String::from_utf8_lossy(&bytes[REPLY_HEADER..length]).into_owned();
        return Err(format!("{}: {text}", header.status.name()));
    }
    Ok(Some(length))
}
