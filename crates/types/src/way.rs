//! In which way a block gives what it has to another one.

/// How a block moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Way {
    /// The upper part of its range goes to a new block.
    Split = 0,
    /// Everything goes to a neighbour, which serves meanwhile.
    Merge = 1,
    /// Everything goes to a new block elsewhere, which takes its place.
    Relocate = 2,
}

impl Way {
    /// The way with this code.
    pub fn from_code(code: u8) -> Option<Way> {
        [Way::Split, Way::Merge, Way::Relocate].into_iter().find(|way| *way as u8 == code)
    }

    /// Whether the block that takes is a new one, which is in no map before the commit.
    pub fn takes_anew(self) -> bool {
        self != Way::Merge
    }

    /// Whether the block that gives keeps nothing, and goes with the commit.
    pub fn gives_all(self) -> bool {
        self != Way::Split
    }
}
