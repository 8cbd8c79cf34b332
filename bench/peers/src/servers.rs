//! The servers under test: each is a process on the server's core that ends with its handle.

use crate::build::Build;
use crate::contract::System;
use crate::matrix::{Cell, SPIN_US, Transport};
use crate::tools::Tools;
use honeycomb_bench::Waiting;
use honeycomb_bench::process::{Pinning, Watched};
use honeycomb_env::Clock;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(10);
/// Memory of a cluster; only written pages become resident. One server has the default size of blocks.
const MEMORY: u64 = 16 << 30;
/// Block size with several memory servers: small enough that a growing store splits all the time.
const SMALL_BLOCKS: u64 = 8 << 20;
/// Touched memory of a server for bursts, and the seconds for which it is kept.
const RESERVE: [(&str, &str); 2] = [("--page-reserve", "128MiB"), ("--page-reserve-idle", "3600")];
/// Memory of memcached in MiB, and the size of its largest item.
const MEMCACHED: [&str; 4] = ["-m", "8192", "-I", "256m"];

/// The properties that two cells must share to use the same server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Which {
    /// The system.
    pub system: System,
    /// The transport.
    pub transport: Transport,
    /// Whether it polls before it sleeps; peers cannot.
    pub polls: bool,
    /// Number of Honeycomb's memory servers.
    pub servers: u8,
    /// Bytes of every answer of the empty servers.
    pub answers: u64,
    /// Whether a Honeycomb server has touched memory for bursts.
    pub has_reserve: bool,
}

impl Which {
    /// The server that a cell needs.
    pub fn of(cell: &Cell) -> Which {
        let answers = matches!(cell.system, System::Empty | System::Loop);
        Which {
            system: cell.system,
            transport: cell.transport,
            polls: cell.waiting.server_polls(),
            servers: cell.servers,
            answers: if answers { cell.size } else { 0 },
            has_reserve: cell.has_reserve,
        }
    }
}

enum Running {
    /// `start --embedded`, which ends with its standard input and leaves no cluster file.
    Embedded(Child),
    Processes(Vec<Child>),
}

/// A running server.
pub struct Server {
    running: Running,
    /// Properties of the server.
    pub which: Which,
    /// Address of the server; for Honeycomb that of the controller.
    pub address: String,
    /// The cluster's token, in hexadecimal.
    pub token: String,
    socket: Option<PathBuf>,
}

impl Server {
    /// Starts a server.
    pub fn start(
        which: Which,
        build: &Build,
        tools: &Tools,
        pinning: Pinning,
    ) -> Result<Server, String> {
        let socket = (which.transport == Transport::Unix).then(|| tools.fresh_path("socket"));
        let (running, address, token) = match which.system {
            System::Honeycomb if which.servers == 1 => embedded(which, build, pinning)?,
            System::Honeycomb => honeycomb(which, build, tools, pinning)?,
            System::Redis => redis(socket.as_deref(), tools, pinning)?,
            System::Memcached => memcached(socket.as_deref(), pinning)?,
            System::Pages => (Running::Processes(Vec::new()), String::new(), String::new()),
            System::Stream | System::Empty | System::Loop => {
                limit(which, socket.as_deref(), build, tools, pinning)?
            }
        };
        Ok(Server { running, which, address, token, socket })
    }

    fn watched(&self) -> Vec<Watched> {
        match &self.running {
            Running::Embedded(child) => vec![Watched::process(child.id())],
            Running::Processes(children) => {
                children.iter().map(|child| Watched::process(child.id())).collect()
            }
        }
    }

    /// CPU time of all its processes so far, in nanoseconds.
    pub fn cpu(&self) -> u64 {
        self.watched().iter().map(Watched::cpu).sum()
    }

    /// Their resident memory, in bytes.
    pub fn resident(&self) -> u64 {
        self.watched().iter().map(Watched::resident).sum()
    }

    /// Peak resident memory since `forget_peak`, in bytes.
    pub fn peak_resident(&self) -> u64 {
        self.watched().iter().map(Watched::peak_resident).sum()
    }

