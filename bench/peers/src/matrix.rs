//! The matrix: groups of cells that alternate, and bars (requirements) over them.

use crate::contract::{Op, System};
use Bound::{AtLeast, AtMost};
use honeycomb::size;
use honeycomb_bench::measure::Figures;

/// The transport of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP over the loopback.
    Tcp,
    /// A Unix socket.
    Unix,
    /// Memory of the server, mapped by a client on the same host.
    Map,
}

impl Transport {
    /// As in the JSON lines.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Unix => "unix",
            Transport::Map => "map",
        }
    }
}

/// The client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum With {
    /// Honeycomb's client, or a minimal one of a peer, one request at a time.
    Rust,
    /// The load generator.
    Flood,
    /// hiredis.
    Hiredis,
    /// Honeycomb's package for Python.
    Python,
    /// redis-py with hiredis.
    RedisPy,
    /// pymemcache.
    Pymemcache,
    /// The client of the limit.
    C,
}

impl With {
    /// The name in the JSON lines: the load generator is in Rust.
    pub fn name(self) -> &'static str {
        match self {
            With::Rust | With::Flood => "rust",
            With::Hiredis => "hiredis",
            With::Python => "python",
            With::RedisPy => "redis-py",
            With::Pymemcache => "pymemcache",
            With::C => "c",
        }
    }
}

/// How the two sides wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// No side polls.
    Sleeping,
    /// The client polls before it sleeps.
    Client,
    /// Both sides poll.
    Both,
}

impl Wait {
    /// As in the JSON lines.
    pub fn name(self) -> &'static str {
        match self {
            Wait::Sleeping => "sleeping",
            Wait::Client => "client polls",
            Wait::Both => "both poll",
        }
    }

    /// Whether the client polls.
    pub fn client_polls(self) -> bool {
        self != Wait::Sleeping
    }

    /// Whether the server polls.
    pub fn server_polls(self) -> bool {
        self == Wait::Both
    }
}

/// One measurement: a client with an operation on a server.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// The system.
    pub system: System,
    /// The client.
    pub with: With,
    /// The operation.
    pub op: Op,
    /// Bytes of a value.
    pub size: u64,
    /// Number of connections.
    pub clients: usize,
    /// Requests in flight on each connection.
    pub pipeline: usize,
    /// The transport.
    pub transport: Transport,
    /// Number of keys in a batch.
    pub batch: u64,
    /// How both sides wait.
    pub waiting: Wait,
    /// Whether client and server share a core.
    pub one_core: bool,
    /// Bytes of a file, or of a burst.
    pub total: u64,
    /// Number of Honeycomb's memory servers.
    pub servers: u8,
    /// Initial number of blocks of a Honeycomb store.
    pub blocks: u32,
    /// Whether a Honeycomb server has touched memory for bursts.
    pub has_reserve: bool,
    /// Concurrent operation of a client on another prefix of the same cluster.
    pub beside: Option<Op>,
}

/// How long a polling side polls before it sleeps, in microseconds: the default of Honeycomb.
pub const SPIN_US: u64 = 50;
/// Bytes of values in a measured system, unless `KEYS_MAX` keys have less.
const DATA: u64 = 64 << 20;
/// Maximum number of keys of a store.
const KEYS_MAX: u64 = 10_000;
/// Bytes of a file.
const FILE: u64 = 256 << 20;
/// Bytes of a burst: half of the touched memory of a server with a reserve.
const BURST: u64 = 64 << 20;
/// Bytes of a burst that is larger than any reserve.
const SUSTAINED: u64 = 512 << 20;

impl Cell {
    /// One synchronous client over TCP, without polling, on two cores.
    pub fn new(system: System, with: With, op: Op, size: u64) -> Cell {
        Cell {
            system,
            with,
            op,
            size,
            clients: 1,
            pipeline: 1,
            transport: Transport::Tcp,
            batch: 1,
            waiting: Wait::Sleeping,
            one_core: false,
            total: FILE,
            servers: 1,
            blocks: 1,
            has_reserve: false,
            beside: None,
        }
    }

    /// The number of keys to choose from.
    pub fn keys(&self) -> u64 {
        // Several servers have smaller blocks: the values must fit.
        let data = if self.servers > 1 { DATA / 4 } else { DATA };
        (data / self.size.max(1)).clamp(2, KEYS_MAX)
    }

    /// Factor for the duration of the measurement, so that it includes a few large values.
    pub fn longer(&self) -> f64 {
        match self.size {
            // A burst and the pauses around it.
            _ if self.op.is_burst() && self.total == SUSTAINED => 30.0,
            _ if self.op.is_burst() => 5.0,
            size if size >= 64 * MIB => 4.0,
            size if size >= MIB => 2.0,
            // Long enough for a few splits, which follow one after the other.
            _ if self.beside.is_some() => 2.0,
            _ => 1.0,
        }
    }

