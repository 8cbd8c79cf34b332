//! MapReduce-like jobs whose intermediate data follows a demand.
//!
//! A job is a plan of consecutive stages, like the plan of a query. A stage scans a source or reads the
//! output of earlier stages (joins read two of them), and each of its tasks writes one file. A task reads its
//! part of the stage's input, computes, and writes. Computing takes a fixed multiple of the time of the
//! task's transfers in memory, so that transfers are a known fraction of every task's time.
//!
//! Jobs arrive so that their data, by the model of `JobPlan::profile`, follows the level of the demand. The
//! next job belongs to the tenant with the smallest fraction of its demand. Arrivals are fixed in advance: a
//! slower cluster gets the same jobs at the same times (open load).

use crate::demand::Demand;
use crate::draw::Draw;

/// The transfers' fraction of a task's time when all data is in memory.
pub const TRANSFER_SHARE: f64 = 0.3;
/// Interval of checks whether a job is due, as a fraction of the window.
const STEP: f64 = 1.0 / 2000.0;
/// Maximum ratio of a job's peak to the missing data at its arrival.
const OVER: f64 = 1.5;
/// Minimum size of a job, in files.
const SIZE_MIN: f64 = 2.0;
/// Minimum number of tasks of a stage.
const TASKS_MIN: u64 = 1;

/// The cost of a task's transfers in memory, without concurrent tasks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferCost {
    /// Bytes per second of one task's reads.
    pub read: f64,
    /// Bytes per second of one task's writes.
    pub write: f64,
    /// Additional seconds for each file: to find or to create it.
    pub file_s: f64,
}

impl TransferCost {
    /// Seconds to read a number of bytes from a number of files.
    pub fn reads(self, bytes: u64, files: usize) -> f64 {
        bytes as f64 / self.read + files as f64 * self.file_s
    }

    /// Seconds to write a file of a number of bytes.
    pub fn writes(self, bytes: u64) -> f64 {
        bytes as f64 / self.write + self.file_s
    }
}

/// The distributions of generated jobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Median size of a file, in bytes.
    pub file: u64,
    /// Standard deviation of the logarithm of the size.
    pub file_spread: f64,
    /// Minimum and maximum number of stages.
    pub stages: (u32, u32),
    /// Standard deviation of the logarithm of the number of tasks in the stages of a job.
    pub tasks_spread: f64,
    /// Maximum number of concurrent tasks of a job.
    pub width: u32,
    /// Fraction of stages that scan a source instead of reading the previous output.
    pub sources: f64,
    /// Fraction of stages that read a second, earlier output.
    pub joins: f64,
    /// Median of a job's peak, in bytes.
    pub job: f64,
    /// Standard deviation of the logarithm of the peak.
    pub job_spread: f64,
}

/// A task: reads ranges of files, computes, writes a file.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskPlan {
    /// Bytes of the file that it writes.
    pub bytes: u64,
    /// Ranges that it reads.
    pub reads: Vec<Read>,
    /// Seconds of computing.
    pub compute_s: f64,
}

/// A range of a task's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Stage of that task.
    pub stage: u32,
    /// Index of that task in its stage.
    pub task: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A stage: tasks that may run at the same time. It begins when the previous stage has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct StagePlan {
    /// Its tasks.
    pub tasks: Vec<TaskPlan>,
    /// Stages whose output it reads.
    pub inputs: Vec<u32>,
}

/// A job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobPlan {
    /// Tenant of the job.
    pub tenant: u32,
    /// Arrival in seconds from the start of the window.
    pub arrival: f64,
    /// Maximum number of concurrent tasks.
    pub width: u32,
    /// Consecutive stages.
    pub stages: Vec<StagePlan>,
}

/// A job's data over time, without waits.
#[derive(Clone, Debug, PartialEq)]
pub struct JobProfile {
    /// Duration of the job in seconds.
    pub seconds: f64,
    /// Peak bytes.
    pub peak: u64,
    /// Mean bytes.
    pub mean: f64,
    /// Task seconds, without waits for the last task of a stage.
    pub busy: f64,
}

impl JobPlan {
    /// Bytes that it writes.
    pub fn written(&self) -> u64 {
        self.tasks().map(|task| task.bytes).sum()
    }

    /// Bytes that it reads.
    pub fn read(&self) -> u64 {
        self.tasks().flat_map(|task| &task.reads).map(|read| read.bytes).sum()
    }

