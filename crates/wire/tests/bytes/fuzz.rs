//! Random and damaged bytes: nothing panics, and accepted bytes are written back unchanged.

use crate::common::{bytes, list, message, op, vectors};
use honeycomb_types::limits::{
    ARGS_MAX, CONTROL_ARGS_MAX, FRAME_MAX, HELLO_MAX, REPLY_HEADER, REQUEST_HEADER,
};
use honeycomb_types::{BlockAt, LaneId, Sequence};
use honeycomb_wire::batch::{ReadManyArgs, batch_ops, keys, put_batch, put_keys};
use honeycomb_wire::data::{
    MovedArgs, PutMode, ReadArgs, ScanArgs, SwapArgs, acks, mode_and_key, put_acks, put_scan_entry,
    scan_entries,
};
use honeycomb_wire::extents::PutExtents;
use honeycomb_wire::notice::{Notice, SubscribeArgs};
use honeycomb_wire::queue::{AckArgs, Counts, GetArgs, Items, lengths, put_lengths};
use honeycomb_wire::stored::{Stored, top};
use honeycomb_wire::token::Caveat;
use honeycomb_wire::{
    Durability, Header, Op, ReplyHeader, RequestHeader, RootKey, Status, attenuate, key_hash,
};
use proptest::prelude::*;
use proptest::sample::{Index, select};

const CASES: u32 = 10_000;

fn config() -> ProptestConfig {
    ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() }
}

/// Numbers that are often at an edge.
fn edgy() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u32::MAX as u64), Just(u64::MAX), 0..100u64, any::<u64>()]
}

/// Lengths of a part of a body, most of them at a limit of frames or of their headers.
fn edgy_length() -> impl Strategy<Value = usize> {
    let edges = [0, HELLO_MAX, ARGS_MAX, CONTROL_ARGS_MAX, FRAME_MAX, 1 << 32];
    (select(edges.to_vec()), 0..3usize, 0..4096usize, any::<bool>()).prop_map(
        |(edge, beside, far, near)| (edge + if near { beside } else { far }).saturating_sub(1),
    )
}

