//! Invalid requests to queues and subscriptions.

use super::*;
use honeycomb_types::limits::{QUEUE_BATCH_MAX, RESERVE_MAX_MS};
use honeycomb_wire::queue::{GetArgs, GetExtentsArgs};

/// The arguments of a get.
pub(super) fn get(items: u32, bytes: u32, reserve_ms: u32) -> Vec<u8> {
    let mut args = Vec::new();
    GetArgs { items, bytes, reserve_ms, stay: false }.put(&mut args);
    args
}

fn lengths(lengths: &[u32]) -> Vec<u8> {
    lengths.iter().flat_map(|length| length.to_le_bytes()).collect()
}

/// A list of one extent of other bytes than the list that it replaces.
const OTHER_BYTES: [u8; 60] = {
    let mut payload = [1; 60];
    (payload[0], payload[1], payload[2], payload[3]) = (28, 0, 0, 0);
    payload[59] = 0;
    payload
};

/// (what, operation, arguments, payload) of bodies that do not parse.
fn malformed() -> Vec<(&'static str, Op, Vec<u8>, &'static [u8])> {
    let one = get(1, 100, 0);
    let most = QUEUE_BATCH_MAX as usize;
    vec![
        ("lengths that are cut", Op::QueuePut, vec![0; 3], b"item"),
        ("lengths of less", Op::QueuePut, lengths(&[1, 2]), b"item"),
        ("lengths of more", Op::QueuePut, lengths(&[2, 3]), b"item"),
        ("a negative length", Op::QueuePut, lengths(&[u32::MAX, 5]), b"item"),
        ("more items than a batch has", Op::QueuePut, vec![0; 4 * (most + 1)], b""),
        ("a get of nothing", Op::QueueGet, Vec::new(), b""),
        ("a get that is cut", Op::QueueGet, one[..12].to_vec(), b""),
        ("a get of stay 2", Op::QueueGet, patched(one.clone(), 12, &[2]), b""),
        ("a get with a byte too many", Op::QueueGet, [&one[..], &[0]].concat(), b""),
        ("a peek that is cut", Op::QueuePeek, one[..7].to_vec(), b""),
        ("a peek like a get", Op::QueuePeek, one, b""),
        ("a length of nothing", Op::QueueLength, Vec::new(), b""),
        ("a length of tail 2", Op::QueueLength, vec![2], b""),
        ("a length with a byte too many", Op::QueueLength, vec![0, 0], b""),
        ("a put of extents of no mode", Op::QueuePutExtents, Vec::new(), &[1; 28]),
        ("a put of extents of mode 3", Op::QueuePutExtents, vec![3], &[1; 28]),
        ("a put of extents under a key", Op::QueuePutExtents, vec![0, 1], &[1; 28]),
        ("a put of extents where none is", Op::QueuePutExtents, vec![1], &[1; 28]),
        ("a put of extents that are cut", Op::QueuePutExtents, vec![0], &[1; 27]),
        ("a replaced item without a number", Op::QueuePutExtents, vec![2], &[0; 32]),
        ("an item replaced by other bytes", Op::QueuePutExtents, vec![2; 9], &OTHER_BYTES),
        ("a get of extents that is cut", Op::QueueGetExtents, vec![0; 4], b""),
        ("a get of extents of stay 2", Op::QueueGetExtents, vec![0, 0, 0, 0, 2], b""),
        ("lists from a number that is cut", Op::QueueLists, vec![0; 7], b""),
        ("lists with a byte too many", Op::QueueLists, vec![0; 9], b""),
        ("arguments to QueueClose", Op::QueueClose, vec![0], b""),
        ("an acknowledgement of nothing", Op::QueueAck, Vec::new(), b""),
        ("an acknowledgement of action 3", Op::QueueAck, vec![3, 0, 0, 0, 0], b""),
        ("an acknowledgement that is cut", Op::QueueAck, vec![0; 5 + 11], b""),
        ("too many acknowledgements", Op::QueueAck, vec![0; 5 + 12 * (most + 1)], b""),
        ("results of a lane that is cut", Op::AckResults, vec![0; 11], b""),
        ("results of too many lanes", Op::AckResults, vec![0; 12 * 1025], b""),
        ("a subscription to nothing", Op::Subscribe, vec![0; 7], b""),
        ("a subscription to what there is not", Op::Subscribe, vec![0, 0, 0, 0, 128, 0, 0], b""),
        ("a subscription that matches 3", Op::Subscribe, vec![0, 0, 0, 0, 1, 0, 3], b""),
        ("a subscription to all and a key", Op::Subscribe, b"\0\0\0\0\x01\0\0k".to_vec(), b""),
        ("a subscription that is cut", Op::Subscribe, vec![0, 0, 0, 0, 1, 0], b""),
    ]
}

