//! Helpers of the tests of the whole system: clusters of this process, processes of the program, and requests
//! byte by byte.
#![allow(missing_docs, clippy::unwrap_used)] // Helpers of tests are tests.

pub mod process;
pub mod raw;

use honeycomb_client::{Client, ClientOptions, Error, File, JobTicket, Kv};
use honeycomb_controller::{Controller, ControllerOptions};
use honeycomb_env::{Clock, Entropy};
use honeycomb_server::{DiskOptions, MemoryServer, ServerOptions};
use honeycomb_structures::Registry;
use honeycomb_tiers::FlushRoot;
use honeycomb_types::{PolicyKind, PrefixId};
use honeycomb_wire::Status;
use honeycomb_wire::messages::PrefixOptions;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

pub const KIB: u64 = 1024;
/// Nothing that a test waits for takes longer.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A cluster of this process; its memory servers can be dropped one by one.
pub struct Cluster {
    pub servers: Vec<MemoryServer>,
    pub controller: Controller,
}

/// Options that few clusters need.
#[derive(Default)]
struct Extras {
    flush_root: Option<FlushRoot>,
    unix_dir: Option<PathBuf>,
    advertise: Option<String>,
    controller_shards: Option<u16>,
    disks: Vec<DiskOptions>,
    policy: PolicyKind,
}

/// A lower tier in a directory.
pub fn disk(directory: &Path, bytes: u64, class: honeycomb_types::TierClass) -> DiskOptions {
    let place = honeycomb_tiers::Place::Directory(directory.into());
    DiskOptions { place, access: honeycomb_tiers::Access::none(), bytes, class, shape: None }
}

/// As the program runs it: large values are carried off when it is taken out.
fn start_server(options: &ServerOptions) -> MemoryServer {
    let server = MemoryServer::start(options, PATIENCE).unwrap();
    honeycomb_transfer::evacuation::follow(&server, options);
    server
}

/// A memory server of two shards, without disks.
pub fn server_options(
    controller: SocketAddr,
    token: &[u8],
    memory: u64,
    block_size: u64,
) -> ServerOptions {
    ServerOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        advertise: None,
        controller,
        token: token.to_vec(),
        memory,
        disks: Vec::new(),
        block_size,
        shards: 2,
        spin: Duration::ZERO,
        page_reserve: Default::default(),
        flush_root: None,
        unix_dir: None,
        kinds: Arc::default(),
    }
}

/// Writes each panic to standard error at once, once more than the test harness does: that one holds the
/// text back until the test has ended, and a panic of a node's thread ends the process before.
fn report_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("<unnamed>");
            let _ = writeln!(std::io::stderr(), "thread {name}: {panic}");
            usual(panic);
        }));
    });
}

impl Cluster {
    pub fn start(servers: usize, memory: u64, block_size: u64) -> Cluster {
        Cluster::start_with(vec![Arc::default(); servers], memory, block_size)
    }

    /// A cluster whose servers flush to this place.
    pub fn flushing(
        servers: usize,
        memory: u64,
        block_size: u64,
        flush_root: Option<FlushRoot>,
    ) -> Cluster {
        let extras = Extras { flush_root, ..Extras::default() };
        Cluster::start_all(vec![Arc::default(); servers], memory, block_size, extras)
    }

    /// A cluster with so many controller shards.
    pub fn sharded(shards: u16, servers: usize, memory: u64, block_size: u64) -> Cluster {
        let extras = Extras { controller_shards: Some(shards), ..Extras::default() };
        Cluster::start_all(vec![Arc::default(); servers], memory, block_size, extras)
    }

    /// A cluster of one server that has a disk of so many bytes in this directory.
    pub fn with_disk(memory: u64, block_size: u64, directory: &Path, bytes: u64) -> Cluster {
        Cluster::sharing(PolicyKind::FirstCome, memory, block_size, directory, bytes)
    }

    /// A cluster of one server with these lower tiers.
    pub fn with_tiers(memory: u64, block_size: u64, disks: Vec<DiskOptions>) -> Cluster {
        let extras = Extras { disks, ..Extras::default() };
        Cluster::start_all(vec![Arc::default()], memory, block_size, extras)
    }

    /// The same, where memory is shared out by a policy.
    pub fn sharing(
        policy: PolicyKind,
        memory: u64,
        block_size: u64,
        directory: &Path,
        bytes: u64,
    ) -> Cluster {
        let class = honeycomb_types::TierClass::Nvme;
        let disks = vec![disk(directory, bytes, class)];
        let extras = Extras { disks, policy, ..Extras::default() };
        Cluster::start_all(vec![Arc::default()], memory, block_size, extras)
    }

    /// The same, with a flush root.
    pub fn flushing_with_disk(
        memory: u64,
        block_size: u64,
        (directory, bytes): (&Path, u64),
        flush_root: FlushRoot,
    ) -> Cluster {
        let class = honeycomb_types::TierClass::Nvme;
        let disks = vec![disk(directory, bytes, class)];
        let extras = Extras { disks, flush_root: Some(flush_root), ..Extras::default() };
        Cluster::start_all(vec![Arc::default()], memory, block_size, extras)
    }

    /// With a memory server for each of these sets of kinds.
    pub fn start_with(kinds: Vec<Arc<Registry>>, memory: u64, block_size: u64) -> Cluster {
        Cluster::start_all(kinds, memory, block_size, Extras::default())
    }

    /// One whose nodes have Unix sockets in this directory.
    pub fn near(servers: usize, memory: u64, block_size: u64, sockets: &Path) -> Cluster {
        let kinds = vec![Arc::default(); servers];
        let extras = Extras { unix_dir: Some(sockets.into()), ..Extras::default() };
        Cluster::start_all(kinds, memory, block_size, extras)
    }

