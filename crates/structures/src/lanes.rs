//! Retry records: the next expected mutation of each lane, and the answers to the last ones.
//!
//! Every mutation of a block passes here before its structure sees it. So a repeated request takes effect
//! once (INV-16), and pipelined ones keep their order even after `Busy`.

use crate::{Answer, Payload};
use hashbrown::HashMap;
use honeycomb_types::limits::{LANES_PER_BLOCK_MAX, RETRY_RECORD_BYTES_MAX, RETRY_WINDOW_MS};
use honeycomb_types::{Bug, LaneId, Sequence, SessionId, Time};
use honeycomb_wire::{Field, Malformed, Reader, Status};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// A lane is forgotten when it has been idle for this long. No client sends a copy of a request after half of
/// it, and no copy arrives later than `MESSAGE_LIFE_MS` after it was sent.
const IDLE_MAX: Duration = Duration::from_millis(2 * RETRY_WINDOW_MS);
/// A lane is forgotten no sooner than this after a call of `expire` found it idle for `IDLE_MAX`. After a
/// pause, a server reads the requests that arrived before the pause within this time (ADR 0044).
const READ_MAX: Duration = Duration::from_secs(2);
/// Lanes that one call of `expire` inspects.
const EXPIRE_STEP: usize = 32;
/// Calls of `expire` in one call of `expire_idle`.
const EXPIRE_IDLE_STEPS: usize = 32;
/// An empty lane keeps at most this much room for results.
const SPARE_RECORDS: usize = 16;

/// The decision about a mutation that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneVerdict {
    /// The next mutation of its lane: run it, then call `record` or `abandon`.
    Run,
    /// The mutation ran before, with this answer.
    Replay(Answer),
    /// A mutation was skipped: this is the expected number. Zero: the block does not know the lane, or no
    /// longer, and this mutation did not run; the client opens a new lane, which begins at 1.
    Resume(Sequence),
    /// An earlier attempt of this mutation is running.
    InProgress,
    /// An earlier mutation of its lane is running.
    Waits,
    /// The mutation may have run, but its record is gone.
    OutcomeUnknown,
    /// No room for another result or lane until results are acknowledged or lanes are forgotten.
    Busy,
}

/// One result. The common answer, a status and a number, needs no heap memory.
struct ResultRecord {
    hash: u64,
    value: u64,
    status: Status,
    hashed: bool,
    more: Option<Box<More>>,
}

/// The less common parts of an answer.
struct More {
    args: Vec<u8>,
    payload: Payload,
    /// Whether the payload was copied out of the block by `leave_block`.
    copied: bool,
}

impl ResultRecord {
    fn new(hash: Option<u64>, answer: &Answer) -> ResultRecord {
        let payload = answer.payload.clone();
        if let Payload::Block(_) = payload {
            panic!("INV-16: a mutation's answer must outlive changes of the block");
        }
        let more = (payload != Payload::None || !answer.args.is_empty())
            .then(|| Box::new(More { args: answer.args.clone(), payload, copied: false }));
        ResultRecord {
            hash: hash.unwrap_or(0),
            value: answer.value,
            status: answer.status,
            hashed: hash.is_some(),
            more,
        }
    }

    fn answer(&self) -> Answer {
        let (args, payload) = match &self.more {
            None => (Vec::new(), Payload::None),
            Some(more) => (more.args.clone(), more.payload.clone()),
        };
        Answer { status: self.status, value: self.value, args, payload }
    }

    /// Heap bytes beside the record itself.
    fn heap_bytes(&self) -> usize {
        self.more
            .as_ref()
            .map_or(0, |more| size_of::<More>() + more.args.len() + more.payload.beside())
    }

    /// Those of `heap_bytes` that `leave_block` copied.
    fn copied_bytes(&self) -> usize {
        self.more.as_ref().filter(|more| more.copied).map_or(0, |more| more.payload.beside())
    }
}

/// The records of a lane of another block from which a range moved here: enough to answer a request that was
/// sent there and is repeated here. They are valid for `IDLE_MAX` after they arrived.
struct Adopted {
    /// The next expected sequence number: later mutations did not run at the other block.
    next: u64,
    records: Vec<(u64, ResultRecord)>,
    /// When the records last arrived.
    came: Time,
}

impl Adopted {
    fn bytes(&self) -> usize {
        let heap: usize = self.records.iter().map(|(_, record)| record.heap_bytes()).sum();
        size_of::<((SessionId, LaneId), Adopted)>()
            + self.records.len() * size_of::<(u64, ResultRecord)>()
            + heap
    }
}

