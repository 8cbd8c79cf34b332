//! `queue put`, `queue get`, `queue peek`, `queue len`, `queue close`.

mod items;
mod put;

use crate::cluster::{Intent, Work};
use crate::config::{Given, InJob};
use crate::failure::{CommandResult, Failure};
use crate::output::{Output, hex, print_bytes, put_bytes};
use crate::wait::Patience;
use crate::{place, size, wait};
use clap::{Args, Subcommand};
use honeycomb_client::Queue;
use honeycomb_types::limits::QUEUE_BATCH_MAX;
use honeycomb_wire::Status;
use serde_json::json;
use std::time::Duration;

/// Queues: puts, takes, peeks at and counts items; first in, first out.
///
/// The address of a queue is prefix[/prefix...][:name]. Any number of commands may put and take at the same
/// time; each item is taken once. An item may be empty, and has at most as many bytes as a value of a
/// key-value store. Each of these commands renews all leases of its job.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb queue put work:all one two three
  honeycomb queue len work:all
  honeycomb queue peek work:all
  honeycomb queue get work:all
  honeycomb queue close work:all
  honeycomb queue get work:all --all     # all items, to the end")]
pub struct QueueArgs {
    #[command(subcommand)]
    what: QueueCommand,
}

#[derive(Subcommand)]
enum QueueCommand {
    Put(Box<put::QueuePutArgs>),
    Get(Box<QueueGetArgs>),
    Peek(Box<PeekArgs>),
    Len(Box<LenArgs>),
    Close(Box<CloseArgs>),
}

/// Takes items from the front of a queue, and prints them.
///
/// It takes one item, or more with -n or --all, and prints a line end after each. For items that contain line
/// ends, use --null, --hex or --json; --json prints one object per line with `item`, or `item_hex` if the
/// bytes are not UTF-8. It waits for items without limit, or for --wait seconds. The exit code is 3 if no
/// item arrived in that time, 8 if the queue is closed and empty, and 0 if items arrived.
///
/// Printed items are removed permanently. With more than one item, items that were received but not printed
/// are lost if this command is killed. The command renews its job while it waits.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb queue put turns:q one two three four
  honeycomb queue get turns:q
  honeycomb queue get turns:q -n 2 --hex
  honeycomb queue get turns:q --all --wait 0 --json    # all present items
  honeycomb queue get turns:q --wait 0.1 || test $? = 3   # the queue is empty
  honeycomb queue close turns:q
  honeycomb queue get turns:q --all                   # to the end")]
