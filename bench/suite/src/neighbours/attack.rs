//! Attacks that need only a job's token.

use super::super::nodes::Nodes;
use clap::ValueEnum;
use honeycomb_client::{Client, JobTicket};
use honeycomb_env::{Clock, Entropy};
use honeycomb_types::limits::{PROTOCOL_MAJOR, REPLY_HEADER};
use honeycomb_types::{BlockAt, LaneId, Sequence};
use honeycomb_wire::messages::{
    CreatePrefixRequest, DagNode, HelloRequest, JobTreeRequest, LeaseInfoRequest,
    OpenStructureReply, OpenStructureRequest, PrefixOptions, PresentGrantRequest,
    RenewLeasesRequest,
};
use honeycomb_wire::token::Caveat;
use honeycomb_wire::{Field, Op, ReplyHeader, RequestHeader, Status, attenuate};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// Announced bytes of a control request's arguments that never arrive.
const ANNOUNCED: usize = 15 << 20;
/// Prefixes of the job whose tree is requested and refused.
const PREFIXES: usize = 120_000;
/// Nodes of each plan that creates these prefixes.
const PLAN: usize = 10_000;
/// Parents of each node of the refused plan: two million together.
const PARENTS: usize = 1000;
/// Layers of a plan in which each node has all of the layer before as parents, and nodes of a layer.
const LAYERS: usize = 8;
const WIDTH: usize = 256;
/// Size of values that are streamed into blocks, in bytes.
const LARGE: usize = 100 << 10;
/// Requests that are sent together.
const BATCH: usize = 256;
/// Time without an answer after which a peer checks whether it shall stop.
const PATIENCE: Duration = Duration::from_millis(20);

/// The attacking job's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Attack {
    /// 24 connections announce control bodies of 15 MiB and never finish them
    AnnouncedBodies,
    /// Requests for trees with too many prefixes, ten at a time
    RefusedTrees,
    /// Plans with two million parents
    RefusedPlans,
    /// 16 connections request values and never read the replies
    UnreadReplies,
    /// 8 connections put values of 100 KiB, pipelined
    LargeValues,
    /// 8 connections put small values, 256 at a time
    PipelinedPuts,
    /// Connections that close after the handshake
    ConnectionChurn,
    /// 4096 gets that wait at an empty queue, repeatedly
    WaitingGets,
    /// Creation of prefixes, 256 at a time
    CreateFlood,
    /// Opening of structures, 256 at a time
    OpenFlood,
    /// Questions for the remaining lease of a prefix below half a million edges, ten at a time
    LeaseQueries,
    /// Renewals of 256 paths below half a million edges, by a task that may not renew them
    TaskRenewals,
}

impl Attack {
    /// All attacks.
    pub fn all() -> Vec<Attack> {
        Attack::value_variants().to_vec()
    }

    /// The name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn connections(self) -> usize {
        match self {
            Attack::AnnouncedBodies => 24,
            Attack::UnreadReplies => 16,
            Attack::RefusedTrees | Attack::RefusedPlans => 4,
            _ => 8,
        }
    }
}

/// The cluster from the view of an attacker's job.
pub struct Target {
    seen: Arc<Seen>,
    _client: Client,
}

struct Seen {
    controller: String,
    ticket: JobTicket,
    /// The tokens of tasks whose prefixes have nothing below them.
    tasks: [Vec<u8>; 2],
    kv: OpenStructureReply,
    queue: OpenStructureReply,
    /// Body of a plan that is too large.
    plan: Vec<u8>,
}

/// A running attack.
pub struct Running {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<(), String>>>,
}

impl Running {
    /// Ends the attack. An attacker that is refused or disconnected continues; one that cannot work at all is
    /// an error.
    pub fn end(self) -> Result<(), String> {
        self.stop.store(true, Relaxed);
        for thread in self.threads {
            thread.join().map_err(|_| "the thread of an attacker panicked".to_owned())??;
        }
        Ok(())
    }
}

