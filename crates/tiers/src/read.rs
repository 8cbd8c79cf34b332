//! Reading a flush: the manifest first, then the parts, each with its checksum.

use crate::access::{self, Access};
use crate::journal::{self, Record};
use crate::large::ExtentIndex;
use crate::manifest::{FlushedPart, FlushedStructure, Manifest, Unreadable};
use crate::place::Place;
use crate::{FlushError, reason};
use honeycomb_types::FLUSH_MANIFEST;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::runtime::{Builder, Runtime};

/// How often an object is read whose bytes do not match the manifest: the transfer may have damaged
/// them.
const READS: u32 = 3;
/// Flag in the length of a kv's value, or of a queue's item: it is a list of extents.
const OF_EXTENTS: u32 = 1 << 31;

/// A flush in a directory or a bucket.
pub struct Flushed {
    place: Place,
    bucket: Option<Bucket>,
    manifest: Manifest,
    /// The text of the manifest.
    text: Vec<u8>,
    /// There is no manifest: this one was made from a journal, whose records are the parts.
    journal: bool,
}

impl fmt::Debug for Flushed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flushed({}, number {:016x})", self.place, self.manifest.number)
    }
}

/// A bucket or a directory, with the runtime that its sockets need.
pub(crate) struct Bucket {
    store: Arc<dyn ObjectStore>,
    path: Path,
    runtime: Runtime,
}

impl Bucket {
    pub(crate) fn store(&self) -> &dyn ObjectStore {
        &*self.store
    }

    pub(crate) fn above(&self) -> &Path {
        &self.path
    }

    pub(crate) fn path(&self, name: &str) -> Path {
        self.path.clone().join(name)
    }

    /// Waits for a task of its sockets.
    pub(crate) fn wait<T>(&self, task: impl Future<Output = T>) -> T {
        self.runtime.block_on(task)
    }

    pub(crate) fn open(place: &Place, access: &Access) -> Result<Bucket, FlushError> {
        let (store, path) = access::open(place, access)?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let failed =
            |e: io::Error| FlushError::Root { root: place.to_string(), why: e.to_string() };
        Ok(Bucket { store, path, runtime: runtime.map_err(failed)? })
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> object_store::Result<Vec<u8>> {
        let path = self.path(name);
        let bytes = self.wait(async {
            match range {
                Some(range) => self.store.get_range(&path, range).await,
                None => self.store.get(&path).await?.bytes().await,
            }
        });
        bytes.map(Vec::from)
    }
}

/// Reads an object, or a range of it. The error says whether the object is missing.
fn read(
    place: &Place,
    bucket: Option<&Bucket>,
    name: &str,
    range: Option<Range<u64>>,
) -> Result<Vec<u8>, (bool, String)> {
    if let Some(bucket) = bucket {
        let none = |e: &object_store::Error| matches!(e, object_store::Error::NotFound { .. });
        return bucket.read(name, range).map_err(|e| (none(&e), reason(&e)));
    }
    let path = place.directory().expect("a place that is no bucket is a directory").join(name);
    let read = match range {
        None => std::fs::read(path),
        Some(range) => File::open(path).and_then(|mut file| {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            file.seek(SeekFrom::Start(range.start))?;
            file.read_exact(&mut bytes)?;
            Ok(bytes)
        }),
    };
    let none =
        |e: &io::Error| matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    read.map_err(|e| (none(&e), e.to_string()))
}

impl Flushed {
    /// Opens the flush in this directory.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Flushed, FlushError> {
        Flushed::at(Place::Directory(directory.into()), &Access::none())
    }

    /// Opens the flush at this place: reads its manifest. `NoManifest` if there is none, also if a
    /// flush was begun but never finished. `access` is for buckets.
    pub fn at(place: Place, access: &Access) -> Result<Flushed, FlushError> {
        let bucket = match place.directory() {
            Some(_) => None,
            None => Some(Bucket::open(&place, access)?),
        };
        let object = || place.join(FLUSH_MANIFEST).to_string();
        let text = match read(&place, bucket.as_ref(), FLUSH_MANIFEST, None) {
            Ok(text) => text,
            Err((true, why)) => {
                let Some(manifest) = journal::manifest_of(&place, access)? else {
                    return Err(FlushError::NoManifest { place: place.to_string(), why });
                };
                return Ok(Flushed { place, bucket, manifest, text: Vec::new(), journal: true });
            }
            Err((false, why)) => return Err(FlushError::Read { object: object(), why }),
        };
        match Manifest::decode(&text) {
            Ok(manifest) => Ok(Flushed { place, bucket, manifest, text, journal: false }),
            Err(Unreadable::Damaged(why)) => Err(FlushError::Damaged { object: object(), why }),
            Err(Unreadable::Newer(version)) => {
                Err(FlushError::Newer { place: place.to_string(), version })
            }
        }
    }

