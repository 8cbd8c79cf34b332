//! Evacuates large values from a draining memory server.
//!
//! Other blocks are migrated between servers. Blocks of large values cannot move, because entries name them
//! by their place. The process of the server therefore rewrites these values on other servers, as a client
//! (ADR 0034), and repeats this until the server has none. Only then may the server end.

use honeycomb_client::{Client, ClientOptions};
use honeycomb_env::Clock;
use honeycomb_server::{MemoryServer, ServerOptions, ValuesLeave};
use honeycomb_types::limits::{EVACUATION_PAUSE, EVACUATION_PAUSE_MAX, EXTENTS_LEAVE_FOR};
use honeycomb_types::{BlockAt, JobId, StructureId, Time};
use honeycomb_wire::Status;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// The same error of a store is logged again after this time.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// A store with blocks on this server that must be emptied.
struct StoreToEmpty {
    /// Each block with the time when its report becomes stale: the drain may have been cancelled.
    blocks: BTreeMap<BlockAt, Time>,
    /// Time of the next pass.
    due: Time,
    /// Pause after the next pass, if it moves nothing.
    pause: Duration,
    /// Last error that was logged, and its time.
    said: Option<(Status, Time)>,
}

/// Evacuates large values from a server while it drains, until the server ends.
pub fn follow(server: &MemoryServer, options: &ServerOptions) {
    let values = server.leaving_values().expect("the receiver is taken once");
    let (controller, token) = (options.controller.to_string(), options.token.clone());
    let connect = move || Client::new(ClientOptions::new(controller.clone(), token.clone()));
    let say = |line: String| eprintln!("honeycomb: {line}");
    let thread = std::thread::Builder::new().name("evacuation".into());
    thread.spawn(move || evacuate(&values, connect, say)).expect("a thread can be started");
}

fn evacuate(values: &Receiver<ValuesLeave>, connect: impl Fn() -> Client, say: impl Fn(String)) {
    let (clock, mut stores) =
        (Clock::start(), BTreeMap::<(JobId, StructureId), StoreToEmpty>::new());
    let (mut client, mut carried) = (None, 0);
    loop {
        let came = match stores.values().map(|left| left.due).min() {
            None => values.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => values.recv_timeout(due.since(clock.now())),
        };
        // One time for the whole pass: a slow store must not make the reports of other stores stale.
        let now = clock.now();
        match came {
            Ok(ValuesLeave { job, structure, at }) => {
                let left = stores.entry((job, structure)).or_insert_with(|| StoreToEmpty {
                    blocks: BTreeMap::new(),
                    due: now + EVACUATION_PAUSE,
                    pause: EVACUATION_PAUSE,
                    said: None,
                });
                if left.blocks.insert(at, now + EXTENTS_LEAVE_FOR).is_none() {
                    (left.due, left.pause) =
                        (left.due.min(now + EVACUATION_PAUSE), EVACUATION_PAUSE);
                }
                continue; // A draining server reports many blocks at once.
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
            left.pause = if values > 0 {
                EVACUATION_PAUSE
            } else {
                (2 * left.pause).min(EVACUATION_PAUSE_MAX)
            };
            left.due = now + left.pause;
            if let Some(e) = trouble
                && left.said.is_none_or(|(status, at)| status != e.status || at + SAY_AGAIN <= now)
            {
                say(format!("cannot migrate large values yet, retrying: {e}"));
                left.said = Some((e.status, now));
            }
            !left.blocks.is_empty()
        });
        if stores.is_empty() {
            if carried > 0 {
                let values = if carried == 1 { "value" } else { "values" };
                say(format!("migrated {carried} large {values} to other servers"));
            }
            (client, carried) = (None, 0);
        }
    }
}

/// Whether the status says that the store has ended, so that no blocks of it are left.
fn has_ended(status: Status) -> bool {
    use Status::{DataLost, LeaseExpired, NotFound, Removed, UnknownJob};
    matches!(status, NotFound | Removed | LeaseExpired | DataLost | UnknownJob)
}
