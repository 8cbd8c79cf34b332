//! The golden vectors and the tables of PROTOCOL.md, against this crate.
//!
//! The vectors come from an implementation that shares no code with this one (protocol/vectors.py),
//! so agreement confirms the document.

use crate::common::{bytes, list, message, number, op, status, text, vectors};
use crate::{batches, common, queues, shown};
use honeycomb_types::limits::{REPLY_HEADER, REQUEST_HEADER};
use honeycomb_types::{
    BlockAt, Generation, JobId, LaneId, PrefixId, Route, Sequence, StructureId, Verbs,
};
use honeycomb_wire::custom::{Routed, put_routed, split_args};
use honeycomb_wire::data::{
    Brings, MovedArgs, PutMode, ReadArgs, ScanArgs, SwapArgs, acks, mode_and_key, put_acks,
    put_scan_entry, scan_entries,
};
use honeycomb_wire::extents::{
    ListHead, PutExtents, StoredWhen, extents, put_extents, put_list, value_length,
};
use honeycomb_wire::messages::HelloRequest;
use honeycomb_wire::notice::{Filter, Notice, SubscribeArgs};
use honeycomb_wire::queue::{
    AckArgs, Counts, GetArgs, GetExtentsArgs, Items, LargeItem, large_items, lengths,
};
use honeycomb_wire::token::{Caveat, Unproven};
use honeycomb_wire::{
    Auth, Durability, Field, Grant, GrantKey, Greeted, Header, Malformed, Mutates, Op, Plane,
    Reader, Refusal, ReplyHeader, RequestHeader, RootKey, Scope, Status, TokenKey, attenuate,
    batch, checksum, key_hash, slot_of, stored,
};
use serde_json::Value;
use std::collections::BTreeSet;

// ------------------------------------------------------------------------------------------ frames

fn request_of(fields: &Value) -> RequestHeader {
    let wide = |name: &str| number(&fields[name]);
    let narrow = |name: &str| u32::try_from(wide(name)).unwrap();
    let op = match text(&fields["op"]) {
        "Custom" => Op::from_code(wide("code") as u16).unwrap(),
        _ => op(&fields["op"]),
    };
    assert_eq!(op.code() as u64, wide("code"), "{fields}");
    RequestHeader {
        op,
        flags: wide("flags") as u16,
        args_len: narrow("args_len"),
        payload_len: narrow("payload_len"),
        request: wide("request"),
        at: BlockAt::of(wide("block"), wide("epoch")),
        sequence: Sequence(wide("sequence")),
        lane: LaneId(narrow("lane")),
        grant: narrow("grant"),
        ack_lag: narrow("ack_lag"),
        deadline_ms: narrow("deadline_ms"),
    }
}

fn reply_of(fields: &Value) -> ReplyHeader {
    let durability = match text(&fields["durability"]) {
        "memory" => Durability::Memory,
        "chain" => Durability::Chain,
        "flushed" => Durability::Flushed,
        other => panic!("no durability is called {other}"),
    };
    ReplyHeader {
        status: status(fields),
        durability,
        args_len: number(&fields["args_len"]) as u32,
        payload_len: number(&fields["payload_len"]) as u32,
        request: number(&fields["request"]),
        value: number(&fields["value"]),
    }
}

#[test]
fn headers_encode_to_their_bytes_and_decode_from_them() {
    let frames = vectors("frames");
    let (mut ops, mut statuses) = (BTreeSet::new(), BTreeSet::new());
    for case in list(&frames["requests"]) {
        let (header, hex) = (request_of(&case["fields"]), bytes(&case["hex"]));
        ops.insert(header.op);
        assert_eq!(header.encode()[..], hex, "{}", case["name"]);
        let read = RequestHeader::decode(hex.first_chunk().unwrap(), true);
        assert_eq!(read, Ok(header), "{}", case["name"]);
        let either = Header::decode(&hex, true);
        assert_eq!(either, Ok(Some((Header::Request(header), REQUEST_HEADER))));
    }
    for case in list(&frames["replies"]) {
        let (header, hex) = (reply_of(&case["fields"]), bytes(&case["hex"]));
        statuses.insert(header.status);
        assert_eq!(header.encode()[..], hex, "{}", case["name"]);
        let read = ReplyHeader::decode(hex.first_chunk().unwrap());
        assert_eq!(read, Ok(header), "{}", case["name"]);
        let either = Header::decode(&hex, true);
        assert_eq!(either, Ok(Some((Header::Reply(header), REPLY_HEADER))));
    }
    let custom = ops.split_off(&Op::Custom(0));
    assert_eq!(ops, BTreeSet::from(Op::ALL), "every operation has a frame");
    assert!(custom.contains(&Op::Custom(0x8000)) && custom.contains(&Op::Custom(0xEFFF)));
    assert_eq!(statuses, BTreeSet::from(Status::ALL), "every status has a frame");
}

