//! The journal of a prefix whose writes are acknowledged when they are stored.
//! The journal is at the place of the prefix's flush. `journal.json` names its owner. One object
//! for each structure gives its kind and its first block. Records hold the changes in the order of
//! their numbers, and a record that ends a block names the next block. Thus a reader needs no
//! knowledge of the cluster, and a complete flush replaces the journal.
//!
//! Names begin with the tag of the journal, which is never reused: a late write cannot damage a
//! journal begun since. Under an existing name, only the same bytes are written again.

use crate::access::{self, Access};
use crate::manifest::{FlushedPart, FlushedStructure, Manifest};
use crate::objects::Limits;
use crate::place::Place;
use crate::read::{Bucket, Flushed};
use crate::store::{FlushStore, Root, fault};
use crate::{FlushError, reason, staged};
use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::stream::{self, StreamExt};
use honeycomb_types::{
    BlockAt, FLUSH_JOURNAL, FLUSH_MANIFEST, FLUSH_PART, FLUSH_RECORD, journal_sweep,
};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

const FORMAT: &str = "honeycomb-journal";
const VERSION: u32 = 1;
const MAGIC: [u8; 4] = *b"HCJR";
/// Bytes of a record before its changes.
const HEADER: usize = 48;
/// Position of the checksum in the header.
const CRC: std::ops::Range<usize> = 28..32;
/// Objects that are deleted, or checked, at the same time.
const AT_A_TIME: usize = 16;

/// The owner of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalOwner {
    /// Identifies the journal among all journals that ever existed.
    pub tag: String,
    /// Name of the job.
    pub job: String,
    /// Path of the prefix.
    pub address: String,
}

/// One structure of a journal, and its first block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalStructure {
    /// Its number: of two structures with one name, the later one has the greater number.
    pub structure: u64,
    /// Its name; empty for the unnamed one.
    pub name: String,
    /// `file`.
    pub kind: String,
    /// Its first block.
    pub block: u64,
    /// That block's epoch.
    pub epoch: u64,
}

/// The identification in a journal's text objects.
#[derive(Serialize, Deserialize)]
struct JournalHeader<T> {
    format: String,
    version: u32,
    #[serde(flatten)]
    what: T,
}

/// One record of a block: its header fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The number of the record within its block: from 0, without gaps.
    pub number: u64,
    /// The position of its bytes in the block.
    pub start: u64,
    /// How the block ends after it.
    pub ends: RecordEnds,
}

/// The end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordEnds {
    /// The block has not ended.
    Open,
    /// The structure was sealed.
    Final,
    /// The structure continues in this block.
    Continues(BlockAt),
}

impl Record {
    /// The name of a record's object in its directory.
    pub fn name(tag: &str, structure: u64, at: BlockAt, number: u64) -> String {
        let (block, epoch) = (at.block.0, at.epoch.0);
        format!("{tag}-{structure:016x}-{block:016x}-{epoch:016x}-{number:08}{FLUSH_RECORD}")
    }

    /// The header before its bytes.
    fn header(&self, bytes: &[u8]) -> [u8; HEADER] {
        let (code, next) = match self.ends {
            RecordEnds::Open => (0u32, BlockAt::default()),
            RecordEnds::Final => (1, BlockAt::default()),
            RecordEnds::Continues(next) => (2, next),
        };
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&VERSION.to_le_bytes());
        header[8..16].copy_from_slice(&self.number.to_le_bytes());
        header[16..24].copy_from_slice(&self.start.to_le_bytes());
        header[24..28].copy_from_slice(&code.to_le_bytes());
        header[32..40].copy_from_slice(&next.block.0.to_le_bytes());
        header[40..48].copy_from_slice(&next.epoch.0.to_le_bytes());
        let crc = sum(&header, bytes);
        header[CRC].copy_from_slice(&crc.to_le_bytes());
        header
    }

    /// Decodes a record and its bytes; the error names the damage.
    pub(crate) fn decode(object: &[u8]) -> Result<(Record, &[u8]), String> {
        let header: &[u8; HEADER] = object.first_chunk().ok_or("it is too short for a record")?;
        let bytes = &object[HEADER..];
        let word = |at: usize| u32::from_le_bytes(*header[at..].first_chunk().expect("in it"));
        let wide = |at: usize| u64::from_le_bytes(*header[at..].first_chunk().expect("in it"));
        if header[..4] != MAGIC {
            return Err("it is not a record of a journal".into());
        }
        if word(4) != VERSION {
            return Err(format!("it is a record of version {}, not {VERSION}", word(4)));
        }
        if word(CRC.start) != sum(header, bytes) {
            return Err("its checksum does not match its bytes".into());
        }
        let ends = match word(24) {
            0 => RecordEnds::Open,
            1 => RecordEnds::Final,
            2 => RecordEnds::Continues(BlockAt::of(wide(32), wide(40))),
            code => return Err(format!("the code for the end of its block, {code}, is unknown")),
        };
        Ok((Record { number: wide(8), start: wide(16), ends }, bytes))
    }
}

