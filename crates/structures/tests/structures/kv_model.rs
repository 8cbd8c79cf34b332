mod batches;

use crate::{BYTES_CHECKED_EACH_STEP, Driver, blocks, lengths, pattern, steps_in};
use honeycomb_block::Pin;
use honeycomb_structures::{Answer, KvBlock, Marks, Ops, Outcome, Payload, Ticket};
use honeycomb_types::limits::KV_BATCH_BYTES_MAX;
use honeycomb_wire::data::{Brings, PutMode, ScanArgs, SwapArgs, scan_entries};
use honeycomb_wire::stored::{Function, accumulate_args};
use honeycomb_wire::{Op, Status, key_hash};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A mutation with its key and the length of its value.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Put,
    Set,
    PutNew,
    Update,
    Upsert,
    /// Expects the present value, or another one.
    Swap {
        right: bool,
    },
    Delete {
        old: bool,
    },
    /// The key selects the function, and the value determines the operand.
    Accumulate,
}

#[derive(Clone, Debug)]
enum Step {
    Batch { atomic: bool, ops: Vec<(Option<Kind>, u16, usize)> },
    MultiGet { keys: Vec<u16>, bytes: u32 },
    Mutate { kind: Kind, key: u16, length: usize },
    Reserve { kind: Kind, key: u16, length: usize },
    Feed { which: usize, length: usize },
    Commit { which: usize },
    Abort { which: usize },
    Get { key: u16 },
    Pin { key: u16 },
    Unpin { which: usize },
    Scan { bytes: u32, keys_only: bool },
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        5 => Just(Kind::Put),
        3 => Just(Kind::Set),
        2 => Just(Kind::PutNew),
        2 => Just(Kind::Update),
        2 => Just(Kind::Upsert),
        2 => any::<bool>().prop_map(|right| Kind::Swap { right }),
        4 => any::<bool>().prop_map(|old| Kind::Delete { old }),
        5 => Just(Kind::Accumulate),
    ]
}

fn bring() -> impl Strategy<Value = Kind> {
    kinds().prop_filter("it may bring a large payload", |kind| {
        !matches!(kind, Kind::Delete { .. } | Kind::Accumulate)
    })
}

/// `keys` keys; values of mixed or mostly one size.
fn steps(size: usize, keys: u16) -> impl Strategy<Value = Vec<Step>> {
    let length = prop_oneof![
        6 => 0usize..40,
        6 => 0usize..600,
        4 => 0usize..3000,
        2 => 0usize..size / 8 + 10,
        4 => lengths(size, 0, size / 8 + 10),
    ];
    let key = 0..keys;
    let step = prop_oneof![
        30 => (kinds(), key.clone(), length.clone())
            .prop_map(|(kind, key, length)| Step::Mutate { kind, key, length }),
        4 => (bring(), key.clone(), length)
            .prop_map(|(kind, key, length)| Step::Reserve { kind, key, length }),
        3 => (0usize..8, 0usize..5000).prop_map(|(which, length)| Step::Feed { which, length }),
        3 => (0usize..8).prop_map(|which| Step::Commit { which }),
        1 => (0usize..8).prop_map(|which| Step::Abort { which }),
        4 => key.clone().prop_map(|key| Step::Get { key }),
        2 => key.prop_map(|key| Step::Pin { key }),
        2 => (0usize..8).prop_map(|which| Step::Unpin { which }),
        1 => (0u32..20_000, any::<bool>())
            .prop_map(|(bytes, keys_only)| Step::Scan { bytes, keys_only }),
        6 => (any::<bool>(), prop::collection::vec(batches::op(size, keys), 0..12))
            .prop_map(|(atomic, ops)| Step::Batch { atomic, ops }),
        2 => (prop::collection::vec(0..keys, 0..20), 0u32..70_000)
            .prop_map(|(keys, bytes)| Step::MultiGet { keys, bytes }),
    ];
    prop::collection::vec(step, steps_in(size, 400))
}

