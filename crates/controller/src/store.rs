//! The controller's log: what outlives it (ADR 0012).
//!
//! A folder holds the cluster's key, one snapshot and the log files after it:
//!
//! ```text
//! cluster.key         the cluster's root key, behind a tag and before a checksum
//! snapshot-0000000c   everything as it was when log-0000000c began
//! log-0000000c        a head (term), then groups of records
//! log-0000000d        the next start began another one, with a greater term
//! ```
//!
//! [`Store::open`] recovers the state and begins a log file with a term that was never used before.
//! [`Store::commit`] appends what one round of the controller changed, as one group, and has it synced;
//! replies and effects that depend on it leave when it is ([`Store::safe`]) and not before. A sync is
//! done at once, or, after [`Store::sync_beside`], by a thread of its own: one at a time, for
//! everything that was appended meanwhile, while the controller goes on. When files have grown,
//! [`Store::renew`] writes a snapshot beside them, renames it, and removes what came before.
//!
//! What a disk can do wrong: a write that a crash cut short is dropped when it is the last of the
//! last file, and nobody was told of it; anything else that is not as it was written is a refusal to
//! start ([`StoreError`]). After a failed write or sync nothing that is on the disk is certain any
//! more, so the only way on is a new snapshot in new files: until [`Store::renew`] has succeeded
//! every commit is refused.
//!
//! # For the simulator
//!
//! ```text
//! let disk = MemoryDisk::new();                       // shared by clones
//! let Opened { store, catalog, answers, now, .. } =
//!     Store::open(Box::new(disk.clone()), OpenOptions { .. })?;
//! catalog.apply(now, command, &mut effects);          // hold replies and effects
//! store.commit(now, &mut catalog, &[], true)?;        // they may leave
//! drop((store, catalog)); disk.crash(&mut choose);    // power fails; then open again
//! ```
//!
//! `Catalog::recovering` is true then until each server has rejoined (`Command::RejoinServer`, and
//! `Command::Inventory` with what `Shard::holdings` tells) or is given up.

mod census;
mod frame;
mod syncing;

use crate::answers::{self, Answers};
pub use census::{LogCensus, census};
use frame::{Damage, Frame, FrameKind};
use honeycomb_catalog::{Catalog, Config, Recovery};
use honeycomb_env::{Disk, Entropy};
use honeycomb_types::{Bug, Marks, PolicyKind, ScaleMarks, Time};
use honeycomb_wire::RootKey;
use std::fmt;
use std::io;
use std::time::Duration;
pub(crate) use syncing::Synced;
use syncing::Syncing;
use xxhash_rust::xxh64::xxh64;

const KEY: &str = "cluster.key";
/// A log of this size, and twice its snapshot's, is replaced by a snapshot.
const RENEW_FROM: u64 = 16 << 20;
/// How often the clock is written when nothing else is: a restarted controller's goes on from there.
const CLOCK_EVERY: Duration = Duration::from_secs(5);
/// Within this the sync of a group begins whose reply did not wait for the disk, or when the sync that is
/// under way has ended.
const SYNC_WITHIN: Duration = Duration::from_millis(50);
/// The pause between two tries to begin new files after an error.
pub(crate) const RENEW_AGAIN: Duration = Duration::from_millis(500);

/// Why the state cannot be recovered, or kept.
#[derive(Debug)]
pub enum StoreError {
    /// Another controller has the folder.
    InUse,
    /// The file system refused.
    Io {
        /// What was tried.
        what: String,
        /// What it said.
        error: io::Error,
    },
    /// A file is not what was written.
    Damaged {
        /// The file.
        file: String,
        /// Where the first bytes are that cannot be believed.
        offset: u64,
        /// What is wrong there.
        why: String,
    },
    /// A file of a later version of this program.
    Newer {
        /// The file.
        file: String,
        /// Its format.
        major: u8,
    },
    /// A file that must be there is not.
    Missing {
        /// The file.
        file: String,
    },
    /// An earlier error: nothing is written until new files could be begun.
    Stopped {
        /// That error.
        why: String,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::InUse => f.write_str("another controller has this data directory"),
            StoreError::Io { what, error } => write!(f, "{what}: {error}"),
            StoreError::Damaged { file, offset, why } => write!(
                f,
                "{file} is damaged at byte {offset}: {why}. What was acknowledged cannot be known \
                 from it; restore the directory from a copy, or begin with an empty one"
            ),
            StoreError::Newer { file, major } => write!(
                f,
                "{file} has format {major}, and this version reads {}: it was written by a later \
                 version, which has to be used",
                frame::MAJOR
            ),
            StoreError::Missing { file } => write!(
                f,
                "{file} is missing: the directory is not complete; restore it from a copy"
            ),
            StoreError::Stopped { why } => f.write_str(why),
        }
    }
}

