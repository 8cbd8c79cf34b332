//! Checks of the machine: limits, memory, clock, cores.

use super::{Finding, Grade};
use crate::config::{Origin, Settings};
use crate::{machine, size};
use honeycomb_types::limits::CONNECTIONS_MAX;
use rustix::process::{Resource, getrlimit};
use std::fs;

/// File descriptors that are not connections: event queues, pipes, standard streams.
const DESCRIPTORS_APART: u64 = 100;
/// Memory that should be available before a server starts.
const MEMORY_LEAST: u64 = 256 << 20;

/// Open files and locked memory.
pub fn limits() -> Vec<Finding> {
    let files = getrlimit(Resource::Nofile);
    let wanted = CONNECTIONS_MAX as u64 + DESCRIPTORS_APART;
    let hard = files.maximum.unwrap_or(u64::MAX);
    let open_files = match hard >= wanted {
        true => Finding::ok(
            "open files",
            format!(
                "up to {} per process, enough for {CONNECTIONS_MAX} connections",
                shown(files.maximum)
            ),
        ),
        false => Finding::warn(
            "open files",
            format!("at most {hard} per process; {CONNECTIONS_MAX} connections need {wanted}"),
            "raise the hard limit (ulimit -Hn, or nofile in /etc/security/limits.conf); \
             connections beyond it wait",
        ),
    };
    let locked = getrlimit(Resource::Memlock).maximum.map_or("unlimited".into(), size::show);
    vec![
        open_files,
        Finding::ok("locked memory", format!("limit {locked}; Honeycomb locks no memory")),
    ]
}

fn shown(limit: Option<u64>) -> String {
    limit.map_or("any number".into(), |n| n.to_string())
}

/// Compares the memory of the machine with the memory of a server, and checks overcommit and swap.
pub fn memory(settings: &Settings) -> Vec<Finding> {
    let Ok(total) = machine::memory() else {
        let remedy = "mount /proc, or set --memory for `start`";
        return vec![Finding::fail("memory", "cannot read the memory size from /proc", remedy)];
    };
    let limit = machine::group_limit();
    let bound = match limit {
        Some(limit) => format!("control group limit {}", size::show(limit)),
        None => "no control group limit".into(),
    };
    let (wanted, whence) = match (settings.memory(), settings.origin("memory")) {
        (Some(memory), Origin::Default) | (Some(memory), _) => (memory, "configured"),
        (None, _) => (total / 2, "by default"),
    };
    let available = machine::meminfo("MemAvailable").unwrap_or(0);
    let text = format!(
        "a server takes up to {} ({whence}); {} available of {}, {bound}",
        size::show(wanted),
        size::show(available),
        size::show(total)
    );
    let grade = match () {
        () if wanted > total => Grade::Fail,
        () if available < wanted.min(MEMORY_LEAST).max(wanted / 2) => Grade::Warn,
        () => Grade::Ok,
    };
    let remedy = match grade {
        Grade::Ok => None,
        _ => Some("use less --memory, or end other programs: written blocks stay resident".into()),
    };
    vec![Finding { check: "memory", grade, text, remedy }, overcommit(wanted), swap()]
}

fn overcommit(wanted: u64) -> Finding {
    let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    match mode.trim() {
        "2" => {
            let limit = machine::meminfo("CommitLimit").unwrap_or(0);
            let used = machine::meminfo("Committed_AS").unwrap_or(0);
            let left = limit.saturating_sub(used);
            let text = format!(
                "strict (mode 2): {} can still be committed, and a server commits all memory that \
                 it maps",
                size::show(left)
            );
            match left >= wanted {
                true => Finding::ok("overcommit", text),
                false => Finding::warn(
                    "overcommit",
                    text,
                    "use less --memory, or set vm.overcommit_memory to 0 or 1",
                ),
            }
        }
        mode => Finding::ok("overcommit", format!("mode {mode}: mappings are not limited")),
    }
}

fn swap() -> Finding {
    let total = machine::meminfo("SwapTotal").unwrap_or(0);
    if total == 0 {
        return Finding::ok("swap", "none: memory is never swapped out");
    }
    let used = total.saturating_sub(machine::meminfo("SwapFree").unwrap_or(0));
    let text = format!("{} of {} in use", size::show(used), size::show(total));
    match used > total / 2 {
        true => Finding::warn(
            "swap",
            format!("{text}: requests to swapped blocks take milliseconds"),
            "end other programs, or use less --memory",
        ),
        false => Finding::ok("swap", text),
    }
}

/// Checks the monotonic clock, the only clock that leases and deadlines use.
pub fn clock() -> Finding {
    let resolution = rustix::time::clock_getres(rustix::time::ClockId::Monotonic);
    let ns = resolution.tv_sec as u64 * 1_000_000_000 + resolution.tv_nsec as u64;
    let source =
        fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.map_or_else(|_| "unknown".into(), |text| text.trim().to_owned());
    let text = format!(
        "monotonic, resolution {ns} ns, source {source}; the time of day is not used, so clock \
         steps and a missing NTP do no harm"
    );
    match ns > 1_000_000 {
        true => Finding::warn(
            "clock",
            format!("{text}; leases of some hundred milliseconds need a finer resolution"),
            "enable high-resolution timers in the kernel",
        ),
        false => Finding::ok("clock", text),
    }
}

/// Checks transparent huge pages, which make unwritten memory resident.
pub fn huge_pages() -> Finding {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let text = text.unwrap_or_default();
    let state = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    match state.map(|(state, _)| state) {
        Some("always") => Finding::warn(
            "huge pages",
            "transparent huge pages are always on: blocks become resident in steps of 2 MiB, not \
             only where they are written",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, if resident memory \
             matters more than speed",
        ),
        Some(state) => Finding::ok("huge pages", format!("transparent huge pages: {state}")),
        None => Finding::ok("huge pages", "the kernel has no transparent huge pages"),
    }
}

/// Checks /dev/shm: blocks do not use it, Python's multiprocessing does.
pub fn shared_memory() -> Finding {
    match rustix::fs::statvfs("/dev/shm") {
        Ok(found) => {
            let free = found.f_bavail * found.f_frsize;
            let text = format!(
                "{} free; used by semaphores of Python's process pools, not by blocks",
                size::show(free)
            );
            match free < 1 << 20 {
                true => Finding::warn("/dev/shm", text, "enlarge it by some MiB, or empty it"),
                false => Finding::ok("/dev/shm", text),
            }
        }
        Err(e) => Finding::warn(
            "/dev/shm",
            format!("cannot read its size: {e}"),
            "mount a tmpfs there: semaphores of Python's process pools need it",
        ),
    }
}

/// Compares the cores of the machine, the cores that this process may use, and the shards of a server.
pub fn cores(settings: &Settings) -> Finding {
    let usable = std::thread::available_parallelism().map_or(1, |n| n.get());
    let online = fs::read_to_string("/proc/cpuinfo")
        .map_or(usable, |text| text.lines().filter(|l| l.starts_with("processor")).count());
    let shards = settings.shards().map_or(usable.min(64), |n| n as usize);
    let text = format!("{usable} of {online} may be used; a server uses {shards}");
    if shards > usable {
        return Finding::warn(
            "cores",
            format!("{text}: several shards share a core"),
            "use fewer --shards, or allow this process more cores (taskset, cpuset)",
        );
    }
    Finding::ok("cores", text)
}
