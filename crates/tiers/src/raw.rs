//! One plain object that any tool can read: a file of a prefix without a manifest and without
//! parts.
//!
//! It is written as one multipart upload, which the store turns into an object atomically (in a
//! directory: a file with another name, synchronised and renamed). So the object is complete or
//! absent, and an earlier object stays until then. An upload that fails or is dropped is aborted,
//! because a store keeps, and bills, its parts otherwise. Only a killed process leaves parts;
//! stores have rules that delete such uploads after a time.
//!
//! The bytes in memory are those of `AT_A_TIME` parts, and of one more that is being filled or
//! used.

use crate::access::{self, Access};
use crate::objects::Objects;
use crate::place::Place;
use crate::{FlushError, reason};
use bytes::Bytes;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::task::JoinHandle as Task;

/// Parts in progress at the same time.
const AT_A_TIME: usize = 8;
/// Bytes of a part, unless there would be too many parts: stores accept 10,000, and none under 5
/// MiB except the last.
const PART: u64 = 8 << 20;
const PARTS_MAX: u64 = 9_000;

/// A store, and the thread that accesses it during the session.
pub(crate) struct Session {
    place: Place,
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) path: Path,
    objects: Option<Objects>,
    thread: Option<JoinHandle<()>>,
}

impl Session {
    fn open(place: &Place, access: &Access) -> Result<Session, FlushError> {
        let refuse =
            |why: &str| FlushError::NotAnObject { place: place.to_string(), why: why.to_owned() };
        let named = |name: &str| Path::parse(name).map_err(|e| refuse(&e.to_string()));
        let (store, path) = match place {
            Place::Directory(file) => {
                let name = file.file_name().and_then(|name| name.to_str());
                let name = name.ok_or_else(|| refuse("it does not end with the name of a file"))?;
                if file.is_dir() {
                    return Err(refuse("it is a directory; name the file in it"));
                }
                let above = file.parent().filter(|above| !above.as_os_str().is_empty());
                let above = above.unwrap_or(std::path::Path::new("."));
                (access::directory(above)?, named(name)?)
            }
            Place::Bucket { path, .. } if path.is_empty() => {
                return Err(refuse("it is a bucket; name the object in it"));
            }
            Place::Bucket { .. } => access::open(place, access)?,
        };
        Session::with(place, store, path)
    }

    /// A session with an object, or with all objects under a path, of a store.
    pub(crate) fn with(
        place: &Place,
        store: Arc<dyn ObjectStore>,
        path: Path,
    ) -> Result<Session, FlushError> {
        let failed = |e: std::io::Error| FlushError::Root {
            root: place.to_string(),
            why: format!("cannot start a thread: {e}"),
        };
        let (objects, worker) = Objects::with_worker(0).map_err(failed)?;
        let thread = std::thread::Builder::new().name("objects".into());
        let thread = thread.spawn(move || worker.run()).map_err(failed)?;
        let (objects, thread) = (Some(objects), Some(thread));
        Ok(Session { place: place.clone(), store, path, objects, thread })
    }

    pub(crate) fn objects(&self) -> &Objects {
        self.objects.as_ref().expect("the session keeps its objects until it is dropped")
    }

    pub(crate) fn unwritten(&self, why: String) -> FlushError {
        FlushError::Write { what: self.place.to_string(), why }
    }

