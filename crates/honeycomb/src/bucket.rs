//! `bucket`: objects by name on the command line, like those of Pocket (OSDI '18).
//!
//! `honeycomb_client::bucket` has their layout, which the Python package shares.

use crate::cluster::{Intent, Work};
use crate::config::{Given, InJob};
use crate::failure::{CommandResult, Failure};
use crate::output::{Output, print_bytes, print_value, put_bytes};
use crate::{place, size};
use clap::{Args, Subcommand, ValueEnum};
use honeycomb_client::bucket::{self, IfExists};
use honeycomb_client::{Error, FlushProgress, Kv};
use honeycomb_env::Entropy;
use honeycomb_tiers::{Access, Place};
use honeycomb_transfer::Load;
use honeycomb_types::limits::KEY_MAX;
use honeycomb_wire::Status;
use honeycomb_wire::messages::PrefixOptions;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of names that one request of `list` reads.
const PAGE: u32 = 1 << 20;
/// Transfers of at least this many bytes show progress.
const LONG: u64 = 8 << 20;

/// Objects in buckets: put, get, list, exists, delete.
///
/// A bucket is a prefix of the job that contains a key-value store named `objects`. The lease, rights and
/// quota of the prefix apply to it. Object names are text of 1 to 4096 bytes. Objects may have some
/// gigabytes, depending on the block size; each is stored whole or not at all. Python sees the same objects
/// (`Job.bucket`), and all commands for prefixes and key-value stores work on them.
///
/// `get --delete` reads and removes an object in one step; of several concurrent callers one gets it.
/// `create --persist` and `put --persist` make a bucket that outlives its job: it is flushed to the servers'
/// flush_root when it expires or its job ends, but not when it is removed by name. `bucket load` loads it.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bucket put shuffle part-0 hello   # creates a missing bucket
  honeycomb bucket get shuffle part-0
  honeycomb bucket list shuffle
  honeycomb bucket exists shuffle part-0
  honeycomb bucket get shuffle part-0 --delete
  honeycomb bucket delete shuffle --all")]
pub struct BucketArgs {
    #[command(subcommand)]
    what: BucketCommand,
}

#[derive(Subcommand)]
enum BucketCommand {
    Create(Box<CreateArgs>),
    Put(Box<BucketPutArgs>),
    Get(Box<BucketGetArgs>),
    List(Box<ListArgs>),
    Exists(Box<ExistsArgs>),
    Delete(Box<DeleteArgs>),
    Load(Box<BucketLoadArgs>),
}

/// The lifetime of a new bucket.
#[derive(Args)]
struct Lasts {
    /// Let the bucket outlive its job: it is flushed before it is freed, unless it is removed by name
    #[arg(long)]
    persist: bool,
    /// Lease duration in milliseconds (default: that of the job)
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    lease_ms: u32,
    /// The bucket never expires
    #[arg(long)]
    pinned: bool,
}

/// Creates a bucket.
///
/// Missing parent prefixes are created. --if-exists selects the behaviour when the bucket exists.
/// `bucket put` also creates a missing bucket.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bucket create shuffle
  honeycomb bucket create runs/1 --lease-ms 60000 --blocks 4
  honeycomb bucket create runs/1 --if-exists open
  honeycomb bucket create weights --persist  # needs servers with --flush-root")]
