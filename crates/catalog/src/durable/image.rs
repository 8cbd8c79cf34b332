//! Images of the catalog's items in the log, and their bytes.
//!
//! Items are named by their indices in the catalog's slabs, which a recovered catalog restores: so an edge or
//! a block's owner is a number and needs no search. An image is a whole item. Items with large images that
//! change often (a task that reads from thousands, a file of thousands of blocks) have a record for the
//! difference.

use super::codec::{BadRecord, RecordReader, Writer, bad};
use crate::command::Seal;
use crate::dag::Life;
use crate::moves::{Move, Past};
use crate::quota::Allowance;
use crate::structures::Granted;
use crate::tombstones::{Cause, Gone, Tombstone};
use crate::{BillInfo, Hints, Holder, Loss, Spent, TierSpent};
use honeycomb_types::{
    BlockAt, BlockId, Capabilities, Epoch, Generation, JobId, Kind, Marks, MoveId, PrefixId,
    Router, ServerId, StructureId, TierClass, TierSpec, Time, Verbs, Way,
};

/// Types of records. A number is never reused. 0x40 and above are the controller's own; a new kind of durable
/// state takes the next free number under that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Type {
    Counters = 1,
    Job = 2,
    JobGone = 3,
    Prefix = 4,
    PrefixGone = 5,
    /// One more parent of a prefix, deduced from use.
    Edge = 6,
    Declared = 7,
    Withdrawn = 8,
    Committed = 9,
    Lost = 10,
    Structure = 11,
    StructureGone = 12,
    /// One block left the map of a queue.
    Retired = 13,
    Tombstone = 14,
    Server = 15,
    ServerGone = 16,
    /// Number of readers of a prefix that ended without having committed; in snapshots.
    LostReaders = 17,
    /// A flush that is under way.
    Flush = 18,
    FlushGone = 19,
    /// All blocks in which a kv keeps extents; in snapshots.
    ExtentBlocks = 20,
    /// One part of a flush is written.
    FlushPart = 21,
    /// The outcome of the flush of a prefix.
    Flushed = 22,
    /// One more block in which a kv keeps extents.
    ExtentAdded = 23,
    ExtentGone = 24,
    /// The quota of a tenant.
    Tenant = 25,
    /// The bill of a job, as last logged.
    Bill = 26,
    /// The final bill of an ended job.
    Ended = 27,
    /// Objects to delete.
    Sweep = 28,
    SweepGone = 29,
    /// A server is draining; after its own record.
    Draining = 30,
    /// A flush of a live prefix, while it is copied.
    Live = 31,
    LiveGone = 32,
}

impl Type {
    /// Version of the records of this type that this program writes; it reads earlier ones too. A record of
    /// an unknown type or of a later version is refused with its name, because ignoring it would lose data.
    pub(crate) fn version(self) -> u8 {
        match self {
            // 3: the quota of the prefix; 4: its soft quota, and whether it is being loaded; 5: whether it
            // outlives its job; 6: its journal.
            Type::Prefix => 6,
            // 3: parts of prefixes that stay live; 4: the other members of a subtree; 5: the other members of
            // a barrier, and the job whose end began the flush; 6: without the hash slots of a kv.
            Type::Flush => 6,
            // 3: the other members of a subtree; 4: those of a barrier.
            Type::Live => 4,
            // 3: without the hash slots of a kv.
            Type::Structure => 3,
            // 3: the job's hints; 4: its soft quota and the weight of its share; 5: the time of its root's
            // creation, and its holder.
            Type::Job => 5,
            // 3: the soft quota and the weight of a tenant.
            Type::Tenant => 3,
            // 3: by location of the blocks.
            Type::Bill | Type::Ended => 3,
            // 2: the tiers of a server.
            _ => 2,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Type> {
        use Type as T;
        let all = [
            T::Counters,
            T::Job,
            T::JobGone,
            T::Prefix,
            T::PrefixGone,
            T::Edge,
            T::Declared,
            T::Withdrawn,
            T::Committed,
            T::Lost,
            T::Structure,
            T::StructureGone,
            T::Retired,
            T::Tombstone,
            T::Server,
            T::ServerGone,
            T::LostReaders,
            T::Flush,
            T::FlushGone,
            T::ExtentBlocks,
            T::FlushPart,
            T::Flushed,
            T::ExtentAdded,
            T::ExtentGone,
            T::Draining,
            T::Sweep,
            T::SweepGone,
            T::Tenant,
            T::Bill,
            T::Ended,
            T::Live,
            T::LiveGone,
        ];
        all.into_iter().find(|t| *t as u8 == code)
    }
}

/// Appends a record: length of the body, type, version, body.
pub(crate) fn record(out: &mut Vec<u8>, kind: Type, body: impl FnOnce(&mut Writer<'_>)) {
    let at = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind as u8, kind.version()]);
    body(&mut Writer(out));
    let length = (out.len() - at - 6) as u32;
    out[at..at + 4].copy_from_slice(&length.to_le_bytes());
}

/// The next numbers to assign, so that none is assigned twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) last_prefix: u64,
    pub(crate) last_structure: u64,
    pub(crate) last_move: u64,
    pub(crate) last_server: u32,
    pub(crate) block_size: u64,
}

