//! Blocks of extents against a plain model, and how a kv gets extents and drops them.

use crate::{Driver, lengths, pattern};
use honeycomb_structures::{
    Answer, Content, Event, ExtentBlock, ExtentRef, KvBlock, Outcome, Structure, Ticket, Waits,
};
use honeycomb_types::limits::{
    EXTENT_PENDING_MS, EXTENTS_IDLE, EXTENTS_LEAVE_FOR, extents_per_list, extents_per_value,
};
use honeycomb_types::{BlockAt, Marks, Time};
use honeycomb_wire::batch::{BatchOp, put_batch, results};
use honeycomb_wire::data::{Brings, ScanArgs, Scanned, scanned};
use honeycomb_wire::extents::{ListHead, PutExtents, StoredWhen, extents, put_extents, put_list};
use honeycomb_wire::{Field, Op, Status, key_hash};
use proptest::prelude::*;
use std::collections::BTreeMap;

const SIZE: usize = 64 * 1024;
const MOST: usize = SIZE / 8;

#[derive(Clone, Debug)]
enum Step {
    Put(usize),
    /// A payload that arrives in two pieces, or is aborted between them.
    Fill(usize, bool),
    Get(usize),
    Keep(usize),
    Adopt(usize, u64),
    Drop(usize, u64),
    /// A long-lived pin on it.
    Pin(usize),
    Unpin,
    Sleep(u64),
    /// A list of so many extents of another block, unless one is being adopted.
    List(usize),
    /// Its extents are adopted, or are gone.
    Adopted(bool),
    /// The list is put again, as if its answer was lost.
    Again(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..40usize;
    prop_oneof![
        2 => (1..MOST + 2).prop_map(Step::Put),
        4 => lengths(SIZE, 1, MOST + 1).prop_map(Step::Put),
        2 => ((1..MOST + 1), any::<bool>()).prop_map(|(n, whole)| Step::Fill(n, whole)),
        4 => which.clone().prop_map(Step::Get),
        1 => which.clone().prop_map(Step::Keep),
        3 => (which.clone(), 1..3u64).prop_map(|(which, owner)| Step::Adopt(which, owner)),
        3 => (which.clone(), 0..3u64).prop_map(|(which, owner)| Step::Drop(which, owner)),
        1 => which.prop_map(Step::Pin),
        1 => Just(Step::Unpin),
        1 => (1..EXTENT_PENDING_MS).prop_map(Step::Sleep),
        3 => lengths(SIZE, 1, extents_per_list(SIZE as u64) as usize + 2).prop_map(Step::List),
        3 => any::<bool>().prop_map(Step::Adopted),
        1 => (0..40usize).prop_map(Step::Again),
    ]
}

#[derive(Clone, Debug)]
struct Known {
    bytes: Vec<u8>,
    owner: Option<u64>,
    due: Time,
}

struct World {
    driver: Driver<ExtentBlock>,
    model: BTreeMap<u64, Known>,
    pins: Vec<(honeycomb_block::Pin, Vec<u8>)>,
    seed: u64,
    /// The list whose extents are being adopted.
    waiting: Option<(Ticket, Vec<u8>)>,
    /// The owner of the extents of each list, by its id.
    lists: BTreeMap<u64, u64>,
}

fn owned(owner: u64, ids: &[u64]) -> Vec<u8> {
    std::iter::once(&owner).chain(ids).flat_map(|n| n.to_le_bytes()).collect()
}

impl World {
    fn new() -> World {
        let driver = Driver::new(SIZE, ExtentBlock::new(SIZE));
        let (model, lists) = (BTreeMap::new(), BTreeMap::new());
        World { driver, model, pins: Vec::new(), seed: 0, waiting: None, lists }
    }

    fn id(&self, which: usize) -> u64 {
        // Mostly an existing one, sometimes one that was dropped or never exists.
        self.model.keys().copied().nth(which).unwrap_or(which as u64 + 1)
    }

    fn due(&self) -> Time {
        self.driver.now + std::time::Duration::from_millis(EXTENT_PENDING_MS)
    }

