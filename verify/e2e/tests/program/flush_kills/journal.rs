//! Servers and controllers are killed while a prefix acknowledges changes only after they are flushed: a load
//! restores all acknowledged changes.

use super::{Cluster, Draw, bytes, load};
use honeycomb_client::{Client, JobTicket};
use honeycomb_e2e::LEASE_MS;
use honeycomb_e2e::process::{command, eventually};
use honeycomb_env::{Clock, Entropy};
use honeycomb_tiers::{FlushError, Flushed};
use honeycomb_wire::messages::PrefixOptions;
use honeycomb_wire::{Durability, Status};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

const ROUNDS: u64 = 4;
const WRITERS: u64 = 3;
/// Signs before each piece that say whose it is and where it ends.
const HEAD: usize = 12;

fn journaled(client: &Client, job: &JobTicket) {
    let acknowledge = Durability::Flushed as u8;
    let options = PrefixOptions { lease_ms: LEASE_MS, acknowledge, ..PrefixOptions::default() };
    client.create_prefix(job.job, "t", &[], options).unwrap();
}

/// A self-describing piece: its writer, its number, its length, and bytes derived from them.
fn piece(writer: u64, number: u64, length: usize) -> Vec<u8> {
    let mut piece = Vec::with_capacity(HEAD + length);
    piece.extend((writer as u32).to_le_bytes());
    piece.extend((number as u32).to_le_bytes());
    piece.extend((length as u32).to_le_bytes());
    piece.extend(bytes(writer << 32 | number, length));
    piece
}

/// Appends until a permanent refusal; answers the acknowledged pieces with their offsets.
fn write(
    client: &Client,
    job: &JobTicket,
    (writer, seed): (u64, u64),
    done: &AtomicUsize,
) -> Vec<(u64, Vec<u8>)> {
    let f = client.open_file(job.job, "t:log").unwrap();
    let mut draw = Draw(seed);
    let mut acknowledged = Vec::new();
    for number in 0.. {
        let length = match draw.below(8) {
            0 => draw.below(6000) as usize,
            _ => draw.below(300) as usize,
        };
        let piece = piece(writer, number, length);
        match f.append(&piece) {
            Ok(offset) => {
                acknowledged.push((offset, piece));
                done.fetch_add(1, SeqCst);
            }
            Err(_) => break,
        }
    }
    acknowledged
}

/// Every acknowledged piece is where it was said to be, and all there is are whole pieces, each writer's in
/// order and once.
fn holds(text: &[u8], acknowledged: &[(u64, Vec<u8>)], told: &str) {
    for (offset, piece) in acknowledged {
        let there = text.get(*offset as usize..*offset as usize + piece.len());
        assert!(
            there == Some(&piece[..]),
            "{told}: what was acknowledged at {offset} is not there"
        );
    }
    let mut rest = text;
    let mut next = [0; WRITERS as usize];
    while let Some((head, _)) = rest.split_first_chunk::<HEAD>() {
        let field = |at: usize| u32::from_le_bytes(*head[at..].first_chunk().unwrap());
        let (writer, number, length) = (field(0) as usize, field(4), field(8) as usize);
        assert_eq!(next[writer], number, "{told}: pieces of {writer} are in order and once");
        next[writer] = number + 1;
        let whole = piece(writer as u64, number as u64, length);
        assert!(rest.starts_with(&whole), "{told}: a piece is whole");
        rest = &rest[whole.len()..];
    }
    assert!(rest.is_empty(), "{told}: it ends with a whole piece");
}

fn log(place: &Path) -> Vec<u8> {
    let flushed = Flushed::open(place).unwrap();
    assert!(flushed.is_journal());
    flushed.check().unwrap();
    flushed.file("log").unwrap()
}

