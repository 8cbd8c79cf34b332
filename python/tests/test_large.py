"""Values of more than an eighth of a block, which are stored in their own blocks."""

from __future__ import annotations

import random
import threading

import pytest
from conftest import BLOCK_SIZE, MEMORY, eventually

import honeycomb
from honeycomb import errors


@pytest.fixture
def kv(job: honeycomb.Job) -> honeycomb.Kv:
    return job.kv("store")


def blocks(job: honeycomb.Job) -> int:
    return sum(structure.blocks for node in job.tree() for structure in node.structures)


def test_they_are_values_like_others(kv: honeycomb.Kv) -> None:
    assert kv.plain_limit == BLOCK_SIZE // 8 < kv.value_limit
    sizes = (kv.plain_limit, kv.plain_limit + 1, 100_000, 300_000, MEMORY // 4)
    values = {f"key-{size}".encode(): random.randbytes(size) for size in sizes}
    kv.update(values)
    assert dict(kv.items()) == values
    assert dict(zip(values, kv.multi_get(values), strict=True)) == values
    for key, value in values.items():
        assert kv[key] == value
        buffer = bytearray(len(value) + 1)
        assert kv.get_into(key, buffer) == len(value)
        assert buffer[:-1] == value
    assert kv.put(memoryview(b"key-100000"), bytearray(50_000))
    assert kv["key-100000"] == bytes(50_000)
    with pytest.raises(errors.KeyExists):
        kv.add("key-100000", bytes(100_000))
    with pytest.raises(errors.ValueTooLarge, match=str(MEMORY)):
        kv["k"] = bytes(MEMORY + 1)
    with pytest.raises(errors.InvalidArgument):
        kv.get_into("key-100000", bytearray(10))
    kv.clear()
    assert len(kv) == 0


def test_what_needs_them_at_the_server_is_refused(kv: honeycomb.Kv) -> None:
    kv["k"] = bytes(100_000)
    for call in (
        lambda: kv.replace("k", b"x"),
        lambda: kv.upsert("k", b"x"),
        lambda: kv.compare_and_swap("k", None, b"x"),
        lambda: kv.append("k", b"x"),
        lambda: kv.increment("k"),
    ):
        with pytest.raises(errors.ValueTooLarge, match="100000"):
            call()
    with pytest.raises(errors.ValueTooLarge), kv.atomic() as batch:
        batch.get("k")
    assert kv["k"] == bytes(100_000)
    with kv.atomic() as batch:
        batch.put("k", b"small")
    assert kv["k"] == b"small"


def test_they_are_popped(kv: honeycomb.Kv) -> None:
    kv["k"] = b"1" * 100_000
    assert kv.pop("k") == b"1" * 100_000
    assert "k" not in kv
    assert kv.pop("k", None) is None
    kv["k"] = b"2" * 100_000
    assert kv.popitem() == (b"k", b"2" * 100_000)
    assert len(kv) == 0


def test_the_first_one_stays(kv: honeycomb.Kv) -> None:
    large, other = bytes(100_000), b"1" * 100_000
    assert kv.setdefault("large", large) == large
    assert kv.setdefault("large", other) == large
    assert kv.setdefault("large", b"small") == large
    assert kv.setdefault("small", b"small") == b"small"
    assert kv.setdefault("small", large) == b"small"
    assert kv["large"] == large


def test_their_blocks_are_given_back(job: honeycomb.Job, kv: honeycomb.Kv) -> None:
    for number in range(5):
        kv[f"k{number}"] = bytes(200_000)
    assert blocks(job) >= 1 + 15
    for number in range(5):
        del kv[f"k{number}"]
    assert eventually(lambda: blocks(job) == 1)


def test_a_reader_sees_one_value_at_a_time(kv: honeycomb.Kv) -> None:
    kv["k"] = bytes(60_000)
    done = threading.Event()

    def write() -> None:
        for number in range(1, 60):
            kv["k"] = bytes([number]) * (40_000 + 1000 * number)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    last = 0
    while not done.is_set():
        try:
            value = kv["k"]
        except errors.Busy:
            continue
        assert value == value[:1] * len(value)
        assert value[0] >= last
        last = value[0]
    writer.join()
    assert kv["k"] == bytes([59]) * 99_000
