//! The controller's messages over the link to a memory server, and their order: while ranges move, and when
//! links break. The test is the memory server.

use honeycomb_controller::{Controller, ControllerOptions};
use honeycomb_e2e::raw::{ANY_SHARD, Raw, frame, hello_args};
use honeycomb_e2e::{KIB, LEASE_MS, server_options};
use honeycomb_env::MemoryDisk;
use honeycomb_server::MemoryServer;
use honeycomb_types::limits::{REPLY_HEADER, REQUEST_HEADER};
use honeycomb_types::{Kind, PrefixId, ServerId, Way};
use honeycomb_wire::messages::*;
use honeycomb_wire::{Field, ReplyHeader, RequestHeader, Status};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::LazyLock;
use std::time::Duration;

/// Hashes of one slot of a kv of 64.
const SLOT: u64 = 1 << 58;

/// Messages over a link: requests of the controller, and its replies to ours.
#[derive(Debug)]
enum Frame {
    Request(RequestHeader, Vec<u8>),
    Reply(ReplyHeader, Vec<u8>),
}

/// The listener of the tests' server: without one, a controller's probe would find that the process has
/// ended.
static LISTENER: LazyLock<TcpListener> =
    LazyLock::new(|| TcpListener::bind(("127.0.0.1", 0)).unwrap());

struct Link(Raw);

impl Link {
    fn join(controller: &Controller) -> Link {
        Link::join_as(controller, 0)
    }

    /// As the member that it was, or as none.
    fn join_as(controller: &Controller, server: u32) -> Link {
        Link::join_at(controller, server, &LISTENER, 8)
    }

    fn join_at(
        controller: &Controller,
        server: u32,
        listener: &TcpListener,
        blocks_per_shard: u32,
    ) -> Link {
        let mut raw = Raw::greeted(controller.address(), controller.token(), ANY_SHARD);
        let body = JoinServerRequest {
            address: listener.local_addr().unwrap().to_string(),
            // Of the process that has the listener.
            incarnation: u64::from(listener.local_addr().unwrap().port()),
            shards: 1,
            blocks_per_shard,
            tiers: Vec::new(),
            block_size: 65_536,
            flush_root: String::new(),
            kinds: Vec::new(),
            server,
            term: 0,
            lent: Vec::new(),
        };
        let reply = raw.ask(Op::JoinServer, &body.encode());
        assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
        let joined = JoinServerReply::decode(&reply.args).unwrap();
        assert_eq!((joined.server == server, joined.known), (server != 0, server != 0));
        Link(raw)
    }

    fn next(&self) -> Frame {
        let mut stream = self.0.stream();
        let mut magic = [0; 2];
        stream.read_exact(&mut magic).unwrap();
        let mut rest = |length: usize| {
            let mut bytes = magic.to_vec();
            bytes.resize(length, 0);
            stream.read_exact(&mut bytes[2..]).unwrap();
            bytes
        };
        let args = |length: u32| {
            let mut args = vec![0; length as usize];
            self.0.stream().read_exact(&mut args).unwrap();
            args
        };
        if &magic == b"HC" {
            let head = rest(REQUEST_HEADER);
            let header = RequestHeader::decode(head[..].try_into().unwrap(), true).unwrap();
            assert_eq!(header.payload_len, 0);
            return Frame::Request(header, args(header.args_len));
        }
        let head = rest(REPLY_HEADER);
        let header = ReplyHeader::decode(head[..].try_into().unwrap()).unwrap();
        assert_eq!(header.payload_len, 0);
        Frame::Reply(header, args(header.args_len))
    }

    /// The controller's next request, which must be of this operation; its number and its message.
    fn asked<T: Field>(&self, op: Op) -> (u64, T) {
        match self.next() {
            Frame::Request(header, args) if header.op == op => {
                (header.request, T::decode(&args).unwrap())
            }
            other => panic!("{op:?} is due, not {other:?}"),
        }
    }

