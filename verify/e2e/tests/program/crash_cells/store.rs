//! A store with exactly known contents, and its writers.

use honeycomb_client::{Error, Kv};
use honeycomb_env::Entropy;
use honeycomb_wire::key_hash;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Number of keys that each writer puts in turn, and number of keys to which all writers add.
const OWN: u64 = 20;
const SUMS: u64 = 16;

/// The bytes that a key has after it was written so often.
pub fn value(key: &[u8], round: u64, length: usize) -> Vec<u8> {
    let mut entropy = Entropy::seeded(key_hash(key) ^ round);
    let mut bytes = vec![0; length];
    for part in bytes.chunks_mut(8) {
        part.copy_from_slice(&entropy.next_u64().to_le_bytes()[..part.len()]);
    }
    bytes
}

/// The data that fills the store: entries of some KB, and some entries with their own extent.
pub struct Fill {
    pub kv: Kv,
    next: u64,
    /// The blocks' size in MiB: some hundred entries shall fill one of any size.
    scale: usize,
    pub entries: BTreeMap<Vec<u8>, usize>,
}

impl Fill {
    pub fn new(kv: Kv) -> Fill {
        let scale = (kv.structure().block_size() >> 20) as usize;
        Fill { kv, next: 0, scale, entries: BTreeMap::new() }
    }

    /// One of them: its key and how long its value is.
    fn entry(&self, n: u64) -> (Vec<u8>, usize) {
        // In small blocks: a region that refers to such a one is never patched but sent anew.
        let extent = self.scale == 1 && n % 16 == 7;
        let length = if extent { 40_000 } else { 1000 + (n % 7) as usize * 300 };
        (format!("fill-{n}").into_bytes(), length * self.scale.min(4))
    }

    pub fn bytes(&self) -> usize {
        self.entries.values().sum()
    }

    /// Puts one more.
    pub fn put(&mut self) -> Result<(), Error> {
        let (key, length) = self.entry(self.next);
        self.next += 1;
        self.kv.put(&key, &value(&key, 0, length))?;
        self.entries.insert(key, length);
        Ok(())
    }

    /// Goes on where another left off after so many were acknowledged to it: one more may be there.
    pub fn resume(mut self, acknowledged: u64) -> Result<Fill, Error> {
        self.entries = (0..acknowledged).map(|n| self.entry(n)).collect();
        let (key, length) = self.entry(acknowledged);
        let mut out = Vec::new();
        if self.kv.get(&key, &mut out)? {
            assert!(out == value(&key, 0, length), "it is there whole");
            self.entries.insert(key, length);
        }
        self.next = acknowledged + 1;
        self.check();
        Ok(self)
    }

    /// Puts one of which the hash is in the range.
    pub fn put_within(&mut self, (first, last): (u64, u64)) -> Result<(), Error> {
        while !(first..=last).contains(&key_hash(&self.entry(self.next).0)) {
            self.next += 1;
        }
        self.put()
    }

    /// Bytes of the values in a range.
    pub fn bytes_within(&self, (first, last): (u64, u64)) -> usize {
        let within = |key: &[u8]| (first..=last).contains(&key_hash(key));
        self.entries.iter().filter(|(key, _)| within(key)).map(|(_, bytes)| bytes).sum()
    }

    /// Deletes one of which the hash is in the range, but leaves a few.
    pub fn delete_within(&mut self, (first, last): (u64, u64)) -> Result<(), Error> {
        let within = |key: &[u8]| (first..=last).contains(&key_hash(key));
        let mut there = self.entries.keys().filter(|key| within(key));
        let Some(key) = there.next().cloned() else { return Ok(()) };
        if there.count() > 2 {
            assert!(self.kv.delete(&key)?, "it was there");
            self.entries.remove(&key);
        }
        Ok(())
    }

    /// Every entry, from the store.
    pub fn check(&self) {
        let mut out = Vec::new();
        for (key, &length) in &self.entries {
            let found = self.kv.get(key, &mut out).unwrap();
            let name = String::from_utf8_lossy(key);
            assert!(found, "{name} was acknowledged and is lost");
            assert!(out == value(key, 0, length), "{name} has other bytes");
        }
    }
}

/// The acknowledged work of writers.
#[derive(Default)]
pub struct Written {
    rounds: Vec<u64>,
}

/// Writes until `stop` or an error: puts that it reads back, and additions.
pub fn write(kv: &Kv, writer: u64, stop: &AtomicBool, done: &AtomicU64) -> (u64, Option<Error>) {
    let mut round = 0;
    loop {
        if let Err(error) = write_once(kv, writer, round) {
            return (round, Some(error));
        }
        round += 1;
        done.fetch_add(1, Relaxed);
        if stop.load(Relaxed) {
            return (round, None);
        }
    }
}

fn write_once(kv: &Kv, writer: u64, round: u64) -> Result<(), Error> {
    let key = own(writer, round % OWN);
    let bytes = value(&key, round, 300);
    kv.put(&key, &bytes)?;
    kv.add(&sum(round % SUMS), 1)?;
    let mut out = Vec::new();
    let found = kv.get(&key, &mut out)?;
    assert!(found && out == bytes, "a writer does not read what it wrote");
    Ok(())
}

fn own(writer: u64, key: u64) -> Vec<u8> {
    format!("own-{writer}-{key}").into_bytes()
}

fn sum(key: u64) -> Vec<u8> {
    format!("sum-{key}").into_bytes()
}

impl Written {
    pub fn push(&mut self, rounds: u64) {
        self.rounds.push(rounds);
    }

    fn own_keys(&self) -> impl Iterator<Item = (Vec<u8>, u64)> {
        (0..).zip(&self.rounds).flat_map(|(writer, &rounds)| {
            (rounds.saturating_sub(OWN)..rounds).map(move |round| (own(writer, round % OWN), round))
        })
    }

    /// Keys that there must be.
    pub fn keys(&self) -> usize {
        let most = self.rounds.iter().max().copied().unwrap_or(0);
        self.own_keys().count() + most.min(SUMS) as usize
    }

    /// Checks all data in a store without concurrent writers.
    pub fn check(&self, kv: &Kv) {
        let mut out = Vec::new();
        for (key, round) in self.own_keys() {
            let name = String::from_utf8_lossy(&key);
            assert!(kv.get(&key, &mut out).unwrap(), "{name} was acknowledged and is lost");
            assert!(out == value(&key, round, 300), "{name} is not as it was last written");
        }
        for key in 0..SUMS {
            let ran = |rounds: &u64| (rounds + SUMS - 1 - key) / SUMS;
            let due: u64 = self.rounds.iter().map(ran).sum();
            if due > 0 {
                let found = kv.add(&sum(key), 0).unwrap();
                assert_eq!(found, due as i64, "additions to sum-{key}: lost or done twice");
            }
        }
    }
}

/// Keys of the store by a scan, each once.
pub fn scan(kv: &Kv) -> usize {
    let mut found = std::collections::BTreeSet::new();
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let page = kv.scan(at, b"", true, 1 << 20).unwrap();
        for (key, _) in page.entries {
            assert!(found.insert(key), "a scan told an entry twice");
        }
        cursor = page.next;
    }
    found.len()
}
