//! How a block migrates whole, with its layout: a block of a file, of a queue, or of a custom kind.
//!
//! Its bytes are two runs, one from the front and one to the end, which only grow towards each other during
//! the migration. Sent bytes never change, so nothing is sent twice. The state beside them (seal,
//! reservations, counts) is small, and is sent while the block is frozen.
//!
//! While the block is frozen, waiting requests are not served and no time runs out; otherwise a result would
//! be recorded after the records were sent. When the block has migrated, the waiting requests are answered
//! with the new block, and their clients repeat them there with the same lane and number: they did not run
//! here.

use crate::busy;
use crate::moves::{Arrival, Movable, MoveRequest, Parcel, Prepared, Totals};
use crate::{Answer, Operation};
use honeycomb_block::Backing;
use honeycomb_types::Time;
use honeycomb_wire::messages::{MoveDoneRequest, MoveRegionRequest, MoveStateRequest};
use honeycomb_wire::{Field, Op, Status, checksum};
use std::ops::Range;
use std::sync::Arc;

/// Most bytes of one part. A part arrives whole.
const PIECE: usize = 32 * 1024;
/// Fewest bytes of one part, unless fewer are left.
const PIECE_MIN: usize = 1024;
/// Most bytes of the state of a block of this size. A queue's block of empty items, all of them reserved, has
/// a state of five times its size.
fn image_most(size: usize) -> u64 {
    6 * size as u64 + 4096
}

/// Delay of requests while the block is frozen, in microseconds.
const RETRY_MOVE_US: u64 = 500;

/// The content of a block that migrates whole, with its layout.
pub trait Migrate {
    /// Where the bytes at the front begin that can still be requested.
    fn front_start(&self, block: &Backing) -> usize;

    /// Where they end now.
    fn front_end(&self) -> usize;

    /// The bytes at the end of the block: they grow towards the front. Their end stays the same while the
    /// block is sent, also when its capacity grows: the controller may have given the move up, and grants a
    /// larger one before the block knows.
    fn back(&self) -> Range<usize>;

    /// Whether no payload is arriving: every request that began before the freeze was answered.
    fn is_settled(&self) -> bool;

    /// The state of the block beside its bytes: at most 6 times the block's size and 4 KiB. Times are given
    /// as the time left, because clocks differ.
    fn image(&self, now: Time) -> Vec<u8>;

    /// Adopts the state of another block, whose bytes are in `block`. Both are what another server has sent:
    /// a state that contradicts itself or the bytes is refused (`Status::BadFrame`). May be repeated.
    fn restore(&mut self, block: &Backing, now: Time, image: &[u8]) -> Result<(), Answer>;

    /// The block serves again, here or as the new block: waiting requests are examined, and a new block
    /// repeats its reports.
    fn resume(&mut self, block: &mut Backing, now: Time, new: bool);

    /// The block serves no request any more: waiting requests get this answer.
    fn dismiss(&mut self, answer: &Answer);
}

/// A content, and its migration to or from another block, which decides whether it serves requests.
pub struct Migrating<T> {
    content: T,
    stage: Stage,
    /// Whether the block was frozen, and its waiting requests were not examined since.
    thawed: bool,
}

enum Stage {
    /// The block takes part in no migration.
    Resident,
    Sending(Sending),
    Receiving(Receiving),
    /// The content belongs to the other block.
    Migrated,
}

/// The progress of sending a block.
struct Sending {
    /// Where the bytes at the front begin.
    from: usize,
    /// The bytes at the front were sent up to here.
    front: usize,
    /// The bytes at the end were sent from here on.
    back: usize,
    /// The time of the freeze.
    frozen: Option<Time>,
    /// The state of the block, and the number of its bytes that were sent.
    image: Option<(Vec<u8>, usize)>,
    /// Whether the content may belong to the other block.
    handed: bool,
}

/// The progress of receiving a block.
struct Receiving {
    move_id: u64,
    bytes: u64,
    image: Vec<u8>,
    /// The announced length of the image; `None` before its first piece.
    length: Option<u64>,
    /// Whether everything has arrived and was counted.
    whole: bool,
}

