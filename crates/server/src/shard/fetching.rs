//! Operations that read a block below memory of which any byte may change (`Rest::Whole`): parts of it are
//! brought up for one operation, which runs on them, and again when it wants others.
//!
//! What such a block knows beside its bytes is in memory, and says where they are. It is as it was when the
//! bytes were asked for as long as nothing was written to its place on the disk and the block has not come
//! up; otherwise the operation begins anew. Parts are nobody's memory but the operation's: they count as
//! buffers, and go with its answer.

use super::reading::{RETRY_BUFFERS_US, RETRY_WRITTEN_US};
use super::request::{Request, generation_of};
use super::tiers::{Doing, chunks};
use super::{Shard, Slot};
use crate::authorize::routed_here;
use crate::spill::{IoDone, IoWhat};
use honeycomb_block::Backing;
use honeycomb_structures::{Answer, Fetched, Operation, Outcome, Payload, Ticket, busy};
use honeycomb_types::limits::TIER_CHUNK;
use honeycomb_types::{BlockAt, Generation, Time};
use honeycomb_wire::Op;
use std::ops::Range;

/// An operation that waits for parts of its block.
#[derive(Debug)]
pub(super) struct Fetching {
    pub ticket: Ticket,
    pub at: BlockAt,
    generation: Generation,
    /// Of the block's place on the disk, when it came.
    written: u64,
    op: Op,
    args: Box<[u8]>,
    /// Its payload, where it has one.
    payload: Option<Backing>,
    fetched: Fetched,
    /// Parts that are still to come.
    left: usize,
    /// What became of one that could not be read.
    failed: Option<IoDone>,
}

impl Fetching {
    fn payload(&self) -> &[u8] {
        self.payload.as_ref().map_or(&[], |payload| payload.slice(0..payload.len()))
    }
}

impl Shard {
    /// Runs a request that changes nothing on a block below memory.
    pub(super) fn read_below(
        &mut self,
        now: Time,
        index: usize,
        request: &Request<'_>,
        payload: &[u8],
    ) -> Outcome {
        let Request { access, header, args, ticket, attributes } = *request;
        let slot = self.slots[index].as_deref().expect("admitted");
        if let Err(refusal) = routed_here(&slot.owner, header, attributes.route, args) {
            return self.conclude(now, index, request, Outcome::Done(refusal));
        }
        let disk = slot.place.disk.as_ref();
        // One that holds nothing has no place: nothing of it is wanted.
        let written = disk.map_or(0, |disk| disk.written);
        let Some(payload) = self.held(payload) else {
            return Outcome::Done(busy(RETRY_BUFFERS_US));
        };
        let fetching = Fetching {
            ticket,
            at: header.at,
            generation: generation_of(access),
            written,
            op: header.op,
            args: args.into(),
            payload,
            fetched: Fetched::default(),
            left: 0,
            failed: None,
        };
        match self.run_below(now, index, fetching) {
            Some(answer) => self.conclude(now, index, request, Outcome::Done(answer)),
            None => Outcome::Parked,
        }
    }

    /// A payload while its operation waits: it counts as a buffer. The outer `None`: there is none left.
    fn held(&self, payload: &[u8]) -> Option<Option<Backing>> {
        let length = payload.len();
        if length == 0 {
            return Some(None);
        }
        if !self.has_buffers(length) {
            return None;
        }
        let held = Backing::counted(length, &self.tiers.buffers, &self.config.reclaimer);
        let mut held = held.ok()?;
        held.slice_mut(0..length).copy_from_slice(payload);
        Some(Some(held))
    }

