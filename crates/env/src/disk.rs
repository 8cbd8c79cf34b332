//! The interface to files: one folder with small files that are appended to, synced and renamed.
//!
//! All state on disk is accessed through [`Disk`], so that tests and the simulator can replace the
//! disk ([`MemoryDisk`]): it can lose unsynced bytes, tear the last write, be full, or fail to
//! sync.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Waits until the bytes and the length of one file are on the disk.
pub type Syncer = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

/// One folder. Names are plain file names. Errors are those of the operating system.
/// Appended bytes survive a crash of the process, and after `sync` has returned also a crash of the
/// machine. After an error of `append`, any part of the bytes may be in the file. After an error of
/// `sync`, any unsynced bytes may be lost, even if a later `sync` succeeds.
pub trait Disk: Send {
    /// The names of all files.
    fn list(&mut self) -> io::Result<Vec<String>>;
    /// All bytes of a file; `NotFound` if it does not exist, `PermissionDenied` if users other than
    /// its owner could read or write it.
    fn read(&mut self, name: &str) -> io::Result<Vec<u8>>;
    /// Adds bytes at the end of a file, which is created if needed.
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// Truncates a file.
    fn truncate(&mut self, name: &str, length: u64) -> io::Result<()>;
    /// Waits until the bytes and the length of a file are on the disk.
    fn sync(&mut self, name: &str) -> io::Result<()>;
    /// Makes a function that syncs from another thread while this one appends: it covers all bytes
    /// that were in the file at its call.
    fn syncer(&mut self, name: &str) -> io::Result<Syncer>;
    /// Renames a file, replacing an existing one, and waits until the rename is on the disk.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file; a missing one is not an error. The file may reappear after a crash.
    fn remove(&mut self, name: &str) -> io::Result<()>;
}

/// The name of the file whose lock marks the folder as in use by a process.
const LOCK: &str = "lock";

/// A folder of the file system, for the exclusive use of this process.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    folder: File,
    /// The file that was appended to last.
    open: Option<(String, File)>,
    /// Held while this value exists; the system releases it at any end of the process.
    _lock: File,
}

impl Folder {
    /// Creates the folder if needed, accessible by its user alone, and locks it for this process.
    /// `ResourceBusy` if another process has it.
    pub fn open(path: &Path) -> io::Result<Folder> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let lock = options().open(path.join(LOCK))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                let text = format!("{} is in use by another process", path.display());
                return Err(io::Error::new(ErrorKind::ResourceBusy, text));
            }
            Err(std::fs::TryLockError::Error(e)) => return Err(e),
        }
        Ok(Folder { path: path.into(), folder: File::open(path)?, open: None, _lock: lock })
    }

    fn file(&mut self, name: &str) -> io::Result<&mut File> {
        if self.open.as_ref().is_none_or(|(open, _)| open != name) {
            let file = options().open(self.path.join(name))?;
            self.open = Some((name.to_owned(), file));
        }
        Ok(&mut self.open.as_mut().expect("opened just now").1)
    }

    fn forget(&mut self, name: &str) {
        if self.open.as_ref().is_some_and(|(open, _)| open == name) {
            self.open = None;
        }
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    options
}

