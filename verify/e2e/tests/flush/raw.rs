//! One file as one plain object, and any plain object as a file.

use super::load::{program, told};
use super::{Root, all_free, objects};
use honeycomb_client::JobTicket;
use honeycomb_e2e::{Cluster, KIB, LEASE_MS, eventually, file, kv, noise, prefix};
use honeycomb_faultstore::{Faults, Gateway, Kind, Proxy, Rule, What};
use honeycomb_tiers::{Access, Place, RawWriter};
use honeycomb_types::PrefixId;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

const MIB: usize = 1 << 20;

struct Files {
    cluster: Cluster,
    job: JobTicket,
    environment: Vec<(&'static str, String)>,
}

impl Files {
    fn new(environment: &[(&'static str, String)]) -> Files {
        let cluster = Cluster::start(2, 96 * MIB as u64, 1024 * KIB);
        let (_, job) = cluster.job("job");
        Files { cluster, job, environment: environment.to_vec() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program(&self.cluster.controller.address().to_string(), &self.job);
        command.args(arguments).args(["--format", "raw", "--json"]);
        command.envs(self.environment.iter().cloned());
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<Value, (String, String)> {
        told(&self.command(arguments).output().unwrap())
    }
}

/// A flush is read directly from the store, and loaded under another name.
fn goes_and_comes_back(
    place: &dyn Fn(&str) -> String,
    environment: &[(&'static str, String)],
    read: &dyn Fn(&str) -> Vec<u8>,
    all: &dyn Fn() -> Vec<String>,
) {
    let files = Files::new(environment);
    let (client, job) = (files.cluster.client(&files.job.token, PrefixId(0)), &files.job);
    prefix(&client, job, "t", LEASE_MS);
    let text = noise(1, 45 * MIB + 7);
    let f = file(&client, job, "t:text");
    f.write_all(&text).unwrap();
    file(&client, job, "t:empty");
    file(&client, job, "t:small").append(b"small").unwrap();
    for (name, bytes) in [("text", &text[..]), ("empty", b""), ("small", b"small")] {
        let at = place(name);
        let told = files.run(&["flush", &format!("t:{name}"), &at]).unwrap();
        assert_eq!(
            (told["bytes"].as_u64(), told["place"].as_str()),
            (Some(bytes.len() as u64), Some(&*at))
        );
        assert!(read(name) == bytes, "{name} differs");
    }
    assert_eq!(all(), ["empty", "small", "text"], "one object each, and nothing beside them");
    // Another one takes its place as a whole.
    f.append(b"more").unwrap();
    files.run(&["flush", "t:text", &place("text")]).unwrap();
    assert!(read("text") == [&text[..], b"more"].concat());

    let loaded = files.run(&["load", &place("text"), "l/m:copy"]).unwrap();
    assert_eq!(loaded["bytes"].as_u64(), Some(text.len() as u64 + 4));
    let copy = client.open_file(job.job, "l/m:copy").unwrap();
    let mut there = vec![0; copy.size().unwrap() as usize];
    assert_eq!(copy.read_into(0, &mut there).unwrap(), there.len());
    assert!(there == [&text[..], b"more"].concat());
    assert!(!copy.sealed().unwrap(), "a file that takes more");
    files.run(&["load", &place("empty"), "e"]).unwrap();
    assert_eq!(client.open_file(job.job, "e").unwrap().size().unwrap(), 0);
    // Refused before anything is made.
    assert_eq!(files.run(&["load", &place("none"), "n:copy"]).unwrap_err().0, "NotFound");
    assert_eq!(files.run(&["load", &place("small"), "t:other"]).unwrap_err().0, "AlreadyExists");
    assert_eq!(files.run(&["flush", "t:none", &place("none")]).unwrap_err().0, "NotFound");
    client.create_queue(job.job, "t:queue", 0, 0, false).unwrap();
    kv(&client, job, "t:kv", 1);
    for other in ["t:queue", "t:kv"] {
        let (status, message) = files.run(&["flush", other, &place("none")]).unwrap_err();
        assert!(status == "WrongKind" && message.contains("not a file"), "{status}: {message}");
    }
    assert_eq!(all().len(), 3);
    let (client, watcher) =
        (client, files.cluster.client(files.cluster.controller.token(), PrefixId(0)));
    client.deregister_job(job.job).unwrap();
    eventually("all blocks free", || all_free(&watcher));
}

#[test]
fn a_file_is_one_file_of_this_machine() {
    let root = Root::new("raw");
    let place = |name: &str| root.0.join(name).display().to_string();
    let read = |name: &str| std::fs::read(root.0.join(name)).unwrap();
    goes_and_comes_back(&place, &[], &read, &|| objects(&root.0));
}

#[test]
fn a_file_is_one_object_of_a_bucket() {
    let Some(gateway) = Gateway::start() else { return };
    let place = |name: &str| format!("s3://{}/raw/{name}", Gateway::BUCKET);
    let read = |name: &str| std::fs::read(gateway.directory("raw").join(name)).unwrap();
    let variables = Gateway::variables(gateway.address());
    goes_and_comes_back(&place, &variables, &read, &|| gateway.objects("raw"));
}

#[test]
fn a_place_that_is_no_object_is_refused() {
    let root = Root::new("raw-place");
    let files = Files::new(&[]);
    let client = files.cluster.client(&files.job.token, PrefixId(0));
    prefix(&client, &files.job, "t", LEASE_MS);
    file(&client, &files.job, "t").append(b"x").unwrap();
    let directory = root.0.display().to_string();
    for bad in [&*directory, "s3://lake", "http://lake/x"] {
        let (status, message) = files.run(&["flush", "t", bad]).unwrap_err();
        assert_eq!(status, "InvalidArgument", "{bad}: {message}");
    }
    let none = root.0.join("none/x").display().to_string();
    let (_, message) = files.run(&["flush", "t", &none]).unwrap_err();
    assert!(message.contains("none"), "{message}");
    assert_eq!(objects(&root.0), Vec::<String>::new());
}

/// Parts of uploads that were not completed.
fn uploads(gateway: &Gateway) -> Vec<String> {
    gateway.objects(".sgwtmp").into_iter().filter(|name| name.contains("multipart/")).collect()
}

#[test]
fn an_upload_that_is_given_up_leaves_nothing() {
    let Some(gateway) = Gateway::start() else { return };
    let access = Gateway::variables(gateway.address())
        .iter()
        .fold(Access::none(), |access, (name, value)| access.with(name, value));
    let place = Place::parse(&format!("s3://{}/raw/x", Gateway::BUCKET)).unwrap();
    let mut object = RawWriter::begin(&place, &access, 100 * MIB as u64).unwrap();
    let part = noise(1, object.part());
    for _ in 0..4 {
        object.append(part.clone()).unwrap();
    }
    eventually("parts in the store", || !uploads(&gateway).is_empty());
    drop(object);
    assert_eq!((uploads(&gateway), gateway.objects("raw")), (vec![], vec![]));

    let root = Root::new("raw-dropped");
    let place = Place::Directory(root.0.join("x"));
    let mut object = RawWriter::begin(&place, &Access::none(), 100 * MIB as u64).unwrap();
    (0..4).for_each(|_| object.append(part.clone()).unwrap());
    eventually("a staged file", || !objects(&root.0).is_empty());
    drop(object);
    assert_eq!(objects(&root.0), Vec::<String>::new());
}

/// A store that refuses a part, and one that is slow when the command is ended.
#[test]
fn a_flush_that_fails_or_is_ended_leaves_nothing() {
    let Some(gateway) = Gateway::start() else { return };
    let through = |faults: Faults| {
        let proxy = Proxy::start(gateway.address(), faults, 7).unwrap();
        let files = Files::new(&Gateway::variables(proxy.address()));
        let client = files.cluster.client(&files.job.token, PrefixId(0));
        prefix(&client, &files.job, "t", LEASE_MS);
        file(&client, &files.job, "t").write_all(&noise(1, 60 * MIB)).unwrap();
        (proxy, files)
    };
    let place = format!("s3://{}/raw/x", Gateway::BUCKET);
    let refused = Rule::always(&[Kind::Other], What::Status(403)).after(2);
    let (_proxy, files) = through(Faults::calm().with(refused));
    let (_, message) = files.run(&["flush", "t", &place]).unwrap_err();
    assert!(message.contains("s3://lake/raw/x could not be written"), "{message}");
    assert_eq!((uploads(&gateway), gateway.objects("raw")), (vec![], vec![]));

    let mut slow = Faults::calm();
    slow.latency = (Duration::ZERO, Duration::from_millis(400));
    let (_proxy, files) = through(slow);
    let mut command = files.command(&["flush", "t", &place]);
    command.arg("--progress").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(first["of"].as_u64(), Some(60 * MIB as u64));
    // By the second part the upload is begun; eight of 400 ms are on their way at a time.
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let last = lines.map(Result::unwrap).last().unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(last.contains("nothing was written"), "{last}");
    assert_eq!((uploads(&gateway), gateway.objects("raw")), (vec![], vec![]));
}
