//! Peers that do not read, die, or never say a word.

use super::*;

/// Pages requested by a client that does not read: more than 300 MB.
const PAGES: usize = 400;

/// Never reads while the server owes it far more than a connection may be owed, then reads all.
fn slow_reader(setup: &Setup, shard: u8) {
    let mut raw = setup.data(shard);
    let mut args = Vec::new();
    ScanArgs { cursor: 0, bytes: u32::MAX, brings: Brings::Values, prefix: b"" }.put(&mut args);
    let mut requests = Vec::new();
    for i in 0..PAGES {
        let header = RequestHeader { request: i as u64, ..setup.kv_header(Op::KvScan, 0) };
        requests.extend_from_slice(&frame(header, &args, &[]));
    }
    let before = resident_anonymous_bytes();
    raw.send(&requests);
    // By when others have been served so often, the server has done what it ever will.
    let mut others = [setup.data(0), setup.data(1)];
    let (mut most, mut refused) = (0, None);
    for _ in 0..200 {
        for other in &mut others {
            let reply = other.request(setup.kv_header(Op::KvGet, 0), b"k", &[]);
            refused = refused.or((reply.status() != Status::Ok).then(|| reply.message()));
        }
        most = most.max(resident_anonymous_bytes().saturating_sub(before));
    }
    assert!(most < GROWTH, "{} MiB are held for one that does not read", most >> 20);
    assert_eq!(refused, None, "others pay for one that does not read");
    // It was not forgotten: when it reads, it gets everything that it asked for.
    for i in 0..PAGES {
        let reply = raw.reply();
        let status = reply.status();
        assert!(matches!(status, Status::Ok | Status::Busy), "{}", reply.message());
        assert!(shard != setup.kv.at.block.shard().0 || status == Status::Ok);
        if shard == setup.kv.at.block.shard().0 {
            assert_eq!(reply.header.request, i as u64);
        }
        assert!(status == Status::Busy || reply.payload.len() > 600 << 10);
    }
    raw.expect_alive();
}

fn setup_with_pages() -> Setup {
    let setup = Setup::new();
    let store = setup.client.open_kv(setup.job.job, "a:kv").unwrap();
    for i in 0..7 {
        store.put(format!("page{i}").as_bytes(), &vec![i; 100 << 10]).unwrap();
    }
    setup
}

#[test]
fn a_slow_reader_is_read_no_further() {
    let setup = setup_with_pages();
    let own = setup.kv.at.block.shard().0;
    beside_a_victim(&setup.cluster, || slow_reader(&setup, own));
}

#[test]
fn a_slow_reader_of_another_shard_is_read_no_further() {
    let setup = setup_with_pages();
    let other = 1 - setup.kv.at.block.shard().0;
    beside_a_victim(&setup.cluster, || slow_reader(&setup, other));
}

/// Values that are sent from where they are hold no memory of their own, but are owed as well.
#[test]
fn a_slow_reader_of_large_values_is_read_no_further() {
    let setup = setup_with_pages();
    beside_a_victim(&setup.cluster, || {
        for shard in [0, 1] {
            let before = resident_anonymous_bytes();
            let mut raw = setup.data(shard);
            let get = frame(setup.kv_header(Op::KvGet, 0), b"page1", &[]);
            raw.send(&get.repeat(3000));
            let mut other = setup.data(shard);
            for _ in 0..200 {
                let reply = other.request(setup.kv_header(Op::KvGet, 0), b"k", &[]);
                assert_eq!(reply.payload, b"v", "{}", reply.message());
            }
            let grown = resident_anonymous_bytes().saturating_sub(before);
            assert!(grown < GROWTH, "{} MiB are held", grown >> 20);
            // The connection closes; its pending replies are dropped.
        }
    });
}

