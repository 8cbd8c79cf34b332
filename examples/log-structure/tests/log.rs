//! The log against a simple model: a chain of blocks, driven as by a shard and a client.
#![allow(clippy::unwrap_used)]

use honeycomb_structures::{
    Answer, Backing, Event, Kind, Op, Opening, Operation, Outcome, Payload, Reclaimer, Routed,
    Status, Structure, StructureKind, Successor, Ticket, Time, put_routed,
};
use log_structure::{
    CODE, Log, NOT_YET_WRITTEN, Page, Record, ScanArgs, Stats, TAG_MAX, TAG_TOO_LONG, TRIMMED,
    page_records,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const BLOCK: usize = 64 << 10;

/// A block with the state that its shard keeps.
struct Held {
    structure: Box<dyn Structure>,
    backing: Backing,
    /// Number of its first record in the log.
    start: u64,
    /// Sealed at this length.
    sealed: Option<u64>,
    drained: bool,
}

/// A log of several blocks, with the roles of the catalog, the shards and a client.
struct Chain {
    /// The blocks in the map; the last one accepts appends.
    blocks: Vec<Held>,
    size: usize,
    now: Time,
    tickets: u64,
    answered: Vec<(Ticket, Answer)>,
    /// Whether more blocks can be allocated.
    room: bool,
    released: usize,
}

impl Chain {
    fn new(size: usize) -> Chain {
        let (blocks, answered, now) = (Vec::new(), Vec::new(), Time(1_000_000_000));
        let (tickets, room, released) = (0, true, 0);
        let mut chain = Chain { blocks, size, now, tickets, answered, room, released };
        chain.add(0);
        chain
    }

    fn add(&mut self, start: u64) {
        let opening = Opening { first: start == 0, ..Opening::alone(self.size) };
        let backing = Backing::map(self.size, &Reclaimer::inline()).unwrap();
        let (structure, sealed, drained) = (Log.open(&opening), None, false);
        self.blocks.push(Held { structure, backing, start, sealed, drained });
    }

    /// Runs one operation at one block, and handles its events as a shard does.
    fn at(&mut self, block: usize, name: &str, args: &[u8], payload: &[u8], wait: u64) -> Outcome {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let number = Log.spec().operation(name).unwrap().number;
        let operation = Operation {
            now: self.now,
            ticket,
            op: Op::Custom((CODE as u16) << 8 | number as u16),
            args,
            wait_until: self.now + Duration::from_millis(wait),
        };
        let held = &mut self.blocks[block];
        let outcome = held.structure.apply(&mut held.backing, &operation, payload);
        self.after(block);
        outcome
    }

    fn after(&mut self, block: usize) {
        let mut grown = None;
        let held = &mut self.blocks[block];
        while let Some(event) = held.structure.event() {
            match event {
                Event::Answered(ticket, answer) => self.answered.push((ticket, answer)),
                Event::Sealed { length, successor, .. } => {
                    assert!(successor.is_some() && held.sealed.is_none());
                    held.sealed = Some(length);
                    assert_eq!(held.structure.growth().unwrap().is_final(), Some(true));
                    grown = Some(held.start + length);
                }
                Event::Drained => {
                    assert!(!held.drained && (held.sealed.is_some()), "once, and when sealed");
                    held.drained = true;
                }
                other => panic!("a log says nothing of {other:?}"),
            }
        }
        if held.structure.growth().unwrap().wants_successor() {
            let successor = match self.room {
                true => Successor::Ready(b"the next block".to_vec()),
                false => Successor::Denied(Status::OutOfMemory, "no block is free".into()),
            };
            let now = self.now;
            let growth = held.structure.growth().unwrap();
            growth.successor(&mut held.backing, now, successor);
        }
        assert!(held.structure.bytes_used() <= self.size as u64);
        if let Some(start) = grown {
            self.add(start);
        }
    }

    /// Advances the time and runs the timers that are due.
    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        for block in 0..self.blocks.len() {
            for _ in 0..10_000 {
                let held = &mut self.blocks[block];
                if held.structure.waits().unwrap().deadline().is_none_or(|due| due > self.now) {
                    break;
                }
                held.structure.waits().unwrap().tick(&mut held.backing, self.now);
                self.after(block);
            }
        }
    }

    /// Retires the first drained block, as a controller does.
    fn retire(&mut self) {
        if self.blocks[0].drained {
            self.blocks.remove(0);
            self.released += 1;
        }
    }

    fn done(&mut self, block: usize, name: &str, args: &[u8], payload: &[u8]) -> Answer {
        match self.at(block, name, args, payload, 0) {
            Outcome::Done(answer) => answer,
            Outcome::Parked => panic!("nobody was to wait"),
        }
    }

    /// The block for a position according to a map without retired blocks.
    fn route(&self, position: u64) -> usize {
        let after = self.blocks.partition_point(|held| held.start <= position);
        after.saturating_sub(1)
    }

    fn args_at(&self, block: usize, position: u64, rest: &[u8]) -> Vec<u8> {
        let mut args = Vec::new();
        let from_start = position.wrapping_sub(self.blocks[block].start) as i64;
        put_routed(Routed::By(from_start), &mut args);
        args.extend_from_slice(rest);
        args
    }

    /// Appends as a client does: follows `Moved` and retries after `Busy`. A record that is much longer
    /// than those before it may need the next block before that was requested.
    fn append(&mut self, tag: &[u8], bytes: &[u8]) -> Answer {
        for _ in 0..3 {
            let tail = self.blocks.len() - 1;
            let answer = self.done(tail, "append", tag, bytes);
            match answer.status {
                Status::Busy => {}
                Status::Moved => assert_eq!(Some(answer.value), self.blocks[tail].sealed),
                Status::Ok => {
                    return Answer { value: self.blocks[tail].start + answer.value, ..answer };
                }
                _ => return answer,
            }
        }
        panic!("an empty block takes any record");
    }

    /// Runs `read` or `scan` at the block that the map names.
    fn look(&mut self, name: &str, position: u64, rest: &[u8]) -> (u64, Answer) {
        let block = self.route(position);
        let args = self.args_at(block, position, rest);
        let answer = self.done(block, name, &args, &[]);
        assert_ne!(answer.status, Status::Moved, "{name} at {position} goes round in circles");
        (self.blocks[block].start, answer)
    }

    fn trim(&mut self, position: u64) -> u64 {
        let mut given_up = 0;
        let last = self.route(position);
        for block in 0..=last {
            let args = self.args_at(block, position, &[]);
            let answer = self.done(block, "trim", &args, &[]);
            assert_eq!(answer.status, Status::Ok);
            given_up += answer.value;
        }
        given_up
    }

    fn payload(&self, block: usize, answer: &Answer) -> Vec<u8> {
        match &answer.payload {
            Payload::None => Vec::new(),
            Payload::Bytes(bytes) => bytes.to_vec(),
            Payload::Block(range) => self.blocks[block].backing.slice(range.clone()).to_vec(),
            Payload::Pinned(pin) => pin.bytes().to_vec(),
            Payload::Parts(_) => unreachable!("all of it is in memory"),
        }
    }

    /// Every record with a tag from a number on, collected as by a client.
    fn scan_all(&mut self, from: u64, records: u32, bytes: u32, tag: &[u8]) -> Vec<Record> {
        let (mut at, mut out) = (from, Vec::new());
        for _ in 0..1_000_000 {
            let args = ScanArgs { records, bytes, tag }.encode();
            let (start, answer) = self.look("scan", at, &args);
            assert_eq!(answer.status, Status::Ok, "{answer:?}");
            let page = Page::decode(&answer.args).unwrap();
            let first = start + answer.value;
            assert!(first >= at, "pages go forward");
            let found = page_records(first, &self.payload(0, &answer)).unwrap();
            assert!(found.len() <= records.max(1) as usize);
            out.extend(found);
            if page.end {
                return out;
            }
            assert!(first + page.next > at, "a page that is not the end brings something on");
            at = first + page.next;
        }
        panic!("a scan comes to an end");
    }

    fn stats(&mut self) -> Vec<Stats> {
        (0..self.blocks.len())
            .map(|block| Stats::decode(&self.done(block, "stats", &[], &[]).args).unwrap())
            .collect()
    }
}

