//! `watch` and `cat --follow`: their notifications, and their ends.

use super::home::{Home, Running};
use honeycomb_client::{Client, ClientOptions};
use honeycomb_e2e::LEASE_MS;
use honeycomb_wire::messages::PrefixOptions;
use serde_json::{Value, json};

/// A watch that has begun: from here on nothing is missed.
fn watching(home: &Home, args: &[&str]) -> Running {
    let mut watch = home.spawn(&[&["watch"], args, &["--json", "--wait", "60"]].concat());
    let first: Value = serde_json::from_str(&watch.line()).unwrap();
    assert_eq!((&first["op"], &first["address"]), (&json!("watching"), &json!(args[0])));
    watch
}

/// The next notice, without its time.
fn notice(watch: &mut Running) -> Value {
    let line = watch.line();
    let mut value: Value = serde_json::from_str(&line)
        .unwrap_or_else(|e| panic!("{e}: {line:?} {}", watch.err_line()));
    assert!(value["time_ms"].as_u64().unwrap() > 1_600_000_000_000, "{value}");
    value.as_object_mut().unwrap().remove("time_ms");
    value
}

#[test]
fn a_store_tells_of_puts_and_deletes_as_the_filter_says() {
    let home = Home::with_cluster();
    home.ok(&["put", "n:kv", "a/1", "before"]);
    let mut all = watching(&home, &["n:kv", "--count", "5"]);
    let mut key = watching(&home, &["n:kv", "--key", "a/1", "--count", "2"]);
    let mut prefix = watching(&home, &["n:kv", "--prefix", "b/", "--count", "1"]);
    let mut deletes = watching(&home, &["n:kv", "--ops", "delete", "--count", "1"]);
    home.ok(&["put", "n:kv", "a/1", "v"]);
    home.ok(&["put", "n:kv", "a/2", "v"]);
    home.ok(&["put", "n:kv", "b/1", "v"]);
    home.ok(&["put", "n:kv", "62ff", "v", "--key-hex"]);
    home.ok(&["kv", "del", "n:kv", "a/1"]);
    let put = |key: &str| json!({ "op": "put", "key": key });
    let deleted = json!({ "op": "delete", "key": "a/1" });
    for wanted in [put("a/1"), put("a/2"), put("b/1")] {
        assert_eq!(notice(&mut all), wanted);
    }
    assert_eq!(notice(&mut all), json!({ "op": "put", "key_hex": "62ff" }));
    assert_eq!(notice(&mut all), deleted);
    assert_eq!((notice(&mut key), notice(&mut key)), (put("a/1"), deleted.clone()));
    assert_eq!(notice(&mut prefix), put("b/1"));
    assert_eq!(notice(&mut deletes), deleted);
    for watch in [all, key, prefix, deletes] {
        let ended = watch.end();
        assert_eq!((ended.code, ended.out.as_str()), (0, ""), "{}", ended.err);
    }
}

#[test]
fn a_file_tells_of_appends_and_its_seal() {
    let home = Home::with_cluster();
    home.feed(&["append", "l"], b"before");
    let mut watch = watching(&home, &["l", "--until", "sealed"]);
    let seals = watching(&home, &["l", "--ops", "seal", "--until", "size=10"]);
    home.feed(&["append", "l"], b"more");
    assert_eq!(notice(&mut watch), json!({ "op": "append", "offset": 6, "bytes": 4 }));
    let ended = seals.end();
    assert_eq!((ended.code, ended.out.as_str()), (0, ""), "appends count and are not printed");
    // Over the end of a block, and of the next.
    home.feed(&["append", "l", "--seal"], &[b'x'; 150_000]);
    let (mut at, mut last) = (10, Value::Null);
    while at < 150_010 {
        last = notice(&mut watch);
        assert_eq!((&last["op"], &last["offset"]), (&json!("append"), &json!(at)), "{last}");
        at += last["bytes"].as_u64().unwrap();
    }
    assert_eq!(at, 150_010, "{last}");
    assert_eq!(notice(&mut watch), json!({ "op": "seal", "bytes_total": 150_010 }));
    assert_eq!(watch.end().code, 0);
    // It is so already.
    assert_eq!(home.run(&["watch", "l", "--until", "sealed"]).code, 0);
    assert_eq!(home.run(&["watch", "l", "--until", "size=150010"]).code, 0);
    let never = home.run(&["watch", "l", "--until", "size=150011"]);
    assert_eq!(never.code, 8, "{}", never.err);
}

