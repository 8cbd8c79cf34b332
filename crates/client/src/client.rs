//! A client of one cluster, with one token.

use crate::context::Context;
use crate::custom::{Custom, CustomOptions, KindRef};
use crate::error::Error;
use crate::file::File;
use crate::handle::Handle;
use crate::holder;
use crate::keeper::{Keeper, LostLease};
use crate::kv::Kv;
use crate::pool::ConnectionPool;
use crate::queue::Queue;
use crate::route::checked;
use crate::structure::{OpenedStructure, Structure};
use crate::transport::ClientIdentity;
use honeycomb_env::Clock;
use honeycomb_types::{
    Address, AnnouncedKind, JobId, Kind, KindSpec, PrefixId, StructureId, Verbs, check_job_name,
};
use honeycomb_wire::attenuate;
use honeycomb_wire::custom::announced_kind;
use honeycomb_wire::messages::*;
use honeycomb_wire::token::Caveat;
use honeycomb_wire::{Field, Op, Status};
use std::sync::Arc;
use std::time::Duration;

/// How to reach a cluster.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// host:port of the controller, with or without `honeycomb://`.
    pub address: String,
    /// The cluster's token, a job's, or one narrowed to a task.
    pub token: Vec<u8>,
    /// The prefix of this client's task: the client's traffic renews that prefix. Zero for none.
    pub task_prefix: PrefixId,
    /// Time within which every call ends, with its result or an error.
    pub timeout: Duration,
    /// How long to poll for a reply before sleeping. Zero never polls.
    pub spin: Duration,
    /// Whether to switch to the Unix socket of a node on this machine, if it has one that this user
    /// may use.
    pub unix: bool,
}

impl ClientOptions {
    /// The defaults: 10 s for every call, up to 50 us of polling, and Unix sockets where available.
    pub fn new(address: impl Into<String>, token: impl Into<Vec<u8>>) -> ClientOptions {
        ClientOptions {
            address: address.into(),
            token: token.into(),
            task_prefix: PrefixId(0),
            timeout: Duration::from_secs(10),
            spin: Duration::from_micros(50),
            unix: true,
        }
    }
}

/// The fate of a live job whose name is registered again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfExists {
    /// The registration fails with `AlreadyExists`.
    #[default]
    Fail,
    /// The job is opened as it is, and its options stay.
    Open,
    /// The job ends, with all its data, and a new one begins.
    Replace,
}

/// How a job is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobOptions {
    /// The tenant that owns it; the job is then found as `TENANT/NAME`. Without one, the job is its
    /// own tenant.
    pub tenant: Option<String>,
    /// Default lease of its prefixes in milliseconds; 0 takes the cluster's.
    pub lease_ms: u32,
    /// Most blocks that it may hold; 0 for no quota.
    pub quota_blocks: u64,
    /// Its data should stay in memory. The same holds for every job that does not say otherwise.
    pub latency_sensitive: bool,
    /// Tasks that will run at the same time; 0 if unknown.
    pub tasks: u32,
    /// Bytes that it will hold at its peak; 0 if unknown.
    pub capacity: u64,
    /// Bytes per second that it will read and write at its peak; 0 if unknown.
    pub peak_throughput: u64,
    /// The fate of a live job of this name. A job whose holder has ended on this machine is
    /// replaced (or opened, with `Open`) in any case.
    pub if_exists: IfExists,
    /// This process holds the job. When it has ended, the next registration of the name on this machine
    /// replaces the job. Without a holder a job lives by its leases alone.
    pub held: bool,
}

impl Default for JobOptions {
    fn default() -> JobOptions {
        JobOptions {
            tenant: None,
            lease_ms: 0,
            quota_blocks: 0,
            latency_sensitive: true,
            tasks: 0,
            capacity: 0,
            peak_throughput: 0,
            if_exists: IfExists::Fail,
            held: true,
        }
    }
}