fn all() -> Vec<u8> {
    ScanArgs { records: 100, bytes: 1 << 16, tag: b"" }.encode()
}

#[test]
fn its_description_is_sound() {
    let kinds = honeycomb_structures::Registry::builtin().with(Log).unwrap();
    assert_eq!(kinds.custom().next().unwrap().name, "log");
    assert_eq!(Log.spec().kind, Kind::from_code(CODE).unwrap());
}

#[test]
fn records_are_numbered_and_found_by_number_and_tag() {
    let mut chain = Chain::new(BLOCK);
    for (number, (tag, bytes)) in
        [("a", "one"), ("b", "two"), ("a", ""), ("", "four")].iter().enumerate()
    {
        let answer = chain.append(tag.as_bytes(), bytes.as_bytes());
        assert_eq!((answer.status, answer.value), (Status::Ok, number as u64));
    }
    let (_, answer) = chain.look("read", 1, &[]);
    assert_eq!((answer.value, &answer.args[..]), (1, &b"b"[..]));
    assert_eq!(chain.payload(0, &answer), b"two");
    let (_, missing) = chain.look("read", 4, &[]);
    assert_eq!((missing.status, missing.value), (Status::Refused, NOT_YET_WRITTEN));
    let numbers = |found: Vec<Record>| found.iter().map(|r| r.number).collect::<Vec<_>>();
    assert_eq!(numbers(chain.scan_all(0, 2, 1000, b"")), [0, 1, 2, 3]);
    assert_eq!(numbers(chain.scan_all(1, 100, 1000, b"")), [1, 2, 3]);
    assert_eq!(numbers(chain.scan_all(0, 1, 0, b"a")), [0, 2]);
    assert_eq!(numbers(chain.scan_all(0, 100, 1000, b"none")), [0_u64; 0]);
}

