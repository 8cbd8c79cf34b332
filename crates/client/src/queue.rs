//! Queues: many producers, many consumers, first in, first out (paper, 5.2).

use crate::error::Error;
use crate::interrupt;
use crate::route::Target;
use crate::structure::{Args, Exchange, LOOK_BACK, Replied, Structure, WAIT_STEP_MS};
use crate::transport::Sink;
use honeycomb_types::limits::{QUEUE_ACK_MAX, QUEUE_BATCH_MAX};
use honeycomb_types::{BlockAt, Time};
use honeycomb_wire::messages::MapEntry;
use honeycomb_wire::notice::{Filter, kinds};
use honeycomb_wire::queue::{AckAction, AckArgs, Counts, GetArgs, Items, put_lengths};
use honeycomb_wire::{Op, ReplyHeader, Status};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Maximum bytes of one batch of puts: the server takes it in one piece and may keep it waiting.
const PUT_BATCH_BYTES: usize = 56 * 1024;
/// Maximum bytes that one request to get returns, unless a single item is larger.
const GET_BYTES: u32 = 1 << 20;

/// An open queue.
///
/// Linearizable: an item is got after all items that were put before it, except an item that returned to
/// the queue because its consumer had reserved it, or read it in pieces, and died. Each put and get
/// takes effect exactly once under retry. If a consumer dies after `get` returned an item to it, the
/// item is lost; `reserve` and `acknowledge` deliver at least once instead. Data is lost with its
/// server (`memory`). Safe to share between threads.
pub struct Queue {
    structure: Structure,
    looked_back: Mutex<Time>,
}

/// An item, with the information to acknowledge it if it was reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The item.
    pub item: Vec<u8>,
    /// The block that keeps it until it is acknowledged.
    pub entry: MapEntry,
    /// Its number within the block.
    pub number: u64,
    /// How often it has been delivered, including this time.
    pub deliveries: u32,
}

/// The content of a queue: exact while no client puts or takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Items in the queue, including reserved ones.
    pub items: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of the items, those that are reserved.
    pub reserved: u64,
    /// Whether the queue accepts no more items.
    pub closed: bool,
}

impl Queue {
    pub(crate) fn of(structure: Structure) -> Queue {
        Queue { structure, looked_back: Mutex::new(Time::ZERO) }
    }

    /// The properties that every structure has.
    pub fn structure(&self) -> &Structure {
        &self.structure
    }

    /// The bounds, in items and in bytes; 0 for none.
    pub fn bounds(&self) -> (u64, u64) {
        self.structure.bounds()
    }

    /// Puts an item at the end, after a wait of up to `wait` for space. `QueueFull` if there is
    /// none (or if a signal to the thread, or its interrupt, ended the wait and there is still
    /// none), `QueueClosed` after `close`, `ValueTooLarge` above `item_limit`. An item of more than an eighth
    /// of a block is sent in pieces, each with the deadline of a call.
    pub fn put(&self, item: &[u8], wait: Duration) -> Result<(), Error> {
        self.put_batch(&[item], self.structure.now() + wait).map(drop)
    }

    /// Puts items at the end, in order, with as many requests as needed; the items of one request
    /// stay contiguous. `Err` has the number of items that were put before the failure.
    pub fn put_many(&self, items: &[&[u8]], wait: Duration) -> Result<(), (usize, Error)> {
        let until = self.structure.now() + wait;
        let mut done = 0;
        while done < items.len() {
            let batch = self.batch_of(&items[done..]);
            self.put_batch(&items[done..done + batch], until).map_err(|e| (done, e))?;
            done += batch;
        }
        Ok(())
    }

    /// The number of items that fit into one request.
    fn batch_of(&self, items: &[&[u8]]) -> usize {
        let part = |bound: u64| if bound == 0 { usize::MAX } else { (bound / 4).max(1) as usize };
        let (max_items, max_bytes) = self.structure.bounds();
        let most = (QUEUE_BATCH_MAX as usize).min(part(max_items));
        let limit = self.plain_limit().min(PUT_BATCH_BYTES).min(part(max_bytes));
        let mut bytes = 0;
        let fits = |item: &&&[u8]| {
            bytes += item.len() + 4;
            bytes <= limit
        };
        let count = items.iter().take(most).take_while(fits).count().max(1);
        assert!(count <= items.len(), "INV-22: {count} of {} items are to be put", items.len());
        count
    }

