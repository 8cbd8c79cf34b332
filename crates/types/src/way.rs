//! The ways in which a block passes its content to another one.

/// How a block moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Way {
    /// The upper part of the range moves to a new block.
    Split = 0,
    /// The whole content moves to a neighbour, which serves requests during the move.
    Merge = 1,
    /// The whole content moves to a new block on another server, which replaces the block in the
    /// map.
    Relocate = 2,
}

impl Way {
    /// The way with this code.
    pub fn from_code(code: u8) -> Option<Way> {
        [Way::Split, Way::Merge, Way::Relocate].into_iter().find(|way| *way as u8 == code)
    }

    /// Whether the target block is new, and in no map before the commit.
    pub fn takes_anew(self) -> bool {
        self != Way::Merge
    }

    /// Whether the source block keeps no content, and is removed by the commit.
    pub fn gives_all(self) -> bool {
        self != Way::Split
    }
}