struct Lane {
    key: (SessionId, LaneId),
    /// The sequence expected next. The kept results are those just before it.
    next: u64,
    running: Option<u64>,
    last_used: Time,
    records: VecDeque<ResultRecord>,
}

impl Lane {
    fn first_kept(&self) -> u64 {
        self.next - self.records.len() as u64
    }

    /// Bytes of its results.
    fn bytes(&self) -> usize {
        self.records.iter().map(ResultRecord::heap_bytes).sum::<usize>()
            + self.records.capacity() * size_of::<ResultRecord>()
    }

    /// Those of `bytes` that `leave_block` copied.
    fn copied_bytes(&self) -> usize {
        self.records.iter().map(ResultRecord::copied_bytes).sum()
    }
}

/// The memory that the blocks of a core may use together for their lanes (INV-32). Cheap to clone.
#[derive(Clone, Debug)]
pub struct LaneRoom(Arc<(AtomicUsize, usize)>);

impl LaneRoom {
    /// Room for this many bytes.
    pub fn of(bytes: usize) -> LaneRoom {
        LaneRoom(Arc::new((AtomicUsize::new(0), bytes)))
    }

    /// Bytes in use.
    pub fn taken(&self) -> usize {
        self.0.0.load(Relaxed)
    }

    fn is_full(&self) -> bool {
        self.taken() >= self.0.1
    }

    /// Whether so many bytes of copied results can be added. A part of the room stays free for the results of
    /// mutations: where all of it is in use, mutations are refused.
    fn has_room_for_copy(&self, bytes: usize) -> bool {
        self.taken().saturating_add(bytes) <= self.0.1 / 4 * 3
    }
}

/// The part of the room that one block uses.
#[derive(Default)]
struct RoomShare {
    room: LaneRoom,
    bytes: usize,
}

impl RoomShare {
    fn becomes(&mut self, bytes: usize) {
        if bytes != self.bytes {
            self.room.0.0.fetch_add(bytes.wrapping_sub(self.bytes), Relaxed);
            self.bytes = bytes;
        }
    }
}

impl Drop for RoomShare {
    fn drop(&mut self) {
        self.becomes(0);
    }
}

impl Default for LaneRoom {
    /// Unbounded room.
    fn default() -> LaneRoom {
        LaneRoom::of(usize::MAX)
    }
}

/// The retry records of one block.
///
/// Bounded by `LANES_PER_BLOCK_MAX` lanes and `RETRY_RECORD_BYTES_MAX` bytes of results, which the last
/// result may exceed. At a bound, mutations are answered `Busy` before they run.
#[derive(Default)]
pub struct Lanes {
    index: HashMap<(SessionId, LaneId), u32>,
    lanes: Vec<Option<Lane>>,
    free: Vec<u32>,
    /// When to inspect each lane: exactly one entry per lane.
    due: BinaryHeap<Reverse<(Time, u32)>>,
    /// The lane of the last call: with one busy client, `record` and the next `begin` find it here.
    hot: Option<u32>,
    result_bytes: usize,
    /// Those of `result_bytes` that `leave_block` copied. Only the shared room bounds them: the results of a
    /// client that is gone do not keep others from the block.
    copied_bytes: usize,
    /// Lanes of other blocks from which a range moved here.
    adopted: HashMap<(SessionId, LaneId), Adopted>,
    /// When each of them arrived, the oldest first.
    adoptions: VecDeque<(Time, (SessionId, LaneId))>,
    adopted_bytes: usize,
    /// Times of the last two calls of `expire` that were at least `READ_MAX` apart.
    looks: [Time; 2],
    share: RoomShare,
}

impl Lanes {
    /// No lanes, and room for the most that a block may have.
    pub fn new() -> Lanes {
        Lanes::default()
    }

    /// No lanes, and room that is shared with other blocks: when it is used up, mutations are answered `Busy`
    /// before they run.
    pub fn within(room: LaneRoom) -> Lanes {
        Lanes { share: RoomShare { room, bytes: 0 }, ..Lanes::default() }
    }

    fn tell(&mut self) {
        self.share.becomes(self.bytes());
    }

