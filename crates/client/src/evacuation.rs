//! Evacuates large values from a draining server.
//!
//! A large value is a list of extents, and the entry of its key names them by their location (ADR
//! 0018), so a block of extents cannot move. Instead, each value is rewritten piece by piece in
//! blocks that have space. The new list then replaces the old one if the entry still has the old
//! one (ADR 0034). For readers and listeners nothing changes; a client that is reading the old
//! pieces at that moment reads the key again.

use crate::client::Client;
use crate::error::Error;
use crate::kv::Kv;
use crate::transport::Sink;
use honeycomb_types::limits::EXTENT_REF;
use honeycomb_types::{BlockAt, JobId, StructureId};
use honeycomb_wire::data::{Brings, ScanArgs, Scanned, scanned};
use honeycomb_wire::extents::{
    ExtentRef, PutExtents, StoredWhen, extents, put_extents, value_length,
};
use honeycomb_wire::{Op, Status};
use std::collections::BTreeSet;

/// Bytes of keys and lists of one part of a scan.
const PAGE: u32 = 256 << 10;

/// The result of evacuating the large values of a store.
#[derive(Debug, Default)]
pub struct Carried {
    /// Number of values that have moved.
    pub values: u64,
    /// The blocks that the store still had before this evacuation.
    pub had: BTreeSet<BlockAt>,
    /// Why one or more values did not move: at the last attempt there was no space for a copy.
    pub failed: Option<Error>,
}

impl Client {
    /// Rewrites the large values that have parts in `leaving`: blocks of extents that accept no
    /// more, because their server is draining. A value without space for a copy (`OutOfMemory`,
    /// `QuotaExceeded`, `LimitExceeded`, `Busy`) stays, and the others are still tried.
    ///
    /// A value that is put meanwhile is left to its writer. A put that was in progress may still
    /// name such a block a moment later, so call this until the store has none of these blocks; the
    /// store is then not read. Needs memory for one piece of a value at a time, an eighth of a
    /// block, and reads the whole store for its keys.
    ///
    /// Needs the cluster's token. Leases are neither renewed nor needed.
    pub fn carry_values(
        &self,
        job: JobId,
        structure: StructureId,
        leaving: &BTreeSet<BlockAt>,
    ) -> Result<Carried, Error> {
        let store = self.open_kv_by_id(job, structure)?;
        let there = store.0.ask_for_extents(0, Vec::new())?;
        let there = there.iter().map(|entry| entry.at());
        let had = there.filter(|at| leaving.contains(at)).collect();
        let mut carried = Carried { had, ..Carried::default() };
        let mut next = Some(0).filter(|_| !carried.had.is_empty());
        while let Some(cursor) = next {
            let mut args = Vec::new();
            ScanArgs { cursor, bytes: PAGE, brings: Brings::Lists, prefix: b"" }.put(&mut args);
            let mut page = Vec::new();
            let exchange = Kv::scan_exchange(cursor, &args, Sink::Vec(&mut page));
            let replied = store.0.run(exchange)?;
            for (key, value) in scanned(&page)? {
                let Scanned::Extents(list) = value else { continue };
                if !extents(list)?.iter().any(|extent| carried.had.contains(&extent.at)) {
                    continue;
                }
                match store.carry(key, list) {
                    Ok(done) => carried.values += u64::from(done),
                    Err(e) if finds_no_room(e.status) => carried.failed = Some(e),
                    Err(e) => return Err(e),
                }
            }
            next = Some(replied.header.value).filter(|cursor| *cursor != 0);
        }
        Ok(carried)
    }
}

/// Whether another value may still find space although this one did not.
fn finds_no_room(status: Status) -> bool {
    use Status::{Busy, LimitExceeded, OutOfMemory, QuotaExceeded};
    matches!(status, OutOfMemory | QuotaExceeded | LimitExceeded | Busy)
}

impl Kv {
    /// Rewrites the value of a key if it still is this list. Returns whether it was.
    fn carry(&self, key: &[u8], list: &[u8]) -> Result<bool, Error> {
        self.length_of(list)?;
        let mut new: Vec<ExtentRef> = Vec::with_capacity(list.len() / EXTENT_REF);
        let (mut kept, mut bytes) = (self.0.now(), Vec::new());
        for piece in list.chunks_exact(EXTENT_REF) {
            bytes.resize(value_length(piece) as usize, 0);
            if !self.read_into(piece, &mut bytes)? {
                return Ok(false); // The key now has another value, or none.
            }
            new.extend(self.write_extents(&[&bytes])?);
            self.keep_on(&mut kept, &new)?;
        }
        let new = put_extents(&new);
        debug_assert_eq!(
            value_length(&new),
            value_length(list),
            "INV-39: a value is rewritten with another length"
        );
        let put = PutExtents { when: StoredWhen::Still(list), key, list: &new };
        let (args, payload) = put.encode();
        match self.send_one(Op::KvPutExtents, key, &args, &[&payload], Sink::None) {
            Ok(replied) => Ok(replied.header.status == Status::Ok),
            // Some of the new extents were freed while the value was written, which took long: the
            // next round retries.
            Err(e) if e.status == Status::ExtentGone => Ok(false),
            Err(e) => Err(e),
        }
    }
}
