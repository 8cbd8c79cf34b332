//! A prefix with its descendants: flushed with one command, found by the manifest of the top prefix.

use super::live::{fill, prefix};
use super::load::{Content, content, program, told};
use super::{NO_WAIT, Root, all_free, flushing, objects};
use honeycomb_client::{Client, JobTicket};
use honeycomb_e2e::{Cluster, LEASE_MS, eventually, file, kv, noise};
use honeycomb_tiers::{FlushRoot, Flushed};
use honeycomb_types::PrefixId;
use honeycomb_wire::Status;
use serde_json::Value;

fn populate(client: &Client, job: &JobTicket, path: &str, seed: u64) {
    prefix(client, job, path, LEASE_MS);
    file(client, job, &format!("{path}:text")).write_all(&noise(seed, 100_000)).unwrap();
    let q = client.create_queue(job.job, &format!("{path}:work"), 0, 0, false).unwrap();
    (0..50).for_each(|i| q.put(&noise(seed + i, 100), NO_WAIT).unwrap());
    fill(&kv(client, job, path, 4));
}

fn run(
    cluster: &Cluster,
    job: &JobTicket,
    environment: &[(&'static str, String)],
    arguments: &[&str],
) -> Result<Value, (String, String)> {
    let mut command = program(&cluster.controller.address().to_string(), job);
    command.args(arguments).arg("--json").envs(environment.iter().cloned());
    told(&command.output().unwrap())
}

const PATHS: [&str; 5] = ["", "/a", "/a/deep one", "/b", "/b/c"];

fn goes_and_comes_back(root: &FlushRoot, environment: &[(&'static str, String)]) {
    let first = flushing(root.clone(), 2);
    let (client, job) = first.job("job");
    for (i, path) in PATHS.iter().enumerate() {
        populate(&client, &job, &format!("t{path}"), i as u64 * 100);
    }
    // One that two of them have is flushed once; one that ended is not.
    client.create_prefix(job.job, "t/a/both", &["t/b".into()], Default::default()).unwrap();
    file(&client, &job, "t/a/both").append(b"shared").unwrap();
    prefix(&client, &job, "t/gone", LEASE_MS);
    prefix(&client, &job, "t/gone/stays", LEASE_MS);
    client.remove_prefix(job.job, "t/gone").unwrap();
    populate(&client, &job, "beside", 7);
    let before: Vec<Content> =
        PATHS.iter().map(|path| content(&client, &job, &format!("t{path}"))).collect();
    let told = run(&first, &job, environment, &["flush", "t", "out/1", "--subtree"]).unwrap();
    assert_eq!(told["prefixes"].as_array().unwrap().len(), 7, "{told}");
    let place = root.place.join("job/out/1");
    assert_eq!(told["place"].as_str(), Some(&*place.to_string()));
    let top = Flushed::at(place.clone(), &root.access).unwrap();
    let mut below = top.manifest().below.clone();
    below.sort();
    assert_eq!(below, ["a", "a/both", "a/deep one", "b", "b/c", "gone/stays"]);
    for path in &below {
        let one = Flushed::at(place.below(path), &root.access).unwrap();
        one.check().unwrap();
        assert_eq!(one.manifest().address, format!("t/{path}"));
        assert!(one.manifest().number < top.manifest().number, "the uppermost comes last");
    }

    let second = Cluster::flushing(1, 12 << 20, 256 << 10, Some(root.clone()));
    let watcher = second.client(second.controller.token(), PrefixId(0));
    let (client, job) = second.job("other");
    let place = place.to_string();
    let load = |path: &str| run(&second, &job, environment, &["load", &place, path, "--subtree"]);
    let loaded = load("l/t").unwrap();
    assert_eq!(loaded["structures"].as_u64(), Some(16));
    for (path, before) in PATHS.iter().zip(&before) {
        assert!(content(&client, &job, &format!("l/t{path}")) == *before, "{path} differs");
    }
    assert_eq!(client.open_file(job.job, "l/t/a/both").unwrap().size().unwrap(), 6);
    assert_eq!(client.lease(job.job, "l/t/gone/stays").unwrap().lease_ms, LEASE_MS);
    assert_eq!(load("l/t").unwrap_err().0, "AlreadyExists");
    // Without the option it is the uppermost alone.
    let alone = run(&second, &job, environment, &["load", &place, "alone"]).unwrap();
    assert_eq!(alone["structures"].as_u64(), Some(3));
    // One that is named and not there: it is told, and nothing is left.
    let gone = root.place.join("job/out/1").below("b/c");
    Flushed::at(gone, &root.access).unwrap().delete(&root.access).unwrap();
    let (status, message) = load("again").unwrap_err();
    assert!(status == "NotFound" && message.contains("job/out/1/b/c"), "{status}: {message}");
    let none = client.lease(job.job, "again").unwrap_err();
    assert_eq!(none.status, Status::NotFound);
    client.deregister_job(job.job).unwrap();
    eventually("all blocks free", || all_free(&watcher));
}

#[test]
fn a_subtree_is_in_a_directory_and_comes_back() {
    goes_and_comes_back(&Root::new("subtree").flush(), &[]);
}

#[test]
fn a_subtree_is_in_a_bucket_and_comes_back() {
    let Some(gateway) = honeycomb_faultstore::Gateway::start() else { return };
    let variables = honeycomb_faultstore::Gateway::variables(gateway.address());
    goes_and_comes_back(&super::s3::bucket(&gateway, "a"), &variables);
}

#[test]
fn when_one_fails_it_is_told_which_are_whole_and_the_uppermost_is_not_replaced() {
    let root = Root::new("subtree-fails");
    let cluster = flushing(root.flush(), 1);
    let (client, job) = cluster.job("job");
    for path in ["t", "t/a", "t/b"] {
        prefix(&client, &job, path, LEASE_MS);
        file(&client, &job, path).append(path.as_bytes()).unwrap();
    }
    let flush = || run(&cluster, &job, &[], &["flush", "t", "out", "--subtree"]);
    flush().unwrap();
    let number = || Flushed::open(root.0.join("job/out")).unwrap().manifest().number;
    let before = number();
    // The place of one of them is another prefix's by now.
    let taken =
        honeycomb_wire::messages::PrefixOptions { flush_to: "out/b".into(), ..Default::default() };
    client.create_prefix(job.job, "other", &[], taken).unwrap();
    let (status, message) = flush().unwrap_err();
    assert_eq!(status, "AlreadyExists", "{message}");
    assert!(message.contains("t/b failed; complete: t/a; not begun: t;"), "{message}");
    assert_eq!(number(), before);
    client.remove_prefix(job.job, "other").unwrap();
    flush().unwrap();
    assert!(number() > before);
    assert_eq!(objects(&root.0.join("job/out/b")).len(), 2, "a part and the manifest");
    let none = run(&cluster, &job, &[], &["flush", "none", "out", "--subtree"]).unwrap_err();
    assert_eq!(none.0, "NotFound");
}

/// The structures of a subtree cannot be opened while it is loaded; an unfinished load can be replaced.
#[test]
fn a_subtree_that_was_not_loaded_whole_is_begun_again() {
    let root = Root::new("subtree-again");
    let cluster = flushing(root.flush(), 1);
    let (client, job) = cluster.job("job");
    for path in ["t", "t/a"] {
        prefix(&client, &job, path, LEASE_MS);
        file(&client, &job, path).append(path.as_bytes()).unwrap();
    }
    run(&cluster, &job, &[], &["flush", "t", "out", "--subtree"]).unwrap();
    let loading = honeycomb_wire::messages::PrefixOptions { loading: true, ..Default::default() };
    for path in ["l", "l/a"] {
        client.create_prefix(job.job, path, &[], loading.clone()).unwrap();
        file(&client, &job, path).append(b"half").unwrap();
    }
    let place = root.0.join("job/out").display().to_string();
    let load = |more: &[&str]| {
        run(&cluster, &job, &[], &[&["load", &place, "l", "--subtree"], more].concat())
    };
    assert_eq!(load(&[]).unwrap_err().0, "Loading");
    load(&["--again"]).unwrap();
    for (path, size) in [("l", 1), ("l/a", 3)] {
        assert_eq!(client.open_file(job.job, path).unwrap().size().unwrap(), size);
    }
}