    /// Copies the results that are kept in the block, as far as the shared room allows. The block's memory is
    /// needed elsewhere, and a client may not return for a while to acknowledge a result.
    pub fn leave_block(&mut self) {
        if Bug::ResultsStayInBlock.active() {
            return;
        }
        let Lanes { lanes, share, result_bytes, copied_bytes, .. } = self;
        let mut taken = 0;
        for record in lanes.iter_mut().flatten().flat_map(|lane| &mut lane.records) {
            let Some(more) = &mut record.more else { continue };
            let Payload::Pinned(pin) = &more.payload else { continue };
            let (before, after) = (more.payload.beside(), pin.bytes().len());
            if share.room.has_room_for_copy(taken + after) {
                taken += after;
                (more.payload, more.copied) = (Payload::Bytes(Arc::from(pin.bytes())), true);
                *result_bytes = *result_bytes + after - before;
                *copied_bytes += after;
            }
        }
        self.tell();
    }

    /// Whether any result is in the block's memory, for which `leave_block` found no room.
    pub fn are_in_block(&self) -> bool {
        let mut records = self.lanes.iter().flatten().flat_map(|lane| &lane.records);
        records.any(|record| {
            record.more.as_ref().is_some_and(|more| matches!(more.payload, Payload::Pinned(_)))
        })
    }

    /// Whether the results of this block leave no room for another one.
    fn is_full(&self) -> bool {
        let counted = self.result_bytes - self.copied_bytes;
        counted >= RETRY_RECORD_BYTES_MAX || self.share.room.is_full()
    }

    /// Decides what happens with a mutation, after results up to `acked` are forgotten.
    ///
    /// `retry` says that an earlier attempt of this mutation may have run; `window` is the number of
    /// unacknowledged results that the client was granted.
    #[allow(clippy::too_many_arguments)] // the header's fields, each of its own type
    pub fn begin(
        &mut self,
        now: Time,
        session: SessionId,
        lane: LaneId,
        sequence: Sequence,
        acked: Sequence,
        retry: bool,
        window: u16,
    ) -> LaneVerdict {
        let key = (session, lane);
        let Some(ix) = self.find(key) else {
            return self.begin_unknown(now, key, sequence, retry);
        };
        // The block's own results have priority: if a range left and returned, the records of another block
        // may only contain the progress of the lane at that block.
        let lane = self.lane_mut(ix);
        let own = lane.first_kept() <= sequence.0 && sequence.0 < lane.next;
        if !own && let Some(verdict) = self.recall_adopted(key, sequence) {
            return verdict;
        }
        self.acknowledge(ix, acked.0);
        let full = self.is_full();
        let lane = self.lane_mut(ix);
        lane.last_used = now;
        if sequence.0 < lane.next {
            return replay(lane, sequence.0);
        }
        if let Some(running) = lane.running {
            let own = running == sequence.0;
            return if own { LaneVerdict::InProgress } else { LaneVerdict::Waits };
        }
        if sequence.0 > lane.next {
            return LaneVerdict::Resume(Sequence(lane.next));
        }
        if full || lane.records.len() >= window as usize {
            return LaneVerdict::Busy;
        }
        lane.running = Some(sequence.0);
        LaneVerdict::Run
    }

    /// Records the answer of the mutation that `begin` let run.
    pub fn record(
        &mut self,
        session: SessionId,
        lane: LaneId,
        sequence: Sequence,
        hash: Option<u64>,
        answer: &Answer,
    ) {
        assert!(answer.executed(), "INV-16: {:?} does not use up a sequence", answer.status);
        let ix = self.running((session, lane));
        let record = ResultRecord::new(hash, answer);
        let heap = record.heap_bytes();
        let lane = self.lane_mut(ix);
        assert_eq!(
            lane.running,
            Some(sequence.0),
            "INV-16: a mutation has a result that does not run"
        );
        lane.running = None;
        if sequence.0 != lane.next {
            assert!(Bug::LostRetryRecord.active(), "INV-16: sequence {sequence} ran out of turn");
            return;
        }
        let before = lane.records.capacity();
        if before == 0 {
            // Most lanes have one unacknowledged result at a time.
            lane.records.reserve_exact(1);
        }
        lane.records.push_back(record);
        lane.next += 1;
        let (kept, next) = (lane.records.len() as u64, lane.next);
        assert!(kept < next, "INV-16: a lane keeps {kept} results, and its next is {next}");
        let grown = (lane.records.capacity() - before) * size_of::<ResultRecord>();
        self.result_bytes += grown + heap;
        self.tell();
    }

