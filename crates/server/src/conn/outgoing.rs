//! Notes to other threads of the server: to the link, and to other cores.

use crate::notes::{LinkNote, Note};
use honeycomb_transport::{Mailbox, NotPosted};
use honeycomb_types::ShardIx;
use std::collections::VecDeque;

/// The notes that a core sends. Notes that wait for room leave in order, each kind for itself.
pub(super) struct Outgoing {
    own: ShardIx,
    shards: Vec<Mailbox<Note>>,
    link: Mailbox<LinkNote>,
    /// Notes for the link that did not fit into its mailbox yet.
    unsent: VecDeque<LinkNote>,
    /// Answers for other cores that did not fit into their rings yet.
    undelivered: VecDeque<(ShardIx, Note)>,
}

impl Outgoing {
    pub fn new(own: ShardIx, shards: Vec<Mailbox<Note>>, link: Mailbox<LinkNote>) -> Outgoing {
        Outgoing { own, shards, link, unsent: VecDeque::new(), undelivered: VecDeque::new() }
    }

    /// The number of cores.
    pub fn shards(&self) -> u8 {
        self.shards.len() as u8
    }

    /// Whether a block is on another core of this server.
    pub fn is_elsewhere(&self, shard: ShardIx) -> bool {
        shard != self.own && shard.0 < self.shards()
    }

    /// The mailbox of this core, for threads that answer it.
    pub fn own(&self) -> Mailbox<Note> {
        self.of(self.own.0).clone()
    }

    /// The mailbox of a core.
    pub fn of(&self, shard: u8) -> &Mailbox<Note> {
        &self.shards[shard as usize]
    }

    /// Posts a note to the link, after earlier ones.
    pub fn tell_link(&mut self, note: LinkNote) {
        self.unsent.push_back(note);
        while let Some(note) = self.unsent.pop_front() {
            if let Err(NotPosted::Full(note)) = self.link.post(note) {
                self.unsent.push_front(note);
                break;
            }
        }
    }

    /// Posts an answer to the core of its request.
    pub fn answer(&mut self, origin: ShardIx, note: Note) {
        self.undelivered.push_back((origin, note));
        self.deliver();
    }

    /// Posts a note to every other core.
    pub fn tell_others(&mut self, note: impl Fn() -> Note) {
        let others = (0..self.shards()).map(ShardIx).filter(|ix| *ix != self.own);
        self.undelivered.extend(others.map(|ix| (ix, note())));
        self.deliver();
    }

    /// Posts the notes to other cores. A core with a full ring gets its notes at the next tick; there are no
    /// more answers than requests in its rings.
    pub fn deliver(&mut self) {
        while let Some((origin, note)) = self.undelivered.pop_front() {
            debug_assert_ne!(origin, self.own, "INV-16: an answer for this core goes to its ring");
            if let Err(NotPosted::Full(note)) = self.of(origin.0).post(note) {
                self.undelivered.push_front((origin, note));
                break;
            }
        }
    }

    /// Whether a mailbox was full.
    pub fn is_behind(&self) -> bool {
        !self.unsent.is_empty() || !self.undelivered.is_empty()
    }
}
