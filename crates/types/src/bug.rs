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
    /// An append is acknowledged while an earlier, large append is still arriving (INV-06, INV-07).
    AckBeforeEffect = 2,
    /// A request for an earlier owner's epoch is served (INV-01).
    EpochUnchecked = 3,
    /// A lease ends before its full period (INV-12).
    EarlyExpiry = 4,
    /// A block's backing goes to the next owner with the old bytes (INV-04).
    StaleBytes = 5,
    /// A new tail of a bounded queue does not count the content of earlier blocks (INV-22).
    QueueForgetsAhead = 6,
    /// A queue's block that was sealed redirects consumers while it still has items (INV-22).
    QueueMovesEarly = 7,
    /// A reservation is completed by a caller whose time had passed (INV-22).
    QueueAcksStale = 8,
    /// An item whose reservation expired is not returned (INV-22).
    QueueLosesReturned = 9,
    /// A queue's block is retired while a result of it may still be requested (INV-16).
    QueueRetiresEarly = 10,
    /// A get whose caller has hung up still takes an item (INV-22).
    QueueFeedsTheDead = 11,
    /// A refused mutation continues in another lane, in which a copy of it is not recognised
    /// (INV-16).
    ClientChangesLane = 12,
    /// A mutation that got `Busy` follows a newer map instead of waiting (INV-16).
    ClientForgetsBusy = 13,
    /// A mutation whose reply was lost is sent again as if it had never been sent (INV-16).
    ClientForgetsDoubt = 14,
    /// A mutation that was redirected to another block has not used up its number here (INV-16).
    MovedKeepsNumber = 15,
    /// A path that cannot be renewed ends the renewal of those after it (INV-14).
    RenewalStopsAtBadPath = 16,
    /// A renewal does not reach the direct parents (INV-14).
    RenewalForgetsParents = 17,
    /// A renewal does not reach the descendants (INV-14).
    RenewalForgetsDescendants = 18,
    /// Leases end although their controller was not running to receive renewals (INV-27).
    AmnestyForgotten = 19,
    /// A block is free before its server has confirmed it (INV-03).
    FreeUnconfirmed = 20,
    /// A block that requests a successor again gets another one (INV-20).
    GrowsTwice = 21,
    /// A job takes more blocks than its quota (INV-30).
    QuotaForgotten = 22,
    /// The blocks of a lost server are allocated (INV-02).
    DeadStayMembers = 23,
    /// The first declared reader to commit frees a prefix (INV-37).
    ReaderFreesEarly = 24,
    /// A task's renewals do not keep alive the prefixes that it opens, although that was requested
    /// (INV-37).
    EdgeForgotten = 25,
    /// Retiring a block uses a version of the map that was promised to the tail (INV-17).
    RetireRaisesVersion = 26,
    /// A revoked grant is accepted (INV-29).
    GenerationUnchecked = 27,
    /// An expired grant is accepted (INV-29).
    GrantNeverEnds = 28,
    /// A grant of another job's structure is accepted (INV-28).
    JobUnchecked = 29,
    /// A grant to read is accepted for a write (INV-28).
    VerbsUnchecked = 30,
    /// A refused atomic batch keeps the effects of its earlier operations (INV-38).
    BatchHalfDone = 31,
    /// A compare-and-swap treats values of equal length as equal (INV-15).
    SwapComparesLengths = 32,
    /// The next page of a scan begins after an entry that no page returned (INV-15).
    ScanSkips = 33,
    /// A read sees bytes of an append that is still arriving (INV-23).
    FileReadsAhead = 34,
    /// The results of mutations do not move with their range (INV-16).
    MoveForgetsRecords = 35,
    /// A range that is frozen for its move is written (INV-19).
    MoveWritesFrozen = 36,
    /// A range that was handed over is still read at its old block (INV-18).
    MoveServesLate = 37,
    /// A block serves a range before it has it (INV-18).
    MoveServesEarly = 38,
    /// The target block of an abandoned split is not freed (INV-20).
    MoveCancelLeaks = 39,
    /// An abandoned move is begun again while parts of its first try are still in transit (INV-19).
    MoveBegunTwice = 40,
    /// A command that frees a block is acknowledged before it is on the disk (INV-26).
    FreesUnsynced = 41,
    /// The controller starts another log file although the end of the last one is unsynced after a
    /// kill (INV-26).
    LogTailUnsynced = 42,
    /// A successor that was allocated in advance is not adopted (INV-26).
    SpareNotAdopted = 43,
    /// A block still names a successor that it returned (INV-26).
    GivenBackStaysNamed = 44,
    /// Tails of queues get the counts of earlier blocks before these are known (INV-22).
    AheadToldEarly = 45,
    /// The silence of a server that rejoined is not counted (INV-27).
    SilenceForgotten = 46,
    /// A removed block keeps the extents of puts that it has not stored (INV-39).
    ExtentsOrphaned = 47,
    /// A deleted entry keeps its extents (INV-39).
    ExtentsKept = 48,
    /// An unconfirmed drop of extents is not repeated (INV-39).
    ExtentDropsForgotten = 49,
    /// A put is stored although its extents could not be adopted (INV-39).
    ExtentsUnadopted = 50,
    /// Bytes of extents that arrive concurrently are mixed (INV-39).
    ExtentFillsMixed = 51,
    /// A region that has moved away drops the extents that its entries still name (INV-39).
    MoveDropsExtents = 52,
    /// Moved entries lose the owner of their extents (INV-39).
    MoveForgetsOwner = 53,
    /// A server lends the same blocks to two controller shards (INV-40).
    LotsLentTwice = 54,
    /// Blocks that a controller shard returns are not lent again (INV-40).
    LotsLost = 55,
    /// A controller shard allocates blocks that it is about to return (INV-40).
    LotsGivenBackLate = 56,
    /// A server that rejoined counts as having lent all its blocks (INV-40).
    LotsForgottenAtRejoin = 57,
    /// A block's memory is freed before its bytes are on the disk (INV-41).
    LoweredBeforeWritten = 58,
    /// Memory counts as free while a reply is still sent from it (INV-41).
    FrameFreeBeforePins = 59,
    /// A disk slot is given to another block before its last I/O has ended (INV-44).
    SlotReusedWhileDraining = 60,
    /// Bytes from a disk are served without checking their checksum (INV-41).
    SumUnchecked = 61,
    /// A server that rejoined does not report memory that is still in use (INV-42).
    TierForgottenAtRejoin = 62,
    /// Under first-come a block of another prefix is demoted (INV-43).
    LowersNeighbour = 63,
    /// A draining server gets blocks (INV-46).
    DrainTakesNewBlocks = 64,
    /// A relocated block loses its retry records (INV-19).
    RelocateForgetsLanes = 65,
    /// A block of a holder within its share is demoted for another holder (INV-43).
    TakesFromShare = 66,
    /// The new block of a relocation forgets the list of delivered, unacknowledged items (INV-48).
    RelocateForgetsReserved = 67,
    /// A block that is relocated after its seal does not report the seal again (INV-48).
    SealLeftBehind = 68,
    /// A relocated block is taken for a retired one, in which no request had run (INV-16).
    RelocatedMeansRetired = 69,
    /// A key-value block that was promoted for a write is demoted without the change (INV-06).
    ChangesStayUp = 70,
    /// Blocks are thawed when the first of a checkpoint is frozen (INV-49).
    BarrierThawsEarly = 71,
    /// An evacuated value replaces one that was put meanwhile (INV-39).
    CarriedOverAnother = 72,
    /// A copy on a disk is cut to the length of the structure, although it was not rewritten
    /// (INV-41).
    CopyEndsWithStructure = 73,
    /// Stopping the cluster flushes only prefixes with `persist` (INV-50).
    StopForgetsFlushTo = 74,
    /// Stopping the cluster does not wait for the manifest after the last part (INV-50).
    StopSkipsManifest = 75,
    /// A stopping cluster registers jobs (INV-50).
    StopTakesJobs = 76,
    /// Prefixes of a cluster that is stopped with `discard` are flushed (INV-50).
    DiscardFlushes = 77,
    /// The end of a job is not in the log (INV-26).
    JobEndUnlogged = 78,
    /// Leases end before renewals that had arrived in time are read (INV-27).
    ExpiresUnheard = 79,
    /// A stall of the controller is not added to leases (INV-27).
    StallForgotten = 80,
    /// Bytes that a connection held when it ended stay counted (INV-53).
    DeadKeepTheirBudget = 81,
    /// Renewals are refused like other requests when a job has used up its share of the buffers
    /// (INV-53).
    RenewalsUseCommonBudget = 82,
    /// Each byte of a slow request restarts its deadline (INV-53).
    DeadlineRestarts = 83,
    /// A large payload is counted when it is announced, not as its bytes arrive (INV-53).
    SharesCountAnnounced = 84,
    /// The last bytes of a block are not written to its disk if they are the first of a page
    /// (INV-41).
    PageEdgeUnwritten = 85,
    /// The open end of a block is read back from its disk without its last page (INV-41).
    PromotedWithoutTail = 86,
    /// A read from the last byte that is on a disk takes it from memory (INV-41).
    FloorOffByOne = 87,
    /// An append, an item or a value of exactly the largest size is refused (INV-33).
    LargestRefused = 88,
    /// A structure whose kind cannot be flushed is created in a prefix that is flushed at its end
    /// (INV-09).
    UnflushableAccepted = 89,
    /// A block of a key-value store is divided between 1024ths of all hashes only (INV-17).
    DividesCoarsely = 90,
    /// Ids of jobs, prefixes and structures are the cluster's counters (INV-54).
    IdsCount = 91,
    /// The handle of a job whose lease ended is served by the job that another process restarted
    /// (INV-55).
    SuccessorServed = 92,
    /// A registration replaces a job that its caller has not checked (INV-55).
    OtherJobReplaced = 93,
    /// A suspected server gets blocks (INV-56).
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
    /// New entries use the space that a block reserves for its own division (INV-17).
    ReserveTaken = 102,
    /// A server does not report that a block has arrived in an object store (INV-42).
    ArrivalUnreported = 103,
    /// A merge with the next block leaves the range of the first one in no entry of the map (INV-17).
    MergeLeavesGap = 104,
    /// The totals of a retired block stay in the list of its queue (INV-22).
    RetireKeepsTotals = 105,
    /// All jobs count as one owner of memory, so that memory of one is reused for another (INV-04).
    MemoryChangesTenant = 106,
    /// A put with a large payload is decided as if its key had no entry, as when its payload began to arrive
    /// (INV-15).
    FillJudgedEarly = 107,
    /// Reads of a range wait like changes while it is frozen for a move (INV-21).
    FrozenRefusesReads = 108,
    /// Subscribers learn of an append before it is committed (INV-24).
    NoticeBeforeCommit = 109,
    /// A reply that depends on a change is sent before the change is on the disk (INV-26).
    ReplyBeforeSync = 110,
    /// The stay of a block in the write cache begins when the block is requested from its disk, not when it
    /// arrives (INV-33).
    StayCountedFromRequest = 111,
    /// A block that leaves the write cache for another one stays because it is written meanwhile (INV-33).
    LeavingBlockStays = 112,
    /// The results that a block keeps for retries stay in its memory when the block is demoted (INV-33).
    ResultsStayInBlock = 113,
    /// Readers of a range that moves to a block wait there while its source serves it (INV-21).
    ImportMakesReadersWait = 114,
    /// A request to begin a move whose reply was lost is not repeated: the target waits for it (INV-33).
    BeginNotRepeated = 115,
    /// A cancellation whose reply was lost is not repeated: the target waits for the move (INV-33).
    CancelNotRepeated = 116,
    /// A full block refuses writers for lack of memory for the reason of a request of long ago (INV-33).
    ReasonOutlivesNeed = 117,
    /// A copy of a block that was opened in a lower tier takes the block's slot of the disk, although it
    /// has none before its first write (INV-41).
    EmptyBlockHasSlot = 118,
    /// A block counts as frozen although a put waits for its extents, and changes afterwards
    /// (INV-49).
    CheckpointSettlesEarly = 119,
    /// A block is frozen for a checkpoint while another block sends it content (INV-59).
    CheckpointOfImport = 120,
    /// The owed content of a checkpoint is copied after the change and not before it (INV-49).
    CheckpointCopiesLate = 121,
    /// A block begins to move while it owes the content of a checkpoint (INV-59).
    MovesBesideCheckpoint = 122,
    /// A block that moves is demoted (INV-59).
    DemotedWhileMoving = 123,
    /// A block is changed while its content is written to a lower tier (INV-41).
    ChangesWhileDemoted = 124,
    /// A piece that a disk has not written counts as written (INV-41).
    FailedPieceCounts = 125,
    /// A demotion ends when its first piece is written (INV-41).
    DemotionEndsEarly = 126,
    /// A move is committed when a part is answered, before the target has counted the content
    /// (INV-19).
    CommitsUncounted = 127,
    /// A copy in an object store is read from the disk where it was before (INV-44).
    CopyKeepsItsTier = 128,
    /// A block that grows in place does not count towards its job (INV-60).
    CapacityUncounted = 129,
    /// The capacities that a reconnected server reports are ignored (INV-60).
    CapacityForgotten = 130,
    /// The directory of a queue's block that grows stays where it was (INV-22).
    DirectoryStays = 131,
    /// Blocks that wait for their turn to move wait for ever (INV-33).
    TurnsNeverEnd = 132,
    /// A block may return memory, and change its layout, between the write of its demotion and the report of
    /// it (INV-41).
    PackedWhileDemoted = 133,
    /// A read of a block in a lower tier ignores its deltas (INV-61).
    DeltasHidden = 134,
    /// The deltas of a block are stored in it from the newest to the oldest (INV-61).
    DeltasMergedBackwards = 135,
    /// A run that was written is forgotten (INV-61).
    RunLost = 136,
    /// The copy of a block for a flush lacks its deltas (INV-61).
    DeltasUncopied = 137,
    /// A condition of a change in a lower tier is judged without the deltas of the block (INV-61).
    DeltasUnjudged = 138,
    /// A run that could not be written counts as written (INV-61).
    FailedRunCounts = 139,
    /// A change that does not know the old entry counts no growth of its block (INV-61).
    BlindUncounted = 140,
    /// The plan of a batch counts only the growth of changes that ask nothing (INV-61).
    BlindPlannedAlone = 141,
    /// A block gives capacity back, and the controller is not informed (INV-60).
    CapacityNotTold = 142,
    /// The controller keeps counting a capacity that a block has given back (INV-60).
    CapacityKept = 143,
    /// An item in extents that was acknowledged keeps its extents (INV-39).
    ItemListKept = 144,
    /// The bound of a queue counts the list of an item and not its bytes (INV-22).
    ItemListUncounted = 145,
    /// A tail waits for a server whose block has left the queue (INV-22).
    AheadKeptWaiting = 146,
    /// A large append is committed, and its blocks count as empty successors, which may be freed (INV-62).
    LinkForgotten = 147,
    /// A large append is committed behind a block whose server has not reported its successor (INV-62).
    LinkedWhileRecovering = 148,
    /// A list of extents is dropped, and its extents stay (INV-63).
    ListForgetsExtents = 149,
}

