"""The hand-written part of the twin of key-value stores: its batched calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

from honeycomb import _check
from honeycomb._batch import (
    ACCUMULATE,
    ADD,
    DELETE,
    FUNCTIONS,
    GET,
    PUT,
    SET,
    SWAP,
    Key,
    Value,
    as_value,
)
from honeycomb.aio._carrier import Carrier, carrier_of
from honeycomb.aio._run import run
from honeycomb.aio._streams import stepping
from honeycomb.aio._twin import RemoteTwin
from honeycomb.kv import _MISSING, Kv


class KvBase(RemoteTwin[Kv]):
    """The twin of :class:`honeycomb.Kv`; ``blocking`` is the blocking store.

    ``await kv["key"]`` and ``async for key in kv`` work. The other operators of a dictionary have named
    methods: :meth:`set`, :meth:`delete`, :meth:`contains`, :meth:`length`. A mutation whose task is
    cancelled may or may not take effect.

    Single gets and changes that tasks request in one iteration of the event loop are sent together and
    run concurrently. Operations on one key take effect in the order of their requests.
    """

    def __init__(self, blocking: Kv) -> None:
        super().__init__(blocking)
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

    async def _do_get(self, key: Key, default: Any) -> Any:
        value = await self._piped(GET, key)
        if value is NotImplemented:
            return await run(lambda: self.blocking.get(key, default))
        return default if value is None else value

    async def _do_put(self, key: Key, value: Value) -> bool:
        replaced = await self._piped(PUT, key, as_value(value))
        if replaced is NotImplemented:
            return await run(lambda: self.blocking.put(key, value))
        return bool(replaced)

    async def _do_set(self, key: Key, value: Value) -> None:
        if await self._piped(SET, key, as_value(value)) is NotImplemented:
            await run(lambda: self.blocking.set(key, value))

    async def _do_add(self, key: Key, value: Value) -> None:
        if await self._piped(ADD, key, as_value(value)) is NotImplemented:
            await run(lambda: self.blocking.add(key, value))

    async def _do_delete(self, key: Key) -> bool:
        return bool(await self._piped(DELETE, key))

    async def _do_compare_and_swap(
        self, key: Key, expected: Value | None, new: Value
    ) -> tuple[bool, bytes | None]:
        given = None if expected is None else as_value(expected, "expected values")
        swapped: tuple[bool, bytes | None] = await self._piped(SWAP, key, given, as_value(new))
        if swapped is NotImplemented:
            return await run(lambda: self.blocking.compare_and_swap(key, expected, new))
        return swapped

    async def _do_update(self, entries: Any, value: Any) -> bytes | None:
        if value is _MISSING and not isinstance(entries, Mapping):
            entries = list(entries)  # iterates in this thread, not in another
        return await run(lambda: self.blocking.update(entries, value))

    async def _do_accumulate(self, key: Key, function: Any, operand: Any) -> Any:
        number, data = FUNCTIONS.encode(function, operand)
        if function != "top":  # a batched `top` returns no list
            combined = await self._piped(ACCUMULATE + number, key, data)
            if combined is not NotImplemented:
                return combined
        return await run(lambda: self.blocking.accumulate(key, function, operand))

    async def _do_increment(self, key: Key, n: int) -> int:
        return int(await self._do_accumulate(key, "sum", _check.index("n", n)))

    async def _do_append(self, key: Key, data: Value) -> int:
        return int(await self._do_accumulate(key, "append", data))

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.keys()

    def keys(self) -> AsyncIterator[bytes]:
        """All keys, in the order of the scan."""
        return stepping(iter(self.blocking))
