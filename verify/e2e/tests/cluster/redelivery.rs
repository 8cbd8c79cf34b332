//! Reserved items that come back to a block of a queue that its consumers have left behind.

use honeycomb_client::Queue;
use honeycomb_e2e::{Cluster, KIB, LEASE_MS, prefix};
use honeycomb_env::Clock;
use std::time::Duration;

const NONE: Duration = Duration::ZERO;
const ITEMS: usize = 60;

/// A queue of several blocks, of which the items of the first are all reserved and the others taken.
fn left_behind(cluster: &Cluster, timeout: Duration) -> (Queue, Queue) {
    let (client, ticket) = cluster.job("redelivery");
    prefix(&client, &ticket, "/q", LEASE_MS);
    let queue = client.create_queue(ticket.job, "/q", 0, 0, false).unwrap();
    let items: Vec<Vec<u8>> = (0..4 * ITEMS).map(|i| vec![i as u8; 1000]).collect();
    let items: Vec<&[u8]> = items.iter().map(|item| &item[..]).collect();
    queue.put_many(&items, NONE).unwrap();
    assert_eq!(queue.reserve(ITEMS, timeout, NONE).unwrap().len(), ITEMS);
    let mut taken = ITEMS;
    while taken < items.len() {
        taken += queue.get_many(items.len(), NONE).unwrap().len();
    }
    // Another process: it begins with the controller's map, which names the first block.
    let other = cluster.client(&ticket.token, ticket.root);
    (queue, other.open_queue(ticket.job, "/q").unwrap())
}

#[test]
fn a_consumer_that_waits_further_on_is_given_what_comes_back() {
    let cluster = Cluster::start(1, 4096 * KIB, 64 * KIB);
    let (_holder, consumer) = left_behind(&cluster, Duration::from_millis(200));
    let clock = Clock::start();
    for i in 0..ITEMS {
        let item = consumer.get(Duration::from_secs(30)).unwrap();
        assert_eq!(item.map(|item| item[0]), Some(i as u8));
    }
    // It used to wait at the last block for as long as it could, and then to look back twice a
    // second for one item.
    assert!(clock.now().as_millis() < 10_000, "{} ms", clock.now().as_millis());
    assert_eq!(consumer.get(NONE).unwrap(), None);
}

#[test]
fn a_closed_queue_has_not_ended_while_something_can_come_back() {
    let cluster = Cluster::start(1, 4096 * KIB, 64 * KIB);
    let (holder, consumer) = left_behind(&cluster, Duration::from_millis(200));
    holder.close().unwrap();
    let clock = Clock::start();
    let mut got = 0;
    while let Ok(items) = consumer.get_many(ITEMS, Duration::from_secs(30)) {
        assert!(!items.is_empty(), "the wait was not over");
        got += items.len();
    }
    assert_eq!(got, ITEMS);
    assert!(clock.now().as_millis() < 10_000, "{} ms", clock.now().as_millis());
}
