//! Answers to changing requests, retained for retries.
//!
//! A client that lost its connection, or its controller, does not know whether its request was applied, and
//! retries it with the same number. It gets the original answer, even from a restarted controller: the answer
//! is logged with its change.

use honeycomb_types::limits::{CONTROL_ANSWERS_MAX, CONTROL_ANSWERS_TIME};
use honeycomb_types::{SessionId, Time};
use std::collections::{HashMap, VecDeque};

/// Type of their records in the log; types below 0x40 belong to the catalog.
pub(crate) const RECORD: u8 = 0x40;
const VERSION: u8 = 1;
/// Bytes of the length, type and version before each record.
const HEAD: usize = 4 + 1 + 1;
/// Bytes of a record before the answer.
const FIXED: usize = 16 + 8 + 8;

/// Answers by session and request number.
#[derive(Debug, Default)]
pub struct Answers {
    kept: HashMap<(SessionId, u64), Vec<u8>>,
    /// The answers by age, the oldest first.
    order: VecDeque<(Time, SessionId, u64)>,
    bytes: usize,
}

fn put(out: &mut Vec<u8>, at: Time, session: SessionId, number: u64, body: &[u8]) {
    let start = out.len();
    let length = (FIXED + body.len()) as u32;
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&[RECORD, VERSION]);
    out.extend_from_slice(&session.0.to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&at.0.to_le_bytes());
    let head = out.len() - start;
    assert_eq!(head, HEAD + FIXED, "INV-16: {head} bytes of a record precede its answer");
    out.extend_from_slice(body);
}

impl Answers {
    /// The answer to the request, if it is still retained.
    pub fn find(&self, session: SessionId, number: u64) -> Option<&[u8]> {
        self.kept.get(&(session, number)).map(Vec::as_slice)
    }

    /// Retains an answer and appends its record to `out`.
    pub fn keep(
        &mut self,
        out: &mut Vec<u8>,
        at: Time,
        session: SessionId,
        number: u64,
        body: &[u8],
    ) {
        debug_assert!(
            self.find(session, number).is_none(),
            "INV-16: request {number:#x} is applied, and was answered before"
        );
        put(out, at, session, number, body);
        self.insert(at, session, number, body);
    }

    fn insert(&mut self, at: Time, session: SessionId, number: u64, body: &[u8]) {
        while let Some(&(oldest, session, number)) = self.order.front() {
            let full = self.bytes + body.len() > CONTROL_ANSWERS_MAX;
            if !full && at.since(oldest) <= CONTROL_ANSWERS_TIME {
                break;
            }
            self.order.pop_front();
            let gone = self.kept.remove(&(session, number));
            assert!(gone.is_some(), "INV-16: request {number:#x} is listed, and has no answer");
            let (all, gone) = (self.bytes, FIXED + gone.map_or(0, |gone| gone.len()));
            assert!(all >= gone, "INV-33: an answer of {gone} bytes is dropped, of {all}");
            self.bytes -= gone;
        }
        match self.kept.insert((session, number), body.to_vec()) {
            None => {
                self.order.push_back((at, session, number));
                self.bytes += FIXED + body.len();
            }
            // Only a log that was changed has an answer twice.
            Some(before) => self.bytes = self.bytes - before.len() + body.len(),
        }
        let (listed, kept) = (self.order.len(), self.kept.len());
        assert_eq!(listed, kept, "INV-16: {listed} answers are listed, and {kept} are retained");
    }

    /// Reads one record; the error says why it is invalid.
    pub(crate) fn record(&mut self, version: u8, body: &[u8]) -> Result<(), String> {
        if version > VERSION {
            return Err(format!("an answer has version {version}; this program reads {VERSION}"));
        }
        let Some((fixed, body)) = body.split_at_checked(FIXED) else {
            return Err("the record of an answer is too short".into());
        };
        let session = u128::from_le_bytes(fixed[..16].try_into().expect("16 bytes"));
        let number = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().expect("8 bytes"));
        self.insert(Time(number(24)), SessionId(session), number(16), body);
        Ok(())
    }

    /// Writes the records of all answers.
    pub fn put_all(&self, out: &mut Vec<u8>) {
        for (at, session, number) in &self.order {
            put(out, *at, *session, *number, &self.kept[&(*session, *number)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_with_an_answer_twice_has_the_last_one_and_its_bytes() {
        let (mut out, mut answers) = (Vec::new(), Answers::default());
        let long = vec![1; CONTROL_ANSWERS_MAX / 2];
        for body in [&[][..], &long] {
            let start = out.len();
            put(&mut out, Time::from_millis(1), SessionId(7), 1, body);
            answers.record(VERSION, &out[start + HEAD..]).unwrap();
        }
        assert_eq!(answers.find(SessionId(7), 1), Some(&long[..]));
        // It goes, with its bytes, when others need the space.
        answers.keep(&mut out, Time::from_millis(2), SessionId(7), 2, &long);
        answers.keep(&mut out, Time::from_millis(3), SessionId(7), 3, &long);
        assert_eq!((answers.find(SessionId(7), 1), answers.order.len()), (None, 1));
        assert_eq!(answers.bytes, FIXED + long.len());
    }

    #[test]
    fn answers_are_found_again_and_forgotten_in_time() {
        let (mut out, mut answers) = (Vec::new(), Answers::default());
        let session = SessionId(7);
        answers.keep(&mut out, Time::from_millis(1), session, 1, b"one");
        answers.keep(&mut out, Time::from_millis(2), session, 2, b"");
        let mut again = Answers::default();
        let mut left = &out[..];
        while !left.is_empty() {
            let length = u32::from_le_bytes(left[..4].try_into().unwrap()) as usize;
            assert_eq!(left[4], RECORD);
            again.record(left[5], &left[6..6 + length]).unwrap();
            left = &left[6 + length..];
        }
        assert_eq!(again.find(session, 1), Some(&b"one"[..]));
        assert_eq!(again.find(session, 2), Some(&b""[..]));
        assert_eq!(again.find(SessionId(8), 1), None);
        let mut all = Vec::new();
        again.put_all(&mut all);
        assert_eq!(all, out);
        let later = Time::from_millis(2) + CONTROL_ANSWERS_TIME;
        again.keep(&mut out, later, session, 3, b"");
        assert_eq!((again.find(session, 1), again.find(session, 2)), (None, Some(&b""[..])));
        again.keep(&mut out, later, session, 4, &vec![0; CONTROL_ANSWERS_MAX]);
        assert_eq!(again.find(session, 2), None, "the answers are bounded in bytes");
    }
}