    /// The mutation that `begin` let run had no effect: its sequence number is not used up.
    pub fn abandon(&mut self, session: SessionId, lane: LaneId) {
        let ix = self.running((session, lane));
        self.lane_mut(ix).running = None;
    }

    /// Forgets lanes that were idle for twice the retry window, a bounded number per call, the oldest first.
    /// Each call finds idle lanes, and a call 2 to 4 s later forgets them.
    pub fn expire(&mut self, now: Time) {
        if now >= self.looks[0] + READ_MAX {
            self.looks = [now, self.looks[0]];
        }
        let found = self.looks[1];
        assert!(
            found + READ_MAX <= now || found == Time::ZERO,
            "a lane is found idle early enough"
        );
        self.forget_adopted(found);
        self.forget_idle(found, now);
        if self.free.len() > EXPIRE_STEP && self.free.len() > self.lanes.len() / 2 {
            self.close_ranks();
        }
        self.tell();
    }

    /// As `expire`, for more lanes: those of a block that gets no requests.
    pub fn expire_idle(&mut self, now: Time) {
        for _ in 0..EXPIRE_IDLE_STEPS {
            self.expire(now);
        }
    }

    /// When `expire_idle` has something to do; `None` without lanes.
    pub fn due(&self) -> Option<Time> {
        let idle = self.due.peek().map(|Reverse((due, _))| *due);
        let adopted = self.adoptions.front().map(|(came, _)| *came + IDLE_MAX);
        let first = idle.into_iter().chain(adopted).min()?;
        Some(first.max(self.looks[0] + READ_MAX))
    }

    /// Forgets lanes that the call of `expire` at the time `found` has found idle.
    fn forget_idle(&mut self, found: Time, now: Time) {
        for _ in 0..EXPIRE_STEP {
            let Some(&Reverse((due, ix))) = self.due.peek() else { return };
            if due > found {
                return;
            }
            self.due.pop();
            let lane = self.lanes[ix as usize].as_ref().expect("a lane leaves with its due entry");
            let due = lane.last_used + IDLE_MAX;
            if lane.running.is_some() {
                self.due.push(Reverse((now + IDLE_MAX, ix)));
            } else if due > found {
                self.due.push(Reverse((due, ix)));
            } else {
                self.evict(ix);
            }
        }
    }

    /// Forgets a lane that its client will not use again, with results received up to `acked`. Returns
    /// whether the lane is known.
    pub fn forget(&mut self, session: SessionId, lane: LaneId, acked: Sequence) -> bool {
        let Some(ix) = self.find((session, lane)) else { return false };
        self.acknowledge(ix, acked.0);
        true
    }

    /// Whether no client can return for an answer any more: every answer is acknowledged, or too old for a
    /// retry, and no mutation is running.
    pub fn is_quiet(&self, now: Time) -> bool {
        Bug::QueueRetiresEarly.active()
            || self.lanes.iter().flatten().all(|lane| {
                let settled = lane.records.is_empty() || lane.last_used + IDLE_MAX <= now;
                lane.running.is_none() && settled
            })
    }

    /// The records that another block needs when a range of hashes moves there: parts of at most about `part`
    /// bytes, each for one `adopt`. For a `whole` block these are all results, for a range those of its keys:
    /// a result without a key stays.
    pub fn export(&self, start: u64, end: u64, whole: bool, part: usize) -> Vec<Vec<u8>> {
        let moves = |r: &ResultRecord| whole || (r.hashed && start <= r.hash && r.hash <= end);
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut put = |key: (SessionId, LaneId), next: u64, records: Vec<(u64, &ResultRecord)>| {
            if parts.last().is_none_or(|last| last.len() >= part) {
                parts.push(Vec::new());
            }
            let out = parts.last_mut().expect("there is one by now");
            put_lane(out, key, next, &records);
        };
        for lane in self.lanes.iter().flatten() {
            let kept = (lane.first_kept()..).zip(&lane.records).filter(|(_, r)| moves(r));
            put(lane.key, lane.next, kept.collect());
        }
        // In an order that does not depend on the hash table (INV-35).
        let mut adopted: Vec<_> = self.adopted.iter().collect();
        adopted.sort_unstable_by_key(|(key, _)| **key);
        for (key, adopted) in adopted {
            let kept = adopted.records.iter().filter(|(_, r)| moves(r));
            put(*key, adopted.next, kept.map(|(sequence, r)| (*sequence, r)).collect());
        }
        parts
    }

