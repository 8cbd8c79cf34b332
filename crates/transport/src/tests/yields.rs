//! A yielding connection: its bytes move a piece at a time, all of them arrive, and other connections are
//! served between the pieces.

use crate::{ConnId, Net, NetOptions, PayloadAction, ReplyPayload, Service, run};
use honeycomb_env::Clock;
use honeycomb_types::limits::REQUEST_HEADER;
use honeycomb_types::{BlockAt, BlockId, Epoch, LaneId, Sequence, ServerId, ShardIx, Time};
use honeycomb_wire::{Op, ReplyHeader, RequestHeader, Status};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

const LARGE: usize = 3 << 20;
/// Maximum bytes that may be read at a time.
const PIECE: usize = 16 * 1024;

/// Replies to a large payload with the same bytes. The first connection yields; a message ends it.
struct Echo {
    payload: Vec<u8>,
    filled: usize,
    header: RequestHeader,
    /// The most bytes that were stored in the payload at a time.
    most: Arc<AtomicUsize>,
    greeted: u32,
    stopped: bool,
}

impl Service for Echo {
    type Note = ();

    fn on_request(
        &mut self,
        net: &mut Net,
        _: Time,
        from: ConnId,
        header: &RequestHeader,
        _: &[u8],
        _: &[u8],
    ) {
        if header.op == Op::Hello {
            assert!(net.greet(from, None));
            self.greeted += 1;
            if self.greeted == 1 {
                net.yields(from);
            }
        }
        let reply = ReplyHeader::new(Status::Ok, header.request, 0);
        net.reply(from, reply, &[], ReplyPayload::Copy(&[]));
    }

    fn begin_fill(
        &mut self,
        _: &mut Net,
        _: Time,
        _: ConnId,
        header: &RequestHeader,
        _: &[u8],
    ) -> PayloadAction {
        (self.header, self.filled) = (*header, 0);
        self.payload = vec![0; header.payload_len as usize];
        PayloadAction::Fill
    }

    fn fill(&mut self, _: ConnId) -> Option<&mut [u8]> {
        Some(&mut self.payload[self.filled..])
    }

    fn filled(&mut self, _: Time, _: ConnId, n: usize) {
        self.filled += n;
        self.most.fetch_max(n, Relaxed);
    }

    fn end_fill(&mut self, net: &mut Net, _: Time, from: ConnId) {
        let bytes: Arc<[u8]> = std::mem::take(&mut self.payload).into();
        let reply = ReplyHeader::new(Status::Ok, self.header.request, 0);
        net.reply(from, reply, &[], ReplyPayload::Shared(bytes));
    }

    fn on_close(&mut self, _: &mut Net, _: Time, _: ConnId) {}
    fn on_note(&mut self, _: &mut Net, _: Time, (): ()) {
        self.stopped = true;
    }
    fn on_tick(&mut self, _: &mut Net, _: Time) -> Option<Time> {
        None
    }
    fn finished(&self) -> bool {
        self.stopped
    }
}

fn ask(stream: &mut TcpStream, op: Op) -> Status {
    let header = RequestHeader { request: 1, ..RequestHeader::new(op) };
    stream.write_all(&header.encode()).unwrap();
    answer(stream).0.status
}

fn answer(stream: &mut TcpStream) -> (ReplyHeader, Vec<u8>) {
    let mut header = [0; honeycomb_types::limits::REPLY_HEADER];
    stream.read_exact(&mut header).unwrap();
    let header = ReplyHeader::decode(&header).unwrap();
    let mut body = vec![0; header.body_len()];
    stream.read_exact(&mut body).unwrap();
    (header, body)
}

fn greeted(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    assert_eq!(ask(&mut stream, Op::Hello), Status::Ok);
    stream
}

/// Starts a loop with that service. Returns a function to end it, its address, and the most bytes
/// that it stored in a payload at a time.
fn serve() -> (impl FnOnce(), SocketAddr, Arc<AtomicUsize>) {
    let options =
        NetOptions { spin: Duration::ZERO, budget: 64 << 20, connections: Default::default() };
    let mut net = Net::new(Clock::start(), options).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    net.listen(listener).unwrap();
    let (mailbox, notes) = net.mailbox();
    let most = Arc::new(AtomicUsize::new(0));
    let echo = Echo {
        payload: Vec::new(),
        filled: 0,
        header: RequestHeader::new(Op::Ping),
        most: most.clone(),
        greeted: 0,
        stopped: false,
    };
    let serving = std::thread::spawn(move || run(net, echo, notes).unwrap());
    let end = move || {
        mailbox.post(()).unwrap();
        serving.join().unwrap();
    };
    (end, address, most)
}

/// The header of a put of this many bytes.
fn put(request: u64, length: usize) -> [u8; REQUEST_HEADER] {
    let mut header = RequestHeader { request, ..RequestHeader::new(Op::KvPut) };
    header.payload_len = length as u32;
    (header.lane, header.sequence, header.ack_lag) = (LaneId(1), Sequence(1), 1);
    header.at = BlockAt { block: BlockId::new(ServerId(1), ShardIx(0), 0), epoch: Epoch(1) };
    header.grant = 1;
    header.encode()
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn a_connection_that_yields_is_read_and_answered_in_pieces() {
    let (end, address, most) = serve();
    let (mut slow, mut other) = (greeted(address), greeted(address));
    let sent = bytes(LARGE);
    slow.write_all(&put(2, LARGE)).unwrap();
    slow.write_all(&sent[..LARGE / 2]).unwrap();
    // The other one is served while half of this payload has arrived.
    assert_eq!(ask(&mut other, Op::Ping), Status::Ok);
    let mut writer = slow.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| writer.write_all(&sent[LARGE / 2..]).unwrap());
        let (header, body) = answer(&mut slow);
        assert_eq!((header.request, header.status), (2, Status::Ok));
        assert!(body == sent, "what was sent has come back");
    });
    let most = most.load(Relaxed);
    assert!(most > 0 && most <= PIECE, "{most} bytes were read at a time");
    end();
}

/// The last piece of a payload is read together with the bytes that follow it.
#[test]
fn what_follows_a_large_payload_is_neither_lost_nor_mixed_with_it() {
    const SMALL: usize = 0;
    // Lengths around the size of a read, with and without small requests between them.
    let lengths = [70_000, SMALL, 131_072, 131_073, SMALL, SMALL, 65_537, 135_168, 300_001, SMALL];
    let (end, address, _) = serve();
    // The first one yields, the second does not.
    for mut stream in [greeted(address), greeted(address)] {
        let mut all = Vec::new();
        for (request, length) in (0..).zip(lengths) {
            match length {
                SMALL => {
                    let ping = RequestHeader { request, ..RequestHeader::new(Op::Ping) };
                    all.extend_from_slice(&ping.encode());
                }
                length => {
                    all.extend_from_slice(&put(request, length));
                    all.extend_from_slice(&bytes(length));
                }
            }
        }
        let mut writer = stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| writer.write_all(&all).unwrap());
            for (request, length) in (0..).zip(lengths) {
                let (header, body) = answer(&mut stream);
                assert_eq!((header.request, header.status), (request, Status::Ok));
                assert!(body == bytes(length), "{length} bytes have come back");
            }
        });
    }
    end();
}
