//! A bounded queue of real processes whose clients are killed: the soak, as `make soak` runs it.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The program, as the sources are now: a test of this package alone would not build it.
fn program() -> &'static Path {
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

fn soak(args: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_queue-soak"));
    let output = command.arg("--program").arg(program()).args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    println!("{out}");
    assert!(output.status.success(), "{args:?}: {out}{errors}");
    assert!(out.contains("nothing else was lost"), "it says what it found: {out}");
}

#[test]
fn a_million_items_go_through_a_bounded_queue_while_its_clients_are_killed() {
    soak(&["--items", "1000000", "--kills", "48", "--limit", "300"]);
    // Many small blocks, and a bound that is always reached.
    let small = ["--block-size", "65536", "--max-items", "500"];
    soak(&[&["--items", "200000", "--kills", "24", "--limit", "300"], &small[..]].concat());
}

#[test]
fn a_cluster_that_does_not_start_is_no_success() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_queue-soak"));
    command.args(["--items", "1000", "--kills", "0", "--program", "/bin/false"]);
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && errors.contains("did not start"), "{errors}");
}
