//! `start`, `controller`, `server`.

use crate::cluster::{ClusterFile, ClusterLock};
use crate::config::{ForController, ForServer, ForStart, Given, Origin, Settings};
use crate::failure::{CommandResult, Failure};
use crate::output::{Output, hex};
use crate::stop::{HeldCluster, in_background};
use crate::wait::seconds;
use crate::{machine, scale, size};
use clap::Args;
use honeycomb_client::{Client, ClientOptions};
use honeycomb_controller::{Controller, ControllerOptions, StartError, StoreError};
use honeycomb_env::Clock;
use honeycomb_server::{Departure, MemoryServer, ReserveOptions, ServerOptions, check_addresses};
use honeycomb_structures::Registry;
use honeycomb_transfer::evacuation;
use honeycomb_transport::unix::UnixDoor;
use honeycomb_types::limits::{BLOCK_SIZE_DEFAULT, BLOCK_SIZE_MIN, listed_value_max};
use honeycomb_wire::Status;
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::io::BufRead;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How long a starting server waits for the controller.
const PATIENCE: Duration = Duration::from_secs(10);
/// Without a configured block size, the memory is divided into at most about this many blocks ...
const BLOCKS_WANTED: u64 = 512;
/// ... that are so large that a value can have this part of it.
const VALUE_FRACTION: u64 = 4;
/// The default address of a controller.
pub const LISTEN_DEFAULT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7420);
/// A free port of this machine.
const LISTEN_ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Starts a controller and a memory server on this machine, in one process.
///
/// The cluster file holds the token; later commands of the same user find the cluster by this file. The
/// process runs until Ctrl-C, SIGTERM, SIGHUP or `honeycomb stop`. Each of these first ends all jobs and
/// flushes prefixes created with --flush-to or --persist (see `honeycomb stop`); a second signal ends the
/// process at once. All other data is in memory and is lost when the process ends. With --data-dir, the next
/// start uses the same token. A user has one cluster file: starting a second cluster with it is an error.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb start --background
  honeycomb start --background --memory 64MiB --block-size 64KiB --shards 1
  honeycomb start                        # in the foreground; Ctrl-C ends it
  honeycomb start --listen 127.0.0.1:0 --background --json")]
pub struct StartArgs {
    /// Run in the background; `honeycomb stop` ends it
    #[arg(long, conflicts_with = "embedded")]
    background: bool,
    /// For programs: exit when standard input closes, listen on a free local port, write no cluster file;
    /// with --json, the first line contains the token
    #[arg(long)]
    embedded: bool,
    /// Allow --memory to exceed the memory of this machine
    #[arg(long)]
    force: bool,
    /// Started by `start --background`, which reads one line of JSON
    #[arg(long, hide = true, conflicts_with = "embedded")]
    child: bool,
    #[command(flatten)]
    given: Given<ForStart>,
    #[command(flatten)]
    output: Output,
}

/// Starts a controller alone, for a cluster of several machines.
///
/// It prints the token that servers and clients need, and runs until Ctrl-C, SIGTERM or SIGHUP. It writes a
/// log to --data-dir, or else to a folder named after its listen address in
/// $XDG_STATE_HOME/honeycomb/controller (~/.local/state). When it is restarted at the same address, it uses
/// the same token and all jobs continue. With port 0 or --volatile it writes no log. Jobs then end with the
/// controller: before it exits it ends all jobs and waits for their flushes, as `honeycomb stop` does.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb controller
  honeycomb controller --listen 127.0.0.1:0 --json
  honeycomb controller --listen 127.0.0.1:0 --data-dir ./controller
  honeycomb controller --volatile
  honeycomb controller --listen 0.0.0.0:0 --insecure  # from other machines")]
pub struct ControllerArgs {
    /// Write no log, even when the port is fixed
    #[arg(long)]
    volatile: bool,
    #[command(flatten)]
    given: Given<ForController>,
    #[command(flatten)]
    output: Output,
}

