//! Tables and progress for people.

use super::measure::{Series, Spread};
use honeycomb::say;
use std::io::{IsTerminal, Write};

/// Shows the current measurement on standard error, if that is a terminal.
pub struct Progress {
    shown: bool,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress::new()
    }
}

impl Progress {
    /// A progress line without text.
    pub fn new() -> Progress {
        Progress { shown: std::io::stderr().is_terminal() }
    }

    /// Replaces the line.
    pub fn tell(&self, text: &str) {
        if self.shown {
            eprint!("\r\x1b[K{text}");
            let _ = std::io::stderr().flush();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.tell("");
    }
}

/// A number with about three significant digits; a dash if it is not a number.
pub fn number(v: f64) -> String {
    match v.abs() {
        a if a.is_nan() => "-".into(),
        a if a >= 9_999.5 => thousands(v.round() as i64),
        a if a >= 99.5 => format!("{v:.0}"),
        a if a >= 9.95 => format!("{v:.1}"),
        _ => format!("{v:.2}"),
    }
}

fn thousands(v: i64) -> String {
    let digits = v.unsigned_abs().to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if v < 0 { format!("-{out}") } else { out }
}

/// `median (min..max)`.
pub fn spread(s: Spread) -> String {
    if s.min == s.max {
        return number(s.median);
    }
    format!("{} ({}..{})", number(s.median), number(s.min), number(s.max))
}

/// A Markdown table, so that it can be quoted unchanged.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with this head.
    pub fn new(head: &[&str]) -> Table {
        Table { rows: vec![head.iter().map(|h| (*h).to_owned()).collect()] }
    }

    /// Adds a row as wide as the head.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.rows[0].len(), "a row is as wide as its head");
        self.rows.push(cells);
    }

    /// Adds a row of names, followed by the figures of a series.
    pub fn series(&mut self, names: &[&str], series: &Series) {
        let mut cells: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        cells.push(spread(series.spread(|f| f.latency[0])));
        for i in 1..5 {
            cells.push(number(series.spread(|f| f.latency[i]).median));
        }
        cells.push(number(series.spread(|f| f.ops_s).median));
        cells.push(match series.spread(|f| f.mb_s).median {
            // Operations without data.
            0.0 => "-".into(),
            mb_s => number(mb_s),
        });
        cells.push(number(series.spread(|f| f.server_us).median));
        cells.push(number(series.spread(|f| f.client_us).median));
        self.row(cells);
    }

    /// Prints it.
    pub fn print(&self) {
        let width = |column: usize| self.rows.iter().map(|r| r[column].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        for (i, row) in self.rows.iter().enumerate() {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            say!("| {} |", cells.join(" | "));
            if i == 0 {
                let rules: Vec<String> = widths.iter().map(|w| "-".repeat(*w)).collect();
                say!("| {} |", rules.join(" | "));
            }
        }
    }
}

/// The head for `Table::series`.
pub const SERIES: [&str; 9] = [
    "p50 us (min..max)",
    "p90",
    "p99",
    "p99.9",
    "max",
    "ops/s",
    "MB/s",
    "server us/op",
    "client us/op",
];
