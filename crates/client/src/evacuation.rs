//! Evacuates large values from a draining server: values of key-value stores, and items of queues.
//!
//! A large value is a list of extents, and the entry of its key names them by their location (ADR
//! 0018), so a block of extents cannot move. Instead, each value is rewritten piece by piece in
//! blocks that have space. The new list then replaces the old one if the entry still has the old
//! one (ADR 0034). For readers and listeners nothing changes; a client that is reading the old
//! pieces at that moment reads the key, or reserves the item, again.

use crate::client::{Client, handle};
use crate::error::Error;
use crate::kv::Kv;
use crate::large::{Below, Extents};
use crate::queue::Queue;
use crate::route::Target;
use crate::structure::{Args, Exchange, Replied};
use crate::transport::Sink;
use honeycomb_types::limits::EXTENT_REF;
use honeycomb_types::{BlockAt, JobId, Kind, StructureId};
use honeycomb_wire::data::{Brings, ScanArgs, Scanned, scanned};
use honeycomb_wire::extents::{ExtentRef, PutExtents, StoredWhen, extents, value_length};
use honeycomb_wire::queue::large_items;
use honeycomb_wire::{Op, Status};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Bytes of keys and lists of one part of a scan.
const PAGE: u32 = 256 << 10;

/// The result of evacuating the large values of a structure.
#[derive(Debug, Default)]
pub struct Carried {
    /// Number of values that have moved.
    pub values: u64,
    /// The blocks that the structure still had before this evacuation.
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
    /// name such a block a moment later, so call this until the structure has none of these blocks;
    /// it is then not read. Needs memory for one piece of a value at a time, an eighth of a block,
    /// and reads the keys of a whole store, or the directory of a whole queue.
    ///
    /// Needs the cluster's token. Leases are neither renewed nor needed.
    pub fn carry_values(
        &self,
        job: JobId,
        structure: StructureId,
        leaving: &BTreeSet<BlockAt>,
    ) -> Result<Carried, Error> {
        let opened = self.open_by_id(job, structure)?;
        let there = opened.ask_for_extents(0, Vec::new(), 0)?;
        let there = there.iter().map(|entry| entry.at());
        let had = there.filter(|at| leaving.contains(at)).collect();
        let mut carried = Carried { had, ..Carried::default() };
        if carried.had.is_empty() {
            return Ok(carried);
        }
        match opened.kind() {
            Kind::Queue => handle::<Queue>(opened)?.carry_items(&mut carried)?,
            _ => handle::<Kv>(opened)?.carry_entries(&mut carried)?,
        }
        Ok(carried)
    }
}

