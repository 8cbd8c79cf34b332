//! Ends of processes that a soak expects, and those that it reports.

use crate::processes::{Cluster, Servers};
use honeycomb_e2e::{Scratch, program};
use honeycomb_types::limits::{KIB, MIB};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;

/// A run with disks that failed reported that a process had ended by itself: its client had lost a structure
/// to a damaged page, so the run did not wait for the drained server, which had ended as it should.
#[test]
fn drained_server_that_ends_is_expected_and_a_killed_one_is_reported() {
    let home = Scratch::new();
    let servers = Servers { count: 1, memory: 16 * MIB, block_size: 64 * KIB };
    let mut cluster =
        Cluster::start(&program("honeycomb"), &home.0, None, Servers { count: 0, ..servers })
            .unwrap();
    let first = cluster.add_server(&servers, None).unwrap();
    cluster.add_server(&servers, None).unwrap();
    cluster.drain_first(&first).unwrap();
    cluster.await_drained(Duration::from_secs(60)).unwrap();
    cluster.check_alive().unwrap();

    let pid = Pid::from_raw(cluster.server_pids()[0] as i32).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let mut ended = Ok(());
    honeycomb_e2e::eventually("the end of the killed server", || {
        ended = cluster.check_alive();
        ended.is_err()
    });
    assert_eq!(ended.unwrap_err(), "a server ended by itself: signal: 9 (SIGKILL)");
}
