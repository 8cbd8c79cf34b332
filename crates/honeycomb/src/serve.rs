//! `start`, `controller`, `server`.

use crate::cluster::{ClusterFile, ClusterLock};
use crate::config::{ForController, ForServer, ForStart, Given, Origin, Settings};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, hex};
use crate::stop::{Held, in_background};
use crate::wait::seconds;
use crate::{carry, machine, scale, size};
use clap::Args;
use honeycomb_controller::{Controller, ControllerOptions, StartError, StoreError};
use honeycomb_env::Clock;
use honeycomb_server::{Departure, MemoryServer, ServerOptions};
use honeycomb_structures::Registry;
use honeycomb_transport::unix::UnixDoor;
use honeycomb_types::limits::{BLOCK_SIZE_DEFAULT, BLOCK_SIZE_MIN};
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

/// How long a node that starts waits for the controller.
const PATIENCE: Duration = Duration::from_secs(10);
/// A pool is cut into about this many blocks when nobody says how large they are.
const BLOCKS_WANTED: u64 = 512;
/// Where a controller listens when nobody says.
pub const LISTEN_DEFAULT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7420);
/// A free port of this machine.
const LISTEN_ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Starts a controller and a memory server on this machine, in one process.
///
/// It leaves a file by which later commands of the same user find it, which holds its token. It runs until
/// Ctrl-C, SIGTERM, SIGHUP or `honeycomb stop`. Each of these ends all jobs and flushes prefixes with
/// --flush-to or --persist first (see `honeycomb stop`); a second signal ends it at once. All other data is
/// in memory and ends with the process. With --data-dir the next start has the same token. Only one cluster
/// of a user has that file; another is refused.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb start --background
  honeycomb start --background --memory 64MiB --block-size 64KiB --shards 1
  honeycomb start                        # in the foreground; Ctrl-C ends it
  honeycomb start --listen 127.0.0.1:0 --background --json")]
pub struct StartArgs {
    /// Go on in the background; `honeycomb stop` ends it
    #[arg(long, conflicts_with = "embedded")]
    background: bool,
    /// For programs: end when standard input closes, listen on a free port of this machine, leave no
    /// cluster file, and tell the token in the first line with --json
    #[arg(long)]
    embedded: bool,
    /// Accept more memory than this machine has
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
/// It prints the token that servers and clients need, and runs until Ctrl-C, SIGTERM or SIGHUP. It keeps a log in
/// the folder of its listen address below $XDG_STATE_HOME/honeycomb/controller (~/.local/state), or in --data-dir:
/// started again at the same address it has the same token and goes on, and jobs notice nothing. At a free port
/// (port 0), and with --volatile, it keeps none. Its jobs then end with it, so that it ends all jobs first
/// and waits for their flushes, as `honeycomb stop` does.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb controller
  honeycomb controller --listen 127.0.0.1:0 --json
  honeycomb controller --listen 127.0.0.1:0 --data-dir ./controller
  honeycomb controller --volatile
  honeycomb controller --listen 0.0.0.0:0 --insecure  # from other machines")]
pub struct ControllerArgs {
    /// Keep no log, although the address has a port
    #[arg(long)]
    volatile: bool,
    #[command(flatten)]
    given: Given<ForController>,
    #[command(flatten)]
    output: Output,
}

/// Starts a memory server and joins a controller.
///
/// All servers of a cluster have one block size, 128 MiB unless it is said. It runs until Ctrl-C or
/// SIGTERM; its blocks and what they hold end with it, unless it is taken out first: by `honeycomb
/// drain`, or at SIGTERM with --drain-on-stop. CONTROLLER and TOKEN stand for what
/// `honeycomb controller` printed.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb server --controller $CONTROLLER --token $TOKEN --memory 1GiB
  HONEYCOMB_TOKEN=$TOKEN honeycomb server --controller $CONTROLLER --shards 1
  honeycomb server --controller $CONTROLLER --token $TOKEN --drain-on-stop=60")]
pub struct ServerArgs {
    /// Accept more memory than this machine has
    #[arg(long)]
    force: bool,
    /// At SIGTERM, be taken out first: end when nothing is here any more, or after SECONDS
    #[arg(long, value_name = "SECONDS", value_parser = seconds, num_args = 0..=1,
          require_equals = true, default_missing_value = "30")]
    drain_on_stop: Option<Duration>,
    #[command(flatten)]
    given: Given<ForServer>,
    #[command(flatten)]
    output: Output,
}

