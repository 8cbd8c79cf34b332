//! The program with the log as a process, used through the generic client.

use super::{append, scan, stats, trim};
use honeycomb_client::{Client, ClientOptions, CustomOptions};
use honeycomb_e2e::eventually;
use honeycomb_wire::messages::PrefixOptions;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// `honeycomb-with-log start --embedded`. It ends when its standard input closes.
struct Running {
    child: Child,
    address: String,
    token: Vec<u8>,
}

impl Running {
    fn start() -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_honeycomb-with-log"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HONEYCOMB_") {
                command.env_remove(name);
            }
        }
        let size = ["--memory", "8MiB", "--block-size", "64KiB", "--shards", "2"];
        command.args(["start", "--embedded", "--json"]).args(size);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).unwrap();
        let hex = told["token"].as_str().unwrap();
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let token = (0..hex.len()).step_by(2).map(byte).collect();
        Running { child, address: told["address"].as_str().unwrap().into(), token }
    }

    fn client(&self, token: &[u8]) -> Client {
        Client::new(ClientOptions::new(self.address.clone(), token))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let ended = self.child.wait();
        if !std::thread::panicking() {
            assert!(ended.unwrap().success());
        }
    }
}

#[test]
fn the_program_serves_the_log_beside_everything_else() {
    let running = Running::start();
    let cluster = running.client(&running.token);
    let job = cluster.register_job("log", 60_000, 0).unwrap();
    let client = running.client(&job.token);
    client.create_prefix(job.job, "task", &[], PrefixOptions::default()).unwrap();
    let free = cluster.status().unwrap().free;
    let options = CustomOptions::default();
    let log = client.create_custom(job.job, "task:log", "log", options).unwrap();
    for number in 0..500 {
        assert_eq!(append(&log, b"tag", &[1; 500]), number);
    }
    assert_eq!(scan(&log, 0, b"tag").len(), 500);
    assert!(stats(&log).len() >= 4);
    assert_eq!(trim(&log, 500), 500);
    let kv = client.create_kv(job.job, "task:kv", 1, false).unwrap();
    kv.put(b"k", b"v").unwrap();
    assert!(kv.get(b"k", &mut Vec::new()).unwrap());
    client.deregister_job(job.job).unwrap();
    eventually("all blocks are free", || cluster.status().unwrap().free == free);
}
