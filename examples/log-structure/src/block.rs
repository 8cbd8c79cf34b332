//! One block of a log.
//!
//! Records lie one after the other from the block's start: length of the tag u8, tag, bytes. Where
//! each ends is written from the block's end downwards, four bytes each, so that any record is found
//! in one step. Nothing is used again before every record of the block is trimmed; then it begins
//! anew, so that a log that is trimmed as it grows stays in one block.

use crate::messages::{FRAME, Page, ScanArgs, Stats, TAG_MAX, put_record};
use crate::{NOT_YET_WRITTEN, TAG_TOO_LONG, TRIMMED, ops};
use honeycomb_structures::{
    Answer, Backing, Event, News, Next, Operation, Outcome, Payload, Status, Structure, Ticket,
    Time, large_limit, moved,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// Bytes of a record's place in the index.
const ENTRY: usize = 4;
/// Records that one operation looks at, so that a scan for a rare tag does not hold up the core.
const LOOK_MAX: u64 = 4096;
/// Most bytes of one page.
const PAGE_MAX: usize = 1 << 20;
/// Trimmed bytes go back to the operating system in pieces of this size, one at a time: each takes
/// some microseconds.
const GIVE_BACK_STEP: usize = 1 << 20;
/// When to try again while somebody still reads what is to be given back.
const GIVE_BACK_AGAIN: Duration = Duration::from_millis(10);
/// Callers who follow a block at a time.
const FOLLOWERS_MAX: usize = 1024;

/// Somebody who waits for a record.
struct Follower {
    ticket: Ticket,
    until: Time,
    args: Vec<u8>,
}

/// One block of a log. Numbers count from the first record that the block ever had.
pub struct LogBlock {
    size: usize,
    /// Number of the first record that the index knows.
    base: u64,
    /// The next record's number.
    next_number: u64,
    /// Records below this are trimmed.
    trimmed: u64,
    /// Where the next record begins.
    tail: usize,
    /// Bytes below are given back to the operating system.
    given_back: usize,
    /// When to give more back, if there is more.
    give_back_at: Option<Time>,
    /// Where the log goes on, once the block is full: the arguments of `Moved`.
    sealed: Option<Vec<u8>>,
    drained: bool,
    next: Next,
    followers: Vec<Follower>,
    events: VecDeque<Event>,
}

impl LogBlock {
    /// An empty block.
    pub fn new(size: usize) -> LogBlock {
        LogBlock {
            size,
            base: 0,
            next_number: 0,
            trimmed: 0,
            tail: 0,
            given_back: 0,
            give_back_at: None,
            sealed: None,
            drained: false,
            next: Next::new(size),
            followers: Vec::new(),
            events: VecDeque::new(),
        }
    }

    fn index_bytes(&self) -> usize {
        (self.next_number - self.base) as usize * ENTRY
    }

    /// Where a record's place in the index is.
    fn entry(&self, number: u64) -> Range<usize> {
        let end = self.size - (number - self.base) as usize * ENTRY;
        end - ENTRY..end
    }

    /// Where the records below a number end.
    fn end_below(&self, block: &Backing, number: u64) -> usize {
        if number == self.base {
            return 0;
        }
        let bytes = block.slice(self.entry(number - 1));
        u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize
    }

    /// Where the tag and the bytes of a record are.
    fn parts(&self, block: &Backing, number: u64) -> (Range<usize>, Range<usize>) {
        let (start, end) = (self.end_below(block, number), self.end_below(block, number + 1));
        let tag_end = start + 1 + block.slice(start..start + 1)[0] as usize;
        (start + 1..tag_end, tag_end..end)
    }

    // ---------------------------------------------------------------------------- appending

    fn append(&mut self, block: &mut Backing, tag: &[u8], bytes: &[u8]) -> Answer {
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
        self.serve_followers(block, tag);
        Answer::ok(self.next_number - 1)
    }

    /// What an append is answered that does not fit. Seals the block when it has a successor.
    fn overflow(&mut self) -> Answer {
        let successor = match self.next.take() {
            Ok(successor) => successor,
            Err(refusal) => return refusal,
        };
        let (length, bytes) = (self.next_number, self.tail as u64);
        let answer = moved(length, &successor);
        for follower in self.followers.drain(..) {
            self.events.push_back(Event::Answered(follower.ticket, answer.clone()));
        }
        self.events.push_back(Event::Sealed { length, bytes, successor: Some(successor.clone()) });
        self.sealed = Some(successor);
        self.look_whether_drained();
        answer
    }

    // ------------------------------------------------------------------------------ reading

    fn read(&self, block: &Backing, operation: &Operation<'_>) -> Result<Answer, Answer> {
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
        let (tag, bytes) = self.parts(block, number);
        let args = block.slice(tag).to_vec();
        Ok(Answer { args, ..Answer::ok(number) }.with(Payload::Block(bytes)))
    }

    /// What is answered about numbers that this block does not have yet, or never will.
    fn beyond(&self) -> Answer {
        match &self.sealed {
            Some(successor) => moved(self.next_number, successor),
            None => Answer::refuse_as(NOT_YET_WRITTEN, "no record has this number yet"),
        }
    }

    fn scan(&self, block: &Backing, operation: &Operation<'_>) -> Result<Answer, Answer> {
        let (position, rest) = operation.position()?;
        self.page(block, position, &ScanArgs::decode(rest)?)
    }

    /// A page from a position on; from the first record on when that one is trimmed.
    fn page(&self, block: &Backing, position: i64, args: &ScanArgs<'_>) -> Result<Answer, Answer> {
        let from = position.max(self.trimmed as i64) as u64;
        // One that begins in this block is answered here, were it only to say that all of it is
        // trimmed and to go on behind it: `Moved` is for what begins elsewhere.
        let here = position < self.next_number as i64;
        if from > self.next_number || self.sealed.is_some() && !here {
            return Err(self.beyond());
        }
        let most = (args.bytes as usize).min(PAGE_MAX);
        let (mut out, mut found, mut number) = (Vec::new(), 0, from);
        let stop = self.next_number.min(from + LOOK_MAX);
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

    fn follow(&mut self, block: &Backing, operation: &Operation<'_>) -> Result<Outcome, Answer> {
        let (position, rest) = operation.position()?;
        let page = self.page(block, position, &ScanArgs::decode(rest)?)?;
        let at_end = Page::decode(&page.args).is_some_and(|page| page.end);
        if page.payload != Payload::None || !at_end {
            // It has something, or has looked at as many as it may and the caller goes on from there.
            return Ok(Outcome::Done(page));
        }
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

    /// Answers those who wait for the record that was just appended, in the order in which they came.
    fn serve_followers(&mut self, block: &Backing, tag: &[u8]) {
        if self.followers.is_empty() {
            return;
        }
        let newest = (self.next_number - 1) as i64;
        for follower in std::mem::take(&mut self.followers) {
            let args = ScanArgs::decode(&follower.args).expect("read when it came");
            if args.tag.is_empty() || args.tag == tag {
                let (Ok(page) | Err(page)) = self.page(block, newest, &args);
                self.events.push_back(Event::Answered(follower.ticket, page));
            } else {
                self.followers.push(follower);
            }
        }
    }

    // ----------------------------------------------------------------------------- trimming

    fn trim(&mut self, operation: &Operation<'_>) -> Result<Answer, Answer> {
        let (position, rest) = operation.position()?;
        no_more(rest)?;
        let before = self.trimmed;
        // What this block has of them: what lies beyond concerns its successors, or is still to come.
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

    /// Gives a piece of what is trimmed back to the operating system, and begins anew when nothing is
    /// left in the block.
    fn give_back(&mut self, block: &mut Backing, now: Time) {
        self.give_back_at = None;
        let end = self.end_below(block, self.trimmed);
        let empty = self.sealed.is_none() && self.trimmed == self.next_number && self.tail > 0;
        if end - self.given_back < GIVE_BACK_STEP && !empty {
            return;
        }
        let piece = self.given_back..end.min(self.given_back + GIVE_BACK_STEP);
        let last = empty && piece.end == end;
        // Beginning anew needs all of them, for what comes next is written there.
        let needed = if last { 0..end } else { piece.clone() };
        if block.is_pinned(&needed) {
            self.give_back_at = Some(now + GIVE_BACK_AGAIN);
            return;
        }
        // When the kernel refuses (pages that somebody has locked), they only stay resident.
        let _ = block.discard(piece.clone());
        self.given_back = piece.end;
        if last {
            (self.base, self.tail, self.given_back) = (self.next_number, 0, 0);
        } else {
            self.give_back_at = Some(now);
        }
    }

    fn stats(&self, block: &Backing) -> Answer {
        let records = self.next_number - self.trimmed;
        let bytes = (self.tail - self.end_below(block, self.trimmed)) as u64;
        let stats = Stats {
            records,
            // Without the length of each tag.
            bytes: bytes - records,
            appended: self.next_number,
            used: self.bytes_used(),
            sealed: self.sealed.is_some(),
        };
        Answer { args: stats.encode(), ..Answer::ok(0) }
    }
}

impl Structure for LogBlock {
    fn apply(&mut self, block: &mut Backing, operation: &Operation<'_>, payload: &[u8]) -> Outcome {
        let answered = match operation.number() {
            ops::APPEND => Ok(Outcome::Done(self.append(block, operation.args, payload))),
            ops::READ => self.read(block, operation).map(Outcome::Done),
            ops::SCAN => self.scan(block, operation).map(Outcome::Done),
            ops::FOLLOW => self.follow(block, operation),
            ops::TRIM => self.trim(operation).map(Outcome::Done),
            ops::STATS => no_more(operation.args).map(|()| Outcome::Done(self.stats(block))),
            other => unreachable!("the shard lets only operations of the table in, not {other}"),
        };
        answered.unwrap_or_else(Outcome::Done)
    }

    fn cancel(&mut self, ticket: Ticket) -> bool {
        let before = self.followers.len();
        self.followers.retain(|follower| follower.ticket != ticket);
        self.followers.len() < before
    }

    fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn tick(&mut self, block: &mut Backing, now: Time) {
        for follower in self.followers.extract_if(.., |follower| follower.until <= now) {
            self.events.push_back(Event::Answered(follower.ticket, nothing_yet()));
        }
        if self.give_back_at.is_some_and(|at| at <= now) {
            self.give_back(block, now);
        }
    }

    fn deadline(&self) -> Option<Time> {
        let waits = self.followers.iter().map(|follower| follower.until);
        waits.chain(self.give_back_at).min()
    }

    fn bytes_used(&self) -> u64 {
        let beside: usize =
            self.followers.iter().map(|f| size_of::<Follower>() + f.args.len()).sum();
        // Those who follow are kept beside the block, which has no more bytes than it has.
        (self.tail - self.given_back + self.index_bytes() + beside).min(self.size) as u64
    }

    fn wants_successor(&mut self) -> bool {
        self.sealed.is_none() && self.next.wanted(self.tail + self.index_bytes())
    }

    fn tell(&mut self, _block: &mut Backing, _now: Time, news: News) {
        if let News::Successor(successor) = news {
            self.next.set(successor, self.tail + self.index_bytes());
        }
    }
}

fn nothing_yet() -> Answer {
    Answer::refuse(Status::NotYet, "no such record has been appended")
}

fn no_more(args: &[u8]) -> Result<(), Answer> {
    if args.is_empty() {
        return Ok(());
    }
    Err(Answer::refuse(Status::BadFrame, "the operation takes no more arguments"))
}