    /// The reason why this build cannot measure the cell, if any. To enable a row, remove its line here.
    pub fn not_in_this_build(&self) -> Option<&'static str> {
        match (self.system, self.transport, self.with) {
            (System::Honeycomb, Transport::Map, With::Python) => None,
            (_, Transport::Map, _) => Some("only the client in Python is measured with mappings"),
            _ => None,
        }
    }

    fn waits(self, waiting: Wait) -> Cell {
        Cell { waiting, ..self }
    }

    fn load(self, clients: usize, pipeline: usize, transport: Transport) -> Cell {
        Cell { clients, pipeline, transport, with: With::Flood, ..self }
    }

    fn on_one_core(self) -> Cell {
        Cell { one_core: true, ..self }
    }

    fn batch(self, batch: u64) -> Cell {
        Cell { batch, ..self }
    }

    fn spread(self) -> Cell {
        match self.system {
            System::Honeycomb => Cell { servers: 2, blocks: 8, ..self },
            _ => self,
        }
    }
}

/// The compared figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Median latency.
    P50,
    /// 99th percentile of the latency.
    P99,
    /// Payload per second.
    MbPerS,
    /// Server CPU per operation.
    ServerCpu,
    /// Client CPU per operation.
    ClientCpu,
    /// Operations per second of server CPU.
    PerServerCore,
    /// Resident memory of the server per stored byte; not a figure of a round.
    Resident,
}

impl Figure {
    /// For the table.
    pub fn name(self) -> &'static str {
        match self {
            Figure::P50 => "p50",
            Figure::P99 => "p99",
            Figure::MbPerS => "MB/s",
            Figure::ServerCpu => "server CPU/op",
            Figure::ClientCpu => "client CPU/op",
            Figure::PerServerCore => "ops per server core-s",
            Figure::Resident => "resident memory",
        }
    }

    /// The figure of one round.
    pub fn of(self, figures: &Figures) -> f64 {
        match self {
            Figure::P50 => figures.latency[0],
            Figure::P99 => figures.latency[2],
            Figure::MbPerS => figures.mb_s,
            Figure::ServerCpu => figures.server_us,
            Figure::ClientCpu => figures.client_us,
            Figure::PerServerCore => 1e6 / figures.server_us,
            Figure::Resident => f64::NAN,
        }
    }

    /// Whether a larger value is better.
    pub fn rises(self) -> bool {
        matches!(self, Figure::MbPerS | Figure::PerServerCore)
    }
}

/// The bound of a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// This value, or more.
    AtLeast(f64),
    /// This value, or less.
    AtMost(f64),
}

impl Bound {
    /// Whether a ratio meets the bound.
    pub fn met(self, ratio: f64) -> bool {
        match self {
            AtLeast(least) => ratio >= least,
            AtMost(most) => ratio <= most,
        }
    }

    /// For the table.
    pub fn show(self) -> String {
        match self {
            AtLeast(least) => format!(">= {least}"),
            AtMost(most) => format!("<= {most}"),
        }
    }
}

/// A requirement on cells of a group: the figure of our cell over that of the best of the others.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Name of the row, as in the table of bars.
    pub row: String,
    /// The compared figure.
    pub figure: Figure,
    /// Index of our cell.
    pub ours: usize,
    /// Indices of the other cells; the best available one counts.
    pub others: Vec<usize>,
    /// The required bound; `None` if there is only a stretch goal.
    pub bar: Option<Bound>,
    /// The stretch goal.
    pub stretch: Option<Bound>,
}

/// Cells that alternate, and the requirements on them.
#[derive(Clone, Debug)]
pub struct Group {
    /// Name for `--rows` and the JSON lines: the first word is `bench`.
    pub name: String,
    /// The cells.
    pub cells: Vec<Cell>,
    /// The requirements.
    pub bars: Vec<Bar>,
}

impl Group {
    fn new(name: String, cells: Vec<Cell>) -> Group {
        Group { name, cells, bars: Vec::new() }
    }

    fn bar(
        mut self,
        row: &str,
        figure: Figure,
        (ours, others): (usize, &[usize]),
        bar: impl Into<Option<Bound>>,
        stretch: impl Into<Option<Bound>>,
    ) -> Group {
        let (row, others) = (format!("{}: {row}", self.name), others.to_vec());
        let (bar, stretch) = (bar.into(), stretch.into());
        self.bars.push(Bar { row, figure, ours, others, bar, stretch });
        self
    }

    /// The first word of its name.
    pub fn bench(&self) -> &str {
        self.name.split(' ').next().unwrap_or_default()
    }
}

