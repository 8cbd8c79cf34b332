//! The peer: a redis-server of the benchmark's own, and a minimal client for it.

use super::process::Pinning;
use super::socket::Socket;
use honeycomb_env::Clock;
use std::io::{self, IoSlice};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long it may take to start.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes read at a time while the head of a reply is awaited: as our client does.
const RECEIVE: usize = 64 * 1024;

/// The version of the redis-server on the path, when there is one.
pub fn version() -> Option<String> {
    let output = Command::new("redis-server").arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="))?;
    Some(version.to_owned())
}

/// A redis-server that keeps nothing on disk. Dropping it ends it.
pub struct Redis {
    child: Child,
    address: String,
}

impl Redis {
    /// Starts one on a free port and the server's core.
    pub fn start(pinning: Pinning) -> Result<Redis, String> {
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
        let address = free.map_err(|e| format!("no free port: {e}"))?;
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.args(["--port", &address.port().to_string()]);
        pinning.for_server();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        pinning.for_client();
        let child = child.map_err(|e| format!("cannot start redis-server: {e}"))?;
        let redis = Redis { child, address: address.to_string() };
        let clock = Clock::start();
        let until = clock.now() + PATIENCE;
        while Socket::connect(&redis.address, Duration::ZERO).is_err() {
            if clock.now() > until {
                return Err("redis-server does not answer".into());
            }
            clock.sleep_until(clock.now() + Duration::from_millis(10));
        }
        Ok(redis)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A connection.
    pub fn client(&self, spin: Duration) -> io::Result<RedisClient> {
        let socket = Socket::connect(&self.address, spin)?;
        let head = Vec::with_capacity(256);
        Ok(RedisClient { socket, head, received: vec![0; RECEIVE], taken: 0, filled: 0 })
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// GET and SET over RESP, with buffers that are reused.
pub struct RedisClient {
    socket: Socket,
    head: Vec<u8>,
    /// What was read ahead is `received[taken..filled]`.
    received: Vec<u8>,
    taken: usize,
    filled: usize,
}

impl RedisClient {
    /// SET.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.begin(3, b"SET");
        self.bulk(key);
        number(&mut self.head, b'$', value.len());
        let mut pieces = [&self.head[..], value, b"\r\n"].map(IoSlice::new);
        self.socket.write(&mut pieces)?;
        let end = self.line()?;
        if self.buffered()[..end] != *b"+OK\r\n" {
            return Err(self.unexpected());
        }
        self.taken += end;
        Ok(())
    }

    /// GET into a buffer; the length of the value.
    pub fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> io::Result<usize> {
        self.begin(2, b"GET");
        self.bulk(key);
        self.socket.write(&mut [IoSlice::new(&self.head)])?;
        let end = self.line()?;
        let text = std::str::from_utf8(&self.buffered()[..end - 2]).ok();
        let length = text.and_then(|t| t.strip_prefix('$')).and_then(|n| n.parse::<usize>().ok());
        let Some(length) = length else { return Err(self.unexpected()) };
        self.taken += end;
        out.resize(length + 2, 0);
        let mut at = out.len().min(self.filled - self.taken);
        out[..at].copy_from_slice(&self.buffered()[..at]);
        self.taken += at;
        while at < out.len() {
            at += self.socket.read(&mut out[at..])?;
        }
        out.truncate(length);
        Ok(length)
    }

    fn begin(&mut self, parts: usize, name: &[u8]) {
        self.head.clear();
        number(&mut self.head, b'*', parts);
        self.bulk(name);
    }

    fn bulk(&mut self, bytes: &[u8]) {
        number(&mut self.head, b'$', bytes.len());
        self.head.extend_from_slice(bytes);
        self.head.extend_from_slice(b"\r\n");
    }

    /// Reads until a whole line is there; its length with its end.
    fn line(&mut self) -> io::Result<usize> {
        loop {
            let found = self.buffered().windows(2).take(64).position(|w| w == b"\r\n");
            if let Some(at) = found {
                return Ok(at + 2);
            }
            // Replies come one at a time: at most the beginning of a line is there.
            self.received.copy_within(self.taken..self.filled, 0);
            (self.taken, self.filled) = (0, self.filled - self.taken);
            self.filled += self.socket.read(&mut self.received[self.filled..])?;
        }
    }

    fn buffered(&self) -> &[u8] {
        &self.received[self.taken..self.filled]
    }

    fn unexpected(&self) -> io::Error {
        let text =
            String::from_utf8_lossy(&self.buffered()[..self.buffered().len().min(80)]).into_owned();
        io::Error::other(format!("redis-server answered {text}"))
    }
}

fn number(out: &mut Vec<u8>, kind: u8, n: usize) {
    use std::io::Write;
    write!(out, "{}{n}\r\n", kind as char).expect("a vector takes everything");
}
