//! The controller's log on a disk with all kinds of failures.

use crate::{Answers, OpenOptions, RecoveredState, Store, StoreError};
use honeycomb_catalog::{
    Actor, Catalog, Command, Effect, NewServer, NewStructure, PrefixOptions, Reply,
};
use honeycomb_env::{Disk, Entropy, MemoryDisk};
use honeycomb_types::{JobId, Kind, Marks, SessionId, Time};

fn options() -> OpenOptions {
    OpenOptions {
        shard: 0,
        hash_seed: 3,
        root_key: Some([7; 32]),
        marks: Marks::default(),
        lease_ms: 1000,
        policy: Default::default(),
        scale: Default::default(),
        server_loss_ms: honeycomb_types::limits::SERVER_LOSS_DEFAULT_MS,
        now: Time::ZERO,
    }
}

fn open(disk: &MemoryDisk) -> Result<RecoveredState, StoreError> {
    Store::open(Box::new(disk.clone()), options())
}

/// The whole hard state as bytes.
fn everything(catalog: &Catalog) -> Vec<u8> {
    let mut all = Vec::new();
    catalog.put_all(&mut |records| all.extend_from_slice(records));
    all
}

/// A controller without its network.
struct Core {
    store: Store,
    catalog: Catalog,
    answers: Answers,
    now: Time,
    job: JobId,
    made: u64,
}

impl Core {
    fn on(disk: &MemoryDisk) -> Core {
        let RecoveredState { store, catalog, answers, now, .. } = open(disk).unwrap();
        Core { store, catalog, answers, now, job: JobId(0), made: 0 }
    }

    fn apply(&mut self, command: Command<'_>) -> Reply {
        self.now = Time(self.now.0 + 1_000_000);
        let mut effects: Vec<Effect> = Vec::new();
        self.catalog.apply(self.now, command, &mut effects).unwrap()
    }

    fn commit(&mut self, wait: bool) -> Result<(), StoreError> {
        self.store.commit(self.now, &mut self.catalog, &[], wait)
    }

    /// A job, a server, and a file with a block.
    fn begin(&mut self) {
        let (actor, name) = (Actor::CLUSTER, "job");
        let register = Command::RegisterJob {
            actor,
            name,
            lease_ms: 0,
            quota_blocks: 0,
            hints: Default::default(),
            claim: Default::default(),
        };
        let Reply::Job { job, .. } = self.apply(register) else { panic!() };
        self.job = job;
        let server = NewServer {
            flush_root: "",
            kinds: &[],
            address: "s:1",
            incarnation: 1,
            shards: 1,
            blocks_per_shard: 64,
            tiers: &[],
            block_size: 65_536,
        };
        self.apply(Command::JoinServer { server });
        let structure = NewStructure {
            path: "",
            name: "file",
            kind: Kind::File,
            blocks: 1,
            max_items: 0,
            max_bytes: 0,
            open_existing: false,
        };
        self.apply(Command::CreateStructure { actor, job, structure });
    }

    /// Creates another prefix, or removes an earlier one.
    fn change(&mut self) {
        let (actor, job) = (Actor::driver(self.job), self.job);
        self.made += 1;
        let path = format!("t{}", self.made);
        let (parents, options) = (&[][..], PrefixOptions::default());
        self.apply(Command::CreatePrefix { actor, job, path: &path, parents, options });
        if self.made.is_multiple_of(3) {
            self.apply(Command::RemovePrefix { actor, job, path: &path });
        }
    }
}

/// A log of some groups, and the state after each of them.
fn small_log() -> (MemoryDisk, Vec<Vec<u8>>) {
    let disk = MemoryDisk::new();
    let mut core = Core::on(&disk);
    let mut states = vec![everything(&core.catalog)];
    core.begin();
    for _ in 0..6 {
        core.commit(true).unwrap();
        states.push(everything(&core.catalog));
        core.change();
    }
    (disk, states)
}

fn log_file(disk: &MemoryDisk) -> (String, Vec<u8>) {
    let mut disk = disk.clone();
    let name = disk.list().unwrap().into_iter().find(|name| name.starts_with("log-")).unwrap();
    let bytes = disk.read(&name).unwrap();
    (name, bytes)
}

#[test]
fn a_log_that_is_cut_anywhere_gives_the_state_of_its_whole_groups() {
    let (disk, states) = small_log();
    let (name, bytes) = log_file(&disk);
    let mut seen = std::collections::BTreeSet::new();
    for length in 0..=bytes.len() {
        let disk = disk.copy();
        disk.put(&name, &bytes[..length]);
        match open(&disk) {
            Ok(opened) => {
                let state = everything(&opened.catalog);
                let found = states.iter().position(|other| *other == state);
                let at = found.unwrap_or_else(|| panic!("cut at {length}: no state that ever was"));
                assert!(seen.last().is_none_or(|&last| at >= last), "no group comes back");
                seen.insert(at);
                // The bytes that were cut are gone permanently: the log opens again.
                drop(opened);
                assert!(everything(&open(&disk).unwrap().catalog) == state);
            }
            // A file with its head is renamed into place: a file without a head is no log.
            Err(StoreError::Damaged { offset: 0, .. }) => assert!(length < 60, "cut at {length}"),
            Err(e) => panic!("cut at {length}: {e}"),
        }
    }
    assert_eq!(seen.len(), states.len(), "each state was reached");
}

