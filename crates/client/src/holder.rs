//! The process that holds a job, and whether it has ended.

use honeycomb_wire::key_hash;
use honeycomb_wire::messages::JobHolder;
use std::fs;

/// Maximum length of a host name that is sent.
const HOST_MAX: usize = 255;

/// This process; no process if the kernel does not report when it started.
pub(crate) fn this_process() -> JobHolder {
    let process = std::process::id();
    let (Some(scope), Some(started)) = (scope(), started(process)) else {
        return JobHolder::default();
    };
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let host = if host.len() > HOST_MAX { "" } else { host };
    JobHolder { host: host.to_owned(), scope, process, started }
}

/// Whether the holder ran in the same scope as this process and has ended. A process elsewhere
/// counts as alive, because nothing is known about it.
pub(crate) fn is_gone(holder: &JobHolder) -> bool {
    holder.process != 0
        && scope() == Some(holder.scope)
        && started(holder.process) != Some(holder.started)
}

/// Identifies the boot of the machine and the namespace that numbers its processes.
fn scope() -> Option<u64> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(key_hash(format!("{} {}", boot.trim(), namespace.display()).as_bytes()))
}

/// When a process started, in ticks since the machine did; `None` if it has ended, even if its
/// parent has not collected its exit code.
fn started(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name is in parentheses and may contain anything; the state follows, and the start is the
    // 20th field after the name.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    fields.nth(18)?.parse().ok().filter(|_| !ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_runs_is_not_gone_and_its_number_alone_proves_nothing() {
        let own = this_process();
        assert!(own.process != 0 && !own.host.is_empty(), "{own:?}");
        assert!(!is_gone(&own));
        assert!(is_gone(&JobHolder { started: own.started + 1, ..own.clone() }), "number reused");
        assert!(!is_gone(&JobHolder { scope: own.scope ^ 1, started: 0, ..own }), "elsewhere");
        assert!(!is_gone(&JobHolder::default()), "nobody");
    }

    #[test]
    fn process_that_was_killed_is_gone_before_and_after_its_parent_asks_for_it() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cat starts");
        let started = started(child.id()).expect("the child runs");
        let held = JobHolder { process: child.id(), started, ..this_process() };
        assert!(!is_gone(&held));
        drop(child.stdin.take());
        child.wait().expect("the child ends");
        assert!(is_gone(&held));
    }
}
