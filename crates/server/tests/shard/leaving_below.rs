//! Blocks that must leave their server while they are in a lower tier, or being demoted.

use crate::below::{BLOCKS, Below, DISK, at};
use honeycomb_server::MoveWord;
use honeycomb_types::{Kind, TierIx};
use honeycomb_wire::{Op, Status};
use std::time::Duration;

const SIZE: usize = 256 << 10;

/// A shard with content in each block.
fn filled(kind: Kind, warm: u32) -> Below {
    let mut world = Below::new(kind, SIZE, warm, 9);
    world.answers_moves = false;
    for block in 0..BLOCKS {
        fill(&mut world, block);
    }
    world
}

fn fill(world: &mut Below, block: u32) {
    let payload = [block as u8; 20_000];
    let (op, args): (Op, &[u8]) = match world.kind {
        Kind::File => (Op::FileAppend, &[]),
        Kind::Queue => (Op::QueuePut, &[]),
        _ => (Op::KvPut, b"\0key"),
    };
    let (answer, _) = world.run(block, op, args, &payload);
    assert_eq!(answer.status, Status::Ok, "{answer:?}");
}

/// Seed 183177895370574 of the simulator: a block that had requested its move was demoted before the move
/// began, and the move sent memory that it no longer had.
#[test]
fn what_has_asked_for_its_move_stays_in_memory() {
    for kind in [Kind::File, Kind::Queue, Kind::Kv] {
        let mut world = filled(kind, 1);
        world.shard.on_exports(world.now, |work| work.evacuate(at(0))).unwrap();
        world.step();
        assert_eq!(world.moves, [at(0)]);
        let refused = world.shard.tiers().change_tier(at(0), DISK).unwrap_err();
        assert_eq!(refused.status, Status::Busy, "{refused:?}");
        // After a refusal, it may be demoted.
        let why = MoveWord::Refused(Status::OutOfMemory, "no room elsewhere".into());
        world.shard.on_exports(world.now, |work| work.move_word(at(0), why));
        world.lower(0);
    }
}

#[test]
fn what_is_below_comes_up_to_leave_one_after_the_other() {
    for kind in [Kind::File, Kind::Queue, Kind::Kv] {
        let mut world = filled(kind, 1);
        (0..BLOCKS).for_each(|block| world.lower(block));
        assert_eq!(world.shard.reports().in_memory(), (0, 0));
        for block in 0..BLOCKS {
            world.shard.on_exports(world.now, |work| work.evacuate(at(block))).unwrap();
        }
        for gone in 0..BLOCKS {
            let mut tries = 0;
            while world.moves.is_empty() {
                world.now = world.now + Duration::from_millis(5);
                world.step();
                assert!(
                    world.shard.reports().in_memory().1 <= 1,
                    "the write cache has room for one"
                );
                tries += 1;
                assert!(tries < 1000, "{kind}: it is promoted");
            }
            let leaving = world.moves.remove(0);
            // It stays in memory until the move begins.
            for _ in 0..100 {
                world.now = world.now + Duration::from_millis(5);
                world.step();
            }
            assert_eq!((&world.moves[..], world.shard.reports().in_memory()), (&[][..], (0, 1)));
            // Another block may be written meanwhile, in memory.
            if kind != Kind::Queue {
                fill(&mut world, leaving.block.index());
            }
            assert!(world.shard.owners().free(leaving), "{gone} have left");
        }
        world.settle();
        assert!(world.shard.reports().tiers_are_quiet());
        assert_eq!(world.shard.reports().in_memory(), (0, 0));
    }
}

/// A block for which there is no place elsewhere blocks no others: it is demoted again, without a write.
#[test]
fn what_cannot_leave_goes_down_again_as_it_was() {
    for kind in [Kind::File, Kind::Queue, Kind::Kv] {
        let mut world = filled(kind, 1);
        (0..2).for_each(|block| world.lower(block));
        world.shard.on_exports(world.now, |work| work.evacuate(at(0))).unwrap();
        while world.moves.is_empty() {
            world.now = world.now + Duration::from_millis(5);
            world.step();
        }
        let written = world.shard.reports().tier_counts().written;
        let why = MoveWord::Refused(Status::OutOfMemory, "no room elsewhere".into());
        world.shard.on_exports(world.now, |work| work.move_word(at(0), why));
        world.answers_moves = true;
        fill(&mut world, 1);
        world.settle();
        assert_eq!(
            world.shard.reports().tier_counts().written,
            written,
            "{kind}: nothing of it was changed"
        );
        // The server stays after all: no block leaves any more.
        let stay = MoveWord::Refused(Status::Removed, "the server stays".into());
        world.answers_moves = false;
        world.moves.clear();
        while world.moves.is_empty() {
            world.now = world.now + Duration::from_millis(50);
            world.step();
        }
        world.shard.on_exports(world.now, |work| work.move_word(at(0), stay));
        let _ = world.shard.tiers().change_tier(at(0), TierIx::MEMORY);
        fill(&mut world, 1);
        world.settle();
        world.moves.clear();
        for _ in 0..100 {
            world.now = world.now + Duration::from_millis(50);
            world.step();
        }
        assert!(world.moves.is_empty());
    }
}
