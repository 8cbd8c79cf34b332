//! Why the catalog refuses a command. One variant for each cause, with its data; the message says what
//! happened, to which prefix, why, and what to do.

use crate::full::Full;
use honeycomb_types::{BlockAt, InvalidName, JobId, Kind, MoveId, ServerId, StructureId};
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// How the catalog learned of the loss of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It sent no report for `Config::server_loss_ms`.
    Silence,
    /// Its connection broke, or it reconnected as a new process.
    Reset,
    /// One of its disks could not be read.
    Disk,
    /// It had to flush a structure of a kind that cannot be flushed.
    Unflushable,
    /// It had to flush a quarantined structure with a wrong list of blocks.
    Quarantined,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Silence => "stopped reporting",
            Loss::Reset => "lost its connection or restarted",
            Loss::Disk => "could not read its disk",
            Loss::Unflushable => "had to flush a kind of structure that cannot be flushed",
            Loss::Quarantined => {
                "had to flush a structure with a defect in the controller's metadata"
            }
        })
    }
}

/// A prefix path, formatted for messages.
struct At<'a>(&'a str);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => f.write_str("the root prefix"),
            path => write!(f, "prefix '{path}'"),
        }
    }
}

/// A structure's address, formatted for messages.
pub(crate) struct Of<'a>(pub(crate) &'a str, pub(crate) &'a str);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            "" => write!(f, "the unnamed structure of {}", At(self.0)),
            name => write!(f, "structure '{name}' of {}", At(self.0)),
        }
    }
}

/// The paths of prefixes that have a name which the caller used as if it were a path.
struct SimilarPaths<'a>(&'a str, &'a [Box<str>]);

impl fmt::Display for SimilarPaths<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SimilarPaths(name, at) = self;
        if at.is_empty() { Ok(()) } else { write!(f, " ('{name}' is at {})", at.join(", ")) }
    }
}

/// The owner of a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaLevel {
    /// A tenant, by its name.
    Tenant(Box<str>),
    /// The job.
    Job,
    /// A prefix with its descendants, by its path.
    Prefix(Box<str>),
}

impl fmt::Display for QuotaLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuotaLevel::Tenant(name) => write!(f, "the tenant '{name}'"),
            QuotaLevel::Job => f.write_str("the job"),
            QuotaLevel::Prefix(path) => write!(f, "{} with its descendants", At(path)),
        }
    }
}

