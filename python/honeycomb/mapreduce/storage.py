"""Files of any kind of store, through fsspec: the common part of inputs and outputs."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import known_implementations

from honeycomb.errors import InvalidArgument
from honeycomb.mapreduce.errors import MissingInput, MissingPackage

Path: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Place:
    """A file: its store, and its path there. Its pickle is small, and opens again in another process."""

    store: Any = field(repr=False)
    path: str

    @property
    def name(self) -> str:
        """The file's path on this machine, or its URL."""
        if isinstance(self.store, LocalFileSystem):
            return self.path
        return str(self.store.unstrip_protocol(self.path))


@dataclass(frozen=True, slots=True)
class Found:
    """A file that exists, with its size in bytes if the store knows it."""

    place: Place
    size: int | None


def resolve(path: Path, options: Mapping[str, Any]) -> Place:
    """The store and the path of a path or URL. Does not access the store.

    Raises :class:`MissingPackage` for a kind of store whose package is not installed, and
    :class:`~honeycomb.errors.InvalidArgument` for an unknown kind of store.
    """
    text = os.fspath(path)
    try:
        store, inside = fsspec.core.url_to_fs(text, **options)
    except ImportError as error:
        protocol = text.partition("://")[0]
        hint = known_implementations.get(protocol, {}).get("err", str(error))
        raise MissingPackage(
            f"{text} needs a Python package that is not installed: {hint}; install it here and "
            "where the workers run"
        ) from error
    except ValueError as error:
        raise InvalidArgument(f"{text}: {error}") from error
    return Place(store, inside)


def find(paths: Path | Iterable[Path], options: Mapping[str, Any]) -> list[Found]:
    """The files of some paths, in order: the given files, the matches of a pattern, and the files in a
    folder at any depth, except names that begin with ``_`` or ``.``.

    Raises :class:`MissingInput` for a missing file, for a pattern that matches nothing and for a folder
    without files, ``PermissionError`` for a file that cannot be read, and the errors of :func:`resolve`.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not given:
        raise InvalidArgument("paths is empty: name at least one input")
    found: list[Found] = []
    for path in given:
        found += _find(os.fspath(path), resolve(path, options))
    for one in found:
        local = isinstance(one.place.store, LocalFileSystem)
        if local and not os.access(one.place.path, os.R_OK):
            raise PermissionError(f"{one.place.name} cannot be read by this user")
    return found


def _find(text: str, place: Place) -> list[Found]:
    store, path = place.store, place.path
    try:
        info = store.info(path)
    except FileNotFoundError:
        if not glob.has_magic(text):
            raise MissingInput(f"no such input: {text}") from None
        matches = store.glob(path, detail=True)
        kind = "matches the pattern"
    else:
        if info["type"] != "directory":
            return [Found(place, info.get("size"))]
        root = path.rstrip("/") + "/"
        matches = {
            name: info
            for name, info in store.find(path, detail=True).items()
            if not any(part[:1] in "_." for part in name.removeprefix(root).split("/"))
        }
        kind = "is in the folder"
    files = sorted((name, one) for name, one in matches.items() if one["type"] == "file")
    if not files:
        raise MissingInput(f"no such input: nothing {kind} {text}")
    return [Found(Place(store, name), one.get("size")) for name, one in files]


def need_arrow(what: str) -> None:
    """Raises :class:`MissingPackage` if pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingPackage(
            f"{what} needs pyarrow: pip install 'honeycomb-store[arrow]' (or pyarrow itself), here "
            "and where the workers run"
        ) from error
