//! Promotion of blocks from a disk to memory, and memory that replies still use after a demotion.

use super::*;

/// Reads the whole file. Returns whether the shard requested a promotion.
fn requests_promotion(world: &mut World) -> bool {
    world.read(0, 0, SIZE as u32);
    let requested =
        world.shard.out().take_effects().iter().any(|e| matches!(e, Effect::Promote { .. }));
    world.drain();
    requested
}

#[test]
fn block_that_is_read_often_is_promoted_and_read_from_memory() {
    let mut world = below();
    // Every reader reads a file once to its end, and two reads are not frequent.
    assert!(!requests_promotion(&mut world) && !requests_promotion(&mut world));
    // The shard forgets reads after a few seconds.
    world.now = world.now + Duration::from_secs(5);
    assert!(
        !requests_promotion(&mut world)
            && !requests_promotion(&mut world)
            && requests_promotion(&mut world)
    );
    let at = world.files[0].at.unwrap();
    world.raise(at);
    assert_eq!(
        world.shard.reports().in_memory(),
        (1, 0),
        "the block owns its frame before the read ends"
    );
    // Reads use the disk until the promotion ends.
    world.read(0, 100, 5000);
    assert_eq!(world.awaited.len(), 1);
    world.drain();
    assert_eq!((world.seen[3], world.disk.taken()), (1, 0), "the slot on the disk is free");
    world.read(0, 0, SIZE as u32);
    assert!(world.awaited.is_empty(), "the file is read from memory");
    // An append and a second demotion leave the same bytes.
    world.append(0, 5000);
    world.lower(0);
    world.drain();
    world.read(0, 0, SIZE as u32);
    world.drain();
    assert_eq!((world.seen[2], world.files[0].bytes.len()), (2, 37_000));
}

#[test]
fn promotion_that_is_not_granted_is_requested_less_and_less_often() {
    let mut world = below();
    let mut requested = Vec::new();
    let begun = world.now;
    while world.now.since(begun) < Duration::from_secs(60) {
        if requests_promotion(&mut world) {
            requested.push(world.now.since(begun).as_secs());
        }
        world.now = world.now + Duration::from_millis(200);
    }
    assert!((4..=7).contains(&requested.len()), "{requested:?}");
    let pauses: Vec<u64> = requested.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses[0] <= 6 && *pauses.last().unwrap() >= 15, "{pauses:?}");
}

#[test]
fn block_whose_disk_cannot_be_read_stays_on_its_tier() {
    let mut world = below();
    let at = world.files[0].at.unwrap();
    world.raise(at);
    world.settle();
    let io = world.pending.pop().unwrap();
    world.disk.fail_reads(2);
    let (id, done) = io.carry_out(&*world.disk, 0);
    world.shard.tiers().io_done(world.now, id, done);
    let told = world.shard.out().take_effects();
    assert!(matches!(told[..], [Effect::TierChanged { tier: TierIx(1), .. }]), "{told:?}");
    assert_eq!(world.shard.reports().in_memory(), (0, 0));
    world.read(0, 0, SIZE as u32);
    world.drain();
}

/// A flush retains a block that was promoted for a writer and has no new bytes. The block then releases its
/// share of the write cache, because the flush reads the bytes from the disk.
#[test]
fn block_without_new_bytes_that_a_flush_retains_leaves_the_write_cache() {
    let mut world = World::new();
    world.open(0, false);
    world.append(0, 1);
    world.lower(0);
    world.drain();
    world.append(0, 1);
    world.drain();
    assert_eq!(world.shard.reports().in_memory(), (0, 1), "the block was promoted");
    world.flush(0);
    world.drain();
    assert_eq!(world.shard.reports().in_memory(), (0, 0), "no reader uses the memory");
    world.flush(0);
    world.end();
}

/// Demotes a block while a reply still sends its bytes. Returns the tier that the server reports to a
/// restarted controller and the target tier, before the reply ends and afterwards.
fn reported_while_a_reply_is_sent() -> [(u16, u16); 2] {
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
        let [held] = &world.shard.reports().holdings()[..] else { panic!("there is one block") };
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
fn memory_that_a_reply_still_uses_is_reported_as_taken() {
    assert_eq!(reported_while_a_reply_is_sent(), [(0, 1), (1, 1)]);
}

#[cfg(feature = "bug-bank")]
#[test]
fn memory_that_is_not_reported_while_a_reply_uses_it_is_caught() {
    use honeycomb_types::Bug;
    Bug::arm(Some(Bug::TierForgottenAtRejoin));
    let told = reported_while_a_reply_is_sent();
    Bug::arm(None);
    assert_eq!(told[0], (1, 1));
}

/// Appends to a demoted file and reads the file to its end.
fn append_to_demoted() {
    let mut world = below();
    while world.files[0].bytes.len() < 40_000 {
        world.append(0, 1000);
        world.drain();
    }
    world.read(0, 0, SIZE as u32);
    world.drain();
}

#[test]
fn open_end_of_a_file_is_promoted_whole() {
    append_to_demoted();
}

#[cfg(feature = "bug-bank")]
#[test]
#[should_panic(expected = "other bytes than were written")]
fn open_end_that_is_promoted_without_its_last_page_is_caught() {
    use honeycomb_types::Bug;
    Bug::arm(Some(Bug::PromotedWithoutTail));
    append_to_demoted();
}
