//! A controller that is killed and started again, as real processes.

mod faults;
mod processes;

use honeycomb_client::{Client, ClientOptions, Error, JobTicket, Kv};
use honeycomb_e2e::LEASE_MS;
use honeycomb_e2e::process::{Node, eventually};
use honeycomb_env::Clock;
use honeycomb_types::limits::SERVER_LOSS_DEFAULT_MS;
use honeycomb_types::{JobId, PrefixId};
use honeycomb_wire::Status;
use honeycomb_wire::messages::{ClusterStatusReply, PrefixOptions};
use processes::Folder;
use rustix::process::{Pid, Signal, kill_process};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A controller with a data directory, and memory servers, each a process.
struct Cluster {
    folder: Folder,
    controller: Option<Node>,
    address: String,
    token: String,
    servers: Vec<Node>,
}

impl Cluster {
    fn start(servers: usize) -> Cluster {
        let folder = Folder::new();
        let controller = processes::controller(&folder.data(), "127.0.0.1:0");
        let (address, token) = (controller.text("address"), controller.text("token"));
        let mut cluster =
            Cluster { folder, controller: Some(controller), address, token, servers: Vec::new() };
        for _ in 0..servers {
            cluster.add_server();
        }
        cluster
    }

    fn add_server(&mut self) {
        self.servers.push(processes::server(&self.address, &self.token));
    }

    fn kill_controller(&mut self) {
        self.controller.take().unwrap().kill();
    }

    fn restart_controller(&mut self) {
        let controller = processes::controller(&self.folder.data(), &self.address);
        assert_eq!(controller.text("token"), self.token, "the token is the same");
        self.controller = Some(controller);
    }

    fn client(&self, token: &[u8]) -> Client {
        Client::new(ClientOptions {
            timeout: Duration::from_secs(30),
            ..ClientOptions::new(self.address.clone(), token)
        })
    }

    fn admin(&self) -> Client {
        let digits = self.token.as_bytes().chunks(2);
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        self.client(&digits.map(byte).collect::<Vec<u8>>())
    }

    fn job(&self, name: &str, lease_ms: u32) -> (Client, JobTicket) {
        let ticket = self.admin().register_job(name, lease_ms, 0).unwrap();
        (self.client(&ticket.token), ticket)
    }

    fn status(&self) -> ClusterStatusReply {
        self.admin().status().unwrap()
    }

    /// Every block that there is, is free, once servers have confirmed.
    fn all_is_free(&self) {
        let blocks = self.servers.len() as u64 * processes::BLOCKS;
        eventually("all blocks are free", || {
            let status = self.status();
            (status.blocks, status.free, status.quarantined) == (blocks, blocks, 0)
        });
    }
}

fn item(job: u64, i: u64) -> Vec<u8> {
    let mut item = vec![(job as u8) ^ (i as u8); 700 + (i % 300) as usize];
    item[..8].copy_from_slice(&i.to_le_bytes());
    item
}

/// One job that grows a file, fills and empties a queue, and writes a store, all the while creating
/// and removing prefixes. Every error is a failure.
fn work(client: &Client, job: JobId, number: u64, stop: &AtomicBool, rounds: &AtomicU64) -> u64 {
    let created = |path: &str| client.create_prefix(job, path, &[], PrefixOptions::default());
    created("t").unwrap();
    let file = client.create_file(job, "t:file", 1, false).unwrap();
    let queue = client.create_queue(job, "t:queue", 0, 0, false).unwrap();
    let kv = client.create_kv(job, "t:kv", 4, false).unwrap();
    let (mut i, mut length, mut taken) = (0, 0, 0);
    while !stop.load(Relaxed) || i < 50 {
        let bytes = item(number, i);
        assert_eq!(file.append(&bytes).unwrap(), length, "no append is lost or doubled");
        length += bytes.len() as u64;
        queue.put(&bytes, Duration::from_secs(20)).unwrap();
        kv.put(&(i % 97).to_le_bytes(), &bytes).unwrap();
        if i % 10 == 5 {
            // In blocks of its own, and in place of the one before.
            let large = bytes.repeat(40);
            assert_eq!(kv.put(b"large", &large).unwrap(), i > 5);
            let mut found = Vec::new();
            assert!(kv.get(b"large", &mut found).unwrap() && found == large, "one value, whole");
        }
        if i % 2 == 1 {
            for _ in 0..2 {
                let got = queue.get(Duration::from_secs(20)).unwrap().unwrap();
                assert_eq!(got, item(number, taken), "items come in order, once");
                taken += 1;
            }
        }
        if i % 10 == 9 {
            let path = format!("t/p{i}");
            created(&path).unwrap();
            let part = client.create_file(job, &format!("{path}:part"), 1, false).unwrap();
            part.append(&bytes).unwrap();
            client.remove_prefix(job, &path).unwrap();
        }
        i += 1;
        rounds.fetch_add(1, Relaxed);
    }
    let mut all = vec![0; length as usize];
    assert_eq!(file.read_into(0, &mut all).unwrap() as u64, length);
    let mut expected = Vec::new();
    (0..i).for_each(|i| expected.extend(item(number, i)));
    assert!(all == expected, "the file has every append, in order");
    for i in taken..i {
        assert_eq!(queue.get(Duration::ZERO).unwrap(), Some(item(number, i)));
    }
    assert_eq!(queue.get(Duration::ZERO).unwrap(), None);
    let mut value = Vec::new();
    for key in i.saturating_sub(97)..i {
        assert!(kv.get(&(key % 97).to_le_bytes(), &mut value).unwrap());
        assert!(value == item(number, key));
    }
    i
}

