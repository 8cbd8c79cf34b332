//! Notices of changes (paper, Table 1: subscribe, listener.get). The blocks push them over one
//! connection each; the listener reads them when the caller requests the next.
//!
//! The listener has no thread. Unread notices wait in the sockets. If a server cannot send more, it
//! drops notices and reports that (`Heard::Gap`), so that a slow listener costs bounded memory.

use crate::context::Context;
use crate::error::Error;
use crate::interrupt;
use crate::socket::{PATIENCE, StreamSocket, Wait, await_some};
use crate::structure::Structure;
use crate::transport::{ExchangeFailure, Sink, Transport};
use honeycomb_types::{BlockAt, BlockId, Notices, Time};
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

/// Notices taken from one block at a time: the rest stays in the socket, where its bytes are
/// bounded, and no block takes precedence over the others.
const TAKEN_AT_A_TIME: usize = 256;

/// The content of a notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Bytes were appended to a file.
    Append {
        /// Offset of the first appended byte.
        offset: u64,
        /// Number of appended bytes.
        length: u64,
    },
    /// A file was sealed at this size.
    Seal {
        /// Its size in bytes.
        size: u64,
    },
    /// A queue has more items to take.
    Data {
        /// How many were added. Items added while the block was being subscribed to may be reported
        /// twice.
        items: u64,
    },
    /// Items were taken from a queue.
    Space {
        /// How many were taken.
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
    /// Changes were not reported because earlier ones were not read in time; `None` if the number
    /// is unknown because a connection was lost.
    Gap {
        /// How many were missed.
        missed: Option<u64>,
    },
}

/// One notice. Numbers grow within a block, with gaps where a filter leaves out changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The change.
    pub heard: Heard,
    /// The block in which it happened.
    pub at: BlockAt,
    /// Its number there.
    pub number: u64,
}

/// A block with a subscription.
struct SubscribedBlock {
    entry: MapEntry,
    transport: Transport,
    /// Whether the successor reports later changes; this block then reports takes only.
    handed_over: bool,
}

/// A subscription to changes of one structure.
///
/// Notices arrive in order per key, per end of a queue and per file, and never before a reader can
/// see the change (INV-24). Not shared: one thread at a time requests the next.
pub struct Listener {
    structure: Structure,
    /// The changes that the structure reports.
    notices: Notices,
    /// Whether its blocks own ranges of hashes.
    has_ranges: bool,
    context: Arc<Context>,
    kinds: u16,
    filter: Filter,
    sources: Vec<SubscribedBlock>,
    ready: VecDeque<Notification>,
    /// Bytes of a file that were reported.
    reported_to: u64,
    /// Bytes in the file when its tail was subscribed to.
    there_to: u64,
    /// Whether the seal of the file or the end of the queue was reported.
    reported_end: bool,
}

impl Listener {
    /// Subscribes to every block in which the changes can happen. `wanted` is a set of bits from
    /// `wire::notice::kinds` that the structure's kind has. After the return, every missed change
    /// is reported as a gap.
    pub(crate) fn open(
        structure: Structure,
        context: Arc<Context>,
        wanted: u16,
        filter: Filter,
    ) -> Result<Listener, Error> {
        let notices = structure.notices();
        let possible = match notices {
            Notices::Appends => kinds::APPEND | kinds::SEAL,
            Notices::Items => kinds::DATA | kinds::SPACE | kinds::CLOSE,
            Notices::Keys => kinds::PUT | kinds::DELETE,
            Notices::Chosen => kinds::ALL,
            Notices::Never => 0,
        };
        if wanted == 0 || wanted & !possible != 0 {
            let text = format!("a {} does not report changes of these kinds", structure.kind());
            return Err(Error::new(Status::InvalidArgument, text));
        }
        let mut listener = Listener {
            has_ranges: structure.has_ranges(),
            structure,
            notices,
            context,
            kinds: wanted,
            filter,
            sources: Vec::new(),
            ready: VecDeque::new(),
            reported_to: 0,
            there_to: 0,
            reported_end: false,
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
            if self.notices == Notices::Appends {
                let Some(tail) = entries.pop() else {
                    let text = format!("{}: its map has no block", self.structure.address());
                    return Err(Error::new(Status::BadFrame, text));
                };
                self.reported_to = self.reported_to.max(tail.start);
                entries = vec![tail];
            }
            let mut all = true;
            for entry in entries {
                all &= self.subscribe(entry, false)?;
            }
            if all {
                return Ok(());
            }
            // A block was removed meanwhile, and possibly also the reference to its successor.
            if clock.now() >= deadline {
                let text = "could not subscribe: its blocks were removed meanwhile";
                return Err(Error::new(Status::DeadlineExceeded, text));
            }
            clock.sleep_until(clock.now() + PAUSE);
        }
    }

