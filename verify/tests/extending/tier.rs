//! A kind of lower tier: a volume that keeps everything on two disks, and loses nothing with one of them.

use crate::common::config;
use crate::structure::{add, at, flushed, shard_with_numbers, sum};
use honeycomb_env::{MemoryVolume, Volume};
use honeycomb_server::{Effect, Shard, ShardConfig, VolumeParts};
use honeycomb_types::{TierClass, TierIx, TierSpec, Time};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Two disks with the same bytes.
struct Mirror {
    first: MemoryVolume,
    second: MemoryVolume,
    first_failed: AtomicBool,
}

impl Volume for Mirror {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        match self.first_failed.load(Relaxed) {
            true => self.second.read(at, into),
            false => self.first.read(at, into),
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.first.write(at, bytes)?;
        self.second.write(at, bytes)
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.first.discard(range.clone())?;
        self.second.discard(range)
    }

    fn is_direct(&self) -> bool {
        false
    }
}

/// The tier carries out the requests of a shard, until there are no more.
fn carry_out(shard: &mut Shard, now: Time, volume: &Mirror) {
    loop {
        let requests = shard.tiers().take_io();
        if requests.is_empty() {
            return shard.tick(now);
        }
        for io in requests {
            let (id, done) = io.carry_out(volume, 0);
            shard.tiers().io_done(now, id, done);
        }
    }
}

#[test]
fn block_in_a_new_tier_is_read_from_it_also_when_a_disk_has_failed() {
    let volume = Arc::new(Mirror {
        first: MemoryVolume::new(),
        second: MemoryVolume::new(),
        first_failed: AtomicBool::new(false),
    });
    let disks = vec![TierSpec { class: TierClass::Ssd, blocks: 2 }];
    let mut shard = shard_with_numbers(ShardConfig { disks, ..config(64 << 10, 2) });
    let now = Time::from_millis(5000);
    (1..=100).for_each(|n| assert_eq!(add(&mut shard, now, n, n).args, b""));
    shard.tiers().change_tier(at(), TierIx(1)).unwrap();
    carry_out(&mut shard, now, &volume);
    let effects = shard.out().take_effects();
    let arrived = |effect: &Effect| matches!(effect, Effect::TierChanged { tier: TierIx(1), .. });
    assert!(effects.iter().any(arrived), "{effects:?}");
    assert_eq!(shard.reports().in_memory().0, 0, "the frame is free");
    volume.first_failed.store(true, Relaxed);
    assert_eq!(sum(&mut shard, now), 5050);
    let parts: VolumeParts = Arc::from([(volume.clone() as Arc<dyn Volume>, 0)]);
    let content: Vec<u8> = (1..=100_u64).flat_map(u64::to_le_bytes).collect();
    assert_eq!(flushed(&mut shard, now, &parts), content);
}
