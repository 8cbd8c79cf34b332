//! `watch`: changes of a structure, as they happen.

use crate::cluster::{Intent, Work};
use crate::config::{Given, InJob, unhex};
use crate::failure::{CommandResult, Failure};
use crate::output::{Output, escaped, put_bytes};
use crate::wait::Patience;
use crate::{place, wait};
use clap::{Args, ValueEnum};
use honeycomb_client::{Heard, Structure};
use honeycomb_env::time_of_day;
use honeycomb_types::Notices;
use honeycomb_wire::Status;
use honeycomb_wire::notice::{Filter, kinds};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::time::Duration;

/// Prints the changes of a structure as they happen.
///
/// One notification per line: time of day in UTC, operation, details. A file has the operations append and
/// seal; a queue has data (items were put), space (items were taken) and close; a key-value store has put and
/// delete. With --json, each line is one object with `time_ms` (since 1970), `op` and the details. The first
/// object has the op `watching`: every later change is notified. Without --json, that line goes to standard
/// error.
///
/// If the command does not read notifications in time, a line GAP (op `gap`) stands for the missing ones. The
/// command ends on Ctrl-C, after --count notifications, when --until is reached, or after --wait seconds,
/// then with exit code 5 if a count or a goal was not reached. If the data is freed, it ends with the reason:
/// exit code 6 for an expired lease. Watching does not renew leases.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb put notes:kv color blue
  honeycomb watch notes:kv --wait 0.5
  honeycomb watch notes:kv --prefix co --ops put --wait 0.5 --json
  honeycomb watch notes:kv --until key=color
  honeycomb append logs:full app.log --seal
  honeycomb watch logs:full --until sealed --wait 60")]
pub struct WatchArgs {
    /// The structure: prefix[/prefix...][:name]
    #[arg(value_parser = place::structure)]
    address: String,
    /// Print only these operations, separated by commas (default: all of the structure)
    #[arg(long, value_delimiter = ',', value_name = "OP,...")]
    ops: Vec<WatchOp>,
    /// Print only changes of this key
    #[arg(long, value_name = "KEY", conflicts_with = "prefix")]
    key: Option<String>,
    /// Print only changes of keys that begin with this text
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// KEY of --key, TEXT of --prefix and K of --until are written in hexadecimal
    #[arg(long)]
    key_hex: bool,
    /// End after this many notifications
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "until")]
    count: Option<u64>,
    /// End with 0 when this is true, at once if it already is: sealed, closed, size=BYTES (a file has at
    /// least this size), key=K (a key has a value)
    #[arg(long, value_name = "GOAL", value_parser = goal)]
    until: Option<Goal>,
    /// Stop watching after this time (default: no limit)
    #[arg(long, value_name = "SECONDS", value_parser = wait::seconds)]
    wait: Option<Duration>,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// The operation of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WatchOp {
    Append,
    Seal,
    Data,
    Space,
    Close,
    Put,
    Delete,
}

impl WatchOp {
    /// The operations that a structure reports.
    fn of(notices: Notices) -> &'static [WatchOp] {
        match notices {
            Notices::Appends => &[WatchOp::Append, WatchOp::Seal],
            Notices::Items => &[WatchOp::Data, WatchOp::Space, WatchOp::Close],
            Notices::Keys => &[WatchOp::Put, WatchOp::Delete],
            Notices::Chosen => WatchOp::value_variants(),
            Notices::Never => &[],
        }
    }

    fn bit(self) -> u16 {
        match self {
            WatchOp::Append => kinds::APPEND,
            WatchOp::Seal => kinds::SEAL,
            WatchOp::Data => kinds::DATA,
            WatchOp::Space => kinds::SPACE,
            WatchOp::Close => kinds::CLOSE,
            WatchOp::Put => kinds::PUT,
            WatchOp::Delete => kinds::DELETE,
        }
    }

    fn name(self) -> &'static str {
        match self {
            WatchOp::Append => "append",
            WatchOp::Seal => "seal",
            WatchOp::Data => "data",
            WatchOp::Space => "space",
            WatchOp::Close => "close",
            WatchOp::Put => "put",
            WatchOp::Delete => "delete",
        }
    }

    /// The operation of a notification; `None` for a gap, which may be any.
    fn heard(heard: &Heard) -> Option<WatchOp> {
        Some(match heard {
            Heard::Append { .. } => WatchOp::Append,
            Heard::Seal { .. } => WatchOp::Seal,
            Heard::Data { .. } => WatchOp::Data,
            Heard::Space { .. } => WatchOp::Space,
            Heard::Close => WatchOp::Close,
            Heard::Put { .. } => WatchOp::Put,
            Heard::Delete { .. } => WatchOp::Delete,
            Heard::Gap { .. } => return None,
        })
    }
}

