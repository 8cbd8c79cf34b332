//! The resident memory of a process, from the kernel.

use std::fs;
use std::io;

/// Resident bytes of a process: private anonymous memory (blocks and heap), and shared memory files. They are
/// read from counters, so that hundreds of calls per second are possible.
pub fn resident(pid: u32) -> io::Result<u64> {
    sum(&format!("/proc/{pid}/status"), &["RssAnon:", "RssShmem:"])
}

/// The same, counted by the kernel page by page; a page shared with other processes counts in part. The
/// mappings of the process are locked meanwhile.
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
            let what = format!("{path} has no field {name} this kernel is not supported");
            io::Error::new(io::ErrorKind::InvalidData, what)
        };
        sum += kib.ok_or_else(missing)? * 1024;
    }
    Ok(sum)
}
