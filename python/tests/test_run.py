"""``honeycomb run``: runs a script with the cluster in its environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import REPOSITORY, eventually

import honeycomb

BINARY = Path(sysconfig.get_path("scripts")) / "honeycomb"
TEXT = next((REPOSITORY / "examples" / "data").glob("*.txt.gz"))


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    """An environment in which no cluster can be found."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("HONEYCOMB_")}
    return {**env, "HONEYCOMB_CLUSTER_FILE": str(tmp_path / "none.json")}


@pytest.fixture
def somewhere(nowhere: dict[str, str], cluster: honeycomb.Client) -> dict[str, str]:
    """An environment that names the tests' cluster."""
    return {
        **nowhere,
        "HONEYCOMB_ADDRESS": cluster.address,
        "HONEYCOMB_TOKEN": cluster.token.hex(),
    }


def run(env: dict[str, str], *args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BINARY, "run", *args], env=env, capture_output=True, text=True, check=False
    )


def test_the_example_counts_words_on_an_embedded_cluster(nowhere: dict[str, str]) -> None:
    told = run(nowhere, REPOSITORY / "examples" / "wordcount.py", "--", "--json", "--top=3", TEXT)
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert found["lines"] == 31102
    assert [word for word, _ in found["top"]] == ["the", "and", "of"]
    assert "no cluster is running here" in told.stderr


def test_the_example_on_a_running_cluster(somewhere: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    example = REPOSITORY / "examples" / "wordcount.py"
    told = run(somewhere, example, "--", TEXT, "--top", "1", "--output", str(out))
    assert (told.returncode, told.stderr) == (0, "")
    count, word = told.stdout.split()
    assert word == "the" and int(count.replace(",", "")) > 60_000
    assert (out / "_SUCCESS").exists()
    missing = run(somewhere, example, "--", "gone.txt")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "no such input: gone.txt" in missing.stderr


def test_a_script_gets_its_arguments_and_the_cluster(
    somewhere: dict[str, str], tmp_path: Path, cluster: honeycomb.Client
) -> None:
    script = tmp_path / "script.py"
    (tmp_path / "beside.py").write_text("value = 7\n")
    script.write_text(
        "import sys, beside, honeycomb\n"
        "class Own: pass\n"
        "with honeycomb.connect() as hc, honeycomb.WorkerPool(1) as pool:\n"
        "    made = pool.submit(Own).result()\n"
        "    print(__name__, __file__, sys.argv[1:], beside.value, hc.address, type(made) is Own)\n"
        "sys.exit(len(sys.argv))\n"
    )
    told = run(somewhere, script, "--", "--json", "-x", "a b")
    assert told.stdout == (
        f"__main__ {script} ['--json', '-x', 'a b'] 7 {cluster.address} True\n"
    ), told.stderr
    assert told.returncode == 4


def test_a_script_that_raises_shows_its_own_traceback(
    somewhere: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text("def f():\n    raise LookupError('mine')\nf()\n")
    told = run(somewhere, script)
    assert told.returncode == 1
    assert told.stderr.endswith("LookupError: mine\n")
    assert f'File "{script}", line 2, in f' in told.stderr
    assert "_script.py" not in told.stderr
    script.write_text("def f(:\n")
    told = run(somewhere, script)
    assert told.returncode == 1 and "SyntaxError" in told.stderr


@pytest.mark.parametrize(
    "how, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signals_reach_the_script(
    somewhere: dict[str, str], tmp_path: Path, how: signal.Signals, code: int
) -> None:
    script, ready = tmp_path / "script.py", tmp_path / "ready"
    script.write_text(
        "import signal, sys\n"
        "try:\n"
        "    open(sys.argv[1], 'w').close()\n"
        "    signal.pause()\n"
        "finally:\n"
        "    print('cleaned up', flush=True)\n"
    )
    child = subprocess.Popen(
        [BINARY, "run", script, "--", ready], env=somewhere, stdout=subprocess.PIPE, text=True
    )
    try:
        assert eventually(ready.exists, 30)
        child.send_signal(how)
        out, _ = child.communicate(timeout=30)
    finally:
        child.kill()
        child.wait()
    assert (out, child.returncode) == ("cleaned up\n", code)


def test_which_python(somewhere: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.executable)\n")
    assert run(somewhere, script).stdout.strip() == str(BINARY.parent / "python")
    named = tmp_path / "named"
    named.symlink_to(sys.executable)
    stub = tmp_path / "stub"
    stub.write_text(f'#!/bin/sh\necho stub\nexec {sys.executable} "$@"\n')
    stub.chmod(0o755)
    told = run({**somewhere, "HONEYCOMB_PYTHON": str(stub)}, script)
    assert told.stdout.startswith("stub\n")
    told = run({**somewhere, "HONEYCOMB_PYTHON": "/bin/false"}, script)
    assert told.returncode == 1
    assert "/bin/false: the package is not installed" in told.stderr
    elsewhere = tmp_path / "honeycomb"
    elsewhere.write_bytes(BINARY.read_bytes())
    elsewhere.chmod(0o755)
    told = subprocess.run(
        [elsewhere, "run", script],
        env={**somewhere, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 1
    assert "--python" in told.stderr and "install the wheel" in told.stderr


def test_what_is_wrong_is_told(somewhere: dict[str, str], tmp_path: Path) -> None:
    told = run(somewhere, tmp_path / "gone.py")
    assert told.returncode == 3 and "there is no such file" in told.stderr
    script = tmp_path / "script.py"
    script.touch()
    env = {key: value for key, value in somewhere.items() if key != "HONEYCOMB_TOKEN"}
    told = run(env, script)
    assert told.returncode == 4 and "no token for" in told.stderr
