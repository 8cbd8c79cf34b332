//! This controller shard's share of each memory server.
//!
//! A server that joins several controller shards has a separate set of block names for each of them, but
//! memory for only one set. It keeps the ledger, and lends room in lots (ADR 0021). This module is the
//! borrower's side, for each core of a server: units that are out (allocated, or in quarantine) never exceed
//! the lent units (INV-40). Spare units beyond some lots are returned at once; when few are spare, more are
//! requested before they are needed. A shard without allocated or quarantined blocks keeps no loan.
//!
//! One request for each server is under way at a time. Returned blocks are given up here before the request
//! is sent, so that no block is ever counted on both sides.

use crate::pool::{Core, Server};
use crate::{Catalog, CatalogError, Effect, Reply};
use honeycomb_types::limits::{FULL_PATIENCE, LOTS_AGAIN, LOTS_PER_CORE};
use honeycomb_types::{Bug, ServerId, Time};

/// The state of a server's lending.
#[derive(Debug)]
pub(crate) struct Lending {
    /// The requested total, by core, while the answer is under way.
    asked: Option<Box<[u32]>>,
    /// The units that an allocation lacks.
    short: u32,
    /// The earliest time of a new request after an answer with less than requested, unless an allocation
    /// waits.
    again: Time,
    /// The time until which a refused allocation may wait for that request.
    lacks_until: Time,
    /// The earliest time at which blocks are returned: blocks that were lent for a refused caller must be
    /// available when it retries.
    hold: Time,
    /// The lent blocks that the server reported, until it has reported the blocks that it holds.
    pub(crate) told: Option<Box<[u32]>>,
}

/// The units of a lot, on a core of this many units: at least a whole block.
fn lot(capacity: u32, whole: u32) -> u32 {
    (capacity / LOTS_PER_CORE).max(whole)
}

impl Lending {
    pub(crate) fn new() -> Lending {
        let (again, lacks_until, hold) = (Time::ZERO, Time::ZERO, Time::ZERO);
        Lending { asked: None, short: 0, again, lacks_until, hold, told: None }
    }
}

impl Server {
    /// The desired number of lent units, by core, which leaves a useful number spare.
    fn desired(&self, short: u32) -> Box<[u32]> {
        let cores = self.cores().len() as u32;
        let idle = short == 0 && self.cores().all(|core| core.out() == 0);
        // Whole blocks on each core.
        let whole = self.units.whole();
        let reserve = self.reserve().div_ceil(whole).div_ceil(cores) * whole;
        let extra = short.div_ceil(cores);
        let desired = self.cores().map(|core| {
            let lot = lot(core.capacity(), whole);
            let (out, spare) = (core.out(), core.room());
            let units = match spare {
                _ if idle => 0,
                _ if self.draining => out,
                spare if spare < reserve + lot.div_ceil(2) + extra => out + reserve + lot + extra,
                spare if spare > reserve + 2 * lot => out + reserve + lot,
                spare => out + spare,
            };
            units.min(core.capacity())
        });
        desired.collect()
    }
}

impl Catalog {
    /// Whether a request to a server is unanswered: a refused allocation may succeed after the answer.
    pub(crate) fn awaits_lots(&self) -> bool {
        let heard = self.pool.servers().filter(|(_, server)| !server.is_suspected());
        let mut lending = heard.filter_map(|(_, server)| server.lending.as_ref());
        lending.any(|lending| lending.asked.is_some() || lending.short > 0)
    }

    /// Whether a server that had fewer units than a refused allocation lacked can be asked again soon. The
    /// other shards may have borrowed more than they use, and return that within this time.
    pub fn lacks_lots(&self) -> bool {
        let mut lending = self.pool.servers().filter_map(|(_, server)| server.lending.as_ref());
        lending.any(|lending| self.now < lending.again.min(lending.lacks_until))
    }

    /// Whether a server may have more to lend, because its last answer granted the whole request.
    pub fn may_borrow(&self) -> bool {
        let has_more = |server: &Server| {
            let lending =
                server.lending.as_ref().filter(|_| !server.is_away() && server.takes_blocks());
            lending.is_some_and(|lending| lending.again <= self.now)
        };
        self.pool.servers().any(|(_, server)| has_more(server))
    }

