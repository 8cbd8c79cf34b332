use super::*;
use crate::policy::FirstCome;

const GIB: u64 = 1 << 30;
const WHOLE: u32 = 16_384;

/// Cores of four blocks of 1 GiB each: a core has 65,536 units of memory, and names for half as many blocks.
fn joined(shards: u8) -> (Pool, ServerId) {
    let mut pool = Pool::new(3, 2);
    let server = NewServer {
        address: "s1:1",
        incarnation: 7,
        shards,
        blocks_per_shard: 4,
        tiers: &[],
        block_size: GIB,
        flush_root: "",
        kinds: &[],
    };
    let server = pool.join(server, Time::ZERO);
    (pool, server)
}

fn takes(pool: &mut Pool, at: (ServerId, u8), blocks: u32, units: u32) {
    for _ in 0..blocks {
        pool.take((at.0, ShardIx(at.1)), 0, units, (TierIx::MEMORY, Time::ZERO));
    }
}

fn ask(pool: &mut Pool, blocks: u32) -> Result<Vec<BlockAt>, NoRoom> {
    let chooser = Chooser { policy: &FirstCome, weights: None };
    let place = (TierIx::MEMORY, Time::ZERO);
    pool.allocate(chooser, (0, Kind::Kv), Wanted { blocks, units: 1 }, Draw::Ordinary, place)
}

#[test]
fn an_allocation_that_runs_out_of_names_takes_nothing() {
    let (mut pool, server) = joined(2);
    // Three names and two whole blocks are left on one core, one whole block on the other. The reserve is two
    // blocks: one core may divide one, and the first has more room.
    takes(&mut pool, (server, 0), 32_764, 1);
    takes(&mut pool, (server, 0), 1, 4);
    takes(&mut pool, (server, 1), 3, WHOLE);
    let room = pool.room();
    assert_eq!(room, (u64::from(WHOLE), 3 * u64::from(WHOLE), 2 * u64::from(WHOLE)));
    assert_eq!(ask(&mut pool, 8), Err(NoRoom));
    assert_eq!(pool.room(), room);
    let taken = ask(&mut pool, 3).unwrap();
    assert!(taken.iter().all(|at| at.block.shard() == ShardIx(0)));
    assert_eq!(ask(&mut pool, 1), Err(NoRoom));
}

#[test]
fn small_blocks_share_blocks_before_they_divide_another() {
    let (mut pool, server) = joined(1);
    takes(&mut pool, (server, 0), 1, WHOLE);
    // The reserve is two of the three blocks that are left.
    assert_eq!(ask(&mut pool, WHOLE).unwrap().len(), WHOLE as usize);
    assert_eq!(ask(&mut pool, 1), Err(NoRoom));
    assert_eq!(pool.room(), (0, 2 * u64::from(WHOLE), 2 * u64::from(WHOLE)));
}
