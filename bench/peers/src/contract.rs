//! The protocol of a measured client: lines of JSON on its standard input and output.
//!
//! A line with `system` is a specification; the client answers `ready` when it has connected and stored the
//! data to read. A line with `seconds` is a round; the client answers its figures. One process thus runs many
//! rounds, and systems can alternate at the cost of a line. `bench/contract.h` and `bench/worker.py`
//! implement the same in C and in Python.
//!
//! With `--against`, this build's runner starts clients of another revision, older or newer. The lines are
//! therefore compatible in both directions:
//!
//! - A field keeps its name, type and meaning. Unknown fields are ignored, so a specification may get new
//!   ones. Each has `#[serde(default)]`, and its default means the behaviour of builds without the field.
//! - An operation or a system keeps its meaning. A client that does not know one answers the specification
//!   with an error, and the row is reported as not in that revision.
//! - An answer keeps its fields, `Measured` likewise.
//! - The roles `worker` and `flood` of `honeycomb-compare` stay, and so do `start`, `controller` and
//!   `server` with the flags of `servers.rs`.
//!
//! The tests below hold the lines of the first revision that can be compared.

use hdrhistogram::Histogram;
use honeycomb_env::Clock;
use honeycomb_types::Time;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::io::BufRead;
use std::time::Duration;

/// Upper bound of the histogram, in nanoseconds.
const LATENCY_MAX: u64 = 60_000_000_000;

/// The repeated operation on a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Get of the value of a key.
    Get,
    /// Put of a value under a key.
    Put,
    /// Get of the values of `batch` keys.
    MultiGet,
    /// Put of values under `batch` keys.
    MultiPut,
    /// Alternating puts and gets of a queue; each counts as one.
    Queue,
    /// Append to a file (APPEND), which is replaced after `total` bytes.
    Append,
    /// A range of a file of `total` bytes (GETRANGE).
    Read,
    /// As `Put`, in bursts of `total` bytes into new memory.
    PutNew,
    /// As `PutNew`, into memory that the job has used just before.
    PutAgain,
    /// As `Append`, in bursts like those of `PutNew`.
    AppendNew,
    /// As `Append`, in bursts like those of `PutAgain`.
    AppendAgain,
    /// A put that wakes a consumer waiting in a get.
    Wake,
    /// As `Get`, into a reused buffer.
    GetInto,
    /// As `Get`, or as a mapping, followed by one pass over all bytes.
    Pass,
    /// Paced puts into a store whose blocks are nearly full: they split, one after the other.
    Split,
    /// The same puts into a store with room: the part of `Split` without the splitting.
    Trickle,
}

impl Op {
    /// Whether it comes in bursts of `total` bytes.
    pub fn is_burst(self) -> bool {
        matches!(self, Op::PutNew | Op::PutAgain | Op::AppendNew | Op::AppendAgain)
    }

    /// The name in the JSON lines.
    pub fn name(self) -> &'static str {
        match self {
            Op::Get => "get",
            Op::Put => "put",
            Op::MultiGet => "multi_get",
            Op::MultiPut => "multi_put",
            Op::Queue => "queue",
            Op::Append => "append",
            Op::Read => "read",
            Op::PutNew => "put_new",
            Op::PutAgain => "put_again",
            Op::AppendNew => "append_new",
            Op::AppendAgain => "append_again",
            Op::Wake => "wake",
            Op::GetInto => "get_into",
            Op::Pass => "pass",
            Op::Split => "split",
            Op::Trickle => "trickle",
        }
    }
}

/// The measured system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum System {
    /// This build.
    Honeycomb,
    /// redis-server.
    Redis,
    /// memcached.
    Memcached,
    /// Raw sockets: values without frames, moved in the fastest way found.
    Stream,
    /// The frames with a minimal loop, without a store.
    Empty,
    /// The frames with Honeycomb's loop, without a store.
    Loop,
    /// New memory that is touched, without a server.
    Pages,
}

impl System {
    /// The name in the JSON lines: all limits of sockets are the system `socket`.
    pub fn name(self) -> &'static str {
        match self {
            System::Honeycomb => "honeycomb",
            System::Redis => "redis",
            System::Memcached => "memcached",
            System::Stream | System::Empty | System::Loop => "socket",
            System::Pages => "memory",
        }
    }

    /// The name of the limit, if the system is one.
    pub fn limit(self) -> Option<&'static str> {
        match self {
            System::Stream => Some("stream"),
            System::Empty => Some("empty"),
            System::Loop => Some("loop"),
            System::Pages => Some("touch"),
            _ => None,
        }
    }
}

