"""The code that runs in a worker: one attempt of one map or reduce task.

A task attaches to the job under its own prefix, so that its traffic renews that prefix and its
token may write there. It returns a commit. Its frames are read only if the driver accepts the commit.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from sys import getsizeof
from typing import Any, Final, TypeAlias

from honeycomb.job import Job, JobHandle
from honeycomb.mapreduce import plan, ranges
from honeycomb.mapreduce.counters import current_counts
from honeycomb.mapreduce.errors import (
    MapReduceError,
    NotPicklable,
    TaskFailed,
    UserFunctionError,
    user_traceback,
)
from honeycomb.mapreduce.frames import FrameWriter, committed_batches, new_attempt, read_frames
from honeycomb.mapreduce.records import decode, encode
from honeycomb.mapreduce.skew import heavy_keys, key_words

#: Most pairs that a map task buffers before it writes them out, and their most estimated bytes.
SPILL_PAIRS: Final = 1 << 19
SPILL_BYTES: Final = 128 << 20
#: Most pairs taken from a user's generator at a time, and their approximate bytes.
CHUNK_PAIRS: Final = 4096
CHUNK_BYTES: Final = 1 << 20
#: Items of a container, and levels of containers, that are measured to estimate its bytes.
WEIGHED_ITEMS: Final = 16
WEIGHED_LEVELS: Final = 2

Pair = tuple[Any, Any]
Pickled: TypeAlias = bytes


@dataclass(frozen=True, slots=True)
class Program:
    """The user's functions."""

    map: Callable[[Any], Iterable[Pair]]
    reduce: Callable[[Any, list[Any]], Any]
    combine: Callable[[Any, list[Any]], Any] | None
    partition: Callable[[Any, int], int]
    sort: bool
    sort_key: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class TaskContext:
    """The task that the current code runs for. ``attempt`` counts from 1; ``origin`` is the name of a
    map task's input, if it has one."""

    address: str
    stage: str
    index: int
    attempt: int
    origin: str = ""


@dataclass(frozen=True, slots=True)
class MapTask:
    """One attempt of a map task: its input split and the data it needs to join the job. ``number`` is the
    attempt, from 0; ``program`` and ``split`` are pickles; ``origin`` is the split's name, if it has one."""

    handle: JobHandle
    index: int
    number: int
    reducers: int
    program: bytes = field(repr=False)
    split: bytes = field(repr=False)
    origin: str = ""


