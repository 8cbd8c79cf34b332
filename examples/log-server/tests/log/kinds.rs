//! Custom kinds: the announcements of servers, and a kind that no server serves any more.

use super::{append, at, create, scan, with_log};
use honeycomb_client::{Any, Ask, CustomOptions};
use honeycomb_e2e::{Cluster, KIB, eventually, kv, prefix, server_options, status};
use honeycomb_server::{MemoryServer, ServerOptions};
use honeycomb_structures::{
    Answer, Backing, Kind, KindSpec, Opening, Operation, OperationSpec, Ops, Outcome, Registry,
    Route, Router, Structure, StructureKind,
};
use honeycomb_types::PrefixId;
use honeycomb_wire::Status;
use honeycomb_wire::notice::{Filter, kinds};
use std::sync::Arc;
use std::time::Duration;

/// A structure whose operations return only their location: the block's range, and the requested key.
struct Where(u8, &'static str);

struct WhereBlock(Opening);

impl StructureKind for Where {
    fn spec(&self) -> KindSpec {
        let kind = Kind::from_code(self.0).unwrap();
        let operations = vec![
            OperationSpec::read(1, "where", Route::Key),
            OperationSpec::write(2, "note", Route::Key).with_payload(),
            OperationSpec::read(3, "ranges", Route::Each),
        ];
        KindSpec { kind, name: self.1.into(), router: Router::HashRange, operations }
    }

    fn open(&self, opening: &Opening) -> Box<dyn Structure> {
        Box::new(WhereBlock(*opening))
    }
}

impl Structure for WhereBlock {}

impl Ops for WhereBlock {
    fn apply(&mut self, _: &mut Backing, operation: &Operation<'_>, payload: &[u8]) -> Outcome {
        let Opening { start, end, .. } = self.0;
        let mut args = [start.to_le_bytes(), end.to_le_bytes()].concat();
        if operation.number() != 3 {
            match operation.key() {
                Ok((key, rest)) => args.extend_from_slice(&[key, rest, payload].concat()),
                Err(refusal) => return Outcome::Done(refusal),
            }
        }
        Outcome::Done(Answer { args, ..Answer::ok(0) })
    }

    fn bytes_used(&self) -> u64 {
        0
    }
}

fn join(cluster: &Cluster, kinds: Registry) -> std::io::Result<MemoryServer> {
    let (address, token) = (cluster.controller.address(), cluster.controller.token());
    let options = server_options(address, token, 8192 * KIB, 64 * KIB);
    let options = ServerOptions { shards: 1, kinds: Arc::new(kinds), ..options };
    MemoryServer::start(&options, Duration::from_secs(1))
}

#[test]
fn a_kind_that_nobody_serves_cannot_be_created() {
    let cluster = Cluster::start(1, 4096 * KIB, 64 * KIB);
    let (client, job) = cluster.job("log");
    prefix(&client, &job, "task", 60_000);
    assert!(client.kinds().unwrap().is_empty());
    let create = |kind: &str| {
        let made = client.create_custom(job.job, "task:log", kind, CustomOptions::default());
        made.map(drop)
    };
    let e = create("log").unwrap_err();
    assert_eq!(e.status, Status::UnknownKind);
    assert!(e.message.contains("'log'") && e.message.contains("only file"), "{e}");

    // The kind exists as soon as a server with it joins, and is unknown again after the server is lost.
    let server = join(&cluster, Registry::builtin().with(log_structure::Log).unwrap()).unwrap();
    create("log").unwrap();
    let log = client.open_custom(job.job, "task:log", 0x80).unwrap();
    assert_eq!(append(&log, b"", b"x"), 0);
    assert_eq!(client.kinds().unwrap()[0].1, 1);
    drop(server);
    let lost = status(log.call("read", at(0)));
    assert_eq!(lost, Status::DataLost);
    eventually("the server is known to be gone", || client.kinds().unwrap()[0].1 == 0);
    let made = client.create_custom(job.job, "task:new", "log", CustomOptions::default());
    assert_eq!(made.err().unwrap().status, Status::UnknownKind);
}

#[test]
fn blocks_of_a_kind_go_to_the_servers_that_serve_it() {
    let cluster = Cluster::start_with(vec![with_log(), Arc::default()], 2048 * KIB, 64 * KIB);
    let (client, job) = cluster.job("log");
    // The server with the log has fewer free blocks.
    let blocks = client.status().unwrap().blocks / 2;
    prefix(&client, &job, "other", 60_000);
    let other = kv(&client, &job, "other:kv", (blocks - 8) as u32);
    let log = create(&client, &job);
    let (mut grown, record) = (0, [1; 6000]);
    let refused = loop {
        match log.call("append", Ask { payload: &record, ..Ask::default() }) {
            Ok(_) => grown += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(refused.status, Status::OutOfMemory, "{refused}");
    assert!(grown > 100, "{grown} records");
    assert_eq!(scan(&log, 0, b"").len(), grown);
    // The other server's blocks are only for kinds that it serves.
    assert!(client.status().unwrap().free > blocks / 2);
    other.put(b"k", b"v").unwrap();
    kv(&client, &job, "other:more", 2).put(b"k", b"v").unwrap();
}

#[test]
fn servers_that_serve_one_kind_have_one_description_of_it() {
    let cluster = Cluster::start_with(vec![with_log()], 4096 * KIB, 64 * KIB);
    let refused = |kinds: Registry| join(&cluster, kinds).err().unwrap().to_string();
    let other = refused(Registry::builtin().with(Where(0x80, "where")).unwrap());
    assert!(other.contains("0x80") && other.contains("'log'"), "{other}");
    let name = refused(Registry::builtin().with(Where(0x81, "log")).unwrap());
    assert!(name.contains("'log' is kind 0x80"), "{name}");
    // A server with the same kind, and an additional kind, may join.
    let kinds = Registry::builtin().with(log_structure::Log).unwrap();
    let _second = join(&cluster, kinds.with(Where(0x81, "where")).unwrap()).unwrap();
    let (client, _) = cluster.job("any");
    let kinds = client.kinds().unwrap();
    let told: Vec<_> = kinds.iter().map(|(spec, servers)| (spec.name.as_str(), *servers)).collect();
    assert_eq!(told, [("log", 2), ("where", 1)]);
}

#[test]
fn a_kind_may_be_routed_by_keys() {
    let kinds = Registry::builtin().with(Where(0xEF, "where")).unwrap();
    let cluster = Cluster::start_with(vec![Arc::new(kinds)], 4096 * KIB, 64 * KIB);
    let (client, job) = cluster.job("job");
    prefix(&client, &job, "task", 60_000);
    let options = CustomOptions { blocks: 4, ..CustomOptions::default() };
    let made = client.create_custom(job.job, "task", "where", options).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for i in 0..100_u32 {
        let key = i.to_le_bytes();
        let hash = honeycomb_wire::key_hash(&key);
        for (operation, payload) in [("where", &b""[..]), ("note", b"payload")] {
            let ask = Ask { key: Some(&key), args: b"rest", payload, ..Ask::default() };
            let answered = made.call(operation, ask).unwrap();
            let number =
                |at: usize| u64::from_le_bytes(answered.args[at..at + 8].try_into().unwrap());
            assert!((number(0)..=number(8)).contains(&hash), "the block that owns the key");
            assert_eq!(answered.args[16..], [&key, &b"rest"[..], payload].concat());
            seen.insert(number(0));
        }
    }
    assert_eq!(seen.len(), 4, "all blocks");
    let ranges = made.call_each("ranges", Ask::default()).unwrap();
    assert_eq!(ranges.len(), 4);
    // Its blocks report no changes.
    let refused = made.listen(kinds::ALL, Filter::All).err().unwrap();
    assert_eq!(refused.status, Status::InvalidArgument, "{refused}");
    let refused = made.structure().listen(kinds::ALL, Filter::All).err().unwrap();
    assert_eq!(refused.status, Status::WrongKind, "{refused}");
    // The structure opens as its kind, also without a given kind.
    let Any::Custom(same) = client.open_any(job.job, "task").unwrap() else { panic!("custom") };
    assert_eq!(same.spec(), made.spec());
    let client = cluster.client(&job.token, PrefixId(0));
    let wrong = client.open_custom(job.job, "task", "log").err().unwrap();
    assert_eq!(wrong.status, Status::UnknownKind);
    let twice = client.create_custom(job.job, "task", "where", CustomOptions::default());
    assert_eq!(twice.err().unwrap().status, Status::AlreadyExists);
    let options = CustomOptions { open_existing: true, ..CustomOptions::default() };
    client.create_custom(job.job, "task", "where", options).unwrap();
}
