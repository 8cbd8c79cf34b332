//! `config show`.

use super::{All, Given, Origin, Resolved, SettingKind};
use crate::failure::CommandResult;
use crate::output::Output;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

/// Shows the configuration and its sources.
///
/// This command changes nothing: settings are flags, environment variables, and keys of one file that you
/// edit yourself.
#[derive(Args)]
#[command(after_help = "Examples:\n  honeycomb config show --origin")]
pub struct ConfigArgs {
    #[command(subcommand)]
    what: ConfigCommand,
}

#[derive(Subcommand)]
enum ConfigCommand {
    Show(Box<ConfigShowArgs>),
}

/// Prints every setting and its value.
///
/// The value of a setting comes from its flag (--block-size), else from an environment variable
/// (HONEYCOMB_BLOCK_SIZE), else from the configuration file (block_size), else it is the default. The whole
/// file is checked: an unknown key or an invalid value is an error that names its line. Secrets are not
/// printed. Flags given here show the value that a command with these flags would use.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb config show
  honeycomb config show --origin --block-size 1MiB    # what a flag would change
  HONEYCOMB_MEMORY=1GiB honeycomb config show --json")]
struct ConfigShowArgs {
    /// Show the source of each value: flag, environment, file and line, or default
    #[arg(long)]
    origin: bool,
    #[command(flatten)]
    given: Given<All>,
    #[command(flatten)]
    output: Output,
}

/// `honeycomb config`.
pub fn config(args: &ConfigArgs) -> CommandResult {
    let ConfigCommand::Show(args) = &args.what;
    let settings = args.given.settings()?;
    if args.output.json {
        let all: Vec<Value> = settings.values.iter().map(as_json).collect();
        say!(
            "{}",
            json!({ "file": settings.file().map(|p| p.to_string_lossy()), "settings": all })
        );
        return Ok(());
    }
    for resolved in &settings.values {
        let value = shown(resolved).unwrap_or_else(|| "-".into());
        match args.origin {
            true => say!("{:<13} {value:<28} {}", resolved.setting.name, whence(resolved)),
            false => say!("{:<13} {value}", resolved.setting.name),
        }
    }
    Ok(())
}

/// The printable value; `None` when the setting has no value.
fn shown(resolved: &Resolved) -> Option<String> {
    let text = resolved.text.as_ref()?;
    Some(match resolved.setting.kind {
        SettingKind::Token => "(secret)".into(),
        _ => text.clone(),
    })
}

fn whence(resolved: &Resolved) -> String {
    match &resolved.origin {
        Origin::Flag => format!("flag --{}", resolved.setting.flag()),
        Origin::Environment => format!("environment {}", resolved.setting.variable()),
        Origin::File(path, line) => format!("file {}:{line}", path.display()),
        Origin::Default => format!("default: {}", resolved.setting.otherwise.replace('`', "")),
    }
}

fn as_json(resolved: &Resolved) -> Value {
    let origin = match &resolved.origin {
        Origin::Flag => json!({ "from": "flag" }),
        Origin::Environment => json!({ "from": "environment" }),
        Origin::File(path, line) => {
            json!({ "from": "file", "file": path.to_string_lossy(), "line": line })
        }
        Origin::Default => json!({ "from": "default" }),
    };
    json!({
        "name": resolved.setting.name, "value": shown(resolved), "origin": origin,
        "flag": format!("--{}", resolved.setting.flag()),
        "environment": resolved.setting.variable(), "of": resolved.setting.of,
    })
}
