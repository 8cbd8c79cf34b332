//! The content of an `OutOfMemory` error: the caller, the available room, and its holders. The reader of the
//! error must learn which of its own data to remove, or that other jobs hold all of the room, and no more
//! about the other jobs.

use crate::Catalog;
use crate::error::blocks;
use crate::pool::{CoreRoom, Draw, Where};
use hashbrown::HashMap;
use honeycomb_types::{BlockId, JobId, TierIx, Time};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Number of prefixes of a job that the error names.
const NAMED: usize = 5;
/// Bytes of a name that are shown.
const NAME_SHOWN: usize = 80;
/// Time for which the counted blocks of a job are reused: a refused caller retries soon.
const COUNTED_FOR: Duration = Duration::from_secs(1);

/// Why no blocks can be allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Full {
    /// The requesting prefix, and the structure if it exists already.
    pub asker: Box<str>,
    /// Units requested.
    pub asked: u64,
    /// The same in whole blocks, as all of the following.
    pub asked_blocks: u64,
    /// Free blocks in memory, including the reserved ones.
    pub free: u64,
    /// Free blocks reserved for moves and repairs.
    pub reserved: u64,
    /// The tiers of the cluster, memory first.
    pub tiers: Vec<FullTier>,
    /// The blocks that the job of the caller holds.
    pub holding: Arc<Holding>,
    /// Suspected servers with room, which becomes available when they report again.
    pub suspects: Vec<Suspect>,
}

/// A server that receives no blocks, because it is suspected to be lost (INV-56).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// host:port.
    pub address: Arc<str>,
    /// Milliseconds since its last message.
    pub silent_ms: u64,
}

impl fmt::Display for Suspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Suspect { address, silent_ms } = self;
        write!(f, "memory server {address} is suspected: it has been silent for {silent_ms} ms")
    }
}

/// One tier of the cluster: memory in whole blocks, a lower tier in blocks of any capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullTier {
    /// Memory, or the class of the disks.
    pub name: &'static str,
    /// All of it.
    pub total: u64,
    /// The part that could be allocated here.
    pub free: u64,
    /// The part of blocks that have an owner, or are not free yet; a block on its way between tiers counts in
    /// both.
    pub out: u64,
    /// Free memory not lent to this controller shard: lent to other shards, or not lent yet.
    pub elsewhere: u64,
}

/// The blocks that a job holds, and those without an owner, in the measure of their tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Its name.
    pub job: Box<str>,
    /// Blocks by tier, in the order of `Full::tiers`.
    pub tiers: Vec<u64>,
    /// The same, counted as in `FullTier::out`.
    pub out: Vec<u64>,
    /// Blocks of any job, counted in the same way, that are being freed or retained for a flush.
    pub kept: Vec<u64>,
    /// The job's prefixes with most memory, in whole blocks, the largest first.
    pub prefixes: Vec<(Box<str>, u64)>,
}

/// Recently counted blocks of jobs.
#[derive(Debug, Default)]
pub(crate) struct Counted(HashMap<JobId, (Time, Arc<Holding>)>);

impl Counted {
    pub(crate) fn bytes(&self) -> usize {
        self.0.allocation_size()
    }
}

fn shown(name: &str) -> String {
    if name.len() <= NAME_SHOWN {
        return name.to_owned();
    }
    let from = (name.len() - NAME_SHOWN..).find(|&at| name.is_char_boundary(at));
    format!("...{}", &name[from.unwrap_or(name.len())..])
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Full { asker, asked_blocks, free, reserved, tiers, holding, suspects, .. } = self;
        write!(
            f,
            "cannot allocate {} for '{}': the cluster has {free} free in memory, ",
            blocks(*asked_blocks),
            shown(asker)
        )?;
        write!(f, "of which {reserved} are reserved for moves and repairs (")?;
        for (n, FullTier { name, total, free, .. }) in tiers.iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{name}: {free} of {total} free")?;
        }
        let of = |counts: &mut dyn Iterator<Item = u64>| {
            let counts = counts.zip(tiers).map(|(n, tier)| format!("{n} in {}", tier.name));
            counts.collect::<Vec<_>>().join(", ")
        };
        let at = |counts: &[u64], n: usize| counts.get(n).copied().unwrap_or(0);
        let mut ours = (0..tiers.len()).map(|n| at(&holding.tiers, n));
        let mut rest = tiers
            .iter()
            .enumerate()
            .map(|(n, tier)| tier.out.saturating_sub(at(&holding.out, n) + at(&holding.kept, n)));
        write!(f, "). Job '{}' holds {}", shown(&holding.job), of(&mut ours))?;
        let named = holding.prefixes.iter().map(|(path, n)| {
            let path = if path.is_empty() { "the root" } else { path };
            format!("{} {n}", shown(path))
        });
        let named = named.collect::<Vec<_>>().join(", ");
        if !named.is_empty() {
            write!(f, " (most of it: {named})")?;
        }
        write!(f, "; other jobs hold {}", of(&mut rest))?;
        if holding.kept.iter().any(|&n| n > 0) {
            let kept = of(&mut holding.kept.iter().copied());
            write!(f, "; {kept} have no owner and are being freed or flushed")?;
        }
        for FullTier { name, elsewhere, .. } in tiers.iter().filter(|tier| tier.elsewhere > 0) {
            write!(
                f,
                "; {elsewhere} in {name} are lent to other controller shards, or not lent yet"
            )?;
        }
        for suspect in suspects {
            write!(f, "; {suspect} and receives no blocks")?;
        }
        f.write_str(". ")?;
        f.write_str(
            "Existing data is unharmed: free some, let leases expire, or add a memory server or \
                disks",
        )
    }
}

