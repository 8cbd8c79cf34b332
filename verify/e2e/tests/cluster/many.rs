//! Many keys and many ranges in one call, over real sockets, several blocks and two servers.

use honeycomb_client::{Accumulated, Atomic, Done, Error, Kv, Number, Swap, TopItem};
use honeycomb_e2e::{Cluster, KIB, file, kv, noise, prefix, status};
use honeycomb_wire::batch::BatchOp;
use honeycomb_wire::stored::Function;
use honeycomb_wire::{Status, key_hash};

fn all<T>(results: Vec<Result<T, Error>>) -> Vec<T> {
    results.into_iter().map(|result| result.unwrap()).collect()
}

fn slices<T: AsRef<[u8]>>(keys: &[T]) -> Vec<&[u8]> {
    keys.iter().map(AsRef::as_ref).collect()
}

fn value(kv: &Kv, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    kv.get(key, &mut value).unwrap().then_some(value)
}

fn applied(atomic: Atomic) -> Vec<Done> {
    match atomic {
        Atomic::Applied(done) => done,
        refused => panic!("{refused:?}"),
    }
}

#[test]
fn thousands_of_keys_over_eight_blocks_come_and_go() {
    let cluster = Cluster::start(2, 64 << 20, 256 * KIB);
    let (client, job) = cluster.job("many");
    prefix(&client, &job, "a", 0);
    let kv = kv(&client, &job, "a", 8);
    let keys: Vec<String> = (0..5000).map(|i| format!("key-{i}")).collect();
    let values: Vec<Vec<u8>> = (0..5000).map(|i| noise(i, 10 + i as usize % 200)).collect();
    let entries: Vec<(&[u8], &[u8])> =
        keys.iter().zip(&values).map(|(k, v)| (k.as_bytes(), &v[..])).collect();
    assert!(all(kv.multi_put(&entries)).iter().all(|replaced| !replaced));
    assert!(all(kv.multi_put(&entries[..100])).iter().all(|replaced| *replaced));
    all(kv.multi_set(&entries[50..]));
    kv.set(keys[0].as_bytes(), &values[0]).unwrap();
    assert_eq!(kv.length().unwrap(), 5000);
    let mut asked = slices(&keys);
    asked.insert(7, b"absent");
    asked.push(b"key-0");
    let got = all(kv.multi_get(&asked));
    assert_eq!(got[7], None);
    assert_eq!(got[5001].as_deref(), Some(&values[0][..]));
    let mut found = got;
    found.remove(7);
    found.pop();
    assert!(found.into_iter().flatten().eq(values.iter().cloned()), "a value is not its key's");
    let deleted = all(kv.multi_delete(&asked));
    assert_eq!((deleted[7], deleted[5001]), (false, false), "absent, and deleted before");
    assert_eq!(deleted.iter().filter(|there| **there).count(), 5000);
    assert_eq!(kv.length().unwrap(), 0);
    assert!(kv.multi_get(&[]).is_empty() && kv.multi_put(&[]).is_empty());
}

#[test]
fn values_of_every_size_travel_with_the_others() {
    let cluster = Cluster::start(2, 64 << 20, 4 << 20);
    let (client, job) = cluster.job("sizes");
    prefix(&client, &job, "a", 0);
    let kv = kv(&client, &job, "a", 4);
    // Some have no room in a request for many, some none in a reply, together none in one reply.
    let sizes = [0, 1, 50_000, 61_000, 61_440, 70_000, 300_000, 500_000, 524_288, 400_000, 7];
    let entries: Vec<(String, Vec<u8>)> = (0..33)
        .map(|i| (format!("{{one}}{i}"), noise(i, sizes[i as usize % sizes.len()])))
        .collect();
    let pairs: Vec<(&[u8], &[u8])> = entries.iter().map(|(k, v)| (k.as_bytes(), &v[..])).collect();
    let small = &pairs[..11];
    all(kv.multi_put(small));
    let got = all(kv.multi_get(&small.iter().map(|(k, _)| *k).collect::<Vec<_>>()));
    for ((key, value), got) in small.iter().zip(got) {
        assert!(got.as_deref() == Some(*value), "{}", String::from_utf8_lossy(key));
    }
    // One too large for the store fails alone.
    let (large, long) = (vec![0; (128 << 20) + 1], vec![b'k'; 4097]);
    let results = kv.multi_put(&[(b"a", b"1"), (b"b", &large), (&long, b"x"), (b"c", b"3")]);
    let statuses: Vec<_> = results.iter().map(|r| r.as_ref().err().map(|e| e.status)).collect();
    assert_eq!(
        statuses,
        [None, Some(Status::ValueTooLarge), Some(Status::KeyTooLarge), None],
        "{results:?}"
    );
    let results = kv.multi_get(&[b"a", b"", b"c"]);
    assert_eq!(results[0], Ok(Some(b"1".to_vec())));
    assert_eq!(results[1].as_ref().unwrap_err().status, Status::InvalidArgument);
    assert_eq!(results[2], Ok(Some(b"3".to_vec())));
}

