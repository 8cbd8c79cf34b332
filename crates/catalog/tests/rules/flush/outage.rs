//! A long outage of the object store: unwritten blocks stay, and are written when the store is available
//! again.

use super::{Hands, TO_OUT, WRITTEN, asked, bench, committed, wrote};
use crate::common::{Bench, LEASE, file};
use honeycomb_catalog::{Actor, CatalogError, Command, Effect, PrefixOptions, Report};
use honeycomb_types::limits::FLUSH_RETRY_MAX;
use honeycomb_types::{BlockAt, ServerId};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Unanswered write requests to servers.
#[derive(Default)]
struct Asked {
    parts: BTreeSet<BlockAt>,
    commits: BTreeSet<(ServerId, u64)>,
}

impl Asked {
    fn note(&mut self, bench: &Bench) {
        self.parts.extend(asked(bench).into_iter().map(|(at, _)| at));
        self.commits.extend(bench.effects.iter().filter_map(|effect| match effect {
            Effect::CommitFlush { server, number, .. } => Some((*server, *number)),
            _ => None,
        }));
    }

    /// Answers all requests, for a store that is available or not. Returns the number of freed blocks.
    fn answer(&mut self, bench: &mut Bench, hands: &mut Hands, there: bool) -> usize {
        let (mut freed, mut failed) = (0, Asked::default());
        while let Some(at) = self.parts.pop_first() {
            wrote(bench, at, if there { Ok(WRITTEN) } else { Err("no connection") });
            if there { self.note(bench) } else { failed.note(bench) }
        }
        while let Some((server, number)) = self.commits.pop_first() {
            committed(bench, server, number, if there { Ok(()) } else { Err("no connection") });
            freed += hands.work(bench).len();
            if there { self.note(bench) } else { failed.note(bench) }
        }
        // New requests wait for the next turn: each takes a second to fail.
        self.parts.append(&mut failed.parts);
        self.commits.append(&mut failed.commits);
        freed
    }
}

proptest! {
    // Each is half an hour of seconds, in which the catalog checks itself.
    #![proptest_config(ProptestConfig { cases: 2, ..ProptestConfig::default() })]

    /// Half an hour without a store, with nine tenths of memory occupied by unwritten blocks. Nothing is
    /// freed or forgotten, also after restarts of the controller, and further allocations are refused with
    /// that reason. When the store is available again, everything is written without further commands, after
    /// a retry's longest pause.
    #[test]
    fn half_an_hour_without_a_store_costs_time_alone(
        restarts in prop::collection::btree_set(0u64..1800, 0..4),
        written_before in 0usize..40,
    ) {
        let (mut bench, first, job) = bench();
        let second = bench.join_as("s2:1", 2, 80, true);
        let (mut hands, mut asked) = (Hands::default(), Asked::default());
        bench.create(job, "live", &[], PrefixOptions { lease_ms: 3_600_000, ..LEASE }).unwrap();
        bench.make(job, file("live", "", 1)).unwrap();
        hands.work(&mut bench);
        let (mut prefixes, mut kept) = (0, 0);
        while bench.status().free * 10 > bench.status().blocks {
            let (path, to) = (format!("t{prefixes}"), format!("out/{prefixes}"));
            bench.create(job, &path, &[], PrefixOptions { flush_to: &to, ..TO_OUT }).unwrap();
            let blocks = 1 + prefixes % 4;
            let made = bench.make(job, file(&path, "", blocks as u32));
            if made.is_err() {
                // Only the reserve for splits is left.
                bench.run(Command::RemovePrefix { actor: Actor::CLUSTER, job, path: &path }).unwrap();
                break;
            }
            hands.work(&mut bench);
            (prefixes, kept) = (prefixes + 1, kept + blocks);
        }
        bench.pass(1000);
        asked.note(&bench);
        // Some parts are written before the outage.
        for _ in 0..written_before {
            if let Some(at) = asked.parts.pop_first() {
                wrote(&mut bench, at, Ok(WRITTEN));
                asked.note(&bench);
            }
        }
        for second_of in 0..1800u64 {
            if restarts.contains(&second_of) {
                asked = Asked::default();
                bench.restart();
                for server in [first, second] {
                    hands.back(&mut bench, server);
                    asked.note(&bench);
                }
            }
            prop_assert_eq!(asked.answer(&mut bench, &mut hands, false), 0);
            for server in [first, second] {
                let report = Report::default();
                bench.run(Command::ServerReport { server, report }).unwrap();
            }
            bench.pass(1000);
            asked.note(&bench);
            prop_assert_eq!(bench.freed(), []);
            if second_of % 300 == 7 {
                let refused = bench.make(job, file("live", "more", 100)).unwrap_err();
                let none = matches!(refused, CatalogError::OutOfMemory { .. });
                prop_assert!(none, "{}", refused);
                let status = bench.status();
                prop_assert_eq!((status.flushing, status.flushed), (prefixes, 0));
                prop_assert_eq!(hands.0.len() as u64, kept + 1, "all of it is kept");
            }
        }
        let mut freed = 0;
        let longest = FLUSH_RETRY_MAX.as_millis() as u64;
        for _ in 0..(longest + 2000) / 100 {
            freed += asked.answer(&mut bench, &mut hands, true) as u64;
            for server in [first, second] {
                bench.run(Command::ServerReport { server, report: Report::default() }).unwrap();
            }
            bench.pass(100);
            asked.note(&bench);
        }
        let status = bench.status();
        prop_assert_eq!((freed, status.flushing), (kept, 0));
        prop_assert_eq!((status.free, status.quarantined), (status.blocks - 1, 0));
    }
}
