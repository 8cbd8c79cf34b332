//! Processes of the program, ended by their own ids.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Waits for something that processes do by themselves, and fails when they do not.
pub fn eventually(what: &str, done: impl FnMut() -> bool) {
    crate::eventually_within(Duration::from_secs(60), what, done);
}

/// A process, ended with this.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process of the program that has said where it is.
pub struct Node {
    running: Running,
    told: Value,
    _out: BufReader<ChildStdout>,
}

/// The program with these words, and nothing of this environment.
pub fn command(args: &[&str]) -> Command {
    command_of("honeycomb", args)
}

/// As `command`, for a program that has the command line of `honeycomb`.
fn command_of(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(crate::program(program));
    command.args(args).arg("--json").stdin(Stdio::null()).stdout(Stdio::piped());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("HONEYCOMB_")) {
        command.env_remove(name);
    }
    command.env("HONEYCOMB_CONFIG", "/dev/null").stderr(Stdio::piped());
    command
}

impl Node {
    /// Starts one and waits until it says where it is.
    pub fn start(args: &[&str]) -> Node {
        Node::start_of("honeycomb", args)
    }

    /// As `start`, for a program that has the command line of `honeycomb`.
    pub fn start_of(program: &str, args: &[&str]) -> Node {
        let mut child = command_of(program, args).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let told = serde_json::from_str(&line).unwrap_or_else(|e| {
            let mut error = String::new();
            child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
            panic!("{e}: {line:?} {error}")
        });
        Node { running: Running(child), told, _out: out }
    }

    /// A field of its first line.
    pub fn text(&self, key: &str) -> String {
        self.told[key].as_str().unwrap().to_owned()
    }

    /// The id of its process.
    pub fn id(&self) -> u32 {
        self.running.0.id()
    }

    /// SIGKILL, to this process and no other.
    pub fn kill(self) {
        drop(self.running);
    }

    /// The most of its memory that was resident at a time, in bytes.
    pub fn most_resident(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.running.0.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Waits until it ends by itself.
    pub fn ended(&mut self) -> (Option<i32>, String) {
        let mut error = String::new();
        self.running.0.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        (self.running.0.wait().unwrap().code(), error)
    }
}

/// Bytes that were written as hexadecimal digits.
pub fn unhex(text: &str) -> Vec<u8> {
    let byte = |i: usize| u8::from_str_radix(&text[i..i + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}