impl Counters {
    pub(crate) fn put(&self, w: &mut Writer<'_>) {
        w.u64(self.last_prefix);
        w.u64(self.last_structure);
        w.u64(self.last_move);
        w.u32(self.last_server);
        w.u64(self.block_size);
    }

    pub(crate) fn get(r: &mut RecordReader<'_>) -> Result<Counters, BadRecord> {
        Ok(Counters {
            last_prefix: r.u64()?,
            last_structure: r.u64()?,
            last_move: r.u64()?,
            last_server: r.u32()?,
            block_size: r.u64()?,
        })
    }
}

#[derive(Clone, Debug)]
pub(crate) struct JobImage {
    pub(crate) id: JobId,
    pub(crate) name: Box<str>,
    /// Index of its root prefix.
    pub(crate) root: u32,
    pub(crate) lease_ms: u32,
    pub(crate) shortest_ms: u32,
    pub(crate) allowed: Allowance,
    pub(crate) hints: Hints,
    pub(crate) registered: Time,
    /// The time when its root prefix was made.
    pub(crate) opened: Time,
    pub(crate) holder: Holder,
    pub(crate) lingers_until: Option<Time>,
}

impl JobImage {
    pub(crate) fn put(&self, w: &mut Writer<'_>) {
        w.u64(self.id.0);
        w.str(&self.name);
        w.u32(self.root);
        w.u32(self.lease_ms);
        w.u32(self.shortest_ms);
        w.u64(self.allowed.most);
        w.u64(self.registered.0);
        w.u64(self.lingers_until.map_or(u64::MAX, |at| at.0));
        w.u8(self.hints.flags());
        w.u32(self.hints.tasks);
        w.u64(self.hints.bytes);
        w.u64(self.hints.bytes_per_s);
        w.u64(self.allowed.soft);
        w.u32(self.allowed.weight);
        w.u64(self.opened.0);
        w.str(&self.holder.host);
        w.u64(self.holder.scope);
        w.u32(self.holder.process);
        w.u64(self.holder.started);
    }

    pub(crate) fn get(r: &mut RecordReader<'_>, version: u8) -> Result<JobImage, BadRecord> {
        let mut image = JobImage {
            id: JobId(r.u64()?),
            name: r.str()?.into(),
            root: r.u32()?,
            lease_ms: r.u32()?,
            shortest_ms: r.u32()?,
            allowed: Allowance { most: r.u64()?, ..Allowance::default() },
            hints: Hints::default(),
            registered: Time(r.u64()?),
            opened: Time::ZERO,
            holder: Holder::default(),
            lingers_until: Some(Time(r.u64()?)).filter(|at| *at != Time::NEVER),
        };
        if version >= 3 {
            let flags = r.u8()?;
            let (tasks, bytes, bytes_per_s) = (r.u32()?, r.u64()?, r.u64()?);
            let hints = Hints { tasks, bytes, bytes_per_s, ..Hints::default() }.with_flags(flags);
            let Some(hints) = hints else {
                return bad(format!("the hints of a job have the unknown flags {flags:#x}"));
            };
            image.hints = hints;
        }
        if version >= 4 {
            image.allowed.soft = r.u64()?;
            image.allowed.weight = get_weight(r)?;
        }
        if version >= 5 {
            image.opened = Time(r.u64()?);
            let (host, scope) = (r.str()?.into(), r.u64()?);
            image.holder = Holder { host, scope, process: r.u32()?, started: r.u64()? };
        }
        Ok(image)
    }
}

