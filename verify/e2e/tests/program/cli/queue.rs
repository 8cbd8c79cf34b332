//! `queue`: items across processes, waits, the end of a queue, exit codes.

use super::home::Home;
use serde_json::json;

#[test]
fn items_come_out_as_they_went_in() {
    let home = Home::with_cluster();
    let told = home.json(&["queue", "put", "w:q", "first", "", "third"]);
    assert_eq!(told, json!({ "address": "w:q", "items": 3, "bytes": 10 }));
    assert_eq!(home.ok(&["queue", "peek", "w:q", "-n", "9"]), "first\n\nthird\n");
    assert_eq!(home.ok(&["queue", "get", "w:q"]), "first\n");
    assert_eq!(home.ok(&["queue", "get", "w:q", "-n", "2"]), "\nthird\n");
    for put in [vec!["queue", "put", "w:q"], vec!["queue", "put", "w:q", "-"]] {
        assert_eq!(home.feed(&put, b"a\n\nb\r\nlast").code, 0);
        let taken = home.ok(&["queue", "get", "w:q", "--all", "--wait", "0", "--hex"]);
        assert_eq!(taken, "61\n\n620d\n6c617374\n");
    }
    assert_eq!(home.feed(&["queue", "put", "w:q", "--null"], b"a\nb\0\xff\0").code, 0);
    let mut null = home.command(&["queue", "get", "w:q", "-n", "2", "-0"]);
    assert_eq!(null.output().unwrap().stdout, b"a\nb\0\xff\0");
    home.write("logo", [0, 255, 10]);
    home.ok(&["queue", "put", "w:q", "--whole", "--file", "logo"]);
    home.ok(&["queue", "put", "w:q", "--file", "logo"]);
    assert_eq!(home.feed(&["queue", "put", "w:q", "--whole"], b"").code, 0);
    let lines = home.ok(&["queue", "peek", "w:q", "-n", "3", "--json"]);
    assert_eq!(lines, "{\"item_hex\":\"00ff0a\"}\n{\"item_hex\":\"00ff\"}\n{\"item\":\"\"}\n");
    let mut raw = home.command(&["queue", "get", "w:q", "-n", "3", "--raw"]);
    assert_eq!(raw.output().unwrap().stdout, [0, 255, 10, 0, 255]);
    let nothing = home.feed(&["queue", "put", "w:q", "--json"], b"");
    assert_eq!((nothing.code, nothing.json()["items"].clone()), (0, json!(0)));
}

#[test]
fn many_items_go_through_many_blocks_in_order() {
    let home = Home::with_cluster();
    let lines: String = (0..50_000).map(|i| format!("item {i}\n")).collect();
    assert_eq!(home.feed(&["queue", "put", "w:q"], lines.as_bytes()).code, 0);
    assert_eq!(home.json(&["queue", "len", "w:q"])["items"], 50_000);
    let first = home.ok(&["queue", "get", "w:q", "-n", "10000"]);
    home.ok(&["queue", "close", "w:q"]);
    assert!(first + &home.ok(&["queue", "get", "w:q", "--all"]) == lines);
}

#[test]
fn a_get_that_waits_is_woken_by_the_put_of_another_process() {
    let home = Home::with_cluster();
    home.ok(&["queue", "put", "w:q", "0"]);
    let mut taker = home.spawn(&["queue", "get", "w:q", "--all", "--wait", "60"]);
    assert_eq!(taker.line(), "0");
    // It has to wait for each of these: it has printed all that was put before.
    for i in 1..20 {
        home.ok(&["queue", "put", "w:q", &i.to_string()]);
        assert_eq!(taker.line(), i.to_string());
    }
    home.ok(&["queue", "close", "w:q"]);
    let ended = taker.end();
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (0, "", ""));
}

