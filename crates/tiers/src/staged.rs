//! Remains of a write to a directory, if its writer was killed or the directory was removed
//! meanwhile.
//!
//! In a directory, an object is written under a name of its own (`NAME#1`) and then renamed.
//! Listings of the store omit such names, so this module looks for them in the file system.

use std::path::{Path, PathBuf};

/// Deletes unfinished objects under names that are `ours`. The next deletion here retries those
/// that cannot be deleted.
pub(crate) fn delete_now(directory: &Path, ours: impl Fn(&str) -> bool) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let of = name.to_str().and_then(|name| name.split_once('#'));
        if of.is_some_and(|(of, _)| ours(of)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The same, without blocking other tasks of the thread.
pub(crate) async fn delete(directory: PathBuf, ours: impl Fn(&str) -> bool + Send + 'static) {
    let _ = tokio::task::spawn_blocking(move || delete_now(&directory, ours)).await;
}
