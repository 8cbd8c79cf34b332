//! The same jobs in virtual time: an event simulation with memory, disks and an object store.
//!
//! It moves no bytes and uses no servers. Memory is a count of blocks, a disk is a queue with a rate, and
//! the object store has a delay and a rate for each connection. Under `block`, the catalog places the
//! blocks (`blocks`); the other policies are a few lines here. The simulation shows the limit of the
//! conditions before a real run, and it runs sizes beyond the available machines. It ignores CPU time, the
//! time of the controller, and partly filled blocks except the last of a file.

use super::blocks::{Blocks, Full, Going};
use super::{HEADROOM, Policy};
use honeycomb_types::TierIx;
use honeycomb_workload::{FileId, JobPlan, TRANSFER_SHARE, TransferCost};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Bytes of one write request to a disk.
const CHUNK: u64 = 1 << 20;
/// Bytes of one read request of a task from a disk.
const DISK_REQUEST: u64 = 256 << 10;
/// Seconds between reports of used blocks to the catalog: the longest allowed interval.
const REPORT_S: f64 = 2.0;
/// Seconds until a task retries a write, if there is no room and no block is being demoted.
const AGAIN_S: f64 = 0.1;

/// The costs of operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Bytes of a block.
    pub block: u64,
    /// Number of memory servers, each with its own network and disk.
    pub servers: u32,
    /// Cost of a task's transfers in memory.
    pub cost: TransferCost,
    /// Bytes per second in and out of one server, of all tasks.
    pub network: f64,
    /// Bytes per second of one disk, both directions together.
    pub disk: f64,
    /// Seconds of a disk for each request.
    pub disk_request_s: f64,
    /// Seconds until the first byte of an object is read.
    pub object_read_s: f64,
    /// Seconds until the first byte of an object is written.
    pub object_write_s: f64,
    /// Bytes per second of one connection to the object store.
    pub object: f64,
}

/// One run: a policy and its memory.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The policy.
    pub policy: Policy,
    /// Bytes of memory for blocks; `None` for unlimited.
    pub memory: Option<u64>,
    /// Factor for the jobs' computing times.
    pub compute: f64,
}

impl Setup {
    /// A policy with unlimited memory.
    pub fn of(policy: Policy) -> Setup {
        Setup { policy, memory: None, compute: 1.0 }
    }
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Seconds from the arrival of each job to its end.
    pub seconds: Vec<f64>,
    /// Integral of bytes in memory, from the first arrival to the last.
    pub area: f64,
    /// Seconds from the first arrival to the last.
    pub window: f64,
    /// Peak bytes in memory.
    pub peak: u64,
    /// Peak blocks in memory.
    pub peak_blocks: u64,
    /// Bytes written to disks.
    pub disk_written: u64,
    /// Bytes written to the object store.
    pub object_written: u64,
    /// Bytes that tasks wrote.
    pub written: u64,
    /// Bytes that tasks wrote and read.
    pub moved: u64,
    /// Seconds that tasks spent on transfers.
    pub transfer_s: f64,
    /// Seconds that tasks spent on computing.
    pub compute_s: f64,
}

impl Run {
    /// The transfers' fraction of tasks' time.
    pub fn transfer_share(&self) -> f64 {
        self.transfer_s / (self.transfer_s + self.compute_s).max(1e-12)
    }

    /// The factor for computing times that restores the transfers' fraction.
    pub fn compute_for_share(&self) -> f64 {
        let wanted = self.transfer_s * (1.0 - TRANSFER_SHARE) / TRANSFER_SHARE;
        wanted / self.compute_s.max(1e-12)
    }

    /// Mean of used bytes while jobs arrive.
    pub fn mean(&self) -> f64 {
        self.area / self.window.max(1e-9)
    }
}

/// A queue with a rate.
#[derive(Clone, Copy, Debug, Default)]
struct Pipe {
    free_at: f64,
}

impl Pipe {
    /// Enqueues this many seconds of work; answers the time when it is done.
    fn work(&mut self, now: f64, seconds: f64) -> f64 {
        self.free_at = self.free_at.max(now) + seconds;
        self.free_at
    }
}

/// The blocks of a file on one server.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    server: u32,
    memory: u64,
    disk: u64,
}

/// The places of a file's blocks.
#[derive(Clone, Debug, Default)]
struct FileAt {
    bytes: u64,
    parts: Vec<Part>,
    object: u64,
    /// Number of tasks that have not read the file.
    left: u32,
}

