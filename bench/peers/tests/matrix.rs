//! The matrix runs with the available peers and reports every row. Speed is not tested.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::process::Command;

fn compare(args: &[&str]) -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_honeycomb-compare")).args(args).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn measured(rows: &str) -> (Vec<Value>, Vec<Value>) {
    let lines = compare(&["--quick", "--json", "--rows", rows]);
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |field: &str| lines.iter().filter(|l| !l[field].is_null()).cloned().collect();
    (of("system"), of("ratio_of"))
}

/// The figures in every line of a cell, as named in issue 5.
const FIGURES: [&str; 6] =
    ["p50_us", "p99_us", "ops_per_s", "mb_per_s", "server_cpu_us_per_op", "client_cpu_us_per_op"];

fn check(cell: &Value) {
    let text = |field: &str| cell[field].as_str().unwrap_or_else(|| panic!("{field} of {cell}"));
    let known = |field: &str, among: &[&str]| assert!(among.contains(&text(field)), "{cell}");
    known("system", &["honeycomb", "redis", "memcached", "socket"]);
    known("transport", &["tcp", "unix", "map"]);
    known("client", &["rust", "python", "hiredis", "redis-py", "pymemcache", "c"]);
    for field in ["size", "clients", "pipeline", "batch"] {
        assert!(cell[field].is_u64(), "{field} of {cell}");
    }
    if cell["absent"].is_null() {
        for field in FIGURES {
            let figure = |name: String| cell[&name].as_f64().unwrap();
            let (least, middle) = (figure(format!("{field}_min")), figure(field.to_owned()));
            assert!(0.0 <= least && least <= middle, "{field} of {cell}");
            assert!(middle <= figure(format!("{field}_max")), "{field} of {cell}");
        }
        assert!(cell["server_peak_resident_bytes"].as_u64().unwrap() > 0, "{cell}");
        assert!(cell["client_peak_resident_bytes"].as_u64().unwrap() > 0, "{cell}");
        return;
    }
    // Only unavailable cells are absent: no cell that can run may fail.
    known("absent", &["NOT IN THIS BUILD", "NO PEER"]);
    assert!(!text("why").is_empty(), "{cell}");
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[test]
fn every_cell_has_its_figures_or_says_why_not() {
    let rows =
        "kv sync get,kv many get 64 B x16 p16,multi_get,queue many,queue wake,file append,servers";
    let (cells, ratios) = measured(rows);
    cells.iter().for_each(check);
    let there = |system: &str| cells.iter().any(|c| c["system"] == system && c["absent"].is_null());
    assert!(there("honeycomb") && there("socket"));
    for (system, program) in [("redis", "redis-server"), ("memcached", "memcached")] {
        assert_eq!(there(system), is_there(program), "{system}");
    }
    let limits: Vec<&str> = cells.iter().filter_map(|c| c["limit"].as_str()).collect();
    assert!(["stream", "empty", "loop"].iter().all(|limit| limits.contains(limit)), "{limits:?}");
    assert!(ratios.len() > 10);
    for ratio in &ratios {
        let verdict = ratio["verdict"].as_str().unwrap();
        let known = verdict.contains("met") || verdict.contains("missed") || verdict == "-";
        let known = known || ["MISSED", "NOT IN THIS BUILD", "NO PEER"].contains(&verdict);
        assert!(known, "{ratio}");
        assert_eq!(ratio["ratio"].is_null(), !ratio["why"].is_null(), "{ratio}");
    }
}

#[test]
fn memory_and_the_catalog_have_lines_of_their_own() {
    let (lines, ratios) = measured("memory,catalog");
    let weight = |line: &&Value| line["bench"] == "memory" && line["system"] == "honeycomb";
    let weight = lines.iter().find(weight).unwrap();
    let each = weight["resident_bytes_per_stored_byte"]["median"].as_f64().unwrap();
    assert!(each > 1.0 && each < 100.0, "{weight}");
    assert!(lines.iter().filter(|line| line["bench"] == "catalog").count() >= 8);
    assert_eq!(ratios.len(), 1 + 4);
}

#[test]
fn plots_and_tables_are_made() {
    let folder = std::env::temp_dir().join(format!("compare-plots-{}", std::process::id()));
    let out = folder.to_str().unwrap().to_owned();
    let rows = "kv sync get 64 B,kv large get";
    let text = compare(&["--quick", "--rows", rows, "--out", &out]).join("\n");
    assert!(text.contains("| honeycomb rust") && text.contains("bars met"), "{text}");
    for name in ["compare-latency.png", "compare-throughput.png"] {
        let bytes = std::fs::read(folder.join(name)).unwrap();
        assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n"));
        assert!(bytes.len() < 150_000, "{} bytes", bytes.len());
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Compares this program with itself.
fn against_itself(args: &[&str]) -> Vec<Value> {
    let own = env!("CARGO_BIN_EXE_honeycomb-compare");
    let words = [&["--quick", "--json", "--against-binary", own], args].concat();
    let lines = compare(&words);
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn builds_are_compared_in_pairs_with_intervals() {
    let rows = "kv sync get 64 B,kv many get 64 B,another prefix splits,memory,growth queue";
    let lines = against_itself(&["--pairs", "6", "--rows", rows]);
    assert!(lines[0]["against"].is_string() && lines[0]["worse_beyond"] == 1.03, "{}", lines[0]);
    let rows: Vec<&Value> = lines.iter().filter(|line| line["row"].is_string()).collect();
    assert_eq!(rows.len(), 8, "{lines:?}");
    for row in rows {
        // Such a short run has no verdict, and a build of the same revision lacks no row.
        assert_eq!((&row["verdict"], &row["pairs"]), (&"not judged".into(), &6.into()), "{row}");
        for measure in row["measures"].as_array().unwrap() {
            let of = |end: &str| measure["ratio"][end].as_f64().unwrap();
            assert!(0.0 < of("low") && of("low") <= of("median"), "{row}");
            assert!(of("median") <= of("high"), "{row}");
            assert!(measure["this"].as_f64() > Some(0.0), "{row}");
            assert!(measure["that"].as_f64() > Some(0.0), "{row}");
        }
        let names: Vec<&str> = row["measures"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|m| m["measure"].as_str())
            .collect();
        let wanted: &[&str] = match row["row"].as_str().unwrap() {
            "memory 64 B" => &["resident memory"],
            "growth queue" => &["p50", "p99"],
            _ => &["p50", "MB/s", "server CPU/op", "client CPU/op"],
        };
        assert!(wanted.iter().all(|name| names.contains(name)), "{row}");
    }
}

/// A program other than `honeycomb-compare` supports no row.
#[test]
fn row_that_the_other_build_lacks_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_honeycomb-compare"));
    command.args([
        "--quick",
        "--against-binary",
        "/bin/false",
        "--rows",
        "kv sync get 64 B: rust both",
    ]);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("NOT IN THAT REVISION"), "{text}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("NOT IN THAT REVISION: kv sync get 64 B: rust both poll"), "{errors}");
    // Without a compared row there is no verdict.
    assert!(!output.status.success());
}

#[test]
fn comparison_that_cannot_decide_is_refused() {
    let refused = |args: &[&str]| {
        let own = env!("CARGO_BIN_EXE_honeycomb-compare");
        let output = Command::new(own).args(args).output().unwrap();
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let own = env!("CARGO_BIN_EXE_honeycomb-compare");
    let few = refused(&["--against-binary", own, "--pairs", "14", "--rows", "kv sync"]);
    assert!(few.contains("--pairs must be 15 or more"), "{few}");
    assert!(refused(&["--pairs", "15"]).contains("--against"));
    assert!(refused(&["--against", "HEAD", "--rounds", "3"]).contains("cannot be used with"));
    let none = refused(&["--against-binary", own, "--rows", "no such row"]);
    assert!(none.contains("--list"), "{none}");
    let gone = refused(&["--quick", "--against", "no-such-revision", "--rows", "kv sync"]);
    assert!(gone.contains("'no-such-revision' is not a revision of"), "{gone}");
}

#[test]
fn rows_of_a_comparison_are_listed_and_nothing_is_built() {
    let rows = compare(&["--against", "no-such-revision", "--list"]);
    for name in ["kv sync get 64 B: rust both poll", "repartition 1 KiB", "flush", "elasticity kv"]
    {
        assert!(rows.iter().any(|row| row == name), "{name}");
    }
    assert!(rows.iter().all(|row| !row.contains("redis") && !row.contains("memcached")));
}

#[test]
fn a_name_that_no_group_has_is_refused() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_honeycomb-compare"));
    let output = command.args(["--rows", "no such group"]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("--list"));
}
