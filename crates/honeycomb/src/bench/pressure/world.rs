//! The same jobs in virtual time: an event world with memory, shaped disks and an object store.
//!
//! It moves no bytes and asks no server: memory is a count of blocks, a disk a queue that serves its
//! bytes per second, the object store a delay and a rate for each connection. What it is for: to tell
//! before an engine runs what its conditions allow, and to run sizes that no machine here has. What
//! it leaves out: CPU, the controller, blocks that are not full but for the last of a file, and
//! everything that a policy learns late.

use super::{HEADROOM, Policy};
use honeycomb_load::{JobPlan, TRANSFER_SHARE, TransferCost};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Free blocks below which blocks begin to go down in the background, as a share of the capacity.
const MARK: f64 = 1.0 / 32.0;
/// Bytes that go down together.
const CHUNK: u64 = 1 << 20;
/// Bytes that may be on their way down to one disk: little enough that a read need not wait long.
const UNDER_WAY: u64 = 4 << 20;
/// Bytes that a task reads from a disk with one request.
const DISK_REQUEST: u64 = 256 << 10;

/// What everything costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Bytes of a block.
    pub block: u64,
    /// Memory servers; each has its network and its disk.
    pub servers: u32,
    /// A task's transfers in memory.
    pub cost: TransferCost,
    /// Bytes per second in and out of one server, of all tasks.
    pub network: f64,
    /// Bytes per second of one disk, both directions together.
    pub disk: f64,
    /// Seconds of a disk for each request.
    pub disk_request_s: f64,
    /// Seconds until an object begins to come.
    pub object_read_s: f64,
    /// Seconds until an object begins to be taken.
    pub object_write_s: f64,
    /// Bytes per second of one connection to the object store.
    pub object: f64,
}

/// One run: a policy, with so much memory.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Who gets memory, and what happens when there is none.
    pub policy: Policy,
    /// Bytes of memory for blocks; without, as much as is asked for.
    pub memory: Option<u64>,
    /// What the jobs' computing times are multiplied with.
    pub compute: f64,
}

impl Setup {
    /// A policy with all the memory that it asks for.
    pub fn of(policy: Policy) -> Setup {
        Setup { policy, memory: None, compute: 1.0 }
    }
}

/// What came out.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Seconds from the arrival of each job to its end.
    pub seconds: Vec<f64>,
    /// Integral of bytes in memory, from the first arrival to the last.
    pub area: f64,
    /// Seconds between these two.
    pub window: f64,
    /// Most bytes in memory.
    pub peak: u64,
    /// Most blocks.
    pub peak_blocks: u64,
    /// Bytes written to disks.
    pub disk_written: u64,
    /// Bytes written to the object store.
    pub object_written: u64,
    /// Bytes that tasks wrote.
    pub written: u64,
    /// Bytes that tasks wrote and read.
    pub moved: u64,
    /// Seconds of tasks' transfers.
    pub transfer_s: f64,
    /// Seconds of tasks' computing.
    pub compute_s: f64,
    /// When the last job ended.
    pub end: f64,
}

impl Run {
    /// Share of tasks' time that was transfers.
    pub fn transfer_share(&self) -> f64 {
        self.transfer_s / (self.transfer_s + self.compute_s).max(1e-12)
    }

    /// What computing times have to be multiplied with, for transfers to be their share again.
    pub fn compute_for_share(&self) -> f64 {
        let wanted = self.transfer_s * (1.0 - TRANSFER_SHARE) / TRANSFER_SHARE;
        wanted / self.compute_s.max(1e-12)
    }

    /// Bytes used on average, while jobs arrive.
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
    /// When so many seconds of its work are done that are asked for now.
    fn work(&mut self, now: f64, seconds: f64) -> f64 {
        self.free_at = self.free_at.max(now) + seconds;
        self.free_at
    }

    fn wait(&self, now: f64) -> f64 {
        (self.free_at - now).max(0.0)
    }
}

