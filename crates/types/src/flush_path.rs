//! The destination of a prefix's data at the end of its lease: `flush_to` as people write it, and
//! the directory under the servers' `flush_root` that it denotes.

use crate::limits::{FLUSH_DIRECTORY_MAX, NAME_MAX, PATH_DEPTH_MAX};
use crate::name::{InvalidName, check_name};

/// Name of the object that makes a flush: without it there is none.
pub const FLUSH_MANIFEST: &str = "manifest.json";
/// Suffix of the names of a flush's other objects.
pub const FLUSH_PART: &str = ".part";
/// Suffix of the names of objects with extents of large values. It follows the block and its epoch,
/// as hexadecimal digits separated by `-`, by which entries name the extents.
pub const FLUSH_EXTENTS: &str = ".extents.part";

/// The name of the object that names the owner of a journal.
pub const FLUSH_JOURNAL: &str = "journal.json";
/// Suffix of the names of a journal's other objects.
pub const FLUSH_RECORD: &str = ".journal";

/// The name by which a sweep denotes all objects of a journal whose names begin with this stem.
pub fn journal_sweep(stem: &str) -> String {
    format!("{stem}*{FLUSH_RECORD}")
}

/// The name of one object of a block, whose first object is `first`: the others have their number
/// after the block's, so that the suffix stays.
pub fn flush_object(first: &str, object: usize) -> String {
    if object == 0 {
        return first.to_owned();
    }
    // Number of the flush, server, block within the flush.
    let end = first.match_indices(['-', '.']).nth(2).map_or(first.len(), |(at, _)| at);
    format!("{}-{object:04}{}", &first[..end], &first[end..])
}

/// The directory of a flush, relative to the `flush_root`: one for the job, with those of the path
/// in it.
///
/// The path consists of names separated by `/`. It cannot leave the job's own directory: a name is
/// never `..`, and only letters, digits, `_`, `-`, and a `.` that is not the first byte are taken
/// literally; every other byte is written as `=` and two hexadecimal digits.
///
/// Refused if one of its names is invalid or would be longer than 255 bytes in this form, or if the
/// whole is longer than 1,024 bytes.
pub fn flush_directory(job: &str, path: &str) -> Result<String, InvalidName> {
    let refuse = |why| InvalidName { name: path.chars().take(80).collect(), why };
    if path.is_empty() {
        return Err(refuse("it is empty"));
    }
    let mut directory = encoded(job);
    if directory.len() > NAME_MAX {
        return Err(refuse(
            "the job's name cannot be the name of a directory: with its special characters \
             escaped it is longer than 255 bytes",
        ));
    }
    for (depth, name) in path.split('/').enumerate() {
        if depth >= PATH_DEPTH_MAX {
            return Err(refuse("it has more than 64 levels"));
        }
        check_name(name)?;
        let own = [FLUSH_PART, FLUSH_RECORD].iter().any(|end| name.ends_with(end));
        if own || name == FLUSH_MANIFEST || name == FLUSH_JOURNAL {
            return Err(refuse(
                "'manifest.json', 'journal.json' and names that end in '.part' or '.journal' are \
                 reserved for the flush itself",
            ));
        }
        let name = encoded(name);
        if name.len() > NAME_MAX {
            return Err(refuse(
                "a name is longer than 255 bytes after its special characters are escaped",
            ));
        }
        directory.push('/');
        directory.push_str(&name);
    }
    if directory.len() > FLUSH_DIRECTORY_MAX {
        return Err(refuse("with the job's name in front, it is longer than 1,024 bytes"));
    }
    Ok(directory)
}

/// A path of prefixes in the form used in the places of their flushes.
pub fn flush_names(path: &str) -> String {
    path.split('/').map(encoded).collect::<Vec<_>>().join("/")
}

fn encoded(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'.' if at > 0 => out.push('.'),
            b'_' | b'-' => out.push(byte as char),
            _ if byte.is_ascii_alphanumeric() => out.push(byte as char),
            _ => out.push_str(&format!("={byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn objects_of_one_block_have_names_of_their_own_that_end_alike() {
        assert_eq!(super::flush_object("5-a-00003.part", 0), "5-a-00003.part");
        assert_eq!(super::flush_object("5-a-00003.part", 1), "5-a-00003-0001.part");
        let extents = "5-a-00003-b1-e1.extents.part";
        assert_eq!(super::flush_object(extents, 12), "5-a-00003-0012-b1-e1.extents.part");
    }

    use super::*;

    #[test]
    fn directories_stay_below_the_job() {
        assert_eq!(flush_directory("job", "out/T1").unwrap(), "job/out/T1");
        assert_eq!(flush_directory("a b", "v1.2/.x").unwrap(), "a=20b/v1.2/=2Ex");
        assert_eq!(flush_directory("\u{e9}=", "%").unwrap(), "=C3=A9=3D/=25");
        for bad in [
            "",
            "/etc",
            "../up",
            "a/../../b",
            "a//b",
            "a/",
            "a\0b",
            "a:b",
            "a/manifest.json",
            "x.part",
        ] {
            assert!(flush_directory("job", bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn two_paths_never_mean_one_directory() {
        let paths = ["a=20", "a ", "a=2", "a.", "=2E", ".b", "a/b", "a=2Fb"];
        let made: std::collections::HashSet<_> =
            paths.iter().map(|path| flush_directory("j", path).unwrap()).collect();
        assert_eq!(made.len(), paths.len());
    }

    #[test]
    fn what_no_file_system_takes_is_refused_before() {
        let long = "\u{20ac}".repeat(40);
        assert!(flush_directory("job", &long).unwrap_err().why.contains("255"));
        assert!(flush_directory(&long, "x").unwrap_err().why.contains("255"));
        let deep = vec!["d".repeat(100); 11].join("/");
        assert!(flush_directory("job", &deep).unwrap_err().why.contains("1,024"));
    }
}
