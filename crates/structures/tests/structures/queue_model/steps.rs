//! The steps, applied to the queue and the model alike, and their comparison.

use super::*;
use crate::{blocks, lengths, pattern, steps_in};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Put {
    lengths: Vec<usize>,
    /// A single item without its length in the arguments.
    bare: bool,
    wait_ms: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Put(Put),
    Reserve(Put),
    Feed { which: usize, length: usize },
    Commit { which: usize },
    Abort { which: usize },
    Get { args: GetArgs, wait_ms: u64 },
    Ack { action: AckAction, timeout_ms: u32, which: Vec<(usize, u32)> },
    Cancel { which: usize },
    Sleep { ms: u64 },
    Unpin { which: usize },
    Successor { ready: bool },
    Ahead { items: u64, bytes: u64 },
    TakenReceived,
    Watch { watched: bool },
    Close,
}

fn setups(size: usize) -> impl Strategy<Value = Setup> {
    let bounds = prop_oneof![
        2 => Just((0, 0)),
        2 => (1u64..8).prop_map(|items| (items, 0)),
        1 => (100u64..60_000).prop_map(|bytes| (0, bytes)),
        1 => (3u64..40, 1000u64..200_000),
    ];
    (bounds, prop::bool::weighted(0.7), any::<bool>()).prop_map(move |(bounds, first, watched)| {
        Setup { size, max_items: bounds.0, max_bytes: bounds.1, first, watched }
    })
}

fn puts(size: usize) -> impl Strategy<Value = Put> {
    let lengths = prop_oneof![
        4 => prop::collection::vec(0usize..100, 1),
        3 => prop::collection::vec(0usize..size / 8 + 10, 1),
        2 => prop::collection::vec(0usize..6000, 1..6),
        3 => prop::collection::vec(lengths(size, 0, size / 8 + 10), 1..3),
        1 => prop::collection::vec(0usize..3, 1..300),
    ];
    let wait_ms = prop_oneof![2 => Just(0), 1 => 1u64..60];
    (lengths, any::<bool>(), wait_ms).prop_map(|(lengths, bare, wait_ms)| Put {
        bare: bare && lengths.len() == 1,
        lengths,
        wait_ms,
    })
}

fn gets() -> impl Strategy<Value = Step> {
    let items = prop_oneof![8 => Just(1), 8 => 1u32..9, 2 => 9u32..4097, 1 => Just(0)];
    let bytes = prop_oneof![2 => Just(u32::MAX), 1 => 0u32..40_000];
    let reserve_ms = prop_oneof![4 => Just(0), 4 => 1u32..60, 1 => Just(86_400_000)];
    let wait_ms = prop_oneof![2 => Just(0), 1 => 1u64..60];
    let args = (items, bytes, reserve_ms, prop::bool::weighted(0.2));
    (args, wait_ms).prop_map(|((items, bytes, reserve_ms, stay), wait_ms)| Step::Get {
        args: GetArgs { items, bytes, reserve_ms, stay },
        wait_ms,
    })
}

fn steps(size: usize) -> impl Strategy<Value = Vec<Step>> {
    let action =
        prop_oneof![Just(AckAction::Done), Just(AckAction::GiveBack), Just(AckAction::Extend)];
    let which = prop::collection::vec((0usize..40, 0u32..5), 0..5);
    let timeout_ms = prop_oneof![8 => 1u32..60, 1 => Just(0)];
    let step = prop_oneof![
        24 => puts(size).prop_map(Step::Put),
        6 => puts(size).prop_map(Step::Reserve),
        8 => (0usize..8, 0usize..9000).prop_map(|(which, length)| Step::Feed { which, length }),
        6 => (0usize..8).prop_map(|which| Step::Commit { which }),
        2 => (0usize..8).prop_map(|which| Step::Abort { which }),
        20 => gets(),
        10 => (action, timeout_ms, which)
            .prop_map(|(action, timeout_ms, which)| Step::Ack { action, timeout_ms, which }),
        2 => (0usize..8).prop_map(|which| Step::Cancel { which }),
        6 => (0u64..40).prop_map(|ms| Step::Sleep { ms }),
        3 => (0usize..4).prop_map(|which| Step::Unpin { which }),
        3 => prop::bool::weighted(0.7).prop_map(|ready| Step::Successor { ready }),
        2 => (0u64..8, 0u64..4000).prop_map(|(items, bytes)| Step::Ahead { items, bytes }),
        2 => Just(Step::TakenReceived),
        1 => any::<bool>().prop_map(|watched| Step::Watch { watched }),
        1 => prop::bool::weighted(0.3)
            .prop_map(|close| if close { Step::Close } else { Step::TakenReceived }),
    ];
    prop::collection::vec(step, steps_in(size, 250))
}

