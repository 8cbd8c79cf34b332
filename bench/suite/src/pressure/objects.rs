//! A simulated object store: files in a directory, with the latency and rate of S3.
//!
//! A request takes its delay, plus its bytes at the rate of one connection; any number of requests may run at
//! the same time. The bytes are really written and read, so that reads can be compared with writes.

use super::OBJECT;
use honeycomb_env::{Clock, Entropy};
use honeycomb_types::Time;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// An object store in its own directory, which is removed with it.
pub struct Objects {
    folder: PathBuf,
    clock: Clock,
    shaped: bool,
    written: AtomicU64,
}

impl Objects {
    /// A store in a new temporary directory. With `shaped`, requests take as long as those of S3, else as
    /// long as the disk takes.
    pub fn new(shaped: bool) -> io::Result<Objects> {
        let name = format!("honeycomb-objects-{:x}", Entropy::system().next_u64());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder)?;
        Ok(Objects { folder, clock: Clock::start(), shaped, written: AtomicU64::new(0) })
    }

    fn wait(&self, since: Time, delay_s: f64, bytes: usize) {
        if self.shaped {
            let takes = delay_s + bytes as f64 / OBJECT.2;
            self.clock.sleep_until(since + Duration::from_secs_f64(takes));
        }
    }

    /// Writes a whole object.
    pub fn put(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let since = self.clock.now();
        fs::write(self.folder.join(name), content)?;
        self.written.fetch_add(content.len() as u64, Relaxed);
        self.wait(since, OBJECT.1, content.len());
        Ok(())
    }

    /// Reads a range of an object.
    pub fn get(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let since = self.clock.now();
        File::open(self.folder.join(name))?.read_exact_at(buffer, offset)?;
        self.wait(since, OBJECT.0, buffer.len());
        Ok(())
    }

    /// Removes an object, without the delay of a request.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.folder.join(name))
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        // Files that remain in a temporary directory are no reason to fail.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_come_back_as_slowly_as_they_should() {
        let objects = Objects::new(true).unwrap();
        let content: Vec<u8> = (0..700_000u32).map(|i| (i % 251) as u8).collect();
        let clock = Clock::start();
        objects.put("one", &content).unwrap();
        let wrote = clock.now().since(Time::ZERO).as_secs_f64();
        let mut part = vec![0; 70_000];
        objects.get("one", 1000, &mut part).unwrap();
        let read = clock.now().since(Time::ZERO).as_secs_f64() - wrote;
        assert_eq!(part, content[1000..71_000]);
        assert!(wrote >= 0.0258 + 0.01, "{wrote}");
        assert!(read >= 0.0121 + 0.001, "{read}");
        assert_eq!(objects.written(), 700_000);
        objects.remove("one").unwrap();
        assert!(objects.get("one", 0, &mut part).is_err());
        let folder = objects.folder.clone();
        drop(objects);
        assert!(!folder.exists());
    }
}