/// Starts a memory server and joins a controller.
///
/// All servers of a cluster use the same block size: by default that of the others, and 128 MiB for the
/// first server of a `honeycomb controller`. The server runs until Ctrl-C or SIGTERM. The data in its
/// blocks is then lost, unless the server is drained first: by `honeycomb drain`, or on SIGTERM with
/// --drain-on-stop. CONTROLLER and TOKEN stand for the address and the token that `honeycomb controller`
/// printed.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb server --controller $CONTROLLER --token $TOKEN --memory 1GiB
  HONEYCOMB_TOKEN=$TOKEN honeycomb server --controller $CONTROLLER --shards 1
  honeycomb server --controller $CONTROLLER --token $TOKEN --drain-on-stop=60")]
pub struct ServerArgs {
    /// Allow --memory to exceed the memory of this machine
    #[arg(long)]
    force: bool,
    /// On SIGTERM, drain before exiting (wait at most SECONDS)
    #[arg(long, value_name = "SECONDS", value_parser = seconds, num_args = 0..=1,
          require_equals = true, default_missing_value = "30")]
    drain_on_stop: Option<Duration>,
    #[command(flatten)]
    given: Given<ForServer>,
    #[command(flatten)]
    output: Output,
}

/// The options of a memory server, from the settings.
fn server_options(
    settings: &Settings,
    force: bool,
    listen: SocketAddr,
    controller: SocketAddr,
    token: Vec<u8>,
    block_size: impl FnOnce(u64) -> CommandResult<u64>,
    kinds: &Arc<Registry>,
) -> CommandResult<ServerOptions> {
    let memory = match settings.memory() {
        Some(memory) if force => memory,
        Some(memory) => within_machine(memory)?,
        None => machine::memory()? / 2,
    };
    let block_size = settings.block_size().map_or_else(|| block_size(memory), Ok)?;
    // All cores, but at most one core per block.
    let shards = settings.shards().unwrap_or_else(|| {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get().min(64));
        cores.min((memory / block_size).max(1) as usize) as u8
    });
    if memory / block_size / shards as u64 == 0 {
        let text = format!(
            "--memory {} is too small for one block of {} on each of {shards} cores: use more \
             --memory, a smaller --block-size or fewer --shards",
            size::show(memory),
            size::show(block_size)
        );
        return Err(Failure::invalid(text));
    }
    let spin = settings.spin();
    Ok(ServerOptions {
        listen,
        advertise: settings.advertise(),
        controller,
        token,
        memory,
        disks: settings.disks(),
        block_size,
        shards,
        spin,
        page_reserve: ReserveOptions {
            bytes: settings.page_reserve(),
            idle: settings.page_reserve_idle(),
        },
        flush_root: settings.flush_root(),
        unix_dir: None,
        kinds: kinds.clone(),
    })
}

/// The directory for the Unix socket of a node. When the default directory cannot be used, the node starts
/// without the socket and prints a warning; clients then use TCP.
fn unix_dir(settings: &Settings) -> Option<PathBuf> {
    let directory = settings.unix_dir()?;
    if *settings.origin("unix_dir") == Origin::Default
        && let Err(e) = UnixDoor::open(&directory)
    {
        eprintln!("honeycomb: cannot open the Unix socket, local clients will use TCP: {e}");
        return None;
    }
    Some(directory)
}

/// Refuses more memory than the machine has: the kernel would kill the process when it is used.
fn within_machine(memory: u64) -> CommandResult<u64> {
    let there = machine::memory()?;
    if memory <= there {
        return Ok(memory);
    }
    Err(Failure::invalid(format!(
        "--memory {} exceeds the {} of this machine or of the control group of this process; the \
         kernel would kill the server when its blocks are written. Use less --memory, or override \
         with --force",
        size::show(memory),
        size::show(there)
    )))
}

/// The block size of a cluster on one machine with this many bytes of memory: small enough for some hundreds
/// of blocks, if one value can list a quarter of the memory then.
pub fn fitting_block_size(memory: u64) -> u64 {
    let mut size = (memory / BLOCKS_WANTED).max(BLOCK_SIZE_MIN).next_power_of_two();
    while size < BLOCK_SIZE_DEFAULT && listed_value_max(size) < memory / VALUE_FRACTION {
        size *= 2;
    }
    size.min(BLOCK_SIZE_DEFAULT)
}

