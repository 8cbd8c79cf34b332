"""Data that outlives its lease: naming its destination, and reading it there.

A prefix created with ``on_expiry=Flush("out/T1")`` is written when its lease ends, below the directory
or bucket that is the memory servers' ``flush_root``. :func:`open_flushed` reads a flush without a
cluster. ``docs/flush.md`` describes the format.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast

from honeycomb import _check, errors

__all__ = [
    "Flush",
    "Flushed",
    "FlushedStructure",
    "NotFlushed",
    "delete_flushed",
    "open_flushed",
]

MANIFEST: Final = "manifest.json"
FORMAT: Final = "honeycomb-flush"
VERSION: Final = 5
# End of the names of parts that contain the extents of large values.
EXTENTS: Final = ".extents.part"
# Bit in the length of a value or an item: a list of extents follows instead of it.
OF_EXTENTS: Final = 1 << 31

Kind = Literal["file", "queue", "kv"]


@dataclass(frozen=True, slots=True)
class Flush:
    """Writes a prefix's data to disk or to a bucket when the prefix's lease ends.

    ``path`` is a relative path with ``/`` between names, below the servers' ``flush_root`` and a
    directory with the job's name. Two live prefixes of a job cannot share a path. A complete flush
    replaces the flush of an earlier prefix at the same path.
    """

    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise TypeError(f"the path of a Flush is a str such as 'out/T1', not {self.path!r}")
        _check.text("the path of a Flush", self.path, "out/T1")


def flush_to(on_expiry: Flush | Literal["discard"]) -> str:
    """``on_expiry`` as the protocol encodes it; an empty string discards the data."""
    if isinstance(on_expiry, Flush):
        return on_expiry.path
    if on_expiry == "discard":
        return ""
    raise TypeError(f"on_expiry is 'discard' or Flush('a/path'), not {on_expiry!r}")


class NotFlushed(errors.HoneycombError):
    """The directory contains no complete flush: the flush was not finished, or its bytes are damaged."""

    hint = "`honeycomb status` shows flushes that are in progress or fail"


# Object, offset and length of each extent, by block, epoch and number.
_Places = dict[tuple[int, int, int], tuple[Path, int, int]]
_EXTENT: Final = struct.Struct("<QI")
_NAME: Final = struct.Struct("<QQQI")


# In place of a block in the first name of a list of lists.
_HEAD: Final = (1 << 64) - 1


def _value(names: bytes, places: _Places, due: int | None = None) -> Iterator[bytes]:
    """The extents of a value; those of lists, if these are the names of lists.

    ``due`` is the number of levels below a list that another one names.
    """
    block, level = _NAME.unpack_from(names)[:2] if len(names) >= _NAME.size else (0, 0)
    below = level if block == _HEAD else 0
    if below > 2 or due not in (None, below):
        raise NotFlushed("a list of extents is damaged: its level is not that of the list above")
    if not below:
        yield from _named(names, places)
        return
    for lower in _named(names[_NAME.size :], places):
        yield from _value(lower, places, below - 1)


def _named(names: bytes, places: _Places) -> Iterator[bytes]:
    """The extents with these names."""
    for block, epoch, number, length in _NAME.iter_unpack(names):
        path, at, there = places.get((block, epoch, number), (Path(), 0, -1))
        if there != length:
            raise NotFlushed(f"extent {number} of block {block:016x} is not in the flush")
        with path.open("rb") as file:
            file.seek(at)
            yield file.read(length)


@dataclass(frozen=True, slots=True)
class FlushedStructure:
    """One structure of a flush."""

    name: str
    kind: Kind
    sealed: bool
    _parts: tuple[dict[str, Any], ...]
    _directory: Path
    #: Owner of the directory if it is a temporary copy, which is deleted with its owner.
    _keep: object = field(default=None, repr=False, compare=False)

    def read(self) -> bytes:
        """All bytes of a file."""
        self._expect("file")
        return b"".join(self._objects(self._parts))

    def items(self) -> Iterator[bytes]:
        """The items of a queue, in order. They include items that were reserved and not acknowledged."""
        self._expect("queue")
        extents = self._extents()
        for ((item, elsewhere),) in self._records(1):
            yield b"".join(_value(item, extents)) if elsewhere else item

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of a key-value store, in no particular order."""
        self._expect("kv")
        extents = self._extents()
        for (key, _), (value, elsewhere) in self._records(2):
            yield key, b"".join(_value(value, extents)) if elsewhere else value

    def _expect(self, kind: Kind) -> None:
        if self.kind != kind:
            raise errors.WrongKind(f"the flushed structure {self.name!r} is a {self.kind}")

    def _objects(self, parts: Iterable[dict[str, Any]]) -> Iterator[bytes]:
        for part in parts:
            path = self._directory / part["name"]
            try:
                data = path.read_bytes()
            except OSError as e:
                raise NotFlushed(f"{path} cannot be read: {e}") from e
            if len(data) != part["bytes"] or zlib.crc32(data) != part["crc32"]:
                raise NotFlushed(f"{path} is damaged: the manifest has another length or checksum")
            yield data

    def _extents(self) -> _Places:
        """The locations of the extents of large values."""
        parts = [part for part in self._parts if part["name"].endswith(EXTENTS)]
        places: _Places = {}
        for part, data in zip(parts, self._objects(parts), strict=True):
            path, at, count = self._directory / part["name"], 0, 0
            block, epoch = (int(n, 16) for n in part["name"].removesuffix(EXTENTS).split("-")[-2:])
            while at < len(data):
                number, length = _EXTENT.unpack_from(data, at)
                at += _EXTENT.size
                places[block, epoch, number] = (path, at, length)
                at += length
                count += 1
            if at != len(data) or count != part["items"]:
                raise NotFlushed(
                    f"{part['name']} is damaged: its extents do not match its number of items"
                )
        return places

    def _records(self, fields: int) -> Iterator[list[tuple[bytes, bool]]]:
        """The fields of each record, each with whether it is a list of extents."""
        parts = [part for part in self._parts if not part["name"].endswith(EXTENTS)]
        for part, data in zip(parts, self._objects(parts), strict=True):
            at, count = 0, 0
            while at < len(data):
                head = at + 4 * fields
                lengths = [int.from_bytes(data[i : i + 4], "little") for i in range(at, head, 4)]
                at = head
                record = []
                for told in lengths:
                    length = told & ~OF_EXTENTS
                    record.append((data[at : at + length], told != length))
                    at += length
                count += 1
                yield record
            if at != len(data) or count != part["items"]:
                raise NotFlushed(
                    f"{part['name']} is damaged: its records do not match its number of items"
                )


