//! The peer: a redis-server started by the benchmark, and a minimal client for it.

use super::Transport;
use super::process::Pinning;
use super::socket::Socket;
use honeycomb_env::{Clock, Entropy};
use std::io::{self, IoSlice};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long redis-server may take to start.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of one read while waiting for the head of a reply, as in our client.
const RECEIVE: usize = 64 * 1024;

/// The version of the redis-server on the path, if there is one.
pub fn version() -> Option<String> {
    let output = Command::new("redis-server").arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="))?;
    Some(version.to_owned())
}

/// A redis-server without persistence. Dropping it ends it.
pub struct Redis {
    child: Child,
    /// host:port, or the path of a Unix socket.
    address: String,
}

impl Redis {
    /// Starts one on the server's core, at a free port, and with a Unix socket if the transport needs it.
    pub fn start(pinning: Pinning, transport: Transport) -> Result<Redis, String> {
        Redis::within(pinning, transport, None)
    }

    /// The same with a memory limit in bytes: beyond it, the server refuses writes and evicts nothing.
    pub fn within(
        pinning: Pinning,
        transport: Transport,
        memory: Option<u64>,
    ) -> Result<Redis, String> {
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
        let address = free.map_err(|e| format!("no free port: {e}"))?;
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.args(["--port", &address.port().to_string()]);
        if let Some(memory) = memory {
            command.args(["--maxmemory", &memory.to_string()]);
            command.args(["--maxmemory-policy", "noeviction"]);
        }
        let address = match transport {
            Transport::Tcp => address.to_string(),
            Transport::Unix => {
                let name = format!("honeycomb-redis-{:x}.sock", Entropy::system().next_u64());
                let path = std::env::temp_dir().join(name).to_string_lossy().into_owned();
                command.args(["--unixsocket", &path, "--unixsocketperm", "600"]);
                path
            }
        };
        pinning.for_server();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        pinning.for_client();
        let child = child.map_err(|e| format!("cannot start redis-server: {e}"))?;
        let redis = Redis { child, address };
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

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// host:port, or the path of a Unix socket.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A connection.
    pub fn client(&self, spin: Duration) -> io::Result<RedisClient> {
        RedisClient::connect(&self.address, spin)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if self.address.starts_with('/') {
            // The file may be gone already.
            let _ = std::fs::remove_file(&self.address);
        }
    }
}

/// The result of a SET that may run out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetEnd {
    /// The value is stored.
    Stored,
    /// The server has no memory for the value.
    OutOfMemory,
}

/// The measured commands, over RESP, with reused buffers.
pub struct RedisClient {
    socket: Socket,
    head: Vec<u8>,
    /// Receive buffer; unread bytes are `received[taken..filled]`.
    received: Vec<u8>,
    taken: usize,
    filled: usize,
}

impl RedisClient {
    /// Connects to host:port. It polls for a reply for the time `spin` before it sleeps.
    pub fn connect(address: &str, spin: Duration) -> io::Result<RedisClient> {
        let socket = Socket::connect(address, spin)?;
        let head = Vec::with_capacity(256);
        Ok(RedisClient { socket, head, received: vec![0; RECEIVE], taken: 0, filled: 0 })
    }