/// What a memory server is started with, as far as settings tell it.
fn server_options(
    settings: &Settings,
    force: bool,
    listen: SocketAddr,
    controller: SocketAddr,
    token: Vec<u8>,
    block_size: impl FnOnce(u64) -> u64,
    kinds: &Arc<Registry>,
) -> Outcome<ServerOptions> {
    let memory = match settings.memory() {
        Some(memory) if force => memory,
        Some(memory) => within_machine(memory)?,
        None => machine::memory()? / 2,
    };
    let block_size = settings.block_size().unwrap_or_else(|| block_size(memory));
    // As many cores as there are, but not more than have a block each.
    let shards = settings.shards().unwrap_or_else(|| {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get().min(64));
        cores.min((memory / block_size).max(1) as usize) as u8
    });
    if memory / block_size / shards as u64 == 0 {
        let text = format!(
            "memory of {} holds no block of {} for each of {shards} cores: give more --memory, \
             smaller blocks (--block-size) or fewer cores (--shards)",
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
        flush_root: settings.flush_root(),
        unix_dir: None,
        kinds: kinds.clone(),
    })
}

/// Where the Unix socket of a node is to be. A directory that nobody named and that cannot be used is
/// no reason not to start, but is told: clients have TCP then.
fn unix_dir(settings: &Settings) -> Option<PathBuf> {
    let directory = settings.unix_dir()?;
    if *settings.origin("unix_dir") == Origin::Default
        && let Err(e) = UnixDoor::open(&directory)
    {
        eprintln!("honeycomb: no Unix socket for clients of this machine, who use TCP: {e}");
        return None;
    }
    Some(directory)
}

/// Refuses memory that the machine does not have: the kernel would end the process when it is used.
fn within_machine(memory: u64) -> Outcome<u64> {
    let there = machine::memory()?;
    if memory <= there {
        return Ok(memory);
    }
    Err(Failure::invalid(format!(
        "memory of {} is more than the {} that this machine, or the control group of this process, \
         has: blocks are never swapped out, and the kernel would end the server when they are \
         written. Give less --memory, or --force it",
        size::show(memory),
        size::show(there)
    )))
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
    Err(Failure::invalid(format!(
        "{listen} can be reached from other machines and nothing is encrypted: --insecure allows it"
    )))
}

/// Takes the cluster file for this process; `AlreadyExists` when a cluster has it.
fn only_cluster(path: &Path) -> Outcome<ClusterLock> {
    let refused = |running: ClusterFile| {
        let text = format!(
            "a cluster is running here already: {} (process {}); `honeycomb stop` ends it",
            running.address, running.pid
        );
        Failure::new(Status::AlreadyExists, text)
    };
    if let Some(running) = ClusterFile::read(path)? {
        return Err(refused(running));
    }
    let lock = ClusterLock::take(path)?;
    // Another cluster may have started, and given the lock up, since the file was read.
    match ClusterFile::read(path)? {
        Some(running) => Err(refused(running)),
        None => Ok(lock),
    }
}

