//! The part of the hashes that a block has: its store, and the moves of ranges from and to other blocks.

use super::discards::Discards;
use super::export::Export;
use super::fills::Fills;
use super::import::Import;
use super::overflow::Relief;
use super::ownership::Phase;
use super::planner::MovePlanner;
use super::store::Store;
use crate::moves::{Arrival, Movable, MoveRequest, Prepared, Totals};
use crate::{Answer, Operation, Outcome, Streaming, Ticket};
use honeycomb_block::Backing;
use honeycomb_types::{Marks, Time};
use honeycomb_wire::{Op, Status};
use std::time::Duration;

/// A store with its moves, and with the payloads that are arriving for either.
pub(super) struct Partition {
    pub store: Store,
    pub fills: Fills,
    pub planner: MovePlanner,
    pub import: Option<Import>,
    export: Option<Export>,
    discards: Discards,
}

impl Partition {
    pub fn new(store: Store, marks: Marks) -> Partition {
        Partition {
            store,
            fills: Fills::default(),
            planner: MovePlanner::new(marks),
            import: None,
            export: None,
            discards: Discards::default(),
        }
    }

    /// Whether payloads are arriving.
    pub fn is_arriving(&self) -> bool {
        !self.fills.is_empty()
    }

    /// A move will send this range here, which is the block's own or a neighbour's.
    pub fn expect(&mut self, move_id: u64, start: u64, end: u64) {
        self.import = Some(Import::new(move_id, start, end));
        self.store.ownership.begin_arrival(start, end);
    }

    /// Applies a part of a move whose payload is whole in the request.
    pub fn receive(
        &mut self,
        block: &mut Backing,
        op: Op,
        args: &[u8],
        payload: &[u8],
    ) -> Result<Answer, Answer> {
        let import = Import::admit(self.import.as_mut(), op, args)?;
        import.receive(&mut self.store, block, op, args, payload)
    }

    /// Whether the block takes part in a move, or has requested one.
    fn is_busy(&self) -> bool {
        self.export.is_some() || self.import.is_some() || self.planner.has_asked()
    }

    /// Whether content leaves the block or arrives in it, or a move of it was requested.
    pub fn is_changing_place(&self) -> bool {
        self.is_busy() || !self.discards.is_empty() || self.is_arriving()
    }

    /// Panics unless the parts agree. For tests: it reads the whole block.
    pub fn check(&self, block: &Backing) {
        let incoming = self.import.iter().flat_map(Import::regions);
        let beside: Vec<u32> = incoming.chain(self.discards.regions().iter().copied()).collect();
        self.store.table.check(block, &beside);
        self.fills.check(&self.store.table);
    }
}

impl Movable for Partition {
    fn move_request(&mut self, block: &Backing, now: Time) -> Option<MoveRequest> {
        let (table, ownership) = (&mut self.store.table, &self.store.ownership);
        self.planner.observe(table, now);
        let moving = self.export.is_some() || self.import.is_some();
        if moving || !self.planner.may_ask(now) || ownership.is_empty_handed() {
            return None;
        }
        if !self.discards.is_empty() {
            self.planner.wait_for_discards(table, now);
            return None;
        }
        self.planner.move_request(table, ownership, block, now, self.fills.is_empty())
    }

    fn expect_delay(&mut self, delay: Duration) {
        self.planner.delay = delay;
    }

    fn can_leave(&self) -> bool {
        // Departed data is freed first, because it uses room.
        !self.is_busy() && !self.store.ownership.is_empty_handed() && self.discards.is_empty()
    }

    fn move_request_due(&self) -> Option<Time> {
        if self.is_busy() || self.store.ownership.is_empty_handed() {
            return None;
        }
        self.planner.move_request_due(&self.store.table, &self.store.ownership)
    }

    fn refused(&mut self, now: Time, request: MoveRequest, status: Status, why: String) {
        self.planner.refused(&mut self.store.table, now, request, status, why);
    }

    fn begin_export(&mut self, block: &mut Backing, start: u64, end: u64) -> Result<(), Answer> {
        assert!(self.export.is_none(), "INV-19: one move at a time");
        let ownership = &mut self.store.ownership;
        if self.import.is_some() || start < ownership.start() || end != ownership.end() {
            // The controller has ended this move since, and has begun another one.
            return Err(Answer::refuse(Status::Busy, "the block takes part in another move"));
        }
        self.export = Some(Export::begin(&mut self.store.table, block, start, end)?);
        ownership.begin_departure(start);
        self.planner.begun(&mut self.store.table);
        Ok(())
    }

