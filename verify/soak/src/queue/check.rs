//! Whether the clients' observations are possible: no item lost or duplicated, all in order.
//!
//! The possible cost of a kill is counted and bounded, and no other deviation is accepted:
//! - a producer: whether its last request, whose reply it did not receive, was executed, as a whole
//!   or not at all;
//! - a consumer that takes: the one reply that it did not log;
//! - a consumer that reserves: whether its last acknowledgement arrived; and the items that it did
//!   not log are delivered again after their time, before all others.

use crate::queue::item::{Head, length_of};
use crate::queue::log::Record;
use std::collections::HashMap;

/// The parameters of the workload.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Determines the lengths of items.
    pub seed: u64,
    /// Items that each producer puts.
    pub each: u64,
    /// Maximum bytes of an item.
    pub limit: usize,
    /// Maximum number of items of one reply.
    pub batch: u64,
    /// How long an item stays reserved, in nanoseconds.
    pub reservation: u64,
}

/// One incarnation of a client.
pub struct Life {
    pub records: Vec<Record>,
    pub killed: bool,
}

/// A consumer's incarnations, one after the other.
pub struct Consumer {
    /// It takes items for good; otherwise it reserves them.
    pub takes: bool,
    pub lives: Vec<Life>,
}

/// The findings of a run without violations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Items whose put was acknowledged, or was found to have been executed.
    pub items: u64,
    /// Requests of killed producers that were executed nevertheless.
    pub carried_out: u64,
    pub not_carried_out: u64,
    /// Items that were lost with a consumer that takes.
    pub lost_with_consumer: u64,
    /// Items that were delivered more than once.
    pub redelivered: u64,
    /// Items whose acknowledgement was not confirmed to a killed consumer.
    pub acknowledgement_unknown: u64,
    /// Acknowledgements that came too late.
    pub too_late: u64,
}

/// Violations that are reported; more add no information.
const TOLD: usize = 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Not completed, according to its consumer's log.
    Open,
    Held,
    NotHeld,
    GivenBack,
}

struct Delivery {
    number: u32,
    span: Span,
    outcome: Outcome,
    killed: bool,
}

/// From before the request to after the reply, in nanoseconds.
#[derive(Clone, Copy)]
struct Span {
    asked: u64,
    answered: u64,
}

#[derive(Default)]
struct Item {
    /// The request that put it, if that was not acknowledged.
    doubt: Option<usize>,
    taken: Vec<Span>,
    delivered: Vec<Delivery>,
}

impl Item {
    fn seen(&self) -> bool {
        !self.taken.is_empty() || !self.delivered.is_empty()
    }
}

struct Checker {
    rules: Rules,
    /// In the order in which each producer put them.
    order: Vec<Head>,
    items: HashMap<Head, Item>,
    doubts: Vec<Vec<Head>>,
    takers_killed: u64,
    reservers_killed: u64,
    summary: Summary,
    wrong: Vec<String>,
}

/// Judges all logs. `Err` describes the contradiction.
pub fn check(
    rules: Rules,
    producers: &[Vec<Life>],
    consumers: &[Consumer],
) -> Result<Summary, Vec<String>> {
    let kills = |takes: bool| {
        let lives = consumers.iter().filter(|c| c.takes == takes).flat_map(|c| &c.lives);
        lives.filter(|life| life.killed).count() as u64
    };
    let mut checker = Checker {
        rules,
        order: Vec::new(),
        items: HashMap::new(),
        doubts: Vec::new(),
        takers_killed: kills(true),
        reservers_killed: kills(false),
        summary: Summary::default(),
        wrong: Vec::new(),
    };
    for (producer, lives) in producers.iter().enumerate() {
        checker.puts(producer as u64, lives);
    }
    for (number, consumer) in consumers.iter().enumerate() {
        for (incarnation, life) in consumer.lives.iter().enumerate() {
            checker.takes(&format!("consumer {number}.{incarnation}"), consumer.takes, life);
        }
    }
    checker.judge_items();
    checker.judge_losses();
    checker.judge_order();
    if checker.wrong.is_empty() { Ok(checker.summary) } else { Err(checker.wrong) }
}

impl Checker {
    fn violation(&mut self, text: String) {
        if self.wrong.len() < TOLD {
            self.wrong.push(text);
        }
    }

    // ------------------------------------------------------------------------ what was written down

