//! Errors of commands, and their exit codes.
//!
//! Every command returns a [`CommandResult`]. A [`Failure`] keeps the protocol's status if there is one.
//! Only [`Exit::of`] maps a status to an exit code.

use honeycomb_client::Error;
use honeycomb_types::InvalidName;
use honeycomb_wire::Status;
use serde_json::{Value, json};
use std::fmt;
use std::process::ExitCode;

/// The result of a command.
pub type CommandResult<T = ()> = Result<T, Failure>;

/// The error of a command: the protocol's status, if there is one, and a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// `None` for errors outside the protocol, such as an unreadable file.
    status: Option<Status>,
    message: String,
    /// The exit code, when the error has already been printed to standard error.
    exit_code: Option<u8>,
}

/// Exit codes that a script can distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Done = 0,
    /// Any error without a code of its own.
    Failed = 1,
    /// The command line, the configuration or an argument is wrong.
    Usage = 2,
    /// The named object does not exist.
    Absent = 3,
    /// The token or the grant does not allow it.
    Refused = 4,
    /// No cluster, or no answer in time.
    Unavailable = 5,
    /// The data existed and is lost.
    Lost = 6,
    /// No memory, or a limit is exceeded.
    Full = 7,
    /// The present state conflicts with the request.
    Conflict = 8,
}

/// Each code with its meaning and its statuses, for `--help` and `docs/operating.md`.
pub const EXIT_CODES: [(Exit, &str, &str); 9] = [
    (Exit::Done, "done", ""),
    (Exit::Failed, "failed for another reason; a check of `doctor` failed", "all others"),
    (Exit::Usage, "wrong usage: command line, configuration or an argument", "InvalidArgument"),
    (
        Exit::Absent,
        "the key, structure, prefix or job does not exist, or the queue has no item",
        "NotFound, KeyNotFound, UnknownJob, UnknownParent, Removed, QueueEmpty, NotYet, \
            UnknownKind",
    ),
    (
        Exit::Refused,
        "the token does not allow it",
        "Unauthenticated, PermissionDenied, GrantExpired, GrantRevoked",
    ),
    (
        Exit::Unavailable,
        "no cluster, or no answer in time; for a change, the message says whether it may have \
         been applied",
        "Unavailable, DeadlineExceeded, OutcomeUnknown, Busy",
    ),
    (
        Exit::Lost,
        "the data is lost: its lease expired, or its server failed",
        "LeaseExpired, DataLost",
    ),
    (
        Exit::Full,
        "no memory, or a limit is exceeded",
        "OutOfMemory, BlockFull, QuotaExceeded, LimitExceeded, ValueTooLarge, KeyTooLarge, \
         QueueFull",
    ),
    (
        Exit::Conflict,
        "the present state conflicts: it already exists, is sealed or closed, or has another kind",
        "AlreadyExists, KeyExists, CompareFailed, Sealed, NotSealed, QueueClosed, Loading, \
         WrongKind, Cycle, Refused, NotFlushed",
    ),
];

impl Exit {
    /// The exit code of a status.
    pub fn of(status: Status) -> Exit {
        match status {
            Status::Ok => Exit::Done,
            Status::InvalidArgument => Exit::Usage,
            Status::NotFound
            | Status::KeyNotFound
            | Status::UnknownJob
            | Status::UnknownParent
            | Status::Removed
            | Status::QueueEmpty
            | Status::NotYet
            | Status::UnknownKind => Exit::Absent,
            Status::Unauthenticated
            | Status::PermissionDenied
            | Status::GrantExpired
            | Status::GrantRevoked => Exit::Refused,
            Status::Unavailable
            | Status::DeadlineExceeded
            | Status::OutcomeUnknown
            | Status::Busy => Exit::Unavailable,
            Status::LeaseExpired | Status::DataLost => Exit::Lost,
            Status::OutOfMemory
            | Status::BlockFull
            | Status::QuotaExceeded
            | Status::LimitExceeded
            | Status::ValueTooLarge
            | Status::KeyTooLarge
            | Status::QueueFull => Exit::Full,
            Status::AlreadyExists
            | Status::KeyExists
            | Status::CompareFailed
            | Status::Sealed
            | Status::NotSealed
            | Status::Refused
            | Status::QueueClosed
            | Status::Loading
            | Status::WrongKind
            | Status::Cycle
            | Status::NotFlushed => Exit::Conflict,
            _ => Exit::Failed,
        }
    }
}

