//! The export of a block to a peer: the source of a move (docs/design-notes.md, "Moves").
//!
//! The block waits for its turn (`Queued`, see `turns`), requests a target from the controller (`Chosen`),
//! and copies while it serves (`Copying`). When little is left, changes wait (`Frozen`), until the target has
//! counted the data (`Counted`). Then only the decision of the controller matters (`Committing`), unless the
//! first request for it could not be sent. Every earlier stage is cancelled if the connection breaks, the
//! target refuses, or the move takes too long. A request for a target without an answer is repeated only to
//! cancel the move that it may have begun (`Unknown`).
//!
//! No I/O here: requests leave as `Post`, in order, and answers are passed in.

use super::flight::PartsInFlight;
use super::turns::{TURN_AGAIN, TURN_STALLS};
use super::{Exports, Look, SWEEP_AFTER, Source, movable};
use crate::shard::Effect;
use crate::shard::connections::{PeerKey, Post, PostPayload};
use honeycomb_structures::{MoveRequest, Parcel, Prepared};
use honeycomb_types::{BlockAt, Bug, Time};
use honeycomb_wire::data::MovedArgs;
use honeycomb_wire::messages::{MapEntry, MoveDoneRequest, MoveLanesRequest};
use honeycomb_wire::{Field, Op, Status};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Most bytes in flight while the block copies: one part, unless parts are small, so that both ends work in
/// turns. A core that sends or receives without a pause delays everything that the kernel has placed on it by
/// milliseconds.
const WINDOW: usize = 64 << 10;
/// The same, as a part of a block.
const WINDOW_SHARE: usize = 16;
/// Most bytes in flight while writers wait for the rest, or will: the block is frozen or will be full before
/// all was sent, or other blocks wait for their turn.
const WINDOW_AWAITED: usize = 2 << 20;
/// Bytes a second that an export is expected to send at most.
const PACE_MOST: u128 = 64 << 20;
/// At least this part of the range is expected to be left, because it changes.
const LEFT_SHARE: u64 = 16;
/// Bytes that one step reads: some microseconds of work between two requests.
const STEP: usize = 16 << 10;
/// The same, as a part of a block, so that a small block is not sent in one step.
const STEP_SHARE: usize = 512;
/// The range is frozen when at most this many bytes are left to send.
const FREEZE_AT: u64 = 1 << 20;
/// The same, as a part of a block, so that the whole content of a small block does not count as little.
const FREEZE_SHARE: u64 = 64;
/// The range is also frozen when at most this is left and the range was sent twice: writers are as fast as
/// the export.
const FREEZE_LATE: u64 = 8 << 20;
/// The same, as a part of a block.
const FREEZE_LATE_SHARE: u64 = 8;
/// The longest time for which the range is frozen at first, before writers are admitted again.
const FROZEN_MAX: Duration = Duration::from_millis(40);
/// A move that was frozen and thawed this many times is cancelled.
const THAWS_MAX: u32 = 5;
/// A move without a message from the target for this long is cancelled.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// The delay after which a request to the controller is repeated: for its decision on a commit, and whether
/// it has begun a move.
const ASK_CONTROLLER_AGAIN: Duration = Duration::from_millis(100);
/// Approximate bytes of the retry records in one part. Records are not divided.
const LANES_PART: usize = 32 * 1024;

/// Identifies a move at its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MoveKey {
    /// The source block.
    pub source: BlockAt,
    /// The controller's number for the move.
    pub id: u64,
}

/// A message of the controller about a move, to the source block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveWord {
    /// The target is ready for this range.
    Begin {
        /// The move.
        id: u64,
        /// The range that moves, and the target block.
        entry: MapEntry,
        /// The address of the target's server, or why it cannot be resolved.
        address: Result<SocketAddr, String>,
    },
    /// There is no target.
    Refused(Status, String),
    /// The range belongs to the target from this map version on.
    Committed(MovedArgs),
    /// The range does not belong to the target, or the controller cannot answer.
    NotCommitted(Status, String),
    /// The request to begin has no usable answer: the connection has ended, for example. The controller may
    /// have begun the move, and then its target waits for it.
    Unanswered,
    /// The last question about a commit was not sent, because there is no connection to the controller.
    NotAsked,
}

