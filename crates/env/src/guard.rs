//! A node's thread that panics takes the process with it.

/// Held by the threads of a node. A controller or a shard whose thread is gone would go on being
/// counted as alive by the others, and those who wait for it would wait in vain; a process that
/// ends is noticed at once.
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
