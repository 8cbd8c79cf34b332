//! Appends that are too large for a block (ADR 0058): private blocks are requested, written and
//! committed in several calls, as in `crates/client/src/large_appends.rs`. The production
//! `Placing` decides how the blocks before them are sealed.

use crate::client::{Active, What, finish, go, refresh};
use crate::controller::{About, Question};
use crate::large::ask;
use crate::net::Node;
use crate::world::{Event, TryId, World};
use honeycomb_client::Error;
use honeycomb_client::Target;
use honeycomb_client::call::{Call, CallEvent, Routing};
use honeycomb_client::placing::{PlaceStep, Placing, after_commit, unknown};
use honeycomb_types::{BlockAt, Epoch, StructureId};
use honeycomb_wire::messages::MapEntry;
use honeycomb_wire::{Op, ReplyHeader, Status};
use std::time::Duration;

/// How often an append is written again if its private blocks were gone at the commit.
const TRIES: u32 = 4;

/// A large append in progress.
#[derive(Debug)]
pub(crate) struct Appending {
    stage: Stage,
    /// The routing of its private blocks.
    private: Option<Routing>,
    /// Bytes that are written to them.
    done: usize,
    /// Free bytes of the last block that was written to; 0 if unknown.
    left: usize,
    tries: u32,
    /// Its way to the map, after the commit.
    placing: Option<Placing>,
    /// Its place in the file, once it is known.
    pub offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The controller is asked for a private block.
    Beginning,
    /// A piece of so many bytes is written.
    Writing(usize),
    /// The controller is asked to commit.
    Committing,
    /// A block before the private ones is sealed.
    Continuing,
    /// The controller is asked for the map.
    Refreshing,
    /// The controller is asked whether this private block still exists.
    Checking(BlockAt),
    /// Its offset is known.
    Placed,
}

impl Appending {
    /// The first state of an operation that appends more than `limit` bytes.
    pub fn of(what: &What, limit: usize) -> Option<Appending> {
        let What::Append { bytes, .. } = what else { return None };
        let new = Appending {
            stage: Stage::Beginning,
            private: None,
            done: 0,
            left: 0,
            tries: 0,
            placing: None,
            offset: 0,
        };
        (bytes.len() > limit).then_some(new)
    }

    /// The routing of the call in progress, if it is for a private block.
    pub fn routing(&mut self) -> Option<&mut Routing> {
        self.private.as_mut().filter(|_| matches!(self.stage, Stage::Writing(_)))
    }

    /// Whether it waits for the controller, or must ask it again.
    pub fn asks(&self) -> bool {
        matches!(self.stage, Stage::Beginning | Stage::Committing | Stage::Checking(_))
    }

    /// Whether it waits for the map.
    pub fn refreshes(&self) -> bool {
        self.stage == Stage::Refreshing
    }

    /// Whether it certainly has no effect yet.
    pub fn is_private(&self) -> bool {
        matches!(self.stage, Stage::Beginning | Stage::Writing(_))
    }

    fn blocks(&self) -> &[MapEntry] {
        self.private.as_ref().map_or(&[], |routing| &routing.map.entries)
    }

    fn placing(&mut self) -> &mut Placing {
        self.placing.as_mut().expect("it is committed")
    }

    fn first(&self) -> BlockAt {
        self.blocks().first().expect("it has a private block").at()
    }
}

fn parts(world: &mut World, task: usize) -> (&mut Active, usize) {
    let limit = world.sizes.limit();
    (world.tasks[task].active.as_mut().expect("the operation is under way"), limit)
}

fn appending(active: &mut Active) -> &mut Appending {
    active.append.as_mut().expect("the operation is a large append")
}

/// Asks the controller.
pub(crate) fn go_on(world: &mut World, task: usize) {
    let (active, _) = parts(world, task);
    let What::Append { bytes, .. } = &active.what else { unreachable!("it appends") };
    let length = bytes.len() as u64;
    let append = appending(active);
    let about = match append.stage {
        Stage::Beginning => About::Begin(length),
        Stage::Committing => About::Commit(append.first()),
        Stage::Checking(at) => About::Commit(at),
        Stage::Refreshing => About::Structure,
        Stage::Writing(_) | Stage::Continuing | Stage::Placed => {
            unreachable!("a call is under way")
        }
    };
    ask(world, task, about);
}

