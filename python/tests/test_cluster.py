from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import eventually

import honeycomb
from honeycomb import errors
from honeycomb._address import size_bytes
from honeycomb._local import Endpoint, _started, cluster_file, running_cluster


def announcement(pid: int, started: int) -> str:
    told = {"address": "127.0.0.1:9", "token": "abcd", "pid": pid, "started": started}
    return json.dumps(told)


@pytest.fixture
def announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cluster.json"
    started = _started(os.getpid())
    assert started is not None
    path.write_text(announcement(os.getpid(), started))
    path.chmod(0o600)
    monkeypatch.setenv("HONEYCOMB_CLUSTER_FILE", str(path))
    return path


def test_the_cluster_file_is_found(announced: Path) -> None:
    assert running_cluster() == Endpoint("127.0.0.1:9", b"\xab\xcd")


def test_where_the_cluster_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HONEYCOMB_CLUSTER_FILE", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert cluster_file() == tmp_path / "honeycomb" / "cluster.json"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cluster_file() == tmp_path / ".honeycomb" / "cluster.json"
    assert running_cluster() is None


def test_a_file_that_others_can_read_is_refused(announced: Path) -> None:
    for mode in (0o640, 0o604, 0o620):
        announced.chmod(mode)
        with pytest.raises(PermissionError, match="chmod 600"):
            running_cluster()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(announced: Path) -> None:
    os.chown(announced, 12_345, -1)
    with pytest.raises(PermissionError, match="belongs to user 12345"):
        running_cluster()


