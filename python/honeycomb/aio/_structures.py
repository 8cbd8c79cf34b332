"""The twins of files and key-value stores."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, AnyStr, Final, Generic, Literal, Self, TypeVar, overload

from honeycomb import _check
from honeycomb._batch import (
    ACCUMULATE,
    ADD,
    DELETE,
    FUNCTIONS,
    GET,
    PUT,
    SWAP,
    AtomicBatch,
    Batch,
    Key,
    Value,
    as_value,
)
from honeycomb._display import Facts, Remote
from honeycomb.aio._carrier import Carrier, carrier_of
from honeycomb.aio._queue import AsyncListener, listening
from honeycomb.aio._run import Opening, run, twin_of, wait
from honeycomb.file import FOLLOW_PIECE, Buffer, Data, HoneyFile
from honeycomb.kv import _MISSING, Kv
from honeycomb.view import FileView

if TYPE_CHECKING:
    import pyarrow

D = TypeVar("D")
T = TypeVar("T")
B = TypeVar("B", bound=Batch)

#: Entries or lines that an iteration fetches from its thread at a time.
STRIDE: Final = 512


async def _stepping(iterator: Iterator[T]) -> AsyncIterator[T]:
    """Yields the items of a blocking iterator, fetched from a thread in groups."""
    while some := await run(lambda: list(islice(iterator, STRIDE))):
        for one in some:
            yield one


class AsyncStream(Generic[AnyStr]):
    """A file object with awaitable calls. Returned by :meth:`AsyncFile.open`. ``blocking`` is the
    blocking file object. Its calls run one after another, including those of cancelled tasks."""

    def __init__(self, blocking: Any) -> None:
        self.blocking: io.IOBase = blocking
        self._stream: Any = blocking
        self._lock = threading.Lock()

    async def _call(self, name: str, *args: Any) -> Any:
        def call() -> Any:
            with self._lock:
                return getattr(self._stream, name)(*args)

        return await run(call)

    async def read(self, size: int = -1) -> AnyStr:
        """Up to ``size`` bytes or characters; all up to the end if ``size`` is negative."""
        found: AnyStr = await self._call("read", size)
        return found

    async def readline(self, size: int = -1) -> AnyStr:
        """The next line, or ``size`` bytes or characters of it; empty at the end."""
        found: AnyStr = await self._call("readline", size)
        return found

    async def __aiter__(self) -> AsyncIterator[AnyStr]:
        while some := await self._call("readlines", FOLLOW_PIECE):
            for line in some:
                yield line

    async def write(self, data: AnyStr) -> int:
        """Writes all of ``data`` and returns its length; see :class:`honeycomb.Appender`."""
        return int(await self._call("write", data))

    async def flush(self) -> None:
        """Appends the buffered data."""
        await self._call("flush")

    async def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to a position and returns it."""
        return int(await self._call("seek", offset, whence))

    async def tell(self) -> int:
        """The position."""
        return int(await self._call("tell"))

    async def close(self) -> None:
        """Flushes and closes the file object. Idempotent."""
        await self._call("close")

    @property
    def closed(self) -> bool:
        """Whether the file object is closed."""
        return bool(self._stream.closed)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<honeycomb.aio.AsyncStream of {self._stream!r}>"


def streaming(open_file: Callable[[], io.IOBase]) -> Opening[AsyncStream[Any]]:
    """Opens a file object."""

    async def open_() -> AsyncStream[Any]:
        return AsyncStream(await run(open_file, late=io.IOBase.close))

    return Opening(open_())