/// Keys of different lengths; some share a tag.
fn key_of(n: u16) -> Vec<u8> {
    match n % 7 {
        0 => format!("{{tag}}{n}").into_bytes(),
        1 => format!("key-{n}-{}", "long".repeat(n as usize % 90)).into_bytes(),
        _ => format!("k{n}").into_bytes(),
    }
}

struct Fill {
    ticket: Ticket,
    kind: Kind,
    key: Vec<u8>,
    payload: Vec<u8>,
    /// The expected value of a compare-and-swap, and the value of every operation.
    expected: Option<Vec<u8>>,
    value: Vec<u8>,
    filled: usize,
}

struct Model {
    size: usize,
    driver: Driver<KvBlock>,
    /// By (hash, key), in the order of a scan.
    entries: BTreeMap<(u64, Vec<u8>), Vec<u8>>,
    fills: Vec<Fill>,
    pins: Vec<(Pin, Vec<u8>)>,
    seed: u64,
}

/// A request: its opcode, arguments and payload.
fn request(
    kind: Kind,
    key: &[u8],
    expected: Option<&[u8]>,
    value: &[u8],
) -> (Op, Vec<u8>, Vec<u8>) {
    let with_mode = |mode: u8| [&[mode][..], key].concat();
    let put = |mode: PutMode| (Op::KvPut, with_mode(mode as u8), value.to_vec());
    match kind {
        Kind::Put => put(PutMode::Always),
        Kind::Set => put(PutMode::Blind),
        Kind::PutNew => put(PutMode::Absent),
        Kind::Update => (Op::KvUpdate, key.to_vec(), value.to_vec()),
        Kind::Upsert => (Op::KvUpsert, key.to_vec(), value.to_vec()),
        Kind::Delete { old } => (Op::KvDelete, with_mode(old as u8), Vec::new()),
        Kind::Swap { .. } => {
            let (present, expected) = (expected.is_some(), expected.unwrap_or(&[]));
            let (args, payload) = SwapArgs { present, key, expected, new: value }.encode();
            (Op::KvCompareAndSwap, args, payload)
        }
        Kind::Accumulate => {
            let function = batches::function_of(key);
            (Op::KvAccumulate, accumulate_args(function, key), batches::operand(function, value))
        }
    }
}

impl Model {
    fn new(size: usize) -> Model {
        Model {
            size,
            driver: Driver::new(size, KvBlock::new(size, 0, u64::MAX, Marks::default())),
            entries: BTreeMap::new(),
            fills: Vec::new(),
            pins: Vec::new(),
            seed: 0,
        }
    }

    /// The largest value that is kept in the block.
    fn limit(&self) -> usize {
        self.size / 8
    }

    fn entry(&self, key: &[u8]) -> Option<&Vec<u8>> {
        self.entries.get(&(key_hash(key), key.to_vec()))
    }

    /// The expected value of a swap.
    fn expectation(&self, kind: Kind, key: &[u8]) -> Option<Vec<u8>> {
        let found = self.entry(key).cloned();
        match (kind, found) {
            (Kind::Swap { right: true }, found) => found,
            (Kind::Swap { right: false }, None) => Some(b"absent".to_vec()),
            (Kind::Swap { right: false }, Some(mut value)) => {
                value.push(1);
                Some(value)
            }
            _ => None,
        }
    }

