//! The resident memory of a process, counted in both ways. No other test runs meanwhile, because
//! other tests use memory, too.

use honeycomb_workload::{resident, resident_walked};

#[test]
fn both_ways_count_what_a_process_writes() {
    let _alone = crate::alone();
    let me = std::process::id();
    let (before, walked_before) = (resident(me).unwrap(), resident_walked(me).unwrap());
    let memory = vec![1u8; 64 << 20];
    let (after, walked_after) = (resident(me).unwrap(), resident_walked(me).unwrap());
    assert!(memory.iter().all(|byte| *byte == 1));
    for (before, after) in [(before, after), (walked_before, walked_after)] {
        let grown = after - before;
        assert!((60 << 20..72 << 20).contains(&grown), "{grown} bytes more");
    }
    assert!(resident(u32::MAX).is_err());
}