    /// Its tasks, stage by stage.
    pub fn tasks(&self) -> impl Iterator<Item = &TaskPlan> {
        self.stages.iter().flat_map(|stage| &stage.tasks)
    }

    /// The number of tasks that read each file. A file without readers is freed when the job ends.
    pub fn readers(&self) -> Vec<Vec<u32>> {
        let mut readers: Vec<Vec<u32>> =
            self.stages.iter().map(|stage| vec![0; stage.tasks.len()]).collect();
        for read in self.tasks().flat_map(|task| &task.reads) {
            readers[read.stage as usize][read.task as usize] += 1;
        }
        readers
    }

    /// Its data over time, with this cost for every transfer. A file exists from the time when its task
    /// begins to write until its last reader has ended.
    pub fn profile(&self, cost: TransferCost) -> JobProfile {
        self.profile_of(cost, |bytes| bytes)
    }

    /// Its peak in blocks, without waits.
    pub fn peak_blocks(&self, cost: TransferCost, block: u64) -> u64 {
        self.profile_of(cost, |bytes| bytes.div_ceil(block)).peak
    }

    fn profile_of(&self, cost: TransferCost, size: impl Fn(u64) -> u64) -> JobProfile {
        let mut readers = self.readers();
        let mut changes: Vec<(f64, i64)> = Vec::new();
        let (mut at, mut busy) = (0.0f64, 0.0);
        for (number, stage) in self.stages.iter().enumerate() {
            let mut lanes = vec![at; self.width.max(1) as usize];
            for task in &stage.tasks {
                let lane = least(&lanes);
                let begin = lanes[lane];
                let bytes = task.reads.iter().map(|read| read.bytes).sum();
                let write = begin + cost.reads(bytes, task.reads.len()) + task.compute_s;
                let end = write + cost.writes(task.bytes);
                changes.push((write, size(task.bytes) as i64));
                for read in &task.reads {
                    let left = &mut readers[read.stage as usize][read.task as usize];
                    *left -= 1;
                    if *left == 0 {
                        let file = &self.stages[read.stage as usize].tasks[read.task as usize];
                        changes.push((end, -(size(file.bytes) as i64)));
                    }
                }
                busy += end - begin;
                lanes[lane] = end;
            }
            at = lanes.into_iter().fold(at, f64::max);
            debug_assert!(stage.inputs.iter().all(|input| (*input as usize) < number));
        }
        changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut level, mut peak, mut area, mut since) = (0i64, 0i64, 0.0, 0.0);
        for (when, change) in changes {
            area += level as f64 * (when - since);
            (level, since) = (level + change, when);
            peak = peak.max(level);
        }
        area += level as f64 * (at - since);
        JobProfile { seconds: at, peak: peak as u64, mean: area / at.max(1e-9), busy }
    }
}

fn least(lanes: &[f64]) -> usize {
    let mut best = 0;
    for (at, lane) in lanes.iter().enumerate() {
        if *lane < lanes[best] {
            best = at;
        }
    }
    best
}

/// Jobs whose data, by the model, follows a demand. Everything is derived from the seed.
pub fn mapreduce(demand: &Demand, cost: TransferCost, shape: Shape, seed: u64) -> Vec<JobPlan> {
    let mut draw = Draw::seeded(seed ^ 0x6a6f_6273);
    let tenants = demand.tenants as usize;
    let step = demand.window * STEP;
    let mut levels = Levels::new(demand);
    // Mean bytes and end of each tenant's running jobs.
    let mut running: Vec<Vec<(f64, f64)>> = vec![Vec::new(); tenants];
    let mut jobs = Vec::new();
    for turn in 0.. {
        let at = turn as f64 * step;
        if at >= demand.window {
            break;
        }
        let wanted = levels.at(at);
        for jobs in &mut running {
            jobs.retain(|(until, _)| *until > at);
        }
        loop {
            let held = |t: usize| running[t].iter().map(|(_, mean)| mean).sum::<f64>();
            let missing: Vec<f64> = (0..tenants).map(|t| wanted[t] - held(t)).collect();
            let all: f64 = missing.iter().sum();
            if all <= SIZE_MIN * shape.file as f64 {
                break;
            }
            let most = (0..tenants).fold(0, |best, t| match missing[t] > missing[best] {
                true => t,
                false => best,
            });
            let size = draw.around(shape.job, shape.job_spread).min(OVER * all);
            let mut job = job(&mut draw, cost, shape, size);
            (job.tenant, job.arrival) = (most as u32, at);
            let profile = job.profile(cost);
            running[most].push((at + profile.seconds, profile.mean));
            jobs.push(job);
        }
    }
    jobs
}

