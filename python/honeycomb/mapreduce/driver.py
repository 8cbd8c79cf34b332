"""The driver (the paper's master process, 5.1): launches tasks, watches, retries, renews, cleans up.

The stages of :meth:`MapReduce.run` are those of :class:`_Run`: plan, map, seal, reduce. Between map
and reduce there is a barrier: reducers start when every map task has committed.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import cloudpickle

from honeycomb import errors
from honeycomb._progress import ProgressBars
from honeycomb.cluster import Client, connect
from honeycomb.job import Job
from honeycomb.mapreduce.errors import MapReduceError, TaskFailed, UserFunctionError
from honeycomb.mapreduce.frames import TRIES_MAX
from honeycomb.mapreduce.plan import Plan, map_prefix, reduce_prefix
from honeycomb.mapreduce.records import default_partition
from honeycomb.mapreduce.result import MemorySampler, Result, StageStats
from honeycomb.mapreduce.tasks import Commit, MapTask, Program, ReduceTask, run_map, run_reduce
from honeycomb.pool import WorkerPool

#: Tasks given to the executor at a time; what waits costs the driver nothing.
IN_FLIGHT_MAX: Final = 256
#: How often progress is told while nothing finishes, in seconds.
PROGRESS_SECONDS: Final = 0.1

#: Trying again cannot help against these: the data is gone, or the same would happen again.
_PERMANENT: Final = (
    errors.PermissionDenied,
    errors.Unauthenticated,
    errors.OutOfMemory,
    errors.QuotaExceeded,
    errors.LeaseExpired,
    errors.DataLost,
    errors.UnknownJob,
    errors.Unavailable,  # the calls inside have waited for the controller as long as they may
    errors.Removed,
    errors.Sealed,
    errors.InvalidArgument,
    errors.ProtocolError,
    BrokenExecutor,
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage is. ``note`` tells of an attempt that failed and is tried again."""

    stage: str
    done: int
    total: int
    running: int
    failures: int
    seconds: float
    note: str = ""


class Reduce(Protocol):
    """``reduce(key, values) -> value``; also the shape of a combiner."""

    def __call__(self, key: Any, values: list[Any], /) -> Any: ...


