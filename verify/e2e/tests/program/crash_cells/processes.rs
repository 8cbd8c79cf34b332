//! Nodes as processes that can be configured to die at a chosen request, ended by their own ids.

use honeycomb_client::{Client, ClientOptions};
use honeycomb_env::Entropy;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Nothing that a cell waits for takes longer.
const PATIENCE: Duration = Duration::from_secs(30);
/// SIGABRT.
const ABORTED: i32 = 6;

/// Waits for something that the cluster does by itself, and fails when it does not.
pub fn eventually(what: &str, done: impl FnMut() -> bool) {
    honeycomb_e2e::eventually_within(PATIENCE, what, done);
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let name = format!("honeycomb-cells-{:x}", Entropy::system().next_u64());
        // In memory, if available: data written by a dying process survives it on any file system, and a busy
        // disk delays a controller's log by seconds.
        let memory = PathBuf::from("/dev/shm");
        let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let path = parent.join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process that may be configured to die at a request.
pub struct Process {
    child: Child,
    errors: PathBuf,
}

impl Process {
    /// Starts it; `die_at` is the failpoint's text, empty for none. Its standard output is the caller's.
    fn start(mut command: Command, errors: PathBuf, die_at: &str) -> (Process, ChildStdout) {
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("HONEYCOMB_")) {
            command.env_remove(name);
        }
        if !die_at.is_empty() {
            command.env("HONEYCOMB_DIE_AT", die_at);
        }
        command.env("HONEYCOMB_CONFIG", "/dev/null").stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(std::fs::File::create(&errors).unwrap());
        let mut child = command.spawn().unwrap();
        let out = child.stdout.take().unwrap();
        (Process { child, errors }, out)
    }

    /// Whether it has died at its configured request. Any other end is a failure.
    pub fn died(&mut self) -> bool {
        let Some(status) = self.child.try_wait().unwrap() else { return false };
        let said = self.said();
        assert_eq!(status.signal(), Some(ABORTED), "it ended by {status}: {said}");
        assert!(said.contains("HONEYCOMB_DIE_AT: process"), "it ended by itself: {said}");
        true
    }

    /// Whether it runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Its output on standard error.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node: a process that has said where it is.
pub struct Node {
    pub process: Process,
    told: Value,
    _out: BufReader<ChildStdout>,
}

impl Node {
    fn start(args: &[&str], errors: PathBuf, die_at: &str) -> Node {
        let mut command = Command::new(honeycomb_e2e::program("honeycomb"));
        command.args(args).arg("--json");
        let (process, out) = Process::start(command, errors, die_at);
        let mut out = BufReader::new(out);
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let said = || process.said();
        let told = serde_json::from_str(&line);
        let told = told.unwrap_or_else(|e| panic!("{e}: {line:?} {}", said()));
        Node { process, told, _out: out }
    }

    /// Where it is.
    pub fn address(&self) -> &str {
        self.told["address"].as_str().expect("a node tells")
    }

    pub fn text(&self, key: &str) -> String {
        self.told[key].as_str().unwrap_or_else(|| panic!("no {key}: {}", self.told)).to_owned()
    }
}

/// A controller and memory servers.
pub struct Cluster {
    folder: Folder,
    started: usize,
    pub controller: Node,
    pub servers: Vec<Node>,
    address: String,
    token: String,
    pub block_size: u64,
}

impl Cluster {
    pub fn start(block_size: u64, controller_dies_at: &str) -> Cluster {
        let folder = Folder::new();
        std::fs::create_dir(folder.0.join("flush")).unwrap();
        let controller = controller(&folder, 0, "127.0.0.1:0", controller_dies_at);
        let (address, token) = (controller.text("address"), controller.text("token"));
        let servers = Vec::new();
        Cluster { folder, started: 1, controller, servers, address, token, block_size }
    }

    fn errors(&mut self) -> PathBuf {
        self.started += 1;
        self.folder.0.join(format!("errors-{}", self.started))
    }

    /// Where all servers flush.
    pub fn flush_root(&self) -> PathBuf {
        self.folder.0.join("flush")
    }

    /// Starts a memory server of so many blocks.
    pub fn add_server(&mut self, blocks: u64, die_at: &str) {
        let (memory, size) = ((blocks * self.block_size).to_string(), self.block_size.to_string());
        let errors = self.errors();
        let args = ["server", "--controller", &self.address, "--token", &self.token];
        let args = [&args[..], &["--memory", &memory, "--block-size", &size, "--shards", "1"]];
        let args = [&args.concat()[..], &["--listen", "127.0.0.1:0", "--spin-us", "0", "--force"]];
        let flush = self.flush_root();
        let args = [&args.concat()[..], &["--flush-root", flush.to_str().unwrap()]];
        self.servers.push(Node::start(&args.concat(), errors, die_at));
    }

    /// Restarts the controller on the log of the dead one.
    pub fn restart_controller(&mut self) {
        self.started += 1;
        let next = controller(&self.folder, self.started, &self.address, "");
        assert_eq!(next.text("address"), self.address);
        assert_eq!(next.text("token"), self.token, "it is the same cluster");
        self.controller = next;
    }

    /// A process of this test's own program, with the arguments given, that knows the cluster.
    pub fn client_process(
        &mut self,
        args: &[&str],
        env: &[(&str, String)],
        die_at: &str,
    ) -> (Process, ChildStdout) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(args).env("CRASH_CELLS_CONTROLLER", &self.address);
        command.envs(env.iter().map(|(name, value)| (*name, value)));
        Process::start(command, self.errors(), die_at)
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn client(&self, token: &[u8]) -> Client {
        client(&self.address, token)
    }

    /// A client whose calls end after this time.
    pub fn client_for(&self, token: &[u8], timeout: Duration) -> Client {
        Client::new(ClientOptions { timeout, ..ClientOptions::new(&self.address, token) })
    }

    pub fn admin(&self) -> Client {
        self.client(&unhex(&self.token))
    }

    /// An admin client with a shorter timeout.
    pub fn admin_for(&self, timeout: Duration) -> Client {
        self.client_for(&unhex(&self.token), timeout)
    }

    /// The addresses of the servers whose processes run.
    pub fn running(&mut self) -> Vec<String> {
        let servers = self.servers.iter_mut().filter_map(|node| {
            let runs = node.process.runs();
            runs.then(|| node.address().to_owned())
        });
        servers.collect()
    }
}

pub fn client(address: &str, token: &[u8]) -> Client {
    let timeout = Duration::from_secs(20);
    Client::new(ClientOptions {
        timeout,
        spin: Duration::ZERO,
        ..ClientOptions::new(address, token)
    })
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn controller(folder: &Folder, number: usize, listen: &str, die_at: &str) -> Node {
    let data = folder.0.join("data");
    let errors = folder.0.join(format!("errors-{number}"));
    let mut args = vec!["controller", "--listen", listen, "--spin-us", "0"];
    if super::LOG {
        args.extend(["--data-dir", data.to_str().unwrap()]);
    }
    Node::start(&args, errors, die_at)
}