    fn stored(&mut self, answer: &Answer, bytes: Vec<u8>) {
        match answer.status {
            Status::Ok => {
                let known = Known { bytes, owner: None, due: self.due() };
                let before = self.model.insert(answer.value, known);
                assert!(before.is_none(), "an id is given once");
            }
            Status::ValueTooLarge => assert!(bytes.len() > MOST),
            Status::BlockFull => {
                let room = self.waiting.iter().map(|(_, list)| list.len() + 8).sum::<usize>();
                let held: usize = self.model.values().map(|known| known.bytes.len() + 8).sum();
                let held = held + room;
                let pinned: usize = self.pins.iter().map(|(_, bytes)| bytes.len() + 8).sum();
                let many = self.model.len() + self.pins.len() + 1 >= SIZE / 16 / 128 - 1;
                let closed = self.model.is_empty();
                // Room may be scattered: each extent has at most an eighth of the block.
                assert!(many || closed || held + pinned + 8 * MOST > SIZE, "{held} held");
            }
            other => panic!("{other:?}"),
        }
    }

    /// The extents of lists that are gone are dropped, and of no others.
    fn hear_drops(&mut self, refused: Option<u64>) {
        let gone: Vec<u64> =
            self.lists.keys().copied().filter(|id| !self.model.contains_key(id)).collect();
        let gone = gone.iter().filter_map(|id| self.lists.remove(id));
        let mut due: Vec<u64> = gone.chain(refused).collect();
        let mut found: Vec<u64> = Vec::new();
        for event in self.driver.events() {
            match event {
                Event::DropExtents(owner, list) => {
                    assert!(list.iter().all(|extent| extent.at.block.0 == owner), "its own ones");
                    found.push(owner);
                }
                Event::Drained => {}
                other => panic!("{other:?}"),
            }
        }
        due.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, due, "extents of lists that are gone");
    }

    fn put_list(&mut self, list: &[u8]) -> Option<Answer> {
        match self.driver.submit(Op::ExtentPutList, &[0], list) {
            (_, Outcome::Done(answer)) => Some(answer),
            (ticket, Outcome::Parked) => {
                let asked = self.driver.events();
                let asked = asked.into_iter().filter(|event| *event != Event::Drained);
                let named = extents(list).unwrap();
                assert_eq!(asked.collect::<Vec<_>>(), [Event::Adopt(ticket, named)]);
                self.waiting = Some((ticket, list.to_vec()));
                None
            }
        }
    }

