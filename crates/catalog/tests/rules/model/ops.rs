//! The randomly drawn commands, and the frequency of each.

use super::moves::Settle;
use honeycomb_types::{Kind, Way};
use proptest::prelude::*;

/// The owner of a quota.
#[derive(Clone, Copy, Debug)]
pub enum Level {
    Tenant,
    Job,
    Prefix,
}

#[derive(Clone, Debug)]
pub enum Op {
    Create {
        job: usize,
        path: String,
        parents: Vec<String>,
        lease: u32,
        pinned: bool,
        bound: u64,
    },
    Bound {
        job: usize,
        of: Level,
        path: String,
        most: u64,
    },
    Soft {
        job: usize,
        of: Level,
        path: String,
        soft: u64,
        weight: u32,
    },
    Plan {
        job: usize,
        nodes: Vec<(String, Vec<String>)>,
        readers: Vec<String>,
    },
    Remove {
        job: usize,
        path: String,
    },
    Renew {
        job: usize,
        paths: Vec<String>,
    },
    Seen {
        job: usize,
        prefix: usize,
        ago: u32,
    },
    Pass {
        ms: u64,
    },
    Amnesty,
    Make {
        job: usize,
        path: String,
        name: String,
        kind: Kind,
        bound: u64,
        blocks: u32,
    },
    Unmake {
        job: usize,
        path: String,
        name: String,
    },
    Use {
        job: usize,
        file: usize,
        task: usize,
        create: bool,
    },
    Declare {
        job: usize,
        path: String,
        readers: Vec<String>,
        replace: bool,
    },
    Commit {
        job: usize,
        path: String,
    },
    Join {
        shards: u8,
        blocks: u32,
        below: u32,
    },
    /// The connection to a server closes.
    Unlink {
        server: usize,
    },
    Lose {
        server: usize,
    },
    Drain {
        server: usize,
        cancel: bool,
    },
    Stays {
        server: usize,
    },
    Confirm {
        block: usize,
        stale: bool,
    },
    Grow {
        job: usize,
        file: usize,
        block: usize,
    },
    BeginAppend {
        job: usize,
        file: usize,
        bytes: u64,
    },
    EndAppend {
        job: usize,
        file: usize,
        block: usize,
        commits: bool,
    },
    Enlarge {
        job: usize,
        file: usize,
        block: usize,
        bytes: u64,
    },
    Seal {
        job: usize,
        file: usize,
        block: usize,
        length: u64,
        odd: u64,
        last: bool,
    },
    Taken {
        job: usize,
        file: usize,
        block: usize,
        items: u64,
        odd: u64,
    },
    Retire {
        job: usize,
        file: usize,
        block: usize,
    },
    Permit {
        job: usize,
        path: String,
    },
    Begin {
        job: usize,
        kv: usize,
        block: usize,
        slot: u64,
        odd: u64,
        way: Way,
    },
    Settle {
        begun: usize,
        how: Settle,
        stale: bool,
    },
    Used {
        job: usize,
        kv: usize,
        block: usize,
        bytes: u64,
    },
    Extents {
        job: usize,
        kv: usize,
        bytes: u64,
        full: usize,
    },
    Emptied {
        job: usize,
        kv: usize,
        block: usize,
    },
    Lowered {
        block: usize,
        how: Settle,
    },
    /// A block in a lower tier is read often.
    Hot {
        block: usize,
    },
    Short {
        blocks: u32,
    },
}

fn name() -> impl Strategy<Value = String> {
    (0..5u8).prop_map(|n| format!("T{n}"))
}

fn path() -> impl Strategy<Value = String> {
    prop_oneof![
        1 => Just(String::new()),
        9 => prop::collection::vec(name(), 1..4).prop_map(|names| names.join("/")),
    ]
}