#[test]
fn what_cannot_be_is_refused() {
    let mut chain = Chain::new(BLOCK);
    let long = chain.append(&[b't'; TAG_MAX + 1], b"x");
    assert_eq!((long.status, long.value), (Status::Refused, TAG_TOO_LONG));
    assert_eq!(chain.append(b"", &[0; BLOCK / 8]).status, Status::ValueTooLarge);
    assert_eq!(chain.append(b"", &[0; BLOCK / 8 - 5]).status, Status::Ok);
    for (name, args) in [
        ("read", &[0; 7][..]),
        ("read", &[0; 9]),
        ("scan", &[0; 8]),
        ("scan", &[0; 15]),
        ("follow", &[0; 8 + 8 + 256]),
        ("trim", &[0; 9]),
        ("stats", &[0; 1]),
    ] {
        assert_eq!(chain.done(0, name, args, &[]).status, Status::BadFrame, "{name}");
    }
}

#[test]
fn it_grows_over_blocks_and_gives_whole_blocks_back() {
    let mut chain = Chain::new(BLOCK);
    let record = [7; 1000];
    let per_block = (BLOCK / 1005) as u64;
    for number in 0..5 * per_block {
        assert_eq!(chain.append(b"", &record).value, number);
    }
    assert_eq!(chain.blocks.len(), 5);
    assert_eq!(chain.trim(2 * per_block), 2 * per_block);
    assert_eq!(
        chain.blocks.iter().map(|held| held.drained).collect::<Vec<_>>()[..3],
        [true, true, false]
    );
    // Trimmed records are refused whether or not their blocks still exist.
    let (_, gone) = chain.look("read", per_block + 3, &[]);
    assert_eq!((gone.status, gone.value), (Status::Refused, TRIMMED));
    let found = chain.scan_all(3, 10, 1 << 16, b"");
    assert_eq!(found.first().unwrap().number, 2 * per_block);
    chain.retire();
    let (_, gone) = chain.look("read", per_block + 3, &[]);
    assert_eq!((gone.status, gone.value), (Status::Refused, TRIMMED));
    chain.retire();
    chain.retire();
    assert_eq!((chain.blocks.len(), chain.released), (3, 2));
    // Numbers of retired blocks are routed to the first remaining block.
    let (_, gone) = chain.look("read", 3, &[]);
    assert_eq!((gone.status, gone.value), (Status::Refused, TRIMMED));
    assert_eq!(chain.append(b"", b"more").value, 5 * per_block);
}

