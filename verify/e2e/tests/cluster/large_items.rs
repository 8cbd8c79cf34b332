//! Items of queues of more than an eighth of a block.

use honeycomb_client::{Client, JobTicket, Queue};
use honeycomb_e2e::{Cluster, KIB, LEASE_MS, eventually, noise, prefix, status};
use honeycomb_types::limits::listed_value_max;
use honeycomb_types::{JobId, Verbs};
use honeycomb_wire::token::Caveat;
use honeycomb_wire::{Status, attenuate};
use std::collections::BTreeSet;
use std::time::Duration;

const BLOCK: u64 = 64 * KIB;
/// The longest item whose extents are in one list.
const LISTED: usize = listed_value_max(BLOCK) as usize;
const NOW: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(20);

fn start(name: &str) -> (Cluster, Client, JobTicket) {
    let cluster = Cluster::start(2, 512 * BLOCK, BLOCK);
    let (client, job) = cluster.job(name);
    prefix(&client, &job, "/t", LEASE_MS);
    (cluster, client, job)
}

fn queue(client: &Client, job: &JobTicket, max_items: u64, max_bytes: u64) -> Queue {
    client.create_queue(job.job, "/t", max_items, max_bytes, false).unwrap()
}

fn used(client: &Client, job: JobId) -> u64 {
    client.tree(job).unwrap().iter().flat_map(|p| &p.structures).map(|s| s.bytes_used).sum()
}

fn blocks(client: &Client, job: JobId) -> u32 {
    client.tree(job).unwrap().iter().flat_map(|p| &p.structures).map(|s| s.blocks).sum()
}

/// The item of a number: small and large ones in turn.
fn item(n: u64) -> Vec<u8> {
    const LENGTHS: [usize; 8] = [0, 8188, 8189, 100, 8192, 30_000, 9, 65_537];
    noise(n, LENGTHS[n as usize % LENGTHS.len()])
}

#[test]
fn items_of_any_size_up_to_the_limit_come_back_in_order() {
    let (_cluster, client, job) = start("sizes");
    let queue = queue(&client, &job, 0, 0);
    let limit = queue.item_limit();
    assert!(limit > 22 << 30);
    // A list in the block names the first of them; the others have lists in between.
    let large = [LISTED, LISTED + 1, 9 << 20].map(|length| noise(99, length));
    let items: Vec<Vec<u8>> = (0..16).map(item).chain(large).collect();
    let slices: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
    queue.put_many(&slices[..8], NOW).unwrap();
    slices[8..].iter().for_each(|item| queue.put(item, NOW).unwrap());
    let memory = 2 * 512 * BLOCK as usize;
    let refused = queue.put(&vec![0; memory + 1], NOW).unwrap_err();
    assert_eq!(refused.status, Status::ValueTooLarge);
    assert!(refused.message.contains(&memory.to_string()), "{refused}");
    let bytes = items.iter().map(|item| item.len() as u64).sum::<u64>();
    let counts = queue.counts().unwrap();
    assert_eq!((counts.items, counts.bytes), (items.len() as u64, bytes));

    // A new client knows no block and no server.
    let other = client.open_queue(job.job, "/t").unwrap();
    let mut found = Vec::new();
    while found.len() < items.len() {
        let next = found.len();
        assert_eq!(other.peek(1).unwrap(), items[next..=next], "{next}");
        let some = other.get_many(100, NOW).unwrap();
        assert!(!some.is_empty());
        found.extend(some);
    }
    assert!(found == items, "the items differ");
    assert_eq!((other.get(NOW).unwrap(), other.peek(1).unwrap()), (None, vec![]));
    let counts = queue.counts().unwrap();
    assert_eq!((counts.items, counts.bytes, counts.reserved), (0, 0, 0));
    eventually("the extents are dropped", || used(&client, job.job) < 4 * KIB);
    eventually("their blocks are returned", || blocks(&client, job.job) <= 2);
    client.remove_structure(job.job, "/t").unwrap();
}

#[test]
fn each_item_is_delivered_to_one_of_many_consumers() {
    let (cluster, client, job) = start("shared");
    let own = || cluster.client(&job.token, Default::default()).open_queue(job.job, "/t").unwrap();
    let made = queue(&client, &job, 7, 0);
    let (producers, each) = (3, 24);
    let found: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let consume = || {
            let (queue, mut found) = (own(), Vec::new());
            loop {
                match queue.get(LONG) {
                    Ok(Some(item)) => found.push(item),
                    Ok(None) => panic!("nothing came"),
                    Err(e) if e.status == Status::QueueClosed => return found,
                    Err(e) => panic!("{e}"),
                }
            }
        };
        let produce = |producer: u64| {
            let queue = own();
            for n in 0..each {
                queue.put(&item(producer * each + n), LONG).unwrap();
            }
        };
        let consumers: Vec<_> = (0..3).map(|_| scope.spawn(consume)).collect();
        let producers: Vec<_> = (0..producers).map(|n| scope.spawn(move || produce(n))).collect();
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        made.close().unwrap();
        consumers.into_iter().flat_map(|consumer| consumer.join().unwrap()).collect()
    });
    let mut found = found;
    let mut put: Vec<Vec<u8>> = (0..producers * each).map(item).collect();
    found.sort();
    put.sort();
    assert!(found == put, "{} items of {}", found.len(), put.len());
    eventually("the extents are dropped", || used(&client, job.job) < 4 * KIB);
}

