//! Requests of clients about jobs, prefixes and structures.

use super::{ClientRequest, ControllerService, RefusedRequest, malformed, refusal, unexpected};
use crate::plan_count::too_large;
use crate::translate;
use honeycomb_catalog::{Allowance, Command, NewStructure, PlanNode, Reply};
use honeycomb_types::limits::{BATCH_MAX, PLAN_EDGES_MAX};
use honeycomb_types::{JobId, Kind, StructureId, Verbs};
use honeycomb_wire::messages::*;
use honeycomb_wire::token::Caveat;
use honeycomb_wire::{Field, Malformed, Op, Reader, Scope, Status, attenuate};

impl ControllerService {
    /// A job's token with no more rights than the caller's token.
    fn job_token(&self, job: JobId, scope: Scope) -> Vec<u8> {
        let mut token = self.token_key.issue(Some(job));
        let mut narrow = |caveat| {
            token = attenuate(&token, caveat).expect("two caveats fit in a new token");
        };
        if scope.expires_ms != u64::MAX {
            narrow(Caveat::Expires(scope.expires_ms));
        }
        if scope.verbs != Verbs::ALL {
            narrow(Caveat::Verbs(scope.verbs));
        }
        token
    }

    pub(super) fn serve_job(
        &mut self,
        asked: ClientRequest<'_>,
    ) -> Result<Vec<u8>, RefusedRequest> {
        let ClientRequest { now, actor, scope, op, .. } = asked;
        let reply = match op {
            Op::RegisterJob => {
                let q = asked.read::<RegisterJobRequest>()?;
                let (lease_ms, quota_blocks) = (q.lease_ms, q.quota_blocks);
                let (name, hints) = (&q.name, translate::hints(&q.hints)?);
                let claim = translate::claim(&q);
                let register =
                    Command::RegisterJob { actor, name, lease_ms, quota_blocks, hints, claim };
                self.apply(now, register)
            }
            Op::FindJob => {
                let q = asked.read::<FindJobRequest>()?;
                self.apply(now, Command::FindJob { actor, name: &q.name })
            }
            Op::DeregisterJob => {
                let q = asked.read::<DeregisterJobRequest>()?;
                self.apply(now, Command::DeregisterJob { actor, job: JobId(q.job) })
            }
            Op::JobTree => {
                let q = asked.read::<JobTreeRequest>()?;
                self.apply(now, Command::JobTree { actor, job: JobId(q.job) })
            }
            Op::JobCost => {
                let q = asked.read::<JobCostRequest>()?;
                let job = Some(JobId(q.job)).filter(|job| job.0 != 0);
                self.apply(now, Command::JobBills { actor, job })
            }
            Op::JobWeights => {
                let q = asked.read::<JobWeightsRequest>()?;
                self.apply(now, Command::JobWeights { actor, job: JobId(q.job) })
            }
            _ => {
                asked.read::<ListJobsRequest>()?;
                self.apply(now, Command::ListJobs { actor })
            }
        };
        match reply.map_err(refusal)? {
            Reply::Done => Ok(Vec::new()),
            Reply::Job { job, root, holder } => {
                let (token, holder) = (self.job_token(job, scope), translate::holder(holder));
                Ok(RegisterJobReply { job: job.0, root: root.0, token, holder }.encode())
            }
            Reply::Bills(bills) if bills.len() > BATCH_MAX => {
                let text = format!(
                    "cannot show the bills of {} jobs in one reply, at most {BATCH_MAX}; use the \
                     token of one job",
                    bills.len()
                );
                Err((Status::LimitExceeded, text))
            }
            Reply::Bills(bills) => Ok(translate::bills(&bills)),
            Reply::Weights { expected, weights, tiers } => {
                Ok(translate::weights(&expected, &weights, &tiers))
            }
            Reply::Jobs(jobs) => {
                Ok(ListJobsReply { jobs: jobs.iter().map(translate::job_info).collect() }.encode())
            }
            Reply::Tree(prefixes) => {
                let prefixes = prefixes.iter().map(translate::prefix_info).collect();
                Ok(JobTreeReply { prefixes }.encode())
            }
            other => unexpected(op, &other),
        }
    }

    pub(super) fn serve_quota(
        &mut self,
        asked: ClientRequest<'_>,
    ) -> Result<Vec<u8>, RefusedRequest> {
        let ClientRequest { now, actor, op, .. } = asked;
        let reply = if op == Op::SetQuota {
            let q = asked.read::<SetQuotaRequest>()?;
            let of = translate::quota_of(q.job, q.level, &q.name)?;
            let change = translate::quota_change(&q);
            self.apply(now, Command::SetQuota { actor, of, change })
        } else {
            let q = asked.read::<GetQuotaRequest>()?;
            let of = translate::quota_of(q.job, q.level, &q.name)?;
            self.apply(now, Command::Quota { actor, of })
        };
        match reply.map_err(refusal)? {
            Reply::Quota { allowed, held: held_blocks, in_memory: memory_blocks } => {
                let Allowance { most: max_blocks, soft: soft_blocks, weight } = allowed;
                let reply =
                    SetQuotaReply { max_blocks, held_blocks, soft_blocks, weight, memory_blocks };
                Ok(reply.encode())
            }
            other => unexpected(op, &other),
        }
    }

