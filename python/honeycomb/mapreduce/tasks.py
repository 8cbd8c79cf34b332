"""What runs in a worker: one attempt of one map or reduce task.

A task attaches to the job under its own prefix, so that its traffic renews that prefix and its
token may write there. It returns a commit; until the driver has taken that, nothing it wrote counts.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from sys import getsizeof
from typing import Any, Final

from honeycomb.job import Job, JobHandle
from honeycomb.mapreduce import plan
from honeycomb.mapreduce.errors import UserFunctionError, user_traceback
from honeycomb.mapreduce.frames import FrameWriter, committed_batches, new_attempt, read_frames
from honeycomb.mapreduce.records import decode, encode

#: Pairs that a map task gathers before it writes them out, and an estimate of their bytes.
SPILL_PAIRS: Final = 1 << 19
SPILL_BYTES: Final = 128 << 20
#: Pairs taken from a user's generator at a time, and the bytes aimed at.
CHUNK_PAIRS: Final = 4096
CHUNK_BYTES: Final = 1 << 20

Pair = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Program:
    """The user's functions."""

    map: Callable[[Any], Iterable[Pair]]
    reduce: Callable[[Any, list[Any]], Any]
    combine: Callable[[Any, list[Any]], Any] | None
    partition: Callable[[Any, int], int]
    sort: bool


@dataclass(frozen=True, slots=True)
class TaskContext:
    """Which task the current code runs for. ``attempt`` counts from 1."""

    address: str
    stage: str
    index: int
    attempt: int


@dataclass(frozen=True, slots=True)
class MapTask:
    """One attempt of a map task: its input split and what it needs to take part. ``number`` is its
    try, from 0; ``program`` and ``split`` are pickles."""

    handle: JobHandle
    index: int
    number: int
    reducers: int
    program: bytes = field(repr=False)
    split: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReduceTask:
    """One attempt of a reduce task. ``commits`` holds, for each map task that wrote to its partition,
    (task, attempt, frames)."""

    handle: JobHandle
    index: int
    number: int
    program: bytes = field(repr=False)
    commits: tuple[tuple[int, int, int], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Commit:
    """What an attempt did. ``frames`` counts, for each file it wrote, the frames that must be read
    back; ``bytes`` are all it wrote; ``seconds`` its time."""

    index: int
    attempt: int
    frames: tuple[int, ...]
    bytes: int
    pairs_in: int
    pairs_out: int
    seconds: float


_context: ContextVar[TaskContext | None] = ContextVar("honeycomb_task", default=None)


def current_task() -> TaskContext | None:
    """The task that the calling code runs for; ``None`` outside of map and reduce functions."""
    return _context.get()


@lru_cache(maxsize=4)
def _load_program(data: bytes) -> Program:
    program: Program = pickle.loads(data)
    return program


@contextlib.contextmanager
def _running(handle: JobHandle, stage: str, index: int, number: int) -> Iterator[Job]:
    context = TaskContext(f"{handle.name}/{handle.task}", stage, index, number + 1)
    reset = _context.set(context)
    try:
        with handle.attach() as job:
            yield job
    finally:
        _context.reset(reset)


@contextlib.contextmanager
def _user(function: str) -> Iterator[None]:
    """Wraps calls into the user's code: what they raise says where."""
    try:
        yield
    except Exception as error:
        context = _context.get()
        assert context is not None
        raise UserFunctionError(
            context.address, context.attempt, function, repr(error), user_traceback(error)
        ) from error


# -------------------------------------------------------------------------------------------- map


def run_map(task: MapTask) -> Commit:
    """Maps one split and appends the pairs to the shuffle files of their reducers."""
    started = time.perf_counter()
    with _running(task.handle, "map", task.index, task.number) as job:
        program = _load_program(task.program)
        output = _MapOutput(job, task, program)
        with _user("map"):
            pairs = iter(program.map(pickle.loads(task.split)))
        for chunk in _chunks(pairs):
            output.add(chunk)
        output.spill()
        return Commit(
            task.index,
            output.attempt,
            tuple(writer.frames if writer else 0 for writer in output.writers),
            sum(writer.bytes for writer in output.writers if writer),
            output.pairs_in,
            output.pairs_out,
            time.perf_counter() - started,
        )


def _chunks(pairs: Iterator[Pair]) -> Iterator[tuple[list[Pair], int]]:
    """Pieces of what a map function yields, each with an estimate of its bytes. Their length adapts
    to the size of the pairs, so that a piece of large ones does not get out of hand."""
    length = 64
    while True:
        with _user("map"):
            chunk = list(islice(pairs, length))
        if not chunk:
            return
        sample = chunk[:: max(1, len(chunk) // 16)]
        with _user("map"):
            average = sum(getsizeof(key) + getsizeof(value) for key, value in sample) // len(sample)
        yield chunk, average * len(chunk)
        length = max(1, min(CHUNK_PAIRS, length * 4, CHUNK_BYTES // average))


class _MapOutput:
    """Gathers pairs, combines them, and writes them to the files of their reducers."""

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
            with _user("map"):  # keys have to be hashable
                for key, value in chunk:
                    groups[key].append(value)
        self.pairs_in += len(chunk)
        self._held += len(chunk)
        self._held_bytes += size
        if self._held >= SPILL_PAIRS or self._held_bytes >= SPILL_BYTES:
            self.spill()

    def spill(self) -> None:
        """Writes out what was gathered, one batch for each reducer."""
        pairs = self._plain if self._program.combine is None else self._combined()
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
                self._writer(reducer).write(encode(bucket_pairs))
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
    with _running(task.handle, "reduce", task.index, task.number) as job:
        program = _load_program(task.program)
        groups, pairs_in = _read_groups(job, task)
        keys = _sorted_keys(groups, program.sort)
        attempt = new_attempt(task.number)
        file = job.create_file(plan.output_file(task.index), exist_ok=True)
        writer = FrameWriter(file.append, file.append_limit, task.index, attempt)
        for start in range(0, len(keys), CHUNK_PAIRS):
            with _user("reduce"):
                reduced = [
                    (key, program.reduce(key, groups.pop(key)))
                    for key in keys[start : start + CHUNK_PAIRS]
                ]
            writer.write(encode(reduced))
        return Commit(
            task.index,
            attempt,
            (writer.frames,),
            writer.bytes,
            pairs_in,
            len(keys),
            time.perf_counter() - started,
        )


def _read_groups(job: Job, task: ReduceTask) -> tuple[defaultdict[Any, list[Any]], int]:
    groups: defaultdict[Any, list[Any]] = defaultdict(list)
    count = 0
    if not task.commits:
        return groups, count
    file = job.open_file(plan.shuffle_file(task.index))
    commits = {index: (attempt, frames) for index, attempt, frames in task.commits}
    frames = read_frames(file.read, file.size(), file.address)
    for _, batch in committed_batches(frames, commits, file.address):
        with _user("map"):  # unpickling may run user code, and keys have to be hashable
            pairs = decode(batch)
            for key, value in pairs:
                groups[key].append(value)
        count += len(pairs)
    return groups, count


def _sorted_keys(groups: dict[Any, list[Any]], sort: bool) -> Sequence[Any]:
    if not sort:
        return list(groups)
    with _user("map"):
        try:
            return sorted(groups)
        except TypeError as error:
            raise TypeError(f"{error}: keys that have no order need sort=False") from error
