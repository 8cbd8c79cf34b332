//! The program of `honeycomb_soak::queue`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    honeycomb_soak::queue::main()
}
