//! Combining a stored value with an operand: numbers, appended bytes, the best k items.
//!
//! `combine` computes the new value and changes nothing; if it refuses, everything stays as it was.
//! `honeycomb_wire::stored` defines the forms of the values.

use super::batch::too_much;
use super::store::{Incoming, Store};
use super::table::{Hit, Value};

use crate::{Answer, Payload};
use honeycomb_block::Backing;
use honeycomb_types::limits::{KV_BATCH_BYTES_MAX, TOP_ITEMS_MAX};
use honeycomb_wire::Status;
use honeycomb_wire::notice::Change;
use honeycomb_wire::stored::{self, Function, Item, NUMBER, Stored, TopOperand, function_and_key};

/// The result of a combination.
#[derive(Debug)]
pub(super) enum Combined {
    /// A number, in its stored form.
    Number([u8; NUMBER]),
    /// Appended bytes.
    Bytes(Vec<u8>),
    /// A list with this number of items, in its stored form.
    Top(Vec<u8>, u64),
}

impl Combined {
    /// The value to store.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Combined::Number(form) => form,
            Combined::Bytes(bytes) | Combined::Top(bytes, _) => bytes,
        }
    }

    /// The value to store, owned.
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Combined::Number(form) => form.to_vec(),
            Combined::Bytes(bytes) | Combined::Top(bytes, _) => bytes,
        }
    }

    /// The reply's number: the bits of a number, a length, or a number of items.
    pub fn value(&self) -> u64 {
        match self {
            Combined::Number(form) => {
                u64::from_le_bytes(form[2..].try_into().expect("eight bytes of number"))
            }
            Combined::Bytes(bytes) => bytes.len() as u64,
            Combined::Top(_, items) => *items,
        }
    }
}

/// The new value under `function`, from the old one (`None`: no entry) and an operand.
pub(super) fn combine(
    function: Function,
    old: Option<&[u8]>,
    operand: &[u8],
) -> Result<Combined, Answer> {
    match function {
        Function::SumI64 | Function::MinI64 | Function::MaxI64 | Function::Count => {
            integers(function, old, operand)
        }
        Function::SumF64 | Function::MinF64 | Function::MaxF64 => floats(function, old, operand),
        Function::Append => Ok(Combined::Bytes([old.unwrap_or_default(), operand].concat())),
        Function::Top => top(old, operand),
    }
}

fn integers(function: Function, old: Option<&[u8]>, operand: &[u8]) -> Result<Combined, Answer> {
    let operand = match function {
        Function::Count if operand.is_empty() => 1,
        Function::Count => return Err(malformed("count takes no operand")),
        _ => i64::from_le_bytes(eight(operand)?),
    };
    let new = match old.map(|value| (Stored::of(value), value)) {
        None => operand,
        Some((Stored::Integer(old), _)) => match function {
            Function::MinI64 => old.min(operand),
            Function::MaxI64 => old.max(operand),
            _ => old.checked_add(operand).ok_or_else(|| {
                invalid(format!("{old} plus {operand} is outside an i64; the value is unchanged"))
            })?,
        },
        Some((other, value)) => return Err(mismatch(&other, value, "an i64")),
    };
    Ok(Combined::Number(stored::integer(new)))
}

fn floats(function: Function, old: Option<&[u8]>, operand: &[u8]) -> Result<Combined, Answer> {
    let operand = f64::from_le_bytes(eight(operand)?);
    if operand.is_nan() {
        return Err(invalid("the operand is not a number (NaN); the value is unchanged"));
    }
    let new = match old.map(|value| (Stored::of(value), value)) {
        None => operand,
        Some((Stored::Float(old), _)) => match function {
            // In the total order, so that the result does not depend on the order of calls: -0 < 0.
            Function::MinF64 if old.total_cmp(&operand).is_le() => old,
            Function::MaxF64 if old.total_cmp(&operand).is_ge() => old,
            Function::SumF64 => old + operand,
            _ => operand,
        },
        Some((other, value)) => return Err(mismatch(&other, value, "an f64")),
    };
    if new.is_nan() {
        return Err(invalid("the sum is not a number (NaN); the value is unchanged"));
    }
    Ok(Combined::Number(stored::float(new)))
}

