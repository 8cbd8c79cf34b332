//! Who may do what: every operation asked by everybody who may not, at both kinds of node.
//!
//! The tables are `match`es over `Op` without a wildcard: an operation that is added does not
//! compile until somebody has said who may use it.
// A helper of tests may unwrap like a test.
#![allow(clippy::unwrap_used)]

mod common;

use common::raw::{
    ANY_SHARD, Raw, Reply, data_header, first_block, frame, hello_args, keyed_cluster,
};
use common::{Cluster, KIB, eventually, file, kv, prefix};
use honeycomb_client::{Client, JobTicket};
use honeycomb_types::{
    BlockAt, BlockId, Epoch, Generation, JobId, Kind, PrefixId, StructureId, Verbs,
};
use honeycomb_wire::data::{ReadArgs, ScanArgs, SwapArgs};
use honeycomb_wire::messages::*;
use honeycomb_wire::token::{Caveat, Grant};
use honeycomb_wire::{Auth, Field, Plane, RootKey, attenuate};
use std::net::SocketAddr;

const MEMORY: u64 = 32 << 20;
const BLOCK: u64 = 1 << 20;
/// Over what is awaited whole, under what a block takes: such a payload is judged by its header.
const LARGE: usize = 100 << 10;
const CONTENT: &[u8] = b"the victim's file";

/// A structure of the victim with the grant that its own job got.
struct Held {
    at: BlockAt,
    id: StructureId,
    grant: Vec<u8>,
}

/// A job that others try to harm.
struct Victim {
    client: Client,
    job: JobTicket,
    own: PrefixId,
    peer: PrefixId,
    kv: Held,
    file: Held,
}

impl Victim {
    fn new(cluster: &Cluster, name: &str) -> Victim {
        let (client, job) = cluster.job(name);
        let own = prefix(&client, &job, "own", 0);
        let peer = prefix(&client, &job, "peer", 0);
        kv(&client, &job, "own:kv", 1).put(b"k", b"v").unwrap();
        file(&client, &job, "own:log").append(CONTENT).unwrap();
        let mut raw = Raw::greeted(cluster.controller.address(), &job.token, ANY_SHARD);
        let (kv, file) = (open(&mut raw, &job, "own", "kv"), open(&mut raw, &job, "own", "log"));
        Victim { client, job, own, peer, kv, file }
    }

    fn held(&self, op: Op) -> &Held {
        if op as u16 >> 8 == Kind::File as u16 { &self.file } else { &self.kv }
    }

    /// A token of the job, narrowed.
    fn token(&self, caveat: Caveat) -> Vec<u8> {
        attenuate(&self.job.token, caveat).unwrap()
    }
}

fn open(raw: &mut Raw, job: &JobTicket, path: &str, name: &str) -> Held {
    let body = OpenStructureRequest { job: job.job.0, path: path.into(), name: name.into() };
    let reply = raw.ask(Op::OpenStructure, &body.encode());
    assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
    let opened = OpenStructureReply::decode(&reply.args).unwrap();
    Held { at: first_block(&opened.map), id: StructureId(opened.structure), grant: opened.grant }
}

/// Everything that can be seen of the victim and of the cluster's jobs.
#[derive(Debug, PartialEq)]
struct Seen {
    value: Vec<u8>,
    entries: u64,
    content: Vec<u8>,
    sealed: Vec<u8>,
    tree: Vec<PrefixInfo>,
    jobs: Vec<(u64, String, u64, u64, u64)>,
}

/// Looks at the victim with the grants that its job got first: that they are still good is one of
/// the things to see.
struct Watch<'a> {
    victim: &'a Victim,
    cluster: Client,
    raw: Raw,
    kv: u32,
    file: u32,
    before: Seen,
    remaining_ms: i64,
}