    /// The reply to this request of ours, which must be next.
    fn answer(&self, request: u64) -> (Status, Vec<u8>) {
        match self.next() {
            Frame::Reply(header, args) if header.request == request => (header.status, args),
            other => panic!("a reply to {request} is due, not {other:?}"),
        }
    }

    fn say(&self, request: u64, status: Status) {
        let header = ReplyHeader::new(status, request, 0);
        self.0.stream().write_all(&header.encode()).unwrap();
    }

    fn ask(&mut self, op: Op, body: &impl Field) -> u64 {
        let request = self.0.number();
        let header = RequestHeader { request, ..RequestHeader::new(op) };
        self.0.send(&frame(header, &body.encode(), &[]));
        request
    }

    fn begin(&mut self, structure: u64, from: &MapEntry, start: u64, way: Way) -> u64 {
        let (block, epoch) = (from.block, from.epoch);
        self.ask(
            Op::BeginMove,
            &BeginMoveRequest { structure, block, epoch, start, way: way as u8 },
        )
    }

    fn begun(&self, request: u64) -> BeginMoveReply {
        let (status, args) = self.answer(request);
        assert_eq!(status, Status::Ok, "{}", String::from_utf8_lossy(&args));
        BeginMoveReply::decode(&args).unwrap()
    }

    fn commit(
        &mut self,
        structure: u64,
        from: &MapEntry,
        id: u64,
        to: &MapEntry,
    ) -> CommitMoveReply {
        let body = CommitMoveRequest {
            structure,
            block: from.block,
            epoch: from.epoch,
            move_id: id,
            target: to.block,
            target_epoch: to.epoch,
            bytes: 0,
        };
        let request = self.ask(Op::CommitMove, &body);
        let (status, args) = self.answer(request);
        assert_eq!(status, Status::Ok, "{}", String::from_utf8_lossy(&args));
        CommitMoveReply::decode(&args).unwrap()
    }

    fn ended(&self, to: &MapEntry, move_id: u64, commit: bool) {
        let (request, told) = self.asked::<EndImportRequest>(Op::EndImport);
        let (block, epoch) = (to.block, to.epoch);
        assert_eq!(told, EndImportRequest { block, epoch, move_id, commit });
        self.say(request, Status::Ok);
    }

    fn freed(&self, entry: &MapEntry) {
        let (request, told) = self.asked::<FreeBlockRequest>(Op::FreeBlock);
        assert_eq!((told.block, told.epoch), (entry.block, entry.epoch));
        self.say(request, Status::Ok);
    }
}

/// A store of two blocks and 64 slots, on this link; its job, its number and its map.
fn store(controller: &Controller, link: &Link) -> (u64, u64, Vec<MapEntry>) {
    let mut client = Raw::greeted(controller.address(), controller.token(), ANY_SHARD);
    let body = RegisterJobRequest {
        name: "job".into(),
        lease_ms: LEASE_MS,
        ..RegisterJobRequest::default()
    };
    let reply = client.ask(Op::RegisterJob, &body.encode());
    let job = RegisterJobReply::decode(&reply.args).unwrap().job;
    let body = CreateStructureRequest {
        job,
        path: String::new(),
        name: "kv".into(),
        kind: Kind::Kv.code(),
        blocks: 2,
        max_items: 0,
        max_bytes: 0,
        open_existing: false,
    };
    let request = client.number();
    let header = RequestHeader { request, ..RequestHeader::new(Op::CreateStructure) };
    client.send(&frame(header, &body.encode(), &[]));
    for _ in 0..2 {
        let (request, open) = link.asked::<OpenBlockRequest>(Op::OpenBlock);
        assert_eq!(open.importing, 0);
        link.say(request, Status::Ok);
    }
    let reply = client.reply();
    assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
    let opened = CreateStructureReply::decode(&reply.args).unwrap();
    (job, opened.structure, opened.map.entries)
}

