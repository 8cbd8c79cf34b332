//! Servers tell how busy they are, and the weights of jobs with hints follow it.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Cluster, KIB, eventually, kv, prefix};
use honeycomb_client::JobOptions;
use honeycomb_types::{PrefixId, ServerId};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

#[test]
fn a_server_that_works_says_so_and_a_job_with_hints_is_told_of_it() {
    let cluster = Cluster::start(2, 4096 * KIB, 64 * KIB);
    let whole = cluster.client(cluster.controller.token(), PrefixId(0));
    let options = JobOptions { tasks: 1000, ..JobOptions::default() };
    let steered = whole.register_job_with("steered", &options).unwrap();
    let (client, job) = cluster.job("busy");
    prefix(&client, &job, "p", 60_000);
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
            // Its own token tells a job nothing of servers, which tell of others' load.
            let own = cluster.client(&steered.token, PrefixId(0));
            let told = own.weights(steered.job).unwrap().weights;
            assert!(told.iter().all(|w| (w.server, w.free, w.cpu_permille) == (0, 0, 0)));
            assert!(client.weights(job.job).unwrap().weights.is_empty());
        }));
        stop.store(true, Relaxed);
        watch.unwrap();
    });
}
