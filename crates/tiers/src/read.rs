//! Reading a flush: the manifest first, then the parts, each with its checksum.

use crate::FlushError;
use crate::large::Extents;
use crate::manifest::{FlushedPart, FlushedStructure, Manifest, Unreadable};
use honeycomb_types::{FLUSH_MANIFEST, Kind};
use std::path::{Path, PathBuf};

/// Of the length of a kv's value: it is a list of extents.
const OF_EXTENTS: u32 = 1 << 31;

/// A flush in a directory.
#[derive(Debug)]
pub struct Flushed {
    directory: PathBuf,
    manifest: Manifest,
}

impl Flushed {
    /// Opens the flush in this directory: reads its manifest. `NoManifest` when there is none, also
    /// when one was begun and never finished.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Flushed, FlushError> {
        let directory = directory.into();
        let object = directory.join(FLUSH_MANIFEST);
        let text = match std::fs::read(&object) {
            Ok(text) => text,
            Err(why) => return Err(FlushError::NoManifest { directory, why }),
        };
        match Manifest::decode(&text) {
            Ok(manifest) => Ok(Flushed { directory, manifest }),
            Err(Unreadable::Damaged(why)) => Err(FlushError::Damaged { object, why }),
            Err(Unreadable::Newer(version)) => Err(FlushError::Newer { directory, version }),
        }
    }

    /// What the flush consists of.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// All bytes of a file.
    pub fn file(&self, name: &str) -> Result<Vec<u8>, FlushError> {
        let mut all = Vec::new();
        for part in &self.structure(name, Kind::File)?.parts {
            all.extend(self.part(part)?);
        }
        Ok(all)
    }

    /// The items of a queue, in order; one part is in memory at a time.
    pub fn queue(&self, name: &str) -> Result<Items<'_>, FlushError> {
        Ok(Items(Records::new(self, self.structure(name, Kind::Queue)?)))
    }

    /// The entries of a kv, in no particular order; one part is in memory at a time, and one value.
    pub fn kv(&self, name: &str) -> Result<Entries<'_>, FlushError> {
        let structure = self.structure(name, Kind::Kv)?;
        let extents = Extents::read(self, structure)?;
        Ok(Entries { records: Records::new(self, structure), extents })
    }

    /// Reads every part and compares it with the manifest.
    pub fn check(&self) -> Result<(), FlushError> {
        for structure in &self.manifest.structures {
            match structure.kind.as_str() {
                "queue" => self.queue(&structure.name)?.try_for_each(|item| item.map(drop))?,
                "kv" => self.kv(&structure.name)?.try_for_each(|entry| entry.map(drop))?,
                _ => structure.parts.iter().try_for_each(|part| self.part(part).map(drop))?,
            }
        }
        Ok(())
    }

    fn structure(&self, name: &str, kind: Kind) -> Result<&FlushedStructure, FlushError> {
        let refuse = || FlushError::NoStructure { kind: kind.name(), name: name.to_owned() };
        self.manifest.structure(name, kind).ok_or_else(refuse)
    }

    pub(crate) fn part(&self, part: &FlushedPart) -> Result<Vec<u8>, FlushError> {
        let object = self.directory.join(&part.name);
        let bytes = match std::fs::read(&object) {
            Ok(bytes) => bytes,
            Err(why) => return Err(FlushError::Read { object, why }),
        };
        let found = bytes.len() as u64;
        if found != part.bytes {
            let why = format!("it has {found} bytes, and the manifest says {}", part.bytes);
            return Err(FlushError::Damaged { object, why });
        }
        if crc32fast::hash(&bytes) != part.crc32 {
            let why = "its checksum is not that of the manifest".into();
            return Err(FlushError::Damaged { object, why });
        }
        Ok(bytes)
    }
}

/// Records of the parts of a structure, one after the other.
struct Records<'a> {
    flushed: &'a Flushed,
    parts: std::vec::IntoIter<&'a FlushedPart>,
    part: Option<&'a FlushedPart>,
    bytes: Vec<u8>,
    at: usize,
    seen: u64,
    /// The last field of the last record names the extents of the value.
    elsewhere: bool,
}

impl<'a> Records<'a> {
    fn new(flushed: &'a Flushed, structure: &'a FlushedStructure) -> Records<'a> {
        let parts: Vec<_> = structure.parts.iter().filter(|part| !part.is_of_extents()).collect();
        let parts = parts.into_iter();
        Records { flushed, parts, part: None, bytes: Vec::new(), at: 0, seen: 0, elsewhere: false }
    }

    /// The next record, which has a length for each of its fields and then the fields.
    fn next<const FIELDS: usize>(&mut self) -> Option<Result<[Vec<u8>; FIELDS], FlushError>> {
        while self.at == self.bytes.len() {
            if let Some(part) = self.part.take().filter(|part| part.items != self.seen) {
                let why = format!("it has {} records, not {}", self.seen, part.items);
                return Some(Err(self.damaged(part, why)));
            }
            let part = self.parts.next()?;
            match self.flushed.part(part) {
                Ok(bytes) => {
                    (self.bytes, self.at, self.seen, self.part) = (bytes, 0, 0, Some(part))
                }
                Err(e) => return Some(Err(e)),
            }
        }
        match self.record() {
            Some(fields) => Some(Ok(fields)),
            None => {
                let part = self.part.take().expect("its bytes are being read");
                (self.at, self.bytes) = (0, Vec::new());
                Some(Err(self.damaged(part, "a record leaves it".into())))
            }
        }
    }

    fn record<const FIELDS: usize>(&mut self) -> Option<[Vec<u8>; FIELDS]> {
        let mut lengths = [0; FIELDS];
        self.elsewhere = false;
        for length in &mut lengths {
            let told = u32::from_le_bytes(self.take(4)?.try_into().ok()?);
            self.elsewhere |= told & OF_EXTENTS != 0;
            *length = (told & !OF_EXTENTS) as usize;
        }
        let mut fields = [const { Vec::new() }; FIELDS];
        for (field, length) in fields.iter_mut().zip(lengths) {
            *field = self.take(length)?.to_vec();
        }
        self.seen += 1;
        Some(fields)
    }

    fn take(&mut self, n: usize) -> Option<&[u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(n)?)?;
        self.at += n;
        Some(taken)
    }

    fn damaged(&self, part: &FlushedPart, why: String) -> FlushError {
        FlushError::Damaged { object: self.flushed.directory.join(&part.name), why }
    }
}

/// The items of a flushed queue.
pub struct Items<'a>(Records<'a>);

impl Iterator for Items<'_> {
    type Item = Result<Vec<u8>, FlushError>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.0.next::<1>()?;
        Some(record.map(|[item]| item))
    }
}

/// The entries of a flushed kv.
pub struct Entries<'a> {
    records: Records<'a>,
    extents: Extents,
}

impl Iterator for Entries<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>), FlushError>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.records.next::<2>()?;
        Some(record.and_then(|[key, value]| match self.records.elsewhere {
            true => Ok((key, self.extents.value(&value)?)),
            false => Ok((key, value)),
        }))
    }
}