@twin_of(HoneyFile)
class AsyncFile(Remote):
    """The twin of :class:`honeycomb.HoneyFile`; ``blocking`` is the blocking file. A cancelled
    ``append`` may or may not take effect."""

    def __init__(self, blocking: HoneyFile) -> None:
        self.blocking = blocking

    @property
    def address(self) -> str:
        return self.blocking.address

    @property
    def append_limit(self) -> int:
        return self.blocking.append_limit

    async def append(self, data: Data) -> int:
        return await run(lambda: self.blocking.append(data))

    async def write_all(self, data: Data) -> int:
        return await run(lambda: self.blocking.write_all(data))

    async def read(self, offset: int = 0, size: int | None = None) -> bytes:
        return await run(lambda: self.blocking.read(offset, size))

    async def readinto(self, offset: int, buffer: Buffer) -> int:
        return await run(lambda: self.blocking.readinto(offset, buffer))

    async def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        ranges = list(ranges)  # iterates in this thread, not in another
        return await run(lambda: self.blocking.read_ranges(ranges))

    async def map(self) -> FileView:
        return await run(self.blocking.map)

    async def size(self) -> int:
        return await run(self.blocking.size)

    async def seal(self) -> int:
        return await run(self.blocking.seal)

    async def sealed(self) -> bool:
        return await run(self.blocking.sealed)

    @overload
    def open(self, mode: Literal["rb", "ab"] = "rb") -> Opening[AsyncStream[bytes]]: ...
    @overload
    def open(self, mode: Literal["r", "a"]) -> Opening[AsyncStream[str]]: ...
    @overload
    def open(self, mode: str) -> Opening[AsyncStream[Any]]: ...
    def open(self, mode: str = "rb") -> Opening[AsyncStream[Any]]:
        return streaming(lambda: self.blocking.open(mode))

    async def wait_until(
        self, *, sealed: bool = False, size: int | None = None, timeout: float | None = None
    ) -> bool:
        return await wait(
            lambda left: self.blocking.wait_until(sealed=sealed, size=size, timeout=left),
            _check.timeout(timeout),
        )

    def follow(self, offset: int = 0, *, timeout: float | None = None) -> AsyncIterator[bytes]:
        offset = _check.whole("offset", offset, 0, unit="bytes")
        return self._follow(offset, _check.timeout(timeout))

    async def _follow(self, offset: int, timeout: float | None) -> AsyncIterator[bytes]:
        async with self.subscribe() as listener:
            while True:
                piece = await self.read(offset, FOLLOW_PIECE)
                if piece:
                    offset += len(piece)
                    yield piece
                    continue
                # Check the size after the seal: bytes may have been appended just before the seal.
                if await self.sealed() and offset >= await self.size():
                    return
                if await listener.get(timeout) is None:
                    return

    def subscribe(self, *ops: str) -> Opening[AsyncListener]:
        return listening(lambda: self.blocking.subscribe(*ops))

    def __reduce__(self) -> tuple[Any, ...]:
        return AsyncFile, (self.blocking,)

    def _facts(self) -> Facts:
        return self.blocking._facts()

    def __repr__(self) -> str:
        return f"<honeycomb.aio.AsyncFile {self.address}>"


class AsyncBatch(Generic[B]):
    """The twin of a batch. ``async with kv.batch() as b`` yields the blocking batch, whose methods only
    collect operations, and runs it at the end of the block."""

    def __init__(self, blocking: B) -> None:
        self.blocking = blocking

    async def __aenter__(self) -> B:
        return self.blocking.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await run(lambda: self.blocking.__exit__(kind, error, traceback))

    def __repr__(self) -> str:
        return f"<honeycomb.aio.AsyncBatch of {self.blocking!r}>"


