//! Loads a flush into a new prefix, as a client.
//!
//! The prefix is created in the state `loading`: its structures cannot be opened until everything is loaded
//! and the prefix is published, in one step. The loader reads the objects with its own credentials and writes
//! their contents like any client, so that the block size and the number of servers may differ from those of
//! the flush. If the loader dies, the prefix ends with its lease, or with the next load with `again`.

use crate::{Result, of_flush};
use honeycomb_client::{Any, Ask, Custom, CustomOptions, Error, File, JobClient, Kv, Queue};
use honeycomb_tiers::{Access, Flushed, FlushedStructure, Place};
use honeycomb_types::limits::{LARGE_FRACTION, SLOTS};
use honeycomb_types::{KindSpec, OperationSpec};
use honeycomb_wire::Status;
use honeycomb_wire::batch::BatchOp;
use honeycomb_wire::messages::PrefixOptions;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Structures and parts of stores that are filled at the same time.
const AT_A_TIME: usize = 4;
/// Percent of a store's blocks that is in use after the load. Initial blocks for this avoid splits.
const FILLED_PERCENT: u64 = 60;
/// Maximum number of outstanding requests to a store.
const ANSWERS: usize = 256;
/// Progress of a store is reported after this many bytes.
const NEWS: u64 = 1 << 20;
/// Items per request to a queue.
const ITEMS: usize = 256;

/// The options of a load.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// The prefix.
    pub path: String,
    /// Its lease in milliseconds; 0 takes the job's.
    pub lease_ms: u32,
    /// The prefix never expires.
    pub pinned: bool,
    /// The prefix outlives its job.
    pub persist: bool,
    /// Replaces an unfinished load of the same prefix.
    pub again: bool,
}

/// The result of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Number of structures.
    pub structures: usize,
    /// Bytes of the objects that were read.
    pub bytes: u64,
}

/// One structure, or a share of the parts of a store.
struct Task<'a> {
    structure: &'a FlushedStructure,
    made: usize,
    share: usize,
    of: usize,
}

/// Bytes loaded so far. Several threads load; the lock keeps their reports in ascending order.
struct LoadProgress<'a> {
    bytes: Mutex<u64>,
    of: u64,
    look: &'a (dyn Fn(u64, u64) + Sync),
}

impl LoadProgress<'_> {
    fn add(&self, bytes: u64) {
        let mut done = self.bytes.lock().unwrap_or_else(|e| e.into_inner());
        *done += bytes;
        (self.look)(*done, self.of);
    }
}

/// Loads the flush at a place. It calls `look` now and then with the loaded bytes and all bytes.
pub fn load(
    on: JobClient<'_>,
    place: &Place,
    access: &Access,
    load: &Load,
    look: &(dyn Fn(u64, u64) + Sync),
) -> Result<Loaded> {
    let flushed = Flushed::at(place.clone(), access).map_err(of_flush)?;
    need_known(on, &flushed)?;
    hidden(on, load, || fill(on, place, access, load, &flushed, look))
}

/// Refuses a flush with structures of custom kinds that no server of the cluster can load.
pub fn need_known(on: JobClient<'_>, flushed: &Flushed) -> Result {
    let structures = &flushed.manifest().structures;
    let built_in = |s: &&FlushedStructure| matches!(s.kind.as_str(), "file" | "queue" | "kv");
    let custom: Vec<&FlushedStructure> = structures.iter().filter(|s| !built_in(s)).collect();
    if custom.is_empty() {
        return Ok(());
    }
    let kinds = on.client.kinds()?;
    for FlushedStructure { name, kind, .. } in custom {
        let known = kinds.iter().find(|(spec, servers)| spec.name == *kind && *servers > 0);
        let why = match known {
            None => "no memory server of this cluster serves it",
            Some((spec, _)) if spec.loader().is_none() => "none of its operations loads a flush",
            Some(_) => continue,
        };
        let text = format!("cannot load '{name}' of kind '{kind}': {why}");
        return Err(Error::new(Status::UnknownKind, text));
    }
    Ok(())
}

