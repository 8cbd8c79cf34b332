//! Notifications on the wire: never before the change is visible, numbered within their block, with gaps
//! reported, from block to block (INV-24).

use honeycomb_client::{Client, JobTicket, Queue};
use honeycomb_e2e::raw::{Raw, Reply, data_header, frame};
use honeycomb_e2e::{Cluster, KIB, file, kv, prefix};
use honeycomb_types::{BlockAt, PrefixId};
use honeycomb_wire::data::ReadArgs;
use honeycomb_wire::messages::{MapEntry, OpenStructureReply, OpenStructureRequest};
use honeycomb_wire::notice::{Change, Filter, Notice, SubscribeArgs, kinds};
use honeycomb_wire::{Field, Op, RequestHeader, Status};
use std::time::Duration;

const NOW: Duration = Duration::ZERO;
/// Larger than a payload that is received whole: it is streamed directly into its block.
const LARGE: usize = 100 << 10;

struct Setup {
    cluster: Cluster,
    client: Client,
    job: JobTicket,
}

impl Setup {
    fn new(block_size: u64) -> Setup {
        let cluster = Cluster::start(1, 64 * block_size, block_size);
        let (client, job) = cluster.job("job");
        prefix(&client, &job, "a", 0);
        Setup { cluster, client, job }
    }

    fn open(&self, name: &str) -> OpenStructureReply {
        let mut raw = Raw::greeted(self.cluster.controller.address(), &self.job.token, 255);
        let (path, name) = ("a".to_owned(), name.to_owned());
        let body = OpenStructureRequest { job: self.job.job.0, path, name };
        let reply = raw.ask(Op::OpenStructure, &body.encode());
        assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
        OpenStructureReply::decode(&reply.args).unwrap()
    }

    /// A connection to the core of a structure's last block, with its grant.
    fn listener(&self, name: &str) -> Listener {
        let opened = self.open(name);
        Listener::new(self, opened.map.entries.last().unwrap(), &opened.grant)
    }

    fn queue(&self, name: &str) -> Queue {
        self.client.create_queue(self.job.job, &format!("a:{name}"), 0, 0, false).unwrap()
    }
}

struct Listener {
    raw: Raw,
    at: BlockAt,
    grant: u32,
}

impl Listener {
    fn new(setup: &Setup, entry: &MapEntry, grant: &[u8]) -> Listener {
        let at = entry.at();
        let server = entry.address.parse().unwrap();
        let mut raw = Raw::connect(server);
        let shard = at.block.shard().0;
        assert_eq!(raw.hello(&setup.job.token, PrefixId(0), shard).status(), Status::Ok);
        let grant = raw.present(grant);
        Listener { raw, at, grant }
    }

    fn subscribe(&mut self, subscription: u32, kinds: u16, filter: Filter) -> u64 {
        let args = SubscribeArgs { subscription, kinds, filter }.encode();
        let reply =
            self.raw.request(data_header(Op::Subscribe, self.at, self.grant, 0), &args, &[]);
        assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
        reply.header.value
    }

    /// The next notification: its number, its subscription and its contents.
    fn next(&mut self) -> (u64, u32, Notice) {
        let reply = self.raw.reply();
        notice_of(&reply).unwrap_or_else(|| panic!("{reply:?}"))
    }

    fn next_change(&mut self) -> (u64, Change) {
        match self.next() {
            (number, _, Notice::Changed(change)) => (number, change),
            other => panic!("{other:?}"),
        }
    }

    /// Nothing has been pushed that was not read: the next reply is that to a request.
    fn expect_silence(&mut self) {
        self.raw.expect_alive();
    }
}

fn notice_of(reply: &Reply) -> Option<(u64, u32, Notice)> {
    (reply.status() == Status::Notice).then(|| {
        assert_eq!(reply.header.request, 0, "a notice answers no request");
        assert!(reply.payload.is_empty());
        let (subscription, notice) = Notice::decode(&reply.args).unwrap();
        (reply.header.value, subscription, notice)
    })
}

