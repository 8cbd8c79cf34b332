//! The reference model of a queue: puts, deliveries, and the results that they permit.
//!
//! Every item names its producer and is put once. The model records when each item was put, first
//! delivered, and taken for good, and judges results and the end of the queue by that (INV-22): no
//! item invented, lost, duplicated or out of order, the bound never exceeded, "empty" only if it
//! may have been.

use honeycomb_types::Time;
use std::collections::BTreeMap;

/// Bytes before the filling of an item: task, number, length.
pub const HEAD: usize = 12;

/// The key of an item: task and number.
pub type Key = (u32, u32);

/// The bytes of an item.
pub fn item(key: Key, length: usize) -> Vec<u8> {
    let length = length.max(HEAD);
    let mut bytes = Vec::with_capacity(length);
    for word in [key.0, key.1, length as u32] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.resize(length, (key.0 * 31 + key.1) as u8);
    bytes
}

fn key_of(bytes: &[u8]) -> Result<Key, String> {
    let word = |i: usize| {
        let four = bytes.get(4 * i..4 * i + 4).ok_or("an item without its head")?;
        Ok::<u32, String>(u32::from_le_bytes(four.try_into().expect("four bytes")))
    };
    let key = (word(0)?, word(1)?);
    if item(key, bytes.len()) != bytes || word(2)? as usize != bytes.len() {
        return Err(format!("the item {key:?} of {} bytes is torn", bytes.len()));
    }
    Ok(key)
}

/// A span of time in which something happened.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// When it was sent.
    pub begin: Time,
    /// When the reply arrived; `NEVER` if it did not.
    pub end: Time,
}

#[derive(Clone, Debug)]
struct Put {
    span: Span,
    /// Whether it is known to have taken effect.
    sure: bool,
    bytes: u64,
    /// When each delivery of it was requested and returned, as far as is known.
    given: BTreeMap<u32, Span>,
    /// When it was taken for good.
    taken: Option<Span>,
}

/// How items were delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// The number of the delivery.
    pub delivery: u32,
    /// Reserved instead of taken for good.
    pub reserved: bool,
}

/// The knowledge about one queue.
#[derive(Debug, Default)]
pub struct QueueModel {
    puts: BTreeMap<Key, Put>,
    /// Maximum number of items; 0 for no bound.
    pub max_items: u64,
    /// Maximum bytes; 0 for no bound.
    pub max_bytes: u64,
    /// Items that takes with an unknown outcome may have taken.
    swallowed: usize,
    /// A reservation with an unknown outcome may have hidden items for a while.
    hazy: bool,
    /// When gets found no item.
    empty: Vec<Span>,
    /// When gets received the answer that the queue had ended.
    ended: Vec<Span>,
    /// When a close was sent, and when it was confirmed.
    pub closing: Option<Time>,
    pub closed: Option<Time>,
}

impl QueueModel {
    /// An empty queue with these bounds, 0 for none.
    pub fn new(max_items: u64, max_bytes: u64) -> QueueModel {
        QueueModel { max_items, max_bytes, ..QueueModel::default() }
    }

    /// Number of items seen.
    pub fn len(&self) -> usize {
        self.puts.len()
    }

    /// Items were put, or may have been if the span has no end.
    pub fn put(&mut self, span: Span, items: &[(Key, usize)]) -> Result<(), String> {
        let sure = span.end != Time::NEVER;
        if sure && self.closed.is_some_and(|closed| closed < span.begin) {
            return Err("a put succeeded after the queue was closed".into());
        }
        for (key, bytes) in items {
            // A consumer may have seen it before its producer got the reply.
            let put = self.puts.get_mut(key).expect("the put was requested");
            (put.span, put.sure, put.bytes) = (span, sure, *bytes as u64);
        }
        Ok(())
    }

    /// A put of items was sent; they may be seen before its reply.
    pub fn asked(&mut self, begin: Time, items: &[(Key, usize)]) {
        for (key, bytes) in items {
            let span = Span { begin, end: Time::NEVER };
            let (bytes, given) = (*bytes as u64, BTreeMap::new());
            let put = Put { span, sure: false, bytes, given, taken: None };
            self.puts.insert(*key, put);
        }
    }

