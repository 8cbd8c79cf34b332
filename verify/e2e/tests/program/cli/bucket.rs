//! `bucket`: objects by name, with Pocket's flags.

use super::home::Home;
use serde_json::{Value, json};

/// One JSON object a line.
fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn code(home: &Home, args: &[&str]) -> (i32, String) {
    let ran = home.run(&[&["bucket"], args, &["--json"]].concat());
    assert_eq!(ran.out, "", "{args:?}");
    (ran.code, ran.error()["status"].as_str().unwrap().to_owned())
}

fn is(code: i32, status: &str) -> (i32, String) {
    (code, status.to_owned())
}

#[test]
fn objects_are_put_listed_read_and_deleted() {
    let home = Home::with_cluster();
    let bucket = |args: &[&str]| home.json(&[&["bucket"], args].concat());
    assert_eq!(
        bucket(&["put", "runs/1", "part-0", "hello"]),
        json!({ "bucket": "runs/1", "object": "part-0", "bytes": 5, "replaced": false })
    );
    assert_eq!(bucket(&["put", "runs/1", "part-0", "hallo"])["replaced"], true);
    assert_eq!(home.feed(&["bucket", "put", "runs/1", "part-1", "-"], b"from input\n").code, 0);
    home.write("some file", [0, 255, 10]);
    assert_eq!(bucket(&["put", "runs/1", "other", "--file", "some file"])["bytes"], 3);
    assert_eq!(home.ok(&["bucket", "get", "runs/1", "part-0"]), "hallo");
    assert_eq!(bucket(&["get", "runs/1", "other"])["data_hex"], "00ff0a");
    // The same objects as of any store: this is where Python looks.
    assert_eq!(home.ok(&["get", "runs/1:objects", "part-0"]), "hallo");
    home.ok(&["put", "runs/1:objects", "by put", "x"]);
    assert_eq!(bucket(&["exists", "runs/1", "by put"])["bytes"], 1);
    let mut all: Vec<Value> = lines(&home.ok(&["bucket", "list", "runs/1", "--json"]));
    all.sort_by_key(|one| one["object"].as_str().unwrap().to_owned());
    let names = ["by put", "other", "part-0", "part-1"];
    assert_eq!(all, names.map(|name| json!({ "object": name })));
    let some = home.ok(&["bucket", "list", "runs/1", "--prefix", "part-"]);
    assert_eq!(some.lines().count(), 2, "{some}");
    // Of prefixes only those with objects are buckets.
    home.ok(&["put", "plain:kv", "k", "v"]);
    home.ok(&["bucket", "create", "another"]);
    assert_eq!(home.ok(&["bucket", "list"]), "another\nruns/1\n");
    assert_eq!(code(&home, &["exists", "runs/1", "none"]), is(3, "KeyNotFound"));
    assert_eq!(code(&home, &["get", "runs/1", "none"]), is(3, "KeyNotFound"));
    assert_eq!(code(&home, &["get", "nowhere", "none"]), is(3, "NotFound"));
    assert_eq!(code(&home, &["delete", "plain", "--all"]), is(3, "NotFound"));
    assert_eq!(code(&home, &["create", "runs/1"]), is(8, "AlreadyExists"));
    assert_eq!(code(&home, &["create", "runs/1", "--if-exists", "fail"]), is(8, "AlreadyExists"));
    assert_eq!(bucket(&["create", "runs/1", "--if-exists", "open"])["created"], false);
    assert_eq!(code(&home, &["put", "", "x", "y"]), is(2, "Usage"));
    assert_eq!(code(&home, &["put", "runs/1", "", "y"]), is(2, "Usage"));
    assert_eq!(code(&home, &["delete", "runs/1"]), is(2, "Usage"));
    // All objects are tried, and the missing one is reported.
    let deleted = home.run(&["bucket", "delete", "runs/1", "part-0", "none", "other", "--json"]);
    assert_eq!((deleted.code, deleted.error()["status"].as_str()), (3, Some("KeyNotFound")));
    assert_eq!(deleted.json()["deleted"], json!(["part-0", "other"]));
    assert_eq!(
        bucket(&["delete", "runs/1", "--all"]),
        json!({ "bucket": "runs/1", "removed": true })
    );
    assert_eq!(home.ok(&["bucket", "list"]), "another\n");
    assert_eq!(home.json(&["status"])["structures"], 2, "its memory is free");
}

