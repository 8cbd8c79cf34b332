//! Operations on stores for callers that must not wait, such as an event loop: a thread of its own
//! carries them out, as a pipeline does, and a descriptor tells when there are answers to take.

use crate::batch::Done;
use crate::context::Context;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::kv::Kv;
use crate::pipe::{Asked, Pipe};
use honeycomb_types::Time;
use honeycomb_wire::batch::BatchOp;
use honeycomb_wire::{Op, Status};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Operations under way at a time; more wait in line.
const WINDOW: usize = 256;
/// How long the thread stays without work.
const IDLE: Duration = Duration::from_secs(10);

/// What came of an operation.
pub enum Answer {
    /// Its answer.
    Done(Result<Done, Error>),
    /// The value is too large to come with others: read it alone.
    Alone,
}

struct Inner {
    context: Arc<Context>,
    /// Set when something was asked for, or the thread is to end.
    bell: Interrupt,
    /// Readable while there is something to take.
    event: OwnedFd,
    desk: Mutex<Desk>,
}

/// What lies between the thread and its callers.
#[derive(Default)]
struct Desk {
    asked: VecDeque<Asked<Arc<Kv>>>,
    answers: Vec<(u64, Answer)>,
    /// To be asked again with other contents.
    spare: Vec<Asked<Arc<Kv>>>,
    running: bool,
    ending: bool,
}

/// Carries out operations on the stores of one client. Each takes effect once; those on one key take
/// effect in the order in which they were asked for, and nothing orders others. Dropped, it ends what is
/// under way unseen.
pub struct Driver(Arc<Inner>);

impl Driver {
    /// One for the stores of this one's client. Fails when the process has no descriptor left.
    pub fn new(kv: &Kv) -> io::Result<Driver> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (bell, desk) = (Interrupt::new()?, Mutex::default());
        let context = kv.structure().context().clone();
        Ok(Driver(Arc::new(Inner { context, bell, event, desk })))
    }

    /// Whether this store is of its client.
    pub fn serves(&self, kv: &Kv) -> bool {
        Arc::ptr_eq(&self.0.context, kv.structure().context())
    }

    /// Takes an operation, which `wake` sends; false, and nothing taken, for one with a large value. The
    /// answer comes under `ticket`.
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
            None => Asked::of(kv.clone()),
        };
        asked.set(op, ticket);
        desk.asked.push_back(asked);
        Ok(true)
    }

    /// Sees to it that what was asked for is sent. Fails when there can be no thread.
    pub fn wake(&self) -> io::Result<()> {
        let mut desk = self.0.desk();
        if !desk.running && !desk.asked.is_empty() {
            let inner = self.0.clone();
            let name = "honeycomb-driver".to_owned();
            std::thread::Builder::new().name(name).spawn(move || work(&inner))?;
            desk.running = true;
        }
        drop(desk);
        self.0.bell.set();
        Ok(())
    }

    /// The answers that have come, each with its ticket.
    pub fn take(&self) -> Vec<(u64, Answer)> {
        let mut desk = self.0.desk();
        if !desk.answers.is_empty() {
            let _ = rustix::io::read(&self.0.event, &mut [0; 8]);
        }
        std::mem::take(&mut desk.answers)
    }

    /// Readable while there are answers to take.
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

impl Inner {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The thread.
fn work(inner: &Inner) {
    inner.bell.adopt();
    let clock = inner.context.pool.clock();
    let mut pipe: Pipe<Arc<Kv>> = Pipe::new(inner.context.clone());
    let mut idle_since = clock.now();
    loop {
        // Before the desk is looked at: what is asked for from here on rings again.
        inner.bell.clear();
        let waiting = {
            let mut desk = inner.desk();
            let idle = pipe.under_way() == 0 && desk.asked.is_empty();
            if idle && (desk.ending || clock.now().since(idle_since) >= IDLE) {
                desk.running = false;
                return;
            }
            while pipe.under_way() < WINDOW
                && let Some(asked) = desk.asked.pop_front()
            {
                pipe.begin(asked);
            }
            !desk.asked.is_empty()
        };
        let until = match pipe.under_way() {
            0 => idle_since + IDLE,
            _ => Time::NEVER,
        };
        // With a full window nothing new can begin: only an answer changes that.
        pipe.step(until, !waiting);
        let mut landed = Vec::new();
        while let Some(one) = pipe.landed() {
            let answer = match &one.result {
                Ok(r) if one.asked.op == Op::KvGet && r.header.status == Status::Extents => {
                    Answer::Alone
                }
                _ => Answer::Done(one.done()),
            };
            landed.push((answer, one.asked));
        }
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
