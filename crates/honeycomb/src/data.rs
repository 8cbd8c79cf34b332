//! `put`, `get`, `append`, `cat`, `rm`: data by hand.

use crate::cluster::Where;
use crate::{Outcome, Output, size};
use clap::Args;
use honeycomb_client::{Client, Error};
use honeycomb_types::{Address, JobId, split_path};
use honeycomb_wire::Status;
use honeycomb_wire::messages::PrefixOptions;
use serde_json::json;
use std::io::{Read, Write};

/// Bytes that `cat` reads and `append` reads ahead at a time.
const PIECE: usize = 4 << 20;

/// Whose data is meant.
#[derive(Args, Clone)]
pub struct Whose {
    /// The job
    #[arg(long, default_value = "cli", env = "HONEYCOMB_JOB")]
    job: String,
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    output: Output,
}

/// Options of `put`.
#[derive(Args)]
#[command(
    after_help = "Example:\n  honeycomb put notes:kv color blue\n  honeycomb put notes:kv logo < logo.png"
)]
pub struct PutArgs {
    /// prefix[/prefix...][:name]; what is missing is created
    address: String,
    /// The key
    key: String,
    /// The value; standard input when it is left out
    value: Option<String>,
    #[command(flatten)]
    whose: Whose,
}

/// Options of `get`.
#[derive(Args)]
pub struct GetArgs {
    /// prefix[/prefix...][:name]
    address: String,
    /// The key
    key: String,
    #[command(flatten)]
    whose: Whose,
}

/// Options of `append`.
#[derive(Args)]
#[command(
    after_help = "Example:\n  honeycomb append logs:today app.log\n  tail -f app.log | honeycomb append logs:today"
)]
pub struct AppendArgs {
    /// prefix[/prefix...][:name]; what is missing is created
    address: String,
    /// The file to read; standard input when it is left out
    file: Option<std::path::PathBuf>,
    /// Make it immutable afterwards
    #[arg(long)]
    seal: bool,
    #[command(flatten)]
    whose: Whose,
}

/// Options of `cat`.
#[derive(Args)]
pub struct CatArgs {
    /// prefix[/prefix...][:name]
    address: String,
    /// Where to begin, in bytes
    #[arg(long, default_value_t = 0)]
    offset: u64,
    /// Most bytes to print
    #[arg(long)]
    length: Option<u64>,
    #[command(flatten)]
    whose: Whose,
}

/// Options of `rm`.
#[derive(Args)]
pub struct RmArgs {
    /// prefix[/prefix...][:name]
    address: String,
    /// A key of a key-value store, to remove only that
    key: Option<String>,
    /// Remove the prefix: all its structures and its name; prefixes below it stay
    #[arg(long, conflicts_with = "key")]
    prefix: bool,
    /// Remove the prefix and all that are below it
    #[arg(long, short, conflicts_with_all = ["key", "prefix"])]
    recursive: bool,
    #[command(flatten)]
    whose: Whose,
}

fn said(e: Error) -> String {
    e.to_string()
}

impl Whose {
    fn open(&self, create: bool) -> Result<(Client, JobId), String> {
        let (client, ticket) = self.place.job(&self.job, create)?;
        // The command line's work is a sign of life of everything that it keeps.
        client.renew(ticket.job, &[String::new()]).map_err(said)?;
        Ok((client, ticket.job))
    }

    fn tell(&self, value: serde_json::Value, text: impl FnOnce() -> String) {
        if self.output.json {
            say!("{value}");
        } else {
            say!("{}", text());
        }
    }
}

/// Creates the prefixes of a path that are missing.
fn ensure_prefix(client: &Client, job: JobId, path: &str) -> Outcome {
    let parts = split_path(path).map_err(|e| e.to_string())?;
    for depth in 1..=parts.len() {
        let made = client.create_prefix(
            job,
            &format!("/{}", parts[..depth].join("/")),
            &[],
            PrefixOptions::default(),
        );
        match made {
            Ok(_) | Err(Error { status: Status::AlreadyExists, .. }) => {}
            Err(e) => return Err(said(e)),
        }
    }
    Ok(())
}

/// `honeycomb put`.
pub fn put(args: &PutArgs) -> Outcome {
    let value = match &args.value {
        Some(value) => value.clone().into_bytes(),
        None => {
            let mut value = Vec::new();
            std::io::stdin().read_to_end(&mut value).map_err(|e| e.to_string())?;
            value
        }
    };
    let (client, job) = args.whose.open(true)?;
    let address = Address::parse(&args.address).map_err(|e| e.to_string())?;
    ensure_prefix(&client, job, address.path)?;
    let kv = client.create_kv(job, &args.address, 1, 0, true).map_err(said)?;
    let replaced = kv.put(args.key.as_bytes(), &value).map_err(said)?;
    args.whose.tell(json!({ "bytes": value.len(), "replaced": replaced }), || {
        let verb = if replaced { "replaced" } else { "stored" };
        format!("{verb} {} in {}", size::show(value.len() as u64), args.address)
    });
    Ok(())
}