fn check_listen(listen: SocketAddr, insecure: bool) -> CommandResult {
    if listen.ip().is_loopback() || insecure {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "{listen} is reachable from other machines and traffic is not encrypted: use --insecure to \
         allow this"
    )))
}

/// Reserves the cluster file for this process; `AlreadyExists` when a running cluster uses it.
fn only_cluster(path: &Path) -> CommandResult<ClusterLock> {
    let refused = |running: ClusterFile| {
        let text = format!(
            "a cluster is already running here: {} (process {}); `honeycomb stop` ends it",
            running.address, running.pid
        );
        Failure::new(Status::AlreadyExists, text)
    };
    if let Some(running) = ClusterFile::read(path)? {
        return Err(refused(running));
    }
    let lock = ClusterLock::take(path)?;
    // Another cluster may have started and released the lock since the file was read.
    match ClusterFile::read(path)? {
        Some(running) => Err(refused(running)),
        None => Ok(lock),
    }
}

/// `honeycomb start`.
pub fn start(args: &StartArgs, kinds: &Arc<Registry>) -> CommandResult {
    let settings = args.given.settings()?;
    let listen = settings.listen().unwrap_or(LISTEN_DEFAULT);
    let listen = if args.embedded { LISTEN_ANY } else { listen };
    check_listen(listen, settings.insecure())?;
    let path = settings.cluster_file()?;
    if args.background {
        return start_in_background(args, &path);
    }
    raise_descriptor_limit();
    let lock = if args.embedded { None } else { Some(only_cluster(&path)?) };
    let signals = signals(&[SIGINT, SIGTERM, SIGHUP])?;
    let data = SocketAddr::new(listen.ip(), 0);
    let fitting = |memory| Ok(fitting_block_size(memory));
    // Errors in the settings are reported before any socket listens.
    server_options(&settings, args.force, data, listen, Vec::new(), fitting, kinds)?;
    // An embedded cluster ends with its parent process and is never restarted.
    let data_dir = settings.data_dir().filter(|_| !args.embedded);
    let unix_dir = unix_dir(&settings);
    let durable = data_dir.is_some();
    let controller = start_controller(listen, &settings, data_dir, unix_dir.clone())?;
    let near = reachable(controller.address());
    let token = controller.token().to_vec();
    let mut options = server_options(&settings, args.force, data, near, token, fitting, kinds)?;
    options.unix_dir = unix_dir;
    if args.embedded {
        options.advertise = None;
    }
    let server = start_server(&options)?;
    evacuation::follow(&server, &options);
    let file = ClusterFile::of_this_process(near.to_string(), controller.token())?;
    if args.embedded {
        announce_embedded(args.output, &file);
    } else {
        file.write(&path)?;
        let output = Output { json: args.output.json || args.child };
        announce(output, &file, &path, durable, &options);
    }
    scale::follow(controller.advice().expect("the receiver is taken once"), settings.scale_hook());
    let sockets = [controller.near(), server.near()].into_iter().flatten().map(PathBuf::from);
    let own = lock.iter().flat_map(|lock| [path.clone(), lock.path().to_owned()]);
    let held = HeldCluster {
        address: near.to_string(),
        token: controller.token().to_vec(),
        files: sockets.chain(own).collect(),
        patience: settings.stop_wait(),
    };
    let ended = held.await_end(signals, args.embedded);
    if !args.embedded {
        let _ = std::fs::remove_file(&path);
    }
    drop(server);
    drop(controller);
    drop(lock);
    ended
}

/// The signals that end a node. SIGXFSZ (a file reached the limit of `ulimit -f`) does not end it: the
/// write fails, as on a full disk.
fn signals(which: &[i32]) -> CommandResult<Signals> {
    let heard = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGXFSZ, heard)
        .and_then(|_| Signals::new(which))
        .map_err(|e| Failure::io("cannot install signal handlers", &e))
}

