//! The controller's log, which outlives the controller (ADR 0012).
//!
//! A folder contains the cluster's key, one snapshot and the log files after it:
//!
//! ```text
//! cluster.key         a tag, the cluster's root key, a checksum
//! snapshot-0000000c   the whole state at the start of log-0000000c
//! log-0000000c        a head (term), then groups of records
//! log-0000000d        begun by the next start, with a greater term
//! ```
//!
//! [`Store::open`] recovers the state and begins a log file with a term that was never used before.
//! [`Store::commit`] appends the changes of one round of the controller as one group, and syncs it. Replies
//! and effects that depend on the group may be sent only after the sync ([`Store::safe`]). A sync happens at
//! once, or after [`Store::sync_beside`] on a separate thread: one sync at a time, for everything appended
//! meanwhile, while the controller continues. When the files have grown, [`Store::renew`] writes a new
//! snapshot, renames it into place, and removes the older files.
//!
//! Failures of a disk: a write that a crash interrupted is dropped if it is the last one of the last file,
//! because it was never acknowledged. Any other damage is an error at start ([`StoreError`]). After a failed
//! write or sync, the contents of the disk are uncertain, so that only a new snapshot in new files helps:
//! every commit is refused until [`Store::renew`] has succeeded.
//!
//! # For the simulator
//!
//! ```text
//! let disk = MemoryDisk::new();                       // clones share the disk
//! let Opened { store, catalog, answers, now, .. } =
//!     Store::open(Box::new(disk.clone()), OpenOptions { .. })?;
//! catalog.apply(now, command, &mut effects);          // hold replies and effects
//! store.commit(now, &mut catalog, &[], true)?;        // now send them
//! drop((store, catalog)); disk.crash(&mut choose);    // power fails; then open again
//! ```
//!
//! `Catalog::recovering` is then true until each server has rejoined (`Command::RejoinServer`, and
//! `Command::Inventory` with the blocks of `Reports::holdings`) or is declared lost.

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
/// A log of at least this size, and at least twice the size of its snapshot, is replaced by a new snapshot.
const RENEW_FROM: u64 = 16 << 20;
/// Interval at which the clock is written without other changes. A restarted controller's clock continues
/// from there.
const CLOCK_EVERY: Duration = Duration::from_secs(5);
/// Maximum time until the sync of a group begins whose reply did not wait for the disk; if a sync is running,
/// until that ends.
const SYNC_WITHIN: Duration = Duration::from_millis(50);
/// The pause between two attempts to begin new files after an error.
pub(crate) const RENEW_AGAIN: Duration = Duration::from_millis(500);

