//! The event loop with real connections.

mod rounds;
mod steps;
mod yields;