    /// The content of the flush.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Whether it is the journal of a prefix that did not reach its flush, and not a flush.
    pub fn is_journal(&self) -> bool {
        self.journal
    }

    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// All bytes of a file.
    pub fn file(&self, name: &str) -> Result<Vec<u8>, FlushError> {
        let mut all = Vec::new();
        for part in &self.structure(name, "file")?.parts {
            all.extend(self.part(part)?);
        }
        Ok(all)
    }

    /// The bytes of one part, checked against the manifest.
    pub fn bytes_of(&self, part: &FlushedPart) -> Result<Vec<u8>, FlushError> {
        self.part(part)
    }

    /// The items of a queue, in order; one part is in memory at a time.
    pub fn queue(&self, name: &str) -> Result<FlushedItems<'_>, FlushError> {
        self.items(self.structure(name, "queue")?)
    }

    /// The items of a queue or of a structure of a custom kind, in order; one part is in memory at a time.
    pub fn items<'a>(
        &'a self,
        structure: &'a FlushedStructure,
    ) -> Result<FlushedItems<'a>, FlushError> {
        let extents = ExtentIndex::read(self, structure)?;
        Ok(FlushedItems { records: Records::new(self, structure), extents })
    }

    /// The entries of a kv, in no particular order; one part is in memory at a time, and one value.
    pub fn kv(&self, name: &str) -> Result<Entries<'_>, FlushError> {
        let structure = self.structure(name, "kv")?;
        let extents = ExtentIndex::read(self, structure)?;
        Ok(Entries { records: Records::new(self, structure), extents })
    }

    /// The entries of the parts whose number modulo `of` is `share`.
    pub fn share_of_kv(
        &self,
        name: &str,
        share: usize,
        of: usize,
    ) -> Result<Entries<'_>, FlushError> {
        let mut entries = self.kv(name)?;
        let parts = std::mem::take(&mut entries.records.parts).enumerate();
        let ours = parts.filter(|(i, _)| i % of == share).map(|(_, part)| part);
        entries.records.parts = ours.collect::<Vec<_>>().into_iter();
        Ok(entries)
    }

    /// Reads every part and checks it against the manifest.
    pub fn check(&self) -> Result<(), FlushError> {
        for structure in &self.manifest.structures {
            match structure.kind.as_str() {
                "file" => structure.parts.iter().try_for_each(|part| self.part(part).map(drop))?,
                "kv" => self.kv(&structure.name)?.try_for_each(|entry| entry.map(drop))?,
                _ => self.items(structure)?.try_for_each(|item| item.map(drop))?,
            }
        }
        Ok(())
    }

    /// Copies the flush into a directory, which is created if needed and must be empty. Each object
    /// is checked against the manifest, which is written last, so the copy is complete or does not
    /// count as a flush.
    pub fn copy_to(&self, directory: &std::path::Path) -> Result<(), FlushError> {
        let failed = |what: &std::path::Path, why: String| FlushError::Write {
            what: what.display().to_string(),
            why,
        };
        let made = std::fs::create_dir_all(directory).and_then(|()| std::fs::read_dir(directory));
        match made.map(|mut entries| entries.next().is_some()) {
            Ok(false) => {}
            Ok(true) => return Err(failed(directory, "the directory is not empty".into())),
            Err(e) => return Err(failed(directory, e.to_string())),
        }
        let put = |name: &str, bytes: &[u8]| {
            let path = directory.join(name);
            std::fs::write(&path, bytes).map_err(|e| failed(&path, e.to_string()))
        };
        if self.journal {
            return journal::copy_as_flush(self, put);
        }
        for part in self.manifest.parts() {
            put(&part.name, &self.part(part)?)?;
        }
        put(FLUSH_MANIFEST, &self.text)
    }

    /// The structure with this name, and with this kind in the words of the manifest.
    fn structure(&self, name: &str, kind: &'static str) -> Result<&FlushedStructure, FlushError> {
        let refuse = || FlushError::NoStructure { kind, name: name.to_owned() };
        self.manifest.structure(name, kind).ok_or_else(refuse)
    }

    pub(crate) fn part(&self, part: &FlushedPart) -> Result<Vec<u8>, FlushError> {
        let mut reads = 1;
        loop {
            match self.read_part(part) {
                Err(FlushError::Damaged { .. }) if reads < READS => reads += 1,
                read => return read,
            }
        }
    }

    fn read_part(&self, part: &FlushedPart) -> Result<Vec<u8>, FlushError> {
        let bytes = self.read(&part.name, None)?;
        if self.journal {
            let record = Record::decode(&bytes).map_err(|why| self.damaged(&part.name, why))?;
            if record.1.len() as u64 != part.bytes {
                return Err(self.damaged(&part.name, "its length has changed".into()));
            }
            return Ok(record.1.to_vec());
        }
        let found = bytes.len() as u64;
        if found != part.bytes {
            let why = format!("it has {found} bytes, and the manifest says {}", part.bytes);
            return Err(self.damaged(&part.name, why));
        }
        if crc32fast::hash(&bytes) != part.crc32 {
            let why = "its checksum does not match the manifest".into();
            return Err(self.damaged(&part.name, why));
        }
        Ok(bytes)
    }

    /// A range of an object, which must have this checksum.
    pub(crate) fn range(
        &self,
        name: &str,
        range: Range<u64>,
        crc32: u32,
    ) -> Result<Vec<u8>, FlushError> {
        for _ in 0..READS {
            let bytes = self.read(name, Some(range.clone()))?;
            if crc32fast::hash(&bytes) == crc32 {
                return Ok(bytes);
            }
        }
        Err(self.damaged(name, format!("bytes {range:?} have changed since they were verified")))
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Vec<u8>, FlushError> {
        let read = read(&self.place, self.bucket.as_ref(), name, range);
        let object = || self.place.join(name).to_string();
        read.map_err(|(missing, why)| match missing {
            true => FlushError::Missing { object: object() },
            false => FlushError::Read { object: object(), why },
        })
    }

    pub(crate) fn damaged(&self, name: &str, why: String) -> FlushError {
        FlushError::Damaged { object: self.place.join(name).to_string(), why }
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
    /// The last field of the last record is a list of extents of the value.
    elsewhere: bool,
}

impl<'a> Records<'a> {
    fn new(flushed: &'a Flushed, structure: &'a FlushedStructure) -> Records<'a> {
        let parts: Vec<_> = structure.parts.iter().filter(|part| !part.is_of_extents()).collect();
        let parts = parts.into_iter();
        Records { flushed, parts, part: None, bytes: Vec::new(), at: 0, seen: 0, elsewhere: false }
    }

    /// The next record: a length for each of its fields, and then the fields.
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
                let part = self.part.take().expect("a part whose bytes are read is open");
                (self.at, self.bytes) = (0, Vec::new());
                Some(Err(self.damaged(part, "a record extends past its end".into())))
            }
        }
    }

    fn record<const FIELDS: usize>(&mut self) -> Option<[Vec<u8>; FIELDS]> {
        let mut lengths = [0; FIELDS];
        self.elsewhere = false;
        for length in &mut lengths {
            let field = u32::from_le_bytes(self.take(4)?.try_into().ok()?);
            self.elsewhere |= field & OF_EXTENTS != 0;
            *length = (field & !OF_EXTENTS) as usize;
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
        self.flushed.damaged(&part.name, why)
    }
}