#[test]
fn a_client_that_dies_in_a_large_write_leaves_no_trace() {
    let setup = Setup::new();
    let store = setup.client.open_kv(setup.job.job, "a:kv").unwrap();
    let log = setup.client.open_file(setup.job.job, "a:log").unwrap();
    beside_a_victim(&setup.cluster, || {
        for shard in [0, 1] {
            // Many times the size of the block, if it were retained.
            for round in 0..40u32 {
                let key: &[u8] = if round % 2 == 0 { b"\0k" } else { b"\0new" };
                let sent = [0, 1, LARGE / 2, LARGE - 1][round as usize % 4];
                for header in [setup.kv_header(Op::KvPut, 1), setup.file_header(Op::FileAppend, 1)]
                {
                    let args = if header.op == Op::KvPut { key } else { b"" };
                    let mut raw = setup.data(shard);
                    let whole = frame(header, args, &[0xDD; LARGE]);
                    raw.send(&whole[..whole.len() - LARGE + sent]);
                }
            }
        }
        // Their space comes back as soon as the server has seen that they are gone.
        eventually("the block takes what it can hold", || {
            (0..7).all(|i| store.put(format!("page{i}").as_bytes(), &[i; LARGE]).is_ok())
        });
        assert_eq!(log.append(b" and more").unwrap(), 7, "a hole in the file");
        let mut bytes = [0; 100];
        let n = log.read_into(0, &mut bytes).unwrap();
        assert_eq!(&bytes[..n], b"content and more");
        let mut value = Vec::new();
        assert!(store.get(b"k", &mut value).unwrap());
        assert_eq!(value, b"v");
        assert_eq!(store.exists(b"new").unwrap(), None);
        assert_eq!(store.length().unwrap(), 9);
    });
}

/// The end of a stream may come together with its last bytes, and be seen only behind them.
#[test]
fn a_peer_that_ends_right_after_its_request_is_let_go() {
    let setup = Setup::new();
    for node in setup.nodes() {
        let args = hello_args(&setup.job.token, PrefixId(0), ANY_SHARD);
        let ping = frame(RequestHeader::new(Op::Ping), &[], &[]);
        let hello = frame(RequestHeader::new(Op::Hello), &args, &[]);
        let both = [hello, ping].concat();
        for _ in 0..300 {
            // All is there before the server gets to accept it, often enough.
            let mut raw = Raw::connect(node);
            raw.send(&both);
            raw.finish().unwrap();
            // Whether it still hears the replies is its own affair.
            raw.drain();
        }
    }
    setup.unharmed();
}

#[test]
fn connections_that_say_nothing_or_half_of_it_cost_nothing() {
    let setup = Setup::new();
    let cluster = setup.cluster.client(setup.cluster.controller.token(), PrefixId(0));
    beside_a_victim(&setup.cluster, || {
        for node in setup.nodes() {
            let silent: Vec<Raw> = (0..100).map(|_| Raw::connect(node)).collect();
            drop(silent);
            for _ in 0..100 {
                drop(Raw::connect(node));
            }
            let args = hello_args(&setup.job.token, PrefixId(0), ANY_SHARD);
            let hello = frame(RequestHeader::new(Op::Hello), &args, &[]);
            let cuts = [1, 2, 30, 63, 64, 65, 80, 100, hello.len() - 2, hello.len() - 1];
            let mut halves: Vec<Raw> = cuts.iter().map(|_| Raw::connect(node)).collect();
            for (raw, cut) in halves.iter_mut().zip(cuts) {
                raw.send(&hello[..cut]);
            }
            // Others are served meanwhile, and the half ones when they go on.
            Raw::greeted(node, &setup.job.token, ANY_SHARD).expect_alive();
            for (raw, cut) in halves.iter_mut().zip(cuts).skip(5) {
                raw.send(&hello[cut..]);
                assert_eq!(raw.reply().status(), Status::Ok);
                raw.expect_alive();
            }
        }
    });
    eventually("the connections are forgotten", || {
        let servers = cluster.status().unwrap().servers;
        u64::from(servers[0].connections) < 20
    });
    setup.unharmed();
}
