//! `jobs`: what is registered.

use crate::config::{Given, Reach};
use crate::failure::Outcome;
use crate::output::Output;
use crate::size;
use clap::Args;
use honeycomb_types::tenant_of;
use honeycomb_wire::messages::JobInfo;
use serde_json::{Value, json};

/// Lists the jobs, with what each of them holds.
///
/// In the order of their registration: live prefixes, structures, blocks, the most blocks that it may
/// hold (its quota), bytes of data in them (as the servers last reported), the time since it was
/// registered, and what its hints let expect it to hold and to move. Needs the cluster's token; a job's
/// own shows that job alone. With --json one object holds `jobs`, with the hints as they were given.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb jobs
  honeycomb jobs --json")]
pub struct JobsArgs {
    #[command(flatten)]
    given: Given<Reach>,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb jobs`.
pub fn jobs(args: &JobsArgs) -> Outcome {
    let jobs = args.given.client()?.list_jobs()?;
    if args.output.json {
        say!("{}", json!({ "jobs": jobs_json(&jobs) }));
    } else {
        print_jobs(&jobs);
    }
    Ok(())
}

/// The jobs as a table; nothing when there are none.
pub fn print_jobs(jobs: &[JobInfo]) {
    if jobs.is_empty() {
        return;
    }
    say!(
        "{:<24} {:>9} {:>10} {:>8} {:>8} {:>12} {:>11}  {}",
        "JOB",
        "PREFIXES",
        "STRUCTURES",
        "BLOCKS",
        "QUOTA",
        "USED",
        "AGE",
        "EXPECTED"
    );
    for j in jobs {
        say!(
            "{:<24} {:>9} {:>10} {:>8} {:>8} {:>12} {:>11}  {}",
            j.name,
            j.prefixes,
            j.structures,
            j.blocks,
            quota(j.quota_blocks),
            size::show(j.bytes_used),
            size::duration(j.age_ms as i64),
            expected(j)
        );
    }
}

/// A quota as people read it.
fn quota(blocks: u64) -> String {
    if blocks == 0 { "-".into() } else { blocks.to_string() }
}

/// What a job is expected to use, as people read it.
fn expected(j: &JobInfo) -> String {
    match (j.expected_bytes, j.expected_bytes_per_s) {
        (0, 0) => "-".into(),
        (bytes, rate) => format!("{}, {}/s", size::show(bytes), size::show(rate)),
    }
}

/// The jobs as JSON has them.
pub fn jobs_json(jobs: &[JobInfo]) -> Vec<Value> {
    jobs.iter()
        .map(|j| {
            json!({
                "job": j.job, "name": j.name, "prefixes": j.prefixes, "pinned": j.pinned, "structures": j.structures,
                "blocks": j.blocks, "bytes_used": j.bytes_used, "age_ms": j.age_ms,
                "tenant": tenant_of(&j.name), "quota_blocks": j.quota_blocks,
                "latency_sensitive": j.hints.flags & 1 == 0, "tasks": j.hints.tasks,
                "capacity": j.hints.bytes, "peak_throughput": j.hints.bytes_per_s,
                "expected_bytes": j.expected_bytes, "expected_bytes_per_s": j.expected_bytes_per_s,
            })
        })
        .collect()
}
