//! A load as production has it: demand that grows and shrinks by orders of magnitude within minutes,
//! and clients that carry it out against a cluster.
//!
//! `demand` says how much intermediate data each tenant has at each moment; `fitted` makes one from
//! the facts that were published of Snowflake's tenants, `snowset` reads the public trace itself.
//! `drive` turns it into files, queues or stores that are written, read, emptied and let go, and
//! checks what it reads. `jobs` makes MapReduce-like jobs whose data follows it, and `carry` carries
//! them out on whatever keeps their files. `sort` sorts what is larger than memory. `resident` asks the kernel what a process holds.
#![forbid(unsafe_code)]

mod carry;
mod demand;
mod draw;
mod drive;
mod fitted;
mod hold;
mod jobs;
mod resident;
mod snowset;
mod sort;

pub use carry::{Carried, CarryError, FileId, Keep, Pace, carry};
pub use demand::{Demand, Profile, Task};
pub use draw::Draw;
pub use drive::{Counters, Ending, LoadError, Plan, Tenant, carry_out};
pub use fitted::{Fit, UTILISATION_MAX, UTILISATION_MIN, fitted, fitted_hours};
pub use hold::{Held, Holding, Sizes};
pub use jobs::{
    JobPlan, JobProfile, Read, Shape, StagePlan, TRANSFER_SHARE, TaskPlan, TransferCost, mapreduce,
};
pub use resident::{resident, resident_walked};
pub use snowset::{SnowsetError, snowset};
pub use sort::{RECORD, Sort, SortError, Sorted, sort};
