//! A sort of more data than fits in memory: records are distributed over partitions by their keys, and each
//! partition is read back, sorted and written again.
//!
//! Every record is self-checking, and tallies show whether all records exist. Acknowledged records are
//! counted when they are written, and checked at the end of the sort, even after an error.

use honeycomb_client::{Client, Error, File, JobTicket};
use honeycomb_env::Clock;
use honeycomb_types::Time;
use honeycomb_wire::Status;
use honeycomb_wire::messages::PrefixOptions;
use std::ops::{AddAssign, Range};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use thiserror::Error as Derived;

/// Bytes of a record: its key, its number, and bytes derived from both.
pub const RECORD: usize = 128;
/// Words of a record.
const WORDS: usize = RECORD / 8;
/// Bytes of one read or write of a whole file.
const PIECE: usize = 4 << 20;

/// The parameters of a sort.
#[derive(Clone, Copy, Debug)]
pub struct Sort {
    /// Number of records.
    pub records: u64,
    /// Number of partitions; each fits in the memory of a thread.
    pub partitions: u32,
    /// Number of threads that write, sort and check.
    pub threads: u32,
    /// Seed of the keys.
    pub seed: u64,
}

/// The times of a successful sort.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sorted {
    /// Seconds of distributing records over partitions.
    pub spread_s: f64,
    /// Seconds of sorting partitions.
    pub sort_s: f64,
    /// Seconds of reading and checking the result.
    pub check_s: f64,
}

/// The error of a sort.
#[derive(Debug, Derived)]
pub enum SortError {
    /// The cluster refused a request; all acknowledged records exist.
    #[error("{error}; all {records} acknowledged records exist")]
    Stopped {
        /// The refusal.
        error: Error,
        /// Number of checked records.
        records: u64,
    },
    /// Acknowledged data is missing or different.
    #[error("{what}{}", after.as_ref().map(|e| format!(", after {e}")).unwrap_or_default())]
    Lost {
        /// Description of the lost data.
        what: String,
        /// Earlier refusal of the cluster.
        after: Option<Error>,
    },
    /// Data could not be read, so that it is unknown whether it is right.
    #[error("cannot read {what}: {error}")]
    Unread {
        /// Description of the data.
        what: String,
        /// The error of the read.
        error: Error,
    },
}

/// The number of records, and a sum that detects different records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    records: u64,
    sum: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.records += other.records;
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

/// The state of a partition.
#[derive(Clone, Copy, Debug, Default)]
struct Partition {
    /// Records acknowledged in the unsorted file, and additional records of writes with an unknown outcome.
    spread: Tally,
    unknown: Tally,
    /// Whether the sorted file is complete and the unsorted one removed.
    sorted: bool,
}

/// A bijective mixing function: evenly distributed numbers from distinct numbers.
fn mixed(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

fn key(seed: u64, number: u64) -> u64 {
    mixed(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mixed(seed))
}

/// Appends a record.
fn put(into: &mut Vec<u8>, key: u64, number: u64) {
    into.extend_from_slice(&key.to_be_bytes());
    into.extend_from_slice(&number.to_le_bytes());
    for word in 2..WORDS as u64 {
        into.extend_from_slice(&(key ^ number).wrapping_mul(2 * word + 1).to_le_bytes());
    }
}

fn word(record: &[u8], at: usize) -> [u8; 8] {
    record[at * 8..][..8].try_into().expect("eight bytes")
}

fn key_of(record: &[u8]) -> u64 {
    u64::from_be_bytes(word(record, 0))
}

/// Counts records and checks each of them.
fn tally(seed: u64, bytes: &[u8]) -> Result<Tally, String> {
    if !bytes.len().is_multiple_of(RECORD) {
        return Err(format!("{} bytes are not a whole number of records", bytes.len()));
    }
    let mut tally = Tally::default();
    for (at, record) in bytes.chunks_exact(RECORD).enumerate() {
        let (key, number) = (key_of(record), u64::from_le_bytes(word(record, 1)));
        let right = |n: usize| {
            let made = (key ^ number).wrapping_mul(2 * n as u64 + 1);
            u64::from_le_bytes(word(record, n)) == made
        };
        if key != self::key(seed, number) || !(2..WORDS).all(right) {
            return Err(format!("record {at} is not a record that was written"));
        }
        tally += Tally { records: 1, sum: mixed(number) };
    }
    Ok(tally)
}

struct Run<'a> {
    client: &'a Client,
    job: &'a JobTicket,
    sort: Sort,
    partitions: Vec<Mutex<Partition>>,
    /// The first refusal: no thread begins new work after it.
    stopped: Mutex<Option<Error>>,
    bar: &'a AtomicU64,
}

