//! Buffers that the calls of a client use again. An allocation of this size is returned to the
//! system when it is freed, and the next one takes a page fault for every 4 KiB.

use crate::limits::{BUFFER_KEPT_MAX, BUFFERS_MAX};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Buffers that no call uses at present.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An empty buffer.
    pub fn take(&self) -> Vec<u8> {
        self.lock().pop().unwrap_or_default()
    }

    /// Takes a buffer that is not used any more.
    pub fn give(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut kept = self.lock();
        if kept.len() < BUFFERS_MAX && (1..=BUFFER_KEPT_MAX).contains(&buffer.capacity()) {
            kept.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_buffers_of_bounded_size_are_kept() {
        let buffers = Buffers::default();
        let capacities = |buffers: &Buffers| -> Vec<usize> {
            buffers.lock().iter().map(Vec::capacity).collect()
        };
        buffers.give(Vec::new());
        buffers.give(Vec::with_capacity(BUFFER_KEPT_MAX + 1));
        assert_eq!(capacities(&buffers), []);
        for _ in 0..BUFFERS_MAX + 1 {
            buffers.give(Vec::with_capacity(BUFFER_KEPT_MAX));
        }
        assert_eq!(capacities(&buffers), [BUFFER_KEPT_MAX; BUFFERS_MAX]);
        assert_eq!(buffers.take().capacity(), BUFFER_KEPT_MAX);
        assert_eq!(capacities(&buffers).len(), BUFFERS_MAX - 1);
    }
}
