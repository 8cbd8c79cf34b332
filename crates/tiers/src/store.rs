//! Writing a flush: objects in any order, then the manifest.

use crate::access::{self, Access};
use crate::commit::{
    Commit, CommitStep, Committed, Condition, Fault, Hindrance, StoreReply, StoreRequest, Tag,
};
use crate::journal::is_journal;
use crate::manifest::Manifest;
use crate::objects::{Limits, Objects, UNIT};
use crate::place::Place;
use crate::{FlushError, reason, staged};
use bytes::Bytes;
use honeycomb_types::limits::FLUSH_OBJECT_MAX;
use honeycomb_types::{FLUSH_MANIFEST, flush_object};
use object_store::path::Path;
use object_store::{
    Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use std::collections::HashSet;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;

/// The longest object, unless it has a single longer item.
const OBJECT_MAX: usize = FLUSH_OBJECT_MAX as usize;

/// One of the objects that were written of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenObject {
    /// Length of the object.
    pub bytes: u64,
    /// The number of items that the content reported.
    pub items: u64,
    /// CRC-32 of the object.
    pub crc32: u32,
}

/// The root under which a server flushes (the setting `flush_root`).
///
/// All writes stay under the root, whatever the requested path. A directory must exist at each
/// write: if it is missing (such as a disk that is no longer mounted), the write fails and does not
/// create it. Completed writes are durable: objects and the directories that name them are
/// synchronised.
#[derive(Clone)]
pub struct FlushStore {
    pub(crate) objects: Objects,
    pub(crate) root: Arc<Root>,
}

/// A server's flush destination.
#[derive(Clone, Debug)]
pub struct FlushRoot {
    /// The place.
    pub place: Place,
    /// Access to it, if it is in an object store.
    pub access: Access,
}

pub(crate) struct Root {
    pub(crate) place: Place,
    /// The open bucket; a directory is opened anew.
    bucket: Option<(Arc<dyn ObjectStore>, Path)>,
}

impl Root {
    pub(crate) async fn store(&self) -> Result<Arc<dyn ObjectStore>, FlushError> {
        if let Some((store, _)) = &self.bucket {
            return Ok(store.clone());
        }
        let directory =
            self.place.directory().expect("the place of a root is a directory").to_owned();
        let opened = tokio::task::spawn_blocking(move || access::directory(&directory)).await;
        opened.unwrap_or_else(|e| {
            Err(FlushError::Root { root: self.place.to_string(), why: e.to_string() })
        })
    }

    /// A path under the root, in the store's form; the store refuses `..`, and so do we.
    pub(crate) fn located(&self, object: &str) -> Result<Path, FlushError> {
        let refuse = |e: object_store::path::Error| FlushError::Path {
            path: object.to_owned(),
            why: e.to_string(),
        };
        let path = Path::parse(object).map_err(refuse)?;
        Ok(match &self.bucket {
            Some((_, above)) => above.parts().chain(path.parts()).collect(),
            None => path,
        })
    }

    async fn put(&self, object: &str, bytes: Bytes) -> Result<(), FlushError> {
        self.put_all(object, PutPayload::from(bytes)).await
    }

    pub(crate) async fn put_all(&self, object: &str, bytes: PutPayload) -> Result<(), FlushError> {
        let (store, path) = (self.store().await?, self.located(object)?);
        let put = store.put(&path, bytes).await;
        put.map(drop).map_err(|e| self.failed(object, &e))
    }

    pub(crate) fn failed(&self, object: &str, why: &Error) -> FlushError {
        FlushError::Write { what: self.place.join(object).to_string(), why: reason(why) }
    }

    async fn commit(
        &self,
        limits: &Limits,
        directory: &str,
        manifest: Manifest,
    ) -> Result<(), FlushError> {
        let owner = (manifest.job.clone(), manifest.address.clone());
        let mut commit = Commit::new(manifest);
        let mut ask = commit.begin();
        loop {
            let answer = self.carry_out(limits, directory, ask).await?;
            match commit.next(answer) {
                CommitStep::Ask(next) => ask = next,
                CommitStep::End(Ok(Committed::Whole | Committed::Superseded)) => {
                    self.delete_staged(directory, vec![FLUSH_MANIFEST.to_owned()]).await;
                    return self.cover_journal(limits, directory, (&owner.0, &owner.1)).await;
                }
                CommitStep::End(Err(hindrance)) => return Err(self.hindered(directory, hindrance)),
            }
        }
    }

