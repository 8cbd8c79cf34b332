//! Demand from the public Snowset, the trace of Snowflake's production clusters.
//!
//! The trace has a row for each query: its warehouse, its start and end, and the bytes of intermediate data
//! that it wrote, but not the times of the writes. A query is assumed to write at a constant rate during the
//! first half of its life and to hold all data until its end.

use crate::demand::{Demand, Task};
use crate::draw::Draw;
use csv::StringRecord;
use std::collections::BTreeMap;
use std::io::Read;
use thiserror::Error;

/// Seconds of the window of the trace.
const WINDOW: f64 = 3600.0;
/// Required columns of the trace.
const COLUMNS: [&str; 5] =
    ["warehouseId", "createdTime", "endTime", "intDataWriteBytesLocalSSD", "intDataWriteBytesS3"];
/// A missing value in the trace.
const MISSING: &str = "\\N";

/// The reason why the trace cannot be used.
#[derive(Debug, Error)]
pub enum SnowsetError {
    /// The trace cannot be read, or is not CSV.
    #[error("cannot read the trace: {0}")]
    Csv(#[from] csv::Error),
    /// A column is missing.
    #[error(
        "the trace has no column {name}: use the main dataset of Snowset as CSV, with its header"
    )]
    Column {
        /// The column.
        name: &'static str,
    },
    /// A value does not match its column.
    #[error("line {line} of the trace: {column} is '{value}', which is not a {what}")]
    Value {
        /// Line of the value.
        line: u64,
        /// The column.
        column: &'static str,
        /// The value.
        value: String,
        /// The expected kind of value.
        what: &'static str,
    },
    /// The hour has no intermediate data.
    #[error(
        "the trace has no query with intermediate data in the hour after its first query \
         ({rows} rows were read); use another part of it"
    )]
    Empty {
        /// Number of rows read.
        rows: u64,
    },
}

/// One query with intermediate data.
struct Query {
    warehouse: u64,
    created: f64,
    ended: f64,
    bytes: f64,
}

/// The hour that begins with the first query of the trace, for some of the warehouses with intermediate data
/// in it. All rows are read, because they need not be sorted; only rows of the hour are retained. The seed
/// selects the warehouses.
pub fn snowset(from: impl Read, seed: u64, tenants: u32) -> Result<Demand, SnowsetError> {
    let mut reader = csv::Reader::from_reader(from);
    let places = places(reader.headers()?)?;
    let (mut begin, mut rows) = (None, 0);
    let mut of: BTreeMap<u64, Vec<Query>> = BTreeMap::new();
    let mut record = StringRecord::new();
    while reader.read_record(&mut record)? {
        rows += 1;
        let line = record.position().map_or(0, |at| at.line());
        let Some(query) = query(&record, places, line)? else { continue };
        let begin = *begin.get_or_insert(query.created);
        if query.ended > begin && query.created < begin + WINDOW && query.bytes > 0.0 {
            of.entry(query.warehouse).or_default().push(query);
        }
    }
    let begin = begin.ok_or(SnowsetError::Empty { rows })?;
    let mut warehouses: Vec<Vec<Query>> = of.into_values().collect();
    if warehouses.is_empty() {
        return Err(SnowsetError::Empty { rows });
    }
    let (all, mut draw) = (warehouses.len(), Draw::seeded(seed));
    let mut tasks = Vec::new();
    let count = (tenants.max(1) as usize).min(all);
    for tenant in 0..count {
        let chosen = warehouses.swap_remove(draw.below(warehouses.len() as u64) as usize);
        tasks.extend(chosen.iter().map(|query| task(query, tenant as u32, begin)));
    }
    let source =
        format!("the Snowset given: {count} of {all} warehouses, {rows} rows, seed {seed}");
    Ok(Demand::new(WINDOW, count as u32, tasks, source))
}

fn task(query: &Query, tenant: u32, begin: f64) -> Task {
    let length = query.ended - query.created;
    let (grow, shrink) = (length * 0.5, length * 0.05);
    Task {
        tenant,
        start: query.created - begin,
        grow,
        hold: length - grow - shrink,
        shrink,
        bytes: query.bytes,
    }
}

fn places(head: &StringRecord) -> Result<[usize; 5], SnowsetError> {
    let mut places = [0; 5];
    for (place, name) in places.iter_mut().zip(COLUMNS) {
        let found = head.iter().position(|column| column.trim() == name);
        *place = found.ok_or(SnowsetError::Column { name })?;
    }
    Ok(places)
}

