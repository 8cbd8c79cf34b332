//! The place of flushed data: a directory, or a bucket of an object store with a path in it.

use honeycomb_types::flush_names;
use std::fmt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The supported object stores, each with the scheme of its URLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cloud {
    /// `s3://`: Amazon's, and others with its protocol.
    S3,
    /// `gs://`
    Google,
    /// `az://`
    Azure,
}

impl Cloud {
    const ALL: [Cloud; 3] = [Cloud::S3, Cloud::Google, Cloud::Azure];

    fn scheme(self) -> &'static str {
        match self {
            Cloud::S3 => "s3",
            Cloud::Google => "gs",
            Cloud::Azure => "az",
        }
    }
}

/// A directory or a part of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A directory of this machine or of a mounted file system.
    Directory(PathBuf),
    /// In an object store.
    Bucket {
        /// The store.
        cloud: Cloud,
        /// Its bucket; a container of Azure's.
        bucket: String,
        /// Names separated by `/`; empty for the whole bucket.
        path: String,
    },
}

/// A text that does not name a place.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("'{text}' cannot be a place for data: {why}")]
pub struct InvalidPlace {
    /// The text.
    pub text: String,
    /// The reason.
    pub why: &'static str,
}

impl Place {
    /// A directory, as a path or as `file:///directory`; or `s3://`, `gs://` or `az://` with a
    /// bucket and names. In the names, characters that a URL would escape are refused, and so are
    /// `.` and `..`, so that no two texts name the same place.
    pub fn parse(text: &str) -> Result<Place, InvalidPlace> {
        let refuse = |why| Err(InvalidPlace { text: text.into(), why });
        if text.is_empty() {
            return refuse("it is empty");
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Ok(Place::Directory(text.into()));
        };
        if scheme == "file" {
            return match rest.starts_with('/') && !rest.contains(['%', '?', '#']) {
                true => Ok(Place::Directory(rest.into())),
                false => refuse("a file URL is file:// and an absolute path without escapes"),
            };
        }
        let Some(cloud) = Cloud::ALL.into_iter().find(|cloud| cloud.scheme() == scheme) else {
            return refuse("it begins with none of s3://, gs://, az:// and file://");
        };
        let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !is_name(bucket) {
            return refuse("a bucket's name has only letters, digits, '-', '_' and '.'");
        }
        let names = path.strip_suffix('/').unwrap_or(path);
        if !path.is_empty() && !names.split('/').all(is_name) {
            return refuse(
                "the path after the bucket has names of letters, digits, '-', '_', '.' and '=' \
                 with '/' between them, and no name is '.' or '..'",
            );
        }
        Ok(Place::Bucket { cloud, bucket: bucket.into(), path: names.into() })
    }

    /// The place of this relative path in it.
    pub fn join(&self, below: &str) -> Place {
        match self {
            Place::Directory(root) => Place::Directory(root.join(below)),
            Place::Bucket { cloud, bucket, path } => {
                let path = match path.is_empty() {
                    true => below.to_owned(),
                    false => format!("{path}/{below}"),
                };
                Place::Bucket { cloud: *cloud, bucket: bucket.clone(), path }
            }
        }
    }

    /// The place of a prefix's flush in a subtree that was flushed here: `path` is a path of
    /// prefixes.
    pub fn below(&self, path: &str) -> Place {
        self.join(&flush_names(path))
    }

    /// The path, if it is a directory.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Place::Directory(path) => Some(path),
            Place::Bucket { .. } => None,
        }
    }
}

fn is_name(name: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || b"-_.=".contains(&b);
    !matches!(name, "" | "." | "..") && name.bytes().all(known)
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Directory(path) => path.display().fmt(f),
            Place::Bucket { cloud, bucket, path } => {
                write!(f, "{}://{bucket}", cloud.scheme())?;
                if path.is_empty() { Ok(()) } else { write!(f, "/{path}") }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_what_its_text_says_and_shows_as_it() {
        for (text, shown) in [
            ("flush", "flush"),
            ("/var/flush", "/var/flush"),
            ("file:///var/flush", "/var/flush"),
            ("s3://lake", "s3://lake"),
            ("s3://lake/", "s3://lake"),
            ("gs://lake/a/my=20job/", "gs://lake/a/my=20job"),
            ("az://box-1/a.b", "az://box-1/a.b"),
        ] {
            let place = Place::parse(text).unwrap();
            assert_eq!(place.to_string(), shown);
            assert_eq!(Place::parse(shown), Ok(place));
        }
        let below = Place::parse("s3://lake").unwrap().join("job/out");
        assert_eq!(below.to_string(), "s3://lake/job/out");
        assert_eq!(below.join("x").to_string(), "s3://lake/job/out/x");
        assert_eq!(Place::parse("/a").unwrap().join("b/c").to_string(), "/a/b/c");
    }

    #[test]
    fn what_could_mean_another_place_is_none() {
        for bad in [
            "",
            "http://lake/x",
            "S3://lake",
            "s3://",
            "s3:///x",
            "s3://..",
            "s3://lake/../other",
            "s3://lake/a//b",
            "s3://lake//",
            "s3://lake/a%2Fb",
            "s3://lake/a?x",
            "s3://key:secret@lake/x",
            "az://box@account/x",
            "file://host/x",
            "file://x",
            "file:///a%20b",
        ] {
            assert!(Place::parse(bad).is_err(), "{bad:?} was taken");
        }
    }
}
