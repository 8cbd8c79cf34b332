//! `jobs`, `tree`, `ls`, `du`, `lease`, `status`: commands that only read.

use super::home::Home;
use honeycomb_e2e::LEASE_MS;
use serde_json::{Value, json};

fn filled() -> Home {
    let home = Home::with_cluster();
    for address in ["b/z:kv", "b/z:a", "b", "a:kv"] {
        home.ok(&["put", address, "k", "v"]);
    }
    home.feed(&["append", "b/z:log", "--seal"], b"bytes");
    home
}

fn addresses(listed: &Value) -> Vec<&str> {
    listed["entries"].as_array().unwrap().iter().map(|e| e["address"].as_str().unwrap()).collect()
}

#[test]
fn ls_prints_addresses_that_other_commands_take_sorted_by_name() {
    let home = filled();
    assert_eq!(home.ok(&["ls"]), "a/\nb/\n");
    assert_eq!(home.ok(&["ls", "/"]), "a/\nb/\n");
    assert_eq!(home.ok(&["ls", "b"]), "b\nb/z/\n");
    assert_eq!(home.ok(&["ls", "b/z/"]), "b/z:a\nb/z:kv\nb/z:log\n");
    assert_eq!(home.ok(&["ls", "b/z:kv"]), "b/z:kv\n");
    let all = "a/\na:kv\nb/\nb\nb/z/\nb/z:a\nb/z:kv\nb/z:log\n";
    assert_eq!(home.ok(&["ls", "-R"]), all);
    let listed = home.json(&["ls", "-R"]);
    assert_eq!(addresses(&listed).join("\n") + "\n", all);
    let log = &listed["entries"][7];
    for (name, value) in [
        ("kind", json!("file")),
        ("blocks", json!(1)),
        ("bytes_allocated", json!(65536)),
        ("sealed", json!(true)),
        ("state", json!("live")),
        ("lease_ms", json!(86_400_000)),
    ] {
        assert_eq!(log[name], value, "{name} of {log}");
    }
    assert!(log["remaining_ms"].as_i64().unwrap() > 80_000_000, "{log}");
    let long = home.ok(&["ls", "-l", "b/z"]);
    assert_eq!(long.lines().count(), 4, "{long}");
    assert!(
        long.contains("24.0 h") && long.contains("64.0 KiB") && long.contains("(sealed)"),
        "{long}"
    );
    for absent in ["nix", "b/nix", "b:nix", "b/z:nix"] {
        assert_eq!(home.run(&["ls", absent]).code, 3, "{absent}");
    }
    assert_eq!(home.run(&["ls", "a//b"]).code, 2);
    assert_eq!(home.run(&["ls", "--job", "nix"]).code, 3);
    home.ok(&["rm", "--prefix", "a"]);
    let gone = home.run(&["ls", "a:kv"]);
    assert!(gone.code == 3, "{} {}", gone.code, gone.err);
}

#[test]
fn du_sums_up_sorts_by_size_and_counts_everything_once() {
    let home = filled();
    let sums = home.json(&["du"]);
    assert_eq!((&sums["address"], &sums["blocks"]), (&json!("/"), &json!(5)));
    assert_eq!(sums["bytes_allocated"], 5 * 65536);
    let below: Vec<(&str, u64)> = sums["below"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| (s["address"].as_str().unwrap(), s["blocks"].as_u64().unwrap()))
        .collect();
    assert_eq!(below, [("b/", 4), ("a/", 1)]);
    let text = home.ok(&["du", "b", "--bytes"]);
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["USED", "BLOCKS", "ALLOCATED", "PREFIX"]);
    assert_eq!(lines[1][1..], ["3", "196608", "b/z/"]);
    assert_eq!(lines[2][1..], ["4", "262144", "b/"]);
    assert!(home.ok(&["du", "b"]).contains("256.0 KiB"));
    assert_eq!(home.json(&["du", "--depth", "0"])["below"], json!([]));
    assert_eq!(home.json(&["du", "--depth", "9"])["below"].as_array().unwrap().len(), 3);
    assert_eq!(home.run(&["du", "nix"]).code, 3);
    assert_eq!(home.run(&["du", "b:kv"]).code, 2);
}

#[test]
fn leases_are_shown_without_renewing_and_renewed_one_by_one() {
    let home = filled();
    let lease = home.json(&["lease", "b/z"]);
    assert_eq!((&lease["lease_ms"], &lease["pinned"]), (&json!(86_400_000), &json!(false)));
    // Without renewals, the remaining lease decreases with every call.
    let left = |value: &Value| value["remaining_ms"].as_i64().unwrap();
    let mut last = left(&lease);
    for _ in 0..3 {
        let now = left(&home.json(&["lease", "b/z"]));
        assert!(now <= last, "{now} {last}");
        last = now;
    }
    let renewed = home.json(&["lease", "renew", "b/z"]);
    assert_eq!(renewed["leases"], json!([{ "address": "b/z", "lease_ms": 86_400_000 }]));
    assert!(home.ok(&["lease", "b/z"]).starts_with("b/z  lease 24.0 h, "));
    let partly = home.run(&["lease", "renew", "b", "nix", "/", "--json"]);
    assert_eq!((partly.code, partly.error()["status"].as_str()), (3, Some("NotFound")));
    let leases = partly.json()["leases"].clone();
    assert_eq!(leases[0]["lease_ms"], 86_400_000);
    assert_eq!((&leases[1]["address"], &leases[1]["status"]), (&json!("nix"), &json!("NotFound")));
    assert_eq!(leases[2]["address"], "/");
    let text = home.run(&["lease", "renew", "nix"]);
    assert_eq!((text.code, text.err.lines().count()), (3, 1), "{}", text.err);
    assert_eq!(home.run(&["lease", "nix"]).code, 3);
    assert_eq!(home.run(&["lease"]).code, 2);
    assert_eq!(home.run(&["lease", "b:kv"]).code, 2);
}