fn names(ops: &[WatchOp]) -> String {
    ops.iter().map(|op| op.name()).collect::<Vec<_>>().join(", ")
}

/// The goal of `--until`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Goal {
    Sealed,
    Closed,
    Size(u64),
    Key(String),
}

/// Parses a goal, as a clap parser.
fn goal(text: &str) -> Result<Goal, String> {
    match text.split_once('=') {
        None if text == "sealed" => Ok(Goal::Sealed),
        None if text == "closed" => Ok(Goal::Closed),
        Some(("size", size)) => crate::size::parse(size).map(Goal::Size),
        Some(("key", key)) if !key.is_empty() => Ok(Goal::Key(key.to_owned())),
        _ => Err(format!("'{text}' is not one of sealed, closed, size=BYTES and key=K")),
    }
}

impl Goal {
    /// The operations that can reach the goal.
    fn ops(&self) -> &'static [WatchOp] {
        match self {
            Goal::Sealed => &[WatchOp::Seal],
            Goal::Closed => &[WatchOp::Close],
            Goal::Size(_) => &[WatchOp::Append, WatchOp::Seal],
            Goal::Key(_) => &[WatchOp::Put],
        }
    }
}

/// A watch with its checked arguments.
struct Watch<'a> {
    args: &'a WatchArgs,
    work: Work,
    structure: Structure,
    /// Operations to print.
    ops: Vec<WatchOp>,
    filter: Filter,
    /// The key of the goal, if it has one.
    key: Vec<u8>,
}