#[test]
fn a_bit_that_flips_is_noticed_and_never_believed() {
    let (disk, states) = small_log();
    let (name, bytes) = log_file(&disk);
    let mut entropy = Entropy::seeded(5);
    let (mut refused, mut torn) = (0, 0);
    for at in 0..bytes.len() {
        let disk = disk.copy();
        let mut bytes = bytes.clone();
        bytes[at] ^= 1 << (entropy.next_u64() % 8);
        disk.put(&name, &bytes);
        match open(&disk) {
            Err(StoreError::Damaged { .. } | StoreError::Newer { .. }) => refused += 1,
            Err(e) => panic!("flipped at {at}: {e}"),
            Ok(opened) => {
                // Damage in the last write looks like an interrupted write.
                let state = everything(&opened.catalog);
                assert!(state == states[states.len() - 2], "flipped at {at}");
                torn += 1;
            }
        }
    }
    assert!(refused > 4 * torn && torn > 0, "{refused} refused, {torn} torn");
}

#[test]
fn an_older_file_with_a_torn_end_is_refused() {
    let (disk, _) = small_log();
    let (name, bytes) = log_file(&disk);
    drop(open(&disk).unwrap());
    disk.put(&name, &bytes[..bytes.len() - 1]);
    assert!(matches!(open(&disk), Err(StoreError::Damaged { .. })));
    disk.clone().remove(&name).unwrap();
    let Err(StoreError::Missing { file }) = open(&disk) else { panic!() };
    assert_eq!(file, name);
}

#[test]
fn a_later_format_is_refused_by_name() {
    let (disk, _) = small_log();
    let (name, mut bytes) = log_file(&disk);
    bytes[6] += 1;
    disk.put(&name, &bytes);
    let Err(StoreError::Newer { file, major }) = open(&disk) else { panic!() };
    assert_eq!((file, major), (name, 2));
}

#[test]
fn a_directory_without_its_key_is_refused() {
    let (disk, _) = small_log();
    disk.clone().remove("cluster.key").unwrap();
    assert!(matches!(open(&disk), Err(StoreError::Missing { .. })));
}

#[test]
fn key_that_is_damaged_anywhere_is_refused_by_name() {
    let (disk, _) = small_log();
    let key = disk.clone().read("cluster.key").unwrap();
    let refused = |bytes: &[u8]| {
        disk.put("cluster.key", bytes);
        match open(&disk) {
            Err(StoreError::Damaged { file, .. }) => assert_eq!(file, "cluster.key"),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("a damaged key was accepted: {bytes:02x?}"),
        }
    };
    for bit in 0..key.len() * 8 {
        let mut bytes = key.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        refused(&bytes);
    }
    (0..key.len()).for_each(|length| refused(&key[..length]));
    refused(&[&key[..], &[0]].concat());
    disk.put("cluster.key", &key);
    assert!(open(&disk).is_ok());
}

#[test]
fn draft_of_a_key_that_a_killed_start_left_does_no_harm() {
    let disk = MemoryDisk::new();
    disk.put("cluster.key.new", b"half of a k");
    drop(open(&disk).unwrap());
    assert!(open(&disk).is_ok(), "the key is intact");
}

#[test]
fn what_was_committed_survives_any_crash_and_terms_only_grow() {
    for seed in 0..300 {
        let mut entropy = Entropy::seeded(seed);
        let disk = MemoryDisk::new();
        let mut term = 0;
        let mut durable = None;
        let mut possible: Vec<Vec<u8>> = Vec::new();
        let (mut job, mut made) = (JobId(0), 0);
        for round in 0..4 {
            let mut core = Core::on(&disk);
            (core.job, core.made) = (job, made);
            assert!(core.store.term() > term, "INV-25");
            term = core.store.term();
            let state = everything(&core.catalog);
            if let Some(durable) = &durable {
                // INV-26: the synced state, or one of the later states that were not synced.
                let known = state == *durable || possible.contains(&state);
                assert!(known, "seed {seed}, round {round}");
            }
            core.catalog.check_invariants().unwrap();
            if round == 0 {
                core.begin();
                core.commit(true).unwrap();
            }
            durable = Some(everything(&core.catalog));
            possible.clear();
            for _ in 0..entropy.next_u64() % 12 {
                core.change();
                let synced = match entropy.next_u64() % 10 {
                    0 => {
                        core.store.renew(core.now, &mut core.catalog, &core.answers).unwrap();
                        true
                    }
                    n => {
                        core.commit(n < 4).unwrap();
                        n < 4
                    }
                };
                let state = everything(&core.catalog);
                if synced {
                    durable = Some(state);
                    possible.clear();
                } else {
                    possible.push(state);
                }
            }
            (job, made) = (core.job, core.made + 1000);
            drop(core);
            disk.crash(&mut |n| entropy.next_u64() % n);
        }
    }
}

