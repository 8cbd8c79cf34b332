//! `queue put`.

use super::items::{Delimiter, ItemReader};
use crate::cluster::{Intent, Work};
use crate::config::{Given, InJob};
use crate::failure::{CommandResult, Failure};
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

/// The interval of progress lines, and the time before the first one.
const PROGRESS: Duration = Duration::from_millis(500);

/// Puts items at the end of a queue.
///
/// Each VALUE is one item. Without a VALUE, each line of standard input is one item, put as soon as it
/// arrives. The job, the prefixes and the queue are created when they are missing. If the queue is full, the
/// command waits. The exit code is 7 if it stays full for --wait seconds (the message says how many items
/// were put before), and 8 if the queue is closed. The command renews its job while it runs.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb queue put work:q first second
  honeycomb queue put work:q < app.log                 # each line
  honeycomb queue put work:q --whole --file logo.png   # one item
  find . -name '*.log' -print0 | honeycomb queue put work:q - --null
  honeycomb queue put work:few one --max-items 100 --wait 0 --json")]
pub struct QueuePutArgs {
    /// The queue: prefix[/prefix...][:name]
    #[arg(value_parser = place::structure)]
    address: String,
    /// The items; `-` alone, or no argument, reads standard input to its end
    #[arg(conflicts_with = "file")]
    value: Vec<String>,
    /// Read the items from this file
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Read the whole input as one item
    #[arg(long, conflicts_with = "null")]
    whole: bool,
    /// Items in the input end with a zero byte instead of a line end
    #[arg(long, short = '0')]
    null: bool,
    /// How long to wait each time the queue is full; 0 does not wait
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = wait::seconds)]
    wait: Duration,
    /// Maximum number of items, if the command creates the queue (default: no limit)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_items: Option<u64>,
    /// Maximum bytes of items, if the command creates the queue (default: no limit)
    #[arg(long, value_name = "SIZE", value_parser = bound)]
    max_bytes: Option<u64>,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

fn bound(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        0 => Err("the bound must not be 0 bytes".into()),
        bytes => Ok(bytes),
    }
}

/// The source of the items.
enum Source {
    Values(Vec<Vec<u8>>),
    Input(Box<dyn Read>, String),
}

impl QueuePutArgs {
    /// The source of the items; `InvalidArgument` for contradicting arguments. An unreadable file is an error
    /// before anything is created.
    fn source(&self) -> CommandResult<Source> {
        if let Some(path) = &self.file {
            let name = path.display().to_string();
            let file = std::fs::File::open(path).map_err(|e| Failure::io(&name, &e))?;
            return Ok(Source::Input(Box::new(file), name));
        }
        match &self.value[..] {
            [] => {}
            [one] if one == "-" => {}
            values if values.iter().any(|value| value == "-") => {
                let text = "`-` means standard input: it cannot be combined with another VALUE";
                return Err(Failure::invalid(text));
            }
            _ if self.whole || self.null => {
                let text = "--whole and --null apply to input: they cannot be combined with VALUE";
                return Err(Failure::invalid(text));
            }
            values => {
                let values = values.iter().map(|value| value.as_bytes().to_vec());
                return Ok(Source::Values(values.collect()));
            }
        }
        Ok(Source::Input(Box::new(std::io::stdin().lock()), "standard input".into()))
    }

    fn cut(&self) -> Delimiter {
        match (self.whole, self.null) {
            (true, _) => Delimiter::Whole,
            (_, true) => Delimiter::At(0),
            _ => Delimiter::At(b'\n'),
        }
    }

    /// Creates the queue, or opens it. `AlreadyExists` when it exists with other bounds: bounds do not
    /// change.
    fn queue(&self, work: &Work) -> CommandResult<Queue> {
        work.ensure_prefix(&self.address)?;
        let (items, bytes) = (self.max_items.unwrap_or(0), self.max_bytes.unwrap_or(0));
        Ok(work.client.create_queue(work.job, &self.address, items, bytes, true)?)
    }
}

/// The queue, and the items put so far.
struct Put<'a> {
    queue: &'a Queue,
    wait: Duration,
    items: u64,
    bytes: u64,
}

impl Put<'_> {
    /// Puts items in order. The wait restarts each time the queue is full.
    fn put(&mut self, items: &[Vec<u8>]) -> CommandResult {
        let mut rest: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
        while !rest.is_empty() {
            let (done, failed) = match self.queue.put_many(&rest, self.wait) {
                Ok(()) => (rest.len(), None),
                Err((done, e)) => (done, Some(e)),
            };
            self.items += done as u64;
            self.bytes += rest.drain(..done).map(|item| item.len() as u64).sum::<u64>();
            match failed {
                // A consumer takes items: continue.
                Some(e) if e.status == Status::QueueFull && done > 0 => {}
                Some(e) => return Err(self.explain(e.into())),
                None => {}
            }
        }
        Ok(())
    }

    /// Adds the number of items put to an error.
    fn explain(&self, failure: Failure) -> Failure {
        match self.items {
            0 => failure,
            1 => failure.with("1 item was put before"),
            n => failure.with(&format!("{n} items were put before")),
        }
    }
}

/// Progress on standard error, if that is a terminal.
struct ProgressLine {
    clock: Clock,
    next: Time,
    shown: bool,
    wanted: bool,
}

impl ProgressLine {
    fn new(output: Output) -> ProgressLine {
        let clock = Clock::start();
        let wanted = !output.json && std::io::stderr().is_terminal();
        ProgressLine { clock, next: clock.now() + PROGRESS, shown: false, wanted }
    }

    fn show(&mut self, put: &Put<'_>) {
        if self.wanted && self.clock.now() >= self.next {
            eprint!("\r\x1b[K{} items, {}", put.items, size::show(put.bytes));
            (self.next, self.shown) = (self.clock.now() + PROGRESS, true);
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

/// `honeycomb queue put`.
pub fn put(args: &QueuePutArgs) -> CommandResult {
    let settings = args.given.settings()?;
    let source = args.source()?;
    let work = Work::open(&settings, Intent::Create)?;
    let queue = args.queue(&work)?;
    work.keep();
    let mut put = Put { queue: &queue, wait: args.wait, items: 0, bytes: 0 };
    match source {
        Source::Values(values) => put.put(&values)?,
        Source::Input(from, name) => {
            let mut items = ItemReader::new(from, name, args.cut(), queue.item_limit());
            let mut progress = ProgressLine::new(args.output);
            while let Some(more) = items.next().map_err(|e| put.explain(e))? {
                put.put(&more)?;
                progress.show(&put);
            }
        }
    }
    let told = json!({ "address": args.address, "items": put.items, "bytes": put.bytes });
    args.output.print(&told, || match put.items {
        0 => "the input was empty, no item was put".into(),
        1 => format!("put 1 item, {}, into {}", size::show(put.bytes), args.address),
        n => format!("put {n} items, {}, into {}", size::show(put.bytes), args.address),
    });
    Ok(())
}