impl Disk for Folder {
    fn list(&mut self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != LOCK {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn read(&mut self, name: &str) -> io::Result<Vec<u8>> {
        let path = self.path.join(name);
        if std::fs::metadata(&path)?.mode() & 0o077 != 0 {
            let text = "users other than its owner may read or write it; run chmod 600 on it";
            return Err(io::Error::new(ErrorKind::PermissionDenied, text));
        }
        std::fs::read(path)
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.file(name)?.write_all(bytes)
    }

    fn truncate(&mut self, name: &str, length: u64) -> io::Result<()> {
        self.file(name)?.set_len(length)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.file(name)?.sync_data()
    }

    fn syncer(&mut self, name: &str) -> io::Result<Syncer> {
        let file = self.file(name)?.try_clone()?;
        Ok(Arc::new(move || file.sync_data()))
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.forget(from);
        self.forget(to);
        std::fs::rename(self.path.join(from), self.path.join(to))?;
        self.folder.sync_all()
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.forget(name);
        match std::fs::remove_file(self.path.join(name)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct MemoryFile {
    bytes: Vec<u8>,
    /// Number of bytes that survive a crash of the machine.
    synced: usize,
}

#[derive(Debug, Default)]
struct Memory {
    files: BTreeMap<String, MemoryFile>,
    /// Bytes that can still be written, if limited.
    room: Option<u64>,
    failing_syncs: u32,
    syncs: u64,
    /// Syncs from other threads wait.
    held: bool,
}

/// A folder in memory, with the faults of disks. Clones share the files, so that a clone survives
/// the controller that used another clone.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk(Arc<(Mutex<Memory>, Condvar)>);

impl MemoryDisk {
    /// An empty folder.
    pub fn new() -> MemoryDisk {
        MemoryDisk::default()
    }

    fn inner(&self) -> MutexGuard<'_, Memory> {
        self.0.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn wait_while_held(&self) {
        let held = self.0.1.wait_while(self.inner(), |memory| memory.held);
        drop(held.unwrap_or_else(|poisoned| poisoned.into_inner()));
    }

    /// Simulates a very slow disk: syncs from other threads (`Disk::syncer`) wait until this is
    /// called again with false.
    pub fn hold_syncs(&self, held: bool) {
        self.inner().held = held;
        self.0.1.notify_all();
    }

    /// Simulates a loss of power. Each file keeps as many of its unsynced bytes as `choose`
    /// returns, given their number. If `choose` returns 1 to 2, some of these are zeros, because
    /// pages reach a disk in any order.
    pub fn crash(&self, choose: &mut dyn FnMut(u64) -> u64) {
        for file in self.inner().files.values_mut() {
            let loose = file.bytes.len() - file.synced;
            if loose == 0 {
                continue;
            }
            let kept = choose(loose as u64 + 1).min(loose as u64) as usize;
            file.bytes.truncate(file.synced + kept);
            if kept > 0 && choose(2) == 1 {
                let hole = file.synced + choose(kept as u64) as usize;
                let end = (hole + 512).min(file.bytes.len());
                file.bytes[hole..end].fill(0);
            }
            file.synced = file.bytes.len();
        }
    }

    /// The disk is full after this many more bytes; `None` for no limit.
    pub fn set_room(&self, bytes: Option<u64>) {
        self.inner().room = bytes;
    }

    /// The next `count` syncs fail, and do not save their bytes.
    pub fn fail_syncs(&self, count: u32) {
        self.inner().failing_syncs = count;
    }

    /// The number of syncs.
    pub fn syncs(&self) -> u64 {
        self.inner().syncs
    }

    /// Another folder with the same files.
    pub fn copy(&self) -> MemoryDisk {
        let files = self.inner().files.clone();
        MemoryDisk(Arc::new((Mutex::new(Memory { files, ..Memory::default() }), Condvar::new())))
    }

    /// Replaces a file, as an external program might.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let file = MemoryFile { bytes: bytes.to_vec(), synced: bytes.len() };
        self.inner().files.insert(name.to_owned(), file);
    }
}

fn missing() -> io::Error {
    io::Error::from(ErrorKind::NotFound)
}

impl Disk for MemoryDisk {
    fn list(&mut self) -> io::Result<Vec<String>> {
        Ok(self.inner().files.keys().cloned().collect())
    }

    fn read(&mut self, name: &str) -> io::Result<Vec<u8>> {
        self.inner().files.get(name).map(|file| file.bytes.clone()).ok_or_else(missing)
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.inner();
        let fits = inner.room.map_or(bytes.len(), |room| bytes.len().min(room as usize));
        if let Some(room) = &mut inner.room {
            *room -= fits as u64;
        }
        let file = inner.files.entry(name.to_owned()).or_default();
        file.bytes.extend_from_slice(&bytes[..fits]);
        if fits < bytes.len() { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn truncate(&mut self, name: &str, length: u64) -> io::Result<()> {
        let mut inner = self.inner();
        let file = inner.files.get_mut(name).ok_or_else(missing)?;
        file.bytes.truncate(length as usize);
        file.synced = file.synced.min(file.bytes.len());
        Ok(())
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        let mut inner = self.inner();
        if inner.failing_syncs > 0 {
            inner.failing_syncs -= 1;
            return Err(io::Error::other("the disk did not take it (planted)"));
        }
        inner.syncs += 1;
        let file = inner.files.get_mut(name).ok_or_else(missing)?;
        file.synced = file.bytes.len();
        Ok(())
    }

    fn syncer(&mut self, name: &str) -> io::Result<Syncer> {
        let (disk, name) = (self.clone(), name.to_owned());
        Ok(Arc::new(move || {
            disk.wait_while_held();
            disk.clone().sync(&name)
        }))
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.inner();
        let file = inner.files.remove(from).ok_or_else(missing)?;
        inner.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.inner().files.remove(name);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let unique = crate::Entropy::system().next_u64();
        std::env::temp_dir().join(format!("honeycomb-disk-{name}-{unique:x}"))
    }

    #[test]
    fn a_folder_belongs_to_one_process_at_a_time_and_to_its_user_alone() {
        let path = scratch("lock");
        let mut first = Folder::open(&path).unwrap();
        assert_eq!(Folder::open(&path).unwrap_err().kind(), ErrorKind::ResourceBusy);
        first.append("a", b"one").unwrap();
        first.sync("a").unwrap();
        assert_eq!(std::fs::metadata(path.join("a")).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        drop(first);
        let mut second = Folder::open(&path).unwrap();
        assert_eq!(second.read("a").unwrap(), b"one");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(path.join("a"), open).unwrap();
        assert_eq!(second.read("a").unwrap_err().kind(), ErrorKind::PermissionDenied);
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_folder_and_one_in_memory_are_alike() {
        let path = scratch("alike");
        let folder = Folder::open(&path).unwrap();
        for mut disk in [Box::new(folder) as Box<dyn Disk>, Box::new(MemoryDisk::new())] {
            disk.append("a", b"12345").unwrap();
            disk.append("a", b"678").unwrap();
            disk.sync("a").unwrap();
            disk.truncate("a", 6).unwrap();
            disk.append("a", b"x").unwrap();
            disk.append("b", b"old").unwrap();
            disk.rename("a", "b").unwrap();
            assert_eq!(disk.read("b").unwrap(), b"123456x");
            assert_eq!(disk.read("a").unwrap_err().kind(), ErrorKind::NotFound);
            assert_eq!(disk.list().unwrap(), ["b"]);
            disk.remove("b").unwrap();
            disk.remove("b").unwrap();
            assert!(disk.list().unwrap().is_empty());
        }
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_crash_keeps_what_was_synced() {
        let mut disk = MemoryDisk::new();
        disk.append("a", b"safe").unwrap();
        disk.sync("a").unwrap();
        disk.append("a", b"loose").unwrap();
        disk.crash(&mut |_| 0);
        assert_eq!(disk.read("a").unwrap(), b"safe");
        disk.set_room(Some(2));
        assert_eq!(disk.append("a", b"xyz").unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(disk.read("a").unwrap(), b"safexy");
        disk.fail_syncs(1);
        assert!(disk.sync("a").is_err());
    }
}
