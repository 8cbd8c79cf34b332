//! A run: clients are started, killed and restarted, and at the end all logs are judged.

use crate::processes::{Cluster, Servers};
use crate::queue::check::{Consumer, Life, Rules, Summary, check};
use crate::queue::log::{self, Record};
use crate::queue::plan::{Plan, QUEUE, Role};
use honeycomb_client::{Client, Queue};
use honeycomb_env::{Clock, Entropy};
use honeycomb_types::Time;
use honeycomb_wire::messages::{ClusterStatusReply, PrefixOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Longer than any run.
const LEASE_MS: u32 = 24 * 3600 * 1000;
/// How long the release of blocks may take after the queue is removed.
const FREEING: Duration = Duration::from_secs(30);

/// The parameters of a run.
pub struct Settings {
    pub seed: u64,
    pub items: u64,
    pub kills: u64,
    pub clients: u64,
    pub servers: usize,
    pub memory: u64,
    pub block_size: u64,
    pub max_items: u64,
    pub batch: u64,
    pub reservation: Duration,
    pub limit: Duration,
    pub program: PathBuf,
    pub dir: PathBuf,
}

/// The results of a run.
pub struct Report {
    pub summary: Summary,
    pub producers_killed: u64,
    pub takers_killed: u64,
    pub reservers_killed: u64,
    /// Most blocks that were in use at the times of the checks.
    pub blocks_most: u64,
    /// From the start of the clients until the last consumer had finished.
    pub time: Duration,
}

enum Event {
    /// A consumer has seen more items.
    Seen(u64),
    /// A client's output has ended.
    Ended { slot: usize, incarnation: usize },
}

/// A client with all its incarnations.
struct Slot {
    role: Role,
    number: u64,
    /// Whether each incarnation so far was killed.
    killed: Vec<bool>,
    child: Option<Child>,
    /// The next item of a producer.
    next: u64,
}

struct Run<'a> {
    settings: &'a Settings,
    cluster: Cluster,
    queue: Queue,
    admin: Client,
    slots: Vec<Slot>,
    send: Sender<Event>,
    events: Receiver<Event>,
    draw: Entropy,
    seen: u64,
    /// Numbers of seen items at which a client is killed, the last first.
    kills_at: Vec<u64>,
    blocks_most: u64,
    clock: Clock,
    until: Time,
}

/// Runs it.
pub fn run(settings: &Settings) -> Result<Report, String> {
    let said = |e: honeycomb_client::Error| e.to_string();
    let Settings { program, dir, .. } = settings;
    let servers = Servers {
        count: settings.servers,
        memory: settings.memory,
        block_size: settings.block_size,
    };
    let cluster = Cluster::start(program, dir, None, servers)?;
    let admin = cluster.client();
    let ticket = admin.register_job("soak", LEASE_MS, 0).map_err(said)?;
    let mut plan = Plan {
        address: cluster.address.clone(),
        token: ticket.token,
        job: ticket.job,
        rules: Rules {
            seed: settings.seed,
            each: settings.items / settings.clients,
            limit: 0,
            batch: settings.batch,
            reservation: settings.reservation.as_nanos() as u64,
        },
    };
    let client = plan.client();
    let options = PrefixOptions { lease_ms: LEASE_MS, ..PrefixOptions::default() };
    client.create_prefix(ticket.job, QUEUE, &[], options).map_err(said)?;
    let queue = client.create_queue(ticket.job, QUEUE, settings.max_items, 0, false);
    let queue = queue.map_err(said)?;
    plan.rules.limit = queue.item_limit();
    plan.write(dir)?;
    let clock = Clock::start();
    let (send, events) = channel();
    let mut run = Run {
        settings,
        cluster,
        queue,
        admin,
        slots: slots(settings.clients),
        send,
        events,
        draw: Entropy::seeded(settings.seed),
        seen: 0,
        kills_at: Vec::new(),
        blocks_most: 0,
        clock,
        until: clock.now() + settings.limit,
    };
    let worked = run.work();
    let time = clock.now().since(Time::ZERO);
    run.end_clients();
    worked?;
    let summary = run.judge(&plan.rules)?;
    run.clean_up(&client, &plan)?;
    let killed = |role| {
        let slots = run.slots.iter().filter(|slot| slot.role == role);
        slots.flat_map(|slot| &slot.killed).filter(|killed| **killed).count() as u64
    };
    Ok(Report {
        summary,
        producers_killed: killed(Role::Producer),
        takers_killed: killed(Role::Taker),
        reservers_killed: killed(Role::Reserver),
        blocks_most: run.blocks_most,
        time,
    })
}

