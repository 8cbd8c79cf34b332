"""Sends the operations on stores that are requested in one iteration of an event loop together.

A task that awaits a `get` awaits a future. At the end of an iteration, all operations requested in it are
passed to a native thread, which sends them on one connection for each shard. A readable descriptor
notifies the loop of replies. So a thousand tasks that get a key each cost a few system calls.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from honeycomb._batch import Key, Value
from honeycomb._native import NativeDriver
from honeycomb.kv import Kv

#: Carriers by event loop and session. A loop keeps its carriers for as long as it is open.
_carriers: weakref.WeakValueDictionary[tuple[int, int], Carrier] = weakref.WeakValueDictionary()


class Carrier:
    """Sends the operations of one event loop on the stores of one session."""

    __slots__ = ("__weakref__", "_asked", "_driver", "_futures", "_session", "_told", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, kv: Kv) -> None:
        self.loop = loop
        self._session = kv._job._session
        self._driver = NativeDriver(kv)
        self._futures: dict[int, asyncio.Future[Any]] = {}
        self._asked = 0
        self._told = False
        loop.add_reader(self._driver.fileno(), self._take)

    def ask(
        self, kv: Kv, kind: int, key: Key, first: Value | None, second: Value | None
    ) -> asyncio.Future[Any] | None:
        """The future of an operation; ``None`` if the operation cannot be batched."""
        ticket = self._asked
        if not self._driver.ask(kv, ticket, kind, key, first, second):
            return None
        self._asked = ticket + 1
        future = self._futures[ticket] = self.loop.create_future()
        if not self._told:
            self._told = True
            self.loop.call_soon(self._tell)
        return future

    def _tell(self) -> None:
        self._told = False
        self._driver.wake()

    def _take(self) -> None:
        for ticket, answer in self._driver.take():
            future = self._futures.pop(ticket)
            if future.done():
                continue  # the task was cancelled
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def carrier_of(loop: asyncio.AbstractEventLoop, kv: Kv) -> Carrier:
    """The carrier for a store's operations in a loop."""
    key = (id(loop), id(kv._job._session))
    found = _carriers.get(key)
    if found is None or found.loop is not loop or found._session is not kv._job._session:
        found = _carriers[key] = Carrier(loop, kv)
    return found
