//! Processes are killed at random times of a flush or a load: the manifest is whole or absent, no
//! acknowledged data is lost, and nothing is left behind, in the place or in the cluster.
//!
//! There are a few rounds by default; `HONEYCOMB_KILLS=200` runs 200. `HONEYCOMB_KILLS_SEED` repeats the
//! victims and the times of their deaths; the state at these times depends on the machine.

mod journal;

use honeycomb_client::{Client, ClientOptions, JobTicket};
use honeycomb_e2e::LEASE_MS;
use honeycomb_e2e::process::{Node, Running, command, eventually, unhex};
use honeycomb_env::{Clock, Entropy};
use honeycomb_tiers::{FlushError, Flushed};
use honeycomb_wire::Status;
use honeycomb_wire::messages::PrefixOptions;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

const NO_WAIT: Duration = Duration::ZERO;
const ROUNDS: u32 = 6;

/// Draws numbers from a seed (splitmix64).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Cluster {
    folder: Folder,
    controller: Option<Node>,
    address: String,
    token: String,
    servers: Vec<Node>,
}

impl Cluster {
    fn start() -> Cluster {
        let name = format!("honeycomb-kills-{:x}", Entropy::system().next_u64());
        let folder = Folder(std::env::temp_dir().join(name));
        std::fs::create_dir_all(folder.0.join("flush")).unwrap();
        let mut cluster = Cluster {
            folder,
            controller: None,
            address: "127.0.0.1:0".into(),
            token: String::new(),
            servers: Vec::new(),
        };
        cluster.start_controller();
        for _ in 0..2 {
            cluster.start_server();
        }
        cluster
    }

    fn start_controller(&mut self) {
        let data = self.folder.0.join("data").display().to_string();
        let words = ["controller", "--listen", &self.address, "--data-dir", &data];
        let node = Node::start(&words);
        (self.address, self.token) = (node.text("address"), node.text("token"));
        self.controller = Some(node);
    }

    fn start_server(&mut self) {
        let root = self.folder.0.join("flush").display().to_string();
        let words = [
            "server",
            "--controller",
            &self.address,
            "--token",
            &self.token,
            "--memory",
            "16MiB",
            "--block-size",
            "64KiB",
            "--shards",
            "1",
            "--flush-root",
            &root,
        ];
        self.servers.push(Node::start(&words));
    }

    fn client(&self, token: &[u8]) -> Client {
        let mut options = ClientOptions::new(self.address.clone(), token);
        options.timeout = Duration::from_secs(20);
        Client::new(options)
    }

    fn watcher(&self) -> Client {
        let token = unhex(&self.token);
        self.client(&token)
    }

    fn root(&self) -> PathBuf {
        self.folder.0.join("flush")
    }
}

fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut draw = Draw(seed);
    (0..length).map(|_| draw.next() as u8).collect()
}

#[derive(Debug, PartialEq)]
struct Data {
    text: Vec<u8>,
    items: Vec<Vec<u8>>,
    table: BTreeMap<Vec<u8>, Vec<u8>>,
}

fn fill(client: &Client, job: &JobTicket, seed: u64) -> Data {
    let options = PrefixOptions { lease_ms: LEASE_MS, ..PrefixOptions::default() };
    client.create_prefix(job.job, "t", &[], options).unwrap();
    let text = bytes(seed, 400_000);
    let f = client.create_file(job.job, "t:text", 1, false).unwrap();
    f.write_all(&text).unwrap();
    let q = client.create_queue(job.job, "t:work", 0, 0, false).unwrap();
    let items: Vec<Vec<u8>> = (0..300).map(|i| bytes(seed + i, 500)).collect();
    let slices: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
    q.put_many(&slices, NO_WAIT).unwrap();
    let k = client.create_kv(job.job, "t", 6, false).unwrap();
    let mut table = BTreeMap::new();
    for i in 0..200u64 {
        // Some have values in blocks of their own.
        let length = if i % 25 == 0 { 12_000 } else { 500 };
        let (key, value) = (i.to_le_bytes().to_vec(), bytes(seed + i, length));
        k.put(&key, &value).unwrap();
        table.insert(key, value);
    }
    Data { text, items, table }
}

