//! Requests of tasks to the controller about their structures, and its replies.

use super::{About, Question, Then};
use crate::lots::Parked;
use crate::net::Node;
use crate::world::{Event, World, wire_entry};
use honeycomb_catalog::{Actor, CatalogError, Command, Opened as Map, Reply};
use honeycomb_client::Error;
use honeycomb_controller::status_of;
use honeycomb_types::{BlockAt, BlockId};
use honeycomb_wire::messages::MapEntry;

impl World {
    /// A client's request arrives.
    pub fn question(&mut self, question: Question, again: bool) {
        let ix = question.structure.controller() as usize;
        if let About::Extents(bytes, full) = &question.about {
            let (bytes, full) = (*bytes, full.iter().copied().map(BlockId).collect::<Vec<_>>());
            return self.extent_blocks(question, bytes, &full, again);
        }
        match question.about {
            About::Begin(bytes) => return self.begin_append(question, bytes, again),
            About::Commit(first) => return self.commit_append(&question, first),
            About::Drop(first) => return self.drop_append(&question, first),
            _ => {}
        }
        let by_address = matches!(question.about, About::Address);
        let Some(known) = self.structures.get(&question.structure) else { return };
        let (job, structure) = (known.job, question.structure);
        let id = self.jobs[job].id;
        let (path, name) = (known.path.clone(), known.name.clone());
        let session = self.jobs[job].tasks[self.tasks[question.task].session()].prefix;
        let actor = Actor { session, ..Actor::driver(id) };
        let command = if by_address {
            Command::OpenStructure { actor, job: id, path: &path, name: &name }
        } else {
            Command::ReopenStructure { actor, job: id, structure }
        };
        match self.command(ix, command) {
            Ok(Reply::Opened(opened)) => {
                match opened.edge {
                    honeycomb_catalog::EdgeOutcome::Added => self.reach("edge by use"),
                    honeycomb_catalog::EdgeOutcome::Impossible => self.reach("edge impossible"),
                    _ => {}
                }
                // The name may now belong to another structure; then the reply is not for this one.
                let opened = match opened.structure == structure {
                    true => opened,
                    false => {
                        let question = Question { about: About::Structure, ..question };
                        return self.question(question, again);
                    }
                };
                let blocks: Vec<BlockAt> = opened.map.entries.iter().map(|e| e.at).collect();
                self.when_open(ix, blocks.into_iter(), Then::Answer(question, opened));
            }
            Ok(other) => panic!("opening was answered with {other:?}"),
            Err(_) if by_address => {
                self.question(Question { about: About::Structure, ..question }, again);
            }
            Err(e) => {
                let error = Error::new(status_of(&e), e.to_string());
                self.answer(&question, Err(error));
            }
        }
    }

    pub(super) fn answer(&mut self, question: &Question, answer: Result<Map, Error>) {
        let node = Node::Client(self.tasks[question.task].session());
        let Some(at) = self.travel(Node::Controller, node) else { return };
        let (task, number) = (question.task, question.number);
        let controller_ms = self.controller_now().as_millis();
        let answer = answer.map(|opened| (opened, controller_ms));
        self.schedule_at(at, Event::ToldClient { task, number, answer: Box::new(answer) });
    }

    /// A client requests a block of extents, or the list of all.
    pub(super) fn extent_blocks(
        &mut self,
        question: Question,
        bytes: u64,
        full: &[BlockId],
        again: bool,
    ) {
        let ix = question.structure.controller() as usize;
        let Some(known) = self.structures.get(&question.structure) else { return };
        let (job, structure) = (self.jobs[known.job].id, question.structure);
        let actor = Actor::driver(job);
        let command = Command::ExtentBlocks { actor, job, structure, bytes, full, value: 0 };
        match self.command(ix, command) {
            Ok(Reply::Extents(entries)) => {
                // For a list, the block of the next request is unknown: only a new block is
                // awaited.
                let awaited = if bytes > 0 { &entries[..] } else { &[] };
                let blocks: Vec<BlockAt> = awaited.iter().map(|entry| entry.at).collect();
                let entries = entries.iter().map(wire_entry).collect();
                self.when_open(ix, blocks.into_iter(), Then::Extents(question, entries));
            }
            Ok(other) => panic!("blocks of extents were asked for and answered {other:?}"),
            Err(e) => self.refuse_block(ix, question, &e, again),
        }
    }

    /// A client requests a private block.
    fn begin_append(&mut self, question: Question, bytes: u64, again: bool) {
        let ix = question.structure.controller() as usize;
        let Some(known) = self.structures.get(&question.structure) else { return };
        let (job, structure) = (self.jobs[known.job].id, question.structure);
        let actor = Actor::driver(job);
        match self.command(ix, Command::BeginAppend { actor, job, structure, bytes }) {
            Ok(Reply::Grown { entry, .. }) => {
                let then = Then::Extents(question, vec![wire_entry(&entry)]);
                self.when_open(ix, [entry.at].into_iter(), then);
            }
            Ok(other) => panic!("a private block was asked for and answered {other:?}"),
            Err(e) => self.refuse_block(ix, question, &e, again),
        }
    }

    /// There is no block for a client: it waits for borrowed memory, or receives the reason.
    fn refuse_block(&mut self, ix: usize, question: Question, e: &CatalogError, again: bool) {
        if !again && self.borrows(ix, e) {
            return self.controllers[ix].parked.push((self.now, Parked::Question(question)));
        }
        let error = Error::new(status_of(e), e.to_string());
        self.answer_extents(&question, Err(error));
    }

    /// A client commits its private blocks.
    fn commit_append(&mut self, question: &Question, first: BlockAt) {
        let ix = question.structure.controller() as usize;
        let Some(known) = self.structures.get(&question.structure) else { return };
        let (job, structure) = (self.jobs[known.job].id, question.structure);
        let actor = Actor::driver(job);
        let done = self.command(ix, Command::CommitAppend { actor, job, structure, first });
        let answer = done.map(|reply| match reply {
            // The list of an answer has the epoch as a start.
            Reply::Appended { epoch } => vec![MapEntry { start: epoch.0, ..MapEntry::default() }],
            other => panic!("a commit was answered with {other:?}"),
        });
        let answer = answer.map_err(|e| Error::new(status_of(&e), e.to_string()));
        self.answer_extents(question, answer);
    }

    /// A client drops its private blocks; it awaits no answer.
    fn drop_append(&mut self, question: &Question, first: BlockAt) {
        let ix = question.structure.controller() as usize;
        let Some(known) = self.structures.get(&question.structure) else { return };
        let (job, structure) = (self.jobs[known.job].id, question.structure);
        let actor = Actor::driver(job);
        let _ = self.command(ix, Command::DropAppend { actor, job, structure, first });
    }

    pub(super) fn answer_extents(
        &mut self,
        question: &Question,
        answer: Result<Vec<MapEntry>, Error>,
    ) {
        let node = Node::Client(self.tasks[question.task].session());
        let Some(at) = self.travel(Node::Controller, node) else { return };
        let (task, number) = (question.task, question.number);
        self.schedule_at(at, Event::ToldExtents { task, number, answer: Box::new(answer) });
    }
}