#[test]
fn a_lease_that_has_ended_is_told_by_its_own_exit_code() {
    use honeycomb_client::{Client, ClientOptions};
    use honeycomb_wire::messages::PrefixOptions;
    let home = Home::with_cluster();
    let (address, token) = home.place();
    let bytes = (0..token.len()).step_by(2).map(|i| u8::from_str_radix(&token[i..i + 2], 16));
    let cluster = Client::new(ClientOptions::new(
        address.clone(),
        bytes.map(Result::unwrap).collect::<Vec<_>>(),
    ));
    let ticket = cluster.register_job("short", LEASE_MS, 0).unwrap();
    let client = Client::new(ClientOptions::new(address, ticket.token.clone()));
    let options = PrefixOptions { lease_ms: 200, ..PrefixOptions::default() };
    client.create_prefix(ticket.job, "brief", &[], options).unwrap();
    client.create_kv(ticket.job, "brief:kv", 1, false).unwrap();
    let clock = honeycomb_env::Clock::start();
    let look = |args: &[&str]| home.run(&[args, &["--job", "short", "--json"]].concat());
    while look(&["lease", "brief"]).code == 0 {
        assert!(clock.now().as_millis() < 20_000, "it never ended");
    }
    let ended = look(&["lease", "brief"]);
    assert_eq!((ended.code, ended.error()["status"].as_str()), (6, Some("LeaseExpired")));
    assert_eq!(look(&["lease", "renew", "brief"]).code, 6);
    assert_eq!(look(&["get", "brief:kv", "k"]).code, 6);
    assert_eq!(look(&["ls", "brief:kv"]).code, 6);
    assert_eq!(look(&["ls"]).json()["entries"][0]["state"], "expired");
}

