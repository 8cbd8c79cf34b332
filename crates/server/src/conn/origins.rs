//! The callers of requests that are answered later.

use honeycomb_structures::Ticket;
use honeycomb_transport::ConnId;
use honeycomb_types::ShardIx;
use honeycomb_wire::RequestHeader;

/// The origin of a request that is answered later: the place to which its answer is returned.
pub(super) enum RequestSource {
    Here(ConnId, RequestHeader),
    Shard(ShardIx, ConnId, RequestHeader),
}

/// The callers, by the tickets of their requests.
#[derive(Default)]
pub(super) struct Origins {
    all: hashbrown::HashMap<Ticket, RequestSource>,
    last: u64,
}

impl Origins {
    /// A ticket that no request had before.
    pub fn ticket(&mut self) -> Ticket {
        self.last += 1;
        Ticket(self.last)
    }

    /// The answer of an operation will be sent to this caller, once.
    pub fn park(&mut self, ticket: Ticket, origin: RequestSource) {
        let before = self.all.insert(ticket, origin);
        assert!(before.is_none(), "INV-16: {ticket:?} has two callers");
    }

    /// The caller of a request that is answered, or withdrawn.
    pub fn take(&mut self, ticket: Ticket) -> Option<RequestSource> {
        self.all.remove(&ticket)
    }

    /// Removes these callers. Returns the tickets of their requests.
    pub fn forget(&mut self, mut gone: impl FnMut(&RequestSource) -> bool) -> Vec<Ticket> {
        self.all.extract_if(|_, origin| gone(origin)).map(|(ticket, _)| ticket).collect()
    }

    /// Whether any request of this connection waits.
    pub fn has(&self, conn: ConnId) -> bool {
        let waits = |of: &RequestSource| matches!(of, RequestSource::Here(to, _) if *to == conn);
        self.all.values().any(waits)
    }
}
