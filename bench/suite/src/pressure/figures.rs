//! The results: tables, lines of JSON, plots, and verdicts on the requirements.

use super::Load;
use super::sizing::{Sizing, cut};
use crate::plot::{Panel, Series, Shape, draw};
use crate::report::{Table, number};
use honeycomb::failure::{CommandResult, Failure};
use honeycomb::output::Output;
use honeycomb::say;
use honeycomb::size;
use serde_json::{Value, json};
use std::path::Path;

/// The paper's slowdowns in Figure 9 at 20 and 60 % of the peak, for ElastiCache, Pocket, and its own system.
/// For the last two at 20 %, the paper says more than 4.1 and less than 2.5.
const PAPER: [(&str, [(f64, f64); 2]); 3] = [
    ("paper: ElastiCache", [(20.0, 34.0), (60.0, 4.7)]),
    ("paper: Pocket", [(20.0, 4.1), (60.0, 3.2)]),
    ("paper: its own", [(20.0, 2.5), (60.0, 1.3)]),
];
/// Maximum slowdown of `block` at these capacities.
const BARS: [(u32, f64); 2] = [(60, 1.2), (20, 2.0)];
/// Minimum factor by which `block` is faster than these policies, at 60 % and less.
const AHEAD: [(&str, f64); 2] = [("job-peak", 1.6), ("static", 3.0)];
/// Minimum utilisation at 40 %.
const UTILISATION: f64 = 0.8;

/// The slowdown of jobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowdown {
    /// Mean over jobs.
    pub mean: f64,
    /// The 95th percentile over jobs.
    pub p95: f64,
    /// Slowdown of the sum of all jobs' times: small jobs count little.
    pub sums: f64,
}

impl Slowdown {
    /// The slowdown of jobs' times relative to those of the same jobs in another run.
    pub fn of(seconds: &[f64], base: &[f64]) -> Slowdown {
        assert_eq!(seconds.len(), base.len(), "the same jobs");
        let mut each: Vec<f64> =
            seconds.iter().zip(base).map(|(took, base)| took / base.max(1e-9)).collect();
        each.sort_by(f64::total_cmp);
        let count = each.len().max(1);
        let at = (count * 95).div_ceil(100) - 1;
        Slowdown {
            mean: each.iter().sum::<f64>() / count as f64,
            p95: each.get(at).copied().unwrap_or(f64::NAN),
            sums: seconds.iter().sum::<f64>() / base.iter().sum::<f64>().max(1e-9),
        }
    }
}

/// A policy at a capacity.
pub struct Point {
    /// Name on the command line.
    pub policy: &'static str,
    /// Percent of the peak.
    pub capacity_pct: u32,
    /// Slowdown relative to the policy's own run at 100 %.
    pub slowdown: Slowdown,
    /// Seconds from the arrival of each job to its end.
    pub seconds: Vec<f64>,
    /// All jobs' times relative to those of `block` at 100 %.
    pub to_block: Option<f64>,
    /// Bytes in memory over the capacity, on average while jobs arrive.
    pub utilisation: f64,
    /// The same for owned blocks as counted by the controller, or for the memory that redis-server counts
    /// against its limit, if measured.
    pub allocated: Option<f64>,
    /// Bytes written to disks.
    pub spilled_disk: u64,
    /// Bytes written to the object store.
    pub spilled_object: u64,
    /// Bytes that tasks wrote.
    pub written: u64,
    /// Number of finished jobs.
    pub jobs: usize,
    /// Number of jobs that did not finish before the run was stopped; their times are those until then.
    pub unfinished: usize,
    /// Number of reads compared with the written data, if any.
    pub compared: Option<u64>,
    /// Share of transfers in the tasks' time.
    pub transfer_share: f64,
}

/// All results of a comparison.
pub struct Found<'a> {
    /// Whether it ran in virtual time, not on a cluster.
    pub simulated: bool,
    /// Whether disk and object store had the speed of the conditions.
    pub shaped: bool,
    /// Ratio of the times of two equal runs, if measured.
    pub twice: Option<f64>,
    /// Bytes per second of the disk alone, if there is one.
    pub disk: Option<f64>,
    /// The load.
    pub load: &'a Load,
    /// The arithmetic of the load.
    pub sizing: &'a Sizing,
    /// The results by policy and capacity.
    pub points: &'a [Point],
    /// Bytes of a capacity of 100 %.
    pub peak: u64,
    /// The machine.
    pub about: &'a str,
}

