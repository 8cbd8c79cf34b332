//! Cores, CPU time and memory of processes, from the kernel.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::fs;

/// The core of each side.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pinning {
    /// Cores of server and client, if there are two.
    pub cores: Option<(usize, usize)>,
}

impl Pinning {
    /// The first two cores that this process may use, or none if pinning is not wanted.
    pub fn choose(wanted: bool) -> Pinning {
        let Ok(set) = sched_getaffinity(None) else { return Pinning::default() };
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core));
        match (wanted, cores.next(), cores.next()) {
            (true, Some(server), Some(client)) => Pinning { cores: Some((server, client)) },
            _ => Pinning::default(),
        }
    }

    /// Moves this thread to the server's core; child processes started afterwards stay there.
    pub fn for_server(self) {
        if let Some((server, _)) = self.cores {
            pin(&[server]);
        }
    }

    /// Moves this thread, and the threads that it starts afterwards, to the client's core.
    pub fn for_client(self) {
        if let Some((_, client)) = self.cores {
            pin(&[client]);
        }
    }

    /// Allows this thread and its later children both cores, for a program that places its sides itself.
    pub fn lift(self) {
        if let Some((server, client)) = self.cores {
            pin(&[server, client]);
        }
    }

    /// A description for people.
    pub fn show(self) -> String {
        match self.cores {
            Some((server, client)) => format!("server on core {server}, client on core {client}"),
            None => "not pinned: the kernel places both sides".into(),
        }
    }
}

fn pin(cores: &[usize]) {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    // If the kernel refuses, both sides stay unpinned, and the figures are less meaningful.
    let _ = sched_setaffinity(None, &set);
}

/// CPU time of the calling thread, in nanoseconds.
pub fn thread_cpu() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The process or thread whose CPU time counts as the server's.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Process id.
    pub pid: u32,
    /// Name of the thread to count; `None` for all threads.
    pub thread: Option<&'static str>,
}

impl Watched {
    /// All threads of a process.
    pub fn process(pid: u32) -> Watched {
        Watched { pid, thread: None }
    }

    /// CPU time so far, in nanoseconds: the sum over the threads, which the kernel counts more finely than
    /// the ticks in `stat`.
    pub fn cpu(&self) -> u64 {
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.pid)) else { return 0 };
        let mut sum = 0;
        for task in tasks.flatten() {
            let path = task.path();
            if let Some(name) = self.thread
                && fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() != name)
            {
                continue;
            }
            let Ok(text) = fs::read_to_string(path.join("schedstat")) else { continue };
            sum += text.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
        sum
    }

    /// Resident anonymous memory, in bytes.
    pub fn resident_anonymous(&self) -> u64 {
        self.status("RssAnon:")
    }

    /// Resident memory of any kind, in bytes.
    pub fn resident(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// Peak resident memory since the start of the process, or since `forget_peak`, in bytes.
    pub fn peak_resident(&self) -> u64 {
        self.status("VmHWM:")
    }

    /// Resets `peak_resident`. If the kernel does not allow it, the peak is not reset.
    pub fn forget_peak(&self) {
        let _ = fs::write(format!("/proc/{}/clear_refs", self.pid), "5");
    }

    /// A field of /proc/PID/status that is in KiB, in bytes; 0 when the process is gone.
    fn status(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/status", self.pid);
        let Ok(text) = fs::read_to_string(path) else { return 0 };
        let line = text.lines().find_map(|l| l.strip_prefix(name));
        let kib = line.and_then(|l| l.trim().strip_suffix(" kB"));
        kib.and_then(|n| n.trim().parse::<u64>().ok()).map_or(0, |n| n * 1024)
    }
}

/// The machine of the measurement, for the report.
pub fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or("");
    let model = model.trim_start_matches([' ', '\t', ':']);
    let cores = std::thread::available_parallelism().map_or(0, |n| n.get());
    let kernel = read("/proc/sys/kernel/osrelease");
    let kernel = kernel.split('-').next().unwrap_or_default().trim().to_owned();
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or_default();
    format!("{cores} cores of {model}, Linux {kernel}, load {load} at the start")
}
