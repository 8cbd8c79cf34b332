//! Prefixes whose changes are answered when they are stored.

use super::live::flush;
use super::s3::{bucket, impatient};
use super::{Root, all_free, flushing, look, objects};
use honeycomb_client::{Client, ClientOptions, Error, JobTicket};
use honeycomb_e2e::{Cluster, KIB, LEASE_MS, eventually, file, noise};
use honeycomb_faultstore::{Faults, Gateway, Outage};
use honeycomb_tiers::{Access, FlushError, FlushRoot, Flushed};
use honeycomb_types::PrefixId;
use honeycomb_wire::messages::PrefixOptions;
use honeycomb_wire::{Durability, Status};
use std::sync::Mutex;
use std::time::Duration;

fn options() -> PrefixOptions {
    let acknowledge = Durability::Flushed as u8;
    PrefixOptions { lease_ms: LEASE_MS, acknowledge, ..PrefixOptions::default() }
}

fn journaled(client: &Client, job: &JobTicket, path: &str) {
    client.create_prefix(job.job, path, &[], options()).unwrap();
}

fn at(root: &FlushRoot, path: &str) -> Result<Flushed, FlushError> {
    Flushed::at(root.place.join(path), &root.access)
}

fn text(client: &Client, job: &JobTicket, address: &str) -> Vec<u8> {
    let f = client.open_file(job.job, address).unwrap();
    let mut text = vec![0; f.size().unwrap() as usize];
    assert_eq!(f.read_into(0, &mut text).unwrap(), text.len());
    text
}

/// Acknowledged pieces are in the store.
fn is_there(root: &FlushRoot, pieces: u64) {
    let cluster = flushing(root.clone(), 2);
    let (client, job) = cluster.job("my job");
    journaled(&client, &job, "t");
    let f = file(&client, &job, "t:log");
    let empty = at(root, "my=20job/t").unwrap();
    assert!(empty.is_journal() && empty.file("log").unwrap().is_empty());
    let all = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (client, job, all) = (cluster.client(&job.token, PrefixId(0)), &job, &all);
            scope.spawn(move || {
                let f = client.open_file(job.job, "t:log").unwrap();
                for i in 0..pieces {
                    let seed = writer << 32 | i;
                    let piece = noise(seed, 1 + (seed as usize * 7919) % 8000);
                    let offset = f.append(&piece).unwrap();
                    if i % 16 == 0 {
                        let there = at(root, "my=20job/t").unwrap().file("log").unwrap();
                        let there = &there[offset as usize..];
                        assert!(there.starts_with(&piece), "{offset}: answered and not stored");
                    }
                    all.lock().unwrap().push((offset, piece));
                }
            });
        }
    });
    // More than an eighth of a block at once, by way of a buffer of its own.
    let large = noise(99, 150_000);
    let offset = f.write_all(&large).unwrap();
    all.lock().unwrap().push((offset, large));
    // And atomically, in private blocks, whose own journals are found by the blocks before them.
    for seed in [98, 97] {
        let atomic = noise(seed, 200_000);
        let offset = f.append(&atomic).unwrap();
        let there = at(root, "my=20job/t").unwrap().file("log").unwrap();
        assert!(there[offset as usize..] == atomic, "{offset}: answered and not stored");
        all.lock().unwrap().push((offset, atomic));
    }
    let mut all = all.into_inner().unwrap();
    all.sort();
    let before: Vec<u8> = all.into_iter().flat_map(|(_, piece)| piece).collect();
    assert!(before.len() as u64 > 5 * 64 * KIB, "it has many blocks");
    assert!(text(&client, &job, "t:log") == before);
    let stored = at(root, "my=20job/t").unwrap();
    assert!(stored.file("log").unwrap() == before);
    assert!(!stored.manifest().structures[0].sealed);
    f.seal().unwrap();
    assert!(at(root, "my=20job/t").unwrap().manifest().structures[0].sealed);
    assert_eq!(f.append(b"x").unwrap_err().status, Status::Sealed);
    assert_eq!(f.seal().unwrap(), before.len() as u64);
    assert_eq!(look(&client, &job, "t").acknowledge, 2);
}

#[test]
fn what_is_answered_is_in_the_directory() {
    let root = Root::new("journal-there");
    is_there(&root.flush(), 60);
}

#[test]
fn what_is_answered_is_in_the_bucket() {
    let Some(gateway) = Gateway::start() else { return };
    is_there(&bucket(&gateway, "a"), 30);
}