    fn step(&mut self, step: &Step) {
        self.seed += 1;
        let mut refused = None;
        match *step {
            Step::List(count) if self.waiting.is_none() => {
                // The block of the extents is named after the owner that they will have.
                let at = BlockAt::of(1 << 32 | self.seed, 1);
                let named = (1..=count as u64).map(|id| ExtentRef { at, id, len: MOST as u32 });
                let list = put_extents(&named.collect::<Vec<_>>());
                match self.put_list(&list) {
                    Some(answer) if list.len() > MOST => {
                        assert_eq!(answer.status, Status::ValueTooLarge);
                    }
                    Some(answer) => {
                        assert_eq!(answer.status, Status::BlockFull);
                        self.stored(&answer, list);
                    }
                    None => {}
                }
            }
            Step::List(_) => {}
            Step::Adopted(is_there) => {
                let Some((ticket, list)) = self.waiting.take() else { return };
                let owner = extents(&list).unwrap()[0].at.block.0;
                let gone = || Err((Status::ExtentGone, "gone".into()));
                self.driver.adopted(ticket, owner, if is_there { Ok(()) } else { gone() });
                let (told, answer) = self.driver.completed().expect("it is answered");
                assert_eq!(told, ticket);
                match is_there {
                    true => {
                        assert_eq!(answer.status, Status::Ok);
                        self.lists.insert(answer.value, owner);
                        self.stored(&answer, list);
                    }
                    false => {
                        assert_eq!(answer.status, Status::ExtentGone);
                        refused = Some(owner);
                    }
                }
            }
            Step::Again(which) => {
                if let Some((_, list)) = self.waiting.clone() {
                    let (_, outcome) = self.driver.submit(Op::ExtentPutList, &[0], &list);
                    let Outcome::Done(answer) = outcome else { panic!("it waits already") };
                    assert_eq!(answer.status, Status::Busy);
                }
                let id = self.id(which);
                if self.lists.contains_key(&id) {
                    let (list, due) = (self.model[&id].bytes.clone(), self.due());
                    let (_, outcome) = self.driver.submit(Op::ExtentPutList, &[0], &list);
                    assert_eq!(outcome, Outcome::Done(Answer::ok(id)));
                    self.model.get_mut(&id).expect("just found").due = due;
                }
            }
            Step::Put(length) => {
                let bytes = pattern(self.seed, length);
                let answer = self.driver.run(Op::ExtentPut, b"", &bytes);
                self.stored(&answer, bytes);
            }
            Step::Fill(length, whole) => {
                let bytes = pattern(self.seed, length);
                match self.driver.reserve(Op::ExtentPut, b"", length) {
                    Err(refusal) => self.stored(&refusal, bytes),
                    Ok(ticket) => {
                        self.driver.feed(ticket, &bytes[..length / 2]);
                        if !whole {
                            return self.driver.abort(ticket);
                        }
                        self.driver.feed(ticket, &bytes[length / 2..]);
                        let Outcome::Done(answer) = self.driver.commit(ticket) else {
                            panic!("nothing waits here")
                        };
                        self.stored(&answer, bytes);
                    }
                }
            }
            Step::Get(which) => {
                let id = self.id(which);
                let answer = self.driver.run(Op::ExtentGet, &id.encode(), b"");
                match self.model.get(&id) {
                    Some(known) => assert_eq!(self.driver.bytes(&answer), known.bytes),
                    None => assert_eq!(answer.status, Status::ExtentGone),
                }
            }
            Step::Keep(which) => {
                let (id, due) = (self.id(which), self.due());
                let answer = self.driver.run(Op::ExtentKeep, &id.encode(), b"");
                match self.model.get_mut(&id) {
                    Some(known) => known.due = due,
                    None => assert_eq!(answer.status, Status::ExtentGone),
                }
            }
            Step::Adopt(which, owner) => {
                let ids = [self.id(which), self.id(which / 2)];
                let answer = self.driver.run(Op::ExtentAdopt, &owned(owner, &ids), b"");
                let free = |id| {
                    let known: Option<&Known> = self.model.get(id);
                    known.is_some_and(|known| known.owner.is_none_or(|other| other == owner))
                };
                if !ids.iter().all(free) {
                    return assert_eq!(answer.status, Status::ExtentGone);
                }
                assert_eq!(answer, Answer::ok(0));
                for id in ids {
                    self.model.get_mut(&id).unwrap().owner = Some(owner);
                }
            }
            Step::Drop(which, owner) => {
                let id = self.id(which);
                let answer = self.driver.run(Op::ExtentDrop, &owned(owner, &[id, id]), b"");
                assert_eq!(answer, Answer::ok(0));
                if self.model.get(&id).is_some_and(|k| k.owner.is_none_or(|o| o == owner)) {
                    self.model.remove(&id);
                }
            }
            Step::Pin(which) => {
                let id = self.id(which);
                let answer = self.driver.run(Op::ExtentGet, &id.encode(), b"");
                if let honeycomb_structures::Payload::Block(range) = answer.payload {
                    let bytes = self.driver.block.slice(range.clone()).to_vec();
                    self.pins.push((self.driver.block.pin(range), bytes));
                }
            }
            Step::Unpin => drop(self.pins.pop()),
            Step::Sleep(ms) => {
                self.driver.sleep(ms);
                let now = self.driver.now;
                self.model.retain(|_, known| known.owner.is_some() || known.due > now);
            }
        }
        self.hear_drops(refused);
        for (pin, bytes) in &self.pins {
            assert_eq!(pin.bytes(), bytes, "pinned bytes do not change");
        }
        self.driver.structure.check();
        let adopted = self.model.values().filter(|known| known.owner.is_some()).count();
        assert_eq!(self.driver.structure.counts(), (self.model.len(), adopted));
        let held: usize = self.model.values().map(|known| known.bytes.len()).sum();
        assert!(self.driver.structure_bytes() >= held);
    }
}

proptest! {
    #[test]
    fn a_block_of_extents_is_what_the_model_says(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        // A flush writes the adopted extents.
        let (bytes, items) = world.driver.flushed();
        let adopted: Vec<_> = world.model.iter().filter(|(_, k)| k.owner.is_some()).collect();
        let expected: Vec<u8> = adopted
            .iter()
            .flat_map(|(id, known)| {
                [&id.to_le_bytes()[..], &(known.bytes.len() as u32).to_le_bytes(), &known.bytes].concat()
            })
            .collect();
        prop_assert_eq!((bytes, items), (expected, adopted.len() as u64));
    }
}

