//! The attributes of kinds: the ways in which the controller, the servers and the clients may use a
//! structure.
//!
//! Code outside of the implementation of a kind asks these attributes, and not which kind it is.

use crate::{Kind, Router};

/// How blocks reach lower tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demotion {
    /// They stay in memory.
    Never,
    /// Data is only appended. The last block is demoted to a disk when nothing was appended for a while, and
    /// all others, which are final, to any tier.
    Appended,
    /// Any byte may change. A block is demoted to a disk only, and not while it moves.
    Whole,
    /// Blocks hold pieces, each of which stays as it is. A block is demoted to any tier, and accepts no
    /// piece there; so it begins in memory.
    Pieces,
}

impl Demotion {
    /// Whether blocks can be in a lower tier.
    pub const fn goes_below(self) -> bool {
        !matches!(self, Demotion::Never)
    }

    /// Whether blocks can begin in a lower tier.
    pub const fn begins_below(self) -> bool {
        matches!(self, Demotion::Appended | Demotion::Whole)
    }
}

/// The changes that blocks report to subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notices {
    /// None.
    Never,
    /// Bytes that were appended, and the seal. All of them are in the last block.
    Appends,
    /// Items that were put or taken, and the close.
    Items,
    /// Keys that got a value or were deleted.
    Keys,
}

/// The ways in which structures of a kind are used, beside their operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindAttributes {
    /// Whether a block gives a part of its range to a new block when it fills up, and all of it to a
    /// neighbour when little is left.
    pub splits: bool,
    /// Whether the content of a block moves to a new block on another server.
    pub relocates: bool,
    /// Whether content can be flushed and loaded.
    pub flushes: bool,
    /// Whether changes can wait for a journal.
    pub journals: bool,
    /// How blocks reach lower tiers.
    pub demotion: Demotion,
    /// The changes that blocks report.
    pub notices: Notices,
    /// The kind of the additional blocks in which a structure keeps extents of large values.
    pub extents: Option<Kind>,
}

impl KindAttributes {
    /// A kind that has operations only.
    pub const NONE: KindAttributes = KindAttributes {
        splits: false,
        relocates: false,
        flushes: false,
        journals: false,
        demotion: Demotion::Never,
        notices: Notices::Never,
        extents: None,
    };
}

impl Kind {
    /// The ways in which structures of this kind are used, beside their operations.
    pub const fn attributes(self) -> KindAttributes {
        match self {
            Kind::File => KindAttributes {
                relocates: true,
                flushes: true,
                journals: true,
                demotion: Demotion::Appended,
                notices: Notices::Appends,
                ..KindAttributes::NONE
            },
            Kind::Queue => KindAttributes {
                relocates: true,
                flushes: true,
                demotion: Demotion::Whole,
                notices: Notices::Items,
                ..KindAttributes::NONE
            },
            Kind::Kv => KindAttributes {
                splits: true,
                relocates: true,
                flushes: true,
                demotion: Demotion::Whole,
                notices: Notices::Keys,
                extents: Some(Kind::Extents),
                ..KindAttributes::NONE
            },
            // They are flushed with their kv, and their owner moves their content.
            Kind::Extents => KindAttributes { demotion: Demotion::Pieces, ..KindAttributes::NONE },
            Kind::Custom(_) => KindAttributes::NONE,
        }
    }

    /// The router of the structures of a built-in kind; `None` for extents, which are in no map, and for a
    /// custom kind, whose `KindSpec` has it.
    pub const fn router(self) -> Option<Router> {
        match self {
            Kind::File => Some(Router::Offset),
            Kind::Queue => Some(Router::Ends),
            Kind::Kv => Some(Router::HashRange),
            Kind::Extents | Kind::Custom(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_that_split_have_ranges_of_hashes() {
        for kind in (0..=u8::MAX).filter_map(Kind::from_code) {
            let KindAttributes { splits, relocates, .. } = kind.attributes();
            assert!(!splits || relocates && kind.router() == Some(Router::HashRange), "{kind}");
        }
    }

    #[test]
    fn blocks_that_begin_in_a_lower_tier_can_be_there() {
        let all = [Demotion::Never, Demotion::Appended, Demotion::Whole, Demotion::Pieces];
        assert!(all.iter().all(|demotion| demotion.goes_below() || !demotion.begins_below()));
    }
}
