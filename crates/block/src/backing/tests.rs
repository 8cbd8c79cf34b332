//! Tests of a block's memory.
#![allow(unsafe_code)]

use super::*;

fn backing(length: usize) -> Backing {
    Backing::map(length, &Reclaimer::inline()).unwrap()
}

#[test]
fn memory_begins_as_zero_and_keeps_what_is_written() {
    let mut b = backing(65536);
    assert!(b.slice(0..65536).iter().all(|x| *x == 0));
    b.slice_mut(10..13).copy_from_slice(b"abc");
    b.copy_within(10..13, 11);
    assert_eq!(b.slice(10..14), b"aabc");
}

#[test]
fn a_pin_outlives_its_block_and_its_bytes_do_not_change() {
    let mut b = backing(65536);
    b.slice_mut(0..3).copy_from_slice(b"abc");
    let pin = b.pin(0..3);
    assert!(b.is_pinned(&(2..4)));
    b.slice_mut(3..6).copy_from_slice(b"def");
    drop(b);
    let other = std::thread::spawn(move || pin.bytes().to_vec()).join().unwrap();
    assert_eq!(other, b"abc");
}

#[test]
#[should_panic(expected = "pinned")]
fn a_pinned_range_cannot_be_written() {
    let mut b = backing(65536);
    let _pin = b.pin(0..3);
    b.slice_mut(2..4);
}

#[test]
fn a_dropped_pin_frees_its_range() {
    let mut b = backing(65536);
    drop(b.pin(0..3));
    b.slice_mut(0..3);
}

/// All accesses to bytes, at random, compared with a plain array, while pins are made and
/// dropped.
#[test]
fn a_block_is_an_array_with_pins() {
    const LENGTH: usize = 8192;
    let (steps, mut state) = (if cfg!(miri) { 400 } else { 40_000 }, 7u64);
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) as usize % below
    };
    let (mut b, mut model) = (backing(LENGTH), vec![0u8; LENGTH]);
    let mut pins: Vec<(Pin, Vec<u8>)> = Vec::new();
    for step in 0..steps {
        let start = random(LENGTH + 1);
        let end = (start + random(200)).min(LENGTH);
        match random(7) {
            0 if pins.len() < 8 => pins.push((b.pin(start..end), model[start..end].to_vec())),
            1 if !pins.is_empty() => drop(pins.swap_remove(random(pins.len()))),
            2 if !b.is_pinned(&(start..end)) => {
                b.slice_mut(start..end).fill(step as u8);
                model[start..end].fill(step as u8);
            }
            3 => {
                let to = random(LENGTH + 1 - (end - start));
                if !b.is_pinned(&(to..to + end - start)) {
                    b.copy_within(start..end, to);
                    model.copy_within(start..end, to);
                }
            }
            // To the last byte, and beyond it, where a prefetch is ignored.
            4 => b.prefetch(start..LENGTH),
            5 => b.prefetch(start..end + random(2 * LENGTH)),
            _ => assert_eq!(b.slice(start..end), &model[start..end]),
        }
        for (pin, bytes) in &pins {
            assert_eq!(pin.bytes(), bytes, "pinned bytes do not change");
        }
    }
    assert_eq!(b.slice(0..LENGTH), model);
}

/// Another thread's reads through a pin happen before the bytes are written again: Miri reports
/// any violation as a race.
#[test]
fn a_pin_that_another_thread_drops_was_read_before_the_bytes_change() {
    let mut b = backing(4096);
    for round in 0..if cfg!(miri) { 4 } else { 400u32 } {
        b.slice_mut(0..64).fill(round as u8);
        let pins = [b.pin(0..40), b.pin(20..64)];
        let readers = pins.map(|pin| {
            let clone = pin.clone();
            std::thread::spawn(move || {
                let same = |pin: Pin| pin.bytes().iter().all(|byte| *byte == round as u8);
                same(pin) && same(clone)
            })
        });
        while b.is_pinned(&(0..64)) {
            std::thread::yield_now();
        }
        b.slice_mut(0..64).fill(!(round as u8));
        for reader in readers {
            assert!(reader.join().unwrap(), "round {round}: bytes changed under a pin");
        }
    }
}

