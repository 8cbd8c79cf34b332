"""The executor of a run: one's own pool, which is replaced when it breaks, or a borrowed one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from typing import Any, Final, Self

from honeycomb.mapreduce.errors import ExecutorBroken
from honeycomb.mapreduce.stage import Attempt
from honeycomb.mapreduce.tasks import Commit
from honeycomb.pool import WorkerPool

#: How often the driver looks around while nothing finishes, in seconds: for progress, stragglers,
#: and whether the run was cancelled.
LOOK_SECONDS: Final = 0.1
#: Pools of its own that a run makes, the first one included.
POOLS_MAX: Final = 4


class Workers:
    """The attempts that run, on an executor.

    A pool of its own ends with the run, at once when the run failed. On a borrowed executor what has
    not begun is cancelled, and what runs is ended where it can be (:meth:`WorkerPool.kill`), else it
    finds its job gone.
    """

    def __init__(self, executor: Executor | None, tasks: int, speculating: bool) -> None:
        self._own = executor is None
        cores = len(os.sched_getaffinity(0))
        # A copy of a task that hangs needs a second worker.
        self._size = max(2 if speculating else 1, min(cores, tasks))
        self._executor = WorkerPool(self._size) if executor is None else executor
        self._pools = 1
        self._settled: list[tuple[Attempt, Future[Commit] | None]] = []
        #: What people may want to know: a pool that broke. Whoever tells it empties the list.
        self.notes: list[str] = []
        self.running: dict[Future[Commit], Attempt] = {}

    def close(self) -> None:
        """Ends the workers of a run that succeeded. Idempotent."""
        if self._own:
            self._executor.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        for future in list(self.running):
            self._end(future)
        if self._own and exc_type is not None:
            assert isinstance(self._executor, WorkerPool)
            self._executor.terminate()
        self.close()

    @property
    def room(self) -> bool:
        """Whether an attempt that is submitted now would begin at once, as far as that is known."""
        if isinstance(self._executor, WorkerPool):
            return len(self.running) < self._executor.max_workers
        return True

    def submit(self, function: Callable[[Any], Commit], task: Any, attempt: Attempt) -> None:
        """Gives an attempt to the executor. Raises :class:`ExecutorBroken`."""
        while True:
            try:
                self.running[self._executor.submit(function, task)] = attempt
                return
            except BrokenExecutor as error:
                self._replace(error)
            except RuntimeError as error:  # how executors say that they were shut down
                raise self._broken(error) from error

    def settled(self) -> list[tuple[Attempt, Future[Commit] | None]]:
        """Waits a moment for attempts to end; those that did, with their futures, or ``None`` where
        the attempt was lost with its pool. Raises :class:`ExecutorBroken`."""
        done, _ = wait(self.running, LOOK_SECONDS, FIRST_COMPLETED)
        broken = next((error for future in done if (error := _break_of(future))), None)
        if broken is not None:
            self._replace(broken)
        else:
            self._settled += [(self.running.pop(future), future) for future in done]
        settled, self._settled = self._settled, []
        # Of two attempts of a task that ended in the same moment, the one that committed counts.
        settled.sort(key=lambda one: one[1] is None or _failed(one[1]))
        self._note_begun()
        return settled

    def _note_begun(self) -> None:
        now = time.monotonic()
        for future, attempt in self.running.items():
            if attempt.begun is None and future.running():
                attempt.begun = now

    def others(self, index: int) -> bool:
        """Whether an attempt of this task runs."""
        return any(attempt.index == index for attempt in self.running.values())

    def abandon(self, index: int) -> bool:
        """Ends the attempts of a task that has committed; tells whether there were any."""
        losers = [future for future, attempt in self.running.items() if attempt.index == index]
        for future in losers:
            del self.running[future]
            self._end(future)
        return bool(losers)

    def _end(self, future: Future[Commit]) -> None:
        if isinstance(self._executor, WorkerPool):
            self._executor.kill(future)
        else:
            future.cancel()

    def _replace(self, error: BrokenExecutor) -> None:
        """Takes a new pool for one that broke. What ran there and did not finish is lost."""
        if not self._own:
            raise self._broken(error) from error
        assert isinstance(self._executor, WorkerPool)
        self._executor.terminate()
        if self._pools == POOLS_MAX:
            raise ExecutorBroken(
                f"{POOLS_MAX} worker pools broke, one after another; the last one because: {error}"
            ) from error
        for future, attempt in self.running.items():
            self._settled.append((attempt, None if _failed(future) else future))
        self.running.clear()
        self._pools += 1
        self.notes.append(f"the worker pool broke, and its tasks go on in a new one: {error}")
        self._executor = WorkerPool(self._size)

    def _broken(self, error: BaseException) -> ExecutorBroken:
        return ExecutorBroken(
            f"the executor ({type(self._executor).__name__}) takes no more tasks: {error}; "
            "pass one that works, or none for a pool of the run's own"
        )


def _failed(future: Future[Commit]) -> bool:
    return not future.done() or future.cancelled() or future.exception() is not None


def _break_of(future: Future[Commit]) -> BrokenExecutor | None:
    error = None if future.cancelled() else future.exception()
    return error if isinstance(error, BrokenExecutor) else None