/// The measured part of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// A check that it works.
    Quick,
    /// About ten minutes.
    Usual,
    /// Every size, number of connections and direction.
    Full,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The whole matrix at a scale.
pub fn groups(scale: Scale) -> Vec<Group> {
    let pick = |quick: &[u64], usual: &[u64], full: &[u64]| match scale {
        Scale::Quick => quick.to_vec(),
        Scale::Usual => usual.to_vec(),
        Scale::Full => full.to_vec(),
    };
    let small = pick(&[64], &[64, KIB, 16 * KIB], &[8, 64, KIB, 16 * KIB]);
    let middle = pick(&[], &[128 * KIB, MIB], &[128 * KIB, MIB]);
    let large = pick(&[8 * MIB], &[8 * MIB, 64 * MIB], &[8 * MIB, 64 * MIB, 128 * MIB]);
    let flood = pick(&[64], &[64], &[8, 64, KIB]);
    let mut all = Vec::new();
    let both: &[Op] = if scale == Scale::Quick { &[Op::Get] } else { &[Op::Get, Op::Put] };
    for &op in both {
        all.extend(small.iter().map(|size| sync_small(op, *size)));
        all.extend(small.iter().map(|size| one_core(op, *size)));
        all.extend(middle.iter().map(|size| sync_middle(op, *size)));
        all.extend(large.iter().map(|size| large_kv(op, *size)));
        all.extend(large.iter().map(|size| large_file(op, *size)));
    }
    let over_unix = pick(&[], &[64, 8 * MIB], &[64, KIB, MIB, 8 * MIB, 64 * MIB]);
    for &op in both {
        all.extend(over_unix.iter().map(|size| sync_unix(op, *size)));
    }
    let (connections, pipelines): (&[usize], &[usize]) = match scale {
        Scale::Quick => (&[16], &[16]),
        _ => (&[16, 50], &[1, 16]),
    };
    for &clients in connections {
        for &pipeline in pipelines {
            for transport in [Transport::Tcp, Transport::Unix] {
                for &size in &flood {
                    // Between few and many connections, only get is measured.
                    let ops = if clients == 50 || scale == Scale::Full { both } else { &both[..1] };
                    all.extend(ops.iter().map(|op| many(*op, size, clients, pipeline, transport)));
                }
            }
        }
    }
    all.extend(both.iter().map(|op| piped(*op, 64, 16)));
    all.push(batches(Op::MultiGet, 64, 100));
    if scale != Scale::Quick {
        for op in [Op::MultiGet, Op::MultiPut] {
            all.push(batches(op, 64, 64));
        }
        all.push(batches(Op::MultiGet, KIB, 64));
    }
    let items = pick(&[64], &[64], &[8, 64, KIB, 16 * KIB, 128 * KIB, MIB, 8 * MIB]);
    all.extend(items.into_iter().map(queue_sync));
    all.extend(pipelines.iter().map(|pipeline| queue_many(64, 50, *pipeline)));
    all.push(wake(64));
    let bytes = pick(&[], &[], &[8, 64, KIB, 16 * KIB]);
    for op in [Op::Append, Op::Read] {
        all.extend(bytes.iter().map(|size| file_small(op, *size)));
    }
    let appended = pick(&[128 * KIB], &[128 * KIB, MIB], &[128 * KIB, MIB]);
    all.extend(appended.into_iter().map(append));
    if scale != Scale::Quick {
        all.extend([put_new_memory(64 * MIB), append_new_memory(128 * KIB)]);
    }
    let ranges = pick(&[MIB], &[MIB, 8 * MIB], &[MIB, 8 * MIB, 64 * MIB]);
    all.extend(ranges.into_iter().map(ranged_read));
    all.extend(two_servers(scale));
    let python = pick(&[64], &[64, 16 * KIB], &[8, 64, KIB, 16 * KIB]);
    let large = pick(&[MIB], &[MIB, 8 * MIB, 64 * MIB], &[MIB, 8 * MIB, 64 * MIB, 128 * MIB]);
    for &op in both {
        all.extend(python.iter().map(|size| python_small(op, *size)));
        all.extend(large.iter().map(|size| python_large(op, *size)));
    }
    if scale != Scale::Quick {
        for op in [Op::MultiGet, Op::MultiPut] {
            all.extend([(64, 64), (100, 1000)].map(|(bytes, batch)| python_many(op, bytes, batch)));
        }
        all.push(python_many(Op::Queue, 64, 1));
    }
    all.push(python_map(if scale == Scale::Quick { MIB } else { 64 * MIB }));
    all
}

use With::{C, Flood, Hiredis, Pymemcache, Python, RedisPy, Rust};

