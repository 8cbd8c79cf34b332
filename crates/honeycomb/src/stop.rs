//! `stop`, and the end of a process that runs a cluster.
//!
//! Both use one procedure, `Client::stop_cluster`. The controller ends all jobs and completes their flushes;
//! the caller waits while blocks are written. `honeycomb stop` does this from outside and sends SIGTERM only
//! when all data is flushed: if the object store is unreachable, the cluster stays, and no data is lost. A
//! process that gets a signal, or loses its parent, does the same from inside and then ends in any case.

use crate::cluster::{ClusterFile, ClusterPlace};
use crate::config::{ForStop, Given};
use crate::failure::{CommandResult, Exit, Failure};
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

/// How long a process with nothing left to write may take to end.
const END_PATIENCE: Duration = Duration::from_secs(30);
/// The pause between two lines of progress.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// A shorter end prints no progress.
const QUIET: Duration = Duration::from_millis(300);
/// How long a request of the process to its own controller may take.
const OWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Stops the cluster that `start` started.
///
/// All jobs end. Prefixes created with --flush-to or --persist are flushed first, with progress on standard
/// error, as long as blocks are written. If flushes fail and nothing is written for --stop-wait seconds, the
/// command lists the places that are not written and exits with code 8. The cluster then keeps this data and
/// accepts no new jobs: run `stop` again when the store is available, or use --discard. All other data is in
/// memory and is lost.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb stop
  honeycomb stop --stop-wait 300
  honeycomb stop --discard            # stops all flushes
  honeycomb stop --json")]
pub struct StopArgs {
    /// Stop at once, without flushing: all unwritten data is lost
    #[arg(long)]
    discard: bool,
    #[command(flatten)]
    given: Given<ForStop>,
    #[command(flatten)]
    output: Output,
}

