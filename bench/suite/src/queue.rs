//! `bench queue`: wake-up latency of waiting clients, and put and get of items, compared with a redis-server.

use super::cluster::Cluster;
use super::kv::{Peer, noise, peer_version};
use super::measure::{self, Figures, Limit, Pause, Series, Work};
use super::process::{Pinning, Watched, machine};
use super::redis::{Redis, RedisClient};
use super::report::{Progress, SERIES, Table, number, spread};
use super::{Common, Pool, Waiting};
use clap::Args;
use honeycomb::failure::CommandResult;
use honeycomb::say;
use honeycomb::size;
use honeycomb_client::{Client, Heard, JobTicket, Kv, Listener, Queue};
use honeycomb_wire::notice::{Filter, kinds};
use serde_json::{Value, json};
use std::time::Duration;

/// Maximum bytes in a measured queue.
const DATA: u64 = 64 << 20;
/// Items of a batch.
const BATCH: usize = 64;
/// Size of the item that wakes a consumer, in bytes.
const WAKING: usize = 64;
/// Maximum ratio of a wake-up's latency to that of redis-server.
const WITHIN: f64 = 1.3;
/// A wake-up that takes longer than this counts as lost.
const PATIENCE: Duration = Duration::from_secs(10);
/// Name of the list and the key in redis.
const NAME: &[u8] = b"bench";

/// Measures wake-ups of consumers and subscribers, and puts and gets, compared with a redis-server.
///
/// A consumer waits in get (redis: BLPOP), and another client puts an item (LPUSH). A subscriber waits for
/// the next notification (a keyspace notification), and another client puts a key (SET). The latency is from
/// just before the put is sent until the waiting client has the item or notification.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bench queue --quick --ops 200
  honeycomb bench queue --quick --sizes 64 --waiting sleeping
  honeycomb bench queue --quick --ops 200 --sizes 64 --peer none --json")]
pub struct QueueArgs {
    /// Sizes of items
    #[arg(long, value_delimiter = ',', value_parser = size::parse, default_value = "64,1KiB,64KiB")]
    sizes: Vec<u64>,
    /// The system to compare with
    #[arg(long, value_enum, default_value_t = Peer::Auto)]
    peer: Peer,
    #[command(flatten)]
    pool: Pool,
    #[command(flatten)]
    common: Common,
}

/// A measured operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    WakeConsumer,
    WakeSubscriber,
    Put,
    Get,
    PutBatch,
    GetBatch,
}

impl What {
    fn name(self) -> &'static str {
        match self {
            What::WakeConsumer => "wake a consumer",
            What::WakeSubscriber => "wake a subscriber",
            What::Put => "put",
            What::Get => "get",
            What::PutBatch => "put 64",
            What::GetBatch => "get 64",
        }
    }

    fn is_wake_up(self) -> bool {
        matches!(self, What::WakeConsumer | What::WakeSubscriber)
    }
}

struct Row {
    waiting: Waiting,
    size: u64,
    what: What,
    system: &'static str,
    series: Series,
}

/// The measured object, with both of its ends: the waiting client has its own connection.
enum Ends {
    Honeycomb(Box<Ours>),
    Redis(Box<Theirs>),
}

struct Ours {
    queue: Queue,
    consumer: Queue,
    kv: Kv,
    listener: Listener,
}

struct Theirs {
    client: RedisClient,
    consumer: RedisClient,
    subscriber: RedisClient,
}

/// A system under test.
struct System {
    name: &'static str,
    server: Watched,
    ends: Ends,
}

