//! Finds the Python interpreter that has the package.

use crate::failure::{CommandResult, Failure};
use honeycomb_env::Clock;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long an interpreter may take to print its package's version.
const PATIENCE: Duration = Duration::from_secs(5);

/// The interpreters that may have the package: the configured one; else the one next to this binary, as in a
/// virtual environment; else the one on the path.
fn candidates(named: Option<PathBuf>) -> Vec<PathBuf> {
    if let Some(named) = named {
        return vec![named];
    }
    let here = std::env::current_exe().ok();
    let folder = here.as_deref().and_then(|program| program.parent());
    let beside = folder.into_iter().flat_map(|f| ["python", "python3"].map(|name| f.join(name)));
    let mut found: Vec<PathBuf> = beside.filter(|path| path.is_file()).take(1).collect();
    if found.is_empty() {
        found.push("python3".into());
    }
    found
}

/// The interpreter that has the package, and the package's version. The error says why there is none. It
/// takes at most some seconds.
pub fn find(named: Option<PathBuf>) -> CommandResult<(PathBuf, String)> {
    let mut last = String::new();
    for python in candidates(named) {
        match version(&python) {
            Ok(version) => return Ok((python, version)),
            Err(why) => last = format!("{}: {why}", python.display()),
        }
    }
    Err(Failure::from(format!(
        "cannot find the Python package honeycomb ({last}): install the wheel and run the \
         `honeycomb` of its environment, or set --python to its interpreter"
    )))
}

fn version(python: &PathBuf) -> Result<String, String> {
    let mut child = Command::new(python)
        // -P: a folder named honeycomb in the current folder is not the package.
        .args(["-P", "-c", "import honeycomb; print(honeycomb.__version__)"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| e.to_string())?;
    let clock = Clock::start();
    loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(ended) if ended.success() => break,
            Some(_) => return Err("the package is not installed".into()),
            None if clock.now().as_millis() > PATIENCE.as_millis() as u64 => {
                let _ = child.kill();
                let _ = child.wait();
                return Err("no answer within 5 s".into());
            }
            None => clock.sleep_until(clock.now() + Duration::from_millis(5)),
        }
    }
    let mut text = String::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_string(&mut text).map_err(|e| e.to_string())?;
    }
    Ok(text.trim().to_owned())
}