// ------------------------------------------------------------------------------------ the steps

impl Model {
    /// An answer in comparable form. Its items are added to the log.
    fn reply(&mut self, answer: &Answer) -> Reply {
        let bytes = self.driver.bytes(answer);
        let (value, args) = match answer.status {
            Status::Ok | Status::Moved => (answer.value, answer.args.clone()),
            _ => (0, Vec::new()),
        };
        if let Payload::Pinned(_) = answer.payload {
            self.held.push((answer.payload.clone(), bytes.clone()));
        }
        Reply { status: answer.status, value, args, bytes }
    }

    /// Checks the items of a get against those put under its numbers (INV-22).
    fn brought(&mut self, reply: &Reply, for_good: bool) {
        if reply.status != Status::Ok {
            return;
        }
        let Items { first, lengths, .. } = Items::decode(&reply.args, reply.bytes.len()).unwrap();
        assert_eq!(reply.value, lengths.len() as u64);
        let mut rest = &reply.bytes[..];
        for (number, length) in (first..).zip(lengths) {
            let (item, behind) = rest.split_at(length as usize);
            rest = behind;
            assert_eq!(item, self.log[number as usize], "item {number} differs from the put one");
            assert!(!self.gone.contains(&number), "item {number} was taken before");
            if for_good {
                self.gone.insert(number);
            }
        }
    }

    /// Compares the immediate answer of an operation with the expected one.
    fn judge(&mut self, outcome: &Outcome, expected: Option<Reply>) {
        match (outcome, expected) {
            (Outcome::Parked, None) => {}
            (Outcome::Done(answer), Some(expected)) => assert_eq!(self.reply(answer), expected),
            (outcome, expected) => panic!("{outcome:?} instead of {expected:?}"),
        }
    }

    /// Compares all events of the queue with the expected ones. `getters` are the gets that waited before.
    fn hear(&mut self, getters: &BTreeMap<Ticket, GetArgs>) {
        let mut told = Vec::new();
        for event in self.driver.events() {
            told.push(match event {
                Event::Answered(ticket, answer) => {
                    let reply = self.reply(&answer);
                    match getters.get(&ticket) {
                        None => Told::Put(ticket, reply),
                        Some(args) => {
                            self.brought(&reply, args.reserve_ms == 0);
                            Told::Get(ticket, reply)
                        }
                    }
                }
                Event::Changed(change) => Told::Changed(change),
                event => Told::Block(event),
            });
        }
        let mut expected = std::mem::take(&mut self.told);
        expected.sort_by_key(Told::class);
        told.sort_by_key(Told::class);
        assert_eq!(told, expected);
    }

    fn request(&mut self, put: &Put) -> (Vec<u8>, Vec<Vec<u8>>) {
        let items: Vec<_> = put
            .lengths
            .iter()
            .map(|length| {
                self.seed += 1;
                pattern(self.seed, *length)
            })
            .collect();
        let lengths = put.lengths.iter().flat_map(|length| (*length as u32).to_le_bytes());
        (if put.bare { Vec::new() } else { lengths.collect() }, items)
    }

    fn put(&mut self, put: &Put) {
        let (args, items) = self.request(put);
        let until = self.driver.now + Duration::from_millis(put.wait_ms);
        let (ticket, outcome) =
            self.driver.submit_until(until, Op::QueuePut, &args, &items.concat());
        let expected = match self.refusal(&items) {
            Some(refusal) => Some(refusal),
            None => match self.fits_bound(&items) {
                Some(true) if self.putters.is_empty() => match self.full_block(&items) {
                    Some(refusal) => Some(refusal),
                    None => self.store(ticket, items),
                },
                _ if put.wait_ms > 0 => self.wait_to_put(ticket, until, items, &outcome),
                None => Some(Reply::refusal(Status::Busy)),
                Some(_) => Some(Reply::refusal(Status::QueueFull)),
            },
        };
        self.settle();
        self.judge(&outcome, expected);
    }