/// The data of the flush in the place, if it is complete.
fn flushed(place: &Path) -> Option<Data> {
    let flushed = match Flushed::open(place) {
        Err(FlushError::NoManifest { .. }) => return None,
        opened => opened.unwrap(),
    };
    flushed.check().unwrap();
    Some(Data {
        text: flushed.file("text").unwrap(),
        items: flushed.queue("work").unwrap().map(Result::unwrap).collect(),
        table: flushed.kv("").unwrap().map(Result::unwrap).collect(),
    })
}

/// Objects that no manifest names.
fn unnamed(place: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(place) else { return Vec::new() };
    let mut names: BTreeSet<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    if let Ok(flushed) = Flushed::open(place) {
        names.remove("manifest.json");
        for structure in &flushed.manifest().structures {
            structure.parts.iter().for_each(|part| {
                let _ = names.remove(&part.name);
            });
        }
    }
    names.into_iter().collect()
}

/// The data of the prefix in the cluster; the queue is emptied.
fn stored(client: &Client, job: &JobTicket, path: &str) -> Result<Data, honeycomb_client::Error> {
    let f = client.open_file(job.job, &format!("{path}:text"))?;
    let mut text = vec![0; f.size()? as usize];
    f.read_into(0, &mut text)?;
    let q = client.open_queue(job.job, &format!("{path}:work"))?;
    let mut items = Vec::new();
    while let Some(item) = q.get(NO_WAIT)? {
        items.push(item);
    }
    let k = client.open_kv(job.job, path)?;
    let (mut table, mut next) = (BTreeMap::new(), Some(0));
    while let Some(cursor) = next {
        let page = k.scan(cursor, b"", true, 16 << 10)?;
        for (key, _) in page.entries {
            let mut value = Vec::new();
            k.get(&key, &mut value)?;
            table.insert(key, value);
        }
        next = page.next;
    }
    Ok(Data { text, items, table })
}

fn load(cluster: &Cluster, job: &JobTicket, place: &Path, more: &[&str]) -> Running {
    let token: String = job.token.iter().map(|byte| format!("{byte:02x}")).collect();
    let place = place.display().to_string();
    // Nobody renews the prefix after that process.
    let lease = LEASE_MS.to_string();
    let mut words = vec!["load", &place, "l", "--lease-ms", &lease];
    words.extend(more);
    let mut command = command(&words);
    command.stdout(Stdio::null());
    command.env("HONEYCOMB_ADDRESS", &cluster.address).env("HONEYCOMB_TOKEN", token);
    Running(command.spawn().unwrap())
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    Controller,
    Server,
    Loader,
}

fn kill(cluster: &mut Cluster, victim: Victim, loader: &mut Option<Running>) {
    match victim {
        Victim::Controller => {
            cluster.controller = None;
            cluster.start_controller();
        }
        Victim::Server => {
            cluster.servers.remove(0);
            cluster.start_server();
        }
        Victim::Loader => *loader = None,
    }
}