    fn unread(&self, e: &Error) -> FlushError {
        let object = self.place.to_string();
        match e {
            Error::NotFound { .. } => FlushError::NoObject { object },
            Error::Precondition { .. } => {
                FlushError::Read { object, why: "it was replaced while it was read".into() }
            }
            e => FlushError::Read { object, why: reason(e) },
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.objects = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An object that is being written. If dropped before `finish`, there is no object.
pub struct RawWriter {
    session: Session,
    part: usize,
    piece: Vec<u8>,
    upload: Option<Box<dyn MultipartUpload>>,
    puts: VecDeque<Task<object_store::Result<()>>>,
}

impl RawWriter {
    /// Begins the object at a place without sending anything. `length` is the expected length,
    /// which determines the size of the parts.
    pub fn begin(place: &Place, access: &Access, length: u64) -> Result<RawWriter, FlushError> {
        let session = Session::open(place, access)?;
        let part = length.div_ceil(PARTS_MAX).max(PART) as usize;
        let (piece, puts) = (Vec::new(), VecDeque::new());
        Ok(RawWriter { session, part, piece, upload: None, puts })
    }

    /// Bytes of each appended piece.
    pub fn part(&self) -> usize {
        self.part
    }

    /// Appends bytes; all pieces but the last have `part` bytes. Waits while too many parts are in
    /// progress.
    pub fn append(&mut self, bytes: Vec<u8>) -> Result<(), FlushError> {
        if !self.piece.is_empty() {
            self.send()?;
        }
        self.piece = bytes;
        Ok(())
    }

    /// Sends the part that is held back: an upload cannot consist of the first part alone.
    fn send(&mut self) -> Result<(), FlushError> {
        let RawWriter { session, upload, puts, piece, .. } = self;
        let objects = session.objects();
        let failed = |e: Error| session.unwritten(reason(&e));
        while puts.len() >= AT_A_TIME {
            let put = puts.pop_front().expect("there are some");
            objects.wait(put).unwrap_or_else(|e| Err(e.into())).map_err(failed)?;
        }
        let upload = match upload {
            Some(upload) => upload,
            None => {
                let begun = objects.wait(session.store.put_multipart(&session.path));
                upload.insert(begun.map_err(failed)?)
            }
        };
        let put = objects.enter(|| upload.put_part(PutPayload::from(std::mem::take(piece))));
        puts.push_back(objects.spawn(put));
        Ok(())
    }

    /// Completes the object.
    pub fn finish(mut self) -> Result<(), FlushError> {
        if self.upload.is_none() {
            let bytes = PutPayload::from(std::mem::take(&mut self.piece));
            let session = &self.session;
            let put = session.objects().wait(session.store.put(&session.path, bytes));
            return put.map(drop).map_err(|e| session.unwritten(reason(&e)));
        }
        self.send()?;
        let RawWriter { session, puts, upload, .. } = &mut self;
        let failed = |e: Error| session.unwritten(reason(&e));
        // Parts after a failed one stay in progress: an upload is aborted only after they have
        // ended.
        while let Some(put) = puts.pop_front() {
            session.objects().wait(put).unwrap_or_else(|e| Err(e.into())).map_err(failed)?;
        }
        let made = upload.as_mut().expect("the upload was begun");
        session.objects().wait(made.complete()).map_err(failed)?;
        *upload = None;
        Ok(())
    }
}

impl Drop for RawWriter {
    fn drop(&mut self) {
        let Some(mut upload) = self.upload.take() else { return };
        let objects = self.session.objects();
        // A part still in progress could arrive after the abort and remain.
        for put in self.puts.drain(..) {
            let _ = objects.wait(put);
        }
        // The store must delete an upload that cannot be aborted now.
        let _ = objects.wait(upload.abort());
    }
}

/// An object that is being read from its beginning, some parts ahead.
pub struct RawReader {
    session: Session,
    size: u64,
    etag: Option<String>,
    asked: u64,
    gets: VecDeque<Task<object_store::Result<Bytes>>>,
}

impl RawReader {
    /// Opens the object at a place; `NoObject` if there is none.
    pub fn open(place: &Place, access: &Access) -> Result<RawReader, FlushError> {
        let session = Session::open(place, access)?;
        let found = session.objects().wait(session.store.head(&session.path));
        let found = found.map_err(|e| session.unread(&e))?;
        let (size, etag, gets) = (found.size, found.e_tag, VecDeque::new());
        Ok(RawReader { session, size, etag, asked: 0, gets })
    }

    /// Its length.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Its next bytes; `None` at the end. All bytes are of the object that was opened: its
    /// replacement meanwhile is an error.
    pub fn next_part(&mut self) -> Result<Option<Bytes>, FlushError> {
        while self.gets.len() < AT_A_TIME && self.asked < self.size {
            let end = self.size.min(self.asked + PART);
            let (store, path) = (self.session.store.clone(), self.session.path.clone());
            let range = Some(GetRange::Bounded(self.asked..end));
            let options = GetOptions { if_match: self.etag.clone(), range, ..Default::default() };
            self.asked = end;
            let get = async move { store.get_opts(&path, options).await?.bytes().await };
            self.gets.push_back(self.session.objects().spawn(get));
        }
        let Some(get) = self.gets.pop_front() else { return Ok(None) };
        let got = self.session.objects().wait(get).unwrap_or_else(|e| Err(e.into()));
        got.map(Some).map_err(|e| self.session.unread(&e))
    }
}
