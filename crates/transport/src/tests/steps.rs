//! Background steps take a part of a loop's time.

use crate::{ConnId, Net, NetOptions, PayloadAction, ReplyPayload, Service, run};
use honeycomb_env::Clock;
use honeycomb_types::Time;
use honeycomb_types::limits::REPLY_HEADER;
use honeycomb_wire::{Op, ReplyHeader, RequestHeader, Status};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// The time of one step, of one request, and of the most steps in a row.
const STEP: Duration = Duration::from_micros(20);
const REQUEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_micros(500);

/// Always has another step to do, and answers slowly.
struct Stepping {
    clock: Clock,
    steps: u32,
    /// The most steps in one round.
    most: Arc<AtomicU32>,
    stopped: bool,
}

impl Stepping {
    fn spin(&self, time: Duration) {
        let until = self.clock.now() + time;
        while self.clock.now() < until {}
    }
}

impl Service for Stepping {
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
        }
        self.spin(REQUEST);
        let reply = ReplyHeader::new(Status::Ok, header.request, 0);
        net.reply(from, reply, &[], ReplyPayload::Copy(&[]));
    }

    fn begin_fill(
        &mut self,
        _: &mut Net,
        _: Time,
        _: ConnId,
        _: &RequestHeader,
        _: &[u8],
    ) -> PayloadAction {
        unreachable!("no request has a payload")
    }

    fn fill(&mut self, _: ConnId) -> Option<&mut [u8]> {
        None
    }

    fn filled(&mut self, _: Time, _: ConnId, _: usize) {}
    fn end_fill(&mut self, _: &mut Net, _: Time, _: ConnId) {}
    fn on_close(&mut self, _: &mut Net, _: Time, _: ConnId) {}

    fn on_note(&mut self, _: &mut Net, _: Time, (): ()) {
        self.stopped = true;
    }

    fn on_tick(&mut self, _: &mut Net, _: Time) -> Option<Time> {
        self.most.fetch_max(std::mem::take(&mut self.steps), Relaxed);
        None
    }

    fn step(&mut self, _: &mut Net, _: Time) -> bool {
        self.spin(STEP);
        self.steps += 1;
        true
    }

    fn finished(&self) -> bool {
        self.stopped
    }
}

#[test]
fn steps_after_a_long_round_are_many_and_bounded() {
    let options =
        NetOptions { spin: Duration::ZERO, budget: 64 << 20, connections: Default::default() };
    let mut net = Net::new(Clock::start(), options).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    net.listen(listener).unwrap();
    let (mailbox, notes) = net.mailbox();
    let most = Arc::new(AtomicU32::new(0));
    let service = Stepping { clock: Clock::start(), steps: 0, most: most.clone(), stopped: false };
    let serving = std::thread::spawn(move || run(net, service, notes).unwrap());
    let mut stream = TcpStream::connect(address).unwrap();
    // Some round of these is not interrupted.
    for op in std::iter::once(Op::Hello).chain([Op::Ping; 50]) {
        let header = RequestHeader { request: 1, ..RequestHeader::new(op) };
        stream.write_all(&header.encode()).unwrap();
        stream.read_exact(&mut [0; REPLY_HEADER]).unwrap();
    }
    mailbox.post(()).unwrap();
    serving.join().unwrap();
    let (most, bound) = (most.load(Relaxed), LONGEST.div_duration_f64(STEP) as u32 + 1);
    assert!((5..=bound).contains(&most), "{most} steps in a row, at most {bound}");
}