fn get_weight(r: &mut RecordReader<'_>) -> Result<u32, BadRecord> {
    match r.u32()? {
        0 => bad("the weight of a share is 0"),
        weight => Ok(weight),
    }
}

/// The limits of a tenant; all defaults when the tenant is removed.
pub(super) fn put_tenant(w: &mut Writer<'_>, name: &str, allowed: Allowance) {
    w.str(name);
    w.u64(allowed.most);
    w.u64(allowed.soft);
    w.u32(allowed.weight);
}

pub(super) fn get_tenant(
    r: &mut RecordReader<'_>,
    version: u8,
) -> Result<(Box<str>, Allowance), BadRecord> {
    let name = r.str()?.into();
    let mut allowed = Allowance { most: r.u64()?, ..Allowance::default() };
    if version >= 3 {
        (allowed.soft, allowed.weight) = (r.u64()?, get_weight(r)?);
    }
    Ok((name, allowed))
}

#[derive(Clone, Debug)]
pub(crate) struct PrefixImage {
    pub(crate) id: PrefixId,
    pub(crate) job: u32,
    pub(crate) name: Box<str>,
    pub(crate) lease_ms: u32,
    pub(crate) generation: Generation,
    pub(crate) owner_verbs: Verbs,
    pub(crate) job_verbs: Verbs,
    pub(crate) life: Life,
    pub(crate) pinned: bool,
    pub(crate) data_lost: bool,
    pub(crate) committed: bool,
    /// The missed deadline of its lease, once it is dead.
    pub(crate) deadline: Time,
    /// Its own marks, if any.
    pub(crate) marks: Option<Marks>,
    /// The path to which it is flushed when its lease expires; empty for none.
    pub(crate) flush_to: Box<str>,
    /// It is being filled from a flush, and is incomplete.
    pub(crate) loading: bool,
    /// It outlives its job.
    pub(crate) persist: bool,
    /// The tag of its journal; empty for none.
    pub(crate) journal: Box<str>,
    /// Its quota, including its descendants.
    pub(crate) allowed: Allowance,
    /// Indices of its parents, in their order, and whether the edge was deduced from use.
    pub(crate) parents: Vec<(u32, bool)>,
}

impl PrefixImage {
    pub(crate) fn put(&self, w: &mut Writer<'_>) {
        w.u64(self.id.0);
        w.u32(self.job);
        w.str(&self.name);
        w.u32(self.lease_ms);
        w.u32(self.generation.0);
        w.u32(self.owner_verbs.0.into());
        w.u32(self.job_verbs.0.into());
        w.u8(match self.life {
            Life::Live => 0,
            Life::Expired => 1,
            Life::Removed => 2,
            Life::Read => 3,
        });
        w.u8(self.pinned.into());
        w.u8(self.data_lost.into());
        w.u8(self.committed.into());
        w.u64(self.deadline.0);
        w.u8(self.marks.map_or(0, Marks::high));
        w.u8(self.marks.map_or(0, Marks::low));
        w.str(&self.flush_to);
        w.u32(self.parents.len() as u32);
        for &(parent, deduced) in &self.parents {
            w.u32(parent);
            w.u8(deduced.into());
        }
        w.u64(self.allowed.most);
        w.u64(self.allowed.soft);
        w.u8(self.loading.into());
        w.u8(self.persist.into());
        w.str(&self.journal);
    }

