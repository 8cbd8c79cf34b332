//! Flushes of prefixes that live on.

use super::{NO_WAIT, Root, all_free, cluster, flushed_to, flushing, item, look, objects};
use honeycomb_client::{Client, FlushProgress, JobTicket, Kv};
use honeycomb_e2e::{KIB, LEASE_MS, Stop, eventually, file, kv, noise};
use honeycomb_tiers::{FlushRoot, Flushed};
use honeycomb_types::PrefixId;
use honeycomb_wire::Status;
use honeycomb_wire::messages::PrefixOptions;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

type Table = BTreeMap<Vec<u8>, Vec<u8>>;

pub(super) fn prefix(client: &Client, job: &JobTicket, path: &str, lease_ms: u32) {
    let options = PrefixOptions { lease_ms, ..PrefixOptions::default() };
    client.create_prefix(job.job, path, &[], options).unwrap();
}

/// Flushes and waits.
pub(super) fn flush(client: &Client, job: &JobTicket, path: &str, to: &str) -> FlushProgress {
    client.flush_prefix(job.job, path, to, &mut |_| true).unwrap().1
}

pub(super) fn at(root: &FlushRoot, path: &str) -> Flushed {
    let flushed = Flushed::at(root.place.join(path), &root.access).unwrap();
    flushed.check().unwrap();
    flushed
}

pub(super) fn table_of(flushed: &Flushed, name: &str) -> Table {
    flushed.kv(name).unwrap().map(Result::unwrap).collect()
}

/// Fills a kv with small values and with some in blocks of their own.
pub(super) fn fill(k: &Kv) -> Table {
    let mut table = Table::new();
    for i in 0..400u64 {
        let (key, value) = (format!("key-{i}").into_bytes(), noise(i, (i as usize * 7) % 600));
        k.put(&key, &value).unwrap();
        table.insert(key, value);
    }
    for i in 0..10u64 {
        // The last one has lists of its extents in between.
        let length = if i == 9 { 350_000 } else { 9_000 + i as usize * 5_000 };
        let (key, value) = (format!("large-{i}").into_bytes(), noise(i, length));
        k.put(&key, &value).unwrap();
        table.insert(key, value);
    }
    table
}

fn all_is_there(root: &FlushRoot, objects: impl Fn() -> Vec<String>) {
    let cluster = flushing(root.clone(), 2);
    let (client, job) = cluster.job("my job");
    prefix(&client, &job, "t", LEASE_MS);
    let text = noise(1, 300_000);
    let f = file(&client, &job, "t:text");
    f.write_all(&text).unwrap();
    let q = client.create_queue(job.job, "t:work", 0, 0, false).unwrap();
    let items: Vec<Vec<u8>> = (0..400).map(item).collect();
    items.iter().for_each(|item| q.put(item, NO_WAIT).unwrap());
    let k = kv(&client, &job, "t:table", 8);
    let table = fill(&k);
    let progress = flush(&client, &job, "t", "out/1");
    assert!(progress.done && progress.parts == progress.parts_done, "{progress:?}");
    assert!(progress.bytes > 600_000, "{progress:?}");
    let flushed = at(root, "my=20job/out/1");
    assert_eq!((&*flushed.manifest().job, &*flushed.manifest().address), ("my job", "t"));
    assert!(flushed.file("text").unwrap() == text, "the file differs");
    let there: Vec<Vec<u8>> = flushed.queue("work").unwrap().map(Result::unwrap).collect();
    assert!(there == items, "the queue differs: {} items", there.len());
    assert!(table_of(&flushed, "table") == table, "the table differs");

    // All structures stay usable, and a later flush to the full name of the place replaces this one.
    f.append(b"more").unwrap();
    for item in &items[..100] {
        assert_eq!(q.get(NO_WAIT).unwrap().as_ref(), Some(item));
    }
    q.put(b"last", NO_WAIT).unwrap();
    k.put(b"large-3", b"small").unwrap();
    assert!(k.delete(b"large-4").unwrap());
    let place = root.place.join("my=20job/out/1").to_string();
    flush(&client, &job, "t", &place);
    let flushed = at(root, "my=20job/out/1");
    assert!(flushed.file("text").unwrap() == [&text[..], b"more"].concat(), "the file differs");
    let there: Vec<Vec<u8>> = flushed.queue("work").unwrap().map(Result::unwrap).collect();
    assert!(there[..300] == items[100..] && there[300..] == [b"last".to_vec()]);
    let mut table = table;
    table.insert(b"large-3".to_vec(), b"small".to_vec());
    table.remove(&b"large-4"[..]);
    assert!(table_of(&flushed, "table") == table, "the table differs");
    // Every object is one of the manifest, or the manifest.
    let parts = flushed.manifest().structures.iter().map(|s| s.parts.len()).sum::<usize>();
    eventually("nothing else there", || objects().len() == parts + 1);
    let watcher = cluster.client(cluster.controller.token(), PrefixId(0));
    client.deregister_job(job.job).unwrap();
    eventually("all blocks free", || all_free(&watcher));
}

