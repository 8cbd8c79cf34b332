//! Access rights: every operation with every kind of insufficient token, at both kinds of node.
//!
//! The tables are `match`es over `Op` without a wildcard: a new operation does not compile until its rights
//! are declared here.
// A helper of tests may unwrap like a test.

mod jobs;
mod requests;
mod server;
mod waiting;

use honeycomb_client::{Client, JobTicket, Queue};
use honeycomb_e2e::raw::{
    ANY_SHARD, Raw, Reply, data_header, first_block, frame, hello_args, keyed_cluster,
};
use honeycomb_e2e::{Cluster, KIB, LEASE_MS, eventually, file, kv, prefix};
use honeycomb_types::limits::LARGE_FRACTION;
use honeycomb_types::{
    BlockAt, BlockId, Epoch, Generation, JobId, Kind, LaneId, PrefixId, Sequence, StructureId,
    Verbs,
};
use honeycomb_wire::batch::{BatchOp, ReadManyArgs, put_batch, put_keys};
use honeycomb_wire::data::{Brings, ReadArgs, ScanArgs, SwapArgs, put_acks};
use honeycomb_wire::extents::{ExtentRef, ListHead, put_extents, put_list};
use honeycomb_wire::messages::*;
use honeycomb_wire::notice::{Filter, SubscribeArgs, kinds};
use honeycomb_wire::queue::{AckAction, AckArgs, GetArgs, GetExtentsArgs};
use honeycomb_wire::stored::{Function, accumulate_args};
use honeycomb_wire::token::{Caveat, Grant};
use honeycomb_wire::{Auth, Field, Plane, RootKey, attenuate, checksum};
use requests::{Request, request_of};
use std::net::SocketAddr;
use std::time::Duration;

const MEMORY: u64 = 32 << 20;
const BLOCK: u64 = 1 << 20;
/// Larger than a payload that is received whole, smaller than the limit of a block: it is judged by its
/// header.
const LARGE: usize = 100 << 10;
const CONTENT: &[u8] = b"the victim's file";
const ITEM: &[u8] = b"the victim's item";
/// A move that there is not.
const MOVE: u64 = 77;

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
    queue: Held,
    /// Extents of the kv's large values.
    extents: Held,
}

impl Victim {
    fn new(cluster: &Cluster, name: &str) -> Victim {
        let (client, job) = cluster.job(name);
        let own = prefix(&client, &job, "own", 0);
        let peer = prefix(&client, &job, "peer", 0);
        let store = kv(&client, &job, "own:kv", 1);
        store.put(b"k", b"v").unwrap();
        store.put(b"large", &[7; 200 << 10]).unwrap();
        file(&client, &job, "own:log").append(CONTENT).unwrap();
        queue(&client, &job, "own:queue").put(ITEM, Duration::ZERO).unwrap();
        let mut raw = Raw::greeted(cluster.controller.address(), &job.token, ANY_SHARD);
        let mut held = |name| open(&mut raw, &job, "own", name);
        let (kv, file, queue) = (held("kv"), held("log"), held("queue"));
        let asked = ExtentBlocksRequest {
            job: job.job.0,
            structure: kv.id.0,
            bytes: 0,
            full: Vec::new(),
            value: 0,
        };
        let told = raw.ask(Op::ExtentBlocks, &asked.encode());
        let entries = ExtentBlocksReply::decode(&told.args).unwrap().entries;
        let at = entries[0].at();
        let extents = Held { at, id: kv.id, grant: kv.grant.clone() };
        Victim { client, job, own, peer, kv, file, queue, extents }
    }

    /// The structure of an operation. A subscription may use any structure; that of a queue would reveal the
    /// most.
    fn held(&self, op: Op) -> &Held {
        match kind_of(op) {
            Kind::File => &self.file,
            Kind::Queue => &self.queue,
            Kind::Kv => &self.kv,
            Kind::Extents => &self.extents,
            Kind::Custom(_) => unreachable!("not an operation of the protocol"),
        }
    }

    /// The job's grants for its structures.
    fn grants(&self) -> [Vec<u8>; 3] {
        [&self.kv, &self.file, &self.queue].map(|held| held.grant.clone())
    }

