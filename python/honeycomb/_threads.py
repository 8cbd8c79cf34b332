"""Threads for blocking calls of callers that must not block: asyncio, and displays in notebooks.

asyncio's own executor has few threads, and a handful of blocked calls would occupy them all. A
:class:`Crew` has its own threads. It starts one when there is work and no idle thread, up to its limit;
further calls are queued. A thread that stays idle for a while ends.

:meth:`Call.cancel` ends a waiting call: the thread's native wait ends as if its timeout had passed. If it
still returns a result, ``done`` receives it. Threads are daemons, so that a call without a caller does not
keep the process running. When the process ends, it interrupts the threads and waits for them briefly,
because a native thread must not return to an interpreter that is gone.
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

#: Time after which an idle thread ends, in seconds.
IDLE_SECONDS: Final = 10.0
#: Longest wait for threads that are in a call when the process ends, in seconds.
FAREWELL_SECONDS: Final = 2.0


class Call:
    """One call: queued, running in a thread, or finished."""

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
        """Removes the call from the queue and returns True: it will not run, and ``done`` is not called.
        If it runs already, ends its wait and returns False: ``done`` is called as usual."""
        with self._crew._lock:
            if self._thread is not None:
                self._thread.interrupt.set()
                return False
            return self._withdraw()

    def withdraw(self) -> bool:
        """Removes the call from the queue if it is still there, and returns whether it was: then it will
        not run, and ``done`` is not called."""
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
    """Up to ``limit`` threads. ``limit`` may be changed; a lower limit takes effect as threads end."""

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
        """The number of threads."""
        return len(self._threads)

    @property
    def full(self) -> bool:
        """Whether as many threads as the limit allows are in a call."""
        return len(self._busy) >= self.limit

    def call(
        self,
        function: Callable[[], Any],
        done: Callable[[Any, BaseException | None], object],
    ) -> Call:
        """Runs ``function`` in a thread, and then ``done`` in the same thread with its value or error."""
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
                "%d calls of this process are waiting, the most that may wait; further calls are "
                "queued (honeycomb.aio.waiting_limit() raises the limit)",
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
                raise  # otherwise the threads that exist will run the call

    def _work(self, me: _Thread) -> None:
        me.interrupt.adopt()
        while (call := self._next(me)) is not None:
            value, error = None, None
            try:
                value = call._function()
            except BaseException as caught:  # noqa: BLE001 - passed to the caller's `done`
                error = caught
            with self._lock:
                # From here on, cancelling this call must not interrupt the thread's next wait.
                call._thread = None
                self._busy.discard(me)
                me.interrupt.clear()
            call._done(value, error)
            # Drop the references, so that an idle thread keeps no objects alive.
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

#: Short calls, which end within the client's timeout.
CALLS: Final = Crew("call", 32)
#: Calls that wait for an item or a change.
WAITS: Final = Crew(WAITERS, 256)
#: Puts that wait for room. They have their own crew, because the calls that make room must not be queued
#: behind the puts that wait for it.
PUTS: Final = Crew("put", 256)


def _after_fork() -> None:
    # The parent's threads do not exist here, and their locks are never released.
    for crew in list(_crews):
        crew._reset()


@atexit.register
def _end() -> None:
    deadline = time.monotonic() + FAREWELL_SECONDS
    for crew in list(_crews):
        crew._end(deadline)


os.register_at_fork(after_in_child=_after_fork)
