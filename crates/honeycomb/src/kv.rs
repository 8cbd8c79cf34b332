//! `kv put`, `kv get`, `kv del`, `kv scan`, and their short forms `put` and `get`.

use crate::cluster::{Intent, Work};
use crate::config::{Given, InJob, unhex};
use crate::failure::{CommandResult, Failure};
use crate::output::{Output, escaped, hex, print_bytes, print_value, put_bytes};
use crate::{place, size};
use clap::{Args, Subcommand};
use honeycomb_client::Kv;
use honeycomb_wire::Status;
use serde_json::json;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes of entries that one request of `scan` reads.
const PAGE: u32 = 1 << 20;

/// Key-value stores: puts, gets, deletes and lists entries.
///
/// The address of a store is prefix[/prefix...][:name]. Keys have 1 to 4096 bytes. Values may have some
/// gigabytes, depending on the block size. Each of these commands renews all leases of its job.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb kv put notes:kv color blue
  honeycomb kv get notes:kv color
  honeycomb kv scan notes:kv
  honeycomb kv del notes:kv color")]
pub struct KvArgs {
    #[command(subcommand)]
    what: KvCommand,
}

#[derive(Subcommand)]
enum KvCommand {
    Put(Box<KvPutArgs>),
    Get(Box<KvGetArgs>),
    Del(Box<DelArgs>),
    Scan(Box<KvScanArgs>),
}

/// The examples of the short form of `kv put`.
pub const PUT_EXAMPLES: &str = "Examples:
  honeycomb put notes:kv color blue
  echo red | honeycomb put notes:kv color -
  honeycomb put notes:kv logo --file logo.png --json";

/// The examples of the short form of `kv get`.
pub const GET_EXAMPLES: &str = "Examples:
  honeycomb put notes:kv color blue
  honeycomb get notes:kv color
  honeycomb get notes:kv color --json";

/// Stores a value under a key.
///
/// The job, the prefixes and the store are created when they are missing. The leases of a job created by the
/// command line last one day from its last use. A value larger than an eighth of a block gets blocks of its
/// own. `honeycomb put` and `honeycomb kv put` are the same command.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb kv put notes:kv color blue
  date | honeycomb kv put notes:kv today -            # from standard input
  honeycomb kv put notes:kv logo --file logo.png
  honeycomb kv put notes:kv 00ff once --key-hex --if-absent")]
