//! A panic of a node's thread ends the process.

/// Held by the threads of a node. If only the thread of a controller or a shard ended, other
/// processes would still treat the node as alive, and its clients would wait forever; the end of a
/// process is noticed at once.
pub struct AbortOnPanic(pub &'static str);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "honeycomb: the {} thread found its own state inconsistent; the node stops",
                self.0
            );
            std::process::abort();
        }
    }
}
