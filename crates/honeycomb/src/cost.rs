//! `cost`: resource use of jobs, and its price.

use crate::config::{ForCost, Given, Settings};
use crate::failure::CommandResult;
use crate::output::Output;
use crate::size;
use clap::Args;
use honeycomb_client::cost::{Cost, Prices, TierCost, tier_name};
use honeycomb_types::{JobId, tenant_of};
use honeycomb_wire::messages::JobBill;
use serde_json::{Value, json};

/// Shows the resources that jobs have used, and their cost.
///
/// A job is charged for whole blocks, from allocation to release, in gigabyte-seconds of the tier that holds
/// the block: memory, a disk, or an object store. DATA is the part of these blocks that was data, and MOVED
/// the bytes that were migrated to other servers. If lower tiers were used, a second table shows for each
/// tier the gigabyte-seconds, the bytes demoted or promoted to it (CAME), and the cost of both. COST uses the
/// setting `prices`: other prices show the cost of the same use at those prices. AT PEAK is the cost if the
/// job had reserved its peak use in memory for its whole lifetime. Each controller shard remembers the last
/// 1024 ended jobs. Requires the cluster's token; a job's token shows that job alone.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb cost
  honeycomb cost acme/sort
  honeycomb cost --tenant acme --prices memory=0.012,nvme=0.0002,moved=0.01
  honeycomb cost --json")]
pub struct CostArgs {
    /// Show only this job
    #[arg(conflicts_with = "tenant")]
    name: Option<String>,
    /// Show only the jobs of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    #[command(flatten)]
    given: Given<ForCost>,
    #[command(flatten)]
    output: Output,
}

fn gb_seconds(cost: &Cost) -> f64 {
    cost.tiers.iter().map(|tier| tier.gb_seconds).sum()
}

fn used_gb_seconds(cost: &Cost) -> f64 {
    cost.tiers.iter().map(|tier| tier.used_gb_seconds).sum()
}

/// A JSON object with one value for each tier, by the tier's name.
fn by_tier<T: Into<Value>>(cost: &Cost, of: impl Fn(&TierCost) -> T) -> Value {
    let named = cost.tiers.iter().enumerate();
    named.map(|(code, tier)| (tier_name(code).to_owned(), of(tier).into())).collect()
}

/// `honeycomb cost`.
pub fn cost(args: &CostArgs) -> CommandResult {
    let settings: Settings = args.given.settings()?;
    let prices = Prices::parse(settings.prices())?;
    let client = crate::cluster::ClusterPlace::find(&settings)?.client()?;
    let mut bills = client.bills(None)?;
    if let Some(name) = &args.name {
        // Of several jobs with this name, the last.
        let last = bills.iter().rposition(|bill| bill.name == *name);
        bills = match last {
            Some(at) => vec![bills.swap_remove(at)],
            None => vec![client.bills(Some(client.find_job(name)?.job))?.remove(0)],
        };
    }
    if let Some(tenant) = &args.tenant {
        bills.retain(|bill| tenant_of(&bill.name) == Some(tenant));
    }
    if args.output.json {
        let jobs: Vec<Value> = bills.iter().map(|bill| as_json(bill, &prices)).collect();
        let sum = Cost::sum(&bills, &prices);
        let tiers = by_tier(&sum, |tier| {
            json!({
                "gb_seconds": tier.gb_seconds, "used_gb_seconds": tier.used_gb_seconds,
                "came_bytes": tier.came_bytes, "money": tier.money,
            })
        });
        say!(
            "{}",
            json!({
                "jobs": jobs, "tiers": tiers, "moved_bytes": sum.moved_bytes, "money": sum.money,
                "prices": prices.named().into_iter().collect::<Value>(),
            })
        );
    } else {
        print(&bills, &prices);
    }
    Ok(())
}

fn as_json(bill: &JobBill, prices: &Prices) -> Value {
    let cost = Cost::of(bill, prices);
    json!({
        "job": JobId(bill.job).0, "name": bill.name, "tenant": tenant_of(&bill.name),
        "ended": bill.ended, "age_ms": bill.age_ms,
        "gb_seconds": by_tier(&cost, |tier| tier.gb_seconds),
        "used_gb_seconds": by_tier(&cost, |tier| tier.used_gb_seconds),
        "came_bytes": by_tier(&cost, |tier| tier.came_bytes),
        "peak_bytes": bill.peak_bytes, "moved_bytes": bill.moved_bytes,
        "money": cost.money, "money_by_tier": by_tier(&cost, |tier| tier.money),
        "money_at_peak": cost.money_at_peak,
    })
}

/// The percentage of data in the blocks.
fn data_of(used: f64, held: f64) -> String {
    if held > 0.0 { format!("{:.0}%", 100.0 * used / held) } else { "-".to_owned() }
}

fn print(bills: &[JobBill], prices: &Prices) {
    say!(
        "{:<24} {:>11} {:>12} {:>6} {:>12} {:>10} {:>12} {:>12}",
        "JOB",
        "AGE",
        "GB-SECONDS",
        "DATA",
        "PEAK",
        "MOVED",
        "COST",
        "AT PEAK"
    );
    for bill in bills {
        let cost = Cost::of(bill, prices);
        say!(
            "{:<24} {:>11} {:>12.3} {:>6} {:>12} {:>10} {:>12.6} {:>12.6}{}",
            bill.name,
            size::duration(bill.age_ms as i64),
            gb_seconds(&cost),
            data_of(used_gb_seconds(&cost), gb_seconds(&cost)),
            size::show(bill.peak_bytes),
            size::show(bill.moved_bytes),
            cost.money,
            cost.money_at_peak,
            if bill.ended { "  ended" } else { "" }
        );
    }
    let sum = Cost::sum(bills, prices);
    if bills.len() > 1 {
        say!("{:<24} {:>68.6} {:>12.6}", "together", sum.money, sum.money_at_peak);
    }
    print_tiers(&sum);
}

/// Prints the table of tiers, if any tier but memory was used.
fn print_tiers(sum: &Cost) {
    let lower = sum.tiers.iter().skip(1);
    if lower.clone().all(|tier| tier.gb_seconds <= 0.0 && tier.came_bytes == 0) {
        return;
    }
    say!();
    say!("{:<24} {:>24} {:>6} {:>23} {:>12}", "TIER", "GB-SECONDS", "DATA", "CAME", "COST");
    for (code, tier) in sum.tiers.iter().enumerate() {
        if code == 0 || tier.gb_seconds > 0.0 || tier.came_bytes > 0 {
            say!(
                "{:<24} {:>24.3} {:>6} {:>23} {:>12.6}",
                tier_name(code),
                tier.gb_seconds,
                data_of(tier.used_gb_seconds, tier.gb_seconds),
                size::show(tier.came_bytes),
                tier.money
            );
        }
    }
}
