//! How the command line finds its cluster and its job.
//!
//! The cluster comes from the settings `address` and `token`, or from the cluster file of `honeycomb start`,
//! which only its user can read.

use crate::config::{Given, Group, Settings, unhex};
use crate::failure::{CommandResult, Failure};
use crate::output::hex;
use honeycomb_client::{Client, ClientOptions, Error, JobClient, JobOptions};
use honeycomb_env::LockFile;
use honeycomb_types::JobId;
use honeycomb_wire::Status;
use honeycomb_wire::messages::RenewResult;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The lease of jobs that the command line creates: a day, because no renewals arrive between two commands.
const CLI_LEASE_MS: u32 = 24 * 3600 * 1000;

/// The cluster file of `honeycomb start`.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct ClusterFile {
    /// host:port of the controller.
    pub address: String,
    /// The cluster's token, in hexadecimal.
    pub token: String,
    /// Process id.
    pub pid: i32,
    /// Start time of the process, in ticks since the machine booted. It detects a reused process id.
    pub started: u64,
}

/// The start time of a process, from the kernel; `None` when there is no such process, or when it has ended
/// and its exit code has not been collected.
pub fn started(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain any character. The state follows it; the start time is the
    // 20th field after the name.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    fields.nth(18)?.parse().ok().filter(|_| !ended)
}

impl ClusterFile {
    /// Writes it so that only its user can read it, in one step.
    pub fn write(&self, path: &Path) -> CommandResult {
        let failed = |e| Failure::io(format_args!("cannot write {}", path.display()), &e);
        let folder = path.parent().ok_or("the path of the cluster file has no folder")?;
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

    /// Reads it; `None` when there is no file or its process has ended.
    pub fn read(path: &Path) -> CommandResult<Option<ClusterFile>> {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => {
                return Err(Failure::io(format_args!("cannot read {}", path.display()), &e));
            }
        };
        if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o077 != 0 {
            let text = format!(
                "cannot use {}: it contains a token and other users can access it; chmod 600 or \
                 remove it",
                path.display()
            );
            return Err(Failure::new(Status::PermissionDenied, text));
        }
        let text = fs::read_to_string(path).map_err(|e| Failure::io(path.display(), &e))?;
        let file: ClusterFile = serde_json::from_str(&text).map_err(|e| {
            Failure::invalid(format!("{} is not a cluster file: {e}", path.display()))
        })?;
        Ok(file.alive().then_some(file))
    }

    /// Whether the process that wrote it is still running.
    pub fn alive(&self) -> bool {
        started(self.pid) == Some(self.started)
    }

    /// The file of a cluster of this process.
    pub fn of_this_process(address: String, token: &[u8]) -> CommandResult<ClusterFile> {
        let pid = std::process::id() as i32;
        let started =
            started(pid).ok_or("cannot read the start time of this process from /proc")?;
        Ok(ClusterFile { address, token: hex(token), pid, started })
    }

    /// The token's bytes.
    pub fn token(&self) -> CommandResult<Vec<u8>> {
        unhex(&self.token).map_err(|why| Failure::invalid(format!("the cluster file: {why}")))
    }
}

/// The lock of a cluster file; only its holder writes that file. It decides between two clusters that start
/// at the same time, before either has written the file.
pub struct ClusterLock {
    lock: Option<LockFile>,
    path: PathBuf,
}

