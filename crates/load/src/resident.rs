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
