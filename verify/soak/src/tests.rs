//! A short dose of each soak.

mod elastic;
mod queue;
mod tier;
