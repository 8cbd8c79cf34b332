//! A controller and memory servers as separate processes, for the soaks.

use honeycomb_client::{Client, ClientOptions};
use honeycomb_env::Clock;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Running processes. Dropping it ends them.
pub struct Cluster {
    program: PathBuf,
    home: PathBuf,
    data: Option<PathBuf>,
    controller: Child,
    servers: Vec<Child>,
    /// Servers that are being drained: each ends by itself, with success.
    drained: Vec<Child>,
    /// host:port of the controller, for the life of the cluster.
    pub address: String,
    /// The cluster's token, likewise.
    pub token: Vec<u8>,
}

/// The parameters of a cluster's servers.
#[derive(Clone, Copy, Debug)]
pub struct Servers {
    /// Their number.
    pub count: usize,
    /// Bytes of each server's memory.
    pub memory: u64,
    /// Bytes of a block.
    pub block_size: u64,
}

/// The lower tiers of each server.
#[derive(Clone, Debug)]
pub struct Lower {
    /// The folder of its disk and of its standard error.
    pub dir: PathBuf,
    /// The folder of flushes, of all servers.
    pub flushes: PathBuf,
    /// Bytes of its disk.
    pub disk: u64,
    /// Cores.
    pub shards: usize,
    /// Faults of its disk (`HONEYCOMB_DISK_FAULTS`).
    pub faults: Option<String>,
}

impl Cluster {
    /// Starts all processes. The program sees none of the user's settings; `home` is its home. A
    /// controller that will be killed and restarted needs a folder for its log.
    pub fn start(
        program: &Path,
        home: &Path,
        data: Option<&Path>,
        servers: Servers,
    ) -> Result<Cluster, String> {
        let data = data.map(Path::to_owned);
        let (controller, told) = controller(program, home, data.as_deref(), "127.0.0.1:0")?;
        let mut cluster = Cluster {
            program: program.to_owned(),
            home: home.to_owned(),
            data,
            controller,
            servers: Vec::new(),
            drained: Vec::new(),
            address: told.address,
            token: unhex(&told.token)?,
        };
        for _ in 0..servers.count {
            cluster.add_server(&servers, None)?;
        }
        Ok(cluster)
    }

    /// Starts one more server; returns its host:port.
    pub fn add_server(
        &mut self,
        servers: &Servers,
        lower: Option<&Lower>,
    ) -> Result<String, String> {
        let mut command = command(&self.program, &self.home);
        command.env("HONEYCOMB_CONTROLLER", &self.address);
        command.env("HONEYCOMB_TOKEN", hex(&self.token));
        let shards = lower.map_or(1, |lower| lower.shards).to_string();
        command.args(["server", "--listen", "127.0.0.1:0", "--shards", &shards, "--spin-us", "0"]);
        command.args(["--memory", &servers.memory.to_string(), "--force"]);
        command.args(["--block-size", &servers.block_size.to_string()]);
        if let Some(Lower { dir, flushes, disk, faults, .. }) = lower {
            let said = |e: std::io::Error| format!("{}: {e}", dir.display());
            std::fs::create_dir_all(dir).map_err(said)?;
            std::fs::create_dir_all(flushes).map_err(said)?;
            command.arg("--disks").arg(format!("{}={disk}", dir.display()));
            command.arg("--flush-root").arg(flushes);
            command.stderr(std::fs::File::create(dir.join("errors")).map_err(said)?);
            if let Some(faults) = faults {
                command.env("HONEYCOMB_DISK_FAULTS", faults);
            }
        }
        let (child, told) = begin(&mut command)?;
        self.servers.push(child);
        Ok(told["address"].as_str().unwrap_or_default().to_owned())
    }

    /// Drains the server that was started first, whose host:port is `address`. It ends by itself as soon as
    /// it has no data.
    pub fn drain_first(&mut self, address: &str) -> Result<(), String> {
        self.client().drain_server(address, false).map_err(|e| format!("drain: {e}"))?;
        self.drained.push(self.servers.remove(0));
        Ok(())
    }

