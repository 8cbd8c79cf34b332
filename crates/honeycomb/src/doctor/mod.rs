//! `doctor`: finds problems of this machine and its cluster, and says how to fix them.
//!
//! Every check ends in bounded time and changes nothing.

mod cluster;
mod machine;
mod network;

use crate::config::{ForDoctor, Given, Settings};
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use clap::Args;
use honeycomb_env::Clock;
use serde_json::{Value, json};

/// Checks this machine and the cluster, and says how to fix problems.
///
/// Each line is ok, warn or fail with an explanation; for warn and fail, the next line says what to do. The
/// checks use the same settings as `start` and the other commands. They change nothing and end within some
/// seconds. The exit code is 1 if a check fails, else 0.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb doctor
  honeycomb doctor --memory 64MiB
  honeycomb doctor --json")]
pub struct DoctorArgs {
    #[command(flatten)]
    given: Given<ForDoctor>,
    #[command(flatten)]
    output: Output,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grade {
    Ok,
    Warn,
    Fail,
}

/// The finding of a check.
struct Finding {
    check: &'static str,
    grade: Grade,
    text: String,
    remedy: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, text: impl Into<String>) -> Finding {
        Finding { check, grade: Grade::Ok, text: text.into(), remedy: None }
    }

    fn warn(check: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { check, grade: Grade::Warn, text: text.into(), remedy: Some(remedy.into()) }
    }

    fn fail(check: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { check, grade: Grade::Fail, text: text.into(), remedy: Some(remedy.into()) }
    }

    fn to_json(&self) -> Value {
        json!({
            "check": self.check, "grade": self.grade.name(), "text": self.text,
            "remedy": self.remedy,
        })
    }

    fn print(&self) {
        say!("{:<4}  {:<13} {}", self.grade.name(), self.check, self.text);
        if let Some(remedy) = &self.remedy {
            say!("{:21}-> {remedy}", "");
        }
    }
}

impl Grade {
    fn name(self) -> &'static str {
        match self {
            Grade::Ok => "ok",
            Grade::Warn => "warn",
            Grade::Fail => "fail",
        }
    }
}

/// `honeycomb doctor`.
pub fn doctor(args: &DoctorArgs) -> CommandResult {
    let clock = Clock::start();
    let found = match args.given.settings() {
        Ok(settings) => examine(clock, &settings),
        // The other checks need settings.
        Err(e) => vec![Finding::fail("configuration", e.to_string(), "correct this value")],
    };
    let count = |grade| found.iter().filter(|f| f.grade == grade).count();
    let (warnings, failures) = (count(Grade::Warn), count(Grade::Fail));
    if args.output.json {
        let findings: Vec<Value> = found.iter().map(Finding::to_json).collect();
        say!("{}", json!({ "findings": findings, "warn": warnings, "fail": failures }));
    } else {
        found.iter().for_each(Finding::print);
        say!("{}, {}", counted(warnings, "warning"), counted(failures, "failure"));
    }
    match failures {
        0 => Ok(()),
        // The report has been printed.
        _ => Err(Failure::from("the doctor found failures").already_printed()),
    }
}

fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

fn examine(clock: Clock, settings: &Settings) -> Vec<Finding> {
    let mut found = cluster::configuration(settings);
    found.extend(cluster::reach(clock, settings));
    found.extend(network::ports(settings));
    found.push(network::wake_up(clock));
    found.extend(machine::limits());
    found.extend(machine::memory(settings));
    found.push(machine::clock());
    found.push(machine::huge_pages());
    found.push(machine::shared_memory());
    found.push(machine::cores(settings));
    found.push(cluster::python(settings));
    found.extend(cluster::folders(settings));
    found
}
