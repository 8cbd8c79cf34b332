//! `kv`, `put`, `get`, `rm`, `append`, `cat`, and their exit codes.

use super::home::Home;
use serde_json::{Value, json};

#[test]
fn values_come_from_argument_input_or_file_and_go_out_as_they_are() {
    let home = Home::with_cluster();
    home.ok(&["kv", "put", "n:kv", "a", "blue"]);
    assert_eq!(home.ok(&["kv", "get", "n:kv", "a"]), "blue");
    assert_eq!(home.ok(&["get", "n:kv", "a"]), "blue", "the short form");
    for key in [vec!["put", "n:kv", "b", "-"], vec!["put", "n:kv", "b"]] {
        assert_eq!(home.feed(&key, b"from input\n").code, 0);
        assert_eq!(home.ok(&["get", "n:kv", "b", "--raw"]), "from input\n");
    }
    home.write("logo", [0, 255, 10]);
    home.ok(&["kv", "put", "n:kv", "c", "--file", "logo"]);
    assert_eq!(home.ok(&["get", "n:kv", "c", "--hex"]), "00ff0a\n");
    let mut raw = home.command(&["get", "n:kv", "c"]);
    assert_eq!(raw.output().unwrap().stdout, [0, 255, 10]);
    let told = home.json(&["get", "n:kv", "c"]);
    assert_eq!(told, json!({ "address": "n:kv", "bytes": 3, "key": "c", "value_hex": "00ff0a" }));
    assert_eq!(home.json(&["get", "n:kv", "a"])["value"], "blue");
    let missing = home.run(&["kv", "put", "n:kv", "d", "--file", "no such file", "--json"]);
    assert_eq!((missing.code, missing.error()["status"].as_str()), (1, Some("Failed")));
}

#[test]
fn what_is_not_there_or_stands_against_it_has_its_exit_code() {
    let home = Home::with_cluster();
    let codes = |args: &[&str]| {
        let ran = home.run(&[args, &["--json"]].concat());
        assert_eq!(ran.out, "", "{args:?}");
        (ran.code, ran.error()["status"].as_str().unwrap().to_owned())
    };
    let is = |code, status: &str| (code, status.to_owned());
    assert_eq!(codes(&["get", "n:kv", "a"]), is(3, "UnknownJob"));
    home.ok(&["put", "n:kv", "a", "1"]);
    assert_eq!(codes(&["get", "n:kv", "b"]), is(3, "KeyNotFound"));
    assert_eq!(codes(&["get", "n:none", "b"]), is(3, "NotFound"));
    assert_eq!(codes(&["kv", "del", "n:kv", "b"]), is(3, "KeyNotFound"));
    assert_eq!(codes(&["rm", "n:none"]), is(3, "NotFound"));
    assert_eq!(codes(&["cat", "n:kv"]), is(8, "WrongKind"));
    assert_eq!(codes(&["put", "n:kv", "a", "2", "--if-absent"]), is(8, "KeyExists"));
    assert_eq!(home.ok(&["get", "n:kv", "a"]), "1", "it was not replaced");
    home.ok(&["put", "n:kv", "new", "2", "--if-absent"]);
    // More than the memory of the cluster.
    let large = home.feed(&["put", "n:kv", "large", "--json"], &vec![b'x'; (64 << 20) + 1]);
    assert_eq!((large.code, large.error()["status"].as_str()), (7, Some("ValueTooLarge")));
    assert_eq!(codes(&["put", "n:many", "a", "1", "--blocks", "1010"]), is(7, "OutOfMemory"));
    home.ok(&["rm", "--prefix", "n"]);
    assert_eq!(codes(&["get", "n:kv", "a"]), is(3, "Removed"));
    for wrong in ["", "/", "a:", "a//b", "a:b:c"] {
        assert_eq!(codes(&["rm", wrong]), is(2, "Usage"), "{wrong:?}");
    }
    assert_eq!(codes(&["rm", "--prefix", "a:b"]), is(2, "InvalidArgument"));
    assert_eq!(codes(&["put", "n:kv", "xyz", "v", "--key-hex"]), is(2, "InvalidArgument"));
    assert_eq!(codes(&["put", "n:kv"]), is(2, "Usage"));
}

#[test]
fn a_script_without_json_gets_a_sentence() {
    let home = Home::with_cluster();
    home.ok(&["put", "n:kv", "a", "1"]);
    let ran = home.run(&["get", "n:kv", "b"]);
    assert_eq!((ran.code, ran.out.as_str()), (3, ""));
    assert_eq!(ran.err, "honeycomb: KeyNotFound: n:kv has no key 'b'\n");
    let empty = home.run(&["rm", ""]);
    assert!(
        empty.err.contains("the address of a structure is prefix[/prefix...][:name]"),
        "{}",
        empty.err
    );
}

