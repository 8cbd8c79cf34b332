//! Two jobs, side by side.

use super::*;

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

    // Objects of another job look exactly like objects that do not exist.
    let nobody = JobTicket { job: JobId(b.job.job.0 + 1000), ..b.job.clone() };
    let absent = Victim {
        client: b.client.clone(),
        job: nobody,
        own: PrefixId(1 << 40),
        peer: b.peer,
        kv: Held { at: b.kv.at, id: StructureId(1 << 40), grant: b.kv.grant.clone() },
        file: Held { at: b.file.at, id: StructureId(1 << 40), grant: b.file.grant.clone() },
        queue: Held { at: b.queue.at, id: StructureId(1 << 40), grant: b.queue.grant.clone() },
        extents: Held { at: b.extents.at, id: StructureId(1 << 40), grant: b.kv.grant.clone() },
    };
    for op in Op::ALL.into_iter().filter(|op| {
        op.info().plane == Plane::Control
            && op.info().auth == Auth::Job
            && !matches!(op, Op::ListJobs | Op::ListKinds | Op::ClusterStatus)
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
    let all = [&a.kv, &a.file, &a.queue, &b.kv, &b.file, &b.queue].map(|held| held.id.0);
    for structure in all.iter().flat_map(|id| id.saturating_sub(20)..id + 20) {
        let body = ReopenStructureRequest { job: a.job.job.0, structure };
        let reply = raw.ask(Op::ReopenStructure, &body.encode());
        let own = all[..3].contains(&structure);
        let expected = if own { Status::Ok } else { Status::NotFound };
        assert_eq!(reply.status(), expected, "structure {structure:#x}: {}", reply.message());
    }

    // On the data plane, another job's block looks like a block that does not exist.
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

    // A job's operations on its names do not affect the same names of another job.
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
    first.client.remove_structure(first.job.job, "own:queue").unwrap();
    let cluster_client = cluster.client(cluster.controller.token(), PrefixId(0));
    eventually("the blocks are back", || cluster_client.status().unwrap().free > blocks);
    let (client, job) = cluster.job("second");
    prefix(&client, &job, "own", 0);
    let mut found = false;
    let mut reader = Raw::greeted(cluster.servers[0].address(), &job.token, ANY_SHARD);
    let mut controller = Raw::greeted(cluster.controller.address(), &job.token, ANY_SHARD);
    for i in 0..12 {
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
