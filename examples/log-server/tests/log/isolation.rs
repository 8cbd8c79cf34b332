//! Access rights on a custom structure: every operation of its table with every kind of grant, and requests
//! that no client sends.

use super::{append, scan, with_log};
use honeycomb_client::{Client, CustomOptions, JobTicket};
use honeycomb_e2e::raw::{ANY_SHARD, Raw, Reply, first_block, keyed_cluster_with};
use honeycomb_e2e::{KIB, kv, prefix};
use honeycomb_structures::{OperationSpec, Route, StructureKind};
use honeycomb_types::{BlockAt, LaneId, Sequence, Verbs};
use honeycomb_wire::messages::{CreateStructureRequest, OpenStructureReply, OpenStructureRequest};
use honeycomb_wire::token::Caveat;
use honeycomb_wire::{Field, Op, RequestHeader, Status, attenuate};
use log_structure::{CODE, Log, ScanArgs};
use std::net::SocketAddr;

const BLOCK: u64 = 1024 * KIB;

struct Held {
    block: BlockAt,
    grant: Vec<u8>,
}

fn open(controller: SocketAddr, job: &JobTicket, path: &str, name: &str) -> Held {
    let mut raw = Raw::greeted(controller, &job.token, ANY_SHARD);
    let (path, name) = (path.into(), name.into());
    let body = OpenStructureRequest { job: job.job.0, path, name };
    let reply = raw.ask(Op::OpenStructure, &body.encode());
    let opened = OpenStructureReply::decode(&reply.args).unwrap();
    Held { block: first_block(&opened.map), grant: opened.grant }
}

fn code(number: u8) -> Op {
    Op::from_code((CODE as u16) << 8 | number as u16).unwrap()
}

/// A valid request, which is served if its sender has the right.
fn request(spec: &OperationSpec, block: BlockAt, grant: u32) -> (RequestHeader, Vec<u8>, Vec<u8>) {
    let mut header = RequestHeader { at: block, grant, ..RequestHeader::new(code(spec.number)) };
    if spec.mutates {
        (header.lane, header.sequence, header.ack_lag) = (LaneId(1), Sequence(1), 1);
    }
    let mut args = Vec::new();
    if matches!(spec.route, Route::Position | Route::Through) {
        args.extend_from_slice(&0_i64.to_le_bytes());
    }
    if matches!(spec.name.as_str(), "scan" | "follow") {
        args.extend_from_slice(&ScanArgs { records: 9, bytes: 9, tag: b"" }.encode());
    }
    let payload = if spec.payload { b"harm".to_vec() } else { Vec::new() };
    (header, args, payload)
}

fn ask(raw: &mut Raw, spec: &OperationSpec, block: BlockAt, grant: u32) -> Reply {
    let (header, args, payload) = request(spec, block, grant);
    raw.request(header, &args, &payload)
}

fn log_of(client: &Client, job: &JobTicket) -> honeycomb_client::Custom {
    prefix(client, job, "own", 60_000);
    let log = client.create_custom(job.job, "own:log", "log", CustomOptions::default()).unwrap();
    assert_eq!(append(&log, b"", b"secret"), 0);
    log
}

