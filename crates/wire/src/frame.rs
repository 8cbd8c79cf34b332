//! Frame headers. A header is validated completely before any byte of the body is trusted.
//!
//! A request is 64 bytes of header, then `args_len` bytes of arguments, then `payload_len` bytes of
//! payload. A reply is 32 bytes of header, then the same two parts. PROTOCOL.md draws both.

use crate::messages::{Op, Status};
use honeycomb_types::limits::{
    ARGS_MAX, CONTROL_ARGS_MAX, FRAME_MAX, HELLO_MAX, REPLY_HEADER, REQUEST_HEADER,
};
use honeycomb_types::{BlockAt, LaneId, Sequence, Verbs};
use std::fmt;

/// First two bytes of a request: `HC`.
pub const REQUEST_MAGIC: u16 = u16::from_le_bytes(*b"HC");
/// First two bytes of a reply: `hc`.
pub const REPLY_MAGIC: u16 = u16::from_le_bytes(*b"hc");

/// Bits of a request's flags.
pub mod flags {
    /// Not the first try of this request.
    pub const RETRY: u16 = 1;
    /// Every flag that version 1.0 knows.
    pub const KNOWN: u16 = RETRY;
}

/// The bits of the value of `Busy`.
pub mod busy {
    use std::time::Duration;

    /// An earlier try of the same mutation is in progress and may still take effect. The low 32
    /// bits are the delay.
    pub const UNDER_WAY: u64 = 1 << 63;

    /// There is no space in memory or in a lower tier. A caller whose time ends here reports
    /// `OutOfMemory`.
    pub const FULL: u64 = 1 << 62;

    /// The delay before the next try.
    pub fn delay(value: u64) -> Duration {
        Duration::from_micros(value & u64::from(u32::MAX))
    }
}

/// The kind of node that serves an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// Both.
    Any,
    /// The controller.
    Control,
    /// A memory server.
    Data,
    /// Between controller and memory server.
    Link,
}

/// The authority that a caller must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Nothing: the handshake itself.
    None,
    /// The cluster's token.
    Cluster,
    /// A token of the job concerned, or the cluster's.
    Job,
    /// A grant for the block's structure.
    Grant,
    /// Between memory servers: the cluster's own token, and a block.
    Peer,
}

/// One line of the table of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpInfo {
    /// The node that serves it.
    pub plane: Plane,
    /// The authority that the caller must have.
    pub auth: Auth,
    /// The verbs that a grant must allow.
    pub verbs: Verbs,
    /// A mutation, ordered by its lane and exactly-once.
    pub lane: bool,
    /// The arguments are a message of `messages`; otherwise they are laid out in `data`.
    pub message: bool,
    /// A request may carry a payload.
    pub payload: bool,
}

/// How durable the effect is that a reply acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Durability {
    /// Lost with its server.
    #[default]
    Memory = 0,
    /// Survives all but one of its servers.
    Chain = 1,
    /// In the object store.
    Flushed = 2,
}

/// Why a header was refused, and whether the stream can still be trusted after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status of the reply.
    pub status: Status,
    /// The rule that was broken.
    pub reason: &'static str,
    /// Whether the lengths were sound, so that the body can be skipped and the connection kept.
    pub skip: bool,
}

/// A body that no frame of its operation can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyTooLarge {
    op: Op,
    part: &'static str,
    bytes: usize,
    limit: usize,
}

impl fmt::Display for BodyTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BodyTooLarge { op, part, bytes, limit } = self;
        let op = op.name();
        write!(f, "{op} with {part} of {bytes} bytes; a request holds at most {limit}")
    }
}

