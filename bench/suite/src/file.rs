//! `bench file`: appends and reads, one at a time and as a stream.

use super::cluster::Cluster;
use super::kv::noise;
use super::measure::{self, Figures, Limit, Series, Work};
use super::process::{Pinning, Watched, machine};
use super::report::{Progress, SERIES, Table, spread};
use super::{Common, Pool, Waiting};
use clap::Args;
use honeycomb::failure::CommandResult;
use honeycomb::say;
use honeycomb::size;
use honeycomb_client::{Client, File};
use honeycomb_env::Entropy;
use honeycomb_types::JobId;
use serde_json::{Value, json};

/// Maximum bytes that one measurement appends. They must fit in the pool together with those of the previous
/// measurement, which are still being freed.
const APPENDED_MAX: u64 = 512 << 20;

/// Measures appends and reads of files, synchronous and streaming, on its own cluster.
///
/// A full run takes some minutes; --quick only shows that it works.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bench file --quick --ops 200 --stream 4MiB
  honeycomb bench file --quick --sizes 64 --threads 2 --stream 4MiB --json")]
pub struct FileArgs {
    /// Sizes of appends and reads
    #[arg(long, value_delimiter = ',', value_parser = size::parse, default_value = "64,1KiB,64KiB,1MiB")]
    sizes: Vec<u64>,
    /// Number of clients that append to the same file concurrently
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Size of the stream
    #[arg(long, value_parser = size::parse, default_value = "256MiB")]
    stream: u64,
    #[command(flatten)]
    pool: Pool,
    #[command(flatten)]
    common: Common,
}

/// The results of one kind of run.
struct Row {
    waiting: Waiting,
    op: &'static str,
    size: u64,
    series: Series,
}

struct Bench<'a> {
    args: &'a FileArgs,
    common: Common,
    waiting: Waiting,
    client: Client,
    job: JobId,
    server: Watched,
    progress: &'a Progress,
}

/// `honeycomb bench file`.
pub fn run(args: &FileArgs) -> CommandResult {
    let common = args.common.settled()?;
    let pinning = Pinning::choose(!common.no_pin);
    let about = machine();
    let progress = Progress::new();
    let mut rows = Vec::new();
    for &waiting in common.waitings() {
        let cluster = Cluster::start(&common, args.pool, waiting, pinning)?;
        let (client, ticket) = cluster.job("file")?;
        let made = client.create_prefix(ticket.job, "/bench", &[], Default::default());
        made.map_err(|e| e.to_string())?;
        let bench = Bench {
            args,
            common: common.clone(),
            waiting,
            client,
            job: ticket.job,
            server: Watched::process(cluster.pid()),
            progress: &progress,
        };
        for &size in &args.sizes {
            bench.synchronous(size, &mut rows)?;
        }
        bench.stream(&mut rows)?;
    }
    drop(progress);
    if common.output.json {
        say!("{}", json_of(args, &common, pinning, &about, &rows));
    } else {
        print(args, &common, pinning, &about, &rows);
    }
    Ok(())
}

