"""The twins of queues, reservations and listeners."""

from __future__ import annotations

import asyncio
import inspect
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Never, Self

from honeycomb import _check, errors
from honeycomb._display import Facts, Remote, refuse_pickle
from honeycomb._threads import PUTS
from honeycomb.aio._run import Opening, run, twin_of, wait
from honeycomb.aio._taker import Taker
from honeycomb.notices import Listener, Notification
from honeycomb.queue import Item, Queue, QueueCounts, Reservation


@twin_of(Reservation)
class AsyncReservation:
    """The twin of :class:`honeycomb.Reservation`, used in ``async with``."""

    __slots__ = ("blocking",)

    def __init__(self, blocking: Reservation) -> None:
        self.blocking = blocking

    @property
    def item(self) -> bytes:
        """The item."""
        return self.blocking.item

    @property
    def deliveries(self) -> int:
        return self.blocking.deliveries

    async def ack(self) -> bool:
        return await run(self.blocking.ack)

    async def give_back(self) -> bool:
        return await run(self.blocking.give_back)

    async def extend(self, seconds: float) -> bool:
        return await run(lambda: self.blocking.extend(seconds))

    async def __aenter__(self) -> bytes:
        return self.item

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Also while the task is being cancelled: a short delay is better than withholding the item from
        # other consumers until its lease ends.
        await asyncio.shield(run(lambda: self.blocking.__exit__(kind, error, traceback)))

    def __reduce__(self) -> tuple[Any, ...]:
        return AsyncReservation, (self.blocking,)

    def __repr__(self) -> str:
        return repr(self.blocking).replace("Reservation", "aio.AsyncReservation", 1)


@twin_of(Queue)
class AsyncQueue(Remote):
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
        self.blocking = blocking
        self._taker: Taker[bytes] = Taker(
            lambda n, wait: blocking._native().get(n, wait),
            f"items of {blocking.address} that arrived for cancelled calls are lost; call close() "
            "to give such items back",
        )

    @property
    def address(self) -> str:
        return self.blocking.address

    @property
    def max_items(self) -> int:
        return self.blocking.max_items

    @property
    def max_bytes(self) -> int:
        return self.blocking.max_bytes

    @property
    def item_limit(self) -> int:
        return self.blocking.item_limit

    @property
    def kept(self) -> int:
        """The number of retained items, which arrived for cancelled calls."""
        return self._taker.kept

    async def put(self, item: Item, timeout: float | None = None) -> None:
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

    async def put_nowait(self, item: Item) -> None:
        await self.put(item, 0)

    async def put_many(self, items: Iterable[Item], timeout: float | None = None) -> int:
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

    async def get(self, timeout: float | None = None) -> bytes:
        timeout = _check.timeout(timeout)
        items = await self._taker.get(1, timeout)
        if items:
            return items[0]
        raise self.blocking._empty(timeout)

    async def get_nowait(self) -> bytes:
        return await self.get(0)

    async def get_many(self, n: int, timeout: float | None = None) -> list[bytes]:
        n = _check.whole("n", n, 1, _check.ITEMS_MAX, unit="items at a time")
        return await self._taker.get(n, _check.timeout(timeout))

    async def reserve(
        self, n: int = 1, *, lease: float = 30.0, timeout: float | None = None
    ) -> list[AsyncReservation]:
        def give_back(unwanted: list[Reservation]) -> None:
            for one in unwanted:
                one.give_back()

        reserved = await wait(
            lambda left: self.blocking.reserve(n, lease=lease, timeout=left),
            _check.timeout(timeout),
            late=give_back,
        )
        return [AsyncReservation(one) for one in reserved]

    async def peek(self, n: int = 1) -> list[bytes]:
        return await run(lambda: self.blocking.peek(n))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            try:
                item = await self.get()
            except errors.QueueClosed:
                return
            yield item

    async def qsize(self) -> int:
        return await run(self.blocking.qsize)

    async def empty(self) -> bool:
        return await run(self.blocking.empty)

    async def full(self) -> bool:
        return await run(self.blocking.full)

    async def counts(self) -> QueueCounts:
        return await run(self.blocking.counts)

    async def close(self) -> None:
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
                f"{self._taker.kept} items of {self.address} that arrived for cancelled calls "
                f"could not be given back ({error.status}); get() of this object returns them",
                RuntimeWarning,
                stacklevel=2,
            )

    @property
    def closed(self) -> Coroutine[Any, Any, bool]:
        """Whether :meth:`close` was called, by any client: ``await queue.closed``."""
        return run(lambda: self.blocking.closed)

    async def wait_until_closed(self, timeout: float | None = None) -> bool:
        return await wait(self.blocking.wait_until_closed, _check.timeout(timeout))

    def subscribe(self, *ops: str) -> Opening[AsyncListener]:
        return listening(lambda: self.blocking.subscribe(*ops))

    def __reduce__(self) -> tuple[Any, ...]:
        return AsyncQueue, (self.blocking,)

    def _facts(self) -> Facts:
        yield from self.blocking._facts()
        if self.kept:
            yield "kept for cancelled calls", self.kept

    def __repr__(self) -> str:
        return f"<honeycomb.aio.AsyncQueue {self.address}>"


@twin_of(Listener)
class AsyncListener(Remote):
    """The twin of :class:`honeycomb.Listener`, used in ``async with`` and ``async for``.

    Cancelling a ``get`` loses nothing: if a change still arrives for it, the next ``get`` returns that
    change first.
    """

    def __init__(self, blocking: Listener) -> None:
        self.blocking = blocking

        def take(n: int, wait: float | None) -> list[Notification]:
            heard = blocking.get(wait)
            return [] if heard is None else [heard]

        self._taker: Taker[Notification] = Taker(take)

    @property
    def address(self) -> str:
        return self.blocking.address

    async def get(self, timeout: float | None = None) -> Notification | None:
        heard = await self._taker.get(1, _check.timeout(timeout))
        return heard[0] if heard else None

    async def __aiter__(self) -> AsyncIterator[Notification]:
        while True:
            try:
                heard = await self.get()
            except errors.Closed:
                return
            if heard is not None:
                yield heard

    def on(self, callback: Callable[[Notification], object]) -> asyncio.Task[None]:
        """Calls ``callback`` with every change, in a new task, until the listener is closed or the
        structure ends. If ``callback`` returns an awaitable, the task awaits it. If ``callback`` raises,
        the task ends with that error. Returns the task."""

        async def call() -> None:
            try:
                async for heard in self:
                    answer = callback(heard)
                    if inspect.isawaitable(answer):
                        await answer
            except (errors.LeaseExpired, errors.DataLost, errors.NotFound, errors.UnknownJob):
                return  # users of the structure get the error that ended it

        return asyncio.get_running_loop().create_task(call(), name=f"listener {self.address}")

    async def close(self) -> None:
        await run(self.blocking.close)

    @property
    def closed(self) -> bool:
        return self.blocking.closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __reduce__(self) -> Never:
        raise refuse_pickle("an AsyncListener", "subscribe again where it is needed")

    def _facts(self) -> Facts:
        return self.blocking._facts()

    def __repr__(self) -> str:
        return repr(self.blocking).replace("Listener", "aio.AsyncListener", 1)


def listening(subscribe: Callable[[], Listener]) -> Opening[AsyncListener]:
    """Makes a listener. If the task was cancelled meanwhile, the listener is closed."""

    async def open_() -> AsyncListener:
        return AsyncListener(await run(subscribe, late=Listener.close))

    return Opening(open_())
