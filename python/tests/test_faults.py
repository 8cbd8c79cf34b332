"""Memory servers that are killed or stopped while in use: real processes, by signal."""

import json
import os
import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import honeycomb
from honeycomb import errors

BINARY = Path(sysconfig.get_path("scripts")) / "honeycomb"
#: A silent server is lost after 3 s here; the rest is a margin for a busy machine.
TOLD_WITHIN = 6.0


@contextmanager
def process(*args: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A node of the cluster, and its first line of output. Killed at the end."""
    child = subprocess.Popen([BINARY, *args, "--json"], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield child, json.loads(child.stdout.readline())
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


@contextmanager
def cluster(
    servers: int, loss_ms: int = 3000, **options: float
) -> Iterator[tuple[honeycomb.Client, list[subprocess.Popen[str]]]]:
    with ExitStack() as stack:
        listen = ["--listen", "127.0.0.1:0", "--server-loss-ms", str(loss_ms)]
        _, told = stack.enter_context(process("controller", *listen))
        join = ["--controller", told["address"], "--token", told["token"]]
        pool = ["--memory", "64MiB", "--block-size", "1MiB", "--shards", "2"]
        nodes = [stack.enter_context(process("server", *join, *pool))[0] for _ in range(servers)]
        client = honeycomb.connect(told["address"], told["token"], **options)
        yield stack.enter_context(client), nodes


def hit(child: subprocess.Popen[str], how: signal.Signals) -> None:
    """Sends a signal and returns when it has taken effect."""
    os.kill(child.pid, how)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_goes_while_in_use_is_told_as_data_lost(how: signal.Signals) -> None:
    with cluster(1) as (hc, [server]), hc.job("victim", lease=30.0) as job:
        kv, log = job.kv("a:kv"), job.file("b:log")
        kv[b"k"] = b"v" * 1000
        log.append(b"bytes")
        hit(server, how)
        began = time.monotonic()
        with pytest.raises(errors.DataLost, match="a:kv"):
            kv[b"k"] = b"w"
        with pytest.raises(errors.DataLost, match="b:log"):
            log.read()
        assert time.monotonic() - began < TOLD_WITHIN
        # No server is left to hold data, and the error says that too.
        with pytest.raises(errors.OutOfMemory):
            job.kv("c:kv")


def test_many_requests_to_a_server_that_stands_still_end_together() -> None:
    """Each of 16 blocks needed a new connection, and each took the whole timeout."""
    entries = {f"k{i}": b"v" for i in range(500)}
    with cluster(1, 60_000, timeout=1.0) as (hc, [server]), hc.job("still", lease=60.0) as job:
        kv = job.kv("kv", blocks=16)
        kv.multi_put(entries)
        log, part = job.file("log"), 128 << 10
        for _ in range(128):
            log.append(b"x" * part)
        hit(server, signal.SIGSTOP)
        began = time.monotonic()
        # The second call has to connect.
        for call in (lambda: kv.multi_put(entries), lambda: kv.multi_get(list(entries))):
            with pytest.raises(errors.DeadlineExceeded, match="in time") as told:
                call()
            assert len(told.value.failures) == len(entries)
        with pytest.raises(errors.DeadlineExceeded, match="in time"):
            log.read_ranges([(n * part, 10) for n in range(128)])
        assert time.monotonic() - began < TOLD_WITHIN
        os.kill(server.pid, signal.SIGCONT)
        assert kv.multi_get(list(entries)) == list(entries.values())


def test_the_others_go_on_when_one_server_is_killed() -> None:
    with cluster(3) as (hc, servers), hc.job("survivor", lease=30.0) as job:
        stores = [job.kv(f"p{i}:kv") for i in range(30)]
        for store in stores:
            store[b"k"] = b"v"
        assert hc.status()["blocks"] == 3 * 64
        hit(servers[0], signal.SIGKILL)
        lost = kept = 0
        for store in stores:
            try:
                assert store[b"k"] == b"v", "never a wrong or empty answer"
                kept += 1
            except errors.DataLost:
                lost += 1
        assert lost > 0, "blocks are spread over the servers"
        assert kept > 0
        job.kv("new:kv")[b"k"] = b"v"
        assert hc.status()["blocks"] == 2 * 64


def test_a_server_that_stood_still_joins_again_with_nothing() -> None:
    with cluster(1) as (hc, [server]), hc.job("again", lease=30.0) as job:
        before = job.kv("a:kv")
        before[b"k"] = b"v"
        hit(server, signal.SIGSTOP)
        with pytest.raises(errors.DataLost):
            before[b"k"]
        os.kill(server.pid, signal.SIGCONT)
        deadline = time.monotonic() + 30
        while hc.status()["blocks"] == 0:
            assert time.monotonic() < deadline, "it never joined again"
        job.kv("b:kv")[b"k"] = b"fresh"
        with pytest.raises(errors.DataLost):
            before[b"k"]
