//! A socket that waits like our client: it polls for a short time, then sleeps.
//!
//! The peers' clients use it, so that a comparison shows the servers and not two ways of waiting.

use honeycomb_env::Clock;
use honeycomb_transport::{Poller, unix};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Time after which a server without an answer counts as failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to a server under test.
pub struct Socket {
    stream: TcpStream,
    clock: Clock,
    spin: Duration,
    poller: Poller,
}

impl Socket {
    /// Connects to host:port, or to the Unix socket at a path.
    pub fn connect(address: &str, spin: Duration) -> io::Result<Socket> {
        let stream = match address.starts_with('/') {
            true => unix::connect(address)?,
            false => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                stream
            }
        };
        Ok(Socket { stream, clock: Clock::start(), spin, poller: Poller::default() })
    }

    /// Reads at least one byte.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => return Ok(n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::IN)?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Writes all pieces.
    pub fn write(&mut self, pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut rest = pieces;
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match self.stream.write_vectored(rest) {
                Ok(n) => IoSlice::advance_slices(&mut rest, n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::OUT)?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn wait(&mut self, flags: PollFlags) -> io::Result<()> {
        let begun = self.clock.now();
        let mut polling = !self.spin.is_zero() && self.poller.worth_it(begun);
        loop {
            let now = self.clock.now();
            let waited = now.since(begun);
            if waited >= PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if polling && waited >= self.spin {
                self.poller.miss();
                polling = false;
            }
            let left = if polling { Duration::ZERO } else { PATIENCE - waited };
            let timeout =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos() as i64 };
            let mut fds = [PollFd::new(&self.stream, flags)];
            match rustix::event::poll(&mut fds, Some(&timeout)) {
                Ok(0) if polling => {
                    let clock = self.clock;
                    polling = self.poller.yielded(now, || clock.now()).is_some();
                }
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => {
                    if polling {
                        self.poller.hit();
                    }
                    return Ok(());
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
}