    /// Unfinished writes under these names are deleted too.
    async fn delete_staged(&self, directory: &str, names: Vec<String>) {
        let Some(root) = self.place.directory() else { return };
        let names: HashSet<String> = names.into_iter().collect();
        staged::delete(root.join(directory), move |of| names.contains(of)).await;
    }

    fn hindered(&self, directory: &str, hindrance: Hindrance) -> FlushError {
        match hindrance {
            Hindrance::Missing { part, expected, found } => {
                let part = self.place.join(&format!("{directory}/{part}")).to_string();
                FlushError::MissingPart { part, expected, found }
            }
            Hindrance::Store { what, fault } => {
                let why = match fault {
                    Fault::Passing(why) | Fault::Refused(why) => why,
                    Fault::Absent => "it does not exist".into(),
                    Fault::Changed => "another writer changed it at the same time".into(),
                    Fault::NotPossible => "the store does not support this operation".into(),
                };
                let what = format!("{what} in {}", self.place.join(directory));
                FlushError::Write { what, why }
            }
        }
    }

    /// Sends a request to the store; only a missing root is an error here.
    async fn carry_out(
        &self,
        limits: &Limits,
        directory: &str,
        ask: StoreRequest,
    ) -> Result<StoreReply, FlushError> {
        let store = self.store().await?;
        let manifest = self.located(&format!("{directory}/{FLUSH_MANIFEST}"))?;
        Ok(match ask {
            StoreRequest::Look(names) => {
                let look = async |store: Arc<dyn ObjectStore>, path: Path| {
                    store.head(&path).await.map(|meta| meta.size)
                };
                let looked = self.for_each(limits, directory, names, look).await?;
                StoreReply::Looked(looked)
            }
            StoreRequest::Read => StoreReply::Read(self.read(&store, &manifest).await),
            StoreRequest::Write(bytes, condition) => {
                StoreReply::Written(self.write(&store, &manifest, bytes, condition).await)
            }
            StoreRequest::Delete(names) => {
                self.delete_staged(directory, names.clone()).await;
                let delete =
                    async |store: Arc<dyn ObjectStore>, path: Path| match store.delete(&path).await
                    {
                        Err(Error::NotFound { .. }) => Ok(()),
                        deleted => deleted,
                    };
                let deleted = self.for_each(limits, directory, names, delete).await?;
                StoreReply::Deleted(deleted.into_iter().collect())
            }
        })
    }

    /// Runs the same operation for each of these objects, many at a time.
    pub(crate) async fn for_each<
        T: Send + 'static,
        F: Future<Output = object_store::Result<T>> + Send,
    >(
        &self,
        limits: &Limits,
        directory: &str,
        names: Vec<String>,
        request: impl Fn(Arc<dyn ObjectStore>, Path) -> F + Copy + Send + 'static,
    ) -> Result<Vec<Result<T, Fault>>, FlushError> {
        let store = self.store().await?;
        let mut under_way = Vec::with_capacity(names.len());
        for name in names {
            let (store, limits) = (store.clone(), limits.clone());
            let path = self.located(&format!("{directory}/{name}"))?;
            under_way.push(tokio::spawn(async move {
                let _turn = limits.turn().await;
                request(store, path).await
            }));
        }
        let mut all = Vec::with_capacity(under_way.len());
        for one in under_way {
            let one = one.await.unwrap_or_else(|source| Err(source.into()));
            all.push(one.map_err(|e| fault(&e)));
        }
        Ok(all)
    }

    pub(crate) async fn read(
        &self,
        store: &Arc<dyn ObjectStore>,
        path: &Path,
    ) -> Result<(Vec<u8>, Tag), Fault> {
        let found = store.get(path).await.map_err(|e| fault(&e))?;
        let (etag, version) = (found.meta.e_tag.clone(), found.meta.version.clone());
        let text = Vec::from(found.bytes().await.map_err(|e| fault(&e))?);
        let tag = match self.bucket {
            Some(_) => Tag { etag, version },
            // In a directory two versions may have the same time, so their content is compared.
            None => {
                let content = format!("{:08x}-{}", crc32fast::hash(&text), text.len());
                Tag { etag: Some(content), version: None }
            }
        };
        Ok((text, tag))
    }