/// Maximum bytes of a request's arguments, after the handshake.
fn args_max(op: Op) -> usize {
    match op.info().plane {
        Plane::Control | Plane::Link => CONTROL_ARGS_MAX,
        _ => ARGS_MAX,
    }
}

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// The operation.
    pub op: Op,
    /// Bits of `flags`.
    pub flags: u16,
    /// Bytes of arguments.
    pub args_len: u32,
    /// Bytes of payload.
    pub payload_len: u32,
    /// Chosen by the sender; the reply repeats it.
    pub request: u64,
    /// The block and epoch; zero for requests that name none.
    pub at: BlockAt,
    /// Position in the lane; zero for requests that are not mutations.
    pub sequence: Sequence,
    /// The lane; zero for requests that are not mutations.
    pub lane: LaneId,
    /// Number under which the connection presented the grant, from 1; zero for none.
    pub grant: u32,
    /// `sequence - ack_lag` is the last position whose result the client has received.
    pub ack_lag: u32,
    /// How long the server may hold the request before it replies, in milliseconds; zero for not at
    /// all.
    pub deadline_ms: u32,
}

impl RequestHeader {
    /// A header with everything zero but the operation.
    pub fn new(op: Op) -> RequestHeader {
        RequestHeader {
            op,
            flags: 0,
            args_len: 0,
            payload_len: 0,
            request: 0,
            at: BlockAt::default(),
            sequence: Sequence(0),
            lane: LaneId(0),
            grant: 0,
            ack_lag: 0,
            deadline_ms: 0,
        }
    }

    /// The last position of the lane whose result the client has received.
    pub fn acked(&self) -> Sequence {
        Sequence(self.sequence.0 - self.ack_lag as u64)
    }

    /// Sets the lengths of the body, or refuses a body that no frame of this operation holds. The peer would
    /// close the connection. From 4 GiB on, it would read the rest of the body as another frame.
    pub fn set_lengths(&mut self, args: usize, payload: usize) -> Result<(), BodyTooLarge> {
        let most = match self.op {
            Op::Hello => HELLO_MAX,
            op => args_max(op),
        };
        for (part, bytes, limit) in [("arguments", args, most), ("a payload", payload, FRAME_MAX)] {
            if bytes > limit {
                return Err(BodyTooLarge { op: self.op, part, bytes, limit });
            }
        }
        (self.args_len, self.payload_len) = (args as u32, payload as u32);
        Ok(())
    }

    /// Bytes that follow the header.
    pub fn body_len(&self) -> usize {
        self.args_len as usize + self.payload_len as usize
    }

    /// The 64 bytes.
    pub fn encode(&self) -> [u8; REQUEST_HEADER] {
        let mut b = [0u8; REQUEST_HEADER];
        b[0..2].copy_from_slice(&REQUEST_MAGIC.to_le_bytes());
        b[2..4].copy_from_slice(&self.op.code().to_le_bytes());
        b[4..6].copy_from_slice(&self.flags.to_le_bytes());
        b[8..12].copy_from_slice(&self.args_len.to_le_bytes());
        b[12..16].copy_from_slice(&self.payload_len.to_le_bytes());
        b[16..24].copy_from_slice(&self.request.to_le_bytes());
        b[24..32].copy_from_slice(&self.at.block.0.to_le_bytes());
        b[32..40].copy_from_slice(&self.at.epoch.0.to_le_bytes());
        b[40..48].copy_from_slice(&self.sequence.0.to_le_bytes());
        b[48..52].copy_from_slice(&self.lane.0.to_le_bytes());
        b[52..56].copy_from_slice(&self.grant.to_le_bytes());
        b[56..60].copy_from_slice(&self.ack_lag.to_le_bytes());
        b[60..64].copy_from_slice(&self.deadline_ms.to_le_bytes());
        b
    }