fn options() -> ControllerOptions {
    ControllerOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        root_key: None,
        spin: Duration::ZERO,
        data_dir: None,
        unix_dir: None,
        marks: honeycomb_types::Marks::default(),
        lease_ms: 1000,
        policy: Default::default(),
        scale: Default::default(),
        server_loss_ms: honeycomb_types::limits::SERVER_LOSS_DEFAULT_MS,
        shards: 1,
    }
}

/// The removal of the store that `store` made.
fn removal(job: u64, request: u64) -> Vec<u8> {
    let body = RemoveStructureRequest { job, path: String::new(), name: "kv".into() };
    let header = RequestHeader { request, ..RequestHeader::new(Op::RemoveStructure) };
    frame(header, &body.encode(), &[])
}

fn start() -> (Controller, Link, u64, Vec<MapEntry>) {
    let (controller, link, _, structure, entries) = start_with_job();
    (controller, link, structure, entries)
}

fn start_with_job() -> (Controller, Link, u64, u64, Vec<MapEntry>) {
    let controller = Controller::start(&options()).unwrap();
    let link = Link::join(&controller);
    let (job, structure, entries) = store(&controller, &link);
    (controller, link, job, structure, entries)
}

#[test]
fn a_source_hears_of_its_target_when_that_one_is_ready_or_refuses() {
    let (_controller, mut link, s, entries) = start();
    let a = &entries[0];
    let first = link.begin(s, a, 16 * SLOT, Way::Split);
    let (opening, open) = link.asked::<OpenBlockRequest>(Op::OpenBlock);
    assert_eq!((open.start, open.end), (16 * SLOT, 32 * SLOT - 1));
    let refused = open.importing;
    assert_ne!(refused, 0);
    // The answer to a retry waits for the same block.
    let second = link.begin(s, a, 8 * SLOT, Way::Split);
    let (again, same) = link.asked::<OpenBlockRequest>(Op::OpenBlock);
    assert_eq!(same, open);
    link.say(opening, Status::WrongEpoch);
    assert_eq!(link.answer(first).0, Status::WrongEpoch);
    let target = MapEntry { block: open.block, epoch: open.epoch, ..MapEntry::default() };
    link.freed(&target);
    link.say(again, Status::WrongEpoch);
    assert_eq!(link.answer(second).0, Status::WrongEpoch);
    // The move is no more; the next is another.
    let third = link.begin(s, a, 8 * SLOT, Way::Split);
    let (opening, open) = link.asked::<OpenBlockRequest>(Op::OpenBlock);
    assert_eq!((open.start, open.end), (8 * SLOT, 32 * SLOT - 1));
    link.say(opening, Status::Ok);
    let begun = link.begun(third);
    assert_eq!(begun.move_id, open.importing);
    assert_ne!(begun.move_id, refused);
    assert_eq!((begun.entry.block, begun.entry.epoch), (open.block, open.epoch));
    assert_eq!((begun.entry.start, begun.entry.end), (8 * SLOT, 32 * SLOT - 1));
    // Ready is ready: nobody is asked once more.
    let fourth = link.begin(s, a, 0, Way::Merge);
    assert_eq!(link.begun(fourth), begun);
}

