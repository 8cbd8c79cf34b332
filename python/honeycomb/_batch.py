"""Batches of operations on a key-value store: the operations of a ``with`` block, and their results."""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Never, TypeAlias, TypeVar, overload

from honeycomb import _check, errors
from honeycomb._display import refuse_pickle

if TYPE_CHECKING:
    from typing import Self

    from honeycomb._native import BatchOperation, NativeKv

Key: TypeAlias = str | bytes | bytearray | memoryview
Value: TypeAlias = bytes | bytearray | memoryview
T = TypeVar("T")

# Kinds of operations, as python/src/batch.rs decodes them.
GET: Final = 0
PUT: Final = 1
ADD: Final = 2
DELETE: Final = 3
SWAP: Final = 4
SET: Final = 5
ACCUMULATE: Final = 16


class _Unknown(enum.Enum):
    """A placeholder for a missing result. An enum, so that a pickled copy is the same object."""

    UNKNOWN = enum.auto()


_UNKNOWN: Final[Any] = _Unknown.UNKNOWN


def as_key(key: Key) -> Value:
    """The bytes of a key."""
    if not isinstance(key, str):
        return _check.data("keys", key)
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise _check.not_utf8("a key", error) from None


def as_value(value: Value, name: str = "values") -> Value:
    """A value. Raises ``TypeError`` if it is text or not bytes-like."""
    return _check.data(name, value)


def checked(results: Sequence[Any]) -> list[Any]:
    """The results, if none of them is an error. Otherwise raises the first error, with all errors in its
    ``failures`` and the other results in its ``results``."""
    failures = {i: r for i, r in enumerate(results) if isinstance(r, errors.HoneycombError)}
    if not failures:
        return list(results)
    first = next(iter(failures.values()))
    first.failures = failures
    first.results = [None if i in failures else result for i, result in enumerate(results)]
    if len(results) > 1:
        first.add_note(f"{len(failures)} of {len(results)} failed; `failures` has all errors")
    raise first


class _Functions:
    """The numbers of the functions and the encodings of their operands (``protocol/PROTOCOL.md``)."""

    _INTEGER: Final = {"sum": 1, "min": 2, "max": 3}
    _FLOAT: Final = {"sum": 4, "min": 5, "max": 6}

    def encode(self, function: str, operand: Any) -> tuple[int, Value]:
        """The number of a function and its encoded operand."""
        match function, operand:
            case "count", None:
                return 7, b""
            case "append", data if data is not None:
                return 8, as_value(data)
            case "top", (int(k), int() | float() as score, item):
                if not 0 <= k < 1 << 32:
                    raise errors.InvalidArgument(f"k is 1 to 1024, not {k}")
                item = item.encode() if isinstance(item, str) else bytes(memoryview(item))
                return 9, struct.pack("<Id", k, float(score)) + item
            case (("sum" | "min" | "max"), int(n)):
                if not -(1 << 63) <= n < 1 << 63:
                    raise errors.InvalidArgument(f"{n} is outside the 64 bits of a stored integer")
                return self._INTEGER[function], struct.pack("<q", n)
            case (("sum" | "min" | "max"), float(x)):
                return self._FLOAT[function], struct.pack("<d", x)
            case (("sum" | "min" | "max" | "count" | "append" | "top"), _):
                raise TypeError(
                    f"{function!r} takes no operand of type {type(operand).__name__}: sum, min and "
                    "max take an int or a float, count takes none, append takes bytes, and top takes "
                    "(k, score, item)"
                )
        raise errors.InvalidArgument(
            f"no function {function!r}: the functions are sum, min, max, count, append and top"
        )


FUNCTIONS: Final = _Functions()


class Result(Generic[T]):
    """The future result of one operation of a batch."""

    def __init__(self) -> None:
        self._answer: Any = _UNKNOWN

    @property
    def value(self) -> T:
        """The result. Raises the operation's own error if it failed, and
        :class:`~honeycomb.errors.InvalidArgument` while the batch has not run."""
        if self._answer is _UNKNOWN:
            raise errors.InvalidArgument(
                "the batch has not run: its `with` block has not ended, or it raised"
            )
        if isinstance(self._answer, errors.HoneycombError):
            raise self._answer
        answer: T = self._answer
        return answer

    def __repr__(self) -> str:
        known = "not run" if self._answer is _UNKNOWN else repr(self._answer)
        return f"<honeycomb.Result {known}>"