#[test]
fn list_that_no_value_can_have_is_refused() {
    let mut world = World::new();
    let at = BlockAt::of(9, 1);
    let one = ExtentRef { at, id: 1, len: 1 };
    let named = |list: &[ExtentRef]| put_extents(list);
    for (args, payload) in [
        (&[0][..], named(&[one, one])),
        (&[0], named(&[ExtentRef { len: 0, ..one }])),
        (&[0], named(&[ExtentRef { len: MOST as u32 + 1, ..one }])),
        (&[0], put_list(Some(ListHead { level: 1, bytes: 7 }), &[])),
        (&[1], named(&[one])),
        (b"\0key", named(&[one])),
    ] {
        let answer = world.driver.run(Op::ExtentPutList, args, &payload);
        assert_eq!(answer.status, Status::InvalidArgument, "{args:?} {payload:?}");
    }
    for (args, payload) in [(&[0][..], vec![0; 27]), (&[], named(&[one])), (&[9], named(&[one]))] {
        let answer = world.driver.run(Op::ExtentPutList, args, &payload);
        assert_eq!(answer.status, Status::BadFrame, "{args:?} {payload:?}");
    }
    assert_eq!(world.driver.structure.counts(), (0, 0));
    world.driver.structure.check();
}

/// The extents of a list go with it, also when it is in a lower tier and its bytes are on a disk.
#[test]
fn list_is_dropped_with_its_extents_when_nobody_names_it() {
    let mut world = World::new();
    world.step(&Step::List(3));
    world.step(&Step::Adopted(true));
    let (&id, _) = world.model.first_key_value().expect("it is stored");
    assert_eq!(world.driver.events(), []);
    world.driver.sleep(EXTENT_PENDING_MS);
    world.model.clear();
    world.hear_drops(None);
    let gone = world.driver.run(Op::ExtentGet, &id.encode(), b"");
    assert_eq!(gone.status, Status::ExtentGone);
}

#[test]
fn eight_of_the_largest_fill_a_block() {
    let mut world = World::new();
    for n in 1..=8 {
        world.step(&Step::Put(MOST));
        // From this number the controller concludes which blocks have room for another extent.
        assert_eq!(world.driver.structure_bytes(), n * MOST);
    }
    assert_eq!(world.model.len(), 8);
    assert_eq!(world.driver.run(Op::ExtentPut, b"", b"x").status, Status::BlockFull);
}

#[test]
fn an_empty_block_says_that_it_can_go_and_takes_no_more() {
    let mut world = World::new();
    assert!(world.driver.events().is_empty());
    world.driver.sleep(0);
    world.step(&Step::Put(100));
    world.driver.sleep(EXTENTS_IDLE.as_millis() as u64 + 1);
    assert!(world.driver.events().is_empty(), "something waits to be adopted");
    world.step(&Step::Sleep(EXTENT_PENDING_MS));
    assert!(world.model.is_empty());
    world.driver.sleep(EXTENTS_IDLE.as_millis() as u64 + 1);
    assert_eq!(world.driver.events(), [Event::Drained]);
    assert_eq!(world.driver.run(Op::ExtentPut, b"", b"x").status, Status::BlockFull);
    world.driver.sleep(10_000);
    assert!(world.driver.events().is_empty(), "it says so once");
}

/// Its client was killed, or wrote elsewhere: the block never changes again.
#[test]
fn a_block_that_nobody_writes_to_is_given_back_too() {
    let mut driver = Driver::new(SIZE, ExtentBlock::new(SIZE));
    let mut looked = 0;
    while driver.events() != [Event::Drained] {
        let due = driver.structure.deadline().expect("it waits for something");
        let ms = due.since(driver.now).as_millis() as u64;
        assert!(ms <= EXTENTS_IDLE.as_millis() as u64 && looked < 3, "{ms} ms after {looked}");
        driver.sleep(ms);
        looked += 1;
    }
    assert_eq!(driver.structure.deadline(), None);
    assert_eq!(driver.run(Op::ExtentPut, b"", b"x").status, Status::BlockFull);
}

// ------------------------------------------------------------------------------------------- the kv

fn kv() -> Driver<KvBlock> {
    Driver::new(SIZE, KvBlock::new(SIZE, 0, u64::MAX, Marks::default()))
}

fn list(from: u64, count: u64) -> Vec<ExtentRef> {
    let at = BlockAt::of(9, 1);
    (from..from + count).map(|id| ExtentRef { at, id, len: MOST as u32 }).collect()
}