    /// Waiting payloads take at most an eighth of a block and 1 MiB, with some bytes for each.
    fn wait_to_put(
        &mut self,
        ticket: Ticket,
        until: Time,
        items: Vec<Vec<u8>>,
        outcome: &Outcome,
    ) -> Option<Reply> {
        let all = self.putters.iter().map(|putter| cost(&putter.items)).sum::<usize>();
        let all = all + cost(&items);
        let most = self.limit().min(WAITING_BYTES_MAX);
        if *outcome != Outcome::Parked {
            assert!(all + 100 * (self.putters.len() + 1) > most, "{all} bytes are not many");
            return Some(Reply::refusal(Status::Busy));
        }
        assert!(all <= most, "{all} bytes are too many");
        self.putters.push_back(Putter { ticket, until, items });
        None
    }

    fn reserve(&mut self, put: &Put) {
        let (args, items) = self.request(put);
        let ticket = self.driver.ticket();
        let now = self.driver.now;
        let wait_until = now + Duration::from_millis(put.wait_ms);
        let operation = Operation { now, ticket, op: Op::QueuePut, args: &args, wait_until };
        let length = total(&items) as usize;
        let d = &mut self.driver;
        let result = d.structure.reserve(&mut d.block, &operation, length);
        let expected = match self.refusal(&items) {
            Some(refusal) => Some(refusal),
            None => match self.fits_bound(&items) {
                Some(true) if self.putters.is_empty() => self.full_block(&items),
                None => Some(Reply::refusal(Status::Busy)),
                Some(_) if put.wait_ms > 0 => Some(Reply::refusal(Status::Busy)),
                Some(_) => Some(Reply::refusal(Status::QueueFull)),
            },
        };
        let told = result.err().map(|answer| self.reply(&answer));
        assert_eq!(told, expected);
        if expected.is_none() {
            self.pending.push_back(Pending { ticket, items, filled: 0, complete: false });
        } else {
            self.settle();
        }
    }

    fn open(&self, which: usize) -> Option<usize> {
        let open: Vec<usize> =
            (0..self.pending.len()).filter(|i| !self.pending[*i].complete).collect();
        (!open.is_empty()).then(|| open[which % open.len()])
    }

    fn feed(&mut self, i: usize, length: usize) {
        let p = &mut self.pending[i];
        let bytes = p.items.concat();
        let n = length.min(bytes.len() - p.filled);
        self.driver.feed(p.ticket, &bytes[p.filled..p.filled + n]);
        p.filled += n;
    }

    fn commit(&mut self, i: usize) {
        self.feed(i, usize::MAX);
        self.pending[i].complete = true;
        let ticket = self.pending[i].ticket;
        // The driver returns the request's own answer as the outcome.
        let outcome = self.driver.commit(ticket);
        self.advance();
        self.settle();
        let own = |told: &Told| matches!(told, Told::Put(t, _) if *t == ticket);
        let expected = match self.told.iter().position(own).map(|at| self.told.remove(at)) {
            Some(Told::Put(_, reply)) => Some(reply),
            _ => None,
        };
        self.judge(&outcome, expected);
    }

    fn abort(&mut self, i: usize) {
        let ticket = self.pending.remove(i).unwrap().ticket;
        self.driver.abort(ticket);
        self.advance();
        self.settle();
    }

    fn get(&mut self, args: GetArgs, wait_ms: u64) {
        let mut encoded = Vec::new();
        args.put(&mut encoded);
        let until = self.driver.now + Duration::from_millis(wait_ms);
        let (ticket, outcome) = self.driver.submit_until(until, Op::QueueGet, &encoded, &[]);
        let run = self.next(&args);
        let expected = if args.items == 0 {
            Some(Reply::refusal(Status::InvalidArgument))
        } else if !run.is_empty() {
            Some(self.give(&run, &args))
        } else if let Some(reply) = self.exhausted(args.stay) {
            Some(reply)
        } else if wait_ms == 0 {
            Some(Reply::refusal(Status::QueueEmpty))
        } else {
            self.getters.push_back(Getter { ticket, until, args });
            None
        };
        self.settle();
        if let Some(reply) = &expected {
            self.brought(reply, args.reserve_ms == 0);
        }
        self.judge(&outcome, expected);
    }

