//! Answers with bytes in a lower tier: the bytes are read, and then the answer is sent.

use super::on_disk::OnDisk;
use super::promotion::heats;
use super::tiers::{Doing, LowerReads};
use super::{BlockSlot, Effect};
use crate::refusals::{revoked, wrong_epoch};
use crate::spill::{IoDone, IoWhat};
use honeycomb_block::Backing;
use honeycomb_structures::{Answer, Part, Payload, Rest, Ticket, busy};
use honeycomb_types::limits::{BELOW_READ_MAX, TIER_CHUNK};
use honeycomb_types::{BlockAt, Bug, Generation, Time};
use honeycomb_wire::Status;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// The delay of a reader if all buffers are in use, in microseconds.
pub(super) const RETRY_BUFFERS_US: u64 = 1000;
/// The delay of a reader whose block is in a store that cannot be reached, in microseconds.
const RETRY_AWAY_US: u64 = 250_000;
/// The delay of a reader whose block was written meanwhile, in microseconds.
pub(super) const RETRY_WRITTEN_US: u64 = 500;

/// An answer that waits for bytes.
#[derive(Debug)]
pub(super) struct Reading {
    pub ticket: Ticket,
    pub at: BlockAt,
    generation: Generation,
    /// The number of the last write of the block's copy when the reads began.
    written: u64,
    head: Answer,
    /// The parts of its payload, in order.
    parts: Vec<AnswerPiece>,
    left: usize,
}

/// A part of an answer.
#[derive(Debug)]
enum AnswerPiece {
    Bytes(Vec<u8>),
    /// These bytes of a range that is being read.
    Awaited(Range<usize>),
    /// The same, and the range.
    Read(Backing, Range<usize>),
}

