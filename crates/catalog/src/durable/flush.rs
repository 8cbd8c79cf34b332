//! Log records of a flush that is under way.

use super::codec::{BadRecord, RecordReader, Writer, bad};
use super::image::{get_at, put_at};
use crate::Written;
use crate::flush::{PartState, Sweep};
use crate::reply::{FlushState, FlushedPart, FlushedStructure};
use honeycomb_types::{BlockAt, JobId, Kind, PrefixId, StructureId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// In place of a part's number: paths of descendants follow. No flush has that many parts.
const BELOW: u32 = u32::MAX;
/// The same: the number of the flush follows that names the members of the same barrier.
const GROUP: u32 = u32::MAX - 1;
/// The same: the id of the job follows whose end began the flush.
const ENDED: u32 = u32::MAX - 2;
/// The same: custom kinds and their names follow.
const KINDS: u32 = u32::MAX - 3;

fn put_below(w: &mut Writer<'_>, below: &[Box<str>]) {
    w.u32(below.len() as u32);
    below.iter().for_each(|path| w.str(path));
}

fn get_below(r: &mut RecordReader<'_>) -> Result<Arc<[Box<str>]>, BadRecord> {
    let n = r.count(4)?;
    (0..n).map(|_| Ok(r.str()?.into())).collect()
}

/// A flush: logged when it begins, and when its parts change. The completion of one more part has a record of
/// its own.
#[derive(Clone, Debug)]
pub(crate) struct FlushImage {
    pub(crate) number: u64,
    pub(crate) prefix: PrefixId,
    pub(crate) directory: Arc<str>,
    pub(crate) job_name: Box<str>,
    pub(crate) address: Arc<str>,
    /// For a subtree: paths of the descendants.
    pub(crate) below: Arc<[Box<str>]>,
    /// The topmost flush of the same barrier; 0 for none.
    pub(crate) group: u64,
    /// The job whose end began the flush, if one did.
    pub(crate) ended: Option<JobId>,
    /// The structures that it flushes.
    pub(crate) ids: Vec<StructureId>,
    pub(crate) structures: Vec<FlushedStructure>,
    /// One for each part, in the order of the structures and of their parts.
    pub(crate) blocks: Vec<KeptImage>,
}

/// A flush of a live prefix, while its blocks are copied: the objects that it may have written.
#[derive(Clone, Debug)]
pub(crate) struct LiveImage {
    pub(crate) number: u64,
    pub(crate) prefix: PrefixId,
    pub(crate) job: JobId,
    pub(crate) directory: Arc<str>,
    pub(crate) address: Arc<str>,
    pub(crate) below: Arc<[Box<str>]>,
    pub(crate) claims: bool,
    pub(crate) group: u64,
    pub(crate) noted: u32,
    pub(crate) extents: Vec<(u32, BlockAt)>,
}

impl LiveImage {
    pub(crate) fn put(&self, w: &mut Writer<'_>) {
        w.u64(self.number);
        w.u64(self.prefix.0);
        w.u64(self.job.0);
        w.str(&self.directory);
        w.str(&self.address);
        w.u8(self.claims.into());
        w.u32(self.noted);
        w.u32(self.extents.len() as u32);
        for (name, at) in &self.extents {
            w.u32(*name);
            put_at(w, *at);
        }
        put_below(w, &self.below);
        // For a barrier only; earlier versions wrote none.
        if self.group != 0 {
            w.u64(self.group);
        }
    }

    pub(crate) fn get(r: &mut RecordReader<'_>) -> Result<LiveImage, BadRecord> {
        let mut image = LiveImage {
            number: r.u64()?,
            prefix: PrefixId(r.u64()?),
            job: JobId(r.u64()?),
            directory: r.str()?.into(),
            address: r.str()?.into(),
            below: Arc::default(),
            claims: r.bool()?,
            group: 0,
            noted: r.u32()?,
            extents: Vec::new(),
        };
        for _ in 0..r.count(20)? {
            image.extents.push((r.u32()?, get_at(r)?));
        }
        if !r.0.is_empty() {
            image.below = get_below(r)?;
        }
        if !r.0.is_empty() {
            image.group = r.u64()?;
        }
        Ok(image)
    }
}

/// The block of a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptImage {
    pub(crate) at: BlockAt,
    /// The hashes of a kv that it owns.
    pub(crate) range: (u64, u64),
    pub(crate) state: PartState,
}