#[test]
fn a_queue_tells_of_data_space_and_its_end() {
    let home = Home::with_cluster();
    home.ok(&["queue", "put", "w:q", "before"]);
    let mut watch = watching(&home, &["w:q", "--until", "closed"]);
    home.ok(&["queue", "put", "w:q", "a"]);
    assert_eq!(notice(&mut watch), json!({ "op": "data", "items": 1 }));
    home.ok(&["queue", "get", "w:q"]);
    assert_eq!(notice(&mut watch), json!({ "op": "space", "items": 1 }));
    home.ok(&["queue", "close", "w:q"]);
    assert_eq!(notice(&mut watch), json!({ "op": "close" }));
    assert_eq!(watch.end().code, 0);
    assert_eq!(home.run(&["watch", "w:q", "--until", "closed"]).code, 0, "it is so already");
}

#[test]
fn people_get_lines_with_the_time_of_day() {
    let home = Home::with_cluster();
    home.ok(&["put", "n:kv", "k", "v"]);
    let mut watch = home.spawn(&["watch", "n:kv", "--until", "key=later", "--wait", "60"]);
    assert_eq!(watch.err_line(), "watching n:kv, a kv: put, delete");
    home.ok(&["put", "n:kv", "later", "v"]);
    let line = watch.line();
    let (time, what) = line.split_once(' ').unwrap();
    assert_eq!(what, "put    later");
    assert!(time.len() == 24 && time.starts_with("20") && time.ends_with('Z'), "{line}");
    let ended = watch.end();
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (0, "", ""));
}

#[test]
fn what_does_not_come_in_time_has_its_exit_code() {
    let home = Home::with_cluster();
    home.ok(&["put", "n:kv", "k", "v"]);
    home.ok(&["queue", "put", "w:q", "a"]);
    home.feed(&["append", "l"], b"bytes");
    let code = |args: &[&str]| home.run(&[&["watch"], args, &["--wait", "0.01"]].concat()).code;
    assert_eq!(code(&["n:kv"]), 0, "it was to watch for so long");
    assert_eq!(code(&["n:kv", "--until", "key=k"]), 0);
    assert_eq!(code(&["n:kv", "--until", "key=6b", "--key-hex", "--prefix", "6b"]), 0);
    assert_eq!(code(&["n:kv", "--until", "key=none"]), 5);
    assert_eq!(code(&["n:kv", "--count", "1"]), 5);
    assert_eq!(code(&["w:q", "--until", "closed"]), 5);
    assert_eq!(code(&["l", "--until", "sealed"]), 5);
    assert_eq!(code(&["l", "--until", "size=6"]), 5);
    assert_eq!(code(&["l", "--until", "size=5"]), 0);
    for wrong in [
        &["n:kv", "--ops", "append"][..],
        &["n:kv", "--ops", "grow"],
        &["n:kv", "--until", "sealed"],
        &["n:kv", "--until", "full"],
        &["n:kv", "--until", "key=a", "--key", "b"],
        &["l", "--key", "k"],
        &["l", "--until", "closed"],
        &["w:q", "--until", "size=1", "--count", "1"],
    ] {
        assert_eq!(code(wrong), 2, "{wrong:?}");
    }
    assert_eq!(code(&["n:none"]), 3);
}

#[test]
fn it_ends_when_the_data_goes_and_on_an_interrupt() {
    let home = Home::with_cluster();
    home.ok(&["put", "n:kv", "k", "v"]);
    let interrupted = watching(&home, &["n:kv"]);
    interrupted.interrupt();
    assert_eq!(interrupted.signal(), Some(2), "which a shell shows as 130");
    let watch = watching(&home, &["n:kv"]);
    home.ok(&["rm", "n:kv"]);
    let ended = watch.end();
    assert_eq!((ended.code, ended.error()["status"].as_str()), (3, Some("Removed")));
}

