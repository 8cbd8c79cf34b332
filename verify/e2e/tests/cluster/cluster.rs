//! A controller, memory servers and clients in one process, over real sockets.

use honeycomb_client::{Error, QuotaOf, Swap};
use honeycomb_e2e::{
    Cluster, KIB, PATIENCE, eventually, file, kv, noise, prefix, server_options, status,
};
use honeycomb_env::Clock;
use honeycomb_server::{MemoryServer, ServerOptions};
use honeycomb_wire::Status;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

#[test]
fn values_of_every_size_come_back_as_they_were_put() {
    let cluster = Cluster::start(2, 64 << 20, 1 << 20);
    let (client, job) = cluster.job("sizes");
    prefix(&client, &job, "a", 0);
    let kv = kv(&client, &job, "a:kv", 4);
    // Whole payloads, payloads that are filled in place, and both sides of every boundary.
    let sizes = [0, 1, 63, 64, 1000, 1024, 4096, 16_383, 16_384, 65_536, 65_537, 131_072];
    for (i, size) in sizes.iter().enumerate() {
        let (key, value) = (format!("key-{i}"), noise(i as u64, *size));
        assert!(!kv.put(key.as_bytes(), &value).unwrap());
        let mut got = Vec::new();
        assert!(kv.get(key.as_bytes(), &mut got).unwrap());
        assert_eq!(got, value, "size {size}");
        assert_eq!(kv.exists(key.as_bytes()).unwrap(), Some(*size as u64));
        let mut buffer = vec![0; *size];
        assert_eq!(kv.get_into(key.as_bytes(), &mut buffer).unwrap(), Some(*size));
        assert_eq!(buffer, value);
    }
    assert_eq!(kv.length().unwrap(), sizes.len() as u64);
    // More than both servers have.
    let too_large = vec![0; (128 << 20) + 1];
    assert_eq!(status(kv.put(b"big", &too_large)), Status::ValueTooLarge);
    assert_eq!(status(kv.put(&[b'k'; 4097], b"v")), Status::KeyTooLarge);
}

#[test]
fn every_operation_of_a_kv_does_what_it_says() {
    let cluster = Cluster::start(1, 64 << 20, 1 << 20);
    let (client, job) = cluster.job("ops");
    prefix(&client, &job, "a", 0);
    let kv = kv(&client, &job, "a", 3);
    let mut value = Vec::new();
    assert!(!kv.get(b"k", &mut value).unwrap());
    assert_eq!(status(kv.update(b"k", b"1")), Status::KeyNotFound);
    kv.insert(b"k", b"1").unwrap();
    assert_eq!(status(kv.insert(b"k", b"2")), Status::KeyExists);
    assert_eq!(kv.update(b"k", b"2").unwrap(), b"1");
    assert_eq!(kv.upsert(b"k", b"3").unwrap().as_deref(), Some(&b"2"[..]));
    assert_eq!(kv.upsert(b"new", b"x").unwrap(), None);
    let found = kv.compare_and_swap(b"k", Some(b"9"), b"4").unwrap();
    assert_eq!(found, Swap::Found(Some(b"3".to_vec())));
    assert_eq!(kv.compare_and_swap(b"k", Some(b"3"), b"4").unwrap(), Swap::Done);
    assert_eq!(kv.compare_and_swap(b"k", None, b"5").unwrap(), Swap::Found(Some(b"4".to_vec())));
    assert_eq!(kv.compare_and_swap(b"none", None, b"5").unwrap(), Swap::Done);
    assert_eq!(kv.take(b"k").unwrap().as_deref(), Some(&b"4"[..]));
    assert!(!kv.delete(b"k").unwrap());
    assert!(kv.delete(b"new").unwrap());
    assert_eq!(kv.length().unwrap(), 1);
}