impl FlushImage {
    /// Records that a part is written.
    pub(crate) fn wrote(&mut self, part: usize, objects: Vec<Written>) -> Result<(), BadRecord> {
        let parts = self.structures.iter_mut().flat_map(|s| &mut s.parts);
        match (parts.zip(&mut self.blocks)).nth(part) {
            Some((image, block)) => {
                (image.objects, block.state) = (objects, PartState::Written);
                Ok(())
            }
            None => bad(format!("a flush has no part {part}")),
        }
    }

    pub(crate) fn put(&self, w: &mut Writer<'_>) {
        w.u64(self.number);
        w.u64(self.prefix.0);
        w.str(&self.directory);
        w.str(&self.job_name);
        w.str(&self.address);
        w.u32(self.structures.len() as u32);
        let mut blocks = self.blocks.iter();
        for (structure, id) in self.structures.iter().zip(&self.ids) {
            w.u64(id.0);
            w.str(&structure.name);
            w.u8(structure.kind.code());
            // Built-in kinds are flushed, and earlier versions flushed no others.
            let custom = structure.kind.router().is_none() && structure.flushes;
            w.u8(u8::from(structure.sealed) | u8::from(custom) << 1);
            w.u64(structure.max_items);
            w.u64(structure.max_bytes);
            w.u32(structure.parts.len() as u32);
            for (part, block) in structure.parts.iter().zip(&mut blocks) {
                w.str(&part.name);
                w.u64(part.start);
                put_written(w, part.objects.first().copied().unwrap_or_default());
                put_at(w, block.at);
                w.u64(block.range.0);
                w.u64(block.range.1);
                w.u8(block.state as u8);
            }
        }
        // Further objects of a block are rare, and earlier versions wrote none: they come last.
        let parts = self.structures.iter().flat_map(|s| &s.parts).enumerate();
        for (i, part) in parts.filter(|(_, part)| part.objects.len() > 1) {
            w.u32(i as u32);
            w.u32(part.objects.len() as u32 - 1);
            put_objects(w, &part.objects[1..]);
        }
        // For a subtree only; earlier versions wrote none.
        if !self.below.is_empty() {
            w.u32(BELOW);
            put_below(w, &self.below);
        }
        if self.group != 0 {
            w.u32(GROUP);
            w.u64(self.group);
        }
        if let Some(job) = self.ended {
            w.u32(ENDED);
            w.u64(job.0);
        }
        put_kinds(w, &self.structures);
    }

    pub(crate) fn get(r: &mut RecordReader<'_>, version: u8) -> Result<FlushImage, BadRecord> {
        let mut image = FlushImage {
            number: r.u64()?,
            prefix: PrefixId(r.u64()?),
            directory: r.str()?.into(),
            job_name: r.str()?.into(),
            address: r.str()?.into(),
            below: Arc::default(),
            group: 0,
            ended: None,
            ids: Vec::new(),
            structures: Vec::new(),
            blocks: Vec::new(),
        };
        for _ in 0..r.count(38)? {
            image.ids.push(StructureId(r.u64()?));
            let structure = get_structure(r, version, &mut image.blocks)?;
            image.structures.push(structure);
        }
        while !r.0.is_empty() {
            let i = r.u32()?;
            if i == BELOW {
                image.below = get_below(r)?;
                continue;
            }
            if i == GROUP {
                image.group = r.u64()?;
                continue;
            }
            if i == ENDED {
                image.ended = Some(JobId(r.u64()?));
                continue;
            }
            if i == KINDS {
                get_kinds(r, &mut image.structures)?;
                continue;
            }
            let i = i as usize;
            let mut parts = image.structures.iter_mut().flat_map(|s| &mut s.parts);
            let Some(part) = parts.nth(i) else {
                return bad(format!("a flush has no part {i}"));
            };
            for _ in 0..r.count(20)? {
                part.objects.push(get_written(r)?);
            }
        }
        Ok(image)
    }
}

/// The names of custom kinds, each once. Earlier versions wrote none, nor does a flush without such kinds.
fn put_kinds(w: &mut Writer<'_>, structures: &[FlushedStructure]) {
    let named = structures.iter().filter(|s| !s.kind_name.is_empty());
    let kinds: BTreeMap<u8, &str> = named.map(|s| (s.kind.code(), &*s.kind_name)).collect();
    if kinds.is_empty() {
        return;
    }
    w.u32(KINDS);
    w.u32(kinds.len() as u32);
    for (code, name) in kinds {
        w.u8(code);
        w.str(name);
    }
}

