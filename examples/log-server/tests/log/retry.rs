//! An append whose reply was lost takes effect once.

use super::{append, at, cluster, create, scan, stats, trim, with_log};
use honeycomb_controller::{Controller, ControllerOptions};
use honeycomb_e2e::raw::{ANY_SHARD, Raw, data_header, first_block, frame, hello_args};
use honeycomb_e2e::{Cluster, KIB, eventually, server_options};
use honeycomb_server::{MemoryServer, ServerOptions};
use honeycomb_types::{LaneId, PrefixId, Sequence};
use honeycomb_wire::messages::{OpenStructureReply, ReopenStructureRequest};
use honeycomb_wire::{Field, Op, RequestHeader, Status, flags};
use log_structure::{CODE, ops};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

#[test]
fn an_append_is_repeated_and_counts_once() {
    let cluster = cluster();
    let (client, job) = cluster.job("log");
    let log = create(&client, &job);
    let mut controller = Raw::greeted(cluster.controller.address(), &job.token, ANY_SHARD);
    let body = ReopenStructureRequest { job: job.job.0, structure: log.structure().id().0 };
    let reply = controller.ask(Op::ReopenStructure, &body.encode());
    let opened = OpenStructureReply::decode(&reply.args).unwrap();
    let (block, entry) = (first_block(&opened.map), &opened.map.entries[0]);

    // One session on two connections, like a client that lost the first connection.
    let hello = hello_args(&job.token, PrefixId(0), block.block.shard().0);
    let connect = || {
        let mut raw = Raw::connect(entry.address.parse().unwrap());
        let greeted = raw.request(RequestHeader::new(Op::Hello), &hello, &[]);
        assert_eq!(greeted.status(), Status::Ok);
        let grant = raw.present(&opened.grant);
        (raw, grant)
    };
    let header = |grant, sequence, again| {
        let op = Op::from_code((CODE as u16) << 8 | ops::APPEND as u16).unwrap();
        let mut header = data_header(op, block, grant, 1);
        (header.lane, header.sequence, header.ack_lag) = (LaneId(1), Sequence(sequence), 1);
        header.flags = if again { flags::RETRY } else { 0 };
        header
    };
    for (number, payload) in [vec![5; 100], vec![6; 7000]].iter().enumerate() {
        let sequence = number as u64 + 1;
        let (mut raw, grant) = connect();
        raw.send(&frame(header(grant, sequence, false), b"tag", payload));
        // The append runs before the connection closes, and its reply is never read.
        eventually("the append ran", || stats(&log)[0].appended == sequence);
        drop(raw);
        let (mut raw, grant) = connect();
        let again = raw.request(header(grant, sequence, true), b"tag", payload);
        assert_eq!((again.status(), again.header.value), (Status::Ok, number as u64));
        assert_eq!(stats(&log)[0].appended, sequence);
    }
    let found = scan(&log, 0, b"tag");
    assert_eq!(found.iter().map(|r| r.bytes.len()).collect::<Vec<_>>(), [100, 7000]);
}

/// A relay in front of a memory server that can drop the server's replies.
struct Relay {
    /// The number of replies to drop, together with their connections.
    to_lose: Arc<AtomicUsize>,
    lost: Arc<AtomicUsize>,
    target: Arc<OnceLock<SocketAddr>>,
    address: SocketAddr,
}

impl Relay {
    fn start() -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let relay = Relay {
            to_lose: Arc::default(),
            lost: Arc::default(),
            target: Arc::default(),
            address,
        };
        let (to_lose, lost, target) =
            (relay.to_lose.clone(), relay.lost.clone(), relay.target.clone());
        // The threads end with the process and are not joined.
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                // After the end of the cluster, a client that still connects finds a closed connection.
                let Ok(server) = TcpStream::connect(target.wait()) else { continue };
                for stream in [&client, &server] {
                    stream.set_nodelay(true).unwrap();
                }
                let (asks, answers) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || carry(asks, server, || false));
                let (to_lose, lost) = (to_lose.clone(), lost.clone());
                thread::spawn(move || {
                    carry(answers, client, || {
                        let take = |left: usize| left.checked_sub(1);
                        let now = to_lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
                        now.is_ok() && lost.fetch_add(1, Ordering::SeqCst) < usize::MAX
                    });
                });
            }
        });
        relay
    }
}

/// Relays bytes until the end of the stream. If `lose` returns true, closes both sides instead.
fn carry(mut from: TcpStream, mut to: TcpStream, mut lose: impl FnMut() -> bool) {
    let mut bytes = [0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if lose() || to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        // The peer may have closed it already.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

#[test]
fn the_client_recovers_lost_answers_at_every_turn() {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let options = ControllerOptions {
        data_dir: None,
        unix_dir: None,
        listen,
        root_key: None,
        spin: Duration::ZERO,
        marks: honeycomb_types::Marks::default(),
        lease_ms: honeycomb_types::limits::LEASE_DEFAULT_MS,
        shards: 1,
        policy: Default::default(),
        scale: Default::default(),
        server_loss_ms: honeycomb_types::limits::SERVER_LOSS_DEFAULT_MS,
    };
    let controller = Controller::start(&options).unwrap();
    let relay = Relay::start();
    let options = ServerOptions {
        advertise: Some(relay.address.to_string()),
        shards: 1,
        kinds: with_log(),
        ..server_options(controller.address(), controller.token(), 4096 * KIB, 64 * KIB)
    };
    let server = MemoryServer::start(&options, Duration::from_secs(20)).unwrap();
    relay.target.set(server.address()).unwrap();
    let cluster = Cluster { servers: vec![server], controller };
    let (client, job) = cluster.job("log");
    let log = create(&client, &job);
    let lose = |answers| relay.to_lose.store(answers, Ordering::SeqCst);
    // Across several blocks: a `Moved` reply may also be lost.
    for number in 0..300_u64 {
        lose(usize::from(number % 3 == 0));
        assert_eq!(append(&log, b"", &[&number.to_le_bytes()[..], &[9; 900]].concat()), number);
        lose(0);
    }
    assert!(relay.lost.load(Ordering::SeqCst) >= 100);
    let found = scan(&log, 0, b"");
    assert!(found.iter().map(|r| u64::from_le_bytes(r.bytes[..8].try_into().unwrap())).eq(0..300));
    lose(1);
    assert_eq!(trim(&log, 250), 250);
    lose(1);
    assert_eq!(log.call("read", at(250)).unwrap().value, 250);
    assert_eq!(stats(&log).iter().map(|block| block.records).sum::<u64>(), 50);
}
