//! Values of more than an eighth of a block.

use honeycomb_client::{Atomic, Client, JobTicket, Kv, Swap};
use honeycomb_e2e::{Cluster, KIB, LEASE_MS, eventually, kv, noise, prefix, status};
use honeycomb_types::JobId;
use honeycomb_types::limits::listed_value_max;
use honeycomb_wire::Status;
use honeycomb_wire::batch::BatchOp;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

fn blocks(client: &Client, job: JobId) -> u32 {
    client.tree(job).unwrap().iter().flat_map(|p| &p.structures).map(|s| s.blocks).sum()
}

fn used(client: &Client, job: JobId) -> u64 {
    client.tree(job).unwrap().iter().flat_map(|p| &p.structures).map(|s| s.bytes_used).sum()
}

fn start(name: &str, servers: usize, block_size: u64) -> (Cluster, Client, JobTicket) {
    let cluster = Cluster::start(servers, 512 * block_size.min(512 * KIB), block_size);
    let (client, job) = cluster.job(name);
    prefix(&client, &job, "/t", LEASE_MS);
    (cluster, client, job)
}

fn get(store: &Kv, key: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![1, 2, 3];
    store.get(key, &mut out).unwrap().then_some(out)
}

#[test]
fn a_value_of_any_size_up_to_the_limit_comes_back() {
    let (_cluster, client, job) = start("sizes", 2, 64 * KIB);
    let store = kv(&client, &job, "/t", 1);
    let (plain, listed) = (store.plain_limit(), listed_value_max(64 * KIB) as usize);
    assert_eq!((plain, listed), (8 * 1024, 36 * 8 * 1024));
    assert!(store.value_limit() > 22 << 30);
    // Up to a quarter of the memory.
    let most = 16 << 20;
    let small = [plain - 1, plain, plain + 1, 2 * plain, 3 * plain + 5, 10 * plain + 1, most];
    let beside = [listed, listed + 1, 292 * plain, 292 * plain + 1, 5 << 20];
    let sizes: Vec<usize> = small.into_iter().chain(beside).collect();
    for (n, size) in sizes.iter().copied().enumerate() {
        let key = format!("key-{n}");
        assert!(!store.put(key.as_bytes(), &noise(n as u64, size)).unwrap());
    }
    // A new client knows no block and no server.
    let other = client.open_kv(job.job, "/t").unwrap();
    for (n, size) in sizes.iter().copied().enumerate() {
        let key = format!("key-{n}");
        assert_eq!(get(&other, key.as_bytes()), Some(noise(n as u64, size)), "{size}");
        assert_eq!(store.exists(key.as_bytes()).unwrap(), Some(size as u64));
        let mut buffer = vec![0; size];
        assert_eq!(other.get_into(key.as_bytes(), &mut buffer).unwrap(), Some(size));
        assert_eq!(buffer, noise(n as u64, size));
    }
    let mut short = vec![0; most - 1];
    assert_eq!(status(store.get_into(b"key-6", &mut short)), Status::InvalidArgument);
    let memory = 2 * 512 * 64 * KIB as usize;
    let refused = store.put(b"key-0", &vec![0; memory + 1]).unwrap_err();
    assert_eq!(refused.status, Status::ValueTooLarge);
    assert!(refused.message.contains(&memory.to_string()), "{refused}");
    assert!(refused.message.contains(&(memory + 1).to_string()), "{refused}");
    assert_eq!(store.length().unwrap(), sizes.len() as u64);
    // Lists and all that they name are dropped with the entries.
    (0..sizes.len()).for_each(|n| assert!(store.delete(format!("key-{n}").as_bytes()).unwrap()));
    eventually("the extents are dropped", || used(&client, job.job) < 4 * KIB);
    eventually("their blocks are returned", || blocks(&client, job.job) <= 2);
}

