//! Memory that processes of one machine read in place: the server's side.
#![allow(unsafe_code)]

use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fchmod, fcntl_add_seals, memfd_create, open,
};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of all `Shared` of this process: memory that the kernel does not count as anonymous, nor
/// as this process's while it is untouched.
static HELD: AtomicU64 = AtomicU64::new(0);

/// Bytes of memory files that this process holds.
pub fn shared_bytes() -> u64 {
    HELD.load(Relaxed)
}

/// From the kernel's `asm-generic/fcntl.h`: chooses the signal that reports an opening blocked by a
/// lease.
const F_SETSIG: libc::c_int = 10;

/// Seals that make a memory file immutable: no process can write it or change its length. Seals
/// cannot be removed.
pub(crate) const FROZEN: SealFlags =
    SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// Bytes in a separate memory file that no process can change, its creator included, for mapping by
/// other processes. The file has no other bytes, so its readers see nothing else.
#[derive(Debug)]
pub struct Shared {
    /// Opened read-only: the only open descriptor while no other process has the file.
    file: OwnedFd,
    length: usize,
}

impl Shared {
    /// Copies bytes, at least one, into a file and seals it against writing. Takes about a third of
    /// a millisecond per MiB.
    pub fn copy(bytes: &[u8]) -> io::Result<Shared> {
        assert!(!bytes.is_empty(), "there is something to share");
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let name = c"honeycomb-block";
        // Not executable, as some machines require. Kernels before 6.3 do not know the flag.
        let made = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => memfd_create(name, flags)?,
            made => made?,
        };
        // Seals prevent every write; this also prevents opening the file for writing.
        fchmod(&made, Mode::RUSR)?;
        let mut made = File::from(made);
        made.write_all(bytes)?;
        fcntl_add_seals(&made, FROZEN)?;
        let file = reopen(made.as_fd())?;
        HELD.fetch_add(bytes.len() as u64, Relaxed);
        Ok(Shared { file, length: bytes.len() })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Always false: there is at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// A read-only descriptor for another process.
    pub fn reader(&self) -> io::Result<OwnedFd> {
        reopen(self.file.as_fd())
    }

    /// Whether another process has the file open or mapped, or whether that cannot be determined.
    ///
    /// The kernel grants a write lease only on a file that is open nowhere else, including mappings
    /// and descriptors in transit. The lease is released at once.
    pub fn is_lent(&self) -> bool {
        let file = self.file.as_raw_fd();
        // SAFETY: these commands take numbers and no pointers, and the descriptor is open while
        // `self` lives. A process that opens the file between the second and the third call raises
        // the signal that the first one chose, whose default is to do nothing, and continues after
        // the third call.
        unsafe {
            let alone = libc::fcntl(file, F_SETSIG, libc::SIGURG) == 0
                && libc::fcntl(file, libc::F_SETLEASE, libc::F_WRLCK) == 0;
            if alone {
                libc::fcntl(file, libc::F_SETLEASE, libc::F_UNLCK);
            }
            !alone
        }
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        HELD.fetch_sub(self.length as u64, Relaxed);
    }
}

/// Opens the same file again, read-only: a duplicate would have the access mode of the first
/// descriptor.
fn reopen(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
#[cfg(not(miri))] // which has no memory files
mod tests {
    use super::*;
    use crate::View;
    use rustix::fs::{FallocateFlags, fallocate, fcntl_get_seals, fstat, ftruncate};
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_reader_can_read_what_was_shared_and_nothing_else() {
        let shared = Shared::copy(&[7; 5000]).unwrap();
        let reader = File::from(shared.reader().unwrap());
        let mut got = [1; 8192];
        assert_eq!(reader.read_at(&mut got, 0).unwrap(), 5000);
        assert_eq!(got[..5000], [7; 5000]);
        assert_eq!(reader.read_at(&mut got, 5000).unwrap(), 0, "there is nothing beyond");
        assert_eq!(fstat(&reader).unwrap().st_size, 5000);
        // The rest of the last page, which a mapping shows, has no content.
        // SAFETY: a new mapping of two pages of a file that has two and cannot shrink.
        let pages = unsafe {
            let flags = MapFlags::SHARED;
            let at = mmap(std::ptr::null_mut(), 8192, ProtFlags::READ, flags, &reader, 0).unwrap();
            std::slice::from_raw_parts(at.cast::<u8>(), 8192)
        };
        assert!(pages[5000..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn nobody_can_change_it_not_even_who_opens_it_anew() {
        let shared = Shared::copy(&[7; 8192]).unwrap();
        let reader = shared.reader().unwrap();
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        // Root may open it for writing; the seals hold nevertheless.
        let anew = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        for fd in [Some(reader), anew.ok()].into_iter().flatten() {
            assert!(fcntl_get_seals(&fd).unwrap().contains(FROZEN));
            assert!(fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE).is_err());
            for length in [0, 4096, 1 << 20] {
                assert!(ftruncate(&fd, length).is_err(), "of {length} bytes");
            }
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            assert!(fallocate(&fd, hole, 0, 4096).is_err());
            assert!(fallocate(&fd, FallocateFlags::empty(), 0, 1 << 20).is_err());
            let both = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping, which is refused.
            let mapped =
                unsafe { mmap(std::ptr::null_mut(), 8192, both, MapFlags::SHARED, &fd, 0) };
            assert!(mapped.is_err(), "it was mapped for writing");
            let file = File::from(fd);
            assert!(file.write_at(b"x", 0).is_err());
            let mut got = [0; 8192];
            file.read_exact_at(&mut got, 0).unwrap();
            assert_eq!(got, [7; 8192]);
        }
    }

    #[test]
    fn it_is_lent_for_as_long_as_anybody_has_it() {
        let shared = Shared::copy(&[7; 8192]).unwrap();
        assert!(shared_bytes() >= 8192);
        assert!(!shared.is_lent(), "nobody has it yet");
        let reader = shared.reader().unwrap();
        assert!(shared.is_lent(), "a descriptor is out");
        let mut view = View::reserve(8192).unwrap();
        view.push(reader.as_fd(), 8192).unwrap();
        drop(reader);
        assert!(shared.is_lent(), "it is mapped");
        drop(view);
        assert!(!shared.is_lent(), "it is back");
        drop(shared);
    }
}
