//! The commit of a flush as a state machine without I/O: the next request to the store after each
//! reply.
//!
//! A store may execute a request without reporting it, report a failure although it has executed
//! it, or execute it much later. Hence only an explicit success of a write is trusted; after any
//! other reply the commit reads the manifest back. A write names the manifest that it replaces
//! (`Condition`), so that a late write finds another manifest and has no effect.
//!
//! A manifest lists the objects that its flush replaces (`replaces`): the next flush deletes them
//! if the writer of the manifest did not. Objects are deleted by name, never by a listing, which
//! may be stale.

use crate::manifest::{Manifest, Unreadable};
use honeycomb_types::FLUSH_MANIFEST;
use std::collections::BTreeSet;

/// How often one attempt writes the manifest, before its caller decides when to continue.
const WRITES: u32 = 3;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A failure that may be temporary: too many requests, an internal error, no connection, no
    /// reply.
    Passing(String),
    /// A failure that an operator must repair: credentials, permissions, no such bucket.
    Refused(String),
    /// The object does not exist.
    Absent,
    /// The store reports that the condition does not hold. The write itself may have caused that.
    Changed,
    /// The store does not support the operation.
    NotPossible,
}

/// The version of an object that was read, as the store numbers it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tag {
    pub etag: Option<String>,
    pub version: Option<String>,
}

/// The precondition of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Absent,
    Is(Tag),
    /// For a store without conditional writes.
    Any,
}

/// A request to the store. Names are relative to the place of the flush.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreRequest {
    /// Whether these exist, and their lengths.
    Look(Vec<String>),
    /// Read the manifest.
    Read,
    /// Write the manifest.
    Write(Vec<u8>, Condition),
    /// Delete these; missing ones count as deleted.
    Delete(Vec<String>),
}

/// The reply of the store.
#[derive(Clone, Debug)]
pub(crate) enum StoreReply {
    Looked(Vec<Result<u64, Fault>>),
    Read(Result<(Vec<u8>, Tag), Fault>),
    Written(Result<(), Fault>),
    Deleted(Result<(), Fault>),
}

/// A successful end of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Committed {
    /// The manifest is written.
    Whole,
    /// A later flush of the same controller is in place, so that this delayed flush has ended.
    Superseded,
}

/// Why a commit failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hindrance {
    /// A part is missing or has another length.
    Missing { part: String, expected: u64, found: String },
    /// The store did not execute a request.
    Store { what: &'static str, fault: Fault },
}

#[derive(Debug)]
pub(crate) enum CommitStep {
    Ask(StoreRequest),
    End(Result<Committed, Hindrance>),
}

#[derive(Clone, Debug)]
enum CommitStage {
    /// Reads the manifest: none, one to be replaced, or that of this flush? Also after each write
    /// without an explicit success.
    Read,
    /// Checks that all parts exist. The sweep of these names follows.
    Look(Vec<String>, Condition),
    /// Deletes the objects that the earlier flush replaced, if its writer did not.
    SweepOlder(Condition),
    Write,
    Sweep(Committed),
    Ended,
}

/// A commit in progress.
#[derive(Clone, Debug)]
pub(crate) struct Commit {
    manifest: Manifest,
    stage: CommitStage,
    looked: bool,
    writes: u32,
    /// The manifest that the last write was to replace.
    replacing: Option<Condition>,
    conditional: bool,
    /// Why the last write had no explicit success.
    doubt: Option<Fault>,
}

impl Commit {
    pub fn new(manifest: Manifest) -> Commit {
        let stage = CommitStage::Read;
        Commit {
            manifest,
            stage,
            looked: false,
            writes: 0,
            replacing: None,
            conditional: true,
            doubt: None,
        }
    }

    /// The first request.
    pub fn begin(&self) -> StoreRequest {
        StoreRequest::Read
    }

    /// The next step after a reply.
    pub fn next(&mut self, answer: StoreReply) -> CommitStep {
        match (std::mem::replace(&mut self.stage, CommitStage::Ended), answer) {
            (CommitStage::Read, StoreReply::Read(found)) => self.judge(found),
            (CommitStage::Look(older, condition), StoreReply::Looked(found)) => {
                match self.missing(found) {
                    Some(hindrance) => CommitStep::End(Err(hindrance)),
                    None => {
                        self.looked = true;
                        self.replace(older, condition)
                    }
                }
            }
            (CommitStage::SweepOlder(_), StoreReply::Deleted(Err(fault @ Fault::Passing(_)))) => {
                CommitStep::End(Err(Hindrance::Store { what: "objects of earlier flushes", fault }))
            }
            // Without the permission to delete, the objects stay: the bucket's owner has decided
            // so.
            (CommitStage::SweepOlder(condition), StoreReply::Deleted(_)) => self.write(condition),
            (CommitStage::Write, StoreReply::Written(Ok(()))) => self.sweep(),
            (CommitStage::Write, StoreReply::Written(Err(Fault::NotPossible)))
                if self.conditional =>
            {
                self.conditional = false;
                self.write(Condition::Any)
            }
            (CommitStage::Write, StoreReply::Written(Err(fault @ Fault::Refused(_)))) => {
                CommitStep::End(Err(Hindrance::Store { what: "the manifest", fault }))
            }
            (CommitStage::Write, StoreReply::Written(Err(fault))) => {
                self.doubt = Some(fault);
                self.stage = CommitStage::Read;
                CommitStep::Ask(StoreRequest::Read)
            }
            // No manifest names the parts of a superseded flush.
            (
                CommitStage::Sweep(Committed::Superseded),
                StoreReply::Deleted(Err(fault @ Fault::Passing(_))),
            ) => CommitStep::End(Err(Hindrance::Store { what: "the parts", fault })),
            // Objects that could not be deleted are named by the manifest, and the next flush
            // deletes them.
            (CommitStage::Sweep(how), StoreReply::Deleted(_)) => CommitStep::End(Ok(how)),
            (stage, answer) => unreachable!("{answer:?} is no answer at {stage:?}"),
        }
    }