#[test]
fn jobs_and_status_list_the_same_jobs() {
    let home = filled();
    assert_eq!(home.json(&["put", "x:kv", "k", "v", "--job", "other"])["replaced"], false);
    let jobs = home.json(&["jobs"])["jobs"].clone();
    let names: Vec<&str> =
        jobs.as_array().unwrap().iter().map(|j| j["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["cli", "other"]);
    assert_eq!((&jobs[0]["blocks"], &jobs[0]["structures"]), (&json!(5), &json!(5)));
    let status = home.json(&["status"]);
    assert_eq!(status["job_list"].as_array().unwrap().len(), 2);
    assert_eq!(status["bytes_allocated"], 6 * 65536);
    let text = home.ok(&["jobs"]);
    assert!(text.starts_with("JOB ") && text.contains("\nother "), "{text}");
    // A job without hints has no expected use.
    assert_eq!((&jobs[0]["tasks"], &jobs[0]["expected_bytes"]), (&json!(0), &json!(0)));
    assert_eq!((&jobs[0]["tenant"], &jobs[0]["quota_blocks"]), (&json!(null), &json!(0)));
    // A job of a tenant is named with it.
    home.ok(&["put", "x:kv", "k", "v", "--job", "acme/etl"]);
    assert_eq!(home.json(&["jobs"])["jobs"][2]["tenant"], "acme");
    assert_eq!(home.ok(&["get", "x:kv", "k", "--job", "acme/etl"]).trim(), "v");
}

#[test]
fn what_jobs_have_used_is_told_in_money_of_any_price() {
    let home = Home::with_cluster();
    home.ok(&["put", "x:kv", "k", "v", "--job", "acme/etl"]);
    let cost = |args: &[&str]| home.json(&[&["cost"], args].concat());
    let first = cost(&["acme/etl", "--prices", "memory=3600000"]);
    let job = &first["jobs"][0];
    let held = job["gb_seconds"]["memory"].as_f64().unwrap();
    assert!(held > 0.0, "{first}");
    assert!((first["money"].as_f64().unwrap() - 1000.0 * held).abs() < 1e-6 * held * 1000.0);
    assert!(job["money_at_peak"].as_f64() >= job["money"].as_f64(), "{first}");
    assert_eq!((&job["peak_bytes"], &job["ended"]), (&json!(65536), &json!(false)));
    let later = cost(&["--tenant", "acme"])["jobs"][0]["gb_seconds"]["memory"].as_f64();
    assert!(later.unwrap() > held);
    assert_eq!(cost(&["--tenant", "nobody"])["jobs"], json!([]));
    let text = home.with("HONEYCOMB_PRICES", "memory=1", &["cost"]).out;
    assert!(text.starts_with("JOB ") && text.contains("acme/etl"), "{text}");
    assert_eq!(home.run(&["cost", "nix"]).code, 3);
    assert_eq!(home.run(&["cost", "--prices", "silver=1"]).code, 2);
}

#[test]
fn quotas_are_set_told_and_kept() {
    let home = Home::with_cluster();
    home.ok(&["prefix", "runs", "--max-blocks", "3", "--job", "acme/sort"]);
    let of = |args: &[&str]| home.json(&[&["quota"], args].concat());
    let told = |max: u64, held: u64| {
        json!({
            "max_blocks": max, "held_blocks": held, "memory_blocks": held, "soft_blocks": 0,
            "weight": 1,
        })
    };
    let in_job = |args: &[&'static str]| [args, &["--job", "acme/sort"]].concat();
    assert_eq!(of(&in_job(&["runs"])), told(3, 0));
    home.ok(&in_job(&["put", "runs/one:kv", "k", "v"]));
    assert_eq!(of(&in_job(&["runs"])), told(3, 1));
    assert_eq!(of(&in_job(&["runs", "--blocks", "1"])), told(1, 1));
    let refused = home.run(&in_job(&["put", "runs/two:kv", "k", "v", "--json"]));
    assert_eq!((refused.code, refused.error()["status"].as_str()), (7, Some("QuotaExceeded")));
    assert!(refused.err.contains("prefix 'runs' with its descendants holds 1 of its quota of 1"));
    assert_eq!(of(&in_job(&["runs", "--blocks", "0"])), told(0, 0));
    assert_eq!(of(&in_job(&["--blocks", "9"])), told(9, 1));
    assert_eq!(of(&["--tenant", "acme", "--blocks", "1"]), told(1, 1));
    let refused = home.run(&in_job(&["put", "runs/two:kv", "k", "v"]));
    assert_eq!(refused.code, 7);
    assert!(refused.err.contains("the tenant 'acme' holds 1 of its quota of 1"), "{}", refused.err);
    let text = home.ok(&["quota", "--tenant", "acme"]);
    assert_eq!(text.trim(), "tenant acme: 1 of 1 blocks in use");
    assert_eq!(home.run(&["quota", "nix"]).code, 3);
    assert_eq!(home.run(&["quota", "runs", "--tenant", "acme"]).code, 2);
    assert_eq!(home.json(&["jobs"])["jobs"][0]["quota_blocks"], 9);
}

#[test]
fn a_tree_is_sorted_by_name() {
    let home = filled();
    let text = home.ok(&["tree"]);
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what} in {text}"));
    assert!(at("├─ a ") < at("└─ b "));
    let z = text.find("└─ z").unwrap();
    let order: Vec<usize> =
        [": a  kv", ": kv  kv", ": log  file"].map(|s| z + text[z..].find(s).unwrap()).to_vec();
    assert!(order.is_sorted(), "{text}");
    assert_eq!(home.json(&["tree", "cli"])["job"], "cli");
    assert_eq!(home.run(&["tree", "nix"]).code, 3);
    assert_eq!(home.with("HONEYCOMB_JOB", "nix", &["tree"]).code, 3);
}

#[test]
fn where_the_next_blocks_of_a_job_go_is_told_by_server_and_by_tier() {
    let home = Home::new();
    std::fs::create_dir(home.dir.join("disk")).unwrap();
    let disk = format!("ssd:{}=8MiB", home.dir.join("disk").display());
    let home = home.started(&["--disks", &disk]);
    let (address, token) = home.place();
    let token = honeycomb::unhex(&token).unwrap();
    let options = honeycomb_client::ClientOptions::new(&*address, token);
    let hints = honeycomb_client::JobOptions {
        latency_sensitive: false,
        peak_throughput: 1_000_000_000,
        lease_ms: LEASE_MS,
        ..honeycomb_client::JobOptions::default()
    };
    honeycomb_client::Client::new(options).register_job_with("patient", &hints).unwrap();
    let told = home.json(&["jobs", "patient"]);
    let tiers = &told["tier_weights"];
    assert_eq!((&tiers[0]["tier"], &tiers[0]["weight_permille"]), (&json!("memory"), &json!(500)));
    assert_eq!((&tiers[1]["tier"], &tiers[1]["weight_permille"]), (&json!("ssd"), &json!(500)));
    assert_eq!((&tiers[1]["free"], &tiers[1]["bytes_per_s"]), (&json!(128), &json!(500_000_000)));
    assert_eq!(told["weights"][0]["weight_permille"], 1000);
    let text = home.ok(&["jobs", "patient"]);
    assert!(
        text.contains("\ntier   ssd     50.0 % of its next blocks: 128 blocks available"),
        "{text}"
    );
    home.ok(&["put", "x:kv", "k", "v"]);
    assert_eq!(home.json(&["jobs", "cli"])["tier_weights"], json!([]));
}
