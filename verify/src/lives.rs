//! Lives of a job: three processes with handles of one job, which expires, is reopened,
//! re-registered and adopted. A plain model predicts whose handle is served (INV-55).
//!
//! It needs no server and no network, so it has its own catalog and its own stream of random
//! numbers: the rest of a seed's run is the same as without the scene.

use honeycomb_catalog::{
    Actor, Catalog, CatalogError, Claim, Command, Config, PrefixOptions, Reply,
};
use honeycomb_env::Entropy;
use honeycomb_types::{JobId, PrefixId, Time};
use std::time::Duration;

const LEASE_MS: u32 = 1000;
const STEPS: u64 = 60;
/// One seed in this many has the scene.
const EVERY: u64 = 4;

/// A process's knowledge of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Handle {
    job: JobId,
    root: PrefixId,
}

struct Scene {
    catalog: Catalog,
    now: Time,
    /// The life that is served.
    current: Handle,
    renewed: Time,
    handles: [Handle; 3],
}

/// Plays the scene, if this seed has it; `Err` describes the violation.
pub fn play(seed: u64) -> Result<(), String> {
    let mut rng = Entropy::seeded(seed ^ 0x6c69_7665_735f_6f66);
    if rng.below(EVERY) != 0 {
        return Ok(());
    }
    let now = Time::from_millis(1000);
    let mut catalog = Catalog::new(Config { lease_ms: LEASE_MS, ..Config::default() });
    let claim = claim(1, None, false);
    let first = register(&mut catalog, now, claim).map_err(|e| e.to_string())?;
    let mut scene = Scene { catalog, now, current: first, renewed: now, handles: [first; 3] };
    for _ in 0..STEPS {
        scene.step(&mut rng)?;
    }
    Ok(())
}

fn claim(process: u32, over: Option<JobId>, adopt: bool) -> Claim<'static> {
    Claim { host: "node", scope: 1, process, started: 1, over, adopt }
}

fn register(catalog: &mut Catalog, now: Time, claim: Claim<'_>) -> Result<Handle, CatalogError> {
    let (actor, hints) = (Actor::CLUSTER, Default::default());
    let (name, lease_ms, quota_blocks) = ("lives", 0, 0);
    let register = Command::RegisterJob { actor, name, lease_ms, quota_blocks, hints, claim };
    ticket(catalog.apply(now, register, &mut Vec::new()))
}

fn ticket(reply: Result<Reply, CatalogError>) -> Result<Handle, CatalogError> {
    match reply? {
        Reply::Job { job, root, .. } => Ok(Handle { job, root }),
        other => panic!("a registration was answered {other:?}"),
    }
}

impl Scene {
    fn run(&mut self, command: Command<'_>) -> Result<Reply, CatalogError> {
        self.catalog.apply(self.now, command, &mut Vec::new())
    }

    /// Whether the job lives. Its lease ends in a tick, and every pause has one.
    fn lives(&self) -> bool {
        self.now.since(self.renewed) < Duration::from_millis(LEASE_MS.into())
    }

    fn step(&mut self, rng: &mut Entropy) -> Result<(), String> {
        let who = rng.below(3) as usize;
        match rng.below(10) {
            0..3 => {
                self.now = self.now + Duration::from_millis(1 + rng.below(1200));
                self.run(Command::Tick).map(drop).map_err(|e| e.to_string())
            }
            3..6 => self.request(who, true),
            6..8 => self.request(who, false),
            8 => self.reopen(who),
            _ => self.replace(who, rng.below(2) == 0, rng.below(2) == 0),
        }
    }

    /// Sends a renewal, or creates a prefix.
    fn request(&mut self, who: usize, renews: bool) -> Result<(), String> {
        let Handle { job, root } = self.handles[who];
        let actor = Actor { life: Some(root), ..Actor::driver(job) };
        let served = match renews {
            true => match self.run(Command::RenewLeases { actor, job, paths: &[""] }) {
                Ok(Reply::Renewed(results)) => results[0].is_ok(),
                _ => false,
            },
            false => {
                let (path, parents, options) = ("d", &[][..], PrefixOptions::default());
                let made = self.run(Command::CreatePrefix { actor, job, path, parents, options });
                match made {
                    Err(CatalogError::PrefixExists { .. }) => return Ok(()),
                    made => made.is_ok(),
                }
            }
        };
        if served != (self.handles[who] == self.current && self.lives()) {
            let (handle, current) = (self.handles[who], self.current);
            return Err(format!(
                "INV-55: a request of {handle:?} was {}; {current:?} is the life of the job",
                if served { "served" } else { "refused" }
            ));
        }
        self.renewed = if served { self.now } else { self.renewed };
        Ok(())
    }

    fn reopen(&mut self, who: usize) -> Result<(), String> {
        let (actor, lived) = (Actor::CLUSTER, self.lives());
        let (job, parents, options) = (self.current.job, &[][..], PrefixOptions::default());
        let made = self.run(Command::CreatePrefix { actor, job, path: "", parents, options });
        let found = ticket(self.run(Command::FindJob { actor, name: "lives" }));
        let found = found.map_err(|e| e.to_string())?;
        if made.is_ok() == lived || (found == self.current) != lived {
            return Err(format!("INV-55: reopening a job that lives ({lived}) was {made:?}"));
        }
        self.handles[who] = found;
        self.begun(found);
        Ok(())
    }

    fn replace(&mut self, who: usize, over: bool, adopt: bool) -> Result<(), String> {
        let over = over.then_some(self.handles[who].job);
        let allowed = !self.lives() || over == Some(self.current.job);
        let adopts = self.lives() && adopt;
        let claim = claim(who as u32 + 1, over, adopt);
        match register(&mut self.catalog, self.now, claim) {
            Ok(handle) if allowed && adopts == (handle == self.current) => {
                self.handles[who] = handle;
                self.begun(handle);
                Ok(())
            }
            Err(CatalogError::JobExists { .. }) if !allowed => Ok(()),
            told => Err(format!("INV-55: {claim:?} was answered {told:?}")),
        }
    }

    fn begun(&mut self, handle: Handle) {
        if handle != self.current {
            (self.current, self.renewed) = (handle, self.now);
        }
    }
}