    /// The answer that the rules require for the present entry.
    fn ruled(
        &self,
        kind: Kind,
        key: &[u8],
        expected: Option<&[u8]>,
        value: &[u8],
    ) -> (Status, u64, Vec<u8>) {
        let found = self.entry(key);
        let old = || found.cloned().unwrap_or_default();
        let there = found.is_some() as u64;
        match kind {
            Kind::Accumulate => {
                let function = batches::function_of(key);
                let operand = batches::operand(function, value);
                match batches::reference(function, found, &operand) {
                    _ if operand.len() > KV_BATCH_BYTES_MAX => {
                        (Status::ValueTooLarge, 0, Vec::new())
                    }
                    Ok((new, number)) if new.len() <= self.limit() => {
                        let list = if function == Function::Top { new } else { Vec::new() };
                        (Status::Ok, number, list)
                    }
                    Ok(_) => (Status::ValueTooLarge, 0, Vec::new()),
                    Err(status) => (status, 0, Vec::new()),
                }
            }
            _ if value.len() > self.limit() => (Status::ValueTooLarge, 0, Vec::new()),
            Kind::Put => (Status::Ok, there, Vec::new()),
            Kind::Set => (Status::Ok, 0, Vec::new()),
            Kind::PutNew if found.is_some() => (Status::KeyExists, 0, Vec::new()),
            Kind::PutNew => (Status::Ok, 0, Vec::new()),
            Kind::Update | Kind::Delete { .. } if found.is_none() => {
                (Status::KeyNotFound, 0, Vec::new())
            }
            Kind::Update | Kind::Delete { old: true } => (Status::Ok, 0, old()),
            Kind::Delete { old: false } => (Status::Ok, 0, Vec::new()),
            Kind::Upsert => (Status::Ok, there, old()),
            Kind::Swap { .. } if found.map(|v| &v[..]) == expected => (Status::Ok, 0, Vec::new()),
            Kind::Swap { .. } => (Status::CompareFailed, there, old()),
        }
    }

    /// Compares an answer with the rules, and applies its effect to the model.
    fn judge(
        &mut self,
        kind: Kind,
        key: &[u8],
        expected: Option<&[u8]>,
        value: Vec<u8>,
        answer: &Answer,
    ) {
        let (status, number, payload) = self.ruled(kind, key, expected, &value);
        let old = match kind {
            Kind::Accumulate => self.entry(key).map_or(0, Vec::len),
            _ => 0,
        };
        if self.refused_for_room(answer, key.len() + old + value.len()) {
            assert_eq!(status, Status::Ok, "room matters only when there is an effect");
            return;
        }
        assert_eq!((answer.status, answer.value), (status, number), "{kind:?}");
        assert!(!matches!(answer.payload, Payload::Block(_)), "it is kept for retries");
        assert_eq!(self.driver.bytes(answer), payload, "{kind:?}");
        if status == Status::Ok {
            self.take_over(kind, key, value);
        }
    }

    /// The effect of a mutation that succeeded.
    fn take_over(&mut self, kind: Kind, key: &[u8], value: Vec<u8>) {
        let id = (key_hash(key), key.to_vec());
        let value = match kind {
            Kind::Delete { .. } => {
                self.entries.remove(&id);
                return;
            }
            Kind::Accumulate => {
                let function = batches::function_of(key);
                let operand = batches::operand(function, &value);
                batches::reference(function, self.entries.get(&id), &operand).unwrap().0
            }
            _ => value,
        };
        self.entries.insert(id, value);
    }

    /// Whether an answer says that there was no room, and that is right.
    fn refused_for_room(&self, answer: &Answer, bytes: usize) -> bool {
        let used = self.driver.structure.bytes_used() as usize;
        match answer.status {
            Status::Busy => {
                assert!(!self.pins.is_empty(), "only a pin makes room a matter of time")
            }
            Status::BlockFull => {
                let most = self.size - self.size / 32 - 400;
                assert!(used + bytes >= most, "{bytes} more than {used} were refused");
            }
            _ => return false,
        }
        true
    }