impl Found<'_> {
    /// Prints the results, and draws them if there is a folder.
    pub fn tell(&self, output: Output, out: Option<&Path>) -> CommandResult {
        if let Some(folder) = out {
            std::fs::create_dir_all(folder).map_err(|e| Failure::io(folder.display(), &e))?;
            let name = match (self.simulated, self.shaped) {
                (true, _) => "pressure-simulated",
                (false, true) => "pressure",
                (false, false) => "pressure-unshaped",
            };
            self.draw(&folder.join(format!("{name}.png")))?;
            self.write_csv(&folder.join(format!("{name}.csv")))?;
        }
        if output.json {
            self.points.iter().for_each(|point| say!("{}", self.json(point)));
            return Ok(());
        }
        say!();
        self.table();
        // The requirements apply only under the conditions.
        let verdicts = if self.shaped { self.verdicts() } else { Vec::new() };
        if !verdicts.is_empty() {
            say!();
            verdicts.iter().for_each(|line| say!("{line}"));
        }
        Ok(())
    }

    fn json(&self, point: &Point) -> Value {
        let conditions = &self.load.conditions;
        let mut line = json!({
            "bench": "pressure", "mode": if self.simulated { "simulated" } else { "measured" },
            "shaped": self.shaped, "same_run_twice": self.twice.map(cut), "policy": point.policy,
            "capacity_pct": point.capacity_pct,
            "disk_alone_bytes_per_s": self.disk.map(f64::round),
            "slowdown_mean": cut(point.slowdown.mean), "slowdown_p95": cut(point.slowdown.p95),
            "utilisation": cut(point.utilisation),
            "spilled_disk_bytes": point.spilled_disk, "spilled_object_bytes": point.spilled_object,
            "slowdown_of_sums": cut(point.slowdown.sums), "to_block_at_100": point.to_block.map(cut),
            "capacity_bytes": self.peak * u64::from(point.capacity_pct) / 100,
            "written_bytes": point.written, "jobs": point.jobs, "unfinished": point.unfinished,
            "compared": point.compared,
            "allocated_of_capacity": point.allocated.map(cut),
            "transfer_share": cut(point.transfer_share),
            "disk": format!("{} MB/s, {} \
                ms", conditions.disk / 1e6, conditions.disk_request_s * 1e3),
            "object": format!(
                "{} ms read, {} ms write, {} MB/s",
                conditions.object_read_s * 1e3,
                conditions.object_write_s * 1e3,
                conditions.object / 1e6
            ),
            "load": self.load.demand.source, "tenants": self.load.demand.tenants,
            "machine": self.about,
        });
        if let (Some(line), Value::Object(more)) = (line.as_object_mut(), self.sizing.json()) {
            line.extend(more);
        }
        line
    }

    fn table(&self) {
        let mut table = Table::new(&[
            "policy",
            "memory",
            "slowdown mean",
            "p95",
            "of all jobs' time",
            "against block at 100 %",
            "utilisation",
            "to disk",
            "to the object store",
        ]);
        for point in self.points {
            let unfinished = match point.unfinished {
                0 => String::new(),
                some => format!(" ({some} jobs did not finish)"),
            };
            let part = |bytes: u64| {
                let share = bytes as f64 / point.written.max(1) as f64 * 100.0;
                format!("{} ({share:.0} %)", size::show(bytes))
            };
            table.row(vec![
                point.policy.into(),
                format!("{} %", point.capacity_pct),
                number(point.slowdown.mean) + &unfinished,
                number(point.slowdown.p95),
                number(point.slowdown.sums),
                point.to_block.map_or("-".into(), number),
                format!("{:.0} %", point.utilisation * 100.0),
                part(point.spilled_disk),
                part(point.spilled_object),
            ]);
        }
        table.print();
    }

    fn at(&self, policy: &str, capacity_pct: u32) -> Option<&Point> {
        self.points.iter().find(|p| p.policy == policy && p.capacity_pct == capacity_pct)
    }

    /// Each requirement, and whether it is met.
    fn verdicts(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let said = |reached: bool| if reached { "reached" } else { "MISSED" };
        for (pct, most) in BARS {
            let Some(point) = self.at("block", pct) else { continue };
            let mean = point.slowdown.mean;
            lines.push(format!(
                "block at {pct} %: slowdown {}, required at most {most}: {}",
                number(mean),
                said(mean <= most)
            ));
        }
        for (policy, least) in AHEAD {
            let low = self.points.iter().filter(|p| p.policy == policy && p.capacity_pct <= 60);
            for point in low {
                let Some(ours) = self.at("block", point.capacity_pct) else { continue };
                let ahead = point.slowdown.mean / ours.slowdown.mean;
                let (pct, said) = (point.capacity_pct, said(ahead >= least));
                let ahead = number(ahead);
                lines.push(format!(
                    "block faster than {policy} at {pct} %: {ahead} times, required {least}: {said}"
                ));
            }
        }
        let ours: Vec<&Point> = self.points.iter().filter(|p| p.policy == "block").collect();
        if let Some(point) = self.at("block", 40) {
            let rises = ours.windows(2).all(|two| two[1].utilisation >= two[0].utilisation - 0.01);
            lines.push(format!(
                "utilisation of block at 40 %: {:.0} %, required over {:.0} %: {}; it {} as \
                 capacity falls",
                point.utilisation * 100.0,
                UTILISATION * 100.0,
                said(point.utilisation > UTILISATION),
                if rises { "rises" } else { "DOES NOT ALWAYS RISE" }
            ));
        }
        lines
    }

    fn draw(&self, path: &Path) -> CommandResult {
        let drawn = self.points.iter().map(|p| Drawn {
            policy: p.policy.into(),
            capacity_pct: f64::from(p.capacity_pct),
            slowdown: p.slowdown.mean,
            utilisation: p.utilisation,
        });
        figure(path, &drawn.collect::<Vec<_>>())
    }

    fn write_csv(&self, path: &Path) -> CommandResult {
        let mut text =
            "policy,capacity_pct,slowdown_mean,slowdown_p95,slowdown_of_sums,utilisation,\
                        spilled_disk_bytes,spilled_object_bytes\n"
                .to_owned();
        for p in self.points {
            let s = p.slowdown;
            text += &format!(
                "{},{},{:.4},{:.4},{:.4},{:.4},{},{}\n",
                p.policy,
                p.capacity_pct,
                s.mean,
                s.p95,
                s.sums,
                p.utilisation,
                p.spilled_disk,
                p.spilled_object
            );
        }
        std::fs::write(path, text).map_err(|e| Failure::io(path.display(), &e))
    }
}