#[test]
fn whole_frames_fall_into_their_parts() {
    for case in list(&vectors("frames")["whole"]) {
        let hex = bytes(&case["hex"]);
        let (header, size) = Header::decode(&hex, true).unwrap().unwrap();
        let (args_len, body_len) = match header {
            Header::Request(h) => {
                assert_eq!(h, request_of(&case["fields"]), "{}", case["name"]);
                (h.args_len as usize, h.body_len())
            }
            Header::Reply(h) => {
                assert_eq!(h, reply_of(&case["fields"]), "{}", case["name"]);
                (h.args_len as usize, h.body_len())
            }
        };
        assert_eq!(hex.len(), size + body_len, "{}", case["name"]);
        assert_eq!(hex[size..size + args_len], bytes(&case["args"]), "{}", case["name"]);
        assert_eq!(hex[size + args_len..], bytes(&case["payload"]), "{}", case["name"]);
    }
}

// ---------------------------------------------------------------------------------------- refusals

fn expect<T: std::fmt::Debug>(case: &Value, judged: Result<Option<T>, Refusal>) {
    let name = &case["name"];
    match (text(&case["expect"]), judged) {
        ("need_more", Ok(None)) | ("accept", Ok(Some(_))) => {}
        ("refuse", Err(refusal)) => {
            assert_eq!(refusal.status, status(case), "{name}: {}", refusal.reason);
            assert_eq!(Value::Bool(refusal.skip), case["survives"], "{name}");
            assert!(!refusal.reason.is_empty(), "{name}");
        }
        (expected, judged) => panic!("{name}: expected {expected}, got {judged:?}"),
    }
}

#[test]
fn bad_headers_are_refused_with_exactly_their_status() {
    let refusals = vectors("refusals");
    for case in list(&refusals["requests"]) {
        let (hex, greeted) = (bytes(&case["hex"]), case["greeted"].as_bool().unwrap());
        match hex.first_chunk::<REQUEST_HEADER>() {
            Some(head) => expect(case, RequestHeader::decode(head, greeted).map(Some)),
            None => expect(case, Header::decode(&hex, greeted)),
        }
        if let Some(skip) = case.get("skip") {
            let length = |at: usize| u32::from_le_bytes(*hex[at..].first_chunk().unwrap()) as u64;
            assert_eq!(number(skip), length(8) + length(12), "{}", case["name"]);
        }
    }
    for case in list(&refusals["replies"]) {
        let hex = bytes(&case["hex"]);
        match hex.first_chunk::<REPLY_HEADER>() {
            Some(head) => expect(case, ReplyHeader::decode(head).map(Some)),
            None => expect(case, Header::decode(&hex, true)),
        }
    }
}

fn data_request(op: Op, args: &[u8], payload: &[u8]) -> Result<(), Malformed> {
    match op {
        Op::FileRead => ReadArgs::decode(args).map(drop),
        Op::KvPut => PutMode::and_key(args).map(drop),
        Op::KvDelete => mode_and_key(args).map(drop),
        Op::KvPutExtents | Op::QueuePutExtents => {
            PutExtents::decode(args, payload).and_then(|put| extents(put.list).map(drop))
        }
        Op::KvDeleteExtents => extents(payload).map(drop),
        Op::KvCompareAndSwap => SwapArgs::decode(args, payload).map(drop),
        Op::KvScan => ScanArgs::decode(args).map(drop),
        Op::Subscribe => SubscribeArgs::decode(args).map(drop),
        Op::AckResults => acks(args).map(drop),
        Op::QueuePut => lengths(args, payload.len()).map(drop),
        Op::QueueGet => GetArgs::decode(args).map(drop),
        Op::QueuePeek => GetArgs::decode_peek(args).map(drop),
        Op::QueueAck => AckArgs::decode(args).map(drop),
        Op::QueueGetExtents => GetExtentsArgs::decode(args).map(drop),
        Op::FileReadMany => batch::ReadManyArgs::decode(args).map(drop),
        Op::KvMultiGet => u32::decode(args).and(batch::keys(payload).map(drop)),
        Op::KvBatch => bool::decode(args).and(batch::batch_ops(payload).map(drop)),
        Op::KvAccumulate => stored::function_and_key(args).map(drop),
        other => panic!("{} has no layout to break", other.name()),
    }
}

fn data_reply(op: Op, args: &[u8], payload: &[u8]) -> Result<(), Malformed> {
    match op {
        Op::KvScan => scan_entries(payload).map(drop),
        Op::QueueGet | Op::QueuePeek => Items::decode(args, payload.len()).map(drop),
        Op::QueueLength => Counts::decode(args).map(drop),
        Op::QueueGetExtents => LargeItem::decode(args).map(drop),
        Op::QueueLists => large_items(payload).map(drop),
        other => panic!("the reply to {} has no layout to break", other.name()),
    }
}

/// Arguments so simple that the structure itself reads them; its tests cover these bodies.
fn read_by_the_structure(op: Op) -> bool {
    matches!(op, Op::QueueLength | Op::QueueClose)
}