    fn value(&mut self, length: usize) -> Vec<u8> {
        self.seed += 1;
        pattern(self.seed, length)
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Mutate { kind, key, length } => {
                let length = if matches!(kind, Kind::Delete { .. }) { 0 } else { length };
                let (key, value) = (key_of(key), self.value(length));
                let expected = self.expectation(kind, &key);
                let (op, args, payload) = request(kind, &key, expected.as_deref(), &value);
                let answer = self.driver.run(op, &args, &payload);
                self.judge(kind, &key, expected.as_deref(), value, &answer);
            }
            Step::Reserve { kind, key, length } => self.reserve(kind, key, length),
            Step::Feed { which, length } if !self.fills.is_empty() => {
                let which = which % self.fills.len();
                self.feed(which, length);
            }
            Step::Commit { which } if !self.fills.is_empty() => {
                let which = which % self.fills.len();
                self.feed(which, usize::MAX);
                let fill = self.fills.remove(which);
                let Outcome::Done(answer) = self.driver.commit(fill.ticket) else {
                    panic!("a kv commit is never parked")
                };
                self.judge(fill.kind, &fill.key, fill.expected.as_deref(), fill.value, &answer);
            }
            Step::Abort { which } if !self.fills.is_empty() => {
                let fill = self.fills.remove(which % self.fills.len());
                self.driver.abort(fill.ticket);
            }
            Step::Get { key } => drop(self.get(&key_of(key))),
            Step::Pin { key } => {
                let key = key_of(key);
                if let Payload::Block(range) = self.get(&key).payload {
                    let pin = self.driver.block.pin(range);
                    let bytes = self.entry(&key).unwrap().clone();
                    self.pins.push((pin, bytes));
                }
            }
            Step::Unpin { which } if !self.pins.is_empty() => {
                self.pins.swap_remove(which % self.pins.len());
            }
            Step::Scan { bytes, keys_only } => self.scan(bytes, keys_only),
            Step::Batch { atomic, ops } => self.batch(atomic, ops),
            Step::MultiGet { keys, bytes } => self.multi_get(&keys, bytes),
            _ => {}
        }
    }

    fn reserve(&mut self, kind: Kind, key: u16, length: usize) {
        let (key, value) = (key_of(key), self.value(length));
        let expected = self.expectation(kind, &key);
        let (op, args, payload) = request(kind, &key, expected.as_deref(), &value);
        match self.driver.reserve(op, &args, payload.len()) {
            Ok(ticket) => {
                self.fills.push(Fill { ticket, kind, key, payload, expected, value, filled: 0 })
            }
            Err(answer) if answer.status == Status::ValueTooLarge => {
                assert!(value.len() > self.limit())
            }
            Err(answer) => assert!(self.refused_for_room(&answer, payload.len() + 150)),
        }
    }

    fn feed(&mut self, which: usize, length: usize) {
        let fill = &mut self.fills[which];
        let n = length.min(fill.payload.len() - fill.filled);
        self.driver.feed(fill.ticket, &fill.payload[fill.filled..fill.filled + n]);
        fill.filled += n;
    }

    fn get(&mut self, key: &[u8]) -> Answer {
        let answer = self.driver.run(Op::KvGet, key, &[]);
        let exists = self.driver.run(Op::KvExists, key, &[]);
        match self.entry(key) {
            None => {
                assert_eq!((answer.status, exists.value), (Status::KeyNotFound, 0));
            }
            Some(value) => {
                assert_eq!((answer.status, exists.value), (Status::Ok, 1));
                assert_eq!(&self.driver.bytes(&answer), value);
                assert_eq!(exists.args, (value.len() as u64).to_le_bytes());
            }
        }
        answer
    }

    fn scan(&mut self, bytes: u32, keys_only: bool) {
        let (mut cursor, mut found) = (0, Vec::new());
        loop {
            let mut args = Vec::new();
            ScanArgs { cursor, bytes, brings: Brings::keys(keys_only), prefix: b"" }.put(&mut args);
            let answer = self.driver.run(Op::KvScan, &args, &[]);
            assert_eq!(answer.status, Status::Ok);
            let page = self.driver.bytes(&answer);
            let entries = scan_entries(&page).unwrap();
            assert!(page.len() <= bytes as usize || entries.len() == 1);
            assert!(answer.value == 0 || !entries.is_empty());
            found.extend(entries.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())));
            if answer.value == 0 {
                break;
            }
            assert!(answer.value > cursor);
            cursor = answer.value;
        }
        let expected: Vec<_> = self
            .entries
            .iter()
            .map(|((_, k), v)| (k.clone(), if keys_only { Vec::new() } else { v.clone() }))
            .collect();
        assert_eq!(found, expected);
    }

    /// Checks everything that must hold between two operations.
    fn check(&mut self, keys: u16) {
        self.driver.structure.check(&self.driver.block);
        for (pin, bytes) in &self.pins {
            assert_eq!(pin.bytes(), &bytes[..], "pinned bytes do not change");
        }
        let length = self.driver.run(Op::KvLength, &[], &[]);
        assert_eq!(length.value, self.entries.len() as u64);
        assert!(self.driver.structure.bytes_used() <= self.size as u64 + 16 * 1024);
        for key in 0..keys {
            self.get(&key_of(key));
        }
        let mut next = Some(0);
        for (start, end, _) in self.driver.structure.regions() {
            assert_eq!(Some(start), next, "INV-17: the regions cover the block's hashes");
            next = end.checked_add(1);
        }
        assert_eq!(next, None);
    }
}