    /// A server reports the units that it lends to this shard, by core: when it joins, and in answer to a
    /// request. An empty answer is a refusal.
    pub(crate) fn lent(
        &mut self,
        id: ServerId,
        lent: &[u32],
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let now = self.now;
        let server = self.pool.server_mut(id).ok_or(CatalogError::UnknownServer { server: id })?;
        let away = server.is_away();
        let lending = server.lending.get_or_insert_with(Lending::new);
        let asked = lending.asked.take();
        if lent.is_empty() {
            lending.again = now + LOTS_AGAIN;
            return Ok(Reply::Done);
        }
        let pays =
            |(core, lent): (&Core, &u32)| core.capacity() >= *lent && (core.out() <= *lent || away);
        if lent.len() != server.cores().len() || !server.cores().zip(lent).all(pays) {
            return Err(CatalogError::UnknownServer { server: id });
        }
        let was_asked = asked.is_some();
        let less = asked.is_some_and(|asked| asked.iter().zip(lent).any(|(a, l)| a > l));
        let lending = server.lending.as_mut().expect("inserted above");
        lending.again = if less { now + LOTS_AGAIN } else { now };
        if was_asked {
            lending.hold = now + LOTS_AGAIN;
        }
        let short = lending.short > 0;
        if away {
            lending.told = Some(lent.into());
        } else {
            server.set_lent(lent);
        }
        if short {
            self.pool.stir(id);
        }
        self.balance_lots(effects);
        Ok(Reply::Done)
    }

    /// An allocation of this many units was refused: sends requests to all servers that lend.
    pub(crate) fn short_of(
        &mut self,
        units: u32,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let cores = self.pool.servers().flat_map(|(_, server)| server.cores());
        let possible: u64 =
            cores.map(|core| (core.room() + core.capacity() - core.lent()) as u64).sum();
        // No answer helps an allocation of more units than there are. It ends no other allocation's wait.
        let lacks_until =
            if possible >= units as u64 { self.now + FULL_PATIENCE } else { Time::ZERO };
        let mut stirred = Vec::new();
        for (id, server) in self.pool.servers_mut_by_id() {
            let asked = !server.is_away() && server.takes_blocks();
            if let Some(lending) = server.lending.as_mut().filter(|_| asked) {
                lending.short = lending.short.max(units.max(1));
                lending.lacks_until = lending.lacks_until.max(lacks_until);
                stirred.push(id);
            }
        }
        self.short_of_memory(units, effects);
        stirred.into_iter().for_each(|id| self.pool.stir(id));
        self.balance_lots(effects);
        Ok(Reply::Done)
    }

    /// Sends requests to servers whose spare blocks are too few or too many.
    pub(crate) fn balance_lots(&mut self, effects: &mut Vec<Effect>) {
        let now = self.now;
        for id in self.pool.take_stirred() {
            let Some(server) = self.pool.server_mut(id).filter(|server| !server.is_away()) else {
                continue;
            };
            let Some(lending) = &server.lending else { continue };
            if lending.asked.is_some() {
                continue; // The answer marks it again.
            }
            let mut desired = server.desired(lending.short);
            let lent: Box<[u32]> = server.cores().map(|core| core.lent()).collect();
            if now < lending.hold {
                desired
                    .iter_mut()
                    .zip(&lent)
                    .for_each(|(desired, lent)| *desired = *lent.max(desired));
            }
            let more = desired.iter().zip(&lent).any(|(desired, lent)| desired > lent);
            let (short, again) = (lending.short > 0, lending.again);
            server.lending.as_mut().expect("looked at above").short = 0;
            if desired == lent || more && !short && now < again {
                continue;
            }
            let kept: Box<[u32]> = desired.iter().zip(&lent).map(|(w, l)| *w.min(l)).collect();
            if !Bug::LotsGivenBackLate.active() {
                server.set_lent(&kept);
            }
            server.lending.as_mut().expect("looked at above").asked = Some(desired.clone());
            effects.push(Effect::Lots { server: id, lots: desired });
        }
    }
}