pub fn op() -> impl Strategy<Value = Op> {
    let job = || 0..2usize;
    let lease = prop_oneof![Just(0u32), 200..3000u32];
    let parents = prop::collection::vec(path(), 0..3);
    let kind = prop_oneof![1 => Just(Kind::File), 2 => Just(Kind::Queue), 1 => Just(Kind::Kv)];
    let level = prop_oneof![
        4 => Just(Level::Prefix), 1 => Just(Level::Job), 1 => Just(Level::Tenant)
    ];
    // The frequency of quotas, out of ten.
    let bound = |often| prop_oneof![10 - often => Just(0), often => 1..12u64];
    // Bytes that do not match their items, now and then.
    let odd = || prop_oneof![9 => Just(0), 1 => 0..25u64];
    let node = (name(), prop::collection::vec(prop_oneof![3 => name(), 1 => path()], 0..3));
    prop_oneof![
        8 => (job(), path(), parents, lease, prop::bool::weighted(0.05), bound(1)).prop_map(
            |(job, path, parents, lease, pinned, bound)| {
                Op::Create { job, path, parents, lease, pinned, bound }
            }
        ),
        2 => (job(), level, path(), bound(6))
            .prop_map(|(job, of, path, most)| Op::Bound { job, of, path, most }),
        3 => (job(), prop::collection::vec(node, 1..5), prop::collection::vec(path(), 0..2))
            .prop_map(|(job, nodes, readers)| Op::Plan { job, nodes, readers }),
        2 => (job(), path()).prop_map(|(job, path)| Op::Remove { job, path }),
        6 => (job(), prop::collection::vec(path(), 1..4))
            .prop_map(|(job, paths)| Op::Renew { job, paths }),
        2 => (job(), 0..20usize, 0..1500u32)
            .prop_map(|(job, prefix, ago)| Op::Seen { job, prefix, ago }),
        6 => (1..900u64).prop_map(|ms| Op::Pass { ms }),
        1 => Just(Op::Amnesty),
        5 => (job(), path(), name(), kind, 0..3u64, 0..6u32).prop_map(
            |(job, path, name, kind, bound, blocks)| {
                Op::Make { job, path, name, kind, bound, blocks }
            }
        ),
        1 => (job(), path(), name()).prop_map(|(job, path, name)| Op::Unmake { job, path, name }),
        9 => (job(), 0..6usize, 0..20usize, any::<bool>())
            .prop_map(|(job, file, task, create)| Op::Use { job, file, task, create }),
        3 => (job(), path(), prop::collection::vec(path(), 0..3), any::<bool>()).prop_map(
            |(job, path, readers, replace)| Op::Declare { job, path, readers, replace }
        ),
        4 => (job(), path()).prop_map(|(job, path)| Op::Commit { job, path }),
        1 => (1..4u8, 0..8u32, 0..6u32)
            .prop_map(|(shards, blocks, below)| Op::Join { shards, blocks, below }),
        1 => (0..4usize).prop_map(|server| Op::Lose { server }),
        1 => (0..4usize).prop_map(|server| Op::Unlink { server }),
        2 => (0..4usize, any::<bool>()).prop_map(|(server, cancel)| Op::Drain { server, cancel }),
        1 => (0..4usize).prop_map(|server| Op::Stays { server }),
        4 => (0..20usize, prop::bool::weighted(0.1))
            .prop_map(|(block, stale)| Op::Confirm { block, stale }),
        6 => (job(), 0..6usize, 0..6usize)
            .prop_map(|(job, file, block)| Op::Grow { job, file, block }),
        8 => appending(),
        8 => (job(), 0..6usize, 0..6usize, 0..4u64, odd(), prop::bool::weighted(0.2)).prop_map(
            |(job, file, block, length, odd, last)| {
                Op::Seal { job, file, block, length, odd, last }
            }
        ),
        7 => (job(), 0..6usize, 0..6usize, 0..4u64, odd())
            .prop_map(|(job, file, block, items, odd)| Op::Taken { job, file, block, items, odd }),
        6 => (job(), 0..6usize, 0..6usize)
            .prop_map(|(job, file, block)| Op::Retire { job, file, block }),
        1 => (job(), path()).prop_map(|(job, path)| Op::Permit { job, path }),
        6 => moving(),
        6 => (0..20usize, settle()).prop_map(|(block, how)| Op::Lowered { block, how }),
        3 => (0..20usize).prop_map(|block| Op::Hot { block }),
        2 => (0..4u32).prop_map(|blocks| Op::Short { blocks }),
    ]
}

/// Appends that are too large for a block.
fn appending() -> impl Strategy<Value = Op> {
    let file = || (0..2usize, 0..6usize);
    prop_oneof![
        (file(), 1..200_000u64).prop_map(|((job, file), bytes)| Op::BeginAppend {
            job,
            file,
            bytes
        }),
        (file(), 0..6usize, prop::bool::weighted(0.8)).prop_map(|((job, file), block, commits)| {
            Op::EndAppend { job, file, block, commits }
        }),
    ]
}

/// Soft quotas and weights.
fn soft() -> impl Strategy<Value = Op> {
    let level = prop_oneof![Just(Level::Prefix), Just(Level::Job), Just(Level::Tenant)];
    let soft = prop_oneof![1 => Just(0), 1 => 1..8u64];
    (0..2usize, level, path(), soft, 0..4u32).prop_map(|(job, of, path, soft, weight)| Op::Soft {
        job,
        of,
        path,
        soft,
        weight,
    })
}

/// Blocks that need a larger capacity.
pub fn enlarging() -> impl Strategy<Value = Op> {
    (0..2usize, 0..6usize, 0..6usize, 16..24u32, -1..2i64).prop_map(
        |(job, file, block, octave, beside)| {
            let bytes = (1u64 << octave).saturating_add_signed(beside);
            Op::Enlarge { job, file, block, bytes }
        },
    )
}

