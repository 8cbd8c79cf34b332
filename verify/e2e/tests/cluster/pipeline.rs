//! Pipelines: many operations under way on one connection answer as they would one by one.

use honeycomb_client::{Accumulated, Done, Error, Pipeline, Swap};
use honeycomb_e2e::{Cluster, KIB, kv, noise, prefix, status};
use honeycomb_wire::Status;
use honeycomb_wire::batch::BatchOp;
use honeycomb_wire::stored::Function;
use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// The answers of a store in one process.
#[derive(Default)]
struct Model(HashMap<Vec<u8>, Vec<u8>>);

impl Model {
    fn run(&mut self, op: &BatchOp<'_>) -> Result<Done, Status> {
        let entries = &mut self.0;
        Ok(match *op {
            BatchOp::Get { key } => Done::Read(entries.get(key).cloned()),
            BatchOp::Put { key, value } => {
                Done::Stored(entries.insert(key.to_vec(), value.to_vec()).is_some())
            }
            BatchOp::Set { key, value } => {
                entries.insert(key.to_vec(), value.to_vec());
                Done::Set
            }
            BatchOp::Insert { key, .. } if entries.contains_key(key) => {
                return Err(Status::KeyExists);
            }
            BatchOp::Insert { key, value } => {
                entries.insert(key.to_vec(), value.to_vec());
                Done::Stored(false)
            }
            BatchOp::Delete { key } => Done::Deleted(entries.remove(key).is_some()),
            BatchOp::Swap { key, expected, new } => {
                let found = entries.get(key).cloned();
                Done::Swapped(match found.as_deref() == expected {
                    true => {
                        entries.insert(key.to_vec(), new.to_vec());
                        Swap::Done
                    }
                    false => Swap::Found(found),
                })
            }
            BatchOp::Accumulate { key, operand, .. } => {
                let value = entries.entry(key.to_vec()).or_default();
                value.extend_from_slice(operand);
                Done::Combined(Accumulated::Length(value.len() as u64))
            }
        })
    }
}

fn check(expected: &mut VecDeque<Result<Done, Status>>, answer: Result<Done, Error>) {
    let expected = expected.pop_front().unwrap();
    assert_eq!(answer.map_err(|e| e.status), expected);
}

fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    (0..).map(move |i| noise(seed + i, 8).try_into().map(u64::from_le_bytes).unwrap())
}

/// Blocks are small, so that the store splits while the pipeline runs, and some values are too large
/// for their key's block.
#[test]
fn a_pipeline_answers_as_one_by_one() {
    let cluster = Cluster::start(2, 64 << 20, 256 * KIB);
    let (client, job) = cluster.job("pipeline");
    prefix(&client, &job, "a", 0);
    let kv = kv(&client, &job, "a", 1);
    let mut random = numbers(7);
    let mut next = |most: u64| random.next().unwrap() % most;
    let (mut model, mut expected) = (Model::default(), VecDeque::new());
    let mut pipeline = kv.pipeline();
    for i in 0..20_000 {
        let key = format!("key-{}", if next(3) == 0 { next(5) } else { next(3000) });
        let key = key.as_bytes();
        let length = if next(2000) == 0 { 40_000 } else { next(400) as usize };
        let value = noise(i, length);
        let held = model.0.get(key).filter(|held| held.len() < 32_000).cloned();
        let small = !model.0.contains_key(key) || held.is_some();
        let op = match next(12) {
            0..4 => BatchOp::Get { key },
            4 | 5 => BatchOp::Put { key, value: &value },
            6 => BatchOp::Set { key, value: &value },
            7 => BatchOp::Insert { key, value: &value },
            8 => BatchOp::Delete { key },
            // What compares and combines works on small values.
            9 | 10 if small && length < 1000 => {
                let expected = if next(2) == 0 { held.as_deref() } else { Some(&b"other"[..]) };
                BatchOp::Swap { key, expected, new: &value }
            }
            11 if small && model.0.get(key).is_none_or(|held| held.len() < 2000) => {
                let operand = &value[..value.len().min(50)];
                BatchOp::Accumulate { key, function: Function::Append, operand }
            }
            _ => BatchOp::Get { key },
        };
        expected.push_back(model.run(&op));
        pipeline.ask(op);
        while pipeline.len() > next(100) as usize {
            check(&mut expected, pipeline.next().unwrap());
        }
    }
    while let Some(answer) = pipeline.next() {
        check(&mut expected, answer);
    }
    assert!(expected.is_empty());
    drop(pipeline);
    assert!(kv.structure().blocks() > 1, "it has split");
    let mut value = Vec::new();
    for (key, expected) in &model.0 {
        assert!(kv.get(key, &mut value).unwrap() && value == *expected);
    }
}

fn ask_numbers(pipeline: &mut Pipeline<'_>, count: usize) {
    for i in 0..count {
        let value = i.to_string();
        pipeline.ask(BatchOp::Put { key: b"key", value: value.as_bytes() });
    }
}