    /// Adopts the records of another block, as `export` encoded them. Bounded by `RETRY_RECORD_BYTES_MAX`:
    /// beyond that the oldest results are dropped, and a retry of such a request is answered
    /// `OutcomeUnknown`.
    pub fn adopt(&mut self, now: Time, part: &[u8]) -> Result<(), Malformed> {
        let mut from = Reader::new(part);
        let mut lanes = Vec::new();
        while !from.is_empty() {
            lanes.push(get_lane(now, &mut from)?);
        }
        for (key, mut adopted) in lanes {
            if let Some(known) = self.adopted.remove(&key) {
                self.gives_adopted(known.bytes());
                adopted.next = adopted.next.max(known.next);
                let news: Vec<u64> = adopted.records.iter().map(|(s, _)| *s).collect();
                let older = known.records.into_iter().filter(|(s, _)| !news.contains(s));
                adopted.records.extend(older);
            }
            self.adopted_bytes += adopted.bytes();
            self.adopted.insert(key, adopted);
            self.adoptions.push_back((now, key));
        }
        let mut oldest = 0;
        while self.adopted_bytes > RETRY_RECORD_BYTES_MAX && oldest < self.adoptions.len() {
            if let Some(adopted) = self.adopted.get_mut(&self.adoptions[oldest].1) {
                self.adopted_bytes -= adopted.bytes();
                adopted.records = Vec::new();
                self.adopted_bytes += adopted.bytes();
            }
            oldest += 1;
        }
        self.tell();
        Ok(())
    }

    /// Takes over the lanes of a block that this block replaces: they continue here as if they had always
    /// been here. The same move has already brought their records.
    pub fn take_over(&mut self, now: Time, part: &[u8]) -> Result<(), Malformed> {
        let mut from = Reader::new(part);
        let mut lanes = Vec::new();
        while !from.is_empty() {
            lanes.push(get_lane(now, &mut from)?);
        }
        for (key, Adopted { next, records, .. }) in lanes {
            // A record that the other block itself had adopted is not among its lane's last ones: it is kept
            // beside the lane.
            let first = next.saturating_sub(records.len() as u64);
            // Numbers begin at 1, whatever the other server says.
            let whole = first > 0 && records.iter().map(|(sequence, _)| *sequence).eq(first..next);
            if !whole {
                let adopted = Adopted { next, records, came: now };
                self.adopted_bytes += adopted.bytes();
                self.adopted.insert(key, adopted);
                self.adoptions.push_back((now, key));
                continue;
            }
            let records: VecDeque<ResultRecord> =
                records.into_iter().map(|(_, record)| record).collect();
            let lane = Lane { key, next, running: None, last_used: now, records };
            self.result_bytes += lane.bytes();
            match self.find(key) {
                Some(ix) => {
                    let old =
                        self.lanes[ix as usize].replace(lane).expect("the lane was just found");
                    assert!(old.running.is_none(), "INV-48: a lane that runs is taken over");
                    self.gives(old.bytes(), old.copied_bytes());
                }
                None => drop(self.insert(lane)),
            }
        }
        self.tell();
        Ok(())
    }

    /// The answer of another block to this request, or `OutcomeUnknown`; `None` if it did not run there.
    fn recall_adopted(
        &mut self,
        key: (SessionId, LaneId),
        sequence: Sequence,
    ) -> Option<LaneVerdict> {
        if self.adopted.is_empty() {
            return None;
        }
        let adopted = self.adopted.get(&key)?;
        if sequence.0 >= adopted.next {
            return None;
        }
        let found = adopted.records.iter().find(|(known, _)| *known == sequence.0);
        Some(match found {
            Some((_, record)) => LaneVerdict::Replay(record.answer()),
            None => LaneVerdict::OutcomeUnknown,
        })
    }

    fn forget_adopted(&mut self, found: Time) {
        for _ in 0..EXPIRE_STEP {
            let Some((came, key)) = self.adoptions.front().copied() else { return };
            if came + IDLE_MAX > found {
                return;
            }
            self.adoptions.pop_front();
            // The records may have arrived again since.
            if self.adopted.get(&key).is_some_and(|adopted| adopted.came == came) {
                let gone = self.adopted.remove(&key).expect("looked up just now");
                self.gives_adopted(gone.bytes());
            }
        }
    }

