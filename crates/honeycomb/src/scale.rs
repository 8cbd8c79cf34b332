//! Handles the controller's advice to add or remove servers: logs it, and runs the `scale_hook`.

use honeycomb_controller::Advised;
use honeycomb_env::Clock;
use honeycomb_types::Time;
use rustix::process::{Pid, Signal, kill_process_group};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Minimum time between two starts of the hook.
const SCALE_PAUSE: Duration = Duration::from_secs(60);
/// A hook that runs for longer is killed.
const HOOK_MAX: Duration = Duration::from_secs(30);
/// The interval at which a running hook is polled.
const LOOK: Duration = Duration::from_millis(20);

/// A program to run with the advice as its arguments.
struct Hook {
    program: PathBuf,
    pause: Duration,
    most: Duration,
}

/// Logs each change of the advice and runs the hook, if there is one, until the controller ends.
pub fn follow(advice: Receiver<Advised>, hook: Option<PathBuf>) {
    let hook = hook.map(|program| Hook { program, pause: SCALE_PAUSE, most: HOOK_MAX });
    let say = |line: String| eprintln!("honeycomb: {line}");
    let follow = move || heed(&advice, hook.as_ref(), Clock::start(), say);
    let thread = std::thread::Builder::new().name("scale".into()).spawn(follow);
    thread.expect("a thread can be started");
}

/// Runs `follow` on this thread, so that at most one hook runs at a time.
fn heed(advice: &Receiver<Advised>, hook: Option<&Hook>, clock: Clock, say: impl Fn(String)) {
    let mut latest = Advised::Nothing;
    let mut again: Option<Time> = None;
    loop {
        let acts = hook.filter(|_| latest != Advised::Nothing);
        let came = match acts {
            None => advice.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(_) => {
                let wait = again.map_or(Duration::ZERO, |at| at.since(clock.now()));
                advice.recv_timeout(wait)
            }
        };
        match came {
            Ok(new) => {
                say(told(&new));
                latest = new;
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                // Only the latest advice counts; earlier changes during the pause or the last run are
                // skipped.
                let hook = acts.expect("a time is set only with a hook");
                again = Some(clock.now() + hook.pause);
                let words = words(&latest);
                let ended = run(hook, &words, clock);
                say(format!("{} {}: {ended}", hook.program.display(), words.join(" ")));
            }
        }
    }
}

fn told(advice: &Advised) -> String {
    match advice {
        Advised::Nothing => "advice: keep the present servers".into(),
        Advised::Add { servers: 1, why } => format!("advice: add 1 server of the mean size: {why}"),
        Advised::Add { servers, why } => {
            format!("advice: add {servers} servers of the mean size: {why}")
        }
        Advised::Remove { address, why } => format!("advice: remove server {address}: {why}"),
    }
}

fn words(advice: &Advised) -> Vec<String> {
    match advice {
        Advised::Nothing => Vec::new(),
        Advised::Add { servers, .. } => vec!["add".into(), servers.to_string()],
        Advised::Remove { address, .. } => vec!["remove".into(), address.clone()],
    }
}

/// Runs the hook to its end; answers its result.
fn run(hook: &Hook, words: &[String], clock: Clock) -> String {
    let mut child = match start(&hook.program, words) {
        Ok(child) => child,
        Err(e) => return format!("cannot run it: {e}"),
    };
    let end = clock.now() + hook.most;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return ended(status),
            Err(e) => return format!("cannot wait for it: {e}"),
            Ok(None) if clock.now() >= end => break,
            Ok(None) => clock.sleep_until(clock.now() + LOOK),
        }
    }
    // The whole process group, so that its children end, too.
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
    format!("killed after {} s", hook.most.as_secs())
}

/// Starts the hook. Its output goes to standard error, because standard output of this program is for
/// programs.
fn start(program: &Path, words: &[String]) -> std::io::Result<Child> {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(std::io::stderr()).process_group(0);
    command.spawn()
}

