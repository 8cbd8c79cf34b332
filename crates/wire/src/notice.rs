//! Notices: messages that a memory server pushes to subscribers.

use crate::data::MovedArgs;
use crate::fields::{Field, Malformed, Reader};
use crate::messages::Status;

/// Bits of the kinds of changes for a subscription.
pub mod kinds {
    /// Bytes were appended to a file.
    pub const APPEND: u16 = 1;
    /// A file was sealed.
    pub const SEAL: u16 = 2;
    /// A queue has items to take.
    pub const DATA: u16 = 4;
    /// Items were taken from a queue.
    pub const SPACE: u16 = 8;
    /// A queue was closed.
    pub const CLOSE: u16 = 16;
    /// A key got a value.
    pub const PUT: u16 = 32;
    /// A key was deleted.
    pub const DELETE: u16 = 64;
    /// All kinds.
    pub const ALL: u16 = 127;
}

/// A change of a block that readers can see from then on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Bytes were appended to a file; the offset counts from the start of the block.
    Append {
        /// Where they begin.
        offset: u64,
        /// How many.
        length: u64,
    },
    /// A file was sealed; the length is that of its last block.
    Seal {
        /// Bytes of the block.
        length: u64,
    },
    /// Items can be taken: new ones, or returned reservations.
    Data {
        /// How many.
        items: u64,
    },
    /// Items were taken for good.
    Space {
        /// How many.
        items: u64,
    },
    /// A queue was closed.
    Close,
    /// A key got a value.
    Put {
        /// The key.
        key: Box<[u8]>,
    },
    /// A key was deleted.
    Delete {
        /// The key.
        key: Box<[u8]>,
    },
}

impl Change {
    /// Its bit in a subscription.
    pub fn kind(&self) -> u16 {
        match self {
            Change::Append { .. } => kinds::APPEND,
            Change::Seal { .. } => kinds::SEAL,
            Change::Data { .. } => kinds::DATA,
            Change::Space { .. } => kinds::SPACE,
            Change::Close => kinds::CLOSE,
            Change::Put { .. } => kinds::PUT,
            Change::Delete { .. } => kinds::DELETE,
        }
    }

    /// The key of the change, if it has one.
    pub fn key(&self) -> Option<&[u8]> {
        match self {
            Change::Put { key } | Change::Delete { key } => Some(key),
            _ => None,
        }
    }
}

/// The keys of a key-value store for a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Every key; also for structures without keys.
    All,
    /// This key.
    Key(Vec<u8>),
    /// Keys with this prefix.
    Prefix(Vec<u8>),
}

impl Filter {
    /// Whether a change matches.
    pub fn takes(&self, change: &Change) -> bool {
        match (self, change.key()) {
            (Filter::All, _) | (_, None) => true,
            (Filter::Key(wanted), Some(key)) => wanted == key,
            (Filter::Prefix(wanted), Some(key)) => key.starts_with(wanted),
        }
    }
}

/// The arguments of `Subscribe`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribeArgs {
    /// The client's number for the subscription, which its notices carry.
    pub subscription: u32,
    /// Bits of `kinds`.
    pub kinds: u16,
    /// The keys.
    pub filter: Filter,
}

impl SubscribeArgs {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.subscription.put(&mut out);
        self.kinds.put(&mut out);
        let (mode, key): (u8, &[u8]) = match &self.filter {
            Filter::All => (0, &[]),
            Filter::Key(key) => (1, key),
            Filter::Prefix(key) => (2, key),
        };
        mode.put(&mut out);
        out.extend_from_slice(key);
        out
    }

    /// Reads the whole argument section.
    pub fn decode(args: &[u8]) -> Result<SubscribeArgs, Malformed> {
        let mut r = Reader::new(args);
        let (subscription, wanted) = (u32::get(&mut r)?, u16::get(&mut r)?);
        let mode = u8::get(&mut r)?;
        let key = r.rest().to_vec();
        if wanted == 0 || wanted & !kinds::ALL != 0 {
            return Err(r.malformed("a subscription names no kind of change, or an unknown one"));
        }
        let filter = match mode {
            0 if key.is_empty() => Filter::All,
            1 => Filter::Key(key),
            2 => Filter::Prefix(key),
            _ => return Err(r.malformed("a subscription matches 0 (every key), 1 or 2")),
        };
        Ok(SubscribeArgs { subscription, kinds: wanted, filter })
    }
}

/// The content of a notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A change.
    Changed(Change),
    /// So many notices were dropped, because they were not read in time.
    Gap(u64),
    /// The block is full: later changes happen in its successor. The last notice.
    Handover {
        /// The length at which it was sealed.
        length: u64,
        /// The block to subscribe to now.
        to: MovedArgs,
    },
    /// There will be no more, for this reason. The last notice.
    Ended(Status, String),
}

const GAP: u8 = 64;
const HANDOVER: u8 = 65;
const ENDED: u8 = 66;