#[test]
fn extents_of_values_that_are_no_more_are_dropped_and_their_blocks_given_back() {
    let (cluster, client, job) = start("drops", 2, 256 * KIB);
    let store = kv(&client, &job, "/t", 1);
    let value = |n: u64| noise(n, 100_000 + n as usize * 1000);
    for n in 0..40 {
        store.put(format!("key-{n}").as_bytes(), &value(n)).unwrap();
    }
    let grown = blocks(&client, job.job);
    assert!(grown > 18, "{grown} blocks hold 4.8 MB");
    // In place of a large value comes a large one, a small one, none.
    for n in 0..40 {
        let key = format!("key-{n}");
        match n % 4 {
            0 => assert!(store.put(key.as_bytes(), &value(n + 1)).unwrap()),
            1 => assert!(store.put(key.as_bytes(), b"small").unwrap()),
            2 => assert!(store.delete(key.as_bytes()).unwrap()),
            _ => {}
        }
    }
    for n in 0..40 {
        let expected = match n % 4 {
            0 => Some(value(n + 1)),
            1 => Some(b"small".to_vec()),
            2 => None,
            _ => Some(value(n)),
        };
        assert_eq!(get(&store, format!("key-{n}").as_bytes()), expected, "{n}");
    }
    let held: u64 = (0..40).filter(|n| n % 4 == 3).map(|n| value(n).len() as u64).sum();
    let held = held + (0..40).step_by(4).map(|n| value(n + 1).len() as u64).sum::<u64>();
    eventually("only what is named is held", || used(&client, job.job) < held + 64 * KIB);
    for n in 0..40 {
        store.delete(format!("key-{n}").as_bytes()).unwrap();
    }
    eventually("empty blocks are given back", || blocks(&client, job.job) == 1);
    // And there is room again.
    store.put(b"again", &value(7)).unwrap();
    assert_eq!(get(&store, b"again"), Some(value(7)));
    client.remove_structure(job.job, "/t").unwrap();
    eventually("all blocks are free", || {
        let status = cluster.client(cluster.controller.token(), Default::default()).status();
        status.is_ok_and(|s| s.free == s.blocks)
    });
}

#[test]
fn what_needs_the_value_at_the_block_says_so_and_changes_nothing() {
    let (_cluster, client, job) = start("refusals", 1, 64 * KIB);
    let store = kv(&client, &job, "/t", 1);
    let big = noise(1, 50_000);
    store.put(b"k", &big).unwrap();
    assert_eq!(status(store.update(b"k", b"x")), Status::ValueTooLarge);
    assert_eq!(status(store.upsert(b"k", b"x")), Status::ValueTooLarge);
    assert_eq!(status(store.update(b"k", &big)), Status::ValueTooLarge);
    assert_eq!(status(store.append(b"k", b"x")), Status::ValueTooLarge);
    assert_eq!(status(store.add(b"k", 1)), Status::ValueTooLarge);
    assert_eq!(status(store.compare_and_swap(b"k", Some(b"x"), b"y")), Status::ValueTooLarge);
    assert_eq!(status(store.compare_and_swap(b"k", None, b"y")), Status::ValueTooLarge);
    assert_eq!(status(store.compare_and_swap(b"new", None, &big)), Status::ValueTooLarge);
    let swap = |expected| [BatchOp::Swap { key: b"k", expected, new: b"y" }];
    for expected in [Some(&b""[..]), Some(&b"x"[..]), None] {
        assert_eq!(status(store.batch(&swap(expected)).remove(0)), Status::ValueTooLarge);
        let refused = store.atomic(&swap(expected)).unwrap();
        let Atomic::Refused { error, found, .. } = refused else { panic!("applied") };
        assert_eq!((error.status, found), (Status::ValueTooLarge, None), "{error}");
        assert!(error.message.contains("50000"), "{error}");
    }
    let e = store.update(b"k", b"x").unwrap_err();
    assert!(e.message.contains("50000") && e.message.contains("8192"), "{e}");
    assert_eq!(status(store.insert(b"k", &big)), Status::KeyExists);
    assert_eq!(get(&store, b"k"), Some(big.clone()));
    assert!(store.delete(b"k").unwrap());
    store.insert(b"k", &big).unwrap();
    assert_eq!(get(&store, b"k"), Some(big));
    assert_eq!(store.compare_and_swap(b"new", None, b"y").unwrap(), Swap::Done);
    // Refused puts leave no memory behind.
    eventually("what was refused is dropped", || used(&client, job.job) < 64 * KIB);
}

