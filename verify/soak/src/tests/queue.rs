//! A bounded queue of real processes whose clients are killed: the soak of `make soak`.

use honeycomb_e2e::program;
use std::process::Command;

fn soak(args: &[&str]) {
    let mut command = Command::new(program("queue-soak"));
    let output = command.arg("--program").arg(program("honeycomb")).args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    println!("{out}");
    assert!(output.status.success(), "{args:?}: {out}{errors}");
    assert!(out.contains("no other item was lost"), "it says what it found: {out}");
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
    let mut command = Command::new(program("queue-soak"));
    command.args(["--items", "1000", "--kills", "0", "--program", "/bin/false"]);
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && errors.contains("did not start"), "{errors}");
}