/// Creates the prefix of a load, fills it and publishes it. It is removed if that fails.
pub fn hidden<T>(on: JobClient<'_>, load: &Load, fill: impl FnOnce() -> Result<T>) -> Result<T> {
    let JobClient { client, job } = on;
    begin(on, load)?;
    client.keep(job, std::slice::from_ref(&load.path));
    let made = fill().and_then(|made| {
        client.publish_prefix(job, &load.path)?;
        Ok(made)
    });
    if made.is_err() {
        // If this fails, its lease ends it.
        let _ = client.remove_prefix(job, &load.path);
    }
    client.release(job, std::slice::from_ref(&load.path));
    made
}

/// Creates the prefix, or with `again` replaces that of an unfinished load.
pub fn begin(on: JobClient<'_>, load: &Load) -> Result {
    let JobClient { client, job } = on;
    let Load { path, lease_ms, pinned, persist, again } = load;
    let options = PrefixOptions {
        lease_ms: *lease_ms,
        pinned: *pinned,
        loading: true,
        persist: *persist,
        ..PrefixOptions::default()
    };
    match client.create_prefix(job, path, &[], options.clone()) {
        Err(Error { status: Status::AlreadyExists, .. }) if is_loading(on, path) => {
            if !again {
                let text = format!(
                    "cannot load {path}: another load of it is running or was interrupted; load it \
                     with `again` (--again) to replace that one"
                );
                return Err(Error::new(Status::Loading, text));
            }
            client.remove_prefix(job, path)?;
            client.create_prefix(job, path, &[], options)?;
        }
        created => drop(created?),
    }
    Ok(())
}

/// Whether the prefix is still loading.
fn is_loading(on: JobClient<'_>, path: &str) -> bool {
    matches!(on.client.open(on.job, path), Err(Error { status: Status::Loading, .. }))
}

/// Writes the contents of a flush to its prefix.
pub fn fill(
    on: JobClient<'_>,
    place: &Place,
    access: &Access,
    load: &Load,
    flushed: &Flushed,
    look: &(dyn Fn(u64, u64) + Sync),
) -> Result<Loaded> {
    let structures = &flushed.manifest().structures;
    let bytes = |s: &FlushedStructure| s.parts.iter().map(|part| part.bytes).sum::<u64>();
    let all: u64 = structures.iter().map(bytes).sum();
    let (mut tasks, mut made) = (Vec::new(), Vec::new());
    for structure in structures {
        made.push(create(on, load, structure)?);
        let large = structure.parts.iter().any(|part| part.is_of_extents());
        // Large values are found by a list of all of them, which one task reads.
        let of = match structure.kind.as_str() {
            "kv" if !large => structure.parts.len().clamp(1, AT_A_TIME),
            _ => 1,
        };
        tasks.extend((0..of).map(|share| Task { structure, made: made.len() - 1, share, of }));
    }
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let done = LoadProgress { bytes: Mutex::new(0), of: all, look };
    let why: Mutex<Option<Error>> = Mutex::new(None);
    let work = || -> Result {
        let own = Flushed::at(place.clone(), access).map_err(of_flush)?;
        if own.manifest() != flushed.manifest() {
            let text = format!(
                "the load failed: {place} was replaced by a later flush meanwhile; load it again"
            );
            return Err(Error::new(Status::Removed, text));
        }
        let tell = |bytes: u64| {
            done.add(bytes);
            match failed.load(Relaxed) {
                true => Err(Error::new(Status::Removed, "loading another part failed")),
                false => Ok(()),
            }
        };
        while let Some(task) = tasks.get(next.fetch_add(1, Relaxed)) {
            match &made[task.made] {
                Any::File(file) => load_file(&own, file, task, &tell)?,
                Any::Queue(queue) => load_queue(&own, queue, task, &tell)?,
                Any::Kv(kv) => load_kv(&own, kv, task, &tell)?,
                Any::Custom(custom) => load_custom(&own, custom, task, &tell)?,
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        for _ in 0..tasks.len().min(AT_A_TIME) {
            scope.spawn(|| {
                if let Err(e) = work() {
                    failed.store(true, Relaxed);
                    let mut why = why.lock().unwrap_or_else(|e| e.into_inner());
                    why.get_or_insert(e);
                }
            });
        }
    });
    match why.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some(e) => Err(e),
        None => {
            structures.iter().zip(&made).try_for_each(|(s, made)| verify(s, made))?;
            Ok(Loaded { structures: structures.len(), bytes: all })
        }
    }
}

