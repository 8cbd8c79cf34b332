//! Connections between servers, over which blocks move and extents are adopted and dropped: one for
//! each move, and one from each shard to each shard that has extents. They keep order, carry large
//! payloads in pieces, and can break at any of them.

use crate::net::Node;
use crate::server::{Caller, ShardLine};
use crate::world::{Event, Request, World};
use honeycomb_server::{CallerAccess, PeerKey, Post, PostPayload};
use honeycomb_types::{BlockAt, SessionId};
use honeycomb_wire::{Op, RequestHeader, Status};
use std::collections::VecDeque;
use std::time::Duration;

/// One connection. It ends with the process of either end, or when one end hangs up.
pub struct Line {
    line: ShardLine,
    /// Server and life of the end that dialled: in a move, of the source block.
    pub from: (usize, u64),
    /// Of the other end: in a move, of the target block.
    pub to: (usize, u64),
    target: BlockAt,
    /// Requests that have arrived before the previous one was complete.
    inbox: VecDeque<Request>,
    next_request: u64,
}

impl Line {
    /// The controller shard of its target block.
    pub fn controller(&self) -> usize {
        self.target.block.server().controller() as usize
    }

    /// Whether it carries a move. Over other connections extents are adopted and dropped.
    pub fn is_of_a_move(&self) -> bool {
        matches!(self.line.key, PeerKey::Move(_))
    }
}

impl World {
    /// Executes the network requests of a server's shards, in order.
    pub fn carry_posts(&mut self, server: usize) {
        for (shard, post) in std::mem::take(&mut self.servers[server].posts) {
            match post {
                Post::Dial { key, address, target } => {
                    self.dial(server, ShardLine { shard, key }, &address.to_string(), target);
                }
                Post::Send { key, op, args, payload } => {
                    self.send_part(server, ShardLine { shard, key }, op, args, payload);
                }
                Post::HangUp(key) => {
                    if let Some(conn) = self.line_of(server, ShardLine { shard, key }) {
                        self.hang_up_line(conn);
                    }
                }
            }
        }
    }

    fn line_of(&self, server: usize, line: ShardLine) -> Option<u64> {
        let found = self.lines.iter().find(|(_, l)| l.line == line && l.from.0 == server);
        found.map(|(conn, _)| *conn)
    }

    fn dial(&mut self, server: usize, line: ShardLine, address: &str, target: BlockAt) {
        let from = (server, self.servers[server].life);
        let to = self.servers.iter().position(|s| s.address == address);
        let to = to.expect("the controller names servers of this world");
        if !self.servers[to].alive {
            let lost = Event::LineLost { server, life: from.1, line };
            return self.schedule(Duration::from_micros(200), lost);
        }
        let conn = self.new_link();
        let to = (to, self.servers[to].life);
        let line = Line { line, from, to, target, inbox: VecDeque::new(), next_request: 1 };
        self.lines.insert(conn, line);
    }

    fn send_part(
        &mut self,
        server: usize,
        line: ShardLine,
        op: Op,
        args: Vec<u8>,
        payload: PostPayload,
    ) {
        // Without a connection the shard has learned, or will learn, that it is lost.
        let Some(conn) = self.line_of(server, line) else { return };
        if self.rng.chance(self.faults.cut_payload / 20) {
            self.fault("cut move");
            return self.break_line(conn);
        }
        let line = self.lines.get_mut(&conn).expect("found just now");
        line.next_request += 1;
        let mut header =
            RequestHeader { request: line.next_request, at: line.target, ..RequestHeader::new(op) };
        (header.args_len, header.payload_len) = (args.len() as u32, payload.bytes().len() as u32);
        let (to, life) = line.to;
        let session = SessionId(u128::from(conn) | 1 << 100);
        let access = CallerAccess { session, window: 1, grant: None, peer: true };
        let request = Request { access, header: header.encode(), args, payload };
        let at = self.arrival(Node::Server(server), Node::Server(to), conn);
        let (from, request) = (Caller::Peer(conn), Box::new(request));
        self.schedule_at(at, Event::Request { server: to, life, from, request });
    }