/// A job, as returned by its registration or by a look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobTicket {
    /// The job.
    pub job: JobId,
    /// Its root prefix.
    pub root: PrefixId,
    /// Its token, good for this life of the job: when its root's lease has ended and a client has
    /// reopened it, the token is refused with `LeaseExpired`.
    pub token: Vec<u8>,
    /// The job existed already, and another process holds it.
    pub found: bool,
}

/// How often a registration retries while other clients register and end the same job.
const REGISTRATIONS: usize = 10;

/// The ticket for a reply to `RegisterJob` or `FindJob`.
fn ticket(reply: &RegisterJobReply, found: bool) -> Result<JobTicket, Error> {
    let root = PrefixId(reply.root);
    let token = attenuate(&reply.token, Caveat::Life(root)).map_err(|e| {
        Error::new(Status::Unauthenticated, format!("the controller issued an invalid token: {e}"))
    })?;
    Ok(JobTicket { job: JobId(reply.job), root, token, found })
}

/// The owner of a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaOf {
    /// All jobs of a tenant.
    Tenant(String),
    /// A job.
    Job(JobId),
    /// A prefix and all its descendants, by its path.
    Prefix(JobId, String),
}

impl QuotaOf {
    fn parts(&self) -> (u64, u8, String) {
        match self {
            QuotaOf::Tenant(name) => (0, 0, name.clone()),
            QuotaOf::Job(job) => (job.0, 1, String::new()),
            QuotaOf::Prefix(job, path) => (job.0, 2, path.clone()),
        }
    }
}

/// A quota in blocks, and its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Maximum number of blocks; 0 for no limit.
    pub max_blocks: u64,
    /// Blocks held; 0 for a prefix that has no quota.
    pub held_blocks: u64,
    /// Blocks in memory above which its blocks are the first to be demoted; 0 for none.
    pub soft_blocks: u64,
    /// The weight of its share of memory.
    pub weight: u32,
    /// The held blocks that are in memory and that are not demoted.
    pub memory_blocks: u64,
}

/// Changes to a quota; `None` leaves a value unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaChange {
    /// Maximum number of blocks; 0 for no limit.
    pub max_blocks: Option<u64>,
    /// Blocks in memory above which its blocks are the first to be demoted; 0 for none.
    pub soft_blocks: Option<u64>,
    /// The weight of the memory share of a tenant, or of a job without a tenant.
    pub weight: Option<u32>,
}

/// A structure with its kind.
#[allow(missing_docs)] // each is what its type says
pub enum Any {
    File(File),
    Queue(Queue),
    Kv(Kv),
    Custom(Custom),
}

struct ClientInner {
    context: Arc<Context>,
    keeper: Keeper,
}

/// A client. Clones share connections, session and lease keeper. Every call has a deadline.
#[derive(Clone)]
pub struct Client(Arc<ClientInner>);

impl Client {
    /// Makes a client without sending anything; `ping` checks whether the cluster is reachable.
    pub fn new(options: ClientOptions) -> Client {
        let address = options.address.strip_prefix("honeycomb://").unwrap_or(&options.address);
        let address = address.split('/').next().unwrap_or(address).to_owned();
        let identity = ClientIdentity { token: options.token, task_prefix: options.task_prefix };
        let pool = ConnectionPool::new(identity, Clock::start(), options.spin, options.unix);
        let context = Arc::new(Context {
            pool,
            controller: (address, u8::MAX),
            timeout: options.timeout,
            buffers: Default::default(),
        });
        let keeper = Keeper::new(context.clone());
        Client(Arc::new(ClientInner { context, keeper }))
    }

    /// host:port of the controller.
    pub fn address(&self) -> &str {
        &self.0.context.controller.0
    }

    /// The Unix sockets of the nodes that this client has connected to: host:port, path, and
    /// whether connections use it. A socket that is not used is on another machine, or belongs to
    /// another user.
    pub fn unix_sockets(&self) -> Vec<(String, String, bool)> {
        self.0.context.pool.near()
    }