#[test]
fn a_value_over_a_megabyte_is_read_alone_and_in_its_turn() {
    let cluster = Cluster::start(1, 128 << 20, 16 << 20);
    let (client, job) = cluster.job("large");
    prefix(&client, &job, "a", 0);
    let kv = kv(&client, &job, "a", 2);
    let large = noise(1, 2 << 20);
    all(kv.multi_put(&[(b"large", &large), (b"small", b"s")]));
    let got = all(kv.multi_get(&[b"small", b"large"]));
    assert!(got[1].as_deref() == Some(&large[..]) && got[0].as_deref() == Some(b"s"));
    let done = all(kv.batch(&[
        BatchOp::Get { key: b"large" },
        BatchOp::Put { key: b"large", value: b"short" },
        BatchOp::Get { key: b"large" },
        BatchOp::Delete { key: b"large" },
    ]));
    assert!(done[0] == Done::Read(Some(large)), "it was read before it was replaced");
    assert_eq!(done[1], Done::Stored(true));
    assert_eq!(done[2], Done::Read(Some(b"short".to_vec())));
    assert_eq!(done[3], Done::Deleted(true));
}

#[test]
fn operations_of_a_batch_fail_alone_and_equal_keys_keep_their_order() {
    let cluster = Cluster::start(2, 64 << 20, 256 * KIB);
    let (client, job) = cluster.job("batch");
    prefix(&client, &job, "a", 0);
    let kv = kv(&client, &job, "a", 8);
    let results = kv.batch(&[
        BatchOp::Put { key: b"k", value: b"1" },
        BatchOp::Insert { key: b"k", value: b"2" },
        BatchOp::Get { key: b"k" },
        BatchOp::Swap { key: b"k", expected: Some(b"1"), new: b"3" },
        BatchOp::Swap { key: b"k", expected: Some(b"1"), new: b"4" },
        BatchOp::Delete { key: b"none" },
        BatchOp::Accumulate { key: b"k", function: Function::Count, operand: b"" },
        BatchOp::Accumulate { key: b"n", function: Function::Count, operand: b"" },
        BatchOp::Put { key: b"k", value: b"5" },
    ]);
    let (ok, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!(
        all(ok),
        [
            Done::Stored(false),
            Done::Read(Some(b"1".to_vec())),
            Done::Swapped(Swap::Done),
            Done::Swapped(Swap::Found(Some(b"3".to_vec()))),
            Done::Deleted(false),
            Done::Combined(Accumulated::Integer(1)),
            Done::Stored(true),
        ]
    );
    let statuses: Vec<Status> = failed.into_iter().map(status).collect();
    assert_eq!(statuses, [Status::KeyExists, Status::InvalidArgument]);
    assert_eq!(value(&kv, b"k").unwrap(), b"5");
    // More of one key than go into one request: the last one stays.
    let bodies: Vec<Vec<u8>> = (0..200).map(|i| noise(i, 2000)).collect();
    let same: Vec<(&[u8], &[u8])> = bodies.iter().map(|v| (&b"same"[..], &v[..])).collect();
    all(kv.multi_put(&same));
    assert!(value(&kv, b"same").as_deref() == Some(&bodies[199][..]));
}

#[test]
fn an_atomic_batch_applies_whole_or_not_at_all() {
    let cluster = Cluster::start(2, 64 << 20, 256 * KIB);
    let (client, job) = cluster.job("atomic");
    prefix(&client, &job, "a", 0);
    let kv = kv(&client, &job, "a", 8);
    let done = applied(
        kv.atomic(&[
            BatchOp::Put { key: b"{u}a", value: b"1" },
            BatchOp::Get { key: b"{u}a" },
            BatchOp::Delete { key: b"{u}none" },
            BatchOp::Accumulate {
                key: b"{u}n",
                function: Function::SumI64,
                operand: &7i64.to_le_bytes(),
            },
        ])
        .unwrap(),
    );
    assert_eq!(
        done,
        [
            Done::Stored(false),
            Done::Read(Some(b"1".to_vec())),
            Done::Deleted(false),
            Done::Combined(Accumulated::Integer(7)),
        ]
    );
    let refused = kv.atomic(&[
        BatchOp::Put { key: b"{u}a", value: b"2" },
        BatchOp::Delete { key: b"{u}n" },
        BatchOp::Swap { key: b"{u}a", expected: Some(b"1"), new: b"3" },
    ]);
    let Atomic::Refused { index, error, found } = refused.unwrap() else { panic!("applied") };
    assert_eq!((index, error.status), (2, Status::CompareFailed));
    assert_eq!(found, Some(Some(b"2".to_vec())), "it saw what came before it in the batch");
    assert!(error.message.contains("operation 2") && error.message.contains("{u}a"), "{error}");
    assert_eq!(value(&kv, b"{u}a").unwrap(), b"1");
    assert_eq!(kv.number(b"{u}n").unwrap(), Some(Number::Integer(7)));
    let exists = kv.atomic(&[
        BatchOp::Put { key: b"{u}b", value: b"2" },
        BatchOp::Insert { key: b"{u}a", value: b"2" },
    ]);
    let Atomic::Refused { index, error, found } = exists.unwrap() else { panic!("applied") };
    assert_eq!((index, error.status, found), (1, Status::KeyExists, None));
    assert_eq!(value(&kv, b"{u}b"), None);
    assert_eq!(applied(kv.atomic(&[]).unwrap()), []);
}

#[test]
fn an_atomic_batch_has_one_slot_and_limits_that_are_named() {
    let cluster = Cluster::start(2, 64 << 20, 256 * KIB);
    let (client, job) = cluster.job("limits");
    prefix(&client, &job, "a", 0);
    let kv = kv(&client, &job, "a", 8);
    let (one, other) = (&b"{one}k"[..], &b"{other}k"[..]);
    assert_ne!(key_hash(one) >> 54, key_hash(other) >> 54);
    let e = kv.atomic(&[BatchOp::Get { key: one }, BatchOp::Get { key: other }]).unwrap_err();
    assert_eq!(e.status, Status::InvalidArgument);
    assert!(e.message.contains("{one}k") && e.message.contains("{other}k"), "{e}");
    let many = vec![BatchOp::Get { key: one }; 1025];
    let e = kv.atomic(&many).unwrap_err();
    assert!(e.status == Status::InvalidArgument && e.message.contains("1024"), "{e}");
    let long = vec![0; 61_440];
    let e = kv.atomic(&[BatchOp::Put { key: one, value: &long }]).unwrap_err();
    assert!(e.status == Status::ValueTooLarge && e.message.contains("61440"), "{e}");
    // Within the payload's limit, over the store's.
    let over = vec![0; 32_769];
    let refused = kv.atomic(&[BatchOp::Put { key: one, value: &over }]).unwrap();
    let Atomic::Refused { error, .. } = refused else { panic!("applied") };
    assert_eq!(error.status, Status::ValueTooLarge);
}

#[test]
fn a_full_block_refuses_an_atomic_batch_and_keeps_what_it_has() {
    let cluster = Cluster::start(1, 16 << 20, 64 * KIB);
    let (client, job) = cluster.job("full");
    prefix(&client, &job, "a", 0);
    let kv = kv(&client, &job, "a", 1);
    let fill = noise(1, 1000);
    let keys: Vec<String> = (0..100).map(|i| format!("{{f}}{i}")).collect();
    let entries: Vec<(&[u8], &[u8])> = keys.iter().map(|k| (k.as_bytes(), &fill[..])).collect();
    let results = kv.multi_put(&entries);
    let (stored, refused): (Vec<_>, Vec<_>) =
        keys.iter().zip(&results).partition(|(_, result)| result.is_ok());
    assert!((40..64).contains(&stored.len()), "{} entries fit", stored.len());
    for (_, result) in refused {
        assert_eq!(result.as_ref().unwrap_err().status, Status::BlockFull);
    }
    let stored: Vec<&String> = stored.into_iter().map(|(key, _)| key).collect();
    // The first would fit, all of them do not.
    kv.delete(stored[0].as_bytes()).unwrap();
    let more: Vec<String> = (0..20).map(|i| format!("{{f}}new-{i}")).collect();
    let puts: Vec<BatchOp<'_>> = [BatchOp::Put { key: stored[1].as_bytes(), value: b"changed" }]
        .into_iter()
        .chain(more.iter().map(|key| BatchOp::Put { key: key.as_bytes(), value: &fill }))
        .collect();
    let Atomic::Refused { error, .. } = kv.atomic(&puts).unwrap() else { panic!("applied") };
    assert_eq!(error.status, Status::BlockFull, "{error}");
    assert_eq!(kv.length().unwrap() as usize, stored.len() - 1);
    assert!(value(&kv, stored[1].as_bytes()).as_deref() == Some(&fill[..]));
    // Operations that need no additional room succeed, even when the block is full.
    // As many as one request takes.
    let same: Vec<BatchOp<'_>> = stored[1..40]
        .iter()
        .map(|key| BatchOp::Put { key: key.as_bytes(), value: &fill })
        .collect();
    assert_eq!(applied(kv.atomic(&same).unwrap()).len(), same.len());
}

#[test]
fn threads_that_accumulate_lose_nothing() {
    let cluster = Cluster::start(2, 64 << 20, 256 * KIB);
    let (client, job) = cluster.job("sums");
    prefix(&client, &job, "a", 0);
    let kv = kv(&client, &job, "a", 4);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let kv = &kv;
            scope.spawn(move || {
                for i in 0..100 {
                    kv.add(b"sum", 3).unwrap();
                    kv.append(b"log", &thread.to_le_bytes()).unwrap();
                    let max = ((i * 7919 + thread) as f64).to_le_bytes();
                    kv.accumulate(b"max", Function::MaxF64, &max).unwrap();
                    let item = format!("item-{thread}-{i}");
                    kv.top_add(b"top", 5, i as f64, item.as_bytes()).unwrap();
                }
            });
        }
    });
    assert_eq!(kv.number(b"sum").unwrap(), Some(Number::Integer(1200)));
    assert_eq!(kv.number(b"max").unwrap(), Some(Number::Float((99 * 7919 + 3) as f64)));
    let log = value(&kv, b"log").unwrap();
    for thread in 0..4u64 {
        let pieces = log.chunks_exact(8).filter(|piece| **piece == thread.to_le_bytes());
        assert_eq!(pieces.count(), 100);
    }
    let top = kv.top(b"top").unwrap().unwrap();
    let items: Vec<(f64, &[u8])> =
        top.iter().map(|TopItem { score, item }| (*score, &item[..])).collect();
    let expected: [(f64, &[u8]); 5] = [
        (99.0, b"item-0-99"),
        (99.0, b"item-1-99"),
        (99.0, b"item-2-99"),
        (99.0, b"item-3-99"),
        (98.0, b"item-0-98"),
    ];
    assert_eq!(items, expected);
}

