//! The program of `honeycomb_soak::elastic`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    honeycomb_soak::elastic::main()
}