/// The checksum of a record: over all bytes except the four of the checksum itself.
fn sum(header: &[u8; HEADER], bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header[..CRC.start]);
    crc.update(&header[CRC.end..]);
    crc.update(bytes);
    crc.finalize()
}

fn encode<T: Serialize>(what: T) -> Vec<u8> {
    let header = JournalHeader { format: FORMAT.into(), version: VERSION, what };
    let mut text = serde_json::to_vec(&header).expect("texts and numbers are valid JSON");
    let crc = crc32fast::hash(&text);
    text.extend_from_slice(format!("\ncrc32 {crc:08x}\n").as_bytes());
    text
}

fn decode<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let end = text.iter().position(|b| *b == b'\n').ok_or("it has no second line")?;
    let (body, last) = (&text[..end], &text[end + 1..]);
    if last != format!("crc32 {:08x}\n", crc32fast::hash(body)).as_bytes() {
        return Err("its checksum does not match its bytes".into());
    }
    let header: JournalHeader<T> = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    match (&*header.format, header.version) {
        (FORMAT, VERSION) => Ok(header.what),
        (FORMAT, version) => Err(format!("it is a journal of version {version}, not {VERSION}")),
        _ => Err("it is not a journal".into()),
    }
}

/// The name of the object that describes a structure.
fn head_of(tag: &str, structure: u64) -> String {
    format!("{tag}-{structure:016x}{FLUSH_RECORD}")
}

/// Whether an object with the name of a record describes a structure: a tag has no `-`.
fn is_head(name: &str) -> bool {
    name.matches('-').count() == 1
}

/// Whether a name in a sweep stands for many objects of a journal.
pub(crate) fn is_journal(name: &str) -> bool {
    name.ends_with(&journal_sweep(""))
}

impl FlushStore {
    /// Begins the journal of a structure, and that of its prefix if it is the first. Fails if the
    /// place has a flush or another journal. `done` is called on the thread of the stores.
    pub fn begin_journal(
        &self,
        directory: String,
        owner: JournalOwner,
        structure: JournalStructure,
        done: impl FnOnce(Result<(), FlushError>) + Send + 'static,
    ) {
        let (root, limits) = (self.root.clone(), self.objects.limits().clone());
        self.objects.spawn(async move {
            let _turn = limits.turn().await;
            done(root.begin_journal(&directory, &owner, &structure).await);
        });
    }

    /// Writes a record. `done` is called on the thread of the stores.
    pub fn write_record(
        &self,
        object: String,
        record: Record,
        bytes: impl AsRef<[u8]> + Send + 'static,
        done: impl FnOnce(Result<(), FlushError>) + Send + 'static,
    ) {
        let (root, limits) = (self.root.clone(), self.objects.limits().clone());
        self.objects.spawn(async move {
            let _turn = limits.turn().await;
            let bytes = Bytes::from_owner(bytes);
            let header = Bytes::from_owner(record.header(&bytes));
            done(root.put_all(&object, PutPayload::from_iter([header, bytes])).await);
        });
    }
}

impl Root {
    async fn begin_journal(
        &self,
        directory: &str,
        owner: &JournalOwner,
        structure: &JournalStructure,
    ) -> Result<(), FlushError> {
        let store = self.store().await?;
        let occupied = || FlushError::Occupied { place: self.place.join(directory).to_string() };
        let named = |name: &str| format!("{directory}/{name}");
        let manifest = named(FLUSH_MANIFEST);
        match store.head(&self.located(&manifest)?).await {
            Ok(_) => return Err(occupied()),
            Err(Error::NotFound { .. }) => {}
            Err(e) => return Err(self.failed(&manifest, &e)),
        }
        let claim = named(FLUSH_JOURNAL);
        let (path, text) = (self.located(&claim)?, encode(owner));
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let made = store.put_opts(&path, PutPayload::from(text.clone()), options).await;
        if let Err(e) = made {
            // Whatever the store's reply, the current content shows the owner.
            match self.read(&store, &path).await {
                Ok((there, _)) if there == text => {}
                Ok(_) => return Err(occupied()),
                Err(_) => return Err(self.failed(&claim, &e)),
            }
        }
        let head = named(&head_of(&owner.tag, structure.structure));
        self.put_all(&head, PutPayload::from(encode(structure))).await
    }

