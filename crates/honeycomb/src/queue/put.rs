//! `queue put`.

use super::items::{Cut, Items};
use crate::cluster::{Intent, Work};
use crate::config::{Given, InJob};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::{place, size, wait};
use clap::Args;
use honeycomb_client::Queue;
use honeycomb_env::Clock;
use honeycomb_types::Time;
use honeycomb_wire::Status;
use serde_json::json;
use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::time::Duration;

/// How often progress is shown, and how long nobody needs to see any.
const PROGRESS: Duration = Duration::from_millis(500);

/// Puts items at the end of a queue.
///
/// Each VALUE is an item, as it is; without one, each line of standard input, put as soon as it has
/// come. The job, the prefixes and the queue are created when they are missing. A full queue is
/// waited for: exit code 7 when no room came in --wait seconds, and the message says how many items
/// were put before; 8 when the queue was closed. The job is renewed for as long as this runs.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb queue put work:q first second
  honeycomb queue put work:q < app.log                 # each line
  honeycomb queue put work:q --whole --file logo.png   # one item
  find . -name '*.log' -print0 | honeycomb queue put work:q - --null
  honeycomb queue put work:few one --max-items 100 --wait 0 --json")]
pub struct PutArgs {
    /// The queue: prefix[/prefix...][:name]
    #[arg(value_parser = place::structure)]
    address: String,
    /// The items; `-` alone, or none, reads standard input to its end
    #[arg(conflicts_with = "file")]
    value: Vec<String>,
    /// Take the items from a file
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// All that is read is one item
    #[arg(long, conflicts_with = "null")]
    whole: bool,
    /// Items that are read end with a byte of 0 instead of a line end
    #[arg(long, short = '0')]
    null: bool,
    /// How long to wait for room each time that the queue is full; 0 does not wait
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = wait::seconds)]
    wait: Duration,
    /// Most items of the queue when this creates it (no bound)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_items: Option<u64>,
    /// Most bytes of its items when this creates it (no bound)
    #[arg(long, value_name = "SIZE", value_parser = bound)]
    max_bytes: Option<u64>,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

fn bound(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        0 => Err("no item has room in 0 bytes".into()),
        bytes => Ok(bytes),
    }
}

/// What is put.
enum Source {
    Values(Vec<Vec<u8>>),
    Input(Box<dyn Read>, String),
}

impl PutArgs {
    /// `InvalidArgument` for what cannot be meant; a file that cannot be read is told before
    /// anything is created.
    fn source(&self) -> Outcome<Source> {
        if let Some(path) = &self.file {
            let name = path.display().to_string();
            let file = std::fs::File::open(path).map_err(|e| Failure::io(&name, &e))?;
            return Ok(Source::Input(Box::new(file), name));
        }
        match &self.value[..] {
            [] => {}
            [one] if one == "-" => {}
            values if values.iter().any(|value| value == "-") => {
                let text = "`-` means standard input and stands alone: no other VALUE beside it";
                return Err(Failure::invalid(text));
            }
            _ if self.whole || self.null => {
                let text =
                    "each VALUE is an item as it is: --whole and --null are for what is read";
                return Err(Failure::invalid(text));
            }
            values => {
                let values = values.iter().map(|value| value.as_bytes().to_vec());
                return Ok(Source::Values(values.collect()));
            }
        }
        Ok(Source::Input(Box::new(std::io::stdin().lock()), "standard input".into()))
    }

    fn cut(&self) -> Cut {
        match (self.whole, self.null) {
            (true, _) => Cut::Whole,
            (_, true) => Cut::At(0),
            _ => Cut::At(b'\n'),
        }
    }

    /// Creates the queue, or opens it. `AlreadyExists` when it is there with other bounds than those
    /// that were asked for: they do not change.
    fn queue(&self, work: &Work) -> Outcome<Queue> {
        place::ensure_prefix(work, &self.address)?;
        let (items, bytes) = (self.max_items.unwrap_or(0), self.max_bytes.unwrap_or(0));
        Ok(work.client.create_queue(work.job, &self.address, items, bytes, true)?)
    }
}

/// What was put so far.
struct Put<'a> {
    queue: &'a Queue,
    wait: Duration,
    items: u64,
    bytes: u64,
}

impl Put<'_> {
    /// Puts items in order. Each time that the queue is full it waits anew.
    fn put(&mut self, items: &[Vec<u8>]) -> Outcome {
        let mut rest: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
        while !rest.is_empty() {
            let (done, failed) = match self.queue.put_many(&rest, self.wait) {
                Ok(()) => (rest.len(), None),
                Err((done, e)) => (done, Some(e)),
            };
            self.items += done as u64;
            self.bytes += rest.drain(..done).map(|item| item.len() as u64).sum::<u64>();
            match failed {
                // Somebody takes: it goes on, if slowly.
                Some(e) if e.status == Status::QueueFull && done > 0 => {}
                Some(e) => return Err(self.explain(e.into())),
                None => {}
            }
        }
        Ok(())
    }

    /// Adds to an error how far it got.
    fn explain(&self, failure: Failure) -> Failure {
        match self.items {
            0 => failure,
            1 => failure.with("1 item was put before"),
            n => failure.with(&format!("{n} items were put before")),
        }
    }
}

/// Progress on standard error, for somebody who sits there.
struct Progress {
    clock: Clock,
    next: Time,
    shown: bool,
    wanted: bool,
}

impl Progress {
    fn new(output: Output) -> Progress {
        let clock = Clock::start();
        let wanted = !output.json && std::io::stderr().is_terminal();
        Progress { clock, next: clock.now() + PROGRESS, shown: false, wanted }
    }

    fn show(&mut self, put: &Put<'_>) {
        if self.wanted && self.clock.now() >= self.next {
            eprint!("\r\x1b[K{} items, {}", put.items, size::show(put.bytes));
            (self.next, self.shown) = (self.clock.now() + PROGRESS, true);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

/// `honeycomb queue put`.
pub fn put(args: &PutArgs) -> Outcome {
    let settings = args.given.settings()?;
    let source = args.source()?;
    let work = Work::open(&settings, Intent::Create)?;
    let queue = args.queue(&work)?;
    work.keep();
    let mut put = Put { queue: &queue, wait: args.wait, items: 0, bytes: 0 };
    match source {
        Source::Values(values) => put.put(&values)?,
        Source::Input(from, name) => {
            let mut items = Items::new(from, name, args.cut(), queue.item_limit());
            let mut progress = Progress::new(args.output);
            while let Some(more) = items.next().map_err(|e| put.explain(e))? {
                put.put(&more)?;
                progress.show(&put);
            }
        }
    }
    let told = json!({ "address": args.address, "items": put.items, "bytes": put.bytes });
    args.output.tell(&told, || match put.items {
        0 => "there was nothing to put".into(),
        1 => format!("put 1 item, {}, into {}", size::show(put.bytes), args.address),
        n => format!("put {n} items, {}, into {}", size::show(put.bytes), args.address),
    });
    Ok(())
}