impl Model {
    /// A flush writes the present entries, each once, and nothing else.
    fn check_flushed(&mut self) {
        let (bytes, items) = self.driver.flushed();
        let mut rest = &bytes[..];
        let mut take = |n: usize| {
            let (taken, left) = rest.split_at(n);
            rest = left;
            taken
        };
        let mut found = BTreeMap::new();
        for _ in 0..items {
            let key_len = u32::from_le_bytes(take(4).try_into().unwrap()) as usize;
            let value_len = u32::from_le_bytes(take(4).try_into().unwrap()) as usize;
            let key = take(key_len).to_vec();
            let value = take(value_len).to_vec();
            assert!(found.insert((honeycomb_wire::key_hash(&key), key), value).is_none());
        }
        assert!(take(0).is_empty() && rest.is_empty(), "nothing follows the last entry");
        assert_eq!(found, self.entries);
    }
}

fn replay(size: usize, steps: Vec<Step>, keys: u16) {
    let mut model = Model::new(size);
    for (i, step) in steps.into_iter().enumerate() {
        model.step(step);
        if size <= BYTES_CHECKED_EACH_STEP || i % 8 == 0 {
            model.check(keys);
        }
    }
    model.check(keys);
    model.check_flushed();
    model.pins.clear();
    for fill in std::mem::take(&mut model.fills) {
        model.driver.abort(fill.ticket);
    }
    // Whatever happened, nothing leaked: an emptied block accepts as much as a fresh one.
    for (_, key) in std::mem::take(&mut model.entries).into_keys() {
        let args = [&[0][..], &key].concat();
        assert_eq!(model.driver.run(Op::KvDelete, &args, &[]).status, Status::Ok);
    }
    let put = [&[0][..], b"after all"].concat();
    for _ in 0..3 {
        let answer = model.driver.run(Op::KvPut, &put, &vec![1; model.limit()]);
        assert_eq!(answer.status, Status::Ok);
    }
    model.driver.structure.check(&model.driver.block);
    assert!(model.driver.structure.bytes_used() < 3 * model.limit() as u64);
}

proptest! {
    #[test]
    fn few_keys((size, steps) in blocks().prop_flat_map(|size| (Just(size), steps(size, 12)))) {
        replay(size, steps, 12);
    }

    #[test]
    fn many_keys_near_full(
        (size, steps) in blocks().prop_flat_map(|size| (Just(size), steps(size, 150))),
    ) {
        replay(size, steps, 150);
    }
}
