//! Flushes a prefix with its descendants, and loads them.
//!
//! Each prefix is a separate flush, in the place of the top prefix plus its path from there. The top prefix
//! is flushed last, when all others are complete, and its manifest names them. A loader therefore needs no
//! listing, and every named flush exists. The flushes do not show one common moment, unless the controller
//! flushes them behind a barrier (`flush_at_once`).

use crate::load::{self, Load, Loaded};
use crate::{Result, of_flush};
use honeycomb_client::{Error, FlushTicket, JobClient};
use honeycomb_env::Clock;
use honeycomb_tiers::{Access, Flushed, Place};
use honeycomb_types::limits::{FLUSH_LOOK_FIRST, FLUSH_LOOK_MAX};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum number of concurrent flushes.
const AT_A_TIME: usize = 8;
/// Maximum number of names in a message.
const NAMED: usize = 8;

/// One flushed prefix of a subtree.
#[derive(Clone, Debug)]
pub struct Whole {
    /// Path of the prefix.
    pub path: String,
    /// Place of its flush.
    pub place: String,
    /// Number of its blocks.
    pub parts: u32,
    /// Bytes written.
    pub bytes: u64,
}

/// Progress of the flush of a subtree.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Number of complete prefixes.
    pub done: usize,
    /// Number of all prefixes.
    pub of: usize,
    /// Bytes written.
    pub bytes: u64,
    /// Error of a flush that is being retried.
    pub failing: Option<String>,
}

fn joined(above: &str, below: &str) -> String {
    match (above.trim_matches('/'), below) {
        (above, "") => above.to_owned(),
        ("", below) => below.to_owned(),
        (above, below) => format!("{above}/{below}"),
    }
}

/// Flushes a prefix and its live descendants and waits for them, in the order of their paths, the top prefix
/// last. When one flush fails, no further flush is begun; running flushes are completed.
pub fn flush(
    on: JobClient<'_>,
    path: &str,
    place: &str,
    look: &mut dyn FnMut(&Progress),
) -> Result<Vec<Whole>> {
    let below = below(on, path)?;
    // Prefixes that are not flushed yet must not expire.
    let kept = [path.to_owned()];
    on.client.keep(on.job, &kept);
    let flushed = Flushing::new(on, path, place, &below).run(look);
    on.client.release(on.job, &kept);
    flushed
}

/// The paths of the live descendants of a prefix, relative to it and sorted.
fn below(on: JobClient<'_>, path: &str) -> Result<Vec<String>> {
    // If the prefix has ended, this error says why.
    on.client.lease(on.job, path)?;
    let dag = on.dag()?;
    let mut below: Vec<String> =
        dag.paths_below(dag.find(path)?).into_iter().map(|(_, path)| path).collect();
    below.sort();
    Ok(below)
}

/// Flushes the subtree as it was at one moment: all flushes complete together, or none does.
pub fn flush_at_once(
    on: JobClient<'_>,
    path: &str,
    place: &str,
    look: &mut dyn FnMut(&Progress),
) -> Result<Vec<Whole>> {
    let JobClient { client, job } = on;
    let below = below(on, path)?;
    let ticket = client.begin_barrier_flush(job, path, place, &below)?;
    let of = below.len() + 1;
    let last = client.await_flush(job, &ticket, &mut |flush| {
        let done = if flush.done { of } else { 0 };
        look(&Progress { done, of, bytes: flush.bytes, failing: flush.failing.clone() });
        true
    })?;
    let mut all = Vec::new();
    for (number, below) in (ticket.number + 1..).zip(&below) {
        let flush = client.flush_progress(job, number)?;
        let place = format!("{}/{below}", ticket.place.trim_end_matches('/'));
        let (parts, bytes) = (flush.parts, flush.bytes);
        all.push(Whole { path: joined(path, below), place, parts, bytes });
    }
    let (parts, bytes) = (last.parts, last.bytes);
    all.push(Whole { path: joined(path, ""), place: ticket.place, parts, bytes });
    Ok(all)
}

struct Flushing<'a> {
    on: JobClient<'a>,
    path: &'a str,
    place: &'a str,
    below: &'a [String],
    waiting: VecDeque<&'a str>,
    under_way: BTreeMap<&'a str, FlushTicket>,
    whole: Vec<Whole>,
    failed: Option<(String, Error)>,
}