impl<T> Migrating<T> {
    /// The content of a block that was opened for this move; 0 for none.
    pub fn new(content: T, move_id: u64) -> Migrating<T> {
        let stage = match move_id {
            0 => Stage::Resident,
            _ => {
                let (image, length) = (Vec::new(), None);
                Stage::Receiving(Receiving { move_id, bytes: 0, image, length, whole: false })
            }
        };
        Migrating { content, stage, thawed: false }
    }

    /// The content, at any stage of its migration.
    #[inline]
    pub fn content(&self) -> &T {
        &self.content
    }

    /// The same, for work that a request before the freeze has begun, or that changes nothing.
    #[inline]
    pub fn content_mut(&mut self) -> &mut T {
        &mut self.content
    }

    /// The content, for a request; `Err` with the answer if the request cannot run now.
    #[inline]
    pub fn serve(&mut self, changes: bool) -> Result<&mut T, Answer> {
        match &self.stage {
            Stage::Resident => Ok(&mut self.content),
            Stage::Sending(sending) if sending.handed || changes && sending.frozen.is_some() => {
                Err(busy(RETRY_MOVE_US))
            }
            Stage::Sending(_) => Ok(&mut self.content),
            Stage::Receiving(_) => Err(busy(RETRY_MOVE_US)),
            Stage::Migrated => Err(migrated()),
        }
    }

    /// Whether nothing may happen to the block: no request is served, and no time runs out.
    #[inline]
    pub fn is_frozen(&self) -> bool {
        match &self.stage {
            Stage::Resident => false,
            Stage::Sending(sending) => sending.handed || sending.frozen.is_some(),
            Stage::Receiving(_) | Stage::Migrated => true,
        }
    }

    /// Whether the block takes part in no migration.
    pub fn is_resident(&self) -> bool {
        matches!(self.stage, Stage::Resident)
    }

    /// Whether bytes that were sent must not change.
    #[inline]
    pub fn is_sending(&self) -> bool {
        matches!(self.stage, Stage::Sending(_))
    }

    /// The waiting requests are examined now.
    pub fn woken(&mut self) {
        self.thawed = false;
    }

    /// When the block needs attention. `otherwise` is the time without a migration.
    pub fn deadline(&self, otherwise: Option<Time>) -> Option<Time> {
        match (self.thawed, self.is_frozen()) {
            (true, _) => Some(Time::ZERO),
            (false, true) => None,
            (false, false) => otherwise,
        }
    }

    fn sending(&mut self) -> Option<&mut Sending> {
        match &mut self.stage {
            Stage::Sending(sending) => Some(sending),
            _ => None,
        }
    }

    fn receiving(&mut self, move_id: u64) -> Result<&mut Receiving, Answer> {
        match &mut self.stage {
            Stage::Receiving(receiving) if receiving.move_id == move_id => Ok(receiving),
            _ => Err(Answer::refuse(Status::WrongEpoch, "the block is not part of this move")),
        }
    }
}

impl<T: Migrate> Migrating<T> {
    /// Applies a part of a migration, which has arrived whole.
    pub fn receive(
        &mut self,
        backing: &mut Backing,
        operation: &Operation<'_>,
        payload: &[u8],
    ) -> Result<Answer, Answer> {
        let args = operation.args;
        match operation.op {
            Op::MoveRegion => {
                let part = MoveRegionRequest::decode(args)?;
                self.receiving(part.move_id)?.region(backing, &part, payload)
            }
            Op::MoveState => {
                let part = MoveStateRequest::decode(args)?;
                self.receiving(part.move_id)?.state(backing, &part, payload)
            }
            Op::MoveDone => {
                let part = MoveDoneRequest::decode(args)?;
                let image = self.receiving(part.move_id)?.complete_image(&part)?;
                let restored = self.content.restore(backing, operation.now, &image);
                let receiving = self.receiving(part.move_id)?;
                receiving.image = image;
                receiving.whole = restored.is_ok();
                restored.map(|()| Answer::ok(1))
            }
            other => panic!("{} is no part of a block that migrates whole", other.name()),
        }
    }
}