    /// Bytes of memory of the records.
    pub fn bytes(&self) -> usize {
        const PER_LANE: usize = size_of::<Option<Lane>>()
            + size_of::<((SessionId, LaneId), u32)>()
            + size_of::<Reverse<(Time, u32)>>();
        self.lanes.len() * PER_LANE + self.result_bytes + self.adopted_bytes
    }

    /// The kept results of a lane, each with the hash of its key: the records that move with that part of the
    /// hash space.
    pub fn kept(
        &self,
        session: SessionId,
        lane: LaneId,
    ) -> impl Iterator<Item = (Sequence, Option<u64>)> + '_ {
        let lane =
            self.index.get(&(session, lane)).and_then(|ix| self.lanes[*ix as usize].as_ref());
        lane.into_iter().flat_map(|lane| {
            let first = lane.first_kept();
            lane.records
                .iter()
                .enumerate()
                .map(move |(i, r)| (Sequence(first + i as u64), r.hashed.then_some(r.hash)))
        })
    }

    fn begin_unknown(
        &mut self,
        now: Time,
        key: (SessionId, LaneId),
        sequence: Sequence,
        retry: bool,
    ) -> LaneVerdict {
        let elsewhere = self.adopted.get(&key).map(|adopted| adopted.next);
        if let Some(verdict) = self.recall_adopted(key, sequence) {
            return verdict;
        }
        if elsewhere.is_none() && sequence.0 != 1 {
            // A lane begins at 1, so the block knew this lane and forgot it: only a mutation without an
            // earlier attempt is known not to have run.
            return if retry {
                LaneVerdict::OutcomeUnknown
            } else {
                LaneVerdict::Resume(Sequence(0))
            };
        }
        let lanes = self.lanes.len() - self.free.len();
        let full = self.is_full();
        if lanes >= LANES_PER_BLOCK_MAX || full {
            return LaneVerdict::Busy;
        }
        let (next, records) = (sequence.0, VecDeque::new());
        let ix = self.insert(Lane { key, next, running: Some(next), last_used: now, records });
        self.hot = Some(ix);
        LaneVerdict::Run
    }

    fn insert(&mut self, lane: Lane) -> u32 {
        let (key, due) = (lane.key, lane.last_used + IDLE_MAX);
        let ix = match self.free.pop() {
            Some(ix) => ix,
            None => {
                self.lanes.push(None);
                self.lanes.len() as u32 - 1
            }
        };
        let before = self.lanes[ix as usize].replace(lane);
        assert!(before.is_none(), "INV-16: the place of a lane in use is given to {key:?}");
        let before = self.index.insert(key, ix);
        assert!(before.is_none(), "INV-16: lane {key:?} has the places {before:?} and {ix}");
        self.due.push(Reverse((due, ix)));
        self.tell();
        ix
    }

    fn find(&mut self, key: (SessionId, LaneId)) -> Option<u32> {
        if let Some(ix) = self.hot
            && self.lanes[ix as usize].as_ref().is_some_and(|lane| lane.key == key)
        {
            return Some(ix);
        }
        let ix = self.index.get(&key).copied()?;
        self.hot = Some(ix);
        Some(ix)
    }

    fn running(&mut self, key: (SessionId, LaneId)) -> u32 {
        let ix = self.find(key).expect("INV-16: a lane with a mutation running is kept");
        assert!(self.lane_mut(ix).running.is_some(), "INV-16: nothing runs in this lane");
        ix
    }

    fn lane_mut(&mut self, ix: u32) -> &mut Lane {
        self.lanes[ix as usize].as_mut().expect("the index names lanes that exist")
    }

    fn acknowledge(&mut self, ix: u32, acked: u64) {
        let lane = self.lane_mut(ix);
        let first = lane.first_kept();
        // A mutation that did not run yet cannot be acknowledged, whatever a client claims.
        let dropped = acked.saturating_add(1).min(lane.next).saturating_sub(first) as usize;
        let (mut freed, mut copied) = (0, 0);
        for record in lane.records.drain(..dropped) {
            freed += record.heap_bytes();
            copied += record.copied_bytes();
        }
        let capacity = lane.records.capacity();
        if lane.records.is_empty() && capacity > SPARE_RECORDS {
            lane.records = VecDeque::new();
            freed += capacity * size_of::<ResultRecord>();
        }
        self.gives(freed, copied);
        self.tell();
    }

    /// Results of so many bytes are forgotten, and so many of these bytes were copied.
    fn gives(&mut self, bytes: usize, copied: usize) {
        let (all, copies) = (self.result_bytes, self.copied_bytes);
        assert!(all >= bytes, "INV-33: results of {bytes} bytes are forgotten, of {all}");
        assert!(copies >= copied, "INV-33: copies of {copied} bytes are forgotten, of {copies}");
        (self.result_bytes, self.copied_bytes) = (all - bytes, copies - copied);
    }

    /// Adopted records of so many bytes are forgotten.
    fn gives_adopted(&mut self, bytes: usize) {
        let all = self.adopted_bytes;
        assert!(all >= bytes, "INV-33: adopted records of {bytes} bytes are forgotten, of {all}");
        self.adopted_bytes -= bytes;
    }

    /// Removes the places of forgotten lanes, and releases the memory of all tables.
    fn close_ranks(&mut self) {
        let mut places = vec![0; self.lanes.len()];
        let mut lanes = Vec::with_capacity(self.lanes.len() - self.free.len());
        for (ix, lane) in std::mem::take(&mut self.lanes).into_iter().enumerate() {
            if lane.is_some() {
                places[ix] = lanes.len() as u32;
                lanes.push(lane);
            }
        }
        self.lanes = lanes;
        (self.free, self.hot) = (Vec::new(), None);
        self.index.values_mut().for_each(|ix| *ix = places[*ix as usize]);
        self.index.shrink_to_fit();
        let due = self.due.drain().map(|Reverse((due, ix))| Reverse((due, places[ix as usize])));
        self.due = due.collect::<Vec<_>>().into();
    }

    fn evict(&mut self, ix: u32) {
        let lane = self.lanes[ix as usize].take().expect("only lanes that exist are evicted");
        assert!(lane.running.is_none(), "INV-16: lane {:?} runs and is forgotten", lane.key);
        let indexed = self.index.remove(&lane.key);
        assert_eq!(indexed, Some(ix), "INV-16: lane {:?} is found elsewhere", lane.key);
        self.free.push(ix);
        self.gives(lane.bytes(), lane.copied_bytes());
    }
}