    /// Removes the journal at the place of a prefix whose manifest has been written.
    pub(crate) async fn cover_journal(
        &self,
        limits: &Limits,
        directory: &str,
        (job, address): (&str, &str),
    ) -> Result<(), FlushError> {
        match self.claim(directory).await? {
            Some(owner) if owner.job == job && owner.address == address => {
                self.sweep_journal(limits, directory, &journal_sweep(&owner.tag)).await
            }
            _ => Ok(()),
        }
    }

    /// The owner of the journal at this place.
    async fn claim(&self, directory: &str) -> Result<Option<JournalOwner>, FlushError> {
        let store = self.store().await?;
        let object = format!("{directory}/{FLUSH_JOURNAL}");
        let path = self.located(&object)?;
        let got = match store.get(&path).await {
            Ok(found) => found.bytes().await,
            Err(e) => Err(e),
        };
        match got {
            // An object of another format, or a damaged one, is left unchanged.
            Ok(text) => Ok(decode(&text).ok()),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(self.failed(&object, &e)),
        }
    }

    /// Deletes the objects that a name of `journal_sweep` stands for. If it is a whole journal, the
    /// object with its owner is deleted last, so that no other journal can begin there earlier.
    pub(crate) async fn sweep_journal(
        &self,
        limits: &Limits,
        directory: &str,
        name: &str,
    ) -> Result<(), FlushError> {
        let stem = name.strip_suffix(&journal_sweep("")).unwrap_or(name);
        let above = self.located(directory)?;
        let store = self.store().await?;
        let listed = list(&*store, &above).await;
        let listed = listed.map_err(|e| self.failed(&format!("{directory}/{name}"), &e))?;
        let ours = |name: &String| name.starts_with(stem) && name.ends_with(FLUSH_RECORD);
        let names: Vec<String> = listed.into_keys().filter(ours).collect();
        if let Some(root) = self.place.directory() {
            let stem = stem.to_owned();
            let ours = move |of: &str| of.starts_with(&stem) && of.ends_with(FLUSH_RECORD);
            staged::delete(root.join(directory), ours).await;
        }
        let delete = async |store: Arc<dyn ObjectStore>, path: Path| match store.delete(&path).await
        {
            Err(Error::NotFound { .. }) => Ok(()),
            deleted => deleted,
        };
        // The objects that describe structures are deleted first, so that a partly deleted
        // structure is not read.
        let (heads, records): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| is_head(name));
        let mut deleted = self.for_each(limits, directory, heads, delete).await?;
        if deleted.iter().all(Result::is_ok) {
            deleted.extend(self.for_each(limits, directory, records, delete).await?);
        }
        let whole = self.claim(directory).await?.is_some_and(|owner| owner.tag == stem);
        let last = match deleted.into_iter().collect::<Result<Vec<()>, _>>() {
            Ok(_) if !whole => return Ok(()),
            Ok(_) => delete(store, self.located(&format!("{directory}/{FLUSH_JOURNAL}"))?).await,
            Err(why) => return Err(self.not_swept(directory, format!("{why:?}"))),
        };
        last.map_err(|e| self.not_swept(directory, format!("{:?}", fault(&e))))
    }

    fn not_swept(&self, directory: &str, why: String) -> FlushError {
        let what = format!("objects that are no longer needed in {}", self.place.join(directory));
        FlushError::Write { what, why }
    }
}

/// The objects directly under a path, with their lengths.
async fn list(
    store: &dyn ObjectStore,
    above: &Path,
) -> object_store::Result<BTreeMap<String, u64>> {
    let all = match store.list_with_delimiter(Some(above)).await {
        Err(Error::NotFound { .. }) => Vec::new(),
        listed => listed?.objects,
    };
    let named =
        all.into_iter().filter_map(|meta| Some((meta.location.filename()?.to_owned(), meta.size)));
    Ok(named.collect())
}