    pub(crate) fn get(r: &mut RecordReader<'_>, version: u8) -> Result<PrefixImage, BadRecord> {
        Ok(PrefixImage {
            id: PrefixId(r.u64()?),
            job: r.u32()?,
            name: r.str()?.into(),
            lease_ms: r.u32()?,
            generation: Generation(r.u32()?),
            owner_verbs: Verbs(r.u32()? as u16),
            job_verbs: Verbs(r.u32()? as u16),
            life: match r.u8()? {
                0 => Life::Live,
                1 => Life::Expired,
                2 => Life::Removed,
                3 => Life::Read,
                n => return bad(format!("a prefix has the unknown life {n}")),
            },
            pinned: r.bool()?,
            data_lost: r.bool()?,
            committed: r.bool()?,
            deadline: Time(r.u64()?),
            marks: match (r.u8()?, r.u8()?) {
                (0, 0) => None,
                (high, low) => match Marks::new(high, low, Marks::default()) {
                    Some(marks) => Some(marks),
                    None => {
                        return bad(format!(
                            "the marks of a prefix are {high} and {low}, which is not allowed"
                        ));
                    }
                },
            },
            flush_to: r.str()?.into(),
            parents: {
                let n = r.count(5)?;
                (0..n).map(|_| Ok((r.u32()?, r.bool()?))).collect::<Result<_, BadRecord>>()?
            },
            allowed: Allowance {
                most: if version >= 3 { r.u64()? } else { 0 },
                soft: if version >= 4 { r.u64()? } else { 0 },
                ..Allowance::default()
            },
            loading: version >= 4 && r.bool()?,
            persist: version >= 5 && r.bool()?,
            journal: if version >= 6 { r.str()?.into() } else { Box::default() },
        })
    }
}

/// The bill of a job.
pub(super) fn put_spent(w: &mut Writer<'_>, spent: &Spent) {
    let used = |tier: &TierSpent| *tier != TierSpent::default();
    let tiers = (0u8..).zip(&spent.tiers).filter(|(place, tier)| *place == 0 || used(tier));
    let tiers: Vec<(u8, &TierSpent)> = tiers.collect();
    w.u32(tiers.len() as u32);
    for (place, tier) in tiers {
        w.u8(place);
        for half in [tier.held, tier.used] {
            w.u64(half as u64);
            w.u64((half >> 64) as u64);
        }
        w.u64(tier.came);
    }
    w.u64(spent.peak);
    w.u64(spent.moved);
}

/// One tier. Version 2 had only one, for blocks in any location.
fn get_tier_spent(r: &mut RecordReader<'_>, version: u8) -> Result<TierSpent, BadRecord> {
    let mut wide = || Ok(u128::from(r.u64()?) | u128::from(r.u64()?) << 64);
    let (held, used) = (wide()?, wide()?);
    Ok(TierSpent { held, used, came: if version >= 3 { r.u64()? } else { 0 } })
}

pub(super) fn get_spent(r: &mut RecordReader<'_>, version: u8) -> Result<Spent, BadRecord> {
    let mut spent = Spent::default();
    if version < 3 {
        spent.tiers[0] = get_tier_spent(r, version)?;
    } else {
        for _ in 0..r.count(41)? {
            let place = r.u8()?;
            let Some(tier) = spent.tiers.get_mut(usize::from(place)) else {
                return bad(format!("a bill has a tier of the unknown class {place}"));
            };
            *tier = get_tier_spent(r, version)?;
        }
    }
    (spent.peak, spent.moved) = (r.u64()?, r.u64()?);
    Ok(spent)
}

pub(super) fn put_ended(w: &mut Writer<'_>, bill: &BillInfo) {
    w.u64(bill.job.0);
    w.str(&bill.name);
    w.u64(bill.age_ms);
    put_spent(w, &bill.spent);
}