#[test]
fn a_log_that_is_trimmed_as_it_grows_stays_in_one_block() {
    let mut chain = Chain::new(BLOCK);
    for number in 0..1000_u64 {
        assert_eq!(chain.append(b"", &[1; 1000]).value, number);
        if number % 10 == 9 {
            assert_eq!(chain.trim(number + 1), 10);
            chain.pass(Duration::ZERO);
            assert_eq!(chain.blocks[0].structure.bytes_used(), 0);
        }
    }
    assert_eq!(chain.blocks.len(), 1);
}

#[test]
fn a_block_does_not_begin_anew_while_somebody_reads_from_it() {
    let mut chain = Chain::new(BLOCK);
    chain.append(b"", &[1; 1000]);
    let pin = chain.blocks[0].backing.pin(1..1001);
    chain.trim(1);
    chain.pass(Duration::from_millis(50));
    chain.append(b"", &[2; 1000]);
    assert_eq!(pin.bytes(), [1; 1000]);
    drop(pin);
    chain.trim(2);
    chain.pass(Duration::from_millis(50));
    assert_eq!(chain.blocks[0].structure.bytes_used(), 0);
    assert_eq!(chain.append(b"", &[3; 1000]).value, 2);
}

#[test]
fn trimmed_memory_goes_back_while_the_block_is_in_use() {
    let size = 16 << 20;
    let mut chain = Chain::new(size);
    for _ in 0..10 {
        chain.append(b"", &vec![9; 1 << 20]);
    }
    let before = chain.blocks[0].structure.bytes_used();
    assert_eq!(chain.trim(8), 8);
    chain.pass(Duration::ZERO);
    let after = chain.blocks[0].structure.bytes_used();
    assert!(before - after >= 7 << 20, "{before} bytes before, {after} after");
    // Returned pages read as zero; the remaining records are unchanged.
    assert_eq!(chain.blocks[0].backing.slice(1 << 20..(1 << 20) + 10), [0; 10]);
    let (_, answer) = chain.look("read", 9, &[]);
    assert_eq!(chain.payload(0, &answer), vec![9; 1 << 20]);
}

#[test]
fn followers_get_what_comes_and_only_that() {
    let mut chain = Chain::new(BLOCK);
    chain.append(b"old", b"0");
    let follow = |chain: &mut Chain, position: u64, tag: &[u8], wait: u64| {
        let args = ScanArgs { records: 10, bytes: 1000, tag }.encode();
        let args = chain.args_at(0, position, &args);
        chain.at(0, "follow", &args, &[], wait)
    };
    // An existing record is returned at once; a missing one fails after the wait.
    assert!(matches!(follow(&mut chain, 0, b"", 1000), Outcome::Done(page) if page.value == 0));
    let Outcome::Done(nothing) = follow(&mut chain, 1, b"", 0) else { panic!("it may not wait") };
    assert_eq!(nothing.status, Status::NotYet);
    assert_eq!(follow(&mut chain, 1, b"", 1000), Outcome::Parked);
    assert_eq!(follow(&mut chain, 0, b"new", 1000), Outcome::Parked);
    let cancelled = follow(&mut chain, 1, b"new", 1000);
    assert_eq!(cancelled, Outcome::Parked);
    assert!(chain.blocks[0].structure.waits().unwrap().cancel(Ticket(chain.tickets)));
    assert!(!chain.blocks[0].structure.waits().unwrap().cancel(Ticket(chain.tickets)));
    chain.append(b"other", b"1");
    assert_eq!(chain.answered.len(), 1);
    chain.append(b"new", b"2");
    let answers = std::mem::take(&mut chain.answered);
    let numbers: Vec<u64> = answers
        .iter()
        .map(|(_, page)| page_records(page.value, &chain.payload(0, page)).unwrap()[0].number)
        .collect();
    assert_eq!(numbers, [1, 2]);
    // A follower ends at its deadline.
    assert_eq!(follow(&mut chain, 3, b"", 200), Outcome::Parked);
    assert_eq!(
        chain.blocks[0].structure.waits().unwrap().deadline(),
        Some(chain.now + Duration::from_millis(200))
    );
    chain.pass(Duration::from_millis(199));
    assert!(chain.answered.is_empty());
    chain.pass(Duration::from_millis(1));
    assert_eq!(chain.answered[0].1.status, Status::NotYet);
}

