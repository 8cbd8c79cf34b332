//! Memory that processes of one machine read in place: the reader's side.
#![allow(unsafe_code)]

use crate::shared::FROZEN;
use rustix::fs::{fcntl_get_seals, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// Memory files of another process, mapped one after the other for reading. They stay unchanged
/// until this is dropped, whatever that process does.
#[derive(Debug)]
pub struct View {
    /// The first byte of the address range; dangling if there is none.
    base: NonNull<u8>,
    reserved: usize,
    /// Positions of the files' bytes in it.
    parts: Vec<Range<usize>>,
}

impl View {
    /// An empty view, with addresses for files of this many bytes, each rounded up to pages. `OutOfMemory`
    /// if the process has fewer.
    pub fn reserve(bytes: usize) -> io::Result<View> {
        let reserved = bytes.checked_next_multiple_of(page_size());
        let reserved = reserved.ok_or(io::ErrorKind::OutOfMemory)?;
        if reserved == 0 {
            return Ok(View { base: NonNull::dangling(), reserved, parts: Vec::new() });
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), reserved, ProtFlags::empty(), flags)? };
        let base = NonNull::new(base.cast::<u8>()).expect("the kernel maps nothing at zero");
        Ok(View { base, reserved, parts: Vec::new() })
    }

    /// Maps the first `length` bytes of a file, at least one, after the existing files, and makes
    /// them resident.
    ///
    /// `InvalidData` for a file that has fewer bytes or is still mutable: borrowing its bytes would
    /// be unsafe. `OutOfMemory` if it exceeds the reserved addresses.
    pub fn push(&mut self, file: BorrowedFd<'_>, length: usize) -> io::Result<()> {
        check(file, length)?;
        let start = self.parts.last().map_or(0, |part| part.end).next_multiple_of(page_size());
        let end = start.checked_add(length).filter(|end| *end <= self.reserved);
        let end = end.ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
        // SAFETY: the new part begins at a page after every existing part, and its last page ends
        // inside the range, which was reserved in whole pages and is known only here: only pages
        // without borrows are replaced.
        unsafe {
            let at = self.base.as_ptr().add(start).cast::<c_void>();
            mmap(at, length, ProtFlags::READ, flags, file, 0)?;
        }
        self.parts.push(start..end);
        Ok(())
    }

    /// The bytes of each file.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.parts.iter().map(|part| self.slice(part.clone()))
    }

    /// All bytes, if they are contiguous: each file but the last ends at a page boundary.
    pub fn contiguous(&self) -> Option<&[u8]> {
        let ends = self.parts.iter().map(|part| part.end);
        let begins = self.parts.iter().skip(1).map(|part| part.start);
        let gapless = ends.zip(begins).all(|(end, next)| end == next);
        gapless.then(|| self.slice(0..self.parts.last().map_or(0, |part| part.end)))
    }

    /// Total number of bytes.
    pub fn len(&self) -> usize {
        self.parts.iter().map(Range::len).sum()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn slice(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: every range passed here consists of bytes of mapped files (or is empty, and the
        // pointer is not null; bytes need no alignment). They stay mapped until `self` is dropped,
        // and cannot change or disappear while they are borrowed: `check` has found the seals by
        // which the kernel refuses every write and every change of length, for all processes and
        // for good.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(range.start), range.len()) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if self.reserved > 0 {
            // SAFETY: the range was mapped by `reserve`, and its borrows have ended with `&mut
            // self`. Unmapping an existing mapping does not fail.
            let _ = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.reserved) };
        }
    }
}

// SAFETY: the mapping belongs to no thread, and is only ever read.
unsafe impl Send for View {}
// SAFETY: as for `Send`.
unsafe impl Sync for View {}

/// Checks that the first `length` bytes of a file exist and are immutable.
fn check(file: BorrowedFd<'_>, length: usize) -> io::Result<()> {
    let refuse = |text: &str| Err(io::Error::new(io::ErrorKind::InvalidData, text.to_owned()));
    if !fcntl_get_seals(file)?.contains(FROZEN) {
        return refuse("the received memory can still be changed by its sender");
    }
    if (fstat(file)?.st_size as u64) < length as u64 {
        return refuse("the received memory is shorter than announced");
    }
    Ok(())
}

#[cfg(test)]
#[cfg(not(miri))] // which has no memory files
mod tests {
    use super::*;
    use crate::Shared;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use std::os::fd::AsFd;

    fn view(lengths: &[usize]) -> View {
        let shared: Vec<Shared> =
            (1..).zip(lengths).map(|(n, l)| Shared::copy(&vec![n; *l]).unwrap()).collect();
        let readers: Vec<_> = shared.iter().map(|s| (s.reader().unwrap(), s.len())).collect();
        let page = page_size();
        let bytes = lengths.iter().map(|l| l.next_multiple_of(page)).sum();
        let mut view = View::reserve(bytes).unwrap();
        for (reader, length) in &readers {
            view.push(reader.as_fd(), *length).unwrap();
        }
        let one_more = Shared::copy(&[1; 2]).unwrap().reader().unwrap();
        let full = view.push(one_more.as_fd(), 1).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::OutOfMemory);
        // The `Shared` values are dropped: the bytes stay.
        view
    }

    #[test]
    fn files_that_end_with_a_page_are_one_run_of_bytes() {
        let page = page_size();
        for (lengths, whole) in [
            (vec![], true),
            (vec![3], true),
            (vec![2 * page, page, 5], true),
            (vec![2 * page, page - 1, 5], false),
        ] {
            let view = view(&lengths);
            assert_eq!(view.contiguous().is_some(), whole, "{lengths:?}");
            assert_eq!(view.len(), lengths.iter().sum::<usize>());
            let parts: Vec<&[u8]> = view.parts().collect();
            assert_eq!(parts.iter().map(|p| p.len()).collect::<Vec<_>>(), lengths);
            for (n, part) in (1..).zip(&parts) {
                assert!(part.iter().all(|byte| *byte == n));
            }
            if let Some(bytes) = view.contiguous() {
                assert!(bytes == parts.concat());
            }
        }
    }

    fn mapped(file: BorrowedFd<'_>, length: usize) -> io::Result<View> {
        let mut view = View::reserve(1 << 20)?;
        view.push(file, length)?;
        Ok(view)
    }

    #[test]
    fn memory_that_could_change_is_not_mapped() {
        for seals in [SealFlags::empty(), SealFlags::SHRINK | SealFlags::GROW] {
            let file = memfd_create(c"test", MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&file, 4096).unwrap();
            fcntl_add_seals(&file, seals).unwrap();
            let refused = mapped(file.as_fd(), 4096).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        }
        let shared = Shared::copy(&[7; 4096]).unwrap();
        let reader = shared.reader().unwrap();
        let refused = mapped(reader.as_fd(), 4097).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(mapped(file.as_fd(), 1).is_err(), "it has no seals");
    }
}
