"""The twin of buckets."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

from honeycomb._batch import Value
from honeycomb._display import Facts, Remote
from honeycomb.aio._run import run, twin_of
from honeycomb.aio._structures import AsyncKv, _stepping
from honeycomb.bucket import Bucket


@twin_of(Bucket)
class AsyncBucket(Remote):
    """The twin of :class:`honeycomb.Bucket`; ``blocking`` is the bucket itself."""

    def __init__(self, blocking: Bucket) -> None:
        self.blocking = blocking
        self._kv = AsyncKv(blocking.kv)

    @property
    def name(self) -> str:
        return self.blocking.name

    @property
    def address(self) -> str:
        return self.blocking.address

    @property
    def kv(self) -> AsyncKv:
        """The key-value store that contains the objects."""
        return self._kv

    async def put(self, name: str, data: Value) -> None:
        await self._kv.put(name, data)

    async def put_file(self, name: str, path: str | os.PathLike[str]) -> int:
        return await run(lambda: self.blocking.put_file(name, path))

    async def get(self, name: str, *, delete: bool = False) -> bytes:
        return await (self._kv.pop(name) if delete else self._kv[name])

    async def get_file(
        self, name: str, path: str | os.PathLike[str], *, delete: bool = False
    ) -> int:
        return await run(lambda: self.blocking.get_file(name, path, delete=delete))

    async def exists(self, name: str) -> bool:
        return await self._kv.contains(name)

    def enumerate(self, prefix: str = "") -> AsyncIterator[str]:
        return _stepping(self.blocking.enumerate(prefix))

    async def delete(self, name: str) -> bool:
        return await self._kv.delete(name)

    def __aiter__(self) -> AsyncIterator[str]:
        return self.enumerate()

    def __reduce__(self) -> tuple[Any, ...]:
        return AsyncBucket, (self.blocking,)

    def _facts(self) -> Facts:
        return self.blocking._facts()

    def __repr__(self) -> str:
        return f"<honeycomb.aio.AsyncBucket {self.address}>"
