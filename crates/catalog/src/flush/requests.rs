//! Requests of clients about flushes of live prefixes: to begin one, for its progress, for its location, and
//! to cancel it.

use super::barrier::Barrier;
use super::live::Live;
use crate::reply::{FlushProgress, FlushState};
use crate::{Actor, Catalog, CatalogError, Effect, Reply};
use honeycomb_types::limits::{BARRIER_BELOW_MAX, FLUSH_BELOW_MAX};
use honeycomb_types::{JobId, flush_directory, split_path};

impl Catalog {
    /// The directory of a place, under the flush root and the job's own directory, and the full place.
    fn external(&self, j: u32, place: &str) -> Result<(String, String), CatalogError> {
        let job = &self.jobs[j].name;
        if self.pool.servers().any(|(_, server)| !server.flush) || self.pool.is_empty() {
            return Err(match self.recovering() {
                true => CatalogError::Recovering,
                false => CatalogError::FlushUnavailable { path: place.into() },
            });
        }
        let root = self.pool.servers().next().map_or("", |(_, server)| &server.flush_root);
        let root = root.trim_end_matches('/');
        if !place.contains("://") && !place.starts_with('/') {
            let directory = flush_directory(job, place)?;
            let full = format!("{root}/{directory}");
            return Ok((directory, full));
        }
        let own = flush_directory(job, "x")?;
        let own = own.trim_end_matches('x');
        let full = place.strip_prefix("file://").unwrap_or(place).trim_end_matches('/');
        let below = full.strip_prefix(root).and_then(|rest| rest.strip_prefix('/'));
        let Some(path) = below.and_then(|rest| rest.strip_prefix(own)) else {
            let allowed = format!("{root}/{own}").into();
            return Err(CatalogError::FlushElsewhere { place: place.into(), allowed });
        };
        let directory = flush_directory(job, path)?;
        if directory != format!("{own}{path}") {
            let allowed = format!("{root}/{directory}").into();
            return Err(CatalogError::FlushElsewhere { place: place.into(), allowed });
        }
        Ok((directory, full.into()))
    }

    pub(crate) fn flush_prefix(
        &mut self,
        actor: Actor,
        job: JobId,
        path: &str,
        place: &str,
        (below, barrier): (&[&str], bool),
    ) -> Result<Reply, CatalogError> {
        let j = self.admit(actor, job)?;
        self.need_write(actor, "flush the prefix", path)?;
        self.need_going("flush a live prefix")?;
        let (what, limit) = match barrier {
            true => ("prefixes of a subtree that is flushed with a barrier", BARRIER_BELOW_MAX),
            false => ("prefixes of a subtree that is flushed", FLUSH_BELOW_MAX),
        };
        if below.len() > limit {
            return Err(CatalogError::LimitExceeded { what, limit: limit as u64 });
        }
        below.iter().try_for_each(|path| split_path(path).map(drop))?;
        let (n, directory, full) = self.flushable(actor, j, path, place)?;
        let prefix = self.dag.nodes[n].id;
        let same = |number: u64, live: &Live| {
            let group = if barrier { number } else { 0 };
            live.prefix == prefix && *live.directory == *directory && live.group == group
        };
        if let Some((&number, _)) = self.flushes.live.iter().find(|(n, live)| same(**n, live)) {
            return Ok(Reply::Flushing { number, place: full.into() });
        }
        let mut begun = vec![(n, directory)];
        for below in below.iter().filter(|_| barrier) {
            let path = if path.is_empty() { (*below).into() } else { format!("{path}/{below}") };
            let place = format!("{}/{below}", place.trim_end_matches('/'));
            let (n, directory, _) = self.flushable(actor, j, &path, &place)?;
            begun.push((n, directory));
        }
        let owns = |n, directory: &str| self.directory_of(n).is_some_and(|own| own == *directory);
        let begun: Vec<_> = begun.into_iter().map(|(n, to)| (n, owns(n, &to), to)).collect();
        for (n, own, directory) in &begun {
            if *own && self.is_journaled(*n) {
                return Err(CatalogError::JournalThere { path: path.into(), place: full.into() });
            }
            if !own && self.flushes.claimed.contains(directory.as_str()) {
                return Err(CatalogError::FlushPathTaken { path: full.into() });
            }
        }
        let (members, mut group) = (begun.len(), 0);
        for (i, (n, own, directory)) in begun.into_iter().enumerate() {
            if !own {
                self.flushes.claimed.insert(directory.as_str().into());
            }
            let number = self.number_of_flush();
            group = if i == 0 { number } else { group };
            let named = below.iter().filter(|_| i == 0).map(|path| (*path).into());
            let names = (self.dag.path_of(n).into(), named.collect());
            let prefix = self.dag.nodes[n].id;
            let mut live = Live::new(prefix, job, directory.into(), names, !own, 0, Vec::new());
            live.group = if barrier { group } else { 0 };
            self.flushes.live.insert(number, live);
            self.flushes.unwritten.lives(number);
        }
        if barrier {
            self.flushes.barriers.insert(group, Barrier::new(members));
        }
        Ok(Reply::Flushing { number: group, place: full.into() })
    }

