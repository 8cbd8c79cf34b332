//! The clients of a run. Each fills, changes, empties and reads its own structure, and compares
//! every byte.

use crate::tier::content::Name;
use honeycomb_client::{Error, File, Kv, Queue};
use honeycomb_env::Entropy;
use honeycomb_types::limits::LARGE_FRACTION;
use honeycomb_wire::Status;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long an operation of a queue may wait.
const PATIENCE: Duration = Duration::from_secs(30);

/// The cost of the smallest write: a run of tiny values must end too.
const LEAST: u64 = 256;

/// How a client ended early.
#[derive(Debug)]
pub enum Ended {
    /// A request failed with `DataLost`.
    Lost(String),
    /// A read returned bytes that were never written, or a valid request was refused.
    Violation(String),
}

/// The counters of one client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub operations: u64,
    pub written: u64,
    pub read: u64,
    /// Refusals that are explained by faults of disks.
    pub refused: u64,
}

/// One client.
pub struct Worker {
    pub seed: u64,
    pub number: u64,
    pub block: usize,
    /// Bytes that it writes; a write smaller than `LEAST` counts as `LEAST`.
    pub bytes: u64,
    pub spent: u64,
    /// Its disks fail: refusals are counted.
    pub faults: bool,
    pub rng: Entropy,
    pub counts: Counts,
}

impl Worker {
    fn name(&self, number: u64, version: u64) -> Name {
        Name { seed: self.seed, writer: self.number, number, version }
    }

    fn limit(&self) -> usize {
        self.block / LARGE_FRACTION as usize
    }

    /// The verdict on an error; `Ok` if faults of disks explain it.
    fn judge(&mut self, what: &str, e: &Error) -> Result<(), Ended> {
        match e.status {
            Status::DataLost => Err(Ended::Lost(format!("{what}: {e}"))),
            Status::OutOfMemory | Status::DeadlineExceeded | Status::Busy if self.faults => {
                self.counts.refused += 1;
                Ok(())
            }
            _ => Err(Ended::Violation(format!("{what}: {e}"))),
        }
    }

    fn done(&mut self, written: usize, read: usize) {
        self.counts.operations += 1;
        self.counts.written += written as u64;
        self.spent += if written > 0 { (written as u64).max(LEAST) } else { LEAST / 8 };
        self.counts.read += read as u64;
    }
}

/// The version and length of each key's value. `None`: a request failed, and the key may have
/// either value.
type Entries = BTreeMap<u64, Option<(u64, usize)>>;

/// A client of a key-value store. No other client uses its keys.
pub struct StoreWorker {
    pub worker: Worker,
    pub store: Kv,
    entries: Entries,
    next: u64,
    version: u64,
    /// The changes of each key, and their outcomes, for the report of a violation.
    told: BTreeMap<u64, Vec<String>>,
    /// In some runs, the size of all values.
    alike: Option<usize>,
}

impl StoreWorker {
    pub fn new(mut worker: Worker, store: Kv) -> StoreWorker {
        let limit = worker.limit();
        let name = worker.name(0, 0);
        let alike =
            (worker.rng.below(3) == 0).then(|| name.length(worker.block, limit / 16, limit));
        StoreWorker {
            worker,
            store,
            entries: Entries::new(),
            next: 0,
            version: 0,
            told: BTreeMap::new(),
            alike,
        }
    }

    fn key(&self, number: u64) -> Vec<u8> {
        format!("{}/{number}", self.worker.number).into_bytes()
    }

    fn value(&mut self, number: u64) -> (u64, Vec<u8>) {
        self.version += 1;
        let name = self.worker.name(number, self.version);
        let (block, limit) = (self.worker.block, self.worker.limit());
        // Some values are too large for a block.
        let length = match self.alike {
            Some(alike) => alike,
            None if self.worker.rng.below(200) == 0 => name.length(block, limit + 1, 3 * limit),
            None => name.length(block, 0, limit),
        };
        (self.version, name.bytes(length))
    }

    /// An existing key, or a new one.
    fn any(&mut self) -> u64 {
        if self.next > 0 && self.worker.rng.below(4) == 0 {
            return self.worker.rng.below(self.next);
        }
        self.next += 1;
        self.next - 1
    }

    fn known(&mut self) -> u64 {
        self.worker.rng.below(self.next.max(1))
    }