impl<'a> Flushing<'a> {
    fn new(on: JobClient<'a>, path: &'a str, place: &'a str, below: &'a [String]) -> Flushing<'a> {
        let waiting = below.iter().map(String::as_str).collect();
        let (under_way, whole, failed) = (BTreeMap::new(), Vec::new(), None);
        Flushing { on, path, place, below, waiting, under_way, whole, failed }
    }

    fn run(mut self, look: &mut dyn FnMut(&Progress)) -> Result<Vec<Whole>> {
        let clock = Clock::start();
        let mut pause = FLUSH_LOOK_FIRST;
        loop {
            self.begin();
            if self.under_way.is_empty() {
                break;
            }
            let whole = self.whole.len();
            look(&self.look());
            pause = if self.whole.len() > whole { FLUSH_LOOK_FIRST } else { pause };
            clock.sleep_until(clock.now() + pause);
            pause = (pause * 2).min(FLUSH_LOOK_MAX);
        }
        match self.failed.take() {
            Some((path, why)) => Err(self.failure_of(&path, why)),
            None => Ok(self.whole),
        }
    }

    /// Begins as many flushes as allowed; that of the top prefix when all others are complete.
    fn begin(&mut self) {
        while self.failed.is_none() && self.under_way.len() < AT_A_TIME {
            let JobClient { client, job } = self.on;
            let done = self.whole.len() == self.below.len() && self.under_way.is_empty();
            let (path, begun) = match self.waiting.pop_front() {
                Some(path) => {
                    let place = format!("{}/{path}", self.place.trim_end_matches('/'));
                    (path, client.begin_flush(job, &joined(self.path, path), &place))
                }
                None if done => {
                    ("", client.begin_flush_above(job, self.path, self.place, self.below))
                }
                None => return,
            };
            match begun {
                Ok(ticket) => drop(self.under_way.insert(path, ticket)),
                Err(e) => self.failed = Some((path.to_owned(), e)),
            }
        }
    }

    fn look(&mut self) -> Progress {
        let mut sum = Progress { of: self.below.len() + 1, ..Progress::default() };
        for (path, ticket) in std::mem::take(&mut self.under_way) {
            match self.on.client.flush_progress(self.on.job, ticket.number) {
                Ok(progress) if progress.done => self.whole.push(Whole {
                    path: joined(self.path, path),
                    place: ticket.place,
                    parts: progress.parts,
                    bytes: progress.bytes,
                }),
                Ok(progress) => {
                    sum.bytes += progress.bytes;
                    sum.failing = progress.failing.or(sum.failing);
                    self.under_way.insert(path, ticket);
                }
                Err(e) => {
                    let failed = (path.to_owned(), e);
                    self.failed.get_or_insert(failed);
                }
            }
        }
        sum.done = self.whole.len();
        sum.bytes += self.whole.iter().map(|whole| whole.bytes).sum::<u64>();
        sum
    }

    /// Adds the state of all prefixes to the error of the failed one.
    fn failure_of(&self, failed: &str, why: Error) -> Error {
        let whole: BTreeSet<&str> = self.whole.iter().map(|whole| &*whole.path).collect();
        let all = self.below.iter().map(String::as_str).chain([""]);
        let all = all.map(|path| joined(self.path, path));
        let failed = joined(self.path, failed);
        let left: Vec<String> =
            all.filter(|path| !whole.contains(&**path) && *path != failed).collect();
        let whole: Vec<String> = whole.into_iter().map(str::to_owned).collect();
        let more = format!(
            "the subtree is not flushed: {} failed; complete: {}; not begun: {}; the manifest at \
             {} is unchanged",
            named(&[failed]),
            named(&whole),
            named(&left),
            self.place
        );
        why.with(&more)
    }
}

fn named(paths: &[String]) -> String {
    let shown = |path: &String| if path.is_empty() { "/".to_owned() } else { path.clone() };
    let some: Vec<String> = paths.iter().take(NAMED).map(shown).collect();
    match paths.len() {
        0 => "none".into(),
        n if n > NAMED => format!("{} and {} more", some.join(", "), n - NAMED),
        _ => some.join(", "),
    }
}

/// Loads the flush of a subtree: the prefixes that its manifest names, at the same relative paths. No
/// structure can be opened before everything is loaded; if one prefix fails, all are removed.
pub fn load(
    on: JobClient<'_>,
    place: &Place,
    access: &Access,
    load: &Load,
    look: &(dyn Fn(u64, u64) + Sync),
) -> Result<Loaded> {
    let top = Flushed::at(place.clone(), access).map_err(of_flush)?;
    let below = top.manifest().below.clone();
    let mut all = vec![(String::new(), place.clone(), top)];
    for path in below {
        let place = place.below(&path);
        let flushed = Flushed::at(place.clone(), access).map_err(|e| {
            let text =
                "the manifest of the subtree names this flush; load the other prefixes one by one";
            of_flush(e).with(text)
        })?;
        all.push((path, place, flushed));
    }
    all.iter().try_for_each(|(_, _, flushed)| load::need_known(on, flushed))?;
    let bytes: u64 = all.iter().flat_map(|(_, _, f)| f.manifest().parts()).map(|p| p.bytes).sum();
    let at = |path: &str| Load { path: joined(&load.path, path), ..load.clone() };
    // Intermediate prefixes that had ended before the flush are created empty.
    let mut paths = BTreeSet::new();
    for (path, _, _) in &all {
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        paths.extend(ends.map(|end| &path[..end]).filter(|path| !path.is_empty()));
    }
    load::hidden(on, load, || {
        let mut made = Vec::new();
        let loaded = (|| {
            for path in &paths {
                load::begin(on, &at(path))?;
                made.push(*path);
            }
            let mut loaded = Loaded::default();
            for (path, place, flushed) in &all {
                let before = loaded.bytes;
                let look = |done: u64, _| look(before + done, bytes);
                let one = load::fill(on, place, access, &at(path), flushed, &look)?;
                loaded.structures += one.structures;
                loaded.bytes += one.bytes;
            }
            for path in paths.iter().rev() {
                on.client.publish_prefix(on.job, &at(path).path)?;
            }
            Ok(loaded)
        })();
        if loaded.is_err() {
            for path in made.iter().rev() {
                // If this fails, its lease ends it.
                let _ = on.client.remove_prefix(on.job, &at(path).path);
            }
        }
        loaded
    })
}
