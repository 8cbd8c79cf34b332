//! A proxy before an object store that injects faults and latencies: a thread for each connection, blocking
//! sockets.

use crate::faults::{Faults, Kind, Outage, Rule, What};
use crate::http::{Body, Head, SLICE};
use honeycomb_env::{Clock, Entropy};
use honeycomb_types::Time;
use std::collections::HashMap;
use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval at which waiting threads check whether the proxy ends.
const LOOK: Duration = Duration::from_millis(20);

/// Counters of the proxy.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Number of requests, by kind.
    pub requests: HashMap<Kind, u64>,
    /// Bytes of bodies to the store.
    pub sent: u64,
    /// Bytes of bodies from the store.
    pub received: u64,
    /// Number of injected faults, by kind.
    pub faults: HashMap<What, u64>,
    /// Number of requests answered with `SlowDown`.
    pub slowed: u64,
    /// Number of connections during an outage.
    pub out: u64,
}

/// A running proxy; dropping it ends it and its connections.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
    listener: Option<JoinHandle<()>>,
}

struct State {
    upstream: SocketAddr,
    clock: Clock,
    ends: AtomicBool,
    inner: Mutex<Inner>,
}

struct Inner {
    faults: Faults,
    /// For each rule, the number of matching requests and the number of injected faults.
    rules: Vec<(u64, u64)>,
    seen: Seen,
    entropy: Entropy,
    /// Number of requests still allowed in a burst, and the time of this number.
    tokens: (f64, Time),
    /// Connections of clients, by number.
    open: HashMap<u64, TcpStream>,
    connections: u64,
}

impl Proxy {
    /// Starts a proxy on a free port, before a store. Random decisions are drawn from `seed`.
    pub fn start(upstream: SocketAddr, faults: Faults, seed: u64) -> io::Result<Proxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let clock = Clock::start();
        let inner = Inner {
            rules: vec![(0, 0); faults.rules.len()],
            tokens: (faults.requests.1 as f64, clock.now()),
            faults,
            seen: Seen::default(),
            entropy: Entropy::seeded(seed),
            open: HashMap::new(),
            connections: 0,
        };
        let ends = AtomicBool::new(false);
        let state = Arc::new(State { upstream, clock, ends, inner: Mutex::new(inner) });
        let accepting = state.clone();
        let spawn = std::thread::Builder::new().name("faults".into());
        let listener = Some(spawn.spawn(move || accepting.accept(&listener))?);
        Ok(Proxy { address, state, listener })
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the faults and latencies from the next request on. An outage ends open connections.
    pub fn change(&self, faults: Faults) {
        let mut inner = self.state.inner();
        inner.rules = vec![(0, 0); faults.rules.len()];
        inner.tokens = (faults.requests.1 as f64, self.state.clock.now());
        if faults.outage.is_some() {
            inner.end_connections();
        }
        inner.faults = faults;
    }

