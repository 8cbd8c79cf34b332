//! `ls` and `du`: the contents of a job and their memory.

use crate::cluster::{Intent, Work};
use crate::config::{Given, InJob};
use crate::dag;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::{place, size};
use clap::Args;
use honeycomb_client::JobDag;
use honeycomb_wire::Status;
use honeycomb_wire::messages::{PrefixInfo, StructureInfo};
use serde_json::{Value, json};
use std::collections::HashSet;

/// Lists the prefixes and structures at an address.
///
/// Each line is an address that other commands accept: prefixes end with `/`, structures do not. An ended
/// prefix is listed while the controller remembers it; -l shows its state. Listing does not renew leases.
/// With --json, one object contains `entries`.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb put notes:kv color blue
  honeycomb ls
  honeycomb ls -l notes
  honeycomb ls -lR --json")]
pub struct LsArgs {
    /// A prefix, whose contents are listed, or a structure (default: the job's root)
    #[arg(value_parser = place::any, default_value = "/", hide_default_value = true)]
    address: String,
    /// Long format: kind, lease, blocks, bytes used, bytes of the blocks
    #[arg(long, short)]
    long: bool,
    /// List all descendants. A prefix with several parents is listed under the first
    #[arg(long, short = 'R')]
    recursive: bool,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// Shows the memory of a prefix and of each prefix below it.
///
/// For every prefix: bytes of data and their index (used), blocks, and bytes of these blocks (allocated),
/// summed over all structures in it and below it. The largest prefix comes first, the named prefix last. A
/// prefix with several parents counts under each of them, but once in the last line. Servers report used
/// bytes every quarter of a second. The command does not renew leases.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb put notes:kv color blue
  honeycomb du
  honeycomb du notes --bytes
  honeycomb du --depth 3 --json")]
pub struct DuArgs {
    /// The prefix (default: the job's root)
    #[arg(value_parser = place::prefix, default_value = "/", hide_default_value = true)]
    address: String,
    /// Print exact numbers of bytes instead of KiB, MiB, ...
    #[arg(long)]
    bytes: bool,
    /// Print a line for each prefix down to this depth; 0 prints only the sum
    #[arg(long, default_value_t = 1, value_name = "N")]
    depth: u32,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// A job's DAG, and the block size of the cluster.
struct JobListing {
    dag: JobDag,
    block_size: u64,
}

impl JobListing {
    fn of(given: &Given<InJob>) -> CommandResult<JobListing> {
        let work = Work::open(&given.settings()?, Intent::Look)?;
        let dag = work.on().dag()?;
        // All servers have the same block size. Without a server there are no blocks.
        let servers = work.cluster.status()?.servers;
        Ok(JobListing { dag, block_size: servers.first().map_or(0, |server| server.block_size) })
    }
}

/// One line of `ls`.
enum ListEntry<'a> {
    Prefix(String, &'a PrefixInfo),
    Structure(String, &'a PrefixInfo, &'a StructureInfo),
}

/// `honeycomb ls`.
pub fn ls(args: &LsArgs) -> CommandResult {
    let view = JobListing::of(&args.given)?;
    let mut entries = Vec::new();
    if let Some((path, name)) = args.address.split_once(':') {
        let node = view.dag.node(view.dag.find(path)?);
        let found = node.structures.iter().find(|s| s.name == name);
        let structure = found.ok_or_else(|| not_there(&args.address, node))?;
        entries.push(ListEntry::Structure(args.address.clone(), node, structure));
    } else {
        let mut seen = HashSet::new();
        let path = args.address.trim_matches('/');
        list(&view.dag, view.dag.find(path)?, path, args.recursive, &mut seen, &mut entries);
    }
    if args.output.json {
        let entries: Vec<Value> = entries.iter().map(|e| e.to_json(view.block_size)).collect();
        say!("{}", json!({ "address": args.address, "entries": entries }));
        return Ok(());
    }
    if args.long && !entries.is_empty() {
        say!(
            "{:<7} {:>10} {:>7} {:>10} {:>10}  ADDRESS",
            "KIND",
            "LEASE",
            "BLOCKS",
            "USED",
            "ALLOCATED"
        );
    }
    for entry in &entries {
        say!("{}", if args.long { entry.long(view.block_size) } else { entry.address() });
    }
    Ok(())
}

fn not_there(address: &str, node: &PrefixInfo) -> Failure {
    let (status, why) = match node.state {
        0 => (Status::NotFound, "no such structure"),
        1 => (Status::LeaseExpired, "the lease of its prefix has expired"),
        2 => (Status::DataLost, "its prefix lost data with a server"),
        _ => (Status::Removed, "its prefix was removed"),
    };
    Failure::new(status, format!("{address}: {why}"))
}

/// Lists the structures of a prefix, then its children; with `recursive`, each child with its contents.
fn list<'a>(
    dag: &'a JobDag,
    node: usize,
    path: &str,
    recursive: bool,
    seen: &mut HashSet<usize>,
    entries: &mut Vec<ListEntry<'a>>,
) {
    let info = dag.node(node);
    for s in &info.structures {
        let address = match (path, s.name.as_str()) {
            ("", "") => "/".to_owned(),
            (path, "") => path.to_owned(),
            (path, name) => format!("{path}:{name}"),
        };
        entries.push(ListEntry::Structure(address, info, s));
    }
    for child in dag.children(node) {
        let name = &dag.node(*child).name;
        let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
        entries.push(ListEntry::Prefix(below.clone(), dag.node(*child)));
        if recursive && seen.insert(*child) {
            list(dag, *child, &below, recursive, seen, entries);
        }
    }
}

impl ListEntry<'_> {
    fn address(&self) -> String {
        match self {
            ListEntry::Prefix(path, _) => format!("{path}/"),
            ListEntry::Structure(address, ..) => address.clone(),
        }
    }