    fn puts(&mut self, producer: u64, lives: &[Life]) {
        let mut next = 0;
        for (incarnation, life) in lives.iter().enumerate() {
            let mut open = None;
            for record in &life.records {
                match *record {
                    Record::Try { first, items } if open.is_none() && first == next => {
                        open = Some((first, items));
                    }
                    Record::Put { first, items } if open == Some((first, items)) => {
                        self.enter(producer, incarnation as u64, first, items, None);
                        open = None;
                        next = first + items as u64;
                    }
                    Record::Finished if open.is_none() && next == self.rules.each => {}
                    other => {
                        let who = format!("producer {producer}.{incarnation}");
                        self.violation(format!("{who} wrote {other:?} where {next} was next"));
                        return;
                    }
                }
            }
            match open {
                Some((first, items)) if life.killed => {
                    let doubt = self.doubts.len();
                    self.doubts.push(Vec::new());
                    self.enter(producer, incarnation as u64, first, items, Some(doubt));
                }
                Some(_) => self.violation(format!("producer {producer} ended within a request")),
                None => {}
            }
        }
        if next != self.rules.each {
            self.violation(format!("producer {producer} put {next} of {}", self.rules.each));
        }
    }

    fn enter(
        &mut self,
        producer: u64,
        incarnation: u64,
        first: u64,
        items: u32,
        doubt: Option<usize>,
    ) {
        for number in first..first + items as u64 {
            let length = length_of(self.rules.seed, producer, number, self.rules.limit);
            let head = Head::new(producer, incarnation, number, length);
            match doubt {
                Some(doubt) => self.doubts[doubt].push(head),
                None => self.order.push(head),
            }
            self.items.insert(head, Item { doubt, ..Item::default() });
        }
    }

    fn takes(&mut self, who: &str, takes: bool, life: &Life) {
        let mut span = Span { asked: 0, answered: 0 };
        // The last item of each producer in this reply.
        let mut last: HashMap<u64, (u64, u64)> = HashMap::new();
        for record in &life.records {
            match *record {
                Record::Asked { at } => span.asked = at,
                Record::Answered { at } => {
                    span.answered = at;
                    last.clear();
                }
                Record::Got { head } if takes => {
                    let head = Head(head);
                    self.in_answer(who, head, &mut last);
                    if let Some(item) = self.item(who, head) {
                        item.taken.push(span);
                    }
                }
                Record::Reserved { head, deliveries: number } if !takes => {
                    let head = Head(head);
                    self.in_answer(who, head, &mut last);
                    let killed = life.killed;
                    if let Some(item) = self.item(who, head) {
                        item.delivered.push(Delivery {
                            number,
                            span,
                            outcome: Outcome::Open,
                            killed,
                        });
                    }
                }
                Record::Acknowledged { head, deliveries, held } => {
                    let outcome = if held { Outcome::Held } else { Outcome::NotHeld };
                    self.settle(who, Head(head), deliveries, outcome);
                }
                Record::GivingBack { head, deliveries } => {
                    self.settle(who, Head(head), deliveries, Outcome::GivenBack);
                }
                Record::Finished => {}
                other => self.violation(format!("{who} wrote {other:?}")),
            }
        }
        if !life.killed && life.records.last() != Some(&Record::Finished) {
            self.violation(format!("{who} was not killed and did not finish"));
        }
    }

    fn item(&mut self, who: &str, head: Head) -> Option<&mut Item> {
        if !self.items.contains_key(&head) {
            self.violation(format!("{who} got {head}, which no producer put"));
        }
        self.items.get_mut(&head)
    }

    /// The items of one reply are contiguous in the queue.
    fn in_answer(&mut self, who: &str, head: Head, last: &mut HashMap<u64, (u64, u64)>) {
        let this = (head.incarnation(), head.number());
        if let Some(before) = last.insert(head.producer(), this)
            && before >= this
        {
            self.violation(format!("{who} got {head} behind {}.{}", before.0, before.1));
        }
    }

    fn settle(&mut self, who: &str, head: Head, number: u32, outcome: Outcome) {
        let Some(item) = self.item(who, head) else { return };
        let open = |d: &&mut Delivery| d.number == number && d.outcome == Outcome::Open;
        match item.delivered.iter_mut().find(open) {
            Some(delivery) => delivery.outcome = outcome,
            None => self.violation(format!("{who} settled {head}, which it did not have")),
        }
    }

    // --------------------------------------------------------------------------------- the verdicts

    fn judge_items(&mut self) {
        let mut wrong = Vec::new();
        for (head, item) in &mut self.items {
            item.delivered.sort_by_key(|delivery| delivery.number);
            if let Err(text) = judge(item, self.rules.reservation) {
                wrong.push(format!("{head} {text}"));
            }
            let times = item.taken.len() + item.delivered.len();
            self.summary.redelivered += (times > 1) as u64;
            let late = item.delivered.iter().filter(|d| d.outcome == Outcome::NotHeld);
            self.summary.too_late += late.count() as u64;
        }
        wrong.sort();
        wrong.into_iter().for_each(|text| self.violation(text));
    }

