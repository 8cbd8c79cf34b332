//! The same with a real S3 server, versitygw, where it is there.

use super::{all_comes_back, all_free, flushed_to, flushing, large_blocks_come_back, look};
use honeycomb_e2e::{Cluster, eventually, file, noise};
use honeycomb_faultstore::{Faults, Gateway, Kind, Outage, Proxy, Rule, What};
use honeycomb_tiers::{Access, FlushError, FlushRoot, Flushed, Place};
use honeycomb_types::PrefixId;
use honeycomb_wire::messages::PrefixOptions;
use std::net::SocketAddr;
use std::time::Duration;

/// A part of the gateway's bucket.
pub fn bucket(gateway: &Gateway, path: &str) -> FlushRoot {
    behind(gateway.address(), path)
}

/// The same, by way of what listens there.
pub fn behind(address: SocketAddr, path: &str) -> FlushRoot {
    let access = Gateway::variables(address)
        .iter()
        .fold(Access::none(), |access, (name, value)| access.with(name, value));
    let place = Place::parse(&format!("s3://{}/{path}", Gateway::BUCKET)).unwrap();
    FlushRoot { place, access }
}

/// Servers that flush through these faults, and wait for no answer longer than a second.
pub fn impatient(gateway: &Gateway, faults: Faults) -> (Proxy, Cluster) {
    let proxy = Proxy::start(gateway.address(), faults, 7).unwrap();
    let mut root = behind(proxy.address(), "x");
    root.access = root.access.with("AWS_TIMEOUT", "1 second");
    (proxy, flushing(root, 2))
}

#[test]
fn a_file_a_queue_and_a_kv_of_many_blocks_are_in_the_bucket_as_they_were() {
    let Some(gateway) = Gateway::start() else { return };
    all_comes_back(&bucket(&gateway, "a/b"), || gateway.objects("a/b/my=20job/out/t"));
    let all = gateway.objects("");
    assert!(all.iter().all(|name| name.starts_with("a/b/my=20job/out/t/")), "{all:?}");
}

#[test]
fn blocks_that_are_larger_than_an_object_are_in_several() {
    let Some(gateway) = Gateway::start() else { return };
    large_blocks_come_back(&bucket(&gateway, ""));
}

#[test]
fn a_later_flush_takes_the_place_of_an_earlier_one() {
    let Some(gateway) = Gateway::start() else { return };
    let root = bucket(&gateway, "x");
    let cluster = flushing(root.clone(), 1);
    let (client, job) = cluster.job("job");
    for round in [b"first", b"later"] {
        flushed_to(&client, &job, "t", "out", 300);
        file(&client, &job, "t").append(round).unwrap();
        eventually("the flush", || look(&client, &job, "t").flush == 3);
        let flushed = Flushed::at(root.place.join("job/out"), &root.access).unwrap();
        assert_eq!(flushed.file("").unwrap(), round);
        assert_eq!(gateway.objects("x").len(), 2, "a part and the manifest");
    }
}

#[test]
fn a_store_that_is_away_keeps_the_data_in_memory_until_it_is_back() {
    let Some(mut gateway) = Gateway::start() else { return };
    let root = bucket(&gateway, "x");
    let cluster = flushing(root.clone(), 1);
    let watcher = cluster.client(cluster.controller.token(), PrefixId(0));
    let (client, job) = cluster.job("job");
    flushed_to(&client, &job, "t", "out", 300);
    gateway.stop();
    file(&client, &job, "t").append(b"precious").unwrap();
    eventually("a failure", || look(&client, &job, "t").flush == 2);
    let told = watcher.status().unwrap().flush_error;
    assert!(told.contains("s3://lake/x/job/out/"), "{told}");
    assert!(told.contains("onnect"), "{told}");
    assert!(!told.contains("in a test"), "no secret is told: {told}");
    assert_eq!(watcher.status().unwrap().quarantined, 1);
    gateway.restart();
    eventually("the flush", || look(&client, &job, "t").flush == 3);
    let flushed = Flushed::at(root.place.join("job/out"), &root.access).unwrap();
    assert_eq!(flushed.file("").unwrap(), b"precious");
    eventually("all blocks free", || all_free(&watcher));
}