/// `honeycomb bench queue`.
pub fn run(args: &QueueArgs) -> CommandResult {
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
        let mut systems = vec![ours(&cluster)?];
        if let Some(redis) = &redis {
            systems.push(theirs(redis, waiting)?);
        }
        for what in [What::WakeConsumer, What::WakeSubscriber] {
            let case = Case { waiting, size: WAKING as u64 };
            measure_case(&common, case, &[what], &mut systems, &progress, &mut results)?;
        }
        for &size in &args.sizes {
            for what in [[What::Put, What::Get], [What::PutBatch, What::GetBatch]] {
                let case = Case { waiting, size };
                measure_case(&common, case, &what, &mut systems, &progress, &mut results)?;
            }
        }
    }
    drop(progress);
    if common.output.json {
        say!("{}", json_of(&common, &version, pinning, &about, &results));
    } else {
        print(&common, &version, pinning, &about, &results);
    }
    Ok(())
}

fn ours(cluster: &Cluster) -> Result<System, String> {
    let said = |e: honeycomb_client::Error| e.to_string();
    let (client, ticket) = cluster.job("queue")?;
    for path in ["/queue", "/kv"] {
        client.create_prefix(ticket.job, path, &[], Default::default()).map_err(said)?;
    }
    let queue = client.create_queue(ticket.job, "/queue", 0, 0, false).map_err(said)?;
    let kv = client.create_kv(ticket.job, "/kv", 1, false).map_err(said)?;
    // The waiting side is another client, which shares only the server.
    let other = |ticket: &JobTicket| -> Client { cluster.client(&ticket.token) };
    let consumer = other(&ticket).open_queue(ticket.job, "/queue").map_err(said)?;
    let watched = other(&ticket).open_kv(ticket.job, "/kv").map_err(said)?;
    let listener = watched.structure().listen(kinds::PUT, Filter::All).map_err(said)?;
    let ends = Ends::Honeycomb(Box::new(Ours { queue, consumer, kv, listener }));
    Ok(System { name: "honeycomb", server: Watched::process(cluster.pid()), ends })
}

fn theirs(redis: &Redis, waiting: Waiting) -> Result<System, String> {
    let open = || redis.client(waiting.spin()).map_err(|e| e.to_string());
    let (mut client, consumer, mut subscriber) = (open()?, open()?, open()?);
    client.tell_of_sets().map_err(|e| e.to_string())?;
    subscriber.subscribe_to_sets().map_err(|e| e.to_string())?;
    let ends = Ends::Redis(Box::new(Theirs { client, consumer, subscriber }));
    Ok(System { name: "redis", server: Watched::process(redis.pid()), ends })
}

#[derive(Clone, Copy)]
struct Case {
    waiting: Waiting,
    size: u64,
}

impl Case {
    /// A pause long enough that all threads sleep, or short enough that polling threads still poll.
    fn pause(self) -> Pause {
        match self.waiting {
            Waiting::Sleeping => Pause::Asleep(Duration::from_micros(200)),
            Waiting::Polling => Pause::Yielding(Duration::from_micros(20)),
        }
    }
}

/// Measures operations in turns; each get follows the put that filled the queue.
fn measure_case(
    common: &Common,
    case: Case,
    what: &[What],
    systems: &mut [System],
    progress: &Progress,
    results: &mut Vec<Row>,
) -> CommandResult {
    let item = noise(case.size as usize);
    let mut rounds: Vec<Vec<Vec<Figures>>> = vec![vec![Vec::new(); systems.len()]; what.len()];
    // The first round is not counted: it uses new blocks and buffers.
    for round in 0..=common.rounds {
        for (at, system) in systems.iter_mut().enumerate() {
            let mut there = 0;
            for (what, rounds) in what.iter().zip(&mut rounds) {
                progress.tell(&format!(
                    "{} {} {} {}, round {round} of {}",
                    system.name,
                    what.name(),
                    size::show(case.size),
                    case.waiting.name(),
                    common.rounds
                ));
                let figures = match what.is_wake_up() {
                    true => wake(common.limit(), case, *what, system, &item)?,
                    false => flow(common.limit(), *what, system, &item, &mut there)?,
                };
                if round > 0 {
                    rounds[at].push(figures);
                }
            }
        }
    }
    for (what, rounds) in what.iter().zip(rounds) {
        for (system, figures) in systems.iter().zip(rounds) {
            let Case { waiting, size } = case;
            let series = Series::of(figures);
            results.push(Row { waiting, size, what: *what, system: system.name, series });
        }
    }
    Ok(())
}

