//! The load generator: many connections and pipelines from one thread, the same for every system.
//!
//! It compares servers: requests are encoded before the first round, and replies are parsed only to find
//! their end and to detect refusals. Each connection sends `pipeline` requests in one write, and the next
//! ones when all are answered.

use crate::contract::{Client, Draw, Measured, Meter, Op, Round, Spec, System};
use crate::format::{Format, Place, Request, number, requests};
use crate::stores;
use honeycomb_env::{Clock, Entropy};
use honeycomb_types::BlockAt;
use honeycomb_types::Time;
use honeycomb_types::limits::{PROTOCOL_MAJOR, PROTOCOL_MINOR, REPLY_HEADER};
use honeycomb_wire::messages::{
    HelloReply, HelloRequest, OpenStructureReply, OpenStructureRequest, PartitionMap,
    PresentGrantRequest,
};
use honeycomb_wire::{Field, ReplyHeader, RequestHeader, Status};
use rustix::event::epoll;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

/// Time after which a server without an answer counts as failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// Entries stored with one write, before the first round.
const FILL: usize = 50;
/// Bytes of receive buffer beyond the replies of one batch.
const SLACK: usize = 4096;

/// A connection of either kind.
pub enum Stream {
    /// TCP over the loopback.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
}

impl Stream {
    /// Connects to host:port, or to `unix:` and a path.
    pub fn connect(address: &str) -> Result<Stream, String> {
        let said = |e: std::io::Error| format!("cannot connect to {address}: {e}");
        if let Some(path) = address.strip_prefix("unix:") {
            let stream = UnixStream::connect(path).map_err(said)?;
            stream.set_read_timeout(Some(PATIENCE)).map_err(said)?;
            return Ok(Stream::Unix(stream));
        }
        let stream = TcpStream::connect(address).map_err(said)?;
        stream.set_nodelay(true).map_err(said)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(said)?;
        Ok(Stream::Tcp(stream))
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, String> {
        let read = match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        };
        match read {
            Ok(0) => Err("the server closed the connection".into()),
            Ok(n) => Ok(n),
            Err(e) => Err(e.to_string()),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<(), String> {
        let written = match self {
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Unix(stream) => stream.write_all(bytes),
        };
        written.map_err(|e| e.to_string())
    }

    /// Sends a frame and awaits its reply's arguments and value.
    fn ask(&mut self, op: honeycomb_wire::Op, body: &impl Field) -> Result<(Vec<u8>, u64), String> {
        let body = body.encode();
        let header =
            RequestHeader { request: 1, args_len: body.len() as u32, ..RequestHeader::new(op) };
        self.write_all(&[&header.encode()[..], &body].concat())?;
        let mut head = [0; REPLY_HEADER];
        self.read_exact(&mut head)?;
        let header = ReplyHeader::decode(&head).map_err(|r| r.reason.to_owned())?;
        let mut rest = vec![0; header.body_len()];
        self.read_exact(&mut rest)?;
        if header.status != Status::Ok {
            let text = String::from_utf8_lossy(&rest);
            return Err(format!("{}: {text}", header.status.name()));
        }
        rest.truncate(header.args_len as usize);
        Ok((rest, header.value))
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), String> {
        let mut at = 0;
        while at < buffer.len() {
            at += self.read(&mut buffer[at..])?;
        }
        Ok(())
    }

    /// Makes the handshake; answers the server's reply, if it has contents.
    fn greet(
        &mut self,
        token: &[u8],
        session: u128,
        window: u16,
    ) -> Result<Option<HelloReply>, String> {
        let hello = HelloRequest {
            major: PROTOCOL_MAJOR,
            minor: PROTOCOL_MINOR,
            session,
            token: token.to_vec(),
            shard: u8::MAX,
            window,
            ..Default::default()
        };
        let (reply, _) = self.ask(honeycomb_wire::Op::Hello, &hello)?;
        // The replies of the empty servers have no contents.
        Ok(HelloReply::decode(&reply).ok())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

/// A lane of a connection: the numbers of requests sent and acknowledged.
#[derive(Clone, Copy, Default)]
struct Lane {
    sent: u64,
    acked: u64,
}

struct Connection {
    stream: Stream,
    requests: Rc<Vec<Vec<Request>>>,
    lanes: Vec<Lane>,
    turn: usize,
    draw: Draw,
    out: Vec<u8>,
    received: Vec<u8>,
    filled: usize,
    /// Number of unanswered requests.
    in_flight: usize,
    sent_at: Time,
    numbered: u64,
}

impl Connection {
    fn new(stream: Stream, requests: Rc<Vec<Vec<Request>>>, lanes: usize, seed: u64) -> Connection {
        Connection {
            stream,
            requests,
            lanes: vec![Lane::default(); lanes],
            turn: 0,
            draw: Draw::new(seed),
            out: Vec::new(),
            received: Vec::new(),
            filled: 0,
            in_flight: 0,
            sent_at: Time::ZERO,
            numbered: 0,
        }
    }

    /// Sends the next batch, in one write.
    fn send(&mut self, pipeline: usize, frames: bool, now: Time) -> Result<(), String> {
        self.out.clear();
        for _ in 0..pipeline {
            let choice = &self.requests[self.turn];
            self.turn = (self.turn + 1) % self.requests.len();
            let request = &choice[self.draw.below(choice.len() as u64) as usize];
            let at = self.out.len();
            self.out.extend_from_slice(&request.bytes);
            if frames {
                self.numbered += 1;
                let lane = request.lane.map(|lane| {
                    let lane = &mut self.lanes[lane];
                    lane.sent += 1;
                    (lane.sent, (lane.sent - lane.acked) as u32)
                });
                number(&mut self.out[at..], self.numbered, lane);
            }
        }
        self.in_flight = pipeline;
        self.sent_at = now;
        self.stream.write_all(&self.out)
    }

    /// Reads once; answers the number of completed replies.
    fn receive(&mut self, format: Format, value: usize) -> Result<usize, String> {
        self.filled += self.stream.read(&mut self.received[self.filled..])?;
        let (mut at, mut replies) = (0, 0);
        while let Some(length) = format.reply(&self.received[at..self.filled], value)? {
            at += length;
            replies += 1;
            if at == self.filled {
                break;
            }
        }
        self.received.copy_within(at..self.filled, 0);
        self.filled -= at;
        if replies > self.in_flight {
            return Err("more replies than requests".into());
        }
        self.in_flight -= replies;
        if self.in_flight == 0 {
            self.lanes.iter_mut().for_each(|lane| lane.acked = lane.sent);
        }
        Ok(replies)
    }
}

struct Flood {
    spec: Spec,
    format: Format,
    connections: Vec<Connection>,
    epoll: OwnedFd,
    clock: Clock,
    /// The store of the connections, removed with them.
    store: Option<stores::Store>,
}

/// Opens the connections of a specification and stores the data to read.
pub fn set_up(spec: Spec) -> Result<Box<dyn Client>, String> {
    if spec.clients == 0 || spec.pipeline == 0 {
        return Err(
            "the specification needs at least one connection and one request in flight".into()
        );
    }
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| e.to_string())?;
    let mut flood = Flood {
        format: match spec.system {
            System::Redis => Format::Resp,
            System::Memcached => Format::Binary,
            _ => Format::Frames,
        },
        spec,
        connections: Vec::new(),
        epoll,
        clock: Clock::start(),
        store: None,
    };
    match flood.spec.system {
        System::Honeycomb => flood.join_cluster()?,
        System::Empty | System::Loop => flood.join_limit()?,
        System::Redis | System::Memcached => flood.join_peer()?,
        System::Stream | System::Pages => {
            return Err("this limit has a separate client".into());
        }
    }
    let room = flood.spec.pipeline * (flood.spec.size as usize + 256) + SLACK;
    for (i, connection) in flood.connections.iter_mut().enumerate() {
        connection.received.resize(room, 0);
        let data = epoll::EventData::new_u64(i as u64);
        epoll::add(&flood.epoll, &connection.stream, data, epoll::EventFlags::IN)
            .map_err(|e| e.to_string())?;
    }
    Ok(Box::new(flood))
}

impl Flood {
    fn join_peer(&mut self) -> Result<(), String> {
        let requests = Rc::new(requests(self.format, &self.spec, &[])?);
        for i in 0..self.spec.clients {
            let stream = Stream::connect(&self.spec.address)?;
            self.connections.push(Connection::new(stream, requests.clone(), 0, i as u64));
        }
        if self.spec.op != Op::Queue {
            let put = Spec { op: Op::Put, ..self.spec.clone() };
            let puts = crate::format::requests(self.format, &put, &[])?.swap_remove(0);
            let first = &mut self.connections[0];
            first.received.resize(SLACK, 0);
            for some in puts.chunks(FILL) {
                let bytes: Vec<u8> = some.iter().flat_map(|r| &r.bytes).copied().collect();
                first.in_flight = some.len();
                first.stream.write_all(&bytes)?;
                while first.in_flight > 0 {
                    first.receive(self.format, 0)?;
                }
            }
        }
        Ok(())
    }

    fn join_limit(&mut self) -> Result<(), String> {
        let place = Place { hashes: (0, u64::MAX), at: BlockAt::of(1, 1), grant: 1 };
        let requests = Rc::new(requests(self.format, &self.spec, &[place])?);
        for i in 0..self.spec.clients {
            let mut stream = Stream::connect(&self.spec.address)?;
            stream.greet(b"", i as u128 + 1, 0)?;
            self.connections.push(Connection::new(stream, requests.clone(), 1, i as u64));
        }
        Ok(())
    }

    /// Connects each connection to one of the servers; it requests only keys of that server.
    fn join_cluster(&mut self) -> Result<(), String> {
        let store = stores::Store::make(&self.spec)?;
        store.fill(&self.spec)?;
        let mut control = Stream::connect(&self.spec.address)?;
        control.greet(store.token(), 1, 0)?;
        let (path, name) = (stores::PATH.into(), String::new());
        let body = OpenStructureRequest { job: store.job().0, path, name };
        let (reply, _) = control.ask(honeycomb_wire::Op::OpenStructure, &body)?;
        let opened = OpenStructureReply::decode(&reply).map_err(|e| e.to_string())?;
        let mut addresses: Vec<&str> = opened.map.entries.iter().map(|e| &e.address[..]).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let mut entropy = Entropy::system();
        let mut tables: Vec<Rc<Vec<Vec<Request>>>> = Vec::new();
        for address in &addresses {
            let places = places(&opened.map, address);
            tables.push(Rc::new(requests(self.format, &self.spec, &places)?));
        }
        for i in 0..self.spec.clients {
            let at = i % addresses.len();
            let session = (entropy.next_u64() as u128) << 64 | entropy.next_u64() as u128 | 1;
            let window = self.spec.pipeline.max(16) as u16;
            let mut stream = Stream::connect(addresses[at])?;
            let hello = stream.greet(store.token(), session, window)?;
            if self.spec.transport == "unix" {
                let near = hello.map(|hello| hello.near).filter(|near| !near.is_empty());
                let near = near.ok_or("the server has no Unix socket")?;
                stream = Stream::connect(&format!("unix:{near}"))?;
                stream.greet(store.token(), session, window)?;
            }
            let grant = PresentGrantRequest { grant: opened.grant.clone() };
            let (_, number) = stream.ask(honeycomb_wire::Op::PresentGrant, &grant)?;
            if number != GRANT as u64 {
                return Err(format!("the first grant of a connection has the number {number}"));
            }
            let lanes = opened.map.entries.len();
            self.connections.push(Connection::new(stream, tables[at].clone(), lanes, i as u64));
        }
        self.store = Some(store);
        Ok(())
    }
}

/// The number of the only grant that a connection presents.
const GRANT: u32 = 1;

fn places(map: &PartitionMap, address: &str) -> Vec<Place> {
    let here = map.entries.iter().filter(|entry| entry.address == address);
    let place = |entry: &honeycomb_wire::messages::MapEntry| Place {
        hashes: (entry.start, entry.end),
        at: entry.at(),
        grant: GRANT,
    };
    here.map(place).collect()
}

impl Client for Flood {
    fn about(&self) -> String {
        match self.format {
            Format::Resp => "load generator, RESP",
            Format::Binary => "load generator, binary",
            Format::Frames => "load generator, frames",
        }
        .into()
    }

    fn round(&mut self, round: Round) -> Result<Measured, String> {
        let (pipeline, value) = (self.spec.pipeline, self.spec.size as usize);
        let (format, frames) = (self.format, self.format == Format::Frames);
        let mut meter = Meter::begin(self.clock, round);
        let mut done = 0;
        let now = self.clock.now();
        for connection in &mut self.connections {
            connection.send(pipeline, frames, now)?;
        }
        let mut busy = self.connections.len();
        let mut events = Vec::with_capacity(256);
        while busy > 0 {
            events.clear();
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None)
                .map_err(|e| e.to_string())?;
            let now = self.clock.now();
            for event in events.drain(..) {
                let connection = &mut self.connections[event.data.u64() as usize];
                done += connection.receive(format, value)? as u64;
                if connection.in_flight > 0 {
                    continue;
                }
                meter.count(now.since(connection.sent_at));
                if now < meter.until && done < round.ops {
                    connection.send(pipeline, frames, now)?;
                } else {
                    busy -= 1;
                }
            }
        }
        Ok(meter.end(done))
    }
}
