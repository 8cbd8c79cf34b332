//! Why the catalog refuses. One variant for each cause, with its data; the message tells what
//! happened, to which prefix, why, and what to do.

use crate::full::Full;
use honeycomb_types::{BlockAt, InvalidName, JobId, Kind, MoveId, ServerId, StructureId};
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// How the catalog learned that a server is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It said nothing for `Config::server_loss_ms`.
    Silence,
    /// Its connection broke, or it came back as a new process.
    Reset,
    /// One of its disks could not be read.
    Disk,
    /// It had to flush a structure of a kind that cannot be flushed.
    Unflushable,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Silence => "fell silent",
            Loss::Reset => "broke its connection",
            Loss::Disk => "could not read its disk",
            Loss::Unflushable => "cannot flush a structure of its kind",
        })
    }
}

/// A path as people read it.
struct At<'a>(&'a str);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => f.write_str("the root prefix"),
            path => write!(f, "prefix '{path}'"),
        }
    }
}

/// A structure's address as people read it.
pub(crate) struct Of<'a>(pub(crate) &'a str, pub(crate) &'a str);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            "" => write!(f, "the unnamed structure of {}", At(self.0)),
            name => write!(f, "structure '{name}' of {}", At(self.0)),
        }
    }
}

/// Where a name that is not an address is to be found.
struct Elsewhere<'a>(&'a str, &'a [Box<str>]);

impl fmt::Display for Elsewhere<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Elsewhere(name, at) = self;
        if at.is_empty() { Ok(()) } else { write!(f, " ('{name}' is at {})", at.join(", ")) }
    }
}

/// Whose quota it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaLevel {
    /// A tenant's, by its name.
    Tenant(Box<str>),
    /// The job's.
    Job,
    /// A prefix's, with all below it, by its path.
    Prefix(Box<str>),
}

impl fmt::Display for QuotaLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuotaLevel::Tenant(name) => write!(f, "the tenant '{name}'"),
            QuotaLevel::Job => f.write_str("the job"),
            QuotaLevel::Prefix(path) => write!(f, "{} with all below it", At(path)),
        }
    }
}

