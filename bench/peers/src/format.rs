//! The wire format of each system's requests and replies: encoded once, then only copied.

use crate::contract::{Op, Spec, key};
use honeycomb_bench::noise;
use honeycomb_types::limits::{REPLY_HEADER, REQUEST_HEADER};
use honeycomb_types::{BlockAt, LaneId, Sequence};
use honeycomb_wire::queue::GetArgs;
use honeycomb_wire::{ReplyHeader, RequestHeader, Status};
use std::io::Write;

/// An encoded request.
pub struct Request {
    /// All bytes; fields that change with each send are patched afterwards.
    pub bytes: Vec<u8>,
    /// Lane of the connection, for Honeycomb's mutations only.
    pub lane: Option<usize>,
}

/// The format of replies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Redis.
    Resp,
    /// The binary commands of memcached: as fast as text commands one at a time, and three times as fast in
    /// pipelines, because memcached answers each text command with a separate write.
    Binary,
    /// Honeycomb.
    Frames,
}

/// One block of a structure, with the fields of a request.
#[derive(Clone, Debug)]
pub struct Place {
    /// First and last hash of the block.
    pub hashes: (u64, u64),
    /// The block.
    pub at: BlockAt,
    /// Number under which the grant was presented.
    pub grant: u32,
}

/// The alternating operations on a system: one operation, or a put and a get.
fn turns(op: Op) -> Result<&'static [Op], String> {
    match op {
        Op::Get => Ok(&[Op::Get]),
        Op::Put => Ok(&[Op::Put]),
        // The request distinguishes a put to a queue from a put to a store.
        Op::Queue => Ok(&[Op::Put, Op::Get]),
        other => Err(format!("the load generator does not support '{}'", other.name())),
    }
}

/// Requests to choose from: a list for each turn.
pub fn requests(
    format: Format,
    spec: &Spec,
    places: &[Place],
) -> Result<Vec<Vec<Request>>, String> {
    let value = noise(spec.size as usize);
    let queue = spec.op == Op::Queue;
    let keys = if queue { 1 } else { spec.keys };
    let one = |op: Op, number: u64| match format {
        Format::Resp => Some(plain(resp(op, queue, &key(spec.size, number), &value))),
        Format::Binary => Some(plain(binary(op, &key(spec.size, number), &value))),
        Format::Frames => frame(op, queue, &key(spec.size, number), &value, places),
    };
    let of = |op: &Op| -> Vec<Request> { (0..keys).filter_map(|n| one(*op, n)).collect() };
    Ok(turns(spec.op)?.iter().map(of).collect())
}

fn plain(bytes: Vec<u8>) -> Request {
    Request { bytes, lane: None }
}

fn resp(op: Op, queue: bool, key: &[u8], value: &[u8]) -> Vec<u8> {
    let parts: &[&[u8]] = match (op, queue) {
        (Op::Put, false) => &[b"SET", key, value],
        (Op::Put, true) => &[b"LPUSH", b"queue", value],
        (_, false) => &[b"GET", key],
        (_, true) => &[b"RPOP", b"queue"],
    };
    let mut out = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts {
        write!(out, "${}\r\n", part.len()).expect("a vector takes everything");
        out.extend_from_slice(part);
        out.extend_from_slice(b"\r\n");
    }
    out
}

fn binary(op: Op, key: &[u8], value: &[u8]) -> Vec<u8> {
    let (code, extras, value): (u8, &[u8], &[u8]) =
        if op == Op::Get { (0x00, &[], &[]) } else { (0x01, &[0; 8], value) };
    let body = (extras.len() + key.len() + value.len()) as u32;
    let mut out = vec![0x80, code];
    out.extend_from_slice(&(key.len() as u16).to_be_bytes());
    out.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    out.extend_from_slice(&body.to_be_bytes());
    out.extend_from_slice(&[0; 12]);
    [&out[..], extras, key, value].concat()
}

/// Encodes a frame; `None` for a key that belongs to none of these places.
fn frame(op: Op, queue: bool, key: &[u8], value: &[u8], places: &[Place]) -> Option<Request> {
    use honeycomb_wire::Op as Code;
    let hash = honeycomb_wire::key_hash(key);
    let lane = match queue {
        true => 0,
        false => places.iter().position(|p| (p.hashes.0..=p.hashes.1).contains(&hash))?,
    };
    let mut args = Vec::new();
    let (code, payload): (Code, &[u8]) = match (op, queue) {
        (Op::Put, false) => {
            args.push(0);
            args.extend_from_slice(key);
            (Code::KvPut, value)
        }
        (Op::Put, true) => (Code::QueuePut, value),
        (_, false) => {
            args.extend_from_slice(key);
            (Code::KvGet, &[])
        }
        (_, true) => {
            GetArgs { items: 1, bytes: u32::MAX, reserve_ms: 0, stay: false }.put(&mut args);
            (Code::QueueGet, &[])
        }
    };
    let mut header = RequestHeader {
        args_len: args.len() as u32,
        payload_len: payload.len() as u32,
        at: places[lane].at,
        grant: places[lane].grant,
        ..RequestHeader::new(code)
    };
    let laned = code.info().lane;
    if laned {
        // A put and a get of a queue are both mutations of the same lane.
        (header.lane, header.sequence, header.ack_lag) = (LaneId(lane as u32 + 1), Sequence(1), 1);
    }
    let bytes = [&header.encode()[..], &args, payload].concat();
    Some(Request { bytes, lane: laned.then_some(lane) })
}

