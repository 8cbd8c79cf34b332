use crate::{BYTES_CHECKED_EACH_STEP, Driver, blocks, lengths, pattern, steps_in};
use honeycomb_structures::{Answer, FileBlock, Growth, Ops, Outcome, Payload, Successor, Ticket};
use honeycomb_types::limits::MANY_BYTES_MAX;
use honeycomb_wire::batch::{ReadManyArgs, ranges};
use honeycomb_wire::data::ReadArgs;
use honeycomb_wire::{Op, Status};
use proptest::prelude::*;

/// Bytes of a range's length in a reply.
const LENGTH: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    Append { length: usize },
    Reserve { length: usize },
    Feed { which: usize, length: usize },
    Commit { which: usize },
    Abort { which: usize },
    Read { offset: u64, length: u32 },
    Successor { ready: bool },
    Continue,
    Seal,
}

fn steps(size: usize) -> impl Strategy<Value = Vec<Step>> {
    let length =
        prop_oneof![0usize..100, 0usize..3000, 0usize..9000, lengths(size, 0, size / 8 + 10),];
    let reach = size + size / 16;
    let step = prop_oneof![
        6 => length.clone().prop_map(|length| Step::Append { length }),
        4 => length.clone().prop_map(|length| Step::Reserve { length }),
        8 => (0usize..8, length).prop_map(|(which, length)| Step::Feed { which, length }),
        6 => (0usize..8).prop_map(|which| Step::Commit { which }),
        2 => (0usize..8).prop_map(|which| Step::Abort { which }),
        4 => (0..reach as u64, 0..reach as u32).prop_map(|(offset, length)| Step::Read { offset, length }),
        1 => any::<bool>().prop_map(|ready| Step::Successor { ready }),
        1 => prop::bool::weighted(0.2)
            .prop_map(|ends| if ends { Step::Continue } else { Step::Commit { which: 0 } }),
        1 => prop::bool::weighted(0.1).prop_map(|seal| if seal { Step::Seal } else { Step::Feed { which: 0, length: 9000 } }),
    ];
    prop::collection::vec(step, steps_in(size, 150))
}

/// The model's record of an admitted append.
struct Pending {
    ticket: Ticket,
    bytes: Vec<u8>,
    filled: usize,
    complete: bool,
}

/// The reference: the committed bytes, and the appends after them in the order of admission.
struct Model {
    size: usize,
    driver: Driver<FileBlock>,
    committed: Vec<u8>,
    pending: Vec<Pending>,
    seed: u64,
    asked: bool,
    ready: bool,
    /// It seals when the last payload has arrived.
    continues: bool,
    sealed: Option<bool>,
}

impl Model {
    fn new(size: usize) -> Model {
        Model {
            size,
            driver: Driver::new(size, FileBlock::new(size)),
            committed: Vec::new(),
            pending: Vec::new(),
            seed: 0,
            asked: false,
            ready: false,
            continues: false,
            sealed: None,
        }
    }

    fn tail(&self) -> usize {
        self.committed.len() + self.pending.iter().map(|p| p.bytes.len()).sum::<usize>()
    }

    /// The appends that become visible now, with the required answers.
    fn advance(&mut self) -> Vec<(Ticket, Answer)> {
        let ready = self.pending.iter().take_while(|p| p.complete).count();
        let mut answers = Vec::new();
        for p in self.pending.drain(..ready) {
            answers.push((p.ticket, Answer::ok(self.committed.len() as u64)));
            self.committed.extend_from_slice(&p.bytes);
        }
        answers
    }

    fn expect_answers(&mut self, own: Option<(Ticket, Outcome)>) {
        let mut expected = self.advance();
        if let Some((ticket, outcome)) = own {
            match expected.iter().position(|(t, _)| *t == ticket) {
                Some(i) => assert_eq!(outcome, Outcome::Done(expected.remove(i).1)),
                None => assert_eq!(outcome, Outcome::Parked),
            }
        }
        let told: Vec<_> = std::iter::from_fn(|| self.driver.completed()).collect();
        assert_eq!(told, expected);
    }

