//! Records addressed by a 32-bit index, half the size of a pointer; freed indices are reused.

use std::ops::{Index, IndexMut};

/// The index of no record: the end of the intrusive lists.
pub(crate) const NONE: u32 = u32::MAX;

/// The members of an intrusive list.
pub(crate) fn chain(first: u32, next: impl Fn(u32) -> u32) -> impl Iterator<Item = u32> {
    let some = |at| if at == NONE { None } else { Some(at) };
    std::iter::successors(some(first), move |&at| some(next(at)))
}

#[derive(Debug)]
enum Entry<T> {
    Vacant(u32),
    Occupied(T),
}

#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    vacant: u32,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab::new()
    }
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab { entries: Vec::new(), vacant: NONE, len: 0 }
    }

    /// Restores a slab from records by index.
    pub(crate) fn restored(records: Vec<Option<T>>) -> Slab<T> {
        let mut slab = Slab { entries: Vec::with_capacity(records.len()), vacant: NONE, len: 0 };
        for (at, record) in (0..).zip(records) {
            slab.len += usize::from(record.is_some());
            slab.entries.push(match record {
                Some(record) => Entry::Occupied(record),
                None => Entry::Vacant(std::mem::replace(&mut slab.vacant, at)),
            });
        }
        slab
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        match self.entries.get_mut(at as usize) {
            Some(Entry::Occupied(value)) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The index that the next record will have.
    pub(crate) fn next(&self) -> u32 {
        if self.vacant == NONE { self.entries.len() as u32 } else { self.vacant }
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        let at = self.vacant;
        if at == NONE {
            assert!(self.entries.len() < NONE as usize, "a slab holds less than 2^32 records");
            self.entries.push(Entry::Occupied(value));
            return self.entries.len() as u32 - 1;
        }
        let slot = &mut self.entries[at as usize];
        let Entry::Vacant(next) = *slot else {
            panic!("slab: {at} is on the vacant list and occupied");
        };
        self.vacant = next;
        *slot = Entry::Occupied(value);
        at
    }

    pub(crate) fn remove(&mut self, at: u32) -> T {
        let taken = std::mem::replace(&mut self.entries[at as usize], Entry::Vacant(self.vacant));
        let Entry::Occupied(value) = taken else {
            panic!("slab: {at} removed twice");
        };
        self.vacant = at;
        self.len -= 1;
        value
    }

    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        match self.entries.get(at as usize) {
            Some(Entry::Occupied(value)) => Some(value),
            _ => None,
        }
    }

    /// The first record at this index or behind it, among the next `most` ones.
    pub(crate) fn next_from(&self, from: u32, most: u32) -> Option<u32> {
        let end = from.saturating_add(most).min(self.entries.len() as u32);
        (from..end).find(|&at| self.get(at).is_some())
    }

    /// The number of indices, vacant ones included.
    pub(crate) fn bound(&self) -> usize {
        self.entries.len()
    }

    /// The records in order of index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries.iter().enumerate().filter_map(|(at, entry)| match entry {
            Entry::Occupied(value) => Some((at as u32, value)),
            Entry::Vacant(_) => None,
        })
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(|entry| match entry {
            Entry::Occupied(value) => Some(value),
            Entry::Vacant(_) => None,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry<T>>()
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: u32) -> &T {
        match &self.entries[at as usize] {
            Entry::Occupied(value) => value,
            Entry::Vacant(_) => panic!("slab: {at} is vacant"),
        }
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut T {
        match &mut self.entries[at as usize] {
            Entry::Occupied(value) => value,
            Entry::Vacant(_) => panic!("slab: {at} is vacant"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again() {
        let mut slab = Slab::new();
        let (a, b) = (slab.insert("a"), slab.insert("b"));
        assert_eq!(slab.remove(a), "a");
        assert!(slab.get(a).is_none());
        assert_eq!(slab.insert("c"), a);
        assert_eq!((slab[a], slab[b], slab.len()), ("c", "b", 2));
    }
}
