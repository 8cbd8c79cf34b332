//! The kernel's accounting of threads' CPU time.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// CPU time of the calling thread since it began.
pub fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_time_is_its_own_and_grows_as_it_works() {
        let before = thread_cpu();
        let mut sum = 0u64;
        while thread_cpu() - before < Duration::from_millis(2) {
            sum = std::hint::black_box(sum.wrapping_mul(31) + 7);
        }
        // Another thread has none of this CPU time.
        let other = std::thread::spawn(thread_cpu).join().expect("the thread only reads its clock");
        assert!(other < thread_cpu(), "{other:?}");
    }
}