#[test]
fn bad_bodies_are_refused() {
    let refusals = vectors("refusals");
    let mut ops = BTreeSet::new();
    for case in list(&refusals["bodies"]) {
        let (op, args, payload) = (op(&case["op"]), bytes(&case["args"]), bytes(&case["payload"]));
        assert_eq!(status(case), Status::BadFrame);
        ops.insert(op);
        let refused = match (op.info().message, text(&case["part"])) {
            (true, part) => message(op, part == "request", &args).is_err(),
            (false, "notice") => Notice::decode(&args).is_err(),
            (false, "request") if read_by_the_structure(op) => continue,
            (false, "request") => data_request(op, &args, &payload).is_err(),
            (false, _) => data_reply(op, &args, &payload).is_err(),
        };
        assert!(refused, "{}", case["name"]);
    }
    let messages = Op::ALL.into_iter().filter(|op| op.info().message);
    for op in messages {
        assert!(ops.contains(&op), "{} has no bad body", op.name());
    }
}

#[test]
fn a_list_has_at_most_its_limit() {
    let path = 1u64.encode();
    let paths = |n: u32| [&path[..], &n.to_le_bytes(), &vec![0; 2 * n as usize]].concat();
    assert!(message(Op::RenewLeases, true, &paths(65_536)).is_ok());
    assert!(message(Op::RenewLeases, true, &paths(65_537)).is_err());
}

#[test]
fn a_batch_of_items_has_at_most_its_limit() {
    for (entries, fits) in [(4096, true), (4097, false)] {
        assert_eq!(lengths(&vec![0; 4 * entries], 0).is_ok(), fits);
        assert_eq!(Items::decode(&vec![0; 12 + 4 * entries], 0).is_ok(), fits);
        assert_eq!(AckArgs::decode(&vec![0; 5 + 12 * entries]).is_ok(), fits);
    }
    assert_eq!(acks(&vec![0; 12 * 1024]).map(|acks| acks.len()), Ok(1024));
}

fn hello_with(changes: &Value, key: &TokenKey) -> HelloRequest {
    let job = key.issue(Some(JobId(5)));
    let token = match changes["token"].as_str() {
        None => job,
        Some("") => Vec::new(),
        Some("of task 9") => attenuate(&job, Caveat::Task(PrefixId(9))).unwrap(),
        Some(other) => panic!("no token is called {other}"),
    };
    let or = |name: &str, usual: u64| changes.get(name).map_or(usual, number);
    HelloRequest {
        major: or("major", 1) as u16,
        minor: or("minor", 0) as u16,
        features: or("features", 0),
        session: or("session", 7) as u128,
        token,
        task_prefix: or("task_prefix", 0),
        shard: or("shard", 255) as u8,
        window: or("window", 0) as u16,
    }
}

fn greet(args: &[u8], key: &TokenKey) -> Status {
    match Greeted::check(args, key, 5000) {
        Ok(greeted) => {
            let reply = greeted.reply(5000);
            assert_eq!((reply.major, reply.minor, reply.features), (1, 0, 0));
            Status::Ok
        }
        Err((status, _)) => status,
    }
}

#[test]
fn handshakes_are_judged_as_the_scenarios_say() {
    let key = RootKey([7; 32]).token_key();
    let mut judged = 0;
    for case in list(&vectors("refusals")["behaviour"]) {
        let status = status(case);
        let changes = &case["send"]["with"];
        // Shard and window concern only the memory server; an earlier handshake concerns only the
        // connection.
        let here = changes.is_object() && changes.get("shard").is_none();
        if here && text(&case["given"]) == "a new connection" {
            let hello = hello_with(changes, &key);
            assert_eq!(greet(&hello.encode(), &key), status, "{}", case["name"]);
            judged += 1;
        }
    }
    assert!(judged >= 7, "only {judged} scenarios are about the handshake itself");
}

#[test]
fn another_major_version_is_named_even_when_its_hello_has_another_layout() {
    let name = "another major version with another layout";
    let refusals = vectors("refusals");
    let mut cases = list(&refusals["behaviour"]).iter();
    let case = cases.find(|case| case["name"] == name).unwrap();
    let hex = bytes(&case["send"]["hex"]);
    assert!(Header::decode(&hex, false).is_ok());
    assert_eq!(greet(&hex[REQUEST_HEADER..], &RootKey([7; 32]).token_key()), status(case));
}

// ------------------------------------------------------------------------------------------- slots

#[test]
fn keys_have_their_hashes_tags_and_slots() {
    for case in list(&vectors("slots")["keys"]) {
        let hash = key_hash(&bytes(&case["key"]));
        assert_eq!(format!("{hash:016x}"), text(&case["hash"]), "{}", case["key"]);
        assert_eq!(slot_of(hash), number(&case["slot"]), "{}", case["key"]);
        let decides = match &case["tag"] {
            Value::Null => bytes(&case["key"]),
            tag => bytes(tag),
        };
        assert_eq!(hash >> 48, xxhash_rust::xxh64::xxh64(&decides, 0) >> 48, "{}", case["key"]);
    }
}

// ---------------------------------------------------------------------------------- tokens, grants

fn key_of(value: &Value) -> [u8; 32] {
    bytes(value).try_into().unwrap()
}