    fn put_batch(&self, items: &[&[u8]], until: Time) -> Result<(), Error> {
        let (count, most) = (items.len(), QUEUE_BATCH_MAX as usize);
        assert!(count <= most, "INV-22: {count} items are put with one request, at most {most}");
        let longest = items.iter().map(|item| item.len()).max().unwrap_or(0);
        let why = ", the most that blocks of this size can hold";
        self.structure.check_length("an item", longest, self.item_limit(), why)?;
        if longest > self.plain_limit() {
            assert_eq!(count, 1, "INV-22: a large item is put together with others");
            return self.put_large(items[0], until);
        }
        let mut args = Vec::new();
        put_lengths(items, &mut args);
        loop {
            // The server's wait is limited; ours may be longer.
            let began = self.structure.now();
            let asked = until.min(began + Duration::from_millis(WAIT_STEP_MS as u64));
            let replied = self.structure.run(Exchange {
                op: Op::QueuePut,
                target: Target::Tail,
                args: Args::Fixed(&args),
                payload: items,
                sink: Sink::None,
                wait_until: Some(asked),
            });
            let now = self.structure.now();
            match replied {
                // A wait that ended early was ended by a signal.
                Err(e) if e.status == Status::QueueFull && asked <= now && now < until => {}
                other => return other.map(drop),
            }
        }
    }

