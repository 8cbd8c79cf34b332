//! Controllers of this process: disks that fail, and controllers that have forgotten everything.

use super::status_of;
use honeycomb_client::{Client, ClientOptions};
use honeycomb_controller::{Controller, ControllerOptions};
use honeycomb_e2e::process::eventually;
use honeycomb_e2e::raw::{ANY_SHARD, Raw, frame};
use honeycomb_e2e::{LEASE_MS, server_options};
use honeycomb_env::{Clock, MemoryDisk};
use honeycomb_server::{MemoryServer, ServerOptions};
use honeycomb_types::Verbs;
use honeycomb_wire::messages::{
    CreatePrefixRequest, LeaseInfoRequest, PrefixOptions, RenewLeasesRequest,
};
use honeycomb_wire::token::Caveat;
use honeycomb_wire::{Field, Op, RequestHeader};
use honeycomb_wire::{Status, attenuate};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

const KEY: [u8; 32] = [9; 32];
const BLOCK: u64 = 65_536;

fn options(listen: SocketAddr) -> ControllerOptions {
    ControllerOptions {
        listen,
        root_key: Some(KEY),
        data_dir: None,
        unix_dir: None,
        spin: Duration::ZERO,
        marks: honeycomb_types::Marks::default(),
        lease_ms: 1000,
        policy: Default::default(),
        scale: Default::default(),
        server_loss_ms: honeycomb_types::limits::SERVER_LOSS_DEFAULT_MS,
        shards: 1,
    }
}

/// An address of the loopback interface that no other socket uses: while its controller is restarted, a
/// listener of another test, or the source of a connection, could take a port of 127.0.0.1.
fn anywhere() -> SocketAddr {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let number = std::process::id() << 8 | LAST.fetch_add(1, Relaxed) & 0xff;
    let [_, a, b, c] = number.to_be_bytes();
    SocketAddr::from(([127, 64 | a & 63, b, c], 0))
}

fn server(controller: &Controller) -> MemoryServer {
    let options = server_options(controller.address(), controller.token(), 64 * BLOCK, BLOCK);
    let options = ServerOptions { listen: anywhere(), shards: 1, ..options };
    MemoryServer::start(&options, Duration::from_secs(20)).unwrap()
}

fn client(controller: &Controller, token: &[u8]) -> Client {
    Client::new(ClientOptions::new(controller.address().to_string(), token))
}

/// The same token, good for reading only.
fn reading(token: &[u8]) -> Vec<u8> {
    attenuate(token, Caveat::Verbs(Verbs::READ)).unwrap()
}

#[test]
fn a_full_disk_refuses_changes_and_nothing_else() {
    let disk = MemoryDisk::new();
    let controller = Controller::start_on(Box::new(disk.clone()), &options(anywhere())).unwrap();
    let _server = server(&controller);
    let admin = client(&controller, controller.token());
    let job = admin.register_job("job", 1000, 0).unwrap();
    let driver = client(&controller, &job.token);
    let create = |path: &str| driver.create_prefix(job.job, path, &[], PrefixOptions::default());
    create("t").unwrap();
    let kv = driver.create_kv(job.job, "t:kv", 1, false).unwrap();
    kv.put(b"a", b"1").unwrap();
    let large = vec![7; BLOCK as usize];
    kv.put(b"large", &large).unwrap();
    disk.set_room(Some(10));
    let refused = create("u").unwrap_err();
    assert_eq!(refused.status, Status::LogFailed);
    assert!(refused.message.contains("may have been made"), "{refused}");
    let refused = create("v").unwrap_err();
    assert_eq!(refused.status, Status::LogFailed);
    assert!(refused.message.contains("nothing was changed"), "{refused}");
    // There are no renewals, and no lease expires: its end could not be logged either.
    let clock = Clock::start();
    clock.sleep_until(clock.now() + Duration::from_millis(1500));
    let mut value = Vec::new();
    assert!(kv.get(b"a", &mut value).unwrap());
    kv.put(b"b", b"2").unwrap();
    assert!(driver.open_kv(job.job, "t:kv").is_ok());
    // The first read of a large value requests the places of its blocks, with any token.
    for token in [&job.token[..], &reading(&job.token), &reading(controller.token())] {
        let other = client(&controller, token).open_kv(job.job, "t:kv").unwrap();
        assert!(other.get(b"large", &mut value).unwrap() && value == large);
    }
    driver.keep(job.job, &[String::new()]);
    driver.renew(job.job, &[String::new()]).unwrap();
    disk.set_room(None);
    eventually("it changes something again", || match create("w") {
        Ok(_) => true,
        Err(e) => {
            assert_eq!(e.status, Status::LogFailed, "{e}");
            false
        }
    });
    // The one that may have been made was.
    assert_eq!(status_of(create("u")), Status::AlreadyExists);
    create("v").unwrap();
    driver.deregister_job(job.job).unwrap();
    eventually("all is free", || admin.status().unwrap().free == 64);
}

