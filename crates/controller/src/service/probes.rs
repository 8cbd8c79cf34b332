//! The meaning of a server's closed connection.
//!
//! A connection closes when its process ends, but also on a network failure. The controller therefore probes
//! the server's address: if the connection is refused, or another process answers there, the process has
//! ended, and its data is lost. Any other result (the server itself answers, the address does not answer, its
//! name is unknown) decides nothing: the server is suspected until it reconnects, or until it has been silent
//! for too long (INV-56). A restarted controller probes the addresses of all servers in its log.
//!
//! A probe may block, so that each server without a connection has a thread for it.

use super::{ControllerNote, ControllerService};
use honeycomb_catalog::Command;
use honeycomb_transport::{Mailbox, has_ended};
use honeycomb_types::{ServerId, Time};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How long one attempt to connect may take, and one answer.
const PATIENCE: Duration = Duration::from_millis(250);
/// The pause before the second attempt: an ending process closes its sockets one after the other. It doubles
/// up to `AGAIN_MAX`.
const AGAIN_MIN: Duration = Duration::from_millis(25);
const AGAIN_MAX: Duration = Duration::from_millis(800);

/// Threads that probe the addresses of servers without a connection; each ends when its sender is dropped.
#[derive(Default)]
pub(crate) struct Probes(HashMap<ServerId, Sender<()>>);

impl Probes {
    /// `token` is the cluster's.
    fn begin(
        &mut self,
        (server, address): (ServerId, Arc<str>),
        token: Vec<u8>,
        mailbox: Mailbox<ControllerNote>,
    ) {
        let (end, ended) = channel();
        let ask = move || {
            let has_ended = || has_ended(&address, server, &token, PATIENCE);
            ask(server, has_ended, &mailbox, &ended)
        };
        // Without a thread, the server is declared lost after the time of silence.
        if std::thread::Builder::new().name("probe".into()).spawn(ask).is_ok() {
            let before = self.0.insert(server, end);
            assert!(before.is_none(), "INV-56: two threads probe server {server}");
        }
    }

    /// Servers whose addresses are probed.
    pub(crate) fn servers(&self) -> impl Iterator<Item = ServerId> + '_ {
        self.0.keys().copied()
    }

    /// Ends the probes of a server that is back or lost.
    pub(crate) fn end(&mut self, server: ServerId) {
        self.0.remove(&server);
    }
}

fn ask(
    server: ServerId,
    has_ended: impl Fn() -> bool,
    mailbox: &Mailbox<ControllerNote>,
    ended: &Receiver<()>,
) {
    let mut pause = AGAIN_MIN;
    loop {
        if has_ended() && mailbox.post(ControllerNote::ServerEnded(server)).is_ok() {
            return;
        }
        match ended.recv_timeout(pause) {
            Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(AGAIN_MAX),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl ControllerService {
    /// Handles the closed connection of a server.
    pub(super) fn unlinked(&mut self, now: Time, server: ServerId) {
        self.links.remove(&server);
        // A released server has no data to lose.
        let Some(address) =
            self.catalog.address_of(server).filter(|_| !self.catalog.is_released(server))
        else {
            return self.lose(now, server);
        };
        let _ = self.apply(now, Command::ServerUnlinked { server });
        self.refuse_imports(now, server);
        self.dispatch(now, None);
        self.probe(server, address);
    }

    fn probe(&mut self, server: ServerId, address: Arc<str>) {
        let token = self.token_key.issue(None);
        self.probes.begin((server, address), token, self.siblings.own_mailbox());
    }

    /// Starts probes of all servers in the log, which have no connection yet.
    pub(super) fn probe_awaited(&mut self) {
        let awaited: Vec<ServerId> = self.catalog.awaited().collect();
        for server in awaited {
            let address = self.catalog.address_of(server).expect("an awaited server is a member");
            self.probe(server, address);
        }
    }

    /// The process of a server without a connection has ended, as a probe of its address has found.
    pub(super) fn server_ended(&mut self, now: Time, server: ServerId) {
        self.probes.end(server);
        if self.catalog.is_member(server) && !self.links.contains_key(&server) {
            self.lose(now, server);
        }
    }
}