#[test]
#[cfg(not(miri))] // which has no `madvise`
fn what_is_discarded_is_zero_and_not_resident() {
    let mut b = backing(1 << 20);
    b.slice_mut(0..1 << 20).fill(7);
    assert!(b.discard(100..(1 << 20) - 100));
    let page = page_size();
    assert_eq!((b.slice(0..1)[0], b.slice(page - 1..page)[0]), (7, 7));
    assert!(b.slice(page..(1 << 20) - page).iter().all(|x| *x == 0));
    assert_eq!(b.slice((1 << 20) - 1..1 << 20)[0], 7);
    b.slice_mut(page..page + 1)[0] = 1;
    assert!(b.discard(10..20), "less than a page changes nothing");
}

/// Whether a block requests small pages: `nh` of the flags that the kernel reports for its mapping.
fn requests_small(b: &Backing) -> bool {
    let at = b.slice(0..1).as_ptr() as usize;
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("the kernel reports mappings");
    let mut is_mapping = false;
    for line in maps.lines() {
        if let Some((from, to)) = line.split(' ').next().and_then(|range| range.split_once('-')) {
            let number = |text| usize::from_str_radix(text, 16).expect("an address");
            is_mapping = (number(from)..number(to)).contains(&at);
        }
        if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_mapping) {
            return flags.split(' ').any(|flag| flag == "nh");
        }
    }
    panic!("{at:x} is not mapped");
}

#[test]
#[cfg(not(miri))] // which has no `madvise`
fn memory_that_is_used_again_requests_huge_pages() {
    const LENGTH: usize = 16 << 20;
    let (reclaimer, _worker) = Reclaimer::with_worker(64 << 20, usize::MAX, None);
    let mut b = filled(ONE, LENGTH, 7, &reclaimer);
    let at = b.slice(0..1).as_ptr();
    assert!(b.discard(8192..16384) && requests_small(&b));
    drop(b);
    let b = Backing::map_part(ONE, true, (LENGTH, LENGTH), &reclaimer).unwrap();
    assert_eq!(b.slice(0..1).as_ptr(), at, "the same memory");
    assert!(!requests_small(&b));
}

/// The kernel fills a huge page with zero bytes where only a part of it is resident.
#[test]
#[cfg(not(miri))] // which has no `madvise`
fn what_is_returned_of_a_huge_page_stays_with_the_system() {
    const LENGTH: usize = 16 << 20;
    let reclaimers = [Reclaimer::inline(), Reclaimer::with_worker(0, 64 << 20, None).0];
    for reclaimer in &reclaimers {
        let mut b = Backing::map(LENGTH, reclaimer).unwrap();
        assert!(!requests_small(&b));
        b.slice_mut(0..LENGTH / 2).fill(7);
        b.discard(HUGE_PAGE + 8192..HUGE_PAGE + 16384);
        assert!(requests_small(&b), "a hole");
        b.slice_mut(HUGE_PAGE..2 * HUGE_PAGE).fill(7);
        assert!(requests_small(&b), "it does not grow");
        b.slice_mut(LENGTH / 2..LENGTH).fill(7);
        assert!(!requests_small(&b), "it grows");
        b.shed_rest(LENGTH / 4 + 8192);
        assert!(requests_small(&b), "the rest of a page");
        b.slice_mut(0..LENGTH).fill(7);
        assert!(!requests_small(&b), "it grows again");
        assert!(b.reduce(HUGE_PAGE - 4096));
        assert!(requests_small(&b), "a small block");
        b.enlarge(LENGTH);
        assert!(!requests_small(&b));
    }
}

#[test]
#[should_panic(expected = "discarded")]
fn what_is_pinned_is_not_discarded() {
    let mut b = backing(1 << 20);
    let _pin = b.pin(0..3);
    b.discard(0..1 << 20);
}