fn start_server(options: &ServerOptions) -> CommandResult<MemoryServer> {
    MemoryServer::start(options, PATIENCE).map_err(|e| match e.kind() {
        std::io::ErrorKind::InvalidInput => Failure::invalid(e.to_string()),
        std::io::ErrorKind::Other => Failure::new(Status::Unavailable, e.to_string()),
        _ => Failure::io("cannot start the memory server", &e),
    })
}

/// The JSON description of a cluster that has a cluster file. The token stays in that file.
fn shown(file: &ClusterFile, path: &Path, durable: bool) -> Value {
    json!({
        "address": file.address, "pid": file.pid, "started": file.started,
        "cluster_file": path.to_string_lossy(), "durable": durable,
    })
}

/// The part of the first line that says which data ends with the cluster.
fn lasts(durable: bool) -> &'static str {
    match durable {
        true => ", volatile data: a restart keeps jobs and token only",
        false => ", volatile: a restart keeps neither jobs nor data",
    }
}

fn announce(
    output: Output,
    file: &ClusterFile,
    path: &Path,
    durable: bool,
    options: &ServerOptions,
) {
    output.print(&shown(file, path, durable), || {
        format!(
            "honeycomb is running at {} (process {}){}\n  token       in {}\n  memory      {} in \
             blocks of {}, on {} cores\n  try         honeycomb put notes:kv color blue\n  stop  \
             \x20     Ctrl-C, or honeycomb stop",
            file.address,
            file.pid,
            lasts(durable),
            path.display(),
            size::show(options.memory),
            size::show(options.block_size),
            options.shards
        )
    });
}

/// The parent program of an embedded cluster needs the token, and there is no cluster file.
fn announce_embedded(output: Output, file: &ClusterFile) {
    if output.json {
        say!("{}", serde_json::to_string(file).expect("four plain fields"));
    } else {
        say!("honeycomb is running at {}, token {}", file.address, file.token);
    }
}

/// Starts the same command again, in its own process group, so that Ctrl-C in this terminal does not reach
/// it. The child inherits the environment, so it finds the same settings and reports its own errors.
fn start_in_background(args: &StartArgs, path: &Path) -> CommandResult {
    let program =
        std::env::current_exe().map_err(|e| Failure::io("cannot find this program", &e))?;
    let mut command = Command::new(program);
    command.args(["start", "--child"]).args(args.given.as_arguments());
    if args.force {
        command.arg("--force");
    }
    if args.output.json {
        command.arg("--json");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    if stderr_is_awaited() {
        command.stderr(Stdio::piped());
    }
    let child = command.spawn();
    let mut child = child.map_err(|e| Failure::io("cannot start the cluster", &e))?;
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    let read = std::io::BufReader::new(stdout).read_line(&mut line);
    read.map_err(|e| Failure::io("cannot read the output of the cluster", &e))?;
    if line.is_empty() {
        if let Some(mut said) = child.stderr.take() {
            let copied = std::io::copy(&mut said, &mut std::io::stderr());
            copied.map_err(|e| Failure::io("cannot read the output of the cluster", &e))?;
        }
        let ended = child.wait().map_err(|e| Failure::io("cannot wait for the cluster", &e))?;
        return match ended.code() {
            Some(code @ 1..=255) => Err(Failure::of_child(code as u8)),
            _ => Err(format!("the cluster did not start: {ended}").into()),
        };
    }
    let value: Value = serde_json::from_str(&line)
        .map_err(|e| format!("the first line of the cluster is not JSON: {e}"))?;
    args.output.print(&value, || {
        format!(
            "honeycomb is running at {} (process {}){}\n  token       in \
                {}\n  stop        honeycomb \
             stop",
            value["address"].as_str().unwrap_or_default(),
            value["pid"],
            lasts(value["durable"] == true),
            path.display()
        )
    });
    Ok(())
}

/// Whether standard error is a pipe. Its reader waits for the end of the pipe, and a cluster that inherits
/// it would keep it open. A terminal or a file is inherited, so that messages of defects reach it.
fn stderr_is_awaited() -> bool {
    use rustix::fs::{FileType, fstat};
    let kind = fstat(std::io::stderr()).map(|found| FileType::from_raw_mode(found.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket))
}

/// Raises the limit of file descriptors as far as the system allows: each connection needs one.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Every user may raise the soft limit to the hard limit. If that fails, fewer clients can connect.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// The address of a node for clients of this machine.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip().is_unspecified() {
        true => SocketAddr::from(([127, 0, 0, 1], address.port())),
        false => address,
    }
}

