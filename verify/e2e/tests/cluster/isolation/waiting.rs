//! Waiting requests and subscriptions: a caller cannot wait for, or be notified of, data of others, and the
//! end of a right ends the wait.

use super::*;
use honeycomb_env::Clock;
use honeycomb_types::Time;
use honeycomb_wire::RequestHeader;
use honeycomb_wire::notice::{Change, Notice};
use honeycomb_wire::queue::{Counts, put_lengths};

/// A right that ends is noticed within this.
const SOON: Duration = Duration::from_secs(1);
/// Waiting requests wait so long, which is longer than anything here takes.
const LONG_MS: u32 = 8000;

/// A connection with a grant for the victim's queue.
struct Waiter {
    raw: Raw,
    grant: u32,
    lane: u32,
}

impl Waiter {
    fn new(cluster: &Cluster, token: &[u8], shard: u8, grant: &[u8]) -> Waiter {
        let mut raw = Raw::greeted(cluster.servers[0].address(), token, shard);
        let grant = raw.present(grant);
        Waiter { raw, grant, lane: 0 }
    }

    fn header(&mut self, op: Op, at: BlockAt, wait_ms: u32) -> RequestHeader {
        self.lane += 1;
        let request = self.raw.number();
        let header = data_header(op, at, self.grant, self.lane);
        RequestHeader { request, deadline_ms: wait_ms, ..header }
    }

    /// Sends a request that waits; the number under which it will be answered.
    fn begin(&mut self, op: Op, at: BlockAt, payload: &[u8], wait_ms: u32) -> u64 {
        let args = if op == Op::QueueGet { get_one() } else { Vec::new() };
        let header = self.header(op, at, wait_ms);
        self.raw.send(&frame(header, &args, payload));
        header.request
    }

    /// The reply to it, and how long that took.
    fn end(&mut self, request: u64) -> (Reply, Duration) {
        let clock = Clock::start();
        let reply = self.raw.reply();
        assert_eq!(reply.header.request, request, "{}", reply.message());
        (reply, clock.now().since(Time::ZERO))
    }

    fn now(&mut self, op: Op, at: BlockAt, args: &[u8], payload: &[u8]) -> Reply {
        let header = self.header(op, at, 0);
        self.raw.request(header, args, payload)
    }

    /// The server has taken up everything that this connection has sent before.
    fn taken_up(&mut self, at: BlockAt) {
        let reply = self.now(Op::QueueLength, at, &[0], &[]);
        assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
    }

    fn subscribe(&mut self, at: BlockAt) -> Reply {
        let filter = Filter::All;
        let args = SubscribeArgs { subscription: 5, kinds: kinds::ALL, filter }.encode();
        let header = RequestHeader { lane: LaneId(0), ..self.header(Op::Subscribe, at, 0) };
        self.raw.request(header, &args, &[])
    }

    fn notice(&mut self) -> (u64, Notice) {
        let reply = self.raw.reply();
        assert_eq!((reply.status(), reply.header.request), (Status::Notice, 0));
        let (subscription, notice) = Notice::decode(&reply.args).unwrap();
        assert_eq!(subscription, 5);
        (reply.header.value, notice)
    }

    /// How many items the queue's block holds.
    fn held(&mut self, at: BlockAt) -> u64 {
        let reply = self.now(Op::QueueLength, at, &[0], &[]);
        assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
        reply.header.value - Counts::decode(&reply.args).unwrap().taken
    }
}

/// The victim's item is taken: its queue is empty.
fn emptied(cluster: &Cluster, name: &str) -> Victim {
    let victim = Victim::new(cluster, name);
    let queue = victim.client.open_queue(victim.job.job, "own:queue").unwrap();
    assert_eq!(queue.get(Duration::ZERO).unwrap().unwrap(), ITEM);
    victim
}

fn shard_of(held: &Held) -> u8 {
    held.at.block.shard().0
}