/// Of several clients that take a value exactly one gets it, whatever its size, and its memory is freed.
#[test]
fn a_value_of_any_size_is_taken_by_one() {
    const TAKERS: usize = 4;
    let (cluster, client, job) = start("takes", 2, 64 * KIB);
    let store = kv(&client, &job, "/t", 2);
    let key = |n: u64| format!("key-{n}").into_bytes();
    let value = |n: u64| noise(n, if n.is_multiple_of(4) { 100 } else { 50_000 });
    for n in 0..12 {
        store.put(&key(n), &value(n)).unwrap();
    }
    let take_all = || {
        let own = cluster.client(&job.token, Default::default()).open_kv(job.job, "/t").unwrap();
        let taken = (0..12).filter_map(|n| Some((n, own.take(&key(n)).unwrap()?)));
        taken.collect::<Vec<_>>()
    };
    let mut taken: Vec<(u64, Vec<u8>)> = std::thread::scope(|scope| {
        let takers: Vec<_> = (0..TAKERS).map(|_| scope.spawn(take_all)).collect();
        takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect()
    });
    taken.sort();
    assert_eq!(taken, (0..12).map(|n| (n, value(n))).collect::<Vec<_>>());
    assert_eq!(store.length().unwrap(), 0);
    assert_eq!(store.take(&key(1)).unwrap(), None);
    eventually("the memory is back", || used(&client, job.job) < 64 * KIB);

    // One that is replaced while it is taken: what is taken was there, and is there no more.
    let (puts, done) = (30u64, std::sync::atomic::AtomicBool::new(false));
    let take_one = || {
        let own = cluster.client(&job.token, Default::default()).open_kv(job.job, "/t").unwrap();
        let mut taken = Vec::new();
        loop {
            let last = done.load(std::sync::atomic::Ordering::SeqCst);
            match own.take(b"hot").unwrap() {
                Some(value) => taken.push(value),
                None if last => return taken,
                None => {}
            }
        }
    };
    let taken: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let takers: Vec<_> = (0..2).map(|_| scope.spawn(take_one)).collect();
        for n in 0..puts {
            store.put(b"hot", &value(n)).unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::SeqCst);
        takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect()
    });
    let number = |taken: &Vec<u8>| (0..puts).find(|n| value(*n) == *taken).expect("it was put");
    let mut numbers: Vec<u64> = taken.iter().map(number).collect();
    numbers.sort_unstable();
    assert!(numbers.windows(2).all(|two| two[0] < two[1]), "taken twice: {numbers:?}");
    assert_eq!(numbers.last(), Some(&(puts - 1)), "the last one is not replaced");
}

/// With the smallest blocks, a fifth of the memory needs lists of lists of extents.
#[test]
fn value_of_a_fifth_of_memory_has_lists_of_lists() {
    let cluster = Cluster::start(2, 3200 * 64 * KIB, 64 * KIB);
    let (client, job) = cluster.job("deep");
    prefix(&client, &job, "/t", LEASE_MS);
    let store = kv(&client, &job, "/t", 1);
    let length = 35 * 292 * 8 * KIB as usize + 1;
    let value = noise(1, length);
    store.put(b"key", &value).unwrap();
    store.put(b"other", b"small").unwrap();
    assert_eq!(store.exists(b"key").unwrap(), Some(length as u64));
    let other = client.open_kv(job.job, "/t").unwrap();
    assert!(get(&other, b"key").is_some_and(|found| found == value), "it differs");
    assert!(other.take(b"key").unwrap().is_some_and(|taken| taken == value), "it differs");
    eventually("the extents are dropped", || used(&client, job.job) < 4 * KIB);
    eventually("their blocks are returned", || blocks(&client, job.job) <= 2);
}