#[test]
fn credentials_and_buckets_that_are_wrong_are_told_by_name() {
    let Some(gateway) = Gateway::start() else { return };
    let good = bucket(&gateway, "x");
    let access = good.access.clone().with("AWS_SECRET_ACCESS_KEY", "no");
    let forged = FlushRoot { place: good.place.clone(), access };
    let cluster = flushing(forged.clone(), 1);
    let (client, job) = cluster.job("job");
    flushed_to(&client, &job, "t", "out", 300);
    file(&client, &job, "t").append(b"precious").unwrap();
    eventually("a failure", || look(&client, &job, "t").flush == 2);
    let told = look(&client, &job, "t").flush_message;
    assert!(told.contains("SignatureDoesNotMatch"), "{told}");

    let none = Flushed::at(good.place.join("job/out"), &good.access);
    assert!(matches!(none, Err(FlushError::NoManifest { .. })), "{none:?}");
    let forged = Flushed::at(forged.place.join("job/out"), &forged.access);
    assert!(matches!(forged, Err(FlushError::Read { .. })), "not knowing is not: none");
}

// INV-10.
#[test]
fn a_part_that_is_damaged_or_gone_is_seen() {
    let Some(gateway) = Gateway::start() else { return };
    let root = bucket(&gateway, "");
    let cluster = flushing(root.clone(), 1);
    let (client, job) = cluster.job("job");
    flushed_to(&client, &job, "t", "out", 300);
    file(&client, &job, "t").append(b"precious").unwrap();
    eventually("the flush", || look(&client, &job, "t").flush == 3);
    let flushed = Flushed::at(root.place.join("job/out"), &root.access).unwrap();
    flushed.check().unwrap();
    let part = gateway.directory("job/out").join(&flushed.manifest().structures[0].parts[0].name);
    std::fs::write(&part, b"Precious").unwrap();
    assert!(matches!(flushed.check(), Err(FlushError::Damaged { .. })));
    std::fs::remove_file(&part).unwrap();
    assert!(matches!(flushed.check(), Err(FlushError::Missing { .. })));
}

/// Flushes three times into one place through these faults, with requests that are given up after a second;
/// afterwards only the last is there, whole, and nothing that it does not name. Answers what befell.
fn comes_right(faults: Faults) -> Option<honeycomb_faultstore::Seen> {
    let gateway = Gateway::start()?;
    let (proxy, cluster) = impatient(&gateway, faults);
    let watcher = cluster.client(cluster.controller.token(), PrefixId(0));
    let (client, job) = cluster.job("job");
    for round in 0..3u64 {
        let options = PrefixOptions { lease_ms: 300, flush_to: "out".into(), ..Default::default() };
        // The path is free again when the earlier flush has begun; they are committed in their order.
        client.create_prefix(job.job, &format!("t{round}"), &[], options).unwrap();
        let text = noise(round, 200_000);
        file(&client, &job, &format!("t{round}")).write_all(&text).unwrap();
        eventually("the flush begins", || look(&client, &job, &format!("t{round}")).flush > 0);
    }
    eventually("all flushes", || watcher.status().unwrap().flushed == 3);
    eventually("all blocks free", || all_free(&watcher));
    let seen = proxy.seen();
    let direct = bucket(&gateway, "x");
    let flushed = Flushed::at(direct.place.join("job/out"), &direct.access).unwrap();
    flushed.check().unwrap();
    assert!(flushed.file("").unwrap() == noise(2, 200_000), "the file differs");
    let mut named: Vec<String> = flushed.manifest().parts().map(|p| p.name.clone()).collect();
    named.push("manifest.json".into());
    named.sort();
    eventually("nothing is there that is not named", || gateway.objects("x/job/out") == named);
    Some(seen)
}

const CHANGES: [Kind; 2] = [Kind::Put, Kind::Delete];

