"""Data that outlives its lease: the option, and reading a flush on disk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import BLOCK_SIZE, eventually
from gateway import Gateway, program

import honeycomb
from honeycomb import errors
from honeycomb.flushed import MANIFEST, NotFlushed


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The flush_root of clusters that start from now on."""
    monkeypatch.setenv("HONEYCOMB_FLUSH_ROOT", str(tmp_path))
    return tmp_path


@pytest.fixture
def flushing(root: Path) -> Iterator[honeycomb.Client]:
    """A cluster with a flush_root, separate from the cluster of the other tests."""
    with started() as client:
        yield client


@contextlib.contextmanager
def started() -> Iterator[honeycomb.Client]:
    """A cluster in a separate process, so that it reads the current settings."""
    from honeycomb._local import binary

    command = [str(binary()), "start", "--embedded", "--json", "--memory", "16MiB"]
    command += ["--block-size", str(BLOCK_SIZE), "--shards", "1"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        told = json.loads(process.stdout.readline())
        with honeycomb.connect(told["address"], token=told["token"]) as client:
            yield client
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(10)


def flushed(client: honeycomb.Client) -> int:
    return int(client.status()["flushed"])


def test_what_was_in_the_store_is_on_disk(flushing: honeycomb.Client, root: Path) -> None:
    table = {f"key-{i}".encode(): bytes([i % 256]) * (i % 300) for i in range(400)}
    table |= {f"large-{i}".encode(): bytes([i]) * (i * 30_000) for i in range(1, 5)}
    # One list of extents does not name all of it.
    table[b"lists"] = random.randbytes(700_000)
    items = [f"item {i}".encode() * (10_000 if i % 100 == 7 else 10) for i in range(300)]
    text = bytes(range(256)) * 600
    with flushing.job("words", lease=60.0, keep=False) as job:
        job.create_addr_prefix(
            "t", lease=2.0, high_mark=80, low_mark=10, on_expiry=honeycomb.Flush("out/1")
        )
        job.create_file("t:text").write_all(text)
        queue = job.create_queue("t:work")
        for item in items:
            queue.put(item)
        kv = job.create_kv("t", blocks=4)
        for key, value in table.items():
            kv[key] = value
        assert eventually(lambda: flushed(flushing) == 1)
    there = honeycomb.open_flushed(root / "words" / "out" / "1")
    assert (there.job, there.address) == ("words", "t")
    assert there["text"].read() == text
    assert list(there["work"].items()) == items
    assert dict(there[""].entries()) == table
    with pytest.raises(errors.WrongKind):
        there["text"].items().__next__()
    with pytest.raises(errors.NotFound, match="work"):
        there["none"]


OWNER = """
import os, sys
import honeycomb
client = honeycomb.connect(sys.argv[1], token=sys.argv[2])
job = client.job("left", lease=1.0)
job.__enter__()
job.create_addr_prefix("t", lease=0.3, on_expiry=honeycomb.Flush("t"))
job.create_file("t").append(b"the last words")
os._exit(9)
"""


def test_an_owner_that_dies_without_a_word_leaves_its_data_on_disk(
    flushing: honeycomb.Client, root: Path
) -> None:
    command = [sys.executable, "-c", OWNER, flushing.address, flushing.token.hex()]
    assert subprocess.run(command, check=False).returncode == 9
    assert eventually(lambda: flushed(flushing) == 1)
    assert honeycomb.open_flushed(root / "left" / "t")[""].read() == b"the last words"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """An S3 server, if it is built."""
    found = program()
    if found is None:
        pytest.skip("versitygw is not there: verify/versitygw/build.sh says why")
    gateway = Gateway(found, tmp_path)
    yield gateway
    gateway.stop()


def test_a_bucket_is_read_by_its_url(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HONEYCOMB_FLUSH_ROOT", "s3://lake/flush")
    for name, value in gateway.variables().items():
        monkeypatch.setenv(name, value)
    table = {f"key-{i}".encode(): bytes([i]) * i for i in range(200)}
    with started() as client, client.job("j", lease=60.0, keep=False) as job:
        job.create_addr_prefix("t", lease=1.0, on_expiry=honeycomb.Flush("out"))
        kv = job.create_kv("t")
        for key, value in table.items():
            kv[key] = value
        assert eventually(lambda: flushed(client) == 1)
    assert (gateway.bucket / "flush" / "j" / "out" / MANIFEST).exists()
    there = honeycomb.open_flushed("s3://lake/flush/j/out")
    copy = there[""]._directory
    assert dict(there[""].entries()) == table
    del there
    assert not copy.exists(), "the copy goes with what reads it"
    with pytest.raises(NotFlushed, match="holds no flush"):
        honeycomb.open_flushed("s3://lake/flush/j/none")


def test_damage_is_seen(flushing: honeycomb.Client, root: Path) -> None:
    with flushing.job("d", lease=60.0, keep=False) as job:
        job.create_hierarchy([honeycomb.Node("t", lease=0.3, on_expiry=honeycomb.Flush("t"))])
        job.create_kv("t")[b"key"] = b"value"
        assert eventually(lambda: flushed(flushing) == 1)
    directory = root / "d" / "t"
    (part,) = directory.glob("*.part")
    good = part.read_bytes()
    part.write_bytes(good[:-1] + b"!")
    with pytest.raises(NotFlushed, match="damaged"):
        list(honeycomb.open_flushed(directory)[""].entries())
    manifest = directory / MANIFEST
    manifest.write_bytes(manifest.read_bytes().replace(b'"kv"', b'"KV"'))
    with pytest.raises(NotFlushed, match="checksum"):
        honeycomb.open_flushed(directory)
    manifest.unlink()
    with pytest.raises(NotFlushed, match="no flush"):
        honeycomb.open_flushed(directory)


def test_without_a_root_the_option_is_refused_by_the_setting(job: honeycomb.Job) -> None:
    with pytest.raises(errors.FlushUnavailable, match="flush_root"):
        job.create_addr_prefix("t", on_expiry=honeycomb.Flush("out"))


def test_options_that_cannot_be(job: honeycomb.Job) -> None:
    with pytest.raises(TypeError):
        honeycomb.Flush("")
    with pytest.raises(TypeError, match="discard"):
        job.create_addr_prefix("t", on_expiry="flush")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument):
        job.create_addr_prefix("t", high_mark=101)
    with pytest.raises(errors.InvalidArgument, match="low mark"):
        job.create_addr_prefix("t", high_mark=40, low_mark=30)


def filled(job: honeycomb.Job, path: str) -> None:
    job.create_kv(f"{path}:table")[b"color"] = b"blue"
    job.create_file(f"{path}:log").append(b"first line\n")


def test_what_persists_is_found_by_a_later_job_and_deleted(
    flushing: honeycomb.Client, root: Path
) -> None:
    seen: list[honeycomb.Progress] = []
    with flushing.job("keeper") as job:
        job.create_addr_prefix("T1", persist=True)
        job.create_hierarchy([honeycomb.Node("T2", persist=True), honeycomb.Node("T3", "T2")])
        for path in ("T1", "T2", "T2/T3"):
            filled(job, path)
    with flushing.job("keeper") as job:
        assert job.load_addr_prefix("T1", persisted=True, persist=True, progress=seen.append) > 0
        assert job.open_kv("T1:table")[b"color"] == b"blue"
        job.open_kv("T1:table")[b"color"] = b"red"
        assert job.load_addr_prefix("copy", "T2", persisted=True, lease=30.0) > 0
        assert job.open_file("copy:log").read() == b"first line\n"
        with pytest.raises(errors.NotFound):
            job.load_addr_prefix("T3", "T2/T3", persisted=True)
        with pytest.raises(TypeError, match="external_path"):
            job.load_addr_prefix("T4")
    told = [progress.done for progress in seen]
    assert told == sorted(told) and told[-1] == seen[-1].of
    with flushing.job("keeper") as job:
        job.load_addr_prefix("T1", persisted=True)
        assert job.open_kv("T1:table")[b"color"] == b"red"
    place = root / "keeper" / "T1"
    assert honeycomb.open_flushed(place).address == "T1"
    assert honeycomb.delete_flushed(place) == 3
    assert not place.exists()
    with pytest.raises(NotFlushed, match="holds no flush"):
        honeycomb.delete_flushed(place)


def test_a_persistent_prefix_needs_a_root(job: honeycomb.Job) -> None:
    with pytest.raises(errors.FlushUnavailable, match="flush_root"):
        job.create_addr_prefix("kept", persist=True)


def test_a_file_is_one_plain_object_and_comes_back(job: honeycomb.Job, tmp_path: Path) -> None:
    text = bytes(range(256)) * 4000
    job.create_addr_prefix("raw")
    job.create_file("raw:text").write_all(text)
    place = tmp_path / "text.bin"
    seen: list[honeycomb.Progress] = []
    told = job.flush_addr_prefix("raw:text", str(place), format="raw", progress=seen.append)
    assert (told, place.read_bytes() == text) == (str(place), True)
    assert [path.name for path in tmp_path.iterdir()] == ["text.bin"]
    assert seen[-1].done == len(text)
    assert job.load_addr_prefix("back:copy", place, format="raw") == len(text)
    assert job.open_file("back:copy").read() == text
    job.create_queue("raw:queue")
    with pytest.raises(errors.WrongKind, match="not a file"):
        job.flush_addr_prefix("raw:queue", str(place), format="raw")
    with pytest.raises(errors.NotFound):
        job.load_addr_prefix("none", tmp_path / "none", format="raw")
    with pytest.raises(ValueError, match="format"):
        job.flush_addr_prefix("raw", "x", format="tar")  # type: ignore[arg-type]


def test_a_subtree_is_flushed_and_loaded(flushing: honeycomb.Client, root: Path) -> None:
    seen: list[honeycomb.Progress] = []
    with flushing.job("trees") as job:
        job.create_hierarchy({"T1": (), "T2": "T1", "T3": ("T1", "T2")})
        for path in ("T1", "T1/T2", "T1/T3"):
            filled(job, path)
        place = job.flush_addr_prefix("T1", "out", subtree=True, progress=seen.append)
        assert place == str(root / "trees" / "out")
        assert all(there.of == 3 for there in seen) and seen[-1].done == 3
        assert job.load_addr_prefix("copy", place, subtree=True) > 0
        for path in ("copy", "copy/T2", "copy/T3"):
            assert job.open_kv(f"{path}:table")[b"color"] == b"blue"
        with pytest.raises(ValueError, match="subtree"):
            job.load_addr_prefix("again", "T1", persisted=True, subtree=True)
        job.create_addr_prefix("other", on_expiry=honeycomb.Flush("out/T3"))
        with pytest.raises(errors.AlreadyExists, match="T1/T3 failed; complete: T1/T2"):
            job.flush_addr_prefix("T1", "out", subtree=True)


def test_all_of_it_is_flushed_as_it_was_at_one_moment(
    flushing: honeycomb.Client, root: Path
) -> None:
    with flushing.job("moments") as job:
        job.create_hierarchy({"T1": (), "T2": "T1"})
        for path in ("T1", "T1/T2"):
            filled(job, path)
        place = job.flush_addr_prefix("T1/T2", "one", barrier=True)
        assert place == str(root / "moments" / "one")
        place = job.flush_addr_prefix("T1", "all", subtree=True, barrier=True)
        assert job.load_addr_prefix("copy", place, subtree=True) > 0
        assert job.open_kv("copy/T2:table")[b"color"] == b"blue"
        with pytest.raises(ValueError, match="barrier"):
            job.flush_addr_prefix("T1:text", "x", format="raw", barrier=True)


def test_closing_a_job_can_wait_for_what_persists(flushing: honeycomb.Client, root: Path) -> None:
    job = flushing.job("closing")
    job.create_addr_prefix("kept", persist=True)
    job.create_file("kept").append(b"precious")
    (root / "closing").write_bytes(b"in the way")
    with pytest.raises(errors.DeadlineExceeded, match="0 of 1 blocks are written"):
        job.close(flush_timeout=0.5)
    (root / "closing").unlink()
    second = flushing.job("closing-2")
    second.create_addr_prefix("kept", persist=True)
    second.create_file("kept").append(b"precious")
    second.close(flush_timeout=None)
    assert (root / "closing-2" / "kept" / MANIFEST).exists()


async def raw_and_back(address: str, token: bytes, place: Path) -> bytes:
    async with honeycomb.aio.connect(address, token) as client, client.job("async-raw") as job:
        await job.create_addr_prefix("t", persist=True)
        file = await job.create_file("t")
        await file.append(b"by asyncio")
        await job.flush_addr_prefix("t", str(place), format="raw")
        await job.load_addr_prefix("u", place, format="raw", persist=True)
        return await (await job.open_file("u")).read(0, 100)


def test_asyncio_has_the_same(flushing: honeycomb.Client, tmp_path: Path) -> None:
    address, token = flushing.address, flushing.token
    assert asyncio.run(raw_and_back(address, token, tmp_path / "x")) == b"by asyncio"