    /// A token of the job, narrowed.
    fn token(&self, caveat: Caveat) -> Vec<u8> {
        attenuate(&self.job.token, caveat).unwrap()
    }
}

/// Whether an operation is valid for blocks of every kind.
fn of_any_kind(op: Op) -> bool {
    matches!(op, Op::Subscribe | Op::AckResults | Op::NextBlock)
}

fn kind_of(op: Op) -> Kind {
    match Kind::from_code((op.code() >> 8) as u8) {
        None if of_any_kind(op) => Kind::Queue,
        kind => kind.unwrap_or(Kind::Kv),
    }
}

/// The numbers of the grants for a victim's structures on one connection.
#[derive(Clone, Copy)]
struct Numbers {
    kv: u32,
    file: u32,
    queue: u32,
}

impl Numbers {
    fn present(raw: &mut Raw, grants: &[Vec<u8>; 3]) -> Numbers {
        let [kv, file, queue] = [0, 1, 2].map(|i| raw.present(&grants[i]));
        Numbers { kv, file, queue }
    }

    fn of(&self, op: Op) -> u32 {
        match kind_of(op) {
            Kind::File => self.file,
            Kind::Queue => self.queue,
            Kind::Kv | Kind::Extents => self.kv,
            Kind::Custom(_) => unreachable!("not an operation of the protocol"),
        }
    }
}

fn queue(client: &Client, job: &JobTicket, address: &str) -> Queue {
    client.create_queue(job.job, address, 0, 0, false).unwrap()
}

/// The arguments of a get that takes one item permanently.
fn get_one() -> Vec<u8> {
    let mut args = Vec::new();
    GetArgs { items: 1, bytes: 1000, reserve_ms: 0, stay: false }.put(&mut args);
    args
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
    item: Vec<u8>,
    counts: (u64, Vec<u8>),
    tree: Vec<PrefixInfo>,
    jobs: Vec<(u64, String, u64, u64, u64)>,
}

/// Looks at the victim with the grants that its job got first: that they are still good is one of
/// the things to see.
struct Watch<'a> {
    victim: &'a Victim,
    cluster: Client,
    raw: Raw,
    grants: Numbers,
    before: Seen,
    remaining_ms: i64,
}

