//! The error of a call: a cause and a message.

use honeycomb_wire::{BodyTooLarge, Malformed, Status};
use std::fmt;

/// Why a call failed: the cause, as the protocol names it, and a message that says what failed, on
/// what, and how to recover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The cause.
    pub status: Status,
    /// Text for people.
    pub message: String,
    /// For `Refused`: the structure's own code for its reason. Otherwise 0.
    pub code: u64,
}

impl Error {
    /// An error of this cause.
    pub fn new(status: Status, message: impl Into<String>) -> Error {
        Error { status, message: message.into(), code: 0 }
    }

    /// The same error with an addition to its message.
    pub fn with(self, more: &str) -> Error {
        Error { message: format!("{}; {more}", self.message), ..self }
    }

    /// The error that a refused request returns.
    pub(crate) fn refused(status: Status, args: &[u8]) -> Error {
        Error::new(status, String::from_utf8_lossy(args))
    }

    /// The same error with the structure's own refusal code.
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

impl From<BodyTooLarge> for Error {
    fn from(e: BodyTooLarge) -> Error {
        Error::new(Status::FrameTooLarge, e.to_string())
    }
}

impl From<honeycomb_types::InvalidName> for Error {
    fn from(e: honeycomb_types::InvalidName) -> Error {
        Error::new(Status::InvalidArgument, e.to_string())
    }
}