    pub(crate) fn clock(&self) -> Clock {
        self.0.context.pool.clock()
    }

    pub(crate) fn ask<Q: Field, R: Field>(&self, op: Op, body: &Q) -> Result<R, Error> {
        self.0.context.ask(op, body, self.0.context.deadline())
    }

    /// Checks that the controller is reachable and accepts the token.
    pub fn ping(&self) -> Result<(), Error> {
        self.ask::<_, PingReply>(Op::Ping, &PingRequest {}).map(drop)
    }

    /// Registers a job of this name, or `TENANT/NAME`. Needs the cluster's token.
    pub fn register_job(
        &self,
        name: &str,
        lease_ms: u32,
        quota_blocks: u64,
    ) -> Result<JobTicket, Error> {
        let options = JobOptions { lease_ms, quota_blocks, ..JobOptions::default() };
        self.register_job_with(name, &options)
    }

    /// Registers a job with hints about its use (Pocket, register_job). Needs the cluster's token.
    pub fn register_job_with(&self, name: &str, options: &JobOptions) -> Result<JobTicket, Error> {
        let name = match &options.tenant {
            Some(tenant) => format!("{tenant}/{name}"),
            None => name.to_owned(),
        };
        check_job_name(&name)?;
        let mut body = RegisterJobRequest {
            name,
            lease_ms: options.lease_ms,
            quota_blocks: options.quota_blocks,
            hints: JobHints {
                flags: u8::from(!options.latency_sensitive),
                tasks: options.tasks,
                bytes: options.capacity,
                bytes_per_s: options.peak_throughput,
            },
            holder: if options.held { holder::this_process() } else { Default::default() },
            over: 0,
            adopt: options.if_exists == IfExists::Open,
        };
        let mut left = REGISTRATIONS;
        loop {
            left -= 1;
            let refused = match self.ask::<_, RegisterJobReply>(Op::RegisterJob, &body) {
                Err(e) if e.status == Status::AlreadyExists && left > 0 => e,
                reply => return ticket(&reply?, false),
            };
            let there = match self.look_for_job(&body.name) {
                // The job ended between the two requests.
                Err(e) if e.status == Status::UnknownJob => continue,
                there => there?,
            };
            // This process holds the jobs that it registered earlier.
            let ours = there.holder == body.holder && body.holder.process != 0;
            let free = holder::is_gone(&there.holder);
            match options.if_exists {
                IfExists::Fail if !free => return Err(refused),
                IfExists::Open if !free && !ours => return ticket(&there, true),
                IfExists::Fail | IfExists::Open | IfExists::Replace => body.over = there.job,
            }
        }
    }

    fn look_for_job(&self, name: &str) -> Result<RegisterJobReply, Error> {
        check_job_name(name)?;
        // The two replies have the same form.
        self.ask(Op::FindJob, &FindJobRequest { name: name.into() })
    }

    /// Restarts a job whose root lease has ended: creates the root prefix again and forgets
    /// prefixes that have ended, so that their names are free. Live prefixes stay. For a live job
    /// it equals `find_job`. Needs the cluster's token.
    pub fn reopen_job(&self, name: &str) -> Result<JobTicket, Error> {
        let there = self.look_for_job(name)?;
        match self.create_prefix(JobId(there.job), "", &[], PrefixOptions::default()) {
            Ok(_) => {}
            // It is live, or another client has reopened it.
            Err(e) if e.status == Status::AlreadyExists => {}
            Err(e) => return Err(e),
        }
        self.find_job(name)
    }

    /// Finds a job by its name. Needs the cluster's token.
    pub fn find_job(&self, name: &str) -> Result<JobTicket, Error> {
        ticket(&self.look_for_job(name)?, true)
    }