pub struct KvPutArgs {
    /// The store: prefix[/prefix...][:name]
    #[arg(value_parser = place::structure)]
    address: String,
    /// The key, 1 to 4096 bytes
    key: String,
    /// The value; `-`, or no argument, reads standard input to its end
    #[arg(conflicts_with = "file")]
    value: Option<String>,
    /// Read the value from this file
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Store the value only if the key has none; else the exit code is 8
    #[arg(long)]
    if_absent: bool,
    /// KEY is written in hexadecimal
    #[arg(long)]
    key_hex: bool,
    /// Initial number of blocks if the command creates the store
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    blocks: u32,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// Prints the value of a key.
///
/// The bytes are printed unchanged; on a terminal a line end follows, in a pipe or a file it does not. The
/// exit code is 3 if the key has no value. `honeycomb get` and `honeycomb kv get` are the same command.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb kv get notes:kv color
  honeycomb kv get notes:kv logo --raw > copy.png
  honeycomb kv get notes:kv logo --hex
  honeycomb kv get notes:kv color --json")]
pub struct KvGetArgs {
    /// The store: prefix[/prefix...][:name]
    #[arg(value_parser = place::structure)]
    address: String,
    /// The key
    key: String,
    /// KEY is written in hexadecimal
    #[arg(long)]
    key_hex: bool,
    /// Print the bytes and nothing else, also on a terminal
    #[arg(long, conflicts_with_all = ["hex", "json"])]
    raw: bool,
    /// Print the bytes in hexadecimal, in one line
    #[arg(long, conflicts_with = "json")]
    hex: bool,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// Deletes keys.
///
/// All keys are tried; the exit code is 3 if one of them had no value. `honeycomb rm ADDRESS KEY` does the
/// same.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb kv put notes:kv color blue
  honeycomb kv put notes:kv shape round
  honeycomb kv del notes:kv color shape")]
pub struct DelArgs {
    /// The store: prefix[/prefix...][:name]
    #[arg(value_parser = place::structure)]
    address: String,
    /// The keys
    #[arg(required = true)]
    key: Vec<String>,
    /// Each KEY is written in hexadecimal
    #[arg(long)]
    key_hex: bool,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// Lists entries: key, tab, value, one entry per line, in no particular order.
///
/// Unprintable bytes are written as \t, \n, \\ or \xNN, so that each line is one entry. An entry that
/// exists throughout is listed exactly once; an entry that is added or removed meanwhile may be missing.
/// With --json, each line is one object: `key` and `value` as text, or `key_hex` and `value_hex` if the bytes
/// are not UTF-8.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb kv put notes:kv user/1 ann
  honeycomb kv scan notes:kv
  honeycomb kv scan notes:kv --prefix user/ --keys-only
  honeycomb kv scan notes:kv --limit 10 --json")]
pub struct KvScanArgs {
    /// The store: prefix[/prefix...][:name]
    #[arg(value_parser = place::structure)]
    address: String,
    /// List only keys that begin with this text
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    prefix: String,
    /// TEXT of --prefix is written in hexadecimal
    #[arg(long, requires = "prefix")]
    key_hex: bool,
    /// Maximum number of entries to list (default: all)
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// List only the keys
    #[arg(long)]
    keys_only: bool,
    /// Print keys and values unchanged: ambiguous if they contain tabs or line ends
    #[arg(long, conflicts_with_all = ["hex", "json"])]
    raw: bool,
    /// Print keys and values in hexadecimal
    #[arg(long, conflicts_with = "json")]
    hex: bool,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb kv`.
pub fn kv(args: &KvArgs) -> CommandResult {
    match &args.what {
        KvCommand::Put(args) => put(args),
        KvCommand::Get(args) => get(args),
        KvCommand::Del(args) => {
            let settings = args.given.settings()?;
            let work = Work::open(&settings, Intent::Use)?;
            delete(&work, &args.address, &args.key, args.key_hex, args.output)
        }
        KvCommand::Scan(args) => scan(args),
    }
}

fn key_bytes(text: &str, is_hex: bool) -> CommandResult<Vec<u8>> {
    match is_hex {
        true => unhex(text).map_err(|why| Failure::invalid(format!("the key '{text}': {why}"))),
        false => Ok(text.as_bytes().to_vec()),
    }
}

fn absent(address: &str, key: &str) -> Failure {
    Failure::new(Status::KeyNotFound, format!("{address} has no key '{key}'"))
}

/// The value of `put`: an argument, a file, or standard input.
fn value(argument: Option<&str>, file: Option<&Path>) -> CommandResult<Vec<u8>> {
    match (argument, file) {
        (_, Some(path)) => std::fs::read(path).map_err(|e| Failure::io(path.display(), &e)),
        (None | Some("-"), None) => {
            let mut value = Vec::new();
            let read = std::io::stdin().read_to_end(&mut value);
            read.map_err(|e| Failure::io("standard input", &e))?;
            Ok(value)
        }
        (Some(text), None) => Ok(text.as_bytes().to_vec()),
    }
}

/// `honeycomb kv put`, `honeycomb put`.
pub fn put(args: &KvPutArgs) -> CommandResult {
    let settings = args.given.settings()?;
    let key = key_bytes(&args.key, args.key_hex)?;
    let value = value(args.value.as_deref(), args.file.as_deref())?;
    let work = Work::open(&settings, Intent::Create)?;
    work.ensure_prefix(&args.address)?;
    let kv = work.client.create_kv(work.job, &args.address, args.blocks, true)?;
    let replaced = match args.if_absent {
        true => kv.insert(&key, &value).map(|()| false)?,
        false => kv.put(&key, &value)?,
    };
    let shown = json!({ "address": args.address, "bytes": value.len(), "replaced": replaced });
    args.output.print(&shown, || {
        let verb = if replaced { "replaced" } else { "stored" };
        format!("{verb} {} in {}", size::show(value.len() as u64), args.address)
    });
    Ok(())
}

/// `honeycomb kv get`, `honeycomb get`.
pub fn get(args: &KvGetArgs) -> CommandResult {
    let settings = args.given.settings()?;
    let key = key_bytes(&args.key, args.key_hex)?;
    let work = Work::open(&settings, Intent::Use)?;
    let kv = work.client.open_kv(work.job, &args.address)?;
    let mut value = Vec::new();
    if !kv.get(&key, &mut value)? {
        return Err(absent(&args.address, &args.key));
    }
    if args.output.json {
        let mut shown = json!({ "address": args.address, "bytes": value.len() });
        put_bytes(&mut shown, "key", &key);
        put_bytes(&mut shown, "value", &value);
        say!("{shown}");
    } else if args.hex {
        say!("{}", hex(&value));
    } else if args.raw {
        print_bytes(&value);
    } else {
        print_value(&value)?;
    }
    Ok(())
}

/// Deletes keys, for `kv del` and `rm ADDRESS KEY`. All keys are tried; a missing key is reported after the
/// others are deleted.
pub fn delete(
    work: &Work,
    address: &str,
    keys: &[String],
    is_hex: bool,
    output: Output,
) -> CommandResult {
    let decoded: Vec<Vec<u8>> =
        keys.iter().map(|key| key_bytes(key, is_hex)).collect::<CommandResult<_>>()?;
    let kv: Kv = work.client.open_kv(work.job, address)?;
    let mut missing = None;
    let mut deleted: Vec<&str> = Vec::new();
    for (text, key) in keys.iter().zip(&decoded) {
        match kv.delete(key)? {
            true => deleted.push(text),
            false => missing = missing.or(Some(text)),
        }
    }
    if !deleted.is_empty() {
        let shown = json!({ "address": address, "deleted": deleted });
        output.print(&shown, || format!("deleted {} of {address}", deleted.join(", ")));
    }
    missing.map_or(Ok(()), |key| Err(absent(address, key)))
}

fn scan(args: &KvScanArgs) -> CommandResult {
    let settings = args.given.settings()?;
    let prefix = match args.prefix.is_empty() {
        true => Vec::new(),
        false => key_bytes(&args.prefix, args.key_hex)?,
    };
    let work = Work::open(&settings, Intent::Use)?;
    let kv = work.client.open_kv(work.job, &args.address)?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut cursor = Some(0);
    while let Some(at) = cursor.filter(|_| left > 0) {
        let page = kv.scan(at, &prefix, args.keys_only, PAGE)?;
        for (key, value) in page.entries.iter().take(left.min(usize::MAX as u64) as usize) {
            print_entry(args, key, value);
            left -= 1;
        }
        cursor = page.next;
    }
    Ok(())
}

fn print_entry(args: &KvScanArgs, key: &[u8], value: &[u8]) {
    if args.output.json {
        let mut object = json!({});
        put_bytes(&mut object, "key", key);
        if !args.keys_only {
            put_bytes(&mut object, "value", value);
        }
        say!("{object}");
    } else if args.raw {
        let line = match args.keys_only {
            true => [key, b"\n"].concat(),
            false => [key, b"\t", value, b"\n"].concat(),
        };
        print_bytes(&line);
    } else {
        let write = if args.hex { hex } else { escaped };
        match args.keys_only {
            true => say!("{}", write(key)),
            false => say!("{}\t{}", write(key), write(value)),
        }
    }
}
