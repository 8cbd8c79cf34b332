//! Items of a queue that are too large for a block: lists of extents (ADR 0018, 0057).
//!
//! Writing: as a large value of a key-value store (`large.rs`); one put names the extents. Reading: an
//! ordinary get is refused while such an item is next. The item is reserved instead, its extents are read,
//! and it is acknowledged, which drops them. So an item whose consumer dies while it reads is delivered
//! again, and a consumer that was too slow does not return an item that another consumer has.

use crate::error::Error;
use crate::interrupt;
use crate::large::{Extents, TRIES};
use crate::queue::{Delivery, Queue};
use crate::route::Target;
use crate::structure::{Args, Exchange};
use crate::transport::Sink;
use honeycomb_types::limits::LARGE_FRACTION;
use honeycomb_types::{Time, Verbs};
use honeycomb_wire::extents::{PutExtents, StoredWhen, extents, value_length};
use honeycomb_wire::queue::{AckAction, GetArgs, GetExtentsArgs, LargeItem};
use honeycomb_wire::{Field, Op, Status};
use std::time::Duration;

/// The time within which a consumer reads the extents of an item that it takes: the item is reserved for so
/// long, and delivered again if the consumer dies.
const READ_WITHIN: Duration = Duration::from_secs(60);
/// Bytes for each millisecond with which an item is expected to be read at least. A longer item is held for
/// longer.
const SLOWEST_READ: u64 = 10_000;
/// The pause before a full queue is asked again whether it has room.
const ROOM_AGAIN: Duration = Duration::from_millis(10);
/// The longest such pause: it doubles each time.
const ROOM_AGAIN_LATEST: Duration = Duration::from_millis(200);
/// The time for which one request waits for space; a signal ends the wait after it.
const PUT_STEP: Duration = Duration::from_millis(200);

impl Queue {
    pub(crate) fn extents(&self) -> Extents<'_> {
        Extents(self.structure())
    }

    /// Maximum bytes of one item.
    pub fn item_limit(&self) -> usize {
        self.extents().value_limit()
    }

    /// Maximum bytes of an item in a block of the queue: an eighth of a block, less its entry in the index.
    pub(crate) fn plain_limit(&self) -> usize {
        (self.structure().block_size() / LARGE_FRACTION) as usize - 4
    }

    /// Puts an item of more than `plain_limit` bytes. It is written when the queue has room for it.
    pub(crate) fn put_large(&self, item: &[u8], until: Time) -> Result<(), Error> {
        LargePut { queue: self, until }.run(item)
    }

    /// Takes or reserves the next item, which is in extents; `None` if it is another item by now.
    pub(crate) fn deliver_large(
        &self,
        target: Target,
        args: GetArgs,
    ) -> Result<Option<Delivery>, Error> {
        let (takes, reserve_ms) = (args.reserve_ms == 0, args.reserve_ms);
        // While it is read, it is held for long enough, and then for the time of the caller.
        let read_ms = reserve_ms.max(READ_WITHIN.as_millis() as u32);
        let args = GetExtentsArgs { reserve_ms: read_ms, stay: args.stay };
        let deadline = self.structure().deadline();
        while let Some((mut delivery, list)) = self.ask_large(target, args)? {
            let mut read = || match self.hold(&delivery, &list, read_ms)? {
                true => self.extents().read(&list, Sink::Vec(&mut delivery.item)),
                false => Ok(false),
            };
            match read() {
                Ok(true) if self.keep(&delivery, takes, reserve_ms)? => return Ok(Some(delivery)),
                // Its time has passed: another consumer has it, or it is next again.
                Ok(true) => {}
                // It has been moved to other servers, or its time has passed.
                Ok(false) => drop(self.give_back(&[&delivery])?),
                Err(e) => {
                    // If this fails, it returns in its time.
                    let _ = self.give_back(&[&delivery]);
                    return Err(e);
                }
            }
            self.admit_again(deadline)?;
        }
        Ok(None)
    }

    /// Holds an item for as long as its extents may take to be read; returns whether it is still held.
    fn hold(&self, delivery: &Delivery, list: &[u8], reserve_ms: u32) -> Result<bool, Error> {
        let reading = value_length(list) / SLOWEST_READ;
        if u64::from(reserve_ms) >= reading {
            return Ok(true);
        }
        let needed = READ_WITHIN + Duration::from_millis(reading);
        Ok(self.settle(AckAction::Extend, needed, &[delivery])? == [true])
    }

    /// Takes an item that was read, or holds it for the time of its reservation from now on; returns whether
    /// it was still held.
    fn keep(&self, delivery: &Delivery, takes: bool, reserve_ms: u32) -> Result<bool, Error> {
        let (action, time) = match takes {
            true => (AckAction::Done, Duration::ZERO),
            false => (AckAction::Extend, Duration::from_millis(reserve_ms as u64)),
        };
        Ok(self.settle(action, time, &[delivery])? == [true])
    }

    /// The next item, which is in extents; it stays. `None` if it is another item by now.
    pub(crate) fn peek_large(&self) -> Result<Option<Delivery>, Error> {
        let deadline = self.structure().deadline();
        let args = GetExtentsArgs { reserve_ms: 0, stay: false };
        while let Some((mut delivery, list)) = self.ask_large(Target::Head, args)? {
            if self.extents().read(&list, Sink::Vec(&mut delivery.item))? {
                return Ok(Some(delivery));
            }
            self.admit_again(deadline)?;
        }
        Ok(None)
    }

    fn admit_again(&self, deadline: Time) -> Result<(), Error> {
        if self.structure().now() < deadline {
            return Ok(());
        }
        let address = self.structure().address();
        let text = format!("{address}: the next item was moved or taken whenever it was read");
        Err(Error::new(Status::Busy, text))
    }

    /// One request for the extents of the next item. The item of the delivery is empty yet.
    fn ask_large(
        &self,
        target: Target,
        args: GetExtentsArgs,
    ) -> Result<Option<(Delivery, Vec<u8>)>, Error> {
        let mut list = Vec::new();
        let replied = self.structure().run(Exchange {
            op: Op::QueueGetExtents,
            target,
            args: Args::Fixed(&args.encode()),
            payload: &[],
            sink: Sink::Vec(&mut list),
            wait_until: None,
        })?;
        if replied.header.status == Status::QueueEmpty {
            return Ok(None);
        }
        let LargeItem { number, deliveries } = LargeItem::decode(&replied.args)?;
        let delivery = Delivery { item: Vec::new(), entry: replied.entry, number, deliveries };
        Ok(Some((delivery, list)))
    }
}

