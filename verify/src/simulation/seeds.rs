//! The simulator's own tests: clean seeds, the same seed twice, and a bank of planted bugs.

use crate::lots::controllers;
use crate::tiers::{below, scarce};
use crate::{Stats, World, caught_by, run_cut_off, run_seed, run_slow_disks, seeds_until_caught};
use honeycomb_types::Bug;
use std::time::Duration;

/// Operations of each seed here.
const OPERATIONS: u64 = 600;
/// Number of seeds within which every planted bug must be found.
const PATIENCE: u64 = 1000;

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
    let mut sum = Stats::default();
    for seed in 1..=120 {
        sum.add(&run_seed(seed, OPERATIONS).unwrap());
    }
    // Cases in less than one seed of ten are for longer runs: `simulate --strict`.
    let rare = [
        "amnesty",
        " beside a use (",
        "block of a file left its server",
        "block of a queue left its server",
        "block in a store",
        "block raised",
        "broken link at a demotion",
        "commit refused",
        "crash cell",
        "crash for good",
        "cut link at a commit",
        "cut move",
        "disk full",
        "drain cancelled",
        "run of deltas not written",
        "run of deltas written",
        "runs of deltas merged",
        "drained server ended",
        "edge impossible",
        "growth denied without a controller",
        "extents gone while they were read",
        "large value dropped while it moves",
        "large value not taken",
        "lowering given up",
        "lowering refused",
        "outcome unknown",
        "pause longer than the silence of the dead",
        "pause of the controller longer than the silence of the dead",
        "prefix freed by its readers",
        "private block moved before it served",
        "private blocks gone at the commit",
        "put of extents that were gone",
        "read below failed once",
        "region changed while it moves",
        "request that waited for blocks that go down",
        "process of a server found ended",
        "server back under a new name",
        "server declared dead for its silence",
        "suspected server back",
        "suspicion ended by a report",
        "some of many keys read",
        "store away",
        "write below failed",
        "wrong bytes from below once",
    ];
    let missed: Vec<String> = sum.missed();
    let common = |missed: &&String| !rare.iter().any(|rare| missed.contains(rare));
    let common: Vec<&String> = missed.iter().filter(common).collect();
    assert!(common.is_empty(), "{common:?}");
    for ending in ["Ok", "KeyNotFound", "DataLost", "LeaseExpired", "Removed", "QueueFull"] {
        assert!(sum.endings.contains_key(ending), "nothing ever ended with {ending}");
    }
}

#[test]
fn server_that_is_cut_off_for_10_s_loses_no_data_and_one_for_20_s_is_lost() {
    let lost = |stats: &Stats| stats.endings.get("DataLost").copied().unwrap_or_default();
    let short = run_cut_off(Duration::from_secs(10)).unwrap();
    assert_eq!(lost(&short), 0, "a link that is down for 10 s costs waiting and no data");
    let long = run_cut_off(Duration::from_secs(20)).unwrap();
    assert!(lost(&long) > 0, "{:?}", long.endings);
    assert!(long.states.contains_key("server declared dead for its silence"));
}

#[test]
fn bugs_left_to_other_tests_are_planted_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for bug in Bug::ALL {
        let Some(file) = caught_by(bug) else { continue };
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        let name = format!("{bug:?}");
        assert!(text.contains("#[test]"), "{file} has no tests");
        assert!(text.contains(&name), "{file} does not plant {name}");
    }
}

macro_rules! caught {
    ($($test:ident: $bug:ident,)*) => {$(
        #[test]
        fn $test() {
            match seeds_until_caught(Bug::$bug, 1, PATIENCE, OPERATIONS) {
                Some(seen) => println!("{:?}: seed {}: {}", Bug::$bug, seen.seed, seen.what),
                None => panic!("{:?} was not caught in {PATIENCE} seeds", Bug::$bug),
            }
        }
    )*};
}