/// The progress of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerStage {
    /// Other blocks of the job move. It is looked at again at this time, if no move ends earlier.
    Queued { again: Time },
    /// A target was requested.
    Chosen,
    /// The block has cancelled the move, which the controller may have begun. The request is repeated until
    /// it is answered, and a move in the answer is cancelled.
    Unknown {
        /// When to repeat it; `None` while its answer can still arrive.
        again: Option<Time>,
    },
    /// The range is sent, and then its later changes. The block serves all requests.
    Copying,
    /// Changes of the range wait.
    Frozen { since: Time },
    /// As `Frozen`, and everything was sent; the answer to part `by` contains the target's count.
    Counted { since: Time, by: u64 },
    /// The target has all data, and the controller decides.
    Committing {
        again: Time,
        /// Whether the controller may have received the question: an earlier one was not reported as unsent.
        asked: bool,
    },
}

/// An export to a peer.
pub(super) struct PeerExport {
    request: MoveRequest,
    stage: PeerStage,
    id: u64,
    /// The range that moves, and the target block.
    entry: MapEntry,
    parts: PartsInFlight,
    /// Bytes of the range at the beginning.
    at_first: u64,
    /// Retry records that are still to be sent, once the range is frozen.
    lanes: Option<VecDeque<Vec<u8>>>,
    /// Whether the block is listed for a step.
    is_listed: bool,
    thaws: u32,
    /// Time of the last message from the target.
    heard: Time,
    /// Time of the first part.
    since: Time,
}

impl PeerExport {
    /// An export that waits for its turn.
    pub fn queued(now: Time, request: MoveRequest) -> PeerExport {
        PeerExport {
            request,
            stage: PeerStage::Queued { again: now + TURN_AGAIN },
            id: 0,
            entry: MapEntry::default(),
            parts: PartsInFlight::default(),
            at_first: 0,
            lanes: None,
            is_listed: false,
            thaws: 0,
            heard: now,
            since: now,
        }
    }

    /// The expected time until everything was sent, at the pace so far.
    pub fn expects(&self, now: Time) -> Duration {
        let sent = self.parts.sent_bytes();
        let left = self.at_first.saturating_sub(sent).max(self.at_first / LEFT_SHARE);
        let at_least = u128::from(left) * 1_000_000_000 / PACE_MOST;
        let so_far = match self.stage {
            PeerStage::Copying if sent > 0 => {
                now.since(self.since).as_nanos() * u128::from(left) / u128::from(sent)
            }
            _ => 0,
        };
        Duration::from_nanos(at_least.max(so_far).try_into().unwrap_or(u64::MAX))
    }

    /// Whether the block has cancelled a move that may have begun.
    pub fn is_unknown(&self) -> bool {
        matches!(self.stage, PeerStage::Unknown { .. })
    }

    /// Whether the export waits for its turn.
    pub fn is_queued(&self) -> bool {
        matches!(self.stage, PeerStage::Queued { .. })
    }

    /// Whether other blocks wait for this export: it is sending, or is about to. An export without progress
    /// delays none.
    pub fn has_turn(&self, now: Time) -> bool {
        let sends = match self.stage {
            PeerStage::Chosen
            | PeerStage::Copying
            | PeerStage::Frozen { .. }
            | PeerStage::Counted { .. } => true,
            PeerStage::Queued { .. } | PeerStage::Unknown { .. } | PeerStage::Committing { .. } => {
                false
            }
        };
        sends && now.since(self.heard) < TURN_STALLS
    }

    fn has_begun(&self) -> bool {
        use PeerStage::{Chosen, Queued, Unknown};
        !matches!(self.stage, Queued { .. } | Chosen | Unknown { .. })
    }