impl std::error::Error for StoreError {}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> StoreError {
    let what = what.into();
    move |error| match error.kind() {
        io::ErrorKind::ResourceBusy => StoreError::InUse,
        _ => StoreError::Io { what, error },
    }
}

/// What a store is opened with.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// The controller shard.
    pub shard: u16,
    /// Key of the catalog's tables.
    pub hash_seed: u64,
    /// The key of a cluster that begins here; drawn when nobody says.
    pub root_key: Option<[u8; 32]>,
    /// When blocks grow and merge, of prefixes that do not say.
    pub marks: Marks,
    /// Lease of the prefixes of jobs that do not say, in milliseconds.
    pub lease_ms: u32,
    /// Who has memory when it is short.
    pub policy: PolicyKind,
    /// When there should be other servers.
    pub scale: ScaleMarks,
    /// Milliseconds of silence after which a suspected memory server is lost.
    pub server_loss_ms: u32,
    /// What the controller's clock shows at least.
    pub now: Time,
}

/// What was recovered.
pub struct Opened {
    /// Where changes go from now on.
    pub store: Store,
    /// The catalog as it was.
    pub catalog: Catalog,
    /// Answers that may be asked for again.
    pub answers: Answers,
    /// The cluster's key.
    pub root: RootKey,
    /// The controller's clock goes on from here.
    pub now: Time,
}

/// An open log.
pub struct Store {
    disk: Box<dyn Disk>,
    /// Number of the present log file.
    file: u64,
    term: u32,
    /// Of the next frame.
    number: u64,
    /// Bytes of the present file, and how many of them are on the disk.
    length: u64,
    synced: u64,
    /// The last group that somebody waits for, and the last one that is on the disk.
    waited: u64,
    safe: u64,
    /// The thread that syncs, where there is one.
    syncing: Option<Syncing>,
    /// A sync has just ended: the next one is a round later.
    joins: bool,
    /// Since when something is not.
    loose_since: Option<Time>,
    /// Bytes of log files since the snapshot, and of the snapshot.
    logged: u64,
    snapshot: u64,
    last_write: Time,
    /// Records on their way, and the frame around them; kept for their memory.
    records: Vec<u8>,
    frame: Vec<u8>,
    stopped: Option<String>,
}

fn log_name(file: u64) -> String {
    format!("log-{file:016x}")
}

fn snapshot_name(file: u64) -> String {
    format!("snapshot-{file:016x}")
}

fn numbers(names: &[String], prefix: &str) -> Vec<u64> {
    let number = |name: &String| {
        let digits = name.strip_prefix(prefix)?;
        u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 16)
    };
    let mut found: Vec<u64> = names.iter().filter_map(number).collect();
    found.sort_unstable();
    found
}

/// What is read from the files, as far as it has been.
struct Reading {
    recovery: Recovery,
    answers: Answers,
    term: u32,
    time: Time,
    /// Of the next frame, once one was read.
    number: Option<u64>,
}

impl Reading {
    fn damaged<T>(file: &str, offset: u64, why: impl Into<String>) -> Result<T, StoreError> {
        Err(StoreError::Damaged { file: file.to_owned(), offset, why: why.into() })
    }