    /// Whether the model would place an append; otherwise checks the refusal.
    fn refused(&mut self, length: usize, refusal: Option<&Answer>) -> bool {
        let expected = if let Some(last) = self.sealed {
            Some(if last { Status::Sealed } else { Status::Moved })
        } else if self.continues {
            Some(Status::Busy)
        } else if length > self.size / 8 && self.tail() + length > self.size {
            Some(Status::ValueTooLarge)
        } else if self.tail() + length <= self.size {
            None
        } else if !self.pending.is_empty() {
            Some(Status::Busy)
        } else if self.ready {
            self.sealed = Some(false);
            Some(Status::Moved)
        } else {
            let status = refusal.map(|a| a.status);
            assert!(matches!(status, Some(Status::Busy | Status::OutOfMemory)), "{status:?}");
            return true;
        };
        assert_eq!(refusal.map(|a| a.status), expected);
        expected.is_some()
    }

    fn append(&mut self, length: usize) {
        self.seed += 1;
        let bytes = pattern(self.seed, length);
        let (ticket, outcome) = self.driver.submit(Op::FileAppend, &[], &bytes);
        let refusal = match &outcome {
            Outcome::Done(answer) if answer.status != Status::Ok => Some(answer.clone()),
            _ => None,
        };
        if self.refused(length, refusal.as_ref()) {
            return;
        }
        if bytes.is_empty() {
            let length = self.committed.len() as u64;
            assert_eq!(outcome, Outcome::Done(Answer::ok(length)));
            return;
        }
        self.pending.push(Pending { ticket, filled: bytes.len(), bytes, complete: true });
        self.expect_answers(Some((ticket, outcome)));
    }

    fn reserve(&mut self, length: usize) {
        self.seed += 1;
        let bytes = pattern(self.seed, length);
        let result = self.driver.reserve(Op::FileAppend, &[], length);
        if !self.refused(length, result.as_ref().err()) {
            let ticket = result.unwrap();
            self.pending.push(Pending { ticket, bytes, filled: 0, complete: false });
        }
    }

    fn open(&self, which: usize) -> Option<usize> {
        let open: Vec<usize> =
            (0..self.pending.len()).filter(|i| !self.pending[*i].complete).collect();
        (!open.is_empty()).then(|| open[which % open.len()])
    }

    fn feed(&mut self, i: usize, length: usize) {
        let p = &mut self.pending[i];
        let n = length.min(p.bytes.len() - p.filled);
        self.driver.feed(p.ticket, &p.bytes[p.filled..p.filled + n]);
        p.filled += n;
    }

    fn pass_on(&mut self) {
        let answer = self.driver.run(Op::FileContinue, &[], &[]);
        let expected = match self.sealed {
            Some(false) => Status::Ok,
            Some(true) => Status::Sealed,
            None if !self.pending.is_empty() => Status::Busy,
            None if self.ready => Status::Ok,
            None => {
                let refused = matches!(answer.status, Status::Busy | Status::OutOfMemory);
                assert!(refused, "{answer:?}");
                answer.status
            }
        };
        assert_eq!(answer.status, expected);
        self.continues |= self.sealed.is_none() && !self.pending.is_empty() && self.ready;
        if expected == Status::Ok {
            assert_eq!((answer.value, answer.args), (self.committed.len() as u64, vec![7]));
            self.sealed = Some(false);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Append { length } => self.append(length),
            Step::Reserve { length } => self.reserve(length),
            Step::Feed { which, length } => {
                if let Some(i) = self.open(which) {
                    self.feed(i, length);
                }
            }
            Step::Commit { which } => {
                if let Some(i) = self.open(which) {
                    self.feed(i, usize::MAX);
                    self.pending[i].complete = true;
                    let ticket = self.pending[i].ticket;
                    let outcome = self.driver.commit(ticket);
                    self.expect_answers(Some((ticket, outcome)));
                }
            }
            Step::Abort { which } => {
                if let Some(i) = self.open(which) {
                    let ticket = self.pending.remove(i).ticket;
                    self.driver.abort(ticket);
                    self.expect_answers(None);
                }
            }
            Step::Read { offset, length } => self.read(offset, length),
            Step::Successor { ready } => {
                if std::mem::take(&mut self.asked) {
                    self.ready = ready;
                    self.driver.set_successor(match ready {
                        true => Successor::Ready(vec![7]),
                        false => Successor::Denied(Status::OutOfMemory, "none".into()),
                    });
                }
            }
            Step::Continue => self.pass_on(),
            Step::Seal => {
                let answer = self.driver.run(Op::FileSeal, &[], &[]);
                let expected = match self.sealed {
                    Some(false) => Status::Moved,
                    Some(true) => Status::Ok,
                    None if !self.pending.is_empty() => Status::Busy,
                    None => Status::Ok,
                };
                assert_eq!(answer.status, expected);
                if expected == Status::Ok {
                    self.sealed = Some(true);
                }
            }
        }
        if self.pending.is_empty() && std::mem::take(&mut self.continues) {
            self.sealed = Some(false);
        }
        if !self.asked && !self.ready {
            self.asked = self.driver.structure.wants_successor();
        }
    }