fn round(cluster: &mut Cluster, draw: &mut Draw, number: u64) {
    let controller_too = number % 2 == 1;
    let least = 30 + draw.below(300) as usize;
    let told = format!("round {number}: after {least} appends, controller: {controller_too}");
    let watcher = cluster.watcher();
    eventually("servers", || watcher.status().is_ok_and(|s| s.servers.len() == 2));
    let name = format!("logs{number}");
    let job = watcher.register_job(&name, LEASE_MS, 0).unwrap();
    let client = cluster.client(&job.token);
    journaled(&client, &job);
    client.create_file(job.job, "t:log", 1, false).unwrap();
    let place = cluster.root().join(&name).join("t");
    let done = AtomicUsize::new(0);
    let seed = draw.next();
    let acknowledged = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (client, job, done) = (cluster.client(&job.token), &job, &done);
                scope.spawn(move || write(&client, job, (writer, seed + writer), done))
            })
            .collect();
        eventually("appends", || done.load(SeqCst) >= least);
        if controller_too {
            cluster.controller = None;
            cluster.start_controller();
            let before = done.load(SeqCst);
            eventually("appends with another controller", || done.load(SeqCst) > before + 20);
        }
        // Both, one after the other: whatever was in memory alone is gone.
        cluster.servers.clear();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(acknowledged.len() >= least);
    let there = log(&place);
    holds(&there, &acknowledged, &told);

    // The prefix refuses new structures: its data exists only in the store.
    cluster.start_server();
    cluster.start_server();
    eventually(&format!("{told}: the loss is noticed"), || {
        client.open_file(job.job, "t:log").is_err_and(|e| e.status == Status::DataLost)
    });
    let refused = client.create_file(job.job, "t:other", 1, false).map(drop).unwrap_err();
    assert_eq!(refused.status, Status::DataLost, "{told}: {refused}");
    client.remove_prefix(job.job, "t").unwrap();
    journaled(&client, &job);
    let refused = client.create_file(job.job, "t:log", 1, false).map(drop).unwrap_err();
    assert_eq!(refused.status, Status::FlushUnavailable, "{told}: {refused}");
    client.remove_prefix(job.job, "t").unwrap();
    assert!(log(&place) == there, "{told}: it is as it was");

    let mut loaded = load(cluster, &job, &place, &[]);
    assert!(loaded.0.wait().unwrap().success(), "{told}: it is loaded");
    let f = client.open_file(job.job, "l:log").unwrap();
    let mut text = vec![0; f.size().unwrap() as usize];
    assert_eq!(f.read_into(0, &mut text).unwrap(), text.len());
    assert!(text == there, "{told}: what was loaded is what was there");

    // Deleted, the place is free for another.
    let words = ["flushed", &place.display().to_string(), "--delete"];
    assert!(command(&words).status().unwrap().success());
    assert!(matches!(Flushed::open(&place), Err(FlushError::NoManifest { .. })));
    journaled(&client, &job);
    client.create_file(job.job, "t:log", 1, false).unwrap().append(b"anew").unwrap();
    assert_eq!(log(&place), b"anew");
    client.deregister_job(job.job).unwrap();
    let left = || {
        let entries = std::fs::read_dir(&place).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
    };
    let clock = Clock::start();
    while !left().is_empty() {
        assert!(clock.now().as_millis() < 20_000, "{told}: {:?} is left of it", left());
        clock.sleep_until(clock.now() + Duration::from_millis(10));
    }
    let _ = writeln!(std::io::stderr(), "{told}: right, {} acknowledged", acknowledged.len());
}

#[test]
fn what_was_acknowledged_as_flushed_outlives_every_server() {
    let seed = Entropy::system().next_u64() >> 1;
    let _ = writeln!(std::io::stderr(), "seed {seed}");
    let mut draw = Draw(seed);
    let mut cluster = Cluster::start();
    let rounds = std::env::var("HONEYCOMB_KILLS").map_or(ROUNDS, |text| text.parse().unwrap());
    let clock = Clock::start();
    for number in 0..rounds {
        round(&mut cluster, &mut draw, number);
    }
    let _ = writeln!(
        std::io::stderr(),
        "{rounds} rounds in {:?}",
        Duration::from_millis(clock.now().as_millis())
    );
}
