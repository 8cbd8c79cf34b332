//! The ways in which a block passes its content to another one.

/// How a block moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Way {
    /// The upper part of its range goes to a new block.
    Split = 0,
    /// Everything goes to a neighbour, which stays in service meanwhile.
    Merge = 1,
    /// Everything goes to a new block elsewhere, which takes its place.
    Relocate = 2,
}

impl Way {
    /// The way with this code.
    pub fn from_code(code: u8) -> Option<Way> {
        [Way::Split, Way::Merge, Way::Relocate].into_iter().find(|way| *way as u8 == code)
    }

    /// Whether the receiving block is new, and in no map before the commit.
    pub fn takes_anew(self) -> bool {
        self != Way::Merge
    }

    /// Whether the giving block keeps nothing, and is removed by the commit.
    pub fn gives_all(self) -> bool {
        self != Way::Split
    }
}