fn round(cluster: &mut Cluster, draw: &mut Draw, number: u64) {
    let loads = draw.below(2) == 0;
    let victim = match draw.below(10) {
        0..4 => Victim::Controller,
        4..7 => Victim::Server,
        _ if loads => Victim::Loader,
        _ => Victim::Controller,
    };
    // From 100 us to 500 ms, as often below 7 ms as above.
    let micros = 10f64.powf(2.0 + draw.below(3700) as f64 / 1000.0) as u64;
    let told = format!(
        "round {number}: {} {victim:?} after {micros} us",
        if loads { "load" } else { "flush" }
    );
    let name = format!("job{number}");
    let watcher = cluster.watcher();
    eventually("servers", || watcher.status().is_ok_and(|s| s.servers.len() == 2));
    let job = watcher.register_job(&name, LEASE_MS, 0).unwrap();
    let client = cluster.client(&job.token);
    let data = fill(&client, &job, number << 20);
    let place = cluster.root().join(&name).join("out");
    let clock = Clock::start();
    let pause = |micros| clock.sleep_until(clock.now() + Duration::from_micros(micros));
    let mut loader = None;
    if loads {
        client.flush_prefix(job.job, "t", "out", &mut |_| true).unwrap();
        assert!(flushed(&place).as_ref() == Some(&data), "{told}");
        loader = Some(load(cluster, &job, &place, &[]));
        // The process has to start, too.
        pause(micros + 5_000);
        kill(cluster, victim, &mut loader);
        let ended = loader.as_mut().map(|process| process.0.wait().unwrap().success());
        match stored(&client, &job, "l") {
            Ok(there) => assert!(there == data, "{told}: it is seen and not whole"),
            Err(e) => {
                // Complete data may have been lost with the server a moment later.
                let lost = victim == Victim::Server && e.status == Status::DataLost;
                assert!(ended != Some(true) || lost, "{told}: {e}");
                let gone = [Status::Loading, Status::NotFound, Status::Removed, Status::DataLost];
                assert!(gone.contains(&e.status), "{told}: {e}");
                // Again, from what is there: it is as it was.
                let _ = client.remove_prefix(job.job, "l");
                let mut again = load(cluster, &job, &place, &["--again"]);
                assert!(again.0.wait().unwrap().success(), "{told}: again");
                assert!(stored(&client, &job, "l").unwrap() == data, "{told}: again");
            }
        }
    } else {
        let ticket = client.begin_flush(job.job, "t", "out").unwrap();
        pause(micros);
        kill(cluster, victim, &mut loader);
        let clock = Clock::start();
        let outcome = loop {
            assert!(clock.now().as_millis() < 60_000, "{told}: it never ends");
            match client.flush_progress(job.job, ticket.number) {
                Ok(progress) if progress.done => break Ok(()),
                Ok(_) => clock.sleep_until(clock.now() + Duration::from_millis(5)),
                Err(e) => break Err(e),
            }
        };
        match (&outcome, flushed(&place)) {
            (_, Some(there)) => assert!(there == data, "{told}: it differs"),
            (Ok(()), None) => panic!("{told}: it is done and not there"),
            // The controller has forgotten, or a server took some of it along.
            (Err(e), None) => {
                assert_eq!(victim, Victim::Server, "{told}: {e}");
                assert_eq!(e.status, Status::Removed, "{told}: {e}");
            }
        }
        if victim == Victim::Controller {
            assert!(flushed(&place).is_some(), "{told}: a controller that comes back goes on");
            assert!(stored(&client, &job, "t").unwrap() == data, "{told}: the store differs");
        }
    }
    eventually(&format!("{told}: nothing else there: {:?}", unnamed(&place)), || {
        unnamed(&place).is_empty()
    });
    client.deregister_job(job.job).unwrap();
    eventually(&format!("{told}: all blocks free"), || {
        watcher.status().is_ok_and(|s| s.free == s.blocks && s.quarantined == 0)
    });
    let _ = writeln!(std::io::stderr(), "{told}: right");
}

#[test]
fn whoever_is_killed_nothing_is_half_and_nothing_is_left() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let rounds = number("HONEYCOMB_KILLS").map_or(ROUNDS, |rounds| rounds as u32);
    let seed = number("HONEYCOMB_KILLS_SEED").unwrap_or_else(|| Entropy::system().next_u64() >> 1);
    let _ = writeln!(std::io::stderr(), "HONEYCOMB_KILLS_SEED={seed}");
    let mut draw = Draw(seed);
    let mut cluster = Cluster::start();
    for i in 0..rounds {
        round(&mut cluster, &mut draw, u64::from(i) + 1);
    }
}
