//! Runs jobs in real time on any storage for their files.
//!
//! Jobs begin at the times of their plans, whether or not earlier jobs have ended. Each running task has a
//! thread: it reads, sleeps instead of computing (elsewhere, on a function), and writes. The contents of
//! files are slices of one noise buffer, so that generating them costs nothing. The first read of each stage,
//! and one of sixteen others, is compared with the written data, during the task's computing time.

use crate::draw::Draw;
use crate::jobs::{JobPlan, Read};
use honeycomb_env::Clock;
use honeycomb_types::Time;
use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;
use thiserror::Error;

/// One of this many reads is compared with the written data, besides the first of each stage.
const COMPARED: u64 = 16;
/// Number of offsets in the noise at which files begin: enough that two files rarely have the same contents.
const PLACES: u64 = 4 << 20;
/// Bytes of a thread's stack: the call depth of a task is small.
const STACK: usize = 256 << 10;

/// The storage for the files of jobs.
pub trait Keep: Sync {
    /// A running job.
    type Job: Send + Sync;
    /// The error of an operation.
    type Error: Display + Send;

    /// Begins a job.
    fn begin(&self, number: usize, plan: &JobPlan) -> Result<Self::Job, Self::Error>;
    /// Writes the whole file of a task.
    fn write(&self, job: &Self::Job, at: FileId, content: &[u8]) -> Result<(), Self::Error>;
    /// Reads a range of a file.
    fn read(&self, job: &Self::Job, read: Read, buffer: &mut [u8]) -> Result<(), Self::Error>;
    /// Ends a task after its reads and its write: files without further readers may be freed.
    fn ended(&self, job: &Self::Job, plan: &JobPlan, at: FileId) -> Result<(), Self::Error>;
    /// Ends a job after all its tasks, or at the end of the run: all its files are freed.
    fn end(&self, job: Self::Job) -> Result<(), Self::Error>;
}

/// The id of a task and of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Stage of the task.
    pub stage: u32,
    /// Index of the task in its stage.
    pub task: u32,
}

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Maximum number of concurrent tasks.
    pub threads: usize,
    /// Factor for the jobs' computing times.
    pub compute: f64,
    /// How long to wait after the last arrival until all jobs have ended.
    pub patience: Duration,
    /// Seed of the contents.
    pub seed: u64,
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    /// Seconds of each job from its planned arrival to its end; for unfinished jobs, to the end of the run.
    pub seconds: Vec<f64>,
    /// Number of unfinished jobs.
    pub unfinished: usize,
    /// Seconds of tasks' reads and writes.
    pub transfer_s: f64,
    /// Seconds for which tasks slept instead of computing.
    pub compute_s: f64,
    /// Seconds for which ready tasks waited for a thread.
    pub queued_s: f64,
    /// Bytes written.
    pub written: u64,
    /// Bytes read.
    pub read: u64,
    /// Number of reads that were compared with the written data.
    pub compared: u64,
    /// Seconds of tasks' writes, a part of `transfer_s`.
    pub write_s: f64,
    /// Seconds of tasks' reads, a part of `transfer_s`.
    pub read_s: f64,
}

impl Carried {
    /// The transfers' fraction of tasks' time.
    pub fn transfer_share(&self) -> f64 {
        self.transfer_s / (self.transfer_s + self.compute_s).max(1e-12)
    }
}

/// The error that ended a run.
#[derive(Debug, Error)]
#[error("job {job}, stage {stage}, task {task} ({what}): {cause}")]
pub struct CarryError {
    /// Number of the job.
    pub job: usize,
    /// Stage of the job.
    pub stage: u32,
    /// Task of the stage.
    pub task: u32,
    /// The failed operation.
    pub what: &'static str,
    /// The cause.
    pub cause: String,
}

/// A task or a job that is ready to run.
struct Ready {
    job: usize,
    /// `None` when the job begins.
    task: Option<FileId>,
    since: Time,
}

struct Progress<J> {
    job: J,
    stage: usize,
    begun: usize,
    ended: usize,
}

