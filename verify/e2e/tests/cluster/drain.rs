//! Servers are taken out: in this process, and as processes of the program.

use honeycomb_client::{Client, Heard};
use honeycomb_e2e::{
    Cluster, KIB, LEASE_MS, Stop, eventually, eventually_within, file, kv, noise, prefix, status,
};
use honeycomb_env::Clock;
use honeycomb_server::Departure;
use honeycomb_types::PrefixId;
use honeycomb_types::limits::EXTENTS_LEAVE_TELL;
use honeycomb_wire::Status;
use honeycomb_wire::messages::ServerInfo;
use honeycomb_wire::notice::{Filter, kinds};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// How long anything here may take.
const PATIENCE: Duration = Duration::from_secs(20);

fn whole(cluster: &Cluster) -> Client {
    cluster.client(cluster.controller.token(), PrefixId(0))
}

fn server(client: &Client, address: &str) -> Option<ServerInfo> {
    client.status().unwrap().servers.into_iter().find(|server| server.address == address)
}

/// Takes out the first server, which shall have nothing that cannot leave.
fn take_the_first_out(cluster: &mut Cluster) {
    let departures = cluster.servers[0].departures().unwrap();
    let address = cluster.servers[0].address().to_string();
    let whole = whole(cluster);
    whole.drain_server(&address, false).unwrap();
    assert_eq!(departures.recv_timeout(PATIENCE), Ok(Departure::Released));
    eventually("its membership ends", || server(&whole, &address).is_none());
    cluster.servers.remove(0).wait();
}

/// Waits until the drained servers are gone and all freed blocks of the last server are free: it confirms the
/// last blocks later.
fn one_is_left(cluster: &Cluster) {
    let client = whole(cluster);
    assert_eq!(client.status().unwrap().servers.len(), 1);
    eventually("what was freed is confirmed", || client.status().unwrap().quarantined == 0);
}

/// A server is drained while it has parts of large values: they are rewritten on other servers, new values
/// are placed there, and the server exits.
fn values_leave(controller_shards: u16) {
    // One of them has room for all of it.
    let mut cluster = Cluster::sharded(controller_shards, 2, 4096 * KIB, 64 * KIB);
    let departures = cluster.servers[0].departures().unwrap();
    let address = cluster.servers[0].address().to_string();
    // Jobs of every shard have data on both servers.
    let jobs: Vec<_> = (0..4).map(|n| cluster.job(&format!("job-{n}"))).collect();
    for (client, job) in &jobs {
        prefix(client, job, "old", LEASE_MS);
        for n in 0..4 {
            let store = kv(client, job, &format!("old:{n}"), 1);
            store.put(b"large", &noise(n, 10 * KIB as usize)).unwrap();
            if n == 1 {
                // Stores and their values lie on the two servers by turns; from here on the other way.
                file(client, job, "old:turn").append(b"moves").unwrap();
            }
        }
    }
    let client = whole(&cluster);
    assert!(server(&client, &address).is_some_and(|s| s.drain == 0 && s.drain_waits.is_empty()));
    client.drain_server(&address, false).unwrap();
    for (client, job) in &jobs {
        prefix(client, job, "new", LEASE_MS);
        file(client, job, "new").append(b"goes elsewhere").unwrap();
    }
    assert_eq!(departures.recv_timeout(PATIENCE), Ok(Departure::Released));
    eventually("its membership ends", || server(&client, &address).is_none());
    cluster.servers.remove(0).wait();
    for (client, job) in &jobs {
        let mut read = vec![0; 14];
        assert_eq!(client.open_file(job.job, "new").unwrap().read_into(0, &mut read).unwrap(), 14);
        assert_eq!(read, b"goes elsewhere");
        for n in 0..4 {
            let store = client.open_kv(job.job, &format!("old:{n}")).unwrap();
            assert!(store.get(b"large", &mut read).unwrap());
            assert!(read == noise(n, 10 * KIB as usize), "another value than was put");
        }
    }
}

#[test]
fn large_values_leave_a_server_that_is_taken_out() {
    values_leave(1);
}

#[test]
fn every_controller_shard_lets_it_go() {
    values_leave(2);
}

