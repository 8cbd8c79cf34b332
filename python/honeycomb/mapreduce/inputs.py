"""Inputs of a run: files of this machine or of an object store, split among map tasks.

Each function returns a list for :meth:`MapReduce.run`, one element for each map task. Paths are a
file, a folder, a pattern (``books/*.txt``), any URL of fsspec (``s3://bucket/logs/*.gz``, with
``storage_options`` for its store), or several of these. They are resolved at once: a missing input
raises :class:`MissingInput` here, before any task starts. The splits themselves are small, and a task
opens its own part, so the files must be readable where the tasks run. A file that is removed or changes
its size in the meantime raises :class:`InputFailed` in the task.

Every split has an ``origin`` (``/x/book.txt bytes 0..65536``), which errors of its task name.

::

    def words(part):
        for word in part.read().split():
            yield word, 1

    MapReduce(words, total).run(inputs.from_paths("books/*.txt"))
"""

from __future__ import annotations

import contextlib
import io
import lzma
import math
import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, BinaryIO, Final, cast

from honeycomb.errors import InvalidArgument
from honeycomb.mapreduce.errors import InputFailed
from honeycomb.mapreduce.storage import Found, Path, Place, find, need_arrow

__all__ = [
    "ArrowBatch",
    "FilePart",
    "Items",
    "PickleFile",
    "RowGroup",
    "TextLines",
    "arrow",
    "from_paths",
    "items",
    "lines",
    "parquet",
    "pickles",
]

#: Approximate number of parts that text is split into, and the smallest and largest size of a part in
#: bytes, unless ``split_bytes`` is given.
PARTS_AIMED: Final = 64
PART_MIN: Final = 256 * 1024
PART_MAX: Final = 64 << 20
#: Compressed files, by the end of their name. They can only be read from the beginning.
PACKED: Final = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz"}
_READ: Final = 1 << 20
_NO_OPTIONS: Final[Mapping[str, Any]] = {}

#: Errors that reading a damaged file can raise.
_DAMAGE: Final = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)


@contextlib.contextmanager
def _reading(place: Place, size: int | None, packed: str | None = None) -> Iterator[BinaryIO]:
    """Opens the file for reading. Any failure raises :class:`InputFailed`, which names the file."""
    try:
        now = place.store.size(place.path) if size is not None else None
        if now != size:
            raise InputFailed(
                f"{place.name} has changed since the run began: it had {size} bytes, now it has "
                f"{now}"
            )
        with place.store.open(place.path, "rb", compression=packed) as file:
            yield file
    except InputFailed:
        raise
    except FileNotFoundError as error:
        raise InputFailed(
            f"{place.name} existed when the run began, and is gone where the task runs"
        ) from error
    except _DAMAGE as error:
        raise InputFailed(
            f"{place.name} cannot be read: {type(error).__name__}: {error}"
        ) from error


