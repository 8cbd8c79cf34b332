//! Servers are taken out: in this process, and as processes of the program.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Cluster, KIB, eventually, file, prefix, status};
use honeycomb_client::Client;
use honeycomb_env::Clock;
use honeycomb_server::Departure;
use honeycomb_types::PrefixId;
use honeycomb_wire::Status;
use honeycomb_wire::messages::ServerInfo;
use std::time::Duration;

fn whole(cluster: &Cluster) -> Client {
    cluster.client(cluster.controller.token(), PrefixId(0))
}

fn server(client: &Client, address: &str) -> Option<ServerInfo> {
    client.status().unwrap().servers.into_iter().find(|server| server.address == address)
}

/// A server is taken out while its data is leased; what is new goes elsewhere, and it ends with the
/// last lease.
fn goes_with_its_last_lease(controller_shards: u16) {
    let mut cluster = Cluster::sharded(controller_shards, 2, 2048 * KIB, 64 * KIB);
    let departures = cluster.servers[0].departures().unwrap();
    let address = cluster.servers[0].address().to_string();
    // Jobs of every shard have data on both servers.
    let jobs: Vec<_> = (0..4).map(|n| cluster.job(&format!("job-{n}"))).collect();
    for (client, job) in &jobs {
        prefix(client, job, "old", 60_000);
        for n in 0..4 {
            file(client, job, &format!("old:{n}")).append(b"stays").unwrap();
        }
    }
    let client = whole(&cluster);
    assert!(server(&client, &address).is_some_and(|s| s.drain == 0 && s.drain_waits.is_empty()));
    client.drain_server(&address, false).unwrap();
    let info = server(&client, &address).unwrap();
    assert_eq!(info.drain, 1);
    assert!(info.drain_waits.contains("of kind file until their leases end"), "{info:?}");
    let before = info.blocks - info.free;
    assert!(before > 0);
    for (client, job) in &jobs {
        prefix(client, job, "new", 60_000);
        let new = file(client, job, "new");
        new.append(b"goes elsewhere").unwrap();
    }
    let info = server(&client, &address).unwrap();
    assert_eq!(info.blocks - info.free, before, "INV-46: it was given nothing");
    for (client, job) in &jobs {
        client.remove_prefix(job.job, "old").unwrap();
    }
    let patience = Duration::from_secs(20);
    assert_eq!(departures.recv_timeout(patience), Ok(Departure::Released));
    eventually("its membership ends", || server(&client, &address).is_none());
    for (client, job) in &jobs {
        let new = client.open_file(job.job, "new").unwrap();
        let mut read = [0; 14];
        assert_eq!(new.read_into(0, &mut read).unwrap(), 14);
        assert_eq!(&read, b"goes elsewhere");
    }
    cluster.servers.remove(0).wait();
}

#[test]
fn a_server_that_is_taken_out_ends_with_its_last_lease() {
    goes_with_its_last_lease(1);
}

#[test]
fn every_controller_shard_lets_it_go() {
    goes_with_its_last_lease(2);
}

#[test]
fn the_last_one_stays_and_one_that_is_called_back_goes_on() {
    let cluster = Cluster::start(2, 1024 * KIB, 64 * KIB);
    let client = whole(&cluster);
    let [first, second] = [0, 1].map(|n: usize| cluster.servers[n].address().to_string());
    assert_eq!(status(client.drain_server("127.0.0.1:1", false)), Status::NotFound);
    let (own, job) = cluster.job("job");
    assert_eq!(status(own.drain_server(&first, false)), Status::PermissionDenied);
    prefix(&own, &job, "t", 60_000);
    // Something is on each.
    for n in 0..4 {
        file(&own, &job, &format!("t:{n}")).append(b"x").unwrap();
    }
    client.drain_server(&first, false).unwrap();
    client.drain_server(&first, false).unwrap();
    assert_eq!(status(client.drain_server(&second, false)), Status::InvalidArgument);
    client.drain_server(&first, true).unwrap();
    assert_eq!(server(&client, &first).unwrap().drain, 0);
    client.drain_server(&second, false).unwrap();
    client.drain_server(&second, true).unwrap();
    // One that wants to go by itself is told why it cannot.
    let departures = cluster.servers[0].departures().unwrap();
    client.drain_server(&second, false).unwrap();
    cluster.servers[0].leave();
    let Ok(Departure::Refused(why)) = departures.recv_timeout(Duration::from_secs(20)) else {
        panic!("the last server may not go");
    };
    assert!(why.contains("it is the only one that takes blocks"), "{why}");
}

#[test]
fn a_server_goes_by_itself_when_it_has_nothing() {
    let mut cluster = Cluster::start(2, 1024 * KIB, 64 * KIB);
    let departures = cluster.servers[1].departures().unwrap();
    let clock = Clock::start();
    cluster.servers[1].leave();
    assert_eq!(departures.recv_timeout(Duration::from_secs(20)), Ok(Departure::Released));
    assert!(clock.now().as_millis() < 2000, "it had nothing to wait for");
    cluster.servers.remove(1).wait();
}