/// Large items are evacuated while they are put, reserved and taken, in a bounded queue: each is returned
/// once, in the order of the puts.
#[test]
fn large_items_leave_under_load() {
    let mut cluster = Cluster::start(3, 16 * 1024 * KIB, 64 * KIB);
    let (client, job) = cluster.job("job");
    prefix(&client, &job, "t", LEASE_MS);
    let queue = client.create_queue(job.job, "t:", 40, 0, false).unwrap();
    let open = || cluster.client(&job.token, PrefixId(0)).open_queue(job.job, "t:").unwrap();
    let item = |n: u64| {
        let mut item = noise(
            n,
            match n % 9 {
                0 | 3 | 6 => 100,
                // With lists of its extents in between.
                7 => 330_000,
                _ => 9_000 + (n % 5) as usize * 9_000,
            },
        );
        item[..8].copy_from_slice(&n.to_le_bytes());
        item
    };
    // Some are there, and one is reserved, before the server leaves.
    (0..30).for_each(|n| queue.put(&item(n), PATIENCE).unwrap());
    let held = queue.reserve(1, PATIENCE, PATIENCE).unwrap().remove(0);
    let (producing, consuming, stop) = (open(), open(), AtomicBool::new(false));
    let (put, got) = std::thread::scope(|scope| {
        let producer = scope.spawn(|| {
            let mut n = 30;
            while !stop.load(Relaxed) {
                producing.put(&item(n), PATIENCE).unwrap();
                n += 1;
            }
            producing.close().unwrap();
            n
        });
        let consumer = scope.spawn(|| {
            let mut got = Vec::new();
            loop {
                match consuming.get(PATIENCE) {
                    Ok(found) => got.push(found.expect("an item")),
                    Err(e) if e.status == Status::QueueClosed => return got,
                    Err(e) => panic!("{e}"),
                }
            }
        });
        {
            let _stop = Stop(&stop);
            take_the_first_out(&mut cluster);
        }
        let put = producer.join().unwrap();
        assert_eq!(queue.acknowledge(&[&held]).unwrap(), [true], "it is still held");
        (put, consumer.join().unwrap())
    });
    assert!(held.item == item(0), "it differs");
    let numbers = got.iter().map(|item| u64::from_le_bytes(item[..8].try_into().unwrap()));
    assert!(numbers.eq(1..put), "they are not all, once, in order");
    assert!(got.iter().zip(1..).all(|(got, n)| *got == item(n)), "an item differs");
}

