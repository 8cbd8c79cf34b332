//! Blocks that are demoted, stay, or are promoted.

use super::Both;
use super::moves::Settle;
use honeycomb_catalog::Command;
use honeycomb_types::{BlockAt, StructureId, TierIx};

impl Both {
    /// A server has demoted a block, or it stays, or cannot be demoted now.
    pub fn lowered(&mut self, block: usize, how: Settle) {
        let moving = self.model.tiers.moving();
        let Some(&at) = moving.get(block % moving.len().max(1)) else { return };
        self.hear(at);
        let (tier, to) = self.model.tiers.place(at);
        let files = self.model.jobs.iter().flat_map(|job| &job.files);
        let owner = files.filter(|file| file.held().contains(&at)).map(|file| file.id).next();
        let structure = owner.unwrap_or(StructureId(u64::MAX));
        let tier = if how == Settle::Commit { to } else { tier };
        let command = match how {
            Settle::Refuse => Command::LowerRefused { server: at.block.server(), at },
            Settle::Commit | Settle::Cancel => Command::TierChanged { structure, at, tier },
        };
        let known = self.bench.run(command).is_ok();
        assert_eq!(known, owner.is_some() || how == Settle::Refuse, "{at:?}");
        if known {
            self.lowered[usize::from(how != Settle::Commit)] += 1;
            self.lowered[2] += u64::from(how == Settle::Commit && to == TierIx(2));
            self.model.tiers.arrives(at, tier);
        }
    }

    /// A server reports that a block is read often. Only that one may be promoted.
    pub fn hot(&mut self, block: usize) {
        let places: Vec<BlockAt> = self.model.tiers.places.keys().copied().collect();
        let Some(&at) = places.get(block % places.len().max(1)) else { return };
        self.hear(at);
        let files = self.model.jobs.iter().flat_map(|job| &job.files);
        let owner = files.filter(|file| file.held().contains(&at)).map(|file| file.id).next();
        let structure = owner.unwrap_or(StructureId(u64::MAX));
        self.hot = Some(at);
        let known = self.bench.run(Command::RaiseBlock { structure, at }).is_ok();
        assert_eq!(known, owner.is_some(), "{at:?}");
        self.carry_out();
        self.hot = None;
    }
}
