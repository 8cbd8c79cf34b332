//! Storage for the jobs' files: our cluster, or a redis-server, each with an object store for files that do
//! not fit.

use super::HEADROOM;
use super::objects::Objects;
use crate::redis::{RedisClient, SetEnd};
use honeycomb_client::{Client, Error, JobOptions, JobTicket};
use honeycomb_env::Clock;
use honeycomb_wire::Status;
use honeycomb_wire::messages::{DagNode, PrefixOptions};
use honeycomb_workload::{FileId, JobPlan, Keep, Read, TransferCost};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use thiserror::Error;

/// Lease of a job: longer than any run. Its files are freed when their readers have committed.
const LEASE_MS: u32 = 24 * 3600 * 1000;

/// How long a task waits for room if there is no lower tier, and the interval of its retries.
const PATIENCE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(20);

/// The error when a file cannot be stored.
#[derive(Debug, Error)]
pub enum KeepError {
    /// An error of the cluster.
    #[error("{0}")]
    Cluster(#[from] Error),
    /// An error of the object store or redis-server.
    #[error("{0}")]
    Store(#[from] io::Error),
}

/// Bytes and blocks in memory, as counted by clients.
#[derive(Debug, Default)]
pub struct Held {
    bytes: AtomicU64,
    blocks: AtomicU64,
    peak_bytes: AtomicU64,
    peak_blocks: AtomicU64,
}

impl Held {
    fn more(&self, bytes: u64, blocks: u64) {
        let now = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        self.peak_bytes.fetch_max(now, Relaxed);
        let now = self.blocks.fetch_add(blocks, Relaxed) + blocks;
        self.peak_blocks.fetch_max(now, Relaxed);
    }

    fn less(&self, bytes: u64, blocks: u64) {
        self.bytes.fetch_sub(bytes, Relaxed);
        self.blocks.fetch_sub(blocks, Relaxed);
    }

    /// Present bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Peak bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Relaxed)
    }

    /// Peak blocks.
    pub fn peak_blocks(&self) -> u64 {
        self.peak_blocks.load(Relaxed)
    }
}

/// A file of a running job.
#[derive(Clone, Copy)]
struct Kept {
    bytes: u64,
    in_memory: bool,
    /// Number of tasks that have not read the file.
    left: u32,
}

/// The files of a job by their tasks, with their remaining readers.
struct Files {
    readers: Vec<Vec<u32>>,
    kept: Mutex<HashMap<FileId, Kept>>,
}

impl Files {
    fn new(plan: &JobPlan) -> Files {
        Files { readers: plan.readers(), kept: Mutex::default() }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<FileId, Kept>> {
        self.kept.lock().expect("no thread panicked")
    }

    fn wrote(&self, at: FileId, bytes: u64, in_memory: bool) {
        let left = self.readers[at.stage as usize][at.task as usize];
        self.locked().insert(at, Kept { bytes, in_memory, left });
    }

    fn in_memory(&self, at: FileId) -> bool {
        self.locked()[&at].in_memory
    }

    /// Ends a task; answers the files whose last reader it was.
    fn read(&self, plan: &JobPlan, at: FileId) -> Vec<(FileId, Kept)> {
        let mut kept = self.locked();
        let mut gone = Vec::new();
        for read in &plan.stages[at.stage as usize].tasks[at.task as usize].reads {
            let id = FileId { stage: read.stage, task: read.task };
            let file = kept.get_mut(&id).expect("a file that was read exists");
            file.left -= 1;
            if file.left == 0 {
                gone.push((id, *file));
                kept.remove(&id);
            }
        }
        gone
    }

    fn rest(self) -> HashMap<FileId, Kept> {
        self.kept.into_inner().expect("no thread panicked")
    }
}

/// The name of a file's object or key, unique over all jobs.
fn name(job: usize, at: FileId) -> String {
    format!("{job}-{}-{}", at.stage, at.task)
}

/// The prefix of a task.
pub fn path(at: FileId) -> String {
    format!("/s{}-{}", at.stage, at.task)
}

/// The prefixes of a job: each name with the names of its file's readers.
pub fn prefixes(plan: &JobPlan) -> Vec<(String, Vec<String>)> {
    let name = |at| path(at)[1..].to_owned();
    let tasks = plan.stages.iter().enumerate().flat_map(|(stage, all)| {
        let id = move |task| FileId { stage: stage as u32, task: task as u32 };
        all.tasks.iter().enumerate().map(move |(n, task)| (id(n), task))
    });
    let mut readers: HashMap<FileId, Vec<String>> = HashMap::new();
    for (at, task) in tasks.clone() {
        for read in &task.reads {
            let id = FileId { stage: read.stage, task: read.task };
            readers.entry(id).or_default().push(name(at));
        }
    }
    tasks.map(|(at, _)| (name(at), readers.remove(&at).unwrap_or_default())).collect()
}

/// Memory in which jobs reserve their peak from start to end, as far as it suffices: the method of Pocket,
/// whose controller knows the peak of a job before it starts.
#[derive(Debug)]
pub struct Reservations {
    /// Number of blocks that can be reserved.
    capacity: u64,
    /// Costs from which the peak of a job is computed.
    cost: TransferCost,
    taken: Mutex<u64>,
}

impl Reservations {
    /// No reservations of this many blocks.
    pub fn of(capacity: u64, cost: TransferCost) -> Reservations {
        Reservations { capacity, cost, taken: Mutex::default() }
    }

