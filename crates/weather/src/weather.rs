//! What the way to a store is like: how long requests take, and what goes wrong with them.

use std::time::Duration;

/// Kinds of requests to an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Reads an object.
    Get,
    /// Asks for an object's length.
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
    /// Every kind.
    pub const ALL: [Kind; 6] =
        [Kind::Get, Kind::Head, Kind::Put, Kind::Delete, Kind::List, Kind::Other];

    /// The kind of a request, by its first line, and the path that it is about.
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

/// What befalls a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// Answered with this status; nothing else happens.
    Status(u16),
    /// The connection is closed before the store hears of it.
    CloseBefore,
    /// The store does it, and the connection is closed instead of an answer.
    CloseAfterEffect,
    /// Nothing happens at all, until the client gives up.
    HangBefore,
    /// The store does it, and no answer comes, until the client gives up.
    HangAfterEffect,
    /// As `HangBefore`; and after so long the store does it, whatever came between.
    Late(Duration),
    /// The answer's body ends after so many bytes.
    Truncate(u64),
    /// One bit of the answer's body is another.
    FlipBit,
}

/// What befalls some requests.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Requests of these kinds ...
    pub on: Vec<Kind>,
    /// ... whose path has this in it ...
    pub key: String,
    /// ... but not the first so many of them ...
    pub after: u64,
    /// ... and no more than so many; ...
    pub count: u64,
    /// ... of a million, so many ...
    pub chance_ppm: u32,
    /// ... meet with this.
    pub what: What,
}

impl Rule {
    /// Something that befalls every request of these kinds.
    pub fn always(on: &[Kind], what: What) -> Rule {
        let (key, chance_ppm) = (String::new(), 1_000_000);
        Rule { on: on.into(), key, after: 0, count: u64::MAX, chance_ppm, what }
    }

    /// To these paths only.
    pub fn at(mut self, key: &str) -> Rule {
        self.key = key.into();
        self
    }

    /// So many times.
    pub fn times(mut self, count: u64) -> Rule {
        self.count = count;
        self
    }

    /// Not the first so many times.
    pub fn after(mut self, after: u64) -> Rule {
        self.after = after;
        self
    }

    /// Of a million, so many.
    pub fn chance(mut self, ppm: u32) -> Rule {
        self.chance_ppm = ppm;
        self
    }
}

/// A store that is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// Connections are reset at once.
    Reset,
    /// Connections are made, and never answered.
    Silent,
}

/// What the way to a store is like.
#[derive(Clone, Debug, Default)]
pub struct Weather {
    /// How long it takes until a request has an answer, beside its bytes. The first for reads, the second for
    /// writes.
    pub latency: (Duration, Duration),
    /// Bytes that a connection carries in a second, both ways together; 0 for any number.
    pub rate: u64,
    /// Requests in a second, and in a burst; more are told to slow down. 0 for any number.
    pub requests: (u64, u64),
    /// What goes wrong; the first rule that applies does.
    pub faults: Vec<Rule>,
    /// It is out of reach.
    pub outage: Option<Outage>,
}

impl Weather {
    /// Nothing in the way.
    pub fn calm() -> Weather {
        Weather::default()
    }

    /// S3 as it was measured from one machine (ATC '18): 12.1 ms to read and 25.8 ms to write a kilobyte,
    /// 70 MB/s for each connection.
    pub fn s3() -> Weather {
        let latency = (Duration::from_micros(12_100), Duration::from_micros(25_800));
        Weather { latency, rate: 70_000_000, ..Weather::default() }
    }

    /// With this fault more.
    pub fn with(mut self, rule: Rule) -> Weather {
        self.faults.push(rule);
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
