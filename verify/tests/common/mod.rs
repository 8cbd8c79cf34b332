//! What the soaks' tests share.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The program, as the sources are now: a test of this package alone would not build it.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let profile = Path::new(env!("CARGO_BIN_EXE_queue-soak")).parent().unwrap();
        let mut build = Command::new(env!("CARGO"));
        build.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet", "--locked"]);
        // Both packages, so that features are those of a test of the whole workspace and what that
        // has built is used.
        build.args(["-p", "honeycomb", "-p", "honeycomb-verify", "--bin", "honeycomb"]);
        build.arg("--target-dir").arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "the program cannot be built");
        profile.join("honeycomb")
    })
}