fn sync_cells(op: Op, bytes: u64) -> Vec<Cell> {
    let ours = Cell::new(System::Honeycomb, Rust, op, bytes);
    let limit = Cell::new(System::Stream, C, op, bytes);
    vec![
        ours,
        ours.waits(Wait::Client),
        ours.waits(Wait::Both),
        Cell::new(System::Redis, Hiredis, op, bytes),
        Cell::new(System::Redis, Rust, op, bytes),
        Cell::new(System::Memcached, Rust, op, bytes),
        limit,
        limit.waits(Wait::Client),
        limit.waits(Wait::Both),
    ]
}

/// The synchronous rows over Unix sockets, with the clients that all systems have.
fn sync_unix(op: Op, bytes: u64) -> Group {
    let here = |cell: Cell| Cell { transport: Transport::Unix, ..cell };
    let ours = here(Cell::new(System::Honeycomb, Rust, op, bytes));
    let limit = here(Cell::new(System::Stream, C, op, bytes));
    let cells = vec![
        ours,
        ours.waits(Wait::Client),
        ours.waits(Wait::Both),
        here(Cell::new(System::Redis, Hiredis, op, bytes)),
        limit,
        limit.waits(Wait::Both),
    ];
    let group = Group::new(format!("unix sync {} {}", op.name(), size::show(bytes)), cells);
    if bytes < MIB {
        return group
            .bar("nobody polls", Figure::P50, (0, &[3]), None, None)
            .bar("client polls", Figure::P50, (1, &[3]), None, None)
            .bar("both poll", Figure::P50, (2, &[3]), None, None);
    }
    group.bar("against Redis", Figure::MbPerS, (0, &[3]), None, None).bar(
        "against the socket",
        Figure::MbPerS,
        (0, &[4]),
        None,
        None,
    )
}

fn sync_small(op: Op, bytes: u64) -> Group {
    Group::new(format!("kv sync {} {}", op.name(), size::show(bytes)), sync_cells(op, bytes))
        .bar("nobody polls", Figure::P50, (0, &[3]), AtMost(1.05), None)
        .bar("client polls", Figure::P50, (1, &[3]), AtMost(0.4), AtMost(0.25))
        .bar("both poll", Figure::P50, (2, &[3]), AtMost(0.15), AtMost(0.1))
        .bar("the socket there, client polls", Figure::P50, (7, &[3]), None, None)
        .bar("the socket there, both poll", Figure::P50, (8, &[3]), None, None)
}

fn sync_middle(op: Op, bytes: u64) -> Group {
    let name = format!("kv sync {} {}", op.name(), size::show(bytes));
    let group = Group::new(name, sync_cells(op, bytes));
    let best = &[3, 4, 5];
    if bytes < MIB {
        return group.bar("nobody polls", Figure::MbPerS, (0, best), AtLeast(1.0), None).bar(
            "client polls",
            Figure::MbPerS,
            (1, best),
            AtLeast(2.0),
            AtLeast(3.0),
        );
    }
    group.bar("client polls", Figure::MbPerS, (1, best), AtLeast(1.2), AtLeast(2.0))
}

fn one_core(op: Op, bytes: u64) -> Group {
    let cell = |system, with| Cell::new(system, with, op, bytes).on_one_core();
    let cells = vec![
        cell(System::Honeycomb, Rust),
        cell(System::Redis, Hiredis),
        cell(System::Memcached, Rust),
        cell(System::Stream, C),
        cell(System::Honeycomb, Rust).waits(Wait::Both),
    ];
    Group::new(format!("kv one-core {} {}", op.name(), size::show(bytes)), cells)
        .bar("both sides on one core", Figure::ServerCpu, (0, &[1]), AtMost(0.8), AtMost(0.6))
        .bar("the same, both poll", Figure::ServerCpu, (4, &[1]), AtMost(0.8), AtMost(0.6))
        .bar("the socket there", Figure::ServerCpu, (3, &[1]), None, None)
}

fn large_kv(op: Op, bytes: u64) -> Group {
    Group::new(format!("kv large {} {}", op.name(), size::show(bytes)), sync_cells(op, bytes))
        .bar("against Redis", Figure::MbPerS, (0, &[3, 4]), AtLeast(1.6), None)
        .bar("against the socket", Figure::MbPerS, (0, &[6]), AtLeast(0.85), AtLeast(0.95))
}

fn large_file(op: Op, bytes: u64) -> Group {
    let ours = if op == Op::Get { Op::Read } else { Op::Append };
    let cells = vec![
        Cell::new(System::Honeycomb, Rust, ours, bytes),
        Cell::new(System::Redis, Hiredis, op, bytes),
        Cell::new(System::Redis, Rust, op, bytes),
        Cell::new(System::Stream, C, op, bytes),
    ];
    Group::new(format!("file large {} {}", ours.name(), size::show(bytes)), cells)
        .bar("against Redis", Figure::MbPerS, (0, &[1, 2]), AtLeast(1.6), None)
        .bar("against the socket", Figure::MbPerS, (0, &[3]), AtLeast(0.85), AtLeast(0.95))
}

