//! Access rights at a memory server, and revoked grants.

use super::*;

/// The answers of a memory server, by the grant of the request.
struct AtServer {
    /// None that this connection has presented.
    none: Status,
    /// One of another structure, prefix or job.
    foreign: Status,
    /// Status with a grant to read.
    reading: Option<Status>,
    /// Status with a grant to write.
    writing: Option<Status>,
    /// Status with a grant without rights.
    nothing: Status,
    /// One past its time.
    expired: Status,
    /// One from before the prefix's permissions changed.
    revoked: Status,
    /// Status with any grant when the connection has the whole cluster's token, if that decides.
    peer: Option<Status>,
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
        peer: None,
    };
    let reads = || data(Some(Ok), Some(PermissionDenied));
    // That a writer may write is shown elsewhere, and that a reader may take: here nothing may
    // change.
    let writes = data(Some(PermissionDenied), None);
    let takes = AtServer { reading: None, ..reads() };
    let all = |status| AtServer {
        none: status,
        foreign: status,
        reading: Some(status),
        writing: Some(status),
        nothing: status,
        expired: status,
        revoked: status,
        peer: None,
    };
    match op {
        Op::Hello => all(HandshakeRequired),
        Op::Ping => all(Ok),
        // A forged one; those of others are presented below.
        Op::PresentGrant => all(PermissionDenied),
        Op::RegisterJob
        | Op::DeregisterJob
        | Op::ListJobs
        | Op::ListKinds
        | Op::JobTree
        | Op::FindJob
        | Op::JobWeights
        | Op::JobCost
        | Op::SetQuota
        | Op::GetQuota
        | Op::CreatePrefix
        | Op::CreateHierarchy
        | Op::RemovePrefix
        | Op::RenewLeases
        | Op::LeaseInfo
        | Op::FlushPrefix
        | Op::FlushInfo
        | Op::CancelFlush
        | Op::LocateFlush
        | Op::PublishPrefix
        | Op::SetPermissions
        | Op::DeclareReaders
        | Op::CommitTask
        | Op::CreateStructure
        | Op::OpenStructure
        | Op::ReopenStructure
        | Op::RemoveStructure
        | Op::ExtentBlocks
        | Op::BeginAppend
        | Op::CommitAppend
        | Op::DropAppend
        | Op::LocateServer
        | Op::ClusterStatus
        | Op::JoinServer
        | Op::Report
        | Op::GrowStructure
        | Op::GrowBlock
        | Op::SealBlock
        | Op::QueueTaken
        | Op::RetireBlock
        | Op::ReturnBlock
        | Op::FlushBlock
        | Op::CommitFlush
        | Op::CommitCustomFlush
        | Op::SweepObjects
        | Op::EndCopies
        | Op::CutBlock
        | Op::ThawBlock
        | Op::BeginMove
        | Op::CommitMove
        | Op::CancelMove
        | Op::Inventory
        | Op::OpenBlock
        | Op::FreeBlock
        | Op::SetGeneration
        | Op::QueueAhead
        | Op::BeginImport
        | Op::EndImport
        | Op::LendBlocks
        | Op::LowerBlock
        | Op::RaiseBlock
        | Op::TierChanged
        | Op::BlockFailed => all(NotServedHere),
        Op::LeaveServer | Op::Evacuate | Op::Release | Op::DrainServer | Op::StopCluster => {
            all(NotServedHere)
        }
        // Between memory servers. The victim's block takes part in no move.
        Op::MoveRegion
        | Op::MoveValue
        | Op::MoveDrops
        | Op::MoveLanes
        | Op::MoveDone
        | Op::MovePatch => AtServer { peer: Some(WrongEpoch), ..all(PermissionDenied) },
        // It is a store, and those do not move as they lie.
        Op::MoveState => AtServer { peer: Some(WrongKind), ..all(PermissionDenied) },
        // The extent is the victim's own, by another put than is named.
        Op::ExtentAdopt => AtServer { peer: Some(ExtentGone), ..all(PermissionDenied) },
        Op::ExtentDrop => AtServer { peer: Some(Ok), ..all(PermissionDenied) },
        // The file may grow; over a Unix socket, the answer contains more (tests/map.rs).
        Op::FileMap => AtServer { reading: Some(NotSealed), ..reads() },
        Op::Subscribe
        | Op::ExtentGet
        | Op::FileRead
        | Op::FileReadMany
        | Op::FileSize
        | Op::QueuePeek
        | Op::QueueLength
        | Op::QueueLists
        | Op::KvGet
        | Op::KvMultiGet
        | Op::KvExists
        | Op::KvScan
        | Op::KvLength => reads(),
        // The named reservation was given to no consumer: there is nothing to acknowledge.
        Op::QueueAck => reads(),
        Op::QueueGet | Op::QueueGetExtents => takes,
        // These requests concern the session's own lanes and the map: any grant for the block is sufficient.
        Op::AckResults | Op::NextBlock => AtServer { writing: Some(Ok), nothing: Ok, ..reads() },
        Op::FileAppend
        | Op::FileSeal
        | Op::FileContinue
        | Op::QueuePut
        | Op::QueuePutExtents
        | Op::QueueClose
        | Op::KvPut
        | Op::KvPutExtents
        | Op::KvDeleteExtents
        | Op::ExtentPut
        | Op::ExtentKeep
        | Op::ExtentPutList
        | Op::KvDelete
        | Op::KvUpdate
        | Op::KvUpsert
        | Op::KvCompareAndSwap
        | Op::KvBatch
        | Op::KvAccumulate => writes,
        // Those of custom kinds are asked where such a kind is served: examples/log-server/tests.
        Op::Custom(_) => unreachable!("not an operation of the protocol"),
    }
}

