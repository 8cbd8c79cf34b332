"""Writing a result to files, one per reducer. A file gets its final name only when it is complete."""

from __future__ import annotations

import contextlib
import pickle
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO, Final, Literal, TypeAlias

import cloudpickle

from honeycomb.errors import AlreadyExists, InvalidArgument
from honeycomb.mapreduce.storage import Path, Place, need_arrow, resolve

OutputFormat: TypeAlias = Literal["text", "pickle", "parquet", "arrow"]
Pairs: TypeAlias = Iterator[tuple[Any, Any]]

SUCCESS: Final = "_SUCCESS"
#: Pairs of a record batch or row group.
ARROW_ROWS: Final = 1 << 16
_ENDS: Final = {"text": ".txt", "pickle": ".pickle", "parquet": ".parquet", "arrow": ".arrow"}
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def write(
    parts: Sequence[Callable[[], Pairs]],
    target: Path,
    format: OutputFormat,
    overwrite: bool,
    options: Mapping[str, Any],
) -> list[str]:
    """Implements :meth:`Result.write`. ``parts`` return the pairs of each reducer."""
    if format not in _ENDS:
        raise InvalidArgument(f"format is one of {', '.join(_ENDS)}, not {format!r}")
    if format in ("parquet", "arrow"):
        need_arrow(f"writing {format}")
    folder = resolve(target, options)
    store = folder.store
    _make_room(folder, overwrite)
    put = _writer(format, parts)
    token = secrets.token_hex(4)
    made: list[str] = []
    try:
        for index, pairs in enumerate(parts):
            name = f"{folder.path}/part-{index:05}{_ENDS[format]}"
            draft = f"{folder.path}/_part-{index:05}.{token}.tmp"
            made.append(draft)
            with store.open(draft, "wb") as file:
                put(file, pairs())
            store.mv(draft, name)
            made[-1] = name
        success = f"{folder.path}/{SUCCESS}"
        store.pipe_file(success, b"")
        made.append(success)
    except BaseException:
        for name in made:
            with contextlib.suppress(Exception):  # the first error is the one to raise
                store.rm_file(name)
        raise
    return [Place(store, name).name for name in made]


def _make_room(folder: Place, overwrite: bool) -> None:
    """Makes the folder, and removes an earlier output from it, ``_SUCCESS`` first. Other files stay."""
    store = folder.store
    store.makedirs(folder.path, exist_ok=True)
    store.invalidate_cache(folder.path)
    there = [str(name).rstrip("/") for name in store.ls(folder.path, detail=False)]
    names = {name.rpartition("/")[2]: name for name in there}
    others = [one for one in names if not (one == SUCCESS or one.startswith(("part-", "_part-")))]
    if names and (others or not overwrite):
        what = (
            f"contains {min(others)}, which is not part of an earlier output"
            if others
            else ("is not empty; pass overwrite=True to replace an earlier output")
        )
        raise AlreadyExists(f"cannot write to the folder {folder.name}: it {what}")
    for one in sorted(names):  # "_SUCCESS" comes before all others
        store.rm_file(names[one])


def _writer(
    format: OutputFormat, parts: Sequence[Callable[[], Pairs]]
) -> Callable[[BinaryIO, Pairs], None]:
    if format == "text":
        return _write_text
    if format == "pickle":
        return _write_pickles
    return _arrow_writer(format, parts)


def _write_text(file: BinaryIO, pairs: Pairs) -> None:
    while chunk := list(islice(pairs, 4096)):
        lines = [f"{_text(key)}\t{_text(value)}\n" for key, value in chunk]
        file.write("".join(lines).encode("utf-8", "surrogateescape"))


def _text(value: Any) -> str:
    """A field of a line. Bytes that are not UTF-8 are written unchanged."""
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
    return text.translate(_ESCAPES)


def _write_pickles(file: BinaryIO, pairs: Pairs) -> None:
    for pair in pairs:
        try:
            data = pickle.dumps(pair, protocol=5)
        except (pickle.PicklingError, AttributeError, TypeError):
            data = cloudpickle.dumps(pair, protocol=5)
        # A class of __main__ is pickled by reference, and the reader's __main__ is another program.
        file.write(cloudpickle.dumps(pair, protocol=5) if b"__main__" in data else data)


def _arrow_writer(
    format: OutputFormat, parts: Sequence[Callable[[], Pairs]]
) -> Callable[[BinaryIO, Pairs], None]:
    import pyarrow
    from pyarrow import ipc, parquet

    def batch(chunk: Sequence[tuple[Any, Any]], schema: Any = None) -> Any:
        columns = {"key": [key for key, _ in chunk], "value": [value for _, value in chunk]}
        try:
            return pyarrow.RecordBatch.from_pydict(columns, schema=schema)
        except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
            of = f" with {', '.join(str(field.type) for field in schema)}" if schema else ""
            raise InvalidArgument(
                f"the pairs do not fit into {format} columns key and value{of}: {error}; "
                "format='pickle' accepts any objects"
            ) from error

    firsts = (list(islice(pairs(), ARROW_ROWS)) for pairs in parts)
    schema = batch(next(filter(None, firsts), ())).schema

    def put(file: BinaryIO, pairs: Pairs) -> None:
        if format == "parquet":
            with parquet.ParquetWriter(file, schema) as rows:
                while chunk := list(islice(pairs, ARROW_ROWS)):
                    rows.write_batch(batch(chunk, schema))
        else:
            with ipc.new_file(file, schema) as rows:
                while chunk := list(islice(pairs, ARROW_ROWS)):
                    rows.write_batch(batch(chunk, schema))

    return put