#[test]
#[cfg(not(miri))] // which has no memory files
fn a_frozen_block_reads_as_before_and_pins_keep_what_they_had() {
    let mut b = backing(65536);
    b.slice_mut(0..3).copy_from_slice(b"abc");
    b.slice_mut(3..9).copy_from_slice(b"beyond");
    let pin = b.pin(0..3);
    let shared = Shared::copy(pin.bytes()).unwrap();
    b.freeze(&shared).unwrap();
    drop(shared);
    assert_eq!((b.len(), b.slice(0..3)), (3, &b"abc"[..]));
    assert_eq!(pin.bytes(), b"abc");
    drop(pin);
    assert!(std::panic::catch_unwind(move || b.slice_mut(0..1).fill(0)).is_err());
}

const ONE: Tenant = Tenant(1);

fn filled(tenant: Tenant, length: usize, with: u8, reclaimer: &Reclaimer) -> Backing {
    let mut b = Backing::map_part(tenant, true, (length, length), reclaimer).unwrap();
    b.slice_mut(0..length).fill(with);
    b
}

/// INV-04: freed memory is reused only by its own tenant, the last freed first.
#[test]
#[cfg_attr(miri, ignore = "looks at every byte of many pages, which takes Miri minutes")]
fn freed_memory_is_handed_on_to_its_tenant_alone() {
    // The worker does not run, so nothing is reclaimed by time.
    let (reclaimer, _worker) = Reclaimer::with_worker(1 << 20, usize::MAX, None);
    let mut held = Vec::new();
    let mut begins_with = |tenant, used, length| {
        let b = Backing::map_part(tenant, used, (length, length), &reclaimer).unwrap();
        let first = b.slice(0..1)[0];
        assert!(b.slice(0..length).iter().all(|x| *x == first));
        // Held until the end.
        held.push(b);
        first
    };
    let two = [7, 8].map(|with| filled(ONE, 65536, with, &reclaimer));
    drop(two);
    drop(filled(ONE, 4096, 9, &reclaimer));
    drop(Backing::map_part(ONE, false, (65536, 65536), &reclaimer).unwrap());
    assert_eq!(begins_with(Tenant(2), true, 65536), 0, "of another tenant");
    assert_eq!(begins_with(ONE, false, 65536), 0, "for one that wants zeros");
    assert_eq!(begins_with(ONE, true, 65536), 8);
    assert_eq!(begins_with(ONE, true, 65536), 7);
    assert_eq!(begins_with(ONE, true, 65536), 0, "there is no other that was written");
    // Pinned memory is not reused, and frozen memory never is.
    let mut read = filled(ONE, 65536, 5, &reclaimer);
    let pin = read.pin(0..1);
    drop(read);
    assert_eq!(begins_with(ONE, true, 65536), 0);
    drop(pin);
    assert_eq!(begins_with(ONE, true, 65536), 5);
    // Beyond the limit, the oldest is reclaimed.
    let many: Vec<Backing> = (1..=17).map(|with| filled(ONE, 65536, with, &reclaimer)).collect();
    drop(many);
    let found: Vec<u8> = (0..17).map(|_| begins_with(ONE, true, 65536)).collect();
    assert_eq!(found, (2..=17).rev().chain([0]).collect::<Vec<u8>>());
}

/// A partly pinned mapping keeps only the pinned part, if the pin lives longer than a tick.
#[test]
#[cfg(not(miri))] // which would wait in its own time
fn what_is_read_of_a_freed_block_keeps_no_more_than_that() {
    let resident = |pin: &Pin, page: usize| {
        let mut pages = [0u8; 16];
        let from = pin.mapping.ptr();
        // SAFETY: the pages are those of a live mapping, and there is a byte for each.
        let told = unsafe { libc::mincore(from.cast(), 65536, pages.as_mut_ptr()) };
        assert_eq!(told, 0);
        pages[page] & 1 == 1
    };
    let (reclaimer, worker) = Reclaimer::with_worker(1 << 20, usize::MAX, None);
    let running = std::thread::spawn(move || worker.run());
    let mut b = filled(ONE, 65536, 7, &reclaimer);
    let (pin, other) = (b.pin(5000..5001), b.pin(20_000..30_000));
    drop(b);
    while (0..16).any(|page| resident(&pin, page) != [1, 4, 5, 6, 7].contains(&page)) {
        std::thread::yield_now();
    }
    assert!(pin.bytes() == [7] && other.bytes().iter().all(|byte| *byte == 7));
    drop((pin, other));
    drop(reclaimer);
    running.join().unwrap();
}

