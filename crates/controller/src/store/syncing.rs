//! The thread that syncs the log, so that the controller need not stand still for a slow disk.
//!
//! At most one sync is under way: what is appended meanwhile is the next one's, all of it. So there is
//! no queue, and a disk that is slow has larger groups.

use honeycomb_env::{AbortOnPanic, Disk, Syncer};
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// The end of a sync.
pub struct Synced {
    /// Number of the log file.
    pub(super) file: u64,
    pub(super) outcome: io::Result<()>,
}

/// The thread, and what it is doing. Dropping this waits until it has done that.
pub(super) struct Syncing {
    /// None only while it is dropped.
    jobs: Option<SyncSender<(u64, Syncer)>>,
    thread: Option<JoinHandle<()>>,
    name: fn(u64) -> String,
    /// Of the file that was synced last.
    syncer: Option<(u64, Syncer)>,
    /// What will be on the disk: bytes of the file, and the number of the last group in them.
    under_way: Option<(u64, u64)>,
}

impl Syncing {
    pub(super) fn start(
        name: fn(u64) -> String,
        done: impl Fn(Synced) + Send + 'static,
    ) -> io::Result<Syncing> {
        let (jobs, work) = sync_channel::<(u64, Syncer)>(1);
        let thread = std::thread::Builder::new().name("log".into()).spawn(move || {
            let _guard = AbortOnPanic("log's");
            for (file, sync) in work {
                done(Synced { file, outcome: sync() });
            }
        })?;
        let (jobs, thread) = (Some(jobs), Some(thread));
        Ok(Syncing { jobs, thread, name, syncer: None, under_way: None })
    }

    /// Begins a sync of what a file has now. False when one is under way: its end is awaited first.
    pub(super) fn begin(
        &mut self,
        disk: &mut dyn Disk,
        file: u64,
        length: u64,
        number: u64,
    ) -> io::Result<bool> {
        if self.under_way.is_some() {
            return Ok(false);
        }
        let syncer = match &self.syncer {
            Some((known, syncer)) if *known == file => syncer.clone(),
            _ => {
                let syncer = disk.syncer(&(self.name)(file))?;
                self.syncer = Some((file, syncer.clone()));
                syncer
            }
        };
        let jobs = self.jobs.as_ref().expect("it is not being dropped");
        jobs.try_send((file, syncer)).map_err(|e| io::Error::other(e.to_string()))?;
        self.under_way = Some((length, number));
        Ok(true)
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// The sync under way has ended; what it was to save.
    pub(super) fn end(&mut self) -> (u64, u64) {
        self.under_way.take().expect("a sync ends that was begun")
    }
}

impl Drop for Syncing {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
