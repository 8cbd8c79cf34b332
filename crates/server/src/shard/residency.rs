//! Where the bytes of a block are (ADR 0023).
//!
//! | State | Memory | Bytes in a lower tier |
//! | --- | --- | --- |
//! | `Memory` | a frame | none |
//! | `Demoting` | a frame | all are being written, and are read from memory |
//! | `Lower`, `Cached::No` | none | all, if there are any; they may be being copied on to a store |
//! | `Lower`, `Cached::Reading` | in the write cache, still empty | all; the needed ones are being read |
//! | `Lower`, `Cached::Present` | in the write cache | those before `Backing::floor`; the rest may be being written |
//! | `Promoting` | a frame, being filled | all |
//!
//! A new block is in memory, or in a lower tier without any bytes. This module has the transitions, and
//! asserts that no other occurs. Reads, writes and I/O are elsewhere.

use super::export::TierExport;
use super::on_disk::OnDisk;
use super::promotion::Heat;
use super::write_cache::Stay;
use honeycomb_block::Backing;
use honeycomb_types::{TierIx, Time};

/// The memory of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryRoom {
    /// Assigned by the controller.
    Frame,
    /// A place of the write cache.
    Cache,
    None,
}

/// Where the bytes of a block are, and where they go.
#[derive(Debug)]
pub(super) struct Residency {
    state: ResidencyState,
    /// When the block last stayed in memory because a change had cancelled its demotion.
    pub stayed: Option<Time>,
}

#[derive(Debug)]
enum ResidencyState {
    Memory,
    Demoting { copy: OnDisk, export: Box<TierExport> },
    Lower(LowerTier),
    Promoting(LowerTier),
}

/// The bytes of a block in a lower tier.
#[derive(Debug)]
struct LowerTier {
    tier: TierIx,
    /// `None` if the block has no bytes there yet.
    copy: Option<OnDisk>,
    heat: Heat,
    cached: Cached,
}

/// The part of such a block that is in memory.
#[derive(Debug)]
enum Cached {
    No { export: Option<Box<TierExport>> },
    Reading { read: Box<ReadBack>, stay: Stay },
    Present { stay: Stay, export: Option<Box<TierExport>> },
}

/// The bytes of a block that are being read back.
#[derive(Debug)]
pub(super) struct ReadBack {
    /// Recognizes its own reads.
    pub number: u64,
    /// The block's memory.
    pub into: Backing,
    /// Bytes behind those of the block: its runs.
    pub runs: Option<Backing>,
    /// Number of reads in progress.
    pub left: usize,
}

const NOTHING: Cached = Cached::No { export: None };

impl Residency {
    /// The residency of a block that is opened in this tier.
    pub fn opened(tier: TierIx) -> Residency {
        let state = match tier.is_below() {
            false => ResidencyState::Memory,
            true => ResidencyState::Lower(LowerTier {
                tier,
                copy: None,
                heat: Heat::default(),
                cached: NOTHING,
            }),
        };
        Residency { state, stayed: None }
    }

    /// Takes the bytes from a block that ends: from then on it has no memory and no copy.
    pub fn take(&mut self) -> Residency {
        let (copy, heat, cached) = (None, Heat::default(), NOTHING);
        let lower = LowerTier { tier: self.tier(), copy, heat, cached };
        let state = std::mem::replace(&mut self.state, ResidencyState::Lower(lower));
        Residency { state, stayed: self.stayed }
    }

    fn lower(&self) -> Option<&LowerTier> {
        match &self.state {
            ResidencyState::Lower(lower) | ResidencyState::Promoting(lower) => Some(lower),
            ResidencyState::Memory | ResidencyState::Demoting { .. } => None,
        }
    }

    fn lower_mut(&mut self) -> Option<&mut LowerTier> {
        match &mut self.state {
            ResidencyState::Lower(lower) | ResidencyState::Promoting(lower) => Some(lower),
            ResidencyState::Memory | ResidencyState::Demoting { .. } => None,
        }
    }

    /// The part in memory of a block in a lower tier that is not being promoted.
    fn cached(&self) -> Option<&Cached> {
        match &self.state {
            ResidencyState::Lower(lower) => Some(&lower.cached),
            _ => None,
        }
    }

    fn cached_mut(&mut self) -> Option<&mut Cached> {
        match &mut self.state {
            ResidencyState::Lower(lower) => Some(&mut lower.cached),
            _ => None,
        }
    }