/// A job whose peak is about `size`.
fn job(draw: &mut Draw, cost: TransferCost, shape: Shape, size: f64) -> JobPlan {
    let span = (shape.stages.1 - shape.stages.0 + 1) as u64;
    let count = shape.stages.0 + draw.below(span) as u32;
    let unlike: Vec<f64> = (0..count).map(|_| draw.around(1.0, shape.tasks_spread)).collect();
    let widest = unlike.iter().copied().fold(0.0, f64::max);
    // A stage is read while the next one writes: the peak is more than the largest stage alone.
    let tasks_most = size / (1.5 * shape.file as f64);
    let mut stages: Vec<StagePlan> = Vec::new();
    // Outputs that no stage reads yet.
    let mut open: Vec<u32> = Vec::new();
    for (number, like) in unlike.iter().enumerate() {
        let number = number as u32;
        let mut inputs = Vec::new();
        if number + 1 == count {
            inputs = std::mem::take(&mut open);
        } else if draw.even() >= shape.sources {
            inputs.extend(open.pop());
            if draw.even() < shape.joins && !open.is_empty() {
                inputs.push(open.swap_remove(draw.below(open.len() as u64) as usize));
            }
        }
        let tasks = ((like / widest * tasks_most).round() as u64).max(TASKS_MIN);
        let sizes: Vec<u64> = (0..tasks)
            .map(|_| draw.around(shape.file as f64, shape.file_spread).round().max(1.0) as u64)
            .collect();
        let tasks = shares(&stages, &inputs, sizes.len())
            .into_iter()
            .zip(sizes)
            .map(|(reads, bytes)| {
                let in_bytes = reads.iter().map(|read| read.bytes).sum();
                let moves = cost.reads(in_bytes, reads.len()) + cost.writes(bytes);
                let compute_s = moves * (1.0 - TRANSFER_SHARE) / TRANSFER_SHARE;
                TaskPlan { bytes, reads, compute_s }
            })
            .collect();
        stages.push(StagePlan { tasks, inputs });
        open.push(number);
    }
    JobPlan { tenant: 0, arrival: 0.0, width: shape.width, stages }
}

/// Divides the outputs of some stages evenly among a number of tasks. Each task gets a range of the
/// concatenated files, so that a file is read by the one or few tasks whose ranges overlap with it.
fn shares(stages: &[StagePlan], inputs: &[u32], tasks: usize) -> Vec<Vec<Read>> {
    let mut shares = vec![Vec::new(); tasks];
    for input in inputs {
        let files = &stages[*input as usize].tasks;
        let all: u64 = files.iter().map(|file| file.bytes).sum();
        let bound = |n: usize| (all as u128 * n as u128 / tasks as u128) as u64;
        let (mut start, mut reader) = (0, 0);
        for (number, file) in files.iter().enumerate() {
            let end = start + file.bytes;
            let mut at = start;
            while at < end {
                while bound(reader + 1) <= at {
                    reader += 1;
                }
                let until = bound(reader + 1).min(end);
                shares[reader].push(Read {
                    stage: *input,
                    task: number as u32,
                    offset: at - start,
                    bytes: until - at,
                });
                at = until;
            }
            start = end;
        }
    }
    shares
}

/// The level of each tenant at ascending times.
struct Levels<'a> {
    demand: &'a Demand,
    next: usize,
    live: Vec<usize>,
}

