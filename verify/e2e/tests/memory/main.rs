//! Tests that measure the resident memory of their process, one after the other: the system counts it by
//! process.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod malformed;
mod resident;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test of this process runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
