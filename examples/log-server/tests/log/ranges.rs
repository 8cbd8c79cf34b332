//! A custom kind whose blocks own ranges of hashes, and a block of it that does not leave its server after
//! all.

use super::Ask;
use honeycomb_client::{Custom, CustomOptions, Heard, Listener};
use honeycomb_e2e::{Cluster, KIB, eventually, prefix, server_options};
use honeycomb_server::{MemoryServer, ServerOptions};
use honeycomb_structures::{
    Answer, Arrival, Backing, Change, Changes, Event, Kind, KindSpec, Movable, MoveRequest, Op,
    Opening, Operation, OperationSpec, Ops, Outcome, Prepared, Registry, Route, Router, Status,
    Structure, StructureKind, Time, Totals,
};
use honeycomb_types::PrefixId;
use honeycomb_wire::notice::{Filter, kinds};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BLOCK: u64 = 64 * KIB;
const PATIENCE: Duration = Duration::from_secs(20);

/// The message of a block to the test: it hands its range over, or its move was cancelled.
#[derive(Debug, PartialEq)]
enum Stage {
    HandsOver,
    Cancelled,
}

/// Stops the first block that hands its range over, until the test lets it continue.
struct Gate {
    stages: Sender<Stage>,
    go: Mutex<Option<Receiver<()>>>,
}

/// A kind that reports the keys of its notes, and keeps nothing.
struct Notes(Arc<Gate>);

struct NotesBlock {
    gate: Arc<Gate>,
    importing: u64,
    watched: bool,
    changes: Vec<Event>,
    /// Notes that nobody watched.
    unreported: u64,
}

impl StructureKind for Notes {
    fn spec(&self) -> KindSpec {
        let kind = Kind::from_code(0x91).unwrap();
        let operations = vec![OperationSpec::write(1, "note", Route::Key)];
        KindSpec { kind, name: "notes".into(), router: Router::HashRange, operations }
    }

    fn open(&self, opening: &Opening) -> Box<dyn Structure> {
        let (gate, importing) = (self.0.clone(), opening.importing);
        Box::new(NotesBlock { gate, importing, watched: false, changes: Vec::new(), unreported: 0 })
    }
}

impl Structure for NotesBlock {
    fn changes(&mut self) -> Option<&mut dyn Changes> {
        Some(self)
    }

    fn movable(&mut self) -> Option<&mut dyn Movable> {
        Some(self)
    }
}

impl Ops for NotesBlock {
    fn apply(&mut self, _: &mut Backing, operation: &Operation<'_>, _: &[u8]) -> Outcome {
        if operation.op == Op::MoveDone {
            return Outcome::Done(Answer::ok(1));
        }
        let key = match operation.key() {
            Ok((key, _)) => key.into(),
            Err(refusal) => return Outcome::Done(refusal),
        };
        match self.watched {
            true => self.changes.push(Event::Changed(Change::Put { key })),
            false => self.unreported += 1,
        }
        Outcome::Done(Answer::ok(0))
    }

    fn event(&mut self) -> Option<Event> {
        self.changes.pop()
    }

    fn bytes_used(&self) -> u64 {
        0
    }
}

impl Changes for NotesBlock {
    fn watch(&mut self, watched: bool) {
        self.watched = watched;
    }

    fn unreported(&self) -> u64 {
        self.unreported
    }
}

impl Movable for NotesBlock {
    fn move_request(&mut self, _: &Backing, _: Time) -> Option<MoveRequest> {
        None
    }

    fn can_leave(&self) -> bool {
        true
    }

    fn move_request_due(&self) -> Option<Time> {
        None
    }

    fn refused(&mut self, _: Time, _: MoveRequest, _: Status, _: String) {}

    fn begin_export(&mut self, _: &mut Backing, _: u64, _: u64) -> Result<(), Answer> {
        Ok(())
    }

    fn prepare(&mut self, _: &mut Backing, _: usize) -> Prepared {
        Prepared::Nothing
    }

    fn unsent(&self) -> u64 {
        0
    }

    fn freeze(&mut self, _: Time) {}

    fn thaw(&mut self) {}

    fn totals(&self) -> Totals {
        Totals::default()
    }

    fn hand_over(&mut self) {
        let stopped = self.gate.go.lock().unwrap().take();
        if let Some(go) = stopped {
            self.gate.stages.send(Stage::HandsOver).unwrap();
            go.recv_timeout(PATIENCE).unwrap();
        }
    }

    fn depart(&mut self, _: Time, _: Vec<u8>) {}

    fn cancel_export(&mut self, _: &mut Backing, _: Time) {
        self.gate.stages.send(Stage::Cancelled).unwrap();
    }

    fn begin_import(&mut self, _: u64, _: u64, _: u64) -> Result<(), Answer> {
        Err(Answer::refuse(Status::WrongKind, "notes are not merged"))
    }

    fn takes(&self, op: Op) -> Option<Arrival> {
        (op == Op::MoveDone).then_some(Arrival::Whole)
    }

    fn end_import(&mut self, _: &mut Backing, _: Time, _: u64, _: bool) {}

    fn imports(&self, move_id: u64) -> Option<(u64, u64)> {
        (move_id == self.importing).then_some((0, u64::MAX))
    }

    fn sweep(&mut self, _: &mut Backing) -> bool {
        false
    }
}

fn note(notes: &Custom, key: &[u8]) {
    notes.call("note", Ask { key: Some(key), ..Ask::default() }).unwrap();
}

/// The next key that is reported. Gaps before it are skipped.
fn reported(listener: &mut Listener) -> Vec<u8> {
    loop {
        let notice = listener.next(PATIENCE).unwrap().expect("a key was noted");
        match notice.heard {
            Heard::Put { key } => return key.into(),
            Heard::Gap { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// The block names its target before the move is committed. The listener gave the block up then, and was
/// subscribed to no block when the move was cancelled.
#[test]
fn listener_is_notified_by_a_block_whose_relocation_was_cancelled() {
    let ((stages, staged), (go, gone)) = (channel(), channel());
    let gate = Arc::new(Gate { stages, go: Mutex::new(Some(gone)) });
    let registry = Arc::new(Registry::builtin().with(Notes(gate)).unwrap());
    let cluster = Cluster::start_with(vec![registry.clone()], 2048 * KIB, BLOCK);
    let (client, job) = cluster.job("cancels");
    prefix(&client, &job, "task", 60_000);
    let options = CustomOptions::default();
    let notes = client.create_custom(job.job, "task:notes", "notes", options).unwrap();
    let mut listener = notes.listen(kinds::PUT, Filter::All).unwrap();
    note(&notes, b"before");
    assert_eq!(reported(&mut listener), b"before");

    let (controller, token) = (cluster.controller.address(), cluster.controller.token());
    let options = server_options(controller, token, 2048 * KIB, BLOCK);
    let options = ServerOptions { kinds: registry, ..options };
    let target = MemoryServer::start(&options, PATIENCE).unwrap();
    let whole = cluster.client(cluster.controller.token(), PrefixId(0));
    whole.drain_server(&cluster.servers[0].address().to_string(), false).unwrap();
    assert_eq!(staged.recv_timeout(PATIENCE), Ok(Stage::HandsOver));
    drop(target);
    eventually("the target is lost", || client.kinds().unwrap()[0].1 == 1);
    go.send(()).unwrap();
    assert_eq!(staged.recv_timeout(PATIENCE), Ok(Stage::Cancelled));

    note(&notes, b"after");
    assert_eq!(reported(&mut listener), b"after");
}
