//! Starts a controller, with one thread for each shard.

use crate::advised::Advised;
use crate::answers::Answers;
use crate::service::{
    ControllerNote, ControllerService, Fenced, ShardState, Siblings, VOLATILE_TERM,
};
use crate::store::{OpenOptions, Store, StoreError};
use honeycomb_catalog::{Catalog, Command, Config};
use honeycomb_env::{AbortOnPanic, Clock, Disk, Entropy, Folder};
use honeycomb_transport::unix::UnixDoor;
use honeycomb_transport::{Mailbox, Net, NetOptions, run};
use honeycomb_types::limits::{CONTROLLER_SHARDS_MAX, SERVER_BUFFER_BYTES};
use honeycomb_types::{Marks, PolicyKind, ScaleMarks, Time};
use honeycomb_wire::RootKey;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The options of a controller.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// Address to listen on; port 0 takes a free port.
    pub listen: SocketAddr,
    /// Secret of a new cluster; `None` draws one. An existing data directory contains its own secret.
    pub root_key: Option<[u8; 32]>,
    /// Folder of the log; with `None`, the state ends with the controller.
    pub data_dir: Option<PathBuf>,
    /// Directory of the Unix socket for clients of this machine; `None` for no socket.
    pub unix_dir: Option<PathBuf>,
    /// How long to poll before sleeping while requests arrive in quick succession.
    pub spin: Duration,
    /// Default marks at which blocks grow and merge.
    pub marks: Marks,
    /// Default lease of prefixes, in milliseconds.
    pub lease_ms: u32,
    /// How jobs share memory when it is short.
    pub policy: PolicyKind,
    /// Marks of the advice to add or remove servers.
    pub scale: ScaleMarks,
    /// Milliseconds without a message after which a suspected memory server is declared lost, with its data.
    pub server_loss_ms: u32,
    /// Number of shards, 1 to 64. Each has its own core, jobs, blocks and log. The number is fixed for the
    /// lifetime of a data directory.
    pub shards: u16,
}

/// The reason why a controller cannot start.
#[derive(Debug)]
pub enum StartError {
    /// The controller cannot listen, or cannot start a thread.
    Listen(io::Error),
    /// The data directory cannot be used.
    Store(PathBuf, StoreError),
    /// The data directory was made for another number of shards.
    Shards {
        /// The directory.
        path: PathBuf,
        /// Number of shards of the directory.
        has: u16,
        /// Requested number of shards.
        asked: u16,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Listen(e) => write!(f, "{e}"),
            StartError::Store(path, e) => write!(f, "data directory {}: {e}", path.display()),
            StartError::Shards { path, has, asked } => write!(
                f,
                "data directory {} was created for {has} controller shards, not {asked}; jobs \
                 cannot change their shard: start the controller with {has} shards",
                path.display()
            ),
        }
    }
}

impl std::error::Error for StartError {}

impl From<io::Error> for StartError {
    fn from(e: io::Error) -> StartError {
        StartError::Listen(e)
    }
}

/// A running controller. Dropping it stops its threads; its state is lost then, unless it has a data
/// directory.
pub struct Controller {
    address: SocketAddr,
    token: Vec<u8>,
    near: Option<String>,
    shards: Vec<Running>,
    /// The receiver of advice, in a lock, so that threads can share a controller.
    advice: Mutex<Option<Receiver<Advised>>>,
}

/// The thread of a shard.
struct Running {
    mailbox: Mailbox<ControllerNote>,
    thread: Option<JoinHandle<()>>,
}

