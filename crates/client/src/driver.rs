//! Key-value operations for callers that must not block, such as an event loop: a separate thread
//! runs them as a pipeline, and a descriptor becomes readable when there are results.

use crate::batch::Done;
use crate::context::Context;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::kv::Kv;
use crate::pipe::{Pipe, PipedRequest};
use honeycomb_env::AbortOnPanic;
use honeycomb_types::Time;
use honeycomb_wire::batch::BatchOp;
use honeycomb_wire::{Op, Status};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Operations in progress at a time; further ones wait in a queue.
const WINDOW: usize = 256;
/// How long an idle thread stays.
const IDLE: Duration = Duration::from_secs(10);

/// The outcome of an operation.
pub enum OperationOutcome {
    /// Its result.
    Done(Result<Done, Error>),
    /// The value is too large for a pipelined reply: read it alone.
    Alone,
}

struct DriverInner {
    context: Arc<Context>,
    /// Set when an operation was submitted, or when the thread must end.
    bell: Interrupt,
    /// Readable while there are results to take.
    event: OwnedFd,
    desk: Mutex<Desk>,
}

/// The state that the thread and its callers share.
#[derive(Default)]
struct Desk {
    asked: VecDeque<PipedRequest<Arc<Kv>>>,
    answers: Vec<(u64, OperationOutcome)>,
    /// Records to be reused for other operations.
    spare: Vec<PipedRequest<Arc<Kv>>>,
    running: bool,
    ending: bool,
}

/// Runs operations on the stores of one client. Each takes effect once. Operations on one key take
/// effect in the order of their submission; nothing orders others. Dropping it ends the operations
/// in progress without reporting them.
pub struct Driver(Arc<DriverInner>);

impl Driver {
    /// Makes a driver for the client of this store. Fails if the process has no descriptor left.
    pub fn new(kv: &Kv) -> io::Result<Driver> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (bell, desk) = (Interrupt::new()?, Mutex::default());
        let context = kv.structure().context().clone();
        Ok(Driver(Arc::new(DriverInner { context, bell, event, desk })))
    }

    /// Whether this store belongs to the driver's client.
    pub fn serves(&self, kv: &Kv) -> bool {
        Arc::ptr_eq(&self.0.context, kv.structure().context())
    }

    /// Submits an operation, which `wake` sends. Returns false, without taking it, if its value is
    /// large. The result arrives under `ticket`.
    pub fn ask(&self, kv: &Arc<Kv>, op: BatchOp<'_>, ticket: u64) -> Result<bool, Error> {
        if !kv.piped(op)? {
            return Ok(false);
        }
        let mut desk = self.0.desk();
        let mut asked = match desk.spare.pop() {
            Some(mut asked) => {
                asked.kv = kv.clone();
                asked
            }
            None => PipedRequest::of(kv.clone()),
        };
        asked.set(op, ticket);
        desk.asked.push_back(asked);
        Ok(true)
    }

    /// Makes sure that submitted operations are sent. Fails if no thread can be started.
    pub fn wake(&self) -> io::Result<()> {
        let mut desk = self.0.desk();
        if !desk.running && !desk.asked.is_empty() {
            let inner = self.0.clone();
            let name = "honeycomb-driver".to_owned();
            // The lock is held until `running` is set.
            std::thread::Builder::new().name(name).spawn(move || work(&inner))?;
            desk.running = true;
        }
        drop(desk);
        self.0.bell.set();
        Ok(())
    }

    /// The results that have arrived, each with its ticket.
    pub fn take(&self) -> Vec<(u64, OperationOutcome)> {
        let mut desk = self.0.desk();
        if !desk.answers.is_empty() {
            let _ = rustix::io::read(&self.0.event, &mut [0; 8]);
        }
        std::mem::take(&mut desk.answers)
    }

    /// Readable while there are results to take.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.desk().ending = true;
        self.0.bell.set();
    }
}

impl DriverInner {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The thread.
fn work(inner: &DriverInner) {
    let _guard = AbortOnPanic("driver's");
    inner.bell.adopt();
    let clock = inner.context.pool.clock();
    let mut pipe: Pipe<Arc<Kv>> = Pipe::new(inner.context.clone());
    let mut idle_since = clock.now();
    loop {
        // Cleared before the desk is read: later submissions set it again.
        inner.bell.clear();
        let waiting = {
            let mut desk = inner.desk();
            let idle = pipe.under_way() == 0 && desk.asked.is_empty();
            assert!(desk.running, "INV-33: a driver has a thread that it did not start");
            if idle && (desk.ending || clock.now().since(idle_since) >= IDLE) {
                desk.running = false;
                return;
            }
            while pipe.under_way() < WINDOW
                && let Some(asked) = desk.asked.pop_front()
            {
                pipe.begin(asked);
            }
            let under_way = pipe.under_way();
            assert!(under_way <= WINDOW, "INV-33: {under_way} operations of a driver are sent");
            !desk.asked.is_empty()
        };
        let until = match pipe.under_way() {
            0 => idle_since + IDLE,
            _ => Time::NEVER,
        };
        let before = pipe.under_way();
        // With a full window no operation can start: only a reply changes that.
        pipe.step(until, !waiting);
        let mut landed = Vec::new();
        while let Some(one) = pipe.landed() {
            let answer = match &one.result {
                Ok(r) if one.asked.op == Op::KvGet && r.header.status == Status::Extents => {
                    OperationOutcome::Alone
                }
                _ => OperationOutcome::Done(one.done()),
            };
            landed.push((answer, one.asked));
        }
        let (ended, left) = (landed.len(), pipe.under_way());
        assert_eq!(
            ended + left,
            before,
            "INV-16: of {before} operations of a driver, {ended} ended and {left} are left"
        );
        if landed.is_empty() {
            continue;
        }
        idle_since = clock.now();
        let mut desk = inner.desk();
        if desk.answers.is_empty() {
            let _ = rustix::io::write(&inner.event, &1u64.to_ne_bytes());
        }
        for (answer, asked) in landed {
            desk.answers.push((asked.ticket, answer));
            if desk.spare.len() < WINDOW {
                desk.spare.push(asked);
            }
        }
    }
}