#[test]
fn a_scan_brings_every_entry_once_over_all_blocks() {
    let cluster = Cluster::start(2, 64 << 20, 64 * KIB);
    let (client, job) = cluster.job("scan");
    prefix(&client, &job, "a", 0);
    let kv = kv(&client, &job, "a", 8);
    for i in 0..2000u32 {
        kv.put(format!("k{i:05}").as_bytes(), &i.to_le_bytes()).unwrap();
    }
    let (mut cursor, mut seen) = (Some(0), Vec::new());
    while let Some(at) = cursor {
        let page = kv.scan(at, b"k01", false, 1000).unwrap();
        seen.extend(page.entries);
        cursor = page.next;
    }
    seen.sort();
    assert_eq!(seen.len(), 1000);
    assert!(seen.windows(2).all(|w| w[0].0 < w[1].0), "an entry came twice");
    assert_eq!(seen[7].1, 1007u32.to_le_bytes());
}

#[test]
fn a_file_grows_over_many_blocks_and_an_old_handle_reads_it_all() {
    let cluster = Cluster::start(2, 64 << 20, 64 * KIB);
    let (client, job) = cluster.job("file");
    prefix(&client, &job, "a", 0);
    let writer = file(&client, &job, "a:log");
    // Opened while the file had one empty block: every later one is learned from `Moved`.
    let reader = client.open_file(job.job, "a:log").unwrap();
    let content = noise(1, 1 << 20);
    let mut offset = 0;
    for (i, piece) in content.chunks(5000).enumerate() {
        assert_eq!(writer.append(piece).unwrap(), offset, "append {i}");
        offset += piece.len() as u64;
    }
    assert_eq!(reader.size().unwrap(), content.len() as u64);
    let mut got = vec![0; content.len() + 100];
    assert_eq!(reader.read_into(0, &mut got).unwrap(), content.len());
    assert!(got[..content.len()] == content[..], "the bytes differ");
    let mut middle = vec![0; 100_000];
    assert_eq!(reader.read_into(333_333, &mut middle).unwrap(), 100_000);
    assert!(middle == content[333_333..433_333], "the bytes differ");
    assert_eq!(writer.seal().unwrap(), content.len() as u64);
    assert_eq!(status(reader.append(b"more")), Status::Sealed);
    assert!(reader.sealed().unwrap());
    assert_eq!(status(writer.append(&noise(2, 8193))), Status::Sealed);
}

/// Whole writes fill their blocks, with one and with several writers, and each writer's bytes are in order.
#[test]
fn writers_fill_blocks_and_keep_their_order() {
    const BLOCK: u64 = 64 << 10;
    const WORDS: u64 = 96 << 10;
    let cluster = Cluster::start(2, 64 << 20, BLOCK);
    let (client, job) = cluster.job("fill");
    prefix(&client, &job, "a", 0);
    let alone = file(&client, &job, "a:alone");
    let content = noise(7, (5 * BLOCK + 12_345) as usize);
    for part in [&content[..3], &content[3..200_000], &content[200_000..]] {
        alone.write_all(part).unwrap();
    }
    let mut got = vec![0; content.len() + 1];
    let reader = client.open_file(job.job, "a:alone").unwrap();
    assert_eq!(reader.structure().blocks(), 6, "no block but the last has room left");
    assert_eq!(reader.read_into(0, &mut got).unwrap(), content.len());
    assert!(got[..content.len()] == content[..], "the bytes differ");

    file(&client, &job, "a:many");
    let words = |writer: u64| {
        let all = (0..WORDS).map(|n| (writer << 32 | n).to_le_bytes());
        all.collect::<Vec<_>>().concat()
    };
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let file = client.open_file(job.job, "a:many").unwrap();
            scope.spawn(move || {
                for part in words(writer).chunks(200_000) {
                    file.write_all(part).unwrap();
                }
            });
        }
    });
    let reader = client.open_file(job.job, "a:many").unwrap();
    let mut got = vec![0; 3 * WORDS as usize * 8 + 1];
    assert_eq!(reader.read_into(0, &mut got).unwrap(), got.len() - 1);
    let mut next = [0; 3];
    for word in got[..3 * WORDS as usize * 8].chunks(8) {
        let word = u64::from_le_bytes(word.try_into().unwrap());
        let next = &mut next[(word >> 32) as usize];
        assert_eq!(word as u32, *next, "of writer {}", word >> 32);
        *next += 1;
    }
    assert_eq!(next, [WORDS as u32; 3]);
}

