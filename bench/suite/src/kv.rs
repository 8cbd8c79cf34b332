//! `bench kv`: synchronous get and put, compared with a redis-server.

use super::cluster::Cluster;
use super::measure::{self, Limit, Series, Work};
use super::process::{Pinning, Watched, machine};
use super::redis::{self, Redis, RedisClient};
use super::report::{Progress, SERIES, Table, number, spread};
use super::{Common, Pool, Waiting};
use clap::{Args, ValueEnum};
use honeycomb::failure::CommandResult;
use honeycomb::say;
use honeycomb::size;
use honeycomb_client::Kv;
use honeycomb_env::Entropy;
use serde_json::{Value, json};

/// Bytes of values in a measured store, unless `KEYS_MAX` keys have less.
const DATA: u64 = 64 << 20;
/// Maximum number of keys of a store.
const KEYS_MAX: u64 = 10_000;
/// Uncounted operations before the first round.
const WARM_UP: u64 = 200;

/// Maximum ratio of a synchronous operation's latency to that of redis-server.
const WITHIN: f64 = 1.3;

/// Measures synchronous get and put, compared with a redis-server if there is one.
///
/// It runs on its own clusters; the compared systems alternate round by round. A full run takes some minutes;
/// --quick only shows that it works.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bench kv --quick --ops 200
  honeycomb bench kv --quick --sizes 64,64KiB --threads 2 --waiting polling
  honeycomb bench kv --quick --ops 200 --sizes 64 --peer none --json")]
pub struct KvArgs {
    /// Sizes of values
    #[arg(long, value_delimiter = ',', value_parser = size::parse, default_value = "64,1KiB,1MiB")]
    sizes: Vec<u64>,
    /// Number of concurrent clients, each with its own connection
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// The system to compare with
    #[arg(long, value_enum, default_value_t = Peer::Auto)]
    peer: Peer,
    #[command(flatten)]
    pool: Pool,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// redis-server if it is on the path
    Auto,
    /// redis-server; an error if it is not on the path
    Redis,
    /// Nothing
    None,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Put,
    Get,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Op::Put => "put",
            Op::Get => "get",
        }
    }
}

/// One connection's view of a store.
enum Session {
    Honeycomb(Box<Kv>),
    Redis(Box<RedisClient>),
}

impl Session {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        match self {
            Session::Honeycomb(kv) => kv.put(key, value).map(drop).map_err(|e| e.to_string()),
            Session::Redis(redis) => redis.set(key, value).map_err(|e| e.to_string()),
        }
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Session::Honeycomb(kv) => kv.get(key, value).map(drop).map_err(|e| e.to_string()),
            Session::Redis(redis) => redis.get(key, value).map(drop).map_err(|e| e.to_string()),
        }
    }
}

/// A key-value store under test, with a session for each thread.
struct Store {
    system: &'static str,
    server: Watched,
    sessions: Vec<Session>,
}

/// A measured case: how both sides wait, and the size of values.
#[derive(Clone, Copy)]
struct Case {
    waiting: Waiting,
    size: u64,
}

struct Row {
    case: Case,
    op: Op,
    system: &'static str,
    series: Series,
}

/// `honeycomb bench kv`.
pub fn run(args: &KvArgs) -> CommandResult {
    let common = args.common.settled()?;
    let version = peer_version(args.peer)?;
    let pinning = Pinning::choose(!common.no_pin);
    let about = machine();
    let progress = Progress::new();
    let mut results = Vec::new();
    for &waiting in common.waitings() {
        let cluster = Cluster::start(&common, args.pool, waiting, pinning)?;
        let redis =
            version.as_ref().map(|_| Redis::start(pinning, common.transport)).transpose()?;
        for &size in &args.sizes {
            let case = Case { waiting, size };
            let mut stores = vec![honeycomb(&cluster, args.threads, case)?];
            if let Some(redis) = &redis {
                stores.push(peer(redis, args.threads, case)?);
            }
            measure_case(&common, case, &mut stores, &progress, &mut results)?;
        }
    }
    drop(progress);
    if common.output.json {
        say!("{}", json_of(args, &common, &version, pinning, &about, &results));
    } else {
        print(args, &common, &version, pinning, &about, &results);
    }
    Ok(())
}