pub(super) fn get_ended(r: &mut RecordReader<'_>, version: u8) -> Result<BillInfo, BadRecord> {
    let (job, name, age_ms) = (JobId(r.u64()?), r.str()?.into(), r.u64()?);
    Ok(BillInfo { job, name, age_ms, ended: true, spent: get_spent(r, version)? })
}

/// One range of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryImage {
    pub(crate) start: u64,
    pub(crate) at: BlockAt,
    /// Items and bytes that were put into a queue's block that is not its tail.
    pub(crate) through: (u64, u64),
}

#[derive(Clone, Debug)]
pub(crate) struct StructureImage {
    pub(crate) id: StructureId,
    /// Index of its prefix.
    pub(crate) prefix: u32,
    pub(crate) name: Box<str>,
    pub(crate) kind: Kind,
    /// As the kind defined it at creation: the servers of a custom kind may not be back yet.
    pub(crate) router: Router,
    /// The same for the capabilities of a custom kind's blocks.
    pub(crate) capabilities: Capabilities,
    pub(crate) sealed: bool,
    pub(crate) version: u64,
    pub(crate) max_items: u64,
    pub(crate) max_bytes: u64,
    pub(crate) granted: Vec<(Granted, Epoch)>,
    pub(crate) spare: Vec<BlockAt>,
    /// Moves that are under way, and the epochs of their targets.
    pub(crate) pending: Vec<(Move, Epoch)>,
    pub(crate) past: Vec<Past>,
    /// Entries before this index are unchanged since the last image.
    pub(crate) from: usize,
    /// Entries from there on.
    pub(crate) entries: Vec<EntryImage>,
    /// Blocks of extents, which have a record of their own.
    pub(crate) extents: Vec<BlockAt>,
}

/// The blocks of extents of a structure, by its index.
pub(crate) fn put_extent_blocks(w: &mut Writer<'_>, s: u32, blocks: &[BlockAt]) {
    w.u32(s);
    w.u32(blocks.len() as u32);
    blocks.iter().for_each(|&at| put_at(w, at));
}

pub(crate) fn get_extent_blocks(
    r: &mut RecordReader<'_>,
) -> Result<(u32, Vec<BlockAt>), BadRecord> {
    let (s, n) = (r.u32()?, r.count(16)?);
    Ok((s, (0..n).map(|_| get_at(r)).collect::<Result<_, _>>()?))
}

pub(super) fn put_at(w: &mut Writer<'_>, at: BlockAt) {
    w.u64(at.block.0);
    w.u64(at.epoch.0);
}

pub(super) fn get_at(r: &mut RecordReader<'_>) -> Result<BlockAt, BadRecord> {
    Ok(BlockAt::of(r.u64()?, r.u64()?))
}

impl StructureImage {
    pub(crate) fn put(&self, w: &mut Writer<'_>) {
        w.u64(self.id.0);
        w.u32(self.prefix);
        w.str(&self.name);
        w.u8(self.kind.code());
        w.u8(self.capabilities.beside(self.router));
        w.u8(self.sealed.into());
        w.u64(self.version);
        w.u64(self.max_items);
        w.u64(self.max_bytes);
        w.u32(self.granted.len() as u32);
        for &(granted, epoch) in &self.granted {
            put_at(w, BlockAt { block: granted.block, epoch });
            let seal = granted.sealed.unwrap_or(Seal { length: 0, bytes: 0, last: false });
            let sealed = u8::from(granted.sealed.is_some());
            w.u8(sealed | u8::from(seal.last) << 1 | u8::from(granted.linked) << 2);
            w.u64(seal.length);
            w.u64(seal.bytes);
        }
        w.u32(self.spare.len() as u32);
        self.spare.iter().for_each(|&at| put_at(w, at));
        w.u32(self.pending.len() as u32);
        for &(mv, epoch) in &self.pending {
            w.u64(mv.id.0);
            w.u64(mv.source.0);
            put_at(w, BlockAt { block: mv.target, epoch });
            w.u64(mv.start);
            w.u64(mv.end);
            w.u8(mv.way as u8);
        }
        w.u32(self.past.len() as u32);
        for past in &self.past {
            w.u64(past.block.0);
            w.u64(past.gave.0);
            w.u64(past.took.0.0);
            w.u8(past.took.1.into());
        }
        w.u32(self.from as u32);
        w.u32(self.entries.len() as u32);
        for entry in &self.entries {
            w.u64(entry.start);
            put_at(w, entry.at);
            w.u64(entry.through.0);
            w.u64(entry.through.1);
        }
    }

