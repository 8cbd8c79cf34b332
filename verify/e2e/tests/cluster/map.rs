//! Sealed files mapped by clients on the same machine: their contents, also after the end of the file, its
//! lease or the client's rights.

use honeycomb_client::{Client, ClientOptions, File, FileView, JobTicket};
use honeycomb_e2e::{Cluster, KIB, LEASE_MS, Scratch, eventually, file, noise, prefix, status};
use honeycomb_types::Verbs;
use honeycomb_wire::Status;

const BLOCK: u64 = 256 * KIB;
/// An append that leaves no rest in a block, and ends with a page.
const APPEND: usize = 32 * 1024;

fn cluster(memory: u64) -> (Scratch, Cluster) {
    let scratch = Scratch::new();
    let cluster = Cluster::near(1, memory, BLOCK, &scratch.0);
    (scratch, cluster)
}

/// A sealed file of so many bytes, in appends of this many.
fn sealed(
    client: &Client,
    job: &JobTicket,
    address: &str,
    length: usize,
    append: usize,
) -> (File, Vec<u8>) {
    let made = file(client, job, address);
    let bytes = noise(length as u64, length);
    for piece in bytes.chunks(append) {
        made.append(piece).unwrap();
    }
    made.seal().unwrap();
    (made, bytes)
}

fn is(view: &FileView, bytes: &[u8]) -> bool {
    view.len() == bytes.len()
        && view.segments().concat() == bytes
        && view.contiguous().is_none_or(|all| all == bytes)
}

#[test]
fn a_sealed_file_is_read_where_it_lies() {
    let (_scratch, cluster) = cluster(16 << 20);
    let (client, job) = cluster.job("map");
    let (one, bytes) = sealed(&client, &job, ":one", 100_000, 10_007);
    for _ in 0..3 {
        let view = one.map().unwrap();
        assert!(view.shared(), "{:?}", view.reason());
        assert!(is(&view, &bytes) && view.contiguous().is_some());
    }
    // A read from the copy answers the same bytes.
    let mut got = vec![0; 5000];
    assert_eq!(one.read_into(97_000, &mut got).unwrap(), 3000);
    assert!(got[..3000] == bytes[97_000..]);
    // Several blocks: one run of bytes when they end with pages, a run for each otherwise.
    let (many, bytes) = sealed(&client, &job, ":many", 1_500_000, APPEND);
    let view = many.map().unwrap();
    assert!(view.shared() && is(&view, &bytes) && view.contiguous().is_some());
    assert!(view.segments().len() > 5);
    let (odd, bytes) = sealed(&client, &job, ":odd", 1_500_000, 10_007);
    let view = odd.map().unwrap();
    assert!(view.shared() && is(&view, &bytes) && view.contiguous().is_none());
    let (none, _) = sealed(&client, &job, ":none", 0, 1);
    let view = none.map().unwrap();
    assert!(view.shared() && view.is_empty() && view.contiguous() == Some(&[][..]));
}

#[test]
fn a_file_that_may_grow_is_not_mapped() {
    let (_scratch, cluster) = cluster(16 << 20);
    let (client, job) = cluster.job("open");
    let open = file(&client, &job, ":open");
    open.write_all(&noise(1, 600_000)).unwrap();
    assert_eq!(status(open.map()), Status::NotSealed);
}

#[test]
fn who_is_elsewhere_reads_the_same_bytes() {
    let (_scratch, cluster) = cluster(16 << 20);
    let (client, job) = cluster.job("far");
    let (_, bytes) = sealed(&client, &job, ":f", 700_000, 10_007);
    let mut options =
        ClientOptions::new(cluster.controller.address().to_string(), job.token.clone());
    options.unix = false;
    let far = Client::new(options);
    let view = far.open_file(job.job, ":f").unwrap().map().unwrap();
    assert!(!view.shared() && is(&view, &bytes) && view.contiguous().is_some());
    assert_eq!(view.reason().map(|e| e.status), Some(Status::NotShared));
}

