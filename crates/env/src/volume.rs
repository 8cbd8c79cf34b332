//! Disk space for data that need not outlive the process: blocks in a lower tier.
//!
//! A volume is one area of a fixed size that several threads read and write at any offset. Its
//! content has no names and cannot be found again: at any end of the process, the file system frees
//! all of it.

use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

/// Offsets, lengths and addresses are multiples of this, as direct I/O requires.
pub const VOLUME_ALIGN: usize = 4096;

/// Bytes that need not outlive this process. Called from several threads at a time, never for
/// overlapping ranges.
pub trait Volume: Send + Sync {
    /// Reads all of it, or fails.
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()>;
    /// Writes all of it. After an error, any part of the bytes may have been written.
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Frees space. Later reads of it return arbitrary bytes.
    fn discard(&self, range: Range<u64>) -> io::Result<()>;
    /// Whether it bypasses the page cache.
    fn is_direct(&self) -> bool;
    /// Number of concurrent requests at which the volume reaches its full throughput. On the disks that
    /// we have measured, four of a megabyte suffice, and eight of some kilobytes.
    fn width(&self) -> usize {
        8
    }
}

/// The kind of error for a volume that is temporarily unreachable: its data is not lost, and the
/// volume may be available again in a moment. A disk never returns this error.
pub const AWAY: ErrorKind = ErrorKind::HostUnreachable;

fn aligned(at: u64, bytes: &[u8]) {
    let address = bytes.as_ptr() as usize;
    let all = [at as usize, bytes.len(), address];
    assert!(
        all.iter().all(|n| n % VOLUME_ALIGN == 0),
        "{} bytes at {at}, in memory at {address:#x}: all are multiples of {VOLUME_ALIGN}",
        bytes.len()
    );
}

/// An unnamed file in a directory.
#[derive(Debug)]
pub struct Scratch {
    file: File,
    direct: bool,
}

impl Scratch {
    /// Creates a file of `size` bytes, which take no space until they are written, and the directory if
    /// it does not exist (for this user alone). On a file system
    /// without unnamed files it has a name for an instant; on one without direct I/O it uses the
    /// page cache (see `is_direct`).
    pub fn open(directory: &Path, size: u64) -> io::Result<Scratch> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let open = |flags: OFlags| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).mode(0o600).custom_flags(flags.bits() as i32);
            options.open(directory)
        };
        let unnamed = match open(OFlags::TMPFILE | OFlags::DIRECT) {
            Err(e) if e.kind() == ErrorKind::InvalidInput => {
                open(OFlags::TMPFILE).map(|file| (file, false))
            }
            other => other.map(|file| (file, true)),
        };
        let (file, direct) = match unnamed {
            Ok(opened) => opened,
            Err(e) if no_unnamed_files(&e) => (named(directory)?, false),
            Err(e) => return Err(e),
        };
        file.set_len(size)?;
        Ok(Scratch { file, direct })
    }
}

/// The errors of file systems without unnamed files.
fn no_unnamed_files(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::IsADirectory | ErrorKind::InvalidInput)
}

/// A file whose name is removed at once.
fn named(directory: &Path) -> io::Result<File> {
    let mut entropy = crate::Entropy::system();
    let name = format!("honeycomb-spill-{}-{:016x}", std::process::id(), entropy.next_u64());
    let path = directory.join(name);
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

impl Volume for Scratch {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        aligned(at, into);
        self.file.read_exact_at(into, at)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        aligned(at, bytes);
        self.file.write_all_at(bytes, at)?;
        if !self.direct {
            // Only a hint: memory of the page cache is not available for blocks.
            let length = std::num::NonZeroU64::new(bytes.len() as u64);
            let _ = fadvise(&self.file, at, length, Advice::DontNeed);
        }
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, flags, range.start, range.end - range.start)?;
        Ok(())
    }

    fn is_direct(&self) -> bool {
        self.direct
    }
}

/// A volume in memory with faults on request, for tests and the simulator.
#[derive(Debug, Default)]
pub struct MemoryVolume(Mutex<Pages>);

#[derive(Debug, Default)]
struct Pages {
    pages: BTreeMap<u64, Box<[u8]>>,
    /// Bytes that fit; `None` for no limit.
    room: Option<u64>,
    failing_reads: u32,
    failing_writes: u32,
    flipped_reads: u32,
    /// Whether all operations fail.
    away: bool,
}

