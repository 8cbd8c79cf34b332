"""Every example in every ``--help`` works: all are run, in order, against a real cluster.

A command without an example fails the test. The examples run in a separate folder with a separate home
folder, so they neither read nor change the user's files. A program that runs until it is stopped (a
server in the foreground) is stopped as a user would stop it, and must end cleanly.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BINARY = Path(sysconfig.get_path("scripts"), "honeycomb")
EXAMPLES = Path(__file__).parents[2] / "examples"
SNOWSET = EXAMPLES.parent / "bench" / "workload" / "tests" / "snowset-sample.csv"
# Commands that run until they are stopped; their first line says that they are ready.
FOREGROUND = ("controller", "server", "start")
SECONDS = 300


def shell_environment(home: Path) -> dict[str, str]:
    """The environment of a new user; clusters that they start are small and on a free port."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HONEYCOMB_")}
    return kept | {
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home / "run"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "PATH": f"{BINARY.parent}:{os.environ['PATH']}",
        "HONEYCOMB_LISTEN": "127.0.0.1:0",
    }


def help_of(command: tuple[str, ...]) -> str:
    return subprocess.run(
        [BINARY, *command, "--help"],
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS,
    ).stdout


def section(text: str, title: str) -> list[str]:
    """The lines of a section of a help text: those after its title, up to the next empty line."""
    lines = iter(text.splitlines())
    for line in lines:
        if line == f"{title}:":
            break
    found = []
    for line in lines:
        if not line.strip():
            break
        found.append(line)
    return found


