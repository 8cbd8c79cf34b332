//! Values and items that are too large for a block (ADR 0018): written and read in several calls, as
//! in `crates/client/src/large.rs` and `large_items.rs`, but one extent after the other. At the end,
//! judges whether structures and their extents agree.

use crate::appends;
use crate::client::{Active, What, finish, go, lay_out};
use crate::controller::{About, Question};
use crate::net::Node;
use crate::queue::{self, Key, Span};
use crate::storing;
use crate::world::{Event, PATIENCE, TryId, World};
use honeycomb_catalog::{Actor, Command, Opened, Reply};
use honeycomb_client::Error;
use honeycomb_client::Target;
use honeycomb_client::call::{Call, CallEvent};
use honeycomb_client::writing::{Division, WriteStep, Writing};
use honeycomb_env::Entropy;
use honeycomb_types::limits::LARGE_FRACTION;
use honeycomb_types::{BlockAt, BlockId, Kind, StructureId};
use honeycomb_wire::extents::{ExtentRef, ListHead, extents, list_below};
use honeycomb_wire::messages::{ExtentDropRequest, MapEntry};
use honeycomb_wire::queue::{AckAction, AckArgs, Items, LargeItem};
use honeycomb_wire::{Field, Op, ReplyHeader, RequestHeader, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How often a value is rewritten if its extents were gone at the put.
const TRIES: u32 = 4;

/// The content of extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// A value of a store, by its number.
    Value(u64),
    /// An item of a queue, with its length.
    Item(Key, usize),
}

impl Written {
    fn bytes(self) -> Vec<u8> {
        match self {
            Written::Value(number) => storing::value(number),
            Written::Item(key, length) => queue::item(key, length),
        }
    }

    /// How it is divided, in pieces of at most so many bytes: the same however often it is written. Of three
    /// values, one has the longest pieces and lists, and the others have lists of few extents, in up to two
    /// levels.
    fn division(self, piece: usize) -> Division {
        let length = self.bytes().len();
        let number = match self {
            Written::Value(number) => number,
            Written::Item(..) => length as u64,
        };
        let mut draw = Entropy::seeded(number);
        if draw.below(3) == 0 {
            return Division::of((piece as u64) * LARGE_FRACTION);
        }
        let pieces = length.div_ceil(piece).max(1 + draw.below(6) as usize);
        assert!(pieces <= 6, "{pieces} pieces need more levels");
        let list = 3 + draw.below(2) as usize;
        Division { piece: length.div_ceil(pieces), list, top: 2 + draw.below(2) as usize }
    }
}

/// A reserved item of a queue whose extents are read.
#[derive(Clone, Copy, Debug)]
struct Claim {
    at: BlockAt,
    item: LargeItem,
    key: Key,
}

/// A value that is being written as extents, or read from them.
#[derive(Debug)]
pub(crate) struct Large {
    stage: Stage,
    tries: u32,
}

#[derive(Debug)]
enum Stage {
    /// No request to a block is in progress; the controller is asked, or will be.
    Asking(Writing),
    /// A piece is written.
    Piece(Writing, BlockAt, usize),
    /// The put that names the written extents.
    Naming,
    /// The list from a get is being read, extent by extent; whether the controller was asked for
    /// the addresses.
    Reading(Reading),
    /// The key is read again, or the next item is requested again.
    Again,
    /// The next item is reserved.
    Claiming,
    /// The item that was read is acknowledged.
    Settling(Claim, Vec<u8>),
    /// The extents of the item were gone: it is returned.
    Returning,
    /// The item was read and stays reserved.
    Claimed(Claim),
}

#[derive(Debug)]
struct Reading {
    /// The list whose extents are read.
    list: Vec<u8>,
    /// These extents.
    extents: Vec<ExtentRef>,
    of: Written,
    claim: Option<Claim>,
    bytes: Vec<u8>,
    asked: bool,
}