#[test]
fn what_was_asked_is_done_also_when_nobody_takes_the_answers() {
    let cluster = Cluster::start(1, 64 << 20, 256 * KIB);
    let (client, job) = cluster.job("dropped");
    prefix(&client, &job, "a", 0);
    let kv = kv(&client, &job, "a", 1);
    let mut pipeline = kv.pipeline();
    ask_numbers(&mut pipeline, 300);
    assert_eq!(pipeline.len(), 300);
    drop(pipeline);
    let mut value = Vec::new();
    assert!(kv.get(b"key", &mut value).unwrap());
    assert_eq!(value, b"299", "those on one key follow each other");
}

#[test]
fn what_cannot_be_sent_fails_in_its_place() {
    let cluster = Cluster::start(1, 64 << 20, 256 * KIB);
    let (client, job) = cluster.job("refused");
    prefix(&client, &job, "a", 0);
    let kv = kv(&client, &job, "a", 1);
    let mut pipeline = kv.pipeline();
    assert!(pipeline.next().is_none() && pipeline.is_empty());
    let long = vec![0; 5000];
    pipeline.ask(BatchOp::Put { key: b"a", value: b"1" });
    pipeline.ask(BatchOp::Get { key: &long });
    pipeline.ask(BatchOp::Get { key: b"a" });
    assert_eq!(pipeline.next().unwrap().unwrap(), Done::Stored(false));
    assert_eq!(status(pipeline.next().unwrap()), Status::KeyTooLarge);
    assert_eq!(pipeline.next().unwrap().unwrap(), Done::Read(Some(b"1".to_vec())));
    client.remove_structure(job.job, "a").unwrap();
    pipeline.ask(BatchOp::Get { key: b"a" });
    pipeline.ask(BatchOp::Put { key: b"b", value: b"2" });
    assert_eq!(status(pipeline.next().unwrap()), Status::Removed);
    assert_eq!(status(pipeline.next().unwrap()), Status::Removed);
}

/// Stands between clients and a server, and cuts connections in the middle of answers.
struct Cutter {
    listener: TcpListener,
    server: OnceLock<SocketAddr>,
    /// So many connections are still to be cut.
    left: AtomicUsize,
}

impl Cutter {
    fn new(cuts: usize) -> Arc<Cutter> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let cutter = Cutter { listener, server: OnceLock::new(), left: AtomicUsize::new(cuts) };
        let cutter = Arc::new(cutter);
        let twin = cutter.clone();
        std::thread::spawn(move || {
            for (client, seed) in twin.listener.incoming().zip(0..) {
                let (client, twin) = (client.unwrap(), twin.clone());
                std::thread::spawn(move || twin.serve(client, seed));
            }
        });
        cutter
    }

    fn serve(&self, client: TcpStream, seed: u64) {
        // After the end of the cluster, a client that still connects finds a closed connection.
        let Ok(server) = TcpStream::connect(self.server.get().unwrap()) else { return };
        let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
        // Behind the handshake, anywhere in what follows: within a frame as well.
        let random = numbers(seed * 10).next().unwrap();
        let cut = self.left.load(Relaxed) > 0;
        if pass(server, &client, if cut { 200 + random % 9000 } else { u64::MAX }) {
            let _ = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        }
        let _ = client.shutdown(Shutdown::Both);
    }
}

/// Forwards up to `most` bytes; answers whether it reached that number.
fn pass(mut from: TcpStream, mut to: &TcpStream, most: u64) -> bool {
    let (mut left, mut buffer) = (most, [0; 4096]);
    while left > 0 {
        let some = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match from.read(&mut buffer[..some]) {
            Ok(n) if n > 0 && to.write_all(&buffer[..n]).is_ok() => left -= n as u64,
            _ => return false,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    true
}

/// Every count of a key appears once and in order: no operation is lost, repeated or reordered.
#[test]
fn connections_that_break_lose_and_double_nothing() {
    let cutter = Cutter::new(40);
    let address = cutter.listener.local_addr().unwrap();
    let cluster = Cluster::behind(address, 64 << 20, 256 * KIB);
    cutter.server.set(cluster.servers[0].address()).unwrap();
    let (client, job) = cluster.job("cut");
    prefix(&client, &job, "a", 0);
    let kv = kv(&client, &job, "a", 2);
    let keys: Vec<String> = (0..60).map(|i| format!("key-{i}")).collect();
    let mut pipeline = kv.pipeline();
    let mut expected = VecDeque::new();
    let mut random = numbers(3);
    let mut counts = vec![0; keys.len()];
    let mut rounds = 0;
    while cutter.left.load(Relaxed) > 0 && rounds < 100_000 {
        rounds += 1;
        let which = random.next().unwrap() as usize % keys.len();
        let key = keys[which].as_bytes();
        counts[which] += 1;
        pipeline.ask(BatchOp::Accumulate { key, function: Function::Count, operand: b"" });
        expected.push_back(counts[which]);
        while pipeline.len() > 50 {
            let counted = Done::Combined(Accumulated::Integer(expected.pop_front().unwrap()));
            assert_eq!(pipeline.next().unwrap().unwrap(), counted);
        }
    }
    assert_eq!(cutter.left.load(Relaxed), 0, "after {rounds} operations");
    while let Some(answer) = pipeline.next() {
        let counted = Done::Combined(Accumulated::Integer(expected.pop_front().unwrap()));
        assert_eq!(answer.unwrap(), counted);
    }
    assert!(expected.is_empty());
}