    pub(crate) fn get(r: &mut RecordReader<'_>, version: u8) -> Result<StructureImage, BadRecord> {
        let (id, prefix, name) = (StructureId(r.u64()?), r.u32()?, r.str()?.into());
        let code = r.u8()?;
        let Some(kind) = Kind::from_code(code) else {
            return bad(format!("no kind of structure has the code {code:#x}"));
        };
        let code = r.u8()?;
        let Some((router, capabilities)) = Capabilities::split(code) else {
            return bad(format!("no router has the code {code:#x}"));
        };
        if let Err(e) = kind.check(router, capabilities) {
            return bad(format!("structure {id} is recorded as a {kind}, but {e}"));
        }
        Ok(StructureImage {
            id,
            prefix,
            name,
            kind,
            router,
            capabilities,
            sealed: r.bool()?,
            version: {
                if version < 3 {
                    // Number of hash slots of a kv, which was smaller then.
                    r.u32()?;
                }
                r.u64()?
            },
            max_items: r.u64()?,
            max_bytes: r.u64()?,
            granted: {
                let n = r.count(33)?;
                (0..n).map(|_| get_granted(r)).collect::<Result<_, _>>()?
            },
            spare: {
                let n = r.count(16)?;
                (0..n).map(|_| get_at(r)).collect::<Result<_, _>>()?
            },
            pending: {
                let n = r.count(49)?;
                (0..n).map(|_| get_move(r)).collect::<Result<_, _>>()?
            },
            past: {
                let n = r.count(25)?;
                (0..n).map(|_| get_past(r)).collect::<Result<_, _>>()?
            },
            from: r.u32()? as usize,
            entries: {
                let n = r.count(40)?;
                (0..n).map(|_| get_entry(r)).collect::<Result<_, _>>()?
            },
            extents: Vec::new(),
        })
    }
}

fn get_granted(r: &mut RecordReader<'_>) -> Result<(Granted, Epoch), BadRecord> {
    let BlockAt { block, epoch } = get_at(r)?;
    let flags = r.u8()?;
    let seal = Seal { length: r.u64()?, bytes: r.u64()?, last: flags & 2 != 0 };
    let sealed = (flags & 1 != 0).then_some(seal);
    Ok((Granted { block, sealed, linked: flags & 4 != 0 }, epoch))
}

fn get_move(r: &mut RecordReader<'_>) -> Result<(Move, Epoch), BadRecord> {
    let (id, source, target) = (MoveId(r.u64()?), BlockId(r.u64()?), get_at(r)?);
    let (start, end, code) = (r.u64()?, r.u64()?, r.u8()?);
    let Some(way) = Way::from_code(code) else {
        return bad(format!("a move has the unknown way {code}"));
    };
    Ok((Move { id, source, target: target.block, start, end, way }, target.epoch))
}

fn get_past(r: &mut RecordReader<'_>) -> Result<Past, BadRecord> {
    let (block, gave) = (BlockId(r.u64()?), MoveId(r.u64()?));
    Ok(Past { block, gave, took: (MoveId(r.u64()?), r.bool()?) })
}

fn get_entry(r: &mut RecordReader<'_>) -> Result<EntryImage, BadRecord> {
    let (start, at) = (r.u64()?, get_at(r)?);
    Ok(EntryImage { start, at, through: (r.u64()?, r.u64()?) })
}

/// A joined server: the attributes that must match when it reconnects.
#[derive(Clone, Debug)]
pub(crate) struct ServerImage {
    pub(crate) id: ServerId,
    pub(crate) address: Box<str>,
    pub(crate) incarnation: u64,
    pub(crate) shards: u8,
    pub(crate) blocks_per_shard: u32,
    /// Since version 2.
    pub(crate) tiers: Vec<TierSpec>,
}

