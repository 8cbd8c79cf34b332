//! The available peers on this machine, and the programs in C, which are built here.

use honeycomb_bench::{native, redis};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folder of the sources in C.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench");

/// Programs and the folder of one run. The folder is removed with it.
pub struct Tools {
    folder: PathBuf,
    numbered: Cell<u32>,
    limit: Result<PathBuf, String>,
    hiredis: Result<PathBuf, String>,
    /// Version of redis-server, if it is on the path.
    pub redis: Option<String>,
    /// Version of memcached, if it is on the path.
    pub memcached: Option<String>,
}

impl Tools {
    /// Finds the peers and builds the programs in C.
    pub fn gather() -> Result<Tools, String> {
        let folder = std::env::temp_dir().join(format!("honeycomb-compare-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let limit = build("limit", &folder, &["-pthread"]);
        let hiredis = build("hiredis", &folder, &["-lhiredis"]);
        let (redis, memcached) = (redis::version(), memcached_version());
        Ok(Tools { folder, numbered: Cell::new(0), limit, hiredis, redis, memcached })
    }

    /// The folder for files of this run.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// An unused path.
    pub fn fresh_path(&self, what: &str) -> PathBuf {
        self.numbered.set(self.numbered.get() + 1);
        self.folder.join(format!("{what}-{}", self.numbered.get()))
    }

    /// The program of `bench/limit.c`.
    pub fn limit(&self) -> Result<&Path, String> {
        self.limit.as_deref().map_err(Clone::clone)
    }

    /// The program of `bench/hiredis.c`.
    pub fn hiredis(&self) -> Result<&Path, String> {
        self.hiredis.as_deref().map_err(Clone::clone)
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn build(name: &str, folder: &Path, flags: &[&str]) -> Result<PathBuf, String> {
    let (source, program) = (Path::new(SOURCES).join(format!("{name}.c")), folder.join(name));
    native::build(&source, &program, flags).map(|()| program)
}

fn memcached_version() -> Option<String> {
    let output = Command::new("memcached").arg("-V").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().nth(1).map(str::to_owned)
}
