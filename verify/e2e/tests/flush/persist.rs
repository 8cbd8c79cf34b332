//! Prefixes that outlive their job, found again by their name in a later one, and deleted.

use super::live::fill;
use super::load::{Content, command, content, program, told};
use super::{NO_WAIT, Root, all_free, cluster, flushing, objects};
use honeycomb_client::{Client, JobTicket};
use honeycomb_e2e::{LEASE_MS, eventually, file, kv, noise};
use honeycomb_tiers::{FlushRoot, Flushed};
use honeycomb_types::PrefixId;
use honeycomb_wire::Status;
use honeycomb_wire::messages::PrefixOptions;
use std::path::Path;

fn persists(client: &Client, job: &JobTicket, path: &str) {
    let options = PrefixOptions { persist: true, lease_ms: LEASE_MS, ..PrefixOptions::default() };
    client.create_prefix(job.job, path, &[], options).unwrap();
}

/// A prefix of all kinds outlives its job, and the job after that one.
fn is_found_again(
    root: &FlushRoot,
    environment: &[(&'static str, String)],
    left: &dyn Fn() -> usize,
) {
    let cluster = flushing(root.clone(), 2);
    let watcher = cluster.client(cluster.controller.token(), PrefixId(0));
    let (client, job) = cluster.job("my job");
    persists(&client, &job, "models");
    persists(&client, &job, "models/v 1");
    let f = file(&client, &job, "models/v 1:text");
    f.write_all(&noise(1, 300_000)).unwrap();
    f.seal().unwrap();
    let q = client.create_queue(job.job, "models/v 1:work", 500, 0, false).unwrap();
    (0..100).for_each(|i| q.put(&noise(i, 200), NO_WAIT).unwrap());
    fill(&kv(&client, &job, "models/v 1", 8));
    let before: Content = content(&client, &job, "models/v 1");
    client.deregister_job(job.job).unwrap();

    let address = cluster.controller.address().to_string();
    let run = |job: &JobTicket, arguments: &[&str]| {
        let mut load = program(&address, job);
        load.arg("load").args(arguments).arg("--json").envs(environment.iter().cloned());
        told(&load.output().unwrap())
    };
    // At once: the load waits for the running flush.
    let (client, job) = cluster.job("my job");
    let loaded = run(&job, &["--persisted", "models/v 1", "--persist"]).unwrap();
    assert_eq!(loaded["structures"], 3);
    let place = loaded["place"].as_str().unwrap().to_owned();
    assert_eq!(place, root.place.join("my=20job/models/v=201").to_string());
    assert!(content(&client, &job, "models/v 1") == before);
    // Under another name too, and as a place in full.
    run(&job, &["models/v 1", "copy", "--persisted"]).unwrap();
    run(&job, &[&place, "again"]).unwrap();
    assert!(content(&client, &job, "copy") == before);
    client.open_file(job.job, "again:text").unwrap();
    // It outlives this job, too, with the added data; the copies do not.
    file(&client, &job, "models/v 1:more").append(b"more").unwrap();
    client.deregister_job(job.job).unwrap();
    let (client, job) = cluster.job("my job");
    assert_eq!(run(&job, &["--persisted", "models/v 1"]).unwrap()["structures"], 4);
    let more = client.open_file(job.job, "models/v 1:more").unwrap();
    assert_eq!(more.size().unwrap(), 4);
    assert_eq!(run(&job, &["--persisted", "copy"]).unwrap_err().0, "NotFound");

    // After the deletion it is not found, and none of its objects remain; objects under its name remain.
    let there = left();
    let delete = |place: &str| {
        let mut flushed = program(&address, &job);
        flushed.args(["flushed", place, "--delete", "--json"]).envs(environment.iter().cloned());
        told(&flushed.output().unwrap())
    };
    let above = root.place.join("my=20job/models").to_string();
    assert_eq!(delete(&above).unwrap()["deleted"], 1, "a manifest of a prefix with nothing in it");
    assert_eq!(left(), there - 1);
    let deleted = delete(&place).unwrap()["deleted"].as_u64().unwrap();
    assert_eq!((deleted as usize, left()), (there - 1, 0));
    let (status, message) = delete(&place).unwrap_err();
    assert!(status == "NotFound" && message.contains("holds no flush"), "{status}: {message}");
    assert_eq!(run(&job, &["--persisted", "models/v 1", "--again"]).unwrap_err().0, "NotFound");
    client.deregister_job(job.job).unwrap();
    eventually("all blocks free", || all_free(&watcher));
}

fn files_below(directory: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.map(|path| if path.is_dir() { files_below(&path) } else { 1 }).sum()
}

#[test]
fn what_persists_is_found_by_a_later_job_of_the_name_until_it_is_deleted() {
    let root = Root::new("persist");
    is_found_again(&root.flush(), &[], &|| files_below(&root.0));
    assert_eq!(
        objects(&root.0.join("my=20job/models")),
        Vec::<String>::new(),
        "no empty directory"
    );
}

#[test]
fn what_persists_in_a_bucket_is_found_by_a_later_job_of_the_name_until_it_is_deleted() {
    let Some(gateway) = honeycomb_faultstore::Gateway::start() else { return };
    let variables = honeycomb_faultstore::Gateway::variables(gateway.address());
    let root = super::s3::bucket(&gateway, "a");
    is_found_again(&root, &variables, &|| gateway.objects("a").len());
}

#[test]
fn a_persistent_prefix_needs_a_place_when_it_is_made() {
    let cluster = honeycomb_e2e::Cluster::start(1, 1 << 20, 64 << 10);
    let (client, job) = cluster.job("job");
    let options = PrefixOptions { persist: true, ..PrefixOptions::default() };
    let refused = client.create_prefix(job.job, "t", &[], options).unwrap_err();
    assert_eq!(refused.status, Status::FlushUnavailable);
    assert!(refused.to_string().contains("flush_root"), "{refused}");
    let nowhere = client.persisted(job.job, "t", &mut |_| true).unwrap_err();
    assert_eq!(nowhere.status, Status::FlushUnavailable);
    let address = cluster.controller.address().to_string();
    let output = command(&address, &job, "t", "t").arg("--persisted").output().unwrap();
    assert_eq!(told(&output).unwrap_err().0, "FlushUnavailable");
}

#[test]
fn a_flush_that_fails_is_waited_for_and_told() {
    let root = Root::new("persist-fails");
    let cluster = flushing(root.flush(), 1);
    let (client, job) = cluster.job("job");
    persists(&client, &job, "t");
    file(&client, &job, "t").append(b"precious").unwrap();
    // A file where the job's directory is to be.
    std::fs::write(root.0.join("job"), b"in the way").unwrap();
    client.deregister_job(job.job).unwrap();
    let (client, job) = cluster.job("job");
    let mut why = None;
    let place = client.persisted(job.job, "t", &mut |progress| {
        if progress.failing.is_some() && why.is_none() {
            why = progress.failing.clone();
            std::fs::remove_file(root.0.join("job")).unwrap();
        }
        true
    });
    let place = place.unwrap();
    assert!(why.is_some_and(|why| why.contains("directory") || why.contains("exists")));
    let flushed = honeycomb_tiers::Flushed::open(&place).unwrap();
    assert_eq!(flushed.file("").unwrap(), b"precious");
}

#[test]
fn who_closes_a_job_can_wait_until_what_persists_is_written() {
    let root = Root::new("close");
    let cluster = cluster(&root, 1);
    let (client, job) = cluster.job("job");
    let (stranger, other) = cluster.job("other");
    let options = PrefixOptions { persist: true, ..PrefixOptions::default() };
    client.create_prefix(job.job, "kept", &[], options).unwrap();
    file(&client, &job, "kept:text").append(b"precious").unwrap();
    // A file where the job's directory is to be: no permission of the test's user matters.
    std::fs::write(root.0.join("job"), b"in the way").unwrap();
    let mut seen = None;
    let told = client.close_job(job.job, &mut |progress| {
        seen.clone_from(&progress.failing);
        seen.is_none()
    });
    let told = told.unwrap();
    assert!(!told.done && told.parts == 1 && told.parts_done == 0, "{told:?}");
    assert!(seen.is_some(), "it says why");
    let e = stranger.await_close(job.job, &mut |_| true).unwrap_err();
    assert_eq!(e.status, Status::UnknownJob);
    std::fs::remove_file(root.0.join("job")).unwrap();
    assert!(client.await_close(job.job, &mut |_| true).unwrap().done);
    let flushed = Flushed::open(root.0.join("job/kept")).unwrap();
    assert!(flushed.file("text").unwrap() == b"precious");
    // A job without persistent prefixes closes at once.
    assert!(stranger.close_job(other.job, &mut |_| true).unwrap().done);
}