impl ClusterLock {
    /// Takes it for this process; `AlreadyExists` when another one has it.
    pub fn take(cluster_file: &Path) -> CommandResult<ClusterLock> {
        let path = cluster_file.with_extension("lock");
        let failed = |e| Failure::io(format_args!("cannot lock {}", path.display()), &e);
        let folder = path.parent().ok_or("the path of the cluster file has no folder")?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        match LockFile::take(&path).map_err(failed)? {
            Some(lock) => Ok(ClusterLock { lock: Some(lock), path }),
            None => {
                let text = format!(
                    "another `honeycomb start` is starting or ending a cluster here ({} is \
                     locked); use that cluster, or retry when it has ended",
                    path.display()
                );
                Err(Failure::new(Status::AlreadyExists, text))
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ClusterLock {
    fn drop(&mut self) {
        // If the file remains, it is not locked.
        let _ = self.lock.take().map(LockFile::remove);
    }
}

/// The address and the token of a cluster.
pub struct ClusterPlace {
    /// host:port of the controller.
    pub address: String,
    /// The token.
    pub token: Vec<u8>,
    timeout: Duration,
    unix: bool,
}

impl ClusterPlace {
    /// The cluster that the settings name; `Unavailable` when there is none.
    pub fn find(settings: &Settings) -> CommandResult<ClusterPlace> {
        let (timeout, unix) = (settings.timeout(), settings.unix());
        let path = settings.cluster_file()?;
        match (settings.address(), settings.token()) {
            (Some(address), Some(token)) => Ok(ClusterPlace { address, token, timeout, unix }),
            (Some(address), None) => match ClusterFile::read(&path)? {
                Some(local) if same_place(&local.address, &address) => {
                    Ok(ClusterPlace { address, token: local.token()?, timeout, unix })
                }
                _ => {
                    let text = format!(
                        "no token for {address}: set --token, HONEYCOMB_TOKEN or `token` in the \
                         configuration file; only a cluster of `honeycomb start` on this machine \
                         needs none"
                    );
                    Err(Failure::new(Status::Unauthenticated, text))
                }
            },
            (None, token) => match ClusterFile::read(&path)? {
                Some(local) => {
                    let token = token.map_or_else(|| local.token(), Ok)?;
                    Ok(ClusterPlace { address: local.address, token, timeout, unix })
                }
                None => {
                    let text = format!(
                        "no cluster is running here (none in {}): start one with `honeycomb start \
                         --background`, or use --address and --token",
                        path.display()
                    );
                    Err(Failure::new(Status::Unavailable, text))
                }
            },
        }
    }

    /// The cluster of a cluster file.
    pub fn of_file(file: &ClusterFile, settings: &Settings) -> CommandResult<ClusterPlace> {
        let (timeout, unix) = (settings.timeout(), settings.unix());
        Ok(ClusterPlace { address: file.address.clone(), token: file.token()?, timeout, unix })
    }

    /// A client with this token, connected to the cluster.
    pub fn client(&self) -> CommandResult<Client> {
        self.client_with(self.token.clone())
    }

    fn client_with(&self, token: Vec<u8>) -> CommandResult<Client> {
        let mut options = ClientOptions::new(self.address.clone(), token);
        options.timeout = self.timeout;
        options.unix = self.unix;
        let client = Client::new(options);
        client.ping()?;
        Ok(client)
    }
}

/// Whether two addresses are equal, without a look-up of names: the cluster file has numeric addresses,
/// people write `localhost`.
fn same_place(a: &str, b: &str) -> bool {
    let numeric = |text: &str| match text.rsplit_once(':') {
        Some((host, port)) if host.eq_ignore_ascii_case("localhost") => format!("127.0.0.1:{port}"),
        _ => text.to_owned(),
    };
    numeric(a) == numeric(b)
}

impl<G: Group> Given<G> {
    /// A client of the configured cluster. The group has the settings of `Reach`.
    pub fn client(&self) -> CommandResult<Client> {
        ClusterPlace::find(&self.settings()?)?.client()
    }
}

/// How a command uses its job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// It only reads, and renews no lease.
    Look,
    /// It uses existing data, and renews the leases of the whole job.
    Use,
    /// As `Use`, and it registers a missing job.
    Create,
}

/// A job that a command works in.
pub struct Work {
    /// With the job's token.
    pub client: Client,
    /// With the token of the settings or the cluster file.
    pub cluster: Client,
    /// The job.
    pub job: JobId,
    /// Its name.
    pub name: String,
}

impl Work {
    /// Opens the job of the settings.
    pub fn open(settings: &Settings, intent: Intent) -> CommandResult<Work> {
        Work::open_named(settings, settings.job(), intent)
    }

    /// Opens the job of the settings, or that of the token when it is a job's token.
    pub fn of_token(settings: &Settings) -> CommandResult<Work> {
        let place = ClusterPlace::find(settings)?;
        // The second to tenth bytes of a token name its job.
        let job = place.token.get(1..9).and_then(|bytes| bytes.try_into().ok());
        match job.map_or(0, u64::from_le_bytes) {
            0 => Work::open(settings, Intent::Create),
            job => {
                let client = place.client()?;
                let (job, name) = (JobId(job), String::new());
                Ok(Work { cluster: client.clone(), client, job, name })
            }
        }
    }

    /// Opens a job; `UnknownJob` when it is not registered and the intent is not `Create`.
    pub fn open_named(settings: &Settings, name: &str, intent: Intent) -> CommandResult<Work> {
        let place = ClusterPlace::find(settings)?;
        let cluster = place.client()?;
        let ticket = match cluster.find_job(name) {
            Err(Error { status: Status::UnknownJob, .. }) if intent == Intent::Create => {
                eprintln!(
                    "registered the job '{name}' for the command line; its data is freed one day \
                     after its last use"
                );
                // No process holds it: the job continues after the command has ended.
                let (lease_ms, held) = (CLI_LEASE_MS, false);
                let options = JobOptions { lease_ms, held, ..JobOptions::default() };
                cluster.register_job_with(name, &options)
            }
            found => found,
        };
        let mut ticket = ticket?;
        let mut client = place.client_with(ticket.token)?;
        if intent != Intent::Look {
            let renewed = client.renew(ticket.job, &[String::new()])?;
            let expired = |r: &RenewResult| r.status == Status::LeaseExpired as u16;
            if intent == Intent::Create && renewed.first().is_some_and(expired) {
                eprintln!("the leases of the job '{name}' had expired: it starts empty");
                ticket = cluster.reopen_job(name)?;
                client = place.client_with(ticket.token)?;
            }
        }
        Ok(Work { client, cluster, job: ticket.job, name: name.to_owned() })
    }

    /// The job, for transfers.
    pub fn on(&self) -> JobClient<'_> {
        JobClient { client: &self.client, job: self.job }
    }

    /// Creates the missing prefixes of an address.
    pub fn ensure_prefix(&self, address: &str) -> CommandResult {
        Ok(self.on().ensure_prefix(address)?)
    }

    /// Renews the whole job until the program ends, for commands that may wait longer than a lease lasts.
    pub fn keep(&self) {
        self.client.keep(self.job, &[String::new()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_is_this_machine_and_other_ports_are_other_places() {
        assert!(same_place("127.0.0.1:7420", "localhost:7420"));
        assert!(same_place("127.0.0.1:7420", "LocalHost:7420"));
        assert!(!same_place("127.0.0.1:7420", "localhost:7421"));
        assert!(!same_place("127.0.0.1:7420", "node:7420"));
    }
}
