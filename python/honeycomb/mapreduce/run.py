"""One run of a program: sample (for a total order), map, seal, reduce, with retries and copies.

There is a barrier between map and reduce: reducers start when every map task has committed.
"""

from __future__ import annotations

import dataclasses
import pickle
import time
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass
from typing import Any, Final, Protocol

import cloudpickle

from honeycomb import errors
from honeycomb.job import Job
from honeycomb.mapreduce import ranges, skew
from honeycomb.mapreduce.counters import total_counts
from honeycomb.mapreduce.errors import (
    Cancelled,
    KeyOrderError,
    MapReduceError,
    NotPicklable,
    TaskFailed,
    UserFunctionError,
)
from honeycomb.mapreduce.plan import Plan, map_prefix, reduce_prefix
from honeycomb.mapreduce.progress import Listener
from honeycomb.mapreduce.result import StageStats
from honeycomb.mapreduce.stage import Attempt, Speculation, Stage
from honeycomb.mapreduce.tasks import (
    Commit,
    MapTask,
    Program,
    ReduceTask,
    run_map,
    run_reduce,
    run_sample,
)
from honeycomb.mapreduce.workers import Workers

#: Most tasks submitted to the executor at a time. Tasks that wait longer cost the driver nothing.
IN_FLIGHT_MAX: Final = 256
#: Most characters of an input's name in errors.
ORIGIN_CHARS: Final = 300

#: Errors that a retry cannot fix: the data is gone, or the retry would fail in the same way.
_PERMANENT: Final = (
    errors.PermissionDenied,
    errors.Unauthenticated,
    errors.OutOfMemory,
    errors.QuotaExceeded,
    errors.LeaseExpired,
    errors.DataLost,
    errors.UnknownJob,
    errors.Unavailable,  # the failed call has already retried until its deadline
    errors.Removed,
    errors.Sealed,
    errors.InvalidArgument,
    errors.ProtocolError,
    BrokenExecutor,
    KeyOrderError,
    NotPicklable,
)


class CancelSignal(Protocol):
    """A signal to stop, such as a ``threading.Event``."""

    def is_set(self) -> bool:
        """Whether the run must stop."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run."""

    reducers: int
    attempts: int
    total_order: bool
    speculation: Speculation | None
    cancel: CancelSignal | None


