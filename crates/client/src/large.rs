//! Values of more than an eighth of a block: written and read as extents in separate blocks (ADR
//! 0018). Items of queues as well (`large_items.rs`).
//!
//! Writing: the value is divided into pieces of equal length, each piece is written to a block of
//! extents, and then one put names them all. No reader sees any part of the value before that put.
//! A piece that no put names is freed automatically, so a piece whose reply was lost is simply
//! written again. Reading: the block of the key returns the list of extents, and they are read
//! concurrently. Extents are immutable: either all bytes belong to one value, or an extent is gone
//! because the value was replaced, and the key is read again.
//!
//! If an entry cannot list all extents, lists of them are written and read as extents, too (ADR 0059).

use crate::error::Error;
use crate::kv::Kv;
use crate::many::run_many;
use crate::route::Target;
use crate::structure::{Args, Exchange, Replied, Structure};
use crate::transport::{Sink, make_length};
use crate::writing::{Division, WriteStep, Writing};
use honeycomb_types::limits::{
    ARGS_MAX, EXTENT_PENDING_MS, EXTENT_REF, LARGE_FRACTION, LIST_EXTENTS_MAX, kv_value_max,
};
use honeycomb_types::{BlockAt, Time};
use honeycomb_wire::data::Scanned;
use honeycomb_wire::extents::{
    ExtentRef, ListHead, PutExtents, StoredWhen, extents, list_below, value_length,
};
use honeycomb_wire::{Op, Status};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

/// How often a value is rewritten if its extents are gone at the put.
pub(crate) const TRIES: u32 = 4;
/// Pieces that are sent to one block at a time, as far as it has space: an empty block holds this
/// many pieces of maximum length.
const AT_ONCE: usize = LARGE_FRACTION as usize;
/// Extents that one request retains: well within the size of a request's arguments.
const KEEP_AT_ONCE: usize = 4096;
const _: () = assert!(8 * KEEP_AT_ONCE <= ARGS_MAX);
/// How often extents are retained while a value is being written.
const KEEP_EVERY: Duration = Duration::from_millis(EXTENT_PENDING_MS / 4);

/// The extents that a list names.
pub(crate) enum Below {
    /// Pieces of the value.
    Value,
    /// Lists, joined to the list of the next level.
    Lists(Vec<u8>),
    /// One of them is gone: the value was replaced.
    Gone,
}

/// The extents of the large values of a structure: a value is in extents if it is longer than an eighth of a
/// block.
pub(crate) struct Extents<'a>(pub &'a Structure);