#[test]
fn a_notice_is_never_before_its_change() {
    let setup = Setup::new(1 << 20);
    let log = file(&setup.client, &setup.job, "a:log");
    // The capacity of the block is large enough from here on.
    log.append(&[7; LARGE]).unwrap();
    let start = LARGE as u64;
    let mut listener = setup.listener("log");
    assert_eq!(listener.subscribe(1, kinds::ALL, Filter::All), 0);
    let mut writer = setup.listener("log");
    // A large append that is still arriving, and a small one that waits behind it.
    let mut header = data_header(Op::FileAppend, writer.at, writer.grant, 1);
    header.request = writer.raw.number();
    let bytes = frame(header, &[], &vec![7; LARGE]);
    let (first, rest) = bytes.split_at(bytes.len() - 1000);
    writer.raw.send(first);
    // Its place is there when another append finds itself behind it.
    let mut small = setup.listener("log");
    let mut header = data_header(Op::FileAppend, small.at, small.grant, 1);
    header.request = small.raw.number();
    small.raw.send(&frame(header, &[], b"small"));
    listener.expect_silence();
    assert_eq!(log.size().unwrap(), start);
    writer.raw.send(rest);
    let mut reader = setup.listener("log");
    for (number, offset, length) in [(1, start, LARGE as u64), (2, 2 * start, 5)] {
        assert_eq!(listener.next_change(), (number, Change::Append { offset, length }));
        // A notified client can read the change at once.
        let mut range = Vec::new();
        ReadArgs { offset: offset + length - 1, length: 1 }.put(&mut range);
        let read = data_header(Op::FileRead, reader.at, reader.grant, 0);
        assert_eq!(reader.raw.request(read, &range, &[]).payload.len(), 1);
    }
    assert_eq!(writer.raw.reply().header.value, start);
    assert_eq!(small.raw.reply().header.value, 2 * start);
    log.seal().unwrap();
    let length = 2 * start + 5;
    assert_eq!(listener.next_change(), (3, Change::Seal { length }));
    listener.expect_silence();
}

#[test]
fn numbers_are_those_of_the_block_and_filters_leave_some_out() {
    let setup = Setup::new(256 * KIB);
    let store = kv(&setup.client, &setup.job, "a:kv", 1);
    store.put(b"before", b"x").unwrap();
    let mut listener = setup.listener("kv");
    // The block counts from its first subscription on.
    assert_eq!(listener.subscribe(1, kinds::PUT, Filter::Prefix(b"user".to_vec())), 0);
    store.put(b"user1", b"x").unwrap();
    store.put(b"other", b"x").unwrap();
    store.delete(b"user1").unwrap();
    assert_eq!(listener.next(), (1, 1, changed_put(b"user1")));
    assert_eq!(listener.subscribe(2, kinds::DELETE, Filter::Key(b"other".to_vec())), 3);
    store.put(b"user2", b"x").unwrap();
    store.delete(b"user2").unwrap();
    store.delete(b"other").unwrap();
    assert_eq!(listener.next(), (4, 1, changed_put(b"user2")));
    let deleted = Notice::Changed(Change::Delete { key: b"other".as_slice().into() });
    assert_eq!(listener.next(), (6, 2, deleted));
    listener.expect_silence();
    // An operation without a change causes no notification.
    assert!(!store.delete(b"absent").unwrap());
    listener.expect_silence();
}

fn changed_put(key: &[u8]) -> Notice {
    Notice::Changed(Change::Put { key: key.into() })
}

#[test]
fn a_queue_tells_of_items_that_come_go_and_come_back() {
    let setup = Setup::new(256 * KIB);
    let queue = setup.queue("q");
    let mut listener = setup.listener("q");
    listener.subscribe(1, kinds::ALL, Filter::All);
    queue.put_many(&[b"a", b"b", b"c"], NOW).unwrap();
    assert_eq!(listener.next_change(), (1, Change::Data { items: 3 }));
    assert_eq!(queue.get(NOW).unwrap().unwrap(), b"a");
    assert_eq!(listener.next_change(), (2, Change::Space { items: 1 }));
    let held = queue.reserve(2, Duration::from_secs(60), NOW).unwrap();
    listener.expect_silence();
    queue.give_back(&[&held[0]]).unwrap();
    assert_eq!(listener.next_change(), (3, Change::Data { items: 1 }));
    queue.acknowledge(&[&held[1]]).unwrap();
    assert_eq!(listener.next_change(), (4, Change::Space { items: 1 }));
    queue.reserve(1, Duration::from_millis(20), NOW).unwrap();
    assert_eq!(listener.next_change(), (5, Change::Data { items: 1 }), "its time has passed");
    queue.close().unwrap();
    assert_eq!(listener.next_change(), (6, Change::Close));
    listener.expect_silence();
}