#[test]
fn jobs_notice_nothing_of_a_controller_that_is_killed_and_restarted() {
    let mut cluster = Cluster::start(2);
    let jobs: Vec<_> = (0..3).map(|n| cluster.job(&format!("job{n}"), 1000)).collect();
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let clock = Clock::start();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..)
            .zip(&jobs)
            .map(|(n, (client, ticket))| {
                client.keep(ticket.job, &[String::new()]);
                let (stop, rounds) = (&stop, &rounds);
                scope.spawn(move || work(client, ticket.job, n, stop, rounds))
            })
            .collect();
        for _ in 0..2 {
            let before = rounds.load(Relaxed);
            eventually("the jobs work", || rounds.load(Relaxed) > before + 30);
            cluster.kill_controller();
            // Longer than a lease: requests wait meanwhile.
            clock.sleep_until(clock.now() + Duration::from_millis(1200));
            cluster.restart_controller();
        }
        let before = rounds.load(Relaxed);
        eventually("the jobs go on", || rounds.load(Relaxed) > before + 30);
        stop.store(true, Relaxed);
        let done: Vec<u64> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        assert!(done.iter().all(|&rounds| rounds >= 50));
    });
    for (client, ticket) in &jobs {
        assert!(client.lost_leases().is_empty(), "no lease was lost");
        client.deregister_job(ticket.job).unwrap();
    }
    cluster.all_is_free();
}

#[test]
fn what_is_open_is_served_while_the_controller_is_away() {
    let mut cluster = Cluster::start(1);
    let (client, job) = cluster.job("job", LEASE_MS);
    client.create_prefix(job.job, "t", &[], PrefixOptions::default()).unwrap();
    let kv = client.create_kv(job.job, "t:kv", 1, false).unwrap();
    let queue = client.create_queue(job.job, "t:queue", 0, 0, false).unwrap();
    kv.put(b"a", b"1").unwrap();
    cluster.kill_controller();
    kv.put(b"b", b"2").unwrap();
    queue.put(b"x", Duration::ZERO).unwrap();
    let mut value = Vec::new();
    assert!(kv.get(b"a", &mut value).unwrap());
    assert_eq!(value, b"1");
    cluster.restart_controller();
    // A client that knows nothing finds all of it.
    let other = cluster.client(&job.token);
    let mut value = Vec::new();
    assert!(other.open_kv(job.job, "t:kv").unwrap().get(b"b", &mut value).unwrap());
    assert_eq!(value, b"2");
    let queue = other.open_queue(job.job, "t:queue").unwrap();
    assert_eq!(queue.get(Duration::ZERO).unwrap().unwrap(), b"x");
    client.deregister_job(job.job).unwrap();
    cluster.all_is_free();
}

fn status_of<T: std::fmt::Debug>(result: Result<T, Error>) -> Status {
    result.unwrap_err().status
}

#[test]
fn a_server_that_was_restarted_meanwhile_has_lost_its_data_and_says_so() {
    let mut cluster = Cluster::start(1);
    let (client, job) = cluster.job("job", LEASE_MS);
    client.create_prefix(job.job, "t", &[], PrefixOptions::default()).unwrap();
    let file = client.create_file(job.job, "t:file", 1, false).unwrap();
    file.append(b"gone").unwrap();
    cluster.kill_controller();
    cluster.servers.pop().unwrap().kill();
    cluster.restart_controller();
    cluster.add_server();
    let mut buffer = [0; 4];
    assert_eq!(status_of(file.read_into(0, &mut buffer)), Status::DataLost);
    eventually("the old member is given up", || cluster.status().servers.len() == 1);
    // The job itself goes on.
    let file = client.create_file(job.job, "t:again", 1, false).unwrap();
    file.append(b"here").unwrap();
    client.deregister_job(job.job).unwrap();
    cluster.all_is_free();
}

/// A store of one block with one key.
fn store(cluster: &Cluster) -> Kv {
    let (client, job) = cluster.job("job", LEASE_MS);
    client.create_prefix(job.job, "t", &[], PrefixOptions::default()).unwrap();
    let kv = client.create_kv(job.job, "t:kv", 1, false).unwrap();
    kv.put(b"a", b"1").unwrap();
    kv
}

