from __future__ import annotations

import bz2
import gzip
import lzma
import os
import pickle
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pytest
from pyarrow import ipc, parquet

import honeycomb
from honeycomb.errors import InvalidArgument
from honeycomb.mapreduce import (
    InputFailed,
    MapReduce,
    MissingInput,
    MissingPackage,
    TaskFailed,
    UserFunctionError,
    inputs,
)


def count(part: Any) -> Iterator[tuple[Any, int]]:
    for record in part:
        yield record, 1


def total(key: Any, counts: list[int]) -> int:
    return sum(counts)


def contents(parts: list[inputs.FilePart]) -> bytes:
    return b"".join(part.read() for part in parts)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "without end"])
@pytest.mark.parametrize("split_bytes", [1, 7, 64, 1000, 10**9])
def test_every_line_is_in_one_part(tmp_path: Path, end: str, last: str, split_bytes: int) -> None:
    rng = random.Random(split_bytes)
    expected = [rng.choice(["", "x", "word " * 30, "é"]) for _ in range(200)]
    path = tmp_path / "text"
    path.write_bytes((end.join([*expected, ""]) + last).encode())
    if last:
        expected.append(last)
    parts = inputs.from_paths(path, split_bytes=split_bytes)
    assert len(parts) == max(1, -(-path.stat().st_size // split_bytes))
    assert [line.decode() for part in parts for line in part] == expected
    assert contents(parts) == path.read_bytes()
    for part in parts:
        assert [line.decode() for line in part] == [
            line.removesuffix("\r") for line in part.read().decode().split("\n")
        ][: len(list(part))]
    text = inputs.lines(path, split_bytes=split_bytes)
    assert [line for part in text for line in part] == expected


def test_parts_are_small_and_say_where_they_come_from(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(b"line\n" * 1000)
    first, second = inputs.from_paths(path, split_bytes=2500)
    assert len(pickle.dumps(first)) < 1000
    assert pickle.loads(pickle.dumps(second)).read() == second.read()
    assert (first.origin, second.origin) == (f"{path} bytes 0..2500", f"{path} bytes 2500..5000")
    assert inputs.from_paths(path)[0].origin == str(path)


def test_files_folders_and_patterns(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.log", "sub/d.txt", "_SUCCESS", ".hidden", "_tmp/e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)

    def names(*paths: str) -> list[str]:
        parts = inputs.from_paths([tmp_path / path for path in paths])
        return [part.place.name.removeprefix(f"{tmp_path}/") for part in parts]

    assert names(".") == ["a.txt", "b.txt", "c.log", "sub/d.txt"]
    assert names("*.txt") == ["a.txt", "b.txt"]
    assert names("**/*.txt") == ["_tmp/e.txt", "a.txt", "b.txt", "sub/d.txt"]
    assert names("c.log", "a.txt") == ["c.log", "a.txt"]
    (tmp_path / "odd[1].txt").write_text("x")
    assert names("odd[1].txt") == ["odd[1].txt"]


def test_what_is_missing_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "there").touch()
    with pytest.raises(MissingInput, match=r"no such input: gone\.txt"):
        inputs.from_paths(["there", "gone.txt"])
    with pytest.raises(FileNotFoundError, match=r"nothing matches the pattern \*\.csv"):
        inputs.from_paths("*.csv")
    with pytest.raises(MissingInput, match="nothing is in the folder empty"):
        inputs.lines("empty")
    for reader in (inputs.lines, inputs.pickles, inputs.parquet, inputs.arrow):
        with pytest.raises(MissingInput, match="gone"):
            reader("gone")
    with pytest.raises(InvalidArgument):
        inputs.from_paths([])


def test_what_cannot_be_read_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "locked").touch(0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)  # root can read every file; the user "nobody" cannot
    try:
        with pytest.raises(PermissionError, match="locked"):
            inputs.from_paths(tmp_path / "locked")
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize("end, pack", [("gz", gzip), ("bz2", bz2), ("xz", lzma)])
def test_packed_files_are_read_whole(tmp_path: Path, end: str, pack: Any) -> None:
    path = tmp_path / f"text.{end}"
    path.write_bytes(pack.compress(b"one\ntwo\n" * 10_000))
    [part] = inputs.from_paths(path, split_bytes=10)
    assert part.read() == b"one\ntwo\n" * 10_000
    assert Counter(part) == {b"one": 10_000, b"two": 10_000}
    path.write_bytes(pack.compress(b"one\ntwo\n" * 10_000)[:-9])
    [part] = inputs.from_paths(path)
    with pytest.raises(InputFailed, match=f"text.{end} cannot be read"):
        part.read()


def test_a_store_by_url(tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    store.pipe({"/books/a.txt": b"a\n" * 100, "/books/b.txt": b"b\n" * 100})
    parts = inputs.from_paths("memory://books/*.txt", split_bytes=100)
    assert len(parts) == 4
    assert Counter(line for part in parts for line in part) == {b"a": 100, b"b": 100}
    assert parts[0].origin == "memory:///books/a.txt bytes 0..100"
    with pytest.raises(MissingInput, match="memory://books/gone"):
        inputs.from_paths("memory://books/gone")
    path = tmp_path / "x"
    path.write_bytes(b"file\n")
    assert contents(inputs.from_paths(f"file://{path}")) == b"file\n"


def test_a_store_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("s3fs", "gcsfs"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackage, match=r"s3://bucket/x needs .*[Ii]nstall s3fs"):
        inputs.from_paths("s3://bucket/x")
    with pytest.raises(InvalidArgument, match="nonsense"):
        inputs.from_paths("nonsense://bucket/x")


def test_lines_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "latin"
    path.write_bytes("naïve\n".encode("latin-1"))
    with pytest.raises(InputFailed, match=r"latin has a line that is not utf-8.*errors='replace'"):
        list(inputs.lines(path)[0])
    assert list(inputs.lines(path, encoding="latin-1")[0]) == ["naïve"]
    assert list(inputs.lines(path, errors="replace")[0]) == ["na\ufffdve"]


def test_items_of_the_program() -> None:
    parts = inputs.items(range(10), per_split=4)
    assert [list(part) for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert parts[2].origin == "items 8..10"


def test_pickles(tmp_path: Path) -> None:
    path = tmp_path / "objects"
    objects = [{"a": [1, 2]}, None, "x" * 100_000, 3.5]
    path.write_bytes(b"".join(map(pickle.dumps, objects)))
    (tmp_path / "more.gz").write_bytes(gzip.compress(pickle.dumps("packed")))
    plain, packed = inputs.pickles([path, tmp_path / "more.gz"])
    assert list(plain) == objects
    assert list(packed) == ["packed"]
    path.write_bytes(pickle.dumps(1) + b"rubbish")
    with pytest.raises(InputFailed, match="objects has an object that cannot be unpickled"):
        list(inputs.pickles(path)[0])


# -------------------------------------------------------------------------- Arrow and Parquet

TABLE = pyarrow.table({"word": ["bee", "honey", "bee", "wax", "bee"], "n": [1, 2, 3, 4, 5]})


def test_parquet_has_a_split_for_each_row_group(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(TABLE, path, row_group_size=2)
    splits = inputs.parquet(path)
    assert [len(list(split)) for split in splits] == [2, 2, 1]
    assert [row for split in splits for row in split] == TABLE.to_pylist()
    assert splits[1].origin == f"{path} row group 1"
    assert list(inputs.parquet(path, columns=["n"])[2]) == [{"n": 5}]
    [batch] = inputs.parquet(path, batches=True)[0]
    assert isinstance(batch, pyarrow.RecordBatch) and batch.num_rows == 2
    with pytest.raises(InvalidArgument, match="no column 'm'; it has word, n"):
        inputs.parquet(path, columns=["m"])
    parquet.write_table(TABLE.slice(0, 0), path)
    assert [row for split in inputs.parquet(path) for row in split] == []
    path.write_bytes(b"no parquet at all")
    with pytest.raises(InputFailed, match=r"t\.parquet cannot be read"):
        inputs.parquet(path)


def test_arrow_files_and_streams(tmp_path: Path) -> None:
    file, stream = tmp_path / "t.arrow", tmp_path / "t.stream"
    with ipc.new_file(file, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=2)
    with ipc.new_stream(stream, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=2)
    splits = inputs.arrow(file)
    assert [len(list(split)) for split in splits] == [2, 2, 1]
    assert [row for split in splits for row in split] == TABLE.to_pylist()
    assert splits[1].origin == f"{file} record batch 1"
    [whole] = inputs.arrow(stream)
    assert list(whole) == TABLE.to_pylist()
    assert [batch.num_rows for batch in inputs.arrow(stream, batches=True)[0]] == [2, 2, 1]
    file.write_bytes(b"rubbish!" * 10)
    with pytest.raises(InputFailed, match=r"t\.arrow cannot be read"):
        inputs.arrow(file)


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path) -> None:
    """Runs in a Python that cannot import pyarrow; everything else works there."""
    script = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from honeycomb.mapreduce import inputs\n"
        "for read in (inputs.parquet, inputs.arrow):\n"
        "    try: read('x')\n"
        "    except ImportError as error: print(type(error).__name__, error)\n"
    )
    told = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(told) == 2
    assert all("MissingPackage" in line and "honeycomb-store[arrow]" in line for line in told)


# ------------------------------------------------------------------------------------- in runs


def test_a_run_over_files(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("bee\nhoney\n" * 500)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"bee\n" * 500))
    splits = inputs.lines(tmp_path, split_bytes=1000)
    with MapReduce(count, total).run(splits, client=cluster, executor=pool) as result:
        assert dict(result) == {"bee": 1000, "honey": 500}
    parquet.write_table(TABLE, tmp_path / "t.parquet", row_group_size=2)
    program = MapReduce(lambda rows: ((row["word"], row["n"]) for row in rows), total)
    records = inputs.parquet(tmp_path / "t.parquet")
    with program.run(records, client=cluster, executor=pool) as result:
        assert dict(result) == {"bee": 9, "honey": 2, "wax": 4}


@pytest.mark.parametrize("what", ["gone", "longer", "shorter"])
def test_an_input_that_goes_or_changes_meanwhile(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool, tmp_path: Path, what: str
) -> None:
    path = tmp_path / "book.txt"
    path.write_text("bee\n" * 1000)
    splits = inputs.lines(path, split_bytes=2000)
    if what == "gone":
        path.unlink()
    else:
        path.write_text("bee\n" * (2000 if what == "longer" else 10))
    with pytest.raises(TaskFailed) as caught:
        MapReduce(count, total).run(splits, client=cluster, executor=pool, attempts=2)
    told = str(caught.value)
    assert not isinstance(caught.value, UserFunctionError)
    assert told.startswith(f"map of {path} bytes ")
    assert ("is gone" if what == "gone" else "has changed since the run began") in told
    assert isinstance(caught.value.__cause__, InputFailed)


def test_a_user_s_error_names_the_input(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool, tmp_path: Path
) -> None:
    path = tmp_path / "book.txt"
    path.write_text("bee\n" * 10 + "wasp\n")

    def refuse(lines: Any) -> Iterator[tuple[str, int]]:
        for line in lines:
            if line == "wasp":
                raise LookupError(line)
            yield line, 1

    splits = inputs.lines(path, split_bytes=40)
    with pytest.raises(UserFunctionError, match=r"map of .*book\.txt bytes 22\.\.45") as caught:
        MapReduce(refuse, total).run(splits, client=cluster, executor=pool, attempts=1)
    assert caught.value.origin == f"{path} bytes 22..45"