/// The unsorted file of a partition, and the sorted one. Each has its own prefix, so that it can be freed
/// separately.
fn unsorted(partition: usize) -> String {
    format!("/in-{partition}")
}

fn sorted(partition: usize) -> String {
    format!("/out-{partition}")
}

/// Sorts in an otherwise empty job, and checks the result. `bar` counts the bytes that have completed each of
/// the three steps.
pub fn sort(
    client: &Client,
    job: &JobTicket,
    sort: Sort,
    bar: &AtomicU64,
) -> Result<Sorted, SortError> {
    assert!(sort.partitions > 0 && sort.threads > 0, "there must be a thread and a partition");
    let partitions = (0..sort.partitions).map(|_| Mutex::default()).collect();
    let run = Run { client, job, sort, partitions, stopped: Mutex::default(), bar };
    let clock = Clock::start();
    let seconds = |since: Time| clock.now().since(since).as_secs_f64();
    let since = clock.now();
    run.spread();
    let spread_s = seconds(since);
    let since = clock.now();
    run.each_partition(|n| run.sort_one(n))?;
    let sort_s = seconds(since);
    let since = clock.now();
    let found = run.check()?;
    let check_s = seconds(since);
    match run.stopped.into_inner().expect("no thread panicked") {
        Some(error) => Err(SortError::Stopped { error, records: found }),
        None => Ok(Sorted { spread_s, sort_s, check_s }),
    }
}