impl Extents<'_> {
    /// Maximum bytes of an extent, an eighth of a block.
    pub fn piece_limit(&self) -> usize {
        (self.0.block_size() / LARGE_FRACTION) as usize
    }

    /// Maximum bytes of a value.
    pub fn value_limit(&self) -> usize {
        usize::try_from(kv_value_max(self.0.block_size())).unwrap_or(usize::MAX)
    }

    fn division(&self) -> Division {
        Division::of(self.0.block_size())
    }

    /// Writes a value as extents that nothing names yet, and returns its list.
    pub fn write(&self, value: &[&[u8]]) -> Result<Vec<u8>, Error> {
        let length = value.iter().map(|part| part.len()).sum();
        let mut writing = Writing::new(length, self.division());
        if length as u64 > self.0.block_size() {
            // A value that no memory can hold is refused before its first byte is written.
            let (piece, now) = (self.piece_limit() as u64, self.0.now());
            let entries = self.0.ask_for_extents(piece, Vec::new(), length as u64)?;
            // The client's own record of a block is newer than the report from which the reply is.
            self.0.with_routing(|routing| match routing.extents {
                Some(_) => Ok(()),
                None => writing.given(routing, now, &entries),
            })?;
        }
        let pieces = writing.cut(value);
        let list = self.write_rest(writing, &pieces)?;
        let sum = value_length(&list);
        assert_eq!(sum, length as u64, "INV-39: the extents of a value have another length");
        Ok(list)
    }

    /// Writes the lists of a value whose pieces are these extents, and returns its list.
    pub fn name(&self, pieces: Vec<ExtentRef>) -> Result<Vec<u8>, Error> {
        self.write_rest(Writing::naming(pieces, self.division()), &[])
    }

    fn write_rest(&self, mut writing: Writing, pieces: &[Vec<&[u8]>]) -> Result<Vec<u8>, Error> {
        let mut kept = self.0.now();
        loop {
            let now = self.0.now();
            let next = self.0.with_routing(|routing| writing.next(routing, now, AT_ONCE));
            let (at, some) = match next {
                WriteStep::Done(list) => return Ok(list),
                WriteStep::Ask { bytes, full } => {
                    let entries = self.0.ask_for_extents(bytes as u64, full, 0)?;
                    self.0.with_routing(|routing| writing.given(routing, now, &entries))?;
                    continue;
                }
                WriteStep::Put { at, pieces } => (at, pieces),
            };
            let lists = writing.lists();
            let lists: Option<Vec<[&[u8]; 1]>> =
                lists.map(|lists| some.iter().map(|i| [&lists[*i][..]]).collect());
            let exchanges = some.iter().enumerate().map(|(n, i)| {
                let (op, args, payload): (_, &[u8], &[&[u8]]) = match &lists {
                    None => (Op::ExtentPut, &[], &pieces[*i]),
                    Some(lists) => (Op::ExtentPutList, &[0], &lists[n]),
                };
                Exchange {
                    op,
                    target: Target::Extents(at),
                    args: Args::Fixed(args),
                    payload,
                    sink: Sink::None,
                    wait_until: None,
                }
            });
            for (i, result) in some.iter().zip(run_many(self.0, exchanges.collect())) {
                let result = result.map(|replied| replied.header.value);
                self.0.with_routing(|routing| writing.wrote(routing, at, *i, result))?;
            }
            self.keep_on(&mut kept, writing.written())?;
        }
    }

    /// Retains extents that are still needed, when the interval has elapsed.
    pub fn keep_on<'a>(
        &self,
        kept: &mut Time,
        written: impl IntoIterator<Item = &'a ExtentRef>,
    ) -> Result<(), Error> {
        if self.0.now() < *kept + KEEP_EVERY {
            return Ok(());
        }
        *kept = self.0.now();
        self.keep(written.into_iter())
    }

    /// Retains extents that are still needed. Whether they exist is checked when a put names them.
    fn keep<'a>(&self, list: impl Iterator<Item = &'a ExtentRef>) -> Result<(), Error> {
        let mut blocks: BTreeMap<BlockAt, Vec<u8>> = BTreeMap::new();
        for extent in list {
            blocks.entry(extent.at).or_default().extend_from_slice(&extent.id.to_le_bytes());
        }
        let parts = blocks.iter().flat_map(|(at, ids)| {
            ids.chunks(8 * KEEP_AT_ONCE).map(|part| Exchange {
                op: Op::ExtentKeep,
                target: Target::Extents(*at),
                args: Args::Fixed(part),
                payload: &[],
                sink: Sink::None,
                wait_until: None,
            })
        });
        for result in run_many(self.0, parts.collect()) {
            match result {
                Err(e) if e.status != Status::ExtentGone => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the lists that a list names.
    pub fn below(&self, list: &[u8]) -> Result<Below, Error> {
        let Some(head) = ListHead::of(list) else { return Ok(Below::Value) };
        let mut bytes = vec![0; self.length_of_lists(head, list)?];
        if !self.read_into(list, &mut bytes)? {
            return Ok(Below::Gone);
        }
        Ok(list_below(list, &bytes)?.map_or(Below::Value, Below::Lists))
    }

    /// The list of the pieces of a value: reads the lists in between. `None` if an extent is gone.
    pub fn pieces_of<'l>(&self, list: &'l [u8]) -> Result<Option<Cow<'l, [u8]>>, Error> {
        let mut list = Cow::Borrowed(list);
        loop {
            match self.below(&list)? {
                Below::Value => return Ok(Some(list)),
                Below::Lists(below) => list = Cow::Owned(below),
                Below::Gone => return Ok(None),
            }
        }
    }

    /// Reads a value from its extents; returns false if one of them is gone.
    pub fn read(&self, list: &[u8], sink: Sink<'_>) -> Result<bool, Error> {
        let Some(list) = self.pieces_of(list)? else { return Ok(false) };
        let list = &list[..];
        let total = self.length_of(list)?;
        let too_short = |text: String| Err(Error::new(Status::InvalidArgument, text));
        match sink {
            Sink::Vec(out) => {
                make_length(out, total);
                self.read_into(list, out)
            }
            Sink::Room(room) => {
                let out = room.room(total);
                self.read_into(list, &mut out[..total])
            }
            Sink::Slice(out) if total <= out.len() => self.read_into(list, &mut out[..total]),
            Sink::Slice(_) | Sink::Descriptor(_) | Sink::None => too_short(format!(
                "{}: the value has {total} bytes, more than the buffer",
                self.0.address()
            )),
        }
    }

    /// The length of a value whose pieces these are, if there can be such a value: memory of this length is
    /// allocated.
    pub fn length_of(&self, list: &[u8]) -> Result<usize, Error> {
        let (most, total) = (kv_value_max(self.0.block_size()), value_length(list));
        if extents(list)?.iter().any(|extent| extent.len == 0) || total > most {
            let text = format!(
                "{}: a reply names a value by extents of {total} bytes; a value has at most {most} \
                 bytes, and no extent is empty",
                self.0.address()
            );
            return Err(Error::new(Status::BadFrame, text));
        }
        Ok(total as usize)
    }

    /// The length of the lists that a list names, if there can be such lists: memory of this length is
    /// allocated. No list is longer than the part of the value that it names.
    fn length_of_lists(&self, head: ListHead, list: &[u8]) -> Result<usize, Error> {
        let longest = (LIST_EXTENTS_MAX as usize + 1) * EXTENT_REF;
        let lists = extents(list)?;
        let total: u64 = lists.iter().map(|list| u64::from(list.len)).sum();
        if lists.iter().any(|list| list.len as usize > longest) || total > head.bytes {
            let text = format!(
                "{}: a reply names a value of {} bytes by lists of {total} bytes; lists have at \
                 most {longest} bytes each, and no more than the value",
                self.0.address(),
                head.bytes
            );
            return Err(Error::new(Status::BadFrame, text));
        }
        Ok(total as usize)
    }

    /// Reads the extents of one list, which have exactly as many bytes as `out`.
    pub fn read_into(&self, list: &[u8], mut out: &mut [u8]) -> Result<bool, Error> {
        let list = extents(list)?;
        self.0.know_servers(&list)?;
        let ids: Vec<[u8; 8]> = list.iter().map(|extent| extent.id.to_le_bytes()).collect();
        let mut exchanges = Vec::with_capacity(list.len());
        for (extent, id) in list.iter().zip(&ids) {
            let (part, rest) = out.split_at_mut(extent.len as usize);
            out = rest;
            exchanges.push(Exchange {
                op: Op::ExtentGet,
                target: Target::Extents(extent.at),
                args: Args::Fixed(id),
                payload: &[],
                sink: Sink::Slice(part),
                wait_until: None,
            });
        }
        assert!(out.is_empty(), "INV-39: no extent has the last {} bytes of a value", out.len());
        for (result, extent) in run_many(self.0, exchanges).into_iter().zip(&list) {
            match result {
                Ok(replied) if replied.header.payload_len == extent.len => {}
                Ok(replied) => {
                    let text = format!(
                        "the reply to a read of a {}-byte extent has {} bytes",
                        extent.len, replied.header.payload_len
                    );
                    return Err(Error::new(Status::BadFrame, text));
                }
                Err(e) if e.status == Status::ExtentGone => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }
}

impl Kv {
    pub(crate) fn extents(&self) -> Extents<'_> {
        Extents(&self.0)
    }

    /// Maximum bytes of a value in its key's own block: an eighth of the block.
    pub fn plain_limit(&self) -> usize {
        self.extents().piece_limit()
    }

    /// Maximum bytes of one value.
    pub fn value_limit(&self) -> usize {
        self.extents().value_limit()
    }

    /// Stores a value that is too large for its key's block.
    pub(crate) fn put_large(
        &self,
        key: &[u8],
        when: StoredWhen<'_>,
        value: &[&[u8]],
    ) -> Result<Replied, Error> {
        let mut tries = 0;
        loop {
            let stored = self.extents().write(value).and_then(|list| {
                let (args, payload) = PutExtents { when, key, list: &list }.encode();
                self.send_one(Op::KvPutExtents, key, &args, &[&payload], Sink::None)
            });
            match stored {
                Err(e) if e.status == Status::ExtentGone => {
                    tries += 1;
                    if tries == TRIES {
                        let what = format!("could not be stored in {TRIES} tries: {}", e.message);
                        return Err(self.about(Status::Busy, key, &what));
                    }
                }
                other => return other,
            }
        }
    }

    /// Reads the value of a key, from its extents if needed. Returns the reply to `KvGet` and the
    /// length of the value, if there is one.
    pub(crate) fn read(
        &self,
        key: &[u8],
        mut sink: Sink<'_>,
    ) -> Result<(Replied, Option<u64>), Error> {
        let (deadline, mut again) = (self.0.deadline(), false);
        loop {
            let replied = self.send_one(Op::KvGet, key, key, &[], sink.reborrow())?;
            let length = match replied.header.status {
                Status::Ok => {
                    // A buffer made for the earlier value does not fit an empty one.
                    if let (true, 0, Sink::Room(room)) =
                        (again, replied.header.payload_len, &mut sink)
                    {
                        room.room(0);
                    }
                    Some(replied.header.payload_len as u64)
                }
                Status::Extents if self.extents().read(&replied.args, sink.reborrow())? => {
                    Some(value_length(&replied.args))
                }
                Status::Extents => {
                    self.admit_again(key, deadline)?;
                    again = true;
                    continue;
                }
                _ => None,
            };
            return Ok((replied, length));
        }
    }

    pub(crate) fn admit_again(&self, key: &[u8], deadline: Time) -> Result<(), Error> {
        if self.0.now() < deadline {
            return Ok(());
        }
        let what = "was replaced repeatedly while its value was read";
        Err(self.about(Status::Busy, key, what))
    }

    /// The value of a scanned entry; `None` if the key no longer has one.
    pub(crate) fn scanned_value(
        &self,
        key: &[u8],
        value: Scanned<'_>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let list = match value {
            Scanned::Value(value) => return Ok(Some(value.to_vec())),
            Scanned::Extents(list) => list,
        };
        let mut out = Vec::new();
        if self.extents().read(list, Sink::Vec(&mut out))? || self.get(key, &mut out)? {
            return Ok(Some(out));
        }
        Ok(None)
    }
}
