//! Admission: memory outside the blocks is lent out as permits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// How many bytes one loop may hold in requests and replies. Only that loop changes it; it is
/// atomic so that a loop can be built on one thread and run on another.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
}

/// Bytes on loan; dropping it gives them back.
#[derive(Debug)]
pub struct Permit {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Budget> {
        Arc::new(Budget { limit, used: AtomicUsize::new(0) })
    }

    /// Whether it is used up. New requests are refused then; what was admitted may finish.
    pub fn exhausted(&self) -> bool {
        self.used.load(Relaxed) >= self.limit
    }

    /// Bytes on loan.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// An empty permit, to grow as bytes arrive.
    pub fn permit(self: &Arc<Budget>) -> Permit {
        Permit { budget: self.clone(), bytes: 0 }
    }
}

impl Permit {
    /// Sets the loan to `bytes`.
    pub fn resize(&mut self, bytes: usize) {
        let used = self.budget.used.load(Relaxed) - self.bytes + bytes;
        self.budget.used.store(used, Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_permit_returns_its_bytes() {
        let budget = Budget::new(100);
        let mut a = budget.permit();
        a.resize(60);
        let mut b = budget.permit();
        b.resize(50);
        assert!(budget.exhausted());
        a.resize(10);
        assert!(!budget.exhausted());
        drop((a, b));
        assert_eq!(budget.used(), 0);
    }
}
