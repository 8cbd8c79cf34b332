//! Plots of the measured groups.

use crate::contract::{Op, System};
use crate::matrix::{Cell, Figure, Group, Transport, Wait, With};
use crate::report::who;
use crate::run::Cells;
use honeycomb_bench::plot::{Panel, Series, Shape, draw};
use std::path::Path;

/// Sizes up to this are plotted by latency, larger sizes by throughput.
const SMALL: u64 = 16 << 10;

/// Draws all plots with data into a folder; answers the names of the files.
pub fn draw_all(folder: &Path, measured: &[(Group, Cells)]) -> Result<Vec<String>, String> {
    let sync = |op: Op| move |cell: &Cell| is_sync(cell) && cell.op == op;
    let latency = |op: Op| {
        panel(
            measured,
            &format!("One synchronous {} by size", op.name()),
            ("bytes of the value", "p50, microseconds"),
            &|cell| sync(op)(cell) && cell.size <= SMALL,
            &|cell| cell.size as f64,
            Figure::P50,
        )
    };
    let throughput = |op: Op| {
        panel(
            measured,
            &format!("One synchronous {} by size", op.name()),
            ("KiB of the value", "MB/s"),
            &|cell| sync(op)(cell) && cell.size > SMALL,
            &|cell| cell.size as f64 / 1024.0,
            Figure::MbPerS,
        )
    };
    let many = |transport: Transport| {
        panel(
            measured,
            &format!("50 connections, get of 64 B, {}", transport.name()),
            ("requests in flight on each", "million operations per server core-second"),
            &|cell| {
                (cell.with, cell.clients, cell.size, cell.op) == (With::Flood, 50, 64, Op::Get)
                    && cell.transport == transport
                    && cell.servers == 1
            },
            &|cell| cell.pipeline as f64,
            Figure::PerServerCore,
        )
    };
    let python = |op: Op| {
        panel(
            measured,
            &format!("Python, one synchronous {} by size", op.name()),
            ("KiB of the value", "MB/s"),
            &|cell| {
                cell.op == op
                    && !cell.one_core
                    && cell.size > SMALL
                    && matches!(cell.with, With::Python | With::RedisPy | With::Pymemcache)
            },
            &|cell| cell.size as f64 / 1024.0,
            Figure::MbPerS,
        )
    };
    let mut drawn = Vec::new();
    for (name, panels) in [
        ("compare-latency.png", [latency(Op::Get), latency(Op::Put)]),
        ("compare-throughput.png", [throughput(Op::Get), throughput(Op::Put)]),
        ("compare-connections.png", [many(Transport::Tcp), many(Transport::Unix)]),
        ("compare-python.png", [python(Op::Get), python(Op::Put)]),
    ] {
        let panels: Vec<Panel> = panels.into_iter().flatten().collect();
        if !panels.is_empty() {
            draw(&folder.join(name), &panels)?;
            drawn.push(name.to_owned());
        }
    }
    Ok(drawn)
}

/// Whether a cell belongs to the groups `kv sync` and `kv large`, without cells that only serve as
/// references.
fn is_sync(cell: &Cell) -> bool {
    let plain = cell.clients == 1 && cell.batch == 1 && !cell.one_core && cell.servers == 1;
    let client = matches!(cell.with, With::Rust | With::Hiredis | With::C);
    let peer_twice = cell.system == System::Redis && cell.with == With::Rust;
    // Cells between sleeping and polling on both sides are left out, so that there are enough colours.
    let between = cell.waiting == Wait::Client;
    plain && client && !peer_twice && !between && cell.transport == Transport::Tcp
}

/// A panel with a line for each system and way of waiting; `None` without measurements.
fn panel(
    measured: &[(Group, Cells)],
    title: &str,
    (x, y): (&str, &str),
    wanted: &dyn Fn(&Cell) -> bool,
    at: &dyn Fn(&Cell) -> f64,
    figure: Figure,
) -> Option<Panel> {
    let mut lines: Vec<Series> = Vec::new();
    for (group, cells) in measured.iter().filter(|(group, _)| group.bench() != "servers") {
        for (cell, shown) in group.cells.iter().zip(cells) {
            let Ok(shown) = shown else { continue };
            if !wanted(cell) {
                continue;
            }
            let median = shown.series.spread(|f| figure.of(f)).median;
            let unit = if figure == Figure::PerServerCore { 1e6 } else { 1.0 };
            let point = (at(cell), median / unit);
            let name = who(cell);
            match lines.iter_mut().find(|line| line.name == name) {
                // The group of files repeats the limit of the group of stores: the first one counts.
                Some(line) if line.points.iter().any(|p| p.0 == point.0) => {}
                Some(line) => line.points.push(point),
                None => lines.push(Series { name, shape: Shape::Marked, points: vec![point] }),
            }
        }
    }
    if lines.is_empty() {
        return None;
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let (title, x, y) = (title.to_owned(), x.to_owned(), y.to_owned());
    Some(Panel { title, x, y, series: lines, logarithmic: true, logarithmic_y: false })
}