#[test]
fn deleting_tries_all_keys() {
    let home = Home::with_cluster();
    for key in ["a", "b", "c"] {
        home.ok(&["put", "n:kv", key, "1"]);
    }
    let ran = home.run(&["kv", "del", "n:kv", "a", "missing", "b", "--json"]);
    assert_eq!(ran.code, 3);
    assert_eq!(ran.json()["deleted"], json!(["a", "b"]));
    assert_eq!(ran.error()["status"], "KeyNotFound");
    assert_eq!(home.ok(&["kv", "scan", "n:kv"]), "c\t1\n");
    home.ok(&["rm", "n:kv", "c"]);
    assert_eq!(home.ok(&["kv", "scan", "n:kv"]), "");
}

#[test]
fn a_scan_lists_by_prefix_up_to_a_limit_and_is_safe_for_any_bytes() {
    let home = Home::with_cluster();
    for i in 0..20 {
        home.ok(&["put", "n:kv", &format!("user/{i}"), "tab\there"]);
    }
    home.ok(&["put", "n:kv", "00ff", "x", "--key-hex"]);
    let lines = |args: &[&str]| -> Vec<String> {
        let out = home.ok(&[&["kv", "scan", "n:kv"], args].concat());
        out.lines().map(str::to_owned).collect()
    };
    assert_eq!(lines(&[]).len(), 21);
    assert_eq!(lines(&["--prefix", "user/1"]).len(), 11);
    assert_eq!(lines(&["--limit", "7"]).len(), 7);
    assert_eq!(lines(&["--limit", "0"]).len(), 0);
    assert_eq!(lines(&["--prefix", "user/7"]), ["user/7\ttab\\there"]);
    assert_eq!(lines(&["--prefix", "user/7", "--keys-only"]), ["user/7"]);
    assert_eq!(lines(&["--prefix", "user/7", "--raw"]), ["user/7\ttab\there"]);
    assert_eq!(lines(&["--prefix", "00", "--key-hex"]), ["\\x00\\xff\tx"]);
    assert_eq!(lines(&["--prefix", "00", "--key-hex", "--hex"]), ["00ff\t78"]);
    let entry: Value =
        serde_json::from_str(&lines(&["--prefix", "00", "--key-hex", "--json"])[0]).unwrap();
    assert_eq!(entry, json!({ "key_hex": "00ff", "value": "x" }));
    let keys = lines(&["--keys-only", "--json"]);
    let entry: Value = serde_json::from_str(&keys[0]).unwrap();
    assert!(entry.get("value").is_none() && entry.get("value_hex").is_none(), "{entry}");
}

#[test]
fn a_file_is_appended_sealed_and_printed_in_parts() {
    let home = Home::with_cluster();
    home.write("app.log", "one\ntwo\n");
    let told = home.json(&["append", "logs:today", "app.log"]);
    assert_eq!((&told["bytes"], &told["offset"]), (&json!(8), &json!(0)));
    assert_eq!(home.feed(&["append", "logs:today", "-", "--seal"], b"\xff").code, 0);
    let more = home.feed(&["append", "logs:today", "--json"], b"more");
    assert_eq!((more.code, more.error()["status"].as_str()), (8, Some("Sealed")));
    assert_eq!(home.ok(&["cat", "logs:today", "--offset", "4", "--length", "4"]), "two\n");
    let part = home.json(&["cat", "logs:today", "--length", "3"]);
    let wanted = json!({
        "address": "logs:today", "offset": 0, "bytes": 3, "bytes_total": 9, "sealed": true,
        "content": "one",
    });
    assert_eq!(part, wanted);
    assert_eq!(home.json(&["cat", "logs:today", "--offset", "8"])["content_hex"], "ff");
    let past = home.json(&["cat", "logs:today", "--offset", "100"]);
    assert_eq!((&past["bytes"], &past["bytes_total"]), (&json!(0), &json!(9)));
}

#[test]
fn a_prefix_goes_with_all_that_is_below_it() {
    let home = Home::with_cluster();
    for address in ["old:kv", "old/a:kv", "old/a/b:kv", "older:kv"] {
        home.ok(&["put", address, "k", "v"]);
    }
    assert_eq!(home.json(&["rm", "-r", "old"])["prefixes"], 3);
    assert_eq!(home.run(&["get", "old/a/b:kv", "k"]).code, 3);
    assert_eq!(home.ok(&["get", "older:kv", "k"]), "v");
    assert_eq!(home.run(&["rm", "-r", "nix"]).code, 3);
}