/// A server that a controller knows only from its log is lost after the same time as one that has reported
/// (INV-56).
#[test]
fn server_silent_for_6_s_around_a_restart_keeps_its_data() {
    let mut cluster = Cluster::start(1);
    let kv = store(&cluster);
    let stopped = Pid::from_raw(cluster.servers[0].id().cast_signed()).unwrap();
    kill_process(stopped, Signal::STOP).unwrap();
    cluster.kill_controller();
    cluster.restart_controller();
    let clock = Clock::start();
    clock.sleep_until(clock.now() + Duration::from_secs(6));
    kill_process(stopped, Signal::CONT).unwrap();
    let mut value = Vec::new();
    assert!(kv.get(b"a", &mut value).unwrap());
    assert_eq!(value, b"1");
    kv.put(b"b", b"2").unwrap();
    eventually("the server is back", || cluster.status().servers[0].alive);
}

/// The server's address refuses connections, so that the controller does not wait for the time of silence.
#[test]
fn server_that_ended_with_the_controller_is_lost_before_it_was_silent_for_long() {
    let mut cluster = Cluster::start(1);
    let kv = store(&cluster);
    cluster.servers.remove(0).kill();
    cluster.kill_controller();
    cluster.restart_controller();
    let clock = Clock::start();
    let lost = status_of(kv.get(b"a", &mut Vec::new()));
    assert_eq!(lost, Status::DataLost);
    let after = clock.now().as_millis();
    assert!(after < u64::from(SERVER_LOSS_DEFAULT_MS), "told after {after} ms");
}

#[test]
fn a_directory_has_one_controller_at_a_time_and_a_key_that_only_its_user_reads() {
    use std::os::unix::fs::MetadataExt;
    let cluster = Cluster::start(0);
    let (code, error) = processes::controller_refused(&cluster.folder.data(), "127.0.0.1:0");
    assert!(error.contains("another controller uses this data directory"), "{error}");
    assert_eq!(code, 8);
    let mode = |name: &str| std::fs::metadata(cluster.folder.data().join(name)).unwrap().mode();
    assert_eq!(mode("cluster.key") & 0o777, 0o600);
    assert_eq!(std::fs::metadata(cluster.folder.data()).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn a_controller_of_an_earlier_term_is_refused_and_ends() {
    let mut cluster = Cluster::start(1);
    let copy = cluster.folder.copy_of_data();
    // Two more terms, which the server receives.
    for term in [2, 3] {
        cluster.kill_controller();
        cluster.restart_controller();
        eventually("the server is back", || cluster.status().servers.iter().all(|s| s.alive));
        assert_eq!(cluster.folder.logs(), term);
    }
    cluster.kill_controller();
    // The same cluster as it was at the first term: its second is over.
    let mut old = processes::controller(&copy, &cluster.address);
    let (code, error) = old.ended();
    assert_eq!(code, Some(1));
    assert!(error.contains("a controller with term 3 has taken over"), "{error}");
    cluster.restart_controller();
    eventually("the server is back", || cluster.status().servers.iter().all(|s| s.alive));
    assert_eq!(cluster.status().servers.len(), 1, "it kept its number");
}

#[test]
fn a_damaged_log_is_refused_and_told() {
    let mut cluster = Cluster::start(0);
    let (client, job) = cluster.job("job", LEASE_MS);
    for i in 0..10 {
        client.create_prefix(job.job, &format!("t{i}"), &[], PrefixOptions::default()).unwrap();
    }
    cluster.kill_controller();
    let path = cluster.folder.data().join(format!("log-{:016x}", 1));
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let (code, error) = processes::controller_refused(&cluster.folder.data(), "127.0.0.1:0");
    assert_eq!(code, 1);
    assert!(error.contains("LogFailed") && error.contains("is damaged at byte"), "{error}");
}

#[test]
fn a_task_that_is_known_to_no_lease_but_its_own_has_a_full_one_after_a_restart() {
    let mut cluster = Cluster::start(1);
    let (client, job) = cluster.job("job", LEASE_MS);
    let options = PrefixOptions { lease_ms: 2000, ..PrefixOptions::default() };
    let prefix = client.create_prefix(job.job, "t", &[], options).unwrap();
    assert_ne!(prefix, PrefixId(0));
    let clock = Clock::start();
    cluster.kill_controller();
    clock.sleep_until(clock.now() + Duration::from_millis(2500));
    cluster.restart_controller();
    // It was away for longer than the lease, in which nobody could renew it.
    let left = client.lease(job.job, "t").unwrap().remaining_ms;
    assert!(left > 0, "{left} ms are left");
    eventually("it ends in the end", || client.lease(job.job, "t").is_err());
    assert_eq!(status_of(client.lease(job.job, "t")), Status::LeaseExpired);
    assert!(clock.now().as_millis() > 4500, "after a whole one");
}
