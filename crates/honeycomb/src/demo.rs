//! `demo`: the word count of the Python package.

use crate::Outcome;
use crate::run::find_python;
use clap::Args;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Options of `demo`: handed on as they are.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct DemoArgs {
    /// --input PATH, --scale N, --workers N, --block-size SIZE, --json; --help explains
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, num_args = 0..)]
    rest: Vec<String>,
}

/// `honeycomb demo`: becomes the Python that has the package.
pub fn demo(args: &DemoArgs) -> Outcome {
    let python = find_python("the demo")?;
    let error = Command::new(&python).args(["-m", "honeycomb.demo"]).args(&args.rest).exec();
    Err(format!("cannot run {}: {error}", python.display()))
}
