//! The parameters that all processes of a run need, shared in a file.

use crate::queue::check::Rules;
use honeycomb_client::{Client, ClientOptions};
use honeycomb_types::JobId;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The queue.
pub const QUEUE: &str = "/soak";

/// The role of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Puts.
    Producer,
    /// Takes items for good.
    Taker,
    /// Reserves items and acknowledges them.
    Reserver,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub address: String,
    pub token: Vec<u8>,
    pub job: JobId,
    pub rules: Rules,
}

impl Plan {
    fn path(dir: &Path) -> PathBuf {
        dir.join("plan.json")
    }

    /// The log file of a client.
    pub fn log(dir: &Path, role: Role, number: u64, incarnation: u64) -> PathBuf {
        let role = match role {
            Role::Producer => "producer",
            Role::Taker | Role::Reserver => "consumer",
        };
        dir.join(format!("{role}-{number}.{incarnation}"))
    }

    pub fn write(&self, dir: &Path) -> Result<(), String> {
        let Plan { address, token, job, rules } = self;
        let Rules { seed, each, limit, batch, reservation } = *rules;
        let text = json!({
            "address": address, "token": token, "job": job.0, "seed": seed, "each": each,
            "limit": limit, "batch": batch, "reservation": reservation,
        });
        std::fs::write(Plan::path(dir), text.to_string()).map_err(|e| e.to_string())
    }

    pub fn read(dir: &Path) -> Result<Plan, String> {
        let text = std::fs::read_to_string(Plan::path(dir)).map_err(|e| e.to_string())?;
        let value: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        let number = |name: &str| value[name].as_u64().ok_or(format!("the plan lacks {name}"));
        let token = value["token"].as_array().into_iter().flatten();
        Ok(Plan {
            address: value["address"].as_str().unwrap_or_default().to_owned(),
            token: token.filter_map(|byte| byte.as_u64()).map(|byte| byte as u8).collect(),
            job: JobId(number("job")?),
            rules: Rules {
                seed: number("seed")?,
                each: number("each")?,
                limit: number("limit")? as usize,
                batch: number("batch")?,
                reservation: number("reservation")?,
            },
        })
    }

    /// A client of the job.
    pub fn client(&self) -> Client {
        let mut options = ClientOptions::new(&self.address, self.token.clone());
        // There are more processes than cores.
        options.spin = Duration::ZERO;
        options.timeout = Duration::from_secs(30);
        Client::new(options)
    }
}
