//! Operations that read a block in a lower tier of which any byte may change (`Rest::Whole`): parts of it are
//! read for one operation, which runs on them, and again if it needs others.
//!
//! The block's state beside its bytes is in memory and determines their places. It is valid for the bytes
//! that were requested as long as nothing was written to the block's slot on the disk and the block was not
//! promoted; otherwise the operation begins again. The parts belong only to the operation: they count as
//! buffers, and are freed with its answer.
//!
//! An operation that holds parts and needs more than the buffers have keeps its parts and waits. The oldest
//! operation never waits: it may exceed the buffers by its own needs, so that one operation after the other
//! ends.

use super::BlockSlot;
use super::on_disk::OnDisk;
use super::promotion::heats;
use super::reading::{RETRY_BUFFERS_US, RETRY_WRITTEN_US};
use super::request::{Request, operation, record_hash};
use super::tiers::{Doing, LOOK_AGAIN, LowerReads, Tiers};
use super::waiting::{Pending, RequestWork};
use crate::authorize::routed_here;
use crate::refusals::expired;
use crate::spill::{IoDone, IoWhat};
use hashbrown::HashSet;
use honeycomb_block::Backing;
use honeycomb_structures::{Answer, Fetched, Operation, Outcome, Payload, Ticket, busy};
use honeycomb_types::Time;
use honeycomb_types::limits::TIER_CHUNK;
use honeycomb_wire::{Op, Status};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// An operation that waits for parts of its block.
#[derive(Debug)]
pub(super) struct Fetching {
    /// The operation, which the structure may let wait.
    pub pending: Pending,
    /// The end of the time for which it may wait.
    wait_until: Time,
    /// The number of the last write of the block's copy when the operation began.
    written: u64,
    op: Op,
    args: Box<[u8]>,
    /// Its payload, if any.
    payload: Option<Backing>,
    fetched: Fetched,
    /// Number of parts that are still being read.
    left: usize,
    /// Bytes of buffers for which it waits; 0 if it does not wait.
    needs: usize,
    /// The outcome of a part that could not be read.
    failed: Option<IoDone>,
}

impl Fetching {
    fn payload(&self) -> &[u8] {
        self.payload.as_ref().map_or(&[], |payload| payload.slice(0..payload.len()))
    }

    /// Bytes of buffers that it uses.
    fn holds(&self) -> usize {
        self.payload.as_ref().map_or(0, Backing::len) + self.fetched.bytes()
    }

    /// The operation as the structure gets it.
    fn operation(&self, now: Time) -> Operation<'_> {
        let wait_until = self.wait_until.max(now);
        Operation { now, ticket: self.pending.ticket, op: self.op, args: &self.args, wait_until }
    }

    /// Whether it waits for buffers.
    pub fn waits(&self) -> bool {
        self.needs > 0
    }
}

/// The refusal of a read that requests bytes that the block does not have in its lower tier: its kind is
/// defective.
fn outside(slot: &BlockSlot, op: Op, wanted: &[Range<usize>]) -> Answer {
    let length = slot.residency.copy().map_or(0, OnDisk::length);
    let (op, kind) = (op.name(), &slot.kind.spec().name);
    let text = format!(
        "{op} requested bytes {wanted:?} of a block with {length} bytes in its lower tier; this is \
         a defect of the kind '{kind}'"
    );
    Answer::refuse(Status::Internal, text)
}

impl Tiers {
    /// The caller of operations is gone: they do not wait after their reads. Each operation is visited once,
    /// however many requests the caller had.
    pub(super) fn hang_up(&mut self, tickets: &[Ticket]) {
        if self.fetching.is_empty() {
            return;
        }
        let gone: HashSet<Ticket> = tickets.iter().copied().collect();
        let of = |fetching: &&mut Fetching| gone.contains(&fetching.pending.ticket);
        self.fetching.values_mut().filter(of).for_each(|fetching| fetching.wait_until = Time::ZERO);
    }
}