impl Watch<'_> {
    /// Opens the structure and checks that its kind has the requested operations.
    fn new(args: &WatchArgs) -> CommandResult<Watch<'_>> {
        let settings = args.given.settings()?;
        let bytes = |text: &str| match args.key_hex {
            true => unhex(text).map_err(|why| Failure::invalid(format!("the key '{text}': {why}"))),
            false => Ok(text.as_bytes().to_vec()),
        };
        let key = match &args.until {
            Some(Goal::Key(key)) => bytes(key)?,
            _ => Vec::new(),
        };
        let filter = match (&args.key, &args.prefix) {
            (Some(key), _) => Filter::Key(bytes(key)?),
            (_, Some(prefix)) if !prefix.is_empty() => Filter::Prefix(bytes(prefix)?),
            _ => Filter::All,
        };
        let work = Work::open(&settings, Intent::Look)?;
        let structure = work.client.open(work.job, &args.address)?;
        let all = WatchOp::of(structure.notices());
        let ops = if args.ops.is_empty() { all.to_vec() } else { args.ops.clone() };
        let watch = Watch { args, work, structure, ops, filter, key };
        watch.check(all)?;
        Ok(watch)
    }

    fn check(&self, all: &[WatchOp]) -> CommandResult {
        let goal = self.args.until.as_ref();
        let mut asked = self.ops.iter().chain(goal.map_or(&[][..], Goal::ops));
        if let Some(op) = asked.find(|op| !all.contains(op)) {
            let text = format!(
                "cannot watch {}: a {} has no '{}' notifications; available: {}",
                self.args.address,
                self.structure.kind().name(),
                op.name(),
                names(all)
            );
            return Err(Failure::invalid(text));
        }
        if self.filter != Filter::All && self.structure.notices() != Notices::Keys {
            let text = format!(
                "cannot watch keys of {}: a {} has no keys; omit --key and --prefix",
                self.args.address,
                self.structure.kind().name()
            );
            return Err(Failure::invalid(text));
        }
        let left_out = match &self.filter {
            Filter::All => false,
            Filter::Key(key) => *key != self.key,
            Filter::Prefix(prefix) => !self.key.starts_with(prefix),
        };
        if matches!(goal, Some(Goal::Key(_))) && left_out {
            let text = "the key of --until is excluded by --key or --prefix";
            return Err(Failure::invalid(text));
        }
        Ok(())
    }

    /// Whether the goal is reached, by a request. `Sealed` when a file can no longer reach it.
    fn reached(&self) -> CommandResult<bool> {
        let (client, job, address) = (&self.work.client, self.work.job, &self.args.address);
        Ok(match &self.args.until {
            None => false,
            Some(Goal::Sealed) => client.open_file(job, address)?.sealed()?,
            Some(Goal::Closed) => client.open_queue(job, address)?.counts()?.closed,
            Some(Goal::Key(_)) => client.open_kv(job, address)?.exists(&self.key)?.is_some(),
            Some(Goal::Size(wanted)) => {
                let file = client.open_file(job, address)?;
                // `sealed` is read first: a file that is sealed then has its final size afterwards.
                let sealed = file.sealed()?;
                let size = file.size()?;
                if sealed && size < *wanted {
                    return Err(self.too_small(size, *wanted));
                }
                size >= *wanted
            }
        })
    }

    fn too_small(&self, size: u64, wanted: u64) -> Failure {
        let text = format!(
            "{} cannot reach {wanted} bytes: it was sealed at {size} bytes",
            self.args.address
        );
        Failure::new(Status::Sealed, text)
    }

    /// Whether this notification reaches the goal.
    fn reached_by(&self, heard: &Heard) -> CommandResult<bool> {
        Ok(match (&self.args.until, heard) {
            (Some(_), Heard::Gap { .. }) => self.reached()?,
            (Some(Goal::Sealed), Heard::Seal { .. }) => true,
            (Some(Goal::Closed), Heard::Close) => true,
            (Some(Goal::Key(_)), Heard::Put { key }) => **key == *self.key,
            (Some(Goal::Size(wanted)), Heard::Append { offset, length }) => {
                offset + length >= *wanted
            }
            (Some(Goal::Size(wanted)), Heard::Seal { size }) if size < wanted => {
                return Err(self.too_small(*size, *wanted));
            }
            (Some(Goal::Size(_)), Heard::Seal { .. }) => true,
            _ => false,
        })
    }

    /// Announces that every change from now on is notified, or reported as a gap.
    fn announce(&self) {
        let ops: Vec<&str> = self.ops.iter().map(|op| op.name()).collect();
        let (address, kind) = (&self.args.address, self.structure.kind().name());
        match self.args.output.json {
            true => say!(
                "{}",
                json!({
                    "time_ms": now_ms(), "op": "watching", "address": address, "kind": kind,
                    "ops": ops,
                })
            ),
            false => eprintln!("watching {address}, a {kind}: {}", ops.join(", ")),
        }
    }

    fn print(&self, heard: &Heard) {
        if self.args.output.json {
            say!("{}", notice_json(now_ms(), heard));
            return;
        }
        let line = notice_text(heard);
        say!("{} {line}", utc(now_ms()));
        if matches!(heard, Heard::Gap { .. }) && !std::io::stdout().is_terminal() {
            eprintln!("honeycomb: {}: {line}", self.args.address);
        }
    }

    /// The result when the time of --wait has elapsed.
    fn late(&self, notices: u64, patience: &Patience) -> CommandResult {
        let (address, within) = (&self.args.address, patience.shown());
        let text = match (&self.args.until, self.args.count) {
            (None, None) => return Ok(()),
            (None, Some(count)) => {
                format!("{address} had {notices} of {count} notifications{within}")
            }
            (Some(Goal::Sealed), _) => format!("{address} was not sealed{within}"),
            (Some(Goal::Closed), _) => format!("{address} was not closed{within}"),
            (Some(Goal::Size(size)), _) => {
                format!("{address} did not reach {size} bytes{within}")
            }
            (Some(Goal::Key(key)), _) => format!("{address} got no value for '{key}'{within}"),
        };
        Err(Failure::new(Status::DeadlineExceeded, text))
    }

    fn run(&self) -> CommandResult {
        let patience = Patience::new(self.args.wait);
        let goal = self.args.until.as_ref().map_or(&[][..], Goal::ops);
        let wanted = self.ops.iter().chain(goal).fold(0, |bits, op| bits | op.bit());
        let mut listener = self.structure.listen(wanted, self.filter.clone())?;
        // Read after the subscription: earlier changes are seen here, later ones are notified.
        let reached = self.reached()?;
        self.announce();
        if reached {
            return Ok(());
        }
        let mut notices = 0;
        loop {
            let Some(notification) = listener.next(patience.left())? else {
                if patience.over() {
                    return self.late(notices, &patience);
                }
                continue;
            };
            let heard = notification.heard;
            let op = WatchOp::heard(&heard);
            if op.is_none_or(|op| self.ops.contains(&op)) {
                self.print(&heard);
                notices += u64::from(op.is_some());
            }
            if self.reached_by(&heard)? || self.args.count.is_some_and(|count| notices >= count) {
                return Ok(());
            }
        }
    }
}