#[test]
fn many_keys_at_a_time_and_scans_bring_large_values_too() {
    let (_cluster, client, job) = start("many", 2, 64 * KIB);
    let store = kv(&client, &job, "/t", 2);
    let value = |n: u64| noise(n, if n.is_multiple_of(3) { 30_000 } else { 100 });
    let entries: Vec<(String, Vec<u8>)> = (0..30).map(|n| (format!("key-{n}"), value(n))).collect();
    let all: Vec<(&[u8], &[u8])> =
        entries.iter().map(|(key, value)| (key.as_bytes(), &value[..])).collect();
    for stored in store.multi_put(&all) {
        assert!(!stored.unwrap());
    }
    let keys: Vec<&[u8]> = all.iter().map(|(key, _)| *key).collect();
    for (found, (_, value)) in store.multi_get(&keys).into_iter().zip(&entries) {
        assert_eq!(found.unwrap().as_ref(), Some(value));
    }
    let mut found = std::collections::BTreeMap::new();
    for keys_only in [false, true] {
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let page = store.scan(at, b"key", keys_only, 10_000).unwrap();
            for (key, value) in page.entries {
                match keys_only {
                    false => assert!(found.insert(key, value).is_none()),
                    true => assert!(found.contains_key(&key) && value.is_empty()),
                }
            }
            cursor = page.next;
        }
    }
    assert_eq!(found.len(), 30);
    for (key, value) in &entries {
        assert_eq!(&found[key.as_bytes()], value);
    }
    let batch: Vec<BatchOp<'_>> = keys.iter().map(|&key| BatchOp::Get { key }).collect();
    for (done, (_, value)) in store.batch(&batch).into_iter().zip(&entries) {
        assert_eq!(done.unwrap(), honeycomb_client::Done::Read(Some(value.clone())));
    }
    for deleted in store.multi_delete(&keys) {
        assert!(deleted.unwrap());
    }
    assert_eq!(store.length().unwrap(), 0);
    eventually("nothing is held", || used(&client, job.job) < 8 * KIB);
}

/// Pieces of more than 64 KiB go straight into their block, and those of several servers side by side.
#[test]
fn values_that_fill_many_blocks_come_back_and_their_memory_goes() {
    let (_cluster, client, job) = start("streams", 2, 2048 * KIB);
    let store = kv(&client, &job, "/t", 1);
    let value = |n: u64| noise(n, 11_000_000 + 100_003 * n as usize);
    for n in 0..2 {
        store.put(format!("key-{n}").as_bytes(), &value(n)).unwrap();
    }
    assert!(blocks(&client, job.job) > 11, "they fill blocks");
    for n in 0..2 {
        assert!(get(&store, format!("key-{n}").as_bytes()) == Some(value(n)), "it differs");
    }
    // As many writers as threads, of the same and of other keys.
    std::thread::scope(|threads| {
        for thread in 0..4u64 {
            let (client, value) = (&client, &value);
            threads.spawn(move || {
                let store = client.open_kv(job.job, "/t").unwrap();
                for n in 0..4 {
                    store.put(b"shared", &value(n)).unwrap();
                    let own = format!("own-{thread}");
                    store.put(own.as_bytes(), &value(thread + n)).unwrap();
                    assert!(get(&store, own.as_bytes()) == Some(value(thread + n)), "it differs");
                }
            });
        }
    });
    assert!(get(&store, b"shared") == Some(value(3)), "the last ones of all threads are alike");
    let keys = store.scan(0, b"", true, 1 << 20).unwrap().entries;
    assert_eq!(keys.len(), 7);
    for (key, _) in keys {
        assert!(store.delete(&key).unwrap());
    }
    eventually("one block is left", || blocks(&client, job.job) == 1);
}

/// The controller learns from reports what a block holds, and would give the one again that was just
/// filled: every piece of the next round was sent whole and refused.
#[test]
fn a_piece_is_sent_once() {
    let (cluster, client, job) = start("once", 1, 1024 * KIB);
    let store = kv(&client, &job, "/t", 1);
    let operator = cluster.client(cluster.controller.token(), Default::default());
    let value = noise(1, 5 * 1024 * KIB as usize);
    let pieces = value.len().div_ceil(store.plain_limit()) as u64;
    let mut requests = Vec::new();
    for n in 1..=3u64 {
        store.put(format!("key-{n}").as_bytes(), &value).unwrap();
        // A report contains the present bytes and all requests until then.
        let held = n * value.len() as u64;
        eventually("it is reported", || operator.status().unwrap().servers[0].bytes_used > held);
        requests.push(operator.status().unwrap().servers[0].requests);
    }
    // The first one made the connections.
    for asked in requests.windows(2).map(|pair| pair[1] - pair[0]) {
        assert!((pieces..pieces + 6).contains(&asked), "{asked} requests for {pieces} pieces");
    }
}