fn wake(
    limit: Limit,
    case: Case,
    what: What,
    system: &mut System,
    item: &[u8],
) -> Result<Figures, String> {
    let (wait, set_off): (Work<'_>, Work<'_>) = match (&mut system.ends, what) {
        (Ends::Honeycomb(ours), What::WakeConsumer) => {
            let Ours { queue, consumer, .. } = &mut **ours;
            (
                Box::new(|_| match consumer.get(PATIENCE).map_err(|e| e.to_string())? {
                    Some(got) => whole(&got, item),
                    None => Err("the consumer was not woken in time".into()),
                }),
                Box::new(|_| queue.put(item, Duration::ZERO).map_err(|e| e.to_string())),
            )
        }
        (Ends::Honeycomb(ours), _) => {
            let Ours { kv, listener, .. } = &mut **ours;
            (
                Box::new(|_| match listener.next(PATIENCE).map_err(|e| e.to_string())? {
                    Some(told) if matches!(told.heard, Heard::Put { .. }) => Ok(()),
                    other => Err(format!("the subscriber got {other:?}, not the put")),
                }),
                Box::new(|_| kv.put(NAME, item).map(drop).map_err(|e| e.to_string())),
            )
        }
        (Ends::Redis(theirs), What::WakeConsumer) => {
            let Theirs { client, consumer, .. } = &mut **theirs;
            let mut got = Vec::new();
            (
                Box::new(move |_| {
                    consumer.pop_when_there(NAME, &mut got).map_err(|e| e.to_string())?;
                    whole(&got, item)
                }),
                Box::new(|_| client.push(NAME, &[item]).map_err(|e| e.to_string())),
            )
        }
        (Ends::Redis(theirs), _) => {
            let Theirs { client, subscriber, .. } = &mut **theirs;
            let mut key = Vec::new();
            (
                Box::new(move |_| {
                    subscriber.next_message(&mut key).map_err(|e| e.to_string())?;
                    whole(&key, b"key")
                }),
                Box::new(|_| client.set(b"key", item).map_err(|e| e.to_string())),
            )
        }
    };
    measure::wake_ups(&system.server, limit, case.pause(), wait, set_off)
}

fn whole(got: &[u8], expected: &[u8]) -> Result<(), String> {
    match got == expected {
        true => Ok(()),
        false => Err(format!("a get answered {} bytes that were not put", got.len())),
    }
}

/// Puts until the limit, or gets all `there` items.
fn flow(
    limit: Limit,
    what: What,
    system: &mut System,
    item: &[u8],
    there: &mut u64,
) -> Result<Figures, String> {
    let items = match what {
        What::PutBatch | What::GetBatch => BATCH,
        _ => 1,
    };
    let bytes = (items * item.len()) as u64;
    let puts = matches!(what, What::Put | What::PutBatch);
    let limit = match puts {
        true => Limit { ops: limit.ops.min((DATA / bytes).max(1)), ..limit },
        // All items, so that the next round begins with an empty queue.
        false => Limit { ops: *there, time: PATIENCE },
    };
    let mut done = 0;
    let batch = vec![item; items];
    let work: Work<'_> = match &mut system.ends {
        Ends::Honeycomb(ours) if puts => {
            let queue = &ours.queue;
            Box::new(|_| {
                done += 1;
                queue.put_many(&batch, Duration::ZERO).map_err(|(_, e)| e.to_string())
            })
        }
        Ends::Honeycomb(ours) => {
            let queue = &ours.queue;
            Box::new(|_| {
                let mut left = items;
                while left > 0 {
                    let got = queue.get_many(left, Duration::ZERO).map_err(|e| e.to_string())?;
                    left -= got.len();
                    let last = got.last().ok_or("the queue has fewer items than were put")?;
                    whole(last, item)?;
                }
                Ok(())
            })
        }
        Ends::Redis(theirs) if puts => {
            let client = &mut theirs.client;
            Box::new(|_| {
                done += 1;
                client.push(NAME, &batch).map_err(|e| e.to_string())
            })
        }
        Ends::Redis(theirs) => {
            let client = &mut theirs.client;
            let (mut one, mut many) = (Vec::new(), Vec::new());
            Box::new(move |_| {
                if items == 1 {
                    client.pop(NAME, &mut one).map_err(|e| e.to_string())?;
                    return whole(&one, item);
                }
                many.clear();
                client.pop_many(NAME, items, &mut many).map_err(|e| e.to_string())?;
                whole(many.last().ok_or("the list has fewer items than were put")?, item)
            })
        }
    };
    let figures = measure::run(&system.server, limit, bytes, vec![work])?;
    *there = done;
    Ok(figures)
}

