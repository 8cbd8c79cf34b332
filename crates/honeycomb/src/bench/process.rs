//! Cores, CPU time and memory of processes, as the kernel counts them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::fs;

/// Which core each side runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pinning {
    /// Server and client, when there are two cores to be had.
    pub cores: Option<(usize, usize)>,
}

impl Pinning {
    /// The first two cores that this process may use, unless pinning is not wanted.
    pub fn choose(wanted: bool) -> Pinning {
        let Ok(set) = sched_getaffinity(None) else { return Pinning::default() };
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core));
        match (wanted, cores.next(), cores.next()) {
            (true, Some(server), Some(client)) => Pinning { cores: Some((server, client)) },
            _ => Pinning::default(),
        }
    }

    /// Moves this thread to the server's core, so that a child started now stays there.
    pub fn for_server(self) {
        if let Some((server, _)) = self.cores {
            pin(&[server]);
        }
    }

    /// Moves this thread, and those that it starts from now on, to the client's core.
    pub fn for_client(self) {
        if let Some((_, client)) = self.cores {
            pin(&[client]);
        }
    }

    /// Gives this thread and its later children both cores: for a program that places its own
    /// sides.
    pub fn lift(self) {
        if let Some((server, client)) = self.cores {
            pin(&[server, client]);
        }
    }

    /// For people.
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
    // A kernel that refuses leaves both sides where they are; the figures say less then.
    let _ = sched_setaffinity(None, &set);
}

/// CPU time of the calling thread, in nanoseconds.
pub fn thread_cpu() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Whose CPU time counts as the server's.
#[derive(Clone, Debug)]
pub struct Watched {
    /// The process.
    pub pid: u32,
    /// Only its thread of this name.
    pub thread: Option<&'static str>,
}

impl Watched {
    /// All of a process.
    pub fn process(pid: u32) -> Watched {
        Watched { pid, thread: None }
    }

    /// CPU time so far, in nanoseconds: the sum over its threads, which the kernel counts finer
    /// than the ticks of `stat`.
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

    /// The most resident memory since the process began, or since `forget_peak`, in bytes.
    pub fn peak_resident(&self) -> u64 {
        self.status("VmHWM:")
    }

    /// Lets `peak_resident` begin anew. Where the kernel does not allow it, it goes on as before.
    pub fn forget_peak(&self) {
        let _ = fs::write(format!("/proc/{}/clear_refs", self.pid), "5");
    }

    /// A field of its status that is counted in KiB, in bytes; 0 when the process is gone.
    fn status(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/status", self.pid);
        let Ok(text) = fs::read_to_string(path) else { return 0 };
        let line = text.lines().find_map(|l| l.strip_prefix(name));
        let kib = line.and_then(|l| l.trim().strip_suffix(" kB"));
        kib.and_then(|n| n.trim().parse::<u64>().ok()).map_or(0, |n| n * 1024)
    }
}

/// What the figures were measured on, for the report.
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
