//! Ten thousand damaged frames beside a victim that works.

use super::*;
use honeycomb_wire::batch::{BatchOp, ReadManyArgs, put_batch, put_keys};
use honeycomb_wire::extents::{ExtentRef, put_extents};
use honeycomb_wire::notice::{Filter, SubscribeArgs, kinds};
use honeycomb_wire::queue::{AckAction, AckArgs};
use honeycomb_wire::stored::Function;

const FRAMES: usize = 10_000;

/// One frame, and whether the following bytes on the connection can still be a frame.
fn fuzzed(entropy: &mut Entropy, seeds: &[Vec<u8>]) -> (Vec<u8>, bool) {
    let mut bytes = seeds[entropy.below(seeds.len() as u64) as usize].clone();
    let random = |entropy: &mut Entropy, n: usize| -> Vec<u8> {
        (0..n).map(|_| entropy.next_u64() as u8).collect()
    };
    match entropy.below(100) {
        // Some bits anywhere but in the lengths.
        0..40 => {
            for _ in 0..=entropy.below(8) {
                let at = entropy.below(bytes.len() as u64) as usize;
                if !(8..16).contains(&at) {
                    bytes[at] ^= 1 << entropy.below(8);
                }
            }
            let framed = bytes.starts_with(b"HC") && bytes[6..8] == [0, 0];
            (bytes, framed)
        }
        // Another body of the same length.
        40..60 => {
            let body = random(entropy, bytes.len() - REQUEST_HEADER);
            bytes[REQUEST_HEADER..].copy_from_slice(&body);
            (bytes, true)
        }
        // Other fields behind the lengths.
        60..70 => {
            let fields = random(entropy, REQUEST_HEADER - 16);
            bytes[16..REQUEST_HEADER].copy_from_slice(&fields);
            (bytes, true)
        }
        // One field at an end of its range.
        70..80 => {
            let (at, n) = [(16, 8), (24, 8), (32, 8), (40, 8), (48, 4), (52, 4), (56, 4), (60, 4)]
                [entropy.below(8) as usize];
            let fill = if entropy.chance(500_000) { 0xFF } else { 0 };
            bytes[at..at + n].fill(fill);
            (bytes, true)
        }
        // Another operation for the same body.
        80..90 => {
            let op = Op::ALL[entropy.below(Op::ALL.len() as u64) as usize];
            bytes[2..4].copy_from_slice(&op.code().to_le_bytes());
            (bytes, true)
        }
        // Cut.
        90..93 => {
            bytes.truncate(entropy.below(bytes.len() as u64) as usize);
            (bytes, false)
        }
        // Lengths that promise something else.
        93..97 => {
            let bits = entropy.below(33);
            let length = (entropy.next_u64() as u32).checked_shr(bits as u32).unwrap_or(0);
            let at = 8 + 4 * entropy.below(2) as usize;
            bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
            (bytes, false)
        }
        // Noise.
        _ => {
            let length = entropy.below(600) as usize;
            (random(entropy, length), false)
        }
    }
}

/// Sends this many fuzzed frames to a node; returns over how many connections.
fn fuzz(
    entropy: &mut Entropy,
    frames: usize,
    seeds: &[Vec<u8>],
    connect: impl Fn() -> Raw,
) -> usize {
    let (mut sent, mut connections) = (0, 0);
    while sent < frames {
        let mut raw = connect();
        connections += 1;
        // Up to so many frames, until one after which there is no next.
        for _ in 0..64 {
            let (bytes, framed) = fuzzed(entropy, seeds);
            sent += 1;
            if raw.try_send(&bytes).is_err() || !framed {
                break;
            }
        }
        let _ = raw.finish();
        raw.drain();
    }
    connections
}

