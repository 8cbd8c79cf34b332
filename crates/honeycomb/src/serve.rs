//! `start`, `stop`, `controller`, `server`.

use crate::cluster::{ClusterFile, file_path, hex, started, unhex};
use crate::{Outcome, Output, size};
use clap::Args;
use honeycomb_controller::{Controller, ControllerOptions};
use honeycomb_env::Clock;
use honeycomb_server::{MemoryServer, ServerOptions};
use honeycomb_types::limits::{BLOCK_SIZE_DEFAULT, BLOCK_SIZE_MIN};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{BufRead, Read};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long a node that starts waits for the controller.
const PATIENCE: Duration = Duration::from_secs(10);
/// A pool is cut into about this many blocks when nobody says how large they are.
const BLOCKS_WANTED: u64 = 512;

/// What a memory server has.
#[derive(Args, Clone)]
pub struct Pool {
    /// Memory for blocks, resident only where written (half of the machine's)
    #[arg(long, value_parser = size::parse, env = "HONEYCOMB_MEMORY")]
    memory: Option<u64>,
    /// Bytes of a block: a power of two from 64KiB to 1GiB
    #[arg(long, value_parser = size::parse, env = "HONEYCOMB_BLOCK_SIZE")]
    block_size: Option<u64>,
    /// Cores that serve (all)
    #[arg(long, env = "HONEYCOMB_SHARDS")]
    shards: Option<u8>,
    /// Microseconds that a core polls before it sleeps while requests follow each other quickly;
    /// 0 never polls
    #[arg(long, env = "HONEYCOMB_SPIN_US", default_value_t = 50)]
    spin_us: u64,
}

/// Options of `start`.
#[derive(Args)]
pub struct StartArgs {
    /// Where the controller listens
    #[arg(long, default_value = "127.0.0.1:7420")]
    listen: SocketAddr,
    #[command(flatten)]
    pool: Pool,
    /// The host that clients are told, when it is not the one listened on
    #[arg(long)]
    advertise: Option<String>,
    /// Go on in the background; `honeycomb stop` ends it
    #[arg(long, conflicts_with = "embedded")]
    background: bool,
    /// End when standard input closes, on a free port, without leaving a cluster file
    #[arg(long)]
    embedded: bool,
    /// Allow to listen beyond this machine although nothing is encrypted
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    output: Output,
}

/// Options of `controller`.
#[derive(Args)]
pub struct ControllerArgs {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:7420")]
    listen: SocketAddr,
    /// Allow to listen beyond this machine although nothing is encrypted
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    output: Output,
}

/// Options of `server`.
#[derive(Args)]
pub struct ServerArgs {
    /// host:port of the controller
    #[arg(long)]
    controller: SocketAddr,
    /// The cluster's token, in hexadecimal
    #[arg(long, env = "HONEYCOMB_TOKEN", hide_env_values = true)]
    token: String,
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The address that clients are told, when it is not the one listened on
    #[arg(long)]
    advertise: Option<String>,
    #[command(flatten)]
    pool: Pool,
    /// Allow to listen beyond this machine although nothing is encrypted
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    output: Output,
}

impl Pool {
    fn spin(&self) -> Duration {
        Duration::from_micros(self.spin_us)
    }

    fn options(
        &self,
        listen: SocketAddr,
        controller: SocketAddr,
        token: Vec<u8>,
        block_size: impl FnOnce(u64) -> u64,
    ) -> Result<ServerOptions, String> {
        let memory = match self.memory {
            Some(memory) => memory,
            None => machine_memory()? / 2,
        };
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get().min(64) as u8);
        Ok(ServerOptions {
            listen,
            advertise: None,
            controller,
            token,
            memory,
            block_size: self.block_size.unwrap_or_else(|| block_size(memory)),
            shards: self.shards.unwrap_or(cores),
            spin: self.spin(),
        })
    }
}

