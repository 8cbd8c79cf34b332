//! The memory of a prefix and a block in the controller.
//!
//! It is counted twice: by the kernel, as the growth of the process, and by the catalog itself. The blocks
//! are announced by a phantom server that exists only on the network: it accepts all commands and has no
//! memory.

use super::cluster::Cluster;
use super::process::Watched;
use super::wire::Wire;
use honeycomb_env::Clock;
use honeycomb_types::limits::{
    BLOCK_SIZE_MIN, CONTROL_ARGS_MAX, PROTOCOL_MAJOR, PROTOCOL_MINOR, REPORT_INTERVAL,
};
use honeycomb_types::{JobId, Kind};
use honeycomb_wire::messages::*;
use honeycomb_wire::{Field, Header, Op, ReplyHeader, RequestHeader, Status};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Prefixes that share a parent.
const SIBLINGS: u64 = 1000;
/// Blocks of one structure.
const BLOCKS_EACH: u32 = 500;
/// Requests in flight.
const WINDOW: u64 = 64;

/// Bytes per object, by both counts.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Number of objects.
    pub count: u64,
    /// Growth of the process's resident memory per object.
    pub resident: f64,
    /// Growth of the catalog's own count per object.
    pub counted: f64,
}

impl Cost {
    /// The JSON form.
    pub fn json(&self) -> Value {
        let cut = |v: f64| (v * 10.0).round() / 10.0;
        json!({
            "count": self.count, "resident_bytes_each": cut(self.resident),
            "counted_bytes_each": cut(self.counted),
        })
    }
}

/// The results.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// A prefix with a name of 12 bytes and one parent.
    pub prefix: Cost,
    /// A block announced by its server.
    pub free_block: Cost,
    /// A block of a structure: its record and its entry in the structure's map.
    pub held_block: Cost,
}

struct Meter<'a> {
    cluster: &'a Cluster,
    client: honeycomb_client::Client,
}

impl Meter<'_> {
    fn now(&self) -> Result<(u64, u64), String> {
        let status = self.client.status().map_err(|e| e.to_string())?;
        let resident = Watched::process(self.cluster.pid()).resident_anonymous();
        Ok((resident, status.bytes_metadata))
    }

    fn cost(&self, count: u64, work: impl FnOnce() -> Result<(), String>) -> Result<Cost, String> {
        let before = self.now()?;
        work()?;
        let after = self.now()?;
        let each = |before: u64, after: u64| (after as f64 - before as f64) / count as f64;
        Ok(Cost { count, resident: each(before.0, after.0), counted: each(before.1, after.1) })
    }
}

/// Measures all three on an idle cluster.
pub fn measure(cluster: &Cluster, prefixes: u64, blocks: u32) -> Result<Costs, String> {
    let meter = Meter { cluster, client: cluster.client(cluster.token()) };
    let (client, ticket) = cluster.job("memory")?;
    let mut wire = Wire::connect(cluster.address(), cluster.token())?;
    for parent in 0..prefixes.div_ceil(SIBLINGS) {
        let made =
            client.create_prefix(ticket.job, &format!("/{parent:08}"), &[], Default::default());
        made.map_err(|e| e.to_string())?;
    }
    let prefix = meter.cost(prefixes, || create_prefixes(&mut wire, ticket.job, prefixes))?;

    let stop = AtomicBool::new(false);
    let mut phantom = Phantom::join(cluster)?;
    std::thread::scope(|scope| {
        let free_block = meter.cost(blocks as u64, || phantom.announce(blocks))?;
        let serving = scope.spawn(|| phantom.serve(&stop));
        let held = blocks / 4 / BLOCKS_EACH * BLOCKS_EACH;
        let held_block =
            meter.cost(held as u64, || hold_blocks(&mut wire, ticket.job, held / BLOCKS_EACH));
        stop.store(true, Ordering::Relaxed);
        serving.join().expect("the phantom does not panic")?;
        let mut held_block = held_block?;
        held_block.resident += free_block.resident;
        held_block.counted += free_block.counted;
        Ok(Costs { prefix, free_block, held_block })
    })
}

fn create_prefixes(wire: &mut Wire, job: JobId, count: u64) -> Result<(), String> {
    let mut waiting = 0;
    for i in 0..count {
        let path = format!("/{:08}/task-{i:07}", i / SIBLINGS);
        let body = CreatePrefixRequest { job: job.0, path, ..Default::default() };
        wire.queue(Op::CreatePrefix, &body);
        waiting += 1;
        if waiting == WINDOW || i + 1 == count {
            wire.exchange(waiting as usize)?;
            waiting = 0;
        }
    }
    Ok(())
}