impl LowerReads<'_> {
    /// The answer to an operation that changed nothing, if its bytes are in memory. `None` if they are being
    /// read: `completed` returns the answer later.
    pub(super) fn resolve(
        &mut self,
        now: Time,
        index: usize,
        ticket: Ticket,
        generation: Generation,
        mut answer: Answer,
    ) -> Option<Answer> {
        let slot = self.blocks.found(index);
        let floor = slot.backing.floor();
        let in_memory = floor.saturating_sub(usize::from(Bug::FloorOffByOne.active()));
        let parts = match std::mem::replace(&mut answer.payload, Payload::None) {
            Payload::Block(range) if range.start >= in_memory => {
                return Some(answer.with(Payload::Block(range)));
            }
            // An extent is requested as a whole.
            Payload::Block(range) if matches!(slot.rests(), Rest::Pieces(_)) => {
                vec![Part::Block(range)]
            }
            // The reader requests the rest again.
            Payload::Block(range) => {
                let most = BELOW_READ_MAX.min(self.config.buffers / 2).max(TIER_CHUNK);
                vec![Part::Block(range.start..range.end.min(range.start + most))]
            }
            Payload::Parts(parts) => parts,
            other => return Some(answer.with(other)),
        };
        let BlockSlot { owner, residency, .. } = slot;
        let at = owner.at;
        let disk = residency.copy().expect("INV-41: bytes that are not in memory are on a disk");
        let written = disk.written;
        let (tier, disk_slot, on_disk) = (disk.tier, disk.slot, floor.min(disk.length()));
        let (mut pieces, mut reads) = (Vec::new(), Vec::new());
        for part in parts {
            match part {
                Part::Bytes(bytes) => pieces.push(AnswerPiece::Bytes(bytes)),
                Part::Block(range) => {
                    let below = range.start..range.end.min(on_disk).max(range.start);
                    if !below.is_empty() {
                        let (around, sums) = disk.chunks(&below);
                        let from = below.start - around.start;
                        reads.push((pieces.len(), around, sums));
                        pieces.push(AnswerPiece::Awaited(from..from + below.len()));
                    }
                    if range.end > below.end {
                        let rest = slot.backing.slice(below.end..range.end);
                        pieces.push(AnswerPiece::Bytes(rest.to_vec()));
                    }
                }
            }
        }
        let bytes: usize = reads.iter().map(|(_, around, _)| around.len()).sum();
        if !self.has_buffers(bytes) {
            return Some(busy(RETRY_BUFFERS_US));
        }
        let mut asked = Vec::with_capacity(reads.len());
        for (part, around, sums) in reads {
            let into = Backing::counted(around.len(), &self.tiers.buffers, &self.config.reclaimer);
            let Ok(into) = into else { return Some(busy(RETRY_BUFFERS_US)) };
            let from = disk_slot as u64 * self.config.block_size as u64 + around.start as u64;
            asked.push((part, IoWhat::Read { at: from, into, sums }));
        }
        let reading = self.tiers.number();
        let left = asked.len();
        let (head, parts) = (answer, pieces);
        let waits = Reading { ticket, at, generation, written, head, parts, left };
        self.tiers.readings.insert(reading, waits);
        for (part, what) in asked {
            self.tiers.ask(tier, disk_slot, Doing::Read { reading, part }, what);
        }
        heats(self.blocks, self.out, now, index, bytes);
        None
    }

    /// Whether this many more bytes may be read that are not sent yet. A single reader may exceed the limit.
    pub(super) fn has_buffers(&self, bytes: usize) -> bool {
        let used = self.tiers.buffers.load(Relaxed);
        used == 0 || used + bytes <= self.config.buffers
    }

    pub(super) fn part_read(&mut self, reading: u64, part: usize, done: IoDone) {
        let Some(waits) = self.tiers.readings.get_mut(&reading) else { return };
        match done {
            IoDone::Read(read) => {
                self.tiers.counts.read += read.len() as u64;
                let AnswerPiece::Awaited(range) = &waits.parts[part] else {
                    unreachable!("asked once")
                };
                waits.parts[part] = AnswerPiece::Read(read, range.clone());
                waits.left -= 1;
                if waits.left > 0 {
                    return;
                }
            }
            failed => {
                let waits = self.tiers.readings.remove(&reading).expect("looked up above");
                let answer = self.not_read(waits.at, waits.written, failed);
                return self.out.completed.push((waits.ticket, answer));
            }
        }
        let Reading { ticket, at, generation, head, parts, .. } =
            self.tiers.readings.remove(&reading).expect("looked up above");
        let answer = match self.judged_again(at, generation) {
            Ok(_) => head.with(put_together(parts)),
            Err(refusal) => refusal,
        };
        self.out.completed.push((ticket, answer));
    }

    /// The block of an operation that waited for its reads. Its grant was checked at the beginning; if the
    /// grant was revoked since, the operation is refused (INV-29).
    pub(super) fn judged_again(
        &mut self,
        at: BlockAt,
        generation: Generation,
    ) -> Result<&mut BlockSlot, Answer> {
        let slot = self.blocks.at(at).ok_or_else(|| wrong_epoch(at))?;
        if slot.owner.generation > generation { Err(revoked()) } else { Ok(slot) }
    }

    /// The answer if bytes of a block could not be read. `written` is the number of the last write of the
    /// block's copy when the read was requested.
    pub(super) fn not_read(&mut self, at: BlockAt, written: u64, failed: IoDone) -> Answer {
        match failed {
            IoDone::Failed(why) => {
                let slot = self.blocks.at(at);
                let same = |disk: &OnDisk| disk.written == written;
                let Some(slot) = slot.filter(|slot| slot.residency.copy().is_some_and(same)) else {
                    // The copy was written meanwhile: the bytes that were read are of two writes.
                    return busy(RETRY_WRITTEN_US);
                };
                let structure = slot.owner.structure;
                let text = format!("block {} cannot be read from its disk: {why}", at.block);
                self.out.effects.push(Effect::BlockFailed { structure, at, why });
                Answer::refuse(Status::DataLost, text)
            }
            // Nothing is lost: the caller repeats the request until its deadline.
            IoDone::Away(why) => {
                let text = format!("block {} cannot be read now: {why}", at.block);
                Answer { value: RETRY_AWAY_US, ..Answer::refuse(Status::Busy, text) }
            }
            IoDone::Read(_) | IoDone::Written(_) | IoDone::Discarded => {
                unreachable!("it was to be read, and was not")
            }
        }
    }
}

fn put_together(mut parts: Vec<AnswerPiece>) -> Payload {
    if let [AnswerPiece::Read(backing, range)] = &mut parts[..] {
        return Payload::Pinned(backing.pin(range.clone()));
    }
    let mut bytes = Vec::new();
    for part in parts {
        match part {
            AnswerPiece::Bytes(part) => bytes.extend_from_slice(&part),
            AnswerPiece::Read(read, range) => bytes.extend_from_slice(read.slice(range)),
            AnswerPiece::Awaited(_) => unreachable!("all were read"),
        }
    }
    Payload::Bytes(bytes.into())
}
