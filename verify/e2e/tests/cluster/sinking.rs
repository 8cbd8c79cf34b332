//! Files that fit neither in memory nor on the disk: sealed blocks are demoted to an object store, and read
//! back as written.

use honeycomb_client::{Client, ClientOptions, File, JobTicket};
use honeycomb_e2e::{Cluster, KIB, Scratch, disk, eventually, file, noise};
use honeycomb_types::{AlarmKind, TierClass};
use honeycomb_wire::Status;
use honeycomb_wire::messages::TierUse;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::path::{Path, PathBuf};
use std::time::Duration;

const BLOCK: u64 = 64 * KIB;
const MEMORY: u64 = 4 << 20;
const DISK: u64 = 4 << 20;
const STORE: u64 = 24 << 20;
/// The largest append that a block takes.
const APPEND: usize = BLOCK as usize / 8;
/// Bytes of each of four writers: together more than twice memory and disk.
const EACH: usize = 5 << 20;

struct World {
    cluster: Cluster,
    client: Client,
    job: JobTicket,
    store: PathBuf,
    _scratch: Scratch,
}

impl World {
    fn new() -> World {
        let scratch = Scratch::new();
        let (ssd, store) = (scratch.0.join("ssd"), scratch.0.join("store"));
        for directory in [&ssd, &store] {
            std::fs::create_dir_all(directory).unwrap();
        }
        let tiers = vec![disk(&ssd, DISK, TierClass::Ssd), disk(&store, STORE, TierClass::Object)];
        let cluster = Cluster::with_tiers(MEMORY, BLOCK, tiers);
        let (client, job) = cluster.job("sinks");
        World { cluster, client, job, store, _scratch: scratch }
    }

    /// Creates a file and writes it.
    fn write(&self, n: usize) -> (File, Vec<u8>) {
        self.write_to(n, self.create(n))
    }

    /// Creates a file, which needs a free block.
    fn create(&self, n: usize) -> File {
        file(&self.client, &self.job, &format!(":{n}"))
    }

    /// Writes a created file, with retries when all tiers are full.
    fn write_to(&self, n: usize, made: File) -> (File, Vec<u8>) {
        let bytes = noise(n as u64, EACH);
        for piece in bytes.chunks(APPEND) {
            eventually("there is room", || match made.append(piece) {
                Ok(_) => true,
                Err(e) => {
                    assert_eq!(e.status, Status::OutOfMemory, "{}", e.message);
                    false
                }
            });
        }
        (made, bytes)
    }

    /// The same file, opened with this timeout.
    fn reader(&self, address: &str, timeout: Duration) -> File {
        let controller = self.cluster.controller.address().to_string();
        let options = ClientOptions::new(controller, &*self.job.token);
        let client = Client::new(ClientOptions { timeout, ..options });
        client.open_file(self.job.job, address).unwrap()
    }

    fn write_all(&self) -> Vec<(File, Vec<u8>)> {
        std::thread::scope(|scope| {
            let files: Vec<_> = (0..4).map(|n| self.create(n)).collect();
            let writer = |(n, made)| scope.spawn(move || self.write_to(n, made));
            let writers: Vec<_> = files.into_iter().enumerate().map(writer).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        })
    }

    fn tiers(&self) -> Vec<TierUse> {
        let watcher = self.cluster.client(self.cluster.controller.token(), Default::default());
        watcher.status().unwrap().tiers
    }

    /// The reported alarms of lower tiers.
    fn alarms(&self) -> Vec<AlarmKind> {
        let watcher = self.cluster.client(self.cluster.controller.token(), Default::default());
        let status = watcher.status().unwrap();
        let alarms: Vec<_> = status.servers.iter().flat_map(|server| &server.alarms).collect();
        assert_eq!(status.alarms as usize, alarms.len());
        for alarm in &alarms {
            assert_eq!(alarm.tier, 2, "{alarm:?}");
            let store = self.store.display().to_string();
            assert!(alarm.why.contains(&store) && alarm.age_ms >= alarm.tried_ms, "{alarm:?}");
        }
        alarms.iter().map(|alarm| AlarmKind::from_code(alarm.kind).unwrap()).collect()
    }

    /// Everything is removed: the store gives back what it held, and nothing of it is there when the
    /// server has ended.
    fn ends(self) {
        for n in 0..4 {
            self.client.remove_structure(self.job.job, &format!(":{n}")).unwrap();
        }
        self.cleared();
    }

    fn cleared(self) {
        eventually("places come back", || self.tiers().iter().all(|tier| tier.used == 0));
        eventually("nothing but the mark is left", || objects(&self.store) == ["alive"]);
        let World { cluster, store, .. } = self;
        drop(cluster);
        let left = std::fs::read_dir(&store).unwrap().flat_map(|server| {
            let folder = server.unwrap().path();
            let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
            files.chain([folder.clone()]).collect::<Vec<_>>()
        });
        assert_eq!(left.collect::<Vec<_>>(), [] as [PathBuf; 0], "a server leaves nothing behind");
    }
}