#[test]
fn a_source_hears_of_its_commit_before_anything_follows_from_it() {
    let (_controller, mut link, s, entries) = start();
    let (a, b) = (&entries[0], &entries[1]);
    let request = link.begin(s, a, 16 * SLOT, Way::Split);
    let (opening, _) = link.asked::<OpenBlockRequest>(Op::OpenBlock);
    link.say(opening, Status::Ok);
    let BeginMoveReply { move_id, entry: target } = link.begun(request);
    let moved = link.commit(s, a, move_id, &target);
    assert_eq!((moved.version, &moved.entry), (2, &target));
    link.ended(&target, move_id, true);
    assert_eq!(link.commit(s, a, move_id, &target), moved);
    link.ended(&target, move_id, true);
    let (block, epoch) = (a.block, a.epoch);
    let late = link.ask(Op::CancelMove, &CancelMoveRequest { structure: s, block, epoch, move_id });
    assert_eq!(link.answer(late).0, Status::Ok);

    // The moved range returns to its source: first the return is refused, then accepted.
    let request = link.begin(s, &target, 0, Way::Merge);
    let (beginning, told) = link.asked::<BeginImportRequest>(Op::BeginImport);
    assert_eq!((told.block, told.epoch), (a.block, a.epoch));
    assert_eq!((told.start, told.end), (16 * SLOT, 32 * SLOT - 1));
    link.say(beginning, Status::Busy);
    assert_eq!(link.answer(request).0, Status::Busy);
    link.ended(a, told.move_id, false);
    let request = link.begin(s, &target, 0, Way::Merge);
    let (beginning, _) = link.asked::<BeginImportRequest>(Op::BeginImport);
    link.say(beginning, Status::Ok);
    let BeginMoveReply { move_id, entry } = link.begun(request);
    assert_eq!((entry.block, entry.epoch), (a.block, a.epoch));
    let moved = link.commit(s, &target, move_id, a);
    assert_eq!((moved.version, moved.entry.start, moved.entry.end), (3, 0, 32 * SLOT - 1));
    link.ended(a, move_id, true);
    link.freed(&target);

    // A cancelled move leaves nothing behind, and is not committed any more.
    let request = link.begin(s, b, 48 * SLOT, Way::Split);
    let (opening, _) = link.asked::<OpenBlockRequest>(Op::OpenBlock);
    link.say(opening, Status::Ok);
    let BeginMoveReply { move_id, entry } = link.begun(request);
    let (structure, block, epoch) = (s, b.block, b.epoch);
    let cancel = link.ask(Op::CancelMove, &CancelMoveRequest { structure, block, epoch, move_id });
    assert_eq!(link.answer(cancel).0, Status::Ok);
    link.freed(&entry);
    let (target, target_epoch) = (entry.block, entry.epoch);
    let body =
        CommitMoveRequest { structure, block, epoch, move_id, target, target_epoch, bytes: 0 };
    let late = link.ask(Op::CommitMove, &body);
    assert_eq!(link.answer(late).0, Status::Removed);
}

/// Regression: a source waited for a target until the target's server was back or lost, for 15 s or longer;
/// its writers waited, too.
#[test]
fn source_whose_target_is_on_a_server_with_a_broken_link_does_not_wait_for_it() {
    let controller = Controller::start(&options()).unwrap();
    let mut link = Link::join_at(&controller, 0, &LISTENER, 4);
    let (_, s, entries) = store(&controller, &link);
    // The first server has no room for a third split.
    for (entry, start) in [(&entries[0], 24 * SLOT), (&entries[1], 48 * SLOT)] {
        let split = link.begin(s, entry, start, Way::Split);
        let (opening, _) = link.asked::<OpenBlockRequest>(Op::OpenBlock);
        link.say(opening, Status::Ok);
        let BeginMoveReply { move_id, entry: target } = link.begun(split);
        link.commit(s, entry, move_id, &target);
        link.ended(&target, move_id, true);
    }
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let other = Link::join_at(&controller, 0, &listener, 8);
    let split = link.begin(s, &entries[0], 16 * SLOT, Way::Split);
    let (_, open) = other.asked::<OpenBlockRequest>(Op::OpenBlock);
    drop(other);
    assert_eq!(link.answer(split).0, Status::Busy);

    // The block that was requested over the broken link is taken back.
    let mut back = Link::join_at(&controller, 2, &listener, 8);
    let inventory = back.ask(Op::Inventory, &InventoryRequest { blocks: Vec::new(), last: true });
    let (freeing, freed) = back.asked::<FreeBlockRequest>(Op::FreeBlock);
    assert_eq!((freed.block, freed.epoch), (open.block, open.epoch));
    assert_eq!(back.answer(inventory).0, Status::Ok);
    back.say(freeing, Status::Ok);
    let split = link.begin(s, &entries[0], 16 * SLOT, Way::Split);
    let (opening, here) = back.asked::<OpenBlockRequest>(Op::OpenBlock);
    back.say(opening, Status::Ok);
    let begun = link.begun(split);
    assert_eq!((begun.entry.block, begun.move_id), (here.block, here.importing));
    assert_ne!(here.importing, open.importing);
}

