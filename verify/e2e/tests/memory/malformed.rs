//! Frames that are wrong in every way, and peers that misbehave: the server lives, its memory
//! stays flat, and a client beside them notices nothing.
// A helper of tests may unwrap like a test.

mod fuzz;
mod peers;
mod queues;

use honeycomb_client::{Client, JobTicket, Kv};
use honeycomb_e2e::raw::{
    ANY_SHARD, Raw, data_header, first_block, frame, hello_args, keyed_cluster,
};
use honeycomb_e2e::{Cluster, Stop, eventually, file, kv, noise, prefix};
use honeycomb_env::{Entropy, resident_anonymous_bytes};
use honeycomb_types::limits::{
    ARGS_MAX, CONTROL_ARGS_MAX, FRAME_MAX, HELLO_MAX, KEY_MAX, REQUEST_HEADER,
};
use honeycomb_types::{BlockAt, BlockId, Epoch, LaneId, PrefixId, Sequence, ServerId, ShardIx};
use honeycomb_wire::data::{Brings, ReadArgs, ScanArgs, scanned};
use honeycomb_wire::messages::*;
use honeycomb_wire::{Auth, Field, Plane, ReplyHeader, RequestHeader};
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

const MEMORY: u64 = 32 << 20;
const BLOCK: u64 = 1 << 20;
/// Maximum growth of the process during the test.
const GROWTH: u64 = 64 << 20;
/// Larger than a payload that is received whole, smaller than the limit of a block.
const LARGE: usize = 100 << 10;

/// Larger than the limit of a block.
const EXTENTS: usize = 200 << 10;

struct Opened {
    at: BlockAt,
    grant: Vec<u8>,
}

struct Setup {
    cluster: Cluster,
    client: Client,
    job: JobTicket,
    kv: Opened,
    file: Opened,
    queue: Opened,
    /// Block with the kv's large values.
    extents: BlockAt,
    /// Given back last.
    _alone: MutexGuard<'static, ()>,
}

impl Setup {
    fn new() -> Setup {
        let _alone = crate::alone();
        let (cluster, _) = keyed_cluster(MEMORY, BLOCK);
        let (client, job) = cluster.job("job");
        prefix(&client, &job, "a", 0);
        let store = kv(&client, &job, "a:kv", 1);
        store.put(b"k", b"v").unwrap();
        store.put(b"extents", &[5; EXTENTS]).unwrap();
        file(&client, &job, "a:log").append(b"content").unwrap();
        let queue = client.create_queue(job.job, "a:queue", 0, 0, false).unwrap();
        queue.put(b"item", Duration::ZERO).unwrap();
        let held = |name| open(&cluster, &job, "a", name);
        let (kv, file, queue) = (held("kv"), held("log"), held("queue"));
        let mut raw = Raw::greeted(cluster.controller.address(), &job.token, ANY_SHARD);
        let asked = ExtentBlocksRequest {
            job: job.job.0,
            structure: store.structure().id().0,
            bytes: 0,
            full: Vec::new(),
            value: 0,
        };
        let told = raw.ask(Op::ExtentBlocks, &asked.encode());
        let entries = ExtentBlocksReply::decode(&told.args).unwrap().entries;
        let extents = entries[0].at();
        Setup { extents, cluster, client, job, kv, file, queue, _alone }
    }

    fn controller(&self) -> SocketAddr {
        self.cluster.controller.address()
    }

    fn server(&self) -> SocketAddr {
        self.cluster.servers[0].address()
    }

    fn nodes(&self) -> [SocketAddr; 2] {
        [self.controller(), self.server()]
    }

    /// A connection to the memory server on which grant 1 is the kv's, grant 2 the file's and grant
    /// 3 the queue's.
    fn data(&self, shard: u8) -> Raw {
        let mut raw = Raw::greeted(self.server(), &self.job.token, shard);
        let grants = [&self.kv, &self.file, &self.queue];
        assert_eq!(grants.map(|opened| raw.present(&opened.grant)), [1, 2, 3]);
        raw
    }

    fn kv_header(&self, op: Op, lane: u32) -> RequestHeader {
        data_header(op, self.kv.at, 1, lane)
    }

    fn extents_header(&self, op: Op) -> RequestHeader {
        data_header(op, self.extents, 1, 0)
    }

    fn file_header(&self, op: Op, lane: u32) -> RequestHeader {
        data_header(op, self.file.at, 2, lane)
    }

    fn queue_header(&self, op: Op, lane: u32) -> RequestHeader {
        data_header(op, self.queue.at, 3, lane)
    }