impl Large {
    /// The first state of an operation that writes a large value in pieces of at most this length.
    pub fn of(what: &What, piece: usize) -> Option<Large> {
        let written = written_by(what)?;
        let writing = Writing::new(written.bytes().len(), written.division(piece));
        Some(Large { stage: Stage::Asking(writing), tries: 0 })
    }

    /// Whether it waits for the controller, or must ask it again.
    pub fn asks(&self) -> bool {
        matches!(self.stage, Stage::Asking(_) | Stage::Reading(_))
    }

    /// Whether no put has named its written extents yet.
    pub fn is_unnamed(&self) -> bool {
        !matches!(self.stage, Stage::Naming)
    }
}

impl Large {
    /// The block of the item that stays reserved.
    pub fn claimed(&self) -> Option<BlockAt> {
        match self.stage {
            Stage::Claimed(claim) => Some(claim.at),
            _ => None,
        }
    }
}

/// The value or item that an operation writes as extents.
fn written_by(what: &What) -> Option<Written> {
    match what {
        What::Store(storing) => storing::written_by(storing).map(Written::Value),
        What::Queue(queueing) => queueing.written(),
        _ => None,
    }
}

fn active(world: &mut World, task: usize) -> &mut Active {
    world.tasks[task].active.as_mut().expect("the operation is under way")
}

/// Begins the next call, or asks the controller.
pub(crate) fn go_on(world: &mut World, task: usize) {
    let large = active(world, task).large.take().expect("the caller saw it");
    let Large { stage, tries } = large;
    match stage {
        Stage::Asking(writing) => write(world, task, writing, tries),
        Stage::Reading(reading) => {
            active(world, task).large = Some(Large { stage: Stage::Reading(reading), tries });
            read(world, task);
        }
        _ => unreachable!("a call is under way"),
    }
}

fn write(world: &mut World, task: usize, mut writing: Writing, tries: u32) {
    let local = world.local(Node::Client(world.tasks[task].session()));
    let key = (world.tasks[task].session(), active(world, task).structure);
    let opened = &world.structures[&key.1].opened;
    let routing = world.routings.entry(key);
    let routing = routing.or_insert_with(|| crate::client::routing_of(opened));
    match writing.next(routing, local, 1) {
        WriteStep::Ask { bytes, full } => {
            active(world, task).large = Some(Large { stage: Stage::Asking(writing), tries });
            ask(world, task, About::Extents(bytes as u64, full));
        }
        WriteStep::Put { at, pieces } => {
            world.wrote_lists |= writing.lists().is_some();
            let active = active(world, task);
            let new = written_by(&active.what).expect("the operation writes a value");
            let (op, args, payload) = match writing.lists() {
                None => (Op::ExtentPut, &[][..], writing.cut(&[&new.bytes()])[pieces[0]].concat()),
                Some(lists) => (Op::ExtentPutList, &[0][..], lists[pieces[0]].clone()),
            };
            (active.args, active.payload) = (args.to_vec(), payload.into());
            active.call = Call::new(op, Target::Extents(at), active.deadline);
            let stage = Stage::Piece(writing, at, pieces[0]);
            active.large = Some(Large { stage, tries });
            go(world, task, CallEvent::Go);
        }
        WriteStep::Done(list) => {
            let active = active(world, task);
            let new = written_by(&active.what).expect("the operation writes a value");
            let (op, target, args, payload) = lay_out(&active.what);
            active.call = Call::new(op, target, active.deadline);
            // For an evacuated value, the payload begins with the old list.
            let payload = [&payload[..], &list].concat();
            (active.args, active.payload) = (args, payload.into());
            active.large = Some(Large { stage: Stage::Naming, tries });
            let known = world.structures.get_mut(&key.1).expect("a structure with tasks is known");
            known.lists.insert(list.clone(), new);
            if let Some(head) = ListHead::of(&list) {
                world.reach(["value in lists", "value in lists of lists"][head.level as usize - 1]);
            }
            let named = extents(&list).expect("it was written just now");
            let names = named.iter().map(|e| (e.at.block.to_string(), e.at.epoch.0, e.id));
            let names: Vec<_> = names.collect();
            world.note(|| format!("task {task} names {names:?}"));
            go(world, task, CallEvent::Go);
        }
    }
}

