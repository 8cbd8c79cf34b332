//! Runs a group: starts the servers and clients of its cells, alternates between them, and collects their
//! figures.

use crate::against::measure::{SIDES, Unpaired, in_turn};
use crate::build::Build;
use crate::contract::{Answer, Line, Measured, Op, Round, Spec, System};
use crate::matrix::{Cell, Group, SPIN_US, With};
use crate::servers::{Server, Which};
use crate::tools::Tools;
use honeycomb_bench::measure::{Figures, Series};
use honeycomb_bench::process::{Pinning, Watched};
use honeycomb_env::Clock;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Time after which a server without requests is idle, and has returned the memory that it does not need: a
/// store's block moves its content together when it has rested for a second.
const AT_REST: Duration = Duration::from_secs(3);

/// Approximate time to fill and split a block of several servers.
const SPLIT_TAKES: Duration = Duration::from_millis(20);
/// Minimum duration of a measurement beside splits: beside one client that waits for each answer, and beside
/// many clients that leave the servers no idle time. Two servers then share a core, and every step of a split
/// waits until the kernel has scheduled both of them.
const SPLITS_LEAST: Duration = Duration::from_millis(200);
const SPLITS_LEAST_FLOODED: Duration = Duration::from_secs(1);

/// Rounds after which a row beside splits fails, if none of them had a split: on a busy machine, the first
/// split may take longer than a round.
const SPLIT_TRIES: u32 = 20;

/// The results of a cell.
pub struct Shown {
    /// Figures of each round.
    pub series: Series,
    /// Description of the client.
    pub about: String,
    /// Peak resident memory of the server over the rounds, in bytes.
    pub server_peak: u64,
    /// Peak resident memory of the client, in bytes.
    pub client_peak: u64,
}

/// The length of measurements.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Number of counted rounds, after one uncounted round.
    pub rounds: u32,
    /// Seconds of a round.
    pub seconds: f64,
}

impl Effort {
    /// Seconds of a round of this cell. Even a short round is long enough for a concurrent split to complete.
    pub fn seconds(&self, cell: &Cell) -> f64 {
        let least = match (cell.beside, cell.with) {
            (Some(Op::Split), With::Flood) => SPLITS_LEAST_FLOODED,
            (Some(Op::Split), _) => SPLITS_LEAST,
            _ => Duration::ZERO,
        };
        (self.seconds * cell.longer()).max(least.as_secs_f64())
    }
}

/// The reason why a cell has no figures.
pub enum Absent {
    /// This build does not support the cell.
    NotInBuild(&'static str),
    /// The peer, or a program that it needs, is missing.
    NoPeer(String),
    /// The measurement failed.
    Failed(String),
}

impl Absent {
    /// The verdict, and the reason.
    pub fn verdict(&self) -> (&'static str, &str) {
        match self {
            Absent::NotInBuild(why) => ("NOT IN THIS BUILD", why),
            Absent::NoPeer(why) => ("NO PEER", why),
            Absent::Failed(why) => ("FAILED", why),
        }
    }
}

impl std::fmt::Display for Absent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (verdict, why) = self.verdict();
        write!(f, "{verdict}: {why}")
    }
}

/// The results of the cells of a group, or the reasons why there are none.
pub type Cells = Vec<Result<Shown, Absent>>;

