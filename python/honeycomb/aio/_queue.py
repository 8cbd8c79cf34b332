"""The hand-written parts of the twins of queues and reservations."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import AsyncIterator, Coroutine, Iterable
from types import TracebackType
from typing import Any

from honeycomb import _check, errors
from honeycomb._display import Facts
from honeycomb._threads import PUTS
from honeycomb.aio._run import run, wait
from honeycomb.aio._taker import Taker
from honeycomb.aio._twin import RemoteTwin, Twin
from honeycomb.queue import Item, Queue, Reservation


class ReservationBase(Twin[Reservation]):
    """The twin of :class:`honeycomb.Reservation`, used in ``async with``."""

    __slots__ = ()

    async def __aenter__(self) -> bytes:
        return self.blocking.item

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Also while the task is being cancelled: a short delay is better than withholding the item from
        # other consumers until its lease ends.
        await asyncio.shield(run(lambda: self.blocking.__exit__(kind, error, traceback)))


class QueueBase(RemoteTwin[Queue]):
    """The twin of :class:`honeycomb.Queue`; ``blocking`` is the blocking queue.

    *Cancelling* a ``get`` loses nothing: if an item still arrives for it, this object retains the item,
    and its next ``get`` (or one that waits already) returns it. No other consumer receives the item.
    :meth:`close` puts retained items back at the end of the queue. An object that is deleted with
    retained items issues a ``RuntimeWarning``. Items that arrive for a cancelled :meth:`reserve` are given
    back at once. A cancelled ``put`` may or may not take effect.

    One request waits for all tasks that wait in ``get`` of one object, however many there are. The tasks
    are served in the order of their calls.
    """

    def __init__(self, blocking: Queue) -> None:
        super().__init__(blocking)
        self._taker: Taker[bytes] = Taker(
            lambda n, wait: blocking._native().get(n, wait),
            f"items of {blocking.address} that arrived for cancelled calls are lost; call close() "
            "to give such items back",
        )

    @property
    def kept(self) -> int:
        """The number of retained items, which arrived for cancelled calls."""
        return self._taker.kept

    async def _do_put(self, item: Item, timeout: float | None) -> None:
        _check.data("items", item)
        timeout = _check.timeout(timeout)
        began = time.monotonic()
        try:
            return await run(lambda: self.blocking.put(item, 0))
        except errors.QueueFull:
            if timeout == 0:
                raise
        left = None if timeout is None else max(0.0, timeout + began - time.monotonic())
        await wait(lambda left: self.blocking.put(item, left), left, crew=PUTS)

    async def _do_put_nowait(self, item: Item) -> None:
        await self._do_put(item, 0)

    async def _do_put_many(self, items: Iterable[Item], timeout: float | None) -> int:
        timeout = _check.timeout(timeout)
        began = time.monotonic()
        items = items if isinstance(items, bytes | bytearray | memoryview | str) else list(items)
        try:
            return await run(lambda: self.blocking.put_many(items, 0))
        except errors.QueueFull as full:
            if timeout == 0:
                raise
            done = full.put
        left = None if timeout is None else max(0.0, timeout + began - time.monotonic())
        rest = list(items)[done:]
        try:
            await wait(lambda left: self.blocking.put_many(rest, left), left, crew=PUTS)
        except errors.HoneycombError as error:
            error.put += done
            if done:
                error.add_note(
                    f"with the {done} items put before, {error.put} of {len(rest) + done} were put"
                )
            raise
        return done + len(rest)

    async def _do_get(self, timeout: float | None) -> bytes:
        timeout = _check.timeout(timeout)
        items = await self._taker.get(1, timeout)
        if items:
            return items[0]
        raise self.blocking._empty(timeout)

    async def _do_get_nowait(self) -> bytes:
        return await self._do_get(0)

    async def _do_get_many(self, n: int, timeout: float | None) -> list[bytes]:
        n = _check.whole("n", n, 1, _check.ITEMS_MAX, unit="items at a time")
        return await self._taker.get(n, _check.timeout(timeout))

    async def _do_reserve(
        self, n: int, *, lease: float, timeout: float | None
    ) -> list[Reservation]:
        def give_back(unwanted: list[Reservation]) -> None:
            for one in unwanted:
                one.give_back()

        return await wait(
            lambda left: self.blocking.reserve(n, lease=lease, timeout=left),
            _check.timeout(timeout),
            late=give_back,
        )

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            try:
                item = await self._do_get(None)
            except errors.QueueClosed:
                return
            yield item

    async def _do_close(self) -> None:
        try:
            await self._give_back()
        finally:
            await run(self.blocking.close)

    async def _give_back(self) -> None:
        """Puts the retained items at the end of the queue."""
        kept = self._taker.take_kept()
        if not kept:
            return
        try:
            await run(lambda: self.blocking.put_many(kept, 0))
        except errors.HoneycombError as error:
            self._taker.keep(kept[error.put :])
            warnings.warn(
                f"{self._taker.kept} items of {self.blocking.address} that arrived for cancelled "
                f"calls could not be given back ({error.status}); get() of this object returns "
                "them",
                RuntimeWarning,
                stacklevel=2,
            )

    @property
    def closed(self) -> Coroutine[Any, Any, bool]:
        """Whether :meth:`close` was called, by any client: ``await queue.closed``."""
        return run(lambda: self.blocking.closed)

    def _facts(self) -> Facts:
        yield from super()._facts()
        if self.kept:
            yield "kept for cancelled calls", self.kept
