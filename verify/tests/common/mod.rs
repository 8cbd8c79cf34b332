//! Shared by the tests of the soaks.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The program, built from the present sources: a test of this package alone would not build it.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let profile = Path::new(env!("CARGO_BIN_EXE_queue-soak")).parent().unwrap();
        let mut build = Command::new(env!("CARGO"));
        build.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet", "--locked"]);
        // The selection of packages is that of `make unit`, so that its build is reused.
        build.args(["--workspace", "--exclude", "honeycomb-python", "--bin", "honeycomb"]);
        build.arg("--target-dir").arg(profile.parent().unwrap());
        // The folder is named after the profile, except for `dev`, whose folder is `debug`.
        let folder = profile.file_name().unwrap().to_str().unwrap();
        build.args(["--profile", if folder == "debug" { "dev" } else { folder }]);
        assert!(build.status().unwrap().success(), "the program cannot be built");
        profile.join("honeycomb")
    })
}