    fn unharmed(&self) {
        let mut value = Vec::new();
        let store = self.client.open_kv(self.job.job, "a:kv").unwrap();
        assert!(store.get(b"k", &mut value).unwrap());
        assert_eq!(value, b"v");
        assert!(store.get(b"extents", &mut value).unwrap());
        assert!(value == [5; EXTENTS], "the large value differs");
        let log = self.client.open_file(self.job.job, "a:log").unwrap();
        assert_eq!(log.size().unwrap(), 7);
        let queue = self.client.open_queue(self.job.job, "a:queue").unwrap();
        assert_eq!(queue.peek(10).unwrap(), [b"item"]);
    }
}

fn open(cluster: &Cluster, job: &JobTicket, path: &str, name: &str) -> Opened {
    let mut raw = Raw::greeted(cluster.controller.address(), &job.token, ANY_SHARD);
    let body = OpenStructureRequest { job: job.job.0, path: path.into(), name: name.into() };
    let reply = raw.ask(Op::OpenStructure, &body.encode());
    let opened = OpenStructureReply::decode(&reply.args).unwrap();
    Opened { at: first_block(&opened.map), grant: opened.grant }
}

/// A frame with some bytes changed.
fn patched(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

// --------------------------------------------------------------------------------- by hand

/// The outcome of a malformed frame.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    /// The connection serves on.
    Survives,
    /// The connection is closed: where the next frame begins is not known.
    Closes,
}

struct Case {
    what: String,
    bytes: Vec<u8>,
    status: Status,
    then: Then,
}

fn case(what: impl Into<String>, bytes: Vec<u8>, status: Status, then: Then) -> Case {
    Case { what: what.into(), bytes, status, then }
}

fn run_cases(connect: impl Fn() -> Raw, cases: Vec<Case>) {
    let mut raw = connect();
    for Case { what, bytes, status, then } in cases {
        raw.send(&bytes);
        let reply = raw.reply();
        assert_eq!(reply.status(), status, "{what}: {}", reply.message());
        assert!(!reply.args.is_empty(), "{what}: a refusal says why");
        if let Some(number) = bytes.get(16..24).filter(|_| bytes.starts_with(b"HC")) {
            assert_eq!(reply.header.request.to_le_bytes(), number, "{what}: whose reply is it");
        }
        match then {
            Then::Survives => raw.expect_alive(),
            Then::Closes => {
                raw.expect_closed();
                raw = connect();
            }
        }
    }
}