fn read(world: &mut World, task: usize) {
    let key = (world.tasks[task].session(), active(world, task).structure);
    let World { routings, tasks, .. } = world;
    let active = tasks[task].active.as_mut().expect("the operation is under way");
    let Some(Large { stage: Stage::Reading(reading), .. }) = &mut active.large else {
        unreachable!("the caller saw it");
    };
    let Reading { extents: list, bytes, asked, .. } = reading;
    // If the controller does not name a server, its extents are lost.
    let knows = routings.get(&key).is_some_and(|routing| routing.knows_servers(list));
    if !knows && !*asked {
        *asked = true;
        return ask(world, task, About::Extents(0, Vec::new()));
    }
    let mut read = 0;
    let next = list.iter().find(|extent| {
        read += extent.len as usize;
        read > bytes.len()
    });
    let next = *next.expect("something is left to read");
    active.args = next.id.to_le_bytes().to_vec();
    active.payload = Arc::default();
    active.call = Call::new(Op::ExtentGet, Target::Extents(next.at), active.deadline);
    go(world, task, CallEvent::Go);
}

/// Asks the controller about blocks of extents, or private ones.
pub(crate) fn ask(world: &mut World, task: usize, about: About) {
    let client = Node::Client(world.tasks[task].session());
    world.tasks[task].number += 1;
    let (number, structure) = (world.tasks[task].number, active(world, task).structure);
    let question = Question { task, number, structure, about };
    if let Some(at) = world.travel(client, Node::Controller) {
        world.schedule_at(at, Event::Ask(question));
    }
    let error = Error::new(Status::Unavailable, "the controller did not answer");
    world.schedule(PATIENCE, Event::ToldExtents { task, number, answer: Box::new(Err(error)) });
}

/// The controller replied, or did not.
pub fn told(world: &mut World, task: usize, number: u64, answer: Result<Vec<MapEntry>, Error>) {
    if world.tasks[task].number != number {
        return;
    }
    if active(world, task).append.is_some() {
        return appends::told(world, task, answer);
    }
    let local = world.local(Node::Client(world.tasks[task].session()));
    let key = (world.tasks[task].session(), active(world, task).structure);
    let World { routings, structures, tasks, .. } = world;
    let active = tasks[task].active.as_mut().expect("a task that asked has an operation");
    let deadline = active.deadline;
    let stage = &mut active.large.as_mut().expect("a task that asked has an operation").stage;
    let told = answer.and_then(|entries| {
        let opened = &structures[&key.1].opened;
        let routing = routings.entry(key).or_insert_with(|| crate::client::routing_of(opened));
        match stage {
            Stage::Asking(writing) => return writing.given(routing, local, &entries),
            _ => routing.learn_servers(&entries),
        }
        Ok(())
    });
    if let (Err(_), Stage::Reading(reading)) = (&told, stage) {
        reading.asked = false;
    }
    match told {
        Ok(()) => go_on(world, task),
        Err(e) if e.status == Status::Unavailable && local < deadline => {
            world.tasks[task].number += 1;
            let id = TryId { task, number: world.tasks[task].number };
            world.schedule(Duration::from_millis(5), Event::Wake(id));
        }
        Err(e) if e.status == Status::Unavailable => {
            let text = format!("ExtentBlocks did not finish in time (last: {})", e.message);
            finish(world, task, Err(Error::new(Status::DeadlineExceeded, text)));
        }
        Err(e) => finish(world, task, Err(e)),
    }
}

