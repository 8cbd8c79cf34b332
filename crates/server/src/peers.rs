//! The network side of a shard's peer connections.
//!
//! They use the cluster's own token. The shard's requests wait here until the handshake is done; answers are
//! passed to it in order.

use crate::shard::{PeerEvent, PeerKey, Post, PostPayload, Shard};
use honeycomb_transport::{ConnId, Net, ReplyPayload, hello};
use honeycomb_types::{BlockAt, Time};
use honeycomb_wire::{Field, Op, ReplyHeader, RequestHeader, Status};
use std::collections::HashMap;

struct PeerConnection {
    conn: ConnId,
    target: BlockAt,
    /// Requests that wait for the handshake; `None` when it is done.
    waiting: Option<Vec<(Op, Vec<u8>, PostPayload)>>,
    next_request: u64,
}

/// The peer connections of a shard.
pub(crate) struct Peers {
    token: Vec<u8>,
    connections: HashMap<PeerKey, PeerConnection>,
    keys: HashMap<ConnId, PeerKey>,
}

impl Peers {
    /// No connections yet; they will present this token, the cluster's own.
    pub fn new(token: Vec<u8>) -> Peers {
        Peers { token, connections: HashMap::new(), keys: HashMap::new() }
    }

    /// Executes the posts of the shard's peer connections until there are no more.
    pub fn settle(&mut self, net: &mut Net, now: Time, shard: &mut Shard) {
        loop {
            let posts = shard.out().take_posts();
            if posts.is_empty() {
                return;
            }
            for post in posts {
                self.post(net, now, shard, post);
            }
        }
    }

    fn post(&mut self, net: &mut Net, now: Time, shard: &mut Shard, post: Post) {
        match post {
            Post::Dial { key, address, target } => match net.dial(address) {
                Ok(conn) => {
                    if matches!(key, PeerKey::Move(_)) {
                        net.yields(conn);
                    }
                    self.hello(net, conn, target);
                    let waiting = Some(Vec::new());
                    let before = self.keys.insert(conn, key);
                    assert!(before.is_none(), "INV-19: {before:?} and {key:?} share a connection");
                    let connection = PeerConnection { conn, target, waiting, next_request: 1 };
                    let before = self
                        .connections
                        .insert(key, connection)
                        .map(|connection| connection.target);
                    assert!(before.is_none(), "INV-19: {key:?} is connected to {before:?} already");
                }
                Err(_) => shard.peer_event(now, key, PeerEvent::Lost),
            },
            Post::Send { key, op, args, payload } => {
                // If the connection is gone, the shard has been or will be notified of its loss.
                let Some(connection) = self.connections.get_mut(&key) else { return };
                match &mut connection.waiting {
                    Some(waiting) => waiting.push((op, args, payload)),
                    None => send(net, connection, op, &args, payload),
                }
            }
            Post::HangUp(key) => {
                if let Some(connection) = self.connections.remove(&key) {
                    let of = self.keys.remove(&connection.conn);
                    assert_eq!(of, Some(key), "INV-19: the connection of {of:?} ends with {key:?}");
                    net.close(connection.conn);
                }
            }
        }
    }

    fn hello(&self, net: &mut Net, conn: ConnId, target: BlockAt) {
        let hello = hello(&self.token, target.block.shard().0);
        let header = RequestHeader { request: 1, ..RequestHeader::new(Op::Hello) };
        net.request(conn, header, &hello.encode(), ReplyPayload::Copy(&[]));
    }

    /// Passes on a reply; false if it belongs to no peer connection.
    pub fn replied(
        &mut self,
        net: &mut Net,
        now: Time,
        shard: &mut Shard,
        from: ConnId,
        header: &ReplyHeader,
    ) -> bool {
        let Some(key) = self.keys.get(&from).copied() else { return false };
        let connection = self.connections.get_mut(&key).expect("both tables name it");
        assert_eq!(connection.conn, from, "INV-19: {key:?} gets a reply over another connection");
        match connection.waiting.take() {
            Some(waiting) if header.status == Status::Ok => {
                for (op, args, payload) in waiting {
                    send(net, connection, op, &args, payload);
                }
            }
            Some(_) => {
                self.connections.remove(&key);
                self.keys.remove(&from);
                net.close(from);
                shard.peer_event(now, key, PeerEvent::Refused(header.status));
            }
            None => shard.peer_event(now, key, PeerEvent::Answered(header.status)),
        }
        true
    }

    /// A connection was closed.
    pub fn closed(&mut self, now: Time, shard: &mut Shard, conn: ConnId) {
        if let Some(key) = self.keys.remove(&conn) {
            let connection = self.connections.remove(&key).map(|connection| connection.conn);
            assert_eq!(connection, Some(conn), "INV-19: {key:?} is lost with another connection");
            shard.peer_event(now, key, PeerEvent::Lost);
        }
    }
}

fn send(net: &mut Net, connection: &mut PeerConnection, op: Op, args: &[u8], payload: PostPayload) {
    connection.next_request += 1;
    let header = RequestHeader {
        request: connection.next_request,
        at: connection.target,
        ..RequestHeader::new(op)
    };
    let payload = match payload {
        PostPayload::Bytes(bytes) => ReplyPayload::Shared(bytes),
        PostPayload::Pinned(pin) => ReplyPayload::Pinned(pin),
    };
    net.request(connection.conn, header, args, payload);
}
