//! The attributes of kinds: the ways in which the controller, the servers and the clients may use a
//! structure.
//!
//! Code outside of the implementation of a kind asks these attributes, and not which kind it is.

use crate::{Kind, Router};
use std::fmt;

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
    /// Changes that a custom kind chooses.
    Chosen,
}

/// The ways in which structures of a kind are used, beside their operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindAttributes {
    /// Whether a block gives a part of its range to a new block when it fills up, and all of it to a
    /// neighbour when little is left.
    pub splits: bool,
    /// Whether the content of a block moves to a new block on another server.
    pub relocates: bool,
    /// Whether the capacity of a block grows in place: it begins with one unit.
    pub enlarges: bool,
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

/// The capabilities of the blocks of a custom kind, beside its operations: a set of bits. Servers derive it
/// from the traits that the blocks implement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u8);

impl Capabilities {
    /// None.
    pub const NONE: Capabilities = Capabilities(0);
    /// Content is flushed, and an operation loads it.
    pub const CONTENT: Capabilities = Capabilities(1);
    /// Content moves to a new block.
    pub const MOVES: Capabilities = Capabilities(2);
    /// Blocks are demoted as those to which data is only appended.
    pub const APPENDED: Capabilities = Capabilities(4);
    /// Blocks are demoted as those of which any byte may change.
    pub const WHOLE: Capabilities = Capabilities(8);
    /// Changes are reported.
    pub const CHANGES: Capabilities = Capabilities(16);

    /// Whether every capability of `other` is in this set.
    pub const fn contains(self, other: Capabilities) -> bool {
        self.0 & other.0 == other.0
    }

    /// This set, with the others if they are present.
    pub const fn with(self, others: Capabilities, present: bool) -> Capabilities {
        if present { Capabilities(self.0 | others.0) } else { self }
    }

    /// The byte that holds a router and these capabilities: the router is in the lower three bits.
    pub const fn beside(self, router: Router) -> u8 {
        self.0 << 3 | router as u8
    }

    /// Reads such a byte; `None` for an unknown router. `Kind::check` says whether a kind can have both.
    pub fn split(byte: u8) -> Option<(Router, Capabilities)> {
        Some((Router::from_code(byte & 7)?, Capabilities(byte >> 3)))
    }
}

/// Why no structure of a kind has this router, these capabilities, or these operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inconsistency {
    /// The kind is no structure: its blocks belong to structures of another kind.
    NoStructure,
    /// A built-in kind has another router.
    RouterOf(Router),
    /// A built-in kind has capabilities, which only custom kinds have.
    BuiltInCapabilities,
    /// Data is only appended to its blocks, and any byte of them may change.
    AppendedAndWhole,
    /// Data is only appended to its blocks, and no block follows a full one.
    AppendedWithoutGrowth(Router),
    /// Its content is flushed, and the router has no first or last block at which it could be loaded.
    ContentWithoutEnds(Router),
    /// Its content is flushed, and no operation loads it.
    ContentWithoutLoader,
    /// An operation loads the items of a flush, and its content is not flushed.
    LoaderWithoutContent,
}

impl fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Inconsistency::NoStructure => {
                f.write_str("its blocks belong to structures of another kind")
            }
            Inconsistency::RouterOf(router) => {
                write!(f, "it has router {router:?}, which is not that of this built-in kind")
            }
            Inconsistency::BuiltInCapabilities => {
                f.write_str("it has capabilities, which only custom kinds have")
            }
            Inconsistency::AppendedAndWhole => f.write_str(
                "its blocks are demoted as those to which data is only appended, and as those of \
                 which any byte may change; they can be only one of these",
            ),
            Inconsistency::AppendedWithoutGrowth(router) => write!(
                f,
                "data is only appended to its blocks, and its router {router:?} adds no block \
                 after a full one"
            ),
            Inconsistency::ContentWithoutEnds(router) => write!(
                f,
                "its content is flushed, and its router {router:?} has no first or last block at \
                 which it is loaded"
            ),
            Inconsistency::ContentWithoutLoader => {
                f.write_str("its content is flushed, and no operation loads the items of a flush")
            }
            Inconsistency::LoaderWithoutContent => f.write_str(
                "an operation loads the items of a flush, and its content is not flushed",
            ),
        }
    }
}

impl std::error::Error for Inconsistency {}

impl KindAttributes {
    /// A kind that has operations only.
    pub const NONE: KindAttributes = KindAttributes {
        splits: false,
        relocates: false,
        enlarges: false,
        flushes: false,
        journals: false,
        demotion: Demotion::Never,
        notices: Notices::Never,
        extents: None,
    };
}

impl Kind {
    /// Checks whether structures of this kind can have this router and these capabilities: the only place
    /// that decides it, for announcements, for kinds that are registered, and for records.
    pub fn check(self, router: Router, capabilities: Capabilities) -> Result<(), Inconsistency> {
        let Kind::Custom(_) = self else {
            return match self.router() {
                None => Err(Inconsistency::NoStructure),
                Some(own) if own != router => Err(Inconsistency::RouterOf(router)),
                Some(_) if capabilities != Capabilities::NONE => {
                    Err(Inconsistency::BuiltInCapabilities)
                }
                Some(_) => Ok(()),
            };
        };
        let appended = capabilities.contains(Capabilities::APPENDED);
        if appended && capabilities.contains(Capabilities::WHOLE) {
            return Err(Inconsistency::AppendedAndWhole);
        }
        if appended && !router.grows() {
            return Err(Inconsistency::AppendedWithoutGrowth(router));
        }
        if capabilities.contains(Capabilities::CONTENT) && router == Router::HashRange {
            return Err(Inconsistency::ContentWithoutEnds(router));
        }
        Ok(())
    }