#[test]
fn appends_of_many_writers_are_whole_and_without_gaps() {
    let cluster = Cluster::start(2, 64 << 20, 1 << 20);
    let (client, job) = cluster.job("appenders");
    prefix(&client, &job, "a", 0);
    file(&client, &job, "a");
    // Small and large ones: the large are filled in place while others append behind them.
    let record = |writer: u64, i: u64| noise(writer * 1000 + i, [17, 900, 70_000][i as usize % 3]);
    let mut placed: Vec<(u64, Vec<u8>)> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let file = client.open_file(job.job, "a").unwrap();
                scope.spawn(move || {
                    let append = |i| {
                        let bytes = record(writer, i);
                        (file.append(&bytes).unwrap(), bytes)
                    };
                    (0..60).map(append).collect::<Vec<_>>()
                })
            })
            .collect();
        writers.into_iter().flat_map(|w| w.join().unwrap()).collect()
    });
    placed.sort();
    let content: Vec<u8> = placed.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    let mut at = 0;
    for (offset, bytes) in &placed {
        assert_eq!(*offset, at, "a gap or an overlap");
        at += bytes.len() as u64;
    }
    let reader = client.open_file(job.job, "a").unwrap();
    let mut got = vec![0; content.len()];
    assert_eq!(reader.read_into(0, &mut got).unwrap(), content.len());
    assert!(got == content, "the bytes differ");
}