    /// A prefix that may be flushed to a place: its directory, and the full place.
    fn flushable(
        &mut self,
        actor: Actor,
        j: u32,
        path: &str,
        place: &str,
    ) -> Result<(u32, String, String), CatalogError> {
        let n = self.live_prefix(j, path)?;
        self.need_own(actor, n, "flush the prefix", path)?;
        self.need_loaded(n)?;
        self.need_content(n)?;
        let (directory, full) = self.external(j, place)?;
        Ok((n, directory, full))
    }

    /// The progress of a flush that a job requested.
    pub(crate) fn flush_info(
        &self,
        actor: Actor,
        job: JobId,
        number: u64,
    ) -> Result<Reply, CatalogError> {
        if number == 0 {
            return self.flushed_at_end(actor, job);
        }
        let j = self.admit(actor, job)?;
        if self.flushes.live.get(&number).is_some_and(|live| live.job == job) {
            let progress = self.progress_of(number).expect("looked up just now");
            return Ok(Reply::FlushInfo(progress));
        }
        let name = &self.jobs[j].name;
        let flush = self.flushes.all.get(&number);
        if let Some(flush) = flush.filter(|flush| flush.live && flush.job_name == *name) {
            return Ok(Reply::FlushInfo(flush.progress()));
        }
        let ended = self.flushes.ended.iter().rev().find(|ended| ended.number == number);
        match ended.filter(|ended| ended.job_name == *name) {
            Some(ended) => Ok(Reply::FlushInfo(ended.progress.clone())),
            None => Err(CatalogError::UnknownFlush { number }),
        }
    }

    /// The progress of all flushes made by the end of a job, together. A holder of the job's token may ask
    /// although the job has ended.
    fn flushed_at_end(&self, actor: Actor, job: JobId) -> Result<Reply, CatalogError> {
        if actor.job.is_some_and(|own| own != job) {
            return Err(CatalogError::UnknownJob { job });
        }
        let lost = self.flushes.lost_of.iter().find(|(of, _)| *of == job);
        let mut sum = FlushProgress { state: FlushState::Done, ..Default::default() };
        for flush in self.flushes.all.values().filter(|flush| flush.ended == Some(job)) {
            let progress = flush.progress();
            sum.parts += progress.parts;
            sum.done += progress.done;
            sum.bytes += progress.bytes;
            let fails = matches!(sum.state, FlushState::Failing(_));
            sum.state = if fails { sum.state } else { progress.state };
        }
        if let Some((_, why)) = lost {
            sum.state = FlushState::Lost(why.clone());
        }
        Ok(Reply::FlushInfo(sum))
    }

    /// The location of a flush under the job's name, and the flush under way there: of this job, or of an
    /// ended job of that name.
    pub(crate) fn locate_flush(
        &self,
        actor: Actor,
        job: JobId,
        place: &str,
        path: &str,
    ) -> Result<Reply, CatalogError> {
        let j = self.admit(actor, job)?;
        let (directory, place) = self.external(j, place)?;
        let prefix = self.live_prefix(j, path).ok().map(|n| self.dag.nodes[n].id);
        let live = self.flushes.live.iter().find(|(number, live)| {
            let whole = live.group == 0 || live.group == **number;
            whole && Some(live.prefix) == prefix && *live.directory == *directory
        });
        let live = live.map(|(number, _)| *number);
        let last = self.flushes.queues.get(&*directory).and_then(|queue| queue.back());
        let lost = self.flushes.lost_at.iter().find(|(at, _)| **at == *directory);
        let progress = match (last, lost) {
            (Some(number), _) => self.flushes.all[number].progress(),
            (None, Some((_, why))) => {
                FlushProgress { state: FlushState::Lost(why.clone()), ..Default::default() }
            }
            (None, None) => FlushProgress::default(),
        };
        Ok(Reply::FlushPlace { place: place.into(), progress, live })
    }

    pub(crate) fn cancel_flush(
        &mut self,
        actor: Actor,
        job: JobId,
        number: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        self.admit(actor, job)?;
        self.need_write(actor, "cancel the flush", "")?;
        self.flush_info(actor, job, number)?;
        if let Some(live) = self.flushes.live.get(&number) {
            if let Some(n) = self.dag.by_id(live.prefix) {
                let path = self.flushes.live[&number].address.clone();
                self.need_own(actor, n, "cancel the flush", &path)?;
            }
            self.give_up_live(number, FlushState::Lost("it was cancelled".into()), effects);
        }
        Ok(Reply::Done)
    }
}
