"""scripts/rust-tests with a `cargo` that builds shell scripts in place of test binaries."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1]
DOCUMENTATION = "exit 0"


def run(
    root: Path,
    binaries: dict[str, str],
    *arguments: str,
    documentation: str = DOCUMENTATION,
    script: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs the script in a tree whose crate `a` has these test binaries."""
    (root / "scripts").mkdir(exist_ok=True)
    shutil.copy(SCRIPTS / "rust-tests", root / "scripts")
    if script is not None:
        (root / "scripts" / "rust-tests").write_text(script)
    messages = [{"reason": "build-finished", "success": True}]
    for name, text in {"unused": "exit 1", **binaries}.items():
        path = root / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        artifact = {
            "reason": "compiler-artifact",
            "manifest_path": str(root / "a" / "Cargo.toml"),
            "target": {"name": name, "kind": ["test"]},
            "profile": {"test": name != "unused"},
            "executable": str(path),
        }
        messages.append(artifact)
    (root / "a").mkdir(exist_ok=True)
    (root / "messages").write_text("\n".join(map(json.dumps, messages)))
    tools = root / "tools"
    tools.mkdir(exist_ok=True)
    cargo = tools / "cargo"
    cargo.write_text(
        f'#!/bin/sh\ncase "$*" in *--no-run*) cat {root}/messages ;; *) {documentation} ;; esac\n'
    )
    cargo.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    command = [root / "scripts" / "rust-tests", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_every_binary_runs_in_the_folder_of_its_crate(tmp_path: Path) -> None:
    binaries = {"one": 'echo "one in $(pwd)"', "two": 'echo "two in $(pwd)"'}
    done = run(tmp_path, binaries)
    assert done.returncode == 0, done.stderr
    assert f"one in {tmp_path}/a\n" in done.stdout
    assert f"two in {tmp_path}/a\n" in done.stdout


@pytest.mark.parametrize("status", ["exit 1", "kill -SEGV $$"])
def test_a_binary_that_fails_is_named_and_the_others_run(tmp_path: Path, status: str) -> None:
    done = run(tmp_path, {"bad": f"echo found; {status}", "good": "echo fine"}, "--at-once", "1")
    assert done.returncode == 1
    assert "found" in done.stdout and "fine" in done.stdout
    assert "error: a-test-bad failed" in done.stderr and "good" not in done.stderr
    assert ("ended by SIGSEGV" in done.stdout) == status.startswith("kill")


def test_a_failure_of_the_documentation_is_a_failure(tmp_path: Path) -> None:
    done = run(tmp_path, {"good": "exit 0"}, documentation="exit 1")
    assert done.returncode == 1 and "error: documentation failed" in done.stderr


def test_arguments_after_the_dashes_are_for_the_binaries(tmp_path: Path) -> None:
    done = run(tmp_path, {"one": 'echo "got $*"'}, "--workspace", "--", "moves::", "--exact")
    assert "got moves:: --exact\n" in done.stdout


def test_binaries_run_beside_each_other(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "queue")
    binaries = {"taker": f"cat {tmp_path}/queue", "giver": f"echo met > {tmp_path}/queue"}
    done = run(tmp_path, binaries, "--at-once", "3")
    assert done.returncode == 0 and "met" in done.stdout


def test_binary_that_compares_measured_values_runs_alone(tmp_path: Path) -> None:
    crate = tmp_path / "a"
    binaries = {"one": f"echo 1 > {crate}/ended", "suite": f"test -e {crate}/ended && echo alone"}
    text = (SCRIPTS / "rust-tests").read_text()
    assert '"suite-test-suite"' in text
    done = run(tmp_path, binaries, script=text.replace("suite-test-suite", "a-test-suite"))
    assert done.returncode == 0 and "alone" in done.stdout, done.stdout


def test_the_longest_of_the_last_run_begins_first(tmp_path: Path) -> None:
    binaries = {"small": "echo small", "large": f"echo large #{'.' * 9999}"}
    first = run(tmp_path, binaries, "--at-once", "1").stdout
    assert first.index("large") < first.index("small")
    times = tmp_path / "target" / "test-output" / "seconds.json"
    seconds = json.loads(times.read_text())
    assert seconds.keys() == {"a-test-small", "a-test-large", "documentation"}
    times.write_text(json.dumps(seconds | {"a-test-small": 9999}))
    again = run(tmp_path, binaries, "--at-once", "1").stdout
    assert again.index("small") < again.index("large")


def test_binary_without_end_is_killed_and_a_failure(tmp_path: Path) -> None:
    binaries = {"stuck": "echo begun; sleep 600 & sleep 600", "good": "echo fine"}
    done = run(tmp_path, binaries, "--patience", "2")
    assert done.returncode == 1 and "begun" in done.stdout and "fine" in done.stdout
    assert "error: a-test-stuck did not end in 2 s" in done.stderr


def test_documentation_is_not_tested_beside_chosen_targets(tmp_path: Path) -> None:
    done = run(tmp_path, {"one": "exit 0"}, "--test", "one", documentation="exit 1")
    assert done.returncode == 0, done.stderr


def test_times_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    output = tmp_path / "target" / "test-output"
    output.mkdir(parents=True)
    (output / "seconds.json").write_text('{"a-te')
    assert run(tmp_path, {"one": "exit 0"}).returncode == 0


def test_options_that_choose_nothing_are_a_failure(tmp_path: Path) -> None:
    done = run(tmp_path, {})
    assert done.returncode == 1 and "builds no tests" in done.stderr


def test_a_build_that_fails_ends_everything(tmp_path: Path) -> None:
    run(tmp_path, {"one": "exit 0"})
    (tmp_path / "tools" / "cargo").write_text("#!/bin/sh\nexit 101\n")
    environment = {**os.environ, "PATH": f"{tmp_path}/tools:{os.environ['PATH']}"}
    command = [tmp_path / "scripts" / "rust-tests"]
    assert subprocess.run(command, env=environment, check=False).returncode == 101


def test_a_number_of_binaries_that_cannot_be_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, {"one": "exit 0"}, "--at-once", "0")
    assert done.returncode == 2 and "give 1 or more" in done.stderr
