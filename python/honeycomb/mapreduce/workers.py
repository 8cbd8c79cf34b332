"""The executor of a run: the run's own pool, which is replaced when it breaks, or the caller's."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from typing import Any, Final, Self

from honeycomb.mapreduce.errors import ExecutorBroken
from honeycomb.mapreduce.interrupts import Interrupts
from honeycomb.mapreduce.stage import Attempt
from honeycomb.mapreduce.tasks import Commit
from honeycomb.pool import WorkerPool

#: Interval at which the driver checks for progress, stragglers and cancellation while no task
#: finishes, in seconds.
LOOK_SECONDS: Final = 0.1
#: Most pools that a run makes, including the first one.
POOLS_MAX: Final = 4


class Workers:
    """The running attempts on an executor.

    The run's own pool ends with the run, at once if the run failed. On the caller's executor, attempts
    that have not begun are cancelled. Running attempts are killed if the executor supports that
    (:meth:`WorkerPool.kill`); otherwise their next access to the job fails.

    Running futures and the run's own pool are used only while interrupts are deferred: an exception in
    ``Condition.__enter__`` leaves a future locked, and the pool's threads then wait for it forever.
    """

    def __init__(
        self, executor: Executor | None, tasks: int, speculating: bool, interrupts: Interrupts
    ) -> None:
        self._interrupts = interrupts
        self._own = executor is None
        cores = len(os.sched_getaffinity(0))
        # The copy of a task that hangs needs a second worker.
        self._size = max(2 if speculating else 1, min(cores, tasks))
        self._executor = WorkerPool(self._size) if executor is None else executor
        self._pools = 1
        self._settled: list[tuple[Attempt, Future[Commit] | None]] = []
        #: Messages for users about pools that broke. The driver reports and removes them.
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
        """Whether an attempt that is submitted now would begin at once, as far as the executor shows it."""
        if isinstance(self._executor, WorkerPool):
            return len(self.running) < self._executor.max_workers
        return True

    def submit(self, function: Callable[[Any], Commit], task: Any, attempt: Attempt) -> None:
        """Submits an attempt to the executor. Raises :class:`ExecutorBroken`."""
        # The caller's executor may wait for room for as long as its tasks take.
        with self._interrupts.deferred() if self._own else contextlib.nullcontext():
            while True:
                try:
                    self.running[self._executor.submit(function, task)] = attempt
                    return
                except BrokenExecutor as error:
                    self._replace(error)
                except RuntimeError as error:  # executors raise this after they were shut down
                    raise self._broken(error) from error

    def settled(self) -> list[tuple[Attempt, Future[Commit] | None]]:
        """Waits briefly for attempts to end. Returns the ended attempts with their futures, or with
        ``None`` if the attempt was lost with its pool. Raises :class:`ExecutorBroken`."""
        with self._interrupts.deferred():
            done, _ = wait(self.running, LOOK_SECONDS, FIRST_COMPLETED)
            broken = next((error for future in done if (error := _break_of(future))), None)
            if broken is not None:
                self._replace(broken)
            else:
                self._settled += [(self.running.pop(future), future) for future in done]
            settled, self._settled = self._settled, []
            # If two attempts of a task ended since the last call, the committed attempt counts.
            settled.sort(key=lambda one: one[1] is None or _failed(one[1]))
            self._note_begun()
        return settled

    def _note_begun(self) -> None:
        now = time.monotonic()
        for future, attempt in self.running.items():
            if attempt.begun is None and future.running():
                attempt.begun = now

    def others(self, index: int) -> bool:
        """Whether an attempt of this task is running."""
        return any(attempt.index == index for attempt in self.running.values())

    def abandon(self, index: int) -> bool:
        """Ends the other attempts of a task that has committed. Returns whether there were any."""
        losers = [future for future, attempt in self.running.items() if attempt.index == index]
        with self._interrupts.deferred():
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
        """Replaces a broken pool by a new one. Attempts that had not finished are lost."""
        if not self._own:
            raise self._broken(error) from error
        assert isinstance(self._executor, WorkerPool)
        self._executor.terminate()
        if self._pools == POOLS_MAX:
            raise ExecutorBroken(
                f"{POOLS_MAX} worker pools broke, one after another; cause of the last: {error}"
            ) from error
        for future, attempt in self.running.items():
            self._settled.append((attempt, None if _failed(future) else future))
        self.running.clear()
        self._pools += 1
        self.notes.append(f"the worker pool broke, and its tasks continue in a new pool: {error}")
        self._executor = WorkerPool(self._size)

    def _broken(self, error: BaseException) -> ExecutorBroken:
        return ExecutorBroken(
            f"the executor ({type(self._executor).__name__}) accepts no more tasks: {error}; "
            "pass another executor, or None to let the run make its own pool"
        )


def _failed(future: Future[Commit]) -> bool:
    return not future.done() or future.cancelled() or future.exception() is not None


def _break_of(future: Future[Commit]) -> BrokenExecutor | None:
    error = None if future.cancelled() else future.exception()
    return error if isinstance(error, BrokenExecutor) else None
