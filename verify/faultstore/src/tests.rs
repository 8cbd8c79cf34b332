//! The proxy before a test store: its latencies, and each of its faults.

use crate::proxy::Pace;
use crate::{Faults, Kind, Outage, Proxy, Rule, What};
use honeycomb_env::Clock;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A store that reports each executed request. `GET /n` answers n bytes, in chunks with the path
/// `/chunked/n`.
struct Store {
    address: SocketAddr,
    done: Receiver<(String, usize)>,
}

impl Store {
    fn start() -> Store {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, done) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, tell) = (stream.unwrap(), tell.clone());
                std::thread::spawn(move || {
                    let mut from = BufReader::new(stream.try_clone().unwrap());
                    while let Ok(Some((line, body))) = message(&mut from) {
                        let path = line.split(' ').nth(1).unwrap().to_owned();
                        let length = path.rsplit('/').next().unwrap().parse().unwrap_or(0);
                        let bytes = vec![b'x'; length];
                        let _ = tell.send((line.clone(), body.len()));
                        if path.contains("chunked") {
                            let _ = stream.write_all(
                                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                            );
                            for chunk in bytes.chunks(1000) {
                                let _ = write!(stream, "{:x}\r\n", chunk.len());
                                let _ = stream.write_all(chunk);
                                let _ = stream.write_all(b"\r\n");
                            }
                            let _ = stream.write_all(b"0\r\n\r\n");
                        } else {
                            let _ = write!(
                                stream,
                                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"
                            );
                            if !line.starts_with("HEAD") {
                                let _ = stream.write_all(&bytes);
                            }
                        }
                    }
                });
            }
        });
        Store { address, done }
    }

    fn did(&self) -> Option<(String, usize)> {
        self.done.try_recv().ok()
    }
}

