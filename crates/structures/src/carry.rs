//! How a block moves whole, with its layout: a block of a file or a queue.
//!
//! Its bytes are two runs, one from the front and one to the end, which only grow towards each other during
//! the move. Sent bytes never change, so nothing is sent twice. The state beside them (seal, reservations,
//! counts) is small, and is sent while the block is frozen.
//!
//! While the block is frozen, waiting requests are not served and no time runs out; otherwise a result would
//! be recorded after the records were sent. When the block has moved, the waiting requests are answered with
//! the new block, and their clients repeat them there with the same lane and number: they did not run here.

use crate::busy;
use crate::moves::{Arrival, Movable, Parcel, Prepared, Totals, Wish};
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

/// A block that moves whole, with its layout.
pub(crate) trait Carry {
    /// The state of its move.
    fn cart(&self) -> &Cart;

    /// The same, to continue the move.
    fn cart_mut(&mut self) -> &mut Cart;

    /// Where the bytes at the front begin that can still be requested.
    fn front_start(&self, block: &Backing) -> usize;

    /// Where they end now.
    fn front_end(&self) -> usize;

    /// The bytes at the end of the block: they grow towards the front.
    fn back(&self) -> Range<usize>;

    /// Whether no payload is arriving: every request that began before the freeze was answered.
    fn is_settled(&self) -> bool;

    /// The state of the block beside its bytes. Times are given as the time left, because clocks differ.
    fn image(&self, now: Time) -> Vec<u8>;

    /// Adopts the state of another block. May be repeated.
    fn restore(&mut self, now: Time, image: &[u8]) -> Result<(), Answer>;

    /// The block serves again, here or as the new block: waiting requests are examined, and a new block
    /// repeats its reports.
    fn resume(&mut self, block: &mut Backing, now: Time, new: bool);

    /// The block serves no request any more: waiting requests get this answer.
    fn dismiss(&mut self, answer: &Answer);
}

/// The state of the move of such a block.
#[derive(Default)]
pub(crate) struct Cart {
    stage: Stage,
    /// Whether the block was frozen, and its waiting requests were not examined since.
    woken: bool,
}

#[derive(Default)]
enum Stage {
    #[default]
    Stays,
    Leaves(Leaving),
    Comes(Coming),
    Gone,
}

/// The progress of sending a block.
struct Leaving {
    /// Where the bytes at the front begin.
    from: usize,
    /// The bytes at the front were sent up to here.
    front: usize,
    /// The bytes at the end were sent from here on.
    back: usize,
    /// The time of the freeze.
    held: Option<Time>,
    /// The state of the block, and the number of its bytes that were sent.
    image: Option<(Vec<u8>, usize)>,
    /// Whether the content may belong to the other block.
    handed: bool,
}

/// The progress of receiving a block.
struct Coming {
    move_id: u64,
    bytes: u64,
    image: Vec<u8>,
    /// Whether everything has arrived and was counted.
    whole: bool,
}

impl Cart {
    /// The state of a block that was opened for this move; 0 for none.
    pub fn importing(move_id: u64) -> Cart {
        let stage = match move_id {
            0 => Stage::Stays,
            _ => Stage::Comes(Coming { move_id, bytes: 0, image: Vec::new(), whole: false }),
        };
        Cart { stage, woken: false }
    }

    /// The answer to a request that cannot run now; `None` if it can.
    #[inline]
    pub fn refuses(&self, changes: bool) -> Option<Answer> {
        match &self.stage {
            Stage::Stays => None,
            Stage::Leaves(leaving) => {
                let still = leaving.handed || changes && leaving.held.is_some();
                still.then(|| busy(RETRY_MOVE_US))
            }
            Stage::Comes(_) => Some(busy(RETRY_MOVE_US)),
            Stage::Gone => Some(gone()),
        }
    }

    /// Whether nothing may happen to the block: no request is served, and no time runs out.
    #[inline]
    pub fn is_still(&self) -> bool {
        match &self.stage {
            Stage::Stays => false,
            Stage::Leaves(leaving) => leaving.handed || leaving.held.is_some(),
            Stage::Comes(_) | Stage::Gone => true,
        }
    }

    /// Whether the block takes part in no move.
    pub fn stays(&self) -> bool {
        matches!(self.stage, Stage::Stays)
    }