pub struct CreateArgs {
    /// The bucket: name[/name...]
    #[arg(value_parser = bucket_path)]
    bucket: String,
    #[command(flatten)]
    lasts: Lasts,
    /// Initial number of blocks; the bucket grows automatically
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    blocks: u32,
    /// Maximum number of blocks (default: no limit)
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    max_blocks: u64,
    /// If the bucket exists: fail, open it with its present options, or replace it by an empty one
    #[arg(long, value_enum, value_name = "WHAT", default_value = "fail")]
    if_exists: BucketIfExists,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// Stores an object, and replaces an object of the same name.
///
/// The job and the bucket are created when they are missing. With --persist, the created bucket outlives
/// its job; it is an error if the bucket exists and was created without --persist.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bucket put shuffle part-0 hello
  date | honeycomb bucket put shuffle today -          # from standard input
  honeycomb bucket put weights net --file net.bin --persist")]
pub struct BucketPutArgs {
    /// The bucket: name[/name...]
    #[arg(value_parser = bucket_path)]
    bucket: String,
    /// The object's name
    #[arg(value_parser = object_name)]
    object: String,
    /// The data; `-`, or no argument, reads standard input to its end
    #[arg(conflicts_with = "file")]
    data: Option<String>,
    /// Read the data from this file
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Let the bucket outlive its job
    #[arg(long)]
    persist: bool,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// Prints an object, or writes it into a file.
///
/// The bytes are printed unchanged; on a terminal a line end follows. With --file, the file is written whole
/// or not at all. The exit code is 3 if the object does not exist. With --delete, the object is removed in
/// the same step: of several concurrent callers exactly one gets it, even if its request is retried. If the
/// file cannot be written, the object is put back, unless another object has its name by then.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bucket get shuffle part-0
  honeycomb bucket get weights net --file net.bin
  honeycomb bucket get shuffle part-0 --delete --json")]
pub struct BucketGetArgs {
    /// The bucket: name[/name...]
    #[arg(value_parser = bucket_path)]
    bucket: String,
    /// The object's name
    #[arg(value_parser = object_name)]
    object: String,
    /// Remove the object in the same step
    #[arg(long)]
    delete: bool,
    /// Write the data to this file
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// Lists the objects of a bucket, or the buckets of the job.
///
/// One name per line: objects in no order, buckets sorted by name. An object that exists throughout is
/// listed exactly once; an object that is added or removed meanwhile may be missing. With --json, each line
/// is one JSON object.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bucket list
  honeycomb bucket list shuffle
  honeycomb bucket list shuffle --prefix part- --json")]
pub struct ListArgs {
    /// The bucket (default: list all buckets)
    #[arg(value_parser = bucket_path)]
    bucket: Option<String>,
    /// List only objects whose names begin with this text
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "TEXT",
        requires = "bucket"
    )]
    prefix: String,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// Checks whether an object exists, and prints its size.
///
/// The exit code is 3 if the object or the bucket does not exist.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bucket exists shuffle part-0
  honeycomb bucket exists shuffle part-0 --json")]
pub struct ExistsArgs {
    /// The bucket: name[/name...]
    #[arg(value_parser = bucket_path)]
    bucket: String,
    /// The object's name
    #[arg(value_parser = object_name)]
    object: String,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// Deletes objects, or a bucket with all of them.
///
/// All objects are tried; the exit code is 3 if one of them did not exist. With --all, the bucket's prefix is
/// removed with everything in it; its memory is freed at once, and nothing is flushed.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bucket delete shuffle part-0 part-1
  honeycomb bucket delete shuffle --all")]
pub struct DeleteArgs {
    /// The bucket: name[/name...]
    #[arg(value_parser = bucket_path)]
    bucket: String,
    /// The objects' names
    #[arg(value_parser = object_name, required_unless_present = "all")]
    objects: Vec<String>,
    /// Delete the bucket itself
    #[arg(long, conflicts_with = "objects")]
    all: bool,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// Loads a bucket that outlived its job.
///
/// The bucket was created with --persist, by this job or by an earlier job of the same name. It is loaded
/// with the objects that it had when it was flushed. If the flush is still running, the command waits for it.
/// Credentials come from the environment.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bucket load weights
  honeycomb bucket load weights --persist    # it outlives this job, too")]
pub struct BucketLoadArgs {
    /// The bucket: name[/name...]
    #[arg(value_parser = bucket_path)]
    bucket: String,
    #[command(flatten)]
    lasts: Lasts,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb bucket`.
pub fn bucket(args: &BucketArgs) -> CommandResult {
    match &args.what {
        BucketCommand::Create(args) => create(args),
        BucketCommand::Put(args) => put(args),
        BucketCommand::Get(args) => get(args),
        BucketCommand::List(args) => list(args),
        BucketCommand::Exists(args) => exists(args),
        BucketCommand::Delete(args) => delete(args),
        BucketCommand::Load(args) => load(args),
    }
}

/// The path of a bucket, as a clap parser.
fn bucket_path(text: &str) -> Result<String, String> {
    match place::prefix(text)? {
        path if path.is_empty() => Err("the job's root is not a bucket: name a prefix".into()),
        path => Ok(path),
    }
}

/// The name of an object, as a clap parser.
fn object_name(text: &str) -> Result<String, String> {
    match text.len() {
        1..=KEY_MAX => Ok(text.to_owned()),
        n => Err(format!("the name of an object must have 1 to {KEY_MAX} bytes, not {n}")),
    }
}

fn absent(bucket: &str, object: &str) -> Failure {
    Failure::new(Status::KeyNotFound, format!("the bucket {bucket} has no object '{object}'"))
}

/// Shows progress: a bar with this many steps, or without steps the elapsed time. Hidden when standard error
/// is not a terminal, and with --json.
fn progress(output: Output, what: String, steps: Option<u64>, shown: bool) -> ProgressBar {
    let seen = shown && !output.json && std::io::stderr().is_terminal();
    let target = if seen { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let template = match steps {
        Some(_) => "{prefix} {bar:32} {percent:>3} %  {elapsed}",
        None => "{spinner} {prefix} {msg} {elapsed}",
    };
    let bar = ProgressBar::with_draw_target(steps, target);
    bar.set_style(ProgressStyle::with_template(template).expect("a sound template"));
    bar.set_prefix(what);
    if seen {
        bar.enable_steady_tick(Duration::from_millis(100));
    }
    bar
}

/// The behaviour when the bucket exists, as `if_exists` of `Client.job` in Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BucketIfExists {
    /// The command fails (AlreadyExists)
    Fail,
    /// The bucket is opened; its options do not change
    Open,
    /// The bucket is removed with all its objects and prefixes, and created again
    Replace,
}

fn create(args: &CreateArgs) -> CommandResult {
    let work = Work::open(&args.given.settings()?, Intent::Create)?;
    let CreateArgs { bucket, lasts: Lasts { persist, lease_ms, pinned }, .. } = args;
    let options = PrefixOptions {
        lease_ms: *lease_ms,
        pinned: *pinned,
        max_blocks: args.max_blocks,
        persist: *persist,
        ..PrefixOptions::default()
    };
    if args.if_exists == BucketIfExists::Replace {
        bucket::remove_if_there(work.on(), bucket)?;
    }
    let if_exists = match args.if_exists {
        BucketIfExists::Open => IfExists::Open,
        // Another command may create the bucket after the removal: then this is an error.
        BucketIfExists::Fail | BucketIfExists::Replace => IfExists::Fail,
    };
    let made = bucket::create(work.on(), bucket, options, args.blocks, if_exists)?;
    args.output.print(&json!({ "bucket": bucket, "created": made, "persist": persist }), || {
        match made {
            true => format!("created the bucket {bucket}"),
            false => format!("the bucket {bucket} already exists"),
        }
    });
    Ok(())
}

fn put(args: &BucketPutArgs) -> CommandResult {
    let BucketPutArgs { bucket, object, persist, output, .. } = args;
    let settings = args.given.settings()?;
    let data = read(args)?;
    let work = Work::open(&settings, Intent::Create)?;
    let options = PrefixOptions { persist: *persist, ..PrefixOptions::default() };
    let if_exists = if *persist { IfExists::OpenPersistent } else { IfExists::Open };
    bucket::create(work.on(), bucket, options, 1, if_exists)?;
    let kv = bucket::open(work.on(), bucket)?;
    let bytes = data.len() as u64;
    let shown = progress(*output, format!("storing {}", size::show(bytes)), None, bytes >= LONG);
    let replaced = kv.put(object.as_bytes(), &data);
    shown.finish_and_clear();
    let replaced = replaced?;
    let shown = json!({
        "bucket": bucket, "object": object, "bytes": bytes, "replaced": replaced,
    });
    output.print(&shown, || {
        let verb = if replaced { "replaced" } else { "stored" };
        format!("{verb} {object} in {bucket}, {}", size::show(bytes))
    });
    Ok(())
}

/// Reads the data to store.
fn read(args: &BucketPutArgs) -> CommandResult<Vec<u8>> {
    let mut data = Vec::new();
    match (&args.data, &args.file) {
        (_, Some(path)) => {
            let failed = |e| Failure::io(path.display(), &e);
            let mut file = std::fs::File::open(path).map_err(failed)?;
            let length = file.metadata().map_err(failed)?.len();
            let what = format!("reading {}", path.display());
            let bar = progress(args.output, what, Some(length), length >= LONG);
            data.reserve(length as usize);
            let mut piece = (&mut file).take(LONG);
            while piece.read_to_end(&mut data).map_err(failed)? > 0 {
                bar.set_position(data.len() as u64);
                piece.set_limit(LONG);
            }
            bar.finish_and_clear();
        }
        (None, None) => read_input(&mut data)?,
        (Some(text), None) if text == "-" => read_input(&mut data)?,
        (Some(text), None) => data.extend_from_slice(text.as_bytes()),
    }
    Ok(data)
}

fn read_input(data: &mut Vec<u8>) -> CommandResult {
    let read = std::io::stdin().read_to_end(data);
    read.map(drop).map_err(|e| Failure::io("standard input", &e))
}

fn get(args: &BucketGetArgs) -> CommandResult {
    let BucketGetArgs { bucket, object, output, .. } = args;
    let work = Work::open(&args.given.settings()?, Intent::Use)?;
    let kv = bucket::open(work.on(), bucket)?;
    let key = object.as_bytes();
    // The size decides whether progress is shown, so it is needed only on a terminal.
    let looks = std::io::stderr().is_terminal() && !output.json;
    let long = looks && kv.exists(key)?.is_some_and(|bytes| bytes >= LONG);
    let shown = progress(*output, format!("reading {object}"), None, long);
    let data = match args.delete {
        true => kv.take(key),
        false => {
            let mut data = Vec::new();
            kv.get(key, &mut data).map(|there| there.then_some(data))
        }
    };
    shown.finish_and_clear();
    let data = data?.ok_or_else(|| absent(bucket, object))?;
    let mut shown = json!({
        "bucket": bucket, "object": object, "bytes": data.len(), "deleted": args.delete,
    });
    if let Some(path) = &args.file {
        if let Err(failure) = write(path, &data) {
            if args.delete {
                put_back(&kv, args, &data)?;
            }
            return Err(failure);
        }
        shown["file"] = path.display().to_string().into();
        let bytes = size::show(data.len() as u64);
        let did = if args.delete { "moved" } else { "wrote" };
        output.print(&shown, || format!("{did} {object}, {bytes}, to {}", path.display()));
    } else if output.json {
        put_bytes(&mut shown, "data", &data);
        say!("{shown}");
    } else if std::io::stdout().is_terminal() {
        print_value(&data)?;
    } else {
        print_bytes(&data);
    }
    Ok(())
}

/// Puts back an object that could not be written to the file, unless its name is used again.
fn put_back(kv: &Kv, args: &BucketGetArgs, data: &[u8]) -> CommandResult {
    match kv.insert(args.object.as_bytes(), data) {
        Ok(()) | Err(Error { status: Status::KeyExists, .. }) => Ok(()),
        Err(e) => {
            let text = format!(
                "the object '{}' is lost: it was removed, but could be written neither to the file \
                 nor back to the bucket: {e}",
                args.object
            );
            Err(Failure::new(Status::DataLost, text))
        }
    }
}

/// Writes a file whole or not at all.
fn write(path: &Path, data: &[u8]) -> CommandResult {
    let failed = |e| Failure::io(path.display(), &e);
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("object");
    let draft = path.with_file_name(format!(".{name}.{:016x}", Entropy::system().next_u64()));
    let written = std::fs::write(&draft, data).and_then(|()| std::fs::rename(&draft, path));
    written.map_err(|e| {
        // The draft may not exist.
        let _ = std::fs::remove_file(&draft);
        failed(e)
    })
}

fn list(args: &ListArgs) -> CommandResult {
    let work = Work::open(&args.given.settings()?, Intent::Use)?;
    let Some(bucket) = &args.bucket else {
        for name in bucket::list(work.on())? {
            args.output.print(&json!({ "bucket": name }), || name.clone());
        }
        return Ok(());
    };
    let kv = bucket::open(work.on(), bucket)?;
    // On a terminal, the printed names show the progress.
    let shown =
        progress(args.output, format!("listing {bucket}"), None, !std::io::stdout().is_terminal());
    let mut cursor = Some(0);
    let mut found = 0u64;
    while let Some(at) = cursor {
        let page = kv.scan(at, args.prefix.as_bytes(), true, PAGE)?;
        for (key, _) in &page.entries {
            let name = String::from_utf8_lossy(key);
            args.output.print(&json!({ "object": name }), || name.clone().into_owned());
        }
        found += page.entries.len() as u64;
        shown.set_message(format!("{found} objects"));
        cursor = page.next;
    }
    shown.finish_and_clear();
    Ok(())
}

fn exists(args: &ExistsArgs) -> CommandResult {
    let ExistsArgs { bucket, object, .. } = args;
    let work = Work::open(&args.given.settings()?, Intent::Use)?;
    let bytes = bucket::open(work.on(), bucket)?.exists(object.as_bytes())?;
    let bytes = bytes.ok_or_else(|| absent(bucket, object))?;
    let shown = json!({ "bucket": bucket, "object": object, "exists": true, "bytes": bytes });
    args.output.print(&shown, || format!("{object} in {bucket}, {}", size::show(bytes)));
    Ok(())
}

fn delete(args: &DeleteArgs) -> CommandResult {
    let DeleteArgs { bucket, objects, output, .. } = args;
    let work = Work::open(&args.given.settings()?, Intent::Use)?;
    // With --all, too: a prefix that is not a bucket is not removed.
    let kv = bucket::open(work.on(), bucket)?;
    if args.all {
        work.client.remove_prefix(work.job, bucket)?;
        output.print(&json!({ "bucket": bucket, "removed": true }), || {
            format!("removed the bucket {bucket}")
        });
        return Ok(());
    }
    let count = objects.len() as u64;
    let bar = progress(*output, format!("deleting from {bucket}"), Some(count), count >= 1000);
    let (mut deleted, mut missing) = (Vec::new(), None);
    for object in objects {
        match kv.delete(object.as_bytes())? {
            true => deleted.push(object.as_str()),
            false => missing = missing.or(Some(object)),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if !deleted.is_empty() {
        let shown = json!({ "bucket": bucket, "deleted": deleted });
        output.print(&shown, || format!("deleted {} from {bucket}", deleted.join(", ")));
    }
    missing.map_or(Ok(()), |object| Err(absent(bucket, object)))
}

fn load(args: &BucketLoadArgs) -> CommandResult {
    let BucketLoadArgs { bucket, lasts: Lasts { persist, lease_ms, pinned }, output, .. } = args;
    let work = Work::open(&args.given.settings()?, Intent::Create)?;
    let (client, job) = (&work.client, work.job);
    let mut look = |_: &FlushProgress| true;
    let waiting = progress(*output, format!("looking for {bucket}"), None, true);
    let place = client.persisted(job, bucket, &mut look);
    waiting.finish_and_clear();
    let place = Place::parse(&place?).map_err(|e| Failure::invalid(e.to_string()))?;
    if let Some((above, _)) = bucket.rsplit_once('/') {
        work.ensure_prefix(above)?;
    }
    let load = Load {
        path: bucket.clone(),
        lease_ms: *lease_ms,
        pinned: *pinned,
        persist: *persist,
        again: false,
    };
    let bar = progress(*output, format!("loading {bucket}"), Some(0), true);
    let look = |done: u64, all: u64| {
        bar.set_length(all);
        bar.set_position(done);
    };
    let loaded =
        honeycomb_transfer::load(work.on(), &place, &Access::of_environment(), &load, &look);
    bar.finish_and_clear();
    let loaded = loaded?;
    let objects = bucket::open(work.on(), bucket)?.length()?;
    let shown = json!({
        "bucket": bucket, "place": place.to_string(), "objects": objects, "bytes": loaded.bytes,
    });
    output.print(&shown, || {
        format!("loaded the bucket {bucket}: {objects} objects, {}", size::show(loaded.bytes))
    });
    Ok(())
}
