//! `demo`: the word count of the Python package.

use crate::Outcome;
use clap::Args;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
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
    let python = find_python()?;
    let error = Command::new(&python).args(["-m", "honeycomb.demo"]).args(&args.rest).exec();
    Err(format!("cannot run {}: {error}", python.display()))
}

/// The interpreter beside this binary, as in a virtual environment; else the one on the path, when
/// it has the package.
fn find_python() -> Result<PathBuf, String> {
    let here = std::env::current_exe().map_err(|e| e.to_string())?;
    let folder = here.parent().ok_or("the binary has no folder")?;
    for name in ["python", "python3"] {
        let beside = folder.join(name);
        if beside.is_file() {
            return Ok(beside);
        }
    }
    let has_package = Command::new("python3").args(["-c", "import honeycomb"]).output();
    match has_package {
        Ok(output) if output.status.success() => Ok("python3".into()),
        _ => Err("the demo is part of the Python package: install the wheel, and run the \
             `honeycomb` of its environment"
            .into()),
    }
}