fn ended(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit code {code}"),
        None => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use honeycomb_env::Entropy;
    use std::sync::{Mutex, mpsc};

    /// A directory that is removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn read(&self, name: &str) -> String {
            std::fs::read_to_string(self.0.join(name)).unwrap()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// A script in a directory of its own.
    fn script(body: &str) -> (Folder, PathBuf) {
        let name = format!("honeycomb-hook-{:x}", Entropy::system().next_u64());
        let directory = Folder(std::env::temp_dir().join(name));
        std::fs::create_dir(&directory.0).unwrap();
        let path = directory.0.join("hook");
        // Another process writes the file. A test on another thread may fork at any moment: its child would
        // hold a descriptor of this process open for writing, and the file could not be executed.
        let write = "printf '#!/bin/sh\n%s\n' \"$1\" > \"$2\" && chmod 700 \"$2\"";
        let mut writer = Command::new("sh");
        let written = writer.args(["-c", write, "sh", body]).arg(&path).status().unwrap();
        assert!(written.success());
        (directory, path)
    }

    fn add(servers: u32) -> Advised {
        Advised::Add { servers, why: "90% of the room".into() }
    }

    /// The first lines that are logged for this advice.
    fn heeded(advice: Vec<Advised>, hook: Option<&Hook>, lines: usize) -> Vec<String> {
        let (to, from) = mpsc::channel();
        let said = Mutex::new(Vec::new());
        let to = Mutex::new(Some(to));
        for one in advice {
            to.lock().unwrap().as_ref().unwrap().send(one).unwrap();
        }
        if hook.is_none() {
            to.lock().unwrap().take();
        }
        heed(&from, hook, Clock::start(), |line| {
            let mut said = said.lock().unwrap();
            said.push(line);
            if said.len() >= lines {
                to.lock().unwrap().take();
            }
        });
        said.into_inner().unwrap()
    }

    #[test]
    fn each_change_is_told_once() {
        let gone = Advised::Remove { address: "a:1".into(), why: "2% of the room".into() };
        let said = heeded(vec![add(2), Advised::Nothing, gone], None, 3);
        let due = [
            "advice: add 2 servers of the mean size: 90% of the room",
            "advice: keep the present servers",
            "advice: remove server a:1: 2% of the room",
        ];
        assert_eq!(said, due);
    }

    #[test]
    fn a_hook_is_run_once_in_a_pause_and_its_end_is_told() {
        let (directory, program) = script("echo \"$@\" >> \"$(dirname \"$0\")/ran\"; exit 3");
        let pause = Duration::from_millis(300);
        let hook = Hook { program: program.clone(), pause, most: HOOK_MAX };
        let clock = Clock::start();
        // The second change supersedes the first before the hook runs; then the hook runs once more.
        let said = heeded(vec![add(1), add(4)], Some(&hook), 4);
        assert!(clock.now().since(Time::ZERO) >= pause);
        let name = program.display();
        assert_eq!(
            said[2..],
            [format!("{name} add 4: exit code 3"), format!("{name} add 4: exit code 3")]
        );
        let ran = directory.read("ran");
        assert_eq!(ran, "add 4\nadd 4\n");
    }

    #[test]
    fn a_hook_that_does_not_end_is_killed_with_what_it_started() {
        let (directory, program) =
            script("sleep 1000 & echo $! > \"$(dirname \"$0\")/child\"; wait");
        let most = Duration::from_secs(1);
        let hook = Hook { program, pause: Duration::from_secs(1000), most };
        let said = heeded(vec![add(1)], Some(&hook), 2);
        assert!(said[1].ends_with(" add 1: killed after 1 s"), "{said:?}");
        let child = directory.read("child");
        let pid = Pid::from_raw(child.trim().parse().unwrap()).unwrap();
        // The process is gone, or a zombie that its new parent has not collected yet.
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        let clock = Clock::start();
        while stat().is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(clock.now().as_millis() < 10_000, "the child process still exists");
            clock.sleep_until(clock.now() + LOOK);
        }
    }

    #[test]
    fn a_hook_that_is_not_there_is_told() {
        let hook = Hook { program: "/nowhere".into(), pause: SCALE_PAUSE, most: HOOK_MAX };
        let said = heeded(vec![add(1)], Some(&hook), 2);
        assert!(said[1].starts_with("/nowhere add 1: cannot run it: "), "{said:?}");
    }
}
