//! How the command line finds its cluster.
//!
//! By `--address` and `--token`, by the environment, or by the file that `honeycomb start` leaves
//! where only its user can read it.

use clap::Args;
use honeycomb_client::{Client, ClientOptions, Error, JobTicket};
use honeycomb_wire::Status;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Lease of what the command line creates: a day, because nobody renews it between two commands.
const CLI_LEASE_MS: u32 = 24 * 3600 * 1000;

/// Where the cluster is.
#[derive(Args, Clone)]
pub struct Where {
    /// host:port of the controller (else the cluster that `honeycomb start` left here)
    #[arg(long, env = "HONEYCOMB_ADDRESS", global = true)]
    pub address: Option<String>,
    /// The token, in hexadecimal
    #[arg(long, env = "HONEYCOMB_TOKEN", hide_env_values = true, global = true)]
    pub token: Option<String>,
    /// Seconds after which a command gives up
    #[arg(long, env = "HONEYCOMB_TIMEOUT", default_value_t = 10.0, global = true)]
    pub timeout: f64,
}

/// What `honeycomb start` tells of itself.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct ClusterFile {
    /// host:port of the controller.
    pub address: String,
    /// The cluster's token, in hexadecimal.
    pub token: String,
    /// The process.
    pub pid: i32,
    /// When it started, in ticks since the machine did: a number that is used again belongs to
    /// another process.
    pub started: u64,
}

/// When a process started, as the kernel says; `None` when there is none.
pub fn started(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold anything; the 20th field after it is the start.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Where the file is.
pub fn file_path() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("HONEYCOMB_CLUSTER_FILE") {
        return Ok(path.into());
    }
    if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR").filter(|v| !v.is_empty()) {
        return Ok(Path::new(&runtime).join("honeycomb/cluster.json"));
    }
    match std::env::var_os("HOME").filter(|v| !v.is_empty()) {
        Some(home) => Ok(Path::new(&home).join(".honeycomb/cluster.json")),
        None => Err("no HOME and no XDG_RUNTIME_DIR: set HONEYCOMB_CLUSTER_FILE".into()),
    }
}

impl ClusterFile {
    /// Writes it so that only its user can read it, in one step.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let failed = |e: std::io::Error| format!("cannot write {}: {e}", path.display());
        let folder = path.parent().ok_or("the cluster file needs a folder")?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        let draft = path.with_extension(format!("{}.tmp", self.pid));
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft)
            .map_err(failed)?;
        let text = serde_json::to_string(self).expect("four plain fields");
        file.write_all(text.as_bytes()).map_err(failed)?;
        fs::rename(&draft, path).map_err(failed)
    }

    /// Reads it; `None` when there is none or its process is gone.
    pub fn read(path: &Path) -> Result<Option<ClusterFile>, String> {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(format!("cannot read {}: {e}", path.display())),
        };
        if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o077 != 0 {
            return Err(format!(
                "{} holds a token and must be yours alone: chmod 600 it, or remove it",
                path.display()
            ));
        }
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let file: ClusterFile = serde_json::from_str(&text)
            .map_err(|e| format!("{} is not a cluster file: {e}", path.display()))?;
        Ok(file.alive().then_some(file))
    }

    /// Whether the very process that wrote it is there.
    pub fn alive(&self) -> bool {
        started(self.pid) == Some(self.started)
    }
}

impl Where {
    /// The address and token that are meant; `None` when none are named and no cluster runs here.
    pub fn find_running(&self) -> Result<Option<(String, Vec<u8>)>, String> {
        if let Some(address) = &self.address {
            let token = self.token.as_deref().ok_or("an address needs a token: --token")?;
            return Ok(Some((address.clone(), unhex(token)?)));
        }
        match ClusterFile::read(&file_path()?)? {
            Some(file) => Ok(Some((file.address.clone(), unhex(&file.token)?))),
            None => Ok(None),
        }
    }

    /// The address and token that are meant.
    pub fn find(&self) -> Result<(String, Vec<u8>), String> {
        self.find_running()?.ok_or_else(|| {
            "no cluster is running here: `honeycomb start --background` starts one, --address and \
             --token name another"
                .into()
        })
    }

    /// A client with the token that is meant.
    pub fn client(&self) -> Result<Client, String> {
        let (address, token) = self.find()?;
        self.client_of(address, token)
    }

    fn client_of(&self, address: String, token: Vec<u8>) -> Result<Client, String> {
        if !(self.timeout > 0.0 && self.timeout < 1e6) {
            return Err("the timeout is a positive number of seconds".into());
        }
        let mut options = ClientOptions::new(address, token);
        options.timeout = Duration::from_secs_f64(self.timeout);
        let client = Client::new(options);
        client.ping().map_err(|e| e.to_string())?;
        Ok(client)
    }

    /// A client with the token of a job, which is registered when `create` says so.
    pub fn job(&self, name: &str, create: bool) -> Result<(Client, JobTicket), String> {
        let (address, token) = self.find()?;
        let cluster = self.client_of(address.clone(), token)?;
        let ticket = match cluster.find_job(name) {
            Err(Error { status: Status::UnknownJob, .. }) if create => {
                eprintln!(
                    "registered the job '{name}' for the command line; what it holds is kept for a \
                     day after it was last used"
                );
                cluster.register_job(name, CLI_LEASE_MS, 0)
            }
            found => found,
        };
        let ticket = ticket.map_err(|e| e.to_string())?;
        let client = self.client_of(address, ticket.token.clone())?;
        Ok((client, ticket))
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Hexadecimal digits as bytes.
pub fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let text = text.trim();
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return Err("the token is not hexadecimal".into());
    }
    (0..text.len() / 2)
        .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16))
        .collect::<Result<_, _>>()
        .map_err(|_| "the token is not hexadecimal".into())
}
