//! Requests that no frame can hold. The client refuses each at once, and no server stores a part of it. From
//! 4 GiB on, the length does not fit into the 32 bits of its header field.

use honeycomb_client::{Atomic, Error};
use honeycomb_e2e::{Cluster, KIB, LEASE_MS, eventually, kv, status};
use honeycomb_env::Clock;
use honeycomb_types::limits::{
    ARGS_MAX, BATCH_MAX, CONTROL_ARGS_MAX, FRAME_MAX, KEY_MAX, NAME_MAX,
};
use honeycomb_wire::Status;
use honeycomb_wire::batch::BatchOp;
use honeycomb_wire::messages::{DagNode, PrefixOptions};
use honeycomb_wire::notice::{Filter, kinds};
use honeycomb_wire::stored::Function;
use std::time::Duration;

/// A length of which 32 bits keep 10 bytes.
const HUGE: usize = (1 << 32) + 10;

/// An item of 4 GiB and 10 bytes was put as its first 10 bytes, and from 256 MiB on a put ended at its
/// deadline, because the server had closed the connection.
#[test]
fn values_that_no_frame_holds_are_refused_at_once_and_leave_nothing() {
    let cluster = Cluster::start(1, 8 << 20, 64 * KIB);
    let (client, job) = cluster.job("oversized");
    let store = kv(&client, &job, ":store", 1);
    let queue = client.create_queue(job.job, ":queue", 0, 0, false).unwrap();
    let file = client.create_file(job.job, ":file", 1, false).unwrap();
    let wait = Duration::from_secs(20);
    store.put(b"key", b"value").unwrap();
    // Zeroed by the system, and never read: it takes no memory.
    let huge = vec![0; HUGE];
    for length in [(8 << 20) + 1, FRAME_MAX, FRAME_MAX + 1, u32::MAX as usize, HUGE] {
        let value = &huge[..length];
        let large = |e: Option<Error>| {
            let e = e.unwrap_or_else(|| panic!("{length} bytes were accepted"));
            assert_eq!(e.status, Status::ValueTooLarge, "{length} bytes: {e}");
            // A comparison names the bytes of both of its values.
            let named = [0, 3, 5].map(|beside| (length + beside).to_string());
            assert!(named.iter().any(|length| e.message.contains(length)), "{e}");
        };
        large(queue.put(value, wait).err());
        let (done, e) = queue.put_many(&[b"first", value, b"last"], wait).unwrap_err();
        large(Some(e));
        assert_eq!((done, queue.get(wait).unwrap()), (1, Some(b"first".to_vec())));
        if length < FRAME_MAX {
            continue;
        }
        large(store.put(b"key", value).err());
        large(store.insert(b"other", value).err());
        large(store.update(b"key", value).err());
        large(store.upsert(b"key", value).err());
        large(store.compare_and_swap(b"key", Some(value), b"new").err());
        large(store.compare_and_swap(b"key", Some(b"value"), value).err());
        large(store.append(b"key", value).err());
        large(store.accumulate(b"key", Function::Top, value).err());
        large(store.multi_put(&[(b"key", value)]).remove(0).err());
        // Not even an empty cluster could hold it.
        let none = file.append(value).unwrap_err();
        assert_eq!((none.status, file.size().unwrap()), (Status::LimitExceeded, 0), "{none}");
        let mut pipeline = store.pipeline();
        pipeline.ask(BatchOp::Put { key: b"key", value });
        large(pipeline.next().unwrap().err());
        let refused = store.atomic(&[BatchOp::Put { key: b"key", value }]);
        assert!(!matches!(refused, Ok(Atomic::Applied(_))), "{length} bytes in an atomic batch");
    }
    let mut value = Vec::new();
    assert!(store.get(b"key", &mut value).unwrap() && value == b"value");
    assert_eq!((store.length().unwrap(), queue.counts().unwrap().items), (1, 0));
    assert_eq!(file.size().unwrap(), 0);
}