    /// Reserves the peak of a job if enough blocks are left; answers the number of reserved blocks.
    fn reserve(&self, plan: &JobPlan, block: u64) -> Option<u64> {
        let wanted = (plan.peak_blocks(self.cost, block) as f64 * HEADROOM).ceil() as u64;
        let mut taken = self.taken.lock().expect("no thread panicked");
        let fits = *taken + wanted <= self.capacity;
        *taken += if fits { wanted } else { 0 };
        fits.then_some(wanted)
    }

    fn give_back(&self, blocks: u64) {
        *self.taken.lock().expect("no thread panicked") -= blocks;
    }
}

/// Files in a cluster: a prefix for each task with declared readers, which is freed when the last of them has
/// committed.
pub struct Ours<'a> {
    /// Client with the cluster's token.
    pub admin: Client,
    /// Creates a client with another token.
    pub client: &'a (dyn Fn(&[u8]) -> Client + Sync),
    /// Prefix of the names of jobs.
    pub name: String,
    /// Bytes of a block.
    pub block: u64,
    /// Object store for files that do not fit; without it, a task waits for room.
    pub objects: Option<&'a Objects>,
    /// Clock of the waits.
    pub clock: Clock,
    /// With reservations, a job is in memory only if its peak could be reserved, else on the servers' disks
    /// for its lifetime.
    pub reservations: Option<&'a Reservations>,
    /// Data in memory.
    pub held: &'a Held,
}

/// A job in our cluster.
pub struct OurJob {
    number: usize,
    reserved: u64,
    client: Client,
    ticket: JobTicket,
    files: Files,
}

impl Ours<'_> {
    fn blocks(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.block)
    }

    fn gone(&self, job: usize, at: FileId, file: Kept) -> Result<(), KeepError> {
        match (file.in_memory, self.objects) {
            (true, _) => self.held.less(file.bytes, self.blocks(file.bytes)),
            (false, Some(objects)) => objects.remove(&name(job, at))?,
            (false, None) => {}
        }
        Ok(())
    }
}

impl Keep for Ours<'_> {
    type Job = OurJob;
    type Error = KeepError;

    fn begin(&self, number: usize, plan: &JobPlan) -> Result<OurJob, KeepError> {
        let reserved = self.reservations.map(|all| all.reserve(plan, self.block));
        let options = JobOptions {
            lease_ms: LEASE_MS,
            latency_sensitive: reserved != Some(None),
            ..JobOptions::default()
        };
        let reserved = reserved.flatten().unwrap_or(0);
        let name = format!("{}-{number}", self.name);
        let ticket = self.admin.register_job_with(&name, &options)?;
        let client = (self.client)(&ticket.token);
        let nodes = prefixes(plan).into_iter().map(|(name, readers)| {
            // Only its readers free it: the benchmark does not measure leases.
            let options = PrefixOptions { pinned: true, high_mark: 99, ..Default::default() };
            DagNode { name, parents: vec![], options, readers }
        });
        client.create_hierarchy(ticket.job, nodes.collect())?;
        Ok(OurJob { number, reserved, client, ticket, files: Files::new(plan) })
    }

    fn write(&self, job: &OurJob, at: FileId, content: &[u8]) -> Result<(), KeepError> {
        let blocks = self.blocks(content.len() as u64);
        let make = || job.client.create_file(job.ticket.job, &path(at), blocks as u32, false);
        let mut made = make();
        let until = self.clock.now() + PATIENCE;
        // If memory and disk are full, the task waits until others free blocks, and its job takes longer.
        while self.objects.is_none()
            && made.as_ref().is_err_and(|e| e.status == Status::OutOfMemory)
            && self.clock.now() < until
        {
            self.clock.sleep_until(self.clock.now() + AGAIN);
            made = make();
        }
        match (made, self.objects) {
            (Ok(file), _) => {
                self.held.more(content.len() as u64, blocks);
                file.write_all(content)?;
                job.files.wrote(at, content.len() as u64, true);
            }
            (Err(e), Some(objects)) if e.status == Status::OutOfMemory => {
                objects.put(&name(job.number, at), content)?;
                job.files.wrote(at, content.len() as u64, false);
            }
            (Err(e), _) => return Err(e.into()),
        }
        Ok(())
    }

    fn read(&self, job: &OurJob, read: Read, buffer: &mut [u8]) -> Result<(), KeepError> {
        let at = FileId { stage: read.stage, task: read.task };
        match self.objects {
            Some(objects) if !job.files.in_memory(at) => {
                objects.get(&name(job.number, at), read.offset, buffer)?;
            }
            _ => {
                let file = job.client.open_file(job.ticket.job, &path(at))?;
                let got = file.read_into(read.offset, buffer)?;
                if got != buffer.len() {
                    let text = format!("{got} of {} bytes of {}", buffer.len(), path(at));
                    return Err(Error::new(Status::Internal, text).into());
                }
            }
        }
        Ok(())
    }

    fn ended(&self, job: &OurJob, plan: &JobPlan, at: FileId) -> Result<(), KeepError> {
        job.client.commit_task(job.ticket.job, &path(at))?;
        for (at, file) in job.files.read(plan, at) {
            self.gone(job.number, at, file)?;
        }
        Ok(())
    }

    fn end(&self, job: OurJob) -> Result<(), KeepError> {
        self.admin.deregister_job(job.ticket.job)?;
        if let Some(reservations) = self.reservations {
            reservations.give_back(job.reserved);
        }
        for (at, file) in job.files.rest() {
            self.gone(job.number, at, file)?;
        }
        Ok(())
    }
}