    /// Grows the store, changing and reading it meanwhile.
    pub fn grow(&mut self) -> Result<(), Ended> {
        while self.worker.spent < self.worker.bytes {
            match self.worker.rng.below(20) {
                0..9 => self.put()?,
                9..12 => self.put_many()?,
                12..16 => {
                    let number = self.known();
                    self.get(number)?;
                }
                16 => self.get_many()?,
                17..19 => self.delete()?,
                _ => self.exists()?,
            }
        }
        Ok(())
    }

    /// Deletes most of it, so that blocks merge.
    pub fn shrink(&mut self) -> Result<(), Ended> {
        for first in (0..self.next).step_by(64) {
            let numbers: Vec<u64> =
                (first..self.next.min(first + 64)).filter(|n| n % 8 != 0).collect();
            let keys: Vec<Vec<u8>> = numbers.iter().map(|n| self.key(*n)).collect();
            let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            let done = self.store.multi_delete(&keys);
            for (number, done) in numbers.into_iter().zip(done) {
                self.deleted(number, done)?;
            }
        }
        Ok(())
    }

    fn put(&mut self) -> Result<(), Ended> {
        let number = self.any();
        let (version, value) = self.value(number);
        let done = self.store.put(&self.key(number), &value);
        self.stored(number, version, value.len(), done)
    }

    fn put_many(&mut self) -> Result<(), Ended> {
        let count = 1 + self.worker.rng.below(64);
        let mut batch = BTreeMap::new();
        for _ in 0..count {
            let number = self.any();
            let (version, value) = self.value(number);
            batch.insert(number, (version, self.key(number), value));
        }
        let entries: Vec<(&[u8], &[u8])> =
            batch.values().map(|(_, key, value)| (&key[..], &value[..])).collect();
        let done = self.store.multi_put(&entries);
        for ((number, (version, _, value)), done) in batch.iter().zip(done) {
            self.stored(*number, *version, value.len(), done)?;
        }
        Ok(())
    }

    fn stored(
        &mut self,
        number: u64,
        version: u64,
        length: usize,
        done: Result<bool, Error>,
    ) -> Result<(), Ended> {
        self.worker.done(length, 0);
        self.tell(number, &format!("put of version {version}, {length} bytes"), &done);
        let before = self.entries.get(&number).copied();
        match done {
            Ok(replaced) => {
                self.entries.insert(number, Some((version, length)));
                if before != Some(None) && replaced != before.is_some() {
                    let what = format!("put of key {number} replaced {replaced}, not {before:?}");
                    return Err(self.about(number, what));
                }
            }
            Err(e) => {
                self.worker.judge(&format!("put of key {number}, {length} bytes"), &e)?;
                self.entries.insert(number, None);
            }
        }
        Ok(())
    }

    fn delete(&mut self) -> Result<(), Ended> {
        let number = self.known();
        let done = self.store.delete(&self.key(number));
        self.deleted(number, done)
    }

    fn deleted(&mut self, number: u64, done: Result<bool, Error>) -> Result<(), Ended> {
        self.worker.done(0, 0);
        self.tell(number, "delete", &done);
        match done {
            Ok(there) => {
                let before = self.entries.remove(&number);
                if before != Some(None) && there != before.is_some() {
                    let what = format!("delete of key {number} found {there}, not {before:?}");
                    return Err(self.about(number, what));
                }
            }
            Err(e) => {
                self.worker.judge(&format!("delete of key {number}"), &e)?;
                self.entries.insert(number, None);
            }
        }
        Ok(())
    }

    fn exists(&mut self) -> Result<(), Ended> {
        let number = self.known();
        let due = self.entries.get(&number).copied();
        let told = self.store.exists(&self.key(number));
        self.worker.done(0, 0);
        match (told, due) {
            (Err(e), _) => self.worker.judge(&format!("exists of key {number}"), &e),
            (Ok(_), Some(None)) => Ok(()),
            (Ok(told), due) => {
                let due = due.flatten().map(|(_, length)| length as u64);
                let what = format!("key {number} has {told:?} bytes, not {due:?}");
                if told == due { Ok(()) } else { Err(self.about(number, what)) }
            }
        }
    }

    fn get(&mut self, number: u64) -> Result<(), Ended> {
        let mut value = Vec::new();
        let got = self.store.get(&self.key(number), &mut value);
        self.got(number, got.map(|found| found.then_some(value)))
    }

    fn get_many(&mut self) -> Result<(), Ended> {
        let count = 1 + self.worker.rng.below(1000);
        let numbers: Vec<u64> = (0..count).map(|_| self.known()).collect();
        self.get_these(&numbers)
    }