/// The client closed the connection over the reply to `tree`, and reported a bad frame.
#[test]
fn tree_that_no_frame_holds_is_refused_by_name() {
    // The root is a node of the tree as well.
    const NODES: usize = BATCH_MAX / 2 - 1;
    let cluster = Cluster::start(1, 8 << 20, 64 * KIB);
    let (client, job) = cluster.job("oversized");
    let long = "n".repeat(NAME_MAX - 10);
    for half in 0..2 {
        let name = |n: usize| format!("{:09}-{long}", half * NODES + n);
        let node = |n| DagNode { name: name(n), ..DagNode::default() };
        client.create_hierarchy(job.job, (0..NODES).map(node).collect()).unwrap();
    }
    let refused = client.tree(job.job).unwrap_err();
    assert_eq!(refused.status, Status::LimitExceeded, "{refused}");
    assert!(refused.message.contains(&CONTROL_ARGS_MAX.to_string()), "{refused}");
    assert!(client.status().is_ok());
}

/// A scan of keys that begin with more bytes than a request has ended at its deadline.
#[test]
fn keys_and_requests_that_no_frame_holds_are_refused_at_once() {
    let cluster = Cluster::start(1, 8 << 20, 64 * KIB);
    let (client, job) = cluster.job("oversized");
    let store = kv(&client, &job, ":store", 1);
    let huge = vec![0; HUGE];
    for length in [KEY_MAX + 1, ARGS_MAX, ARGS_MAX + 1, CONTROL_ARGS_MAX + 1, HUGE] {
        let key = &huge[..length];
        let mut out = Vec::new();
        assert_eq!(status(store.get(key, &mut out)), Status::KeyTooLarge, "{length}");
        assert_eq!(status(store.put(key, b"value")), Status::KeyTooLarge, "{length}");
        assert_eq!(status(store.delete(key)), Status::KeyTooLarge, "{length}");
        assert_eq!(status(store.scan(0, key, false, 1000)), Status::KeyTooLarge, "{length}");
        let ahead = store.scan_ahead(0, key, false, 1000).map(drop);
        assert_eq!(status(ahead), Status::KeyTooLarge, "{length}");
        assert_eq!(status(store.multi_get(&[key]).remove(0)), Status::KeyTooLarge, "{length}");
    }
    let far = vec![b'a'; CONTROL_ARGS_MAX + 1];
    let refused = store.structure().listen(kinds::PUT, Filter::Key(far.clone())).err().unwrap();
    assert_eq!(refused.status, Status::FrameTooLarge, "{refused}");
    let path = String::from_utf8(far).unwrap();
    let refused = client.open_kv(job.job, &path).err().unwrap();
    assert!(refused.message.len() < 1000, "{} bytes of text", refused.message.len());
    assert!(store.length().is_ok());
}

/// The controller refused a renewal of so many paths, and the client reported all leases as lost.
#[test]
fn leases_of_more_prefixes_than_a_request_names_are_kept() {
    const PARTS: usize = 3;
    let count = BATCH_MAX / 2;
    let cluster = Cluster::start(1, 8 << 20, 64 * KIB);
    let (client, job) = cluster.job("oversized");
    let mut paths = Vec::new();
    for part in 0..PARTS {
        let names: Vec<String> = (0..count).map(|n| format!("{part}-{n}")).collect();
        let options = PrefixOptions { lease_ms: LEASE_MS, ..PrefixOptions::default() };
        let node = |name: &String| DagNode {
            name: name.clone(),
            options: options.clone(),
            ..DagNode::default()
        };
        client.create_hierarchy(job.job, names.iter().map(node).collect()).unwrap();
        paths.extend(names.iter().map(|name| format!("/{name}")));
    }
    let last = paths.last().unwrap();
    let remaining = || client.lease(job.job, last).unwrap().remaining_ms;
    let clock = Clock::start();
    let now = || clock.now().as_millis() as i64;
    eventually("half a second of the lease is over", || remaining() < i64::from(LEASE_MS) - 500);
    // The true end is between the sums with the times before and after the request: operands are evaluated
    // from the left.
    let end = remaining() + now() + 1;
    client.keep(job.job, &paths);
    eventually("the last prefix is renewed", || {
        assert_eq!(client.lost_leases(), []);
        now() + remaining() > end
    });
    client.release(job.job, &paths);
}
