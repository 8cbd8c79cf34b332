//! An object store as a volume: data that need not outlive the process, in the tier under memory
//! and disks.
//!
//! A volume is divided into units. Each unit is written as a whole from its start and is then one object.
//! An object is written once: a rewritten unit has a new name, so that a late request whose reply was
//! abandoned cannot change the bytes that a read returns. The names are only in this process's memory, and
//! the data is lost when the process ends.
//!
//! ```text
//! PLACE/127.0.0.1=3a7420.4f0c9a0b1d2e3f40/alive     renewed while the server lives and has something here
//! PLACE/127.0.0.1=3a7420.4f0c9a0b1d2e3f40/3e8-2f    unit 0x3e8, written as the 0x2f-th
//! ```
//!
//! The objects of a killed server are deleted by another server of the same place when its mark is
//! an hour older than the other's own, by the store's clock. A folder without such a mark is not
//! ours and is not touched.

use crate::access::{self, Access};
use crate::objects::{Objects, ObjectsWorker, REQUESTS};
use crate::place::Place;
use crate::{FlushError, reason, staged};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, future};
use honeycomb_env::{AWAY, Volume};
use honeycomb_types::limits::{TIER_ALIVE_EVERY, TIER_LEFTOVER_AFTER, TIER_PIECE, TIER_STOP_MAX};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutPayload};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The object that marks the folder of a server.
const ALIVE: &str = "alive";
/// Its content, for people who read it.
const ALIVE_TEXT: &[u8] =
    b"Blocks of a Honeycomb memory server. They are of no use when it has ended; others delete \
    them when this object is an hour old.\n";
/// Units of one read that are requested at a time.
const READS: usize = 8;

/// Space in an object store. Every operation runs on the caller's thread, which may wait for
/// seconds.
pub struct ObjectVolume {
    objects: Objects,
    folder: Arc<ServerFolder>,
    unit: u64,
    /// For each unit, the number under which it was written; 0 for none.
    units: Box<[AtomicU64]>,
    written: AtomicU64,
}

/// The thread that accesses the store of a volume: it runs until the volume is dropped, and then
/// deletes the remaining objects.
pub struct TierWorker {
    worker: ObjectsWorker,
    folder: Arc<ServerFolder>,
}

/// The part of the place that belongs to one server while it lives.
struct ServerFolder {
    store: Arc<dyn ObjectStore>,
    place: Place,
    above: Path,
    own: Path,
    /// The mark has been written.
    marked: AtomicBool,
    marking: tokio::sync::Mutex<()>,
}

impl ObjectVolume {
    /// Space of `size` bytes under a place, for this life of the server with this address. Its
    /// blocks have `block_size` bytes. A directory must exist; a bucket is not contacted, so that
    /// an unreachable store does not prevent a server from starting.
    pub fn open(
        place: &Place,
        access: &Access,
        (address, life): (&str, u64),
        (size, block_size): (u64, u64),
    ) -> Result<(ObjectVolume, TierWorker), FlushError> {
        let (store, above) = access::open_scratch(place, access)?;
        let name = format!("{}.{life:016x}", escaped(address));
        let own = above.clone().join(name);
        let folder = ServerFolder {
            store,
            place: place.clone(),
            above,
            own,
            marked: AtomicBool::new(false),
            marking: Default::default(),
        };
        let folder = Arc::new(folder);
        let unit = block_size.min(TIER_PIECE as u64);
        let (objects, worker) = Objects::with_worker(0)
            .map_err(|e| FlushError::Root { root: place.to_string(), why: e.to_string() })?;
        let units = (0..size.div_ceil(unit)).map(|_| AtomicU64::new(0)).collect();
        let volume = ObjectVolume {
            objects,
            folder: folder.clone(),
            unit,
            units,
            written: AtomicU64::new(0),
        };
        Ok((volume, TierWorker { worker, folder }))
    }

