//! `status` and `tree`.

use crate::cluster::{Intent, Work};
use crate::config::{Given, InJob, Reach};
use crate::dag::{ended, flush, kind, lease, remaining_ms, state, structure_json};
use crate::failure::CommandResult;
use crate::jobs::{jobs_json, print_jobs};
use crate::output::Output;
use crate::size;
use clap::Args;
use honeycomb_client::JobDag;
use honeycomb_types::{AlarmKind, PolicyKind, TierClass};
use honeycomb_wire::Durability;
use honeycomb_wire::messages::{
    ClusterStatusReply, MemoryShare, PrefixInfo, ServerInfo, TierAlarm, TierUse,
};
use serde_json::{Value, json};

/// Shows servers, memory, totals and jobs.
///
/// Allocated bytes are exact and count whole blocks. Used bytes are data and their index; resident bytes are
/// the anonymous memory of the servers' processes, as counted by the kernel. Servers report both every
/// quarter of a second.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb status
  honeycomb status --json
  honeycomb status --timeout 2")]
pub struct StatusArgs {
    #[command(flatten)]
    given: Given<Reach>,
    #[command(flatten)]
    output: Output,
}

/// Shows a job's address DAG: remaining leases, structures, blocks, bytes.
///
/// Prefixes and structures are sorted by name. A prefix with several parents is shown in full under the first
/// and only named under the others. A prefix that expired, was removed or lost data is shown while a prefix
/// below it is live or the controller remembers the reason. The command does not renew leases.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb put notes:kv color blue
  honeycomb tree
  honeycomb tree cli --json")]