    pub(super) fn serve_prefix(
        &mut self,
        asked: ClientRequest<'_>,
    ) -> Result<Vec<u8>, RefusedRequest> {
        let ClientRequest { now, actor, op, .. } = asked;
        let mut renewed_job = None;
        let reply = match op {
            Op::CreatePrefix => {
                let q = asked.read::<CreatePrefixRequest>()?;
                let parents: Vec<&str> = q.parents.iter().map(String::as_str).collect();
                let (job, options) = (JobId(q.job), translate::options(&q.options));
                let (path, parents) = (q.path.as_str(), &parents[..]);
                self.apply(now, Command::CreatePrefix { actor, job, path, parents, options })
            }
            Op::CreateHierarchy => return self.create_hierarchy(asked),
            Op::RemovePrefix => {
                let q = asked.read::<RemovePrefixRequest>()?;
                self.apply(now, Command::RemovePrefix { actor, job: JobId(q.job), path: &q.path })
            }
            Op::RenewLeases => {
                let (job, paths) = frontier(asked.args).map_err(malformed)?;
                renewed_job = Some(job);
                let reply = self.apply(now, Command::RenewLeases { actor, job, paths: &paths });
                if let Ok(Reply::Renewed(results)) = &reply {
                    let (all, done) = (paths.len(), results.len());
                    assert_eq!(done, all, "INV-14: {done} of {all} paths have results");
                }
                reply
            }
            Op::LeaseInfo => {
                let q = asked.read::<LeaseInfoRequest>()?;
                self.apply(now, Command::LeaseInfo { actor, job: JobId(q.job), path: &q.path })
            }
            _ => {
                let q = asked.read::<SetPermissionsRequest>()?;
                let (owner_verbs, job_verbs) = (Verbs(q.owner_verbs), Verbs(q.job_verbs));
                let (job, path) = (JobId(q.job), q.path.as_str());
                let command = Command::SetPermissions { actor, job, path, owner_verbs, job_verbs };
                self.apply(now, command)
            }
        };
        match reply.map_err(refusal)? {
            Reply::Done => Ok(Vec::new()),
            Reply::Prefix(prefix) => Ok(CreatePrefixReply { prefix: prefix.0 }.encode()),
            Reply::Renewed(results) => {
                let results = translate::renewed(&results);
                let shortest_ms = renewed_job
                    .and_then(|job| self.catalog.shortest_lease_ms(job))
                    .unwrap_or_default();
                Ok(RenewLeasesReply { results, shortest_ms }.encode())
            }
            Reply::Lease(l) => Ok(LeaseInfoReply {
                prefix: l.prefix.0,
                lease_ms: l.lease_ms,
                remaining_ms: l.remaining_ms,
                pinned: l.pinned,
            }
            .encode()),
            other => unexpected(op, &other),
        }
    }

    fn create_hierarchy(&mut self, asked: ClientRequest<'_>) -> Result<Vec<u8>, RefusedRequest> {
        let ClientRequest { now, actor, .. } = asked;
        let (job, plan) = plan(asked.args)?;
        let nodes: Vec<PlanNode<'_>> = plan
            .iter()
            .map(|node| PlanNode {
                name: node.name,
                parents: &node.parents,
                options: translate::options(&node.options),
                readers: &node.readers,
            })
            .collect();
        let command = Command::CreateHierarchy { actor, job, nodes: &nodes };
        match self.apply(now, command).map_err(refusal)? {
            Reply::Prefixes(ids) => {
                let (all, made) = (nodes.len(), ids.len());
                assert_eq!(made, all, "{made} of {all} nodes of a plan have prefixes");
                let prefixes = ids.iter().map(|p| p.0).collect();
                Ok(CreateHierarchyReply { prefixes }.encode())
            }
            other => unexpected(Op::CreateHierarchy, &other),
        }
    }