fn top(old: Option<&[u8]>, operand: &[u8]) -> Result<Combined, Answer> {
    let TopOperand { k, item } = TopOperand::decode(operand)?;
    if k == 0 || k > TOP_ITEMS_MAX {
        return Err(invalid(format!("k is 1 to {TOP_ITEMS_MAX}, not {k}")));
    }
    if item.score.is_nan() {
        return Err(invalid("the score is not a number (NaN); the list is unchanged"));
    }
    if item.bytes.len() > u16::MAX as usize {
        return Err(too_much(item.bytes.len()));
    }
    let mut items: Vec<Item<'_>> = match old.map(|value| (Stored::of(value), value)) {
        None => Vec::new(),
        Some((Stored::Top(items), _)) => items,
        Some((other, value)) => return Err(mismatch(&other, value, "a top list")),
    };
    // An item is in the list once, with its best score so far.
    match items.iter().position(|known| known.bytes == item.bytes) {
        Some(at) if items[at].rank(&item).is_gt() => {
            items.remove(at);
            insert(&mut items, item);
        }
        Some(_) => {}
        None => insert(&mut items, item),
    }
    items.truncate(k as usize);
    let length = stored::top_len(&items);
    if length > KV_BATCH_BYTES_MAX {
        return Err(Answer::refuse(
            Status::ValueTooLarge,
            format!("the list would have {length} bytes; the limit is {KV_BATCH_BYTES_MAX}"),
        ));
    }
    Ok(Combined::Top(stored::top(&items), items.len() as u64))
}

fn insert<'a>(items: &mut Vec<Item<'a>>, item: Item<'a>) {
    let at = items.partition_point(|known| known.rank(&item).is_lt());
    items.insert(at, item);
}

fn eight(operand: &[u8]) -> Result<[u8; 8], Answer> {
    operand.try_into().map_err(|_| malformed("a number has eight bytes"))
}

fn malformed(why: &str) -> Answer {
    Answer::refuse(Status::BadFrame, why)
}

fn invalid(why: impl Into<String>) -> Answer {
    Answer::refuse(Status::InvalidArgument, why)
}

fn mismatch(found: &Stored<'_>, value: &[u8], wanted: &str) -> Answer {
    invalid(format!(
        "the key holds {} ({} bytes), not {wanted}; it is unchanged",
        found.name(),
        value.len()
    ))
}

impl Store {
    pub fn accumulate(
        &mut self,
        block: &mut Backing,
        args: &[u8],
        operand: &[u8],
    ) -> Result<Answer, Answer> {
        let (function, key) = function_and_key(args)?;
        let hash = self.admit_change(key)?;
        if operand.len() > KV_BATCH_BYTES_MAX {
            return Err(too_much(operand.len()));
        }
        let old = self.table.find(block, hash, key);
        if let Some(hit) = &old {
            self.need_whole(block, hit)?;
        }
        if function == Function::Append {
            return self.append(block, hash, key, old, operand);
        }
        let found = old.map(|hit| block.slice(self.table.value_of(block, &hit)));
        let made = combine(function, found, operand)?;
        self.admit_value(made.bytes().len())?;
        self.set(block, hash, key, old, Incoming::Bytes(made.bytes()))?;
        let answer = Answer::ok(made.value());
        Ok(match made {
            Combined::Top(list, _) => answer.with(Payload::Bytes(list.into())),
            _ => answer,
        })
    }

