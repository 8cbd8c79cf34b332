//! A panic of a thread that others rely on ends the process.

/// Held by the threads of a node, and by the background threads of a client. If only the thread of
/// a controller or a shard ended, other processes would still treat the node as alive, and its
/// clients would wait forever; the end of a process is noticed at once. If only a client's thread
/// ended, its callers would wait forever, or its leases would end.
pub struct AbortOnPanic(pub &'static str);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "honeycomb: the {} thread found its own state inconsistent; the process ends",
                self.0
            );
            std::process::abort();
        }
    }
}