    /// The units of a range, each with the part of the range in it.
    fn parts(&self, range: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> + use<> {
        let unit = self.unit;
        (range.start / unit..range.end.div_ceil(unit)).map(move |n| {
            let start = n * unit;
            let within = range.start.max(start)..range.end.min(start + unit);
            (n as usize, within.start - start..within.end - start)
        })
    }

    fn failed(&self, what: &str, error: &Error) -> io::Error {
        let place = &self.folder.place;
        match error {
            Error::NotFound { .. } => {
                let text = format!("{what} the object tier at {place}: the object does not exist");
                io::Error::new(ErrorKind::NotFound, text)
            }
            _ => {
                let why = reason(error);
                io::Error::new(AWAY, format!("{what} the object tier at {place}: {why}"))
            }
        }
    }
}

impl Volume for ObjectVolume {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let all: Vec<_> = self.parts(at..at + into.len() as u64).collect();
        let mut done = 0;
        for some in all.chunks(READS) {
            let mut asked = Vec::with_capacity(some.len());
            for (n, range) in some {
                let written = self.units[*n].load(Relaxed);
                if written == 0 {
                    let text = format!("unit {n} of the object tier was not written");
                    return Err(io::Error::new(ErrorKind::NotFound, text));
                }
                let (folder, limits) = (self.folder.clone(), self.objects.limits().clone());
                let (path, range) = (folder.unit(*n, written), range.clone());
                asked.push(self.objects.spawn(async move {
                    let _turn = limits.turn().await;
                    folder.store.get_range(&path, range).await
                }));
            }
            let got = self.objects.wait(future::join_all(asked));
            for ((_, range), got) in some.iter().zip(got) {
                let length = (range.end - range.start) as usize;
                let got = got.unwrap_or_else(|e| Err(e.into()));
                let got = got.map_err(|e| self.failed("cannot read from", &e))?;
                if got.len() != length {
                    let text = format!("the object store returned {} of {length} bytes", got.len());
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, text));
                }
                into[done..done + length].copy_from_slice(&got);
                done += length;
            }
        }
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let (n, length) = ((at / self.unit) as usize, bytes.len() as u64);
        assert!(
            at.is_multiple_of(self.unit) && length <= self.unit,
            "{length} bytes at {at} of an object tier: units of {} are written from their start",
            self.unit
        );
        let number = self.written.fetch_add(1, Relaxed) + 1;
        let before = self.units[n].swap(number, Relaxed);
        let (folder, limits) = (&self.folder, self.objects.limits());
        let payload = PutPayload::from(Bytes::copy_from_slice(bytes));
        let put = self.objects.wait(async {
            let _turn = limits.turn().await;
            folder.mark(&self.objects).await?;
            let put = folder.store.put(&folder.unit(n, number), payload).await;
            if before != 0 {
                // The unit was not discarded before; an object that is not deleted now is deleted
                // with the folder.
                let _ = folder.delete(&folder.unit(n, before)).await;
            }
            put.map(drop)
        });
        put.map_err(|e| self.failed("cannot write to", &e))
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        for (n, _) in self.parts(range) {
            let written = self.units[n].load(Relaxed);
            if written == 0 {
                continue;
            }
            let (folder, limits) = (&self.folder, self.objects.limits());
            let deleted = self.objects.wait(async {
                let _turn = limits.turn().await;
                folder.delete(&folder.unit(n, written)).await
            });
            deleted.map_err(|e| self.failed("cannot delete from", &e))?;
            self.units[n].store(0, Relaxed);
        }
        Ok(())
    }

    fn is_direct(&self) -> bool {
        true
    }

    /// A request is bound by its latency, not by its bytes.
    fn width(&self) -> usize {
        REQUESTS
    }
}

impl TierWorker {
    /// Runs until the volume is dropped, and then deletes its objects.
    pub fn run(self) {
        let TierWorker { worker, folder } = self;
        worker.run_then(async move {
            if folder.marked.load(Relaxed) {
                // Objects that are not deleted in time are left to other servers.
                let _ = tokio::time::timeout(TIER_STOP_MAX, folder.delete_all(&folder.own)).await;
            }
        });
    }
}

impl ServerFolder {
    fn unit(&self, n: usize, number: u64) -> Path {
        self.own.clone().join(format!("{n:x}-{number:x}"))
    }

