//! The kinds of settings' values, and the errors for invalid values.

use crate::size;
use honeycomb_client::cost::Prices;
use honeycomb_env::DiskShape;
use honeycomb_server::{DiskOptions, check_tiers};
use honeycomb_tiers::{Access, Place};
use honeycomb_types::limits::{
    BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, LEASE_MAX_MS, LEASE_MIN_MS, SERVER_LOSS_MAX_MS,
    SERVER_LOSS_MIN_MS,
};
use honeycomb_types::{PolicyKind, TierClass};
use std::net::SocketAddr;
use std::time::Duration;

/// The longest time that a core may poll before it sleeps, in microseconds: after a second it practically
/// always polls.
const SPIN_MAX: u64 = 1_000_000;

/// The kind of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingKind {
    Text,
    Path,
    Directory,
    /// A directory, or a part of a bucket.
    Place,
    Name,
    Token,
    Endpoint,
    Socket,
    Seconds,
    Size,
    BlockSize,
    /// A size, or 0 for nothing of the kind.
    Reserve,
    Micros,
    Lease,
    /// Milliseconds without a message after which a memory server is declared lost.
    Loss,
    Switch,
    /// Disks of a memory server.
    Disks,
    /// Rate and delay of these disks.
    DiskShape,
    Prices,
    /// How jobs share memory when it is short.
    Policy,
    /// A number from 1 to this.
    Count(u64),
}

impl SettingKind {
    /// The placeholder of a value in help.
    pub fn placeholder(self) -> &'static str {
        match self {
            SettingKind::Text => "HOST",
            SettingKind::Path => "FILE",
            SettingKind::Directory => "DIR",
            SettingKind::Place => "PLACE",
            SettingKind::Name => "NAME",
            SettingKind::Token => "HEX",
            SettingKind::Endpoint | SettingKind::Socket => "HOST:PORT",
            SettingKind::Seconds => "SECONDS",
            SettingKind::Size | SettingKind::BlockSize | SettingKind::Reserve => "SIZE",
            SettingKind::Micros
            | SettingKind::Lease
            | SettingKind::Loss
            | SettingKind::Count(_) => "N",
            SettingKind::Switch => "BOOL",
            SettingKind::Disks => "PLACE=SIZE,..",
            SettingKind::DiskShape => "MBPS:MS",
            SettingKind::Prices => "NAME=PRICE",
            SettingKind::Policy => "POLICY",
        }
    }

    /// Checks that a text is a value of this kind; the error says why it is not.
    pub fn check(self, text: &str) -> Result<(), String> {
        match self {
            SettingKind::Text | SettingKind::Path | SettingKind::Directory if text.is_empty() => {
                Err("the value is empty".into())
            }
            SettingKind::Text | SettingKind::Path | SettingKind::Directory => Ok(()),
            SettingKind::Place => Place::parse(text).map(drop).map_err(|e| e.to_string()),
            SettingKind::Name => honeycomb_types::check_job_name(text).map_err(|e| e.to_string()),
            SettingKind::Token => unhex(text).map(drop),
            SettingKind::Endpoint => check_endpoint(text),
            SettingKind::Socket => text.parse::<SocketAddr>().map(drop).map_err(|_| {
                format!("'{text}' is not a numeric address with a port, such as 127.0.0.1:7420")
            }),
            SettingKind::Seconds => match text.trim().parse::<f64>() {
                Ok(seconds) if seconds > 0.0 && seconds < 1e6 => Ok(()),
                _ => Err(format!("'{text}' is not a number of seconds above 0 and below 1000000")),
            },
            SettingKind::Size => match size::parse(text)? {
                0 => Err("the size must not be 0".into()),
                _ => Ok(()),
            },
            SettingKind::BlockSize => {
                let bytes = size::parse(text)?;
                let range = BLOCK_SIZE_MIN..=BLOCK_SIZE_MAX;
                match bytes.is_power_of_two() && range.contains(&bytes) {
                    true => Ok(()),
                    false => Err(format!("'{text}' is not a power of two from 64KiB to 1GiB")),
                }
            }
            SettingKind::Reserve => size::parse(text).map(drop),
            SettingKind::Prices => Prices::parse(text).map(drop),
            SettingKind::Policy => match PolicyKind::from_name(text) {
                Some(_) => Ok(()),
                None => Err(format!("'{text}' is not one of first-come, max-min and karma")),
            },
            SettingKind::Micros => count(text, 0, SPIN_MAX),
            SettingKind::Lease => count(text, LEASE_MIN_MS as u64, LEASE_MAX_MS as u64),
            SettingKind::Loss => count(text, SERVER_LOSS_MIN_MS as u64, SERVER_LOSS_MAX_MS as u64),
            SettingKind::Count(most) => count(text, 1, most),
            SettingKind::Switch => match text {
                "true" | "false" => Ok(()),
                _ => Err(format!("'{text}' is neither true nor false")),
            },
            SettingKind::Disks => disks(text).map(drop),
            SettingKind::DiskShape => disk_shape(text).map(drop),
        }
    }

    /// The number that a checked text of a numeric kind means.
    pub fn number(self, text: &str) -> u64 {
        match self {
            SettingKind::Size | SettingKind::BlockSize | SettingKind::Reserve => {
                size::parse(text).expect("checked")
            }
            _ => text.trim().parse().expect("checked"),
        }
    }
}