#[test]
fn bucket_that_exists_is_refused_opened_or_replaced_as_if_exists_says() {
    let home = Home::with_cluster();
    let create = |how: &str| home.json(&["bucket", "create", "b", "--if-exists", how]);
    for how in ["fail", "open", "replace"] {
        assert_eq!(create(how)["created"], true, "{how} creates a missing bucket");
        home.ok(&["bucket", "put", "b", "x", "1"]);
        home.ok(&["bucket", "delete", "b", "--all"]);
    }
    create("fail");
    home.ok(&["bucket", "put", "b", "x", "1"]);
    let refused = ["create", "b", "--if-exists", "fail"];
    assert_eq!(code(&home, &refused), is(8, "AlreadyExists"));
    assert_eq!(create("open")["created"], false);
    assert_eq!(home.ok(&["bucket", "get", "b", "x"]), "1", "an opened bucket keeps its objects");
    assert_eq!(create("replace")["created"], true);
    assert_eq!(code(&home, &["get", "b", "x"]), is(3, "KeyNotFound"));
    // A prefix without objects is no bucket: replacing one must not remove it.
    home.ok(&["put", "plain:kv", "k", "v"]);
    let replaced = ["create", "plain", "--if-exists", "replace"];
    assert_eq!(code(&home, &replaced), is(8, "AlreadyExists"));
    assert_eq!(home.ok(&["get", "plain:kv", "k"]), "v");
    // One way to say it.
    assert_eq!(code(&home, &["create", "b", "--exist-ok"]), is(2, "Usage"));
    assert_eq!(code(&home, &["create", "b", "--if-exists", "keep"]), is(2, "Usage"));
}

#[test]
fn an_object_that_is_deleted_by_its_read_is_read_once() {
    let home = Home::with_cluster();
    home.ok(&["bucket", "put", "once", "small", "x"]);
    assert_eq!(home.json(&["bucket", "get", "once", "small", "--delete"])["deleted"], true);
    assert_eq!(code(&home, &["get", "once", "small", "--delete"]), is(3, "KeyNotFound"));
    // One of several blocks, into a file.
    let large: Vec<u8> = (0..100_000u64).map(|n| (n * n % 251) as u8).collect();
    home.write("large", &large);
    home.ok(&["bucket", "put", "once", "large", "--file", "large"]);
    let told = home.json(&["bucket", "get", "once", "large", "--delete", "--file", "copy"]);
    assert_eq!((&told["bytes"], &told["file"]), (&json!(large.len()), &json!("copy")));
    assert!(std::fs::read(home.dir.join("copy")).unwrap() == large, "other bytes");
    assert_eq!(home.ok(&["bucket", "list", "once"]), "");
    // An object that cannot be written to the file is put back.
    home.ok(&["bucket", "put", "once", "kept", "y"]);
    let refused = home.run(&["bucket", "get", "once", "kept", "--delete", "--file", "no/such/dir"]);
    assert_eq!((refused.code, refused.out.as_str()), (1, ""));
    assert_eq!(home.ok(&["bucket", "get", "once", "kept"]), "y");
    // Nothing half written is left beside it.
    let left = std::fs::read_dir(&home.dir).unwrap().flatten();
    assert!(left.map(|e| e.file_name()).all(|name| !name.to_string_lossy().starts_with(".copy")));
}

#[test]
fn a_bucket_that_persists_is_there_in_a_later_job_of_its_name() {
    let home = Home::new();
    std::fs::create_dir(home.dir.join("disk")).unwrap();
    let root = home.dir.join("disk").to_str().unwrap().to_owned();
    let home = home.started(&["--flush-root", &root]);
    home.ok(&["bucket", "put", "plain", "a", "1"]);
    // It was made to end with its job.
    assert_eq!(code(&home, &["put", "plain", "b", "2", "--persist"]), is(8, "AlreadyExists"));
    assert_eq!(home.ok(&["bucket", "list", "plain"]), "a\n");
    home.ok(&["bucket", "put", "kept", "a", "1", "--persist"]);
    home.ok(&["bucket", "put", "kept", "b", "2", "--persist"]);
    let (address, token) = home.place();
    let token = honeycomb::unhex(&token).unwrap();
    let client =
        honeycomb_client::Client::new(honeycomb_client::ClientOptions::new(&*address, token));
    let job = client.find_job("cli").unwrap();
    client.deregister_job(job.job).unwrap();
    let loaded = home.json(&["bucket", "load", "kept"]);
    assert_eq!((&loaded["bucket"], &loaded["objects"]), (&json!("kept"), &json!(2)));
    assert_eq!(home.ok(&["bucket", "get", "kept", "b"]), "2");
    assert_eq!(home.ok(&["bucket", "list"]), "kept\n");
    assert_eq!(code(&home, &["load", "plain"]), is(3, "NotFound"));
}
