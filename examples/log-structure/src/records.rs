//! The records of a block of a log.
//!
//! Records are stored one after another from the block's start: length of the tag u8, tag, bytes. An index
//! grows from the block's end downwards and has the end of each record in four bytes, so that any record is
//! found in one step. Space is reused only when every record of the block is trimmed; the block then starts
//! again at its beginning. A log that is trimmed as it grows therefore stays in one block.

use crate::messages::{FRAME, Page, ScanArgs, Stats, TAG_MAX, put_record};
use crate::{NOT_YET_WRITTEN, TAG_TOO_LONG, TRIMMED};
use honeycomb_structures::{
    Answer, Backing, Bytes, Change, Changes, Event, Growth, Operation, Outcome, Payload, Status,
    Successor, SuccessorRequest, Ticket, Time, large_limit, moved,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// Bytes of a record's index entry.
pub(crate) const ENTRY: usize = 4;
/// Most records that one operation inspects, so that a scan for a rare tag does not delay other requests.
const LOOK_MAX: u64 = 4096;
/// Most bytes of one page.
const PAGE_MAX: usize = 1 << 20;
/// Trimmed bytes are returned to the operating system in pieces of this size, one at a time. Each piece
/// takes some microseconds.
const GIVE_BACK_STEP: usize = 1 << 20;
/// Delay before a retry while a read still uses the bytes to return.
const GIVE_BACK_AGAIN: Duration = Duration::from_millis(10);
/// Most callers that follow a block at the same time.
const FOLLOWERS_MAX: usize = 1024;

/// A caller that waits for a record.
struct Follower {
    ticket: Ticket,
    until: Time,
    args: Vec<u8>,
}

/// The records of a block. Numbers are relative to the first record that the block ever had.
pub(crate) struct Records {
    pub size: usize,
    /// Number of the first record in the index.
    pub base: u64,
    /// The next record's number.
    pub next_number: u64,
    /// Records below this are trimmed.
    pub trimmed: u64,
    /// Offset of the next record.
    pub tail: usize,
    /// Bytes before this offset are returned to the operating system.
    pub given_back: usize,
    /// When to return more bytes, if there are more.
    pub give_back_at: Option<Time>,
    /// The successor, once the block is full: the arguments of `Moved`.
    pub sealed: Option<Vec<u8>>,
    drained: bool,
    pub next: SuccessorRequest,
    followers: Vec<Follower>,
    /// Whether subscribers want changes.
    watched: bool,
    events: VecDeque<Event>,
}

impl Records {
    /// No records, in a block of so many bytes.
    pub fn new(size: usize) -> Records {
        Records {
            size,
            base: 0,
            next_number: 0,
            trimmed: 0,
            tail: 0,
            given_back: 0,
            give_back_at: None,
            sealed: None,
            drained: false,
            next: SuccessorRequest::new(size),
            followers: Vec::new(),
            watched: false,
            events: VecDeque::new(),
        }
    }

    pub fn index_bytes(&self) -> usize {
        (self.next_number - self.base) as usize * ENTRY
    }

    /// The range of a record's index entry.
    fn entry(&self, number: u64) -> Range<usize> {
        let end = self.size - (number - self.base) as usize * ENTRY;
        end - ENTRY..end
    }

    /// The index entries from which the places of these records follow.
    pub fn entries(&self, records: &Range<u64>) -> Range<usize> {
        let before = records.start.saturating_sub(1).max(self.base);
        self.entry(records.end - 1).start..self.entry(before).end
    }

    /// The end offset of the records below a number.
    pub fn end_below(&self, block: &impl Bytes, number: u64) -> usize {
        if number == self.base {
            return 0;
        }
        let bytes = block.slice(self.entry(number - 1));
        u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize
    }

    /// The ranges of a record's tag and bytes.
    fn parts(&self, block: &impl Bytes, number: u64) -> (Range<usize>, Range<usize>) {
        let (start, end) = (self.end_below(block, number), self.end_below(block, number + 1));
        let tag_end = start + 1 + block.slice(start..start + 1)[0] as usize;
        (start + 1..tag_end, tag_end..end)
    }

    /// The end of those of these records that are present, or were requested from a lower tier. `None` if the
    /// first one is absent.
    fn reach<B: Bytes>(&self, block: &B, records: Range<u64>) -> Option<u64> {
        if B::ALL || records.is_empty() {
            return Some(records.end);
        }
        let entries = self.entries(&records);
        if !block.wants(&entries) {
            return None;
        }
        let start = self.end_below(block, records.start);
        let most = block.most().saturating_sub(entries.len());
        let mut end = records.start + 1;
        while end < records.end && self.end_below(block, end + 1) - start <= most {
            end += 1;
        }
        block.wants(&(start..self.end_below(block, end))).then_some(end)
    }

    // ---------------------------------------------------------------------------- appending

    pub fn append(&mut self, block: &mut Backing, tag: &[u8], bytes: &[u8]) -> Answer {
        if let Some(successor) = &self.sealed {
            return moved(self.next_number, successor);
        }
        if tag.len() > TAG_MAX {
            let text = format!("a tag of {} bytes; the limit is {TAG_MAX}", tag.len());
            return Answer::refuse_as(TAG_TOO_LONG, text);
        }
        let (length, limit) = (1 + tag.len() + bytes.len(), large_limit(self.size) - ENTRY);
        if length > limit {
            let text =
                format!("a record of {length} bytes, its tag included; the limit is {limit}");
            return Answer::refuse(Status::ValueTooLarge, text);
        }
        self.next.wrote(length + ENTRY);
        if self.tail + length + ENTRY > self.size - self.index_bytes() {
            return self.overflow();
        }
        let start = self.tail;
        let record = block.slice_mut(start..start + length);
        record[0] = tag.len() as u8;
        record[1..1 + tag.len()].copy_from_slice(tag);
        record[1 + tag.len()..].copy_from_slice(bytes);
        self.tail = start + length;
        let entry = self.entry(self.next_number);
        block.slice_mut(entry).copy_from_slice(&(self.tail as u32).to_le_bytes());
        self.next_number += 1;
        if self.watched {
            let change = Change::Append { offset: self.next_number - 1, length: 1 };
            self.events.push_back(Event::Changed(change));
        }
        self.serve_followers(block, tag);
        Answer::ok(self.next_number - 1)
    }

    /// Appends a record in the form of a flush: length of the tag, tag, bytes.
    pub fn restore_record(&mut self, block: &mut Backing, record: &[u8]) -> Answer {
        let parts = record.split_first();
        match parts.and_then(|(length, rest)| rest.split_at_checked(*length as usize)) {
            Some((tag, bytes)) => self.append(block, tag, bytes),
            None => Answer::refuse(Status::BadFrame, "length of the tag u8, tag, bytes"),
        }
    }

    /// The reply to an append that does not fit. Seals the block if it has a successor.
    fn overflow(&mut self) -> Answer {
        let successor = match self.next.take() {
            Ok(successor) => successor,
            Err(refusal) => return refusal,
        };
        let (length, bytes) = (self.next_number, self.tail as u64);
        let answer = moved(length, &successor);
        self.end_followers(&answer);
        self.events.push_back(Event::Sealed { length, bytes, successor: Some(successor.clone()) });
        self.sealed = Some(successor);
        self.look_whether_drained();
        answer
    }

    // ------------------------------------------------------------------------------ reading

    pub fn read(&self, block: &impl Bytes, operation: &Operation<'_>) -> Result<Answer, Answer> {
        let (position, rest) = operation.position()?;
        no_more(rest)?;
        if position < self.trimmed as i64 {
            let text = "the record, and all before it, were trimmed";
            return Err(Answer::refuse_as(TRIMMED, text));
        }
        let number = position as u64;
        if number >= self.next_number {
            return Err(self.beyond());
        }
        if self.reach(block, number..number + 1).is_none() {
            return Ok(Answer::ok(0));
        }
        let (tag, bytes) = self.parts(block, number);
        let args = block.slice(tag).to_vec();
        Ok(Answer { args, ..Answer::ok(number) }.with(Payload::Block(bytes)))
    }

    /// The reply for numbers that this block does not have yet, or will never have.
    fn beyond(&self) -> Answer {
        match &self.sealed {
            Some(successor) => moved(self.next_number, successor),
            None => Answer::refuse_as(NOT_YET_WRITTEN, "no record has this number yet"),
        }
    }

    pub fn scan(&self, block: &impl Bytes, operation: &Operation<'_>) -> Result<Answer, Answer> {
        let (position, rest) = operation.position()?;
        self.page(block, position, &ScanArgs::decode(rest)?)
    }

    /// A page from a position on, or from the first untrimmed record if the position is trimmed.
    fn page(
        &self,
        block: &impl Bytes,
        position: i64,
        args: &ScanArgs<'_>,
    ) -> Result<Answer, Answer> {
        let from = position.max(self.trimmed as i64) as u64;
        // A page that begins in this block is served here, even if all its records are trimmed and it only
        // points to the next page. `Moved` is for pages that begin in another block.
        let here = position < self.next_number as i64;
        if from > self.next_number || self.sealed.is_some() && !here {
            return Err(self.beyond());
        }
        let most = (args.bytes as usize).min(PAGE_MAX);
        let (mut out, mut found, mut number) = (Vec::new(), 0, from);
        let stop = self.next_number.min(from + LOOK_MAX);
        let Some(stop) = self.reach(block, from..stop) else { return Ok(Answer::ok(0)) };
        while number < stop && found < args.records.max(1) {
            let (tag, bytes) = self.parts(block, number);
            if args.tag.is_empty() || block.slice(tag.clone()) == args.tag {
                if found > 0 && out.len() + FRAME + tag.len() + bytes.len() > most {
                    break;
                }
                let delta = (number - from) as u32;
                put_record(&mut out, delta, block.slice(tag), block.slice(bytes));
                found += 1;
            }
            number += 1;
        }
        let end = number == self.next_number && self.sealed.is_none();
        let payload = if out.is_empty() { Payload::None } else { Payload::Bytes(out.into()) };
        let args = Page { next: number - from, end }.encode();
        Ok(Answer { args, ..Answer::ok(from) }.with(payload))
    }

    // ---------------------------------------------------------------------------- following

    pub fn end_followers(&mut self, answer: &Answer) {
        for follower in self.followers.drain(..) {
            self.events.push_back(Event::Answered(follower.ticket, answer.clone()));
        }
    }

    pub fn follow(
        &mut self,
        block: &Backing,
        operation: &Operation<'_>,
    ) -> Result<Outcome, Answer> {
        let (position, rest) = operation.position()?;
        let page = self.page(block, position, &ScanArgs::decode(rest)?)?;
        if is_idle(&page) { self.park(operation) } else { Ok(Outcome::Done(page)) }
    }

    /// Lets the caller of `follow` wait for the next record. Also for a block in a lower tier: the followers
    /// are in memory, and the block is in memory when a record is appended.
    pub fn park(&mut self, operation: &Operation<'_>) -> Result<Outcome, Answer> {
        let (_, rest) = operation.position()?;
        if operation.wait_until <= operation.now {
            return Err(nothing_yet());
        }
        if self.followers.len() >= FOLLOWERS_MAX {
            let text = format!("{FOLLOWERS_MAX} callers follow this block already");
            return Err(Answer::refuse(Status::LimitExceeded, text));
        }
        let (ticket, until, args) = (operation.ticket, operation.wait_until, rest.to_vec());
        self.followers.push(Follower { ticket, until, args });
        Ok(Outcome::Parked)
    }

    /// Replies to the callers that wait for the record that was just appended, in order of arrival.
    fn serve_followers(&mut self, block: &Backing, tag: &[u8]) {
        if self.followers.is_empty() {
            return;
        }
        let newest = (self.next_number - 1) as i64;
        for follower in std::mem::take(&mut self.followers) {
            let args = ScanArgs::decode(&follower.args).expect("`follow` decoded the same bytes");
            if args.tag.is_empty() || args.tag == tag {
                let (Ok(page) | Err(page)) = self.page(block, newest, &args);
                self.events.push_back(Event::Answered(follower.ticket, page));
            } else {
                self.followers.push(follower);
            }
        }
    }

    // ----------------------------------------------------------------------------- trimming

    pub fn trim(&mut self, operation: &Operation<'_>) -> Result<Answer, Answer> {
        let (position, rest) = operation.position()?;
        no_more(rest)?;
        let before = self.trimmed;
        // Only this block's records: later numbers belong to its successors, or are not appended yet.
        let to = position.clamp(0, self.next_number as i64) as u64;
        self.trimmed = self.trimmed.max(to);
        self.give_back_at = Some(operation.now);
        self.look_whether_drained();
        Ok(Answer::ok(self.trimmed - before))
    }

    fn look_whether_drained(&mut self) {
        if self.sealed.is_some() && self.trimmed == self.next_number && !self.drained {
            self.drained = true;
            self.events.push_back(Event::Drained);
        }
    }

    /// Returns a piece of the trimmed bytes to the operating system, and resets the block when no record is
    /// left in it. Bytes that are sent by a migration stay.
    fn give_back(&mut self, block: &mut Backing, now: Time, migrates: bool) {
        self.give_back_at = None;
        let end = self.end_below(block, self.trimmed);
        let empty = self.sealed.is_none() && self.trimmed == self.next_number && self.tail > 0;
        if end - self.given_back < GIVE_BACK_STEP && !empty {
            return;
        }
        let piece = self.given_back..end.min(self.given_back + GIVE_BACK_STEP);
        let last = empty && piece.end == end;
        // A reset needs all trimmed bytes, because the next records overwrite them.
        let needed = if last { 0..end } else { piece.clone() };
        if block.is_pinned(&needed) || migrates {
            self.give_back_at = Some(now + GIVE_BACK_AGAIN);
            return;
        }
        // If the kernel refuses (locked pages), the bytes only stay resident.
        let _ = block.discard(piece.clone());
        self.given_back = piece.end;
        if last {
            (self.base, self.tail, self.given_back) = (self.next_number, 0, 0);
        } else {
            self.give_back_at = Some(now);
        }
    }

    pub fn stats(&self, block: &impl Bytes) -> Answer {
        let records = self.next_number - self.trimmed;
        // Without records the block has no content: its index need not be in any tier.
        let start = match (records, self.trimmed > self.base) {
            (0, _) => self.tail,
            (_, true) if !block.wants(&self.entry(self.trimmed - 1)) => return Answer::ok(0),
            _ => self.end_below(block, self.trimmed),
        };
        let bytes = (self.tail - start) as u64;
        let stats = Stats {
            records,
            // Without the length byte of each tag.
            bytes: bytes - records,
            appended: self.next_number,
            used: self.bytes_used(),
            sealed: self.sealed.is_some(),
        };
        Answer { args: stats.encode(), ..Answer::ok(records) }
    }

    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub fn bytes_used(&self) -> u64 {
        let beside: usize =
            self.followers.iter().map(|f| size_of::<Follower>() + f.args.len()).sum();
        // Followers are stored outside the block, but a block must not report more than its size.
        (self.tail - self.given_back + self.index_bytes() + beside).min(self.size) as u64
    }

    /// Time has passed for a block that is not frozen.
    pub fn tick(&mut self, block: &mut Backing, now: Time, migrates: bool) {
        for follower in self.followers.extract_if(.., |follower| follower.until <= now) {
            self.events.push_back(Event::Answered(follower.ticket, nothing_yet()));
        }
        if self.give_back_at.is_some_and(|at| at <= now) {
            self.give_back(block, now, migrates);
        }
    }

    /// When the block needs attention.
    pub fn deadline(&self) -> Option<Time> {
        let waits = self.followers.iter().map(|follower| follower.until);
        waits.chain(self.give_back_at).min()
    }

    /// Ends the wait of a caller that is gone.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let before = self.followers.len();
        self.followers.retain(|follower| follower.ticket != ticket);
        self.followers.len() < before
    }

    /// The block has replaced another one, which may not have reported its seal.
    pub fn report_again(&mut self) {
        if let Some(successor) = self.sealed.clone() {
            let (length, bytes) = (self.next_number, self.tail as u64);
            self.events.push_back(Event::Sealed { length, bytes, successor: Some(successor) });
            self.drained = false;
            self.look_whether_drained();
        }
    }
}

