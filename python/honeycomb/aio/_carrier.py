"""Operations on stores that one turn of an event loop asks for go out together.

Whoever awaits a `get` awaits a future; what all tasks ask for in one turn of the loop is handed to a
native thread at its end, which has it under way on a connection for each shard, and the loop hears of
answers by a descriptor. So a thousand tasks that get a key each cost a few system calls.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from honeycomb._batch import Key, Value
from honeycomb._native import NativeDriver
from honeycomb.kv import Kv

#: By event loop and session. A loop keeps its carriers for as long as it is open.
_carriers: weakref.WeakValueDictionary[tuple[int, int], Carrier] = weakref.WeakValueDictionary()


class Carrier:
    """Carries the operations of one event loop on the stores of one session."""

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
        """The future of an operation; ``None`` for one that has to be made alone."""
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
                continue  # cancelled
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
