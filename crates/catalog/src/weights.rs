//! Weights decide which servers receive a job's blocks. They are computed from the use expected by its hints
//! and the load of the servers.
//!
//! Pocket gives each job a map from servers to the part of its data that they receive, with more weight on
//! servers that are used less ("Assigning resources", "Data steering"). This module does the same, block by
//! block: a map steers new blocks and reserves nothing, it is recomputed as servers fill up and become busy,
//! and no data moves for it. A job without hints has no map; the policy places its blocks on the emptiest
//! server.
//!
//! Weights decide between servers that have room. They never refuse an allocation that would succeed without
//! them: when no server of the map has room, the policy chooses among all.

use crate::policy::ServerRoom;
use crate::pool::Server;
use crate::{Catalog, Estimate};
use honeycomb_types::limits::{
    HINT_SERVER_BYTES_PER_S, LOAD_SMOOTHED, STEER_BUSY, STEER_EVERY, STEER_IDLE, STEER_LEAST,
};
use honeycomb_types::{JobId, ServerId, Time};

/// The load of a server, from its reports.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServerLoad {
    /// Busy time of its cores, in millionths: smoothed.
    cpu: u64,
    heard: Option<Time>,
}

impl ServerLoad {
    /// A report gives the load since the previous one.
    pub(crate) fn heard(&mut self, cpu_permille: u16, now: Time) {
        let cpu = u64::from(cpu_permille.min(1000)) * 1000;
        let whole = LOAD_SMOOTHED.as_millis() as u64;
        let passed = self.heard.map_or(whole, |before| now.since(before).as_millis() as u64);
        let passed = passed.min(whole);
        self.cpu = (self.cpu * (whole - passed) + cpu * passed) / whole;
        self.heard = Some(now);
    }

    /// Busy time of its cores, in thousandths.
    pub(crate) fn cpu_permille(self) -> u16 {
        ((self.cpu + 500) / 1000) as u16
    }

    /// The factor of its room, in thousandths: 1000 up to a load of `STEER_IDLE`, decreasing to `STEER_LEAST`
    /// near `STEER_BUSY`.
    fn grade(self) -> u64 {
        let u = u64::from(self.cpu_permille());
        let spare = STEER_BUSY.saturating_sub(u) * 1000 / (STEER_BUSY - STEER_IDLE);
        spare.clamp(STEER_LEAST, 1000)
    }
}

/// The weight of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// The server.
    pub server: ServerId,
    /// In proportion to those of the others; 0 for a server that receives no block while others have room.
    pub weight: u64,
    /// Number of blocks available there.
    pub free: u32,
    /// Busy time of its cores, in thousandths.
    pub cpu_permille: u16,
}

/// The weights of a job, and the balance of each server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Weights {
    all: Vec<(Weight, i64)>,
    made: Time,
}

impl Weights {
    /// Computes weights over at least this many servers, as far as there are that many. Servers of the
    /// previous weights stay as long as they have room and are not too busy, so that a small job's clients do
    /// not spread over more and more servers.
    fn make(&mut self, servers: impl Iterator<Item = Weight>, least: usize, now: Time) {
        let before = std::mem::take(&mut self.all);
        let known = |id: ServerId| before.iter().find(|(weight, _)| weight.server == id);
        self.all = servers
            .map(|weight| (weight, known(weight.server).map_or(0, |(_, owed)| *owed)))
            .collect();
        let had = |w: &Weight| {
            let kept = known(w.server).is_some_and(|(before, _)| before.weight > 0);
            kept && w.weight > 0 && u64::from(w.cpu_permille) < STEER_BUSY
        };
        self.all.sort_by_key(|(w, _)| (!had(w), std::cmp::Reverse(w.weight), w.server));
        for (weight, owed) in self.all.iter_mut().skip(least) {
            (weight.weight, *owed) = (0, 0);
        }
        self.all.sort_by_key(|(w, _)| w.server);
        self.made = now;
    }

