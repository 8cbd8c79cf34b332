//! Whether there should be other servers, as it is told to the program.

use honeycomb_catalog::{Advice, AdviceKind};

/// What should change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advised {
    /// Nothing.
    Nothing,
    /// Servers should be added.
    Add {
        /// So many of the mean size.
        servers: u32,
        /// What is used how much.
        why: String,
    },
    /// A server should go.
    Remove {
        /// Its address.
        address: String,
        /// What is used how much.
        why: String,
    },
}

impl Advised {
    pub(crate) fn of(advice: &Advice) -> Advised {
        let why = advice.why.to_string();
        match advice.what {
            AdviceKind::None => Advised::Nothing,
            AdviceKind::Add => Advised::Add { servers: advice.servers, why },
            AdviceKind::Remove => Advised::Remove { address: advice.address.to_string(), why },
        }
    }

    /// Whether the same is advised, for whatever reason.
    pub(crate) fn is_like(&self, other: &Advised) -> bool {
        match (self, other) {
            (Advised::Add { servers: a, .. }, Advised::Add { servers: b, .. }) => a == b,
            (Advised::Remove { address: a, .. }, Advised::Remove { address: b, .. }) => a == b,
            _ => self == other,
        }
    }
}
