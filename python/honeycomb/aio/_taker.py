"""Distributes the items of one source to waiting tasks: items of a queue, or changes of a listener.

One native wait serves all tasks that wait on the same queue object, and its items are distributed in
the order in which the tasks called. This needs a thread, a connection and a waiting request for each
object, not for each task. It also makes cancelling safe: an item that arrives for a cancelled task is
retained here.
"""

from __future__ import annotations

import asyncio
import copy
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from honeycomb import _check
from honeycomb._session import fork_generation
from honeycomb._threads import WAITS, Call
from honeycomb.aio._run import run

T = TypeVar("T")


class _Waiter(Generic[T]):
    __slots__ = ("asked", "future", "loop", "until", "wanted")

    def __init__(self, wanted: int, until: float | None) -> None:
        self.wanted = wanted
        self.until = until
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[list[T]] = self.loop.create_future()
        #: Whether a call of the source was started since the task began to wait.
        self.asked = False


class Taker(Generic[T]):
    """Takes items from a source for waiting tasks. Used from any loop and thread.

    ``take(n, wait)`` returns up to ``n`` of the next items and waits up to ``wait`` seconds (``None``:
    without limit) for the first; the wait can be interrupted. ``loss`` is the text of the warning if
    retained items are never requested.
    """

    def __init__(self, take: Callable[[int, float | None], Sequence[T]], loss: str = "") -> None:
        self._take = take
        self._loss = loss
        self._reset()

    def _reset(self) -> None:
        self._made_in = fork_generation()
        self._lock = threading.Lock()
        self._kept: deque[T] = deque()
        self._waiters: deque[_Waiter[T]] = deque()
        # Items assigned to waiters whose loops have not delivered them yet.
        self._given: dict[_Waiter[T], list[T]] = {}
        self._call: Call | None = None
        # The number of items that the current call requests, and the time until which it waits.
        self._asked = 0
        self._asked_until: float | None = None
        # Whether the source was empty at the last call that did not wait.
        self._dry = False

    async def get(self, wanted: int, timeout: float | None) -> list[T]:
        """Up to ``wanted`` of the next items; empty if none arrived in time."""
        if timeout == 0:
            kept = self.take_kept(wanted)
            if kept:
                return kept
            return await run(lambda: list(self._take(wanted, 0)), late=self.keep)
        waiter = self._join(wanted, timeout)
        if isinstance(waiter, list):
            return waiter
        try:
            return await waiter.future
        except BaseException:
            self._leave(waiter)
            raise
        finally:
            del waiter  # breaks the cycle of the error's traceback, the waiter and the error

    def keep(self, found: Sequence[T]) -> None:
        """Takes back undelivered items. The next caller, or a task that waits already, gets them."""
        with self._lock:
            self._kept.extendleft(reversed(found))
            self._hand_out()
            self._adjust()

    def take_kept(self, wanted: int | None = None) -> list[T]:
        """Up to ``wanted`` (``None``: all) of the retained items."""
        if self._made_in != fork_generation():
            self._reset()
        with self._lock:
            for waiter in [one for one in self._given if one.loop.is_closed()]:
                self._kept.extendleft(reversed(self._given.pop(waiter)))
            count = len(self._kept) if wanted is None else min(wanted, len(self._kept))
            return [self._kept.popleft() for _ in range(count)]

    @property
    def kept(self) -> int:
        """The number of retained items."""
        return len(self._kept)

    # -------------------------------------------------------------------------------- waiters

    def _join(self, wanted: int, timeout: float | None) -> _Waiter[T] | list[T]:
        kept = self.take_kept(wanted)
        if kept:
            return kept
        waiter: _Waiter[T] = _Waiter(wanted, None if timeout is None else _until(timeout))
        with self._lock:
            self._waiters.append(waiter)
            self._hand_out()  # items retained meanwhile
            self._adjust()
        return waiter

    def _leave(self, waiter: _Waiter[T]) -> None:
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self._adjust()
            found = self._given.pop(waiter, [])
        if not waiter.future.done():
            waiter.future.cancel()
        elif not waiter.future.cancelled() and waiter.future.exception() is None:
            found = waiter.future.result()  # the task was cancelled before it could take the items
        if found:
            self.keep(found)

    # ------------------------------------------------------------------------- calls of the source

    def _adjust(self) -> None:
        """Replaces the current call if it no longer matches the waiters. Requires the lock."""
        if self._call is not None:
            wanted = sum(waiter.wanted for waiter in self._waiters)
            sooner = self._deadline()
            late = sooner is not None and (self._asked_until is None or sooner < self._asked_until)
            if self._asked <= wanted and not late:
                return
            if not self._call.cancel():
                return  # the call ends at once, and `_answered` starts the right one
            self._call = None
        self._ask()

    def _deadline(self) -> float | None:
        return min((w.until for w in self._waiters if w.until is not None), default=None)

    def _ask(self) -> None:
        if not self._waiters:
            return
        wanted = min(sum(waiter.wanted for waiter in self._waiters), _check.ITEMS_MAX)
        first = self._waiters[0].wanted
        until: float | None
        if wanted > first and not self._dry:
            # Several tasks wait, and the source may have items for all of them.
            self._asked, until = wanted, 0.0
        else:
            self._asked, until = first, self._deadline()
        self._asked_until = until
        for waiter in self._waiters:
            waiter.asked = True
        asked = self._asked
        self._call = WAITS.call(lambda: self._attempt(asked, until), self._answered)

    def _attempt(self, asked: int, until: float | None) -> Sequence[T]:
        return self._take(asked, None if until is None else max(0.0, until - time.monotonic()))

    def _answered(self, found: Sequence[T] | None, error: BaseException | None) -> None:
        """Handles the end of a call, in its thread."""
        with self._lock:
            waited = self._asked_until != 0.0
            self._call = None
            if error is not None:
                self._fail(error)
            elif found:
                self._dry = False
                self._kept.extend(found)
                self._hand_out()
            elif not waited:
                self._dry = True
            self._expire()
            self._ask()

    def _fail(self, error: BaseException) -> None:
        """Raises the error in all waiters that the failed call served. Later waiters start another call."""
        told = [waiter for waiter in self._waiters if waiter.asked]
        self._waiters = deque(waiter for waiter in self._waiters if not waiter.asked)
        for index, waiter in enumerate(told):
            # Copied, because an error that two tasks raise would show both tracebacks.
            self._settle(waiter, [], copy.copy(error) if index else error)

    def _hand_out(self) -> None:
        while self._kept and self._waiters:
            waiter = self._waiters.popleft()
            count = min(waiter.wanted, len(self._kept))
            self._settle(waiter, [self._kept.popleft() for _ in range(count)], None)

    def _expire(self) -> None:
        now = time.monotonic()
        for waiter in list(self._waiters):
            if waiter.asked and waiter.until is not None and waiter.until <= now:
                self._waiters.remove(waiter)
                self._settle(waiter, [], None)

    def _settle(self, waiter: _Waiter[T], found: list[T], error: BaseException | None) -> None:
        """Completes a waiter's future, in its loop. Requires the lock."""

        def answer() -> None:
            if waiter.future.done():
                return  # the task was cancelled meanwhile, and `_leave` takes the items back
            with self._lock:
                mine = self._given.pop(waiter, None)
            if mine is None:
                return  # the items were taken back
            if error is not None:
                waiter.future.set_exception(error)
            else:
                waiter.future.set_result(mine)

        self._given[waiter] = found
        try:
            waiter.loop.call_soon_threadsafe(answer)
        except RuntimeError:  # the waiter's loop is closed
            self._kept.extendleft(reversed(self._given.pop(waiter)))

    def __del__(self) -> None:
        if self._loss and self._kept and self._made_in == fork_generation():
            text = f"{len(self._kept)} {self._loss}"
            warnings.warn(text, RuntimeWarning, stacklevel=1, source=self)


def _until(timeout: float) -> float:
    return time.monotonic() + timeout
