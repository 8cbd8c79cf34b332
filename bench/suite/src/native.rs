//! Peers that are libraries in C: their programs are built when they are measured.

use std::path::Path;
use std::process::Command;

/// Builds a program from its source, with flags for the compiler. `Err` has the compiler's first error.
pub fn build(source: &Path, program: &Path, flags: &[&str]) -> Result<(), String> {
    let mut command = Command::new("cc");
    command.args(["-O2", "-Wall", "-Werror", "-o"]).arg(program).arg(source).args(flags);
    let output = command.output().map_err(|e| format!("no C compiler: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().find(|line| line.contains("error")).unwrap_or(&said);
    Err(format!("cannot build {}: {first}", source.display()))
}