/// Where the blocks of a file are.
#[derive(Clone, Copy, Debug, Default)]
struct FileAt {
    bytes: u64,
    memory: u64,
    disk: u64,
    object: u64,
    /// Of those in memory, how many are on their way down.
    leaving: u64,
    written: bool,
    /// Tasks that read it now.
    reading: u32,
    /// Tasks that have not read it yet.
    left: u32,
    server: u32,
    /// Which file of the world, in the order of writing.
    number: u64,
}

impl FileAt {
    fn blocks(&self) -> u64 {
        self.memory + self.disk + self.object
    }

    /// Bytes of so many of its blocks.
    fn share(&self, blocks: u64) -> f64 {
        self.bytes as f64 * blocks as f64 / self.blocks().max(1) as f64
    }
}

/// A job that runs.
struct Running {
    files: Vec<Vec<FileAt>>,
    stage: usize,
    begun: usize,
    ended: usize,
    /// Blocks that are reserved for it.
    reserved: u64,
    /// Of these, how many it uses.
    used: u64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrives { job: u32 },
    Writes { job: u32, stage: u32, task: u32 },
    Ended { job: u32, stage: u32, task: u32 },
    Lowered { job: u32, stage: u32, task: u32, blocks: u64 },
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
    /// Blocks that are reserved, used or not.
    reserved: u64,
    /// Blocks on their way down.
    leaving: u64,
    bytes: f64,
    networks: Vec<Pipe>,
    disks: Vec<Pipe>,
    files: u64,
    last_arrival: f64,
    since: f64,
    run: Run,
}

