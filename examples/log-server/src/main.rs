//! `honeycomb` with the log as an additional kind of structure that its memory servers serve. It has the
//! whole command line, and clients need no change.
#![forbid(unsafe_code)]

use honeycomb::Registry;
use log_structure::Log;
use std::process::ExitCode;

fn main() -> ExitCode {
    match Registry::builtin().with(Log) {
        Ok(kinds) => honeycomb::run(kinds),
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