#[test]
fn another_job_is_told_nothing() {
    let (cluster, _) = keyed_cluster(MEMORY, BLOCK);
    let (victim, foreign) = (emptied(&cluster, "victim"), Victim::new(&cluster, "foreign"));
    let at = victim.queue.at;
    let mut own =
        Waiter::new(&cluster, &victim.job.token, shard_of(&victim.queue), &victim.queue.grant);
    assert_eq!(own.subscribe(at).status(), Status::Ok);
    // With a grant of its own, for each of the victim's blocks, on the core that would serve it.
    for held in [&victim.kv, &victim.file, &victim.queue] {
        let mut stranger =
            Waiter::new(&cluster, &foreign.job.token, shard_of(held), &foreign.queue.grant);
        let reply = stranger.subscribe(held.at);
        assert_eq!(reply.status(), Status::WrongEpoch, "{}", reply.message());
        let queue = victim.client.open_queue(victim.job.job, "own:queue").unwrap();
        queue.put(b"news", Duration::ZERO).unwrap();
        let log = victim.client.open_file(victim.job.job, "own:log").unwrap();
        log.append(b"news").unwrap();
        let store = victim.client.open_kv(victim.job.job, "own:kv").unwrap();
        store.put(b"news", b"news").unwrap();
        // The victim is notified; the next message to the stranger is the answer to its own request.
        assert_eq!(own.notice().1, Notice::Changed(Change::Data { items: 1 }));
        stranger.raw.expect_alive();
    }
}

#[test]
fn a_waiting_get_of_another_job_never_gets_an_item() {
    let (cluster, _) = keyed_cluster(MEMORY, BLOCK);
    let (victim, foreign) = (emptied(&cluster, "victim"), emptied(&cluster, "foreign"));
    let at = victim.queue.at;
    let mut strangers: Vec<(Waiter, u64)> = Vec::new();
    for shard in [0, 1] {
        let waiter = |grant| Waiter::new(&cluster, &foreign.job.token, shard, grant);
        // At the victim's block they are refused at once, though there is nothing to take.
        let mut refused = waiter(&foreign.queue.grant);
        let request = refused.begin(Op::QueueGet, at, &[], LONG_MS);
        let (reply, took) = refused.end(request);
        assert_eq!(reply.status(), Status::WrongEpoch, "{}", reply.message());
        assert!(took < SOON, "it waited at the victim's block");
        // At their own they may wait, and stay without.
        let mut waits = waiter(&foreign.queue.grant);
        let request = waits.begin(Op::QueueGet, foreign.queue.at, &[], 500);
        waits.taken_up(foreign.queue.at);
        strangers.push((waits, request));
    }
    let mut own =
        Waiter::new(&cluster, &victim.job.token, shard_of(&victim.queue), &victim.queue.grant);
    assert_eq!(own.now(Op::QueuePut, at, &[], ITEM).status(), Status::Ok);
    for (waiter, request) in &mut strangers {
        let (reply, _) = waiter.end(*request);
        assert_eq!(reply.status(), Status::QueueEmpty, "{}", reply.message());
        assert!(reply.payload.is_empty());
    }
    assert_eq!(own.held(at), 1);
}

#[test]
fn a_revoked_grant_waits_for_nothing_and_is_told_nothing() {
    let (cluster, _) = keyed_cluster(MEMORY, BLOCK);
    let victim = emptied(&cluster, "victim");
    let (at, shard) = (victim.queue.at, shard_of(&victim.queue));
    let token = &victim.job.token;
    let mut told = Waiter::new(&cluster, token, shard, &victim.queue.grant);
    assert_eq!(told.subscribe(at).status(), Status::Ok);
    let mut waiting = Vec::new();
    for shard in [0, 1] {
        let mut waiter = Waiter::new(&cluster, token, shard, &victim.queue.grant);
        let request = waiter.begin(Op::QueueGet, at, &[], LONG_MS);
        waiter.taken_up(at);
        waiting.push((waiter, request));
    }
    victim.client.set_permissions(victim.job.job, "own", Verbs::ALL, Verbs::NONE).unwrap();
    for (waiter, request) in &mut waiting {
        let (reply, took) = waiter.end(*request);
        assert_eq!(reply.status(), Status::GrantRevoked, "{}", reply.message());
        assert!(took < SOON, "it was let wait for {took:?}");
    }
    assert!(matches!(told.notice(), (_, Notice::Ended(Status::GrantRevoked, _))));
    // Items put from now on are available to callers with rights.
    let mut controller = Raw::greeted(cluster.controller.address(), token, ANY_SHARD);
    let fresh = open(&mut controller, &victim.job, "own", "queue");
    let mut own = Waiter::new(&cluster, token, shard, &fresh.grant);
    assert_eq!(own.now(Op::QueuePut, at, &[], ITEM).status(), Status::Ok);
    assert_eq!(own.held(at), 1);
    told.raw.expect_alive();
    for (waiter, _) in &mut waiting {
        waiter.raw.expect_alive();
        // Its place in the lane was not used: under a grant that is good it goes on there.
        let mut header = data_header(Op::QueueGet, at, waiter.raw.present(&fresh.grant), 1);
        header.request = waiter.raw.number();
        let reply = waiter.raw.request(header, &get_one(), &[]);
        let (got, put_back) = (reply.status(), own.now(Op::QueuePut, at, &[], ITEM).status());
        assert_eq!((got, put_back), (Status::Ok, Status::Ok), "{}", reply.message());
        assert_eq!(reply.payload, ITEM);
    }
}