    /// Names an item to acknowledge: mostly one that is out, with a delivery count that may be stale.
    fn named(&self, which: usize, delivery: u32) -> (u64, u32) {
        let out: Vec<_> = self.out().map(|(number, item)| (number, item.deliveries)).collect();
        if out.is_empty() || which.is_multiple_of(4) {
            return (which as u64, delivery);
        }
        let (number, deliveries) = out[which % out.len()];
        match delivery {
            0 => (number, deliveries - 1),
            1 => (number, deliveries + 1),
            _ => (number, deliveries),
        }
    }

    fn ack(&mut self, action: AckAction, timeout_ms: u32, which: &[(usize, u32)]) {
        let items: Vec<_> = which.iter().map(|(w, delivery)| self.named(*w, *delivery)).collect();
        let args = AckArgs { action, timeout_ms, items: items.clone() };
        let answer = self.driver.run(Op::QueueAck, &args.encode(), &[]);
        if action == AckAction::Extend && timeout_ms == 0 {
            assert_eq!(answer.status, Status::InvalidArgument);
            return;
        }
        let until = self.driver.now + Duration::from_millis(timeout_ms as u64);
        let mut held = Vec::new();
        for (number, deliveries) in &items {
            let item = self.items.get_mut(number).filter(|item| {
                matches!(item.state, State::Out(_)) && item.deliveries == *deliveries
            });
            held.push(item.is_some() as u8);
            let Some(item) = item else { continue };
            match action {
                AckAction::Done => self.release(&[*number]),
                AckAction::GiveBack => {
                    item.state = State::Returned;
                    self.changed(Change::Data { items: 1 });
                }
                AckAction::Extend => item.state = State::Out(until),
            }
        }
        self.settle();
        let count = held.iter().map(|held| *held as u64).sum();
        for ((number, _), held) in items.iter().zip(&answer.args) {
            assert!(action != AckAction::Done || *held == 0 || self.gone.insert(*number));
        }
        let expected = Reply { args: held, ..Reply::ok(count) };
        self.judge(&Outcome::Done(answer), Some(expected));
    }

    fn cancel(&mut self, which: usize) {
        let getters = self.getters.iter().map(|getter| getter.ticket);
        let putters = self.putters.iter().map(|putter| putter.ticket);
        let waiting: Vec<_> = getters.chain(putters).collect();
        let pending: Vec<_> = self.pending.iter().map(|p| p.ticket).collect();
        let all = [&waiting[..], &pending[..], &[Ticket(u64::MAX)]].concat();
        let ticket = all[which % all.len()];
        assert_eq!(self.driver.structure.cancel(ticket), waiting.contains(&ticket));
        let first = self.putters.front().is_some_and(|putter| putter.ticket == ticket);
        self.getters.retain(|getter| getter.ticket != ticket);
        self.putters.retain(|putter| putter.ticket != ticket);
        if first && !self.putters.is_empty() {
            assert!(self.driver.structure.deadline().unwrap() <= self.driver.now);
            self.sleep(0);
        }
    }

    fn sleep(&mut self, ms: u64) {
        self.driver.sleep(ms);
        self.ticked();
    }

    fn close(&mut self) {
        let answer = self.driver.run(Op::QueueClose, &[], &[]);
        let expected = match &self.seal {
            Some(Seal::Continues) => self.moved(),
            Some(Seal::Final) => Reply::ok(0),
            None if !self.pending.is_empty() => Reply::refusal(Status::Busy),
            None => {
                self.sealed(Seal::Final);
                Reply::ok(0)
            }
        };
        self.settle();
        self.judge(&Outcome::Done(answer), Some(expected));
    }

    fn successor(&mut self, successor: Successor) {
        self.asked = false;
        self.successor = Some(matches!(successor, Successor::Ready(_)));
        self.driver.set_successor(successor);
        self.settle();
    }

    fn ahead(&mut self, items: u64, bytes: u64) {
        let (i, b) = self.ahead.unwrap_or((u64::MAX, u64::MAX));
        self.ahead = Some((i.min(items), b.min(bytes)));
        self.driver.ahead(items, bytes);
        self.settle();
    }