def commands(above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command; parent commands come before their subcommands."""
    yield above
    for line in section(help_of(above), "Commands"):
        name = line.split()[0]
        # Wrapped descriptions are indented further.
        if line.startswith("  ") and line[2] != " " and name != "help":
            yield from commands((*above, name))


COMMANDS = tuple(commands())


def name_of(command: tuple[str, ...]) -> str:
    return " ".join(("honeycomb", *command))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the files that examples name; it also holds the examples' cluster file."""
    home = tmp_path_factory.mktemp("home")
    (home / "run").mkdir()
    (home / "flush").mkdir()
    (home / "app.log").write_text("one line\nanother line\n")
    (home / "logo.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff")
    (home / "net.bin").write_bytes(bytes(range(256)))
    (home / "book.txt").write_text("the bee and the honeycomb\n" * 1000)
    shutil.copy(EXAMPLES / "wordcount.py", home)
    shutil.copy(SNOWSET, home / "queries.csv")
    yield home
    run_shell(home, "honeycomb stop || true")


def run_shell(home: Path, line: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=home,
        env=shell_environment(home) | more,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def run_foreground(home: Path, line: str, **more: str) -> None:
    """Starts a program, waits for its first line, and ends it with SIGTERM."""
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", f"exec env {line}"],
        cwd=home,
        env=shell_environment(home) | more,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            assert process.stdout is not None and process.stderr is not None
            ready, _, _ = select.select([process.stdout], [], [], SECONDS)
            first = process.stdout.readline() if ready else b""
            if not first:
                process.kill()
                pytest.fail(f"{line}: {process.stderr.read().decode()}")
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 0, line
        finally:
            if process.poll() is None:
                process.kill()


def started(home: Path) -> None:
    """Starts the cluster that examples use, unless it is running."""
    if run_shell(home, "honeycomb status").returncode != 0:
        ran = run_shell(
            home,
            "honeycomb start --background --memory 256MiB --block-size 64KiB --shards 1"
            f" --flush-root {home}/flush",
        )
        assert ran.returncode == 0, ran.stderr
        # A job that examples name, in addition to that of the command line.
        ran = run_shell(home, "honeycomb put --job acme/sort counts bee 1")
        assert ran.returncode == 0, ran.stderr


@contextmanager
def server(home: Path, cluster: dict[str, str]) -> Iterator[str]:
    """A memory server of a cluster; its address. It may end by itself."""
    process = subprocess.Popen(
        [BINARY, "server", "--json", "--memory", "64MiB", "--block-size", "64KiB", "--shards", "1"],
        env=shell_environment(home)
        | {"HONEYCOMB_CONTROLLER": cluster["CONTROLLER"], "HONEYCOMB_TOKEN": cluster["TOKEN"]},
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()


@contextmanager
def new_controller(home: Path) -> Iterator[dict[str, str]]:
    """A controller without servers; the values of CONTROLLER and TOKEN in examples."""
    process = subprocess.Popen(
        [BINARY, "controller", "--json"],
        env=shell_environment(home),
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        try:
            told = json.loads(process.stdout.readline())
            yield {"CONTROLLER": told["address"], "TOKEN": told["token"]}
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def controller(home: Path) -> Iterator[dict[str, str]]:
    """The controller of the examples of ``server``."""
    with new_controller(home) as told:
        yield told


def test_there_are_all_commands() -> None:
    names = {name_of(command) for command in COMMANDS}
    for name in (
        "kv scan",
        "queue put",
        "lease renew",
        "watch",
        "config show",
        "doctor",
        "bench kv",
    ):
        assert f"honeycomb {name}" in names
    assert len(names) == len(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=name_of)
def test_help_explains_every_option(command: tuple[str, ...]) -> None:
    text = help_of(command)
    about = text.split("Usage:")[0].strip().split("\n\n")
    assert len(about) >= 2, f"{name_of(command)} says what it is and nothing more"
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if line.lstrip().startswith(("-", "<", "[")) and line.startswith("  "):
            words = [w for w in line.split() if not w.startswith(("-", "<", "["))]
            below = lines[at + 1].strip() if at + 1 < len(lines) else ""
            assert words or below, f"{name_of(command)}: nothing explains {line.strip()}"


@pytest.mark.parametrize("command", COMMANDS, ids=name_of)
def test_every_example_works(
    command: tuple[str, ...], home: Path, controller: dict[str, str]
) -> None:
    lines = [line.strip() for line in section(help_of(command), "Examples")]
    assert lines, f"{name_of(command)} has no example"
    assert any(name_of(command) in line for line in lines), f"no example shows {name_of(command)}"
    for line in lines:
        assert "honeycomb " in line.split("#")[0], f"wrapped, or no command: {line}"
        words = line.split("#")[0].split("honeycomb ", 1)[1].split()
        if words[0] in ("start", "stop"):
            # A second cluster, so that the other examples' cluster keeps running.
            _run_start_or_stop(home / "beside", line, words)
        elif words[0] in FOREGROUND:
            run_foreground(home, line, **controller)
        elif words[0] == "drain":
            # Each example drains one of two new servers. The cluster is new as well: servers of the
            # examples of `server`, which have larger blocks, remain members for some seconds.
            with new_controller(home) as new, server(home, new), server(home, new) as address:
                reach = {"HONEYCOMB_ADDRESS": new["CONTROLLER"], "ADDRESS": address}
                ran = run_shell(home, line, HONEYCOMB_TOKEN=new["TOKEN"], **reach)
                assert ran.returncode == 0, f"{line}: {ran.stderr}"
        else:
            started(home)
            if words[0] == "flushed":
                flushed(home)
            if command == ("bucket", "load"):
                ended_bucket(home)
            # The data that they write and read; another example may have written or removed it.
            for first in READ.get(command, ()):
                ran = run_shell(home, f"honeycomb {first}")
                assert ran.returncode == 0, f"{first}: {ran.stderr}"
            ran = run_shell(home, line, **controller)
            assert ran.returncode == 0, f"{line}: {ran.stderr}"


_FLUSHED = (
    "put counts bee 1",
    "flush counts out/1",
    "append logs:today app.log",
    "flush logs:today today.log --format raw",
)
_OBJECTS = ("bucket put shuffle part-0 hello", "bucket put shuffle part-1 hello")
# The data that the examples of each command read.
READ = {
    ("flush",): _FLUSHED,
    ("load",): _FLUSHED,
    ("bucket", "get"): (*_OBJECTS, "bucket put weights net --file net.bin --persist"),
    ("bucket", "list"): _OBJECTS,
    ("bucket", "exists"): _OBJECTS,
    ("bucket", "delete"): _OBJECTS,
}


def ended_bucket(home: Path) -> None:
    """The data that the examples of ``bucket load`` read: a bucket whose last reader has committed."""
    run_shell(home, "honeycomb bucket delete weights --all")  # another example may have created it
    for first in (
        "bucket put weights net --file net.bin --persist",
        "bucket create serve --if-exists open",
        "readers weights serve",
        "commit serve",
    ):
        ran = run_shell(home, f"honeycomb {first}")
        assert ran.returncode == 0, f"{first}: {ran.stderr}"


def flushed(home: Path) -> None:
    """The data that the examples of ``flushed`` read: a prefix whose lease has ended."""
    manifest = home / "flush" / "cli" / "runs" / "1" / "manifest.json"
    if not manifest.exists():
        # The example of ``prefix`` uses the path, with a lease of a day.
        run_shell(home, "honeycomb rm --recursive results")
        run_shell(home, "honeycomb prefix to-disk --lease-ms 300 --flush-to runs/1")
    deadline = time.monotonic() + SECONDS
    while not manifest.exists():
        assert time.monotonic() < deadline, "the prefix was not flushed"
        time.sleep(0.05)


def _run_start_or_stop(home: Path, line: str, words: list[str]) -> None:
    (home / "run").mkdir(parents=True, exist_ok=True)
    if words[0] == "start" and "--background" not in words:
        run_foreground(home, line.split("#")[0])
        return
    if words[0] == "stop":
        before = run_shell(home, "honeycomb start --background --memory 64MiB")
        assert before.returncode == 0, before.stderr
    ran = run_shell(home, line)
    after = run_shell(home, "honeycomb stop")
    assert ran.returncode == 0, f"{line}: {ran.stderr}"
    assert after.returncode == (0 if words[0] == "start" else 5), after.stderr
