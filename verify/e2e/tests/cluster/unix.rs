//! Clients of the same machine: over Unix sockets where they can be reached, over TCP where not.

use honeycomb_client::{Client, ClientOptions};
use honeycomb_controller::{Controller, ControllerOptions};
use honeycomb_e2e::{Cluster, KIB, Scratch, file, kv, noise};
use honeycomb_env::MemoryDisk;
use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// For each node that the client knows, whether it uses the Unix socket.
fn over_unix(client: &Client) -> Vec<bool> {
    client.unix_sockets().into_iter().map(|(_, _, reached)| reached).collect()
}

/// Something of every kind, small and large.
fn use_it(client: &Client, ticket: &honeycomb_client::JobTicket, name: &str) {
    let store = kv(client, ticket, &format!("{name}:kv"), 4);
    let bytes = noise(7, 300_000);
    for (key, length) in [("small", 8), ("inline", 5_000), ("extents", bytes.len())] {
        store.put(key.as_bytes(), &bytes[..length]).unwrap();
        let mut got = Vec::new();
        store.get(key.as_bytes(), &mut got).unwrap();
        assert!(got == bytes[..length], "{key}");
    }
    let log = file(client, ticket, &format!("{name}:file"));
    log.write_all(&bytes).unwrap();
    let mut got = vec![0; bytes.len()];
    assert_eq!(log.read_into(0, &mut got).unwrap(), bytes.len());
    assert!(got == bytes);
}

#[test]
fn a_client_goes_on_over_the_sockets_that_its_nodes_tell_of() {
    let scratch = Scratch::new();
    let cluster = Cluster::near(2, 8 << 20, 256 * KIB, &scratch.0);
    let (client, ticket) = cluster.job("near");
    use_it(&client, &ticket, "");
    let reached = over_unix(&client);
    assert!(reached.len() >= 2 && reached.iter().all(|r| *r), "{reached:?}");
    assert_eq!(cluster.controller.near().map(|p| Path::new(p).exists()), Some(true));
    drop(cluster);
    let mut left = fs::read_dir(&scratch.0).unwrap().map(|e| e.unwrap().file_name());
    assert_eq!(left.next(), None, "nothing stays behind");
}

#[test]
fn who_cannot_reach_a_socket_stays_with_tcp() {
    let scratch = Scratch::new();
    let cluster = Cluster::near(1, 8 << 20, 256 * KIB, &scratch.0);
    // As a client of another machine, or of a container, sees it.
    let hidden = Scratch::new();
    fs::rename(&scratch.0, &hidden.0).unwrap();
    let (client, ticket) = cluster.job("far");
    use_it(&client, &ticket, "");
    assert!(over_unix(&client).iter().all(|r| !r));
    // One that finds something else there does too, and one that is told not to look.
    fs::create_dir(&scratch.0).unwrap();
    fs::set_permissions(&scratch.0, Permissions::from_mode(0o700)).unwrap();
    fs::write(cluster.controller.near().unwrap(), b"no socket").unwrap();
    let (client, _) = cluster.job("file");
    client.ping().unwrap();
    assert_eq!(over_unix(&client), [false]);
    let mut options =
        ClientOptions::new(cluster.controller.address().to_string(), cluster.controller.token());
    options.unix = false;
    let client = Client::new(options);
    client.ping().unwrap();
    assert!(over_unix(&client).is_empty());
}

#[test]
fn a_node_that_began_anew_is_found_at_its_new_socket() {
    let scratch = Scratch::new();
    let disk = MemoryDisk::new();
    let start = |listen: SocketAddr, unix_dir: Option<PathBuf>| {
        let options = ControllerOptions {
            listen,
            root_key: None,
            data_dir: None,
            unix_dir,
            spin: Duration::ZERO,
            marks: honeycomb_types::Marks::default(),
            lease_ms: 1000,
            policy: Default::default(),
            scale: Default::default(),
            server_loss_ms: honeycomb_types::limits::SERVER_LOSS_DEFAULT_MS,
            shards: 1,
        };
        Controller::start_on(Box::new(disk.clone()), &options).unwrap()
    };
    let first = start(SocketAddr::from(([127, 0, 0, 1], 0)), Some(scratch.0.clone()));
    let (listen, token) = (first.address(), first.token().to_vec());
    let client = Client::new(ClientOptions::new(listen.to_string(), token));
    client.ping().unwrap();
    let before = client.unix_sockets();
    drop(first);
    let second = start(listen, Some(scratch.0.clone()));
    client.ping().unwrap();
    let after = client.unix_sockets();
    assert_eq!(after, [(listen.to_string(), second.near().unwrap().to_owned(), true)]);
    assert_ne!(before, after);
    drop(second);
    // It may come back without one.
    let _third = start(listen, None);
    client.ping().unwrap();
    assert!(client.unix_sockets().is_empty());
}