impl MemoryVolume {
    /// An empty one.
    pub fn new() -> MemoryVolume {
        MemoryVolume::default()
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Sets the space from now on; existing data stays.
    pub fn set_room(&self, room: Option<u64>) {
        self.lock().room = room;
    }

    /// The next `times` reads fail.
    pub fn fail_reads(&self, times: u32) {
        self.lock().failing_reads = times;
    }

    /// The next `times` writes fail, after a part of the bytes.
    pub fn fail_writes(&self, times: u32) {
        self.lock().failing_writes = times;
    }

    /// The next `times` reads return a wrong bit.
    pub fn flip_reads(&self, times: u32) {
        self.lock().flipped_reads = times;
    }

    /// Makes the volume unreachable, or reachable again.
    pub fn set_away(&self, away: bool) {
        self.lock().away = away;
    }

    /// Bytes in use.
    pub fn taken(&self) -> u64 {
        (self.lock().pages.len() * VOLUME_ALIGN) as u64
    }
}

impl Pages {
    fn reached(&self) -> io::Result<()> {
        if self.away { Err(io::Error::new(AWAY, "the store cannot be reached")) } else { Ok(()) }
    }
}

/// Decrements a counter; returns whether it was more than zero.
fn due(times: &mut u32) -> bool {
    let some = *times > 0;
    *times -= u32::from(some);
    some
}

impl Volume for MemoryVolume {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        aligned(at, into);
        let mut state = self.lock();
        state.reached()?;
        if due(&mut state.failing_reads) {
            return Err(io::Error::other("the disk cannot read this"));
        }
        for (page, into) in (at / VOLUME_ALIGN as u64..).zip(into.chunks_mut(VOLUME_ALIGN)) {
            match state.pages.get(&page) {
                Some(bytes) => into.copy_from_slice(bytes),
                None => into.fill(0),
            }
        }
        if due(&mut state.flipped_reads) {
            into[into.len() / 2] ^= 1;
        }
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        aligned(at, bytes);
        let mut state = self.lock();
        state.reached()?;
        let failing = due(&mut state.failing_writes);
        let pages = (at / VOLUME_ALIGN as u64..).zip(bytes.chunks(VOLUME_ALIGN));
        for (n, (page, bytes)) in pages.enumerate() {
            let taken = (state.pages.len() * VOLUME_ALIGN) as u64;
            let full = state.room.is_some_and(|room| taken + VOLUME_ALIGN as u64 > room);
            if full && !state.pages.contains_key(&page) {
                return Err(io::Error::new(ErrorKind::StorageFull, "the disk is full"));
            }
            if failing && n > 0 {
                return Err(io::Error::other("the disk cannot write this"));
            }
            state.pages.insert(page, bytes.into());
        }
        if failing { Err(io::Error::other("the disk cannot write this")) } else { Ok(()) }
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        let pages = range.start / VOLUME_ALIGN as u64..range.end / VOLUME_ALIGN as u64;
        let mut state = self.lock();
        state.reached()?;
        state.pages.retain(|page, _| !pages.contains(page));
        Ok(())
    }

    fn is_direct(&self) -> bool {
        true
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    /// Bytes whose address is a multiple of a page.
    struct Paged(Vec<u8>);

    impl Paged {
        fn new(length: usize, with: u8) -> Paged {
            Paged(vec![with; length + VOLUME_ALIGN])
        }

        fn bytes(&mut self) -> &mut [u8] {
            let from = self.0.as_ptr().align_offset(VOLUME_ALIGN);
            let length = self.0.len() - VOLUME_ALIGN;
            &mut self.0[from..from + length]
        }
    }

    fn directory() -> std::path::PathBuf {
        let name = format!("honeycomb-volume-{:016x}", crate::Entropy::system().next_u64());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn what_is_written_is_read_and_no_file_is_seen() {
        let path = directory();
        let volume = Scratch::open(&path, 1 << 20).unwrap();
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
        volume.write(8192, Paged::new(8192, 7).bytes()).unwrap();
        let mut read = Paged::new(16384, 1);
        volume.read(4096, read.bytes()).unwrap();
        let bytes = read.bytes();
        assert!(bytes[4096..12288].iter().all(|b| *b == 7));
        assert!(bytes[..4096].iter().chain(&bytes[12288..]).all(|b| *b == 0));
        drop(volume);
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
        std::fs::remove_dir(&path).unwrap();
    }

    #[test]
    fn a_directory_that_is_missing_is_made() {
        let path = directory();
        let inner = path.join("one/two");
        drop(Scratch::open(&inner, 1 << 20).unwrap());
        assert_eq!(std::fs::metadata(&inner).unwrap().mode() & 0o777, 0o700);
        drop(Scratch::open(&inner, 1 << 20).unwrap());
        std::fs::write(path.join("file"), "").unwrap();
        let refused = |name: &str| Scratch::open(&path.join(name), 1 << 20).is_err();
        assert!(refused("file") && refused("file/under"));
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn room_that_is_given_back_is_the_file_systems_again() {
        let path = directory();
        let volume = Scratch::open(&path, 64 << 20).unwrap();
        assert_eq!(
            volume.file.metadata().unwrap().blocks(),
            0,
            "none is taken before it is written"
        );
        volume.write(1 << 20, Paged::new(1 << 20, 7).bytes()).unwrap();
        let taken = volume.file.metadata().unwrap().blocks();
        assert!(taken * 512 >= 1 << 20);
        volume.discard(1 << 20..2 << 20).unwrap();
        assert!(volume.file.metadata().unwrap().blocks() < taken / 2);
        std::fs::remove_dir(&path).unwrap();
    }

    #[test]
    #[should_panic(expected = "multiples")]
    fn what_is_not_aligned_is_a_defect() {
        let _ = MemoryVolume::new().write(1, Paged::new(4096, 0).bytes());
    }

    #[test]
    fn one_in_memory_fails_as_it_is_told() {
        let volume = MemoryVolume::new();
        let mut page = Paged::new(8192, 3);
        volume.set_room(Some(8192));
        volume.write(0, page.bytes()).unwrap();
        let full = volume.write(8192, page.bytes()).unwrap_err();
        assert_eq!((full.kind(), volume.taken()), (ErrorKind::StorageFull, 8192));
        volume.write(0, page.bytes()).unwrap();
        volume.discard(0..4096).unwrap();
        assert_eq!(volume.taken(), 4096);
        volume.fail_writes(1);
        assert!(volume.write(0, page.bytes()).is_err());
        volume.write(0, page.bytes()).unwrap();
        volume.fail_reads(1);
        assert!(volume.read(0, page.bytes()).is_err());
        volume.flip_reads(1);
        volume.read(0, page.bytes()).unwrap();
        assert_eq!(page.bytes().iter().filter(|b| **b != 3).count(), 1);
        volume.read(0, page.bytes()).unwrap();
        assert!(page.bytes().iter().all(|b| *b == 3));
    }
}