struct State<J> {
    ready: VecDeque<Ready>,
    running: Vec<Option<Progress<std::sync::Arc<J>>>>,
    left: usize,
    over: bool,
    failed: Option<CarryError>,
    carried: Carried,
}

struct Run<'a, K: Keep> {
    jobs: &'a [JobPlan],
    keep: &'a K,
    pace: Pace,
    clock: Clock,
    noise: Vec<u8>,
    /// Unused read buffers: few, because tasks compute most of the time.
    buffers: Mutex<Vec<Vec<u8>>>,
    state: Mutex<State<K::Job>>,
    /// Signals one thread that a task is ready, or all threads that the run is over.
    ready: Condvar,
    /// Signals the driver that a job has ended, or that the run is over.
    ended: Condvar,
}

/// Runs jobs until the last one has ended or the patience has elapsed. The first error ends the run.
pub fn carry<K: Keep>(jobs: &[JobPlan], keep: &K, pace: Pace) -> Result<Carried, CarryError> {
    assert!(pace.threads > 0, "there must be a thread");
    let carried = Carried { seconds: vec![f64::NAN; jobs.len()], ..Carried::default() };
    let state = State {
        ready: VecDeque::new(),
        running: jobs.iter().map(|_| None).collect(),
        left: jobs.len(),
        over: false,
        failed: None,
        carried,
    };
    let noise = noise(jobs, pace.seed);
    let (state, ready, ended) = (Mutex::new(state), Condvar::new(), Condvar::new());
    let (clock, buffers) = (Clock::start(), Mutex::default());
    let run = Run { jobs, keep, pace, clock, noise, buffers, state, ready, ended };
    std::thread::scope(|scope| {
        for number in 0..pace.threads {
            let builder =
                std::thread::Builder::new().stack_size(STACK).name(format!("task-{number}"));
            let started = builder.spawn_scoped(scope, || run.work());
            if let Err(e) = started {
                let cause = format!("cannot start thread {number}: {e}");
                run.fail(CarryError { job: 0, stage: 0, task: 0, what: "begin", cause });
                return;
            }
        }
        run.drive();
    });
    let mut state = run.state.into_inner().expect("no thread panicked");
    if let Some(error) = state.failed {
        return Err(error);
    }
    let now = run.clock.now().since(Time::ZERO).as_secs_f64();
    for (number, running) in state.running.iter_mut().enumerate() {
        if state.carried.seconds[number].is_nan() {
            state.carried.seconds[number] = now - jobs[number].arrival;
            state.carried.unfinished += 1;
        }
        // No thread holds the job any more.
        if let Some(job) = running.take().and_then(|p| std::sync::Arc::into_inner(p.job)) {
            let error = |e: K::Error| CarryError {
                job: number,
                stage: 0,
                task: 0,
                what: "free its files",
                cause: e.to_string(),
            };
            keep.end(job).map_err(error)?;
        }
    }
    Ok(state.carried)
}

fn noise(jobs: &[JobPlan], seed: u64) -> Vec<u8> {
    let longest = jobs.iter().flat_map(JobPlan::tasks).map(|task| task.bytes).max().unwrap_or(0);
    let mut draw = Draw::seeded(seed);
    let words = (longest + PLACES).div_ceil(8);
    let mut noise = Vec::with_capacity(words as usize * 8);
    for _ in 0..words {
        noise.extend_from_slice(&draw.below(u64::MAX).to_le_bytes());
    }
    noise
}

/// The offset in the noise at which a file begins.
fn place(job: usize, at: FileId) -> usize {
    let number = (job as u64) << 32 | u64::from(at.stage) << 16 | u64::from(at.task);
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % PLACES) as usize
}