impl Failure {
    /// A failure with this status.
    pub fn new(status: Status, message: impl Into<String>) -> Failure {
        Failure { status: Some(status), message: message.into(), exit_code: None }
    }

    /// An invalid argument or setting.
    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(Status::InvalidArgument, message)
    }

    /// A failed operation of the local system: the attempted operation, and its error.
    pub fn io(what: impl fmt::Display, e: &std::io::Error) -> Failure {
        format!("{what}: {e}").into()
    }

    /// The protocol's status, if there is one.
    pub fn status(&self) -> Option<Status> {
        self.status
    }

    /// The same failure, already printed to standard error: only its exit code is used.
    pub fn already_printed(self) -> Failure {
        Failure { exit_code: Some(self.exit() as u8), ..self }
    }

    /// The same failure with an addition to its message.
    pub fn with(self, more: &str) -> Failure {
        Failure { message: format!("{}; {more}", self.message), ..self }
    }

    /// The exit code of a child process, which has printed its error to the shared standard error.
    pub fn of_child(code: u8) -> Failure {
        let message = format!("a child process ended with code {code}");
        Failure { status: None, message, exit_code: Some(code) }
    }

    /// Prints the failure, unless it has been printed, and answers its exit code.
    pub fn report(&self, as_json: bool) -> ExitCode {
        if let Some(code) = self.exit_code {
            return ExitCode::from(code);
        }
        match as_json {
            true => eprintln!("{}", self.to_json()),
            false => eprintln!("honeycomb: {self}"),
        }
        ExitCode::from(self.exit() as u8)
    }

    /// The exit code of the failure.
    fn exit(&self) -> Exit {
        self.status.map_or(Exit::Failed, Exit::of)
    }

    /// The form that `--json` prints to standard error.
    fn to_json(&self) -> Value {
        let status = self.status.map_or("Failed", Status::name);
        error_json(status, self.exit(), &self.message)
    }
}

/// An error as one JSON object.
pub fn error_json(status: &str, exit: Exit, message: &str) -> Value {
    json!({ "error": { "status": status, "exit": exit as u8, "message": message } })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "{}: {}", status.name(), self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure::new(e.status, e.message)
    }
}

impl From<InvalidName> for Failure {
    fn from(e: InvalidName) -> Failure {
        Failure::invalid(e.to_string())
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure { status: None, message, exit_code: None }
    }
}

impl From<&str> for Failure {
    fn from(message: &str) -> Failure {
        message.to_owned().into()
    }
}

/// The section of exit codes in `--help`.
pub fn exit_codes_text() -> String {
    let mut text = String::from("Exit codes:\n");
    for (exit, meaning, _) in EXIT_CODES {
        text += &format!("  {}  {meaning}\n", exit as u8);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in `docs/operating.md`.
    fn markdown() -> String {
        let mut text = String::from("| Code | Meaning | Statuses |\n| --- | --- | --- |\n");
        for (exit, meaning, statuses) in EXIT_CODES {
            let statuses: Vec<String> = match statuses {
                "" | "all others" => vec![statuses.to_owned()],
                names => names.split(", ").map(|name| format!("`{name}`")).collect(),
            };
            text += &format!("| {} | {meaning} | {} |\n", exit as u8, statuses.join(", "));
        }
        text.replace("|  |", "| |")
    }

    #[test]
    fn the_document_has_the_table() {
        let document = include_str!("../../../docs/operating.md");
        assert!(document.contains(&markdown()), "docs/operating.md shall have:\n{}", markdown());
    }

    #[test]
    fn the_table_tells_what_the_code_does() {
        for (exit, _, statuses) in EXIT_CODES {
            for name in statuses.split(", ").filter(|n| !n.is_empty() && *n != "all others") {
                let status = (1..1000).filter_map(Status::from_code).find(|s| s.name() == name);
                let status = status.unwrap_or_else(|| panic!("no status is called {name}"));
                assert_eq!(Exit::of(status), exit, "{name}");
            }
        }
        // And the reverse: every status with a code of its own is in the table.
        for status in (1..1000).filter_map(Status::from_code) {
            let exit = Exit::of(status);
            let row = EXIT_CODES.iter().find(|(e, ..)| *e == exit).unwrap();
            let listed = row.2.split(", ").any(|name| name == status.name());
            assert!(listed || exit == Exit::Failed, "{} is not in the table", status.name());
        }
    }
}
