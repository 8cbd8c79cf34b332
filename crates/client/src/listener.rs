//! Notices of changes (paper, Table 1: subscribe, listener.get): pushed by the blocks, one
//! connection to each, read when somebody asks for the next.
//!
//! Nothing here runs by itself. What is not read waits in the sockets; when a server cannot send any
//! more it leaves notices out and tells so (`Heard::Gap`), so that a slow listener costs bounded
//! memory.

use crate::context::Context;
use crate::error::Error;
use crate::interrupt;
use crate::line::{Line, PATIENCE, Wait, await_some};
use crate::structure::Structure;
use crate::transport::{Failure, Sink, Transport};
use honeycomb_types::{BlockAt, BlockId, Kind, Time};
use honeycomb_wire::messages::MapEntry;
use honeycomb_wire::notice::{Change, Filter, Notice, SubscribeArgs, kinds};
use honeycomb_wire::queue::Counts;
use honeycomb_wire::{Op, RequestHeader, Status};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

/// The pause between two tries to subscribe.
const PAUSE: Duration = Duration::from_millis(20);

/// Notices that are taken from one block at a time: the rest stays where its bytes are bounded, and
/// no block stands before the others.
const TAKEN_AT_A_TIME: usize = 256;

/// What was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Bytes were appended to a file.
    Append {
        /// Where they begin.
        offset: u64,
        /// How many.
        length: u64,
    },
    /// A file was sealed at this size.
    Seal {
        /// Bytes.
        size: u64,
    },
    /// A queue has more items to take.
    Data {
        /// How many came. Those that came into a block while it was being subscribed to may be told
        /// twice.
        items: u64,
    },
    /// Items were taken from a queue.
    Space {
        /// How many.
        items: u64,
    },
    /// A queue was closed.
    Close,
    /// A key got a value.
    Put {
        /// The key.
        key: Box<[u8]>,
    },
    /// A key was deleted.
    Delete {
        /// The key.
        key: Box<[u8]>,
    },
    /// Changes were not told, because those before them were not read in time; `None` when nobody
    /// knows how many, because a connection was lost.
    Gap {
        /// How many.
        missed: Option<u64>,
    },
}

/// One notice. Numbers grow within a block, and are not dense where a filter leaves changes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// What happened.
    pub heard: Heard,
    /// In which block.
    pub at: BlockAt,
    /// Its number there.
    pub number: u64,
}

/// One block that is listened to.
struct Source {
    entry: MapEntry,
    transport: Transport,
    /// What follows happens elsewhere; only takes are still heard of.
    handed_over: bool,
}

/// A subscription to changes of one structure.
///
/// Notices come in order per key, per end of a queue and per file, never before a reader can see what
/// they tell of (INV-24). Not shared: one thread at a time asks for the next.
pub struct Listener {
    structure: Structure,
    context: Arc<Context>,
    kinds: u16,
    filter: Filter,
    sources: Vec<Source>,
    ready: VecDeque<Notification>,
    /// Bytes of a file of which was told.
    told_to: u64,
    /// Bytes that the file had when its tail was subscribed to.
    there_to: u64,
    /// It was told that the file was sealed, or the queue closed.
    told_end: bool,
}

impl Listener {
    /// Subscribes to every block that the changes can happen in. `wanted` is bits of
    /// `wire::notice::kinds`, those of the structure's kind. From its return on nothing is missed
    /// without being told.
    pub(crate) fn open(
        structure: Structure,
        context: Arc<Context>,
        wanted: u16,
        filter: Filter,
    ) -> Result<Listener, Error> {
        let possible = match structure.kind() {
            Kind::File => kinds::APPEND | kinds::SEAL,
            Kind::Queue => kinds::DATA | kinds::SPACE | kinds::CLOSE,
            Kind::Kv => kinds::PUT | kinds::DELETE,
            // They let their callers wait instead.
            Kind::Extents | Kind::Custom(_) => 0,
        };
        if wanted == 0 || wanted & !possible != 0 {
            let text = format!("a {} does not report changes of these kinds", structure.kind());
            return Err(Error::new(Status::InvalidArgument, text));
        }
        let mut listener = Listener {
            structure,
            context,
            kinds: wanted,
            filter,
            sources: Vec::new(),
            ready: VecDeque::new(),
            told_to: 0,
            there_to: 0,
            told_end: false,
        };
        listener.subscribe_all()?;
        Ok(listener)
    }

