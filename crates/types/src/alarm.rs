//! Faults of a tier under memory.

use std::fmt;

/// A fault of a tier, from temporary to permanent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AlarmKind {
    /// Its data cannot be reached at the moment.
    Away,
    /// It accepts no more data.
    Refuses,
    /// Data that it had is lost.
    Lost,
}

impl AlarmKind {
    /// All of them.
    pub const ALL: [AlarmKind; 3] = [AlarmKind::Away, AlarmKind::Refuses, AlarmKind::Lost];

    /// Its code on the wire.
    pub fn code(self) -> u8 {
        self as u8 + 1
    }

    /// The kind of this code.
    pub fn from_code(code: u8) -> Option<AlarmKind> {
        AlarmKind::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Its short name.
    pub fn name(self) -> &'static str {
        match self {
            AlarmKind::Away => "away",
            AlarmKind::Refuses => "refuses",
            AlarmKind::Lost => "lost",
        }
    }
}

impl fmt::Display for AlarmKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_what_they_were() {
        let told = AlarmKind::ALL.map(|kind| (kind.code(), kind.name()));
        assert_eq!(told, [(1, "away"), (2, "refuses"), (3, "lost")]);
        assert_eq!((AlarmKind::from_code(0), AlarmKind::from_code(4)), (None, None));
    }
}