/// `honeycomb start`.
pub fn start(args: &StartArgs, kinds: &Arc<Registry>) -> Outcome {
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
    // What is wrong with the settings is told before anything listens.
    server_options(&settings, args.force, data, listen, Vec::new(), fitting_block_size, kinds)?;
    // A child that dies with its parent has nothing to come back for.
    let data_dir = settings.data_dir().filter(|_| !args.embedded);
    let unix_dir = unix_dir(&settings);
    let durable = data_dir.is_some();
    let controller = start_controller(listen, &settings, data_dir, unix_dir.clone())?;
    let near = reachable(controller.address());
    let token = controller.token().to_vec();
    let mut options =
        server_options(&settings, args.force, data, near, token, fitting_block_size, kinds)?;
    options.unix_dir = unix_dir;
    if args.embedded {
        options.advertise = None;
    }
    let server = start_server(&options)?;
    carry::follow(&server, &options);
    let file = ClusterFile::of_this_process(near.to_string(), controller.token())?;
    if args.embedded {
        announce_embedded(args.output, &file);
    } else {
        file.write(&path)?;
        let output = Output { json: args.output.json || args.child };
        announce(output, &file, &path, durable, &options);
    }
    scale::follow(controller.advice().expect("nobody has asked before"), settings.scale_hook());
    let sockets = [controller.near(), server.near()].into_iter().flatten().map(PathBuf::from);
    let own = lock.iter().flat_map(|lock| [path.clone(), lock.path().to_owned()]);
    let held = Held {
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

/// The signals that end a node. One that tells that a file has reached the limit of its process
/// (`ulimit -f`) ends none: the write that was too much is refused, like that to a full disk.
fn signals(which: &[i32]) -> Outcome<Signals> {
    let heard = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGXFSZ, heard)
        .and_then(|_| Signals::new(which))
        .map_err(|e| Failure::io("signals cannot be waited for", &e))
}

fn start_server(options: &ServerOptions) -> Outcome<MemoryServer> {
    MemoryServer::start(options, PATIENCE).map_err(|e| match e.kind() {
        std::io::ErrorKind::InvalidInput => Failure::invalid(e.to_string()),
        std::io::ErrorKind::Other => Failure::new(Status::Unavailable, e.to_string()),
        _ => Failure::io("the memory server cannot start", &e),
    })
}

/// What is told of a cluster that others can find: the token stays in the file.
fn told(file: &ClusterFile, path: &Path, durable: bool) -> Value {
    json!({
        "address": file.address, "pid": file.pid, "started": file.started,
        "cluster_file": path.to_string_lossy(), "durable": durable,
    })
}

/// The data that ends with a cluster, for its first line.
fn lasts(durable: bool) -> &'static str {
    match durable {
        true => ", volatile: its data ends with it; jobs and token are kept",
        false => ", volatile: jobs and data end with it",
    }
}

fn announce(
    output: Output,
    file: &ClusterFile,
    path: &Path,
    durable: bool,
    options: &ServerOptions,
) {
    output.tell(&told(file, path, durable), || {
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

/// The one who embeds it needs the token, and has no file to find it in.
fn announce_embedded(output: Output, file: &ClusterFile) {
    if output.json {
        say!("{}", serde_json::to_string(file).expect("four plain fields"));
    } else {
        say!("honeycomb is running at {}, token {}", file.address, file.token);
    }
}

/// Starts the same command again, in a process group of its own: Ctrl-C in this terminal is not
/// meant for it. It inherits the environment, so it finds the same settings, and says itself what is
/// wrong.
fn start_in_background(args: &StartArgs, path: &Path) -> Outcome {
    let program = std::env::current_exe().map_err(|e| Failure::io("this program", &e))?;
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
    let mut child = child.map_err(|e| Failure::io("cannot start", &e))?;
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    let read = std::io::BufReader::new(stdout).read_line(&mut line);
    read.map_err(|e| Failure::io("what the cluster says", &e))?;
    if line.is_empty() {
        if let Some(mut said) = child.stderr.take() {
            let copied = std::io::copy(&mut said, &mut std::io::stderr());
            copied.map_err(|e| Failure::io("what the cluster says", &e))?;
        }
        let ended = child.wait().map_err(|e| Failure::io("the cluster", &e))?;
        return match ended.code() {
            Some(code @ 1..=255) => Err(Failure::of_child(code as u8)),
            _ => Err(format!("the cluster did not start: {ended}").into()),
        };
    }
    let value: Value = serde_json::from_str(&line)
        .map_err(|e| format!("the cluster said something unexpected: {e}"))?;
    args.output.tell(&value, || {
        format!(
            "honeycomb is running at {} (process {}){}\n  token       in {}\n  stop        honeycomb \
             stop",
            value["address"].as_str().unwrap_or_default(),
            value["pid"],
            lasts(value["durable"] == true),
            path.display()
        )
    });
    Ok(())
}

/// Whether standard error is a pipe: whoever reads it waits for its end, and a cluster that has it
/// too would keep it open for good. A terminal or a file is shared, so that it has the message of a
/// defect.
fn stderr_is_awaited() -> bool {
    use rustix::fs::{FileType, fstat};
    let kind = fstat(std::io::stderr()).map(|found| FileType::from_raw_mode(found.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket))
}

/// Takes as many file descriptors as the system allows: each connection needs one.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // The soft limit may be raised to the hard one by anybody; where not, fewer clients fit.
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
) -> Outcome<Controller> {
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
                "{listen} is taken; --listen 127.0.0.1:0 takes any free port, and `honeycomb \
                 doctor` may know who has it"
            );
            Failure::new(Status::AlreadyExists, text)
        }
        StartError::Listen(e) => Failure::io(format_args!("cannot listen on {listen}"), &e),
        StartError::Shards { .. } => Failure::invalid(e.to_string()),
        StartError::Store(_, StoreError::InUse) => {
            Failure::new(Status::AlreadyExists, e.to_string())
        }
        StartError::Store(..) => {
            let text = format!("{e}; --data-dir names another folder for the log");
            Failure::new(Status::LogFailed, text)
        }
    })
}

