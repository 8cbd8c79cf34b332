//! Nodes as processes, ended by their own ids.

use honeycomb_env::{Clock, Entropy};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Blocks of each server.
pub const BLOCKS: u64 = 512;

const PROGRAM: &str = env!("CARGO_BIN_EXE_honeycomb");

/// Waits for something that the cluster does by itself, and fails when it does not.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let clock = Clock::start();
    while !done() {
        assert!(clock.now().as_millis() < 60_000, "never happened: {what}");
        clock.sleep_until(clock.now() + Duration::from_millis(10));
    }
}

/// A folder that is removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        let name = format!("honeycomb-restart-{:x}", Entropy::system().next_u64());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    /// The controller's.
    pub fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    /// What the controller has on disk at this moment, in another folder.
    pub fn copy_of_data(&self) -> PathBuf {
        let copy = self.0.join("copy");
        std::fs::create_dir(&copy).unwrap();
        for entry in std::fs::read_dir(self.data()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
        copy
    }

    /// How many log files there are: one for each start, until a snapshot takes their place.
    pub fn logs(&self) -> usize {
        let names = std::fs::read_dir(self.data()).unwrap().map(|e| e.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("log-")).count()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process of the program that has said where it is.
pub struct Node {
    child: Child,
    told: Value,
    _out: BufReader<ChildStdout>,
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(args).arg("--json").stdin(Stdio::null()).stdout(Stdio::piped());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("HONEYCOMB_")) {
        command.env_remove(name);
    }
    command.env("HONEYCOMB_CONFIG", "/dev/null").stderr(Stdio::piped());
    command
}

impl Node {
    fn start(args: &[&str]) -> Node {
        let mut child = command(args).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let told = serde_json::from_str(&line).unwrap_or_else(|e| {
            let mut error = String::new();
            child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
            panic!("{e}: {line:?} {error}")
        });
        Node { child, told, _out: out }
    }

    pub fn controller(data: &Path, listen: &str) -> Node {
        let data = data.to_str().unwrap();
        Node::start(&["controller", "--listen", listen, "--data-dir", data])
    }

    /// A controller that does not start: its code and what it says.
    pub fn controller_refused(data: &Path, listen: &str) -> (i32, String) {
        let data = data.to_str().unwrap();
        let ran = command(&["controller", "--listen", listen, "--data-dir", data]).output();
        let ran = ran.unwrap();
        (ran.status.code().unwrap(), String::from_utf8(ran.stderr).unwrap())
    }

    pub fn server(controller: &str, token: &str) -> Node {
        let size = ["--memory", "32MiB", "--block-size", "64KiB", "--shards", "2"];
        let mut args = vec!["server", "--controller", controller, "--token", token];
        args.extend(size);
        Node::start(&args)
    }

    /// What it said of itself.
    pub fn text(&self, key: &str) -> String {
        self.told[key].as_str().unwrap().to_owned()
    }

    /// SIGKILL, to this process and no other.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it ends by itself.
    pub fn ended(&mut self) -> (Option<i32>, String) {
        let mut error = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        (self.child.wait().unwrap().code(), error)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