fn error_name(error: &Unproven) -> &'static str {
    match error {
        Unproven::Malformed(_) => "Malformed",
        Unproven::UnknownForm => "UnknownForm",
        Unproven::Forged => "Forged",
    }
}

#[test]
fn tokens_are_believed_or_not_as_the_vectors_say() {
    let file = vectors("tokens");
    let key = RootKey(key_of(&file["root_key"])).token_key();
    assert_eq!(key.0, key_of(&file["token_key"]));
    let now = number(&file["now_ms"]);
    for case in list(&file["tokens"]) {
        let name = &case["name"];
        let answered = match key.verify(&bytes(&case["hex"])) {
            Ok(found) => {
                let scope = &case["scope"];
                let job = number(&scope["job"]);
                let task = (!scope["task"].is_null()).then(|| PrefixId(number(&scope["task"])));
                let expected = Scope {
                    job: (job != 0).then_some(JobId(job)),
                    task,
                    verbs: Verbs(number(&scope["verbs"]) as u16),
                    expires_ms: number(&scope["expires_ms"]),
                    life: (!scope["life"].is_null()).then(|| PrefixId(number(&scope["life"]))),
                };
                // For a token with two tasks only the missing verbs matter.
                let task = if expected.verbs == Verbs::NONE { found.task } else { expected.task };
                assert_eq!(found, Scope { task, ..expected }, "{name}");
                if now >= found.expires_ms { Status::Unauthenticated } else { Status::Ok }
            }
            Err(e) => {
                assert_eq!(error_name(&e), case["error"], "{name}");
                Status::Unauthenticated
            }
        };
        assert_eq!(answered, status(case), "{name}");
    }
}

#[test]
fn attenuation_gives_the_bytes_of_the_vectors() {
    for case in list(&vectors("tokens")["attenuations"]) {
        let value = number(&case["value"]);
        let caveat = match text(&case["caveat"]) {
            "task" => Caveat::Task(PrefixId(value)),
            "verbs" => Caveat::Verbs(Verbs(value as u16)),
            "expires_ms" => Caveat::Expires(value),
            other => panic!("no caveat is called {other}"),
        };
        assert_eq!(attenuate(&bytes(&case["from"]), caveat).unwrap(), bytes(&case["to"]));
    }
}

#[test]
fn a_token_with_as_many_caveats_as_can_be_counted_takes_no_more() {
    // Anyone can make such a token without a key: attenuating it must not panic.
    let token = [&[1u8][..], &[0; 8], &[255], &[0; 2 * 255], &[0; 32]].concat();
    assert_eq!(attenuate(&token, Caveat::Verbs(Verbs::READ)), Err(Unproven::UnknownForm));
}

#[test]
fn grants_are_believed_or_not_as_the_vectors_say() {
    let file = vectors("tokens");
    let key = GrantKey(key_of(&file["grant_key"]));
    assert_eq!(RootKey(key_of(&file["root_key"])).grant_key().0, key.0);
    let now = number(&file["now_ms"]);
    for case in list(&file["grants"]) {
        let (name, hex) = (&case["name"], bytes(&case["hex"]));
        let answered = match key.verify(&hex) {
            Ok(found) => {
                let field = |name: &str| number(&case["grant"][name]);
                let expected = Grant {
                    job: JobId(field("job")),
                    prefix: PrefixId(field("prefix")),
                    structure: StructureId(field("structure")),
                    verbs: Verbs(field("verbs") as u16),
                    generation: Generation(field("generation") as u32),
                    expires_ms: field("expires_ms"),
                };
                assert_eq!(found, expected, "{name}");
                assert_eq!(key.issue(&expected), hex, "{name}");
                // As judged by a block whose prefix is at generation 4.
                match found {
                    g if g.generation < Generation(4) => Status::GrantRevoked,
                    g if now >= g.expires_ms => Status::GrantExpired,
                    _ => Status::Ok,
                }
            }
            Err(e) => {
                assert_eq!(error_name(&e), case["error"], "{name}");
                Status::PermissionDenied
            }
        };
        assert_eq!(answered, status(case), "{name}");
    }
}

// ---------------------------------------------------------------------------------------- messages

fn check_message(op: Op, request: bool, sample: &Value) {
    let at = format!("{} {}", op.name(), sample["name"]);
    let args = bytes(&sample["args"]);
    let (written, debug) = message(op, request, &args).unwrap_or_else(|e| panic!("{at}: {e}"));
    assert_eq!(written, args, "{at}");
    assert!(shown::agrees(&sample["fields"], &shown::parse(&debug)), "{at}: {debug}");
}

