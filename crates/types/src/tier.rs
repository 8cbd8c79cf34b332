//! The tiers for a block's bytes: memory, or a tier under it.

use std::fmt;

/// A tier of one memory server: 0 is memory; the others are in the order in which the server
/// declares them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TierIx(pub u8);

impl TierIx {
    /// Memory.
    pub const MEMORY: TierIx = TierIx(0);

    /// Whether it is a tier under memory.
    pub fn is_below(self) -> bool {
        self != TierIx::MEMORY
    }

    /// Its index among the tiers under memory.
    pub fn below(self) -> Option<usize> {
        (self.0 as usize).checked_sub(1)
    }
}

impl fmt::Display for TierIx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.below() {
            None => f.write_str("memory"),
            Some(n) => write!(f, "tier {}", n + 1),
        }
    }
}

/// The medium of a tier under memory: a name for people and for prices. The order in which a server
/// declares its tiers decides which is used first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TierClass {
    /// Flash on the bus.
    Nvme,
    /// A disk without further description.
    #[default]
    Ssd,
    /// A rotating disk.
    Hdd,
    /// An object store: its data is never rewritten. The last tier of a server.
    Object,
}

impl TierClass {
    /// All of them.
    pub const ALL: [TierClass; 4] =
        [TierClass::Nvme, TierClass::Ssd, TierClass::Hdd, TierClass::Object];

    /// Whether it takes only sealed blocks, and no block is opened there.
    pub fn takes_final_only(self) -> bool {
        self == TierClass::Object
    }

    /// Its code on the wire.
    pub fn code(self) -> u8 {
        match self {
            TierClass::Nvme => 1,
            TierClass::Ssd => 2,
            TierClass::Hdd => 3,
            TierClass::Object => 4,
        }
    }

    /// The class with this code.
    pub fn from_code(code: u8) -> Option<TierClass> {
        TierClass::ALL.into_iter().find(|class| class.code() == code)
    }

    /// Its name in settings and in output.
    pub fn name(self) -> &'static str {
        match self {
            TierClass::Nvme => "nvme",
            TierClass::Ssd => "ssd",
            TierClass::Hdd => "hdd",
            TierClass::Object => "object",
        }
    }

    /// The class with this name.
    pub fn from_name(name: &str) -> Option<TierClass> {
        TierClass::ALL.into_iter().find(|class| class.name() == name)
    }
}

impl fmt::Display for TierClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A tier under memory, as a server declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierSpec {
    /// Its medium.
    pub class: TierClass,
    /// Number of blocks for which each core has space there.
    pub blocks: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_known_by_code_and_by_name() {
        for class in TierClass::ALL {
            assert_eq!(TierClass::from_code(class.code()), Some(class));
            assert_eq!(TierClass::from_name(class.name()), Some(class));
        }
        assert_eq!((TierClass::from_code(0), TierClass::from_name("tape")), (None, None));
        assert_eq!((TierIx(0).below(), TierIx(2).below()), (None, Some(1)));
        assert_eq!(
            (TierIx(0).to_string(), TierIx(1).to_string()),
            ("memory".into(), "tier 1".into())
        );
    }
}