    /// Reads one file. Answers how many of its bytes are frames.
    fn file(&mut self, name: &str, file: u64, data: &[u8], last: bool) -> Result<u64, StoreError> {
        let (frames, whole) = frame::read_file(data, file).map_err(|damage| match damage {
            Damage::Newer { major } => StoreError::Newer { file: name.to_owned(), major },
            Damage::Spoilt { offset } => StoreError::Damaged {
                file: name.to_owned(),
                offset,
                why: "the checksum is wrong, and what follows was written later".into(),
            },
        })?;
        if whole < data.len() as u64 && !last {
            return Self::damaged(name, whole, "the checksum is wrong, and later files follow");
        }
        let mut offset = 0;
        for (i, frame) in frames.iter().enumerate() {
            if self.number.is_some_and(|number| number != frame.number) {
                return Self::damaged(name, offset, "a group before this one is missing");
            }
            self.number = Some(frame.number + 1);
            self.time = self.time.max(frame.time);
            match (i, frame.kind) {
                (0, FrameKind::Head) => self.head(name, file, frame.body)?,
                (0, _) | (_, FrameKind::Head) => {
                    return Self::damaged(name, offset, "a file begins with its head, once");
                }
                (_, FrameKind::Group) => self.group(name, offset, frame.body)?,
                (_, FrameKind::End) => {}
            }
            offset += (frame::HEADER + frame.body.len()) as u64;
        }
        // Heads are renamed into place: a file without one was something else.
        if frames.is_empty() {
            return Self::damaged(name, 0, "it has no head");
        }
        Ok(whole)
    }

    fn head(&mut self, name: &str, file: u64, body: &[u8]) -> Result<(), StoreError> {
        let term = body.first_chunk::<4>().map(|b| u32::from_le_bytes(*b));
        let own = body.get(4..12).map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes")));
        match (term, own) {
            (Some(term), Some(own)) if own == file && term >= self.term => {
                self.term = term;
                Ok(())
            }
            _ => Self::damaged(name, 0, "its head is not that of this file"),
        }
    }

    fn group(&mut self, name: &str, offset: u64, mut records: &[u8]) -> Result<(), StoreError> {
        while !records.is_empty() {
            let length = records.first_chunk::<4>().map(|b| u32::from_le_bytes(*b) as usize);
            let body = length.and_then(|length| records.get(6..6 + length));
            let Some(body) = body else {
                return Self::damaged(name, offset, "a record is longer than its group");
            };
            let (code, version) = (records[4], records[5]);
            let read = match code {
                answers::RECORD => self.answers.record(version, body),
                _ => self.recovery.record(code, version, body).map_err(|e| e.to_string()),
            };
            read.or_else(|why| Self::damaged(name, offset, why))?;
            records = &records[6 + body.len()..];
        }
        Ok(())
    }

    fn snapshot(&mut self, name: &str, file: u64, data: &[u8]) -> Result<(), StoreError> {
        let (frames, _) = frame::read_file(data, file).unwrap_or_default();
        let ended = frames.last().is_some_and(|frame| frame.kind == FrameKind::End);
        self.file(name, file, data, false)?;
        if !ended {
            return Self::damaged(name, data.len() as u64, "its end is missing");
        }
        Ok(())
    }
}

impl Store {
    /// Recovers what the folder holds, or begins with nothing in an empty one; takes the next term,
    /// which is on the disk when this returns.
    pub fn open(mut disk: Box<dyn Disk>, options: OpenOptions) -> Result<Opened, StoreError> {
        let names = disk.list().map_err(io_error("the data directory cannot be read"))?;
        for name in names.iter().filter(|name| name.ends_with(".new")) {
            disk.remove(name).map_err(io_error(format!("{name} cannot be removed")))?;
        }
        let (logs, snapshots) = (numbers(&names, "log-"), numbers(&names, "snapshot-"));
        let fresh = logs.is_empty() && snapshots.is_empty();
        let root = root_key(&mut *disk, fresh, options.root_key)?;
        let mut reading = Reading {
            recovery: Recovery::new(),
            answers: Answers::default(),
            term: 0,
            time: options.now,
            number: None,
        };
        let read = |disk: &mut dyn Disk, name: &str| {
            disk.read(name).map_err(io_error(format!("{name} cannot be read")))
        };
        let (mut snapshot, mut logged) = (0, 0);
        if let Some(&file) = snapshots.last() {
            let name = snapshot_name(file);
            let data = read(&mut *disk, &name)?;
            reading.snapshot(&name, file, &data)?;
            snapshot = data.len() as u64;
        }
        let first = snapshots.last().copied().unwrap_or(1);
        let logs: Vec<u64> = logs.into_iter().filter(|&file| file >= first).collect();
        for (expected, &file) in (first..).zip(&logs) {
            if file != expected {
                return Err(StoreError::Missing { file: log_name(expected) });
            }
            let (name, last) = (log_name(file), logs.last() == Some(&file));
            let data = read(&mut *disk, &name)?;
            let whole = reading.file(&name, file, &data, last)?;
            if whole < data.len() as u64 {
                let cut = disk.truncate(&name, whole);
                cut.map_err(io_error(format!("{name} cannot be cut")))?;
            }
            if last && !Bug::LogTailUnsynced.active() {
                // A controller that was killed may have left what was never synced. It counts from
                // now on, and files come after it: it must not go when the machine does.
                disk.sync(&name).map_err(io_error(format!("{name} cannot be synced")))?;
            }
            logged += whole;
        }
        let term = reading.term + 1;
        let Reading { recovery, answers, time, number, .. } = reading;
        let OpenOptions {
            shard, hash_seed, marks, lease_ms, policy, scale, server_loss_ms, ..
        } = options;
        let ids = root.id_cipher();
        let config =
            Config { shard, term, hash_seed, ids, marks, lease_ms, policy, scale, server_loss_ms };
        let catalog = recovery.finish(config, time).map_err(|e| StoreError::Damaged {
            file: "the log as a whole".into(),
            offset: 0,
            why: e.to_string(),
        })?;
        let mut store = Store {
            disk,
            file: logs.last().map_or(first, |last| last + 1),
            term,
            number: number.unwrap_or(1),
            length: 0,
            synced: 0,
            waited: 0,
            safe: 0,
            syncing: None,
            joins: false,
            loose_since: None,
            logged,
            snapshot,
            last_write: time,
            records: Vec::new(),
            frame: Vec::new(),
            stopped: None,
        };
        store.begin_log(time)?;
        Ok(Opened { store, catalog, answers, root, now: time })
    }