/// The specification of a client's rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// The system.
    pub system: System,
    /// host:port, or `unix:` and a path; for Honeycomb that of the controller.
    pub address: String,
    /// For Honeycomb the cluster's token, in hexadecimal.
    pub token: String,
    /// Transport: `tcp`, `unix` or `map`. The address of a peer determines it, too.
    pub transport: String,
    /// The operation.
    pub op: Op,
    /// Bytes of a value.
    pub size: u64,
    /// Number of keys to choose from.
    pub keys: u64,
    /// Number of keys in a batch.
    pub batch: u64,
    /// Bytes of a file.
    pub total: u64,
    /// Number of connections.
    pub clients: usize,
    /// Requests in flight on each connection.
    pub pipeline: usize,
    /// How long the client polls before it sleeps, in microseconds.
    pub spin_us: u64,
    /// Initial number of blocks of a Honeycomb store.
    pub blocks: u32,
    /// A name that is unique in the run.
    pub name: String,
}

/// One round, until either limit.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Round {
    /// Seconds.
    pub seconds: f64,
    /// Operations.
    pub ops: u64,
}

/// A line to a client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// A specification.
    Spec(Box<Spec>),
    /// A round to run now.
    Round(Round),
}

/// A line from a client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Answer {
    /// The client failed and ends.
    Error {
        /// The cause.
        error: String,
    },
    /// The client is ready.
    Ready {
        /// True.
        ready: bool,
        /// Description of the client, or of the method that it chose.
        about: String,
    },
    /// A round has ended.
    Measured(Measured),
}

/// The client's figures of a round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Operations; a batch is one.
    pub ops: u64,
    /// Time from the first to the last operation.
    pub wall_ns: u64,
    /// CPU time of the client's process meanwhile.
    pub cpu_ns: u64,
    /// p50, p90, p99, p99.9 and maximum, of an operation, or of all requests in flight on a connection.
    pub latency_us: [f64; 5],
    /// Number of block splits that the client has observed meanwhile.
    #[serde(default)]
    pub splits: u64,
}

/// A histogram and the two clocks of a round.
pub struct Meter {
    clock: Clock,
    latencies: Histogram<u64>,
    began: Time,
    cpu: u64,
    /// End time of the round.
    pub until: Time,
}

impl Meter {
    /// Begins a round.
    pub fn begin(clock: Clock, round: Round) -> Meter {
        let latencies = Histogram::new_with_bounds(1, LATENCY_MAX, 3).expect("sound bounds");
        let cpu = process_cpu();
        let began = clock.now();
        let until = began + Duration::from_secs_f64(round.seconds);
        Meter { clock, latencies, began, cpu, until }
    }

    /// Counts the latency of one operation, or of all requests that were in flight together.
    pub fn count(&mut self, took: Duration) {
        self.latencies.saturating_record(took.as_nanos() as u64);
    }

    /// Ends a round of `ops` operations.
    pub fn end(self, ops: u64) -> Measured {
        let wall = self.clock.now().since(self.began);
        let at = |quantile| self.latencies.value_at_quantile(quantile) as f64 / 1000.0;
        Measured {
            ops,
            wall_ns: wall.as_nanos() as u64,
            cpu_ns: process_cpu() - self.cpu,
            latency_us: [at(0.5), at(0.9), at(0.99), at(0.999), at(1.0)],
            splits: 0,
        }
    }
}

/// CPU time of this process, in nanoseconds.
pub fn process_cpu() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A client that a specification has set up.
pub trait Client {
    /// Its description, for the report.
    fn about(&self) -> String;
    /// Runs a round.
    fn round(&mut self, round: Round) -> Result<Measured, String>;
}

/// Answers lines until the input ends; an error is the last answer.
pub fn serve(set_up: impl Fn(Spec) -> Result<Box<dyn Client>, String>) -> Result<(), String> {
    let result = answer_lines(set_up);
    if let Err(error) = &result {
        tell(&Answer::Error { error: error.clone() });
    }
    result
}

fn answer_lines(set_up: impl Fn(Spec) -> Result<Box<dyn Client>, String>) -> Result<(), String> {
    let mut client: Option<Box<dyn Client>> = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| e.to_string())?;
        let line = serde_json::from_str(&line).map_err(|e| format!("'{line}': {e}"))?;
        match (line, &mut client) {
            (Line::Spec(spec), _) => {
                // The previous client is dropped first: it may hold resources that this one needs.
                drop(client.take());
                let made = set_up(*spec)?;
                tell(&Answer::Ready { ready: true, about: made.about() });
                client = Some(made);
            }
            (Line::Round(round), Some(client)) => {
                tell(&Answer::Measured(client.round(round)?));
            }
            (Line::Round(_), None) => return Err("a round before any specification".into()),
        }
    }
    Ok(())
}

