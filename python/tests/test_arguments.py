"""Wrong arguments raise before a request is sent. The error names parameter, value and allowed values."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import honeycomb
from honeycomb import errors


class Things(NamedTuple):
    job: honeycomb.Job
    kv: honeycomb.Kv
    file: honeycomb.HoneyFile
    queue: honeycomb.Queue
    listener: honeycomb.Listener


@pytest.fixture(scope="module")
def things(cluster: honeycomb.Client) -> Any:
    with cluster.job("arguments") as job:
        queue = job.queue("queue")
        with queue.subscribe() as listener:
            yield Things(job, job.kv("kv"), job.file("file"), queue, listener)


#: A call, and a pattern of its error.
OUT_OF_RANGE: list[tuple[Callable[[Things], object], str]] = [
    (lambda t: t.file.read(-1), "offset is 0 or more bytes, not -1"),
    (lambda t: t.file.read(0, -1), "size is 0 or more bytes .*, not -1"),
    (lambda t: t.file.readinto(-1, bytearray(1)), "offset is 0 or more"),
    (
        lambda t: t.file.read_ranges([(0, 1), (3, -2)]),
        "the size of a range is 0 or more bytes, not -2",
    ),
    (lambda t: t.file.follow(-5), "offset is 0 or more"),
    (lambda t: t.file.wait_until(size=-1), "size is 0 or more"),
    (lambda t: t.file.wait_until(), r"wait_until\(\) needs a condition"),
    (
        lambda t: t.file.wait_until(sealed=True, timeout=math.nan),
        "timeout is 0 or more .*, not nan",
    ),
    (lambda t: t.file.open("w"), "mode is .*, not 'w'"),
    (lambda t: t.job.open("file", "r+b"), "not 'r\\+b'"),
    (
        lambda t: t.file.subscribe("put"),
        "a file has no 'put' notifications; available: 'append', 'seal'",
    ),
    (lambda t: t.job.kv("x", blocks=-1), "blocks is 1 to 4294967295 blocks, not -1"),
    (lambda t: t.job.kv("x", blocks=0), "blocks is 1 to"),
    (lambda t: t.job.kv("x", blocks=1 << 32), "blocks is 1 to"),
    (lambda t: t.job.file("x", blocks=-3), "blocks is 1 to"),
    (lambda t: t.job.queue("x", max_items=-1), "max_items is 0 or more items .*, not -1"),
    (lambda t: t.job.queue("x", max_bytes=-1), "max_bytes is 0 or more"),
    (lambda t: t.job.create_addr_prefix("x", lease=0.1), "lease is 0.2 to 604800 seconds, not 0.1"),
    (lambda t: t.job.create_addr_prefix("x", lease=math.nan), "lease is .*, not nan"),
    (lambda t: t.job.create_addr_prefix("x", owner_verbs="x"), "permissions are written"),
    (lambda t: t.job.create_addr_prefix("a:b"), "'a:b' is a structure; pass a prefix, such as 'a'"),
    (lambda t: t.job.kv("a:"), "ends with a colon but names no structure"),
    (lambda t: t.job.init_data_structure("x", "tree"), "not 'tree'"),  # type: ignore[call-overload]
    (lambda t: t.queue.get(-1), "timeout is 0 or more seconds, or None .*, not -1"),
    (lambda t: t.queue.get(math.nan), "timeout .* not nan"),
    (lambda t: t.queue.put(b"x", -0.5), "timeout .* not -0.5"),
    (lambda t: t.queue.get_many(0), "n is 1 to 4096 items at a time, not 0"),
    (lambda t: t.queue.get_many(4097), "not 4097"),
    (lambda t: t.queue.reserve(-1), "n is 1 to 4096"),
    (lambda t: t.queue.reserve(lease=0), "lease is 0.001 to 86400 seconds, not 0"),
    (lambda t: t.queue.reserve(lease=math.inf), "lease is .*, not inf"),
    (lambda t: t.queue.peek(0), "n is 1 to 4096"),
    (lambda t: t.queue.wait_until_closed(-1), "timeout"),
    (lambda t: t.listener.get(-1), "timeout"),
    (lambda t: t.kv.wait_until("k", -1), "timeout"),
    (lambda t: t.kv.top("k", -1), "k is 0 or more items, not -1"),
    (lambda t: t.kv.top_add("k", b"i", 1.0, k=-1), "k is 1 to 1024"),
    (lambda t: t.kv.subscribe(key="a", prefix="b"), "not both"),
    (lambda t: t.kv.atomic(""), "a tag has at least one character"),
    (lambda t: t.kv.accumulate("k", "median", 1), "no function 'median'"),  # type: ignore[call-overload]
    (lambda t: honeycomb.connect(""), "address is 'host:port', or None .* is a variable not set"),
    (lambda t: honeycomb.connect("h:1", timeout=-1), "timeout is 0 or more"),
    (lambda t: honeycomb.connect("h:1", timeout=0), "timeout is a positive number"),
    (lambda t: honeycomb.connect("h:1", timeout=math.nan), "timeout"),
    (lambda t: honeycomb.connect("h:1", b"", memory=1), "describe an embedded cluster"),
    (lambda t: honeycomb.connect(block_size="big"), "block_size is a size such as .*, not 'big'"),
    (lambda t: honeycomb.connect(memory=-1), "memory is 1 or more bytes, not -1"),
    (lambda t: honeycomb.connect("h:1", "zz"), "a token given as text is hexadecimal"),
]

WRONG_TYPE: list[tuple[Callable[[Things], object], str]] = [
    (lambda t: t.job.kv(None), "addr is a str such as 'T4/T6:part-0', not None"),
    (lambda t: t.job.open_file(b"file"), "addr is a str .*, not bytes b'file'"),
    (
        lambda t: t.job.create_addr_prefix("x", parents=3),
        "addresses of prefixes are a str or several",
    ),
    (lambda t: t.job.kv("x", blocks="2"), "blocks is a whole number, not str '2'"),
    (lambda t: t.job.kv("x", blocks=1.5), "blocks is a whole number, not float 1.5"),
    (lambda t: t.job.queue("x", max_items=None), "max_items is a whole number, not None"),
    (
        lambda t: t.job.create_addr_prefix("x", lease="1"),
        "lease is a number of seconds, not str '1'",
    ),
    (lambda t: t.file.append("text"), "data are bytes; encode the text first"),
    (lambda t: t.file.append(3), "data are bytes, not int 3; .* pickle.dumps"),
    (lambda t: t.file.read(0.5), "offset is a whole number"),
    (lambda t: t.file.readinto(0, b"fixed"), "buffer must be writable"),
    (lambda t: t.file.readinto(0, 3), "buffer is a bytearray or memoryview, not int 3"),
    (lambda t: t.kv.put("k", "text"), "values are bytes; encode"),
    (lambda t: t.kv.put("k", {"a": 1}), r"values are bytes, not dict .*json\.dumps"),
    (lambda t: t.kv.put(3, b"v"), "keys are bytes, not int 3"),
    (lambda t: t.kv[None], "keys are bytes, not None"),
    (lambda t: t.kv.compare_and_swap("k", "old", b"new"), "expected values are bytes; encode"),
    (lambda t: t.kv.increment("k", "1"), "n is a whole number, not str '1'"),
    (lambda t: t.kv.increment("k", 1.5), "n is a whole number, not float 1.5"),
    (lambda t: t.queue.put("text"), "items are bytes; encode"),
    (lambda t: t.queue.put(object), "items are bytes, not type"),
    (lambda t: t.queue.put_many(b"one"), r"several items, not one bytes; use put\(\)"),
    (lambda t: t.queue.put_many([b"a", "b"]), "items are bytes; encode"),
    (lambda t: t.queue.get("1"), "timeout is a number of seconds or None"),
    (lambda t: t.queue.get_many("3"), "n is a whole number"),
    (lambda t: honeycomb.connect(7470), "address is a str such as '127.0.0.1:7470', not int 7470"),
    (lambda t: honeycomb.connect("h:1", 3), "token is bytes or hexadecimal text, not int"),
    (lambda t: honeycomb.connect(memory=[]), "memory is an int of bytes or a str"),
]


@pytest.mark.parametrize(("call", "words"), OUT_OF_RANGE, ids=[words for _, words in OUT_OF_RANGE])
def test_values_out_of_range(things: Things, call: Callable[[Things], object], words: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=words):
        call(things)


@pytest.mark.parametrize(("call", "words"), WRONG_TYPE, ids=[words for _, words in WRONG_TYPE])
def test_wrong_types(things: Things, call: Callable[[Any], object], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        call(things)


def test_client_s_calls(cluster: honeycomb.Client) -> None:
    for make, words in [
        (lambda: cluster.job(lease=0), "lease is 0.2 to"),
        (lambda: cluster.job(quota_blocks=-1), "quota_blocks is 0 or more blocks, not -1"),
    ]:
        with pytest.raises(errors.InvalidArgument, match=words):
            make()  # type: ignore[no-untyped-call]
    with pytest.raises(TypeError, match="name is a str"):
        cluster.job(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name is a str"):
        cluster.attach(None)  # type: ignore[arg-type]


def test_nothing_was_changed_by_what_was_refused(things: Things) -> None:
    assert len(things.queue) == 0 and len(things.kv) == 0 and things.file.size() == 0
    assert {node.name for node in things.job.tree()} == {"", "kv", "file", "queue"}


# ---------------------------------------------------------------------------------- errors that teach


def test_errors_say_what_to_do_next(job: honeycomb.Job, cluster: honeycomb.Client) -> None:
    job.create_addr_prefix("T4")
    job.kv("T4/T6:part")
    with pytest.raises(errors.WrongKind, match="is a key-value store, not a queue") as wrong:
        job.open_queue("T4/T6:part")
    assert wrong.value.hint == "open it with job.open_kv(...)"
    with pytest.raises(errors.NotFound, match="T4/T6") as elsewhere:
        job.open_kv("T6:part")
    assert "job.tree()" in elsewhere.value.hint
    assert any("hint" in note for note in elsewhere.value.__notes__)
    with pytest.raises(errors.UnknownJob) as unknown:
        cluster.attach("no-such-job")
    assert "client.jobs()" in unknown.value.hint
    with pytest.raises(errors.QueueFull) as full:
        job.queue("q", max_items=2).put_many([b"1", b"2", b"3"], 0)
    assert full.value.put == 2 and "larger bounds" in full.value.hint
    assert "2 of 3 items were put before" in "\n".join(full.value.__notes__)
    assert errors.HoneycombError("x").hint == ""


def test_a_key_error_reads_well(job: honeycomb.Job) -> None:
    kv = job.kv("kv")
    with pytest.raises(KeyError) as caught:
        kv["what"]
    assert str(caught.value) == f"{job.name}/kv has no key 'what'"
    assert repr(caught.value) == f"KeyNotFound(\"{job.name}/kv has no key 'what'\")"


def test_a_listener_that_was_closed_says_so(job: honeycomb.Job) -> None:
    listener = job.queue("q").subscribe()
    listener.close()
    listener.close()
    assert listener.closed
    with pytest.raises(errors.Closed, match="the listener was closed"):
        listener.get()
    assert list(listener) == []


# ------------------------------------------------------------------------------------------- types


def test_a_program_of_users_has_the_types_they_expect(tmp_path: Path) -> None:
    case = Path(__file__).with_name("typing_cases.py")
    pytest.importorskip("mypy", reason="mypy is one of the tools of development")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(case)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