pub struct TreeArgs {
    /// The job's name, instead of --job
    #[arg(value_name = "JOB", conflicts_with = "setting job")]
    name: Option<String>,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb status`.
pub fn status(args: &StatusArgs) -> CommandResult {
    let client = args.given.client()?;
    let status = client.status()?;
    let jobs = client.list_jobs()?;
    if args.output.json {
        let mut value = status_json(&status);
        value["job_list"] = json!(jobs_json(&jobs));
        say!("{value}");
        return Ok(());
    }
    print_status(&status);
    if !jobs.is_empty() {
        say!();
        print_jobs(&jobs);
    }
    Ok(())
}

fn print_status(s: &ClusterStatusReply) {
    say!("up {} s, {} requests to the controller", s.uptime_ms / 1000, s.requests);
    say!(
        "jobs {}   prefixes {} ({} pinned)   structures {}   metadata {}",
        s.jobs,
        s.prefixes,
        s.pinned,
        s.structures,
        size::show(s.bytes_metadata)
    );
    say!(
        "blocks {} of {} free ({} reserved for moves and repairs, {} in quarantine)",
        s.free,
        s.blocks,
        s.reserved,
        s.quarantined
    );
    say!(
        "memory {} allocated, {} used, {} resident",
        size::show(s.bytes_allocated),
        size::show(s.bytes_used),
        size::show(s.bytes_resident)
    );
    for tier in &s.tiers {
        say!("{:<6} {} of {} blocks used", class(tier), tier.used, tier.blocks);
    }
    if s.alarms > 0 {
        say!("ALARMS {}: lower tiers of servers have problems", s.alarms);
    }
    print_flushes(s);
    print_policy(s);
    if s.servers.is_empty() {
        return;
    }
    say!(
        "\n{:>6} {:<22} {:>5} {:>5} {:>10} {:>13} {:>10} {:>10} {:>6} {:>10}",
        "SERVER",
        "ADDRESS",
        "CORES",
        "BUSY",
        "BLOCK",
        "FREE",
        "USED",
        "RESIDENT",
        "CONNS",
        "REQUESTS"
    );
    for server in &s.servers {
        say!(
            "{:>6} {:<22} {:>5} {:>5} {:>10} {:>13} {:>10} {:>10} {:>6} {:>10}{}",
            server.server,
            server.address,
            server.shards,
            format!("{}%", (server.cpu_permille + 5) / 10),
            size::show(server.block_size),
            format!("{}/{}", server.free, server.blocks),
            size::show(server.bytes_used),
            size::show(server.bytes_resident),
            server.connections,
            server.requests,
            standing(server)
        );
        for alarm in &server.alarms {
            let TierAlarm { why, age_ms, tried_ms, .. } = alarm;
            let (since, tried) = (age_ms / 1000, tried_ms / 1000);
            let kind = alarm_kind(alarm).to_uppercase();
            let class = alarm_class(server, alarm);
            say!("{:>6} {class} {kind} since {since} s, last {tried} s ago: {why}", "");
        }
        if server.drain != 0 {
            say!("{:>6} {}: {}", "", drain_state(server), server.drain_waits);
        }
    }
}

/// The remark on a server that sends no reports.
fn standing(server: &ServerInfo) -> String {
    match server.silent_ms {
        0 if server.alive => String::new(),
        0 => "  LOST".to_owned(),
        silent => format!("  SUSPECTED, no report for {}", size::duration(silent as i64)),
    }
}

/// The number of servers that are suspected to be lost.
fn suspected(s: &ClusterStatusReply) -> usize {
    s.servers.iter().filter(|server| server.silent_ms > 0).count()
}

/// The drain state of a server, in one word.
pub fn drain_state(server: &ServerInfo) -> &'static str {
    match server.drain {
        0 => "serving",
        1 => "draining",
        2 => "released",
        _ => "recalled",
    }
}

/// Prints the policy, the shares of memory, and the advice to add or remove servers.
fn print_policy(s: &ClusterStatusReply) {
    say!("policy {}", s.policy);
    for share in &s.shares {
        let MemoryShare { name, weight, blocks, entitled, .. } = share;
        let kind = if share.tenant { "tenant" } else { "job" };
        let credits = match s.policy == PolicyKind::Karma.name() {
            true => format!(", {} credits", share.credits.cast_signed()),
            false => String::new(),
        };
        say!(
            "  {kind} {name}: {blocks} blocks in memory, share {entitled} (weight \
                {weight}{credits})"
        );
    }
    let since = format!("since {} s: {}", s.advice_ms / 1000, s.advice_why);
    match advice(s) {
        "add" if s.advice_servers == 1 => say!("advice: add 1 server, {since}"),
        "add" => say!("advice: add {} servers, {since}", s.advice_servers),
        "remove" => say!("advice: remove {}, {since}", s.advice_address),
        _ => {}
    }
}

/// The advice, in one word.
fn advice(s: &ClusterStatusReply) -> &'static str {
    match s.advice {
        1 => "add",
        2 => "remove",
        _ => "none",
    }
}

/// Prints the state of flushes, if there were any.
fn print_flushes(s: &ClusterStatusReply) {
    if s.flushing + s.flushed + s.flush_lost == 0 {
        return;
    }
    let lost = match s.flush_lost {
        0 => String::new(),
        lost => format!(", {lost} LOST with their server"),
    };
    let (flushing, failing) = (s.flushing, s.flush_failing);
    say!("flushes {flushing} running, {failing} failing, {} done{lost}", s.flushed);
    if !s.flush_error.is_empty() {
        say!("  {}", s.flush_error);
    }
}

fn tiers_json(tiers: &[TierUse]) -> Vec<Value> {
    let tier = |t: &TierUse| {
        json!({
            "class": class(t), "blocks": t.blocks, "used": t.used,
            "bytes_written": t.bytes_written, "bytes_read": t.bytes_read,
        })
    };
    tiers.iter().map(tier).collect()
}

/// The kind of an alarm, in one word.
fn alarm_kind(alarm: &TierAlarm) -> &'static str {
    AlarmKind::from_code(alarm.kind).map_or("unknown", AlarmKind::name)
}

/// The class of an alarm's tier.
fn alarm_class(server: &ServerInfo, alarm: &TierAlarm) -> &'static str {
    let tier = usize::from(alarm.tier).checked_sub(1).and_then(|n| server.tiers.get(n));
    tier.map_or("tier", class)
}

fn alarms_json(server: &ServerInfo) -> Vec<Value> {
    let alarm = |a: &TierAlarm| {
        json!({
            "tier": a.tier, "class": alarm_class(server, a), "kind": alarm_kind(a), "why": a.why,
            "age_ms": a.age_ms, "tried_ms": a.tried_ms,
        })
    };
    server.alarms.iter().map(alarm).collect()
}

fn class(tier: &TierUse) -> &'static str {
    TierClass::from_code(tier.class).map_or("unknown", TierClass::name)
}

fn status_json(s: &ClusterStatusReply) -> Value {
    let shares: Vec<Value> = s
        .shares
        .iter()
        .map(|share| {
            json!({
                "name": share.name, "tenant": share.tenant, "weight": share.weight,
                "blocks": share.blocks, "entitled": share.entitled,
                "credits": share.credits.cast_signed(),
            })
        })
        .collect();
    let servers: Vec<Value> = s
        .servers
        .iter()
        .map(|v| {
            json!({
                "server": v.server, "address": v.address, "alive": v.alive,
                "suspected": v.silent_ms > 0, "silent_ms": v.silent_ms, "shards": v.shards,
                "block_size": v.block_size, "blocks": v.blocks, "free": v.free,
                "bytes_used": v.bytes_used, "bytes_resident": v.bytes_resident,
                "connections": v.connections, "requests": v.requests, "forwarded": v.forwarded,
                "bytes_owed": v.bytes_owed, "cpu_permille": v.cpu_permille,
                "tiers": tiers_json(&v.tiers), "alarms": alarms_json(v), "state": drain_state(v), "waits": v.drain_waits,
            })
        })
        .collect();
    json!({
        "uptime_ms": s.uptime_ms, "jobs": s.jobs, "prefixes": s.prefixes, "pinned": s.pinned,
        "structures": s.structures, "blocks": s.blocks, "free": s.free, "reserved": s.reserved,
        "quarantined": s.quarantined, "bytes_allocated": s.bytes_allocated,
        "bytes_used": s.bytes_used, "bytes_resident": s.bytes_resident,
        "bytes_metadata": s.bytes_metadata, "requests": s.requests,
        "requests_leases": s.requests_leases, "requests_blocks": s.requests_blocks,
        "requests_reports": s.requests_reports, "flushing": s.flushing,
        "flush_failing": s.flush_failing, "flushed": s.flushed, "flush_lost": s.flush_lost,
        "flush_error": s.flush_error, "tiers": tiers_json(&s.tiers), "alarms": s.alarms,
        "servers": servers, "suspected": suspected(s),
        "policy": s.policy, "shares": shares,
        "advice": {
            "what": advice(s), "servers": s.advice_servers, "address": s.advice_address,
            "why": s.advice_why, "since_ms": s.advice_ms,
        },
    })
}

/// `honeycomb tree`.
pub fn tree(args: &TreeArgs) -> CommandResult {
    let settings = args.given.settings()?;
    let name = args.name.as_deref().unwrap_or_else(|| settings.job());
    let work = Work::open_named(&settings, name, Intent::Look)?;
    let dag = work.on().dag()?;
    if args.output.json {
        let nodes: Vec<Value> = dag.nodes().iter().map(prefix_json).collect();
        say!("{}", json!({ "job": work.name, "prefixes": nodes }));
        return Ok(());
    }
    let Some(root) = dag.nodes().first() else { return Ok(()) };
    say!("{}  {}", work.name, lease(root));
    print_structures(root, "");
    print_children(&dag, 0, "");
    Ok(())
}

/// The durability of a prefix's changes when they are acknowledged.
pub(crate) fn acknowledge(p: &PrefixInfo) -> &'static str {
    if p.acknowledge == Durability::Flushed as u8 { "flushed" } else { "memory" }
}

fn prefix_json(p: &PrefixInfo) -> Value {
    let structures: Vec<Value> = p.structures.iter().map(structure_json).collect();
    json!({
        "prefix": p.prefix, "name": p.name, "parents": p.parents, "lease_ms": p.lease_ms,
        "remaining_ms": remaining_ms(p), "pinned": p.pinned, "state": state(p),
        "structures": structures, "readers_left": p.readers_left, "committed": p.committed,
        "high_mark": p.high_mark, "low_mark": p.low_mark, "flush_to": p.flush_to, "persist": p.persist,
        "acknowledge": acknowledge(p),
        "flush": flush(p), "flush_message": p.flush_message,
    })
}

fn print_structures(p: &PrefixInfo, indent: &str) {
    for s in &p.structures {
        let name = if s.name.is_empty() { "(unnamed)" } else { &s.name };
        say!(
            "{indent}  : {name}  {}, {} {}, {}{}",
            kind(s),
            s.blocks,
            if s.blocks == 1 { "block" } else { "blocks" },
            size::show(s.bytes_used),
            ended(s).map_or(String::new(), |word| format!(", {word}"))
        );
    }
}

/// Prints the children of a prefix. A prefix with several parents (those given at its creation, and the
/// inputs it reads) is printed in full under the first and only named under the others.
fn print_children(dag: &JobDag, of: usize, indent: &str) {
    let list = dag.children(of);
    for (i, node) in list.iter().enumerate() {
        let child = dag.node(*node);
        let last = i + 1 == list.len();
        let (branch, below) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        if dag.first_parent(*node) != Some(of) {
            say!("{indent}{branch}{}  (also here)", child.name);
            continue;
        }
        say!("{indent}{branch}{}  {}", child.name, lease(child));
        let deeper = format!("{indent}{below}");
        print_structures(child, &deeper);
        print_children(dag, *node, &deeper);
    }
}
