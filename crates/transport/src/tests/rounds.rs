//! The loop with real sockets: the order of service, and the effect of a full socket.

use crate::unix::{self, UnixDoor};
use crate::{ConnId, Net, NetOptions, ReplyPayload, Service, TURN};
use honeycomb_env::Clock;
use honeycomb_types::limits::REPLY_HEADER;
use honeycomb_types::{BlockAt, LaneId, Sequence, Time};
use honeycomb_wire::{Header, Op, ReplyHeader, RequestHeader, Status};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// More than the sockets of both sides hold together.
const LARGE: usize = 32 << 20;
/// A value that is sent without being copied, unless the socket is full.
const MIDDLE: usize = 12 << 10;
/// Bytes of a turn that a small request uses.
const SMALL: usize = 2 << 10;
/// So many of it are more than the sockets hold.
const REQUESTS: usize = 128;

/// Replies to a get with many bytes, to `KvExists` with some, and to everything else with none;
/// `Ping` ends the loop. Each request uses `WORK` bytes of its job's turn.
struct Answering<const WORK: usize> {
    value: Arc<[u8]>,
    /// Channels of a test: the service reports the number of each `KvLength` and then waits for the test.
    steps: Option<(Sender<u64>, Receiver<()>)>,
    finished: bool,
}

impl<const WORK: usize> Service for Answering<WORK> {
    type Note = ();

    const WORK: usize = WORK;

    fn on_request(
        &mut self,
        net: &mut Net,
        _: Time,
        from: ConnId,
        header: &RequestHeader,
        _: &[u8],
        _: &[u8],
    ) {
        assert!(net.greet(from, None));
        if let (Op::KvLength, Some((begun, end))) = (header.op, &self.steps) {
            begun.send(header.request).unwrap();
            end.recv().unwrap();
        }
        let payload = match header.op {
            Op::KvGet => ReplyPayload::Shared(self.value.clone()),
            Op::KvExists => ReplyPayload::Copy(&self.value[..MIDDLE]),
            _ => ReplyPayload::Copy(&[]),
        };
        net.reply(from, ReplyHeader::new(Status::Ok, header.request, 0), &[], payload);
        self.finished |= header.op == Op::Ping;
    }

    fn on_close(&mut self, _: &mut Net, _: Time, _: ConnId) {}
    fn on_note(&mut self, _: &mut Net, _: Time, (): ()) {}
    fn on_tick(&mut self, _: &mut Net, _: Time) -> Option<Time> {
        None
    }
    fn finished(&self) -> bool {
        self.finished
    }
}

fn start<const WORK: usize>(
    spin: Duration,
    steps: Option<(Sender<u64>, Receiver<()>)>,
    prepare: impl FnOnce(&mut Net),
) -> JoinHandle<()> {
    let options = NetOptions { spin, budget: 4 * LARGE, connections: Default::default() };
    let mut net = Net::new(Clock::start(), options).unwrap();
    prepare(&mut net);
    let (_mailbox, notes) = net.mailbox();
    let value: Vec<u8> = (0..LARGE).map(|at| (at / 7) as u8).collect();
    let service = Answering::<WORK> { value: value.into(), steps, finished: false };
    std::thread::spawn(move || crate::run(net, service, notes).unwrap())
}

fn listening(spin: Duration) -> (JoinHandle<()>, impl Fn() -> TcpStream) {
    listening_with::<SMALL>(spin, None)
}

fn listening_with<const WORK: usize>(
    spin: Duration,
    steps: Option<(Sender<u64>, Receiver<()>)>,
) -> (JoinHandle<()>, impl Fn() -> TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = start::<WORK>(spin, steps, |net| net.listen(listener).unwrap());
    (server, move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        exchange(&mut stream, Op::Hello);
        stream
    })
}