#[test]
fn followers_go_with_the_log_to_its_next_block() {
    let mut chain = Chain::new(BLOCK);
    while chain.blocks.len() == 1 {
        chain.append(b"", &[0; 4000]);
        let tail = chain.blocks.len() - 1;
        if tail == 0 {
            chain.answered.clear();
            let next = chain.stats()[0].appended;
            let args = chain.args_at(0, next, &all());
            assert_eq!(chain.at(0, "follow", &args, &[], 1000), Outcome::Parked);
        }
    }
    let (_, answer) = chain.answered.last().unwrap();
    assert_eq!((answer.status, Some(answer.value)), (Status::Moved, chain.blocks[0].sealed));
}

#[test]
fn without_a_successor_it_says_so_and_goes_on_when_there_is_one() {
    let mut chain = Chain::new(BLOCK);
    chain.room = false;
    let mut count = 0;
    let refused = loop {
        let answer = chain.append(b"", &[0; 1000]);
        if answer.status != Status::Ok {
            break answer;
        }
        count += 1;
    };
    assert_eq!(refused.status, Status::OutOfMemory);
    assert_eq!(chain.scan_all(0, 1000, 1 << 20, b"").len(), count);
    chain.room = true;
    // The rejection made the block request a successor again; the append after the next one gets it.
    assert_eq!(chain.append(b"", &[0; 1000]).status, Status::OutOfMemory);
    let answer = chain.append(b"", &[0; 1000]);
    assert_eq!((answer.status, answer.value), (Status::Ok, count as u64));
}

/// With small records the block requests its successor in time; a large record may arrive before that.
#[test]
fn a_record_much_longer_than_those_before_it_is_asked_to_come_again() {
    let mut chain = Chain::new(BLOCK);
    let large = vec![7; 6000];
    while BLOCK as u64 - chain.blocks[0].structure.bytes_used() > 5000 {
        assert_eq!(chain.append(b"", &[1; 100]).status, Status::Ok);
    }
    assert_eq!(chain.done(0, "append", b"", &large).status, Status::Busy);
    assert_eq!(chain.done(0, "append", b"", &large).status, Status::Moved);
    assert_eq!(chain.done(1, "append", b"", &large).status, Status::Ok);
}

// ---------------------------------------------------------------------------------- properties

#[derive(Clone, Debug)]
enum Step {
    Append { tag: u8, length: usize },
    Read { at: f64 },
    Scan { at: f64, records: u32, bytes: u32, tag: u8 },
    Trim { at: f64 },
    Retire,
    Pass,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = || 0.0..1.2;
    let step = prop_oneof![
        12 => (0..4u8, 0..6000usize).prop_map(|(tag, length)| Step::Append { tag, length }),
        4 => at().prop_map(|at| Step::Read { at }),
        3 => (at(), 0..50u32, 0..20_000u32, 0..4u8)
            .prop_map(|(at, records, bytes, tag)| Step::Scan { at, records, bytes, tag }),
        2 => at().prop_map(|at| Step::Trim { at }),
        1 => Just(Step::Retire),
        1 => Just(Step::Pass),
    ];
    prop::collection::vec(step, 1..300)
}

/// Tag 0 is no tag, and a scan for it matches every record.
fn tag_of(tag: u8) -> Vec<u8> {
    vec![b'a' + tag; tag as usize]
}

/// The model of a log: records by number, and the first number that is not trimmed.
#[derive(Default)]
struct Model {
    records: BTreeMap<u64, (Vec<u8>, Vec<u8>)>,
    next: u64,
    trimmed: u64,
}