    /// A request over a connection between servers waits until the previous one is complete.
    pub fn in_turn(&mut self, server: usize, from: Caller, request: Request) -> Option<Request> {
        let Caller::Peer(conn) = from else { return Some(request) };
        // A request in progress at the break of a connection never arrives.
        let line = self.lines.get_mut(&conn)?;
        if self.servers[server].filling_of(from).is_some() || !line.inbox.is_empty() {
            line.inbox.push_back(request);
            return None;
        }
        Some(request)
    }

    /// A payload is complete: the requests behind it are read.
    pub fn next_in_turn(&mut self, server: usize, conn: u64) {
        let Some(line) = self.lines.get_mut(&conn) else { return };
        let life = line.to.1;
        let waiting = std::mem::take(&mut line.inbox);
        for request in waiting {
            let (from, request) = (Caller::Peer(conn), Box::new(request));
            self.schedule(Duration::ZERO, Event::Request { server, life, from, request });
        }
    }

    /// The other end replies, in order.
    pub fn answer_line(&mut self, server: usize, conn: u64, status: Status) {
        let Some(line) = self.lines.get(&conn) else { return };
        let from = line.from.0;
        let at = self.arrival(Node::Server(server), Node::Server(from), conn);
        self.schedule_at(at, Event::LineAnswered { conn, status });
    }

    /// A reply arrives at the end that dialled.
    pub fn line_answered(&mut self, conn: u64, status: Status) {
        let Some(line) = self.lines.get(&conn) else { return };
        let (line, (server, life)) = (line.line, line.from);
        if self.servers[server].alive && self.servers[server].life == life {
            let now = self.local(Node::Server(server));
            self.servers[server].line_answered(now, line, status);
            let messages = self.servers[server].settle();
            self.send_all(server, messages);
        }
    }

    /// The end that dialled learns that a connection is gone.
    pub fn line_lost(&mut self, server: usize, life: u64, line: ShardLine) {
        if !self.servers[server].alive || self.servers[server].life != life {
            return;
        }
        // The shard had hung up, and has dialled again since.
        if self.line_of(server, line).is_some() {
            return;
        }
        let now = self.local(Node::Server(server));
        self.servers[server].line_lost(now, line);
        let messages = self.servers[server].settle();
        self.send_all(server, messages);
    }

    /// The other end learns it: the incomplete request is abandoned.
    pub fn line_hung_up(&mut self, server: usize, life: u64, conn: u64) {
        if !self.servers[server].alive || self.servers[server].life != life {
            return;
        }
        if let Some(ticket) = self.servers[server].filling_of(Caller::Peer(conn)) {
            let now = self.local(Node::Server(server));
            let messages = self.servers[server].cut(now, ticket);
            self.send_all(server, messages);
        }
    }

    /// A connection between servers breaks: both ends learn of it.
    pub fn break_line(&mut self, conn: u64) {
        let Some(line) = self.lines.get(&conn) else { return };
        let (line, (server, life)) = (line.line, line.from);
        let after = self.way();
        self.schedule(after, Event::LineLost { server, life, line });
        self.hang_up_line(conn);
    }

    /// The source no longer needs a connection.
    fn hang_up_line(&mut self, conn: u64) {
        let Some(line) = self.lines.remove(&conn) else { return };
        let (server, life) = line.to;
        let after = self.way();
        self.schedule(after, Event::LineHungUp { server, life, conn });
    }

    /// A server's process has ended, and with it its ends of all connections.
    pub fn hang_up_all(&mut self, server: usize) {
        let ends = |l: &Line| l.from.0 == server || l.to.0 == server;
        let ended: Vec<u64> = self.lines.iter().filter(|(_, l)| ends(l)).map(|(c, _)| *c).collect();
        for conn in ended {
            self.break_line(conn);
        }
    }
}
