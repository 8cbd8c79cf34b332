//! Values made by `KvAccumulate`: numbers and top lists, readable by any client.
//!
//! Each begins with two bytes that identify its form; no UTF-8 text begins with the first of them.
//! The result of `append` has no form of its own: it consists of the appended bytes.

use crate::fields::{Field, Malformed, Reader};
use std::cmp::Ordering;

/// First byte of every number and list.
const MARK: u8 = 0xAC;
/// Bytes of a stored number.
pub const NUMBER: usize = 10;
/// Bytes of a list before its items.
const LIST: usize = 6;
/// Bytes of an item before its content.
const ITEM: usize = 10;

/// The function that combines a value with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Function {
    /// Sum of `i64`.
    SumI64 = 1,
    /// Smaller of `i64`.
    MinI64 = 2,
    /// Larger of `i64`.
    MaxI64 = 3,
    /// Sum of `f64`.
    SumF64 = 4,
    /// Smaller of `f64`.
    MinF64 = 5,
    /// Larger of `f64`.
    MaxF64 = 6,
    /// Adds one; an `i64`, without operand.
    Count = 7,
    /// Concatenates bytes.
    Append = 8,
    /// The k best items.
    Top = 9,
}

impl Function {
    /// All of them.
    pub const ALL: [Function; 9] = [
        Function::SumI64,
        Function::MinI64,
        Function::MaxI64,
        Function::SumF64,
        Function::MinF64,
        Function::MaxF64,
        Function::Count,
        Function::Append,
        Function::Top,
    ];

    /// Reads the byte of a function.
    pub(crate) fn get(r: &mut Reader<'_>) -> Result<Function, Malformed> {
        let code = u8::get(r)?;
        let found = Function::ALL.into_iter().find(|function| *function as u8 == code);
        found.ok_or_else(|| r.malformed("no function has this number"))
    }
}

/// The arguments of `KvAccumulate`: the function and the key.
pub fn accumulate_args(function: Function, key: &[u8]) -> Vec<u8> {
    [&[function as u8], key].concat()
}

/// Splits the arguments of `KvAccumulate`.
pub fn function_and_key(args: &[u8]) -> Result<(Function, &[u8]), Malformed> {
    let mut r = Reader::new(args);
    let function = Function::get(&mut r)?;
    Ok((function, r.rest()))
}

/// One item of a top list.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// Larger is better. Not a NaN.
    pub score: f64,
    /// The item.
    pub bytes: &'a [u8],
}

impl Item<'_> {
    /// The order of a list: the higher score first, of equal ones the smaller item. 0 is above -0.
    pub fn rank(&self, other: &Item<'_>) -> Ordering {
        other.score.total_cmp(&self.score).then_with(|| self.bytes.cmp(other.bytes))
    }
}

/// The operand of `Function::Top`.
#[derive(Clone, Copy, Debug)]
pub struct TopOperand<'a> {
    /// Items to keep.
    pub k: u32,
    /// The new item.
    pub item: Item<'a>,
}

impl<'a> TopOperand<'a> {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(12 + self.item.bytes.len());
        self.k.put(&mut out);
        self.item.score.to_bits().put(&mut out);
        out.extend_from_slice(self.item.bytes);
        out
    }

    /// Reads it.
    pub fn decode(operand: &'a [u8]) -> Result<TopOperand<'a>, Malformed> {
        let mut r = Reader::new(operand);
        let (k, bits) = (u32::get(&mut r)?, u64::get(&mut r)?);
        Ok(TopOperand { k, item: Item { score: f64::from_bits(bits), bytes: r.rest() } })
    }
}

/// A stored value by its form.
#[derive(Clone, Debug)]
pub enum Stored<'a> {
    /// A whole number.
    Integer(i64),
    /// A floating-point number.
    Float(f64),
    /// A top list, best first.
    Top(Vec<Item<'a>>),
    /// Other bytes.
    Plain,
}

