//! `stop`, and how a process ends that holds a cluster.
//!
//! There is one procedure for both: `Client::stop_cluster`. The controller ends all jobs and completes their
//! flushes; the caller waits while blocks are written. `honeycomb stop` does this from outside and sends
//! SIGTERM only when nothing is left, so that a store that cannot be reached costs no data: the cluster
//! stays. A process that gets a signal, or loses its parent, does the same from inside and ends afterwards in
//! any case.

use crate::cluster::{ClusterFile, Place};
use crate::config::{ForStop, Given};
use crate::failure::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::size;
use clap::Args;
use honeycomb_client::{Client, ClientOptions, StopProgress, Stopped};
use honeycomb_env::Clock;
use honeycomb_types::Time;
use honeycomb_wire::Status;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use signal_hook::iterator::Signals;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a process may take to end that has nothing left to write.
const END_PATIENCE: Duration = Duration::from_secs(30);
/// The pause between two lines of progress.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// A shorter end prints no progress.
const QUIET: Duration = Duration::from_millis(300);
/// How long a request of the process to its own controller may take.
const OWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Stops the cluster that `start` started.
///
/// Every job ends. Prefixes with --flush-to or --persist are flushed first, with progress on standard error, for
/// as long as blocks are written. If flushes fail and nothing is written for --stop-wait seconds, the command
/// names the directories that are not written and ends with code 8. The cluster keeps that data and takes no
/// new jobs: stop it again when the store answers, or --discard the data. All other data is in memory and
/// ends with the cluster.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb stop
  honeycomb stop --stop-wait 300
  honeycomb stop --discard            # flushes nothing more
  honeycomb stop --json")]
pub struct StopArgs {
    /// Stop at once: flush nothing more, and lose all unwritten data
    #[arg(long)]
    discard: bool,
    #[command(flatten)]
    given: Given<ForStop>,
    #[command(flatten)]
    output: Output,
}

/// Lines that say how far the end of a cluster is.
struct Lines {
    clock: Clock,
    json: bool,
    next: Time,
    last: Option<StopProgress>,
}

impl Lines {
    fn new(json: bool) -> Lines {
        let clock = Clock::start();
        Lines { clock, json, next: clock.now() + QUIET, last: None }
    }

    /// Says it on standard error, once a second at most. A terminal that is gone ends nothing.
    fn say(&mut self, told: &StopProgress) {
        let now = self.clock.now();
        if now < self.next || self.last.as_ref() == Some(told) {
            return;
        }
        self.next = now + LINE_EVERY;
        self.last = Some(told.clone());
        let line = match self.json {
            true => json!({ "stopping": as_json(told) }).to_string(),
            false => {
                let StopProgress { flushes, parts, parts_done, bytes, .. } = told;
                let why = told.unflushed.first().filter(|_| told.failing > 0);
                let why = why.map_or(String::new(), |why| format!("; {why}"));
                let prefixes = if *flushes == 1 { "prefix" } else { "prefixes" };
                format!(
                    "honeycomb: flushing {flushes} {prefixes}: {parts_done} of {parts} blocks, {}{why}",
                    size::show(*bytes)
                )
            }
        };
        say_aloud(&line);
    }
}

