//! What a call says when it cannot do what was asked.

use honeycomb_wire::{Malformed, Status};
use std::fmt;

/// Why a call failed: the cause, as the protocol names it, and a message that says what happened,
/// to what, and what can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The cause.
    pub status: Status,
    /// For people.
    pub message: String,
    /// Of `Refused`: the code that the structure has for its reason. Otherwise 0.
    pub code: u64,
}

impl Error {
    /// An error of this cause.
    pub fn new(status: Status, message: impl Into<String>) -> Error {
        Error { status, message: message.into(), code: 0 }
    }

    /// The error that a refusal carries.
    pub(crate) fn refused(status: Status, args: &[u8]) -> Error {
        Error::new(status, String::from_utf8_lossy(args))
    }

    /// The same, with the code of a structure's own refusal.
    pub(crate) fn with_code(self, value: u64) -> Error {
        let code = if self.status == Status::Refused { value } else { 0 };
        Error { code, ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status.name(), self.message)
    }
}

impl std::error::Error for Error {}

impl From<Malformed> for Error {
    fn from(e: Malformed) -> Error {
        Error::new(
            Status::BadFrame,
            format!("the peer sent a message body that cannot be parsed: {e}"),
        )
    }
}

impl From<honeycomb_types::InvalidName> for Error {
    fn from(e: honeycomb_types::InvalidName) -> Error {
        Error::new(Status::InvalidArgument, e.to_string())
    }
}
