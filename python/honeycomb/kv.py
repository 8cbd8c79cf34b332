"""The key-value store (paper, 5.3) with the face of a dictionary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, overload

from honeycomb import errors
from honeycomb._address import Address
from honeycomb._native import NativeClient, NativeKv
from honeycomb._session import Handle

if TYPE_CHECKING:
    from honeycomb.job import Job

__all__ = ["Kv"]

Key: TypeAlias = str | bytes | bytearray | memoryview
Value: TypeAlias = bytes | bytearray | memoryview
D = TypeVar("D")

SCAN_BYTES: Final = 1 << 20
_MISSING: Final[Any] = object()


def _key(key: Key) -> Value:
    return key.encode() if isinstance(key, str) else key


class Kv(MutableMapping[bytes, bytes]):
    """A key-value store in the job's memory: ``kv["k"] = b"v"``, ``kv["k"]``, ``del``, ``in``,
    ``len``, ``for key in kv``, ``kv.items()``.

    Keys and values are bytes; a ``str`` key means its UTF-8 bytes. Any bytes-like object is taken
    without copying it first. Keys have at most 4096 bytes (1/32 of a block when blocks are under
    128 KiB), values at most :attr:`value_limit`, an eighth of a block.

    *Consistency*: linearizable per key; every mutation takes effect once, also when the client had
    to repeat it. Nothing orders different keys. *Durability*: class ``memory``; the data is gone
    with its server (:class:`~honeycomb.errors.DataLost`) or its lease
    (:class:`~honeycomb.errors.LeaseExpired`). *Concurrency*: any number of threads, processes and
    tasks may use the same store. *Scans* (iteration, ``items``, ``scan``) see every entry that is
    there from their beginning to their end exactly once; an entry that comes or goes meanwhile may
    or may not be seen. *Errors* of every call: besides the two above,
    :class:`~honeycomb.errors.PermissionDenied`, :class:`~honeycomb.errors.DeadlineExceeded` and
    :class:`~honeycomb.errors.Unavailable`.

    Two calls are named ``update``: with one argument it is a dictionary's (stores all its entries,
    each on its own); with two, ``update(key, value)``, it is the paper's (Table 2) and another name
    for :meth:`replace`.
    """

    def __init__(self, job: Job, address: Address, native: NativeKv | None = None) -> None:
        self._job = job
        self._address = address
        self._handle: Handle[NativeKv] = Handle(job._session, self._open, native)
        self._handle.get()

    def _open(self, client: NativeClient) -> NativeKv:
        opened = client.open(self._job.id, self._address.path, self._address.name)
        if not isinstance(opened, NativeKv):
            raise errors.WrongKind(f"{self.address} is a file, not a key-value store")
        return opened

    @property
    def address(self) -> str:
        """Where it is: ``job/T4/T6:name``."""
        return f"{self._job.name}/{self._address}"

    @property
    def value_limit(self) -> int:
        """The largest value, in bytes."""
        return self._handle.get().value_limit

    # ------------------------------------------------------------------------------ one entry

    def __getitem__(self, key: Key) -> bytes:
        value = self._handle.get().get(_key(key))
        if value is None:
            raise errors.KeyNotFound(f"{self.address} has no key {key!r}")
        return value

    def __setitem__(self, key: Key, value: Value) -> None:
        self.put(key, value)

    def __delitem__(self, key: Key) -> None:
        if not self._handle.get().delete(_key(key)):
            raise errors.KeyNotFound(f"{self.address} has no key {key!r}")

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, (str, bytes, bytearray)):
            try:
                memoryview(key)  # type: ignore[arg-type]
            except TypeError:
                return False  # no bytes, so no key
        return self._handle.get().exists(_key(key)) is not None  # type: ignore[arg-type]

    @overload
    def get(self, key: Key, default: None = None) -> bytes | None: ...
    @overload
    def get(self, key: Key, default: bytes) -> bytes: ...
    @overload
    def get(self, key: Key, default: D) -> bytes | D: ...
    def get(self, key: Key, default: Any = None) -> Any:
        """The value, or ``default``."""
        value = self._handle.get().get(_key(key))
        return default if value is None else value

    def get_into(self, key: Key, buffer: bytearray | memoryview) -> int | None:
        """Reads the value into ``buffer`` and returns its length; ``None`` without such a key.
        Raises :class:`~honeycomb.errors.InvalidArgument` when the buffer is too short."""
        return self._handle.get().get_into(_key(key), buffer)

    def put(self, key: Key, value: Value) -> bool:
        """Stores an entry; tells whether it replaced one.

        Raises :class:`~honeycomb.errors.ValueTooLarge`, :class:`~honeycomb.errors.KeyTooLarge`, and
        :class:`~honeycomb.errors.BlockFull` when the block that owns the key has no room left.
        """
        return self._handle.get().put(_key(key), _value(value))

    def add(self, key: Key, value: Value) -> None:
        """Stores an entry where there is none; raises :class:`~honeycomb.errors.KeyExists`."""
        self._handle.get().put(_key(key), _value(value), True)

    @overload
    def pop(self, key: Key) -> bytes: ...
    @overload
    def pop(self, key: Key, default: bytes) -> bytes: ...
    @overload
    def pop(self, key: Key, default: D) -> bytes | D: ...
    def pop(self, key: Key, default: Any = _MISSING) -> Any:
        """Removes an entry and returns its value, in one step. Without such a key returns
        ``default``, or raises :class:`~honeycomb.errors.KeyNotFound` when there is none."""
        value = self._handle.get().pop(_key(key))
        if value is not None:
            return value
        if default is _MISSING:
            raise errors.KeyNotFound(f"{self.address} has no key {key!r}")
        return default

    def delete(self, key: Key) -> bool:
        """Removes an entry; tells whether there was one."""
        return self._handle.get().delete(_key(key))

    def replace(self, key: Key, value: Value) -> bytes:
        """Changes an entry that exists and returns its old value, in one step. Raises
        :class:`~honeycomb.errors.KeyNotFound`."""
        return self._handle.get().update(_key(key), _value(value))

    def upsert(self, key: Key, value: Value) -> bytes | None:
        """Stores an entry and returns the value it replaced, in one step; ``None`` if it is new."""
        return self._handle.get().upsert(_key(key), _value(value))

    def compare_and_swap(
        self, key: Key, expected: Value | None, new: Value
    ) -> tuple[bool, bytes | None]:
        """Stores ``new`` if the value is ``expected`` (``None``: if there is no entry), in one step.

        Returns whether it did, and the value found when it did not.
        """
        return self._handle.get().compare_and_swap(_key(key), expected, _value(new))

    def setdefault(self, key: Key, default: Any = None) -> bytes:
        """The value of ``key``; stores ``default`` first where there is none."""
        value: Value = default if default is not None else b""
        while True:
            swapped, found = self.compare_and_swap(key, None, value)
            if swapped:
                return bytes(value)
            if found is not None:
                return found

    # --------------------------------------------------------------------------- many entries

    @overload  # type: ignore[override]
    def update(self, entries: Mapping[Any, Value], /) -> None: ...
    @overload
    def update(self, entries: Iterable[tuple[Key, Value]] = (), /) -> None: ...
    @overload
    def update(self, key: Key, value: Value, /) -> bytes: ...
    def update(self, entries: Any = (), value: Any = _MISSING, /) -> bytes | None:
        """``update(mapping)`` stores its entries, each on its own; ``update(key, value)`` is
        :meth:`replace`."""
        if value is not _MISSING:
            return self.replace(entries, value)
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        for key, one in pairs:
            self.put(key, one)
        return None

    def scan(self, prefix: Key = b"", *, keys_only: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries whose keys begin with ``prefix``, in order of key hash, a MiB at a time. With
        ``keys_only`` the values do not travel and are empty."""
        cursor: int | None = 0
        wanted = _key(prefix)
        while cursor is not None:
            entries, cursor = self._handle.get().scan(cursor, wanted, keys_only, SCAN_BYTES)
            for key, value in entries:
                yield key, value if value is not None else b""

    def __iter__(self) -> Iterator[bytes]:
        return (key for key, _ in self.scan(keys_only=True))

    def items(self) -> Iterator[tuple[bytes, bytes]]:  # type: ignore[override]
        """All entries as they are scanned. Unlike a dictionary's, an iterator and not a view."""
        return self.scan()

    def values(self) -> Iterator[bytes]:  # type: ignore[override]
        """All values as they are scanned."""
        return (value for _, value in self.scan())

    def __len__(self) -> int:
        return self._handle.get().length()

    def __bool__(self) -> bool:
        return True  # a store is something even when it is empty; asking costs a round trip

    def popitem(self) -> tuple[bytes, bytes]:
        """Removes some entry and returns it; each is handed out once, whoever else pops."""
        for key in self:
            value = self._handle.get().pop(key)
            if value is not None:
                return key, value
        raise errors.KeyNotFound(f"{self.address} is empty")

    def clear(self) -> None:
        """Deletes the entries one by one. Removing the structure is faster."""
        for key in self:
            self._handle.get().delete(key)

    # ------------------------------------------------------------------------------ the object

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Kv):
            return NotImplemented
        return self is other  # comparing contents would read both whole

    def __reduce__(self) -> tuple[Any, ...]:
        from honeycomb.job import _restore

        return _restore, (Kv, self._job._pickle_handle(), self._address)

    def __repr__(self) -> str:
        return f"<honeycomb.Kv {self.address}>"


def _value(value: Value) -> Value:
    given: object = value
    if isinstance(given, str):
        raise TypeError("values are bytes; encode the text first, for example with .encode()")
    return value
