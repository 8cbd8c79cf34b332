//! Several controller shards: jobs on each, one cluster as a whole, and blocks lent where they are needed.

use honeycomb_client::{Client, ClientOptions, JobOptions, JobTicket, Kv, Quota, QuotaOf};
use honeycomb_controller::{Controller, ControllerOptions, StartError};
use honeycomb_e2e::{Cluster, KIB, LEASE_MS, eventually, kv, prefix, server_options, status};
use honeycomb_env::Entropy;
use honeycomb_server::MemoryServer;
use honeycomb_types::{JobId, Marks, PrefixId};
use honeycomb_wire::Status;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Clients of one job on each of two shards, in the order of the shards.
fn one_on_each(cluster: &Cluster) -> [(Client, JobTicket); 2] {
    let mut jobs = [None, None];
    for n in 0..64 {
        let (client, ticket) = cluster.job(&format!("job-{n}"));
        jobs[ticket.job.controller() as usize].get_or_insert((client, ticket));
        if jobs.iter().all(Option::is_some) {
            break;
        }
    }
    jobs.map(|job| job.expect("64 names are not all on one shard"))
}

fn value(store: &Kv, key: &[u8]) -> Vec<u8> {
    let mut value = Vec::new();
    assert!(store.get(key, &mut value).unwrap(), "it was put");
    value
}

/// A quota of which nothing is held.
fn quota(max_blocks: u64) -> Quota {
    Quota { max_blocks, held_blocks: 0, soft_blocks: 0, weight: 1, memory_blocks: 0 }
}

#[test]
fn jobs_of_two_shards_are_one_cluster() {
    let cluster = Cluster::sharded(2, 2, 4 * 1024 * KIB, 64 * KIB);
    let whole = cluster.client(cluster.controller.token(), PrefixId(0));
    let jobs = one_on_each(&cluster);
    let all = whole.status().unwrap().blocks;
    for (n, (client, job)) in jobs.iter().enumerate() {
        prefix(client, job, "/p", LEASE_MS);
        let store = kv(client, job, "/p:kv", 3);
        for i in 0..2000 {
            store.put(format!("k{i}").as_bytes(), &[n as u8; 200]).unwrap();
        }
        // The cluster's token works wherever its connection is, through the other shard here or there.
        let also = whole.open_kv(job.job, "/p:kv").unwrap();
        assert_eq!(value(&also, b"k1999"), [n as u8; 200]);
        whole.renew(job.job, &["/p".to_owned()]).unwrap();
    }
    // Everything is seen as one, and free blocks are free once.
    let seen = whole.status().unwrap();
    let listed = whole.list_jobs().unwrap();
    assert_eq!(seen.jobs, listed.len() as u64);
    for (_, job) in &jobs {
        assert!(listed.iter().any(|listed| listed.job == job.job.0));
    }
    let held: u64 = listed.iter().map(|job| job.blocks).sum();
    assert!(held >= 6, "{held} blocks");
    assert_eq!((seen.blocks, seen.free), (all, all - held - seen.quarantined));
    assert_eq!(seen.servers.len(), 2);
    assert_eq!(seen.servers.iter().map(|server| server.free).sum::<u64>(), seen.free);
    // A job sees totals, and nothing of the other's.
    let (first, second) = (&jobs[0], &jobs[1]);
    let narrow = first.0.status().unwrap();
    assert!(narrow.servers.is_empty() && narrow.jobs == seen.jobs);
    assert_eq!(first.0.list_jobs().unwrap().len(), 1);
    assert_eq!(status(first.0.lease(second.1.job, "/p")), Status::UnknownJob);
    assert_eq!(status(second.0.open_kv(first.1.job, "/p:kv").map(drop)), Status::UnknownJob);
    assert_eq!(status(whole.lease(JobId(u64::MAX), "/p")), Status::UnknownJob);
    for (_, job) in &jobs {
        whole.deregister_job(job.job).unwrap();
        assert_eq!(status(whole.lease(job.job, "/p")), Status::UnknownJob);
    }
    eventually("all blocks are free", || whole.status().unwrap().free == all);
}

#[test]
fn a_name_is_one_jobs_and_found_again() {
    let cluster = Cluster::sharded(3, 1, 1024 * KIB, 64 * KIB);
    let whole = cluster.client(cluster.controller.token(), PrefixId(0));
    for n in 0..12 {
        let name = format!("name-{n}");
        let job = whole.register_job(&name, LEASE_MS, 0).unwrap().job;
        assert_eq!(status(whole.register_job(&name, LEASE_MS, 0)), Status::AlreadyExists);
        assert_eq!(whole.find_job(&name).unwrap().job, job);
    }
    assert_eq!(whole.list_jobs().unwrap().len(), 12);
}

