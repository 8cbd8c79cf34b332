//! Python's interface to the client.

use crate::convert::{checked, job_cost, job_info, prefix_info, raise, status};
use crate::custom::{CustomKind, NativeCustom, kind};
use crate::face::Native;
use crate::options::{self, OfJob, OfPrefix};
use crate::queue::NativeQueue;
use crate::structures::{NativeFile, NativeKv, wrap};
use honeycomb_client::bucket;
use honeycomb_client::cost::{Cost, PRICES, Prices};
use honeycomb_client::{
    Client, ClientOptions, CustomOptions, Error, FlushProgress, IfExists, JobClient, JobTicket,
    KindRef, LostLease, Quota, QuotaChange, QuotaOf, StopProgress,
};
use honeycomb_types::{JobId, PrefixId, StructureId, Verbs};
use honeycomb_wire::Status;
use honeycomb_wire::messages::DagNode;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Job, root prefix, token, whether the job existed and is held by another process.
type TicketFields<'py> = (u64, u64, Bound<'py, PyBytes>, bool);
/// Name, parents, readers and options of a prefix of an execution plan.
type PlanNode<'py> = (String, Vec<String>, Vec<String>, OfPrefix<'py>);
/// Fields of a quota: the most blocks, the held blocks, the most blocks in memory before they are demoted,
/// the weight, the held blocks in memory.
type QuotaFields = (u64, u64, u64, u32, u64);

/// Whether a client was closed. Structures that it opened are then no longer used.
pub type Closed = Arc<AtomicBool>;

/// A client of one cluster with one token. Safe to share between threads. Every call releases the GIL and
/// ends within the timeout.
#[pyclass(frozen, module = "honeycomb._native")]
pub struct NativeClient {
    client: Mutex<Option<Client>>,
    closed: Closed,
    address: String,
    job: u64,
}

impl NativeClient {
    fn client(&self, py: Python<'_>) -> PyResult<Client> {
        let client = self.client.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        client.ok_or_else(|| raise(py, "InvalidArgument", "the client is closed"))
    }

    /// Runs a call of the client without the GIL.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&Client) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let client = self.client(py)?;
        let result = py.detach(|| f(&client));
        checked(py, result)
    }
}

fn ticket(py: Python<'_>, t: JobTicket) -> TicketFields<'_> {
    (t.job.0, t.root.0, PyBytes::new(py, &t.token), t.found)
}

/// The holder of a quota: the tenant if given, else the prefix if given, else the job.
fn quota_of(job: u64, tenant: Option<String>, path: Option<String>) -> QuotaOf {
    match (tenant, path) {
        (Some(tenant), _) => QuotaOf::Tenant(tenant),
        (None, Some(path)) => QuotaOf::Prefix(JobId(job), path),
        (None, None) => QuotaOf::Job(JobId(job)),
    }
}

fn quota_fields(q: Quota) -> QuotaFields {
    (q.max_blocks, q.held_blocks, q.soft_blocks, q.weight, q.memory_blocks)
}

fn address(path: &str, name: &str) -> String {
    if name.is_empty() { path.to_owned() } else { format!("{path}:{name}") }
}

fn kind_ref(kind: &(Option<u8>, Option<String>)) -> KindRef<'_> {
    match kind {
        (Some(code), _) => KindRef::Code(*code),
        (None, name) => KindRef::Name(name.as_deref().unwrap_or_default()),
    }
}

#[pymethods]
impl NativeClient {
    #[new]
    #[pyo3(signature = (address, token, task_prefix=0, timeout=10.0, unix=true))]
    fn new(
        py: Python<'_>,
        address: &str,
        token: &[u8],
        task_prefix: u64,
        timeout: f64,
        unix: bool,
    ) -> PyResult<NativeClient> {
        if !(timeout > 0.0 && timeout < 1e9) {
            let text = "the timeout is a positive number of seconds, below 1e9";
            return Err(raise(py, "InvalidArgument", text));
        }
        let mut options = ClientOptions::new(address, token);
        options.task_prefix = PrefixId(task_prefix);
        options.timeout = Duration::from_secs_f64(timeout);
        options.unix = unix;
        let client = Client::new(options);
        // A wrong address or token fails here, not in a later call.
        let greeted = py.detach(|| client.ping());
        checked(py, greeted)?;
        // The second to tenth bytes of a token name its job.
        let job = token.get(1..9).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
        let address = client.address().to_owned();
        Ok(NativeClient {
            client: Mutex::new(Some(client)),
            closed: Closed::default(),
            address,
            job,
        })
    }

    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    #[getter]
    fn job(&self) -> u64 {
        self.job
    }

