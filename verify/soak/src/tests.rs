//! A short dose of each soak.

mod elastic;
mod processes;
mod queue;
mod tier;