#[test]
fn what_cannot_be_combined_is_refused_and_stays() {
    let cluster = Cluster::start(1, 16 << 20, 64 * KIB);
    let (client, job) = cluster.job("types");
    prefix(&client, &job, "a", 0);
    let kv = kv(&client, &job, "a", 1);
    kv.put(b"text", b"hello").unwrap();
    let e = kv.add(b"text", 1).unwrap_err();
    assert!(e.status == Status::InvalidArgument && e.message.contains("5 bytes"), "{e}");
    assert_eq!(kv.add(b"n", i64::MAX).unwrap(), i64::MAX);
    assert_eq!(status(kv.add(b"n", 1)), Status::InvalidArgument);
    assert_eq!(kv.number(b"n").unwrap(), Some(Number::Integer(i64::MAX)));
    let nan = f64::NAN.to_le_bytes();
    assert_eq!(status(kv.accumulate(b"f", Function::SumF64, &nan)), Status::InvalidArgument);
    assert_eq!(kv.number(b"f").unwrap(), None);
    assert_eq!(status(kv.number(b"text")), Status::InvalidArgument);
    assert_eq!(status(kv.top(b"text")), Status::InvalidArgument);
    assert_eq!(kv.append(b"text", b" there").unwrap(), 11);
    assert_eq!(value(&kv, b"text").unwrap(), b"hello there");
    let piece = noise(1, 3000);
    assert_eq!(kv.append(b"long", &piece).unwrap(), 3000);
    assert_eq!(kv.append(b"long", &piece).unwrap(), 6000);
    assert_eq!(status(kv.append(b"long", &piece)), Status::ValueTooLarge);
    assert_eq!(value(&kv, b"long").unwrap(), [&piece[..], &piece[..]].concat());
    assert_eq!(status(kv.append(b"long", &[0; 61_441])), Status::ValueTooLarge);
}