class Run:
    """Runs a program. Afterwards ``stages``, ``counters`` and ``loads`` (the bytes received by each
    reducer) have its statistics."""

    def __init__(
        self,
        job: Job,
        program: Program,
        splits: Sequence[Any],
        options: Options,
        workers: Workers,
        report: Listener,
    ) -> None:
        self._job = job
        self._program = program
        self._pickled = _pickle_program(program)
        self._splits = splits
        self._options = options
        self._workers = workers
        self._report = report
        self.stages: list[StageStats] = []
        self.counters: dict[str, int] = {}
        self.loads = [0] * options.reducers

    def execute(self) -> list[Commit]:
        """Runs the stages; returns the reducers' commits."""
        plan = Plan(self._job, len(self._splits), self._options.reducers)
        everything = range(len(self._splits))
        if self._options.total_order:
            self._choose_ranges(plan)

        def mapped(commit: Commit, beaten: bool) -> Commit:
            for reducer, size in commit.loads.items():
                self.loads[reducer] += size
            return dataclasses.replace(commit, loads={})  # added to the sums; saves driver memory

        books = self._map_stage("map", everything)
        maps = self._carry_out(books, run_map, self._map_tasks(plan, everything), mapped)
        plan.seal_shuffle()

        def reduce_task(attempt: Attempt) -> ReduceTask:
            index = attempt.index
            commits = tuple(
                (one.index, one.attempt, one.frames[index]) for one in maps if one.frames[index]
            )
            handle = plan.reduce_handle(index)
            return ReduceTask(handle, index, attempt.number, self._pickled, commits)

        def reduced(commit: Commit, beaten: bool) -> Commit:
            plan.free_partition(commit.index)
            if beaten:  # a losing attempt may still run, and must not append to the output
                plan.seal_output(commit.index)
            return commit

        reducers = range(self._options.reducers)
        addresses = [f"{self._job.name}/{reduce_prefix(index)}" for index in reducers]
        books = self._new_stage("reduce", addresses, [""] * len(addresses))
        self._tell(books, skew.warning(self.loads))
        reduces = self._carry_out(books, run_reduce, reduce_task, reduced)
        self.counters = total_counts(one.counters for one in (*maps, *reduces))
        return reduces

    def _choose_ranges(self, plan: Plan) -> None:
        """Samples the map output and gives each reducer a range of keys."""
        splits = len(self._splits)
        count = min(ranges.SAMPLE_TASKS, splits)
        # The middles of equal parts of the inputs.
        chosen = [(2 * one + 1) * splits // (2 * count) for one in range(count)]
        books = self._map_stage("sample", chosen)
        samples = self._carry_out(books, run_sample, self._map_tasks(plan, chosen))
        places = [place for one in samples for place, _ in pickle.loads(one.sample)]
        points = ranges.split_points(places, self._options.reducers)
        partition = ranges.RangePartition(points, self._program.sort_key)
        self._pickled = _pickle_program(dataclasses.replace(self._program, partition=partition))

    # ------------------------------------------------------------------------ tasks of a stage

    def _map_stage(self, name: str, indexes: Sequence[int]) -> Stage:
        return self._new_stage(
            name,
            [f"{self._job.name}/{map_prefix(index)}" for index in indexes],
            [origin_of(self._splits[index]) for index in indexes],
        )

    def _new_stage(self, name: str, addresses: list[str], origins: list[str]) -> Stage:
        speculation = self._options.speculation
        return Stage(name, addresses, origins, time.monotonic(), speculation)

    def _map_tasks(self, plan: Plan, indexes: Sequence[int]) -> Callable[[Attempt], MapTask]:
        """A function that makes the map tasks for the inputs with these indexes."""

        def make(attempt: Attempt) -> MapTask:
            index = indexes[attempt.index]
            split = self._splits[index]
            try:
                pickled: bytes = cloudpickle.dumps(split, protocol=5)
            except Exception as error:
                raise NotPicklable(
                    f"input {index}, a {type(split).__qualname__}, cannot be pickled: {error}"
                ) from error
            return MapTask(
                plan.map_handle(index),
                index,
                attempt.number,
                self._options.reducers,
                self._pickled,
                pickled,
                origin_of(split),
            )

        return make

    # ---------------------------------------------------------------------------- one stage

    def _carry_out(
        self,
        books: Stage,
        function: Callable[[Any], Commit],
        task: Callable[[Attempt], Any],
        committed: Callable[[Commit, bool], Commit] = lambda commit, beaten: commit,
    ) -> list[Commit]:
        """Runs the tasks of a stage until each has committed once. ``committed`` receives each commit, and
        whether another attempt of the task was still running, and returns the commit to keep."""
        running = self._workers.running

        def submit(attempt: Attempt) -> None:
            self._workers.submit(function, task(attempt), attempt)

        self._tell(books)
        while books.done < books.total:
            if self._options.cancel is not None and self._options.cancel.is_set():
                raise Cancelled(f"{self._job.name} was cancelled in its {books.name} stage")
            while books.waiting and len(running) < IN_FLIGHT_MAX:
                submit(books.attempt(books.waiting.popleft()))
            for attempt, future in self._workers.settled():
                self._settle(books, attempt, future, committed)
            while self._workers.notes:
                self._tell(books, self._workers.notes.pop(0))
            for index in books.stragglers(running.values(), time.monotonic()):
                if self._workers.room:
                    submit(books.attempt(index, copy=True))
                    note = f"{books.addresses[index]} is slow; a second attempt of it was started"
                    self._tell(books, note)
            self._tell(books)
        self.stages.append(books.stats(time.monotonic()))
        return [commit for commit in books.commits if commit is not None]

    def _tell(self, books: Stage, note: str = "") -> None:
        self._report(books.progress(time.monotonic(), len(self._workers.running), note))

    def _settle(
        self,
        books: Stage,
        attempt: Attempt,
        future: Future[Commit] | None,
        committed: Callable[[Commit, bool], Commit],
    ) -> None:
        """Records the end of an attempt. Raises if that ends the run."""
        if books.commits[attempt.index] is not None:
            return  # another attempt of the task committed first, so this one is ignored
        if future is None:
            self._try_again(books, attempt)
            return
        error = _failure(future)
        if error is not None:
            self._failed(books, attempt, error)
            return
        beaten = self._workers.abandon(attempt.index)
        books.commit(attempt, committed(future.result(), beaten))

    def _try_again(self, books: Stage, attempt: Attempt) -> None:
        if not self._workers.others(attempt.index) and attempt.index not in books.waiting:
            books.waiting.append(attempt.index)

    def _failed(self, books: Stage, attempt: Attempt, error: BaseException) -> None:
        """Queues the task for another attempt, or raises the error that ends the run."""
        failed = books.fail(attempt)
        last = failed >= self._options.attempts and not self._workers.others(attempt.index)
        if last or isinstance(error, _PERMANENT):
            raise _final(
                error,
                books.addresses[attempt.index],
                books.origins[attempt.index],
                attempt.number + 1,
                self._options.attempts,
            )
        self._try_again(books, attempt)
        words = repr(error) if isinstance(error, UserFunctionError) else str(error)
        address = books.addresses[attempt.index]
        note = f"{address} attempt {attempt.number + 1} failed and is retried: {words}"
        self._tell(books, note)


def _final(
    error: BaseException, address: str, origin: str, attempt: int, attempts: int
) -> TaskFailed:
    """The error of the run for a task's last failure."""
    if isinstance(error, TaskFailed):
        if not error.address:
            error = type(error)(f"{address}: {error}", address, attempt)
        # The message is complete; the worker's traceback would add nothing.
        error.__cause__, error.__suppress_context__ = None, True
        return error
    tried = f"in attempt {attempt} of {max(attempt, attempts)}"
    where = f"map of {origin} failed: {address} {tried}" if origin else f"{address} failed {tried}"
    # The library's own errors are full sentences; other errors need their type's name.
    own = isinstance(error, MapReduceError)
    words = str(error) if own else f"{type(error).__name__}: {error}"
    failure = TaskFailed(f"{where}: {words}", address, attempt)
    failure.__cause__ = error
    return failure


def origin_of(split: Any) -> str:
    """The name of an input, for inputs with an ``origin``, as those of :mod:`.inputs` have."""
    origin = getattr(split, "origin", "")
    return origin[:ORIGIN_CHARS] if isinstance(origin, str) else ""


def _failure(future: Future[Commit]) -> BaseException | None:
    if future.cancelled():
        return MapReduceError("the executor cancelled the task")
    return future.exception()


def _pickle_program(program: Program) -> bytes:
    try:
        pickled: bytes = cloudpickle.dumps(program, protocol=5)
        return pickled
    except Exception as error:
        for field in dataclasses.fields(program):
            try:
                cloudpickle.dumps(getattr(program, field.name), protocol=5)
            except Exception as reason:  # noqa: BLE001 - pickling runs the user's code
                raise NotPicklable(
                    f"the {field.name} function cannot be pickled, and so cannot be sent to "
                    f"workers: {reason}"
                ) from error
        raise