/// Pairs of the same case: ours and the peer's.
fn pairs(results: &[Row]) -> impl Iterator<Item = (&Row, &Row)> {
    results.chunks(2).filter_map(|pair| match pair {
        [ours, theirs] if ours.system != theirs.system => Some((ours, theirs)),
        _ => None,
    })
}

fn print(
    common: &Common,
    version: &Option<String>,
    pinning: Pinning,
    about: &str,
    results: &[Row],
) {
    say!("{about}; {}; over {}", pinning.show(), common.transport.name());
    say!("{} rounds of {} s in turns; medians of the rounds\n", common.rounds, common.seconds);
    let mut table = Table::new(&[&["waiting", "item", "what", "system"][..], &SERIES].concat());
    for r in results {
        table.series(&[r.waiting.name(), &size::show(r.size), r.what.name(), r.system], &r.series);
    }
    table.print();
    let Some(version) = version else { return };
    say!("\nhoneycomb / redis {version} (less than 1 is faster, cheaper)\n");
    let head = ["waiting", "item", "what", "p50", "p99", "server CPU", "client CPU", "1.3x"];
    let mut table = Table::new(&head);
    for (ours, theirs) in pairs(results) {
        let ratio = |f: fn(&Figures) -> f64| ours.series.ratio(&theirs.series, f);
        let within = ratio(|f| f.latency[0]).median <= WITHIN;
        table.row(vec![
            ours.waiting.name().into(),
            size::show(ours.size),
            ours.what.name().into(),
            spread(ratio(|f| f.latency[0])),
            spread(ratio(|f| f.latency[2])),
            spread(ratio(|f| f.server_us)),
            number(ratio(|f| f.client_us).median),
            if within { "within" } else { "MISSED" }.into(),
        ]);
    }
    table.print();
}

fn json_of(
    common: &Common,
    version: &Option<String>,
    pinning: Pinning,
    about: &str,
    results: &[Row],
) -> Value {
    let name = |r: &Row| json!({ "waiting": r.waiting.name(), "item_bytes": r.size, "what": r.what.name() });
    let series = results.iter().map(|r| {
        let mut value = name(r);
        (value["system"], value["figures"]) = (r.system.into(), r.series.json());
        value
    });
    let ratios = pairs(results).map(|(ours, theirs)| {
        let ratio = |f: fn(&Figures) -> f64| ours.series.ratio(&theirs.series, f).json();
        let mut value = name(ours);
        value["p50"] = ratio(|f| f.latency[0]);
        value["p99"] = ratio(|f| f.latency[2]);
        value["server_cpu"] = ratio(|f| f.server_us);
        value["client_cpu"] = ratio(|f| f.client_us);
        value
    });
    json!({
        "bench": "queue", "transport": common.transport.name(), "machine": about, "pinning": pinning.show(), "rounds": common.rounds,
        "seconds": common.seconds, "peer": version.as_ref().map(|v| format!("redis {v}")),
        "results": series.collect::<Vec<_>>(), "ratios": ratios.collect::<Vec<_>>(),
    })
}