impl Receiving {
    /// Bytes of the block.
    fn region(
        &mut self,
        backing: &mut Backing,
        part: &MoveRegionRequest,
        payload: &[u8],
    ) -> Result<Answer, Answer> {
        let end = part.start.checked_add(payload.len() as u64);
        let end = end.filter(|end| *end <= backing.len() as u64);
        let fits = end.is_some() && part.end.checked_add(1) == end && !payload.is_empty();
        let range = part.start as usize..end.unwrap_or_default() as usize;
        if !fits || part.values != 0 {
            return Err(broken("a part of the move does not fit into the block"));
        }
        check_sum(payload, part.checksum)?;
        self.bytes += payload.len() as u64;
        self.whole = false;
        backing.slice_mut(range).copy_from_slice(payload);
        Ok(Answer::ok(0))
    }

    /// A piece of the state beside them.
    fn state(
        &mut self,
        backing: &Backing,
        part: &MoveStateRequest,
        payload: &[u8],
    ) -> Result<Answer, Answer> {
        check_sum(payload, part.checksum)?;
        if part.offset == 0 {
            self.image.clear();
        }
        let end = part.offset.checked_add(payload.len() as u64);
        if end.is_none_or(|end| end > part.length) || part.length > image_most(backing.len()) {
            return Err(broken("the state of the block is too long"));
        }
        let expected = if part.offset == 0 { Some(part.length) } else { self.length };
        if part.offset != self.image.len() as u64 || expected != Some(part.length) {
            return Err(broken("a part of the state of the block is out of order"));
        }
        (self.length, self.whole) = (expected, false);
        self.image.extend_from_slice(payload);
        Ok(Answer::ok(0))
    }

    /// Takes the state out, if everything that was sent has arrived.
    fn complete_image(&mut self, part: &MoveDoneRequest) -> Result<Vec<u8>, Answer> {
        if (part.entries, part.bytes) != (1, self.bytes) {
            let text = format!("{} bytes of the block arrived, not {}", self.bytes, part.bytes);
            return Err(Answer::refuse(Status::Internal, text));
        }
        if self.length != Some(self.image.len() as u64) {
            let text = "the state of the block has not arrived, or not all of it";
            return Err(Answer::refuse(Status::Internal, text));
        }
        Ok(std::mem::take(&mut self.image))
    }
}

fn migrated() -> Answer {
    Answer::refuse(Status::WrongEpoch, "the content of this block has moved to another block")
}

fn check_sum(payload: &[u8], sum: u64) -> Result<(), Answer> {
    match checksum(payload) == sum {
        true => Ok(()),
        false => Err(broken("a part of the move has the wrong checksum")),
    }
}

/// The refusal of a part that the other block cannot have sent.
pub(crate) fn broken(why: &str) -> Answer {
    Answer::refuse(Status::BadFrame, why)
}

fn region(block: &Backing, range: Range<usize>) -> Prepared {
    let bytes: Arc<[u8]> = block.slice(range.clone()).into();
    let (start, end) = (range.start as u64, range.end as u64 - 1);
    let checksum = checksum(&bytes);
    Prepared::Parcel(Parcel::Region { start, end, values: 0, checksum, bytes })
}

impl<T: Migrate> Movable for Migrating<T> {
    /// Such a block requests neither a split nor a merge.
    fn move_request(&mut self, _block: &Backing, _now: Time) -> Option<MoveRequest> {
        None
    }

    fn can_leave(&self) -> bool {
        self.is_resident()
    }

    fn move_request_due(&self) -> Option<Time> {
        None
    }

    fn refused(&mut self, _now: Time, _request: MoveRequest, _status: Status, _why: String) {}

    fn begin_export(&mut self, block: &mut Backing, _start: u64, _end: u64) -> Result<(), Answer> {
        assert!(self.can_leave(), "INV-19: one move at a time");
        if block.floor() > 0 {
            return Err(Answer::refuse(Status::Busy, "the block is in a lower tier"));
        }
        let from = self.content.front_start(block);
        let (front, back) = (from, self.content.back().end);
        let sending = Sending { from, front, back, frozen: None, image: None, handed: false };
        self.stage = Stage::Sending(sending);
        Ok(())
    }

