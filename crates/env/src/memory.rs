//! The kernel's accounting of this process's memory.

/// Resident anonymous memory of the calling process in bytes, as the kernel counts it; zero if it
/// is not available.
pub fn resident_anonymous_bytes() -> u64 {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return 0 };
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB")).and_then(|n| n.trim().parse().ok());
    kib.map_or(0, |k: u64| k * 1024)
}