/// Files as values in a redis-server, or in the object store if it has no memory for them.
pub struct Theirs<'a> {
    /// host:port.
    pub address: &'a str,
    /// Idle connections.
    pub idle: Mutex<Vec<RedisClient>>,
    /// Object store for files that do not fit.
    pub objects: &'a Objects,
    /// Data in memory.
    pub held: &'a Held,
}

/// A job whose files are values.
pub struct TheirJob {
    number: usize,
    files: Files,
}

impl Theirs<'_> {
    fn with<T>(&self, ask: impl FnOnce(&mut RedisClient) -> io::Result<T>) -> io::Result<T> {
        let idle = self.idle.lock().expect("no thread panicked").pop();
        let mut client = match idle {
            Some(client) => client,
            None => RedisClient::connect(self.address, Duration::ZERO)?,
        };
        let answer = ask(&mut client)?;
        self.idle.lock().expect("no thread panicked").push(client);
        Ok(answer)
    }

    fn gone(&self, job: usize, at: FileId, file: Kept) -> Result<(), KeepError> {
        let name = name(job, at);
        match file.in_memory {
            true => {
                self.with(|redis| redis.unlink(name.as_bytes()))?;
                self.held.less(file.bytes, 0);
            }
            false => self.objects.remove(&name)?,
        }
        Ok(())
    }
}

impl Keep for Theirs<'_> {
    type Job = TheirJob;
    type Error = KeepError;

    fn begin(&self, number: usize, plan: &JobPlan) -> Result<TheirJob, KeepError> {
        Ok(TheirJob { number, files: Files::new(plan) })
    }

    fn write(&self, job: &TheirJob, at: FileId, content: &[u8]) -> Result<(), KeepError> {
        let name = name(job.number, at);
        let end = self.with(|redis| redis.set_if_room(name.as_bytes(), content))?;
        if end == SetEnd::OutOfMemory {
            self.objects.put(&name, content)?;
        } else {
            self.held.more(content.len() as u64, 0);
        }
        job.files.wrote(at, content.len() as u64, end == SetEnd::Stored);
        Ok(())
    }

    fn read(&self, job: &TheirJob, read: Read, buffer: &mut [u8]) -> Result<(), KeepError> {
        let at = FileId { stage: read.stage, task: read.task };
        let name = name(job.number, at);
        match job.files.in_memory(at) {
            true => self.with(|redis| redis.get_range(name.as_bytes(), read.offset, buffer))?,
            false => self.objects.get(&name, read.offset, buffer)?,
        }
        Ok(())
    }

    fn ended(&self, job: &TheirJob, plan: &JobPlan, at: FileId) -> Result<(), KeepError> {
        for (at, file) in job.files.read(plan, at) {
            self.gone(job.number, at, file)?;
        }
        Ok(())
    }

    fn end(&self, job: TheirJob) -> Result<(), KeepError> {
        let number = job.number;
        for (at, file) in job.files.rest() {
            self.gone(number, at, file)?;
        }
        Ok(())
    }
}
