//! The configuration file: TOML with one key for each setting.

use super::kind::nearest;
use super::{Setting, TABLE, variable};
use crate::failure::{CommandResult, Failure};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// A valid configuration file.
pub struct ConfigFile {
    pub path: PathBuf,
    values: Vec<(&'static str, String, usize)>,
}

/// The path of the file, and whether a flag or a variable names it: a named file must exist.
pub fn path(flag: Option<&Path>) -> Option<(PathBuf, bool)> {
    if let Some(path) = flag {
        return Some((path.to_owned(), true));
    }
    if let Some(path) = variable("HONEYCOMB_CONFIG") {
        return Some((path.into(), true));
    }
    let folder = match variable("XDG_CONFIG_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(&variable("HOME")?).join(".config"),
    };
    Some((folder.join("honeycomb/config.toml"), false))
}

/// Reads the file; `None` when it does not exist and is not named.
pub fn read(path: &Path, named: bool) -> CommandResult<Option<ConfigFile>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if !named && matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(e) => {
            let text = format!("cannot read the configuration file {}: {e}", path.display());
            return Err(Failure::invalid(text));
        }
    };
    let file = parse(path, &text)?;
    if file.get("token").is_some() {
        check_private(path)?;
    }
    Ok(Some(file))
}

/// A token is a secret: a file with a token is refused when other users can access it.
fn check_private(path: &Path) -> CommandResult {
    let metadata = fs::metadata(path).map_err(|e| Failure::io(path.display(), &e))?;
    if metadata.mode() & 0o077 == 0 {
        return Ok(());
    }
    let text = format!(
        "cannot use {0}: it contains a token and other users can access it (mode {1:04o}); run \
         chmod 600 {0}",
        path.display(),
        metadata.mode() & 0o7777
    );
    Err(Failure::new(honeycomb_wire::Status::PermissionDenied, text))
}

fn parse(path: &Path, text: &str) -> CommandResult<ConfigFile> {
    let wrong = |at: usize, why: String| {
        Failure::invalid(format!("{}:{}: {why}", path.display(), line(text, at)))
    };
    let table = DeTable::parse(text)
        .map_err(|e| wrong(e.span().map_or(0, |span| span.start), e.message().to_owned()))?;
    let mut values = Vec::new();
    for (key, value) in table.get_ref() {
        let at = key.span().start;
        let name = key.get_ref().as_ref();
        let Some(setting) = Setting::named(name) else {
            return Err(wrong(at, unknown(name)));
        };
        let value = scalar(value.get_ref()).and_then(|text| {
            setting.kind.check(&text)?;
            Ok(text)
        });
        let value = value.map_err(|why| wrong(at, format!("{name}: {why}")))?;
        values.push((setting.name, value, line(text, at)));
    }
    Ok(ConfigFile { path: path.to_owned(), values })
}

fn unknown(name: &str) -> String {
    match nearest(name, TABLE.iter().map(|s| s.name)) {
        Some(near) => format!("unknown setting '{name}'; did you mean '{near}'?"),
        None => {
            let names: Vec<&str> = TABLE.iter().map(|s| s.name).collect();
            format!("unknown setting '{name}'; the settings are {}", names.join(", "))
        }
    }
}

/// A value in the form of an environment variable.
fn scalar(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Boolean(flag) => Ok(flag.to_string()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map(|n| n.to_string())
            .map_err(|_| format!("{} is too large", number.as_str())),
        _ => Err("the value must be a text, a number, true or false".into()),
    }
}

/// The line of an offset, from 1.
fn line(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|b| *b == b'\n').count()
}

impl ConfigFile {
    /// A setting's value and its line.
    pub fn get(&self, name: &str) -> Option<(&str, usize)> {
        self.values.iter().find(|(n, ..)| *n == name).map(|(_, text, line)| (text.as_str(), *line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<ConfigFile, String> {
        parse(Path::new("c.toml"), text).map_err(|e| e.to_string())
    }

    #[test]
    fn values_of_every_kind_have_their_lines() {
        let text = "# comment\nmemory = \"1GiB\"\n\nblock_size = 0x10000\ntimeout = 2.5\n\
                    insecure = true\nshards = 1_0\n";
        let file = parsed(text).unwrap();
        assert_eq!(file.get("memory"), Some(("1GiB", 2)));
        assert_eq!(file.get("block_size"), Some(("65536", 4)));
        assert_eq!(file.get("timeout"), Some(("2.5", 5)));
        assert_eq!(file.get("insecure"), Some(("true", 6)));
        assert_eq!(file.get("shards"), Some(("10", 7)));
        assert_eq!(file.get("listen"), None);
    }

    #[test]
    fn mistakes_are_told_with_their_line_and_the_right_name() {
        for (text, told) in [
            (
                "\nblok_size = 1",
                "c.toml:2: unknown setting 'blok_size'; did you mean 'block_size'?",
            ),
            ("\n\ncolour = 1", "c.toml:3: unknown setting 'colour'; the settings are address"),
            ("memory = 1\nmemory = 2", "c.toml:2: duplicate key"),
            ("shards = \"many\"", "c.toml:1: shards: 'many' is not a whole number from 1 to 254"),
            ("shards = [1]", "c.toml:1: shards: the value must be a text"),
            ("[server]\nshards = 1", "c.toml:1: unknown setting 'server'"),
            ("timeout = ", "c.toml:1: "),
        ] {
            let error = parsed(text).map(drop).unwrap_err();
            assert!(error.contains(told), "{text:?} gave {error:?}");
        }
    }
}
