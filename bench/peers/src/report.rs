//! The report: a line of JSON for each cell and bar, and tables for people.

use crate::contract::{Op, System};
use crate::matrix::{Bar, Cell, Figure, Group, Transport, With};
use crate::run::{Absent, Cells, Shown};
use honeycomb_bench::measure::Spread;
use honeycomb_bench::report::{Table, number, spread};
use serde_json::{Value, json};

/// The verdict on a bar.
pub struct Verdict {
    /// The bar.
    pub bar: Bar,
    /// The compared cell and the ratios round by round; or the reason why there are none.
    pub ratio: Result<(String, Spread), Missing>,
}

/// The reason why a bar has no ratio.
#[derive(Clone, Debug)]
pub enum Missing {
    /// Our cell is missing.
    NotInBuild(String),
    /// There is nothing to compare with.
    NoPeer(String),
    /// The measurement failed.
    Failed(String),
}

impl From<&Absent> for Missing {
    fn from(absent: &Absent) -> Missing {
        match absent {
            Absent::NotInBuild(why) => Missing::NotInBuild((*why).to_owned()),
            Absent::NoPeer(why) => Missing::NoPeer(why.clone()),
            Absent::Failed(why) => Missing::Failed(why.clone()),
        }
    }
}

impl Verdict {
    /// Whether the bar is met; `None` without a bar or without a ratio.
    pub fn met(&self) -> Option<bool> {
        let (_, ratio) = self.ratio.as_ref().ok()?;
        Some(self.bar.bar?.met(ratio.median))
    }

    fn reached(&self) -> Option<bool> {
        let (_, ratio) = self.ratio.as_ref().ok()?;
        Some(self.bar.stretch?.met(ratio.median))
    }

    /// The verdict in one or two words.
    pub fn word(&self) -> &'static str {
        match (&self.ratio, self.met(), self.reached()) {
            (Err(Missing::NotInBuild(_)), ..) => "NOT IN THIS BUILD",
            (Err(Missing::NoPeer(_)), ..) => "NO PEER",
            (Err(Missing::Failed(_)), ..) => "FAILED",
            (_, Some(false), _) => "MISSED",
            (_, _, Some(true)) => "met, stretch too",
            (_, Some(true), _) => "met",
            (_, None, Some(false)) => "stretch missed",
            (_, None, None) => "-",
        }
    }

    /// One line of JSON.
    pub fn json(&self) -> Value {
        let bar = &self.bar;
        let bound = |bound: Option<crate::matrix::Bound>| bound.map(|b| b.show());
        let (against, ratio, why) = match &self.ratio {
            Ok((against, ratio)) => (Some(against.clone()), Some(ratio.json()), None),
            Err(Missing::NotInBuild(why) | Missing::NoPeer(why) | Missing::Failed(why)) => {
                (None, None, Some(why.clone()))
            }
        };
        json!({
            "ratio_of": bar.row, "figure": bar.figure.name(), "against": against, "ratio": ratio,
            "bar": bound(bar.bar), "stretch": bound(bar.stretch), "verdict": self.word(),
            "why": why,
        })
    }
}

/// The verdicts on a group's bars.
pub fn verdicts(group: &Group, cells: &Cells) -> Vec<Verdict> {
    let judge = |bar: &Bar| Verdict { bar: bar.clone(), ratio: ratio(group, bar, cells) };
    group.bars.iter().map(judge).collect()
}

fn ratio(group: &Group, bar: &Bar, cells: &Cells) -> Result<(String, Spread), Missing> {
    let ours = cells[bar.ours].as_ref().map_err(Missing::from)?;
    let median = |shown: &Shown| shown.series.spread(|f| bar.figure.of(f)).median;
    let mut best: Option<(usize, &Shown)> = None;
    for &at in &bar.others {
        let Ok(shown) = &cells[at] else { continue };
        let better = |than: &Shown| match bar.figure.rises() {
            true => median(shown) > median(than),
            false => median(shown) < median(than),
        };
        if best.is_none_or(|(_, than)| better(than)) {
            best = Some((at, shown));
        }
    }
    let Some((at, theirs)) = best else {
        let first = bar.others.first().map(|at| &cells[*at]);
        return Err(match first {
            Some(Err(absent)) => Missing::from(absent),
            _ => Missing::NoPeer("nothing to compare with".into()),
        });
    };
    let ratio = ours.series.ratio(&theirs.series, |f| bar.figure.of(f));
    Ok((who(&group.cells[at]), ratio))
}

/// A short name of a cell.
pub fn who(cell: &Cell) -> String {
    let mut name = match (cell.system, cell.with) {
        (System::Stream, _) => "raw socket".to_owned(),
        (System::Empty, _) => "empty server".to_owned(),
        (System::Loop, _) => "empty loop".to_owned(),
        (System::Pages, _) => "touching".to_owned(),
        // The load generator is the same for all systems.
        (system, With::Flood) => system.name().to_owned(),
        (system, with) => format!("{} {}", system.name(), with.name()),
    };
    match cell.op {
        Op::GetInto => name += ", into a buffer",
        Op::PutAgain | Op::AppendAgain => name += ", used before",
        Op::PutNew | Op::AppendNew if cell.has_reserve => name += ", in the reserve",
        Op::PutNew | Op::AppendNew if cell.system == System::Honeycomb => name += ", new",
        _ => {}
    }
    if cell.transport == Transport::Map {
        name += if cell.op == Op::Get { ", mapped and not read" } else { ", mapped" };
    }
    if cell.waiting.client_polls() {
        name += &format!(", {}", cell.waiting.name());
    }
    if cell.one_core {
        name += ", one core";
    }
    match cell.beside {
        Some(Op::Split) => name += ", another prefix splits",
        Some(Op::Trickle) => name += ", the same puts beside it",
        _ => {}
    }
    name
}

