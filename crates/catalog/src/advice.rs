//! Whether there should be more servers, or one less: by marks, as in the paper ("Adding/removing storage
//! servers"), over every resource, as in Pocket.
//!
//! More, when any resource is used above the upper mark; one less, when all are used below the lower one,
//! and would be at most half-way between the marks without it, so that neither advice makes the other.
//! Memory is a resource where nothing is below it. Where there is, memory fills by itself before anything
//! goes down, and what counts is the room of both.

use crate::Catalog;
use crate::kinds::KindSet;
use honeycomb_types::limits::{ADD_AFTER, REMOVE_AFTER};
use honeycomb_types::{ScaleMarks, ServerId, Time};
use std::sync::Arc;

/// What should change. The code is the wire's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum AdviceKind {
    /// Nothing.
    #[default]
    None = 0,
    /// Servers should be added.
    Add = 1,
    /// One should go.
    Remove = 2,
}

/// Whether there should be other servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// What should change.
    pub what: AdviceKind,
    /// By how many servers of the mean size.
    pub servers: u32,
    /// The one that should go.
    pub address: Arc<str>,
    /// What is used how much.
    pub why: Box<str>,
    /// How long it has been so.
    pub age_ms: u64,
}

/// What of something is in use, of how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// So much is used.
    pub used: u64,
    /// Of this.
    pub of: u64,
}

/// What is used of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerUse {
    /// The server.
    pub server: ServerId,
    /// Blocks, in memory and below it.
    pub room: Use,
    /// Thousandths of the time of its cores, together.
    pub cores: Use,
    /// It is being taken out: what it has goes elsewhere, and its room is nobody's.
    pub leaves: bool,
    /// Nobody else serves a kind that it serves.
    pub alone: bool,
}

/// What should change, by what is used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What should change.
    pub what: AdviceKind,
    /// By how many servers of the mean size.
    pub servers: u32,
    /// The one that should go.
    pub server: Option<ServerId>,
    /// Thousandths of the room, and of the cores' time, that are used.
    pub used: [u64; 2],
}

impl ServerUse {
    fn resources(&self) -> [Use; 2] {
        [self.room, self.cores]
    }
}

/// What should change among these servers.
pub fn advise(marks: ScaleMarks, servers: &[ServerUse]) -> Verdict {
    let stay = || servers.iter().filter(|server| !server.leaves);
    let count = stay().count() as u64;
    let sum = |n: usize| Use {
        used: servers.iter().map(|server| server.resources()[n].used).sum(),
        of: stay().map(|server| server.resources()[n].of).sum(),
    };
    let all = [sum(0), sum(1)];
    let used = all.map(|all| (all.used * 1000).checked_div(all.of).unwrap_or(0));
    let none = Verdict { what: AdviceKind::None, servers: 0, server: None, used };
    if count == 0 {
        return none;
    }
    let percent = |all: Use, mark: u8| all.of * u64::from(mark);
    if all.iter().any(|&all| all.used * 100 > percent(all, marks.add_above)) {
        // So many of the mean size as leave the fullest resource at the target.
        let needed = |all: &Use| {
            let target = all.of * u64::from(marks.target().max(1));
            if target == 0 { 0 } else { (all.used * 100 * count).div_ceil(target) }
        };
        let needed = all.iter().map(needed).max().unwrap_or(0);
        let servers = needed.saturating_sub(count).clamp(1, u32::MAX.into()) as u32;
        return Verdict { what: AdviceKind::Add, servers, ..none };
    }
    let idle = all.iter().all(|&all| all.used * 100 < percent(all, marks.remove_below));
    if !idle || count <= u64::from(marks.min_servers.max(1)) {
        return none;
    }
    let enough = |gone: &ServerUse| {
        all.iter().zip(gone.resources()).all(|(all, own)| {
            all.used * 100 <= percent(Use { of: all.of - own.of, ..*all }, marks.target())
        })
    };
    let could_go = stay().filter(|server| !server.alone && enough(server));
    let fewest = could_go.min_by_key(|server| (server.room.used, server.server));
    match fewest {
        Some(gone) => {
            let server = Some(gone.server);
            Verdict { what: AdviceKind::Remove, servers: 1, server, ..none }
        }
        None => none,
    }
}

