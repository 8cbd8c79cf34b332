//! The benchmarks run and say what they should; how fast is not a test's business.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::process::Command;

fn bench(args: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_honeycomb"))
        .arg("bench")
        .args(args)
        .args(["--quick", "--json", "--ops", "200", "--rounds", "1"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "bench {args:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn figures(result: &Value) {
    let median = |name: &str| result["figures"][name]["median"].as_f64().unwrap();
    assert!(median("ops_per_s") > 0.0);
    assert!(result["figures"]["latency_us"]["p99.9"]["median"].as_f64().unwrap() > 0.0);
}

#[test]
fn kv_measures_every_case_and_compares_when_there_is_a_peer() {
    let report = bench(&["kv", "--sizes", "64,64KiB"]);
    let results = report["results"].as_array().unwrap();
    let systems = if report["peer"].is_null() { 1 } else { 2 };
    // Two ways of waiting, two sizes, put and get.
    assert_eq!(results.len(), 8 * systems);
    results.iter().for_each(figures);
    assert_eq!(report["ratios"].as_array().unwrap().len(), 8 * (systems - 1));
}

#[test]
fn kv_runs_with_several_clients_and_without_a_peer() {
    let args = ["kv", "--sizes", "100", "--threads", "3", "--peer", "none", "--shards", "2"];
    let report = bench(&args);
    assert!(report["peer"].is_null());
    assert_eq!(report["results"].as_array().unwrap().len(), 4);
}

#[test]
fn queue_measures_wake_ups_and_items_and_compares_when_there_is_a_peer() {
    let report = bench(&["queue", "--sizes", "64,64KiB"]);
    let results = report["results"].as_array().unwrap();
    let systems = if report["peer"].is_null() { 1 } else { 2 };
    // Two ways of waiting: two wake-ups, and put and get of two sizes, one by one and in batches.
    assert_eq!(results.len(), 2 * (2 + 2 * 4) * systems);
    results.iter().for_each(figures);
    assert_eq!(report["ratios"].as_array().unwrap().len(), 20 * (systems - 1));
}

#[test]
fn file_measures_appends_reads_and_streams() {
    let report = bench(&["file", "--sizes", "64,64KiB", "--stream", "4MiB"]);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 2 * (2 * 2 + 2));
    results.iter().for_each(figures);
}

#[test]
fn controller_measures_rates_latencies_and_memory() {
    let report = bench(&["controller", "--prefixes", "20000", "--blocks", "100000"]);
    assert_eq!(report["pipelined"].as_array().unwrap().len(), 5);
    report["synchronous"].as_array().unwrap().iter().for_each(figures);
    let bytes = |what: &str| report["memory"][what]["counted_bytes_each"].as_f64().unwrap();
    // What the catalog counts does not depend on the machine. The aim is 256 and 24 bytes; a table
    // that has just doubled is half empty, so a few prefixes may cost a little more each.
    assert!(bytes("prefix") > 0.0 && bytes("prefix") <= 300.0, "{report}");
    assert!(bytes("free_block") > 0.0 && bytes("free_block") <= 24.0, "{report}");
}

#[test]
fn recovery_is_measured_from_the_start_of_the_process() {
    let output = Command::new(env!("CARGO_BIN_EXE_honeycomb"))
        .args(["bench", "recovery", "--prefixes", "500", "--rounds", "2", "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let row: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((row["prefixes"].as_u64(), row["rounds"].as_u64()), (Some(500), Some(2)));
    assert!(row["recovery_ms"].as_f64().unwrap() > 0.0);
    assert!(row["data_bytes"].as_u64().unwrap() > 500 * 40);
}