    async fn delete(&self, path: &Path) -> object_store::Result<()> {
        match self.store.delete(path).await {
            Err(Error::NotFound { .. }) => Ok(()),
            deleted => deleted,
        }
    }

    /// The mark is written before the first unit, so that the owner of every object is known.
    async fn mark(self: &Arc<ServerFolder>, objects: &Objects) -> object_store::Result<()> {
        if self.marked.load(Relaxed) {
            return Ok(());
        }
        let _one = self.marking.lock().await;
        if !self.marked.load(Relaxed) {
            self.renew().await?;
            self.marked.store(true, Relaxed);
            objects.spawn(self.clone().keep());
        }
        Ok(())
    }

    async fn renew(&self) -> object_store::Result<()> {
        let payload = PutPayload::from_static(ALIVE_TEXT);
        self.store.put(&self.own.clone().join(ALIVE), payload).await.map(drop)
    }

    /// Renews the mark periodically, and deletes the folders of dead servers. It ends with the
    /// thread.
    async fn keep(self: Arc<ServerFolder>) {
        loop {
            // Folders that cannot be checked now are checked later.
            let _ = self.delete_leftovers(TIER_LEFTOVER_AFTER).await;
            tokio::time::sleep(TIER_ALIVE_EVERY).await;
            let _ = self.renew().await;
        }
    }