/// Progress lines of a stopping cluster.
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

    /// Prints progress to standard error, at most once a second. Write errors are ignored.
    fn say(&mut self, progress: &StopProgress) {
        let now = self.clock.now();
        if now < self.next || self.last.as_ref() == Some(progress) {
            return;
        }
        self.next = now + LINE_EVERY;
        self.last = Some(progress.clone());
        let line = match self.json {
            true => json!({ "stopping": as_json(progress) }).to_string(),
            false => {
                let StopProgress { flushes, parts, parts_done, bytes, .. } = progress;
                let why = progress.unflushed.first().filter(|_| progress.failing > 0);
                let why = why.map_or(String::new(), |why| format!("; {why}"));
                let prefixes = if *flushes == 1 { "prefix" } else { "prefixes" };
                format!(
                    "honeycomb: flushing {flushes} {prefixes}: {parts_done} of {parts} blocks, \
                        {}{why}",
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

fn as_json(progress: &StopProgress) -> serde_json::Value {
    let StopProgress { jobs, flushes, failing, parts, parts_done, bytes, unflushed, .. } = progress;
    json!({
        "jobs": jobs, "flushes": flushes, "failing": failing, "blocks": parts,
        "blocks_done": parts_done, "bytes": bytes, "unflushed": unflushed,
    })
}

/// `honeycomb stop`.
pub fn stop(args: &StopArgs) -> CommandResult {
    let settings = args.given.settings()?;
    let path = settings.cluster_file()?;
    let Some(file) = ClusterFile::read(&path)? else {
        let text = format!("no cluster is running here (none in {})", path.display());
        return Err(Failure::new(Status::Unavailable, text));
    };
    let pid = Pid::from_raw(file.pid).ok_or("the cluster file names no process")?;
    let mut lines = Lines::new(args.output.json);
    let ended = ClusterPlace::of_file(&file, &settings).and_then(|place| {
        let mut look = |progress: &StopProgress| {
            lines.say(progress);
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
            return Err(refused.with("`honeycomb stop --discard` stops the cluster without them"));
        }
        Err(failed) => {
            let text = format!(
                "process {} was not stopped, because its controller did not report its flushes; \
                 --discard stops it and loses all unwritten data",
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
                "process {} has no data left but did not end within {} s; end it with kill -9",
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
    args.output.print(&json!({ "address": file.address, "stopped": file.pid }), || {
        format!("stopped {} (process {})", file.address, file.pid)
    });
    Ok(())
}

/// The event that ends the process of a cluster.
enum StopCause {
    Signal,
    /// The parent of an embedded cluster has ended: standard input is closed.
    Parent,
}

/// A cluster in this process: its address, and the files to remove when it ends without its own clean-up.
pub struct HeldCluster {
    /// host:port of the controller.
    pub address: String,
    /// The cluster's token.
    pub token: Vec<u8>,
    /// Sockets and the cluster file.
    pub files: Vec<PathBuf>,
    /// How long it waits for failing flushes.
    pub patience: Duration,
}

impl HeldCluster {
    /// Waits for a signal, or with `parent` for the end of the parent, and then ends the cluster. Flushes
    /// continue while blocks are written. A second signal ends the process at once. `NotFlushed` or
    /// `DataLost` names the places that were not written; the caller ends the process in any case.
    pub fn await_end(self, signals: Signals, parent: bool) -> CommandResult {
        let (ends, end) = channel();
        follow_signals(signals, ends.clone());
        if parent {
            follow_parent(ends);
        }
        let first = end.recv();
        let name = match first {
            Ok(StopCause::Parent) => "its parent process ended",
            Ok(StopCause::Signal) | Err(_) => "it got a signal",
        };
        let last = Arc::new(Mutex::new(StopProgress::default()));
        self.end_at_second(end, last.clone());
        self.wind_up(name, &last)
    }

    fn wind_up(&self, why: &str, last: &Mutex<StopProgress>) -> CommandResult {
        let mut options = ClientOptions::new(self.address.clone(), self.token.clone());
        options.timeout = OWN_TIMEOUT;
        // The process removes its Unix sockets first.
        options.unix = false;
        let client = Client::new(options);
        let mut lines = Lines::new(false);
        let mut look = |progress: &StopProgress| {
            lines.say(progress);
            *last.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = progress.clone();
            true
        };
        let (stopped, progress) = client.stop_cluster(false, self.patience, &mut look)?;
        let lost = progress.lost > 0;
        if stopped == Stopped::Complete && !lost {
            return Ok(());
        }
        let status = if progress.flushes > 0 { Status::NotFlushed } else { Status::DataLost };
        let text = format!(
            "the cluster ends because {why}, but these flushes are not complete: {}",
            progress.unflushed.join("; ")
        );
        Err(Failure::new(status, text))
    }

    /// Ends the process at a second signal, without further flushes.
    fn end_at_second(&self, end: Receiver<StopCause>, last: Arc<Mutex<StopProgress>>) {
        let files = self.files.clone();
        in_background("second signal", move || {
            while let Ok(next) = end.recv() {
                if matches!(next, StopCause::Parent) {
                    continue;
                }
                let progress = last.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
                let lost = match progress.unflushed.is_empty() {
                    true => String::new(),
                    false => {
                        format!("; lost, because not flushed: {}", progress.unflushed.join("; "))
                    }
                };
                say_aloud(&format!("honeycomb: ending at once after a second signal{lost}"));
                for file in &files {
                    let _ = std::fs::remove_file(file);
                }
                std::process::exit(Exit::Conflict as i32);
            }
        });
    }
}

fn follow_signals(mut signals: Signals, ends: Sender<StopCause>) {
    in_background("signals", move || {
        for _ in signals.forever() {
            if ends.send(StopCause::Signal).is_err() {
                return;
            }
        }
    });
}

fn follow_parent(ends: Sender<StopCause>) {
    in_background("parent", move || {
        let mut bytes = [0; 64];
        loop {
            match std::io::stdin().read(&mut bytes) {
                Ok(1..) => {}
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
            }
        }
        let _ = ends.send(StopCause::Parent);
    });
}

/// Runs this on its own thread.
pub fn in_background(name: &str, body: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.into()).spawn(body);
    thread.expect("a thread can be started");
}
