//! The bank of planted bugs: measures how long a checker needs to find one.

use crate::world::{Violation, run_seed};
use honeycomb_types::Bug;

/// Arms a bug until dropped, even if a checker panics.
struct Armed;

impl Drop for Armed {
    fn drop(&mut self) {
        Bug::arm(None);
    }
}

/// The first of so many seeds, starting at `from`, that reveals the bug, and the violation: the finding of
/// a checker, or the assert of the product that fails.
pub fn seeds_until_caught(bug: Bug, from: u64, most: u64, operations: u64) -> Option<Violation> {
    let _armed = Armed;
    Bug::arm(Some(bug));
    (from..from + most).find_map(|seed| run_seed(seed, operations).err())
}

/// The file with tests for a bug that the simulator does not reach: its nodes have no sockets and
/// no flushes with manifests, and its structures are small.
pub fn caught_by(bug: Bug) -> Option<&'static str> {
    Some(match bug {
        Bug::BarrierThawsEarly => "crates/catalog/tests/rules/barrier.rs",
        Bug::CheckpointOfImport | Bug::DemotedWhileMoving => "crates/server/tests/shard/exports.rs",
        Bug::CheckpointSettlesEarly => "crates/server/tests/shard/extents.rs",
        Bug::DemotionEndsEarly => "crates/server/tests/shard/to_store.rs",
        Bug::CopyEndsWithStructure => "crates/server/tests/shard/splits_below.rs",
        Bug::TierForgottenAtRejoin => "crates/server/tests/shard/tiers/promotion.rs",
        Bug::LeavingBlockStays => "verify/src/simulation/seeds.rs",
        Bug::StayCountedFromRequest | Bug::ResultsStayInBlock => {
            "crates/server/tests/shard/write_cache.rs"
        }
        Bug::AheadKeptWaiting => "crates/catalog/tests/rules/drain.rs",
        Bug::CapacityNotTold => "crates/server/tests/shard/capacities.rs",
        Bug::CancelNotRepeated => "crates/server/src/link/inventory.rs",
        Bug::ImportMakesReadersWait | Bug::MoveServesEarly | Bug::MoveServesLate => {
            "crates/structures/tests/structures/moves/targets.rs"
        }
        Bug::BeginNotRepeated | Bug::MoveBegunTwice | Bug::PartsLimitedAsEntries => {
            "crates/server/tests/shard/moves.rs"
        }
        Bug::MoveCancelLeaks => "crates/catalog/tests/rules/moves.rs",
        Bug::UnopenedInMemory => "crates/catalog/tests/rules/rejoin.rs",
        Bug::DiscardFlushes
        | Bug::JobEndUnlogged
        | Bug::StopForgetsFlushTo
        | Bug::StopSkipsManifest
        | Bug::StopTakesJobs => "crates/catalog/tests/rules/flush/stop.rs",
        Bug::DividesCoarsely => "crates/structures/tests/structures/moves.rs",
        Bug::ReasonOutlivesNeed => "crates/structures/tests/structures/moves/refusals.rs",
        Bug::ExpiresUnheard => "verify/src/simulation/stalls.rs",
        Bug::DeadKeepTheirBudget
        | Bug::DeadlineRestarts
        | Bug::RenewalsUseCommonBudget
        | Bug::SharedTurnsStayLong
        | Bug::SharesCountAnnounced => "verify/src/simulation/neighbours.rs",
        Bug::IdsCount => "crates/catalog/tests/rules/isolation.rs",
        Bug::PlansCountedWhole => "crates/controller/src/plan_count.rs",
        Bug::ReplyBeforeSync => "crates/controller/src/outbox.rs",
        Bug::RefusedTreeIsWalked => "crates/catalog/src/jobs.rs",
        Bug::UnflushableAccepted => "crates/catalog/tests/rules/kinds.rs",
        _ => return None,
    })
}