/// The version of the peer to compare with, if there is one.
pub fn peer_version(peer: Peer) -> Result<Option<String>, String> {
    let version = if peer == Peer::None { None } else { redis::version() };
    match (peer, &version) {
        (Peer::Redis, None) => Err("cannot compare: there is no redis-server on the path".into()),
        (Peer::Auto, None) => {
            eprintln!(
                "honeycomb: NO PEER: there is no redis-server on the path to compare with; figures \
                 without a comparison say little"
            );
            Ok(None)
        }
        _ => Ok(version),
    }
}

fn honeycomb(cluster: &Cluster, threads: usize, case: Case) -> Result<Store, String> {
    let said = |e: honeycomb_client::Error| e.to_string();
    let (client, ticket) = cluster.job(&format!("kv-{}", case.size))?;
    client.create_prefix(ticket.job, "/bench", &[], Default::default()).map_err(said)?;
    client.create_kv(ticket.job, "/bench", 2, true).map_err(said)?;
    let session = |kv| Session::Honeycomb(Box::new(kv));
    let open = || client.open_kv(ticket.job, "/bench").map(session).map_err(said);
    let sessions = (0..threads).map(|_| open()).collect::<Result<_, _>>()?;
    Ok(Store { system: "honeycomb", server: Watched::process(cluster.pid()), sessions })
}

fn peer(redis: &Redis, threads: usize, case: Case) -> Result<Store, String> {
    let open = || redis.client(case.waiting.spin()).map(|c| Session::Redis(Box::new(c)));
    let sessions = (0..threads).map(|_| open()).collect::<Result<_, _>>();
    let sessions = sessions.map_err(|e| e.to_string())?;
    Ok(Store { system: "redis", server: Watched::process(redis.pid()), sessions })
}

fn measure_case(
    common: &Common,
    case: Case,
    stores: &mut [Store],
    progress: &Progress,
    results: &mut Vec<Row>,
) -> CommandResult {
    let count = (DATA / case.size.max(1)).clamp(16, KEYS_MAX);
    // Each size has its own keys, so that values of different sizes do not mix in a shared store.
    let keys: Vec<Vec<u8>> =
        (0..count).map(|i| format!("{}:{i:08}", case.size).into_bytes()).collect();
    let value = noise(case.size as usize);
    for store in &mut *stores {
        for key in &keys {
            store.sessions[0].put(key, &value)?;
        }
        let warm = Limit { time: common.limit().time, ops: WARM_UP };
        measure(store, warm, Op::Get, &keys, &value)?;
    }
    for op in [Op::Put, Op::Get] {
        let mut rounds = vec![Vec::new(); stores.len()];
        for round in 0..common.rounds {
            for (store, figures) in stores.iter_mut().zip(&mut rounds) {
                progress.tell(&format!(
                    "{} {} {} {}, round {} of {}",
                    store.system,
                    op.name(),
                    size::show(case.size),
                    case.waiting.name(),
                    round + 1,
                    common.rounds
                ));
                figures.push(measure(store, common.limit(), op, &keys, &value)?);
            }
        }
        for (store, figures) in stores.iter().zip(rounds) {
            let series = Series::of(figures);
            results.push(Row { case, op, system: store.system, series });
        }
    }
    Ok(())
}

/// Incompressible bytes.
pub fn noise(length: usize) -> Vec<u8> {
    let mut entropy = Entropy::seeded(7);
    let mut bytes: Vec<u8> =
        (0..length.div_ceil(8)).flat_map(|_| entropy.next_u64().to_le_bytes()).collect();
    bytes.truncate(length);
    bytes
}

