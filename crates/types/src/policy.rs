//! The policies by which scarce memory is shared.

use std::fmt;

/// The owner of memory when there is not enough of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// A holder keeps its memory.
    #[default]
    FirstCome,
    /// The smallest share is as large as possible.
    MaxMin,
    /// As max-min over time: a holder that leaves memory to others now gets more later.
    Karma,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [PolicyKind; 3] = [PolicyKind::FirstCome, PolicyKind::MaxMin, PolicyKind::Karma];

    /// Its name in settings and messages.
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

    /// Whether a holder's blocks may be demoted for another one with less than its share.
    pub fn is_fair(self) -> bool {
        self != PolicyKind::FirstCome
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
