//! `bench`: what this build does on this machine.

use crate::{Outcome, Output};
use clap::Args;

/// Options of `bench`.
#[derive(Args)]
pub struct BenchArgs {
    #[command(flatten)]
    output: Output,
}

/// `honeycomb bench`.
pub fn bench(args: &BenchArgs) -> Outcome {
    let _ = args.output;
    Err("under construction".into())
}