fn machine_memory() -> Result<u64, String> {
    let text = std::fs::read_to_string("/proc/meminfo").map_err(|e| e.to_string())?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB")).and_then(|n| n.trim().parse().ok());
    kib.map(|k: u64| k * 1024).ok_or_else(|| "how much memory? say --memory".into())
}

/// Blocks of a pool on one machine: small enough that there are some hundreds.
fn fitting_block_size(memory: u64) -> u64 {
    let size = (memory / BLOCKS_WANTED).max(1).next_power_of_two();
    size.clamp(BLOCK_SIZE_MIN, BLOCK_SIZE_DEFAULT)
}

fn check_listen(listen: SocketAddr, insecure: bool) -> Outcome {
    if listen.ip().is_loopback() || insecure {
        return Ok(());
    }
    Err(format!(
        "{listen} can be reached from other machines and nothing is encrypted: --insecure allows it"
    ))
}

/// `honeycomb start`.
pub fn start(args: &StartArgs) -> Outcome {
    check_listen(args.listen, args.insecure)?;
    if args.background {
        return start_in_background(args);
    }
    raise_descriptor_limit();
    let path = file_path()?;
    if !args.embedded
        && let Some(running) = ClusterFile::read(&path)?
    {
        return Err(format!(
            "a cluster is running here already: {} (process {}); `honeycomb stop` ends it",
            running.address, running.pid
        ));
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|e| e.to_string())?;
    let listen = if args.embedded { SocketAddr::from(([127, 0, 0, 1], 0)) } else { args.listen };
    let controller = start_controller(listen, args.pool.spin())?;
    let data = SocketAddr::new(listen.ip(), 0);
    let token = controller.token().to_vec();
    let near = match listen.ip().is_unspecified() {
        true => SocketAddr::from(([127, 0, 0, 1], controller.address().port())),
        false => controller.address(),
    };
    let mut options = args.pool.options(data, near, token, fitting_block_size)?;
    options.advertise.clone_from(&args.advertise);
    let server = MemoryServer::start(&options, PATIENCE).map_err(|e| e.to_string())?;

    let pid = std::process::id() as i32;
    let file = ClusterFile {
        address: near.to_string(),
        token: hex(controller.token()),
        pid,
        started: started(pid).ok_or("the kernel does not say when this process started")?,
    };
    if !args.embedded {
        file.write(&path)?;
    }
    announce(args.output, &file, &options);
    if args.embedded {
        end_with_parent();
    }
    signals.forever().next();
    if !args.embedded {
        let _ = std::fs::remove_file(&path);
    }
    drop(server);
    drop(controller);
    Ok(())
}

fn announce(output: Output, file: &ClusterFile, options: &ServerOptions) {
    if output.json {
        say!("{}", serde_json::to_string(file).expect("four plain fields"));
        return;
    }
    say!("honeycomb is running at {}", file.address);
    say!("  token       {}", file.token);
    say!(
        "  memory      {} in blocks of {}, on {} cores",
        size::show(options.memory),
        size::show(options.block_size),
        options.shards
    );
    say!("  try         honeycomb put notes:kv color blue");
    say!("  stop        Ctrl-C, or honeycomb stop");
}

/// Ends the process when the parent that embeds it is gone: its end of standard input closes.
fn end_with_parent() {
    let watch = || {
        let mut byte = [0; 64];
        while let Ok(1..) = std::io::stdin().read(&mut byte) {}
        std::process::exit(0);
    };
    std::thread::Builder::new()
        .name("parent".into())
        .spawn(watch)
        .expect("a thread can be started");
}

