"""The worker of ``bench/compare``: every Python client runs the measured operations."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import honeycomb

WORKER = Path(__file__).parents[2] / "bench" / "worker.py"


class Worker:
    """A worker process and its lines."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, line: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


def spec(system: str, address: str, op: str, **more: Any) -> dict[str, Any]:
    plain = {
        "token": "",
        "transport": "tcp",
        "size": 64,
        "keys": 10,
        "batch": 4,
        "blocks": 1,
        "name": f"job-{op}",
    }
    return {"system": system, "address": address, "op": op, **plain, **more}


def measured(worker: Worker, wanted: dict[str, Any]) -> dict[str, Any]:
    ready = worker.ask(wanted)
    assert ready.get("ready"), ready
    answer = worker.ask({"seconds": 0.01, "ops": 20})
    assert set(answer) == {"ops", "wall_ns", "cpu_ns", "latency_us"}, answer
    assert answer["ops"] >= 2
    assert answer["ops"] % 2 == 0
    assert answer["wall_ns"] > 0
    assert answer["latency_us"] == sorted(answer["latency_us"])
    return answer


OPS = ["get", "put", "get_into", "multi_get", "multi_put", "queue", "pass"]


def test_honeycomb(worker: Worker, cluster: honeycomb.Client) -> None:
    for op in OPS:
        measured(worker, spec("honeycomb", cluster.address, op, token=cluster.token.hex()))


def test_a_mapped_file(worker: Worker, cluster: honeycomb.Client) -> None:
    more = {"token": cluster.token.hex(), "transport": "map", "name": "job-map", "size": 4096}
    measured(worker, spec("honeycomb", cluster.address, "pass", **more))
    measured(worker, spec("honeycomb", cluster.address, "get", **more | {"name": "job-map-alone"}))


@contextmanager
def started(socket: Path, *command: str) -> Iterator[str]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        deadline = 1000
        while not socket.exists() and deadline:
            assert process.poll() is None, "the peer ended"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.01)
            deadline -= 1
        yield f"unix:{socket}"
    finally:
        process.kill()
        process.wait()


def test_redis_py(worker: Worker, tmp_path: Path) -> None:
    socket = tmp_path / "redis"
    command = ["redis-server", "--port", "0", "--save", "", "--dir", str(tmp_path)]
    with started(socket, *command, "--unixsocket", str(socket)) as address:
        for op in OPS:
            measured(worker, spec("redis", address, op))


def test_pymemcache(worker: Worker, tmp_path: Path) -> None:
    socket = tmp_path / "memcached"
    with started(socket, "memcached", "-u", "root", "-s", str(socket)) as address:
        for op in ["get", "put"]:
            measured(worker, spec("memcached", address, op))


def test_what_goes_wrong_is_the_last_answer(worker: Worker) -> None:
    answer = worker.ask({"seconds": 0.01, "ops": 1})
    assert "a round before any specification" in answer["error"]
    assert worker.process.wait(10) == 1