fn many(op: Op, bytes: u64, clients: usize, pipeline: usize, transport: Transport) -> Group {
    let cell = |system| Cell::new(system, Flood, op, bytes).load(clients, pipeline, transport);
    let cells = [System::Honeycomb, System::Redis, System::Memcached, System::Empty, System::Loop]
        .map(cell);
    let (over, bytes) = (transport.name(), size::show(bytes));
    let name = format!("kv many {} {bytes} x{clients} p{pipeline} {over}", op.name());
    let group = Group::new(name, cells.to_vec());
    let figure = Figure::PerServerCore;
    if clients < 50 {
        return group.bar("against Redis", figure, (0, &[1]), None, None);
    }
    let (redis, empty) = match pipeline {
        1 => ((AtLeast(1.0), None), (Some(AtLeast(0.92)), AtLeast(0.97))),
        _ => ((AtLeast(1.5), None), (None, AtLeast(0.9))),
    };
    group
        .bar("against Redis", figure, (0, &[1]), redis.0, redis.1)
        .bar("against the empty server", figure, (0, &[3]), empty.0, empty.1)
        .bar("the empty server there", figure, (3, &[1]), None, None)
}

fn batches(op: Op, bytes: u64, batch: u64) -> Group {
    let cell = |system, with| Cell::new(system, with, op, bytes).batch(batch);
    let cells = vec![cell(System::Honeycomb, Rust), cell(System::Redis, Hiredis)];
    let name = format!("kv {} {batch} x {}", op.name(), size::show(bytes));
    let (bar, stretch) = match (op, batch) {
        (Op::MultiGet, 100) => (Some(AtLeast(2.0)), Some(AtLeast(4.0))),
        _ => (None, None),
    };
    Group::new(name, cells).bar("keys", Figure::PerServerCore, (0, &[1]), bar, stretch)
}

/// One of the system's own clients with several requests in flight.
fn piped(op: Op, bytes: u64, pipeline: usize) -> Group {
    let cell = |system, with| Cell { pipeline, ..Cell::new(system, with, op, bytes) };
    let cells = vec![cell(System::Honeycomb, Rust), cell(System::Redis, Hiredis)];
    Group::new(format!("kv piped {} {} p{pipeline}", op.name(), size::show(bytes)), cells)
        .bar("server", Figure::PerServerCore, (0, &[1]), None, None)
        .bar("client", Figure::ClientCpu, (0, &[1]), None, None)
}

fn queue_sync(bytes: u64) -> Group {
    let cell = |system, with| Cell::new(system, with, Op::Queue, bytes);
    let cells = vec![
        cell(System::Honeycomb, Rust),
        cell(System::Honeycomb, Rust).waits(Wait::Client),
        cell(System::Redis, Hiredis),
        cell(System::Honeycomb, Rust).on_one_core(),
        cell(System::Redis, Hiredis).on_one_core(),
        cell(System::Honeycomb, Rust).waits(Wait::Both).on_one_core(),
    ];
    Group::new(format!("queue sync {}", size::show(bytes)), cells)
        .bar("two cores", Figure::PerServerCore, (0, &[2]), None, None)
        .bar("one core", Figure::PerServerCore, (3, &[4]), AtLeast(1.3), AtLeast(2.0))
        .bar("one core, both poll", Figure::PerServerCore, (5, &[4]), AtLeast(1.3), AtLeast(2.0))
        .bar("nobody polls", Figure::P50, (0, &[2]), None, None)
        .bar("client polls", Figure::P50, (1, &[2]), None, None)
}

fn queue_many(bytes: u64, clients: usize, pipeline: usize) -> Group {
    let cell =
        |system| Cell::new(system, Flood, Op::Queue, bytes).load(clients, pipeline, Transport::Tcp);
    let empty = Cell::new(System::Empty, Flood, Op::Put, bytes);
    let empty = empty.load(clients, pipeline, Transport::Tcp);
    let cells = vec![cell(System::Honeycomb), cell(System::Redis), empty];
    Group::new(format!("queue many {} x{clients} p{pipeline}", size::show(bytes)), cells)
        .bar("against LPUSH and RPOP", Figure::PerServerCore, (0, &[1]), AtLeast(1.3), AtLeast(2.0))
        .bar("the empty server there", Figure::PerServerCore, (2, &[1]), None, None)
}