impl ServerImage {
    pub(crate) fn put(&self, w: &mut Writer<'_>) {
        w.u32(self.id.0);
        w.str(&self.address);
        w.u64(self.incarnation);
        w.u8(self.shards);
        w.u32(self.blocks_per_shard);
        w.u32(self.tiers.len() as u32);
        for tier in &self.tiers {
            w.u8(tier.class.code());
            w.u32(tier.blocks);
        }
    }

    pub(crate) fn get(r: &mut RecordReader<'_>, version: u8) -> Result<ServerImage, BadRecord> {
        Ok(ServerImage {
            id: ServerId(r.u32()?),
            address: r.str()?.into(),
            incarnation: r.u64()?,
            shards: r.u8()?,
            blocks_per_shard: r.u32()?,
            tiers: if version < 2 { Vec::new() } else { get_tiers(r)? },
        })
    }
}

fn get_tiers(r: &mut RecordReader<'_>) -> Result<Vec<TierSpec>, BadRecord> {
    let tier = |r: &mut RecordReader<'_>| {
        let (code, blocks) = (r.u8()?, r.u32()?);
        match TierClass::from_code(code) {
            Some(class) => Ok(TierSpec { class, blocks }),
            None => bad(format!("a tier has the unknown class {code}")),
        }
    };
    let n = r.count(5)?;
    (0..n).map(|_| tier(r)).collect()
}

/// A tombstone with the index and the id of its job, because the index may have been reused.
pub(crate) fn put_tombstone(w: &mut Writer<'_>, j: u32, job: JobId, t: &Tombstone) {
    w.u32(j);
    w.u64(job.0);
    let (kind, id) = match t.gone {
        Gone::Prefix(id) => (0, id.0),
        Gone::Structure(id) => (1, id.0),
    };
    w.u8(kind);
    w.u64(id);
    w.u64(t.prefix.0);
    w.str(&t.path);
    w.str(&t.name);
    w.u64(t.at.0);
    match &t.cause {
        &Cause::Expired { lease_ms, late_ms } => {
            w.u8(0);
            w.u32(lease_ms);
            w.u64(late_ms);
        }
        Cause::Removed => w.u8(1),
        Cause::Read { reader } => {
            w.u8(2);
            w.str(reader);
        }
        Cause::Lost { server, how } => {
            w.u8(3);
            w.str(server);
            w.u8(match how {
                Loss::Reset => 0,
                Loss::Silence => 1,
                Loss::Disk => 2,
                Loss::Unflushable => 3,
                Loss::Quarantined => 4,
            });
        }
    }
}

