//! Idle connections, by node and shard, and the session that they belong to.

use crate::call::LaneAllocator;
use crate::socket::Wait;
use crate::transport::{ClientIdentity, ExchangeFailure, ListenAddress, Transport};
use honeycomb_env::{Clock, Entropy};
use honeycomb_types::SessionId;
use honeycomb_wire::Status;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Idle connections kept for each node and shard.
pub(crate) const IDLE_MAX: usize = 64;

/// A request number with this bit identifies the same request on every connection of the session
/// (PROTOCOL.md, section 9).
pub(crate) const NAMED_FOR_GOOD: u64 = 1 << 63;

/// A node and one of its shards.
pub(crate) type ShardAddress = (String, u8);

/// The connections of one client. Any thread may take one and has it exclusively until it returns
/// it.
pub(crate) struct ConnectionPool {
    identity: ClientIdentity,
    clock: Clock,
    spin: Duration,
    /// Whether to switch to the Unix socket of a node if it has one that can be reached.
    unix: bool,
    /// The process that the sockets belong to: a forked child must not touch them.
    process: AtomicU32,
    /// Whether any connection was ever made.
    connected: AtomicBool,
    /// Number of changes requested from the controller, used to number them.
    changes: AtomicU64,
    inner: Mutex<PoolInner>,
}

struct PoolInner {
    lanes: LaneAllocator,
    idle: HashMap<ShardAddress, Vec<Transport>>,
    /// State of the nodes' Unix sockets, by the address of the node.
    near: HashMap<String, Near>,
}

/// The Unix socket that a node announced.
#[derive(Clone, PartialEq, Eq)]
enum Near {
    /// The socket was reached.
    Reached(String),
    /// The socket was not reached: the node is on another machine, or belongs to another user.
    Out(String),
}

fn new_session() -> SessionId {
    let mut entropy = Entropy::system();
    // Zero is not a session.
    SessionId((entropy.next_u64() as u128) << 64 | entropy.next_u64() as u128 | 1)
}

impl ConnectionPool {
    pub fn new(
        identity: ClientIdentity,
        clock: Clock,
        spin: Duration,
        unix: bool,
    ) -> ConnectionPool {
        let lanes = LaneAllocator::new(new_session());
        let inner = PoolInner { lanes, idle: HashMap::new(), near: HashMap::new() };
        let process = AtomicU32::new(std::process::id());
        let connected = AtomicBool::new(false);
        let changes = AtomicU64::new(0);
        ConnectionPool {
            identity,
            clock,
            spin,
            unix,
            process,
            connected,
            changes,
            inner: Mutex::new(inner),
        }
    }

    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Starts an operation. In a forked child, the first operation finds that the connections and
    /// the session belong to the parent, and starts new ones (decision 15). Checked once per
    /// operation and not at every step, because each check is a system call; a thread does not fork
    /// in between.
    pub fn enter(&self) {
        let process = std::process::id();
        if self.process.load(Ordering::Relaxed) != process {
            let mut inner = self.inner();
            // Under the lock: if two threads of the child race, one starts the session for both.
            if self.process.swap(process, Ordering::Relaxed) == process {
                return;
            }
            let parent = inner.lanes.session;
            inner.lanes = LaneAllocator::new(new_session());
            assert_ne!(
                inner.lanes.session, parent,
                "INV-16: a forked child has its parent's lanes"
            );
            // Closing the copies of the descriptors does not end the parent's connections.
            inner.idle.clear();
        }
    }

    fn inner(&self) -> MutexGuard<'_, PoolInner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Runs `f` with the session's lane numbers.
    pub fn with_lanes<T>(&self, f: impl FnOnce(&mut LaneAllocator) -> T) -> T {
        f(&mut self.inner().lanes)
    }

    /// A connection to a node, an idle one if possible.
    pub fn take(
        &self,
        place: &ShardAddress,
        wait: &mut Wait<'_>,
    ) -> Result<Transport, ExchangeFailure> {
        if let Some(transport) = self.inner().idle.get_mut(place).and_then(Vec::pop) {
            return Ok(transport);
        }
        self.open(place, wait)
    }

