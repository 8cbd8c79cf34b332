//! Starts a controller: one thread.

use crate::answers::Answers;
use crate::service::{ControllerService, Fenced, Note, State, VOLATILE_TERM};
use crate::store::{OpenOptions, Store, StoreError};
use honeycomb_catalog::{Catalog, Config};
use honeycomb_env::unix::UnixDoor;
use honeycomb_env::{AbortOnPanic, Clock, Disk, Entropy, Folder, Mailbox, Net, NetOptions, run};
use honeycomb_types::limits::SERVER_BUFFER_BYTES;
use honeycomb_types::{Marks, Time};
use honeycomb_wire::RootKey;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How a controller is started.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The secret of a cluster that begins here; `None` draws one. One that has a data directory
    /// has its own there.
    pub root_key: Option<[u8; 32]>,
    /// Where its log is kept; `None` keeps none, and what it knew ends with it.
    pub data_dir: Option<PathBuf>,
    /// The directory of the Unix socket that clients of this machine may use; `None` has no socket.
    pub unix_dir: Option<PathBuf>,
    /// How long to poll before sleeping when requests come in quick succession.
    pub spin: Duration,
    /// When blocks grow and merge, of prefixes that do not say.
    pub marks: Marks,
    /// Lease of the prefixes of jobs that do not say, in milliseconds.
    pub lease_ms: u32,
}

/// Why a controller does not start.
#[derive(Debug)]
pub enum StartError {
    /// It cannot listen, or have a thread.
    Listen(io::Error),
    /// Its data directory cannot be used.
    Store(PathBuf, StoreError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Listen(e) => write!(f, "{e}"),
            StartError::Store(path, e) => write!(f, "data directory {}: {e}", path.display()),
        }
    }
}

impl std::error::Error for StartError {}

impl From<io::Error> for StartError {
    fn from(e: io::Error) -> StartError {
        StartError::Listen(e)
    }
}

/// A running controller. Dropping it stops its thread; what it knew is gone then, unless it has a
/// data directory.
pub struct Controller {
    address: SocketAddr,
    token: Vec<u8>,
    near: Option<String>,
    mailbox: Mailbox<Note>,
    thread: Option<JoinHandle<()>>,
}

impl Controller {
    /// Recovers what its data directory has, listens and starts serving. A controller that hears of
    /// a greater term than its own ends its process: another one has taken over.
    pub fn start(options: &ControllerOptions) -> Result<Controller, StartError> {
        let listener = TcpListener::bind(options.listen)?;
        let begin = match &options.data_dir {
            None => volatile(options),
            Some(path) => {
                let refused = |e: StoreError| StartError::Store(path.clone(), e);
                let folder = Folder::open(path).map_err(|error| match error.kind() {
                    io::ErrorKind::ResourceBusy => refused(StoreError::InUse),
                    _ => refused(StoreError::Io { what: "it cannot be opened".into(), error }),
                })?;
                durable(Box::new(folder), options).map_err(refused)?
            }
        };
        Controller::serve(listener, begin, options)
    }

    /// As `start`, with its log on this disk in place of a data directory.
    pub fn start_on(
        disk: Box<dyn Disk>,
        options: &ControllerOptions,
    ) -> Result<Controller, StartError> {
        let listener = TcpListener::bind(options.listen)?;
        let refused = |e: StoreError| StartError::Store(PathBuf::new(), e);
        let begin = durable(disk, options).map_err(refused)?;
        Controller::serve(listener, begin, options)
    }

    fn serve(
        listener: TcpListener,
        begin: Begin,
        options: &ControllerOptions,
    ) -> Result<Controller, StartError> {
        let spin = options.spin;
        let address = listener.local_addr()?;
        let Begin { mut state, root, now } = begin;
        let net_options =
            NetOptions { spin, budget: SERVER_BUFFER_BYTES, connections: Arc::default() };
        let mut net = Net::new(Clock::start_at(now), net_options)?;
        net.listen(listener)?;
        let door = options.unix_dir.as_deref().map(UnixDoor::open).transpose()?;
        let near = door.as_ref().map(|d| d.path().to_owned());
        if let Some(door) = door {
            net.listen_near(door)?;
        }
        let (mailbox, notes) = net.mailbox::<Note>();
        if let Some(store) = &mut state.store {
            let done = mailbox.clone();
            // There is one at a time, so that the ring has room; a loop that ended needs none.
            store.sync_beside(move |synced| drop(done.post(Note::Synced(synced))))?;
        }
        let token = root.token_key().issue(None);
        let thread = std::thread::Builder::new().name("controller".into()).spawn(move || {
            let _guard = AbortOnPanic("controller's");
            let fenced = Fenced::default();
            let service = ControllerService::new(state, &root, fenced.clone());
            run(net, service, notes).expect("the event loop of the controller does not fail");
            let greater = *fenced.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if let Some(term) = greater {
                eprintln!("honeycomb: a controller of term {term} has taken over; this one ends");
                std::process::exit(1);
            }
        })?;
        Ok(Controller { address, token, near, mailbox, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The path of its Unix socket, when it has one.
    pub fn near(&self) -> Option<&str> {
        self.near.as_deref()
    }

    /// The cluster's token.
    pub fn token(&self) -> &[u8] {
        &self.token
    }

    /// Waits until its thread ends, which it does only when a defect ends it.
    pub fn wait(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.mailbox.post(Note::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What a controller begins with: its state, the cluster's key, and what its clock shows.
struct Begin {
    state: State,
    root: RootKey,
    now: Time,
}

fn volatile(options: &ControllerOptions) -> Begin {
    let ControllerOptions { root_key, marks, lease_ms, .. } = *options;
    let hash_seed = Entropy::system().next_u64();
    let catalog =
        Catalog::new(Config { shard: 0, term: VOLATILE_TERM, hash_seed, marks, lease_ms });
    let state = State { catalog, store: None, answers: Answers::default() };
    Begin { state, root: RootKey(root_key.unwrap_or_else(Entropy::secret)), now: Time::ZERO }
}

fn durable(disk: Box<dyn Disk>, options: &ControllerOptions) -> Result<Begin, StoreError> {
    let ControllerOptions { root_key, marks, lease_ms, .. } = *options;
    let (hash_seed, now) = (Entropy::system().next_u64(), Time::ZERO);
    let opened =
        Store::open(disk, OpenOptions { shard: 0, hash_seed, root_key, marks, lease_ms, now })?;
    let (catalog, answers) = (opened.catalog, opened.answers);
    let state = State { catalog, store: Some(opened.store), answers };
    Ok(Begin { state, root: opened.root, now: opened.now })
}
