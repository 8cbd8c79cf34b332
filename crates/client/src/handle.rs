//! The handles of structures: a type for each built-in kind.

use crate::client::Any;
use crate::error::Error;
use crate::file::File;
use crate::kv::Kv;
use crate::queue::Queue;
use crate::structure::Structure;
use honeycomb_types::Kind;

/// A type with the operations of one built-in kind.
pub(crate) trait Handle: Sized {
    /// The kind.
    const KIND: Kind;

    /// The handle of a structure of this kind.
    fn new(structure: Structure) -> Self;
}

impl Handle for File {
    const KIND: Kind = Kind::File;

    fn new(structure: Structure) -> File {
        File(structure)
    }
}

impl Handle for Queue {
    const KIND: Kind = Kind::Queue;

    fn new(structure: Structure) -> Queue {
        Queue::of(structure)
    }
}

impl Handle for Kv {
    const KIND: Kind = Kind::Kv;

    fn new(structure: Structure) -> Kv {
        Kv(structure)
    }
}

impl Any {
    /// The handle of a structure; `other` makes it if the kind is not built in.
    pub(crate) fn of(
        structure: Structure,
        other: impl FnOnce(Structure) -> Result<Any, Error>,
    ) -> Result<Any, Error> {
        match structure.kind() {
            File::KIND => Ok(Any::File(Handle::new(structure))),
            Queue::KIND => Ok(Any::Queue(Handle::new(structure))),
            Kv::KIND => Ok(Any::Kv(Handle::new(structure))),
            _ => other(structure),
        }
    }
}