@twin_of(Kv)
class AsyncKv(Remote):
    """The twin of :class:`honeycomb.Kv`; ``blocking`` is the blocking store.

    ``await kv["key"]`` and ``async for key in kv`` work. The other operators of a dictionary have named
    methods: :meth:`put`, :meth:`delete`, :meth:`contains`, :meth:`length`. A mutation whose task is
    cancelled may or may not take effect.

    Single gets and changes that tasks request in one iteration of the event loop are sent together and
    run concurrently. Operations on one key take effect in the order of their requests.
    """

    def __init__(self, blocking: Kv) -> None:
        self.blocking = blocking
        self._carrier: Carrier | None = None

    async def _piped(
        self, kind: int, key: Key, first: Value | None = None, second: Value | None = None
    ) -> Any:
        """The result of a batched operation; ``NotImplemented`` if the operation cannot be batched."""
        loop = asyncio.get_running_loop()
        carrier = self._carrier
        if carrier is None or carrier.loop is not loop:
            carrier = self._carrier = carrier_of(loop, self.blocking)
        future = carrier.ask(self.blocking, kind, key, first, second)
        return NotImplemented if future is None else await future

    @property
    def address(self) -> str:
        return self.blocking.address

    @property
    def value_limit(self) -> int:
        return self.blocking.value_limit

    @property
    def plain_limit(self) -> int:
        return self.blocking.plain_limit

    def __getitem__(self, key: Key) -> Coroutine[Any, Any, bytes]:
        return self._get_item(key)

    async def _get_item(self, key: Key) -> bytes:
        value: bytes | None = await self._piped(GET, key)
        if value is NotImplemented:
            return await run(lambda: self.blocking[key])
        if value is None:
            raise self.blocking._missing(key)
        return value

    async def contains(self, key: Key) -> bool:
        """Whether the key exists: ``in``."""
        return await run(lambda: key in self.blocking)

    async def length(self) -> int:
        """The number of entries: ``len()``."""
        return await run(lambda: len(self.blocking))

    @overload
    async def get(self, key: Key, default: None = None) -> bytes | None: ...
    @overload
    async def get(self, key: Key, default: bytes) -> bytes: ...
    @overload
    async def get(self, key: Key, default: D) -> bytes | D: ...
    async def get(self, key: Key, default: Any = None) -> Any:
        value = await self._piped(GET, key)
        if value is NotImplemented:
            return await run(lambda: self.blocking.get(key, default))
        return default if value is None else value

    async def get_into(self, key: Key, buffer: bytearray | memoryview) -> int | None:
        return await run(lambda: self.blocking.get_into(key, buffer))

    async def put(self, key: Key, value: Value) -> bool:
        replaced = await self._piped(PUT, key, as_value(value))
        if replaced is NotImplemented:
            return await run(lambda: self.blocking.put(key, value))
        return bool(replaced)

    async def add(self, key: Key, value: Value) -> None:
        if await self._piped(ADD, key, as_value(value)) is NotImplemented:
            await run(lambda: self.blocking.add(key, value))

    @overload
    async def pop(self, key: Key) -> bytes: ...
    @overload
    async def pop(self, key: Key, default: bytes) -> bytes: ...
    @overload
    async def pop(self, key: Key, default: D) -> bytes | D: ...
    async def pop(self, key: Key, default: Any = _MISSING) -> Any:
        return await run(lambda: self.blocking.pop(key, default))

    async def delete(self, key: Key) -> bool:
        return bool(await self._piped(DELETE, key))

    async def replace(self, key: Key, value: Value) -> bytes:
        return await run(lambda: self.blocking.replace(key, value))

    async def upsert(self, key: Key, value: Value) -> bytes | None:
        return await run(lambda: self.blocking.upsert(key, value))

    async def compare_and_swap(
        self, key: Key, expected: Value | None, new: Value
    ) -> tuple[bool, bytes | None]:
        given = None if expected is None else as_value(expected, "expected values")
        swapped: tuple[bool, bytes | None] = await self._piped(SWAP, key, given, as_value(new))
        if swapped is NotImplemented:
            return await run(lambda: self.blocking.compare_and_swap(key, expected, new))
        return swapped

    async def setdefault(self, key: Key, default: Any = None) -> bytes:
        return await run(lambda: self.blocking.setdefault(key, default))

    async def put_object(self, key: Key, value: Any) -> bool:
        return await run(lambda: self.blocking.put_object(key, value))

    async def get_object(self, key: Key, default: Any = _MISSING) -> Any:
        return await run(lambda: self.blocking.get_object(key, default))

    async def put_table(self, key: Key, table: pyarrow.Table | pyarrow.RecordBatch) -> bool:
        return await run(lambda: self.blocking.put_table(key, table))

    async def get_table(self, key: Key, default: Any = _MISSING) -> Any:
        return await run(lambda: self.blocking.get_table(key, default))

    @overload
    async def update(self, entries: Mapping[Any, Value], /) -> None: ...
    @overload
    async def update(self, entries: Iterable[tuple[Key, Value]] = (), /) -> None: ...
    @overload
    async def update(self, key: Key, value: Value, /) -> bytes: ...
    async def update(self, entries: Any = (), value: Any = _MISSING, /) -> bytes | None:
        if value is _MISSING and not isinstance(entries, Mapping):
            entries = list(entries)
        return await run(lambda: self.blocking.update(entries, value))

    async def multi_get(self, keys: Iterable[Key]) -> list[bytes | None]:
        keys = list(keys)  # iterates in this thread, not in another
        return await run(lambda: self.blocking.multi_get(keys))

    async def multi_put(self, entries: Mapping[Any, Value] | Iterable[tuple[Key, Value]]) -> int:
        pairs = entries if isinstance(entries, Mapping) else list(entries)
        return await run(lambda: self.blocking.multi_put(pairs))

    async def multi_delete(self, keys: Iterable[Key]) -> int:
        keys = list(keys)
        return await run(lambda: self.blocking.multi_delete(keys))

    def batch(self) -> AsyncBatch[Batch]:
        return AsyncBatch(self.blocking.batch())

    def atomic(self, tag: str | None = None) -> AsyncBatch[AtomicBatch]:
        return AsyncBatch(self.blocking.atomic(tag))

    @overload
    async def accumulate(
        self, key: Key, function: Literal["sum", "min", "max"], operand: int
    ) -> int: ...
    @overload
    async def accumulate(
        self, key: Key, function: Literal["sum", "min", "max"], operand: float
    ) -> float: ...
    @overload
    async def accumulate(self, key: Key, function: Literal["count"]) -> int: ...
    @overload
    async def accumulate(self, key: Key, function: Literal["append"], operand: Value) -> int: ...
    @overload
    async def accumulate(
        self, key: Key, function: Literal["top"], operand: tuple[int, float, Value | str]
    ) -> list[tuple[float, bytes]]: ...
    async def accumulate(self, key: Key, function: Any, operand: Any = None) -> Any:
        number, data = FUNCTIONS.encode(function, operand)
        if function != "top":  # a batched `top` returns no list
            combined = await self._piped(ACCUMULATE + number, key, data)
            if combined is not NotImplemented:
                return combined
        return await run(lambda: self.blocking.accumulate(key, function, operand))

    async def increment(self, key: Key, n: int = 1) -> int:
        return await self.accumulate(key, "sum", _check.index("n", n))

    async def append(self, key: Key, data: Value) -> int:
        return await self.accumulate(key, "append", data)

    async def number(self, key: Key) -> int | float | None:
        return await run(lambda: self.blocking.number(key))

    async def top_add(
        self, key: Key, item: Value | str, score: float, *, k: int = 10
    ) -> list[tuple[float, bytes]]:
        return await run(lambda: self.blocking.top_add(key, item, score, k=k))

    async def top(self, key: Key, k: int | None = None) -> list[tuple[float, bytes]]:
        return await run(lambda: self.blocking.top(key, k))

    def scan(
        self, prefix: Key = b"", *, keys_only: bool = False
    ) -> AsyncIterator[tuple[bytes, bytes]]:
        return _stepping(self.blocking.scan(prefix, keys_only=keys_only))

    async def wait_until(self, key: Key, timeout: float | None = None) -> bool:
        return await wait(lambda left: self.blocking.wait_until(key, left), _check.timeout(timeout))

    def subscribe(
        self, *ops: str, key: Key | None = None, prefix: Key | None = None
    ) -> Opening[AsyncListener]:
        return listening(lambda: self.blocking.subscribe(*ops, key=key, prefix=prefix))

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.keys()

    def keys(self) -> AsyncIterator[bytes]:
        """All keys, in the order of the scan."""
        return _stepping(iter(self.blocking))

    def items(self) -> AsyncIterator[tuple[bytes, bytes]]:
        return _stepping(self.blocking.items())

    def values(self) -> AsyncIterator[bytes]:
        return _stepping(self.blocking.values())

    async def popitem(self) -> tuple[bytes, bytes]:
        return await run(self.blocking.popitem)

    async def clear(self) -> None:
        await run(self.blocking.clear)

    def __reduce__(self) -> tuple[Any, ...]:
        return AsyncKv, (self.blocking,)

    def _facts(self) -> Facts:
        return self.blocking._facts()

    def __repr__(self) -> str:
        return f"<honeycomb.aio.AsyncKv {self.address}>"
