"""Objects in buckets, as Pocket has them (OSDI '18): a thin layer over prefixes and key-value stores."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from honeycomb._batch import Value
from honeycomb._display import Facts, Remote

if TYPE_CHECKING:
    from honeycomb.job import Job
    from honeycomb.kv import Kv

__all__ = ["Bucket"]

#: The store of a bucket, in its prefix.
OBJECTS: Final = "objects"


class Bucket(Remote):
    """Objects of a job by name: :meth:`put`, :meth:`get`, :meth:`enumerate`, :meth:`exists`,
    :meth:`delete`. Made by :meth:`Job.create_bucket`, opened by :meth:`Job.bucket`.

    A bucket is an address prefix with a key-value store in it (:attr:`kv`), and has its lease, rights,
    quota and readers: it lives as long as its job renews it, which a driver does, or until
    :meth:`Job.delete_bucket`. Names are text of 1 to 4096 bytes as UTF-8. An object is stored whole or
    not at all, and read as it was at one moment; it may be as large as :attr:`Kv.value_limit`.

    *Read once*: ``get(name, delete=True)`` (Pocket's DELETE) reads an object and removes it in one
    step: of any number that ask at the same time one gets it, and the others raise
    :class:`~honeycomb.errors.KeyNotFound`. It takes effect once, also when the request had to be
    repeated; who ends before it has the answer takes the object along.

    *Outliving the job* (Pocket's PERSIST): a bucket that is created with ``persist`` is written to the
    cluster's ``flush_root`` by whatever ends it but :meth:`Job.delete_bucket`, and
    :meth:`Job.load_bucket` of a later job of the same name brings it back.

    *Errors* of every call are those of :class:`Kv`.
    """

    def __init__(self, kv: Kv) -> None:
        self.kv = kv

    @property
    def name(self) -> str:
        """Its name: the path of its prefix in the job."""
        return self.kv._address.path

    @property
    def address(self) -> str:
        """Where it is: ``job/shuffle``."""
        return self.kv.address.rpartition(":")[0]

    def put(self, name: str, data: Value) -> None:
        """Stores an object, in place of one of this name. Any bytes-like object is taken as it is."""
        self.kv.put(name, data)

    def put_file(self, name: str, path: str | os.PathLike[str]) -> int:
        """Stores what a file of this machine holds, and returns how many bytes that is."""
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                data = file.read()  # of a pipe, too, or of a file that cannot be mapped
                self.kv.put(name, data)
                return len(data)
            with (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
                memoryview(mapped) as data_of_file,
            ):
                self.kv.put(name, data_of_file)
                return len(mapped)

    def get(self, name: str, *, delete: bool = False) -> bytes:
        """An object's bytes; with ``delete`` it is removed in the same step. Raises
        :class:`~honeycomb.errors.KeyNotFound`."""
        return self.kv.pop(name) if delete else self.kv[name]

    def get_file(self, name: str, path: str | os.PathLike[str], *, delete: bool = False) -> int:
        """Writes an object into a file of this machine, which is there whole or not at all; returns
        how many bytes it has. With ``delete`` the object is removed, as by :meth:`get`; when the file
        cannot be written it is put back, unless there is another one of its name by then."""
        path = Path(path)
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            try:
                data = self.get(name, delete=delete)
                try:
                    file.write(data)
                    file.flush()
                    os.replace(file.name, path)
                except OSError:
                    if delete:
                        self.kv.add(name, data)
                    raise
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(file.name)
                raise
        return len(data)

    def exists(self, name: str) -> bool:
        """Whether there is an object of this name."""
        return self.kv.__contains__(name)

    def enumerate(self, prefix: str = "") -> Iterator[str]:
        """The names of all objects, or of those whose names begin with ``prefix``, in no order. One
        that is there throughout is told once."""
        for key, _ in self.kv.scan(prefix, keys_only=True):
            yield key.decode()

    def delete(self, name: str) -> bool:
        """Removes an object; whether there was one."""
        return self.kv.delete(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.exists(name)

    def __iter__(self) -> Iterator[str]:
        return self.enumerate()

    def __len__(self) -> int:
        return len(self.kv)

    def __reduce__(self) -> tuple[Any, ...]:
        return Bucket, (self.kv,)

    def _facts(self) -> Facts:
        yield "objects", len(self)

    def __repr__(self) -> str:
        return f"<honeycomb.Bucket {self.address}>"


def store_of(path: str) -> str:
    """The address of the objects in a bucket at this path."""
    return f"{path}:{OBJECTS}"


def buckets_of(job: Job) -> list[str]:
    """The paths of prefixes that live and have objects."""
    paths: dict[int, str] = {}
    found = []
    for node in job.tree():  # parents come before children
        above = paths.get(node.parents[0], "") if node.parents else None
        path = "" if above is None else f"{above}/{node.name}".lstrip("/")
        paths[node.prefix] = path
        stores = any((one.name, one.kind) == (OBJECTS, "kv") for one in node.structures)
        if path and stores and node.state == "live":
            found.append(path)
    return sorted(found)
