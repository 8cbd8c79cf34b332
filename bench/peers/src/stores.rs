//! The job of a specification on a cluster, with one structure.

use crate::contract::{Op, Spec, key};
use honeycomb_bench::noise;
use honeycomb_client::{Client, ClientOptions, JobTicket, Kv};
use honeycomb_types::JobId;
use honeycomb_wire::messages::PrefixOptions;
use std::time::Duration;

/// The prefix of the structure.
pub const PATH: &str = "/bench";
/// Lease of the job: longer than any run.
const LEASE_MS: u32 = 24 * 3600 * 1000;
/// Minimum bytes of an append that fills a file.
const PIECE: u64 = 1 << 20;
/// High mark in percent of blocks that shall split: they split there at any fill rate. Their low mark is so
/// small that blocks do not merge right after a split.
pub const SPLITS_AT: u8 = 70;
const MERGES_AT: u8 = 5;
/// Bytes of one request that stores many values.
const FILL: u64 = 32 * 1024;

/// A job with one structure. The job ends when this is dropped.
pub struct Store {
    cluster: Client,
    client: Client,
    ticket: JobTicket,
    unix: bool,
}

impl Store {
    /// Registers the job and creates the empty structure of the operation.
    pub fn make(spec: &Spec) -> Result<Store, String> {
        let token = honeycomb::unhex(&spec.token)?;
        let open = |token: &[u8]| {
            let mut options = ClientOptions::new(&spec.address, token);
            options.spin = Duration::from_micros(spec.spin_us);
            options.unix = spec.transport != "tcp";
            Client::new(options)
        };
        let cluster = open(&token);
        let ticket = cluster.register_job(&spec.name, LEASE_MS, 0).map_err(said)?;
        let unix = spec.transport != "tcp";
        let store = Store { cluster, client: open(&ticket.token), ticket, unix };
        let (client, job) = (&store.client, store.ticket.job);
        let mut options = PrefixOptions::default();
        if matches!(spec.op, Op::Split | Op::Trickle) {
            (options.high_mark, options.low_mark) = (SPLITS_AT, MERGES_AT);
        }
        client.create_prefix(job, PATH, &[], options).map_err(said)?;
        store.create(spec)?;
        Ok(store)
    }

    /// Creates the empty structure of the operation.
    fn create(&self, spec: &Spec) -> Result<(), String> {
        let (client, job) = (&self.client, self.job());
        match spec.op {
            Op::Queue | Op::Wake => client.create_queue(job, PATH, 0, 0, false).map(drop),
            Op::Append | Op::Read | Op::AppendNew | Op::AppendAgain => {
                client.create_file(job, PATH, 1, false).map(drop)
            }
            _ => client.create_kv(job, PATH, spec.blocks, false).map(drop),
        }
        .map_err(said)
    }

    /// Replaces the structure by an empty one: its memory is free then.
    pub fn empty(&self, spec: &Spec) -> Result<(), String> {
        self.client.remove_structure(self.job(), PATH).map_err(said)?;
        self.create(spec)
    }

    /// Stores the data that the operation reads.
    pub fn fill(&self, spec: &Spec) -> Result<(), String> {
        match spec.op {
            Op::Queue | Op::Wake | Op::Append => Ok(()),
            Op::Read => {
                let file = self.client.open_file(self.job(), PATH).map_err(said)?;
                // The file is appended in large pieces, even if small ranges are read.
                let piece = noise(spec.size.max(PIECE) as usize);
                (0..spec.total / piece.len() as u64)
                    .try_for_each(|_| file.write_all(&piece).map(drop))
                    .map_err(said)
            }
            _ => fill_kv(&self.client.open_kv(self.job(), PATH).map_err(said)?, spec),
        }
    }

    /// A client with the job's token.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Another client, which shares nothing with the first.
    pub fn other_client(&self, spin: Duration) -> Client {
        let mut options = ClientOptions::new(self.client.address(), &self.ticket.token[..]);
        options.spin = spin;
        options.unix = self.unix;
        Client::new(options)
    }

    /// The job.
    pub fn job(&self) -> JobId {
        self.ticket.job
    }

    /// Its token.
    pub fn token(&self) -> &[u8] {
        &self.ticket.token
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // If the cluster has ended, the job has ended, too.
        let _ = self.cluster.deregister_job(self.ticket.job);
    }
}

fn fill_kv(kv: &Kv, spec: &Spec) -> Result<(), String> {
    let value = noise(spec.size as usize);
    let step = (FILL / spec.size.max(16)).clamp(1, 500);
    for first in (0..spec.keys).step_by(step as usize) {
        let keys: Vec<Vec<u8>> =
            (first..spec.keys.min(first + step)).map(|n| key(spec.size, n)).collect();
        if keys.len() == 1 {
            kv.put(&keys[0], &value).map_err(said)?;
            continue;
        }
        let entries: Vec<(&[u8], &[u8])> = keys.iter().map(|k| (&k[..], &value[..])).collect();
        for result in kv.multi_put(&entries) {
            result.map_err(said)?;
        }
    }
    Ok(())
}

/// The text of a client's error.
pub fn said(e: honeycomb_client::Error) -> String {
    e.to_string()
}
