//! `bench sort`: sorts more data than fits in memory, on servers with a disk.

use super::cluster::Cluster;
use super::disk::Folder;
use super::process::{Pinning, Watched, machine};
use super::trace::bar;
use super::{Pool, Transport, Waiting};
use clap::Args;
use honeycomb::failure::{CommandResult, Failure};
use honeycomb::output::Output;
use honeycomb::say;
use honeycomb::size;
use honeycomb_client::Client;
use honeycomb_env::Clock;
use honeycomb_types::limits::REPORT_INTERVAL;
use honeycomb_wire::Status;
use honeycomb_workload::{Sort, SortError, Sorted, sort};
use serde_json::json;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Bytes of a record.
const RECORD: u64 = honeycomb_workload::RECORD as u64;
/// The interval at which the server's memory is sampled.
const EVERY: Duration = Duration::from_millis(20);
/// Maximum bytes of a partition, which is sorted in the memory of this process.
const PARTITION: u64 = 64 << 20;

/// Sorts more data than fits in memory, and checks the result.
///
/// It distributes records of 128 bytes over partitions by their keys, reads each partition back, sorts it and
/// writes it again, on its own cluster with a disk as lower tier. Then it reads and checks all records: each
/// is unchanged, none is missing, and they are sorted. If the disk is too small, the sort fails half-way;
/// then it checks that all acknowledged records exist, and ends with the error.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bench sort --quick
  honeycomb bench sort --quick --shards 2 --json
  honeycomb bench sort --quick --disk-shape 500:0.1")]
pub struct SortArgs {
    /// Size of the data to sort
    #[arg(long, value_parser = size::parse, default_value = "4GiB")]
    bytes: u64,
    /// Memory for blocks
    #[arg(long, value_parser = size::parse, default_value = "1GiB")]
    memory: u64,
    /// Usable size of the disk (default: twice the data)
    #[arg(long, value_parser = size::parse)]
    disk: Option<u64>,
    /// Directory on the disk (default: the system's temporary directory)
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Rate and delay of the disk, as the setting `disk_shape` of a server
    #[arg(long, value_name = "MBPS:MS", value_parser = shape)]
    disk_shape: Option<String>,
    /// Size of a block
    #[arg(long, value_parser = size::parse, default_value = "1MiB")]
    block_size: u64,
    /// Number of partitions (default: one per 64 MiB of data)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    partitions: Option<u32>,
    /// Number of threads that write, sort and check
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Number of cores that serve requests
    #[arg(long, default_value_t = 1)]
    shards: u8,
    /// Timeout of a call to the cluster, in seconds
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3600))]
    timeout: u32,
    /// Seed of the keys
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run for only a few seconds: a check that it works, not a measurement
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
}

fn shape(text: &str) -> Result<String, String> {
    honeycomb::disk_shape(text).map(|_| text.to_owned())
}

