//! `bench flush`: the rate of a flush to an object store, compared with the store alone.

use super::cluster::Cluster;
use super::disk::Folder;
use super::process::{Pinning, machine};
use super::spill::{show, spread};
use super::trace::bar;
use super::{Pool, Transport, Waiting};
use clap::Args;
use honeycomb::failure::{CommandResult, Failure};
use honeycomb::output::Output;
use honeycomb::{say, size};
use honeycomb_client::JobClient;
use honeycomb_env::Clock;
use honeycomb_tiers::{Access, Alone, Flushed, Place, RawWriter};
use honeycomb_transfer::{of_flush, raw};
use honeycomb_types::Time;
use honeycomb_types::limits::{FLUSH_COPIES_AT_ONCE, FLUSH_OBJECT_MAX};
use honeycomb_wire::messages::PrefixOptions;
use serde_json::{Value, json};
use std::sync::atomic::AtomicBool;

/// Required rate of flushes, as a fraction of the store's rate alone.
const ASKED: f64 = 0.8;

/// Measures a flush of a file to an object store, compared with the store alone.
///
/// It measures both formats: one plain object, and a prefix with its manifest. Before each flush, the same
/// library writes the same bytes to the store from memory, with the same number and size of concurrent
/// requests: parts of one upload for the plain object, objects of one block for the prefix. These writes have
/// no blocks, no checksums and no manifest.
///
/// --place is a directory or s3://BUCKET/PATH, gs://... or az://..., with credentials from the
/// environment. Without it, the flush goes to a temporary directory, which is not an object store; the output
/// says so. bench/flush runs this command with the S3 server of the tests.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bench flush --quick
  honeycomb bench flush --quick --place flush --json   # or s3://BUCKET/PATH")]
pub struct FlushArgs {
    /// The target of the flush
    #[arg(long, value_parser = |text: &str| Place::parse(text))]
    place: Option<Place>,
    /// Size of the file
    #[arg(long, value_parser = size::parse, default_value = "1GiB")]
    bytes: u64,
    /// Size of a block, at most the size of an object of a flush
    #[arg(long, value_parser = size::parse, default_value = "8MiB")]
    block_size: u64,
    /// Number of rounds; figures are median, minimum and maximum
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Run for only a few seconds: a check that it works, not a measurement
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
}

/// Prefix of the names of objects that are written to the store alone. A later run replaces objects that an
/// interrupted run left.
const NAMED: &str = "honeycomb-bench-";

/// Bytes per second of the store alone, and of a flush.
#[derive(Clone, Copy)]
struct Pair {
    alone: f64,
    flush: f64,
}

