//! The command line, as a script uses it: the program, a home of its own, a real cluster.

mod bench;
mod bucket;
mod config;
mod data;
mod doctor;
mod flush;
mod home;
mod lifecycle;
mod look;
mod queue;
mod readers;
mod stop;
mod watch;
