//! The crash cells of a move (docs/design-notes.md, "Moves") and of a flush, with real processes: each
//! cell starts its own controller and memory servers. It brings a store with active writers to a split or a
//! merge, or a prefix to the end of its lease. One process dies at a certain request, and the cell checks
//! that the promised outcome holds.

mod flush;
mod processes;
mod retry;
mod run;
mod store;
mod table;

use honeycomb_env::Clock;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use table::{CELLS, WITH_LOG};

/// Whether this controller keeps a log.
const LOG: bool = true;
/// Cells at a time.
const AT_A_TIME: usize = 3;

/// Runs cells, several at a time, and prints a line for each.
fn all<C: Display + Sync>(cells: &[&C], run: impl Fn(&C) -> &'static str + Sync) {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let clock = Clock::start();
    std::thread::scope(|threads| {
        for _ in 0..AT_A_TIME.min(cells.len()) {
            threads.spawn(|| {
                while let Some(cell) = cells.get(next.fetch_add(1, Relaxed)) {
                    let began = clock.now();
                    let outcome = catch_unwind(AssertUnwindSafe(|| run(cell)));
                    let word = outcome.as_ref().map_or("FAILED", |what| what);
                    let took = clock.now().since(began).as_millis();
                    println!("{cell}  {word}  {took} ms");
                    if outcome.is_err() {
                        failed.lock().unwrap().push(cell.to_string());
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    println!("{} cells in {} ms", cells.len(), clock.now().as_millis());
    assert!(failed.is_empty(), "cells that do not hold what is promised:\n{}", failed.join("\n"));
}

/// All cells, or the cells whose line contains the text of `CRASH_CELLS`.
fn chosen<C: Display>(cells: impl Iterator<Item = &'static C>) -> Vec<&'static C> {
    let only = std::env::var("CRASH_CELLS").unwrap_or_default();
    cells.filter(|cell| cell.to_string().contains(&only)).collect()
}

#[test]
fn every_cell_holds_what_is_promised() {
    let with_log = if LOG { WITH_LOG } else { &[] };
    all(&chosen(CELLS.iter().chain(with_log)), run::run);
}

#[test]
fn a_flush_survives_every_end_of_the_controller() {
    all(&chosen(flush::CELLS.iter()), flush::run);
}

/// Not a test: the client process of cells, which `run` starts.
#[test]
#[ignore = "a process of cells: it needs a cluster that a cell started"]
fn client_that_dies() {
    run::victim();
}
