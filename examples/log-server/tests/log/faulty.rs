//! Kinds of logs with a defect: their flushes and loads fail with the reason.

use super::elastic::{fill, flush, flushing_with, load_from, log};
use honeycomb_client::{Client, JobTicket};
use honeycomb_e2e::{LEASE_MS, Scratch, eventually, prefix};
use honeycomb_structures::*;
use honeycomb_wire::Status;
use log_structure::{Log, ops};
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq)]
enum Defect {
    /// The fifth item of a load is accepted, and not added.
    DropsAnItem,
    /// Each item of a flush has one byte more than its length says.
    WrongLength,
}

struct Faulty(Defect);

impl StructureKind for Faulty {
    fn spec(&self) -> KindSpec {
        Log.spec()
    }

    fn open(&self, opening: &Opening) -> Box<dyn Structure> {
        Box::new(FaultyBlock { log: Log.open(opening), defect: self.0, loaded: 0 })
    }
}

struct FaultyBlock {
    log: Box<dyn Structure>,
    defect: Defect,
    loaded: u64,
}

impl Ops for FaultyBlock {
    fn apply(&mut self, block: &mut Backing, operation: &Operation<'_>, payload: &[u8]) -> Outcome {
        self.loaded += u64::from(operation.number() == ops::RESTORE);
        let drops = operation.number() == ops::RESTORE && self.loaded == 5;
        if drops && self.defect == Defect::DropsAnItem {
            return Outcome::Done(Answer::ok(0));
        }
        self.log.apply(block, operation, payload)
    }

    fn event(&mut self) -> Option<Event> {
        self.log.event()
    }

    fn bytes_used(&self) -> u64 {
        self.log.bytes_used()
    }
}

impl Structure for FaultyBlock {
    fn growth(&mut self) -> Option<&mut dyn Growth> {
        self.log.growth()
    }

    fn waits(&mut self) -> Option<&mut dyn Waits> {
        self.log.waits()
    }

    fn content(&self) -> Option<&dyn Content> {
        Some(self)
    }

    fn content_mut(&mut self) -> Option<&mut dyn Content> {
        Some(self)
    }
}

impl FaultyBlock {
    fn content(&self) -> &dyn Content {
        self.log.content().unwrap()
    }
}

impl Content for FaultyBlock {
    fn snapshot(&self, range: (u64, u64)) -> Snapshot {
        let snapshot = self.content().snapshot(range);
        match self.defect {
            Defect::DropsAnItem => snapshot,
            Defect::WrongLength => Snapshot::items(snapshot.length(), move |bytes, out| {
                snapshot.give(bytes, &mut Longer(out))
            }),
        }
    }

    fn rests(&self) -> Rest {
        self.content().rests()
    }
}

struct Longer<'a>(&'a mut dyn ItemSink);

impl ItemSink for Longer<'_> {
    fn item(&mut self, bytes: &[&[u8]]) -> std::io::Result<()> {
        self.0.item(&[bytes, &[b"x"]].concat())
    }
}

fn registry(defect: Defect) -> Arc<Registry> {
    Arc::new(Registry::builtin().with(Faulty(defect)).unwrap())
}

fn filled(client: &Client, job: &JobTicket) {
    prefix(client, job, "task", LEASE_MS);
    fill(&log(client, job, "task:log"), 20);
}

/// Regression: a load of a custom kind counted nothing, and published a structure without an item.
#[test]
fn load_that_lost_an_item_of_a_custom_structure_fails_with_both_counts() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(&scratch.0).unwrap();
    let cluster = flushing_with(&scratch.0, registry(Defect::DropsAnItem));
    let (client, job) = cluster.job("loads");
    filled(&client, &job);
    let place = flush(&client, &job, "task", "copy");
    let refused = load_from(&client, &job, &place, "again").unwrap_err();
    assert_eq!(refused.status, Status::DataLost);
    let text = refused.message;
    assert!(text.contains("'log' has 19 items") && text.contains("the flush has 20"), "{text}");
    let gone = client.open_custom(job.job, "again:log", "log").map(drop);
    assert!(gone.is_err(), "the prefix of the load is removed");
}

/// Regression: such items were written, and the flush was found to be damaged when it was loaded.
#[test]
fn flush_of_items_with_a_wrong_length_fails_with_the_reason() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(&scratch.0).unwrap();
    let cluster = flushing_with(&scratch.0, registry(Defect::WrongLength));
    let (client, job) = cluster.job("flushes");
    filled(&client, &job);
    let ticket = client.begin_flush(job.job, "task", "copy").unwrap();
    let mut why = None;
    eventually("the flush fails", || {
        why = client.flush_progress(job.job, ticket.number).unwrap().failing;
        why.is_some()
    });
    let why = why.unwrap();
    assert!(why.contains("an item begins with the length 7"), "{why}");
    assert!(why.contains("defect of the kind"), "{why}");
    client.cancel_flush(job.job, ticket.number).unwrap();
    assert!(!scratch.0.join("flushes/copy/manifest.json").exists());
}
