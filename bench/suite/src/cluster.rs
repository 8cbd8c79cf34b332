//! The cluster of a benchmark, in a child process that ends with this one.

use super::process::{Pinning, Watched};
use super::{Common, Pool, Transport, Waiting};
use honeycomb::ClusterFile;
use honeycomb::unhex;
use honeycomb_client::{Client, ClientOptions, JobTicket};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

/// Lease of a benchmark's jobs: longer than any run.
const LEASE_MS: u32 = 24 * 3600 * 1000;

/// A running cluster. Dropping it ends it.
pub struct Cluster {
    child: Child,
    file: ClusterFile,
    token: Vec<u8>,
    waiting: Waiting,
    transport: Transport,
}

impl Cluster {
    /// Starts `honeycomb start --embedded` on the server's core; the caller then runs on the client's core.
    pub(super) fn start(
        common: &Common,
        pool: Pool,
        waiting: Waiting,
        pinning: Pinning,
    ) -> Result<Cluster, String> {
        Cluster::over(common.transport, common.shards, pool, waiting, pinning)
    }

    /// Like `over`, with TCP.
    pub fn on(
        shards: u8,
        pool: Pool,
        waiting: Waiting,
        pinning: Pinning,
    ) -> Result<Cluster, String> {
        Cluster::over(Transport::Tcp, shards, pool, waiting, pinning)
    }

    /// Starts `start --embedded` of this program with this number of serving cores, on the server's core; the
    /// caller then runs on the client's core. Clients use this transport.
    pub fn over(
        transport: Transport,
        shards: u8,
        pool: Pool,
        waiting: Waiting,
        pinning: Pinning,
    ) -> Result<Cluster, String> {
        Cluster::with(transport, shards, pool, waiting, pinning, &[])
    }

    /// The same, with additional arguments for `start`.
    pub fn with(
        transport: Transport,
        shards: u8,
        pool: Pool,
        waiting: Waiting,
        pinning: Pinning,
        more: &[String],
    ) -> Result<Cluster, String> {
        let mut command = crate::product()?;
        // --force: only written memory becomes resident, so the benchmark decides the size, not the machine.
        command.args(["start", "--embedded", "--force", "--json"]);
        for (flag, value) in [
            ("--memory", pool.memory.to_string()),
            ("--block-size", pool.block_size.to_string()),
            ("--shards", shards.to_string()),
            ("--spin-us", waiting.spin().as_micros().to_string()),
        ] {
            command.arg(flag).arg(value);
        }
        command.arg(format!("--unix={}", transport == Transport::Unix));
        command.args(more);
        pinning.for_server();
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        pinning.for_client();
        let mut child = child.map_err(|e| format!("cannot start a cluster: {e}"))?;
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).map_err(|e| e.to_string())?;
        let Ok(file) = serde_json::from_str::<ClusterFile>(&line) else {
            let _ = child.wait();
            // The child has printed the reason to standard error.
            return Err("the cluster did not start".into());
        };
        let token = unhex(&file.token)?;
        Ok(Cluster { child, file, token, waiting, transport })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The thread that runs the catalog.
    pub fn controller_thread(&self) -> Watched {
        Watched { pid: self.pid(), thread: Some("controller") }
    }

    /// host:port of the controller.
    pub fn address(&self) -> &str {
        &self.file.address
    }

    /// The cluster's token.
    pub fn token(&self) -> &[u8] {
        &self.token
    }

    /// A client with a token, which polls or sleeps like the cluster.
    pub fn client(&self, token: &[u8]) -> Client {
        Client::new(self.options(token))
    }

    /// A client with this timeout.
    pub fn client_within(&self, token: &[u8], timeout: Duration) -> Client {
        Client::new(ClientOptions { timeout, ..self.options(token) })
    }

    fn options(&self, token: &[u8]) -> ClientOptions {
        let mut options = ClientOptions::new(self.address(), token);
        options.spin = self.waiting.spin();
        options.unix = self.transport == Transport::Unix;
        options
    }

    /// A job and a client with its token.
    pub fn job(&self, name: &str) -> Result<(Client, JobTicket), String> {
        let ticket = self.client(&self.token).register_job(name, LEASE_MS, 0);
        let ticket = ticket.map_err(|e| e.to_string())?;
        Ok((self.client(&ticket.token), ticket))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // An embedded cluster ends when its standard input closes.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