/// The reason why the state cannot be recovered or written.
#[derive(Debug)]
pub enum StoreError {
    /// Another controller uses the folder.
    InUse,
    /// An operation of the file system failed.
    Io {
        /// The failed operation.
        what: String,
        /// Its error.
        error: io::Error,
    },
    /// A file is damaged.
    Damaged {
        /// The file.
        file: String,
        /// Offset of the first damaged bytes.
        offset: u64,
        /// Description of the damage.
        why: String,
    },
    /// A file of a later version of this program.
    Newer {
        /// The file.
        file: String,
        /// Major version of its format.
        major: u8,
    },
    /// A required file is missing.
    Missing {
        /// The file.
        file: String,
    },
    /// An earlier write failed: nothing is written until new files have been begun.
    Stopped {
        /// The earlier error.
        why: String,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::InUse => f.write_str("another controller uses this data directory"),
            StoreError::Io { what, error } => write!(f, "{what}: {error}"),
            StoreError::Damaged { file, offset, why } => write!(
                f,
                "{file} is damaged at byte {offset}: {why}. Acknowledged changes may be lost; \
                 restore the directory from a copy, or begin with an empty one"
            ),
            StoreError::Newer { file, major } => write!(
                f,
                "{file} has format {major}, and this version reads only {}: it was written by a \
                 later version; use that version",
                frame::MAJOR
            ),
            StoreError::Missing { file } => {
                write!(f, "{file} is missing: the directory is incomplete; restore it from a copy")
            }
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

/// The options to open a store.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// The controller shard.
    pub shard: u16,
    /// Key of the catalog's tables.
    pub hash_seed: u64,
    /// Key of a new cluster; `None` draws one.
    pub root_key: Option<[u8; 32]>,
    /// Default marks at which blocks grow and merge.
    pub marks: Marks,
    /// Default lease of prefixes, in milliseconds.
    pub lease_ms: u32,
    /// How jobs share memory when it is short.
    pub policy: PolicyKind,
    /// Marks of the advice to add or remove servers.
    pub scale: ScaleMarks,
    /// Milliseconds without a message after which a suspected memory server is declared lost.
    pub server_loss_ms: u32,
    /// Minimum time of the controller's clock.
    pub now: Time,
}

/// The recovered state.
pub struct RecoveredState {
    /// The open log.
    pub store: Store,
    /// The recovered catalog.
    pub catalog: Catalog,
    /// Answers for retries.
    pub answers: Answers,
    /// The cluster's key.
    pub root: RootKey,
    /// Time from which the controller's clock continues.
    pub now: Time,
}

/// An open log.
pub struct Store {
    disk: Box<dyn Disk>,
    /// Number of the present log file.
    file: u64,
    term: u32,
    /// Number of the next frame.
    number: u64,
    /// Bytes of the present file, and how many of them are synced.
    length: u64,
    synced: u64,
    /// The last group that messages wait for, and the last group that is on disk.
    waited: u64,
    safe: u64,
    /// The thread that syncs, if there is one.
    syncing: Option<Syncing>,
    /// Whether a sync has just ended, so that the next one begins a round later.
    joins: bool,
    /// Time since which written bytes are not synced.
    loose_since: Option<Time>,
    /// Bytes of log files since the snapshot, and bytes of the snapshot.
    logged: u64,
    snapshot: u64,
    last_write: Time,
    /// Reused buffers for records and their frame.
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

/// The state read from the files so far.
struct LogRecovery {
    recovery: Recovery,
    answers: Answers,
    term: u32,
    time: Time,
    /// Number of the next frame, after the first frame was read.
    number: Option<u64>,
}

impl LogRecovery {
    fn damaged<T>(file: &str, offset: u64, why: impl Into<String>) -> Result<T, StoreError> {
        Err(StoreError::Damaged { file: file.to_owned(), offset, why: why.into() })
    }

    /// Reads one file; answers the number of bytes in valid frames.
    fn file(&mut self, name: &str, file: u64, data: &[u8], last: bool) -> Result<u64, StoreError> {
        let (frames, whole) = frame::read_file(data, file).map_err(|damage| match damage {
            Damage::Newer { major } => StoreError::Newer { file: name.to_owned(), major },
            Damage::Spoilt { offset } => StoreError::Damaged {
                file: name.to_owned(),
                offset,
                why: "the checksum is wrong, but later frames follow".into(),
            },
        })?;
        if whole < data.len() as u64 && !last {
            return Self::damaged(name, whole, "the checksum is wrong, but later files follow");
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
                    return Self::damaged(name, offset, "the file has a second head");
                }
                (_, FrameKind::Group) => self.group(name, offset, frame.body)?,
                (_, FrameKind::End) => {}
            }
            offset += (frame::HEADER + frame.body.len()) as u64;
        }
        // A file with its head is renamed into place: a file without a head is not a log file.
        if frames.is_empty() {
            return Self::damaged(name, 0, "the file has no head");
        }
        assert_eq!(offset, whole, "INV-26: {offset} of {whole} bytes in valid frames are applied");
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
            _ => Self::damaged(name, 0, "the head belongs to another file"),
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
            return Self::damaged(name, data.len() as u64, "the end of the file is missing");
        }
        Ok(())
    }
}

