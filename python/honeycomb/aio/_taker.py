"""Those who wait for what one source brings: items of a queue, changes that a listener hears.

However many tasks wait at the same queue object, one native wait is under way for all of them, and
what it brings is handed out in the order in which they came. That is a thread, a connection and a
parked request for each object, not for each task; and it is what makes cancelling safe: what arrives
for a task that was cancelled has somewhere to go.
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
        #: Whether the source has been asked since it came.
        self.asked = False


class Taker(Generic[T]):
    """Takes from a source for whoever waits. Used from any loop and thread.

    ``take(n, wait)`` brings up to ``n`` of the next ones, waiting up to ``wait`` seconds (``None``:
    as long as it takes) for the first; the wait can be interrupted. ``loss`` says what it means when
    what was kept is never asked for.
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
        # What is on its way to somebody, whose loop has not got round to it.
        self._given: dict[_Waiter[T], list[T]] = {}
        self._call: Call | None = None
        # Of the call under way: for how many it asks, and until when it waits.
        self._asked = 0
        self._asked_until: float | None = None
        # Whether the source had nothing when it was last asked without waiting.
        self._dry = False

    async def get(self, wanted: int, timeout: float | None) -> list[T]:
        """Up to ``wanted`` of the next ones; empty when none came in time."""
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
            del waiter  # an error's traceback would hold it, and it the error

    def keep(self, found: Sequence[T]) -> None:
        """Takes back what nobody received: the next who asks gets it, or who waits already."""
        with self._lock:
            self._kept.extendleft(reversed(found))
            self._hand_out()
            self._adjust()

    def take_kept(self, wanted: int | None = None) -> list[T]:
        """Up to ``wanted`` (``None``: all) of what was kept."""
        if self._made_in != fork_generation():
            self._reset()
        with self._lock:
            for waiter in [one for one in self._given if one.loop.is_closed()]:
                self._kept.extendleft(reversed(self._given.pop(waiter)))
            count = len(self._kept) if wanted is None else min(wanted, len(self._kept))
            return [self._kept.popleft() for _ in range(count)]

    @property
    def kept(self) -> int:
        """How many are kept."""
        return len(self._kept)

    # ------------------------------------------------------------------------------ who waits

    def _join(self, wanted: int, timeout: float | None) -> _Waiter[T] | list[T]:
        kept = self.take_kept(wanted)
        if kept:
            return kept
        waiter: _Waiter[T] = _Waiter(wanted, None if timeout is None else _until(timeout))
        with self._lock:
            self._waiters.append(waiter)
            self._hand_out()  # what was kept meanwhile
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
            found = waiter.future.result()  # cancelled before it could look
        if found:
            self.keep(found)

    # ------------------------------------------------------------------------- what is asked for

    def _adjust(self) -> None:
        """Sees to it that the call under way, if any, is the one that is wanted. Under the lock."""
        if self._call is not None:
            wanted = sum(waiter.wanted for waiter in self._waiters)
            sooner = self._deadline()
            late = sooner is not None and (self._asked_until is None or sooner < self._asked_until)
            if self._asked <= wanted and not late:
                return
            if not self._call.cancel():
                return  # it ends at once, and then what is wanted is seen to
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
            # Several wait and there may be something for all of them.
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
        """The end of a call, in its thread."""
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
        """Tells everybody who had been asked for. Who came later asks for himself."""
        told = [waiter for waiter in self._waiters if waiter.asked]
        self._waiters = deque(waiter for waiter in self._waiters if not waiter.asked)
        for index, waiter in enumerate(told):
            # One that two tasks raise would show both their tracebacks.
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
        """Answers somebody, in his loop. Under the lock."""

        def answer() -> None:
            if waiter.future.done():
                return  # cancelled on the way: he gives it back
            with self._lock:
                mine = self._given.pop(waiter, None)
            if mine is None:
                return  # given back
            if error is not None:
                waiter.future.set_exception(error)
            else:
                waiter.future.set_result(mine)

        self._given[waiter] = found
        try:
            waiter.loop.call_soon_threadsafe(answer)
        except RuntimeError:  # his loop is closed
            self._kept.extendleft(reversed(self._given.pop(waiter)))

    def __del__(self) -> None:
        if self._loss and self._kept and self._made_in == fork_generation():
            text = f"{len(self._kept)} {self._loss}"
            warnings.warn(text, RuntimeWarning, stacklevel=1, source=self)


def _until(timeout: float) -> float:
    return time.monotonic() + timeout