fn send(stream: &mut impl Write, op: Op) {
    let mut header = RequestHeader::new(op);
    if matches!(op, Op::KvGet | Op::KvExists) {
        header.at = BlockAt::of(1, 1);
        header.grant = 1;
    }
    stream.write_all(&header.encode()).unwrap();
}

fn exchange<S: Read + Write>(stream: &mut S, op: Op) {
    send(stream, op);
    stream.read_exact(&mut [0; REPLY_HEADER]).unwrap();
}

#[test]
fn a_connection_that_is_polled_alone_keeps_nobody_waiting() {
    // Long enough that it polls all the time if a core is free.
    let (server, connect) = listening(Duration::from_secs(1));
    let (mut busy, mut other) = (connect(), connect());
    for _ in 0..10 {
        for _ in 0..100 {
            exchange(&mut busy, Op::Hello);
        }
        send(&mut other, Op::Hello);
        // More rounds than the loop may read only the busy connection.
        for _ in 0..100 {
            exchange(&mut busy, Op::Hello);
        }
        other.set_nonblocking(true).unwrap();
        other.read_exact(&mut [0; REPLY_HEADER]).expect("it was answered in between");
        other.set_nonblocking(false).unwrap();
    }
    exchange(&mut busy, Op::Ping);
    server.join().unwrap();
}

#[test]
fn the_end_of_a_connection_that_is_polled_alone_is_noticed() {
    let (server, connect) = listening(Duration::from_secs(1));
    for _ in 0..20 {
        let mut busy = connect();
        exchange(&mut busy, Op::Hello);
    }
    let mut last = connect();
    exchange(&mut last, Op::Ping);
    server.join().unwrap();
}

#[test]
fn request_over_a_connection_for_own_requests_is_refused_before_the_service() {
    let [door, peer] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [address, elsewhere] = [&door, &peer].map(|listener| listener.local_addr().unwrap());
    let at = BlockAt::of(1, 1);
    let announced = RequestHeader {
        at,
        grant: 1,
        payload_len: 1 << 20,
        lane: LaneId(1),
        sequence: Sequence(1),
        ack_lag: 1,
        ..RequestHeader::new(Op::KvPut)
    };
    let get = RequestHeader { at, grant: 1, ..RequestHeader::new(Op::KvGet) };
    // The service would greet the peer, and end the loop at a `Ping`.
    let requests = [get, announced, RequestHeader::new(Op::Hello), RequestHeader::new(Op::Ping)];
    let server = start::<SMALL>(Duration::ZERO, None, |net| {
        net.listen(door).unwrap();
        for _ in 0..requests.len() + 1 {
            net.dial(elsewhere).unwrap();
        }
    });
    for request in &requests {
        let (mut dialled, _) = peer.accept().unwrap();
        dialled.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        dialled.write_all(&request.encode()).unwrap();
        let mut refusal = Vec::new();
        dialled.read_to_end(&mut refusal).unwrap();
        let Ok(Some((Header::Reply(header), _))) = Header::decode(&refusal, true) else {
            panic!("no reply to {:?}: {refusal:?}", request.op)
        };
        assert_eq!(header.status, Status::BadFrame, "{:?}", request.op);
    }
    // An operation that does not exist is not even answered.
    let (mut dialled, _) = peer.accept().unwrap();
    dialled.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut unknown = get.encode();
    unknown[2..4].copy_from_slice(&u16::MAX.to_le_bytes());
    dialled.write_all(&unknown).unwrap();
    assert_eq!(dialled.read_to_end(&mut Vec::new()).unwrap(), 0);
    let mut client = TcpStream::connect(address).unwrap();
    exchange(&mut client, Op::Hello);
    exchange(&mut client, Op::Ping);
    server.join().unwrap();
}

fn check(value: &[u8]) {
    assert_eq!(value.iter().enumerate().find(|(at, b)| **b != (at / 7) as u8), None);
}