#[test]
fn reserved_items_return_until_they_are_acknowledged() {
    let (_cluster, client, job) = start("reserved");
    let queue = queue(&client, &job, 0, 0);
    let items = [noise(1, 20_000), noise(2, 30_000), noise(3, 10)];
    items[..2].iter().for_each(|item| queue.put(item, NOW).unwrap());
    let first = queue.reserve(3, LONG, NOW).unwrap();
    assert_eq!(first.len(), 1, "an item in extents is delivered alone");
    assert_eq!((&first[0].item, first[0].deliveries), (&items[0], 1));
    let second = queue.reserve(1, Duration::from_millis(1), NOW).unwrap();
    assert_eq!(second[0].item, items[1]);
    assert_eq!(queue.give_back(&[&first[0]]).unwrap(), [true]);
    let mut again = BTreeSet::new();
    while again.len() < 2 {
        let one = queue.reserve(1, LONG, LONG).unwrap().remove(0);
        assert_eq!(one.deliveries, 2, "each was delivered once before");
        again.insert(one.item.clone());
        assert_eq!(queue.acknowledge(&[&one]).unwrap(), [true]);
    }
    assert_eq!(queue.acknowledge(&[&second[0], &first[0]]).unwrap(), [false, false]);
    assert_eq!(again, BTreeSet::from([items[0].clone(), items[1].clone()]));
    queue.put(&items[2], NOW).unwrap();
    assert_eq!(queue.get(NOW).unwrap().as_ref(), Some(&items[2]));
    eventually("the extents are dropped", || used(&client, job.job) < 4 * KIB);
}

#[test]
fn bounds_count_the_bytes_of_large_items() {
    let (cluster, client, job) = start("bounds");
    let queue = queue(&client, &job, 0, 100_000);
    assert_eq!(status(queue.put(&noise(0, 100_001), NOW)), Status::InvalidArgument);
    queue.put(&noise(1, 60_000), NOW).unwrap();
    assert_eq!(status(queue.put(&noise(2, 40_001), NOW)), Status::QueueFull);
    queue.put(&noise(3, 30_000), NOW).unwrap();
    assert_eq!(status(queue.put(&noise(4, 10_001), NOW)), Status::QueueFull);
    queue.put(&noise(5, 10_000), NOW).unwrap();
    assert_eq!(queue.counts().unwrap().bytes, 100_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let own = cluster.client(&job.token, Default::default());
            own.open_queue(job.job, "/t").unwrap().put(&noise(6, 50_000), LONG).unwrap();
        });
        assert!(queue.get(LONG).unwrap() == Some(noise(1, 60_000)));
    });
    for (n, length) in [(3, 30_000), (5, 10_000), (6, 50_000)] {
        assert!(queue.get(LONG).unwrap() == Some(noise(n, length)), "{n}");
    }
    eventually("extents of refused puts are dropped, too", || used(&client, job.job) < 4 * KIB);
}

/// A producer without permission to read puts items of any size, and learns by its put that there is no room.
#[test]
fn producer_that_may_only_write_puts_large_items() {
    let (cluster, client, job) = start("producer");
    let queue = queue(&client, &job, 2, 0);
    let token = attenuate(&job.token, Caveat::Verbs(Verbs::WRITE)).unwrap();
    let producer = cluster.client(&token, Default::default()).open_queue(job.job, "/t").unwrap();
    producer.put(&noise(1, 60_000), NOW).unwrap();
    producer.put(&noise(2, 10), NOW).unwrap();
    assert_eq!(status(producer.put(&noise(3, 30_000), NOW)), Status::QueueFull);
    assert_eq!(status(producer.get(NOW)), Status::PermissionDenied);
    std::thread::scope(|scope| {
        scope.spawn(|| producer.put(&noise(3, 30_000), LONG).unwrap());
        assert!(queue.get(LONG).unwrap() == Some(noise(1, 60_000)));
    });
    for (n, length) in [(2, 10), (3, 30_000)] {
        assert!(queue.get(LONG).unwrap() == Some(noise(n, length)), "{n}");
    }
    eventually("the extents are dropped", || used(&client, job.job) < 4 * KIB);
}

/// Many large items seal the blocks of the queue: a list follows in the next block.
#[test]
fn lists_fill_blocks_and_continue_in_the_next() {
    let (_cluster, client, job) = start("many");
    let queue = queue(&client, &job, 0, 0);
    // 1,016 bytes of each item are in a block of the queue.
    let (many, most) = (140, LISTED);
    let value = noise(7, most);
    let mut taken = 0;
    for n in 0..many {
        queue.put(&value[..most - n], NOW).unwrap();
        // The memory does not hold all of them at a time.
        if n % 2 == 0 {
            assert!(queue.get(NOW).unwrap().unwrap() == value[..most - taken], "{taken}");
            taken += 1;
        }
    }
    while taken < many {
        assert!(queue.get(NOW).unwrap().unwrap() == value[..most - taken], "{taken}");
        taken += 1;
    }
    eventually("the extents are dropped", || used(&client, job.job) < 4 * KIB);
}