fn start_controller(
    listen: SocketAddr,
    settings: &Settings,
    data_dir: Option<PathBuf>,
    unix_dir: Option<PathBuf>,
) -> CommandResult<Controller> {
    let options = ControllerOptions {
        listen,
        root_key: None,
        data_dir,
        unix_dir,
        spin: settings.spin(),
        marks: settings.marks()?,
        lease_ms: settings.lease_ms(),
        policy: settings.policy(),
        scale: settings.scale()?,
        server_loss_ms: settings.server_loss_ms(),
        shards: settings.controller_shards(),
    };
    Controller::start(&options).map_err(|e| match e {
        StartError::Listen(e) if e.kind() == std::io::ErrorKind::AddrInUse => {
            let text = format!(
                "cannot listen on {listen}: the port is in use; --listen 127.0.0.1:0 takes any \
                 free port, `honeycomb doctor` looks for the process that uses it"
            );
            Failure::new(Status::AlreadyExists, text)
        }
        StartError::Listen(e) => Failure::io(format_args!("cannot listen on {listen}"), &e),
        StartError::Shards { .. } => Failure::invalid(e.to_string()),
        StartError::Store(_, StoreError::InUse) => {
            Failure::new(Status::AlreadyExists, e.to_string())
        }
        StartError::Store(..) => {
            let text = format!("{e}; to use another folder for the log, set --data-dir");
            Failure::new(Status::LogFailed, text)
        }
    })
}

/// The warning of a controller that writes no log.
const VOLATILE: &str = "honeycomb: this controller writes no log (port 0 or --volatile without \
    --data-dir): a restart loses all jobs and data and creates a new token";

/// The folder for the log of a controller: the configured folder, else a folder named after the listen
/// address in the user's state folder. `None` with --volatile or port 0.
fn log_folder(
    volatile: bool,
    listen: SocketAddr,
    settings: &Settings,
) -> CommandResult<Option<PathBuf>> {
    let named = settings.data_dir();
    if volatile {
        return match settings.origin("data_dir") {
            Origin::Flag => {
                Err(Failure::invalid("--volatile and --data-dir exclude each other: use one"))
            }
            _ => Ok(None),
        };
    }
    if named.is_some() || listen.port() == 0 {
        return Ok(named);
    }
    match settings.state_folder() {
        Some(folder) => Ok(Some(folder.join("controller").join(listen.to_string()))),
        None => Err(Failure::invalid(
            "cannot choose a folder for the controller's log: neither HOME nor XDG_STATE_HOME is \
             set; use --data-dir DIR, or --volatile to write no log",
        )),
    }
}

/// `honeycomb controller`.
pub fn controller(args: &ControllerArgs) -> CommandResult {
    let settings = args.given.settings()?;
    let listen = settings.listen().unwrap_or(LISTEN_DEFAULT);
    check_listen(listen, settings.insecure())?;
    raise_descriptor_limit();
    let mut signals = signals(&[SIGINT, SIGTERM, SIGHUP])?;
    let data_dir = log_folder(args.volatile, listen, &settings)?;
    let log = data_dir.as_ref().map(|path| path.display().to_string());
    let durable = log.is_some();
    let controller = start_controller(listen, &settings, data_dir, unix_dir(&settings))?;
    let (address, token) = (controller.address(), hex(controller.token()));
    let shown = json!({
        "address": address.to_string(), "token": token, "pid": std::process::id(),
        "durable": durable, "log": log,
    });
    if !durable {
        eprintln!("{VOLATILE}");
    }
    let kept = log.map_or("none".to_owned(), |path| format!("in {path}"));
    args.output.print(&shown, || {
        format!(
            "the controller is running at \
                {address}\n  token       {token}\n  log         {kept}\n  add \
             memory  honeycomb server --controller {address} --token ..."
        )
    });
    scale::follow(controller.advice().expect("the receiver is taken once"), settings.scale_hook());
    if durable {
        // The next controller that opens this log continues all jobs.
        signals.forever().next();
        return Ok(());
    }
    let held = HeldCluster {
        address: reachable(address).to_string(),
        token: controller.token().to_vec(),
        files: controller.near().map(PathBuf::from).into_iter().collect(),
        patience: settings.stop_wait(),
    };
    held.await_end(signals, false)
}

