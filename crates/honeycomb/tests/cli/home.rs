//! A home of its own for the program: nothing of the user's is seen or touched.

use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// What a command did.
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|e| panic!("{e}: {:?} {}", self.out, self.err))
    }

    pub fn error(&self) -> Value {
        let value: Value = serde_json::from_str(&self.err)
            .unwrap_or_else(|e| panic!("{e}: standard error is {:?}", self.err));
        assert_eq!(value["error"]["exit"], self.code, "{value}");
        value["error"].clone()
    }
}

/// A folder for configuration, cluster file and data, removed at the end; a cluster in it is
/// stopped.
pub struct Home {
    pub dir: PathBuf,
    running: bool,
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Home {
    pub fn new() -> Home {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("honeycomb-cli-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(dir.join("run")).unwrap();
        Home { dir, running: false }
    }

    /// A home with a running cluster of 1024 small blocks.
    pub fn with_cluster() -> Home {
        let mut home = Home::new();
        let size = ["--memory", "64MiB", "--block-size", "64KiB", "--shards", "1"];
        let mut args = vec!["start", "--background", "--listen", "127.0.0.1:0"];
        args.extend(size);
        let started = home.run(&args);
        assert_eq!(started.code, 0, "{}", started.err);
        home.running = true;
        home
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_honeycomb"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HONEYCOMB_") {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .current_dir(&self.dir)
            .env("HOME", &self.dir)
            .env("XDG_RUNTIME_DIR", self.dir.join("run"))
            .env("XDG_CONFIG_HOME", self.dir.join("config"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        self.feed(args, b"")
    }

    /// Runs a command with this as its standard input.
    pub fn feed(&self, args: &[&str], input: &[u8]) -> Ran {
        finish(self.command(args), input)
    }

    /// Runs a command with a variable of the environment.
    pub fn with(&self, name: &str, value: &str, args: &[&str]) -> Ran {
        let mut command = self.command(args);
        command.env(name, value);
        finish(command, b"")
    }

    /// Runs a command that has to succeed, and returns what it printed.
    pub fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
        ran.out
    }

    /// The JSON that a command prints when it succeeds.
    pub fn json(&self, args: &[&str]) -> Value {
        let ran = self.run(&[args, &["--json"]].concat());
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
        ran.json()
    }

    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    pub fn cluster_file(&self) -> PathBuf {
        self.dir.join("run/honeycomb/cluster.json")
    }

    /// Address and token of the cluster.
    pub fn place(&self) -> (String, String) {
        let file: Value =
            serde_json::from_slice(&std::fs::read(self.cluster_file()).unwrap()).unwrap();
        let text = |name: &str| file[name].as_str().unwrap().to_owned();
        (text("address"), text("token"))
    }
}

fn finish(mut command: Command, input: &[u8]) -> Ran {
    let mut child = command.spawn().unwrap();
    // A command that does not read its input may be gone already.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    Ran {
        code: output.status.code().expect("not ended by a signal"),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.running {
            self.run(&["stop"]);
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

pub fn mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}
