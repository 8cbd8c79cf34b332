//! `jobs`: what is registered.

use crate::config::{Given, Reach};
use crate::failure::Outcome;
use crate::output::Output;
use crate::size;
use clap::Args;
use honeycomb_client::Client;
use honeycomb_types::{JobId, TierClass, tenant_of};
use honeycomb_wire::messages::{JobInfo, JobWeightsReply};
use serde_json::{Value, json};

/// Lists the jobs, with what each of them holds.
///
/// In the order of their registration: live prefixes, structures, blocks, the most blocks that it may
/// hold (its quota), bytes of data in them (as the servers last reported), the time since it was
/// registered, and what its hints let expect it to hold and to move. Needs the cluster's token; a job's
/// own shows that job alone. With --json one object holds `jobs`, with the hints as they were given.
///
/// Of one job, with hints: which servers its next blocks go to, and why. A server gets weight for the blocks
/// that it has free, less when its cores are busy, and none when the job needs fewer servers than there are.
/// And where servers have disks, in which tiers its blocks begin: in memory while that has room, unless
/// latency does not matter to it; then on the slowest disks that serve what it said that it moves, in part on
/// each of them when none does alone, and in memory only what they do not serve.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb jobs
  honeycomb jobs --json
  honeycomb jobs acme/sort          # one of them, and where its blocks go")]
pub struct JobsArgs {
    /// One job
    name: Option<String>,
    #[command(flatten)]
    given: Given<Reach>,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb jobs`.
pub fn jobs(args: &JobsArgs) -> Outcome {
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

/// One job, and the weights of servers for it.
fn job(client: &Client, name: &str, output: &Output) -> Outcome {
    let jobs = client.list_jobs()?;
    let Some(info) = jobs.iter().find(|job| job.name == name) else {
        client.find_job(name)?;
        return Err(format!("the job '{name}' was registered just now; ask again").into());
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
        say!("no hints: its blocks go to the emptiest server");
    }
    for w in &weights {
        let percent = |permille: u16| f64::from(permille) / 10.0;
        say!(
            "server {:<6} {:>5.1} % of its next blocks: {} blocks to give, cores {:.1} % busy",
            w.server,
            percent(w.weight_permille),
            w.free,
            percent(w.cpu_permille)
        );
    }
    // Memory alone is no choice.
    for t in tiers.iter().filter(|_| tiers.len() > 1) {
        let (name, percent) = (tier_name(t.tier), f64::from(t.weight_permille) / 10.0);
        let rate = match t.tier {
            0 => String::new(),
            _ => format!(", {}/s of it left", size::show(t.bytes_per_s)),
        };
        say!(
            "tier   {name:<6} {percent:>5.1} % of its next blocks: {} blocks to give{rate}",
            t.free
        );
    }
    Ok(())
}

/// Memory, or what a tier is made of.
fn tier_name(code: u8) -> &'static str {
    TierClass::from_code(code).map_or("memory", TierClass::name)
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
