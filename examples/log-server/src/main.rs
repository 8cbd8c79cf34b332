//! `honeycomb`, with the log among the kinds of structure that its memory servers serve: the whole
//! command line, and clients that need not know.
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