    /// Runs an operation on what was brought up for it; none when it waits for more.
    fn run_below(&mut self, now: Time, index: usize, mut fetching: Fetching) -> Option<Answer> {
        let slot = self.slots[index].as_deref_mut().expect("its caller has it");
        let Fetching { op, args, fetched, .. } = &fetching;
        let answer = slot.structure.read_below(fetched, *op, args, fetching.payload());
        let mut wanted = fetching.fetched.take_wanted();
        if let (true, Payload::Block(range)) = (wanted.is_empty(), &answer.payload) {
            if range.is_empty() {
                return Some(answer.with(Payload::None));
            }
            if let Some(pin) = fetching.fetched.pin(range) {
                return Some(answer.with(Payload::Pinned(pin)));
            }
            wanted.push(range.clone());
        }
        if wanted.is_empty() {
            return Some(answer);
        }
        let length = slot.structure.rests().length().expect("nothing is under way below");
        let tier = slot.place.tier;
        let disk = slot.place.disk.as_ref().expect("INV-41: what is not in memory is on a disk");
        let base = disk.slot as u64 * self.config.block_size as u64;
        let (spot, sums) = (disk.slot, disk.sums.clone());
        let mut runs: Vec<Range<usize>> = Vec::with_capacity(wanted.len());
        for around in wanted.iter().map(|range| chunks(range, length)) {
            match runs.last_mut() {
                Some(last) if around.start <= last.end => last.end = last.end.max(around.end),
                _ => runs.push(around),
            }
        }
        let bytes: usize = runs.iter().map(Range::len).sum();
        if !self.has_buffers(bytes) {
            return Some(busy(RETRY_BUFFERS_US));
        }
        let mut asked = Vec::with_capacity(runs.len());
        for run in runs {
            let into = Backing::counted(run.len(), &self.tiers.buffers, &self.config.reclaimer);
            let Ok(into) = into else { return Some(busy(RETRY_BUFFERS_US)) };
            let sums = sums[run.start / TIER_CHUNK..run.end.div_ceil(TIER_CHUNK)].to_vec();
            asked.push((run.start, IoWhat::Read { at: base + run.start as u64, into, sums }));
        }
        self.tiers.next += 1;
        let number = self.tiers.next;
        fetching.left = asked.len();
        self.tiers.fetching.insert(number, fetching);
        for (from, what) in asked {
            self.tiers.ask(tier, spot, Doing::Fetch { fetching: number, from }, what);
        }
        self.heats(now, index, bytes);
        None
    }

    /// A part was read for an operation, or could not be.
    pub(super) fn part_fetched(&mut self, now: Time, number: u64, from: usize, done: IoDone) {
        let Some(fetching) = self.tiers.fetching.get_mut(&number) else { return };
        match done {
            IoDone::Read(read) => {
                self.tiers.counts.read += read.len() as u64;
                fetching.fetched.add(from, read);
            }
            failed => fetching.failed = Some(failed),
        }
        fetching.left -= 1;
        if fetching.left > 0 {
            return;
        }
        let fetching = self.tiers.fetching.remove(&number).expect("looked up above");
        let ticket = fetching.ticket;
        if let Some(answer) = self.go_on_below(now, fetching) {
            self.completed.push((ticket, answer));
        }
    }

    fn go_on_below(&mut self, now: Time, mut fetching: Fetching) -> Option<Answer> {
        let (at, written) = (fetching.at, fetching.written);
        if let Some(failed) = fetching.failed.take() {
            return Some(self.not_read(at, written, failed));
        }
        let slot = match self.judged_again(at, fetching.generation) {
            Ok(slot) => slot,
            Err(refusal) => return Some(refusal),
        };
        if slot.backing.floor() == 0 {
            return Some(run_in_memory(slot, now, &fetching));
        }
        if slot.place.disk.as_ref().is_none_or(|disk| disk.written != written) {
            return Some(busy(RETRY_WRITTEN_US));
        }
        let index = self.index(at.block).expect("looked up above");
        self.run_below(now, index, fetching)
    }
}

/// The block has come up meanwhile.
fn run_in_memory(slot: &mut Slot, now: Time, fetching: &Fetching) -> Answer {
    let Fetching { ticket, op, args, .. } = fetching;
    let operation = Operation { now, ticket: *ticket, op: *op, args, wait_until: now };
    let outcome = slot.structure.apply(&mut slot.backing, &operation, fetching.payload());
    let Outcome::Done(answer) = outcome else { unreachable!("a read waits for nothing") };
    match &answer.payload {
        Payload::Block(range) => {
            let pin = slot.backing.pin(range.clone());
            answer.with(Payload::Pinned(pin))
        }
        _ => answer,
    }
}