#[test]
fn what_a_live_prefix_holds_is_on_disk_and_goes_on() {
    let root = Root::new("live");
    all_is_there(&root.flush(), || objects(&root.0.join("my=20job/out/1")));
}

#[test]
fn what_a_live_prefix_holds_is_in_the_bucket_and_goes_on() {
    let Some(gateway) = honeycomb_faultstore::Gateway::start() else { return };
    all_is_there(&super::s3::bucket(&gateway, "a/b"), || gateway.objects("a/b/my=20job/out/1"));
}

/// Writers to all structures continue during consecutive flushes. Each flush contains all data that was
/// acknowledged before it began, in order and without a gap. Pairs that are written together are never torn,
/// and large values that are replaced all the time are whole.
#[test]
fn a_flush_under_load_has_all_that_was_acknowledged_before() {
    let root = Root::new("load");
    let cluster = cluster(&root, 2);
    let (client, job) = cluster.job("job");
    prefix(&client, &job, "t", LEASE_MS);
    let f = file(&client, &job, "t:text");
    let q = client.create_queue(job.job, "t:work", 0, 0, false).unwrap();
    let k = kv(&client, &job, "t:table", 1);
    let (over, written, put, keys) =
        (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let value =
        |key: u64, round: u64| noise(key << 32 | round, 9_000 + (round % 7) as usize * 3000);
    let small = |key: u64| noise(key, 300);
    let large = 6u64;
    // Values that are replaced during a flush are retained until they are copied: without a limit, they would
    // fill memory.
    const REPLACED: u64 = 20;
    let turn = AtomicU64::new(0);
    for key in 0..large {
        k.put(&key.to_le_bytes(), &value(key, 0)).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(SeqCst) {
                let at = written.load(SeqCst);
                if at < 1000 {
                    f.append(&noise(at, 1000)).unwrap();
                    written.store(at + 1, SeqCst);
                }
            }
        });
        scope.spawn(|| {
            while !over.load(SeqCst) {
                let at = put.load(SeqCst);
                if at < 1000 {
                    q.put(&item(at), NO_WAIT).unwrap();
                    put.store(at + 1, SeqCst);
                }
            }
        });
        // A table that splits, and values that are replaced.
        scope.spawn(|| {
            let (mut round, mut last, mut left) = (0, 0, 0);
            while !over.load(SeqCst) {
                let now = turn.load(SeqCst);
                if now != last {
                    (last, left) = (now, REPLACED);
                }
                if left > 0 {
                    (round, left) = (round + 1, left - 1);
                    for key in 0..large {
                        k.put(&key.to_le_bytes(), &value(key, round)).unwrap();
                    }
                }
                let at = keys.load(SeqCst);
                if at < 1500 {
                    for key in at..at + 50 {
                        k.put(format!("key-{key}").as_bytes(), &small(key)).unwrap();
                    }
                    keys.store(at + 50, SeqCst);
                }
            }
        });
        let _stop = Stop(&over);
        for round in 0..8 {
            turn.store(round + 1, SeqCst);
            let before = (written.load(SeqCst), put.load(SeqCst), keys.load(SeqCst));
            flush(&client, &job, "t", "out");
            let flushed = at(&root.flush(), "job/out");
            let text = flushed.file("text").unwrap();
            let lines = text.len() / 1000;
            assert!(
                text.len().is_multiple_of(1000) && lines as u64 >= before.0,
                "round {round}: {lines} {before:?}"
            );
            assert!(text.chunks(1000).enumerate().all(|(i, line)| line == noise(i as u64, 1000)));
            let items: Vec<Vec<u8>> = flushed.queue("work").unwrap().map(Result::unwrap).collect();
            assert!(items.len() as u64 >= before.1, "round {round}");
            assert!(items.iter().enumerate().all(|(i, there)| *there == item(i as u64)));
            let table = table_of(&flushed, "table");
            for key in 0..before.2 {
                let there = table.get(format!("key-{key}").as_bytes());
                assert!(there == Some(&small(key)), "round {round}: key-{key} of {}", before.2);
            }
            for key in 0..large {
                let there = &table[&key.to_le_bytes()[..]];
                let whole = (0..5000)
                    .any(|round| there.len() == value_len(round) && *there == value(key, round));
                assert!(whole, "round {round}: the value of {key} is none that was put");
            }
        }
    });
    assert!(look(&client, &job, "t").structures.iter().any(|s| s.name == "table" && s.blocks > 3));
    let watcher = cluster.client(cluster.controller.token(), PrefixId(0));
    client.deregister_job(job.job).unwrap();
    eventually("all blocks free", || all_free(&watcher));
}