#[test]
fn what_is_mapped_outlives_its_lease_and_shows_nobody_elses_bytes() {
    let (_scratch, cluster) = cluster(4 << 20);
    let (client, job) = cluster.job("ends");
    prefix(&client, &job, "short", LEASE_MS);
    let (mapped, bytes) = sealed(&client, &job, "short:f", 1_000_000, APPEND);
    let (kept, _) = sealed(&client, &job, "short:g", 100_000, APPEND);
    let view = mapped.map().unwrap();
    assert!(view.shared() && is(&view, &bytes));
    client.remove_prefix(job.job, "short").unwrap();
    // New maps are refused by name, of the file that was mapped before too.
    for gone in [&mapped, &kept] {
        assert_eq!(status(gone.map()), Status::Removed);
    }
    // All blocks go to others, who fill them.
    let (other, theirs) = cluster.job("others");
    let full = file(&other, &theirs, ":f");
    while full.append(&[0xEE; APPEND]).is_ok() {}
    assert!(full.size().unwrap() > 3_000_000);
    assert!(is(&view, &bytes), "the bytes have changed");
    drop(full);
}

#[test]
fn a_lease_that_ends_ends_new_maps_only() {
    let (_scratch, cluster) = cluster(4 << 20);
    let (client, job) = cluster.job("expires");
    prefix(&client, &job, "brief", 300);
    let (mapped, bytes) = sealed(&client, &job, "brief:f", 300_000, APPEND);
    let view = mapped.map().unwrap();
    eventually("the lease ends", || mapped.map().is_err());
    assert_eq!(status(mapped.map()), Status::LeaseExpired);
    assert!(view.shared() && is(&view, &bytes));
}

#[test]
fn rights_that_are_taken_back_end_new_maps_only() {
    let (_scratch, cluster) = cluster(4 << 20);
    let (client, job) = cluster.job("revoked");
    prefix(&client, &job, "p", LEASE_MS);
    let (_, bytes) = sealed(&client, &job, "p:f", 300_000, APPEND);
    let task = prefix(&client, &job, "reader", LEASE_MS);
    let token = honeycomb_wire::attenuate(&job.token, honeycomb_wire::token::Caveat::Task(task));
    let reader = cluster.client(&token.unwrap(), task);
    let mapped = reader.open_file(job.job, "p:f").unwrap();
    let view = mapped.map().unwrap();
    client.set_permissions(job.job, "p", Verbs::ALL, Verbs::NONE).unwrap();
    eventually("the rights are gone", || mapped.map().is_err());
    assert_eq!(status(mapped.map()), Status::PermissionDenied);
    assert!(view.shared() && is(&view, &bytes));
}

#[test]
fn what_is_mapped_of_freed_blocks_is_bounded() {
    // Two shards of 32 blocks: 5 % of one is less than two blocks.
    let (_scratch, cluster) = cluster(16 << 20);
    let (client, job) = cluster.job("hoards");
    let mut views = Vec::new();
    let refused = (0..40).find_map(|n| {
        prefix(&client, &job, &format!("p{n}"), LEASE_MS);
        let (mapped, bytes) = sealed(&client, &job, &format!("p{n}:f"), 400_000, APPEND);
        let view = mapped.map().unwrap();
        assert!(is(&view, &bytes));
        client.remove_prefix(job.job, &format!("p{n}")).unwrap();
        let reason = view.reason().cloned();
        views.push(view);
        reason
    });
    let refused = refused.expect("the bound is reached").message;
    assert!(refused.contains("still mapped") && refused.contains("this job's"), "{refused}");
    assert!((2..=8).contains(&views.len()), "{} views", views.len());
    drop(views);
    let (mapped, _) = sealed(&client, &job, ":again", 400_000, APPEND);
    assert!(mapped.map().unwrap().shared(), "what was owed is back");
}