/// A client's process.
struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(mut command: Command, one_core: bool, pinning: Pinning) -> Result<Worker, String> {
        if one_core {
            pinning.for_server();
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        pinning.for_client();
        let name = command.get_program().display().to_string();
        let mut child = child.map_err(|e| format!("cannot start {name}: {e}"))?;
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Ok(Worker { child, input, output })
    }

    fn ask(&mut self, line: &Line) -> Result<Answer, String> {
        self.tell(line);
        self.answer()
    }

    fn tell(&mut self, line: &Line) {
        let mut text = serde_json::to_string(line).expect("plain data");
        text.push('\n');
        // A client that has ended has written its error before.
        let _ = self.input.write_all(text.as_bytes());
    }

    fn answer(&mut self) -> Result<Answer, String> {
        let mut answer = String::new();
        self.output.read_line(&mut answer).map_err(|e| e.to_string())?;
        match serde_json::from_str(&answer) {
            Ok(Answer::Error { error }) => Err(error),
            Ok(answer) => Ok(answer),
            Err(_) => Err(format!("the client ended; see its messages above {answer}")),
        }
    }

    fn set_up(&mut self, spec: Spec) -> Result<String, String> {
        match self.ask(&Line::Spec(Box::new(spec)))? {
            Answer::Ready { about, .. } => Ok(about),
            other => Err(format!("the client answered {other:?}")),
        }
    }

    fn measured(&mut self) -> Result<Measured, String> {
        match self.answer()? {
            Answer::Measured(measured) if measured.ops > 0 => Ok(measured),
            other => Err(format!("the client answered {other:?}")),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A cell with its server and client.
struct Turn {
    cell: Cell,
    server: usize,
    worker: Worker,
    /// Concurrent load.
    beside: Option<Worker>,
    /// Number of block splits that the concurrent load caused during the counted rounds.
    splits: u64,
    about: String,
    figures: Vec<Figures>,
    server_peak: u64,
}

impl Turn {
    /// Checks that the concurrent load has caused splits.
    fn check(&self) -> Result<(), String> {
        match self.cell.beside == Some(Op::Split) && self.splits == 0 {
            true => Err("no block split during the measurement".into()),
            false => Ok(()),
        }
    }

    fn shown(self, rounds: u32) -> Result<Shown, Absent> {
        let mut about = self.about;
        if self.cell.beside == Some(Op::Split) {
            about += &format!("; {:.1} splits a round", self.splits as f64 / rounds as f64);
        }
        Ok(Shown {
            series: Series::of(self.figures),
            about,
            server_peak: self.server_peak,
            client_peak: Watched::process(self.worker.child.id()).peak_resident(),
        })
    }
}

/// Runs groups.
pub struct Runner<'a> {
    /// This build.
    pub own: &'a Build,
    /// Available peers and tools.
    pub tools: &'a Tools,
    /// Cores of both sides.
    pub pinning: Pinning,
    /// Length of measurements.
    pub effort: Effort,
    numbered: u32,
}

impl<'a> Runner<'a> {
    /// A runner without running servers.
    pub fn new(own: &'a Build, tools: &'a Tools, pinning: Pinning, effort: Effort) -> Runner<'a> {
        Runner { own, tools, pinning, effort, numbered: 0 }
    }

    /// Measures all cells of a group in turn. The group has new servers, so that no data of other groups
    /// remains.
    pub fn group(&mut self, group: &Group, progress: &mut dyn FnMut(&Cell, u32)) -> Cells {
        let mut servers: Vec<Server> = Vec::new();
        let mut turns: Vec<Result<Turn, Absent>> = Vec::new();
        for cell in &group.cells {
            turns.push(self.set_up(*cell, self.own, &mut servers));
        }
        for round in 0..=self.effort.rounds {
            for turn in &mut turns {
                let Ok(running) = turn else { continue };
                progress(&running.cell, round);
                if let Err(why) = self.round(running, &servers[running.server], round > 0) {
                    *turn = Err(Absent::Failed(why));
                }
            }
        }
        let rounds = self.effort.rounds;
        turns.into_iter().map(|turn| turn.and_then(|turn| turn.shown(rounds))).collect()
    }

    /// Pairs of neighbouring rounds of a cell of Honeycomb, with two builds in turn. Each build has a server
    /// and a new client. The number of a pair decides which build is measured first.
    pub fn pairs(
        &mut self,
        cell: Cell,
        builds: [&Build; 2],
        pairs: Range<u32>,
        progress: &mut dyn FnMut(u32),
    ) -> Result<Vec<[Figures; 2]>, Unpaired> {
        let mut servers = [Vec::new(), Vec::new()];
        let failed = |side: usize, why: String| Unpaired::Failed(format!("{}: {why}", SIDES[side]));
        let set_up = self.set_up(cell, builds[0], &mut servers[0]);
        let this = set_up.map_err(|absent| failed(0, absent.to_string()))?;
        // A client that does not support a cell refuses its specification (`contract`); a server that does
        // not know a flag ends at once.
        let set_up = self.set_up(cell, builds[1], &mut servers[1]);
        let that = set_up.map_err(|absent| Unpaired::NotThere(absent.verdict().1.to_owned()))?;
        let mut turns = [this, that];
        for side in [0, 1] {
            let warm = self.round(&mut turns[side], &servers[side][0], false);
            warm.map_err(|why| failed(side, why))?;
        }
        in_turn(pairs, |pair, side| {
            progress(pair);
            let turn = &mut turns[side];
            self.round(turn, &servers[side][0], true)?;
            turn.figures.pop().ok_or_else(|| "a round without figures".to_owned())
        })
    }

    /// The growth of a new server's resident memory, in bytes, when this many entries are stored.
    pub fn grown(&mut self, cell: Cell, build: &Build, entries: u64) -> Result<u64, Absent> {
        let command = self.possible(&cell, build)?;
        let grown = |server: &Server, spec: Spec| {
            let before = server.resident();
            let mut worker = Worker::start(command, cell.one_core, self.pinning)?;
            worker.set_up(spec)?;
            // Measured while the client exists, because a job's memory is freed with the job.
            let clock = Clock::start();
            clock.sleep_until(clock.now() + AT_REST);
            Ok(server.resident().saturating_sub(before))
        };
        let server = Server::start(Which::of(&cell), build, self.tools, self.pinning);
        self.numbered += 1;
        let numbered = self.numbered;
        server
            .and_then(|server| {
                let spec = spec(&cell, &server, numbered);
                grown(&server, Spec { keys: entries, ..spec })
            })
            .map_err(Absent::Failed)
    }

    fn set_up(
        &mut self,
        cell: Cell,
        build: &Build,
        servers: &mut Vec<Server>,
    ) -> Result<Turn, Absent> {
        let command = self.possible(&cell, build)?;
        self.set_up_here(cell, build, command, servers).map_err(Absent::Failed)
    }

    /// The client of a cell, unless a program that the cell needs is missing.
    fn possible(&self, cell: &Cell, build: &Build) -> Result<Command, Absent> {
        if let Some(why) = cell.not_in_this_build() {
            return Err(Absent::NotInBuild(why));
        }
        let peer = match cell.system {
            System::Redis if self.tools.redis.is_none() => Some("redis-server"),
            System::Memcached if self.tools.memcached.is_none() => Some("memcached"),
            _ => None,
        };
        if let Some(peer) = peer {
            return Err(Absent::NoPeer(format!("there is no {peer} on the path")));
        }
        self.command(cell, build).map_err(Absent::NoPeer)
    }

    fn set_up_here(
        &mut self,
        cell: Cell,
        build: &Build,
        command: Command,
        servers: &mut Vec<Server>,
    ) -> Result<Turn, String> {
        let which = Which::of(&cell);
        // Each cell with raw sockets has its own server, which keeps its tuning.
        let there = servers.iter().position(|s| s.which == which && cell.system != System::Stream);
        let at = match there {
            Some(at) => at,
            None => {
                servers.push(Server::start(which, build, self.tools, self.pinning)?);
                servers.len() - 1
            }
        };
        let mut worker = Worker::start(command, cell.one_core, self.pinning)?;
        self.numbered += 1;
        let about = worker.set_up(spec(&cell, &servers[at], self.numbered))?;
        let beside = match cell.beside {
            Some(op) => Some(self.neighbour(&cell, op, build, &servers[at])?),
            None => None,
        };
        let (figures, server_peak, splits) = (Vec::new(), 0, 0);
        Ok(Turn { cell, server: at, worker, beside, splits, about, figures, server_peak })
    }

    /// A client of another prefix of the same cluster, with a block for each split in a round.
    fn neighbour(
        &mut self,
        of: &Cell,
        op: Op,
        build: &Build,
        server: &Server,
    ) -> Result<Worker, String> {
        let blocks = self.effort.seconds(of) / SPLIT_TAKES.as_secs_f64();
        let blocks = (blocks.ceil() as u32).next_power_of_two().clamp(2, 64);
        let cell = Cell { blocks, ..Cell::new(of.system, With::Rust, op, 1024) };
        let mut worker = Worker::start(self.command(&cell, build)?, false, self.pinning)?;
        self.numbered += 1;
        worker.set_up(spec(&cell, server, self.numbered))?;
        Ok(worker)
    }

    fn command(&self, cell: &Cell, build: &Build) -> Result<Command, String> {
        let of = |program: &Path, args: &[&str]| {
            let mut command = Command::new(program);
            command.args(args);
            command
        };
        Ok(match cell.with {
            With::Rust => of(&build.program, &["worker"]),
            With::Flood => of(&build.program, &["flood"]),
            With::Hiredis => of(self.tools.hiredis()?, &[]),
            With::C => of(self.tools.limit()?, &["client"]),
            With::Python | With::RedisPy | With::Pymemcache => build.python_worker()?,
        })
    }

    /// Measures one round. Until the concurrent load has caused a split, rounds beside splits are repeated.
    fn round(&self, turn: &mut Turn, server: &Server, counts: bool) -> Result<(), String> {
        for _ in 0..SPLIT_TRIES {
            let (figures, splits) = self.measured(turn, server)?;
            if !counts {
                return Ok(());
            }
            turn.splits += splits;
            if turn.check().is_ok() {
                turn.figures.push(figures);
                return Ok(());
            }
        }
        turn.check()
    }

    /// The figures of one round, and the splits meanwhile.
    fn measured(&self, turn: &mut Turn, server: &Server) -> Result<(Figures, u64), String> {
        let seconds = self.effort.seconds(&turn.cell);
        let round = Round { seconds, ops: u32::MAX as u64 };
        if turn.figures.is_empty() {
            server.forget_peak();
        }
        if let Some(beside) = &mut turn.beside {
            beside.tell(&Line::Round(round));
        }
        let before = server.cpu();
        turn.worker.tell(&Line::Round(round));
        let measured = turn.worker.measured()?;
        let server_ns = server.cpu() - before;
        let splits = match &mut turn.beside {
            Some(beside) => beside.measured()?.splits,
            None => 0,
        };
        turn.server_peak = turn.server_peak.max(server.peak_resident());
        Ok((figures(&turn.cell, &measured, server_ns), splits))
    }
}

/// The specification of a cell's client.
fn spec(cell: &Cell, server: &Server, numbered: u32) -> Spec {
    Spec {
        system: cell.system,
        address: server.address.clone(),
        token: server.token.clone(),
        transport: cell.transport.name().into(),
        op: cell.op,
        size: cell.size,
        keys: cell.keys(),
        batch: cell.batch,
        total: cell.total,
        clients: cell.clients,
        pipeline: cell.pipeline,
        spin_us: if cell.waiting.client_polls() { SPIN_US } else { 0 },
        blocks: cell.blocks,
        name: format!("cell-{numbered}"),
    }
}

fn figures(cell: &Cell, measured: &Measured, server_ns: u64) -> Figures {
    let (ops, wall) = (measured.ops as f64, measured.wall_ns as f64 / 1e9);
    Figures {
        latency: measured.latency_us,
        ops_s: ops / wall,
        mb_s: ops * (cell.size * cell.batch) as f64 / wall / 1e6,
        server_us: server_ns as f64 / 1000.0 / ops,
        client_us: measured.cpu_ns as f64 / 1000.0 / ops,
    }
}
