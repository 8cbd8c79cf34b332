//! The meaning of a server's closed connection.
//!
//! A process that ends closes its connection, and so does a link that flaps. So the controller asks the
//! server's address: where nobody listens the process is gone, and its data with it. Any other outcome
//! (somebody listens, the address is silent, its name is not known) decides nothing: the server is
//! suspected until it is back over another connection, or was silent for too long (INV-56). A controller that
//! was started again asks the addresses of all servers that its log names.
//!
//! Asking may block, so that each server without a connection has a thread for it.

use super::{ControllerService, Note};
use honeycomb_catalog::Command;
use honeycomb_transport::{Mailbox, nobody_listens};
use honeycomb_types::{ServerId, Time};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How long one attempt to connect may take.
const PATIENCE: Duration = Duration::from_millis(250);
/// The pause before the second attempt: a process that ends closes its sockets one after the other. It
/// doubles up to the other one.
const AGAIN_MIN: Duration = Duration::from_millis(25);
const AGAIN_MAX: Duration = Duration::from_millis(800);

/// Threads that ask the addresses of servers without a connection; each ends when its sender is dropped.
#[derive(Default)]
pub(crate) struct Probes(HashMap<ServerId, Sender<()>>);

impl Probes {
    fn begin(&mut self, server: ServerId, address: Arc<str>, mailbox: Mailbox<Note>) {
        let (end, ended) = channel();
        let ask = move || ask(server, &address, &mailbox, &ended);
        // Without a thread the server is lost by its silence.
        if std::thread::Builder::new().name("probe".into()).spawn(ask).is_ok() {
            self.0.insert(server, end);
        }
    }

    /// Servers whose addresses are asked.
    pub(crate) fn servers(&self) -> impl Iterator<Item = ServerId> + '_ {
        self.0.keys().copied()
    }

    /// The server is back, or lost.
    pub(crate) fn end(&mut self, server: ServerId) {
        self.0.remove(&server);
    }
}

fn ask(server: ServerId, address: &str, mailbox: &Mailbox<Note>, ended: &Receiver<()>) {
    let mut pause = AGAIN_MIN;
    loop {
        if nobody_listens(address, PATIENCE) && mailbox.post(Note::ServerEnded(server)).is_ok() {
            return;
        }
        match ended.recv_timeout(pause) {
            Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(AGAIN_MAX),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl ControllerService {
    /// The connection to a server closed.
    pub(super) fn unlinked(&mut self, now: Time, server: ServerId) {
        self.links.remove(&server);
        // One that was released has nothing to lose.
        let Some(address) =
            self.catalog.address_of(server).filter(|_| !self.catalog.is_released(server))
        else {
            return self.lose(now, server);
        };
        let _ = self.apply(now, Command::ServerUnlinked { server });
        self.dispatch(now, None);
        self.probes.begin(server, address, self.siblings.own_mailbox());
    }

    /// The servers that the log names have no connection yet.
    pub(super) fn probe_awaited(&mut self) {
        let awaited: Vec<ServerId> = self.catalog.awaited().collect();
        for server in awaited {
            let address = self.catalog.address_of(server).expect("an awaited server is a member");
            self.probes.begin(server, address, self.siblings.own_mailbox());
        }
    }

    /// Nobody listens at the address of a server without a connection.
    pub(super) fn server_ended(&mut self, now: Time, server: ServerId) {
        self.probes.end(server);
        if self.catalog.is_member(server) && !self.links.contains_key(&server) {
            self.lose(now, server);
        }
    }
}