fn put(d: &mut Driver<KvBlock>, mode: u8, key: &[u8], list: &[ExtentRef]) -> (Ticket, Outcome) {
    d.submit(Op::KvPutExtents, &[&[mode], key].concat(), &put_extents(list))
}

fn adopted(d: &mut Driver<KvBlock>, ticket: Ticket, owner: u64) -> Answer {
    d.adopted(ticket, owner, Ok(()));
    let (told, answer) = d.completed().expect("it is finished");
    assert_eq!(told, ticket);
    answer
}

/// Stores a large value under an owner.
fn store(d: &mut Driver<KvBlock>, key: &[u8], owner: u64, list: &[ExtentRef]) -> Answer {
    let (ticket, outcome) = put(d, 0, key, list);
    assert_eq!(outcome, Outcome::Parked);
    assert_eq!(d.events(), [Event::Adopt(ticket, list.to_vec())]);
    adopted(d, ticket, owner)
}

fn dropped(d: &mut Driver<KvBlock>) -> Vec<(u64, Vec<ExtentRef>)> {
    let events = d.events().into_iter().map(|event| match event {
        Event::DropExtents(owner, list) => (owner, list),
        other => panic!("{other:?}"),
    });
    events.collect()
}

#[test]
fn an_entry_is_there_when_its_extents_are_its_own_and_not_before() {
    let mut d = kv();
    let (ticket, outcome) = put(&mut d, 0, b"k", &list(1, 3));
    assert_eq!(outcome, Outcome::Parked);
    assert_eq!(d.run(Op::KvGet, b"k", b"").status, Status::KeyNotFound);
    assert_eq!(d.events(), [Event::Adopt(ticket, list(1, 3))]);
    assert_eq!(adopted(&mut d, ticket, 7), Answer::ok(0));
    let found = d.run(Op::KvGet, b"k", b"");
    assert_eq!((found.status, found.value), (Status::Extents, 3 * MOST as u64));
    assert_eq!(d.bytes(&found), put_extents(&list(1, 3)));
    assert_eq!(d.run(Op::KvExists, b"k", b"").args, (3 * MOST as u64).encode());
    assert!(dropped(&mut d).is_empty());
    let block = std::mem::replace(
        &mut d.block,
        honeycomb_block::Backing::map(1, &honeycomb_block::Reclaimer::inline()).unwrap(),
    );
    d.structure.check(&block);
}

#[test]
fn whatever_ends_an_entry_drops_its_extents_once_under_their_owner() {
    let mut d = kv();
    let ends: [fn(&mut Driver<KvBlock>) -> Status; 6] = [
        |d| d.run(Op::KvPut, b"\0k", b"small").status,
        |d| d.run(Op::KvPut, b"\0k", &[7; 3000]).status,
        |d| d.run(Op::KvDelete, b"\0k", b"").status,
        // A value of the same size, written in place, and one of another size.
        |d| d.run(Op::KvPut, b"\0k", &[1; 8 + 2 * 28]).status,
        |d| d.run(Op::KvBatch, b"\0", b"\x01\0\0\0\x03\x01\0k").status,
        |d| d.run(Op::KvBatch, b"\x01", b"\x01\0\0\0\x01\x01\0k\x01\0\0\0v").status,
    ];
    for (n, end) in ends.into_iter().enumerate() {
        let owner = n as u64 + 1;
        store(&mut d, b"k", owner, &list(10 * owner, 2));
        assert!(dropped(&mut d).is_empty());
        assert_eq!(end(&mut d), Status::Ok, "way {n}");
        assert_eq!(dropped(&mut d), [(owner, list(10 * owner, 2))], "way {n}");
    }
    // Deleted by the reader of this list, and not by the reader of another one.
    store(&mut d, b"k", 80, &list(800, 2));
    for other in [list(800, 1), list(801, 2), list(800, 3), Vec::new()] {
        let refused = d.run(Op::KvDeleteExtents, b"k", &put_extents(&other));
        assert_eq!(refused.status, Status::CompareFailed, "{other:?}");
    }
    assert!(dropped(&mut d).is_empty());
    let own = put_extents(&list(800, 2));
    assert_eq!(d.run(Op::KvDeleteExtents, b"k", &own), Answer::ok(0));
    assert_eq!(dropped(&mut d), [(80, list(800, 2))]);
    assert_eq!(d.run(Op::KvDeleteExtents, b"k", &own).status, Status::KeyNotFound);
    d.run(Op::KvPut, b"\0k", &own);
    let refused = d.run(Op::KvDeleteExtents, b"k", &own);
    assert_eq!((refused.status, refused.value), (Status::CompareFailed, 1));
    d.run(Op::KvDelete, b"\0k", b"");
    // A large value replaces a large one.
    store(&mut d, b"k", 90, &list(900, 2));
    assert_eq!(store(&mut d, b"k", 91, &list(910, 2)), Answer::ok(1));
    assert_eq!(dropped(&mut d), [(90, list(900, 2))]);
}