/// INV-32: if all memory is in use none is cached, and cached memory is reclaimed first.
#[test]
#[cfg_attr(miri, ignore = "looks at every byte of many pages, which takes Miri minutes")]
fn what_is_kept_and_what_is_in_use_are_bounded_together() {
    let (reclaimer, _worker) = Reclaimer::with_worker(1 << 20, 4 * 65536, None);
    let mut all: Vec<Backing> = (0..4).map(|n| filled(ONE, 65536, n, &reclaimer)).collect();
    drop(all.pop());
    assert_eq!(reclaimer.keeps(), 65536, "there is room for one");
    all.push(Backing::map_part(Tenant(2), true, (65536, 65536), &reclaimer).unwrap());
    assert_eq!(reclaimer.keeps(), 0, "another tenant has it in use");
    all.push(filled(ONE, 65536, 9, &reclaimer));
    drop(all.pop());
    assert_eq!(reclaimer.keeps(), 0);
}

/// A steady stream of immediate reclaims does not delay the worker's ticks.
#[test]
#[cfg(not(miri))] // which would wait in its own time
fn what_is_kept_goes_back_while_other_memory_comes_and_goes() {
    let (reclaimer, worker) = Reclaimer::with_worker(1 << 20, usize::MAX, None);
    let running = std::thread::spawn(move || worker.run());
    drop(filled(ONE, 65536, 7, &reclaimer));
    let turns = (0..10_000_000).take_while(|_| {
        // Without a tenant it cannot be reused, and is reclaimed at once.
        drop(Backing::map(4096, &reclaimer).unwrap());
        reclaimer.keeps() > 0
    });
    assert!(turns.count() < 10_000_000, "it is kept for ever");
    drop(reclaimer);
    running.join().unwrap();
}

/// Cached memory that is not reused is reclaimed by time, and at the end.
#[test]
#[cfg(not(miri))] // which would wait in its own time
fn what_is_kept_too_long_is_given_back() {
    let (reclaimer, worker) = Reclaimer::with_worker(1 << 20, usize::MAX, None);
    let running = std::thread::spawn(move || worker.run());
    drop(filled(ONE, 65536, 7, &reclaimer));
    // The time is the worker's own, so the test can only poll.
    while reclaimer.keeps() > 0 {
        std::thread::yield_now();
    }
    drop(filled(ONE, 65536, 7, &reclaimer));
    drop(reclaimer);
    running.join().unwrap();
}

const BLOCK: usize = 8 << 20;

fn part(capacity: usize, reclaimer: &Reclaimer) -> Backing {
    Backing::map_part(ONE, true, (BLOCK, capacity), reclaimer).unwrap()
}

#[test]
#[cfg(not(miri))] // which cannot move pages
fn block_that_is_enlarged_keeps_its_bytes_and_is_zero_behind_them() {
    for pinned in [false, true] {
        let mut b = part(65536, &Reclaimer::inline());
        b.slice_mut(0..65536).fill(7);
        let pin = pinned.then(|| b.pin(1..3));
        for capacity in [256 << 10, 2 << 20, BLOCK] {
            b.enlarge(capacity);
            assert!(b.slice(0..65536).iter().all(|byte| *byte == 7), "{capacity}");
            assert!(b.slice(65536..capacity).iter().all(|byte| *byte == 0), "{capacity}");
        }
        assert!(pin.is_none_or(|pin| pin.bytes() == [7, 7]));
        b.slice_mut(BLOCK - 1..BLOCK)[0] = 1;
    }
}

#[test]
#[should_panic(expected = "INV-60")]
fn bytes_beyond_the_capacity_cannot_be_written() {
    part(65536, &Reclaimer::inline()).slice_mut(65535..65537);
}