/// Regression: when an awaited server broke its link and was declared lost later, requests to it were not
/// failed, and their callers waited for ever.
#[test]
fn who_waits_for_a_server_that_does_not_return_is_answered_when_it_is_given_up() {
    let disk = MemoryDisk::new();
    let controller = Controller::start_on(Box::new(disk.clone()), &options()).unwrap();
    let before = Link::join(&controller);
    let (job, _, entries) = store(&controller, &before);
    drop(controller);
    let controller = Controller::start_on(Box::new(disk), &options()).unwrap();
    let link = Link::join_as(&controller, 1);
    let mut client = Raw::greeted(controller.address(), controller.token(), ANY_SHARD);
    let request = client.number();
    client.send(&removal(job, request));
    for entry in &entries {
        let (_, told) = link.asked::<FreeBlockRequest>(Op::FreeBlock);
        assert_eq!(told.block, entry.block);
    }
    // The server never reports its blocks, and another process has its address.
    drop(link);
    let _link = Link::join(&controller);
    let reply = client.reply();
    assert_eq!((reply.header.request, reply.status()), (request, Status::Ok));
}

/// Regression: requests that a server had already received over its new link were repeated after its
/// inventory: it counted shards again, and confirmed before all of them had completed.
#[test]
fn what_was_asked_over_the_new_link_is_not_asked_again() {
    let (controller, link, job, structure, entries) = start_with_job();
    let mut client = Raw::greeted(controller.address(), controller.token(), ANY_SHARD);
    let mut permit = |job_verbs| {
        let path = String::new();
        let body = SetPermissionsRequest { job, path, owner_verbs: 3, job_verbs };
        let request = client.number();
        let header = RequestHeader { request, ..RequestHeader::new(Op::SetPermissions) };
        client.send(&frame(header, &body.encode(), &[]));
        request
    };
    let one = permit(1);
    let (first, told) = link.asked::<SetGenerationRequest>(Op::SetGeneration);
    let mut again = Link::join_as(&controller, 1);
    let two = permit(3);
    let (second, last) = again.asked::<SetGenerationRequest>(Op::SetGeneration);
    assert_eq!(last.generation, told.generation + 1);
    let held = |entry: &MapEntry| HeldBlock {
        block: entry.block,
        epoch: entry.epoch,
        structure,
        generation: last.generation,
        ..HeldBlock::default()
    };
    let blocks = entries.iter().map(held).collect();
    let inventory = again.ask(Op::Inventory, &InventoryRequest { blocks, last: true });
    let (repeated, same) = again.asked::<SetGenerationRequest>(Op::SetGeneration);
    assert_eq!((repeated, same), (first, told));
    assert_eq!(again.answer(inventory).0, Status::Ok);
    again.say(first, Status::Ok);
    again.say(second, Status::Ok);
    for request in [one, two] {
        let reply = client.reply();
        assert_eq!((reply.header.request, reply.status()), (request, Status::Ok));
    }
}

/// Regression: a retried change was answered at once, before its requests to servers were complete.
#[test]
fn what_is_asked_again_is_answered_when_it_is_done() {
    let (controller, link, job, _, entries) = start_with_job();
    let session = hello_args(controller.token(), PrefixId(0), ANY_SHARD);
    let connect = || {
        let mut raw = Raw::connect(controller.address());
        let reply = raw.request(RequestHeader::new(Op::Hello), &session, &[]);
        assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
        raw
    };
    let named = 1 << 63 | 5;
    let mut first = connect();
    first.send(&removal(job, named));
    let asked: Vec<u64> =
        entries.iter().map(|_| link.asked::<FreeBlockRequest>(Op::FreeBlock).0).collect();
    let mut second = connect();
    second.send(&removal(job, named));
    // Its reply is the first to come.
    second.expect_alive();
    asked.iter().for_each(|request| link.say(*request, Status::Ok));
    let reply = second.reply();
    assert_eq!((reply.header.request, reply.status()), (named, Status::Ok));
    // A completed change is answered at once, on any connection.
    first.send(&removal(job, named));
    assert_eq!(first.reply().status(), Status::Ok);
}

