//! Ends another thread's wait early, as a signal to that thread would.
//!
//! A thread adopts an `Interrupt`; any holder of a clone can set it. A wait for an event (an item,
//! space, a change) then ends as if its time were up: the client sends the request once more
//! without a wait, so that an effect that already happened is not lost, and returns that result.
//! Calls that do not wait are not affected.

use honeycomb_env::Clock;
use honeycomb_types::Time;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

struct InterruptInner {
    set: AtomicBool,
    /// Readable while it is set, so that a thread that sleeps for a socket notices it.
    event: OwnedFd,
}

/// Ends the waits of the thread that adopted it. Clones are the same interrupt.
#[derive(Clone)]
pub struct Interrupt(Arc<InterruptInner>);

thread_local! {
    static ADOPTED: RefCell<Option<Interrupt>> = const { RefCell::new(None) };
}

impl Interrupt {
    /// An interrupt that is not set. Fails if the process has no descriptor left.
    pub fn new() -> io::Result<Interrupt> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Interrupt(Arc::new(InterruptInner { set: AtomicBool::new(false), event })))
    }

    /// Makes this interrupt end the waits of the calling thread from now on. A thread has one.
    pub fn adopt(&self) {
        ADOPTED.set(Some(self.clone()));
    }

    /// Ends the current wait of the thread that adopted it, and each later one until `clear`.
    pub fn set(&self) {
        if !self.0.set.swap(true, Ordering::SeqCst) {
            // The counter cannot overflow: it was not set.
            let _ = rustix::io::write(&self.0.event, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn pollable(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.0.event.as_fd(), PollFlags::IN)
    }

    /// Lets the thread wait again.
    pub fn clear(&self) {
        if self.0.set.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::read(&self.0.event, &mut [0; 8]);
        }
    }
}

/// The interrupt of the calling thread.
pub(crate) fn adopted() -> Option<Interrupt> {
    ADOPTED.with_borrow(Clone::clone)
}

/// Whether the calling thread must stop waiting.
pub fn interrupted() -> bool {
    ADOPTED.with_borrow(|one| one.as_ref().is_some_and(|one| one.0.set.load(Ordering::SeqCst)))
}

/// The outcome of a wait for sockets.
pub(crate) enum Woken {
    /// One of them is ready.
    Ready,
    /// A signal arrived, or the interrupt was set.
    Interrupted,
    /// Neither within the time.
    Late,
}

/// Waits for a socket or an interruption.
pub(crate) fn poll_one(
    socket: PollFd<'_>,
    time: Duration,
    interrupt: Option<&Interrupt>,
) -> io::Result<Woken> {
    match interrupt {
        None => poll(&mut [socket], 1, time),
        Some(interrupt) => poll(&mut [socket, interrupt.pollable()], 1, time),
    }
}

/// Waits for any of several sockets or an interruption.
pub(crate) fn poll_any<'a>(
    mut sockets: Vec<PollFd<'a>>,
    time: Duration,
    interrupt: Option<&'a Interrupt>,
) -> io::Result<Woken> {
    let count = sockets.len();
    sockets.extend(interrupt.map(Interrupt::pollable));
    poll(&mut sockets, count, time)
}

/// The first `sockets` descriptors are those of the wait; their readiness takes precedence over an
/// interrupt.
fn poll(fds: &mut [PollFd<'_>], sockets: usize, time: Duration) -> io::Result<Woken> {
    let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos() as i64 };
    match rustix::event::poll(fds, Some(&timeout)) {
        Ok(0) => Ok(Woken::Late),
        Ok(_) if fds[..sockets].iter().any(|fd| !fd.revents().is_empty()) => Ok(Woken::Ready),
        Ok(_) | Err(Errno::INTR) => Ok(Woken::Interrupted),
        Err(e) => Err(e.into()),
    }
}

/// Sleeps until then; returns true if a signal or the interrupt ended the sleep early.
pub(crate) fn pause(clock: Clock, until: Time) -> bool {
    let interrupt = adopted();
    let woken = poll_any(Vec::new(), until.since(clock.now()), interrupt.as_ref());
    matches!(woken, Ok(Woken::Interrupted))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_pause_ends_when_the_interrupt_is_set_and_only_of_its_thread() {
        let clock = Clock::start();
        let interrupt = Interrupt::new().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let twin = interrupt.clone();
        let sleeper = std::thread::spawn(move || {
            twin.adopt();
            sender.send(()).unwrap();
            pause(clock, clock.now() + LONG)
        });
        receiver.recv().unwrap();
        interrupt.set();
        assert!(sleeper.join().unwrap());
        assert!(clock.now().since(Time::ZERO) < LONG);
        assert!(!interrupted(), "this thread adopted none");
        assert!(!pause(clock, clock.now() + Duration::from_millis(1)));
    }

    #[test]
    fn set_twice_and_cleared_once_lets_wait_again() {
        let clock = Clock::start();
        let interrupt = Interrupt::new().unwrap();
        interrupt.adopt();
        interrupt.set();
        interrupt.set();
        assert!(interrupted());
        assert!(pause(clock, clock.now() + LONG));
        interrupt.clear();
        assert!(!interrupted());
        assert!(!pause(clock, clock.now() + Duration::from_millis(1)));
    }
}