#[test]
fn what_is_refused_leaves_no_extents_behind() {
    let mut d = kv();
    d.run(Op::KvPut, b"\0k", b"there");
    // Refused at once.
    let (_, outcome) = put(&mut d, 1, b"k", &list(1, 2));
    assert!(matches!(outcome, Outcome::Done(a) if a.status == Status::KeyExists));
    assert_eq!(dropped(&mut d), [(0, list(1, 2))]);
    // The key is put while the extents are being adopted.
    let (ticket, _) = put(&mut d, 1, b"new", &list(3, 2));
    d.events();
    d.run(Op::KvPut, b"\0new", b"first");
    assert_eq!(adopted(&mut d, ticket, 5).status, Status::KeyExists);
    assert_eq!(dropped(&mut d), [(5, list(3, 2))]);
    // An extent no longer exists.
    let (ticket, _) = put(&mut d, 0, b"k", &list(7, 2));
    d.events();
    let outcome = Err((Status::ExtentGone, "gone".to_owned()));
    d.adopted(ticket, 6, outcome);
    assert_eq!(d.completed().map(|(_, answer)| answer.status), Some(Status::ExtentGone));
    assert_eq!(dropped(&mut d), [(6, list(7, 2))]);
    let found = d.run(Op::KvGet, b"k", b"");
    assert_eq!(d.bytes(&found), b"there");
    // It is not in progress: it cannot be withdrawn, and is answered once.
    let (ticket, _) = put(&mut d, 0, b"k", &list(20, 1));
    assert!(!d.structure.cancel(ticket));
    assert_eq!(adopted(&mut d, ticket, 8), Answer::ok(1));
    d.adopted(ticket, 8, Ok(()));
    assert!(d.completed().is_none());
}

/// A moved value replaces only its own list, and subscribers get no notice.
#[test]
fn what_is_carried_takes_the_place_of_its_own_list_alone() {
    let mut d = kv();
    d.watch(true);
    let carry = |d: &mut Driver<KvBlock>, old: &[ExtentRef], new: &[ExtentRef]| {
        let (old, list) = (put_extents(old), put_extents(new));
        let put = PutExtents { when: StoredWhen::Still(&old), key: b"k", list: &list };
        let (args, payload) = put.encode();
        d.submit(Op::KvPutExtents, &args, &payload)
    };
    let refused = |outcome: Outcome| match outcome {
        Outcome::Done(answer) => (answer.status, answer.value),
        Outcome::Parked => panic!("it is to be refused"),
    };
    // No entry, a small value, another list.
    let (_, outcome) = carry(&mut d, &list(1, 2), &list(10, 2));
    assert_eq!(refused(outcome), (Status::KeyNotFound, 0));
    assert_eq!(dropped(&mut d), [(0, list(10, 2))]);
    d.run(Op::KvPut, b"\0k", b"small");
    d.events();
    let (_, outcome) = carry(&mut d, &list(1, 2), &list(10, 2));
    assert_eq!(refused(outcome), (Status::CompareFailed, 1));
    assert_eq!(dropped(&mut d), [(0, list(10, 2))]);
    d.run(Op::KvDelete, b"\0k", b"");
    d.events();
    let (ticket, _) = put(&mut d, 0, b"k", &list(1, 2));
    d.events();
    adopted(&mut d, ticket, 7);
    d.events();
    let (_, outcome) = carry(&mut d, &list(1, 1), &list(10, 2));
    assert_eq!(refused(outcome), (Status::CompareFailed, 1));
    assert_eq!(dropped(&mut d), [(0, list(10, 2))]);
    // A malformed list is refused as such.
    let cut = [&1u32.to_le_bytes()[..], &[0], &put_extents(&list(10, 2))].concat();
    let (_, outcome) = d.submit(Op::KvPutExtents, b"\x02k", &cut);
    assert_eq!(refused(outcome).0, Status::BadFrame);
    // Its own list: the only event is that the old extents are dropped.
    let (ticket, outcome) = carry(&mut d, &list(1, 2), &list(20, 3));
    assert_eq!(outcome, Outcome::Parked);
    assert_eq!(d.events(), [Event::Adopt(ticket, list(20, 3))]);
    assert_eq!(adopted(&mut d, ticket, 8), Answer::ok(1));
    assert_eq!(dropped(&mut d), [(7, list(1, 2))]);
    let found = d.run(Op::KvGet, b"k", b"");
    assert_eq!(d.bytes(&found), put_extents(&list(20, 3)));
    // Another value is put while the extents are being adopted: that one stays.
    let (ticket, _) = carry(&mut d, &list(20, 3), &list(30, 2));
    d.events();
    d.run(Op::KvPut, b"\0k", b"new");
    d.events();
    assert_eq!(adopted(&mut d, ticket, 9).status, Status::CompareFailed);
    assert_eq!(dropped(&mut d), [(9, list(30, 2))]);
    let found = d.run(Op::KvGet, b"k", b"");
    assert_eq!(d.bytes(&found), b"new");
}