/// One line of JSON for a cell: the median of the rounds, with minimum and maximum.
pub fn cell_json(group: &Group, cell: &Cell, shown: &Result<Shown, Absent>) -> Value {
    let mut line = json!({
        "bench": group.bench(), "group": group.name, "system": cell.system.name(),
        "limit": cell.system.limit(), "op": cell.op.name(), "size": cell.size,
        "clients": cell.clients, "pipeline": cell.pipeline, "transport": cell.transport.name(),
        "client": cell.with.name(), "batch": cell.batch, "waiting": cell.waiting.name(),
        "one_core": cell.one_core, "servers": cell.servers, "beside": cell.beside.map(Op::name),
    });
    let fields = line.as_object_mut().expect("an object");
    match shown {
        Ok(shown) => {
            fields.insert("about".into(), json!(shown.about));
            let mut put = |name: &str, spread: Spread| {
                let cut = |v: f64| (v * 1000.0).round() / 1000.0;
                fields.insert(name.into(), json!(cut(spread.median)));
                fields.insert(format!("{name}_min"), json!(cut(spread.min)));
                fields.insert(format!("{name}_max"), json!(cut(spread.max)));
            };
            put("p50_us", shown.series.spread(|f| f.latency[0]));
            put("p90_us", shown.series.spread(|f| f.latency[1]));
            put("p99_us", shown.series.spread(|f| f.latency[2]));
            put("p99_9_us", shown.series.spread(|f| f.latency[3]));
            put("most_us", shown.series.spread(|f| f.latency[4]));
            put("ops_per_s", shown.series.spread(|f| f.ops_s));
            put("mb_per_s", shown.series.spread(|f| f.mb_s));
            put("server_cpu_us_per_op", shown.series.spread(|f| f.server_us));
            put("client_cpu_us_per_op", shown.series.spread(|f| f.client_us));
            put("ops_per_server_core_s", shown.series.spread(|f| Figure::PerServerCore.of(f)));
            fields.insert("server_peak_resident_bytes".into(), json!(shown.server_peak));
            fields.insert("client_peak_resident_bytes".into(), json!(shown.client_peak));
        }
        Err(absent) => {
            let (verdict, why) = absent.verdict();
            fields.insert("absent".into(), json!(verdict));
            fields.insert("why".into(), json!(why));
        }
    }
    line
}

/// The table of a group's cells.
pub fn print_cells(group: &Group, cells: &Cells) {
    println!("\n### {}\n", group.name);
    let mut table = Table::new(&[
        "system",
        "p50 us",
        "p99 us",
        "ops/s",
        "MB/s",
        "server us/op",
        "client us/op",
        "server peak MiB",
        "client",
    ]);
    for (cell, shown) in group.cells.iter().zip(cells) {
        let mut row = vec![who(cell)];
        match shown {
            Ok(shown) => {
                let of = |f: fn(&honeycomb_bench::measure::Figures) -> f64| shown.series.spread(f);
                row.push(spread(of(|f| f.latency[0])));
                row.push(number(of(|f| f.latency[2]).median));
                row.push(number(of(|f| f.ops_s).median));
                row.push(number(of(|f| f.mb_s).median));
                row.push(spread(of(|f| f.server_us)));
                row.push(number(of(|f| f.client_us).median));
                row.push(number(shown.server_peak as f64 / (1 << 20) as f64));
                row.push(shown.about.clone());
            }
            Err(absent) => {
                row.extend(["-"; 7].map(str::to_owned));
                row.push(absent.to_string());
            }
        }
        table.row(row);
    }
    table.print();
}

/// A table of two columns.
pub fn print_pairs(name: &str, head: [&str; 2], pairs: Vec<(String, String)>) {
    println!("\n### {name}\n");
    let mut table = Table::new(&head);
    pairs.into_iter().for_each(|(what, figure)| table.row(vec![what, figure]));
    table.print();
}

/// The table of bars, and how many of them are met.
pub fn print_verdicts(verdicts: &[Verdict]) {
    println!("\n## Ratios (median, minimum and maximum of the alternations)\n");
    let head = ["row", "figure", "against", "ratio", "bar", "stretch", "verdict"];
    let mut table = Table::new(&head);
    for verdict in verdicts {
        let bar = &verdict.bar;
        let show = |bound: Option<crate::matrix::Bound>| bound.map_or("-".into(), |b| b.show());
        let (against, ratio) = match &verdict.ratio {
            Ok((against, ratio)) => (against.clone(), spread(*ratio)),
            Err(Missing::NotInBuild(why) | Missing::NoPeer(why) | Missing::Failed(why)) => {
                (why.clone(), "-".into())
            }
        };
        table.row(vec![
            bar.row.clone(),
            bar.figure.name().into(),
            against,
            ratio,
            show(bar.bar),
            show(bar.stretch),
            verdict.word().into(),
        ]);
    }
    table.print();
    let count = |wanted: Option<bool>| verdicts.iter().filter(|v| v.met() == wanted).count();
    let open = verdicts.iter().filter(|v| v.bar.bar.is_some() && v.ratio.is_err()).count();
    println!(
        "\n{} bars met, {} MISSED, {open} without figures",
        count(Some(true)),
        count(Some(false))
    );
}
