//! What a memory server serves to whom, and what becomes of revoked grants.

use super::*;

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
        | Op::DeclareReaders
        | Op::CommitTask
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
        Op::FileRead
        | Op::FileReadMany
        | Op::FileSize
        | Op::KvGet
        | Op::KvMultiGet
        | Op::KvExists
        | Op::KvScan
        | Op::KvLength => reads,
        Op::FileAppend
        | Op::FileSeal
        | Op::KvPut
        | Op::KvDelete
        | Op::KvUpdate
        | Op::KvUpsert
        | Op::KvCompareAndSwap
        | Op::KvBatch
        | Op::KvAccumulate => writes,
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
                let expected = match expected {
                    Status::Ok if small_only(op) => Status::ValueTooLarge,
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
    let mut watch = Watch::new(&cluster, &victim);
    let node = cluster.servers[0].address();
    let mut controller = Raw::greeted(cluster.controller.address(), &victim.job.token, ANY_SHARD);
    let others = ["other-kv", "other-log"].map(|n| open(&mut controller, &victim.job, "own", n));
    let peer = victim.token(Caveat::Task(victim.peer));
    let mut peer_raw = Raw::greeted(cluster.controller.address(), &peer, ANY_SHARD);
    // By identity: opening by address would make the task a reader, whose traffic may renew.
    let peers = [&victim.kv, &victim.file].map(|held| {
        let body = ReopenStructureRequest { job: victim.job.job.0, structure: held.id.0 };
        let reply = peer_raw.ask(Op::ReopenStructure, &body.encode());
        ReopenStructureReply::decode(&reply.args).unwrap().grant
    });

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
    let expected = if small_only(op) { Status::ValueTooLarge } else { Status::Ok };
    assert_eq!(reply.status(), expected, "a large {op:?}: {}", reply.message());
}

// -------------------------------------------------------------------------------- two jobs
