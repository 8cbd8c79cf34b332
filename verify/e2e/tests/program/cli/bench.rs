//! `honeycomb bench` becomes the program `honeycomb-bench`, or says how to install it.

use super::home::Home;
use std::process::{Command, Output};

/// Runs a command that writes a program. This process opens no program for writing: a test on another thread
/// may fork meanwhile, and its child would hold the file open, which could not be executed.
fn written(command: &mut Command) {
    assert!(command.status().unwrap().success());
}

/// Runs a copy of the program that is alone in its folder.
fn alone(home: &Home, words: &[&str]) -> Output {
    let copy = home.dir.join("honeycomb");
    if !copy.exists() {
        written(Command::new("cp").arg(honeycomb_e2e::program()).arg(&copy));
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
    let script = "printf '#!/bin/sh\necho \"$@\"\nexit 7\n' > \"$1\" && chmod 755 \"$1\"";
    written(Command::new("sh").args(["-c", script, "sh"]).arg(&program));
    let output = alone(&home, &["kv", "--quick", "--help"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "kv --quick --help\n");
}
