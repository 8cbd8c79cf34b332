//! Jobs of real processes that grow and shrink: a short run of `make elastic-soak`.

use honeycomb_e2e::program;
use std::process::{Command, Output};

fn soak(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_elastic-soak"));
    command.arg("--program").arg(program()).args(args).output().unwrap()
}

#[test]
fn fifty_jobs_grow_and_shrink_and_leave_nothing_behind() {
    let load = ["--jobs", "50", "--seed", "1", "--lease-ms", "2000"];
    // Small blocks, so that structures grow many times.
    let small = ["--structures", "file,queue", "--block-size", "65536", "--peak-mib", "24"];
    succeeds(soak(&[&["--seconds", "8"], &load[..], &small[..]].concat()));
    let stores = ["--structures", "kv", "--block-size", "4194304", "--peak-mib", "128"];
    succeeds(soak(&[&["--seconds", "8"], &load[..], &stores[..]].concat()));
}

fn succeeds(output: Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    println!("{out}");
    assert!(output.status.success(), "{out}{errors}");
    assert!(out.contains("no job saw an error"), "it says what it found: {out}");
}

#[test]
fn a_cluster_that_does_not_start_is_no_success() {
    let args = ["--seconds", "3", "--jobs", "3", "--seed", "1", "--program", "/bin/false"];
    let output = Command::new(env!("CARGO_BIN_EXE_elastic-soak")).args(args).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && errors.contains("did not start"), "{errors}");
}