    fn judge_losses(&mut self) {
        for doubt in std::mem::take(&mut self.doubts) {
            if doubt.iter().any(|head| self.items[head].seen()) {
                self.summary.carried_out += 1;
                self.order.extend(doubt);
            } else {
                self.summary.not_carried_out += 1;
            }
        }
        self.order.sort_by_key(|h| (h.producer(), h.incarnation(), h.number()));
        self.summary.items = self.order.len() as u64;
        let mut runs: HashMap<u64, u64> = HashMap::new();
        let mut examples = Vec::new();
        let mut before = None;
        for (at, head) in self.order.iter().enumerate() {
            let item = &self.items[head];
            if is_settled(item) {
                continue;
            }
            let unknown = |d: &&Delivery| d.outcome == Outcome::Open && d.killed;
            if item.delivered.last().as_ref().is_some_and(unknown) {
                self.summary.acknowledgement_unknown += 1;
                continue;
            }
            self.summary.lost_with_consumer += 1;
            // Adjacent items of one producer that were lost together.
            if before != Some(at.wrapping_sub(1)) {
                *runs.entry(head.producer()).or_default() += 1;
            }
            before = Some(at);
            if examples.len() < 3 {
                examples.push(head.to_string());
            }
        }
        let (lost, kills) = (self.summary.lost_with_consumer, self.takers_killed);
        if lost > kills * self.rules.batch || runs.values().any(|runs| *runs > kills) {
            self.violation(format!(
                "{lost} items are lost, more than one answer for each of the {kills} consumers \
                 that were killed while they took: {}, ...",
                examples.join(", ")
            ));
        }
    }

    /// An item is not requested after the arrival of one that the same producer put later, unless
    /// it had been delivered before.
    fn judge_order(&mut self) {
        let (mut unseen, mut example) = (0, None);
        let mut later: Option<(Head, u64)> = None;
        let mut wrong = Vec::new();
        for head in self.order.iter().rev() {
            let item = &self.items[head];
            let first = match (item.delivered.first(), item.taken.first()) {
                (Some(delivery), _) if delivery.number == 1 => delivery.span,
                // Its first consumer was killed before it could log that.
                (Some(_), _) => {
                    unseen += 1;
                    continue;
                }
                (None, Some(span)) => *span,
                (None, None) => continue,
            };
            // The time of arrival of a request without a reply is unknown.
            if item.doubt.is_some() {
                continue;
            }
            if let Some((other, answered)) = later.filter(|(o, _)| o.producer() == head.producer())
            {
                if first.asked > answered {
                    let text = format!("{head} was asked for after {other} had arrived");
                    match item.delivered.is_empty() {
                        true => {
                            unseen += 1;
                            example.get_or_insert(text);
                            continue;
                        }
                        false => wrong.push(text),
                    }
                }
                if answered <= first.answered {
                    continue;
                }
            }
            later = Some((*head, first.answered));
        }
        wrong.into_iter().for_each(|text| self.violation(text));
        let kills = self.reservers_killed;
        if unseen > kills * self.rules.batch {
            let example = example.unwrap_or_default();
            self.violation(format!(
                "{unseen} items were delivered late, more than one answer for each of the {kills} \
                 consumers that were killed while they reserved: {example}"
            ));
        }
    }
}

fn is_settled(item: &Item) -> bool {
    !item.taken.is_empty() || item.delivered.iter().any(|d| d.outcome == Outcome::Held)
}

/// Judges an item by itself. Its deliveries are in order.
fn judge(item: &Item, reservation: u64) -> Result<(), String> {
    let held = item.delivered.iter().filter(|d| d.outcome == Outcome::Held).count();
    if item.taken.len() + held > 1 {
        let taken = item.taken.len();
        return Err(format!("was taken for good twice: {taken} times got, {held} acknowledged"));
    }
    for delivery in &item.delivered {
        if delivery.outcome == Outcome::Open && !delivery.killed {
            return Err(format!(
                "was not settled by the consumer that held it in delivery {}",
                delivery.number
            ));
        }
    }
    for pair in item.delivered.windows(2) {
        let (one, next) = (&pair[0], &pair[1]);
        if one.number == next.number {
            return Err(format!("had two deliveries {}", one.number));
        }
        if one.outcome == Outcome::Held {
            return Err(format!("was delivered after delivery {} was acknowledged", one.number));
        }
    }
    let spans = item.delivered.iter().map(|d| d.span).chain(item.taken.iter().copied());
    for (delivery, next) in item.delivered.iter().zip(spans.skip(1)) {
        let back = delivery.outcome == Outcome::GivenBack;
        if !back && next.answered < delivery.span.asked + reservation {
            let number = delivery.number;
            return Err(format!(
                "was delivered to another consumer while delivery {number} held it"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