/// A journal that is being read.
struct JournalReader<'a> {
    place: &'a Place,
    bucket: Bucket,
    /// Names of its directory, with their lengths.
    there: BTreeMap<String, u64>,
    tag: String,
}

impl JournalReader<'_> {
    fn get(&self, name: &str) -> Result<Option<Bytes>, FlushError> {
        let got = self.bucket.wait(async {
            let found = self.bucket.store().get(&self.bucket.path(name)).await?;
            found.bytes().await
        });
        match got {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(e) => {
                let object = self.place.join(name).to_string();
                Err(FlushError::Read { object, why: reason(&e) })
            }
        }
    }

    fn damaged(&self, name: &str, why: impl Into<String>) -> FlushError {
        FlushError::Damaged { object: self.place.join(name).to_string(), why: why.into() }
    }

    /// Reads a record that was listed, or checks whether an unlisted record exists.
    fn record(&self, name: &str) -> Result<Option<(Record, u64)>, FlushError> {
        let Some(object) = self.get(name)? else { return Ok(None) };
        let (record, bytes) = Record::decode(&object).map_err(|why| self.damaged(name, why))?;
        Ok(Some((record, bytes.len() as u64)))
    }

    /// The structures, in the order of their creation; of two with one name, the later one.
    fn heads(&self) -> Result<Vec<JournalStructure>, FlushError> {
        let stem = format!("{}-", self.tag);
        let is_head = |name: &&String| {
            let number = name.strip_prefix(&stem).and_then(|name| name.strip_suffix(FLUSH_RECORD));
            number.is_some_and(|number| !number.contains('-'))
        };
        let mut heads = BTreeMap::new();
        for name in self.there.keys().filter(is_head) {
            let Some(text) = self.get(name)? else { continue };
            let head: JournalStructure = decode(&text).map_err(|why| self.damaged(name, why))?;
            heads.insert(head.structure, head);
        }
        let mut last = BTreeMap::new();
        for head in heads.values() {
            last.insert(head.name.clone(), head.structure);
        }
        Ok(heads.into_values().filter(|head| last[&head.name] == head.structure).collect())
    }

    /// Follows a structure from block to block.
    fn structure(&self, head: &JournalStructure) -> Result<FlushedStructure, FlushError> {
        let mut parts = Vec::new();
        let (mut at, mut position, mut sealed) = (BlockAt::of(head.block, head.epoch), 0, false);
        loop {
            let begun = position;
            let mut number = 0;
            let mut last = None;
            loop {
                let name = Record::name(&self.tag, head.structure, at, number);
                let listed = self.there.get(&name).map(|size| size.saturating_sub(HEADER as u64));
                // The listing may be stale: whether a record follows the last one is checked by
                // name.
                let (found, bytes) = match listed {
                    Some(bytes) => (None, bytes),
                    None => match self.record(&name)? {
                        Some((record, bytes)) => (Some(record), bytes),
                        None => break,
                    },
                };
                let start = position - begun;
                let part = FlushedPart { name, start: position, bytes, items: bytes, crc32: 0 };
                last = Some((part.name.clone(), found, start, number));
                if bytes > 0 {
                    parts.push(part);
                }
                (position, number) = (position + bytes, number + 1);
            }
            self.need_no_gap(head, at, number)?;
            // Only the last record can end the block, and its position proves the lengths of the
            // records before it.
            let Some((name, found, start, number)) = last else { break };
            let record = match found {
                Some(record) => record,
                None => match self.record(&name)? {
                    Some((record, _)) => record,
                    None => return Err(self.damaged(&name, "it no longer exists")),
                },
            };
            if (record.start, record.number) != (start, number) {
                return Err(self.damaged(&name, "it does not follow the record before it"));
            }
            match record.ends {
                RecordEnds::Open => break,
                RecordEnds::Final => {
                    sealed = true;
                    break;
                }
                RecordEnds::Continues(next) => at = next,
            }
        }
        let (name, kind) = (head.name.clone(), head.kind.clone());
        Ok(FlushedStructure { name, kind, sealed, max_items: 0, max_bytes: 0, parts })
    }

    /// Record numbers have no gaps: a record beyond the last one found means that one is missing.
    fn need_no_gap(
        &self,
        head: &JournalStructure,
        at: BlockAt,
        next: u64,
    ) -> Result<(), FlushError> {
        let missing = Record::name(&self.tag, head.structure, at, next);
        let numbered = missing.len() - FLUSH_RECORD.len() - 8;
        let beyond = self.there.range(missing.clone()..).next().map(|(name, _)| name);
        match beyond {
            Some(name) if name.get(..numbered) == missing.get(..numbered) => {
                Err(self.damaged(&missing, format!("it is missing, but {name} exists")))
            }
            _ => Ok(()),
        }
    }
}