/// The items of a flushed queue, or of a flushed structure of a custom kind.
pub struct FlushedItems<'a> {
    records: Records<'a>,
    extents: ExtentIndex<'a>,
}

impl Iterator for FlushedItems<'_> {
    type Item = Result<Vec<u8>, FlushError>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.records.next::<1>()?;
        Some(record.and_then(|[item]| match self.records.elsewhere {
            true => self.extents.value(&item),
            false => Ok(item),
        }))
    }
}

/// The entries of a flushed kv.
pub struct Entries<'a> {
    records: Records<'a>,
    extents: ExtentIndex<'a>,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the flag of a large value was removed from the length of an item.
    #[test]
    fn item_whose_length_has_the_flag_of_a_large_value_is_damage() {
        let directory =
            std::env::temp_dir().join(format!("honeycomb-items-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let read = |length: u32| {
            let object = [&length.to_le_bytes()[..], b"item"].concat();
            let part = FlushedPart {
                name: "a.part".into(),
                start: 0,
                bytes: object.len() as u64,
                items: 1,
                crc32: crc32fast::hash(&object),
            };
            let structure = FlushedStructure {
                name: "log".into(),
                kind: "log".into(),
                sealed: false,
                max_items: 0,
                max_bytes: 0,
                parts: vec![part],
            };
            let text = |text: &str| text.to_owned();
            let manifest = Manifest::new(text("a"), 1, text("job"), text("t"), vec![structure]);
            std::fs::write(directory.join("a.part"), object).unwrap();
            std::fs::write(directory.join(FLUSH_MANIFEST), manifest.encode()).unwrap();
            let flushed = Flushed::open(&directory).unwrap();
            flushed.items(&flushed.manifest().structures[0])?.collect::<Result<Vec<_>, _>>()
        };
        assert_eq!(read(4).unwrap(), [b"item"]);
        let refused = read(4 | OF_EXTENTS).unwrap_err();
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(matches!(refused, FlushError::Damaged { .. }), "{refused}");
    }
}
