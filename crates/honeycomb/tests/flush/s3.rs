//! The same with a real S3 server, versitygw, where it is there.

use super::{all_comes_back, all_free, flushed_to, flushing, large_blocks_come_back, look};
use crate::common::{eventually, file};
use honeycomb_tiers::{Access, FlushError, FlushRoot, Flushed, Place};
use honeycomb_types::PrefixId;
use honeycomb_weather::Gateway;

/// A part of the gateway's bucket.
fn bucket(gateway: &Gateway, path: &str) -> FlushRoot {
    let access = Gateway::variables(gateway.address())
        .iter()
        .fold(Access::none(), |access, (name, value)| access.with(name, value));
    let place = Place::parse(&format!("s3://{}/{path}", Gateway::BUCKET)).unwrap();
    FlushRoot { place, access }
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
    assert!(matches!(flushed.check(), Err(FlushError::Read { .. })));
}