#[test]
fn every_operation_by_every_kind_of_grant() {
    let (cluster, root) = keyed_cluster_with(32 << 20, BLOCK, with_log());
    let (client, job) = cluster.job("victim");
    let (foreign_client, foreign) = cluster.job("foreign");
    let log = log_of(&client, &job);
    let _ = log_of(&foreign_client, &foreign);
    let controller = cluster.controller.address();
    let held = open(controller, &job, "own", "log");
    let theirs = open(controller, &foreign, "own", "log");
    let good = root.grant_key().verify(&held.grant).unwrap();
    let altered = |verbs: Verbs, expires_ms: u64| {
        root.grant_key().issue(&honeycomb_wire::Grant { verbs, expires_ms, ..good })
    };
    let (reading, writing, nothing, expired) = (
        altered(Verbs::READ, u64::MAX),
        altered(Verbs::WRITE, u64::MAX),
        altered(Verbs::NONE, u64::MAX),
        altered(Verbs::ALL, 0),
    );
    let node = cluster.servers[0].address();
    for shard in [0, 1] {
        for spec in &Log.spec().operations {
            let may = |verbs: Verbs| match verbs.contains(spec.verbs) {
                true => Status::Ok,
                false => Status::PermissionDenied,
            };
            // The log must not change here, so another test covers the right to write.
            let writes = (spec.verbs != Verbs::WRITE).then(|| may(Verbs::WRITE));
            for (who, token, grant, expected) in [
                ("nobody", &job.token, None, Some(Status::PermissionDenied)),
                ("another job", &foreign.token, Some(&theirs.grant), Some(Status::WrongEpoch)),
                ("a reader", &job.token, Some(&reading), Some(may(Verbs::READ))),
                ("a writer", &job.token, Some(&writing), writes),
                ("one without verbs", &job.token, Some(&nothing), Some(may(Verbs::NONE))),
                ("one whose time is over", &job.token, Some(&expired), Some(Status::GrantExpired)),
            ] {
                let Some(expected) = expected else { continue };
                let mut raw = Raw::greeted(node, token, shard);
                let number = grant.map_or(1, |grant| raw.present(grant));
                let reply = ask(&mut raw, spec, held.block, number);
                let name = &spec.name;
                assert_eq!(reply.status(), expected, "{name} by {who}: {}", reply.message());
                assert!(expected == Status::Ok || reply.payload.is_empty());
                raw.expect_alive();
            }
            // A server rejects the grant of another job when it is presented.
            let mut raw = Raw::greeted(node, &foreign.token, shard);
            assert_eq!(raw.try_present(&held.grant).status(), Status::PermissionDenied);
        }
    }
    client.set_permissions(job.job, "own", Verbs::ALL, Verbs::ALL).unwrap();
    for spec in &Log.spec().operations {
        let mut raw = Raw::greeted(node, &job.token, ANY_SHARD);
        let number = raw.present(&held.grant);
        assert_eq!(ask(&mut raw, spec, held.block, number).status(), Status::GrantRevoked);
    }
    let found = scan(&log, 0, b"");
    assert_eq!((found.len(), &found[0].bytes[..]), (1, &b"secret"[..]));
}

#[test]
fn who_may_read_a_prefix_reads_its_log_and_writes_nothing() {
    let (cluster, _) = keyed_cluster_with(32 << 20, BLOCK, with_log());
    let (client, job) = cluster.job("job");
    let log = log_of(&client, &job);
    let other = prefix(&client, &job, "other", 60_000);
    let task = attenuate(&job.token, Caveat::Task(other)).unwrap();
    let theirs = cluster.client(&task, other).open_custom(job.job, "own:log", "log").unwrap();
    assert_eq!(scan(&theirs, 0, b"").len(), 1);
    let ask = honeycomb_client::Ask { payload: b"x", ..Default::default() };
    assert_eq!(theirs.call("append", ask).unwrap_err().status, Status::PermissionDenied);
    let through = honeycomb_client::Ask { position: Some(1), ..Default::default() };
    assert_eq!(theirs.call_each("trim", through).unwrap_err().status, Status::PermissionDenied);
    assert_eq!(scan(&log, 0, b"").len(), 1);
}

#[test]
fn who_waits_for_a_record_waits_by_right_only() {
    let (cluster, root) = keyed_cluster_with(32 << 20, BLOCK, with_log());
    let (client, job) = cluster.job("victim");
    let log = log_of(&client, &job);
    let held = open(cluster.controller.address(), &job, "own", "log");
    let good = root.grant_key().verify(&held.grant).unwrap();
    let spec = Log.spec();
    let node = cluster.servers[0].address();
    // On the block's own core and on the other core.
    let waiting = |grant: &[u8], shard: u8| {
        let mut raw = Raw::greeted(node, &job.token, shard);
        let number = raw.present(grant);
        let (mut header, mut args, _) =
            request(spec.operation("follow").unwrap(), held.block, number);
        header.deadline_ms = 30_000;
        header.request = raw.number();
        args[..8].copy_from_slice(&1_i64.to_le_bytes());
        raw.send(&honeycomb_e2e::raw::frame(header, &args, &[]));
        raw
    };
    for shard in [0, 1] {
        // The wait ends when the grant expires.
        let now_ms = good.expires_ms - 3_600_000;
        let short = honeycomb_wire::Grant { expires_ms: now_ms + 1_500, ..good };
        let mut raw = waiting(&root.grant_key().issue(&short), shard);
        assert_eq!(raw.reply().status(), Status::GrantExpired);
    }
    let mut both = [0, 1].map(|shard| waiting(&held.grant, shard));
    let mut gone = waiting(&held.grant, 0);
    // All three wait once the block counts them in its used bytes.
    let followers = |log: &honeycomb_client::Custom| super::stats(log)[0].used;
    let idle = 1 + 6 + 4;
    honeycomb_e2e::eventually("three wait", || followers(&log) >= idle + 3 * 48);
    gone.finish().unwrap();
    gone.drain();
    drop(gone);
    client.set_permissions(job.job, "own", Verbs::ALL, Verbs::ALL).unwrap();
    for raw in &mut both {
        assert_eq!(raw.reply().status(), Status::GrantRevoked);
    }
    honeycomb_e2e::eventually("nobody waits", || followers(&log) == idle);
    assert_eq!(append(&log, b"", b"on"), 1);
}