pub(crate) fn get_tombstone(
    r: &mut RecordReader<'_>,
) -> Result<(u32, JobId, Tombstone), BadRecord> {
    let (j, job) = (r.u32()?, JobId(r.u64()?));
    let gone = match (r.u8()?, r.u64()?) {
        (0, id) => Gone::Prefix(PrefixId(id)),
        (1, id) => Gone::Structure(StructureId(id)),
        (n, _) => return bad(format!("a tombstone has the unknown type {n}")),
    };
    let prefix = PrefixId(r.u64()?);
    let (path, name) = (r.str()?.into(), r.str()?.into());
    let at = Time(r.u64()?);
    let cause = match r.u8()? {
        0 => Cause::Expired { lease_ms: r.u32()?, late_ms: r.u64()? },
        1 => Cause::Removed,
        2 => Cause::Read { reader: r.str()?.into() },
        3 => {
            let server = r.str()?.into();
            let how = match r.u8()? {
                0 => Loss::Reset,
                1 => Loss::Silence,
                2 => Loss::Disk,
                3 => Loss::Unflushable,
                4 => Loss::Quarantined,
                n => return bad(format!("a tombstone has the unknown loss {n}")),
            };
            Cause::Lost { server, how }
        }
        n => return bad(format!("a tombstone has the unknown cause {n}")),
    };
    Ok((j, job, Tombstone { gone, prefix, path, name, cause, at }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_of_an_earlier_version_said_nothing_of_itself() {
        let image = JobImage {
            id: JobId(7),
            name: "sort".into(),
            root: 3,
            lease_ms: 1000,
            shortest_ms: 500,
            allowed: Allowance { most: 9, soft: 5, weight: 3 },
            hints: Hints { tasks: 5, not_sensitive: true, ..Hints::default() },
            registered: Time(11),
            opened: Time(12),
            holder: Holder { host: "node".into(), scope: 1, process: 2, started: 3 },
            lingers_until: None,
        };
        let mut bytes = Vec::new();
        image.put(&mut Writer(&mut bytes));
        let read = |bytes: &[u8], version| {
            let mut r = RecordReader(bytes);
            let image = JobImage::get(&mut r, version)?;
            r.end().map(|()| image)
        };
        let whole = read(&bytes, 5).expect("the image is whole");
        assert_eq!((whole.hints, whole.allowed), (image.hints, image.allowed));
        assert_eq!((&whole.holder, whole.opened), (&image.holder, image.opened));
        let fourth = &bytes[..bytes.len() - 36];
        let known = read(fourth, 4).expect("the image is whole");
        assert_eq!((known.holder, known.opened), (Holder::default(), Time::ZERO));
        let third = &fourth[..fourth.len() - 12];
        let known = read(third, 3).expect("the image is whole");
        let most = Allowance { most: 9, ..Allowance::default() };
        assert_eq!((known.hints, known.allowed), (image.hints, most));
        let first = &third[..third.len() - 21];
        let known = read(first, 2).expect("the image is whole");
        assert_eq!((known.hints, known.allowed), (Hints::default(), most));
        assert_eq!(known.lingers_until, None);
        assert!(read(third, 2).is_err() && read(first, 3).is_err() && read(third, 4).is_err());
        let flags = first.len();
        bytes[flags] = 2;
        assert!(read(&bytes, 5).is_err());
    }

    /// The bits of the router's byte that hold capabilities were accepted of built-in kinds.
    #[test]
    fn record_of_a_structure_whose_kind_has_other_capabilities_is_refused() {
        let read = |kind: Kind, router: Router, capabilities: Capabilities| {
            let mut bytes = Vec::new();
            let image = StructureImage {
                id: StructureId(7),
                prefix: 1,
                name: "records".into(),
                kind,
                router,
                capabilities,
                sealed: false,
                version: 1,
                max_items: 0,
                max_bytes: 0,
                granted: Vec::new(),
                spare: Vec::new(),
                pending: Vec::new(),
                past: Vec::new(),
                from: 0,
                entries: Vec::new(),
                extents: Vec::new(),
            };
            image.put(&mut Writer(&mut bytes));
            let mut r = RecordReader(&bytes);
            let image = StructureImage::get(&mut r, 5)?;
            r.end().map(|()| (image.router, image.capabilities))
        };
        let (none, moves) = (Capabilities::NONE, Capabilities::MOVES);
        let custom = Kind::from_code(0x80).expect("a custom kind");
        for (kind, router, capabilities) in [
            (Kind::File, Router::Offset, none),
            (Kind::Kv, Router::HashRange, none),
            (custom, Router::Index, moves),
        ] {
            assert_eq!(read(kind, router, capabilities), Ok((router, capabilities)), "{kind}");
        }
        for (kind, router, capabilities, why) in [
            (Kind::File, Router::Offset, moves, "only custom kinds have"),
            (Kind::Kv, Router::Index, none, "not that of this built-in kind"),
            (Kind::Extents, Router::HashRange, none, "structures of another kind"),
            (custom, Router::HashRange, Capabilities::APPENDED, "adds no block"),
        ] {
            let BadRecord { what } = read(kind, router, capabilities).expect_err("inconsistent");
            assert!(what.contains(&kind.to_string()) && what.contains(why), "{what}");
        }
    }
}