impl Run<'_> {
    fn partition(&self, n: usize) -> MutexGuard<'_, Partition> {
        self.partitions[n].lock().expect("no thread panicked")
    }

    fn stop(&self, error: Error) {
        self.stopped.lock().expect("no thread panicked").get_or_insert(error);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.lock().expect("no thread panicked").is_some()
    }

    fn create(&self, path: &str) -> Result<File, Error> {
        // It is removed explicitly, not by the end of a lease.
        let options = PrefixOptions { pinned: true, ..Default::default() };
        self.client.create_prefix(self.job.job, path, &[], options)?;
        self.client.create_file(self.job.job, path, 1, false)
    }

    /// Generates records and writes them to the partitions of their keys.
    fn spread(&self) {
        let made: Result<Vec<File>, Error> =
            (0..self.partitions.len()).map(|n| self.create(&unsorted(n))).collect();
        let files = match made {
            Ok(files) => files,
            Err(error) => return self.stop(error),
        };
        let (all, threads) = (self.sort.records, u64::from(self.sort.threads));
        thread::scope(|scope| {
            for thread in 0..threads {
                let mine = all * thread / threads..all * (thread + 1) / threads;
                let files = &files;
                scope.spawn(move || {
                    if let Err(error) = self.spread_some(files, mine) {
                        self.stop(error);
                    }
                });
            }
        });
    }

    fn spread_some(&self, files: &[File], numbers: Range<u64>) -> Result<(), Error> {
        let limit = files.first().map_or(0, File::append_limit) / RECORD * RECORD;
        let mut buffers: Vec<(Vec<u8>, Tally)> = files.iter().map(|_| Default::default()).collect();
        let write = |n: usize, buffer: &mut (Vec<u8>, Tally)| -> Result<(), Error> {
            let (bytes, tally) = std::mem::take(buffer);
            let done = files[n].append(&bytes);
            let mut partition = self.partition(n);
            match &done {
                Ok(_) => partition.spread += tally,
                Err(e) if e.status == Status::OutOfMemory => {}
                Err(_) => partition.unknown += tally,
            }
            self.bar.fetch_add(bytes.len() as u64, Relaxed);
            done.map(drop)
        };
        for number in numbers {
            let key = key(self.sort.seed, number);
            let n = ((u128::from(key) * files.len() as u128) >> 64) as usize;
            put(&mut buffers[n].0, key, number);
            buffers[n].1 += Tally { records: 1, sum: mixed(number) };
            if buffers[n].0.len() == limit {
                write(n, &mut buffers[n])?;
                if self.is_stopped() {
                    return Ok(());
                }
            }
        }
        let mut rest = buffers.iter_mut().enumerate().filter(|(_, (bytes, _))| !bytes.is_empty());
        rest.try_for_each(|(n, buffer)| write(n, buffer))
    }

    /// Runs a function for each partition, as many at a time as there are threads.
    fn each_partition(
        &self,
        work: impl Fn(usize) -> Result<(), SortError> + Sync,
    ) -> Result<(), SortError> {
        let next = AtomicU32::new(0);
        let one_after_the_other = || -> Result<(), SortError> {
            loop {
                let n = next.fetch_add(1, Relaxed);
                if n >= self.sort.partitions {
                    return Ok(());
                }
                work(n as usize)?;
            }
        };
        thread::scope(|scope| {
            let threads: Vec<_> =
                (0..self.sort.threads).map(|_| scope.spawn(one_after_the_other)).collect();
            threads.into_iter().try_for_each(|t| t.join().expect("no thread panics"))
        })
    }

    fn read(&self, path: &str) -> Result<Vec<u8>, Error> {
        let file = self.client.open_file(self.job.job, path)?;
        let mut bytes = vec![0; file.size()? as usize];
        for (n, piece) in bytes.chunks_mut(PIECE).enumerate() {
            let wanted = piece.len();
            let got = file.read_into((n * PIECE) as u64, piece)?;
            if got != wanted {
                let text = format!("a read of {path} answered {got} of {wanted} bytes");
                return Err(Error::new(Status::Internal, text));
            }
        }
        Ok(bytes)
    }

    fn lost(&self, what: String) -> SortError {
        let after = self.stopped.lock().expect("no thread panicked").clone();
        SortError::Lost { what, after }
    }

    /// The unsorted records of a partition, after a check that all of them exist.
    fn spread_of(&self, n: usize) -> Result<Vec<u8>, SortError> {
        let path = unsorted(n);
        let unread = |error| SortError::Unread { what: path.clone(), error };
        let bytes = self.read(&path).map_err(unread)?;
        let found = tally(self.sort.seed, &bytes).map_err(|e| self.lost(format!("{path}: {e}")))?;
        let Partition { spread, unknown, .. } = *self.partition(n);
        let least = spread.records;
        let may = least..=least + unknown.records;
        if found == spread || unknown.records > 0 && may.contains(&found.records) {
            return Ok(bytes);
        }
        let there = found.records;
        Err(self.lost(format!("{path} has {there} records, but {least} were acknowledged")))
    }

    /// Replaces the file of a partition with a sorted one.
    fn sort_one(&self, n: usize) -> Result<(), SortError> {
        if self.is_stopped() {
            return Ok(());
        }
        let bytes = self.spread_of(n)?;
        let mut order: Vec<(u64, u32)> =
            bytes.chunks_exact(RECORD).map(key_of).zip(0u32..).collect();
        order.sort_unstable();
        let mut piece = Vec::with_capacity(PIECE);
        let written = self.create(&sorted(n)).and_then(|file| {
            for some in order.chunks(PIECE / RECORD) {
                piece.clear();
                for (_, at) in some {
                    piece.extend_from_slice(&bytes[*at as usize * RECORD..][..RECORD]);
                }
                file.write_all(&piece)?;
                self.bar.fetch_add(piece.len() as u64, Relaxed);
            }
            file.seal()
        });
        match written {
            Ok(_) => self.partition(n).sorted = true,
            Err(error) => {
                self.stop(error);
                return Ok(());
            }
        }
        // From here on, only the sorted file has the records of the partition.
        if let Err(error) = self.client.remove_prefix(self.job.job, &unsorted(n)) {
            self.stop(error);
        }
        Ok(())
    }

    /// Checks all acknowledged records; answers their number.
    fn check(&self) -> Result<u64, SortError> {
        let all = Mutex::new(Tally::default());
        // Smallest and largest key of each sorted partition.
        let ends = Mutex::new(vec![None; self.partitions.len()]);
        self.each_partition(|n| {
            let bytes = if self.partition(n).sorted {
                let path = sorted(n);
                let unread = |error| SortError::Unread { what: path.clone(), error };
                let bytes = self.read(&path).map_err(unread)?;
                if !bytes.chunks_exact(RECORD).is_sorted_by_key(key_of) {
                    return Err(self.lost(format!("{path} is not sorted")));
                }
                let keys =
                    bytes.chunks_exact(RECORD).next().zip(bytes.rchunks_exact(RECORD).next());
                let keys = keys.map(|(first, last)| (key_of(first), key_of(last)));
                ends.lock().expect("no thread panicked")[n] = keys;
                bytes
            } else if self.partition(n).spread == Tally::default() {
                return Ok(());
            } else {
                self.spread_of(n)?
            };
            let wrong = |e| self.lost(format!("partition {n}: {e}"));
            let found = tally(self.sort.seed, &bytes).map_err(wrong)?;
            let Partition { spread, unknown, .. } = *self.partition(n);
            if found != spread && unknown.records == 0 {
                let (there, wanted) = (found.records, spread.records);
                let what = format!("partition {n} has {there} records, but {wanted} were written");
                return Err(self.lost(what));
            }
            *all.lock().expect("no thread panicked") += found;
            self.bar.fetch_add(bytes.len() as u64, Relaxed);
            Ok(())
        })?;
        let ends = ends.into_inner().expect("no thread panicked");
        let between: Vec<(u64, u64)> = ends.into_iter().flatten().collect();
        if !between.is_sorted_by(|one, next| one.1 <= next.0) {
            return Err(self.lost("partitions overlap".into()));
        }
        let found = all.into_inner().expect("no thread panicked");
        let (wanted, records) = (self.sort.records, found.records);
        if !self.is_stopped() && records != wanted {
            return Err(self.lost(format!("only {records} of {wanted} records exist")));
        }
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_tell_whether_they_are_right() {
        let mut bytes = Vec::new();
        (0..100).for_each(|number| put(&mut bytes, key(3, number), number));
        let all = tally(3, &bytes).unwrap();
        assert_eq!((bytes.len(), all.records), (100 * RECORD, 100));
        assert!(tally(4, &bytes).is_err(), "of another seed");
        let reversed: Vec<u8> = bytes.rchunks_exact(RECORD).flatten().copied().collect();
        assert_eq!(tally(3, &reversed).unwrap(), all);
        assert_ne!(tally(3, &bytes[RECORD..]).unwrap(), all, "one is missing");
        assert!(tally(3, &bytes[1..]).is_err());
        for at in 0..RECORD {
            let mut wrong = bytes[..2 * RECORD].to_vec();
            wrong[RECORD + at] ^= 4;
            assert!(tally(3, &wrong).is_err(), "byte {at}");
        }
    }
}
