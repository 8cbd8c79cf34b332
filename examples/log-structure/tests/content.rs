//! The content of a log's block: its items in a flush, and reads while its bytes are in a lower tier.
#![allow(clippy::unwrap_used)]

use honeycomb_structures::{
    Answer, Backing, Fetched, ItemSink, Op, Opening, Operation, Outcome, Payload, Reclaimer, Rest,
    Routed, Status, Structure, StructureKind, Ticket, Time, put_routed,
};
use log_structure::{CODE, Log, Page, ScanArgs, Stats, page_records};
use std::io;

const BLOCK: usize = 64 << 10;

struct Block {
    structure: Box<dyn Structure>,
    backing: Backing,
}

impl Block {
    fn new() -> Block {
        let opening = Opening::alone(BLOCK);
        let backing = Backing::map(BLOCK, &Reclaimer::inline()).unwrap();
        Block { structure: Log.open(&opening), backing }
    }

    fn run(&mut self, name: &str, args: &[u8], payload: &[u8]) -> Answer {
        let (now, ticket) = (Time(1_000_000_000), Ticket(1));
        let operation = Operation { now, ticket, op: code(name), args, wait_until: now };
        match self.structure.apply(&mut self.backing, &operation, payload) {
            Outcome::Done(answer) => answer,
            Outcome::Parked => panic!("{name} may not wait"),
        }
    }

    /// Runs an operation as a shard does whose block is in a lower tier.
    fn below(&self, name: &str, args: &[u8]) -> Answer {
        let reads = self.structure.content().unwrap().lower_tier_reads().unwrap();
        let mut fetched = Fetched::within(8 << 10);
        for _ in 0..4 {
            let answer = reads.read(&fetched, code(name), args, b"");
            let wanted = fetched.take_wanted();
            if wanted.is_empty() {
                return answer;
            }
            for range in wanted {
                let mut part = Backing::map(range.len(), &Reclaimer::inline()).unwrap();
                part.slice_mut(0..range.len()).copy_from_slice(self.backing.slice(range.clone()));
                fetched.add(range.start, part);
            }
        }
        panic!("{name} requests its ranges in few turns");
    }

    /// The numbers and bytes of all records, page by page.
    fn scan(&mut self, below: bool) -> Vec<(u64, Vec<u8>)> {
        let (mut from, mut all) = (0, Vec::new());
        let rest = ScanArgs { records: 50, bytes: 1 << 20, tag: b"" }.encode();
        loop {
            let args = at(from, &rest);
            let answer =
                if below { self.below("scan", &args) } else { self.run("scan", &args, b"") };
            assert_eq!(answer.status, Status::Ok);
            let Payload::Bytes(payload) = &answer.payload else { return all };
            let found = page_records(answer.value, payload).unwrap();
            all.extend(found.into_iter().map(|record| (record.number, record.bytes)));
            from = (answer.value + Page::decode(&answer.args).unwrap().next) as i64;
        }
    }
}

fn code(name: &str) -> Op {
    let number = Log.spec().operation(name).unwrap().number;
    Op::Custom((CODE as u16) << 8 | number as u16)
}

fn at(position: i64, rest: &[u8]) -> Vec<u8> {
    let mut args = Vec::new();
    put_routed(Routed::By(position), &mut args);
    [&args, rest].concat()
}

fn filled() -> Block {
    let mut block = Block::new();
    for number in 0..200_u8 {
        let bytes = vec![number; 100 + number as usize];
        assert_eq!(block.run("append", b"tag", &bytes).value, number as u64);
    }
    assert_eq!(block.run("trim", &at(50, b""), b"").value, 50);
    block
}

#[derive(Default)]
struct Items(Vec<Vec<u8>>);

impl ItemSink for Items {
    fn item(&mut self, bytes: &[&[u8]]) -> io::Result<()> {
        self.0.push(bytes.concat());
        Ok(())
    }
}

#[test]
fn items_of_a_flush_restore_the_records_that_are_not_trimmed() {
    let mut block = filled();
    let snapshot = block.structure.content().unwrap().snapshot((0, u64::MAX));
    let mut items = Items::default();
    snapshot.give(block.backing.slice(0..BLOCK), &mut items).unwrap();
    let mut again = Block::new();
    for item in &items.0 {
        let (length, record) = item.split_first_chunk().unwrap();
        assert_eq!(u32::from_le_bytes(*length) as usize, record.len());
        assert_eq!(again.run("restore", b"", record).status, Status::Ok);
    }
    let expected = block.scan(false).into_iter().map(|(number, bytes)| (number - 50, bytes));
    assert!(again.scan(false).into_iter().eq(expected));
    // A tag that is longer than its record.
    for damaged in [&b""[..], &[3, b't']] {
        assert_eq!(again.run("restore", b"", damaged).status, Status::BadFrame);
    }
}

#[test]
fn block_in_a_lower_tier_reads_as_in_memory() {
    let mut block = filled();
    for position in [-1, 0, 49, 50, 51, 120, 199, 200] {
        let args = at(position, b"");
        assert_eq!(block.below("read", &args), block.run("read", &args, b""), "{position}");
    }
    assert_eq!(block.below("stats", b""), block.run("stats", b"", b""));
    let all = block.scan(true);
    assert_eq!(all.len(), 150);
    assert!(all == block.scan(false));
    let rest = ScanArgs { records: 1, bytes: 100, tag: b"" }.encode();
    assert_eq!(block.below("follow", &at(60, &rest)).status, Status::Ok);
    assert_eq!(block.below("follow", &at(200, &rest)).status, Status::NotYet);
}

/// A block without records may have no bytes in its lower tier: the server ended when they were requested.
#[test]
fn trimmed_block_in_a_lower_tier_requests_no_bytes() {
    let mut block = filled();
    assert_eq!(block.run("trim", &at(200, b""), b"").value, 150);
    let reads = block.structure.content().unwrap().lower_tier_reads().unwrap();
    let rest = ScanArgs { records: 1, bytes: 100, tag: b"" }.encode();
    for (name, args) in [
        ("stats", Vec::new()),
        ("read", at(100, b"")),
        ("scan", at(0, &rest)),
        ("follow", at(200, &rest)),
    ] {
        let mut fetched = Fetched::within(8 << 10);
        let answer = reads.read(&fetched, code(name), &args, b"");
        assert_eq!(fetched.take_wanted(), [], "{name}");
        if name == "stats" {
            assert_eq!(Stats::decode(&answer.args).unwrap().bytes, 0);
        }
    }
}

#[test]
fn block_with_bytes_to_return_is_not_demoted_meanwhile() {
    let mut block = filled();
    assert_eq!(block.structure.content().unwrap().rests(), Rest::Busy);
    let waits = block.structure.waits().unwrap();
    let due = waits.deadline().unwrap();
    waits.tick(&mut block.backing, due);
    assert_eq!(block.structure.content().unwrap().rests(), Rest::Whole(BLOCK));
    assert_eq!(Block::new().structure.content().unwrap().rests(), Rest::Whole(0));
}
