"""Structures of custom kinds, with the log of examples/ served by a real process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import pickle
import re
import shutil
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, eventually

import honeycomb
from honeycomb import aio, errors

TRIMMED, NOT_YET_WRITTEN, TAG_TOO_LONG = 1, 2, 3


def program() -> Path:
    """The program with the log, built here unless it is up to date."""
    cargo = shutil.which("cargo") or str(Path.home() / ".cargo/bin/cargo")
    profile = os.environ.get("HONEYCOMB_TEST_PROFILE", "fast")
    build = [cargo, "build", "--quiet", "--locked", "--profile", profile]
    # The same selection of packages as in `make test`, so that its build is reused.
    build += ["--workspace", "--exclude", "honeycomb-python", "--bin", "honeycomb-with-log"]
    subprocess.run(build, cwd=REPOSITORY, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    return target / ("debug" if profile == "dev" else profile) / "honeycomb-with-log"


@pytest.fixture(scope="module")
def served() -> Iterator[honeycomb.Client]:
    """A cluster of the example's program, of 256 blocks of 64 KiB."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HONEYCOMB_")}
    size = ["--memory", "16MiB", "--block-size", "64KiB"]
    process = subprocess.Popen(
        [str(program()), "start", "--embedded", "--json", *size],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clean,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        told = json.loads(process.stdout.readline())
        with honeycomb.connect(told["address"], told["token"]) as client:
            yield client
    finally:
        # It ends when its standard input closes.
        process.stdin.close()
        process.stdout.close()
        assert process.wait(20) == 0


_numbers = itertools.count()


@pytest.fixture
def logs(served: honeycomb.Client) -> Iterator[honeycomb.Job]:
    with served.job(f"custom-{next(_numbers)}") as job:
        yield job


def scan_args(records: int = 100, size: int = 1 << 16, tag: bytes = b"") -> bytes:
    return struct.pack("<II", records, size) + tag


def records(reply: honeycomb.Reply) -> list[tuple[int, bytes, bytes]]:
    """The number, tag and bytes of each record of a page."""
    out, at = [], 0
    while at < len(reply.payload):
        delta, tag, length = struct.unpack_from("<IBI", reply.payload, at)
        middle = at + 9 + tag
        out.append(
            (
                reply.value + delta,
                reply.payload[at + 9 : middle],
                reply.payload[middle : middle + length],
            )
        )
        at = middle + length
    return out


def scan(log: honeycomb.Custom, position: int = 0, tag: bytes = b"") -> list[Any]:
    found = []
    while True:
        reply = log.call("scan", args=scan_args(tag=tag), position=position)
        found += records(reply)
        onward, end = struct.unpack("<QB", reply.args)
        if end:
            return found
        position = reply.value + onward


def test_a_log_is_used_without_a_word_of_python_for_it(logs: honeycomb.Job) -> None:
    log = logs.custom("task:log", "log")
    assert log.call("append", b"one", args=b"tag").value == 0
    assert log.call("append", bytearray(b"two")).value == 1
    assert log.call("append", memoryview(b"-three-")[1:-1], args=memoryview(b"tag")).value == 2
    assert log.call("read", position=1) == honeycomb.Reply(1, b"", b"two", 0)
    assert scan(log) == [(0, b"tag", b"one"), (1, b"", b"two"), (2, b"tag", b"three")]
    assert [number for number, _, _ in scan(log, 1, b"tag")] == [2]

    assert log.kind.name == "log" and log.kind.code == 0x80 and log.kind.router == "index"
    append = log.kind.operations["append"]
    assert (append.verbs, append.route, append.mutates, append.payload) == ("w", "tail", True, True)
    assert log.kind.operations["follow"].waits
    assert repr(log) == f"<honeycomb.Custom {logs.name}/task:log>"
    assert log.address == f"{logs.name}/task:log"


def test_growth_and_trim(served: honeycomb.Client, logs: honeycomb.Job) -> None:
    log = logs.custom("task:log", 0x80)
    before = served.status()["free"]
    for number in range(600):
        assert log.call("append", b"%06d" % number + bytes(900)).value == number
    stats = log.call_each("stats")
    assert len(stats) > 5
    assert sum(struct.unpack_from("<Q", reply.args, 16)[0] for reply in stats) == 600
    assert [reply.start for reply in stats] == sorted({reply.start for reply in stats})
    assert [record[2][:6] for record in scan(log, 590)] == [b"%06d" % n for n in range(590, 600)]

    assert sum(reply.value for reply in log.call_each("trim", position=590)) == 590
    # The block with the remaining records, and its successors.
    assert eventually(lambda: before - served.status()["free"] <= 2)
    with pytest.raises(errors.Refused, match="trimmed") as refused:
        log.call("read", position=589)
    assert refused.value.code == TRIMMED
    assert [record[0] for record in scan(log)] == list(range(590, 600))


def test_what_cannot_be_is_refused_by_name(logs: honeycomb.Job) -> None:
    log = logs.custom("task:log", "log")
    with pytest.raises(errors.Refused) as refused:
        log.call("read", position=5)
    assert refused.value.code == NOT_YET_WRITTEN
    copy = pickle.loads(pickle.dumps(refused.value))
    assert (type(copy), copy.code, str(copy)) == (errors.Refused, 2, str(refused.value))
    with pytest.raises(errors.Refused) as refused:
        log.call("append", args=bytes(256))
    assert refused.value.code == TAG_TOO_LONG
    with pytest.raises(errors.ValueTooLarge):
        log.call("append", bytes(64 * 1024))
    with pytest.raises(errors.UnknownOpcode, match="'put'; it has append, read"):
        log.call("put")
    with pytest.raises(errors.InvalidArgument, match="needs a position"):
        log.call("read")
    with pytest.raises(errors.InvalidArgument, match="never waits"):
        log.call("append", timeout=1)
    with pytest.raises(errors.InvalidArgument, match="call_each"):
        log.call("trim", position=0)
    with pytest.raises(errors.InvalidArgument, match="position is 0 or more"):
        log.call("read", position=-1)
    with pytest.raises(TypeError, match="encode the text first"):
        log.call("append", "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="operation is a str"):
        log.call(1)  # type: ignore[arg-type]


def test_kinds_are_known_and_unknown(
    served: honeycomb.Client, logs: honeycomb.Job, job: honeycomb.Job
) -> None:
    (kind,) = served.kinds()
    assert (kind.name, kind.code, kind.servers) == ("log", 0x80, 1)
    with pytest.raises(errors.UnknownKind, match="'tape'"):
        logs.custom("task:tape", "tape")
    with pytest.raises(errors.UnknownKind, match="0x81"):
        logs.custom("task:tape", 0x81)
    with pytest.raises(errors.InvalidArgument, match="0x80 to 0xef"):
        logs.custom("task:tape", 0x12)
    # The ordinary cluster serves no custom kinds.
    with pytest.raises(errors.UnknownKind, match="only file, queue and kv"):
        job.custom("task:log", "log")

    with pytest.raises(errors.NotFound):
        logs.create_custom("task:log", "log")
    logs.create_addr_prefix("task")
    log = logs.create_custom("task:log", "log")
    with pytest.raises(errors.AlreadyExists):
        logs.create_custom("task:log", "log")
    assert logs.open_custom("task:log").call("append").value == 0
    assert logs.open_custom("task:log", "log").call("append").value == 1
    logs.kv("task:kv")
    with pytest.raises(errors.WrongKind) as wrong:
        logs.open_custom("task:kv")
    assert "open_kv" in wrong.value.hint
    with pytest.raises(errors.WrongKind):
        logs.open_custom("task:kv", "log")
    with pytest.raises(errors.WrongKind) as wrong:
        logs.open_kv("task:log")
    assert "open_custom" in wrong.value.hint
    assert "custom 0x80" in str(logs.tree())
    logs.remove("task:log")
    with pytest.raises(errors.Removed):
        log.call("append")


def test_waiting_for_a_record(logs: honeycomb.Job) -> None:
    log = logs.custom("task:log", "log")
    follow = {"args": scan_args(), "position": 0}
    with pytest.raises(errors.NotYet):
        log.call("follow", **follow)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        log.call("follow", **follow, timeout=0.2)
    assert 0.2 <= time.monotonic() - began < 5
    writer = threading.Timer(0.2, lambda: log.call("append", b"at last"))
    writer.start()
    assert records(log.call("follow", **follow, timeout=None)) == [(0, b"", b"at last")]
    writer.join()


def test_ctrl_c_ends_a_wait(logs: honeycomb.Job) -> None:
    log = logs.custom("task:log", "log")
    presser = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        log.call("follow", args=scan_args(), position=0, timeout=30)
    presser.join()
    assert log.call("append", b"on").value == 0


def test_tasks_and_other_processes(logs: honeycomb.Job) -> None:
    log = logs.custom("writer:log", "log")
    log.call("append", b"mine")
    assert pickle.loads(pickle.dumps(log)).call("append", b"copy").value == 1
    logs.create_addr_prefix("reader")
    with contextlib.closing(logs.handle("reader").attach()) as task:
        theirs = task.open_custom("writer:log", "log")
        assert len(scan(theirs)) == 2
        with pytest.raises(errors.PermissionDenied):
            theirs.call("append", b"not mine")
        with pytest.raises(errors.PermissionDenied):
            theirs.call_each("trim", position=1)


PAGE = (REPOSITORY / "docs/structures.md").read_text(encoding="utf-8")


def test_the_page_shows_what_the_example_has() -> None:
    shown = re.findall(r"<!-- from (\S+) -->\n```rust\n(.*?)```", PAGE, re.DOTALL)
    assert len(shown) == PAGE.count("```rust") >= 7
    for path, code in shown:
        assert code in (REPOSITORY / path).read_text(encoding="utf-8"), f"{path} has no:\n{code}"


def test_the_page_does_what_it_says(logs: honeycomb.Job) -> None:
    logs.create_addr_prefix("tasks")
    snippets = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(snippets) == 1
    for code in snippets:
        exec(compile(code, "docs/structures.md", "exec"), {"job": logs})  # noqa: S102


def test_asyncio(logs: honeycomb.Job) -> None:
    async def main() -> None:
        async with aio.attach(logs.handle()) as job:
            log = await job.custom("task:log", "log")
            assert log.kind.name == "log"
            waiting = asyncio.create_task(
                log.call("follow", args=scan_args(), position=0, timeout=30)
            )
            for number in range(3):
                reply = await log.call("append", b"%d" % number)
                assert reply.value == number
            assert records(await waiting)[0] == (0, b"", b"0")
            ended = asyncio.create_task(
                log.call("follow", args=scan_args(), position=3, timeout=None)
            )
            await asyncio.sleep(0)
            ended.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ended
            with pytest.raises(errors.NotYet):
                await log.call("follow", args=scan_args(), position=3, timeout=0.1)
            (trimmed,) = await log.call_each("trim", position=2)
            assert trimmed.value == 2
            again = await job.open_custom("task:log")
            assert (await again.call("read", position=2)).payload == b"2"
            assert pickle.loads(pickle.dumps(again)).address == log.address

    asyncio.run(main())
