//! Message bodies: fields one after the other, little-endian, lengths before contents.

use honeycomb_types::limits::BATCH_MAX;
use thiserror::Error;

/// The error for bytes that do not parse, and its position.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("malformed at byte {at}: {why}")]
pub struct Malformed {
    /// Offset of the field that does not parse.
    pub at: usize,
    /// The rule that it breaks.
    pub why: &'static str,
}

/// A cursor over received bytes. It never reads past them and never trusts a length.
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// The next `n` bytes.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let rest = &self.bytes[self.at..];
        if rest.len() < n {
            return Err(self.malformed("the bytes end inside a field"));
        }
        self.at += n;
        Ok(&rest[..n])
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }

    /// Ends the reading: nothing may be left over.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.at == self.bytes.len() {
            return Ok(());
        }
        Err(self.malformed("bytes are left over"))
    }

    /// The next text, in place: for readers of thousands of texts that keep none.
    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        let length = u16::get(self)? as usize;
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes).map_err(|_| self.malformed("text is not UTF-8"))
    }

    /// A list of texts, in place.
    pub fn texts(&mut self) -> Result<Vec<&'a str>, Malformed> {
        let count = self.count(size_of::<u16>())?;
        if count > BATCH_MAX {
            return Err(self.malformed("a list has more than 65,536 items"));
        }
        (0..count).map(|_| self.text()).collect()
    }

    /// A count of items of at least `each` bytes, checked against the remaining bytes: a false
    /// count is refused before it costs memory.
    pub(crate) fn count(&mut self, each: usize) -> Result<usize, Malformed> {
        let count = u32::get(self)? as usize;
        if count > (self.bytes.len() - self.at) / each {
            return Err(self.malformed("a list claims more items than there are bytes"));
        }
        Ok(count)
    }

    /// An error at the current position.
    pub fn malformed(&self, why: &'static str) -> Malformed {
        Malformed { at: self.at, why }
    }
}

/// A type that can be a field of a message body.
pub trait Field: Sized {
    /// Appends the bytes.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads them back.
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed>;

    /// The bytes of a whole body.
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }

    /// Reads a whole body, without bytes left over.
    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let value = Self::get(&mut reader)?;
        reader.finish()?;
        Ok(value)
    }
}

/// Bodies that consist of their fields, one after the other.
macro_rules! fields {
    ($name:ident { $($field:ident),* }) => {
        impl $crate::fields::Field for $name {
            fn put(&self, _out: &mut Vec<u8>) {
                $($crate::fields::Field::put(&self.$field, _out);)*
            }

            fn get(
                _from: &mut $crate::fields::Reader<'_>,
            ) -> Result<Self, $crate::fields::Malformed> {
                Ok($name { $($field: $crate::fields::Field::get(_from)?),* })
            }
        }
    };
}
pub(crate) use fields;

macro_rules! number {
    ($($t:ty),*) => {$(
        impl Field for $t {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                let bytes = from.take(size_of::<$t>())?;
                Ok(<$t>::from_le_bytes(bytes.try_into().expect("take gave the length asked for")))
            }
        }
    )*};
}
number!(u8, u16, u32, u64, i64, u128);

impl Field for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::get(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(from.malformed("a boolean must be 0 or 1")),
        }
    }
}

impl Field for String {
    fn put(&self, out: &mut Vec<u8>) {
        let length = u16::try_from(self.len()).expect("strings in messages are under 64 KiB");
        length.put(out);
        out.extend_from_slice(self.as_bytes());
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.text().map(str::to_owned)
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(if bool::get(from)? { Some(T::get(from)?) } else { None })
    }
}

/// `bytes` has the form of a list of `u8`.
impl<T: Field + 'static> Field for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        for item in self {
            item.put(out);
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = u32::get(from)? as usize;
        // Each item takes at least a byte, so a count greater than the remaining bytes is false: it
        // is refused before it costs memory.
        if count > from.bytes.len() - from.at {
            return Err(from.malformed("a list claims more items than there are bytes"));
        }
        let bytes = std::any::TypeId::of::<T>() == std::any::TypeId::of::<u8>();
        if count > BATCH_MAX && !bytes {
            return Err(from.malformed("a list has more than 65,536 items"));
        }
        let mut items = Vec::with_capacity(count.min(4096));
        for _ in 0..count {
            items.push(T::get(from)?);
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{DagNode, PrefixOptions};

    #[test]
    fn texts_are_read_where_they_lie_as_a_list_of_strings_is() {
        let list = vec!["a/b".to_owned(), String::new(), "\u{e9}".to_owned()];
        let bytes = list.encode();
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.texts().unwrap(), list);
        reader.finish().unwrap();
        for end in 0..bytes.len() {
            assert!(Reader::new(&bytes[..end]).texts().is_err(), "cut at {end}");
        }
        let not_text = [1, 0, 0, 0, 1, 0, 0xff];
        assert!(Reader::new(&not_text).texts().is_err());
    }

    #[test]
    fn bodies_round_trip() {
        let node = DagNode {
            name: "reduce-0".into(),
            parents: vec!["map-0".into(), "map-1".into()],
            options: PrefixOptions {
                lease_ms: 500,
                pinned: true,
                owner_verbs: 3,
                job_verbs: 1,
                high_mark: 90,
                low_mark: 9,
                flush_to: "out".into(),
                max_blocks: 9,
                loading: true,
                persist: true,
                acknowledge: 2,
            },
            readers: vec!["write-0".into()],
        };
        assert_eq!(DagNode::decode(&node.encode()).unwrap(), node);
        assert_eq!(Vec::<u8>::decode(&vec![7u8; 9].encode()).unwrap(), vec![7u8; 9]);
        assert_eq!(Option::<u32>::decode(&Some(5u32).encode()).unwrap(), Some(5));
    }

    #[test]
    fn every_truncation_and_every_extra_byte_is_refused() {
        let body = DagNode { name: "a".into(), parents: vec!["b".into()], ..Default::default() };
        let bytes = body.encode();
        for cut in 0..bytes.len() {
            assert!(DagNode::decode(&bytes[..cut]).is_err(), "{cut} bytes were accepted");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(DagNode::decode(&longer).unwrap_err().why, "bytes are left over");
    }

    #[test]
    fn a_list_cannot_claim_more_than_its_bytes() {
        let lie = u32::MAX.to_le_bytes();
        assert!(Vec::<u64>::decode(&lie).is_err());
    }
}