#[test]
fn memory_without_a_free_block_is_told_and_harms_nothing() {
    let cluster = Cluster::start(1, 16 * 64 * KIB, 64 * KIB);
    let (client, job) = cluster.job("full");
    prefix(&client, &job, "a", 0);
    let safe = kv(&client, &job, "a:safe", 1);
    safe.put(b"k", b"v").unwrap();
    let log = file(&client, &job, "a:log");
    let piece = noise(1, 8000);
    let mut written = 0u64;
    let refused = loop {
        match log.append(&piece) {
            Ok(_) => written += piece.len() as u64,
            Err(e) => break e,
        }
        assert!(written < 2 << 20, "more was written than there is memory");
    };
    assert_eq!(refused.status, Status::OutOfMemory, "{refused}");
    assert!(refused.message.contains("free"), "{refused}");
    assert_eq!(log.size().unwrap(), written);
    let mut value = Vec::new();
    assert!(safe.get(b"k", &mut value).unwrap());
    // A full store refuses puts and retains its entries.
    let mut kept = 0u32;
    let full = loop {
        match safe.put(format!("n{kept}").as_bytes(), &noise(kept as u64, 1000)) {
            Ok(_) => kept += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(full.status, Status::OutOfMemory, "{full}");
    assert!(full.message.contains("cannot be split"), "{full}");
    assert!(kept > 100, "what is kept for moves was used: {kept}");
    for i in 0..kept {
        assert!(safe.get(format!("n{i}").as_bytes(), &mut value).unwrap());
        assert_eq!(value, noise(i as u64, 1000));
    }
    // Memory that is given back can be had again.
    client.remove_structure(job.job, "a:safe").unwrap();
    eventually("the freed block serves the file", || log.append(&piece).is_ok());
}

#[test]
fn a_reader_of_an_expired_prefix_learns_which_lease_and_how_late() {
    let cluster = Cluster::start(1, 16 << 20, 64 * KIB);
    let (client, job) = cluster.job("lease");
    prefix(&client, &job, "map", 200);
    let log = file(&client, &job, "map:log");
    log.append(b"bytes").unwrap();
    let mut buffer = [0; 5];
    let mut last = None;
    eventually("the lease ends", || match log.read_into(0, &mut buffer) {
        Ok(n) => n != 5,
        Err(e) => {
            last = Some(e);
            true
        }
    });
    let e = last.expect("never an empty read");
    assert_eq!(e.status, Status::LeaseExpired, "{e}");
    assert!(e.message.contains("map") && e.message.contains("200 ms"), "{e}");
    assert!(e.message.contains("ms overdue without a renewal"), "{e}");
}

#[test]
fn traffic_renews_its_own_task_and_looking_does_not() {
    let cluster = Cluster::start(1, 16 << 20, 64 * KIB);
    let (client, job) = cluster.job("traffic");
    let task = prefix(&client, &job, "task", 400);
    prefix(&client, &job, "other", 400);
    let worker = cluster.client(&job.token, task);
    let own = file(&worker, &job, "task");
    let others = file(&worker, &job, "other");
    let mut buffer = [0; 1];
    // There are no renewals, only the worker's traffic, which concerns both structures.
    let mut gone = None;
    eventually("the other prefix ends", || {
        own.append(b"x").unwrap();
        match others.read_into(0, &mut buffer) {
            Ok(_) => false,
            Err(e) => {
                gone = Some(e.status);
                true
            }
        }
    });
    assert_eq!(gone, Some(Status::LeaseExpired));
    own.append(b"x").expect("a task that works keeps its own prefix");
}

#[test]
fn a_dead_server_is_told_at_once_and_a_new_one_is_used() {
    let mut cluster = Cluster::start(1, 16 << 20, 64 * KIB);
    let (client, job) = cluster.job("dead");
    prefix(&client, &job, "a", 0);
    let kv_before = kv(&client, &job, "a:kv", 1);
    kv_before.put(b"k", b"v").unwrap();
    cluster.servers.clear();
    let mut value = Vec::new();
    let e = kv_before.get(b"k", &mut value).unwrap_err();
    assert_eq!(e.status, Status::DataLost, "{e}");
    assert!(e.message.contains("a:kv"), "{e}");
    let e = client.create_kv(job.job, "a:new", 1, false).map(drop).unwrap_err();
    assert_eq!(e.status, Status::OutOfMemory, "{e}");
}

/// The block that had been refused more memory refused the next write as well, by the same answer.
#[test]
fn write_after_a_quota_was_raised_is_refused_by_no_old_answer() {
    // A small block is one unit, and a large one grows in place.
    [64 * KIB, 1024 * KIB].into_iter().for_each(write_after_a_quota_was_raised);
}

fn write_after_a_quota_was_raised(block: u64) {
    let cluster = Cluster::start(1, 64 << 20, block);
    let length = block as usize / 9;
    let (client, job) = cluster.job("quota");
    let clock = Clock::start();
    for kind in ["kv", "batch", "file", "queue"] {
        prefix(&client, &job, kind, 0);
        let address = format!("{kind}:it");
        let mut next = 0;
        let mut write: Box<dyn FnMut(usize) -> Result<(), Error>> = match kind {
            "kv" => {
                let store = kv(&client, &job, &address, 1);
                Box::new(move |length| {
                    next += 1;
                    store.put(&u64::to_le_bytes(next), &vec![7; length]).map(drop)
                })
            }
            "batch" => {
                let store = kv(&client, &job, &address, 1);
                Box::new(move |length| {
                    next += 2;
                    let keys = [next, next + 1].map(u64::to_le_bytes);
                    let value = vec![7; length / 2];
                    let results =
                        store.multi_put(&keys.each_ref().map(|key| (&key[..], &value[..])));
                    results.into_iter().try_for_each(|result| result.map(drop))
                })
            }
            "file" => {
                let log = file(&client, &job, &address);
                Box::new(move |length| log.append(&vec![7; length]).map(drop))
            }
            _ => {
                let queue = client.create_queue(job.job, &address, 0, 0, false).unwrap();
                Box::new(move |length| queue.put(&vec![7; length], Duration::ZERO))
            }
        };
        write(100).unwrap();
        let quota = QuotaOf::Prefix(job.job, format!("/{kind}"));
        client.set_quota(&quota, 2).unwrap();
        let refused = (0..100).find_map(|_| write(length).err()).unwrap();
        assert_eq!(refused.status, Status::QuotaExceeded, "{kind}: {refused}");
        client.set_quota(&quota, 4).unwrap();
        // The answer is old then.
        clock.sleep_until(clock.now() + Duration::from_millis(400));
        write(length).unwrap_or_else(|e| panic!("{kind} of {block} bytes: {e}"));
    }
}

/// A client got `Unauthenticated`, from the server of another cluster at the address of its dead one.
#[test]
fn other_processes_at_the_address_of_a_dead_server_do_not_speak_for_it() {
    let other = Cluster::start(0, 16 << 20, 64 * KIB);
    for foreign in [false, true] {
        let mut cluster = Cluster::start(1, 16 << 20, 64 * KIB);
        let (client, job) = cluster.job("dead");
        prefix(&client, &job, "a", 0);
        let (store, log) = (kv(&client, &job, "a:kv", 1), file(&client, &job, "a:log"));
        store.put(b"k", b"v").unwrap();
        log.append(b"line").unwrap();
        let address = cluster.servers[0].address();
        cluster.servers.clear();
        let _server = foreign.then(|| {
            let (at, token) = (other.controller.address(), other.controller.token());
            let options = server_options(at, token, 16 << 20, 64 * KIB);
            MemoryServer::start(&ServerOptions { listen: address, ..options }, PATIENCE).unwrap()
        });
        let web = (!foreign).then(|| TcpListener::bind(address).unwrap());
        let ends = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let (ends, web) = (&ends, web.as_ref());
            if let Some(listener) = web {
                threads.spawn(move || {
                    for stream in listener.incoming() {
                        if ends.load(SeqCst) {
                            return;
                        }
                        let (mut stream, mut line) = (stream.unwrap(), [0; 64]);
                        // A reset would drop the answer: the request is read, and the close awaited.
                        let _ = stream.read(&mut line);
                        let answer = b"HTTP/1.1 400 Bad Request\r\nServer: web\r\n\r\n";
                        let _ = stream.write_all(answer);
                        let _ = stream.shutdown(Shutdown::Write);
                        let _ = stream.read_to_end(&mut Vec::new());
                    }
                });
            }
            let mut value = Vec::new();
            let lost = [store.put(b"k", b"w").map(drop), store.get(b"k", &mut value).map(drop)];
            let appended = log.append(b"line").map(drop);
            ends.store(true, SeqCst);
            drop(web.map(|listener| TcpStream::connect(listener.local_addr().unwrap())));
            for result in lost.into_iter().chain([appended]) {
                let e = result.unwrap_err();
                assert_eq!(e.status, Status::DataLost, "{e}");
            }
        });
    }
}