/// Carries jobs out in virtual time.
pub fn simulate(jobs: &[JobPlan], conditions: Conditions, setup: Setup) -> Run {
    let servers = conditions.servers.max(1) as usize;
    let capacity = setup.memory.map_or(u64::MAX / 4, |memory| memory / conditions.block);
    let first = jobs.first().map_or(0.0, |job| job.arrival);
    let last_arrival = jobs.last().map_or(0.0, |job| job.arrival);
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
        leaving: 0,
        bytes: 0.0,
        networks: vec![Pipe::default(); servers],
        disks: vec![Pipe::default(); servers],
        files: 0,
        last_arrival,
        since: first,
        run: Run { seconds: vec![0.0; jobs.len()], window: last_arrival - first, ..Run::default() },
    };
    if !jobs.is_empty() {
        world.at(first, Event::Arrives { job: 0 });
    }
    while let Some(Reverse((time, place))) = world.events.pop() {
        let place = (place & u64::from(u32::MAX)) as usize;
        let event = world.due[place];
        world.idle.push(place);
        world.now = f64::from_bits(time);
        world.event(event);
    }
    world.run.end = world.now;
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
        // Times are not negative, so their bits are in their order; equals come in that of asking.
        self.events.push(Reverse((time.to_bits(), self.sequence << 32 | place as u64)));
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Arrives { job } => self.arrives(job),
            Event::Writes { job, stage, task } => self.writes(job, stage, task),
            Event::Ended { job, stage, task } => self.ended(job, stage, task),
            Event::Lowered { job, stage, task, blocks } => self.lowered(job, stage, task, blocks),
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
                let file = &mut running.files[read.stage as usize][read.task as usize];
                file.reading += 1;
                let (c, disks, networks) = (&self.conditions, &mut self.disks, &mut self.networks);
                reading.file(c, networks, disks, self.now, file, read.bytes);
                self.run.moved += read.bytes;
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
        let wanted = bytes.div_ceil(self.conditions.block);
        self.files += 1;
        let server = (self.files % self.networks.len() as u64) as u32;
        let (memory, disk, object) = self.place(job, server, wanted, bytes);
        let file =
            FileAt { bytes, memory, disk, object, server, number: self.files, ..FileAt::default() };
        let part = |blocks: u64| file.share(blocks);
        let Conditions { cost, network, disk: disk_rate, disk_request_s, .. } = self.conditions;
        let mut seconds = cost.file_s;
        if memory + disk > 0 {
            let direct = part(memory + disk);
            let through =
                self.networks[server as usize].work(self.now, direct / network) - self.now;
            seconds += through.max(direct / cost.write);
        }
        if disk > 0 {
            let work = part(disk) / disk_rate + disk_request_s * requests(part(disk), CHUNK);
            // Frames take it in while the disk is busy with what came before: the slower one counts.
            let done = self.disks[server as usize].work(self.now, work) - self.now;
            seconds = seconds.max(done + part(disk) / cost.write);
            self.run.disk_written += part(disk).round() as u64;
        }
        if object > 0 {
            seconds += self.conditions.object_write_s + part(object) / self.conditions.object;
            self.run.object_written += part(object).round() as u64;
        }
        self.count(part(memory), memory as i64);
        self.run.moved += bytes;
        self.run.written += bytes;
        self.run.transfer_s += seconds;
        let running = self.running[job as usize].as_mut().expect("it writes, so it runs");
        let kept = &mut running.files[stage as usize][task as usize];
        *kept = FileAt { left: kept.left, ..file };
        if running.reserved > 0 {
            running.used += memory;
        }
        self.at(self.now + seconds, Event::Ended { job, stage, task });
        if self.setup.policy == Policy::Block {
            self.make_room(job);
        }
    }

    /// Where the blocks of a new file go: in memory, on disk, in the object store.
    fn place(&mut self, job: u32, server: u32, wanted: u64, bytes: u64) -> (u64, u64, u64) {
        let running = self.running[job as usize].as_ref().expect("it writes, so it runs");
        let free = self.capacity.saturating_sub(self.blocks);
        match self.setup.policy {
            Policy::Static | Policy::StaticKeeps if free >= wanted => (wanted, 0, 0),
            Policy::Static | Policy::StaticKeeps => (0, 0, wanted),
            Policy::JobPeak => {
                let memory = wanted.min(running.reserved - running.used.min(running.reserved));
                (memory, wanted - memory, 0)
            }
            Policy::Block => {
                let memory = wanted.min(free);
                let over = wanted - memory;
                if over == 0 {
                    return (memory, 0, 0);
                }
                let rest = bytes as f64 * over as f64 / wanted as f64;
                let c = &self.conditions;
                let by_disk = self.disks[server as usize].wait(self.now) + rest / c.disk;
                let by_object = c.object_write_s + rest / c.object;
                if by_disk <= by_object { (memory, over, 0) } else { (memory, 0, over) }
            }
        }
    }

    /// Lets blocks of the job that overflows go down in the background, until enough are free.
    fn make_room(&mut self, job: u32) {
        if self.setup.memory.is_none() {
            return;
        }
        let mark = ((self.capacity as f64 * MARK) as u64).max(2);
        let chunk = (CHUNK / self.conditions.block).max(1);
        let most = (UNDER_WAY / self.conditions.block).max(1) * self.disks.len() as u64;
        while self.capacity.saturating_sub(self.blocks) + self.leaving < mark && self.leaving < most
        {
            let Some((stage, task)) = self.coldest(job) else { return };
            let running = self.running[job as usize].as_mut().expect("it has a cold file");
            let file = &mut running.files[stage as usize][task as usize];
            let blocks = (file.memory - file.leaving).min(chunk);
            file.leaving += blocks;
            self.leaving += blocks;
            let bytes = file.share(blocks);
            let server = file.server as usize;
            let work = bytes / self.conditions.disk + self.conditions.disk_request_s;
            let done = self.disks[server].work(self.now, work);
            self.run.disk_written += bytes.round() as u64;
            self.at(done, Event::Lowered { job, stage, task, blocks });
        }
    }

    /// The file of a job whose blocks go down next: what was written longest ago, of what nobody
    /// reads now. That what will be read last would be better hardly shows (docs/benchmarks.md).
    fn coldest(&self, job: u32) -> Option<(u32, u32)> {
        let running = self.running[job as usize].as_ref()?;
        let mut best: Option<(u64, (u32, u32))> = None;
        for (stage, files) in running.files.iter().enumerate() {
            for (task, file) in files.iter().enumerate() {
                if !file.written || file.reading > 0 || file.memory == file.leaving {
                    continue;
                }
                if best.is_none_or(|(oldest, _)| file.number < oldest) {
                    best = Some((file.number, (stage as u32, task as u32)));
                }
            }
        }
        best.map(|(_, place)| place)
    }

    fn lowered(&mut self, job: u32, stage: u32, task: u32, blocks: u64) {
        self.leaving -= blocks;
        let Some(running) = self.running[job as usize].as_mut() else { return };
        let file = &mut running.files[stage as usize][task as usize];
        // Freed meanwhile: its blocks went with it.
        if file.leaving < blocks {
            return;
        }
        let bytes = file.share(blocks);
        file.leaving -= blocks;
        file.memory -= blocks;
        file.disk += blocks;
        self.count(-bytes, -(blocks as i64));
    }

    fn ended(&mut self, job: u32, stage: u32, task: u32) {
        let plan = &self.jobs[job as usize];
        let running = self.running[job as usize].as_mut().expect("its task ended, so it runs");
        running.ended += 1;
        running.files[stage as usize][task as usize].written = true;
        let keeps = self.setup.policy == Policy::StaticKeeps;
        let mut gone = Vec::new();
        for read in &plan.stages[stage as usize].tasks[task as usize].reads {
            let file = &mut running.files[read.stage as usize][read.task as usize];
            file.reading -= 1;
            file.left -= 1;
            if file.left == 0 && !keeps {
                gone.push((read.stage, read.task));
            }
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

    /// Gives the blocks of a file back.
    fn free(&mut self, job: u32, stage: u32, task: u32) {
        let Some(running) = self.running[job as usize].as_mut() else { return };
        let file = &mut running.files[stage as usize][task as usize];
        let (bytes, blocks) = (file.share(file.memory), file.memory);
        if running.reserved > 0 {
            running.used -= blocks;
        }
        *file = FileAt::default();
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
        self.run.seconds[job as usize] = self.now - plan.arrival;
    }

    /// Counts what comes into memory, or leaves it.
    fn count(&mut self, bytes: f64, blocks: i64) {
        let until = self.now.min(self.last_arrival);
        if until > self.since {
            self.run.area += self.bytes * (until - self.since);
            self.since = until;
        }
        self.bytes = (self.bytes + bytes).max(0.0);
        self.blocks = self.blocks.checked_add_signed(blocks).expect("what is freed was counted");
        self.run.peak = self.run.peak.max(self.bytes as u64);
        self.run.peak_blocks = self.run.peak_blocks.max(self.blocks);
    }
}

fn requests(bytes: f64, each: u64) -> f64 {
    (bytes / each as f64).ceil().max(1.0)
}

/// What a task's reads take: one file after the other, while disks and networks may already work on
/// the next ones.
#[derive(Default)]
struct Reading {
    /// Its own stream, and delays that nothing hides.
    own: f64,
    /// When the last disk has given its part.
    disks_done: f64,
    /// When the last server has sent everything.
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
        let part = |blocks: u64| bytes as f64 * blocks as f64 / file.blocks().max(1) as f64;
        let server = file.server as usize;
        self.own += c.cost.file_s;
        if file.disk > 0 {
            let below = part(file.disk);
            let work = below / c.disk + c.disk_request_s * requests(below, DISK_REQUEST);
            self.disks_done = self.disks_done.max(disks[server].work(now, work));
        }
        let direct = part(file.memory + file.disk);
        if direct > 0.0 {
            self.sent = self.sent.max(networks[server].work(now, direct / c.network));
            self.own += direct / c.cost.read;
        }
        if file.object > 0 {
            self.own += c.object_read_s + part(file.object) / c.object;
        }
    }

    /// What comes from a disk has to be sent after it was read.
    fn seconds(&self, now: f64) -> f64 {
        let below = (self.disks_done - now).max(0.0);
        (below + self.own).max(self.sent - now)
    }
}