#[test]
fn a_synced_state_is_never_older_than_what_was_acknowledged() {
    let disk = MemoryDisk::new();
    let mut core = Core::on(&disk);
    core.begin();
    core.commit(true).unwrap();
    for _ in 0..20 {
        core.change();
        let before = disk.syncs();
        core.commit(true).unwrap();
        assert_eq!(disk.syncs(), before + 1, "one sync for a whole round");
        let crashed = disk.copy();
        crashed.crash(&mut |_| 0);
        assert!(everything(&open(&crashed).unwrap().catalog) == everything(&core.catalog));
    }
    let before = disk.syncs();
    core.commit(true).unwrap();
    assert_eq!(disk.syncs(), before, "nothing has changed, nothing is written");
}

#[test]
fn a_full_disk_stops_changes_and_new_files_take_them_up() {
    let disk = MemoryDisk::new();
    let mut core = Core::on(&disk);
    core.begin();
    core.commit(true).unwrap();
    let acknowledged = everything(&core.catalog);
    core.change();
    disk.set_room(Some(30));
    let Err(StoreError::Io { error, .. }) = core.commit(true) else { panic!() };
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    assert!(core.store.trouble().is_some());
    assert!(matches!(core.commit(true), Err(StoreError::Stopped { .. })));
    assert!(core.store.renew(core.now, &mut core.catalog, &core.answers).is_err());
    // All acknowledged changes are present, and no others.
    let crashed = disk.copy();
    assert!(everything(&open(&crashed).unwrap().catalog) == acknowledged);
    disk.set_room(None);
    core.store.renew(core.now, &mut core.catalog, &core.answers).unwrap();
    assert!(core.store.trouble().is_none());
    core.change();
    core.commit(true).unwrap();
    let crashed = disk.copy();
    crashed.crash(&mut |_| 0);
    assert!(everything(&open(&crashed).unwrap().catalog) == everything(&core.catalog));
}

#[test]
fn a_sync_that_fails_acknowledges_nothing() {
    let disk = MemoryDisk::new();
    let mut core = Core::on(&disk);
    core.begin();
    core.commit(true).unwrap();
    core.change();
    disk.fail_syncs(1);
    assert!(core.commit(true).is_err());
    // The next sync would succeed without restoring the lost bytes: only new files count.
    assert!(core.commit(true).is_err());
    core.store.renew(core.now, &mut core.catalog, &core.answers).unwrap();
    core.commit(true).unwrap();
    disk.crash(&mut |_| 0);
    assert!(everything(&open(&disk).unwrap().catalog) == everything(&core.catalog));
}

#[test]
fn new_files_that_cannot_be_finished_leave_the_old_ones_good() {
    for room in 0..2000 {
        let disk = MemoryDisk::new();
        let mut core = Core::on(&disk);
        core.begin();
        core.commit(true).unwrap();
        disk.set_room(Some(room));
        let renewed = core.store.renew(core.now, &mut core.catalog, &core.answers);
        let whole = everything(&core.catalog);
        drop(core.store);
        disk.set_room(None);
        disk.crash(&mut |_| 0);
        assert!(everything(&open(&disk).unwrap().catalog) == whole, "room for {room}");
        if renewed.is_ok() {
            return;
        }
    }
    panic!("there was never room enough");
}

#[test]
fn answers_and_the_clock_go_on() {
    let disk = MemoryDisk::new();
    let mut core = Core::on(&disk);
    core.begin();
    let session = SessionId(9);
    let mut records = Vec::new();
    core.answers.keep(&mut records, core.now, session, 1 << 63 | 1, b"made");
    core.store.commit(core.now, &mut core.catalog, &records, true).unwrap();
    let later = Time::from_millis(60_000);
    core.store.commit(later, &mut core.catalog, &[], false).unwrap();
    drop(core.store);
    for _ in 0..2 {
        let mut opened = open(&disk).unwrap();
        assert_eq!(opened.now, later, "tokens and grants expire at their time");
        assert_eq!(opened.answers.find(session, 1 << 63 | 1), Some(&b"made"[..]));
        assert_eq!(opened.root.0, [7; 32]);
        // Once from the log, once from a snapshot.
        opened.store.renew(opened.now, &mut opened.catalog, &opened.answers).unwrap();
    }
}