fn check_data_request(op: Op, sample: &Value) {
    let at = format!("{} {}", op.name(), sample["name"]);
    let (args, payload) = (bytes(&sample["args"]), bytes(&sample["payload"]));
    let field = |name: &str| &sample["fields"][name];
    assert!(op.info().payload || payload.is_empty(), "{at}");
    match op {
        Op::FileAppend
        | Op::FileSize
        | Op::FileSeal
        | Op::FileMap
        | Op::FileContinue
        | Op::QueueClose
        | Op::NextBlock => {
            assert!(args.is_empty(), "{at}");
        }
        Op::KvLength => {
            let from = (!field("from").is_null()).then(|| number(field("from")).encode());
            assert_eq!(args, from.unwrap_or_default(), "{at}");
        }
        Op::Subscribe => {
            let key = bytes(field("key"));
            let filter = match number(field("match")) {
                0 => Filter::All,
                1 => Filter::Key(key),
                _ => Filter::Prefix(key),
            };
            let (subscription, kinds) = (number(field("subscription")), number(field("kinds")));
            let (subscription, kinds) = (subscription as u32, kinds as u16);
            let told = SubscribeArgs { subscription, kinds, filter };
            assert_eq!(told.encode(), args, "{at}");
            assert_eq!(SubscribeArgs::decode(&args), Ok(told), "{at}");
        }
        Op::AckResults => {
            let pair = |pair: &Value| (LaneId(number(&pair[0]) as u32), Sequence(number(&pair[1])));
            let lanes: Vec<_> = list(field("lanes")).iter().map(pair).collect();
            let mut out = Vec::new();
            put_acks(&lanes, &mut out);
            assert_eq!((acks(&args), out), (Ok(lanes), args), "{at}");
        }
        Op::QueuePut
        | Op::QueueGet
        | Op::QueuePeek
        | Op::QueueLength
        | Op::QueueAck
        | Op::QueueGetExtents
        | Op::QueueLists => {
            queues::check_request(op, &sample["fields"], &args, &payload, &at);
        }
        Op::FileRead => {
            let (offset, length) = (number(field("offset")), number(field("length")) as u32);
            let read = ReadArgs { offset, length };
            let mut out = Vec::new();
            read.put(&mut out);
            assert_eq!((ReadArgs::decode(&args), out), (Ok(read), args), "{at}");
        }
        Op::KvGet | Op::KvExists | Op::KvUpdate | Op::KvUpsert => {
            assert_eq!(args, bytes(field("key")), "{at}");
        }
        Op::KvPut => {
            let (mode, key) = PutMode::and_key(&args).unwrap();
            assert_eq!(
                (mode as u64, key),
                (number(field("mode")), &bytes(field("key"))[..]),
                "{at}"
            );
        }
        Op::KvDelete => {
            let (mode, key) = (number(field("mode")) == 1, bytes(field("key")));
            assert_eq!(mode_and_key(&args), Ok((mode, &key[..])), "{at}");
        }
        Op::KvDeleteExtents => {
            assert_eq!(args, bytes(field("key")), "{at}");
            assert_eq!(extents(&payload).map(|list| put_extents(&list)), Ok(payload), "{at}");
        }
        Op::KvPutExtents | Op::QueuePutExtents | Op::ExtentPutList => {
            let key = bytes(field("key"));
            let told = |name| queues::extents_of(field(name));
            let mode = number(field("mode"));
            let old = if mode == 2 { put_extents(&told("old")) } else { Vec::new() };
            let when = match mode {
                0 => StoredWhen::Always,
                1 => StoredWhen::Absent,
                _ => StoredWhen::Still(&old),
            };
            let told = told("extents");
            let head = field("head")
                .as_array()
                .map(|head| ListHead { level: number(&head[0]) as u32, bytes: number(&head[1]) });
            let named = put_list(head, &told);
            assert_eq!(ListHead::of(&named), head, "{at}");
            let put = PutExtents { when, key: &key, list: &named };
            assert_eq!(PutExtents::decode(&args, &payload), Ok(put), "{at}");
            assert_eq!(put.encode(), (args.clone(), payload.clone()), "{at}");
            let length: u64 = told.iter().map(|extent| extent.len as u64).sum();
            assert_eq!(value_length(&named), head.map_or(length, |head| head.bytes), "{at}");
            assert_eq!(extents(&named), Ok(told), "{at}");
        }
        Op::ExtentPut => assert!(args.is_empty(), "{at}"),
        Op::ExtentGet | Op::ExtentKeep => {
            let ids: Vec<u8> =
                list(field("ids")).iter().flat_map(|id| number(id).encode()).collect();
            assert_eq!(args, ids, "{at}");
        }
        Op::KvCompareAndSwap => {
            let (key, expected, new) =
                (bytes(field("key")), bytes(field("expected")), bytes(field("new")));
            let present = number(field("present")) == 1;
            let swap = SwapArgs { present, key: &key, expected: &expected, new: &new };
            assert_eq!(SwapArgs::decode(&args, &payload), Ok(swap), "{at}");
            assert_eq!(swap.encode(), (args.clone(), payload.clone()), "{at}");
        }
        Op::KvScan => {
            let prefix = bytes(field("prefix"));
            let scan = ScanArgs {
                cursor: number(field("cursor")),
                bytes: number(field("bytes")) as u32,
                brings: Brings::from_code(number(field("mode")) as u8).unwrap(),
                prefix: &prefix,
            };
            let mut out = Vec::new();
            scan.put(&mut out);
            assert_eq!((ScanArgs::decode(&args), &out), (Ok(scan), &args), "{at}");
        }
        Op::FileReadMany | Op::KvMultiGet | Op::KvBatch | Op::KvAccumulate => {
            batches::check_request(op, sample, &args, &payload)
        }
        other => panic!("{} is a message", other.name()),
    }
}