class MapReduce:
    """A MapReduce program (paper, 5.1).

    ``map(split)`` yields pairs ``(key, value)`` for one input. ``reduce(key, values)`` returns the
    value for a key from the list of all its values, whose order is not defined. ``combine(key,
    values)``, if given, is applied to a map task's own values of a key before they travel, any
    number of times or not at all; often it is the same function as ``reduce``. ``partition(key,
    reducers)`` returns the reducer of a key; without it, a hash of the key that all processes agree
    on (for text, bytes, numbers, ``None`` and tuples of these).

    Keys must be hashable, and have an order unless ``sort=False``: each reducer's output is in order
    of key. Keys and values may be anything that pickles. A reducer holds the values of its partition
    in memory: take more ``reducers`` for more data.

    The functions run in other processes, perhaps more than once for the same split; each committed
    attempt counts exactly once in the output, however many failed or ran twice.
    """

    def __init__(
        self,
        map: Callable[[Any], Iterable[tuple[Any, Any]]],
        reduce: Reduce,
        combine: Reduce | None = None,
        partition: Callable[[Any, int], int] | None = None,
        *,
        sort: bool = True,
    ) -> None:
        self._program = Program(map, reduce, combine, partition or default_partition, sort)

    def run(
        self,
        inputs: Iterable[Any],
        *,
        client: Client | None = None,
        executor: Executor | None = None,
        reducers: int = 8,
        attempts: int = 3,
        progress: Callable[[Progress], None] | bool | None = None,
        name: str | None = None,
        lease: float = 1.0,
        quota_blocks: int = 0,
    ) -> Result:
        """Runs the program over ``inputs`` and returns its :class:`Result`, to be closed.

        There is one map task for each of the ``inputs`` (1 to 4095 of anything that pickles) and
        ``reducers`` reduce tasks (1 to 65,536). They run on ``executor``, any ``concurrent.futures.Executor``
        whose workers reach the cluster; by default on a :class:`~honeycomb.WorkerPool` of this
        machine made for the run. ``client`` defaults to :func:`honeycomb.connect`. ``attempts`` is
        how often each task is tried, the first time included. ``progress`` is called with
        :class:`Progress`, in the calling thread; ``True`` draws bars on stderr. ``name`` is the
        job's (a random one by default), ``lease`` its prefixes' lease in seconds, renewed while it
        runs, and ``quota_blocks`` the most blocks it may hold.

        Raises :class:`UserFunctionError` when one of the functions raises in every attempt,
        :class:`TaskFailed` when a task fails otherwise, and what the cluster raises. Whatever is
        raised, ``KeyboardInterrupt`` included: the tasks are stopped and the memory is given back.
        """
        if not 1 <= attempts <= TRIES_MAX:
            raise errors.InvalidArgument(f"a task is tried 1 to {TRIES_MAX} times, not {attempts}")
        splits = list(inputs)
        with ExitStack() as resources:
            if client is None:
                client = resources.enter_context(connect())
            job = resources.enter_context(
                client.job(
                    name or f"mapreduce-{secrets.token_hex(4)}",
                    lease=lease,
                    quota_blocks=quota_blocks,
                    keep=False,
                )
            )
            sampler = MemorySampler(client.status)
            resources.callback(sampler.stop)
            with _Tasks(executor, max(len(splits), reducers)) as tasks:
                report = _reporter(progress)

                def report_and_sample(told: Progress) -> None:
                    if told.done == told.total:
                        sampler.sample()  # the end of a stage is a turning point
                    report(told)

                run = _Run(job, self._program, splits, reducers, attempts, tasks, report_and_sample)
                commits = run.execute()
            return Result(job, commits, run.stages, sampler, resources.pop_all())


def _reporter(progress: Callable[[Progress], None] | bool | None) -> Callable[[Progress], None]:
    if callable(progress):
        return progress
    if not progress:
        return lambda _: None
    bars = ProgressBars()

    def draw(told: Progress) -> None:
        if told.note:
            bars.note(told.note)
        bars.update(told.stage, told.done, told.total)

    return draw


