//! The commit of a flush as a machine without I/O: what is asked of the store next, after what it answered.
//!
//! A store may do what it was asked and not say so, say that it did not and have done it, or do it much
//! later. So no answer to a write is believed but a plain yes: anything else is settled by reading the
//! manifest back. A write names what it replaces (`Condition`), so that one that arrives late finds another
//! manifest and does nothing.
//!
//! What a flush replaces is in its manifest (`replaces`): whoever comes next deletes it if the one who wrote
//! the manifest did not get so far. Names are deleted one by one, never by a listing, which may be old.

use crate::manifest::{Manifest, Unreadable};
use honeycomb_types::FLUSH_MANIFEST;
use std::collections::BTreeSet;

/// How often the manifest is written in one attempt, before whoever asked decides when to go on.
const WRITES: u32 = 3;

/// What was in the way of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It may go away: too many requests, an inner error, no connection, no answer.
    Passing(String),
    /// It stays until somebody mends it: credentials, permissions, no such bucket.
    Refused(String),
    /// There is no such object.
    Absent,
    /// The store says that the condition does not hold. It may have come to that by the write itself.
    Changed,
    /// The store has no such operation.
    NotPossible,
}

/// Which bytes an object had when it was read, as the store numbers them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tag {
    pub etag: Option<String>,
    pub version: Option<String>,
}

/// What must be there for a write to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Absent,
    Is(Tag),
    /// Of a store that knows no conditions.
    Any,
}

/// What a store is asked. Names are relative to the place of the flush.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Whether these are there, and how long.
    Look(Vec<String>),
    /// The manifest.
    Read,
    /// To write the manifest.
    Write(Vec<u8>, Condition),
    /// To delete these; those that are not there are deleted.
    Delete(Vec<String>),
}

/// What it answered.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Looked(Vec<Result<u64, Fault>>),
    Read(Result<(Vec<u8>, Tag), Fault>),
    Written(Result<(), Fault>),
    Deleted(Result<(), Fault>),
}

/// How a commit ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Committed {
    /// The manifest is there.
    Whole,
    /// A later flush of the same controller is there: this one was held up, and is over.
    Superseded,
}

/// Why it did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hindrance {
    /// A part is not there as it should be.
    Missing { part: String, expected: u64, found: String },
    /// The store did not do what it was asked.
    Store { what: &'static str, fault: Fault },
}

#[derive(Debug)]
pub(crate) enum Next {
    Ask(Ask),
    End(Result<Committed, Hindrance>),
}

#[derive(Clone, Debug)]
enum Stage {
    /// What is there: nothing, what is to be replaced, or this flush itself? Also after each write that was
    /// not said to be done.
    Read,
    /// Are all parts there? Then follows the sweep of these names.
    Look(Vec<String>, Condition),
    /// What the earlier one replaced, in case that its writer did not get so far.
    SweepOlder(Condition),
    Write,
    Sweep(Committed),
    Ended,
}

/// A commit under way.
#[derive(Clone, Debug)]
pub(crate) struct Commit {
    manifest: Manifest,
    stage: Stage,
    looked: bool,
    writes: u32,
    /// What the last write was to replace.
    replacing: Option<Condition>,
    conditional: bool,
    /// Why the last write did not say yes.
    doubt: Option<Fault>,
}