/// Patches the fields of a request that change with each send.
pub fn number(frame: &mut [u8], request: u64, lane: Option<(u64, u32)>) {
    frame[16..24].copy_from_slice(&request.to_le_bytes());
    if let Some((sequence, ack_lag)) = lane {
        frame[40..48].copy_from_slice(&sequence.to_le_bytes());
        frame[56..60].copy_from_slice(&ack_lag.to_le_bytes());
    }
}
const _: () = assert!(REQUEST_HEADER == 64, "where `number` writes");

impl Format {
    /// The length of the reply at the start of `bytes`, if its head has arrived. A refusal is an error;
    /// `value` is the number of value bytes in a reply with a value.
    #[inline]
    pub fn reply(self, bytes: &[u8], value: usize) -> Result<Option<usize>, String> {
        let length = match self {
            Format::Frames => {
                let Some(head) = bytes.first_chunk::<REPLY_HEADER>() else { return Ok(None) };
                // Only errors are decoded: this loop must cost as little as possible.
                if head[..4] != OK {
                    return Err(refusal(head, bytes));
                }
                let part = |at: usize| {
                    u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
                };
                let payload = part(12) as usize;
                if payload != 0 && payload != value {
                    return Err(format!("a reply has {payload} bytes of value"));
                }
                REPLY_HEADER + part(8) as usize + payload
            }
            Format::Resp => {
                let Some(line) = line(bytes) else { return Ok(None) };
                match bytes[0] {
                    b'+' | b':' => line,
                    b'$' if digits(&bytes[1..line - 2]) == Some(value) => line + value + 2,
                    _ => return Err(said("redis-server", &bytes[..line])),
                }
            }
            Format::Binary => {
                let Some(head) = bytes.first_chunk::<24>() else { return Ok(None) };
                if head[0] != 0x81 || head[6..8] != [0, 0] {
                    return Err(format!("memcached answered {head:?}"));
                }
                24 + u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize
            }
        };
        Ok((bytes.len() >= length).then_some(length))
    }
}

/// The first bytes of a frame with the status `Ok`.
const OK: [u8; 4] = [b'h', b'c', 0, 0];
const _: () = assert!(Status::Ok as u16 == 0);

fn refusal(head: &[u8; REPLY_HEADER], bytes: &[u8]) -> String {
    match ReplyHeader::decode(head) {
        Err(refusal) => refusal.reason.to_owned(),
        Ok(header) => {
            let end = (REPLY_HEADER + header.args_len as usize).min(bytes.len());
            let text = String::from_utf8_lossy(&bytes[REPLY_HEADER..end]);
            format!("{}: {text}", header.status.name())
        }
    }
}

fn line(bytes: &[u8]) -> Option<usize> {
    bytes.iter().take(128).position(|b| *b == b'\n').map(|at| at + 1)
}

fn digits(text: &[u8]) -> Option<usize> {
    text.iter().try_fold(0usize, |n, b| b.is_ascii_digit().then(|| n * 10 + (b - b'0') as usize))
}

fn said(who: &str, line: &[u8]) -> String {
    format!("{who} answered {}", String::from_utf8_lossy(line).trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_found_where_they_end() {
        let whole = |format: Format, bytes: &[u8]| {
            for short in 0..bytes.len() {
                assert_eq!(format.reply(&bytes[..short], 3).unwrap(), None, "{short}");
            }
            let more = [bytes, b"next"].concat();
            assert_eq!(format.reply(&more, 3).unwrap(), Some(bytes.len()));
        };
        whole(Format::Resp, b"+OK\r\n");
        whole(Format::Resp, b":12\r\n");
        whole(Format::Resp, b"$3\r\nabc\r\n");
        let mut header = ReplyHeader::new(Status::Ok, 1, 0);
        header.payload_len = 3;
        whole(Format::Frames, &[&header.encode()[..], b"abc"].concat());
        let mut head = [0u8; 24];
        (head[0], head[11]) = (0x81, 3);
        whole(Format::Binary, &[&head[..], b"abc"].concat());
    }

    #[test]
    fn what_is_refused_is_said() {
        let header = ReplyHeader { args_len: 3, ..ReplyHeader::new(Status::Busy, 1, 0) };
        let bytes = [&header.encode()[..], b"why"].concat();
        assert!(Format::Frames.reply(&bytes, 3).unwrap_err().contains("Busy: why"));
        assert!(Format::Resp.reply(b"-ERR no\r\n", 3).unwrap_err().contains("-ERR no"));
        assert!(Format::Resp.reply(b"$-1\r\n", 3).is_err());
    }
}
