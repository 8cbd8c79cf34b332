//! Memory servers whose process ends, and servers that are silent for a while, as real processes (INV-56).

use honeycomb_client::{Client, ClientOptions, JobTicket, Kv};
use honeycomb_e2e::process::{Node, eventually, unhex};
use honeycomb_env::Clock;
use honeycomb_types::limits::SERVER_SILENCE;
use honeycomb_wire::Status;
use honeycomb_wire::messages::{PrefixOptions, ServerInfo};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;

struct Cluster {
    _controller: Node,
    servers: Vec<Node>,
    address: String,
    token: Vec<u8>,
}

impl Cluster {
    /// So many servers, with settings of the controller.
    fn start(servers: usize, settings: &[&str]) -> Cluster {
        let words = [&["controller", "--listen", "127.0.0.1:0", "--volatile"], settings].concat();
        let controller = Node::start(&words);
        let (address, text) = (controller.text("address"), controller.text("token"));
        let join = ["server", "--controller", &address, "--token", &text];
        let pool = ["--memory", "4MiB", "--block-size", "64KiB", "--shards", "1"];
        let words = [&join[..], &pool[..]].concat();
        let servers = (0..servers).map(|_| Node::start(&words)).collect();
        Cluster { _controller: controller, servers, address, token: unhex(&text) }
    }

    fn client(&self, timeout: Duration) -> Client {
        let mut options = ClientOptions::new(self.address.clone(), self.token.clone());
        options.timeout = timeout;
        Client::new(options)
    }

    fn signal(&self, server: usize, signal: Signal) {
        let id = self.servers[server].id().cast_signed();
        kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
    }
}

/// A store that is opened by a client with this patience, with a block on each of two servers.
fn store(cluster: &Cluster, timeout: Duration) -> (Client, JobTicket, Kv) {
    let client = cluster.client(timeout);
    let job = client.register_job("job", 600_000, 0).unwrap();
    let options = PrefixOptions { lease_ms: 600_000, ..PrefixOptions::default() };
    client.create_prefix(job.job, "t", &[], options).unwrap();
    let blocks = cluster.servers.len() as u32;
    let store = client.create_kv(job.job, "t", blocks, false).unwrap();
    for key in 0..64u32 {
        store.put(&key.to_le_bytes(), b"value").unwrap();
    }
    (client, job, store)
}

fn suspected(client: &Client) -> Vec<ServerInfo> {
    let mut servers = client.status().unwrap().servers;
    servers.retain(|server| server.silent_ms > 0);
    servers
}

fn get_all(store: &Kv) -> Result<(), honeycomb_client::Error> {
    let mut value = Vec::new();
    for key in 0..64u32 {
        assert!(store.get(&key.to_le_bytes(), &mut value)? && value == b"value");
    }
    Ok(())
}

/// A closed connection and a refused probe show that the process has ended: the controller waits neither for
/// the time after which a server is suspected, nor for the time after which it is lost.
#[test]
fn killed_server_is_lost_before_a_silent_one_would_be_suspected() {
    let mut cluster = Cluster::start(2, &["--server-loss-ms", "60000"]);
    let (client, _, store) = store(&cluster, Duration::from_secs(30));
    let clock = Clock::start();
    cluster.servers.remove(0).kill();
    let lost = get_all(&store).unwrap_err();
    let after = clock.now().as_millis();
    assert_eq!(lost.status, Status::DataLost, "{lost}");
    assert!(u128::from(after) < SERVER_SILENCE.as_millis(), "told after {after} ms");
    assert_eq!(client.status().unwrap().servers.len(), 1);
}

#[test]
fn stopped_server_is_suspected_by_name_and_has_its_data_when_it_goes_on() {
    let cluster = Cluster::start(2, &[]);
    let (client, job, store) = store(&cluster, Duration::from_secs(4));
    let held = cluster.servers[0].text("address");
    cluster.signal(0, Signal::STOP);
    eventually("the suspicion", || !suspected(&client).is_empty());
    let [server] = &suspected(&client)[..] else { panic!("one of two is stopped") };
    assert!(server.address == held && !server.alive);
    assert!(u128::from(server.silent_ms) >= SERVER_SILENCE.as_millis());
    let late = get_all(&store).unwrap_err();
    assert_eq!(late.status, Status::DeadlineExceeded, "{late}");
    assert!(late.message.contains(&format!("memory server {held} is suspected")), "{late}");
    // Structures created meanwhile get blocks of the other server.
    let other = client.create_kv(job.job, "t:other", 4, false).unwrap();
    for key in 0..64u32 {
        other.put(&key.to_le_bytes(), b"value").unwrap();
    }
    cluster.signal(0, Signal::CONT);
    eventually("the end of the suspicion", || suspected(&client).is_empty());
    get_all(&store).unwrap();
    get_all(&other).unwrap();
    assert_eq!(client.status().unwrap().servers.len(), 2);
}

#[test]
fn server_that_stays_silent_is_lost_after_the_setting() {
    let cluster = Cluster::start(1, &["--server-loss-ms", "3000"]);
    let (client, _, store) = store(&cluster, Duration::from_secs(30));
    cluster.signal(0, Signal::STOP);
    let lost = get_all(&store).unwrap_err();
    assert_eq!(lost.status, Status::DataLost, "{lost}");
    assert!(lost.message.contains(&cluster.servers[0].text("address")), "{lost}");
    assert!(client.status().unwrap().servers.is_empty());
    cluster.signal(0, Signal::CONT);
    eventually("a new membership", || client.status().unwrap().servers.len() == 1);
    assert_eq!(get_all(&store).unwrap_err().status, Status::DataLost);
}

#[test]
fn creation_waits_for_a_suspected_server_and_names_it() {
    let cluster = Cluster::start(1, &[]);
    let (client, job, _store) = store(&cluster, Duration::from_secs(1));
    cluster.signal(0, Signal::STOP);
    eventually("the suspicion", || !suspected(&client).is_empty());
    let refused = client.create_kv(job.job, "t:more", 1, false).map(drop).unwrap_err();
    let held = cluster.servers[0].text("address");
    assert!(refused.message.contains(&format!("{held} is suspected")), "{refused}");
    assert_eq!(refused.status, Status::Unavailable, "{refused}");
    cluster.signal(0, Signal::CONT);
    let patient = cluster.client(Duration::from_secs(30));
    patient.create_kv(job.job, "t:more", 1, false).map(drop).unwrap();
}
