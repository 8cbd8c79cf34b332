//! Retry records: which mutation of a lane comes next, and what the last ones were answered.
//!
//! Every mutation of a block passes here before its structure sees it, so that a repeated request
//! takes effect once (INV-16) and pipelined ones keep their order even after `Busy`.

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

/// A lane that was idle for this long is forgotten. No client sends a copy of a request after half of it,
/// and none arrives later than `MESSAGE_LIFE_MS` after it was sent.
const IDLE_MAX: Duration = Duration::from_millis(2 * RETRY_WINDOW_MS);
/// A lane is forgotten no sooner than this after a call of `expire` found it idle for `IDLE_MAX`. A server
/// that was paused reads what had arrived before the pause within this time (ADR 0044).
const READ_MAX: Duration = Duration::from_secs(2);
/// Lanes that one call of `expire` looks at.
const EXPIRE_STEP: usize = 32;
/// An empty lane keeps at most this much room for results.
const SPARE_RECORDS: usize = 16;

/// What is to be done with a mutation that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneVerdict {
    /// It is the next one: run it, then call `record` or `abandon`.
    Run,
    /// It ran before and this was the answer.
    Replay(Answer),
    /// One was skipped: this is the number expected next. Zero: the block does not know the lane
    /// (any more) and this mutation did not run; open a new lane, which begins at 1.
    Resume(Sequence),
    /// An earlier try of it is running.
    InProgress,
    /// One that it has to come after is running.
    Waits,
    /// It may have run, but the record that would tell is gone.
    OutcomeUnknown,
    /// No room for another result or lane until others are acknowledged or forgotten.
    Busy,
}

/// One result. The common answer, a status and a number, needs nothing on the heap.
struct Record {
    hash: u64,
    value: u64,
    status: Status,
    hashed: bool,
    more: Option<Box<More>>,
}

/// The rarer parts of an answer.
struct More {
    args: Vec<u8>,
    payload: Payload,
}