fn count(text: &str, least: u64, most: u64) -> Result<(), String> {
    match text.trim().parse::<u64>() {
        Ok(n) if (least..=most).contains(&n) => Ok(()),
        _ => Err(format!("'{text}' is not a whole number from {least} to {most}")),
    }
}

fn check_endpoint(text: &str) -> Result<(), String> {
    let plain = text.strip_prefix("honeycomb://").unwrap_or(text).trim_end_matches('/');
    let port = plain.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    match port.and_then(|(_, port)| port.parse::<u16>().ok()) {
        Some(1..) => Ok(()),
        _ => Err(format!("'{text}' is not HOST:PORT, such as localhost:7420")),
    }
}

/// Parses disks and object stores: `/mnt/a=100GiB,hdd:/mnt/b=2TiB,s3://lake/x=9TiB`.
pub fn disks(text: &str) -> Result<Vec<DiskOptions>, String> {
    let disks = text.split(',').map(|part| disk(part.trim())).collect::<Result<Vec<_>, _>>()?;
    check_tiers(&disks).map_err(|e| e.to_string())?;
    Ok(disks)
}

fn disk(text: &str) -> Result<DiskOptions, String> {
    let wrong = || {
        format!(
            "'{text}' is not PLACE=SIZE or CLASS:PLACE=SIZE, such as /mnt/fast=100GiB, \
             hdd:/mnt=2TiB or s3://bucket/names=9TiB"
        )
    };
    let (place, bytes) = text.rsplit_once('=').ok_or_else(wrong)?;
    let bytes = size::parse(bytes)?;
    let named = place
        .split_once(':')
        .and_then(|(class, place)| TierClass::from_name(class).map(|class| (Some(class), place)));
    let (class, place) = named.unwrap_or((None, place));
    if place.is_empty() || bytes == 0 {
        return Err(wrong());
    }
    let place = Place::parse(place).map_err(|e| e.to_string())?;
    // The URL of a bucket determines its class.
    let class = class.unwrap_or(match place {
        Place::Directory(_) => TierClass::default(),
        Place::Bucket { .. } => TierClass::Object,
    });
    Ok(DiskOptions { place, access: Access::none(), bytes, class, shape: None })
}

/// Parses the rate of disks in megabytes per second and the delay of each request in milliseconds.
pub fn disk_shape(text: &str) -> Result<DiskShape, String> {
    let wrong = || {
        format!(
            "'{text}' is not MEGABYTES_PER_SECOND:MILLISECONDS, such as 500:0.1, with a rate from \
             0.1 to 1000000 and at most 10000 milliseconds"
        )
    };
    let (rate, request) = text.split_once(':').ok_or_else(wrong)?;
    let number = |text: &str| text.trim().parse::<f64>().map_err(|_| wrong());
    let (rate, request) = (number(rate)?, number(request)?);
    if !(0.1..=1e6).contains(&rate) || !(0.0..=10_000.0).contains(&request) {
        return Err(wrong());
    }
    let bytes_per_s = (rate * 1e6).round() as u64;
    Ok(DiskShape { bytes_per_s, request: Duration::from_secs_f64(request / 1e3) })
}

/// Decodes hexadecimal digits.
pub fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let digits = text.trim();
    // The error does not repeat the text: it may be a mistyped secret.
    let wrong = || "the value is not hexadecimal with two digits per byte".to_owned();
    if digits.is_empty() || !digits.len().is_multiple_of(2) || !digits.is_ascii() {
        return Err(wrong());
    }
    (0..digits.len() / 2)
        .map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).map_err(|_| wrong()))
        .collect()
}