    async fn write(
        &self,
        store: &Arc<dyn ObjectStore>,
        path: &Path,
        bytes: Vec<u8>,
        condition: Condition,
    ) -> Result<(), Fault> {
        let mode = match (&self.bucket, condition) {
            (_, Condition::Any) => PutMode::Overwrite,
            (Some(_), Condition::Absent) => PutMode::Create,
            (Some(_), Condition::Is(Tag { etag, version })) => {
                PutMode::Update(UpdateVersion { e_tag: etag, version })
            }
            // A directory has no conditions that all file systems support. Between the read and the
            // write, another controller with the same directory may replace the manifest.
            (None, condition) => {
                let there = match self.read(store, path).await {
                    Ok((_, tag)) => Condition::Is(tag),
                    Err(Fault::Absent) => Condition::Absent,
                    Err(fault) => return Err(fault),
                };
                if there != condition {
                    return Err(Fault::Changed);
                }
                PutMode::Overwrite
            }
        };
        let options = PutOptions { mode, ..PutOptions::default() };
        let put = store.put_opts(path, PutPayload::from(bytes), options).await;
        put.map(drop).map_err(|e| fault(&e))
    }
}

/// The meaning of a library error. The library hides HTTP status codes, so its error kinds must
/// suffice. It also returns `AlreadyExists` if the store was only busy.
pub(crate) fn fault(error: &Error) -> Fault {
    match error {
        Error::NotFound { .. } => Fault::Absent,
        Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. } => {
            Fault::Changed
        }
        Error::PermissionDenied { .. }
        | Error::Unauthenticated { .. }
        | Error::InvalidPath { .. } => Fault::Refused(reason(error)),
        Error::NotImplemented { .. }
        | Error::NotSupported { .. }
        | Error::UnknownConfigurationKey { .. } => Fault::NotPossible,
        _ => Fault::Passing(reason(error)),
    }
}

impl FlushStore {
    /// A store for this root. A directory must exist; a bucket is not contacted, so that an
    /// unreachable store does not prevent a server from starting.
    pub fn open(root: &FlushRoot, objects: Objects) -> Result<FlushStore, FlushError> {
        let FlushRoot { place, access } = root;
        let opened = access::open(place, access)?;
        let bucket = place.directory().is_none().then_some(opened);
        Ok(FlushStore { objects, root: Arc::new(Root { place: place.clone(), bucket }) })
    }

    /// Begins a part, whose first object has this name under the root.
    pub fn part(&self, first: &str) -> PartWriter {
        PartWriter {
            store: self.clone(),
            first: first.to_owned(),
            piece: Vec::new(),
            room: Vec::new(),
            items: 0,
            written: Vec::new(),
            puts: Vec::new(),
            failed: Arc::default(),
        }
    }

    /// Deletes objects by their names in a directory; missing objects count as deleted. `done` is
    /// called on the thread of the stores.
    pub fn sweep(
        &self,
        directory: String,
        names: Vec<String>,
        done: impl FnOnce(Result<(), FlushError>) + Send + 'static,
    ) {
        let (root, limits) = (self.root.clone(), self.objects.limits().clone());
        self.objects.spawn(async move {
            let (journals, names): (Vec<_>, Vec<_>) =
                names.into_iter().partition(|name| is_journal(name));
            for name in journals {
                if let Err(e) = root.sweep_journal(&limits, &directory, &name).await {
                    return done(Err(e));
                }
            }
            let swept = root.carry_out(&limits, &directory, StoreRequest::Delete(names)).await;
            done(swept.and_then(|answer| match answer {
                StoreReply::Deleted(Err(fault)) => {
                    let what = "objects that are no longer needed";
                    Err(root.hindered(&directory, Hindrance::Store { what, fault }))
                }
                _ => Ok(()),
            }));
        });
    }

    /// Completes the flush: writes its manifest after a check that all parts exist. Objects of an
    /// earlier flush in the directory are deleted afterwards. `done` is called on the thread of the
    /// stores.
    pub fn commit(
        &self,
        directory: String,
        manifest: Manifest,
        done: impl FnOnce(Result<(), FlushError>) + Send + 'static,
    ) {
        let (root, limits) = (self.root.clone(), self.objects.limits().clone());
        self.objects.spawn(async move { done(root.commit(&limits, &directory, manifest).await) });
    }
}

/// A part that is being written, as one object or several. If it is dropped before its end, there
/// is no part: objects already written have no meaning.
pub struct PartWriter {
    store: FlushStore,
    first: String,
    /// The object that is being filled, and the space reserved for its bytes.
    piece: Vec<u8>,
    room: Vec<OwnedSemaphorePermit>,
    items: u64,
    written: Vec<WrittenObject>,
    puts: Vec<JoinHandle<Result<(), FlushError>>>,
    /// One of the objects could not be written, so the rest need not be.
    failed: Arc<AtomicBool>,
}