#[test]
fn each_item_goes_to_one_of_many_takers() {
    let home = Home::with_cluster();
    home.ok(&["queue", "put", "w:q", "0"]);
    let takers: Vec<_> = (0..3).map(|_| home.spawn(&["queue", "get", "w:q", "--follow"])).collect();
    let puts: Vec<_> = (0..3)
        .map(|p| {
            let mut put = home.spawn(&["queue", "put", "w:q"]);
            put.write((0..500).map(|i| format!("{p}/{i}\n")).collect::<String>().as_bytes());
            put
        })
        .collect();
    for put in puts {
        assert_eq!(put.end().code, 0);
    }
    home.ok(&["queue", "close", "w:q"]);
    let taken: Vec<String> = takers.into_iter().map(|taker| taker.end().out).collect();
    let mut all: Vec<&str> = taken.iter().flat_map(|out| out.lines()).collect();
    for out in &taken {
        // Of one producer, a taker gets its items in their order.
        for p in 0..3 {
            let of_one = out.lines().filter_map(|item| item.strip_prefix(&format!("{p}/")));
            let of_one: Vec<u32> = of_one.map(|i| i.parse().unwrap()).collect();
            assert!(of_one.is_sorted(), "{of_one:?}");
        }
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 1501, "none is lost, none came twice");
    assert_eq!(taken.iter().map(|out| out.lines().count()).sum::<usize>(), 1501);
}

#[test]
fn a_put_waits_for_room_and_tells_how_far_it_came() {
    let home = Home::with_cluster();
    home.ok(&["queue", "put", "w:q", "a", "b", "--max-items", "2", "--max-bytes", "1KiB"]);
    let full = home.run(&["queue", "put", "w:q", "c", "--wait", "0", "--json"]);
    assert_eq!((full.code, full.error()["status"].as_str()), (7, Some("QueueFull")));
    let put = home.spawn(&["queue", "put", "w:q", "c", "d", "e", "--wait", "60"]);
    assert_eq!(home.ok(&["queue", "get", "w:q", "-n", "5", "--wait", "60"]), "a\nb\nc\nd\ne\n");
    assert_eq!(put.end().code, 0);
    let partly = home.run(&["queue", "put", "w:q", "f", "g", "h", "--wait", "0.01"]);
    assert_eq!(partly.code, 7);
    assert!(partly.err.ends_with("; 2 items were put before\n"), "{}", partly.err);
    let waits = home.spawn(&["queue", "put", "w:q", "h", "--wait", "60"]);
    home.ok(&["queue", "close", "w:q"]);
    assert_eq!(waits.end().code, 8, "closing ends the wait");
    let told = home.json(&["queue", "len", "w:q"]);
    let wanted = json!({
        "address": "w:q", "items": 2, "bytes": 2, "reserved": 0, "closed": true, "max_items": 2,
        "max_bytes": 1024,
    });
    assert_eq!(told, wanted);
    let text = home.ok(&["queue", "len", "w:q"]);
    assert_eq!(text, "2 items, 2 B, closed, at most 2 items, at most 1.0 KiB\n");
}

#[test]
fn the_lines_of_a_slow_writer_are_put_as_they_come() {
    let home = Home::with_cluster();
    let mut put = home.spawn(&["queue", "put", "w:q", "-", "--json"]);
    // The first line creates the queue; a get before that would fail.
    put.write(b"one\n");
    while home.run(&["queue", "len", "w:q"]).code == 3 {}
    assert_eq!(home.ok(&["queue", "get", "w:q", "--wait", "60"]), "one\n");
    put.write(b"two\nthr");
    assert_eq!(home.ok(&["queue", "get", "w:q", "--wait", "60"]), "two\n");
    put.write(b"ee");
    let ended = put.end();
    assert_eq!((ended.code, ended.json()["items"].clone()), (0, json!(3)));
    assert_eq!(home.ok(&["queue", "get", "w:q"]), "three\n");
}

