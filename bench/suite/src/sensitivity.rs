//! `bench sensitivity`: the effect of block size, lease and high mark (Figure 14).

use super::Waiting;
use super::cluster::Cluster;
use super::elasticity::describe;
use super::plot::{Panel, Series, Shape, draw};
use super::process::{Pinning, machine};
use super::report::{Table, number};
use super::trace::{Trace, bar, steps, write_csv};
use super::watch::{Observed, Sample, observe};
use clap::{Args, ValueEnum};
use honeycomb::failure::{CommandResult, Failure};
use honeycomb::output::Output;
use honeycomb::say;
use honeycomb::size;
use honeycomb_workload::{Demand, Holding};
use serde_json::{Value, json};

/// Default seconds of each run.
const SECONDS: f64 = 40.0;

/// Measures how block size, lease and high mark change utilisation and requests to the controller.
///
/// It runs the load of `bench elasticity`, stored in files, once for each value of each parameter, while the
/// other parameters are constant. Utilisation is used over allocated bytes, over the whole run. The
/// controller counts its requests; the regular heartbeats of servers are shown separately.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb bench sensitivity --quick --parameter lease --leases 500,1000
  honeycomb bench sensitivity --quick --parameter block --blocks 4MiB --json
  honeycomb bench sensitivity --quick --parameter mark --marks 50,95
  honeycomb bench sensitivity --quick --parameter mark --marks 95 --out figures")]
pub struct SensitivityArgs {
    /// The parameters to vary
    #[arg(long, value_enum, value_delimiter = ',', default_value = "block,lease,mark")]
    parameter: Vec<Parameter>,
    /// Block sizes to try
    #[arg(long, value_delimiter = ',', value_parser = size::parse, default_value = "256KiB,512KiB,1MiB,2MiB,4MiB,8MiB")]
    blocks: Vec<u64>,
    /// Leases to try, in milliseconds
    #[arg(long, value_delimiter = ',', default_value = "500,1000,2000,4000,8000")]
    leases: Vec<u32>,
    /// High marks to try, in percent of a block
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=100), default_value = "50,60,70,80,90,95,99")]
    marks: Vec<u8>,
    /// Block size while another parameter varies
    #[arg(long, value_parser = size::parse, default_value = "1MiB")]
    block_size: u64,
    /// Lease while another parameter varies, in milliseconds
    #[arg(long, default_value_t = 500)]
    lease_ms: u32,
    #[command(flatten)]
    trace: Trace,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Parameter {
    /// Bytes of a block
    Block,
    /// Milliseconds of a lease
    Lease,
    /// Percent of a block in use at which it grows
    Mark,
}

impl Parameter {
    /// The name in the JSON object and in file names.
    fn name(self) -> &'static str {
        match self {
            Parameter::Block => "block_bytes",
            Parameter::Lease => "lease_ms",
            Parameter::Mark => "high_mark",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Parameter::Block => "block size (MiB)",
            Parameter::Lease => "lease (s)",
            Parameter::Mark => "high mark (percent of a block)",
        }
    }

    fn show(self, value: u64) -> String {
        match self {
            Parameter::Block => size::show(value),
            Parameter::Lease => format!("{value} ms"),
            Parameter::Mark => format!("{value} %"),
        }
    }

    /// The value on the axis of a figure.
    fn at_axis(self, value: u64) -> f64 {
        match self {
            Parameter::Block => value as f64 / (1u64 << 20) as f64,
            Parameter::Lease => value as f64 / 1000.0,
            Parameter::Mark => value as f64,
        }
    }
}

/// One run.
struct Point {
    parameter: Parameter,
    value: u64,
    utilisation: f64,
    /// Requests per second: all without heartbeats, renewals, requests about blocks.
    requests: [f64; 3],
    reports: f64,
    followed: f64,
}

/// `honeycomb bench sensitivity`.
pub fn run(args: &SensitivityArgs) -> CommandResult {
    let demand = args.trace.demand(SECONDS)?;
    let about = machine();
    if !args.output.json {
        say!("{about}; not pinned: the kernel places both sides");
        say!("load, in files: {}\n", describe(&demand));
    }
    for parameter in &args.parameter {
        let values: Vec<u64> = match parameter {
            Parameter::Block => args.blocks.clone(),
            Parameter::Lease => args.leases.iter().map(|ms| *ms as u64).collect(),
            Parameter::Mark => args.marks.iter().map(|percent| *percent as u64).collect(),
        };
        let mut points = Vec::new();
        for value in values {
            let point = measure(args, &demand, *parameter, value)?;
            if args.output.json {
                say!("{}", json_of(args, &demand, &about, &point));
            }
            points.push(point);
        }
        if !args.output.json {
            print(&points);
        }
        write_figure(args, *parameter, &points)?;
    }
    Ok(())
}

