//! `honeycomb` with a kind whose blocks show the memory that they were given: for tests of isolation.
#![forbid(unsafe_code)]

use honeycomb_structures::{
    Answer, Backing, Kind, KindSpec, Opening, Operation, OperationSpec, Ops, Outcome, Registry,
    Route, Router, Structure, StructureKind,
};
use std::process::ExitCode;

/// Bytes that are written at a time: less than a chunk of touched memory.
const STEP: usize = 256 << 10;

/// The kind `raw`.
struct Raw;

/// A block.
struct RawBlock {
    size: usize,
    used: usize,
}

impl StructureKind for Raw {
    fn spec(&self) -> KindSpec {
        KindSpec {
            kind: Kind::from_code(0x8f).expect("0x80 to 0xef are codes of custom kinds"),
            name: "raw".into(),
            router: Router::HashRange,
            operations: vec![OperationSpec::write(1, "fill", Route::Each)],
        }
    }

    fn open(&self, opening: &Opening) -> Box<dyn Structure> {
        Box::new(RawBlock { size: opening.block_size, used: 0 })
    }
}

impl Structure for RawBlock {}

impl Ops for RawBlock {
    /// Fills the block with the byte in the arguments. Answers how many bytes were not zero before: in each
    /// step it looks at the memory after a first byte was written there, because that may bring new pages.
    fn apply(&mut self, block: &mut Backing, operation: &Operation<'_>, _: &[u8]) -> Outcome {
        let &[mark] = operation.args else {
            let why = "the arguments of 'fill' are one byte";
            return Outcome::Done(Answer::refuse_as(1, why));
        };
        let mut foreign = 0;
        for from in (0..self.size).step_by(STEP) {
            let part = from..self.size.min(from + STEP);
            foreign += nonzero(block.slice(part.clone()));
            block.slice_mut(from..from + 1)[0] = mark;
            foreign += nonzero(&block.slice(part.clone())[1..]);
            block.slice_mut(part).fill(mark);
        }
        self.used = self.size;
        Outcome::Done(Answer::ok(foreign))
    }

    fn bytes_used(&self) -> u64 {
        self.used as u64
    }
}

fn nonzero(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte != 0).count() as u64
}

fn main() -> ExitCode {
    match Registry::builtin().with(Raw) {
        Ok(kinds) => honeycomb::run(kinds),
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
