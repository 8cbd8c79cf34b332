//! The thread that syncs the log, so that a slow disk does not block the controller.
//!
//! At most one sync runs at a time; the next sync covers all groups appended meanwhile. There is no queue,
//! and a slow disk has more groups per sync.

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

/// The thread and its running sync. Dropping this waits for the end of the sync.
pub(super) struct Syncing {
    /// `None` only during drop.
    jobs: Option<SyncSender<(u64, Syncer)>>,
    thread: Option<JoinHandle<()>>,
    name: fn(u64) -> String,
    /// Syncer of the last synced file.
    syncer: Option<(u64, Syncer)>,
    /// Bytes of the file that the running sync covers, and the number of the last group in them.
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

    /// Begins a sync of the present contents of a file. False when a sync is running, which must end first.
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
        let jobs = self.jobs.as_ref().expect("the thread keeps its jobs until it is dropped");
        jobs.try_send((file, syncer)).map_err(|e| io::Error::other(e.to_string()))?;
        assert!(length > 0, "INV-26: a sync of an empty file covers group {number}");
        self.under_way = Some((length, number));
        Ok(true)
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Ends the running sync; answers the bytes and the group that it covers.
    pub(super) fn end(&mut self) -> (u64, u64) {
        self.under_way.take().expect("a sync was running")
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