/// The name that is most similar to an unknown one, if any is similar enough.
pub fn nearest<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = wrong.replace('-', "_");
    names
        .map(|name| (distance(&wrong.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= 1 + name.len() / 4)
        .min()
        .map(|(_, name)| name)
}

/// The edit distance: letters to insert, delete or change.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let changed = corner + usize::from(from != *to);
            corner = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_read_as_people_write_them() {
        let found = disks("/mnt/a=1GiB, hdd:/mnt/b=2k").expect("two disks");
        let found: Vec<_> = found.iter().map(|d| (d.class, d.place.to_string(), d.bytes)).collect();
        let (first, second) =
            ((TierClass::Ssd, "/mnt/a".into(), 1 << 30), (TierClass::Hdd, "/mnt/b".into(), 2048));
        assert_eq!(found, [first, second]);
        for wrong in ["", "/mnt", "=1k", "/mnt=0", "/mnt=x", "/a=1k,,", "http://x/y=1k"] {
            assert!(disks(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn stores_come_after_disks_and_disks_are_directories() {
        let found = disks("/a=1k,s3://lake/tier=x=1GiB,object:/mnt/nfs=1k").expect("three tiers");
        let found: Vec<_> = found.iter().map(|d| (d.class.name(), d.place.to_string())).collect();
        let expected = [("ssd", "/a"), ("object", "s3://lake/tier=x"), ("object", "/mnt/nfs")];
        assert_eq!(found, expected.map(|(class, place)| (class, place.to_owned())));
        for (wrong, part) in [
            (
                "s3://lake=1k,/mnt=1k",
                "the disk at /mnt is listed after the object store at s3://lake",
            ),
            ("hdd:s3://lake=1k", "write object:s3://lake"),
            ("object:s3://a/../b=1k", "'.' or '..'"),
        ] {
            let found = disks(wrong).map(|_| ()).unwrap_err();
            assert!(found.contains(part), "{found}");
        }
    }

    #[test]
    fn a_shape_is_a_rate_and_a_delay() {
        let shape = disk_shape("500:0.1").expect("a shape");
        assert_eq!((shape.bytes_per_s, shape.request), (500_000_000, Duration::from_micros(100)));
        let slow = disk_shape("0.5 : 0").expect("a shape");
        assert_eq!((slow.bytes_per_s, slow.request), (500_000, Duration::ZERO));
        for wrong in ["", "500", "0:1", "500:", "500:-1", "nan:1", "500:inf", "1e9:1", "1:1:1"] {
            assert!(disk_shape(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_nearest_name_is_found_and_a_far_one_is_not() {
        let names = ["block_size", "memory", "shards", "token"];
        let near = |wrong| nearest(wrong, names.iter().copied());
        assert_eq!(near("blocksize"), Some("block_size"));
        assert_eq!(near("block-size"), Some("block_size"));
        assert_eq!(near("shard"), Some("shards"));
        assert_eq!(near("colour"), None);
        assert_eq!(
            (distance("abc", "abc"), distance("", "abc"), distance("kitten", "sitting")),
            (0, 3, 3)
        );
    }

    #[test]
    fn values_are_checked_by_their_kind() {
        for (kind, good, bad) in [
            (SettingKind::Endpoint, "honeycomb://node:7420/", "node"),
            (SettingKind::Endpoint, "[::1]:1", ":7420"),
            (SettingKind::Socket, "0.0.0.0:0", "localhost:1"),
            (SettingKind::Seconds, "0.5", "0"),
            (SettingKind::Seconds, "30", "inf"),
            (SettingKind::Size, "1.5GiB", "0"),
            (SettingKind::BlockSize, "64KiB", "100KiB"),
            (SettingKind::BlockSize, "1GiB", "2GiB"),
            (SettingKind::Micros, "0", "-1"),
            (SettingKind::Count(254), "254", "255"),
            (SettingKind::Lease, "200", "199"),
            (SettingKind::Loss, "3000", "2999"),
            (SettingKind::Directory, "/x", ""),
            (SettingKind::Place, "s3://lake/x", "http://lake/x"),
            (SettingKind::Switch, "true", "yes"),
            (SettingKind::Token, "00ff", "00f"),
            (SettingKind::Name, "cli", "a/"),
            (SettingKind::Name, "acme/cli", "a/b/c"),
            (SettingKind::Path, "x", ""),
            (SettingKind::Prices, "memory=0.1", "silver=1"),
            (SettingKind::Policy, "max-min", "fair"),
        ] {
            assert_eq!(kind.check(good), Ok(()), "{kind:?} {good}");
            assert!(kind.check(bad).is_err(), "{kind:?} {bad}");
        }
        assert_eq!(unhex("00ff"), Ok(vec![0, 255]));
        assert!(!unhex("secret").unwrap_err().contains("secret"));
    }
}