impl Carried {
    /// Whether a value has a part in the leaving blocks, or a list of its parts.
    fn names(&self, all: &Extents<'_>, list: &[u8]) -> Result<bool, Error> {
        let leaves = |list: &[u8]| -> Result<bool, Error> {
            Ok(extents(list)?.iter().any(|extent| self.had.contains(&extent.at)))
        };
        let mut list = Cow::Borrowed(list);
        while !leaves(&list)? {
            match all.below(&list)? {
                Below::Lists(below) => list = Cow::Owned(below),
                // If one is gone, the value was replaced.
                Below::Value | Below::Gone => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Counts the attempt to move one value.
    fn count(&mut self, moved: Result<bool, Error>) -> Result<(), Error> {
        match moved {
            Ok(done) => self.values += u64::from(done),
            Err(e) if finds_no_room(e.status) => self.failed = Some(e),
            Err(e) => return Err(e),
        }
        Ok(())
    }
}

/// Whether another value may still find space although this one did not.
fn finds_no_room(status: Status) -> bool {
    use Status::{Busy, LimitExceeded, OutOfMemory, QuotaExceeded};
    matches!(status, OutOfMemory | QuotaExceeded | LimitExceeded | Busy)
}

impl Extents<'_> {
    /// Rewrites a value extent by extent; returns its new list, or `None` if one of them is gone.
    fn rewrite(&self, named: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let Some(list) = self.pieces_of(named)? else { return Ok(None) };
        self.length_of(&list)?;
        let mut new: Vec<ExtentRef> = Vec::with_capacity(list.len() / EXTENT_REF);
        let (mut kept, mut bytes) = (self.0.now(), Vec::new());
        for piece in list.chunks_exact(EXTENT_REF) {
            bytes.resize(value_length(piece) as usize, 0);
            if !self.read_into(piece, &mut bytes)? {
                return Ok(None);
            }
            new.extend(extents(&self.write(&[&bytes])?)?);
            self.keep_on(&mut kept, &new)?;
        }
        let new = self.name(new)?;
        debug_assert_eq!(
            (value_length(&new), new.len()),
            (value_length(named), named.len()),
            "INV-39: a value is rewritten with another length"
        );
        Ok(Some(new))
    }
}

/// Whether a value was replaced by its copy. Some of the new extents may have been freed while it was
/// written, which took long: the next round retries.
fn is_replaced(replied: Result<Replied, Error>) -> Result<bool, Error> {
    match replied {
        Ok(replied) => Ok(replied.header.status == Status::Ok),
        Err(e) if e.status == Status::ExtentGone => Ok(false),
        Err(e) => Err(e),
    }
}

impl Kv {
    fn carry_entries(&self, carried: &mut Carried) -> Result<(), Error> {
        let mut next = Some(0);
        while let Some(cursor) = next {
            let mut args = Vec::new();
            ScanArgs { cursor, bytes: PAGE, brings: Brings::Lists, prefix: b"" }.put(&mut args);
            let mut page = Vec::new();
            let exchange = Kv::scan_exchange(cursor, &args, Sink::Vec(&mut page));
            let replied = self.0.run(exchange)?;
            for (key, value) in scanned(&page)? {
                if let Scanned::Extents(list) = value
                    && carried.names(&self.extents(), list)?
                {
                    carried.count(self.carry(key, list))?;
                }
            }
            next = Some(replied.header.value).filter(|cursor| *cursor != 0);
        }
        Ok(())
    }

    /// Rewrites the value of a key if it still is this list. Returns whether it was.
    fn carry(&self, key: &[u8], list: &[u8]) -> Result<bool, Error> {
        let Some(new) = self.extents().rewrite(list)? else { return Ok(false) };
        let put = PutExtents { when: StoredWhen::Still(list), key, list: &new };
        let (args, payload) = put.encode();
        is_replaced(self.send_one(Op::KvPutExtents, key, &args, &[&payload], Sink::None))
    }
}

impl Queue {
    fn carry_items(&self, carried: &mut Carried) -> Result<(), Error> {
        self.structure().refresh(self.structure().deadline())?;
        for entry in self.structure().entries() {
            match self.carry_items_of(entry.at(), carried) {
                // The block is empty and gone, or on another server: the next round finds it.
                Err(e) if matches!(e.status, Status::UnknownBlock | Status::WrongEpoch) => {}
                other => other?,
            }
        }
        Ok(())
    }

    fn carry_items_of(&self, at: BlockAt, carried: &mut Carried) -> Result<(), Error> {
        let mut next = Some(0);
        while let Some(from) = next {
            let mut page = Vec::new();
            let replied = self.structure().run(Exchange {
                op: Op::QueueLists,
                target: Target::Block(at),
                args: Args::Fixed(&u64::to_le_bytes(from)),
                payload: &[],
                sink: Sink::Vec(&mut page),
                wait_until: None,
            })?;
            for (number, list) in large_items(&page)? {
                if carried.names(&self.extents(), list)? {
                    carried.count(self.carry(at, number, list))?;
                }
            }
            next = Some(replied.header.value).filter(|number| *number != 0);
        }
        Ok(())
    }

    /// Rewrites an item if it still is this list. Returns whether it was.
    fn carry(&self, at: BlockAt, number: u64, list: &[u8]) -> Result<bool, Error> {
        let Some(new) = self.extents().rewrite(list)? else { return Ok(false) };
        let key = number.to_le_bytes();
        let put = PutExtents { when: StoredWhen::Still(list), key: &key, list: &new };
        let (args, payload) = put.encode();
        is_replaced(self.structure().run(Exchange {
            op: Op::QueuePutExtents,
            target: Target::Block(at),
            args: Args::Fixed(&args),
            payload: &[&payload],
            sink: Sink::None,
            wait_until: None,
        }))
    }
}