fn address(path: &str, name: &str) -> String {
    if name.is_empty() { path.to_owned() } else { format!("{path}:{name}") }
}

/// The bounds of a structure: those of the flushed one, or room for its items if that is more. Blocks of a
/// live structure are copied one after the other. If items moved from the first to the last block meanwhile,
/// the copies together exceed its bounds.
fn bounds(s: &FlushedStructure, items: u64, bytes: u64) -> (u64, u64) {
    let bound = |most: u64, there: u64| if most == 0 { 0 } else { most.max(there) };
    (bound(s.max_items, items), bound(s.max_bytes, bytes))
}

/// Creates an empty structure with the options of the flushed one.
fn create(on: JobClient<'_>, load: &Load, s: &FlushedStructure) -> Result<Any> {
    let JobClient { client, job } = on;
    let address = address(&load.path, &s.name);
    let parts = s.parts.iter().filter(|part| !part.is_of_extents());
    let (bytes, items) = parts.fold((0, 0), |(b, i), part| (b + part.bytes, i + part.items));
    Ok(match s.kind.as_str() {
        "file" => Any::File(client.create_file(job, &address, 1, false)?),
        "queue" => {
            let all = s.parts.iter().map(|part| part.bytes).sum();
            let (max_items, max_bytes) = bounds(s, items, all);
            Any::Queue(client.create_queue(job, &address, max_items, max_bytes, false)?)
        }
        "kv" => {
            let kv = client.create_kv(job, &address, 1, false)?;
            let block = kv.plain_limit() as u64 * LARGE_FRACTION;
            let blocks = (bytes * 100 / FILLED_PERCENT).div_ceil(block).clamp(1, SLOTS.into());
            if blocks == 1 {
                return Ok(Any::Kv(kv));
            }
            drop(kv);
            client.remove_structure(job, &address)?;
            Any::Kv(client.create_kv(job, &address, blocks as u32, false)?)
        }
        custom => {
            let (max_items, max_bytes) = bounds(s, items, bytes);
            let options = CustomOptions { max_items, max_bytes, ..CustomOptions::default() };
            Any::Custom(client.create_custom(job, &address, custom, options)?)
        }
    })
}

/// Checks that a structure is complete: a server may have been lost during the load.
fn verify(s: &FlushedStructure, made: &Any) -> Result {
    let there = match made {
        Any::File(file) => file.size()?,
        Any::Queue(queue) => queue.counts()?.items,
        Any::Kv(kv) => kv.length()?,
        Any::Custom(custom) => match custom.spec().counter() {
            Some(counter) => {
                let counted = custom.call_each(&counter.name, Ask::default())?;
                counted.iter().fold(0, |sum, answered| answered.value.saturating_add(sum))
            }
            // Only its kind knows their number. Each of them was accepted.
            None => return Ok(()),
        },
    };
    let parts = s.parts.iter().filter(|part| !part.is_of_extents());
    let items = parts.map(|part| part.items).sum::<u64>();
    if there == items {
        return Ok(());
    }
    let text = format!(
        "'{}' has {there} items after the load, but the flush has {items}: a memory server was \
         lost meanwhile, or the objects do not match the manifest; load it again",
        s.name
    );
    Err(Error::new(Status::DataLost, text))
}

/// Reports loaded bytes; answers an error when another task has failed.
type Tell<'a> = dyn Fn(u64) -> Result + 'a;

fn load_file(flushed: &Flushed, file: &File, task: &Task<'_>, tell: &Tell<'_>) -> Result {
    for part in &task.structure.parts {
        let bytes = flushed.bytes_of(part).map_err(of_flush)?;
        if !bytes.is_empty() {
            file.write_all(&bytes)?;
        }
        tell(part.bytes)?;
    }
    if task.structure.sealed {
        file.seal()?;
    }
    Ok(())
}

fn load_queue(flushed: &Flushed, queue: &Queue, task: &Task<'_>, tell: &Tell<'_>) -> Result {
    let mut items = flushed.queue(&task.structure.name).map_err(of_flush)?;
    loop {
        let (mut some, mut bytes) = (Vec::new(), 0);
        while some.len() < ITEMS && bytes < NEWS {
            let Some(item) = items.next().transpose().map_err(of_flush)? else { break };
            bytes += item.len() as u64 + 4;
            some.push(item);
        }
        if some.is_empty() {
            break;
        }
        let slices: Vec<&[u8]> = some.iter().map(Vec::as_slice).collect();
        queue.put_many(&slices, Duration::ZERO).map_err(|(_, e)| e)?;
        tell(bytes)?;
    }
    if task.structure.sealed {
        queue.close()?;
    }
    Ok(())
}

