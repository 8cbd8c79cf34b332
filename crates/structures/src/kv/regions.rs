//! The regions of a block by their ids, and the sum of their sizes.

use super::region::Region;

/// Regions, whether they have hashes already or still, or not.
pub(super) struct Regions {
    list: Vec<Region>,
    /// Unused ids.
    spare: Vec<u32>,
    /// Bytes of all regions without waste.
    packed: usize,
}

impl Regions {
    /// One empty region, with the id 0.
    pub fn new() -> Regions {
        Regions { list: vec![Region::default()], spare: Vec::new(), packed: 0 }
    }

    /// Bytes of all regions without waste.
    #[inline]
    pub fn packed(&self) -> usize {
        self.packed
    }

    #[inline]
    pub fn get(&self, id: u32) -> &Region {
        &self.list[id as usize]
    }

    /// The region with this id, if the id was ever used.
    #[inline]
    pub fn get_if_any(&self, id: u32) -> Option<&Region> {
        self.list.get(id as usize)
    }

    /// A region, for a change that leaves its packed size unchanged.
    #[inline]
    pub fn get_mut(&mut self, id: u32) -> &mut Region {
        &mut self.list[id as usize]
    }

    /// Changes a region.
    #[inline]
    pub fn change<T>(&mut self, id: u32, change: impl FnOnce(&mut Region) -> T) -> T {
        let region = &mut self.list[id as usize];
        let before = region.packed();
        let result = change(region);
        self.packed = self.packed - before + region.packed();
        result
    }

    /// An id for a new region, which is empty.
    pub fn add(&mut self) -> u32 {
        self.spare.pop().unwrap_or_else(|| {
            self.list.push(Region::default());
            self.list.len() as u32 - 1
        })
    }

    /// Sets a region that was empty.
    pub fn set(&mut self, id: u32, region: Region) {
        self.packed += region.packed();
        self.list[id as usize] = region;
    }

    /// Takes a region out; its id stays in use.
    pub fn take(&mut self, id: u32) -> Region {
        let region = std::mem::take(&mut self.list[id as usize]);
        self.packed -= region.packed();
        region
    }

    /// Releases the id of an empty region.
    pub fn release(&mut self, id: u32) {
        self.spare.push(id);
    }

    pub fn iter(&self) -> impl Iterator<Item = &Region> {
        self.list.iter()
    }
}