/// What a job asked for and was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)] // Each variant says what its fields are.
pub enum CatalogError {
    /// The job does not exist, or is not the actor's: a token learns nothing of other jobs.
    #[error(
        "no job {job} is registered that this token may use; it was deregistered, or the token is another job's: register the job again"
    )]
    UnknownJob { job: JobId },
    /// No job has this name.
    #[error("no job named '{name}' is registered; register it first")]
    UnknownJobName { name: Box<str> },
    /// A name or path that cannot be one.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// A number or option outside what is allowed.
    #[error("{what} cannot be {given}: {allowed}")]
    InvalidArgument { what: &'static str, given: u64, allowed: &'static str },
    /// Data of expired prefixes cannot be kept.
    #[error(
        "the data cannot go to '{path}': no memory server may write to disk, or not every one; start each with the setting flush_root, a directory or bucket for it, or leave the data to be discarded"
    )]
    FlushUnavailable { path: Box<str> },
    /// The root has no name of its own.
    #[error(
        "the job's root has no name by which what it held is found again; say with flush_to where that goes, or persist the prefixes below it"
    )]
    PersistsNowhere,
    /// Two prefixes would be flushed into one directory.
    #[error(
        "the data cannot go to '{path}': another live prefix of the job goes there, or is being flushed there; give each a path of its own"
    )]
    FlushPathTaken { path: Box<str> },
    /// A place that is not the job's.
    #[error("this job's data cannot go to '{place}': it goes below {allowed}")]
    FlushElsewhere { place: Box<str>, allowed: Box<str> },
    /// A structure whose changes cannot be acknowledged as the prefix says.
    #[error(
        "the changes of a {kind} cannot be acknowledged as flushed, as those of {} are to be: only files can be there; create it in a prefix that acknowledges in memory",
        At(path)
    )]
    NotJournaled { path: Box<str>, kind: Kind },
    /// A structure that its prefix could not flush when it ends.
    #[error(
        "'{name}' cannot be created in {}: a {kind} cannot be flushed, and this prefix is flushed when it ends; create it in a prefix without flush_to, on_expiry=Flush and persist",
        At(path)
    )]
    NotFlushable { path: Box<str>, name: Box<str>, kind: Kind },
    /// What was there before is not all gone.
    #[error(
        "the data cannot go to '{path}' yet: the journal of a prefix that is no more is being deleted there"
    )]
    JournalGoes { path: Box<str> },
    /// Something of a prefix is in its journal alone.
    #[error(
        "memory servers were lost that held data of {}; what was acknowledged is at {place}: load it into another prefix, and remove this one",
        At(path)
    )]
    OnlyInJournal { path: Box<str>, place: Box<str> },
    /// A flush would take the place of the journal of a prefix that lives.
    #[error(
        "{} cannot be flushed to {place}, where the journal is by which its changes are acknowledged; flush it to another place",
        At(path)
    )]
    JournalThere { path: Box<str>, place: Box<str> },
    /// No flush of this number, or it is too long ago.
    #[error(
        "this job has no flush {number:016x}, or the controller has forgotten how it ended; `honeycomb flushed` tells whether it is whole"
    )]
    UnknownFlush { number: u64 },
    /// A prefix that is not whole yet.
    #[error("{} is being loaded and is not whole yet; try again later", At(path))]
    Loading { path: Box<str> },
    /// The token, or the prefix's permissions, do not cover it.
    #[error("not permitted to {what} at {}: {why}", At(path))]
    PermissionDenied { what: &'static str, path: Box<str>, why: &'static str },
    /// No prefix has this address.
    #[error("no {} exists in this job{}; create it first", At(path), Elsewhere(path, at))]
    PrefixNotFound { path: Box<str>, at: Vec<Box<str>> },
    /// No structure has this address.
    #[error("{} does not exist; create it first", Of(path, name))]
    StructureNotFound { path: Box<str>, name: Box<str> },
    /// No structure has this number, or the reason of its end is too old to be remembered.
    #[error("this job has no structure {structure}, and no memory of one; open it by its address")]
    UnknownStructure { structure: StructureId },
    /// The name of a job is taken.
    #[error(
        "a job named '{name}' is registered already{holder}; open it, replace it, or choose another name"
    )]
    JobExists { name: Box<str>, holder: Box<str> },
    /// The name of a prefix is taken under one of its parents.
    #[error("{} exists already and is live; choose another name or remove it", At(path))]
    PrefixExists { path: Box<str> },
    /// The name of a structure is taken.
    #[error("{} exists already; open it, or ask for open_existing", Of(path, name))]
    StructureExists { path: Box<str>, name: Box<str> },
    /// A structure of this name has other bounds than were asked for; 0 for none.
    #[error(
        "{} exists already with max_items={} and max_bytes={}, and was asked for with max_items={} and max_bytes={} (0 for no bound); open it without bounds, or with its own",
        Of(path, name), has[0], has[1], asked[0], asked[1]
    )]
    OtherBounds { path: Box<str>, name: Box<str>, has: [u64; 2], asked: [u64; 2] },
    /// A structure of this name is of another kind.
    #[error("{} is a {is}, not a {asked}", Of(path, name))]
    WrongKind { path: Box<str>, name: Box<str>, is: Kind, asked: Kind },
    /// The edges would close a cycle; each member is a parent of the next, the last of the first.
    #[error(
        "these prefixes would be their own ancestors: {}; a hierarchy has no cycles",
        chain(members)
    )]
    Cycle { members: Vec<Box<str>> },
    /// A plan names the same node twice.
    #[error("the plan has two nodes named '{name}'; names are unique within a plan")]
    DuplicateNode { name: Box<str> },
    /// A parent that was named does not exist.
    #[error(
        "'{node}' names '{parent}' as a parent, and no prefix has that name or path{}; create it first, or add it to the plan",
        Elsewhere(parent, at)
    )]
    UnknownParent { node: Box<str>, parent: Box<str>, at: Vec<Box<str>> },
    /// A reader that was declared does not exist.
    #[error(
        "{} is to be read by '{reader}', and no prefix has that name or path{}; create it first, or add it to the plan",
        At(path),
        Elsewhere(reader, at)
    )]
    UnknownReader { path: Box<str>, reader: Box<str>, at: Vec<Box<str>> },
    /// The prefix's lease ended.
    #[error(
        "the lease of {} ended {ago_ms} ms ago: nothing had renewed its {lease_ms} ms, {late_ms} ms past their end; its data is freed. {}, and renew more often or ask for a longer lease",
        At(path),
        if *reopen { "Reopen the job to begin anew" } else { "Create it again" }
    )]
    LeaseExpired { path: Box<str>, lease_ms: u32, late_ms: u64, ago_ms: u64, reopen: bool },
    /// The token is for a life of the job that is over, and why it ended is forgotten.
    #[error(
        "the lease of the job ended and another process has reopened it since; reopen the job to go on with its new data"
    )]
    LifeOver,
    /// The data was on a server that is gone.
    #[error(
        "{} was lost {ago_ms} ms ago with memory server {server}, which {how}; create it again and repeat what wrote it",
        Of(path, name)
    )]
    DataLost { path: Box<str>, name: Box<str>, server: Arc<str>, how: Loss, ago_ms: u64 },
    /// The prefix was removed by request.
    #[error("{} was removed by request {ago_ms} ms ago; create it again to use it", At(path))]
    PrefixRemoved { path: Box<str>, ago_ms: u64 },
    /// The structure was removed by request, itself or with its prefix.
    #[error("{} was removed by request {ago_ms} ms ago; create it again to use it", Of(path, name))]
    StructureRemoved { path: Box<str>, name: Box<str>, ago_ms: u64 },
    /// The prefix's declared readers had all committed.
    #[error(
        "{} was freed {ago_ms} ms ago, because its last declared reader, '{reader}', had committed; create it again to use it",
        At(path)
    )]
    PrefixRead { path: Box<str>, reader: Arc<str>, ago_ms: u64 },
    /// The declared readers of the structure's prefix had all committed.
    #[error(
        "{} was freed {ago_ms} ms ago, because the last declared reader of its prefix, '{reader}', had committed; create it again to use it",
        Of(path, name)
    )]
    StructureRead { path: Box<str>, name: Box<str>, reader: Arc<str>, ago_ms: u64 },
    /// No live server serves structures of a custom kind.
    #[error(
        "no live memory server serves a {kind}; start one that has it registered, or use the code or name of one that is served"
    )]
    UnknownKind { kind: Kind },
    /// A server announced a custom kind that it cannot be believed about.
    #[error("kind {code:#04x} cannot be announced: {why}")]
    KindRefused { code: u8, why: Box<str> },
    /// No free block that ordinary allocation may take.
    #[error("{0}")]
    OutOfMemory(Box<Full>),
    /// What servers have room for and can do is not known before they are back.
    #[error("the controller was restarted and awaits its memory servers; try again")]
    Recovering,
    /// As many blocks are held as may be: by a prefix and all below it, by the job, or by all jobs of its
    /// tenant.
    #[error(
        "asked for {asked} blocks; {level} holds {held} of its quota of {quota}. Free some, or have the quota raised (honeycomb quota)"
    )]
    QuotaExceeded { level: QuotaLevel, quota: u64, held: u64, asked: u64 },
    /// A named limit was reached.
    #[error(
        "{what} are limited to {limit}; use fewer, or divide the work over more requests, prefixes or jobs"
    )]
    LimitExceeded { what: &'static str, limit: u64 },
    /// The file was sealed and grows no more.
    #[error("{} is sealed; nothing can be appended", Of(path, name))]
    Sealed { path: Box<str>, name: Box<str> },
    /// The block is not, or no longer, the structure's.
    #[error("block {} of epoch {} does not belong to the structure named (any more)", at.block, at.epoch)]
    StaleBlock { at: BlockAt },
    /// A block says that its successor serves, and none was granted to it.
    #[error("block {} says that its successor serves what follows, but never asked for one", at.block)]
    NoSuccessor { at: BlockAt },
    /// A block of a queue is to be retired that is its tail, as far as is known.
    #[error("block {} is not known to have been sealed; ask again", at.block)]
    NotSealed { at: BlockAt },
    /// A block of a structure whose positions are numbers is to be retired before those ahead of it.
    #[error("block {} is not the first of its structure, and would leave a gap; ask again", at.block)]
    NotFirst { at: BlockAt },
    /// The block already takes part in a move, as the one that takes.
    #[error("block {} is being filled by a move; ask again when that is over", at.block)]
    Moving { at: BlockAt },
    /// No neighbour can take all that the block holds.
    #[error(
        "no neighbour of block {} takes part in no move and has room for all that the block holds; ask again when less is held",
        at.block
    )]
    NoNeighbour { at: BlockAt },
    /// A block wants to leave a server that is not being taken out.
    #[error("the server of block {} is not taken out (any more): the block stays", at.block)]
    StaysHere { at: BlockAt },
    /// The move was given up before it was committed, or never was.
    #[error("the move {id} was cancelled; block {} keeps its range", at.block)]
    MoveCancelled { id: MoveId, at: BlockAt },
    /// No member serves at this address.
    #[error("no memory server serves at {address}; `honeycomb status` lists their addresses")]
    UnknownAddress { address: Box<str> },
    /// The only server that takes blocks is to be taken out.
    #[error(
        "memory server {address} cannot be taken out: it is the only one that takes blocks. Add another first, or end it, which loses what it holds"
    )]
    LastServer { address: Arc<str> },
    /// A server was called back just now, and has not heard of it.
    #[error("memory server {server} was called back and has not heard of it yet; ask again")]
    Recalled { server: ServerId },
    /// The cluster is being stopped.
    #[error(
        "cannot {what}: the cluster is being stopped (honeycomb stop) and takes no new work; start it again when it has ended"
    )]
    Stopping { what: &'static str },
    /// The server is not, or no longer, a member.
    #[error("no memory server {server} is a member; it must join again as a new one")]
    UnknownServer { server: ServerId },
}

fn chain(members: &[Box<str>]) -> String {
    let first = members.first().map(|name| &**name).unwrap_or_default();
    members.iter().map(|name| &**name).chain([first]).collect::<Vec<_>>().join(" > ")
}
