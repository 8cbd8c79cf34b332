//! Blocks of extents that are demoted and promoted: each extent keeps its content until it is dropped, and
//! none is written in a lower tier.

use crate::below::{BLOCKS, Below, DISK, at};
use honeycomb_env::Entropy;
use honeycomb_types::{BlockAt, Kind, TierIx, sizes};
use honeycomb_wire::messages::{ExtentAdoptRequest, ExtentDropRequest, ExtentName};
use honeycomb_wire::{Field, Op, Status};
use std::collections::BTreeMap;
use std::time::Duration;

const SIZE: usize = 256 << 10;

/// The content of each block, by id.
type Held = Vec<BTreeMap<u64, Vec<u8>>>;

fn payload(world: &mut Below) -> Vec<u8> {
    let length = sizes::size(world.rng.next_u64(), SIZE, 1, SIZE / 8);
    let mut noise = Entropy::seeded(world.rng.next_u64());
    (0..length).map(|_| noise.next_u64() as u8).collect()
}

/// Writes an extent and has it adopted; false if the block accepts no more.
fn put(world: &mut Below, held: &mut Held, block: u32) -> bool {
    let bytes = payload(world);
    let (answer, _) = world.run(block, Op::ExtentPut, &[], &bytes);
    if answer.status == Status::BlockFull {
        return false;
    }
    assert_eq!(answer.status, Status::Ok, "{answer:?}");
    let id = answer.value;
    own(world, block, Op::ExtentAdopt, id);
    assert!(held[block as usize].insert(id, bytes).is_none(), "an id is given once");
    true
}

/// As another shard requests it: an entry owns the extent, or it is dropped.
fn own(world: &mut Below, block: u32, op: Op, id: u64) {
    let BlockAt { block: name, epoch } = at(block);
    let extents = vec![ExtentName { block: name.0, epoch: epoch.0, id }];
    let args = match op {
        Op::ExtentAdopt => ExtentAdoptRequest { structure: 1, owner: 7, extents }.encode(),
        _ => ExtentDropRequest { structure: 1, owner: 7, extents }.encode(),
    };
    let answer = world.peer(block, op, &args);
    assert_eq!(answer.status, Status::Ok, "{answer:?}");
}

fn check(world: &mut Below, held: &Held, block: u32) {
    for (id, bytes) in &held[block as usize] {
        let (answer, read) = world.run(block, Op::ExtentGet, &id.encode(), &[]);
        assert_eq!((answer.status, &read), (Status::Ok, bytes), "extent {id}");
    }
    let (answer, _) = world.run(block, Op::ExtentGet, &u64::MAX.encode(), &[]);
    assert_eq!(answer.status, Status::ExtentGone);
}

fn fill(world: &mut Below, held: &mut Held, block: u32) {
    // Sizes differ: if one does not fit, the next may.
    let mut refused = 0;
    while refused < 40 {
        refused += u32::from(!put(world, held, block));
    }
}

#[test]
fn extents_below_memory_are_read_as_a_whole_and_dropped_where_they_are() {
    let mut world = Below::new(Kind::Extents, SIZE, 1, 3);
    let mut held: Held = vec![BTreeMap::new(); BLOCKS as usize];
    fill(&mut world, &mut held, 0);
    world.lower(0);
    assert_eq!(world.shard.reports().in_memory(), (BLOCKS - 1, 0), "it has no memory");
    check(&mut world, &held, 0);
    // The last extent is dropped: the ones before it are read as they were written with it.
    let (&last, _) = held[0].last_key_value().unwrap();
    own(&mut world, 0, Op::ExtentDrop, last);
    held[0].remove(&last);
    check(&mut world, &held, 0);
    assert!(!put(&mut world, &mut held, 0), "it is full in a lower tier");
    // As time passes, it returns no memory that it does not have.
    for _ in 0..50 {
        world.now = world.now + Duration::from_secs(1);
        world.step();
    }
    check(&mut world, &held, 0);
    world.settle();
    while world.shard.tiers().change_tier(at(0), TierIx::MEMORY).is_err() {
        world.step();
    }
    world.settle();
    assert!(!world.is_below(0));
    fill(&mut world, &mut held, 0);
    check(&mut world, &held, 0);
    assert!(held[0].keys().any(|id| *id > last), "it takes more again");
}

/// Any operations, with any order of the disk's operations.
#[test]
fn extents_are_what_was_written_wherever_their_blocks_are() {
    let mut refused = 0;
    for seed in 0..60 {
        let mut world = Below::new(Kind::Extents, SIZE, 1, seed);
        let mut held: Held = vec![BTreeMap::new(); BLOCKS as usize];
        for _ in 0..300 {
            let block = world.below(BLOCKS as u64) as u32;
            let any = |world: &mut Below, held: &Held| {
                let here = &held[block as usize];
                let nth = world.below(here.len().max(1) as u64) as usize;
                here.iter().nth(nth).map(|(id, bytes)| (*id, bytes.clone()))
            };
            match world.below(20) {
                0..7 => refused += u32::from(!put(&mut world, &mut held, block)),
                7..10 => {
                    if let Some((id, _)) = any(&mut world, &held) {
                        own(&mut world, block, Op::ExtentDrop, id);
                        held[block as usize].remove(&id);
                    }
                }
                10..14 => {
                    if let Some((id, bytes)) = any(&mut world, &held) {
                        let (answer, read) = world.run(block, Op::ExtentGet, &id.encode(), &[]);
                        assert_eq!((answer.status, read), (Status::Ok, bytes));
                    }
                }
                14..17 => drop(world.shard.tiers().change_tier(at(block), DISK)),
                17 => drop(world.shard.tiers().change_tier(at(block), TierIx::MEMORY)),
                _ => world.step(),
            }
        }
        (0..BLOCKS).for_each(|block| check(&mut world, &held, block));
        world.settle();
        (0..BLOCKS).for_each(|block| assert!(world.shard.owners().free(at(block))));
        world.settle();
        assert!(world.shard.reports().tiers_are_quiet(), "seed {seed}: nothing is left of them");
        assert_eq!(world.shard.reports().in_memory(), (0, 0));
    }
    assert!(refused > 100, "{refused}");
}