#[test]
fn ranges_of_a_growing_file_are_read_together() {
    let cluster = Cluster::start(2, 64 << 20, 256 * KIB);
    let (client, job) = cluster.job("ranges");
    prefix(&client, &job, "a", 0);
    let writer = file(&client, &job, "a:log");
    // Opened while the file had one empty block: every later one is learned on the way.
    let reader = client.open_file(job.job, "a:log").unwrap();
    let content = noise(1, 3 << 20);
    writer.write_all(&content).unwrap();
    let end = content.len() as u64;
    let mut ranges: Vec<(u64, usize)> =
        (0..10_000).map(|i| ((i * 7919 * 31) % end, 1 + (i as usize * 37) % 900)).collect();
    ranges.extend([(0, 0), (end - 5, 10), (end, 10), (end + 1000, 1), (u64::MAX, 1)]);
    ranges.extend([(5, 2 << 20), (end - 1000, 1 << 30), (0, 250_000), (255_000, 200_000)]);
    let got = reader.read_ranges(&ranges).unwrap();
    assert_eq!(got.len(), ranges.len());
    for ((at, length), got) in ranges.iter().zip(&got) {
        let from = (*at).min(end) as usize;
        let to = at.saturating_add(*length as u64).min(end) as usize;
        assert!(got[..] == content[from..to.max(from)], "{length} bytes at {at}");
    }
    assert!(reader.read_ranges(&[]).unwrap().is_empty());
    client.remove_structure(job.job, "a:log").unwrap();
    assert_eq!(status(reader.read_ranges(&ranges)), Status::Removed);
}

#[test]
fn keys_of_a_store_that_is_gone_all_say_so() {
    let mut cluster = Cluster::start(2, 64 << 20, 256 * KIB);
    let (client, job) = cluster.job("gone");
    prefix(&client, &job, "a", 0);
    let kv = kv(&client, &job, "a", 8);
    let keys: Vec<String> = (0..3000).map(|i| format!("key-{i}")).collect();
    let entries: Vec<(&[u8], &[u8])> = keys.iter().map(|k| (k.as_bytes(), &b"v"[..])).collect();
    all(kv.multi_put(&entries));
    cluster.servers.clear();
    for result in kv.multi_get(&slices(&keys)) {
        assert_eq!(result.unwrap_err().status, Status::DataLost);
    }
    for result in kv.multi_put(&entries) {
        assert_eq!(result.unwrap_err().status, Status::DataLost);
    }
}