impl Store {
    /// Recovers the state of the folder, or begins with an empty state in an empty folder. It takes the next
    /// term, which is on disk when this returns.
    pub fn open(
        mut disk: Box<dyn Disk>,
        options: OpenOptions,
    ) -> Result<RecoveredState, StoreError> {
        let names = disk.list().map_err(io_error("the data directory cannot be read"))?;
        for name in names.iter().filter(|name| name.ends_with(".new")) {
            disk.remove(name).map_err(io_error(format!("{name} cannot be removed")))?;
        }
        let (logs, snapshots) = (numbers(&names, "log-"), numbers(&names, "snapshot-"));
        let fresh = logs.is_empty() && snapshots.is_empty();
        let root = root_key(&mut *disk, fresh, options.root_key)?;
        let mut reading = LogRecovery {
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
                // A killed controller may have left groups that were never synced. They count from now on,
                // and later files follow them, so that a machine crash must not remove them.
                disk.sync(&name).map_err(io_error(format!("{name} cannot be synced")))?;
            }
            logged += whole;
        }
        let term = reading.term + 1;
        let last = logs.last().copied().unwrap_or_default();
        assert!(last >= first || logs.is_empty(), "INV-26: log {last} is before snapshot {first}");
        let LogRecovery { recovery, answers, time, number, .. } = reading;
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
        Ok(RecoveredState { store, catalog, answers, root, now: time })
    }

    /// The term of this controller, greater than that of all earlier controllers.
    pub fn term(&self) -> u32 {
        self.term
    }

    /// The reason why nothing can be written, if any.
    pub fn trouble(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// Writes the changes of the catalog since the last call, and `more` records of the controller, as one
    /// group. When it returns, they survive a crash of the process. With `wait`, they survive a crash of the
    /// machine once `safe` reaches `waited`. After an error, they may or may not survive.
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
        let (waited, number) = (self.waited.max(self.safe), self.number);
        assert!(waited < number, "INV-26: group {waited} is waited for, and {number} comes next");
        let due = self.loose_since.is_some_and(|since| now.since(since) >= SYNC_WITHIN);
        let joins = std::mem::take(&mut self.joins);
        let wanted = (self.waited > self.safe || due) && !joins;
        let done = written.and_then(|()| if wanted { self.sync() } else { Ok(()) });
        done.inspect_err(|e| self.stopped = Some(e.to_string()))
    }

    /// The last written group that messages wait for. Groups are numbered consecutively.
    pub fn waited(&self) -> u64 {
        self.waited
    }

    /// The last group that is on disk, with all earlier groups.
    pub fn safe(&self) -> u64 {
        self.safe
    }

    /// The time at which a write or a sync is due without further changes.
    pub fn deadline(&self) -> Time {
        // The end of a running sync is notified.
        let idle = self.syncing.as_ref().is_none_or(|syncing| !syncing.is_under_way());
        let loose = match self.loose_since {
            Some(_) if idle && self.waited > self.safe => Time::ZERO,
            Some(since) if idle => since + SYNC_WITHIN,
            _ => Time::NEVER,
        };
        loose.min(self.last_write + CLOCK_EVERY)
    }

    /// Whether the log is so long that `renew` pays off.
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
        assert!(synced <= self.length, "INV-26: {synced} of {} bytes are synced", self.length);
        self.number += 1;
        self.length += length;
        self.logged += length;
        self.last_write = now;
        if !records.is_empty() {
            self.loose_since.get_or_insert(now);
        }
        Ok(())
    }

    /// Syncs the whole file, at once or on the separate thread.
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

    /// Runs syncs on a separate thread from now on. The end of each is passed to `done`, for `synced`.
    pub(crate) fn sync_beside(&mut self, done: impl Fn(Synced) + Send + 'static) -> io::Result<()> {
        self.syncing = Some(Syncing::start(log_name, done)?);
        Ok(())
    }

    /// Handles the end of a sync on the separate thread; after an error, `trouble` says why. The next sync
    /// begins with the commit after the next one, so that requests of clients who get their replies now join
    /// it.
    pub(crate) fn synced(&mut self, synced: Synced) {
        let Some(syncing) = &mut self.syncing else { return };
        let covered = syncing.end();
        if self.stopped.is_some() {
            return;
        }
        self.joins = true;
        let Synced { file, outcome } = synced;
        let present = self.file;
        assert!(file <= present, "INV-26: a sync of log {file:x} ends, and {present:x} is present");
        match outcome {
            // The file was replaced meanwhile and is no longer needed.
            _ if file != self.file => {}
            Ok(()) => {
                let before = (self.synced, self.safe);
                let grows = before.0 <= covered.0 && before.1 <= covered.1;
                assert!(grows, "INV-26: a sync covers {covered:?}, and {before:?} was on disk");
                assert!(covered.0 <= self.length, "INV-26: {covered:?} of {} bytes", self.length);
                (self.synced, self.safe) = covered;
            }
            Err(error) => {
                let what = format!("{} cannot be synced", log_name(file));
                self.stopped = Some(StoreError::Io { what, error }.to_string());
            }
        }
    }

    /// Begins new files with the present state. When it returns, the whole state is on disk, including
    /// changes that an earlier `commit` could not write, and commits are accepted again.
    pub fn renew(
        &mut self,
        now: Time,
        catalog: &mut Catalog,
        answers: &Answers,
    ) -> Result<(), StoreError> {
        let file = self.file + 1;
        self.write_snapshot(now, file, catalog, answers)?;
        // From here on, recovery begins with the new snapshot; the old log is obsolete.
        let (before, number) = (self.file, self.number);
        self.file = file;
        if let Err(e) = self.begin_log(now) {
            (self.file, self.number) = (before, number);
            self.stopped = Some(e.to_string());
            return Err(e);
        }
        // Changes in the snapshot are not written again.
        self.records.clear();
        catalog.take_changes(&mut self.records);
        self.logged = self.length;
        self.stopped = None;
        let names = self.disk.list().unwrap_or_default();
        let old = numbers(&names, "log-").into_iter().filter(|&n| n < file).map(log_name);
        let older = numbers(&names, "snapshot-").into_iter().filter(|&n| n < file);
        // They are no longer read: a file that cannot be removed only occupies disk space.
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

    /// Begins the log file of the present number. It is written under another name and renamed, so that it
    /// always has its head.
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
        let safe = self.safe;
        assert!(safe <= number, "INV-26: a log begins with group {number}, and {safe} is on disk");
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
    let same = |read: [u8; 32]| read == *key;
    debug_assert!(parse_key(&bytes).is_ok_and(same), "a key file is read as it was written");
    bytes
}

