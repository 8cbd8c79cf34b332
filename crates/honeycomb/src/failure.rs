//! What went wrong, and the exit code that says so.
//!
//! Every command answers with an [`Outcome`]; a [`Failure`] keeps the protocol's status as far as
//! there is one. The one place that turns a status into an exit code is [`Exit::of`].

use honeycomb_client::Error;
use honeycomb_types::InvalidName;
use honeycomb_wire::Status;
use serde_json::{Value, json};
use std::fmt;
use std::process::ExitCode;

/// What a command answers.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Why a command failed: the cause, as the protocol names it where it has a name, and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// `None` for what the protocol knows nothing of: a file that cannot be read.
    status: Option<Status>,
    message: String,
    /// The exit code, when standard error says already what went wrong.
    told: Option<u8>,
}

/// Kinds of ends that a script can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It was done.
    Done = 0,
    /// Anything that has no code of its own.
    Failed = 1,
    /// The command line, the configuration or an argument is wrong.
    Usage = 2,
    /// There is no such thing.
    Absent = 3,
    /// The token or the grant does not allow it.
    Refused = 4,
    /// No cluster, or no answer in time.
    Unavailable = 5,
    /// It was there and is gone.
    Lost = 6,
    /// No room, or over a limit.
    Full = 7,
    /// Something is there that stands against it.
    Conflict = 8,
}

/// Code, meaning and the statuses that have it, for `--help` and `docs/operating.md`.
pub const EXIT_CODES: [(Exit, &str, &str); 9] = [
    (Exit::Done, "done", ""),
    (
        Exit::Failed,
        "failed for another reason; `doctor` found something that does not work",
        "all others",
    ),
    (Exit::Usage, "wrong usage: command line, configuration or an argument", "InvalidArgument"),
    (
        Exit::Absent,
        "there is no such key, structure, prefix or job, or no item in a queue",
        "NotFound, KeyNotFound, UnknownJob, UnknownParent, Removed, QueueEmpty, NotYet, UnknownKind",
    ),
    (
        Exit::Refused,
        "the token does not allow it",
        "Unauthenticated, PermissionDenied, GrantExpired, GrantRevoked",
    ),
    (
        Exit::Unavailable,
        "no cluster, or no answer in time; for a change, the message says whether it may have \
         taken effect",
        "Unavailable, DeadlineExceeded, OutcomeUnknown, Busy",
    ),
    (Exit::Lost, "the data is gone: its lease ended, or its server", "LeaseExpired, DataLost"),
    (
        Exit::Full,
        "no room, or over a limit",
        "OutOfMemory, BlockFull, QuotaExceeded, LimitExceeded, ValueTooLarge, KeyTooLarge, \
         QueueFull",
    ),
    (
        Exit::Conflict,
        "what is there stands against it: it exists already, is sealed or closed, or of another \
         kind",
        "AlreadyExists, KeyExists, CompareFailed, Sealed, NotSealed, QueueClosed, Loading, WrongKind, Cycle, \
         Refused, NotFlushed",
    ),
];

impl Exit {
    /// The end that a status makes.
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
    /// A failure of this cause.
    pub fn new(status: Status, message: impl Into<String>) -> Failure {
        Failure { status: Some(status), message: message.into(), told: None }
    }

    /// An argument, or a setting, that cannot be.
    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(Status::InvalidArgument, message)
    }

    /// Something of this machine that failed: what was tried, and why it did not go.
    pub fn io(what: impl fmt::Display, e: &std::io::Error) -> Failure {
        format!("{what}: {e}").into()
    }

    /// The cause, where the protocol has a name for it.
    pub fn status(&self) -> Option<Status> {
        self.status
    }

    /// The same, when standard error says it already: only the exit code is left to give.
    pub fn told(self) -> Failure {
        Failure { told: Some(self.exit() as u8), ..self }
    }

    /// The same, and what else is to be known.
    pub fn with(self, more: &str) -> Failure {
        Failure { message: format!("{}; {more}", self.message), ..self }
    }

    /// A child process, which shares standard error, ended with this code and has said why.
    pub fn of_child(code: u8) -> Failure {
        Failure { status: None, message: format!("a child ended with {code}"), told: Some(code) }
    }

    /// Ends the program: says what went wrong, if nobody has.
    pub fn report(&self, as_json: bool) -> ExitCode {
        if let Some(code) = self.told {
            return ExitCode::from(code);
        }
        match as_json {
            true => eprintln!("{}", self.to_json()),
            false => eprintln!("honeycomb: {self}"),
        }
        ExitCode::from(self.exit() as u8)
    }

    /// How the program ends with it.
    fn exit(&self) -> Exit {
        self.status.map_or(Exit::Failed, Exit::of)
    }

    /// What `--json` prints on standard error.
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
        Failure { status: None, message, told: None }
    }
}

impl From<&str> for Failure {
    fn from(message: &str) -> Failure {
        message.to_owned().into()
    }
}

/// The section of `--help`.
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

    /// As `docs/operating.md` has it.
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
        // And the reverse: whatever has a code of its own stands in the table.
        for status in (1..1000).filter_map(Status::from_code) {
            let exit = Exit::of(status);
            let row = EXIT_CODES.iter().find(|(e, ..)| *e == exit).unwrap();
            let told = row.2.split(", ").any(|name| name == status.name());
            assert!(told || exit == Exit::Failed, "{} is not in the table", status.name());
        }
    }
}
