//! Jobs that share a loop: the memory and the requests of one of them take neither memory nor turns
//! from another (INV-53, INV-57). Each planted bug of this class is found by the test that passes
//! without it.

use honeycomb_env::Clock;
use honeycomb_transport::{
    Arriving, ConnId, Gathering, Mailbox, Net, NetOptions, PayloadAction, ReplyPayload,
    SHARED_TURN, Service, TURN,
};
use honeycomb_types::limits::{CONNECTION_STALL, REPLY_HEADER, REQUEST_RATE_LEAST};
use honeycomb_types::{BlockAt, Bug, LaneId, Sequence, Time};
use honeycomb_wire::{Op, ReplyHeader, RequestHeader, Status};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BUDGET: usize = 8 << 20;
/// A reply to a get.
const VALUE: usize = 64 << 10;
/// Bytes by which one admitted request may exceed the budget.
const ONE: usize = 2 << 20;
/// A `SetPermissions` with more arguments is refused as soon as these have arrived.
const PART: usize = 100 << 10;

#[derive(Default)]
struct Counts {
    /// The most bytes that the loop held, and holds.
    most: AtomicUsize,
    held: AtomicUsize,
    closed: AtomicUsize,
    /// The most requests of one job that were served in a round.
    in_a_round: AtomicUsize,
    puts_begun: AtomicUsize,
    /// The loop blocks at a `FindJob` while a test holds this.
    gate: Mutex<()>,
}

/// The first argument of a handshake names the job. The reply to a get has a value, the payload of
/// a put is collected, and every other request has an empty reply.
struct Shared {
    counts: Arc<Counts>,
    jobs: HashMap<ConnId, u8>,
    served: HashMap<u8, usize>,
    gathered: HashMap<ConnId, (u64, Option<Gathering>)>,
    value: Arc<[u8]>,
    stopped: bool,
}

impl Shared {
    fn answer(net: &mut Net, to: ConnId, status: Status, request: u64, value: ReplyPayload<'_>) {
        net.reply(to, ReplyHeader::new(status, request, 0), &[], value);
    }
}

impl Service for Shared {
    type Note = ();

    fn on_request(
        &mut self,
        net: &mut Net,
        _: Time,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
        _: &[u8],
    ) {
        let none = ReplyPayload::Copy(&[]);
        if header.op == Op::Hello {
            self.jobs.insert(from, args[0]);
            assert!(net.greet(from, Some(args[0].into())));
        }
        *self.served.entry(self.jobs[&from]).or_default() += 1;
        if header.op == Op::FindJob {
            drop(self.counts.gate.lock().unwrap());
        }
        if net.exhausted() && !header.op.is_urgent() {
            return Shared::answer(net, from, Status::Busy, header.request, none);
        }
        let payload = match header.op {
            Op::KvGet => ReplyPayload::Shared(self.value.clone()),
            _ => none,
        };
        Shared::answer(net, from, Status::Ok, header.request, payload);
    }

    fn part(
        &mut self,
        _: ConnId,
        header: &RequestHeader,
        args: &[u8],
    ) -> Result<(), (Status, String)> {
        match header.op == Op::SetPermissions && args.len() > PART {
            true => Err((Status::LimitExceeded, "too much".into())),
            false => Ok(()),
        }
    }

    fn begin_fill(
        &mut self,
        net: &mut Net,
        _: Time,
        from: ConnId,
        header: &RequestHeader,
        _: &[u8],
    ) -> PayloadAction {
        self.counts.puts_begun.fetch_add(1, Relaxed);
        if net.exhausted() {
            Shared::answer(net, from, Status::Busy, header.request, ReplyPayload::Copy(&[]));
            return PayloadAction::Skip;
        }
        let gathering = Gathering::new(header.payload_len as usize, net.permit(from));
        self.gathered.insert(from, (header.request, Some(gathering)));
        PayloadAction::Fill
    }

    fn fill(&mut self, from: ConnId) -> Option<&mut [u8]> {
        Some(self.gathered.get_mut(&from)?.1.as_mut()?.room())
    }

    fn filled(&mut self, _: Time, from: ConnId, n: usize) {
        let (_, gathering) = self.gathered.get_mut(&from).expect("the body was begun");
        if !gathering.as_mut().expect("the body is still arriving").filled(n) {
            *gathering = None;
        }
    }

    fn end_fill(&mut self, net: &mut Net, _: Time, from: ConnId) {
        let Some((request, gathering)) = self.gathered.remove(&from) else { return };
        let status = if gathering.is_some() { Status::Ok } else { Status::Busy };
        Shared::answer(net, from, status, request, ReplyPayload::Copy(&[]));
    }

