//! Freed memory goes back to the operating system. Alone in its process, because the kernel counts
//! by process.

mod common;

use common::{Cluster, eventually, file, noise, prefix, status};
use honeycomb_env::resident_anonymous_bytes;
use honeycomb_wire::Status;

#[test]
fn freed_memory_goes_back_to_the_operating_system() {
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