    fn get_these(&mut self, numbers: &[u64]) -> Result<(), Ended> {
        let keys: Vec<Vec<u8>> = numbers.iter().map(|n| self.key(*n)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let values = self.store.multi_get(&keys);
        for (number, got) in numbers.iter().zip(values) {
            self.got(*number, got)?;
        }
        Ok(())
    }

    fn got(&mut self, number: u64, got: Result<Option<Vec<u8>>, Error>) -> Result<(), Ended> {
        let value = match got {
            Ok(value) => value,
            Err(e) => return self.worker.judge(&format!("get of key {number}"), &e),
        };
        self.worker.done(0, value.as_ref().map_or(0, Vec::len));
        self.is_due(number, value.as_deref())
    }

    /// Notes a change of a key.
    fn tell(&mut self, number: u64, what: &str, done: &Result<bool, Error>) {
        let outcome = match done {
            Ok(found) => format!("{found}"),
            Err(e) => format!("{:?}", e.status),
        };
        let at = self.worker.counts.operations;
        self.told.entry(number).or_default().push(format!("at {at} {what}: {outcome}"));
    }

    /// The violation, what a second read of the key says, and the changes of the key: they distinguish a
    /// wrong answer from a loss.
    fn about(&self, number: u64, wrong: String) -> Ended {
        let mut value = Vec::new();
        let got = self.store.get(&self.key(number), &mut value);
        let (bytes, at) = (value.len(), self.worker.counts.operations);
        let changes = self.told.get(&number).map_or(String::new(), |told| told.join(", "));
        let again = format!("a read afterwards: {got:?}, {bytes} bytes");
        Ended::Violation(format!("{wrong} (at {at}; {again}; changes: {changes})"))
    }

    fn is_due(&self, number: u64, value: Option<&[u8]>) -> Result<(), Ended> {
        let wrong = match (self.entries.get(&number), value) {
            (Some(None), _) | (None, None) => return Ok(()),
            (None, Some(value)) => {
                format!("key {number} was deleted, and has {} bytes", value.len())
            }
            (Some(Some(_)), None) => format!("key {number} is not there"),
            (Some(Some((version, length))), Some(value)) => {
                let name = self.worker.name(number, *version);
                match name.check(&format!("key {number}"), *length, value) {
                    Ok(()) => return Ok(()),
                    Err(wrong) => wrong,
                }
            }
        };
        Err(self.about(number, wrong))
    }

    /// Reads everything, by key and by scan.
    pub fn check(&mut self) -> Result<(), Ended> {
        let numbers: Vec<u64> = self.entries.keys().copied().collect();
        for some in numbers.chunks(1000) {
            self.get_these(some)?;
        }
        let prefix = format!("{}/", self.worker.number);
        let (mut cursor, mut found) = (Some(0), 0);
        while let Some(from) = cursor {
            let page = match self.store.scan(from, prefix.as_bytes(), false, 256 << 10) {
                Ok(page) => page,
                Err(e) => return self.worker.judge("scan", &e),
            };
            for (key, value) in page.entries {
                let text = String::from_utf8_lossy(&key);
                let number = text.rsplit('/').next().and_then(|n| n.parse().ok());
                let number = number.ok_or_else(|| Ended::Violation(format!("key {text}")))?;
                self.is_due(number, Some(&value))?;
                found += usize::from(self.entries.get(&number).is_some_and(Option::is_some));
            }
            cursor = page.next;
        }
        let due = self.entries.values().flatten().count();
        match found == due {
            true => Ok(()),
            false => Err(Ended::Violation(format!("a scan found {found} of {due} keys"))),
        }
    }
}

/// A client that appends to a file and reads it.
pub struct FileWorker {
    pub worker: Worker,
    pub file: File,
    /// Where each record begins, and where the last one ends.
    ends: Vec<u64>,
}

impl FileWorker {
    pub fn new(worker: Worker, file: File) -> FileWorker {
        FileWorker { worker, file, ends: vec![0] }
    }

    fn record(&self, number: u64) -> Vec<u8> {
        let name = self.worker.name(number, 0);
        name.bytes(name.length(self.worker.block, 1, self.worker.limit()))
    }