#[test]
fn permissions_hold_on_open_handles_within_a_second() {
    use honeycomb_types::Verbs;
    let cluster = Cluster::start(1, 16 << 20, 64 * KIB);
    let (client, job) = cluster.job("permissions");
    prefix(&client, &job, "a", 0);
    let reader_task = prefix(&client, &job, "reader", 0);
    let log = file(&client, &job, "a:log");
    log.append(b"x").unwrap();
    let token =
        honeycomb_wire::attenuate(&job.token, honeycomb_wire::token::Caveat::Task(reader_task));
    let reader = cluster.client(&token.unwrap(), reader_task);
    let seen = reader.open_file(job.job, "a:log").unwrap();
    let mut buffer = [0; 1];
    assert_eq!(seen.read_into(0, &mut buffer).unwrap(), 1);
    assert_eq!(status(seen.append(b"y")), Status::PermissionDenied);
    client.set_permissions(job.job, "a", Verbs::ALL, Verbs::NONE).unwrap();
    eventually("the reader is shut out", || {
        seen.read_into(0, &mut buffer).is_err_and(|e| e.status == Status::PermissionDenied)
    });
    log.append(b"z").expect("the owner goes on");
}

/// The harness holds back a test's output until the test has ended, and a panic of a node's thread ends the
/// process before: once the binary of these tests ended without a word.
#[test]
fn panic_of_a_node_is_written_before_its_process_ends() {
    const CHILD: &str = "HONEYCOMB_TEST_NODE_PANICS";
    if std::env::var_os(CHILD).is_some() {
        let _cluster = Cluster::start(1, 1 << 20, 64 * KIB);
        let node = std::thread::spawn(|| {
            let _guard = honeycomb_env::AbortOnPanic("tested");
            panic!("a planted panic");
        });
        node.join().unwrap();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "cluster::panic_of_a_node_is_written_before_its_process_ends"]);
    let ended = child.env(CHILD, "1").output().unwrap();
    let written = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.signal(), Some(Signal::ABORT.as_raw()), "{written}");
    let panic = written.contains("cluster.rs") && written.contains("a planted panic");
    assert!(panic && written.contains("the tested thread found"), "{written}");
}
