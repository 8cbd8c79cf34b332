//! Large values of a flushed kv: their extents are in separate parts.

use crate::FlushError;
use crate::manifest::FlushedStructure;
use crate::read::Flushed;
use honeycomb_types::limits::EXTENT_REF;
use honeycomb_wire::extents::{ListHead, list_below};
use std::borrow::Cow;
use std::collections::HashMap;

/// Bytes before each extent in its part: id u64, length u32.
const HEAD: usize = 12;

/// The location of an extent: object, first byte, length; and its checksum, because it is read
/// again.
type ExtentLocation = (usize, u64, u32, u32);

/// The location of each extent of a structure, by block, epoch and id.
pub(crate) struct ExtentIndex<'a> {
    flushed: &'a Flushed,
    /// Names of the objects.
    objects: Vec<&'a str>,
    places: HashMap<(u64, u64, u64), ExtentLocation>,
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn length(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl<'a> ExtentIndex<'a> {
    /// Reads and checks the parts, one after the other, and records the location of every extent.
    pub fn read(
        flushed: &'a Flushed,
        structure: &'a FlushedStructure,
    ) -> Result<ExtentIndex<'a>, FlushError> {
        let mut all = ExtentIndex { flushed, objects: Vec::new(), places: HashMap::new() };
        for part in structure.parts.iter().filter(|part| part.is_of_extents()) {
            let damaged = |why: &str| flushed.damaged(&part.name, why.into());
            let (block, epoch) =
                part.extents_of().ok_or_else(|| damaged("its name has no block and epoch"))?;
            let bytes = flushed.part(part)?;
            let (mut at, mut seen) = (0, 0);
            while at < bytes.len() {
                let (Some(id), Some(len)) = (number(&bytes, at), length(&bytes, at + 8)) else {
                    return Err(damaged("an extent extends past its end"));
                };
                at += HEAD;
                let end = at + len as usize;
                let crc = bytes.get(at..end).map_or(0, crc32fast::hash);
                let place = (all.objects.len(), at as u64, len, crc);
                all.places.insert((block, epoch, id), place);
                at = end;
                seen += 1;
            }
            if at != bytes.len() || seen != part.items {
                return Err(damaged("its extents do not match the manifest"));
            }
            all.objects.push(&part.name);
        }
        Ok(all)
    }

    /// The value of a list of extents.
    pub fn value(&self, list: &[u8]) -> Result<Vec<u8>, FlushError> {
        let mut list = Cow::Borrowed(list);
        loop {
            let head = ListHead::of(&list).map_or(0, |_| EXTENT_REF);
            let bytes = self.named(&list[head..])?;
            match list_below(&list, &bytes).map_err(|e| self.missing(e.to_string()))? {
                Some(below) => list = Cow::Owned(below),
                None => return Ok(bytes),
            }
        }
    }

    /// The bytes of all extents that one list names.
    fn named(&self, list: &[u8]) -> Result<Vec<u8>, FlushError> {
        let mut value = Vec::new();
        for one in list.chunks(EXTENT_REF) {
            let name = (number(one, 0), number(one, 8), number(one, 16), length(one, 24));
            let (Some(block), Some(epoch), Some(id), Some(len)) = name else {
                return Err(self.missing("a list of extents is truncated".into()));
            };
            let place = self.places.get(&(block, epoch, id));
            let Some(&(object, at, _, crc)) = place.filter(|(_, _, there, _)| *there == len) else {
                return Err(self.missing(format!("extent {id} of block {block:016x} is missing")));
            };
            let name = self.objects[object];
            value.extend(self.flushed.range(name, at..at + len as u64, crc)?);
        }
        Ok(value)
    }

    fn missing(&self, why: String) -> FlushError {
        FlushError::Damaged { object: self.flushed.place().to_string(), why }
    }
}
