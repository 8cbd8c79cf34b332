//! `status` and `tree`.

use crate::cluster::Where;
use crate::{Outcome, Output, size};
use clap::Args;
use honeycomb_types::{Kind, PrefixId};
use honeycomb_wire::messages::{ClusterStatusReply, PrefixInfo, StructureInfo};
use serde_json::{Value, json};
use std::collections::HashMap;

/// Options of `status`.
#[derive(Args)]
pub struct StatusArgs {
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    output: Output,
}

/// Options of `tree`.
#[derive(Args)]
pub struct TreeArgs {
    /// The job's name
    #[arg(default_value = "cli")]
    job: String,
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb status`.
pub fn status(args: &StatusArgs) -> Outcome {
    let client = args.place.client()?;
    let status = client.status().map_err(|e| e.to_string())?;
    let jobs = client.list_jobs().map_err(|e| e.to_string())?;
    if args.output.json {
        let jobs: Vec<Value> = jobs
            .iter()
            .map(|j| {
                json!({
                    "job": j.job, "name": j.name, "prefixes": j.prefixes, "pinned": j.pinned,
                    "structures": j.structures, "blocks": j.blocks,
                    "bytes_used": j.bytes_used, "age_ms": j.age_ms,
                })
            })
            .collect();
        let mut value = status_json(&status);
        value["job_list"] = json!(jobs);
        say!("{value}");
        return Ok(());
    }
    print_status(&status);
    if !jobs.is_empty() {
        say!(
            "\n{:<24} {:>9} {:>10} {:>8} {:>12} {:>9}",
            "JOB",
            "PREFIXES",
            "STRUCTURES",
            "BLOCKS",
            "USED",
            "AGE"
        );
    }
    for j in jobs {
        say!(
            "{:<24} {:>9} {:>10} {:>8} {:>12} {:>8}s",
            j.name,
            j.prefixes,
            j.structures,
            j.blocks,
            size::show(j.bytes_used),
            j.age_ms / 1000
        );
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
        "blocks {} of {} free ({} kept back for moves and repairs, {} being given back)",
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
    if s.servers.is_empty() {
        return;
    }
    say!(
        "\n{:>6} {:<22} {:>5} {:>10} {:>13} {:>10} {:>10} {:>6} {:>10}",
        "SERVER",
        "ADDRESS",
        "CORES",
        "BLOCK",
        "FREE",
        "USED",
        "RESIDENT",
        "CONNS",
        "REQUESTS"
    );
    for server in &s.servers {
        say!(
            "{:>6} {:<22} {:>5} {:>10} {:>13} {:>10} {:>10} {:>6} {:>10}{}",
            server.server,
            server.address,
            server.shards,
            size::show(server.block_size),
            format!("{}/{}", server.free, server.blocks),
            size::show(server.bytes_used),
            size::show(server.bytes_resident),
            server.connections,
            server.requests,
            if server.alive { "" } else { "  LOST" }
        );
    }
}

fn status_json(s: &ClusterStatusReply) -> Value {
    let servers: Vec<Value> = s
        .servers
        .iter()
        .map(|v| {
            json!({
                "server": v.server, "address": v.address, "alive": v.alive, "shards": v.shards,
                "block_size": v.block_size, "blocks": v.blocks, "free": v.free,
                "bytes_used": v.bytes_used, "bytes_resident": v.bytes_resident,
                "connections": v.connections, "requests": v.requests, "forwarded": v.forwarded,
            })
        })
        .collect();
    json!({
        "uptime_ms": s.uptime_ms, "jobs": s.jobs, "prefixes": s.prefixes, "pinned": s.pinned,
        "structures": s.structures, "blocks": s.blocks, "free": s.free, "reserved": s.reserved,
        "quarantined": s.quarantined, "bytes_allocated": s.bytes_allocated,
        "bytes_used": s.bytes_used, "bytes_resident": s.bytes_resident,
        "bytes_metadata": s.bytes_metadata, "requests": s.requests, "servers": servers,
    })
}

/// `honeycomb tree`.
pub fn tree(args: &TreeArgs) -> Outcome {
    let client = args.place.client()?;
    let ticket = client.find_job(&args.job).map_err(|e| e.to_string())?;
    let prefixes = client.tree(ticket.job).map_err(|e| e.to_string())?;
    if args.output.json {
        let nodes: Vec<Value> = prefixes.iter().map(prefix_json).collect();
        say!("{}", json!({ "job": args.job, "prefixes": nodes }));
        return Ok(());
    }
    let mut children: HashMap<u64, Vec<&PrefixInfo>> = HashMap::new();
    for prefix in &prefixes {
        for parent in &prefix.parents {
            children.entry(*parent).or_default().push(prefix);
        }
    }
    let Some(root) = prefixes.first() else { return Ok(()) };
    say!("{}  {}", args.job, lease(root));
    print_structures(root, "");
    print_children(root.prefix, &children, "");
    Ok(())
}

fn prefix_json(p: &PrefixInfo) -> Value {
    let structures: Vec<Value> = p
        .structures
        .iter()
        .map(|s| {
            json!({
                "structure": s.structure, "name": s.name, "kind": kind(s), "blocks": s.blocks,
                "bytes_used": s.bytes_used, "sealed": s.sealed,
            })
        })
        .collect();
    json!({
        "prefix": p.prefix, "name": p.name, "parents": p.parents, "lease_ms": p.lease_ms,
        "remaining_ms": (!p.pinned).then_some(p.remaining_ms), "pinned": p.pinned,
        "state": state(p), "structures": structures, "readers_left": p.readers_left,
        "committed": p.committed,
    })
}

fn state(p: &PrefixInfo) -> &'static str {
    match p.state {
        0 => "live",
        1 => "expired",
        2 => "data lost",
        _ => "removed",
    }
}

fn kind(s: &StructureInfo) -> &'static str {
    Kind::from_code(s.kind).map_or("unknown", Kind::name)
}

fn lease(p: &PrefixInfo) -> String {
    let committed = if p.committed { ", committed" } else { "" };
    let readers = match p.readers_left {
        0 => String::new(),
        1 => ", freed by 1 reader".into(),
        left => format!(", freed by {left} readers"),
    };
    let lease = match (p.state, p.pinned) {
        (0, true) => "pinned".into(),
        (0, false) => format!(
            "lease {}, {} left",
            size::duration(p.lease_ms as i64),
            size::duration(p.remaining_ms)
        ),
        _ => state(p).into(),
    };
    format!("{lease}{readers}{committed}")
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
            if s.sealed { ", sealed" } else { "" }
        );
    }
}

/// A prefix with several parents is drawn in full under the first and named under the others: those
/// that were named, and those that it reads.
fn print_children(of: u64, children: &HashMap<u64, Vec<&PrefixInfo>>, indent: &str) {
    let Some(list) = children.get(&of) else { return };
    for (i, child) in list.iter().enumerate() {
        let last = i + 1 == list.len();
        let (branch, below) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        if child.parents.first() != Some(&of) {
            say!("{indent}{branch}{}  (also here)", child.name);
            continue;
        }
        say!("{indent}{branch}{}  {}", child.name, lease(child));
        let deeper = format!("{indent}{below}");
        print_structures(child, &deeper);
        print_children(PrefixId(child.prefix).0, children, &deeper);
    }
}
