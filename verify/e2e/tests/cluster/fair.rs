//! Jobs that share memory, one of which wants all of it (INV-43).

use honeycomb_client::{Client, File, JobTicket, QuotaChange, QuotaOf};
use honeycomb_e2e::{Cluster, KIB, Scratch, eventually, file, noise};
use honeycomb_types::PolicyKind;
use honeycomb_wire::Status;

const BLOCK: u64 = 64 * KIB;
const MEMORY: u64 = 4 << 20;
const DISK: u64 = 32 << 20;
/// The largest append that a block takes.
const APPEND: usize = BLOCK as usize / 8;
/// Less than a quarter of the shared memory, which each of two jobs is guaranteed at any time.
const CALM: usize = 512 << 10;
/// Many times the memory.
const GREEDY: usize = 16 << 20;

fn cluster(policy: PolicyKind) -> (Scratch, Cluster) {
    let scratch = Scratch::new();
    std::fs::create_dir_all(&scratch.0).unwrap();
    let cluster = Cluster::sharing(policy, MEMORY, BLOCK, &scratch.0, DISK);
    (scratch, cluster)
}

fn writes(client: &Client, job: &JobTicket, address: &str, length: usize) -> (File, Vec<u8>) {
    let made = file(client, job, address);
    let bytes = noise(length as u64, length);
    for piece in bytes.chunks(APPEND) {
        made.append(piece).unwrap();
    }
    (made, bytes)
}

/// The same, and all of it is in memory, in so many blocks: it is sealed, so that it has none beside.
fn rests(client: &Client, job: &JobTicket, length: usize) -> (File, Vec<u8>, (u64, u64)) {
    let (made, bytes) = writes(client, job, ":kept", length);
    made.seal().unwrap();
    let blocks = (length as u64).div_ceil(BLOCK);
    eventually("what was granted beside is given back", || held(client, job) == (blocks, blocks));
    (made, bytes, (blocks, blocks))
}

/// Blocks that a job has, and those of them in memory.
fn held(client: &Client, job: &JobTicket) -> (u64, u64) {
    let quota = client.quota(&QuotaOf::Job(job.job)).unwrap();
    (quota.held_blocks, quota.memory_blocks)
}

#[test]
fn a_greedy_neighbour_takes_no_block_out_of_another_ones_share() {
    for policy in [PolicyKind::MaxMin, PolicyKind::Karma] {
        let (_scratch, cluster) = cluster(policy);
        let (calm, greedy) = (cluster.job("calm"), cluster.job("greedy"));
        let (kept, bytes, before) = rests(&calm.0, &calm.1, CALM);
        // It rests, which makes its blocks the coldest of all, while the other one writes.
        std::thread::scope(|scope| {
            let greed = scope.spawn(|| writes(&greedy.0, &greedy.1, ":all", GREEDY));
            while !greed.is_finished() {
                assert_eq!(held(&calm.0, &calm.1), before, "{policy}: INV-43");
            }
            let (all, written) = greed.join().unwrap();
            let mut got = vec![0; written.len()];
            assert_eq!(all.read_into(0, &mut got).unwrap(), got.len());
            assert!(got == written);
        });
        assert_eq!(held(&calm.0, &calm.1), before, "{policy}: INV-43");
        let (blocks, in_memory) = held(&greedy.0, &greedy.1);
        assert!(in_memory > before.1 && in_memory < blocks, "{policy}: {in_memory} of {blocks}");
        let mut got = vec![0; bytes.len()];
        assert_eq!(kept.read_into(0, &mut got).unwrap(), got.len());
        assert!(got == bytes);
        let status = cluster.client(cluster.controller.token(), Default::default()).status();
        let status = status.unwrap();
        assert_eq!(status.policy, policy.name());
        let share = status.shares.iter().find(|share| share.name == "calm").unwrap();
        assert_eq!((share.blocks, share.entitled), (before.1, before.1));
    }
}

#[test]
fn who_comes_late_has_its_share_of_what_another_one_had() {
    let (_scratch, cluster) = cluster(PolicyKind::MaxMin);
    let (calm, greedy) = (cluster.job("calm"), cluster.job("greedy"));
    writes(&greedy.0, &greedy.1, ":all", GREEDY);
    let (_, before) = held(&greedy.0, &greedy.1);
    writes(&calm.0, &calm.1, ":late", CALM);
    let (blocks, in_memory) = held(&calm.0, &calm.1);
    // A disk that is slow for longer than patience lasts may have cost it some.
    assert!(in_memory > blocks / 2, "{in_memory} of {blocks} blocks are in memory");
    let (_, after) = held(&greedy.0, &greedy.1);
    assert!(after + in_memory <= before + 8 && after < before, "{before} before, {after} after");
}

#[test]
fn first_come_keeps_what_it_has_but_for_what_is_beyond_a_soft_quota() {
    let (_scratch, cluster) = cluster(PolicyKind::FirstCome);
    let (first, second) = (cluster.job("first"), cluster.job("second"));
    let (_, _, before) = rests(&first.0, &first.1, CALM);
    writes(&second.0, &second.1, ":all", GREEDY);
    assert_eq!(held(&first.0, &first.1), before);
    let operator = cluster.client(cluster.controller.token(), Default::default());
    let change = QuotaChange { soft_blocks: Some(4), ..QuotaChange::default() };
    let told = operator.change_quota(&QuotaOf::Job(first.1.job), &change).unwrap();
    assert_eq!((told.soft_blocks, told.max_blocks, told.memory_blocks), (4, 0, before.1));
    for none in [
        QuotaChange { weight: Some(0), ..QuotaChange::default() },
        QuotaChange { max_blocks: Some(u64::MAX), ..QuotaChange::default() },
        QuotaChange { soft_blocks: Some(u64::MAX), ..QuotaChange::default() },
    ] {
        let refused = operator.change_quota(&QuotaOf::Job(first.1.job), &none).unwrap_err();
        assert_eq!(refused.status, Status::InvalidArgument, "{none:?}");
    }
    // Whichever job allocates, blocks beyond the soft quota are demoted first, and nothing is refused.
    writes(&second.0, &second.1, ":more", 2 * CALM);
    let (blocks, in_memory) = held(&first.0, &first.1);
    assert_eq!(blocks, before.0);
    assert!((3..=5).contains(&in_memory), "{in_memory} blocks are in memory");
    writes(&first.0, &first.1, ":more", CALM);
}