    /// Whether bytes that were sent must not change.
    pub fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaves(_))
    }

    /// Whether waiting requests must be examined. Returns true once.
    pub fn wakes(&mut self) -> bool {
        std::mem::take(&mut self.woken)
    }

    /// When the block needs attention. `otherwise` is the time without a move.
    pub fn deadline(&self, otherwise: Option<Time>) -> Option<Time> {
        match (self.woken, self.is_still()) {
            (true, _) => Some(Time::ZERO),
            (false, true) => None,
            (false, false) => otherwise,
        }
    }

    fn leaving(&mut self) -> Option<&mut Leaving> {
        match &mut self.stage {
            Stage::Leaves(leaving) => Some(leaving),
            _ => None,
        }
    }

    fn coming(&mut self, move_id: u64) -> Result<&mut Coming, Answer> {
        match &mut self.stage {
            Stage::Comes(coming) if coming.move_id == move_id => Ok(coming),
            _ => Err(Answer::refuse(Status::WrongEpoch, "the block is not part of this move")),
        }
    }
}

fn gone() -> Answer {
    Answer::refuse(Status::WrongEpoch, "the content of this block has moved to another block")
}

/// Applies a part of a move, which has arrived whole.
pub(crate) fn take_part<T: Carry>(
    block: &mut T,
    backing: &mut Backing,
    operation: &Operation<'_>,
    payload: &[u8],
) -> Result<Answer, Answer> {
    let args = operation.args;
    match operation.op {
        Op::MoveRegion => {
            let part = MoveRegionRequest::decode(args)?;
            let coming = block.cart_mut().coming(part.move_id)?;
            let end = part.start.checked_add(payload.len() as u64);
            let end = end.filter(|end| *end <= backing.len() as u64);
            let fits = end.is_some() && part.end.checked_add(1) == end && !payload.is_empty();
            let range = part.start as usize..end.unwrap_or_default() as usize;
            if !fits || part.values != 0 {
                return Err(broken("a part of the move does not fit into the block"));
            }
            check_sum(payload, part.checksum)?;
            coming.bytes += payload.len() as u64;
            coming.whole = false;
            backing.slice_mut(range).copy_from_slice(payload);
            Ok(Answer::ok(0))
        }
        Op::MoveState => {
            let part = MoveStateRequest::decode(args)?;
            let coming = block.cart_mut().coming(part.move_id)?;
            check_sum(payload, part.checksum)?;
            if part.offset == 0 {
                coming.image.clear();
            }
            let end = part.offset.checked_add(payload.len() as u64);
            if end.is_none_or(|end| end > part.length) || part.length > image_most(backing.len()) {
                return Err(broken("the state of the block is too long"));
            }
            if part.offset != coming.image.len() as u64 {
                return Err(broken("a part of the state of the block is out of order"));
            }
            coming.whole = false;
            coming.image.extend_from_slice(payload);
            Ok(Answer::ok(0))
        }
        Op::MoveDone => {
            let part = MoveDoneRequest::decode(args)?;
            let coming = block.cart_mut().coming(part.move_id)?;
            if (part.entries, part.bytes) != (1, coming.bytes) {
                let text =
                    format!("{} bytes of the block arrived, not {}", coming.bytes, part.bytes);
                return Err(Answer::refuse(Status::Internal, text));
            }
            let image = std::mem::take(&mut coming.image);
            let restored = block.restore(operation.now, &image);
            let coming = block.cart_mut().coming(part.move_id)?;
            coming.image = image;
            coming.whole = restored.is_ok();
            restored.map(|()| Answer::ok(1))
        }
        other => panic!("{} is no part of a block that moves as it lies", other.name()),
    }
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

impl<T: Carry> Movable for T {
    /// Such a block requests neither a split nor a merge.
    fn wish(&mut self, _block: &Backing, _now: Time) -> Option<Wish> {
        None
    }

    fn can_leave(&self) -> bool {
        self.cart().stays()
    }

    fn wish_at(&self) -> Option<Time> {
        None
    }

    fn refused(&mut self, _now: Time, _wish: Wish, _status: Status, _why: String) {}

    fn begin_export(&mut self, block: &mut Backing, _start: u64, _end: u64) -> Result<(), Answer> {
        assert!(self.can_leave(), "INV-19: one move at a time");
        if block.floor() > 0 {
            return Err(Answer::refuse(Status::Busy, "the block is in a lower tier"));
        }
        let from = self.front_start(block);
        let (front, back) = (from, self.back().end);
        let leaving = Leaving { from, front, back, held: None, image: None, handed: false };
        self.cart_mut().stage = Stage::Leaves(leaving);
        Ok(())
    }

    fn prepare(&mut self, block: &mut Backing, most: usize) -> Prepared {
        let (end, back, settled) = (self.front_end(), self.back().start, self.is_settled());
        let most = most.clamp(PIECE_MIN, PIECE);
        let Some(leaving) = self.cart_mut().leaving() else { return Prepared::Nothing };
        if leaving.front < end {
            let range = leaving.front..end.min(leaving.front + most);
            leaving.front = range.end;
            return region(block, range);
        }
        if leaving.back > back {
            let range = back.max(leaving.back.saturating_sub(most))..leaving.back;
            leaving.back = range.start;
            return region(block, range);
        }
        let Some(now) = leaving.held.filter(|_| settled) else { return Prepared::Nothing };
        if leaving.image.is_none() {
            let image = self.image(now);
            self.cart_mut().leaving().expect("looked at above").image = Some((image, 0));
        }
        let leaving = self.cart_mut().leaving().expect("looked at above");
        let (image, sent) = leaving.image.as_mut().expect("made above");
        if *sent == image.len() {
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
        let Stage::Leaves(leaving) = &self.cart().stage else { return 0 };
        (self.front_end() - leaving.front + leaving.back - self.back().start) as u64
    }

    fn freeze(&mut self, now: Time) {
        self.cart_mut().leaving().expect("the cart is leaving").held = Some(now);
    }

    fn stands_still(&self) -> bool {
        self.is_settled()
    }

    fn thaw(&mut self) {
        let leaving = self.cart_mut().leaving().expect("the cart is leaving");
        (leaving.held, leaving.image) = (None, None);
        self.cart_mut().woken = true;
    }

    fn totals(&self) -> Totals {
        let Stage::Leaves(leaving) = &self.cart().stage else { return Totals::default() };
        let bytes = self.front_end() - leaving.from + self.back().len();
        Totals { entries: 1, bytes: bytes as u64 }
    }

    fn hand_over(&mut self) {
        self.cart_mut().leaving().expect("the cart is leaving").handed = true;
    }

    fn depart(&mut self, _now: Time, _moved: Vec<u8>) {
        let handed = self.cart_mut().leaving().is_some_and(|leaving| leaving.handed);
        assert!(handed, "INV-19: what departs is not read any more");
        self.cart_mut().stage = Stage::Gone;
        self.dismiss(&gone());
    }

    fn cancel_export(&mut self, block: &mut Backing, now: Time) {
        // The move may have been cancelled before it began.
        if self.cart_mut().leaving().is_some() {
            self.cart_mut().stage = Stage::Stays;
            self.resume(block, now, false);
        }
    }

    fn begin_import(&mut self, _move_id: u64, _start: u64, _end: u64) -> Result<(), Answer> {
        Err(Answer::refuse(Status::WrongKind, "blocks of this kind cannot be merged"))
    }

    fn takes(&self, op: Op) -> Option<Arrival> {
        matches!(op, Op::MoveRegion | Op::MoveState | Op::MoveDone).then_some(Arrival::Whole)
    }

    fn end_import(&mut self, block: &mut Backing, now: Time, move_id: u64, commit: bool) {
        let Ok(coming) = self.cart_mut().coming(move_id) else { return };
        if commit {
            assert!(coming.whole, "INV-19: only what was confirmed is committed");
            self.cart_mut().stage = Stage::Stays;
            self.resume(block, now, true);
        }
    }

    fn imports(&self, move_id: u64) -> Option<(u64, u64)> {
        match &self.cart().stage {
            Stage::Comes(coming) if coming.move_id == move_id => Some((0, u64::MAX)),
            _ => None,
        }
    }

    fn sweep(&mut self, _block: &mut Backing) -> bool {
        false
    }

    fn as_it_lies(&self) -> bool {
        true
    }
}