#[test]
fn a_flush_covers_the_journal_and_a_removal_deletes_it() {
    let root = Root::new("journal-goes");
    let cluster = flushing(root.flush(), 2);
    let watcher = cluster.client(cluster.controller.token(), PrefixId(0));
    let (client, job) = cluster.job("job");
    let place = root.0.join("job/t");
    let journal = || objects(&place).iter().filter(|name| name.contains("journal")).count();

    // The end of its lease.
    let short = PrefixOptions { lease_ms: 400, ..options() };
    client.create_prefix(job.job, "t", &[], short.clone()).unwrap();
    file(&client, &job, "t:a").append(b"first").unwrap();
    file(&client, &job, "t:b").append(b"other").unwrap();
    assert!(journal() == 5, "{:?}", objects(&place));
    eventually("the flush", || look(&client, &job, "t").flush == 3);
    eventually("the journal's end", || journal() == 0);
    let flushed = at(&root.flush(), "job/t").unwrap();
    assert!(!flushed.is_journal());
    assert_eq!(flushed.file("a").unwrap(), b"first");
    assert_eq!(flushed.file("b").unwrap(), b"other");
    // A journal does not overwrite an existing flush.
    client.create_prefix(job.job, "t", &[], options()).unwrap();
    let refused = client.create_file(job.job, "t:a", 1, false).map(drop).unwrap_err();
    assert_eq!(refused.status, Status::FlushUnavailable);
    assert!(refused.to_string().contains("flushed"), "{refused}");
    client.remove_prefix(job.job, "t").unwrap();
    assert_eq!(at(&root.flush(), "job/t").unwrap().file("a").unwrap(), b"first");
    flushed.delete(&Access::none()).unwrap();

    // Removed by name, one structure and then all.
    journaled(&client, &job, "t");
    file(&client, &job, "t:a").append(b"a").unwrap();
    file(&client, &job, "t:b").append(b"b").unwrap();
    client.remove_structure(job.job, "t:a").unwrap();
    eventually("one is gone", || {
        // Who reads it in this very moment finds records gone.
        at(&root.flush(), "job/t").is_ok_and(|there| there.manifest().structures.len() == 1)
    });
    assert_eq!(at(&root.flush(), "job/t").unwrap().file("b").unwrap(), b"b");
    client.remove_prefix(job.job, "t").unwrap();
    // Its name is free at once, and its place as soon as the journal is gone.
    journaled(&client, &job, "t");
    let f = file(&client, &job, "t:a");
    f.append(b"again").unwrap();
    assert_eq!(at(&root.flush(), "job/t").unwrap().file("a").unwrap(), b"again");

    // The job's end, without `persist` and with it.
    let kept = PrefixOptions { persist: true, ..options() };
    client.create_prefix(job.job, "kept", &[], kept).unwrap();
    file(&client, &job, "kept:a").append(b"kept").unwrap();
    client.deregister_job(job.job).unwrap();
    eventually("the journal's end", || journal() == 0);
    eventually("the flush", || {
        at(&root.flush(), "job/kept").is_ok_and(|flushed| !flushed.is_journal())
    });
    assert_eq!(at(&root.flush(), "job/kept").unwrap().file("a").unwrap(), b"kept");
    eventually("all blocks free", || all_free(&watcher));
}

#[test]
fn what_cannot_be_promised_is_refused() {
    let root = Root::new("journal-refused");
    let cluster = flushing(root.flush(), 1);
    let (client, job) = cluster.job("job");
    let status = |e: Error| e.status;
    journaled(&client, &job, "t");
    let kv = client.create_kv(job.job, "t:k", 1, false).map(drop).unwrap_err();
    assert!(kv.status == Status::WrongKind && kv.to_string().contains("only files"), "{kv}");
    let queue = client.create_queue(job.job, "t:q", 0, 0, false).map(drop);
    assert_eq!(queue.map_err(status), Err(Status::WrongKind));
    let chain = PrefixOptions { acknowledge: 1, ..PrefixOptions::default() };
    let chain = client.create_prefix(job.job, "c", &[], chain).map(drop);
    assert_eq!(chain.map_err(status), Err(Status::InvalidArgument));
    // A flush to the place of the journal is refused; to another place it works.
    file(&client, &job, "t:log").append(b"text").unwrap();
    let here = client.begin_flush(job.job, "t", "t").map(drop);
    assert_eq!(here.map_err(status), Err(Status::AlreadyExists));
    flush(&client, &job, "t", "elsewhere");
    assert_eq!(at(&root.flush(), "job/elsewhere").unwrap().file("log").unwrap(), b"text");
    assert_eq!(at(&root.flush(), "job/t").unwrap().file("log").unwrap(), b"text");
    // Servers that flush nowhere.
    let cluster = Cluster::start(1, 4096 * KIB, 64 * KIB);
    let (client, job) = cluster.job("job");
    let nowhere = client.create_prefix(job.job, "t", &[], options()).map(drop);
    assert_eq!(nowhere.map_err(status), Err(Status::FlushUnavailable));
}

#[test]
fn a_store_that_is_away_answers_nobody_and_loses_nothing() {
    let Some(gateway) = Gateway::start() else { return };
    let (proxy, cluster) = impatient(&gateway, Faults::calm());
    let root = bucket(&gateway, "x");
    let (client, job) = cluster.job("job");
    journaled(&client, &job, "t");
    let f = file(&client, &job, "t:log");
    f.append(b"before;").unwrap();
    let mut hasty = ClientOptions::new(cluster.controller.address().to_string(), &*job.token);
    hasty.timeout = Duration::from_secs(2);
    let hasty = Client::new(hasty);
    let impatient = hasty.open_file(job.job, "t:log").unwrap();
    for outage in [Outage::Reset, Outage::Silent] {
        proxy.change(Faults { outage: Some(outage), ..Faults::calm() });
        let there = f.size().unwrap();
        let refused = impatient.append(b"lost?;").unwrap_err();
        let known = [Status::OutcomeUnknown, Status::DeadlineExceeded];
        assert!(known.contains(&refused.status), "{outage:?}: {refused}");
        // Readers do not see data that would be lost with the server.
        assert_eq!(f.size().unwrap(), there);
        assert_eq!(at(&root, "job/t").unwrap().file("log").unwrap().len() as u64, there);
        proxy.change(Faults::calm());
        // Nobody does anything: it is stored, or it was given up before it had begun.
        f.append(b"after;").unwrap();
        let now = at(&root, "job/t").unwrap().file("log").unwrap();
        assert!(now.ends_with(b"after;"), "{outage:?}: {}", String::from_utf8_lossy(&now));
        assert!(text(&client, &job, "t:log") == now, "{outage:?}");
    }
    let now = String::from_utf8(text(&client, &job, "t:log")).unwrap();
    let mut left: Vec<&str> = now.split_terminator(';').collect();
    left.retain(|piece| *piece != "lost?");
    assert_eq!(left, ["before", "after", "after"], "{now}");
}