/// The query of a row; `None` when the row has no start or end.
fn query(
    record: &StringRecord,
    places: [usize; 5],
    line: u64,
) -> Result<Option<Query>, SnowsetError> {
    let field = |i: usize| record.get(places[i]).unwrap_or_default().trim();
    let missing = |text: &str| text.is_empty() || text == MISSING;
    if (0..3).any(|i| missing(field(i))) {
        return Ok(None);
    }
    let wrong = |i: usize, what: &'static str| SnowsetError::Value {
        line,
        column: COLUMNS[i],
        value: field(i).to_owned(),
        what,
    };
    let whole = |i: usize| field(i).parse::<i64>().map_err(|_| wrong(i, "whole number"));
    let time = |i: usize| seconds(field(i)).ok_or_else(|| wrong(i, "time"));
    let bytes = |i: usize| if missing(field(i)) { Ok(0) } else { whole(i) };
    Ok(Some(Query {
        warehouse: whole(0)? as u64,
        created: time(1)?,
        ended: time(2)?,
        bytes: (bytes(3)?.max(0) + bytes(4)?.max(0)) as f64,
    }))
}

/// Seconds since 1970 of `2018-02-21 13:26:25.135000+00:00`. The fraction and the zone, which is always UTC
/// in the trace, may be missing.
fn seconds(text: &str) -> Option<f64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let time = time.trim_end_matches('Z');
    let time = time.strip_suffix("+00:00").unwrap_or(time);
    let mut date = date.split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.split(':');
    let hour: f64 = time.next()?.parse().ok()?;
    let minute: f64 = time.next()?.parse().ok()?;
    let second: f64 = time.next()?.parse().ok()?;
    if date.next().is_some() || time.next().is_some() {
        return None;
    }
    let real = (1..=12).contains(&month) && (1..=31).contains(&day);
    let real = real && (0.0..24.0).contains(&hour) && (0.0..60.0).contains(&minute);
    let real = real && (0.0..61.0).contains(&second);
    real.then(|| days(year, month, day) as f64 * 86_400.0 + hour * 3600.0 + minute * 60.0 + second)
}

/// Days from 1970-01-01. Years begin in March, so that a leap day is the last day of a year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A few invented queries with the real header.
    const SAMPLE: &str = include_str!("../tests/snowset-sample.csv");

    #[test]
    fn the_sample_is_read_by_the_names_of_its_columns() {
        let demand = snowset(SAMPLE.as_bytes(), 1, 100).unwrap();
        assert_eq!(
            demand.tenants, 2,
            "the third warehouse ran after the hour, the fourth spilled nothing"
        );
        assert_eq!(demand.tasks.len(), 5);
        let peak = demand.profile().peak;
        assert!((1e9..4e9).contains(&peak), "{peak}");
        assert!(demand.tasks.iter().all(|t| t.start >= 0.0 && t.end() <= 3600.1));
        assert!(demand.source.contains("2 of 2 warehouses, 9 rows"), "{}", demand.source);
        let one = snowset(SAMPLE.as_bytes(), 1, 1).unwrap();
        assert_eq!(one.tenants, 1);
    }

    #[test]
    fn times_are_read_as_the_trace_has_them() {
        assert_eq!(seconds("1970-01-02 00:00:01"), Some(86_401.0));
        assert_eq!(seconds("2018-02-21 13:26:25.500000+00:00"), Some(1_519_219_585.5));
        assert_eq!(seconds("2000-02-29T00:00:00Z"), Some(951_782_400.0));
        for wrong in ["", "2018-02-21", "2018-13-01 00:00:00", "2018-02-21 25:00:00", "x y"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let said = |text: &str| snowset(text.as_bytes(), 1, 1).unwrap_err().to_string();
        assert!(said("queryId,warehouseId\n1,2\n").contains("no column createdTime"));
        let head = COLUMNS.join(",");
        assert!(said(&format!("{head}\n")).contains("0 rows"));
        let text = said(&format!("{head}\n1,yesterday,2018-02-21 00:00:00,1,1\n"));
        assert!(text.contains("line 2") && text.contains("'yesterday'"), "{text}");
        let text = said(&format!("{head}\n1,2018-02-21 00:00:00,2018-02-21 00:00:09,many,1\n"));
        assert!(text.contains("intDataWriteBytesLocalSSD is 'many'"), "{text}");
    }
}