/// INV-04, INV-32: memory counts up to its capacity, and a block that grows continues in memory that
/// its tenant has freed.
#[test]
#[cfg_attr(miri, ignore = "looks at every byte of many pages, which takes Miri minutes")]
fn block_that_grows_continues_in_freed_memory_of_its_tenant_alone() {
    let (reclaimer, _worker) = Reclaimer::with_worker(BLOCK, 3 * BLOCK, None);
    drop(filled(ONE, BLOCK, 9, &reclaimer));
    let mut other = Backing::map_part(Tenant(2), true, (BLOCK, 65536), &reclaimer).unwrap();
    assert!(reclaimer.has_freed(ONE, BLOCK) && !reclaimer.has_freed(Tenant(2), BLOCK));
    other.enlarge(BLOCK);
    assert_eq!(other.slice(BLOCK - 1..BLOCK)[0], 0, "of another tenant");
    let mut b = part(65536, &reclaimer);
    b.slice_mut(0..3).copy_from_slice(b"abc");
    let pin = b.pin(0..3);
    b.enlarge(BLOCK);
    assert_eq!((b.slice(0..3), pin.bytes()), (&b"abc"[..], &b"abc"[..]));
    assert_eq!((b.slice(BLOCK - 1..BLOCK)[0], reclaimer.keeps()), (9, 0));
    assert!(!reclaimer.has_freed(ONE, BLOCK));
    drop((b, pin, other));
    assert!(reclaimer.keeps() <= BLOCK, "no more is kept");
}

#[test]
fn what_is_taken_out_of_a_block_is_held_while_it_is_read() {
    let mut b = backing(65536);
    b.slice_mut(0..3).copy_from_slice(b"abc");
    let pin = b.pin(0..3);
    let memory = b.extract();
    assert_eq!((b.floor(), memory.floor(), memory.is_held()), (65536, 0, true));
    assert_eq!((b.len(), memory.slice(0..3)), (65536, &b"abc"[..]));
    drop(pin);
    assert!(!memory.is_held());
    // A prefetch is not visible.
    b.prefetch(0..64);
}

#[test]
#[should_panic(expected = "INV-41")]
fn what_is_absent_cannot_be_read() {
    Backing::absent(65536, &Reclaimer::inline()).slice(0..1);
}

#[test]
#[should_panic(expected = "INV-41")]
fn what_lies_before_the_floor_cannot_be_written() {
    let mut b = backing(65536);
    b.set_floor(16384);
    b.slice_mut(16384..16385)[0] = 1;
    b.slice_mut(16383..16385);
}

#[test]
fn counted_memory_counts_until_nobody_reads_it() {
    let count = Arc::default();
    let mut b = Backing::counted(8192, &count, &Reclaimer::inline()).unwrap();
    let pin = b.pin(0..100);
    drop(b);
    assert_eq!(count.load(Relaxed), 8192);
    drop(pin);
    assert_eq!(count.load(Relaxed), 0);
}

/// INV-04, and that reads in a lower tier map no new memory each.
#[test]
fn counted_memory_is_used_again_and_begins_as_zero() {
    let (reclaimer, _worker) = Reclaimer::with_worker(1 << 20, usize::MAX, None);
    let count = Arc::default();
    for (round, length) in [40_000, 65_536, 33_000, 50_001].into_iter().enumerate() {
        let mut b = Backing::counted(length, &count, &reclaimer).unwrap();
        assert_eq!((b.len(), b.capacity(), count.load(Relaxed)), (length, length, length));
        assert_eq!(reclaimer.keeps(), 0, "round {round}: the kept memory is in use");
        assert!(b.slice(0..length).iter().all(|byte| *byte == 0), "round {round}: old bytes");
        b.slice_mut(0..length).fill(round as u8 + 1);
        drop(b);
        assert_eq!(count.load(Relaxed), 0);
        assert!(reclaimer.keeps() >= length);
    }
    // No job gets it.
    let job = Backing::map_part(Tenant(1), true, (65_536, 65_536), &reclaimer).unwrap();
    assert!(job.slice(0..65_536).iter().all(|byte| *byte == 0) && reclaimer.keeps() > 0);
}

#[test]
#[should_panic(expected = "outside")]
fn nothing_beyond_the_block_can_be_reached() {
    backing(65536).slice(65530..65537);
}
