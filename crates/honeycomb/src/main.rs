//! The program; the library contains all of it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    honeycomb::run(honeycomb::Registry::builtin())
}