/// Reads the names written by `put_kinds`.
fn get_kinds(
    r: &mut RecordReader<'_>,
    structures: &mut [FlushedStructure],
) -> Result<(), BadRecord> {
    for _ in 0..r.count(5)? {
        let (code, name) = (r.u8()?, r.str()?);
        let Some(kind @ Kind::Custom(_)) = Kind::from_code(code) else {
            return bad(format!("a flush names the kind {code:#x}, which is not a custom one"));
        };
        let name: Arc<str> = name.into();
        for structure in structures.iter_mut().filter(|s| s.kind == kind) {
            structure.kind_name = name.clone();
        }
    }
    Ok(())
}

/// Reads one structure of a flush, and its retained blocks.
fn get_structure(
    r: &mut RecordReader<'_>,
    version: u8,
    blocks: &mut Vec<KeptImage>,
) -> Result<FlushedStructure, BadRecord> {
    let name = r.str()?.into();
    let code = r.u8()?;
    let Some(kind) = Kind::from_code(code) else {
        return bad(format!("no kind of structure has the code {code:#x}"));
    };
    let flags = r.u8()?;
    if flags > 1 && (flags > 3 || kind.router().is_some()) {
        return bad(format!("a flushed structure has the flags {flags:#x}"));
    }
    let flushes = kind.attributes().flushes || flags & 2 != 0;
    let sealed = flags & 1 != 0;
    if version < 6 {
        // Number of hash slots of a kv, which was smaller then.
        r.u32()?;
    }
    let (max_items, max_bytes) = (r.u64()?, r.u64()?);
    let mut parts = Vec::new();
    for _ in 0..r.count(65)? {
        let (name, start, first) = (r.str()?.into(), r.u64()?, get_written(r)?);
        let (at, range) = (get_at(r)?, (r.u64()?, r.u64()?));
        let code = r.u8()?;
        let Some(state) = PartState::from_code(code) else {
            return bad(format!("no state of a part has the code {code:#x}"));
        };
        let objects = match state {
            PartState::Written | PartState::Copied => vec![first],
            PartState::Waits | PartState::Absent => Vec::new(),
        };
        parts.push(FlushedPart { name, start, objects });
        blocks.push(KeptImage { at, range, state });
    }
    let kind_name = Arc::default();
    Ok(FlushedStructure { name, kind, kind_name, flushes, sealed, max_items, max_bytes, parts })
}

/// All objects of a block that is written; there is at least one.
pub(crate) fn put_objects(w: &mut Writer<'_>, objects: &[Written]) {
    objects.iter().for_each(|written| put_written(w, *written));
}

/// Reads the objects written by `put_objects`, to the end of the record.
pub(crate) fn get_objects(r: &mut RecordReader<'_>) -> Result<Vec<Written>, BadRecord> {
    let mut objects = vec![get_written(r)?];
    while !r.0.is_empty() {
        objects.push(get_written(r)?);
    }
    Ok(objects)
}

fn put_written(w: &mut Writer<'_>, written: Written) {
    w.u64(written.bytes);
    w.u64(written.items);
    w.u32(written.crc);
}

fn get_written(r: &mut RecordReader<'_>) -> Result<Written, BadRecord> {
    Ok(Written { bytes: r.u64()?, items: r.u64()?, crc: r.u32()? })
}

/// A sweep with the number of its flush.
pub(crate) fn put_sweep(w: &mut Writer<'_>, number: u64, sweep: &Sweep) {
    w.u64(number);
    w.str(&sweep.directory);
    w.u8(sweep.passes);
    w.u32(sweep.names.len() as u32);
    sweep.names.iter().for_each(|name| w.str(name));
}

pub(crate) fn get_sweep(r: &mut RecordReader<'_>) -> Result<(u64, Sweep), BadRecord> {
    let (number, directory, passes) = (r.u64()?, r.str()?.into(), r.u8()?);
    let mut names = Vec::new();
    for _ in 0..r.count(4)? {
        names.push(r.str()?.into());
    }
    Ok((number, Sweep::new(directory, names, passes)))
}

/// The outcome of the flush of an ended prefix; nothing for a flush under way or for no flush.
pub(crate) fn put_outcome(w: &mut Writer<'_>, prefix: PrefixId, state: &FlushState) {
    w.u64(prefix.0);
    match state {
        FlushState::Lost(why) => w.str(why),
        _ => w.str(""),
    }
}

