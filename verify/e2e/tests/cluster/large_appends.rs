//! Appends of more than an eighth of a block to files.

use honeycomb_client::{Client, Error, File, JobTicket, QuotaOf};
use honeycomb_e2e::{Cluster, KIB, LEASE_MS, eventually, file, noise, prefix, status};
use honeycomb_types::{JobId, Verbs};
use honeycomb_wire::token::Caveat;
use honeycomb_wire::{Status, attenuate};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCK: usize = 64 * KIB as usize;
const LIMIT: usize = BLOCK / 8;
/// Records that one writer appends to a file that is sealed.
const RECORDS: u64 = 120;

fn start(name: &str) -> (Cluster, Client, JobTicket) {
    let cluster = Cluster::start(2, 512 * BLOCK as u64, BLOCK as u64);
    let (client, job) = cluster.job(name);
    prefix(&client, &job, "/t", LEASE_MS);
    (cluster, client, job)
}

fn whole(file: &File) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; file.size()? as usize + 1];
    let length = file.read_into(0, &mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

#[test]
fn appends_of_any_size_are_in_one_piece() {
    let (_cluster, client, job) = start("sizes");
    let writer = file(&client, &job, "/t");
    let reader = client.open_file(job.job, "/t").unwrap();
    let mut content = Vec::new();
    let lengths = [
        LIMIT - 1,
        LIMIT,
        LIMIT + 1,
        5,
        2 * LIMIT,
        BLOCK - LIMIT,
        BLOCK - 1,
        BLOCK,
        BLOCK + 1,
        0,
        2 * BLOCK + LIMIT,
        3 * BLOCK + 17,
        40 * BLOCK,
        1,
    ];
    for (n, length) in lengths.into_iter().enumerate() {
        let bytes = noise(n as u64, length);
        assert_eq!(writer.append(&bytes).unwrap(), content.len() as u64, "{length} bytes");
        content.extend(bytes);
        assert_eq!(reader.size().unwrap(), content.len() as u64);
    }
    assert!(whole(&reader).unwrap() == content, "the bytes differ");
    assert!(whole(&client.open_file(job.job, "/t").unwrap()).unwrap() == content);
    assert_eq!(writer.seal().unwrap(), content.len() as u64);
    assert_eq!(status(reader.append(&content)), Status::Sealed);
}

/// The writer of a record, its number and its length, and bytes that follow from them.
fn record(writer: u64, number: u64) -> Vec<u8> {
    const LENGTHS: [usize; 6] = [24, LIMIT + 1, 300, 30_000, BLOCK + 5, 2 * BLOCK];
    let length = LENGTHS[(writer + number) as usize % LENGTHS.len()];
    let head = [writer, number, length as u64].map(u64::to_le_bytes).concat();
    let body = noise(writer << 32 | number, length - head.len());
    [head, body].concat()
}

/// The records of a file. A part of one is not visible.
fn records(bytes: &[u8]) -> Vec<(u64, u64)> {
    let (mut rest, mut found) = (bytes, Vec::new());
    while !rest.is_empty() {
        let word = |n: usize| u64::from_le_bytes(rest[8 * n..8 * n + 8].try_into().unwrap());
        let (writer, number, length) = (word(0), word(1), word(2) as usize);
        assert!(length <= rest.len(), "{} of {length} bytes are visible", rest.len());
        let (this, behind) = rest.split_at(length);
        assert!(this == record(writer, number), "record {number} of {writer} is torn");
        found.push((writer, number));
        rest = behind;
    }
    found
}

#[test]
fn large_and_small_appends_of_many_writers_are_never_seen_in_part() {
    let (cluster, client, job) = start("many");
    let made = file(&client, &job, "/t");
    let own = || {
        let client = cluster.client(&job.token, Default::default());
        client.open_file(job.job, "/t").unwrap()
    };
    let (writers, each, over) = (3, 30, AtomicBool::new(false));
    let write = |writer: u64| {
        let file = own();
        let placed = |n| file.append(&record(writer, n)).unwrap();
        let offsets: Vec<u64> = (0..each).map(placed).collect();
        assert!(offsets.is_sorted(), "{offsets:?}");
        for (n, offset) in (0..).zip(offsets) {
            let due = record(writer, n);
            let mut bytes = vec![0; due.len()];
            assert_eq!(file.read_into(offset, &mut bytes).unwrap(), due.len());
            assert!(bytes == due, "record {n} of {writer} is not at {offset}");
        }
    };
    let write = &write;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = own();
            while !over.load(Ordering::Relaxed) {
                let size = file.size().unwrap() as usize;
                records(&whole(&file).unwrap()[..size]);
            }
        });
        let all: Vec<_> = (0..writers).map(|n| scope.spawn(move || write(n))).collect();
        let results: Vec<_> = all.into_iter().map(|writer| writer.join()).collect();
        over.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    let found = records(&whole(&made).unwrap());
    assert_eq!(found.len() as u64, writers * each);
    assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), found.len(), "none is there twice");
}

