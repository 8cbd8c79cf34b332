//! Maps the catalog's errors to the protocol's statuses.

use honeycomb_catalog::CatalogError;
use honeycomb_wire::Status;

/// The status for an error of the catalog.
pub fn status_of(error: &CatalogError) -> Status {
    use CatalogError as E;
    match error {
        E::UnknownJob { .. } | E::UnknownJobName { .. } => Status::UnknownJob,
        E::InvalidName(_) | E::InvalidArgument { .. } => Status::InvalidArgument,
        E::LastServer { .. } | E::BlockSizeDiffers { .. } => Status::InvalidArgument,
        E::FlushUnavailable { .. } => Status::FlushUnavailable,
        E::PersistsNowhere => Status::InvalidArgument,
        E::JournalGoes { .. } => Status::Busy,
        E::NotJournaled { .. } | E::NotFlushable { .. } | E::HasUnflushable { .. } => {
            Status::WrongKind
        }
        E::OnlyInJournal { .. } => Status::DataLost,
        E::JournalThere { .. } => Status::AlreadyExists,
        E::FlushElsewhere { .. } => Status::PermissionDenied,
        E::UnknownFlush { .. } => Status::NotFound,
        E::Loading { .. } => Status::Loading,
        E::FlushPathTaken { .. } => Status::AlreadyExists,
        E::PermissionDenied { .. } => Status::PermissionDenied,
        E::PrefixNotFound { .. }
        | E::UnknownReader { .. }
        | E::StructureNotFound { .. }
        | E::UnknownStructure { .. } => Status::NotFound,
        E::JobExists { .. }
        | E::OtherBounds { .. }
        | E::PrefixExists { .. }
        | E::StructureExists { .. } => Status::AlreadyExists,
        E::DuplicateNode { .. } => Status::InvalidArgument,
        E::WrongKind { .. } => Status::WrongKind,
        E::Cycle { .. } => Status::Cycle,
        E::UnknownParent { .. } => Status::UnknownParent,
        E::LeaseExpired { .. } | E::LifeOver => Status::LeaseExpired,
        E::DataLost { .. } => Status::DataLost,
        E::Quarantined { .. } => Status::Internal,
        E::PrefixRemoved { .. } | E::StructureRemoved { .. } => Status::Removed,
        E::PrefixRead { .. } | E::StructureRead { .. } => Status::Removed,
        // A suspected server reconnects or is declared lost: the client retries until then.
        E::OutOfMemory(full) if !full.suspects.is_empty() => Status::Busy,
        E::OutOfMemory(_) => Status::OutOfMemory,
        E::QuotaExceeded { .. } => Status::QuotaExceeded,
        E::LimitExceeded { .. } => Status::LimitExceeded,
        E::ValueTooLarge { .. } => Status::ValueTooLarge,
        E::Sealed { .. } => Status::Sealed,
        E::StaleBlock { .. } | E::NoSuccessor { .. } => Status::WrongEpoch,
        E::NotSealed { .. } | E::NotFirst { .. } | E::Moving { .. } | E::Recovering => Status::Busy,
        E::Recalled { .. } => Status::Busy,
        E::UnknownKind { .. } => Status::UnknownKind,
        E::KindRefused { .. } => Status::InvalidArgument,
        // The block needs room in a neighbour, and neither has room.
        E::NoNeighbour { .. } => Status::BlockFull,
        // `Removed`, and not the status for another structure's block, because this block continues
        // to serve.
        E::MoveCancelled { .. } | E::StaysHere { .. } => Status::Removed,
        E::Stopping { .. } => Status::Unavailable,
        E::UnknownServer { .. } | E::UnknownAddress { .. } => Status::NotFound,
    }
}
