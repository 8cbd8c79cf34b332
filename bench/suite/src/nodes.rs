//! A controller and a memory server as separate processes, which end with the benchmark.
//!
//! Unlike an embedded cluster, they may write a log, and the controller may have several shards.

use super::process::{Pinning, Watched};
use super::{Pool, Waiting};
use honeycomb::unhex;
use honeycomb_client::{Client, ClientOptions, JobTicket};
use honeycomb_env::Entropy;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// Lease of a benchmark's jobs: longer than any run.
const LEASE_MS: u32 = 24 * 3600 * 1000;

/// A folder of the benchmark, removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    /// A path that does not exist yet, in the system's temporary directory or `within` another folder.
    pub fn new(within: Option<&Path>) -> Folder {
        let unique = Entropy::system().next_u64();
        let within = within.map_or_else(std::env::temp_dir, Path::to_owned);
        Folder(within.join(format!("honeycomb-bench-{unique:x}")))
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts this program with these arguments; answers the JSON of its first line.
fn node(args: &[String]) -> Result<(Node, Value), String> {
    let mut command = crate::product()?;
    // Standard error is used only if the node does not start.
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|e| format!("cannot start a node: {e}"))?;
    let mut node = Node(child);
    let mut line = String::new();
    let out = node.0.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut line).map_err(|e| e.to_string())?;
    match serde_json::from_str(&line) {
        Ok(told) => Ok((node, told)),
        Err(_) => {
            let mut why = String::new();
            if let Some(mut said) = node.0.stderr.take() {
                let _ = said.read_to_string(&mut why);
            }
            Err(format!("cannot start a node: {why}"))
        }
    }
}

/// A controller and one memory server.
pub struct Nodes {
    /// Ended before the controller, which would report its loss otherwise.
    server: Node,
    controller: Node,
    address: String,
    token: Vec<u8>,
    shards: usize,
}

impl Nodes {
    /// Starts both on the server's core; the caller then runs on the client's core.
    pub fn start(
        pool: Pool,
        waiting: Waiting,
        pinning: Pinning,
        data: Option<&Path>,
        shards: usize,
    ) -> Result<Nodes, String> {
        pinning.for_server();
        let started = Nodes::here(pool, waiting, data, shards);
        pinning.for_client();
        started
    }

    fn here(
        pool: Pool,
        waiting: Waiting,
        data: Option<&Path>,
        shards: usize,
    ) -> Result<Nodes, String> {
        let spin = format!("--spin-us={}", waiting.spin().as_micros());
        let mut args: Vec<String> =
            ["controller", "--json", "--listen=127.0.0.1:0", &spin].map(str::to_owned).into();
        args.push(format!("--controller-shards={shards}"));
        if let Some(data) = data {
            args.push(format!("--data-dir={}", data.display()));
        }
        let (controller, told) = node(&args)?;
        let text = |key: &str| told[key].as_str().unwrap_or_default().to_owned();
        let (address, token) = (text("address"), text("token"));
        let args = [
            "server".to_owned(),
            "--json".to_owned(),
            "--force".to_owned(),
            "--shards=1".to_owned(),
            format!("--controller={address}"),
            format!("--token={token}"),
            format!("--memory={}", pool.memory),
            format!("--block-size={}", pool.block_size),
            spin,
        ];
        let (server, _) = node(&args)?;
        Ok(Nodes { server, controller, address, token: unhex(&token)?, shards })
    }

    /// The thread that runs the catalog, or that of this shard.
    pub fn controller_thread(&self, shard: usize) -> Watched {
        let thread = match (self.shards, shard) {
            (1, _) => "controller",
            (_, 0) => "controller-0",
            _ => "controller-1",
        };
        Watched { pid: self.controller.0.id(), thread: Some(thread) }
    }

    /// Peak resident memory of the controller and of the server, in bytes.
    pub fn peak_resident(&self) -> (u64, u64) {
        let peak = |node: &Node| Watched::process(node.0.id()).peak_resident();
        (peak(&self.controller), peak(&self.server))
    }

    /// host:port of the controller.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A client with the cluster's token.
    pub fn client(&self) -> Client {
        Client::new(ClientOptions::new(self.address(), self.token.clone()))
    }

    /// A job and a client with its token.
    pub fn job(&self, name: &str) -> Result<(Client, JobTicket), String> {
        let ticket = self.client().register_job(name, LEASE_MS, 0).map_err(|e| e.to_string())?;
        Ok((Client::new(ClientOptions::new(self.address(), ticket.token.clone())), ticket))
    }
}