fn blocks(client: &Client, job: JobId) -> u32 {
    client.tree(job).unwrap().iter().flat_map(|p| &p.structures).map(|s| s.blocks).sum()
}

#[test]
fn append_that_finds_no_memory_leaves_the_file_as_it_was() {
    let (_cluster, client, job) = start("full");
    let writer = file(&client, &job, "/t");
    writer.append(&noise(1, BLOCK + 1)).unwrap();
    client.set_quota(&QuotaOf::Prefix(job.job, "/t".into()), 6).unwrap();
    let before = blocks(&client, job.job);
    let refused = writer.append(&noise(2, 10 * BLOCK)).unwrap_err();
    assert_eq!(refused.status, Status::QuotaExceeded, "{refused}");
    assert_eq!(writer.size().unwrap(), BLOCK as u64 + 1);
    // An empty successor of the file may have been freed meanwhile.
    assert!(blocks(&client, job.job) <= before, "its blocks are freed at once");
    writer.append(b"more").unwrap();
    let content = [noise(1, BLOCK + 1), b"more".to_vec()].concat();
    assert!(whole(&writer).unwrap() == content, "the bytes differ");
}

#[test]
fn writer_without_permission_to_read_appends_large_pieces() {
    let (cluster, client, job) = start("writer");
    let reader = file(&client, &job, "/t");
    let token = attenuate(&job.token, Caveat::Verbs(Verbs::WRITE)).unwrap();
    let writer = cluster.client(&token, Default::default()).open_file(job.job, "/t").unwrap();
    assert_eq!(writer.append(b"first").unwrap(), 0);
    assert_eq!(writer.append(&noise(1, 3 * BLOCK)).unwrap(), 5);
    assert_eq!(status(writer.size()), Status::PermissionDenied);
    let content = [b"first".to_vec(), noise(1, 3 * BLOCK)].concat();
    assert!(whole(&reader).unwrap() == content, "the bytes differ");
    let reads = attenuate(&job.token, Caveat::Verbs(Verbs::READ)).unwrap();
    let other = cluster.client(&reads, Default::default()).open_file(job.job, "/t").unwrap();
    assert_eq!(status(other.append(&content)), Status::PermissionDenied);
}

/// A file that is sealed while appends are written has each of them as a whole, or not at all.
#[test]
fn seal_falls_before_or_behind_large_appends() {
    let (cluster, client, job) = start("sealed");
    for round in 0..12 {
        let address = format!("/t:{round}");
        let made = file(&client, &job, &address);
        let write = |writer: u64| {
            let client = cluster.client(&job.token, Default::default());
            let file = client.open_file(job.job, &address).unwrap();
            // So many do not fill the memory, however late the file is sealed.
            for n in 0..RECORDS {
                match file.append(&record(writer, n)) {
                    Ok(_) => {}
                    Err(e) if e.status == Status::Sealed => return (n, Some(e)),
                    Err(e) => panic!("{e}"),
                }
            }
            (RECORDS, None)
        };
        let write = &write;
        let accepted: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..2).map(|n| scope.spawn(move || write(n))).collect();
            eventually("bytes arrive", || made.size().unwrap() >= 100 * round);
            made.seal().unwrap();
            all.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        let found = records(&whole(&made).unwrap());
        for (writer, (count, sealed)) in (0..).zip(accepted) {
            let numbers = found.iter().filter(|(of, _)| *of == writer).map(|(_, number)| *number);
            let numbers: Vec<u64> = numbers.collect();
            assert!(
                numbers.iter().copied().eq(0..count),
                "{address}: {numbers:?} of {count}: {sealed:?}"
            );
        }
        client.remove_structure(job.job, &address).unwrap();
    }
}
