//! `honeycomb bench` becomes the program `honeycomb-bench`, or says how to install it.

use crate::home::Home;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

/// Runs a copy of the program that is alone in its folder.
fn alone(home: &Home, words: &[&str]) -> Output {
    let copy = home.dir.join("honeycomb");
    if !copy.exists() {
        fs::copy(env!("CARGO_BIN_EXE_honeycomb"), &copy).unwrap();
    }
    Command::new(&copy).arg("bench").args(words).env("PATH", "").output().unwrap()
}

#[test]
fn bench_without_the_benchmarks_names_their_package() {
    let home = Home::new();
    let output = alone(&home, &["kv", "--quick"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("pip install 'honeycomb-store[bench]'"), "{error}");
}

#[test]
fn bench_passes_all_words_on_and_returns_the_exit_code() {
    let home = Home::new();
    let program = home.dir.join("honeycomb-bench");
    fs::write(&program, "#!/bin/sh\necho \"$@\"\nexit 7\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let output = alone(&home, &["kv", "--quick", "--help"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "kv --quick --help\n");
}
