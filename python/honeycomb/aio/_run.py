"""Blocking calls as coroutines, in the package's own threads (see ``honeycomb/_threads.py``)."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from honeycomb import errors
from honeycomb._threads import CALLS, WAITS, Crew

T = TypeVar("T")


class Leaving(Protocol):
    """An object that ``async with`` closes."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> bool | None: ...


L = TypeVar("L", bound=Leaving)


async def run(
    function: Callable[[], T],
    *,
    crew: Crew = CALLS,
    late: Callable[[T], object] | None = None,
    turn: float | None = None,
) -> T:
    """Calls ``function`` in a thread of ``crew`` and returns its result.

    A cancelled task continues at once: a call that is still queued is not made, a wait is interrupted,
    and any other call runs to its end unobserved. The result of a call that is no longer awaited is
    passed to ``late``, in a thread, so that it can be kept, given back or closed. If all threads are busy
    and none takes the call within ``turn`` seconds, the call fails.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    # The result, until it is delivered or disposed of: a loop may close before it runs `settle`.
    answer: deque[tuple[Any, BaseException | None]] = deque(maxlen=1)
    awaited = True

    def settle() -> None:
        if not answer or future.done():
            return dispose()
        value, error = answer.pop()
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    def dispose() -> None:
        while answer:
            value, error = answer.pop()
            if error is None and late is not None:
                CALLS.call(functools.partial(late, value), lambda _value, _error: None)

    def done(value: Any, error: BaseException | None) -> None:
        answer.append((value, error))
        if not awaited:
            return dispose()
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:  # the loop is closed
            dispose()

    def expire() -> None:
        if crew.full and call.withdraw() and not future.done():
            text = (
                f"{crew.limit} calls of this process are waiting, the most that may wait, and none "
                f"ended within {turn} s; raise the limit with honeycomb.aio.waiting_limit()"
            )
            future.set_exception(errors.LimitExceeded(text))

    call = crew.call(function, done)
    timer = None if turn is None else loop.call_later(turn, expire)
    try:
        return await future
    except BaseException as error:
        awaited = False
        if not future.done():
            future.cancel()
        elif not future.cancelled() and future.exception() is None:
            # The call returned, and the task was cancelled before it could take the result.
            answer.append((future.result(), None))
        if future.cancelled() or future.exception() is not error:
            dispose()
            call.cancel()
        raise
    finally:
        if timer is not None:
            timer.cancel()


async def wait(
    function: Callable[[float | None], T],
    timeout: float | None,
    *,
    crew: Crew = WAITS,
    late: Callable[[T], object] | None = None,
) -> T:
    """Calls ``function`` with the remaining seconds of ``timeout`` and returns its result. For calls that
    wait for an event: cancelling the task ends the wait."""
    if timeout is None:
        return await run(lambda: function(None), crew=crew, late=late)
    if timeout == 0:
        return await run(lambda: function(0), late=late)
    until = time.monotonic() + timeout
    return await run(
        lambda: function(max(0.0, until - time.monotonic())), crew=crew, late=late, turn=timeout
    )


class Opening(Awaitable[L], AbstractAsyncContextManager[L], Generic[L]):
    """An object being opened: ``await`` it, or use it in ``async with``, which closes the object again."""

    __slots__ = ("_coroutine", "_opened")

    def __init__(self, coroutine: Coroutine[Any, Any, L]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, L]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> L:
        self._opened: L = await self._coroutine
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._opened.__aexit__(kind, error, traceback)
