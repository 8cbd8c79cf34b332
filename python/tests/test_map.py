"""Sealed files, mapped into memory."""

from __future__ import annotations

import gc

import pytest

import honeycomb
from honeycomb import errors


def sealed(job: honeycomb.Job, address: str, data: bytes) -> honeycomb.HoneyFile:
    file = job.create_file(address)
    file.write_all(data)
    file.seal()
    return file


def test_a_sealed_file_is_a_memoryview(job: honeycomb.Job) -> None:
    data = bytes(range(256)) * 1000
    file = sealed(job, ":f", data)
    with file.map() as view:
        assert view.shared and view.reason is None and view.contiguous
        assert len(view) == view.nbytes == len(data)
        assert view.data == data
        assert b"".join(view.segments) == data
        assert view.data.readonly
        with pytest.raises(TypeError):
            view.data[0] = 1
        kept = view.data[10:20]
    # A slice of the view keeps the memory mapped.
    del file
    gc.collect()
    assert kept == data[10:20]
    with pytest.raises(errors.Closed):
        _ = view.data
    view.close()


def test_several_blocks_are_one_run_when_they_end_with_pages(job: honeycomb.Job) -> None:
    data = bytes(range(256)) * 1600
    even = sealed(job, ":even", data)
    with even.map() as view:
        assert view.shared and view.contiguous and view.data == data and len(view.segments) > 1
    odd = job.create_file(":odd")
    for _ in range(30):
        odd.append(data[:5001])
    odd.seal()
    with odd.map() as view:
        assert view.shared and not view.contiguous
        assert b"".join(view.segments) == data[:5001] * 30
        with pytest.raises(BufferError, match="segments"):
            _ = view.data


def test_an_empty_file_is_empty(job: honeycomb.Job) -> None:
    with sealed(job, ":none", b"").map() as view:
        assert (len(view), view.data, view.segments) == (0, b"", [])


def test_what_may_grow_is_not_mapped(job: honeycomb.Job) -> None:
    file = job.create_file(":open")
    file.append(b"x")
    with pytest.raises(errors.NotSealed, match="sealed"):
        file.map()


def test_elsewhere_it_is_a_copy_that_says_so(
    cluster: honeycomb.Client, job: honeycomb.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"elsewhere" * 30_000
    sealed(job, ":f", data)
    monkeypatch.setenv("HONEYCOMB_UNIX", "false")
    with honeycomb.connect(cluster.address, cluster.token) as far:
        file = far.attach(job.name).open_file(":f")
        with file.map() as view:
            assert not view.shared and view.reason
            assert view.contiguous and view.data == data and "copied" in repr(view)


def test_it_outlives_the_file(job: honeycomb.Job) -> None:
    data = b"mapped" * 100_000
    job.create_addr_prefix("gone")
    file = sealed(job, "gone:f", data)
    with file.map() as view:
        bytes_of_it = view.data
    job.remove_prefix("gone")
    with pytest.raises(errors.HoneycombError):
        file.map()
    for n in range(4):
        sealed(job, f":other{n}", b"others" * 50_000)
    assert bytes_of_it == data


def test_numpy_and_arrow_take_it_without_a_copy(job: honeycomb.Job) -> None:
    with sealed(job, ":f", bytes(8 * 1024)).map() as view:
        np, pa = pytest.importorskip("numpy"), pytest.importorskip("pyarrow")
        numbers = np.frombuffer(view.data, dtype="<i8")
        assert len(numbers) == 1024 and not numbers.flags.writeable
        buffer = pa.py_buffer(view.data)
        assert buffer.address == numbers.ctypes.data and buffer.size == view.nbytes
