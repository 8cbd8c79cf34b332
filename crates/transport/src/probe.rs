//! Checks whether an address has a listener.

use crate::hello::hello;
use honeycomb_env::Clock;
use honeycomb_types::limits::REPLY_HEADER;
use honeycomb_types::{ServerId, Time};
use honeycomb_wire::messages::HelloReply;
use honeycomb_wire::{Field, Op, ReplyHeader, RequestHeader, Status};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Whether the process that was this memory server at `address` (host:port) has ended: its machine
/// replies that the port has no listener, or another process answers the handshake there. The
/// absence of a reply does not count: a link may be down, or a name temporarily unknown. `token` is
/// the cluster's, without an expiry. Blocks for up to three times `patience` for each address of the
/// name, and for the resolution of the name.
pub fn has_ended(address: &str, server: ServerId, token: &[u8], patience: Duration) -> bool {
    let Ok(candidates) = address.to_socket_addrs() else { return false };
    let mut ended = candidates.map(|at| match TcpStream::connect_timeout(&at, patience) {
        Ok(stream) => is_another(stream, server, token, patience).unwrap_or(false),
        Err(e) => e.kind() == ErrorKind::ConnectionRefused,
    });
    ended.next().is_some_and(|first| first && ended.all(|ended| ended))
}

/// Whether the process at the other end is not that server: it has another number, belongs to another
/// cluster or speaks another protocol.
fn is_another(
    mut stream: TcpStream,
    server: ServerId,
    token: &[u8],
    patience: Duration,
) -> Result<bool> {
    stream.set_write_timeout(Some(patience))?;
    let args = hello(token, u8::MAX).encode();
    let mut header = RequestHeader { request: 1, ..RequestHeader::new(Op::Hello) };
    header.set_lengths(args.len(), 0).expect("a handshake is short");
    stream.write_all(&[&header.encode()[..], &args].concat())?;
    let clock = Clock::start();
    let until = clock.now() + patience;
    let mut reply = [0; REPLY_HEADER];
    read_until(&mut stream, &mut reply, &clock, until)?;
    let Ok(reply) = ReplyHeader::decode(&reply) else { return Ok(true) };
    match reply.status {
        Status::Unauthenticated => Ok(true),
        Status::Ok => {
            let mut args = vec![0; reply.args_len as usize];
            read_until(&mut stream, &mut args, &clock, until)?;
            let other = HelloReply::decode(&args).map_or(server, |hello| ServerId(hello.server));
            // A server has a number at each controller shard, and names one of them.
            Ok(other.controller() == server.controller() && other != server)
        }
        // It has not joined yet, or speaks another version.
        _ => Ok(false),
    }
}

/// Fills the buffer. The other end may send its bytes one by one.
fn read_until(stream: &mut TcpStream, buffer: &mut [u8], clock: &Clock, until: Time) -> Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        let left = until.since(clock.now());
        if left.is_zero() {
            return Err(Error::from(ErrorKind::TimedOut));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer[filled..])? {
            0 => return Err(Error::from(ErrorKind::UnexpectedEof)),
            n => filled += n,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const PATIENCE: Duration = Duration::from_millis(250);

    fn ended(address: &str) -> bool {
        has_ended(address, ServerId(7), b"token", PATIENCE)
    }

    /// The result of a probe of a listener that answers with these bytes.
    fn ended_if_answered(answer: &[u8]) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(answer).unwrap();
                // It keeps the connection until the probe closes it.
                let _ = stream.read_to_end(&mut Vec::new());
            });
            ended(&address)
        })
    }

    fn answer(status: Status, server: u32) -> Vec<u8> {
        let args = match status {
            Status::Ok => HelloReply { server, ..HelloReply::default() }.encode(),
            _ => b"why".to_vec(),
        };
        let header = ReplyHeader { args_len: args.len() as u32, ..ReplyHeader::new(status, 1, 0) };
        [&header.encode()[..], &args].concat()
    }

    /// It kept the probe for as long as it sent a byte within the patience.
    #[test]
    fn answer_that_comes_byte_by_byte_keeps_no_probe() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let clock = Clock::start();
        let args_len = 60_000;
        let sent = std::thread::scope(|threads| {
            let sender = threads.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let header = ReplyHeader { args_len, ..ReplyHeader::new(Status::Ok, 1, 0) };
                let bytes = header.encode().into_iter().chain(vec![0; args_len as usize]);
                // The probe closes the connection.
                let accepted = bytes.take_while(|byte| {
                    clock.sleep_until(clock.now() + Duration::from_millis(10));
                    stream.write_all(&[*byte]).is_ok()
                });
                accepted.count()
            });
            assert!(!ended(&address));
            sender.join().unwrap()
        });
        assert!(sent < args_len as usize, "the probe has waited for {sent} bytes");
    }

    #[test]
    fn address_where_nobody_listens_is_told_from_one_that_does_not_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert!(!ended(&address));
        drop(listener);
        assert!(ended(&address));
        assert!(!ended("no name"));
    }

    #[test]
    fn another_process_at_the_address_is_told_from_the_server() {
        assert!(!ended_if_answered(&answer(Status::Ok, 7)));
        assert!(ended_if_answered(&answer(Status::Ok, 8)));
        let elsewhere = ServerId::new(1, 8);
        assert!(!ended_if_answered(&answer(Status::Ok, elsewhere.0)), "of another shard");
        assert!(ended_if_answered(&answer(Status::Unauthenticated, 7)));
        assert!(ended_if_answered(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"));
        for undecided in [Status::Busy, Status::UnsupportedVersion] {
            assert!(!ended_if_answered(&answer(undecided, 7)));
        }
        assert!(!ended_if_answered(&answer(Status::Ok, 8)[..20]));
    }
}
