//! What a memory server does that is taken out and has large values: it writes them anew elsewhere.
//!
//! Other blocks leave by themselves, as moves between servers. Parts of large values do not move, because
//! entries name them by where they lie; so the process that runs the server carries them, as a client
//! (ADR 0034). It comes again until the server has none, which is when it may end.

use honeycomb_client::{Client, ClientOptions};
use honeycomb_env::Clock;
use honeycomb_server::{MemoryServer, ServerOptions, ValuesLeave};
use honeycomb_types::limits::EXTENTS_LEAVE_FOR;
use honeycomb_types::{BlockAt, JobId, StructureId, Time};
use honeycomb_wire::Status;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// From one look at a store to the next: what was being written when the server was taken out may be named
/// a moment later, and what nobody names goes by itself. A look reads the whole store, so that one at which
/// nothing could be carried is followed by a pause twice as long, ...
const AGAIN: Duration = Duration::from_millis(500);
/// ... and never a longer one than this.
const AGAIN_MAX: Duration = Duration::from_secs(15);
/// The same trouble of a store is told again after this.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// A store, and its blocks here that are to be emptied.
struct Left {
    /// Until when that holds, unless it is told again: the server may stay.
    blocks: BTreeMap<BlockAt, Time>,
    /// When it is looked at next, and what it rests then if nothing comes of it.
    due: Time,
    pause: Duration,
    /// What was told of it last, and when.
    said: Option<(Status, Time)>,
}

/// Carries large values off a server when it is taken out: until it ends.
pub fn follow(server: &MemoryServer, options: &ServerOptions) {
    let values = server.leaving_values().expect("nobody has asked before");
    let (controller, token) = (options.controller.to_string(), options.token.clone());
    let connect = move || Client::new(ClientOptions::new(controller.clone(), token.clone()));
    let say = |line: String| eprintln!("honeycomb: {line}");
    let thread = std::thread::Builder::new().name("carry".into());
    thread.spawn(move || carry(&values, connect, say)).expect("a thread can be started");
}

fn carry(values: &Receiver<ValuesLeave>, connect: impl Fn() -> Client, say: impl Fn(String)) {
    let (clock, mut stores) = (Clock::start(), BTreeMap::<(JobId, StructureId), Left>::new());
    let (mut client, mut carried) = (None, 0);
    loop {
        let came = match stores.values().map(|left| left.due).min() {
            None => values.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => values.recv_timeout(due.since(clock.now())),
        };
        // One time for all of a pass: how long one store takes is nothing that another has to answer for.
        let now = clock.now();
        match came {
            Ok(ValuesLeave { job, structure, at }) => {
                let left = stores.entry((job, structure)).or_insert_with(|| Left {
                    blocks: BTreeMap::new(),
                    due: now + AGAIN,
                    pause: AGAIN,
                    said: None,
                });
                if left.blocks.insert(at, now + EXTENTS_LEAVE_FOR).is_none() {
                    (left.due, left.pause) = (left.due.min(now + AGAIN), AGAIN);
                }
                continue; // Of one server there are many at a time.
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let with = client.get_or_insert_with(&connect);
        stores.retain(|&(job, structure), left| {
            left.blocks.retain(|_, until| *until > now);
            if left.due > now || left.blocks.is_empty() {
                return !left.blocks.is_empty();
            }
            let leaving = left.blocks.keys().copied().collect();
            let (values, trouble) = match with.carry_values(job, structure, &leaving) {
                Ok(done) => {
                    left.blocks.retain(|at, _| done.had.contains(at));
                    (done.values, done.failed)
                }
                Err(e) if has_ended(e.status) => return false,
                Err(e) => (0, Some(e)),
            };
            carried += values;
            let now = clock.now();
            left.pause = if values > 0 { AGAIN } else { (2 * left.pause).min(AGAIN_MAX) };
            left.due = now + left.pause;
            if let Some(e) = trouble
                && left.said.is_none_or(|(status, at)| status != e.status || at + SAY_AGAIN <= now)
            {
                say(format!("large values wait to leave this server: {e}"));
                left.said = Some((e.status, now));
            }
            !left.blocks.is_empty()
        });
        if stores.is_empty() {
            if carried > 0 {
                say(format!("large values that were here are elsewhere now: {carried}"));
            }
            (client, carried) = (None, 0);
        }
    }
}

/// Whether the store is no more: nothing of it is left anywhere.
fn has_ended(status: Status) -> bool {
    use Status::{DataLost, LeaseExpired, NotFound, Removed, UnknownJob};
    matches!(status, NotFound | Removed | LeaseExpired | DataLost | UnknownJob)
}