# ------------------------------------------------------------------------------------------- text


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a file: the lines whose first byte is in ``start`` to ``end`` (exclusive; ``None``:
    the whole file, decompressed if its name ends as that of a compressed file)."""

    place: Place
    size: int | None
    start: int = 0
    end: int | None = None
    packed: str | None = None

    @property
    def origin(self) -> str:
        """The name of the file, and the range of bytes."""
        where = "" if self.end is None else f" bytes {self.start}..{self.end}"
        return f"{self.place.name}{where}"

    def read(self) -> bytes:
        """All bytes of the part. Raises :class:`InputFailed`."""
        with _reading(self.place, self.size, self.packed) as file:
            if self.end is None:
                return file.read()
            position = self._begin(file)
            pieces: list[bytes] = []
            while position < self.end and (piece := file.read(self.end - position)):
                position += len(piece)
                pieces.append(piece)
            if pieces and not pieces[-1].endswith(b"\n"):
                pieces.append(file.readline())  # the rest of the last line, in the next part
            return b"".join(pieces)

    def __iter__(self) -> Iterator[bytes]:
        """The lines of the part, without line ends (``\\n`` or ``\\r\\n``). Raises
        :class:`InputFailed`."""
        with _reading(self.place, self.size, self.packed) as file:
            position = self._begin(file)
            end = math.inf if self.end is None else self.end
            while position < end and (line := file.readline()):
                position += len(line)
                yield line.removesuffix(b"\n").removesuffix(b"\r")

    def _begin(self, file: BinaryIO) -> int:
        """Moves to the first line that begins in the part, and returns its offset."""
        if self.start == 0:
            return 0
        file.seek(self.start - 1)
        return self.start - 1 + len(file.readline())


def from_paths(
    paths: Path | Iterable[Path],
    *,
    split_bytes: int | None = None,
    storage_options: Mapping[str, Any] = _NO_OPTIONS,
) -> list[FilePart]:
    """Files as parts of about ``split_bytes`` each, split at line ends; each line is in one part.

    ``part.read()`` returns its bytes, and iterating over a part yields its lines as bytes. By default,
    a part has a 64th of all bytes, but 256 KiB to 64 MiB. Files that end in ``.gz``, ``.bz2`` or ``.xz``
    are decompressed and not split. Files of a store that knows no sizes are not split either.

    Raises :class:`MissingInput`, :class:`MissingPackage` and ``PermissionError``.
    """
    if split_bytes is not None and split_bytes < 1:
        raise InvalidArgument(f"split_bytes is 1 or more bytes, not {split_bytes}")
    files = find(paths, storage_options)
    if split_bytes is None:
        whole = sum(file.size or 0 for file in files)
        split_bytes = min(max(whole // PARTS_AIMED, PART_MIN), PART_MAX)
    return [part for file in files for part in _parts(file, split_bytes)]


def _parts(file: Found, split_bytes: int) -> Iterator[FilePart]:
    packed = next((kind for end, kind in PACKED.items() if file.place.path.endswith(end)), None)
    count = 1 if file.size is None else math.ceil(file.size / split_bytes)
    if packed is not None or count <= 1:
        yield FilePart(file.place, file.size, packed=packed)
        return
    assert file.size is not None
    for start, end in pairwise(file.size * index // count for index in range(count + 1)):
        yield FilePart(file.place, file.size, start, end)


@dataclass(frozen=True, slots=True)
class TextLines:
    """A part of a text file, as lines of ``str``."""

    part: FilePart
    encoding: str
    errors: str

    @property
    def origin(self) -> str:
        """The name of the file, and the range of bytes."""
        return self.part.origin

    def __iter__(self) -> Iterator[str]:
        for line in self.part:
            try:
                yield line.decode(self.encoding, self.errors)
            except UnicodeDecodeError as error:
                raise InputFailed(
                    f"{self.origin} has a line that is not {self.encoding} ({error}); pass "
                    "errors='replace' to read it anyway"
                ) from error


def lines(
    paths: Path | Iterable[Path],
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
    split_bytes: int | None = None,
    storage_options: Mapping[str, Any] = _NO_OPTIONS,
) -> list[TextLines]:
    """Text files as splits that iterate over their lines, each a ``str`` without line end.

    ``encoding`` must be one in which a line ends with the byte ``\\n`` (not UTF-16). ``errors`` decides
    how to treat bytes that cannot be decoded, as for ``bytes.decode``. Otherwise as :func:`from_paths`.
    """
    parts = from_paths(paths, split_bytes=split_bytes, storage_options=storage_options)
    return [TextLines(part, encoding, errors) for part in parts]


# ---------------------------------------------------------------------------------------- objects


@dataclass(frozen=True, slots=True)
class Items:
    """Some of the program's own objects."""

    start: int
    objects: tuple[Any, ...] = field(repr=False)

    @property
    def origin(self) -> str:
        """The range of the objects."""
        return f"items {self.start}..{self.start + len(self.objects)}"

    def __iter__(self) -> Iterator[Any]:
        return iter(self.objects)


def items(objects: Iterable[Any], per_split: int = 1000) -> list[Items]:
    """Any objects that can be pickled, ``per_split`` of them for each map task."""
    if per_split < 1:
        raise InvalidArgument(f"per_split is 1 or more items, not {per_split}")
    source = iter(objects)
    splits: list[Items] = []
    while group := tuple(islice(source, per_split)):
        splits.append(Items(len(splits) * per_split, group))
    return splits


@dataclass(frozen=True, slots=True)
class PickleFile:
    """A file of pickles, one after another."""

    part: FilePart

    @property
    def origin(self) -> str:
        """The file."""
        return self.part.origin

    def __iter__(self) -> Iterator[Any]:
        with _reading(self.part.place, self.part.size, self.part.packed) as file:
            buffered = io.BufferedReader(cast(io.RawIOBase, file), _READ)
            while buffered.peek(1):
                try:
                    one = pickle.load(buffered)
                except Exception as error:  # unpickling runs any code
                    raise InputFailed(
                        f"{self.origin} has an object that cannot be unpickled: "
                        f"{type(error).__name__}: {error}"
                    ) from error
                yield one