impl<'a> Watch<'a> {
    fn new(cluster: &Cluster, victim: &'a Victim) -> Watch<'a> {
        let mut raw = Raw::greeted(cluster.servers[0].address(), &victim.job.token, ANY_SHARD);
        let grants = Numbers::present(&mut raw, &victim.grants());
        let before = Seen {
            value: Vec::new(),
            entries: 0,
            content: Vec::new(),
            sealed: Vec::new(),
            item: Vec::new(),
            counts: (0, Vec::new()),
            tree: Vec::new(),
            jobs: Vec::new(),
        };
        let cluster = cluster.client(cluster.controller.token(), PrefixId(0));
        let mut watch = Watch { victim, cluster, raw, grants, before, remaining_ms: i64::MAX };
        watch.before = watch.look();
        assert_eq!(watch.before.value, b"v");
        assert_eq!(watch.before.content, CONTENT);
        assert_eq!((&watch.before.item[..], watch.before.counts.0), (ITEM, 1));
        watch.renewed();
        watch
    }

    fn data(&mut self, op: Op, args: &[u8]) -> Reply {
        let header = data_header(op, self.victim.held(op).at, self.grants.of(op), 1);
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
        // Parents come before children: the order changes with the edges.
        tree.sort_by_key(|node| node.prefix);
        let jobs = self.cluster.list_jobs().unwrap();
        let counts = self.data(Op::QueueLength, &[0]);
        Seen {
            value: self.data(Op::KvGet, b"k").payload,
            entries: self.data(Op::KvLength, &[]).header.value,
            content: self.data(Op::FileRead, &range).payload,
            sealed: self.data(Op::FileSize, &[]).args,
            item: self.data(Op::QueuePeek, &get_one()[..8]).payload,
            counts: (counts.header.value, counts.args),
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
        eventually("the lease ages", || self.remaining_ms() < i64::from(LEASE_MS) - 50);
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

/// Whether the operation refuses a payload that is too large to be received whole, for every caller.
fn small_only(op: Op) -> bool {
    matches!(
        op,
        Op::KvMultiGet
            | Op::KvBatch
            | Op::KvAccumulate
            | Op::KvPutExtents
            | Op::KvDeleteExtents
            | Op::QueuePutExtents
    )
}

/// Sends one to a node under a grant of this connection.
fn send_to(raw: &mut Raw, op: Op, victim: &Victim, grant: u32, lane: u32) -> Reply {
    let Request { args, payload } = request_of(op, victim);
    raw.request(header_of(op, victim, grant, lane), &args, &payload)
}

fn header_of(op: Op, victim: &Victim, grant: u32, lane: u32) -> honeycomb_wire::RequestHeader {
    match op.info().auth {
        Auth::Grant => data_header(op, victim.held(op).at, grant, lane),
        Auth::Peer => data_header(op, victim.held(op).at, 0, lane),
        _ => honeycomb_wire::RequestHeader::new(op),
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
        ("with a caveat counted that is not there", changed(9, good[9] + 1)),
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
                // The request follows the handshake directly, before its refusal is known.
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

/// The controller's answers to a request about the victim's job, by the caller's token.
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
        Op::Ping | Op::ListJobs | Op::ListKinds | Op::ClusterStatus => row(Ok, Ok, Ok, Ok),
        Op::RegisterJob => {
            row(PermissionDenied, PermissionDenied, PermissionDenied, PermissionDenied)
        }
        Op::FindJob => row(PermissionDenied, PermissionDenied, PermissionDenied, Ok),
        Op::JobTree
        | Op::JobWeights
        | Op::JobCost
        | Op::GetQuota
        | Op::LeaseInfo
        | Op::OpenStructure
        | Op::ReopenStructure => row(UnknownJob, Ok, Ok, Ok),
        // Each path succeeds or fails alone: see `renewals_fail_path_by_path`.
        Op::RenewLeases => row(UnknownJob, Ok, Ok, PermissionDenied),
        Op::FlushInfo => row(UnknownJob, NotFound, NotFound, NotFound),
        Op::LocateFlush => row(UnknownJob, FlushUnavailable, FlushUnavailable, FlushUnavailable),
        Op::CancelFlush => row(UnknownJob, PermissionDenied, NotFound, PermissionDenied),
        Op::DeregisterJob
        | Op::FlushPrefix
        | Op::PublishPrefix
        | Op::CreatePrefix
        | Op::CreateHierarchy
        | Op::RemovePrefix
        | Op::SetPermissions
        | Op::SetQuota
        | Op::DeclareReaders
        | Op::CommitTask
        | Op::CreateStructure
        | Op::ExtentBlocks
        | Op::BeginAppend
        | Op::CommitAppend
        | Op::DropAppend
        | Op::RemoveStructure => {
            row(UnknownJob, PermissionDenied, PermissionDenied, PermissionDenied)
        }
        Op::JoinServer
        | Op::Report
        | Op::GrowStructure
        | Op::GrowBlock
        | Op::SealBlock
        | Op::RaiseBlock
        | Op::TierChanged
        | Op::BlockFailed
        | Op::QueueTaken
        | Op::RetireBlock
        | Op::ReturnBlock
        | Op::Inventory
        | Op::BeginMove
        | Op::CommitMove
        | Op::CancelMove
        | Op::DrainServer
        | Op::StopCluster
        | Op::LeaveServer
        | Op::LocateServer => {
            row(PermissionDenied, PermissionDenied, PermissionDenied, PermissionDenied)
        }
        Op::OpenBlock
        | Op::FreeBlock
        | Op::SetGeneration
        | Op::QueueAhead
        | Op::FlushBlock
        | Op::CommitFlush
        | Op::CommitCustomFlush
        | Op::SweepObjects
        | Op::EndCopies
        | Op::CutBlock
        | Op::ThawBlock
        | Op::BeginImport
        | Op::EndImport
        | Op::LendBlocks
        | Op::LowerBlock
        | Op::Evacuate
        | Op::Release => all(NotServedHere),
        Op::PresentGrant
        | Op::MoveRegion
        | Op::MoveValue
        | Op::MoveDrops
        | Op::MoveLanes
        | Op::MoveDone
        | Op::MovePatch
        | Op::MoveState
        | Op::Subscribe
        | Op::AckResults
        | Op::FileAppend
        | Op::FileRead
        | Op::FileSize
        | Op::FileMap
        | Op::FileSeal
        | Op::FileContinue
        | Op::QueuePut
        | Op::QueuePutExtents
        | Op::QueueGet
        | Op::QueueGetExtents
        | Op::QueueLists
        | Op::QueuePeek
        | Op::QueueLength
        | Op::QueueClose
        | Op::QueueAck
        | Op::KvGet
        | Op::KvPut
        | Op::KvDelete
        | Op::KvExists
        | Op::KvUpdate
        | Op::KvUpsert
        | Op::KvCompareAndSwap
        | Op::KvScan
        | Op::KvLength
        | Op::FileReadMany
        | Op::KvMultiGet
        | Op::KvBatch
        | Op::KvAccumulate
        | Op::KvPutExtents
        | Op::KvDeleteExtents
        | Op::ExtentPut
        | Op::ExtentGet
        | Op::ExtentKeep
        | Op::ExtentPutList
        | Op::ExtentAdopt
        | Op::ExtentDrop
        | Op::NextBlock
        | Op::Custom(_) => all(NotServedHere),
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
            if op == Op::OpenStructure && *who == "another task" {
                continue; // It makes the task a reader, whose traffic renews what it reads: below.
            }
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
    let own = Raw::greeted(node, &victim.token(Caveat::Task(victim.own)), ANY_SHARD);
    let (who, raw, _) = &mut callers[2];
    becomes_a_reader(who, raw, own, &victim, &mut watch);
}

/// Opening a structure also gives a task of the same job an edge, by which it renews its inputs. The edge
/// grants no rights: neither to the reader over the prefix, nor to the prefix over the reader.
fn becomes_a_reader(
    who: &str,
    raw: &mut Raw,
    mut own: Raw,
    victim: &Victim,
    watch: &mut Watch<'_>,
) {
    let edge = |raw: &mut Raw, op| {
        let reply = send_to(raw, op, victim, 0, 0);
        assert_eq!(reply.status(), Status::Ok, "{op:?} by {who}: {}", reply.message());
        OpenStructureReply::decode(&reply.args).unwrap().edge
    };
    let edges = [Op::OpenStructure, Op::OpenStructure, Op::ReopenStructure];
    assert_eq!(edges.map(|op| edge(raw, op)), [1, 2, 0]);
    let peer = watch.before.tree.iter_mut().find(|p| p.prefix == victim.peer.0).unwrap();
    peer.parents.push(victim.own.0);
    watch.remaining_ms = i64::MAX;
    watch.unharmed("opening made an edge");
    for op in [Op::RemovePrefix, Op::SetPermissions, Op::DeclareReaders, Op::CommitTask] {
        let reply = send_to(raw, op, victim, 0, 0);
        assert_eq!(reply.status(), Status::PermissionDenied, "{op:?} by {who}");
        watch.remaining_ms = i64::MAX;
        watch.unharmed(&format!("{op:?} by a reader"));
    }
    let (job, path) = (victim.job.job.0, String::from("peer"));
    let paths = vec![path.clone()];
    let reply =
        own.ask(Op::RemovePrefix, &RemovePrefixRequest { job, path: path.clone() }.encode());
    assert_eq!(reply.status(), Status::PermissionDenied, "{}", reply.message());
    let reply = own.ask(Op::CommitTask, &CommitTaskRequest { job, path }.encode());
    assert_eq!(reply.status(), Status::PermissionDenied, "{}", reply.message());
    let reply = own.ask(Op::RenewLeases, &RenewLeasesRequest { job, paths }.encode());
    let results = RenewLeasesReply::decode(&reply.args).unwrap().results;
    assert_eq!(results[0].status, Status::PermissionDenied as u16);
}

/// An answer that is not a refusal reveals nothing about other jobs and grants no additional rights.
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