fn check_data_reply(op: Op, sample: &Value) {
    let at = format!("{} {}", op.name(), sample["name"]);
    let (args, payload) = (bytes(&sample["args"]), bytes(&sample["payload"]));
    let value = number(&sample["value"]);
    match op {
        Op::FileSize => assert_eq!(args, [number(&sample["fields"]["sealed"]) as u8], "{at}"),
        Op::FileContinue => {
            let moved = MovedArgs::decode(&args).unwrap_or_else(|e| panic!("{at}: {e}"));
            assert_eq!(moved.version, number(&sample["fields"]["version"]), "{at}");
        }
        Op::KvLength => {
            let last = number(&sample["fields"]["last"]);
            assert_eq!(u64::decode(&args), Ok(last), "{at}");
        }
        Op::KvExists if value == 1 => {
            let length = number(&sample["fields"]["length"]);
            assert_eq!(u64::decode(&args), Ok(length), "{at}");
        }
        Op::KvScan => {
            let entries = scan_entries(&payload).unwrap();
            let mut out = Vec::new();
            for ((key, value), told) in
                entries.iter().zip(list(&sample["fields"]["entries"])).map(|(e, t)| (*e, list(t)))
            {
                assert_eq!((key, value), (&bytes(&told[0])[..], &bytes(&told[1])[..]), "{at}");
                put_scan_entry(&mut out, key, value);
            }
            assert_eq!(entries.len(), list(&sample["fields"]["entries"]).len(), "{at}");
            assert_eq!(out, payload, "{at}");
        }
        Op::QueueGet
        | Op::QueuePeek
        | Op::QueueLength
        | Op::QueueAck
        | Op::QueueGetExtents
        | Op::QueueLists => {
            queues::check_reply(op, sample, &args, &payload, &at);
        }
        Op::FileReadMany | Op::KvMultiGet | Op::KvBatch => {
            batches::check_reply(op, sample, value, &args, &payload)
        }
        _ => assert!(args.is_empty(), "{at}"),
    }
}

#[test]
fn arguments_of_custom_operations_begin_as_the_vectors_say() {
    for case in list(&vectors("messages")["custom"]) {
        let route = Route::from_code(number(&case["route"]) as u8).unwrap();
        let args = bytes(&case["args"]);
        let split = split_args(route, &args);
        if case["bad"] == true {
            assert!(split.is_err(), "{}", case["name"]);
            continue;
        }
        let told = || text(&case["routed"]);
        let key;
        let routed = match route {
            Route::Position | Route::Through => Routed::By(told().parse().unwrap()),
            Route::Key => {
                key = bytes(&case["routed"]);
                Routed::Key(&key)
            }
            Route::Head | Route::Tail | Route::Each => Routed::Plainly,
        };
        let rest = bytes(&case["rest"]);
        assert_eq!(split, Ok((routed, &rest[..])), "{}", case["name"]);
        let mut out = Vec::new();
        put_routed(routed, &mut out);
        assert_eq!([out, rest].concat(), args, "{}", case["name"]);
    }
}

#[test]
fn stored_values_are_what_the_vectors_say() {
    list(&vectors("messages")["stored"]).iter().for_each(batches::check_stored);
}

/// One result of a lane, as in `MoveLanes`.
fn check_result(from: &mut Reader<'_>, told: &Value) {
    assert_eq!(u64::get(from), Ok(number(&told["sequence"])));
    assert_eq!(u64::get(from), Ok(number(&told["hash"])));
    let status = u16::get(from).unwrap();
    assert_eq!(status as u64, number(&told["status"]));
    assert!(Status::from_code(status).is_some());
    assert_eq!(u64::get(from), Ok(number(&told["value"])));
    assert_eq!(Vec::<u8>::get(from), Ok(bytes(&told["args"])));
    assert_eq!(Vec::<u8>::get(from), Ok(bytes(&told["payload"])));
}

#[test]
fn the_parts_of_a_move_are_what_the_vectors_say() {
    let file = vectors("messages");
    let mut seen = BTreeSet::new();
    for case in list(&file["moves"]) {
        let (op, payload) = (op(&case["op"]), bytes(&case["payload"]));
        seen.insert(op);
        check_message(op, true, case);
        assert!(op.info().payload || payload.is_empty(), "{}", case["name"]);
        if let Some(told) = case["fields"].get("checksum") {
            assert_eq!(checksum(&payload), number(told), "{}", case["name"]);
        }
        let mut from = Reader::new(&payload);
        for lane in case.get("lanes").map(list).into_iter().flatten() {
            let session: u128 = text(&lane["session"]).parse().unwrap();
            assert_eq!(u128::get(&mut from), Ok(session));
            assert_eq!(u32::get(&mut from), Ok(number(&lane["lane"]) as u32));
            assert_eq!(u64::get(&mut from), Ok(number(&lane["next"])));
            let results = list(&lane["results"]);
            assert_eq!(u32::get(&mut from), Ok(results.len() as u32));
            results.iter().for_each(|told| check_result(&mut from, told));
        }
        assert!(op != Op::MoveLanes || from.is_empty(), "lanes are the whole payload");
    }
    let extents = [Op::ExtentAdopt, Op::ExtentDrop];
    let peers = Op::ALL.into_iter().filter(|op| op.info().auth == Auth::Peer);
    let peers = peers.filter(|op| !extents.contains(op));
    assert_eq!(seen, peers.collect());
}