#[test]
fn what_cannot_be_done_has_its_exit_code() {
    let home = Home::with_cluster();
    home.ok(&["queue", "put", "w:q", "a"]);
    home.ok(&["put", "w:kv", "k", "v"]);
    let codes = |args: &[&str]| {
        let ran = home.run(&[args, &["--json"]].concat());
        assert_eq!(ran.out, "", "{args:?}");
        (ran.code, ran.error()["status"].as_str().unwrap().to_owned())
    };
    let is = |code, status: &str| (code, status.to_owned());
    assert_eq!(home.ok(&["queue", "get", "w:q", "-n", "5", "--wait", "0"]), "a\n", "some came");
    assert_eq!(codes(&["queue", "get", "w:q", "--wait", "0"]), is(3, "QueueEmpty"));
    assert_eq!(codes(&["queue", "get", "w:q", "--all", "--wait", "0.01"]), is(3, "QueueEmpty"));
    assert_eq!(codes(&["queue", "peek", "w:q"]), is(3, "QueueEmpty"));
    for what in ["get", "peek", "len", "close"] {
        assert_eq!(codes(&["queue", what, "w:none"]), is(3, "NotFound"), "{what}");
        assert_eq!(codes(&["queue", what, "w:kv"]), is(8, "WrongKind"), "{what}");
    }
    assert_eq!(codes(&["queue", "put", "w:kv", "a"]), is(8, "WrongKind"));
    home.ok(&["queue", "close", "w:q"]);
    home.ok(&["queue", "close", "w:q"]);
    assert_eq!(codes(&["queue", "put", "w:q", "b"]), is(8, "QueueClosed"));
    assert_eq!(codes(&["queue", "get", "w:q"]), is(8, "QueueClosed"));
    assert_eq!(codes(&["queue", "peek", "w:q"]), is(8, "QueueClosed"));
    assert_eq!(home.ok(&["queue", "get", "w:q", "--all"]), "");
    assert_eq!(codes(&["queue", "put", "w:q", "a", "-"]), is(2, "InvalidArgument"));
    assert_eq!(codes(&["queue", "put", "w:q", "a", "--null"]), is(2, "InvalidArgument"));
    assert_eq!(codes(&["queue", "put", "w:q", "--wait", "soon"]), is(2, "Usage"));
    assert_eq!(codes(&["queue", "put", "w:q", "--max-items", "0"]), is(2, "Usage"));
    assert_eq!(codes(&["queue", "put", "w:new", "--file", "no such file"]), is(1, "Failed"));
    assert_eq!(codes(&["queue", "len", "w:new"]), is(3, "NotFound"), "nothing was created for it");
}

#[test]
fn bounds_are_of_the_creation_and_an_item_has_a_limit() {
    let home = Home::with_cluster();
    home.ok(&["queue", "put", "w:q", "a", "--max-items", "5"]);
    home.ok(&["queue", "put", "w:q", "a", "--max-items", "5"]);
    for (flag, value, told) in
        [("--max-items", "6", "max_items=5"), ("--max-bytes", "1MiB", "max_bytes=0")]
    {
        let other = home.run(&["queue", "put", "w:q", "b", flag, value, "--json"]);
        let error = other.error();
        assert_eq!((other.code, error["status"].as_str()), (8, Some("AlreadyExists")));
        assert!(error["message"].as_str().unwrap().contains(told), "{error}");
    }
    // More than the memory of the cluster.
    let input = [b"small\n", &vec![b'x'; (64 << 20) + 1][..], b"\nnever\n"].concat();
    let large = home.feed(&["queue", "put", "w:r", "--json"], &input);
    assert_eq!((large.code, large.error()["status"].as_str()), (7, Some("ValueTooLarge")));
    let message = large.error()["message"].to_string();
    assert!(message.contains("67108865 bytes") && message.contains("1 item was put"), "{message}");
    assert_eq!(home.ok(&["queue", "get", "w:r", "--all", "--wait", "0"]), "small\n");
}

#[test]
fn a_queue_that_goes_ends_the_wait_with_the_reason() {
    let home = Home::with_cluster();
    home.ok(&["queue", "put", "w:q", "a"]);
    let mut taker = home.spawn(&["queue", "get", "w:q", "--all", "--json"]);
    assert_eq!(taker.line(), "{\"item\":\"a\"}");
    home.ok(&["rm", "w:q"]);
    let ended = taker.end();
    assert_eq!((ended.code, ended.error()["status"].as_str()), (3, Some("Removed")));
}

#[test]
fn listings_know_queues() {
    let home = Home::with_cluster();
    home.ok(&["queue", "put", "w:q", "a"]);
    home.ok(&["queue", "put", "w:done", "a"]);
    home.ok(&["queue", "close", "w:done"]);
    let listed = home.json(&["ls", "w"]);
    let kinds: Vec<&str> = listed["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["queue", "queue"]);
    let long = home.ok(&["ls", "-l", "w"]);
    let tree = home.ok(&["tree"]);
    for (text, name, ended) in [(&long, "w:done", "(closed)"), (&tree, ": done", ", closed")] {
        let line = text.lines().find(|line| line.contains(name)).unwrap();
        assert!(line.contains("queue") && line.ends_with(ended), "{text}");
        assert_eq!(text.matches("closed").count(), 1, "{text}");
    }
    assert_eq!(home.json(&["du", "w"])["structures"], 2);
    assert_eq!(home.json(&["status"])["structures"], 2);
}
