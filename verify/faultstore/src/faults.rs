//! The latencies and faults of requests to an object store.

use std::time::Duration;

/// Kinds of requests to an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Reads an object.
    Get,
    /// Gets an object's length.
    Head,
    /// Writes an object.
    Put,
    /// Deletes objects.
    Delete,
    /// Lists names.
    List,
    /// Anything else: multipart uploads.
    Other,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 6] =
        [Kind::Get, Kind::Head, Kind::Put, Kind::Delete, Kind::List, Kind::Other];

    /// The kind and the path of a request, from its first line.
    pub(crate) fn of(line: &str) -> (Kind, String) {
        let mut words = line.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let kind = match method {
            "GET" if query.contains("list-type") => Kind::List,
            "GET" => Kind::Get,
            "HEAD" => Kind::Head,
            "PUT" if query.contains("uploadId") => Kind::Other,
            "PUT" => Kind::Put,
            "DELETE" => Kind::Delete,
            "POST" if query.split('&').any(|q| q == "delete" || q == "delete=") => Kind::Delete,
            _ => Kind::Other,
        };
        (kind, path.to_owned())
    }
}

/// A fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// The request is answered with this status, without an effect.
    Status(u16),
    /// The connection is closed before the store gets the request.
    CloseBefore,
    /// The store executes the request, and the connection is closed without an answer.
    CloseAfterEffect,
    /// The request has no effect and no answer, until the client gives up.
    HangBefore,
    /// The store executes the request, and no answer is sent, until the client gives up.
    HangAfterEffect,
    /// As `HangBefore`, but the store executes the request after this time, whatever happened meanwhile.
    Late(Duration),
    /// The answer's body ends after this many bytes.
    Truncate(u64),
    /// One bit of the answer's body is flipped.
    FlipBit,
}

/// A rule that injects a fault into some requests.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Kinds of requests to which the rule applies.
    pub on: Vec<Kind>,
    /// Text that the path must contain.
    pub key: String,
    /// Number of matching requests to skip first.
    pub after: u64,
    /// Maximum number of injected faults.
    pub count: u64,
    /// Probability of the fault, in parts per million.
    pub chance_ppm: u32,
    /// The fault.
    pub what: What,
}

impl Rule {
    /// A fault of every request of these kinds.
    pub fn always(on: &[Kind], what: What) -> Rule {
        let (key, chance_ppm) = (String::new(), 1_000_000);
        Rule { on: on.into(), key, after: 0, count: u64::MAX, chance_ppm, what }
    }

    /// Restricts the rule to paths with this text.
    pub fn at(mut self, key: &str) -> Rule {
        self.key = key.into();
        self
    }

    /// Limits the number of faults.
    pub fn times(mut self, count: u64) -> Rule {
        self.count = count;
        self
    }

    /// Skips the first matching requests.
    pub fn after(mut self, after: u64) -> Rule {
        self.after = after;
        self
    }

    /// Sets the probability, in parts per million.
    pub fn chance(mut self, ppm: u32) -> Rule {
        self.chance_ppm = ppm;
        self
    }
}

/// The behaviour of an unreachable store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// Connections are reset at once.
    Reset,
    /// Connections are accepted and never answered.
    Silent,
}

/// The latencies and faults of the connection to a store.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Latency of an answer without the time of its bytes, for reads and for writes.
    pub latency: (Duration, Duration),
    /// Bytes per second of a connection, both directions together; 0 for no limit.
    pub rate: u64,
    /// Requests per second and in a burst; further requests get `SlowDown`. 0 for no limit.
    pub requests: (u64, u64),
    /// Rules of faults; the first matching rule applies.
    pub rules: Vec<Rule>,
    /// Outage of the store, if any.
    pub outage: Option<Outage>,
}

impl Faults {
    /// No latencies and no faults.
    pub fn calm() -> Faults {
        Faults::default()
    }

    /// S3 as it was measured from one machine (ATC '18): 12.1 ms to read and 25.8 ms to write a kilobyte,
    /// 70 MB/s for each connection.
    pub fn s3() -> Faults {
        let latency = (Duration::from_micros(12_100), Duration::from_micros(25_800));
        Faults { latency, rate: 70_000_000, ..Faults::default() }
    }

    /// Adds a rule.
    pub fn with(mut self, rule: Rule) -> Faults {
        self.rules.push(rule);
        self
    }

    pub(crate) fn latency_of(&self, kind: Kind) -> Duration {
        match kind {
            Kind::Put | Kind::Other => self.latency.1,
            Kind::Get | Kind::Head | Kind::Delete | Kind::List => self.latency.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart_by_their_first_line() {
        for (line, kind, path) in [
            ("GET /lake/a/b HTTP/1.1", Kind::Get, "/lake/a/b"),
            ("GET /lake?list-type=2&prefix=a HTTP/1.1", Kind::List, "/lake"),
            ("HEAD /lake/a HTTP/1.1", Kind::Head, "/lake/a"),
            ("PUT /lake/a HTTP/1.1", Kind::Put, "/lake/a"),
            ("PUT /lake/a?partNumber=1&uploadId=x HTTP/1.1", Kind::Other, "/lake/a"),
            ("POST /lake?delete HTTP/1.1", Kind::Delete, "/lake"),
            ("POST /lake/a?uploads HTTP/1.1", Kind::Other, "/lake/a"),
            ("DELETE /lake/a HTTP/1.1", Kind::Delete, "/lake/a"),
        ] {
            assert_eq!(Kind::of(line), (kind, path.to_owned()), "{line}");
        }
    }
}