/// Large values are evacuated while they are replaced, read and taken: every read answers one of the put
/// values, the last put value exists, and subscribers get puts and no other notifications.
#[test]
fn large_values_leave_under_load() {
    const KEYS: u64 = 24;
    let mut cluster = Cluster::start(3, 16 * 1024 * KIB, 64 * KIB);
    let (client, job) = cluster.job("job");
    prefix(&client, &job, "t", LEASE_MS);
    let store = kv(&client, &job, "t:", 1);
    let key = |n: u64| format!("{}-{n}", if n < 10 { "put" } else { "still" }).into_bytes();
    let value = |n: u64, round: u64| {
        // Some have lists of their extents in between.
        let length = if n % 8 == 7 { 330_000 } else { 9000 + (n as usize % 5) * 12_000 };
        let mut value = noise(n * 1000 + round, length);
        value[..8].copy_from_slice(&round.to_le_bytes());
        value
    };
    for n in 0..KEYS {
        store.put(&key(n), &value(n, 0)).unwrap();
    }
    // Some values are not changed: they cause no notifications.
    let mut still = store.structure().listen(kinds::PUT, Filter::Prefix(b"still".into())).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (stop, key, value, job) = (&stop, &key, &value, &job);
        let open = || client.open_kv(job.job, "t:").unwrap();
        let writers = [0u64, 1].map(|w| {
            let store = open();
            scope.spawn(move || {
                let mut last = [0u64; 10];
                for round in 1.. {
                    for n in (w..10).step_by(2) {
                        match round % 7 {
                            // Of a value that was taken there is nothing, until the next is put.
                            3 => {
                                let taken = store.take(&key(n)).unwrap();
                                assert!(
                                    taken.is_some_and(|taken| taken == value(n, last[n as usize]))
                                );
                            }
                            _ => drop(store.put(&key(n), &value(n, round)).unwrap()),
                        }
                        last[n as usize] = round;
                    }
                    if round % 7 != 3 && stop.load(Relaxed) {
                        return last;
                    }
                }
                unreachable!("it is told to stop")
            })
        });
        let readers = [0u64, 1].map(|r| {
            let store = open();
            scope.spawn(move || {
                let (mut read, mut reads, mut n) = (Vec::new(), 0, r);
                while !stop.load(Relaxed) {
                    n = (n + 5) % KEYS;
                    if store.get(&key(n), &mut read).unwrap() {
                        let round = u64::from_le_bytes(read[..8].try_into().unwrap());
                        assert!(read == value(n, round), "a read is one value that was put");
                        reads += 1;
                    }
                }
                reads
            })
        });
        for _ in 0..2 {
            take_the_first_out(&mut cluster);
        }
        stop.store(true, Relaxed);
        let reads: u64 = readers.into_iter().map(|one| one.join().unwrap()).sum();
        assert!(reads > 0, "it was read meanwhile");
        let lasts = writers.map(|one| one.join().unwrap());
        let mut read = Vec::new();
        for n in 0..KEYS {
            assert!(store.get(&key(n), &mut read).unwrap(), "key {n} is gone");
            let last = if n < 10 { lasts[n as usize % 2][n as usize] } else { 0 };
            assert!(read == value(n, last), "key {n} has another value than was put last");
        }
    });
    while let Some(told) = still.next(Duration::ZERO).unwrap() {
        let gap = matches!(told.heard, Heard::Gap { .. });
        assert!(gap, "a value that is carried is not changed: {told:?}");
    }
    drop(still);
    one_is_left(&cluster);
}

#[test]
fn the_last_one_stays_and_one_that_is_called_back_goes_on() {
    let cluster = Cluster::start(2, 1024 * KIB, 64 * KIB);
    let client = whole(&cluster);
    let [first, second] = [0, 1].map(|n: usize| cluster.servers[n].address().to_string());
    assert_eq!(status(client.drain_server("127.0.0.1:1", false)), Status::NotFound);
    let (own, job) = cluster.job("job");
    assert_eq!(status(own.drain_server(&first, false)), Status::PermissionDenied);
    prefix(&own, &job, "t", LEASE_MS);
    // The servers have 20 blocks together, and room for 16 each: no drain finishes before it is cancelled.
    for n in 0..20 {
        file(&own, &job, &format!("t:{n}")).append(b"x").unwrap();
    }
    client.drain_server(&first, false).unwrap();
    client.drain_server(&first, false).unwrap();
    assert_eq!(status(client.drain_server(&second, false)), Status::InvalidArgument);
    client.drain_server(&first, true).unwrap();
    assert_eq!(server(&client, &first).unwrap().drain, 0);
    client.drain_server(&second, false).unwrap();
    client.drain_server(&second, true).unwrap();
    // A server that requests its own drain gets the reason why it cannot be drained.
    let departures = cluster.servers[0].departures().unwrap();
    client.drain_server(&second, false).unwrap();
    cluster.servers[0].leave();
    let Ok(Departure::Refused(why)) = departures.recv_timeout(PATIENCE) else {
        panic!("the last server may not go");
    };
    assert!(why.contains("it is the only one that accepts new blocks"), "{why}");
}