/// A scan for lists skips all other entries.
#[test]
fn a_scan_for_lists_brings_nothing_else() {
    let mut d = kv();
    for n in 0..40u64 {
        d.run(Op::KvPut, &[b"\0plain", &n.to_le_bytes()[..]].concat(), &[1; 200]);
    }
    store(&mut d, b"one", 1, &list(1, 2));
    store(&mut d, b"two", 2, &list(5, 1));
    let (mut cursor, mut found) = (0, BTreeMap::new());
    loop {
        let mut args = Vec::new();
        ScanArgs { cursor, bytes: 1, brings: Brings::Lists, prefix: b"" }.put(&mut args);
        let page = d.run(Op::KvScan, &args, b"");
        for (key, value) in scanned(&d.bytes(&page)).unwrap() {
            let Scanned::Extents(named) = value else { panic!("{value:?} is no list") };
            assert!(found.insert(key.to_vec(), named.to_vec()).is_none(), "it is brought twice");
        }
        match page.value {
            0 => break,
            next => cursor = next,
        }
    }
    let lists =
        [(b"one".to_vec(), put_extents(&list(1, 2))), (b"two".to_vec(), put_extents(&list(5, 1)))];
    assert_eq!(found, BTreeMap::from(lists));
}

/// A block of extents on a draining server accepts nothing, serves its content, and is freed when that has
/// been moved elsewhere.
#[test]
fn a_block_that_is_to_leave_takes_no_more_and_goes_when_it_is_empty() {
    let mut d = Driver::new(SIZE, ExtentBlock::new(SIZE));
    let id = d.run(Op::ExtentPut, b"", &[3; 100]).value;
    assert_eq!(d.run(Op::ExtentAdopt, &owned(5, &[id]), b""), Answer::ok(0));
    let until = d.now + EXTENTS_LEAVE_FOR;
    assert!(d.structure.refuse_content_until(until));
    let refused = d.run(Op::ExtentPut, b"", b"x");
    assert_eq!(refused.status, Status::BlockFull);
    assert!(String::from_utf8_lossy(&refused.args).contains("draining"), "{refused:?}");
    let kept = d.run(Op::ExtentKeep, &id.encode(), b"");
    assert_eq!(kept.status, Status::ExtentGone, "its writer writes it elsewhere");
    let read = d.run(Op::ExtentGet, &id.encode(), b"");
    assert_eq!(d.bytes(&read), [3; 100]);
    d.sleep(2 * EXTENTS_IDLE.as_millis() as u64);
    assert!(d.events().is_empty(), "it has an owner");
    // Its server is not draining any more: without further calls it accepts extents again.
    d.sleep(EXTENTS_LEAVE_FOR.as_millis() as u64);
    let another = d.run(Op::ExtentPut, b"", b"x");
    assert_eq!(another.status, Status::Ok);
    let until = d.now + EXTENTS_LEAVE_FOR;
    assert!(d.structure.refuse_content_until(until));
    assert_eq!(d.run(Op::ExtentPut, b"", b"x").status, Status::BlockFull);
    d.run(Op::ExtentDrop, &owned(5, &[id, another.value]), b"");
    d.sleep(EXTENTS_IDLE.as_millis() as u64 + 1);
    assert_eq!(d.events(), [Event::Drained]);
}

