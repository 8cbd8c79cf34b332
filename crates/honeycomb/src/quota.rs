//! `quota`: the limits of blocks of a tenant, a job or a prefix, and its share of memory.

use crate::cluster::{ClusterPlace, Intent, Work};
use crate::config::{Given, InJob};
use crate::failure::CommandResult;
use crate::output::Output;
use crate::place;
use clap::Args;
use honeycomb_client::{QuotaChange, QuotaOf};
use honeycomb_types::limits::SHARE_WEIGHT_MAX;
use serde_json::json;

/// Shows and changes quotas of blocks.
///
/// A quota limits the blocks of a prefix with its descendants, of a job (if no prefix is given), or of all
/// jobs of a tenant. A job belongs to a tenant if its name is TENANT/NAME. Changing the quota of a job or a
/// tenant requires the cluster's token. A quota below the present use frees nothing, but no block is
/// allocated until the use falls below it; refused requests fail with QuotaExceeded, which names the quota. A
/// soft quota refuses nothing: the blocks in memory beyond it are demoted first. The weight is that of the
/// share of a tenant, or of a job without a tenant, under a fair policy.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb quota --job acme/sort                 # its quota and its use
  honeycomb quota --job acme/sort --blocks 64
  honeycomb quota --job acme/sort counts --blocks 8
  honeycomb quota --tenant acme --blocks 200
  honeycomb quota --tenant acme --blocks 0        # no quota
  honeycomb quota --tenant acme --soft 100 --weight 2")]
pub struct QuotaArgs {
    /// The prefix (default: the job itself)
    #[arg(value_parser = place::prefix, conflicts_with = "tenant")]
    prefix: Option<String>,
    /// All jobs of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Set the maximum number of blocks; 0 for no quota
    #[arg(long, value_name = "N")]
    blocks: Option<u64>,
    /// Set the soft quota: blocks in memory beyond it are demoted first; 0 for none
    #[arg(long, value_name = "N")]
    soft: Option<u64>,
    /// Set the weight of the memory share of a tenant, or of a job without a tenant
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=SHARE_WEIGHT_MAX as i64))]
    weight: Option<u32>,
    #[command(flatten)]
    given: Given<InJob>,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb quota`.
pub fn quota(args: &QuotaArgs) -> CommandResult {
    let settings = args.given.settings()?;
    let (cluster, of, what) = match (&args.tenant, &args.prefix) {
        (Some(tenant), _) => {
            let cluster = ClusterPlace::find(&settings)?.client()?;
            (cluster, QuotaOf::Tenant(tenant.clone()), format!("tenant {tenant}"))
        }
        (None, prefix) => {
            let Work { cluster, job, name, .. } = Work::open(&settings, Intent::Look)?;
            match prefix {
                Some(path) => {
                    let what = format!("{name}, {path} and its descendants");
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
    args.output.print(&told, || {
        let hard = match quota.max_blocks {
            0 if of_prefix(&of) && quota.soft_blocks == 0 => "no quota".into(),
            0 => format!("no quota; {} blocks in use", quota.held_blocks),
            most => format!("{} of {most} blocks in use", quota.held_blocks),
        };
        let soft = match quota.soft_blocks {
            0 => String::new(),
            soft => {
                format!("; {} in memory, soft quota {soft}", quota.memory_blocks)
            }
        };
        let weight = match quota.weight {
            0 | 1 => String::new(),
            weight => format!("; weight {weight}"),
        };
        format!("{what}: {hard}{soft}{weight}")
    });
    Ok(())
}

/// Whether this is a quota of a prefix. The use of a prefix without a quota is not counted.
fn of_prefix(of: &QuotaOf) -> bool {
    matches!(of, QuotaOf::Prefix(..))
}
