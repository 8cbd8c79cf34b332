//! A controller and memory servers as processes of their own.

use honeycomb_client::{Client, ClientOptions};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Running processes. Dropping it ends them.
pub struct Cluster {
    controller: Child,
    servers: Vec<Child>,
    pub address: String,
    pub token: Vec<u8>,
}

impl Cluster {
    pub fn start(
        program: &Path,
        home: &Path,
        servers: usize,
        memory: u64,
        block_size: u64,
    ) -> Result<Cluster, String> {
        let mut command = command(program, home);
        let (controller, told) = begin(command.args(["controller", "--listen", "127.0.0.1:0"]))?;
        let text = |name: &str| told[name].as_str().unwrap_or_default().to_owned();
        let (address, hex) = (text("address"), text("token"));
        let token = unhex(&hex)?;
        let mut cluster = Cluster { controller, servers: Vec::new(), address, token };
        for _ in 0..servers {
            let mut command = self::command(program, home);
            command.env("HONEYCOMB_CONTROLLER", &cluster.address).env("HONEYCOMB_TOKEN", &hex);
            command.args(["server", "--listen", "127.0.0.1:0", "--shards", "1", "--spin-us", "0"]);
            command.args(["--memory", &memory.to_string()]);
            command.args(["--block-size", &block_size.to_string()]);
            cluster.servers.push(begin(&mut command)?.0);
        }
        Ok(cluster)
    }

    /// A client with the cluster's token.
    pub fn client(&self) -> Client {
        Client::new(ClientOptions::new(&self.address, self.token.clone()))
    }

    /// Processes that have ended although nobody asked them to.
    pub fn ended(&mut self) -> usize {
        let all = self.servers.iter_mut().chain([&mut self.controller]);
        all.map(|child| child.try_wait()).filter(|ended| !matches!(ended, Ok(None))).count()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.servers.iter_mut().chain([&mut self.controller]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The program, with nothing of the user's settings.
fn command(program: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HONEYCOMB_") {
            command.env_remove(name);
        }
    }
    command.env("HOME", home).env("XDG_RUNTIME_DIR", home).env("XDG_CONFIG_HOME", home);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Starts a process that tells in its first line where it is.
fn begin(command: &mut Command) -> Result<(Child, Value), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let said = |e: std::io::Error| format!("cannot start {program}: {e}");
    let mut child = command.arg("--json").spawn().map_err(said)?;
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).map_err(said)?;
    match serde_json::from_str(&line) {
        Ok(told) => Ok((child, told)),
        Err(_) => {
            let _ = child.kill();
            let _ = child.wait();
            // It has said why on standard error.
            Err(format!("{program} did not start"))
        }
    }
}

fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let digits = text.as_bytes().chunks(2).map(|two| {
        let two = std::str::from_utf8(two).unwrap_or_default();
        u8::from_str_radix(two, 16).map_err(|_| "the controller's token is no number".to_owned())
    });
    digits.collect()
}