impl Notice {
    /// The arguments of the frame.
    pub fn encode(&self, subscription: u32) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        subscription.put(&mut out);
        match self {
            Notice::Changed(change) => put_change(change, &mut out),
            Notice::Gap(missed) => {
                GAP.put(&mut out);
                missed.put(&mut out);
            }
            Notice::Handover { length, to } => {
                HANDOVER.put(&mut out);
                length.put(&mut out);
                out.extend_from_slice(&to.encode());
            }
            Notice::Ended(status, message) => {
                ENDED.put(&mut out);
                (*status as u16).put(&mut out);
                out.extend_from_slice(message.as_bytes());
            }
        }
        out
    }

    /// Reads the arguments of a frame: the subscription and the notice.
    pub fn decode(args: &[u8]) -> Result<(u32, Notice), Malformed> {
        let mut r = Reader::new(args);
        let (subscription, code) = (u32::get(&mut r)?, u8::get(&mut r)?);
        let notice = match code {
            GAP => Notice::Gap(u64::get(&mut r)?),
            HANDOVER => {
                let length = u64::get(&mut r)?;
                return Ok((
                    subscription,
                    Notice::Handover { length, to: MovedArgs::decode(r.rest())? },
                ));
            }
            ENDED => {
                let status = Status::from_code(u16::get(&mut r)?).unwrap_or(Status::Internal);
                let message = String::from_utf8_lossy(r.rest()).into_owned();
                return Ok((subscription, Notice::Ended(status, message)));
            }
            code => match take_change(code, &mut r)? {
                change @ (Change::Put { .. } | Change::Delete { .. }) => {
                    return Ok((subscription, Notice::Changed(change)));
                }
                change => Notice::Changed(change),
            },
        };
        r.finish()?;
        Ok((subscription, notice))
    }
}

fn put_change(change: &Change, out: &mut Vec<u8>) {
    (change.kind().trailing_zeros() as u8 + 1).put(out);
    match change {
        Change::Append { offset, length } => {
            offset.put(out);
            length.put(out);
        }
        Change::Seal { length } => length.put(out),
        Change::Data { items } | Change::Space { items } => items.put(out),
        Change::Close => {}
        Change::Put { key } | Change::Delete { key } => out.extend_from_slice(key),
    }
}

fn take_change(code: u8, r: &mut Reader<'_>) -> Result<Change, Malformed> {
    let kind = match code {
        1..=7 => 1u16 << (code - 1),
        _ => return Err(r.malformed("no change has this code")),
    };
    Ok(match kind {
        kinds::APPEND => Change::Append { offset: u64::get(r)?, length: u64::get(r)? },
        kinds::SEAL => Change::Seal { length: u64::get(r)? },
        kinds::DATA => Change::Data { items: u64::get(r)? },
        kinds::SPACE => Change::Space { items: u64::get(r)? },
        kinds::CLOSE => Change::Close,
        kinds::PUT => Change::Put { key: r.rest().into() },
        _ => Change::Delete { key: r.rest().into() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::MapEntry;

    #[test]
    fn notices_round_trip() {
        let key: Box<[u8]> = b"k".as_slice().into();
        let entry = MapEntry { start: 1, end: 2, block: 3, epoch: 4, address: "a:1".into() };
        for notice in [
            Notice::Changed(Change::Append { offset: 1, length: 2 }),
            Notice::Changed(Change::Seal { length: 3 }),
            Notice::Changed(Change::Data { items: 4 }),
            Notice::Changed(Change::Space { items: 5 }),
            Notice::Changed(Change::Close),
            Notice::Changed(Change::Put { key: key.clone() }),
            Notice::Changed(Change::Delete { key }),
            Notice::Gap(6),
            Notice::Handover { length: 7, to: MovedArgs { version: 8, entry } },
            Notice::Ended(Status::GrantRevoked, "why".into()),
        ] {
            assert_eq!(Notice::decode(&notice.encode(9)).unwrap(), (9, notice));
        }
        assert!(Notice::decode(&[0, 0, 0, 0, 8]).is_err());
    }

    #[test]
    fn subscriptions_round_trip_and_filter() {
        for filter in [Filter::All, Filter::Key(b"ab".to_vec()), Filter::Prefix(b"a".to_vec())] {
            let args = SubscribeArgs { subscription: 3, kinds: kinds::PUT, filter };
            assert_eq!(SubscribeArgs::decode(&args.encode()).unwrap(), args);
        }
        assert!(SubscribeArgs::decode(&[0, 0, 0, 0, 0, 0, 0]).is_err(), "no kind");
        let put = Change::Put { key: b"ab".as_slice().into() };
        assert!(Filter::Prefix(b"a".to_vec()).takes(&put));
        assert!(!Filter::Key(b"a".to_vec()).takes(&put));
        assert!(Filter::Key(b"a".to_vec()).takes(&Change::Close));
    }
}
