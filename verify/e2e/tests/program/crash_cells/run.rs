//! One cell: the store is brought to its move, the victim dies, and the remaining data is checked.

use super::processes::{Cluster, Process, client, eventually, hex, unhex};
use super::retry::{Retries, look_up};
use super::store::{Fill, Written, scan, value, write};
use super::table::{Act, Cell, Promise, Victim};
use honeycomb_client::{Client, Error, JobTicket, Kv};
use honeycomb_e2e::Stop;
use honeycomb_env::Clock;
use honeycomb_types::JobId;
use honeycomb_wire::messages::{PrefixOptions, ServerInfo};
use honeycomb_wire::{Status, key_hash};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::ChildStdout;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LEASE_MS: u32 = 600_000;
/// Blocks of the servers: the store begins on the first, and grows on the server with most free blocks.
const BLOCKS: [u64; 3] = [8, 32, 16];
const WRITERS: u64 = 2;
/// Rounds of writers that go well after a crash before it is believed that they go on.
const ROUNDS: u64 = 20;
/// The key to which a client process adds.
const VICTIM_SUM: &[u8] = b"victim";

/// The work of a writer, and the error that ended it, if any.
type Ended<T> = (T, Option<Error>);

struct Story {
    cell: Cell,
    cluster: Cluster,
    client: Client,
    job: JobTicket,
    kv: Kv,
    /// A store that has nothing on the victim.
    bystander: Kv,
    retries: Option<Retries>,
    /// The victim, when it is a client.
    process: Option<Process>,
    /// Where the victim is, when it is a server.
    address: String,
    /// Whether a hash is of the half of which a merge begins.
    emptied: (u64, u64),
    /// Keys beyond those of `Fill` and of writers.
    others: usize,
}

impl Cell {
    /// The server that dies.
    fn server(&self) -> Option<usize> {
        match (self.act, self.victim) {
            (Act::Split | Act::MergeUp, Victim::Source) | (Act::MergeDown, Victim::Target) => {
                Some(0)
            }
            (Act::Split | Act::MergeUp, Victim::Target) | (Act::MergeDown, Victim::Source) => {
                Some(1)
            }
            (Act::Leave, Victim::Source) => Some(0),
            (Act::Leave, Victim::Target) => Some(2),
            (_, Victim::Controller | Victim::Client) => None,
        }
    }

    /// Blocks of the servers, in the order in which they are started. A block leaves for the last one,
    /// which is the emptiest, while another store lies on the one before it.
    fn sizes(&self) -> [u64; 3] {
        let [a, b, c] = BLOCKS;
        if self.act == Act::Leave { [a, c, b] } else { [a, b, c] }
    }

    fn of(&self, victim: bool) -> &'static str {
        if victim { self.at } else { "" }
    }
}

/// Runs a cell; answers its outcome. Panics when the promised outcome does not hold.
pub fn run(cell: &Cell) -> &'static str {
    let mut story = Story::begin(*cell);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let fill = Fill::new(story.open().unwrap());
    let ((fill, failed), written, lives) = std::thread::scope(|threads| {
        let _stop = Stop(&stop);
        story.run(threads, fill, &stop, &done)
    });
    match lives {
        true if cell.promise == Promise::Serves => story.serves(&fill),
        true => story.lives(&fill, failed, written),
        false => story.lost(failed, written),
    }
}

impl Story {
    /// A cluster with a store that is about to move.
    fn begin(cell: Cell) -> Story {
        let block_size = if cell.large { 16 * MIB } else { MIB };
        let mut cluster = Cluster::start(block_size, cell.of(cell.victim == Victim::Controller));
        let sizes = cell.sizes();
        cluster.add_server(sizes[0], cell.of(cell.server() == Some(0)));
        let job = cluster.admin().register_job("cell", LEASE_MS, 0).unwrap();
        let client = match cell.promise {
            // Requests that cannot be served must fail soon.
            Promise::Serves => cluster.client_for(&job.token, Duration::from_secs(1)),
            _ => cluster.client(&job.token),
        };
        let kv = create(&client, job.job, "t");
        let leaves = cell.act == Act::Leave;
        let early = !leaves && cell.server() != Some(0);
        let mut early = early.then(|| create(&client, job.job, "bystander"));
        for i in [1, 2] {
            cluster.add_server(sizes[i], cell.of(cell.server() == Some(i)));
            if leaves {
                early.get_or_insert_with(|| create(&client, job.job, "bystander"));
            }
        }
        let bystander = early.unwrap_or_else(|| create(&client, job.job, "bystander"));
        for n in 0..50u64 {
            let key = n.to_le_bytes();
            bystander.put(&key, &value(&key, n, 500)).unwrap();
        }
        let address = cell.server().map_or("", |i| cluster.servers[i].address()).to_owned();
        let (retries, process) = (None, None);
        let (emptied, others) = ((0, 0), 0);
        let mut story = Story {
            cell,
            cluster,
            client,
            job,
            kv,
            bystander,
            retries,
            process,
            address,
            emptied,
            others,
        };
        if cell.retry {
            let (map, grant) = story.map();
            story.retries = Some(Retries::begin(&story.job.token, &map, &grant));
        }
        story
    }

