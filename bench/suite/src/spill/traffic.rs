//! The traffic of a process with the disk, and the room that it takes there.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes that a process has written to disks and read from them, and that its files have there.
#[derive(Clone, Copy)]
pub struct Traffic {
    pub written: u64,
    pub read: u64,
    pub space: u64,
}

impl Traffic {
    /// Of a process that keeps its data in files without names.
    pub fn of_unnamed(pid: u32) -> Traffic {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let unnamed = files.map(|file| file.path()).filter(|file| {
            fs::read_link(file).is_ok_and(|to| to.to_string_lossy().contains("(deleted)"))
        });
        let space = unnamed.map(|file| occupied(&file)).sum();
        Traffic::of(pid, space)
    }

    /// Of a process that keeps its data in this folder.
    pub fn of_folder(pid: u32, folder: &Path) -> Traffic {
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        Traffic::of(pid, files.map(|file| occupied(&file.path())).sum())
    }

    fn of(pid: u32, space: u64) -> Traffic {
        let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
        };
        Traffic { written: field("write_bytes:"), read: field("read_bytes:"), space }
    }
}

/// Bytes of a file's blocks; 0 if it is gone.
fn occupied(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |of| of.blocks() * 512)
}