impl Catalog {
    /// Explains why no block is allocated to this prefix.
    pub(crate) fn full(&mut self, (j, n): (u32, u32), s: u32, asked: u64) -> Full {
        let (_, free, reserved) = self.pool.room();
        let mut asker = self.dag.path_of(n);
        if let Some(structure) = self.structures.get(s).filter(|known| known.prefix == n) {
            asker = format!("{asker}:{}", structure.name);
        }
        let tier = |name| FullTier { name, total: 0, free: 0, out: 0, elsewhere: 0 };
        let mut tiers = vec![tier("memory")];
        for (_, server) in self.pool.servers().filter(|(_, server)| !server.draining) {
            let (total, unused) = (u64::from(server.total), u64::from(server.free()));
            let free = u64::from(server.room(Draw::Reserve));
            tiers[0].total += total;
            tiers[0].out += total.saturating_sub(unused);
            // The free blocks of a disconnected server are unknown.
            if !server.is_away() && !server.is_suspected() {
                tiers[0].free += free;
                tiers[0].elsewhere += unused.saturating_sub(free);
            }
            for (ix, spec) in server.tiers.iter().enumerate() {
                let name = spec.class.name();
                let CoreRoom { total, out, .. } = server.below(ix);
                let known = tiers.iter().position(|tier| tier.name == name);
                let at = known.unwrap_or_else(|| {
                    tiers.push(tier(name));
                    tiers.len() - 1
                });
                tiers[at].total += total as u64;
                tiers[at].out += out as u64;
                if !server.is_away() && !server.is_suspected() {
                    tiers[at].free += total.saturating_sub(out) as u64;
                }
            }
        }
        let FullTier { total, free: unused, out, elsewhere, .. } = &mut tiers[0];
        let whole = self.whole();
        [total, unused, elsewhere].into_iter().for_each(|units| *units /= whole);
        *out = out.div_ceil(whole);
        let holding = self.holding(j, &tiers);
        let suspects = self.roomy_suspects();
        let (asked_blocks, free, reserved) =
            (self.in_blocks(asked), free / whole, reserved / whole);
        let asker = asker.into();
        Full { asker, asked, asked_blocks, free, reserved, tiers, holding, suspects }
    }

    /// Suspected servers that have room, or may have it after they demoted blocks to a disk.
    fn roomy_suspects(&self) -> Vec<Suspect> {
        let suspected = self.pool.servers().filter(|(_, server)| server.is_suspected());
        let roomy = suspected
            .filter(|(_, server)| server.room_if_heard(Draw::Ordinary) > 0 || server.may_lower());
        roomy.map(|(_, server)| self.suspect(server)).collect()
    }

    fn holding(&mut self, j: u32, tiers: &[FullTier]) -> Arc<Holding> {
        let (id, now) = (self.jobs[j].id, self.now);
        self.counted.0.retain(|_, (at, _)| now < *at + COUNTED_FOR);
        if let Some((_, counted)) =
            self.counted.0.get(&id).filter(|(_, c)| c.tiers.len() == tiers.len())
        {
            return counted.clone();
        }
        // Memory is counted in units, and a lower tier in blocks.
        let of_tier = |tier: usize, units: u64| if tier == 0 { units } else { 1 };
        let [mut by_tier, mut out, mut kept] = [(); 3].map(|()| vec![0; tiers.len()]);
        let mut by_prefix: HashMap<u32, u64> = HashMap::new();
        for (_, structure) in self.structures.iter().filter(|(_, s)| s.job == j) {
            for block in structure.blocks() {
                let (tier, to) = self.tiers_named(block, tiers);
                let units = u64::from(self.pool.units(block));
                by_tier[tier] += of_tier(tier, units);
                out[tier] += of_tier(tier, units);
                if to != tier {
                    out[to] += of_tier(to, units);
                }
                *by_prefix.entry(structure.prefix).or_default() += units;
            }
        }
        for block in self.pool.quarantined() {
            let (tier, to) = self.tiers_named(block, tiers);
            let units = u64::from(self.pool.units(block));
            kept[tier] += of_tier(tier, units);
            if to != tier {
                kept[to] += of_tier(to, units);
            }
        }
        for counts in [&mut by_tier, &mut out, &mut kept] {
            counts.iter_mut().take(1).for_each(|memory| *memory = self.in_blocks(*memory));
        }
        let mut largest: Vec<(u32, u64)> = by_prefix.into_iter().collect();
        // Of two equal counts, the older prefix first: the order of a hash table is arbitrary.
        largest.sort_by_key(|&(n, units)| (std::cmp::Reverse(units), self.dag.nodes[n].id));
        let named = largest.into_iter().take(NAMED);
        let prefixes = named.map(|(n, units)| (self.dag.path_of(n).into(), self.in_blocks(units)));
        let prefixes = prefixes.collect();
        let job = self.jobs[j].name.clone();
        let holding = Arc::new(Holding { job, tiers: by_tier, out, kept, prefixes });
        self.counted.0.insert(id, (now, holding.clone()));
        holding
    }

    /// The indices of a block's current tier and of the tier to which it is moving.
    fn tiers_named(&self, block: BlockId, tiers: &[FullTier]) -> (usize, usize) {
        let server = self.pool.server(block.server());
        let named = |tier: TierIx| {
            let spec = tier.below().and_then(|below| server?.tiers.get(below))?;
            tiers.iter().position(|tier| tier.name == spec.class.name())
        };
        let Where { tier, to, .. } = self.pool.place(block);
        (named(tier).unwrap_or(0), named(to).unwrap_or(0))
    }
}
