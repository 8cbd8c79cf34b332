//! Units of blocks in lower tiers, or on their way there, by structure and by job. A job's other blocks are
//! in memory, which is the resource that policies share.

use honeycomb_types::BlockId;

/// Updated as blocks are added, removed and moved between tiers.
#[derive(Debug, Default)]
pub(crate) struct Staying {
    /// By index of a structure: its job, and the units of its blocks in lower tiers.
    structures: Vec<(u32, u32)>,
    /// By index of a job.
    jobs: Vec<u32>,
}

impl Staying {
    /// Assigns the structure at this index to a job, before it has blocks.
    pub(crate) fn own(&mut self, s: u32, j: u32) {
        let (s, j) = (s as usize, j as usize);
        if self.structures.len() <= s {
            self.structures.resize(s + 1, (0, 0));
        }
        if self.jobs.len() <= j {
            self.jobs.resize(j + 1, 0);
        }
        let (of, below) = &mut self.structures[s];
        debug_assert!(*below == 0 || *of == j as u32, "the index of a structure that exists");
        *of = j as u32;
    }

    /// A block in a lower tier changes its owner or its capacity: both are passed.
    pub(crate) fn change(&mut self, before: Option<(u32, u32)>, after: Option<(u32, u32)>) {
        if before == after {
            return;
        }
        if let Some((s, units)) = before {
            let (j, below) = &mut self.structures[s as usize];
            let of_job = &mut self.jobs[*j as usize];
            let counted = (*below, *of_job);
            let covers = counted.0 >= units && counted.1 >= units;
            assert!(covers, "INV-42: structure {s} of job {j} has {counted:?} units below");
            *below -= units;
            *of_job -= units;
        }
        if let Some((s, units)) = after {
            let (j, below) = &mut self.structures[s as usize];
            *below += units;
            self.jobs[*j as usize] += units;
        }
    }

    /// The job of the structure at this index.
    pub(crate) fn job_of(&self, s: u32) -> u32 {
        self.structures[s as usize].0
    }

    pub(crate) fn of_structure(&self, s: u32) -> u64 {
        self.structures.get(s as usize).map_or(0, |(_, below)| (*below).into())
    }

    pub(crate) fn of_job(&self, j: u32) -> u64 {
        self.jobs.get(j as usize).copied().unwrap_or_default().into()
    }

    /// Compares the counts with the blocks in lower tiers, their structures and capacities.
    pub(crate) fn check(
        &self,
        all: impl Iterator<Item = (BlockId, (u32, u32))>,
    ) -> Result<(), String> {
        let mut left = self.structures.clone();
        for (block, (s, units)) in all {
            match left.get_mut(s as usize) {
                Some((_, below)) if *below >= units => *below -= units,
                _ => {
                    return Err(format!(
                        "{block} is in a lower tier, but not counted for structure {s}"
                    ));
                }
            }
        }
        let mut sums = vec![0; self.jobs.len()];
        self.structures.iter().for_each(|(j, below)| sums[*j as usize] += below);
        match left.iter().any(|(_, below)| *below > 0) || sums != self.jobs {
            true => Err(format!("counted in lower tiers: {:?}, {:?}", self.structures, self.jobs)),
            false => Ok(()),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.structures.capacity() * size_of::<(u32, u32)>() + self.jobs.capacity() * 4
    }
}