    /// The term of this controller: greater than that of every one before.
    pub fn term(&self) -> u32 {
        self.term
    }

    /// Why nothing can be written, if that is so.
    pub fn trouble(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// Writes what the catalog has changed since the last call, and `more` records of the
    /// controller's own, as one group. When it returns, they survive a crash of the process; with
    /// `wait`, of the machine once `safe` has come to `waited`. After an error they may or may not.
    pub fn commit(
        &mut self,
        now: Time,
        catalog: &mut Catalog,
        more: &[u8],
        wait: bool,
    ) -> Result<(), StoreError> {
        if let Some(why) = &self.stopped {
            return Err(StoreError::Stopped { why: why.clone() });
        }
        let mut records = std::mem::take(&mut self.records);
        records.clear();
        catalog.take_changes(&mut records);
        records.extend_from_slice(more);
        let clock = now.since(self.last_write) >= CLOCK_EVERY;
        let nothing = records.is_empty();
        let written = if nothing && !clock { Ok(()) } else { self.write_group(now, &records) };
        self.records = records;
        if wait && !nothing && written.is_ok() {
            self.waited = self.number - 1;
        }
        let due = self.loose_since.is_some_and(|since| now.since(since) >= SYNC_WITHIN);
        let joins = std::mem::take(&mut self.joins);
        let wanted = (self.waited > self.safe || due) && !joins;
        let done = written.and_then(|()| if wanted { self.sync() } else { Ok(()) });
        done.inspect_err(|e| self.stopped = Some(e.to_string()))
    }

    /// The last group that was written to be waited for. Groups are numbered in their order.
    pub fn waited(&self) -> u64 {
        self.waited
    }

    /// Groups up to this one are on the disk.
    pub fn safe(&self) -> u64 {
        self.safe
    }

    /// When something must be written or synced although nothing happens.
    pub fn deadline(&self) -> Time {
        // The end of a sync that is under way comes by itself.
        let idle = self.syncing.as_ref().is_none_or(|syncing| !syncing.is_under_way());
        let loose = match self.loose_since {
            Some(_) if idle && self.waited > self.safe => Time::ZERO,
            Some(since) if idle => since + SYNC_WITHIN,
            _ => Time::NEVER,
        };
        loose.min(self.last_write + CLOCK_EVERY)
    }

    /// Whether the log has grown so far that `renew` is worth its time.
    pub fn is_long(&self) -> bool {
        self.logged > RENEW_FROM.max(2 * self.snapshot)
    }

    fn write_group(&mut self, now: Time, records: &[u8]) -> Result<(), StoreError> {
        let mut bytes = std::mem::take(&mut self.frame);
        bytes.clear();
        let (number, synced) = (self.number, self.synced);
        let kind = FrameKind::Group;
        let group = Frame { kind, number, synced, time: now, body: records };
        frame::put(&mut bytes, self.file, &group);
        let name = log_name(self.file);
        let written = self.disk.append(&name, &bytes);
        let length = bytes.len() as u64;
        self.frame = bytes;
        written.map_err(io_error(format!("{name} cannot be written")))?;
        self.number += 1;
        self.length += length;
        self.logged += length;
        self.last_write = now;
        if !records.is_empty() {
            self.loose_since.get_or_insert(now);
        }
        Ok(())
    }

    /// Has everything synced that is in the file, at once or beside.
    fn sync(&mut self) -> Result<(), StoreError> {
        let name = log_name(self.file);
        let failed = io_error(format!("{name} cannot be synced"));
        match &mut self.syncing {
            Some(syncing) => {
                let (length, number) = (self.length, self.number - 1);
                if syncing.begin(&mut *self.disk, self.file, length, number).map_err(failed)? {
                    self.loose_since = None;
                }
            }
            None => {
                self.disk.sync(&name).map_err(failed)?;
                (self.synced, self.safe) = (self.length, self.number - 1);
                self.loose_since = None;
            }
        }
        Ok(())
    }

    /// Has syncs done by a thread of their own from now on. Each tells `done` of its end, for `synced`.
    pub(crate) fn sync_beside(&mut self, done: impl Fn(Synced) + Send + 'static) -> io::Result<()> {
        self.syncing = Some(Syncing::start(log_name, done)?);
        Ok(())
    }

    /// A sync beside has come to its end, which may be an error: `trouble` tells. The next one begins
    /// with the commit after the next: what those ask who are told of this one's end joins it.
    pub(crate) fn synced(&mut self, synced: Synced) {
        let Some(syncing) = &mut self.syncing else { return };
        let covered = syncing.end();
        if self.stopped.is_some() {
            return;
        }
        self.joins = true;
        let Synced { file, outcome } = synced;
        match outcome {
            // A file that was replaced meanwhile is not needed any more.
            _ if file != self.file => {}
            Ok(()) => (self.synced, self.safe) = covered,
            Err(error) => {
                let what = format!("{} cannot be synced", log_name(file));
                self.stopped = Some(StoreError::Io { what, error }.to_string());
            }
        }
    }

    /// Begins new files with everything as it is now. When it returns, all of it is on the disk, also
    /// what an earlier `commit` could not write, and commits are taken again.
    pub fn renew(
        &mut self,
        now: Time,
        catalog: &mut Catalog,
        answers: &Answers,
    ) -> Result<(), StoreError> {
        let file = self.file + 1;
        self.write_snapshot(now, file, catalog, answers)?;
        // From here on recovery begins with the new snapshot: the old log is past.
        let (before, number) = (self.file, self.number);
        self.file = file;
        if let Err(e) = self.begin_log(now) {
            (self.file, self.number) = (before, number);
            self.stopped = Some(e.to_string());
            return Err(e);
        }
        // What the snapshot has is not written again.
        self.records.clear();
        catalog.take_changes(&mut self.records);
        self.logged = self.length;
        self.stopped = None;
        let names = self.disk.list().unwrap_or_default();
        let old = numbers(&names, "log-").into_iter().filter(|&n| n < file).map(log_name);
        let older = numbers(&names, "snapshot-").into_iter().filter(|&n| n < file);
        // They are not read any more: what cannot be removed only takes room.
        for name in old.chain(older.map(snapshot_name)) {
            let _ = self.disk.remove(&name);
        }
        Ok(())
    }

    fn write_snapshot(
        &mut self,
        now: Time,
        file: u64,
        catalog: &Catalog,
        answers: &Answers,
    ) -> Result<(), StoreError> {
        let name = snapshot_name(file);
        let draft = format!("{name}.new");
        let failed = |what: &str| io_error(format!("{name} cannot be {what}"));
        self.disk.remove(&draft).map_err(failed("replaced"))?;
        let mut number = self.number;
        let mut bytes = Vec::new();
        let head = head_body(self.term, file);
        let mut put = |bytes: &mut Vec<u8>, kind: FrameKind, body: &[u8]| {
            frame::put(bytes, file, &Frame { kind, number, synced: 0, time: now, body });
            number += 1;
        };
        put(&mut bytes, FrameKind::Head, &head);
        let mut kept = Vec::new();
        answers.put_all(&mut kept);
        put(&mut bytes, FrameKind::Group, &kept);
        let (disk, mut written, mut result) = (&mut self.disk, 0, Ok(()));
        catalog.put_all(&mut |records| {
            put(&mut bytes, FrameKind::Group, records);
            if result.is_ok() {
                result = disk.append(&draft, &bytes);
                written += bytes.len() as u64;
            }
            bytes.clear();
        });
        put(&mut bytes, FrameKind::End, &[]);
        written += bytes.len() as u64;
        let done = result
            .and_then(|()| self.disk.append(&draft, &bytes))
            .and_then(|()| self.disk.sync(&draft))
            .and_then(|()| self.disk.rename(&draft, &name));
        done.map_err(failed("written"))?;
        (self.number, self.snapshot) = (number, written);
        Ok(())
    }

    /// Begins the log file of the present number: beside, and renamed, so that it has its head.
    fn begin_log(&mut self, now: Time) -> Result<(), StoreError> {
        let name = log_name(self.file);
        let draft = format!("{name}.new");
        let mut bytes = Vec::new();
        let (kind, number) = (FrameKind::Head, self.number);
        let body = &head_body(self.term, self.file);
        frame::put(&mut bytes, self.file, &Frame { kind, number, synced: 0, time: now, body });
        let done = self
            .disk
            .remove(&draft)
            .and_then(|()| self.disk.append(&draft, &bytes))
            .and_then(|()| self.disk.sync(&draft))
            .and_then(|()| self.disk.rename(&draft, &name));
        done.map_err(io_error(format!("{name} cannot be begun")))?;
        self.number += 1;
        self.length = bytes.len() as u64;
        (self.synced, self.loose_since) = (self.length, None);
        (self.safe, self.waited) = (self.number - 1, self.number - 1);
        self.last_write = now;
        Ok(())
    }
}

fn head_body(term: u32, file: u64) -> [u8; 12] {
    let mut body = [0; 12];
    body[..4].copy_from_slice(&term.to_le_bytes());
    body[4..].copy_from_slice(&file.to_le_bytes());
    body
}

/// The first bytes of `cluster.key`: a magic word and the version of the format.
const KEY_TAG: &[u8; 8] = b"HCKEY\0\0\x01";

/// The bytes of `cluster.key`.
fn key_bytes(key: &[u8; 32]) -> Vec<u8> {
    let mut bytes = [&KEY_TAG[..], key].concat();
    bytes.extend(xxh64(&bytes, 0).to_le_bytes());
    bytes
}

/// The key that `cluster.key` holds, or why it cannot be believed.
fn parse_key(bytes: &[u8]) -> Result<[u8; 32], String> {
    let length = KEY_TAG.len() + 32 + 8;
    if bytes.len() != length {
        return Err(format!("a key file has {length} bytes, and it has {}", bytes.len()));
    }
    let (body, sum) = bytes.split_at(length - 8);
    if !body.starts_with(KEY_TAG) {
        return Err("it does not begin as a key file does".into());
    }
    if xxh64(body, 0).to_le_bytes() != sum {
        return Err("its checksum is wrong".into());
    }
    Ok(body[KEY_TAG.len()..].try_into().expect("32 bytes between tag and checksum"))
}

/// The cluster's key: the one that is there, or, in a folder that has no log, a new one.
fn root_key(
    disk: &mut dyn Disk,
    fresh: bool,
    given: Option<[u8; 32]>,
) -> Result<RootKey, StoreError> {
    match disk.read(KEY) {
        Ok(bytes) => parse_key(&bytes).map(RootKey).map_err(|why| StoreError::Damaged {
            file: KEY.into(),
            offset: 0,
            why: format!("{why}. With another key every token of the cluster would be refused"),
        }),
        Err(e) if e.kind() == io::ErrorKind::NotFound && fresh => {
            let key = given.unwrap_or_else(Entropy::secret);
            let draft = format!("{KEY}.new");
            let done = disk
                .remove(&draft) // A start that was killed may have left one.
                .and_then(|()| disk.append(&draft, &key_bytes(&key)))
                .and_then(|()| disk.sync(&draft))
                .and_then(|()| disk.rename(&draft, KEY));
            done.map_err(io_error(format!("{KEY} cannot be written")))?;
            Ok(RootKey(key))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Err(StoreError::Missing { file: KEY.into() })
        }
        Err(e) => Err(io_error(format!("{KEY} cannot be read"))(e)),
    }
}
