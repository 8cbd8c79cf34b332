//! `run`: a Python script against the cluster that is meant.
//!
//! The program becomes the interpreter (`exec`), so the script's exit code, its terminal and every
//! signal are its own, with nothing in between that could lose one.

use crate::Outcome;
use crate::cluster::{Where, hex};
use clap::Args;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of `run`.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb run examples/wordcount.py -- examples/data/king-james-bible.txt.gz
  honeycomb run --address 127.0.0.1:7420 --token $TOKEN job.py

The script finds the cluster by honeycomb.connect(), without arguments. HONEYCOMB_PYTHON names the
Python to run it with; otherwise it is the python3 beside this program, or the one on the PATH. It
ends with the script's exit code, 130 after Ctrl-C and 143 after SIGTERM, which the script sees as
KeyboardInterrupt, so that its `with` blocks clean up.")]
pub struct RunArgs {
    /// The script
    script: PathBuf,
    /// What the script finds in sys.argv
    #[arg(last = true)]
    rest: Vec<OsString>,
    #[command(flatten)]
    place: Where,
}

/// `honeycomb run`: becomes Python with the script.
pub fn run(args: &RunArgs) -> Outcome {
    if !args.script.is_file() {
        return Err(format!("there is no script {}", args.script.display()));
    }
    let python = find_python("a script")?;
    let mut command = Command::new(&python);
    // -P: a folder `honeycomb` where the user happens to be is not the package.
    command.args(["-P", "-m", "honeycomb._script"]).arg(&args.script).args(&args.rest);
    match args.place.find_running()? {
        Some((address, token)) => {
            command.env("HONEYCOMB_ADDRESS", address).env("HONEYCOMB_TOKEN", hex(&token));
        }
        None => {
            command.env_remove("HONEYCOMB_ADDRESS").env_remove("HONEYCOMB_TOKEN");
            eprintln!(
                "honeycomb: no cluster is running here, so the script's connect() starts one of its \
                 own, which ends with it"
            );
        }
    }
    let error = command.exec();
    Err(format!("cannot run {}: {error}", python.display()))
}

/// The interpreter that has the package: the one that `HONEYCOMB_PYTHON` names, or the one beside
/// this binary, as in a virtual environment, or the one on the path. `what` is to be run, for the
/// error.
pub fn find_python(what: &str) -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os("HONEYCOMB_PYTHON").filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        check_package(&named)
            .map_err(|reason| format!("HONEYCOMB_PYTHON is {}, but {reason}", named.display()))?;
        return Ok(named);
    }
    let here = std::env::current_exe().map_err(|e| e.to_string())?;
    let folder = here.parent().ok_or("the binary has no folder")?;
    for name in ["python3", "python"] {
        let beside = folder.join(name);
        if beside.is_file() {
            return Ok(beside);
        }
    }
    check_package(Path::new("python3")).map_err(|reason| {
        format!(
            "{what} needs the Python package: there is no python3 beside {}, and of the one on the \
             PATH: {reason}. Install the wheel and run the `honeycomb` of its environment, or set \
             HONEYCOMB_PYTHON",
            here.display()
        )
    })?;
    Ok("python3".into())
}

fn check_package(python: &Path) -> Result<(), String> {
    let output = Command::new(python)
        .args(["-c", "import honeycomb"])
        .output()
        .map_err(|e| format!("it cannot be run: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "it cannot import honeycomb ({})",
        told.trim().lines().last().unwrap_or("no reason")
    ))
}