    /// A cluster with one memory server that advertises this address to clients.
    pub fn behind(address: SocketAddr, memory: u64, block_size: u64) -> Cluster {
        let extras = Extras { advertise: Some(address.to_string()), ..Extras::default() };
        Cluster::start_all(vec![Arc::default()], memory, block_size, extras)
    }

    fn start_all(
        kinds: Vec<Arc<Registry>>,
        memory: u64,
        block_size: u64,
        extras: Extras,
    ) -> Cluster {
        report_panics();
        let Extras { flush_root, unix_dir, advertise, controller_shards, disks, policy } = extras;
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let spin = Duration::ZERO;
        let options = ControllerOptions {
            listen,
            root_key: None,
            spin,
            data_dir: None,
            unix_dir: unix_dir.clone(),
            marks: honeycomb_types::Marks::default(),
            lease_ms: 1000,
            policy,
            scale: Default::default(),
            server_loss_ms: honeycomb_types::limits::SERVER_LOSS_DEFAULT_MS,
            shards: controller_shards.unwrap_or(1),
        };
        let controller = Controller::start(&options).unwrap();
        let options = |kinds| ServerOptions {
            listen,
            advertise: advertise.clone(),
            disks: disks.clone(),
            spin,
            flush_root: flush_root.clone(),
            unix_dir: unix_dir.clone(),
            kinds,
            ..server_options(controller.address(), controller.token(), memory, block_size)
        };
        let servers = kinds.into_iter().map(|k| start_server(&options(k))).collect();
        Cluster { servers, controller }
    }

    /// One memory server more.
    pub fn add(&mut self, memory: u64, block_size: u64) {
        self.add_with(memory, block_size, Vec::new());
    }

    /// Adds a server with these lower tiers.
    pub fn add_with(&mut self, memory: u64, block_size: u64, disks: Vec<DiskOptions>) {
        let (controller, token) = (self.controller.address(), self.controller.token());
        let options = server_options(controller, token, memory, block_size);
        self.servers.push(start_server(&ServerOptions { disks, ..options }));
    }

    pub fn client(&self, token: &[u8], task: PrefixId) -> Client {
        let mut options = ClientOptions::new(self.controller.address().to_string(), token);
        options.task_prefix = task;
        Client::new(options)
    }

    /// A job, and a client with its token.
    pub fn job(&self, name: &str) -> (Client, JobTicket) {
        let cluster = self.client(self.controller.token(), PrefixId(0));
        let ticket = cluster.register_job(name, LEASE_MS, 0).unwrap();
        (self.client(&ticket.token, PrefixId(0)), ticket)
    }
}

/// A lease longer than any test on any machine: nobody renews a test's leases.
pub const LEASE_MS: u32 = 3_600_000;

pub fn prefix(client: &Client, job: &JobTicket, path: &str, lease_ms: u32) -> PrefixId {
    let options = PrefixOptions { lease_ms, ..PrefixOptions::default() };
    client.create_prefix(job.job, path, &[], options).unwrap()
}

pub fn kv(client: &Client, job: &JobTicket, address: &str, blocks: u32) -> Kv {
    client.create_kv(job.job, address, blocks, false).unwrap()
}

pub fn file(client: &Client, job: &JobTicket, address: &str) -> File {
    client.create_file(job.job, address, 1, false).unwrap()
}

pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut entropy = Entropy::seeded(seed);
    (0..length).map(|_| entropy.next_u64() as u8).collect()
}

/// A directory of a test's own, which need not be there yet; gone when this is dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    #[allow(clippy::new_without_default)] // each is another path
    pub fn new() -> Scratch {
        let name = format!("honeycomb-test-{:016x}", Entropy::system().next_u64());
        Scratch(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn status<T: std::fmt::Debug>(result: Result<T, Error>) -> Status {
    result.unwrap_err().status
}

/// Tells loops beside a test to end, also when the test fails: a scope would wait for them for ever.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Waits for something that the cluster does by itself, and fails when it does not.
pub fn eventually(what: &str, done: impl FnMut() -> bool) {
    eventually_within(PATIENCE, what, done);
}

/// Waits at most this long for something that a cluster does by itself, and fails when it does not.
pub fn eventually_within(patience: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let clock = Clock::start();
    while !done() {
        let waited = clock.now().as_millis();
        assert!(waited < patience.as_millis() as u64, "never happened: {what}");
        clock.sleep_until(clock.now() + Duration::from_millis(5));
    }
}

/// A program of this repository in the profile of the calling test, built from the present sources: a test of
/// another package does not build it.
pub fn program(name: &str) -> PathBuf {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    let folder = PROGRAMS.get_or_init(|| {
        // Cargo runs TARGET/PROFILE/deps/TEST.
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).unwrap();
        let mut build = Command::new(env!("CARGO"));
        build.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet", "--locked"]);
        // The selection of packages is that of `make unit`, so that its build is reused.
        build.args(["--workspace", "--exclude", "honeycomb-python"]);
        for program in ["honeycomb", "raw-blocks", "queue-soak", "tier-soak", "elastic-soak"] {
            build.args(["--bin", program]);
        }
        build.arg("--target-dir").arg(profile.parent().unwrap());
        // Build scripts that read these variables of the test's package, which `cargo test` sets, would run
        // again, and half of the dependencies would be built anew for each package with tests.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                build.env_remove(name);
            }
        }
        // The folder is named after the profile, except for `dev`, whose folder is `debug`.
        let folder = profile.file_name().unwrap().to_str().unwrap();
        build.args(["--profile", if folder == "debug" { "dev" } else { folder }]);
        assert!(build.status().unwrap().success(), "the programs cannot be built");
        profile.to_owned()
    });
    folder.join(name)
}