impl<'a> Stored<'a> {
    /// Recognises the form of a value.
    pub fn of(value: &'a [u8]) -> Stored<'a> {
        let number = |value: &[u8]| u64::from_le_bytes(value[2..].try_into().expect("eight bytes"));
        match value {
            [MARK, b'i', ..] if value.len() == NUMBER => Stored::Integer(number(value) as i64),
            [MARK, b'f', ..] if value.len() == NUMBER => {
                Stored::Float(f64::from_bits(number(value)))
            }
            [MARK, b't', rest @ ..] => items(rest).map_or(Stored::Plain, Stored::Top),
            _ => Stored::Plain,
        }
    }

    /// Its name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Stored::Integer(_) => "an i64",
            Stored::Float(_) => "an f64",
            Stored::Top(_) => "a top list",
            Stored::Plain => "bytes that are no number or list",
        }
    }
}

/// The stored form of an `i64`.
pub fn integer(number: i64) -> [u8; NUMBER] {
    form(b'i', number as u64)
}

/// The stored form of an `f64`.
pub fn float(number: f64) -> [u8; NUMBER] {
    form(b'f', number.to_bits())
}

fn form(kind: u8, bits: u64) -> [u8; NUMBER] {
    let mut out = [MARK, kind, 0, 0, 0, 0, 0, 0, 0, 0];
    out[2..].copy_from_slice(&bits.to_le_bytes());
    out
}

/// The stored form of an ordered list.
pub fn top(items: &[Item<'_>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(top_len(items));
    out.extend_from_slice(&[MARK, b't']);
    (items.len() as u32).put(&mut out);
    for item in items {
        item.score.to_bits().put(&mut out);
        (item.bytes.len() as u16).put(&mut out);
        out.extend_from_slice(item.bytes);
    }
    out
}

/// Bytes of the stored form of a list.
pub fn top_len(items: &[Item<'_>]) -> usize {
    LIST + items.iter().map(|item| ITEM + item.bytes.len()).sum::<usize>()
}

fn items(rest: &[u8]) -> Result<Vec<Item<'_>>, Malformed> {
    let mut r = Reader::new(rest);
    let count = r.count(ITEM)?;
    let mut items = Vec::with_capacity(count);
    for _ in 0..count {
        let score = f64::from_bits(u64::get(&mut r)?);
        let length = u16::get(&mut r)? as usize;
        items.push(Item { score, bytes: r.take(length)? });
    }
    r.finish()?;
    let ordered = items.windows(2).all(|pair| pair[0].rank(&pair[1]).is_lt());
    if !ordered || items.iter().any(|item| item.score.is_nan()) {
        return Err(Malformed { at: 0, why: "the items are not in order" });
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_values_tell_what_they_are() {
        assert!(matches!(Stored::of(&integer(i64::MIN)), Stored::Integer(i64::MIN)));
        assert!(matches!(Stored::of(&float(-0.5)), Stored::Float(n) if n == -0.5));
        let items = [Item { score: 2.0, bytes: b"b" }, Item { score: 1.0, bytes: b"" }];
        let list = top(&items);
        assert_eq!(list.len(), top_len(&items));
        let Stored::Top(read) = Stored::of(&list) else { panic!("a list") };
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].score, read[0].bytes), (2.0, &b"b"[..]));
        for plain in [&b""[..], b"12345678", &list[..list.len() - 1], &integer(1)[..9]] {
            assert!(matches!(Stored::of(plain), Stored::Plain));
        }
        let wrong = top(&[items[1], items[0]]);
        assert!(matches!(Stored::of(&wrong), Stored::Plain), "a list is in order");
    }

    #[test]
    fn operands_round_trip() {
        let operand = TopOperand { k: 3, item: Item { score: 1.5, bytes: b"x" } }.encode();
        let read = TopOperand::decode(&operand).unwrap();
        assert_eq!((read.k, read.item.score, read.item.bytes), (3, 1.5, &b"x"[..]));
        assert!(TopOperand::decode(&operand[..11]).is_err());
        for function in Function::ALL {
            let args = accumulate_args(function, b"k");
            assert_eq!(function_and_key(&args).unwrap(), (function, &b"k"[..]));
        }
        assert!(function_and_key(&[10]).is_err() && function_and_key(&[]).is_err());
    }
}