    /// The tier where the controller counts the block.
    pub fn tier(&self) -> TierIx {
        self.lower().map_or(TierIx::MEMORY, |lower| lower.tier)
    }

    /// That tier, and the one to which the block is on its way.
    pub fn tiers(&self) -> (TierIx, TierIx) {
        let to = match &self.state {
            ResidencyState::Promoting(_) => TierIx::MEMORY,
            _ => self.export().map_or(self.tier(), TierExport::to),
        };
        (self.tier(), to)
    }

    /// Whether the block is in this tier and stays there, or is on its way to it.
    pub fn goes_to(&self, tier: TierIx) -> bool {
        let stays = !matches!(self.state, ResidencyState::Demoting { .. });
        stays && self.tier() == tier || self.export().is_some_and(|export| export.to() == tier)
    }

    /// The memory of the block.
    pub fn room(&self) -> MemoryRoom {
        match &self.state {
            ResidencyState::Memory
            | ResidencyState::Demoting { .. }
            | ResidencyState::Promoting(_) => MemoryRoom::Frame,
            ResidencyState::Lower(lower) => match lower.cached {
                Cached::No { .. } => MemoryRoom::None,
                Cached::Reading { .. } | Cached::Present { .. } => MemoryRoom::Cache,
            },
        }
    }

    /// Whether the block is in memory and stays there, as far as is known.
    #[inline]
    pub fn is_plain(&self) -> bool {
        matches!(self.state, ResidencyState::Memory)
    }

    /// Whether all bytes of the block are in memory, and stay there for now.
    pub fn is_workable(&self, backing: &Backing) -> bool {
        let stays = match &self.state {
            ResidencyState::Memory => true,
            ResidencyState::Lower(lower) => match &lower.cached {
                Cached::No { .. } => true,
                Cached::Present { export, .. } => export.is_none(),
                Cached::Reading { .. } => false,
            },
            ResidencyState::Demoting { .. } | ResidencyState::Promoting(_) => false,
        };
        stays && backing.floor() == 0
    }

    /// The block's copy in a lower tier.
    pub fn copy(&self) -> Option<&OnDisk> {
        match &self.state {
            ResidencyState::Memory => None,
            ResidencyState::Demoting { copy, .. } => Some(copy),
            ResidencyState::Lower(lower) | ResidencyState::Promoting(lower) => lower.copy.as_ref(),
        }
    }

    pub fn copy_mut(&mut self) -> Option<&mut OnDisk> {
        match &mut self.state {
            ResidencyState::Memory => None,
            ResidencyState::Demoting { copy, .. } => Some(copy),
            ResidencyState::Lower(lower) | ResidencyState::Promoting(lower) => lower.copy.as_mut(),
        }
    }

    /// The export to another tier, or from the write cache to the same one.
    pub fn export(&self) -> Option<&TierExport> {
        match &self.state {
            ResidencyState::Demoting { export, .. } => Some(export),
            ResidencyState::Lower(LowerTier {
                cached: Cached::No { export } | Cached::Present { export, .. },
                ..
            }) => export.as_deref(),
            _ => None,
        }
    }

    pub fn export_mut(&mut self) -> Option<&mut TierExport> {
        match &mut self.state {
            ResidencyState::Demoting { export, .. } => Some(export),
            ResidencyState::Lower(LowerTier {
                cached: Cached::No { export } | Cached::Present { export, .. },
                ..
            }) => export.as_deref_mut(),
            _ => None,
        }
    }

    /// The export of the block's memory to a lower tier.
    pub fn demotion(&mut self) -> Option<&mut TierExport> {
        self.export_mut().filter(|export| export.is_from_memory())
    }

    /// Whether the memory of the block is being written to a lower tier.
    pub fn is_demoting(&self) -> bool {
        self.export().is_some_and(TierExport::is_from_memory)
    }