    /// Resets `peak_resident`.
    pub fn forget_peak(&self) {
        self.watched().iter().for_each(Watched::forget_peak);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        match &mut self.running {
            Running::Embedded(child) => {
                drop(child.stdin.take());
                let _ = child.wait();
            }
            Running::Processes(children) => {
                for child in children {
                    let _ = child.kill();
                    let _ = child.wait();
                }
            }
        }
        if let Some(path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

type Started = (Running, String, String);

fn spawn(command: &mut Command, pinning: Pinning) -> Result<Child, String> {
    pinning.for_server();
    let child = command.stdin(Stdio::piped()).spawn();
    pinning.for_client();
    child.map_err(|e| format!("cannot start {}: {e}", command.get_program().display()))
}

/// The first line that a program prints.
fn first_line(child: &mut Child) -> Result<String, String> {
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).map_err(|e| e.to_string())?;
    if line.trim().is_empty() {
        let _ = child.kill();
        return Err("a server ended before it printed its address; see its messages above".into());
    }
    Ok(line.trim().to_owned())
}

fn waiting(which: Which) -> Waiting {
    if which.polls { Waiting::Polling } else { Waiting::Sleeping }
}

/// The address of a controller and the cluster's token, from the object that it prints. Other builds may
/// print additional fields.
fn announced(line: &str) -> Result<(String, String), String> {
    let object: serde_json::Value =
        serde_json::from_str(line).map_err(|e| format!("{line}: {e}"))?;
    let part = |name: &str| {
        let text = object[name].as_str().map(str::to_owned);
        text.ok_or_else(|| format!("the controller's first line has no {name}: {line}"))
    };
    Ok((part("address")?, part("token")?))
}

/// Controller and one memory server in one process. With `--against` the build may be of another revision,
/// so these flags are those of the first revision that can be compared (`contract`).
fn embedded(which: Which, build: &Build, pinning: Pinning) -> Result<Started, String> {
    let mut command = Command::new(&build.program);
    // --force: only written memory becomes resident, so the load decides the size, not the machine.
    command.args(["start", "--embedded", "--force", "--json", "--shards", "1"]);
    for (flag, value) in [
        ("--memory", MEMORY.to_string()),
        ("--spin-us", waiting(which).spin().as_micros().to_string()),
    ] {
        command.arg(flag).arg(value);
    }
    if which.has_reserve {
        command.args(RESERVE.iter().flat_map(|(flag, value)| [flag, value]));
    }
    // Clients that map blocks use the socket.
    command.arg(format!("--unix={}", which.transport != Transport::Tcp));
    let mut child = spawn(command.stdout(Stdio::piped()), pinning)?;
    let line = first_line(&mut child)?;
    let (address, token) = announced(&line).inspect_err(|_| drop(child.kill()))?;
    Ok((Running::Embedded(child), address, token))
}

/// A controller and some memory servers.
fn honeycomb(
    which: Which,
    build: &Build,
    tools: &Tools,
    pinning: Pinning,
) -> Result<Started, String> {
    let mut controller = Command::new(&build.program);
    controller.args(["controller", "--listen", "127.0.0.1:0", "--json"]).stdout(Stdio::piped());
    // Each start prints the warning that no log is written, which is intended here.
    let said = tools.fresh_path("controller");
    controller.stderr(File::create(&said).map_err(|e| format!("{}: {e}", said.display()))?);
    let mut children = vec![spawn(&mut controller, pinning)?];
    let line = first_line(&mut children[0]).map_err(|e| {
        let text = std::fs::read_to_string(&said).unwrap_or_default();
        format!("{e}: {text}")
    })?;
    let (address, token) = announced(&line)?;
    for _ in 0..which.servers {
        let mut server = Command::new(&build.program);
        server.args(["server", "--controller", &address, "--token", &token, "--force", "--json"]);
        server.args(["--listen", "127.0.0.1:0", "--shards", "1", "--unix=false"]);
        for (flag, value) in [
            ("--memory", MEMORY.to_string()),
            ("--block-size", SMALL_BLOCKS.to_string()),
            ("--spin-us", waiting(which).spin().as_micros().to_string()),
        ] {
            server.arg(flag).arg(value);
        }
        children.push(spawn(server.stdout(Stdio::piped()), pinning)?);
        first_line(children.last_mut().expect("just pushed"))?;
    }
    Ok((Running::Processes(children), address, token))
}

fn free_port() -> Result<u16, String> {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    Ok(free.map_err(|e| format!("no free port: {e}"))?.port())
}

/// Waits until a peer accepts connections.
fn answering(child: Child, address: String) -> Result<Started, String> {
    let clock = Clock::start();
    let until = clock.now() + PATIENCE;
    let mut running = Running::Processes(vec![child]);
    while crate::flood::Stream::connect(&address).is_err() {
        if clock.now() > until {
            if let Running::Processes(children) = &mut running {
                let _ = children[0].kill();
            }
            return Err(format!("no server answers at {address}"));
        }
        clock.sleep_until(clock.now() + Duration::from_millis(5));
    }
    Ok((running, address, String::new()))
}

fn redis(socket: Option<&Path>, tools: &Tools, pinning: Pinning) -> Result<Started, String> {
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.arg("--dir").arg(tools.folder()).stdout(Stdio::null());
    let address = match socket {
        Some(path) => {
            command.args(["--port", "0", "--unixsocket"]).arg(path);
            format!("unix:{}", path.display())
        }
        None => {
            let port = free_port()?;
            command.arg("--port").arg(port.to_string());
            format!("127.0.0.1:{port}")
        }
    };
    answering(spawn(&mut command, pinning)?, address)
}

fn memcached(socket: Option<&Path>, pinning: Pinning) -> Result<Started, String> {
    let mut command = Command::new("memcached");
    // One thread, because all threads would share one core.
    command.args(MEMCACHED).args(["-t", "1", "-u", "root"]).stdout(Stdio::null());
    let address = match socket {
        Some(path) => {
            command.arg("-s").arg(path);
            format!("unix:{}", path.display())
        }
        None => {
            let port = free_port()?;
            command.args(["-U", "0", "-l", "127.0.0.1", "-p", &port.to_string()]);
            format!("127.0.0.1:{port}")
        }
    };
    answering(spawn(&mut command, pinning)?, address)
}

fn limit(
    which: Which,
    socket: Option<&Path>,
    build: &Build,
    tools: &Tools,
    pinning: Pinning,
) -> Result<Started, String> {
    let place = socket.map_or("tcp".to_owned(), |path| format!("unix:{}", path.display()));
    let mut command = match which.system {
        System::Loop => {
            let mut command = Command::new(&build.program);
            command.args(["idle", &place, &which.answers.to_string()]);
            command
        }
        System::Empty => {
            let mut command = Command::new(tools.limit()?);
            command.args(["empty", &place, &which.answers.to_string()]);
            command
        }
        _ => {
            let mut command = Command::new(tools.limit()?);
            let spin = if which.polls { SPIN_US } else { 0 };
            command.args(["stream", &place, &spin.to_string()]);
            command
        }
    };
    let mut child = spawn(command.stdout(Stdio::piped()), pinning)?;
    let address = first_line(&mut child)?;
    Ok((Running::Processes(vec![child]), address, String::new()))
}