    /// A put was refused for certain.
    pub fn refused(&mut self, items: &[(Key, usize)]) -> Result<(), String> {
        for (key, _) in items {
            let put = self.puts.remove(key).expect("the put was requested");
            if !put.given.is_empty() {
                return Err(format!("the item {key:?} was refused, and given out"));
            }
        }
        Ok(())
    }

    /// Items were delivered, in this order.
    pub fn given(&mut self, span: Span, how: Given, items: &[Vec<u8>]) -> Result<Vec<Key>, String> {
        let mut keys = Vec::new();
        for bytes in items {
            let key = key_of(bytes)?;
            let put = self.puts.get_mut(&key).ok_or(format!("{key:?} was never put"))?;
            // A late reply may contain a reservation that has expired since.
            if let Some(taken) = put.taken
                && (!how.reserved || taken.end < span.begin)
            {
                return Err(format!("{key:?} was given out again after it was taken: {taken:?}"));
            }
            if put.given.insert(how.delivery, span).is_some() {
                return Err(format!("{key:?} was given out as delivery {} twice", how.delivery));
            }
            if !how.reserved {
                put.taken = Some(span);
            }
            keys.push(key);
        }
        Ok(keys)
    }

    /// An item was reserved, by a request in this span, and not taken.
    pub fn passed(&mut self, span: Span, key: Key, delivery: u32) -> Result<(), String> {
        let put = self.puts.get_mut(&key).ok_or(format!("{key:?} was never put"))?;
        match put.given.insert(delivery, span) {
            None => Ok(()),
            Some(_) => Err(format!("{key:?} was given out as delivery {delivery} twice")),
        }
    }

    /// A reservation was acknowledged: its item is taken for good.
    pub fn settled(&mut self, span: Span, key: Key, delivery: u32) -> Result<(), String> {
        let put = self.puts.get_mut(&key).expect("the put was delivered");
        if put.taken.is_some() {
            return Err(format!("{key:?} was settled twice"));
        }
        let later = put.given.range(delivery + 1..).find(|(_, given)| given.end < span.begin);
        if let Some((later, _)) = later {
            return Err(format!(
                "{key:?} was settled as delivery {delivery}, but somebody has delivery {later}"
            ));
        }
        put.taken = Some(span);
        Ok(())
    }

    /// At most so many items may have been taken.
    pub fn swallow(&mut self, items: usize) {
        self.swallowed += items;
    }

    /// Items may have been reserved.
    pub fn haze(&mut self) {
        self.hazy = true;
    }

    /// A get found no item.
    pub fn empty(&mut self, span: Span) {
        self.empty.push(span);
    }

    /// A get returned the end of the queue.
    pub fn ended(&mut self, span: Span) {
        self.ended.push(span);
    }

    /// Judges the results, after every reply has arrived.
    pub fn history(&self) -> Result<(), String> {
        self.bound()?;
        self.order()?;
        // An unknown get may have taken the items that an empty reply missed.
        if self.swallowed > 0 || self.hazy {
            return Ok(());
        }
        for span in &self.empty {
            let missed = self.puts.iter().find(|(_, put)| {
                let asked = put.given.values().any(|given| given.begin <= span.end);
                put.sure && put.span.end < span.begin && !asked
            });
            if let Some((key, _)) = missed {
                return Err(format!(
                    "a get found nothing in {span:?} while {key:?} was there: {:?}",
                    self.puts[key].given
                ));
            }
        }
        for span in &self.ended {
            if self.closing.is_none_or(|asked| asked > span.end) {
                return Err("a get was told of an end that nobody had asked for".into());
            }
            // A reserved item may be returned to a block that was left behind.
            let left = self.puts.iter().find(|(_, put)| {
                put.sure && !put.given.values().any(|given| given.begin <= span.end)
            });
            if let Some((key, _)) = left {
                return Err(format!("the queue was said to have ended with {key:?} in it"));
            }
        }
        Ok(())
    }

    /// INV-22: the items that had certainly been put and cannot have been taken were always within
    /// the bound.
    fn bound(&self) -> Result<(), String> {
        for now in self.puts.values().filter(|put| put.sure).map(|put| put.span.end) {
            let held = || {
                let sure = self.puts.values().filter(|p| p.sure && p.span.end <= now);
                sure.filter(|p| p.taken.is_none_or(|taken| taken.begin > now))
            };
            let (items, bytes) = (held().count() as u64, held().map(|p| p.bytes).sum::<u64>());
            if self.max_items != 0 && items > self.max_items + self.swallowed as u64 {
                return Err(format!("{items} items were in a queue of at most {}", self.max_items));
            }
            if self.max_bytes != 0 && self.swallowed == 0 && bytes > self.max_bytes {
                return Err(format!("{bytes} bytes were in a queue of at most {}", self.max_bytes));
            }
        }
        Ok(())
    }

