//! A lock file that its holder may remove.
//!
//! The system releases the lock at every end of the process, so a leftover file locks nothing. A
//! process may wait for a file that is removed meanwhile, and would then hold a lock that no other
//! process sees. Each holder therefore checks that the file still has this name, and starts again
//! otherwise.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A lock that this process holds.
#[derive(Debug)]
pub struct LockFile {
    file: File,
    path: PathBuf,
}

impl LockFile {
    /// Waits for the lock. The file is created if needed.
    pub fn wait(path: &Path) -> io::Result<LockFile> {
        loop {
            let file = open(path)?;
            file.lock()?;
            if let Some(lock) = LockFile::checked(file, path)? {
                return Ok(lock);
            }
        }
    }

    /// Takes the lock; `None` if another process, or another lock of this process, holds it.
    pub fn take(path: &Path) -> io::Result<Option<LockFile>> {
        loop {
            let file = open(path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(e)) => return Err(e),
            }
            if let Some(lock) = LockFile::checked(file, path)? {
                return Ok(Some(lock));
            }
        }
    }

    /// Removes the file while it is locked, and releases the lock.
    pub fn remove(self) -> io::Result<()> {
        let removed = fs::remove_file(&self.path);
        drop(self.file);
        removed
    }

    fn checked(file: File, path: &Path) -> io::Result<Option<LockFile>> {
        let held = file.metadata()?;
        match fs::metadata(path) {
            Ok(named) if (named.dev(), named.ino()) == (held.dev(), held.ino()) => {
                Ok(Some(LockFile { file, path: path.to_owned() }))
            }
            Ok(_) => Ok(None),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Entropy;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn scratch() -> PathBuf {
        let name = format!("honeycomb-lock-{:016x}", Entropy::system().next_u64());
        std::env::temp_dir().join(name)
    }

    #[test]
    fn lock_is_held_once_and_a_file_that_was_left_behind_locks_nothing() {
        let path = scratch();
        let lock = LockFile::take(&path).unwrap().unwrap();
        assert!(LockFile::take(&path).unwrap().is_none());
        drop(lock);
        assert!(path.exists(), "as a killed process leaves it");
        let lock = LockFile::take(&path).unwrap().unwrap();
        lock.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn lock_whose_file_is_removed_by_each_holder_is_held_by_one_at_a_time() {
        let path = scratch();
        let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let lock = LockFile::wait(&path).unwrap();
                        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        lock.remove().unwrap();
                    }
                });
            }
        });
        assert_eq!(most.into_inner(), 1);
        assert!(!path.exists());
    }
}