/// Requests more than the socket takes, in one piece or in many, and reads it in small ones.
fn read_slowly<S: Read + Write>(stream: &mut S, nonblocking: impl Fn(&S, bool)) {
    for _ in 0..2 {
        // No more requests than its socket takes while the loop waits for space.
        for _ in 0..REQUESTS {
            send(stream, Op::KvExists);
        }
        for _ in 0..REQUESTS {
            let mut got = vec![0; REPLY_HEADER + MIDDLE];
            stream.read_exact(&mut got).unwrap();
            check(&got[REPLY_HEADER..]);
        }
        send(stream, Op::KvGet);
        // After its first byte the socket is being filled.
        let mut got = vec![0; REPLY_HEADER + LARGE];
        stream.read_exact(&mut got[..1]).unwrap();
        nonblocking(stream, true);
        let mut at = 1;
        while at < got.len() {
            match stream.read(&mut got[at..]) {
                Ok(0) => panic!("the connection ended after {at} bytes"),
                Ok(n) => at += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(e) => panic!("{e}"),
            }
        }
        nonblocking(stream, false);
        check(&got[REPLY_HEADER..]);
        // Small requests continue to work afterwards.
        exchange(stream, Op::Hello);
    }
    exchange(stream, Op::Ping);
}

#[test]
fn what_a_full_socket_does_not_take_is_sent_when_there_is_room() {
    for spin in [Duration::ZERO, Duration::from_micros(50)] {
        let (server, connect) = listening(spin);
        read_slowly(&mut connect(), |s, on| s.set_nonblocking(on).unwrap());
        server.join().unwrap();

        let folder =
            std::env::temp_dir().join(format!("hc-{}-{}", std::process::id(), spin.as_micros()));
        let door = UnixDoor::open(&folder).unwrap();
        let path = door.path().to_owned();
        let server = start::<SMALL>(spin, None, |net| net.listen_near(door).unwrap());
        let mut stream = unix::connect(&path).unwrap();
        stream.set_nonblocking(false).unwrap();
        exchange(&mut stream, Op::Hello);
        read_slowly(&mut stream, |s, on| s.set_nonblocking(on).unwrap());
        server.join().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

/// With many requests of one job, a connection whose turn had ended was read after all that had
/// more by then, round after round: the slowest hundredth took twice as long.
#[test]
fn connection_that_waits_for_the_next_turn_is_read_first_in_it() {
    let (begun, begins) = channel();
    let (ends, end) = channel();
    let (server, connect) = listening_with::<TURN>(Duration::ZERO, Some((begun, end)));
    let mut connections = [connect(), connect()];
    let ask = |stream: &mut TcpStream, request: u64| {
        let header = RequestHeader {
            request,
            at: BlockAt::of(1, 1),
            grant: 1,
            ..RequestHeader::new(Op::KvLength)
        };
        stream.write_all(&header.encode()).unwrap();
    };
    for _ in 0..20 {
        // The number of a request identifies its connection.
        ask(&mut connections[0], 0);
        assert_eq!(begins.recv(), Ok(0));
        (0..2).for_each(|of| ask(&mut connections[of], of as u64));
        ends.send(()).unwrap();
        let served = begins.recv().unwrap();
        // The other one waits for the next round, in which this one has a request as well.
        ask(&mut connections[served as usize], served);
        ends.send(()).unwrap();
        assert_eq!(begins.recv(), Ok(1 - served));
        ends.send(()).unwrap();
        assert_eq!(begins.recv(), Ok(served));
        ends.send(()).unwrap();
        for (of, stream) in connections.iter_mut().enumerate() {
            // The first connection had one request more; of the other two requests each has one, or two.
            let requests = usize::from(of == 0) + 1 + usize::from(of == served as usize);
            (0..requests).for_each(|_| stream.read_exact(&mut [0; REPLY_HEADER]).unwrap());
        }
    }
    exchange(&mut connections[0], Op::Ping);
    server.join().unwrap();
}
