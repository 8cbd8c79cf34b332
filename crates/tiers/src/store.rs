//! Writing a flush: parts in any order, then the manifest.

use crate::manifest::Manifest;
use crate::{FlushError, Flushed};
use honeycomb_types::FLUSH_MANIFEST;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};
use pollster::block_on;
use std::io::{self, Write};
use std::path::PathBuf;

/// Bytes that are handed on at a time.
const PIECE: usize = 4 << 20;

/// What was written of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Length of the object.
    pub bytes: u64,
    /// What the content said that it has.
    pub items: u64,
    /// CRC-32 of the object.
    pub crc32: u32,
}

/// The directory below which a server flushes (the setting `flush_root`).
///
/// Nothing is written outside of it, whatever path is asked for. It is looked for with each object:
/// when it is gone (a disk that is no longer mounted), that is an error, and no directory of its name
/// is made. What is done is on disk: objects and the directories that name them are synchronised.
#[derive(Clone, Debug)]
pub struct FlushStore {
    root: PathBuf,
}

impl FlushStore {
    /// A store below this directory, which must exist.
    pub fn open(root: impl Into<PathBuf>) -> Result<FlushStore, FlushError> {
        let store = FlushStore { root: root.into() };
        store.disk()?;
        Ok(store)
    }

    fn disk(&self) -> Result<LocalFileSystem, FlushError> {
        let refuse = |why| FlushError::Root { root: self.root.clone(), why };
        let found = std::fs::metadata(&self.root).map_err(refuse)?;
        if !found.is_dir() {
            let why = io::Error::new(io::ErrorKind::NotADirectory, "it is not a directory");
            return Err(FlushError::Root { root: self.root.clone(), why });
        }
        let disk = LocalFileSystem::new_with_prefix(&self.root)
            .map_err(|e| refuse(io::Error::other(e.to_string())))?;
        Ok(disk.with_fsync(true))
    }

    /// Writes an object from what `content` writes; it is there whole, or not at all. `content`
    /// answers how many items it had.
    pub fn write_part(
        &self,
        object: &str,
        content: impl FnOnce(&mut dyn Write) -> io::Result<u64>,
    ) -> Result<Written, FlushError> {
        let (disk, path) = (self.disk()?, located(object)?);
        let failed = |e: &dyn std::error::Error| FlushError::Write {
            what: object.to_owned(),
            why: reason(e),
        };
        let upload = block_on(disk.put_multipart(&path)).map_err(|e| failed(&e))?;
        let mut part = Part { upload, piece: Vec::new(), bytes: 0, crc: crc32fast::Hasher::new() };
        let written = content(&mut part).and_then(|items| part.hand_on().map(|()| items));
        let done = match written {
            Ok(items) => match block_on(part.upload.complete()) {
                Ok(_) => Ok(items),
                Err(e) => Err(failed(&e)),
            },
            Err(e) => Err(failed(&e)),
        };
        match done {
            Ok(items) => Ok(Written { bytes: part.bytes, items, crc32: part.crc.finalize() }),
            Err(e) => {
                // What cannot be taken away stays under a name that no reader looks at.
                let _ = block_on(part.upload.abort());
                Err(e)
            }
        }
    }

    /// Makes the flush: writes its manifest, when all parts are to be seen. What an earlier flush
    /// left in the directory is deleted afterwards.
    pub fn commit(&self, directory: &str, manifest: &Manifest) -> Result<(), FlushError> {
        let disk = self.disk()?;
        for part in manifest.structures.iter().flat_map(|s| &s.parts) {
            let object = format!("{directory}/{}", part.name);
            let found = match block_on(disk.head(&located(&object)?)) {
                Ok(meta) if meta.size == part.bytes => continue,
                Ok(meta) => format!("it has {}", meta.size),
                Err(e) => reason(&e),
            };
            return Err(FlushError::MissingPart { part: object, expected: part.bytes, found });
        }
        let earlier = Flushed::open(self.root.join(directory)).ok();
        let object = format!("{directory}/{FLUSH_MANIFEST}");
        let (path, text) = (located(&object)?, manifest.encode());
        block_on(disk.put(&path, PutPayload::from(text)))
            .map_err(|e| FlushError::Write { what: object, why: reason(&e) })?;
        let earlier = earlier.iter().flat_map(|flush| &flush.manifest().structures);
        for part in earlier.flat_map(|s| &s.parts) {
            let kept = manifest.structures.iter().flat_map(|s| &s.parts);
            if kept.clone().all(|other| other.name != part.name) {
                // The new flush stands; an old part that stays behind is only in the way.
                let _ = block_on(disk.delete(&located(&format!("{directory}/{}", part.name))?));
            }
        }
        Ok(())
    }
}

/// A path below the root, as the store takes it: it refuses `..`, and so do we.
fn located(object: &str) -> Result<Path, FlushError> {
    Path::parse(object)
        .map_err(|e| FlushError::Path { path: object.to_owned(), why: e.to_string() })
}

/// An error with what is behind it: the store names the object, the system says why.
fn reason(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(e) = source {
        let more = e.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = e.source();
    }
    text
}

/// A part that is being written.
struct Part {
    upload: Box<dyn MultipartUpload>,
    piece: Vec<u8>,
    bytes: u64,
    crc: crc32fast::Hasher,
}

impl Part {
    fn hand_on(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.piece);
        self.crc.update(&piece);
        self.bytes += piece.len() as u64;
        block_on(self.upload.put_part(PutPayload::from(piece)))
            .map_err(|e| io::Error::other(reason(&e)))
    }
}

impl Write for Part {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.piece.is_empty() {
            self.piece.reserve(PIECE.min(bytes.len().max(64 * 1024)));
        }
        let taken = bytes.len().min(PIECE - self.piece.len());
        self.piece.extend_from_slice(&bytes[..taken]);
        if self.piece.len() == PIECE {
            self.hand_on()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