/// `honeycomb server`.
pub fn server(args: &ServerArgs, kinds: &Arc<Registry>) -> CommandResult {
    let settings = args.given.settings()?;
    let listen = settings.listen().unwrap_or(LISTEN_ANY);
    check_listen(listen, settings.insecure())?;
    let Some(controller) = settings.controller() else {
        return Err(Failure::invalid("no controller is given: use --controller HOST:PORT"));
    };
    let Some(token) = settings.token() else {
        return Err(Failure::invalid(
            "no token is given: use --token HEX with the cluster's token",
        ));
    };
    raise_descriptor_limit();
    let mut signals = signals(&[SIGINT, SIGTERM, SIGHUP])?;
    check_addresses(listen, settings.advertise().as_deref(), controller)
        .map_err(|e| Failure::invalid(e.to_string()))?;
    let (force, asked) = (args.force, token.clone());
    let block_size = |_| block_size_of(controller, &asked);
    let mut options =
        server_options(&settings, force, listen, controller, token, block_size, kinds)?;
    options.unix_dir = unix_dir(&settings);
    let server = start_server(&options)?;
    evacuation::follow(&server, &options);
    let shown = json!({
        "address": server.address().to_string(), "server": server.server().0,
        "pid": std::process::id(),
    });
    args.output.print(&shown, || {
        format!(
            "memory server {} is running at {}: {} in blocks of {}, on {} cores",
            server.server().0,
            server.address(),
            size::show(options.memory),
            size::show(options.block_size),
            options.shards
        )
    });
    end_with_departure(&server, &signals);
    let signal = signals.forever().next();
    if let (Some(SIGTERM), Some(wait)) = (signal, args.drain_on_stop) {
        server.leave();
        end_after(wait, &signals);
        signals.forever().next();
    }
    Ok(())
}

/// The block size of a cluster, or the default if it has no servers. Waits for the controller.
fn block_size_of(controller: SocketAddr, token: &[u8]) -> CommandResult<u64> {
    let mut options = ClientOptions::new(controller.to_string(), token);
    (options.timeout, options.unix) = (PATIENCE, false);
    let status = Client::new(options).status().map_err(|e| {
        let text = format!("the server could not join: {}", e.message);
        Failure::new(e.status, text)
    })?;
    Ok(status.servers.first().map_or(BLOCK_SIZE_DEFAULT, |server| server.block_size))
}

/// Ends the wait for signals when the server has been drained, or when the controller refuses to drain it.
fn end_with_departure(server: &MemoryServer, signals: &Signals) {
    let departures = server.departures().expect("the receiver is taken once");
    let signals = signals.handle();
    in_background("departure", move || {
        if let Ok(Departure::Refused(why)) = departures.recv() {
            eprintln!("honeycomb: this server exits without draining, its data is lost: {why}");
        }
        signals.close();
    });
}

/// Ends the wait for signals after some time.
fn end_after(wait: Duration, signals: &Signals) {
    let signals = signals.handle();
    in_background("patience", move || {
        let clock = Clock::start();
        clock.sleep_until(clock.now() + wait);
        eprintln!(
            "honeycomb: this server exits before it is drained, after {} s; its data is lost",
            wait.as_secs()
        );
        signals.close();
    });
}