/// The parts of a file by server, from the places of its blocks.
fn parts_of(blocks: impl IntoIterator<Item = (u32, TierIx)>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (server, tier) in blocks {
        let place = parts.iter().position(|part| part.server == server);
        let place = place.unwrap_or_else(|| {
            parts.push(Part { server, ..Part::default() });
            parts.len() - 1
        });
        let part = &mut parts[place];
        *if tier.is_below() { &mut part.disk } else { &mut part.memory } += 1;
    }
    parts
}

impl FileAt {
    fn memory(&self) -> u64 {
        self.parts.iter().map(|part| part.memory).sum()
    }

    fn disk(&self) -> u64 {
        self.parts.iter().map(|part| part.disk).sum()
    }

    fn blocks(&self) -> u64 {
        self.memory() + self.disk() + self.object
    }

    /// A function from a number of the file's blocks to their bytes, for a file of `bytes`.
    fn share(&self, bytes: u64) -> impl Fn(u64) -> f64 + use<> {
        let each = bytes as f64 / self.blocks().max(1) as f64;
        move |blocks| each * blocks as f64
    }
}

/// A running job.
struct Running {
    files: Vec<Vec<FileAt>>,
    stage: usize,
    begun: usize,
    ended: usize,
    /// Blocks reserved for the job.
    reserved: u64,
    /// Reserved blocks that the job uses.
    used: u64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrives { job: u32 },
    Writes { job: u32, stage: u32, task: u32 },
    Ended { job: u32, stage: u32, task: u32 },
    Arrived { going: Going },
    Reports,
}

struct World<'a> {
    jobs: &'a [JobPlan],
    conditions: Conditions,
    setup: Setup,
    capacity: u64,
    now: f64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    due: Vec<Event>,
    idle: Vec<usize>,
    sequence: u64,
    running: Vec<Option<Box<Running>>>,
    /// Blocks with data.
    blocks: u64,
    /// Reserved blocks, used or not.
    reserved: u64,
    bytes: f64,
    networks: Vec<Pipe>,
    disks: Vec<Pipe>,
    /// Blocks assigned so far, without a catalog.
    dealt: u64,
    /// Jobs that have not ended.
    left: usize,
    /// Tasks that wait for room to write.
    parked: Vec<(u32, u32, u32)>,
    /// The catalog that places blocks, if the policy has one and memory is limited.
    catalog: Option<Box<Blocks>>,
    last_arrival: f64,
    since: f64,
    run: Run,
}

/// Runs jobs in virtual time.
pub fn simulate(jobs: &[JobPlan], conditions: Conditions, setup: Setup) -> Run {
    let servers = conditions.servers.max(1) as usize;
    let capacity = setup.memory.map_or(u64::MAX / 4, |memory| memory / conditions.block);
    let first = jobs.first().map_or(0.0, |job| job.arrival);
    let last_arrival = jobs.last().map_or(0.0, |job| job.arrival);
    let by_catalog = setup.policy.sharing().filter(|_| setup.memory.is_some());
    let catalog = by_catalog.map(|sharing| Blocks::of(&conditions, sharing, capacity));
    let mut world = World {
        jobs,
        conditions,
        setup,
        capacity,
        now: 0.0,
        events: BinaryHeap::new(),
        due: Vec::new(),
        idle: Vec::new(),
        sequence: 0,
        running: jobs.iter().map(|_| None).collect(),
        blocks: 0,
        reserved: 0,
        bytes: 0.0,
        networks: vec![Pipe::default(); servers],
        disks: vec![Pipe::default(); servers],
        dealt: 0,
        left: jobs.len(),
        parked: Vec::new(),
        catalog: catalog.map(Box::new),
        last_arrival,
        since: first,
        run: Run { seconds: vec![0.0; jobs.len()], window: last_arrival - first, ..Run::default() },
    };
    if !jobs.is_empty() {
        world.at(first, Event::Arrives { job: 0 });
    }
    if world.catalog.is_some() {
        world.at(first, Event::Reports);
    }
    while let Some(Reverse((time, place))) = world.events.pop() {
        let place = (place & u64::from(u32::MAX)) as usize;
        let event = world.due[place];
        world.idle.push(place);
        world.now = f64::from_bits(time);
        world.event(event);
        world.let_go();
        world.unpark();
    }
    if let Some(catalog) = world.catalog {
        catalog.finish();
    }
    world.run
}

