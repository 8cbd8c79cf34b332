//! Which region has which hashes.

/// The regions of a block in order of their first hashes. Each has the hashes up to the next region's first.
pub(super) struct RangeMap {
    /// First hash of each region, and the region's id beside it.
    starts: Vec<u64>,
    regions: Vec<u32>,
}

impl RangeMap {
    /// One region for all hashes from `start` on.
    pub fn new(start: u64, region: u32) -> RangeMap {
        RangeMap { starts: vec![start], regions: vec![region] }
    }

    /// Place of a hash in the order of regions.
    #[inline]
    pub fn place_of(&self, hash: u64) -> usize {
        self.place_if_any(hash).expect("INV-17: a hash of the block's range has a region")
    }

    #[inline]
    fn place_if_any(&self, hash: u64) -> Option<usize> {
        self.starts.partition_point(|start| *start <= hash).checked_sub(1)
    }

    #[inline]
    pub fn region_of(&self, hash: u64) -> u32 {
        self.regions[self.place_of(hash)]
    }

    /// The region of any hash, also one outside of the block's range.
    #[inline]
    pub fn region_if_any(&self, hash: u64) -> Option<u32> {
        self.place_if_any(hash).map(|place| self.regions[place])
    }

    /// The number of regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// The region at a place.
    #[inline]
    pub fn region(&self, place: usize) -> u32 {
        self.regions[place]
    }

    /// The regions in order.
    pub fn regions(&self) -> &[u32] {
        &self.regions
    }

    /// The first hash of the region at a place.
    pub fn start(&self, place: usize) -> u64 {
        self.starts[place]
    }

    /// The last hash of the region at a place, in a block whose last hash is `end`.
    pub fn end(&self, place: usize, end: u64) -> u64 {
        self.starts.get(place + 1).map_or(end, |next| next - 1)
    }

    /// Gives a region the hashes from `start` on of the region before `place`.
    pub fn insert(&mut self, place: usize, start: u64, region: u32) {
        self.starts.insert(place, start);
        self.regions.insert(place, region);
    }

    /// Gives the hashes of the region at a place to its neighbour; returns the region.
    pub fn remove(&mut self, place: usize) -> u32 {
        // The range of the previous region is extended; the first region has no predecessor, so the next
        // region gets its start.
        self.starts.remove(if place == 0 { 1 } else { place });
        self.regions.remove(place)
    }

    /// Removes the regions from a place on, with their hashes.
    pub fn split_off(&mut self, place: usize) -> Vec<u32> {
        self.starts.truncate(place);
        self.regions.split_off(place)
    }

    /// Replaces all regions; returns the former ones.
    pub fn replace(&mut self, starts: Vec<u64>, regions: Vec<u32>) -> Vec<u32> {
        self.starts = starts;
        std::mem::replace(&mut self.regions, regions)
    }

    /// Adds the regions of a range after the block's.
    pub fn append(&mut self, starts: Vec<u64>, regions: Vec<u32>) {
        self.starts.extend(starts);
        self.regions.extend(regions);
    }

    /// Adds the regions of a range before the block's.
    pub fn prepend(&mut self, starts: Vec<u64>, regions: Vec<u32>) {
        self.starts.splice(..0, starts);
        self.regions.splice(..0, regions);
    }

    /// Panics unless the regions are in order.
    pub fn check(&self) {
        assert!(self.starts.is_sorted() && self.starts.len() == self.regions.len());
    }
}
