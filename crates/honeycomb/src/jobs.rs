//! `jobs`: lists registered jobs.

use crate::config::{Given, Reach};
use crate::failure::CommandResult;
use crate::output::Output;
use crate::size;
use clap::Args;
use honeycomb_client::Client;
use honeycomb_types::{JobId, TierClass, tenant_of};
use honeycomb_wire::messages::{JobInfo, JobWeightsReply};
use serde_json::{Value, json};

/// Lists the jobs and their use of memory.
///
/// Jobs are sorted by registration. Columns: live prefixes, structures, blocks, the quota in blocks, bytes of
/// data (as the servers last reported), the time since the registration, and the size and throughput that are
/// expected from the job's hints. Requires the cluster's token; a job's token shows that job alone. With
/// --json, one object contains `jobs`, with the hints as given.
///
/// For one job with hints, it also shows which servers get its next blocks, and why. The weight of a server
/// grows with its free blocks and falls with the load of its cores; it is 0 if the job needs fewer servers.
/// If servers have disks, it shows in which tiers new blocks are placed: in memory while there is room,
/// unless the job is not latency-sensitive. Such a job uses the slowest disks that provide its hinted
/// throughput, or several disks together, and memory only for the rest.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb jobs
  honeycomb jobs --json
  honeycomb jobs acme/sort          # one job, and the placement of its blocks")]
pub struct JobsArgs {
    /// Show only this job
    name: Option<String>,
    #[command(flatten)]
    given: Given<Reach>,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb jobs`.
pub fn jobs(args: &JobsArgs) -> CommandResult {
    let client = args.given.client()?;
    if let Some(name) = &args.name {
        return job(&client, name, &args.output);
    }
    let jobs = client.list_jobs()?;
    if args.output.json {
        say!("{}", json!({ "jobs": jobs_json(&jobs) }));
    } else {
        print_jobs(&jobs);
    }
    Ok(())
}

/// Prints one job, and the weights of servers and tiers for it.
fn job(client: &Client, name: &str, output: &Output) -> CommandResult {
    let jobs = client.list_jobs()?;
    let Some(info) = jobs.iter().find(|job| job.name == name) else {
        client.find_job(name)?;
        return Err(format!("the job '{name}' was registered just now; retry").into());
    };
    let JobWeightsReply { weights, tiers, .. } = client.weights(JobId(info.job))?;
    if output.json {
        let all = weights.iter().map(|w| {
            json!({
                "server": w.server, "weight_permille": w.weight_permille, "free": w.free,
                "cpu_permille": w.cpu_permille,
            })
        });
        let mut job = jobs_json(std::slice::from_ref(info)).remove(0);
        job["weights"] = all.collect();
        let all = tiers.iter().map(|t| {
            json!({
                "tier": tier_name(t.tier), "weight_permille": t.weight_permille, "free": t.free,
                "bytes_per_s": t.bytes_per_s,
            })
        });
        job["tier_weights"] = all.collect();
        say!("{job}");
        return Ok(());
    }
    print_jobs(std::slice::from_ref(info));
    if weights.is_empty() {
        say!("no hints: its blocks are placed on the server with the most free blocks");
    }
    for w in &weights {
        let percent = |permille: u16| f64::from(permille) / 10.0;
        say!(
            "server {:<6} {:>5.1} % of its next blocks: {} blocks available, cores {:.1} % busy",
            w.server,
            percent(w.weight_permille),
            w.free,
            percent(w.cpu_permille)
        );
    }
    // With memory alone there is nothing to choose.
    for t in tiers.iter().filter(|_| tiers.len() > 1) {
        let (name, percent) = (tier_name(t.tier), f64::from(t.weight_permille) / 10.0);
        let rate = match t.tier {
            0 => String::new(),
            _ => format!(", {}/s of it available", size::show(t.bytes_per_s)),
        };
        say!(
            "tier   {name:<6} {percent:>5.1} % of its next blocks: {} blocks available{rate}",
            t.free
        );
    }
    Ok(())
}

/// The name of a tier: memory, or its class.
fn tier_name(code: u8) -> &'static str {
    TierClass::from_code(code).map_or("memory", TierClass::name)
}

/// Prints the jobs as a table; nothing when there are none.
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

/// A quota for people.
fn quota(blocks: u64) -> String {
    if blocks == 0 { "-".into() } else { blocks.to_string() }
}

/// The expected use of a job, for people.
fn expected(j: &JobInfo) -> String {
    match (j.expected_bytes, j.expected_bytes_per_s) {
        (0, 0) => "-".into(),
        (bytes, rate) => format!("{}, {}/s", size::show(bytes), size::show(rate)),
    }
}

/// The JSON form of jobs.
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
