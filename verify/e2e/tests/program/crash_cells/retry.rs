//! Requests that were answered before a move and are retried by hand after it: the new block of the key must
//! answer from the record, which moved with the key.

use honeycomb_e2e::raw::Raw;
use honeycomb_types::limits::{PROTOCOL_MAJOR, PROTOCOL_MINOR};
use honeycomb_types::{JobId, LaneId, Sequence};
use honeycomb_wire::messages::{
    HelloRequest, MapEntry, OpenStructureReply, OpenStructureRequest, PartitionMap,
};
use honeycomb_wire::{Field, Op, RequestHeader, Status, key_hash};
use std::collections::HashMap;
use std::net::SocketAddr;

/// Requests, each in a lane of its own.
const REQUESTS: u32 = 24;

/// The map of a structure and a grant for it, from the controller.
pub fn look_up(controller: &str, token: &[u8], job: JobId, path: &str) -> (PartitionMap, Vec<u8>) {
    let mut raw = Raw::greeted(controller.parse().unwrap(), token, u8::MAX);
    let body = OpenStructureRequest { job: job.0, path: path.into(), name: String::new() };
    let reply = raw.ask(Op::OpenStructure, &body.encode());
    assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
    let opened = OpenStructureReply::decode(&reply.args).unwrap();
    (opened.map, opened.grant)
}

/// A session that repeats itself.
pub struct Retries {
    session: u128,
    token: Vec<u8>,
    answers: Vec<u64>,
}

fn key(request: u32) -> Vec<u8> {
    format!("retry-{request}").into_bytes()
}

impl Retries {
    /// Sends the requests for the first time: insertions, which would be refused if they ran again.
    pub fn begin(token: &[u8], map: &PartitionMap, grant: &[u8]) -> Retries {
        let session = (key_hash(grant) as u128) << 64 | 7;
        let mut retries = Retries { session, token: token.to_vec(), answers: Vec::new() };
        retries.answers = retries.send(map, grant);
        retries
    }

    /// Sends them all again: each is answered as before, and did nothing.
    pub fn again(&self, map: &PartitionMap, grant: &[u8]) {
        assert_eq!(self.send(map, grant), self.answers, "a retry was answered otherwise");
    }

    /// Keys of the requests.
    pub fn keys(&self) -> usize {
        self.answers.len()
    }

    fn send(&self, map: &PartitionMap, grant: &[u8]) -> Vec<u64> {
        let mut lines: HashMap<SocketAddr, (Raw, u32)> = HashMap::new();
        let send = |request: u32| {
            let key = key(request);
            let hash = key_hash(&key);
            let has = |entry: &&MapEntry| (entry.start..=entry.end).contains(&hash);
            let entry = map.entries.iter().find(has).expect("every key has a block");
            let address = entry.address.parse().unwrap();
            let (raw, grant) = lines.entry(address).or_insert_with(|| self.line(address, grant));
            let at = entry.at();
            let header = RequestHeader {
                at,
                grant: *grant,
                lane: LaneId(request + 1),
                sequence: Sequence(1),
                ack_lag: 1,
                ..RequestHeader::new(Op::KvPut)
            };
            let args = [&[1][..], &key].concat();
            // A block that gets a commit late answers `Busy` for a moment.
            for _ in 0..1000 {
                let reply = raw.request(header, &args, b"once");
                match reply.status() {
                    Status::Ok => return reply.header.value,
                    Status::Busy => {}
                    other => panic!("insertion {request}: {other:?} {}", reply.message()),
                }
            }
            panic!("insertion {request} was Busy a thousand times")
        };
        (0..REQUESTS).map(send).collect()
    }

    fn line(&self, address: SocketAddr, grant: &[u8]) -> (Raw, u32) {
        let mut raw = Raw::connect(address);
        let hello = HelloRequest {
            major: PROTOCOL_MAJOR,
            minor: PROTOCOL_MINOR,
            session: self.session,
            token: self.token.clone(),
            ..Default::default()
        };
        let reply = raw.request(RequestHeader::new(Op::Hello), &hello.encode(), &[]);
        assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
        let grant = raw.present(grant);
        (raw, grant)
    }
}
