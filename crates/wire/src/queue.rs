//! Arguments of a queue's requests and replies, laid out by hand.

use crate::fields::{Field, Malformed, Reader, fields};
use honeycomb_types::limits::{QUEUE_ACK_MAX, QUEUE_BATCH_MAX};

/// Appends the arguments of a `QueuePut` of several items; those of a single item are empty.
pub fn put_lengths(items: &[&[u8]], out: &mut Vec<u8>) {
    if items.len() != 1 {
        for item in items {
            (item.len() as u32).put(out);
        }
    }
}

/// The lengths of the items in the payload of a `QueuePut`.
pub fn lengths(args: &[u8], payload_len: usize) -> Result<Vec<u32>, Malformed> {
    if args.is_empty() {
        return Ok(vec![payload_len as u32]);
    }
    let lengths = list(args, QUEUE_BATCH_MAX as usize, u32::get)?;
    match lengths.iter().map(|length| *length as u64).sum::<u64>() == payload_len as u64 {
        true => Ok(lengths),
        false => {
            Err(Malformed { at: 0, why: "the lengths of the items do not add up to the payload" })
        }
    }
}

/// Reads all of `bytes` as entries, at most so many.
fn list<T>(
    bytes: &[u8],
    most: usize,
    get: impl Fn(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let mut r = Reader::new(bytes);
    let mut entries = Vec::new();
    while !r.is_empty() {
        if entries.len() == most {
            return Err(r.malformed("more entries than one request may have"));
        }
        entries.push(get(&mut r)?);
    }
    Ok(entries)
}

/// `QueueGet` and `QueuePeek`: how much to return, and under what conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetArgs {
    /// Maximum number of items.
    pub items: u32,
    /// Maximum bytes; the first item may exceed it.
    pub bytes: u32,
    /// Milliseconds for which the items are reserved; 0 takes them for good. `QueueGet` only.
    pub reserve_ms: u32,
    /// Reply with `QueueEmpty` instead of `Moved` if the block is full and empty. `QueueGet` only.
    pub stay: bool,
}

impl GetArgs {
    /// Appends the arguments of a `QueueGet`.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.items.put(out);
        self.bytes.put(out);
        self.reserve_ms.put(out);
        self.stay.put(out);
    }

    /// Reads the arguments of a `QueueGet`.
    pub fn decode(args: &[u8]) -> Result<GetArgs, Malformed> {
        let mut r = Reader::new(args);
        let get = GetArgs {
            items: u32::get(&mut r)?,
            bytes: u32::get(&mut r)?,
            reserve_ms: u32::get(&mut r)?,
            stay: bool::get(&mut r)?,
        };
        r.finish()?;
        Ok(get)
    }

    /// Reads the arguments of a `QueuePeek`.
    pub fn decode_peek(args: &[u8]) -> Result<GetArgs, Malformed> {
        let mut r = Reader::new(args);
        let (items, bytes) = (u32::get(&mut r)?, u32::get(&mut r)?);
        r.finish()?;
        Ok(GetArgs { items, bytes, reserve_ms: 0, stay: false })
    }
}

/// The arguments of the reply to `QueueGet` and `QueuePeek`: the items in the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Items {
    /// Number of the first item within its block; the others follow it.
    pub first: u64,
    /// How often they have been delivered, including this time.
    pub deliveries: u32,
    /// Bytes of each.
    pub lengths: Vec<u32>,
}

impl Items {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(12 + 4 * self.lengths.len());
        self.first.put(&mut out);
        self.deliveries.put(&mut out);
        for length in &self.lengths {
            length.put(&mut out);
        }
        out
    }

    /// Reads the arguments of a reply with a payload of `payload_len` bytes.
    pub fn decode(args: &[u8], payload_len: usize) -> Result<Items, Malformed> {
        let mut r = Reader::new(args);
        let (first, deliveries) = (u64::get(&mut r)?, u32::get(&mut r)?);
        let lengths = list(r.rest(), QUEUE_BATCH_MAX as usize, u32::get)?;
        if lengths.iter().map(|length| *length as u64).sum::<u64>() != payload_len as u64 {
            return Err(Malformed {
                at: 0,
                why: "the lengths of the items do not add up to the payload",
            });
        }
        Ok(Items { first, deliveries, lengths })
    }
}

/// `QueueGetExtents`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetExtentsArgs {
    /// Milliseconds for which the item is reserved; 0 only names its extents.
    pub reserve_ms: u32,
    /// As in `GetArgs`.
    pub stay: bool,
}

fields!(GetExtentsArgs { reserve_ms, stay });

/// The arguments of the reply to `QueueGetExtents`, whose payload is the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeItem {
    /// Number of the item within its block.
    pub number: u64,
    /// How often it has been delivered, including this time if it was reserved.
    pub deliveries: u32,
}

fields!(LargeItem { number, deliveries });

/// Appends an item to the reply to `QueueLists`.
pub fn put_large_item(number: u64, list: &[u8], out: &mut Vec<u8>) {
    number.put(out);
    (list.len() as u32).put(out);
    out.extend_from_slice(list);
}