/// A call has ended: returns the result of its operation, or `None` if the operation continues.
pub(crate) fn ended(
    world: &mut World,
    task: usize,
    result: Result<ReplyHeader, Error>,
) -> Option<Result<ReplyHeader, Error>> {
    let session = world.tasks[task].session();
    let over = world.local(Node::Client(session)) >= active(world, task).deadline;
    let structure = active(world, task).structure;
    let gone = matches!(&result, Err(e) if e.status == Status::ExtentGone);
    let Some(Large { stage, tries }) = active(world, task).large.take() else {
        return begin_reading(world, task, result, 0);
    };
    match stage {
        Stage::Piece(mut writing, at, piece) => {
            let routing = world
                .routings
                .get_mut(&(session, structure))
                .expect("a session that sent has its routing");
            let wrote = writing.wrote(routing, at, piece, result.map(|header| header.value));
            let stage = Stage::Asking(writing);
            match wrote {
                Ok(()) => {
                    active(world, task).large = Some(Large { stage, tries });
                    go_on(world, task);
                    None
                }
                Err(e) if e.status == Status::ExtentGone => rewrite(world, task, stage, tries),
                Err(e) => {
                    active(world, task).large = Some(Large { stage, tries });
                    Some(Err(e))
                }
            }
        }
        Stage::Naming if gone => rewrite(world, task, stage, tries),
        Stage::Reading(Reading { claim: Some(claim), .. }) if gone && !over => {
            world.reach("extents gone while they were read");
            passed(world, task, claim);
            ask_block(world, task, ack(claim, AckAction::GiveBack));
            active(world, task).large = Some(Large { stage: Stage::Returning, tries });
            go(world, task, CallEvent::Go);
            None
        }
        Stage::Reading(Reading { claim, .. }) if gone => {
            world.reach("extents gone while they were read");
            if let Some(claim) = claim {
                passed(world, task, claim);
            }
            again(world, task, tries + 1, over)
        }
        Stage::Reading(reading) => has_read(world, task, reading, tries, result),
        Stage::Naming => {
            if result.is_ok() {
                world.reach("value stored in extents");
            }
            active(world, task).large = Some(Large { stage, tries });
            Some(result)
        }
        Stage::Again => {
            active(world, task).large = None;
            begin_reading(world, task, result, tries)
        }
        Stage::Claiming => claimed(world, task, result, tries, over),
        Stage::Settling(claim, bytes) => settled(world, task, claim, bytes, result, tries, over),
        // Whether it was returned or had returned by itself: it is requested again.
        Stage::Returning => again(world, task, tries, over),
        Stage::Claimed(_) => unreachable!("the operation has ended"),
        Stage::Asking(_) => {
            active(world, task).large = Some(Large { stage, tries });
            Some(result)
        }
    }
}

/// Extents that a put names are gone: all are written again, if that was not tried too often.
fn rewrite(
    world: &mut World,
    task: usize,
    stage: Stage,
    tries: u32,
) -> Option<Result<ReplyHeader, Error>> {
    world.reach("put of extents that were gone");
    if tries + 1 == TRIES {
        let text = format!("it cannot be stored, after {TRIES} tries");
        active(world, task).large = Some(Large { stage, tries });
        return Some(Err(Error::new(Status::Busy, text)));
    }
    let piece = world.sizes.limit();
    let large = Large::of(&active(world, task).what, piece);
    let large = large.expect("the operation writes a large value");
    active(world, task).large = Some(Large { tries: tries + 1, ..large });
    go_on(world, task);
    None
}

/// A get may have returned a list instead of a value.
fn begin_reading(
    world: &mut World,
    task: usize,
    result: Result<ReplyHeader, Error>,
    tries: u32,
) -> Option<Result<ReplyHeader, Error>> {
    if let (Err(e), Some(claim)) = (&result, claim_of(&active(world, task).what))
        && e.status == Status::ValueTooLarge
    {
        world.reach("item in extents is next");
        ask_block(world, task, claim);
        active(world, task).large = Some(Large { stage: Stage::Claiming, tries });
        go(world, task, CallEvent::Go);
        return None;
    }
    match &result {
        Ok(header) if header.status == Status::Extents => {
            read_list(world, task, None, tries);
            None
        }
        _ => Some(result),
    }
}