/// First line and body of a message.
fn message(from: &mut BufReader<TcpStream>) -> io::Result<Option<(String, Vec<u8>)>> {
    let (mut first, mut length, mut chunked) = (String::new(), 0, false);
    loop {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim_end();
        if first.is_empty() {
            first = line.to_owned();
        } else if line.is_empty() {
            break;
        } else if let Some(value) = line.strip_prefix("Content-Length: ") {
            length = value.parse().unwrap();
        }
        chunked |= line == "Transfer-Encoding: chunked";
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    while chunked {
        let mut size = String::new();
        from.read_line(&mut size)?;
        let size = usize::from_str_radix(size.trim_end(), 16).map_err(io::Error::other)?;
        let at = body.len();
        body.resize(at + size + 2, 0);
        from.read_exact(&mut body[at..])?;
        body.truncate(at + size);
        chunked = size > 0;
    }
    Ok(Some((first, body)))
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn to(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Client(BufReader::new(stream))
    }

    fn send(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<()> {
        let mut to = self.0.get_ref();
        let length = body.len();
        write!(to, "{method} {path} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n")?;
        to.write_all(body)
    }

    fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<(String, Vec<u8>)> {
        self.send(method, path, body)?;
        message(&mut self.0)?.ok_or(io::ErrorKind::UnexpectedEof.into())
    }
}

fn always(on: &[Kind], what: What) -> Faults {
    Faults::calm().with(Rule::always(on, what))
}

#[test]
fn calm_proxy_changes_nothing() {
    let store = Store::start();
    let proxy = Proxy::start(store.address, Faults::calm(), 1).unwrap();
    let mut client = Client::to(proxy.address());
    for n in [0, 1, 5000, 200_000] {
        let (line, body) = client.ask("GET", &format!("/{n}"), b"").unwrap();
        assert_eq!((&*line, body.len()), ("HTTP/1.1 200 OK", n));
        let (_, body) = client.ask("GET", &format!("/chunked/{n}"), b"").unwrap();
        assert_eq!(body, vec![b'x'; n]);
    }
    client.ask("PUT", "/a", &vec![7; 300_000]).unwrap();
    let last = std::iter::from_fn(|| store.did()).last().unwrap();
    assert_eq!(last, ("PUT /a HTTP/1.1".into(), 300_000));
    let seen = proxy.seen();
    assert_eq!((seen.requests[&Kind::Get], seen.requests[&Kind::Put]), (8, 1));
    assert_eq!(seen.sent, 300_000);
}

#[test]
fn a_request_takes_at_least_its_latency_and_the_time_of_its_bytes() {
    let store = Store::start();
    let proxy = Proxy::start(store.address, Faults::s3(), 1).unwrap();
    let clock = Clock::start();
    for (method, bytes, latency) in
        [("GET", 1000, 12.1), ("PUT", 1000, 25.8), ("GET", 7_000_000, 12.1)]
    {
        let expected = latency + bytes as f64 / 70_000.0;
        let body = if method == "PUT" { vec![0; bytes] } else { Vec::new() };
        let path = if method == "PUT" { "/0".into() } else { format!("/{bytes}") };
        let mut client = Client::to(proxy.address());
        let begin = clock.now();
        client.ask(method, &path, &body).unwrap();
        let took = clock.now().since(begin).as_secs_f64() * 1e3;
        assert!(took >= expected * 0.99, "{method} of {bytes} took {took} ms, not {expected}");
    }
}

/// The upper bound: how late a reply is due. How late it arrives depends on the machine.
#[test]
fn bytes_are_due_at_the_rate_and_no_later() {
    let clock = Clock::start();
    let begin = clock.now();
    let mut pace = Pace { clock, rate: Faults::s3().rate, next: begin };
    (0..100).for_each(|_| pace.wait(7000));
    let due = pace.next.since(begin).as_secs_f64() * 1e3;
    assert!((9.99..10.01).contains(&due), "{due} ms for 700,000 bytes at 70 MB/s");
    assert_eq!(Faults::s3().latency_of(Kind::Get), Duration::from_micros(12_100));
    assert_eq!(Faults::s3().latency_of(Kind::Put), Duration::from_micros(25_800));
}

#[test]
fn too_many_requests_are_told_to_slow_down() {
    let store = Store::start();
    let faults = Faults { requests: (1, 3), ..Faults::calm() };
    let proxy = Proxy::start(store.address, faults, 1).unwrap();
    let mut client = Client::to(proxy.address());
    let lines: Vec<String> = (0..6).map(|_| client.ask("GET", "/1", b"").unwrap().0).collect();
    let slowed = lines.iter().filter(|line| line.contains("503")).count() as u64;
    assert!(lines[..3].iter().all(|line| line.contains("200")), "the burst: {lines:?}");
    assert!((1..=3).contains(&slowed), "{lines:?}");
    assert_eq!(proxy.seen().slowed, slowed);
}

#[test]
fn each_fault_is_what_it_says() {
    let store = Store::start();
    let proxy = Proxy::start(store.address, Faults::calm(), 1).unwrap();
    let put = |what| {
        proxy.change(always(&[Kind::Put], what));
        let mut client = Client::to(proxy.address());
        let answer = client.ask("PUT", "/a", b"12345").map(|(line, _)| line);
        assert_eq!(proxy.seen().faults[&what], 1, "{what:?}");
        (answer, store.did().is_some())
    };
    let (answer, done) = put(What::Status(503));
    assert_eq!((&*answer.unwrap(), done), ("HTTP/1.1 503 SlowDown", false));
    let (answer, done) = put(What::CloseBefore);
    assert_eq!((answer.is_err(), done), (true, false));
    let (answer, done) = put(What::CloseAfterEffect);
    assert_eq!((answer.is_err(), done), (true, true));

    for (what, expected) in [(What::HangBefore, false), (What::HangAfterEffect, true)] {
        proxy.change(always(&[Kind::Put], what));
        let mut client = Client::to(proxy.address());
        client.0.get_ref().set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let answer = client.ask("PUT", "/a", b"12345").unwrap_err();
        assert!(matches!(answer.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut));
        assert_eq!(store.did().is_some(), expected, "{what:?}");
    }
    proxy.change(always(&[Kind::Put], What::Late(Duration::from_millis(300))));
    let mut client = Client::to(proxy.address());
    client.send("PUT", "/late", b"12345").unwrap();
    drop(client);
    let late = store.done.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(
        late,
        ("PUT /late HTTP/1.1".into(), 5),
        "executed after the client has closed the connection"
    );

    proxy.change(always(&[Kind::Get], What::Truncate(700)));
    let cut = Client::to(proxy.address()).ask("GET", "/1000", b"").unwrap_err();
    assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
    proxy.change(always(&[Kind::Get], What::FlipBit));
    let (_, body) = Client::to(proxy.address()).ask("GET", "/1000", b"").unwrap();
    assert_eq!(body.iter().filter(|byte| **byte != b'x').count(), 1);
}

#[test]
fn rules_apply_to_the_paths_and_as_often_as_they_say() {
    let store = Store::start();
    let rule = Rule::always(&[Kind::Get], What::Status(500)).at("/b/").after(1).times(2);
    let proxy = Proxy::start(store.address, Faults::calm().with(rule), 1).unwrap();
    let mut client = Client::to(proxy.address());
    let mut ask = |path: &str| client.ask("GET", path, b"").unwrap().0.contains("500");
    assert!(!ask("/a/1"));
    let answers: Vec<bool> = (0..5).map(|_| ask("/b/1")).collect();
    assert_eq!(answers, [false, true, true, false, false]);
}

#[test]
fn in_an_outage_nobody_gets_an_answer_and_afterwards_everybody_does() {
    let store = Store::start();
    let proxy = Proxy::start(store.address, Faults::calm(), 1).unwrap();
    let mut open = Client::to(proxy.address());
    open.ask("GET", "/1", b"").unwrap();
    for outage in [Outage::Reset, Outage::Silent] {
        proxy.change(Faults { outage: Some(outage), ..Faults::calm() });
        assert!(open.ask("GET", "/1", b"").is_err(), "connections end with it");
        let mut client = Client::to(proxy.address());
        client.0.get_ref().set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        assert!(client.ask("GET", "/1", b"").is_err(), "{outage:?}");
    }
    proxy.change(Faults::calm());
    Client::to(proxy.address()).ask("GET", "/1", b"").unwrap();
    assert!(proxy.seen().out >= 2);
}
