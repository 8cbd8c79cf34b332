"""The hand-written part of the twin of buckets, whose calls on objects are batched."""

from __future__ import annotations

from collections.abc import AsyncIterator

from honeycomb._batch import Value
from honeycomb.aio._streams import stepping
from honeycomb.aio._twin import RemoteTwin
from honeycomb.aio._twins.kv import AsyncKv
from honeycomb.bucket import Bucket


class BucketBase(RemoteTwin[Bucket]):
    """The twin of :class:`honeycomb.Bucket`; ``blocking`` is the bucket itself."""

    def __init__(self, blocking: Bucket) -> None:
        super().__init__(blocking)
        self._kv = AsyncKv(blocking.kv)

    @property
    def kv(self) -> AsyncKv:
        """The key-value store that contains the objects."""
        return self._kv

    async def _do_put(self, name: str, data: Value) -> None:
        await self._kv.put(name, data)

    async def _do_get(self, name: str, *, delete: bool) -> bytes:
        return await (self._kv.pop(name) if delete else self._kv[name])

    async def _do_exists(self, name: str) -> bool:
        return await self._kv.contains(name)

    async def _do_delete(self, name: str) -> bool:
        return await self._kv.delete(name)

    def __aiter__(self) -> AsyncIterator[str]:
        return stepping(self.blocking.enumerate())