/// Reads the extents that the reply to the last call names.
fn read_list(world: &mut World, task: usize, reserved: Option<(BlockAt, LargeItem)>, tries: u32) {
    let found = std::mem::take(&mut active(world, task).found);
    let structure = active(world, task).structure;
    let known = &world.structures[&structure].lists;
    let claim = match (reserved, known.get(&found)) {
        (Some((at, item)), Some(Written::Item(key, _))) => Some(Claim { at, item, key: *key }),
        _ => None,
    };
    let (Ok(named), Some(&of)) = (extents(&found), known.get(&found)) else {
        let text = format!("{} names extents that no put has named together (INV-39)", structure);
        world.broken(text);
        return finish(world, task, Err(Error::new(Status::Internal, "unknown extents")));
    };
    let reading =
        Reading { list: found, extents: named, of, claim, bytes: Vec::new(), asked: false };
    active(world, task).large = Some(Large { stage: Stage::Reading(reading), tries });
    read(world, task);
}

/// An extent was read, or not.
fn has_read(
    world: &mut World,
    task: usize,
    mut reading: Reading,
    tries: u32,
    result: Result<ReplyHeader, Error>,
) -> Option<Result<ReplyHeader, Error>> {
    let header = match result {
        Ok(header) => header,
        Err(e) => {
            if let Some(claim) = reading.claim {
                passed(world, task, claim);
            }
            active(world, task).large = Some(Large { stage: Stage::Again, tries });
            return Some(Err(e));
        }
    };
    reading.bytes.append(&mut active(world, task).found);
    let total = reading.extents.iter().map(|extent| extent.len as usize).sum::<usize>();
    if reading.bytes.len() < total {
        active(world, task).large = Some(Large { stage: Stage::Reading(reading), tries });
        read(world, task);
        return None;
    }
    match list_below(&reading.list, &reading.bytes) {
        Ok(None) => {}
        Ok(Some(list)) => {
            let extents = extents(&list).expect("put together just now");
            let reading = Reading { list, extents, bytes: Vec::new(), asked: false, ..reading };
            active(world, task).large = Some(Large { stage: Stage::Reading(reading), tries });
            read(world, task);
            return None;
        }
        Err(e) => {
            let text = format!("the lists of {:?} contradict their head: {e} (INV-63)", reading.of);
            world.broken(text);
            return Some(Err(Error::new(Status::Internal, "damaged list")));
        }
    }
    let Reading { of, claim, bytes, .. } = reading;
    if of.bytes() != bytes {
        world.broken(format!("the extents of {of:?} were read as other bytes (INV-39)"));
    }
    let header = ReplyHeader { status: Status::Ok, ..header };
    match claim {
        None => {
            world.reach("value read from extents");
            active(world, task).found = bytes;
            Some(Ok(header))
        }
        Some(claim) if reserves(&active(world, task).what) => {
            world.reach("item in extents reserved");
            Some(Ok(bring(world, task, claim, bytes, header, tries)))
        }
        Some(claim) => {
            ask_block(world, task, ack(claim, AckAction::Done));
            active(world, task).large = Some(Large { stage: Stage::Settling(claim, bytes), tries });
            go(world, task, CallEvent::Go);
            None
        }
    }
}

/// The operation ends with an item, as if a get had returned it.
fn bring(
    world: &mut World,
    task: usize,
    claim: Claim,
    bytes: Vec<u8>,
    header: ReplyHeader,
    tries: u32,
) -> ReplyHeader {
    let active = active(world, task);
    let LargeItem { number: first, deliveries } = claim.item;
    active.told = Items { first, deliveries, lengths: vec![bytes.len() as u32] }.encode();
    active.found = bytes;
    active.large = Some(Large { stage: Stage::Claimed(claim), tries });
    header
}

/// A request to a block of a queue: operation, target and arguments.
type BlockRequest = (Op, Target, Vec<u8>);

fn ask_block(world: &mut World, task: usize, (op, target, args): BlockRequest) {
    let active = active(world, task);
    active.call = Call::new(op, target, active.deadline);
    (active.args, active.payload) = (args, Arc::default());
}

