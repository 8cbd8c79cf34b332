//! The program `honeycomb-bench`; the library contains all of it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1).peekable();
    match words.next_if(|word| word == honeycomb_bench::PRODUCT) {
        Some(role) => {
            let words = std::iter::once(role).chain(words);
            honeycomb::run_words(honeycomb::Registry::builtin(), words)
        }
        None => honeycomb_bench::run(words),
    }
}