/// A request for all controller shards began work that was due, and left its orders to the next request.
#[test]
fn requests_for_all_shards_of_a_draining_cluster_leave_no_work_to_the_next_request() {
    let cluster = Cluster::sharded(2, 2, 1024 * KIB, 64 * KIB);
    let address = cluster.servers[0].address().to_string();
    let jobs: Vec<_> = (0..4).map(|n| cluster.job(&format!("job-{n}"))).collect();
    // The blocks of both servers do not fit on one of them: the drain goes on until it is cancelled.
    for (n, (client, job)) in jobs.iter().enumerate() {
        prefix(client, job, "t", LEASE_MS);
        kv(client, job, "t:store", 1).put(b"large", &noise(n as u64, 10 * KIB as usize)).unwrap();
        for m in 0..3 {
            file(client, job, &format!("t:{m}")).append(b"x").unwrap();
        }
    }
    let client = whole(&cluster);
    client.drain_server(&address, false).unwrap();
    let clock = Clock::start();
    let until = clock.now() + EXTENTS_LEAVE_TELL + Duration::from_secs(1);
    eventually_within(PATIENCE + EXTENTS_LEAVE_TELL, "the servers get their orders again", || {
        assert_eq!(server(&client, &address).unwrap().drain, 1);
        for (client, job) in &jobs {
            client.lease(job.job, "t").unwrap();
        }
        clock.now() >= until
    });
    client.drain_server(&address, true).unwrap();
    assert_eq!(server(&client, &address).unwrap().drain, 0);
}

#[test]
fn a_server_goes_by_itself_when_it_has_nothing() {
    let mut cluster = Cluster::start(2, 1024 * KIB, 64 * KIB);
    let departures = cluster.servers[1].departures().unwrap();
    let clock = Clock::start();
    cluster.servers[1].leave();
    assert_eq!(departures.recv_timeout(PATIENCE), Ok(Departure::Released));
    assert!(clock.now().as_millis() < 2000, "it had nothing to wait for");
    cluster.servers.remove(1).wait();
}

/// Stores are migrated from a server while they are written, split and read: clients get no error, nothing is
/// lost or applied twice, and the server exits.
#[test]
fn stores_leave_a_server_under_load() {
    let mut cluster = Cluster::start(3, 24 * 1024 * KIB, 256 * KIB);
    let (client, job) = cluster.job("job");
    prefix(&client, &job, "t", LEASE_MS);
    let stores = ["a", "b"].map(|name| kv(&client, &job, &format!("t:{name}"), 3));
    let value = |n: u64, round: u64| noise(n * 7 + round, 100 + (n % 40) as usize * 50);
    for store in &stores {
        for n in 0..1500u64 {
            store.put(format!("key-{n}").as_bytes(), &value(n, 0)).unwrap();
        }
    }
    let stop = AtomicBool::new(false);
    let rounds = std::thread::scope(|threads| {
        let mut writers = Vec::new();
        for name in ["a", "b"] {
            let (client, stop) = (&client, &stop);
            let store = client.open_kv(job.job, &format!("t:{name}")).unwrap();
            writers.push(threads.spawn(move || {
                let clock = Clock::start();
                let (mut round, mut longest, mut done) = (1u64, Duration::ZERO, 0i64);
                while !stop.load(Relaxed) {
                    for n in 0..1500u64 {
                        let began = clock.now();
                        store.put(format!("key-{n}").as_bytes(), &value(n, round)).unwrap();
                        done =
                            store.add(format!("sum-{}", n % 17).as_bytes(), 1).unwrap().max(done);
                        longest = longest.max(clock.now().since(began));
                    }
                    round += 1;
                }
                (round - 1, longest)
            }));
        }
        for _ in 0..2 {
            take_the_first_out(&mut cluster);
        }
        stop.store(true, Relaxed);
        let rounds = writers.into_iter().map(|writer| writer.join().unwrap());
        rounds.collect::<Vec<(u64, Duration)>>()
    });
    let mut out = Vec::new();
    for (store, (rounds, longest)) in stores.iter().zip(rounds) {
        assert_eq!(store.length().unwrap(), 1500 + 17);
        for n in 0..1500u64 {
            let key = format!("key-{n}");
            out.clear();
            assert!(store.get(key.as_bytes(), &mut out).unwrap(), "{key} is there");
            assert_eq!(out, value(n, rounds), "{key}");
        }
        let sums = (0..17).map(|n| store.add(format!("sum-{n}").as_bytes(), 0).unwrap());
        assert_eq!(sums.sum::<i64>(), 1500 * rounds as i64, "each was added once");
        assert!(longest < Duration::from_secs(5), "an operation took {longest:?}");
    }
    one_is_left(&cluster);
}

