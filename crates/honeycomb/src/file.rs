//! `append` and `cat`: files on the command line.

use crate::cluster::{Intent, Work};
use crate::config::{Given, InJob};
use crate::failure::{CommandResult, Failure};
use crate::output::{Output, print_bytes, put_bytes};
use crate::wait::Patience;
use crate::{place, size, wait};
use clap::Args;
use honeycomb_client::{File, Heard};
use honeycomb_wire::Status;
use honeycomb_wire::notice::{Filter, kinds};
use serde_json::json;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

/// Bytes of one read of `cat`, and of one read-ahead of `append`.
const PIECE: usize = 4 << 20;
/// Maximum bytes of a file in one JSON object, which is built in memory.
const JSON_MAX: u64 = 64 << 20;

/// Appends a local file or standard input to a file.
///
/// The job, the prefixes and the file are created when they are missing. Any number of writers may
/// append at the same time; the bytes of one request (at most an eighth of a block) stay contiguous.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb append logs:today app.log
  echo one line | honeycomb append logs:today
  honeycomb append logs:done app.log --seal --json")]
pub struct AppendArgs {
    /// The file: prefix[/prefix...][:name]
    #[arg(value_parser = place::structure)]
    address: String,
    /// The file to read; `-`, or no argument, reads standard input
    file: Option<PathBuf>,
    /// Seal the file afterwards: it becomes immutable permanently
    #[arg(long)]
    seal: bool,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// Prints a file, or a part of it, unchanged.
///
/// With --json, the output is one object: `offset`, `bytes` (of the part), `bytes_total` (of the file),
/// `sealed`, and the part itself as `content` if it is UTF-8, else as `content_hex`. A part of more
/// than 64 MiB is an error with --json.
///
/// With --follow, it prints the present content, then appended data as it arrives. It ends when the file is
/// sealed or --length bytes are printed, or with exit code 5 when --wait has elapsed. It renews the job while
/// it runs.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb append logs:today app.log
  honeycomb cat logs:today
  honeycomb cat logs:today --offset 4 --length 16
  honeycomb cat logs:today --length 64 --json
  honeycomb cat logs:today --follow --length 20
  honeycomb append logs:old app.log --seal
  honeycomb cat logs:old --follow --wait 60     # until it is sealed")]
pub struct CatArgs {
    /// The file: prefix[/prefix...][:name]
    #[arg(value_parser = place::structure)]
    address: String,
    /// First byte to print: a number of bytes, or a size such as 64KiB
    #[arg(long, default_value = "0", value_parser = size::parse, value_name = "BYTES")]
    offset: u64,
    /// Maximum number of bytes to print (default: to the end)
    #[arg(long, value_parser = size::parse, value_name = "BYTES")]
    length: Option<u64>,
    /// Continue with appended data until the file is sealed
    #[arg(long, short, conflicts_with = "json")]
    follow: bool,
    /// Stop following after this time (default: no limit)
    #[arg(long, value_name = "SECONDS", requires = "follow", value_parser = wait::seconds)]
    wait: Option<Duration>,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb append`.
pub fn append(args: &AppendArgs) -> CommandResult {
    let settings = args.given.settings()?;
    let mut input: Box<dyn Read> = match args.file.as_deref() {
        Some(path) if path.as_os_str() != "-" => {
            Box::new(std::fs::File::open(path).map_err(|e| Failure::io(path.display(), &e))?)
        }
        _ => Box::new(std::io::stdin().lock()),
    };
    let work = Work::open(&settings, Intent::Create)?;
    work.ensure_prefix(&args.address)?;
    let file = work.client.create_file(work.job, &args.address, 1, true)?;
    let mut buffer = vec![0; PIECE.min(file.append_limit())];
    let (mut bytes, mut offset) = (0, None);
    loop {
        let n = input.read(&mut buffer).map_err(|e| Failure::io("cannot read the input", &e))?;
        if n == 0 {
            break;
        }
        let at = file.append(&buffer[..n])?;
        offset.get_or_insert(at);
        bytes += n as u64;
    }
    if args.seal {
        file.seal()?;
    }
    let shown = json!({
        "address": args.address, "bytes": bytes, "offset": offset, "sealed": args.seal,
    });
    args.output.print(&shown, || match offset {
        Some(offset) => format!("appended {} at {offset}", size::show(bytes)),
        None => "the input was empty, nothing was appended".into(),
    });
    Ok(())
}

/// `honeycomb cat`.
pub fn cat(args: &CatArgs) -> CommandResult {
    let settings = args.given.settings()?;
    let work = Work::open(&settings, Intent::Use)?;
    let file = work.client.open_file(work.job, &args.address)?;
    let end = args.length.map_or(u64::MAX, |n| args.offset.saturating_add(n));
    if args.output.json {
        return cat_json(args, &file, end);
    }
    if args.follow {
        work.keep();
        return follow(args, &file, end);
    }
    read_pieces(&file, args.offset, end, print_bytes).map(drop)
}

/// Prints present and appended data, up to an end or until the file is sealed.
fn follow(args: &CatArgs, file: &File, end: u64) -> CommandResult {
    let patience = Patience::new(args.wait);
    let mut listener = file.structure().listen(kinds::APPEND | kinds::SEAL, Filter::All)?;
    // Read after the subscription: an earlier seal is seen here, a later one is notified.
    let mut sealed = file.sealed()?;
    let (mut at, mut more) = (args.offset, true);
    loop {
        if more {
            // All data appended before the seal is readable now.
            at = read_pieces(file, at, end, print_bytes)?;
            if sealed || at >= end {
                return Ok(());
            }
        }
        more = true;
        match listener.next(patience.left())?.map(|notification| notification.heard) {
            None if patience.over() => {
                let text = format!("{} was not sealed{}", args.address, patience.shown());
                return Err(Failure::new(Status::DeadlineExceeded, text));
            }
            // No new data, or data that was already read.
            None => more = false,
            Some(Heard::Append { offset, length }) => more = offset + length > at,
            Some(Heard::Gap { .. }) => sealed = file.sealed()?,
            Some(_) => sealed = true,
        }
    }
}

/// Reads from an offset to an end, or to the end of the file; returns the offset where it stopped.
fn read_pieces(
    file: &File,
    mut offset: u64,
    end: u64,
    mut each: impl FnMut(&[u8]),
) -> CommandResult<u64> {
    let mut buffer = vec![0; PIECE];
    while offset < end {
        let want = (buffer.len() as u64).min(end - offset) as usize;
        let n = file.read_into(offset, &mut buffer[..want])?;
        if n == 0 {
            break;
        }
        each(&buffer[..n]);
        offset += n as u64;
    }
    Ok(offset)
}

fn cat_json(args: &CatArgs, file: &File, end: u64) -> CommandResult {
    // `sealed` is read first: a file that is sealed then has its final size in the second answer.
    let sealed = file.sealed()?;
    let total = file.size()?;
    let end = end.min(total);
    let bytes = end.saturating_sub(args.offset);
    if bytes > JSON_MAX {
        let text = format!(
            "cannot print {} of {} as one JSON object (at most {}): use --length, or omit --json",
            size::show(bytes),
            args.address,
            size::show(JSON_MAX)
        );
        return Err(Failure::new(Status::LimitExceeded, text));
    }
    let mut content = Vec::with_capacity(bytes as usize);
    read_pieces(file, args.offset, end, |piece| content.extend_from_slice(piece))?;
    let mut shown = json!({
        "address": args.address, "offset": args.offset, "bytes": content.len(),
        "bytes_total": total, "sealed": sealed,
    });
    put_bytes(&mut shown, "content", &content);
    say!("{shown}");
    Ok(())
}
