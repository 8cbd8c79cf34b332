//! Flushes at the end of a lease, to disk or to a bucket: the flush equals the stored data, it is not visible
//! before it is complete, and data that cannot be written is reported and retained.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod barrier;
mod below;
mod journal;
mod live;
mod load;
mod outage;
mod persist;
mod raw;
mod s3;
mod subtree;

use honeycomb_client::{Client, JobTicket};
use honeycomb_e2e::{Cluster, KIB, eventually, file, kv, noise};
use honeycomb_tiers::{Access, FlushError, FlushRoot, Flushed, Place};
use honeycomb_types::PrefixId;
use honeycomb_wire::Status;
use honeycomb_wire::messages::{PrefixInfo, PrefixOptions};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A directory of this test's own, gone afterwards.
struct Root(PathBuf);

impl Root {
    fn new(name: &str) -> Root {
        let path = std::env::temp_dir().join(format!("honeycomb-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Root(path)
    }

    fn flush(&self) -> FlushRoot {
        FlushRoot { place: Place::Directory(self.0.clone()), access: Access::none() }
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const NO_WAIT: Duration = Duration::ZERO;

fn cluster(root: &Root, servers: usize) -> Cluster {
    flushing(root.flush(), servers)
}

fn flushing(root: FlushRoot, servers: usize) -> Cluster {
    Cluster::flushing(servers, 4096 * KIB, 64 * KIB, Some(root))
}

/// A prefix that is flushed to `to` when its lease of `lease_ms` expires.
fn flushed_to(client: &Client, job: &JobTicket, path: &str, to: &str, lease_ms: u32) {
    let options = PrefixOptions { lease_ms, flush_to: to.into(), ..PrefixOptions::default() };
    client.create_prefix(job.job, path, &[], options).unwrap();
}

fn look(client: &Client, job: &JobTicket, name: &str) -> PrefixInfo {
    let tree = client.tree(job.job).unwrap();
    tree.into_iter().find(|prefix| prefix.name == name).unwrap()
}

fn all_free(client: &Client) -> bool {
    let status = client.status().unwrap();
    status.free == status.blocks && status.quarantined == 0
}

fn objects(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// An item of a queue: every fiftieth is in blocks of its own.
fn item(n: u64) -> Vec<u8> {
    noise(n, if n % 50 == 7 { 9_000 + 30 * n as usize } else { 200 + n as usize % 400 })
}

/// Fills a prefix with a file, a queue and a kv of many blocks, lets it expire, and finds them below the
/// root as they were, in objects that all belong to the flush.
fn all_comes_back(root: &FlushRoot, objects: impl Fn() -> Vec<String>) {
    let cluster = flushing(root.clone(), 2);
    let watcher = cluster.client(cluster.controller.token(), PrefixId(0));
    let (client, job) = cluster.job("my job");
    flushed_to(&client, &job, "t", "out/t", 1500);

    let text = noise(1, 300_000);
    let f = file(&client, &job, "t:text");
    f.write_all(&text).unwrap();
    let q = client.create_queue(job.job, "t:work", 0, 0, false).unwrap();
    let items: Vec<Vec<u8>> = (0..400).map(item).collect();
    for item in &items {
        q.put(item, NO_WAIT).unwrap();
    }
    // Taken items are not flushed; a reserved item that is not acknowledged still belongs to the queue.
    for item in &items[..100] {
        assert_eq!(q.get(NO_WAIT).unwrap().as_ref(), Some(item));
    }
    let held = q.reserve(1, Duration::from_secs(60), NO_WAIT).unwrap();
    assert_eq!(held.len(), 1);
    let k = kv(&client, &job, "t:table", 8);
    let mut table = BTreeMap::new();
    for i in 0..500u64 {
        let (key, value) = (format!("key-{i}").into_bytes(), noise(i, (i as usize * 7) % 600));
        k.put(&key, &value).unwrap();
        table.insert(key, value);
    }
    for i in (0..500).step_by(7) {
        let key = format!("key-{i}").into_bytes();
        assert!(k.delete(&key).unwrap());
        table.remove(&key);
    }
    // Values in blocks of their own, some of which were replaced and deleted.
    for i in 0..12u64 {
        // The last one has lists of its extents in between.
        let length = if i == 11 { 350_000 } else { 9_000 + i as usize * 5_000 };
        let (key, value) = (format!("large-{i}").into_bytes(), noise(i, length));
        k.put(&key, &value).unwrap();
        table.insert(key, value);
    }
    k.put(b"large-3", b"small").unwrap();
    table.insert(b"large-3".to_vec(), b"small".to_vec());
    assert!(k.delete(b"large-4").unwrap());
    table.remove(&b"large-4"[..]);
    assert!(look(&watcher, &job, "t").structures.iter().all(|s| s.blocks > 1), "many blocks each");

    // The owner dies: its connections break, and no renewals arrive.
    drop((f, q, k, client));
    eventually("the flush", || look(&watcher, &job, "t").flush == 3);
    let flushed = Flushed::at(root.place.join("my=20job/out/t"), &root.access).unwrap();
    flushed.check().unwrap();
    assert_eq!((&*flushed.manifest().job, &*flushed.manifest().address), ("my job", "t"));
    assert!(flushed.file("text").unwrap() == text, "the file differs");
    let there: Vec<Vec<u8>> = flushed.queue("work").unwrap().map(Result::unwrap).collect();
    assert!(there == items[100..], "the queue differs: {} items", there.len());
    let there: BTreeMap<_, _> = flushed.kv("table").unwrap().map(Result::unwrap).collect();
    assert!(there == table, "the table differs: {} entries", there.len());
    eventually("all blocks free", || all_free(&watcher));
    assert_eq!(watcher.status().unwrap().flushed, 1);
    // Every object is one of the manifest, or the manifest.
    let parts = flushed.manifest().structures.iter().map(|s| s.parts.len()).sum::<usize>();
    assert_eq!(objects().len(), parts + 1);
}

#[test]
fn a_file_a_queue_and_a_kv_of_many_blocks_are_on_disk_as_they_were() {
    let root = Root::new("all");
    all_comes_back(&root.flush(), || objects(&root.0.join("my=20job/out/t")));
}

const MIB: u64 = 1024 * KIB;

/// Blocks that are larger than the largest object are in several, which begin where the others end.
fn large_blocks_come_back(root: &FlushRoot) {
    let cluster = Cluster::flushing(1, 256 * MIB, 32 * MIB, Some(root.clone()));
    let watcher = cluster.client(cluster.controller.token(), PrefixId(0));
    let (client, job) = cluster.job("job");
    flushed_to(&client, &job, "t", "out", 3000);
    let text = noise(1, 21 << 20);
    let f = file(&client, &job, "t:text");
    for piece in text.chunks(1 << 20) {
        f.append(piece).unwrap();
    }
    let q = client.create_queue(job.job, "t:work", 0, 0, false).unwrap();
    let k = kv(&client, &job, "t:table", 1);
    let mut table = BTreeMap::new();
    let value = |i: u64| text[i as usize * 1000..][..3 << 20].to_vec();
    for i in 0..7u64 {
        q.put(&value(i), NO_WAIT).unwrap();
        k.put(&i.to_le_bytes(), &value(i)).unwrap();
        table.insert(i.to_le_bytes().to_vec(), value(i));
    }
    drop((f, q, k, client));
    eventually("the flush", || look(&watcher, &job, "t").flush == 3);
    let flushed = Flushed::at(root.place.join("job/out"), &root.access).unwrap();
    flushed.check().unwrap();
    assert!(flushed.file("text").unwrap() == text, "the file differs");
    let items: Vec<Vec<u8>> = flushed.queue("work").unwrap().map(Result::unwrap).collect();
    assert!(items == (0..7).map(value).collect::<Vec<_>>(), "the queue differs");
    let there: BTreeMap<_, _> = flushed.kv("table").unwrap().map(Result::unwrap).collect();
    assert!(there == table, "the table differs");
    for structure in &flushed.manifest().structures {
        assert_eq!(structure.parts.len(), 2, "{}", structure.name);
        assert!(structure.parts.iter().all(|part| part.bytes <= 16 << 20));
        let [first, second] = [&structure.parts[0], &structure.parts[1]];
        match structure.kind.as_str() {
            "kv" => assert_eq!(second.start, first.start),
            _ => assert_eq!(second.start, first.start + first.items),
        }
    }
}

#[test]
fn blocks_that_are_larger_than_an_object_are_in_several() {
    large_blocks_come_back(&Root::new("large").flush());
}

#[test]
fn what_cannot_be_written_is_told_kept_and_tried_again() {
    let root = Root::new("failing");
    let cluster = cluster(&root, 1);
    let watcher = cluster.client(cluster.controller.token(), PrefixId(0));
    let (client, job) = cluster.job("job");
    // A file where the job's directory is to be: no permission of the test's user matters.
    std::fs::write(root.0.join("job"), b"in the way").unwrap();
    flushed_to(&client, &job, "t", "out", 300);
    let f = file(&client, &job, "t");
    f.append(b"precious").unwrap();
    eventually("a failure", || look(&client, &job, "t").flush == 2);
    let told = look(&client, &job, "t").flush_message;
    assert!(told.contains("directory") || told.contains("exists"), "{told}");
    let status = watcher.status().unwrap();
    assert_eq!((status.flushing, status.flush_failing, status.quarantined), (1, 1, 1));
    assert!(status.flush_error.starts_with("job/out: "), "{}", status.flush_error);
    let others = client.status().unwrap().flush_error;
    assert_eq!(others, "", "a job's token is not told of directories");
    assert_eq!(f.append(b"x").unwrap_err().status, Status::LeaseExpired);

    std::fs::remove_file(root.0.join("job")).unwrap();
    eventually("the flush", || look(&client, &job, "t").flush == 3);
    let flushed = Flushed::open(root.0.join("job/out")).unwrap();
    assert_eq!(flushed.file("").unwrap(), b"precious");
    eventually("all blocks free", || all_free(&watcher));
}

#[test]
fn a_root_that_is_gone_is_not_made_again() {
    let root = Root::new("unmounted");
    let cluster = cluster(&root, 1);
    let (client, job) = cluster.job("job");
    flushed_to(&client, &job, "t", "out", 300);
    file(&client, &job, "t").append(b"precious").unwrap();
    let moved = root.0.with_extension("moved");
    std::fs::rename(&root.0, &moved).unwrap();
    eventually("a failure", || look(&client, &job, "t").flush == 2);
    assert!(!root.0.exists(), "a disk that is not mounted is not written around");
    std::fs::rename(&moved, &root.0).unwrap();
    eventually("the flush", || look(&client, &job, "t").flush == 3);
    assert_eq!(Flushed::open(root.0.join("job/out")).unwrap().file("").unwrap(), b"precious");
}

#[test]
fn a_later_flush_takes_the_place_of_an_earlier_one() {
    let root = Root::new("again");
    let cluster = cluster(&root, 1);
    let (client, job) = cluster.job("job");
    let directory = root.0.join("job/out");
    for round in [b"first", b"later"] {
        flushed_to(&client, &job, "t", "out", 300);
        file(&client, &job, "t").append(round).unwrap();
        eventually("the flush", || look(&client, &job, "t").flush == 3);
        let flushed = Flushed::open(&directory).unwrap();
        assert_eq!(flushed.file("").unwrap(), round);
        assert_eq!(objects(&directory).len(), 2, "a part and the manifest");
    }
}

// INV-10.
#[test]
fn a_part_that_is_damaged_or_gone_is_seen() {
    let root = Root::new("damage");
    let cluster = cluster(&root, 1);
    let (client, job) = cluster.job("job");
    flushed_to(&client, &job, "t", "out", 300);
    kv(&client, &job, "t", 1).put(b"key", b"value").unwrap();
    eventually("the flush", || look(&client, &job, "t").flush == 3);
    let flushed = Flushed::open(root.0.join("job/out")).unwrap();
    flushed.check().unwrap();
    let part = root.0.join("job/out").join(&flushed.manifest().structures[0].parts[0].name);
    let good = std::fs::read(&part).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        std::fs::write(&part, bad).unwrap();
        assert!(matches!(flushed.check(), Err(FlushError::Damaged { .. })), "byte {at}");
    }
    std::fs::write(&part, &good[..good.len() - 1]).unwrap();
    assert!(matches!(flushed.check(), Err(FlushError::Damaged { .. })));
    std::fs::remove_file(&part).unwrap();
    assert!(matches!(flushed.check(), Err(FlushError::Missing { .. })));
    std::fs::remove_file(root.0.join("job/out/manifest.json")).unwrap();
    let none = Flushed::open(root.0.join("job/out"));
    assert!(matches!(none, Err(FlushError::NoManifest { .. })), "without a manifest: no flush");
}

#[test]
fn without_a_root_the_option_is_refused_by_the_name_of_the_setting() {
    let cluster = Cluster::start(1, 1024 * KIB, 64 * KIB);
    let (client, job) = cluster.job("job");
    let options = PrefixOptions { flush_to: "out".into(), ..PrefixOptions::default() };
    let refused = client.create_prefix(job.job, "t", &[], options).unwrap_err();
    assert_eq!(refused.status, Status::FlushUnavailable);
    assert!(refused.to_string().contains("flush_root"), "{refused}");
}

#[test]
fn no_path_leaves_the_root() {
    let root = Root::new("outside");
    let cluster = cluster(&root, 1);
    let (client, job) = cluster.job("job");
    for bad in ["/etc/x", "..", "a/../../x", "a//b", "a\0b"] {
        let options = PrefixOptions { flush_to: bad.into(), ..PrefixOptions::default() };
        let refused = client.create_prefix(job.job, "t", &[], options).unwrap_err();
        assert_eq!(refused.status, Status::InvalidArgument, "{bad:?}");
    }
}