#[test]
fn requests_that_no_client_sends_are_refused() {
    let (cluster, _) = keyed_cluster_with(32 << 20, BLOCK, with_log());
    let (client, job) = cluster.job("job");
    let log = log_of(&client, &job);
    kv(&client, &job, "own:kv", 1).put(b"k", b"v").unwrap();
    let controller = cluster.controller.address();
    let (held, other) = (open(controller, &job, "own", "log"), open(controller, &job, "own", "kv"));
    let spec = Log.spec();
    let operation = |name: &str| spec.operation(name).unwrap();
    for shard in [0, 1] {
        let mut raw = Raw::greeted(cluster.servers[0].address(), &job.token, shard);
        let (number, of_kv) = (raw.present(&held.grant), raw.present(&other.grant));
        let (read, args, _) = request(operation("read"), held.block, number);
        let (append, ..) = request(operation("append"), held.block, number);
        let unlaned =
            RequestHeader { lane: LaneId(0), sequence: Sequence(0), ack_lag: 0, ..append };
        let laned = RequestHeader { lane: LaneId(3), sequence: Sequence(1), ack_lag: 1, ..read };
        let unknown = RequestHeader { op: code(0xEE), ..read };
        let on_kv = RequestHeader { at: other.block, grant: of_kv, ..read };
        let other_kind = RequestHeader { op: Op::from_code(0x8101).unwrap(), ..read };
        let large = vec![0; 100_000];
        for (what, header, args, payload, expected) in [
            ("an operation that it has not", unknown, &args, &[][..], Status::UnknownOpcode),
            ("a mutation without a lane", unlaned, &args, b"x", Status::BadFrame),
            ("a large one without a lane", unlaned, &args, &large, Status::BadFrame),
            ("a read in a lane", laned, &args, &[], Status::BadFrame),
            ("a payload that is not taken", read, &args, b"x", Status::BadFrame),
            ("a large one that is not taken", read, &args, &large, Status::BadFrame),
            ("an operation of a log on a kv", on_kv, &args, &[], Status::WrongKind),
            ("one of another custom kind", other_kind, &args, &[], Status::WrongKind),
            ("no position", read, &Vec::new(), &[], Status::BadFrame),
            ("half a lane", RequestHeader { ack_lag: 0, ..append }, &args, b"x", Status::BadFrame),
        ] {
            let reply = raw.request(header, args, payload);
            assert_eq!(reply.status(), expected, "{what}: {}", reply.message());
        }
        // A record that is larger than a block accepts, on the block's own core and on another.
        let too_large = vec![0; BLOCK as usize];
        let reply = raw.request(append, &[], &too_large);
        assert_eq!(reply.status(), Status::ValueTooLarge, "{}", reply.message());
        raw.expect_alive();
    }
    // Any block replies to a request for its successor.
    let mut raw =
        Raw::greeted(cluster.servers[0].address(), &job.token, held.block.block.shard().0);
    let number = raw.present(&held.grant);
    let next = RequestHeader { at: held.block, grant: number, ..RequestHeader::new(Op::NextBlock) };
    assert_eq!(raw.request(next, &[], &[]).status(), Status::Ok);
    assert_eq!(raw.request(next, b"x", &[]).status(), Status::BadFrame);
    while super::stats(&log).len() == 1 {
        super::append(&log, b"", &[0; 5000]);
    }
    assert_eq!(raw.request(next, &[], &[]).status(), Status::Moved);
    // The controller rejects codes outside the custom range, and kinds that no server has.
    let mut raw = Raw::greeted(controller, &job.token, ANY_SHARD);
    for (kind, expected) in [
        (0x00, Status::InvalidArgument),
        (0xF0, Status::InvalidArgument),
        (0x81, Status::UnknownKind),
    ] {
        let (path, name) = ("own".into(), "new".into());
        let body =
            CreateStructureRequest { job: job.job.0, path, name, kind, ..Default::default() };
        let reply = raw.ask(Op::CreateStructure, &body.encode());
        assert_eq!(reply.status(), expected, "{kind:#x}: {}", reply.message());
    }
}