/// `honeycomb watch`.
pub fn watch(args: &WatchArgs) -> CommandResult {
    Watch::new(args)?.run()
}

fn notice_text(heard: &Heard) -> String {
    let op = WatchOp::heard(heard).map_or("GAP", WatchOp::name);
    let details = match heard {
        Heard::Append { offset, length } => format!("{length} bytes at {offset}"),
        Heard::Seal { size } => format!("at {size} bytes"),
        Heard::Data { items: 1 } | Heard::Space { items: 1 } => "1 item".into(),
        Heard::Data { items } | Heard::Space { items } => format!("{items} items"),
        Heard::Close => String::new(),
        Heard::Put { key } | Heard::Delete { key } => escaped(key),
        Heard::Gap { missed: Some(missed) } => {
            format!("{missed} notifications are missing: they were not read in time")
        }
        Heard::Gap { missed: None } => {
            "notifications may be missing: the connection was lost and restored".into()
        }
    };
    format!("{op:<6} {details}").trim_end().to_owned()
}

fn notice_json(time_ms: u64, heard: &Heard) -> Value {
    let op = WatchOp::heard(heard).map_or("gap", WatchOp::name);
    let mut object = json!({ "time_ms": time_ms, "op": op });
    match heard {
        Heard::Append { offset, length } => {
            object["offset"] = (*offset).into();
            object["bytes"] = (*length).into();
        }
        Heard::Seal { size } => object["bytes_total"] = (*size).into(),
        Heard::Data { items } | Heard::Space { items } => object["items"] = (*items).into(),
        Heard::Close => {}
        Heard::Put { key } | Heard::Delete { key } => put_bytes(&mut object, "key", key),
        Heard::Gap { missed } => object["missed"] = (*missed).into(),
    }
    object
}

fn now_ms() -> u64 {
    time_of_day().as_millis() as u64
}

/// A time of day for people: `2026-01-31T23:59:59.123Z`.
fn utc(ms: u64) -> String {
    let (days, rest) = (ms / 86_400_000, ms % 86_400_000);
    // Eras of 400 years have 146,097 days. Years run from March to February, so that the leap day is the
    // last.
    let (era, day) = ((days + 719_468) / 146_097, (days + 719_468) % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = 400 * era + year + u64::from(month <= 2);
    let (hour, minute) = (rest / 3_600_000, rest / 60_000 % 60);
    let (second, ms) = (rest / 1_000 % 60, rest % 1_000);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_735_689_599_001, "2024-12-31T23:59:59.001Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(ms), text);
        }
    }

    #[test]
    fn goals_are_read_as_they_are_written() {
        assert_eq!(goal("sealed"), Ok(Goal::Sealed));
        assert_eq!(goal("closed"), Ok(Goal::Closed));
        assert_eq!(goal("size=64KiB"), Ok(Goal::Size(65536)));
        assert_eq!(goal("key=a=b"), Ok(Goal::Key("a=b".into())));
        for wrong in ["", "full", "size", "size=", "size=many", "key="] {
            assert!(goal(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_notice_is_one_line_whatever_it_holds() {
        let key: Box<[u8]> = b"a\nb\xff".as_slice().into();
        let put = Heard::Put { key };
        assert_eq!(notice_text(&put), "put    a\\nb\\xff");
        let wanted = json!({ "time_ms": 5, "op": "put", "key_hex": "610a62ff" });
        assert_eq!(notice_json(5, &put), wanted);
        assert_eq!(notice_text(&Heard::Close), "close");
        assert_eq!(notice_text(&Heard::Append { offset: 3, length: 4 }), "append 4 bytes at 3");
        assert!(notice_text(&Heard::Gap { missed: Some(7) }).starts_with("GAP    7 notifications"));
        let gap = notice_json(5, &Heard::Gap { missed: None });
        assert_eq!(gap, json!({ "time_ms": 5, "op": "gap", "missed": null }));
    }
}
