//! Counts the nodes and edges of a plan while its bytes arrive, so that a plan that is too large is refused
//! before all of its bytes are received. Without this, a refused plan of 15 MiB occupied the loop for 16 ms.

use crate::service::RefusedRequest;
use honeycomb_types::Bug;
use honeycomb_types::limits::{BATCH_MAX, PLAN_EDGES_MAX};
use honeycomb_wire::Status;

/// Bytes of a node's options before its `flush_to`, and after it.
const OPTIONS: (usize, usize) = (4 + 1 + 2 + 2 + 1 + 1, 8 + 1 + 1 + 1);

/// The refusal of a plan that names more than the limit.
pub(crate) fn too_large(what: &str, limit: usize) -> RefusedRequest {
    let text = format!(
        "the plan has more than {limit} {what}, the limit of one plan; create the prefixes in \
         several plans"
    );
    (Status::LimitExceeded, text)
}

/// The next field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextField {
    Head,
    Name,
    ParentsCount,
    Parents(usize),
    Options,
    ReadersCount,
    Readers(usize),
    End,
}

/// The progress of counting the arguments of one `CreateHierarchy`. Each byte is visited once.
#[derive(Debug)]
pub(crate) struct PlanCount {
    at: usize,
    nodes: usize,
    edges: usize,
    next: NextField,
}

impl Default for PlanCount {
    fn default() -> PlanCount {
        PlanCount { at: 0, nodes: 0, edges: 0, next: NextField::Head }
    }
}

impl PlanCount {
    /// Continues to count the arguments that have arrived. The decoder refuses malformed arguments.
    pub fn goes_on(&mut self, args: &[u8]) -> Result<(), RefusedRequest> {
        assert!(self.at <= args.len(), "arguments do not become fewer");
        if Bug::PlansCountedWhole.active() {
            return Ok(());
        }
        while let Some(next) = self.step(args) {
            self.next = next;
            if self.nodes > BATCH_MAX {
                return Err(too_large("nodes", BATCH_MAX));
            }
            if self.edges > PLAN_EDGES_MAX {
                return Err(too_large("parents and readers together", PLAN_EDGES_MAX));
            }
        }
        let (counted, arrived) = (self.at, args.len());
        assert!(counted <= arrived, "INV-57: {counted} of {arrived} bytes of a plan are counted");
        Ok(())
    }

    /// The field after the next one; `None` until the next one has arrived completely.
    fn step(&mut self, args: &[u8]) -> Option<NextField> {
        match self.next {
            NextField::Head => {
                self.nodes = self.number(args, size_of::<u64>())?;
                Some(self.name())
            }
            NextField::Name => self.texts(args, 1).eq(&0).then_some(NextField::ParentsCount),
            NextField::ParentsCount => self.count(args).map(NextField::Parents),
            NextField::Parents(left) => {
                self.list(args, left, NextField::Parents, NextField::Options)
            }
            NextField::Options => {
                let (before, after) = OPTIONS;
                let length = text_length(args, self.at + before)?;
                let end = self.at + before + size_of::<u16>() + length + after;
                (end <= args.len()).then(|| self.at = end)?;
                Some(NextField::ReadersCount)
            }
            NextField::ReadersCount => self.count(args).map(NextField::Readers),
            NextField::Readers(left) => {
                let list = self.list(args, left, NextField::Readers, NextField::End)?;
                if list != NextField::End {
                    return Some(list);
                }
                assert!(self.nodes > 0, "INV-57: a plan has more nodes than it declares");
                self.nodes -= 1;
                Some(self.name())
            }
            NextField::End => None,
        }
    }

    fn name(&self) -> NextField {
        if self.nodes > 0 { NextField::Name } else { NextField::End }
    }

    /// The field after a list of texts, or the rest of the list if it has not arrived.
    fn list(
        &mut self,
        args: &[u8],
        left: usize,
        rest: fn(usize) -> NextField,
        after: NextField,
    ) -> Option<NextField> {
        match self.texts(args, left) {
            0 => Some(after),
            same if same == left => None,
            fewer => Some(rest(fewer)),
        }
    }

    /// The number that follows `behind` bytes.
    fn number(&mut self, args: &[u8], behind: usize) -> Option<usize> {
        let bytes = args.get(self.at + behind..)?.first_chunk()?;
        self.at += behind + bytes.len();
        Some(u32::from_le_bytes(*bytes) as usize)
    }