impl LowerReads<'_> {
    /// Runs a request that changes nothing on a block in a lower tier. `None` if it is answered later.
    pub(super) fn read_below(
        &mut self,
        (now, clock_ms): (Time, u64),
        index: usize,
        request: &Request<'_>,
        payload: &[u8],
    ) -> Option<Answer> {
        let Request { header, args, attributes, .. } = *request;
        let slot = self.blocks.found(index);
        if let Err(refusal) = routed_here(&slot.owner, header, attributes.route, args) {
            return Some(refusal);
        }
        let disk = slot.residency.copy();
        // An empty block has no slot on a disk, and none of its bytes is read.
        let written = disk.map_or(0, |disk| disk.written);
        let Some(payload) = self.held(payload) else {
            return Some(busy(RETRY_BUFFERS_US));
        };
        let pending = Pending::of(clock_ms, request, None, false);
        let wait_until = operation(now, clock_ms, request).wait_until;
        let fetching = Fetching { written, payload, ..self.fetch(pending, wait_until, request) };
        let number = self.tiers.number();
        self.run_below(now, index, number, fetching)
    }

    fn fetch(&self, pending: Pending, wait_until: Time, request: &Request<'_>) -> Fetching {
        Fetching {
            pending,
            wait_until,
            written: 0,
            op: request.header.op,
            args: request.args.into(),
            payload: None,
            fetched: self.parts(),
            left: 0,
            needs: 0,
            failed: None,
        }
    }

    /// No parts of a block yet.
    pub(super) fn parts(&self) -> Fetched {
        Fetched::within((self.config.buffers / 2).max(TIER_CHUNK))
    }

    /// Runs a mutation on a block in a lower tier that needs parts of it. `None` if it is answered later.
    pub(super) fn change_fetched(
        &mut self,
        (now, clock_ms): (Time, u64),
        index: usize,
        request: &Request<'_>,
        payload: &[u8],
    ) -> Option<Answer> {
        let Some(payload) = self.held(payload) else { return Some(busy(RETRY_BUFFERS_US)) };
        let slot = self.blocks.found(index);
        let written = slot.residency.copy().map_or(0, |disk| disk.written);
        // Once its parts are read it takes effect, even if its caller is gone.
        let pending = Pending::of(clock_ms, request, record_hash(slot, request), true);
        let fetching = Fetching { written, payload, ..self.fetch(pending, now, request) };
        let number = self.tiers.number();
        let answer = self.run_below(now, index, number, fetching);
        if answer.is_none() {
            self.pending.push(pending);
        }
        answer
    }

    /// A payload whose operation waits: it counts as a buffer. The outer `None`: no buffer is left.
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

    /// Whether an operation may have this many more bytes. An operation without parts may exceed the buffers
    /// only when no other operation uses any: its answer may hold them for long.
    fn may_fetch(&self, number: u64, fetching: &Fetching, bytes: usize) -> bool {
        let used = self.tiers.buffers.load(Relaxed);
        let first = self.tiers.fetching.keys().next();
        let oldest = fetching.fetched.bytes() > 0 && first.is_none_or(|first| number < *first);
        oldest || used <= fetching.holds() || used + bytes <= self.config.buffers
    }

    /// Runs an operation on the parts that were read for it; `None` if it waits for more.
    fn run_below(
        &mut self,
        now: Time,
        index: usize,
        number: u64,
        mut fetching: Fetching,
    ) -> Option<Answer> {
        let Some(answer) = self.run_on_parts(index, &fetching) else {
            // Its writer repeats it when the block was read back.
            self.tiers.write_cache.wants(fetching.pending.at, false);
            self.tiers.look_again = Some(Time::ZERO);
            return Some(busy(RETRY_WRITTEN_US));
        };
        let slot = self.blocks.found(index);
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
            return self.parked_or(now, index, &fetching, answer);
        }
        let copy = slot.residency.copy();
        let Some(disk) = copy.filter(|copy| wanted.iter().all(|range| copy.has(range))) else {
            return Some(outside(slot, fetching.op, &wanted));
        };
        let base = disk.slot as u64 * self.config.block_size as u64;
        let (tier, slot) = (disk.tier, disk.slot);
        let mut runs: Vec<Range<usize>> = Vec::with_capacity(wanted.len());
        for range in wanted {
            let around = disk.around(&range);
            match runs.last_mut() {
                Some(last) if around.start <= last.end && disk.reads_together(last, &around) => {
                    last.end = last.end.max(around.end);
                }
                _ => runs.push(around),
            }
        }
        let bytes: usize = runs.iter().map(Range::len).sum();
        if !self.may_fetch(number, &fetching, bytes) {
            if fetching.fetched.bytes() == 0 {
                return Some(busy(RETRY_BUFFERS_US));
            }
            fetching.needs = bytes;
            self.tiers.fetching.insert(number, fetching);
            let due = now + LOOK_AGAIN;
            self.tiers.look_again = Some(self.tiers.look_again.map_or(due, |set| set.min(due)));
            return None;
        }
        fetching.needs = 0;
        let mut asked = Vec::with_capacity(runs.len());
        for run in runs {
            let into = Backing::counted(run.len(), &self.tiers.buffers, &self.config.reclaimer);
            let Ok(into) = into else { return Some(busy(RETRY_BUFFERS_US)) };
            let (run, sums) = disk.chunks(&run);
            asked.push((run.start, IoWhat::Read { at: base + run.start as u64, into, sums }));
        }
        fetching.left = asked.len();
        self.tiers.fetching.insert(number, fetching);
        for (from, what) in asked {
            self.tiers.ask(tier, slot, Doing::Fetch { fetching: number, from }, what);
        }
        heats(self.blocks, self.out, now, index, bytes);
        None
    }

    /// Runs an operation on its parts. `None` if it is a change that needs all of the block.
    fn run_on_parts(&mut self, index: usize, fetching: &Fetching) -> Option<Answer> {
        let slot = self.blocks.found_mut(index);
        let Fetching { op, args, fetched, .. } = fetching;
        if fetching.pending.mutates {
            let changes = slot.lower_tier_changes().expect("it has taken the change");
            return changes.change(fetched, *op, args, fetching.payload());
        }
        let reads = slot.lower_tier_reads().expect("a block is demoted only with them");
        Some(reads.read(fetched, *op, args, fetching.payload()))
    }

    /// The answer of an operation. `None` if it has to wait: the structure then answers it as one that was
    /// parked in memory.
    fn parked_or(
        &mut self,
        now: Time,
        index: usize,
        fetching: &Fetching,
        answer: Answer,
    ) -> Option<Answer> {
        if answer.status != Status::NotYet {
            return Some(answer);
        }
        let pending = fetching.pending;
        if fetching.wait_until <= now {
            return Some(if pending.until_grant_ends { expired() } else { answer });
        }
        let slot = self.blocks.found_mut(index);
        let Some(waits) = slot.structure.waits() else { return Some(answer) };
        match waits.park(&fetching.operation(now)) {
            Outcome::Done(answer) => Some(answer),
            Outcome::Parked => {
                self.pending.push(pending);
                slot.arm(index, self.agenda);
                None
            }
        }
    }

    /// Handles the outcome of reading a part for an operation.
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
        self.fetch_more(now, number);
        self.fetch_on(now);
    }

    /// Continues operations that wait for buffers, the oldest first, as far as there are buffers.
    pub(super) fn fetch_on(&mut self, now: Time) {
        while let Some((&number, waits)) = self.tiers.fetching.iter().find(|(_, f)| f.waits()) {
            let needs = waits.needs;
            let oldest = self.tiers.fetching.keys().next() == Some(&number);
            if !oldest && !self.has_buffers(needs) {
                return;
            }
            self.fetch_more(now, number);
            if self.tiers.fetching.get(&number).is_some_and(Fetching::waits) {
                return;
            }
        }
    }

    fn fetch_more(&mut self, now: Time, number: u64) {
        let fetching = self.tiers.fetching.remove(&number).expect("the caller has found the fetch");
        let ticket = fetching.pending.ticket;
        let (pending, at) = (fetching.pending, fetching.pending.at);
        let Some(answer) = self.go_on_below(now, number, fetching) else { return };
        if !pending.mutates {
            return self.out.completed.push((ticket, answer));
        }
        if let Some(slot) = self.blocks.at(at) {
            self.tiers.deltas.recount_of(slot);
        }
        let LowerReads { blocks, agenda, pending: all, tiers, out, .. } = self;
        RequestWork { blocks, agenda, pending: all, tiers, out }.finish(pending, answer);
        self.agenda.changed(at);
        self.write_runs(now);
    }

    fn go_on_below(&mut self, now: Time, number: u64, mut fetching: Fetching) -> Option<Answer> {
        let (at, written) = (fetching.pending.at, fetching.written);
        if let Some(failed) = fetching.failed.take() {
            return Some(self.not_read(at, written, failed));
        }
        let slot = match self.judged_again(at, fetching.pending.generation) {
            Ok(slot) => slot,
            Err(refusal) => return Some(refusal),
        };
        if slot.backing.floor() == 0 {
            return Some(match fetching.pending.mutates {
                true => busy(RETRY_WRITTEN_US),
                false => run_in_memory(slot, now, &fetching),
            });
        }
        if fetching.pending.mutates && !slot.residency.takes_deltas() {
            return Some(busy(RETRY_WRITTEN_US));
        }
        if slot.residency.copy().is_none_or(|disk| disk.written != written) {
            return Some(busy(RETRY_WRITTEN_US));
        }
        let index = self.blocks.index(at.block).expect("looked up above");
        self.run_below(now, index, number, fetching)
    }
}

/// The block was promoted meanwhile.
fn run_in_memory(slot: &mut BlockSlot, now: Time, fetching: &Fetching) -> Answer {
    if slot.kind.operation(fetching.op.number()).is_some_and(|known| known.waits) {
        // Repeated, it waits as long as its caller requested.
        return busy(RETRY_WRITTEN_US);
    }
    let operation = Operation { wait_until: now, ..fetching.operation(now) };
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