    fn map(&self) -> (honeycomb_wire::messages::PartitionMap, Vec<u8>) {
        look_up(self.cluster.address(), &self.job.token, self.job.job, "t")
    }

    fn open(&self) -> Result<Kv, Error> {
        self.client.open_kv(self.job.job, "t")
    }

    fn blocks(&self) -> usize {
        self.open().unwrap().structure().blocks()
    }

    /// A merge begins with a store of two blocks, one on each of the first two servers.
    fn divide(&mut self, fill: &mut Fill) {
        let clock = Clock::start();
        while self.blocks() < 2 {
            fill.put().unwrap();
            // A block that fills fast divides early, and the halves, which are light then, become
            // one again when it has filled no further for half a second.
            if fill.bytes() > self.cluster.block_size as usize / 2 {
                clock.sleep_until(clock.now() + Duration::from_millis(2));
            }
        }
        let (map, _) = self.map();
        for (entry, server) in map.entries.iter().zip(&self.cluster.servers) {
            assert_eq!(entry.address, server.address(), "where the blocks are");
        }
        let half = if self.cell.act == Act::MergeUp { &map.entries[0] } else { &map.entries[1] };
        self.emptied = (half.start, half.end);
        // One that never held more than the low mark (40 %) would stay as it is when it is emptied;
        // and the other shall hold more all the time, or it would be the one that gives, but so
        // little that it takes what is left of the first (80 % together).
        let wanted = self.cluster.block_size as usize * 42 / 100;
        for half in &map.entries {
            while fill.bytes_within((half.start, half.end)) < wanted {
                fill.put_within((half.start, half.end)).unwrap();
            }
        }
        let blocks = self.blocks();
        assert_eq!(blocks, 2, "{} bytes are no more than two blocks hold", fill.bytes());
    }