    fn subscribe_all(&mut self) -> Result<(), Error> {
        let deadline = self.context.deadline();
        let clock = self.context.pool.clock();
        self.structure.refresh(deadline)?;
        loop {
            let mut entries = self.structure.entries();
            if self.structure.kind() == Kind::File {
                entries.drain(..entries.len() - 1);
                self.told_to = self.told_to.max(entries[0].start);
            }
            let mut all = true;
            for entry in entries {
                all &= self.subscribe(entry, false)?;
            }
            if all {
                return Ok(());
            }
            // A block went in between, and with it perhaps the way to what follows it.
            if clock.now() >= deadline {
                let text = "could not subscribe: its blocks were removed meanwhile";
                return Err(Error::new(Status::DeadlineExceeded, text));
            }
            clock.sleep_until(clock.now() + PAUSE);
        }
    }

    /// Subscribes to one block; false when it is gone, and then the map is fresh. `late` when changes
    /// may have happened there that should be told.
    fn subscribe(&mut self, entry: MapEntry, late: bool) -> Result<bool, Error> {
        if self.sources.iter().any(|s| s.entry.at() == entry.at()) {
            return Ok(true);
        }
        let context = self.context.clone();
        let deadline = context.deadline();
        let place = (entry.address.clone(), BlockId(entry.block).shard().0);
        let clock = context.pool.clock();
        loop {
            let structure = &self.structure;
            let mut idle = || structure.ask_whether_gone(deadline);
            let mut wait = Wait { deadline, idle: &mut idle, interruptible: false };
            let subscribed = context.pool.open(&place, &mut wait).and_then(|mut transport| {
                let number = structure.present(&mut transport, &mut wait)?;
                let filter = self.filter.clone();
                let args = SubscribeArgs { subscription: 1, kinds: self.kinds, filter }.encode();
                let at = entry.at();
                let header =
                    RequestHeader { at, grant: number, ..RequestHeader::new(Op::Subscribe) };
                let mut reply = Vec::new();
                let told =
                    transport.exchange(header, &args, &[], &mut wait, &mut reply, Sink::None)?;
                let file = structure.kind() == Kind::File;
                let there = match told.status {
                    Status::Ok if late || file => {
                        content(structure, &mut transport, header, &mut wait)?
                    }
                    _ => Content::default(),
                };
                Ok((transport, told, reply, there))
            });
            match subscribed {
                Ok((transport, told, _, there)) if told.status == Status::Ok => {
                    let (at, start) = (entry.at(), entry.start);
                    self.sources.push(Source { entry, transport, handed_over: false });
                    if late && self.structure.kind() == Kind::Kv && told.value > 0 {
                        // It has changed since it took over, and nobody was there to hear of it.
                        let heard = Heard::Gap { missed: None };
                        self.hear(Notification { heard, at, number: told.value });
                    }
                    match late {
                        true => self.catch_up(told.value, there),
                        false => self.there_to = self.there_to.max(start + there.length),
                    }
                    return Ok(true);
                }
                Ok((_, told, reply, _)) => match told.status {
                    Status::GrantExpired | Status::GrantRevoked => {
                        self.structure.refresh(deadline)?
                    }
                    // It went while we were on our way; the map knows better, or the reason.
                    Status::WrongEpoch | Status::UnknownBlock => {
                        return self.structure.refresh(deadline).map(|()| false);
                    }
                    status => return Err(Error::refused(status, &reply)),
                },
                Err(Failure::Gone { reason, .. } | Failure::Refused(reason)) => return Err(reason),
                Err(failure) => {
                    self.structure.refresh(deadline)?;
                    let ended = self.structure.with_map(|map| {
                        let at = entry.at();
                        let beyond = map.entries.last().is_some_and(|e| e.start >= entry.start);
                        beyond && map.entries.iter().all(|e| e.at() != at)
                    });
                    if ended {
                        // It was moved to another server, and its own has ended.
                        return Ok(false);
                    }
                    if clock.now() >= deadline {
                        let text = format!("could not subscribe: {failure:?}");
                        return Err(Error::new(Status::DeadlineExceeded, text));
                    }
                    clock.sleep_until(clock.now() + PAUSE);
                }
            }
        }
    }