/// A key that has moved to another block does not return: its caller gets the answer at once, and not after a
/// second of retries.
#[test]
fn a_put_whose_key_has_left_is_answered_at_once() {
    for (times, status) in [(1, Status::Moved), (65, Status::WrongRange)] {
        let slots = 128;
        let mut d = Driver::new(SIZE, KvBlock::new(SIZE, 0, u64::MAX, Marks::default()));
        let slot = u64::MAX / slots + 1;
        let mut keys = (0..100_000u32).map(|n| n.to_le_bytes());
        let key = keys.find(|key| key_hash(key) >= 0u64.wrapping_sub(slot)).unwrap();
        let (ticket, _) = put(&mut d, 0, &key, &list(1, 2));
        d.events();
        // After many moves a block no longer knows where each range is.
        for n in 1..=times {
            let (start, end) = (0u64.wrapping_sub(n * slot), u64::MAX - (n - 1) * slot);
            let (now, mover) = (d.now, d.structure.movable().unwrap());
            mover.begin_export(&mut d.block, start, end).unwrap();
            while mover.next_parcel(&mut d.block).is_some() {}
            mover.freeze(Time::ZERO);
            mover.hand_over();
            mover.depart(now, Vec::new());
        }
        assert_eq!(adopted(&mut d, ticket, 5).status, status);
        assert_eq!(dropped(&mut d), [(5, list(1, 2))]);
    }
}

/// As the single operation does: a value that is not here cannot be compared, and `CompareFailed` would claim
/// that it was.
#[test]
fn a_batch_that_compares_a_large_value_is_refused() {
    let mut d = kv();
    store(&mut d, b"k", 1, &list(1, 2));
    for (atomic, expected) in [(0, None), (0, Some(&b"v"[..])), (1, None), (1, Some(&b"v"[..]))] {
        let ops = put_batch(&[BatchOp::Swap { key: b"k", expected, new: b"n" }]);
        let answer = d.run(Op::KvBatch, &[atomic], &ops);
        let bytes = d.bytes(&answer);
        let told = results(&bytes, 1).unwrap()[0];
        assert_eq!((told.status, told.value), (Status::ValueTooLarge, 2 * MOST as u64));
        assert!(std::str::from_utf8(told.bytes).unwrap().contains("16384"));
        assert_eq!(answer.args, [1 - atomic]);
    }
    assert_eq!(d.run(Op::KvGet, b"k", b"").status, Status::Extents);
}

#[test]
fn lists_that_are_none_are_refused() {
    let mut d = kv();
    let most = extents_per_value(SIZE as u64);
    assert_eq!(most, 36);
    let refused = |d: &mut Driver<KvBlock>, payload: &[u8]| {
        let answer = d.run(Op::KvPutExtents, b"\0k", payload);
        assert!(dropped(d).is_empty());
        answer.status
    };
    assert_eq!(refused(&mut d, b""), Status::InvalidArgument);
    assert_eq!(refused(&mut d, &[1; 27]), Status::BadFrame);
    assert_eq!(refused(&mut d, &put_extents(&list(1, most + 1))), Status::ValueTooLarge);
    let long = ExtentRef { len: MOST as u32 + 1, ..list(1, 1)[0] };
    assert_eq!(refused(&mut d, &put_extents(&[long])), Status::InvalidArgument);
    let none = ExtentRef { len: 0, ..long };
    assert_eq!(refused(&mut d, &put_extents(&[none])), Status::InvalidArgument);
    store(&mut d, b"k", 1, &list(1, most));
    let found = d.run(Op::KvGet, b"k", b"");
    assert_eq!(found.value, most * MOST as u64);
}

/// For a list of extents the flush writes the list, marked by the length's highest bit.
#[test]
fn a_flush_writes_the_list() {
    let mut d = kv();
    store(&mut d, b"k", 1, &list(1, 2));
    let length = (2 * 28u32) | 1 << 31;
    let head = [&1u32.to_le_bytes()[..], &length.to_le_bytes(), b"k"].concat();
    assert_eq!(d.flushed(), ([head, put_extents(&list(1, 2))].concat(), 1));
}
