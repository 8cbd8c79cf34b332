//! A run: the load, a thread that watches, and the kills.

use crate::processes::{Cluster, Servers};
use honeycomb_client::{Client, ClientOptions};
use honeycomb_env::Clock;
use honeycomb_types::Time;
use honeycomb_wire::messages::ClusterStatusReply;
use honeycomb_workload::{Counters, Demand, Plan, Tenant, carry_out, resident};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Longer than any run.
const LEASE_MS: u32 = 24 * 3600 * 1000;
/// The interval of the checks.
const EVERY: Duration = Duration::from_millis(100);
/// How long a killed controller is down.
const GONE: Duration = Duration::from_millis(500);
/// How long the release of blocks and memory may take after the last lease.
const FREEING: Duration = Duration::from_secs(30);
/// Permitted growth of a server's bookkeeping: connections, lanes, the allocator's leftovers.
const GROWN_MAX: u64 = 16 << 20;

/// The parameters of a run.
pub struct Settings {
    pub program: PathBuf,
    pub dir: PathBuf,
    pub servers: Servers,
    pub demand: Demand,
    pub plan: Plan,
    pub kills: u32,
}

/// The results of a run.
pub struct Report {
    pub tasks: u64,
    pub requests: u64,
    pub written: u64,
    pub repeated: u64,
    pub used_most: u64,
    pub resident_start: u64,
    pub resident_most: u64,
    pub resident_end: u64,
    pub free: u64,
    pub blocks: u64,
    /// From the end of the load until all blocks were free and all memory was returned.
    pub settled: Duration,
}

/// Runs it.
pub fn run(settings: &Settings) -> Result<Report, String> {
    let Settings { program, dir, servers, demand, plan, kills } = settings;
    let data = dir.join("controller");
    let data = (*kills > 0).then_some(data.as_path());
    let cluster = Cluster::start(program, dir, data, *servers)?;
    let admin = cluster.client();
    let tenants = tenants(&cluster, &admin, demand)?;
    let counters = Counters::default();
    let (stop, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let resident_start = resident_of(&cluster)?;
    let mut watch = Watch {
        settings,
        cluster,
        admin,
        counters: &counters,
        clock: Clock::start(),
        killed: 0,
        used_most: 0,
        resident_most: 0,
    };
    let (load, watched) = std::thread::scope(|scope| {
        let (watch, stop, done) = (&mut watch, &stop, &done);
        let watching = scope.spawn(move || {
            let result = watch.until(done);
            stop.store(result.is_err(), Relaxed);
            result
        });
        let load = carry_out(demand, plan, &tenants, &counters, stop);
        done.store(true, Relaxed);
        (load, watching.join().expect("watching does not panic"))
    });
    // If watching failed, the load was stopped.
    watched?;
    load.map_err(|e| e.to_string())?;
    watch.settled(resident_start)
}

fn tenants(cluster: &Cluster, admin: &Client, demand: &Demand) -> Result<Vec<Tenant>, String> {
    let tenant = |i: u32| {
        let ticket = admin.register_job(&format!("job-{i}"), LEASE_MS, 0);
        let ticket = ticket.map_err(|e| e.to_string())?;
        let mut options = ClientOptions::new(&cluster.address, ticket.token.clone());
        // Fifty polling clients would only compete for the cores.
        options.spin = Duration::ZERO;
        Ok(Tenant { client: Client::new(options), ticket })
    };
    (0..demand.tenants).map(tenant).collect()
}

fn resident_of(cluster: &Cluster) -> Result<u64, String> {
    let of = |pid: u32| resident(pid).map_err(|e| format!("the memory of process {pid}: {e}"));
    cluster.server_pids().into_iter().map(of).sum()
}

struct Watch<'a> {
    settings: &'a Settings,
    cluster: Cluster,
    admin: Client,
    counters: &'a Counters,
    clock: Clock,
    killed: u32,
    used_most: u64,
    resident_most: u64,
}

impl Watch<'_> {
    /// Checks, and kills at the planned times, until the load has ended.
    fn until(&mut self, done: &AtomicBool) -> Result<(), String> {
        while !done.load(Relaxed) {
            let turn = self.clock.now();
            let settings = self.settings;
            let part = (self.killed + 1) as f64 / (settings.kills + 1) as f64;
            let at = Time::ZERO + Duration::from_secs_f64(settings.demand.window * part);
            if self.killed < settings.kills && turn >= at {
                self.kill()?;
            }
            self.look()?;
            self.clock.sleep_until(turn + EVERY);
        }
        match self.killed == self.settings.kills {
            true => Ok(()),
            false => Err(format!(
                "the load ended before the controller was killed {} times",
                self.settings.kills
            )),
        }
    }

    fn kill(&mut self) -> Result<(), String> {
        self.cluster.kill_controller()?;
        self.clock.sleep_until(self.clock.now() + GONE);
        self.cluster.restart_controller()?;
        self.killed += 1;
        Ok(())
    }

    /// Checks that every process is running, and reads the use of memory.
    fn look(&mut self) -> Result<ClusterStatusReply, String> {
        self.cluster.check_alive()?;
        self.used_most = self.used_most.max(self.counters.used.load(Relaxed));
        self.resident_most = self.resident_most.max(resident_of(&self.cluster)?);
        self.admin.status().map_err(|e| e.to_string())
    }

    /// Waits until all blocks are free and all memory is returned.
    fn settled(mut self, resident_start: u64) -> Result<Report, String> {
        let ended = self.clock.now();
        loop {
            let status = self.look()?;
            let resident_end = resident_of(&self.cluster)?;
            let free = status.free == status.blocks && status.quarantined == 0;
            let alive = status.servers.iter().filter(|server| server.alive).count();
            let whole = alive == self.settings.servers.count && status.blocks > 0;
            let now = self.clock.now();
            if free && whole && resident_end <= resident_start + GROWN_MAX {
                let of = |count: &std::sync::atomic::AtomicU64| count.load(Relaxed);
                let c = self.counters;
                return Ok(Report {
                    tasks: of(&c.ended),
                    requests: of(&c.requests),
                    written: of(&c.written),
                    repeated: of(&c.repeated),
                    used_most: self.used_most,
                    resident_start,
                    resident_most: self.resident_most,
                    resident_end,
                    free: status.free,
                    blocks: status.blocks,
                    settled: now.since(ended),
                });
            }
            if now > ended + FREEING {
                return Err(format!(
                    "{} s after the last lease {} of {} blocks are free, {} are being given back, \
                     {alive} of {} servers are alive, and {resident_end} bytes are resident where \
                     {resident_start} were at the start",
                    FREEING.as_secs(),
                    status.free,
                    status.blocks,
                    status.quarantined,
                    self.settings.servers.count
                ));
            }
            self.clock.sleep_until(now + Duration::from_millis(10));
        }
    }
}
