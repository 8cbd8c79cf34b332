//! `run`: runs a Python script with the configured cluster.
//!
//! The program replaces itself by the interpreter (`exec`), so that exit code, terminal and signals of the
//! script pass through no other process.

use crate::cluster::ClusterPlace;
use crate::config::{ForRun, Given};
use crate::failure::{CommandResult, Failure};
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
/// The script connects with `honeycomb.connect()`, without arguments. If no cluster is configured and none
/// runs here, that call starts an embedded cluster, which ends with the script. Arguments after `--` are
/// passed to the script. The exit code is that of the script, 130 after Ctrl-C and 143 after SIGTERM; the
/// script gets both signals as KeyboardInterrupt, so that its `with` blocks clean up.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb run wordcount.py -- book.txt
  honeycomb run wordcount.py -- --json book.txt")]
pub struct RunArgs {
    /// The script
    script: PathBuf,
    /// Arguments of the script, in sys.argv
    #[arg(last = true)]
    rest: Vec<OsString>,
    #[command(flatten)]
    given: Given<ForRun>,
}

/// `honeycomb run`: replaces itself by Python with the script.
pub fn run(args: &RunArgs) -> CommandResult {
    let settings = args.given.settings()?;
    if !args.script.is_file() {
        let text = format!("cannot run {}: there is no such file", args.script.display());
        return Err(Failure::new(Status::NotFound, text));
    }
    let (python, _) = python::find(settings.python())?;
    let mut command = Command::new(&python);
    // -P: a folder named honeycomb in the current folder is not the package.
    command.args(["-P", "-m", "honeycomb._script"]).arg(&args.script).args(&args.rest);
    match ClusterPlace::find(&settings) {
        Ok(place) => {
            command.env("HONEYCOMB_ADDRESS", place.address);
            command.env("HONEYCOMB_TOKEN", hex(&place.token));
        }
        Err(failure) if failure.status() == Some(Status::Unavailable) => {
            command.env_remove("HONEYCOMB_ADDRESS").env_remove("HONEYCOMB_TOKEN");
            eprintln!(
                "honeycomb: no cluster is running here: connect() starts an embedded one, which \
                 ends with the script"
            );
        }
        Err(failure) => return Err(failure),
    }
    let e = command.exec();
    Err(Failure::io(format_args!("cannot run {}", python.display()), &e))
}
