//! How memory is shared out when it is short.

use std::fmt;

/// Who has memory when there is not enough of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// Whoever has it keeps it.
    #[default]
    FirstCome,
    /// The least share is as great as it can be.
    MaxMin,
    /// As max-min over time: who leaves memory to others now has more later.
    Karma,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [PolicyKind; 3] = [PolicyKind::FirstCome, PolicyKind::MaxMin, PolicyKind::Karma];

    /// As settings and messages have it.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::FirstCome => "first-come",
            PolicyKind::MaxMin => "max-min",
            PolicyKind::Karma => "karma",
        }
    }

    /// The policy of this name.
    pub fn from_name(name: &str) -> Option<PolicyKind> {
        PolicyKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether blocks of one may go below memory for another, who has less than its share.
    pub fn is_fair(self) -> bool {
        self != PolicyKind::FirstCome
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
