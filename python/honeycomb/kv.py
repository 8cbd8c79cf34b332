"""The key-value store (paper, 5.3) with the face of a dictionary."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

from honeycomb import _batch, _check, _objects, errors
from honeycomb._address import Address, format_bytes
from honeycomb._batch import (
    DELETE,
    FUNCTIONS,
    PUT,
    AtomicBatch,
    Batch,
    Key,
    Value,
    as_key,
    as_value,
)
from honeycomb._display import Facts, Remote
from honeycomb._native import KvCalls, NativeKv, NativeScanAhead
from honeycomb._session import wrong_kind
from honeycomb.notices import Listener, kinds_of

if TYPE_CHECKING:
    import pyarrow

    from honeycomb.job import Job

__all__ = ["Kv"]

D = TypeVar("D")

SCAN_BYTES: Final = 1 << 20
#: What a scan that looks for a single entry asks for, in bytes.
GLANCE_BYTES: Final = 1 << 10
#: Entries that :meth:`Kv.update` gathers before it sends them.
UPDATE_ENTRIES: Final = 4096
_MISSING: Final[Any] = object()


class Kv(KvCalls, Remote, MutableMapping[bytes, bytes]):
    """A key-value store in the job's memory: ``kv["k"] = b"v"``, ``kv["k"]``, ``del``, ``in``,
    ``len``, ``for key in kv``, ``kv.items()``.

    Keys and values are bytes; a ``str`` key means its UTF-8 bytes. Any bytes-like object is taken
    without copying it first. Keys have at most 4096 bytes (1/32 of a block when blocks are under
    128 KiB), values at most :attr:`value_limit`. A value over :attr:`plain_limit` is kept in blocks
    of its own: it is stored whole or not at all, and read as it was at one moment, like any other, and
    takes part in everything but what needs it at the server: :meth:`replace`, :meth:`upsert`,
    :meth:`compare_and_swap`, :meth:`accumulate` and :meth:`atomic` raise :class:`~honeycomb.errors.ValueTooLarge` and change nothing.

    *Consistency*: linearizable per key; every mutation takes effect once, also when the client had
    to repeat it. Nothing orders different keys. *Durability*: class ``memory``; the data is gone
    with its server (:class:`~honeycomb.errors.DataLost`) or its lease
    (:class:`~honeycomb.errors.LeaseExpired`). *Concurrency*: any number of threads, processes and
    tasks may use the same store. *Scans* (iteration, ``items``, ``scan``) see every entry that is
    there from their beginning to their end exactly once; an entry that comes or goes meanwhile may
    or may not be seen. *Errors* of every call: besides the two above,
    :class:`~honeycomb.errors.PermissionDenied`, :class:`~honeycomb.errors.DeadlineExceeded` and
    :class:`~honeycomb.errors.Unavailable`.

    *Many at a time*: :meth:`multi_get`, :meth:`multi_put`, :meth:`multi_delete` and :meth:`batch` take
    thousands of keys about as fast as one; :meth:`atomic` changes several keys of one tag together, or
    none. :meth:`increment`, :meth:`accumulate`, :meth:`append` and :meth:`top_add` change a value where
    it lies.

    Two calls are named ``update``: with one argument it is a dictionary's (stores all its entries,
    each on its own); with two, ``update(key, value)``, it is the paper's (Table 2) and another name
    for :meth:`replace`.
    """

    def __init__(self, job: Job, address: Address, native: NativeKv | None = None) -> None:
        self._job = job
        self._address = address
        self._begin(native)

    def _open(self) -> NativeKv:
        opened = self._job._open_native(self._address, self._identity)
        if not isinstance(opened, NativeKv):
            raise wrong_kind(self.address, "a key-value store", opened)
        return opened

    @property
    def address(self) -> str:
        """Where it is: ``job/T4/T6:name``."""
        return f"{self._job.name}/{self._address}"

    @property
    def value_limit(self) -> int:
        """The largest value, in bytes: 9.1 GiB with blocks of 128 MiB (``docs/limits.md``)."""
        return self._native().value_limit

    @property
    def plain_limit(self) -> int:
        """The largest value that lies in its key's own block, in bytes: an eighth of the block. Only
        up to here a value can be returned by what changes it, compared and combined."""
        return self._native().plain_limit

    # ------------------------------------------------------------------------------ one entry
    # What is done most often is the base class's: indexing, `in`, get, get_into, put, add, delete.

    def _missing(self, key: Key) -> errors.KeyNotFound:
        return errors.KeyNotFound(f"{self.address} has no key {key!r}")

    @overload
    def pop(self, key: Key) -> bytes: ...
    @overload
    def pop(self, key: Key, default: bytes) -> bytes: ...
    @overload
    def pop(self, key: Key, default: D) -> bytes | D: ...
    def pop(self, key: Key, default: Any = _MISSING) -> Any:
        """Removes an entry and returns its value, in one step: of all who ask, one has it. Without such a key returns
        ``default``, or raises :class:`~honeycomb.errors.KeyNotFound` when there is none."""
        value = self._native().pop(as_key(key))
        if value is not None:
            return value
        if default is _MISSING:
            raise self._missing(key)
        return default

    def replace(self, key: Key, value: Value) -> bytes:
        """Changes an entry that exists and returns its old value, in one step. Raises
        :class:`~honeycomb.errors.KeyNotFound`."""
        return self._native().update(as_key(key), as_value(value))

    def upsert(self, key: Key, value: Value) -> bytes | None:
        """Stores an entry and returns the value it replaced, in one step; ``None`` if it is new."""
        return self._native().upsert(as_key(key), as_value(value))

    def compare_and_swap(
        self, key: Key, expected: Value | None, new: Value
    ) -> tuple[bool, bytes | None]:
        """Stores ``new`` if the value is ``expected`` (``None``: if there is no entry), in one step.

        Returns whether it did, and the value found when it did not.
        """
        expected = None if expected is None else as_value(expected, "expected values")
        return self._native().compare_and_swap(as_key(key), expected, as_value(new))

    def setdefault(self, key: Key, default: Any = None) -> bytes:
        """The value of ``key``; stores ``default`` first where there is none."""
        value: Value = default if default is not None else b""
        while True:
            try:
                swapped, found = self.compare_and_swap(key, None, value)
            except errors.ValueTooLarge:  # of one of them
                found = self.get(key)
                if found is None:
                    with contextlib.suppress(errors.KeyExists):
                        self.add(key, value)
                        return bytes(value)
                    continue
                return found
            if swapped:
                return bytes(value)
            if found is not None:
                return found

    # -------------------------------------------------------------------------- objects, tables

    def put_object(self, key: Key, value: Any) -> bool:
        """Stores any object that :mod:`pickle` can; tells whether it replaced an entry. Large buffers
        of it, such as those of NumPy arrays, are sent from where they are. Raises as :meth:`put`."""
        return self._put_parts(key, _objects.pack(value))

    def get_object(self, key: Key, default: Any = _MISSING) -> Any:
        """The object that :meth:`put_object` stored. Its buffers refer to the value that was received:
        arrays are not copied, and are read-only. Without such a key returns ``default``, or raises
        :class:`~honeycomb.errors.KeyNotFound` when there is none; raises
        :class:`~honeycomb.errors.InvalidArgument` for any other value.

        Reading an object runs code that whoever stored it chose: read only what those wrote whom you
        would let run programs as you."""
        return self._read_as(_objects.unpack, key, default)

    def put_table(self, key: Key, table: pyarrow.Table | pyarrow.RecordBatch) -> bool:
        """Stores a ``pyarrow.Table`` or ``RecordBatch`` as an Arrow IPC stream, its columns sent from
        where they are; tells whether it replaced an entry. Raises as :meth:`put`, and ``ImportError``
        without pyarrow (``honeycomb-store[arrow]``)."""
        return self._put_parts(key, _objects.pack_table(table))

    def get_table(self, key: Key, default: Any = _MISSING) -> Any:
        """The table that :meth:`put_table` stored, or anybody's Arrow IPC stream, as a
        ``pyarrow.Table``. Its columns refer to the value that was received and are not copied. Missing
        keys and other values are as for :meth:`get_object`; no code of others runs."""
        return self._read_as(_objects.unpack_table, key, default)

    def _read_as(self, read: Callable[[bytes], Any], key: Key, default: Any) -> Any:
        value = self.get(key)
        if value is not None:
            return read(value)
        if default is _MISSING:
            raise self._missing(key)
        return default

    # --------------------------------------------------------------------------- many entries

    @overload  # type: ignore[override]
    def update(self, entries: Mapping[Any, Value], /) -> None: ...
    @overload
    def update(self, entries: Iterable[tuple[Key, Value]] = (), /) -> None: ...
    @overload
    def update(self, key: Key, value: Value, /) -> bytes: ...
    def update(self, entries: Any = (), value: Any = _MISSING, /) -> bytes | None:
        """``update(mapping)`` stores its entries, each on its own, many at a time as
        :meth:`multi_put` does; ``update(key, value)`` is :meth:`replace`."""
        if value is not _MISSING:
            return self.replace(entries, value)
        pairs = iter(entries.items() if isinstance(entries, Mapping) else entries)
        while some := list(islice(pairs, UPDATE_ENTRIES)):
            self.multi_put(some)
        return None

    def multi_put(self, entries: Mapping[Any, Value] | Iterable[tuple[Key, Value]]) -> int:
        """Stores many entries, each on its own; returns how many replaced one. Of equal keys the
        last one stays. Requests, errors and ``failures`` are those of :meth:`multi_get`: what could
        be stored is stored."""
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        ops = [(PUT, as_key(key), as_value(value), None) for key, value in pairs]
        return sum(map(bool, _batch.checked(self._native().batch(ops))))

    def multi_delete(self, keys: Iterable[Key]) -> int:
        """Removes many entries, each on its own; returns how many there were. Requests, errors and
        ``failures`` are those of :meth:`multi_get`."""
        ops = [(DELETE, as_key(key), None, None) for key in keys]
        return sum(map(bool, _batch.checked(self._native().batch(ops))))

    def batch(self) -> Batch:
        """Gathers operations of any keys and runs them together when the ``with`` block ends, each
        on its own::

            with kv.batch() as b:
                b.put("a", b"1")
                old = b.get("b")
            print(old.value)

        Operations on the same key take effect in their order; nothing orders different keys.
        Requests, errors and ``failures`` are those of :meth:`multi_get`. Nothing is sent when the
        block raises.
        """
        return Batch(self._native)

    def atomic(self, tag: str | None = None) -> AtomicBatch:
        """Gathers operations that all take effect when the ``with`` block ends, or none::

            with kv.atomic("user:7") as b:
                b.put("name", b"Ada")
                logins = b.accumulate("logins", "count")
            print(logins.value)

        All keys are of one hash slot. With a ``tag``, every key of the batch gets it in front
        (``name`` is stored as ``{user:7}name``), which sees to that; without one, give the keys the
        same ``{tag}``, or :class:`~honeycomb.errors.InvalidArgument` names two that differ.

        Operations see what those before them did, and nobody sees a part of them. Reading or
        deleting an absent key is no failure; ``add``, ``compare_and_swap`` and ``accumulate`` fail
        the batch by the error they have alone, whose ``failures`` tells the place: nothing is
        changed then. A block that is nearly full has no room for new values beside the old ones
        (:class:`~honeycomb.errors.BlockFull`). At most 1024 operations of 60 KiB in all. Nothing is
        sent when the block raises.
        """
        return AtomicBatch(self._native, tag)

    # ------------------------------------------------------------------------------- accumulating

    @overload
    def accumulate(self, key: Key, function: Literal["sum", "min", "max"], operand: int) -> int: ...
    @overload
    def accumulate(
        self, key: Key, function: Literal["sum", "min", "max"], operand: float
    ) -> float: ...
    @overload
    def accumulate(self, key: Key, function: Literal["count"]) -> int: ...
    @overload
    def accumulate(self, key: Key, function: Literal["append"], operand: Value) -> int: ...
    @overload
    def accumulate(
        self, key: Key, function: Literal["top"], operand: tuple[int, float, Value | str]
    ) -> list[tuple[float, bytes]]: ...
    def accumulate(self, key: Key, function: str, operand: Any = None) -> Any:
        """Combines the stored value with ``operand``, in one step and without reading it first;
        returns what it is now. An absent key begins from nothing.

        ==========  ==========================  =================================================
        function    operand                     the value becomes
        ==========  ==========================  =================================================
        ``sum``     ``int`` or ``float``        the sum
        ``min``     ``int`` or ``float``        the smaller one
        ``max``     ``int`` or ``float``        the larger one
        ``count``   none                        one more, an ``int``
        ``append``  bytes                       the bytes behind it; returns the length in bytes
        ``top``     ``(k, score, item)``        the list of the k best, see :meth:`top_add`
        ==========  ==========================  =================================================

        An ``int`` is stored as an i64 and a ``float`` as an f64, and stays one: the type of the
        operand has to be that of the value. Numbers have a form of their own
        (``protocol/PROTOCOL.md``); read them with :meth:`number`.

        Raises :class:`~honeycomb.errors.InvalidArgument`, and changes nothing, when the value is of
        another type (the message says what it is), when an integer leaves 64 bits, and for NaN;
        :class:`~honeycomb.errors.ValueTooLarge` for operands over 60 KiB, and for values over
        :attr:`plain_limit`, before or afterwards.
        """
        number, data = FUNCTIONS.encode(function, operand)
        return self._native().accumulate(number, as_key(key), data)

    def increment(self, key: Key, n: int = 1) -> int:
        """Adds ``n`` to an integer, which begins at 0; returns the sum. See :meth:`accumulate`."""
        return self.accumulate(key, "sum", _check.index("n", n))

    def append(self, key: Key, data: Value) -> int:
        """Appends bytes to a value, in one piece; returns its length in bytes. The server writes
        the whole value again: what grows long belongs into a file. See :meth:`accumulate`."""
        return self.accumulate(key, "append", data)

    def number(self, key: Key) -> int | float | None:
        """The number that :meth:`accumulate` keeps under a key; ``None`` without an entry. Raises
        :class:`~honeycomb.errors.InvalidArgument` when the value is no such number."""
        return self._native().number(as_key(key))

    def top_add(
        self, key: Key, item: Value | str, score: float, *, k: int = 10
    ) -> list[tuple[float, bytes]]:
        """Puts ``item`` into the list of the ``k`` best (1 to 1024) and returns the list, pairs of
        score and item, best first.

        The highest scores are best; of equal ones the smaller item comes first. An item is in the
        list once, with the best score it ever came with. A smaller ``k`` than before cuts the list.
        The list has at most 60 KiB (:class:`~honeycomb.errors.ValueTooLarge`). A ``str`` item means
        its UTF-8 bytes.
        """
        return self.accumulate(key, "top", (k, score, item))

    def top(self, key: Key, k: int | None = None) -> list[tuple[float, bytes]]:
        """The list that :meth:`top_add` keeps, or its first ``k``; empty without an entry. Raises
        :class:`~honeycomb.errors.InvalidArgument` when the value is no such list."""
        if k is not None:
            k = _check.whole("k", k, 0, unit="items")
        return (self._native().top(as_key(key)) or [])[:k]

    def scan(self, prefix: Key = b"", *, keys_only: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries whose keys begin with ``prefix``, in order of key hash, a MiB at a time; while
        one is gone through the next is on its way. With ``keys_only`` the values do not travel and are
        empty."""
        return self._scan(as_key(prefix), keys_only, SCAN_BYTES)

    def _scan(self, prefix: Value, keys_only: bool, page: int) -> Iterator[tuple[bytes, bytes]]:
        cursor: int | None = 0
        ahead: NativeScanAhead | None = None
        parts = 0
        while cursor is not None:
            found = None if ahead is None else ahead.take()
            native = self._native()
            entries, cursor = found or native.scan(cursor, prefix, keys_only, page)
            # From the second part on: who wants a few entries only has stopped by then.
            parts += 1
            ahead = None
            if parts > 1 and cursor is not None:
                ahead = native.scan_ahead(cursor, prefix, keys_only, page)
            for key, value in entries:
                yield key, value if value is not None else b""

    def wait_until(self, key: Key, timeout: float | None = None) -> bool:
        """Waits until ``key`` has a value; whether it had within ``timeout`` seconds (``None``: as
        long as it takes)."""
        return self._native().wait_for(as_key(key), _check.timeout(timeout))

    def subscribe(self, *ops: str, key: Key | None = None, prefix: Key | None = None) -> Listener:
        """Listens to changes (paper, Table 1): ``"put"`` and ``"delete"`` (both without arguments) of
        every key, of ``key``, or of keys that begin with ``prefix``."""
        if key is not None and prefix is not None:
            raise errors.InvalidArgument("a key or a prefix, not both")
        kinds = kinds_of("kv", ops)
        native = self._native().listen(
            kinds,
            None if key is None else bytes(as_key(key)),
            None if prefix is None else bytes(as_key(prefix)),
        )
        return Listener(self.address, native, ops)

    def __iter__(self) -> Iterator[bytes]:
        return (key for key, _ in self.scan(keys_only=True))

    def items(self) -> Iterator[tuple[bytes, bytes]]:  # type: ignore[override]
        """All entries as they are scanned. Unlike a dictionary's, an iterator and not a view."""
        return self.scan()

    def values(self) -> Iterator[bytes]:  # type: ignore[override]
        """All values as they are scanned."""
        return (value for _, value in self.scan())

    def __len__(self) -> int:
        return self._native().length()

    def __bool__(self) -> bool:
        return True  # a store is something even when it is empty; asking costs a round trip

    def popitem(self) -> tuple[bytes, bytes]:
        """Removes some entry and returns it; each is handed out once, whoever else pops."""
        for key, _ in self._scan(b"", True, GLANCE_BYTES):
            value = self._native().pop(key)
            if value is not None:
                return key, value
        raise errors.KeyNotFound(f"{self.address} is empty")

    def clear(self) -> None:
        """Deletes the entries, a page of a scan at a time, each on its own; what others store
        meanwhile may stay. Removing the structure is faster."""
        cursor: int | None = 0
        while cursor is not None:
            entries, cursor = self._native().scan(cursor, b"", True, SCAN_BYTES)
            self.multi_delete(key for key, _ in entries)

    # ------------------------------------------------------------------------------ the object

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Kv):
            return NotImplemented
        return self is other  # comparing contents would read both whole

    def __reduce__(self) -> tuple[Any, ...]:
        from honeycomb.job import _restore

        return _restore, (Kv, self._job._pickle_handle(), self._address, self._identity)

    def _facts(self) -> Facts:
        yield "entries", len(self)
        yield "largest value", format_bytes(self.value_limit)

    def __repr__(self) -> str:
        return f"<honeycomb.Kv {self.address}>"