/// Header fields that no node takes, whatever the operation.
fn broken_headers() -> Vec<Case> {
    use Then::*;
    let at = BlockAt::of(1, 1);
    let ping = frame(RequestHeader { request: 77, ..RequestHeader::new(Op::Ping) }, &[], &[]);
    let get = frame(RequestHeader { request: 78, ..data_header(Op::KvGet, at, 1, 0) }, b"k", &[]);
    let lane = RequestHeader { request: 79, ..data_header(Op::KvPut, at, 1, 5) };
    let put = |header: RequestHeader| frame(header, b"\0k", b"value");
    let length = |n: usize| (n as u32).to_le_bytes();
    let head = |frame: &[u8]| frame[..REQUEST_HEADER].to_vec();
    let (large, bad) = (Status::FrameTooLarge, Status::BadFrame);
    let mut cases = vec![
        case("a magic of another protocol", patched(ping.clone(), 0, b"GE"), bad, Closes),
        case("half a magic", patched(ping.clone(), 0, b"Hx"), bad, Closes),
        case("zeros", vec![0; REQUEST_HEADER], bad, Closes),
        case("reserved bytes", patched(ping.clone(), 6, &[0, 1]), bad, Closes),
        case("opcode 0", patched(ping.clone(), 2, &[0, 0]), Status::UnknownOpcode, Survives),
        case(
            "an opcode of nobody",
            patched(get.clone(), 2, &[0x77, 0x77]),
            Status::UnknownOpcode,
            Survives,
        ),
        case("an unknown flag", patched(ping.clone(), 4, &[2, 0]), Status::UnknownFlag, Survives),
        case(
            "the highest flag",
            patched(get.clone(), 4, &[0, 0x80]),
            Status::UnknownFlag,
            Survives,
        ),
        case(
            "arguments over the limit",
            patched(head(&ping), 8, &length(CONTROL_ARGS_MAX + 1)),
            large,
            Closes,
        ),
        case("arguments without end", patched(head(&ping), 8, &[0xFF; 4]), large, Closes),
        case(
            "a payload over the limit",
            patched(head(&get), 12, &length(FRAME_MAX + 1)),
            large,
            Closes,
        ),
        case("a payload without end", patched(head(&get), 12, &[0xFF; 4]), large, Closes),
        case("lengths that overflow together", patched(head(&get), 8, &[0xFF; 8]), large, Closes),
        case(
            "data arguments over their limit",
            patched(head(&get), 8, &length(ARGS_MAX + 1)),
            large,
            Closes,
        ),
        case("a lane on a read", patched(get.clone(), 48, &[1]), bad, Survives),
        case("a sequence on a read", patched(get.clone(), 40, &[1]), bad, Survives),
        case("an acknowledgement on a read", patched(get.clone(), 56, &[1]), bad, Survives),
        case("a lane on a ping", patched(ping.clone(), 48, &[1]), bad, Survives),
        case(
            "a mutation without a lane",
            put(RequestHeader { lane: LaneId(0), ..lane }),
            bad,
            Survives,
        ),
        case(
            "a mutation without a sequence",
            put(RequestHeader { sequence: Sequence(0), ack_lag: 0, ..lane }),
            bad,
            Survives,
        ),
        case(
            "a mutation that acknowledges itself",
            put(RequestHeader { ack_lag: 0, ..lane }),
            bad,
            Survives,
        ),
        case(
            "a mutation that acknowledges what never was",
            put(RequestHeader { ack_lag: 2, ..lane }),
            bad,
            Survives,
        ),
        case("a block on a ping", patched(ping.clone(), 24, &[1]), bad, Survives),
        case("an epoch on a ping", patched(ping.clone(), 32, &[1]), bad, Survives),
        case("a grant on a ping", patched(ping.clone(), 52, &[1]), bad, Survives),
        case(
            "data of no block",
            patched(patched(get.clone(), 24, &[0; 16]), 52, &[0; 4]),
            bad,
            Survives,
        ),
        case(
            "a second Hello",
            frame(RequestHeader { request: 80, ..RequestHeader::new(Op::Hello) }, b"", b""),
            Status::HandshakeRequired,
            Survives,
        ),
        case("arguments to Ping", frame(RequestHeader::new(Op::Ping), b"x", b""), bad, Survives),
        case(
            "a reply nobody asked for",
            ReplyHeader::new(Status::Ok, 5, 6).encode().to_vec(),
            bad,
            Closes,
        ),
        case(
            "a reply of no status",
            patched(ReplyHeader::new(Status::Ok, 5, 6).encode().to_vec(), 2, &[0xFF; 2]),
            bad,
            Closes,
        ),
        case(
            "a reply with a body without end",
            patched(ReplyHeader::new(Status::Ok, 5, 6).encode().to_vec(), 8, &[0xFF; 8]),
            large,
            Closes,
        ),
    ];
    for op in Op::ALL.into_iter().filter(|op| !op.info().payload) {
        let mut header = data_header(op, BlockAt::default(), 0, 5);
        if op.info().auth == Auth::Grant {
            (header.at, header.grant) = (at, 1);
        }
        let bytes = frame(header, b"", &[9; 3000]);
        cases.push(case(format!("a payload on {op:?}"), bytes, bad, Survives));
    }
    for op in Op::ALL.into_iter().filter(|op| op.info().auth != Auth::Grant) {
        let header = RequestHeader { at, grant: 1, ..RequestHeader::new(op) };
        cases.push(case(format!("a block on {op:?}"), frame(header, b"", b""), bad, Survives));
    }
    cases
}

#[test]
fn broken_headers_are_refused_and_the_stream_is_trusted_no_further_than_it_can_be() {
    let setup = Setup::new();
    for node in setup.nodes() {
        run_cases(|| Raw::greeted(node, &setup.job.token, ANY_SHARD), broken_headers());
    }
    setup.unharmed();
}

