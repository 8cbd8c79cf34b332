//! The nouns that every other crate shares: ids that cannot be mixed, time, limits.
//!
//! Nothing here does I/O, allocates more than a small string, or knows a byte format. The words are
//! those of `docs/glossary.md`; a noun has the same name here, on the wire and in errors.

mod alarm;
mod attributes;
mod bug;
mod capacity;
mod flush_path;
mod id_cipher;
mod ids;
mod kind;
pub mod limits;
mod marks;
mod name;
mod policy;
mod scale;
pub mod sizes;
mod tier;
mod time;
mod way;
mod wire_limits;

pub use alarm::AlarmKind;
pub use attributes::{Capabilities, Demotion, Inconsistency, KindAttributes, Notices};
pub use bug::Bug;
pub use capacity::BlockUnits;
pub use flush_path::{
    FLUSH_EXTENTS, FLUSH_JOURNAL, FLUSH_MANIFEST, FLUSH_PART, FLUSH_RECORD, flush_directory,
    flush_names, flush_object, journal_sweep,
};
pub use id_cipher::{IdCipher, IdOf};
pub use ids::{
    BlockAt, BlockId, Epoch, Generation, JobId, LaneId, MapVersion, MoveId, PrefixId, Sequence,
    ServerId, SessionId, ShardIx, StructureId,
};
pub use kind::{
    AnnouncedKind, CustomKind, InvalidKind, Kind, KindSpec, OperationSpec, Route, Router,
};
pub use marks::Marks;
pub use name::{
    Address, InvalidName, check_job_name, check_name, dotted_path, split_path, tenant_of,
};
pub use policy::PolicyKind;
pub use scale::ScaleMarks;
pub use tier::{TierClass, TierIx, TierSpec};
pub use time::Time;
pub use way::Way;

/// The operations that a grant permits on a structure. A set of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Verbs(pub u16);

impl Verbs {
    /// Nothing.
    pub const NONE: Verbs = Verbs(0);
    /// Observe data without changing it.
    pub const READ: Verbs = Verbs(1);
    /// Change data.
    pub const WRITE: Verbs = Verbs(2);
    /// Every verb of a data request.
    pub const ALL: Verbs = Verbs(3);

    /// Whether every verb of `other` is in this set.
    pub fn contains(self, other: Verbs) -> bool {
        self.0 & other.0 == other.0
    }

    /// The verbs that are in both sets.
    pub fn and(self, other: Verbs) -> Verbs {
        Verbs(self.0 & other.0)
    }
}

impl std::fmt::Display for Verbs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.contains(Verbs::READ), self.contains(Verbs::WRITE)) {
            (true, true) => f.write_str("read and write"),
            (true, false) => f.write_str("read"),
            (false, true) => f.write_str("write"),
            (false, false) => f.write_str("nothing"),
        }
    }
}