fn hold_blocks(wire: &mut Wire, job: JobId, structures: u32) -> Result<(), String> {
    for i in 0..structures {
        let body = CreateStructureRequest {
            job: job.0,
            path: "/00000000".into(),
            name: format!("s{i}"),
            kind: Kind::Kv.code(),
            blocks: BLOCKS_EACH,
            ..Default::default()
        };
        wire.queue(Op::CreateStructure, &body);
        wire.exchange(1)?;
    }
    Ok(())
}

/// A memory server without memory.
struct Phantom {
    stream: TcpStream,
    received: Vec<u8>,
    next_request: u64,
}

impl Phantom {
    fn join(cluster: &Cluster) -> Result<Phantom, String> {
        let stream = TcpStream::connect(cluster.address()).map_err(|e| e.to_string())?;
        let _ = stream.set_nodelay(true);
        let mut phantom = Phantom { stream, received: Vec::new(), next_request: 0 };
        let hello = HelloRequest {
            major: PROTOCOL_MAJOR,
            minor: PROTOCOL_MINOR,
            session: 2,
            token: cluster.token().to_vec(),
            shard: u8::MAX,
            ..Default::default()
        };
        phantom.ask(Op::Hello, &hello)?;
        phantom.await_reply()?;
        Ok(phantom)
    }

    fn announce(&mut self, blocks: u32) -> Result<(), String> {
        let body = JoinServerRequest {
            address: "127.0.0.1:1".into(),
            incarnation: 1,
            shards: 1,
            blocks_per_shard: blocks,
            tiers: Vec::new(),
            block_size: BLOCK_SIZE_MIN,
            ..Default::default()
        };
        self.ask(Op::JoinServer, &body)?;
        self.await_reply()
    }

    fn ask(&mut self, op: Op, body: &impl Field) -> Result<(), String> {
        self.next_request += 1;
        let body = body.encode();
        let args_len = body.len() as u32;
        let request = self.next_request;
        let header = RequestHeader { request, args_len, ..RequestHeader::new(op) };
        self.stream.write_all(&[&header.encode()[..], &body].concat()).map_err(|e| e.to_string())
    }

    fn await_reply(&mut self) -> Result<(), String> {
        while self.handle()? == 0 {
            self.read()?;
        }
        Ok(())
    }

    /// Accepts all commands to open and free blocks, and sends a heartbeat four times a second.
    fn serve(&mut self, stop: &AtomicBool) -> Result<(), String> {
        let clock = Clock::start();
        let patience = Some(Duration::from_millis(20));
        self.stream.set_read_timeout(patience).map_err(|e| e.to_string())?;
        let mut next_report = clock.now();
        while !stop.load(Ordering::Relaxed) {
            if clock.now() >= next_report {
                next_report = clock.now() + REPORT_INTERVAL;
                self.ask(Op::Report, &ReportRequest::default())?;
            }
            self.read()?;
            self.handle()?;
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), String> {
        let mut piece = vec![0; 64 * 1024];
        match self.stream.read(&mut piece) {
            Ok(0) => Err("the controller closed the link".into()),
            Ok(n) => {
                self.received.extend_from_slice(&piece[..n]);
                Ok(())
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(()),
            Err(e) => Err(e.to_string()),
        }
    }

    /// Answers the received requests; returns the number of replies among the frames.
    fn handle(&mut self) -> Result<usize, String> {
        let (mut at, mut replies, mut out) = (0, 0, Vec::new());
        loop {
            let decoded = Header::decode(&self.received[at..], true);
            let Some((header, size)) = decoded.map_err(|r| r.reason.to_owned())? else { break };
            let body = match header {
                Header::Request(h) => h.body_len(),
                Header::Reply(h) => h.body_len(),
            };
            assert!(body <= 2 * CONTROL_ARGS_MAX, "a header's lengths are within their limits");
            if self.received.len() < at + size + body {
                break;
            }
            match header {
                Header::Request(h) => {
                    out.extend_from_slice(&ReplyHeader::new(Status::Ok, h.request, 0).encode());
                }
                Header::Reply(h) if h.status == Status::Ok => replies += 1,
                Header::Reply(h) => return Err(format!("the phantom got {}", h.status.name())),
            }
            at += size + body;
        }
        self.received.drain(..at);
        self.stream.write_all(&out).map_err(|e| e.to_string())?;
        Ok(replies)
    }
}