    /// When the export needs attention.
    pub fn due(&self) -> Option<Time> {
        match self.stage {
            PeerStage::Queued { again } => Some(again),
            PeerStage::Chosen => None,
            PeerStage::Unknown { again } => again,
            PeerStage::Copying => Some(self.heard + SILENCE_MAX),
            // Longer each time: otherwise a move on a machine that is short of time would never end.
            PeerStage::Frozen { since } | PeerStage::Counted { since, .. } => {
                Some(since + FROZEN_MAX * (1 << self.thaws))
            }
            PeerStage::Committing { again, .. } => Some(again),
        }
    }

    /// Closes the connection of a move that has begun.
    pub fn hang_up(&self, source: BlockAt) -> Option<Post> {
        self.has_begun().then(|| Post::HangUp(self.key(source)))
    }

    fn key(&self, source: BlockAt) -> PeerKey {
        PeerKey::Move(MoveKey { source, id: self.id })
    }

    /// Whether another part may be sent.
    fn has_room(&self, source: &Source<'_>) -> bool {
        let copying = WINDOW.min(source.block_size / WINDOW_SHARE);
        let unawaited = self.stage == PeerStage::Copying && !source.is_awaited;
        self.parts.has_room(if unawaited { copying } else { WINDOW_AWAITED })
    }

    /// The range is frozen when at most this many bytes are left, with blocks of this size.
    fn freezes_at(&self, block: usize) -> u64 {
        let block = block as u64;
        match self.parts.sent_bytes() {
            sent if sent < 2 * self.at_first => FREEZE_AT.min(block / FREEZE_SHARE),
            sent if sent < 8 * self.at_first => FREEZE_LATE.min(block / FREEZE_LATE_SHARE),
            // Writers that are faster than the export wait for it.
            _ => u64::MAX,
        }
    }

    /// Whether the export waits for operations that began before the freeze.
    fn is_settling(&self) -> bool {
        matches!(self.stage, PeerStage::Frozen { .. }) && self.lanes.is_none()
    }

    /// Continues the export in the next step.
    fn later(&mut self, source: &mut Source<'_>) {
        if !self.is_listed {
            self.is_listed = true;
            source.continue_in_steps();
        }
    }

    /// Sends as much as the window and one step allow, and freezes the range when little is left.
    fn send_parts(&mut self, source: &mut Source<'_>) {
        let step = (source.block_size / STEP_SHARE).clamp(1024, STEP);
        let mut looked_at = 0;
        while self.has_room(source) {
            if looked_at >= step {
                return self.later(source);
            }
            let moves = movable(source.structure);
            if self.stage == PeerStage::Copying
                && moves.unsent() <= self.freezes_at(source.block_size)
            {
                if !self.parts.is_empty() {
                    return; // Writers should wait only for the rest.
                }
                moves.freeze(source.now);
                self.stage = PeerStage::Frozen { since: source.now };
                self.lanes = None;
            }
            if self.is_settling() {
                if !moves.stands_still() {
                    return; // The block is looked at again when a pending payload is complete.
                }
                self.lanes = Some(self.retry_records(source));
            }
            if !matches!(self.stage, PeerStage::Copying | PeerStage::Frozen { .. }) {
                return;
            }
            match movable(source.structure).prepare(source.backing, step - looked_at) {
                Prepared::Parcel(parcel) => {
                    // A request costs something, however small it is.
                    looked_at += parcel.payload_len().max(1024);
                    self.send_parcel(parcel, source);
                    continue;
                }
                Prepared::Partly => return self.later(source),
                Prepared::Nothing => {}
            }
            let PeerStage::Frozen { since } = self.stage else {
                unreachable!("a range without unsent bytes is frozen");
            };
            if let Some(lanes) = self.lanes.as_mut().and_then(VecDeque::pop_front) {
                looked_at += lanes.len();
                let args = MoveLanesRequest { move_id: self.id }.encode();
                self.send(Op::MoveLanes, args, PostPayload::Bytes(lanes.into()), source);
                continue;
            }
            let totals = movable(source.structure).totals();
            let (entries, bytes) = (totals.entries, totals.bytes);
            self.stage = PeerStage::Counted { since, by: self.parts.next() };
            let args = MoveDoneRequest { move_id: self.id, entries, bytes }.encode();
            self.send(Op::MoveDone, args, PostPayload::Bytes(Arc::new([])), source);
        }
    }