impl<'a> Levels<'a> {
    fn new(demand: &'a Demand) -> Levels<'a> {
        Levels { demand, next: 0, live: Vec::new() }
    }

    fn at(&mut self, at: f64) -> Vec<f64> {
        let tasks = &self.demand.tasks;
        while self.next < tasks.len() && tasks[self.next].start <= at {
            self.live.push(self.next);
            self.next += 1;
        }
        self.live.retain(|task| tasks[*task].end() > at);
        let mut levels = vec![0.0; self.demand.tenants as usize];
        for task in &self.live {
            levels[tasks[*task].tenant as usize] += tasks[*task].level(at);
        }
        levels
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fitted::{Fit, fitted};

    const COST: TransferCost = TransferCost { read: 1e9, write: 0.3e9, file_s: 0.4e-3 };
    const FILE: u64 = 4 << 20;
    const SHAPE: Shape = Shape {
        file: FILE,
        file_spread: 0.5,
        stages: (4, 12),
        tasks_spread: 1.0,
        width: 2,
        sources: 0.3,
        joins: 0.5,
        job: 7.0 * FILE as f64,
        job_spread: 1.0,
    };

    fn demand(seed: u64, peak: u64) -> Demand {
        fitted(Fit { seed, tenants: 24 }).scaled(18.0, peak)
    }

    #[test]
    fn what_is_written_is_read_once_and_nothing_is_read_before_it_is_written() {
        for job in mapreduce(&demand(1, 44 << 20), COST, SHAPE, 1) {
            let mut read: Vec<Vec<u64>> =
                job.stages.iter().map(|stage| vec![0; stage.tasks.len()]).collect();
            for (number, stage) in job.stages.iter().enumerate() {
                for range in stage.tasks.iter().flat_map(|task| &task.reads) {
                    assert!((range.stage as usize) < number, "an earlier stage");
                    assert!(stage.inputs.contains(&range.stage));
                    let so_far = &mut read[range.stage as usize][range.task as usize];
                    assert_eq!(*so_far, range.offset, "ranges are contiguous");
                    *so_far += range.bytes;
                }
            }
            let (_, before) = job.stages.split_last().unwrap();
            for (stage, read) in before.iter().zip(&read) {
                let bytes: Vec<u64> = stage.tasks.iter().map(|task| task.bytes).collect();
                assert_eq!(&bytes, read, "all of it is read");
            }
        }
    }

    #[test]
    fn transfers_are_30_percent_of_every_tasks_time() {
        for job in mapreduce(&demand(2, 44 << 20), COST, SHAPE, 2) {
            for task in job.tasks() {
                let bytes = task.reads.iter().map(|read| read.bytes).sum();
                let moves = COST.reads(bytes, task.reads.len()) + COST.writes(task.bytes);
                let share = moves / (moves + task.compute_s);
                assert!((share - TRANSFER_SHARE).abs() < 1e-9, "{share}");
            }
        }
    }

    /// With many concurrent jobs, their data by the model follows the demand.
    #[test]
    fn levels_follow_the_demand() {
        let demand = demand(3, 4 << 30);
        let jobs = mapreduce(&demand, COST, SHAPE, 3);
        let held: f64 = jobs
            .iter()
            .map(|job| {
                let profile = job.profile(COST);
                profile.mean * profile.seconds.min(demand.window - job.arrival)
            })
            .sum();
        let mean = held / demand.window;
        let wanted = demand.profile().mean;
        assert!((mean / wanted - 1.0).abs() < 0.1, "{mean} of {wanted}");
        let mut arrivals = jobs.iter().map(|job| job.arrival);
        let mut last = 0.0;
        assert!(arrivals.all(|at| std::mem::replace(&mut last, at) <= at), "arrivals are sorted");
    }

    #[test]
    fn a_profile_is_that_of_its_tasks() {
        let jobs = mapreduce(&demand(4, 44 << 20), COST, SHAPE, 4);
        for job in &jobs {
            let profile = job.profile(COST);
            assert!(profile.peak <= job.written() && profile.mean <= profile.peak as f64);
            let widest = job.stages.iter().map(|s| s.tasks.iter().map(|t| t.bytes).sum::<u64>());
            assert!(
                profile.peak >= widest.max().unwrap(),
                "all files of a stage exist when it ends"
            );
            let longest = profile.busy / f64::from(job.width);
            assert!(profile.seconds >= longest * 0.999 && profile.seconds <= profile.busy * 1.001);
        }
    }

    #[test]
    fn files_have_their_median_and_the_seed_decides_everything() {
        let jobs = mapreduce(&demand(5, 256 << 20), COST, SHAPE, 5);
        let mut sizes: Vec<u64> =
            jobs.iter().flat_map(JobPlan::tasks).map(|task| task.bytes).collect();
        sizes.sort_unstable();
        let median = sizes[sizes.len() / 2] as f64 / FILE as f64;
        assert!((0.9..1.1).contains(&median), "{median}");
        assert_eq!(jobs, mapreduce(&demand(5, 256 << 20), COST, SHAPE, 5));
        assert_ne!(jobs, mapreduce(&demand(5, 256 << 20), COST, SHAPE, 6));
    }
}