// The bugs of the bank that few seeds can find; `simulate --bugs` plants all of them.
caught! {
    a_lost_retry_record_is_caught: LostRetryRecord,
    an_acknowledgement_before_the_effect_is_caught: AckBeforeEffect,
    an_epoch_that_is_not_checked_is_caught: EpochUnchecked,
    a_lease_that_ends_early_is_caught: EarlyExpiry,
    a_block_with_old_bytes_is_caught: StaleBytes,
    a_bound_that_forgets_other_blocks_is_caught: QueueForgetsAhead,
    consumers_that_are_sent_on_early_is_caught: QueueMovesEarly,
    a_stale_acknowledgement_is_caught: QueueAcksStale,
    an_item_that_does_not_come_back_is_caught: QueueLosesReturned,
    a_block_that_is_retired_early_is_caught: QueueRetiresEarly,
    a_get_for_a_caller_who_hung_up_is_caught: QueueFeedsTheDead,
    a_lost_answer_that_is_forgotten_is_caught: ClientForgetsDoubt,
    a_renewal_that_stops_at_a_bad_path_is_caught: RenewalStopsAtBadPath,
    a_renewal_without_parents_is_caught: RenewalForgetsParents,
    a_renewal_without_descendants_is_caught: RenewalForgetsDescendants,
    a_block_that_is_free_unconfirmed_is_caught: FreeUnconfirmed,
    a_second_successor_is_caught: GrowsTwice,
    a_quota_that_is_forgotten_is_caught: QuotaForgotten,
    a_merge_that_leaves_a_gap_is_caught: MergeLeavesGap,
    totals_of_a_retired_block_are_caught: RetireKeepsTotals,
    memory_of_another_tenant_is_caught: MemoryChangesTenant,
    a_condition_that_is_checked_early_is_caught: FillJudgedEarly,
    reads_that_wait_like_changes_are_caught: FrozenRefusesReads,
    a_notice_before_its_commit_is_caught: NoticeBeforeCommit,
    a_dead_server_that_stays_is_caught: DeadStayMembers,
    a_reader_that_frees_early_is_caught: ReaderFreesEarly,
    an_edge_that_is_forgotten_is_caught: EdgeForgotten,
    a_stall_that_is_forgotten_is_caught: StallForgotten,
    a_version_that_was_promised_is_caught: RetireRaisesVersion,
    a_generation_that_is_not_checked_is_caught: GenerationUnchecked,
    a_grant_that_never_ends_is_caught: GrantNeverEnds,
    a_grant_of_another_job_is_caught: JobUnchecked,
    verbs_that_are_not_checked_is_caught: VerbsUnchecked,
    half_a_batch_is_caught: BatchHalfDone,
    a_comparison_of_lengths_is_caught: SwapComparesLengths,
    a_scan_that_skips_is_caught: ScanSkips,
    a_write_to_what_stands_still_is_caught: MoveWritesFrozen,
    a_cancelled_split_that_leaks_is_caught: MoveCancelLeaks,
    extents_that_outlive_their_entry_are_caught: ExtentsKept,
    a_move_that_drops_extents_is_caught: MoveDropsExtents,
    a_torn_large_value_is_caught: ExtentFillsMixed,
    a_moved_entry_without_an_owner_is_caught: MoveForgetsOwner,
    a_server_that_drains_and_is_given_blocks_is_caught: DrainTakesNewBlocks,
    a_block_that_leaves_without_its_records_is_caught: RelocateForgetsLanes,
    a_relocation_that_is_taken_for_a_retirement_is_caught: RelocatedMeansRetired,
    a_queue_that_leaves_without_its_reservations_is_caught: RelocateForgetsReserved,
    a_successor_that_is_served_is_caught: SuccessorServed,
    a_job_that_is_replaced_for_another_is_caught: OtherJobReplaced,
    suspected_server_that_is_given_blocks_is_caught: SuspectedGetsBlocks,
    suspected_server_that_is_lost_is_caught: SuspectedIsLost,
    lots_that_are_lent_twice_are_caught: LotsLentTwice,
    lots_that_are_lost_are_caught: LotsLost,
    lots_that_are_given_out_and_back_are_caught: LotsGivenBackLate,
    lots_that_are_forgotten_at_a_rejoin_are_caught: LotsForgottenAtRejoin,
    an_unwritten_page_edge_is_caught: PageEdgeUnwritten,
    copy_that_takes_a_slot_of_an_empty_block_is_caught: EmptyBlockHasSlot,
    checkpoint_that_is_copied_late_is_caught: CheckpointCopiesLate,
    failed_piece_that_counts_is_caught: FailedPieceCounts,
    commit_of_an_uncounted_move_is_caught: CommitsUncounted,
    copy_in_a_store_that_is_read_from_its_disk_is_caught: CopyKeepsItsTier,
    capacity_that_does_not_count_is_caught: CapacityUncounted,
    capacity_that_a_controller_forgets_is_caught: CapacityForgotten,
    capacity_that_a_controller_keeps_is_caught: CapacityKept,
    extents_of_an_acknowledged_item_are_caught: ItemListKept,
    list_that_counts_as_its_item_is_caught: ItemListUncounted,
    directory_that_stays_is_caught: DirectoryStays,
    turn_that_never_ends_is_caught: TurnsNeverEnd,
    layout_that_changes_under_its_copy_is_caught: PackedWhileDemoted,
    deltas_that_reads_ignore_are_caught: DeltasHidden,
    run_that_is_lost_is_caught: RunLost,
    conditions_that_are_judged_without_deltas_are_caught: DeltasUnjudged,
    a_refusal_of_the_largest_size_is_caught: LargestRefused,
}

/// The number of operations that exceed their deadline, in some seeds with little memory whose disks need 80
/// to 120 ms for each request. A writer tries again sooner than that, and a block may leave the write cache
/// sooner.
fn late_on_slow_disks() -> u64 {
    let scarce = |seed: &u64| scarce(*seed, below(*seed, controllers(*seed)));
    let time = Duration::from_millis(80)..Duration::from_millis(120);
    let late = (1..).filter(scarce).take(10).map(|seed| {
        let stats = run_slow_disks(seed, time.clone(), 3000).unwrap();
        stats.endings.get("DeadlineExceeded").copied().unwrap_or_default()
    });
    late.sum()
}

#[test]
fn nobody_waits_without_end_for_memory_on_slow_disks() {
    assert_eq!(late_on_slow_disks(), 0);
}

#[test]
fn writers_that_keep_their_blocks_from_leaving_are_caught_on_slow_disks() {
    Bug::arm(Some(Bug::LeavingBlockStays));
    let late = late_on_slow_disks();
    Bug::arm(None);
    assert!(late > 0);
}
