//! Asynchronous code stays in this crate (ADR 0024): no other crate names a runtime or an HTTP
//! client.

use std::path::Path;

#[test]
fn no_other_crate_names_a_runtime_or_a_client_of_stores() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let crates = std::fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let others = ["python", "verify", "examples/log-structure", "examples/log-server"];
    let mut seen = 0;
    for folder in crates.chain(others.map(|other| root.join(other))) {
        let text = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let named: Vec<&str> = ["tokio", "hyper", "reqwest", "rustls", "object_store", "futures"]
            .into_iter()
            .filter(|name| text.lines().any(|line| line.starts_with(name)))
            .collect();
        match folder.ends_with("tiers") {
            true => assert!(named.contains(&"tokio"), "this test looks at the right lines"),
            false => assert!(named.is_empty(), "{} names {named:?}", folder.display()),
        }
        seen += 1;
    }
    assert!(seen > 15);
}
