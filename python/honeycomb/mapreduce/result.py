"""The result of a MapReduce job: its output, its statistics, and the memory to free."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, Never, Self

from honeycomb import errors
from honeycomb._display import Facts, Shown, refuse_pickle
from honeycomb._info import Status
from honeycomb.job import Job
from honeycomb.mapreduce import outputs, plan
from honeycomb.mapreduce.frames import committed_batches, read_frames
from honeycomb.mapreduce.interrupts import Interrupts
from honeycomb.mapreduce.outputs import OutputFormat
from honeycomb.mapreduce.records import decode
from honeycomb.mapreduce.skew import HeavyKey, PartitionLoad, Skew
from honeycomb.mapreduce.tasks import Commit

SAMPLES_MAX: Final = 4096
SAMPLE_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class StageStats:
    """One stage: wall time in seconds, tasks, attempts started and failed, pairs in and out, and
    bytes written by committed attempts, frames included. ``copies`` of slow tasks are among the
    attempts, and ``copies_won`` of them committed first."""

    name: str
    seconds: float
    tasks: int
    attempts: int
    failures: int
    pairs_in: int
    pairs_out: int
    bytes: int
    copies: int = 0
    copies_won: int = 0


@dataclass(frozen=True, slots=True)
class MemorySample:
    """The cluster's memory at a moment, ``seconds`` after sampling began: the bytes of data, the bytes of
    allocated blocks, and the bytes resident in its servers, as in :meth:`honeycomb.Client.status`."""

    seconds: float
    used: int
    allocated: int
    resident: int


class MemorySampler:
    """Samples the cluster's memory in the background, every 50 ms at first.

    Keeps at most 4096 samples. Beyond that, it drops every other sample and samples half as often. A
    status request that fails is skipped.
    """

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._samples: list[MemorySample] = []
        self._interval = SAMPLE_SECONDS
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.sample()
            self._stop.wait(self._interval)

    def sample(self) -> MemorySample | None:
        """Takes a sample now."""
        try:
            status = self._status()
        except errors.HoneycombError:
            return None
        with self._lock:
            sample = MemorySample(
                time.monotonic() - self._started,
                status["bytes_used"],
                status["bytes_allocated"],
                status["bytes_resident"],
            )
            self._samples.append(sample)
            if len(self._samples) > SAMPLES_MAX:
                self._samples = self._samples[::2]
                self._interval *= 2
            return sample

    @property
    def samples(self) -> list[MemorySample]:
        """The samples taken so far."""
        with self._lock:
            return list(self._samples)

    def stop(self) -> None:
        """Ends the sampling. Idempotent."""
        self._stop.set()
        self._thread.join()


class Result(Shown):
    """The output of a job that succeeded, still in the job's memory.

    Use it in a ``with`` block, or call :meth:`close`: until then the job stays registered and its leases
    are renewed. ``stages`` are the statistics of its stages, ``memory`` samples of the cluster's memory,
    and ``counters`` the sums of the functions' counters, by name.
    """

    def __init__(
        self,
        job: Job,
        commits: Sequence[Commit],
        stages: Sequence[StageStats],
        counters: Mapping[str, int],
        loads: Sequence[int],
        sampler: MemorySampler,
        resources: ExitStack,
    ) -> None:
        self.job = job
        self.stages = list(stages)
        self.counters = dict(counters)
        self._loads = list(loads)
        self._commits = list(commits)
        self._sampler = sampler
        self._resources = resources
        # For a result that is never closed. At the end of the program, the leases free the memory.
        weakref.finalize(self, _close, resources).atexit = False

    @property
    def memory(self) -> list[MemorySample]:
        """Samples from the beginning of the job until now, or until it was closed."""
        return self._sampler.samples

    def skew(self) -> Skew:
        """How evenly the pairs were distributed over the reducers, and the heaviest keys."""
        partitions = tuple(
            PartitionLoad(one.index, one.pairs_out, one.pairs_in, load, one.seconds)
            for one, load in zip(self._commits, self._loads, strict=True)
        )
        heavy = (
            HeavyKey(key, one.index, pairs, pairs / one.pairs_in)
            for one in self._commits
            for key, pairs in one.heavy
        )
        return Skew(partitions, tuple(sorted(heavy, key=lambda key: -key.pairs)))

    @property
    def partitions(self) -> int:
        """The number of outputs: one for each reducer."""
        return len(self._commits)

    def partition(self, index: int) -> Iterator[tuple[Any, Any]]:
        """The pairs of one reducer, in order of key unless the job ran with ``sort=False``."""
        commit = self._commits[index]
        if commit.frames[0] == 0:
            return
        file = self.job.open_file(plan.output_file(index))
        frames = read_frames(file.read, file.size(), file.address)
        wanted = {index: (commit.attempt, commit.frames[0])}
        for _, batch in committed_batches(frames, wanted, file.address):
            yield from decode(batch)

    def items(self, *, consume: bool = False) -> Iterator[tuple[Any, Any]]:
        """Yields all pairs ``(key, reduced value)``, reducer by reducer; with ``sort="total"``, in order
        of key.

        With ``consume``, each reducer's output is freed after it was read, so it can be read only once.
        """
        for index in range(self.partitions):
            yield from self.partition(index)
            if consume:
                self.free(index)

    def free(self, index: int) -> None:
        """Frees the memory of one reducer's output, which can no longer be read then."""
        self.job.remove(plan.output_file(index))

    def write(
        self,
        target: str | os.PathLike[str],
        format: OutputFormat = "text",
        *,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Writes the output into the folder ``target``, a path or any URL of fsspec, and returns
        the paths of its files: one for each reducer, and last ``_SUCCESS``.

        ``"text"`` has a line for each pair, the key and the value separated by a tab. Bytes are written
        as UTF-8, and backslash, tab and line ends within them are written ``\\\\``, ``\\t``, ``\\n`` and
        ``\\r``. ``"pickle"`` has a pickle for each pair, for
        :func:`~honeycomb.mapreduce.inputs.pickles`. ``"parquet"`` and ``"arrow"`` (the IPC file
        format) have columns ``key`` and ``value``, whose types are those of the first pairs.

        A file gets its final name when it is complete. ``_SUCCESS`` is written last: a folder without it
        is an incomplete output. If this call raises, it removes the files that it wrote. ``overwrite``
        removes an earlier output first; without it, a folder that is not empty raises
        :class:`~honeycomb.errors.AlreadyExists`. Raises
        :class:`~honeycomb.mapreduce.MissingPackage`, and the errors of the file system.
        """
        parts = [partial(self.partition, index) for index in range(self.partitions)]
        return outputs.write(parts, target, format, overwrite, storage_options or {})

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self.items()

    def close(self) -> None:
        """Deregisters the job, which frees all its memory. Idempotent."""
        _close(self._resources)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with Interrupts() as interrupts:
            interrupts.hold()
            self._resources.__exit__(exc_type, exc, traceback)

    def _facts(self) -> Facts:
        yield "partitions", self.partitions
        for stage in self.stages:
            yield stage.name, f"{stage.tasks} tasks, {stage.seconds:.2f} s"

    def __reduce__(self) -> Never:
        raise refuse_pickle("a Result", "its job ends with this process; pickle its items instead")

    def __repr__(self) -> str:
        seconds = sum(stage.seconds for stage in self.stages)
        return f"<honeycomb.mapreduce.Result of {self.job.name}: {self.partitions} parts, {seconds:.2f} s>"


def _close(resources: ExitStack) -> None:
    with Interrupts() as interrupts:
        interrupts.hold()
        resources.close()