    /// The counters so far.
    pub fn seen(&self) -> Seen {
        self.state.inner().seen.clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ends.store(true, Relaxed);
        self.state.inner().end_connections();
        // Wakes the listener, which waits for a connection.
        let _ = TcpStream::connect(self.address);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

impl Inner {
    fn end_connections(&mut self) {
        for (_, connection) in self.open.drain() {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// The fault to inject into a request, if any.
    fn draw(&mut self, kind: Kind, path: &str) -> Option<What> {
        for (rule, (came, applied)) in self.faults.rules.iter().zip(&mut self.rules) {
            let Rule { on, key, after, count, chance_ppm, what } = rule;
            if !on.contains(&kind) || !path.contains(&**key) {
                continue;
            }
            *came += 1;
            if *came > *after
                && *applied < *count
                && self.entropy.next_u64() % 1_000_000 < *chance_ppm as u64
            {
                *applied += 1;
                *self.seen.faults.entry(*what).or_default() += 1;
                return Some(*what);
            }
        }
        None
    }

    /// Whether the rate of requests is exceeded.
    fn is_too_much(&mut self, now: Time) -> bool {
        let (rate, burst) = self.faults.requests;
        if rate == 0 {
            return false;
        }
        let (left, since) = self.tokens;
        let grown = now.since(since).as_secs_f64() * rate as f64;
        let left = (left + grown).min(burst.max(1) as f64);
        self.tokens = ((left - 1.0).max(0.0), now);
        self.seen.slowed += u64::from(left < 1.0);
        left < 1.0
    }
}

/// The time when the next bytes of a connection are due.
pub(crate) struct Pace {
    pub(crate) clock: Clock,
    pub(crate) rate: u64,
    pub(crate) next: Time,
}

impl Pace {
    pub(crate) fn wait(&mut self, bytes: usize) {
        if self.rate > 0 {
            self.next = self.next + Duration::from_secs_f64(bytes as f64 / self.rate as f64);
            self.clock.sleep_until(self.next);
        }
    }
}

impl State {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ends(&self) -> bool {
        self.ends.load(Relaxed)
    }

    fn accept(self: Arc<Self>, listener: &TcpListener) {
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        while let Ok((client, _)) = listener.accept() {
            if self.ends() {
                break;
            }
            let (outage, number) = {
                let mut inner = self.inner();
                inner.seen.out += u64::from(inner.faults.outage.is_some());
                inner.connections += 1;
                let number = inner.connections;
                inner.open.extend(client.try_clone().map(|client| (number, client)));
                (inner.faults.outage, number)
            };
            if outage == Some(Outage::Reset) {
                self.close(number, &client);
                continue;
            }
            threads.retain(|thread| !thread.is_finished());
            let state = self.clone();
            let spawn = std::thread::Builder::new().name("faults-client".into());
            threads.extend(spawn.spawn(move || {
                // The client sees the end of the connection; the error needs no report.
                let _ = state.serve(&client);
                state.close(number, &client);
            }));
        }
        self.inner().end_connections();
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn close(&self, number: u64, client: &TcpStream) {
        self.inner().open.remove(&number);
        let _ = client.shutdown(Shutdown::Both);
    }

    fn serve(&self, client: &TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let mut from = BufReader::with_capacity(SLICE, client.try_clone()?);
        while let Some(head) = Head::read(&mut from)? {
            if self.inner().faults.outage.is_some() {
                return self.hang(&mut from);
            }
            if !self.request(&head, &mut from, client)? {
                break;
            }
        }
        Ok(())
    }

    /// Serves one request; false when the connection ends with it.
    fn request(
        &self,
        head: &Head,
        from: &mut BufReader<TcpStream>,
        client: &TcpStream,
    ) -> io::Result<bool> {
        let now = self.clock.now();
        let (kind, path) = Kind::of(&head.line);
        let (what, slow, latency, rate) = {
            let mut inner = self.inner();
            *inner.seen.requests.entry(kind).or_default() += 1;
            let slow = inner.is_too_much(now);
            let what = inner.draw(kind, &path);
            (what, slow, inner.faults.latency_of(kind), inner.faults.rate)
        };
        if what == Some(What::CloseBefore) {
            return Ok(false);
        }
        let mut out = client;
        if head.expects {
            out.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let mut body = Vec::new();
        let mut pace = Pace { clock: self.clock, rate, next: now };
        let sent = head.of_request().pass(from, |slice| {
            pace.wait(slice.len());
            body.extend_from_slice(slice);
            Ok(())
        })?;
        self.inner().seen.sent += sent;
        match what {
            _ if slow => return self.refuse(503, out).map(|()| !head.closes),
            Some(What::Status(status)) => {
                return self.refuse(status, out).map(|()| !head.closes);
            }
            Some(What::HangBefore) => return self.hang(from).map(|()| false),
            Some(What::Late(after)) => {
                // The client may close the connection; the request continues.
                self.pause_until(now + after);
                self.upstream(head, &body)?;
                return Ok(false);
            }
            _ => {}
        }
        let (answer, mut upstream) = self.upstream(head, &body)?;
        let of_answer = answer.of_answer(kind == Kind::Head);
        if matches!(what, Some(What::CloseAfterEffect | What::HangAfterEffect)) {
            of_answer.pass(&mut upstream, |_| Ok(()))?;
            if what == Some(What::HangAfterEffect) {
                self.hang(from)?;
            }
            return Ok(false);
        }
        self.clock.sleep_until(pace.next + latency);
        out.write_all(&answer.bytes)?;
        let whole = self.answer(of_answer, &mut upstream, what, rate, out)?;
        Ok(whole && !head.closes && !answer.closes && !matches!(of_answer, Body::UntilClose))
    }

    /// Forwards the body of an answer; false when it was truncated.
    fn answer(
        &self,
        body: Body,
        upstream: &mut BufReader<TcpStream>,
        what: Option<What>,
        rate: u64,
        mut out: &TcpStream,
    ) -> io::Result<bool> {
        let mut pace = Pace { clock: self.clock, rate, next: self.clock.now() };
        let (mut passed, mut flipped, mut cut) = (0, false, false);
        let received = body.pass(upstream, |slice| {
            pace.wait(slice.len());
            if what == Some(What::FlipBit) && !flipped {
                let middle = slice.len() / 2;
                slice[middle] ^= 1;
                flipped = true;
            }
            let most = match what {
                Some(What::Truncate(most)) => most.saturating_sub(passed),
                _ => u64::MAX,
            };
            passed += slice.len() as u64;
            cut |= most < slice.len() as u64;
            out.write_all(&slice[..slice.len().min(most as usize)])
        })?;
        self.inner().seen.received += received;
        Ok(!cut)
    }

    /// Sends a request to the store; reads the head of its answer.
    fn upstream(&self, head: &Head, body: &[u8]) -> io::Result<(Head, BufReader<TcpStream>)> {
        let mut upstream = TcpStream::connect(self.upstream)?;
        upstream.set_nodelay(true)?;
        upstream.write_all(&head.bytes)?;
        upstream.write_all(body)?;
        let mut upstream = BufReader::with_capacity(SLICE, upstream);
        loop {
            let answer = Head::read(&mut upstream)?;
            let answer = answer.ok_or(io::Error::from(io::ErrorKind::UnexpectedEof))?;
            if answer.status() != 100 {
                return Ok((answer, upstream));
            }
        }
    }

    fn refuse(&self, status: u16, mut out: &TcpStream) -> io::Result<()> {
        let code = match status {
            503 => "SlowDown",
            409 => "ConditionalRequestConflict",
            403 => "AccessDenied",
            _ => "InternalError",
        };
        let body =
            format!("<Error><Code>{code}</Code><Message>an injected fault</Message></Error>");
        let length = body.len();
        write!(
            out,
            "HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )
    }

    /// Sends nothing until the client closes the connection, or the proxy ends.
    fn hang(&self, from: &mut BufReader<TcpStream>) -> io::Result<()> {
        from.get_ref().set_read_timeout(Some(LOOK))?;
        let mut rest = [0; 1024];
        while !self.ends() {
            match from.read(&mut rest) {
                Ok(0) => break,
                Ok(_) => {}
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn pause_until(&self, until: Time) {
        while !self.ends() && self.clock.now() < until {
            self.clock.sleep_until(until.min(self.clock.now() + LOOK));
        }
    }
}