def pickles(
    paths: Path | Iterable[Path], *, storage_options: Mapping[str, Any] = _NO_OPTIONS
) -> list[PickleFile]:
    """Files of pickled objects, one after another, as written by ``result.write(..., "pickle")``. Each
    file is one split, which iterates over its objects.

    Unpickling can run any code in the file: read only files that you trust. Otherwise as
    :func:`from_paths`.
    """
    files = find(paths, storage_options)
    # One split per file, however large the file is.
    return [PickleFile(part) for file in files for part in _parts(file, max(file.size or 0, 1))]


# ------------------------------------------------------------------------------ Arrow and Parquet


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a Parquet file; iterates over its records."""

    place: Place
    size: int | None
    group: int | None  # None for a file without row groups
    columns: tuple[str, ...] | None
    batches: bool

    @property
    def origin(self) -> str:
        """The name of the file, and the row group."""
        return f"{self.place.name} row group {self.group}"

    def __iter__(self) -> Iterator[Any]:
        need_arrow("reading Parquet")
        from pyarrow import parquet as files

        if self.group is None:
            return
        columns = None if self.columns is None else list(self.columns)
        with _reading(self.place, self.size) as file:
            source = files.ParquetFile(file)
            for batch in source.iter_batches(row_groups=[self.group], columns=columns):
                yield from [batch] if self.batches else batch.to_pylist()


def parquet(
    paths: Path | Iterable[Path],
    *,
    columns: Sequence[str] | None = None,
    batches: bool = False,
    storage_options: Mapping[str, Any] = _NO_OPTIONS,
) -> list[RowGroup]:
    """Parquet files. Each row group is one split, which iterates over its records: dictionaries, or with
    ``batches`` the ``pyarrow.RecordBatch`` objects. ``columns`` are the columns to read; ``None`` reads
    all.

    Needs pyarrow (``honeycomb-store[arrow]``), or raises :class:`MissingPackage`. Raises
    :class:`InputFailed` for a file that is not a Parquet file and
    :class:`~honeycomb.errors.InvalidArgument` for a column that a file lacks. Otherwise as
    :func:`from_paths`.
    """
    need_arrow("reading Parquet")
    from pyarrow import parquet as files

    wanted = None if columns is None else tuple(columns)
    splits: list[RowGroup] = []
    for found in find(paths, storage_options):
        with _reading(found.place, found.size) as file:
            source = files.ParquetFile(file)
            names, groups = source.schema_arrow.names, source.metadata.num_row_groups
        if missing := [name for name in wanted or () if name not in names]:
            raise InvalidArgument(
                f"{found.place.name} has no column {missing[0]!r}; it has {', '.join(names)}"
            )
        numbers: Iterable[int | None] = range(groups) if groups else [None]
        splits += [RowGroup(found.place, found.size, one, wanted, batches) for one in numbers]
    return splits


@dataclass(frozen=True, slots=True)
class ArrowBatch:
    """A record batch of an Arrow file, or a whole Arrow stream; iterates over its records."""

    place: Place
    size: int | None
    batch: int | None  # None for a stream
    batches: bool

    @property
    def origin(self) -> str:
        """The name of the file, and the record batch."""
        where = "" if self.batch is None else f" record batch {self.batch}"
        return f"{self.place.name}{where}"

    def __iter__(self) -> Iterator[Any]:
        need_arrow("reading Arrow")
        from pyarrow import ipc

        with _reading(self.place, self.size) as file:
            if self.batch is None:
                read: Iterable[Any] = ipc.open_stream(file)
            else:
                read = [ipc.open_file(file).get_batch(self.batch)]
            for batch in read:
                yield from [batch] if self.batches else batch.to_pylist()


def arrow(
    paths: Path | Iterable[Path],
    *,
    batches: bool = False,
    storage_options: Mapping[str, Any] = _NO_OPTIONS,
) -> list[ArrowBatch]:
    """Arrow IPC files (Feather), one split per record batch, or Arrow streams, which cannot be split.
    Otherwise as :func:`parquet`."""
    need_arrow("reading Arrow")
    from pyarrow import ipc

    splits: list[ArrowBatch] = []
    for found in find(paths, storage_options):
        with _reading(found.place, found.size) as file:
            numbers: Iterable[int | None] = [None]
            if file.read(6) == b"ARROW1":
                file.seek(0)
                numbers = range(ipc.open_file(file).num_record_batches)
            else:
                file.seek(0)
                ipc.open_stream(file)  # raises if it is not a stream either
        splits += [ArrowBatch(found.place, found.size, one, batches) for one in numbers]
    if not splits:
        raise InvalidArgument(f"no Arrow file at {paths} has a record batch")
    return splits
