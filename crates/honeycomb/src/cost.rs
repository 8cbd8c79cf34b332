//! `cost`: what jobs have used, and what that is in money.

use crate::config::{ForCost, Given, Settings};
use crate::failure::Outcome;
use crate::output::Output;
use crate::{prices::Prices, size};
use clap::Args;
use honeycomb_types::{JobId, tenant_of};
use honeycomb_wire::messages::JobBill;
use serde_json::{Value, json};

/// Bytes of a gigabyte, times milliseconds of a second.
const GB_SECOND: f64 = 1e9 * 1e3;

/// Tells what jobs have used, and what that costs.
///
/// A job is charged for whole blocks, from when it is given one to when it is taken back: gigabyte-seconds,
/// exactly. Beside them stands how much of that was data, and what went from one server to another when
/// blocks split and merged. The money is by the setting `prices`, so that
/// other prices tell what the same use would have cost; `AT PEAK` is what it would have been had the job
/// reserved its greatest use for as long as it was registered. Jobs that ended are remembered, the last 1024
/// of a controller shard. Needs the cluster's token; a job's own shows that job alone.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb cost
  honeycomb cost acme/sort
  honeycomb cost --tenant acme --prices memory=0.012
  honeycomb cost --json")]
pub struct CostArgs {
    /// One job
    #[arg(conflicts_with = "tenant")]
    name: Option<String>,
    /// The jobs of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    #[command(flatten)]
    given: Given<ForCost>,
    #[command(flatten)]
    output: Output,
}

/// What one bill is worth.
struct Cost {
    gb_seconds: f64,
    used_gb_seconds: f64,
    money: f64,
    at_peak: f64,
}

fn cost_of(bill: &JobBill, prices: &Prices) -> Cost {
    let sum = |of: fn(&honeycomb_wire::messages::TierBill) -> u128| {
        bill.tiers.iter().map(|tier| of(tier) as f64).sum::<f64>() / GB_SECOND
    };
    let gb_seconds = sum(|tier| tier.held_byte_ms);
    let reserved = bill.peak_bytes as f64 * bill.age_ms as f64 / GB_SECOND;
    Cost {
        gb_seconds,
        used_gb_seconds: sum(|tier| tier.used_byte_ms),
        money: prices.memory(gb_seconds) + prices.moved(bill.moved_bytes),
        at_peak: prices.memory(reserved),
    }
}

/// `honeycomb cost`.
pub fn cost(args: &CostArgs) -> Outcome {
    let settings: Settings = args.given.settings()?;
    let prices = Prices::parse(settings.prices())?;
    let client = crate::cluster::Place::find(&settings)?.client()?;
    let mut bills = client.bills(None)?;
    if let Some(name) = &args.name {
        // Of several that had the name the last one.
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
        let total: f64 = bills.iter().map(|bill| cost_of(bill, &prices).money).sum();
        say!("{}", json!({ "jobs": jobs, "money": total, "prices": prices.json() }));
    } else {
        print(&bills, &prices);
    }
    Ok(())
}

fn as_json(bill: &JobBill, prices: &Prices) -> Value {
    let Cost { gb_seconds, used_gb_seconds, money, at_peak } = cost_of(bill, prices);
    json!({
        "job": JobId(bill.job).0, "name": bill.name, "tenant": tenant_of(&bill.name),
        "ended": bill.ended, "age_ms": bill.age_ms, "gb_seconds": { "memory": gb_seconds },
        "used_gb_seconds": { "memory": used_gb_seconds }, "peak_bytes": bill.peak_bytes,
        "moved_bytes": bill.moved_bytes,
        "money": money, "money_at_peak": at_peak,
    })
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
    let (mut money, mut peak) = (0.0, 0.0);
    for bill in bills {
        let cost = cost_of(bill, prices);
        money += cost.money;
        peak += cost.at_peak;
        let data = match cost.gb_seconds {
            0.0 => "-".to_owned(),
            held => format!("{:.0}%", 100.0 * cost.used_gb_seconds / held),
        };
        say!(
            "{:<24} {:>11} {:>12.3} {:>6} {:>12} {:>10} {:>12.6} {:>12.6}{}",
            bill.name,
            size::duration(bill.age_ms as i64),
            cost.gb_seconds,
            data,
            size::show(bill.peak_bytes),
            size::show(bill.moved_bytes),
            cost.money,
            cost.at_peak,
            if bill.ended { "  ended" } else { "" }
        );
    }
    if bills.len() > 1 {
        say!("{:<24} {:>68.6} {:>12.6}", "together", money, peak);
    }
}