/// Lets syncs go on when a test ends, however.
struct Held(MemoryDisk);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.hold_syncs(false);
    }
}

#[test]
fn a_disk_that_is_slow_holds_up_what_rests_on_it_and_nothing_else() {
    let disk = MemoryDisk::new();
    let controller = Controller::start_on(Box::new(disk.clone()), &options(anywhere())).unwrap();
    let _server = server(&controller);
    let admin = client(&controller, controller.token());
    let (one, two) = ("one", "two");
    let [one, two] = [one, two].map(|name| admin.register_job(name, LEASE_MS, 0).unwrap());
    let [first, second, other] = [&one, &one, &two].map(|job| client(&controller, &job.token));
    let file = first.create_file(one.job, ":grown", 1, false).unwrap();
    let kv = other.create_kv(two.job, ":kv", 1, false).unwrap();
    let job = one.job;

    let held = Held(disk.clone());
    disk.hold_syncs(true);
    std::thread::scope(|threads| {
        // Those of clients; each is greeted by now.
        second.lease(job, "").unwrap();
        let requests = || {
            let status = other.status().unwrap();
            status.requests - status.requests_reports - status.requests_blocks
        };
        let before = requests();
        let change =
            threads.spawn(move || first.create_prefix(job, "t", &[], PrefixOptions::default()));
        // Of those that come in between, one is its own and the other the one that counts.
        let mut asked = 1;
        eventually("the change has come", || {
            asked += 1;
            requests() >= before + asked
        });
        // A request that could reveal the change waits like the change itself.
        let look = threads.spawn(move || second.lease(job, "t"));
        asked += 1;
        eventually("the look has come", || {
            asked += 1;
            requests() >= before + asked
        });
        // A job that has nothing to do with it is served, and blocks grow.
        kv.put(b"a", b"1").unwrap();
        assert!(other.open_kv(two.job, ":kv").is_ok());
        other.renew(two.job, &[String::new()]).unwrap();
        let piece = vec![7; 8000];
        for _ in 0..40 {
            file.append(&piece).unwrap();
        }
        assert!(!change.is_finished() && !look.is_finished(), "nothing was on the disk");
        // The contents of the disk if the machine lost its power now.
        let lost = disk.copy();
        lost.crash(&mut |_| 0);
        drop(held);
        change.join().unwrap().unwrap();
        look.join().unwrap().unwrap();
        let again = Controller::start_on(Box::new(lost), &options(anywhere())).unwrap();
        let gone = client(&again, &one.token).lease(job, "t").unwrap_err();
        assert_eq!(gone.status, Status::NotFound, "nobody had been told of it: {gone}");
    });
}

/// Regression: one client waits for the disk with the maximum number of held requests. Other clients get
/// `Busy`, but their renewals were refused, too, and their leases expired although they were renewed.
#[test]
fn a_lease_is_renewed_however_many_wait_for_the_disk() {
    let disk = MemoryDisk::new();
    let controller = Controller::start_on(Box::new(disk.clone()), &options(anywhere())).unwrap();
    let admin = client(&controller, controller.token());
    let [one, two] = ["one", "two"].map(|name| admin.register_job(name, LEASE_MS, 0).unwrap());
    let greeted = |token: &[u8]| Raw::greeted(controller.address(), token, ANY_SHARD);
    let (mut asking, mut renewing) = (greeted(&one.token), greeted(&two.token));
    let _held = Held(disk.clone());
    disk.hold_syncs(true);
    let body = CreatePrefixRequest { job: one.job.0, path: "t".into(), ..Default::default() };
    let mut all = frame(RequestHeader::new(Op::CreatePrefix), &body.encode(), &[]);
    let look = LeaseInfoRequest { job: one.job.0, path: "t".into() }.encode();
    for request in 0..16_384 {
        all.extend(frame(
            RequestHeader { request, ..RequestHeader::new(Op::LeaseInfo) },
            &look,
            &[],
        ));
    }
    asking.send(&all);
    let look = LeaseInfoRequest { job: two.job.0, path: String::new() }.encode();
    eventually("the controller is behind", || {
        let reply = renewing.ask(Op::LeaseInfo, &look);
        reply.status() == Status::Busy
    });
    let renew = RenewLeasesRequest { job: two.job.0, paths: vec![String::new()] };
    let reply = renewing.ask(Op::RenewLeases, &renew.encode());
    assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
    renewing.expect_alive();
}

