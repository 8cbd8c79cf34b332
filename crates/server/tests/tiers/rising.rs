//! Blocks that come up again from a disk, and memory that is still sent from after a block went down.

use super::*;

/// Reads all of the file; whether it wished to come up then.
fn wishes(world: &mut World) -> bool {
    world.read(0, 0, SIZE as u32);
    let wish = world.shard.take_effects().iter().any(|e| matches!(e, Effect::Raise { .. }));
    world.drain();
    wish
}

#[test]
fn what_is_read_often_wishes_to_come_up_and_is_read_from_memory_then() {
    let mut world = below();
    // Once to its end is what everybody does; and twice is not often.
    assert!(!wishes(&mut world) && !wishes(&mut world));
    // Time has passed: what was read before counts no more.
    world.now = world.now + Duration::from_secs(5);
    assert!(!wishes(&mut world) && !wishes(&mut world) && wishes(&mut world));
    let at = world.files[0].at.unwrap();
    world.raise(at);
    assert_eq!(world.shard.in_memory(), (1, 0), "its frame is its own before it is there");
    // Until it is there it is read from the disk.
    world.read(0, 100, 5000);
    assert_eq!(world.awaited.len(), 1);
    world.drain();
    assert_eq!((world.seen[3], world.disk.taken()), (1, 0), "its place on the disk is free");
    world.read(0, 0, SIZE as u32);
    assert!(world.awaited.is_empty(), "it is read from memory");
    // It is written to, and goes down again, as if nothing had been.
    world.append(0, 5000);
    world.lower(0);
    world.drain();
    world.read(0, 0, SIZE as u32);
    world.drain();
    assert_eq!((world.seen[2], world.files[0].bytes.len()), (2, 37_000));
}

#[test]
fn one_that_does_not_come_up_wishes_less_and_less_often() {
    let mut world = below();
    let mut wished = Vec::new();
    let begun = world.now;
    while world.now.since(begun) < Duration::from_secs(60) {
        if wishes(&mut world) {
            wished.push(world.now.since(begun).as_secs());
        }
        world.now = world.now + Duration::from_millis(200);
    }
    assert!((4..=7).contains(&wished.len()), "{wished:?}");
    let pauses: Vec<u64> = wished.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses[0] <= 6 && *pauses.last().unwrap() >= 15, "{pauses:?}");
}

#[test]
fn what_cannot_be_read_stays_where_it_is() {
    let mut world = below();
    let at = world.files[0].at.unwrap();
    world.raise(at);
    world.settle();
    let io = world.pending.pop().unwrap();
    world.disk.fail_reads(2);
    let (id, done) = io.carry_out(&*world.disk, 0);
    world.shard.io_done(world.now, id, done);
    let told = world.shard.take_effects();
    assert!(matches!(told[..], [Effect::TierChanged { tier: TierIx(1), .. }]), "{told:?}");
    assert_eq!(world.shard.in_memory(), (0, 0));
    world.read(0, 0, SIZE as u32);
    world.drain();
}

/// What was brought up for a writer and is kept before anything was written to it gives its room in the
/// warm pool back: what reads it for the flush reads it from the disk.
#[test]
fn what_is_kept_as_it_came_up_gives_its_warm_room_back() {
    let mut world = World::new();
    world.open(0, false);
    world.append(0, 1);
    world.lower(0);
    world.drain();
    world.append(0, 1);
    world.drain();
    assert_eq!(world.shard.in_memory(), (0, 1), "it was brought up");
    world.flush(0);
    world.drain();
    assert_eq!(world.shard.in_memory(), (0, 0), "nobody reads its memory");
    world.flush(0);
    world.end();
}

/// Where a block is that went down while its bytes were being sent, as it is told to a controller that asks anew:
/// before all of that was sent, and after.
fn told_while_it_is_sent() -> [(u16, u16); 2] {
    let mut world = World::new();
    world.open(0, false);
    (0..4).for_each(|_| world.append(0, 8000));
    let at = world.files[0].at.unwrap();
    let sent = world.shard.pin(at, 0..8000);
    world.lower(0);
    while !world.pending.is_empty() {
        world.disk(0, false);
    }
    let told = |world: &World| {
        let [held] = &world.shard.holdings()[..] else { panic!("there is one block") };
        (held.tier.into(), held.to.into())
    };
    let before = told(&world);
    assert_eq!(sent.bytes(), &world.files[0].bytes[..8000]);
    drop(sent);
    world.shard.tick(world.now);
    world.drain();
    [before, told(&world)]
}

#[test]
fn memory_that_is_still_sent_from_is_told_as_taken() {
    assert_eq!(told_while_it_is_sent(), [(0, 1), (1, 1)]);
}

#[cfg(feature = "bug-bank")]
#[test]
fn memory_that_is_forgotten_while_it_is_sent_from_is_seen() {
    use honeycomb_types::Bug;
    Bug::arm(Some(Bug::TierForgottenAtRejoin));
    let told = told_while_it_is_sent();
    Bug::arm(None);
    assert_eq!(told[0], (1, 1));
}

/// A demoted file is appended to and read, its open end included.
fn written_again_below() {
    let mut world = below();
    while world.files[0].bytes.len() < 40_000 {
        world.append(0, 1000);
        world.drain();
    }
    world.read(0, 0, SIZE as u32);
    world.drain();
}

#[test]
fn open_end_is_brought_up_whole() {
    written_again_below();
}

#[cfg(feature = "bug-bank")]
#[test]
#[should_panic(expected = "other bytes than were written")]
fn open_end_that_is_brought_up_without_its_last_page_is_seen() {
    use honeycomb_types::Bug;
    Bug::arm(Some(Bug::PromotedWithoutTail));
    written_again_below();
}
