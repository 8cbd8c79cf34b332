//! `doctor`: its findings, its end, and its exit code.

use super::home::{Home, Ran};
use serde_json::Value;
use std::net::TcpListener;

fn finding(ran: &Ran, check: &str) -> Value {
    let told = ran.json();
    let found = told["findings"].as_array().unwrap();
    for f in found {
        let grade = f["grade"].as_str().unwrap();
        assert!(["ok", "warn", "fail"].contains(&grade), "{f}");
        assert_eq!(f["remedy"].is_null(), grade == "ok", "what is not ok has a remedy: {f}");
    }
    let one = found.iter().find(|f| f["check"] == check);
    one.unwrap_or_else(|| panic!("no {check} in {told}")).clone()
}

#[test]
fn a_machine_with_a_cluster_is_well() {
    let home = Home::with_cluster();
    let ran = home.run(&["doctor", "--memory", "64MiB", "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.out);
    for check in
        ["configuration", "cluster", "servers", "loopback", "wake-up", "clock", "cluster file"]
    {
        let found = finding(&ran, check);
        assert_ne!(found["grade"], "fail", "{found}");
    }
    let told = ran.json();
    let checks: Vec<&str> =
        told["findings"].as_array().unwrap().iter().map(|f| f["check"].as_str().unwrap()).collect();
    for check in [
        "port",
        "open files",
        "locked memory",
        "memory",
        "overcommit",
        "swap",
        "huge pages",
        "/dev/shm",
        "cores",
        "python",
        "config folder",
    ] {
        assert!(checks.contains(&check), "no {check}");
    }
    let text = home.run(&["doctor", "--memory", "64MiB"]);
    assert_eq!(text.code, 0);
    assert!(text.out.contains("ok    cluster") && text.out.contains(" 0 failures"), "{}", text.out);
}

#[test]
fn what_is_wrong_is_told_with_a_remedy() {
    let home = Home::new();
    // No cluster is configured: that is not a failure.
    let none = home.run(&["doctor", "--memory", "64MiB", "--json"]);
    assert_eq!((none.code, finding(&none, "cluster")["grade"].as_str()), (0, Some("warn")));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // It listens and never answers: a cluster that hangs does not make the doctor hang.
    let args = ["doctor", "--address", &address, "--token", "00", "--timeout", "0.5", "--json"];
    let silent = home.run(&args);
    assert_eq!((silent.code, finding(&silent, "cluster")["grade"].as_str()), (1, Some("fail")));
    // And the port is taken, by this very process.
    let taken = home.run(&["doctor", "--listen", &address, "--json"]);
    let port = finding(&taken, "port");
    assert_eq!(port["grade"], "warn");
    assert!(port["text"].as_str().unwrap().contains(&std::process::id().to_string()), "{port}");
    drop(listener);
    let gone = home.run(&args);
    assert_eq!(finding(&gone, "cluster")["grade"], "fail");
    let huge = home.run(&["doctor", "--memory", "900TiB", "--json"]);
    assert_eq!((huge.code, finding(&huge, "memory")["grade"].as_str()), (1, Some("fail")));
    let typo = home.with("HONEYCOMB_BLOKSIZE", "1", &["doctor", "--json"]);
    let variable = finding(&typo, "environment");
    assert!(variable["remedy"].as_str().unwrap().contains("HONEYCOMB_BLOCK_SIZE"), "{variable}");
    let broken = home.with("HONEYCOMB_CONFIG", "missing.toml", &["doctor", "--json"]);
    assert_eq!(
        (broken.code, finding(&broken, "configuration")["grade"].as_str()),
        (1, Some("fail"))
    );
}

#[test]
fn server_that_does_not_accept_connections_is_named() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap().to_string();
    let home = Home::new().started(&["--advertise", &address]);
    // The listener accepts: this server is reachable. The report names the server after the listener is
    // closed.
    assert_eq!(home.run(&["doctor", "--memory", "64MiB", "--json"]).code, 0);
    drop(nobody);
    let ran = home.run(&["doctor", "--memory", "64MiB", "--json"]);
    let server = finding(&ran, "server");
    assert_eq!((ran.code, &server["grade"]), (1, &"fail".into()), "{server}");
    let text = server["text"].as_str().unwrap();
    assert!(text.contains(&address) && text.contains("memory server 1"), "{text}");
}