    /// Tells what happened in the newest source before it was subscribed to.
    fn catch_up(&mut self, number: u64, there: Content) {
        let source = self.sources.last().expect("just subscribed to");
        let (at, start) = (source.entry.at(), source.entry.start);
        let file = self.structure.kind() == Kind::File;
        // What a block of a file had when it was subscribed to, and took along to this one, is no news.
        let from = if file { self.told_to.max(self.there_to).saturating_sub(start) } else { 0 };
        if there.length > from {
            let heard = match file {
                true => Heard::Append { offset: start + from, length: there.length - from },
                false => Heard::Data { items: there.length },
            };
            self.hear(Notification { heard, at, number });
        }
        if there.ended {
            let size = start + there.length;
            let heard = if file { Heard::Seal { size } } else { Heard::Close };
            self.hear(Notification { heard, at, number });
        }
    }

    /// Tells something, unless it was told by what a block had when it was subscribed to.
    fn hear(&mut self, notification: Notification) {
        let again = match notification.heard {
            Heard::Append { offset, length } => {
                let before = self.told_to;
                self.told_to = before.max(offset + length);
                offset + length <= before
            }
            Heard::Seal { .. } | Heard::Close => std::mem::replace(&mut self.told_end, true),
            _ => false,
        };
        if !again && self.wants(&notification.heard) {
            self.ready.push_back(notification);
        }
    }

    /// What a block had may be of another kind than the server was asked to tell of.
    fn wants(&self, heard: &Heard) -> bool {
        let kind = match heard {
            Heard::Append { .. } => kinds::APPEND,
            Heard::Seal { .. } => kinds::SEAL,
            Heard::Data { .. } => kinds::DATA,
            Heard::Close => kinds::CLOSE,
            _ => return true,
        };
        self.kinds & kind != 0
    }

    /// The next notice, waiting up to `wait` for it; `None` when there is none, or when a signal came
    /// to the thread. The error tells why there will be no more.
    pub fn next(&mut self, wait: Duration) -> Result<Option<Notification>, Error> {
        self.context.pool.enter();
        let clock = self.context.pool.clock();
        let until = clock.now() + wait;
        let mut ask_at = clock.now() + PATIENCE;
        loop {
            // What was taken is handed out before more is: who reads slowly reads ahead no further.
            if let Some(notification) = self.ready.pop_front() {
                return Ok(Some(notification));
            }
            let more = self.take_pushed()?;
            if !self.ready.is_empty() {
                continue;
            }
            let now = clock.now();
            if now >= until {
                return Ok(None);
            }
            if now >= ask_at {
                self.structure.ask_whether_gone(now + PATIENCE)?;
                ask_at = clock.now() + PATIENCE;
            }
            if !more && self.sleep(until.min(ask_at))? {
                return Ok(None);
            }
        }
    }

    /// Waits for any source; true when a signal or the thread's interrupt came.
    fn sleep(&mut self, until: Time) -> Result<bool, Error> {
        if self.sources.is_empty() {
            return Ok(interrupt::pause(self.context.pool.clock(), until));
        }
        let mut waiting: Vec<&mut Line> =
            self.sources.iter_mut().map(|source| source.transport.line()).collect();
        match await_some(&mut waiting, until, true) {
            Ok(_) => Ok(false),
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(true),
            Err(e) => Err(Error::new(Status::Internal, format!("cannot wait: {e}"))),
        }
    }

    /// Reads what the sources have pushed, without waiting; whether there may be more of it, which
    /// then need not show at the sockets.
    fn take_pushed(&mut self) -> Result<bool, Error> {
        let (mut index, mut taken, mut more) = (0, 0, false);
        while index < self.sources.len() {
            if taken == TAKEN_AT_A_TIME {
                (index, taken, more) = (index + 1, 0, true);
                continue;
            }
            taken += 1;
            let next = match self.sources[index].transport.pushed() {
                Ok(None) => {
                    (index, taken) = (index + 1, 0);
                    continue;
                }
                Ok(Some((number, args))) => {
                    let (_, notice) = Notice::decode(&args)?;
                    self.notice(index, number, notice)?
                }
                Err(_) => Then::Lost,
            };
            // What was subscribed to meanwhile is behind it.
            match next {
                Then::Stay => {}
                Then::Drop => {
                    taken = 0;
                    drop(self.sources.remove(index));
                }
                Then::Lost => {
                    taken = 0;
                    let lost = self.sources.remove(index);
                    self.lost(&lost)?;
                }
            }
        }
        Ok(more)
    }