fn say_aloud(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn as_json(told: &StopProgress) -> serde_json::Value {
    json!({
        "jobs": told.jobs, "flushes": told.flushes, "failing": told.failing, "blocks": told.parts,
        "blocks_done": told.parts_done, "bytes": told.bytes, "unflushed": told.unflushed,
    })
}

/// `honeycomb stop`.
pub fn stop(args: &StopArgs) -> Outcome {
    let settings = args.given.settings()?;
    let path = settings.cluster_file()?;
    let Some(file) = ClusterFile::read(&path)? else {
        let text = format!("no cluster is running here ({} names none)", path.display());
        return Err(Failure::new(Status::Unavailable, text));
    };
    let pid = Pid::from_raw(file.pid).ok_or("the cluster file names no process")?;
    let mut lines = Lines::new(args.output.json);
    let ended = Place::of_file(&file, &settings).and_then(|place| {
        let mut look = |told: &StopProgress| {
            lines.say(told);
            true
        };
        Ok(place.client()?.stop_cluster_whole(args.discard, settings.stop_wait(), &mut look)?)
    });
    let lost = match ended {
        Ok(_) => None,
        // Nothing is left to wait for.
        Err(lost) if lost.status() == Some(Status::DataLost) => Some(lost),
        Err(_) if args.discard => None,
        Err(refused) if refused.status() == Some(Status::NotFlushed) => {
            return Err(refused.with("`honeycomb stop --discard` stops it and loses them"));
        }
        Err(failed) => {
            let text = format!(
                "process {} is not stopped, because its controller did not report its flushes; --discard \
                 ends it all the same, and loses all data that is not written",
                file.pid
            );
            return Err(failed.with(&text));
        }
    };
    kill_process(pid, Signal::TERM)
        .map_err(|e| Failure::io(format_args!("cannot stop process {}", file.pid), &e.into()))?;
    let clock = Clock::start();
    while file.alive() {
        if clock.now().as_millis() > END_PATIENCE.as_millis() as u64 {
            let text = format!(
                "process {} holds nothing more and has not ended after {} s; end it with kill -9",
                file.pid,
                END_PATIENCE.as_secs()
            );
            return Err(Failure::new(Status::DeadlineExceeded, text));
        }
        clock.sleep_until(clock.now() + Duration::from_millis(5));
    }
    if let Some(lost) = lost {
        return Err(lost);
    }
    args.output.tell(&json!({ "address": file.address, "stopped": file.pid }), || {
        format!("stopped {} (process {})", file.address, file.pid)
    });
    Ok(())
}

/// The event that ends a process with a cluster.
enum End {
    Signal,
    /// The parent that embeds it is gone: its end of standard input closed.
    Parent,
}

/// A cluster in this process: its address, and the files that remain when it ends without its own clean-up.
pub struct Held {
    /// host:port of the controller.
    pub address: String,
    /// The cluster's token.
    pub token: Vec<u8>,
    /// Sockets and the cluster file.
    pub files: Vec<PathBuf>,
    /// How long it waits for flushes that fail.
    pub patience: Duration,
}

impl Held {
    /// Waits for a signal, or with `parent` for the end of the parent, and then ends the cluster. Flushes go
    /// on while blocks are written. A second signal ends the process at once. `NotFlushed` or `DataLost`
    /// names the directories that were not written; the caller ends the process in any case.
    pub fn await_end(self, signals: Signals, parent: bool) -> Outcome {
        let (ends, end) = channel();
        follow_signals(signals, ends.clone());
        if parent {
            follow_parent(ends);
        }
        let first = end.recv();
        let name = match first {
            Ok(End::Parent) => "its parent has ended",
            Ok(End::Signal) | Err(_) => "it was signalled",
        };
        let last = Arc::new(Mutex::new(StopProgress::default()));
        self.end_at_second(end, last.clone());
        self.wind_up(name, &last)
    }

    fn wind_up(&self, why: &str, last: &Mutex<StopProgress>) -> Outcome {
        let mut options = ClientOptions::new(self.address.clone(), self.token.clone());
        options.timeout = OWN_TIMEOUT;
        // The process removes its Unix sockets first.
        options.unix = false;
        let client = Client::new(options);
        let mut lines = Lines::new(false);
        let mut look = |told: &StopProgress| {
            lines.say(told);
            *last.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = told.clone();
            true
        };
        let (stopped, told) = client.stop_cluster(false, self.patience, &mut look)?;
        let lost = told.lost > 0;
        if stopped == Stopped::Complete && !lost {
            return Ok(());
        }
        let status = if told.flushes > 0 { Status::NotFlushed } else { Status::DataLost };
        let text = format!(
            "the cluster ends because {why}, and data to be flushed is not written: {}",
            told.unflushed.join("; ")
        );
        Err(Failure::new(status, text))
    }

    /// Ends the process at a second signal, without writing anything more.
    fn end_at_second(&self, end: Receiver<End>, last: Arc<Mutex<StopProgress>>) {
        let files = self.files.clone();
        in_background("second signal", move || {
            while let Ok(next) = end.recv() {
                if matches!(next, End::Parent) {
                    continue;
                }
                let told = last.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
                let lost = match told.unflushed.is_empty() {
                    true => String::new(),
                    false => {
                        format!(", and loses unwritten data: {}", told.unflushed.join("; "))
                    }
                };
                say_aloud(&format!("honeycomb: a second signal ends it at once{lost}"));
                for file in &files {
                    let _ = std::fs::remove_file(file);
                }
                std::process::exit(Exit::Conflict as i32);
            }
        });
    }
}

fn follow_signals(mut signals: Signals, ends: Sender<End>) {
    in_background("signals", move || {
        for _ in signals.forever() {
            if ends.send(End::Signal).is_err() {
                return;
            }
        }
    });
}

fn follow_parent(ends: Sender<End>) {
    in_background("parent", move || {
        let mut bytes = [0; 64];
        loop {
            match std::io::stdin().read(&mut bytes) {
                Ok(1..) => {}
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
            }
        }
        let _ = ends.send(End::Parent);
    });
}

/// Runs this beside the caller.
pub fn in_background(name: &str, body: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.into()).spawn(body);
    thread.expect("a thread can be started");
}