/// The item was reserved, and is not taken by this try.
fn passed(world: &mut World, task: usize, claim: Claim) {
    let span = Span { begin: active(world, task).begin, end: world.now };
    let structure = active(world, task).structure;
    let known = world.structures.get_mut(&structure).expect("it has a task");
    if let Err(what) = known.queue.passed(span, claim.key, claim.item.deliveries) {
        world.broken(what);
    }
}

fn ack(Claim { at, item, .. }: Claim, action: AckAction) -> BlockRequest {
    let items = vec![(item.number, item.deliveries)];
    (Op::QueueAck, Target::Block(at), AckArgs { action, timeout_ms: 0, items }.encode())
}

/// The request for the extents of the next item, of an operation that takes or reserves items.
fn claim_of(what: &What) -> Option<BlockRequest> {
    let What::Queue(queueing) = what else { return None };
    let (target, args) = queueing.claim()?;
    Some((Op::QueueGetExtents, target, args.encode()))
}

fn reserves(what: &What) -> bool {
    matches!(what, What::Queue(queueing) if queueing.reserves())
}

/// Begins the operation again, unless its time is over.
fn again(
    world: &mut World,
    task: usize,
    tries: u32,
    over: bool,
) -> Option<Result<ReplyHeader, Error>> {
    active(world, task).large = Some(Large { stage: Stage::Again, tries });
    if over {
        let text = "it was replaced or moved again and again while it was read";
        return Some(Err(Error::new(Status::Busy, text)));
    }
    let active = active(world, task);
    let (op, target, args, payload) = lay_out(&active.what);
    active.call = Call::new(op, target, active.deadline);
    (active.args, active.payload) = (args, payload.into());
    go(world, task, CallEvent::Go);
    None
}

/// The next item was reserved, or not.
fn claimed(
    world: &mut World,
    task: usize,
    result: Result<ReplyHeader, Error>,
    tries: u32,
    over: bool,
) -> Option<Result<ReplyHeader, Error>> {
    active(world, task).large = Some(Large { stage: Stage::Again, tries });
    match result {
        Ok(header) if header.status == Status::QueueEmpty => again(world, task, tries, over),
        Ok(_) => {
            let active = active(world, task);
            let at = active.call.entry().expect("the block of an answered call is known").at();
            let item = LargeItem::decode(&active.told).expect("a block's answer can be read");
            read_list(world, task, Some((at, item)), tries);
            None
        }
        Err(e) => Some(Err(e)),
    }
}

/// The item that was read was acknowledged, or not.
fn settled(
    world: &mut World,
    task: usize,
    claim: Claim,
    bytes: Vec<u8>,
    result: Result<ReplyHeader, Error>,
    tries: u32,
    over: bool,
) -> Option<Result<ReplyHeader, Error>> {
    match result {
        Ok(header) if header.value == 1 => {
            world.reach("item in extents taken");
            Some(Ok(bring(world, task, claim, bytes, header, tries)))
        }
        // It was delivered again meanwhile.
        Ok(_) => {
            passed(world, task, claim);
            again(world, task, tries, over)
        }
        Err(e) if e.status == Status::UnknownBlock => {
            passed(world, task, claim);
            again(world, task, tries, over)
        }
        Err(e) => {
            passed(world, task, claim);
            active(world, task).large = Some(Large { stage: Stage::Again, tries });
            Some(Err(e))
        }
    }
}

/// A request in words, for the trace.
pub fn describe(header: &RequestHeader, args: &[u8]) -> String {
    // Adoptions and drops have the same form.
    match ExtentDropRequest::decode(args) {
        Ok(of) if matches!(header.op, Op::ExtentAdopt | Op::ExtentDrop) => {
            let ids = of.extents.iter().map(|e| (BlockId(e.block).to_string(), e.epoch, e.id));
            format!("{:?} for {:x}: {:?}", header.op, of.owner, ids.collect::<Vec<_>>())
        }
        _ => format!("{:?} at {}", header.op, header.at.block),
    }
}