#[test]
fn a_stranger_gets_one_small_hello() {
    use Then::*;
    let setup = Setup::new();
    let token = &setup.job.token;
    let hello = RequestHeader { request: 70, ..RequestHeader::new(Op::Hello) };
    let args = hello_args(token, PrefixId(0), ANY_SHARD);
    let good = frame(hello, &args, &[]);
    let length = |n: usize| (n as u32).to_le_bytes();
    let over = patched(good[..REQUEST_HEADER].to_vec(), 8, &length(HELLO_MAX + 1));
    let sum = patched(patched(over.clone(), 8, &length(HELLO_MAX)), 12, &length(1));
    let mut nobody = HelloRequest::decode(&args).unwrap();
    nobody.session = 0;
    let trailing = [&args[..], &[0]].concat();
    let of = |args: &[u8]| frame(hello, args, &[]);
    let cases = |at_server: bool| {
        let mut cases = vec![
            case("a Hello over the limit", over.clone(), Status::FrameTooLarge, Closes),
            case(
                "a Hello without end",
                patched(over.clone(), 8, &[0xFF; 4]),
                Status::FrameTooLarge,
                Closes,
            ),
            case("a Hello with too much in both parts", sum.clone(), Status::FrameTooLarge, Closes),
            case("a Hello of nothing", of(&[]), Status::BadFrame, Closes),
            case("a Hello of noise", of(&noise(1, HELLO_MAX)), Status::UnsupportedVersion, Closes),
            case(
                "a Hello of another major version",
                of(&patched(args.clone(), 0, &[2, 0])),
                Status::UnsupportedVersion,
                Closes,
            ),
            case("a Hello cut short", of(&args[..args.len() - 1]), Status::BadFrame, Closes),
            case("a Hello with a byte too many", of(&trailing), Status::BadFrame, Closes),
            case("a Hello of no session", of(&nobody.encode()), Status::InvalidArgument, Closes),
            case(
                "a reply",
                ReplyHeader::new(Status::Ok, 1, 2).encode().to_vec(),
                Status::BadFrame,
                Closes,
            ),
            case(
                "a ping",
                frame(RequestHeader { request: 71, ..RequestHeader::new(Op::Ping) }, &[], &[]),
                Status::HandshakeRequired,
                Closes,
            ),
            case(
                "an opcode of nobody",
                patched(good.clone(), 2, &[0x77; 2]),
                Status::HandshakeRequired,
                Closes,
            ),
            case(
                "text",
                format!("GET / HTTP/1.1\r\nHost: a{}\r\n\r\n", "a".repeat(64)).into_bytes(),
                Status::BadFrame,
                Closes,
            ),
        ];
        if at_server {
            let args = hello_args(token, PrefixId(0), 9);
            cases.push(case("a Hello to shard 9 of 2", of(&args), Status::InvalidArgument, Closes));
        }
        cases
    };
    for node in setup.nodes() {
        run_cases(|| Raw::connect(node), cases(node == setup.server()));
        // A header that was refused alone leaves the handshake to be had.
        let mut raw = Raw::connect(node);
        raw.send(&patched(good.clone(), 4, &[2, 0]));
        assert_eq!(raw.reply().status(), Status::UnknownFlag);
        assert_eq!(raw.hello(token, PrefixId(0), ANY_SHARD).status(), Status::Ok);
        raw.expect_alive();
        // A peer that ends in the middle of a frame is answered nothing.
        for cut in [0, 1, 2, 31, 63, REQUEST_HEADER, good.len() - 1] {
            let mut raw = Raw::connect(node);
            raw.send(&good[..cut]);
            raw.finish().unwrap();
            raw.expect_closed();
            let mut raw = Raw::greeted(node, token, ANY_SHARD);
            raw.send(&good[..cut]);
            raw.finish().unwrap();
            raw.expect_closed();
        }
        // One byte at a time is a frame like any other.
        let mut raw = Raw::connect(node);
        for byte in &good {
            raw.send(&[*byte]);
        }
        assert_eq!(raw.reply().status(), Status::Ok);
    }
    setup.unharmed();
}

/// Bodies of the messages that a controller takes from a job.
fn control_bodies(setup: &Setup) -> Vec<(Op, Vec<u8>)> {
    let job = setup.job.job.0;
    let (path, name) = (String::from("a"), String::from("kv"));
    let options = PrefixOptions::default();
    let (parents, readers) = (vec!["a".into()], vec!["a".into()]);
    let node = DagNode { name: "n".into(), parents, options: options.clone(), readers };
    vec![
        (Op::Ping, Vec::new()),
        (Op::DeregisterJob, DeregisterJobRequest { job }.encode()),
        (Op::ListJobs, Vec::new()),
        (Op::ListKinds, Vec::new()),
        (Op::JobTree, JobTreeRequest { job }.encode()),
        (
            Op::CreatePrefix,
            CreatePrefixRequest { job, path: "b".into(), parents: vec!["a".into()], options }
                .encode(),
        ),
        (Op::CreateHierarchy, CreateHierarchyRequest { job, nodes: vec![node] }.encode()),
        (Op::RemovePrefix, RemovePrefixRequest { job, path: path.clone() }.encode()),
        (Op::RenewLeases, RenewLeasesRequest { job, paths: vec![path.clone()] }.encode()),
        (
            Op::FlushPrefix,
            FlushPrefixRequest {
                job,
                path: path.clone(),
                place: "out".into(),
                below: vec![],
                barrier: false,
            }
            .encode(),
        ),
        (Op::FlushInfo, FlushInfoRequest { job, flush: 1 }.encode()),
        (Op::CancelFlush, CancelFlushRequest { job, flush: 1 }.encode()),
        (
            Op::LocateFlush,
            LocateFlushRequest { job, place: "out".into(), path: "".into() }.encode(),
        ),
        (Op::PublishPrefix, PublishPrefixRequest { job, path: path.clone() }.encode()),
        (Op::LeaseInfo, LeaseInfoRequest { job, path: path.clone() }.encode()),
        (
            Op::SetPermissions,
            SetPermissionsRequest { job, path: path.clone(), owner_verbs: 3, job_verbs: 3 }
                .encode(),
        ),
        (
            Op::DeclareReaders,
            DeclareReadersRequest {
                job,
                path: path.clone(),
                readers: vec!["a".into()],
                replace: true,
            }
            .encode(),
        ),
        (Op::CommitTask, CommitTaskRequest { job, path: String::new() }.encode()),
        (
            Op::CreateStructure,
            CreateStructureRequest {
                job,
                path: path.clone(),
                name: "new".into(),
                kind: 0x12,
                blocks: 1,
                max_items: 0,
                max_bytes: 0,
                open_existing: true,
            }
            .encode(),
        ),
        (
            Op::OpenStructure,
            OpenStructureRequest { job, path: path.clone(), name: name.clone() }.encode(),
        ),
        (Op::ReopenStructure, ReopenStructureRequest { job, structure: 1 }.encode()),
        (
            Op::ExtentBlocks,
            ExtentBlocksRequest { job, structure: 1, bytes: 1, full: vec![1], value: 0 }.encode(),
        ),
        (Op::BeginAppend, BeginAppendRequest { job, structure: 1, bytes: 1 }.encode()),
        (Op::CommitAppend, CommitAppendRequest { job, structure: 1, block: 1, epoch: 1 }.encode()),
        (Op::DropAppend, DropAppendRequest { job, structure: 1, block: 1, epoch: 1 }.encode()),
        (Op::RemoveStructure, RemoveStructureRequest { job, path, name }.encode()),
        (Op::ClusterStatus, Vec::new()),
        (
            Op::SetQuota,
            SetQuotaRequest {
                job,
                level: 1,
                name: String::new(),
                max_blocks: 9,
                soft_blocks: 3,
                weight: 0,
            }
            .encode(),
        ),
        (Op::GetQuota, GetQuotaRequest { job, level: 1, name: String::new() }.encode()),
        (Op::JobWeights, JobWeightsRequest { job }.encode()),
        (Op::JobCost, JobCostRequest { job }.encode()),
    ]
}