fn put_lane(
    out: &mut Vec<u8>,
    key: (SessionId, LaneId),
    next: u64,
    records: &[(u64, &ResultRecord)],
) {
    key.0.0.put(out);
    key.1.0.put(out);
    next.put(out);
    (records.len() as u32).put(out);
    for (sequence, record) in records {
        let answer = record.answer();
        sequence.put(out);
        record.hash.put(out);
        (answer.status as u16).put(out);
        answer.value.put(out);
        answer.args.put(out);
        let payload: &[u8] = match &answer.payload {
            Payload::Bytes(bytes) => bytes,
            Payload::Pinned(pin) => pin.bytes(),
            Payload::None | Payload::Block(_) | Payload::Parts(_) => &[],
        };
        (payload.len() as u32).put(out);
        out.extend_from_slice(payload);
    }
}

fn get_lane(now: Time, from: &mut Reader<'_>) -> Result<((SessionId, LaneId), Adopted), Malformed> {
    let key = (SessionId(u128::get(from)?), LaneId(u32::get(from)?));
    let next = u64::get(from)?;
    let count = u32::get(from)?;
    let mut records = Vec::new();
    for _ in 0..count {
        let (sequence, hash) = (u64::get(from)?, u64::get(from)?);
        let status = Status::from_code(u16::get(from)?)
            .ok_or_else(|| from.malformed("no status has this code"))?;
        let value = u64::get(from)?;
        let args = Vec::<u8>::get(from)?;
        let length = u32::get(from)? as usize;
        let bytes = from.take(length)?;
        let payload = if bytes.is_empty() { Payload::None } else { Payload::Bytes(bytes.into()) };
        let answer = Answer { status, value, args, payload };
        records.push((sequence, ResultRecord::new((hash != 0).then_some(hash), &answer)));
    }
    Ok((key, Adopted { next, records, came: now }))
}

fn replay(lane: &mut Lane, sequence: u64) -> LaneVerdict {
    if Bug::LostRetryRecord.active() && lane.running.is_none() {
        lane.running = Some(sequence);
        return LaneVerdict::Run;
    }
    let first = lane.first_kept();
    match sequence.checked_sub(first) {
        Some(i) => LaneVerdict::Replay(lane.records[i as usize].answer()),
        None => LaneVerdict::OutcomeUnknown,
    }
}