impl Target {
    /// Prepares a job for this attack.
    pub fn new(nodes: &Nodes, attack: Attack) -> Result<Target, String> {
        let said = |e: honeycomb_client::Error| e.to_string();
        let (client, ticket) = nodes.job("attacker")?;
        let job = ticket.job;
        let t = client.create_prefix(job, "t", &[], PrefixOptions::default()).map_err(said)?;
        let u = client.create_prefix(job, "u", &[], PrefixOptions::default()).map_err(said)?;
        let task =
            |prefix| attenuate(&ticket.token, Caveat::Task(prefix)).map_err(|e| format!("{e:?}"));
        let tasks = [task(t)?, task(u)?];
        let kv = client.create_kv(job, "t:kv", 1, false).map_err(said)?;
        client.create_queue(job, "t:q", 0, 0, false).map_err(said)?;
        kv.put(b"\0large", &[7; 60 << 10]).map_err(said)?;
        if matches!(attack, Attack::LeaseQueries | Attack::TaskRenewals) {
            client.create_hierarchy(job, layers()).map_err(said)?;
        }
        if attack == Attack::RefusedTrees {
            for first in (0..PREFIXES).step_by(PLAN) {
                let node = |n| DagNode { name: format!("p{n}"), ..DagNode::default() };
                let nodes = (first..first + PLAN).map(node).collect();
                client.create_hierarchy(job, nodes).map_err(said)?;
            }
        }
        let plan = if attack == Attack::RefusedPlans { plan(job.0) } else { Vec::new() };
        let mut peer = Peer::connect(nodes.address(), &ticket.token)?;
        let mut open = |name: &str| {
            let (path, name) = ("t".to_owned(), name.to_owned());
            let body = OpenStructureRequest { job: job.0, path, name };
            let reply = peer.ask(Op::OpenStructure, &body.encode())?;
            OpenStructureReply::decode(&reply).map_err(|e| e.to_string())
        };
        let (kv, queue) = (open("kv")?, open("q")?);
        let controller = nodes.address().to_owned();
        let seen = Arc::new(Seen { controller, ticket, tasks, kv, queue, plan });
        Ok(Target { seen, _client: client })
    }

    /// Begins the attack.
    pub fn begin(&self, attack: Attack) -> Result<Running, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for n in 0..attack.connections() {
            let (seen, stop) = (self.seen.clone(), stop.clone());
            let spawned = std::thread::Builder::new().spawn(move || {
                while !stop.load(Relaxed) {
                    // After a refused or closed connection, the attacker opens another one.
                    if seen.attack(attack, n, &stop).is_err() {
                        let clock = Clock::start();
                        clock.sleep_until(clock.now() + PATIENCE);
                    }
                }
                Ok(())
            });
            threads.push(spawned.map_err(|e| e.to_string())?);
        }
        Ok(Running { stop, threads })
    }
}

/// A plan with half a million edges.
fn layers() -> Vec<DagNode> {
    let name = |layer, n| format!("l{layer}-{n}");
    let layer = |layer| (0..WIDTH).map(move |n| name(layer, n));
    let nodes = (0..LAYERS).flat_map(|at| {
        let parents: Vec<String> = if at == 0 { Vec::new() } else { layer(at - 1).collect() };
        let node = move |name| DagNode { name, parents: parents.clone(), ..DagNode::default() };
        layer(at).map(node)
    });
    nodes.collect()
}

/// The path of a node of the last layer.
fn bottom(n: usize) -> String {
    let above = (0..LAYERS - 1).map(|layer| format!("l{layer}-0/"));
    format!("{}l{}-{n}", above.collect::<String>(), LAYERS - 1)
}

/// A plan whose nodes name a thousand parents each.
fn plan(job: u64) -> Vec<u8> {
    let parents: Vec<String> = (0..PARENTS).map(|n| format!("{n:05}")).collect();
    let mut body = Vec::new();
    job.put(&mut body);
    let nodes = ANNOUNCED / (PARENTS * 7 + 64);
    (nodes as u32).put(&mut body);
    for n in 0..nodes {
        let (name, parents) = (format!("{n:05}"), parents.clone());
        DagNode { name, parents, ..DagNode::default() }.put(&mut body);
    }
    body
}

