//! A panic of a thread that others rely on ends the process.

use std::io::Write;

/// Held by the threads of a node, and by the background threads of a client. If only the thread of
/// a controller or a shard ended, other processes would still treat the node as alive, and its
/// clients would wait forever; the end of a process is noticed at once. If only a client's thread
/// ended, its callers would wait forever, or its leases would end.
pub struct AbortOnPanic(pub &'static str);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Not with `eprintln!`: a test harness holds its lines back until the test has ended. An error is
            // ignored, because the process ends in any case.
            let _ = writeln!(
                std::io::stderr(),
                "honeycomb: the {} thread found its own state inconsistent; the process ends",
                self.0
            );
            std::process::abort();
        }
    }
}
