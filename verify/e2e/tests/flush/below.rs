//! Blocks in lower tiers at the end of their lease are flushed from there, and blocks that wait for an
//! unreachable store are demoted.

use super::{Root, all_free, flushed_to, look};
use honeycomb_client::{Client, JobTicket};
use honeycomb_e2e::{Cluster, KIB, eventually, file, kv, noise, prefix};
use honeycomb_tiers::Flushed;
use honeycomb_types::PrefixId;

const BLOCK: u64 = 64 * KIB;

fn cluster(root: &Root, disk: &Root) -> Cluster {
    Cluster::flushing_with_disk(4 << 20, BLOCK, (&disk.0, 32 << 20), root.flush())
}

fn used_below(client: &Client) -> u64 {
    client.status().unwrap().tiers[0].used
}

fn write(client: &Client, job: &JobTicket, address: &str, length: usize) -> Vec<u8> {
    let file = file(client, job, address);
    let bytes = noise(length as u64, length);
    for piece in bytes.chunks(8000) {
        file.append(piece).unwrap();
    }
    bytes
}

#[test]
fn a_file_of_three_times_the_memory_is_flushed_from_the_disk() {
    let (root, disk) = (Root::new("from-below"), Root::new("from-below-disk"));
    let cluster = cluster(&root, &disk);
    let watcher = cluster.client(cluster.controller.token(), PrefixId(0));
    let (client, job) = cluster.job("job");
    flushed_to(&client, &job, "t", "out", 1500);
    let bytes = write(&client, &job, "t:big", 12 << 20);
    // Its end is in the warm pool, or in memory.
    let small = write(&client, &job, "t:small", 100);
    assert!(used_below(&watcher) > (8 << 20) / BLOCK, "most of it is on the disk");
    drop(client);
    eventually("the flush", || look(&watcher, &job, "t").flush == 3);
    let flushed = Flushed::open(root.0.join("job/out")).unwrap();
    flushed.check().unwrap();
    assert!(flushed.file("big").unwrap() == bytes, "the file differs (INV-11)");
    assert!(flushed.file("small").unwrap() == small);
    eventually("all is free", || all_free(&watcher) && used_below(&watcher) == 0);
}

#[test]
fn what_waits_for_a_store_leaves_memory_to_others() {
    let (root, disk) = (Root::new("store-out"), Root::new("store-out-disk"));
    let cluster = cluster(&root, &disk);
    let watcher = cluster.client(cluster.controller.token(), PrefixId(0));
    let (client, job) = cluster.job("job");
    flushed_to(&client, &job, "t", "out", 1000);
    let table = kv(&client, &job, "t:table", 1);
    let values: Vec<Vec<u8>> = (0..300).map(|n| noise(n, 5000)).collect();
    for (n, value) in values.iter().enumerate() {
        table.put(format!("key-{n}").as_bytes(), value).unwrap();
    }
    let held = look(&client, &job, "t").structures[0].blocks as u64;
    assert!(held > 16, "{held} blocks");
    let moved = root.0.with_extension("moved");
    std::fs::rename(&root.0, &moved).unwrap();
    drop(table);
    eventually("a failure", || look(&watcher, &job, "t").flush == 2);
    // A kv must stay in memory, but its blocks retained for the flush need not.
    prefix(&client, &job, "other", 0);
    let bytes = write(&client, &job, "other:file", 6 << 20);
    let in_memory = || {
        let status = watcher.status().unwrap();
        (status.quarantined, status.tiers[0].used)
    };
    eventually("it goes down", || in_memory().0 == 0);
    let mut read = vec![0; bytes.len()];
    let other = client.open_file(job.job, "other:file").unwrap();
    assert_eq!(other.read_into(0, &mut read).unwrap(), bytes.len());
    assert!(read == bytes);
    std::fs::rename(&moved, &root.0).unwrap();
    eventually("the flush", || look(&watcher, &job, "t").flush == 3);
    let flushed = Flushed::open(root.0.join("job/out")).unwrap();
    let there: Vec<_> = flushed.kv("table").unwrap().map(Result::unwrap).collect();
    assert_eq!(there.len(), values.len());
    for (key, value) in there {
        let n: usize = std::str::from_utf8(&key).unwrap()[4..].parse().unwrap();
        assert!(value == values[n], "another value (INV-11)");
    }
}
