//! A home of its own for the program: nothing of the user's is seen or touched.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The result of a command.
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
    /// Variables of all its commands.
    pub variables: Vec<(&'static str, String)>,
    running: bool,
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Home {
    pub fn new() -> Home {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("honeycomb-cli-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(dir.join("run")).unwrap();
        Home { dir, variables: Vec::new(), running: false }
    }

    /// A home with a running cluster of 1024 small blocks.
    pub fn with_cluster() -> Home {
        Home::new().started(&[])
    }

    /// This home, with such a cluster that was started with these arguments more.
    pub fn started(mut self, more: &[&str]) -> Home {
        let size = ["--memory", "64MiB", "--block-size", "64KiB", "--shards", "1"];
        let mut args = vec!["start", "--background", "--listen", "127.0.0.1:0"];
        args.extend(size);
        args.extend(more);
        let started = self.run(&args);
        assert_eq!(started.code, 0, "{}", started.err);
        self.running = true;
        self
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(honeycomb_e2e::program());
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
            .env("XDG_STATE_HOME", self.dir.join("state"))
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
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

    /// Starts a command that runs beside others.
    pub fn spawn(&self, args: &[&str]) -> Running {
        let mut child = self.command(args).spawn().unwrap();
        Running {
            input: child.stdin.take(),
            out: BufReader::new(child.stdout.take().unwrap()),
            err: BufReader::new(child.stderr.take().unwrap()),
            child,
        }
    }

    /// Runs a command with a variable of the environment.
    pub fn with(&self, name: &str, value: &str, args: &[&str]) -> Ran {
        let mut command = self.command(args);
        command.env(name, value);
        finish(command, b"")
    }

    /// Runs a command that must succeed, and returns its output.
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

    /// The process of the cluster.
    pub fn pid(&self) -> i32 {
        let file: Value =
            serde_json::from_slice(&std::fs::read(self.cluster_file()).unwrap()).unwrap();
        file["pid"].as_i64().unwrap() as i32
    }

    /// Address and token of the cluster.
    pub fn place(&self) -> (String, String) {
        let file: Value =
            serde_json::from_slice(&std::fs::read(self.cluster_file()).unwrap()).unwrap();
        let text = |name: &str| file[name].as_str().unwrap().to_owned();
        (text("address"), text("token"))
    }
}

/// A running command, killed on drop.
pub struct Running {
    input: Option<ChildStdin>,
    out: BufReader<ChildStdout>,
    err: BufReader<ChildStderr>,
    child: Child,
}

impl Running {
    /// The next line of its output, awaited; empty at the end.
    pub fn line(&mut self) -> String {
        line(&mut self.out)
    }

    /// The next line of its standard error, awaited; empty at the end.
    pub fn err_line(&mut self) -> String {
        line(&mut self.err)
    }

    /// Some of its output, at least a byte, awaited; empty at the end.
    pub fn some(&mut self) -> String {
        let bytes = self.out.fill_buf().unwrap();
        let text = String::from_utf8_lossy(bytes).into_owned();
        let n = bytes.len();
        self.out.consume(n);
        text
    }

    /// Gives it some input, and leaves that open.
    pub fn write(&mut self, bytes: &[u8]) {
        self.input.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Ends its input.
    pub fn end_input(&mut self) {
        self.input = None;
    }

    /// As Ctrl-C does.
    pub fn interrupt(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    }

    /// Sends it a signal.
    pub fn signalled(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// The signal that ended it, if one did.
    pub fn signal(mut self) -> Option<i32> {
        self.child.wait().unwrap().signal()
    }

    /// Awaits its end; answers the exit code and the unread output.
    pub fn end(mut self) -> Ran {
        self.end_input();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        self.out.read_to_end(&mut out).unwrap();
        self.err.read_to_end(&mut err).unwrap();
        Ran {
            code: self.child.wait().unwrap().code().expect("not ended by a signal"),
            out: String::from_utf8_lossy(&out).into_owned(),
            err: String::from_utf8_lossy(&err).into_owned(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line.trim_end_matches('\n').to_owned()
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
            self.run(&["stop", "--discard"]);
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

pub fn mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}
