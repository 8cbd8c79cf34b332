//! The bills of jobs, against a plain integrator, and over restarts.

use crate::common::{Bench, everything, file, kv};
use honeycomb_catalog::{
    Actor, BillInfo, BlockUsage, CatalogError, Command, Effect, HeldBlock, NewServer, Recovery,
    Reply, Report, Seal, Spent, TierSpent,
};
use honeycomb_types::limits::{BILL_EVERY, BILLS_KEPT};
use honeycomb_types::{
    BlockAt, Generation, JobId, ServerId, StructureId, TierClass, TierIx, TierSpec, Way,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

const BLOCK: u64 = 65_536;

fn bills(
    bench: &mut Bench,
    actor: Actor,
    job: Option<JobId>,
) -> Result<Vec<BillInfo>, CatalogError> {
    match bench.run(Command::JobBills { actor, job })? {
        Reply::Bills(bills) => Ok(bills),
        other => panic!("{other:?}"),
    }
}

fn spent(bench: &mut Bench, job: JobId) -> Spent {
    bills(bench, Actor::CLUSTER, Some(job)).unwrap()[0].spent
}

/// The use of memory alone.
fn in_memory(held: u128, used: u128, peak: u64) -> Spent {
    let mut spent = Spent { peak, ..Spent::default() };
    spent.tiers[0] = TierSpent { held, used, came: 0 };
    spent
}

/// A server reports the data in its blocks; the report also causes due bills to be logged.
fn report(bench: &mut Bench, server: ServerId, used: &[(BlockAt, u64)]) {
    let usage = |&(at, bytes_used): &(BlockAt, u64)| BlockUsage { at, bytes_used };
    let usage: Vec<BlockUsage> = used.iter().map(usage).collect();
    let report = Report { usage: &usage, ..Report::default() };
    bench.run(Command::ServerReport { server, report }).unwrap();
}

#[test]
fn a_job_is_charged_for_its_blocks_and_told_what_of_them_was_data() {
    let mut bench = Bench::new();
    let server = bench.join("a:1", 2, 32);
    let (one, two) = (bench.job_leased("acme/one", 60_000), bench.job_leased("two", 60_000));
    bench.pass(2000);
    report(&mut bench, server, &[]);
    assert_eq!(spent(&mut bench, one), Spent::default());
    let opened = bench.make(one, kv("", "kv", 3)).unwrap();
    bench.run(Command::BlockOpened { server, at: opened.map.entries[0].at }).unwrap();
    bench.pass(1000);
    report(&mut bench, server, &[(opened.map.entries[0].at, 1000)]);
    bench.pass(500);
    let at_first = in_memory(4500 * u128::from(BLOCK), 500_000, 3 * BLOCK);
    assert_eq!(spent(&mut bench, one), at_first);
    // Queries cost nothing, and other jobs are not charged.
    assert_eq!(spent(&mut bench, one), at_first);
    assert_eq!(spent(&mut bench, two), Spent::default());
    let (actor, job, path, name) = (Actor::driver(one), one, "", "kv");
    bench.run(Command::RemoveStructure { actor, job, path, name }).unwrap();
    bench.pass(1000);
    assert_eq!(spent(&mut bench, one), at_first);
    // A job sees only its own bill.
    assert_eq!(bills(&mut bench, Actor::driver(one), None).unwrap().len(), 1);
    let refused = bills(&mut bench, Actor::driver(two), Some(one));
    assert_eq!(refused, Err(CatalogError::UnknownJob { job: one }));
    let all = bills(&mut bench, Actor::CLUSTER, None).unwrap();
    let told: Vec<(&str, u64)> = all.iter().map(|bill| (&*bill.name, bill.age_ms)).collect();
    assert_eq!(told, [("acme/one", 4500), ("two", 4500)]);
}

#[test]
fn what_goes_to_another_server_counts_once() {
    let mut bench = Bench::new();
    bench.join("a:1", 1, 16);
    let job = bench.job_leased("j", 60_000);
    let mut opened = Vec::new();
    for name in ["near", "far"] {
        if name == "far" {
            bench.join("b:1", 1, 64); // the emptiest from here on
        }
        let kv = match name {
            "near" => bench.make(job, kv("", name, 1)).unwrap(),
            _ => opened.pop().unwrap(),
        };
        let (structure, at) = (kv.structure, kv.map.entries[0].at);
        let begin = Command::BeginMove { structure, at, start: 1 << 63, way: Way::Split };
        let begin = match name {
            "near" => begin,
            _ => Command::BeginMove { structure, at, start: 1 << 62, way: Way::Split },
        };
        let Ok(Reply::Moving { id, entry }) = bench.run(begin) else { panic!("{name}") };
        let commit = Command::CommitMove { structure, at, id, target: entry.at, bytes: 5000 };
        for _ in 0..2 {
            bench.run(commit).unwrap();
        }
        let far = entry.at.block.server() != at.block.server();
        assert_eq!((far, spent(&mut bench, job).moved), (name == "far", 5000 * u64::from(far)));
        opened.push(kv);
    }
}

#[test]
fn a_restart_loses_little_of_a_bill_and_adds_nothing() {
    let mut bench = Bench::new();
    let server = bench.join("a:1", 2, 32);
    let job = bench.job_leased("j", 3_600_000);
    bench.make(job, kv("", "kv", 2)).unwrap();
    for n in 0..40u64 {
        bench.pass(1000);
        report(&mut bench, server, &[]);
        let exact = u128::from(2 * BLOCK * 1000 * (n + 1));
        assert_eq!(spent(&mut bench, job).tiers[0].held, exact);
        let mut recovered = bench.recovered();
        let command = Command::JobBills { actor: Actor::CLUSTER, job: Some(job) };
        let later = bench.now + std::time::Duration::ZERO;
        let Ok(Reply::Bills(again)) = recovered.apply(later, command, &mut Vec::new()) else {
            panic!("it is there")
        };
        let lost = exact - again[0].spent.tiers[0].held;
        let most = u128::from(2 * BLOCK) * BILL_EVERY.as_millis();
        assert!(lost <= most, "{lost} of {exact} is lost");
    }
    bench.restart();
    let at_restart = spent(&mut bench, job);
    assert!(at_restart.tiers[0].held > 0);
    bench.pass(250);
    assert_eq!(
        spent(&mut bench, job).tiers[0].held - at_restart.tiers[0].held,
        u128::from(2 * BLOCK * 250)
    );
}

#[test]
fn the_bill_of_a_job_that_ended_is_kept() {
    let mut bench = Bench::new();
    bench.join("a:1", 2, 32);
    let live = bench.job_leased("live", 3_600_000);
    let mut first = None;
    for n in 0..BILLS_KEPT + 3 {
        let job = bench.job_leased(&format!("acme/j{n}"), 60_000);
        first.get_or_insert(job);
        if n + 1 == BILLS_KEPT + 3 {
            bench.make(job, kv("", "kv", 2)).unwrap();
            bench.pass(700);
            let (actor, ended) = (Actor::driver(job), true);
            bench.run(Command::DeregisterJob { actor, job }).unwrap();
            let used = in_memory(u128::from(2 * BLOCK * 700), 0, 2 * BLOCK);
            for _ in 0..2 {
                let bill = bills(&mut bench, Actor::CLUSTER, Some(job)).unwrap().remove(0);
                assert_eq!((bill.spent, bill.ended, bill.age_ms), (used, ended, 700));
                bench.restart();
            }
        } else {
            bench.run(Command::DeregisterJob { actor: Actor::driver(job), job }).unwrap();
        }
    }
    let all = bills(&mut bench, Actor::CLUSTER, None).unwrap();
    assert_eq!(all.len(), BILLS_KEPT + 1);
    assert_eq!((all[0].ended, all[BILLS_KEPT].job), (true, live));
    // The oldest bills are discarded; a job's token never sees those of others.
    assert!(bills(&mut bench, Actor::CLUSTER, first).is_err());
    assert_eq!(bills(&mut bench, Actor::driver(live), None).unwrap().len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Blocks are allocated and freed, and time passes: the bills are the integral, and their sum is that
    /// over all.
    #[test]
    fn bills_are_the_integral_of_what_is_held(
        steps in prop::collection::vec((0..2usize, 0..6u32, 0..3000u64), 1..40),
    ) {
        let mut bench = Bench::new();
        let server = bench.join("a:1", 2, 48);
        let jobs = ["a", "b"].map(|name| bench.job_leased(name, 604_800_000));
        let mut held = [0u64; 2];
        let mut due = [0u128; 2];
        let mut peak = [0u64; 2];
        for (n, (j, blocks, ms)) in steps.into_iter().enumerate() {
            let (job, name) = (jobs[j], format!("s{n}"));
            if blocks == 0 {
                bench.run(Command::RemoveStructure {
                    actor: Actor::driver(job),
                    job,
                    path: "",
                    name: &format!("s{}", n.saturating_sub(1)),
                })
                .ok();
                let status = bench.run(Command::ListJobs { actor: Actor::driver(job) });
                let Ok(Reply::Jobs(info)) = status else { panic!("{status:?}") };
                held[j] = info[0].blocks;
            } else if bench.make(job, kv("", &name, blocks)).is_ok() {
                held[j] += u64::from(blocks);
            }
            bench.pass(ms.min(2000));
            report(&mut bench, server, &[]);
            for j in 0..2 {
                due[j] += u128::from(held[j] * BLOCK * ms.min(2000));
                if ms > 0 {
                    peak[j] = peak[j].max(held[j] * BLOCK);
                }
            }
        }
        for j in 0..2 {
            let told = spent(&mut bench, jobs[j]);
            prop_assert_eq!(told.tiers[0].held, due[j]);
            prop_assert!(told.peak >= peak[j]);
        }
    }
}

const FRAMES: u32 = 12;
const DISK: (TierClass, u32) = (TierClass::Hdd, 16);
const STORE: (TierClass, u32) = (TierClass::Object, 40);
/// Indices of the disk and of the store in a bill.
const HDD: usize = 3;
const OBJECT: usize = 4;

/// Files of two jobs on a server with a disk and a store, which carries out effects when asked.
struct Files {
    bench: Bench,
    server: ServerId,
    jobs: [JobId; 2],
    made: BTreeMap<BlockAt, (usize, StructureId, String, u64)>,
    going: Vec<(BlockAt, TierIx)>,
    due: [Spent; 2],
}

impl Files {
    fn new() -> Files {
        let mut bench = Bench::new();
        let server = bench.join_with_tiers("s1:1", FRAMES, &[DISK, STORE]);
        let jobs = ["a", "b"].map(|name| bench.job_leased(name, 604_800_000));
        let (made, going) = Default::default();
        Files { bench, server, jobs, made, going, due: Default::default() }
    }

    fn take_orders(&mut self) {
        for effect in std::mem::take(&mut self.bench.effects) {
            if let Effect::LowerBlock { at, tier, .. } = effect {
                self.going.push((at, tier));
            }
        }
    }

    fn make(&mut self, j: usize, n: usize) {
        let name = format!("f{n}");
        let made = self.bench.make(self.jobs[j], file("", &name, 1));
        self.take_orders();
        let Ok(made) = made else { return };
        let (structure, at, server) = (made.structure, made.map.entries[0].at, self.server);
        self.made.insert(at, (j, structure, name, 0));
        self.bench.run(Command::BlockOpened { server, at }).unwrap();
        self.take_orders();
        let bytes = 500 * (1 + n as u64);
        self.bench.seal(structure, at, Seal { length: bytes, bytes, last: true }).unwrap();
        self.take_orders();
        report(&mut self.bench, server, &[(at, bytes)]);
        self.take_orders();
        self.made.get_mut(&at).unwrap().3 = bytes;
    }

    fn arrive(&mut self, n: usize) {
        if self.going.is_empty() {
            return;
        }
        let (at, tier) = self.going.swap_remove(n % self.going.len());
        let Some((j, structure, _, bytes)) = self.made.get(&at).cloned() else { return };
        let before = self.place(at);
        self.bench.run(Command::TierChanged { structure, at, tier }).unwrap();
        let after = self.place(at);
        if after != before {
            self.due[j].tiers[after].came += bytes;
        }
        self.take_orders();
    }

    fn remove(&mut self, n: usize) {
        let Some(at) = self.made.keys().nth(n % self.made.len().max(1)).copied() else { return };
        let (j, _, name, _) = self.made.remove(&at).unwrap();
        let job = self.jobs[j];
        let actor = Actor::driver(job);
        self.bench.run(Command::RemoveStructure { actor, job, path: "", name: &name }).unwrap();
        let freed = self.bench.freed();
        self.take_orders();
        self.bench.confirm(&freed);
        self.take_orders();
    }

    fn place(&self, at: BlockAt) -> usize {
        let (tier, _) = self.bench.catalog.tiers_of(at).unwrap();
        [0, HDD, OBJECT][usize::from(tier.0)]
    }

    fn pass(&mut self, ms: u64) {
        for (at, (j, _, _, bytes)) in &self.made {
            let tier = &mut self.due[*j].tiers[self.place(*at)];
            tier.held += u128::from(BLOCK * ms);
            tier.used += u128::from(bytes * ms);
        }
        for j in 0..2 {
            let held = self.made.values().filter(|(of, ..)| *of == j).count() as u64 * BLOCK;
            self.due[j].peak = self.due[j].peak.max(held);
        }
        self.bench.pass(ms);
        self.take_orders();
        report(&mut self.bench, self.server, &[]);
        self.take_orders();
    }

    fn check(&mut self) -> Result<(), String> {
        for j in 0..2 {
            let told = spent(&mut self.bench, self.jobs[j]);
            let due = Spent { peak: told.peak, ..self.due[j] };
            if told != due || told.peak < self.due[j].peak {
                return Err(format!("job {j}: {told:?}, not {:?}", self.due[j]));
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Blocks move to a disk and to a store and time passes: each tier is billed for its blocks, and for
    /// arriving data.
    #[test]
    fn every_tier_is_billed_for_what_lies_there(
        steps in prop::collection::vec((0..8u8, 0..64usize, 0..1500u64), 10..80),
    ) {
        let mut files = Files::new();
        for (n, (what, which, ms)) in steps.into_iter().enumerate() {
            match what {
                0..=3 => files.make(which % 2, n),
                4..=6 => files.arrive(which),
                _ => files.remove(which),
            }
            files.pass(ms);
            if let Err(wrong) = files.check() {
                prop_assert!(false, "{}", wrong);
            }
        }
    }
}

#[test]
fn a_bill_by_tier_outlives_the_controller_and_the_job() {
    let mut files = Files::new();
    for n in 0..10 {
        files.make(0, n);
        files.arrive(n);
        files.pass(100);
    }
    (0..20).for_each(|_| files.pass(1000));
    files.check().unwrap();
    let job = files.jobs[0];
    let before = spent(&mut files.bench, job);
    assert!(before.tiers[0].held > 0 && before.tiers[HDD].held > 0, "{before:?}");
    assert!(before.tiers[HDD].came > 0 && before.tiers[1] == TierSpent::default());
    files.bench.restart();
    // The last logged bill is no more than `BILL_EVERY` old.
    let again = spent(&mut files.bench, job);
    let most = u128::from(BLOCK) * BILL_EVERY.as_millis() * 10;
    for place in [0, HDD] {
        let lost = before.tiers[place].held - again.tiers[place].held;
        assert!(lost <= most && again.tiers[place].held > 0, "{again:?} of {before:?}");
    }
    assert_eq!(again.tiers[HDD].came, before.tiers[HDD].came);

    // The server reports the tiers of its blocks; from then on they cost the price of their tier.
    let held = files.made.iter().map(|(at, (_, structure, _, bytes_used))| HeldBlock {
        at: *at,
        structure: *structure,
        generation: Generation(1),
        bytes_used: *bytes_used,
        sealed: Some(Seal { length: *bytes_used, bytes: *bytes_used, last: true }),
        successor: None,
        taken: (0, 0),
        tiers: (TierIx(1), TierIx(1)),
        capacity: 65_536,
    });
    let held: Vec<HeldBlock> = held.collect();
    let tiers = [DISK, STORE].map(|(class, blocks)| TierSpec { class, blocks });
    let server = files.server;
    let new = NewServer {
        address: "s1:1",
        incarnation: crate::common::incarnation("s1:1"),
        shards: 1,
        blocks_per_shard: FRAMES,
        tiers: &tiers,
        block_size: BLOCK,
        flush_root: "/flush",
        kinds: &[],
    };
    files.bench.run(Command::RejoinServer { server: new, member: server }).unwrap();
    files.bench.run(Command::Inventory { server, held: &held, last: true }).unwrap();
    let came = spent(&mut files.bench, job);
    files.bench.pass(1000);
    let after = spent(&mut files.bench, job);
    let lay = u128::from(BLOCK * 1000) * held.len() as u128;
    assert_eq!(after.tiers[HDD].held - came.tiers[HDD].held, lay);
    assert_eq!(after.tiers[0], came.tiers[0]);

    files.bench.run(Command::DeregisterJob { actor: Actor::driver(job), job }).unwrap();
    assert_eq!(spent(&mut files.bench, job), after);
    files.bench.restart();
    assert_eq!(spent(&mut files.bench, job), after);
}

/// Records of types 26 and 27 as in version 2: one sum for all tiers.
#[test]
fn a_bill_of_an_earlier_version_is_one_of_memory() {
    let mut bench = Bench::new();
    bench.join("a:1", 2, 32);
    let job = bench.job_leased("j", 3_600_000);
    let old = |with: &[u8]| {
        let mut body = with.to_vec();
        for number in [700u64, 0, 300, 0, 9, 5] {
            body.extend_from_slice(&number.to_le_bytes());
        }
        body
    };
    let mut recovery = Recovery::new();
    recovery.group(&everything(&bench.catalog)).unwrap();
    let mut head = 0u32.to_le_bytes().to_vec();
    head.extend_from_slice(&job.0.to_le_bytes());
    recovery.record(26, 2, &old(&head)).unwrap();
    let ended = JobId(job.0 + 1);
    let mut head = ended.0.to_le_bytes().to_vec();
    head.extend_from_slice(&3u32.to_le_bytes());
    head.extend_from_slice(b"old");
    head.extend_from_slice(&60u64.to_le_bytes());
    recovery.record(27, 2, &old(&head)).unwrap();
    let config = honeycomb_catalog::Config { shard: 3, term: 9, ..Default::default() };
    bench.catalog = recovery.finish(config, bench.now).unwrap();
    let was = Spent { moved: 5, ..in_memory(700, 300, 9) };
    for of in [job, ended] {
        let mut effects = Vec::new();
        let command = Command::JobBills { actor: Actor::CLUSTER, job: Some(of) };
        let Ok(Reply::Bills(bills)) = bench.catalog.apply(bench.now, command, &mut effects) else {
            panic!("it is there")
        };
        assert_eq!(bills[0].spent, was);
    }
}