    fn prepare(&mut self, block: &mut Backing, most: usize) -> Prepared {
        let Stage::Sending(sending) = &mut self.stage else { return Prepared::Nothing };
        let (end, back) = (self.content.front_end(), self.content.back().start);
        let most = most.clamp(PIECE_MIN, PIECE);
        if sending.front < end {
            let range = sending.front..end.min(sending.front + most);
            sending.front = range.end;
            return region(block, range);
        }
        if sending.back > back {
            let range = back.max(sending.back.saturating_sub(most))..sending.back;
            sending.back = range.start;
            return region(block, range);
        }
        let settled = self.content.is_settled();
        let Some(now) = sending.frozen.filter(|_| settled) else { return Prepared::Nothing };
        // An empty state is sent, too: it replaces one that was sent before a thaw.
        let begins = sending.image.is_none();
        let (image, sent) = sending.image.get_or_insert_with(|| (self.content.image(now), 0));
        if *sent == image.len() && !begins {
            return Prepared::Nothing;
        }
        let (offset, length) = (*sent as u64, image.len() as u64);
        let piece = *sent..image.len().min(*sent + most);
        *sent = piece.end;
        let bytes: Arc<[u8]> = image[piece].into();
        let checksum = checksum(&bytes);
        Prepared::Parcel(Parcel::State { offset, length, checksum, bytes })
    }

    fn unsent(&self) -> u64 {
        let Stage::Sending(sending) = &self.stage else { return 0 };
        let (front, back) = (self.content.front_end(), self.content.back().start);
        let sent = (sending.front, sending.back);
        assert!(sent.0 <= front && back <= sent.1, "INV-19: {sent:?} are sent, of {front}, {back}");
        (front - sending.front + sending.back - back) as u64
    }

    fn freeze(&mut self, now: Time) {
        self.sending().expect("the block is being sent").frozen = Some(now);
    }

    fn stands_still(&self) -> bool {
        self.content.is_settled()
    }

    fn thaw(&mut self) {
        let sending = self.sending().expect("the block is being sent");
        (sending.frozen, sending.image) = (None, None);
        self.thawed = true;
    }

    fn totals(&self) -> Totals {
        let Stage::Sending(sending) = &self.stage else { return Totals::default() };
        let bytes = self.content.front_end() - sending.from + self.content.back().len();
        Totals { entries: 1, bytes: bytes as u64 }
    }

    fn hand_over(&mut self) {
        self.sending().expect("the block is being sent").handed = true;
    }

    fn depart(&mut self, _now: Time, _moved: Vec<u8>) {
        let handed = self.sending().is_some_and(|sending| sending.handed);
        assert!(handed, "INV-19: content departs that may still be read");
        self.stage = Stage::Migrated;
        self.content.dismiss(&migrated());
    }

    fn cancel_export(&mut self, block: &mut Backing, now: Time) {
        // The move may have been cancelled before it began.
        if self.is_sending() {
            self.stage = Stage::Resident;
            self.content.resume(block, now, false);
        }
    }

    fn begin_import(&mut self, _move_id: u64, _start: u64, _end: u64) -> Result<(), Answer> {
        Err(Answer::refuse(Status::WrongKind, "blocks of this kind cannot be merged"))
    }

    fn takes(&self, op: Op) -> Option<Arrival> {
        matches!(op, Op::MoveRegion | Op::MoveState | Op::MoveDone).then_some(Arrival::Whole)
    }

    fn end_import(&mut self, block: &mut Backing, now: Time, move_id: u64, commit: bool) {
        let Ok(receiving) = self.receiving(move_id) else { return };
        if commit {
            assert!(receiving.whole, "INV-19: content is committed that was not confirmed");
            self.stage = Stage::Resident;
            self.content.resume(block, now, true);
        }
    }

    fn imports(&self, move_id: u64) -> Option<(u64, u64)> {
        match &self.stage {
            Stage::Receiving(receiving) if receiving.move_id == move_id => Some((0, u64::MAX)),
            _ => None,
        }
    }

    fn sweep(&mut self, _block: &mut Backing) -> bool {
        false
    }

    fn moves_whole(&self) -> bool {
        true
    }
}
