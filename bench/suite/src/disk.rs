//! Folders for the disks of a benchmark's cluster, and the speed of the disk alone.

use honeycomb::failure::{CommandResult, Failure};
use honeycomb_env::{Clock, Entropy, Scratch, VOLUME_ALIGN, Volume};
use honeycomb_types::Time;
use std::path::{Path, PathBuf};
use std::thread;

/// Threads that write to a disk and read from it: they reach its full rate with pieces of a megabyte.
const THREADS: u64 = 4;

/// A directory for a server's blocks. It is removed with the benchmark unless it existed before.
pub struct Folder {
    path: PathBuf,
    own: bool,
}

impl Folder {
    /// The given directory, or a new one in the system's temporary directory.
    pub fn new(given: Option<PathBuf>) -> CommandResult<Folder> {
        if let Some(path) = given {
            return Ok(Folder { path, own: false });
        }
        let name = format!("honeycomb-disk-{:x}", Entropy::system().next_u64());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).map_err(|e| Failure::io(path.display(), &e))?;
        Ok(Folder { path, own: true })
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The arguments of `start` for this many bytes of the disk.
    pub fn flags(&self, bytes: u64) -> Vec<String> {
        vec!["--disks".into(), format!("{}={bytes}", self.path.display())]
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.own {
            // Files that remain in a temporary directory are no reason to fail.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Bytes per second of writes and reads of a folder's disk alone, with direct I/O where possible, by some
/// threads, in pieces of these sizes.
pub fn alone(folder: &Folder, bytes: u64, write: usize, read: usize) -> CommandResult<(f64, f64)> {
    let failed = |e: &std::io::Error| Failure::io(folder.path.display(), e);
    let volume = Scratch::open(folder.path(), bytes).map_err(|e| failed(&e))?;
    let all = |piece: usize, work: &(dyn Fn(u64, &mut [u8]) -> std::io::Result<()> + Sync)| {
        let clock = Clock::start();
        let done: std::io::Result<()> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|n| {
                    scope.spawn(move || {
                        let mut buffer = vec![n as u8 + 1; piece + VOLUME_ALIGN];
                        let from = buffer.as_ptr().align_offset(VOLUME_ALIGN);
                        let buffer = &mut buffer[from..from + piece];
                        (n..bytes / piece as u64)
                            .step_by(THREADS as usize)
                            .try_for_each(|at| work(at * piece as u64, buffer))
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|t| t.join().expect("a disk does not panic"))
        });
        let seconds = clock.now().since(Time::ZERO).as_secs_f64().max(1e-9);
        done.map(|()| bytes as f64 / seconds).map_err(|e| failed(&e))
    };
    let written = all(write, &|at, buffer| volume.write(at, buffer))?;
    let given = all(read, &|at, buffer| volume.read(at, buffer))?;
    Ok((written, given))
}
