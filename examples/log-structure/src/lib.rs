//! A log: records that the server numbers in order of arrival, with tags to find them.
//!
//! An example of a custom structure. It uses only the interface for structures (`honeycomb_structures`).
//! `docs/structures.md` explains it.
//!
//! | operation | arguments | payload | reply |
//! |---|---|---|---|
//! | `append` | tag | the record | its number |
//! | `read` at a number | - | - | the number; the tag as arguments; the record as payload |
//! | `scan` from a number | `ScanArgs` | - | `Page` |
//! | `follow` from a number | `ScanArgs` | - | `Page`; waits until there is a record |
//! | `trim` through a number | - | - | how many records this block trimmed |
//! | `stats` of each block | - | - | `Stats` as arguments |
//! | `restore` | - | a record of a flush | its number |
//!
//! Numbers begin at 0 and have no gaps. Trimming through a number permanently removes every record with a
//! smaller number: memory is returned to the operating system, and whole blocks to the cluster. Reading a
//! trimmed record is refused with the code `TRIMMED`. A loaded log has the records of its flush, numbered
//! anew.
#![forbid(unsafe_code)]

mod block;
mod content;
mod messages;
mod moving;
mod records;

pub use block::LogBlock;
pub use messages::{Page, Record, ScanArgs, Stats, TAG_MAX, page_records};

use honeycomb_structures::{
    Kind, KindSpec, Opening, OperationSpec, Route, Router, Structure, StructureKind,
};

/// The code of the kind: the high byte of its opcodes.
pub const CODE: u8 = 0x80;

/// Reading a record that was trimmed is refused with this code.
pub const TRIMMED: u64 = 1;
/// Reading a record that is not appended yet is refused with this code.
pub const NOT_YET_WRITTEN: u64 = 2;
/// Appending with a tag of more than `TAG_MAX` bytes is refused with this code.
pub const TAG_TOO_LONG: u64 = 3;

/// The numbers of the operations.
pub mod ops {
    /// Adds a record at the end.
    pub const APPEND: u8 = 1;
    /// Reads the record of a number.
    pub const READ: u8 = 2;
    /// Reads records from a number on.
    pub const SCAN: u8 = 3;
    /// The same, but waits for the first.
    pub const FOLLOW: u8 = 4;
    /// Removes the records below a number.
    pub const TRIM: u8 = 5;
    /// Returns the statistics of a block; the value is the number of its records.
    pub const STATS: u8 = 6;
    /// Adds a record of a flush at the end.
    pub const RESTORE: u8 = 7;
}

/// The kind. Register it with `Registry::builtin().with(Log)`.
pub struct Log;

impl StructureKind for Log {
    fn spec(&self) -> KindSpec {
        KindSpec {
            kind: Kind::from_code(CODE).expect("0x80 is the first code of custom kinds"),
            name: "log".into(),
            router: Router::Index,
            operations: vec![
                OperationSpec::write(ops::APPEND, "append", Route::Tail)
                    .with_payload()
                    .answering_a_position(),
                OperationSpec::read(ops::READ, "read", Route::Position).answering_a_position(),
                OperationSpec::read(ops::SCAN, "scan", Route::Position).answering_a_position(),
                OperationSpec::read(ops::FOLLOW, "follow", Route::Position)
                    .answering_a_position()
                    .that_waits(),
                OperationSpec::write(ops::TRIM, "trim", Route::Through),
                OperationSpec::read(ops::STATS, "stats", Route::Each).that_counts(),
                OperationSpec::write(ops::RESTORE, "restore", Route::Tail)
                    .with_payload()
                    .answering_a_position()
                    .that_loads(),
            ],
        }
    }

    fn open(&self, opening: &Opening) -> Box<dyn Structure> {
        Box::new(LogBlock::opened(opening.block_size, opening.importing))
    }
}