class _Tasks:
    """The executor of a run. One of its own ends with the run, at once when the run failed; on a
    borrowed one, what has not begun is cancelled, and what runs finds its job gone."""

    def __init__(self, executor: Executor | None, tasks: int) -> None:
        self._own: WorkerPool | None = None
        if executor is None:
            cores = len(os.sched_getaffinity(0))
            executor = self._own = WorkerPool(max(1, min(cores, tasks)))
        self._executor = executor
        self.running: dict[Future[Commit], tuple[int, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        for future in self.running:
            future.cancel()
        if self._own is not None and exc_type is not None:
            self._own.terminate()
        elif self._own is not None:
            self._own.shutdown()

    def submit(self, function: Callable[[Any], Commit], task: Any, index: int, number: int) -> None:
        self.running[self._executor.submit(function, task)] = (index, number)

    def settled(self) -> list[tuple[int, int, Future[Commit]]]:
        """Waits a moment for attempts to end; (task, try, future) of those that did."""
        done, _ = wait(self.running, PROGRESS_SECONDS, FIRST_COMPLETED)
        return [(*self.running.pop(future), future) for future in done]


class _Stage:
    """The tasks of one stage: which wait, how often each was tried, what has committed."""

    def __init__(self, name: str, total: int) -> None:
        self.name = name
        self.waiting = deque(range(total))
        self.tries = [0] * total
        self.commits: list[Commit | None] = [None] * total
        self.done = 0
        self.failures = 0
        self.started = time.monotonic()

    def progress(self, running: int, note: str = "") -> Progress:
        seconds = time.monotonic() - self.started
        return Progress(
            self.name, self.done, len(self.commits), running, self.failures, seconds, note
        )

    def stats(self) -> StageStats:
        commits = [commit for commit in self.commits if commit is not None]
        return StageStats(
            name=self.name,
            seconds=time.monotonic() - self.started,
            tasks=len(commits),
            attempts=sum(self.tries),
            failures=self.failures,
            pairs_in=sum(commit.pairs_in for commit in commits),
            pairs_out=sum(commit.pairs_out for commit in commits),
            bytes=sum(commit.bytes for commit in commits),
        )


class _Run:
    """One run of a program."""

    def __init__(
        self,
        job: Job,
        program: Program,
        splits: Sequence[Any],
        reducers: int,
        attempts: int,
        tasks: _Tasks,
        report: Callable[[Progress], None],
    ) -> None:
        self._job = job
        self._program: bytes = cloudpickle.dumps(program, protocol=5)
        self._splits = splits
        self._reducers = reducers
        self._attempts = attempts
        self._tasks = tasks
        self._report = report
        self.stages: list[StageStats] = []

    def execute(self) -> list[Commit]:
        """Plan, map, seal, reduce. Returns the reducers' commits."""
        plan = Plan(self._job, len(self._splits), self._reducers)

        def map_task(index: int, number: int) -> MapTask:
            split: bytes = cloudpickle.dumps(self._splits[index], protocol=5)
            handle = plan.map_handle(index)
            return MapTask(handle, index, number, self._reducers, self._program, split)

        maps = self._stage("map", len(self._splits), run_map, map_task)
        plan.seal_shuffle()

        def reduce_task(index: int, number: int) -> ReduceTask:
            commits = tuple(
                (one.index, one.attempt, one.frames[index]) for one in maps if one.frames[index]
            )
            return ReduceTask(plan.reduce_handle(index), index, number, self._program, commits)

        def reduced(commit: Commit) -> None:
            plan.free_partition(commit.index)

        return self._stage("reduce", self._reducers, run_reduce, reduce_task, reduced)

    def _stage(
        self,
        name: str,
        total: int,
        function: Callable[[Any], Commit],
        task: Callable[[int, int], Any],
        committed: Callable[[Commit], None] = lambda _: None,
    ) -> list[Commit]:
        """Runs the tasks of a stage until each has committed once."""
        stage = _Stage(name, total)
        running = self._tasks.running
        self._report(stage.progress(0))
        while stage.done < total:
            while stage.waiting and len(running) < IN_FLIGHT_MAX:
                index = stage.waiting.popleft()
                number = stage.tries[index]
                stage.tries[index] += 1
                self._tasks.submit(function, task(index, number), index, number)
            for index, number, future in self._tasks.settled():
                error = _failure(future)
                if error is not None:
                    self._failed(stage, index, number, error)
                elif stage.commits[index] is None:  # the first attempt to commit is the one
                    stage.commits[index] = commit = future.result()
                    stage.done += 1
                    committed(commit)
            self._report(stage.progress(len(running)))
        self.stages.append(stage.stats())
        return [commit for commit in stage.commits if commit is not None]

    def _failed(self, stage: _Stage, index: int, number: int, error: BaseException) -> None:
        """Puts the task back for another attempt, or ends the job."""
        stage.failures += 1
        prefix = map_prefix(index) if stage.name == "map" else reduce_prefix(index)
        address = f"{self._job.name}/{prefix}"
        if isinstance(error, _PERMANENT) or number + 1 >= self._attempts:
            if isinstance(error, MapReduceError):
                raise error from None  # it carries the user's traceback; the worker's adds nothing
            raise TaskFailed(
                f"{address} failed in attempt {number + 1} of {self._attempts}: "
                f"{type(error).__name__}: {error}",
                address,
                number + 1,
            ) from error
        words = repr(error) if isinstance(error, UserFunctionError) else str(error)
        note = f"{address} attempt {number + 1} failed, trying again: {words}"
        self._report(stage.progress(len(self._tasks.running), note))
        stage.waiting.append(index)


def _failure(future: Future[Commit]) -> BaseException | None:
    if future.cancelled():
        return MapReduceError("the executor cancelled the task")
    return future.exception()