#[test]
fn bodies_that_do_not_parse_are_refused_whole() {
    use Then::Survives;
    let setup = Setup::new();
    let bad = Status::BadFrame;
    let mut cases = Vec::new();
    let of = |op: Op, args: &[u8]| frame(RequestHeader::new(op), args, &[]);
    let bodies = control_bodies(&setup);
    let covered: Vec<Op> = bodies.iter().map(|(op, _)| *op).collect();
    for op in Op::ALL.into_iter().filter(|op| op.info().auth == Auth::Job) {
        let here = op.info().plane != Plane::Data;
        assert_eq!(here, covered.contains(&op), "{op:?} has a body to break");
    }
    for (op, body) in bodies {
        let longer = [&body[..], &[0]].concat();
        cases.push(case(format!("{op:?} with a byte too many"), of(op, &longer), bad, Survives));
        for cut in 0..body.len() {
            cases.push(case(format!("{op:?} cut at {cut}"), of(op, &body[..cut]), bad, Survives));
        }
    }
    let job = setup.job.job.0.to_le_bytes();
    let path = |bytes: &[u8]| [&job[..], &(bytes.len() as u16).to_le_bytes(), bytes].concat();
    let endless = |op, n: u32| of(op, &[&job[..], &n.to_le_bytes()].concat());
    cases.extend([
        case("text that is not UTF-8", of(Op::LeaseInfo, &path(&[0xC3, 0x28])), bad, Survives),
        case(
            "text beyond its end",
            of(Op::LeaseInfo, &[&job[..], &[0xFF; 2]].concat()),
            bad,
            Survives,
        ),
        case("a list without end", endless(Op::RenewLeases, u32::MAX), bad, Survives),
        case("a list over the limit", endless(Op::CreateHierarchy, 65_537), bad, Survives),
        case("a plan of nothing, cut", endless(Op::CreateHierarchy, 65_536), bad, Survives),
    ]);
    run_cases(|| Raw::greeted(setup.controller(), &setup.job.token, ANY_SHARD), cases);

    // The largest body that a controller takes: a plan is refused by its counts, any other body once it
    // was read whole.
    let mut raw = Raw::greeted(setup.controller(), &setup.job.token, ANY_SHARD);
    let body = vec![0xFF; CONTROL_ARGS_MAX];
    assert_eq!(raw.ask(Op::CreateHierarchy, &body).status(), Status::LimitExceeded);
    assert_eq!(raw.ask(Op::RenewLeases, &body).status(), bad);
    raw.expect_alive();

    let grant = PresentGrantRequest { grant: setup.kv.grant.clone() }.encode();
    let mut cases = vec![case(
        "a grant with a byte too many",
        of(Op::PresentGrant, &[&grant[..], &[0]].concat()),
        bad,
        Survives,
    )];
    for cut in 0..grant.len() {
        cases.push(case("a grant cut short", of(Op::PresentGrant, &grant[..cut]), bad, Survives));
    }
    let mut range = Vec::new();
    ReadArgs { offset: 0, length: 1 }.put(&mut range);
    let mut scan = Vec::new();
    ScanArgs { cursor: 0, bytes: 100, brings: Brings::Values, prefix: b"" }.put(&mut scan);
    for shard in [0, 1] {
        // Each on its own lane: a retry on the same lane would get the recorded answer.
        let lanes = Cell::new(0);
        let lane = || {
            lanes.set(lanes.get() + 1);
            lanes.get()
        };
        let kv =
            |op, args: &[u8], payload: &[u8]| frame(setup.kv_header(op, lane()), args, payload);
        let log = |op, args: &[u8]| frame(setup.file_header(op, lane()), args, &[]);
        let extents =
            |op, args: &[u8], payload: &[u8]| frame(setup.extents_header(op), args, payload);
        let mut cases = vec![
            case("a read of too little", log(Op::FileRead, &range[..11]), bad, Survives),
            case(
                "a read of too much",
                log(Op::FileRead, &[&range[..], &[0]].concat()),
                bad,
                Survives,
            ),
            case("arguments to FileSize", log(Op::FileSize, b"x"), bad, Survives),
            case("arguments to FileMap", log(Op::FileMap, b"x"), bad, Survives),
            case("arguments to FileSeal", log(Op::FileSeal, b"x"), bad, Survives),
            case(
                "arguments to FileAppend",
                frame(setup.file_header(Op::FileAppend, lane()), b"x", b"y"),
                bad,
                Survives,
            ),
            case("arguments to KvLength", kv(Op::KvLength, b"x", b""), bad, Survives),
            case("a put of nothing", kv(Op::KvPut, b"", b"v"), bad, Survives),
            case("a put of mode 2", kv(Op::KvPut, b"\x02k", b"v"), bad, Survives),
            case("extents of mode 3", kv(Op::KvPutExtents, b"\x03k", &[0; 28]), bad, Survives),
            case("no old extents", kv(Op::KvPutExtents, b"\x02k", &[9, 0, 0, 0, 1]), bad, Survives),
            case("half an extent", kv(Op::KvPutExtents, b"\0k", &[0; 27]), bad, Survives),
            case(
                "half an extent to delete",
                kv(Op::KvDeleteExtents, b"k", &[0; 27]),
                bad,
                Survives,
            ),
            case("arguments of an extent", extents(Op::ExtentPut, b"x", b"v"), bad, Survives),
            case("half an id", extents(Op::ExtentGet, b"1234", b""), bad, Survives),
            case(
                "half of a list's extent",
                extents(Op::ExtentPutList, b"\0", &[0; 27]),
                bad,
                Survives,
            ),
            case("a list without a mode", extents(Op::ExtentPutList, b"", &[0; 28]), bad, Survives),
            case("an id and a half", extents(Op::ExtentKeep, &[0; 12], b""), bad, Survives),
            case("a delete of nothing", kv(Op::KvDelete, b"", b""), bad, Survives),
            case("a delete of mode 2", kv(Op::KvDelete, b"\x02k", b""), bad, Survives),
            case(
                "a scan of mode 3",
                kv(Op::KvScan, &patched(scan.clone(), 12, &[3]), b""),
                bad,
                Survives,
            ),
            case("a scan of too little", kv(Op::KvScan, &scan[..12], b""), bad, Survives),
            case("a swap of nothing", kv(Op::KvCompareAndSwap, b"", b"\0\0\0\0"), bad, Survives),
            case(
                "a swap whose key ends early",
                kv(Op::KvCompareAndSwap, b"\x01\x05\0k", b"\0\0\0\0"),
                bad,
                Survives,
            ),
            case(
                "a swap with a byte too many",
                kv(Op::KvCompareAndSwap, b"\x01\x01\0kx", b"\0\0\0\0"),
                bad,
                Survives,
            ),
            case(
                "a swap of presence 2",
                kv(Op::KvCompareAndSwap, b"\x02\x01\0k", b"\0\0\0\0"),
                bad,
                Survives,
            ),
            case(
                "a swap without a payload",
                kv(Op::KvCompareAndSwap, b"\x01\x01\0k", b""),
                bad,
                Survives,
            ),
            case(
                "a swap that expects more than it says",
                kv(Op::KvCompareAndSwap, b"\x01\x01\0k", b"\xFF\xFF\xFF\xFFab"),
                bad,
                Survives,
            ),
        ];
        let batch = b"\x01\0\0\0\x01\x01\0k\x01\0\0\0v";
        let many: Vec<u8> = [&[0, 16, 0, 0, 1, 0, 0, 0][..], &[0; 12]].concat();
        cases.extend([
            case("no ranges where one is told", log(Op::FileReadMany, &many[..8]), bad, Survives),
            case("half a range", log(Op::FileReadMany, &many[..19]), bad, Survives),
            case("keys without a bound", kv(Op::KvMultiGet, b"", b"\0\0\0\0"), bad, Survives),
            case(
                "more keys than bytes",
                kv(Op::KvMultiGet, &[0; 4], b"\xFF\xFF\xFF\xFF"),
                bad,
                Survives,
            ),
            case("a batch of no kind", kv(Op::KvBatch, b"", batch), bad, Survives),
            case("a batch of atomicity 2", kv(Op::KvBatch, b"\x02", batch), bad, Survives),
            case("a batch that is cut", kv(Op::KvBatch, b"\0", &batch[..12]), bad, Survives),
            case(
                "more operations than bytes",
                kv(Op::KvBatch, b"\x01", b"\xFF\xFF\xFF\x7F"),
                bad,
                Survives,
            ),
            case("no function", kv(Op::KvAccumulate, b"", b""), bad, Survives),
            case("function 10", kv(Op::KvAccumulate, b"\x0Ak", b""), bad, Survives),
            case("half a number", kv(Op::KvAccumulate, b"\x01k", b"1234"), bad, Survives),
            case("half an item", kv(Op::KvAccumulate, b"\x09k", b"\x01\0\0\0"), bad, Survives),
        ]);
        let invalid = Status::InvalidArgument;
        let nan = f64::NAN.to_le_bytes();
        cases.push(case("a NaN", kv(Op::KvAccumulate, b"\x04none", &nan), invalid, Survives));
        let long = vec![b'k'; KEY_MAX + 1];
        for op in [Op::KvGet, Op::KvExists, Op::KvUpdate, Op::KvUpsert] {
            cases.push(case(format!("{op:?} of no key"), kv(op, b"", b""), invalid, Survives));
            let bytes = kv(op, &long, b"");
            cases.push(case(format!("{op:?} of a long key"), bytes, Status::KeyTooLarge, Survives));
        }
        cases.push(case("a put of no key", kv(Op::KvPut, b"\0", b"v"), invalid, Survives));
        cases.push(case("a delete of no key", kv(Op::KvDelete, b"\0", b""), invalid, Survives));
        run_cases(|| setup.data(shard), cases);
    }
    run_cases(|| setup.data(ANY_SHARD), cases);
    setup.unharmed();
}

