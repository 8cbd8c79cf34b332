//! The bug bank: defects that a checker must be able to find, planted behind a feature.
//!
//! Product builds have no `bug-bank` feature and `active` is the constant `false` there; the
//! compiler removes the branch. `verify/` turns the feature on and arms one bug at a time.

/// A planted defect. Each names the invariant that it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// The result of a mutation is not recorded, so a retry runs it again (INV-16).
    LostRetryRecord = 1,
    /// An append is acknowledged while a large one before it is still arriving (INV-06, INV-07).
    AckBeforeEffect = 2,
    /// A request for an earlier owner's epoch is served (INV-01).
    EpochUnchecked = 3,
    /// A lease ends before its full period (INV-12).
    EarlyExpiry = 4,
    /// A block's backing goes to the next owner with the old bytes (INV-04).
    StaleBytes = 5,
    /// A new tail of a bounded queue does not count what earlier blocks hold (INV-22).
    QueueForgetsAhead = 6,
    /// A queue's block that was sealed sends consumers on while it still has items (INV-22).
    QueueMovesEarly = 7,
    /// A reservation is settled by somebody whose time had passed (INV-22).
    QueueAcksStale = 8,
    /// An item whose reservation ran out does not come back (INV-22).
    QueueLosesReturned = 9,
    /// A queue's block is retired while an answer that it gave may still be asked for (INV-16).
    QueueRetiresEarly = 10,
    /// A get whose caller has hung up takes an item all the same (INV-22).
    QueueFeedsTheDead = 11,
    /// A mutation that was refused goes on in another lane, where a copy of it is not known (INV-16).
    ClientChangesLane = 12,
    /// A mutation that was told to wait follows a newer map instead (INV-16).
    ClientForgetsBusy = 13,
    /// A mutation whose answer was lost is sent again as if it had never been sent (INV-16).
    ClientForgetsDoubt = 14,
    /// Who was sent on to another block has not used up its number here (INV-16).
    MovedKeepsNumber = 15,
    /// A path that cannot be renewed ends the renewal of those after it (INV-14).
    RenewalStopsAtBadPath = 16,
    /// A renewal does not reach the direct parents (INV-14).
    RenewalForgetsParents = 17,
    /// A renewal does not reach the descendants (INV-14).
    RenewalForgetsDescendants = 18,
    /// Leases end although their controller was not there to hear renewals (INV-27).
    AmnestyForgotten = 19,
    /// A block is free before its server has confirmed it (INV-03).
    FreeUnconfirmed = 20,
    /// A block that asks again gets another successor (INV-20).
    GrowsTwice = 21,
    /// A job takes more blocks than its quota (INV-30).
    QuotaForgotten = 22,
    /// The blocks of a server that is gone are given out (INV-02).
    DeadStayMembers = 23,
    /// The first declared reader to commit frees a prefix (INV-37).
    ReaderFreesEarly = 24,
    /// What a task opens is not kept by its renewals, although it was told so (INV-37).
    EdgeForgotten = 25,
    /// A retired block makes a version of the map that the tail was promised (INV-17).
    RetireRaisesVersion = 26,
    /// A grant that was revoked is served (INV-29).
    GenerationUnchecked = 27,
    /// A grant that is past its time is served (INV-29).
    GrantNeverEnds = 28,
    /// A grant of another job's structure is served (INV-28).
    JobUnchecked = 29,
    /// A grant to read is served when it writes (INV-28).
    VerbsUnchecked = 30,
    /// An atomic batch that is refused keeps what it did before (INV-38).
    BatchHalfDone = 31,
    /// A compare-and-swap takes values of equal length for equal (INV-15).
    SwapComparesLengths = 32,
    /// The next page of a scan begins after an entry that no page brought (INV-15).
    ScanSkips = 33,
    /// A read sees bytes of an append that is still arriving (INV-23).
    FileReadsAhead = 34,
    /// The results of mutations do not move with their range (INV-16).
    MoveForgetsRecords = 35,
    /// A range that stands still for its move is written to (INV-19).
    MoveWritesFrozen = 36,
    /// A range that was handed over is still read where it was (INV-18).
    MoveServesLate = 37,
    /// A block answers for a range before it has it (INV-18).
    MoveServesEarly = 38,
    /// The block of a split that was given up is not given back (INV-20).
    MoveCancelLeaks = 39,
    /// A move that was given up is begun anew while parts of its first try are on their way (INV-19).
    MoveBegunTwice = 40,
    /// What frees a block is told before it is on the disk (INV-26).
    FreesUnsynced = 41,
    /// What a killed controller left unsynced is followed by more files all the same (INV-26).
    LogTailUnsynced = 42,
    /// A successor that was allocated in advance is not adopted (INV-26).
    SpareNotAdopted = 43,
    /// A block goes on naming a successor that it gave back (INV-26).
    GivenBackStaysNamed = 44,
    /// Tails of queues are told what is ahead of them before that is known (INV-22).
    AheadToldEarly = 45,
    /// The silence of a server that came back is not counted (INV-27).
    SilenceForgotten = 46,
    /// A block that goes keeps the extents of puts that it has not stored (INV-39).
    ExtentsOrphaned = 47,
    /// An entry that is no more keeps its extents (INV-39).
    ExtentsKept = 48,
    /// A drop of extents that was not confirmed is not repeated (INV-39).
    ExtentDropsForgotten = 49,
    /// A put is stored although its extents could not be adopted (INV-39).
    ExtentsUnadopted = 50,
    /// Bytes of extents that arrive side by side are mixed (INV-39).
    ExtentFillsMixed = 51,
    /// A region that has moved away drops the extents that its entries have elsewhere (INV-39).
    MoveDropsExtents = 52,
    /// Entries that move forget whose their extents are (INV-39).
    MoveForgetsOwner = 53,
    /// A server lends to a controller shard what another one has (INV-40).
    LotsLentTwice = 54,
    /// What a controller shard gives back is lent to nobody any more (INV-40).
    LotsLost = 55,
    /// A controller shard gives out what it is about to give back (INV-40).
    LotsGivenBackLate = 56,
    /// A server that came back is taken to have lent everything (INV-40).
    LotsForgottenAtRejoin = 57,
    /// A block's memory is given up before its bytes are on the disk (INV-41).
    LoweredBeforeWritten = 58,
    /// Memory counts as free while a reply is still sent from it (INV-41).
    FrameFreeBeforePins = 59,
    /// A place on a disk goes to another block before its last I/O has ended (INV-44).
    SlotReusedWhileDraining = 60,
    /// What a disk gives is served whatever it is (INV-41).
    SumUnchecked = 61,
    /// A server that came back does not say that memory is still in use (INV-42).
    TierForgottenAtRejoin = 62,
    /// Under first-come a block of another prefix goes down (INV-43).
    LowersNeighbour = 63,
    /// A server that is being taken out is given blocks (INV-46).
    DrainTakesNewBlocks = 64,
    /// Who leaves a server takes no retry records along (INV-19).
    RelocateForgetsLanes = 65,
    /// A block of a holder within its share goes down for another (INV-43).
    TakesFromShare = 66,
    /// What was given out and not acknowledged is not told to the block that goes on (INV-48).
    RelocateForgetsReserved = 67,
    /// A block that leaves after its seal does not say again that it is sealed (INV-48).
    SealLeftBehind = 68,
    /// Whose block was relocated takes it for one that was retired, where nothing had run (INV-16).
    RelocatedMeansRetired = 69,
    /// A block of a store that was brought up to be written to goes down as it was (INV-06).
    ChangesStayUp = 70,
    /// Blocks go on when the first of a cut stands still (INV-49).
    BarrierThawsEarly = 71,
    /// A value that is carried elsewhere takes the place of the one that was put meanwhile (INV-39).
    CarriedOverAnother = 72,
    /// A copy on a disk ends where the structure ends, although it was not written again (INV-41).
    CopyEndsWithStructure = 73,
    /// The end of the cluster flushes only prefixes with `persist` (INV-50).
    StopForgetsFlushTo = 74,
    /// The end of the cluster does not wait for the manifest behind the last part (INV-50).
    StopSkipsManifest = 75,
    /// A cluster that ends registers jobs (INV-50).
    StopTakesJobs = 76,
    /// Prefixes of a cluster that is stopped with `discard` are flushed (INV-50).
    DiscardFlushes = 77,
    /// The log does not have that a job ended (INV-26).
    JobEndUnlogged = 78,
    /// Leases end before renewals that had arrived in time are read (INV-27).
    ExpiresUnheard = 79,
    /// A stall of the controller is not added to leases (INV-27).
    StallForgotten = 80,
    /// Bytes that a connection held when it ended stay counted (INV-53).
    DeadKeepTheirBudget = 81,
    /// Renewals are refused like everything else when a job holds its share of the buffers (INV-53).
    RenewalsUseCommonBudget = 82,
    /// Each byte of a request that dribbles in restarts its deadline (INV-53).
    DeadlineRestarts = 83,
    /// A large payload is counted when it is announced, not as its bytes arrive (INV-53).
    SharesCountAnnounced = 84,
    /// The last bytes of a block are not written to its disk when they are the first of a page (INV-41).
    PageEdgeUnwritten = 85,
    /// The open end of a block is read back from its disk without its last page (INV-41).
    PromotedWithoutTail = 86,
    /// A read from the last byte on that is on a disk takes it from memory (INV-41).
    FloorOffByOne = 87,
    /// An append, an item or a value of exactly the largest size is refused (INV-33).
    LargestRefused = 88,
    /// A structure of a kind that cannot be flushed is created in a prefix whose end flushes it (INV-09).
    UnflushableAccepted = 89,
    /// A block of a key-value store is divided between 1024ths of all hashes only (INV-17).
    DividesCoarsely = 90,
    /// Ids of jobs, prefixes and structures are the cluster's counters (INV-54).
    IdsCount = 91,
    /// A handle of a job whose lease ended is served by the job that another process began anew (INV-55).
    SuccessorServed = 92,
    /// A registration replaces another job than the one that its caller has looked at (INV-55).
    OtherJobReplaced = 93,
    /// A suspected server is given blocks (INV-56).
    SuspectedGetsBlocks = 94,
    /// A server is lost as soon as it is suspected (INV-56).
    SuspectedIsLost = 95,
    /// The tree of a job is walked before it is refused as too large (INV-57).
    RefusedTreeIsWalked = 96,
    /// A plan is counted only when all of it has arrived (INV-57).
    PlansCountedWhole = 97,
    /// The turns of jobs that share a loop are as long as that of a job alone (INV-57).
    SharedTurnsStayLong = 98,
    /// A part of a move is refused when it is larger than an entry of the block (INV-47).
    PartsLimitedAsEntries = 99,
    /// A server is sent a demotion before it has reported its blocks, and again afterwards (INV-42).
    DemotedBeforeReport = 100,
    /// A block that was granted in a lower tier and never opened is opened in memory (INV-42).
    UnopenedInMemory = 101,
    /// New entries take the room that a block keeps for dividing itself (INV-17).
    ReserveTaken = 102,
}