impl Seen {
    fn attack(&self, attack: Attack, n: usize, stop: &AtomicBool) -> Result<(), String> {
        let job = self.ticket.job.0;
        match attack {
            Attack::AnnouncedBodies => self.announce(stop),
            Attack::RefusedTrees => {
                self.flood(stop, 10, |_| request(Op::JobTree, &JobTreeRequest { job }.encode()))
            }
            Attack::RefusedPlans => {
                self.flood(stop, 1, |_| request(Op::CreateHierarchy, &self.plan))
            }
            Attack::CreateFlood => self.flood(stop, BATCH, |i| {
                let path = format!("f{n}-{}", i % 20_000);
                let body = CreatePrefixRequest { job, path, ..Default::default() };
                request(Op::CreatePrefix, &body.encode())
            }),
            Attack::OpenFlood => self.flood(stop, BATCH, |_| {
                let (path, name) = ("t".to_owned(), "kv".to_owned());
                let body = OpenStructureRequest { job, path, name };
                request(Op::OpenStructure, &body.encode())
            }),
            Attack::LeaseQueries => self.flood(stop, 10, |_| {
                request(Op::LeaseInfo, &LeaseInfoRequest { job, path: bottom(0) }.encode())
            }),
            Attack::TaskRenewals => {
                let paths = (0..WIDTH).map(bottom).collect();
                let renewal = request(Op::RenewLeases, &RenewLeasesRequest { job, paths }.encode());
                // Tasks in turn: the controller remembers what the last one may do.
                self.flood_as(&self.tasks[n % 2], stop, 1, |_| renewal.clone())
            }
            Attack::ConnectionChurn => {
                Peer::connect(&self.controller, &self.ticket.token)?;
                self.server(&self.kv).map(|_| ())
            }
            Attack::UnreadReplies => self.read_nothing(stop),
            Attack::LargeValues => self.put(stop, 4, LARGE),
            Attack::PipelinedPuts => self.put(stop, BATCH, 100),
            Attack::WaitingGets => self.wait(stop),
        }
    }

    /// A connection to the server of a structure, and its grant there.
    fn server(&self, opened: &OpenStructureReply) -> Result<(Peer, BlockAt, u32), String> {
        let entry = &opened.map.entries[0];
        let mut peer = Peer::connect(&entry.address, &self.ticket.token)?;
        let body = PresentGrantRequest { grant: opened.grant.clone() };
        let reply = peer.exchange(&request(Op::PresentGrant, &body.encode()))?;
        Ok((peer, entry.at(), reply.value as u32))
    }

    fn flood(
        &self,
        stop: &AtomicBool,
        together: usize,
        next: impl FnMut(u64) -> Vec<u8>,
    ) -> Result<(), String> {
        self.flood_as(&self.ticket.token, stop, together, next)
    }

    fn flood_as(
        &self,
        token: &[u8],
        stop: &AtomicBool,
        together: usize,
        mut next: impl FnMut(u64) -> Vec<u8>,
    ) -> Result<(), String> {
        let mut peer = Peer::connect(&self.controller, token)?;
        let mut sent = 0;
        while !stop.load(Relaxed) {
            let mut batch = Vec::new();
            for _ in 0..together {
                batch.extend_from_slice(&next(sent));
                sent += 1;
            }
            peer.send(&batch, stop)?;
            for _ in 0..together {
                peer.skip_reply(stop)?;
            }
        }
        Ok(())
    }

    fn announce(&self, stop: &AtomicBool) -> Result<(), String> {
        let mut peer = Peer::connect(&self.controller, &self.ticket.token)?;
        let mut header = RequestHeader::new(Op::CreateHierarchy);
        header.args_len = ANNOUNCED as u32;
        peer.send(&header.encode(), stop)?;
        let piece = vec![0; 64 << 10];
        for _ in 0..ANNOUNCED / piece.len() - 1 {
            peer.send(&piece, stop)?;
        }
        // The rest is sent in small pieces.
        let clock = Clock::start();
        while !stop.load(Relaxed) {
            peer.send(&[0], stop)?;
            clock.sleep_until(clock.now() + PATIENCE);
        }
        Ok(())
    }

    fn read_nothing(&self, stop: &AtomicBool) -> Result<(), String> {
        let (mut peer, at, grant) = self.server(&self.kv)?;
        let header = RequestHeader { at, grant, ..RequestHeader::new(Op::KvGet) };
        let get = frame(header, b"\0large", &[]);
        let batch: Vec<u8> = std::iter::repeat_n(get, BATCH).flatten().collect();
        while !stop.load(Relaxed) {
            peer.send(&batch, stop)?;
        }
        Ok(())
    }

    fn put(&self, stop: &AtomicBool, together: usize, length: usize) -> Result<(), String> {
        let (mut peer, at, grant) = self.server(&self.kv)?;
        let value = vec![7; length];
        let mut sequence = 0;
        while !stop.load(Relaxed) {
            let mut batch = Vec::new();
            for n in 0..together {
                sequence += 1;
                let mut header = RequestHeader { at, grant, ..RequestHeader::new(Op::KvPut) };
                // Separate lanes, so that a refusal in one lane delays no other.
                header.lane = LaneId(1 + n as u32 % 16);
                header.sequence = Sequence(1 + (sequence - 1) / 16);
                header.ack_lag = 1;
                let key = [&[0][..], &(n as u32 % 8).to_le_bytes()].concat();
                batch.extend_from_slice(&frame(header, &key, &value));
            }
            peer.send(&batch, stop)?;
            for _ in 0..together {
                peer.skip_reply(stop)?;
            }
        }
        Ok(())
    }

