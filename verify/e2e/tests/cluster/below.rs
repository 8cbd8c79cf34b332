//! Files that do not fit in memory: they go to a disk, and read as they were written.

use honeycomb_client::{Client, File, JobTicket};
use honeycomb_e2e::{Cluster, KIB, Scratch, eventually, file, noise, prefix};
use honeycomb_env::Clock;
use honeycomb_wire::Status;
use std::time::Duration;

const BLOCK: u64 = 64 * KIB;
const MEMORY: u64 = 4 << 20;
const DISK: u64 = 32 << 20;
/// The largest append that a block takes.
const APPEND: usize = BLOCK as usize / 8;

fn cluster() -> (Scratch, Cluster) {
    let scratch = Scratch::new();
    std::fs::create_dir_all(&scratch.0).unwrap();
    let cluster = Cluster::with_disk(MEMORY, BLOCK, &scratch.0, DISK);
    (scratch, cluster)
}

fn written(client: &Client, job: &JobTicket, address: &str, length: usize) -> (File, Vec<u8>) {
    let made = file(client, job, address);
    let bytes = noise(length as u64 ^ address.len() as u64, length);
    for piece in bytes.chunks(APPEND) {
        made.append(piece).unwrap();
    }
    (made, bytes)
}

fn reads(file: &File, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    assert_eq!(file.read_into(0, &mut got).unwrap(), bytes.len());
    assert!(got == bytes, "other bytes than were written (INV-11)");
}

#[test]
fn six_times_the_memory_is_written_and_read_back() {
    let (scratch, cluster) = cluster();
    let (client, job) = cluster.job("below");
    let files: Vec<(File, Vec<u8>)> = std::thread::scope(|scope| {
        let writer = |n: usize| {
            let (client, job) = (&client, &job);
            scope.spawn(move || written(client, job, &format!(":f{n}"), 6 << 20))
        };
        let writers: Vec<_> = (0..4).map(writer).collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    std::thread::scope(|scope| {
        for (file, bytes) in &files {
            scope.spawn(move || reads(file, bytes));
        }
    });
    let status = cluster.client(cluster.controller.token(), Default::default()).status().unwrap();
    let tier = &status.tiers[0];
    let in_memory = (status.blocks - status.free) * BLOCK;
    assert!(tier.used * BLOCK >= (24 << 20) - in_memory, "{tier:?}");
    assert!(status.bytes_resident < MEMORY + (64 << 20), "{}", status.bytes_resident);
    let moved = || {
        let told = cluster.client(cluster.controller.token(), Default::default()).status().unwrap();
        (told.tiers[0].bytes_written, told.tiers[0].bytes_read)
    };
    let least = (24 << 20) - MEMORY;
    eventually("what went down and came up is told", || moved().0 >= least && moved().1 >= least);
    assert!(moved().0 <= 3 * (24 << 20), "{:?}", moved());
    // Nothing of it has a name.
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0);
    // Sealed files read the same, also with many ranges at a time; blocks on a disk are not mapped.
    let (first, bytes) = &files[0];
    first.seal().unwrap();
    reads(first, bytes);
    let ranges = [(0u64, 10usize), (1_000_000, 70_000), (5_999_990, 10)];
    let many = first.read_ranges(&ranges).unwrap();
    for ((at, n), read) in ranges.into_iter().zip(many) {
        assert!(read[..] == bytes[at as usize..at as usize + n]);
    }
    assert!(first.map().unwrap().segments().concat() == *bytes);
    // Removed blocks free their disk space for others.
    client.remove_structure(job.job, ":f0").unwrap();
    let free = |blocks: u64| {
        let status = cluster.client(cluster.controller.token(), Default::default()).status();
        let tier = &status.unwrap().tiers[0];
        tier.blocks - tier.used >= blocks
    };
    eventually("places come back", || free((6 << 20) / BLOCK));
    let (again, bytes) = written(&client, &job, ":again", 6 << 20);
    reads(&again, &bytes);
}

/// More files are open than there is memory for their ends.
#[test]
fn many_files_grow_a_little_each() {
    let (_scratch, cluster) = cluster();
    let (client, job) = cluster.job("many");
    let files: Vec<File> = (0..150).map(|n| file(&client, &job, &format!(":f{n}"))).collect();
    let mut bytes = vec![Vec::new(); files.len()];
    for round in 0..4usize {
        for (n, file) in files.iter().enumerate() {
            let piece = noise((round * 1000 + n) as u64, 3001);
            file.append(&piece).unwrap();
            bytes[n].extend(piece);
        }
    }
    for (file, bytes) in files.iter().zip(&bytes) {
        reads(file, bytes);
    }
}

/// Memory and disk are full: further writes fail within their deadline, and stored data is unharmed.
#[test]
fn a_full_disk_is_told_and_room_is_used_when_it_comes() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(&scratch.0).unwrap();
    let cluster = Cluster::with_disk(2 << 20, BLOCK, &scratch.0, 2 << 20);
    let (client, job) = cluster.job("full");
    prefix(&client, &job, "T0", 0);
    let (kept, bytes) = written(&client, &job, "T0:kept", 1 << 20);
    let full = file(&client, &job, ":full");
    let refused = (0..1000).find_map(|_| full.append(&[7; APPEND]).err()).unwrap();
    assert_eq!(refused.status, Status::OutOfMemory, "{}", refused.message);
    let told = [
        "cannot allocate 1 block for ':full'",
        "nvme: 0 of 32 free",
        "Job 'full' holds",
        "T0 1",
        "the root ",
    ];
    for part in told {
        assert!(refused.message.contains(part), "{part} in {}", refused.message);
    }
    reads(&kept, &bytes);
    client.remove_structure(job.job, "T0:kept").unwrap();
    let clock = Clock::start();
    let removed = clock.now();
    eventually("room is used", || full.append(&[7; APPEND]).is_ok());
    let took = clock.now().since(removed);
    assert!(took < Duration::from_secs(1), "room was there, and used after {took:?}");
}

/// Demoted blocks that are read often are promoted when memory becomes free, and read the same meanwhile.
#[test]
fn what_is_read_often_comes_back_up_when_there_is_room() {
    let (_scratch, cluster) = cluster();
    let (client, job) = cluster.job("up");
    let (read, bytes) = written(&client, &job, ":read", 1 << 20);
    let (_others, _) = written(&client, &job, ":others", 6 << 20);
    let watcher = cluster.client(cluster.controller.token(), Default::default());
    let below = || watcher.status().unwrap().tiers[0].used;
    assert!(below() > 32, "{} blocks are below", below());
    client.remove_structure(job.job, ":others").unwrap();
    eventually("it comes up", || {
        reads(&read, &bytes);
        // The end of the file may be in the write cache, with the bytes before it on the disk.
        below() <= 1
    });
    reads(&read, &bytes);
}