#[test]
fn blocks_that_are_not_there_are_refused() {
    use Then::Survives;
    let setup = Setup::new();
    let here = setup.kv.at;
    let (server, shard) = (here.block.server(), here.block.shard());
    let unknown = Status::UnknownBlock;
    for shard_of_connection in [0, 1] {
        let mut cases = Vec::new();
        let mut add = |what: &str, at: BlockAt, status| {
            for (op, args, payload) in
                [(Op::KvGet, &b"k"[..], &b""[..]), (Op::KvPut, b"\0k", b"harm")]
            {
                let bytes = frame(data_header(op, at, 1, 3), args, payload);
                cases.push(case(format!("{op:?} of {what}"), bytes, status, Survives));
            }
        };
        let block = |server, shard, index| BlockAt {
            block: BlockId::new(server, shard, index),
            epoch: here.epoch,
        };
        add("a block of another server", block(ServerId(server.0 + 1), shard, 0), unknown);
        add("a block of no server", block(ServerId(0), shard, here.block.index()), unknown);
        add("a block beyond the last", block(server, shard, BlockId::MAX_INDEX), unknown);
        add("a block of shard 2 of 2", block(server, ShardIx(2), 0), unknown);
        add("a block of shard 255", block(server, ShardIx(255), 0), unknown);
        add("every bit", BlockAt::of(u64::MAX, u64::MAX), unknown);
        let wrong = Status::WrongEpoch;
        for epoch in [0, here.epoch.0 - 1, here.epoch.0 + 1, u64::MAX] {
            let at = BlockAt { block: here.block, epoch: Epoch(epoch) };
            add(&format!("epoch {epoch:#x}"), at, wrong);
        }
        run_cases(|| setup.data(shard_of_connection), cases);

        // The same, with a payload that is judged by its header.
        let mut raw = setup.data(shard_of_connection);
        for (at, status) in [
            (block(server, ShardIx(255), 0), unknown),
            (block(server, shard, BlockId::MAX_INDEX), unknown),
            (BlockAt { block: here.block, epoch: Epoch(here.epoch.0 + 1) }, wrong),
        ] {
            let reply = raw.request(data_header(Op::KvPut, at, 1, 3), b"\0k", &[7; LARGE]);
            assert_eq!(reply.status(), status, "{}", reply.message());
            raw.expect_alive();
        }
    }
    setup.unharmed();
}

