//! The clients: each is a separate process, and may be killed at any moment.

use crate::queue::item::{self, Head, length_of};
use crate::queue::log::{Log, Record};
use crate::queue::plan::{Plan, QUEUE, Role};
use honeycomb_client::{Delivery, Queue};
use honeycomb_env::Entropy;
use honeycomb_wire::Status;
use rustix::time::{ClockId, clock_gettime};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// How long one call waits for items; calls are repeated until the queue is closed.
const WAIT: Duration = Duration::from_secs(5);
/// How long a put waits for space before it fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of items of one put.
const PUT_ITEMS: u64 = 128;
/// Maximum bytes of one put with more than one item, including their entries in the block's index:
/// always fits into one request.
const PUT_BYTES: usize = 48 * 1024;

/// Runs a client. `from` is the number of a producer's next item.
pub fn live(
    dir: &Path,
    role: Role,
    number: u64,
    incarnation: u64,
    from: u64,
) -> Result<(), String> {
    let plan = Plan::read(dir)?;
    let client = plan.client();
    let queue = client.open_queue(plan.job, QUEUE).map_err(|e| e.to_string())?;
    let log = Log::create(&Plan::log(dir, role, number, incarnation)).map_err(|e| e.to_string())?;
    let draw = Entropy::seeded(plan.rules.seed ^ (role as u64) << 60 ^ number << 50 ^ incarnation);
    let mut life = Life { plan, queue, log, draw };
    match role {
        Role::Producer => life.produce(number, incarnation, from)?,
        Role::Taker => life.take()?,
        Role::Reserver => life.reserve()?,
    }
    life.log([Record::Finished])
}

struct Life {
    plan: Plan,
    queue: Queue,
    log: Log,
    draw: Entropy,
}

/// The machine's monotonic clock: one for all processes, so that their observations can be ordered.
fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Life {
    fn log(&mut self, records: impl IntoIterator<Item = Record>) -> Result<(), String> {
        self.log.append(records).map_err(|e| format!("cannot write the log: {e}"))
    }

    // ------------------------------------------------------------------------------------- putting

    fn produce(&mut self, producer: u64, incarnation: u64, from: u64) -> Result<(), String> {
        let mut first = from;
        while first < self.plan.rules.each {
            let batch = self.batch(producer, incarnation, first);
            let items: Vec<&[u8]> = batch.iter().map(|item| &item[..]).collect();
            let said = items.len() as u32;
            self.log([Record::Try { first, items: said }])?;
            let put = self.queue.put_many(&items, PATIENCE);
            put.map_err(|(done, e)| format!("{done} of {said} items were put: {e}"))?;
            self.log([Record::Put { first, items: said }])?;
            first += said as u64;
        }
        Ok(())
    }

    /// The items of one request.
    fn batch(&mut self, producer: u64, incarnation: u64, first: u64) -> Vec<Vec<u8>> {
        let rules = self.plan.rules;
        let most = 1 + self.draw.below(PUT_ITEMS);
        let limit = PUT_BYTES.min(rules.limit);
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for number in first..rules.each.min(first + most) {
            let length = length_of(rules.seed, producer, number, rules.limit);
            bytes += length + 4;
            if bytes > limit && !batch.is_empty() {
                break;
            }
            let mut item = Vec::new();
            item::write(Head::new(producer, incarnation, number, length), &mut item);
            batch.push(item);
        }
        batch
    }

    // ------------------------------------------------------------------------------------- taking

    fn take(&mut self) -> Result<(), String> {
        loop {
            let most = self.most();
            let asked = monotonic();
            let items = match self.queue.get_many(most, WAIT) {
                Err(e) if e.status == Status::QueueClosed => return Ok(()),
                other => other.map_err(|e| e.to_string())?,
            };
            let answered = monotonic();
            let mut records = Vec::with_capacity(items.len() + 2);
            records.extend([Record::Asked { at: asked }, Record::Answered { at: answered }]);
            for item in &items {
                records.push(Record::Got { head: item::read(item)?.0 });
            }
            self.log(records)?;
            tell(items.len())?;
        }
    }

    fn reserve(&mut self) -> Result<(), String> {
        let timeout = Duration::from_nanos(self.plan.rules.reservation);
        loop {
            let most = self.most();
            let asked = monotonic();
            let items = match self.queue.reserve(most, timeout, WAIT) {
                Err(e) if e.status == Status::QueueClosed => return Ok(()),
                other => other.map_err(|e| e.to_string())?,
            };
            let answered = monotonic();
            let mut records = Vec::with_capacity(items.len() + 2);
            records.extend([Record::Asked { at: asked }, Record::Answered { at: answered }]);
            let mut heads = Vec::with_capacity(items.len());
            for Delivery { item, deliveries, .. } in &items {
                let head = item::read(item)?.0;
                heads.push(head);
                records.push(Record::Reserved { head, deliveries: *deliveries });
            }
            self.log(records)?;
            self.settle(&items, &heads, timeout)?;
            tell(items.len())?;
        }
    }

    /// Acknowledges reserved items; sometimes it returns the last ones instead.
    fn settle(
        &mut self,
        items: &[Delivery],
        heads: &[u64],
        timeout: Duration,
    ) -> Result<(), String> {
        let refs: Vec<&Delivery> = items.iter().collect();
        let keep = match self.draw.below(50) {
            0 => self.draw.below(items.len() as u64 + 1) as usize,
            1 => {
                let extended = self.queue.extend(&refs, timeout);
                extended.map(|_| items.len()).map_err(|e| e.to_string())?
            }
            _ => items.len(),
        };
        if keep < items.len() {
            let back = heads[keep..].iter().zip(&items[keep..]);
            self.log(back.map(|(head, delivery)| {
                let deliveries = delivery.deliveries;
                Record::GivingBack { head: *head, deliveries }
            }))?;
            self.queue.give_back(&refs[keep..]).map_err(|e| e.to_string())?;
        }
        let held = self.queue.acknowledge(&refs[..keep]).map_err(|e| e.to_string())?;
        let settled = heads.iter().zip(items).zip(held);
        self.log(settled.map(|((head, delivery), held)| {
            let deliveries = delivery.deliveries;
            Record::Acknowledged { head: *head, deliveries, held }
        }))
    }

    fn most(&mut self) -> usize {
        1 + self.draw.below(self.plan.rules.batch) as usize
    }
}

/// Reports to the parent process how many items were seen, so that it can choose when to kill.
fn tell(items: usize) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{items}").and_then(|()| out.flush()).map_err(|e| format!("nobody listens: {e}"))
}