/// While all servers report once, it is looked so many times whether there should be others.
const LOOKS_FOR_ALL: usize = 4;

/// What was advised, and since when.
#[derive(Debug, Default)]
pub(crate) struct Adviser {
    told: Advice,
    since: Time,
    /// What would be advised if it stays so, and since when.
    pending: AdviceKind,
    pending_since: Time,
    /// Reports since it was looked at.
    heard: usize,
    /// Servers that were looked at, ever.
    pub(crate) looked_at: u64,
}

impl Catalog {
    /// What is used of each server; nothing where several controller shards share them, each of which
    /// knows its own part only.
    fn server_uses(&self) -> Vec<ServerUse> {
        if self.pool.servers().any(|(_, server)| server.lending.is_some()) {
            return Vec::new();
        }
        let here = || self.pool.servers().filter(|(_, server)| !server.is_away());
        // Kinds that a server serves, and that two do, of those that stay.
        let stay = here().filter(|(_, server)| !server.draining).map(|(_, server)| server.kinds);
        let (one, two) = stay.fold(<(KindSet, KindSet)>::default(), |(one, two), kinds| {
            (one.and(kinds), two.and(one.in_common(kinds)))
        });
        let of = |(server, state): (ServerId, &crate::pool::Server)| {
            let mut room = Use { used: 0, of: state.total.into() };
            room.used = room.of - u64::from(state.free());
            for tier in 0..state.tiers.len() {
                let below = state.below(tier);
                room.of += u64::from(below.total);
                room.used += u64::from(below.out.min(below.total));
            }
            let shards = u64::from(state.shards());
            let used = u64::from(state.load.cpu_permille()) * shards;
            let cores = Use { used, of: 1000 * shards };
            let others = if state.draining { one } else { two };
            let alone = !others.covers(state.kinds);
            ServerUse { server, room, cores, leaves: state.draining, alone }
        };
        here().map(of).collect()
    }

    /// Something was heard of a server: looks whether there should be others. That takes as many steps as
    /// there are servers, so that it is done once for a part of their reports (`LOOKS_FOR_ALL`).
    pub(crate) fn look_at_marks(&mut self) {
        self.adviser.heard += 1;
        if self.adviser.heard * LOOKS_FOR_ALL < self.pool.len() {
            return;
        }
        self.adviser.heard = 0;
        self.adviser.looked_at += self.pool.len() as u64;
        let verdict = match self.recovering() {
            true => advise(self.config.scale, &[]),
            false => advise(self.config.scale, &self.server_uses()),
        };
        let now = self.now;
        if verdict.what != self.adviser.pending {
            (self.adviser.pending, self.adviser.pending_since) = (verdict.what, now);
        }
        let after = match verdict.what {
            AdviceKind::None => std::time::Duration::ZERO,
            AdviceKind::Add => ADD_AFTER,
            AdviceKind::Remove => REMOVE_AFTER,
        };
        let ripe = now.since(self.adviser.pending_since) >= after;
        let what = if ripe { verdict.what } else { AdviceKind::None };
        let address = verdict.server.filter(|_| ripe).and_then(|id| self.address_of(id));
        let servers = if ripe { verdict.servers } else { 0 };
        let [room, cores] = verdict.used.map(|used| used / 10);
        let why = format!("{room}% of the block capacity and {cores}% of the cores are used");
        let told = &mut self.adviser.told;
        if told.what != what {
            self.adviser.since = now;
        }
        *told = Advice {
            what,
            servers,
            address: address.unwrap_or_default(),
            why: why.into(),
            age_ms: 0,
        };
    }

    /// Whether there should be other servers; names and figures for the cluster's token.
    pub fn advice(&self, whole: bool) -> Advice {
        let told = self.adviser.told.clone();
        let age_ms = self.now.since(self.adviser.since).as_millis() as u64;
        match whole {
            true => Advice { age_ms, ..told },
            false => Advice { what: told.what, servers: told.servers, age_ms, ..Advice::default() },
        }
    }
}
