//! The measured builds: this build, and with `--against` another build.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The checkout that this program was built from.
const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Digits of a commit in the name of its folder.
const DIGITS: usize = 12;

/// One build of Honeycomb: its server, its clients and its benchmarks.
///
/// Client and server of a measurement are always of the same build, so that a comparison of two builds
/// compares whole systems.
#[derive(Clone, Debug)]
pub struct Build {
    /// Its `honeycomb-compare`, which also contains `honeycomb` and the clients in Rust.
    pub program: PathBuf,
    /// The checkout that it was built from, with its Python package; `None` for a binary alone.
    checkout: Option<PathBuf>,
}

impl Build {
    /// This program.
    pub fn own() -> Result<Build, String> {
        let program =
            std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
        // A program that was moved away from its checkout has no checkout.
        Ok(Build { program, checkout: Path::new(CHECKOUT).canonicalize().ok() })
    }

    /// A `honeycomb-compare` that is already built.
    pub fn binary(path: &Path) -> Result<Build, String> {
        let program = path.canonicalize().map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Build { program, checkout: None })
    }

    /// Builds a revision of this repository in a worktree under `target/against`, or reuses an existing build
    /// of the same commit.
    pub fn revision(revision: &str) -> Result<Build, String> {
        let checkout = Path::new(CHECKOUT).canonicalize();
        let checkout = checkout.map_err(|e| format!("cannot find the checkout {CHECKOUT}: {e}"))?;
        let commit = commit(&checkout, revision)?;
        let folder = checkout.join("target/against").join(&commit[..DIGITS]);
        if folder.join(".git").exists() {
            check_unchanged(&folder, &commit)?;
        } else {
            // Forced, because git remembers a worktree whose folder `cargo clean` has removed.
            let mut add = git(&checkout);
            add.args(["worktree", "add", "--quiet", "--force", "--detach"]).arg(&folder);
            run(add.arg(&commit), "cannot create a worktree")?;
        }
        eprintln!(
            "bench/compare: building {revision} in {}; the first build takes minutes",
            folder.display()
        );
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--release", "--locked", "-p", "honeycomb-compare"]);
        run(in_folder(&mut cargo, &folder), &format!("cannot build {revision}"))?;
        let program = folder.join("target/release/honeycomb-compare");
        Ok(Build { program, checkout: Some(folder) })
    }

    /// Builds and installs its Python package as its own Makefile does, in its own `.venv`.
    pub fn prepare_python(&self) -> Result<(), String> {
        let Some(checkout) = &self.checkout else { return Ok(()) };
        eprintln!("bench/compare: building the Python package of {}", checkout.display());
        let mut bash = Command::new("bash");
        bash.args(["-ec", "scripts/bootstrap.sh bench && make -s build"]);
        let what = format!("cannot build the Python package of {}", checkout.display());
        run(in_folder(&mut bash, checkout), &what)
    }

    /// The client in Python.
    pub fn python_worker(&self) -> Result<Command, String> {
        let Some(checkout) = &self.checkout else {
            return Err(format!("{} is a binary with no Python package", self.program.display()));
        };
        let python = checkout.join(".venv/bin/python");
        if !python.exists() {
            return Err(format!(
                "there is no .venv in {}: create it with `make peers build`",
                checkout.display()
            ));
        }
        let mut command = Command::new(python);
        command.arg(checkout.join("bench/worker.py"));
        Ok(command)
    }
}

fn git(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(folder);
    command
}

/// The commit that a revision names.
fn commit(checkout: &Path, revision: &str) -> Result<String, String> {
    let mut command = git(checkout);
    command.args(["rev-parse", "--verify", "--quiet", "--end-of-options"]);
    let commit = output(command.arg(format!("{revision}^{{commit}}")))?;
    match commit.len() > DIGITS {
        true => Ok(commit),
        false => Err(format!(
            "'{revision}' is not a revision of {}: use a commit, a branch or a tag; a shallow \
             clone needs `git fetch --unshallow` first",
            checkout.display()
        )),
    }
}

/// Refuses a worktree whose files differ from the commit: its build would not be that of the commit.
fn check_unchanged(folder: &Path, commit: &str) -> Result<(), String> {
    let head = output(git(folder).args(["rev-parse", "HEAD"]))?;
    let changes = output(git(folder).args(["status", "--porcelain", "--untracked-files=no"]))?;
    match head == commit && changes.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{} differs from commit {commit}; remove the folder, the next run creates it again",
            folder.display()
        )),
    }
}

/// The output of a command without its last newline; `None` when the command fails.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| format!("{}: {e}", command.get_program().display()))?;
    let text = if output.status.success() { output.stdout } else { Vec::new() };
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

/// A command in a checkout, with that checkout's own target folder.
fn in_folder<'a>(command: &'a mut Command, folder: &Path) -> &'a mut Command {
    command.current_dir(folder).env("CARGO_TARGET_DIR", folder.join("target"))
}

/// Runs a command to its end. Its output goes to standard error: standard output is for figures.
fn run(command: &mut Command, failed: &str) -> Result<(), String> {
    let status = command.stdin(Stdio::null()).stdout(std::io::stderr()).status();
    let status =
        status.map_err(|e| format!("{failed}: {}: {e}", command.get_program().display()))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{failed}; see the messages above")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_is_no_revision_is_refused() {
        let refused = Build::revision("no-such-revision").unwrap_err();
        assert!(refused.contains("no-such-revision") && refused.contains("commit"), "{refused}");
        assert!(Build::revision("--help").is_err());
    }

    #[test]
    fn binary_alone_has_no_python_package() {
        let own = Build::own().unwrap();
        let alone = Build::binary(&own.program).unwrap();
        assert!(alone.python_worker().unwrap_err().contains("no Python package"));
        assert!(Build::binary(Path::new("/no/such/file")).is_err());
    }
}