fn load_kv(flushed: &Flushed, kv: &Kv, task: &Task<'_>, tell: &Tell<'_>) -> Result {
    let name = &task.structure.name;
    let entries = flushed.share_of_kv(name, task.share, task.of).map_err(of_flush)?;
    let mut pipeline = kv.pipeline();
    let mut bytes = 0;
    for entry in entries {
        let (key, value) = entry.map_err(of_flush)?;
        bytes += (key.len() + value.len()) as u64 + 8;
        if value.len() > kv.plain_limit() {
            kv.set(&key, &value)?;
        } else {
            pipeline.ask(BatchOp::Set { key: &key, value: &value });
        }
        while pipeline.len() >= ANSWERS {
            pipeline.next().transpose()?;
        }
        if bytes >= NEWS {
            tell(std::mem::take(&mut bytes))?;
        }
    }
    while let Some(answer) = pipeline.next() {
        answer?;
    }
    tell(bytes)
}

/// The operation that loads the items of a structure. The servers of its kind may have changed since the
/// kinds were checked.
fn loader<'a>(kind: &'a KindSpec, structure: &str) -> Result<&'a OperationSpec> {
    kind.loader().ok_or_else(|| {
        let text = format!(
            "cannot load '{structure}' of kind '{}': none of its operations loads a flush any \
             more; load it again when the servers of the kind have one",
            kind.name
        );
        Error::new(Status::WrongKind, text)
    })
}

fn load_custom(flushed: &Flushed, custom: &Custom, task: &Task<'_>, tell: &Tell<'_>) -> Result {
    let loader = loader(custom.spec(), &task.structure.name)?;
    let mut bytes = 0;
    for item in flushed.items(task.structure).map_err(of_flush)? {
        let item = item.map_err(of_flush)?;
        bytes += item.len() as u64 + 4;
        custom.call(&loader.name, Ask { payload: &item, ..Ask::default() })?;
        if bytes >= NEWS {
            tell(std::mem::take(&mut bytes))?;
        }
    }
    tell(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use honeycomb_types::{Kind, Route, Router};

    fn log(operations: Vec<OperationSpec>) -> KindSpec {
        let kind = Kind::from_code(0x80).expect("a custom kind");
        KindSpec { kind, name: "log".into(), router: Router::Index, operations }
    }

    #[test]
    fn load_of_a_kind_that_has_lost_its_loading_operation_is_refused_by_name() {
        let write = OperationSpec::write(1, "restore", Route::Tail).with_payload();
        let before = log(vec![write.clone().that_loads()]);
        assert_eq!(loader(&before, "records").unwrap().name, "restore");
        let now = log(vec![write]);
        let refused = loader(&now, "records").unwrap_err();
        assert_eq!(refused.status, Status::WrongKind);
        let text = refused.message;
        assert!(text.contains("'records'") && text.contains("'log'"), "{text}");
    }

    /// Regression: a bounded structure of a custom kind had less room than its items needed.
    #[test]
    fn bounds_are_widened_to_the_items_and_none_stay_none() {
        let mut s = FlushedStructure {
            name: "records".into(),
            kind: "log".into(),
            sealed: false,
            max_items: 5,
            max_bytes: 100,
            parts: Vec::new(),
        };
        assert_eq!(bounds(&s, 7, 90), (7, 100));
        (s.max_items, s.max_bytes) = (0, 0);
        assert_eq!(bounds(&s, 7, 90), (0, 0));
    }

    /// Regression: threads counted first and reported later, so that a smaller number could follow a larger.
    #[test]
    fn progress_only_becomes_more() {
        let reported = Mutex::new(Vec::new());
        let look = |done: u64, _| {
            std::thread::yield_now();
            reported.lock().expect("no thread panics").push(done);
        };
        let done = LoadProgress { bytes: Mutex::new(0), of: 400, look: &look };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| done.add(1)));
            }
        });
        assert!(reported.into_inner().expect("no thread panics").into_iter().eq(1..=400));
    }
}
