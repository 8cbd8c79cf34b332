//! `quota`: the most blocks that a tenant, a job or a prefix may hold, and what of memory is its own.

use crate::cluster::{Intent, Place, Work};
use crate::config::{Given, InJob};
use crate::failure::Outcome;
use crate::output::Output;
use crate::place;
use clap::Args;
use honeycomb_client::{QuotaChange, QuotaOf};
use honeycomb_types::limits::SHARE_WEIGHT_MAX;
use serde_json::json;

/// Tells how many blocks may be held and are, and changes how many may.
///
/// Of a prefix with all below it, of the job when no prefix is named, or of all jobs of a tenant. Jobs
/// are a tenant's when they are named TENANT/NAME. Only the cluster's token changes what a job or a
/// tenant may hold. A quota that is set below what is held takes nothing away, and gives nothing until
/// enough was freed; whoever is refused is told QuotaExceeded, with whose quota it was. A soft quota
/// refuses nothing: what is in memory beyond it is the first to go below. A weight says what the share of a
/// tenant, or of a job without one, counts for under a fair policy.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb quota --job acme/sort                 # what it may hold, and holds
  honeycomb quota --job acme/sort --blocks 64
  honeycomb quota --job acme/sort counts --blocks 8
  honeycomb quota --tenant acme --blocks 200
  honeycomb quota --tenant acme --blocks 0        # no quota
  honeycomb quota --tenant acme --soft 100 --weight 2")]
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
    /// Blocks in memory beyond which its blocks are the first to go below; 0 for none
    #[arg(long, value_name = "N")]
    soft: Option<u64>,
    /// What its share of memory counts for, of a tenant or of a job that is no tenant's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=SHARE_WEIGHT_MAX as i64))]
    weight: Option<u32>,
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
    let QuotaArgs { blocks: max_blocks, soft: soft_blocks, weight, .. } = *args;
    let change = QuotaChange { max_blocks, soft_blocks, weight };
    let quota = match change == QuotaChange::default() {
        true => cluster.quota(&of)?,
        false => cluster.change_quota(&of, &change)?,
    };
    let told = json!({
        "max_blocks": quota.max_blocks, "held_blocks": quota.held_blocks,
        "soft_blocks": quota.soft_blocks, "weight": quota.weight,
        "memory_blocks": quota.memory_blocks,
    });
    args.output.tell(&told, || {
        let hard = match quota.max_blocks {
            0 if of_prefix(&of) && quota.soft_blocks == 0 => "no quota".into(),
            0 => format!("no quota; {} blocks held", quota.held_blocks),
            most => format!("{} of {most} blocks held", quota.held_blocks),
        };
        let soft = match quota.soft_blocks {
            0 => String::new(),
            soft => {
                format!("; {} in memory, of {soft} before others go below", quota.memory_blocks)
            }
        };
        let weight = match quota.weight {
            0 | 1 => String::new(),
            weight => format!("; its share counts for {weight}"),
        };
        format!("{what}: {hard}{soft}{weight}")
    });
    Ok(())
}

/// What prefixes without a quota hold is not counted.
fn of_prefix(of: &QuotaOf) -> bool {
    matches!(of, QuotaOf::Prefix(..))
}