    fn on_close(&mut self, _: &mut Net, _: Time, conn: ConnId) {
        self.gathered.remove(&conn);
        self.counts.closed.fetch_add(1, Relaxed);
    }

    fn on_note(&mut self, _: &mut Net, _: Time, (): ()) {
        self.stopped = true;
    }

    fn on_tick(&mut self, net: &mut Net, _: Time) -> Option<Time> {
        self.counts.most.fetch_max(net.held(), Relaxed);
        self.counts.held.store(net.held(), Relaxed);
        let most = self.served.drain().map(|(_, served)| served).max().unwrap_or_default();
        self.counts.in_a_round.fetch_max(most, Relaxed);
        None
    }

    fn finished(&self) -> bool {
        self.stopped
    }
}

struct Loop {
    address: SocketAddr,
    counts: Arc<Counts>,
    mailbox: Mailbox<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Loop {
    fn start(bug: Option<Bug>) -> Loop {
        let options =
            NetOptions { spin: Duration::ZERO, budget: BUDGET, connections: Default::default() };
        let mut net = Net::new(Clock::start(), options).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        net.listen(listener).unwrap();
        let (mailbox, notes) = net.mailbox();
        let counts = Arc::new(Counts::default());
        let service = Shared {
            counts: counts.clone(),
            jobs: HashMap::new(),
            served: HashMap::new(),
            gathered: HashMap::new(),
            value: vec![7; VALUE].into(),
            stopped: false,
        };
        let thread = std::thread::spawn(move || {
            Bug::arm(bug);
            honeycomb_transport::run(net, service, notes).unwrap();
        });
        Loop { address, counts, mailbox, thread: Some(thread) }
    }

    fn job(&self, job: u8) -> Peer {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut peer = Peer(stream);
        assert_eq!(peer.ask(Op::Hello, &[job]), Status::Ok);
        peer
    }

    /// When this has been answered twice, all earlier requests of this job and others have been
    /// read. A resting job (ADR 0045) is read later than others, so it is checked separately.
    fn settled(&self, job: u8) {
        for job in [200, job] {
            let mut peer = self.job(job);
            (0..3).for_each(|_| assert_eq!(peer.ask(Op::Ping, &[]), Status::Ok));
        }
    }

    fn closed(&self, connections: usize) {
        let clock = Clock::start();
        while self.counts.closed.load(Relaxed) < connections {
            assert!(clock.now() < Time::from_millis(60_000), "its end is noticed");
            clock.sleep_until(clock.now() + Duration::from_millis(1));
        }
    }

    fn most(&self) -> usize {
        self.counts.most.load(Relaxed)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = self.mailbox.post(());
        let ended = self.thread.take().expect("the loop is ended once").join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

struct Peer(TcpStream);

impl Peer {
    fn send(&mut self, op: Op, args: &[u8], (args_len, payload_len): (usize, usize)) {
        let mut header = RequestHeader { request: 7, ..RequestHeader::new(op) };
        if matches!(op, Op::KvGet | Op::KvPut) {
            (header.at, header.grant) = (BlockAt::of(1, 1), 1);
        }
        if op == Op::KvPut {
            (header.lane, header.sequence, header.ack_lag) = (LaneId(1), Sequence(1), 1);
        }
        (header.args_len, header.payload_len) = (args_len as u32, payload_len as u32);
        let _ = self.0.write_all(&[&header.encode()[..], args].concat());
    }

    fn answer(&mut self) -> Status {
        let mut head = [0; REPLY_HEADER];
        self.0.read_exact(&mut head).unwrap();
        let header = ReplyHeader::decode(&head).unwrap();
        self.0.read_exact(&mut vec![0; header.body_len()]).unwrap();
        header.status
    }

    fn ask(&mut self, op: Op, args: &[u8]) -> Status {
        self.send(op, args, (args.len(), 0));
        self.answer()
    }

    /// A control request of which this much is sent, and one byte always lacks.
    fn announce(&mut self, bytes: usize) {
        self.send(Op::CreateHierarchy, &vec![0; bytes], (bytes + 1, 0));
    }

    fn is_refused(&mut self) -> bool {
        self.0.set_nonblocking(true).unwrap();
        let refused = match self.0.read(&mut [0; REPLY_HEADER]) {
            Ok(n) => n > 0,
            Err(e) => e.kind() != ErrorKind::WouldBlock,
        };
        self.0.set_nonblocking(false).unwrap();
        refused
    }
}

/// Connections of a hoard for each size of a body.
const HOARDERS: usize = 24;

/// Unfinished bodies of over 24 MiB from one job: large ones first, then smaller ones for the space
/// that the refused ones have left.
fn hoard(shared: &Loop, job: u8) -> Vec<Peer> {
    let mut peers = Vec::new();
    for bytes in [1 << 20, 128 << 10, 16 << 10] {
        for _ in 0..HOARDERS {
            let mut peer = shared.job(job);
            peer.announce(bytes);
            peers.push(peer);
        }
        shared.settled(job);
    }
    peers
}

#[test]
fn unfinished_bodies_of_a_job_leave_its_neighbours_served_and_memory_bounded() {
    let shared = Loop::start(None);
    let mut hoard = hoard(&shared, 1);
    assert!(hoard.iter_mut().any(Peer::is_refused), "24 MiB are more than 8");
    let mut victim = shared.job(2);
    for _ in 0..100 {
        assert_eq!(victim.ask(Op::CreatePrefix, &[0; 500]), Status::Ok);
        assert_eq!(victim.ask(Op::CreateHierarchy, &vec![0; 256 << 10]), Status::Ok);
        assert_eq!(victim.ask(Op::KvGet, &[]), Status::Ok);
    }
    assert!(shared.most() <= BUDGET + ONE, "{} bytes were held", shared.most());
}

#[test]
fn replies_that_a_job_does_not_read_leave_its_neighbours_served_and_memory_bounded() {
    let shared = Loop::start(None);
    let asks = |_| {
        let mut peer = shared.job(1);
        peer.0.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        (0..400).for_each(|_| peer.send(Op::KvGet, &[], (0, 0)));
        peer
    };
    let unread: Vec<Peer> = (0..8).map(asks).collect();
    // The job's own replies have no space.
    shared.settled(200);
    let mut victim = shared.job(2);
    (0..200).for_each(|_| assert_eq!(victim.ask(Op::KvGet, &[]), Status::Ok));
    assert!(shared.most() <= BUDGET + ONE, "{} bytes were held", shared.most());
    drop(unread);
}

#[test]
fn pipelined_requests_of_a_job_are_cut_after_its_turn() {
    let shared = Loop::start(None);
    let mut flood: Vec<Peer> = (0..8).map(|_| shared.job(1)).collect();
    let header = RequestHeader { request: 7, ..RequestHeader::new(Op::Ping) };
    let batch: Vec<u8> = std::iter::repeat_n(header.encode(), 4000).flatten().collect();
    flood.iter_mut().for_each(|peer| peer.0.write_all(&batch).unwrap());
    for peer in &mut flood {
        (0..4000).for_each(|_| assert_eq!(peer.answer(), Status::Ok));
    }
    let most = shared.counts.in_a_round.load(Relaxed);
    assert!(most <= TURN / Shared::WORK + 1, "{most} requests of one job in a round");
}

/// The most requests of one job in a round, with two jobs whose requests have all arrived.
fn most_in_a_shared_round(bug: Option<Bug>) -> usize {
    let shared = Loop::start(bug);
    let mut gate = shared.job(3);
    let mut flood: Vec<Peer> = (0..16).map(|n| shared.job(1 + n % 2)).collect();
    let closed = shared.counts.gate.lock().unwrap();
    gate.send(Op::FindJob, &[], (0, 0));
    let header = RequestHeader { request: 7, ..RequestHeader::new(Op::Ping) };
    let batch: Vec<u8> = std::iter::repeat_n(header.encode(), 500).flatten().collect();
    flood.iter_mut().for_each(|peer| peer.0.write_all(&batch).unwrap());
    drop(closed);
    for peer in &mut flood {
        (0..500).for_each(|_| assert_eq!(peer.answer(), Status::Ok));
    }
    shared.counts.in_a_round.load(Relaxed)
}

#[test]
fn turns_of_jobs_that_share_a_loop_are_short() {
    let most = most_in_a_shared_round(None);
    assert!(most <= SHARED_TURN / Shared::WORK + 1, "{most} requests of one job in a round");
}

#[test]
fn long_turns_of_jobs_that_share_a_loop_are_caught() {
    let most = most_in_a_shared_round(Some(Bug::SharedTurnsStayLong));
    assert!(most > SHARED_TURN / Shared::WORK + 1, "{most} requests of one job in a round");
}

#[test]
fn request_that_is_refused_by_its_first_part_takes_no_memory_for_the_rest() {
    let shared = Loop::start(None);
    let mut peer = shared.job(1);
    for _ in 0..3 {
        assert_eq!(peer.ask(Op::SetPermissions, &vec![0; 4 << 20]), Status::LimitExceeded);
        assert_eq!(peer.ask(Op::SetPermissions, &vec![0; PART / 2]), Status::Ok);
    }
    assert!(shared.most() < 1 << 20, "{} bytes were held", shared.most());
}

/// A renewal of which half has arrived when its job has used up its share.
fn renewal_of_a_job_that_holds_its_share(bug: Option<Bug>) -> Status {
    let shared = Loop::start(bug);
    let mut renewing = shared.job(1);
    let hoard = hoard(&shared, 1);
    let renewal = vec![0; 64 << 10];
    renewing.send(Op::RenewLeases, &renewal[..32 << 10], (renewal.len(), 0));
    shared.settled(1);
    let _ = renewing.0.write_all(&renewal[32 << 10..]);
    drop(hoard);
    renewing.answer()
}

#[test]
fn renewal_of_a_job_that_holds_its_share_is_served() {
    assert_eq!(renewal_of_a_job_that_holds_its_share(None), Status::Ok);
}

#[test]
fn renewals_that_use_the_common_budget_are_caught() {
    let bug = Some(Bug::RenewalsUseCommonBudget);
    assert_eq!(renewal_of_a_job_that_holds_its_share(bug), Status::Busy);
}

/// The bytes that the loop holds after all connections of a hoard have ended, and whether its job
/// is served then.
fn after_the_hoard_has_died(bug: Option<Bug>) -> (usize, Status) {
    let shared = Loop::start(bug);
    drop(hoard(&shared, 1));
    // The other three are the probes of `hoard`.
    shared.closed(3 * HOARDERS + 3);
    let mut survivor = shared.job(1);
    let status = survivor.ask(Op::CreatePrefix, &[0; 100]);
    (shared.counts.held.load(Relaxed), status)
}

#[test]
fn what_a_dead_connection_held_is_given_back() {
    let (held, status) = after_the_hoard_has_died(None);
    assert!(held < 4096 && status == Status::Ok, "{held} bytes are held, {status:?}");
}

#[test]
fn budgets_that_the_dead_keep_are_caught() {
    let (held, _) = after_the_hoard_has_died(Some(Bug::DeadKeepTheirBudget));
    assert!(held > BUDGET / 4, "{held} bytes are held");
}

/// Large payloads that are announced and never sent, and another request of their job.
fn beside_announced_payloads(bug: Option<Bug>) -> Status {
    let shared = Loop::start(bug);
    let announce = |_| {
        let mut peer = shared.job(1);
        peer.send(Op::KvPut, &[], (0, 1 << 20));
        peer
    };
    let announced: Vec<Peer> = (0..24).map(announce).collect();
    shared.settled(1);
    assert_eq!(shared.counts.puts_begun.load(Relaxed), announced.len());
    shared.job(1).ask(Op::CreatePrefix, &[0; 100])
}

#[test]
fn announced_payloads_take_no_memory_before_they_come() {
    assert_eq!(beside_announced_payloads(None), Status::Ok);
}

#[test]
fn shares_that_count_what_is_announced_are_caught() {
    let bug = Some(Bug::SharesCountAnnounced);
    assert_eq!(beside_announced_payloads(bug), Status::Busy);
}

/// How long a request may take that sends a byte a second.
fn dribbles_for(bytes: usize) -> Duration {
    let (mut arriving, begin) = (Arriving::default(), Time::from_millis(1000));
    let mut now = begin;
    for _ in 0..1000 {
        arriving.goes_on(now, bytes);
        now = now + Duration::from_secs(1);
        if arriving.is_overdue(now) {
            break;
        }
    }
    now.since(begin)
}

#[test]
fn deadline_of_a_request_is_not_moved_by_its_bytes() {
    let second = Duration::from_secs(1);
    assert_eq!(dribbles_for(0), CONNECTION_STALL + second);
    assert_eq!(dribbles_for(60 * REQUEST_RATE_LEAST), CONNECTION_STALL + 61 * second);
    let mut next = Arriving::default();
    next.goes_on(Time::from_millis(0), 0);
    next.ends();
    assert!(!next.is_overdue(Time::from_millis(100_000)), "it has come");
}

#[test]
fn deadlines_that_each_byte_restarts_are_caught() {
    Bug::arm(Some(Bug::DeadlineRestarts));
    let time = dribbles_for(0);
    Bug::arm(None);
    assert_eq!(time, Duration::from_secs(1000));
}