fn tell(answer: &Answer) {
    println!("{}", serde_json::to_string(answer).expect("plain data"));
}

/// The key of a number: 16 bytes, equal in every client.
pub fn key(size: u64, number: u64) -> Vec<u8> {
    format!("{:07x}:{number:08}", size & 0xfff_ffff).into_bytes()
}

/// A small random generator; its quality does not matter, only its speed.
#[derive(Clone, Copy)]
pub struct Draw(u64);

impl Draw {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Draw {
        Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `below`, which is less than 2^31.
    pub fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) * below) >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_sixteen_bytes() {
        for (size, number) in [(0, 0), (128 << 20, 99_999_999), (u64::MAX, 7)] {
            assert_eq!(key(size, number).len(), 16);
        }
    }

    #[test]
    fn draws_stay_below_and_reach_all() {
        let mut draw = Draw::new(3);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            seen[draw.below(10) as usize] = true;
        }
        assert!(seen.iter().all(|s| *s));
    }

    /// A specification of the first comparable revision (d2b6025).
    const SPEC: &str = r#"{"system":"honeycomb","address":"127.0.0.1:1","token":"00","transport":"tcp",
        "op":"multi_get","size":64,"keys":10,"batch":4,"total":268435456,"clients":1,"pipeline":1,
        "spin_us":50,"blocks":1,"name":"cell-1"}"#;

    #[test]
    fn specification_of_an_older_runner_is_read() {
        let Ok(Line::Spec(spec)) = serde_json::from_str(SPEC) else { panic!("{SPEC}") };
        assert_eq!(
            (spec.system, spec.op, spec.total),
            (System::Honeycomb, Op::MultiGet, 256 << 20)
        );
        let line = r#"{"seconds":0.12,"ops":4294967295}"#;
        assert!(matches!(serde_json::from_str(line), Ok(Line::Round(round)) if round.ops > 0));
    }

    #[test]
    fn specification_has_all_that_an_older_client_reads() {
        let Ok(Line::Spec(spec)) = serde_json::from_str(SPEC) else { panic!("{SPEC}") };
        let written = serde_json::to_value(Line::Spec(spec)).unwrap();
        let older: serde_json::Value = serde_json::from_str(SPEC).unwrap();
        for (field, value) in older.as_object().unwrap() {
            assert_eq!(&written[field], value, "{field}");
        }
        let ops = [
            (Op::Get, "get"),
            (Op::Put, "put"),
            (Op::MultiGet, "multi_get"),
            (Op::MultiPut, "multi_put"),
            (Op::Queue, "queue"),
            (Op::Append, "append"),
            (Op::Read, "read"),
            (Op::PutNew, "put_new"),
            (Op::PutAgain, "put_again"),
            (Op::AppendNew, "append_new"),
            (Op::AppendAgain, "append_again"),
            (Op::Wake, "wake"),
            (Op::GetInto, "get_into"),
            (Op::Pass, "pass"),
            (Op::Split, "split"),
            (Op::Trickle, "trickle"),
        ];
        for (op, name) in ops {
            assert_eq!(serde_json::to_value(op).unwrap(), name);
        }
    }

    #[test]
    fn fields_of_a_newer_runner_are_ignored_and_its_operations_refused() {
        let newer = SPEC.replace(r#""op""#, r#""field_to_come":[1],"op""#);
        assert!(matches!(serde_json::from_str(&newer), Ok(Line::Spec(_))));
        let newer = SPEC.replace("multi_get", "op_to_come");
        assert!(serde_json::from_str::<Line>(&newer).is_err());
    }

    #[test]
    fn an_answer_of_a_client_in_c_is_read() {
        let line = r#"{"ops":7,"units":7,"wall_ns":5,"cpu_ns":4,"latency_us":[1.0,2,3,4,5.5]}"#;
        let Ok(Answer::Measured(m)) = serde_json::from_str(line) else { panic!("{line}") };
        assert_eq!((m.ops, m.latency_us[4]), (7, 5.5));
        let line = r#"{"ready":true,"about":"hiredis"}"#;
        assert!(matches!(serde_json::from_str(line), Ok(Answer::Ready { .. })));
        assert!(matches!(serde_json::from_str(r#"{"error":"x"}"#), Ok(Answer::Error { .. })));
    }
}