class Batch:
    """Operations that run when the ``with`` block ends; see :meth:`honeycomb.Kv.batch`. Each method
    returns a :class:`Result`, whose ``value`` can be read afterwards. Not thread-safe; runs once.
    """

    def __init__(self, native: Callable[[], NativeKv]) -> None:
        self._native = native
        self._ops: list[BatchOperation] = []
        self._results: list[Result[Any]] = []
        self._ended = False

    def get(self, key: Key) -> Result[bytes | None]:
        """Reads an entry. Result: its value, or ``None``."""
        return self._ask(GET, key)

    def put(self, key: Key, value: Value) -> Result[bool]:
        """Stores an entry. Result: whether it replaced one."""
        return self._ask(PUT, key, as_value(value))

    def set(self, key: Key, value: Value) -> Result[None]:
        """Stores an entry, without asking whether it replaces one; see :meth:`honeycomb.Kv.set`."""
        return self._ask(SET, key, as_value(value))

    def add(self, key: Key, value: Value) -> Result[bool]:
        """Stores an entry if there is none; otherwise fails with
        :class:`~honeycomb.errors.KeyExists`."""
        return self._ask(ADD, key, as_value(value))

    def delete(self, key: Key) -> Result[bool]:
        """Removes an entry. Result: whether it existed."""
        return self._ask(DELETE, key)

    def compare_and_swap(
        self, key: Key, expected: Value | None, new: Value
    ) -> Result[tuple[bool, bytes | None]]:
        """Stores ``new`` if the value is ``expected`` (``None``: if there is no entry). Result: whether
        ``new`` was stored, and the value found if it was not. In an atomic batch, a different value is a
        failure (:class:`~honeycomb.errors.CompareFailed`)."""
        return self._ask(SWAP, key, expected, as_value(new))

    @overload
    def accumulate(
        self, key: Key, function: Literal["sum", "min", "max"], operand: int
    ) -> Result[int]: ...
    @overload
    def accumulate(
        self, key: Key, function: Literal["sum", "min", "max"], operand: float
    ) -> Result[float]: ...
    @overload
    def accumulate(self, key: Key, function: Literal["count"]) -> Result[int]: ...
    @overload
    def accumulate(self, key: Key, function: Literal["append"], operand: Value) -> Result[int]: ...
    @overload
    def accumulate(
        self, key: Key, function: Literal["top"], operand: tuple[int, float, Value | str]
    ) -> Result[int]: ...
    def accumulate(self, key: Key, function: str, operand: Any = None) -> Result[Any]:
        """Combines an entry with ``operand``, as :meth:`honeycomb.Kv.accumulate` does. Result: the new
        value; for ``top``, the number of items in the list."""
        number, data = FUNCTIONS.encode(function, operand)
        return self._ask(ACCUMULATE + number, key, data)

    def increment(self, key: Key, n: int = 1) -> Result[int]:
        """Adds ``n`` to an integer. Result: the sum."""
        return self.accumulate(key, "sum", _check.index("n", n))

    def append(self, key: Key, data: Value) -> Result[int]:
        """Appends bytes to a value. Result: its new length in bytes."""
        return self.accumulate(key, "append", data)

    def key(self, key: Key) -> Value:
        """The key in the store for a key of this batch."""
        return as_key(key)

    def __len__(self) -> int:
        return len(self._ops)

    def __bool__(self) -> bool:
        return True  # even when the batch is empty

    def __reduce__(self) -> Never:
        raise refuse_pickle("a batch", "it belongs to its `with` block; pickle its results instead")

    def __repr__(self) -> str:
        ended = " ended" if self._ended else ""
        return f"<honeycomb.{type(self).__name__} of {len(self._ops)} operations{ended}>"

    def __enter__(self) -> Self:
        if self._ended:
            raise errors.InvalidArgument("a batch runs once; begin another one")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended = True
        if error is None and self._ops:
            self._run()

    def _ask(
        self, kind: int, key: Key, first: Value | None = None, second: Value | None = None
    ) -> Result[Any]:
        if self._ended:
            raise errors.InvalidArgument("the batch has ended; start another one")
        self._ops.append((kind, self.key(key), first, second))
        self._results.append(Result())
        return self._results[-1]

    def _run(self) -> None:
        answers = self._native().batch(self._ops)
        self._tell(answers)
        checked(answers)

    def _tell(self, answers: Sequence[Any]) -> None:
        for result, answer in zip(self._results, answers, strict=True):
            result._answer = answer


class AtomicBatch(Batch):
    """Operations that all take effect when the ``with`` block ends, or none; see
    :meth:`honeycomb.Kv.atomic`."""

    def __init__(self, native: Callable[[], NativeKv], tag: str | None) -> None:
        super().__init__(native)
        if tag is not None and (not tag or "}" in tag):
            raise errors.InvalidArgument(f"a tag has at least one character and no '}}': {tag!r}")
        self._prefix = b"" if tag is None else b"{" + tag.encode() + b"}"

    def key(self, key: Key) -> Value:
        """The key in the store for a key of this batch: the key with the tag prepended."""
        return self._prefix + as_key(key) if self._prefix else as_key(key)

    def _run(self) -> None:
        answer = self._native().atomic(self._ops)
        if isinstance(answer, list):
            return self._tell(answer)
        index, error, told, found = answer
        error.failures = {index: error}
        if told:
            shown = "no value" if found is None else f"{found[:80]!r}"
            error.add_note(f"the comparison found {shown}")
            error.results = [(False, found) if i == index else None for i in range(len(self._ops))]
        raise error
