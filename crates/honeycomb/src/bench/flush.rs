//! `bench flush`: how fast a prefix goes to a store, beside what the store itself takes.

use super::cluster::Cluster;
use super::disk::Folder;
use super::process::{Pinning, machine};
use super::spill::{show, spread};
use super::trace::bar;
use super::{Pool, Transport, Waiting};
use crate::failure::{Failure, Outcome};
use crate::flushed::failure;
use crate::output::Output;
use crate::{raw, size};
use clap::Args;
use honeycomb_env::Clock;
use honeycomb_tiers::{Access, Alone, Flushed, Place, RawWriter};
use honeycomb_types::Time;
use honeycomb_types::limits::{FLUSH_COPIES_AT_ONCE, FLUSH_OBJECT_MAX};
use honeycomb_wire::messages::PrefixOptions;
use serde_json::{Value, json};

/// Of what the store takes alone, flushes should have so much.
const ASKED: f64 = 0.8;

/// Flushes a file to a store, beside the store alone.
///
/// In both formats: as one plain object, and as a prefix with its manifest. Before each of them the same
/// bytes are put there from memory by the same library, as many requests at a time and of the same size:
/// parts of one upload for the plain object, objects of a block for the prefix. No block is behind them,
/// no checksum is made and no manifest written.
///
/// --place is a directory or s3://BUCKET/PATH, gs://... or az://..., with credentials from the
/// environment. Without it a directory among the system's temporary files is written to, which is no
/// store, and that is said. bench/flush runs this with the S3 server of the tests.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bench flush --quick
  honeycomb bench flush --quick --place flush --json   # or s3://BUCKET/PATH")]
pub struct FlushArgs {
    /// Where it goes
    #[arg(long, value_parser = |text: &str| Place::parse(text))]
    place: Option<Place>,
    /// Bytes of the file
    #[arg(long, value_parser = size::parse, default_value = "1GiB")]
    bytes: u64,
    /// Bytes of a block, at most those of an object of a flush
    #[arg(long, value_parser = size::parse, default_value = "8MiB")]
    block_size: u64,
    /// Rounds; figures are their median, least and most
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// A few seconds in all: to see that it runs, not to quote
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
}

/// How names of objects begin that the store is given alone. One that an interrupted run left is replaced
/// by the next.
const NAMED: &str = "honeycomb-bench-";

/// Bytes per second of the store alone, and of a flush.
#[derive(Clone, Copy)]
struct Pair {
    alone: f64,
    flush: f64,
}

/// `honeycomb bench flush`.
pub fn run(args: &FlushArgs) -> Outcome {
    if args.block_size > FLUSH_OBJECT_MAX {
        let most = size::show(FLUSH_OBJECT_MAX);
        let text = format!("--block-size is at most {most}: a block is one object here");
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
            "NO STORE: {place} is a directory, and every object in it is synchronised; what an object \
             store gives is not measured (--place s3://BUCKET/PATH, or run bench/flush)"
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
    let alone = Alone::open(&place, &access).map_err(failure)?;
    let names: Vec<String> = (0..blocks).map(|n| format!("{NAMED}{n}")).collect();
    let object_name = format!("{NAMED}plain");
    let object = place.join(&object_name);
    let rate = |work: &dyn Fn() -> Outcome<()>| -> Outcome<f64> {
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
            let flushed = raw::flush(&client, job.job, "p:f", &object, &access, &|_, _| {})?;
            assert_eq!(flushed, bytes, "all of the file");
            Ok(())
        };
        plain.push(Pair { alone: rate(&upload)?, flush: rate(&flush)? });
        let puts = || alone.put(&names, &piece, FLUSH_COPIES_AT_ONCE).map_err(failure);
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
    let flushed = Flushed::at(flushed, &access).map_err(failure)?;
    flushed.check().map_err(failure)?;
    flushed.delete(&access).map_err(failure)?;
    alone.delete(&names).map_err(failure)?;
    alone.delete(&[object_name]).map_err(failure)?;
    tell(
        args,
        (&about, &place.to_string(), is_store),
        bytes,
        &[("plain", plain), ("prefix", parts)],
    );
    Ok(())
}

/// One object from memory, in the parts of a plain flush.
fn upload(place: &Place, access: &Access, bytes: u64) -> Outcome {
    let mut object = RawWriter::begin(place, access, bytes).map_err(failure)?;
    let mut done = 0;
    while done < bytes {
        let part = (bytes - done).min(object.part() as u64);
        object.append(vec![7; part as usize]).map_err(failure)?;
        done += part;
    }
    object.finish().map_err(failure)
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
        // A directory is no store: there is nothing to hold against what was asked for.
        let said = match is_store {
            false => "no store",
            true if ratio[0] >= ASKED => "reached",
            true => "MISSED",
        };
        let (alone, flush, ratio) = (show(alone, 0), show(flush, 0), show(ratio, 2));
        say!(
            "{format}: the store alone {alone} MB/s, flush {flush} MB/s; ratio {ratio}, asked for at \
             least {ASKED}: {said}"
        );
    }
}
