from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pyarrow import parquet

import honeycomb
from honeycomb.errors import AlreadyExists, InvalidArgument
from honeycomb.mapreduce import MapReduce, Result, inputs

COUNTS = {f"word-{number:03}": number for number in range(300)}


def pairs(numbers: range) -> Iterator[tuple[str, int]]:
    for number in numbers:
        yield f"word-{number:03}", number


def total(key: Any, values: list[int]) -> int:
    return sum(values)


@pytest.fixture(scope="module")
def result(cluster: honeycomb.Client, pool: honeycomb.WorkerPool) -> Iterator[Result]:
    splits = [range(start, start + 100) for start in (0, 100, 200)]
    with MapReduce(pairs, total, sort="total").run(
        splits, client=cluster, executor=pool, reducers=4
    ) as result:
        yield result


def read(folder: str, format: str) -> Iterator[tuple[Any, Any]]:
    match format:
        case "text":
            for part in inputs.lines(folder):
                for line in part:
                    key, _, value = line.partition("\t")
                    yield key, int(value)
        case "pickle":
            for objects in inputs.pickles(folder):
                yield from objects
        case "parquet":
            for rows in inputs.parquet(folder):
                for row in rows:
                    yield row["key"], row["value"]
        case "arrow":
            for batch in inputs.arrow(folder):
                for row in batch:
                    yield row["key"], row["value"]


@pytest.mark.parametrize("format", ["text", "pickle", "parquet", "arrow"])
@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_what_is_written_is_read_again(
    result: Result, tmp_path: Path, format: Any, scheme: str
) -> None:
    folder = f"{scheme}{tmp_path}/out/put"
    files = result.write(folder, format)
    assert len(files) == 5 and files[-1].endswith("/_SUCCESS")
    assert all(f"/part-0000{number}." in files[number] for number in range(4))
    store, path = fsspec.core.url_to_fs(folder)
    assert len(store.ls(path)) == 5  # and no temporary files
    # In order over all parts, because the run used a total order.
    assert list(read(folder, format)) == sorted(COUNTS.items())


def test_an_earlier_output_is_replaced_only_when_asked(result: Result, tmp_path: Path) -> None:
    result.write(tmp_path)
    (tmp_path / "part-00099.txt").write_text("of a run with more reducers")
    (tmp_path / "_part-00001.abc.tmp").write_text("of a run that was killed")
    with pytest.raises(AlreadyExists, match="overwrite=True"):
        result.write(tmp_path)
    result.write(tmp_path, overwrite=True)
    assert len(list(tmp_path.iterdir())) == 5
    assert dict(read(str(tmp_path), "text")) == COUNTS
    (tmp_path / "thesis.doc").touch()
    with pytest.raises(AlreadyExists, match=r"thesis\.doc, which is not part of an earlier output"):
        result.write(tmp_path, overwrite=True)
    assert len(list(tmp_path.iterdir())) == 6


def test_a_failure_leaves_no_half_of_it(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool, tmp_path: Path
) -> None:
    program = MapReduce(lambda n: [(n, n)], lambda key, values: "text" if key == 3 else key)
    with program.run(range(4), client=cluster, executor=pool, reducers=4) as result:
        for format in ("parquet", "arrow"):
            with pytest.raises(InvalidArgument, match=r"do not fit.*int64.*format='pickle'"):
                result.write(tmp_path / format, format)  # type: ignore[arg-type]
            assert list((tmp_path / format).iterdir()) == []
        with pytest.raises(InvalidArgument, match="one of text, pickle, parquet, arrow"):
            result.write(tmp_path, "csv")  # type: ignore[arg-type]


def test_odd_text_stays_on_its_line(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool, tmp_path: Path
) -> None:
    odd = ["a\tb", "c\nd", "e\\f", "g\rh"]
    with MapReduce(lambda key: [(key, b"\xff\t")], lambda key, values: values[0]).run(
        odd, client=cluster, executor=pool, reducers=1
    ) as result:
        result.write(tmp_path)
    assert (tmp_path / "part-00000.txt").read_bytes() == (
        b"a\\tb\t\xff\\t\nc\\nd\t\xff\\t\ne\\\\f\t\xff\\t\ng\\rh\t\xff\\t\n"
    )


def test_empty_parts_are_files_too(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool, tmp_path: Path
) -> None:
    with MapReduce(lambda n: [("k", n)], total).run(
        range(3), client=cluster, executor=pool, reducers=3
    ) as result:
        files = result.write(tmp_path, "parquet")
    tables = [parquet.read_table(file) for file in files[:-1]]
    assert sorted(table.num_rows for table in tables) == [0, 0, 1]
    assert len({str(table.schema) for table in tables}) == 1


def test_nothing_at_all_can_be_written(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool, tmp_path: Path
) -> None:
    with MapReduce(lambda n: [], total).run(
        range(3), client=cluster, executor=pool, reducers=2
    ) as result:
        for format in ("text", "pickle", "parquet", "arrow"):
            folder = tmp_path / format
            assert len(result.write(folder, format)) == 3  # type: ignore[arg-type]
            if format != "arrow":
                assert list(read(str(folder), format)) == []
