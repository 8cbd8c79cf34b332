//! The program of `honeycomb_soak::tier`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    honeycomb_soak::tier::main()
}