fn check(chain: &mut Chain, model: &mut Model, step: &Step) {
    let number = |at: f64| (model.next as f64 * at) as u64;
    match *step {
        Step::Append { tag, length } => {
            let bytes = vec![model.next as u8; length];
            let answer = chain.append(&tag_of(tag), &bytes);
            assert_eq!((answer.status, answer.value), (Status::Ok, model.next));
            model.records.insert(model.next, (tag_of(tag), bytes));
            model.next += 1;
        }
        Step::Read { at } => {
            let wanted = number(at);
            let (start, answer) = chain.look("read", wanted, &[]);
            match model.records.get(&wanted) {
                Some((tag, bytes)) => {
                    assert_eq!((answer.status, start + answer.value), (Status::Ok, wanted));
                    assert_eq!(&answer.args, tag);
                    let block = chain.route(wanted);
                    assert_eq!(&chain.payload(block, &answer), bytes);
                }
                None => {
                    let code = if wanted < model.trimmed { TRIMMED } else { NOT_YET_WRITTEN };
                    assert_eq!((answer.status, answer.value), (Status::Refused, code));
                }
            }
        }
        Step::Scan { at, records, bytes, tag } => {
            let (from, tag) = (number(at).min(model.next), tag_of(tag));
            let found = chain.scan_all(from, records, bytes, &tag);
            let expected: Vec<Record> = model
                .records
                .range(from..)
                .filter(|(_, (own, _))| tag.is_empty() || *own == tag)
                .map(|(number, (tag, bytes))| Record {
                    number: *number,
                    tag: tag.clone(),
                    bytes: bytes.clone(),
                })
                .collect();
            assert_eq!(found, expected);
        }
        Step::Trim { at } => {
            let to = number(at);
            let kept = model.records.split_off(&to);
            let gone = std::mem::replace(&mut model.records, kept).len() as u64;
            assert_eq!(chain.trim(to), gone);
            model.trimmed = model.trimmed.max(to.min(model.next));
        }
        Step::Retire => chain.retire(),
        Step::Pass => chain.pass(Duration::from_millis(20)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// No arguments or payload make a block panic, in any state.
    #[test]
    fn no_bytes_harm_it(
        requests in prop::collection::vec(
            (0..6usize, prop::collection::vec(any::<u8>(), 0..40), 0..9000usize, 0..2u64),
            1..60,
        )
    ) {
        let mut chain = Chain::new(BLOCK);
        for (operation, args, length, wait) in requests {
            let spec = &Log.spec().operations[operation];
            let payload = if spec.payload { vec![1; length] } else { Vec::new() };
            let tail = chain.blocks.len() - 1;
            chain.at(tail, &spec.name, &args, &payload, wait);
            chain.at(0, &spec.name, &args, &payload, wait);
            chain.pass(Duration::from_millis(1));
        }
    }

    /// After any operations, with blocks retired in any order, the log matches the model: numbers without
    /// gaps, records in order of arrival, trimmed records gone permanently and their blocks released.
    #[test]
    fn it_is_what_the_model_says(steps in steps()) {
        let mut chain = Chain::new(BLOCK);
        let mut model = Model::default();
        for step in &steps {
            check(&mut chain, &mut model, step);
        }
        let kept: u64 = chain.stats().iter().map(|stats| stats.records).sum();
        prop_assert_eq!(kept, model.records.len() as u64);
        let bytes: u64 = chain.stats().iter().map(|stats| stats.bytes).sum();
        let expected: usize = model.records.values().map(|(tag, bytes)| tag.len() + bytes.len()).sum();
        prop_assert_eq!(bytes, expected as u64);
        // At the end, all blocks except the last can be released.
        chain.trim(model.next);
        chain.pass(Duration::from_millis(20));
        let before = chain.blocks.len();
        for _ in 0..before {
            chain.retire();
        }
        prop_assert_eq!(chain.blocks.len(), 1);
        prop_assert!(chain.blocks[0].structure.bytes_used() == 0);
    }
}