    /// Subscribes to one block. Returns false if it is gone; the map is then fresh. `late` if
    /// changes that should be reported may have happened there.
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
            let subscribed =
                context.pool.open_server(&place, &mut wait).and_then(|mut transport| {
                    let number = structure.present(&mut transport, &mut wait)?;
                    let filter = self.filter.clone();
                    let args =
                        SubscribeArgs { subscription: 1, kinds: self.kinds, filter }.encode();
                    let at = entry.at();
                    let header =
                        RequestHeader { at, grant: number, ..RequestHeader::new(Op::Subscribe) };
                    let mut reply_args = Vec::new();
                    let reply = transport.exchange(
                        header,
                        &args,
                        &[],
                        &mut wait,
                        &mut reply_args,
                        Sink::None,
                    )?;
                    let appends = self.notices == Notices::Appends;
                    let there = match reply.status {
                        Status::Ok if late || appends => {
                            content(self.notices, &mut transport, header, &mut wait)?
                        }
                        _ => InitialContent::default(),
                    };
                    Ok((transport, reply, reply_args, there))
                });
            match subscribed {
                Ok((transport, reply, _, there)) if reply.status == Status::Ok => {
                    let (at, start) = (entry.at(), entry.start);
                    let first = self.sources.iter().all(|source| source.entry.at() != at);
                    assert!(first, "INV-24: {at:?} would report each change twice");
                    self.sources.push(SubscribedBlock { entry, transport, handed_over: false });
                    if late && has_no_content(self.notices) && reply.value > 0 {
                        // The block changed after it became the successor and before this
                        // subscription.
                        let heard = Heard::Gap { missed: None };
                        self.hear(Notification { heard, at, number: reply.value });
                    }
                    match late {
                        true => self.catch_up(reply.value, there),
                        false => self.there_to = self.there_to.max(start + there.length),
                    }
                    return Ok(true);
                }
                Ok((_, reply, reply_args, _)) => match reply.status {
                    Status::GrantExpired | Status::GrantRevoked => {
                        self.structure.refresh(deadline)?
                    }
                    // The block was removed meanwhile; the fresh map has its successor, or the
                    // error has the reason.
                    Status::WrongEpoch | Status::UnknownBlock => {
                        return self.structure.refresh(deadline).map(|()| false);
                    }
                    status => return Err(Error::refused(status, &reply_args)),
                },
                Err(ExchangeFailure::Gone { reason, .. } | ExchangeFailure::Refused(reason)) => {
                    return Err(reason);
                }
                Err(failure) => {
                    self.structure.refresh(deadline)?;
                    let ended = self.structure.with_map(|map| {
                        let at = entry.at();
                        let beyond = map.entries.last().is_some_and(|e| e.start >= entry.start);
                        beyond && map.entries.iter().all(|e| e.at() != at)
                    });
                    if ended {
                        // The block moved to another server, and the connection to it was closed.
                        return Ok(false);
                    }
                    if clock.now() >= deadline {
                        let why = match failure {
                            ExchangeFailure::Lost { why, .. }
                            | ExchangeFailure::Nobody { why, .. } => why,
                            _ => "no reply arrived in time".to_owned(),
                        };
                        let text = format!("could not subscribe: {why}");
                        return Err(Error::new(Status::DeadlineExceeded, text));
                    }
                    clock.sleep_until(clock.now() + PAUSE);
                }
            }
        }
    }

    /// Reports the changes in the newest source before its subscription.
    fn catch_up(&mut self, number: u64, there: InitialContent) {
        let source = self.sources.last().expect("just subscribed to");
        let (at, start) = (source.entry.at(), source.entry.start);
        let file = self.notices == Notices::Appends;
        // The content that a block of a file already had at its subscription, and that it passed on
        // to this one, is not new.
        let from = if file { self.reported_to.max(self.there_to).saturating_sub(start) } else { 0 };
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

    /// Reports a change, unless it was reported with the content of a block at its subscription.
    fn hear(&mut self, notification: Notification) {
        let again = match notification.heard {
            // Nobody knows the content of its blocks.
            _ if self.notices == Notices::Chosen => false,
            Heard::Append { offset, length } => {
                let before = self.reported_to;
                self.reported_to = before.max(offset + length);
                offset + length <= before
            }
            Heard::Seal { .. } | Heard::Close => std::mem::replace(&mut self.reported_end, true),
            _ => false,
        };
        if !again && self.wants(&notification.heard) {
            self.ready.push_back(notification);
        }
    }

    /// The content of a block may be of a kind that the caller did not subscribe to.
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

    /// The next notice, after a wait of up to `wait`; `None` if there is none, or if a signal
    /// interrupted the thread. The error says why no more will arrive.
    pub fn next(&mut self, wait: Duration) -> Result<Option<Notification>, Error> {
        self.context.pool.enter();
        let clock = self.context.pool.clock();
        let until = clock.now() + wait;
        let mut ask_at = clock.now() + PATIENCE;
        loop {
            // Taken notices are returned before more are taken: a slow reader does not read ahead.
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

    /// Waits for any source; returns true if a signal or the thread's interrupt ended the wait.
    fn sleep(&mut self, until: Time) -> Result<bool, Error> {
        if self.sources.is_empty() {
            return Ok(interrupt::pause(self.context.pool.clock(), until));
        }
        let mut waiting: Vec<&mut StreamSocket> =
            self.sources.iter_mut().map(|source| source.transport.line()).collect();
        match await_some(&mut waiting, until, true) {
            Ok(_) => Ok(false),
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(true),
            Err(e) => Err(Error::new(Status::Internal, format!("cannot wait: {e}"))),
        }
    }

    /// Reads the notices that the sources have pushed, without waiting. Returns whether there may
    /// be more notices, of which the sockets give no further event.
    fn take_pushed(&mut self) -> Result<bool, Error> {
        let (mut index, mut taken, mut more) = (0, 0, false);
        while index < self.sources.len() {
            if taken == TAKEN_AT_A_TIME {
                (index, taken, more) = (index + 1, 0, true);
                continue;
            }
            taken += 1;
            let at = self.sources[index].entry.at();
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
            // New subscriptions were appended after it.
            let source = self.sources[index].entry.at();
            assert_eq!(source, at, "INV-24: the subscription to {at:?} moved during its notice");
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
            Notice::Handover { to, .. } if self.has_ranges => {
                // The move may still be cancelled: then this block reports its changes as before.
                source.handed_over = to.entry.start <= start;
                // A custom kind need not count the changes that nobody subscribed to.
                let counted = self.notices == Notices::Keys;
                if !self.subscribe(to.entry, counted)? {
                    self.missed(at)?;
                } else if !counted {
                    self.hear(Notification { heard: Heard::Gap { missed: None }, at, number });
                }
                return Ok(Then::Stay);
            }
            Notice::Handover { length: 0, to } if moves_whole(self.notices) => {
                // All of its content is in another block now, whose changes so far have not been
                // reported.
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
                    // The successor was created and removed before the subscription, and only the
                    // map knows what followed.
                    self.missed(at)?;
                }
                // A queue's items are still taken from this block; a file's block has reported
                // everything.
                let file = self.notices == Notices::Appends;
                return Ok(if file { Then::Drop } else { Then::Stay });
            }
            Notice::Ended(..) => return Ok(Then::Lost),
        };
        self.hear(Notification { heard, at, number });
        Ok(Then::Stay)
    }

    /// A source has ended or its connection broke. Either the structure is gone, or the block was
    /// retired, or the listener subscribes again and reports the changes meanwhile as a gap.
    fn lost(&mut self, source: &SubscribedBlock) -> Result<(), Error> {
        self.structure.refresh(self.context.deadline())?;
        let at = source.entry.at();
        // Listeners of a structure with ranges get the notice before the move is committed; if the
        // move was cancelled, the block still has its range.
        let kept = self.has_ranges
            && self.structure.with_map(|map| map.entries.iter().any(|e| e.at() == at));
        if source.handed_over && !kept {
            return Ok(());
        }
        self.missed(at)
    }

    /// Subscribes again, and reports that an unknown number of changes was missed.
    fn missed(&mut self, at: BlockAt) -> Result<(), Error> {
        self.subscribe_all()?;
        self.hear(Notification { heard: Heard::Gap { missed: None }, at, number: 0 });
        Ok(())
    }
}

/// The action on a source after a notice.
enum Then {
    Stay,
    /// It will report nothing more.
    Drop,
    /// Its connection ended too early.
    Lost,
}

/// A change as users see it: offsets in a file count from its beginning.
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

/// Whether a late subscriber gets only the number of the changes before it, and cannot ask for the content.
fn has_no_content(notices: Notices) -> bool {
    matches!(notices, Notices::Keys | Notices::Chosen)
}

/// Whether a handover of length 0 reports a block that moved to another server, with changes that no
/// content reports.
fn moves_whole(notices: Notices) -> bool {
    matches!(notices, Notices::Items | Notices::Chosen)
}

/// The content of a block before its subscription, which no notice reports.
#[derive(Clone, Copy, Default)]
struct InitialContent {
    /// Bytes of a file's block, items of a queue's.
    length: u64,
    /// The file was sealed in it, or the queue was closed.
    ended: bool,
}

fn content(
    notices: Notices,
    transport: &mut Transport,
    like: RequestHeader,
    wait: &mut Wait<'_>,
) -> Result<InitialContent, ExchangeFailure> {
    let (op, args): (Op, &[u8]) = match notices {
        Notices::Appends => (Op::FileSize, &[]),
        Notices::Items => (Op::QueueLength, &[0]),
        Notices::Keys | Notices::Chosen | Notices::Never => return Ok(InitialContent::default()),
    };
    let (header, mut reply_args) = (RequestHeader { op, ..like }, Vec::new());
    let reply = transport.exchange(header, args, &[], wait, &mut reply_args, Sink::None)?;
    let ended = match (reply.status, op) {
        (Status::Ok, Op::FileSize) => reply_args.first() == Some(&1),
        (Status::Ok, _) => {
            Counts::decode(&reply_args).map_err(|e| ExchangeFailure::Refused(e.into()))?.closed
        }
        // A full block also replies with its length, and is not the last one.
        (Status::Moved, _) => false,
        _ => return Ok(InitialContent::default()),
    };
    Ok(InitialContent { length: reply.value, ended })
}
