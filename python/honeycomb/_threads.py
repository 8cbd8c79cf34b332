"""Threads for calls that block, for those who must not: asyncio, and displays in notebooks.

asyncio's own executor has few threads, which a handful of blocked calls would take from everybody
else. A :class:`Crew` has threads of its own: started when there is work and nobody idle, up to its
limit; work beyond that awaits its turn. A thread that had nothing to do for a while ends.

A call that waits can be ended by :meth:`Call.cancel`: the thread's native wait ends as if its time
were up, and what it brings all the same is handed to whoever asked for it. Threads are daemons, so
that a call that nobody awaits any more does not keep the process; at its end they are told to stop
and given a moment, because a native thread must not come back to an interpreter that is gone.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from honeycomb._native import NativeInterrupt

_log: Final = logging.getLogger("honeycomb")

#: How long a thread stays without work, in seconds.
IDLE_SECONDS: Final = 10.0
#: How long the end of the process waits for threads that are in a call, in seconds.
FAREWELL_SECONDS: Final = 2.0


class Call:
    """One call on its way: in line, in a thread, or finished."""

    __slots__ = ("_crew", "_done", "_function", "_thread")

    def __init__(
        self,
        crew: Crew,
        function: Callable[[], Any],
        done: Callable[[Any, BaseException | None], object],
    ) -> None:
        self._crew = crew
        self._function = function
        self._done = done
        self._thread: _Thread | None = None

    def cancel(self) -> bool:
        """Takes it out of the line (true: it will not run, and ``done`` is not called), or ends its
        wait, in which case ``done`` is called as for any other."""
        with self._crew._lock:
            if self._thread is not None:
                self._thread.interrupt.set()
                return False
            return self._withdraw()

    def withdraw(self) -> bool:
        """Takes it out of the line when it is still there: it will not run, and ``done`` is not
        called."""
        with self._crew._lock:
            return self._withdraw()

    def _withdraw(self) -> bool:
        try:
            self._crew._line.remove(self)
        except ValueError:
            return False
        return True


class _Thread:
    __slots__ = ("interrupt", "thread")

    def __init__(self, crew: Crew, number: int) -> None:
        self.interrupt = NativeInterrupt()
        self.thread = threading.Thread(
            target=crew._work, args=(self,), name=f"honeycomb-{crew.name}-{number}", daemon=True
        )


class Crew:
    """Up to ``limit`` threads. ``limit`` may be changed; fewer take effect as threads end."""

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self._reset()
        _crews.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._work_came = threading.Condition(self._lock)
        self._line: deque[Call] = deque()
        self._threads: set[_Thread] = set()
        self._busy: set[_Thread] = set()
        self._idle = 0
        self._started = 0
        self._ending = False
        self._told = False

    @property
    def size(self) -> int:
        """How many threads there are."""
        return len(self._threads)

    @property
    def full(self) -> bool:
        """Whether every thread that there may be is in a call."""
        return len(self._busy) >= self.limit

    def call(
        self,
        function: Callable[[], Any],
        done: Callable[[Any, BaseException | None], object],
    ) -> Call:
        """Runs ``function`` in a thread, and then ``done`` there with its value or its error."""
        call = Call(self, function, done)
        with self._lock:
            if self._ending:
                raise RuntimeError("the interpreter is shutting down")
            self._line.append(call)
            if self._idle >= len(self._line):
                self._work_came.notify()
                return call
            if len(self._threads) < self.limit:
                self._start()
                return call
            crowded = self.name == WAITERS and not self._told
            self._told = self._told or crowded
        if crowded:
            _log.warning(
                "%d calls of this process wait already; more of them await their turn "
                "(honeycomb.aio.waiting_limit() raises the limit)",
                self.limit,
            )
        return call

    def _start(self) -> None:
        self._started += 1
        thread = _Thread(self, self._started)
        self._threads.add(thread)
        try:
            thread.thread.start()
        except BaseException:
            self._threads.discard(thread)
            if not self._threads:
                raise  # otherwise those that there are will do it

    def _work(self, me: _Thread) -> None:
        me.interrupt.adopt()
        while (call := self._next(me)) is not None:
            value, error = None, None
            try:
                value = call._function()
            except BaseException as caught:  # noqa: BLE001 - whoever asked is told
                error = caught
            with self._lock:
                # From here on nobody may end a wait by this call.
                call._thread = None
                self._busy.discard(me)
                me.interrupt.clear()
            call._done(value, error)
            # Nothing of it is kept while there is nothing to do.
            del call, value, error

    def _next(self, me: _Thread) -> Call | None:
        with self._lock:
            deadline = time.monotonic() + IDLE_SECONDS
            while not self._line:
                left = deadline - time.monotonic()
                if left <= 0 or self._ending or len(self._threads) > self.limit:
                    self._threads.discard(me)
                    return None
                self._idle += 1
                self._work_came.wait(left)
                self._idle -= 1
            call = self._line.popleft()
            call._thread = me
            self._busy.add(me)
            return call

    def _end(self, deadline: float) -> None:
        with self._lock:
            self._ending = True
            self._line.clear()
            for thread in self._busy:
                thread.interrupt.set()
            self._work_came.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.thread.join(max(0.0, deadline - time.monotonic()))


WAITERS: Final = "wait"
_crews: weakref.WeakSet[Crew] = weakref.WeakSet()

#: Short calls, which end by the client's timeout.
CALLS: Final = Crew("call", 32)
#: Calls that wait for something to come: an item, a change.
WAITS: Final = Crew(WAITERS, 256)
#: Puts that wait for room. Not among the others: those who make room must not stand in line behind
#: those who wait for it.
PUTS: Final = Crew("put", 256)


def _after_fork() -> None:
    # The parent's threads are not here, and what they held is held for ever.
    for crew in list(_crews):
        crew._reset()


@atexit.register
def _end() -> None:
    deadline = time.monotonic() + FAREWELL_SECONDS
    for crew in list(_crews):
        crew._end(deadline)


os.register_at_fork(after_in_child=_after_fork)