    /// Brings the store to the crash and beyond; returns the written data, and whether the store lives.
    fn run<'s, 'e: 's>(
        &mut self,
        threads: &'s Scope<'s, 'e>,
        mut fill: Fill,
        stop: &'e AtomicBool,
        done: &'e AtomicU64,
    ) -> (Ended<Fill>, Vec<Ended<u64>>, bool) {
        match self.cell.act {
            Act::Split => {}
            Act::Leave => {
                while fill.bytes() < self.cluster.block_size as usize / 3 {
                    fill.put().unwrap();
                }
            }
            Act::MergeDown | Act::MergeUp => self.divide(&mut fill),
        }
        let writers: Vec<ScopedJoinHandle<'_, Ended<u64>>> = (0..WRITERS)
            .map(|writer| {
                let kv = self.open().unwrap();
                threads.spawn(move || write(&kv, writer, stop, done))
            })
            .collect();
        if self.cell.victim == Victim::Client {
            fill = self.client(fill);
        }
        let filling = self.fill(threads, fill, stop);
        if self.cell.act == Act::Leave {
            let drained = self.drain();
            assert!(drained || self.cell.victim == Victim::Controller, "it is drained");
        }
        eventually("the victim dies", || self.died());
        let died_at = done.load(Relaxed);
        if self.cell.restart {
            self.restart();
            if (self.cell.act, self.cell.victim) == (Act::Leave, Victim::Controller) {
                // The controller may not have received the request, or may have lost it with its answer.
                eventually("the server is drained", || self.drain());
            }
        }
        let lives = self.outcome();
        match (lives, self.cell.promise) {
            (true, Promise::Serves) => {}
            (true, _) => {
                eventually("writers go on", || done.load(Relaxed) > died_at + ROUNDS);
                match self.cell.act {
                    Act::Split => eventually("the store divides", || self.blocks() >= 3),
                    Act::Leave => eventually("the store has left", || self.has_left()),
                    _ => eventually("the store is one block again", || self.blocks() == 1),
                }
            }
            (false, _) => {
                eventually("writers hear of the loss", || writers.iter().all(|w| w.is_finished()));
            }
        }
        stop.store(true, Relaxed);
        let filled = filling.join().unwrap();
        (filled, writers.into_iter().map(|writer| writer.join().unwrap()).collect(), lives)
    }

    /// Fills the store so that it divides, or empties one of its blocks.
    fn fill<'s, 'e: 's>(
        &self,
        threads: &'s Scope<'s, 'e>,
        mut fill: Fill,
        stop: &'e AtomicBool,
    ) -> ScopedJoinHandle<'s, Ended<Fill>> {
        let (most, emptied) = (5 * self.cluster.block_size as usize, self.emptied);
        let (act, some) = (self.cell.act, self.cluster.block_size as usize / 2);
        threads.spawn(move || {
            let clock = Clock::start();
            while !stop.load(Relaxed) {
                let result = match act {
                    Act::Split if fill.bytes() < most => fill.put(),
                    Act::Leave if fill.bytes() < some => fill.put(),
                    Act::Split | Act::Leave => Ok(()),
                    Act::MergeDown | Act::MergeUp => fill.delete_within(emptied),
                };
                if let Err(error) = result {
                    return (fill, Some(error));
                }
                // Beside others on two cores: as fast as it can would be no test of writers.
                clock.sleep_until(clock.now() + Duration::from_micros(200));
            }
            (fill, None)
        })
    }

    /// Lets a client process fill the store until it dies, then continues its work.
    fn client(&mut self, fill: Fill) -> Fill {
        let told = [
            ("CRASH_CELLS_TOKEN", hex(&self.job.token)),
            ("CRASH_CELLS_JOB", self.job.job.0.to_string()),
        ];
        let args = ["--exact", "crash_cells::client_that_dies", "--ignored", "--nocapture"];
        let (process, out) = self.cluster.client_process(&args, &told, self.cell.at);
        self.process = Some(process);
        let (puts, adds) = acknowledged(out);
        eventually("the client dies", || self.died());
        // An unacknowledged addition was applied once, or not at all.
        let sum = self.kv.add(VICTIM_SUM, 0).unwrap() as u64;
        assert!([adds, adds + 1].contains(&sum), "{adds} additions were acknowledged, {sum} done");
        self.others = 1;
        fill.resume(puts).expect("what was acknowledged is there")
    }

    /// Takes the first server out; whether that is known, or it has gone.
    fn drain(&self) -> bool {
        let address = self.cluster.servers[0].address();
        // A controller that dies of it answers nothing.
        let admin = self.cluster.admin_for(Duration::from_secs(1));
        match admin.drain_server(address, false) {
            Ok(()) => true,
            Err(e) => e.status == Status::NotFound,
        }
    }

    /// Whether nothing of the store is on the first server, and that one has ended.
    fn has_left(&mut self) -> bool {
        let first = self.cluster.servers[0].address().to_owned();
        let left = self.map().0.entries.iter().all(|entry| entry.address != first);
        left && !self.cluster.servers[0].process.runs()
    }

    fn died(&mut self) -> bool {
        match (self.cell.server(), &mut self.process) {
            (Some(server), _) => self.cluster.servers[server].process.died(),
            (None, Some(process)) => process.died(),
            (None, None) => self.cluster.controller.process.died(),
        }
    }

    fn restart(&mut self) {
        match self.cell.server() {
            Some(server) => self.cluster.add_server(self.cell.sizes()[server], ""),
            None => self.cluster.restart_controller(),
        }
    }

    /// Whether the store lives, according to the controller after it has noticed the death.
    fn outcome(&mut self) -> bool {
        if self.cell.promise == Promise::Serves {
            return true;
        }
        let admin = self.cluster.admin();
        // A drained server leaves the list while its process still runs, so it is not compared.
        let first = self.cluster.servers[0].address().to_owned();
        let leaves = self.cell.act == Act::Leave && self.address != first;
        let compared = |address: &String| !leaves || *address != first;
        eventually("the controller knows which servers run", || {
            let servers = admin.status().unwrap().servers;
            // A suspected server is not known to be gone.
            let there = |server: &ServerInfo| server.alive || server.silent_ms > 0;
            let there = servers.into_iter().filter(there).map(|server| server.address);
            let there: BTreeSet<String> = there.filter(compared).collect();
            there == self.cluster.running().into_iter().filter(compared).collect()
        });
        let cell = self.cell;
        let lost = self.open().err();
        assert!(lost.as_ref().is_none_or(|e| e.status == Status::DataLost), "{cell}: {lost:?}");
        let lives = lost.is_none();
        match cell.promise {
            Promise::Lives => assert!(lives, "{cell}: the store is lost: {lost:?}"),
            Promise::Lost => assert!(!lives, "{cell}: it has lost a server with data and lives"),
            Promise::Either | Promise::Serves => {}
        }
        lives
    }

    /// No writer got an error, all acknowledged data exists, and all blocks can be freed.
    fn lives(
        mut self,
        fill: &Fill,
        failed: Option<Error>,
        written: Vec<Ended<u64>>,
    ) -> &'static str {
        assert_eq!(failed, None, "filling failed");
        let mut expected = Written::default();
        for (rounds, error) in written {
            assert_eq!(error, None, "a writer failed after {rounds} rounds");
            expected.push(rounds);
        }
        // By a map from before the move, and by a new one.
        for kv in [&self.kv, &self.open().unwrap()] {
            expected.check(kv);
        }
        fill.check();
        let mut keys = fill.entries.len() + expected.keys() + self.others;
        if let Some(retries) = &self.retries {
            let (map, grant) = self.map();
            retries.again(&map, &grant);
            keys += retries.keys();
        }
        assert_eq!(self.kv.length().unwrap() as usize, keys, "entries");
        assert_eq!(scan(&self.kv), keys, "entries of a scan");
        self.rest();
        "lives"
    }

    /// Every client gets the loss with its place; nothing else is lost.
    fn lost(mut self, failed: Option<Error>, written: Vec<Ended<u64>>) -> &'static str {
        let errors = written.into_iter().map(|(_, error)| error.expect("it ended by itself"));
        for error in errors.chain(failed).chain(self.open().err()) {
            assert_eq!(error.status, Status::DataLost, "{error}");
            assert!(error.message.contains(&self.address), "no {}: {error}", self.address);
        }
        self.rest();
        "lost"
    }

    /// No block can move any more, and the data at rest can be read.
    fn serves(mut self, fill: &Fill) -> &'static str {
        let mut out = Vec::new();
        let mut away = 0;
        for (key, &length) in &fill.entries {
            // Only the upper half can be on its way.
            let moves = key_hash(key) > u64::MAX / 4;
            if moves && away > 0 {
                continue;
            }
            match self.kv.get(key, &mut out) {
                Ok(found) => assert!(found && out == value(key, 0, length), "an entry is lost"),
                Err(e) if moves => {
                    let known = [Status::Busy, Status::DeadlineExceeded, Status::Unavailable];
                    assert!(known.contains(&e.status), "{e}");
                    away += 1;
                }
                Err(e) => panic!("what does not move is not served: {e}"),
            }
        }
        assert_eq!(self.cluster.running().len(), BLOCKS.len(), "servers go on");
        if away > 0 { "serves; the range waits" } else { "serves" }
    }

    /// Data that is unrelated to the crash is unchanged, and all blocks are free in the end.
    fn rest(&mut self) {
        let mut out = Vec::new();
        for n in 0..50u64 {
            let key = n.to_le_bytes();
            assert!(self.bystander.get(&key, &mut out).unwrap());
            assert_eq!(out, value(&key, n, 500), "another store");
        }
        self.client.remove_prefix(self.job.job, "t").unwrap();
        let again = create(&self.client, self.job.job, "t");
        again.put(b"a", b"b").unwrap();
        self.client.deregister_job(self.job.job).unwrap();
        let admin = self.cluster.admin();
        eventually("all blocks are free", || {
            let status = admin.status().unwrap();
            let there = status.servers.iter().filter(|server| server.alive).count();
            let running = self.cluster.running().len();
            (status.free, status.quarantined, there) == (status.blocks, 0, running)
        });
    }
}

