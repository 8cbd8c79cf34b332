//! Memory and requests of a cluster over time, while a load runs on it.

use super::cluster::Cluster;
use honeycomb::failure::{CommandResult, Failure};
use honeycomb_client::Client;
use honeycomb_env::Clock;
use honeycomb_types::Time;
use honeycomb_wire::messages::ClusterStatusReply;
use honeycomb_workload::{
    Counters, Demand, LoadError, Plan, Tenant, carry_out, resident, resident_walked,
};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Interval of samples.
const EVERY: Duration = Duration::from_millis(20);
/// Samples between two comparisons of the kernel's counter with its page-by-page count.
const WALK_EVERY: u32 = 50;

/// One sample.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Seconds since the start.
    pub seconds: f64,
    /// Bytes that the load demands.
    pub demand: f64,
    /// Bytes that the tasks have written and still use.
    pub used: f64,
    /// Bytes that tasks no longer use, but whose leases have not expired.
    pub lapsing: f64,
    /// Bytes of the structures' blocks.
    pub allocated: f64,
    /// Resident bytes of the process: pages behind blocks, and its own anonymous memory.
    pub resident: f64,
    /// Number of structures.
    pub structures: f64,
}

/// Requests to the controller.
#[derive(Clone, Copy, Debug, Default)]
pub struct Control {
    /// All requests.
    pub all: u64,
    /// Renewals of leases.
    pub leases: u64,
    /// Requests of servers about their blocks.
    pub blocks: u64,
    /// Heartbeats of servers.
    pub reports: u64,
}

impl Control {
    fn between(before: &ClusterStatusReply, after: &ClusterStatusReply, own: u64) -> Control {
        Control {
            all: after.requests.saturating_sub(before.requests + own),
            leases: after.requests_leases - before.requests_leases,
            blocks: after.requests_blocks - before.requests_blocks,
            reports: after.requests_reports - before.requests_reports,
        }
    }
}

/// The observations of a load.
pub struct Observed {
    /// Samples about 20 ms apart.
    pub samples: Vec<Sample>,
    /// Resident bytes before the first task.
    pub at_rest: u64,
    /// Maximum difference between the kernel's counter and its page-by-page count, in bytes.
    pub counted_apart: u64,
    /// Requests to the controller, without those of the observer.
    pub control: Control,
    /// Seconds of the observation.
    pub seconds: f64,
    /// Counters of the tasks.
    pub counters: Counters,
}

impl Observed {
    /// The integral of a figure over time.
    pub fn integral(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        let pairs = self.samples.windows(2);
        pairs.map(|w| (of(&w[0]) + of(&w[1])) / 2.0 * (w[1].seconds - w[0].seconds)).sum()
    }
}

/// Clients and jobs for the tenants of a demand.
pub fn tenants(cluster: &Cluster, demand: &Demand, name: &str) -> CommandResult<Vec<Tenant>> {
    let tenant = |i: u32| {
        let (client, ticket) = cluster.job(&format!("{name}-{i}"))?;
        Ok(Tenant { client, ticket })
    };
    (0..demand.tenants).map(tenant).collect()
}

/// Runs a demand and samples the cluster meanwhile. It calls `tell` with the progress.
pub fn observe(
    cluster: &Cluster,
    demand: &Demand,
    plan: &Plan,
    tell: &(dyn Fn(&Sample) + Sync),
) -> CommandResult<Observed> {
    let tenants = tenants(cluster, demand, "load")?;
    let admin = cluster.client(cluster.token());
    let mut observed = Observed {
        samples: Vec::new(),
        at_rest: resident_of(cluster)?,
        counted_apart: 0,
        control: Control::default(),
        seconds: 0.0,
        counters: Counters::default(),
    };
    let before = admin.status()?;
    let (stop, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let counters = &observed.counters;
    let (load, look) = std::thread::scope(|scope| {
        let look = Look { cluster, demand, counters, admin: &admin, stop: &stop, done: &done };
        let looking = scope.spawn(move || look.until_done(tell));
        let load = carry_out(demand, plan, &tenants, counters, &stop);
        done.store(true, Relaxed);
        (load, looking.join().expect("looking does not panic"))
    });
    // A failed observer stops the load; its error is the cause and comes first.
    let looked = look?;
    load.map_err(failed)?;
    let after = admin.status()?;
    let own = looked.samples.len() as u64 + 1;
    observed.seconds = looked.samples.last().map_or(0.0, |sample| sample.seconds);
    observed.control = Control::between(&before, &after, own);
    observed.samples = looked.samples;
    observed.counted_apart = looked.counted_apart;
    for tenant in &tenants {
        admin.deregister_job(tenant.ticket.job)?;
    }
    Ok(observed)
}

fn failed(e: LoadError) -> Failure {
    let LoadError { cause, .. } = &e;
    Failure::new(cause.status, e.to_string())
}

/// Resident bytes of a cluster's process.
pub fn resident_of(cluster: &Cluster) -> CommandResult<u64> {
    resident(cluster.pid()).map_err(|e| Failure::io("the memory of the cluster's process", &e))
}

/// Bytes of the structures' blocks, and of blocks that a server has not freed yet.
pub fn allocated(status: &ClusterStatusReply) -> u64 {
    status.bytes_allocated
}

struct Looked {
    samples: Vec<Sample>,
    counted_apart: u64,
}

struct Look<'a> {
    cluster: &'a Cluster,
    demand: &'a Demand,
    counters: &'a Counters,
    admin: &'a Client,
    stop: &'a AtomicBool,
    done: &'a AtomicBool,
}

impl Look<'_> {
    fn until_done(&self, tell: &(dyn Fn(&Sample) + Sync)) -> CommandResult<Looked> {
        let result = self.look(tell);
        if result.is_err() {
            self.stop.store(true, Relaxed);
        }
        result
    }

    fn look(&self, tell: &(dyn Fn(&Sample) + Sync)) -> CommandResult<Looked> {
        let clock = Clock::start();
        let mut looked = Looked { samples: Vec::new(), counted_apart: 0 };
        for turn in 0.. {
            let last = self.done.load(Relaxed);
            let sample = self.sample(clock)?;
            tell(&sample);
            looked.samples.push(sample);
            if turn % WALK_EVERY == 0 {
                let apart = self.counted_apart()?;
                looked.counted_apart = looked.counted_apart.max(apart);
            }
            if last {
                break;
            }
            clock.sleep_until(Time::ZERO + EVERY * (turn + 1));
        }
        Ok(looked)
    }

    fn sample(&self, clock: Clock) -> CommandResult<Sample> {
        let status = self.admin.status()?;
        let seconds = clock.now().since(Time::ZERO).as_secs_f64();
        Ok(Sample {
            seconds,
            demand: self.demand.level(seconds),
            used: self.counters.used.load(Relaxed) as f64,
            lapsing: self.counters.lapsing.load(Relaxed) as f64,
            allocated: allocated(&status) as f64,
            resident: resident_of(self.cluster)? as f64,
            structures: self.counters.structures.load(Relaxed) as f64,
        })
    }

    /// The difference between the kernel's two counts, including changes between the two reads.
    fn counted_apart(&self) -> CommandResult<u64> {
        let counted = resident_of(self.cluster)?;
        let walked = resident_walked(self.cluster.pid());
        let walked = walked.map_err(|e| Failure::io("the pages of the cluster's process", &e))?;
        Ok(counted.abs_diff(walked))
    }
}
