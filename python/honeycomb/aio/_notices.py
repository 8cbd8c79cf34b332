"""The hand-written part of the twin of listeners."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Never, Self

from honeycomb import _check, errors
from honeycomb._display import refuse_pickle
from honeycomb.aio._run import run
from honeycomb.aio._taker import Taker
from honeycomb.aio._twin import RemoteTwin
from honeycomb.notices import Listener, Notification


class ListenerBase(RemoteTwin[Listener]):
    """The twin of :class:`honeycomb.Listener`, used in ``async with`` and ``async for``.

    Cancelling a ``get`` loses nothing: if a change still arrives for it, the next ``get`` returns that
    change first.
    """

    def __init__(self, blocking: Listener) -> None:
        super().__init__(blocking)

        def take(n: int, wait: float | None) -> list[Notification]:
            heard = blocking.get(wait)
            return [] if heard is None else [heard]

        self._taker: Taker[Notification] = Taker(take)

    async def _do_get(self, timeout: float | None) -> Notification | None:
        heard = await self._taker.get(1, _check.timeout(timeout))
        return heard[0] if heard else None

    async def __aiter__(self) -> AsyncIterator[Notification]:
        while True:
            try:
                heard = await self._do_get(None)
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

        return asyncio.get_running_loop().create_task(
            call(), name=f"listener {self.blocking.address}"
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await run(self.blocking.close)

    def __reduce__(self) -> Never:
        raise refuse_pickle("an AsyncListener", "subscribe again where it is needed")
