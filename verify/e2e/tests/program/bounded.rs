//! A memory server's resident memory stays within its configured memory plus a tenth and 64 MiB under any
//! load (INV-32): otherwise the system would kill its process, and all data would be lost.
//!
//! Each load has its own server process; the peak resident memory comes from the system (`VmHWM`).

use honeycomb_client::{Client, ClientOptions, JobTicket};
use honeycomb_e2e::process::{Node, unhex};
use honeycomb_e2e::raw::{ANY_SHARD, Raw, data_header, frame};
use honeycomb_e2e::{KIB, Scratch};
use honeycomb_env::Clock;
use honeycomb_types::PrefixId;
use honeycomb_wire::data::ReadArgs;
use honeycomb_wire::messages::{OpenStructureReply, OpenStructureRequest, PrefixOptions};
use honeycomb_wire::{Field, Op, Status};
use std::net::SocketAddr;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 128 * MIB;
/// Maximum resident memory of the server.
const MOST: u64 = MEMORY + MEMORY / 10 + 64 * MIB;

struct Cluster {
    controller: Node,
    server: Node,
    _disk: Scratch,
}

impl Cluster {
    fn start(block: u64, disk: u64) -> Cluster {
        let scratch = Scratch::new();
        std::fs::create_dir_all(&scratch.0).unwrap();
        let controller = Node::start(&["controller", "--listen", "127.0.0.1:0"]);
        let (address, token) = (controller.text("address"), controller.text("token"));
        let (memory, block) = (MEMORY.to_string(), block.to_string());
        let disks = format!("{}={disk}", scratch.0.display());
        let mut words = vec!["server", "--controller", &address, "--token", &token];
        words.extend(["--memory", &memory, "--block-size", &block, "--shards", "2"]);
        if disk > 0 {
            words.extend(["--disks", &disks]);
        }
        let server = Node::start(&words);
        Cluster { controller, server, _disk: scratch }
    }

    fn client(&self, token: &[u8]) -> Client {
        let mut options = ClientOptions::new(self.controller.text("address"), token);
        options.timeout = Duration::from_secs(20);
        Client::new(options)
    }

    fn job(&self, name: &str) -> (Client, JobTicket) {
        let admin = self.client(&unhex(&self.controller.text("token")));
        let job = admin.register_job(name, 600_000, 0).unwrap();
        let client = self.client(&job.token);
        client.create_prefix(job.job, "t", &[], PrefixOptions::default()).unwrap();
        (client, job)
    }

    /// A connection to the server, with a grant for a structure, and where that begins.
    fn raw(&self, job: &JobTicket, path: &str, name: &str) -> (Raw, OpenStructureReply, u32) {
        let controller: SocketAddr = self.controller.text("address").parse().unwrap();
        let mut asks = Raw::greeted(controller, &job.token, ANY_SHARD);
        let (path, name) = (path.to_owned(), name.to_owned());
        let body = OpenStructureRequest { job: job.job.0, path, name };
        let reply = asks.ask(Op::OpenStructure, &body.encode());
        assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
        let opened = OpenStructureReply::decode(&reply.args).unwrap();
        let server: SocketAddr = opened.map.entries[0].address.parse().unwrap();
        let mut raw = Raw::connect(server);
        assert_eq!(raw.hello(&job.token, PrefixId(0), ANY_SHARD).status(), Status::Ok);
        let grant = raw.present(&opened.grant);
        (raw, opened, grant)
    }

    fn within(&self, load: &str) {
        let most = self.server.most_resident();
        println!("{load}: {} MiB of {} MiB", most / MIB, MOST / MIB);
        assert!(most <= MOST, "{load}: {} MiB were resident, of {}", most / MIB, MOST / MIB);
    }
}

fn room_to_receive(raw: &Raw, bytes: usize) {
    rustix::net::sockopt::set_socket_recv_buffer_size(raw.stream(), bytes).unwrap();
}

fn for_a_while(seconds: u64, mut turn: impl FnMut(u64)) {
    let clock = Clock::start();
    for n in 0.. {
        if clock.now().as_millis() > seconds * 1000 {
            return;
        }
        turn(n);
    }
}

#[test]
fn memory_that_is_full_and_changes_hands_all_the_time() {
    let cluster = Cluster::start(MIB, 0);
    let bytes = vec![7; 8 << 20];
    std::thread::scope(|scope| {
        for n in 0..4 {
            let (client, job) = cluster.job(&format!("job{n}"));
            let bytes = &bytes;
            scope.spawn(move || {
                for_a_while(3, |turn| {
                    // Its last three stay: what is refused for want of memory has its turn again.
                    let name = format!("t:f{turn}");
                    if let Ok(file) = client.create_file(job.job, &name, 8, false) {
                        let _ = file.write_all(bytes);
                    }
                    if turn >= 3 {
                        let _ = client.remove_structure(job.job, &format!("t:f{}", turn - 3));
                    }
                });
            });
        }
    });
    cluster.within("files that come and go");
}