fn wake(bytes: u64) -> Group {
    let cell = |system| Cell::new(system, Rust, Op::Wake, bytes);
    let cells = vec![
        cell(System::Honeycomb),
        cell(System::Honeycomb).waits(Wait::Client),
        cell(System::Redis),
    ];
    Group::new(format!("queue wake {}", size::show(bytes)), cells)
        .bar("nobody polls", Figure::P50, (0, &[2]), AtMost(1.0), AtMost(0.9))
        .bar("consumer polls", Figure::P50, (1, &[2]), AtMost(0.6), AtMost(0.3))
}

fn file_small(op: Op, bytes: u64) -> Group {
    // Filling a file again takes as long as many small appends, so that the file to read is smaller.
    let total = if op == Op::Read { FILE / 16 } else { FILE };
    let cell = |system, with| Cell { total, ..Cell::new(system, with, op, bytes) };
    let cells = vec![
        cell(System::Honeycomb, Rust),
        cell(System::Honeycomb, Rust).waits(Wait::Client),
        cell(System::Redis, Hiredis),
    ];
    Group::new(format!("file sync {} {}", op.name(), size::show(bytes)), cells)
        .bar("nobody polls", Figure::P50, (0, &[2]), None, None)
        .bar("client polls", Figure::P50, (1, &[2]), None, None)
}

fn append(bytes: u64) -> Group {
    let cells = vec![
        Cell::new(System::Honeycomb, Rust, Op::Append, bytes),
        Cell::new(System::Redis, Hiredis, Op::Append, bytes),
        Cell::new(System::Stream, C, Op::Put, bytes),
    ];
    Group::new(format!("file append {}", size::show(bytes)), cells)
        .bar("throughput", Figure::MbPerS, (0, &[1]), AtLeast(5.0), None)
        .bar("p99", Figure::P99, (0, &[1]), AtMost(0.1), None)
        .bar("against the socket", Figure::MbPerS, (0, &[2]), None, AtLeast(0.9))
}

/// Puts into memory that was used before, into touched memory of the reserve, and into more new memory than a
/// server touches ahead.
fn put_new_memory(bytes: u64) -> Group {
    let ours = |op, total| Cell { total, ..Cell::new(System::Honeycomb, Rust, op, bytes) };
    let cells = vec![
        ours(Op::PutAgain, BURST),
        Cell { has_reserve: true, ..ours(Op::PutNew, BURST) },
        ours(Op::PutNew, SUSTAINED),
        Cell::new(System::Redis, Hiredis, Op::Put, bytes),
        Cell::new(System::Stream, C, Op::Put, bytes),
        Cell { total: SUSTAINED, ..Cell::new(System::Pages, Rust, Op::PutNew, bytes) },
    ];
    let (rate, least, of_socket) = (Figure::MbPerS, AtLeast(1.6), AtLeast(0.85));
    Group::new(format!("new memory put {}", size::show(bytes)), cells)
        .bar("used before, against Redis", rate, (0, &[3]), least, None)
        .bar("used before, against the socket", rate, (0, &[4]), of_socket, None)
        .bar("in the reserve, against Redis", rate, (1, &[3]), least, None)
        .bar("in the reserve, against the socket", rate, (1, &[4]), of_socket, None)
        // The median: a part of the memory may have been free for so short a time that it costs little.
        .bar("sustained, against touching", Figure::P50, (2, &[5]), AtMost(1.15), None)
        .bar("touching, against the socket", rate, (5, &[4]), None, None)
}

/// Appends into memory that was used before, and into touched memory of the reserve.
fn append_new_memory(bytes: u64) -> Group {
    let ours = |op| Cell { total: BURST, ..Cell::new(System::Honeycomb, Rust, op, bytes) };
    let cells = vec![
        ours(Op::AppendAgain),
        Cell { has_reserve: true, ..ours(Op::AppendNew) },
        Cell::new(System::Redis, Hiredis, Op::Append, bytes),
        Cell::new(System::Stream, C, Op::Put, bytes),
    ];
    let (rate, p99) = (Figure::MbPerS, Figure::P99);
    Group::new(format!("new memory append {}", size::show(bytes)), cells)
        .bar("used before, against Redis", rate, (0, &[2]), AtLeast(5.0), None)
        .bar("used before, p99", p99, (0, &[2]), AtMost(1.0), None)
        .bar("in the reserve, against Redis", rate, (1, &[2]), AtLeast(5.0), None)
        .bar("in the reserve, p99", p99, (1, &[2]), AtMost(1.0), None)
        .bar("in the reserve, against the socket", rate, (1, &[3]), None, None)
}

