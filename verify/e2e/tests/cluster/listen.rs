//! Listeners on a real cluster: changes in blocks before their subscription.

use honeycomb_client::{Client, Heard, JobTicket, Listener};
use honeycomb_e2e::{Cluster, KIB};
use honeycomb_env::Clock;
use honeycomb_wire::messages::PrefixOptions;
use honeycomb_wire::notice::{Filter, kinds};
use std::collections::BTreeMap;
use std::time::Duration;

const MIB: u64 = 1024 * KIB;
const PATIENCE: Duration = Duration::from_secs(20);

fn cluster() -> (Cluster, Client, JobTicket) {
    let cluster = Cluster::start(1, 64 * MIB, 64 * KIB);
    let (client, ticket) = cluster.job("listen");
    let options = PrefixOptions { pinned: true, ..PrefixOptions::default() };
    client.create_prefix(ticket.job, "t", &[], options).unwrap();
    (cluster, client, ticket)
}

fn next(listener: &mut Listener) -> Heard {
    listener.next(PATIENCE).unwrap().expect("a notice within the time").heard
}

/// Blocks of all structures of the job.
fn blocks_of(client: &Client, ticket: &JobTicket) -> u32 {
    let tree = client.tree(ticket.job).unwrap();
    tree.iter().flat_map(|prefix| &prefix.structures).map(|s| s.blocks).sum()
}

#[test]
fn a_seal_in_a_block_that_was_not_listened_to_yet_is_told_once() {
    let (_cluster, client, ticket) = cluster();
    let file = client.create_file(ticket.job, "t:file", 1, false).unwrap();
    let mut listener = file.structure().listen(kinds::APPEND | kinds::SEAL, Filter::All).unwrap();
    let mut seals = file.structure().listen(kinds::SEAL, Filter::All).unwrap();
    // The listeners do not read meanwhile: they learn of the second block long after it is sealed.
    file.write_all(&vec![b'x'; 100_000]).unwrap();
    file.seal().unwrap();
    let mut told = 0;
    loop {
        match next(&mut listener) {
            Heard::Append { offset, length } => {
                assert_eq!(offset, told, "in order and without a hole");
                told += length;
            }
            other => {
                assert_eq!(other, Heard::Seal { size: 100_000 });
                break;
            }
        }
    }
    assert_eq!(told, 100_000);
    assert_eq!(next(&mut seals), Heard::Seal { size: 100_000 });
    for listener in [&mut listener, &mut seals] {
        assert_eq!(listener.next(Duration::from_millis(1)).unwrap(), None, "it is told once");
    }
}

#[test]
fn a_close_in_a_block_that_was_not_listened_to_yet_is_told_once() {
    let (_cluster, client, ticket) = cluster();
    let queue = client.create_queue(ticket.job, "t:q", 0, 0, false).unwrap();
    let mut listener = queue.structure().listen(kinds::CLOSE, Filter::All).unwrap();
    let item = [b'x'; 1000];
    queue.put_many(&vec![&item[..]; 200], Duration::ZERO).unwrap();
    queue.close().unwrap();
    assert_eq!(next(&mut listener), Heard::Close);
    assert_eq!(listener.next(Duration::from_millis(1)).unwrap(), None, "it is told once");
    assert!(queue.wait_closed(PATIENCE).unwrap());
}

#[test]
fn items_are_heard_of_although_blocks_between_came_and_went() {
    let (_cluster, client, ticket) = cluster();
    let queue = client.create_queue(ticket.job, "t:q", 0, 0, false).unwrap();
    let mut listener = queue.structure().listen(kinds::DATA, Filter::All).unwrap();
    let item = [b'x'; 1000];
    // Blocks are filled, emptied and retired before the listener learns of them.
    for _ in 0..5 {
        queue.put_many(&vec![&item[..]; 200], Duration::ZERO).unwrap();
        let mut left = 200;
        while left > 0 {
            left -= queue.get_many(left, PATIENCE).unwrap().len();
        }
    }
    let clock = Clock::start();
    while blocks_of(&client, &ticket) > 2 {
        assert!(clock.now().as_millis() < 20_000, "the blocks were never retired");
    }
    // Notifications up to here concern the past: removed items, or a gap.
    let mut missed = false;
    while let Some(notification) = listener.next(Duration::from_millis(100)).unwrap() {
        missed |= matches!(notification.heard, Heard::Gap { .. });
    }
    assert!(missed, "the listener was not told of what it missed");
    queue.put(b"one more", Duration::ZERO).unwrap();
    assert_eq!(next(&mut listener), Heard::Data { items: 1 });
}

/// Ranges move between subscribed blocks: a change is notified by the block that has its range, and changes
/// before the subscription to that block are notified as a gap.
#[test]
fn a_store_that_splits_and_merges_tells_of_each_change_once_or_of_a_gap() {
    let (_cluster, client, ticket) = cluster();
    let kv = client.create_kv(ticket.job, "t:kv", 1, false).unwrap();
    let mut listener = kv.structure().listen(kinds::PUT | kinds::DELETE, Filter::All).unwrap();
    let (mut changes, mut gaps) = (BTreeMap::<Box<[u8]>, Vec<bool>>::new(), 0);
    let mut hear = |listener: &mut Listener, wait| {
        while let Some(notification) = listener.next(wait).unwrap() {
            match notification.heard {
                Heard::Put { key } => changes.entry(key).or_default().push(true),
                Heard::Delete { key } => changes.entry(key).or_default().push(false),
                Heard::Gap { .. } => gaps += 1,
                other => panic!("{other:?}"),
            }
        }
    };
    let key = |n: u32| format!("key-{n}").into_bytes();
    let mut most = 0;
    for n in 0..1500 {
        kv.put(&key(n), &[7; 600]).unwrap();
        hear(&mut listener, Duration::ZERO);
        most = most.max(kv.structure().blocks());
    }
    for n in 0..1500 {
        assert!(kv.delete(&key(n)).unwrap());
        hear(&mut listener, Duration::ZERO);
    }
    let clock = Clock::start();
    let mut blocks = most;
    while blocks > most / 2 {
        assert!(clock.now().as_millis() < 20_000, "{blocks} of {most} blocks never merged");
        hear(&mut listener, Duration::from_millis(20));
        blocks = blocks_of(&client, &ticket) as usize;
    }
    // Where nothing moves any more nothing is missed.
    for n in 0..100 {
        kv.put(&key(2000 + n), b"last").unwrap();
    }
    hear(&mut listener, Duration::from_millis(200));
    let whole = changes.values().filter(|told| told[..] == [true, false]).count();
    for (key, told) in &changes {
        assert!(told.len() == 1 || told[..] == [true, false], "{key:?} {told:?}");
    }
    assert!(whole == 1500 || gaps > 0, "{whole} of 1500 were told whole, and of no gap");
    for n in 2000..2100 {
        assert_eq!(changes.get(&key(n)[..]), Some(&vec![true]), "{n}");
    }
}