#[test]
fn readers_that_do_not_read_while_what_they_asked_for_is_removed() {
    let cluster = Cluster::start(16 * MIB, 0);
    let (client, job) = cluster.job("slow");
    let bytes = vec![7; 15 << 20];
    let mut slow = Vec::new();
    for round in 0..16 {
        let name = format!("f{round}");
        let options = PrefixOptions { high_mark: 99, ..PrefixOptions::default() };
        client.create_prefix(job.job, &name, &[], options).unwrap();
        let file = client.create_file(job.job, &format!("{name}:f"), 1, false).unwrap();
        file.write_all(&bytes).unwrap();
        let (mut raw, opened, grant) = cluster.raw(&job, &name, "f");
        for n in 0..80 {
            let mut args = Vec::new();
            ReadArgs { offset: n << 16, length: 1 << 16 }.put(&mut args);
            let at = opened.map.entries[0].at();
            let mut header = data_header(Op::FileRead, at, grant, 0);
            header.request = raw.number();
            raw.send(&frame(header, &args, &[]));
            if n == 0 {
                // From now on it reads nothing, and there is little room for it elsewhere.
                assert_eq!(raw.reply().status(), Status::Ok);
                room_to_receive(&raw, 4096);
            }
        }
        assert_eq!(file.size().unwrap(), bytes.len() as u64);
        slow.push(raw);
        client.remove_prefix(job.job, &name).unwrap();
    }
    // What was answered is what was asked for, also of a block that is gone.
    let last = slow.last_mut().unwrap();
    room_to_receive(last, 1 << 20);
    let reply = last.reply();
    assert!(reply.status() == Status::Ok && reply.payload == bytes[..1 << 16]);
    cluster.within("readers that do not read");
}

#[test]
fn values_that_never_arrive_whole() {
    let cluster = Cluster::start(MIB, 0);
    let (client, job) = cluster.job("half");
    client.create_kv(job.job, "t:k", 4, false).unwrap();
    let half = vec![7; 100 * KIB as usize];
    let mut open = Vec::new();
    for n in 0..600u32 {
        let (mut raw, opened, grant) = cluster.raw(&job, "t", "k");
        let at = opened.map.entries[n as usize % opened.map.entries.len()].at();
        let key = [&[0][..], &n.to_le_bytes()].concat();
        let mut header = data_header(Op::KvPut, at, grant, 1);
        header.request = raw.number();
        (header.args_len, header.payload_len) = (key.len() as u32, 120 << 10);
        raw.send(&[&header.encode()[..], &key].concat());
        if raw.try_send(&half).is_ok() {
            open.push(raw);
        }
    }
    cluster.within("values that never arrive");
    drop(open);
}

#[test]
fn four_times_the_memory_goes_through_a_disk() {
    let cluster = Cluster::start(256 * KIB, 1 << 30);
    std::thread::scope(|scope| {
        for n in 0..4 {
            let (client, job) = cluster.job(&format!("job{n}"));
            scope.spawn(move || {
                let file = client.create_file(job.job, "t:f", 1, false).unwrap();
                let mut bytes = vec![n as u8; 128 << 20];
                file.write_all(&bytes).unwrap();
                assert_eq!(file.read_into(0, &mut bytes).unwrap(), bytes.len());
                assert!(bytes.iter().all(|byte| *byte == n as u8));
            });
        }
    });
    cluster.within("four times the memory through a disk");
}

#[test]
fn many_lanes_remember_what_they_were_answered() {
    let cluster = Cluster::start(64 * KIB, 0);
    let (client, job) = cluster.job("lanes");
    client.create_kv(job.job, "t:k", 64, false).unwrap();
    for n in 0..200u32 {
        let (mut raw, opened, grant) = cluster.raw(&job, "t", "k");
        for (e, entry) in opened.map.entries.iter().enumerate() {
            for lane in 1..40 {
                let key = [&[0][..], &n.to_le_bytes(), &(e as u32).to_le_bytes()].concat();
                let mut header = data_header(Op::KvPut, entry.at(), grant, lane);
                header.request = raw.number();
                raw.send(&frame(header, &key, b"value"));
            }
            for _ in 1..40 {
                raw.reply();
            }
        }
    }
    cluster.within("half a million lanes");
}
