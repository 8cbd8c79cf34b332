//! The simulator's own tests: clean seeds, the same seed twice, and a bank of planted bugs.

use honeycomb_types::Bug;
use honeycomb_verify::{World, run_seed};

/// Operations of each seed here.
const OPERATIONS: u64 = 600;
/// Seeds within which every planted bug must have shown itself.
const PATIENCE: u64 = 400;

#[test]
fn seeds_are_clean_without_a_planted_bug() {
    for seed in 1..=60 {
        if let Err(violation) = run_seed(seed, OPERATIONS) {
            panic!("{violation:?}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [3, 77] {
        let trace = |seed| {
            let mut world = World::new(seed, true);
            let stats = world.run(OPERATIONS).unwrap();
            (stats.trace, world.trace().unwrap().to_vec())
        };
        let (first, second) = (trace(seed), trace(seed));
        assert!(first.1.len() > 1000, "a trace tells everything that happened");
        assert!(first == second, "seed {seed} is not repeatable (INV-35)");
    }
    let other = run_seed(4, OPERATIONS).unwrap().trace;
    assert_ne!(run_seed(3, OPERATIONS).unwrap().trace, other, "seeds differ");
}

#[test]
fn a_run_draws_what_it_is_meant_to_draw() {
    let (mut faults, mut endings) = (std::collections::BTreeSet::new(), Vec::new());
    let (mut grown, mut retired) = (0, 0);
    for seed in 1..=40 {
        let stats = run_seed(seed, OPERATIONS).unwrap();
        faults.extend(stats.faults.keys().copied());
        endings.extend(stats.endings.keys().copied());
        grown += stats.grown;
        retired += stats.retired;
    }
    for fault in [
        "abandoned prefix",
        "crash",
        "cut payload",
        "delay",
        "duplicate",
        "lost reply",
        "lost request",
        "removed structure",
    ] {
        assert!(faults.contains(fault), "{fault} was never drawn: {faults:?}");
    }
    let seen = [
        "Ok",
        "KeyNotFound",
        "DataLost",
        "LeaseExpired",
        "Removed",
        "QueueEmpty",
        "QueueFull",
        "QueueClosed",
    ];
    for ending in seen {
        assert!(endings.contains(&ending), "nothing ever ended with {ending}");
    }
    assert!(grown > 10, "files and queues grew {grown} times");
    assert!(retired > 3, "blocks of queues were retired {retired} times");
}

/// The first seed that shows the bug, and what was seen. A panic of the product is no catch: the
/// checkers must see it from outside.
fn seeds_until_caught(bug: Bug) -> Option<(u64, String)> {
    Bug::arm(Some(bug));
    let caught = (1..=PATIENCE)
        .find_map(|seed| run_seed(seed, OPERATIONS).err().map(|violation| (seed, violation.what)));
    Bug::arm(None);
    caught
}

macro_rules! caught {
    ($($test:ident: $bug:ident,)*) => {$(
        #[test]
        fn $test() {
            match seeds_until_caught(Bug::$bug) {
                Some((seed, what)) => println!("{:?}: seed {seed}: {what}", Bug::$bug),
                None => panic!("{:?} was not caught in {PATIENCE} seeds", Bug::$bug),
            }
        }
    )*};
}

caught! {
    a_lost_retry_record_is_caught: LostRetryRecord,
    an_acknowledgement_before_the_effect_is_caught: AckBeforeEffect,
    an_epoch_that_is_not_checked_is_caught: EpochUnchecked,
    a_lease_that_ends_early_is_caught: EarlyExpiry,
    a_block_with_old_bytes_is_caught: StaleBytes,
    a_bound_that_forgets_other_blocks_is_caught: QueueForgetsAhead,
    consumers_that_are_sent_on_early_are_caught: QueueMovesEarly,
    a_stale_acknowledgement_is_caught: QueueAcksStale,
    an_item_that_does_not_come_back_is_caught: QueueLosesReturned,
    a_block_that_is_retired_early_is_caught: QueueRetiresEarly,
    a_get_for_a_caller_who_hung_up_is_caught: QueueFeedsTheDead,
}