struct QueueGetArgs {
    /// The queue: prefix[/prefix...][:name]
    #[arg(value_parser = place::structure)]
    address: String,
    /// Maximum number of items to take
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Take items until the queue is closed and empty, then exit with 0; --follow is the same
    #[arg(long, alias = "follow", conflicts_with = "count")]
    all: bool,
    /// How long to wait for the next item (default: no limit); 0 does not wait
    #[arg(long, value_name = "SECONDS", value_parser = wait::seconds)]
    wait: Option<Duration>,
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// Prints the first items of a queue without removing them.
///
/// The output is like that of `queue get`. The command does not wait: the exit code is 3 if the queue is
/// empty, 8 if it is also closed. Reserved items are not shown.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb queue put work:q one two three
  honeycomb queue peek work:q
  honeycomb queue peek work:q -n 10 --json")]
struct PeekArgs {
    /// The queue: prefix[/prefix...][:name]
    #[arg(value_parser = place::structure)]
    address: String,
    /// Maximum number of items to print, at most 4096 items or 1 MiB
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    count: u32,
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// Shows the number of items in a queue, and their bytes.
///
/// The numbers are exact if there are no concurrent puts and takes. Reserved items that are not acknowledged
/// are included, and also shown separately. With --json: `items`, `bytes`, `reserved`, `closed`, and the
/// bounds `max_items` and `max_bytes`, null if there is none.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb queue put work:q one two three
  honeycomb queue len work:q
  honeycomb queue len work:q --json")]
struct LenArgs {
    /// The queue: prefix[/prefix...][:name]
    #[arg(value_parser = place::structure)]
    address: String,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// Closes a queue permanently: no more items can be put.
///
/// Remaining items can still be taken. Consumers that wait for an item get the end after the last item;
/// producers that wait for room get it at once. Closing a queue twice is not an error.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb queue put done:q one
  honeycomb queue close done:q
  honeycomb queue get done:q --all
  honeycomb queue close done:q --json")]
struct CloseArgs {
    /// The queue: prefix[/prefix...][:name]
    #[arg(value_parser = place::structure)]
    address: String,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// The output format of items.
#[derive(Args, Clone, Copy)]
struct Form {
    /// Print a zero byte after each item instead of a line end
    #[arg(long, short = '0', conflicts_with_all = ["hex", "raw", "json"])]
    null: bool,
    /// Print each item in hexadecimal, one per line
    #[arg(long, conflicts_with_all = ["raw", "json"])]
    hex: bool,
    /// Print the bytes of the items without separators
    #[arg(long, conflicts_with = "json")]
    raw: bool,
}

impl Form {
    /// Prints items that were taken together in one write: all of them are printed, or none.
    fn print(self, output: Output, items: &[Vec<u8>]) {
        let mut text = Vec::new();
        for item in items {
            if output.json {
                let mut object = json!({});
                put_bytes(&mut object, "item", item);
                text.extend_from_slice(object.to_string().as_bytes());
            } else if self.hex {
                text.extend_from_slice(hex(item).as_bytes());
            } else {
                text.extend_from_slice(item);
            }
            match self {
                Form { raw: true, .. } => {}
                Form { null: true, .. } => text.push(0),
                _ => text.push(b'\n'),
            }
        }
        print_bytes(&text);
    }
}

/// `honeycomb queue`.
pub fn queue(args: &QueueArgs) -> CommandResult {
    match &args.what {
        QueueCommand::Put(args) => put::put(args),
        QueueCommand::Get(args) => get(args),
        QueueCommand::Peek(args) => peek(args),
        QueueCommand::Len(args) => len(args),
        QueueCommand::Close(args) => close(args),
    }
}

fn opened_by(given: &Given<InJob>, address: &str) -> CommandResult<(Work, Queue)> {
    let work = Work::open(&given.settings()?, Intent::Use)?;
    let queue = work.client.open_queue(work.job, address)?;
    Ok((work, queue))
}

fn empty(address: &str, patience: &Patience) -> Failure {
    let text = match patience.shown().as_str() {
        "" => format!("{address} is empty"),
        within => format!("{address} had no item{within}"),
    };
    Failure::new(Status::QueueEmpty, text)
}

fn get(args: &QueueGetArgs) -> CommandResult {
    let (work, queue) = opened_by(&args.given, &args.address)?;
    work.keep();
    let mut left = if args.all { u64::MAX } else { args.count };
    let mut patience = Patience::new(args.wait);
    let mut some = false;
    while left > 0 {
        let most = left.min(QUEUE_BATCH_MAX as u64) as usize;
        match queue.get_many(most, patience.left()) {
            Ok(items) if !items.is_empty() => {
                args.form.print(args.output, &items);
                left -= items.len() as u64;
                some = true;
                patience.renew();
            }
            // A signal, or the longest wait of one client call.
            Ok(_) if !patience.over() => {}
            Ok(_) if some => break,
            Ok(_) => return Err(empty(&args.address, &patience)),
            Err(e) if e.status == Status::QueueClosed && (some || args.all) => break,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

fn peek(args: &PeekArgs) -> CommandResult {
    let (_work, queue) = opened_by(&args.given, &args.address)?;
    let items = queue.peek(args.count as usize)?;
    if items.is_empty() {
        return Err(empty(&args.address, &Patience::new(Some(Duration::ZERO))));
    }
    args.form.print(args.output, &items);
    Ok(())
}

fn len(args: &LenArgs) -> CommandResult {
    let (_work, queue) = opened_by(&args.given, &args.address)?;
    let counts = queue.counts()?;
    let bounds = queue.bounds();
    let bound = |n: u64| Some(n).filter(|n| *n > 0);
    let report = json!({
        "address": args.address, "items": counts.items, "bytes": counts.bytes,
        "reserved": counts.reserved, "closed": counts.closed, "max_items": bound(bounds.0),
        "max_bytes": bound(bounds.1),
    });
    args.output.print(&report, || {
        let items = if counts.items == 1 { "item" } else { "items" };
        let mut text = format!("{} {items}, {}", counts.items, size::show(counts.bytes));
        text += &bound(counts.reserved).map_or(String::new(), |n| format!(", {n} reserved"));
        text += if counts.closed { ", closed" } else { "" };
        text += &bound(bounds.0).map_or(String::new(), |n| format!(", at most {n} items"));
        text += &bound(bounds.1).map_or(String::new(), |n| format!(", at most {}", size::show(n)));
        text
    });
    Ok(())
}

fn close(args: &CloseArgs) -> CommandResult {
    let (_work, queue) = opened_by(&args.given, &args.address)?;
    queue.close()?;
    let report = json!({ "address": args.address, "closed": true });
    args.output.print(&report, || format!("closed {}", args.address));
    Ok(())
}
