//! Facts about this machine from the kernel. Nothing here blocks.

use crate::failure::CommandResult;
use std::fs;

/// The memory limit of a process: the memory of the machine, or the limit of its control group if that is
/// less.
pub fn memory() -> CommandResult<u64> {
    let total = meminfo("MemTotal")
        .ok_or("cannot read the memory size of this machine from /proc/meminfo: set --memory")?;
    Ok(group_limit().map_or(total, |limit| limit.min(total)))
}

/// A line of `/proc/meminfo`, in bytes.
pub fn meminfo(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let rest = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = rest.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The memory limit of the control groups of this process, version 2 or 1: the smallest limit on the path to
/// the root. `None` without a limit.
pub fn group_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let limits = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        if controllers.is_empty() {
            smallest("/sys/fs/cgroup", path, "memory.max")
        } else if controllers.split(',').any(|c| c == "memory") {
            smallest("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
        } else {
            None
        }
    });
    // Version 1 has a number larger than any memory for "no limit".
    limits.min().filter(|limit| *limit < 1 << 60)
}

fn smallest(root: &str, path: &str, file: &str) -> Option<u64> {
    let mut path = path.trim_matches('/');
    let mut least = None;
    loop {
        let limit = fs::read_to_string(format!("{root}/{path}/{file}")).ok();
        let limit: Option<u64> = limit.and_then(|text| text.trim().parse().ok());
        least = least.into_iter().chain(limit).min();
        if path.is_empty() {
            return least;
        }
        path = path.rsplit_once('/').map_or("", |(above, _)| above);
    }
}