impl Bench<'_> {
    fn tell(&self, op: &str, size: u64, round: u32) {
        let (size, waiting) = (size::show(size), self.waiting.name());
        let rounds = self.common.rounds;
        self.progress.tell(&format!("{op} {size} {waiting}, round {} of {rounds}", round + 1));
    }

    /// A new file, opened once for each thread. The blocks of the previous file are freed first.
    fn files(&self, threads: usize) -> Result<Vec<File>, String> {
        let said = |e: honeycomb_client::Error| e.to_string();
        let _ = self.client.remove_structure(self.job, "/bench:f");
        self.client.create_file(self.job, "/bench:f", 1, false).map_err(said)?;
        let open = || self.client.open_file(self.job, "/bench:f").map_err(said);
        (0..threads).map(|_| open()).collect()
    }

    fn synchronous(&self, size: u64, rows: &mut Vec<Row>) -> CommandResult {
        let bytes = noise(size as usize);
        let limit = self.common.limit();
        let most = (APPENDED_MAX.min(self.args.pool.memory / 4) / size.max(1)).max(1);
        let limit = Limit { ops: limit.ops.min(most), ..limit };
        let (mut appends, mut reads) = (Vec::new(), Vec::new());
        for round in 0..self.common.rounds {
            self.tell("append", size, round);
            let files = self.files(self.args.threads)?;
            let work = files.iter().map(|file| append(file, &bytes)).collect();
            appends.push(measure::run(&self.server, limit, size, work)?);
            self.tell("read", size, round);
            let length = files[0].size().map_err(|e| e.to_string())?;
            let work = files.iter().enumerate();
            let work = work.map(|(t, file)| read(file, t as u64, length, size)).collect();
            reads.push(measure::run(&self.server, self.common.limit(), size, work)?);
        }
        for (op, figures) in [("append", appends), ("read", reads)] {
            rows.push(Row { waiting: self.waiting, op, size, series: Series::of(figures) });
        }
        Ok(())
    }

    /// Whole files, in the largest pieces that fit in one request.
    fn stream(&self, rows: &mut Vec<Row>) -> CommandResult {
        let total = match self.common.quick {
            true => self.args.stream.min(16 << 20),
            false => self.args.stream,
        };
        let data = noise(total as usize);
        let mut back = vec![0; total as usize];
        let (mut writes, mut reads) = (Vec::new(), Vec::new());
        for round in 0..self.common.rounds {
            self.tell("stream write", total, round);
            let files = self.files(1)?;
            writes.push(self.once(total, &mut || files[0].write_all(&data).map(drop))?);
            self.tell("stream read", total, round);
            reads.push(self.once(total, &mut || files[0].read_into(0, &mut back).map(drop))?);
            if back != data {
                return Err("the file differs from the written data".into());
            }
        }
        for (op, figures) in [("stream write", writes), ("stream read", reads)] {
            rows.push(Row { waiting: self.waiting, op, size: total, series: Series::of(figures) });
        }
        Ok(())
    }

    fn once(
        &self,
        bytes: u64,
        work: &mut (dyn FnMut() -> Result<(), honeycomb_client::Error> + Send),
    ) -> Result<Figures, String> {
        let limit = Limit { time: self.common.limit().time, ops: 1 };
        let work: Work<'_> = Box::new(|_| work().map_err(|e| e.to_string()));
        measure::run(&self.server, limit, bytes, vec![work])
    }
}

fn append<'a>(file: &'a File, bytes: &'a [u8]) -> Work<'a> {
    Box::new(move |_| file.append(bytes).map(drop).map_err(|e| e.to_string()))
}

fn read<'a>(file: &'a File, seed: u64, length: u64, size: u64) -> Work<'a> {
    let mut entropy = Entropy::seeded(seed);
    let mut buffer = vec![0; size as usize];
    Box::new(move |_| {
        // The start of an append, where a reader of records starts, too.
        let offset = entropy.below(length / size.max(1)) * size;
        let got = file.read_into(offset, &mut buffer).map_err(|e| e.to_string())?;
        if got as u64 != size {
            return Err(format!("a read at {offset} of {length} answered {got} bytes"));
        }
        Ok(())
    })
}

fn print(args: &FileArgs, common: &Common, pinning: Pinning, about: &str, rows: &[Row]) {
    let over = common.transport.name();
    say!("{about}; {}; {} client thread(s); over {over}", pinning.show(), args.threads);
    say!("{} rounds of {} s; medians of the rounds\n", common.rounds, common.seconds);
    let mut table = Table::new(&[&["waiting", "size", "op"][..], &SERIES].concat());
    for r in rows.iter().filter(|r| !r.op.starts_with("stream")) {
        table.series(&[r.waiting.name(), &size::show(r.size), r.op], &r.series);
    }
    table.print();
    say!();
    let mut table =
        Table::new(&["waiting", "size", "op", "MB/s (min..max)", "server s/GB", "client s/GB"]);
    for r in rows.iter().filter(|r| r.op.starts_with("stream")) {
        let per_gb = 1e9 / r.size as f64 / 1e6;
        table.row(vec![
            r.waiting.name().into(),
            size::show(r.size),
            r.op.into(),
            spread(r.series.spread(|f| f.mb_s)),
            spread(r.series.spread(|f| f.server_us * per_gb)),
            spread(r.series.spread(|f| f.client_us * per_gb)),
        ]);
    }
    table.print();
}

fn json_of(args: &FileArgs, common: &Common, pinning: Pinning, about: &str, rows: &[Row]) -> Value {
    let results: Vec<Value> = rows
        .iter()
        .map(|r| {
            json!({
                "waiting": r.waiting.name(), "op": r.op, "bytes": r.size,
                "figures": r.series.json(),
            })
        })
        .collect();
    json!({
        "bench": "file", "transport": common.transport.name(), "machine": about, "pinning": pinning.show(), "rounds": common.rounds,
        "seconds": common.seconds, "threads": args.threads, "results": results,
    })
}