pub(crate) fn get_outcome(r: &mut RecordReader<'_>) -> Result<(PrefixId, FlushState), BadRecord> {
    let prefix = PrefixId(r.u64()?);
    let state = match r.str()? {
        "" => FlushState::Done,
        why => FlushState::Lost(why.into()),
    };
    Ok((prefix, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record as written by versions that knew one object for each block.
    fn earlier(state: PartState, written: Written) -> Vec<u8> {
        let mut record = Vec::new();
        let mut w = Writer(&mut record);
        w.u64(5);
        w.u64(6);
        ["job/out", "job", "t"].iter().for_each(|text| w.str(text));
        w.u32(1);
        w.u64(9);
        w.str("log");
        w.u8(Kind::File.code());
        w.u8(1);
        w.u32(0);
        w.u64(0);
        w.u64(0);
        w.u32(1);
        w.str("5-a-00000.part");
        w.u64(0);
        put_written(&mut w, written);
        put_at(&mut w, BlockAt::default());
        w.u64(0);
        w.u64(u64::MAX);
        w.u8(state as u8);
        record
    }

    #[test]
    fn record_of_an_earlier_version_is_read_and_written_as_the_current_one() {
        let written = Written { bytes: 10, items: 10, crc: 7 };
        let waits = (PartState::Waits, Written::default(), vec![]);
        for (state, sum, objects) in [waits, (PartState::Written, written, vec![written])] {
            let record = earlier(state, sum);
            let mut r = RecordReader(&record);
            let image = FlushImage::get(&mut r, 5).unwrap();
            r.end().unwrap();
            assert_eq!(image.structures[0].parts[0].objects, objects);
            let mut again = Vec::new();
            image.put(&mut Writer(&mut again));
            let mut r = RecordReader(&again);
            assert_eq!(FlushImage::get(&mut r, 6).unwrap().structures, image.structures);
            r.end().unwrap();
        }
    }

    #[test]
    fn names_of_custom_kinds_come_back_at_the_end_of_the_record() {
        let record = earlier(PartState::Waits, Written::default());
        let mut image = FlushImage::get(&mut RecordReader(&record), 5).unwrap();
        let encoded = |image: &FlushImage| {
            let mut record = Vec::new();
            image.put(&mut Writer(&mut record));
            record
        };
        let mut custom = image.structures[0].clone();
        custom.kind = Kind::from_code(0x80).unwrap();
        custom.flushes = true;
        custom.parts.clear();
        let named = FlushedStructure { kind_name: "log".into(), ..custom.clone() };
        image.structures.extend([custom.clone(), custom]);
        image.ids.extend([StructureId(10), StructureId(11)]);
        // A record without a name is that of earlier versions.
        let before = encoded(&image);
        image.structures.truncate(1);
        image.structures.extend([named.clone(), named]);
        let record = encoded(&image);
        let expected =
            [&[0xfc, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0x80, 3, 0, 0, 0][..], b"log"].concat();
        assert!(record.starts_with(&before) && record.ends_with(&expected));
        let again = FlushImage::get(&mut RecordReader(&record), 6).unwrap();
        assert_eq!(again.structures, image.structures);
        let built_in = record.len() - 8;
        let wrong = [&record[..built_in], &[Kind::File.code()], &record[built_in + 1..]].concat();
        assert!(FlushImage::get(&mut RecordReader(&wrong), 6).is_err());
    }

    #[test]
    fn further_objects_of_a_block_come_back() {
        let record = earlier(PartState::Written, Written::default());
        let mut image = FlushImage::get(&mut RecordReader(&record), 5).unwrap();
        let objects: Vec<Written> =
            (0..3).map(|i| Written { bytes: i, items: i, crc: i as u32 }).collect();
        image.wrote(0, objects.clone()).unwrap();
        let mut record = Vec::new();
        image.put(&mut Writer(&mut record));
        let again = FlushImage::get(&mut RecordReader(&record), 6).unwrap();
        assert_eq!(again.structures, image.structures);
        assert!(FlushImage::get(&mut RecordReader(&record[..record.len() - 1]), 6).is_err());
        let mut part = Vec::new();
        put_objects(&mut Writer(&mut part), &objects);
        assert_eq!(get_objects(&mut RecordReader(&part)).unwrap(), objects);
    }
}