/// The content of a journal as a flush manifest, with its records as parts; `None` if there is no
/// journal.
pub(crate) fn manifest_of(place: &Place, access: &Access) -> Result<Option<Manifest>, FlushError> {
    let bucket = match Bucket::open(place, access) {
        Ok(bucket) => bucket,
        // Without a directory there is no journal.
        Err(_) if place.directory().is_some_and(|directory| !directory.is_dir()) => {
            return Ok(None);
        }
        Err(e) => return Err(e),
    };
    let mut journal = JournalReader { place, bucket, there: BTreeMap::new(), tag: String::new() };
    let Some(text) = journal.get(FLUSH_JOURNAL)? else { return Ok(None) };
    let owner: JournalOwner = decode(&text).map_err(|why| journal.damaged(FLUSH_JOURNAL, why))?;
    journal.tag = owner.tag.clone();
    journal.there = journal.listed()?;
    let heads = journal.heads()?;
    let structures = heads.iter().map(|head| journal.structure(head));
    let structures = structures.collect::<Result<Vec<_>, _>>()?;
    Ok(Some(Manifest::new(owner.tag, 0, owner.job, owner.address, structures)))
}

impl JournalReader<'_> {
    fn listed(&self) -> Result<BTreeMap<String, u64>, FlushError> {
        let above = self.bucket.above();
        let listed = self.bucket.wait(list(self.bucket.store(), above));
        listed.map_err(|e| FlushError::Read { object: self.place.to_string(), why: reason(&e) })
    }
}

/// Copies the content of a journal as a flush.
pub(crate) fn copy_as_flush(
    flushed: &Flushed,
    put: impl Fn(&str, &[u8]) -> Result<(), FlushError>,
) -> Result<(), FlushError> {
    let mut manifest = flushed.manifest().clone();
    for part in manifest.structures.iter_mut().flat_map(|s| &mut s.parts) {
        let bytes = flushed.bytes_of(part)?;
        part.name = format!("{}{FLUSH_PART}", part.name.trim_end_matches(FLUSH_RECORD));
        part.crc32 = crc32fast::hash(&bytes);
        put(&part.name, &bytes)?;
    }
    put(FLUSH_MANIFEST, &manifest.encode())
}

/// Deletes the journal at a place, the object with its owner last; returns how many objects it had.
pub(crate) fn delete(place: &Place, access: &Access) -> Result<usize, FlushError> {
    let (store, above) = access::open(place, access)?;
    let bucket = Bucket::open(place, access)?;
    let failed =
        |what: &str, why: String| FlushError::Write { what: place.join(what).to_string(), why };
    let listed = bucket.wait(list(&*store, &above));
    let listed = listed.map_err(|e| failed(FLUSH_JOURNAL, reason(&e)))?;
    let names: Vec<String> = listed.into_keys().filter(|n| n.ends_with(FLUSH_RECORD)).collect();
    let one = async |name: &str| match store.delete(&bucket.path(name)).await {
        Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
        Err(e) => Err(failed(name, reason(&e))),
    };
    // The same order as in `sweep_journal`.
    for heads in [true, false] {
        let names = names.iter().filter(|name| is_head(name) == heads);
        let each = stream::iter(names).map(|name| one(name)).buffer_unordered(AT_A_TIME);
        bucket.wait(each.try_collect::<Vec<()>>())?;
    }
    bucket.wait(one(FLUSH_JOURNAL))?;
    if let Some(directory) = place.directory() {
        staged::delete_now(directory, |of| of.ends_with(FLUSH_RECORD));
        let synced = std::fs::File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(|e: io::Error| failed(FLUSH_JOURNAL, e.to_string()))?;
        // The directory stays if it contains something else.
        let _ = std::fs::remove_dir(directory);
    }
    Ok(names.len() + 1)
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