impl Bug {
    /// Every planted defect.
    pub const ALL: [Bug; 149] = [
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
        Bug::ArrivalUnreported,
        Bug::MergeLeavesGap,
        Bug::RetireKeepsTotals,
        Bug::MemoryChangesTenant,
        Bug::FillJudgedEarly,
        Bug::FrozenRefusesReads,
        Bug::NoticeBeforeCommit,
        Bug::ReplyBeforeSync,
        Bug::StayCountedFromRequest,
        Bug::LeavingBlockStays,
        Bug::ResultsStayInBlock,
        Bug::ImportMakesReadersWait,
        Bug::BeginNotRepeated,
        Bug::CancelNotRepeated,
        Bug::ReasonOutlivesNeed,
        Bug::EmptyBlockHasSlot,
        Bug::CheckpointSettlesEarly,
        Bug::CheckpointOfImport,
        Bug::CheckpointCopiesLate,
        Bug::MovesBesideCheckpoint,
        Bug::DemotedWhileMoving,
        Bug::ChangesWhileDemoted,
        Bug::FailedPieceCounts,
        Bug::DemotionEndsEarly,
        Bug::CommitsUncounted,
        Bug::CopyKeepsItsTier,
        Bug::CapacityUncounted,
        Bug::CapacityForgotten,
        Bug::DirectoryStays,
        Bug::TurnsNeverEnd,
        Bug::PackedWhileDemoted,
        Bug::DeltasHidden,
        Bug::DeltasMergedBackwards,
        Bug::RunLost,
        Bug::DeltasUncopied,
        Bug::DeltasUnjudged,
        Bug::FailedRunCounts,
        Bug::BlindUncounted,
        Bug::BlindPlannedAlone,
        Bug::CapacityNotTold,
        Bug::CapacityKept,
        Bug::ItemListKept,
        Bug::ItemListUncounted,
        Bug::AheadKeptWaiting,
        Bug::LinkForgotten,
        Bug::LinkedWhileRecovering,
        Bug::ListForgetsExtents,
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