fn ranged_read(bytes: u64) -> Group {
    let cells = vec![
        Cell::new(System::Honeycomb, Rust, Op::Read, bytes),
        Cell::new(System::Redis, Hiredis, Op::Read, bytes),
        Cell::new(System::Stream, C, Op::Get, bytes),
    ];
    Group::new(format!("file range {}", size::show(bytes)), cells)
        .bar("against GETRANGE", Figure::MbPerS, (0, &[1]), AtLeast(1.5), None)
        .bar("against the socket", Figure::MbPerS, (0, &[2]), None, AtLeast(0.9))
}

/// Rows with two memory servers and a store of eight blocks, and their p99 while another prefix splits. The
/// puts that cause the splits are a load on the same cores: the same puts without splits show their part of
/// the difference.
fn two_servers(scale: Scale) -> Vec<Group> {
    let group = |name: &str, cell: &dyn Fn(System) -> Cell, figure, bar| {
        let ours = cell(System::Honeycomb).spread();
        let beside = |op| Cell { beside: Some(op), ..ours };
        let cells = vec![ours, cell(System::Redis), beside(Op::Split), beside(Op::Trickle)];
        let p99 = Figure::P99;
        Group::new(format!("servers {name}"), cells)
            .bar("two servers", figure, (0, &[1]), bar, None)
            .bar("while another prefix splits", p99, (2, &[0]), AtMost(1.5), None)
            .bar("while it splits, against its puts alone", p99, (2, &[3]), None, None)
            .bar("its puts alone", p99, (3, &[0]), None, None)
    };
    let sync = |op: Op, bytes: u64| {
        move |system| match system {
            System::Honeycomb => Cell::new(system, Rust, op, bytes),
            _ => Cell::new(system, Hiredis, op, bytes),
        }
    };
    let core = Figure::PerServerCore;
    let mut all = vec![group("get 64 B", &sync(Op::Get, 64), Figure::P50, AtMost(1.05))];
    if scale == Scale::Quick {
        return all;
    }
    let polls = |system| match system {
        System::Honeycomb => sync(Op::Get, MIB)(system).waits(Wait::Client),
        _ => sync(Op::Get, MIB)(system),
    };
    let piped = |system| Cell::new(system, Flood, Op::Get, 64).load(50, 16, Transport::Tcp);
    let queue = |system| sync(Op::Queue, 64)(system).on_one_core();
    let python = |system| match system {
        System::Honeycomb => Cell::new(system, Python, Op::Get, KIB),
        _ => Cell::new(system, RedisPy, Op::Get, KIB),
    };
    all.extend([
        group("put 1 KiB", &sync(Op::Put, KIB), Figure::P50, AtMost(1.05)),
        group("get 1 MiB", &polls, Figure::MbPerS, AtLeast(1.2)),
        group("get 64 B x50 p16", &piped, core, AtLeast(1.5)),
        group("queue 64 B", &queue, core, AtLeast(1.3)),
        group("python get 1 KiB", &python, Figure::ClientCpu, AtMost(0.55)),
    ]);
    all
}

fn python_small(op: Op, bytes: u64) -> Group {
    let cell = |system, with| Cell::new(system, with, op, bytes);
    let cells = vec![
        cell(System::Honeycomb, Python),
        cell(System::Redis, RedisPy),
        cell(System::Memcached, Pymemcache),
        cell(System::Honeycomb, Python).on_one_core(),
        cell(System::Redis, RedisPy).on_one_core(),
    ];
    let figure = Figure::ClientCpu;
    Group::new(format!("python sync {} {}", op.name(), size::show(bytes)), cells)
        .bar("nobody polls", figure, (0, &[1]), AtMost(0.55), AtMost(0.5))
        .bar("one core", figure, (3, &[4]), AtMost(0.25), AtMost(0.15))
}

fn python_large(op: Op, bytes: u64) -> Group {
    let cell = |system, with| Cell::new(system, with, op, bytes);
    let mut cells = vec![
        cell(System::Honeycomb, Python),
        cell(System::Redis, RedisPy),
        cell(System::Memcached, Pymemcache),
    ];
    let (bar, stretch) = match op == Op::Get && bytes < 64 * MIB {
        true => (AtLeast(1.5), AtLeast(2.0)),
        false => (AtLeast(2.5), AtLeast(5.0)),
    };
    if op == Op::Get {
        cells.push(Cell::new(System::Honeycomb, Python, Op::GetInto, bytes));
    }
    let name = format!("python large {} {}", op.name(), size::show(bytes));
    let group = Group::new(name, cells).bar("throughput", Figure::MbPerS, (0, &[1]), bar, stretch);
    match op {
        Op::Get => group.bar("into a buffer", Figure::MbPerS, (3, &[1]), None, None),
        _ => group,
    }
}