    /// Waits until each server that is being drained has ended.
    pub fn await_drained(&mut self, limit: Duration) -> Result<(), String> {
        let clock = Clock::start();
        let ends = clock.now() + limit;
        for child in &mut self.drained {
            while !has_left(child)? {
                if clock.now() >= ends {
                    return Err(format!("a server was not drained within {limit:?}"));
                }
                clock.sleep_until(clock.now() + Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// A client with the cluster's token.
    pub fn client(&self) -> Client {
        Client::new(ClientOptions::new(&self.address, self.token.clone()))
    }

    /// Fails if a process has ended, unless it is a server that was drained and has ended with success.
    pub fn check_alive(&mut self) -> Result<(), String> {
        let controller = std::iter::once(("the controller", &mut self.controller));
        let servers = self.servers.iter_mut().map(|child| ("a server", child));
        for (name, child) in controller.chain(servers) {
            if let Some(status) = child.try_wait().map_err(|e| format!("{name}: {e}"))? {
                return Err(format!("{name} ended by itself: {status}"));
            }
        }
        self.drained.iter_mut().try_for_each(|child| has_left(child).map(drop))
    }

    /// The process ids of the servers.
    pub fn server_pids(&self) -> Vec<u32> {
        self.servers.iter().map(Child::id).collect()
    }

    /// Kills the controller (SIGKILL), without any shutdown.
    pub fn kill_controller(&mut self) -> Result<(), String> {
        self.controller.kill().map_err(|e| format!("cannot kill the controller: {e}"))?;
        self.controller.wait().map_err(|e| format!("the controller: {e}"))?;
        Ok(())
    }

    /// Restarts the controller at its address.
    pub fn restart_controller(&mut self) -> Result<(), String> {
        let (program, home) = (&self.program, &self.home);
        let (child, told) = controller(program, home, self.data.as_deref(), &self.address)?;
        self.controller = child;
        if told.address != self.address || unhex(&told.token)? != self.token {
            return Err("the controller that was started again is another one: it has another \
                        address or token"
                .into());
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let servers = self.servers.iter_mut().chain(&mut self.drained);
        for child in servers.chain([&mut self.controller]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether a server that is drained has ended with success. It may not end otherwise.
fn has_left(child: &mut Child) -> Result<bool, String> {
    match child.try_wait().map_err(|e| format!("a server that is drained: {e}"))? {
        Some(status) if !status.success() => {
            Err(format!("a server that was drained ended: {status}"))
        }
        ended => Ok(ended.is_some()),
    }
}

struct Told {
    address: String,
    token: String,
}

fn controller(
    program: &Path,
    home: &Path,
    data: Option<&Path>,
    listen: &str,
) -> Result<(Child, Told), String> {
    let mut command = command(program, home);
    command.args(["controller", "--listen", listen]);
    if let Some(folder) = data {
        command.arg("--data-dir").arg(folder);
    }
    let (child, told) = begin(&mut command)?;
    let text = |name: &str| told[name].as_str().unwrap_or_default().to_owned();
    Ok((child, Told { address: text("address"), token: text("token") }))
}

/// The program, with none of the user's settings.
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

/// Starts a process that prints its address in its first line.
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
            // It has printed the reason on standard error.
            Err(format!("{program} did not start"))
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let digits = text.as_bytes().chunks(2).map(|two| {
        let two = std::str::from_utf8(two).unwrap_or_default();
        u8::from_str_radix(two, 16).map_err(|_| "the controller's token is no number".to_owned())
    });
    digits.collect()
}

/// A program in the folder of this one.
pub fn beside(name: &str) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let path = own.parent().unwrap_or(Path::new(".")).join(name);
    match path.is_file() {
        true => Ok(path),
        false => {
            Err(format!("there is no {}; build it, or name one with --program", path.display()))
        }
    }
}