/// The results that a queue keeps for retries were refused by the other server when those of one client
/// were larger than an entry of the block: the queue stayed, and the server never ended.
#[test]
fn queue_with_large_results_leaves_a_server_that_is_taken_out() {
    let mut cluster = Cluster::start(1, 1024 * KIB, 64 * KIB);
    let (client, job) = cluster.job("job");
    prefix(&client, &job, "t", LEASE_MS);
    let queue = client.create_queue(job.job, "t", 0, 0, false).unwrap();
    for n in 0..8u64 {
        queue.put(&noise(n, 7 * KIB as usize), PATIENCE).unwrap();
    }
    let taken = queue.get_many(5, PATIENCE).unwrap();
    assert_eq!(taken.len(), 5);
    cluster.add(1024 * KIB, 64 * KIB);
    take_the_first_out(&mut cluster);
    for n in 5..8u64 {
        assert_eq!(queue.get(PATIENCE).unwrap(), Some(noise(n, 7 * KIB as usize)));
    }
}

/// Without room on other servers, a drain reports this and continues when there is room; nothing is lost.
#[test]
fn a_drain_without_room_waits_for_another_server() {
    let mut cluster = Cluster::start(2, 1024 * KIB, 64 * KIB);
    let (client, job) = cluster.job("job");
    prefix(&client, &job, "t", LEASE_MS);
    let store = kv(&client, &job, "t", 24);
    for n in 0..500u64 {
        store.put(format!("key-{n}").as_bytes(), &noise(n, 200)).unwrap();
    }
    let whole = whole(&cluster);
    let address = cluster.servers[0].address().to_string();
    let departures = cluster.servers[0].departures().unwrap();
    whole.drain_server(&address, false).unwrap();
    eventually("it is told what would help", || {
        let waits = server(&whole, &address).map(|info| info.drain_waits).unwrap_or_default();
        waits.contains("without room elsewhere: add a server")
    });
    cluster.add(1024 * KIB, 64 * KIB);
    assert_eq!(departures.recv_timeout(PATIENCE), Ok(Departure::Released));
    let mut out = Vec::new();
    for n in 0..500u64 {
        out.clear();
        assert!(store.get(format!("key-{n}").as_bytes(), &mut out).unwrap());
        assert_eq!(out, noise(n, 200));
    }
    cluster.servers.remove(0).wait();
}

/// Large values that find no room elsewhere stay and are tried again; a job that ends holds nothing up.
#[test]
fn large_values_wait_for_room_and_not_for_jobs_that_have_ended() {
    let mut cluster = Cluster::start(2, 1024 * KIB, 64 * KIB);
    let jobs = ["stays", "ends"].map(|name| cluster.job(name));
    let stores = jobs.each_ref().map(|(client, job)| {
        prefix(client, job, "t", LEASE_MS);
        let store = kv(client, job, "t", 1);
        for n in 0..70u64 {
            store.put(&n.to_le_bytes(), &noise(n, 10 * KIB as usize)).unwrap();
        }
        store
    });
    let whole = whole(&cluster);
    let address = cluster.servers[0].address().to_string();
    let departures = cluster.servers[0].departures().unwrap();
    whole.drain_server(&address, false).unwrap();
    eventually("the other one is full", || {
        let status = whole.status().unwrap();
        let stays = status.servers.iter().find(|server| server.address != address).unwrap();
        let there = server(&whole, &address).unwrap();
        stays.free <= 2
            && there.drain_waits.contains("of large values being copied to other servers")
    });
    assert_eq!(departures.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty));
    let (client, job) = &jobs[1];
    client.deregister_job(job.job).unwrap();
    assert_eq!(departures.recv_timeout(PATIENCE), Ok(Departure::Released));
    let mut out = Vec::new();
    for n in 0..70u64 {
        assert!(stores[0].get(&n.to_le_bytes(), &mut out).unwrap());
        assert!(out == noise(n, 10 * KIB as usize), "value {n}");
    }
    cluster.servers.remove(0).wait();
}

