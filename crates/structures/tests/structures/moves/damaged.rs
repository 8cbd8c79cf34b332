//! Regions that no server has built: the target refuses them when everything has arrived, and can still take
//! the right ones.

use super::{Pair, Under, key};
use crate::Driver;
use honeycomb_structures::{KvBlock, Parcel};
use honeycomb_wire::messages::{
    MoveDoneRequest, MoveDropsRequest, MoveRegionRequest, MoveValueRequest,
};
use honeycomb_wire::{Field, Op, Status, checksum};
use std::ops::Range;

const COUNT_AT: usize = 8;
const LIVE_AT: usize = 16;
const HEADER: usize = 32;
const FLAGS_AT: usize = 0;
const KEY_LENGTH_AT: usize = 1;
const VALUE_LENGTH_AT: usize = 2;
/// Bytes of the head of an entry with a short key and a short value.
const HEAD: usize = 4;
/// The offsets of entries are multiples of this.
const ALIGN: usize = 4;
const LARGE: u8 = 2;

/// A region as it was sent.
#[derive(Clone)]
struct Sent {
    start: u64,
    end: u64,
    values: u32,
    bytes: Vec<u8>,
    /// Bytes of its values that arrive with it besides those that were sent with it.
    more: i64,
}

impl Sent {
    fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap())
    }

    fn set(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn words(&self) -> Range<usize> {
        HEADER..HEADER + 8 * self.u32_at(4) as usize
    }

    /// The places of the used words.
    fn used(&self) -> Vec<usize> {
        let used = |at: &usize| self.bytes[*at..*at + 8] != [0; 8];
        self.words().step_by(8).filter(used).collect()
    }

    /// The place of the entry that a word names.
    fn entry(&self, word: usize) -> usize {
        (self.u32_at(word) as usize - 1) * ALIGN
    }

    /// The places of the entries that its index names and that have values of their own.
    fn large(&self) -> Vec<usize> {
        let entries = self.used().into_iter().map(|word| self.entry(word));
        entries.filter(|at| self.bytes[at + FLAGS_AT] & LARGE != 0).collect()
    }

    /// The place of the value of an entry, or of its number.
    fn stored(&self, entry: usize) -> usize {
        entry + HEAD + self.bytes[entry + KEY_LENGTH_AT] as usize
    }

    /// The length of its value.
    fn value_length(&self, entry: usize) -> u16 {
        let at = entry + VALUE_LENGTH_AT;
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }
}

/// A move of which everything was sent.
struct Arrived {
    pair: Pair,
    id: u64,
    to: usize,
    /// Its totals.
    entries: u64,
    bytes: u64,
    /// A region of small entries, and one with several values beside it.
    small: Sent,
    large: Sent,
}

impl Arrived {
    fn new() -> Arrived {
        let mut pair = Pair::new();
        (0..200).for_each(|n| pair.put(&key(n), &[n as u8; 4]));
        (200..214).for_each(|n| pair.put(&key(n), &vec![n as u8; 9000 + n as usize]));
        pair.begin(0, 31);
        pair.freeze(true);
        let Under { from, to, id, .. } = pair.under.unwrap();
        let mut regions = Vec::new();
        loop {
            let (mover, block) = pair.mover(from);
            let Some(parcel) = mover.next_parcel(block) else { break };
            let (op, args) = parcel.request(id);
            let bytes = match parcel {
                Parcel::Region { start, end, values, bytes, .. } => {
                    let bytes = bytes.to_vec();
                    regions.push(Sent { start, end, values, bytes: bytes.clone(), more: 0 });
                    bytes
                }
                Parcel::Value { bytes, .. } => bytes.bytes().to_vec(),
                other => panic!("nothing has changed: {other:?}"),
            };
            assert_eq!(pair.driver(to).run(op, &args, &bytes).status, Status::Ok);
        }
        let totals = pair.mover(from).0.totals();
        let small = regions.iter().find(|sent| sent.values == 0 && sent.used().len() > 2);
        let large = regions.iter().find(|sent| sent.large().len() > 1);
        let (small, large) = (small.or(large).unwrap().clone(), large.unwrap().clone());
        Arrived { pair, id, to, entries: totals.entries, bytes: totals.bytes, small, large }
    }

    fn target(&mut self) -> &mut Driver<KvBlock> {
        self.pair.driver(self.to)
    }

    fn send(&mut self, sent: &Sent) -> Status {
        let Sent { start, end, values, ref bytes, .. } = *sent;
        let (move_id, checksum) = (self.id, checksum(bytes));
        let args = MoveRegionRequest { move_id, start, end, values, checksum }.encode();
        self.target().run(Op::MoveRegion, &args, bytes).status
    }

    fn done(&mut self) -> Status {
        let (entries, bytes) = (self.entries, self.bytes);
        let done = MoveDoneRequest { move_id: self.id, entries, bytes }.encode();
        self.target().run(Op::MoveDone, &done, b"").status
    }

