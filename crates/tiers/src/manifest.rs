//! The manifest: the content of a flush. One line of JSON, and one with its checksum.

use honeycomb_types::FLUSH_EXTENTS;
use serde::{Deserialize, Serialize};

/// The identification in every manifest.
const FORMAT: &str = "honeycomb-flush";
/// The version that is written. Earlier ones are readable: 1 and 2 had the hash slots of a kv, 2 was
/// a version with large values, 3 had no items in extents, and 4 no lists of lists.
pub(crate) const VERSION: u32 = 5;

/// The content of a prefix, as it was flushed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    format: String,
    version: u32,
    /// The scope of the flush numbers: one run of one controller. Empty if the controller did not
    /// name it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub lineage: String,
    /// The number of the flush; of two with one lineage in one place, the later one has the greater
    /// number.
    pub number: u64,
    /// Name of the job.
    pub job: String,
    /// Path of the prefix; empty for the root.
    pub address: String,
    /// Its structures, in the order of creation.
    pub structures: Vec<FlushedStructure>,
    /// For a subtree: the paths of its descendants, relative to this prefix, which have flushes of
    /// their own (`Place::below`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub below: Vec<String>,
    /// Names of objects of the previous flush at this place, which are to be deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaces: Vec<String>,
}

/// One structure as it was flushed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushedStructure {
    /// Its name; empty for the unnamed one.
    pub name: String,
    /// `file`, `queue`, `kv`, or the name of a custom kind.
    pub kind: String,
    /// Whether the structure accepted no more writes: a sealed file, a closed queue.
    pub sealed: bool,
    /// Bound of a queue, in items; 0 for none.
    pub max_items: u64,
    /// Bound of a queue, in bytes; 0 for none.
    pub max_bytes: u64,
    /// The parts, in the order of the structure.
    pub parts: Vec<FlushedPart>,
}

/// The content of one block, in an object of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushedPart {
    /// Name of the object, in the manifest's directory.
    pub name: String,
    /// First position of the block's range; 2^64-1 if the server had not reported it yet.
    pub start: u64,
    /// Length of the object.
    pub bytes: u64,
    /// Bytes of a file, items of a queue, entries of a kv; extents in a part of extents.
    pub items: u64,
    /// CRC-32 of the object.
    pub crc32: u32,
}

impl FlushedPart {
    /// Whether it holds extents of large values, and no entries.
    pub fn is_of_extents(&self) -> bool {
        self.name.ends_with(FLUSH_EXTENTS)
    }

    /// The block and epoch by which entries name the extents in it.
    pub(crate) fn extents_of(&self) -> Option<(u64, u64)> {
        let mut fields = self.name.strip_suffix(FLUSH_EXTENTS)?.rsplit('-');
        let epoch = u64::from_str_radix(fields.next()?, 16).ok()?;
        Some((u64::from_str_radix(fields.next()?, 16).ok()?, epoch))
    }
}

impl Manifest {
    /// A manifest that replaces nothing.
    pub fn new(
        lineage: String,
        number: u64,
        job: String,
        address: String,
        structures: Vec<FlushedStructure>,
    ) -> Manifest {
        let version = VERSION;
        let (format, below, replaces) = (FORMAT.into(), Vec::new(), Vec::new());
        Manifest { format, version, lineage, number, job, address, structures, below, replaces }
    }

    /// The structure of this name and kind.
    pub fn structure(&self, name: &str, kind: &str) -> Option<&FlushedStructure> {
        self.structures.iter().find(|s| s.name == name && s.kind == kind)
    }

    /// Whether the other manifest describes the same flush. Names of objects are never reused, so
    /// these fields identify a flush, whichever controller requested it and whichever flush it
    /// replaced.
    pub(crate) fn is_as(&self, other: &Manifest) -> bool {
        let own = (self.number, &self.job, &self.address, &self.structures);
        own == (other.number, &other.job, &other.address, &other.structures)
    }

    /// Its parts, over all structures.
    pub fn parts(&self) -> impl Iterator<Item = &FlushedPart> {
        self.structures.iter().flat_map(|s| &s.parts)
    }

    /// Names of its objects.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.parts().map(|part| &*part.name)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).expect("a manifest has only texts and numbers");
        let crc = crc32fast::hash(&text);
        text.extend_from_slice(format!("\ncrc32 {crc:08x}\n").as_bytes());
        text
    }

    /// The error names the damage, or the number of a newer version.
    pub(crate) fn decode(text: &[u8]) -> Result<Manifest, Unreadable> {
        let damaged = |why: &str| Unreadable::Damaged(why.to_owned());
        let end = text.iter().position(|b| *b == b'\n').ok_or(damaged("it has no second line"))?;
        let (body, last) = (&text[..end], &text[end + 1..]);
        let crc = format!("crc32 {:08x}\n", crc32fast::hash(body));
        if last != crc.as_bytes() {
            return Err(damaged("its checksum does not match its bytes"));
        }
        let value: serde_json::Value =
            serde_json::from_slice(body).map_err(|e| Unreadable::Damaged(e.to_string()))?;
        if value["format"] != FORMAT {
            return Err(damaged("it is not the manifest of a flush"));
        }
        match value["version"].as_u64() {
            Some(version) if version > VERSION as u64 => Err(Unreadable::Newer(version as u32)),
            _ => serde_json::from_value(value).map_err(|e| Unreadable::Damaged(e.to_string())),
        }
    }
}

/// Why a manifest cannot be read.
#[derive(Debug)]
pub(crate) enum Unreadable {
    Damaged(String),
    Newer(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let part = FlushedPart {
            name: "p.part".into(),
            start: u64::MAX,
            bytes: 3,
            items: 1,
            crc32: 0xffff_ffff,
        };
        let structure = FlushedStructure {
            name: "a\n\u{e9}".into(),
            kind: "kv".into(),
            sealed: false,
            max_items: 0,
            max_bytes: u64::MAX,
            parts: vec![part],
        };
        Manifest::new("a/0".into(), u64::MAX, "job".into(), "T4/T6".into(), vec![structure])
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Manifest::decode(&manifest().encode()).unwrap(), manifest());
    }

    #[test]
    fn any_changed_or_missing_byte_is_seen() {
        let good = manifest().encode();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(Manifest::decode(&bad).is_err(), "byte {at} was changed");
            assert!(Manifest::decode(&good[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_newer_version_is_refused_by_its_number() {
        let newer = Manifest { version: 7, ..manifest() };
        assert!(matches!(Manifest::decode(&newer.encode()), Err(Unreadable::Newer(7))));
        let other = Manifest { format: "other".into(), ..manifest() };
        assert!(matches!(Manifest::decode(&other.encode()), Err(Unreadable::Damaged(_))));
    }
}