    /// An export begins. `new_copy` replaces the copy, if there is one.
    pub fn begin_export(&mut self, export: TierExport, new_copy: Option<OnDisk>) {
        assert!(self.export().is_none(), "INV-59: a second export to a tier: {self:?}");
        let (from_memory, room) = (export.is_from_memory(), self.room());
        assert_eq!(from_memory, room != MemoryRoom::None, "INV-41: the bytes are elsewhere");
        let export = Box::new(export);
        match &mut self.state {
            state @ ResidencyState::Memory => {
                let copy = new_copy.expect("INV-41: a block in memory has no copy yet");
                *state = ResidencyState::Demoting { copy, export };
            }
            ResidencyState::Lower(lower) => {
                if new_copy.is_some() {
                    lower.copy = new_copy;
                }
                match &mut lower.cached {
                    Cached::No { export: present } | Cached::Present { export: present, .. } => {
                        *present = Some(export);
                    }
                    Cached::Reading { .. } => unreachable!("INV-41: memory that is not read yet"),
                }
            }
            ResidencyState::Demoting { .. } | ResidencyState::Promoting(_) => {
                unreachable!("INV-41: memory that is demoted or not read yet")
            }
        }
    }

    /// The export is over and has no effect. Returns the copy of a block that is in memory: it is void.
    pub fn export_failed(&mut self) -> Option<OnDisk> {
        match std::mem::replace(&mut self.state, ResidencyState::Memory) {
            ResidencyState::Demoting { copy, .. } => Some(copy),
            ResidencyState::Lower(mut lower) => {
                let (Cached::No { export } | Cached::Present { export, .. }) = &mut lower.cached
                else {
                    unreachable!("INV-41: memory that is not read yet is not exported")
                };
                *export = None;
                self.state = ResidencyState::Lower(lower);
                None
            }
            state => unreachable!("INV-41: no export has failed: {state:?}"),
        }
    }

    /// The block is in a tier below its former one, with this copy. Returns the old copy.
    pub fn copied_further(&mut self, copy: OnDisk) -> Option<OnDisk> {
        let ResidencyState::Lower(lower) = &mut self.state else {
            unreachable!("INV-41: a block that is not on a disk is copied from it")
        };
        lower.cached = NOTHING;
        lower.tier = copy.tier;
        lower.copy.replace(copy)
    }

    /// All bytes of the block are in its lower tier: its memory is not used any more. Returns the memory that
    /// it had.
    pub fn leaves_memory(&mut self) -> MemoryRoom {
        let room = self.room();
        match std::mem::replace(&mut self.state, ResidencyState::Memory) {
            ResidencyState::Demoting { copy, .. } => {
                let (tier, heat) = (copy.tier, Heat::default());
                let lower = LowerTier { tier, copy: Some(copy), heat, cached: NOTHING };
                self.state = ResidencyState::Lower(lower);
            }
            ResidencyState::Lower(lower) => {
                let warm = matches!(lower.cached, Cached::Present { .. });
                assert!(warm, "INV-41: a block leaves memory that it does not use: {lower:?}");
                self.state = ResidencyState::Lower(LowerTier { cached: NOTHING, ..lower });
            }
            state => unreachable!("INV-41: a block leaves memory without a copy: {state:?}"),
        }
        room
    }

    /// The block gets a place of the write cache. `read`: the bytes that are being read; `None` if no byte is
    /// needed.
    pub fn reads_back(&mut self, read: Option<ReadBack>, stay: Stay) {
        let Some(cached @ Cached::No { export: None }) = self.cached_mut() else {
            unreachable!("INV-41: a block with memory, or in transfer, is read back: {self:?}")
        };
        *cached = match read {
            Some(read) => Cached::Reading { read: Box::new(read), stay },
            None => Cached::Present { stay, export: None },
        };
    }

    /// The reads of this number, if they are in progress.
    pub fn read_back(&mut self, number: u64) -> Option<&mut ReadBack> {
        match self.cached_mut()? {
            Cached::Reading { read, .. } if read.number == number => Some(read),
            _ => None,
        }
    }

    /// All bytes are in memory. Returns what `reads_back` got; `None` if nothing was being read.
    pub fn was_read_back(&mut self, now: Time) -> Option<Box<ReadBack>> {
        let cached = self.cached_mut()?;
        match std::mem::replace(cached, NOTHING) {
            Cached::Reading { read, mut stay } => {
                stay.arrived(now);
                *cached = Cached::Present { stay, export: None };
                Some(read)
            }
            other => {
                *cached = other;
                None
            }
        }
    }

    /// Cancels a read of the block into memory. Returns the memory, which is free.
    pub fn stops_reading(&mut self) -> MemoryRoom {
        let is_read = self.is_being_read();
        let room = if is_read { self.room() } else { MemoryRoom::None };
        if self.is_promoting() {
            self.promotion_failed();
        } else if let Some(cached @ Cached::Reading { .. }) = self.cached_mut() {
            *cached = NOTHING;
        }
        room
    }