    /// SET.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        match self.set_if_room(key, value)? {
            SetEnd::Stored => Ok(()),
            SetEnd::OutOfMemory => Err(io::Error::other("redis-server has no memory for a value")),
        }
    }

    /// SET on a server that may have no memory for the value.
    pub fn set_if_room(&mut self, key: &[u8], value: &[u8]) -> io::Result<SetEnd> {
        self.begin(3, b"SET");
        self.bulk(key);
        number(&mut self.head, b'$', value.len());
        let mut pieces = [&self.head[..], value, b"\r\n"].map(IoSlice::new);
        self.socket.write(&mut pieces)?;
        let end = self.line()?;
        let said = match &self.buffered()[..end] {
            b"+OK\r\n" => SetEnd::Stored,
            line if line.starts_with(b"-OOM ") => SetEnd::OutOfMemory,
            _ => return Err(self.unexpected()),
        };
        self.taken += end;
        Ok(said)
    }

    /// SET of many keys, in one pipeline.
    pub fn set_many(&mut self, entries: &[(&[u8], &[u8])]) -> io::Result<()> {
        self.head.clear();
        for (key, value) in entries {
            self.command(3, b"SET");
            self.bulk(key);
            self.bulk(value);
        }
        self.socket.write(&mut [IoSlice::new(&self.head)])?;
        for _ in entries {
            let end = self.line()?;
            if self.buffered()[..end] != *b"+OK\r\n" {
                return Err(self.unexpected());
            }
            self.taken += end;
        }
        Ok(())
    }

    /// GETRANGE of as many bytes as a buffer has.
    pub fn get_range(&mut self, key: &[u8], offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.begin(4, b"GETRANGE");
        self.bulk(key);
        self.bulk(offset.to_string().as_bytes());
        self.bulk((offset + out.len() as u64 - 1).to_string().as_bytes());
        self.socket.write(&mut [IoSlice::new(&self.head)])?;
        let length = self.integer(b'$')?;
        if length != out.len() as i64 {
            let text = format!("redis-server has {length} of {} bytes of a value", out.len());
            return Err(io::Error::other(text));
        }
        let mut at = out.len().min(self.filled - self.taken);
        out[..at].copy_from_slice(&self.buffered()[..at]);
        self.taken += at;
        while at < out.len() {
            at += self.socket.read(&mut out[at..])?;
        }
        self.body(0, &mut Vec::new()).map(drop)
    }

    /// UNLINK: the key is removed at once, its memory is freed later.
    pub fn unlink(&mut self, key: &[u8]) -> io::Result<()> {
        self.begin(2, b"UNLINK");
        self.bulk(key);
        self.socket.write(&mut [IoSlice::new(&self.head)])?;
        self.integer(b':').map(drop)
    }

    /// UNLINK of many keys, in one command; the number of keys that existed.
    pub fn unlink_many(&mut self, keys: &[&[u8]]) -> io::Result<u64> {
        self.begin(1 + keys.len(), b"UNLINK");
        keys.iter().for_each(|key| self.bulk(key));
        self.socket.write(&mut [IoSlice::new(&self.head)])?;
        self.integer(b':').map(|gone| gone as u64)
    }

    /// INFO memory: `used_memory`, which the server counts against its limit.
    pub fn used_memory(&mut self) -> io::Result<u64> {
        self.begin(2, b"INFO");
        self.bulk(b"memory");
        self.socket.write(&mut [IoSlice::new(&self.head)])?;
        let (length, mut text) = (self.integer(b'$')?, Vec::new());
        self.body(length, &mut text)?;
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().find_map(|line| line.strip_prefix("used_memory:"));
        let used = line.and_then(|used| used.trim().parse().ok());
        used.ok_or_else(|| io::Error::other("redis-server does not report used_memory"))
    }

    /// GET into a buffer; the length of the value.
    pub fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> io::Result<usize> {
        self.begin(2, b"GET");
        self.bulk(key);
        self.socket.write(&mut [IoSlice::new(&self.head)])?;
        let length = self.integer(b'$')?;
        match self.body(length, out)? {
            true => Ok(out.len()),
            false => Err(io::Error::other("redis-server has no such key")),
        }
    }

    /// LPUSH of one or more items.
    pub fn push(&mut self, list: &[u8], items: &[&[u8]]) -> io::Result<()> {
        self.begin(2 + items.len(), b"LPUSH");
        self.bulk(list);
        // Copying small pieces is cheaper than many pieces in one write.
        let copied = items.len() > 1 && items[0].len() < 4096;
        let mut bounds = vec![0];
        for item in items {
            number(&mut self.head, b'$', item.len());
            if copied {
                self.head.extend_from_slice(item);
            }
            bounds.push(self.head.len());
            self.head.extend_from_slice(b"\r\n");
        }
        bounds.push(self.head.len());
        let mut pieces = Vec::with_capacity(2 * bounds.len());
        if copied {
            pieces.push(IoSlice::new(&self.head));
        } else {
            for (i, two) in bounds.windows(2).enumerate() {
                pieces.push(IoSlice::new(&self.head[two[0]..two[1]]));
                pieces.extend(items.get(i).map(|item| IoSlice::new(item)));
            }
        }
        self.socket.write(&mut pieces)?;
        self.integer(b':').map(drop)
    }

    /// RPOP of one item into a buffer; answers whether there was one.
    pub fn pop(&mut self, list: &[u8], out: &mut Vec<u8>) -> io::Result<bool> {
        self.begin(2, b"RPOP");
        self.bulk(list);
        self.socket.write(&mut [IoSlice::new(&self.head)])?;
        let length = self.integer(b'$')?;
        self.body(length, out)
    }

    /// RPOP of several items.
    pub fn pop_many(
        &mut self,
        list: &[u8],
        count: usize,
        out: &mut Vec<Vec<u8>>,
    ) -> io::Result<()> {
        self.begin(3, b"RPOP");
        self.bulk(list);
        self.bulk(count.to_string().as_bytes());
        self.socket.write(&mut [IoSlice::new(&self.head)])?;
        for _ in 0..self.integer(b'*')? {
            let (length, mut item) = (self.integer(b'$')?, Vec::new());
            self.body(length, &mut item)?;
            out.push(item);
        }
        Ok(())
    }

    /// BLPOP without a time-out; the item into a buffer.
    pub fn pop_when_there(&mut self, list: &[u8], out: &mut Vec<u8>) -> io::Result<bool> {
        self.begin(3, b"BLPOP");
        self.bulk(list);
        self.bulk(b"0");
        self.socket.write(&mut [IoSlice::new(&self.head)])?;
        self.parts(2, out)
    }

    /// Enables notifications of SET (CONFIG SET notify-keyspace-events).
    pub fn tell_of_sets(&mut self) -> io::Result<()> {
        self.begin(4, b"CONFIG");
        for word in [&b"SET"[..], b"notify-keyspace-events", b"E$"] {
            self.bulk(word);
        }
        self.socket.write(&mut [IoSlice::new(&self.head)])?;
        let end = self.line()?;
        if self.buffered()[..end] != *b"+OK\r\n" {
            return Err(self.unexpected());
        }
        self.taken += end;
        Ok(())
    }

    /// SUBSCRIBE to the notifications that `tell_of_sets` enables.
    pub fn subscribe_to_sets(&mut self) -> io::Result<()> {
        self.begin(2, b"SUBSCRIBE");
        self.bulk(b"__keyevent@0__:set");
        self.socket.write(&mut [IoSlice::new(&self.head)])?;
        let mut bin = Vec::new();
        self.array(3)?;
        for _ in 0..2 {
            let length = self.integer(b'$')?;
            self.body(length, &mut bin)?;
        }
        self.integer(b':').map(drop)
    }

    /// Waits for the next message of a subscription; answers its key.
    pub fn next_message(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        self.parts(3, out)
    }

    /// Reads an array of this many strings; answers the last one.
    fn parts(&mut self, parts: i64, out: &mut Vec<u8>) -> io::Result<bool> {
        self.array(parts)?;
        let mut some = false;
        for _ in 0..parts {
            let length = self.integer(b'$')?;
            some = self.body(length, out)?;
        }
        Ok(some)
    }

    fn array(&mut self, parts: i64) -> io::Result<()> {
        match self.integer(b'*')? {
            found if found == parts => Ok(()),
            found => Err(io::Error::other(format!("redis-server answered {found} parts"))),
        }
    }

    /// Reads a line with a number of this kind.
    fn integer(&mut self, kind: u8) -> io::Result<i64> {
        let end = self.line()?;
        let text = std::str::from_utf8(&self.buffered()[..end - 2]).ok();
        let number = text.and_then(|t| t.strip_prefix(kind as char)).and_then(|n| n.parse().ok());
        let Some(number) = number else { return Err(self.unexpected()) };
        self.taken += end;
        Ok(number)
    }

    /// Reads a string of this length; false for a null string.
    fn body(&mut self, length: i64, out: &mut Vec<u8>) -> io::Result<bool> {
        let Ok(length) = usize::try_from(length) else { return Ok(false) };
        out.resize(length + 2, 0);
        let mut at = out.len().min(self.filled - self.taken);
        out[..at].copy_from_slice(&self.buffered()[..at]);
        self.taken += at;
        while at < out.len() {
            at += self.socket.read(&mut out[at..])?;
        }
        out.truncate(length);
        Ok(true)
    }

    fn begin(&mut self, parts: usize, name: &[u8]) {
        self.head.clear();
        self.command(parts, name);
    }

    fn command(&mut self, parts: usize, name: &[u8]) {
        number(&mut self.head, b'*', parts);
        self.bulk(name);
    }

    fn bulk(&mut self, bytes: &[u8]) {
        number(&mut self.head, b'$', bytes.len());
        self.head.extend_from_slice(bytes);
        self.head.extend_from_slice(b"\r\n");
    }

    /// Reads until a whole line has arrived; answers its length with the line end.
    fn line(&mut self) -> io::Result<usize> {
        loop {
            let found = self.buffered().windows(2).take(64).position(|w| w == b"\r\n");
            if let Some(at) = found {
                return Ok(at + 2);
            }
            // Replies arrive one at a time: the buffer has at most the beginning of a line.
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
