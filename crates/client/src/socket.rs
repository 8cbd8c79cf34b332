//! One connected socket and its waits: poll briefly, then sleep, check periodically whether the
//! peer is alive, and never exceed a deadline.

use crate::error::Error;
use crate::interrupt::{self, Woken};
use honeycomb_env::Clock;
use honeycomb_transport::{Poller, unix};
use honeycomb_types::Time;
use honeycomb_types::limits::MESSAGE_LIFE_MS;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, set_tcp_user_timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// The duration of a wait without a byte after which the client checks whether the peer is alive, and the
/// time limit of that check.
pub(crate) const PATIENCE: Duration = Duration::from_millis(400);

/// Payloads of at least this size are awaited whole by the kernel, where it can: a wake-up for each
/// packet would cost more than the packet.
const WHOLE: usize = 256 * 1024;

/// How to wait for the peer.
pub(crate) struct Wait<'a> {
    /// When to give up.
    pub deadline: Time,
    /// Called each time that `PATIENCE` elapsed without a byte, so that a peer that vanished
    /// silently is noticed long before the deadline. An error ends the wait.
    pub idle: &'a mut dyn FnMut() -> Result<(), Error>,
    /// Whether a signal to this thread, or its interrupt, ends the wait.
    pub interruptible: bool,
}

/// A stream socket in blocking mode. A system call that must not wait has a flag for that. A caller without
/// other work sleeps in the receiving system call, which ends after `PATIENCE`.
pub(crate) struct StreamSocket {
    socket: OwnedFd,
    clock: Clock,
    spin: Duration,
    poller: Poller,
    /// Whether the socket did not accept all bytes to be sent: `await_some` then also waits for buffer space.
    pub sending: bool,
}

