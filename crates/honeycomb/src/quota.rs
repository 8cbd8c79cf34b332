//! `quota`: the most blocks that a tenant, a job or a prefix may hold.

use crate::cluster::{Intent, Place, Work};
use crate::config::{Given, InJob};
use crate::failure::Outcome;
use crate::output::Output;
use crate::place;
use clap::Args;
use honeycomb_client::QuotaOf;
use serde_json::json;

/// Tells how many blocks may be held and are, and changes how many may.
///
/// Of a prefix with all below it, of the job when no prefix is named, or of all jobs of a tenant. Jobs
/// are a tenant's when they are named TENANT/NAME. Only the cluster's token changes what a job or a
/// tenant may hold. A quota that is set below what is held takes nothing away, and gives nothing until
/// enough was freed; whoever is refused is told QuotaExceeded, with whose quota it was.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb quota --job acme/sort                 # what it may hold, and holds
  honeycomb quota --job acme/sort --blocks 64
  honeycomb quota --job acme/sort counts --blocks 8
  honeycomb quota --tenant acme --blocks 200
  honeycomb quota --tenant acme --blocks 0        # no quota")]
pub struct QuotaArgs {
    /// The prefix; without one, the job itself
    #[arg(value_parser = place::prefix, conflicts_with = "tenant")]
    prefix: Option<String>,
    /// All jobs of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// The most blocks from now on; 0 for no quota
    #[arg(long, value_name = "N")]
    blocks: Option<u64>,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb quota`.
pub fn quota(args: &QuotaArgs) -> Outcome {
    let settings = args.given.settings()?;
    let (cluster, of, what) = match (&args.tenant, &args.prefix) {
        (Some(tenant), _) => {
            let cluster = Place::find(&settings)?.client()?;
            (cluster, QuotaOf::Tenant(tenant.clone()), format!("tenant {tenant}"))
        }
        (None, prefix) => {
            let Work { cluster, job, name, .. } = Work::open(&settings, Intent::Look)?;
            match prefix {
                Some(path) => {
                    let what = format!("{name}, {path} with all below it");
                    (cluster, QuotaOf::Prefix(job, path.clone()), what)
                }
                None => (cluster, QuotaOf::Job(job), format!("job {name}")),
            }
        }
    };
    let quota = match args.blocks {
        Some(blocks) => cluster.set_quota(&of, blocks)?,
        None => cluster.quota(&of)?,
    };
    let told = json!({ "max_blocks": quota.max_blocks, "held_blocks": quota.held_blocks });
    args.output.tell(&told, || match quota.max_blocks {
        0 if of_prefix(&of) => format!("{what}: no quota"),
        0 => format!("{what}: no quota; {} blocks held", quota.held_blocks),
        most => format!("{what}: {} of {most} blocks held", quota.held_blocks),
    });
    Ok(())
}

/// What prefixes without a quota hold is not counted.
fn of_prefix(of: &QuotaOf) -> bool {
    matches!(of, QuotaOf::Prefix(..))
}
