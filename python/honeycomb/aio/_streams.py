"""File objects, batches and iterators with awaitable calls."""

from __future__ import annotations

import io
import threading
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from types import TracebackType
from typing import Any, AnyStr, Final, Generic, Self, TypeVar

from honeycomb._batch import Batch
from honeycomb.aio._run import run
from honeycomb.file import FOLLOW_PIECE

T = TypeVar("T")
B = TypeVar("B", bound=Batch)

#: Entries or lines that an iteration fetches from its thread at a time.
STRIDE: Final = 512


async def stepping(iterator: Iterator[T]) -> AsyncIterator[T]:
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