#[test]
fn it_renews_nothing_and_tells_of_a_lease_that_ended() {
    let home = Home::with_cluster();
    let (address, token) = home.place();
    let bytes = (0..token.len()).step_by(2).map(|i| u8::from_str_radix(&token[i..i + 2], 16));
    let token = bytes.map(Result::unwrap).collect::<Vec<_>>();
    let cluster = Client::new(ClientOptions::new(address.clone(), token));
    let ticket = cluster.register_job("short", LEASE_MS, 0).unwrap();
    let client = Client::new(ClientOptions::new(address, ticket.token.clone()));
    let options = PrefixOptions { lease_ms: 500, ..PrefixOptions::default() };
    client.create_prefix(ticket.job, "brief", &[], options).unwrap();
    client.keep(ticket.job, &["brief".to_owned()]);
    client.create_kv(ticket.job, "brief:kv", 1, false).unwrap();
    client.create_queue(ticket.job, "brief:q", 0, 0, false).unwrap();
    let short = ["--job", "short"];
    let store = watching(&home, &[&["brief:kv"][..], &short].concat());
    let queue = watching(&home, &[&["brief:q"][..], &short].concat());
    client.release(ticket.job, &["brief".to_owned()]);
    for watch in [store, queue] {
        let ended = watch.end();
        let error = ended.error();
        assert_eq!((ended.code, error["status"].as_str()), (6, Some("LeaseExpired")), "{error}");
    }
}

#[test]
fn cat_follows_a_file_to_its_seal() {
    let home = Home::with_cluster();
    home.feed(&["append", "l"], b"first\n");
    let mut follower = home.spawn(&["cat", "l", "--follow", "--wait", "60"]);
    let mut late = home.spawn(&["cat", "l", "-f", "--offset", "6", "--length", "12"]);
    assert_eq!(follower.line(), "first");
    for i in 0..10 {
        home.feed(&["append", "l"], format!("line {i}\n").as_bytes());
        assert_eq!(follower.line(), format!("line {i}"));
    }
    assert_eq!(late.line(), "line 0");
    let part = late.end();
    assert_eq!((part.code, part.out.as_str()), (0, "line "), "--length ends it");
    // Over several blocks, then the seal, which it has to see after them.
    let large = "x".repeat(200_000);
    home.feed(&["append", "l", "--seal"], large.as_bytes());
    let ended = follower.end();
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    assert!(ended.out == large, "{} bytes", ended.out.len());
    // A file that is sealed is printed, and that is all.
    let whole = home.ok(&["cat", "l", "--follow"]);
    assert!(whole.starts_with("first\nline 0\n") && whole.ends_with(&large));
    assert_eq!(home.ok(&["cat", "l", "--follow", "--offset", "1GiB"]), "");
}

#[test]
fn cat_tells_when_the_seal_does_not_come() {
    let home = Home::with_cluster();
    home.feed(&["append", "l"], b"bytes");
    let late = home.run(&["cat", "l", "--follow", "--wait", "0.01"]);
    assert_eq!((late.code, late.out.as_str()), (5, "bytes"));
    assert!(late.err.contains("l was not sealed within 0.01 s"), "{}", late.err);
    assert_eq!(home.ok(&["cat", "l", "--follow", "--length", "5"]), "bytes");
    assert_eq!(home.run(&["cat", "l", "--wait", "1"]).code, 2);
    assert_eq!(home.run(&["cat", "l", "--follow", "--json"]).code, 2);
    let mut follower = home.spawn(&["cat", "l", "--follow"]);
    let mut piece = String::new();
    while piece.len() < 5 {
        piece.push_str(&follower.some());
    }
    home.ok(&["rm", "l"]);
    let ended = follower.end();
    assert_eq!(ended.code, 3, "{}", ended.err);
}
