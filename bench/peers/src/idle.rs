//! Honeycomb's loop with a service that answers at once: the cost of the loop alone.

use honeycomb_env::Clock;
use honeycomb_transport::unix::UnixDoor;
use honeycomb_transport::{ConnId, Net, NetOptions, ReplyPayload, Service};
use honeycomb_types::Time;
use honeycomb_wire::{Op, ReplyHeader, RequestHeader, Status};
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

/// Bytes of requests and replies that the loop may hold.
const BUDGET: usize = 256 << 20;

struct Idle {
    value: Vec<u8>,
}

impl Service for Idle {
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
            net.greet(from, None);
        }
        let payload = if header.op == Op::KvGet { &self.value[..] } else { &[] };
        let reply = ReplyHeader::new(Status::Ok, header.request, 0);
        net.reply(from, reply, &[], ReplyPayload::Copy(payload));
    }

    fn on_close(&mut self, _: &mut Net, _: Time, _: ConnId) {}
    fn on_note(&mut self, _: &mut Net, _: Time, (): ()) {}
    fn on_tick(&mut self, _: &mut Net, _: Time) -> Option<Time> {
        None
    }
}

/// Serves on a free port, or on a socket in the folder after `unix:`, until standard input ends; the first
/// line of the output is its address. The answer to KvGet has `bytes` bytes, all other answers are empty.
pub fn serve(place: &str, bytes: usize) -> Result<(), String> {
    let said = |e: std::io::Error| e.to_string();
    let options =
        NetOptions { spin: Duration::ZERO, budget: BUDGET, connections: Default::default() };
    let mut net = Net::new(Clock::start(), options).map_err(said)?;
    match place.strip_prefix("unix:") {
        Some(folder) => {
            let door = UnixDoor::open(Path::new(folder)).map_err(said)?;
            println!("unix:{}", door.path());
            net.listen_near(door).map_err(said)?;
        }
        None => {
            let listener = TcpListener::bind("127.0.0.1:0").map_err(said)?;
            println!("{}", listener.local_addr().map_err(said)?);
            net.listen(listener).map_err(said)?;
        }
    }
    let (_mailbox, notes) = net.mailbox();
    std::thread::spawn(|| {
        // There is no input: its end means the end of the program that started this one.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    honeycomb_transport::run(net, Idle { value: vec![7; bytes] }, notes).map_err(said)
}