    fn taken_received(&mut self) {
        self.taken_heard = true;
        self.driver.taken_received();
        self.settle();
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Put(put) => self.put(put),
            Step::Reserve(put) => self.reserve(put),
            Step::Feed { which, length } => {
                self.open(*which).into_iter().for_each(|i| self.feed(i, *length));
            }
            Step::Commit { which } => {
                self.open(*which).into_iter().for_each(|i| self.commit(i));
            }
            Step::Abort { which } => self.open(*which).into_iter().for_each(|i| self.abort(i)),
            Step::Get { args, wait_ms } => self.get(*args, *wait_ms),
            Step::Ack { action, timeout_ms, which } => self.ack(*action, *timeout_ms, which),
            Step::Cancel { which } => self.cancel(*which),
            Step::Sleep { ms } => self.sleep(*ms),
            Step::Unpin { which } => {
                self.held.drain(..self.held.len().min(*which));
                self.pins = self.held.len();
            }
            Step::Successor { ready: true } if self.asked => {
                self.successor(Successor::Ready(SUCCESSOR.to_vec()));
            }
            Step::Successor { ready: false } if self.asked => {
                let none = Successor::Denied(Status::OutOfMemory, "none is free".into());
                self.successor(none);
            }
            Step::Ahead { items, bytes } => self.ahead(*items, *bytes),
            Step::TakenReceived if !self.taken_heard => self.taken_received(),
            Step::Watch { watched } => {
                self.watched = *watched;
                self.driver.watch(*watched);
            }
            Step::Close => self.close(),
            Step::Successor { .. } | Step::TakenReceived => {}
        }
    }

    fn run(&mut self, step: &Step) {
        let mut getters: BTreeMap<_, _> =
            self.getters.iter().map(|getter| (getter.ticket, getter.args)).collect();
        self.step(step);
        getters.extend(self.getters.iter().map(|getter| (getter.ticket, getter.args)));
        self.hear(&getters);
        self.check();
    }

    // ----------------------------------------------------------------------- after every step

    fn check(&mut self) {
        assert_eq!(self.held.len(), self.pins);
        for (payload, bytes) in &self.held {
            let Payload::Pinned(pin) = payload else { unreachable!("only pins are held") };
            assert_eq!(pin.bytes(), &bytes[..], "pinned bytes do not change");
        }
        self.check_counts();
        self.check_peek();
        let due = self.out().filter_map(|(_, item)| match item.state {
            State::Out(until) => Some(until),
            _ => None,
        });
        let waits = self.getters.iter().map(|getter| getter.until);
        let due = due.chain(waits).chain(self.putters.iter().map(|p| p.until)).min();
        let deadline = self.driver.structure.deadline();
        assert!(due.is_none_or(|due| deadline.is_some_and(|deadline| deadline <= due)), "late");
        assert!(deadline.is_none_or(|deadline| deadline > self.driver.now), "it was just ticked");
        let may_ask = self.seal.is_none() && !self.asked && self.successor != Some(true);
        let must_ask =
            may_ask && self.successor.is_none() && self.size - self.used() < self.size / 20;
        let asks = self.driver.structure.wants_successor();
        assert!(may_ask || !asks);
        assert!(asks || !must_ask);
        self.asked |= asks;
    }

    fn check_counts(&mut self) {
        let (out, left) = (self.out().count(), self.items.len() as u64);
        assert_eq!(self.put.0 - self.taken.0, left, "INV-22: put, and not taken");
        let counts = Counts {
            taken: self.taken.0,
            bytes_put: self.put.1,
            bytes_taken: self.taken.1,
            reserved: out as u64,
            closed: self.seal == Some(Seal::Final),
        };
        let answer = self.driver.run(Op::QueueLength, &[0], &[]);
        assert_eq!(answer, Answer { args: counts.encode(), ..Answer::ok(self.put.0) });
        let tail = self.driver.run(Op::QueueLength, &[1], &[]);
        let expected = if self.seal == Some(Seal::Continues) { Status::Moved } else { Status::Ok };
        assert_eq!((tail.status, tail.value), (expected, self.put.0));

        let items = self.items.values().map(|item| item.bytes.len() + PLACE).sum::<usize>();
        let coming = self.pending.iter().map(|p| cost(&p.items)).sum::<usize>();
        let waiting = self.putters.iter().map(|p| cost(&p.items)).sum::<usize>();
        let records = self.items.len() + self.pending.len() + self.getters.len();
        let least = items + coming + waiting;
        let used = self.driver.structure.bytes_used() as usize;
        let most = least + 128 * (records + self.putters.len());
        assert!((least..=most).contains(&used), "{used} is not in {least} to {most}");
    }

    fn check_peek(&mut self) {
        let args = GetArgs { items: 3, bytes: 50_000, reserve_ms: 0, stay: false };
        let encoded = [3u32.to_le_bytes(), 50_000u32.to_le_bytes()].concat();
        let answer = self.driver.run(Op::QueuePeek, &encoded, &[]);
        let run = self.next(&args);
        let expected = match run.is_empty() {
            false => self.describe(&run),
            true => self.exhausted(false).unwrap_or(Reply::refusal(Status::QueueEmpty)),
        };
        self.judge(&Outcome::Done(answer), Some(expected));
    }

    /// Whatever happened: all items that were put and not taken are delivered, whole and in order, and then
    /// the block is empty.
    fn drain(&mut self) {
        while let Some(i) = self.open(0) {
            self.run(&Step::Abort { which: i });
        }
        while !self.getters.is_empty() || !self.putters.is_empty() {
            self.run(&Step::Cancel { which: 0 });
        }
        self.run(&Step::Unpin { which: usize::MAX });
        self.run(&Step::Sleep { ms: 86_400_000 });
        assert_eq!((self.getters.len(), self.putters.len(), self.out().count()), (0, 0, 0));
        let mut left: Vec<u64> = (0..self.put.0).filter(|n| !self.gone.contains(n)).collect();
        left.reverse();
        let args = GetArgs { items: 100, bytes: 100_000, reserve_ms: 0, stay: false };
        while let Some(next) = left.pop() {
            let before = self.gone.len();
            self.run(&Step::Get { args, wait_ms: 0 });
            assert!(self.gone.contains(&next), "item {next} is lost");
            left.truncate(left.len() + 1 - (self.gone.len() - before));
        }
        assert_eq!(self.gone.len() as u64, self.put.0, "INV-22: each item was taken once");
        self.run(&Step::Unpin { which: usize::MAX });
        self.run(&Step::Get { args, wait_ms: 0 });
        assert_eq!(self.driver.structure.bytes_used(), 0);
        assert_eq!(self.drained, self.seal == Some(Seal::Continues));
        if self.seal.is_none() {
            assert_eq!(self.since, (0, 0), "it began anew");
            self.run(&Step::Ahead { items: 0, bytes: 0 });
            self.run(&Step::Put(Put { lengths: vec![9], bare: true, wait_ms: 0 }));
        }
    }
}