    /// Reads and validates a header.
    ///
    /// `greeted` says whether the handshake has succeeded on this connection: before that only
    /// `Hello` of at most `HELLO_MAX` bytes is accepted, so that an unknown peer costs nothing.
    #[inline]
    pub fn decode(b: &[u8; REQUEST_HEADER], greeted: bool) -> Result<RequestHeader, Refusal> {
        if u16_at(b, 0) != REQUEST_MAGIC {
            return Err(fatal(Status::BadFrame, "a request begins with 'HC'"));
        }
        if u16_at(b, 6) != 0 {
            return Err(fatal(Status::BadFrame, "reserved bytes are not zero"));
        }
        let (args_len, payload_len) = (u32_at(b, 8), u32_at(b, 12));
        let lengths = args_len as usize > CONTROL_ARGS_MAX || payload_len as usize > FRAME_MAX;
        if lengths || (!greeted && args_len as usize + payload_len as usize > HELLO_MAX) {
            return Err(fatal(Status::FrameTooLarge, "a length exceeds its limit"));
        }
        let op = Op::from_code(u16_at(b, 2));
        if !greeted && op != Some(Op::Hello) {
            return Err(fatal(Status::HandshakeRequired, "the first request must be Hello"));
        }
        let Some(op) = op else {
            return Err(skip(Status::UnknownOpcode, "no operation has this code"));
        };
        let header = RequestHeader {
            op,
            flags: u16_at(b, 4),
            args_len,
            payload_len,
            request: u64_at(b, 16),
            at: BlockAt::of(u64_at(b, 24), u64_at(b, 32)),
            sequence: Sequence(u64_at(b, 40)),
            lane: LaneId(u32_at(b, 48)),
            grant: u32_at(b, 52),
            ack_lag: u32_at(b, 56),
            deadline_ms: u32_at(b, 60),
        };
        header.check()?;
        Ok(header)
    }

    #[inline]
    fn check(&self) -> Result<(), Refusal> {
        let info = self.op.info();
        if self.flags & !flags::KNOWN != 0 {
            return Err(skip(Status::UnknownFlag, "a flag is set that version 1.0 does not have"));
        }
        if self.args_len as usize > args_max(self.op) {
            return Err(fatal(Status::FrameTooLarge, "arguments of more than 64 KiB"));
        }
        if self.payload_len != 0 && !info.payload {
            return Err(skip(Status::BadFrame, "the operation takes no payload"));
        }
        // The kind of a custom operation defines whether it is a mutation; its server checks that.
        let custom = matches!(self.op, Op::Custom(_));
        let laned = self.lane.0 != 0 || self.sequence.0 != 0 || self.ack_lag != 0;
        if info.lane || custom && laned {
            if self.lane.0 == 0 || self.sequence.0 == 0 {
                return Err(skip(Status::BadFrame, "a mutation must name its lane and sequence"));
            }
            if self.ack_lag == 0 || self.ack_lag as u64 > self.sequence.0 {
                return Err(skip(
                    Status::BadFrame,
                    "a mutation may acknowledge only earlier mutations",
                ));
            }
        } else if laned {
            return Err(skip(Status::BadFrame, "only a mutation has a lane"));
        }
        let (block, grant) = (self.at != BlockAt::default(), self.grant != 0);
        let named = match info.auth {
            Auth::Grant => block || grant,
            Auth::Peer => block && !grant,
            _ => !block && !grant,
        };
        if !named {
            return Err(skip(Status::BadFrame, "only data requests have a block and a grant"));
        }
        Ok(())
    }
}

impl Status {
    /// Whether a controller that refused a request with this status may answer otherwise soon, with nothing
    /// done about it: it is busy, away, or cannot write its log.
    pub fn is_passing(self) -> bool {
        matches!(self, Status::Busy | Status::Unavailable | Status::LogFailed)
    }
}

/// The header of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The status of the request.
    pub status: Status,
    /// How durable the acknowledged effect is.
    pub durability: Durability,
    /// Bytes of arguments; for a refusal, its message in UTF-8.
    pub args_len: u32,
    /// Bytes of payload.
    pub payload_len: u32,
    /// The number of the request.
    pub request: u64,
    /// A number whose meaning the operation or the status defines.
    pub value: u64,
}