    /// Takes the first item, after a wait of up to `wait` for one. `None` if there is none;
    /// `QueueClosed` if the queue was closed and all items have been taken. A signal to the thread
    /// ends the wait.
    pub fn get(&self, wait: Duration) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.deliver(1, GET_BYTES, Duration::ZERO, wait)?.pop().map(|one| one.item))
    }

    /// Takes up to `items` of the first items, after a wait of up to `wait` for the first: at most
    /// `GET_BYTES` bytes, or one item. Otherwise as `get`.
    pub fn get_many(&self, items: usize, wait: Duration) -> Result<Vec<Vec<u8>>, Error> {
        let delivered = self.deliver(items, GET_BYTES, Duration::ZERO, wait)?;
        Ok(delivered.into_iter().map(|one| one.item).collect())
    }

    /// As `get_many`, but the items stay in the queue until they are acknowledged. An item that is
    /// not acknowledged within `timeout` is delivered again, before all others: each item is
    /// delivered at least once.
    pub fn reserve(
        &self,
        items: usize,
        timeout: Duration,
        wait: Duration,
    ) -> Result<Vec<Delivery>, Error> {
        if timeout.is_zero() {
            let text = "a reservation needs a time-out of at least 1 ms";
            return Err(Error::new(Status::InvalidArgument, text));
        }
        self.deliver(items, GET_BYTES, timeout, wait)
    }

    fn deliver(
        &self,
        items: usize,
        bytes: u32,
        reserve: Duration,
        wait: Duration,
    ) -> Result<Vec<Delivery>, Error> {
        let until = self.structure.now() + wait;
        let reserve_ms = reserve.as_nanos().div_ceil(1_000_000).min(u32::MAX as u128) as u32;
        let items = items.clamp(1, QUEUE_BATCH_MAX as usize) as u32;
        let args = GetArgs { items, bytes, reserve_ms, stay: false };
        loop {
            let found = self.look_back(args)?;
            if !found.is_empty() {
                return Ok(found);
            }
            let asked =
                until.min(self.structure.now() + Duration::from_millis(WAIT_STEP_MS as u64));
            let (found, interrupted) = match self.ask(Target::Head, args, asked) {
                // The last block has ended; an item may be returned to a block that was left
                // behind.
                Err(e) if e.status == Status::QueueClosed && self.may_come_back()? => {
                    let clock = self.structure.clock();
                    let pause = asked.min(clock.now() + LOOK_BACK);
                    (Vec::new(), interrupt::pause(clock, pause))
                }
                other => other?,
            };
            if !found.is_empty() || interrupted || self.structure.now() >= until {
                return Ok(found);
            }
        }
    }

    /// Periodically requests items from the blocks that were left behind empty.
    fn look_back(&self, args: GetArgs) -> Result<Vec<Delivery>, Error> {
        let left = self.structure.left();
        if left.is_empty() {
            return Ok(Vec::new());
        }
        {
            let mut looked = self.looked_back();
            let now = self.structure.now();
            if now.since(*looked) < LOOK_BACK {
                return Ok(Vec::new());
            }
            *looked = now;
        }
        for entry in left {
            let target = Target::Block(entry.at());
            match self.ask(target, GetArgs { stay: true, ..args }, Time::ZERO) {
                Ok((found, _)) if found.is_empty() => {}
                // The block is gone and had no items left; the map is fresh now.
                Err(e) if e.status == Status::UnknownBlock => {}
                other => {
                    // If one item was returned there may be more: the next call checks at once.
                    *self.looked_back() = Time::ZERO;
                    return other.map(|(found, _)| found);
                }
            }
        }
        Ok(Vec::new())
    }

    fn looked_back(&self) -> MutexGuard<'_, Time> {
        self.looked_back.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether an item of a block that was left behind is reserved.
    fn may_come_back(&self) -> Result<bool, Error> {
        for entry in self.structure.left() {
            match self.count(Target::Block(entry.at()), 0) {
                Ok((_, put, counts)) if put > counts.taken => return Ok(true),
                Err(e) if e.status != Status::UnknownBlock => return Err(e),
                _ => {}
            }
        }
        Ok(false)
    }

    /// Sends one request for items. Also returns whether a signal ended its wait.
    fn ask(
        &self,
        target: Target,
        args: GetArgs,
        until: Time,
    ) -> Result<(Vec<Delivery>, bool), Error> {
        let mut encoded = Vec::new();
        args.put(&mut encoded);
        let (replied, payload) = loop {
            let mut payload = Vec::new();
            let replied = self.structure.run(Exchange {
                op: Op::QueueGet,
                target,
                args: Args::Fixed(&encoded),
                payload: &[],
                sink: Sink::Vec(&mut payload),
                wait_until: Some(until),
            });
            match replied {
                // If another consumer was faster, another item is next.
                Err(e) if e.status == Status::ValueTooLarge => {
                    if let Some(found) = self.deliver_large(target, args)? {
                        return Ok((vec![found], false));
                    }
                }
                other => break (other?, payload),
            }
        };
        let interrupted = replied.interrupted;
        Ok((self.deliveries(replied, payload)?, interrupted))
    }

    fn deliveries(&self, replied: Replied, payload: Vec<u8>) -> Result<Vec<Delivery>, Error> {
        let Replied { header: ReplyHeader { status, .. }, args, entry, .. } = replied;
        if status == Status::QueueEmpty {
            return Ok(Vec::new());
        }
        let Items { first, deliveries, lengths } = Items::decode(&args, payload.len())?;
        if let [_] = lengths[..] {
            return Ok(vec![Delivery { item: payload, entry, number: first, deliveries }]);
        }
        let mut rest = &payload[..];
        let items = lengths.iter().zip(first..).map(|(length, number)| {
            let (item, others) = rest.split_at(*length as usize);
            rest = others;
            Delivery { item: item.to_vec(), entry: entry.clone(), number, deliveries }
        });
        let items: Vec<Delivery> = items.collect();
        assert!(rest.is_empty(), "INV-22: no item has the last {} bytes of a reply", rest.len());
        Ok(items)
    }

    /// Completes or extends reservations. Returns for each whether it was still held.
    pub(crate) fn settle(
        &self,
        action: AckAction,
        timeout: Duration,
        deliveries: &[&Delivery],
    ) -> Result<Vec<bool>, Error> {
        let timeout_ms = timeout.as_nanos().div_ceil(1_000_000).min(u32::MAX as u128) as u32;
        let mut held = vec![false; deliveries.len()];
        let mut blocks: Vec<BlockAt> = deliveries.iter().map(|d| d.entry.at()).collect();
        blocks.sort_unstable();
        blocks.dedup();
        for block in blocks {
            let of_block: Vec<usize> =
                (0..deliveries.len()).filter(|i| deliveries[*i].entry.at() == block).collect();
            for part in of_block.chunks(QUEUE_ACK_MAX as usize) {
                let items = part
                    .iter()
                    .map(|i| (deliveries[*i].number, deliveries[*i].deliveries))
                    .collect();
                self.structure.remember(&deliveries[part[0]].entry);
                let args = AckArgs { action, timeout_ms, items }.encode();
                let replied = self.structure.run(Exchange {
                    op: Op::QueueAck,
                    target: Target::Block(block),
                    args: Args::Fixed(&args),
                    payload: &[],
                    sink: Sink::None,
                    wait_until: None,
                });
                match replied {
                    Ok(replied) => {
                        for (i, byte) in part.iter().zip(&replied.args) {
                            held[*i] = *byte == 1;
                        }
                    }
                    // A block is removed only when none of its items is reserved.
                    Err(e) if e.status == Status::UnknownBlock => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(held)
    }

    /// Removes reserved items for good. Returns for each whether this delivery still held it; if
    /// not, its time had passed, and the item has been or will be delivered again.
    pub fn acknowledge(&self, deliveries: &[&Delivery]) -> Result<Vec<bool>, Error> {
        self.settle(AckAction::Done, Duration::ZERO, deliveries)
    }

    /// Returns reserved items: they are the next to be delivered. Otherwise as `acknowledge`.
    pub fn give_back(&self, deliveries: &[&Delivery]) -> Result<Vec<bool>, Error> {
        self.settle(AckAction::GiveBack, Duration::ZERO, deliveries)
    }

    /// Holds reserved items for `timeout` from now on. Otherwise as `acknowledge`.
    pub fn extend(&self, deliveries: &[&Delivery], timeout: Duration) -> Result<Vec<bool>, Error> {
        self.settle(AckAction::Extend, timeout, deliveries)
    }

    /// Returns up to this many of the first items without taking them; empty if there is none now.
    pub fn peek(&self, items: usize) -> Result<Vec<Vec<u8>>, Error> {
        let mut args = Vec::new();
        args.extend_from_slice(&(items.clamp(1, QUEUE_BATCH_MAX as usize) as u32).to_le_bytes());
        args.extend_from_slice(&GET_BYTES.to_le_bytes());
        let found = loop {
            let mut payload = Vec::new();
            let replied = self.structure.run(Exchange {
                op: Op::QueuePeek,
                target: Target::Head,
                args: Args::Fixed(&args),
                payload: &[],
                sink: Sink::Vec(&mut payload),
                wait_until: None,
            });
            match replied {
                Err(e) if e.status == Status::ValueTooLarge => {
                    if let Some(found) = self.peek_large()? {
                        break vec![found];
                    }
                }
                other => break self.deliveries(other?, payload)?,
            }
        };
        Ok(found.into_iter().map(|one| one.item).collect())
    }

    /// The number of its items and bytes.
    pub fn counts(&self) -> Result<QueueCounts, Error> {
        self.structure.refresh(self.structure.deadline())?;
        let tail = self.count(Target::Tail, 1)?;
        let mut sum = QueueCounts { closed: tail.2.closed, ..QueueCounts::default() };
        for entry in self.structure.entries() {
            let (_, put, counts) = match entry.at() == tail.0 {
                true => tail,
                false => match self.count(Target::Block(entry.at()), 0) {
                    // The block is empty and gone.
                    Err(e) if e.status == Status::UnknownBlock => continue,
                    other => other?,
                },
            };
            sum.items += put - counts.taken;
            sum.bytes += counts.bytes_put - counts.bytes_taken;
            sum.reserved += counts.reserved;
        }
        Ok(sum)
    }

    fn count(&self, target: Target, tail: u8) -> Result<(BlockAt, u64, Counts), Error> {
        let replied = self.structure.run(Exchange {
            op: Op::QueueLength,
            target,
            args: Args::Fixed(&[tail]),
            payload: &[],
            sink: Sink::None,
            wait_until: None,
        })?;
        let counts = Counts::decode(&replied.args)?;
        Ok((replied.entry.at(), replied.header.value, counts))
    }

    /// Waits until the queue is closed; returns false if `wait` elapsed first, or a signal
    /// interrupted the thread.
    pub fn wait_closed(&self, wait: Duration) -> Result<bool, Error> {
        let closed = || Ok(self.count(Target::Tail, 1)?.2.closed);
        self.structure.wait_until(kinds::CLOSE, Filter::All, wait, closed)
    }

    /// Ends the queue for good: it accepts no more items, the remaining ones can be taken, and
    /// consumers get `QueueClosed` after the last item. Closing twice is allowed.
    pub fn close(&self) -> Result<(), Error> {
        self.structure
            .run(Exchange {
                op: Op::QueueClose,
                target: Target::Tail,
                args: Args::Fixed(&[]),
                payload: &[],
                sink: Sink::None,
                wait_until: None,
            })
            .map(drop)
    }
}