impl Commit {
    pub fn new(manifest: Manifest) -> Commit {
        let stage = Stage::Read;
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
    pub fn begin(&self) -> Ask {
        Ask::Read
    }

    /// What follows from an answer.
    pub fn next(&mut self, answer: Answer) -> Next {
        match (std::mem::replace(&mut self.stage, Stage::Ended), answer) {
            (Stage::Read, Answer::Read(found)) => self.judge(found),
            (Stage::Look(older, condition), Answer::Looked(found)) => match self.missing(found) {
                Some(hindrance) => Next::End(Err(hindrance)),
                None => {
                    self.looked = true;
                    self.replace(older, condition)
                }
            },
            (Stage::SweepOlder(_), Answer::Deleted(Err(fault @ Fault::Passing(_)))) => {
                Next::End(Err(Hindrance::Store { what: "objects of earlier flushes", fault }))
            }
            // Who may not delete does not: the bucket's owner has said so.
            (Stage::SweepOlder(condition), Answer::Deleted(_)) => self.write(condition),
            (Stage::Write, Answer::Written(Ok(()))) => self.sweep(),
            (Stage::Write, Answer::Written(Err(Fault::NotPossible))) if self.conditional => {
                self.conditional = false;
                self.write(Condition::Any)
            }
            (Stage::Write, Answer::Written(Err(fault @ Fault::Refused(_)))) => {
                Next::End(Err(Hindrance::Store { what: "the manifest", fault }))
            }
            (Stage::Write, Answer::Written(Err(fault))) => {
                self.doubt = Some(fault);
                self.stage = Stage::Read;
                Next::Ask(Ask::Read)
            }
            // Nobody names the parts of a flush that is over.
            (
                Stage::Sweep(Committed::Superseded),
                Answer::Deleted(Err(fault @ Fault::Passing(_))),
            ) => Next::End(Err(Hindrance::Store { what: "the parts", fault })),
            // What stays behind is named by the manifest, and the next flush deletes it.
            (Stage::Sweep(how), Answer::Deleted(_)) => Next::End(Ok(how)),
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

    /// Replaces what is there: after a look at the parts, and without what it had replaced.
    fn replace(&mut self, older: Vec<String>, condition: Condition) -> Next {
        // Somebody else was there since the last write. Who asks for this flush decides whether it is still
        // wanted: it may be that nobody waits for it any more.
        if self.replacing.as_ref().is_some_and(|before| *before != condition) {
            let (what, fault) = ("the manifest", Fault::Changed);
            return Next::End(Err(Hindrance::Store { what, fault }));
        }
        if self.looked {
            return self.delete(older, Stage::SweepOlder(condition));
        }
        self.stage = Stage::Look(older, condition);
        Next::Ask(Ask::Look(self.manifest.names().map(str::to_owned).collect()))
    }

    /// What is to be done about the manifest that is there.
    fn judge(&mut self, found: Result<(Vec<u8>, Tag), Fault>) -> Next {
        let (text, tag) = match found {
            Ok(found) => found,
            Err(Fault::Absent) => {
                self.manifest.replaces.clear();
                return self.replace(Vec::new(), Condition::Absent);
            }
            Err(fault) => {
                return Next::End(Err(Hindrance::Store { what: "the manifest", fault }));
            }
        };
        let earlier = match Manifest::decode(&text) {
            Ok(earlier) => earlier,
            // It names nothing that could be deleted.
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
            return self.delete(own, Stage::Sweep(Committed::Superseded));
        }
        let kept: BTreeSet<&str> = self.manifest.names().collect();
        let gone = |name: &&str| !kept.contains(name);
        let replaces: Vec<String> = earlier.names().filter(gone).map(str::to_owned).collect();
        let mut older: Vec<String> = earlier.replaces.clone();
        older.retain(|name| gone(&&**name));
        self.manifest.replaces = replaces;
        self.replace(older, Condition::Is(tag))
    }

    fn write(&mut self, condition: Condition) -> Next {
        if self.writes == WRITES {
            let fault = self.doubt.take().unwrap_or(Fault::Changed);
            return Next::End(Err(Hindrance::Store { what: "the manifest", fault }));
        }
        self.writes += 1;
        self.replacing = Some(condition.clone());
        let condition = if self.conditional { condition } else { Condition::Any };
        self.stage = Stage::Write;
        Next::Ask(Ask::Write(self.manifest.encode(), condition))
    }

    fn sweep(&mut self) -> Next {
        let replaced = self.manifest.replaces.clone();
        self.delete(replaced, Stage::Sweep(Committed::Whole))
    }

    fn delete(&mut self, names: Vec<String>, stage: Stage) -> Next {
        // A manifest is never a part, whatever somebody wrote into it.
        let names: Vec<String> = names.into_iter().filter(|name| is_object(name)).collect();
        self.stage = stage;
        match names.is_empty() {
            true => self.next(Answer::Deleted(Ok(()))),
            false => Next::Ask(Ask::Delete(names)),
        }
    }
}

/// Whether a name can be that of an object of a flush: nothing else is deleted by what a manifest says.
fn is_object(name: &str) -> bool {
    name != FLUSH_MANIFEST && name.ends_with(honeycomb_types::FLUSH_PART) && !name.contains('/')
}

#[cfg(test)]
#[path = "commit_tests.rs"]
mod tests;
