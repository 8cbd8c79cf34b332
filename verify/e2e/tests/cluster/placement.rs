//! Servers report their load, and the weights of jobs with hints follow it.

use honeycomb_client::JobOptions;
use honeycomb_e2e::{Cluster, KIB, LEASE_MS, Scratch, disk, eventually, file, kv, noise, prefix};
use honeycomb_types::{PrefixId, ServerId, TierClass};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

#[test]
fn a_server_that_works_says_so_and_a_job_with_hints_is_told_of_it() {
    let cluster = Cluster::start(2, 4096 * KIB, 64 * KIB);
    let whole = cluster.client(cluster.controller.token(), PrefixId(0));
    let options = JobOptions { tasks: 1000, ..JobOptions::default() };
    let steered = whole.register_job_with("steered", &options).unwrap();
    let (client, job) = cluster.job("busy");
    prefix(&client, &job, "p", LEASE_MS);
    let store = kv(&client, &job, "p:kv", 1);
    let value = vec![7; 8 * KIB as usize];
    store.put(b"k", &value).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                let mut found = Vec::new();
                while !stop.load(Relaxed) {
                    assert!(store.get(b"k", &mut found).unwrap());
                }
                assert_eq!(found, value);
            });
        }
        let busy = || {
            let servers = whole.status().unwrap().servers;
            // The one with a block less is the one that works.
            let (works, rests) = match servers[0].free < servers[1].free {
                true => (&servers[0], &servers[1]),
                false => (&servers[1], &servers[0]),
            };
            let told = works.cpu_permille > 100 && works.cpu_permille > 3 * rests.cpu_permille;
            told.then_some(ServerId(works.server))
        };
        // However it ends, the threads end too.
        let watch = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("the server that works says so", || busy().is_some());
            let works = busy();
            let weights = whole.weights(steered.job).unwrap().weights;
            assert_eq!(weights.len(), 2);
            let sum: u16 = weights.iter().map(|w| w.weight_permille).sum();
            assert!((999..=1001).contains(&sum), "{weights:?}");
            if let Some(works) = works {
                let cpu = |own: bool| {
                    let of = weights.iter().find(|w| (w.server == works.0) == own).unwrap();
                    (of.cpu_permille, of.weight_permille)
                };
                let ((busy, less), (idle, more)) = (cpu(true), cpu(false));
                assert!(busy > idle && less <= more, "{weights:?}");
            }
            // A job's own token shows no servers, because they would reveal the load of others.
            let own = cluster.client(&steered.token, PrefixId(0));
            let told = own.weights(steered.job).unwrap().weights;
            assert!(told.iter().all(|w| (w.server, w.free, w.cpu_permille) == (0, 0, 0)));
            assert!(client.weights(job.job).unwrap().weights.is_empty());
        }));
        stop.store(true, Relaxed);
        watch.unwrap();
    });
}

/// A job that is not latency-sensitive has a hinted throughput of twice that of its server's disk: half of
/// its blocks begin there, and half in memory, which no other job needs. If the disk suffices, all blocks of
/// such a job begin there; for a latency-sensitive job, none do.
#[test]
fn files_begin_in_the_tiers_that_the_hints_of_their_jobs_say() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(&scratch.0).unwrap();
    let ssd = disk(&scratch.0, 32 << 20, TierClass::Ssd);
    let cluster = Cluster::with_tiers(16 << 20, 64 * KIB, vec![ssd]);
    let whole = cluster.client(cluster.controller.token(), PrefixId(0));
    let used = || {
        let status = whole.status().unwrap();
        (status.blocks - status.free, status.tiers[0].used)
    };
    let mut before = (0, 0);
    for (name, latency_sensitive, peak_throughput, part) in [
        ("both", false, 1_000_000_000, 0.5),
        ("disk", false, 100_000_000, 1.0),
        ("memory", true, 100_000_000, 0.0),
    ] {
        let options = JobOptions { latency_sensitive, peak_throughput, ..JobOptions::default() };
        let job = whole.register_job_with(name, &options).unwrap();
        let client = cluster.client(&job.token, PrefixId(0));
        let told = whole.weights(job.job).unwrap().tiers;
        let shares: Vec<(u8, u16)> = told.iter().map(|t| (t.tier, t.weight_permille)).collect();
        let below = (part * 1000.0) as u16;
        assert_eq!(shares, [(0, 1000 - below), (TierClass::Ssd.code(), below)], "{name}");
        prefix(&client, &job, "p", LEASE_MS);
        // One at a time, so that no disk is busy: each begins where its turn is.
        let bytes = noise(7, 30 * 1000);
        let files: Vec<_> = (0..40)
            .map(|n| {
                let made = file(&client, &job, &format!("p:f{n}"));
                made.append(&bytes[..1000 + n]).unwrap();
                made
            })
            .collect();
        let (memory, disk) = used();
        let (memory, disk) = (memory - before.0, disk - before.1);
        assert_eq!(memory + disk, 40, "{name}");
        let expected = (part * 40.0) as u64;
        assert!(disk.abs_diff(expected) <= 1, "{name}: {disk} of 40 begin on the disk");
        for (n, file) in files.iter().enumerate() {
            let mut got = vec![0; 1000 + n];
            assert_eq!(file.read_into(0, &mut got).unwrap(), got.len());
            assert!(got == bytes[..1000 + n], "other bytes than were written (INV-11)");
        }
        before = used();
    }
}
