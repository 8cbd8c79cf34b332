//! Names and addresses as people write them.
//!
//! `T4/T6:part-0` is the structure `part-0` under the prefix reached by `T4` then `T6`; without the
//! colon it is the unnamed structure. `honeycomb://host:port/job/T4/T6:part-0` adds the cluster and
//! the job. The paper's dotted form (`T4.T6`) is accepted in look-ups of a path if no prefix of
//! that literal name exists (`dotted_path`); creation always requires `/`.

use crate::limits::{NAME_MAX, PATH_DEPTH_MAX};
use thiserror::Error;

/// An invalid name or path, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid name {name:?}: {why}")]
pub struct InvalidName {
    /// The given text, cut to a length that fits into a message.
    pub name: String,
    /// The rule that it breaks.
    pub why: &'static str,
}

fn refuse(name: &str, why: &'static str) -> InvalidName {
    InvalidName { name: name.chars().take(80).collect(), why }
}

/// Checks one name (of a job, a prefix or a structure).
///
/// A name has 1 to `NAME_MAX` bytes of UTF-8 without control characters, `/` and `:`, and is
/// neither `.` nor `..`.
pub fn check_name(name: &str) -> Result<(), InvalidName> {
    if name.is_empty() {
        return Err(refuse(name, "it is empty"));
    }
    if name.len() > NAME_MAX {
        return Err(refuse(name, "it is longer than 255 bytes"));
    }
    if name == "." || name == ".." {
        return Err(refuse(name, "'.' and '..' are not names"));
    }
    if name.chars().any(|c| c == '/' || c == ':' || c.is_control()) {
        return Err(refuse(name, "a name has no '/', no ':' and no control characters"));
    }
    Ok(())
}

/// Checks the name of a job: a name, or that of its tenant and its own separated by `/`.
pub fn check_job_name(name: &str) -> Result<(), InvalidName> {
    let (tenant, own) = name.split_once('/').map_or((None, name), |(t, own)| (Some(t), own));
    if name.len() > NAME_MAX {
        return Err(refuse(name, "with its tenant it is longer than 255 bytes"));
    }
    tenant.map_or(Ok(()), check_name)?;
    check_name(own)
}

/// The tenant at the start of a job's name; a job without one is its own tenant.
pub fn tenant_of(job: &str) -> Option<&str> {
    job.split_once('/').map(|(tenant, _)| tenant)
}

/// Splits a path of prefixes into its checked names. The empty path is the job's root prefix.
pub fn split_path(path: &str) -> Result<Vec<&str>, InvalidName> {
    split_at(path.strip_prefix('/').unwrap_or(path), '/')
}

/// The paper's dotted form of a path (`T4.T6` as `T4/T6`), if it could be meant: the path has dots
/// and no slash. Look-ups try it after the literal name.
pub fn dotted_path(path: &str) -> Option<Vec<&str>> {
    if path.contains('/') || !path.contains('.') {
        return None;
    }
    split_at(path, '.').ok()
}

fn split_at(path: &str, separator: char) -> Result<Vec<&str>, InvalidName> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let parts: Vec<&str> = path.split(separator).collect();
    if parts.len() > PATH_DEPTH_MAX {
        return Err(refuse(path, "it has more than 64 levels"));
    }
    for part in &parts {
        check_name(part)?;
    }
    Ok(parts)
}

/// A structure's address within a job: the prefix path and the structure's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address<'a> {
    /// Path of the prefix; empty for the job's root prefix.
    pub path: &'a str,
    /// Name of the structure; empty for the unnamed one.
    pub name: &'a str,
}

impl<'a> Address<'a> {
    /// Reads `path[:name]` and checks both parts.
    pub fn parse(text: &'a str) -> Result<Address<'a>, InvalidName> {
        let (path, name) = match text.split_once(':') {
            Some((path, name)) => (path, name),
            None => (text, ""),
        };
        split_path(path)?;
        if !name.is_empty() {
            check_name(name)?;
        }
        Ok(Address { path, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_separators_reach_the_same_parts() {
        assert_eq!(split_path("T4/T6").unwrap(), ["T4", "T6"]);
        assert_eq!(split_path("v1.2").unwrap(), ["v1.2"]);
        assert_eq!(dotted_path("T4.T6").unwrap(), ["T4", "T6"]);
        assert_eq!(dotted_path("a.b/c"), None);
        assert!(split_path("").unwrap().is_empty());
    }

    #[test]
    fn bad_names_say_why() {
        for bad in ["a//b", "..", "a/..", "a\u{7}", "a/b:c", &"x".repeat(256)] {
            assert!(split_path(bad).is_err(), "{bad:?} was accepted");
        }
        let deep = vec!["d"; 65].join("/");
        assert!(split_path(&deep).unwrap_err().why.contains("64"));
    }

    #[test]
    fn a_job_may_be_a_tenants() {
        for (name, tenant) in [("sort", None), ("acme/sort", Some("acme"))] {
            assert_eq!(check_job_name(name), Ok(()));
            assert_eq!(tenant_of(name), tenant);
        }
        let long = format!("{}/{}", "t".repeat(127), "j".repeat(128));
        for bad in ["", "/", "acme/", "/sort", "a/b/c", "../sort", "a:b", &long] {
            assert!(check_job_name(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn addresses_split_at_the_colon() {
        let a = Address::parse("T3/T7:part-0").unwrap();
        assert_eq!((a.path, a.name), ("T3/T7", "part-0"));
        assert_eq!(Address::parse("T3").unwrap().name, "");
        assert!(Address::parse("T3:a:b").is_err());
    }
}