/// `honeycomb bench flush`.
pub fn run(args: &FlushArgs) -> CommandResult {
    if args.block_size > FLUSH_OBJECT_MAX {
        let most = size::show(FLUSH_OBJECT_MAX);
        let text = format!("--block-size must be at most {most}, because each block is one object");
        return Err(Failure::invalid(text));
    }
    let bytes = if args.quick { args.bytes.min(64 << 20) } else { args.bytes };
    let rounds = if args.quick { args.rounds.min(2) } else { args.rounds };
    let about = machine();
    let (_folder, place) = match &args.place {
        Some(place) => (None, place.clone()),
        None => {
            let folder = Folder::new(None)?;
            let place = Place::Directory(folder.path().to_owned());
            (Some(folder), place)
        }
    };
    let is_store = place.directory().is_none();
    if !is_store {
        eprintln!(
            "NO STORE: {place} is a directory, and every object in it is synchronised; this does \
             not measure an object store (use --place s3://BUCKET/PATH, or run bench/flush)"
        );
    }
    let access = Access::of_environment();
    let memory = bytes + bytes / 4 + 4 * args.block_size;
    let pool = Pool { memory, block_size: args.block_size };
    let more = ["--flush-root".to_owned(), place.to_string()];
    let pinning = Pinning::default();
    let cluster = Cluster::with(Transport::Tcp, 1, pool, Waiting::Sleeping, pinning, &more)?;
    let (client, job) = cluster.job("flush")?;
    let options = PrefixOptions { pinned: true, ..PrefixOptions::default() };
    client.create_prefix(job.job, "p", &[], options)?;
    let file = client.create_file(job.job, "p:f", 1, false)?;
    let piece: Vec<u8> = (0..args.block_size).map(|n| (n * 31 % 251) as u8).collect();
    let blocks = bytes.div_ceil(args.block_size) as usize;
    for _ in 0..blocks {
        file.write_all(&piece)?;
    }
    let bytes = blocks as u64 * args.block_size;
    let alone = Alone::open(&place, &access).map_err(of_flush)?;
    let names: Vec<String> = (0..blocks).map(|n| format!("{NAMED}{n}")).collect();
    let object_name = format!("{NAMED}plain");
    let object = place.join(&object_name);
    let rate = |work: &dyn Fn() -> CommandResult<()>| -> CommandResult<f64> {
        let clock = Clock::start();
        work()?;
        Ok(bytes as f64 / clock.now().since(Time::ZERO).as_secs_f64().max(1e-9))
    };
    let (mut plain, mut parts) = (Vec::new(), Vec::new());
    let progress = bar("flush", u64::from(rounds));
    let mut flushed = None;
    for _ in 0..rounds {
        let upload = || upload(&object, &access, bytes);
        let flush = || {
            let on = JobClient { client: &client, job: job.job };
            let stop = AtomicBool::new(false);
            let flushed = raw::flush(on, "p:f", &object, &access, &|_, _| {}, &stop)?;
            assert_eq!(flushed, bytes, "all of the file");
            Ok(())
        };
        plain.push(Pair { alone: rate(&upload)?, flush: rate(&flush)? });
        let puts = || Ok(alone.put(&names, &piece, FLUSH_COPIES_AT_ONCE).map_err(of_flush)?);
        let taken = rate(&puts)?;
        let clock = Clock::start();
        let (ticket, _) = client.flush_prefix(job.job, "p", "out", &mut |_| true)?;
        let seconds = clock.now().since(Time::ZERO).as_secs_f64().max(1e-9);
        flushed = Some(ticket.place);
        parts.push(Pair { alone: taken, flush: bytes as f64 / seconds });
        progress.inc(1);
    }
    progress.finish_and_clear();
    let flushed = Place::parse(&flushed.expect("there is a round"));
    let flushed = flushed.map_err(|e| Failure::invalid(e.to_string()))?;
    let flushed = Flushed::at(flushed, &access).map_err(of_flush)?;
    flushed.check().map_err(of_flush)?;
    flushed.delete(&access).map_err(of_flush)?;
    alone.delete(&names).map_err(of_flush)?;
    alone.delete(&[object_name]).map_err(of_flush)?;
    tell(
        args,
        (&about, &place.to_string(), is_store),
        bytes,
        &[("plain", plain), ("prefix", parts)],
    );
    Ok(())
}

/// One object from memory, in the parts of a plain flush.
fn upload(place: &Place, access: &Access, bytes: u64) -> CommandResult {
    let mut object = RawWriter::begin(place, access, bytes).map_err(of_flush)?;
    let mut done = 0;
    while done < bytes {
        let part = (bytes - done).min(object.part() as u64);
        object.append(vec![7; part as usize]).map_err(of_flush)?;
        done += part;
    }
    Ok(object.finish().map_err(of_flush)?)
}

fn tell(
    args: &FlushArgs,
    (about, place, is_store): (&str, &str, bool),
    bytes: u64,
    formats: &[(&str, Vec<Pair>)],
) {
    let told: Vec<_> = formats
        .iter()
        .map(|(format, rounds)| {
            let of = |of: &dyn Fn(&Pair) -> f64| spread(rounds.iter().map(of));
            let (alone, flush) = (of(&|pair| pair.alone / 1e6), of(&|pair| pair.flush / 1e6));
            (*format, alone, flush, of(&|pair| pair.flush / pair.alone))
        })
        .collect();
    if args.output.json {
        let rows: Vec<Value> = told
            .iter()
            .map(|(format, alone, flush, ratio)| {
                json!({"format": format, "unit": "MB/s", "alone": alone, "flush": flush,
                       "ratio": ratio, "asked": ASKED})
            })
            .collect();
        say!(
            "{}",
            json!({"bench": "flush", "machine": about, "place": place, "object_store": is_store,
                   "bytes": bytes, "block_bytes": args.block_size, "rounds": formats[0].1.len(),
                   "median_least_most": rows})
        );
        return;
    }
    say!("{about}; not pinned: the kernel places all sides");
    say!(
        "{} to {place} in blocks of {}; median (least to most) of {} rounds",
        size::show(bytes),
        size::show(args.block_size),
        formats[0].1.len()
    );
    for (format, alone, flush, ratio) in told {
        // A directory is no object store, so that the requirement does not apply.
        let said = match is_store {
            false => "no store",
            true if ratio[0] >= ASKED => "reached",
            true => "MISSED",
        };
        let (alone, flush, ratio) = (show(alone, 0), show(flush, 0), show(ratio, 2));
        say!(
            "{format}: the store alone {alone} MB/s, flush {flush} MB/s; ratio {ratio}, required \
             at least {ASKED}: {said}"
        );
    }
}