impl<K: Keep> Run<'_, K> {
    fn locked(&self) -> MutexGuard<'_, State<K::Job>> {
        self.state.lock().expect("no thread panicked")
    }

    fn seconds(&self, since: Time) -> f64 {
        self.clock.now().since(since).as_secs_f64()
    }

    fn fail(&self, error: CarryError) {
        let mut state = self.locked();
        state.failed.get_or_insert(error);
        state.over = true;
        drop(state);
        self.ready.notify_all();
        self.ended.notify_all();
    }

    /// Starts jobs when they are due, and waits for the last one.
    fn drive(&self) {
        for (job, plan) in self.jobs.iter().enumerate() {
            let due = Time::ZERO + Duration::from_secs_f64(plan.arrival);
            self.clock.sleep_until(due);
            let mut state = self.locked();
            if state.over {
                return;
            }
            state.ready.push_back(Ready { job, task: None, since: self.clock.now() });
            drop(state);
            self.ready.notify_one();
        }
        let until = self.clock.now() + self.pace.patience;
        let mut state = self.locked();
        while state.left > 0 && !state.over {
            let left = until.since(self.clock.now());
            if left == Duration::ZERO {
                break;
            }
            let waited = self.ended.wait_timeout(state, left);
            state = waited.expect("no thread panicked").0;
        }
        state.over = true;
        drop(state);
        self.ready.notify_all();
    }

    fn work(&self) {
        loop {
            let mut state = self.locked();
            let ready = loop {
                if state.over {
                    return;
                }
                if let Some(ready) = state.ready.pop_front() {
                    break ready;
                }
                state = self.ready.wait(state).expect("no thread panicked");
            };
            state.carried.queued_s += self.seconds(ready.since);
            drop(state);
            let at = ready.task.unwrap_or(FileId { stage: 0, task: 0 });
            let done = match ready.task {
                None => self.begin(ready.job),
                Some(at) => self.task(ready.job, at),
            };
            if let Err((what, cause)) = done {
                let (stage, task) = (at.stage, at.task);
                self.fail(CarryError { job: ready.job, stage, task, what, cause });
                return;
            }
        }
    }

    fn begin(&self, number: usize) -> Result<(), (&'static str, String)> {
        let job = self.keep.begin(number, &self.jobs[number]);
        let job = job.map_err(|e| ("begin", e.to_string()))?;
        let mut state = self.locked();
        let job = std::sync::Arc::new(job);
        state.running[number] = Some(Progress { job, stage: 0, begun: 0, ended: 0 });
        self.offer(&mut state, number);
        Ok(())
    }

    /// Makes tasks of a job's stage ready, as many as may run.
    fn offer(&self, state: &mut State<K::Job>, number: usize) {
        let plan = &self.jobs[number];
        let State { running, ready, .. } = state;
        let Some(progress) = running[number].as_mut() else { return };
        let tasks = plan.stages[progress.stage].tasks.len();
        while progress.begun < tasks && progress.begun - progress.ended < plan.width.max(1) as usize
        {
            let at = FileId { stage: progress.stage as u32, task: progress.begun as u32 };
            progress.begun += 1;
            ready.push_back(Ready { job: number, task: Some(at), since: self.clock.now() });
            self.ready.notify_one();
        }
    }

    fn task(&self, number: usize, at: FileId) -> Result<(), (&'static str, String)> {
        let plan = &self.jobs[number];
        let task = &plan.stages[at.stage as usize].tasks[at.task as usize];
        let job = {
            let state = self.locked();
            let progress = state.running[number].as_ref().expect("the job of a task runs");
            progress.job.clone()
        };
        let (mut read_s, mut read_bytes, mut compared) = (0.0, 0, 0);
        let started = self.clock.now();
        let mut compare_s = 0.0;
        let mut buffer = self.buffers.lock().expect("no thread panicked").pop().unwrap_or_default();
        for (turn, read) in task.reads.iter().enumerate() {
            buffer.resize(read.bytes as usize, 0);
            let begun = self.clock.now();
            self.keep.read(&job, *read, &mut buffer).map_err(|e| ("read", e.to_string()))?;
            read_s += self.seconds(begun);
            read_bytes += read.bytes;
            let first = (at.task, turn) == (0, 0);
            let turn =
                number as u64 + u64::from(at.stage) * 7 + u64::from(at.task) * 3 + turn as u64;
            if first || turn.is_multiple_of(COMPARED) {
                let begun = self.clock.now();
                self.compare(number, *read, &buffer)?;
                compare_s += self.seconds(begun);
                compared += 1;
            }
        }
        self.buffers.lock().expect("no thread panicked").push(buffer);
        // The comparison is part of the task's computing time.
        let compute_s = task.compute_s * self.pace.compute;
        let until = started + Duration::from_secs_f64(read_s + compute_s.max(compare_s));
        self.clock.sleep_until(until);
        let begin = place(number, at);
        let content = &self.noise[begin..begin + task.bytes as usize];
        let begun = self.clock.now();
        let slept = begun.since(started).as_secs_f64() - read_s;
        self.keep.write(&job, at, content).map_err(|e| ("write", e.to_string()))?;
        self.keep.ended(&job, plan, at).map_err(|e| ("commit", e.to_string()))?;
        let write_s = self.seconds(begun);
        drop(job);
        self.ended(number, |carried| {
            carried.read_s += read_s;
            carried.write_s += write_s;
            carried.transfer_s += read_s + write_s;
            carried.compute_s += slept;
            carried.read += read_bytes;
            carried.written += task.bytes;
            carried.compared += compared;
        })
        .map_err(|e| ("end the job", e.to_string()))
    }

    fn compare(&self, job: usize, read: Read, got: &[u8]) -> Result<(), (&'static str, String)> {
        let at = FileId { stage: read.stage, task: read.task };
        let begin = place(job, at) + read.offset as usize;
        if got == &self.noise[begin..begin + got.len()] {
            return Ok(());
        }
        let what = format!(
            "{} bytes at {} of the file of stage {}, task {} differ from the written data",
            read.bytes, read.offset, read.stage, read.task
        );
        Err(("read", what))
    }

    /// Ends a task: the next tasks of its job may begin, or the job ends.
    fn ended(&self, number: usize, tell: impl FnOnce(&mut Carried)) -> Result<(), K::Error> {
        let plan = &self.jobs[number];
        let mut state = self.locked();
        tell(&mut state.carried);
        let progress = state.running[number].as_mut().expect("the job of a task runs");
        progress.ended += 1;
        let stage_over = progress.ended == plan.stages[progress.stage].tasks.len();
        if stage_over {
            (progress.stage, progress.begun, progress.ended) = (progress.stage + 1, 0, 0);
        }
        if progress.stage < plan.stages.len() {
            self.offer(&mut state, number);
            return Ok(());
        }
        let job = state.running[number].take().expect("the job ran").job;
        let now = self.clock.now().since(Time::ZERO).as_secs_f64();
        state.carried.seconds[number] = now - plan.arrival;
        drop(state);
        // The other tasks of the job dropped their references before they were counted as ended.
        let job = std::sync::Arc::into_inner(job).expect("the last task has the only reference");
        self.keep.end(job)?;
        self.locked().left -= 1;
        self.ended.notify_all();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fitted::{Fit, fitted};
    use crate::jobs::{Shape, TransferCost, mapreduce};
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// A storage in a map, which may change a byte of a read.
    #[derive(Default)]
    struct InMemory {
        flips: bool,
        files: AtomicUsize,
        jobs: AtomicUsize,
    }

    type Files = Mutex<HashMap<FileId, (Vec<u8>, u32)>>;

    impl Keep for InMemory {
        type Job = Files;
        type Error = String;

        fn begin(&self, _: usize, _: &JobPlan) -> Result<Files, String> {
            self.jobs.fetch_add(1, Relaxed);
            Ok(Mutex::default())
        }

        fn write(&self, job: &Files, at: FileId, content: &[u8]) -> Result<(), String> {
            self.files.fetch_add(1, Relaxed);
            let before = job.lock().unwrap().insert(at, (content.to_vec(), 0));
            before.map_or(Ok(()), |_| Err("written twice".into()))
        }

        fn read(&self, job: &Files, read: Read, buffer: &mut [u8]) -> Result<(), String> {
            let at = FileId { stage: read.stage, task: read.task };
            let files = job.lock().unwrap();
            let (bytes, _) = files.get(&at).ok_or("read before it was written")?;
            buffer.copy_from_slice(&bytes[read.offset as usize..][..buffer.len()]);
            if self.flips {
                buffer[0] ^= 1;
            }
            Ok(())
        }

        fn ended(&self, job: &Files, plan: &JobPlan, at: FileId) -> Result<(), String> {
            let readers = plan.readers();
            let mut files = job.lock().unwrap();
            for read in &plan.stages[at.stage as usize].tasks[at.task as usize].reads {
                let id = FileId { stage: read.stage, task: read.task };
                let file = files.get_mut(&id).ok_or("freed before its readers ended")?;
                file.1 += 1;
                if file.1 == readers[id.stage as usize][id.task as usize] {
                    files.remove(&id);
                    self.files.fetch_sub(1, Relaxed);
                }
            }
            Ok(())
        }

        fn end(&self, job: Files) -> Result<(), String> {
            self.files.fetch_sub(job.into_inner().unwrap().len(), Relaxed);
            self.jobs.fetch_sub(1, Relaxed);
            Ok(())
        }
    }

    fn jobs() -> Vec<JobPlan> {
        let cost = TransferCost { read: 1e9, write: 1e9, file_s: 1e-5 };
        let shape = Shape {
            file: 16 << 10,
            file_spread: 0.5,
            stages: (3, 6),
            tasks_spread: 1.0,
            width: 2,
            sources: 0.3,
            joins: 0.5,
            job: 100e3,
            job_spread: 0.5,
        };
        let demand = fitted(Fit { seed: 1, tenants: 4 }).scaled(0.2, 400 << 10);
        mapreduce(&demand, cost, shape, 1)
    }

    const PACE: Pace =
        Pace { threads: 8, compute: 1.0, patience: Duration::from_secs(30), seed: 7 };

    #[test]
    fn every_task_runs_once_and_what_is_written_is_read() {
        let (jobs, keep) = (jobs(), InMemory::default());
        let carried = carry(&jobs, &keep, PACE).unwrap();
        assert_eq!(carried.unfinished, 0);
        assert_eq!(carried.written, jobs.iter().map(JobPlan::written).sum::<u64>());
        assert_eq!(carried.read, jobs.iter().map(JobPlan::read).sum::<u64>());
        assert!(carried.compared > 0);
        assert!(carried.seconds.iter().all(|s| *s > 0.0));
        assert_eq!((keep.files.into_inner(), keep.jobs.into_inner()), (0, 0), "nothing is left");
    }

    /// On a machine that is so slow that a run has one job, a read of it is compared as well.
    #[test]
    fn first_read_of_each_stage_is_compared() {
        for job in jobs().into_iter().take(4) {
            let stages = job.stages.iter().filter(|stage| !stage.inputs.is_empty()).count();
            assert!(stages > 0, "a job reads its own files");
            let carried = carry(&[job], &InMemory::default(), PACE).unwrap();
            assert!(carried.compared >= stages as u64, "{} of {stages}", carried.compared);
        }
    }

    #[test]
    fn what_comes_back_wrong_ends_the_run() {
        let keep = InMemory { flips: true, ..InMemory::default() };
        let error = carry(&jobs(), &keep, PACE).unwrap_err();
        assert!(error.to_string().contains("differ from the written data"), "{error}");
    }

    #[test]
    fn who_has_not_ended_when_patience_has_is_told() {
        let keep = InMemory::default();
        let pace = Pace { compute: 1e6, patience: Duration::ZERO, threads: 1, ..PACE };
        let mut jobs = jobs();
        jobs.truncate(2);
        for job in &mut jobs {
            job.stages[0].tasks[0].compute_s = 1e-7;
        }
        let carried = carry(&jobs, &keep, pace).unwrap();
        assert_eq!(carried.unfinished, 2, "a tenth of a second is not enough for both");
        assert_eq!(keep.jobs.into_inner(), 0, "unfinished jobs were ended, too");
    }
}
