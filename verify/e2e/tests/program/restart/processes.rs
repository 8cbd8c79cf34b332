//! The nodes of these tests, and the folder in which a controller keeps its log.

use honeycomb_e2e::process::{Node, command};
use honeycomb_env::Entropy;
use std::path::{Path, PathBuf};

/// Blocks of each server.
pub const BLOCKS: u64 = 512;

/// A folder that is removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        let name = format!("honeycomb-restart-{:x}", Entropy::system().next_u64());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    /// The controller's.
    pub fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    /// Copies the controller's present files on disk to another folder.
    pub fn copy_of_data(&self) -> PathBuf {
        let copy = self.0.join("copy");
        std::fs::create_dir(&copy).unwrap();
        for entry in std::fs::read_dir(self.data()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
        copy
    }

    /// How many log files there are: one for each start, until a snapshot takes their place.
    pub fn logs(&self) -> usize {
        let names = std::fs::read_dir(self.data()).unwrap().map(|e| e.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("log-")).count()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn controller(data: &Path, listen: &str) -> Node {
    let data = data.to_str().unwrap();
    Node::start(&["controller", "--listen", listen, "--data-dir", data])
}

/// A controller that does not start: its exit code and its messages.
pub fn controller_refused(data: &Path, listen: &str) -> (i32, String) {
    let data = data.to_str().unwrap();
    let ran = command(&["controller", "--listen", listen, "--data-dir", data]).output();
    let ran = ran.unwrap();
    (ran.status.code().unwrap(), String::from_utf8(ran.stderr).unwrap())
}

pub fn server(controller: &str, token: &str) -> Node {
    let size = ["--memory", "32MiB", "--block-size", "64KiB", "--shards", "2"];
    let mut args = vec!["server", "--controller", controller, "--token", token];
    args.extend(size);
    Node::start(&args)
}
