//! versitygw on a local port, with its own directory.

use honeycomb_env::{Clock, Entropy};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long the gateway may take until it answers.
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum number of ports to try: a port that was free a moment ago may be in use now.
const PORTS: usize = 5;
const ACCESS: &str = "honeycomb";
const SECRET: &str = "in a test";

/// A running gateway; dropping it ends it and deletes its data.
pub struct Gateway {
    address: SocketAddr,
    root: PathBuf,
    process: Option<Child>,
}

impl Gateway {
    /// The name of its only bucket.
    pub const BUCKET: &str = "lake";

    /// Starts a gateway. If versitygw was not built, it prints a message and answers `None`; with
    /// `NEEDS_S3=1` in the environment, that is a failure.
    pub fn start() -> Option<Gateway> {
        let Some(program) = program() else {
            let needed = std::env::var_os("NEEDS_S3").is_some_and(|v| v == "1");
            assert!(!needed, "versitygw is missing: run verify/versitygw/build.sh");
            eprintln!("SKIPPED: versitygw is missing; verify/versitygw/build.sh says why");
            return None;
        };
        let name = format!("honeycomb-s3-{:016x}", Entropy::system().next_u64());
        let root = std::env::temp_dir().join(name);
        let made = std::fs::create_dir_all(root.join("data").join(Gateway::BUCKET))
            .and_then(|()| std::fs::create_dir(root.join("sidecar")));
        made.unwrap_or_else(|e| panic!("cannot create {}: {e}", root.display()));
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut gateway = Gateway { address, root, process: None };
        for _ in 0..PORTS {
            gateway.address = free_port();
            if gateway.run(&program) {
                return Some(gateway);
            }
        }
        panic!("versitygw did not start: {}", gateway.said());
    }

    /// Starts the process on the address; false when it ended at once.
    fn run(&mut self, program: &Path) -> bool {
        let log =
            std::fs::File::create(self.root.join("log")).expect("the directory was just made");
        let errors = log.try_clone().expect("a file can be shared");
        // A unique name, because another gateway may answer if the port was taken meanwhile.
        let health = format!("/health-{:016x}", Entropy::system().next_u64());
        let process = Command::new(program)
            .args(["--port", &self.address.to_string(), "--quiet"])
            .args(["--access", ACCESS, "--secret", SECRET, "--health", &health])
            .args(["posix", "--sidecar"])
            .args([self.root.join("sidecar"), self.root.join("data")])
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn();
        let process = process.unwrap_or_else(|e| panic!("cannot run {}: {e}", program.display()));
        let process = self.process.insert(process);
        let clock = Clock::start();
        let until = clock.now() + PATIENCE;
        while clock.now() < until {
            if healthy(self.address, &health).unwrap_or(false) {
                return true;
            }
            if !matches!(process.try_wait(), Ok(None)) {
                return false;
            }
            clock.sleep_until(clock.now() + Duration::from_millis(10));
        }
        self.stop();
        false
    }

    /// Ends the process as if its machine failed. Its data remains.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Restarts it after `stop`, at the same address.
    pub fn restart(&mut self) {
        assert!(self.process.is_none(), "the gateway is running");
        let program = program().expect("the program existed before");
        assert!(self.run(&program), "versitygw did not start again: {}", self.said());
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The environment variables of a client for this address: the gateway's own, or that of a proxy.
    pub fn variables(at: SocketAddr) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT", format!("http://{at}")),
            ("AWS_ALLOW_HTTP", "true".into()),
            ("AWS_REGION", "us-east-1".into()),
            ("AWS_ACCESS_KEY_ID", ACCESS.into()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.into()),
        ]
    }

    /// Names of the objects in the bucket under a path, relative to it and sorted. They are read from the
    /// directory, not through the server.
    pub fn objects(&self, path: &str) -> Vec<String> {
        let mut names = Vec::new();
        collect(&self.directory(path), "", &mut names);
        names.sort();
        names
    }

    /// The directory in which the gateway stores the objects of a path, as files with their names.
    pub fn directory(&self, path: &str) -> PathBuf {
        self.root.join("data").join(Gateway::BUCKET).join(path)
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.root.join("log")).unwrap_or_default()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn collect(directory: &Path, above: &str, names: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = format!("{above}{}", entry.file_name().to_string_lossy());
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => collect(&entry.path(), &format!("{name}/"), names),
            false => names.push(name),
        }
    }
}

/// The program built by `verify/versitygw/build.sh`.
fn program() -> Option<PathBuf> {
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.peers");
    let mut built: Vec<PathBuf> = std::fs::read_dir(peers)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("versitygw-") && !name.ends_with(".part")
        })
        .collect();
    built.sort();
    built.pop()
}

fn free_port() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port of this machine is free");
    listener.local_addr().expect("the listener is bound")
}

fn healthy(address: SocketAddr, path: &str) -> io::Result<bool> {
    let wait = Duration::from_secs(1);
    let mut stream = TcpStream::connect_timeout(&address, wait)?;
    stream.set_read_timeout(Some(wait))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer.starts_with(b"HTTP/1.1 200") || answer.starts_with(b"HTTP/1.0 200"))
}
