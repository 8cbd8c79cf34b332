//! Items of a queue that are too large for a block: lists of extents (ADR 0018, 0057).
//!
//! Writing: as a large value of a key-value store (`large.rs`); one put names the extents. Reading: an
//! ordinary get is refused while such an item is next. The item is reserved instead, its extents are read,
//! and it is acknowledged, which drops them. So an item whose consumer dies while it reads is delivered
//! again, and a consumer that was too slow does not return an item that another one has.

use crate::error::Error;
use crate::large::{Extents, KEEP_EVERY, TRIES};
use crate::queue::{Delivery, Queue};
use crate::route::Target;
use crate::structure::{Args, Exchange};
use crate::transport::Sink;
use honeycomb_types::Time;
use honeycomb_types::limits::LARGE_FRACTION;
use honeycomb_wire::extents::{ExtentRef, PutExtents, StoredWhen, put_extents};
use honeycomb_wire::queue::{AckAction, GetArgs, GetExtentsArgs, LargeItem};
use honeycomb_wire::{Op, Status};
use std::time::Duration;

/// The time within which a consumer reads the extents of an item that it takes: the item is reserved for so
/// long, and delivered again if the consumer dies.
const READ_WITHIN: Duration = Duration::from_secs(60);

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

    /// Puts an item of more than `plain_limit` bytes.
    pub(crate) fn put_large(&self, item: &[u8], until: Time) -> Result<(), Error> {
        for _ in 0..TRIES {
            let written = self.extents().write(&[item])?;
            match self.put_written(&written, until) {
                Err(e) if e.status == Status::ExtentGone => {}
                other => return other,
            }
        }
        let address = self.structure().address();
        let text = format!("{address}: an item could not be stored in {TRIES} tries");
        Err(Error::new(Status::Busy, text))
    }

    /// Puts an item that is written, after a wait for space.
    fn put_written(&self, written: &[ExtentRef], until: Time) -> Result<(), Error> {
        let (mut kept, list) = (self.structure().now(), put_extents(written));
        let put = PutExtents { when: StoredWhen::Always, key: &[], list: &list };
        let (args, payload) = put.encode();
        loop {
            let asked = until.min(self.structure().now() + KEEP_EVERY / 2);
            let replied = self.structure().run(Exchange {
                op: Op::QueuePutExtents,
                target: Target::Tail,
                args: Args::Fixed(&args),
                payload: &[&payload],
                sink: Sink::None,
                wait_until: Some(asked),
            });
            let now = self.structure().now();
            match replied {
                // A wait that ended early was ended by a signal.
                Err(e) if e.status == Status::QueueFull && asked <= now && now < until => {
                    self.extents().keep_on(&mut kept, written)?;
                }
                other => return other.map(drop),
            }
        }
    }

    /// Takes or reserves the next item, which is in extents; `None` if it is another one by now.
    pub(crate) fn deliver_large(
        &self,
        target: Target,
        args: GetArgs,
    ) -> Result<Option<Delivery>, Error> {
        let takes = args.reserve_ms == 0;
        let reserve_ms = if takes { READ_WITHIN.as_millis() as u32 } else { args.reserve_ms };
        let args = GetExtentsArgs { reserve_ms, stay: args.stay };
        let deadline = self.structure().deadline();
        while let Some((mut delivery, list)) = self.ask_large(target, args)? {
            if !self.extents().read(&list, Sink::Vec(&mut delivery.item))? {
                // The item has been moved to other servers, or its time has passed.
                self.give_back(&[&delivery])?;
                self.admit_again(deadline)?;
                continue;
            }
            if !takes || self.settle(AckAction::Done, Duration::ZERO, &[&delivery])? == [true] {
                return Ok(Some(delivery));
            }
        }
        Ok(None)
    }

    /// The next item, which is in extents; it stays. `None` if it is another one by now.
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
