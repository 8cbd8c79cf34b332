//! The advice to add or remove servers, for the program that runs the controller.

use honeycomb_catalog::{Advice, AdviceKind};

/// The advised change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advised {
    /// No change.
    Nothing,
    /// Servers should be added.
    Add {
        /// Number of servers of the mean size.
        servers: u32,
        /// The used resource, and how much of it is in use.
        why: String,
    },
    /// A server should be removed.
    Remove {
        /// Address of the server.
        address: String,
        /// The used resource, and how much of it is in use.
        why: String,
    },
}

impl Advised {
    pub(crate) fn of(advice: &Advice) -> Advised {
        let why = advice.why.to_string();
        match advice.what {
            AdviceKind::None => Advised::Nothing,
            AdviceKind::Add => {
                assert!(advice.servers > 0, "advice to add servers is for at least one");
                Advised::Add { servers: advice.servers, why }
            }
            AdviceKind::Remove => Advised::Remove { address: advice.address.to_string(), why },
        }
    }

    /// Whether both advise the same change, ignoring the reason.
    pub(crate) fn is_like(&self, other: &Advised) -> bool {
        match (self, other) {
            (Advised::Add { servers: a, .. }, Advised::Add { servers: b, .. }) => a == b,
            (Advised::Remove { address: a, .. }, Advised::Remove { address: b, .. }) => a == b,
            _ => self == other,
        }
    }
}