#[test]
fn bursts_of_slow_down_are_waited_out() {
    let rule = Rule::always(&Kind::ALL, What::Status(503)).chance(300_000).times(60);
    let Some(seen) = comes_right(Faults::calm().with(rule)) else { return };
    assert!(seen.faults[&What::Status(503)] > 0, "{seen:?}");
}

#[test]
fn answers_that_are_lost_after_the_effect_change_nothing() {
    let faults = Faults::calm()
        .with(Rule::always(&CHANGES, What::CloseAfterEffect).chance(300_000).times(20))
        .with(Rule::always(&[Kind::Put], What::HangAfterEffect).at("manifest").times(2));
    let Some(seen) = comes_right(faults) else { return };
    assert!(seen.faults[&What::CloseAfterEffect] > 0, "{seen:?}");
    assert!(seen.faults[&What::HangAfterEffect] == 2, "{seen:?}");
}

#[test]
fn requests_that_are_lost_before_the_effect_are_made_again() {
    let faults = Faults::calm()
        .with(Rule::always(&Kind::ALL, What::CloseBefore).chance(200_000).times(20))
        .with(Rule::always(&[Kind::Put], What::HangBefore).at("manifest").times(2));
    let Some(seen) = comes_right(faults) else { return };
    assert!(seen.faults[&What::CloseBefore] > 0, "{seen:?}");
    assert!(seen.faults[&What::HangBefore] == 2, "{seen:?}");
}

#[test]
fn a_manifest_that_arrives_late_replaces_no_later_one() {
    let late = What::Late(Duration::from_millis(2500));
    let rule = Rule::always(&[Kind::Put], late).at("manifest").times(2);
    let Some(seen) = comes_right(Faults::calm().with(rule)) else { return };
    assert!(seen.faults[&late] == 2, "{seen:?}");
}

#[test]
fn conflicts_that_the_store_only_says_are_not_believed() {
    let rule = Rule::always(&[Kind::Put], What::Status(409)).at("manifest").times(3);
    let Some(seen) = comes_right(Faults::calm().with(rule)) else { return };
    assert!(seen.faults[&What::Status(409)] == 3, "{seen:?}");
}

#[test]
fn a_slow_store_is_only_slow() {
    let Some(seen) = comes_right(Faults::s3()) else { return };
    assert!(seen.requests[&Kind::Put] >= 6, "{seen:?}");
}

#[test]
fn after_an_outage_the_backlog_is_written_without_anybody_doing_anything() {
    let Some(gateway) = Gateway::start() else { return };
    let (proxy, cluster) = impatient(&gateway, Faults::calm());
    let watcher = cluster.client(cluster.controller.token(), PrefixId(0));
    let (client, job) = cluster.job("job");
    for (round, outage) in [Outage::Reset, Outage::Silent].into_iter().enumerate() {
        proxy.change(Faults { outage: Some(outage), ..Faults::calm() });
        for i in 0..6u64 {
            let (path, to) = (format!("t{round}-{i}"), format!("out{round}-{i}"));
            flushed_to(&client, &job, &path, &to, 300);
            file(&client, &job, &path).write_all(&noise(i, 150_000)).unwrap();
        }
        eventually("failures", || watcher.status().unwrap().flush_failing >= 3);
        let kept = watcher.status().unwrap().quarantined;
        assert!(kept >= 12, "what is not written is kept: {kept}");
        assert!(proxy.seen().out > 0);
        proxy.change(Faults::calm());
        let all = (round as u64 + 1) * 6;
        eventually("the backlog is written", || watcher.status().unwrap().flushed == all);
        eventually("all blocks free", || all_free(&watcher));
        let direct = bucket(&gateway, "x");
        for i in 0..6u64 {
            let place = direct.place.join(&format!("job/out{round}-{i}"));
            let flushed = Flushed::at(place, &direct.access).unwrap();
            assert!(flushed.file("").unwrap() == noise(i, 150_000), "file {i} differs");
        }
    }
}
