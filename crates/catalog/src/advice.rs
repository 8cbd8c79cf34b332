//! Advice to add servers or to remove one: by marks, as in the paper ("Adding/removing storage servers"),
//! over every resource, as in Pocket.
//!
//! Advises to add when any resource is used above the upper mark. Advises to remove one when all resources
//! are used below the lower mark and, without that server, would be used at most half-way between the marks;
//! so neither advice triggers the other. Memory alone counts as a resource if no lower tier exists. With
//! lower tiers, memory always fills before any block is demoted, so that the room of memory and lower tiers
//! together counts.

use crate::Catalog;
use crate::kinds::KindSet;
use honeycomb_types::limits::{ADD_AFTER, REMOVE_AFTER};
use honeycomb_types::{ScaleMarks, ServerId, Time};
use std::sync::Arc;

/// The advised change. The code is that of the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum AdviceKind {
    /// No change.
    #[default]
    None = 0,
    /// Servers should be added.
    Add = 1,
    /// One server should be removed.
    Remove = 2,
}

/// The current advice on the number of servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// The advised change.
    pub what: AdviceKind,
    /// The number of servers of the mean size to add or remove.
    pub servers: u32,
    /// The server to remove.
    pub address: Arc<str>,
    /// The used part of each resource, as text.
    pub why: Box<str>,
    /// The time for which the advice has not changed.
    pub age_ms: u64,
}

/// The used part of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// The amount in use.
    pub used: u64,
    /// The whole amount.
    pub of: u64,
}

/// The resource use of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerUse {
    /// The server.
    pub server: ServerId,
    /// Blocks, in memory and in lower tiers.
    pub room: Use,
    /// Busy time of all its cores together, in thousandths.
    pub cores: Use,
    /// Whether the server is draining: its data moves to other servers, and its room does not count.
    pub leaves: bool,
    /// Whether it is the only server of a kind of structure.
    pub alone: bool,
}

/// The advised change for the current use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The advised change.
    pub what: AdviceKind,
    /// The number of servers of the mean size to add or remove.
    pub servers: u32,
    /// The server to remove.
    pub server: Option<ServerId>,
    /// Thousandths in use of the room and of the cores' time.
    pub used: [u64; 2],
}

impl ServerUse {
    fn resources(&self) -> [Use; 2] {
        [self.room, self.cores]
    }
}

/// Computes the advice for these servers.
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
        // The number of servers of the mean size that brings the fullest resource to the target.
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

/// Number of times that the advice is recomputed while all servers report once.
const LOOKS_FOR_ALL: usize = 4;

/// The current advice, and the time from which it has stood.
#[derive(Debug, Default)]
pub(crate) struct Adviser {
    given: Advice,
    since: Time,
    /// The advice that takes effect if it still holds after a delay, and the time from which it has held.
    pending: AdviceKind,
    pending_since: Time,
    /// Reports since the last recomputation.
    heard: usize,
    /// Total number of servers inspected.
    pub(crate) looked_at: u64,
}

impl Catalog {
    /// The use of each server. Empty if several controller shards share the servers, because each shard knows
    /// only its own part.
    fn server_uses(&self) -> Vec<ServerUse> {
        if self.pool.servers().any(|(_, server)| server.lending.is_some()) {
            return Vec::new();
        }
        let here = || self.pool.servers().filter(|(_, server)| !server.is_away());
        // Kinds served by one, and by at least two, of the servers that stay.
        let stay = here().filter(|(_, server)| !server.draining).map(|(_, server)| server.kinds);
        let (one, two) = stay.fold(<(KindSet, KindSet)>::default(), |(one, two), kinds| {
            (one.and(kinds), two.and(one.in_common(kinds)))
        });
        let of = |(server, state): (ServerId, &crate::pool::Server)| {
            let mut room = Use { used: 0, of: state.total.into() };
            room.used = room.of - u64::from(state.free());
            for tier in 0..state.tiers.len() {
                let below = state.below(tier);
                let whole = u64::from(state.units.whole());
                room.of += u64::from(below.total) * whole;
                room.used += u64::from(below.out.min(below.total)) * whole;
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

    /// After a report, recomputes the advice. That takes one step for each server, so it runs only once for a
    /// part of their reports (`LOOKS_FOR_ALL`).
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
        let given = &mut self.adviser.given;
        if given.what != what {
            self.adviser.since = now;
        }
        *given = Advice {
            what,
            servers,
            address: address.unwrap_or_default(),
            why: why.into(),
            age_ms: 0,
        };
    }

    /// The current advice; server names and figures only for the cluster's token.
    pub fn advice(&self, whole: bool) -> Advice {
        let given = self.adviser.given.clone();
        let age_ms = self.now.since(self.adviser.since).as_millis() as u64;
        match whole {
            true => Advice { age_ms, ..given },
            false => {
                Advice { what: given.what, servers: given.servers, age_ms, ..Advice::default() }
            }
        }
    }
}
