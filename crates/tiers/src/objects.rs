//! The thread that accesses stores, and the limits of its work.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Requests to stores in progress at a time.
pub(crate) const REQUESTS: usize = 16;
/// Threads for disks, which have no sockets to wait for.
const DISK_THREADS: usize = 2;
/// The unit of the budget, in bytes.
pub(crate) const UNIT: usize = 64 * 1024;

/// The handle to the thread that accesses stores. Cheap to clone; when the last clone is dropped,
/// the thread ends and its requests with it.
#[derive(Clone)]
pub struct Objects {
    handle: Handle,
    limits: Limits,
    _alive: mpsc::Sender<Infallible>,
}

/// The limits for tasks of the thread; they do not keep the thread alive.
#[derive(Clone)]
pub(crate) struct Limits {
    requests: Arc<Semaphore>,
    buffers: Arc<Semaphore>,
    buffers_max: usize,
}

/// The worker: the loop of the thread.
pub struct ObjectsWorker {
    runtime: Runtime,
    gone: mpsc::Receiver<Infallible>,
}

impl Objects {
    /// Returns the handle and the worker, which the owner runs on a separate thread. `buffers` is
    /// the number of bytes of copies that may wait to be sent.
    pub fn with_worker(buffers: usize) -> io::Result<(Objects, ObjectsWorker)> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(DISK_THREADS)
            .thread_name("objects-disk")
            .build()?;
        let (alive, gone) = mpsc::channel(1);
        let buffers_max = (buffers / UNIT).max(1);
        let limits = Limits {
            requests: Arc::new(Semaphore::new(REQUESTS)),
            buffers: Arc::new(Semaphore::new(buffers_max)),
            buffers_max,
        };
        let handle = runtime.handle().clone();
        Ok((Objects { handle, limits, _alive: alive }, ObjectsWorker { runtime, gone }))
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Waits for a task on this thread, which is not the runtime's.
    pub(crate) fn wait<T>(&self, task: impl Future<Output = T>) -> T {
        self.handle.block_on(task)
    }

    /// Runs code that needs the runtime's context and does not wait.
    pub(crate) fn enter<T>(&self, task: impl FnOnce() -> T) -> T {
        let _entered = self.handle.enter();
        task()
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.handle.spawn(task)
    }

    /// Reserves space for the bytes of a copy, as soon as earlier ones are sent. A copy larger than
    /// the whole budget reserves all of it. `None` when the owner ends.
    ///
    /// Only one thread may call this while it holds space: two could wait for each other.
    pub(crate) fn room(&self, bytes: usize, held: usize) -> Option<OwnedSemaphorePermit> {
        let units = bytes.div_ceil(UNIT).min(self.limits.buffers_max.saturating_sub(held));
        let room = self.limits.buffers.clone().acquire_many_owned(units as u32);
        self.handle.block_on(room).ok()
    }

    /// Ends all waits for space, because the owner ends.
    pub fn end(&self) {
        self.limits.buffers.close();
    }
}

impl Limits {
    /// Waits for a free request slot.
    pub(crate) async fn turn(&self) -> OwnedSemaphorePermit {
        let turn = self.requests.clone().acquire_owned().await;
        turn.expect("the requests' semaphore is never closed")
    }
}

impl ObjectsWorker {
    /// Runs until the last `Objects` is dropped.
    pub fn run(self) {
        self.run_then(async {});
    }

    /// The same, with a final task.
    pub(crate) fn run_then(mut self, last: impl Future<Output = ()>) {
        self.runtime.block_on(async {
            while self.gone.recv().await.is_some() {}
            last.await;
        });
    }
}
