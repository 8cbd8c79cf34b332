//! Structures four times as large as memory on real processes: the soak of `make tier-soak`.

use honeycomb_e2e::program;
use serde_json::Value;
use std::process::{Command, Output};

fn soak(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tier-soak"));
    command.arg("--program").arg(program()).arg("--json").args(args).output().unwrap()
}

/// The last line: the summary of all runs.
fn passed(args: &[&str]) -> Value {
    let output = soak(args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    println!("{out}");
    assert!(output.status.success(), "{args:?}: {out}{errors}");
    serde_json::from_str(out.lines().last().unwrap()).unwrap()
}

#[test]
fn structures_larger_than_memory_read_back_from_healthy_disks() {
    let all = passed(&["--runs", "3", "--from", "1", "--memory-mib", "8"]);
    assert_eq!((all["runs"].as_u64(), all["failed"].as_u64()), (Some(3), Some(0)));
    assert_eq!(all["lost_to_damage"].as_u64(), Some(0));
    assert!(all["written_bytes"].as_u64().unwrap() > (3 * 4 * 8) << 19, "{all}");
}

#[test]
fn disks_that_fail_lose_nothing_that_no_damaged_page_explains() {
    let all = passed(&["--runs", "3", "--from", "1", "--memory-mib", "8", "--faults"]);
    assert_eq!((all["runs"].as_u64(), all["failed"].as_u64()), (Some(3), Some(0)));
}

#[test]
fn a_cluster_that_does_not_start_is_a_failed_run() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tier-soak"));
    let output = command.args(["--runs", "1", "--program", "/bin/false"]).output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success() && out.contains("did not start"), "{out}");
}