    /// The retry records that move with the range.
    fn retry_records(&self, source: &Source<'_>) -> VecDeque<Vec<u8>> {
        let leaves = self.request == MoveRequest::Relocate && Bug::RelocateForgetsLanes.active();
        if leaves || Bug::MoveForgetsRecords.active() {
            return VecDeque::new();
        }
        let MapEntry { start, end, .. } = self.entry;
        source.lanes.export(start, end, self.request.way().gives_all(), LANES_PART).into()
    }

    fn send_parcel(&mut self, parcel: Parcel, source: &mut Source<'_>) {
        let (op, args) = parcel.request(self.id);
        let payload = match parcel {
            Parcel::Region { bytes, .. }
            | Parcel::Patch { runs: bytes, .. }
            | Parcel::State { bytes, .. } => PostPayload::Bytes(bytes),
            Parcel::Value { bytes, .. } => PostPayload::Pinned(bytes),
            Parcel::Drops(_) => PostPayload::Bytes(Arc::new([])),
        };
        self.send(op, args, payload, source);
    }

    fn send(&mut self, op: Op, args: Vec<u8>, payload: PostPayload, source: &mut Source<'_>) {
        self.parts.sent(payload.bytes().len() + args.len());
        let key = self.key(source.owner.at);
        source.out.posts.push(Post::Send { key, op, args, payload });
    }

    /// The target has all data. From now on only the decision of the controller matters.
    fn commit(&mut self, source: &mut Source<'_>) {
        movable(source.structure).hand_over();
        // Subscribers of a range can be at the target before its first change there. Those of a block that
        // moves whole stay until its end.
        if !movable(source.structure).moves_whole() {
            let to = MovedArgs { version: 0, entry: self.entry.clone() };
            source.watchers.hand_over(0, &to, &mut source.out.notices);
        }
        self.ask_for_commit(source);
    }

    fn ask_for_commit(&mut self, source: &mut Source<'_>) {
        let asked = matches!(self.stage, PeerStage::Committing { .. });
        self.stage = PeerStage::Committing { again: source.now + ASK_CONTROLLER_AGAIN, asked };
        let (structure, at) = (source.owner.structure, source.owner.at);
        let (id, target, bytes) = (self.id, self.entry.at(), self.parts.sent_bytes());
        source.out.effects.push(Effect::CommitMove { structure, at, id, target, bytes });
    }
}

impl Exports {
    /// The turn of the export has come.
    pub(super) fn take_turn(&mut self, source: &mut Source<'_>) {
        let peer = self.peer.as_mut().expect("the caller has found the export");
        assert!(peer.is_queued(), "INV-59: an export begins again, at {:?}", peer.stage);
        (peer.stage, peer.heard) = (PeerStage::Chosen, source.now);
        self.request_target(source);
    }

    /// Requests a target from the controller.
    fn request_target(&self, source: &mut Source<'_>) {
        let peer = self.peer.as_ref().expect("the caller has found the export");
        let start = match peer.request {
            MoveRequest::Split { start } => start,
            MoveRequest::Merge | MoveRequest::Relocate => source.owner.start,
        };
        let (structure, at, way) = (source.owner.structure, source.owner.at, peer.request.way());
        source.out.effects.push(Effect::BeginMove { structure, at, start, way });
    }