#[test]
fn every_operation_has_its_messages() {
    let file = vectors("messages");
    let mut seen = Vec::new();
    for case in list(&file["operations"]) {
        let op = op(&case["op"]);
        assert_eq!(op.code() as u64, number(&case["code"]));
        seen.push(op);
        for part in ["request", "reply"] {
            let samples = list(&case[part]);
            assert!(!samples.is_empty(), "{} has no sample of a {part}", op.name());
            for sample in samples {
                match (op.info().message, part) {
                    (true, _) => check_message(op, part == "request", sample),
                    (false, "request") => check_data_request(op, sample),
                    (false, _) => check_data_reply(op, sample),
                }
            }
        }
    }
    assert_eq!(seen, Op::ALL, "a new operation needs its vectors");
}

#[test]
fn moved_answers_tell_where_a_structure_goes_on() {
    for case in list(&vectors("messages")["moved"]) {
        let args = bytes(&case["args"]);
        let moved = MovedArgs::decode(&args).unwrap();
        assert_eq!(moved.encode(), args);
        assert_eq!(moved.version, number(&case["version"]));
        let entry = format!("{:?}", moved.entry);
        assert!(shown::agrees(&case["entry"], &shown::parse(&entry)), "{entry}");
        let becomes = |name: &str| number(&case["becomes"][name]);
        let start = number(&case["own_start"]) + number(&case["value"]) + moved.entry.start;
        assert_eq!((start, start - 1), (becomes("start"), becomes("own_end")));
        assert_eq!(moved.entry.end, becomes("end"));
    }
}

#[test]
fn the_comparison_of_shown_values_notices_differences() {
    let debug = r#"A { n: 5, t: "a\"\u{7}", l: [1, 2], o: None, i: -3, b: true }"#;
    let same = r#"{"n": "5", "t": "a\"\u0007", "l": "0102", "o": null, "i": "-3", "b": true}"#;
    let same: Value = serde_json::from_str(same).unwrap();
    assert!(shown::agrees(&same, &shown::parse(debug)));
    for (name, other) in [("n", "6"), ("t", "b"), ("l", "0103"), ("i", "3"), ("o", "x")] {
        let mut changed = same.clone();
        changed[name] = other.into();
        assert!(!shown::agrees(&changed, &shown::parse(debug)), "{name} was not compared");
    }
}

// ------------------------------------------------------------------------- retries, the document

#[test]
fn every_status_says_what_the_client_does() {
    let file = vectors("retry");
    let statuses = file["statuses"].as_object().unwrap();
    for status in Status::ALL {
        let case = statuses.get(status.name()).unwrap_or_else(|| panic!("{status:?} is missing"));
        assert_eq!(number(&case["code"]), status as u64);
        assert!(file["actions"].get(text(&case["action"])).is_some(), "{case}");
        assert!(file["numbers"].get(text(&case["number"])).is_some(), "{case}");
    }
    assert_eq!(statuses.len(), Status::ALL.len(), "a status that does not exist");
}

/// The cells of a table of PROTOCOL.md, without its head.
fn table(name: &str) -> Vec<Vec<String>> {
    let document = std::fs::read_to_string(format!("{}/PROTOCOL.md", common::PROTOCOL)).unwrap();
    let (begin, end) = (format!("<!-- generated: {name} -->"), format!("<!-- end: {name} -->"));
    let (_, rest) = document.split_once(&begin).expect("the table begins");
    let (body, _) = rest.split_once(&end).expect("the table ends");
    let lines = body.lines().filter(|line| line.starts_with('|')).skip(2);
    let cells = |line: &str| {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()
    };
    lines.map(cells).collect()
}

#[test]
fn the_document_lists_every_operation() {
    let rows = table("operations");
    assert_eq!(rows.len(), Op::ALL.len());
    for (row, op) in rows.iter().zip(Op::ALL) {
        let info = op.info();
        let plane = match info.plane {
            Plane::Any => "any",
            Plane::Control => "control",
            Plane::Data => "data",
            Plane::Link => "link",
        };
        let auth = match info.auth {
            Auth::None => "none",
            Auth::Cluster => "cluster",
            Auth::Job => "job",
            Auth::Grant => "grant",
            Auth::Peer => "peer",
        };
        let verbs = if info.verbs == Verbs::NONE { "-".into() } else { info.verbs.to_string() };
        let lane = if info.lane { "yes" } else { "-" };
        let code = format!("0x{:04X}", op.code());
        assert_eq!(row[..6], [&code, op.name(), plane, auth, &verbs, lane]);
        assert_eq!(row[7] != "-", info.payload, "{row:?}");
        assert!(info.message || !row[8].contains("message"), "{row:?}");
    }
    let document = std::fs::read_to_string(format!("{}/PROTOCOL.md", common::PROTOCOL)).unwrap();
    for op in Op::ALL {
        let heading = format!("#### {} (0x{:04X})", op.name(), op.code());
        assert!(document.contains(&heading), "no section: {heading}");
    }
}