fn start_in_background(args: &StartArgs) -> Outcome {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(program);
    command.arg("start").arg("--json").arg("--listen").arg(args.listen.to_string());
    let pool = &args.pool;
    for (flag, value) in [
        ("--memory", pool.memory.map(|v| v.to_string())),
        ("--block-size", pool.block_size.map(|v| v.to_string())),
        ("--shards", pool.shards.map(|v| v.to_string())),
        ("--spin-us", Some(pool.spin_us.to_string())),
    ] {
        if let Some(value) = value {
            command.arg(flag).arg(value);
        }
    }
    if args.insecure {
        command.arg("--insecure");
    }
    if let Some(host) = &args.advertise {
        command.arg("--advertise").arg(host);
    }
    // A process group of its own: Ctrl-C in this terminal is not meant for it.
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn();
    let mut child = child.map_err(|e| format!("cannot start: {e}"))?;
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    std::io::BufReader::new(stdout).read_line(&mut line).map_err(|e| e.to_string())?;
    let Ok(file) = serde_json::from_str::<ClusterFile>(&line) else {
        // It has said why on standard error.
        return Err("the cluster did not start".into());
    };
    if args.output.json {
        say!("{}", line.trim_end());
    } else {
        say!("honeycomb is running at {} (process {})", file.address, file.pid);
        say!("  token       {}", file.token);
        say!("  stop        honeycomb stop");
    }
    Ok(())
}

/// `honeycomb stop`.
pub fn stop(output: Output) -> Outcome {
    let path = file_path()?;
    let file = ClusterFile::read(&path)?;
    let Some(file) = file else { return Err("no cluster is running here".into()) };
    let pid =
        rustix::process::Pid::from_raw(file.pid).ok_or("the cluster file names no process")?;
    rustix::process::kill_process(pid, rustix::process::Signal::TERM)
        .map_err(|e| format!("cannot stop process {}: {e}", file.pid))?;
    let clock = Clock::start();
    while file.alive() {
        if clock.now().as_millis() > PATIENCE.as_millis() as u64 {
            return Err(format!("process {} has not ended after 10 s", file.pid));
        }
        clock.sleep_until(clock.now() + Duration::from_millis(5));
    }
    if output.json {
        say!("{}", json!({ "stopped": file.pid }));
    } else {
        say!("stopped {} (process {})", file.address, file.pid);
    }
    Ok(())
}

/// Takes as many file descriptors as the system allows: each connection needs one.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // The soft limit may be raised to the hard one by anybody; where not, fewer clients fit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn start_controller(listen: SocketAddr, spin: Duration) -> Result<Controller, String> {
    let options = ControllerOptions { listen, root_key: None, spin };
    Controller::start(&options).map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => {
            format!("{listen} is taken; --listen 127.0.0.1:0 takes any free port")
        }
        _ => format!("cannot listen on {listen}: {e}"),
    })
}

/// `honeycomb controller`.
pub fn controller(args: &ControllerArgs) -> Outcome {
    raise_descriptor_limit();
    check_listen(args.listen, args.insecure)?;
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|e| e.to_string())?;
    let controller = start_controller(args.listen, Duration::from_micros(50))?;
    let token = hex(controller.token());
    if args.output.json {
        let address = controller.address().to_string();
        let pid = std::process::id();
        say!("{}", json!({ "address": address, "token": token, "pid": pid }));
    } else {
        say!("the controller is running at {}", controller.address());
        say!("  token       {token}");
        say!("  add memory  honeycomb server --controller {} --token ...", controller.address());
    }
    signals.forever().next();
    Ok(())
}

/// `honeycomb server`.
pub fn server(args: &ServerArgs) -> Outcome {
    raise_descriptor_limit();
    check_listen(args.listen, args.insecure)?;
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|e| e.to_string())?;
    let token = unhex(&args.token)?;
    let mut options =
        args.pool.options(args.listen, args.controller, token, |_| BLOCK_SIZE_DEFAULT)?;
    options.advertise.clone_from(&args.advertise);
    let server = MemoryServer::start(&options, PATIENCE).map_err(|e| e.to_string())?;
    if args.output.json {
        let address = server.address().to_string();
        let pid = std::process::id();
        say!("{}", json!({ "address": address, "server": server.server().0, "pid": pid }));
    } else {
        say!(
            "memory server {} is running at {}: {} in blocks of {}, on {} cores",
            server.server().0,
            server.address(),
            size::show(options.memory),
            size::show(options.block_size),
            options.shards
        );
    }
    signals.forever().next();
    Ok(())
}