impl World<'_> {
    fn at(&mut self, time: f64, event: Event) {
        let place = self.idle.pop().unwrap_or_else(|| {
            self.due.push(event);
            self.due.len() - 1
        });
        self.due[place] = event;
        self.sequence += 1;
        // Times are not negative, so that their bits sort like the times. Equal times sort by insertion.
        self.events.push(Reverse((time.to_bits(), self.sequence << 32 | place as u64)));
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Arrives { job } => self.arrives(job),
            Event::Writes { job, stage, task } => self.writes(job, stage, task),
            Event::Ended { job, stage, task } => self.ended(job, stage, task),
            Event::Arrived { going } => self.arrived(going),
            Event::Reports => self.reports(),
        }
    }

    /// The catalog at the present time.
    fn catalog(&mut self) -> Option<&mut Blocks> {
        let catalog = self.catalog.as_deref_mut()?;
        catalog.at(self.now);
        Some(catalog)
    }

    /// Memory servers report as long as there is a job.
    fn reports(&mut self) {
        if self.left > 0 {
            self.catalog().expect("a catalog that asks for reports exists").report();
            self.at(self.now + REPORT_S, Event::Reports);
        }
    }

    fn arrives(&mut self, job: u32) {
        let plan = &self.jobs[job as usize];
        if let Some(next) = self.jobs.get(job as usize + 1) {
            self.at(next.arrival, Event::Arrives { job: job + 1 });
        }
        let readers = plan.readers();
        let files = readers.iter().map(|stage| {
            stage.iter().map(|left| FileAt { left: *left, ..FileAt::default() }).collect()
        });
        let files: Vec<Vec<FileAt>> = files.collect();
        let mut reserved = 0;
        if self.setup.policy == Policy::JobPeak {
            let peak = plan.peak_blocks(self.conditions.cost, self.conditions.block);
            let wanted = (peak as f64 * HEADROOM).ceil() as u64;
            if self.reserved + wanted <= self.capacity {
                reserved = wanted;
                self.reserved += wanted;
            }
        }
        let running = Running { files, stage: 0, begun: 0, ended: 0, reserved, used: 0 };
        self.running[job as usize] = Some(Box::new(running));
        if let Some(catalog) = self.catalog() {
            catalog.begin(job, plan);
        }
        self.begin_tasks(job);
    }

    /// Begins tasks of the job's stage, as many as may run.
    fn begin_tasks(&mut self, job: u32) {
        let plan = &self.jobs[job as usize];
        loop {
            let Some(running) = self.running[job as usize].as_mut() else { return };
            let stage = running.stage;
            let tasks = &plan.stages[stage].tasks;
            let at_a_time = plan.width.max(1) as usize;
            if running.begun == tasks.len() || running.begun - running.ended >= at_a_time {
                return;
            }
            let place = running.begun;
            running.begun += 1;
            let task = &tasks[place];
            let mut reading = Reading::default();
            for read in &task.reads {
                let file = &running.files[read.stage as usize][read.task as usize];
                let (c, disks, networks) = (&self.conditions, &mut self.disks, &mut self.networks);
                reading.file(c, networks, disks, self.now, file, read.bytes);
                self.run.moved += read.bytes;
                if let Some(catalog) = &mut self.catalog {
                    catalog.used((job, FileId { stage: read.stage, task: read.task }));
                }
            }
            let read_s = reading.seconds(self.now);
            let compute_s = task.compute_s * self.setup.compute;
            self.run.transfer_s += read_s;
            self.run.compute_s += compute_s;
            let at = self.now + read_s + compute_s;
            self.at(at, Event::Writes { job, stage: stage as u32, task: place as u32 });
        }
    }

    fn writes(&mut self, job: u32, stage: u32, task: u32) {
        let bytes = self.jobs[job as usize].stages[stage as usize].tasks[task as usize].bytes;
        let (parts, object) = match self.place(job, FileId { stage, task }, bytes) {
            Ok(placed) => placed,
            Err(Full { room_comes: true }) => {
                self.parked.push((job, stage, task));
                return;
            }
            Err(Full { room_comes: false }) => {
                self.at(self.now + AGAIN_S, Event::Writes { job, stage, task });
                return;
            }
        };
        let file = FileAt { bytes, parts, object, left: 0 };
        let (share, memory, disk) = (file.share(bytes), file.memory(), file.disk());
        let Conditions { cost, network, disk: disk_rate, disk_request_s, .. } = self.conditions;
        let mut seconds = cost.file_s;
        if memory + disk > 0 {
            // Servers receive their parts concurrently, from one stream.
            let through = file.parts.iter().map(|part| {
                let work = share(part.memory + part.disk) / network;
                self.networks[part.server as usize].work(self.now, work) - self.now
            });
            seconds += through.fold(share(memory + disk) / cost.write, f64::max);
        }
        if disk > 0 {
            // The write cache receives data while the disks write earlier data: the slower of both counts.
            let below = file.parts.iter().filter(|part| part.disk > 0).map(|part| {
                let bytes = share(part.disk);
                let work = bytes / disk_rate + disk_request_s * requests(bytes, CHUNK);
                self.disks[part.server as usize].work(self.now, work) - self.now
            });
            let done = below.fold(0.0, f64::max);
            seconds = seconds.max(done + share(disk) / cost.write);
            self.run.disk_written += share(disk).round() as u64;
        }
        if object > 0 {
            seconds += self.conditions.object_write_s + share(object) / self.conditions.object;
            self.run.object_written += share(object).round() as u64;
        }
        self.count(share(memory), memory as i64);
        self.run.moved += bytes;
        self.run.written += bytes;
        self.run.transfer_s += seconds;
        let running = self.running[job as usize].as_mut().expect("a writing job runs");
        let kept = &mut running.files[stage as usize][task as usize];
        *kept = FileAt { left: kept.left, ..file };
        if running.reserved > 0 {
            running.used += memory;
        }
        self.at(self.now + seconds, Event::Ended { job, stage, task });
    }

    /// Places the blocks of a new file on servers and in the object store; `Full` if the task must wait.
    fn place(&mut self, job: u32, id: FileId, bytes: u64) -> Result<(Vec<Part>, u64), Full> {
        let wanted = bytes.div_ceil(self.conditions.block);
        if let Some(catalog) = self.catalog() {
            return Ok((parts_of(catalog.make((job, id), bytes)?), 0));
        }
        let running = self.running[job as usize].as_ref().expect("a writing job runs");
        let free = self.capacity.saturating_sub(self.blocks);
        let (memory, disk, object) = match self.setup.policy {
            Policy::Static | Policy::StaticKeeps if free < wanted => (0, 0, wanted),
            Policy::JobPeak => {
                let memory = wanted.min(running.reserved - running.used.min(running.reserved));
                (memory, wanted - memory, 0)
            }
            _ => (wanted, 0, 0),
        };
        // As in the catalog: one block on each server, in turn.
        let (first, servers) = (self.dealt, self.networks.len() as u64);
        self.dealt += memory + disk;
        let dealt = (0..memory + disk).map(|n| {
            let tier = if n < memory { TierIx::MEMORY } else { TierIx(1) };
            (((first + n) % servers) as u32, tier)
        });
        Ok((parts_of(dealt), object))
    }

    /// Starts the demotion of the blocks that the catalog has selected.
    fn let_go(&mut self) {
        let going = self.catalog.as_deref_mut().map(Blocks::take_going).unwrap_or_default();
        for going in going {
            let (job, FileId { stage, task }) = going.whose;
            let running = self.running[job as usize].as_ref().expect("the job of a block runs");
            let file = &running.files[stage as usize][task as usize];
            let bytes = file.share(file.bytes)(1);
            let work = bytes / self.conditions.disk + self.conditions.disk_request_s;
            let done = self.disks[going.server as usize].work(self.now, work);
            self.run.disk_written += bytes.round() as u64;
            self.at(done, Event::Arrived { going });
        }
    }

    fn arrived(&mut self, going: Going) {
        if !self.catalog().expect("only a catalog demotes blocks").arrived(going) {
            return;
        }
        let (job, FileId { stage, task }) = going.whose;
        let running = self.running[job as usize].as_mut().expect("the job of a block runs");
        let file = &mut running.files[stage as usize][task as usize];
        let bytes = file.share(file.bytes)(1);
        let part = file.parts.iter_mut().find(|part| part.server == going.server);
        let part = part.expect("a block stays on its server");
        part.memory -= 1;
        part.disk += 1;
        self.count(-bytes, -1);
    }

    /// Waiting tasks retry when room is free or none is coming, as with a controller.
    fn unpark(&mut self) {
        if self.catalog().is_some_and(Blocks::room_came) {
            for (job, stage, task) in std::mem::take(&mut self.parked) {
                self.writes(job, stage, task);
            }
        }
    }

    fn ended(&mut self, job: u32, stage: u32, task: u32) {
        let plan = &self.jobs[job as usize];
        let running = self.running[job as usize].as_mut().expect("the job of a task runs");
        running.ended += 1;
        let keeps = self.setup.policy == Policy::StaticKeeps;
        let mut gone = Vec::new();
        for read in &plan.stages[stage as usize].tasks[task as usize].reads {
            let file = &mut running.files[read.stage as usize][read.task as usize];
            file.left -= 1;
            if file.left == 0 && !keeps {
                gone.push((read.stage, read.task));
            }
        }
        if let Some(catalog) = self.catalog() {
            let whose = (job, FileId { stage, task });
            catalog.wrote(whose);
            let freed = catalog.ended(whose);
            assert_eq!(
                freed as usize,
                gone.len(),
                "the catalog frees exactly the files without further readers"
            );
        }
        for (stage, task) in gone {
            self.free(job, stage, task);
        }
        let Some(running) = self.running[job as usize].as_mut() else { return };
        if running.ended == plan.stages[running.stage].tasks.len() {
            (running.begun, running.ended) = (0, 0);
            running.stage += 1;
            if running.stage == plan.stages.len() {
                self.finish(job);
                return;
            }
        }
        self.begin_tasks(job);
    }

    /// Frees the blocks of a file.
    fn free(&mut self, job: u32, stage: u32, task: u32) {
        let Some(running) = self.running[job as usize].as_mut() else { return };
        let file = &mut running.files[stage as usize][task as usize];
        let blocks = file.memory();
        let bytes = file.share(file.bytes)(blocks);
        if running.reserved > 0 {
            running.used -= blocks;
        }
        *file = FileAt::default();
        if let Some(catalog) = &mut self.catalog {
            catalog.forget((job, FileId { stage, task }));
        }
        self.count(-bytes, -(blocks as i64));
    }

    fn finish(&mut self, job: u32) {
        let plan = &self.jobs[job as usize];
        for (stage, tasks) in plan.stages.iter().enumerate() {
            for task in 0..tasks.tasks.len() {
                self.free(job, stage as u32, task as u32);
            }
        }
        if let Some(running) = self.running[job as usize].take() {
            self.reserved -= running.reserved;
        }
        self.left -= 1;
        if let Some(catalog) = self.catalog() {
            catalog.end(job);
        }
        self.run.seconds[job as usize] = self.now - plan.arrival;
    }

    /// Counts bytes and blocks that enter or leave memory.
    fn count(&mut self, bytes: f64, blocks: i64) {
        let until = self.now.min(self.last_arrival);
        if until > self.since {
            self.run.area += self.bytes * (until - self.since);
            self.since = until;
        }
        self.bytes = (self.bytes + bytes).max(0.0);
        self.blocks = self.blocks.checked_add_signed(blocks).expect("freed blocks were counted");
        self.run.peak = self.run.peak.max(self.bytes as u64);
        self.run.peak_blocks = self.run.peak_blocks.max(self.blocks);
    }
}