fn cases() -> impl Strategy<Value = (Setup, Vec<Step>)> {
    blocks().prop_flat_map(|size| (setups(size), steps(size)))
}

fn replay(setup: &Setup, steps: &[Step]) {
    let mut model = Model::new(setup);
    for step in steps {
        model.run(step);
    }
    let (mut flushed, left) = (Vec::new(), model.items.len() as u64);
    for item in model.items.values() {
        flushed.extend_from_slice(&(item.bytes.len() as u32).to_le_bytes());
        flushed.extend_from_slice(&item.bytes);
    }
    assert_eq!(model.driver.flushed(), (flushed, left), "the unacknowledged items, in order");
    model.drain();
}

proptest! {
    #[test]
    fn a_queue_gives_what_was_put_in_order_and_once((setup, steps) in cases()) {
        replay(&setup, &steps);
    }
}

#[cfg(feature = "bug-bank")]
#[test]
fn the_model_sees_the_planted_defects() {
    use honeycomb_types::Bug;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let bugs = [
        Bug::QueueForgetsAhead,
        Bug::QueueMovesEarly,
        Bug::QueueAcksStale,
        Bug::QueueLosesReturned,
    ];
    for bug in bugs {
        let config = Config { max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let mut runner = TestRunner::new_with_rng(config, rng);
        Bug::arm(Some(bug));
        let result = runner.run(&cases(), |(setup, steps)| {
            replay(&setup, &steps);
            Ok(())
        });
        Bug::arm(None);
        assert!(result.is_err(), "{bug:?} looks like a queue");
    }
}