impl ReplyHeader {
    /// A header whose lengths the sender sets.
    pub fn new(status: Status, request: u64, value: u64) -> ReplyHeader {
        let durability = Durability::Memory;
        ReplyHeader { status, durability, args_len: 0, payload_len: 0, request, value }
    }

    /// The 32 bytes.
    pub fn encode(&self) -> [u8; REPLY_HEADER] {
        let mut b = [0u8; REPLY_HEADER];
        b[0..2].copy_from_slice(&REPLY_MAGIC.to_le_bytes());
        b[2..4].copy_from_slice(&(self.status as u16).to_le_bytes());
        b[6] = self.durability as u8;
        b[8..12].copy_from_slice(&self.args_len.to_le_bytes());
        b[12..16].copy_from_slice(&self.payload_len.to_le_bytes());
        b[16..24].copy_from_slice(&self.request.to_le_bytes());
        b[24..32].copy_from_slice(&self.value.to_le_bytes());
        b
    }

    /// Reads and validates a header.
    pub fn decode(b: &[u8; REPLY_HEADER]) -> Result<ReplyHeader, Refusal> {
        if u16_at(b, 0) != REPLY_MAGIC {
            return Err(fatal(Status::BadFrame, "a reply begins with 'hc'"));
        }
        if u16_at(b, 4) != 0 || b[7] != 0 {
            return Err(fatal(Status::BadFrame, "reserved bytes are not zero"));
        }
        let (args_len, payload_len) = (u32_at(b, 8), u32_at(b, 12));
        if args_len as usize > CONTROL_ARGS_MAX || payload_len as usize > FRAME_MAX {
            return Err(fatal(Status::FrameTooLarge, "a length exceeds its limit"));
        }
        let Some(status) = Status::from_code(u16_at(b, 2)) else {
            return Err(fatal(Status::BadFrame, "no status has this code"));
        };
        let durability = match b[6] {
            0 => Durability::Memory,
            1 => Durability::Chain,
            2 => Durability::Flushed,
            _ => return Err(fatal(Status::BadFrame, "no durability class has this code")),
        };
        let (request, value) = (u64_at(b, 16), u64_at(b, 24));
        Ok(ReplyHeader { status, durability, args_len, payload_len, request, value })
    }

    /// Bytes that follow the header.
    pub fn body_len(&self) -> usize {
        self.args_len as usize + self.payload_len as usize
    }
}

/// Either header, for a connection that carries requests both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// A request.
    Request(RequestHeader),
    /// A reply.
    Reply(ReplyHeader),
}

impl Header {
    /// Reads the header at the start of `bytes`, of either kind, and returns its length too. `None`
    /// while there are too few bytes.
    pub fn decode(bytes: &[u8], greeted: bool) -> Result<Option<(Header, usize)>, Refusal> {
        if bytes.len() < 2 {
            return Ok(None);
        }
        if u16_at(bytes, 0) == REPLY_MAGIC {
            let Some(head) = bytes.first_chunk::<REPLY_HEADER>() else { return Ok(None) };
            return Ok(Some((Header::Reply(ReplyHeader::decode(head)?), REPLY_HEADER)));
        }
        if u16_at(bytes, 0) != REQUEST_MAGIC {
            return Err(fatal(Status::BadFrame, "a frame begins with 'HC' or 'hc'"));
        }
        let Some(head) = bytes.first_chunk::<REQUEST_HEADER>() else { return Ok(None) };
        Ok(Some((Header::Request(RequestHeader::decode(head, greeted)?), REQUEST_HEADER)))
    }
}

#[cold]
fn fatal(status: Status, reason: &'static str) -> Refusal {
    Refusal { status, reason, skip: false }
}

#[cold]
fn skip(status: Status, reason: &'static str) -> Refusal {
    Refusal { status, reason, skip: true }
}

#[inline]
fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(b[at..at + 2].try_into().expect("two bytes"))
}

#[inline]
fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"))
}

#[inline]
fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"))
}