    /// Registers a job that this process holds.
    fn register_job<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        options: &OfJob<'py>,
        if_exists: &str,
    ) -> PyResult<TicketFields<'py>> {
        let if_exists = match if_exists {
            "open" => IfExists::Open,
            "replace" => IfExists::Replace,
            _ => IfExists::Fail,
        };
        let options = options::of_job(options, if_exists)?;
        Ok(ticket(py, self.call(py, |c| c.register_job_with(name, &options))?))
    }

    fn find_job<'py>(&self, py: Python<'py>, name: &str) -> PyResult<TicketFields<'py>> {
        Ok(ticket(py, self.call(py, |c| c.find_job(name))?))
    }

    /// Reopens a job whose root's lease has ended.
    fn reopen_job<'py>(&self, py: Python<'py>, name: &str) -> PyResult<TicketFields<'py>> {
        Ok(ticket(py, self.call(py, |c| c.reopen_job(name))?))
    }

    /// Ends a job, within the given seconds or the client's timeout.
    #[pyo3(signature = (job, within=None))]
    fn deregister_job(&self, py: Python<'_>, job: u64, within: Option<f64>) -> PyResult<()> {
        self.call(py, |c| match within {
            Some(seconds) => c.deregister_job_within(JobId(job), Duration::from_secs_f64(seconds)),
            None => c.deregister_job(JobId(job)),
        })
    }

    /// Calls `warn` with path, status and message of every prefix whose lease could not be renewed, in
    /// another thread, until `warn` returns false.
    fn on_lost_leases(&self, py: Python<'_>, warn: Py<PyAny>) -> PyResult<()> {
        let warn = move |lost: &LostLease| {
            // An interpreter that is ending accepts no calls.
            let answered = Python::try_attach(|py| {
                let arguments = (&lost.path, lost.status.name(), &lost.message);
                let answer = warn.call1(py, arguments).and_then(|answer| answer.is_truthy(py));
                answer.unwrap_or_else(|e| {
                    e.write_unraisable(py, Some(warn.bind(py)));
                    true
                })
            });
            answered.unwrap_or(false)
        };
        self.client(py)?.on_lost_leases(warn);
        Ok(())
    }

    /// The quota of a prefix of the job, of the job, or of a tenant.
    fn quota(
        &self,
        py: Python<'_>,
        job: u64,
        tenant: Option<String>,
        path: Option<String>,
    ) -> PyResult<QuotaFields> {
        let of = quota_of(job, tenant, path);
        Ok(quota_fields(self.call(py, |c| c.quota(&of))?))
    }

    /// Changes such a quota and returns it; `None` leaves a field unchanged.
    #[allow(clippy::too_many_arguments)]
    fn set_quota(
        &self,
        py: Python<'_>,
        job: u64,
        tenant: Option<String>,
        path: Option<String>,
        max_blocks: Option<u64>,
        soft_blocks: Option<u64>,
        weight: Option<u32>,
    ) -> PyResult<QuotaFields> {
        let of = quota_of(job, tenant, path);
        let change = QuotaChange { max_blocks, soft_blocks, weight };
        Ok(quota_fields(self.call(py, |c| c.change_quota(&of, &change))?))
    }

    /// The resources that a job has used; for job 0, those of all jobs that the token may read.
    /// Use and cost of one job, or of all jobs if `job` is 0.
    #[pyo3(signature = (job, prices=None))]
    fn costs<'py>(
        &self,
        py: Python<'py>,
        job: u64,
        prices: Option<&str>,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let prices = Prices::parse(prices.unwrap_or(PRICES));
        let prices = prices.map_err(|text| Error::new(Status::InvalidArgument, text));
        let prices = checked(py, prices)?;
        let bills = self.call(py, |c| c.bills(Some(JobId(job)).filter(|job| job.0 != 0)))?;
        bills.iter().map(|bill| job_cost(py, bill, &Cost::of(bill, &prices))).collect()
    }

    fn list_jobs<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let jobs = self.call(py, Client::list_jobs)?;
        jobs.iter().map(|j| job_info(py, j)).collect()
    }

    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let reply = self.call(py, Client::status)?;
        status(py, &reply)
    }

    fn tree<'py>(&self, py: Python<'py>, job: u64) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let prefixes = self.call(py, |c| c.tree(JobId(job)))?;
        prefixes.iter().map(|p| prefix_info(py, p)).collect()
    }

    /// The paths of a job's buckets, sorted.
    fn buckets(&self, py: Python<'_>, job: u64) -> PyResult<Vec<String>> {
        self.call(py, |client| bucket::list(JobClient { client, job: JobId(job) }))
    }

    fn create_prefix(
        &self,
        py: Python<'_>,
        job: u64,
        path: &str,
        parents: Vec<String>,
        options: &OfPrefix<'_>,
    ) -> PyResult<u64> {
        let options = options::of_prefix(options)?;
        let prefix = self.call(py, |c| c.create_prefix(JobId(job), path, &parents, options))?;
        Ok(prefix.0)
    }

    /// Creates the prefixes of an execution plan, or none. Returns their numbers.
    fn create_hierarchy(
        &self,
        py: Python<'_>,
        job: u64,
        nodes: Vec<PlanNode<'_>>,
    ) -> PyResult<Vec<u64>> {
        let nodes = nodes.into_iter().map(|(name, parents, readers, options)| {
            Ok(DagNode { name, parents, options: options::of_prefix(&options)?, readers })
        });
        let nodes = nodes.collect::<PyResult<_>>()?;
        let prefixes = self.call(py, |c| c.create_hierarchy(JobId(job), nodes))?;
        Ok(prefixes.into_iter().map(|p| p.0).collect())
    }

    fn remove_prefix(&self, py: Python<'_>, job: u64, path: &str) -> PyResult<()> {
        self.call(py, |c| c.remove_prefix(JobId(job), path))
    }

    /// Begins the flush of a prefix. Returns its number and its full path or URL.
    fn begin_flush(
        &self,
        py: Python<'_>,
        job: u64,
        path: &str,
        place: &str,
        barrier: bool,
    ) -> PyResult<(u64, String)> {
        let ticket = self.call(py, |c| match barrier {
            true => c.begin_barrier_flush(JobId(job), path, place, &[]),
            false => c.begin_flush(JobId(job), path, place),
        })?;
        Ok((ticket.number, ticket.place))
    }

    /// Whether a flush is done, its blocks, the written blocks, the written bytes, and why it fails (if so).
    fn flush_progress(
        &self,
        py: Python<'_>,
        job: u64,
        number: u64,
    ) -> PyResult<(bool, u32, u32, u64, Option<String>)> {
        let progress = self.call(py, |c| c.flush_progress(JobId(job), number))?;
        let FlushProgress { done, parts, parts_done, bytes, failing } = progress;
        Ok((done, parts, parts_done, bytes, failing))
    }

    /// Ends all jobs of the cluster and waits for their flushes. Calls `look` with the progress: flushes,
    /// written blocks, blocks, bytes, and the unwritten directories.
    fn stop_cluster(
        &self,
        py: Python<'_>,
        discard: bool,
        patience: f64,
        look: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let patience = Duration::from_secs_f64(patience);
        let mut raised = None;
        let mut see = |progress: &StopProgress| {
            let seen = Python::attach(|py| {
                py.check_signals()?;
                let Some(look) = &look else { return Ok(()) };
                let unflushed = progress.unflushed.clone();
                let StopProgress { flushes, parts_done, parts, bytes, .. } = *progress;
                let shown = (flushes, parts_done, parts, bytes, unflushed);
                look.call1(py, shown).map(drop)
            });
            raised = seen.err();
            raised.is_none()
        };
        let result = self.call(py, |c| c.stop_cluster_whole(discard, patience, &mut see));
        match raised {
            Some(error) => Err(error),
            None => result.map(drop),
        }
    }

    fn cancel_flush(&self, py: Python<'_>, job: u64, number: u64) -> PyResult<()> {
        self.call(py, |c| c.cancel_flush(JobId(job), number))
    }

    fn declare_readers(
        &self,
        py: Python<'_>,
        job: u64,
        path: &str,
        readers: Vec<String>,
        replace: bool,
    ) -> PyResult<u32> {
        self.call(py, |c| c.declare_readers(JobId(job), path, &readers, replace))
    }

    fn commit_task(&self, py: Python<'_>, job: u64, path: &str) -> PyResult<u32> {
        self.call(py, |c| c.commit_task(JobId(job), path))
    }

    fn renew(
        &self,
        py: Python<'_>,
        job: u64,
        paths: Vec<String>,
    ) -> PyResult<Vec<(&'static str, u32, String)>> {
        let results = self.call(py, |c| c.renew(JobId(job), &paths))?;
        Ok(results
            .into_iter()
            .map(|r| {
                let status = Status::from_code(r.status).unwrap_or(Status::Internal);
                (status.name(), r.lease_ms, r.message)
            })
            .collect())
    }

    fn lease_info<'py>(
        &self,
        py: Python<'py>,
        job: u64,
        path: &str,
    ) -> PyResult<Bound<'py, PyDict>> {
        let lease = self.call(py, |c| c.lease(JobId(job), path))?;
        let dict = PyDict::new(py);
        dict.set_item("prefix", lease.prefix)?;
        dict.set_item("lease_ms", lease.lease_ms)?;
        dict.set_item("remaining_ms", lease.remaining_ms)?;
        dict.set_item("pinned", lease.pinned)?;
        Ok(dict)
    }

    fn set_permissions(
        &self,
        py: Python<'_>,
        job: u64,
        path: &str,
        owner_verbs: u16,
        job_verbs: u16,
    ) -> PyResult<()> {
        let (owner, others) = (Verbs(owner_verbs), Verbs(job_verbs));
        self.call(py, |c| c.set_permissions(JobId(job), path, owner, others))
    }

    fn create_file(
        &self,
        py: Python<'_>,
        job: u64,
        path: &str,
        name: &str,
        blocks: u32,
        open_existing: bool,
    ) -> PyResult<NativeFile> {
        let address = address(path, name);
        self.call(py, |c| c.create_file(JobId(job), &address, blocks, open_existing))
            .map(|file| NativeFile { file, closed: self.closed.clone() })
    }

    #[allow(clippy::too_many_arguments)]
    fn create_kv(
        &self,
        py: Python<'_>,
        job: u64,
        path: &str,
        name: &str,
        blocks: u32,
        open_existing: bool,
    ) -> PyResult<NativeKv> {
        let address = address(path, name);
        self.call(py, |c| c.create_kv(JobId(job), &address, blocks, open_existing))
            .map(|kv| NativeKv { kv: Arc::new(kv), closed: self.closed.clone() })
    }

    #[allow(clippy::too_many_arguments)]
    fn create_queue(
        &self,
        py: Python<'_>,
        job: u64,
        path: &str,
        name: &str,
        max_items: u64,
        max_bytes: u64,
        open_existing: bool,
    ) -> PyResult<NativeQueue> {
        let address = address(path, name);
        self.call(py, |c| c.create_queue(JobId(job), &address, max_items, max_bytes, open_existing))
            .map(|queue| NativeQueue { queue, closed: self.closed.clone() })
    }

    /// Creates a structure of a custom kind, given by the kind's code or name.
    #[allow(clippy::too_many_arguments)]
    fn create_custom(
        &self,
        py: Python<'_>,
        job: u64,
        path: &str,
        name: &str,
        kind: (Option<u8>, Option<String>),
        size: (u32, u64, u64),
        open_existing: bool,
    ) -> PyResult<NativeCustom> {
        let address = address(path, name);
        let (blocks, max_items, max_bytes) = size;
        let options = CustomOptions { blocks, max_items, max_bytes, open_existing };
        let kind = kind_ref(&kind);
        self.call(py, |c| c.create_custom(JobId(job), &address, kind, options))
            .map(|custom| NativeCustom { custom, closed: self.closed.clone() })
    }

    fn open_custom(
        &self,
        py: Python<'_>,
        job: u64,
        path: &str,
        name: &str,
        kind: (Option<u8>, Option<String>),
    ) -> PyResult<NativeCustom> {
        let address = address(path, name);
        let kind = kind_ref(&kind);
        self.call(py, |c| c.open_custom(JobId(job), &address, kind))
            .map(|custom| NativeCustom { custom, closed: self.closed.clone() })
    }

    /// The custom kinds, each with the number of live servers that serve it.
    fn kinds(&self, py: Python<'_>) -> PyResult<Vec<(CustomKind, u32)>> {
        let kinds = self.call(py, Client::kinds)?;
        Ok(kinds.iter().map(|(spec, servers)| (kind(spec), *servers)).collect())
    }

    fn open(&self, py: Python<'_>, job: u64, path: &str, name: &str) -> PyResult<Native> {
        let client = self.client(py)?;
        wrap(py, &client, &self.closed, JobId(job), &address(path, name), None)
    }

    /// The structure at this address if it has this identity; otherwise the error that ended that structure.
    fn open_same(
        &self,
        py: Python<'_>,
        job: u64,
        path: &str,
        name: &str,
        structure: u64,
    ) -> PyResult<Native> {
        let (client, id) = (self.client(py)?, Some(StructureId(structure)));
        wrap(py, &client, &self.closed, JobId(job), &address(path, name), id)
    }

    fn remove_structure(&self, py: Python<'_>, job: u64, path: &str, name: &str) -> PyResult<()> {
        let address = address(path, name);
        self.call(py, |c| c.remove_structure(JobId(job), &address))
    }

    fn keep(&self, py: Python<'_>, job: u64, paths: Vec<String>) -> PyResult<()> {
        let client = self.client(py)?;
        py.detach(|| client.keep(JobId(job), &paths));
        Ok(())
    }

    fn release(&self, py: Python<'_>, job: u64, paths: Vec<String>) -> PyResult<()> {
        let client = self.client(py)?;
        py.detach(|| client.release(JobId(job), &paths));
        Ok(())
    }

    /// Closes idle connections and stops the lease keeper. Structures that the client opened keep working.
    fn close(&self, py: Python<'_>) {
        self.closed.store(true, Relaxed);
        let client = self.client.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        py.detach(|| drop(client));
    }
}