#[test]
fn numbers_at_their_ends_are_answered() {
    let setup = Setup::new();
    let mut value = Vec::new();
    for shard in [0, 1] {
        let mut raw = setup.data(shard);
        for offset in [7, 8, BLOCK - 1, BLOCK, u64::MAX - 1, u64::MAX] {
            for length in [0, 1, u32::MAX] {
                let mut args = Vec::new();
                ReadArgs { offset, length }.put(&mut args);
                let reply = raw.request(setup.file_header(Op::FileRead, 0), &args, &[]);
                assert!(reply.payload.is_empty(), "bytes beyond the end at {offset}");
                let fine = matches!(reply.status(), Status::Ok | Status::WrongRange);
                assert!(fine, "a read at {offset}: {:?} {}", reply.status(), reply.message());
            }
        }
        for cursor in [0, 1, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
            for bytes in [0, 1, u32::MAX] {
                let mut args = Vec::new();
                ScanArgs { cursor, bytes, brings: Brings::Values, prefix: b"" }.put(&mut args);
                let reply = raw.request(setup.kv_header(Op::KvScan, 0), &args, &[]);
                let fine = matches!(reply.status(), Status::Ok | Status::WrongRange);
                assert!(fine, "a scan from {cursor}: {:?}", reply.status());
                assert!(scanned(&reply.payload).unwrap().len() <= 2);
            }
        }
        // A lane that begins in its middle, or at its very end, waits for its beginning.
        for (sequence, ack_lag) in [(2, 1), (2, 2), (u64::MAX, 1), (u64::MAX, u32::MAX)] {
            for flags in [0, 1] {
                let lane = LaneId(1000 + sequence as u32 % 7);
                let header = RequestHeader {
                    lane,
                    sequence: Sequence(sequence),
                    ack_lag,
                    flags,
                    ..setup.kv_header(Op::KvPut, 1)
                };
                let reply = raw.request(header, b"\0k", b"harm");
                let expected = if flags == 0 { Status::Resume } else { Status::OutcomeUnknown };
                assert_eq!(reply.status(), expected, "sequence {sequence}: {}", reply.message());
            }
        }
        // Over the limit of a value: told by the header, and the connection goes on.
        for (lane, length) in [(20, BLOCK / 8 + 1), (22, BLOCK), (24, 4 * BLOCK)] {
            let payload = vec![1; length as usize];
            let reply = raw.request(setup.kv_header(Op::KvPut, lane), b"\0k", &payload);
            assert_eq!(reply.status(), Status::ValueTooLarge, "{length}: {}", reply.message());
            // An append of more than that is taken where there is room for it.
            if length >= BLOCK {
                let reply = raw.request(setup.file_header(Op::FileAppend, lane), b"", &payload);
                assert_eq!(reply.status(), Status::ValueTooLarge, "{length}: {}", reply.message());
            }
            raw.expect_alive();
        }
    }
    setup.unharmed();
    let store = setup.client.open_kv(setup.job.job, "a:kv").unwrap();
    store.put(b"k", b"other").unwrap();
    assert!(store.get(b"k", &mut value).unwrap());
    assert_eq!(value, b"other");
}

