//! What a client that is measured is told and tells: lines of JSON on its standard input and output.
//!
//! A line with `system` is a specification; it is answered by `ready` when connections are made and
//! what is to be read is stored. A line with `seconds` is a round, answered by what it showed. So one
//! process goes through many rounds, and systems can take turns at the price of a line. `bench/contract.h`
//! and `bench/worker.py` are the same in C and in Python.
//!
//! With `--against` this build's runner starts clients of another revision, older or newer. The lines
//! are therefore compatible in both directions:
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

/// Longest latency that is told from a longer one, in nanoseconds.
const LATENCY_MAX: u64 = 60_000_000_000;

/// What is done to a system, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// The value of a key.
    Get,
    /// A value under a key.
    Put,
    /// The values of `batch` keys.
    MultiGet,
    /// Values under `batch` keys.
    MultiPut,
    /// A put and a get of a queue by turns; each counts as one.
    Queue,
    /// Bytes behind those of a file (APPEND), which begins anew after `total` bytes.
    Append,
    /// A range of a file of `total` bytes (GETRANGE).
    Read,
    /// A put that wakes a consumer who waits in a get.
    Wake,
    /// As `Get`, into a buffer that is used again.
    GetInto,
    /// As `Get`, or as a mapping, and then once over all bytes.
    Pass,
    /// Puts, at a pace, into a store whose blocks are nearly full: they split, one after the other.
    Split,
    /// The same puts into a store that has room: what of `Split` is not the splitting.
    Trickle,
}

impl Op {
    /// As in the JSON lines.
    pub fn name(self) -> &'static str {
        match self {
            Op::Get => "get",
            Op::Put => "put",
            Op::MultiGet => "multi_get",
            Op::MultiPut => "multi_put",
            Op::Queue => "queue",
            Op::Append => "append",
            Op::Read => "read",
            Op::Wake => "wake",
            Op::GetInto => "get_into",
            Op::Pass => "pass",
            Op::Split => "split",
            Op::Trickle => "trickle",
        }
    }
}

/// What serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum System {
    /// This build.
    Honeycomb,
    /// redis-server.
    Redis,
    /// memcached.
    Memcached,
    /// Raw sockets: values without frames, in the best way of moving them that was found.
    Stream,
    /// The frames and a loop as tight as it can be, nothing stored.
    Empty,
    /// The frames and the loop that Honeycomb runs on, nothing stored.
    Loop,
}

impl System {
    /// As in the JSON lines: limits of the machine are all of the system `socket`.
    pub fn name(self) -> &'static str {
        match self {
            System::Honeycomb => "honeycomb",
            System::Redis => "redis",
            System::Memcached => "memcached",
            System::Stream | System::Empty | System::Loop => "socket",
        }
    }

    /// Which limit it is.
    pub fn limit(self) -> Option<&'static str> {
        match self {
            System::Stream => Some("stream"),
            System::Empty => Some("empty"),
            System::Loop => Some("loop"),
            _ => None,
        }
    }
}

/// What a client shall do in the rounds to come.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// What it speaks to.
    pub system: System,
    /// host:port, or `unix:` and a path. Of Honeycomb the controller.
    pub address: String,
    /// Of Honeycomb the cluster's, in hexadecimal.
    pub token: String,
    /// Over what: `tcp`, `unix` or `map`. A peer's address says it already.
    pub transport: String,
    /// What it does.
    pub op: Op,
    /// Bytes of a value.
    pub size: u64,
    /// How many keys there are to choose from.
    pub keys: u64,
    /// Keys of one batch.
    pub batch: u64,
    /// Bytes of a file.
    pub total: u64,
    /// Connections.
    pub clients: usize,
    /// Requests in flight on each.
    pub pipeline: usize,
    /// How long the client polls before it sleeps, in microseconds.
    pub spin_us: u64,
    /// Blocks that a store of Honeycomb begins with.
    pub blocks: u32,
    /// A name that no other specification of the run has.
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

/// A line that a client reads.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// What to do.
    Spec(Box<Spec>),
    /// Do it now.
    Round(Round),
}

/// A line that a client writes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Answer {
    /// It failed, and ends.
    Error {
        /// Why.
        error: String,
    },
    /// It is set up.
    Ready {
        /// True.
        ready: bool,
        /// What the client is, or which way of several it chose.
        about: String,
    },
    /// A round is over.
    Measured(Measured),
}

/// What a round showed, as far as the client knows.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Operations; a batch is one.
    pub ops: u64,
    /// From the first to the last.
    pub wall_ns: u64,
    /// CPU time of the client's process meanwhile.
    pub cpu_ns: u64,
    /// p50, p90, p99, p99.9, most; of an operation, or of all requests in flight on a connection.
    pub latency_us: [f64; 5],
    /// Blocks that were divided meanwhile, as far as the client has seen.
    #[serde(default)]
    pub splits: u64,
}

/// A histogram and the two clocks of a round.
pub struct Meter {
    clock: Clock,
    latencies: Histogram<u64>,
    began: Time,
    cpu: u64,
    /// When the round shall end.
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

    /// So much time has gone by for one operation, or for all that were in flight together.
    pub fn count(&mut self, took: Duration) {
        self.latencies.saturating_record(took.as_nanos() as u64);
    }

    /// Ends the round, in which so many operations were done.
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

/// Something that a specification has set up.
pub trait Client {
    /// What it is, for the report.
    fn about(&self) -> String;
    /// Runs a round.
    fn round(&mut self, round: Round) -> Result<Measured, String>;
}

/// Answers lines until there are no more; what goes wrong is the last answer.
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
                // The one before goes first: it may hold what this one needs.
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

/// The key of a number: 16 bytes, alike in every client.
pub fn key(size: u64, number: u64) -> Vec<u8> {
    format!("{:07x}:{number:08}", size & 0xfff_ffff).into_bytes()
}

/// A small generator: which key comes next does not matter, only that it costs nothing.
#[derive(Clone, Copy)]
pub struct Draw(u64);

impl Draw {
    /// Another sequence for each seed.
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

    /// A specification as the first comparable revision writes and reads it (d2b6025).
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
