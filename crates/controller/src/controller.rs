//! Starts a controller: one thread.

use crate::service::{ControllerService, Note};
use honeycomb_catalog::{Catalog, Config};
use honeycomb_env::{AbortOnPanic, Clock, Entropy, Mailbox, Net, NetOptions, run};
use honeycomb_types::Marks;
use honeycomb_types::limits::SERVER_BUFFER_BYTES;
use honeycomb_wire::RootKey;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How a controller is started.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The cluster's secret; `None` draws one.
    pub root_key: Option<[u8; 32]>,
    /// How long to poll before sleeping when requests come in quick succession.
    pub spin: Duration,
    /// When blocks grow and merge, of prefixes that do not say.
    pub marks: Marks,
    /// Lease of the prefixes of jobs that do not say, in milliseconds.
    pub lease_ms: u32,
}

/// A running controller. Dropping it stops its thread; what it knew is gone then.
pub struct Controller {
    address: SocketAddr,
    token: Vec<u8>,
    mailbox: Mailbox<Note>,
    thread: Option<JoinHandle<()>>,
}

impl Controller {
    /// Listens and starts serving.
    pub fn start(options: &ControllerOptions) -> io::Result<Controller> {
        let root = RootKey(options.root_key.unwrap_or_else(Entropy::secret));
        let listener = TcpListener::bind(options.listen)?;
        let address = listener.local_addr()?;
        let net_options = NetOptions {
            spin: options.spin,
            budget: SERVER_BUFFER_BYTES,
            connections: Arc::default(),
        };
        let mut net = Net::new(Clock::start(), net_options)?;
        net.listen(listener)?;
        let (mailbox, notes) = net.mailbox::<Note>();
        let token = root.token_key().issue(None);
        let (marks, lease_ms) = (options.marks, options.lease_ms);
        let thread = std::thread::Builder::new().name("controller".into()).spawn(move || {
            let _guard = AbortOnPanic("controller's");
            let hash_seed = Entropy::system().next_u64();
            let config = Config { shard: 0, term: 1, hash_seed, marks, lease_ms };
            let catalog = Catalog::new(config);
            let service = ControllerService::new(catalog, &root);
            run(net, service, notes).expect("the event loop of the controller does not fail");
        })?;
        Ok(Controller { address, token, mailbox, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
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