#[test]
fn a_slow_sync_that_fails_is_made_good_by_new_files() {
    let disk = MemoryDisk::new();
    let controller = Controller::start_on(Box::new(disk.clone()), &options(anywhere())).unwrap();
    let admin = client(&controller, controller.token());
    let job = admin.register_job("job", LEASE_MS, 0).unwrap();
    let (driver, token) = (client(&controller, &job.token), job.token.clone());
    let held = Held(disk.clone());
    disk.hold_syncs(true);
    disk.fail_syncs(1);
    std::thread::scope(|threads| {
        let (syncs, job) = (disk.syncs(), job.job);
        let change =
            threads.spawn(move || driver.create_prefix(job, "t", &[], PrefixOptions::default()));
        drop(held);
        change.join().unwrap().unwrap();
        assert!(disk.syncs() >= syncs + 2, "a snapshot and a log were begun");
        let lost = disk.copy();
        lost.crash(&mut |_| 0);
        drop(controller);
        let again = Controller::start_on(Box::new(lost), &options(anywhere())).unwrap();
        client(&again, &token).lease(job, "t").unwrap();
    });
}

#[test]
fn a_disk_that_loses_its_last_writes_loses_nothing_that_was_answered() {
    let disk = MemoryDisk::new();
    let controller = Controller::start_on(Box::new(disk.clone()), &options(anywhere())).unwrap();
    let address = controller.address();
    let server = server(&controller);
    let admin = client(&controller, controller.token());
    let job = admin.register_job("job", LEASE_MS, 0).unwrap();
    let driver = client(&controller, &job.token);
    driver.create_prefix(job.job, "t", &[], PrefixOptions::default()).unwrap();
    let file = driver.create_file(job.job, "t:file", 1, false).unwrap();
    // Growth is granted before it is on the disk.
    let piece = vec![7; 8000];
    for _ in 0..40 {
        file.append(&piece).unwrap();
    }
    let lost = disk.copy();
    lost.crash(&mut |_| 0);
    drop(controller);
    let controller = Controller::start_on(Box::new(lost), &options(address)).unwrap();
    assert_eq!(controller.address(), address);
    for _ in 0..40 {
        file.append(&piece).unwrap();
    }
    // A client that has only the controller's map finds every byte.
    let other = client(&controller, &job.token).open_file(job.job, "t:file").unwrap();
    let mut all = vec![0; 80 * 8000];
    assert_eq!(other.read_into(0, &mut all).unwrap(), 80 * 8000);
    assert!(all.iter().all(|&b| b == 7));
    driver.deregister_job(job.job).unwrap();
    let admin = client(&controller, controller.token());
    eventually("all is free", || admin.status().unwrap().free == 64);
    drop(server);
}

#[test]
fn a_controller_that_comes_back_empty_gets_empty_servers() {
    let controller = Controller::start(&options(anywhere())).unwrap();
    let address = controller.address();
    let _server = server(&controller);
    let admin = client(&controller, controller.token());
    let job = admin.register_job("job", LEASE_MS, 0).unwrap();
    let driver = client(&controller, &job.token);
    let kv = driver.create_kv(job.job, ":kv", 1, false).unwrap();
    kv.put(b"a", b"1").unwrap();
    drop(controller);
    let controller = Controller::start(&options(address)).unwrap();
    let admin = client(&controller, controller.token());
    eventually("the server has joined", || admin.status().unwrap().free == 64);
    // A new job with the same number does not see data of the earlier job.
    let again = admin.register_job("job", LEASE_MS, 0).unwrap();
    assert_eq!(again.job, job.job, "a controller without a log counts from the beginning");
    let fresh = client(&controller, &again.token).create_kv(again.job, ":kv", 1, false).unwrap();
    let mut value = Vec::new();
    assert!(!fresh.get(b"a", &mut value).unwrap());
}