def test_a_link_is_refused(announced: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = announced.with_name("link")
    link.symlink_to(announced)
    monkeypatch.setenv("HONEYCOMB_CLUSTER_FILE", str(link))
    with pytest.raises(PermissionError):
        running_cluster()


def test_a_stale_file_is_ignored(announced: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-P", "-c", ""])
    gone.wait()
    announced.write_text(announcement(gone.pid, 1))
    assert running_cluster() is None


def test_a_process_that_has_ended_is_gone_before_its_parent_knows() -> None:
    ended = subprocess.Popen([sys.executable, "-P", "-c", ""])
    assert eventually(lambda: _started(ended.pid) is None)
    assert Path(f"/proc/{ended.pid}").exists()  # a zombie: its exit code is not collected
    ended.wait()


def test_a_process_that_took_over_the_number_is_not_the_cluster(announced: Path) -> None:
    announced.write_text(announcement(os.getpid(), 1))
    assert running_cluster() is None
    binary = Path(sysconfig.get_path("scripts")) / "honeycomb"
    stopped = subprocess.run(
        [binary, "stop"], capture_output=True, text=True, timeout=30, check=False
    )
    assert stopped.returncode == 5
    assert "no cluster is running" in stopped.stderr  # and this process was not stopped


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"address": "a", "token": "xyz", "pid": 1}'])
def test_a_file_of_something_else_is_told(announced: Path, text: str) -> None:
    announced.write_text(text)
    with pytest.raises(errors.InvalidArgument, match="not the announcement of a cluster"):
        running_cluster()


def test_the_environment_names_a_cluster(
    cluster: honeycomb.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HONEYCOMB_ADDRESS", f"honeycomb://{cluster.address}")
    monkeypatch.setenv("HONEYCOMB_TOKEN", cluster.token.hex())
    with honeycomb.connect() as client:
        assert client.address == cluster.address
        assert not client.embedded
    assert cluster.status()["blocks"] > 0


def test_an_address_needs_a_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HONEYCOMB_TOKEN", raising=False)
    monkeypatch.setenv("HONEYCOMB_CLUSTER_FILE", str(tmp_path / "none"))
    with pytest.raises(errors.Unauthenticated, match="HONEYCOMB_TOKEN"):
        honeycomb.connect("127.0.0.1:9")


def test_a_foreign_token_is_refused(cluster: honeycomb.Client) -> None:
    with pytest.raises(errors.Unauthenticated):
        honeycomb.connect(cluster.address, b"\x00" * 40)


def test_nobody_at_the_address_is_told_in_time() -> None:
    with pytest.raises((errors.Unavailable, errors.DeadlineExceeded)):
        honeycomb.connect("127.0.0.1:1", b"token", timeout=0.5)


def test_bad_arguments_are_refused(cluster: honeycomb.Client) -> None:
    with pytest.raises(errors.InvalidArgument, match="embedded"):
        honeycomb.connect("127.0.0.1:9", b"t", memory="1GiB")
    with pytest.raises(errors.InvalidArgument, match="already"):
        honeycomb.connect(memory="8MiB")
    with pytest.raises(errors.InvalidArgument, match="hexadecimal"):
        honeycomb.connect("127.0.0.1:9", "not hex")
    with pytest.raises(errors.InvalidArgument, match="timeout"):
        honeycomb.connect(timeout=0)


@pytest.mark.parametrize(
    ("text", "size"),
    [(65536, 65536), ("64KiB", 65536), ("64k", 65536), ("1.5 GiB", 3 << 29), ("2M", 2 << 20)],
)
def test_sizes(text: int | str, size: int) -> None:
    assert size_bytes(text) == size
    with pytest.raises(errors.InvalidArgument):
        size_bytes("much")


def run_script(script: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a separate program that finds no cluster."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("HONEYCOMB_")
    }
    environment["HONEYCOMB_CLUSTER_FILE"] = "/nonexistent/cluster.json"
    return subprocess.run(
        [sys.executable, "-P", "-c", script],
        env=environment,
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )


def test_one_embedded_cluster_is_shared_and_counted() -> None:
    told = run_script(
        "import honeycomb\n"
        "from honeycomb._local import EmbeddedCluster\n"
        "one = honeycomb.connect(memory='8MiB', block_size='64KiB')\n"
        "two = honeycomb.connect()\n"
        "assert one.embedded and two.embedded and one.address == two.address\n"
        "process = EmbeddedCluster._current._process\n"
        "one.close(); one.close()\n"
        "two.status()\n"
        "assert process.poll() is None\n"
        "two.close()\n"
        "assert process.poll() is not None and not EmbeddedCluster.running()\n"
        "with honeycomb.connect(memory='16MiB', block_size='64KiB') as three:\n"
        "    assert three.address != one.address\n"
        "print('ok')\n"
    )
    assert told.stdout == b"ok\n"


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)", "pass"])
def test_the_embedded_cluster_dies_with_its_parent(end: str) -> None:
    told = run_script(
        "import os, signal, honeycomb\n"
        "from honeycomb._local import EmbeddedCluster\n"
        "client = honeycomb.connect(memory='8MiB', block_size='64KiB')\n"
        "client.job('unfinished').kv('k')['k'] = b'v'\n"
        "print(EmbeddedCluster._current._process.pid, flush=True)\n"
        f"{end}\n"
    )
    pid = int(told.stdout)
    assert told.returncode in (0, -signal.SIGKILL)

    def gone() -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        return state == "Z"

    assert eventually(gone)


def test_a_forked_child_has_connections_of_its_own(
    cluster: honeycomb.Client, job: honeycomb.Job
) -> None:
    kv = job.kv("k")
    file = job.file("f")
    kv["parent"] = b"1"
    file.append(b"parent ")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert kv["parent"] == b"1"
            for number in range(100):
                kv[f"child{number}"] = b"2"
            file.append(b"child ")
            job.close()  # the parent's job stays
            cluster.close()  # and so does its cluster
            code = 0
        finally:
            os._exit(code)
    for number in range(100):
        kv[f"parent{number}"] = b"1"
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(kv) == 201
    assert file.read() == b"parent child "
    assert cluster.status()["jobs"] >= 1


def test_a_pool_is_useless_in_a_forked_child(pool: honeycomb.WorkerPool) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            pool.submit(int)
        except RuntimeError:
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert pool.submit(int).result() == 0


def test_results_that_cannot_be_written_are_an_error(cluster: honeycomb.Client) -> None:
    binary = Path(sysconfig.get_path("scripts")) / "honeycomb"
    place = ["--address", cluster.address, "--token", cluster.token.hex()]
    with open("/dev/full", "wb") as full:
        told = subprocess.run(
            [binary, "status", *place], stdout=full, stderr=subprocess.PIPE, timeout=30, check=False
        )
    assert told.returncode == 1
    assert b"cannot write the results" in told.stderr
    # A reader that closes the pipe early is no error.
    piped = f"{binary} status {' '.join(place)} | head -n 0; echo ${{PIPESTATUS[0]}}"
    quiet = subprocess.run(["bash", "-c", piped], capture_output=True, timeout=30, check=True)
    assert (quiet.stdout, quiet.stderr) == (b"0\n", b"")