/// One kind of damage to bytes in transit.
#[derive(Clone, Debug)]
enum Damage {
    Set(Index, u8),
    Flip(Index, u8),
    Cut(Index),
    Insert(Index, u8),
    Fill(Index, u8),
    Append(Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, b)| Damage::Set(at, b)),
        (any::<Index>(), 0..8u8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        any::<Index>().prop_map(Damage::Cut),
        (any::<Index>(), any::<u8>()).prop_map(|(at, b)| Damage::Insert(at, b)),
        (any::<Index>(), select(vec![0, 0xFF])).prop_map(|(at, b)| Damage::Fill(at, b)),
        prop::collection::vec(any::<u8>(), 1..9).prop_map(Damage::Append),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    match damage {
        Damage::Append(more) => bytes.extend(more),
        Damage::Insert(at, b) => bytes.insert(at.index(bytes.len() + 1), *b),
        Damage::Cut(at) => bytes.truncate(at.index(bytes.len() + 1)),
        _ if bytes.is_empty() => {}
        Damage::Set(at, b) => {
            let at = at.index(bytes.len());
            bytes[at] = *b;
        }
        Damage::Flip(at, bit) => {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        Damage::Fill(at, b) => {
            let at = at.index(bytes.len());
            let end = bytes.len().min(at + 4);
            bytes[at..end].fill(*b);
        }
    }
}

/// Every operation of the protocol, and some of custom kinds.
fn any_op() -> impl Strategy<Value = Op> {
    let custom = [0x8000, 0x8001, 0xA5C3, 0xEFFF].map(Op::Custom);
    select([&Op::ALL[..], &custom].concat())
}

/// Header bytes with an operation that exists and edgy fields: most rules are met, some broken.
fn request_bytes() -> impl Strategy<Value = [u8; REQUEST_HEADER]> {
    let numbers = prop::collection::vec(edgy(), 10);
    (any_op(), 0..3u16, numbers).prop_map(|(op, flags, n)| {
        let header = RequestHeader {
            op,
            flags,
            args_len: n[0] as u32 % 100_000,
            payload_len: n[1] as u32 % 1000,
            request: n[2],
            at: BlockAt::of(n[3], n[4]),
            sequence: Sequence(n[5]),
            lane: LaneId(n[6] as u32),
            grant: n[7] as u32,
            ack_lag: n[8] as u32,
            deadline_ms: n[9] as u32,
        };
        header.encode()
    })
}

/// Headers that keep every rule.
fn good_request() -> impl Strategy<Value = RequestHeader> {
    let numbers = prop::collection::vec(edgy(), 8);
    (any_op(), 0..2u16, numbers).prop_map(|(op, flags, n)| {
        let info = op.info();
        let mut header = RequestHeader { flags, request: n[0], ..RequestHeader::new(op) };
        header.args_len = (n[1] % 65_537) as u32;
        header.deadline_ms = n[2] as u32;
        if info.payload {
            header.payload_len = (n[3] % (FRAME_MAX as u64 + 1)) as u32;
        }
        if info.lane || matches!(op, Op::Custom(_)) && n[0] % 2 == 0 {
            header.lane = LaneId((n[4] as u32).max(1));
            header.sequence = Sequence(n[5].max(1));
            header.ack_lag = (n[6] % header.sequence.0.min(u32::MAX as u64)) as u32 + 1;
            header.ack_lag = header.ack_lag.min(header.sequence.0.min(u32::MAX as u64) as u32);
        }
        if info.auth == honeycomb_wire::Auth::Grant {
            header.at = BlockAt::of(n[7], n[3]);
            header.grant = (n[4] as u32).max(1);
        }
        if info.auth == honeycomb_wire::Auth::Peer {
            header.at = BlockAt::of(n[7].max(1), n[3]);
        }
        header
    })
}

fn good_reply() -> impl Strategy<Value = ReplyHeader> {
    let durability = select(vec![Durability::Memory, Durability::Chain, Durability::Flushed]);
    (select(Status::ALL.to_vec()), durability, prop::collection::vec(edgy(), 4)).prop_map(
        |(status, durability, n)| ReplyHeader {
            status,
            durability,
            args_len: (n[0] % (CONTROL_ARGS_MAX as u64 + 1)) as u32,
            payload_len: (n[1] % (FRAME_MAX as u64 + 1)) as u32,
            request: n[2],
            value: n[3],
        },
    )
}

fn judge_request(head: &[u8; REQUEST_HEADER], greeted: bool) {
    if let Ok(header) = RequestHeader::decode(head, greeted) {
        assert_eq!(header.encode(), *head, "what is accepted loses nothing");
        assert!(header.acked().0 < header.sequence.0.max(1));
        assert!(header.body_len() <= CONTROL_ARGS_MAX + FRAME_MAX);
    }
}

/// The operation, whether it is a request, and the bytes, for every message of the vectors.
fn samples() -> Vec<(Op, bool, Vec<u8>)> {
    let file = vectors("messages");
    let mut out = Vec::new();
    for case in list(&file["operations"]) {
        let op = op(&case["op"]);
        for part in ["request", "reply"].into_iter().filter(|_| op.info().message) {
            let samples = list(&case[part]).iter();
            out.extend(samples.map(|s| (op, part == "request", bytes(&s["args"]))));
        }
    }
    out
}

/// Arguments and payload of every sample of a queue's operations, of subscriptions and notices.
fn queue_samples() -> Vec<(Vec<u8>, Vec<u8>)> {
    let file = vectors("messages");
    let mut out = Vec::new();
    for case in list(&file["operations"]) {
        let op = op(&case["op"]);
        if op == Op::Subscribe || op.code() >> 8 == honeycomb_types::Kind::Queue.code() as u16 {
            let samples = ["request", "reply"].into_iter().flat_map(|part| list(&case[part]));
            out.extend(samples.map(|s| (bytes(&s["args"]), bytes(&s["payload"]))));
        }
    }
    out.extend(list(&file["notices"]).iter().map(|case| (bytes(&case["args"]), Vec::new())));
    assert!(out.len() > 30, "only {} samples", out.len());
    out
}

/// Tries every reader of the hand-written layouts of queues and notices; returns how many accepted
/// the bytes.
fn read_queue(args: &[u8], payload: &[u8]) -> usize {
    let mut taken = 0;
    let mut same = |out: Vec<u8>| {
        assert_eq!(out, args, "what is accepted loses nothing");
        taken += 1;
    };
    if let Ok(lengths) = lengths(args, payload.len()) {
        let mut rest = payload;
        let cut = |length: &u32| {
            let (item, others) = rest.split_at(*length as usize);
            rest = others;
            item
        };
        let items: Vec<&[u8]> = lengths.iter().map(cut).collect();
        assert!(rest.is_empty(), "the items are the payload");
        let mut out = Vec::new();
        put_lengths(&items, &mut out);
        // A single item may have an explicit length or none.
        same(if items.len() == 1 { args.to_vec() } else { out });
    }
    if let Ok(get) = GetArgs::decode(args) {
        let mut out = Vec::new();
        get.put(&mut out);
        same(out);
    }
    if let Ok(peek) = GetArgs::decode_peek(args) {
        same([peek.items.to_le_bytes(), peek.bytes.to_le_bytes()].concat());
        assert_eq!((peek.reserve_ms, peek.stay), (0, false));
    }
    if let Ok(items) = Items::decode(args, payload.len()) {
        same(items.encode());
    }
    if let Ok(counts) = Counts::decode(args) {
        same(counts.encode());
    }
    if let Ok(ack) = AckArgs::decode(args) {
        same(ack.encode());
    }
    if let Ok(subscribe) = SubscribeArgs::decode(args) {
        same(subscribe.encode());
    }
    if let Ok((subscription, notice)) = Notice::decode(args) {
        let written = notice.encode(subscription);
        match &notice {
            // An unknown reason, or one that is not text, is shown as well as possible.
            Notice::Ended(..) => assert_eq!(Notice::decode(&written), Ok((subscription, notice))),
            _ => assert_eq!(written, args, "what is accepted loses nothing"),
        }
        taken += 1;
    }
    taken
}

fn read_data(args: &[u8], payload: &[u8]) {
    let mut out = Vec::new();
    if let Ok(read) = ReadArgs::decode(args) {
        read.put(&mut out);
        assert_eq!(out, args);
    }
    if let Ok((mode, key)) = mode_and_key(args) {
        assert_eq!([&[mode as u8], key].concat(), args);
    }
    if let Ok((mode, key)) = PutMode::and_key(args) {
        assert_eq!([&[mode as u8], key].concat(), args);
    }
    if let Ok(put) = PutExtents::decode(args, payload) {
        assert_eq!(put.encode(), (args.to_vec(), payload.to_vec()));
    }
    if let Ok(swap) = SwapArgs::decode(args, payload) {
        assert_eq!(swap.encode(), (args.to_vec(), payload.to_vec()));
    }
    if let Ok(scan) = ScanArgs::decode(args) {
        out.clear();
        scan.put(&mut out);
        assert_eq!(out, args);
    }
    if let Ok(lanes) = acks(args) {
        out.clear();
        put_acks(&lanes, &mut out);
        assert_eq!(out, args);
    }
    if let Ok(moved) = MovedArgs::decode(args) {
        assert_eq!(moved.encode(), args);
    }
    if let Ok(many) = ReadManyArgs::decode(args) {
        out.clear();
        many.put(&mut out);
        assert_eq!(out, args);
    }
    if let Ok(keys) = keys(payload) {
        assert_eq!(put_keys(&keys), payload);
    }
    if let Ok(ops) = batch_ops(payload) {
        // A swap of an absent entry has an expected value that is neither read nor kept.
        assert_eq!(batch_ops(&put_batch(&ops)).as_ref(), Ok(&ops));
    }
    if let Stored::Top(items) = Stored::of(payload) {
        assert_eq!(top(&items), payload);
    }
    if let Ok(entries) = scan_entries(payload) {
        out.clear();
        entries.iter().for_each(|(key, value)| put_scan_entry(&mut out, key, value));
        assert_eq!(out, payload);
    }
}

#[test]
fn the_samples_of_queues_and_notices_are_read() {
    let read =
        queue_samples().iter().filter(|(args, payload)| read_queue(args, payload) > 0).count();
    // All but the replies without their own arguments.
    assert!(read > 30, "only {read} samples are of any use to the fuzzer");
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_request_headers(
        head in request_bytes(),
        noise in any::<[u8; 32]>(),
        damages in prop::collection::vec((0..REQUEST_HEADER, any::<u8>()), 0..4),
        greeted: bool,
    ) {
        let mut head = head;
        judge_request(&head, greeted);
        damages.iter().for_each(|(at, byte)| head[*at] = *byte);
        judge_request(&head, greeted);
        head[2..34].copy_from_slice(&noise);
        judge_request(&head, greeted);
    }

    #[test]
    fn random_reply_headers(
        header in good_reply(),
        damages in prop::collection::vec((0..REPLY_HEADER, any::<u8>()), 0..4),
        noise in any::<[u8; REPLY_HEADER]>(),
    ) {
        let mut head = header.encode();
        prop_assert_eq!(ReplyHeader::decode(&head), Ok(header));
        damages.iter().for_each(|(at, byte)| head[*at] = *byte);
        for head in [head, noise] {
            if let Ok(read) = ReplyHeader::decode(&head) {
                prop_assert_eq!(read.encode(), head);
            }
        }
    }

    #[test]
    fn good_request_headers_survive(header in good_request()) {
        let head = header.encode();
        prop_assert_eq!(RequestHeader::decode(&head, true), Ok(header));
        let greets = header.op == Op::Hello && header.args_len <= 8192;
        prop_assert_eq!(RequestHeader::decode(&head, false).is_ok(), greets);
    }

    /// Clients sent the low 32 bits of the length of a longer body.
    #[test]
    fn lengths_are_set_where_a_frame_holds_the_body_and_nowhere_else(
        header in good_request(),
        args in edgy_length(),
        payload in edgy_length(),
    ) {
        let (mut header, payload) = (header, if header.op.info().payload { payload } else { 0 });
        let (before, hello) = (header, header.op == Op::Hello);
        match header.set_lengths(args, payload) {
            Ok(()) => {
                prop_assert_eq!(header.args_len as usize, args);
                prop_assert_eq!(header.payload_len as usize, payload);
                prop_assert_eq!(RequestHeader::decode(&header.encode(), !hello), Ok(header));
            }
            Err(e) => {
                prop_assert_eq!(header, before);
                let text = e.to_string();
                let named = [args, payload].iter().any(|n| text.contains(&n.to_string()));
                prop_assert!(named, "{}", text);
                if let (Ok(args), Ok(payload)) = (args.try_into(), payload.try_into()) {
                    (header.args_len, header.payload_len) = (args, payload);
                    prop_assert!(RequestHeader::decode(&header.encode(), !hello).is_err());
                }
            }
        }
    }

    #[test]
    fn streams_of_any_bytes(data in prop::collection::vec(any::<u8>(), 0..200), greeted: bool) {
        if let Ok(Some((_, size))) = Header::decode(&data, greeted) {
            prop_assert!(size <= data.len());
        }
        let framed = [b"HC", &data[..]].concat();
        let _ = Header::decode(&framed, greeted);
        let framed = [b"hc", &data[..]].concat();
        let _ = Header::decode(&framed, greeted);
    }

    #[test]
    fn damaged_messages(
        sample in select(samples()),
        damages in prop::collection::vec(damage(), 0..4),
    ) {
        let (op, request, mut args) = sample;
        damages.iter().for_each(|damage| apply(&mut args, damage));
        if let Ok((written, _)) = message(op, request, &args) {
            prop_assert_eq!(written, args, "what is accepted loses nothing");
        }
    }

    #[test]
    fn random_messages(op in select(Op::ALL.to_vec()), request: bool, body: Vec<u8>) {
        if op.info().message && let Ok((written, _)) = message(op, request, &body) {
            prop_assert_eq!(written, body);
        }
    }

    #[test]
    fn random_data_arguments(
        args in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..60),
        payload in prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0..60),
    ) {
        read_data(&args, &payload);
        read_queue(&args, &payload);
        let _ = key_hash(&args);
    }

    #[test]
    fn damaged_queue_arguments_and_notices(
        sample in select(queue_samples()),
        damages in prop::collection::vec(damage(), 0..4),
        of_payload in prop::collection::vec(damage(), 0..2),
    ) {
        let (mut args, mut payload) = sample;
        damages.iter().for_each(|damage| apply(&mut args, damage));
        of_payload.iter().for_each(|damage| apply(&mut payload, damage));
        read_queue(&args, &payload);
    }

    #[test]
    fn no_damaged_token_or_grant_is_believed(
        kind in 0..4u8,
        value: u64,
        damages in prop::collection::vec(damage(), 1..4),
        noise: Vec<u8>,
    ) {
        use honeycomb_types::{JobId, PrefixId, Verbs};
        let root = RootKey([7; 32]);
        let caveat = match kind {
            0 => Caveat::Task(PrefixId(value)),
            1 => Caveat::Verbs(Verbs(value as u16)),
            2 => Caveat::Expires(value),
            _ => Caveat::Life(PrefixId(value)),
        };
        let token = attenuate(&root.token_key().issue(Some(JobId(value | 1))), caveat);
        let token = token.expect("a short token takes a caveat");
        let mut altered = token.clone();
        damages.iter().for_each(|damage| apply(&mut altered, damage));
        prop_assert_eq!(root.token_key().verify(&altered).is_ok(), altered == token);
        // A token that can be attenuated has the right form, and the result differs from it.
        if let Ok(narrowed) = attenuate(&noise, caveat) {
            prop_assert!(root.token_key().verify(&narrowed).is_err());
        }
        prop_assert!(root.token_key().verify(&noise).is_err());
        prop_assert!(root.grant_key().verify(&noise).is_err());
        prop_assert!(root.grant_key().verify(&altered).is_err());
    }
}
