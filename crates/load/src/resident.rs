//! What the kernel says that a process holds.

use std::fs;
use std::io;

/// Resident bytes of a process that are its own: private anonymous memory, which is behind its
/// blocks and its heap, and memory files that it shares. Read from counters, so that it may be
/// asked hundreds of times a second.
pub fn resident(pid: u32) -> io::Result<u64> {
    sum(&format!("/proc/{pid}/status"), &["RssAnon:", "RssShmem:"])
}

/// The same, counted by the kernel page by page, and a shared page only in part when others have it
/// too. It holds up the process's mappings for as long as that takes.
pub fn resident_walked(pid: u32) -> io::Result<u64> {
    sum(&format!("/proc/{pid}/smaps_rollup"), &["Anonymous:", "Pss_Shmem:"])
}

fn sum(path: &str, names: &[&str]) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    let mut sum = 0;
    for name in names {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        let missing = || {
            let what = format!("{path} does not tell {name} this kernel is not supported");
            io::Error::new(io::ErrorKind::InvalidData, what)
        };
        sum += kib.ok_or_else(missing)? * 1024;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_count_what_a_process_writes() {
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
}