/// INV-39, in every existing structure: its content names exactly the extents that have an owner, and
/// these make the values that were put. False if a structure could not be read because a part of it
/// is moving.
pub fn judge(world: &mut World) -> bool {
    let stores = world
        .structures
        .iter()
        .filter(|(_, k)| k.opened.kind != Kind::File && !k.gone && !k.lists.is_empty());
    let stores: Vec<StructureId> = stores.map(|(id, _)| *id).collect();
    let mut read = true;
    for structure in stores {
        match judge_store(world, structure) {
            Ok(was_read) => read &= was_read,
            Err(what) => {
                let known = &world.structures[&structure];
                let text = format!("{}:{}: {what} (INV-39)", known.path, known.name);
                world.broken(text);
            }
        }
    }
    read
}

fn judge_store(world: &mut World, structure: StructureId) -> Result<bool, String> {
    let job = world.jobs[world.structures[&structure].job].id;
    let actor = Actor::driver(job);
    let Ok(Reply::Opened(opened)) =
        world.command_of(job, Command::ReopenStructure { actor, job, structure })
    else {
        return Ok(true);
    };
    let command = Command::ExtentBlocks { actor, job, structure, bytes: 0, full: &[], value: 0 };
    let Ok(Reply::Extents(blocks)) = world.command_of(job, command) else {
        return Err("it is there, and its extents cannot be asked for".into());
    };
    let Some(named) = named(world, &opened)? else { return Ok(false) };
    let mut held = BTreeMap::new();
    for entry in blocks {
        let server = world.servers.iter_mut().find(|s| s.is(entry.at.block.server()));
        let server = server.ok_or("it names a server that is gone")?;
        for (id, bytes) in server.adopted(entry.at)? {
            held.insert((entry.at, id), bytes);
        }
    }
    let mut due = BTreeSet::new();
    for (list, of) in named {
        let mut list = list;
        let value = loop {
            let mut parts: Vec<&[u8]> = Vec::new();
            for extent in extents(&list).map_err(|e| e.to_string())? {
                let bytes = held.get(&(extent.at, extent.id));
                parts.push(bytes.ok_or_else(|| format!("{of:?} names {extent:?}, which is gone"))?);
                if !due.insert((extent.at, extent.id)) {
                    return Err(format!("{extent:?} is named twice"));
                }
            }
            let bytes = parts.concat();
            match list_below(&list, &bytes).map_err(|e| e.to_string())? {
                Some(below) => list = below,
                None => break bytes,
            }
        };
        if value != of.bytes() {
            return Err(format!("the extents of {of:?} have other bytes"));
        }
    }
    // A server that died may have had drops that the servers of the extents had not received: no
    // other node knows of them, and the extents stay as long as the store (ADR 0018).
    let died = world.servers.iter().any(|server| !server.alive || server.life > 0);
    match held.keys().find(|extent| !died && !due.contains(extent)) {
        Some(extent) => Err(format!("{extent:?} is kept, and nothing names it")),
        None => Ok(true),
    }
}

/// A list that the content of a structure names, and the content of its extents.
type NamedList = (Vec<u8>, Written);

/// The lists that the content of a structure names. `None` while a part of it moves.
fn named(world: &mut World, opened: &Opened) -> Result<Option<Vec<NamedList>>, String> {
    let mut named = Vec::new();
    for entry in &opened.map.entries {
        let server = world.servers.iter_mut().find(|s| s.is(entry.at.block.server()));
        let server = server.ok_or("a map names a server that is gone")?;
        let Some(lists) = server.listed(opened, entry.at, (entry.start, entry.end))? else {
            return Ok(None);
        };
        for list in lists {
            let known = &world.structures[&opened.structure].lists;
            let of = known.get(&list).ok_or("the structure names a list that no put has named")?;
            named.push((list, *of));
        }
    }
    Ok(Some(named))
}