/// Equal numbers of producers and consumers; half of the consumers take, half reserve.
fn slots(clients: u64) -> Vec<Slot> {
    let producers = (0..clients).map(|number| (Role::Producer, number));
    let consumers = (0..clients).map(|number| {
        let role = if number % 2 == 0 { Role::Taker } else { Role::Reserver };
        (role, number)
    });
    let slot = |(role, number)| Slot { role, number, killed: Vec::new(), child: None, next: 0 };
    producers.chain(consumers).map(slot).collect()
}

impl Run<'_> {
    /// Runs until all items were put and taken.
    fn work(&mut self) -> Result<(), String> {
        let items = self.settings.items;
        let drawn = (0..self.settings.kills).map(|_| items / 50 + self.draw.below(items * 24 / 25));
        self.kills_at = drawn.collect();
        self.kills_at.sort_unstable_by(|a, b| b.cmp(a));
        for slot in 0..self.slots.len() {
            self.start(slot)?;
        }
        let mut closed = false;
        while self.slots.iter().any(|slot| slot.child.is_some()) {
            match self.next_event()? {
                Event::Seen(items) => {
                    self.seen += items;
                    while self.kills_at.last().is_some_and(|at| *at <= self.seen) {
                        self.kills_at.pop();
                        self.kill_somebody()?;
                    }
                }
                Event::Ended { slot, incarnation } => self.ended(slot, incarnation)?,
            }
            let mut producers = self.slots.iter().filter(|slot| slot.role == Role::Producer);
            if !closed && producers.all(|slot| slot.child.is_none()) {
                closed = true;
                self.queue.close().map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    }

    fn next_event(&mut self) -> Result<Event, String> {
        let left = self.until.since(self.clock.now());
        self.events.recv_timeout(left).map_err(|e| match e {
            RecvTimeoutError::Timeout => {
                let counts = self.queue.counts();
                let running = self.slots.iter().filter(|slot| slot.child.is_some());
                let names: Vec<String> =
                    running.map(|slot| format!("{:?} {}", slot.role, slot.number)).collect();
                format!(
                    "not finished after {:?}: {} items seen, {} still run, the queue has \
                        {counts:?}",
                    self.settings.limit,
                    self.seen,
                    names.join(", ")
                )
            }
            RecvTimeoutError::Disconnected => "no client tells anything".to_owned(),
        })
    }

    fn start(&mut self, index: usize) -> Result<(), String> {
        let slot = &mut self.slots[index];
        let incarnation = slot.killed.len();
        let role = match slot.role {
            Role::Producer => "producer",
            Role::Taker => "taker",
            Role::Reserver => "reserver",
        };
        let own = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut command = Command::new(own);
        command.arg("live").arg(&self.settings.dir).arg(role);
        command.args([slot.number, incarnation as u64, slot.next].map(|n| n.to_string()));
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|e| format!("cannot start a client: {e}"))?;
        let out = child.stdout.take().expect("piped");
        slot.child = Some(child);
        let send = self.send.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines() {
                let Some(items) = line.ok().and_then(|line| line.parse().ok()) else { break };
                // After the end of the run the channel has no receiver.
                let _ = send.send(Event::Seen(items));
            }
            let _ = send.send(Event::Ended { slot: index, incarnation });
        });
        Ok(())
    }

    fn kill_somebody(&mut self) -> Result<(), String> {
        self.look()?;
        let running: Vec<usize> =
            (0..self.slots.len()).filter(|slot| self.slots[*slot].child.is_some()).collect();
        if running.is_empty() {
            return Ok(());
        }
        let victim = running[self.draw.below(running.len() as u64) as usize];
        let child = self.slots[victim].child.as_mut().expect("the child runs");
        child.kill().map_err(|e| format!("cannot kill a client: {e}"))?;
        self.ended(victim, self.slots[victim].killed.len())
    }

    /// A client has ended or is about to. A killed one is restarted.
    fn ended(&mut self, index: usize, incarnation: usize) -> Result<(), String> {
        let slot = &mut self.slots[index];
        if slot.killed.len() != incarnation {
            return Ok(());
        }
        let Some(mut child) = slot.child.take() else { return Ok(()) };
        let status = child.wait().map_err(|e| e.to_string())?;
        if status.success() {
            slot.killed.push(false);
            return Ok(());
        }
        if status.signal() != Some(9) {
            let (role, number) = (slot.role, slot.number);
            return Err(format!("{role:?} {number}.{incarnation} ended with {status}"));
        }
        slot.killed.push(true);
        let path = Plan::log(&self.settings.dir, slot.role, slot.number, incarnation as u64);
        for record in log::read(&path)? {
            if let Record::Put { first, items } = record {
                slot.next = first + items as u64;
            }
        }
        self.start(index)
    }

    /// Checks that every process of the cluster is running, and reads the use of blocks.
    fn look(&mut self) -> Result<ClusterStatusReply, String> {
        self.cluster.check_alive()?;
        let status = self.admin.status().map_err(|e| e.to_string())?;
        let alive = status.servers.iter().filter(|server| server.alive).count();
        if alive != self.settings.servers || status.servers.len() != alive {
            return Err(format!("{alive} of {} servers are alive", self.settings.servers));
        }
        self.blocks_most = self.blocks_most.max(status.blocks - status.free);
        Ok(status)
    }

    fn end_clients(&mut self) {
        for child in self.slots.iter_mut().filter_map(|slot| slot.child.as_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn lives(&self, slot: &Slot) -> Result<Vec<Life>, String> {
        let read = |(incarnation, killed): (usize, &bool)| {
            let dir: &Path = &self.settings.dir;
            let path = Plan::log(dir, slot.role, slot.number, incarnation as u64);
            Ok(Life { records: log::read(&path)?, killed: *killed })
        };
        slot.killed.iter().enumerate().map(read).collect()
    }

    fn judge(&self, rules: &Rules) -> Result<Summary, String> {
        let (mut producers, mut consumers) = (Vec::new(), Vec::new());
        for slot in &self.slots {
            let lives = self.lives(slot)?;
            match slot.role {
                Role::Producer => producers.push(lives),
                role => consumers.push(Consumer { takes: role == Role::Taker, lives }),
            }
        }
        check(*rules, &producers, &consumers).map_err(|wrong| wrong.join("\n"))
    }

    /// The queue is closed and empty; after its removal every block is free.
    fn clean_up(&mut self, client: &Client, plan: &Plan) -> Result<(), String> {
        let said = |e: honeycomb_client::Error| e.to_string();
        let counts = self.queue.counts().map_err(said)?;
        if !counts.closed || (counts.items, counts.bytes, counts.reserved) != (0, 0, 0) {
            return Err(format!("the queue was drained and closed, and has {counts:?}"));
        }
        client.remove_structure(plan.job, QUEUE).map_err(said)?;
        let until = self.clock.now() + FREEING;
        loop {
            let status = self.look()?;
            if status.free == status.blocks && status.quarantined == 0 {
                return Ok(());
            }
            if self.clock.now() > until {
                let (free, blocks) = (status.free, status.blocks);
                return Err(format!("the queue is gone, and {free} of {blocks} blocks are free"));
            }
            self.clock.sleep_until(self.clock.now() + Duration::from_millis(10));
        }
    }
}
