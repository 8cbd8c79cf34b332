//! Which hashes a block owns, and which of them can be used while a range moves to or from another block.

use crate::{Answer, Payload};
use honeycomb_types::Bug;
use honeycomb_wire::Status;

/// Delay of a change of a range that is about to belong to another block, in microseconds.
const RETRY_FROZEN_US: u64 = 500;
/// Most departed ranges whose targets a block remembers. The controller knows all.
const DEPARTED_MAX: usize = 64;

/// The progress of a departing range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// The range is copied and served.
    Copying,
    /// The range is read and not changed.
    Frozen,
    /// The range is not read any more.
    Handed,
}

/// A range that moves to another block. It ends where the block's range ends.
struct Departing {
    start: u64,
    end: u64,
    phase: Phase,
}

/// A range that moves here.
struct Arriving {
    start: u64,
    end: u64,
    /// Whether everything has arrived and was counted: the controller may commit the move.
    whole: bool,
}

/// A departed range, and its target.
struct Departed {
    start: u64,
    end: u64,
    /// Encoded arguments of `Moved`.
    moved: Box<[u8]>,
}

impl Departed {
    /// Whether the departed range has a hash in this range.
    fn meets(&self, start: u64, end: u64) -> bool {
        self.start <= end && start <= self.end
    }
}

/// The range of hashes that a block owns, and the ranges that move.
pub(super) struct Ownership {
    start: u64,
    end: u64,
    /// Whether every hash of the range can be used because no part of it is being moved.
    calm: bool,
    departing: Option<Departing>,
    arriving: Option<Arriving>,
    /// Ranges that have moved away, the newest first.
    departed: Vec<Departed>,
    /// Whether the whole range has moved away.
    empty_handed: bool,
}

/// The place of a range that has arrived, relative to the range that the block had.
pub(super) enum Joined {
    /// It is the whole range: the block was opened for this move.
    Whole,
    Before,
    After,
}

impl Ownership {
    /// The hashes from `start` to `end`, inclusive.
    pub fn new(start: u64, end: u64) -> Ownership {
        assert!(start <= end, "INV-17: a block owns hashes");
        Ownership {
            start,
            end,
            calm: true,
            departing: None,
            arriving: None,
            departed: Vec::new(),
            empty_handed: false,
        }
    }

    /// First hash.
    #[inline]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Last hash, inclusive.
    #[inline]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Whether the block shares the hashes with other blocks.
    pub fn is_part(&self) -> bool {
        self.start > 0 || self.end < u64::MAX
    }

    /// Whether the whole range has moved away.
    pub fn is_empty_handed(&self) -> bool {
        self.empty_handed
    }

    /// Whether a range moves to or from the block.
    pub fn is_moving(&self) -> bool {
        self.departing.is_some() || self.arriving.is_some()
    }

    /// Whether a hash can be used for a read or a change: otherwise the answer.
    #[inline]
    pub fn admit(&self, hash: u64, change: bool) -> Result<(), Answer> {
        match self.calm && self.start <= hash && hash <= self.end {
            true => Ok(()),
            false => self.judge(hash, change),
        }
    }

    /// As `admit`, for a hash outside of the range, or while a range moves.
    fn judge(&self, hash: u64, change: bool) -> Result<(), Answer> {
        self.need_arrived(hash, change)?;
        if hash < self.start || hash > self.end || self.empty_handed {
            return Err(self.departed_to(hash).unwrap_or_else(elsewhere));
        }
        let Some(departing) = &self.departing else { return Ok(()) };
        let least = if change { Phase::Frozen } else { Phase::Handed };
        let moves = hash >= departing.start && hash <= departing.end;
        if change && Bug::MoveWritesFrozen.active() || !change && Bug::MoveServesLate.active() {
            return Ok(());
        }
        if moves && departing.phase >= least { Err(waits()) } else { Ok(()) }
    }

    /// Whether no range with this hash is being sent here. Until everything has arrived the other block
    /// serves the range, so that only a caller with an old map comes here: it is redirected. From then on the
    /// range may belong to this block at any moment, and the caller waits.
    ///
    /// A `change`, or a read in a request that is recorded for retries, is redirected by `Moved` alone, which
    /// is recorded: a delayed copy of a request that was answered `WrongRange` could run here after the move.
    /// It waits if this block does not remember the target of the range.
    #[inline]
    pub fn need_arrived(&self, hash: u64, change: bool) -> Result<(), Answer> {
        if self.calm {
            return Ok(());
        }
        let arriving =
            self.arriving.as_ref().filter(|range| range.start <= hash && hash <= range.end);
        let Some(arriving) = arriving.filter(|_| !Bug::MoveServesEarly.active()) else {
            return Ok(());
        };
        if arriving.whole || Bug::ImportMakesReadersWait.active() {
            return Err(waits());
        }
        let unknown = || if change { waits() } else { elsewhere() };
        Err(self.departed_to(hash).unwrap_or_else(unknown))
    }

