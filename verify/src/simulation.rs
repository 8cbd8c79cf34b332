//! The simulator: its seeds, its bank of planted bugs, and single situations.

mod lots;
mod neighbours;
mod seeds;
mod stalls;
