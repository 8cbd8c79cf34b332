//! `bench`: the benchmarks, which are a program of their own (`honeycomb-bench`).

use crate::failure::{CommandResult, Failure};
use clap::Args;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = "honeycomb-bench";

/// Measures this build on this machine: latency percentiles, throughput, server CPU.
///
/// The benchmarks are the program honeycomb-bench, from a package of its own. If it is installed,
/// `honeycomb bench --help` lists them.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct BenchArgs {
    /// The benchmark and its options
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "BENCHMARK [OPTIONS]")]
    words: Vec<OsString>,
}

/// The installed program: beside this one, or in a folder of PATH.
fn program() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|here| Some(here.parent()?.to_owned()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = beside.into_iter().chain(std::env::split_paths(&path));
    folders.find_map(|folder| Some(folder.join(PROGRAM)).filter(|file| file.is_file()))
}

/// Becomes `honeycomb-bench`; returns only if that fails.
pub fn bench(args: &BenchArgs) -> CommandResult {
    let Some(program) = program() else {
        return Err(Failure::from(format!(
            "the benchmarks are not installed: there is no {PROGRAM} beside this program or in \
             PATH; install the package {PROGRAM} (pip install 'honeycomb-store[bench]')"
        )));
    };
    let error = Command::new(&program).args(&args.words).exec();
    Err(Failure::io(format!("cannot run {}", program.display()), &error))
}