    /// The index of the server that receives the next block; `None` when no server of the map has room.
    /// The balance of each server grows by its weight at every choice; the server with the largest balance
    /// receives the block, and its balance is reduced by the sum of all weights. So every sequence of choices
    /// approximates the weights as closely as whole blocks allow, without randomness.
    pub(crate) fn choose(&mut self, rooms: &[ServerRoom]) -> Option<usize> {
        let mut sum = 0;
        let mut best: Option<(i64, usize, usize)> = None;
        for (k, (weight, owed)) in self.all.iter_mut().enumerate() {
            let Ok(i) = rooms.binary_search_by_key(&weight.server, |room| room.server) else {
                continue;
            };
            if weight.weight == 0 || rooms[i].free == 0 {
                continue;
            }
            *owed += weight.weight as i64;
            sum += weight.weight as i64;
            if best.is_none_or(|(most, ..)| *owed > most) {
                best = Some((*owed, k, i));
            }
        }
        let (_, k, i) = best?;
        self.all[k].1 -= sum;
        Some(i)
    }

    fn shown(&self) -> Vec<Weight> {
        self.all.iter().map(|(weight, _)| *weight).collect()
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of::<Weights>() + self.all.capacity() * size_of::<(Weight, i64)>()
    }
}

impl Catalog {
    fn weigh(&self, (server, state): (ServerId, &Server)) -> Weight {
        let (free, load) = (state.spare(), state.load);
        // Free units times the factor in thousandths: at most 2^32 * 1000.
        let weight = u64::from(free) * load.grade();
        let free = free / self.units().whole();
        Weight { server, weight, free, cpu_permille: load.cpu_permille() }
    }

    /// The least number of servers for a job: as many as its capacity and its traffic need.
    fn servers_for(&self, expected: Estimate) -> usize {
        let count = self.pool.servers().count().max(1) as u64;
        let bytes = self.pool.servers().map(|(_, server)| u64::from(server.total)).sum::<u64>()
            * self.units().bytes()
            / count;
        let holding = expected.bytes.div_ceil(bytes.max(1));
        let moving = expected.bytes_per_s.div_ceil(HINT_SERVER_BYTES_PER_S);
        holding.max(moving).clamp(1, count) as usize
    }

    /// Removes and returns the weights of a job for the duration of an allocation; `None` when it has no
    /// hints.
    pub(crate) fn take_weights(&mut self, j: u32) -> Option<Box<Weights>> {
        if !self.jobs[j].hints.given() {
            return None;
        }
        let weights = self.jobs[j].weights.take();
        let servers = self.pool.servers().count();
        match weights {
            Some(weights)
                if self.now.since(weights.made) < STEER_EVERY && weights.all.len() == servers =>
            {
                Some(weights)
            }
            before => {
                let mut weights = before.unwrap_or_default();
                let least = self.servers_for(Estimate::of(&self.jobs[j].hints, &self.supply()));
                weights.make(self.pool.servers().map(|s| self.weigh(s)), least, self.now);
                Some(weights)
            }
        }
    }

    /// A job's weights for its next block, in order of server; empty when it has no hints.
    pub(crate) fn weights_of(&self, j: u32) -> Vec<Weight> {
        let job = &self.jobs[j];
        if !job.hints.given() {
            return Vec::new();
        }
        let mut weights = job.weights.as_deref().cloned().unwrap_or_default();
        let least = self.servers_for(Estimate::of(&job.hints, &self.supply()));
        weights.make(self.pool.servers().map(|s| self.weigh(s)), least, self.now);
        weights.shown()
    }