    fn wait(&self, stop: &AtomicBool) -> Result<(), String> {
        let (mut peer, at, grant) = self.server(&self.queue)?;
        let mut batch = Vec::new();
        for n in 0..512 {
            let mut header = RequestHeader { at, grant, ..RequestHeader::new(Op::QueueGet) };
            (header.lane, header.sequence, header.ack_lag) = (LaneId(1 + n), Sequence(1), 1);
            header.deadline_ms = 60_000;
            batch.extend_from_slice(&frame(header, &[], &[]));
        }
        peer.send(&batch, stop)?;
        let clock = Clock::start();
        clock.sleep_until(clock.now() + 2 * PATIENCE);
        // Closing the connection cancels all of them.
        Ok(())
    }
}

/// A connection after its handshake.
struct Peer(TcpStream);

impl Peer {
    fn connect(address: &str, token: &[u8]) -> Result<Peer, String> {
        let stream = TcpStream::connect(address).map_err(|e| e.to_string())?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(|e| e.to_string())?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(|e| e.to_string())?;
        let _ = stream.set_nodelay(true);
        let mut peer = Peer(stream);
        let mut entropy = Entropy::system();
        let session = u128::from(entropy.next_u64()) << 64 | u128::from(entropy.next_u64() | 1);
        let hello = HelloRequest {
            major: PROTOCOL_MAJOR,
            session,
            token: token.to_vec(),
            shard: u8::MAX,
            ..Default::default()
        };
        peer.exchange(&request(Op::Hello, &hello.encode()))?;
        Ok(peer)
    }

    /// Sends all bytes, unless the attack ends meanwhile.
    fn send(&mut self, mut bytes: &[u8], stop: &AtomicBool) -> Result<(), String> {
        while !bytes.is_empty() {
            match self.0.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if is_patience(&e) && !stop.load(Relaxed) => {}
                Err(e) => return Err(e.to_string()),
            }
        }
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8], stop: &AtomicBool) -> Result<(), String> {
        let mut at = 0;
        while at < buffer.len() {
            match self.0.read(&mut buffer[at..]) {
                Ok(0) => return Err("the node closed the connection".into()),
                Ok(n) => at += n,
                Err(e) if is_patience(&e) && !stop.load(Relaxed) => {}
                Err(e) => return Err(e.to_string()),
            }
        }
        Ok(())
    }

    /// Header and arguments of the next reply, whatever its status.
    fn reply(&mut self, stop: &AtomicBool) -> Result<(ReplyHeader, Vec<u8>), String> {
        let mut head = [0; REPLY_HEADER];
        self.read(&mut head, stop)?;
        let header = ReplyHeader::decode(&head).map_err(|r| r.reason.to_owned())?;
        let mut body = vec![0; header.body_len()];
        self.read(&mut body, stop)?;
        Ok((header, body))
    }

    fn skip_reply(&mut self, stop: &AtomicBool) -> Result<(), String> {
        self.reply(stop).map(|_| ())
    }

    fn exchange(&mut self, request: &[u8]) -> Result<ReplyHeader, String> {
        self.answered(request).map(|(header, _)| header)
    }

    fn ask(&mut self, op: Op, args: &[u8]) -> Result<Vec<u8>, String> {
        self.answered(&request(op, args)).map(|(_, body)| body)
    }

    fn answered(&mut self, request: &[u8]) -> Result<(ReplyHeader, Vec<u8>), String> {
        let never = AtomicBool::new(false);
        self.send(request, &never)?;
        match self.reply(&never)? {
            (header, body) if header.status == Status::Ok => Ok((header, body)),
            (header, body) => {
                Err(format!("{}: {}", header.status.name(), String::from_utf8_lossy(&body)))
            }
        }
    }
}

fn is_patience(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn request(op: Op, args: &[u8]) -> Vec<u8> {
    frame(RequestHeader { request: 1, ..RequestHeader::new(op) }, args, &[])
}

fn frame(mut header: RequestHeader, args: &[u8], payload: &[u8]) -> Vec<u8> {
    (header.args_len, header.payload_len) = (args.len() as u32, payload.len() as u32);
    [&header.encode()[..], args, payload].concat()
}