    /// Judges the content of the queue at its end: `left`, with the numbers of their deliveries.
    pub fn whole(&mut self, now: Time, left: &[(u32, Vec<u8>)]) -> Result<(), String> {
        let span = Span { begin: now, end: now };
        for (delivery, bytes) in left {
            let how = Given { delivery: *delivery, reserved: false };
            self.given(span, how, std::slice::from_ref(bytes))?;
        }
        let lost: Vec<&Key> =
            self.puts.iter().filter(|(_, p)| p.sure && p.taken.is_none()).map(|(k, _)| k).collect();
        if lost.len() > self.swallowed {
            return Err(format!("items were lost: {lost:?}"));
        }
        Ok(())
    }

    /// An item that was put before another one was sent is not delivered after that one.
    fn order(&self) -> Result<(), String> {
        // Only first deliveries are in order.
        let mut seen: Vec<(&Key, &Put, Span)> = self
            .puts
            .iter()
            .filter_map(|(key, put)| put.given.get(&1).map(|given| (key, put, *given)))
            .collect();
        seen.sort_by_key(|(_, put, _)| put.span.end);
        // In the order of their ends: the earliest end of a delivery among those put later.
        for (i, (key, put, given)) in seen.iter().enumerate() {
            for (other, later, first) in &seen[i + 1..] {
                if put.span.end < later.span.begin && first.end < given.begin {
                    return Err(format!(
                        "{key:?} was put before {other:?} and given out after it: {given:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(begin: u64, end: u64) -> Span {
        Span { begin: Time(begin), end: Time(end) }
    }

    fn model(keys: &[Key]) -> QueueModel {
        let mut model = QueueModel::default();
        for (i, key) in keys.iter().enumerate() {
            let at = 10 * i as u64;
            model.asked(Time(at), &[(*key, 20)]);
            model.put(span(at, at + 5), &[(*key, 20)]).unwrap();
        }
        model
    }

    const TAKEN: Given = Given { delivery: 1, reserved: false };

    #[test]
    fn lost_doubled_and_reordered_items_are_found() {
        let (a, b) = ((1, 1), (1, 2));
        let bytes = |key| vec![item(key, 20)];
        let mut good = model(&[a, b]);
        good.given(span(50, 51), TAKEN, &bytes(a)).unwrap();
        assert!(good.given(span(60, 61), TAKEN, &bytes(a)).is_err(), "twice");
        good.whole(Time(90), &[(1, item(b, 20))]).unwrap();
        good.history().unwrap();
        assert!(model(&[a, b]).whole(Time(90), &[(1, item(b, 20))]).is_err(), "lost");
        let mut turned = model(&[a, b]);
        turned.given(span(50, 51), TAKEN, &bytes(b)).unwrap();
        turned.given(span(60, 61), TAKEN, &bytes(a)).unwrap();
        assert!(turned.history().is_err(), "out of order");
        let stranger = model(&[a]).given(span(50, 51), TAKEN, &bytes((9, 9)));
        assert!(stranger.is_err(), "invented");
    }

    #[test]
    fn a_bound_and_an_empty_answer_are_judged() {
        let mut hungry = model(&[(1, 1), (1, 2)]);
        hungry.empty(span(50, 51));
        assert!(hungry.history().is_err());
        let mut full = model(&[(1, 1), (1, 2)]);
        full.max_items = 1;
        assert!(full.history().is_err());
    }

    #[test]
    fn a_stale_settlement_is_found() {
        let mut model = model(&[(1, 1)]);
        let bytes = [item((1, 1), 20)];
        model.given(span(50, 51), Given { delivery: 1, reserved: true }, &bytes).unwrap();
        model.given(span(60, 61), Given { delivery: 2, reserved: true }, &bytes).unwrap();
        assert!(model.settled(span(70, 71), (1, 1), 1).is_err());
        model.settled(span(70, 71), (1, 1), 2).unwrap();
    }
}