@dataclass(frozen=True, slots=True)
class Flushed:
    """The contents of a flushed prefix: structures by name; the name of the unnamed structure is ``""``."""

    job: str
    address: str
    structures: tuple[FlushedStructure, ...]

    def __getitem__(self, name: str) -> FlushedStructure:
        for structure in self.structures:
            if structure.name == name:
                return structure
        names = ", ".join(repr(s.name) for s in self.structures)
        raise errors.NotFound(
            f"the flush of {self.address!r} has no structure {name!r}; it has {names}"
        )


def _copied(url: str) -> tempfile.TemporaryDirectory[str]:
    """Copies a flush from a bucket. The ``honeycomb`` program does this, as it has the clients of object
    stores."""
    directory = tempfile.TemporaryDirectory(prefix="honeycomb-flushed-")
    try:
        _program(url, "--copy", directory.name)
    except BaseException:
        directory.cleanup()
        raise
    return directory


def _program(*arguments: str) -> dict[str, Any]:
    from honeycomb._local import binary

    command = [str(binary()), "flushed", *arguments, "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise NotFlushed(json.loads(ran.stderr.splitlines()[-1])["error"]["message"])
    told: dict[str, Any] = json.loads(ran.stdout)
    return told


def delete_flushed(place: str | os.PathLike[str]) -> int:
    """Deletes the flush at a path or URL permanently. Returns the number of its objects. The manifest is
    deleted first, so the rest is no longer a flush from then on. The data of a prefix that persists can then
    no longer be loaded by its name.

    Raises :class:`NotFlushed` if there is no flush, or if not all objects could be deleted.
    """
    return int(_program(os.fspath(place), "--delete")["deleted"])


def open_flushed(place: str | os.PathLike[str]) -> Flushed:
    """Opens the flush at ``flush_root / job / path``: a directory, or the URL of a part of a bucket
    (``s3://``, ``gs://``, ``az://``). A flush in a bucket is first copied to a temporary directory, with
    credentials from the environment. The directory is deleted with the result.

    Raises :class:`NotFlushed` if there is no complete flush.
    """
    if isinstance(place, str) and "://" in place and not place.startswith("file://"):
        copy = _copied(place)
        return _opened(Path(copy.name), copy)
    return _opened(Path(str(place).removeprefix("file://")), None)


def _opened(place: Path, keep: object) -> Flushed:
    try:
        text = (place / MANIFEST).read_bytes()
    except OSError as e:
        raise NotFlushed(f"{place} holds no flush: {e}") from e
    body, _, last = text.partition(b"\n")
    if last != b"crc32 %08x\n" % zlib.crc32(body):
        raise NotFlushed(
            f"the manifest in {place} is damaged: its checksum does not match its bytes"
        )
    manifest = json.loads(body)
    if manifest.get("format") != FORMAT:
        raise NotFlushed(f"{place / MANIFEST} is not the manifest of a flush")
    if manifest["version"] > VERSION:
        raise NotFlushed(
            f"{place} is a flush of version {manifest['version']}; this package reads versions up "
            f"to {VERSION}"
        )
    structures = tuple(
        FlushedStructure(
            s["name"], cast(Kind, s["kind"]), s["sealed"], tuple(s["parts"]), place, keep
        )
        for s in manifest["structures"]
    )
    return Flushed(manifest["job"], manifest["address"], structures)