    /// Ends a job and frees its prefixes, structures and blocks at once.
    pub fn deregister_job(&self, job: JobId) -> Result<(), Error> {
        self.deregister_job_within(job, self.0.context.timeout)
    }

    /// The same, with a deadline other than the client's own.
    pub fn deregister_job_within(&self, job: JobId, time: Duration) -> Result<(), Error> {
        self.0.keeper.release(job, &[]);
        let body = DeregisterJobRequest { job: job.0 };
        let deadline = self.clock().now() + time;
        let context = &self.0.context;
        context.ask::<_, DeregisterJobReply>(Op::DeregisterJob, &body, deadline).map(drop)
    }

    /// Sets a quota; 0 removes it. Needs the cluster's token, or for a prefix the job's.
    pub fn set_quota(&self, of: &QuotaOf, max_blocks: u64) -> Result<Quota, Error> {
        self.change_quota(of, &QuotaChange { max_blocks: Some(max_blocks), ..Default::default() })
    }

    /// Changes a quota; `None` leaves a value unchanged. Needs the cluster's token, or for a prefix
    /// the job's.
    pub fn change_quota(&self, of: &QuotaOf, change: &QuotaChange) -> Result<Quota, Error> {
        // On the wire these values stand for no change.
        let blocks = [change.max_blocks, change.soft_blocks];
        if change.weight == Some(0) || blocks.contains(&Some(u64::MAX)) {
            let text = format!(
                "a weight must be at least 1 and a block count at most {}, but got {change:?}",
                u64::MAX - 1
            );
            return Err(Error::new(Status::InvalidArgument, text));
        }
        let (job, level, name) = of.parts();
        let body = SetQuotaRequest {
            job,
            level,
            name,
            max_blocks: change.max_blocks.unwrap_or(u64::MAX),
            soft_blocks: change.soft_blocks.unwrap_or(u64::MAX),
            weight: change.weight.unwrap_or(0),
        };
        let SetQuotaReply { max_blocks, held_blocks, soft_blocks, weight, memory_blocks } =
            self.ask(Op::SetQuota, &body)?;
        Ok(Quota { max_blocks, held_blocks, soft_blocks, weight, memory_blocks })
    }

    /// A quota and its use. Needs the cluster's token for a tenant.
    pub fn quota(&self, of: &QuotaOf) -> Result<Quota, Error> {
        let (job, level, name) = of.parts();
        let body = GetQuotaRequest { job, level, name };
        let GetQuotaReply { max_blocks, held_blocks, soft_blocks, weight, memory_blocks } =
            self.ask(Op::GetQuota, &body)?;
        Ok(Quota { max_blocks, held_blocks, soft_blocks, weight, memory_blocks })
    }

    /// The jobs that the token gives access to.
    pub fn list_jobs(&self) -> Result<Vec<JobInfo>, Error> {
        Ok(self.ask::<_, ListJobsReply>(Op::ListJobs, &ListJobsRequest {})?.jobs)
    }

    /// The servers for the next blocks of a job with hints, with their weights.
    pub fn weights(&self, job: JobId) -> Result<JobWeightsReply, Error> {
        self.ask(Op::JobWeights, &JobWeightsRequest { job: job.0 })
    }

    /// The usage of a job, or of all jobs that the token gives access to; ended jobs come first.
    pub fn bills(&self, job: Option<JobId>) -> Result<Vec<JobBill>, Error> {
        let body = JobCostRequest { job: job.map_or(0, |job| job.0) };
        Ok(self.ask::<_, JobCostReply>(Op::JobCost, &body)?.bills)
    }

    /// A job's address DAG, parents before children.
    pub fn tree(&self, job: JobId) -> Result<Vec<PrefixInfo>, Error> {
        let body = JobTreeRequest { job: job.0 };
        Ok(self.ask::<_, JobTreeReply>(Op::JobTree, &body)?.prefixes)
    }

