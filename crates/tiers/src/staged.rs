//! What a write to a directory leaves when its writer is killed, or the directory is taken away meanwhile.
//!
//! There an object is written under a name of its own (`NAME#1`), and renamed. Listings of the store leave
//! such names out, so that they are looked for beside it.

use std::path::{Path, PathBuf};

/// Deletes what was being written under names that are `ours`. What cannot be deleted is tried with whoever
/// deletes here next.
pub(crate) fn delete_now(directory: &Path, ours: impl Fn(&str) -> bool) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let of = name.to_str().and_then(|name| name.split_once('#'));
        if of.is_some_and(|(of, _)| ours(of)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The same, beside other tasks of the thread.
pub(crate) async fn delete(directory: PathBuf, ours: impl Fn(&str) -> bool + Send + 'static) {
    let _ = tokio::task::spawn_blocking(move || delete_now(&directory, ours)).await;
}