    /// Sends a damaged region in place of this one, which is refused, and then this one again.
    fn refuses(&mut self, sound: &Sent, what: &str, damage: impl FnOnce(&mut Sent)) {
        let mut damaged = sound.clone();
        damage(&mut damaged);
        assert!(damaged.bytes != sound.bytes, "{what}");
        // The totals are those of what arrives.
        let totals = (self.entries, self.bytes);
        let counts = |sent: &Sent| (sent.u32_at(COUNT_AT) as u64, sent.u32_at(LIVE_AT) as u64);
        let ((count, live), (before, before_live)) = (counts(&damaged), counts(sound));
        (self.entries, self.bytes) = (totals.0 + count - before, totals.1 + live - before_live);
        self.bytes = self.bytes.checked_add_signed(damaged.more).unwrap();
        let sent = self.send(&damaged);
        assert!(sent == Status::BadFrame || self.done() == Status::BadFrame, "{what}");
        (self.entries, self.bytes) = totals;
        assert_eq!(self.send(sound), Status::Ok, "{what}");
        assert_eq!(self.done(), Status::Ok, "{what}");
    }
}

/// The first request for such a key ended the server, or never ended.
#[test]
fn region_that_is_damaged_is_refused_before_it_is_served() {
    let mut arrived = Arrived::new();
    assert_eq!(arrived.done(), Status::Ok);
    let small = arrived.small.clone();
    let words = small.used();
    let entry = small.entry(words[0]);
    arrived.refuses(&small, "an entry that ends behind the log", |sent| {
        sent.bytes[entry + VALUE_LENGTH_AT..][..2].fill(0xff);
    });
    for (flags, what) in [
        (LARGE, "a value that has not arrived"),
        (4, "an undecided batch"),
        (8, "no list of extents"),
        (LARGE | 8, "a list that is a value of its own"),
        (16, "a head of another length"),
        (64, "unknown flags"),
    ] {
        arrived.refuses(&small, what, |sent| sent.bytes[entry + FLAGS_AT] = flags);
    }
    arrived.refuses(&small, "a dead entry that is counted", |sent| {
        sent.bytes[entry + FLAGS_AT] = 1;
    });
    arrived.refuses(&small, "another key", |sent| sent.bytes[entry + HEAD] ^= 1);
    arrived.refuses(&small, "a word that names no entry", |sent| sent.set(words[0], 0));
    arrived.refuses(&small, "a word outside of the region", |sent| sent.set(words[0], u32::MAX));
    arrived.refuses(&small, "two words for one entry", |sent| {
        sent.set(words[1], small.u32_at(words[0]));
    });
    arrived.refuses(&small, "a lost word", |sent| sent.bytes[words[0]..words[0] + 8].fill(0));
    arrived.refuses(&small, "no empty word", |sent| {
        let all = sent.words();
        for word in all.step_by(8).filter(|word| !words.contains(word)) {
            sent.set(word, 1000);
        }
    });
    arrived.refuses(&small, "fewer entries", |sent| {
        sent.set(COUNT_AT, small.u32_at(COUNT_AT) - 1);
    });
    arrived.refuses(&small, "fewer bytes", |sent| sent.set(LIVE_AT, small.u32_at(LIVE_AT) - 4));
    arrived.pair.finish();
    arrived.pair.check();
}

#[test]
fn region_whose_values_are_not_those_that_arrived_is_refused() {
    let mut arrived = Arrived::new();
    let large = arrived.large.clone();
    let [first, second, ..] = large.large()[..] else { panic!("it has two values") };
    let (one, other) = (large.stored(first), large.stored(second));
    let length = |entry| i64::from(large.value_length(entry));
    arrived.refuses(&large, "a value of two entries", |sent| {
        sent.set(other, large.u32_at(one));
        sent.more = length(first) - length(second);
    });
    arrived.refuses(&large, "values of other lengths", |sent| {
        sent.set(other, large.u32_at(one));
        sent.set(one, large.u32_at(other));
    });
    arrived.refuses(&large, "a value that has not arrived", |sent| sent.set(one, 1_000_000));
    arrived.refuses(&large, "an entry that ends behind the log", |sent| {
        sent.bytes[first..first + 2].fill(0xff);
    });
    // A value that belongs to no entry would never be freed.
    let (value, bytes) = (1_000_000, [7; 9000]);
    let args = MoveValueRequest { move_id: arrived.id, value, checksum: checksum(&bytes) }.encode();
    assert_eq!(arrived.target().run(Op::MoveValue, &args, &bytes).status, Status::Ok);
    assert_eq!(arrived.done(), Status::BadFrame);
    // A value that an entry has, and that was dropped.
    let drops = |values| MoveDropsRequest { move_id: arrived.id, values }.encode();
    let (unused, used) = (drops(vec![value]), drops(vec![large.u32_at(one)]));
    assert_eq!(arrived.target().run(Op::MoveDrops, &unused, b"").status, Status::Ok);
    assert_eq!(arrived.done(), Status::Ok);
    assert_eq!(arrived.target().run(Op::MoveDrops, &used, b"").status, Status::Ok);
    assert_eq!(arrived.done(), Status::BadFrame);
    // The move is cancelled, and the source serves everything.
    arrived.pair.cancel();
    arrived.pair.check();
    arrived.pair.begin(0, 31);
    arrived.pair.finish();
    arrived.pair.check();
}
