//! The reference model of a file: the appends that it must hold, and their positions.
//!
//! Every append carries a record with its writer and its own length, and a body that follows from
//! those, so that the bytes of a file are self-describing (INV-06, INV-16, INV-23).

use honeycomb_env::Entropy;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes before the body of a record: magic, writer, number, length.
pub const HEAD: usize = 16;
const MAGIC: u32 = 0x_5EED_F11E;

/// The writer and the number of an append.
pub type Key = (u32, u32);

/// The bytes of one append of `length` bytes, at least a head.
pub fn record(key: Key, length: usize) -> Vec<u8> {
    let length = length.max(HEAD);
    let mut bytes = Vec::with_capacity(length);
    for word in [MAGIC, key.0, key.1, length as u32] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    let mut entropy = Entropy::seeded((key.0 as u64) << 32 | key.1 as u64);
    while bytes.len() < length {
        let word = entropy.next_u64().to_le_bytes();
        bytes.extend_from_slice(&word[..word.len().min(length - bytes.len())]);
    }
    bytes
}

/// The knowledge about one file.
#[derive(Debug, Default)]
pub struct FileModel {
    /// Acknowledged appends by offset.
    acked: BTreeMap<u64, Vec<u8>>,
    /// Appends with an unknown outcome.
    unknown: BTreeSet<Key>,
    /// Bytes that every read from now on must find.
    acked_end: u64,
    /// Sizes that clients observed: none is within an append.
    sizes: BTreeSet<u64>,
    /// Whether a client has asked for the seal.
    pub is_sealing: bool,
    /// Final size, once sealed.
    sealed: Option<u64>,
}

impl FileModel {
    /// An append was acknowledged at an offset.
    pub fn appended(&mut self, offset: u64, bytes: Vec<u8>) -> Result<(), String> {
        let end = offset + bytes.len() as u64;
        if self.sealed.is_some_and(|size| end > size) {
            return Err(format!("an append at {offset} after the file was sealed"));
        }
        let before = self.acked.range(..end).next_back();
        if let Some((at, other)) = before
            && at + other.len() as u64 > offset
        {
            return Err(format!("appends at {at} and {offset} overlap"));
        }
        self.acked.insert(offset, bytes);
        self.acked_end = self.acked_end.max(end);
        Ok(())
    }

    /// The file was sealed at this size.
    pub fn sealed(&mut self, size: u64) -> Result<(), String> {
        let before = *self.sealed.get_or_insert(size);
        match before == size && self.acked_end <= size {
            true => Ok(()),
            false => Err(format!(
                "the file was sealed at {size}, after a seal at {before} and appends up to {}",
                self.acked_end
            )),
        }
    }

    /// Records that the outcome of this append is unknown.
    pub fn unknown(&mut self, key: Key) {
        self.unknown.insert(key);
    }

    /// A client observed that the file ends here.
    pub fn ends_at(&mut self, size: u64) {
        self.sizes.insert(size);
    }

    /// Bytes that a read beginning now must be able to see.
    pub fn floor(&self) -> u64 {
        self.acked_end
    }

    /// Judges a read of `bytes` at `offset` of `wanted`, that began when the floor was `floor`.
    pub fn read(&self, offset: u64, wanted: usize, floor: u64, bytes: &[u8]) -> Result<(), String> {
        let due = floor.saturating_sub(offset).min(wanted as u64) as usize;
        if bytes.len() < due {
            return Err(format!(
                "a read of {wanted} bytes at {offset} found {}, but {floor} were acknowledged",
                bytes.len()
            ));
        }
        let end = offset + bytes.len() as u64;
        let first = self.acked.range(..offset).next_back().map_or(offset, |(at, _)| *at);
        for (at, content) in self.acked.range(first..end) {
            let from = (*at).max(offset);
            let to = (at + content.len() as u64).min(end);
            if from >= to {
                continue;
            }
            let found = &bytes[(from - offset) as usize..(to - offset) as usize];
            if found != &content[(from - at) as usize..(to - at) as usize] {
                return Err(format!("bytes {from} to {to} are not what was appended there"));
            }
        }
        Ok(())
    }

    /// Judges the whole file: acknowledged appends are at their reported positions, and every other
    /// record is one of the unknown ones, once.
    pub fn whole(&self, bytes: &[u8]) -> Result<(), String> {
        self.read(0, bytes.len().max(self.acked_end as usize), self.acked_end, bytes)?;
        let (mut at, mut seen) = (0usize, BTreeSet::new());
        let mut ends = BTreeSet::from([0]);
        while at < bytes.len() {
            let word = |i: usize| {
                let from = at + 4 * i;
                bytes.get(from..from + 4).map(|b| u32::from_le_bytes(b.try_into().expect("four")))
            };
            let (Some(MAGIC), Some(writer), Some(number), Some(length)) =
                (word(0), word(1), word(2), word(3))
            else {
                return Err(format!("no record begins at {at}"));
            };
            let key = (writer, number);
            let end = at + length as usize;
            if bytes.get(at..end) != Some(&record(key, length as usize)[..]) {
                return Err(format!("the record {key:?} at {at} is torn"));
            }
            if !seen.insert(key) {
                return Err(format!("the record {key:?} is there twice"));
            }
            if !self.acked.contains_key(&(at as u64)) && !self.unknown.contains(&key) {
                return Err(format!("the record {key:?} at {at} was refused, but is there"));
            }
            at = end;
            ends.insert(at as u64);
        }
        if let Some(size) = self.sealed.filter(|size| *size != at as u64) {
            return Err(format!("the file was sealed at {size} and has {at} bytes"));
        }
        match self.sizes.difference(&ends).next() {
            Some(size) => {
                Err(format!("a part of an append was visible: the size was {size} (INV-62)"))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_tells_lost_doubled_and_torn_appends() {
        let mut model = FileModel::default();
        let (a, b) = (record((1, 1), 40), record((1, 2), 50));
        model.appended(0, a.clone()).unwrap();
        model.appended(40, b.clone()).unwrap();
        assert!(model.appended(60, a.clone()).is_err(), "an overlap");
        let good = [a.clone(), b.clone()].concat();
        model.whole(&good).unwrap();
        assert!(model.whole(&a).is_err(), "lost");
        assert!(model.whole(&[good.clone(), b].concat()).is_err(), "doubled");
        let mut torn = good.clone();
        torn[70] ^= 1;
        assert!(model.whole(&torn).is_err(), "torn");
        let stranger = record((9, 9), 30);
        assert!(model.whole(&[good.clone(), stranger.clone()].concat()).is_err(), "refused");
        model.unknown((9, 9));
        model.ends_at(40);
        let all = [good, stranger].concat();
        model.whole(&all).unwrap();
        model.ends_at(41);
        assert!(model.whole(&all).is_err(), "half of it was seen");
    }
}
