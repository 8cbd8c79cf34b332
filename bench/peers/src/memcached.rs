//! A minimal client of memcached: text commands over a socket, with reused buffers.

use honeycomb_bench::socket::Socket;
use std::io::{self, IoSlice, Write};
use std::time::Duration;

/// Bytes of one read while waiting for the head of a reply, as in our client.
const RECEIVE: usize = 64 * 1024;
/// The bytes after a value.
const END: &[u8] = b"\r\nEND\r\n";

/// A connection.
pub struct Memcached {
    socket: Socket,
    head: Vec<u8>,
    received: Vec<u8>,
}

impl Memcached {
    /// Connects.
    pub fn connect(address: &str, spin: Duration) -> io::Result<Memcached> {
        let socket = Socket::connect(address, spin)?;
        Ok(Memcached { socket, head: Vec::new(), received: vec![0; RECEIVE] })
    }

    /// set.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.head.clear();
        self.head.extend_from_slice(b"set ");
        self.head.extend_from_slice(key);
        write!(self.head, " 0 0 {}\r\n", value.len())?;
        self.socket.write(&mut [&self.head[..], value, b"\r\n"].map(IoSlice::new))?;
        let (line, _) = self.line()?;
        match &self.received[..line] {
            b"STORED\r\n" => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// get into a buffer of the value's length plus a few bytes; answers the length.
    pub fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> io::Result<usize> {
        self.head.clear();
        self.head.extend_from_slice(b"get ");
        self.head.extend_from_slice(key);
        self.head.extend_from_slice(b"\r\n");
        self.socket.write(&mut [IoSlice::new(&self.head)])?;
        let (line, filled) = self.line()?;
        let head = &self.received[..line];
        let length = head.starts_with(b"VALUE ").then(|| std::str::from_utf8(head).ok()).flatten();
        let length = length.and_then(|text| text.trim_end().rsplit(' ').next()?.parse().ok());
        let Some(length): Option<usize> = length else { return Err(unexpected(head)) };
        out.resize(length + END.len(), 0);
        let mut at = (filled - line).min(out.len());
        out[..at].copy_from_slice(&self.received[line..line + at]);
        while at < out.len() {
            at += self.socket.read(&mut out[at..])?;
        }
        match out.ends_with(END) {
            true => Ok(length),
            false => {
                Err(io::Error::other("the value from memcached does not have its declared length"))
            }
        }
    }

    /// Reads until a whole line has arrived; answers its length and the number of bytes read.
    fn line(&mut self) -> io::Result<(usize, usize)> {
        let mut filled = 0;
        loop {
            filled += self.socket.read(&mut self.received[filled..])?;
            if let Some(at) = self.received[..filled].iter().take(256).position(|b| *b == b'\n') {
                return Ok((at + 1, filled));
            }
        }
    }
}

fn unexpected(line: &[u8]) -> io::Error {
    io::Error::other(format!("memcached answered {}", String::from_utf8_lossy(line).trim()))
}