    fn prepare(&mut self, block: &mut Backing, most: usize) -> Prepared {
        match &mut self.export {
            Some(export) => export.prepare(&mut self.store.table, block, most),
            None => Prepared::Nothing,
        }
    }

    fn unsent(&self) -> u64 {
        self.export.as_ref().map_or(0, |export| export.unsent(&self.store.table))
    }

    fn freeze(&mut self, _now: Time) {
        self.store.ownership.set_phase(Phase::Frozen);
    }

    fn thaw(&mut self) {
        self.store.ownership.set_phase(Phase::Copying);
    }

    fn hand_over(&mut self) {
        self.store.ownership.set_phase(Phase::Handed);
    }

    fn totals(&self) -> Totals {
        let export = self.export.as_ref();
        export.map_or(Totals::default(), |export| export.totals(&self.store.table))
    }

    fn depart(&mut self, now: Time, moved: Vec<u8>) {
        let export = self.export.take().expect("INV-19: a range departs that was not handed over");
        self.store.ownership.depart(moved);
        self.discards.add(export.depart(&mut self.store.table));
        self.store.table.heap.surplus.moved();
        self.planner.departed(&mut self.store.table, now);
    }

    fn cancel_export(&mut self, block: &mut Backing, now: Time) {
        let export = self.export.take();
        let begun = export.is_some();
        if let Some(export) = export {
            self.store.ownership.cancel_departure();
            export.cancel(&mut self.store.table, block);
        }
        self.planner.cancelled(&mut self.store.table, now, begun);
    }

    fn did_not_fit(&mut self, now: Time) {
        let table = &mut self.store.table;
        if table.heap.capacity.may_grow() {
            table.heap.capacity.await_move();
            table.heap.surplus.keep_for_move(now);
        } else {
            table.overflow.renew(Relief::Wanted);
        }
    }

    fn begin_import(&mut self, move_id: u64, start: u64, end: u64) -> Result<(), Answer> {
        if self.imports(move_id).is_some() {
            return Ok(());
        }
        if !self.store.ownership.can_join(start, end) {
            let text = "the block is part of another move, or not a neighbour of the range";
            return Err(Answer::refuse(Status::Busy, text));
        }
        self.expect(move_id, start, end);
        self.store.table.overflow.set_lacking(None);
        Ok(())
    }

    fn end_import(&mut self, block: &mut Backing, now: Time, move_id: u64, commit: bool) {
        let store = &mut self.store;
        let had = (store.ownership.start(), store.ownership.end());
        match self.import.take_if(|import| import.is_of(move_id)) {
            Some(import) if commit => {
                import.commit(store, block);
                store.table.heap.surplus.moved();
            }
            Some(import) => {
                import.cancel(store, block);
                if store.table.heap.capacity.awaits_move() {
                    store.table.heap.surplus.keep_for_move(now);
                }
            }
            None => {}
        }
        let grown = had != (store.ownership.start(), store.ownership.end());
        self.planner.arrived(&store.table, now, grown);
    }

    fn imports(&self, move_id: u64) -> Option<(u64, u64)> {
        self.import.as_ref().filter(|import| import.is_of(move_id)).map(Import::range)
    }

    fn takes(&self, op: Op) -> Option<Arrival> {
        match op {
            Op::MoveRegion | Op::MovePatch | Op::MoveValue => Some(Arrival::InPieces),
            Op::MoveDrops | Op::MoveDone => Some(Arrival::Whole),
            _ => None,
        }
    }

    #[inline]
    fn sweep(&mut self, block: &mut Backing) -> bool {
        self.discards.sweep(&mut self.store.table, block)
    }
}

impl Streaming for Partition {
    fn reserve(
        &mut self,
        block: &mut Backing,
        operation: &Operation<'_>,
        length: usize,
    ) -> Result<(), Answer> {
        self.begin_fill(block, operation.ticket, operation.op, operation.args, length)
    }

    fn fill<'b>(&mut self, block: &'b mut Backing, ticket: Ticket) -> &'b mut [u8] {
        let rest = self.fills.rest(&self.store.table, block, ticket);
        block.slice_mut(rest)
    }

    fn filled(&mut self, ticket: Ticket, n: usize) {
        self.fills.filled(ticket, n);
    }

    fn commit(&mut self, block: &mut Backing, _now: Time, ticket: Ticket) -> Outcome {
        Outcome::Done(self.end_fill(block, ticket).unwrap_or_else(|refusal| refusal))
    }

    fn abort(&mut self, block: &mut Backing, _now: Time, ticket: Ticket) {
        let fill = self.fills.take(ticket);
        self.store.table.heap.free_value(block, fill.large);
    }
}