#[test]
fn a_put_that_waits_for_room_is_not_done_under_a_revoked_grant() {
    let (cluster, _) = keyed_cluster(MEMORY, BLOCK);
    let victim = emptied(&cluster, "victim");
    let (client, job) = (&victim.client, &victim.job);
    let bounded = client.create_queue(job.job, "own:bounded", 1, 0, false).unwrap();
    bounded.put(ITEM, Duration::ZERO).unwrap();
    let mut controller = Raw::greeted(cluster.controller.address(), &job.token, ANY_SHARD);
    let held = open(&mut controller, job, "own", "bounded");
    let mut waiting = Waiter::new(&cluster, &job.token, shard_of(&held), &held.grant);
    let request = waiting.begin(Op::QueuePut, held.at, b"harm", LONG_MS);
    waiting.taken_up(held.at);
    client.set_permissions(job.job, "own", Verbs::ALL, Verbs::NONE).unwrap();
    let (reply, took) = waiting.end(request);
    assert_eq!(reply.status(), Status::GrantRevoked, "{}", reply.message());
    assert!(took < SOON, "it was let wait for {took:?}");
    // There is room now, and no request waits for it.
    let queue = client.open_queue(job.job, "own:bounded").unwrap();
    assert_eq!(queue.get(Duration::ZERO).unwrap().unwrap(), ITEM);
    assert_eq!(queue.get(Duration::ZERO).unwrap(), None);
}

#[test]
fn a_get_waits_no_longer_than_its_grant_is_good() {
    let (cluster, root) = keyed_cluster(MEMORY, BLOCK);
    let victim = emptied(&cluster, "victim");
    let mut raw = Raw::connect(cluster.controller.address());
    let hello = raw.hello(&victim.job.token, PrefixId(0), ANY_SHARD);
    let now_ms = HelloReply::decode(&hello.args).unwrap().now_ms;
    let mut short = root.grant_key().verify(&victim.queue.grant).unwrap();
    short.expires_ms = now_ms + 400;
    let short = root.grant_key().issue(&short);
    let (at, token) = (victim.queue.at, &victim.job.token);
    for shard in [0, 1] {
        let mut waiter = Waiter::new(&cluster, token, shard, &short);
        let request = waiter.begin(Op::QueueGet, at, &[], LONG_MS);
        let (reply, took) = waiter.end(request);
        // Not that there is nothing: whoever has a grant that is good goes on waiting. The second
        // finds it past its time already.
        assert_eq!(reply.status(), Status::GrantExpired, "{}", reply.message());
        assert!(took < Duration::from_millis(400) + SOON, "it was let wait for {took:?}");
        let clock_ms = HelloReply::decode(&greeting(&cluster, token)).unwrap().now_ms;
        assert!(clock_ms + 50 > now_ms + 400, "it ended {} ms early", now_ms + 400 - clock_ms);
        // Its number was not used: it goes on in the same lane.
        let grant = waiter.raw.present(&victim.queue.grant);
        let header = data_header(Op::QueueGet, at, grant, 1);
        let reply = waiter.raw.request(header, &get_one(), &[]);
        assert_eq!(reply.status(), Status::QueueEmpty, "{}", reply.message());
    }
    let mut own = Waiter::new(&cluster, token, shard_of(&victim.queue), &victim.queue.grant);
    assert_eq!(own.now(Op::QueuePut, at, &[], ITEM).status(), Status::Ok);
    assert_eq!(own.held(at), 1);
}

fn greeting(cluster: &Cluster, token: &[u8]) -> Vec<u8> {
    Raw::connect(cluster.controller.address()).hello(token, PrefixId(0), ANY_SHARD).args
}