/// Names of the objects in the store, without the server's prefix. An object that was being written when the
/// directory was removed has a temporary name (`NAME#1`); it is deleted with the server's folder.
fn objects(store: &Path) -> Vec<String> {
    let servers = std::fs::read_dir(store).unwrap();
    let files = servers.flat_map(|server| std::fs::read_dir(server.unwrap().path()).unwrap());
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !name.contains('#')).collect()
}

fn reads(file: &File, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    assert_eq!(file.read_into(0, &mut got).unwrap(), bytes.len());
    assert!(got == bytes, "other bytes than were written (INV-11)");
}

#[test]
fn memory_and_disk_are_both_relieved_and_everything_reads_back() {
    let world = World::new();
    let files = world.write_all();
    std::thread::scope(|scope| {
        for (file, bytes) in &files {
            scope.spawn(move || reads(file, bytes));
        }
    });
    let tiers = world.tiers();
    assert_eq!(
        tiers.iter().map(|tier| tier.class).collect::<Vec<_>>(),
        [TierClass::Ssd.code(), TierClass::Object.code()]
    );
    let least = 4 * EACH as u64 - MEMORY - DISK;
    assert!(tiers[1].used * BLOCK >= least, "{tiers:?}");
    let moved = || {
        let tiers = world.tiers();
        tiers.iter().map(|tier| (tier.bytes_written, tier.bytes_read)).collect::<Vec<_>>()
    };
    eventually("what went down and came up is told", || {
        let moved = moved();
        moved[1].0 >= least && moved[1].1 >= least && moved[0].0 > 0
    });
    // The disk has some free room: blocks are demoted from memory to it first, and then further.
    assert!(tiers[0].used < tiers[0].blocks, "{tiers:?}");
    // The job's bill has the blocks of each tier, and the bytes demoted to it.
    let bill = &world.client.bills(Some(world.job.job)).unwrap()[0];
    let codes: Vec<u8> = bill.tiers.iter().map(|tier| tier.tier).collect();
    assert_eq!(codes, [0, TierClass::Ssd.code(), TierClass::Object.code()]);
    assert!(bill.tiers.iter().all(|tier| tier.held_byte_ms >= tier.used_byte_ms), "{bill:?}");
    assert!(bill.tiers[2].came_bytes >= least && bill.tiers[2].used_byte_ms > 0, "{bill:?}");
    drop(files);
    world.ends();
}

/// The store refuses all requests for a while: writers use the room of the other tiers, readers of its data
/// wait, and nothing is lost.
#[test]
fn a_store_that_refuses_for_a_while_costs_time_alone() {
    let world = World::new();
    let (first, bytes) = world.write(0);
    let more = world.write(1);
    eventually("something is in the store", || world.tiers()[1].used > 0);
    // Somebody else's thing is in its place.
    let other = world.store.with_extension("other");
    std::fs::write(&other, b"").unwrap();
    let exchange = || renameat_with(CWD, &world.store, CWD, &other, RenameFlags::EXCHANGE).unwrap();
    // Each writer may fill memory and disk before the other begins: both files have their first block before.
    let others = [2, 3].map(|n| (n, world.create(n)));
    exchange();
    std::thread::scope(|scope| {
        let world = &world;
        let others = others.map(|(n, made)| scope.spawn(move || world.write_to(n, made)));
        // A read with a short timeout fails with the reason. Which of the two files has blocks there is
        // unknown.
        let mut got = vec![0; EACH];
        let written = [(":0", &bytes), (":1", &more.1)];
        let mut refused = None;
        // On a busy machine, the time may end before the server has answered at all.
        eventually("a read of data in the store fails with the reason", || {
            refused = written.into_iter().find_map(|(name, bytes)| {
                let hasty = world.reader(name, Duration::from_millis(700));
                let e = hasty.read_into(0, &mut got).err()?;
                e.message.contains("store: ").then_some((name, bytes))
            });
            refused.is_some()
        });
        let (name, bytes) = refused.expect("a read has failed");
        let patient = world.reader(name, Duration::from_secs(30));
        // Operators get an alarm.
        eventually("there is an alarm", || world.alarms().contains(&AlarmKind::Away));
        let reader = scope.spawn(move || {
            let mut got = vec![0; EACH];
            assert_eq!(patient.read_into(0, &mut got).unwrap(), EACH);
            got
        });
        exchange();
        assert!(reader.join().unwrap() == *bytes, "other bytes than were written (INV-11)");
        for other in others {
            let (file, bytes) = other.join().unwrap();
            reads(&file, &bytes);
        }
    });
    reads(&first, &bytes);
    reads(&more.0, &more.1);
    // Refused requests are retried: blocks are written, read and freed.
    drop((first, more));
    for n in 0..4 {
        world.client.remove_structure(world.job.job, &format!(":{n}")).unwrap();
    }
    eventually("the alarm is over", || world.alarms().is_empty());
    world.cleared();
}
