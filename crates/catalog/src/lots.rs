//! How much of a memory server this controller shard may give out.
//!
//! A server that joins several controller shards has a name for each of its blocks with each of them,
//! and room for all of them once: it keeps the ledger, and lends room in lots (ADR 0021). Here is the
//! borrower's side, for each core of a server: blocks that are out (allocated, or in quarantine) never
//! exceed what is lent (INV-40). What is spare beyond some lots goes back at once; when little is
//! spare more is asked for, before it is needed. A shard that has nothing out keeps nothing.
//!
//! One request is under way at a time and server. What goes back is given up here before it is asked
//! to be taken back, so that no moment has a block counted on both sides.

use crate::pool::{Core, Server};
use crate::{Catalog, CatalogError, Effect, Reply};
use honeycomb_types::limits::{LOTS_AGAIN, LOTS_PER_CORE};
use honeycomb_types::{Bug, ServerId, Time};

/// Where a server's lending stands.
#[derive(Debug)]
pub(crate) struct Lending {
    /// Wished for in all, by core, while the answer is under way.
    asked: Option<Box<[u32]>>,
    /// An allocation wants so many blocks more than there are.
    short: u32,
    /// The last answer gave less than was asked for: not again before this, unless somebody waits.
    again: Time,
    /// Nothing goes back before this: what was lent for somebody shall be there when he comes for it.
    hold: Time,
    /// What the server says it has lent, until it has told which blocks it holds.
    pub(crate) told: Option<Box<[u32]>>,
}

/// Blocks of a lot, on a core of so many.
fn lot(blocks: u32) -> u32 {
    (blocks / LOTS_PER_CORE).max(1)
}

impl Lending {
    pub(crate) fn new() -> Lending {
        Lending { asked: None, short: 0, again: Time::ZERO, hold: Time::ZERO, told: None }
    }
}

impl Server {
    /// What it should lend, by core, so that as much is spare as is of use.
    fn wish(&self, short: u32) -> Box<[u32]> {
        let cores = self.cores().len() as u32;
        let idle = short == 0 && self.cores().all(|core| core.out() == 0);
        let reserve = self.reserve().div_ceil(cores);
        let extra = short.div_ceil(cores);
        let wish = self.cores().map(|core| {
            let (lot, out, spare) = (lot(core.blocks()), core.out(), core.room());
            let wish = match spare {
                _ if idle => 0,
                _ if self.draining => out,
                spare if spare < reserve + lot.div_ceil(2) + extra => out + reserve + lot + extra,
                spare if spare > reserve + 2 * lot => out + reserve + lot,
                spare => out + spare,
            };
            wish.min(core.blocks())
        });
        wish.collect()
    }
}

impl Catalog {
    /// Whether a server has been asked for more and has not answered: an allocation that was refused
    /// may succeed then.
    pub(crate) fn awaits_lots(&self) -> bool {
        let heard = self.pool.servers().filter(|(_, server)| !server.is_suspected());
        let mut lending = heard.filter_map(|(_, server)| server.lending.as_ref());
        lending.any(|lending| lending.asked.is_some() || lending.short > 0)
    }

    /// Whether a server may have more to lend: it gave all that it was asked for last.
    pub fn may_borrow(&self) -> bool {
        let has_more = |server: &Server| {
            let lending =
                server.lending.as_ref().filter(|_| !server.is_away() && server.takes_blocks());
            lending.is_some_and(|lending| lending.again <= self.now)
        };
        self.pool.servers().any(|(_, server)| has_more(server))
    }

    /// A server says what it lends to this shard, by core: when it joins, and in answer to what it was
    /// asked. Nothing of an answer that is empty: it was refused.
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
            |(core, lent): (&Core, &u32)| core.blocks() >= *lent && (core.out() <= *lent || away);
        if lent.len() != server.cores().len() || !server.cores().zip(lent).all(pays) {
            return Err(CatalogError::UnknownServer { server: id });
        }
        let was_asked = asked.is_some();
        let less = asked.is_some_and(|asked| asked.iter().zip(lent).any(|(a, l)| a > l));
        let lending = server.lending.as_mut().expect("put there above");
        if less {
            lending.again = now + LOTS_AGAIN;
        }
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

    /// An allocation of so many blocks was refused: every server that lends is asked.
    pub(crate) fn short_of(
        &mut self,
        blocks: u32,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let mut stirred = Vec::new();
        for (id, server) in self.pool.servers_mut_by_id() {
            let asked = !server.is_away() && server.takes_blocks();
            if let Some(lending) = server.lending.as_mut().filter(|_| asked) {
                lending.short = lending.short.max(blocks.max(1));
                stirred.push(id);
            }
        }
        self.short_of_memory(blocks, effects);
        stirred.into_iter().for_each(|id| self.pool.stir(id));
        self.balance_lots(effects);
        Ok(Reply::Done)
    }

    /// Asks servers whose spare blocks are too few or too many.
    pub(crate) fn balance_lots(&mut self, effects: &mut Vec<Effect>) {
        let now = self.now;
        for id in self.pool.take_stirred() {
            let Some(server) = self.pool.server_mut(id).filter(|server| !server.is_away()) else {
                continue;
            };
            let Some(lending) = &server.lending else { continue };
            if lending.asked.is_some() {
                continue; // The answer stirs it again.
            }
            let mut wish = server.wish(lending.short);
            let lent: Box<[u32]> = server.cores().map(|core| core.lent()).collect();
            if now < lending.hold {
                wish.iter_mut().zip(&lent).for_each(|(wish, lent)| *wish = *lent.max(wish));
            }
            let more = wish.iter().zip(&lent).any(|(wish, lent)| wish > lent);
            let (short, again) = (lending.short > 0, lending.again);
            server.lending.as_mut().expect("looked at above").short = 0;
            if wish == lent || more && !short && now < again {
                continue;
            }
            let kept: Box<[u32]> = wish.iter().zip(&lent).map(|(w, l)| *w.min(l)).collect();
            if !Bug::LotsGivenBackLate.active() {
                server.set_lent(&kept);
            }
            server.lending.as_mut().expect("looked at above").asked = Some(wish.clone());
            effects.push(Effect::Lots { server: id, lots: wish });
        }
    }
}