impl StreamSocket {
    /// Connects to the first address of a name that accepts; `NotFound` if the name has none.
    pub fn connect(
        address: &str,
        timeout: Duration,
        clock: Clock,
        spin: Duration,
    ) -> io::Result<StreamSocket> {
        let unknown = |why: String| io::Error::new(io::ErrorKind::NotFound, why);
        let mut last = unknown("the host name has no address".into());
        let candidates = address
            .to_socket_addrs()
            .map_err(|e| unknown(format!("the host name cannot be resolved: {e}")))?;
        for candidate in candidates {
            match TcpStream::connect_timeout(&candidate, timeout) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    // The kernel goes on sending a request after this process closes the socket. The
                    // request must arrive before the server forgets its record of it (INV-16).
                    set_tcp_user_timeout(&stream, MESSAGE_LIFE_MS as u32)?;
                    return StreamSocket::over(stream.into(), clock, spin);
                }
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// Connects to the Unix socket of a node of this machine; see `honeycomb_transport::unix::connect`.
    pub fn near(path: &str, clock: Clock, spin: Duration) -> io::Result<StreamSocket> {
        let stream = unix::connect(path)?;
        stream.set_nonblocking(false)?;
        StreamSocket::over(stream.into(), clock, spin)
    }

    /// A line over a connected stream socket of any kind.
    fn over(socket: OwnedFd, clock: Clock, spin: Duration) -> io::Result<StreamSocket> {
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        Ok(StreamSocket { socket, clock, spin, poller: Poller::default(), sending: false })
    }

    /// Reads the available bytes without waiting: `WouldBlock` if there are none, 0 at the end of
    /// the stream.
    pub fn read_now(&self, out: &mut [u8]) -> io::Result<usize> {
        self.receive(out, RecvFlags::DONTWAIT)
    }

    fn receive(&self, out: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        debug_assert!(!out.is_empty(), "INV-31: a read of no byte looks like the end");
        Ok(rustix::net::recv(&self.socket, out, flags).map(|(n, _)| n)?)
    }

    /// Reads at least one byte. With `near`, bytes are probably available already, so the socket is
    /// read first.
    pub fn read(&mut self, out: &mut [u8], near: bool, wait: &mut Wait<'_>) -> io::Result<usize> {
        if near && let Some(n) = self.try_read(out)? {
            return Ok(n);
        }
        let began = self.clock.now();
        let mut ask_at = began + PATIENCE;
        let mut now = began;
        let mut polling = !self.spin.is_zero() && self.poller.worth_it(began);
        while polling {
            let clock = self.clock;
            let after = self.poller.yielded(now, || clock.now());
            if let Some(n) = self.try_read(out)? {
                self.poller.hit();
                return Ok(n);
            }
            polling = after.is_some();
            now = after.unwrap_or_else(|| clock.now());
            if polling && now.since(began) >= self.spin {
                self.poller.miss();
                polling = false;
            }
        }
        loop {
            if now >= wait.deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if now >= ask_at {
                (wait.idle)().map_err(io::Error::other)?;
                now = self.clock.now();
                ask_at = now + PATIENCE;
                continue;
            }
            if !wait.interruptible && wait.deadline.since(now) >= PATIENCE {
                // The read itself sleeps, but at most until the next check of the peer.
                let flags =
                    if out.len() >= WHOLE { RecvFlags::WAITALL } else { RecvFlags::empty() };
                match self.receive(out, flags) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(n) => return Ok(n),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            } else {
                self.sleep(PollFlags::IN, wait.deadline.min(ask_at).since(now), wait)?;
                if let Some(n) = self.try_read(out)? {
                    return Ok(n);
                }
            }
            now = self.clock.now();
        }
    }

    /// As `read_now`; `None` if there is nothing, and an error at the end of the stream.
    fn try_read(&self, out: &mut [u8]) -> io::Result<Option<usize>> {
        match self.read_now(out) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => Ok(Some(n)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Reads at least one byte, and keeps a descriptor that arrives with it.
    pub fn read_with(
        &mut self,
        out: &mut [u8],
        place: &mut Option<OwnedFd>,
        wait: &mut Wait<'_>,
    ) -> io::Result<usize> {
        debug_assert!(!out.is_empty(), "INV-31: a read of no byte looks like the end");
        let mut ask_at = None;
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut with = RecvAncillaryBuffer::new(&mut space);
            let mut into = [IoSliceMut::new(out)];
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let got = recvmsg(&self.socket, &mut into, &mut with, flags);
            for message in with.drain() {
                if let RecvAncillaryMessage::ScmRights(files) = message {
                    *place = files.last().or(place.take());
                }
            }
            match got {
                Ok(got) if got.bytes == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => return Ok(got.bytes),
                Err(Errno::AGAIN) => self.await_ready(PollFlags::IN, &mut ask_at, wait)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Sends as much as the socket takes, at least one byte.
    pub fn write(&mut self, pieces: &[IoSlice<'_>], wait: &mut Wait<'_>) -> io::Result<usize> {
        let mut ask_at = None;
        loop {
            let mut nothing = SendAncillaryBuffer::default();
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::sendmsg(&self.socket, pieces, &mut nothing, flags) {
                Ok(n) => return Ok(n),
                Err(Errno::AGAIN) => self.await_ready(PollFlags::OUT, &mut ask_at, wait)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Sends as much as the socket takes, without waiting.
    pub fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    /// Sleeps until the socket is ready, or until the next check is due. `ask_at` is when to check
    /// next whether the peer is alive.
    fn await_ready(
        &self,
        flags: PollFlags,
        ask_at: &mut Option<Time>,
        wait: &mut Wait<'_>,
    ) -> io::Result<()> {
        let now = self.clock.now();
        if now >= wait.deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut ask = *ask_at.get_or_insert(now + PATIENCE);
        if now >= ask {
            (wait.idle)().map_err(io::Error::other)?;
            ask = self.clock.now() + PATIENCE;
            *ask_at = Some(ask);
        }
        self.sleep(flags, wait.deadline.min(ask).since(now), wait)
    }

    fn sleep(&self, flags: PollFlags, time: Duration, wait: &Wait<'_>) -> io::Result<()> {
        let interrupt = wait.interruptible.then(interrupt::adopted).flatten();
        match interrupt::poll_one(self.pollable(flags), time, interrupt.as_ref())? {
            Woken::Interrupted if wait.interruptible => Err(io::ErrorKind::Interrupted.into()),
            Woken::Late | Woken::Interrupted | Woken::Ready => Ok(()),
        }
    }

    fn interest(&self) -> PollFlags {
        if self.sending { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }

    fn pollable(&self, flags: PollFlags) -> PollFd<'_> {
        PollFd::new(&self.socket, flags)
    }
}

/// Waits until one of several connections is readable and returns those that are; none if `until`
/// passes first. Polls briefly first, as for a single connection. If the wait is interruptible, a
/// signal to this thread or its interrupt ends it as an error.
pub(crate) fn await_some(
    waiting: &mut [&mut StreamSocket],
    until: Time,
    interruptible: bool,
) -> io::Result<Vec<usize>> {
    let Some(first) = waiting.first_mut() else { return Ok(Vec::new()) };
    let (clock, spin) = (first.clock, first.spin);
    let mut poller = std::mem::take(&mut first.poller);
    let began = clock.now();
    let mut polling = !spin.is_zero() && poller.worth_it(began);
    let interrupt = interruptible.then(interrupt::adopted).flatten();
    let mut fds: Vec<PollFd<'_>> =
        waiting.iter().map(|line| line.pollable(line.interest())).collect();
    let sockets = fds.len();
    fds.extend(interrupt.as_ref().map(interrupt::Interrupt::pollable));
    let ready = loop {
        let now = clock.now();
        if polling && now.since(began) >= spin {
            poller.miss();
            polling = false;
        }
        let left = if polling { Duration::ZERO } else { until.since(now) };
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos() as i64 };
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Err(e @ Errno::INTR) if interruptible => break Err(e.into()),
            Ok(0) | Err(Errno::INTR) if clock.now() >= until => break Ok(Vec::new()),
            Ok(0) if polling => polling = poller.yielded(now, || clock.now()).is_some(),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => {
                if polling {
                    poller.hit();
                }
                let ready =
                    |(at, fd): (usize, &PollFd<'_>)| (!fd.revents().is_empty()).then_some(at);
                let ready: Vec<usize> =
                    fds[..sockets].iter().enumerate().filter_map(ready).collect();
                if ready.is_empty() {
                    break Err(io::ErrorKind::Interrupted.into());
                }
                break Ok(ready);
            }
            Err(e) => break Err(e.into()),
        }
    };
    drop(fds);
    waiting[0].poller = poller;
    ready
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::tcp_user_timeout;
    use std::net::TcpListener;

    /// A put ran twice when a copy of it arrived 21 s after the first. Simulator seed 203136.
    #[test]
    fn kernel_gives_a_request_up_before_its_record_is_forgotten() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let timeout = Duration::from_secs(5);
        let line =
            StreamSocket::connect(&address, timeout, Clock::start(), Duration::ZERO).unwrap();
        assert_eq!(tcp_user_timeout(&line.socket).unwrap(), MESSAGE_LIFE_MS as u32);
    }
}
