"""Files of any kind of store, through fsspec: what inputs and outputs share."""

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
    """A file: the store, and the path there. Pickles small, and opens again in another process."""

    store: Any = field(repr=False)
    path: str

    @property
    def name(self) -> str:
        """Its path on this machine, or its URL."""
        if isinstance(self.store, LocalFileSystem):
            return self.path
        return str(self.store.unstrip_protocol(self.path))


@dataclass(frozen=True, slots=True)
class Found:
    """A file that is there, with its size in bytes where the store tells it."""

    place: Place
    size: int | None


def resolve(path: Path, options: Mapping[str, Any]) -> Place:
    """The store and the path that a path or URL means. Touches nothing.

    Raises :class:`MissingPackage` for a kind of store whose package is not installed, and
    :class:`~honeycomb.errors.InvalidArgument` for one that is not known.
    """
    text = os.fspath(path)
    try:
        store, inside = fsspec.core.url_to_fs(text, **options)
    except ImportError as error:
        protocol = text.partition("://")[0]
        hint = known_implementations.get(protocol, {}).get("err", str(error))
        raise MissingPackage(
            f"{text} needs a Python package that is not installed: {hint}; it is needed here and "
            "where the workers run"
        ) from error
    except ValueError as error:
        raise InvalidArgument(f"{text}: {error}") from error
    return Place(store, inside)


def find(paths: Path | Iterable[Path], options: Mapping[str, Any]) -> list[Found]:
    """The files that are meant, in order: those given, those that a pattern matches, those in a
    folder at any depth but for names that begin with ``_`` or ``.``.

    Raises :class:`MissingInput` for what is not there, for a pattern that matches nothing and for a
    folder without files, ``PermissionError`` for what cannot be read, and as :func:`resolve`.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not given:
        raise InvalidArgument("no inputs were named")
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
    """Raises :class:`MissingPackage` when pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingPackage(
            f"{what} needs pyarrow: pip install 'honeycomb-store[arrow]' (or pyarrow itself), here "
            "and where the workers run"
        ) from error