/// Writes the next piece to the private blocks.
fn write(world: &mut World, task: usize) {
    let (active, limit) = parts(world, task);
    let Active { what: What::Append { bytes, .. }, append: Some(append), deadline, .. } = active
    else {
        unreachable!("it appends");
    };
    let rest = &bytes[append.done..];
    let length = if append.left == 0 { limit } else { append.left }.min(rest.len());
    append.stage = Stage::Writing(length);
    let call = Call::new(Op::FileAppend, Target::Tail, *deadline);
    (active.payload, active.call) = (rest[..length].into(), call);
    active.args.clear();
    go(world, task, CallEvent::Go);
}

/// The controller replied, or did not.
pub(crate) fn told(world: &mut World, task: usize, answer: Result<Vec<MapEntry>, Error>) {
    let local = world.local(Node::Client(world.tasks[task].session()));
    let key = real(world, task);
    let World { routings, structures, tasks, .. } = world;
    let active = tasks[task].active.as_mut().expect("a task that asked has an operation");
    let deadline = active.deadline;
    let append = appending(active);
    match (append.stage, answer) {
        (Stage::Beginning, Ok(entries)) => {
            let opened = &structures[&key.1].opened;
            let routing = routings.entry(key).or_insert_with(|| crate::client::routing_of(opened));
            append.private = Some(Routing::private(&routing.map, entries[0].clone()));
            (append.done, append.left) = (0, 0);
            write(world, task);
        }
        (Stage::Committing, Ok(told)) => {
            let blocks = append.blocks().to_vec();
            append.placing = Some(Placing::new(blocks, Epoch(told[0].start)));
            world.reach("large append committed");
            place(world, task);
        }
        (Stage::Checking(_), answer) => {
            let gone = matches!(&answer, Err(e) if e.status == Status::WrongEpoch);
            let checked = append.placing().checked(answer.map(drop));
            if gone {
                world.reach("private block moved before it served");
            }
            end_or_place(world, task, checked);
        }
        (Stage::Committing, Err(e)) if e.status == Status::WrongEpoch => {
            world.reach("private blocks gone at the commit");
            again(world, task);
        }
        // Refused: the request has no effect. Where no reply arrived, it may have one.
        (Stage::Beginning, Err(e)) if e.status == Status::Unavailable && local < deadline => {
            ask_later(world, task);
        }
        (Stage::Beginning | Stage::Committing, Err(e))
            if e.status == Status::Busy && local < deadline =>
        {
            ask_later(world, task);
        }
        (Stage::Beginning, Err(e)) if matches!(e.status, Status::Unavailable | Status::Busy) => {
            let text = format!("BeginAppend did not finish in time (last: {})", e.message);
            finish(world, task, Err(Error::new(Status::DeadlineExceeded, text)));
        }
        (Stage::Committing, Err(e)) if e.status == Status::Busy => {
            appending(parts(world, task).0).stage = Stage::Beginning;
            let text = format!("CommitAppend did not finish in time (last: {})", e.message);
            finish(world, task, Err(Error::new(Status::DeadlineExceeded, text)));
        }
        (Stage::Committing, Err(e)) if e.status == Status::Unavailable => {
            finish(world, task, Err(unknown(e)));
        }
        (_, Err(e)) => finish(world, task, Err(e)),
        (stage, Ok(_)) => unreachable!("the controller answered in {stage:?}"),
    }
}

fn ask_later(world: &mut World, task: usize) {
    world.tasks[task].number += 1;
    let id = TryId { task, number: world.tasks[task].number };
    world.schedule(Duration::from_millis(5), Event::Wake(id));
}

/// The private blocks were lost before the commit: all bytes are written again.
fn again(world: &mut World, task: usize) {
    let append = appending(parts(world, task).0);
    append.tries += 1;
    (append.stage, append.private) = (Stage::Beginning, None);
    if append.tries == TRIES {
        let text = format!("it lost its blocks in {TRIES} tries");
        return finish(world, task, Err(Error::new(Status::Busy, text)));
    }
    go_on(world, task);
}

fn real(world: &mut World, task: usize) -> (usize, StructureId) {
    (world.tasks[task].session(), parts(world, task).0.structure)
}