    pub(super) fn serve_readers(
        &mut self,
        asked: ClientRequest<'_>,
    ) -> Result<Vec<u8>, RefusedRequest> {
        let ClientRequest { now, actor, op, .. } = asked;
        let reply = if op == Op::DeclareReaders {
            let q = asked.read::<DeclareReadersRequest>()?;
            let (job, path, readers) = (JobId(q.job), q.path.as_str(), &strs(&q.readers)[..]);
            let replace = q.replace;
            self.apply(now, Command::DeclareReaders { actor, job, path, readers, replace })
        } else {
            let q = asked.read::<CommitTaskRequest>()?;
            self.apply(now, Command::CommitTask { actor, job: JobId(q.job), path: &q.path })
        };
        match reply.map_err(refusal)? {
            Reply::Readers { left } => Ok(DeclareReadersReply { left }.encode()),
            Reply::Committed { freed } => Ok(CommitTaskReply { freed }.encode()),
            other => unexpected(op, &other),
        }
    }

    pub(super) fn serve_structure(
        &mut self,
        asked: ClientRequest<'_>,
    ) -> Result<Vec<u8>, RefusedRequest> {
        let ClientRequest { now, actor, scope, op, .. } = asked;
        let reply = match op {
            Op::CreateStructure => {
                let q = asked.read::<CreateStructureRequest>()?;
                let kind = Kind::from_code(q.kind).ok_or_else(|| {
                    let text = format!("unknown kind of structure {:#x}", q.kind);
                    (Status::InvalidArgument, text)
                })?;
                let structure = NewStructure {
                    path: &q.path,
                    name: &q.name,
                    kind,
                    blocks: q.blocks,
                    max_items: q.max_items,
                    max_bytes: q.max_bytes,
                    open_existing: q.open_existing,
                };
                self.apply(now, Command::CreateStructure { actor, job: JobId(q.job), structure })
            }
            Op::OpenStructure => {
                let q = asked.read::<OpenStructureRequest>()?;
                let (job, path, name) = (JobId(q.job), q.path.as_str(), q.name.as_str());
                self.apply(now, Command::OpenStructure { actor, job, path, name })
            }
            Op::ReopenStructure => {
                let q = asked.read::<ReopenStructureRequest>()?;
                let (job, structure) = (JobId(q.job), StructureId(q.structure));
                self.apply(now, Command::ReopenStructure { actor, job, structure })
            }
            _ => {
                let q = asked.read::<RemoveStructureRequest>()?;
                let (job, path, name) = (JobId(q.job), q.path.as_str(), q.name.as_str());
                self.apply(now, Command::RemoveStructure { actor, job, path, name })
            }
        };
        match reply.map_err(refusal)? {
            Reply::Done => Ok(Vec::new()),
            Reply::Opened(opened) => {
                self.await_open(opened.map.entries.iter().map(|e| e.at));
                let suspects = self.catalog.suspects_of(&opened.map);
                let expires_ms = scope.expires_ms;
                Ok(translate::opened(&opened, &self.grant_key, now, expires_ms, &suspects))
            }
            other => unexpected(op, &other),
        }
    }
}

/// A `RenewLeasesRequest`, read in place: a driver renews thousands of paths in one request.
fn frontier(args: &[u8]) -> Result<(JobId, Vec<&str>), Malformed> {
    let mut reader = Reader::new(args);
    let (job, paths) = (JobId(u64::get(&mut reader)?), reader.texts()?);
    reader.finish()?;
    Ok((job, paths))
}

/// A node of a plan, read in place.
struct PlannedNode<'a> {
    name: &'a str,
    parents: Vec<&'a str>,
    options: PrefixOptions,
    readers: Vec<&'a str>,
}

/// Reads a `CreateHierarchyRequest`. A request that is too large is refused while it is counted, so that it
/// costs no more than the largest accepted one.
fn plan(args: &[u8]) -> Result<(JobId, Vec<PlannedNode<'_>>), RefusedRequest> {
    let mut reader = Reader::new(args);
    let r = &mut reader;
    let job = JobId(u64::get(r).map_err(malformed)?);
    let count = u32::get(r).map_err(malformed)? as usize;
    if count > args.len() {
        return Err(malformed(r.malformed("a list declares more items than it has bytes")));
    }
    if count > BATCH_MAX {
        return Err(too_large("nodes", BATCH_MAX));
    }
    let mut nodes = Vec::with_capacity(count.min(args.len() / 8));
    let mut edges = 0;
    let mut node = || -> Result<(PlannedNode<'_>, usize), Malformed> {
        let (name, parents) = (r.text()?, r.texts()?);
        let (options, readers) = (PrefixOptions::get(r)?, r.texts()?);
        let edges = parents.len() + readers.len();
        Ok((PlannedNode { name, parents, options, readers }, edges))
    };
    for _ in 0..count {
        let (node, named) = node().map_err(malformed)?;
        nodes.push(node);
        edges += named;
        if edges > PLAN_EDGES_MAX {
            return Err(too_large("parents and readers together", PLAN_EDGES_MAX));
        }
    }
    reader.finish().map_err(malformed)?;
    Ok((job, nodes))
}

fn strs(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}
