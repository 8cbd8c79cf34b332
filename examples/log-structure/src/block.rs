//! One block of a log: which requests it serves, also while it migrates to another server. `records.rs` has
//! its content.

use crate::ops;
use crate::records::{Records, no_more};
use honeycomb_structures::{
    Backing, Changes, Content, Event, Growth, Migrating, Movable, Operation, Ops, Outcome,
    Structure, Ticket, Time, Waits,
};

/// One block of a log.
pub struct LogBlock {
    pub(crate) records: Migrating<Records>,
}

impl LogBlock {
    /// An empty block.
    pub fn new(size: usize) -> LogBlock {
        LogBlock::opened(size, 0)
    }

    /// A block whose content arrives with this move; 0 for an empty block.
    pub fn opened(size: usize, importing: u64) -> LogBlock {
        LogBlock { records: Migrating::new(Records::new(size), importing) }
    }
}

impl Structure for LogBlock {
    fn growth(&mut self) -> Option<&mut dyn Growth> {
        Some(self.records.content_mut())
    }

    fn waits(&mut self) -> Option<&mut dyn Waits> {
        Some(self)
    }

    fn changes(&mut self) -> Option<&mut dyn Changes> {
        Some(self.records.content_mut())
    }

    fn content(&self) -> Option<&dyn Content> {
        Some(self)
    }

    fn content_mut(&mut self) -> Option<&mut dyn Content> {
        Some(self)
    }

    fn movable(&mut self) -> Option<&mut dyn Movable> {
        Some(&mut self.records)
    }
}

impl Ops for LogBlock {
    fn apply(&mut self, block: &mut Backing, operation: &Operation<'_>, payload: &[u8]) -> Outcome {
        if self.records.takes(operation.op).is_some() {
            let received = self.records.receive(block, operation, payload);
            return Outcome::Done(received.unwrap_or_else(|refusal| refusal));
        }
        let changes = matches!(operation.number(), ops::APPEND | ops::TRIM | ops::RESTORE);
        let records = match self.records.serve(changes) {
            Ok(records) => records,
            Err(refusal) => return Outcome::Done(refusal),
        };
        let answered = match operation.number() {
            ops::APPEND => Ok(Outcome::Done(records.append(block, operation.args, payload))),
            ops::READ => records.read(block, operation).map(Outcome::Done),
            ops::SCAN => records.scan(block, operation).map(Outcome::Done),
            ops::FOLLOW => records.follow(block, operation),
            ops::TRIM => records.trim(operation).map(Outcome::Done),
            ops::STATS => no_more(operation.args).map(|()| Outcome::Done(records.stats(block))),
            ops::RESTORE => Ok(Outcome::Done(records.restore_record(block, payload))),
            other => unreachable!("the shard lets only operations of the table in, not {other}"),
        };
        answered.unwrap_or_else(Outcome::Done)
    }

    fn event(&mut self) -> Option<Event> {
        self.records.content_mut().event()
    }

    fn bytes_used(&self) -> u64 {
        self.records.content().bytes_used()
    }
}

impl Waits for LogBlock {
    fn park(&mut self, operation: &Operation<'_>) -> Outcome {
        self.records.content_mut().park(operation).unwrap_or_else(Outcome::Done)
    }

    fn cancel(&mut self, ticket: Ticket) -> bool {
        self.records.content_mut().cancel(ticket)
    }

    fn tick(&mut self, block: &mut Backing, now: Time) {
        self.records.woken();
        if !self.records.is_frozen() {
            let migrates = self.records.is_sending();
            self.records.content_mut().tick(block, now, migrates);
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.records.deadline(self.records.content().deadline())
    }
}