/// The values of a policy at a capacity in a figure.
struct Drawn {
    policy: String,
    capacity_pct: f64,
    slowdown: f64,
    utilisation: f64,
}

/// Draws the figure of an earlier run from its data, next to that file.
pub fn redraw(data: &Path) -> CommandResult {
    let text = std::fs::read_to_string(data).map_err(|e| Failure::io(data.display(), &e))?;
    let line = |line: &str| -> Option<Drawn> {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |n: usize| fields.get(n)?.parse::<f64>().ok();
        let policy = fields.first()?.to_string();
        let (capacity_pct, slowdown, utilisation) = (number(1)?, number(2)?, number(5)?);
        Some(Drawn { policy, capacity_pct, slowdown, utilisation })
    };
    let lines = text.lines().skip(1);
    let drawn = lines.map(|text| line(text).ok_or(text)).collect::<Result<Vec<_>, _>>();
    let wrong =
        |text| Failure::invalid(format!("{}: not a line of `pressure`: {text}", data.display()));
    figure(&data.with_extension("png"), &drawn.map_err(wrong)?)
}

fn figure(path: &Path, points: &[Drawn]) -> CommandResult {
    let mut policies: Vec<&str> = points.iter().map(|p| &*p.policy).collect();
    policies.dedup();
    let lines = |of: &dyn Fn(&Drawn) -> f64| -> Vec<Series> {
        let series = |policy: &&str| {
            let mine = points.iter().filter(|p| p.policy == *policy);
            let mut points: Vec<(f64, f64)> = mine.map(|p| (p.capacity_pct, of(p))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series { name: (*policy).into(), shape: Shape::Marked, points }
        };
        policies.iter().map(series).collect()
    };
    let mut slowdowns = lines(&|p| p.slowdown.max(1e-3));
    slowdowns.extend(PAPER.map(|(name, points)| Series {
        name: name.into(),
        shape: Shape::Points,
        points: points.to_vec(),
    }));
    let x = "memory, % of the peak".to_owned();
    let slowdown = Panel {
        title: "Slowdown against the own 100 %".into(),
        x: x.clone(),
        y: "times as long (mean over jobs)".into(),
        series: slowdowns,
        logarithmic: false,
        logarithmic_y: true,
    };
    let utilisation = Panel {
        title: "Utilisation of memory".into(),
        x,
        y: "% of the capacity".into(),
        series: lines(&|p| p.utilisation * 100.0),
        logarithmic: false,
        logarithmic_y: false,
    };
    draw(path, &[slowdown, utilisation]).map_err(Failure::from)
}