/// A waiting get whose connection closed takes no item, on whichever core it waited.
#[test]
fn a_get_whose_connection_is_gone_takes_nothing() {
    let (cluster, _) = keyed_cluster(MEMORY, BLOCK);
    let victim = emptied(&cluster, "victim");
    let (at, token) = (victim.queue.at, &victim.job.token);
    let mut own = Waiter::new(&cluster, token, shard_of(&victim.queue), &victim.queue.grant);
    for shard in [0, 1] {
        let mut beside = Raw::greeted(cluster.servers[0].address(), token, shard);
        let mut gone = Waiter::new(&cluster, token, shard, &victim.queue.grant);
        gone.begin(Op::QueueGet, at, &[], LONG_MS);
        gone.taken_up(at);
        drop(gone);
        // Its core has seen the end of the connection before it answers the second of these, and
        // the block's core has heard of that before it answers the last.
        beside.expect_alive();
        beside.expect_alive();
        own.raw.expect_alive();
        own.raw.expect_alive();
        assert_eq!(own.now(Op::QueuePut, at, &[], ITEM).status(), Status::Ok);
        assert_eq!(own.held(at), 1, "an item went to a closed connection of shard {shard}");
        assert_eq!(own.now(Op::QueueGet, at, &get_one(), &[]).payload, ITEM);
    }
}

/// A large put that gave up no longer stands before a small one for which there is room.
#[test]
fn who_stood_behind_one_that_is_gone_is_served() {
    let (cluster, _) = keyed_cluster(MEMORY, BLOCK);
    let victim = emptied(&cluster, "victim");
    let (client, job) = (&victim.client, &victim.job);
    let bounded = client.create_queue(job.job, "own:bounded", 2, 0, false).unwrap();
    bounded.put(ITEM, Duration::ZERO).unwrap();
    let mut controller = Raw::greeted(cluster.controller.address(), &job.token, ANY_SHARD);
    let held = open(&mut controller, job, "own", "bounded");
    for shard in [0, 1] {
        let mut first = Waiter::new(&cluster, &job.token, shard, &held.grant);
        let mut lengths = Vec::new();
        put_lengths(&[b"a", b"b"], &mut lengths);
        let header = first.header(Op::QueuePut, held.at, LONG_MS);
        first.raw.send(&frame(header, &lengths, b"ab"));
        first.taken_up(held.at);
        let mut second = Waiter::new(&cluster, &job.token, shard, &held.grant);
        let request = second.begin(Op::QueuePut, held.at, b"c", LONG_MS);
        second.taken_up(held.at);
        drop(first);
        let (reply, took) = second.end(request);
        assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
        assert!(took < SOON, "it stood behind nobody for {took:?}");
        let queue = client.open_queue(job.job, "own:bounded").unwrap();
        assert_eq!(queue.get(Duration::ZERO).unwrap().unwrap(), ITEM);
        assert_eq!(queue.get(Duration::ZERO).unwrap().unwrap(), b"c");
        queue.put(ITEM, Duration::ZERO).unwrap();
    }
}

/// Lanes belong to a block: a repeated request takes the place of its own earlier try and of no
/// other that has the same numbers elsewhere.
#[test]
fn a_repeated_request_takes_the_place_of_its_own_try() {
    let (cluster, _) = keyed_cluster(MEMORY, BLOCK);
    let victim = emptied(&cluster, "victim");
    let (client, job) = (&victim.client, &victim.job);
    let mut controller = Raw::greeted(cluster.controller.address(), &job.token, ANY_SHARD);
    // Two queues on one core.
    let names: Vec<String> = (0..4).map(|i| format!("q{i}")).collect();
    let mut queues = names.iter().map(|name| {
        let queue = queue(client, job, &format!("own:{name}"));
        (open(&mut controller, job, "own", name), queue)
    });
    let first = queues.next().unwrap();
    let second = queues.find(|(held, _)| shard_of(held) == shard_of(&first.0)).unwrap();
    let mut raw = Raw::greeted(cluster.servers[0].address(), &job.token, shard_of(&first.0));
    let grants = [&first, &second].map(|(held, _)| raw.present(&held.grant));
    let mut begin = |which: usize, flags: u16| {
        let at = [first.0.at, second.0.at][which];
        let request = raw.number();
        let header = data_header(Op::QueueGet, at, grants[which], 1);
        let header = RequestHeader { request, flags, deadline_ms: LONG_MS, ..header };
        raw.send(&frame(header, &get_one(), &[]));
        request
    };
    let (of_first, lost, again) =
        (begin(0, 0), begin(1, 0), begin(1, honeycomb_wire::flags::RETRY));
    let reply = raw.reply();
    assert_eq!((reply.header.request, reply.status()), (lost, Status::Busy));
    for ((_, queue), request) in [(&first, of_first), (&second, again)] {
        queue.put(ITEM, Duration::ZERO).unwrap();
        let reply = raw.reply();
        assert_eq!((reply.header.request, reply.status()), (request, Status::Ok));
        assert_eq!(reply.payload, ITEM);
    }
}