impl Record {
    fn new(hash: Option<u64>, answer: &Answer) -> Record {
        let payload = answer.payload.clone();
        if let Payload::Block(_) = payload {
            panic!("INV-16: a mutation's answer must outlive changes of the block");
        }
        let more = (payload != Payload::None || !answer.args.is_empty())
            .then(|| Box::new(More { args: answer.args.clone(), payload }));
        Record {
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

    /// Bytes beside the record itself.
    fn heap_bytes(&self) -> usize {
        self.more
            .as_ref()
            .map_or(0, |more| size_of::<More>() + more.args.len() + more.payload.beside())
    }
}

/// What a block knew of a lane before a range of it moved here: enough to answer a request that was
/// sent there and is repeated here. What it says ends `IDLE_MAX` after it came.
struct Adopted {
    /// The sequence that was expected next: from this one on nothing ran there.
    next: u64,
    records: Vec<(u64, Record)>,
    /// When it came last.
    came: Time,
}

impl Adopted {
    fn bytes(&self) -> usize {
        let heap: usize = self.records.iter().map(|(_, record)| record.heap_bytes()).sum();
        size_of::<((SessionId, LaneId), Adopted)>()
            + self.records.len() * size_of::<(u64, Record)>()
            + heap
    }
}

struct Lane {
    key: (SessionId, LaneId),
    /// The sequence expected next. Results kept are those just below it.
    next: u64,
    running: Option<u64>,
    last_used: Time,
    records: VecDeque<Record>,
}

impl Lane {
    fn first_kept(&self) -> u64 {
        self.next - self.records.len() as u64
    }

    /// Bytes of its results.
    fn bytes(&self) -> usize {
        self.records.iter().map(Record::heap_bytes).sum::<usize>()
            + self.records.capacity() * size_of::<Record>()
    }
}

/// What the blocks of a core may take together for their lanes (INV-32). Cheap to clone.
#[derive(Clone, Debug)]
pub struct LaneRoom(Arc<(AtomicUsize, usize)>);

impl LaneRoom {
    /// Room for so many bytes.
    pub fn of(bytes: usize) -> LaneRoom {
        LaneRoom(Arc::new((AtomicUsize::new(0), bytes)))
    }

    /// Bytes that are taken.
    pub fn taken(&self) -> usize {
        self.0.0.load(Relaxed)
    }

    fn is_full(&self) -> bool {
        self.taken() >= self.0.1
    }
}

/// What one block takes of it.
#[derive(Default)]
struct Share {
    room: LaneRoom,
    bytes: usize,
}

impl Share {
    fn becomes(&mut self, bytes: usize) {
        if bytes != self.bytes {
            self.room.0.0.fetch_add(bytes.wrapping_sub(self.bytes), Relaxed);
            self.bytes = bytes;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.becomes(0);
    }
}

impl Default for LaneRoom {
    /// Room for all that there are.
    fn default() -> LaneRoom {
        LaneRoom::of(usize::MAX)
    }
}

/// The retry records of one block.
///
/// Bounded by `LANES_PER_BLOCK_MAX` lanes and `RETRY_RECORD_BYTES_MAX` bytes of results (of which
/// the last result may be in excess); at a bound, mutations are answered `Busy` before they run.
#[derive(Default)]
pub struct Lanes {
    index: HashMap<(SessionId, LaneId), u32>,
    lanes: Vec<Option<Lane>>,
    free: Vec<u32>,
    /// When each lane is to be looked at: exactly one entry for each.
    due: BinaryHeap<Reverse<(Time, u32)>>,
    /// The lane of the last call: with one busy client, `record` and the next `begin` find it here.
    hot: Option<u32>,
    result_bytes: usize,
    /// Lanes to blocks of which a range has come here.
    adopted: HashMap<(SessionId, LaneId), Adopted>,
    /// When each of them came, the oldest first.
    adoptions: VecDeque<(Time, (SessionId, LaneId))>,
    adopted_bytes: usize,
    /// Calls of `expire` that were at least `READ_MAX` apart: the last one and the one before it.
    looks: [Time; 2],
    share: Share,
}

impl Lanes {
    /// No lane yet, and room for as many as a block may have.
    pub fn new() -> Lanes {
        Lanes::default()
    }

    /// No lane yet, and room that is shared with other blocks: when it is taken, mutations are answered
    /// `Busy` before they run.
    pub fn within(room: LaneRoom) -> Lanes {
        Lanes { share: Share { room, bytes: 0 }, ..Lanes::default() }
    }

    fn tell(&mut self) {
        self.share.becomes(self.bytes());
    }

    /// Results that are kept where they lie in the block are copied, as far as there is room for that: the
    /// block's memory is wanted, and who has had a result may not come back for a while.
    pub fn leave_block(&mut self) {
        for record in self.lanes.iter_mut().flatten().flat_map(|lane| &mut lane.records) {
            let Some(more) = &mut record.more else { continue };
            let Payload::Pinned(pin) = &more.payload else { continue };
            let (before, after) = (more.payload.beside(), pin.bytes().len());
            if self.result_bytes + after <= RETRY_RECORD_BYTES_MAX {
                more.payload = Payload::Bytes(Arc::from(pin.bytes()));
                self.result_bytes = self.result_bytes + after - before;
            }
        }
        self.tell();
    }

    /// Decides what happens with a mutation. Results up to `acked` are forgotten first.
    ///
    /// `retry` says that an earlier try of this mutation may have run; `window` is how many
    /// unacknowledged results the client was granted.
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
        // Its own results first: of a range that went and came back, another block may only know
        // how far the lane had come.
        let lane = self.lane_mut(ix);
        let own = lane.first_kept() <= sequence.0 && sequence.0 < lane.next;
        if !own && let Some(verdict) = self.recall_adopted(key, sequence) {
            return verdict;
        }
        self.acknowledge(ix, acked.0);
        let full = self.result_bytes >= RETRY_RECORD_BYTES_MAX || self.share.room.is_full();
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

    /// Keeps the answer of the mutation that `begin` let run.
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
        let record = Record::new(hash, answer);
        let heap = record.heap_bytes();
        let lane = self.lane_mut(ix);
        assert_eq!(lane.running, Some(sequence.0), "INV-16: only what runs has a result");
        lane.running = None;
        if sequence.0 != lane.next {
            assert!(Bug::LostRetryRecord.active(), "INV-16: sequence {sequence} ran out of turn");
            return;
        }
        let before = lane.records.capacity();
        if before == 0 {
            // Most lanes have one result outstanding at a time.
            lane.records.reserve_exact(1);
        }
        lane.records.push_back(record);
        lane.next += 1;
        let grown = (lane.records.capacity() - before) * size_of::<Record>();
        self.result_bytes += grown + heap;
        self.tell();
    }

    /// The mutation that `begin` let run had no effect: its sequence is not used up.
    pub fn abandon(&mut self, session: SessionId, lane: LaneId) {
        let ix = self.running((session, lane));
        self.lane_mut(ix).running = None;
    }

    /// Forgets lanes that were idle for twice the retry window, a bounded number per call; the oldest go
    /// first. Each call finds idle lanes, and a call that is 2 to 4 s later forgets them.
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

    /// Forgets lanes that a call of `expire` at the time `found` has found idle.
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

    /// A client will not use a lane again and has received its results up to `acked`; whether the
    /// lane is known.
    pub fn forget(&mut self, session: SessionId, lane: LaneId, acked: Sequence) -> bool {
        let Some(ix) = self.find((session, lane)) else { return false };
        self.acknowledge(ix, acked.0);
        true
    }

    /// Whether nobody can come back for an answer any more: what was answered is acknowledged, or so
    /// old that no client asks for it, and nothing is under way.
    pub fn is_quiet(&self, now: Time) -> bool {
        Bug::QueueRetiresEarly.active()
            || self.lanes.iter().flatten().all(|lane| {
                let settled = lane.records.is_empty() || lane.last_used + IDLE_MAX <= now;
                lane.running.is_none() && settled
            })
    }

    /// What another block has to know of these lanes when a range of hashes moves there: parts of at
    /// most about `part` bytes, each for one `adopt`. Of a `whole` block that is every result, of a
    /// range those of its keys: what has no key of its own stays.
    pub fn export(&self, start: u64, end: u64, whole: bool, part: usize) -> Vec<Vec<u8>> {
        let moves = |r: &Record| whole || (r.hashed && start <= r.hash && r.hash <= end);
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut put = |key: (SessionId, LaneId), next: u64, records: Vec<(u64, &Record)>| {
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
        // In an order that the keys of the table do not decide (INV-35).
        let mut adopted: Vec<_> = self.adopted.iter().collect();
        adopted.sort_unstable_by_key(|(key, _)| **key);
        for (key, adopted) in adopted {
            let kept = adopted.records.iter().filter(|(_, r)| moves(r));
            put(*key, adopted.next, kept.map(|(sequence, r)| (*sequence, r)).collect());
        }
        parts
    }

    /// Takes over what another block knew of its lanes, as `export` gave it. Bounded by
    /// `RETRY_RECORD_BYTES_MAX`: beyond, the oldest results go, and who asks for them hears that the
    /// outcome is unknown.
    pub fn adopt(&mut self, now: Time, part: &[u8]) -> Result<(), Malformed> {
        let mut from = Reader::new(part);
        let mut lanes = Vec::new();
        while !from.is_empty() {
            lanes.push(get_lane(now, &mut from)?);
        }
        for (key, mut adopted) in lanes {
            if let Some(known) = self.adopted.remove(&key) {
                self.adopted_bytes -= known.bytes();
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

    /// Takes over the lanes of a block in whose place this one is: they go on here where they were, as
    /// if they had always been here. What is known of them already came earlier by the same move.
    pub fn take_over(&mut self, now: Time, part: &[u8]) -> Result<(), Malformed> {
        let mut from = Reader::new(part);
        let mut lanes = Vec::new();
        while !from.is_empty() {
            lanes.push(get_lane(now, &mut from)?);
        }
        for (key, Adopted { next, records, .. }) in lanes {
            // A record of a lane that another block had before is not among its last ones: it is
            // known beside it.
            let first = next.saturating_sub(records.len() as u64);
            let whole = records.iter().map(|(sequence, _)| *sequence).eq(first..next);
            if !whole {
                let adopted = Adopted { next, records, came: now };
                self.adopted_bytes += adopted.bytes();
                self.adopted.insert(key, adopted);
                self.adoptions.push_back((now, key));
                continue;
            }
            let records: VecDeque<Record> = records.into_iter().map(|(_, record)| record).collect();
            let lane = Lane { key, next, running: None, last_used: now, records };
            self.result_bytes += lane.bytes();
            match self.find(key) {
                Some(ix) => {
                    let old = self.lanes[ix as usize].replace(lane).expect("it was just found");
                    self.result_bytes -= old.bytes();
                }
                None => drop(self.insert(lane)),
            }
        }
        self.tell();
        Ok(())
    }

    /// What another block answered to this request, or that nobody knows; `None` when it did not run
    /// there.
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
            // It may have come again since.
            if self.adopted.get(&key).is_some_and(|adopted| adopted.came == came) {
                let gone = self.adopted.remove(&key).expect("looked up just now");
                self.adopted_bytes -= gone.bytes();
            }
        }
    }

    /// Bytes of memory that the records take.
    pub fn bytes(&self) -> usize {
        const PER_LANE: usize = size_of::<Option<Lane>>()
            + size_of::<((SessionId, LaneId), u32)>()
            + size_of::<Reverse<(Time, u32)>>();
        self.lanes.len() * PER_LANE + self.result_bytes + self.adopted_bytes
    }

    /// The results that a lane keeps, with the hash of the key that each concerned: what has to
    /// move when that part of the hash space does.
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
            // A lane begins at 1, so the block knew this one and forgot it: only a mutation that
            // never came here before is known not to have run.
            return if retry {
                LaneVerdict::OutcomeUnknown
            } else {
                LaneVerdict::Resume(Sequence(0))
            };
        }
        let lanes = self.lanes.len() - self.free.len();
        let full = self.result_bytes >= RETRY_RECORD_BYTES_MAX || self.share.room.is_full();
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
        self.lanes[ix as usize] = Some(lane);
        self.index.insert(key, ix);
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
        // What did not run yet cannot be acknowledged, whatever a client claims.
        let dropped = acked.saturating_add(1).min(lane.next).saturating_sub(first) as usize;
        let mut freed: usize = lane.records.drain(..dropped).map(|r| r.heap_bytes()).sum();
        let capacity = lane.records.capacity();
        if lane.records.is_empty() && capacity > SPARE_RECORDS {
            lane.records = VecDeque::new();
            freed += capacity * size_of::<Record>();
        }
        self.result_bytes -= freed;
        self.tell();
    }

    /// Gives up the places of lanes that are gone, with the memory of all tables.
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
        self.index.remove(&lane.key);
        self.free.push(ix);
        self.result_bytes -= lane.bytes();
    }
}

fn put_lane(out: &mut Vec<u8>, key: (SessionId, LaneId), next: u64, records: &[(u64, &Record)]) {
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
        records.push((sequence, Record::new((hash != 0).then_some(hash), &answer)));
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