fn measure(
    store: &mut Store,
    limit: Limit,
    op: Op,
    keys: &[Vec<u8>],
    value: &[u8],
) -> Result<measure::Figures, String> {
    let threads = store.sessions.iter_mut().enumerate().map(|(thread, session)| -> Work<'_> {
        let mut entropy = Entropy::seeded(thread as u64);
        let mut out = Vec::with_capacity(value.len() + 2);
        Box::new(move |_| {
            let key = &keys[entropy.below(keys.len() as u64) as usize];
            if op == Op::Put {
                return session.put(key, value);
            }
            session.get(key, &mut out)?;
            if out.len() != value.len() {
                return Err(format!("a get answered {} bytes, not the stored value", out.len()));
            }
            Ok(())
        })
    });
    measure::run(&store.server, limit, value.len() as u64, threads.collect())
}

/// Pairs of the same case and operation: ours and the peer's.
fn pairs(results: &[Row]) -> impl Iterator<Item = (&Row, &Row)> {
    results.chunks(2).filter_map(|pair| match pair {
        [ours, theirs] if ours.system != theirs.system => Some((ours, theirs)),
        _ => None,
    })
}

fn print(
    args: &KvArgs,
    common: &Common,
    version: &Option<String>,
    pinning: Pinning,
    about: &str,
    results: &[Row],
) {
    let over = common.transport.name();
    say!("{about}; {}; {} client thread(s); over {over}", pinning.show(), args.threads);
    say!("{} rounds of {} s in turns; medians of the rounds\n", common.rounds, common.seconds);
    let mut table = Table::new(&[&["waiting", "value", "op", "system"][..], &SERIES].concat());
    for r in results {
        let (waiting, value) = (r.case.waiting.name(), size::show(r.case.size));
        table.series(&[waiting, &value, r.op.name(), r.system], &r.series);
    }
    table.print();
    let Some(version) = version else { return };
    say!("\nhoneycomb / redis {version} (less than 1 is faster, cheaper)\n");
    let mut table =
        Table::new(&["waiting", "value", "op", "p50", "p99", "server CPU", "client CPU", "1.3x"]);
    for (ours, theirs) in pairs(results) {
        let ratio = |f: fn(&measure::Figures) -> f64| ours.series.ratio(&theirs.series, f);
        table.row(vec![
            ours.case.waiting.name().into(),
            size::show(ours.case.size),
            ours.op.name().into(),
            spread(ratio(|f| f.latency[0])),
            number(ratio(|f| f.latency[2]).median),
            spread(ratio(|f| f.server_us)),
            number(ratio(|f| f.client_us).median),
            if ratio(|f| f.latency[0]).median <= WITHIN { "within" } else { "MISSED" }.into(),
        ]);
    }
    table.print();
}

fn json_of(
    args: &KvArgs,
    common: &Common,
    version: &Option<String>,
    pinning: Pinning,
    about: &str,
    results: &[Row],
) -> Value {
    let series: Vec<Value> = results
        .iter()
        .map(|r| {
            json!({
                "waiting": r.case.waiting.name(), "value_bytes": r.case.size,
                "op": r.op.name(), "system": r.system, "figures": r.series.json(),
            })
        })
        .collect();
    let ratios: Vec<Value> = pairs(results)
        .map(|(ours, theirs)| {
            let ratio = |f: fn(&measure::Figures) -> f64| ours.series.ratio(&theirs.series, f);
            json!({
                "waiting": ours.case.waiting.name(), "value_bytes": ours.case.size,
                "op": ours.op.name(), "p50": ratio(|f| f.latency[0]).json(),
                "p99": ratio(|f| f.latency[2]).json(),
                "server_cpu": ratio(|f| f.server_us).json(),
                "client_cpu": ratio(|f| f.client_us).json(),
            })
        })
        .collect();
    json!({
        "bench": "kv", "transport": common.transport.name(), "machine": about, "pinning": pinning.show(), "rounds": common.rounds,
        "seconds": common.seconds, "threads": args.threads,
        "peer": version.as_ref().map(|v| format!("redis {v}")),
        "results": series, "ratios": ratios,
    })
}