#[test]
fn all_jobs_of_a_tenant_are_of_one_shard() {
    let cluster = Cluster::sharded(3, 1, 1024 * KIB, 64 * KIB);
    let whole = cluster.client(cluster.controller.token(), PrefixId(0));
    let options = JobOptions { tenant: Some("acme".into()), ..JobOptions::default() };
    let jobs = (0..8).map(|n| whole.register_job_with(&format!("j{n}"), &options).unwrap().job);
    let jobs: Vec<JobId> = jobs.collect();
    assert!(jobs.iter().all(|job| job.controller() == jobs[0].controller()), "{jobs:?}");
    assert_eq!(whole.find_job("acme/j3").unwrap().job, jobs[3]);
    assert_eq!(status(whole.find_job("j3")), Status::UnknownJob);
    // The tenant's quota is on the shard of its jobs, whichever shard gets the request.
    for shard in 0..3 {
        let mut options = ClientOptions::new(whole.address(), cluster.controller.token());
        options.timeout = Duration::from_secs(5);
        let any = Client::new(options);
        let of = QuotaOf::Tenant("acme".into());
        let quota = quota(shard + 1);
        assert_eq!(any.set_quota(&of, shard + 1).unwrap(), quota);
        assert_eq!(whole.quota(&of).unwrap(), quota);
    }
    let other = whole.register_job("other", LEASE_MS, 0).unwrap().job;
    whole.deregister_job(jobs[7]).unwrap();
    let bills = whole.bills(None).unwrap();
    let ended: Vec<u64> = bills.iter().filter(|bill| bill.ended).map(|bill| bill.job).collect();
    assert_eq!((ended, bills.len()), (vec![jobs[7].0], 9));
    assert_eq!(whole.bills(Some(other)).unwrap()[0].name, "other");
    let of = QuotaOf::Job(jobs[5]);
    assert_eq!(whole.set_quota(&of, 8).unwrap(), quota(8));
}

#[test]
fn one_shard_may_have_all_and_then_the_other() {
    let cluster = Cluster::sharded(2, 1, 4 * 1024 * KIB, 64 * KIB);
    let jobs = one_on_each(&cluster);
    // 64 blocks, of which one shard keeps two in reserve.
    for (client, job) in &jobs {
        prefix(client, job, "/p", LEASE_MS);
        let create = || client.create_kv(job.job, "/p:all", 62, false).is_ok();
        eventually("one shard has all the room", create);
        client.remove_structure(job.job, "/p:all").unwrap();
    }
    // An allocation that neither shard can satisfy is refused by both at once.
    for (client, job) in &jobs {
        let more = client.create_kv(job.job, "/p:more", 65, false).map(drop);
        assert_eq!(status(more), Status::OutOfMemory);
    }
}

/// A request that waited for borrowed blocks, which other waiting requests have taken, waits for more: the
/// server has enough for all.
#[test]
fn who_comes_late_to_a_loan_waits_for_the_next() {
    let cluster = Cluster::sharded(2, 1, 4 * 1024 * KIB, 64 * KIB);
    let jobs = one_on_each(&cluster);
    let (threads, each) = (8, 3);
    for (client, job) in &jobs {
        prefix(client, job, "/p", LEASE_MS);
    }
    let begin = std::sync::Barrier::new(jobs.len() * threads);
    std::thread::scope(|scope| {
        for ((client, job), thread) in
            jobs.iter().flat_map(|job| (0..threads).map(move |t| (job, t)))
        {
            let begin = &begin;
            scope.spawn(move || {
                begin.wait();
                for n in 0..each {
                    let address = format!("/p:{thread}-{n}");
                    client.create_file(job.job, &address, 1, false).unwrap();
                }
            });
        }
    });
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn shards_come_back_with_their_jobs() {
    let unique = Entropy::system().next_u64();
    let folder = Folder(std::env::temp_dir().join(format!("honeycomb-shards-{unique:x}")));
    let mut options = ControllerOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        root_key: None,
        data_dir: Some(folder.0.clone()),
        spin: Duration::ZERO,
        unix_dir: None,
        marks: Marks::default(),
        lease_ms: 1000,
        policy: Default::default(),
        scale: Default::default(),
        server_loss_ms: honeycomb_types::limits::SERVER_LOSS_DEFAULT_MS,
        shards: 2,
    };
    let controller = Controller::start(&options).unwrap();
    options.listen = controller.address();
    let (address, token) = (controller.address(), controller.token());
    let server = server_options(address, token, 4 * 1024 * KIB, 64 * KIB);
    let server = MemoryServer::start(&server, Duration::from_secs(20)).unwrap();
    let mut cluster = Cluster { servers: vec![server], controller };
    let jobs = one_on_each(&cluster);
    let stores = jobs.each_ref().map(|(client, job)| {
        prefix(client, job, "/p", LEASE_MS);
        let store = kv(client, job, "/p:kv", 2);
        store.put(b"k", b"before").unwrap();
        store
    });
    let token = cluster.controller.token().to_vec();
    for _ in 0..2 {
        drop(cluster.controller);
        for wrong in [1, 3] {
            let other = ControllerOptions { shards: wrong, ..options.clone() };
            let refused = Controller::start(&other).err().expect("another number is refused");
            assert!(matches!(refused, StartError::Shards { has: 2, .. }), "{refused}");
        }
        let controller = Controller::start(&options).unwrap();
        assert_eq!(controller.token(), token, "the key is the same");
        cluster = Cluster { servers: cluster.servers, controller };
        for ((client, job), store) in jobs.iter().zip(&stores) {
            assert_eq!(value(store, b"k"), b"before");
            // Busy while servers are awaited; the client waits that out.
            let name = format!("/p:after-{}", Entropy::system().next_u64());
            eventually("blocks are given out again", || {
                client.create_kv(job.job, &name, 20, true).is_ok()
            });
            client.remove_structure(job.job, &name).unwrap();
        }
    }
    let whole = Client::new(ClientOptions::new(cluster.controller.address().to_string(), token));
    for (_, job) in &jobs {
        whole.deregister_job(job.job).unwrap();
    }
    eventually("no room was lost", || {
        let seen = whole.status().unwrap();
        seen.blocks == 64 && seen.free == 64
    });
}