impl Growth for Records {
    fn wants_successor(&mut self) -> bool {
        self.sealed.is_none() && self.next.wanted(self.tail + self.index_bytes())
    }

    fn successor(&mut self, _block: &mut Backing, _now: Time, successor: Successor) {
        self.next.set(successor, self.tail + self.index_bytes());
    }

    fn is_final(&self) -> Option<bool> {
        Some(self.sealed.is_some())
    }
}

impl Changes for Records {
    fn watch(&mut self, watched: bool) {
        self.watched = watched;
    }

    /// Each record is a change.
    fn unreported(&self) -> u64 {
        self.next_number
    }
}

/// Whether a page of `follow` is the end of the log without a record. A page without records that is not the
/// end reached the inspection limit, and the caller continues there.
pub(crate) fn is_idle(page: &Answer) -> bool {
    page.payload == Payload::None && Page::decode(&page.args).is_some_and(|page| page.end)
}

pub(crate) fn nothing_yet() -> Answer {
    Answer::refuse(Status::NotYet, "no such record has been appended")
}

pub(crate) fn no_more(args: &[u8]) -> Result<(), Answer> {
    if args.is_empty() {
        return Ok(());
    }
    Err(Answer::refuse(Status::BadFrame, "the operation takes no more arguments"))
}
