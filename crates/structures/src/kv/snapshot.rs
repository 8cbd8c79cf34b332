//! The content of a kv block, to be written elsewhere: the logs of its regions and the places of large
//! values.

use super::deltas::Deltas;
use super::region::{ENTRY, Head, LARGE_REF, Region};
use super::table::Table;
use crate::{ItemSink, Snapshot};
use honeycomb_types::limits::EXTENT_OWNER;
use honeycomb_wire::key_hash;
use std::collections::BTreeMap;
use std::io;
use std::ops::{Range, RangeInclusive};

/// The newest values of keys with deltas; `None` for deleted entries.
type Newest<'a> = BTreeMap<&'a [u8], Option<&'a [u8]>>;

/// A bit of the length of a value: the value is a list of extents, which are written as parts of their own.
const OF_EXTENTS: u32 = 1 << 31;

impl Table {
    /// The entries whose hashes are in `range` (`Content::snapshot`).
    pub fn entries_in(&self, range: (u64, u64), deltas: Option<&Deltas>) -> Snapshot {
        let logs: Vec<Range<usize>> = self.regions_from(0).map(Region::log).collect();
        let larges = self.heap.values.places();
        let (end, deltas) = (self.heap.arena.end(), deltas.cloned().unwrap_or_default());
        let length = deltas.runs_end().unwrap_or(end);
        Snapshot::items(length, move |bytes, out| {
            let mut newest = BTreeMap::new();
            deltas.each(bytes, 0, |record| _ = newest.insert(record.key, record.value));
            let mut logs = logs.iter().cloned();
            logs.try_for_each(|log| {
                give_log(bytes, log, range.0..=range.1, (&larges, &newest), out)
            })?;
            let mut newest = newest.iter().filter_map(|(key, value)| Some((*key, (*value)?)));
            newest.try_for_each(|(key, value)| match range.0 <= key_hash(key) {
                true if key_hash(key) <= range.1 => {
                    let lengths = [key.len() as u32, value.len() as u32].map(u32::to_le_bytes);
                    out.item(&[&lengths[0], &lengths[1], key, value])
                }
                _ => Ok(()),
            })
        })
    }
}

fn give_log(
    bytes: &[u8],
    log: Range<usize>,
    range: RangeInclusive<u64>,
    (larges, newer): (&[Range<usize>], &Newest<'_>),
    out: &mut dyn ItemSink,
) -> io::Result<()> {
    let mut at = log.start;
    while at < log.end {
        let head = Head::read(&bytes[at..at + ENTRY]);
        let (key, stored) = (head.key(at), head.stored(at));
        at += head.size();
        if head.dead() || head.staged() || !range.contains(&key_hash(&bytes[key.clone()])) {
            continue;
        }
        if newer.contains_key(&bytes[key.clone()]) {
            continue;
        }
        let value = if head.large() {
            let id: [u8; LARGE_REF] = bytes[stored].try_into().expect("a reference has four bytes");
            larges[u32::from_le_bytes(id) as usize].clone()
        } else {
            stored
        };
        let value = if head.extents() { value.start + EXTENT_OWNER..value.end } else { value };
        let elsewhere = if head.extents() { OF_EXTENTS } else { 0 };
        let lengths = [key.len() as u32, value.len() as u32 | elsewhere].map(u32::to_le_bytes);
        out.item(&[&lengths[0], &lengths[1], &bytes[key], &bytes[value]])?;
    }
    Ok(())
}