    /// Servers and totals.
    pub fn status(&self) -> Result<ClusterStatusReply, Error> {
        self.ask(Op::ClusterStatus, &ClusterStatusRequest {})
    }

    /// Drains the memory server at this address, or with `cancel` stops doing so. A draining server
    /// gets no new blocks and ends when it has none; `status` reports the progress. Needs the
    /// cluster's token.
    pub fn drain_server(&self, address: &str, cancel: bool) -> Result<(), Error> {
        let body = DrainServerRequest { address: address.into(), cancel };
        self.ask::<_, DrainServerReply>(Op::DrainServer, &body).map(|_| ())
    }

    /// Adds a prefix (Table 1, createAddrPrefix).
    pub fn create_prefix(
        &self,
        job: JobId,
        path: &str,
        parents: &[String],
        options: PrefixOptions,
    ) -> Result<PrefixId, Error> {
        honeycomb_types::split_path(path)?;
        let body = CreatePrefixRequest {
            job: job.0,
            path: path.into(),
            parents: parents.to_vec(),
            options: options.clone(),
        };
        let reply: CreatePrefixReply = self.ask(Op::CreatePrefix, &body)?;
        self.0.keeper.created(job, options.lease_ms);
        Ok(PrefixId(reply.prefix))
    }

    /// Creates all prefixes of a plan, or none (Table 1, createHierarchy).
    pub fn create_hierarchy(
        &self,
        job: JobId,
        nodes: Vec<DagNode>,
    ) -> Result<Vec<PrefixId>, Error> {
        let shortest = nodes.iter().map(|n| n.options.lease_ms).filter(|ms| *ms != 0).min();
        let body = CreateHierarchyRequest { job: job.0, nodes };
        let reply: CreateHierarchyReply = self.ask(Op::CreateHierarchy, &body)?;
        self.0.keeper.created(job, shortest.unwrap_or(0));
        Ok(reply.prefixes.into_iter().map(PrefixId).collect())
    }

    /// Frees a prefix's structures at once and ends its lease.
    pub fn remove_prefix(&self, job: JobId, path: &str) -> Result<(), Error> {
        let body = RemovePrefixRequest { job: job.0, path: path.into() };
        self.ask::<_, RemovePrefixReply>(Op::RemovePrefix, &body).map(drop)
    }

    /// Renews prefixes with their direct parents and all descendants. Each path succeeds or fails
    /// independently.
    pub fn renew(&self, job: JobId, paths: &[String]) -> Result<Vec<RenewResult>, Error> {
        let body = RenewLeasesRequest { job: job.0, paths: paths.to_vec() };
        Ok(self.ask::<_, RenewLeasesReply>(Op::RenewLeases, &body)?.results)
    }

    /// A prefix's lease (Table 1, getLeaseDuration). The remaining time is a lower bound if the prefix
    /// has more than 4096 children, or more than 4096 edges lead to its ancestors.
    pub fn lease(&self, job: JobId, path: &str) -> Result<LeaseInfoReply, Error> {
        self.ask(Op::LeaseInfo, &LeaseInfoRequest { job: job.0, path: path.into() })
    }

    /// Changes the permissions of a prefix's structures, and revokes every earlier grant.
    pub fn set_permissions(
        &self,
        job: JobId,
        path: &str,
        owner: Verbs,
        others: Verbs,
    ) -> Result<(), Error> {
        let body = SetPermissionsRequest {
            job: job.0,
            path: path.into(),
            owner_verbs: owner.0,
            job_verbs: others.0,
        };
        self.ask::<_, SetPermissionsReply>(Op::SetPermissions, &body).map(drop)
    }