impl Bug {
    /// Every planted defect.
    pub const ALL: [Bug; 102] = [
        Bug::LostRetryRecord,
        Bug::AckBeforeEffect,
        Bug::EpochUnchecked,
        Bug::EarlyExpiry,
        Bug::StaleBytes,
        Bug::QueueForgetsAhead,
        Bug::QueueMovesEarly,
        Bug::QueueAcksStale,
        Bug::QueueLosesReturned,
        Bug::QueueRetiresEarly,
        Bug::QueueFeedsTheDead,
        Bug::ClientChangesLane,
        Bug::ClientForgetsBusy,
        Bug::ClientForgetsDoubt,
        Bug::MovedKeepsNumber,
        Bug::RenewalStopsAtBadPath,
        Bug::RenewalForgetsParents,
        Bug::RenewalForgetsDescendants,
        Bug::AmnestyForgotten,
        Bug::FreeUnconfirmed,
        Bug::GrowsTwice,
        Bug::QuotaForgotten,
        Bug::DeadStayMembers,
        Bug::ReaderFreesEarly,
        Bug::EdgeForgotten,
        Bug::RetireRaisesVersion,
        Bug::GenerationUnchecked,
        Bug::GrantNeverEnds,
        Bug::JobUnchecked,
        Bug::VerbsUnchecked,
        Bug::BatchHalfDone,
        Bug::SwapComparesLengths,
        Bug::ScanSkips,
        Bug::FileReadsAhead,
        Bug::MoveForgetsRecords,
        Bug::MoveWritesFrozen,
        Bug::MoveServesLate,
        Bug::MoveServesEarly,
        Bug::MoveCancelLeaks,
        Bug::MoveBegunTwice,
        Bug::FreesUnsynced,
        Bug::LogTailUnsynced,
        Bug::SpareNotAdopted,
        Bug::GivenBackStaysNamed,
        Bug::AheadToldEarly,
        Bug::SilenceForgotten,
        Bug::ExtentsOrphaned,
        Bug::ExtentsKept,
        Bug::ExtentDropsForgotten,
        Bug::ExtentsUnadopted,
        Bug::ExtentFillsMixed,
        Bug::MoveDropsExtents,
        Bug::MoveForgetsOwner,
        Bug::LotsLentTwice,
        Bug::LotsLost,
        Bug::LotsGivenBackLate,
        Bug::LotsForgottenAtRejoin,
        Bug::LoweredBeforeWritten,
        Bug::FrameFreeBeforePins,
        Bug::SlotReusedWhileDraining,
        Bug::SumUnchecked,
        Bug::TierForgottenAtRejoin,
        Bug::LowersNeighbour,
        Bug::DrainTakesNewBlocks,
        Bug::RelocateForgetsLanes,
        Bug::TakesFromShare,
        Bug::RelocateForgetsReserved,
        Bug::SealLeftBehind,
        Bug::RelocatedMeansRetired,
        Bug::ChangesStayUp,
        Bug::BarrierThawsEarly,
        Bug::CarriedOverAnother,
        Bug::CopyEndsWithStructure,
        Bug::StopForgetsFlushTo,
        Bug::StopSkipsManifest,
        Bug::StopTakesJobs,
        Bug::DiscardFlushes,
        Bug::JobEndUnlogged,
        Bug::ExpiresUnheard,
        Bug::StallForgotten,
        Bug::DeadKeepTheirBudget,
        Bug::RenewalsUseCommonBudget,
        Bug::DeadlineRestarts,
        Bug::SharesCountAnnounced,
        Bug::PageEdgeUnwritten,
        Bug::PromotedWithoutTail,
        Bug::FloorOffByOne,
        Bug::LargestRefused,
        Bug::UnflushableAccepted,
        Bug::DividesCoarsely,
        Bug::IdsCount,
        Bug::SuccessorServed,
        Bug::OtherJobReplaced,
        Bug::SuspectedGetsBlocks,
        Bug::SuspectedIsLost,
        Bug::RefusedTreeIsWalked,
        Bug::PlansCountedWhole,
        Bug::SharedTurnsStayLong,
        Bug::PartsLimitedAsEntries,
        Bug::DemotedBeforeReport,
        Bug::UnopenedInMemory,
        Bug::ReserveTaken,
    ];
}

#[cfg(feature = "bug-bank")]
mod armed {
    use super::Bug;
    use std::cell::Cell;

    thread_local!(static ARMED: Cell<u8> = const { Cell::new(0) });

    impl Bug {
        /// Whether this defect is armed on the calling thread.
        pub fn active(self) -> bool {
            ARMED.get() == self as u8
        }

        /// Arms one defect (or none) for the calling thread.
        pub fn arm(bug: Option<Bug>) {
            ARMED.set(bug.map_or(0, |b| b as u8));
        }
    }
}

#[cfg(not(feature = "bug-bank"))]
impl Bug {
    /// Whether this defect is armed: never, in a build without the bug bank.
    #[inline(always)]
    pub const fn active(self) -> bool {
        false
    }
}