    /// The number of parents or readers that follow. They are counted before they arrive.
    fn count(&mut self, args: &[u8]) -> Option<usize> {
        let count = self.number(args, 0)?;
        self.edges += count;
        Some(count)
    }

    /// Skips texts; returns how many of them have not arrived.
    fn texts(&mut self, args: &[u8], mut left: usize) -> usize {
        while left > 0
            && let Some(length) = text_length(args, self.at)
            && self.at + size_of::<u16>() + length <= args.len()
        {
            self.at += size_of::<u16>() + length;
            left -= 1;
        }
        left
    }
}

fn text_length(args: &[u8], at: usize) -> Option<usize> {
    let bytes = args.get(at..)?.first_chunk()?;
    Some(u16::from_le_bytes(*bytes) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use honeycomb_wire::Field;
    use honeycomb_wire::messages::{CreateHierarchyRequest, DagNode, PrefixOptions};

    fn plan(nodes: usize, parents: usize, readers: usize) -> Vec<u8> {
        let names = |n: usize, what: &str| (0..n).map(|n| format!("{what}{n}")).collect();
        let node = |n| DagNode {
            name: format!("n{n}"),
            parents: names(parents, "p"),
            options: PrefixOptions { flush_to: "x".repeat(n % 9), ..PrefixOptions::default() },
            readers: names(readers, "reader"),
        };
        CreateHierarchyRequest { job: 7, nodes: (0..nodes).map(node).collect() }.encode()
    }

    /// The refusal of a plan that arrives in pieces, and the bytes received by then.
    fn refused(args: &[u8], piece: usize) -> (Option<RefusedRequest>, usize) {
        let mut count = PlanCount::default();
        for end in (0..args.len()).step_by(piece).chain([args.len()]) {
            if let Err(refusal) = count.goes_on(&args[..end]) {
                return (Some(refusal), end);
            }
        }
        assert_eq!((count.next, count.at), (NextField::End, args.len()), "every byte was counted");
        (None, args.len())
    }

    #[test]
    fn plan_of_any_shape_is_counted_in_pieces_of_any_size() {
        for (nodes, parents, readers) in [(0, 0, 0), (1, 0, 0), (3, 0, 4), (20, 7, 0), (9, 3, 5)] {
            let args = plan(nodes, parents, readers);
            for piece in [1, 2, 3, 7, 64, 1000] {
                assert!(refused(&args, piece).0.is_none());
            }
            let mut count = PlanCount::default();
            count.goes_on(&args).unwrap();
            assert_eq!(count.edges, nodes * (parents + readers));
        }
    }

    /// A plan of two million edges, which exceeds the limit after the first 524,288.
    fn too_many_edges() -> (Vec<u8>, usize) {
        let (args, node) = (plan(2000, 1000, 0), plan(1, 1000, 0).len());
        (args, (PLAN_EDGES_MAX / 1000 + 2) * node)
    }

    #[test]
    fn plan_with_too_many_edges_is_refused_when_these_have_arrived() {
        let (args, most) = too_many_edges();
        let (refusal, taken) = refused(&args, 64 << 10);
        let (status, text) = refusal.expect("the plan is too large");
        assert!(status == Status::LimitExceeded && text.contains("524288"), "{text}");
        assert!(taken <= most + (64 << 10), "{taken} of {} bytes were taken", args.len());
    }

    #[test]
    fn list_that_announces_too_many_is_refused_before_it_arrives() {
        let mut args = plan(0, 0, 0);
        args.truncate(8);
        1_u32.put(&mut args);
        String::from("n").put(&mut args);
        (PLAN_EDGES_MAX as u32 + 1).put(&mut args);
        assert!(PlanCount::default().goes_on(&args).is_err());
        args.truncate(8);
        (BATCH_MAX as u32 + 1).put(&mut args);
        assert!(PlanCount::default().goes_on(&args).is_err());
    }

    #[cfg(feature = "bug-bank")]
    #[test]
    fn plans_that_are_counted_only_when_whole_are_caught() {
        Bug::arm(Some(Bug::PlansCountedWhole));
        let refusal = PlanCount::default().goes_on(&too_many_edges().0);
        Bug::arm(None);
        assert!(refusal.is_ok(), "the planted bug receives the whole plan");
    }
}
