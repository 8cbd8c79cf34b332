//! Operations without an answer yet, found by their tickets.

use super::waiting::Pending;
use honeycomb_structures::Ticket;
use honeycomb_types::BlockAt;

/// All pending operations of a shard. A closed connection may cancel hundreds of them, each without a search
/// of all. The order of operations depends only on their insertions and removals.
#[derive(Default)]
pub(super) struct AllPending {
    all: Vec<Pending>,
    /// The index of each in `all`.
    positions: hashbrown::HashMap<Ticket, usize>,
}

impl AllPending {
    pub fn push(&mut self, pending: Pending) {
        let before = self.positions.insert(pending.ticket, self.all.len());
        let ticket = pending.ticket;
        assert!(before.is_none(), "INV-16: {ticket:?} was given to two operations");
        self.all.push(pending);
        debug_assert_eq!(self.all.len(), self.positions.len(), "one place for each operation");
    }

    pub fn get(&self, ticket: Ticket) -> Option<Pending> {
        self.positions.get(&ticket).map(|&at| self.all[at])
    }

    pub fn remove(&mut self, ticket: Ticket) -> Option<Pending> {
        let at = self.positions.remove(&ticket)?;
        let pending = self.all.swap_remove(at);
        if let Some(moved) = self.all.get(at) {
            self.positions.insert(moved.ticket, at);
        }
        debug_assert_eq!(pending.ticket, ticket, "its place was its own");
        Some(pending)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.all.iter()
    }

    /// Removes the operations of a block.
    pub fn take_of(&mut self, at: BlockAt) -> Vec<Pending> {
        let of: Vec<Pending> = self.all.iter().filter(|p| p.at == at).copied().collect();
        for pending in &of {
            self.remove(pending.ticket);
        }
        of
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use honeycomb_types::{Generation, LaneId, Sequence, SessionId};

    fn pending(ticket: u64, block: u32) -> Pending {
        Pending {
            ticket: Ticket(ticket),
            at: BlockAt::of(block.into(), 1),
            session: SessionId(1),
            lane: LaneId(1),
            sequence: Sequence(ticket),
            hash: None,
            mutates: false,
            generation: Generation(0),
            until_grant_ends: false,
            filling: false,
        }
    }

    fn tickets(of: impl Iterator<Item = Pending>) -> Vec<u64> {
        let mut tickets: Vec<u64> = of.map(|pending| pending.ticket.0).collect();
        tickets.sort_unstable();
        tickets
    }

    #[test]
    fn operations_are_found_whatever_was_removed_before() {
        let mut all = AllPending::default();
        (0..100).for_each(|n| all.push(pending(n, n as u32 % 3)));
        for n in (0..100)
            .rev()
            .filter(|n| n % 7 == 0)
            .chain((0..100).filter(|n| n % 7 != 0 && n % 11 == 3))
        {
            assert_eq!(all.remove(Ticket(n)).map(|p| p.ticket), Some(Ticket(n)));
            assert!(all.remove(Ticket(n)).is_none());
        }
        let left: Vec<u64> = (0..100).filter(|n| n % 7 != 0 && n % 11 != 3).collect();
        assert_eq!(tickets(all.iter().copied()), left);
        assert!(left.iter().all(|&n| all.get(Ticket(n)).is_some_and(|p| p.ticket.0 == n)));
        let of: Vec<u64> = left.iter().copied().filter(|n| n % 3 == 1).collect();
        assert_eq!(tickets(all.take_of(BlockAt::of(1, 1)).into_iter()), of);
        assert!(of.iter().all(|&n| all.get(Ticket(n)).is_none()));
        assert_eq!(all.iter().count(), left.len() - of.len());
    }
}