/// Files are migrated from a server while they are appended to, read and tailed: clients get no error,
/// nothing is lost, duplicated or out of order, offsets do not change, and the server exits.
#[test]
fn files_leave_a_server_under_load() {
    const WRITERS: u64 = 3;
    let mut cluster = Cluster::start(3, 24 * 1024 * KIB, 256 * KIB);
    let (client, job) = cluster.job("job");
    prefix(&client, &job, "t", LEASE_MS);
    let names = ["t:a", "t:b"];
    let files = names.map(|name| file(&client, &job, name));
    let record = |writer: u64, n: u64| {
        let mut bytes = [writer.to_le_bytes(), n.to_le_bytes()].concat();
        bytes.extend(noise(writer * 1_000_003 + n, 16 + (n % 61) as usize * 97));
        bytes
    };
    // Sealed full blocks are migrated, too.
    for file in &files {
        for n in 0..400 {
            file.append(&record(WRITERS, n)).unwrap();
        }
    }
    let stop = AtomicBool::new(false);
    let longest = std::thread::scope(|threads| {
        let mut writers = Vec::new();
        for (name, writer) in names.iter().flat_map(|name| (0..WRITERS).map(move |w| (name, w))) {
            let (client, stop) = (&client, &stop);
            let file = client.open_file(job.job, name).unwrap();
            writers.push(threads.spawn(move || {
                let clock = Clock::start();
                let (mut n, mut longest, mut places) = (0, Duration::ZERO, Vec::new());
                while !stop.load(Relaxed) {
                    let began = clock.now();
                    let place = file.append(&record(writer, n)).unwrap();
                    longest = longest.max(clock.now().since(began));
                    places.push(place);
                    n += 1;
                    if n % 16 == 0 {
                        // Acknowledged data exists, on whichever server.
                        let back = (n * 7) % n;
                        let wanted = record(writer, back);
                        let mut found = vec![0; wanted.len()];
                        let place = places[back as usize];
                        assert_eq!(file.read_into(place, &mut found).unwrap(), wanted.len());
                        assert_eq!(found, wanted, "at {place}");
                    }
                }
                (writer, places, longest)
            }));
        }
        // A reader that tails the file gets every byte once, in order.
        let tails = names.map(|name| {
            let (client, stop) = (&client, &stop);
            let file = client.open_file(job.job, name).unwrap();
            threads.spawn(move || {
                let (mut all, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
                loop {
                    let ended = stop.load(Relaxed);
                    let n = file.read_into(all.len() as u64, &mut buffer).unwrap();
                    all.extend_from_slice(&buffer[..n]);
                    if n == 0 && ended {
                        return all;
                    }
                }
            })
        });
        for _ in 0..2 {
            take_the_first_out(&mut cluster);
        }
        stop.store(true, Relaxed);
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        let mut longest = Duration::ZERO;
        for ((tail, file), written) in
            tails.into_iter().zip(&files).zip(written.chunks(WRITERS as usize))
        {
            let (all, size) = (tail.join().unwrap(), file.size().unwrap());
            // The last appends may have come after the last look.
            assert!(all.len() as u64 <= size);
            let mut whole = vec![0; size as usize];
            let mut at = 0;
            while at < whole.len() {
                at += file.read_into(at as u64, &mut whole[at..]).unwrap();
            }
            assert_eq!(all, whole[..all.len()]);
            let mut bytes: u64 = (0..400).map(|n| record(WRITERS, n).len() as u64).sum();
            for (writer, places, took) in written {
                longest = longest.max(*took);
                assert!(places.is_sorted(), "appends of one writer are in its order");
                for (n, place) in (0..).zip(places) {
                    let record = record(*writer, n);
                    let place = *place as usize;
                    assert_eq!(whole[place..place + record.len()], record, "{writer} {n}");
                    bytes += record.len() as u64;
                }
            }
            assert_eq!(size, bytes, "nothing is there twice");
        }
        longest
    });
    assert!(longest < Duration::from_secs(5), "an append took {longest:?}");
    one_is_left(&cluster);
}

/// Queues are migrated from a server while they are filled and emptied, by waiting consumers and by one that
/// acknowledges: every item is taken once, the items of each producer in order, and the server exits.
#[test]
fn queues_leave_a_server_under_load() {
    const PRODUCERS: u64 = 3;
    let mut cluster = Cluster::start(3, 24 * 1024 * KIB, 64 * KIB);
    let (client, job) = cluster.job("job");
    prefix(&client, &job, "t", LEASE_MS);
    // One keeps a bound, one is filled in advance, and one is taken from by consumers that reserve.
    let bounds = [("t:bounded", 64), ("t:full", 0), ("t:work", 0)];
    for (name, items) in bounds {
        client.create_queue(job.job, name, items, 0, false).unwrap();
    }
    let item = |producer: u64, n: u64| {
        let mut bytes = [producer.to_le_bytes(), n.to_le_bytes()].concat();
        bytes.extend(noise(producer * 7_919 + n, (n % 50) as usize * 40));
        bytes
    };
    let full = client.open_queue(job.job, "t:full").unwrap();
    for n in 0..600 {
        full.put(&item(PRODUCERS, n), PATIENCE).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let mut all = Vec::new();
        for (name, _) in bounds {
            let open = || client.open_queue(job.job, name).unwrap();
            let stop = &stop;
            let producers = (0..PRODUCERS).map(|producer| {
                let queue = open();
                threads.spawn(move || {
                    let mut n = 0;
                    while !stop.load(Relaxed) {
                        queue.put(&item(producer, n), PATIENCE).unwrap();
                        n += 1;
                        if n % 50 == 0 {
                            // Consumers come to wait now and then.
                            std::thread::yield_now();
                        }
                    }
                    n
                })
            });
            let producers: Vec<_> = producers.collect();
            let consumers = (0..2).map(|_| {
                let queue = open();
                threads.spawn(move || {
                    let mut taken = Vec::new();
                    loop {
                        if name != "t:work" {
                            match queue.get(PATIENCE) {
                                Ok(Some(item)) => taken.push(item),
                                Ok(None) => panic!("nothing came to {name}"),
                                Err(e) if e.status == Status::QueueClosed => return taken,
                                Err(e) => panic!("{name}: {e}"),
                            }
                            continue;
                        }
                        match queue.reserve(8, Duration::from_secs(60), PATIENCE) {
                            Ok(found) => {
                                let found_all: Vec<_> = found.iter().collect();
                                let held = queue.acknowledge(&found_all).unwrap();
                                assert!(held.iter().all(|held| *held), "a reservation got lost");
                                taken.extend(found.into_iter().map(|one| one.item));
                            }
                            Err(e) if e.status == Status::QueueClosed => return taken,
                            Err(e) => panic!("{name}: {e}"),
                        }
                    }
                })
            });
            all.push((name, open(), producers, consumers.collect::<Vec<_>>()));
        }
        for _ in 0..2 {
            take_the_first_out(&mut cluster);
        }
        stop.store(true, Relaxed);
        for (name, queue, producers, consumers) in all {
            let put: Vec<u64> = producers.into_iter().map(|one| one.join().unwrap()).collect();
            queue.close().unwrap();
            let taken: Vec<Vec<Vec<u8>>> =
                consumers.into_iter().map(|one| one.join().unwrap()).collect();
            let mut found = std::collections::BTreeMap::new();
            for taken in &taken {
                let mut last = std::collections::BTreeMap::new();
                for bytes in taken {
                    let number =
                        |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                    let (producer, n) = (number(0), number(8));
                    assert_eq!(*bytes, item(producer, n), "{name}: what was put comes out");
                    let before = last.insert(producer, n);
                    assert!(before.is_none_or(|before| before < n), "{name}: out of order");
                    *found.entry((producer, n)).or_insert(0) += 1;
                }
            }
            let mut due: Vec<(u64, u64)> =
                (0..).zip(&put).flat_map(|(p, n)| (0..*n).map(move |n| (p, n))).collect();
            if name == "t:full" {
                due.extend((0..600).map(|n| (PRODUCERS, n)));
            }
            let due = due.into_iter().map(|key| (key, 1)).collect();
            assert_eq!(found, due, "{name}: every item once");
        }
    });
    one_is_left(&cluster);
}
