//! `run`: a Python script against the cluster that is meant.
//!
//! The program becomes the interpreter (`exec`), so the script's exit code, its terminal and every
//! signal are its own, with nothing in between that could lose one.

use crate::cluster::Place;
use crate::config::{ForRun, Given};
use crate::failure::{Failure, Outcome};
use crate::output::hex;
use crate::python;
use clap::Args;
use honeycomb_wire::Status;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Runs a Python script, with the cluster in its environment.
///
/// The script finds the cluster by `honeycomb.connect()`, without arguments; when none is named and
/// none runs here, that starts one of its own, which ends with the script. What stands after `--` is
/// the script's own. It ends with the script's exit code, 130 after Ctrl-C and 143 after SIGTERM,
/// which the script sees as KeyboardInterrupt, so that its `with` blocks clean up.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb run wordcount.py -- book.txt
  honeycomb run wordcount.py -- --json book.txt")]
pub struct RunArgs {
    /// The script
    script: PathBuf,
    /// What the script finds in sys.argv
    #[arg(last = true)]
    rest: Vec<OsString>,
    #[command(flatten)]
    given: Given<ForRun>,
}

/// `honeycomb run`: becomes Python with the script.
pub fn run(args: &RunArgs) -> Outcome {
    let settings = args.given.settings()?;
    if !args.script.is_file() {
        let text = format!("there is no script {}", args.script.display());
        return Err(Failure::new(Status::NotFound, text));
    }
    let (python, _) = python::find(settings.python())?;
    let mut command = Command::new(&python);
    // -P: a folder `honeycomb` where the user happens to be is not the package.
    command.args(["-P", "-m", "honeycomb._script"]).arg(&args.script).args(&args.rest);
    match Place::find(&settings) {
        Ok(place) => {
            command.env("HONEYCOMB_ADDRESS", place.address);
            command.env("HONEYCOMB_TOKEN", hex(&place.token));
        }
        Err(failure) if failure.status() == Some(Status::Unavailable) => {
            command.env_remove("HONEYCOMB_ADDRESS").env_remove("HONEYCOMB_TOKEN");
            eprintln!(
                "honeycomb: no cluster is running here, so the script's connect() starts one of its \
                 own, which ends with it"
            );
        }
        Err(failure) => return Err(failure),
    }
    let e = command.exec();
    Err(Failure::io(format_args!("cannot run {}", python.display()), &e))
}