/// (what, operation, arguments) of requests that parse and can never be served.
fn impossible() -> Vec<(&'static str, Op, Vec<u8>)> {
    let none = get(0, 100, 0);
    let many = get(QUEUE_BATCH_MAX + 1, 100, 0);
    let extend = |timeout_ms: u32| [&[2][..], &timeout_ms.to_le_bytes(), &[0; 12]].concat();
    vec![
        ("a get of no items", Op::QueueGet, none.clone()),
        ("a get of too many", Op::QueueGet, many.clone()),
        ("a peek at no items", Op::QueuePeek, none[..8].to_vec()),
        ("a peek at too many", Op::QueuePeek, many[..8].to_vec()),
        ("an endless reservation", Op::QueueGet, get(1, 100, RESERVE_MAX_MS + 1)),
        ("an endless reservation of extents", Op::QueueGetExtents, {
            GetExtentsArgs { reserve_ms: RESERVE_MAX_MS + 1, stay: false }.encode()
        }),
        ("a reservation kept for no time", Op::QueueAck, extend(0)),
        ("a reservation kept without end", Op::QueueAck, extend(RESERVE_MAX_MS + 1)),
    ]
}

#[test]
fn what_no_queue_takes_is_refused() {
    use Then::Survives;
    let setup = Setup::new();
    for shard in [0, 1] {
        // A subscription is judged by the block's own core.
        let own = setup.queue.at.block.shard().0 == shard;
        let mut lane = 0;
        let mut bytes = |op, args: &[u8], payload: &[u8]| {
            lane += 1;
            frame(setup.queue_header(op, lane), args, payload)
        };
        let mut cases = Vec::new();
        for (what, op, args, payload) in malformed() {
            let elsewhere = op == Op::Subscribe && !own;
            let status = if elsewhere { Status::NotServedHere } else { Status::BadFrame };
            cases.push(case(what, bytes(op, &args, payload), status, Survives));
        }
        for (what, op, args) in impossible() {
            cases.push(case(what, bytes(op, &args, b""), Status::InvalidArgument, Survives));
        }
        let large = vec![0; BLOCK as usize / 8];
        cases.push(case(
            "an item of an eighth of a block",
            bytes(Op::QueuePut, b"", &large),
            Status::ValueTooLarge,
            Survives,
        ));
        run_cases(|| setup.data(shard), cases);
    }
    setup.unharmed();
}

/// However long a request says that it would wait, the server answers it, and serves others before.
#[test]
fn nobody_waits_for_ever() {
    let setup = Setup::new();
    let queue = setup.client.open_queue(setup.job.job, "a:queue").unwrap();
    assert_eq!(queue.get(Duration::ZERO).unwrap().unwrap(), b"item");
    for shard in [0, 1] {
        let mut raw = setup.data(shard);
        // Each on a lane of its own: more than a lane keeps results, and, where they are forwarded to
        // the block's core, fewer than a connection may have there.
        let own = setup.queue.at.block.shard().0 == shard;
        let waiting: Vec<u64> = (1..=if own { 40 } else { 12 })
            .map(|lane| {
                let request = raw.number();
                let header = setup.queue_header(Op::QueueGet, lane);
                let header = RequestHeader { request, deadline_ms: u32::MAX, ..header };
                raw.send(&frame(header, &get(1, 100, 0), b""));
                request
            })
            .collect();
        raw.expect_alive();
        for request in waiting {
            queue.put(b"item", Duration::ZERO).unwrap();
            let reply = raw.reply();
            assert_eq!((reply.header.request, reply.status()), (request, Status::Ok));
        }
    }
    queue.put(b"item", Duration::ZERO).unwrap();
    setup.unharmed();
}
