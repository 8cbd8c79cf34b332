//! Splits input into items for `queue put`, as it arrives and with bounded memory.

use crate::failure::{CommandResult, Failure};
use crate::size;
use honeycomb_wire::Status;
use std::io::{ErrorKind, Read};

/// Bytes of one read.
const PIECE: usize = 64 << 10;

/// The delimiter of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delimiter {
    /// The whole input is one item.
    Whole,
    /// Each item ends at this byte, which is not part of it. The last item may lack it.
    At(u8),
}

/// The input.
pub struct ItemReader<R> {
    from: R,
    /// Name of the input in errors.
    name: String,
    cut: Delimiter,
    limit: usize,
    /// Start of the item whose end has not arrived.
    begun: Vec<u8>,
    /// Number of complete items.
    count: u64,
    ended: bool,
}

impl<R: Read> ItemReader<R> {
    /// Items of at most `limit` bytes.
    pub fn new(from: R, name: String, cut: Delimiter, limit: usize) -> ItemReader<R> {
        ItemReader { from, name, cut, limit, begun: Vec::new(), count: 0, ended: false }
    }

    /// The items completed by the next read, in order; may be empty. `None` at the end.
    ///
    /// Complete items are not delayed, so that the lines of a slow writer are put one by one. An item over
    /// the limit is `ValueTooLarge`, after the items before it.
    pub fn next(&mut self) -> CommandResult<Option<Vec<Vec<u8>>>> {
        if self.ended {
            return Ok(None);
        }
        // Complete items before the too large one were returned by the previous call.
        self.check()?;
        let mut piece = vec![0; PIECE];
        let n = loop {
            match self.from.read(&mut piece) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                other => break other.map_err(|e| Failure::io(&self.name, &e))?,
            }
        };
        let mut items = Vec::new();
        if n == 0 {
            self.ended = true;
            // The last line may lack its end; a whole input may be empty.
            if self.cut == Delimiter::Whole || !self.begun.is_empty() {
                items.push(std::mem::take(&mut self.begun));
            }
        } else {
            self.cut(&piece[..n], &mut items);
        }
        self.count += items.len() as u64;
        Ok(Some(items))
    }

    /// Splits input up to the first item that is too large, which remains in `begun`.
    fn cut(&mut self, mut rest: &[u8], items: &mut Vec<Vec<u8>>) {
        let Delimiter::At(end) = self.cut else {
            return self.begun.extend_from_slice(rest);
        };
        while let Some(at) = rest.iter().position(|byte| *byte == end) {
            self.begun.extend_from_slice(&rest[..at]);
            if self.begun.len() > self.limit {
                return;
            }
            items.push(std::mem::take(&mut self.begun));
            rest = &rest[at + 1..];
        }
        self.begun.extend_from_slice(rest);
    }

    fn check(&self) -> CommandResult {
        if self.begun.len() <= self.limit {
            return Ok(());
        }
        let what = match self.cut {
            Delimiter::Whole => self.name.clone(),
            Delimiter::At(_) => format!("item {} of {}", self.count + 1, self.name),
        };
        let text = format!(
            "cannot put {what}: it has more than {}, the limit for an item in blocks of this size",
            size::show(self.limit as u64)
        );
        Err(Failure::new(Status::ValueTooLarge, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that returns at most this many bytes at a time.
    struct Slowly<'a>(&'a [u8], usize);

    impl Read for Slowly<'_> {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            let n = self.1.min(self.0.len()).min(out.len());
            out[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    fn all(input: &[u8], at_a_time: usize, cut: Delimiter) -> (Vec<Vec<u8>>, Option<Failure>) {
        let mut items = ItemReader::new(Slowly(input, at_a_time), "it".into(), cut, 8);
        let mut found = Vec::new();
        loop {
            match items.next() {
                Ok(Some(more)) => found.extend(more),
                Ok(None) => return (found, None),
                Err(e) => return (found, Some(e)),
            }
        }
    }

    #[test]
    fn input_is_cut_the_same_however_it_comes() {
        let lines = Delimiter::At(b'\n');
        for at_a_time in [1, 2, 3, 7, 100] {
            let is = |input: &[u8], cut, wanted: &[&[u8]]| {
                let (found, failed) = all(input, at_a_time, cut);
                assert_eq!((found, failed), (wanted.iter().map(|i| i.to_vec()).collect(), None));
            };
            is(b"", lines, &[]);
            is(b"a\nbc", lines, &[b"a", b"bc"]);
            is(b"a\n\nbc\r\n", lines, &[b"a", b"", b"bc\r"]);
            is(b"\n", lines, &[b""]);
            is(b"a\n\0b\xff\0", Delimiter::At(0), &[b"a\n", b"b\xff"]);
            is(b"12345678\n", lines, &[b"12345678"]);
            is(b"", Delimiter::Whole, &[b""]);
            is(b"a\nb\n", Delimiter::Whole, &[b"a\nb\n"]);
        }
    }

    #[test]
    fn an_item_over_the_limit_is_told_after_those_before_it() {
        for at_a_time in [1, 5, 100] {
            let (found, failed) = all(b"a\nb\n123456789\nc\n", at_a_time, Delimiter::At(b'\n'));
            assert_eq!(found, [b"a", b"b"]);
            let failed = failed.unwrap();
            assert_eq!(failed.status(), Some(Status::ValueTooLarge));
            let text = failed.to_string();
            assert!(text.contains("item 3 of it: it has more than 8 B"), "{failed}");
            let (found, failed) = all(b"123456789", at_a_time, Delimiter::Whole);
            assert!(found.is_empty() && failed.is_some());
        }
    }

    #[test]
    fn an_input_without_end_is_refused_at_the_limit() {
        let mut items =
            ItemReader::new(std::io::repeat(b'x'), "it".into(), Delimiter::At(b'\n'), 8);
        assert_eq!(items.next().unwrap(), Some(vec![]));
        assert!(items.next().is_err());
    }
}