    fn read(&mut self, offset: u64, length: u32) {
        let mut args = Vec::new();
        ReadArgs { offset, length }.put(&mut args);
        let answer = self.driver.run(Op::FileRead, &args, &[]);
        let end = self.committed.len();
        assert_eq!(answer.value, end as u64);
        if offset as usize >= end && self.sealed == Some(false) {
            assert_eq!(answer.status, Status::Moved);
            return;
        }
        let from = (offset as usize).min(end);
        let to = (from + length as usize).min(end);
        assert_eq!(self.driver.bytes(&answer), self.committed[from..to]);
        if let Payload::Block(range) = answer.payload {
            assert!(range.end <= end, "INV-23");
        }
        self.read_many(offset, length);
    }

    /// Reads the same range twice in one request: whole, and from its middle on.
    fn read_many(&mut self, offset: u64, length: u32) {
        let (end, middle) = (self.committed.len(), offset + length as u64 / 2);
        let mut args = Vec::new();
        ReadManyArgs { bytes: u32::MAX, ranges: vec![(offset, length), (middle, length)] }
            .put(&mut args);
        let answer = self.driver.run(Op::FileReadMany, &args, &[]);
        assert_eq!(answer.status, Status::Ok);
        let moved = self.sealed == Some(false) && middle as usize >= end;
        let [first, second] = [offset, middle].map(|at| {
            let from = (at as usize).min(end);
            &self.committed[from..(from + length as usize).min(end)]
        });
        // The first range is cut to the room of a reply; the second must fit after it.
        let first = &first[..first.len().min(MANY_BYTES_MAX - LENGTH)];
        let fits = 2 * LENGTH + first.len() + second.len() <= MANY_BYTES_MAX;
        assert_eq!(answer.value, if moved || !fits { 1 } else { 2 });
        let payload = self.driver.bytes(&answer);
        let read = ranges(&payload, answer.value as usize).unwrap();
        for (expected, read) in [first, second].into_iter().zip(read) {
            assert!(read == expected, "INV-23");
        }
    }
}

proptest! {
    #[test]
    fn a_file_block_is_its_committed_appends_in_order(
        (size, steps) in blocks().prop_flat_map(|size| (Just(size), steps(size))),
    ) {
        let mut model = Model::new(size);
        let mut told = None;
        for (i, step) in steps.into_iter().enumerate() {
            model.step(step);
            if size <= BYTES_CHECKED_EACH_STEP || i % 8 == 0 {
                model.read(0, u32::MAX);
            }
            told = told.or(model.driver.sealed());
            prop_assert_eq!(told, model.sealed.map(|last| (model.committed.len() as u64, last)));
            prop_assert!(model.driver.structure.bytes_used() >= model.tail() as u64);
        }
        model.read(0, u32::MAX);
        let items = model.committed.len() as u64;
        prop_assert_eq!(model.driver.flushed(), (model.committed, items));
    }
}