    /// Handles a message of the controller; returns false if the block has no export.
    pub(super) fn word(&mut self, source: &mut Source<'_>, word: MoveWord) -> bool {
        let Some(peer) = &mut self.peer else { return false };
        let (request, now) = (peer.request, source.now);
        match (word, peer.stage) {
            (MoveWord::Begin { id, entry, address }, PeerStage::Chosen) => {
                source.successor.full.ends();
                self.begin(source, id, entry, address);
            }
            (MoveWord::Refused(status, why), PeerStage::Chosen) => {
                self.peer = None;
                self.refused(source, request, status, why);
            }
            (MoveWord::Unanswered, PeerStage::Chosen) => {
                peer.stage = PeerStage::Unknown { again: Some(now + ASK_CONTROLLER_AGAIN) };
                if Bug::BeginNotRepeated.active() {
                    self.peer = None;
                }
                let why = "the controller did not answer".into();
                self.refused(source, request, Status::Unavailable, why);
            }
            (word, PeerStage::Unknown { .. }) => self.answer_to_unknown(source, word),
            (MoveWord::Committed(moved), PeerStage::Committing { .. }) => {
                self.depart(source, &moved);
            }
            // The controller has removed the block from its structure: the answer about the commit was lost.
            // The block serves no request again.
            (MoveWord::NotCommitted(Status::WrongEpoch, _), PeerStage::Committing { .. })
                if movable(source.structure).moves_whole() =>
            {
                movable(source.structure).depart(now, Vec::new());
                self.end(source);
            }
            // The move was cancelled, or the structure or the block has ended.
            (
                MoveWord::NotCommitted(Status::Removed | Status::NotFound | Status::WrongEpoch, _),
                PeerStage::Committing { .. },
            ) => self.cancel(source, false),
            // The controller has not decided, and will not: requests that change the range need not wait for
            // its return.
            (MoveWord::NotAsked, PeerStage::Committing { asked: false, .. }) => {
                self.cancel(source, true);
            }
            // No other message is a decision. The question is repeated, and the range waits for the answer.
            _ => {}
        }
        true
    }

    /// Handles a message of the controller about a move that the block has cancelled and that may have begun.
    fn answer_to_unknown(&mut self, source: &mut Source<'_>, word: MoveWord) {
        match word {
            MoveWord::Begin { id, .. } => {
                self.last_move = self.last_move.max(id);
                let (structure, at) = (source.owner.structure, source.owner.at);
                source.out.effects.push(Effect::CancelMove { structure, at, id });
                self.peer = None;
            }
            // The controller is away, and the question remains.
            MoveWord::Unanswered | MoveWord::Refused(Status::Unavailable, _) => {
                let peer = self.peer.as_mut().expect("the caller has found the export");
                peer.stage = PeerStage::Unknown { again: Some(source.now + ASK_CONTROLLER_AGAIN) };
            }
            MoveWord::Refused(..) => self.peer = None,
            // About an earlier move.
            MoveWord::Committed(_) | MoveWord::NotCommitted(..) | MoveWord::NotAsked => {}
        }
    }

    /// The export of this move, if it has begun and has not ended.
    fn begun(&mut self, id: u64) -> Option<&mut PeerExport> {
        self.peer.as_deref_mut().filter(|peer| peer.has_begun() && peer.id == id)
    }

    /// Handles the answer to a part; returns false if it is not a part of the present export.
    pub(super) fn answered(&mut self, source: &mut Source<'_>, id: u64, status: Status) -> bool {
        let Some(peer) = self.begun(id) else { return false };
        peer.heard = source.now;
        let answered = peer.parts.answered();
        match (status, peer.stage) {
            (_, PeerStage::Committing { .. }) => {}
            (Status::Ok, PeerStage::Counted { by, .. })
                if by == answered || Bug::CommitsUncounted.active() =>
            {
                peer.commit(source);
            }
            (Status::Ok, _) => peer.send_parts(source),
            (status, _) => {
                let is_whole = peer.request == MoveRequest::Relocate;
                self.cancel(source, true);
                if is_whole && status == Status::BlockFull {
                    movable(source.structure).did_not_fit(source.now);
                }
            }
        }
        true
    }

    /// Handles the loss of the connection; returns whether the export has ended with it.
    pub(super) fn lost(&mut self, source: &mut Source<'_>, id: u64) -> bool {
        let Some(peer) = self.begun(id) else { return false };
        let ends = !matches!(peer.stage, PeerStage::Committing { .. });
        if ends {
            self.cancel(source, true);
        }
        ends
    }