    /// Declares the tasks that will read a prefix, by the paths of their prefixes. When the last of
    /// them has committed, the prefix is freed at once. Adds to or replaces earlier declarations.
    /// Returns the number of tasks that have not committed; 0 if that freed the prefix, or if no
    /// task is declared.
    pub fn declare_readers(
        &self,
        job: JobId,
        path: &str,
        readers: &[String],
        replace: bool,
    ) -> Result<u32, Error> {
        let (path, readers) = (path.into(), readers.to_vec());
        let body = DeclareReadersRequest { job: job.0, path, readers, replace };
        Ok(self.ask::<_, DeclareReadersReply>(Op::DeclareReaders, &body)?.left)
    }

    /// Commits this prefix's task attempt and its reads. Returns the number of prefixes that this
    /// freed; a repeated call returns 0.
    pub fn commit_task(&self, job: JobId, path: &str) -> Result<u32, Error> {
        let body = CommitTaskRequest { job: job.0, path: path.into() };
        Ok(self.ask::<_, CommitTaskReply>(Op::CommitTask, &body)?.freed)
    }

    fn create(&self, body: CreateStructureRequest) -> Result<Structure, Error> {
        // The three replies that open a structure have the same form.
        let reply: OpenStructureReply = self.ask(Op::CreateStructure, &body)?;
        let opened = opened(reply)?;
        let address = join(&body.path, &body.name);
        Ok(Structure::new(self.0.context.clone(), JobId(body.job), address, opened))
    }

    /// Creates a file under a prefix with its initial blocks. One takes 64 KiB of memory at first,
    /// several take all of theirs at once.
    pub fn create_file(
        &self,
        job: JobId,
        address: &str,
        blocks: u32,
        open_existing: bool,
    ) -> Result<File, Error> {
        let body = new_structure(job, address, File::KIND, blocks, open_existing)?;
        self.create(body).map(File)
    }

    /// Creates a key-value store under a prefix with its blocks, which take memory as those of a
    /// file.
    pub fn create_kv(
        &self,
        job: JobId,
        address: &str,
        blocks: u32,
        open_existing: bool,
    ) -> Result<Kv, Error> {
        let body = new_structure(job, address, Kv::KIND, blocks, open_existing)?;
        self.create(body).map(Kv)
    }

    /// Creates a queue under a prefix. `max_items` (maxQueueLength) and `max_bytes` bound its
    /// content; 0 for no bound. An existing queue is opened if it has the requested bounds; 0
    /// accepts any.
    pub fn create_queue(
        &self,
        job: JobId,
        address: &str,
        max_items: u64,
        max_bytes: u64,
        open_existing: bool,
    ) -> Result<Queue, Error> {
        let body = new_structure(job, address, Queue::KIND, 1, open_existing)?;
        self.create(CreateStructureRequest { max_items, max_bytes, ..body }).map(Queue::of)
    }

    /// The custom kinds of the cluster's memory servers, each with the number of live servers that
    /// serve it.
    pub fn kinds(&self) -> Result<Vec<(KindSpec, u32)>, Error> {
        let kinds = self.announced_kinds()?;
        Ok(kinds.into_iter().map(|(kind, servers)| (kind.spec, servers)).collect())
    }

    fn announced_kinds(&self) -> Result<Vec<(AnnouncedKind, u32)>, Error> {
        let reply: ListKindsReply = self.ask(Op::ListKinds, &ListKindsRequest {})?;
        let read = |info: &KindInfo| match announced_kind(info) {
            Ok(kind) => Ok((kind, info.servers)),
            Err(why) => Err(Error::new(Status::BadFrame, why)),
        };
        reply.kinds.iter().map(read).collect()
    }

    /// The announcement of a custom kind; `UnknownKind` if no server has announced it.
    fn kind(&self, wanted: KindRef<'_>) -> Result<AnnouncedKind, Error> {
        let kinds = self.announced_kinds()?;
        let known = kinds.iter().map(|(kind, _)| format!("'{}'", kind.spec.name));
        let known: Vec<String> = known.collect();
        let found = kinds.into_iter().find(|(kind, _)| match wanted {
            KindRef::Code(code) => kind.spec.kind.code() == code,
            KindRef::Name(name) => kind.spec.name == name,
        });
        found.map(|(kind, _)| kind).ok_or_else(|| {
            let there = match known.is_empty() {
                true => "they serve only file, queue and kv".to_owned(),
                false => format!("they serve {}", known.join(", ")),
            };
            let text =
                format!("no memory server of this cluster serves the kind {wanted}; {there}");
            Error::new(Status::UnknownKind, text)
        })
    }