/// Carries out the next step of a committed append.
fn place(world: &mut World, task: usize) {
    let key = real(world, task);
    let World { routings, tasks, .. } = world;
    let active = tasks[task].active.as_mut().expect("the operation is under way");
    let append = active.append.as_mut().expect("the operation is a large append");
    let routing = routings.get(&key).expect("a session that began has its routing");
    match append.placing().next(routing) {
        PlaceStep::Done(Ok(offset)) => {
            (append.offset, append.stage) = (offset, Stage::Placed);
            if append.blocks().len() > 1 {
                world.reach("large append of several blocks");
            }
            finish(world, task, Ok(ReplyHeader::new(Status::Ok, 0, 0)));
        }
        PlaceStep::Done(Err(e)) => {
            append.stage = Stage::Placed;
            finish(world, task, Err(e));
        }
        PlaceStep::Refresh => {
            append.stage = Stage::Refreshing;
            refresh(world, task);
        }
        PlaceStep::Check(at) => {
            append.stage = Stage::Checking(at);
            go_on(world, task);
        }
        PlaceStep::Continue(tail) => {
            append.stage = Stage::Continuing;
            active.call = Call::new(Op::FileContinue, Target::Block(tail), active.deadline);
            (active.args, active.payload) = (Vec::new(), Default::default());
            go(world, task, CallEvent::Go);
        }
    }
}

/// The map was refreshed, or the controller returned why not.
pub(crate) fn refreshed(world: &mut World, task: usize, result: Result<(), Error>) {
    world.reach("map refreshed for a large append");
    end_or_place(world, task, result.map_err(after_commit));
}

fn end_or_place(world: &mut World, task: usize, result: Result<(), Error>) {
    match result {
        Ok(()) => place(world, task),
        Err(e) => {
            appending(parts(world, task).0).stage = Stage::Placed;
            finish(world, task, Err(e));
        }
    }
}

/// A call has ended: returns the result of its operation, or `None` if the operation continues.
pub(crate) fn ended(
    world: &mut World,
    task: usize,
    result: Result<ReplyHeader, Error>,
) -> Option<Result<ReplyHeader, Error>> {
    let block = world.sizes.block;
    let (active, limit) = parts(world, task);
    let Active { what: What::Append { bytes, .. }, append: Some(append), call, .. } = active else {
        return Some(result);
    };
    match (append.stage, result) {
        (Stage::Writing(piece), Ok(header)) => {
            let start = call.entry().expect("a block has answered").start;
            if start + header.value != append.done as u64 {
                let text =
                    format!("private blocks have {} bytes, not {}", header.value, append.done);
                world.broken(format!("{text} (INV-62)"));
                return None;
            }
            append.done += piece;
            append.left = block.saturating_sub(header.value as usize + piece);
            if append.done < bytes.len() {
                write(world, task);
            } else {
                append.stage = Stage::Committing;
                go_on(world, task);
            }
            None
        }
        (Stage::Writing(piece), Err(e)) if e.status == Status::ValueTooLarge && piece > limit => {
            append.left = 0;
            write(world, task);
            None
        }
        (Stage::Writing(_), Err(e))
            if matches!(e.status, Status::ExtentGone | Status::OutcomeUnknown) =>
        {
            world.reach("private blocks gone while they were written");
            again(world, task);
            None
        }
        (Stage::Writing(_), Err(e)) => {
            let about = About::Drop(append.first());
            drop_blocks(world, task, about);
            Some(Err(e))
        }
        (Stage::Continuing, result) => {
            continued(world, task, result);
            None
        }
        (_, result) => Some(result),
    }
}

/// Tells the controller that private blocks will not be committed. The message may be lost.
fn drop_blocks(world: &mut World, task: usize, about: About) {
    let (_, structure) = real(world, task);
    let question = Question { task, number: 0, structure, about };
    let client = Node::Client(world.tasks[task].session());
    if let Some(at) = world.travel(client, Node::Controller) {
        world.schedule_at(at, Event::Ask(question));
    }
}

/// A block before the private ones has sealed, or refused to.
fn continued(world: &mut World, task: usize, result: Result<ReplyHeader, Error>) {
    let key = real(world, task);
    let World { routings, tasks, .. } = world;
    let active = tasks[task].active.as_mut().expect("the operation is under way");
    let routing = routings.get_mut(&key).expect("a session that sent has its routing");
    let tail = active.call.entry().map_or(BlockAt::default(), MapEntry::at);
    let result = result.map(|header| (header.value, &active.told[..]));
    let append = active.append.as_mut().expect("the operation is a large append");
    let continued = append.placing().continued(routing, tail, result);
    end_or_place(world, task, continued);
}