/// The items in the reply to `QueueLists`: the number and the list of each.
pub fn large_items(payload: &[u8]) -> Result<Vec<(u64, &[u8])>, Malformed> {
    let (mut r, mut items) = (Reader::new(payload), Vec::new());
    while !r.is_empty() {
        let number = u64::get(&mut r)?;
        let bytes = u32::get(&mut r)? as usize;
        items.push((number, r.take(bytes)?));
    }
    Ok(items)
}

/// The arguments of the reply to `QueueLength`, whose value is the number of items put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Items taken for good.
    pub taken: u64,
    /// Bytes of the items put.
    pub bytes_put: u64,
    /// Bytes of the items taken.
    pub bytes_taken: u64,
    /// Items that are reserved.
    pub reserved: u64,
    /// The queue was closed.
    pub closed: bool,
}

impl Counts {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(33);
        for count in [self.taken, self.bytes_put, self.bytes_taken, self.reserved] {
            count.put(&mut out);
        }
        self.closed.put(&mut out);
        out
    }

    /// Reads the whole argument section.
    pub fn decode(args: &[u8]) -> Result<Counts, Malformed> {
        let mut r = Reader::new(args);
        let counts = Counts {
            taken: u64::get(&mut r)?,
            bytes_put: u64::get(&mut r)?,
            bytes_taken: u64::get(&mut r)?,
            reserved: u64::get(&mut r)?,
            closed: bool::get(&mut r)?,
        };
        r.finish()?;
        Ok(counts)
    }
}

/// The effect of `QueueAck` on reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AckAction {
    /// The items are removed for good.
    Done = 0,
    /// They are returned to the queue, before all others.
    GiveBack = 1,
    /// They stay reserved for the time-out, counted from now.
    Extend = 2,
}

/// `QueueAck`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckArgs {
    /// The action.
    pub action: AckAction,
    /// Milliseconds, for `Extend`.
    pub timeout_ms: u32,
    /// Number and deliveries of each item, from the reply to `QueueGet`.
    pub items: Vec<(u64, u32)>,
}

impl AckArgs {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(5 + 12 * self.items.len());
        (self.action as u8).put(&mut out);
        self.timeout_ms.put(&mut out);
        for (number, deliveries) in &self.items {
            number.put(&mut out);
            deliveries.put(&mut out);
        }
        out
    }

    /// Reads the whole argument section.
    pub fn decode(args: &[u8]) -> Result<AckArgs, Malformed> {
        let mut r = Reader::new(args);
        let action = match u8::get(&mut r)? {
            0 => AckAction::Done,
            1 => AckAction::GiveBack,
            2 => AckAction::Extend,
            _ => return Err(r.malformed("an acknowledgement is 0, 1 or 2")),
        };
        let timeout_ms = u32::get(&mut r)?;
        let items = list(r.rest(), QUEUE_ACK_MAX as usize, |r| Ok((u64::get(r)?, u32::get(r)?)))?;
        Ok(AckArgs { action, timeout_ms, items })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_arguments_round_trip() {
        let get = GetArgs { items: 3, bytes: 4, reserve_ms: 5, stay: true };
        let mut out = Vec::new();
        get.put(&mut out);
        assert_eq!(GetArgs::decode(&out).unwrap(), get);
        let items = Items { first: 7, deliveries: 2, lengths: vec![1, 0, 9] };
        assert_eq!(Items::decode(&items.encode(), 10).unwrap(), items);
        assert!(Items::decode(&items.encode(), 11).is_err());
        let counts = Counts { taken: 1, bytes_put: 2, bytes_taken: 3, reserved: 4, closed: true };
        assert_eq!(Counts::decode(&counts.encode()).unwrap(), counts);
        let ack = AckArgs { action: AckAction::Extend, timeout_ms: 9, items: vec![(1, 1), (2, 5)] };
        assert_eq!(AckArgs::decode(&ack.encode()).unwrap(), ack);
        assert!(AckArgs::decode(&[3, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn arguments_about_large_items_round_trip() {
        let get = GetExtentsArgs { reserve_ms: 7, stay: true };
        assert_eq!(GetExtentsArgs::decode(&get.encode()).unwrap(), get);
        assert!(GetExtentsArgs::decode(&[0; 6]).is_err());
        let item = LargeItem { number: 1 << 40, deliveries: 3 };
        assert_eq!(LargeItem::decode(&item.encode()).unwrap(), item);
        let mut page = Vec::new();
        put_large_item(4, b"abc", &mut page);
        put_large_item(9, b"", &mut page);
        assert_eq!(large_items(&page).unwrap(), [(4, &b"abc"[..]), (9, b"")]);
        assert!(large_items(&page[..page.len() - 1]).is_err());
    }

    #[test]
    fn lengths_must_add_up() {
        assert_eq!(lengths(&[], 9).unwrap(), [9]);
        let mut args = Vec::new();
        put_lengths(&[b"ab", b"", b"c"], &mut args);
        assert_eq!(lengths(&args, 3).unwrap(), [2, 0, 1]);
        assert!(lengths(&args, 4).is_err());
        assert!(lengths(&args[1..], 3).is_err());
        assert!(lengths(&[0; 4 * 4097], 0).is_err(), "a batch has its limit");
    }
}