    /// Appends to a value. A long one is assembled in the block itself.
    fn append(
        &mut self,
        block: &mut Backing,
        hash: u64,
        key: &[u8],
        old: Option<Hit>,
        more: &[u8],
    ) -> Result<Answer, Answer> {
        let before = old.map_or(0, |hit| hit.head.value_len);
        let length = before + more.len();
        self.admit_value(length)?;
        if length <= self.inline_max {
            let found = old.map_or(&[][..], |hit| block.slice(self.table.value_of(block, &hit)));
            let value = [found, more].concat();
            self.set(block, hash, key, old, Incoming::Bytes(&value))?;
            return Ok(Answer::ok(length as u64));
        }
        let id = self.table.alloc_large(block, length, before)?;
        // Making room may have moved the entry that it replaces.
        let old = self.table.find(block, hash, key);
        let place = self.table.heap.values.place(id);
        if let Some(hit) = &old {
            block.copy_within(self.table.value_of(block, hit), place.start);
        }
        block.slice_mut(place.start + before..place.end).copy_from_slice(more);
        let stored = self.table.store(block, hash, key, old, Value::Large(id));
        if let Err(refusal) = stored {
            self.table.heap.free_value(block, id);
            return Err(refusal);
        }
        self.events.changed(|| Change::Put { key: key.into() });
        Ok(Answer::ok(length as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(function: Function, old: Option<&[u8]>, operand: &[u8]) -> Result<Vec<u8>, String> {
        combine(function, old, operand)
            .map(|made| made.bytes().to_vec())
            .map_err(|refusal| String::from_utf8(refusal.args).unwrap())
    }

    #[test]
    fn numbers_begin_from_their_identity_and_do_not_wrap() {
        let five = 5i64.to_le_bytes();
        for function in [Function::SumI64, Function::MinI64, Function::MaxI64] {
            assert_eq!(number(function, None, &five).unwrap(), stored::integer(5));
        }
        let old = stored::integer(i64::MAX - 4);
        assert!(number(Function::SumI64, Some(&old), &five).unwrap_err().contains("outside"));
        assert_eq!(
            number(Function::SumI64, Some(&old), &4i64.to_le_bytes()).unwrap(),
            stored::integer(i64::MAX)
        );
        assert_eq!(number(Function::Count, None, b"").unwrap(), stored::integer(1));
        assert!(number(Function::Count, None, b"x").is_err());
        assert!(number(Function::SumI64, None, b"1234567").is_err());
    }

    #[test]
    fn floats_never_become_nan_and_order_their_zeros() {
        let bits = |n: f64| n.to_le_bytes();
        let infinite = stored::float(f64::INFINITY);
        for bad in [bits(f64::NAN), bits(f64::NEG_INFINITY)] {
            let refusal = number(Function::SumF64, Some(&infinite), &bad).unwrap_err();
            assert!(refusal.contains("NaN"), "{refusal}");
        }
        let (zero, minus) = (stored::float(0.0), stored::float(-0.0));
        assert_eq!(number(Function::MinF64, Some(&zero), &bits(-0.0)).unwrap(), minus);
        assert_eq!(number(Function::MinF64, Some(&minus), &bits(0.0)).unwrap(), minus);
        assert_eq!(number(Function::MaxF64, Some(&minus), &bits(0.0)).unwrap(), zero);
        assert_eq!(number(Function::MaxF64, Some(&zero), &bits(-0.0)).unwrap(), zero);
        assert_eq!(number(Function::SumF64, None, &bits(2.5)).unwrap(), stored::float(2.5));
    }

    #[test]
    fn a_type_that_does_not_fit_is_named() {
        let one = 1i64.to_le_bytes();
        let float = stored::float(1.0);
        let message = number(Function::SumI64, Some(&float), &one).unwrap_err();
        assert!(message.contains("an f64") && message.contains("not an i64"), "{message}");
        let message = number(Function::MaxF64, Some(b"text"), &1f64.to_le_bytes()).unwrap_err();
        assert!(message.contains("no number") && message.contains("4 bytes"), "{message}");
        let add = TopOperand { k: 1, item: Item { score: 1.0, bytes: b"x" } }.encode();
        assert!(number(Function::Top, Some(&float), &add).unwrap_err().contains("top list"));
    }

    #[test]
    fn a_list_keeps_the_best_with_each_item_once() {
        let mut list: Option<Vec<u8>> = None;
        let mut add = |k, score, bytes: &[u8]| {
            let operand = TopOperand { k, item: Item { score, bytes } }.encode();
            list = Some(number(Function::Top, list.as_deref(), &operand).unwrap());
            let Stored::Top(items) = Stored::of(list.as_deref().unwrap()) else { panic!("a list") };
            items.iter().map(|i| (i.score, i.bytes.to_vec())).collect::<Vec<_>>()
        };
        let pair = |score: f64, bytes: &[u8]| (score, bytes.to_vec());
        add(2, 1.0, b"b");
        assert_eq!(add(2, 1.0, b"a"), [pair(1.0, b"a"), pair(1.0, b"b")], "ties by the item");
        assert_eq!(add(2, 0.5, b"c"), [pair(1.0, b"a"), pair(1.0, b"b")]);
        assert_eq!(add(2, 3.0, b"b"), [pair(3.0, b"b"), pair(1.0, b"a")], "it rises");
        assert_eq!(add(2, 2.0, b"b"), [pair(3.0, b"b"), pair(1.0, b"a")], "it does not fall");
        assert_eq!(add(1, 0.0, b"z"), [pair(3.0, b"b")], "a smaller k cuts");
        assert_eq!(add(3, 0.0, b"z").len(), 2);
    }

    #[test]
    fn a_list_is_bounded() {
        let item = |bytes| TopOperand { k: TOP_ITEMS_MAX, item: Item { score: 1.0, bytes } };
        let (half, other) = (vec![1; 40_000], vec![2; 40_000]);
        let list = number(Function::Top, None, &item(&half).encode()).unwrap();
        let message = number(Function::Top, Some(&list), &item(&other).encode()).unwrap_err();
        assert!(message.contains(&KV_BATCH_BYTES_MAX.to_string()), "{message}");
        for k in [0, TOP_ITEMS_MAX + 1] {
            let add = TopOperand { k, item: Item { score: 1.0, bytes: b"x" } }.encode();
            assert!(number(Function::Top, None, &add).unwrap_err().contains("k is 1 to"));
        }
        let nan = TopOperand { k: 1, item: Item { score: f64::NAN, bytes: b"x" } }.encode();
        assert!(number(Function::Top, None, &nan).unwrap_err().contains("NaN"));
    }
}