/// `honeycomb get`.
pub fn get(args: &GetArgs) -> Outcome {
    let (client, job) = args.whose.open(false)?;
    let kv = client.open_kv(job, &args.address).map_err(said)?;
    let mut value = Vec::new();
    if !kv.get(args.key.as_bytes(), &mut value).map_err(said)? {
        return Err(format!("{} has no key '{}'", args.address, args.key));
    }
    if args.whose.output.json {
        let text = std::str::from_utf8(&value).ok();
        say!(
            "{}",
            json!({ "bytes": value.len(), "text": text, "hex": crate::cluster::hex(&value) })
        );
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    let written = out.write_all(&value).and_then(|()| {
        // A line for people; a pipe gets the bytes and nothing else.
        if std::io::IsTerminal::is_terminal(&out) {
            out.write_all(b"\n")?;
        }
        out.flush()
    });
    written.or_else(|e| crate::end_of_output(&e))
}

/// `honeycomb append`.
pub fn append(args: &AppendArgs) -> Outcome {
    let mut input: Box<dyn Read> = match &args.file {
        Some(path) => {
            Box::new(std::fs::File::open(path).map_err(|e| format!("{}: {e}", path.display()))?)
        }
        None => Box::new(std::io::stdin().lock()),
    };
    let (client, job) = args.whose.open(true)?;
    let address = Address::parse(&args.address).map_err(|e| e.to_string())?;
    ensure_prefix(&client, job, address.path)?;
    let file = client.create_file(job, &args.address, 1, true).map_err(said)?;
    let mut buffer = vec![0; PIECE.min(file.append_limit())];
    let (mut bytes, mut offset) = (0, None);
    loop {
        let n = input.read(&mut buffer).map_err(|e| e.to_string())?;
        if n == 0 {
            break;
        }
        let at = file.append(&buffer[..n]).map_err(said)?;
        offset.get_or_insert(at);
        bytes += n as u64;
    }
    if args.seal {
        file.seal().map_err(said)?;
    }
    let value = json!({ "bytes": bytes, "offset": offset, "sealed": args.seal });
    args.whose.tell(value, || {
        format!("appended {} at {}", size::show(bytes), offset.unwrap_or_default())
    });
    Ok(())
}

/// `honeycomb cat`.
pub fn cat(args: &CatArgs) -> Outcome {
    let (client, job) = args.whose.open(false)?;
    let file = client.open_file(job, &args.address).map_err(said)?;
    let end = args.length.map_or(u64::MAX, |n| args.offset.saturating_add(n));
    if args.whose.output.json {
        let (size, sealed) = (file.size().map_err(said)?, file.sealed().map_err(said)?);
        say!("{}", json!({ "size": size, "sealed": sealed }));
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    let mut buffer = vec![0; PIECE];
    let mut offset = args.offset;
    while offset < end {
        let want = buffer.len().min((end - offset) as usize);
        let n = file.read_into(offset, &mut buffer[..want]).map_err(said)?;
        if n == 0 {
            break;
        }
        match out.write_all(&buffer[..n]) {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            other => other.map_err(|e| e.to_string())?,
        }
        offset += n as u64;
    }
    Ok(())
}

/// `honeycomb rm`.
pub fn rm(args: &RmArgs) -> Outcome {
    let (client, job) = args.whose.open(false)?;
    let removed = match &args.key {
        Some(key) => {
            let kv = client.open_kv(job, &args.address).map_err(said)?;
            if !kv.delete(key.as_bytes()).map_err(said)? {
                return Err(format!("{} has no key '{key}'", args.address));
            }
            format!("key '{key}' of {}", args.address)
        }
        None if args.recursive => {
            let count = remove_below(&client, job, &args.address)?;
            format!("{} and {} below it", args.address, count - 1)
        }
        None if args.prefix => {
            client.remove_prefix(job, &args.address).map_err(said)?;
            format!("prefix {}", args.address)
        }
        None => {
            client.remove_structure(job, &args.address).map_err(said)?;
            args.address.clone()
        }
    };
    args.whose.tell(json!({ "removed": removed }), || format!("removed {removed}"));
    Ok(())
}

/// Removes a prefix and its descendants, the lowest first; returns how many there were.
fn remove_below(client: &Client, job: JobId, path: &str) -> Result<usize, String> {
    let top = client.lease(job, path).map_err(said)?.prefix;
    let tree = client.tree(job).map_err(said)?;
    // Parents come before children, so one pass finds a path for everything below.
    let mut paths = vec![(top, path.trim_start_matches('/').to_owned())];
    for node in tree.iter().filter(|n| n.prefix != top) {
        let above = paths.iter().find(|(id, _)| node.parents.contains(id));
        if let Some((_, above)) = above {
            paths.push((node.prefix, format!("{above}/{}", node.name)));
        }
    }
    for (_, path) in paths.iter().rev() {
        match client.remove_prefix(job, &format!("/{path}")) {
            Ok(()) => {}
            // Expired or removed meanwhile: gone is what was wanted.
            Err(e) if matches!(e.status, Status::Removed | Status::LeaseExpired) => {}
            Err(e) => return Err(said(e)),
        }
    }
    Ok(paths.len())
}