impl<'a> Watch<'a> {
    fn new(cluster: &Cluster, victim: &'a Victim) -> Watch<'a> {
        let mut raw = Raw::greeted(cluster.servers[0].address(), &victim.job.token, ANY_SHARD);
        let (kv, file) = (raw.present(&victim.kv.grant), raw.present(&victim.file.grant));
        let before = Seen {
            value: Vec::new(),
            entries: 0,
            content: Vec::new(),
            sealed: Vec::new(),
            tree: Vec::new(),
            jobs: Vec::new(),
        };
        let cluster = cluster.client(cluster.controller.token(), PrefixId(0));
        let mut watch = Watch { victim, cluster, raw, kv, file, before, remaining_ms: i64::MAX };
        watch.before = watch.look();
        assert_eq!(watch.before.value, b"v");
        assert_eq!(watch.before.content, CONTENT);
        watch.renewed();
        watch
    }

    fn data(&mut self, op: Op, args: &[u8]) -> Reply {
        let grant = if op as u16 >> 8 == Kind::File as u16 { self.file } else { self.kv };
        let header = data_header(op, self.victim.held(op).at, grant, 1);
        let reply = self.raw.request(header, args, &[]);
        assert_eq!(reply.status(), Status::Ok, "the victim's {op:?}: {}", reply.message());
        reply
    }

    fn look(&mut self) -> Seen {
        let mut range = Vec::new();
        ReadArgs { offset: 0, length: 1000 }.put(&mut range);
        let mut tree = self.victim.client.tree(self.victim.job.job).unwrap();
        for node in &mut tree {
            node.remaining_ms = 0;
            node.structures.iter_mut().for_each(|s| s.bytes_used = 0);
        }
        let jobs = self.cluster.list_jobs().unwrap();
        Seen {
            value: self.data(Op::KvGet, b"k").payload,
            entries: self.data(Op::KvLength, &[]).header.value,
            content: self.data(Op::FileRead, &range).payload,
            sealed: self.data(Op::FileSize, &[]).args,
            tree,
            jobs: jobs
                .into_iter()
                .map(|j| (j.job, j.name, j.prefixes, j.structures, j.blocks))
                .collect(),
        }
    }

    fn remaining_ms(&self) -> i64 {
        self.victim.client.lease(self.victim.job.job, "own").unwrap().remaining_ms
    }

    /// The victim's lease was renewed by one who may: what is left of it counts from here. It is
    /// left to age until a renewal by another would show.
    fn renewed(&mut self) {
        eventually("the lease ages", || self.remaining_ms() < 60_000 - 50);
        self.remaining_ms = self.remaining_ms();
    }

    fn unharmed(&mut self, after: &str) {
        let now = self.look();
        assert_eq!(now, self.before, "after {after}");
        let last = self.remaining_ms;
        self.remaining_ms = self.remaining_ms();
        assert!(self.remaining_ms <= last, "{after} renewed the victim's lease");
    }
}

/// A well-formed request of every operation, about the victim.
struct Request {
    args: Vec<u8>,
    payload: Vec<u8>,
}

fn request_of(op: Op, victim: &Victim) -> Request {
    let (job, path) = (victim.job.job.0, "own".to_owned());
    let options = PrefixOptions::default();
    let at = victim.file.at;
    let body = |args: Vec<u8>| Request { args, payload: Vec::new() };
    let write = |args: &[u8]| Request { args: args.to_vec(), payload: b"harm".to_vec() };
    match op {
        Op::Hello => body(hello_args(&victim.job.token, PrefixId(0), ANY_SHARD)),
        Op::Ping => body(PingRequest {}.encode()),
        Op::PresentGrant => {
            let mut grant = victim.kv.grant.clone();
            *grant.last_mut().unwrap() ^= 1;
            body(PresentGrantRequest { grant }.encode())
        }
        Op::RegisterJob => {
            let name = "intruder".into();
            body(RegisterJobRequest { name, lease_ms: 0, quota_blocks: 0 }.encode())
        }
        Op::DeregisterJob => body(DeregisterJobRequest { job }.encode()),
        Op::ListJobs => body(ListJobsRequest {}.encode()),
        Op::JobTree => body(JobTreeRequest { job }.encode()),
        Op::FindJob => body(FindJobRequest { name: "victim".into() }.encode()),
        Op::CreatePrefix => {
            let path = "own/new".into();
            body(CreatePrefixRequest { job, path, parents: Vec::new(), options }.encode())
        }
        Op::CreateHierarchy => {
            let node = DagNode { name: "new".into(), parents: vec![path], options };
            body(CreateHierarchyRequest { job, nodes: vec![node] }.encode())
        }
        Op::RemovePrefix => body(RemovePrefixRequest { job, path }.encode()),
        Op::RenewLeases => body(RenewLeasesRequest { job, paths: vec![path] }.encode()),
        Op::LeaseInfo => body(LeaseInfoRequest { job, path }.encode()),
        Op::SetPermissions => {
            body(SetPermissionsRequest { job, path, owner_verbs: 3, job_verbs: 3 }.encode())
        }
        Op::CreateStructure => {
            let kind = Kind::Kv as u8;
            let name = "new".into();
            let (blocks, slots, open_existing) = (1, 0, false);
            let body_ =
                CreateStructureRequest { job, path, name, kind, blocks, slots, open_existing };
            body(body_.encode())
        }
        Op::OpenStructure => body(OpenStructureRequest { job, path, name: "kv".into() }.encode()),
        Op::ReopenStructure => {
            body(ReopenStructureRequest { job, structure: victim.kv.id.0 }.encode())
        }
        Op::RemoveStructure => {
            body(RemoveStructureRequest { job, path, name: "kv".into() }.encode())
        }
        Op::ClusterStatus => body(ClusterStatusRequest {}.encode()),
        Op::JoinServer => body(
            JoinServerRequest {
                address: "127.0.0.1:1".into(),
                incarnation: 7,
                shards: 1,
                blocks_per_shard: 1,
                block_size: BLOCK,
            }
            .encode(),
        ),
        Op::Report => body(
            ReportRequest {
                bytes_resident: 0,
                connections: 0,
                requests: 0,
                forwarded: 0,
                usage: Vec::new(),
                active: vec![ActivePrefix { job, prefix: victim.own.0, ago_ms: 0 }],
            }
            .encode(),
        ),
        Op::GrowStructure => body(
            GrowStructureRequest {
                structure: victim.file.id.0,
                block: at.block.0,
                epoch: at.epoch.0,
            }
            .encode(),
        ),
        Op::SealBlock => body(
            SealBlockRequest {
                structure: victim.file.id.0,
                block: at.block.0,
                epoch: at.epoch.0,
                length: 1,
                last: true,
            }
            .encode(),
        ),
        Op::OpenBlock => body(
            OpenBlockRequest {
                block: at.block.0,
                epoch: at.epoch.0 + 1,
                job,
                prefix: victim.own.0,
                structure: victim.file.id.0,
                generation: 1,
                kind: Kind::File as u8,
                start: 0,
                end: u64::MAX,
                slots: 0,
            }
            .encode(),
        ),
        Op::FreeBlock => body(FreeBlockRequest { block: at.block.0, epoch: at.epoch.0 }.encode()),
        Op::SetGeneration => {
            body(SetGenerationRequest { prefix: victim.own.0, generation: 1000 }.encode())
        }
        Op::FileAppend => write(&[]),
        Op::FileRead => {
            let mut args = Vec::new();
            ReadArgs { offset: 0, length: 1000 }.put(&mut args);
            body(args)
        }
        Op::FileSize | Op::FileSeal | Op::KvLength => body(Vec::new()),
        Op::KvGet | Op::KvExists => body(b"k".to_vec()),
        Op::KvPut => write(b"\0k"),
        Op::KvDelete => body(b"\0k".to_vec()),
        Op::KvUpdate | Op::KvUpsert => write(b"k"),
        Op::KvCompareAndSwap => {
            let swap = SwapArgs { present: true, key: b"k", expected: b"v", new: b"harm" };
            let (args, payload) = swap.encode();
            Request { args, payload }
        }
        Op::KvScan => {
            let mut args = Vec::new();
            ScanArgs { cursor: 0, bytes: 1000, keys_only: false, prefix: b"" }.put(&mut args);
            body(args)
        }
    }
}

/// Sends one to a node under a grant of this connection.
fn send_to(raw: &mut Raw, op: Op, victim: &Victim, grant: u32, lane: u32) -> Reply {
    let Request { args, payload } = request_of(op, victim);
    raw.request(header_of(op, victim, grant, lane), &args, &payload)
}

fn header_of(op: Op, victim: &Victim, grant: u32, lane: u32) -> honeycomb_wire::RequestHeader {
    if op.info().auth == Auth::Grant {
        data_header(op, victim.held(op).at, grant, lane)
    } else {
        honeycomb_wire::RequestHeader::new(op)
    }
}

// ------------------------------------------------------------------------ before the handshake

#[test]
fn nothing_is_served_before_hello() {
    let (cluster, _) = keyed_cluster(MEMORY, BLOCK);
    let victim = Victim::new(&cluster, "victim");
    let mut watch = Watch::new(&cluster, &victim);
    for node in [cluster.controller.address(), cluster.servers[0].address()] {
        for op in Op::ALL {
            let mut raw = Raw::connect(node);
            let reply = send_to(&mut raw, op, &victim, 1, 1);
            if op == Op::Hello {
                assert_eq!(reply.status(), Status::Ok);
                raw.expect_alive();
            } else {
                assert_eq!(reply.status(), Status::HandshakeRequired, "{op:?} before Hello");
                raw.expect_closed();
            }
            watch.unharmed(&format!("{op:?} before Hello"));
        }
    }
}

/// Tokens that prove nothing.
fn bad_tokens(victim: &Victim, foreign: &JobTicket) -> Vec<(&'static str, Vec<u8>)> {
    let good = &victim.job.token;
    let changed = |at: usize, to: u8| {
        let mut token = good.clone();
        token[at] = to;
        token
    };
    let narrow = victim.token(Caveat::Verbs(Verbs::READ));
    // The caveat taken out again, under the tag that includes it.
    let widened = [&good[..10], &narrow[narrow.len() - 32..]].concat();
    // The tag of one job under the name of the other.
    let renamed = [&good[..10], &foreign.token[10..]].concat();
    // The job's name changed to nobody's, which is the cluster's.
    let mut promoted = good.clone();
    promoted[1..9].fill(0);
    let other_cluster = RootKey([0xA5; 32]).token_key().issue(Some(victim.job.job));
    let mut endless = good.clone();
    for _ in 0..100 {
        match attenuate(&endless, Caveat::Expires(u64::MAX)) {
            Ok(longer) => endless = longer,
            Err(_) => break,
        }
    }
    endless.extend_from_slice(&[0; 32]);
    vec![
        ("missing", Vec::new()),
        ("malformed", b"let me in".to_vec()),
        ("of another version", changed(0, 2)),
        ("with an altered tag", changed(good.len() - 1, good[good.len() - 1] ^ 1)),
        ("with a caveat counted that is not there", changed(9, 1)),
        ("cut", good[..good.len() - 1].to_vec()),
        ("followed by a byte", [&good[..], &[0]].concat()),
        ("widened", widened),
        ("renamed", renamed),
        ("promoted", promoted),
        ("of another cluster", other_cluster),
        ("too long", endless),
        ("expired", victim.token(Caveat::Expires(0))),
    ]
}

#[test]
fn a_token_that_proves_nothing_serves_nothing() {
    let (cluster, _) = keyed_cluster(MEMORY, BLOCK);
    let victim = Victim::new(&cluster, "victim");
    let (_, foreign) = cluster.job("foreign");
    let mut watch = Watch::new(&cluster, &victim);
    for node in [cluster.controller.address(), cluster.servers[0].address()] {
        for (what, token) in bad_tokens(&victim, &foreign) {
            for op in Op::ALL {
                // The request comes right behind the handshake, before its refusal is known.
                let mut raw = Raw::connect(node);
                let hello = honeycomb_wire::RequestHeader::new(Op::Hello);
                let first = frame(hello, &hello_args(&token, PrefixId(0), ANY_SHARD), &[]);
                let Request { args, payload } = request_of(op, &victim);
                let then = frame(header_of(op, &victim, 1, 1), &args, &payload);
                raw.send(&[first, then].concat());
                let reply = raw.reply();
                assert_eq!(reply.status(), Status::Unauthenticated, "a token {what}");
                raw.expect_closed();
            }
            watch.unharmed(&format!("a token {what}"));
        }
    }
}

// ---------------------------------------------------------------------------- at the controller

/// What the controller answers to a request about the victim's job, by the token of who asks.
struct AtController {
    /// Another job's.
    foreign: Status,
    /// The victim's, narrowed to reading.
    read_only: Status,
    /// The victim's, narrowed to another task than the prefix's.
    other_task: Status,
    /// The cluster's, narrowed to reading.
    reading_cluster: Status,
    /// The victim's, past its time since the handshake.
    expired: Status,
}

fn at_controller(op: Op) -> AtController {
    use Status::*;
    let row = |foreign, read_only, other_task, reading_cluster| AtController {
        foreign,
        read_only,
        other_task,
        reading_cluster,
        expired: Unauthenticated,
    };
    let all = |status| AtController { expired: status, ..row(status, status, status, status) };
    match op {
        Op::Hello => all(HandshakeRequired),
        Op::Ping | Op::ListJobs | Op::ClusterStatus => row(Ok, Ok, Ok, Ok),
        Op::RegisterJob => {
            row(PermissionDenied, PermissionDenied, PermissionDenied, PermissionDenied)
        }
        Op::FindJob => row(PermissionDenied, PermissionDenied, PermissionDenied, Ok),
        Op::JobTree | Op::LeaseInfo | Op::OpenStructure | Op::ReopenStructure => {
            row(UnknownJob, Ok, Ok, Ok)
        }
        // Each path succeeds or fails alone: see `renewals_fail_path_by_path`.
        Op::RenewLeases => row(UnknownJob, Ok, Ok, PermissionDenied),
        Op::DeregisterJob
        | Op::CreatePrefix
        | Op::CreateHierarchy
        | Op::RemovePrefix
        | Op::SetPermissions
        | Op::CreateStructure
        | Op::RemoveStructure => {
            row(UnknownJob, PermissionDenied, PermissionDenied, PermissionDenied)
        }
        Op::JoinServer | Op::Report | Op::GrowStructure | Op::SealBlock => {
            row(PermissionDenied, PermissionDenied, PermissionDenied, PermissionDenied)
        }
        Op::OpenBlock | Op::FreeBlock | Op::SetGeneration => all(NotServedHere),
        Op::PresentGrant
        | Op::FileAppend
        | Op::FileRead
        | Op::FileSize
        | Op::FileSeal
        | Op::KvGet
        | Op::KvPut
        | Op::KvDelete
        | Op::KvExists
        | Op::KvUpdate
        | Op::KvUpsert
        | Op::KvCompareAndSwap
        | Op::KvScan
        | Op::KvLength => all(NotServedHere),
    }
}

#[test]
fn the_controller_serves_nobody_what_is_not_theirs() {
    let (cluster, root) = keyed_cluster(MEMORY, BLOCK);
    let victim = Victim::new(&cluster, "victim");
    let (_, foreign) = cluster.job("foreign");
    let mut watch = Watch::new(&cluster, &victim);
    let node = cluster.controller.address();
    let reading = Caveat::Verbs(Verbs::READ);
    let reading_cluster = attenuate(cluster.controller.token(), reading).unwrap();

    // A foreign session that claims to run for the victim's prefix: its traffic renews nothing.
    let mut foreign_raw = Raw::connect(node);
    assert_eq!(foreign_raw.hello(&foreign.token, victim.own, ANY_SHARD).status(), Status::Ok);
    let mut callers = [
        ("another job", foreign_raw, (|row| row.foreign) as fn(&AtController) -> Status),
        ("a reader", Raw::greeted(node, &victim.token(reading), ANY_SHARD), |row| row.read_only),
        (
            "another task",
            Raw::greeted(node, &victim.token(Caveat::Task(victim.peer)), ANY_SHARD),
            |row| row.other_task,
        ),
        ("a reading cluster token", Raw::greeted(node, &reading_cluster, ANY_SHARD), |row| {
            row.reading_cluster
        }),
    ];
    for (who, raw, expected) in &mut callers {
        for op in Op::ALL {
            let reply = send_to(raw, op, &victim, 1, 1);
            let expected = expected(&at_controller(op));
            assert_eq!(reply.status(), expected, "{op:?} by {who}: {}", reply.message());
            if op == Op::RenewLeases && *who == "a reader" {
                watch.renewed();
            }
            check_content(op, who, &reply, &foreign, &victim, &root);
            watch.unharmed(&format!("{op:?} by {who}"));
            // A large payload is refused by its header, before it arrives.
            if op.info().payload {
                large_is_refused(raw, header_of(op, &victim, 1, 1), expected, true);
                watch.unharmed(&format!("a large {op:?} by {who}"));
            }
        }
        raw.expect_alive();
    }
}

/// An answer that is no refusal tells nothing of others and hands out no more than was there.
fn check_content(
    op: Op,
    who: &str,
    reply: &Reply,
    foreign: &JobTicket,
    victim: &Victim,
    root: &RootKey,
) {
    if reply.status() != Status::Ok {
        return;
    }
    let grant = |bytes: &[u8]| root.grant_key().verify(bytes).unwrap();
    match op {
        Op::ListJobs if who == "another job" => {
            let jobs = ListJobsReply::decode(&reply.args).unwrap().jobs;
            let ids: Vec<u64> = jobs.iter().map(|j| j.job).collect();
            assert_eq!(ids, [foreign.job.0]);
        }
        Op::ClusterStatus => {
            let status = ClusterStatusReply::decode(&reply.args).unwrap();
            assert_eq!(status.servers.is_empty(), who != "a reading cluster token");
        }
        Op::FindJob => {
            let found = FindJobReply::decode(&reply.args).unwrap();
            let scope = root.token_key().verify(&found.token).unwrap();
            assert_eq!((scope.job, scope.verbs), (Some(victim.job.job), Verbs::READ));
        }
        Op::OpenStructure | Op::ReopenStructure => {
            let opened = OpenStructureReply::decode(&reply.args).unwrap();
            assert_eq!(opened.verbs, Verbs::READ.0, "{op:?} by {who}");
            assert_eq!(grant(&opened.grant).verbs, Verbs::READ, "{op:?} by {who}");
        }
        Op::RenewLeases if who == "another task" => {
            let results = RenewLeasesReply::decode(&reply.args).unwrap().results;
            let statuses: Vec<u16> = results.iter().map(|r| r.status).collect();
            assert_eq!(statuses, [Status::PermissionDenied as u16]);
        }
        _ => {}
    }
}

fn large_is_refused(
    raw: &mut Raw,
    mut header: honeycomb_wire::RequestHeader,
    expected: Status,
    early: bool,
) {
    header.request = raw.number();
    (header.args_len, header.payload_len) = (4, LARGE as u32);
    let args = [0, 1, 0, b'k'];
    raw.send(&[&header.encode()[..], &args].concat());
    if !early {
        raw.send(&vec![7; LARGE]);
    }
    let reply = raw.reply();
    assert_eq!(reply.header.request, header.request);
    assert_eq!(reply.status(), expected, "a large {:?}: {}", header.op, reply.message());
    if early {
        raw.send(&vec![7; LARGE]);
    }
    raw.expect_alive();
}

#[test]
fn a_token_that_ends_during_its_connection_ends_what_it_may() {
    let (cluster, root) = keyed_cluster(MEMORY, BLOCK);
    let victim = Victim::new(&cluster, "victim");
    let mut watch = Watch::new(&cluster, &victim);
    let node = cluster.controller.address();
    let mut raw = Raw::connect(node);
    let hello = raw.hello(&victim.job.token, PrefixId(0), ANY_SHARD);
    let now_ms = HelloReply::decode(&hello.args).unwrap().now_ms;
    let end = now_ms + 300;
    let mut raw = Raw::greeted(node, &victim.token(Caveat::Expires(end)), ANY_SHARD);
    let opened = open(&mut raw, &victim.job, "own", "kv");
    let grant = root.grant_key().verify(&opened.grant).unwrap();
    assert!(grant.expires_ms <= end, "the grant outlives the token that it was opened with");
    eventually("the token ends", || raw.ask(Op::Ping, &[]).status() == Status::Unauthenticated);
    for op in Op::ALL {
        let reply = send_to(&mut raw, op, &victim, 1, 1);
        assert_eq!(reply.status(), at_controller(op).expired, "{op:?}: {}", reply.message());
        watch.unharmed(&format!("{op:?} with a token that has ended"));
    }
}

#[test]
fn renewals_fail_path_by_path() {
    let (cluster, _) = keyed_cluster(MEMORY, BLOCK);
    let victim = Victim::new(&cluster, "victim");
    let mut watch = Watch::new(&cluster, &victim);
    let token = victim.token(Caveat::Task(victim.peer));
    let mut raw = Raw::greeted(cluster.controller.address(), &token, ANY_SHARD);
    let paths = ["peer", "own", "nowhere", "peer"].map(String::from).to_vec();
    let body = RenewLeasesRequest { job: victim.job.job.0, paths };
    let reply = raw.ask(Op::RenewLeases, &body.encode());
    let results = RenewLeasesReply::decode(&reply.args).unwrap().results;
    let statuses: Vec<_> = results.iter().map(|r| Status::from_code(r.status).unwrap()).collect();
    let denied = Status::PermissionDenied;
    assert_eq!(statuses, [Status::Ok, denied, Status::NotFound, Status::Ok]);
    watch.unharmed("a renewal by another task");
}

#[test]
fn a_task_is_no_other_task() {
    let (cluster, _) = keyed_cluster(MEMORY, BLOCK);
    let victim = Victim::new(&cluster, "victim");
    let mut watch = Watch::new(&cluster, &victim);
    let peer = victim.token(Caveat::Task(victim.peer));
    for node in [cluster.controller.address(), cluster.servers[0].address()] {
        let mut raw = Raw::connect(node);
        let reply = raw.hello(&peer, victim.own, ANY_SHARD);
        assert_eq!(reply.status(), Status::PermissionDenied, "{}", reply.message());
        raw.expect_closed();
    }
    // Narrowed to two tasks it is neither, and opens nothing.
    let neither = attenuate(&peer, Caveat::Task(victim.own)).unwrap();
    let mut raw = Raw::greeted(cluster.controller.address(), &neither, ANY_SHARD);
    for op in [Op::OpenStructure, Op::ReopenStructure, Op::CreateStructure, Op::RemovePrefix] {
        let reply = send_to(&mut raw, op, &victim, 0, 1);
        assert_eq!(reply.status(), Status::PermissionDenied, "{op:?}: {}", reply.message());
    }
    // Nor does it keep alive what its first task could not: narrowing never adds anything.
    let reply = send_to(&mut raw, Op::RenewLeases, &victim, 0, 1);
    let results = RenewLeasesReply::decode(&reply.args).unwrap().results;
    let statuses: Vec<u16> = results.iter().map(|r| r.status).collect();
    assert_eq!(statuses, [Status::PermissionDenied as u16], "a renewal by two tasks");
    watch.unharmed("a token of two tasks");
}

// ------------------------------------------------------------------------- at the memory server

/// What a memory server answers, by the grant that the request names.
struct AtServer {
    /// None that this connection has presented.
    none: Status,
    /// One of another structure, prefix or job.
    foreign: Status,
    /// One that allows to read.
    reading: Status,
    /// One that allows to write.
    writing: Option<Status>,
    /// One that allows nothing.
    nothing: Status,
    /// One past its time.
    expired: Status,
    /// One from before the prefix's permissions changed.
    revoked: Status,
}

fn at_server(op: Op) -> AtServer {
    use Status::*;
    let data = |reading, writing| AtServer {
        none: PermissionDenied,
        foreign: WrongEpoch,
        reading,
        writing,
        nothing: PermissionDenied,
        expired: GrantExpired,
        revoked: GrantRevoked,
    };
    let reads = data(Ok, Some(PermissionDenied));
    // That a writer may write is shown elsewhere: here nothing may change.
    let writes = data(PermissionDenied, None);
    let all = |status| AtServer {
        none: status,
        foreign: status,
        reading: status,
        writing: Some(status),
        nothing: status,
        expired: status,
        revoked: status,
    };
    match op {
        Op::Hello => all(HandshakeRequired),
        Op::Ping => all(Ok),
        // A forged one; those of others are presented below.
        Op::PresentGrant => all(PermissionDenied),
        Op::RegisterJob
        | Op::DeregisterJob
        | Op::ListJobs
        | Op::JobTree
        | Op::FindJob
        | Op::CreatePrefix
        | Op::CreateHierarchy
        | Op::RemovePrefix
        | Op::RenewLeases
        | Op::LeaseInfo
        | Op::SetPermissions
        | Op::CreateStructure
        | Op::OpenStructure
        | Op::ReopenStructure
        | Op::RemoveStructure
        | Op::ClusterStatus
        | Op::JoinServer
        | Op::Report
        | Op::GrowStructure
        | Op::SealBlock
        | Op::OpenBlock
        | Op::FreeBlock
        | Op::SetGeneration => all(NotServedHere),
        Op::FileRead | Op::FileSize | Op::KvGet | Op::KvExists | Op::KvScan | Op::KvLength => reads,
        Op::FileAppend
        | Op::FileSeal
        | Op::KvPut
        | Op::KvDelete
        | Op::KvUpdate
        | Op::KvUpsert
        | Op::KvCompareAndSwap => writes,
    }
}

/// A connection that tries, and the numbers of its grants.
struct Holder {
    who: String,
    raw: Raw,
    shard: u8,
    kv: u32,
    file: u32,
    expected: fn(&AtServer) -> Option<Status>,
}

impl Holder {
    fn new(
        who: &str,
        node: SocketAddr,
        token: &[u8],
        shard: u8,
        grants: Option<[&[u8]; 2]>,
        expected: fn(&AtServer) -> Option<Status>,
    ) -> Holder {
        let mut raw = Raw::greeted(node, token, shard);
        let [kv, file] = grants.map_or([0, 0], |grants| grants.map(|g| raw.present(g)));
        Holder { who: format!("{who}, on shard {shard}"), raw, shard, kv, file, expected }
    }