    /// The weights of a job; for its own token without naming the servers.
    pub(crate) fn job_weights(
        &self,
        actor: crate::Actor,
        job: JobId,
    ) -> Result<crate::Reply, crate::CatalogError> {
        let j = self.admit(actor, job)?;
        let mut weights = self.weights_of(j);
        if actor.job.is_some() {
            for weight in &mut weights {
                (weight.server, weight.free, weight.cpu_permille) = (ServerId(0), 0, 0);
            }
            weights.sort_by_key(|weight| std::cmp::Reverse(weight.weight));
        }
        let mut tiers = self.tier_weights_of(j);
        tiers.iter_mut().take(1).for_each(|memory| memory.free /= self.whole());
        if actor.job.is_some() {
            tiers.iter_mut().for_each(|tier| (tier.free, tier.bytes_per_s) = (0, 0));
        }
        let expected = Estimate::of(&self.jobs[j].hints, &self.supply());
        Ok(crate::Reply::Weights { expected, weights, tiers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(n: u32, weight: u64) -> Weight {
        Weight { server: ServerId(n), weight, free: 100, cpu_permille: 0 }
    }

    fn rooms(free: &[u32]) -> Vec<ServerRoom> {
        let room = |(n, &free): (u32, &u32)| ServerRoom { server: ServerId(n), free };
        (1..).zip(free).map(room).collect()
    }

    fn made(weights: &[u64], least: usize) -> Weights {
        let mut all = Weights::default();
        all.make((1..).zip(weights).map(|(n, &w)| server(n, w)), least, Time::ZERO);
        all
    }

    #[test]
    fn every_run_of_choices_is_as_near_to_the_weights_as_blocks_can_be() {
        let weights = [5, 1, 30, 7, 13];
        let mut all = made(&weights, weights.len());
        let sum: u64 = weights.iter().sum();
        let rooms = rooms(&[1; 5]);
        let mut given = [0u64; 5];
        for n in 1..=10_000u64 {
            given[all.choose(&rooms).expect("there is room")] += 1;
            for (given, weight) in given.iter().zip(weights) {
                let due = n as f64 * weight as f64 / sum as f64;
                assert!((*given as f64 - due).abs() <= 1.0 + 1e-9 * due, "{given} of {due}");
            }
        }
    }

    #[test]
    fn who_has_no_room_or_no_weight_gives_nothing() {
        let mut all = made(&[5, 0, 5, 900], 4);
        let rooms = rooms(&[9, 9, 0, 0]);
        assert!((0..50).all(|_| all.choose(&rooms) == Some(0)));
        assert_eq!(all.choose(&super::tests::rooms(&[0, 9, 0, 0])), None);
    }

    #[test]
    fn a_small_job_stays_where_it_is_until_a_server_is_full_or_busy() {
        let mut all = made(&[7, 9, 8], 1);
        let chosen = |all: &mut Weights| all.choose(&rooms(&[9, 9, 9]));
        assert_eq!(chosen(&mut all), Some(1));
        let again = |all: &mut Weights, cpu, weights: [u64; 3]| {
            let servers = (1..).zip(weights).map(|(n, w)| match n {
                2 => Weight { cpu_permille: cpu, ..server(n, w) },
                _ => server(n, w),
            });
            all.make(servers, 1, Time::ZERO);
        };
        again(&mut all, 100, [7, 2, 8]);
        assert_eq!(chosen(&mut all), Some(1));
        again(&mut all, 850, [7, 2, 8]);
        assert_eq!(chosen(&mut all), Some(2));
        again(&mut all, 0, [7, 2, 0]);
        assert_eq!(chosen(&mut all), Some(0));
    }

    #[test]
    fn load_is_smoothed_and_graded_between_the_thresholds() {
        let mut load = ServerLoad::default();
        assert_eq!((load.grade(), load.cpu_permille()), (1000, 0));
        load.heard(1000, Time::from_millis(0));
        assert_eq!((load.grade(), load.cpu_permille()), (100, 1000));
        // Half of the smoothing time covers half of the difference.
        load.heard(0, Time::from_millis(1000));
        assert_eq!((load.grade(), load.cpu_permille()), (1000, 500));
        let mut load = ServerLoad::default();
        load.heard(700, Time::from_millis(0));
        assert_eq!(load.grade(), 500);
    }
}