/// The cause of a refused command.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)] // Each variant's comment describes its fields.
pub enum CatalogError {
    /// The job does not exist, or does not belong to the actor: the two look alike, so that a token
    /// reveals nothing about other jobs.
    #[error(
        "job {job} is not registered, or this token may not use it: the job was deregistered, or \
            the token belongs to another job; register the job again"
    )]
    UnknownJob { job: JobId },
    /// No job has this name.
    #[error("no job named '{name}' is registered; register it first")]
    UnknownJobName { name: Box<str> },
    /// A malformed name or path.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// A number or option outside the allowed range.
    #[error("{what} cannot be {given}: {allowed}")]
    InvalidArgument { what: &'static str, given: u64, allowed: &'static str },
    /// A server with blocks of another size than those of the cluster.
    #[error(
        "the server has blocks of {given} bytes, and the other servers of the cluster of \
            {cluster}: start it with block_size {cluster}, or without the setting"
    )]
    BlockSizeDiffers { given: u64, cluster: u64 },
    /// Servers without a flush root cannot keep the data of expired prefixes.
    #[error(
        "cannot flush to '{path}': not every memory server has a flush_root; start each with one \
            (a directory or bucket), or let the data be discarded"
    )]
    FlushUnavailable { path: Box<str> },
    /// The root prefix has no name, from which a path to flush to could be derived.
    #[error(
        "the root prefix has no path to flush to; set flush_to, or persist its descendants instead"
    )]
    PersistsNowhere,
    /// Two prefixes would be flushed into one directory.
    #[error(
        "cannot flush to '{path}': another live prefix of the job flushes there, or a flush to it \
            is in progress; give each prefix its own path"
    )]
    FlushPathTaken { path: Box<str> },
    /// A place that does not belong to the job.
    #[error("this job cannot flush to '{place}'; choose a place below {allowed}")]
    FlushElsewhere { place: Box<str>, allowed: Box<str> },
    /// The kind of structure cannot acknowledge changes in the way that the prefix requires.
    #[error(
        "changes to a {kind} cannot be acknowledged as flushed, which {} requires: it can hold \
            only files; create it in a prefix that acknowledges in memory",
        At(path)
    )]
    NotJournaled { path: Box<str>, kind: Kind },
    /// The prefix is flushed when it ends, and this kind of structure cannot be flushed.
    #[error(
        "'{name}' cannot be created in {}: a {kind} cannot be flushed, and this prefix is flushed \
            when it ends; create it in a prefix without flush_to, on_expiry=Flush and persist",
        At(path)
    )]
    NotFlushable { path: Box<str>, name: Box<str>, kind: Kind },
    /// A structure of the prefix cannot be flushed.
    #[error(
        "cannot flush {}: '{name}', a {kind}, cannot be flushed; create it in a prefix of its own, \
            and flush the others",
        At(path)
    )]
    HasUnflushable { path: Box<str>, name: Box<str>, kind: Kind },
    /// The journal of an earlier prefix at this place is not fully deleted.
    #[error(
        "cannot flush to '{path}' yet: the journal of an earlier prefix is being deleted there; \
            retry later"
    )]
    JournalGoes { path: Box<str> },
    /// Some data of the prefix is only in its journal.
    #[error(
        "memory servers that held data of {} were lost; its acknowledged changes are at {place}: \
            load them into another prefix, and remove this one",
        At(path)
    )]
    OnlyInJournal { path: Box<str>, place: Box<str> },
    /// A flush would replace the journal of a live prefix.
    #[error(
        "cannot flush {} to {place}: the journal that acknowledges its changes is there; flush it \
            to another place",
        At(path)
    )]
    JournalThere { path: Box<str>, place: Box<str> },
    /// No flush has this number, or its outcome is no longer remembered.
    #[error(
        "this job has no flush {number:016x}, or the controller no longer remembers its outcome; \
            `honeycomb flushed` shows whether it is complete"
    )]
    UnknownFlush { number: u64 },
    /// The prefix is still being loaded.
    #[error("{} is still being loaded; retry later", At(path))]
    Loading { path: Box<str> },
    /// The token, or the permissions of the prefix, do not allow the operation.
    #[error("not permitted to {what} at {}: {why}", At(path))]
    PermissionDenied { what: &'static str, path: Box<str>, why: &'static str },
    /// No prefix has this address.
    #[error("no {} exists in this job{}; create it first", At(path), SimilarPaths(path, at))]
    PrefixNotFound { path: Box<str>, at: Vec<Box<str>> },
    /// No structure has this address.
    #[error("{} does not exist; create it first", Of(path, name))]
    StructureNotFound { path: Box<str>, name: Box<str> },
    /// No structure has this number, or its tombstone was discarded as too old.
    #[error("this job has no structure {structure} and no record of one; open it by its address")]
    UnknownStructure { structure: StructureId },
    /// The name of a job is taken.
    #[error(
        "a job named '{name}' is already registered{holder}; open it, replace it, or choose \
            another name"
    )]
    JobExists { name: Box<str>, holder: Box<str> },
    /// The name of a prefix is taken under one of its parents.
    #[error("{} already exists; choose another name or remove it", At(path))]
    PrefixExists { path: Box<str> },
    /// The name of a structure is taken.
    #[error("{} already exists; open it, or pass open_existing", Of(path, name))]
    StructureExists { path: Box<str>, name: Box<str> },
    /// A structure of this name has other bounds than those requested; 0 means unbounded.
    #[error(
        "{} already exists with max_items={} and max_bytes={}, but max_items={} and max_bytes={} \
            were requested (0 means unbounded); open it without bounds, or with its own",
        Of(path, name), has[0], has[1], asked[0], asked[1]
    )]
    OtherBounds { path: Box<str>, name: Box<str>, has: [u64; 2], asked: [u64; 2] },
    /// A structure of this name has another kind than the requested one, or than a request needs.
    #[error("{} is a {is}, not a {asked}", Of(path, name))]
    WrongKind { path: Box<str>, name: Box<str>, is: Kind, asked: Box<str> },
    /// The edges would close a cycle. Each member is a parent of the next, and the last of the first.
    #[error(
        "these prefixes would be their own ancestors: {}; a hierarchy has no cycles",
        chain(members)
    )]
    Cycle { members: Vec<Box<str>> },
    /// A plan names the same node twice.
    #[error("the plan has two nodes named '{name}'; names are unique within a plan")]
    DuplicateNode { name: Box<str> },
    /// A named parent does not exist.
    #[error(
        "'{node}' names '{parent}' as a parent, but no prefix has that name or path{}; create it \
            first, or add it to the plan",
        SimilarPaths(parent, at)
    )]
    UnknownParent { node: Box<str>, parent: Box<str>, at: Vec<Box<str>> },
    /// A declared reader does not exist.
    #[error(
        "{} declares the reader '{reader}', but no prefix has that name or path{}; create it \
            first, or add it to the plan",
        At(path),
        SimilarPaths(reader, at)
    )]
    UnknownReader { path: Box<str>, reader: Box<str>, at: Vec<Box<str>> },
    /// The lease of the prefix expired.
    #[error(
        "the lease of {} ({lease_ms} ms) expired {ago_ms} ms ago: it was {late_ms} ms overdue \
            without a renewal; its data is freed. {}, and renew more often or request a longer \
            lease",
        At(path),
        if *reopen { "Reopen the job to start anew" } else { "Create it again" }
    )]
    LeaseExpired { path: Box<str>, lease_ms: u32, late_ms: u64, ago_ms: u64, reopen: bool },
    /// The token belongs to a life of the job that has ended, and the cause is no longer remembered.
    #[error(
        "the lease of the job expired, and another process has reopened it since; reopen the job \
            to use its new data"
    )]
    LifeOver,
    /// The data was on a server that was lost.
    #[error(
        "{} was lost {ago_ms} ms ago with memory server {server}, which {how}; create it again \
            and rewrite its data",
        Of(path, name)
    )]
    DataLost { path: Box<str>, name: Box<str>, server: Arc<str>, how: Loss, ago_ms: u64 },
    /// The background check has found a violation in the structure's metadata.
    #[error(
        "{} is quarantined: the controller has found a defect in its metadata ({finding}) and \
            refuses its operations; report the finding, then remove it and rewrite its data",
        Of(path, name)
    )]
    Quarantined { path: Box<str>, name: Box<str>, finding: Arc<str> },
    /// The prefix was removed by request.
    #[error("{} was removed by request {ago_ms} ms ago; create it again to use it", At(path))]
    PrefixRemoved { path: Box<str>, ago_ms: u64 },
    /// The structure was removed by request, by itself or with its prefix.
    #[error("{} was removed by request {ago_ms} ms ago; create it again to use it", Of(path, name))]
    StructureRemoved { path: Box<str>, name: Box<str>, ago_ms: u64 },
    /// The prefix's declared readers had all committed.
    #[error(
        "{} was freed {ago_ms} ms ago, because its last declared reader, '{reader}', had \
            committed; create it again to use it",
        At(path)
    )]
    PrefixRead { path: Box<str>, reader: Arc<str>, ago_ms: u64 },
    /// The declared readers of the structure's prefix had all committed.
    #[error(
        "{} was freed {ago_ms} ms ago, because the last declared reader of its prefix, \
            '{reader}', had committed; create it again to use it",
        Of(path, name)
    )]
    StructureRead { path: Box<str>, name: Box<str>, reader: Arc<str>, ago_ms: u64 },
    /// No live server serves structures of a custom kind.
    #[error(
        "no live memory server serves a {kind}; start a server that registers this kind, or use \
            the code or name of a kind that is served"
    )]
    UnknownKind { kind: Kind },
    /// A server announced a custom kind that is malformed or conflicts with a known one.
    #[error("cannot announce kind {code:#04x}: {why}")]
    KindRefused { code: u8, why: Box<str> },
    /// No free block is available to ordinary allocation.
    #[error("{0}")]
    OutOfMemory(Box<Full>),
    /// After a restart the room and abilities of servers are unknown until they rejoin.
    #[error("the controller was restarted and is waiting for its memory servers; retry")]
    Recovering,
    /// A prefix with its descendants, the job, or all jobs of its tenant would exceed the quota.
    #[error(
        "cannot allocate {}: {level} holds {held} of its quota of {quota}. Free some, or have the \
            quota raised (honeycomb quota)",
        blocks(*asked)
    )]
    QuotaExceeded { level: QuotaLevel, quota: u64, held: u64, asked: u64 },
    /// A named limit was reached.
    #[error(
        "{what} are limited to {limit}; use fewer, or divide the work over more requests, \
            prefixes or jobs"
    )]
    LimitExceeded { what: &'static str, limit: u64 },
    /// A value or an item is larger than all memory.
    #[error(
        "a value of {bytes} bytes does not fit: all servers have {limit} bytes together; store it \
            in parts, or add servers"
    )]
    ValueTooLarge { bytes: u64, limit: u64 },
    /// The file is sealed.
    #[error("{} is sealed; nothing can be appended", Of(path, name))]
    Sealed { path: Box<str>, name: Box<str> },
    /// The block does not belong to the structure, or no longer does.
    #[error("block {} of epoch {} does not belong to this structure, or no longer \
        does", at.block, at.epoch)]
    StaleBlock { at: BlockAt },
    /// A block reports that its successor is serving, and none was granted to it.
    #[error("block {} reports that its successor is serving, but no successor was granted to \
        it", at.block)]
    NoSuccessor { at: BlockAt },
    /// A block of a queue cannot be retired while it is, as far as is known, the tail.
    #[error("cannot retire block {}: it is not known to be sealed; retry", at.block)]
    NotSealed { at: BlockAt },
    /// In a structure whose positions are numbers, a block cannot be retired before those ahead of it.
    #[error("cannot retire block {}: it is not the first of its structure and would leave a gap; \
        retry", at.block)]
    NotFirst { at: BlockAt },
    /// The block is already the target of a move.
    #[error("block {} is being filled by a move; retry when the move has ended", at.block)]
    Moving { at: BlockAt },
    /// No neighbour can take the whole content of the block.
    #[error(
        "cannot merge block {}: every neighbour is migrating, unavailable or too full; retry later",
        at.block
    )]
    NoNeighbour { at: BlockAt },
    /// A block asked to leave a server that is not draining.
    #[error("block {} is not relocated: its server is not draining, or no longer is", at.block)]
    StaysHere { at: BlockAt },
    /// The move was cancelled before it was committed, or never existed.
    #[error("move {id} was cancelled; block {} keeps its range", at.block)]
    MoveCancelled { id: MoveId, at: BlockAt },
    /// No member has this address.
    #[error("no memory server has the address {address}; `honeycomb status` lists their addresses")]
    UnknownAddress { address: Box<str> },
    /// The server is the only one that accepts new blocks, so it cannot be drained.
    #[error(
        "cannot drain memory server {address}: it is the only one that accepts new blocks. Add \
            another first, or stop this one, which loses its data"
    )]
    LastServer { address: Arc<str> },
    /// The drain of the server was cancelled, and the server has not confirmed this yet.
    #[error(
        "the drain of memory server {server} was cancelled, and the server has not confirmed this \
            yet; retry"
    )]
    Recalled { server: ServerId },
    /// The cluster is being stopped.
    #[error(
        "cannot {what}: the cluster is being stopped (honeycomb stop) and accepts no new work; \
            start it again when it has stopped"
    )]
    Stopping { what: &'static str },
    /// The server is not a member, or no longer is.
    #[error("memory server {server} is not a member; it must join again as a new one")]
    UnknownServer { server: ServerId },
}

/// A count of blocks, in words.
pub(crate) fn blocks(n: u64) -> String {
    if n == 1 { "1 block".into() } else { format!("{n} blocks") }
}

fn chain(members: &[Box<str>]) -> String {
    let first = members.first().map(|name| &**name).unwrap_or_default();
    members.iter().map(|name| &**name).chain([first]).collect::<Vec<_>>().join(" > ")
}