    fn try_everything(&mut self, victim: &Victim, watch: &mut Watch<'_>) {
        let who = self.who.clone();
        for op in Op::ALL {
            let Some(expected) = (self.expected)(&at_server(op)) else { continue };
            let held = victim.held(op);
            let grant = if held.id == victim.kv.id { self.kv } else { self.file };
            let reply = send_to(&mut self.raw, op, victim, grant, 1);
            assert_eq!(reply.status(), expected, "{op:?} with {who}: {}", reply.message());
            if expected != Status::Ok {
                assert!(reply.payload.is_empty(), "a refusal of {op:?} carries data");
            }
            watch.unharmed(&format!("{op:?} with {who}"));
            if op.info().payload {
                // On another core's connection it is gathered first.
                let early = held.at.block.shard().0 == self.shard;
                large_is_refused(&mut self.raw, header_of(op, victim, grant, 1), expected, early);
                watch.unharmed(&format!("a large {op:?} with {who}"));
            }
        }
        self.raw.expect_alive();
    }
}

#[test]
fn a_memory_server_serves_nobody_what_is_not_theirs() {
    let (cluster, root) = keyed_cluster(MEMORY, BLOCK);
    let victim = Victim::new(&cluster, "victim");
    let foreign = Victim::new(&cluster, "foreign");
    kv(&victim.client, &victim.job, "own:other-kv", 1);
    file(&victim.client, &victim.job, "own:other-log");
    let mut watch = Watch::new(&cluster, &victim);
    let node = cluster.servers[0].address();
    let mut controller = Raw::greeted(cluster.controller.address(), &victim.job.token, ANY_SHARD);
    let others = ["other-kv", "other-log"].map(|n| open(&mut controller, &victim.job, "own", n));
    let peer = victim.token(Caveat::Task(victim.peer));
    let mut peer_raw = Raw::greeted(cluster.controller.address(), &peer, ANY_SHARD);
    let peers = ["kv", "log"].map(|name| open(&mut peer_raw, &victim.job, "own", name).grant);

    // The victim's own grants, with one thing altered and issued under the cluster's key.
    let altered = |alter: &dyn Fn(&mut Grant)| {
        [&victim.kv, &victim.file].map(|held| {
            let mut grant = root.grant_key().verify(&held.grant).unwrap();
            alter(&mut grant);
            root.grant_key().issue(&grant)
        })
    };
    let reading = altered(&|g| g.verbs = Verbs::READ);
    let writing = altered(&|g| g.verbs = Verbs::WRITE);
    let nothing = altered(&|g| g.verbs = Verbs::NONE);
    let expired = altered(&|g| g.expires_ms = 0);
    let wrong_prefix = altered(&|g| g.prefix = victim.peer);
    let wrong_job = altered(&|g| g.job = foreign.job.job);
    let wrong_structure = altered(&|g| g.structure = StructureId(g.structure.0 + 1000));
    fn pair(grants: &[Vec<u8>; 2]) -> Option<[&[u8]; 2]> {
        Some([&grants[0], &grants[1]])
    }
    let foreign_grants = [foreign.kv.grant.clone(), foreign.file.grant.clone()];
    let other_grants = [others[0].grant.clone(), others[1].grant.clone()];
    let (own, theirs) = (&victim.job.token[..], &foreign.job.token[..]);
    let all = cluster.controller.token();

    for shard in [0, 1] {
        let holder = |who: &str, token: &[u8], grants, expected| {
            Holder::new(who, node, token, shard, grants, expected)
        };
        let mut holders = vec![
            holder("no grant", own, None, |row| Some(row.none)),
            holder("no grant, by another job", theirs, None, |row| Some(row.none)),
            holder("no grant, by the cluster", all, None, |row| Some(row.none)),
            holder("another job's grant", theirs, pair(&foreign_grants), |row| Some(row.foreign)),
            holder("another job's grant, by the cluster", all, pair(&foreign_grants), |row| {
                Some(row.foreign)
            }),
            holder("another structure's grant", own, pair(&other_grants), |row| Some(row.foreign)),
            holder("a grant of another prefix", own, pair(&wrong_prefix), |row| Some(row.foreign)),
            holder("a grant of another structure", own, pair(&wrong_structure), |row| {
                Some(row.foreign)
            }),
            holder("a grant of this structure in another job", theirs, pair(&wrong_job), |row| {
                Some(row.foreign)
            }),
            holder("a grant to read", own, pair(&reading), |row| Some(row.reading)),
            holder("another task's grant", &peer, pair(&peers), |row| Some(row.reading)),
            holder("a grant to write", own, pair(&writing), |row| row.writing),
            holder("a grant to nothing", own, pair(&nothing), |row| Some(row.nothing)),
            holder("an expired grant", own, pair(&expired), |row| Some(row.expired)),
        ];
        // A number under which nothing was presented.
        let mut beyond = holder("a number beyond", own, None, |row| Some(row.none));
        (beyond.kv, beyond.file) = (1, u32::MAX);
        holders.push(beyond);
        // Grants that are refused when presented give no number to use.
        let forged = [&victim.kv.grant, &victim.file.grant].map(|good| {
            let mut grant = good.clone();
            grant[3] ^= 1;
            grant
        });
        let cut = [&victim.kv.grant, &victim.file.grant].map(|g| g[..g.len() - 1].to_vec());
        let stolen = [victim.kv.grant.clone(), victim.file.grant.clone()];
        let foreign_key = RootKey([0xA5; 32]).grant_key();
        let other_cluster = [&victim.kv, &victim.file]
            .map(|held| foreign_key.issue(&root.grant_key().verify(&held.grant).unwrap()));
        for (who, token, grants) in [
            ("a forged grant", own, &forged),
            ("a cut grant", own, &cut),
            ("a grant of another cluster", own, &other_cluster),
            ("a stolen grant", theirs, &stolen),
        ] {
            let mut holder = holder(who, token, None, |row| Some(row.none));
            for grant in grants {
                let reply = holder.raw.try_present(grant);
                assert_eq!(reply.status(), Status::PermissionDenied, "{who} was taken");
            }
            (holder.kv, holder.file) = (1, 2);
            holders.push(holder);
        }
        for holder in &mut holders {
            holder.try_everything(&victim, &mut watch);
        }
    }
}

#[test]
fn a_revoked_grant_serves_nothing() {
    let (cluster, root) = keyed_cluster(MEMORY, BLOCK);
    let mut victim = Victim::new(&cluster, "victim");
    let node = cluster.servers[0].address();
    let before = [victim.kv.grant.clone(), victim.file.grant.clone()];
    let mut holders = Vec::new();
    for shard in [0, 1] {
        let grants = Some([&before[0][..], &before[1][..]]);
        let expected: fn(&AtServer) -> Option<Status> = |row| Some(row.revoked);
        let token = &victim.job.token;
        holders.push(Holder::new("a revoked grant", node, token, shard, grants, expected));
    }
    victim.client.set_permissions(victim.job.job, "own", Verbs::ALL, Verbs::READ).unwrap();
    for holder in &mut holders {
        eventually("the grants are revoked", || {
            [Op::KvGet, Op::FileSize].into_iter().all(|op| {
                let grant = if op == Op::KvGet { holder.kv } else { holder.file };
                send_to(&mut holder.raw, op, &victim, grant, 1).status() == Status::GrantRevoked
            })
        });
    }
    let mut raw = Raw::greeted(cluster.controller.address(), &victim.job.token, ANY_SHARD);
    victim.kv = open(&mut raw, &victim.job, "own", "kv");
    victim.file = open(&mut raw, &victim.job, "own", "log");
    let fresh = root.grant_key().verify(&victim.kv.grant).unwrap();
    let old = root.grant_key().verify(&before[0]).unwrap();
    assert!(fresh.generation > old.generation && old.generation >= Generation(0));
    let mut watch = Watch::new(&cluster, &victim);
    for holder in &mut holders {
        holder.try_everything(&victim, &mut watch);
        // Presenting it again makes it no younger.
        assert_eq!(holder.raw.present(&before[0]), holder.kv);
        let reply = send_to(&mut holder.raw, Op::KvGet, &victim, holder.kv, 1);
        assert_eq!(reply.status(), Status::GrantRevoked);
    }
}

#[test]
fn an_operation_of_another_kind_is_refused() {
    let (cluster, _) = keyed_cluster(MEMORY, BLOCK);
    let mut victim = Victim::new(&cluster, "victim");
    let node = cluster.servers[0].address();
    std::mem::swap(&mut victim.kv, &mut victim.file);
    for shard in [0, 1] {
        let mut raw = Raw::greeted(node, &victim.job.token, shard);
        let (kv, file) = (raw.present(&victim.kv.grant), raw.present(&victim.file.grant));
        for op in Op::ALL.into_iter().filter(|op| op.info().auth == Auth::Grant) {
            let held = victim.held(op);
            let grant = if held.id == victim.kv.id { kv } else { file };
            let reply = send_to(&mut raw, op, &victim, grant, 1);
            assert_eq!(reply.status(), Status::WrongKind, "{op:?}: {}", reply.message());
            if op.info().payload {
                let early = held.at.block.shard().0 == shard;
                let header = header_of(op, &victim, grant, 1);
                large_is_refused(&mut raw, header, Status::WrongKind, early);
            }
        }
    }
    std::mem::swap(&mut victim.kv, &mut victim.file);
    Watch::new(&cluster, &victim).unharmed("operations of another kind");
}

// -------------------------------------------------------------------------------- who may, can

/// The requests of the tables are refused for who asks, not for what they are: asked by the right
/// one, every one of them is served.
#[test]
fn the_same_requests_are_served_to_who_may() {
    let (cluster, _) = keyed_cluster(64 << 20, BLOCK);
    let node = cluster.controller.address();
    for (i, op) in Op::ALL.into_iter().enumerate() {
        let info = op.info();
        let name = if op == Op::FindJob { "victim".to_owned() } else { format!("job{i}") };
        let victim = Victim::new(&cluster, &name);
        if matches!(info.plane, Plane::Data) && info.auth == Auth::Grant {
            for shard in [0, 1] {
                let victim = Victim::new(&cluster, &format!("{name}-{shard}"));
                serve_data(&cluster, &victim, op, shard);
                victim.client.deregister_job(victim.job.job).unwrap();
            }
            continue;
        }
        let needs_cluster = info.auth == Auth::Cluster;
        let token = if needs_cluster { cluster.controller.token() } else { &victim.job.token };
        let node = if op == Op::PresentGrant { cluster.servers[0].address() } else { node };
        let mut raw = Raw::connect(node);
        if op != Op::Hello {
            let hello = raw.hello(token, PrefixId(0), ANY_SHARD);
            assert_eq!(hello.status(), Status::Ok);
        }
        let joined_first = matches!(op, Op::Report | Op::GrowStructure | Op::SealBlock);
        if joined_first {
            let reply = send_to(&mut raw, op, &victim, 0, 1);
            assert_eq!(reply.status(), Status::PermissionDenied, "{op:?} before JoinServer");
            let reply = send_to(&mut raw, Op::JoinServer, &victim, 0, 1);
            assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
        }
        let reply = send_to(&mut raw, op, &victim, 0, 1);
        match op {
            // What a controller says to a memory server is served at its link alone.
            Op::OpenBlock | Op::FreeBlock | Op::SetGeneration => {
                assert_eq!(reply.status(), Status::NotServedHere, "{op:?}");
            }
            // A grant that was altered, and then the one that was not.
            Op::PresentGrant => {
                assert_eq!(reply.status(), Status::PermissionDenied);
                assert_eq!(raw.present(&victim.kv.grant), 1);
                assert_eq!(raw.present(&victim.file.grant), 2);
                assert_eq!(raw.present(&victim.kv.grant), 1);
            }
            _ => assert_eq!(reply.status(), Status::Ok, "{op:?}: {}", reply.message()),
        }
        if op != Op::DeregisterJob {
            victim.client.deregister_job(victim.job.job).unwrap();
        }
    }
}

fn serve_data(cluster: &Cluster, victim: &Victim, op: Op, shard: u8) {
    let mut raw = Raw::greeted(cluster.servers[0].address(), &victim.job.token, shard);
    let held = victim.held(op);
    let grant = raw.present(&held.grant);
    let Request { args, payload } = request_of(op, victim);
    let reply = send_to(&mut raw, op, victim, grant, 1);
    assert_eq!(reply.status(), Status::Ok, "{op:?}: {}", reply.message());
    if !op.info().payload {
        return;
    }
    // With a large payload as well, through the other path.
    let payload = match op {
        Op::KvCompareAndSwap => {
            let new = vec![9; LARGE];
            SwapArgs { present: true, key: b"k", expected: b"harm", new: &new }.encode().1
        }
        _ => vec![9; LARGE + payload.len()],
    };
    let mut header = data_header(op, held.at, grant, 2);
    header.request = raw.number();
    let bytes = frame(header, &args, &payload);
    let (first, rest) = bytes.split_at(bytes.len() - LARGE / 2);
    raw.send(first);
    raw.send(rest);
    let reply = raw.reply();
    assert_eq!(reply.status(), Status::Ok, "a large {op:?}: {}", reply.message());
}

// -------------------------------------------------------------------------------- two jobs

#[test]
fn two_jobs_cannot_see_each_other() {
    let (cluster, _) = keyed_cluster(MEMORY, BLOCK);
    // The same names in both: a name means nothing outside its job.
    let (a, b) = (Victim::new(&cluster, "a"), Victim::new(&cluster, "b"));
    let mut watch = Watch::new(&cluster, &b);
    let names: Vec<String> = a.client.list_jobs().unwrap().into_iter().map(|j| j.name).collect();
    assert_eq!(names, ["a"]);
    let status = a.client.status().unwrap();
    assert!(status.servers.is_empty(), "a job is told where the servers are");
    let mut raw = Raw::greeted(cluster.controller.address(), &a.job.token, ANY_SHARD);

    // What exists and is another's looks exactly like what does not exist.
    let nobody = JobTicket { job: JobId(b.job.job.0 + 1000), ..b.job.clone() };
    let absent = Victim {
        client: b.client.clone(),
        job: nobody,
        own: PrefixId(1 << 40),
        peer: b.peer,
        kv: Held { at: b.kv.at, id: StructureId(1 << 40), grant: b.kv.grant.clone() },
        file: Held { at: b.file.at, id: StructureId(1 << 40), grant: b.file.grant.clone() },
    };
    for op in Op::ALL.into_iter().filter(|op| {
        op.info().plane == Plane::Control
            && op.info().auth == Auth::Job
            && !matches!(op, Op::ListJobs | Op::ClusterStatus)
    }) {
        let there = send_to(&mut raw, op, &b, 0, 1);
        let nowhere = send_to(&mut raw, op, &absent, 0, 1);
        assert_eq!(there.status(), Status::UnknownJob, "{op:?}: {}", there.message());
        assert_eq!(nowhere.status(), Status::UnknownJob, "{op:?}: {}", nowhere.message());
        let id = |job: &JobTicket, reply: &Reply| {
            reply.message().replace(&job.job.to_string(), "J").replace(&job.job.0.to_string(), "J")
        };
        assert_eq!(id(&b.job, &there), id(&absent.job, &nowhere), "{op:?} tells which exists");
        watch.unharmed(&format!("{op:?} by job a"));
    }

    // Structures by guessed ids, under the own job: only the own ones are there.
    let highest = [&a.kv, &a.file, &b.kv, &b.file].map(|h| h.id.0).into_iter().max().unwrap();
    let lowest = [&a.kv, &a.file, &b.kv, &b.file].map(|h| h.id.0).into_iter().min().unwrap();
    assert!(highest - lowest < 1000, "the ids are not guessed by counting");
    for structure in lowest.saturating_sub(20)..highest + 20 {
        let body = ReopenStructureRequest { job: a.job.job.0, structure };
        let reply = raw.ask(Op::ReopenStructure, &body.encode());
        let own = structure == a.kv.id.0 || structure == a.file.id.0;
        let expected = if own { Status::Ok } else { Status::NotFound };
        assert_eq!(reply.status(), expected, "structure {structure:#x}: {}", reply.message());
    }

    // On the data plane: another's block is like a block that nobody has.
    let mut raw = Raw::greeted(cluster.servers[0].address(), &a.job.token, ANY_SHARD);
    assert_eq!(raw.try_present(&b.kv.grant).status(), Status::PermissionDenied);
    let grant = raw.present(&a.kv.grant);
    let mut get = |at: BlockAt| {
        let reply = raw.request(data_header(Op::KvGet, at, grant, 0), b"k", &[]);
        let (block, epoch) = (at.block.to_string(), at.epoch.to_string());
        (reply.status(), reply.message().replace(&block, "B").replace(&epoch, "E"), reply.payload)
    };
    let theirs = get(b.kv.at);
    let free = BlockId(b.kv.at.block.0 | 7);
    let never = get(BlockAt { block: free, epoch: b.kv.at.epoch });
    let stale = get(BlockAt { block: b.kv.at.block, epoch: Epoch(b.kv.at.epoch.0 + 5) });
    assert_eq!(theirs.0, Status::WrongEpoch);
    assert_eq!(theirs, never);
    assert_eq!(theirs, stale);
    assert_eq!(get(a.kv.at), (Status::Ok, String::new(), b"v".to_vec()));
    watch.unharmed("all that job a tried");

    // What one does with its names leaves the other's alone.
    a.client.remove_structure(a.job.job, "own:kv").unwrap();
    a.client.remove_prefix(a.job.job, "own").unwrap();
    watch.before.jobs = watch.look().jobs;
    watch.unharmed("job a removing its own");
    a.client.deregister_job(a.job.job).unwrap();
    watch.before.jobs = watch.look().jobs;
    watch.unharmed("the end of job a");
    let e = a.client.list_jobs().unwrap_err();
    assert_eq!(e.status, Status::UnknownJob, "{e}");
}

/// A block that changes hands shows its new owner nothing, and its old owner nothing more.
#[test]
fn a_block_that_changes_hands_carries_nothing_along() {
    // Few blocks, so that the next owner gets one of those just given back.
    let (cluster, _) = keyed_cluster(16 * 64 * KIB, 64 * KIB);
    let first = Victim::new(&cluster, "first");
    let secret = [0xEE; 4000];
    let log = file(&first.client, &first.job, "own:secret");
    for _ in 0..12 {
        log.append(&secret).unwrap();
    }
    let mut raw = Raw::greeted(cluster.servers[0].address(), &first.job.token, ANY_SHARD);
    let grant = raw.present(&first.kv.grant);
    let blocks = cluster.client(cluster.controller.token(), PrefixId(0)).status().unwrap().free;
    first.client.remove_structure(first.job.job, "own:kv").unwrap();
    first.client.remove_structure(first.job.job, "own:secret").unwrap();
    first.client.remove_structure(first.job.job, "own:log").unwrap();
    let cluster_client = cluster.client(cluster.controller.token(), PrefixId(0));
    eventually("the blocks are back", || cluster_client.status().unwrap().free > blocks);
    let (client, job) = cluster.job("second");
    prefix(&client, &job, "own", 0);
    let mut found = false;
    let mut reader = Raw::greeted(cluster.servers[0].address(), &job.token, ANY_SHARD);
    let mut controller = Raw::greeted(cluster.controller.address(), &job.token, ANY_SHARD);
    for i in 0..8 {
        file(&client, &job, &format!("own:f{i}"));
        let held = open(&mut controller, &job, "own", &format!("f{i}"));
        found |= held.at.block == first.kv.at.block;
        let number = reader.present(&held.grant);
        let mut range = Vec::new();
        ReadArgs { offset: 0, length: 60_000 }.put(&mut range);
        let reply = reader.request(data_header(Op::FileRead, held.at, number, 0), &range, &[]);
        assert_eq!((reply.status(), reply.payload.len()), (Status::Ok, 0));
        // The old owner's grant with the old epoch, and with the new one.
        for at in [first.kv.at, held.at] {
            let reply = raw.request(data_header(Op::KvGet, at, grant, 0), b"k", &[]);
            assert_eq!(reply.status(), Status::WrongEpoch, "{}", reply.message());
        }
    }
    assert!(found, "no block changed hands: the test shows nothing");
}