    fn notice(&mut self, index: usize, number: u64, notice: Notice) -> Result<Then, Error> {
        let source = &mut self.sources[index];
        let (at, start) = (source.entry.at(), source.entry.start);
        let heard = match notice {
            Notice::Changed(change) => heard(change, start),
            Notice::Gap(missed) => Heard::Gap { missed: Some(missed) },
            Notice::Handover { to, .. } if self.structure.kind() == Kind::Kv => {
                source.handed_over = to.entry.start <= start;
                if !self.subscribe(to.entry, true)? {
                    self.missed(at)?;
                }
                return Ok(Then::Stay);
            }
            Notice::Handover { length: 0, to } if self.structure.kind() == Kind::Queue => {
                // All of it is elsewhere now, and what happened there so far nobody has told us.
                source.handed_over = true;
                if !self.subscribe(MapEntry { start, ..to.entry }, false)? {
                    self.subscribe_all()?;
                }
                self.hear(Notification { heard: Heard::Gap { missed: None }, at, number });
                return Ok(Then::Drop);
            }
            Notice::Handover { length, to } => {
                source.handed_over = true;
                let next = MapEntry { start: start + length, ..to.entry };
                if !self.subscribe(next, true)? {
                    // It came and went before we did, and nobody but the map knows what followed.
                    self.missed(at)?;
                }
                // A queue's items are still taken from it; a file's block has said everything.
                let file = self.structure.kind() == Kind::File;
                return Ok(if file { Then::Drop } else { Then::Stay });
            }
            Notice::Ended(..) => return Ok(Then::Lost),
        };
        self.hear(Notification { heard, at, number });
        Ok(Then::Stay)
    }

    /// A source has ended or its connection broke: the structure is gone, or the block was retired,
    /// or it is subscribed to again and what happened meanwhile is a gap.
    fn lost(&mut self, source: &Source) -> Result<(), Error> {
        self.structure.refresh(self.context.deadline())?;
        let at = source.entry.at();
        // Who listens to a store is told before the move is committed; when it was taken back the block
        // has its range as before.
        let kept = self.structure.kind() == Kind::Kv
            && self.structure.with_map(|map| map.entries.iter().any(|e| e.at() == at));
        if source.handed_over && !kept {
            return Ok(());
        }
        self.missed(at)
    }

    /// Subscribes anew, and tells that nobody knows what happened meanwhile.
    fn missed(&mut self, at: BlockAt) -> Result<(), Error> {
        self.subscribe_all()?;
        self.hear(Notification { heard: Heard::Gap { missed: None }, at, number: 0 });
        Ok(())
    }
}

/// What becomes of a source after a notice.
enum Then {
    Stay,
    /// It has nothing more to say.
    Drop,
    /// It has ended before its time.
    Lost,
}

/// A change as users see it: the offsets of a file count from its beginning.
fn heard(change: Change, start: u64) -> Heard {
    match change {
        Change::Append { offset, length } => Heard::Append { offset: start + offset, length },
        Change::Seal { length } => Heard::Seal { size: start + length },
        Change::Data { items } => Heard::Data { items },
        Change::Space { items } => Heard::Space { items },
        Change::Close => Heard::Close,
        Change::Put { key } => Heard::Put { key },
        Change::Delete { key } => Heard::Delete { key },
    }
}

/// What a block has that is not told of any more.
#[derive(Clone, Copy, Default)]
struct Content {
    /// Bytes of a file's, items of a queue's.
    length: u64,
    /// The file was sealed in it, or the queue closed.
    ended: bool,
}

fn content(
    structure: &Structure,
    transport: &mut Transport,
    like: RequestHeader,
    wait: &mut Wait<'_>,
) -> Result<Content, Failure> {
    let (op, args): (Op, &[u8]) = match structure.kind() {
        Kind::File => (Op::FileSize, &[]),
        Kind::Queue => (Op::QueueLength, &[0]),
        Kind::Kv | Kind::Extents | Kind::Custom(_) => return Ok(Content::default()),
    };
    let (header, mut told) = (RequestHeader { op, ..like }, Vec::new());
    let reply = transport.exchange(header, args, &[], wait, &mut told, Sink::None)?;
    let ended = match (reply.status, op) {
        (Status::Ok, Op::FileSize) => told.first() == Some(&1),
        (Status::Ok, _) => Counts::decode(&told).map_err(|e| Failure::Refused(e.into()))?.closed,
        // A block that is full answers with its length as well, and is not the last one.
        (Status::Moved, _) => false,
        _ => return Ok(Content::default()),
    };
    Ok(Content { length: reply.value, ended })
}