/// Regression: a block that was to be opened over a broken link, and was freed over the next link before the
/// server's inventory, was opened afterwards: it had no owner, and its memory was never freed.
#[test]
fn what_was_freed_over_the_new_link_is_not_opened_again() {
    let (controller, mut link, job, structure, entries) = start_with_job();
    link.begin(structure, &entries[0], 16 * SLOT, Way::Split);
    let (_, target) = link.asked::<OpenBlockRequest>(Op::OpenBlock);
    let mut again = Link::join_as(&controller, 1);
    let mut client = Raw::greeted(controller.address(), controller.token(), ANY_SHARD);
    let request = client.number();
    client.send(&removal(job, request));
    let mut freed = Vec::new();
    for _ in 0..entries.len() + 1 {
        let (asked, told) = again.asked::<FreeBlockRequest>(Op::FreeBlock);
        again.say(asked, Status::Ok);
        freed.push(told.block);
    }
    assert!(freed.contains(&target.block), "{freed:?}");
    let reply = client.reply();
    assert_eq!((reply.header.request, reply.status()), (request, Status::Ok));
    let told = again.ask(Op::Inventory, &InventoryRequest { blocks: Vec::new(), last: true });
    assert_eq!(again.answer(told).0, Status::Ok);
}

/// A server whose controller sent keys of a wrong length, or a reply that it could not read, kept the
/// connection and waited for the controller to close it.
#[test]
fn server_that_cannot_join_closes_the_connection_and_connects_again() {
    let controller = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = controller.local_addr().unwrap();
    let options = server_options(address, b"token", 64 * 1024 * KIB, 64 * KIB);
    let hello = HelloReply { shards: 1, ..HelloReply::default() };
    let keys = JoinServerReply {
        token_key: vec![1; 32],
        grant_key: vec![1; 32],
        server: ServerId::new(0, 1).0,
        ..JoinServerReply::default()
    };
    let join = |reply: JoinServerReply| vec![hello.encode(), reply.encode()];
    let useless = [
        vec![vec![1; 3]],
        vec![HelloReply { shards: 65, ..hello.clone() }.encode()],
        vec![hello.encode(), vec![1; 3]],
        join(JoinServerReply { server: ServerId::new(3, 1).0, ..keys.clone() }),
        join(JoinServerReply { grant_key: vec![1; 31], ..keys.clone() }),
    ];
    let serve = |replies: &[Vec<u8>]| {
        let (mut stream, _) = controller.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        for args in replies {
            let mut header = [0; REQUEST_HEADER];
            stream.read_exact(&mut header).unwrap();
            let header = RequestHeader::decode(&header, true).unwrap();
            stream.read_exact(&mut vec![0; header.body_len()]).unwrap();
            let reply = ReplyHeader::new(Status::Ok, header.request, 0);
            let reply = ReplyHeader { args_len: args.len() as u32, ..reply };
            stream.write_all(&[&reply.encode()[..], args].concat()).unwrap();
        }
        stream
    };
    std::thread::scope(|scope| {
        let server = scope.spawn(|| MemoryServer::start(&options, Duration::from_secs(60)));
        for replies in &useless {
            let rest = serve(replies).read_to_end(&mut Vec::new()).unwrap();
            assert_eq!(rest, 0, "it hangs up");
        }
        let _joined = serve(&join(keys));
        assert!(server.join().unwrap().is_ok());
    });
}