impl Controller {
    /// Recovers the state from the data directory, listens and starts serving. A controller that receives a
    /// greater term than its own ends its process: another controller has taken over.
    pub fn start(options: &ControllerOptions) -> Result<Controller, StartError> {
        if options.shards == 0 || options.shards > CONTROLLER_SHARDS_MAX {
            let text = format!("the controller must have 1 to {CONTROLLER_SHARDS_MAX} shards");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text).into());
        }
        let listener = TcpListener::bind(options.listen)?;
        let begin = match &options.data_dir {
            None => volatile(options),
            Some(path) => recovered(path, options)?,
        };
        Controller::serve(listener, begin, options)
    }

    /// As `start`, with one shard, and with this disk for the log instead of a data directory.
    pub fn start_on(
        disk: Box<dyn Disk>,
        options: &ControllerOptions,
    ) -> Result<Controller, StartError> {
        let listener = TcpListener::bind(options.listen)?;
        let refused = |e: StoreError| StartError::Store(PathBuf::new(), e);
        let (state, root, now) = durable(disk, 0, options.root_key, options).map_err(refused)?;
        Controller::serve(listener, InitialState { states: vec![state], root, now }, options)
    }

    fn serve(
        listener: TcpListener,
        begin: InitialState,
        options: &ControllerOptions,
    ) -> Result<Controller, StartError> {
        let spin = options.spin;
        let address = listener.local_addr()?;
        let InitialState { states, root, now } = begin;
        let (clock, shards) = (Clock::start_at(now), states.len());
        let budget = SERVER_BUFFER_BYTES / shards;
        let net_options = NetOptions { spin, budget, connections: Arc::default() };
        let mut nets = Vec::new();
        for _ in 0..shards {
            let net = Net::new(clock, net_options.clone())?;
            let (mailbox, notes) = net.mailbox::<ControllerNote>();
            nets.push((net, mailbox, notes));
        }
        // The first shard accepts all connections, and hands over connections for jobs of other shards.
        nets[0].0.listen(listener)?;
        let door = options.unix_dir.as_deref().map(UnixDoor::open).transpose()?;
        let near = door.as_ref().map(|d| d.path().to_owned());
        if let Some(door) = door {
            nets[0].0.listen_near(door)?;
        }
        let mailboxes: Vec<_> = nets.iter().map(|(_, mailbox, _)| mailbox.clone()).collect();
        let token = root.token_key().issue(None);
        let (root, fenced) = (Arc::new(root), Fenced::default());
        let (advises, advice) = channel();
        let mut controller = Controller {
            address,
            token,
            near,
            shards: Vec::new(),
            advice: Mutex::new(Some(advice)),
        };
        let this_run = Entropy::system().next_u64();
        for (ix, (mut state, (net, mailbox, notes))) in states.into_iter().zip(nets).enumerate() {
            state.catalog.begin_lineage(&format!("{this_run:016x}/{ix}"));
            if let Some(store) = &mut state.store {
                let done = mailbox.clone();
                // One sync runs at a time, so that the mailbox has room. A loop that ended needs no note.
                store.sync_beside(move |synced| drop(done.post(ControllerNote::Synced(synced))))?;
            }
            let name = match shards {
                1 => "controller".to_owned(),
                _ => format!("controller-{ix}"),
            };
            let siblings = Siblings::new(ix as u16, mailboxes.clone());
            // With several shards, no shard knows the use of all of them.
            let advises = Some(advises.clone()).filter(|_| shards == 1);
            let (root, fenced) = (root.clone(), fenced.clone());
            let thread = std::thread::Builder::new().name(name).spawn(move || {
                let _guard = AbortOnPanic("controller's");
                let service = ControllerService::new(state, &root, fenced.clone(), siblings);
                let service = match advises {
                    Some(advises) => service.advises(advises),
                    None => service,
                };
                run(net, service, notes).expect("the event loop of the controller does not fail");
                let greater = *fenced.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                if let Some(term) = greater {
                    eprintln!(
                        "honeycomb: a controller with term {term} has taken over; this controller \
                            exits"
                    );
                    std::process::exit(1);
                }
            })?;
            controller.shards.push(Running { mailbox, thread: Some(thread) });
        }
        Ok(controller)
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The path of its Unix socket, if it has one.
    pub fn near(&self) -> Option<&str> {
        self.near.as_deref()
    }

    /// The cluster's token.
    pub fn token(&self) -> &[u8] {
        &self.token
    }

    /// The receiver of advice to add or remove servers, for the first caller.
    pub fn advice(&self) -> Option<Receiver<Advised>> {
        self.advice.lock().unwrap_or_else(|e| e.into_inner()).take()
    }

    /// Waits until its threads end, which happens only after a defect.
    pub fn wait(mut self) {
        for thread in self.shards.iter_mut().filter_map(|shard| shard.thread.take()) {
            let _ = thread.join();
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        for shard in &self.shards {
            let _ = shard.mailbox.post(ControllerNote::Stop);
        }
        for thread in self.shards.iter_mut().filter_map(|shard| shard.thread.take()) {
            let _ = thread.join();
        }
    }
}

/// The initial state of a controller: the state of each shard, the cluster's key, and the time of its clock.
struct InitialState {
    states: Vec<ShardState>,
    root: RootKey,
    now: Time,
}

fn volatile(options: &ControllerOptions) -> InitialState {
    let ControllerOptions {
        root_key, marks, lease_ms, policy, scale, server_loss_ms, shards, ..
    } = *options;
    let root = RootKey(root_key.unwrap_or_else(Entropy::secret));
    let state = |shard| {
        let (hash_seed, ids) = (Entropy::system().next_u64(), root.id_cipher());
        let term = VOLATILE_TERM;
        let config =
            Config { shard, term, hash_seed, ids, marks, lease_ms, policy, scale, server_loss_ms };
        ShardState { catalog: Catalog::new(config), store: None, answers: Answers::default() }
    };
    InitialState { states: (0..shards).map(state).collect(), root, now: Time::ZERO }
}

/// The log folder of one of several shards.
fn shard_folder(path: &Path, shard: u16) -> PathBuf {
    path.join(format!("shard-{shard}"))
}

/// The number of shards of a directory; `None` for a new directory. With a single shard, the log is in the
/// directory itself.
fn shards_of(path: &Path) -> Option<u16> {
    let names = std::fs::read_dir(path).into_iter().flatten().flatten();
    let logs = |name: &str| name.starts_with("log-") || name.starts_with("snapshot-");
    if names.filter_map(|entry| entry.file_name().into_string().ok()).any(|name| logs(&name)) {
        return Some(1);
    }
    // The folder of the first shard is created last: without it, the cluster was never completely created.
    let shards = (0..CONTROLLER_SHARDS_MAX).filter(|&n| shard_folder(path, n).exists());
    shard_folder(path, 0).exists().then(|| shards.count() as u16)
}

fn recovered(path: &Path, options: &ControllerOptions) -> Result<InitialState, StartError> {
    let asked = options.shards;
    if let Some(has) = shards_of(path).filter(|has| *has != asked) {
        return Err(StartError::Shards { path: path.to_owned(), has, asked });
    }
    let mut begin: Option<InitialState> = None;
    for shard in (0..asked).rev() {
        let path = if asked == 1 { path.to_owned() } else { shard_folder(path, shard) };
        let refused = |e: StoreError| StartError::Store(path.clone(), e);
        let folder = Folder::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => refused(StoreError::InUse),
            _ => refused(StoreError::Io { what: "cannot open it".into(), error }),
        })?;
        // All shards use the key of the first one.
        let key = begin.as_ref().map_or(options.root_key, |begin| Some(begin.root.0));
        let (state, root, now) = durable(Box::new(folder), shard, key, options).map_err(refused)?;
        if begin.as_ref().is_some_and(|begin| begin.root.0 != root.0) {
            let why = "the key belongs to another cluster".to_owned();
            return Err(refused(StoreError::Damaged {
                file: "cluster.key".into(),
                offset: 0,
                why,
            }));
        }
        let begin = begin.get_or_insert(InitialState { states: Vec::new(), root, now });
        begin.states.insert(0, state);
        begin.now = begin.now.max(now);
    }
    let mut begin = begin.expect("there is at least one shard");
    // The shards' clocks stopped at different times and continue from a common time: no lease may expire
    // because of that.
    let (now, mut effects) = (begin.now, Vec::new());
    for state in begin.states.iter_mut().filter(|_| asked > 1) {
        let amnesty = state.catalog.apply(now, Command::Amnesty, &mut effects);
        amnesty.expect("an amnesty cannot be refused");
    }
    let lost = effects.len();
    assert_eq!(lost, 0, "INV-27: an amnesty has {lost} effects, and no server is connected");
    Ok(begin)
}

fn durable(
    disk: Box<dyn Disk>,
    shard: u16,
    root_key: Option<[u8; 32]>,
    options: &ControllerOptions,
) -> Result<(ShardState, RootKey, Time), StoreError> {
    let ControllerOptions { marks, lease_ms, policy, scale, server_loss_ms, .. } = *options;
    let (hash_seed, now) = (Entropy::system().next_u64(), Time::ZERO);
    let opened = Store::open(
        disk,
        OpenOptions {
            shard,
            hash_seed,
            root_key,
            marks,
            lease_ms,
            policy,
            scale,
            server_loss_ms,
            now,
        },
    )?;
    let (catalog, answers) = (opened.catalog, opened.answers);
    let state = ShardState { catalog, store: Some(opened.store), answers };
    Ok((state, opened.root, opened.now))
}
