//! `readers`, `commit`, and their output in `lease`.

use super::home::Home;
use serde_json::json;

#[test]
fn the_last_declared_reader_frees_what_it_read() {
    let home = Home::with_cluster();
    for address in ["map/part", "reduce-0", "reduce-1"] {
        assert_eq!(home.feed(&["append", address], b"bytes").code, 0);
    }
    assert_eq!(home.json(&["lease", "map/part"])["readers_left"], 0);
    let declared = home.json(&["readers", "map/part", "reduce-0", "reduce-1"]);
    assert_eq!(declared, json!({ "address": "map/part", "readers_left": 2 }));
    let lease = home.ok(&["lease", "map/part"]);
    assert!(lease.ends_with(" left, freed by 2 readers\n"), "{lease}");
    assert_eq!(home.json(&["commit", "reduce-0"])["freed"], 0);
    assert_eq!(home.json(&["lease", "map/part"])["readers_left"], 1);
    let committed = home.json(&["lease", "reduce-0"]);
    assert_eq!((&committed["committed"], &committed["readers_left"]), (&json!(true), &json!(0)));
    assert_eq!(home.ok(&["cat", "map/part"]), "bytes");
    assert_eq!(home.ok(&["commit", "reduce-1"]), "committed reduce-1; 1 prefix was freed\n");
    let gone = home.run(&["cat", "map/part", "--json"]);
    assert_eq!((gone.code, gone.error()["status"].as_str()), (3, Some("Removed")));
    assert_eq!(home.json(&["commit", "reduce-1"])["freed"], 0, "said again, none");
}

#[test]
fn readers_can_be_replaced_and_have_to_exist() {
    let home = Home::with_cluster();
    for address in ["data", "a", "b"] {
        assert_eq!(home.feed(&["append", address], b"bytes").code, 0);
    }
    assert_eq!(home.json(&["readers", "data", "a"])["readers_left"], 1);
    assert_eq!(home.json(&["readers", "data", "b", "--replace"])["readers_left"], 1);
    assert_eq!(home.json(&["commit", "a"])["freed"], 0);
    assert_eq!(home.json(&["readers", "data", "--replace"])["readers_left"], 0);
    assert_eq!(home.json(&["commit", "b"])["freed"], 0);
    assert_eq!(home.ok(&["cat", "data"]), "bytes");
    assert_eq!(home.run(&["readers", "data", "none"]).code, 3);
    assert_eq!(home.run(&["commit", "none"]).code, 3);
    assert_eq!(home.run(&["readers", "data"]).code, 2);
}