    /// The answer for a hash of a departed range that this block remembers.
    fn departed_to(&self, hash: u64) -> Option<Answer> {
        let gone = self.departed.iter().find(|gone| gone.start <= hash && hash <= gone.end)?;
        Some(Answer { status: Status::Moved, args: gone.moved.to_vec(), ..Answer::ok(0) })
    }

    /// The last hash up to which all hashes from `hash` on can be read now.
    pub fn readable_from(&self, hash: u64) -> u64 {
        match &self.departing {
            Some(range) if range.phase == Phase::Handed && range.start > hash => range.start - 1,
            _ => self.end,
        }
    }

    /// The hashes from `start` on begin to move to another block.
    pub fn begin_departure(&mut self, start: u64) {
        self.departing = Some(Departing { start, end: self.end, phase: Phase::Copying });
    }

    /// Changes the use of the departing range.
    pub fn set_phase(&mut self, phase: Phase) {
        let range = self.departing.as_mut().expect("a range is on its way");
        assert!(range.phase != Phase::Handed, "INV-19: a range that was handed over is taken back");
        range.phase = phase;
        self.update_calm();
    }

    /// The departing range stays.
    pub fn cancel_departure(&mut self) {
        self.departing = None;
        self.update_calm();
    }

    /// The departing range belongs to the block that these arguments of `Moved` name.
    pub fn depart(&mut self, moved: Vec<u8>) {
        let range =
            self.departing.take().expect("INV-19: a range departs that was not handed over");
        assert_eq!(range.phase, Phase::Handed, "INV-19: content departs that may still be read");
        let Departing { start, end, .. } = range;
        self.departed.truncate(DEPARTED_MAX - 1);
        self.departed.insert(0, Departed { start, end, moved: moved.into() });
        match start == self.start {
            true => self.empty_handed = true,
            false => self.end = start - 1,
        }
        self.update_calm();
    }

    /// Whether a range could move here that a neighbour owns.
    pub fn can_join(&self, start: u64, end: u64) -> bool {
        let beside =
            end.checked_add(1) == Some(self.start) || self.end.checked_add(1) == Some(start);
        beside && !self.is_moving() && !self.empty_handed
    }

    /// A range begins to move here, which is a neighbour's or the block's own.
    pub fn begin_arrival(&mut self, start: u64, end: u64) {
        self.arriving = Some(Arriving { start, end, whole: false });
        self.calm = false;
    }

    /// Sets whether everything of the arriving range has arrived and was counted.
    pub fn set_whole(&mut self, whole: bool) {
        self.arriving.as_mut().expect("a part of a move was admitted").whole = whole;
    }

    /// The arriving range belongs to the block.
    pub fn arrive(&mut self) -> Joined {
        let range = self.arriving.take().expect("a range that was sent here");
        assert!(range.whole, "INV-19: content is committed that was not confirmed");
        let joined = if range.start == self.start && range.end == self.end {
            Joined::Whole
        } else if range.start > self.end {
            self.end = range.end;
            Joined::After
        } else {
            self.start = range.start;
            Joined::Before
        };
        self.departed.retain(|gone| !gone.meets(range.start, range.end));
        self.update_calm();
        joined
    }

    /// The arriving range stays at the other block.
    pub fn cancel_arrival(&mut self) {
        self.arriving = None;
        self.update_calm();
    }

    fn update_calm(&mut self) {
        let frozen = self.departing.as_ref().is_some_and(|range| range.phase >= Phase::Frozen);
        self.calm = !frozen && self.arriving.is_none() && !self.empty_handed;
    }
}

/// The answer for a hash of another block.
fn elsewhere() -> Answer {
    Answer::refuse(Status::WrongRange, "the key belongs to another block")
}

/// The answer for a hash that is about to belong to another block, or to this one.
fn waits() -> Answer {
    let payload = Payload::None;
    Answer { status: Status::Busy, value: RETRY_FROZEN_US, args: Vec::new(), payload }
}