    /// As `take`, for a memory server.
    pub fn take_server(
        &self,
        place: &ShardAddress,
        wait: &mut Wait<'_>,
    ) -> Result<Transport, ExchangeFailure> {
        self.take(place, wait).map_err(|failure| not_ours(&place.0, failure))
    }

    /// Opens a new connection to a memory server.
    pub fn open_server(
        &self,
        place: &ShardAddress,
        wait: &mut Wait<'_>,
    ) -> Result<Transport, ExchangeFailure> {
        self.open(place, wait).map_err(|failure| not_ours(&place.0, failure))
    }

    fn open(
        &self,
        place: &ShardAddress,
        wait: &mut Wait<'_>,
    ) -> Result<Transport, ExchangeFailure> {
        let made = self.nearest(place, wait)?;
        self.connected.store(true, Ordering::Relaxed);
        Ok(made)
    }

    /// Opens a connection over the node's Unix socket if that can be reached, else over TCP. The
    /// node itself announces the socket, so the first connection uses TCP.
    fn nearest(
        &self,
        (address, shard): &ShardAddress,
        wait: &mut Wait<'_>,
    ) -> Result<Transport, ExchangeFailure> {
        let mut open = |door| {
            let session = self.inner().lanes.session;
            Transport::open(door, *shard, &self.identity, session, self.clock, self.spin, wait)
        };
        let known = self.inner().near.get(address).cloned();
        if let Some(Near::Reached(path)) = &known {
            match open(ListenAddress::Unix(path)) {
                Ok(made) => return Ok(made),
                Err(refused @ ExchangeFailure::Refused(_)) => return Err(refused),
                // The node may have restarted with another socket: the next connection asks it.
                Err(_) => drop(self.inner().near.remove(address)),
            }
        }
        let made = open(ListenAddress::Tcp(address))?;
        let path = made.hello.near.clone();
        if !self.unix || path.is_empty() || known == Some(Near::Out(path.clone())) {
            return Ok(made);
        }
        let (made, near) = match open(ListenAddress::Unix(&path)) {
            Ok(nearer) => (nearer, Near::Reached(path)),
            Err(_) => (made, Near::Out(path)),
        };
        self.inner().near.insert(address.clone(), near);
        Ok(made)
    }

    /// The Unix sockets that nodes announced, by address, and whether each can be reached from
    /// here.
    pub fn near(&self) -> Vec<(String, String, bool)> {
        let inner = self.inner();
        let sockets = inner.near.iter().map(|(address, near)| match near {
            Near::Reached(path) => (address.clone(), path.clone(), true),
            Near::Out(path) => (address.clone(), path.clone(), false),
        });
        sockets.collect()
    }

    /// The number of a change requested from the controller: unique in the session, whichever
    /// connection carries it.
    pub fn number_of_change(&self) -> u64 {
        let number = self.changes.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(number < NAMED_FOR_GOOD, "INV-16: {number} changes have used up their numbers");
        NAMED_FOR_GOOD | number
    }

    /// Whether this client has ever reached any node.
    pub fn has_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Returns a connection to the pool after a complete exchange.
    pub fn give(&self, place: &ShardAddress, transport: Transport) {
        assert!(transport.is_idle(), "INV-16: a connection with a request under way is given back");
        let mut inner = self.inner();
        match inner.idle.get_mut(place) {
            Some(idle) if idle.len() >= IDLE_MAX => {}
            Some(idle) => idle.push(transport),
            None => {
                inner.idle.insert(place.clone(), vec![transport]);
            }
        }
    }

    /// Drops the idle connections to a node that was found dead.
    pub fn forget(&self, address: &str) {
        self.inner().idle.retain(|(a, _), _| a != address);
    }
}

/// A handshake with a memory server has failed. Another process, also one of another cluster, may listen at
/// the address of a server that has ended: only the controller knows what became of the data.
fn not_ours(address: &str, failure: ExchangeFailure) -> ExchangeFailure {
    match failure {
        ExchangeFailure::Refused(e)
            if matches!(e.status, Status::Unauthenticated | Status::BadFrame) =>
        {
            let why = format!("{address} does not answer as a memory server of this cluster: {e}");
            ExchangeFailure::Lost { sent: false, why }
        }
        failure => failure,
    }
}