fn value_len(round: u64) -> usize {
    9_000 + (round % 7) as usize * 3000
}

#[test]
fn what_cannot_be_flushed_is_told_by_name() {
    let root = Root::new("refused");
    let cluster = cluster(&root, 1);
    let (client, job) = cluster.job("job");
    prefix(&client, &job, "t", LEASE_MS);
    flushed_to(&client, &job, "claimed", "mine", LEASE_MS);
    let refused = |path: &str, to: &str| client.begin_flush(job.job, path, to).unwrap_err();
    for elsewhere in ["s3://lake/job/out", "/etc", "file:///tmp/x", "/", "s3://"] {
        let e = refused("t", elsewhere);
        assert_eq!(e.status, Status::PermissionDenied, "{elsewhere}: {e}");
        assert!(e.message.contains(&root.0.join("job").display().to_string()), "{e}");
    }
    let other = root.0.join("other/out").display().to_string();
    assert_eq!(refused("t", &other).status, Status::PermissionDenied);
    assert_eq!(refused("t", "../other").status, Status::InvalidArgument);
    assert_eq!(refused("t", "mine").status, Status::AlreadyExists);
    assert_eq!(refused("none", "x").status, Status::NotFound);
    assert_eq!(client.flush_progress(job.job, 77).unwrap_err().status, Status::NotFound);
    // Its own place is its own to flush to.
    flush(&client, &job, "claimed", "mine");
    at(&root.flush(), "job/mine");
    let plain = honeycomb_e2e::Cluster::start(1, 512 * KIB, 64 * KIB);
    let (client, job) = plain.job("job");
    prefix(&client, &job, "t", LEASE_MS);
    let e = client.begin_flush(job.job, "t", "x").unwrap_err();
    assert_eq!(e.status, Status::FlushUnavailable, "{e}");
    assert!(e.message.contains("flush_root"), "{e}");
}

/// A flush keeps its prefix, whose owner is gone; cancelled or removed with it, it leaves nothing.
#[test]
fn a_flush_that_fails_keeps_the_prefix_and_ends_with_it() {
    let root = Root::new("kept");
    let cluster = cluster(&root, 1);
    let (client, job) = cluster.job("job");
    for path in ["a", "b", "c"] {
        prefix(&client, &job, path, 400);
        file(&client, &job, &format!("{path}:f")).append(b"precious").unwrap();
    }
    // A file where the job's directory is to be: no permission of the test's user matters.
    std::fs::write(root.0.join("job"), b"in the way").unwrap();
    let number = |path: &str| client.begin_flush(job.job, path, path).unwrap().number;
    let [a, b, c] = ["a", "b", "c"].map(number);
    assert_eq!(number("a"), a, "the same again");
    let failing = |n| client.flush_progress(job.job, n).unwrap().failing;
    eventually("a failure", || [a, b, c].iter().all(|n| failing(*n).is_some()));
    let under_way = |path: &str, place: &str| {
        let found = client.flush_under_way(job.job, path, place).unwrap();
        found.map(|ticket| ticket.number)
    };
    assert_eq!(under_way("b", "b"), Some(b));
    assert_eq!(under_way("b", "a"), None, "it is another's");
    client.cancel_flush(job.job, b).unwrap();
    assert_eq!(under_way("b", "b"), None);
    let e = client.flush_progress(job.job, b).unwrap_err();
    assert!(e.message.contains("cancelled"), "{e}");
    client.remove_prefix(job.job, "c").unwrap();
    let e = client.flush_progress(job.job, c).unwrap_err();
    assert!(e.message.contains("ended"), "{e}");
    std::fs::remove_file(root.0.join("job")).unwrap();
    eventually("the flush", || client.flush_progress(job.job, a).unwrap().done);
    assert_eq!(at(&root.flush(), "job/a").file("f").unwrap(), b"precious");
    assert_eq!(objects(&root.0.join("job/a")).len(), 2, "a part and the manifest");
    for gone in ["b", "c"] {
        eventually("nothing is left", || objects(&root.0.join("job").join(gone)).is_empty());
    }
}