/// A put of a large item that waits for space until a time.
struct LargePut<'a> {
    queue: &'a Queue,
    until: Time,
}

impl LargePut<'_> {
    fn run(&self, item: &[u8]) -> Result<(), Error> {
        self.await_room(item.len() as u64)?;
        let mut tries = 0;
        loop {
            let written = self.queue.extents().write(&[item]);
            match written.and_then(|list| self.put_written(&list)) {
                Err(e) if e.status == Status::ExtentGone => {}
                other => return other,
            }
            // While there was no room, its extents expired, or other producers were faster.
            let structure = self.queue.structure();
            tries += u32::from(structure.now() >= self.until);
            if tries == TRIES {
                let address = structure.address();
                let text = format!("{address}: an item could not be stored in {TRIES} tries");
                return Err(Error::new(Status::Busy, text));
            }
        }
    }

    /// Waits until a bounded queue has room for one more item of this length, so that an item that
    /// would be refused is not written. A producer that may not read the queue finds out by its put.
    fn await_room(&self, length: u64) -> Result<(), Error> {
        let structure = self.queue.structure();
        let (max_items, max_bytes) = self.queue.bounds();
        let error = |status, text: String| {
            Err(Error::new(status, format!("{}: {text}", structure.address())))
        };
        if max_bytes > 0 && length > max_bytes {
            let text = format!("an item of {length} bytes exceeds the bound of {max_bytes} bytes");
            return error(Status::InvalidArgument, text);
        }
        let is_bounded = max_items > 0 || max_bytes > 0;
        if !is_bounded || !structure.verbs().contains(Verbs::READ) {
            return Ok(());
        }
        let mut pause = ROOM_AGAIN;
        loop {
            let counts = self.queue.counts()?;
            if counts.closed {
                return error(Status::QueueClosed, "the queue was closed".into());
            }
            let is_full = max_items > 0 && counts.items >= max_items
                || max_bytes > 0 && counts.bytes.saturating_add(length) > max_bytes;
            let now = structure.now();
            if !is_full {
                return Ok(());
            }
            if now >= self.until || interrupt::pause(structure.clock(), self.until.min(now + pause))
            {
                return error(Status::QueueFull, "the queue is at its bound".into());
            }
            pause = (2 * pause).min(ROOM_AGAIN_LATEST);
        }
    }

    /// Puts an item that is written, after a wait for space.
    fn put_written(&self, list: &[u8]) -> Result<(), Error> {
        let (mut kept, written) = (self.queue.structure().now(), extents(list)?);
        let put = PutExtents { when: StoredWhen::Always, key: &[], list };
        let (args, payload) = put.encode();
        loop {
            let asked = self.until.min(self.queue.structure().now() + PUT_STEP);
            let replied = self.queue.structure().run(Exchange {
                op: Op::QueuePutExtents,
                target: Target::Tail,
                args: Args::Fixed(&args),
                payload: &[&payload],
                sink: Sink::None,
                wait_until: Some(asked),
            });
            let clock = self.queue.structure().clock();
            match replied {
                Err(e) if e.status == Status::QueueFull && clock.now() < self.until => {
                    // A signal ends the wait.
                    if asked > clock.now() || interrupt::pause(clock, clock.now()) {
                        return Err(e);
                    }
                    self.queue.extents().keep_on(&mut kept, &written)?;
                }
                other => return other.map(drop),
            }
        }
    }
}
