"""Objects in buckets: Pocket's calls over prefixes and key-value stores."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_flush import started

import honeycomb
from honeycomb import aio, errors


@pytest.fixture
def bucket(job: honeycomb.Job) -> honeycomb.Bucket:
    return job.create_bucket("shuffle", lease=30.0)


def test_objects_are_put_got_enumerated_and_deleted(bucket: honeycomb.Bucket) -> None:
    large = bytes(range(256)) * 1000
    bucket.put("part-0", b"zero")
    bucket.put("part-1", large)
    bucket.put("größe", memoryview(b"text"))
    assert bucket.get("part-0") == b"zero"
    assert bucket.get("part-1") == large
    assert sorted(bucket.enumerate()) == ["größe", "part-0", "part-1"]
    assert sorted(bucket.enumerate("part-")) == ["part-0", "part-1"]
    assert sorted(bucket) == sorted(bucket.enumerate())
    assert (len(bucket), bucket.exists("part-1"), bucket.exists("part-2")) == (3, True, False)
    assert "größe" in bucket and 3 not in bucket
    bucket.put("part-0", b"again")
    assert bucket.get("part-0") == b"again"
    assert bucket.delete("part-0") and not bucket.delete("part-0")
    with pytest.raises(errors.KeyNotFound, match="part-0"):
        bucket.get("part-0")


def test_buckets_are_made_found_and_removed(job: honeycomb.Job) -> None:
    assert job.buckets() == []
    first = job.create_bucket("b")
    job.create_addr_prefix("T1")
    nested = job.create_bucket("T1/out", blocks=2, max_blocks=64)
    job.kv("T2/x")["k"] = b"no object"
    assert job.buckets() == ["T1/out", "b"]
    assert (first.name, nested.name, nested.address) == ("b", "T1/out", f"{job.name}/T1/out")
    first.put("k", b"v")
    assert job.bucket("b").get("k") == b"v"
    assert job.quota("T1/out").max_blocks == 64
    with pytest.raises(errors.AlreadyExists):
        job.create_bucket("b")
    assert job.create_bucket("b", exist_ok=True).get("k") == b"v"
    job.delete_bucket("b")
    with pytest.raises(errors.Removed):
        first.get("k")
    with pytest.raises(errors.NotFound):
        job.bucket("b")
    # A prefix that is not a bucket is not removed.
    with pytest.raises(errors.NotFound):
        job.delete_bucket("T2")
    assert job.open_kv("T2/x")["k"] == b"no object"
    assert job.buckets() == ["T1/out"]
    for wrong in ("", "/", "a:b"):
        with pytest.raises(errors.InvalidArgument):
            job.create_bucket(wrong)


@pytest.mark.parametrize("size", [100, 200_000])
def test_an_object_that_is_deleted_as_it_is_read_is_read_once(
    job: honeycomb.Job, size: int
) -> None:
    bucket = job.create_bucket("once", lease=30.0)
    objects = {f"o{n}": bytes([n]) * size for n in range(20)}
    for name, data in objects.items():
        bucket.put(name, data)

    def take(reader: int) -> dict[str, bytes]:
        own = job.bucket("once")
        found = {}
        for name in objects:
            try:
                found[name] = own.get(name, delete=True)
            except errors.KeyNotFound:
                continue
        return found

    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(take, range(4)))
    assert sum(len(found) for found in taken) == len(objects)
    assert {name: data for found in taken for name, data in found.items()} == objects
    assert len(bucket) == 0


def test_objects_come_from_files_and_go_to_files(bucket: honeycomb.Bucket, tmp_path: Path) -> None:
    source, empty, target = tmp_path / "source", tmp_path / "empty", tmp_path / "target"
    source.write_bytes(b"x" * 200_000)
    empty.touch()
    assert bucket.put_file("f", source) == 200_000
    assert bucket.put_file("e", empty) == 0
    assert bucket.get_file("e", target) == 0 and target.read_bytes() == b""
    assert bucket.get_file("f", target) == 200_000
    assert target.read_bytes() == source.read_bytes()
    with pytest.raises(errors.KeyNotFound):
        bucket.get_file("none", target)
    # An object that cannot be written to the file is not lost.
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        bucket.get_file("f", tmp_path / "folder", delete=True)
    assert bucket.get_file("f", target, delete=True) == 200_000
    assert not bucket.exists("f")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "empty",
        "folder",
        "source",
        "target",
    ]


def test_a_bucket_travels(bucket: honeycomb.Bucket) -> None:
    bucket.put("k", b"v")
    other = pickle.loads(pickle.dumps(bucket))
    assert other.get("k") == b"v" and other.name == "shuffle"
    assert "shuffle" in repr(bucket) and "objects" in bucket._repr_html_()


def test_the_twin_does_the_same(job: honeycomb.Job, tmp_path: Path) -> None:
    async def program() -> None:
        twin = aio.AsyncJob(job)
        bucket = await twin.create_bucket("events", lease=30.0)
        names = [f"n{n}" for n in range(50)]
        await asyncio.gather(*(bucket.put(name, name.encode()) for name in names))
        assert await asyncio.gather(*(bucket.get(name) for name in names)) == [
            name.encode() for name in names
        ]
        assert sorted([name async for name in bucket.enumerate("n1")]) == sorted(
            name for name in names if name.startswith("n1")
        )
        assert len([name async for name in bucket]) == 50
        assert await bucket.exists("n7") and not await bucket.exists("m")
        assert await bucket.get("n7", delete=True) == b"n7"
        with pytest.raises(errors.KeyNotFound):
            await bucket.get("n7", delete=True)
        assert await bucket.delete("n8") and not await bucket.delete("n8")
        assert await bucket.get_file("n9", tmp_path / "n9", delete=True) == 2
        assert await bucket.put_file("back", tmp_path / "n9") == 2
        assert await (await twin.bucket("events")).get("back") == b"n9"
        assert await bucket.kv["back"] == b"n9"
        assert await twin.buckets() == ["events"]
        await twin.delete_bucket("events")
        assert await twin.buckets() == []

    asyncio.run(program())


@pytest.fixture
def flushing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[honeycomb.Client]:
    monkeypatch.setenv("HONEYCOMB_FLUSH_ROOT", str(tmp_path))
    with started() as client:
        yield client


def test_a_bucket_that_persists_outlives_its_job(flushing: honeycomb.Client) -> None:
    large = b"l" * 100_000
    with flushing.job("etl") as job:
        bucket = job.create_bucket("models", persist=True)
        bucket.put("small", b"s")
        bucket.put("large", large)
        bucket.put("taken", b"t")
        assert bucket.get("taken", delete=True) == b"t"
        job.create_bucket("scratch").put("gone", b"g")
    with flushing.job("etl") as job:
        bucket = job.load_bucket("models", persist=True)
        assert sorted(bucket) == ["large", "small"]
        assert (bucket.get("small"), bucket.get("large")) == (b"s", large)
        bucket.put("small", b"again")
        with pytest.raises(errors.NotFound):
            job.load_bucket("scratch")

    async def again() -> bytes:
        async with (
            aio.connect(flushing.address, flushing.token) as client,
            client.job("etl") as job,
        ):
            return await (await job.load_bucket("models")).get("small")

    assert asyncio.run(again()) == b"again"