/// Two jobs that fill memory with their files, some of whose blocks are demoted.
pub fn sharing() -> impl Strategy<Value = Op> {
    let block = || (0..2usize, 0..6usize, 0..6usize);
    prop_oneof![
        8 => block().prop_map(|(job, file, block)| Op::Grow { job, file, block }),
        8 => block().prop_map(|(job, file, block)| {
            Op::Seal { job, file, block, length: 3, odd: 0, last: false }
        }),
        4 => (0..20usize, settle()).prop_map(|(block, how)| Op::Lowered { block, how }),
        1 => (1..900u64).prop_map(|ms| Op::Pass { ms }),
        6 => (0..2usize, path(), name(), 0..4u32, files_and_queues()).prop_map(
            |(job, path, name, blocks, kind)| Op::Make { job, path, name, kind, bound: 0, blocks }
        ),
        1 => (0..20usize).prop_map(|block| Op::Confirm { block, stale: false }),
        1 => (0..4u32).prop_map(|blocks| Op::Short { blocks }),
        1 => soft(),
        2 => op(),
    ]
}

/// And queues, which always stay in memory.
fn files_and_queues() -> impl Strategy<Value = Kind> {
    prop_oneof![1 => Just(Kind::File), 1 => Just(Kind::Queue)]
}

/// Files that fill memory, some of whose blocks are demoted.
pub fn growing() -> impl Strategy<Value = Op> {
    let block = || (0..2usize, 0..6usize, 0..6usize);
    prop_oneof![
        6 => block().prop_map(|(job, file, block)| Op::Grow { job: job / 2, file, block }),
        6 => block().prop_map(|(job, file, block)| {
            Op::Seal { job: job / 2, file, block, length: 3, odd: 0, last: false }
        }),
        4 => (0..20usize, settle()).prop_map(|(block, how)| Op::Lowered { block, how }),
        3 => (0..20usize).prop_map(|block| Op::Hot { block }),
        1 => (1..900u64).prop_map(|ms| Op::Pass { ms }),
        1 => (0..20usize).prop_map(|block| Op::Confirm { block, stale: false }),
        3 => op(),
    ]
}

/// The outcome of an action that takes time.
fn settle() -> impl Strategy<Value = Settle> {
    prop_oneof![3 => Just(Settle::Commit), 1 => Just(Settle::Cancel), 1 => Just(Settle::Refuse)]
}

/// The requests and reports of blocks of kvs.
pub fn moving() -> impl Strategy<Value = Op> {
    let job = || prop_oneof![4 => Just(0usize), 1 => Just(1)];
    let odd = prop_oneof![9 => Just(0), 1 => 0..25u64];
    let way = prop_oneof![6 => Just(Way::Split), 3 => Just(Way::Merge), 2 => Just(Way::Relocate)];
    prop_oneof![
        9 => (job(), 0..3usize, 0..6usize, 0..65u64, odd, way).prop_map(
            |(job, kv, block, slot, odd, way)| Op::Begin { job, kv, block, slot, odd, way }
        ),
        9 => (0..8usize, settle(), prop::bool::weighted(0.1))
            .prop_map(|(begun, how, stale)| Op::Settle { begun, how, stale }),
        4 => (job(), 0..3usize, 0..6usize, 0..40_000u64)
            .prop_map(|(job, kv, block, bytes)| Op::Used { job, kv, block, bytes }),
        4 => (job(), 0..3usize, 0..8200u64, 0..3usize)
            .prop_map(|(job, kv, bytes, full)| Op::Extents { job, kv, bytes, full }),
        2 => (job(), 0..3usize, 0..6usize)
            .prop_map(|(job, kv, block)| Op::Emptied { job, kv, block }),
    ]
}

/// The first commands of the first job, so that not all requests are about missing items.
pub fn first() -> Vec<Op> {
    let tasks = (0..5).flat_map(|n| {
        let (path, parents) = (format!("T{n}"), vec![]);
        let made = Op::Make {
            job: 0,
            path: path.clone(),
            name: "f".into(),
            kind: Kind::File,
            bound: 0,
            blocks: 1,
        };
        [Op::Create { job: 0, path, parents, lease: 0, pinned: false, bound: 0 }, made]
    });
    let table = |path: &str| Op::Make {
        job: 0,
        path: path.into(),
        name: "k".into(),
        kind: Kind::Kv,
        bound: 0,
        blocks: 2,
    };
    let declare = |path: &str, readers: &[&str]| {
        let readers = readers.iter().map(|&reader| reader.into()).collect();
        Op::Declare { job: 0, path: path.into(), readers, replace: false }
    };
    let tables = [table("T1"), table("T2")];
    tasks.chain([declare("T0", &["T1", "T2"]), declare("T3", &["T4"])]).chain(tables).collect()
}

/// The first commands of the second job.
pub fn second() -> Vec<Op> {
    let tasks = (0..3).flat_map(|n| {
        let (path, parents) = (format!("T{n}"), vec![]);
        let (name, kind) = ("f".into(), Kind::File);
        let made = Op::Make { job: 1, path: path.clone(), name, kind, bound: 0, blocks: 1 };
        [Op::Create { job: 1, path, parents, lease: 0, pinned: false, bound: 0 }, made]
    });
    tasks.collect()
}