    fn missing(&self, found: Vec<Result<u64, Fault>>) -> Option<Hindrance> {
        for (part, found) in self.manifest.parts().zip(found) {
            let found = match found {
                Ok(bytes) if bytes == part.bytes => continue,
                Ok(bytes) => format!("it has {bytes} bytes"),
                Err(Fault::Absent) => "it does not exist".into(),
                Err(fault) => return Some(Hindrance::Store { what: "a part", fault }),
            };
            let (part, expected) = (part.name.clone(), part.bytes);
            return Some(Hindrance::Missing { part, expected, found });
        }
        None
    }

    /// Replaces the current manifest: first checks the parts, then deletes the objects that it had
    /// replaced.
    fn replace(&mut self, older: Vec<String>, condition: Condition) -> CommitStep {
        // Another writer has replaced the manifest since the last write. The caller decides whether
        // this flush is still needed: possibly no client waits for it any more.
        if self.replacing.as_ref().is_some_and(|before| *before != condition) {
            let (what, fault) = ("the manifest", Fault::Changed);
            return CommitStep::End(Err(Hindrance::Store { what, fault }));
        }
        if self.looked {
            return self.delete(older, CommitStage::SweepOlder(condition));
        }
        self.stage = CommitStage::Look(older, condition);
        CommitStep::Ask(StoreRequest::Look(self.manifest.names().map(str::to_owned).collect()))
    }

    /// Decides what to do about the current manifest.
    fn judge(&mut self, found: Result<(Vec<u8>, Tag), Fault>) -> CommitStep {
        let (text, tag) = match found {
            Ok(found) => found,
            Err(Fault::Absent) => {
                self.manifest.replaces.clear();
                return self.replace(Vec::new(), Condition::Absent);
            }
            Err(fault) => {
                return CommitStep::End(Err(Hindrance::Store { what: "the manifest", fault }));
            }
        };
        let earlier = match Manifest::decode(&text) {
            Ok(earlier) => earlier,
            // An unreadable manifest names no objects that could be deleted.
            Err(Unreadable::Damaged(_) | Unreadable::Newer(_)) => {
                self.manifest.replaces.clear();
                return self.replace(Vec::new(), Condition::Is(tag));
            }
        };
        if earlier.is_as(&self.manifest) {
            self.manifest.replaces = earlier.replaces;
            return self.sweep();
        }
        let comparable = earlier.lineage == self.manifest.lineage && !earlier.lineage.is_empty();
        if comparable && earlier.number > self.manifest.number {
            let kept: BTreeSet<&str> = earlier.names().collect();
            let own = self.manifest.names().filter(|name| !kept.contains(name));
            let own = own.map(str::to_owned).collect();
            return self.delete(own, CommitStage::Sweep(Committed::Superseded));
        }
        let kept: BTreeSet<&str> = self.manifest.names().collect();
        let gone = |name: &&str| !kept.contains(name);
        let replaces: Vec<String> = earlier.names().filter(gone).map(str::to_owned).collect();
        let mut older: Vec<String> = earlier.replaces.clone();
        older.retain(|name| gone(&&**name));
        self.manifest.replaces = replaces;
        self.replace(older, Condition::Is(tag))
    }

    fn write(&mut self, condition: Condition) -> CommitStep {
        if self.writes == WRITES {
            let fault = self.doubt.take().unwrap_or(Fault::Changed);
            return CommitStep::End(Err(Hindrance::Store { what: "the manifest", fault }));
        }
        self.writes += 1;
        self.replacing = Some(condition.clone());
        let condition = if self.conditional { condition } else { Condition::Any };
        self.stage = CommitStage::Write;
        CommitStep::Ask(StoreRequest::Write(self.manifest.encode(), condition))
    }

    fn sweep(&mut self) -> CommitStep {
        let replaced = self.manifest.replaces.clone();
        self.delete(replaced, CommitStage::Sweep(Committed::Whole))
    }

    fn delete(&mut self, names: Vec<String>, stage: CommitStage) -> CommitStep {
        // A manifest is never a part, whatever its text says.
        let names: Vec<String> = names.into_iter().filter(|name| is_object(name)).collect();
        self.stage = stage;
        match names.is_empty() {
            true => self.next(StoreReply::Deleted(Ok(()))),
            false => CommitStep::Ask(StoreRequest::Delete(names)),
        }
    }
}

/// Whether a name can be that of a flush's object: a manifest never causes other objects to be
/// deleted.
fn is_object(name: &str) -> bool {
    name != FLUSH_MANIFEST && name.ends_with(honeycomb_types::FLUSH_PART) && !name.contains('/')
}

#[cfg(test)]
#[path = "commit_tests.rs"]
mod tests;