    fn long(&self, block_size: u64) -> String {
        let (kind, p) = match self {
            ListEntry::Prefix(_, p) => ("prefix", *p),
            ListEntry::Structure(_, p, s) => (dag::kind(s), *p),
        };
        let lease = match dag::remaining_ms(p) {
            Some(left) => size::duration(left),
            None if p.state == 0 => "pinned".into(),
            None => dag::state(p).into(),
        };
        let (blocks, used) = self.content();
        let ended = match self {
            ListEntry::Structure(_, _, s) => dag::ended(s),
            ListEntry::Prefix(..) => None,
        };
        format!(
            "{kind:<7} {lease:>10} {blocks:>7} {:>10} {:>10}  {}{}",
            size::show(used),
            size::show(blocks * block_size),
            self.address(),
            ended.map_or(String::new(), |word| format!("  ({word})"))
        )
    }

    /// Blocks and bytes of a structure, or of the structures directly in a prefix.
    fn content(&self) -> (u64, u64) {
        match self {
            ListEntry::Prefix(_, p) => content(p),
            ListEntry::Structure(_, _, s) => (s.blocks as u64, s.bytes_used),
        }
    }

    fn to_json(&self, block_size: u64) -> Value {
        let (blocks, bytes_used) = self.content();
        let mut value = json!({
            "address": self.address(), "blocks": blocks, "bytes_used": bytes_used,
            "bytes_allocated": blocks * block_size,
        });
        let prefix = match self {
            ListEntry::Prefix(_, p) => {
                value["kind"] = "prefix".into();
                p
            }
            ListEntry::Structure(_, p, s) => {
                value["kind"] = dag::kind(s).into();
                value["sealed"] = s.sealed.into();
                p
            }
        };
        value["state"] = dag::state(prefix).into();
        value["pinned"] = prefix.pinned.into();
        value["lease_ms"] = prefix.lease_ms.into();
        value["remaining_ms"] = dag::remaining_ms(prefix).into();
        value
    }
}

/// Blocks and bytes of the structures directly in a prefix.
fn content(p: &PrefixInfo) -> (u64, u64) {
    p.structures
        .iter()
        .fold((0, 0), |(blocks, bytes), s| (blocks + s.blocks as u64, bytes + s.bytes_used))
}

/// One line of `du`.
struct Sum {
    path: String,
    prefixes: usize,
    structures: usize,
    blocks: u64,
    bytes_used: u64,
}

impl Sum {
    fn of(dag: &JobDag, node: usize, path: &str) -> Sum {
        let below = dag.below(node);
        let mut sum = Sum {
            path: format!("{path}/"),
            prefixes: below.len(),
            structures: 0,
            blocks: 0,
            bytes_used: 0,
        };
        for node in below {
            let info = dag.node(node);
            let (blocks, bytes) = content(info);
            sum.structures += info.structures.len();
            sum.blocks += blocks;
            sum.bytes_used += bytes;
        }
        sum
    }

    fn to_json(&self, block_size: u64) -> Value {
        json!({
            "address": self.path, "prefixes": self.prefixes, "structures": self.structures,
            "blocks": self.blocks, "bytes_used": self.bytes_used,
            "bytes_allocated": self.blocks * block_size,
        })
    }
}

/// `honeycomb du`.
pub fn du(args: &DuArgs) -> CommandResult {
    let view = JobListing::of(&args.given)?;
    let path = args.address.trim_matches('/');
    let top = view.dag.find(path)?;
    let mut sums = Vec::new();
    sum_below(&view.dag, top, path, args.depth, &mut HashSet::new(), &mut sums);
    sums.sort_by(|a, b| (b.blocks, b.bytes_used, &a.path).cmp(&(a.blocks, a.bytes_used, &b.path)));
    let total = Sum::of(&view.dag, top, path);
    if args.output.json {
        let sums: Vec<Value> = sums.iter().map(|s| s.to_json(view.block_size)).collect();
        let mut report = total.to_json(view.block_size);
        report["below"] = sums.into();
        say!("{report}");
        return Ok(());
    }
    let write = |n: u64| if args.bytes { n.to_string() } else { size::show(n) };
    say!("{:>14} {:>8} {:>14}  PREFIX", "USED", "BLOCKS", "ALLOCATED");
    for sum in sums.iter().chain([&total]) {
        say!(
            "{:>14} {:>8} {:>14}  {}",
            write(sum.bytes_used),
            sum.blocks,
            write(sum.blocks * view.block_size),
            sum.path
        );
    }
    Ok(())
}

fn sum_below(
    dag: &JobDag,
    node: usize,
    path: &str,
    depth: u32,
    seen: &mut HashSet<usize>,
    sums: &mut Vec<Sum>,
) {
    if depth == 0 {
        return;
    }
    for child in dag.children(node) {
        if seen.insert(*child) {
            let name = &dag.node(*child).name;
            let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            sums.push(Sum::of(dag, *child, &below));
            sum_below(dag, *child, &below, depth - 1, seen, sums);
        }
    }
}