impl PartWriter {
    /// Adds an item, which stays in one object. Waits while too many bytes are in progress. Fails
    /// if an earlier object failed, and when the server ends; `finish` gives the reason.
    pub fn item(&mut self, bytes: &[&[u8]]) -> io::Result<()> {
        let length = bytes.iter().map(|run| run.len()).sum::<usize>();
        if !self.piece.is_empty() && self.piece.len() + length > OBJECT_MAX {
            self.hand_on();
        }
        self.make_room(length)?;
        bytes.iter().for_each(|run| self.piece.extend_from_slice(run));
        self.items += 1;
        Ok(())
    }

    fn make_room(&mut self, length: usize) -> io::Result<()> {
        let needed = self.piece.len() + length;
        if needed <= self.piece.capacity() {
            return Ok(());
        }
        if self.failed.load(Relaxed) {
            return Err(io::Error::other("an earlier object could not be written"));
        }
        let capacity = needed.next_power_of_two().max(UNIT);
        let held = self.room.iter().map(OwnedSemaphorePermit::num_permits).sum::<usize>();
        let more = capacity.saturating_sub(held * UNIT);
        let room = self.store.objects.room(more, held);
        self.room.push(room.ok_or(io::Error::other("the server is ending"))?);
        self.piece.reserve_exact(capacity - self.piece.len());
        Ok(())
    }

    /// Writes bytes without items directly, without a copy.
    pub fn plain(&mut self, bytes: impl AsRef<[u8]> + Send + 'static) {
        let bytes = Bytes::from_owner(bytes);
        for from in (0..bytes.len()).step_by(OBJECT_MAX) {
            let piece = bytes.slice(from..bytes.len().min(from + OBJECT_MAX));
            let items = piece.len() as u64;
            self.send(piece, items, Vec::new());
        }
    }

    /// Adds bytes without items by a copy, into the same objects as `plain`. Waits and fails as
    /// `item` does.
    pub fn run(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.piece.len() == OBJECT_MAX {
                self.hand_on();
            }
            let length = bytes.len().min(OBJECT_MAX - self.piece.len());
            self.make_room(length)?;
            self.piece.extend_from_slice(&bytes[..length]);
            self.items += length as u64;
            bytes = &bytes[length..];
        }
        Ok(())
    }

    fn hand_on(&mut self) {
        let (piece, room) = (std::mem::take(&mut self.piece), std::mem::take(&mut self.room));
        let items = std::mem::take(&mut self.items);
        self.send(piece.into(), items, room);
    }

    fn send(&mut self, bytes: Bytes, items: u64, room: Vec<OwnedSemaphorePermit>) {
        let crc32 = crc32fast::hash(&bytes);
        let object = flush_object(&self.first, self.written.len());
        self.written.push(WrittenObject { bytes: bytes.len() as u64, items, crc32 });
        let (root, failed) = (self.store.root.clone(), self.failed.clone());
        let limits = self.store.objects.limits().clone();
        self.puts.push(self.store.objects.spawn(async move {
            let _turn = limits.turn().await;
            let put = root.put(&object, bytes).await;
            failed.fetch_or(put.is_err(), Relaxed);
            drop(room);
            put
        }));
    }

    /// Submits the rest, if all of the part was `given`; `InvalidData` means that its items are not those of
    /// a flush. `done` is called on the thread of the
    /// stores after all objects are written or one has failed, with all of them in order: at least
    /// one.
    pub fn finish(
        mut self,
        given: io::Result<()>,
        done: impl FnOnce(Result<Vec<WrittenObject>, FlushError>) + Send + 'static,
    ) {
        if given.is_ok() && (self.written.is_empty() || !self.piece.is_empty()) {
            self.hand_on();
        }
        let what = self.store.root.place.join(&self.first).to_string();
        let PartWriter { store, written, puts, .. } = self;
        store.objects.spawn(async move {
            let mut failed = None;
            for put in puts {
                let put = put.await.unwrap_or_else(|e| {
                    Err(FlushError::Write { what: what.clone(), why: e.to_string() })
                });
                failed = failed.or(put.err());
            }
            done(match (failed, given) {
                (Some(why), _) => Err(why),
                (None, Err(e)) if e.kind() == io::ErrorKind::InvalidData => {
                    Err(FlushError::Items { what, why: e.to_string() })
                }
                (None, Err(e)) => Err(FlushError::Write { what, why: e.to_string() }),
                (None, Ok(())) => Ok(written),
            });
        });
    }
}
