"""Objects and tables as values: reads return equal objects, and their buffers are not copied."""

from __future__ import annotations

import array
import pickle
import struct
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc

import honeycomb
from honeycomb import _objects, aio, errors


class Samples:
    """An object with a large buffer, like a NumPy array."""

    def __init__(self, name: str, numbers: Any) -> None:
        self.name = name
        self.numbers = memoryview(numbers)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return Samples, (self.name, pickle.PickleBuffer(self.numbers))


@pytest.fixture
def kv(job: honeycomb.Job) -> honeycomb.Kv:
    return job.kv("objects")


def test_objects_come_back_as_they_were(kv: honeycomb.Kv) -> None:
    for value in (None, 7, "text", {"a": [1, 2.5, b"x"]}, errors.Busy("later"), [None] * 5_000):
        assert kv.put_object("key", value) in (True, False)
        back = kv.get_object("key")
        assert back == value or repr(back) == repr(value)
    assert kv.put_object("key", 1) is True
    assert kv.put_object("new", 1) is False
    with pytest.raises(errors.KeyNotFound, match="has no key 'none'"):
        kv.get_object("none")
    assert kv.get_object("none", None) is None


@pytest.mark.parametrize("count", [0, 1, 3, 1000])
def test_buffers_are_sent_and_read_where_they_are(kv: honeycomb.Kv, count: int) -> None:
    samples = [Samples(str(i), array.array("d", range(i * 37 % 60))) for i in range(count)]
    parts = _objects.pack(samples)
    there = [view.obj for view in parts if isinstance(view, memoryview)]
    assert all(one.numbers.obj in there for one in samples if len(one.numbers)), "not copied"
    kv.put_object("samples", samples)
    back = kv.get_object("samples")
    assert [one.name for one in back] == [one.name for one in samples]
    for one, before in zip(back, samples, strict=True):
        assert one.numbers.cast("B") == before.numbers.cast("B")
        assert one.numbers.readonly
    owners = {id(one.numbers.obj) for one in back}
    assert len(owners) <= 1, "all of them refer to the one value"
    for one in parts[3::2]:
        assert isinstance(one, memoryview)


def test_a_value_over_many_extents_is_put_from_its_parts(job: honeycomb.Job) -> None:
    kv = job.kv("large")
    large = bytearray(range(256)) * (kv.plain_limit // 100)
    assert len(large) > 2 * kv.plain_limit
    kv.put_object("large", Samples("large", large))
    back = kv.get_object("large")
    assert back.numbers == large


@pytest.mark.parametrize(
    "value",
    [b"", b"HCP5", b"other", b"x" * 100, b"HCP5" + struct.pack("<IQ", 0, 9), b"HCP5" + b"\xff" * 4],
)
def test_what_is_no_object_is_refused(kv: honeycomb.Kv, value: bytes) -> None:
    kv["key"] = value
    with pytest.raises(errors.InvalidArgument, match="was not stored by put_object"):
        kv.get_object("key")
    if value:
        with pytest.raises(errors.InvalidArgument, match="not an Arrow IPC stream"):
            kv.get_table("key")


def test_tables_are_streams_that_arrow_reads(kv: honeycomb.Kv) -> None:
    table = pyarrow.table({"n": range(5_000), "s": [str(i) for i in range(5_000)]})
    assert kv.put_table("table", table) is False
    back = kv.get_table("table")
    assert back == table
    assert ipc.open_stream(kv["table"]).read_all() == table
    batch = table.to_batches()[0]
    kv.put_table("table", batch)
    assert kv.get_table("table").to_batches()[0] == batch
    before = pyarrow.total_allocated_bytes()
    again = kv.get_table("table")
    assert pyarrow.total_allocated_bytes() - before < 5_000, "its columns are the value"
    assert again.num_rows == 5_000
    with pytest.raises(TypeError, match="table is a pyarrow"):
        kv.put_table("table", {"n": [1]})  # type: ignore[arg-type]
    with pytest.raises(errors.KeyNotFound):
        kv.get_table("none")
    assert kv.get_table("none", 3) == 3


def test_the_twins(kv: honeycomb.Kv) -> None:
    import asyncio

    async def main() -> None:
        twin = aio.AsyncKv(kv)
        assert await twin.put_object("a", [1]) is False
        assert await twin.get_object("a") == [1]
        table = pyarrow.table({"n": [1, 2]})
        await twin.put_table("t", table)
        assert await twin.get_table("t") == table

    asyncio.run(main())