    /// Deletes the folders of servers whose mark was not renewed for so long. Both times are from
    /// the store's clock.
    async fn delete_leftovers(&self, after: Duration) -> object_store::Result<()> {
        let now = self.store.head(&self.own.clone().join(ALIVE)).await?.last_modified;
        let found = self.store.list_with_delimiter(Some(&self.above)).await?;
        for folder in found.common_prefixes {
            if folder == self.own || !is_ours(&folder) {
                continue;
            }
            match self.store.head(&folder.clone().join(ALIVE)).await {
                Ok(alive) if (now - alive.last_modified).to_std().is_ok_and(|age| age >= after) => {
                    self.delete_all(&folder).await?;
                }
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Deletes a server's folder, its mark last: while the folder has objects, its owner is known.
    async fn delete_all(&self, folder: &Path) -> object_store::Result<()> {
        let alive = folder.clone().join(ALIVE);
        let mark = alive.clone();
        let all = self.store.list(Some(folder)).map_ok(|meta| meta.location);
        let all = all.try_filter(move |path| future::ready(*path != mark)).boxed();
        let gone = |deleted: object_store::Result<Path>| match deleted {
            Err(Error::NotFound { .. }) => Ok(()),
            deleted => deleted.map(drop),
        };
        let deleted = self.store.delete_stream(all).map(gone);
        deleted.try_for_each(|()| future::ready(Ok(()))).await?;
        if let (Some(root), Some(name)) = (self.place.directory(), folder.filename()) {
            staged::delete(root.join(name), |_| true).await;
        }
        self.delete(&alive).await
    }
}

/// Whether a folder's name has our form: an address and a number.
fn is_ours(folder: &Path) -> bool {
    let name = folder.parts().next_back();
    let name = name.as_ref().map_or("", |name| name.as_ref());
    name.rsplit_once('.').is_some_and(|(_, life)| {
        life.len() == 16 && life.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// An address as a part of a name that every store accepts; different addresses give different
/// names.
fn escaped(address: &str) -> String {
    let mut name = String::with_capacity(address.len() + 8);
    for b in address.bytes() {
        match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' => name.push(b.into()),
            _ => name.push_str(&format!("={b:02x}")),
        }
    }
    name
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use honeycomb_env::Entropy;
    use honeycomb_faultstore::Gateway;
    use std::path::PathBuf;
    use std::thread::JoinHandle;

    const BLOCK: u64 = 4 << 20;
    const PAGE: usize = 4096;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Scratch {
            let name = format!("honeycomb-object-tier-{:016x}", Entropy::system().next_u64());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir(&path).unwrap();
            Scratch(path)
        }

        fn place(&self) -> Place {
            Place::Directory(self.0.clone())
        }

        /// The files under it, without their directories.
        fn files(&self) -> Vec<PathBuf> {
            let mut found = Vec::new();
            for folder in std::fs::read_dir(&self.0).unwrap() {
                let files = std::fs::read_dir(folder.unwrap().path()).unwrap();
                found.extend(files.map(|file| file.unwrap().path()));
            }
            found
        }

        fn is_empty(&self) -> bool {
            std::fs::read_dir(&self.0).unwrap().next().is_none()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn open(place: &Place, access: &Access, life: u64) -> (ObjectVolume, JoinHandle<()>) {
        let opened = ObjectVolume::open(place, access, ("[::1]:7420", life), (4 * BLOCK, BLOCK));
        let (volume, worker) = opened.unwrap();
        (volume, std::thread::spawn(move || worker.run()))
    }

    fn bytes(seed: u8, length: usize) -> Vec<u8> {
        (0..length).map(|n| (n / 251) as u8 ^ (n as u8) ^ seed).collect()
    }

    /// Written bytes can be read, across the boundary of two units; discarded units are deleted,
    /// and all objects at the end.
    fn keeps_what_it_is_given(place: &Place, access: &Access, count: impl Fn() -> usize) {
        let (volume, worker) = open(place, access, 1);
        let mut got = vec![0; 8192];
        let nothing = volume.read(0, &mut got).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::NotFound);
        volume.discard(0..4 * BLOCK).unwrap();
        assert_eq!(count(), 0, "nothing is asked of a store before something is written");
        let block = bytes(3, 3 * TIER_PIECE + PAGE);
        for (n, piece) in block.chunks(TIER_PIECE).enumerate() {
            volume.write(BLOCK + (n * TIER_PIECE) as u64, piece).unwrap();
        }
        // With its mark.
        assert_eq!(count(), 5);
        let mut got = vec![0; block.len() - 3 * PAGE];
        volume.read(BLOCK + 2 * PAGE as u64, &mut got).unwrap();
        assert!(got == block[2 * PAGE..block.len() - PAGE], "other bytes than were written");
        let mut beyond = vec![0; 2 * PAGE];
        assert!(volume.read(BLOCK + 3 * TIER_PIECE as u64, &mut beyond).is_err());
        // Rewriting makes a new object and deletes the earlier one.
        volume.write(BLOCK, &block[PAGE..2 * PAGE]).unwrap();
        assert_eq!(count(), 5);
        let mut got = vec![0; PAGE];
        volume.read(BLOCK, &mut got).unwrap();
        assert!(got == block[PAGE..2 * PAGE]);
        volume.write(0, &block[..PAGE]).unwrap();
        for _ in 0..2 {
            volume.discard(BLOCK..2 * BLOCK).unwrap();
            assert_eq!(count(), 2, "its neighbour and the mark");
        }
        assert_eq!(volume.read(BLOCK, &mut got).unwrap_err().kind(), ErrorKind::NotFound);
        volume.read(0, &mut got).unwrap();
        drop(volume);
        worker.join().unwrap();
        assert_eq!(count(), 0);
    }

    #[test]
    fn a_directory_keeps_what_it_is_given_and_nothing_longer() {
        let scratch = Scratch::new();
        keeps_what_it_is_given(&scratch.place(), &Access::none(), || scratch.files().len());
        assert!(scratch.is_empty());
    }

    #[test]
    fn a_bucket_keeps_what_it_is_given_and_nothing_longer() {
        let Some(gateway) = Gateway::start() else { return };
        let place = Place::parse(&format!("s3://{}/spill/here", Gateway::BUCKET)).unwrap();
        let variables = Gateway::variables(gateway.address());
        let access = variables.iter().fold(Access::none(), |a, (name, value)| a.with(name, value));
        let count = || gateway.objects("spill/here").len();
        keeps_what_it_is_given(&place, &access, count);
    }

    #[test]
    fn what_is_away_is_not_lost_and_what_is_gone_is() {
        let scratch = Scratch::new();
        let root = scratch.0.join("root");
        std::fs::create_dir(&root).unwrap();
        let (volume, worker) = open(&Place::Directory(root.clone()), &Access::none(), 1);
        let mut page = bytes(9, PAGE);
        volume.write(0, &page).unwrap();
        // The root is elsewhere, and a file has its name.
        let elsewhere = scratch.0.join("elsewhere");
        std::fs::rename(&root, &elsewhere).unwrap();
        std::fs::write(&root, b"").unwrap();
        let done = [
            volume.read(0, &mut page).unwrap_err(),
            volume.write(BLOCK, &page).unwrap_err(),
            volume.discard(0..BLOCK).unwrap_err(),
        ];
        for error in done {
            assert_eq!(error.kind(), AWAY, "{error}");
            assert!(error.to_string().contains("root: "), "{error}");
        }
        std::fs::remove_file(&root).unwrap();
        std::fs::rename(&elsewhere, &root).unwrap();
        // An unfinished write at the time of the removal has a name that no listing shows.
        let being_written = root.join(volume.folder.own.as_ref()).join("1-2#1");
        std::fs::write(being_written, b"half").unwrap();
        volume.read(0, &mut page).unwrap();
        assert!(page == bytes(9, PAGE));
        let object = |path: &PathBuf| !path.ends_with(ALIVE);
        let folder = std::fs::read_dir(&root).unwrap().next().unwrap().unwrap().path();
        let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
        files.filter(object).for_each(|path| std::fs::remove_file(path).unwrap());
        let gone = volume.read(0, &mut page).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
        volume.discard(0..BLOCK).unwrap();
        drop(volume);
        worker.join().unwrap();
    }

    #[test]
    fn what_the_dead_leave_is_deleted_and_nothing_of_others() {
        let scratch = Scratch::new();
        let (dead, alive) = (open(&scratch.place(), &Access::none(), 7), 8);
        let (mine, worker) = open(&scratch.place(), &Access::none(), 9);
        let (other, others) = open(&scratch.place(), &Access::none(), alive);
        let page = bytes(1, PAGE);
        for volume in [&dead.0, &mine, &other] {
            // Marked in advance, so that none of them checks by itself: the call below finds the
            // dead one.
            volume.objects.wait(volume.folder.renew()).unwrap();
            volume.folder.marked.store(true, Relaxed);
            volume.write(0, &page).unwrap();
        }
        // Older than our mark by the clock of the store.
        let of = |volume: &ObjectVolume| scratch.0.join(volume.folder.own.as_ref());
        let mark = std::fs::File::options().write(true).open(of(&dead.0).join(ALIVE)).unwrap();
        let then = mark.metadata().unwrap().modified().unwrap() - TIER_LEFTOVER_AFTER * 2;
        mark.set_modified(then).unwrap();
        // One with our form of name and no mark, and one with a mark under another name.
        for (name, file) in [("h=3a1.00000000000000ff", "kept"), ("mine", ALIVE)] {
            std::fs::create_dir(scratch.0.join(name)).unwrap();
            let path = scratch.0.join(name).join(file);
            std::fs::write(&path, b"").unwrap();
            std::fs::File::options().write(true).open(&path).unwrap().set_modified(then).unwrap();
        }
        assert_eq!(scratch.files().len(), 8);
        let looked = mine.objects.wait(mine.folder.delete_leftovers(TIER_LEFTOVER_AFTER));
        looked.unwrap();
        assert!(!of(&dead.0).exists());
        assert_eq!(scratch.files().len(), 6);
        let mut got = vec![0; PAGE];
        other.read(0, &mut got).unwrap();
        assert_eq!(dead.0.read(0, &mut got).unwrap_err().kind(), ErrorKind::NotFound);
        drop((dead.0, mine, other));
        for worker in [dead.1, worker, others] {
            worker.join().unwrap();
        }
        assert_eq!(scratch.files().len(), 2, "theirs, and nothing of ours");
    }

    #[test]
    fn a_place_that_is_not_there_is_told_at_once() {
        let place = Place::Directory("/nowhere/at/all".into());
        let opened = ObjectVolume::open(&place, &Access::none(), ("a:1", 1), (BLOCK, BLOCK));
        assert!(matches!(opened.err(), Some(FlushError::Root { .. })));
        assert_eq!(escaped("node_1:7420"), "node=5f1=3a7420");
    }
}