    fn with_spec(&self, structure: Structure) -> Result<Custom, Error> {
        let kind = self.kind(KindRef::Code(structure.kind().code()))?;
        Ok(Custom::new(structure, kind))
    }

    /// Creates a structure of a custom kind under a prefix; `UnknownKind` if no live server serves
    /// it.
    pub fn create_custom<'a>(
        &self,
        job: JobId,
        address: &str,
        kind: impl Into<KindRef<'a>>,
        options: CustomOptions,
    ) -> Result<Custom, Error> {
        let kind = self.kind(kind.into())?;
        let CustomOptions { blocks, max_items, max_bytes, open_existing } = options;
        let body = new_structure(job, address, kind.spec.kind, blocks, open_existing)?;
        let body = CreateStructureRequest { max_items, max_bytes, ..body };
        Ok(Custom::new(self.create(body)?, kind))
    }

    /// Opens a structure of a custom kind; `WrongKind` if it has another kind.
    pub fn open_custom<'a>(
        &self,
        job: JobId,
        address: &str,
        kind: impl Into<KindRef<'a>>,
    ) -> Result<Custom, Error> {
        let kind = self.kind(kind.into())?;
        let structure = of_kind(self.open(job, address)?, kind.spec.kind)?;
        Ok(Custom::new(structure, kind))
    }

    /// Opens a structure of any kind.
    pub fn open(&self, job: JobId, address: &str) -> Result<Structure, Error> {
        let Address { path, name } = Address::parse(address)?;
        let body = OpenStructureRequest { job: job.0, path: path.into(), name: name.into() };
        let reply: OpenStructureReply = self.ask(Op::OpenStructure, &body)?;
        let opened = opened(reply)?;
        Ok(Structure::new(self.0.context.clone(), job, join(path, name), opened))
    }

    /// Opens a structure by its number.
    pub(crate) fn open_by_id(
        &self,
        job: JobId,
        structure: StructureId,
    ) -> Result<Structure, Error> {
        let body = ReopenStructureRequest { job: job.0, structure: structure.0 };
        let reply: OpenStructureReply = self.ask(Op::ReopenStructure, &body)?;
        let opened = opened(reply)?;
        let address = format!("{structure} of {job}");
        Ok(Structure::new(self.0.context.clone(), job, address, opened))
    }

    /// Opens a structure as its own kind.
    pub fn open_any(&self, job: JobId, address: &str) -> Result<Any, Error> {
        self.any_of(self.open(job, address)?)
    }

    /// Opens the structure of this address if it has this identity. Otherwise the error says how
    /// that structure ended.
    pub fn open_same(&self, job: JobId, id: StructureId, address: &str) -> Result<Any, Error> {
        // Opening by address comes first: it makes the edge by which a task keeps its input alive.
        let structure = self.open(job, address)?;
        if structure.id() == id {
            return self.any_of(structure);
        }
        let body = ReopenStructureRequest { job: job.0, structure: id.0 };
        let reply: OpenStructureReply = self.ask(Op::ReopenStructure, &body)?;
        let (context, address) = (self.0.context.clone(), address.to_owned());
        self.any_of(Structure::new(context, job, address, opened(reply)?))
    }

    fn any_of(&self, structure: Structure) -> Result<Any, Error> {
        Any::of(structure, |structure| match structure.kind() {
            Kind::Custom(_) => self.with_spec(structure).map(Any::Custom),
            _ => {
                let text =
                    "the controller opened something that is not a structure; this is a defect";
                Err(Error::new(Status::Internal, text))
            }
        })
    }

    /// Opens a file; `WrongKind` if it has another kind.
    pub fn open_file(&self, job: JobId, address: &str) -> Result<File, Error> {
        handle(self.open(job, address)?)
    }

    /// Opens a key-value store; `WrongKind` if it has another kind.
    pub fn open_kv(&self, job: JobId, address: &str) -> Result<Kv, Error> {
        handle(self.open(job, address)?)
    }

    /// Opens a queue; `WrongKind` if it has another kind.
    pub fn open_queue(&self, job: JobId, address: &str) -> Result<Queue, Error> {
        handle(self.open(job, address)?)
    }

    /// Frees a structure's blocks at once.
    pub fn remove_structure(&self, job: JobId, address: &str) -> Result<(), Error> {
        let Address { path, name } = Address::parse(address)?;
        let body = RemoveStructureRequest { job: job.0, path: path.into(), name: name.into() };
        self.ask::<_, RemoveStructureReply>(Op::RemoveStructure, &body).map(drop)
    }

    /// Keeps these prefixes alive: renews them four times in each lease, until `release` or until
    /// the last clone of this client is dropped.
    pub fn keep(&self, job: JobId, paths: &[String]) {
        self.0.keeper.keep(job, paths);
    }

    /// Stops renewing these prefixes; with no paths, all of the job's.
    pub fn release(&self, job: JobId, paths: &[String]) {
        self.0.keeper.release(job, paths);
    }

    /// Calls `observer` in the keeper's thread for every prefix whose lease could not be renewed, until
    /// it returns false. Without an observer, the first loss is printed on standard error.
    pub fn on_lost_leases(&self, observer: impl FnMut(&LostLease) -> bool + Send + 'static) {
        self.0.keeper.observe(Box::new(observer));
    }

    /// The prefixes that could not be renewed since the last call.
    pub fn lost_leases(&self) -> Vec<LostLease> {
        self.0.keeper.take_lost()
    }
}

