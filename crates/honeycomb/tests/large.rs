//! Values of more than an eighth of a block.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Cluster, KIB, eventually, kv, noise, prefix, status};
use honeycomb_client::{Client, JobTicket, Kv, Swap};
use honeycomb_types::JobId;
use honeycomb_wire::Status;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const MIB: u64 = 1024 * KIB;

fn blocks(client: &Client, job: JobId) -> u32 {
    client.tree(job).unwrap().iter().flat_map(|p| &p.structures).map(|s| s.blocks).sum()
}

fn used(client: &Client, job: JobId) -> u64 {
    client.tree(job).unwrap().iter().flat_map(|p| &p.structures).map(|s| s.bytes_used).sum()
}

fn start(name: &str, servers: usize, block_size: u64) -> (Cluster, Client, JobTicket) {
    let cluster = Cluster::start(servers, 512 * block_size, block_size);
    let (client, job) = cluster.job(name);
    prefix(&client, &job, "/t", 60_000);
    (cluster, client, job)
}

fn get(store: &Kv, key: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![1, 2, 3];
    store.get(key, &mut out).unwrap().then_some(out)
}

#[test]
fn a_value_of_any_size_up_to_the_limit_comes_back() {
    let (_cluster, client, job) = start("sizes", 2, 64 * KIB);
    let store = kv(&client, &job, "/t", 1);
    let (plain, most) = (store.plain_limit(), store.value_limit());
    assert_eq!((plain, most), (8 * 1024, 36 * 8 * 1024));
    let sizes = [plain - 1, plain, plain + 1, 2 * plain, 3 * plain + 5, 10 * plain + 1, most];
    for (n, size) in sizes.into_iter().enumerate() {
        let key = format!("key-{n}");
        assert!(!store.put(key.as_bytes(), &noise(n as u64, size)).unwrap());
    }
    // Who comes anew knows no block and no server.
    let other = client.open_kv(job.job, "/t").unwrap();
    for (n, size) in sizes.into_iter().enumerate() {
        let key = format!("key-{n}");
        assert_eq!(get(&other, key.as_bytes()), Some(noise(n as u64, size)), "{size}");
        assert_eq!(store.exists(key.as_bytes()).unwrap(), Some(size as u64));
        let mut buffer = vec![0; size];
        assert_eq!(other.get_into(key.as_bytes(), &mut buffer).unwrap(), Some(size));
        assert_eq!(buffer, noise(n as u64, size));
    }
    let mut short = vec![0; most - 1];
    assert_eq!(status(store.get_into(b"key-6", &mut short)), Status::InvalidArgument);
    let refused = store.put(b"key-0", &vec![0; most + 1]).unwrap_err();
    assert_eq!(refused.status, Status::ValueTooLarge);
    assert!(refused.message.contains(&most.to_string()), "{refused}");
    assert!(refused.message.contains(&(most + 1).to_string()), "{refused}");
    assert_eq!(store.length().unwrap(), sizes.len() as u64);
}