    /// Whether changes of the block can be deltas: it has a copy, and no complete memory.
    pub fn takes_deltas(&self) -> bool {
        let lower = self.lower().filter(|lower| lower.copy.is_some() && !self.is_promoting());
        lower.is_some_and(|lower| {
            matches!(lower.cached, Cached::No { export: None } | Cached::Reading { .. })
        })
    }

    /// Whether a run can be written behind the copy.
    pub fn takes_runs(&self) -> bool {
        self.takes_deltas() && matches!(self.cached(), Some(Cached::No { .. }))
    }

    /// Whether bytes of the block are being read into the write cache, or into a frame.
    pub fn is_being_read(&self) -> bool {
        self.is_promoting() || matches!(self.cached(), Some(Cached::Reading { .. }))
    }

    /// Whether the block is in the write cache, as far as it must be for a change.
    pub fn is_cached(&self) -> bool {
        matches!(self.cached(), Some(Cached::Present { .. }))
    }

    /// The stay of the block in the write cache.
    pub fn stay(&self) -> Option<&Stay> {
        match self.cached()? {
            Cached::Reading { stay, .. } | Cached::Present { stay, .. } => Some(stay),
            Cached::No { .. } => None,
        }
    }

    pub fn stay_mut(&mut self) -> Option<&mut Stay> {
        match self.cached_mut()? {
            Cached::Reading { stay, .. } | Cached::Present { stay, .. } => Some(stay),
            Cached::No { .. } => None,
        }
    }

    /// How much the block is read from its lower tier.
    pub fn heat_mut(&mut self) -> Option<&mut Heat> {
        self.lower_mut().map(|lower| &mut lower.heat)
    }

    /// The block gets a frame of memory into which all of it is read.
    pub fn promotes(&mut self) {
        match std::mem::replace(&mut self.state, ResidencyState::Memory) {
            ResidencyState::Lower(
                lower @ LowerTier { cached: Cached::No { export: None }, .. },
            ) => {
                self.state = ResidencyState::Promoting(lower);
            }
            state => unreachable!("INV-41: a block that is not on a disk is promoted: {state:?}"),
        }
    }

    pub fn is_promoting(&self) -> bool {
        matches!(self.state, ResidencyState::Promoting(_))
    }

    /// The promotion is over and has no effect: the block's frame is free.
    pub fn promotion_failed(&mut self) {
        match std::mem::replace(&mut self.state, ResidencyState::Memory) {
            ResidencyState::Promoting(lower) => self.state = ResidencyState::Lower(lower),
            state => unreachable!("INV-42: no promotion has failed: {state:?}"),
        }
    }

    /// The block is in memory: it was read into a frame, or was whole in the write cache and has a frame now.
    /// Returns its copy.
    pub fn promoted(&mut self) -> Option<OnDisk> {
        match std::mem::replace(&mut self.state, ResidencyState::Memory) {
            ResidencyState::Promoting(lower)
            | ResidencyState::Lower(
                lower @ LowerTier { cached: Cached::Present { export: None, .. }, .. },
            ) => lower.copy,
            state => unreachable!("INV-42: a block that is not in memory is promoted: {state:?}"),
        }
    }

    /// The block ends: its memory, its place in the target of an export from a disk, and its copy.
    pub fn end(&mut self) -> (MemoryRoom, Option<(TierIx, u32)>, Option<OnDisk>) {
        let room = self.room();
        let extra = self.export().and_then(TierExport::extra_slot);
        let copy = match self.take().state {
            ResidencyState::Memory => None,
            ResidencyState::Demoting { copy, .. } => Some(copy),
            ResidencyState::Lower(lower) | ResidencyState::Promoting(lower) => lower.copy,
        };
        (room, extra, copy)
    }

    /// Takes the copy of a block that is written anew to another place.
    pub fn take_copy(&mut self) -> Option<OnDisk> {
        match &mut self.state {
            ResidencyState::Lower(lower) => lower.copy.take(),
            ResidencyState::Memory => None,
            ResidencyState::Demoting { .. } | ResidencyState::Promoting(_) => {
                unreachable!("INV-41: the copy of a block in transfer is in use: {self:?}")
            }
        }
    }
}