    /// The ways in which structures of this kind are used, beside their operations.
    pub const fn attributes(self) -> KindAttributes {
        match self {
            Kind::File => KindAttributes {
                relocates: true,
                enlarges: true,
                flushes: true,
                journals: true,
                demotion: Demotion::Appended,
                notices: Notices::Appends,
                ..KindAttributes::NONE
            },
            Kind::Queue => KindAttributes {
                relocates: true,
                enlarges: true,
                flushes: true,
                demotion: Demotion::Whole,
                notices: Notices::Items,
                extents: Some(Kind::Extents),
                ..KindAttributes::NONE
            },
            Kind::Kv => KindAttributes {
                splits: true,
                relocates: true,
                enlarges: true,
                flushes: true,
                demotion: Demotion::Whole,
                notices: Notices::Keys,
                extents: Some(Kind::Extents),
                ..KindAttributes::NONE
            },
            // They are flushed with their structure, and their owner moves their content.
            Kind::Extents => KindAttributes {
                demotion: Demotion::Pieces,
                // Extents can be lists of extents.
                extents: Some(Kind::Extents),
                ..KindAttributes::NONE
            },
            Kind::Custom(_) => KindAttributes::NONE,
        }
    }

    /// The same; of a custom kind by its capabilities.
    pub const fn attributes_with(self, capabilities: Capabilities) -> KindAttributes {
        let Kind::Custom(_) = self else { return self.attributes() };
        KindAttributes {
            relocates: capabilities.contains(Capabilities::MOVES),
            flushes: capabilities.contains(Capabilities::CONTENT),
            demotion: if capabilities.contains(Capabilities::APPENDED) {
                Demotion::Appended
            } else if capabilities.contains(Capabilities::WHOLE) {
                Demotion::Whole
            } else {
                Demotion::Never
            },
            notices: match capabilities.contains(Capabilities::CHANGES) {
                true => Notices::Chosen,
                false => Notices::Never,
            },
            ..KindAttributes::NONE
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

    #[test]
    fn byte_of_a_router_without_capabilities_is_its_code() {
        for router in [Router::Offset, Router::Ends, Router::HashRange, Router::Index] {
            assert_eq!(Capabilities::NONE.beside(router), router as u8);
        }
        let read = (0..=u8::MAX).filter_map(|byte| Some((byte, Capabilities::split(byte)?)));
        let read = read.map(|(byte, (router, capabilities))| (byte, capabilities.beside(router)));
        let (read, written): (Vec<u8>, Vec<u8>) = read.unzip();
        assert_eq!(read, written);
        assert_eq!(read.len(), 4 * 32);
    }

    const ROUTERS: [Router; 4] = [Router::Offset, Router::Ends, Router::HashRange, Router::Index];

    fn all() -> impl Iterator<Item = (Router, Capabilities)> {
        (0..=u8::MAX).filter_map(Capabilities::split)
    }

    #[test]
    fn custom_kind_is_refused_for_each_inconsistency_of_router_and_capabilities() {
        let kind = Kind::from_code(0x80).expect("a custom kind");
        for (router, set) in all() {
            let has = |one: Capabilities| set.contains(one);
            let expected = if has(Capabilities::APPENDED) && has(Capabilities::WHOLE) {
                Err(Inconsistency::AppendedAndWhole)
            } else if has(Capabilities::APPENDED) && router == Router::HashRange {
                Err(Inconsistency::AppendedWithoutGrowth(router))
            } else if has(Capabilities::CONTENT) && router == Router::HashRange {
                Err(Inconsistency::ContentWithoutEnds(router))
            } else {
                Ok(())
            };
            assert_eq!(kind.check(router, set), expected, "{router:?}, {set:?}");
        }
        let consistent = all().filter(|(router, set)| kind.check(*router, *set).is_ok());
        assert_eq!(consistent.count(), 3 * 24 + 8);
    }

    #[test]
    fn built_in_kind_has_its_own_router_and_no_capabilities() {
        for kind in [Kind::File, Kind::Queue, Kind::Kv] {
            let consistent = all().filter(|(router, set)| kind.check(*router, *set).is_ok());
            let own = kind.router().expect("a structure");
            assert!(consistent.eq([(own, Capabilities::NONE)]), "{kind}");
            let other = ROUTERS.into_iter().find(|router| *router != own).expect("four routers");
            let wrong = kind.check(other, Capabilities::NONE);
            assert_eq!(wrong, Err(Inconsistency::RouterOf(other)));
            let wrong = kind.check(own, Capabilities::CHANGES);
            assert_eq!(wrong, Err(Inconsistency::BuiltInCapabilities));
        }
        for (router, set) in all() {
            assert_eq!(Kind::Extents.check(router, set), Err(Inconsistency::NoStructure));
        }
    }

    #[test]
    fn capabilities_are_attributes_of_custom_kinds_only() {
        let all = Capabilities::NONE.with(Capabilities::CONTENT, true);
        let all = all.with(Capabilities::MOVES, true).with(Capabilities::WHOLE, true);
        let custom = Kind::from_code(0x80).expect("a custom kind").attributes_with(all);
        assert!(custom.flushes && custom.relocates && !custom.journals && !custom.splits);
        assert_eq!((custom.demotion, custom.notices), (Demotion::Whole, Notices::Never));
        assert_eq!(Kind::Extents.attributes_with(all), Kind::Extents.attributes());
        assert_eq!(Kind::File.attributes_with(Capabilities::NONE), Kind::File.attributes());
    }
}
