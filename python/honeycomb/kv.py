"""The key-value store (paper, 5.3) with the interface of a dictionary."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

from honeycomb import _check, _objects, errors
from honeycomb._address import Address, format_bytes
from honeycomb._batch import (
    FUNCTIONS,
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
#: Bytes that a scan for a single entry requests.
GLANCE_BYTES: Final = 1 << 10
#: Entries that :meth:`Kv.update` sends at a time.
UPDATE_ENTRIES: Final = 4096
_MISSING: Final[Any] = object()


class Kv(KvCalls, Remote, MutableMapping[bytes, bytes]):
    """A key-value store in the job's memory: ``kv["k"] = b"v"``, ``kv["k"]``, ``del``, ``in``,
    ``len``, ``for key in kv``, ``kv.items()``.

    Keys and values are bytes; a ``str`` key means its UTF-8 bytes. Any bytes-like object is accepted
    and not copied first. Keys have at most 4096 bytes (1/32 of a block if blocks are smaller than
    128 KiB), values at most :attr:`value_limit`. A value over :attr:`plain_limit` is stored in blocks
    of its own. Like any other value, it is stored whole or not at all, and a read returns it as it was
    at one moment. Operations that need the value at the server (:meth:`replace`, :meth:`upsert`,
    :meth:`compare_and_swap`, :meth:`accumulate` and :meth:`atomic`) raise
    :class:`~honeycomb.errors.ValueTooLarge` for such a value and change nothing.

    *Consistency*: linearizable per key. Every mutation takes effect once, even if the client has to
    repeat it. Operations on different keys are not ordered. *Durability*: class ``memory``; the data is
    gone with its server (:class:`~honeycomb.errors.DataLost`) or its lease
    (:class:`~honeycomb.errors.LeaseExpired`). *Concurrency*: any number of threads, processes and
    tasks may use the same store. *Scans* (iteration, ``items``, ``scan``) return every entry that
    exists from their beginning to their end exactly once. An entry that is stored or deleted during
    the scan may or may not be returned. *Errors* of every call: besides the two above,
    :class:`~honeycomb.errors.PermissionDenied`, :class:`~honeycomb.errors.DeadlineExceeded` and
    :class:`~honeycomb.errors.Unavailable`.

    *Many at a time*: :meth:`multi_get`, :meth:`multi_put`, :meth:`multi_delete` and :meth:`batch`
    process thousands of keys about as fast as one. :meth:`atomic` changes several keys of one tag
    together, or none. :meth:`increment`, :meth:`accumulate`, :meth:`append` and :meth:`top_add` change
    a value at the server.

    Two calls are named ``update``. With one argument it is a dictionary's ``update``, which stores all
    entries, each independently. With two, ``update(key, value)`` is the paper's operation (Table 2) and
    another name for :meth:`replace`.
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
        """Its address with the job's name: ``job/T4/T6:name``."""
        return f"{self._job.name}/{self._address}"

    @property
    def value_limit(self) -> int:
        """The largest value, in bytes: 1 TiB, or 22.7 GiB with the smallest blocks (``docs/limits.md``)."""
        return self._native().value_limit

    @property
    def plain_limit(self) -> int:
        """The largest value that is stored in its key's own block, in bytes: an eighth of the block. Only
        values up to this size can be compared, combined, or returned by the operation that replaces
        them."""
        return self._native().plain_limit

    # ------------------------------------------------------------------------------ one entry
    # The base class has the most frequent calls: indexing, `in`, get, get_into, put, add, delete.

    def _missing(self, key: Key) -> errors.KeyNotFound:
        return errors.KeyNotFound(f"{self.address} has no key {key!r}")

    @overload
    def pop(self, key: Key) -> bytes: ...
    @overload
    def pop(self, key: Key, default: bytes) -> bytes: ...
    @overload
    def pop(self, key: Key, default: D) -> bytes | D: ...
    def pop(self, key: Key, default: Any = _MISSING) -> Any:
        """Removes an entry and returns its value, in one step: of several concurrent calls, exactly one
        gets the value. Without such a key, returns ``default``, or raises
        :class:`~honeycomb.errors.KeyNotFound` if no default is given."""
        value = self._native().pop(as_key(key))
        if value is not None:
            return value
        if default is _MISSING:
            raise self._missing(key)
        return default

    def replace(self, key: Key, value: Value) -> bytes:
        """Replaces the value of an entry that exists and returns the old value, in one step. Raises
        :class:`~honeycomb.errors.KeyNotFound`."""
        return self._native().update(as_key(key), as_value(value))

    def upsert(self, key: Key, value: Value) -> bytes | None:
        """Stores an entry and returns the value it replaced, in one step; ``None`` if it is new."""
        return self._native().upsert(as_key(key), as_value(value))

    def compare_and_swap(
        self, key: Key, expected: Value | None, new: Value
    ) -> tuple[bool, bytes | None]:
        """Stores ``new`` if the value is ``expected`` (``None``: if there is no entry), in one step.

        Returns whether ``new`` was stored, and the value found if it was not.
        """
        expected = None if expected is None else as_value(expected, "expected values")
        return self._native().compare_and_swap(as_key(key), expected, as_value(new))

    def setdefault(self, key: Key, default: Any = None) -> bytes:
        """The value of ``key``. Stores ``default`` first if there is no entry."""
        value: Value = default if default is not None else b""
        while True:
            try:
                swapped, found = self.compare_and_swap(key, None, value)
            except errors.ValueTooLarge:  # the stored value or the default is over the plain limit
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
        """Stores any object that :mod:`pickle` supports. Returns whether it replaced an entry. Large
        buffers of the object, such as those of NumPy arrays, are sent without a copy. Raises the errors of
        :meth:`put`."""
        return self._put_parts(key, _objects.pack(value))

    def get_object(self, key: Key, default: Any = _MISSING) -> Any:
        """The object that :meth:`put_object` stored. Its buffers refer to the received value: arrays are
        not copied, and are read-only. Without such a key, returns ``default``, or raises
        :class:`~honeycomb.errors.KeyNotFound` if no default is given. Raises
        :class:`~honeycomb.errors.InvalidArgument` if :meth:`put_object` did not store the value.

        Unpickling an object can run any code that its writer chose. Read only objects of writers whom
        you trust to run programs with your rights."""
        return self._read_as(_objects.unpack, key, default)

    def put_table(self, key: Key, table: pyarrow.Table | pyarrow.RecordBatch) -> bool:
        """Stores a ``pyarrow.Table`` or ``RecordBatch`` as an Arrow IPC stream; its columns are sent
        without a copy. Returns whether it replaced an entry. Raises the errors of :meth:`put`, and
        ``ImportError`` without pyarrow (``honeycomb-store[arrow]``)."""
        return self._put_parts(key, _objects.pack_table(table))

    def get_table(self, key: Key, default: Any = _MISSING) -> Any:
        """The table that :meth:`put_table` stored, or any other Arrow IPC stream, as a
        ``pyarrow.Table``. Its columns refer to the received value and are not copied. Missing keys and
        other values are as for :meth:`get_object`. Reading a table runs no code of its writer."""
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
        """``update(mapping)`` stores all entries, each independently, many at a time: as
        :meth:`multi_put`, but it does not say how many it replaced, as :meth:`set`.
        ``update(key, value)`` is :meth:`replace`."""
        if value is not _MISSING:
            return self.replace(entries, value)
        pairs = iter(entries.items() if isinstance(entries, Mapping) else entries)
        while some := list(islice(pairs, UPDATE_ENTRIES)):
            self._set_many(some)
        return None

    def batch(self) -> Batch:
        """Collects operations on any keys and sends them together when the ``with`` block ends; they take
        effect independently::

            with kv.batch() as b:
                b.put("a", b"1")
                old = b.get("b")
            print(old.value)

        Operations on the same key take effect in their order; operations on different keys are not
        ordered. Requests, errors and ``failures`` are those of :meth:`multi_get`. If the block raises,
        nothing is sent.
        """
        return Batch(self._native)

    def atomic(self, tag: str | None = None) -> AtomicBatch:
        """Collects operations that all take effect when the ``with`` block ends, or none::

            with kv.atomic("user:7") as b:
                b.put("name", b"Ada")
                logins = b.accumulate("logins", "count")
            print(logins.value)

        All keys must be in one hash slot. A ``tag`` ensures that: it is prepended to every key of the
        batch (``name`` is stored as ``{user:7}name``). Without one, give the keys the same ``{tag}``;
        otherwise :class:`~honeycomb.errors.InvalidArgument` names two keys in different slots.

        Each operation sees the effects of those before it, and no other client sees a part of the batch.
        Reading or deleting an absent key is not a failure. If ``add``, ``compare_and_swap`` or
        ``accumulate`` fails, the batch raises the error of that operation and changes nothing;
        ``failures`` of the error has the operation's index. The new values need room beside the old
        ones, so the batch raises :class:`~honeycomb.errors.BlockFull` in a block that is nearly full. A
        batch has at most 1024 operations of 60 KiB in total. If the block raises, nothing is sent.
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
        """Combines the stored value with ``operand``, in one step and without reading the value first.
        Returns the new value. An absent key starts without a value.

        ==========  ==========================  =================================================
        function    operand                     the value becomes
        ==========  ==========================  =================================================
        ``sum``     ``int`` or ``float``        the sum
        ``min``     ``int`` or ``float``        the smaller one
        ``max``     ``int`` or ``float``        the larger one
        ``count``   none                        one more, an ``int``
        ``append``  bytes                       both concatenated; returns the length in bytes
        ``top``     ``(k, score, item)``        the list of the k best, see :meth:`top_add`
        ==========  ==========================  =================================================

        An ``int`` is stored as an i64 and a ``float`` as an f64. The type of a value does not change: the
        operand must have the type of the value. Numbers have their own encoding
        (``protocol/PROTOCOL.md``); read them with :meth:`number`.

        Raises :class:`~honeycomb.errors.InvalidArgument`, and changes nothing, if the value has another
        type (which the message names), if an integer would exceed 64 bits, and for NaN. Raises
        :class:`~honeycomb.errors.ValueTooLarge` for operands over 60 KiB, and if the old or the new value
        is over :attr:`plain_limit`.
        """
        number, data = FUNCTIONS.encode(function, operand)
        return self._native().accumulate(number, as_key(key), data)

    def increment(self, key: Key, n: int = 1) -> int:
        """Adds ``n`` to an integer, which starts at 0. Returns the sum. See :meth:`accumulate`."""
        return self.accumulate(key, "sum", _check.index("n", n))

    def append(self, key: Key, data: Value) -> int:
        """Appends bytes to a value, in one piece. Returns the new length in bytes. The server writes the
        whole value again, so use a file for data that grows long. See :meth:`accumulate`."""
        return self.accumulate(key, "append", data)

    def number(self, key: Key) -> int | float | None:
        """The number that :meth:`accumulate` stored under a key; ``None`` without an entry. Raises
        :class:`~honeycomb.errors.InvalidArgument` if the value is not such a number."""
        return self._native().number(as_key(key))

    def top_add(
        self, key: Key, item: Value | str, score: float, *, k: int = 10
    ) -> list[tuple[float, bytes]]:
        """Adds ``item`` to the list of the ``k`` best items (1 to 1024). Returns the list: pairs of score
        and item, best first.

        The highest scores are best; of equal scores, the smaller item is first. The list contains an item
        once, with the best score it was ever added with. A smaller ``k`` than before truncates the list.
        The list has at most 60 KiB (:class:`~honeycomb.errors.ValueTooLarge`). A ``str`` item means
        its UTF-8 bytes.
        """
        return self.accumulate(key, "top", (k, score, item))

    def top(self, key: Key, k: int | None = None) -> list[tuple[float, bytes]]:
        """The list that :meth:`top_add` stored, or its first ``k`` items; empty without an entry. Raises
        :class:`~honeycomb.errors.InvalidArgument` if the value is not such a list."""
        if k is not None:
            k = _check.whole("k", k, 0, unit="items")
        return (self._native().top(as_key(key)) or [])[:k]

    def scan(self, prefix: Key = b"", *, keys_only: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries whose keys begin with ``prefix``, in order of key hash. The scan fetches 1 MiB at a time,
        and requests the next part while the caller iterates over the current one. With ``keys_only`` the
        values are not sent and are empty."""
        return self._scan(as_key(prefix), keys_only, SCAN_BYTES)

    def _scan(self, prefix: Value, keys_only: bool, page: int) -> Iterator[tuple[bytes, bytes]]:
        cursor: int | None = 0
        ahead: NativeScanAhead | None = None
        parts = 0
        while cursor is not None:
            found = None if ahead is None else ahead.take()
            native = self._native()
            entries, cursor = found or native.scan(cursor, prefix, keys_only, page)
            # Only from the second part on: a caller that needs few entries has stopped by then.
            parts += 1
            ahead = None
            if parts > 1 and cursor is not None:
                ahead = native.scan_ahead(cursor, prefix, keys_only, page)
            for key, value in entries:
                yield key, value if value is not None else b""

    def wait_until(self, key: Key, timeout: float | None = None) -> bool:
        """Waits until ``key`` has a value. Returns whether it got one within ``timeout`` seconds
        (``None`` waits without limit)."""
        return self._native().wait_for(as_key(key), _check.timeout(timeout))

    def subscribe(self, *ops: str, key: Key | None = None, prefix: Key | None = None) -> Listener:
        """Subscribes to changes (paper, Table 1): ``"put"`` and ``"delete"`` (both without arguments) of
        every key, of ``key``, or of keys that begin with ``prefix``."""
        if key is not None and prefix is not None:
            raise errors.InvalidArgument("pass key= or prefix= to subscribe(), not both")
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
        """All entries, in the order of the scan. Unlike a dictionary's ``items``, an iterator and not a
        view."""
        return self.scan()

    def values(self) -> Iterator[bytes]:  # type: ignore[override]
        """All values, in the order of the scan."""
        return (value for _, value in self.scan())

    def __len__(self) -> int:
        return self._native().length()

    def __bool__(self) -> bool:
        return True  # even when it is empty: finding out would cost a round trip

    def popitem(self) -> tuple[bytes, bytes]:
        """Removes an arbitrary entry and returns it. No entry is returned to two callers."""
        for key, _ in self._scan(b"", True, GLANCE_BYTES):
            value = self._native().pop(key)
            if value is not None:
                return key, value
        raise errors.KeyNotFound(f"{self.address} is empty")

    def clear(self) -> None:
        """Deletes all entries, one page of a scan at a time, each independently. Entries that other clients
        store meanwhile may stay. Removing the structure is faster."""
        cursor: int | None = 0
        while cursor is not None:
            entries, cursor = self._native().scan(cursor, b"", True, SCAN_BYTES)
            self.multi_delete(key for key, _ in entries)

    # ------------------------------------------------------------------------------ the object

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Kv):
            return NotImplemented
        return self is other  # comparing contents would read both stores completely

    def __reduce__(self) -> tuple[Any, ...]:
        from honeycomb.job import _restore

        return _restore, (Kv, self._job._pickle_handle(), self._address, self._identity)

    def _facts(self) -> Facts:
        yield "entries", len(self)
        yield "largest value", format_bytes(self.value_limit)

    def __repr__(self) -> str:
        return f"<honeycomb.Kv {self.address}>"