/// Whether the operation needs a connection to the block's own core: pushed messages and moves.
fn own_core_only(op: Op) -> bool {
    op == Op::Subscribe || op.info().auth == Auth::Peer
}

/// A connection that tries, and the numbers of its grants.
struct Holder {
    who: String,
    raw: Raw,
    shard: u8,
    grants: Numbers,
    expected: fn(&AtServer) -> Option<Status>,
}

impl Holder {
    fn new(
        who: &str,
        node: SocketAddr,
        token: &[u8],
        shard: u8,
        grants: Option<&[Vec<u8>; 3]>,
        expected: fn(&AtServer) -> Option<Status>,
    ) -> Holder {
        let mut raw = Raw::greeted(node, token, shard);
        let none = Numbers { kv: 0, file: 0, queue: 0 };
        let grants = grants.map_or(none, |grants| Numbers::present(&mut raw, grants));
        Holder { who: format!("{who}, on shard {shard}"), raw, shard, grants, expected }
    }

    fn try_everything(&mut self, victim: &Victim, watch: &mut Watch<'_>) {
        let who = self.who.clone();
        for op in Op::ALL {
            let Some(mut expected) = (self.expected)(&at_server(op)) else { continue };
            let (held, grant) = (victim.held(op), self.grants.of(op));
            if own_core_only(op) && held.at.block.shard().0 != self.shard {
                // For every caller.
                expected = Status::NotServedHere;
            }
            let reply = send_to(&mut self.raw, op, victim, grant, 1);
            assert_eq!(reply.status(), expected, "{op:?} with {who}: {}", reply.message());
            if expected != Status::Ok {
                assert!(reply.payload.is_empty(), "a refusal of {op:?} carries data");
            }
            watch.unharmed(&format!("{op:?} with {who}"));
            if op.info().payload {
                // On another core's connection it is gathered first.
                let own_core = held.at.block.shard().0 == self.shard;
                let peer = op.info().auth == Auth::Peer;
                // Lanes have no place in a block, and are gathered for those who may send them.
                let gathered = op == Op::MoveLanes && expected == Status::WrongEpoch;
                let early = if peer { !gathered } else { own_core };
                let expected = match expected {
                    Status::Ok if small_only(op) => Status::ValueTooLarge,
                    // To who may ask it, that its arguments are none.
                    Status::WrongEpoch if op.info().auth == Auth::Peer => Status::BadFrame,
                    other => other,
                };
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
    queue(&victim.client, &victim.job, "own:other-queue");
    let mut watch = Watch::new(&cluster, &victim);
    let node = cluster.servers[0].address();
    let mut controller = Raw::greeted(cluster.controller.address(), &victim.job.token, ANY_SHARD);
    let others = ["other-kv", "other-log", "other-queue"]
        .map(|name| open(&mut controller, &victim.job, "own", name).grant);
    let peer = victim.token(Caveat::Task(victim.peer));
    let mut peer_raw = Raw::greeted(cluster.controller.address(), &peer, ANY_SHARD);
    // By identity: opening by address would make the task a reader, whose traffic may renew.
    let peers = [&victim.kv, &victim.file, &victim.queue].map(|held| {
        let body = ReopenStructureRequest { job: victim.job.job.0, structure: held.id.0 };
        let reply = peer_raw.ask(Op::ReopenStructure, &body.encode());
        ReopenStructureReply::decode(&reply.args).unwrap().grant
    });

    // The victim's own grants, with one thing altered and issued under the cluster's key.
    let altered = |alter: &dyn Fn(&mut Grant)| {
        victim.grants().map(|good| {
            let mut grant = root.grant_key().verify(&good).unwrap();
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
    let foreign_grants = foreign.grants();
    let (own, theirs) = (&victim.job.token[..], &foreign.job.token[..]);
    let all = cluster.controller.token();
    let narrowed = |caveat| attenuate(all, caveat).unwrap();
    let reading_cluster = narrowed(Caveat::Verbs(Verbs::READ));
    let cluster_task = narrowed(Caveat::Task(victim.own));

    for shard in [0, 1] {
        let holder = |who: &str, token: &[u8], grants, expected| {
            Holder::new(who, node, token, shard, grants, expected)
        };
        let mut holders = vec![
            holder("no grant", own, None, |row| Some(row.none)),
            holder("no grant, by another job", theirs, None, |row| Some(row.none)),
            holder("no grant, by the cluster", all, None, |row| Some(row.peer.unwrap_or(row.none))),
            holder("no grant, by a reading cluster token", &reading_cluster, None, |row| {
                Some(row.none)
            }),
            holder("no grant, by a task of the cluster's", &cluster_task, None, |row| {
                Some(row.none)
            }),
            holder("another job's grant", theirs, Some(&foreign_grants), |row| Some(row.foreign)),
            holder("another job's grant, by the cluster", all, Some(&foreign_grants), |row| {
                Some(row.peer.unwrap_or(row.foreign))
            }),
            holder("another structure's grant", own, Some(&others), |row| Some(row.foreign)),
            holder("a grant of another prefix", own, Some(&wrong_prefix), |row| Some(row.foreign)),
            holder("a grant of another structure", own, Some(&wrong_structure), |row| {
                Some(row.foreign)
            }),
            holder("a grant of this structure in another job", theirs, Some(&wrong_job), |row| {
                Some(row.foreign)
            }),
            holder("a grant to read", own, Some(&reading), |row| row.reading),
            holder("another task's grant", &peer, Some(&peers), |row| row.reading),
            holder("a grant to write", own, Some(&writing), |row| row.writing),
            holder("a grant to nothing", own, Some(&nothing), |row| Some(row.nothing)),
            holder("an expired grant", own, Some(&expired), |row| Some(row.expired)),
        ];
        // A number under which nothing was presented.
        let mut beyond = holder("a number beyond", own, None, |row| Some(row.none));
        beyond.grants = Numbers { kv: 1, file: u32::MAX, queue: 2 };
        holders.push(beyond);
        // Grants that are refused when presented give no number to use.
        let forged = victim.grants().map(|mut grant| {
            grant[3] ^= 1;
            grant
        });
        let cut = victim.grants().map(|g| g[..g.len() - 1].to_vec());
        let stolen = victim.grants();
        let foreign_key = RootKey([0xA5; 32]).grant_key();
        let other_cluster =
            victim.grants().map(|good| foreign_key.issue(&root.grant_key().verify(&good).unwrap()));
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
            holder.grants = Numbers { kv: 1, file: 2, queue: 3 };
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
    let before = victim.grants();
    let mut holders = Vec::new();
    for shard in [0, 1] {
        let grants = Some(&before);
        let expected: fn(&AtServer) -> Option<Status> = |row| Some(row.revoked);
        let token = &victim.job.token;
        holders.push(Holder::new("a revoked grant", node, token, shard, grants, expected));
    }
    victim.client.set_permissions(victim.job.job, "own", Verbs::ALL, Verbs::READ).unwrap();
    for holder in &mut holders {
        eventually("the grants are revoked", || {
            [Op::KvGet, Op::FileSize, Op::QueueLength].into_iter().all(|op| {
                let grant = holder.grants.of(op);
                send_to(&mut holder.raw, op, &victim, grant, 1).status() == Status::GrantRevoked
            })
        });
    }
    let mut raw = Raw::greeted(cluster.controller.address(), &victim.job.token, ANY_SHARD);
    victim.kv = open(&mut raw, &victim.job, "own", "kv");
    victim.file = open(&mut raw, &victim.job, "own", "log");
    victim.queue = open(&mut raw, &victim.job, "own", "queue");
    let fresh = root.grant_key().verify(&victim.kv.grant).unwrap();
    let old = root.grant_key().verify(&before[0]).unwrap();
    assert!(fresh.generation > old.generation && old.generation >= Generation(0));
    let mut watch = Watch::new(&cluster, &victim);
    for holder in &mut holders {
        holder.try_everything(&victim, &mut watch);
        // Presenting it again makes it no younger.
        assert_eq!(holder.raw.present(&before[0]), holder.grants.kv);
        let reply = send_to(&mut holder.raw, Op::KvGet, &victim, holder.grants.kv, 1);
        assert_eq!(reply.status(), Status::GrantRevoked);
    }
}

#[test]
fn an_operation_of_another_kind_is_refused() {
    let (cluster, _) = keyed_cluster(MEMORY, BLOCK);
    let mut victim = Victim::new(&cluster, "victim");
    let node = cluster.servers[0].address();
    let turn = |victim: &mut Victim| {
        std::mem::swap(&mut victim.kv, &mut victim.file);
        std::mem::swap(&mut victim.file, &mut victim.queue);
        victim.extents.at = victim.kv.at;
    };
    turn(&mut victim);
    let of_a_kind = |op: &Op| op.info().auth == Auth::Grant && !of_any_kind(*op);
    for shard in [0, 1] {
        let mut raw = Raw::greeted(node, &victim.job.token, shard);
        let grants = Numbers::present(&mut raw, &victim.grants());
        for op in Op::ALL.into_iter().filter(of_a_kind) {
            let (held, grant) = (victim.held(op), grants.of(op));
            let reply = send_to(&mut raw, op, &victim, grant, 1);
            assert_eq!(reply.status(), Status::WrongKind, "{op:?}: {}", reply.message());
            if op.info().payload {
                let early = held.at.block.shard().0 == shard;
                let header = header_of(op, &victim, grant, 1);
                large_is_refused(&mut raw, header, Status::WrongKind, early);
            }
        }
    }
    turn(&mut victim);
    turn(&mut victim);
    Watch::new(&cluster, &victim).unharmed("operations of another kind");
}

// -------------------------------------------------------------------------------- who may, can

/// The requests of the tables are refused because of the caller, not because of their contents: with
/// sufficient rights, every request is served.
#[test]
fn the_same_requests_are_served_to_who_may() {
    let (cluster, _) = keyed_cluster(192 << 20, BLOCK);
    let node = cluster.controller.address();
    let mut all = Op::ALL;
    // No job is registered after it.
    all.sort_by_key(|op| *op == Op::StopCluster);
    for (i, op) in all.into_iter().enumerate() {
        let info = op.info();
        let name = if op == Op::FindJob { "victim".to_owned() } else { format!("job{i}") };
        if matches!(info.plane, Plane::Data) && info.auth == Auth::Grant {
            for shard in [0, 1] {
                let victim = Victim::new(&cluster, &format!("{name}-{shard}"));
                serve_data(&cluster, &victim, op, shard);
                victim.client.deregister_job(victim.job.job).unwrap();
            }
            continue;
        }
        let victim = Victim::new(&cluster, &name);
        if info.auth == Auth::Peer {
            serve_peer(&cluster, &victim, op);
            victim.client.deregister_job(victim.job.job).unwrap();
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
        let for_servers = matches!(
            op,
            Op::OpenBlock
                | Op::FreeBlock
                | Op::SetGeneration
                | Op::QueueAhead
                | Op::BeginImport
                | Op::EndImport
                | Op::LendBlocks
                | Op::LowerBlock
                | Op::Evacuate
                | Op::Release
                | Op::FlushBlock
                | Op::CommitFlush
                | Op::CommitCustomFlush
                | Op::SweepObjects
                | Op::EndCopies
                | Op::CutBlock
                | Op::ThawBlock
        );
        if info.plane == Plane::Link && op != Op::JoinServer && !for_servers {
            let reply = send_to(&mut raw, op, &victim, 0, 1);
            assert_eq!(reply.status(), Status::PermissionDenied, "{op:?} before JoinServer");
            let reply = send_to(&mut raw, Op::JoinServer, &victim, 0, 1);
            assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
        }
        let reply = send_to(&mut raw, op, &victim, 0, 1);
        match op {
            // Requests of a controller to a memory server are served only over its link.
            // A kv's block is nobody's successor.
            Op::ReturnBlock => assert_eq!(reply.status(), Status::WrongEpoch, "{op:?}"),
            _ if for_servers => assert_eq!(reply.status(), Status::NotServedHere, "{op:?}"),
            // The move was never begun; to give it up is no mistake.
            Op::CommitMove => assert_eq!(reply.status(), Status::Removed, "{}", reply.message()),
            // The only block of a queue stays: its turn has not come.
            Op::RetireBlock => assert_eq!(reply.status(), Status::Busy, "{}", reply.message()),
            // It has joined just now: whatever it claims to hold is not its own to claim.
            Op::Inventory => assert_eq!(reply.status(), Status::NotFound, "{}", reply.message()),
            // The servers have no flush root, so that no flush was begun.
            Op::FlushPrefix | Op::LocateFlush => {
                assert_eq!(reply.status(), Status::FlushUnavailable, "{}", reply.message());
            }
            Op::FlushInfo | Op::CancelFlush => {
                assert_eq!(reply.status(), Status::NotFound, "{op:?}: {}", reply.message());
            }
            // Nobody serves at that address.
            Op::DrainServer => assert_eq!(reply.status(), Status::NotFound, "{}", reply.message()),
            // A grant that was altered, and then the one that was not.
            Op::PresentGrant => {
                assert_eq!(reply.status(), Status::PermissionDenied);
                assert_eq!(raw.present(&victim.kv.grant), 1);
                assert_eq!(raw.present(&victim.file.grant), 2);
                assert_eq!(raw.present(&victim.kv.grant), 1);
            }
            _ => assert_eq!(reply.status(), Status::Ok, "{op:?}: {}", reply.message()),
        }
        if !matches!(op, Op::DeregisterJob | Op::StopCluster) {
            victim.client.deregister_job(victim.job.job).unwrap();
        }
    }
}

/// Requests between memory servers, with the cluster's token. A block without a move refuses parts of a move
/// from any sender, and a store refuses operations of other kinds; it refuses nothing else. An extent belongs
/// to its owner.
fn serve_peer(cluster: &Cluster, victim: &Victim, op: Op) {
    let served = match op {
        Op::ExtentAdopt => Status::ExtentGone,
        Op::ExtentDrop => Status::Ok,
        Op::MoveState => Status::WrongKind,
        _ => Status::WrongEpoch,
    };
    let shard = victim.held(op).at.block.shard().0;
    let node = cluster.servers[0].address();
    for (token, expected) in
        [(cluster.controller.token(), served), (&victim.job.token[..], Status::PermissionDenied)]
    {
        let mut raw = Raw::greeted(node, token, shard);
        let reply = send_to(&mut raw, op, victim, 0, 1);
        assert_eq!(reply.status(), expected, "{op:?}: {}", reply.message());
        raw.expect_alive();
    }
}

fn serve_data(cluster: &Cluster, victim: &Victim, op: Op, shard: u8) {
    let mut raw = Raw::greeted(cluster.servers[0].address(), &victim.job.token, shard);
    let held = victim.held(op);
    let grant = raw.present(&held.grant);
    let Request { args, payload } = request_of(op, victim);
    let reply = send_to(&mut raw, op, victim, grant, 1);
    let elsewhere = op == Op::Subscribe && held.at.block.shard().0 != shard;
    let expected = match op {
        _ if elsewhere => Status::NotServedHere,
        // The extent that it names is another entry's, or another structure's.
        Op::KvPutExtents | Op::QueuePutExtents | Op::ExtentPutList => Status::ExtentGone,
        // The item is in its block.
        Op::QueueGetExtents => Status::QueueEmpty,
        // The key has another value.
        Op::KvDeleteExtents => Status::CompareFailed,
        Op::FileMap => Status::NotSealed,
        // Its successor is requested now.
        Op::FileContinue => Status::Busy,
        _ => Status::Ok,
    };
    assert_eq!(reply.status(), expected, "{op:?}: {}", reply.message());
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
    let mut send = || {
        let mut header = data_header(op, held.at, grant, 2);
        header.request = raw.number();
        let bytes = frame(header, &args, &payload);
        let (first, rest) = bytes.split_at(bytes.len() - LARGE / 2);
        raw.send(first);
        raw.send(rest);
        raw.reply()
    };
    let mut reply = send();
    // The capacity of the block grows first.
    for _ in 0..100_000 {
        if reply.status() != Status::Busy {
            break;
        }
        reply = send();
    }
    let expected = match op {
        // It has no whole number of references.
        Op::ExtentPutList => Status::BadFrame,
        _ if small_only(op) => Status::ValueTooLarge,
        _ => Status::Ok,
    };
    assert_eq!(reply.status(), expected, "a large {op:?}: {}", reply.message());
}

// -------------------------------------------------------------------------------- two jobs

/// A task stores a list whose extents have other lengths than it says. Other tasks of the job allocate memory
/// of the lengths in a list.
#[test]
fn list_that_names_impossible_lists_is_refused_by_its_readers() {
    let (cluster, _) = keyed_cluster(MEMORY, BLOCK);
    let victim = Victim::new(&cluster, "victim");
    let mut raw = Raw::greeted(cluster.servers[0].address(), &victim.job.token, ANY_SHARD);
    let grant = Numbers::present(&mut raw, &victim.grants()).kv;
    let store = victim.client.open_kv(victim.job.job, "own:kv").unwrap();
    let most = (BLOCK / LARGE_FRACTION) as u32;
    let lies = [
        (ListHead { level: 1, bytes: 1 << 39 }, vec![most]),
        (ListHead { level: 2, bytes: 1 << 39 }, vec![most; 100]),
        (ListHead { level: 1, bytes: 99 }, vec![100]),
    ];
    for ((head, lens), n) in lies.into_iter().zip(1..) {
        let put = data_header(Op::ExtentPut, victim.extents.at, grant, 1);
        let put = raw.request(put, &[], &[7; 100]);
        assert_eq!(put.status(), Status::Ok, "{}", put.message());
        let id = put.header.value;
        let named = |len: &u32| ExtentRef { at: victim.extents.at, id, len: *len };
        let list = put_list(Some(head), &lens.iter().map(named).collect::<Vec<_>>());
        let mut header = data_header(Op::KvPutExtents, victim.kv.at, grant, 1);
        header.sequence = Sequence(n);
        let stored = raw.request(header, b"\0lie", &list);
        assert_eq!(stored.status(), Status::Ok, "{head:?}: {}", stored.message());
        let refused = store.get(b"lie", &mut Vec::new()).unwrap_err();
        assert_eq!(refused.status, Status::BadFrame, "{head:?}: {refused}");
        assert!(refused.message.contains("by lists of"), "before the lists are read: {refused}");
    }
    assert!(store.get(b"k", &mut Vec::new()).unwrap(), "other keys are read as before");
}
