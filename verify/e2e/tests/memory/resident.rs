//! Freed memory is returned to the operating system. The test runs alone in its process, because the
//! kernel counts memory per process.

use honeycomb_e2e::{Cluster, eventually, file, kv, noise, prefix, status};
use honeycomb_env::resident_anonymous_bytes;
use honeycomb_wire::Status;

#[test]
fn freed_memory_goes_back_to_the_operating_system() {
    let _alone = crate::alone();
    a_prefix_that_is_removed();
    what_blocks_gave_away_when_they_were_divided();
}

fn a_prefix_that_is_removed() {
    let cluster = Cluster::start(1, 256 << 20, 16 << 20);
    let (client, job) = cluster.job("resident");
    prefix(&client, &job, "a", 0);
    let before = resident_anonymous_bytes();
    let log = file(&client, &job, "a:log");
    let piece = noise(1, 2 << 20);
    for _ in 0..40 {
        log.append(&piece).unwrap();
    }
    let full = resident_anonymous_bytes();
    assert!(full > before + (70 << 20), "{before} {full}: 80 MiB were written");
    client.remove_prefix(job.job, "a").unwrap();
    eventually("80 MiB go back", || resident_anonymous_bytes() < before + (16 << 20));
    assert_eq!(status(log.append(b"x")), Status::Removed);
}

/// Regression: only holes of at least 128 KiB were returned, and only their parts aligned to 64 KiB: nothing
/// of a block of 1 MiB with regions of 16 KiB.
fn what_blocks_gave_away_when_they_were_divided() {
    let cluster = Cluster::start(1, 256 << 20, 1 << 20);
    let (client, job) = cluster.job("resident");
    let before = resident_anonymous_bytes();
    prefix(&client, &job, "b", 0);
    let store = kv(&client, &job, "b:store", 1);
    let value = noise(2, 4000);
    let mut used = 0;
    for n in 0..2600u64 {
        store.put(format!("{n:016}").as_bytes(), &value).unwrap();
        used += 16 + value.len() as u64;
    }
    let allocated = (store.structure().blocks() as u64) << 20;
    assert!(
        allocated > used * 14 / 10,
        "{allocated} for {used}: blocks are not full after a split"
    );
    eventually("what is not used goes back", || {
        resident_anonymous_bytes() < before + used * 145 / 100
    });
}