fn opened(reply: OpenStructureReply) -> Result<OpenedStructure, Error> {
    let kind = Kind::from_code(reply.kind).ok_or_else(|| {
        let text =
            format!("a structure of kind {:#x}, which this client does not know", reply.kind);
        Error::new(Status::WrongKind, text)
    })?;
    checked(&reply.map).map_err(|why| Error::new(Status::BadFrame, why))?;
    Ok(OpenedStructure {
        structure: StructureId(reply.structure),
        prefix: PrefixId(reply.prefix),
        kind,
        verbs: Verbs(reply.verbs),
        grant: reply.grant,
        map: reply.map,
        max_items: reply.max_items,
        max_bytes: reply.max_bytes,
    })
}

/// The handle of a structure; `WrongKind` if it has another kind.
pub(crate) fn handle<H: Handle>(structure: Structure) -> Result<H, Error> {
    of_kind(structure, H::KIND).map(H::new)
}

fn of_kind(structure: Structure, kind: Kind) -> Result<Structure, Error> {
    if structure.kind() == kind {
        return Ok(structure);
    }
    let text = format!("{} is a {}, not a {kind}", structure.address(), structure.kind());
    Err(Error::new(Status::WrongKind, text))
}

fn new_structure(
    job: JobId,
    address: &str,
    kind: Kind,
    blocks: u32,
    open_existing: bool,
) -> Result<CreateStructureRequest, Error> {
    let Address { path, name } = Address::parse(address)?;
    Ok(CreateStructureRequest {
        job: job.0,
        path: path.into(),
        name: name.into(),
        kind: kind.code(),
        blocks,
        open_existing,
        ..Default::default()
    })
}

fn join(path: &str, name: &str) -> String {
    if name.is_empty() { path.to_owned() } else { format!("{path}:{name}") }
}