#[test]
fn who_does_not_read_is_told_how_much_was_missed() {
    let setup = Setup::new(1 << 20);
    let store = kv(&setup.client, &setup.job, "a:kv", 1);
    let mut slow = setup.listener("kv");
    slow.subscribe(1, kinds::PUT, Filter::All);
    let mut quick = setup.listener("kv");
    quick.subscribe(1, kinds::PUT, Filter::Key(b"last".to_vec()));
    // More than the sockets between them and the backlog hold, without a byte being read.
    let (key, puts) = (vec![b'k'; 4096], 6000);
    for _ in 0..puts {
        store.put(&key, b"v").unwrap();
    }
    store.put(b"last", b"v").unwrap();
    // Others are not held up, and their numbers are the same.
    assert_eq!(quick.next(), (puts + 1, 1, changed_put(b"last")));
    let (mut told, mut missed, mut last, mut gaps) = (0, 0, 0, 0);
    while told + missed < puts + 1 {
        let (number, _, notice) = slow.next();
        match notice {
            Notice::Changed(_) => {
                assert_eq!(number, last + 1, "what is missing is told before what follows");
                told += 1;
            }
            Notice::Gap(n) => {
                assert_eq!(number, last + n, "a gap has the number of the last one left out");
                (missed, gaps) = (missed + n, gaps + 1);
            }
            other => panic!("{other:?}"),
        }
        last = number;
    }
    assert!(missed > 0 && gaps > 0 && told > 0, "{told} told, {missed} missed in {gaps} gaps");
    assert_eq!((told + missed, last), (puts + 1, puts + 1));
    // And all is well from then on.
    store.put(b"afterwards", b"v").unwrap();
    assert_eq!(slow.next(), (puts + 2, 1, changed_put(b"afterwards")));
}

#[test]
fn a_block_that_is_full_says_where_it_goes_on() {
    let setup = Setup::new(64 * KIB);
    let queue = setup.queue("q");
    let opened = setup.open("q");
    let mut listener = setup.listener("q");
    listener.subscribe(1, kinds::ALL, Filter::All);
    let item = vec![1; 4000];
    let mut put = 0;
    // Until the first block has handed over.
    let (length, to) = loop {
        queue.put(&item, NOW).unwrap();
        put += 1;
        match listener.next() {
            (number, _, Notice::Changed(Change::Data { items: 1 })) => assert_eq!(number, put),
            (number, _, Notice::Handover { length, to }) => {
                assert_eq!((number, length), (put - 1, put - 1));
                break (length, to);
            }
            other => panic!("{other:?}"),
        }
    };
    // The successor: items that were put there before the subscription must be requested.
    let mut next = Listener::new(&setup, &to.entry, &opened.grant);
    assert_eq!(next.subscribe(2, kinds::ALL, Filter::All), 0);
    queue.put(&item, NOW).unwrap();
    assert_eq!(next.next_change(), (1, Change::Data { items: 1 }));
    // A subscriber to an already sealed block is redirected at once.
    let mut late = Listener::new(&setup, &opened.map.entries[0], &opened.grant);
    let number = late.subscribe(3, kinds::ALL, Filter::All);
    let handover = Notice::Handover { length, to: to.clone() };
    assert_eq!(late.next(), (number, 3, handover));
    // The old block notifies of taken items, and ends when it is no longer needed.
    for taken in 1..=length {
        assert_eq!(queue.get(NOW).unwrap().unwrap(), item);
        assert_eq!(listener.next_change(), (length + taken, Change::Space { items: 1 }));
    }
    assert_eq!(queue.get(NOW).unwrap().unwrap(), item, "of the next block");
    let (number, _, notice) = listener.next();
    assert!(matches!(notice, Notice::Ended(Status::WrongEpoch, _)), "{notice:?}");
    assert_eq!(number, 2 * length);
    assert_eq!(next.next_change(), (2, Change::Space { items: 1 }));
}

#[test]
fn subscriptions_end_with_what_they_watch_and_with_their_connection() {
    let setup = Setup::new(256 * KIB);
    let store = kv(&setup.client, &setup.job, "a:kv", 1);
    let mut listener = setup.listener("kv");
    listener.subscribe(1, kinds::PUT, Filter::All);
    listener.subscribe(2, kinds::DELETE, Filter::All);
    let mut gone = setup.listener("kv");
    gone.subscribe(1, kinds::PUT, Filter::All);
    drop(gone);
    store.put(b"k", b"v").unwrap();
    assert_eq!(listener.next(), (1, 1, changed_put(b"k")));
    setup.client.remove_structure(setup.job.job, "a:kv").unwrap();
    let mut ended = [listener.next(), listener.next()];
    ended.sort_by_key(|(_, subscription, _)| *subscription);
    for (i, (number, subscription, notice)) in ended.into_iter().enumerate() {
        assert_eq!((number, subscription), (1, i as u32 + 1));
        assert!(matches!(notice, Notice::Ended(Status::WrongEpoch, _)), "{notice:?}");
    }
    listener.expect_silence();
    let again = RequestHeader::new(Op::Subscribe);
    let header = RequestHeader { at: listener.at, grant: listener.grant, ..again };
    let args = SubscribeArgs { subscription: 3, kinds: 1, filter: Filter::All }.encode();
    assert_eq!(listener.raw.request(header, &args, &[]).status(), Status::WrongEpoch);
}