/// Each reader sees one of the values that were written, whole, and never an older one than before.
#[test]
fn a_reader_sees_one_value_while_it_is_replaced() {
    let (_cluster, client, job) = start("mixed", 2, 64 * KIB);
    let store = kv(&client, &job, "/t", 1);
    let value = |n: u64| vec![n as u8; 20_000 + (n % 7) as usize * 9000];
    store.put(b"k", &value(0)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                threads.spawn(|| {
                    let (store, mut last, mut seen) =
                        (client.open_kv(job.job, "/t").unwrap(), 0, 0u64);
                    while !stop.load(Relaxed) {
                        let mut out = Vec::new();
                        match store.get(b"k", &mut out) {
                            Ok(found) => assert!(found),
                            Err(e) if e.status == Status::Busy => continue,
                            Err(e) => panic!("{e}"),
                        }
                        let n = out[0] as u64;
                        assert_eq!(out, value(n), "bytes of two values");
                        assert!(n >= last, "{n} after {last}");
                        (last, seen) = (n, seen + 1);
                    }
                    seen
                })
            })
            .collect();
        for n in 1..=200 {
            store.put(b"k", &value(n)).unwrap();
        }
        stop.store(true, Relaxed);
        let seen: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        assert!(seen > 0);
    });
    assert_eq!(get(&store, b"k"), Some(value(200)));
    eventually("one value is held", || used(&client, job.job) < 64 * KIB);
}

/// Entries of large values move like other entries, and their extents do not move.
#[test]
fn a_store_splits_and_merges_with_large_values_in_it() {
    let (_cluster, client, job) = start("moves", 2, 256 * KIB);
    let store = kv(&client, &job, "/t", 1);
    let large = |n: u64| noise(n, 40_000 + n as usize * 100);
    for n in 0..20 {
        store.put(format!("large-{n}").as_bytes(), &large(n)).unwrap();
    }
    let before = blocks(&client, job.job);
    for n in 0..600u64 {
        store.put(format!("fill-{n}").as_bytes(), &noise(n, 2000)).unwrap();
        let key = format!("large-{}", n % 20);
        if n % 50 == 7 {
            store.put(key.as_bytes(), &large(n % 20)).unwrap();
        }
        if n % 10 == 0 {
            assert_eq!(get(&store, key.as_bytes()), Some(large(n % 20)));
        }
    }
    assert!(blocks(&client, job.job) >= before + 4, "it has split");
    for n in 0..20 {
        assert_eq!(get(&store, format!("large-{n}").as_bytes()), Some(large(n)));
    }
    for n in 0..600u64 {
        assert!(store.delete(format!("fill-{n}").as_bytes()).unwrap());
    }
    let held: u64 = (0..20).map(|n| large(n).len() as u64).sum();
    eventually("it has merged", || blocks(&client, job.job) <= before);
    eventually("nothing else is held", || used(&client, job.job) < held + 128 * KIB);
    for n in 0..20 {
        assert_eq!(get(&store, format!("large-{n}").as_bytes()), Some(large(n)));
        assert!(store.delete(format!("large-{n}").as_bytes()).unwrap());
    }
    eventually("one block is left", || blocks(&client, job.job) == 1);
}

#[test]
fn a_server_with_extents_that_is_lost_is_told_as_data_lost() {
    let (mut cluster, client, job) = start("lost", 2, 64 * KIB);
    let store = kv(&client, &job, "/t", 1);
    store.put(b"small", b"here").unwrap();
    let mut n = 0u64;
    // Until both servers have some.
    let servers = |client: &Client| {
        let status = client.status().unwrap();
        status.servers.iter().filter(|s| s.bytes_used > 30_000).count()
    };
    let operator = cluster.client(cluster.controller.token(), Default::default());
    while servers(&operator) < 2 && n < 60 {
        store.put(format!("key-{n}").as_bytes(), &noise(n, 30_000)).unwrap();
        n += 1;
        eventually("it is reported", || used(&client, job.job) > n * 30_000);
    }
    assert_eq!(servers(&operator), 2, "after {n} values");
    let victim = cluster.servers.remove(1);
    drop(victim);
    let mut out = Vec::new();
    let lost = (0..n).filter(|n| match store.get(format!("key-{n}").as_bytes(), &mut out) {
        Ok(_) => false,
        Err(e) => {
            assert_eq!(e.status, Status::DataLost, "{e}");
            true
        }
    });
    assert!(lost.count() > 0);
    assert_eq!(status(store.put(b"more", &noise(1, 30_000))), Status::DataLost);
}