#[test]
fn ten_thousand_fuzzed_frames_harm_nobody() {
    let setup = Setup::new();
    // The attacker holds all that a job can hold, and loses only its own.
    let mut control: Vec<Vec<u8>> = control_bodies(&setup)
        .into_iter()
        .filter(|(op, _)| *op != Op::DeregisterJob)
        .map(|(op, body)| frame(RequestHeader::new(op), &body, &[]))
        .collect();
    control.push(frame(
        RequestHeader::new(Op::Hello),
        &hello_args(&setup.job.token, PrefixId(0), ANY_SHARD),
        &[],
    ));
    let grant = PresentGrantRequest { grant: setup.kv.grant.clone() }.encode();
    let mut range = Vec::new();
    ReadArgs { offset: 0, length: 100 }.put(&mut range);
    let mut scan = Vec::new();
    ScanArgs { cursor: 0, bytes: 1000, brings: Brings::Values, prefix: b"" }.put(&mut scan);
    let mut ranges = Vec::new();
    ReadManyArgs { bytes: 1000, ranges: vec![(0, 10), (100, 50)] }.put(&mut ranges);
    let batch = put_batch(&[
        BatchOp::Get { key: b"{k}" },
        BatchOp::Put { key: b"{k}", value: &[6; 100] },
        BatchOp::Swap { key: b"{k}", expected: None, new: b"new" },
        BatchOp::Accumulate { key: b"{k}n", function: Function::Count, operand: b"" },
    ]);
    let kv = |op, args: &[u8], payload: &[u8]| frame(setup.kv_header(op, 1), args, payload);
    let log = |op, args: &[u8], payload: &[u8]| frame(setup.file_header(op, 1), args, payload);
    let queue = |op, args: &[u8], payload: &[u8]| frame(setup.queue_header(op, 1), args, payload);
    let get = queues::get(3, 1000, 0);
    let filter = Filter::Prefix(b"k".to_vec());
    let watch = SubscribeArgs { subscription: 1, kinds: kinds::ALL, filter }.encode();
    let ack = AckArgs { action: AckAction::GiveBack, timeout_ms: 0, items: vec![(0, 1), (1, 1)] };
    let extents = |op, args: &[u8], payload: &[u8]| frame(setup.extents_header(op), args, payload);
    let one = ExtentRef { at: setup.extents, id: 1, len: 8192 };
    let data = vec![
        kv(Op::KvGet, b"extents", b""),
        kv(Op::KvPutExtents, b"\0k", &put_extents(&[one, one])),
        kv(Op::KvDeleteExtents, b"k", &put_extents(&[one])),
        extents(Op::ExtentPut, b"", &[8; 600]),
        extents(Op::ExtentPut, b"", &[8; 70_000]),
        extents(Op::ExtentGet, &1u64.encode(), b""),
        extents(Op::ExtentPutList, b"\0", &put_extents(&[one])),
        extents(Op::ExtentKeep, &1u64.encode(), b""),
        frame(RequestHeader::new(Op::Ping), &[], &[]),
        frame(RequestHeader::new(Op::PresentGrant), &grant, &[]),
        log(Op::FileAppend, b"", &[1; 500]),
        log(Op::FileRead, &range, b""),
        log(Op::FileSize, b"", b""),
        log(Op::FileMap, b"", b""),
        log(Op::FileSeal, b"", b""),
        kv(Op::KvGet, b"k", b""),
        kv(Op::KvPut, b"\0k", &[2; 300]),
        kv(Op::KvPut, b"\0large", &[2; 70_000]),
        kv(Op::KvDelete, b"\x01k", b""),
        kv(Op::KvExists, b"k", b""),
        kv(Op::KvUpdate, b"k", &[3; 200]),
        kv(Op::KvUpsert, b"k", &[4; 200]),
        kv(Op::KvCompareAndSwap, b"\x01\x01\0k", b"\x01\0\0\0vnew"),
        kv(Op::KvScan, &scan, b""),
        kv(Op::KvLength, b"", b""),
        kv(Op::Subscribe, &watch, b""),
        kv(Op::AckResults, &[1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255], b""),
        queue(Op::QueuePut, b"", &[5; 100]),
        queue(Op::QueuePut, b"\x01\0\0\0\0\0\0\0\x02\0\0\0", b"abc"),
        queue(Op::QueuePut, b"", &[5; 70_000]),
        queue(Op::QueueGet, &get, b""),
        queue(Op::QueueGet, &queues::get(2, 10, 5000), b""),
        queue(Op::QueuePeek, &get[..8], b""),
        queue(Op::QueueLength, b"\0", b""),
        queue(Op::QueueAck, &ack.encode(), b""),
        queue(Op::QueueClose, b"", b""),
        queue(Op::QueuePutExtents, b"\0", &[7; 28]),
        queue(Op::QueuePutExtents, b"\x02\0\0\0\0\0\0\0\0", &[28; 60]),
        queue(Op::QueueGetExtents, b"\xe8\x03\0\0\0", b""),
        queue(Op::QueueLists, &[0; 8], b""),
        log(Op::FileReadMany, &ranges, b""),
        log(Op::NextBlock, b"", b""),
        log(Op::FileContinue, b"", b""),
        kv(Op::KvMultiGet, &1000u32.to_le_bytes(), &put_keys(&[b"k", b"large", b"none"])),
        kv(Op::KvBatch, b"\0", &batch),
        kv(Op::KvBatch, b"\x01", &batch),
        kv(Op::KvAccumulate, b"\x01n", &5i64.to_le_bytes()),
        kv(Op::KvAccumulate, b"\x08k", &[5; 200]),
        kv(Op::KvAccumulate, b"\x09top", b"\x03\0\0\0\0\0\0\0\0\0\xf0\x3fitem"),
    ];
    // Only data requests are missing here when one is added.
    for op in Op::ALL.into_iter().filter(|op| op.info().auth == Auth::Grant) {
        let code = op.code().to_le_bytes();
        assert!(data.iter().any(|frame| frame[2..4] == code), "{op:?} is not fuzzed");
    }
    let mut entropy = Entropy::seeded(20260101);
    let token = &setup.job.token;
    beside_a_victim(&setup.cluster, || {
        // Once to warm up: buffers and allocator arenas are there before it is measured.
        let mut run = |frames: usize| {
            let half = frames / 2;
            fuzz(&mut entropy, half, &control, || {
                Raw::greeted(setup.controller(), token, ANY_SHARD)
            }) + fuzz(&mut entropy, half / 4, &data, || setup.data(0))
                + fuzz(&mut entropy, half / 4, &data, || setup.data(1))
                + fuzz(&mut entropy, half / 4, &data, || {
                    Raw::greeted(setup.server(), token, ANY_SHARD)
                })
                + fuzz(&mut entropy, half / 4, &data, || Raw::connect(setup.server()))
        };
        run(FRAMES / 20);
        let before = resident_anonymous_bytes();
        let connections = run(FRAMES);
        let grown = resident_anonymous_bytes().saturating_sub(before);
        assert!(grown < GROWTH, "{grown} bytes more after {connections} connections");
    });
    // Both nodes still serve newcomers.
    for node in setup.nodes() {
        Raw::greeted(node, token, ANY_SHARD).expect_alive();
    }
}

// ---------------------------------------------------------------------------- bad company