fn measure(
    args: &SensitivityArgs,
    demand: &Demand,
    parameter: Parameter,
    value: u64,
) -> CommandResult<Point> {
    let (mut block, mut lease, mut mark) = (args.block_size, args.lease_ms, 0);
    match parameter {
        Parameter::Block => block = value,
        Parameter::Lease => lease = value as u32,
        Parameter::Mark => mark = value as u8,
    }
    let pool = args.trace.pool(demand, block, 1);
    let unpinned = Pinning::default();
    let cluster = Cluster::on(args.trace.shards, pool, Waiting::Sleeping, unpinned)?;
    let mut plan = args.trace.plan(Holding::File, lease);
    plan.prefix.high_mark = mark;
    let progress = bar(&parameter.show(value), steps(demand.window));
    let tell = |sample: &Sample| progress.set_position(steps(sample.seconds));
    let observed = observe(&cluster, demand, &plan, &tell)?;
    progress.finish_and_clear();
    Ok(Point::of(parameter, value, demand, &observed))
}

impl Point {
    /// Utilisation is that of the whole run, including memory that is still allocated after the last task;
    /// requests are those of the window.
    fn of(parameter: Parameter, value: u64, demand: &Demand, o: &Observed) -> Point {
        let used = o.integral(|s| s.used);
        let each = |count: u64| count as f64 / o.seconds;
        let c = o.control;
        Point {
            parameter,
            value,
            utilisation: used / o.integral(|s| s.allocated),
            requests: [each(c.all - c.reports.min(c.all)), each(c.leases), each(c.blocks)],
            reports: each(c.reports),
            followed: used / (demand.profile().mean * demand.window),
        }
    }
}

fn print(points: &[Point]) {
    let Some(first) = points.first() else { return };
    let head = [
        first.parameter.name(),
        "utilisation",
        "requests/s to the controller",
        "renewals/s",
        "of blocks/s",
        "heartbeats/s beside them",
    ];
    let mut table = Table::new(&head);
    for point in points {
        let [all, leases, blocks] = point.requests;
        table.row(vec![
            point.parameter.show(point.value),
            number(point.utilisation),
            number(all),
            number(leases),
            number(blocks),
            number(point.reports),
        ]);
    }
    table.print();
    say!();
}

fn json_of(args: &SensitivityArgs, demand: &Demand, about: &str, point: &Point) -> Value {
    let cut = |v: f64| (v * 1e4).round() / 1e4;
    let [all, leases, blocks] = point.requests;
    json!({
        "bench": "sensitivity", "parameter": point.parameter.name(), "value": point.value,
        "utilisation": cut(point.utilisation), "control_requests_per_s": cut(all),
        "renewals_per_s": cut(leases), "block_requests_per_s": cut(blocks),
        "heartbeats_per_s": cut(point.reports), "followed": cut(point.followed),
        "structure": Holding::File.name(), "block_bytes": args.block_size,
        "lease_ms": args.lease_ms, "load": demand.source, "tenants": demand.tenants,
        "tasks": demand.tasks.len(), "seconds": demand.window,
        "compressed": cut(3600.0 / demand.window), "machine": about,
    })
}

fn write_figure(args: &SensitivityArgs, parameter: Parameter, points: &[Point]) -> CommandResult {
    let name = format!("sensitivity-{}", parameter.name());
    if let Some(path) = args.trace.file(&format!("{name}.csv"))? {
        let head = format!(
            "{},utilisation,control_requests_per_s,renewals_per_s,block_requests_per_s",
            parameter.name()
        );
        let row = |p: &Point| [&[p.value as f64, p.utilisation][..], &p.requests[..]].concat();
        write_csv(&path, &head, points.iter().map(row))?;
    }
    let Some(path) = args.trace.file(&format!("{name}.png"))? else { return Ok(()) };
    let series = |name: &str, of: &dyn Fn(&Point) -> f64| Series {
        name: name.into(),
        shape: Shape::Marked,
        points: points.iter().map(|p| (parameter.at_axis(p.value), of(p))).collect(),
    };
    let panel = |title: &str, y: &str, series| Panel {
        title: title.into(),
        x: parameter.title().into(),
        y: y.into(),
        series,
        logarithmic: true,
        logarithmic_y: false,
    };
    let panels = [
        panel("memory", "used / allocated", vec![series("utilisation", &|p| p.utilisation)]),
        panel(
            "requests to the controller",
            "in a second",
            vec![
                series("all but heartbeats", &|p| p.requests[0]),
                series("renewals of leases", &|p| p.requests[1]),
                series("of servers about blocks", &|p| p.requests[2]),
            ],
        ),
    ];
    draw(&path, &panels).map_err(Failure::from)
}