/// `honeycomb bench sort`.
pub fn run(args: &SortArgs) -> CommandResult {
    let shrink = if args.quick { 64 } else { 1 };
    let bytes = (args.bytes / shrink).max(RECORD);
    let block = args.block_size.min(if args.quick { 128 << 10 } else { u64::MAX });
    let pool = Pool { memory: args.memory / shrink, block_size: block };
    let disk = args.disk.map_or(2 * bytes, |disk| disk / shrink);
    let partitions = args.partitions.unwrap_or_else(|| bytes.div_ceil(PARTITION).max(4) as u32);
    let (records, threads) = (bytes / RECORD, args.threads);
    let folder = Folder::new(args.directory.clone())?;
    let mut more = folder.flags(disk);
    if let Some(shape) = &args.disk_shape {
        more.extend(["--disk-shape".into(), shape.clone()]);
    }
    let about = machine();
    let pinning = Pinning::default();
    let cluster =
        Cluster::with(Transport::Tcp, args.shards, pool, Waiting::Sleeping, pinning, &more)?;
    let (_, job) = cluster.job("sort")?;
    let timeout = Duration::from_secs(args.timeout.into());
    let client = cluster.client_within(&job.token, timeout);
    let plan = Sort { records, partitions, threads, seed: args.seed };
    let (ended, resident) =
        watched(&cluster, records * RECORD, |done| sort(&client, &job, plan, done));
    let (written, read) = moved(&cluster.client(cluster.token()))?;
    let conditions = json!({
        "bench": "sort", "bytes": records * RECORD, "memory": pool.memory, "disk": disk,
        "disk_shape": args.disk_shape, "block_bytes": block, "partitions": partitions,
        "threads": threads, "shards": args.shards, "seed": args.seed, "machine": about,
        "disk_written_bytes": written, "disk_read_bytes": read, "resident_peak_bytes": resident,
    });
    let told = |more: serde_json::Value| {
        let mut line = conditions.clone();
        if let (Some(line), serde_json::Value::Object(more)) = (line.as_object_mut(), more) {
            line.extend(more);
        }
        say!("{line}");
    };
    match ended {
        Ok(Sorted { spread_s, sort_s, check_s }) if args.output.json => told(json!({
            "sorted": true, "spread_s": spread_s, "sort_s": sort_s, "check_s": check_s,
        })),
        Ok(Sorted { spread_s, sort_s, check_s }) => {
            let rate = |seconds: f64| size::show((bytes as f64 / seconds.max(1e-9)) as u64);
            say!("{about}; not pinned: the kernel places all sides");
            say!(
                "sorted and checked: {} in {} records, with {} of memory in blocks of {} and {} of \
                 disk",
                size::show(records * RECORD),
                records,
                size::show(pool.memory),
                size::show(block),
                size::show(disk)
            );
            say!("partitioned into {partitions} in {spread_s:.1} s, {}/s", rate(spread_s));
            say!("read, sorted and written in {sort_s:.1} s, {}/s", rate(sort_s));
            say!("read and checked in {check_s:.1} s, {}/s", rate(check_s));
            say!(
                "{} written to the disk and {} read from it; peak resident memory of the cluster's \
                 process {}",
                size::show(written),
                size::show(read),
                size::show(resident)
            );
        }
        Err(SortError::Stopped { error, records }) => {
            if args.output.json {
                told(json!({
                    "sorted": false, "status": error.status.name(), "records_found": records,
                }));
            }
            let why = SortError::Stopped { error: error.clone(), records };
            return Err(Failure::new(error.status, why.to_string()));
        }
        Err(wrong) => return Err(Failure::new(Status::Internal, wrong.to_string())),
    }
    Ok(())
}

/// Shows progress, and samples the memory of the cluster's process meanwhile.
fn watched<T>(cluster: &Cluster, bytes: u64, work: impl FnOnce(&AtomicU64) -> T) -> (T, u64) {
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let progress = bar("sort", 3 * bytes);
    thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let clock = Clock::start();
            let process = Watched::process(cluster.pid());
            let mut most = 0;
            while !over.load(Relaxed) {
                most = most.max(process.resident());
                progress.set_position(done.load(Relaxed));
                clock.sleep_until(clock.now() + EVERY);
            }
            most
        });
        let worked = work(&done);
        over.store(true, Relaxed);
        let most = looking.join().expect("looking does not panic");
        progress.finish_and_clear();
        (worked, most)
    })
}

/// Bytes written to the disk and read from it, after the server has reported all of them.
fn moved(admin: &Client) -> CommandResult<(u64, u64)> {
    let clock = Clock::start();
    clock.sleep_until(clock.now() + 2 * REPORT_INTERVAL);
    let status = admin.status()?;
    let sum = |of: fn(&honeycomb_wire::messages::TierUse) -> u64| status.tiers.iter().map(of).sum();
    Ok((sum(|tier| tier.bytes_written), sum(|tier| tier.bytes_read)))
}
