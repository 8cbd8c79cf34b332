//! A realistic load: demand that varies by orders of magnitude within minutes, and clients that run it
//! against a cluster.
//!
//! `demand` is the amount of intermediate data of each tenant over time. `fitted` generates a demand from
//! published facts about Snowflake's tenants, and `snowset` reads the public trace itself. `drive` runs a
//! demand with files, queues or stores that are written, read, emptied and freed, and checks all read data.
//! `jobs` generates MapReduce-like jobs whose data follows a demand, and `carry` runs them on any storage for
//! their files. `sort` sorts more data than fits in memory. `resident` reads the resident memory of a process
//! from the kernel.
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
pub use draw::{Draw, Ranks};
pub use drive::{Counters, Ending, LoadError, Plan, Tenant, carry_out};
pub use fitted::{Fit, UTILISATION_MAX, UTILISATION_MIN, fitted, fitted_hours};
pub use hold::{Held, Holding, Sizes};
pub use jobs::{
    JobPlan, JobProfile, Read, Shape, StagePlan, TRANSFER_SHARE, TaskPlan, TransferCost, mapreduce,
};
pub use resident::{resident, resident_walked};
pub use snowset::{SnowsetError, snowset};
pub use sort::{RECORD, Sort, SortError, Sorted, sort};