fn python_many(op: Op, bytes: u64, batch: u64) -> Group {
    let cell = |system, with| Cell::new(system, with, op, bytes).batch(batch);
    let cells = vec![cell(System::Honeycomb, Python), cell(System::Redis, RedisPy)];
    let name = format!("python {} {batch} x {}", op.name(), size::show(bytes));
    let keys = match (op, batch) {
        (Op::MultiGet, 1000) => Some(AtLeast(2.5)),
        (Op::MultiPut, 1000) => Some(AtLeast(1.5)),
        _ => None,
    };
    Group::new(name, cells)
        .bar("keys", Figure::MbPerS, (0, &[1]), keys, None)
        .bar("client", Figure::ClientCpu, (0, &[1]), None, None)
        .bar("server", Figure::ServerCpu, (0, &[1]), None, None)
}

/// A mapped sealed file compared with a fetched value; the client reads all bytes.
fn python_map(bytes: u64) -> Group {
    let cell = |system, with| Cell::new(system, with, Op::Pass, bytes);
    let mapped = Cell { transport: Transport::Map, ..cell(System::Honeycomb, Python) };
    let cells = vec![
        mapped,
        cell(System::Redis, RedisPy),
        cell(System::Honeycomb, Python),
        // The time of mapping alone.
        Cell { op: Op::Get, ..mapped },
    ];
    Group::new(format!("python map {}", size::show(bytes)), cells)
        .bar("mapped", Figure::MbPerS, (0, &[1]), AtLeast(8.0), None)
        .bar("fetched", Figure::MbPerS, (2, &[1]), None, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn groups_have_names_of_their_own_and_bars_over_their_cells() {
        for scale in [Scale::Quick, Scale::Usual, Scale::Full] {
            let groups = groups(scale);
            let names: HashSet<&str> = groups.iter().map(|group| &group.name[..]).collect();
            assert_eq!(names.len(), groups.len());
            for group in &groups {
                assert!(!group.bars.is_empty(), "{}", group.name);
                for bar in &group.bars {
                    let all = bar.others.iter().chain([&bar.ours]);
                    assert!(all.clone().all(|at| *at < group.cells.len()), "{}", bar.row);
                    assert!(!bar.others.contains(&bar.ours), "{}", bar.row);
                }
                let bars = group.bars.iter().filter(|bar| bar.bar.is_some());
                for bar in bars {
                    assert_eq!(group.cells[bar.ours].system, System::Honeycomb, "{}", bar.row);
                }
            }
        }
    }

    #[test]
    fn each_scale_has_all_that_the_one_before_asks() {
        let asked = |scale| -> HashSet<String> {
            groups(scale).into_iter().flat_map(|group| group.bars).map(|bar| bar.row).collect()
        };
        let (usual, full) = (asked(Scale::Usual), asked(Scale::Full));
        assert!(usual.is_subset(&full));
        // The table of bars in issue 5, by distinguishing parts of its rows.
        for part in [
            "kv sync get 64 B: nobody polls",
            "kv sync put 16.0 KiB: client polls",
            "kv sync get 1.0 KiB: both poll",
            "kv one-core get 64 B: both sides on one core",
            "kv sync get 128.0 KiB: nobody polls",
            "kv sync put 1.0 MiB: client polls",
            "kv large get 8.0 MiB: against Redis",
            "kv large put 64.0 MiB: against the socket",
            "file large read 64.0 MiB: against the socket",
            "kv many get 64 B x50 p1 tcp: against the empty server",
            "kv many put 64 B x50 p16 unix: against Redis",
            "kv multi_get 100 x 64 B: keys",
            "python multi_get 1000 x 100 B: keys",
            "python sync put 16.0 KiB: one core",
            "python large get 64.0 MiB: throughput",
            "python map 64.0 MiB: mapped",
            "queue many 64 B x50 p16: against LPUSH and RPOP",
            "queue wake 64 B: consumer polls",
            "file append 1.0 MiB: p99",
            "file range 1.0 MiB: against GETRANGE",
            "servers get 64 B: two servers",
            "servers put 1 KiB: while another prefix splits",
            "servers python get 1 KiB: two servers",
        ] {
            assert!(usual.contains(part), "{part}");
        }
    }

    #[test]
    fn the_usual_matrix_is_measured_in_about_eight_minutes() {
        // The rest of ten minutes is for starting and filling; five rounds count, one does not.
        let groups = groups(Scale::Usual);
        let rounds: f64 = groups.iter().flat_map(|group| &group.cells).map(Cell::longer).sum();
        assert!(rounds * 6.0 * crate::SECONDS < 490.0, "{rounds} rounds");
    }

    #[test]
    fn a_bound_is_met_at_its_edge() {
        assert!(AtLeast(1.0).met(1.0) && !AtLeast(1.0).met(0.999));
        assert!(AtMost(1.0).met(1.0) && !AtMost(1.0).met(1.001));
    }
}
