"""The driver (the paper's master process, 5.1): the options of a program, and the start and end of a
run. :mod:`honeycomb.mapreduce.run` runs the stages in between."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import ExitStack
from typing import Any, Literal, Protocol

from honeycomb import errors
from honeycomb.cluster import Client, connect
from honeycomb.mapreduce.errors import Cancelled
from honeycomb.mapreduce.frames import TRIES_MAX
from honeycomb.mapreduce.interrupts import Interrupts
from honeycomb.mapreduce.progress import Progress, Wanted, reporter
from honeycomb.mapreduce.records import default_partition
from honeycomb.mapreduce.result import MemorySampler, Result
from honeycomb.mapreduce.run import CancelSignal, Options, Run
from honeycomb.mapreduce.stage import Speculation
from honeycomb.mapreduce.tasks import Program
from honeycomb.mapreduce.workers import Workers


class Reduce(Protocol):
    """``reduce(key, values) -> value``; also the shape of a combiner."""

    def __call__(self, key: Any, values: list[Any], /) -> Any: ...


class MapReduce:
    """A MapReduce program (paper, 5.1).

    ``map(split)`` yields pairs ``(key, value)`` for one input. ``reduce(key, values)`` returns the
    value for a key from the list of all its values, in undefined order. ``combine(key, values)``, if
    given, is applied to the values of a key within a map task before they are sent, any number of
    times or not at all; it is often the same function as ``reduce``. ``partition(key, reducers)``
    returns the reducer of a key. The default is a hash of the key that is the same in all processes
    (for text, bytes, numbers, ``None`` and tuples of these).

    Keys must be hashable, and have an order unless ``sort=False``. Each reducer's output is in order
    of key, or of ``sort_key(key)`` if given. With ``sort="total"`` the reducers' outputs, one after
    another, are in order too: each reducer gets a range of keys instead of a share of the hashes. To find
    the ranges, up to 16 of the map tasks first run on their first 65,536 pairs. The map function must
    therefore yield the same pairs for the same split, as it must for retried tasks. A total order takes
    no ``partition``.

    Keys and values may be any objects that can be pickled. A map task buffers its pairs until they
    reach about 128 MiB or 524,288 pairs, then combines them and writes them out. A reducer holds the
    values of its partition in memory: use more ``reducers`` for more data. A single heavy key cannot be
    divided, but ``combine`` can make it lighter.

    The functions run in other processes, possibly more than once for the same split. The output
    contains the result of each task exactly once, however many attempts failed or ran twice. Raises
    :class:`~honeycomb.errors.InvalidArgument` if an argument is not a function.
    """

    def __init__(
        self,
        map: Callable[[Any], Iterable[tuple[Any, Any]]],
        reduce: Reduce,
        combine: Reduce | None = None,
        partition: Callable[[Any, int], int] | None = None,
        *,
        sort: bool | Literal["total"] = True,
        sort_key: Callable[[Any], Any] | None = None,
    ) -> None:
        for name, function, needed in (
            ("map", map, True),
            ("reduce", reduce, True),
            ("combine", combine, False),
            ("partition", partition, False),
            ("sort_key", sort_key, False),
        ):
            if not callable(function) and (needed or function is not None):
                raise errors.InvalidArgument(
                    f"{name} is a function, not {function!r} of type {type(function).__name__}"
                )
        if sort not in (True, False, "total"):
            raise errors.InvalidArgument(f"sort is True, False or 'total', not {sort!r}")
        if sort == "total" and partition is not None:
            raise errors.InvalidArgument("sort='total' partitions by itself: leave partition out")
        if sort_key is not None and not sort:
            raise errors.InvalidArgument("sort_key has no effect with sort=False: leave one out")
        self._total_order = sort == "total"
        self._program = Program(
            map, reduce, combine, partition or default_partition, bool(sort), sort_key
        )

    def run(
        self,
        inputs: Iterable[Any],
        *,
        client: Client | None = None,
        executor: Executor | None = None,
        reducers: int = 8,
        attempts: int = 3,
        speculate: bool | Speculation = True,
        progress: Wanted = None,
        cancel: CancelSignal | None = None,
        name: str | None = None,
        lease: float | None = None,
        quota_blocks: int = 0,
    ) -> Result:
        """Runs the program over ``inputs`` and returns its :class:`Result`, which the caller must close.

        There is one map task for each of the ``inputs`` (1 to 4095 objects that can be pickled;
        :mod:`honeycomb.mapreduce.inputs` makes them from files) and ``reducers`` reduce tasks (1 to
        65,536). They run on ``executor``, any ``concurrent.futures.Executor`` whose workers can reach
        the cluster. The default is a :class:`~honeycomb.WorkerPool` of this machine, made for the run and
        replaced up to three times if it breaks. ``client`` defaults to :func:`honeycomb.connect`.
        ``attempts`` is how often each task may fail. A task that takes much longer than the others gets a
        second, concurrent attempt, as ``speculate`` defines (:class:`Speculation`; ``False`` for never).

        ``progress`` is called with :class:`Progress`, in the calling thread; ``True`` draws bars on
        stderr, and a list combines several of these. An exception that it raises ends the run. When
        ``cancel``, a ``threading.Event`` or a similar object, is set, the run raises :class:`Cancelled`
        within a fraction of a second. ``name`` is the job's name (random by default), ``lease`` the lease
        of its prefixes in seconds (``None`` for the cluster's default), which is renewed during the run,
        and ``quota_blocks`` the most blocks that the job may hold, 0 for no quota.

        Raises :class:`UserFunctionError` if one of the functions raises in every attempt,
        :class:`KeyOrderError` and :class:`NotPicklable` for unsuitable keys and values,
        :class:`TaskFailed` if a task fails otherwise, :class:`ExecutorBroken`, and the errors of the
        cluster. After any error, including ``KeyboardInterrupt``, the tasks are stopped and the memory is
        freed; further Ctrl-C does not interrupt that. On an executor other than
        :class:`~honeycomb.WorkerPool`, a running task cannot be stopped; it fails at its next access to the
        job.
        """
        if not 1 <= attempts <= TRIES_MAX:
            raise errors.InvalidArgument(f"attempts is 1 to {TRIES_MAX}, not {attempts}")
        if cancel is not None and cancel.is_set():
            raise Cancelled("the run was cancelled before it began")
        speculation = Speculation() if speculate is True else speculate or None
        options = Options(reducers, attempts, self._total_order, speculation, cancel)
        splits = list(inputs)
        with Interrupts() as interrupts, ExitStack() as resources:
            try:
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
                report = reporter(progress)
                with interrupts.deferred():
                    sampler = MemorySampler(client.status)
                    resources.callback(sampler.stop)
                    tasks = max(len(splits), reducers)
                    workers = resources.enter_context(
                        Workers(executor, tasks, speculation is not None, interrupts)
                    )

                def report_and_sample(told: Progress) -> None:
                    if told.done == told.total:
                        sampler.sample()  # memory use changes at the end of a stage
                    report(told)

                run = Run(job, self._program, splits, options, workers, report_and_sample)
                commits = run.execute()
                with interrupts.deferred():
                    workers.close()
            except BaseException:
                interrupts.hold()
                raise
            interrupts.hold()
            return Result(
                job, commits, run.stages, run.counters, run.loads, sampler, resources.pop_all()
            )
