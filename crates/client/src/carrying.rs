//! Carrying large values off a server that is taken out.
//!
//! A large value is a list of extents that its key's entry names by where they lie (ADR 0018), so that a
//! block of extents cannot move. Its values are written anew instead, piece by piece, in blocks that have
//! room, and then put in place of the old list if the key's value still is that one (ADR 0034). To readers
//! and to who listens nothing has changed; who reads the old pieces at that moment reads the key again.

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

/// What came of carrying the large values of a store.
#[derive(Debug, Default)]
pub struct Carried {
    /// How many are elsewhere now.
    pub values: u64,
    /// The blocks that the store still had when it was asked, before anything was carried.
    pub had: BTreeSet<BlockAt>,
    /// Why one or more are not: there was no room for a copy, when it was asked last.
    pub failed: Option<Error>,
}

impl Client {
    /// Writes the large values of a store anew of which `leaving` have parts: blocks of extents that take
    /// no more, because their server is taken out. One that finds no room for a copy of it (`OutOfMemory`,
    /// `QuotaExceeded`, `LimitExceeded`, `Busy`) stays, and the others are tried all the same.
    ///
    /// A value that is put meanwhile is its writer's business. One that is put a moment later may still
    /// name such a block, if it was being written before; so that this is to be called until the store
    /// had none of them. It is not read then. Takes memory for one piece of a value at a time, an eighth of
    /// a block, and reads the whole store for its keys.
    ///
    /// Needs the cluster's token. Leases are neither renewed nor needed otherwise.
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

/// Whether another value may still find what this one did not.
fn finds_no_room(status: Status) -> bool {
    use Status::{Busy, LimitExceeded, OutOfMemory, QuotaExceeded};
    matches!(status, OutOfMemory | QuotaExceeded | LimitExceeded | Busy)
}

impl Kv {
    /// Writes the value of a key anew, if it still is this list; whether it was.
    fn carry(&self, key: &[u8], list: &[u8]) -> Result<bool, Error> {
        let mut new: Vec<ExtentRef> = Vec::with_capacity(list.len() / EXTENT_REF);
        let (mut kept, mut bytes) = (self.0.now(), Vec::new());
        for piece in list.chunks_exact(EXTENT_REF) {
            bytes.resize(value_length(piece) as usize, 0);
            if !self.read_into(piece, &mut bytes)? {
                return Ok(false); // The key has another value by now, or none.
            }
            new.extend(self.write_extents(&[&bytes])?);
            self.keep_on(&mut kept, &new)?;
        }
        let new = put_extents(&new);
        let put = PutExtents { when: StoredWhen::Still(list), key, list: &new };
        let (args, payload) = put.encode();
        match self.send_one(Op::KvPutExtents, key, &args, &[&payload], Sink::None) {
            Ok(replied) => Ok(replied.header.status == Status::Ok),
            // Some of it went while it was written, which took long: it is carried the next time.
            Err(e) if e.status == Status::ExtentGone => Ok(false),
            Err(e) => Err(e),
        }
    }
}
