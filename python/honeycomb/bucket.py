"""Objects in buckets, as in Pocket (OSDI '18): a thin layer over prefixes and key-value stores."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from honeycomb._batch import Value
from honeycomb._display import Facts, Remote

if TYPE_CHECKING:
    from honeycomb.kv import Kv

__all__ = ["Bucket"]


class Bucket(Remote):
    """Objects of a job by name: :meth:`put`, :meth:`get`, :meth:`enumerate`, :meth:`exists`,
    :meth:`delete`. Made by :meth:`Job.create_bucket`, opened by :meth:`Job.bucket`.

    A bucket is an address prefix that contains a key-value store (:attr:`kv`). It has the prefix's lease,
    rights, quota and readers. It exists as long as its job renews the lease, as the driver does, or until
    :meth:`Job.delete_bucket`. Names are text of 1 to 4096 bytes in UTF-8. An object is stored whole or
    not at all, and a read returns it as it was at one moment. It has at most :attr:`Kv.value_limit`
    bytes.

    *Read once*: ``get(name, delete=True)`` (Pocket's DELETE) reads an object and removes it in one
    step. Of several concurrent calls exactly one gets the object, and the others raise
    :class:`~honeycomb.errors.KeyNotFound`. The removal takes effect once, even if the request has to be
    repeated. If the caller ends before it receives the reply, the object is lost.

    *Outliving the job* (Pocket's PERSIST): a bucket that is created with ``persist`` is written to the
    cluster's ``flush_root`` when it ends for any reason except :meth:`Job.delete_bucket`.
    :meth:`Job.load_bucket` of a later job of the same name brings it back.

    *Errors* of every call are those of :class:`Kv`.
    """

    kv: Kv
    """The key-value store that contains the objects."""

    def __init__(self, kv: Kv) -> None:
        self.kv = kv

    @property
    def name(self) -> str:
        """Its name: the path of its prefix in the job."""
        return self.kv._address.path

    @property
    def address(self) -> str:
        """Its address with the job's name: ``job/shuffle``."""
        return self.kv.address.rpartition(":")[0]

    def put(self, name: str, data: Value) -> None:
        """Stores an object, and replaces an object of the same name. Accepts any bytes-like object and
        does not copy it first."""
        self.kv.set(name, data)

    def put_file(self, name: str, path: str | os.PathLike[str]) -> int:
        """Stores the contents of a file of this machine. Returns their number of bytes."""
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                data = file.read()  # a pipe, an empty file, or a file that cannot be mapped
                self.kv.set(name, data)
                return len(data)
            with (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
                memoryview(mapped) as data_of_file,
            ):
                self.kv.put(name, data_of_file)
                return len(mapped)

    def get(self, name: str, *, delete: bool = False) -> bytes:
        """An object's bytes. With ``delete``, removes the object in the same step. Raises
        :class:`~honeycomb.errors.KeyNotFound`."""
        return self.kv.pop(name) if delete else self.kv[name]

    def get_file(self, name: str, path: str | os.PathLike[str], *, delete: bool = False) -> int:
        """Writes an object to a file of this machine, completely or not at all. Returns its number of
        bytes. With ``delete``, removes the object as :meth:`get` does. If the file then cannot be written,
        the object is stored again, unless another object of its name exists by then."""
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
        """The names of all objects, or of those that begin with ``prefix``, in no particular order. The
        name of an object that exists throughout the iteration is returned exactly once."""
        for key, _ in self.kv.scan(prefix, keys_only=True):
            yield key.decode()

    def delete(self, name: str) -> bool:
        """Removes an object. Returns whether it existed."""
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