/// The key in `cluster.key`; the error says why the file is invalid.
fn parse_key(bytes: &[u8]) -> Result<[u8; 32], String> {
    let length = KEY_TAG.len() + 32 + 8;
    if bytes.len() != length {
        return Err(format!("the key file has {} bytes instead of {length}", bytes.len()));
    }
    let (body, sum) = bytes.split_at(length - 8);
    if !body.starts_with(KEY_TAG) {
        return Err("the tag of a key file is missing".into());
    }
    if xxh64(body, 0).to_le_bytes() != sum {
        return Err("the checksum is wrong".into());
    }
    Ok(body[KEY_TAG.len()..].try_into().expect("32 bytes between tag and checksum"))
}

/// The cluster's key: the existing one, or a new one in a folder without a log.
fn root_key(
    disk: &mut dyn Disk,
    fresh: bool,
    given: Option<[u8; 32]>,
) -> Result<RootKey, StoreError> {
    match disk.read(KEY) {
        Ok(bytes) => parse_key(&bytes).map(RootKey).map_err(|why| StoreError::Damaged {
            file: KEY.into(),
            offset: 0,
            why: format!("{why}. With another key, every token of the cluster would be refused"),
        }),
        Err(e) if e.kind() == io::ErrorKind::NotFound && fresh => {
            let key = given.unwrap_or_else(Entropy::secret);
            let draft = format!("{KEY}.new");
            let done = disk
                .remove(&draft) // A killed start may have left one.
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