fn requests(bytes: f64, each: u64) -> f64 {
    (bytes / each as f64).ceil().max(1.0)
}

/// The time of a task's reads: one file after the other, while disks and networks may already work on the
/// next files.
#[derive(Default)]
struct Reading {
    /// Seconds of the task's own stream, plus delays that do not overlap.
    own: f64,
    /// Time when the last disk has read its part.
    disks_done: f64,
    /// Time when the last server has sent its part.
    sent: f64,
}

impl Reading {
    fn file(
        &mut self,
        c: &Conditions,
        networks: &mut [Pipe],
        disks: &mut [Pipe],
        now: f64,
        file: &FileAt,
        bytes: u64,
    ) {
        let share = file.share(bytes);
        self.own += c.cost.file_s;
        for part in &file.parts {
            let server = part.server as usize;
            if part.disk > 0 {
                let below = share(part.disk);
                let work = below / c.disk + c.disk_request_s * requests(below, DISK_REQUEST);
                self.disks_done = self.disks_done.max(disks[server].work(now, work));
            }
            let direct = share(part.memory + part.disk);
            if direct > 0.0 {
                self.sent = self.sent.max(networks[server].work(now, direct / c.network));
                self.own += direct / c.cost.read;
            }
        }
        if file.object > 0 {
            self.own += c.object_read_s + share(file.object) / c.object;
        }
    }

    /// The seconds of all reads. Data from a disk is sent after it was read.
    fn seconds(&self, now: f64) -> f64 {
        let below = (self.disks_done - now).max(0.0);
        (below + self.own).max(self.sent - now)
    }
}