fn create(client: &Client, job: JobId, path: &str) -> Kv {
    let options = PrefixOptions { lease_ms: LEASE_MS, ..PrefixOptions::default() };
    client.create_prefix(job, path, &[], options).unwrap();
    client.create_kv(job, path, 1, false).unwrap()
}

/// The client of a cell in a separate process: it prints acknowledged operations until it dies.
pub fn victim() {
    let told = |name: &str| std::env::var(format!("CRASH_CELLS_{name}")).expect("a cell tells it");
    let client = client(&told("CONTROLLER"), &unhex(&told("TOKEN")));
    let kv = client.open_kv(JobId(told("JOB").parse().unwrap()), "t").unwrap();
    let mut fill = Fill::new(kv);
    for n in 1.. {
        fill.put().unwrap();
        println!("acknowledged put {n}");
        fill.kv.add(VICTIM_SUM, 1).unwrap();
        println!("acknowledged add {n}");
    }
}

/// Reads the output of a client process until its end: entries put, and additions.
fn acknowledged(out: ChildStdout) -> (u64, u64) {
    let (mut puts, mut adds) = (0, 0);
    for line in BufReader::new(out).lines() {
        let line = line.unwrap();
        let number = |what| line.strip_prefix(what).map(|n: &str| n.parse::<u64>().unwrap());
        puts = number("acknowledged put ").unwrap_or(puts);
        adds = number("acknowledged add ").unwrap_or(adds);
    }
    (puts, adds)
}