#[test]
fn the_document_lists_the_facts_of_every_operation() {
    let rows = table("facts");
    assert_eq!(rows.len(), Op::ALL.len());
    for (row, op) in rows.iter().zip(Op::ALL) {
        let facts = [
            op.name().to_owned(),
            format!("{:?}", op.mutates()).to_lowercase(),
            format!("{:?}", op.served_by()).to_lowercase(),
            format!("{:?}", op.durable()).to_lowercase(),
            format!("{:?}", op.may_wait()).to_lowercase(),
            if op.is_urgent() { "yes" } else { "no" }.to_owned(),
            format!("{:?}", op.forwarded_to()).to_lowercase(),
        ];
        assert_eq!(row[..], facts);
        let lane = op.info().plane == Plane::Data && op.mutates() == Mutates::Once;
        assert_eq!(op.info().lane, lane, "{op:?}");
    }
}

#[test]
fn the_document_lists_every_status() {
    let rows = table("statuses");
    let retries = vectors("retry");
    assert_eq!(rows.len(), Status::ALL.len());
    for (row, status) in rows.iter().zip(Status::ALL) {
        assert_eq!(row[..2], [(status as u16).to_string(), status.name().to_owned()]);
        let case = &retries["statuses"][status.name()];
        assert_eq!(row[5..], [text(&case["action"]), text(&case["number"])], "{row:?}");
    }
}

#[test]
fn the_document_lists_every_limit() {
    use honeycomb_types::limits as l;
    let known = [
        ("REQUEST_HEADER", l::REQUEST_HEADER as u64),
        ("REPLY_HEADER", l::REPLY_HEADER as u64),
        ("FRAME_MAX", l::FRAME_MAX as u64),
        ("ARGS_MAX", l::ARGS_MAX as u64),
        ("CONTROL_ARGS_MAX", l::CONTROL_ARGS_MAX as u64),
        ("HELLO_MAX", l::HELLO_MAX as u64),
        ("KEY_MAX", l::KEY_MAX as u64),
        ("NAME_MAX", l::NAME_MAX as u64),
        ("PATH_DEPTH_MAX", l::PATH_DEPTH_MAX as u64),
        ("MESSAGE_MAX", l::MESSAGE_MAX as u64),
        ("TOKEN_MAX", l::TOKEN_MAX as u64),
        ("GRANTS_MAX", l::GRANTS_MAX as u64),
        ("BATCH_MAX", l::BATCH_MAX as u64),
        ("KV_BATCH_MAX", l::KV_BATCH_MAX as u64),
        ("KV_BATCH_BYTES_MAX", l::KV_BATCH_BYTES_MAX as u64),
        ("MANY_BYTES_MAX", l::MANY_BYTES_MAX as u64),
        ("READ_RANGES_MAX", l::READ_RANGES_MAX as u64),
        ("TOP_ITEMS_MAX", l::TOP_ITEMS_MAX as u64),
        ("BLOCK_SIZE_MIN", l::BLOCK_SIZE_MIN),
        ("BLOCK_SIZE_MAX", l::BLOCK_SIZE_MAX),
        ("LEASE_MIN_MS", l::LEASE_MIN_MS as u64),
        ("LEASE_DEFAULT_MS", l::LEASE_DEFAULT_MS as u64),
        ("LEASE_MAX_MS", l::LEASE_MAX_MS as u64),
        ("WAIT_MAX_MS", l::WAIT_MAX_MS as u64),
        ("QUEUE_BATCH_MAX", l::QUEUE_BATCH_MAX as u64),
        ("QUEUE_ACK_MAX", l::QUEUE_ACK_MAX as u64),
        ("ACK_LANES_MAX", l::ACK_LANES_MAX as u64),
        ("RESERVE_MAX_MS", l::RESERVE_MAX_MS as u64),
        ("RETRY_WINDOW_MS", l::RETRY_WINDOW_MS),
        ("MESSAGE_LIFE_MS", l::MESSAGE_LIFE_MS),
        ("EXTENT_PENDING_MS", l::EXTENT_PENDING_MS),
        ("RESULTS_WINDOW", l::RESULTS_WINDOW as u64),
        ("RESULTS_WINDOW_MAX", l::RESULTS_WINDOW_MAX as u64),
        ("SLOTS", l::SLOTS as u64),
    ];
    let rows = table("limits");
    let found: Vec<_> = rows.iter().map(|r| (&r[0][..], r[1].parse::<u64>().unwrap())).collect();
    assert_eq!(found, known);
}