    /// Continues the export after a change of the block, and handles its deadline.
    pub(super) fn look_at_peer(&mut self, source: &mut Source<'_>) -> Look {
        let peer = self.peer.as_mut().expect("the caller has found the export");
        if peer.is_settling() && source.structure.movable().is_some_and(|m| m.stands_still()) {
            peer.send_parts(source);
        }
        if peer.due().is_none_or(|due| due > source.now) {
            return Look::Nothing;
        }
        match peer.stage {
            PeerStage::Queued { .. } => {
                peer.stage = PeerStage::Queued { again: source.now + TURN_AGAIN };
                return Look::StillQueued;
            }
            PeerStage::Chosen => {}
            PeerStage::Unknown { .. } => {
                peer.stage = PeerStage::Unknown { again: None };
                self.request_target(source);
            }
            PeerStage::Frozen { .. } | PeerStage::Counted { .. } if peer.thaws < THAWS_MAX => {
                peer.thaws += 1;
                peer.stage = PeerStage::Copying;
                // Writers are admitted before it continues, because a part or the count is unanswered.
                movable(source.structure).thaw();
            }
            PeerStage::Copying | PeerStage::Frozen { .. } | PeerStage::Counted { .. } => {
                self.cancel(source, true);
            }
            PeerStage::Committing { .. } => peer.ask_for_commit(source),
        }
        Look::Nothing
    }

    fn begin(
        &mut self,
        source: &mut Source<'_>,
        id: u64,
        entry: MapEntry,
        address: Result<SocketAddr, String>,
    ) {
        // A move that was cancelled here, before the controller has received the cancellation, is not begun
        // again: parts of the first try may be in flight, and would count as new ones (INV-19).
        let again = id <= self.last_move && !Bug::MoveBegunTwice.active();
        self.last_move = self.last_move.max(id);
        let peer = self.peer.as_mut().expect("the caller has found the export");
        peer.id = id;
        let address = address.ok().filter(|_| !again);
        let moves = movable(source.structure);
        let begun =
            |_: &SocketAddr| moves.begin_export(source.backing, entry.start, entry.end).is_ok();
        let Some(address) = address.filter(begun) else { return self.cancel(source, true) };
        peer.entry = entry;
        peer.stage = PeerStage::Copying;
        peer.at_first = movable(source.structure).unsent();
        (peer.heard, peer.since) = (source.now, source.now);
        let (key, target) = (peer.key(source.owner.at), peer.entry.at());
        source.out.posts.push(Post::Dial { key, address, target });
        peer.send_parts(source);
    }

    /// Continues the export for one step, if the block is listed for one.
    pub(super) fn step(&mut self, source: &mut Source<'_>) -> bool {
        let Some(peer) = self.peer.as_deref_mut().filter(|peer| peer.is_listed) else {
            return false;
        };
        peer.is_listed = false;
        peer.send_parts(source);
        true
    }

    /// The move is committed.
    fn depart(&mut self, source: &mut Source<'_>, moved: &MovedArgs) {
        let now = source.now;
        movable(source.structure).depart(now, moved.encode());
        if movable(source.structure).moves_whole() {
            source.watchers.hand_over(0, moved, &mut source.out.notices);
        }
        let first = self.end(source).entry.start;
        if first > source.owner.start {
            source.owner.end = first - 1;
        }
        self.sweep_at = Some(now + SWEEP_AFTER);
    }

    /// Cancels the move. `report` if the controller does not know that yet.
    fn cancel(&mut self, source: &mut Source<'_>, report: bool) {
        movable(source.structure).cancel_export(source.backing, source.now);
        self.postpone_departure(source.now);
        let id = self.end(source).id;
        if report {
            let (structure, at) = (source.owner.structure, source.owner.at);
            source.out.effects.push(Effect::CancelMove { structure, at, id });
        }
    }

    /// Ends the export, and closes its connection.
    fn end(&mut self, source: &mut Source<'_>) -> Box<PeerExport> {
        let peer = self.peer.take().expect("the caller has found the export");
        source.out.posts.push(Post::HangUp(peer.key(source.owner.at)));
        peer
    }
}