@dataclass(frozen=True, slots=True)
class ReduceTask:
    """One attempt of a reduce task. ``commits`` has (task, attempt, frames) for each map task that wrote
    to its partition."""

    handle: JobHandle
    index: int
    number: int
    program: bytes = field(repr=False)
    commits: tuple[tuple[int, int, int], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Commit:
    """The report of a finished attempt. ``frames`` is the number of frames to read back from each file
    that it wrote; ``bytes`` is the number of written bytes, ``seconds`` its time, and ``counters`` the
    counts of the user's functions.

    For a map task, ``loads`` has the bytes for each reducer that received any. For a reduce task,
    ``heavy`` has the heaviest keys. For a sampled map task, ``sample`` has the values by which its keys
    are ordered.
    """

    index: int
    attempt: int
    frames: tuple[int, ...]
    bytes: int
    pairs_in: int
    pairs_out: int
    seconds: float
    counters: Mapping[str, int] = field(default_factory=dict)
    loads: Mapping[int, int] = field(default_factory=dict)
    heavy: tuple[tuple[str, int], ...] = ()
    sample: Pickled = b""


_context: ContextVar[TaskContext | None] = ContextVar("honeycomb_task", default=None)


def current_task() -> TaskContext | None:
    """The task that the calling code runs for; ``None`` outside of a program's functions."""
    return _context.get()


@lru_cache(maxsize=4)
def _load_program(data: bytes) -> Program:
    program: Program = pickle.loads(data)
    return program


@contextlib.contextmanager
def _as_task(
    handle: JobHandle, stage: str, index: int, number: int, origin: str = ""
) -> Iterator[dict[str, int]]:
    """Sets the current task for the code inside, and yields the counters of that code."""
    context = TaskContext(f"{handle.name}/{handle.task}", stage, index, number + 1, origin)
    counts: dict[str, int] = {}
    task, counters = _context.set(context), current_counts.set(counts)
    try:
        yield counts
    finally:
        current_counts.reset(counters)
        _context.reset(task)


@contextlib.contextmanager
def _user(function: str) -> Iterator[None]:
    """Wraps calls of the user's code, so that their errors name the function. The library's own errors,
    such as for a missing input or keys without an order, are not wrapped."""
    try:
        yield
    except MapReduceError:
        raise
    except Exception as error:
        context = _here()
        raise UserFunctionError(
            context.address,
            context.attempt,
            function,
            repr(error),
            user_traceback(error),
            context.origin,
        ) from error


def _here() -> TaskContext:
    context = _context.get()
    assert context is not None
    return context


def _encode(pairs: list[Pair], function: str) -> bytes:
    """Encodes one batch. Raises :class:`NotPicklable`, which names the object that ``function``
    returned."""
    try:
        return encode(pairs)
    except Exception as error:
        for key, value in pairs:
            for what, part in (("key", key), ("value", value)):
                try:
                    encode([(part, None)])
                except Exception as reason:  # noqa: BLE001 - pickling runs the user's code
                    context = _here()
                    raise NotPicklable(
                        f"the {function} function of {context.address} returned for key "
                        f"{key_words(key)} a {what} of type {type(part).__qualname__}, which cannot "
                        f"be pickled: {reason}",
                        context.address,
                        context.attempt,
                    ) from error
        raise


# -------------------------------------------------------------------------------------------- map


def run_map(task: MapTask) -> Commit:
    """Maps one split, and appends the pairs to the shuffle files of their reducers."""
    started = time.perf_counter()
    with (
        _as_task(task.handle, "map", task.index, task.number, task.origin) as counts,
        task.handle.attach() as job,
    ):
        program = _load_program(task.program)
        output = _MapOutput(job, task, program)
        for chunk in _chunks(_mapped(program, task), "map"):
            output.add(chunk)
        output.spill()
        writers = output.writers
        return Commit(
            task.index,
            output.attempt,
            tuple(writer.frames if writer else 0 for writer in writers),
            sum(writer.bytes for writer in writers if writer),
            output.pairs_in,
            output.pairs_out,
            time.perf_counter() - started,
            counts,
            {index: writer.bytes for index, writer in enumerate(writers) if writer},
        )


def run_sample(task: MapTask) -> Commit:
    """Maps the beginning of a split, and returns the values by which some of its keys are ordered. Writes
    nothing. The keys are a random sample; the task's number is the seed."""
    started = time.perf_counter()
    with _as_task(task.handle, "sample", task.index, task.number, task.origin):
        program = _load_program(task.program)
        chance = random.Random(task.index)
        kept: list[Any] = []
        seen = size = 0
        for chunk, _ in _chunks(_mapped(program, task), "map"):
            for key, _ in chunk:
                seen += 1
                if len(kept) < ranges.SAMPLE_KEYS:
                    kept.append(key)
                    size += _weight(key)
                elif (place := chance.randrange(seen)) < len(kept):
                    kept[place] = key
            if seen >= ranges.SAMPLE_PAIRS or size >= ranges.SAMPLE_BYTES:
                break
        if program.combine is not None:
            with _user("map"):  # keys must be hashable
                kept = list(dict.fromkeys(kept))  # combined pairs contain each key once
        if program.sort_key is not None:
            with _user("sort_key"):
                kept = [program.sort_key(key) for key in kept]
        # Pickled here, because the executor's pickling may not support the user's classes.
        sample = _encode([(key, None) for key in kept], "map")
        seconds = time.perf_counter() - started
        return Commit(task.index, 0, (), 0, seen, len(kept), seconds, sample=sample)


def _mapped(program: Program, task: MapTask) -> Iterator[Pair]:
    split = pickle.loads(task.split)
    with _user("map"):
        return iter(program.map(split))


def _chunks(pairs: Iterator[Pair], function: str) -> Iterator[tuple[list[Pair], int]]:
    """Chunks of the pairs that a function yields, each with an estimate of its bytes. The length of a
    chunk adapts to the size of the pairs, so that chunks of large pairs stay small."""
    length = 1
    while True:
        with _user(function):
            chunk = list(islice(pairs, length))
            _check_pairs(chunk)
        if not chunk:
            return
        sample = chunk[:: max(1, len(chunk) // 16)]
        with _user(function):
            average = max(1, sum(_weight(pair) for pair in sample) // len(sample))
        yield chunk, average * len(chunk)
        length = max(1, min(CHUNK_PAIRS, length * 4, CHUNK_BYTES // average))


def _check_pairs(chunk: list[Pair]) -> None:
    try:
        for _, _ in chunk:
            pass
    except (TypeError, ValueError):
        for pair in chunk:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise TypeError(
                    f"a map function yields pairs (key, value), not {key_words(pair)}"
                ) from None
        raise


def _weight(value: Any, levels: int = WEIGHED_LEVELS) -> int:
    """The approximate bytes of a value, including its items down to a few levels. The first items of a
    container are measured to estimate all."""
    size = getsizeof(value)
    if levels and isinstance(value, (tuple, list, set, frozenset, dict)) and value:
        items = value.items() if isinstance(value, dict) else value
        few = list(islice(items, WEIGHED_ITEMS))
        size += sum(_weight(item, levels - 1) for item in few) * len(value) // len(few)
    return size


class _MapOutput:
    """Buffers pairs, combines them, and writes them to the files of their reducers. The buffer is bounded
    by :data:`SPILL_PAIRS` and :data:`SPILL_BYTES`, with and without a combiner."""

    def __init__(self, job: Job, task: MapTask, program: Program) -> None:
        self._job = job
        self._task = task
        self._program = program
        self._groups: defaultdict[Any, list[Any]] = defaultdict(list)
        self._plain: list[Pair] = []
        self._held = 0
        self._held_bytes = 0
        self.attempt = new_attempt(task.number)
        self.writers: list[FrameWriter | None] = [None] * task.reducers
        self.pairs_in = 0
        self.pairs_out = 0

    def add(self, piece: tuple[list[Pair], int]) -> None:
        chunk, size = piece
        if self._program.combine is None:
            self._plain += chunk
        else:
            groups = self._groups
            with _user("map"):  # keys must be hashable
                for key, value in chunk:
                    groups[key].append(value)
        self.pairs_in += len(chunk)
        self._held += len(chunk)
        self._held_bytes += size
        if self._held >= SPILL_PAIRS or self._held_bytes >= SPILL_BYTES:
            self.spill()

    def spill(self) -> None:
        """Writes out the buffered pairs, one batch for each reducer."""
        combined = self._program.combine is not None
        pairs = self._combined() if combined else self._plain
        buckets: list[list[Pair]] = [[] for _ in self.writers]
        partition, reducers = self._program.partition, self._task.reducers
        with _user("partition"):
            for pair in pairs:
                bucket = partition(pair[0], reducers)
                if not 0 <= bucket < reducers:
                    raise ValueError(f"partition({pair[0]!r}, {reducers}) returned {bucket!r}")
                buckets[bucket].append(pair)
        for reducer, bucket_pairs in enumerate(buckets):
            if bucket_pairs:
                batch = _encode(bucket_pairs, "combine" if combined else "map")
                self._writer(reducer).write(batch)
        self.pairs_out += len(pairs)
        self._plain = []
        self._groups.clear()
        self._held = self._held_bytes = 0

    def _combined(self) -> list[Pair]:
        combine = self._program.combine
        assert combine is not None
        with _user("combine"):
            return [
                (key, values[0] if len(values) == 1 else combine(key, values))
                for key, values in self._groups.items()
            ]

    def _writer(self, reducer: int) -> FrameWriter:
        writer = self.writers[reducer]
        if writer is None:
            file = self._job.open_file(plan.shuffle_file(reducer))
            writer = FrameWriter(file.append, file.append_limit, self._task.index, self.attempt)
            self.writers[reducer] = writer
        return writer


# ----------------------------------------------------------------------------------------- reduce


def run_reduce(task: ReduceTask) -> Commit:
    """Reads one partition's committed pairs, reduces each key's values and writes the results."""
    started = time.perf_counter()
    with (
        _as_task(task.handle, "reduce", task.index, task.number) as counts,
        task.handle.attach() as job,
    ):
        program = _load_program(task.program)
        groups, pairs_in = _read_groups(job, task)
        heavy = heavy_keys(groups, pairs_in)
        keys = _ordered(groups, program)
        attempt = new_attempt(task.number)
        file = job.create_file(plan.output_file(task.index), exist_ok=True)
        writer = FrameWriter(file.append, file.append_limit, task.index, attempt)
        reduced = ((key, program.reduce(key, groups.pop(key))) for key in keys)
        for chunk, _ in _chunks(reduced, "reduce"):
            writer.write(_encode(chunk, "reduce"))
        return Commit(
            task.index,
            attempt,
            (writer.frames,),
            writer.bytes,
            pairs_in,
            len(keys),
            time.perf_counter() - started,
            counts,
            heavy=heavy,
        )


def _read_groups(job: Job, task: ReduceTask) -> tuple[defaultdict[Any, list[Any]], int]:
    groups: defaultdict[Any, list[Any]] = defaultdict(list)
    count = 0
    if not task.commits:
        return groups, count
    file = job.open_file(plan.shuffle_file(task.index))
    commits = {index: (attempt, frames) for index, attempt, frames in task.commits}
    frames = read_frames(file.read, file.size(), file.address)
    for index, batch in committed_batches(frames, commits, file.address):
        try:  # unpickling may run the user's code
            pairs = decode(batch)
        except Exception as error:
            context = _here()
            raise TaskFailed(
                f"the pairs that map task {index} sent to {context.address} cannot be unpickled: "
                f"{type(error).__name__}: {error}",
                context.address,
                context.attempt,
            ) from error
        with _user("map"):  # keys must be hashable
            for key, value in pairs:
                groups[key].append(value)
        count += len(pairs)
    return groups, count


def _ordered(groups: dict[Any, list[Any]], program: Program) -> list[Any]:
    keys = list(groups)
    if not program.sort:
        return keys
    with _user("sort_key" if program.sort_key else "key comparison"):
        return ranges.ordered_by(keys, program.sort_key)