// -------------------------------------------------------------------------- beside a victim

/// A client that puts and gets until `stop`, and reports its first round.
fn live(store: &Kv, stop: &AtomicBool, begun: &Sender<()>) {
    let mut value = Vec::new();
    let mut rounds = 0u64;
    while !stop.load(Relaxed) {
        let key = format!("key{}", rounds % 16);
        let expected = noise(rounds, 100 + (rounds % 1000) as usize);
        store.put(key.as_bytes(), &expected).expect("the victim's put");
        assert!(store.get(key.as_bytes(), &mut value).expect("the victim's get"));
        assert!(value == expected, "the victim got something else in round {rounds}");
        rounds += 1;
        if rounds == 1 {
            begun.send(()).unwrap();
        }
    }
}

/// Runs `harm` while a client of another job lives on the same servers.
fn beside_a_victim(cluster: &Cluster, harm: impl FnOnce()) {
    let (client, job) = cluster.job("victim");
    prefix(&client, &job, "v", 0);
    // Two blocks, which are of different shards where they can be.
    let store = kv(&client, &job, "v:kv", 2);
    let (stop, (begun, begins)) = (AtomicBool::new(false), channel());
    std::thread::scope(|scope| {
        let (store, stop_at) = (&store, &stop);
        scope.spawn(move || live(store, stop_at, &begun));
        let _stop = Stop(&stop);
        begins.recv().expect("the victim lives");
        harm();
    });
    // And still when all is over.
    let mut value = Vec::new();
    store.put(b"last", b"word").unwrap();
    assert!(store.get(b"last", &mut value).unwrap() && value == b"word");
}
