//! Key-value stores, sharded over blocks by the hash of the key (paper, 5.3).

use crate::error::Error;
use crate::route::Target;
use crate::structure::{Args, Exchange, Replied, Structure};
use crate::transport::{Room, Sink};
use honeycomb_types::limits::KEY_MAX;
use honeycomb_wire::data::{Brings, PutMode, ScanArgs, SwapArgs, scanned};
use honeycomb_wire::extents::StoredWhen;
use honeycomb_wire::notice::{Filter, kinds};
use honeycomb_wire::{Op, Status, key_hash};
use std::time::Duration;

/// An open key-value store.
///
/// Linearizable per key. Every mutation is exactly once in effect under retry, as for
/// `File::append`. Data is lost with its server (`memory`). Safe to share between threads.
pub struct Kv(pub(crate) Structure);

/// The result of a compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The entry had the expected value, and now has the new one.
    Done,
    /// The entry had another value: this one, or `None` for no entry.
    Found(Option<Vec<u8>>),
}

/// A part of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanPage {
    /// Keys and values; values are empty if only keys were requested.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the next part begins; `None` at the end.
    pub next: Option<u64>,
}

impl Kv {
    /// The properties that every structure has.
    pub fn structure(&self) -> &Structure {
        &self.0
    }

    /// Stores a value, whether or not the key has one. Returns whether it had one.
    ///
    /// A value of more than `plain_limit` bytes is sent in pieces, each with the deadline of a
    /// call. Readers see all of it or nothing. `ValueTooLarge` above `value_limit`.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.put_parts(key, &[value])
    }

    /// As `put`, for a value that consists of several parts, which are not joined first.
    pub fn put_parts(&self, key: &[u8], value: &[&[u8]]) -> Result<bool, Error> {
        self.put_mode(key, value, PutMode::Always).map(|r| r.header.value == 1)
    }

    /// As `put`, without the answer whether the key had a value. For a key in a lower tier this is several
    /// times faster, because nothing is read.
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.put_mode(key, &[value], PutMode::Blind).map(drop)
    }

    /// Stores a value for a key without one; `KeyExists` otherwise.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let replied = self.put_mode(key, &[value], PutMode::Absent)?;
        match replied.header.status {
            Status::KeyExists => Err(self.about(Status::KeyExists, key, "already has a value")),
            _ => Ok(()),
        }
    }

    fn put_mode(&self, key: &[u8], value: &[&[u8]], mode: PutMode) -> Result<Replied, Error> {
        let length = value.iter().map(|part| part.len()).sum();
        self.check_key(key)?;
        self.check(length, self.value_limit(), ", the most that blocks of this size can hold")?;
        if length > self.plain_limit() {
            let when = match mode {
                PutMode::Absent => StoredWhen::Absent,
                PutMode::Always | PutMode::Blind => StoredWhen::Always,
            };
            return self.put_large(key, when, value);
        }
        let args = [&[mode as u8], key].concat();
        self.send_one(Op::KvPut, key, &args, value, Sink::None)
    }

    /// Reads the value of a key into `out`; returns `false` if it has none. `Busy` if a large value
    /// was replaced during each read until the deadline.
    pub fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, Error> {
        let (_, length) = self.read(key, Sink::Vec(out))?;
        Ok(length.is_some())
    }

    /// As `get`, into a buffer that `room` makes. Returns `false`, without making a buffer, if the
    /// key has no value.
    pub fn get_with(&self, key: &[u8], room: &mut dyn Room) -> Result<bool, Error> {
        let (_, length) = self.read(key, Sink::Room(room))?;
        Ok(length.is_some())
    }

    /// Reads the value of a key into a buffer and returns its length; `None` if it has no value. A
    /// longer value is `InvalidArgument`.
    pub fn get_into(&self, key: &[u8], buffer: &mut [u8]) -> Result<Option<usize>, Error> {
        let (_, length) = self.read(key, Sink::Slice(buffer))?;
        Ok(length.map(|length| length as usize))
    }

    /// The length of the value of a key; `None` if it has none.
    pub fn exists(&self, key: &[u8]) -> Result<Option<u64>, Error> {
        let replied = self.send_one(Op::KvExists, key, key, &[], Sink::None)?;
        if replied.header.value == 0 {
            return Ok(None);
        }
        let length: [u8; 8] = replied.args[..]
            .try_into()
            .map_err(|_| Error::new(Status::BadFrame, "the reply to KvExists has no length"))?;
        Ok(Some(u64::from_le_bytes(length)))
    }

    /// Deletes a key; returns whether it had a value.
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        self.check_key(key)?;
        let args = [&[0], key].concat();
        let replied = self.send_one(Op::KvDelete, key, &args, &[], Sink::None)?;
        Ok(replied.header.status == Status::Ok)
    }

    /// Replaces the value of a key and returns the old one; `KeyNotFound` if it has none.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<Vec<u8>, Error> {
        self.check_value(value)?;
        let mut old = Vec::new();
        let replied = self.send_one(Op::KvUpdate, key, key, &[value], Sink::Vec(&mut old))?;
        match replied.header.status {
            Status::KeyNotFound => Err(self.about(Status::KeyNotFound, key, "has no value")),
            _ => Ok(old),
        }
    }

    /// Stores a value and returns the old one, if any.
    pub fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.check_value(value)?;
        let mut old = Vec::new();
        let replied = self.send_one(Op::KvUpsert, key, key, &[value], Sink::Vec(&mut old))?;
        Ok((replied.header.value == 1).then_some(old))
    }

    /// Stores `new` if the key's value equals `expected` (`None`: if it has no value).
    pub fn compare_and_swap(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> Result<Swap, Error> {
        self.check_key(key)?;
        self.check_value(new)?;
        let both = expected.map_or(0, <[u8]>::len) + new.len();
        self.check(both, 2 * self.plain_limit(), ", for the expected and the new value together")?;
        let swap = SwapArgs {
            present: expected.is_some(),
            key,
            expected: expected.unwrap_or_default(),
            new,
        };
        let (args, payload) = swap.encode();
        let mut found = Vec::new();
        let op = Op::KvCompareAndSwap;
        let replied = self.send_one(op, key, &args, &[&payload], Sink::Vec(&mut found))?;
        Ok(match replied.header.status {
            Status::CompareFailed => Swap::Found((replied.header.value == 1).then_some(found)),
            _ => Swap::Done,
        })
    }

    /// Reads a part of all entries whose keys begin with `prefix`, in order of the keys' hashes.
    /// Begin with cursor 0. An entry that exists throughout the scan is returned exactly once.
    /// Large values are read one after the other and do not count as bytes of the part.
    pub fn scan(
        &self,
        cursor: u64,
        prefix: &[u8],
        keys_only: bool,
        max_bytes: u32,
    ) -> Result<ScanPage, Error> {
        self.check_key(prefix)?;
        let args = Kv::scan_args(cursor, prefix, keys_only, max_bytes);
        let mut payload = Vec::new();
        let replied = self.0.run(Kv::scan_exchange(cursor, &args, Sink::Vec(&mut payload)))?;
        self.scan_page(&replied, &payload)
    }

    pub(crate) fn scan_args(
        cursor: u64,
        prefix: &[u8],
        keys_only: bool,
        max_bytes: u32,
    ) -> Vec<u8> {
        let mut args = Vec::new();
        ScanArgs { cursor, bytes: max_bytes, brings: Brings::keys(keys_only), prefix }
            .put(&mut args);
        args
    }

    pub(crate) fn scan_exchange<'a, 'b>(
        cursor: u64,
        args: &'a [u8],
        sink: Sink<'b>,
    ) -> Exchange<'a, 'b> {
        let (target, args) = (Target::Hash(cursor), Args::Fixed(args));
        Exchange { op: Op::KvScan, target, args, payload: &[], sink, wait_until: None }
    }

    pub(crate) fn scan_page(&self, replied: &Replied, payload: &[u8]) -> Result<ScanPage, Error> {
        let mut entries = Vec::new();
        for (key, value) in scanned(payload)? {
            // An entry that was deleted meanwhile did not exist throughout.
            if let Some(value) = self.scanned_value(key, value)? {
                entries.push((key.to_vec(), value));
            }
        }
        // Zero: no entry has a hash above those that were scanned.
        let next = Some(replied.header.value).filter(|cursor| *cursor != 0);
        Ok(ScanPage { entries, next })
    }

    /// Waits until a key has a value; returns false if `wait` elapsed first, or a signal
    /// interrupted the thread.
    pub fn wait_for(&self, key: &[u8], wait: Duration) -> Result<bool, Error> {
        let filter = Filter::Key(key.to_vec());
        self.0.wait_until(kinds::PUT, filter, wait, || Ok(self.exists(key)?.is_some()))
    }

    /// The number of entries: exact while no client writes.
    pub fn length(&self) -> Result<u64, Error> {
        let (mut sum, mut from) = (0, Some(0u64));
        while let Some(hash) = from {
            let replied = self.0.run(Exchange {
                op: Op::KvLength,
                target: Target::Hash(hash),
                args: Args::Fixed(&hash.to_le_bytes()),
                payload: &[],
                sink: Sink::None,
                wait_until: None,
            })?;
            sum += replied.header.value;
            // The block reports the last hash that it counted, because the map may be outdated.
            let last: [u8; 8] = replied.args[..]
                .try_into()
                .map_err(|_| Error::new(Status::BadFrame, "the reply to KvLength has no range"))?;
            from = u64::from_le_bytes(last).checked_add(1);
        }
        Ok(sum)
    }

    /// Runs an operation on one key.
    pub(crate) fn send_one(
        &self,
        op: Op,
        key: &[u8],
        args: &[u8],
        payload: &[&[u8]],
        sink: Sink<'_>,
    ) -> Result<Replied, Error> {
        self.check_key(key)?;
        let target = Target::Hash(key_hash(key));
        self.0.run(Exchange {
            op,
            target,
            args: Args::Fixed(args),
            payload,
            sink,
            wait_until: None,
        })
    }

    /// Checks the value of an operation that compares or returns values: these work on values in
    /// the key's own block.
    fn check_value(&self, value: &[u8]) -> Result<(), Error> {
        self.check(value.len(), self.plain_limit(), ", an eighth of a block; put takes larger ones")
    }

    fn check(&self, length: usize, limit: usize, why: &str) -> Result<(), Error> {
        self.0.check_length("a value", length, limit, why)
    }

    /// Checks a key, or the beginning of keys.
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<(), Error> {
        if key.len() <= KEY_MAX {
            return Ok(());
        }
        Err(self.too_long_a_key(key))
    }

    pub(crate) fn too_long_a_key(&self, key: &[u8]) -> Error {
        let (address, length) = (self.0.address(), key.len());
        let text = format!("{address}: a key of {length} bytes; the limit is {KEY_MAX}");
        Error::new(Status::KeyTooLarge, text)
    }

    pub(crate) fn about(&self, status: Status, key: &[u8], what: &str) -> Error {
        let key = String::from_utf8_lossy(&key[..key.len().min(80)]);
        Error::new(status, format!("{}: the key '{key}' {what}", self.0.address()))
    }
}