/// The warning of a controller that keeps no log.
const VOLATILE: &str = "honeycomb: this controller keeps no log (port 0, or --volatile; --data-dir keeps one): \
    when it is started again, every job and all data is gone, and it has another token";

/// Where a controller keeps its log: in the named folder, else in that of its address below the user's state
/// folder; nowhere when it is volatile, or listens on port 0.
fn log_folder(volatile: bool, listen: SocketAddr, settings: &Settings) -> Outcome<Option<PathBuf>> {
    let named = settings.data_dir();
    if volatile {
        return match settings.origin("data_dir") {
            Origin::Flag => {
                Err(Failure::invalid("--volatile keeps no log, --data-dir does: say one"))
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
            "no HOME and no XDG_STATE_HOME, so that there is no folder for the controller's log: say \
             --data-dir DIR, or --volatile to keep none",
        )),
    }
}

/// `honeycomb controller`.
pub fn controller(args: &ControllerArgs) -> Outcome {
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
    let told = json!({
        "address": address.to_string(), "token": token, "pid": std::process::id(),
        "durable": durable, "log": log,
    });
    if !durable {
        eprintln!("{VOLATILE}");
    }
    let kept = log.map_or("none".to_owned(), |path| format!("in {path}"));
    args.output.tell(&told, || {
        format!(
            "the controller is running at {address}\n  token       {token}\n  log         {kept}\n  add \
             memory  honeycomb server --controller {address} --token ..."
        )
    });
    scale::follow(controller.advice().expect("nobody has asked before"), settings.scale_hook());
    if durable {
        // The next controller of this log goes on with all jobs.
        signals.forever().next();
        return Ok(());
    }
    let held = Held {
        address: reachable(address).to_string(),
        token: controller.token().to_vec(),
        files: controller.near().map(PathBuf::from).into_iter().collect(),
        patience: settings.stop_wait(),
    };
    held.await_end(signals, false)
}

/// `honeycomb server`.
pub fn server(args: &ServerArgs, kinds: &Arc<Registry>) -> Outcome {
    let settings = args.given.settings()?;
    let listen = settings.listen().unwrap_or(LISTEN_ANY);
    check_listen(listen, settings.insecure())?;
    let Some(controller) = settings.controller() else {
        return Err(Failure::invalid("which controller? say --controller HOST:PORT"));
    };
    let Some(token) = settings.token() else {
        return Err(Failure::invalid("a server needs the cluster's token: --token HEX"));
    };
    raise_descriptor_limit();
    let mut signals = signals(&[SIGINT, SIGTERM, SIGHUP])?;
    let mut options = server_options(
        &settings,
        args.force,
        listen,
        controller,
        token,
        |_| BLOCK_SIZE_DEFAULT,
        kinds,
    )?;
    options.unix_dir = unix_dir(&settings);
    let server = start_server(&options)?;
    carry::follow(&server, &options);
    let told = json!({
        "address": server.address().to_string(), "server": server.server().0,
        "pid": std::process::id(),
    });
    args.output.tell(&told, || {
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

/// Ends the wait for signals when the server was taken out, and when it is not although it wants to.
fn end_with_departure(server: &MemoryServer, signals: &Signals) {
    let departures = server.departures().expect("nobody has asked before");
    let signals = signals.handle();
    in_background("departure", move || {
        if let Ok(Departure::Refused(why)) = departures.recv() {
            eprintln!("honeycomb: this server ends with what it holds: {why}");
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
            "honeycomb: this server ends with what it still holds after {} s",
            wait.as_secs()
        );
        signals.close();
    });
}