    pub fn grow(&mut self) -> Result<(), Ended> {
        while self.worker.spent < self.worker.bytes {
            if self.ends.len() > 1 && self.worker.rng.below(6) == 0 {
                let number = self.worker.rng.below(self.ends.len() as u64 - 1);
                self.read(number)?;
                continue;
            }
            let record = self.record(self.ends.len() as u64 - 1);
            let end = *self.ends.last().expect("the list begins with one end");
            self.worker.done(record.len(), 0);
            match self.file.append(&record) {
                Ok(at) if at == end => self.ends.push(at + record.len() as u64),
                Ok(at) => return Err(Ended::Violation(format!("appended at {at}, not at {end}"))),
                Err(e) => {
                    self.worker.judge("append", &e)?;
                    if e.status != Status::OutOfMemory {
                        return Ok(()); // Perhaps appended: later positions are unknown.
                    }
                }
            }
        }
        Ok(())
    }

    fn read(&mut self, number: u64) -> Result<(), Ended> {
        let due = self.record(number);
        let mut got = vec![0; due.len()];
        let at = self.ends[number as usize];
        match self.file.read_into(at, &mut got) {
            Ok(read) => {
                self.worker.done(0, read);
                let name = self.worker.name(number, 0);
                let what = format!("record {number} at {at}");
                name.check(&what, due.len(), &got[..read]).map_err(Ended::Violation)
            }
            Err(e) => self.worker.judge(&format!("read of record {number}"), &e),
        }
    }

    pub fn check(&mut self) -> Result<(), Ended> {
        (0..self.ends.len() as u64 - 1).try_for_each(|number| self.read(number))
    }
}

/// A client that puts items into a queue and takes them, some later than others.
pub struct QueueWorker {
    pub worker: Worker,
    pub queue: Queue,
    put: u64,
    taken: u64,
}

impl QueueWorker {
    pub fn new(worker: Worker, queue: Queue) -> QueueWorker {
        QueueWorker { worker, queue, put: 0, taken: 0 }
    }

    fn item(&self, number: u64) -> Vec<u8> {
        let name = self.worker.name(number, 0);
        let most = self.queue.item_limit().min(self.worker.limit());
        name.bytes(name.length(self.worker.block, 0, most))
    }

    pub fn grow(&mut self) -> Result<(), Ended> {
        while self.worker.spent < self.worker.bytes {
            match self.worker.rng.below(10) {
                // The queue stays long, so most blocks are demoted before their items are taken.
                0 if self.put - self.taken > 200 => self.take(20)?,
                1 if self.put > self.taken => self.reserve()?,
                _ => {
                    let item = self.item(self.put);
                    self.worker.done(item.len(), 0);
                    match self.queue.put(&item, PATIENCE) {
                        Ok(()) => self.put += 1,
                        Err(e) => {
                            self.worker.judge("put of an item", &e)?;
                            if e.status != Status::OutOfMemory {
                                return Ok(());
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn is_next(&mut self, item: &[u8]) -> Result<(), Ended> {
        let name = self.worker.name(self.taken, 0);
        let length = self.item(self.taken).len();
        self.worker.done(0, item.len());
        let what = format!("item {} of {}", self.taken, self.put);
        name.check(&what, length, item).map_err(Ended::Violation)
    }

    fn take(&mut self, most: usize) -> Result<(), Ended> {
        match self.queue.get_many(most, Duration::ZERO) {
            Ok(items) => {
                for item in items {
                    self.is_next(&item)?;
                    self.taken += 1;
                }
                Ok(())
            }
            Err(e) => self.worker.judge("get of items", &e),
        }
    }

    fn reserve(&mut self) -> Result<(), Ended> {
        let reserved = match self.queue.reserve(1, PATIENCE, PATIENCE) {
            Ok(reserved) => reserved,
            Err(e) => return self.worker.judge("reservation", &e),
        };
        let [delivery] = &reserved[..] else {
            return Err(Ended::Violation(format!("{} items were reserved", reserved.len())));
        };
        self.is_next(&delivery.item)?;
        let keeps = self.worker.rng.below(2) == 0;
        let ended = match keeps {
            true => self.queue.acknowledge(&[delivery]),
            false => self.queue.give_back(&[delivery]),
        };
        match ended {
            Ok(done) if done == [true] => self.taken += u64::from(keeps),
            Ok(done) => return Err(Ended::Violation(format!("a reservation ended as {done:?}"))),
            Err(e) => self.worker.judge("end of a reservation", &e)?,
        }
        Ok(())
    }

    /// Takes the remaining items.
    pub fn check(&mut self) -> Result<(), Ended> {
        while self.taken < self.put {
            let before = self.taken;
            self.take(50)?;
            if self.taken == before && !self.worker.faults {
                let what = format!("{} of {} items are gone", self.put - self.taken, self.put);
                return Err(Ended::Violation(what));
            }
            if self.taken == before {
                return Ok(());
            }
        }
        Ok(())
    }
}
